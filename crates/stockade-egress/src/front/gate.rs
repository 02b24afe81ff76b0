//! The gate before the HTTP library: every head of a connection that is kept
//! open, and the framing of every body, is checked before the library sees it.
//!
//! The library is well tested, and lenient where servers used to be: it takes
//! bare line feeds, two Host fields, or two framings at once. What passes the
//! gate has one reading only. The gate judges no destination.

mod chunks;

use super::head::{BadHead, Framing, Head, HeadReader, Target, Upgrade, parse_request};
use chunks::Chunks;

/// Most bytes that a client may send ahead of the answer to a change of
/// protocol.
pub const EARLY_BYTES_MAX: usize = 64 * 1024;

/// The form of targets on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forms {
    /// To the server itself: a path, or `*`.
    Origin,
    /// To a proxy: a URI. CONNECT is no part of it, because what follows it
    /// is not HTTP.
    Proxy,
}

/// Checks one direction of one connection.
#[derive(Debug)]
pub struct Gate {
    forms: Forms,
    state: State,
    /// A head that has not ended, or bytes behind a request for a change of
    /// protocol; bounded either way.
    held: Vec<u8>,
}

#[derive(Debug)]
enum State {
    Head(HeadReader),
    Body(u64),
    Chunked(Chunks),
    /// Behind a request for a WebSocket that is not answered yet.
    Waiting,
    /// No HTTP any more.
    Switched,
    /// After an error nothing passes.
    Closed(BadHead),
}

impl Gate {
    pub fn new(forms: Forms) -> Self {
        Self {
            forms,
            state: State::Head(HeadReader::default()),
            held: Vec::new(),
        }
    }

    /// Appends to `passed` what may go on to the HTTP library. After an error
    /// `passed` still holds good messages that came before it; the connection
    /// is then answered with [`BadHead::status`] and closed.
    pub fn push(&mut self, bytes: &[u8], passed: &mut Vec<u8>) -> Result<(), BadHead> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.step(rest, passed) {
                Ok(taken) => rest = &rest[taken..],
                Err(bad) => {
                    self.held = Vec::new();
                    self.state = State::Closed(bad);
                    return Err(bad);
                }
            }
        }
        Ok(())
    }

    /// A WebSocket was asked for, and bytes wait for [`Gate::switched`] or
    /// [`Gate::declined`].
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting)
    }

    /// Between two messages, with nothing held: the connection can be closed
    /// without anything being lost.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Head(_)) && self.held.is_empty()
    }

    /// The change of protocol was answered with 101: everything passes.
    pub fn switched(&mut self, passed: &mut Vec<u8>) {
        if self.is_waiting() {
            self.state = State::Switched;
            passed.append(&mut self.held);
        }
    }

    /// It was answered with anything else: what follows must be the next
    /// request.
    pub fn declined(&mut self, passed: &mut Vec<u8>) -> Result<(), BadHead> {
        if !self.is_waiting() {
            return Ok(());
        }
        self.state = State::Head(HeadReader::default());
        let held = std::mem::take(&mut self.held);
        self.push(&held, passed)
    }

    /// Takes at least one byte, and says how many.
    fn step(&mut self, bytes: &[u8], passed: &mut Vec<u8>) -> Result<usize, BadHead> {
        match &mut self.state {
            State::Head(reader) => {
                let end = reader.feed(bytes)?;
                let taken = end.unwrap_or(bytes.len());
                self.held.extend_from_slice(&bytes[..taken]);
                if end.is_some() {
                    let head = parse_request(&self.held)?;
                    self.state = after_head(self.forms, &head)?;
                    passed.append(&mut self.held);
                }
                Ok(taken)
            }
            State::Body(left) => {
                let taken =
                    usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= taken as u64;
                if *left == 0 {
                    self.state = State::Head(HeadReader::default());
                }
                passed.extend_from_slice(&bytes[..taken]);
                Ok(taken)
            }
            State::Chunked(chunks) => {
                let (taken, end) = chunks.push(bytes, passed)?;
                if end {
                    self.state = State::Head(HeadReader::default());
                }
                Ok(taken)
            }
            State::Waiting if self.held.len() + bytes.len() > EARLY_BYTES_MAX => {
                Err(BadHead::EarlyBytes)
            }
            State::Waiting => {
                self.held.extend_from_slice(bytes);
                Ok(bytes.len())
            }
            State::Switched => {
                passed.extend_from_slice(bytes);
                Ok(bytes.len())
            }
            State::Closed(bad) => Err(*bad),
        }
    }
}

fn after_head(forms: Forms, head: &Head) -> Result<State, BadHead> {
    let fits = match head.target {
        Target::Origin(_) | Target::Asterisk => forms == Forms::Origin,
        Target::Absolute { .. } => forms == Forms::Proxy,
        Target::Authority(_) => false,
    };
    if !fits {
        return Err(BadHead::TargetForm);
    }
    Ok(match head.framing {
        _ if head.upgrade == Some(Upgrade::WebSocket) => State::Waiting,
        Framing::None | Framing::Length(0) => State::Head(HeadReader::default()),
        Framing::Length(length) => State::Body(length),
        Framing::Chunked => State::Chunked(Chunks::default()),
    })
}

#[cfg(test)]
mod tests;
