//! The one command of a run whose command is started by the agent.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use stockade_agent::wire::{Reply, Status, Stream};
use stockade_sys::rustix;

use super::{Callers, Host};
use crate::outcome::End;
use crate::sandboxes::client::Client;
use crate::streams::remember;

/// Who waits for the command, and how that ended.
#[derive(Debug)]
pub(super) struct One {
    /// Until the sandbox stands.
    caller: Option<OwnedFd>,
    /// The same connection, until its other end is gone.
    front: Option<OwnedFd>,
    /// Where the command writes errors, once it was started.
    errors: Option<Stream>,
    last_words: Vec<u8>,
    ended: Option<End>,
}

impl One {
    pub(super) fn new(caller: OwnedFd) -> Self {
        Self {
            front: caller.try_clone().ok(),
            caller: Some(caller),
            errors: None,
            last_words: Vec::new(),
            ended: None,
        }
    }

    pub(super) fn is_served(&self) -> bool {
        self.caller.is_none()
    }

    /// The caller, from now on.
    pub(super) fn serve(&mut self) -> Option<Client> {
        self.caller.take().map(Client::new)
    }

    /// The command is started; its errors have a stream of their own or not.
    pub(super) fn begin(&mut self, has_error: bool) {
        self.errors = Some(match has_error {
            true => Stream::Error,
            false => Stream::Output,
        });
    }

    /// Notes what is needed of a reply.
    pub(super) fn note(&mut self, reply: &Reply<'_>) {
        let Some(errors) = self.errors else {
            return;
        };
        match *reply {
            Reply::Data { stream, bytes } if stream == errors => {
                remember(&mut self.last_words, bytes);
            }
            Reply::Ended { status, .. } => {
                self.ended = Some(match status {
                    Status::Exited(code) => End::Exited(code),
                    Status::Killed { signal, core } => End::Killed { signal, core },
                });
            }
            Reply::Failed { errno, .. } => self.ended = Some(End::NotExecuted { errno }),
            _ => {}
        }
    }
}

impl Host {
    /// How the one command ended, when the sandbox ended so; `end` itself for a
    /// sandbox that stays, and for one that was ended before its command was.
    pub(crate) fn end_of_command(&self, end: End) -> End {
        let Callers::One(one) = &self.callers else {
            return end;
        };
        match (end, &one.ended) {
            (End::Exited(_) | End::Killed { .. } | End::Lost, Some(ended)) => ended.clone(),
            (End::Exited(_) | End::Killed { .. }, None) => End::Lost,
            (end, _) => end,
        }
    }

    /// Waits until the process in front has delivered everything and given the
    /// terminal back: what the supervisor says of the run comes after that.
    pub(crate) fn await_front(&mut self) {
        let Callers::One(one) = &mut self.callers else {
            return;
        };
        let Some(front) = one.front.take() else {
            return;
        };
        // It has heard everything; a front that never had a command sees an end.
        let _gone = shutdown(&front, Shutdown::Write).is_err();
        loop {
            let mut gone = [PollFd::new(&front, PollFlags::RDHUP)];
            match poll(&mut gone, None) {
                Ok(_) | Err(Errno::INTR) if gone[0].revents().is_empty() => {}
                _ => return,
            }
        }
    }

    /// Whether there is one command, which is the run.
    pub(crate) fn is_of_one(&self) -> bool {
        matches!(self.callers, Callers::One(_))
    }

    /// The last that the one command wrote as errors or on its terminal.
    pub(crate) fn last_words(&self) -> &[u8] {
        match &self.callers {
            Callers::One(one) => &one.last_words,
            Callers::Anybody { .. } => &[],
        }
    }
}
