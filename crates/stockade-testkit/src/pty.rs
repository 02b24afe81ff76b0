//! A person at a terminal: runs a command on a pseudo-terminal, types, and
//! waits for what appears.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use stockade_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use stockade_sys::rustix::fs::{CWD, Mode, OFlags, openat};
use stockade_sys::rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use stockade_sys::rustix::termios::{Winsize, tcsetwinsize};

/// How long to wait for a text before the test fails; generous, for loaded
/// machines.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command whose controlling terminal is a pseudo-terminal of this test.
/// Dropping it ends the command.
#[derive(Debug)]
pub struct Terminal {
    master: File,
    /// Kept open, so that the terminal outlives the command.
    slave: OwnedFd,
    initial: String,
    child: Child,
    /// Everything that appeared so far.
    pub screen: String,
    /// How much of `screen` was waited for already.
    seen: usize,
}

impl Terminal {
    /// Starts `command` as the leader of a session on a new terminal.
    /// util-linux's `setsid` makes the terminal the controlling one.
    pub fn start(command: &Command) -> Self {
        // Nobody else may hold it: it hangs up when it is closed here.
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).expect("a terminal");
        grantpt(&master).expect("grantpt");
        unlockpt(&master).expect("unlockpt");
        let name = ptsname(&master, Vec::new()).expect("the terminal has a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = openat(CWD, name.as_c_str(), flags, Mode::empty()).expect("the other side");
        let stream = || Stdio::from(slave.try_clone().expect("a descriptor can be copied"));
        let mut leader = Command::new("setsid");
        leader
            .args(["--ctty", "--wait"])
            .arg(command.get_program())
            .args(command.get_args());
        leader.env_clear();
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                leader.env(name, value);
            }
        }
        if let Some(directory) = command.get_current_dir() {
            leader.current_dir(directory);
        }
        leader.stdin(stream()).stdout(stream()).stderr(stream());
        let initial = modes_of(&slave);
        let child = leader.spawn().expect("setsid starts");
        Self {
            master: File::from(master),
            slave,
            initial,
            child,
            screen: String::new(),
            seen: 0,
        }
    }

    /// Types bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.master.write_all(bytes).expect("keys can be typed");
    }

    /// Waits until `text` appears after what was waited for before.
    #[track_caller]
    pub fn expect(&mut self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = self.screen[self.seen..].find(text) {
                self.seen += found + text.len();
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero() && self.read_some(left.min(Duration::from_millis(200))),
                "{text:?} did not appear on:\n{}",
                self.screen
            );
        }
    }

    /// Types Ctrl-C until `text` appears. A shell that is just starting a
    /// program may miss it, or lose its terminal to that program: so not at
    /// once, and more than once.
    #[track_caller]
    pub fn interrupt(&mut self, text: &str) {
        std::thread::sleep(Duration::from_millis(500));
        let deadline = Instant::now() + PATIENCE;
        while !self.screen[self.seen..].contains(text) && Instant::now() < deadline {
            self.send(b"\x03");
            self.watch(Duration::from_secs(1));
        }
        self.expect(text);
    }

    /// Reads what appears for a while, and returns all that did.
    pub fn watch(&mut self, duration: Duration) -> &str {
        let deadline = Instant::now() + duration;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.read_some(left) {
                return &self.screen;
            }
        }
    }

    /// Waits until the command ends.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if !self.read_some(Duration::from_millis(20)) {
                std::thread::sleep(Duration::from_millis(20));
            }
            if let Some(status) = self.child.try_wait().expect("waitpid") {
                self.watch(Duration::from_millis(50));
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "the command does not end:\n{}",
                self.screen
            );
        }
    }

    /// Hangs up, as when a window is closed: both sides of the terminal go.
    pub fn hang_up(&mut self) {
        let nothing = File::open("/dev/null").expect("/dev/null");
        self.slave = nothing
            .try_clone()
            .expect("a descriptor can be copied")
            .into();
        self.master = nothing;
    }

    /// Changes the size of the window.
    pub fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.master, size).expect("a terminal has a size");
    }

    /// Path of the terminal.
    pub fn name(&self) -> String {
        let name = ptsname(&self.master, Vec::new()).expect("the terminal has a name");
        name.to_string_lossy().into_owned()
    }

    /// Modes of the terminal as `stty -a` prints them.
    pub fn modes(&self) -> String {
        modes_of(&self.slave)
    }

    /// As it was before anything was started on it.
    pub fn initial_modes(&self) -> &str {
        &self.initial
    }

    /// False when the terminal is closed.
    fn read_some(&mut self, patience: Duration) -> bool {
        let patience = Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: i64::from(patience.subsec_nanos()),
        };
        let mut descriptors = [PollFd::from_borrowed_fd(self.master.as_fd(), PollFlags::IN)];
        if !matches!(poll(&mut descriptors, Some(&patience)), Ok(1)) {
            return true;
        }
        let mut buffer = [0; 4096];
        match self.master.read(&mut buffer) {
            Ok(0) | Err(_) => false,
            Ok(length) => {
                self.screen
                    .push_str(&String::from_utf8_lossy(&buffer[..length]));
                true
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Ended already is as good.
        let _ended = self.child.kill().is_err();
        let _reaped = self.child.wait().is_err();
    }
}

fn modes_of(terminal: &OwnedFd) -> String {
    let input = terminal.try_clone().expect("a descriptor can be copied");
    let output = Command::new("stty")
        .arg("-a")
        .stdin(input)
        .output()
        .expect("stty starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
