//! A sandbox of a pool: it is taken once, for one command, and ends with it.

use std::fs::File;
use std::time::Instant;

use super::super::wire::ToCaller;
use super::{Callers, Host, Phase, Successor};

/// Who has it.
#[derive(Debug)]
pub(super) struct Taking {
    successor: Successor,
    /// The connection that took it, and since when it has it.
    by: Option<(u64, Instant)>,
    /// Whether its command was started.
    is_used: bool,
    /// What keeps the pool in being, until the next one is started.
    held: Option<File>,
}

impl Taking {
    pub(super) fn new(successor: Successor) -> Self {
        Self {
            successor,
            by: None,
            is_used: false,
            held: None,
        }
    }
}

impl Host {
    fn taking(&self) -> Option<&Taking> {
        match &self.callers {
            Callers::Anybody { taking, .. } => taking.as_ref(),
            Callers::One(_) => None,
        }
    }

    /// Gives the sandbox to a caller; `None` when it is of no pool.
    pub(super) fn take(&mut self, id: u64) -> Option<ToCaller<'_>> {
        let is_serving = matches!(self.phase, Phase::Serving);
        let Callers::Anybody {
            reserved,
            taking: Some(taking),
            ..
        } = &mut self.callers
        else {
            return None;
        };
        if taking.by.is_some() || !is_serving {
            return Some(ToCaller::NotReady);
        }
        taking.by = Some((id, Instant::now()));
        // Only once it counts no more among those that are ready.
        match reserved.publish_taken() {
            Ok(held) => taking.held = held,
            Err(_) => return Some(ToCaller::NotReady),
        }
        Some(ToCaller::Taken {
            run: self.run.as_str(),
            waits: taking.successor.waits,
        })
    }

    /// Refuses commands of others, and a second one. The error is what the
    /// caller is told.
    pub(super) fn may_execute(&self, id: u64) -> Result<(), String> {
        match self.taking() {
            None => Ok(()),
            Some(Taking { by: None, .. }) => Err(of_pool()),
            Some(taking) => match taking.by {
                Some((by, _)) if by == id && !taking.is_used => Ok(()),
                _ => Err("it is for one command, which it has".to_owned()),
            },
        }
    }

    /// Nobody has touched what is given to whoever takes it.
    pub(super) fn may_touch_files(&self) -> Result<(), String> {
        match self.taking() {
            Some(Taking { by: None, .. }) => Err(of_pool()),
            _ => Ok(()),
        }
    }

    /// Notes that its command was started.
    pub(super) fn note_use(&mut self, id: u64) {
        if let Callers::Anybody {
            taking: Some(taking),
            ..
        } = &mut self.callers
        {
            taking.is_used |= taking.by.is_some_and(|(by, _)| by == id);
        }
    }

    /// Has the next one started, once the command is on its way or nobody is there
    /// to send one.
    pub(super) fn start_successor(&mut self) {
        let Callers::Anybody {
            taking: Some(taking),
            ..
        } = &mut self.callers
        else {
            return;
        };
        let is_gone = |(by, _)| !self.clients.contains_key(&by);
        if (taking.is_used || taking.by.is_some_and(is_gone))
            && let Some(held) = taking.held.take()
        {
            taking.successor.start(held);
        }
    }

    /// Ends a sandbox that was taken, once whoever took it has heard everything
    /// or is gone.
    pub(super) fn end_when_used(&mut self) {
        let by = self.taking().and_then(|taking| taking.by);
        let is_over = by.is_some_and(|(by, _)| !self.clients.contains_key(&by));
        if is_over && self.running.is_empty() {
            self.ask_to_end("its command is over");
        }
    }

    /// From when on its time counts, if it began to wait for commands at
    /// `stood`; `None` as long as nobody has it.
    pub(crate) fn works_since(&self, stood: Instant) -> Option<Instant> {
        match self.taking() {
            None => Some(stood),
            Some(taking) => taking.by.map(|(_, since)| since),
        }
    }
}

fn of_pool() -> String {
    "it waits in a pool for one command\n  remedy: `stockade exec` with the name of the pool takes it"
        .to_owned()
}
