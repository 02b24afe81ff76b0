//! One command that the agent started: its streams, its credit and its end.

use crate::buffer::Buffer;
use crate::session::{DATA_ROOM, REPLY_ROOM};
use crate::system::{Errno, Stage, Started, System};
use crate::wire::{
    CHUNK_BYTES_MAX, Reply, Size, Status, Stream, WINDOW_IN_BYTES, WINDOW_OUT_BYTES, WireError,
};

/// Most bytes of a terminal that are still passed on when its command is over;
/// a pseudo-terminal buffers no more (tty_buffer.c).
const TERMINAL_REST_BYTES: usize = 64 * 1024;

/// Which descriptor of a command is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Status,
    Input,
    Stream(Stream),
}

/// What a descriptor is polled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Readable,
    Writable,
}

/// Whether a task goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    On,
    Over,
}

/// What every step of a task needs.
pub(crate) struct Context<'a, S> {
    pub(crate) id: u32,
    pub(crate) system: &'a mut S,
    pub(crate) out: &'a mut Buffer,
    pub(crate) scratch: &'a mut [u8],
}

impl<S> Context<'_, S> {
    pub(crate) fn say(&mut self, reply: &Reply<'_>) -> Result<(), WireError> {
        self.out.frame(self.id, reply)
    }
}

/// A stream out of the sandbox.
#[derive(Debug)]
struct Outlet<H> {
    handle: Option<H>,
    credit: u32,
    /// Most bytes that are still to come, once the command is over: what is
    /// written later belongs to whoever was left behind.
    rest: Option<usize>,
}

/// The bytes that came for a command, and the credit that they free.
#[derive(Debug)]
pub(crate) struct Inlet {
    pub(crate) pending: Buffer,
    /// Taken, and not yet told to the host.
    taken: u32,
    /// What the host may still send.
    credit: u32,
}

impl Inlet {
    pub(crate) fn new() -> Self {
        Self {
            pending: Buffer::new(WINDOW_IN_BYTES as usize),
            taken: 0,
            credit: WINDOW_IN_BYTES,
        }
    }

    pub(crate) fn reset(&mut self) {
        self.pending.clear();
        self.taken = 0;
        self.credit = WINDOW_IN_BYTES;
    }

    /// Counts what the host sent; an error when it had no credit for it.
    pub(crate) fn spend(&mut self, length: usize) -> Result<(), WireError> {
        let length = u32::try_from(length).map_err(|_| WireError::TooLong)?;
        self.credit = self
            .credit
            .checked_sub(length)
            .ok_or(WireError::Malformed)?;
        Ok(())
    }

    /// Notes what was used, and what credit is due for it.
    pub(crate) fn took(&mut self, length: usize) -> Option<u32> {
        self.taken += length as u32;
        if self.taken < WINDOW_IN_BYTES / 2 {
            return None;
        }
        self.credit += self.taken;
        Some(core::mem::take(&mut self.taken))
    }
}

#[derive(Debug)]
pub(crate) struct Exec<H> {
    process: u32,
    status: Option<H>,
    input: Option<H>,
    /// Nothing more comes for the command.
    input_over: bool,
    outlets: [Outlet<H>; 2],
    is_terminal: bool,
    /// Whoever asked for it is gone: what is left of its group is killed when
    /// it ends.
    doomed: bool,
    ended: Option<Status>,
}

impl<H> Exec<H> {
    pub(crate) fn new(started: Started<H>, is_terminal: bool) -> Self {
        let outlet = |handle| Outlet {
            handle,
            credit: WINDOW_OUT_BYTES,
            rest: None,
        };
        Self {
            process: started.process,
            status: Some(started.status),
            input: started.input,
            input_over: false,
            outlets: [outlet(Some(started.output)), outlet(started.error)],
            is_terminal,
            doomed: false,
            ended: None,
        }
    }

    /// Whether a child is this command. The id of one that ended may be
    /// another's by now.
    pub(crate) fn is(&self, process: u32) -> bool {
        self.process == process && self.ended.is_none()
    }

