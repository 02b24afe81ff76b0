//! Real clients of more than web pages: git over HTTPS and over SSH, and a
//! database by its name.

mod way_out;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use stockade_testkit::is_root;
use stockade_testkit::net::Internet;
use stockade_testkit::tools::soon;
use way_out::{Range, Server, all_refused, as_nobody, there};

const SSH_PORT: u16 = 2222;
const SSHD: &str = "/usr/sbin/sshd";

/// Clones, commits, pushes to a branch and fetches it again.
fn round_trip(url: &str, clone: &str) -> String {
    format!(
        "git clone -q {url} {clone} && cd {clone} && cat file && echo more >> file && \
         git -c user.name=t -c user.email=t@t commit -qam more && \
         git push -q origin HEAD:refs/heads/{clone} && git fetch -q && \
         git rev-parse origin/{clone} | grep -qx \"$(git rev-parse HEAD)\" && echo done-{clone}"
    )
}

/// A bare repository with one commit, as the server has it.
fn repository(range: &Range) -> PathBuf {
    let bare = range.internet.git_root().join("acme/site.git");
    fs::create_dir_all(bare.parent().unwrap()).unwrap();
    let script = format!(
        "set -e; git init -q -b main seed; cd seed; echo seeded > file; git add file; \
         git -c user.name=t -c user.email=t@t commit -qm first; \
         git clone -q --bare . '{}'; cd ..; rm -rf seed",
        bare.display()
    );
    range.world.outside_sh(&script).expect_code(0);
    bare
}

fn branch_exists(bare: &Path, branch: &str) -> bool {
    let mut git = Command::new("git");
    git.arg("-C").arg(bare);
    git.args(["-c", "safe.directory=*", "rev-parse", "-q", "--verify"]);
    git.arg(format!("refs/heads/{branch}"));
    git.output().expect("git starts").status.success()
}

#[test]
fn git_clones_and_pushes_over_https() {
    let range = Range::new();
    let bare = repository(&range);
    let url = "https://origin.test/git/acme/site.git";
    range.policy("allow = [\"origin.test\"]", &range.trusting());
    let plain = range.internet.sh(&range.world, &round_trip(url, "plain"));
    assert_eq!(plain.ok(), "seeded\ndone-plain");
    assert!(branch_exists(&bare, "plain"));
    range.policy(
        "",
        "[[network.git]]\nhost = \"origin.test\"\npush = [\"git/acme/site\"]",
    );
    let read = range.internet.sh(&range.world, &round_trip(url, "read"));
    assert_eq!(read.ok(), "seeded\ndone-read");
    assert!(branch_exists(&bare, "read"));
    // To read is not to push, and another repository is another.
    range.policy(
        "",
        "[[network.git]]\nhost = \"origin.test\"\nread = [\"git/acme/site\"]",
    );
    let refused = [
        ("push", round_trip(url, "denied")),
        (
            "other repository",
            "git clone https://origin.test/git/acme/other.git".to_owned(),
        ),
        (
            "other host",
            "git clone https://other.test/git/acme/site.git".to_owned(),
        ),
    ]
    .map(|(name, command)| (name.to_owned(), command));
    all_refused(&range.run_each(&[], &refused));
    assert!(!branch_exists(&bare, "denied"));
}

/// An ssh server among the origins that serves the repositories to the key
/// `login`, and its line for known_hosts(5).
struct Sshd {
    _server: Server,
    directory: PathBuf,
    user: String,
}

