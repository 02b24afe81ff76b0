//! A real git client and a real sshd, with the end of SSH between them.

mod git_support;

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use git_support::Fixture;
use stockade_egress::git::known_hosts::KnownHosts;
use stockade_egress::git::spool::Room;
use stockade_egress::git::ssh::{HostKey, Session, Upstream, serve};
use stockade_egress::secret::SecretText;

const SSHD: &str = "/usr/sbin/sshd";

/// What the server in between logs in with.
enum LogIn {
    Keys(Vec<&'static str>),
    /// A real agent that holds the key, ended when dropped.
    Agent(Agent),
}

struct Agent {
    child: Child,
    socket: PathBuf,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Which key known_hosts has for the server.
#[derive(Clone, Copy)]
enum Known {
    Right,
    Wrong,
}

fn key(directory: &Path, name: &str, kind: &str) -> String {
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", kind, "-N", "", "-C", name, "-f", name])
        .current_dir(directory)
        .status()
        .unwrap();
    assert!(made.success());
    std::fs::read_to_string(directory.join(format!("{name}.pub"))).unwrap()
}

fn start_agent(directory: &Path) -> Agent {
    let socket = directory.join("agent");
    let child = Command::new("ssh-agent")
        .args(["-D", "-a"])
        .arg(&socket)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while !socket.exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let added = Command::new("ssh-add")
        .args(["-q", "log-in"])
        .current_dir(directory)
        .env("SSH_AUTH_SOCK", &socket)
        .status()
        .unwrap();
    assert!(added.success());
    Agent { child, socket }
}

fn user() -> String {
    let output = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Serves the fixture's repositories by sshd, one process for each
/// connection, and returns the port.
fn start_server(fixture: &Fixture, directory: &Path) -> u16 {
    // sshd of root wants this directory, which its package makes at boot.
    let privileges = Path::new("/run/sshd");
    if user() == "root" {
        std::fs::create_dir_all(privileges).unwrap();
    }
    let path = std::env::var("PATH").unwrap();
    let force = format!(
        "export PATH='{path}'; cd '{}' && exec sh -c \"$SSH_ORIGINAL_COMMAND\"",
        fixture.path().join("srv").display()
    );
    let script = directory.join("force");
    std::fs::write(&script, format!("#!/bin/sh\n{force}\n")).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let place = directory.display();
    let config = format!(
        "HostKey {place}/server\nAuthorizedKeysFile {place}/log-in.pub\nStrictModes no\n\
         UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
         PermitRootLogin yes\nAcceptEnv GIT_PROTOCOL\nForceCommand {}\nPidFile none\n",
        script.display()
    );
    std::fs::write(directory.join("sshd_config"), config).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = directory.join("sshd_config");
    let log = directory.join("sshd.log");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = OwnedFd::from(stream.unwrap());
            let mut command = Command::new(SSHD);
            command.args(["-i", "-E"]).arg(&log).arg("-f").arg(&config);
            command
                .stdin(stream.try_clone().unwrap())
                .stdout(stream)
                .stderr(Stdio::null());
            let mut child = command.spawn().unwrap();
            std::thread::spawn(move || child.wait().unwrap());
        }
    });
    port
}

/// Puts the code under test before the server and returns its port and its
/// line for known_hosts.
fn start_middle(
    server_port: u16,
    known_hosts: String,
    log_in: &LogIn,
    directory: &Path,
) -> (u16, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let host_key = HostKey::generate().unwrap();
    let line = host_key.known_hosts_line(&[("127.0.0.1", port)]).unwrap();
    let keys = match log_in {
        LogIn::Keys(names) => names
            .iter()
            .map(|name| SecretText::new(std::fs::read_to_string(directory.join(name)).unwrap()))
            .collect(),
        LogIn::Agent(_) => Vec::new(),
    };
    let upstream = Upstream {
        host: "127.0.0.1".to_owned(),
        port: server_port,
        known_hosts: Arc::new(KnownHosts::parse(known_hosts.as_bytes())),
        agent: match log_in {
            LogIn::Agent(agent) => Some(agent.socket.clone()),
            LogIn::Keys(_) => None,
        },
        keys,
    };
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            let shared = std::rc::Rc::new((host_key, upstream, Room::new(64 << 20)));
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let shared = std::rc::Rc::clone(&shared);
                tokio::task::spawn_local(async move {
                    let (host_key, upstream, room) = &*shared;
                    let session = Session {
                        host_key,
                        upstream,
                        needles: git_support::needles(),
                        room: room.clone(),
                        judge: &git_support::judge,
                    };
                    let dial = || async {
                        let stream = TcpStream::connect(("127.0.0.1", server_port)).unwrap();
                        stream.set_nonblocking(true).unwrap();
                        Ok(tokio::net::TcpStream::from_std(stream).unwrap())
                    };
                    // How it ended is for the client to say.
                    drop(serve(client, dial, &session).await);
                });
            }
        });
    });
    (port, line)
}

/// The keys of a test, in a directory of its own.
fn keys(kind: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in ["server", "log-in", "stranger"] {
        key(directory.path(), name, kind);
    }
    directory
}

