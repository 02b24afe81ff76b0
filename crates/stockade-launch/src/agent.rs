//! Starts the agent of a sandbox that stays.
//!
//! Its program is a sealed memory file that came from outside, so the view
//! holds nothing of it; it is executed by its descriptor, after everything that
//! confines a command. Landlock's rules are about names, and a memory file has
//! none: like any other it can be executed.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use stockade_sys::rustix::fs::Mode;
use stockade_sys::rustix::io::{Errno, fcntl_dupfd_cloexec};
use stockade_sys::rustix::process::{setpgid, umask};
use stockade_sys::{process, signal};

use crate::init::{self, Program};
use crate::wire::{Assignment, Guest, Stream};

/// Where the agent finds its channel.
const CHANNEL: i32 = 3;

/// Where what starts the agent within a kernel or a container of its own finds
/// the agent's program.
const PROGRAM: i32 = 4;

/// The path and the arguments of such a program.
fn words(guest: &Guest) -> io::Result<(CString, Vec<CString>)> {
    let words = guest.arguments.iter();
    let words = words.map(|word| CString::new(word.as_slice()));
    let words: Vec<CString> = words.collect::<Result<_, _>>().map_err(|_| Errno::INVAL)?;
    let path = words.first().ok_or(Errno::INVAL)?.clone();
    Ok((path, words))
}

/// Becomes that program; the error is why not.
fn become_guest(
    guest: &Guest,
    path: &CString,
    arguments: &[CString],
    agent: &OwnedFd,
) -> io::Error {
    let ready = process::become_standard(agent.as_raw_fd(), PROGRAM);
    let ready = ready.and_then(|()| match guest.own_user_namespace {
        Some((user, group)) => process::enter_own_user_namespace(user, group),
        None => Ok(()),
    });
    match ready {
        Err(error) => error,
        Ok(()) => process::execute(path, arguments, &[]),
    }
}

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
    /// the command of the plan. Around a kernel or a container of the command's
    /// own the program that starts that is executed instead, which finds the
    /// agent as descriptor 4, and has no variable: those of the command are not its business. The
    /// error is that of execveat(2) or of the preparation.
    pub(crate) fn start(
        self,
        assignment: &Assignment,
        null: Option<OwnedFd>,
        streams: [Stream; 3],
    ) -> io::Result<u32> {
        umask(Mode::from_raw_mode(assignment.umask));
        let command = Program::of(assignment).ok_or(Errno::INVAL)?;
        let guest = match &assignment.guest {
            Some(guest) => Some((guest, words(guest)?)),
            None => None,
        };
        let null = null.ok_or(Errno::BADF)?;
        // What starts a kernel or a container says there why it cannot.
        let errors = match (&guest, streams[2]) {
            (Some(_), Stream::Descriptor(number)) => number,
            _ => null.as_raw_fd(),
        };
        init::fork_and_execute(|| match (self.take_descriptors(&null, errors), &guest) {
            (Err(error), _) => error,
            (Ok(program), None) => {
                process::execute_open(program.as_fd(), &command.arguments, &command.environment)
            }
            (Ok(program), Some((guest, (path, arguments)))) => {
                become_guest(guest, path, arguments, &program)
            }
        })
    }

    /// In the new process. All other descriptors close on exec.
    fn take_descriptors(&self, null: &OwnedFd, words: i32) -> io::Result<OwnedFd> {
        setpgid(None, None)?;
        // Out of the way first: the numbers below may be taken by these.
        let above = PROGRAM + 1;
        let null = fcntl_dupfd_cloexec(null, above)?;
        let channel = fcntl_dupfd_cloexec(&self.channel, above)?;
        let program = fcntl_dupfd_cloexec(&self.program, above)?;
        // First, because its number may be one of the others.
        process::become_standard(words, 2)?;
        for number in 0..2 {
            process::become_standard(null.as_raw_fd(), number)?;
        }
        process::become_standard(channel.as_raw_fd(), CHANNEL)?;
        signal::reset_all()?;
        Ok(program)
    }
}