impl Sshd {
    fn start(range: &Range) -> Self {
        let directory = range.world.outside().join("sshd");
        fs::create_dir_all(&directory).unwrap();
        for name in ["server", "login"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"]);
            let made = keygen.arg(directory.join(name)).status().unwrap();
            assert!(made.success());
        }
        if is_root() {
            // Its package makes this directory when the machine starts.
            fs::create_dir_all("/run/sshd").unwrap();
        }
        let config = directory.join("sshd_config");
        fs::write(&config, config_of(&directory, &range.internet)).unwrap();
        let mut sshd = Command::new(SSHD);
        sshd.args(["-D", "-e", "-f"]).arg(&config);
        let server = range.server(&sshd);
        let mut probe = Command::new("curl");
        probe.args([
            "-s",
            "--max-time",
            "5",
            &format!("telnet://93.184.216.34:{SSH_PORT}"),
        ]);
        assert!(soon(|| range.outside(&probe).stdout.starts_with("SSH-2.0")));
        let user = Command::new("id").arg("-un").output().unwrap();
        Self {
            _server: server,
            directory,
            user: String::from_utf8(user.stdout).unwrap().trim().to_owned(),
        }
    }

    fn known_hosts(&self) -> String {
        let key = fs::read_to_string(self.directory.join("server.pub")).unwrap();
        format!("[origin.test]:{SSH_PORT} {key}")
    }

    fn url(&self, host: &str, repository: &str) -> String {
        format!("ssh://{}@{host}:{SSH_PORT}/{repository}", self.user)
    }
}

fn config_of(directory: &Path, internet: &Internet) -> String {
    let force = directory.join("force");
    let path = std::env::var("PATH").unwrap();
    let script = format!(
        "#!/bin/sh\nexport PATH='{path}'\ncd '{}' || exit 1\n\
         eval \"set -- $SSH_ORIGINAL_COMMAND\"\nexec \"$1\" \".$2\"\n",
        internet.git_root().display()
    );
    fs::write(&force, script).unwrap();
    fs::set_permissions(&force, fs::Permissions::from_mode(0o755)).unwrap();
    let place = directory.display();
    format!(
        "Port {SSH_PORT}\nHostKey {place}/server\nAuthorizedKeysFile {place}/login.pub\n\
         StrictModes no\nUsePAM no\nPasswordAuthentication no\n\
         KbdInteractiveAuthentication no\nPermitRootLogin yes\nAcceptEnv GIT_PROTOCOL\n\
         ForceCommand {place}/force\nPidFile none\n"
    )
}

#[test]
fn git_clones_and_pushes_over_ssh_with_its_own_key() {
    let test = "git_clones_and_pushes_over_ssh_with_its_own_key";
    if !there(test, SSHD) {
        return;
    }
    let range = Range::new();
    let bare = repository(&range);
    let sshd = Sshd::start(&range);
    let key = range.world.write(
        range.world.project.join("login"),
        fs::read(sshd.directory.join("login")).unwrap(),
    );
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    range
        .world
        .write(range.world.project.join("known"), sshd.known_hosts());
    range.policy(&format!("allow = [\"origin.test:{SSH_PORT}\"]"), "");
    let ssh = format!(
        "export GIT_SSH_COMMAND='ssh -i {0}/login -o UserKnownHostsFile={0}/known'; ",
        range.world.project.display()
    );
    let clone = ssh.clone() + &round_trip(&sshd.url("origin.test", "acme/site.git"), "raw");
    let cloned = range.internet.sh(&range.world, &clone);
    assert_eq!(cloned.ok(), "seeded\ndone-raw");
    assert!(branch_exists(&bare, "raw"));
    let denied = ssh + "git clone " + &sshd.url("other.test", "acme/site.git");
    all_refused(&range.run_each(&[], &[("other host".to_owned(), denied)]));
}