    /// The descriptors to poll. `room` is what is left of the way out.
    pub(crate) fn waits<'a>(
        &'a self,
        inlet: &Inlet,
        room: usize,
        add: &mut dyn FnMut(Part, &'a H, Wait),
    ) {
        if let Some(status) = &self.status {
            add(Part::Status, status, Wait::Readable);
        }
        let input = match self.is_terminal {
            true => self.outlets[0].handle.as_ref(),
            false => self.input.as_ref(),
        };
        if let Some(input) = input
            && !inlet.pending.is_empty()
        {
            add(Part::Input, input, Wait::Writable);
        }
        for (outlet, stream) in self.outlets.iter().zip([Stream::Output, Stream::Error]) {
            if let Some(handle) = &outlet.handle
                && outlet.credit > 0
                && room >= DATA_ROOM
            {
                add(Part::Stream(stream), handle, Wait::Readable);
            }
        }
    }

    /// What was polled for is there.
    pub(crate) fn ready<S: System<Handle = H>>(
        &mut self,
        part: Part,
        inlet: &mut Inlet,
        context: &mut Context<'_, S>,
    ) -> Result<Life, WireError> {
        match part {
            Part::Status => self.learn_start(context),
            Part::Input => {
                self.feed(inlet, context)?;
                Ok(Life::On)
            }
            Part::Stream(stream) => self.pass_on(stream, context),
        }
    }

    /// Whether the program was executed.
    fn learn_start<S: System<Handle = H>>(
        &mut self,
        context: &mut Context<'_, S>,
    ) -> Result<Life, WireError> {
        let Some(status) = &self.status else {
            return Ok(Life::On);
        };
        let mut answer = [0; 8];
        let read = context.system.read(status, &mut answer);
        if matches!(read, Err(Errno::AGAIN | Errno::INTR)) {
            return Ok(Life::On);
        }
        self.status = None;
        let [a, b, c, d, e, f, g, h] = answer;
        match read {
            Ok(8) => {
                let stage = Stage::of(i32::from_le_bytes([e, f, g, h]));
                context.say(&Reply::Failed {
                    errno: i32::from_le_bytes([a, b, c, d]),
                    reason: stage.reason(),
                })?;
                Ok(Life::Over)
            }
            // Something between is a process that was killed while it wrote;
            // its end tells the rest.
            _ => {
                let process = self.process;
                context.say(&Reply::Started { process })?;
                Ok(Life::On)
            }
        }
    }

    /// The host sent bytes for the command.
    pub(crate) fn take<S: System<Handle = H>>(
        &mut self,
        bytes: &[u8],
        inlet: &mut Inlet,
        context: &mut Context<'_, S>,
    ) -> Result<(), WireError> {
        inlet.spend(bytes.len())?;
        inlet.pending.push(bytes)?;
        self.feed(inlet, context)
    }

    /// The host has no more for the command.
    pub(crate) fn take_end(&mut self, inlet: &Inlet) {
        self.input_over = true;
        if inlet.pending.is_empty() {
            self.input = None;
        }
    }

    /// Writes what is pending.
    fn feed<S: System<Handle = H>>(
        &mut self,
        inlet: &mut Inlet,
        context: &mut Context<'_, S>,
    ) -> Result<(), WireError> {
        let input = match self.is_terminal {
            true => self.outlets[0].handle.as_ref(),
            false => self.input.as_ref(),
        };
        let pending = inlet.pending.filled();
        let used = match input {
            // The command reads no more: what comes is dropped, so that the
            // host is not kept waiting.
            None => pending.len(),
            Some(_) if pending.is_empty() => 0,
            Some(input) => match context.system.write(input, pending) {
                Ok(written) => written,
                Err(Errno::AGAIN | Errno::INTR) => 0,
                Err(_) => {
                    self.input = None;
                    pending.len()
                }
            },
        };
        inlet.pending.consume(used);
        if self.input_over && inlet.pending.is_empty() {
            self.input = None;
        }
        match inlet.took(used) {
            Some(bytes) => context.say(&Reply::Credit { bytes }),
            None => Ok(()),
        }
    }

    pub(crate) fn credit(&mut self, stream: Stream, bytes: u32) -> Result<(), WireError> {
        let outlet = &mut self.outlets[stream as usize];
        outlet.credit = window(outlet.credit, bytes)?;
        Ok(())
    }

    pub(crate) fn resize<S: System<Handle = H>>(&self, size: Size, system: &mut S) {
        if let (true, Some(terminal)) = (self.is_terminal, &self.outlets[0].handle) {
            // A terminal that is gone has no size.
            let _gone = system.resize(terminal, size).is_err();
        }
    }

