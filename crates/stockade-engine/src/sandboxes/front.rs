//! What stands before the supervisor of a run whose command is started by the
//! agent: a process with the caller's streams, terminal and signals.
//!
//! It is the process that was called, and ends as the supervisor says. With it
//! the supervisor ends, in whatever way it does, and with that everything
//! inside.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use rustix::termios::isatty;
use stockade_policy::plan::Plan;
use stockade_sys::process::{self, Change};
use stockade_sys::rustix;

use super::Name;
use super::call::{CallError, Connection};
use super::exec::Command;
use super::exec::relay::Relay;
use crate::outcome::{EXIT_REFUSED, EXIT_SIGNAL_BASE};
use crate::streams::StandardStream;

/// What the front calls the sandbox in what it says of it.
const NAME: &str = "run";

/// Divides this process, which must have one thread. What returns is the
/// supervisor, with the connection to the front.
pub(crate) fn divide(plan: &Plan) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (front, supervisor) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let parent = getpid();
    match process::fork()? {
        None => {
            drop(front);
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // It may have died before the call above.
            match getppid() == Some(parent) {
                true => Ok(supervisor),
                false => process::exit_now(EXIT_REFUSED),
            }
        }
        Some(child) => {
            drop(supervisor);
            process::exit_now(serve(front, plan, child))
        }
    }
}

/// Relays until the command is over, and waits for the supervisor's last word,
/// which is the exit code.
fn serve(connection: OwnedFd, plan: &Plan, supervisor: u32) -> i32 {
    if let Err(error) = relay(connection, plan) {
        eprintln!("stockade: {error}");
    }
    match process::wait_for(supervisor) {
        Ok(Change::Exited(code)) => code,
        Ok(Change::Killed { signal, .. }) => EXIT_SIGNAL_BASE + signal,
        Ok(Change::Stopped(_)) | Err(_) => EXIT_REFUSED,
    }
}

fn relay(connection: OwnedFd, plan: &Plan) -> Result<(), CallError> {
    let words = plan.command.argv.iter().cloned();
    let command = Command {
        argv: words.map(OsString::from_vec).collect(),
        terminal: is_on_terminal(),
        ..Command::default()
    };
    let name = Name::parse(NAME).expect("the name is a name");
    let mut relay = Relay::begin(Connection::of(name, connection), &command)?;
    // Dropped with it, the connection ends only when the terminal is as it was.
    relay.run().map(drop)
}

/// A command is on a terminal of its own when all of its streams would be.
fn is_on_terminal() -> bool {
    let streams = [
        StandardStream::Input,
        StandardStream::Output,
        StandardStream::Error,
    ];
    streams.iter().all(|stream| isatty(stream.descriptor()))
}