#[test]
fn git_clones_and_pushes_over_ssh_with_a_key_that_stays_outside() {
    let test = "git_clones_and_pushes_over_ssh_with_a_key_that_stays_outside";
    if !there(test, SSHD) {
        return;
    }
    let range = Range::new();
    let bare = repository(&range);
    let sshd = Sshd::start(&range);
    let login = fs::read(sshd.directory.join("login")).unwrap();
    let key = range.world.write(".ssh/id_ed25519", login);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    range.world.write(".ssh/known_hosts", sshd.known_hosts());
    let policy = |what: &str| {
        format!(
            "[[network.git]]\nhost = \"origin.test\"\n{what} = [\"acme/site\"]\nssh_port = {SSH_PORT}"
        )
    };
    range.policy("", &policy("push"));
    let url = sshd.url("origin.test", "acme/site.git");
    let script = format!("ls ~/.ssh 2>/dev/null; {}", round_trip(&url, "kept"));
    let cloned = range.internet.sh(&range.world, &script);
    assert_eq!(cloned.ok(), "seeded\ndone-kept");
    assert!(branch_exists(&bare, "kept"));
    range.policy("", &policy("read"));
    let refused = [
        ("push", round_trip(&url, "denied")),
        (
            "other repository",
            format!("git clone {}", sshd.url("origin.test", "acme/other.git")),
        ),
        (
            "a shell",
            format!(
                "eval \"$GIT_SSH_COMMAND\" -p {SSH_PORT} {}@origin.test id",
                sshd.user
            ),
        ),
    ]
    .map(|(name, command)| (name.to_owned(), command));
    all_refused(&range.run_each(&[], &refused));
    assert!(!branch_exists(&bare, "denied"));
}

/// The newest PostgreSQL of this machine.
fn postgres() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let programs = versions.flatten().map(|version| version.path().join("bin"));
    programs.filter(|bin| bin.join("postgres").exists()).max()
}

/// A database server among the origins that asks nobody for a password.
fn database(range: &Range, programs: &Path) -> Server {
    let directory = range.world.outside().join("database");
    fs::create_dir(&directory).unwrap();
    if is_root() {
        chown(&directory, Some(65534), Some(65534)).unwrap();
    }
    let data = directory.join("data");
    let mut initdb = as_nobody(programs.join("initdb").to_str().unwrap());
    initdb
        .args(["-A", "trust", "-U", "tester", "--no-sync", "-E", "UTF8"])
        .args(["--locale=C", "-D"])
        .arg(&data)
        .current_dir("/");
    let made = initdb.output().expect("initdb starts");
    assert!(made.status.success(), "{made:?}");
    let rules = data.join("pg_hba.conf");
    let mut text = fs::read_to_string(&rules).unwrap();
    text.push_str("host all all all trust\n");
    fs::write(&rules, text).unwrap();
    let mut server = as_nobody(programs.join("postgres").to_str().unwrap());
    server.arg("-D").arg(&data).current_dir("/");
    for setting in [
        "listen_addresses=*",
        "unix_socket_directories=",
        "fsync=off",
    ] {
        server.args(["-c", setting]);
    }
    range.server(&server)
}

#[test]
fn psql_reaches_a_database_by_name() {
    let test = "psql_reaches_a_database_by_name";
    let Some(programs) = postgres().filter(|_| there(test, "psql")) else {
        return;
    };
    let range = Range::new();
    let _database = database(&range, &programs);
    range.internet.zone("db.test", &["93.184.216.40"]);
    range.internet.zone("denied.test", &["93.184.216.40"]);
    let ask = |host: &str| {
        let query = "select 6 * 7, current_user";
        vec![(
            host.to_owned(),
            format!("psql 'host={host} user=tester dbname=postgres' -Atc '{query}'"),
        )]
    };
    let mut ready = Command::new(programs.join("pg_isready"));
    ready.args(["-q", "-h", "93.184.216.40"]);
    assert!(soon(|| range.outside(&ready).code == Some(0)));
    range.policy("allow = [\"db.test:5432\"]", "");
    let asked = range.run_each(&[], &ask("db.test"));
    assert_eq!((asked[0].code, asked[0].said.as_str()), (0, "42|tester"));
    all_refused(&range.run_each(&[], &ask("denied.test")));
    // Any bytes to the database is not any port of its machine.
    let other = "curl -sSf http://db.test/".to_owned();
    all_refused(&range.run_each(&[], &[("other port".to_owned(), other)]));
}
