//! Repositories, a policy and the pushes that are tried over each transport.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stockade_egress::git::needles::Needles;
use stockade_policy::network::judge::{Denial, GitAction, GitOperation, GitPermit};
use stockade_policy::plan::Rule;

pub const SECRET: &str = "ghp_R7secretR7secretR7secret";
/// Largest push that the policy of these tests permits.
pub const PUSH_BYTES_MAX: u64 = 3 * 1024 * 1024;

/// A directory with `srv/o/n.git` and others for a server, and `work` for a
/// client.
pub struct Fixture {
    directory: tempfile::TempDir,
    /// What comes before `o/n.git`.
    pub base: String,
    pub ssh_command: Option<String>,
}

/// What git said.
pub struct Done {
    pub succeeded: bool,
    pub text: String,
}

impl Fixture {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let fixture = Self {
            directory,
            base: String::new(),
            ssh_command: None,
        };
        std::fs::create_dir(fixture.path().join("home")).unwrap();
        let work = fixture.path().join("work");
        fixture.must(fixture.path(), &["init", "-q", "-b", "main", "work"]);
        fixture.write("README", "hello\n");
        fixture.commit("first");
        for name in ["o/n", "o/other", "x/hidden", "o/gone"] {
            let bare = format!("srv/{name}.git");
            fixture.must(fixture.path(), &["clone", "-q", "--bare", "work", &bare]);
            let bare = fixture.path().join(bare);
            fixture.must(&bare, &["config", "http.receivepack", "true"]);
            fixture.must(&bare, &["config", "receive.denyDeleteCurrent", "ignore"]);
        }
        assert!(work.exists());
        fixture
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn work(&self) -> PathBuf {
        self.path().join("work")
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.work().join(name), text).unwrap();
    }

    pub fn commit(&self, message: &str) {
        self.must(&self.work(), &["add", "-A"]);
        self.must(
            &self.work(),
            &["commit", "-q", "--allow-empty", "-m", message],
        );
    }

    pub fn url(&self, repository: &str) -> String {
        format!("{}{repository}", self.base)
    }

    pub fn command(&self, directory: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new("git");
        command
            .args(arguments)
            .current_dir(directory)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.path().join("home"))
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("LC_ALL", "C")
            .stdin(Stdio::null());
        for who in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{who}_NAME"), "a");
            command.env(format!("GIT_{who}_EMAIL"), "a@b.test");
        }
        if let Some(ssh) = &self.ssh_command {
            command.env("GIT_SSH_COMMAND", ssh);
        }
        command
    }

    pub fn git(&self, directory: &Path, arguments: &[&str]) -> Done {
        let output = self.command(directory, arguments).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        Done {
            succeeded: output.status.success(),
            text: String::from_utf8_lossy(&text).into_owned(),
        }
    }

    pub fn must(&self, directory: &Path, arguments: &[&str]) -> String {
        let done = self.git(directory, arguments);
        assert!(done.succeeded, "git {arguments:?}: {}", done.text);
        done.text
    }

    fn push(&self, repository: &str, arguments: &[&str]) -> Done {
        let url = self.url(repository);
        let all = [&["push", &url], arguments].concat();
        self.git(&self.work(), &all)
    }

    fn pushes(&self, arguments: &[&str]) {
        let done = self.push("o/n.git", arguments);
        assert!(done.succeeded, "push {arguments:?}: {}", done.text);
    }

    /// The push fails, git says why, and the server has no new object.
    fn is_refused(&self, arguments: &[&str], reason: &str) {
        let before = self.server_state();
        let done = self.push("o/n.git", arguments);
        assert!(
            !done.succeeded,
            "push {arguments:?} went through: {}",
            done.text
        );
        assert!(
            done.text.contains(reason),
            "push {arguments:?}: {}",
            done.text
        );
        assert_eq!(self.server_state(), before, "push {arguments:?}");
    }

    fn server_state(&self) -> String {
        let bare = self.path().join("srv/o/n.git");
        let references = self.must(&bare, &["for-each-ref"]);
        let objects = self.must(&bare, &["count-objects", "-v"]);
        format!("{references}{objects}")
    }
}

