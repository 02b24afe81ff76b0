//! The channel to the agent of one sandbox. Nothing that comes over it is
//! believed before the books say that it can be true.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read};
use stockade_agent::buffer::Inbox;
use stockade_agent::host::{Accepted, Ledger, Violation};
use stockade_agent::machine::{Birth, ENTROPY_BYTES};
use stockade_agent::wire::{Reply, Request, VERSION, WireError, decode};
use stockade_sys::rustix;

use super::wire::Outbox;

/// Requests of callers are taken while less than this waits for the agent.
const WAITING_BYTES_MAX: usize = 128 * 1024;
/// Longest part of a command in one frame.
const PART_BYTES: usize = 60_000;

/// Both directions of the channel, and the books.
#[derive(Debug)]
pub(super) struct Link {
    channel: OwnedFd,
    inbox: Inbox,
    outbox: Outbox,
    pub(super) ledger: Ledger,
    closed: bool,
}

impl Link {
    /// Begins with a greeting, which goes out with the first flush.
    pub(super) fn new(channel: OwnedFd) -> io::Result<Self> {
        fcntl_setfl(&channel, fcntl_getfl(&channel)? | OFlags::NONBLOCK)?;
        let mut link = Self {
            channel,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            ledger: Ledger::default(),
            closed: false,
        };
        link.send(0, &Request::Hello { version: VERSION });
        Ok(link)
    }

    /// Has a machine told what it is before it is greeted. To be called before
    /// anything was sent.
    pub(super) fn introduce(&mut self, birth: &Birth<'_>) {
        let carried = ENTROPY_BYTES
            + birth.name.len()
            + birth.private.len()
            + birth.filter.len()
            + birth.offers.len();
        self.outbox = Outbox::default();
        if self.outbox.push(0, birth, carried).is_err() {
            self.closed = true;
        }
        self.send(0, &Request::Hello { version: VERSION });
    }

    pub(super) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Whether the agent will neither say nor hear anything more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn has_more(&self) -> bool {
        !self.outbox.is_empty()
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.outbox.len()
    }

    /// Whether requests of callers can be taken. What is no caller's goes out
    /// in any case; there is little of it.
    pub(super) fn has_room(&self) -> bool {
        self.outbox.len() < WAITING_BYTES_MAX
    }

    /// Puts a request into its frame. What cannot be a frame is none that a
    /// caller could have made.
    pub(super) fn send(&mut self, task: u32, request: &Request<'_>) {
        let carried = match request {
            Request::Part(bytes) | Request::Exec(bytes) | Request::Data(bytes) => bytes.len(),
            Request::File(file) => file.path().len() + file.target().map_or(0, <[u8]>::len),
            _ => 0,
        };
        if !self.closed && self.outbox.push(task, request, carried).is_err() {
            self.closed = true;
        }
    }

    /// Has a command started, whose description is `spec`.
    pub(super) fn execute(&mut self, task: u32, spec: &[u8]) {
        let mut parts = spec.chunks(PART_BYTES).peekable();
        while let Some(part) = parts.next() {
            let request = match parts.peek() {
                Some(_) => Request::Part(part),
                None => Request::Exec(part),
            };
            self.send(task, &request);
        }
    }

    /// Sends what the channel takes now.
    pub(super) fn flush(&mut self) {
        if !self.closed && self.outbox.flush(self.channel.as_fd()).is_err() {
            self.closed = true;
        }
    }

    /// Takes what is there, and hands each reply on that can be true.
    pub(super) fn receive(
        &mut self,
        mut take: impl FnMut(u32, &Reply<'_>, Accepted),
    ) -> Result<(), Violation> {
        match read(&self.channel, self.inbox.free()) {
            Ok(0) => self.closed = true,
            Ok(length) => self.inbox.fill(length),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(_) => self.closed = true,
        }
        while let Some(frame) = self.inbox.first()? {
            let reply: Reply<'_> = decode(frame.body).map_err(|_| WireError::Malformed)?;
            let accepted = self.ledger.accept(frame.task, &reply)?;
            take(frame.task, &reply, accepted);
            let length = frame.length;
            self.inbox.consume(length);
        }
        Ok(())
    }
}
