//! Streams, terminal and signals between a caller and its command, until that
//! ends.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, read, write};
use rustix::termios::tcgetwinsize;
use stockade_agent::wire::{
    CHUNK_BYTES_MAX, ExecSpec, Reply, Request, Size, Stream, WINDOW_IN_BYTES, WINDOW_OUT_BYTES,
    decode, encode_spec,
};
use stockade_sys::rustix;
use stockade_sys::signal::{self, Sender, Signals};

use super::super::call::{CallError, Connection};
use super::super::wire::{FromCaller, ToCaller};
use super::{Command, Done};
use crate::outcome::EXIT_SIGNAL_BASE;
use crate::streams::{self, StandardStream};
use crate::supervise::handled_signals;
use crate::terminal::Keys;

/// Longest part of a command in one frame.
const PART_BYTES: usize = 60_000;
/// Input is read while less than this waits for the supervisor.
const WAITING_BYTES_MAX: usize = 64 * 1024;
/// What a pipe or terminal that polls writable takes at once (PIPE_BUF).
const WRITE_BYTES: usize = 4096;

/// Standard input on its way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Open,
    Over,
}

impl Input {
    fn of(command: &Command) -> io::Result<Self> {
        match !command.terminal && streams::leads_nowhere(StandardStream::Input)? {
            true => Ok(Self::Over),
            false => Ok(Self::Open),
        }
    }
}

/// A stream on its way out.
struct Outlet {
    to: StandardStream,
    pending: Vec<u8>,
    /// Written, and credit for it not given yet.
    written: u32,
    /// Nobody reads it any more.
    broken: bool,
}

impl Outlet {
    fn new(to: StandardStream) -> Self {
        Self {
            to,
            pending: Vec::new(),
            written: 0,
            broken: false,
        }
    }
}

#[derive(Clone, Copy)]
enum Source {
    Supervisor,
    Signals,
    Input,
    Outlet(usize),
}

pub(in crate::sandboxes) struct Relay {
    connection: Connection,
    signals: Signals,
    input: Input,
    /// How many bytes of input may be sent.
    credit: usize,
    outlets: [Outlet; 2],
    /// The caller's terminal, when its keys are relayed.
    keys: Option<Keys>,
    done: Option<Done>,
}

impl Relay {
    /// Has a command started, and takes the terminal's keys where it is on one.
    pub(in crate::sandboxes) fn begin(
        connection: Connection,
        command: &Command,
    ) -> Result<Self, CallError> {
        let system = |what| move |error| CallError::System { what, error };
        let signals =
            Signals::take_over(&handled_signals()).map_err(system("take signals over"))?;
        signal::ignore(signal::PIPE);
        let mut relay = Self {
            connection,
            signals,
            input: Input::of(command).map_err(system("look at standard input"))?,
            credit: WINDOW_IN_BYTES as usize,
            outlets: [
                Outlet::new(StandardStream::Output),
                Outlet::new(StandardStream::Error),
            ],
            keys: None,
            done: None,
        };
        relay.describe(command)?;
        if command.terminal {
            let terminal = StandardStream::Input.descriptor();
            let mut keys = Keys::of(terminal).map_err(system("read the terminal's modes"))?;
            keys.take().map_err(system("set the terminal's modes"))?;
            relay.keys = Some(keys);
        }
        Ok(relay)
    }

    /// Sends what is to be started.
    fn describe(&mut self, command: &Command) -> Result<(), CallError> {
        let block = |words: &[OsString]| -> Option<Vec<u8>> {
            let mut block = Vec::new();
            for word in words {
                if word.as_bytes().contains(&0) {
                    return None;
                }
                block.extend_from_slice(word.as_bytes());
                block.push(0);
            }
            Some(block)
        };
        let directory = command.directory.clone().unwrap_or_default();
        let encoded = block(&command.argv)
            .zip(block(&command.variables))
            .and_then(|(arguments, environment)| {
                let spec = ExecSpec {
                    arguments: &arguments,
                    environment: &environment,
                    directory: &directory.into_os_string().into_vec(),
                    user: None,
                    terminal: command.terminal.then(window),
                    input: self.input == Input::Open,
                    merged: false,
                };
                spec.is_sound().then(|| encode_spec(&spec))?
            });
        let encoded = encoded.ok_or_else(|| CallError::Refused {
            name: self.connection.name.clone(),
            reason: "the command, its variables (NAME=VALUE) or its directory are malformed or \
                     longer than 1 MiB"
                .to_owned(),
        })?;
        let mut parts = encoded.chunks(PART_BYTES).peekable();
        while let Some(part) = parts.next() {
            self.send(&match parts.peek() {
                Some(_) => Request::Part(part),
                None => Request::Exec(part),
            })?;
        }
        Ok(())
    }

