//! What callers and a supervisor say to each other, in frames of the agent's
//! protocol over a unix socket of the registry.
//!
//! One connection is one command, one question or one order; a sandbox of a pool
//! is taken first. A command's
//! messages are those of the agent, with numbers and credit of the supervisor's
//! own behind them: callers are the same user, but one that is wrong must not
//! take the sandbox down.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use serde::{Deserialize, Serialize};
use stockade_agent::wire::{HEADER_BYTES, Reply, Request, WireError, encode};
use stockade_sys::rustix;

/// From a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FromCaller<'a> {
    /// How many commands run in it?
    Status,
    /// End the sandbox.
    Stop,
    /// Take it from its pool, for the command that follows.
    Take,
    /// Of the one command of this connection.
    Task(#[serde(borrow)] Request<'a>),
}

/// To a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToCaller<'a> {
    Status {
        commands: u32,
        stopping: bool,
    },
    Stopping,
    /// It is the caller's.
    Taken {
        /// Id of its run.
        #[serde(borrow)]
        run: &'a str,
        /// What is written in it waits for review.
        waits: bool,
    },
    /// Somebody else was first, or it is about to end.
    NotReady,
    /// Nothing was started.
    Refused {
        reason: &'a str,
    },
    /// The sandbox ended, and the command with it; `code` is the exit code
    /// that `stockade run` would have.
    Over {
        code: i32,
        reason: &'a str,
    },
    Task(#[serde(borrow)] Reply<'a>),
}

/// More than a message takes beside the bytes that it carries.
const MESSAGE_BYTES: usize = 64;

/// Frames on their way out; they grow as far as whoever fills it lets them.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// How many bytes wait.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a frame with a message that carries `carried` bytes at most.
    pub(super) fn push<T: Serialize>(
        &mut self,
        task: u32,
        message: &T,
        carried: usize,
    ) -> Result<(), WireError> {
        if self.sent > 0 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        let start = self.bytes.len();
        self.bytes
            .resize(start + HEADER_BYTES + MESSAGE_BYTES + carried, 0);
        let length = encode(task, message, &mut self.bytes[start..]);
        self.bytes.truncate(start + *length.as_ref().unwrap_or(&0));
        length.map(|_| ())
    }

    /// Sends what the socket takes now. An error is the end of the socket.
    pub(super) fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        while !self.is_empty() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match send(socket, &self.bytes[self.sent..], flags) {
                Ok(sent) => self.sent += sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        // An idle sandbox keeps no room for what was long ago.
        self.bytes = Vec::new();
        self.sent = 0;
        Ok(())
    }
}
