//! The callers' side: questions and orders to a sandbox.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use rustix::net::{SocketFlags, SocketType, connect, sockopt};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use stockade_agent::buffer::Inbox;
use stockade_agent::wire::decode;
use stockade_sys::rustix;

use super::Name;
use super::registry::{Record, Registry, RegistryError, State};
use super::wire::{FromCaller, Outbox, ToCaller};
use crate::control::{is_own, unix_socket};
use crate::state::StateError;

/// How long a supervisor may take to answer a question.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a sandbox may take to end in order; longer than what its supervisor
/// grants commands and agent.
pub(super) const END_MAX: Duration = Duration::from_secs(20);
/// Between looks at one that is about to end.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the kernel may take to end what was killed.
const KILL_MAX: Duration = Duration::from_secs(10);

/// Why a sandbox could not be spoken to.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error("there is no sandbox called {0}\n  remedy: `stockade list` shows those that there are")]
    Absent(Name),
    #[error("the sandbox {0} is not yours")]
    Foreign(Name),
    #[error(
        "the pool {0} has no sandbox ready, and none is being started\n  remedy: `stockade log` says \
         why the last start failed; `stockade stop {0}`, and start the pool again"
    )]
    Empty(Name),
    #[error(
        "{0} is a pool, of sandboxes that wait for one command each\n  remedy: `stockade exec {0}` \
         takes one"
    )]
    IsPool(Name),
    #[error(
        "the sandbox {name} does not answer: {reason}\n  remedy: `stockade stop {name}` ends it"
    )]
    Silent { name: Name, reason: String },
    /// Nothing was started.
    #[error("the sandbox {name} refuses: {reason}")]
    Refused { name: Name, reason: String },
    #[error("cannot {what}: {error}")]
    System {
        what: &'static str,
        error: std::io::Error,
    },
}

/// A connection to the supervisor of one sandbox.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) name: Name,
    pub(super) socket: OwnedFd,
    pub(super) inbox: Inbox,
    pub(super) outbox: Outbox,
}

impl Connection {
    /// One that stands already.
    pub(super) fn of(name: Name, socket: OwnedFd) -> Self {
        Self {
            name,
            socket,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
        }
    }

    pub(super) fn open(registry: &Registry, name: &Name) -> Result<Self, CallError> {
        let silent = |errno: Errno| CallError::Silent {
            name: name.clone(),
            reason: errno.to_string(),
        };
        let socket = unix_socket(SocketType::STREAM, SocketFlags::CLOEXEC).map_err(silent)?;
        let address = registry.address(name).map_err(silent)?;
        match connect(&socket, &address) {
            Ok(()) => {}
            Err(Errno::NOENT | Errno::CONNREFUSED) => {
                return Err(CallError::Absent(name.clone()));
            }
            Err(error) => return Err(silent(error)),
        }
        match is_own(socket.as_fd()) {
            true => Ok(Self::of(name.clone(), socket)),
            false => Err(CallError::Foreign(name.clone())),
        }
    }

    /// The process at the other end, which cannot become another one.
    pub(super) fn supervisor(&self) -> Result<OwnedFd, Errno> {
        let pid: Pid = sockopt::socket_peercred(&self.socket)?.pid;
        pidfd_open(pid, PidfdFlags::empty())
    }