    fn send(&mut self, request: &Request<'_>) -> Result<(), CallError> {
        let carried = match request {
            Request::Part(bytes) | Request::Exec(bytes) | Request::Data(bytes) => bytes.len(),
            _ => 0,
        };
        let message = FromCaller::Task(*request);
        let pushed = self.connection.outbox.push(0, &message, carried);
        pushed.map_err(|error| self.silent(&error.to_string()))
    }

    fn silent(&self, reason: &str) -> CallError {
        CallError::Silent {
            name: self.connection.name.clone(),
            reason: reason.to_owned(),
        }
    }

    /// Relays until the command ends and everything that it said is written.
    pub(in crate::sandboxes) fn run(&mut self) -> Result<Done, CallError> {
        loop {
            let drained = self.outlets.iter().all(|outlet| outlet.pending.is_empty());
            if drained && let Some(done) = self.done.take() {
                return Ok(done);
            }
            for (source, events) in self.poll().map_err(relaying)? {
                match source {
                    Source::Supervisor => self.speak(events)?,
                    Source::Signals => self.relay_signals()?,
                    Source::Input => self.read_input()?,
                    Source::Outlet(index) => self.write_out(index)?,
                }
            }
        }
    }

    fn poll(&self) -> io::Result<Vec<(Source, PollFlags)>> {
        let mut waits: Vec<(Source, BorrowedFd<'_>, PollFlags)> =
            vec![(Source::Signals, self.signals.as_fd(), PollFlags::IN)];
        let Connection { socket, outbox, .. } = &self.connection;
        if self.done.is_none() {
            let more = match outbox.is_empty() {
                true => PollFlags::empty(),
                false => PollFlags::OUT,
            };
            waits.push((Source::Supervisor, socket.as_fd(), PollFlags::IN | more));
            let may_read = self.credit > 0 && outbox.len() < WAITING_BYTES_MAX;
            let in_front = self.keys.as_ref().is_none_or(Keys::are_taken);
            if self.input == Input::Open && may_read && in_front {
                let input = StandardStream::Input.descriptor();
                waits.push((Source::Input, input, PollFlags::IN));
            }
        }
        for (index, outlet) in self.outlets.iter().enumerate() {
            if !outlet.pending.is_empty() {
                let to = outlet.to.descriptor();
                waits.push((Source::Outlet(index), to, PollFlags::OUT));
            }
        }
        let polled = waits
            .iter()
            .map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags));
        let mut descriptors: Vec<PollFd<'_>> = polled.collect();
        match poll(&mut descriptors, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = waits.iter().zip(&descriptors);
        Ok(ready
            .map(|((source, ..), descriptor)| (*source, descriptor.revents()))
            .filter(|(_, events)| !events.is_empty())
            .collect())
    }

