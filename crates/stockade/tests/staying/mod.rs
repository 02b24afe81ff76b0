//! What the tests of sandboxes that stay share.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use stockade_sys::rustix::process::{Pid, Signal, kill_process};
use stockade_testkit::{Finished, World, processes_with};

/// How long anything may take; generous, for loaded machines.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A world with one sandbox that stays. Dropping it ends all of the world's.
pub struct Staying {
    pub world: World,
    pub name: String,
}

impl Staying {
    pub fn new(name: &str, options: &[&str]) -> Self {
        Self::prepared(name, options, |_| {})
    }

    /// In a world that was prepared first.
    pub fn prepared(name: &str, options: &[&str], prepare: impl FnOnce(&World)) -> Self {
        let staying = Self {
            world: World::new(),
            // Processes of different tests are told apart by it.
            name: format!("{name}-{}", std::process::id()),
        };
        prepare(&staying.world);
        let started = staying.start(options);
        assert_eq!(started.ok(), staying.name);
        staying
    }

    /// Starts the sandbox, again.
    pub fn start(&self, options: &[&str]) -> Finished {
        let arguments = [&["start", "--name", &self.name], options].concat();
        self.stockade(&arguments)
    }

    /// Any command of the product, finished.
    pub fn stockade(&self, arguments: &[&str]) -> Finished {
        let mut command = self.world.stockade();
        command.args(arguments).stdin(Stdio::null());
        Finished::of(command.output().unwrap())
    }

    /// `stockade exec OPTIONS NAME -- ARGV`, not started yet.
    pub fn command(&self, options: &[&str], argv: &[&str]) -> Command {
        let mut command = self.world.stockade();
        command
            .arg("exec")
            .args(options)
            .args([&self.name, "--"])
            .args(argv);
        command
    }

    pub fn exec(&self, argv: &[&str]) -> Finished {
        let mut command = self.command(&[], argv);
        command.stdin(Stdio::null());
        Finished::of(command.output().unwrap())
    }

    pub fn sh(&self, script: &str) -> Finished {
        self.exec(&["sh", "-c", script])
    }

    /// Starts a script inside and waits until it says that it runs. A trap at
    /// its beginning is set by then.
    pub fn spawn(&self, script: &str) -> Child {
        let (trap, script) = match script.split_once("; ") {
            Some((trap, rest)) if trap.starts_with("trap ") => (trap, rest),
            _ => (":", script),
        };
        let script = format!("{trap}; echo ready; {script}");
        let mut command = self.command(&[], &["sh", "-c", &script]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut ready = [0; 6];
        let mut output = child.stdout.take().unwrap();
        std::io::Read::read_exact(&mut output, &mut ready).unwrap();
        assert_eq!(&ready, b"ready\n");
        child.stdout = Some(output);
        child
    }

    /// What is listed of this sandbox.
    pub fn listed(&self) -> Option<Value> {
        let listed: Value = serde_json::from_str(&self.stockade(&["list", "--json"]).ok()).unwrap();
        let all = listed["sandboxes"].as_array().unwrap().clone();
        all.into_iter().find(|one| one["name"] == self.name)
    }

    /// How many commands run in it.
    pub fn commands(&self) -> Option<u64> {
        self.listed()?["commands"].as_u64()
    }

    /// Process id of the supervisor.
    pub fn supervisor(&self) -> u32 {
        let found = processes_with(&format!("start --name {}", self.name));
        assert_eq!(found.len(), 1, "{found:?}");
        found[0]
    }

    /// Records of the log with this event.
    pub fn records(&self, event: &str) -> Vec<Value> {
        let log = self.stockade(&["log", "--json"]).ok();
        log.lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .filter(|record| record["event"] == event)
            .collect()
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        self.stockade(&["stop", "--all"]);
    }
}

/// Waits until something is so.
#[track_caller]
pub fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a signal to a process that the test started.
pub fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
}
