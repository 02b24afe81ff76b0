//! What is offered between the sandbox and this machine, one by one: ports
//! both ways, unix sockets, and an ssh agent that signs with chosen keys only.

mod way_out;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use stockade_testkit::tools::soon;
use way_out::{Range, Server, all_refused, all_said};

/// A program on the machine beside the internet, until the guard is dropped.
fn on_machine(range: &Range, command: &Command) -> Server {
    let mut entered = range.internet.on_machine(command);
    entered.stdin(Stdio::null()).stdout(Stdio::null());
    Server(entered.spawn().expect("nsenter starts"))
}

fn python(script: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", script]).args(arguments);
    command
}

#[test]
fn a_published_server_is_reached_from_the_machine_and_no_other_is() {
    let range = Range::new();
    range.policy("publish = [\"8123:3000\"]", "");
    let mut command = range.world.stockade();
    command.args(["run", "--", "sh", "-c"]);
    command.arg("node dev_server.mjs 3000 & node dev_server.mjs 3001 & wait");
    let _run = on_machine(&range, &command);
    let mut get = Command::new("curl");
    get.args(["-sS", "--max-time", "20", "http://127.0.0.1:8123/page"]);
    assert!(soon(|| range.outside(&get).stdout == "inside /page\n"));
    let mut websocket = Command::new("/usr/bin/python3");
    websocket.arg(range.world.project.join("websocket.py"));
    websocket.arg("ws://127.0.0.1:8123/hot-reload");
    let talked = range.outside(&websocket).ok();
    assert_eq!(talked, "5 hello\n1000 xxxxx");
    for url in [
        "http://127.0.0.1:3001/",
        "http://127.0.0.1:3000/",
        // Published on the loopback only.
        "http://192.0.2.2:8123/",
    ] {
        let mut get = Command::new("curl");
        get.args(["-sS", "--max-time", "20", url]);
        assert_eq!(range.outside(&get).code, Some(7), "{url}");
    }
}

#[test]
fn an_offered_port_of_the_machine_is_reached_and_no_other_is() {
    let range = Range::new();
    let directory = range.world.outside().join("pages");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("page"), "on the machine\n").unwrap();
    let _servers = ["7001", "7002"].map(|port| {
        let mut server = Command::new("/usr/bin/python3");
        server.args(["-m", "http.server", "--bind", "0.0.0.0", port]);
        server.current_dir(&directory).stderr(Stdio::null());
        on_machine(&range, &server)
    });
    for port in [7001, 7002] {
        let mut probe = Command::new("curl");
        probe.args(["-s", &format!("http://127.0.0.1:{port}/page")]);
        assert!(soon(|| range.outside(&probe).code == Some(0)));
    }
    range.policy("host_ports = [7001]", "");
    let get = |url: &str| {
        ["", "--noproxy '*'"].map(|option| {
            let command = format!("curl -sSf {option} {url}");
            (command.replace('\'', ""), command)
        })
    };
    let reached = range.run_each(&[], &get("http://127.0.0.1:7001/page"));
    all_said(&reached, "on the machine");
    for url in [
        "http://127.0.0.1:7002/page",
        "http://192.0.2.2:7001/page",
        "http://192.0.2.2:7002/page",
        "http://origin.test/page",
    ] {
        all_refused(&range.run_each(&[], &get(url)));
    }
}

/// Answers each client on a unix socket with what it sent, in capitals.
const UNIX_SERVER: &str = "
import socket, sys
s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()
while True:
    c, _ = s.accept(); c.sendall(c.recv(100).upper()); c.close()
";

const UNIX_CLIENT: &str = "
import socket, sys
s = socket.socket(socket.AF_UNIX); s.settimeout(60); s.connect(sys.argv[1]); s.sendall(b'hello')
print(s.recv(100).decode())
";