    /// Sends and hears what there is to send and to hear.
    fn speak(&mut self, events: PollFlags) -> Result<(), CallError> {
        let Connection {
            socket,
            inbox,
            outbox,
            ..
        } = &mut self.connection;
        // An end shows when reading, after what was said before it.
        let _closed = outbox.flush(socket.as_fd()).is_err();
        if !events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return Ok(());
        }
        match read(&*socket, inbox.free()) {
            Ok(0) | Err(Errno::CONNRESET) => {
                self.done = Some(Done::Over {
                    code: EXIT_SIGNAL_BASE + signal::KILL,
                    reason: "it was killed from outside".to_owned(),
                });
                return Ok(());
            }
            Ok(length) => inbox.fill(length),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return Err(relaying(error.into())),
        }
        self.hear()
    }

    fn hear(&mut self) -> Result<(), CallError> {
        let mut stopped = false;
        loop {
            let frame = match self.connection.inbox.first() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => return Err(self.silent(&error.to_string())),
            };
            let message: ToCaller<'_> = match decode(frame.body) {
                Ok(message) => message,
                Err(_) => return Err(self.silent("it is of another version")),
            };
            let length = frame.length;
            match message {
                ToCaller::Task(Reply::Data { stream, bytes }) => {
                    let outlet = &mut self.outlets[stream as usize];
                    match outlet.broken {
                        true => outlet.written += bytes.len() as u32,
                        false => outlet.pending.extend_from_slice(bytes),
                    }
                }
                ToCaller::Task(Reply::Credit { bytes }) => self.credit += bytes as usize,
                ToCaller::Task(Reply::Stopped { .. }) => stopped = true,
                ToCaller::Task(Reply::Ended { status, .. }) => {
                    self.done = Some(Done::Ended(status))
                }
                ToCaller::Task(Reply::Failed { errno, reason }) => {
                    let reason = reason.to_owned();
                    self.done = Some(Done::Failed { errno, reason });
                }
                ToCaller::Over { code, reason } => {
                    let reason = reason.to_owned();
                    self.done = Some(Done::Over { code, reason });
                }
                ToCaller::Refused { reason } => {
                    return Err(CallError::Refused {
                        name: self.connection.name.clone(),
                        reason: reason.to_owned(),
                    });
                }
                ToCaller::Task(_) => {}
                ToCaller::Status { .. }
                | ToCaller::Stopping
                | ToCaller::Taken { .. }
                | ToCaller::NotReady => {
                    return Err(self.silent("it is of another version"));
                }
            }
            self.connection.inbox.consume(length);
        }
        for index in 0..self.outlets.len() {
            self.give_credit(index)?;
        }
        match stopped {
            true => self.stop(),
            false => Ok(()),
        }
    }

    fn read_input(&mut self) -> Result<(), CallError> {
        let mut buffer = [0; CHUNK_BYTES_MAX];
        let most = self.credit.min(buffer.len());
        match read(StandardStream::Input.descriptor(), &mut buffer[..most]) {
            // EIO is how a terminal says that it is gone.
            Ok(0) | Err(Errno::IO) => {
                self.input = Input::Over;
                self.send(&Request::End)?;
            }
            Ok(length) => {
                self.credit -= length;
                self.send(&Request::Data(&buffer[..length]))?;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(relaying(error.into())),
        }
        Ok(())
    }

    fn write_out(&mut self, index: usize) -> Result<(), CallError> {
        let outlet = &mut self.outlets[index];
        let most = outlet.pending.len().min(WRITE_BYTES);
        match write(outlet.to.descriptor(), &outlet.pending[..most]) {
            Ok(length) => {
                outlet.pending.drain(..length);
                outlet.written += length as u32;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The reader is gone: the command gets the SIGPIPE that it would
            // have had outside, and what else it says is dropped.
            Err(Errno::PIPE | Errno::IO) => {
                outlet.broken = true;
                outlet.written += outlet.pending.len() as u32;
                outlet.pending.clear();
                self.signal(signal::PIPE, true)?;
            }
            Err(error) => return Err(relaying(error.into())),
        }
        self.give_credit(index)
    }

    /// Gives credit back for what was written, not for each few bytes.
    fn give_credit(&mut self, index: usize) -> Result<(), CallError> {
        let outlet = &mut self.outlets[index];
        let is_due = outlet.pending.is_empty() || outlet.written >= WINDOW_OUT_BYTES / 4;
        if self.done.is_some() || outlet.written == 0 || !is_due {
            return Ok(());
        }
        let bytes = std::mem::take(&mut outlet.written);
        let stream = match index {
            0 => Stream::Output,
            _ => Stream::Error,
        };
        self.send(&Request::Credit { stream, bytes })
    }

    fn relay_signals(&mut self) -> Result<(), CallError> {
        while let Some(arrived) = self.signals.next().map_err(relaying)? {
            match arrived.number {
                signal::WINDOW_CHANGED => self.resize()?,
                signal::CONTINUE => self.go_on()?,
                signal::TERMINAL_STOP => {
                    self.signal(signal::STOP, true)?;
                    self.stop()?;
                }
                // What a key sends goes to the whole foreground group, what a
                // process sends to the one it named.
                number if self.done.is_none() => {
                    self.signal(number, arrived.sender == Sender::Kernel)?;
                }
                // Only undelivered output is left, and nobody wants it.
                _ => {
                    for outlet in &mut self.outlets {
                        outlet.pending.clear();
                    }
                }
            }
        }
        Ok(())
    }

    fn signal(&mut self, number: i32, group: bool) -> Result<(), CallError> {
        self.send(&Request::Signal { number, group })
    }

    fn resize(&mut self) -> Result<(), CallError> {
        match self.keys {
            Some(_) => self.send(&Request::Resize { size: window() }),
            None => Ok(()),
        }
    }

    /// The job inside was stopped: stop as well, so that the caller's shell
    /// takes its terminal back.
    fn stop(&mut self) -> Result<(), CallError> {
        if let Some(keys) = &mut self.keys {
            keys.give_back();
        }
        let Connection { socket, outbox, .. } = &mut self.connection;
        let _closed = outbox.flush(socket.as_fd()).is_err();
        signal::stop_own_group().map_err(relaying)?;
        self.go_on()
    }

    /// Continued: take the terminal again.
    fn go_on(&mut self) -> Result<(), CallError> {
        if let Some(keys) = &mut self.keys {
            keys.take().map_err(relaying)?;
        }
        self.resize()?;
        self.signal(signal::CONTINUE, true)
    }
}

/// Size of the caller's terminal; what most have when it does not say.
fn window() -> Size {
    let size = tcgetwinsize(StandardStream::Input.descriptor());
    size.map_or(
        Size {
            rows: 24,
            columns: 80,
        },
        |size| Size {
            rows: size.ws_row,
            columns: size.ws_col,
        },
    )
}

fn relaying(error: io::Error) -> CallError {
    CallError::System {
        what: "relay the command's streams",
        error,
    }
}
