//! Sandboxes that wait in a pool: how one is taken, and how the next is made.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use super::Name;
use super::call::{CallError, Connection};
use super::registry::{Pool, Record, Registry, State};
use super::wire::{FromCaller, ToCaller};
use crate::events::Event;
use crate::log::{Log, LogError};
use crate::state::StateDirectory;

/// How long nothing may be ready or about to be, before that is an error.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between looks at a pool that has nothing ready.
const PAUSE: Duration = Duration::from_millis(10);

/// Most that is written down of why one could not be started.
const WORDS_BYTES_MAX: usize = 4096;

/// What makes the next sandbox of a pool: this program, called as it was for
/// this one, from the directory in which it still is.
#[derive(Debug)]
pub struct Successor {
    arguments: Vec<OsString>,
    /// Whether what is written in this one waits for review.
    pub(super) waits: bool,
}

impl Successor {
    /// With these arguments a pool of its kind gets another sandbox if it wants
    /// one.
    pub fn new(arguments: Vec<OsString>) -> Self {
        Self {
            arguments,
            waits: false,
        }
    }

    /// Nobody waits for it. Where it fails, the log says why, and whoever finds
    /// the pool empty is told to look there. Its standard input keeps the pool in
    /// being until another sandbox does.
    pub(super) fn start(&self, held: File) {
        let spawned = Command::new("/proc/self/exe")
            .args(&self.arguments)
            .stdin(held)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        drop(spawned);
    }
}

/// Writes down why a pool got no other sandbox, in the words of what was to be its
/// supervisor.
pub fn write_failure(state: &StateDirectory, pool: &Pool, words: &[u8]) -> Result<(), LogError> {
    let words = String::from_utf8_lossy(&words[..words.len().min(WORDS_BYTES_MAX)]);
    let reason = format!("the pool {} got no other sandbox: {words}", pool.name);
    let event = Event::refused(None, reason.trim_end(), "");
    Log::at(state).append(None, &[event], SystemTime::now())?;
    Ok(())
}

/// A sandbox of a pool that is the caller's.
pub(super) struct Taken {
    pub(super) connection: Connection,
    /// It ends when nothing is left of the sandbox.
    pub(super) supervisor: OwnedFd,
    pub(super) run: String,
    pub(super) waits: bool,
}

/// Takes the sandbox of a pool that has waited longest; `None` when there is no
/// such pool. Waits for one that is about to be ready.
pub(super) fn take(registry: &Registry, pool: &Name) -> Result<Option<Taken>, CallError> {
    let mut hopeless_at = Instant::now() + PATIENCE;
    loop {
        let mut all = registry.look()?;
        if !all.iter().any(|one| one.is_pool(pool)) {
            return Ok(None);
        }
        all.retain(|one| one.is_spare_of(pool));
        all.sort_by(|one, other| one.since.cmp(&other.since));
        for spare in &all {
            if spare.state == State::Ready
                && let Some(taken) = take_one(registry, &spare.name)?
            {
                return Ok(Some(taken));
            }
        }
        if !all.is_empty() {
            hopeless_at = Instant::now() + PATIENCE;
        } else if hopeless_at <= Instant::now() {
            return Err(CallError::Empty(pool.clone()));
        }
        std::thread::sleep(PAUSE);
    }
}

/// `None` when somebody else was first.
fn take_one(registry: &Registry, name: &Name) -> Result<Option<Taken>, CallError> {
    let mut connection = match Connection::open(registry, name) {
        Err(CallError::Absent(_)) => return Ok(None),
        other => other?,
    };
    let supervisor = connection.supervisor().map_err(|error| CallError::System {
        what: "find the supervisor",
        error: error.into(),
    })?;
    let answer = connection.ask(&FromCaller::Take, |answer| match *answer {
        ToCaller::Taken { run, waits } => Some(Some((run.to_owned(), waits))),
        // Somebody else was first, and may be done with it.
        ToCaller::NotReady | ToCaller::Over { .. } => Some(None),
        _ => None,
    });
    let is_ready = |one: &Record| one.name == *name && one.state == State::Ready;
    let answer = match answer {
        // It ended without a word.
        Err(_) if !registry.look()?.iter().any(is_ready) => None,
        other => other?,
    };
    Ok(answer.map(|(run, waits)| Taken {
        connection,
        supervisor,
        run,
        waits,
    }))
}
