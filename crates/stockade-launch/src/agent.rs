//! Starts the agent of a sandbox that stays.
//!
//! Its program is a sealed memory file that came from outside, so the view
//! holds nothing of it; it is executed by its descriptor, after everything that
//! confines a command. Landlock's rules are about names, and a memory file has
//! none: like any other it can be executed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use stockade_sys::rustix::fs::Mode;
use stockade_sys::rustix::io::{Errno, fcntl_dupfd_cloexec};
use stockade_sys::rustix::process::{setpgid, umask};
use stockade_sys::{process, signal};

use crate::init::{self, Program};
use crate::wire::Assignment;

/// Where the agent finds its channel.
const CHANNEL: i32 = 3;

/// What comes with the assignment of a sandbox that stays.
pub(crate) struct Agent {
    pub(crate) program: OwnedFd,
    pub(crate) channel: OwnedFd,
}

impl Agent {
    /// Numbers of the descriptors that it needs.
    pub(crate) fn numbers(&self) -> [i32; 2] {
        [self.program.as_raw_fd(), self.channel.as_raw_fd()]
    }

    /// Starts the program with /dev/null as its standard streams, the channel
    /// as descriptor 3 and no other. Its arguments and variables are those of
    /// the command of the plan. The error is that of execveat(2) or of the
    /// preparation.
    pub(crate) fn start(self, assignment: &Assignment, null: Option<OwnedFd>) -> io::Result<u32> {
        umask(Mode::from_raw_mode(assignment.umask));
        let command = Program::of(assignment).ok_or(Errno::INVAL)?;
        let null = null.ok_or(Errno::BADF)?;
        init::fork_and_execute(|| match self.take_descriptors(&null) {
            Err(error) => error,
            Ok(program) => {
                process::execute_open(program.as_fd(), &command.arguments, &command.environment)
            }
        })
    }

    /// In the new process. All other descriptors close on exec.
    fn take_descriptors(&self, null: &OwnedFd) -> io::Result<OwnedFd> {
        setpgid(None, None)?;
        // Out of the way first: the numbers below may be taken by these.
        let above = CHANNEL + 1;
        let null = fcntl_dupfd_cloexec(null, above)?;
        let channel = fcntl_dupfd_cloexec(&self.channel, above)?;
        let program = fcntl_dupfd_cloexec(&self.program, above)?;
        for number in 0..CHANNEL {
            process::become_standard(null.as_raw_fd(), number)?;
        }
        process::become_standard(channel.as_raw_fd(), CHANNEL)?;
        signal::reset_all()?;
        Ok(program)
    }
}