/// Reading `o/*`; pushing branches of `o/n` but for `refs/heads/protected*`,
/// forward only except below `refs/heads/free/`.
pub fn judge(operation: &GitOperation<'_>) -> Result<GitPermit, Denial> {
    let owner = operation.repository.split('/').next().unwrap();
    let is_ours = operation.repository == "o/n";
    match operation.action {
        GitAction::Read if owner == "o" => {}
        GitAction::Read => return Err(denial("git-read", operation.repository)),
        _ if !is_ours => return Err(denial("git-push", operation.repository)),
        GitAction::PushAny => {}
        GitAction::Push { updates } => {
            for update in updates {
                let branch = update.name.strip_prefix("refs/heads/");
                let refused = branch.is_none_or(|name| name.starts_with("protected"));
                let free = branch.is_some_and(|name| name.starts_with("free/"));
                if refused || (update.delete && !free) {
                    return Err(denial("git-ref", &update.name));
                }
            }
        }
    }
    Ok(GitPermit {
        rule: Rule {
            id: "network.git[0]".to_owned(),
            origin: "test.toml:1".to_owned(),
            reason: String::new(),
        },
        push_bytes_max: Some(PUSH_BYTES_MAX),
        refs_checked: true,
    })
}

pub fn needles() -> Needles {
    Needles::new([SECRET]).unwrap()
}

fn denial(code: &'static str, what: &str) -> Denial {
    Denial {
        code,
        rule: "network.git[0]".to_owned(),
        origin: "test.toml:1".to_owned(),
        reason: format!("no rule permits {what}"),
        smallest_grant: Some("[[network.git]]".to_owned()),
    }
}