#[test]
fn an_offered_unix_socket_is_reached_by_path_and_no_other_is() {
    let range = Range::new();
    let sockets: Vec<PathBuf> = ["offered.sock", "other.sock"]
        .map(|name| range.world.outside().join(name))
        .into();
    let _servers: Vec<Server> = sockets
        .iter()
        .map(|path| on_machine(&range, &python(UNIX_SERVER, &[path.to_str().unwrap()])))
        .collect();
    assert!(soon(|| sockets.iter().all(|path| path.exists())));
    let offer = format!(
        "[[socket]]\npath = \"{}\"\ninside = \"/run/offered.sock\"",
        sockets[0].display()
    );
    range.policy("", &offer);
    let ask = |path: &str| {
        let argv = ["/usr/bin/python3", "-c", UNIX_CLIENT, path];
        range.internet.run(&range.world, &[], &argv)
    };
    assert_eq!(ask("/run/offered.sock").ok(), "HELLO");
    for path in &sockets {
        let refused = ask(path.to_str().unwrap());
        assert!(refused.code != Some(0), "{path:?} {refused:?}");
    }
}

/// An ssh agent outside, with two keys.
struct Agent {
    process: Child,
    directory: PathBuf,
}

impl Agent {
    fn start(range: &Range) -> Self {
        let directory = range.world.outside().join("agent");
        fs::create_dir(&directory).unwrap();
        let mut agent = Command::new("ssh-agent");
        agent.args(["-D", "-a"]).arg(directory.join("socket"));
        agent.stdout(Stdio::null());
        let process = agent.spawn().expect("ssh-agent starts");
        let agent = Self { process, directory };
        assert!(soon(|| agent.socket().exists()));
        for name in ["signing", "other"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"]);
            assert!(keygen.arg(agent.key(name)).status().unwrap().success());
            let mut add = Command::new("ssh-add");
            add.arg("-q").arg(agent.key(name));
            add.env("SSH_AUTH_SOCK", agent.socket());
            assert!(add.status().unwrap().success());
        }
        agent
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    fn key(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn public(&self, name: &str) -> String {
        fs::read_to_string(self.key(&format!("{name}.pub"))).unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _gone = self.process.kill().is_err();
        let _reaped = self.process.wait().is_err();
    }
}

#[test]
fn commits_are_signed_by_an_agent_outside_with_the_named_key_only() {
    let range = Range::new();
    let agent = Agent::start(&range);
    range.policy("", "[[socket]]\nssh_agent = [\"signing\"]");
    let inside = |script: &str| {
        let mut command = range.world.stockade();
        command
            .env("SSH_AUTH_SOCK", agent.socket())
            .args(["run", "--", "sh", "-c", script]);
        range.outside(&command)
    };
    let listed = inside("ssh-add -l").ok();
    assert!(
        listed.contains(" signing (") && !listed.contains("other"),
        "{listed}"
    );
    let project = &range.world.project;
    for name in ["signing", "other"] {
        range
            .world
            .write(project.join(format!("{name}.pub")), agent.public(name));
    }
    let commit = |key: &str| {
        format!(
            "git -c user.name=t -c user.email=t@t -c gpg.format=ssh \
             -c user.signingkey={}/{key}.pub commit -q --allow-empty -S -m signed",
            project.display()
        )
    };
    range.world.outside_sh("git init -q").expect_code(0);
    inside(&commit("signing")).expect_code(0);
    let signers = range.world.write(
        range.world.outside().join("signers"),
        format!("t@t {}", agent.public("signing")),
    );
    let verify = format!(
        "git -c gpg.ssh.allowedSignersFile={} verify-commit HEAD",
        signers.display()
    );
    let verified = range.world.outside_sh(&verify).expect_code(0);
    assert!(
        verified.stderr.contains("Good \"git\" signature"),
        "{verified:?}"
    );
    assert_ne!(inside(&commit("other")).code, Some(0));
    // Keys can be used, not taken, added or removed.
    assert_ne!(inside("ssh-add -D").code, Some(0));
    assert!(inside("ssh-add -l").ok().contains("signing"));
}