fn start(fixture: &mut Fixture, directory: &Path, log_in: &LogIn, known: Known) {
    let server_port = start_server(fixture, directory);
    let name = match known {
        Known::Right => "server.pub",
        Known::Wrong => "stranger.pub",
    };
    let public = std::fs::read_to_string(directory.join(name)).unwrap();
    let known_hosts = format!("[127.0.0.1]:{server_port} {public}");
    let (port, line) = start_middle(server_port, known_hosts, log_in, directory);
    let trusted = fixture.path().join("known_hosts");
    std::fs::write(&trusted, line).unwrap();
    fixture.base = format!("{}@127.0.0.1:", user());
    // As with a file of the system and no settings of the user.
    fixture.ssh_command = Some(format!(
        "ssh -F none -p {port} -o BatchMode=yes -o UserKnownHostsFile=/dev/null \
         -o GlobalKnownHostsFile={} -o IdentityFile=none",
        trusted.display()
    ));
}

fn with_server(test: impl FnOnce(&Fixture)) {
    let mut fixture = Fixture::new();
    let directory = keys("ed25519");
    start(
        &mut fixture,
        directory.path(),
        &LogIn::Keys(vec!["log-in"]),
        Known::Right,
    );
    test(&fixture);
}

#[test]
fn permitted_repositories_are_read_and_others_are_not() {
    with_server(git_support::reads);
}

#[test]
fn permitted_references_are_pushed_and_others_are_not() {
    with_server(git_support::pushes_by_reference);
}

#[test]
fn references_move_forward_only_unless_the_rule_says_so() {
    with_server(git_support::moves_forward_only);
}

#[test]
fn a_push_with_a_secret_anywhere_in_it_is_refused() {
    with_server(git_support::keeps_secrets);
}

#[test]
fn a_push_that_is_too_large_is_refused() {
    with_server(git_support::counts_bytes);
}

#[test]
fn a_shallow_clone_can_push() {
    with_server(git_support::pushes_from_a_shallow_clone);
}

#[test]
fn an_agent_and_keys_of_each_kind_log_in() {
    for kind in ["rsa", "ecdsa", "ed25519"] {
        let directory = keys(kind);
        let agent = LogIn::Agent(start_agent(directory.path()));
        for log_in in [agent, LogIn::Keys(vec!["stranger", "log-in"])] {
            let mut fixture = Fixture::new();
            start(&mut fixture, directory.path(), &log_in, Known::Right);
            fixture.must(
                fixture.path(),
                &["clone", "-q", &fixture.url("o/n.git"), "copy"],
            );
        }
    }
}

#[test]
fn a_server_that_is_not_the_known_one_gets_nothing() {
    let mut fixture = Fixture::new();
    let directory = keys("ed25519");
    start(
        &mut fixture,
        directory.path(),
        &LogIn::Keys(vec!["log-in"]),
        Known::Wrong,
    );
    let url = fixture.url("o/n.git");
    let done = fixture.git(fixture.path(), &["clone", "-q", &url, "copy"]);
    assert!(
        !done.succeeded && done.text.contains("its key is not the one"),
        "{}",
        done.text
    );
}

#[test]
fn keys_that_the_server_refuses_are_named() {
    let mut fixture = Fixture::new();
    let directory = keys("ed25519");
    start(
        &mut fixture,
        directory.path(),
        &LogIn::Keys(vec!["stranger"]),
        Known::Right,
    );
    let url = fixture.url("o/n.git");
    let done = fixture.git(fixture.path(), &["clone", "-q", &url, "copy"]);
    assert!(
        !done.succeeded && done.text.contains("accepts none of the host's keys"),
        "{}",
        done.text
    );
}

#[test]
fn nothing_but_git_is_served() {
    with_server(|fixture| {
        let ssh = fixture.ssh_command.clone().unwrap();
        let run = |arguments: &str| {
            let line = format!("exec timeout 60 {ssh} {} {arguments}", user_at_host());
            let output = Command::new("sh")
                .args(["-c", &line])
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let text = [output.stdout, output.stderr].concat();
            (
                output.status.code(),
                String::from_utf8_lossy(&text).into_owned(),
            )
        };
        for arguments in [
            "true",
            "",
            "-tt",
            "\"git-upload-pack 'o/n.git'; id\"",
            "\"git-upload-pack '../o/n.git'\"",
            "-s sftp",
        ] {
            let (status, text) = run(arguments);
            assert!(
                !matches!(status, Some(0 | 124)),
                "{arguments}: {status:?} {text}"
            );
            assert!(!text.contains("uid="), "{arguments}: {text}");
        }
        // A forwarded port opens, and what goes into it is refused.
        let (status, text) = run("-W 127.0.0.1:1");
        assert!(!matches!(status, Some(0 | 124)), "{status:?} {text}");
        let (status, text) = run("\"git-upload-pack 'o/n.git'\" | head -c 4");
        assert_eq!(status, Some(0), "{text}");
        assert!(text.starts_with("0"), "{text}");
    });
}

fn user_at_host() -> String {
    format!("{}@127.0.0.1", user())
}