    pub(crate) fn signal<S: System<Handle = H>>(&self, number: i32, group: bool, system: &mut S) {
        if self.ended.is_none() {
            system.signal(self.process, number, group);
        }
    }

    /// Whoever asked for the command is gone.
    pub(crate) fn doom(&mut self) {
        self.doomed = true;
    }

    /// Passes one piece of a stream on.
    fn pass_on<S: System<Handle = H>>(
        &mut self,
        stream: Stream,
        context: &mut Context<'_, S>,
    ) -> Result<Life, WireError> {
        if context.out.room() < DATA_ROOM {
            return Ok(Life::On);
        }
        // The host learns that a command runs before what it says.
        if self.learn_start(context)? == Life::Over {
            return Ok(Life::Over);
        }
        let is_starting = self.status.is_some();
        let outlet = &mut self.outlets[stream as usize];
        let Some(handle) = outlet.handle.as_ref().filter(|_| !is_starting) else {
            return Ok(Life::On);
        };
        let most = (outlet.credit as usize)
            .min(outlet.rest.unwrap_or(usize::MAX))
            .min(CHUNK_BYTES_MAX);
        let is_last = outlet.rest.is_some();
        let over = match context.system.read(handle, &mut context.scratch[..most]) {
            _ if most == 0 => outlet.rest == Some(0),
            Ok(0) => true,
            Ok(length) => {
                outlet.credit -= length as u32;
                outlet.rest = outlet.rest.map(|rest| rest - length);
                let bytes = &context.scratch[..length];
                context
                    .out
                    .frame(context.id, &Reply::Data { stream, bytes })?;
                outlet.rest == Some(0)
            }
            Err(Errno::AGAIN) => is_last,
            Err(Errno::INTR) => false,
            // EIO is how a terminal says that its other side is closed.
            Err(_) => true,
        };
        if over {
            outlet.handle = None;
            context.say(&Reply::End { stream })?;
        }
        self.conclude(context)
    }

    pub(crate) fn stopped<S: System<Handle = H>>(
        &mut self,
        signal: i32,
        context: &mut Context<'_, S>,
    ) -> Result<(), WireError> {
        // A command can stop itself as often as it likes: what does not fit is
        // not told.
        let is_started = self.status.is_none();
        match self.is_terminal && is_started && context.out.room() >= REPLY_ROOM {
            true => context.say(&Reply::Stopped { signal }),
            false => Ok(()),
        }
    }

    /// The process is over; what it wrote is still to be passed on.
    pub(crate) fn ended<S: System<Handle = H>>(
        &mut self,
        status: Status,
        context: &mut Context<'_, S>,
    ) -> Result<Life, WireError> {
        if self.learn_start(context)? == Life::Over {
            return Ok(Life::Over);
        }
        if self.status.take().is_some() {
            let process = self.process;
            context.say(&Reply::Started { process })?;
        }
        if self.doomed {
            context.system.signal(self.process, KILL, true);
        }
        self.ended = Some(status);
        self.input = None;
        for (outlet, stream) in self.outlets.iter_mut().zip([Stream::Output, Stream::Error]) {
            let Some(handle) = &outlet.handle else {
                continue;
            };
            let rest = match self.is_terminal {
                true => TERMINAL_REST_BYTES,
                false => context.system.waiting(handle).unwrap_or(0),
            };
            outlet.rest = Some(rest);
            if rest == 0 {
                outlet.handle = None;
                context.out.frame(context.id, &Reply::End { stream })?;
            }
        }
        self.conclude(context)
    }

    /// Tells the end when everything before it was told.
    fn conclude<S: System<Handle = H>>(
        &self,
        context: &mut Context<'_, S>,
    ) -> Result<Life, WireError> {
        let drained = self.outlets.iter().all(|outlet| outlet.handle.is_none());
        match self.ended {
            Some(status) if drained => {
                let met = context.system.met();
                context.say(&Reply::Ended { status, met })?;
                Ok(Life::Over)
            }
            _ => Ok(Life::On),
        }
    }
}

const KILL: i32 = 9;

/// Adds to a credit, which never exceeds the window.
pub(crate) fn window(credit: u32, bytes: u32) -> Result<u32, WireError> {
    match credit.checked_add(bytes) {
        Some(sum) if sum <= WINDOW_OUT_BYTES => Ok(sum),
        _ => Err(WireError::Malformed),
    }
}