    /// Asks one thing and waits for the answer.
    pub(super) fn ask<T>(
        &mut self,
        question: &FromCaller<'_>,
        take: impl FnOnce(&ToCaller<'_>) -> Option<T>,
    ) -> Result<T, CallError> {
        let deadline = Instant::now() + PATIENCE;
        let name = self.name.clone();
        let silent = |reason: &str| CallError::Silent {
            name: name.clone(),
            reason: reason.to_owned(),
        };
        let sent = self.outbox.push(0, question, 0).is_ok()
            && self.outbox.flush(self.socket.as_fd()).is_ok();
        if !sent {
            return Err(silent("it closed the connection"));
        }
        loop {
            match self.inbox.first() {
                Ok(Some(frame)) => {
                    let taken = decode(frame.body).ok().and_then(|answer| take(&answer));
                    let length = frame.length;
                    self.inbox.consume(length);
                    return taken.ok_or_else(|| silent("it is of another version"));
                }
                Ok(None) => {}
                Err(error) => return Err(silent(&error.to_string())),
            }
            if !is_ready(self.socket.as_fd(), deadline) {
                return Err(silent("it is stopped or very busy"));
            }
            match read(&self.socket, self.inbox.free()) {
                Ok(0) | Err(_) => return Err(silent("it closed the connection")),
                Ok(length) => self.inbox.fill(length),
            }
        }
    }
}

/// Waits until there is something to read, or the end, but no longer than
/// until `deadline`.
pub(super) fn is_ready(of: impl AsFd, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(left) = Timespec::try_from(left) else {
            return false;
        };
        match poll(&mut [PollFd::new(&of, PollFlags::IN)], Some(&left)) {
            Ok(ready) => return ready > 0,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// A sandbox as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub record: Record,
    /// How many commands run in it; `None` when it does not say.
    pub commands: Option<u32>,
    /// How many sandboxes of a pool are ready.
    pub ready: Option<u32>,
}

/// All sandboxes and pools of this user. What killed supervisors left is told
/// once.
pub fn list(registry: &Registry) -> Result<Vec<Listed>, StateError> {
    let records = registry.list()?;
    let of = |pool: &Record| -> Vec<&Record> {
        let all = records.iter();
        all.filter(|one| one.is_spare_of(&pool.name)).collect()
    };
    let listed = records.iter().map(|record| match record.state {
        State::Pool => list_pool(record, &of(record)),
        _ => list_one(registry, record.clone()),
    });
    Ok(listed.collect())
}

fn list_one(registry: &Registry, mut record: Record) -> Listed {
    let asks = matches!(record.state, State::Running | State::Stopping);
    let answer = asks.then(|| status(registry, &record.name)).flatten();
    if let Some((_, true)) = answer {
        record.state = State::Stopping;
    }
    Listed {
        record,
        commands: answer.map(|(commands, _)| commands),
        ready: None,
    }
}

/// It is of the project, and behind the wall, that its sandboxes are.
fn list_pool(record: &Record, spare: &[&Record]) -> Listed {
    let ready = spare.iter().filter(|one| one.state == State::Ready);
    let mut listed = Listed {
        record: record.clone(),
        commands: None,
        ready: Some(ready.clone().count() as u32),
    };
    if let Some(one) = ready.clone().next() {
        listed.record.workspace.clone_from(&one.workspace);
        listed.record.wall.clone_from(&one.wall);
    }
    listed
}

fn status(registry: &Registry, name: &Name) -> Option<(u32, bool)> {
    let mut connection = Connection::open(registry, name).ok()?;
    let answer = connection.ask(&FromCaller::Status, |answer| match *answer {
        ToCaller::Status { commands, stopping } => Some((commands, stopping)),
        _ => None,
    });
    answer.ok()
}

/// How a sandbox was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    InOrder,
    /// Its supervisor did not answer, or not in time.
    Killed,
}

/// Ends a sandbox, or a pool, and waits until nothing of it is left. Of a pool
/// those that somebody has taken end with their command.
pub fn stop(registry: &Registry, name: &Name) -> Result<Stopped, CallError> {
    match Connection::open(registry, name) {
        Err(CallError::Absent(_)) => {}
        other => return stop_one(registry, name, other?),
    }
    match registry.disband(name)? {
        Some(spare) => stop_all(registry, &spare),
        // One that is just starting has no socket yet, and one that was killed
        // has nobody behind it; both show in the registry.
        None => absent(registry, name),
    }
}

/// Ends what waits in a pool that is no more.
fn stop_all(registry: &Registry, spare: &[Record]) -> Result<Stopped, CallError> {
    let mut stopped = Stopped::InOrder;
    for record in spare {
        let deadline = Instant::now() + END_MAX;
        loop {
            match stop(registry, &record.name) {
                Ok(Stopped::Killed) => stopped = Stopped::Killed,
                Ok(Stopped::InOrder) | Err(CallError::Absent(_)) => {}
                // One that starts ends by itself when it is to be ready.
                Err(CallError::Silent { .. }) if Instant::now() < deadline => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(error) => return Err(error),
            }
            break;
        }
    }
    Ok(stopped)
}

fn stop_one(
    registry: &Registry,
    name: &Name,
    mut connection: Connection,
) -> Result<Stopped, CallError> {
    let failed = |what| {
        move |error: Errno| CallError::System {
            what,
            error: error.into(),
        }
    };
    let supervisor = connection
        .supervisor()
        .map_err(failed("find the supervisor"))?;
    let asked = connection.ask(&FromCaller::Stop, |answer| {
        matches!(answer, ToCaller::Stopping).then_some(())
    });
    let in_order = asked.is_ok() && is_ready(&supervisor, Instant::now() + END_MAX);
    if !in_order && !is_ready(&supervisor, Instant::now()) {
        // With it goes everything inside.
        pidfd_send_signal(&supervisor, Signal::KILL).map_err(failed("end the supervisor"))?;
        if !is_ready(&supervisor, Instant::now() + KILL_MAX) {
            return Err(CallError::Silent {
                name: name.clone(),
                reason: "it cannot be killed".to_owned(),
            });
        }
    }
    // What a killed one left.
    registry.list()?;
    Ok(match in_order {
        true => Stopped::InOrder,
        false => Stopped::Killed,
    })
}

fn absent(registry: &Registry, name: &Name) -> Result<Stopped, CallError> {
    let listed = registry.list()?;
    match listed.iter().find(|record| record.name == *name) {
        Some(record) if record.state == State::Gone => Ok(Stopped::InOrder),
        Some(_) => Err(CallError::Silent {
            name: name.clone(),
            reason: "it is still starting, or about to end".to_owned(),
        }),
        None => Err(CallError::Absent(name.clone())),
    }
}
