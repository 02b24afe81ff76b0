//! Starts the process through which everything of a sandbox leaves.
//!
//! It runs outside the sandbox and knows its control socket and nothing else
//! of its starter: no environment, no descriptor, no terminal. What it does is
//! its own affair; it ends when its control socket does, and at the latest
//! with its starter.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use stockade_sys::process::{self, Child, Forked, Namespaces, fork_into};
use stockade_sys::rustix::fs::{CWD, Mode, OFlags, openat};
use stockade_sys::rustix::process::{
    Signal, WaitId, WaitIdOptions, chdir, pidfd_send_signal, set_parent_process_death_signal,
    setsid, waitid,
};
use stockade_sys::signal;

/// Number under which the started program finds its control socket.
pub const CONTROL: i32 = 3;

/// Exit code of a child that could not execute the program.
const EXIT_NOT_EXECUTED: i32 = 125;

/// A started egress process. Dropping it kills it.
#[derive(Debug)]
pub struct Egress {
    child: Child,
    reaped: bool,
}

/// Starts `program` with these arguments (the first is its name), an empty
/// environment, /dev/null as its standard streams, `control` as descriptor
/// [`CONTROL`], and no other; in a session of its own, so that the terminal's
/// signals do not reach it, in the root directory, and killed when the calling
/// thread ends.
///
/// This process must have one thread (`EBUSY`). A program that cannot be
/// executed shows as the end of the control socket.
pub fn spawn(program: &CStr, arguments: &[CString], control: OwnedFd) -> io::Result<Egress> {
    match fork_into(Namespaces::None)? {
        Forked::Parent(child) => Ok(Egress {
            child,
            reaped: false,
        }),
        Forked::Child => {
            let code = match become_egress(program, arguments, control) {
                Ok(never) => match never {},
                Err(_) => EXIT_NOT_EXECUTED,
            };
            process::exit_now(code)
        }
    }
}

fn become_egress(
    program: &CStr,
    arguments: &[CString],
    control: OwnedFd,
) -> io::Result<std::convert::Infallible> {
    // When the starter is gone already, the control socket says so.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    setsid()?;
    chdir("/")?;
    let null = openat(CWD, "/dev/null", OFlags::RDWR, Mode::empty())?;
    for number in 0..3 {
        process::become_standard(null.as_raw_fd(), number)?;
    }
    // Now 0, 1 and 2 are taken, so neither is `control`.
    process::become_standard(control.as_raw_fd(), CONTROL)?;
    // SIGPIPE and the like at their defaults, nothing blocked.
    signal::reset_all()?;
    process::close_descriptors_from(CONTROL as u32 + 1)?;
    Err(process::execute(program, arguments, &[]))
}

impl Egress {
    pub fn pid(&self) -> u32 {
        self.child.pid
    }

    /// Readable when the process has ended (pidfd_open(2)).
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.child.pidfd.as_fd()
    }

    /// Kills the process, if it has not ended, and reaps it.
    pub fn kill(&mut self) {
        if self.reaped {
            return;
        }
        // Gone already is as good as killed.
        let _gone = pidfd_send_signal(&self.child.pidfd, Signal::KILL).is_err();
        while !self.reaped {
            match waitid(
                WaitId::PidFd(self.child.pidfd.as_fd()),
                WaitIdOptions::EXITED,
            ) {
                Err(error) if error == stockade_sys::rustix::io::Errno::INTR => {}
                _ => self.reaped = true,
            }
        }
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        self.kill();
    }
}
