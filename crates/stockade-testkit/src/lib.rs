//! Fixtures for the end-to-end tests: a home, a project and the real binary.
//!
//! Tests run real commands in real sandboxes on the real kernel. Nothing here
//! mounts or changes namespaces, and only processes that a test started are
//! ended.

pub mod agent;
pub mod image;
pub mod machine;
pub mod net;
pub mod planted;
pub mod pty;
pub mod sbpl;
pub mod tools;

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A scratch home with a project in it; removed when dropped.
#[derive(Debug)]
pub struct World {
    base: PathBuf,
    pub home: PathBuf,
    pub project: PathBuf,
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl World {
    /// Makes an empty home and an empty project below it.
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let uid = stockade_sys::rustix::process::geteuid().as_raw();
        let name = format!("stockade-test-{uid}-{}-{number}", std::process::id());
        // Not /tmp: that is private inside, and tests look at what is not.
        let base = Path::new("/var/tmp").join(name);
        let home = base.join("home");
        let project = home.join("project");
        fs::create_dir_all(&project).expect("a scratch directory can be made");
        Self {
            base,
            home,
            project,
        }
    }

    /// Directory beside the home, outside every grant.
    pub fn outside(&self) -> &Path {
        &self.base
    }

    /// Writes a file below the home or, with an absolute path, where it says;
    /// parents are made.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.home.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).expect("parents can be made");
        }
        fs::write(&path, content).expect("a file can be written");
        path
    }

    /// Writes the user's own policy file.
    pub fn policy(&self, text: &str) -> PathBuf {
        self.write(
            ".config/stockade/stockade.toml",
            format!("version = 1\n{text}"),
        )
    }

    /// Waits until nothing is put in order in the background.
    #[track_caller]
    pub fn settle(&self) {
        let own = format!("tend --project {}", self.project.display());
        // A process that has just executed has no arguments for a moment (proc(5)).
        let is_quiet = || {
            let is_empty = || processes_with(&own).is_empty();
            is_empty() && {
                std::thread::sleep(std::time::Duration::from_millis(5));
                is_empty()
            }
        };
        assert!(tools::soon(is_quiet), "{own}");
    }

    /// The paths of everything in the state directory, sorted.
    pub fn kept(&self) -> Vec<String> {
        let state = self.home.join(".local/state/stockade");
        let listed = Command::new("find").arg(state).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let mut kept: Vec<String> = listed.lines().map(str::to_owned).collect();
        kept.sort();
        kept
    }

    /// The `stockade` command with a clean environment, standing in the
    /// project.
    pub fn stockade(&self) -> Command {
        let mut command = Command::new(binary());
        command.current_dir(&self.project).env_clear();
        command
            .env("HOME", &self.home)
            .env("USER", "tester")
            .env("LANG", "C.UTF-8");
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    /// `stockade run OPTIONS -- ARGV`, finished, with empty standard input.
    pub fn run<A: AsRef<OsStr>>(&self, options: &[&str], argv: &[A]) -> Finished {
        let mut command = self.stockade();
        command
            .arg("run")
            .args(options)
            .arg("--")
            .args(argv)
            .stdin(Stdio::null());
        Finished::of(command.output().expect("stockade starts"))
    }

    /// A shell script inside, under the default policy.
    pub fn sh(&self, script: &str) -> Finished {
        self.run(&[], &["sh", "-c", script])
    }

    /// The same script outside, in the same place and environment.
    pub fn outside_sh(&self, script: &str) -> Finished {
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(script)
            .current_dir(&self.project)
            .env_clear();
        command
            .env("HOME", &self.home)
            .env("USER", "tester")
            .env("LANG", "C.UTF-8");
        command
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .stdin(Stdio::null());
        Finished::of(command.output().expect("sh starts"))
    }

    /// Runs with these bytes as standard input.
    pub fn run_with_input<A: AsRef<OsStr>>(
        &self,
        options: &[&str],
        argv: &[A],
        input: &[u8],
    ) -> Finished {
        let mut command = self.stockade();
        command.arg("run").args(options).arg("--").args(argv);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("stockade starts");
        let mut stdin = child.stdin.take().expect("standard input is a pipe");
        let input = input.to_vec();
        let writer = std::thread::spawn(move || {
            // The command may end without reading it all.
            let _closed = stdin.write_all(&input).is_err();
        });
        let output = child.wait_with_output().expect("stockade ends");
        writer.join().expect("the writer does not panic");
        Finished::of(output)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Directories without permissions would stay: give them back first.
        let _chmod = Command::new("chmod")
            .arg("-R")
            .arg("u+rwx")
            .arg(&self.base)
            .output()
            .is_err();
        let _left = fs::remove_dir_all(&self.base).is_err();
    }
}

/// A finished command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// `None` when a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub stdout_bytes: Vec<u8>,
}

impl Finished {
    /// Takes over what `Command::output` returned.
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            stdout_bytes: output.stdout,
        }
    }

    /// Fails the test unless the exit code is this one.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "stdout: {}\nstderr: {}",
            self.stdout,
            self.stderr
        );
        self
    }

    /// Standard output without the white space around it, after success.
    #[track_caller]
    pub fn ok(self) -> String {
        self.expect_code(0).stdout.trim().to_owned()
    }
}

/// The binary under test: `STOCKADE_BIN`, else the one that cargo built beside
/// this test.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("STOCKADE_BIN") {
        return path.into();
    }
    let test = std::env::current_exe().expect("a process knows its executable");
    let directory = test
        .parent()
        .and_then(Path::parent)
        .expect("tests lie in target/*/deps");
    directory.join("stockade")
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    stockade_sys::rustix::process::geteuid().is_root()
}

/// Says that a test is skipped and why. With the ability listed in
/// `STOCKADE_REQUIRE` (comma-separated) it fails instead.
#[track_caller]
pub fn skip(test: &str, ability: &str, reason: &str) {
    let required = std::env::var("STOCKADE_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|name| name == ability),
        "{test} may not be skipped: {ability} is required ({reason})"
    );
    println!("skipped: {test}: {reason}");
}

/// The same directory and environment for another program.
pub fn replace_program(command: &Command, program: &str) -> Command {
    let mut other = Command::new(program);
    other
        .env_clear()
        .current_dir(command.get_current_dir().expect("a world has a project"));
    for (name, value) in command.get_envs() {
        other.env(name, value.expect("a world only sets variables"));
    }
    other
}

/// Whether a program is on PATH.
pub fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

/// The version of an installed OCI runtime, with what its distribution made of it.
pub fn runtime_version(runtime: &str) -> Option<String> {
    let places = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];
    let program = places.map(|place| Path::new(place).join(runtime));
    let program = program.iter().find(|program| program.exists())?;
    let output = Command::new(program).arg("--version").output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    let line = |prefix: &str| said.lines().find_map(|line| line.strip_prefix(prefix));
    let version = line(&format!("{runtime} version "))?;
    let commit = line("commit: ").unwrap_or_default();
    Some(
        if commit.starts_with(version) {
            commit
        } else {
            version
        }
        .to_owned(),
    )
}

/// Process ids on this machine whose command line contains `needle`.
pub fn processes_with(needle: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
                String::from_utf8_lossy(&line)
                    .replace('\0', " ")
                    .contains(needle)
            })
        })
        .filter(|&pid| pid != std::process::id())
        .collect()
}