/// Bytes that do not compress, the same each time for one seed.
fn noise(bytes: usize, mut seed: u64) -> Vec<u8> {
    let next = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
        (seed >> 56) as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

pub fn reads(fixture: &Fixture) {
    let path = fixture.path();
    for version in ["0", "1", "2"] {
        let option = format!("protocol.version={version}");
        let target = format!("clone{version}");
        let url = fixture.url("o/n.git");
        fixture.must(path, &["-c", &option, "clone", "-q", &url, &target]);
        let clone = path.join(&target);
        fixture.must(&clone, &["-c", &option, "fetch", "-q"]);
        assert!(clone.join("README").exists());
        let mut trace = fixture.command(path, &["-c", &option, "ls-remote", &url]);
        let trace = trace.env("GIT_TRACE_PACKET", "1").output().unwrap();
        let text = String::from_utf8_lossy(&trace.stderr).into_owned();
        assert_eq!(text.contains("version 2"), version == "2", "{text}");

        let hidden = fixture.url("x/hidden.git");
        let done = fixture.git(path, &["-c", &option, "clone", "-q", &hidden, "no"]);
        assert!(
            !done.succeeded && done.text.contains("no rule permits x/hidden"),
            "{}",
            done.text
        );
    }
    let url = fixture.url("o/n");
    fixture.must(path, &["clone", "-q", "--depth=1", &url, "shallow"]);
    fixture.must(&path.join("shallow"), &["fetch", "-q", "--unshallow"]);
}

pub fn pushes_by_reference(fixture: &Fixture) {
    fixture.write("a", "one");
    fixture.commit("second");
    fixture.pushes(&["main"]);
    fixture.pushes(&["main:refs/heads/topic"]);
    // Up to date: no command at all.
    fixture.pushes(&["main"]);
    fixture.is_refused(&["main:refs/heads/protected"], "denied by policy (git-ref)");
    fixture.is_refused(&["main:refs/tags/v1"], "no rule permits refs/tags/v1");
    fixture.is_refused(
        &["main:refs/heads/new", "main:refs/heads/protected1"],
        "(git-ref)",
    );
    fixture.is_refused(&[":refs/heads/topic"], "(git-ref)");

    let done = fixture.push("o/other.git", &["main"]);
    assert!(
        !done.succeeded && done.text.contains("no rule permits o/other"),
        "{}",
        done.text
    );

    fixture.pushes(&["main:refs/heads/free/a"]);
    fixture.pushes(&[":refs/heads/free/a"]);
}

pub fn moves_forward_only(fixture: &Fixture) {
    for number in 0..30 {
        fixture.write("a", number.to_string());
        fixture.commit(&format!(
            "number {number} of a long line of commits that look alike"
        ));
    }
    fixture.pushes(&["main:refs/heads/line", "main:refs/heads/free/line"]);
    let work = fixture.work();
    fixture.write("a", "after");
    fixture.commit("after");
    // With a merge, and with commits that are stored as deltas.
    fixture.must(&work, &["checkout", "-q", "-b", "side", "HEAD~5"]);
    for number in 0..30 {
        fixture.write("b", number.to_string());
        fixture.commit(&format!(
            "side {number} of a long line of commits that look alike"
        ));
    }
    fixture.must(&work, &["checkout", "-q", "main"]);
    fixture.must(&work, &["merge", "-q", "--no-edit", "side"]);
    fixture.pushes(&["main:refs/heads/line", "main:refs/heads/free/line"]);

    fixture.must(&work, &["reset", "-q", "--hard", "HEAD~3"]);
    fixture.write("a", "other");
    fixture.commit("other");
    let reason = "does not show that refs/heads/line still contains";
    fixture.is_refused(&["--force", "main:refs/heads/line"], reason);
    fixture.pushes(&["--force", "main:refs/heads/free/line"]);
}

pub fn keeps_secrets(fixture: &Fixture) {
    let work = fixture.work();
    let refused = |what: &str| {
        fixture.is_refused(&["HEAD:refs/heads/s"], "denied by policy (git-secret)");
        assert!(!what.is_empty());
        fixture.must(&work, &["reset", "-q", "--hard", "clean"]);
    };
    let text: String = (0..2000).map(|line| format!("line {line}\n")).collect();
    fixture.write("long", &text);
    fixture.commit("clean");
    fixture.must(&work, &["tag", "clean"]);
    fixture.pushes(&["HEAD:refs/heads/s"]);

    fixture.write("file", format!("token = {SECRET}\n"));
    fixture.commit("in a file");
    refused("a file");

    // What is taken away again is in the history all the same.
    fixture.write("file", format!("token = {SECRET}\n"));
    fixture.commit("in a file");
    fixture.must(&work, &["rm", "-q", "file"]);
    fixture.commit("gone");
    refused("the history");

    fixture.write("long", format!("{text}{SECRET}\n"));
    fixture.commit("as a delta against what the server has");
    fixture.must(&work, &["repack", "-adfq"]);
    refused("a delta");

    fixture.commit(&format!("message with {SECRET}"));
    refused("a message");

    fixture.write(SECRET, "");
    fixture.commit("a name");
    refused("a name of a file");

    let encoded: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
    fixture.write("hexadecimal", encoded);
    fixture.commit("hexadecimal");
    refused("hexadecimal");

    fixture.must(&work, &["tag", "-a", "t", "-m", SECRET]);
    fixture.is_refused(&["t:refs/heads/t"], "(git-secret)");
    let branch = format!("clean:refs/heads/{SECRET}");
    fixture.is_refused(&[&branch], "(git-secret)");

    // Changed by one letter it is no secret.
    fixture.write("file", SECRET.replace("R7", "R8"));
    fixture.commit("harmless");
    fixture.pushes(&["HEAD:refs/heads/s"]);
}

pub fn counts_bytes(fixture: &Fixture) {
    fixture.write("big", noise(2 * 1024 * 1024, 1));
    fixture.commit("big");
    fixture.pushes(&["main:refs/heads/big"]);
    fixture.write("bigger", noise(4 * 1024 * 1024, 2));
    fixture.commit("bigger");
    fixture.is_refused(&["main:refs/heads/big"], "is larger than 3145728 bytes");
}

pub fn pushes_from_a_shallow_clone(fixture: &Fixture) {
    fixture.write("a", "deep");
    fixture.commit("deep");
    fixture.pushes(&["main"]);
    let url = fixture.url("o/n.git");
    fixture.must(fixture.path(), &["clone", "-q", "--depth=1", &url, "thin"]);
    let thin = fixture.path().join("thin");
    std::fs::write(thin.join("b"), "thin").unwrap();
    fixture.must(&thin, &["add", "-A"]);
    fixture.must(&thin, &["commit", "-q", "-m", "thin"]);
    fixture.must(&thin, &["push", "-q", "origin", "main"]);
}
