//! One caller of a sandbox, and what it is still to be told.
//!
//! What the agent sent for a caller waits here as bytes, not as frames, so that
//! it is never more than the credit that the caller gave.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::{Errno, read};
use stockade_agent::buffer::Inbox;
use stockade_agent::wire::{CHUNK_BYTES_MAX, Met, Reply, Status, Stream, WireError};
use stockade_sys::rustix;

use super::wire::{Outbox, ToCaller};

/// Frames are made while less than this waits for the socket.
const WAITING_BYTES_MAX: usize = 32 * 1024;

#[derive(Debug)]
pub(super) struct Client {
    pub(super) socket: OwnedFd,
    pub(super) inbox: Inbox,
    pub(super) outbox: Outbox,
    pub(super) stage: Stage,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// Nothing but parts of a command came so far.
    New(Vec<u8>),
    Running {
        task: u32,
        telling: Telling,
    },
    /// Everything is said; over when it is delivered.
    Closing,
}

/// What is still to be told of a command.
#[derive(Debug)]
pub(super) struct Telling {
    started: Option<u32>,
    outlets: [Outlet; 2],
    credit: u32,
    stopped: Option<i32>,
    last: Option<Last>,
}

#[derive(Debug, Default)]
struct Outlet {
    pending: Vec<u8>,
    ended: bool,
    told: bool,
}

#[derive(Debug)]
enum Last {
    Failed { errno: i32, reason: String },
    Ended(Status),
    Done,
}

impl Telling {
    /// `has_error` unless both outputs are one stream.
    pub(super) fn new(has_error: bool) -> Self {
        let error = Outlet {
            told: !has_error,
            ..Outlet::default()
        };
        Self {
            started: None,
            outlets: [Outlet::default(), error],
            credit: 0,
            stopped: None,
            last: None,
        }
    }

    /// Of a file; `reads` when it comes out.
    pub(super) fn of_file(reads: bool) -> Self {
        let mut telling = Self::new(false);
        telling.outlets[0].told = !reads;
        telling
    }

    /// Notes a reply, which the books accepted.
    pub(super) fn note(&mut self, reply: &Reply<'_>) {
        match *reply {
            Reply::Started { process } => self.started = Some(process),
            Reply::Data { stream, bytes } => self.outlets[stream as usize]
                .pending
                .extend_from_slice(bytes),
            Reply::End { stream } => self.outlets[stream as usize].ended = true,
            Reply::Credit { bytes } => self.credit += bytes,
            Reply::Stopped { signal } => self.stopped = Some(signal),
            Reply::Ended { status, .. } => self.last = Some(Last::Ended(status)),
            Reply::Failed { errno, reason } => {
                let reason = stockade_agent::host::shown(reason);
                self.last = Some(Last::Failed { errno, reason });
            }
            Reply::Done => {
                self.outlets[0].ended = true;
                self.last = Some(Last::Done);
            }
            Reply::Hello { .. } | Reply::Refused { .. } => {}
        }
    }

    /// Makes frames of what there is room for; whether everything is said.
    fn tell(&mut self, outbox: &mut Outbox) -> Result<bool, WireError> {
        let mut say = |reply: Reply<'_>, carried| outbox.push(0, &ToCaller::Task(reply), carried);
        if let Some(process) = self.started.take() {
            say(Reply::Started { process }, 0)?;
        }
        if self.credit > 0 {
            let bytes = std::mem::take(&mut self.credit);
            say(Reply::Credit { bytes }, 0)?;
        }
        if let Some(signal) = self.stopped.take() {
            say(Reply::Stopped { signal }, 0)?;
        }
        for (outlet, stream) in self.outlets.iter_mut().zip([Stream::Output, Stream::Error]) {
            while !outlet.pending.is_empty() && outbox.len() < WAITING_BYTES_MAX {
                let length = outlet.pending.len().min(CHUNK_BYTES_MAX);
                let bytes = &outlet.pending[..length];
                let message = ToCaller::Task(Reply::Data { stream, bytes });
                outbox.push(0, &message, length)?;
                outlet.pending.drain(..length);
            }
            if outlet.ended && !outlet.told && outlet.pending.is_empty() {
                outlet.pending = Vec::new();
                outlet.told = true;
                outbox.push(0, &ToCaller::Task(Reply::End { stream }), 0)?;
            }
        }
        let all_told = self.outlets.iter().all(|outlet| outlet.told);
        let last = match &self.last {
            Some(Last::Failed { errno, reason }) => Reply::Failed {
                errno: *errno,
                reason,
            },
            Some(Last::Ended(status)) if all_told => Reply::Ended {
                status: *status,
                met: Met::NONE,
            },
            Some(Last::Done) if all_told => Reply::Done,
            _ => return Ok(false),
        };
        outbox.push(0, &ToCaller::Task(last), 1024)?;
        Ok(true)
    }
}

impl Client {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            stage: Stage::New(Vec::new()),
        }
    }

    /// Whether it may say something now.
    pub(super) fn is_heard(&self) -> bool {
        !matches!(self.stage, Stage::Closing)
    }

    /// Says one last thing.
    pub(super) fn conclude(&mut self, message: &ToCaller<'_>) {
        let carried = match message {
            ToCaller::Refused { reason } | ToCaller::Over { reason, .. } => reason.len(),
            _ => 0,
        };
        // What is longer than a frame is not said; the end says enough.
        let _unsaid = self.outbox.push(0, message, carried).is_err();
        self.stage = Stage::Closing;
    }

    /// Takes what came; `false` when there is nobody any more.
    pub(super) fn receive(&mut self) -> bool {
        let free = self.inbox.free();
        if free.is_empty() {
            return true;
        }
        match read(&self.socket, free) {
            Ok(0) => false,
            Ok(length) => {
                self.inbox.fill(length);
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => false,
        }
    }

    /// Tells what the socket takes now; `false` when that is over.
    pub(super) fn deliver(&mut self) -> bool {
        loop {
            if let Stage::Running { telling, .. } = &mut self.stage {
                match telling.tell(&mut self.outbox) {
                    Ok(false) => {}
                    Ok(true) => self.stage = Stage::Closing,
                    Err(_) => return false,
                }
            }
            if self.outbox.is_empty() {
                return !matches!(self.stage, Stage::Closing);
            }
            match self.outbox.flush(self.socket.as_fd()) {
                Ok(()) if self.outbox.is_empty() => {}
                Ok(()) => return true,
                Err(_) => return false,
            }
        }
    }
}
