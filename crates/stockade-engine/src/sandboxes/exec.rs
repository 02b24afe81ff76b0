//! One command in a sandbox that stays, as its caller sees it.

pub(super) mod relay;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Instant;

use rustix::io::Errno;
use rustix::termios::isatty;
use stockade_agent::system::Stage;
use stockade_agent::wire::Status;
use stockade_sys::rustix;

use self::relay::Relay;
use super::Name;
use super::call::{CallError, Connection, END_MAX, is_ready};
use super::pool;
use super::registry::Registry;
use crate::outcome::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_SIGNAL_BASE};
use crate::streams::StandardStream;

/// What to start.
#[derive(Clone, Debug, Default)]
pub struct Command {
    pub argv: Vec<OsString>,
    /// `NAME=VALUE`; they replace those of the sandbox.
    pub variables: Vec<OsString>,
    /// Where to run it, inside; where the sandbox was started when `None`.
    pub directory: Option<PathBuf>,
    /// On a terminal of its own; standard input must be one.
    pub terminal: bool,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// By itself or by a signal.
    Ended(Status),
    /// It was not started.
    Failed { errno: i32, reason: String },
    /// The sandbox ended first.
    Over { code: i32, reason: String },
}

impl Done {
    /// The exit code, by the rules of `stockade run`.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Ended(Status::Exited(code)) => *code,
            Self::Ended(Status::Killed { signal, .. }) => EXIT_SIGNAL_BASE + signal,
            Self::Failed { errno, reason } if reason == Stage::Execute.reason() => {
                let not_found = [Errno::NOENT, Errno::NOTDIR].map(Errno::raw_os_error);
                match not_found.contains(errno) {
                    true => EXIT_NOT_FOUND,
                    false => EXIT_NOT_EXECUTABLE,
                }
            }
            Self::Failed { .. } => EXIT_REFUSED,
            Self::Over { code, .. } => *code,
        }
    }
}

/// A run of its own, in a sandbox that was taken from a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfPool {
    /// Id of the run.
    pub run: String,
    /// Whether what was written waits for review.
    pub waits: bool,
}

/// Starts a command in a sandbox, or in one of a pool, and relays until it ends.
/// Of one of a pool nothing is left then.
pub fn exec(
    registry: &Registry,
    name: &Name,
    command: &Command,
) -> Result<(Done, Option<OfPool>), CallError> {
    match Connection::open(registry, name) {
        Ok(connection) => Ok((relay(connection, command)?, None)),
        Err(CallError::Absent(_)) => {
            let taken = pool::take(registry, name)?;
            let taken = taken.ok_or_else(|| CallError::Absent(name.clone()))?;
            let done = relay(taken.connection, command)?;
            if !is_ready(&taken.supervisor, Instant::now() + END_MAX) {
                return Err(CallError::Silent {
                    name: name.clone(),
                    reason: "the sandbox that it gave does not end".to_owned(),
                });
            }
            let (run, waits) = (taken.run, taken.waits);
            Ok((done, Some(OfPool { run, waits })))
        }
        Err(error) => Err(error),
    }
}

fn relay(connection: Connection, command: &Command) -> Result<Done, CallError> {
    Relay::begin(connection, command)?.run()
}

/// Whether standard input is a terminal.
pub fn input_is_terminal() -> bool {
    isatty(StandardStream::Input.descriptor())
}
