//! What the agent does: takes requests, keeps its tasks going, and says what
//! became of them.
//!
//! A session never waits and never allocates. How much it has to say is
//! bounded: requests are taken only while there is room for their answers, and
//! streams are read only while there is more.

use alloc::vec;
use alloc::vec::Vec;

use crate::buffer::Buffer;
use crate::exec::{self, Context, Exec, Inlet, Life};
pub use crate::exec::{Part, Wait};
use crate::files::RECORD_BYTES_MAX;
use crate::system::{Change, Errno, System};
use crate::wire::{
    self, CHUNK_BYTES_MAX, ExecSpec, FileRequest, Reply, Request, SPEC_BYTES_MAX, Stream,
    TASKS_MAX, VERSION, WINDOW_OUT_BYTES, WireError,
};

/// Room for what the session has to say.
const OUT_BYTES: usize = 192 * 1024;
/// Requests are taken while there is this much room: more than all tasks
/// together say without being asked.
pub const REPLY_ROOM: usize = 32 * 1024;
/// Streams are read while there is this much room.
pub const DATA_ROOM: usize = REPLY_ROOM + CHUNK_BYTES_MAX + 64;

/// Names a descriptor of the session between two polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    slot: usize,
    part: Part,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// The host asked for it.
    Shutdown,
    /// The host speaks another version, or something else altogether.
    Refused,
}

/// What the agent knows of one task.
#[derive(Debug)]
enum Task<H> {
    Exec(Exec<H>),
    Read {
        file: H,
        credit: u32,
        left: u64,
    },
    Write {
        file: H,
    },
    Records {
        of: H,
        credit: u32,
        cookie: u64,
        is_watch: bool,
    },
}

#[derive(Debug)]
struct Slot<H> {
    id: u32,
    inlet: Inlet,
    task: Option<Task<H>>,
}

/// The agent's side of the protocol.
#[derive(Debug)]
pub struct Session<S: System> {
    system: S,
    slots: Vec<Slot<S::Handle>>,
    out: Buffer,
    /// The parts of a command that came so far, and whose they are.
    spec: Buffer,
    spec_of: Option<u32>,
    scratch: Vec<u8>,
    greeted: bool,
    closing: Option<Closing>,
}

impl<S: System> Session<S> {
    /// Takes all the memory that the session will ever need.
    pub fn new(system: S) -> Self {
        let slot = || Slot {
            id: 0,
            inlet: Inlet::new(),
            task: None,
        };
        Self {
            system,
            slots: (0..TASKS_MAX).map(|_| slot()).collect(),
            out: Buffer::new(OUT_BYTES),
            spec: Buffer::new(SPEC_BYTES_MAX),
            spec_of: None,
            scratch: vec![0; CHUNK_BYTES_MAX],
            greeted: false,
            closing: None,
        }
    }

    /// What is to be sent to the host.
    pub fn out(&mut self) -> &mut Buffer {
        &mut self.out
    }

    /// Whether another request can be taken.
    pub fn has_room(&self) -> bool {
        self.out.room() >= REPLY_ROOM && self.closing.is_none()
    }

    /// Set when the session is over, once everything in [`Session::out`] is
    /// sent.
    pub fn closing(&self) -> Option<Closing> {
        self.closing
    }

    /// Ends the session with a reason; what is running ends with the agent.
    pub fn refuse(&mut self, reason: &str) {
        // Whoever does not read it does not learn it.
        let _unsaid = self.out.frame(0, &Reply::Refused { reason }).is_err();
        self.closing = Some(Closing::Refused);
    }

    /// The descriptors to poll.
    pub fn waits<'a>(&'a self, mut add: impl FnMut(Token, &'a S::Handle, Wait)) {
        let room = self.out.room();
        for (number, slot) in self.slots.iter().enumerate() {
            let mut add = |part, handle, wait| add(Token { slot: number, part }, handle, wait);
            match &slot.task {
                Some(Task::Exec(exec)) => exec.waits(&slot.inlet, room, &mut add),
                Some(Task::Records {
                    of,
                    credit,
                    is_watch: true,
                    ..
                }) if room >= DATA_ROOM && *credit as usize >= RECORD_BYTES_MAX => {
                    add(Part::Stream(Stream::Output), of, Wait::Readable);
                }
                _ => {}
            }
        }
    }

    /// Whether there is something to do for which nothing is polled: files
    /// never keep anybody waiting.
    pub fn is_busy(&self) -> bool {
        self.out.room() >= DATA_ROOM
            && self.slots.iter().any(|slot| match &slot.task {
                Some(Task::Read { credit, .. }) => *credit > 0,
                Some(Task::Records {
                    credit, is_watch, ..
                }) => !is_watch && *credit as usize >= RECORD_BYTES_MAX,
                _ => false,
            })
    }

    /// Takes one frame from the host. An error ends the session.
    pub fn receive(&mut self, id: u32, body: &[u8]) -> Result<(), WireError> {
        let request = wire::decode(body)?;
        match request {
            Request::Hello { version } if !self.greeted => {
                if version != VERSION {
                    self.refuse("this agent speaks version 2 of the protocol");
                    return Ok(());
                }
                self.greeted = true;
                return self.out.frame(0, &Reply::Hello { version });
            }
            Request::Hello { .. } => return Err(WireError::Malformed),
            _ if !self.greeted => return Err(WireError::Malformed),
            Request::Shutdown => {
                self.closing = Some(Closing::Shutdown);
                return Ok(());
            }
            Request::SetClock {
                seconds,
                nanoseconds,
            } => {
                let set = self.system.set_clock(seconds, nanoseconds);
                return self.answer(id, set.map(|()| Reply::Done), "the clock cannot be set");
            }
            _ if id == 0 => return Err(WireError::Malformed),
            Request::Part(bytes) => return self.assemble(id, bytes),
            Request::Exec(bytes) => return self.exec(id, bytes),
            Request::File(request) => return self.file(id, &request),
            _ => {}
        }
        // What is left is for a task; one that ended meanwhile needs it no
        // more.
        match self.slots.iter().position(|slot| slot.id == id) {
            Some(number) => self.advance_task(number, &request),
            None => Ok(()),
        }
    }

    fn answer(
        &mut self,
        id: u32,
        result: Result<Reply<'_>, Errno>,
        reason: &str,
    ) -> Result<(), WireError> {
        let failed = |Errno(errno)| Reply::Failed { errno, reason };
        self.out.frame(id, &result.unwrap_or_else(failed))
    }

    /// The free slot for a new task. An id that is in use is the host's
    /// mistake.
    fn slot_for(&self, id: u32) -> Result<Option<usize>, WireError> {
        match self.slots.iter().any(|slot| slot.id == id) {
            true => Err(WireError::Malformed),
            false => Ok(self.slots.iter().position(|slot| slot.id == 0)),
        }
    }

    fn assemble(&mut self, id: u32, bytes: &[u8]) -> Result<(), WireError> {
        if self.spec_of.is_some_and(|other| other != id) {
            return Err(WireError::Malformed);
        }
        self.spec_of = Some(id);
        self.spec.push(bytes)
    }

    fn exec(&mut self, id: u32, bytes: &[u8]) -> Result<(), WireError> {
        self.assemble(id, bytes)?;
        self.spec_of = None;
        let done = self.start(id);
        self.spec.clear();
        done
    }

    fn start(&mut self, id: u32) -> Result<(), WireError> {
        let slot = self.slot_for(id)?;
        let spec: ExecSpec<'_> = wire::decode(self.spec.filled())?;
        let result = match slot {
            None => Err((Errno::AGAIN, "64 tasks run already")),
            Some(_) if !spec.is_sound() => Err((Errno::INVAL, "the arguments are malformed")),
            Some(slot) => match self.system.start(&spec) {
                Ok(started) => Ok((slot, Exec::new(started, spec.terminal.is_some()))),
                Err(error) => Err((error, "no process can be started")),
            },
        };
        match result {
            Ok((slot, exec)) => {
                self.occupy(slot, id, Task::Exec(exec));
                Ok(())
            }
            Err((error, reason)) => self.answer(id, Err(error), reason),
        }
    }

    fn file(&mut self, id: u32, request: &FileRequest<'_>) -> Result<(), WireError> {
        let Some(slot) = self.slot_for(id)? else {
            return self.answer(id, Err(Errno::AGAIN), "64 tasks run already");
        };
        if !request.is_sound() {
            return self.answer(id, Err(Errno::INVAL), "the path is malformed");
        }
        if let FileRequest::Directory { .. }
        | FileRequest::Link { .. }
        | FileRequest::Describe { .. } = request
        {
            return match self.system.make(request) {
                Ok(()) => {
                    self.out.frame(id, &Reply::Started { process: 0 })?;
                    self.out.frame(id, &Reply::Done)
                }
                Err(error) => self.answer(id, Err(error), "it cannot be made"),
            };
        }
        let file = match self.system.open(request) {
            Ok(file) => file,
            Err(error) => return self.answer(id, Err(error), "it cannot be opened"),
        };
        let credit = WINDOW_OUT_BYTES;
        let task = match request {
            FileRequest::Read { length, .. } => Task::Read {
                file,
                credit,
                left: *length,
            },
            FileRequest::Write { .. } => Task::Write { file },
            FileRequest::List { .. } | FileRequest::Watch { .. } => Task::Records {
                of: file,
                credit,
                cookie: 0,
                is_watch: matches!(request, FileRequest::Watch { .. }),
            },
            // Done above, at once.
            _ => return Err(WireError::Malformed),
        };
        self.occupy(slot, id, task);
        self.out.frame(id, &Reply::Started { process: 0 })
    }

    fn occupy(&mut self, slot: usize, id: u32, task: Task<S::Handle>) {
        let slot = &mut self.slots[slot];
        slot.id = id;
        slot.inlet.reset();
        slot.task = Some(task);
    }

    /// A request for a task that is there.
    fn advance_task(&mut self, number: usize, request: &Request<'_>) -> Result<(), WireError> {
        let (slot, mut context) = self.parts(number);
        let life = match (&mut slot.task, request) {
            (Some(Task::Exec(exec)), Request::Data(bytes)) => {
                exec.take(bytes, &mut slot.inlet, &mut context)?;
                Life::On
            }
            (Some(Task::Exec(exec)), Request::End) => {
                exec.take_end(&slot.inlet);
                Life::On
            }
            (Some(Task::Exec(exec)), Request::Credit { stream, bytes }) => {
                exec.credit(*stream, *bytes)?;
                Life::On
            }
            (Some(Task::Exec(exec)), Request::Signal { number, group }) => {
                exec.signal(*number, *group, context.system);
                Life::On
            }
            (Some(Task::Exec(exec)), Request::Resize { size }) => {
                exec.resize(*size, context.system);
                Life::On
            }
            (Some(Task::Exec(exec)), Request::Cancel) => {
                exec.doom();
                exec.signal(HANG_UP, true, context.system);
                exec.signal(CONTINUE, true, context.system);
                Life::On
            }
            (Some(Task::Write { file }), Request::Data(bytes)) => {
                write(file, bytes, &mut slot.inlet, &mut context)?
            }
            (Some(Task::Write { .. }), Request::End) | (Some(_), Request::Cancel) => {
                context.say(&Reply::Done)?;
                Life::Over
            }
            (
                Some(Task::Read { credit, .. } | Task::Records { credit, .. }),
                Request::Credit {
                    stream: Stream::Output,
                    bytes,
                },
            ) => {
                *credit = exec::window(*credit, *bytes)?;
                Life::On
            }
            _ => return Err(WireError::Malformed),
        };
        self.leave(number, life);
        Ok(())
    }

    fn parts(&mut self, number: usize) -> (&mut Slot<S::Handle>, Context<'_, S>) {
        let slot = &mut self.slots[number];
        let context = Context {
            id: slot.id,
            system: &mut self.system,
            out: &mut self.out,
            scratch: &mut self.scratch,
        };
        (slot, context)
    }

    fn leave(&mut self, number: usize, life: Life) {
        if life == Life::Over {
            let slot = &mut self.slots[number];
            slot.id = 0;
            slot.task = None;
        }
    }

    /// A descriptor is ready.
    pub fn ready(&mut self, token: Token) -> Result<(), WireError> {
        let (slot, mut context) = self.parts(token.slot);
        let life = match &mut slot.task {
            Some(Task::Exec(exec)) => exec.ready(token.part, &mut slot.inlet, &mut context)?,
            Some(task) => pass_on(task, &mut context)?,
            None => Life::On,
        };
        self.leave(token.slot, life);
        Ok(())
    }

    /// Does what [`Session::is_busy`] is about: one piece of each file.
    pub fn work(&mut self) -> Result<(), WireError> {
        for number in 0..self.slots.len() {
            let (slot, mut context) = self.parts(number);
            let is_watch = matches!(&slot.task, Some(Task::Records { is_watch: true, .. }));
            if let Some(task @ (Task::Read { .. } | Task::Records { .. })) = &mut slot.task
                && !is_watch
                && context.out.room() >= DATA_ROOM
            {
                let life = pass_on(task, &mut context)?;
                self.leave(number, life);
            }
        }
        Ok(())
    }

    /// Learns which children ended or stopped. Orphans are let go.
    pub fn reap(&mut self) -> Result<(), WireError> {
        while let Some((process, change)) = self.system.changed() {
            let is_of = |slot: &Slot<S::Handle>| match &slot.task {
                Some(Task::Exec(exec)) => exec.is(process),
                _ => false,
            };
            let number = self.slots.iter().position(is_of);
            if let Some(number) = number {
                let (slot, mut context) = self.parts(number);
                let mut life = Life::On;
                if let Some(Task::Exec(exec)) = &mut slot.task {
                    match change {
                        Change::Ended(status) => life = exec.ended(status, &mut context)?,
                        Change::Stopped(signal) => exec.stopped(signal, &mut context)?,
                    }
                }
                self.leave(number, life);
            }
        }
        Ok(())
    }
}

const HANG_UP: i32 = 1;
const CONTINUE: i32 = 18;

/// Writes to a file all that came.
fn write<S: System>(
    file: &S::Handle,
    bytes: &[u8],
    inlet: &mut Inlet,
    context: &mut Context<'_, S>,
) -> Result<Life, WireError> {
    inlet.spend(bytes.len())?;
    let mut left = bytes;
    while !left.is_empty() {
        match context.system.write(file, left) {
            Ok(written) if written > 0 => left = left.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            other => {
                let errno = other.err().map_or(0, |Errno(errno)| errno);
                let reason = "it cannot be written";
                context.say(&Reply::Failed { errno, reason })?;
                return Ok(Life::Over);
            }
        }
    }
    if let Some(bytes) = inlet.took(bytes.len()) {
        context.say(&Reply::Credit { bytes })?;
    }
    Ok(Life::On)
}

/// Passes one piece of a file, a directory or a watch on.
fn pass_on<S: System>(
    task: &mut Task<S::Handle>,
    context: &mut Context<'_, S>,
) -> Result<Life, WireError> {
    let (read, credit) = match task {
        Task::Read { file, credit, left } => {
            let left = usize::try_from(*left).unwrap_or(usize::MAX);
            let most = left.min(CHUNK_BYTES_MAX).min(*credit as usize);
            match (left, most) {
                (0, _) => (Ok(0), credit),
                (_, 0) => return Ok(Life::On),
                _ => (
                    context.system.read(file, &mut context.scratch[..most]),
                    credit,
                ),
            }
        }
        Task::Records {
            of, credit, cookie, ..
        } => {
            let most = CHUNK_BYTES_MAX.min(*credit as usize);
            if most < RECORD_BYTES_MAX {
                return Ok(Life::On);
            }
            let target = &mut context.scratch[..most];
            (context.system.records(of, cookie, target), credit)
        }
        _ => return Ok(Life::On),
    };
    match read {
        Ok(0) => {
            context.say(&Reply::Done)?;
            return Ok(Life::Over);
        }
        Ok(length) => {
            *credit -= length as u32;
            let (stream, bytes) = (Stream::Output, &context.scratch[..length]);
            context
                .out
                .frame(context.id, &Reply::Data { stream, bytes })?;
            if let Task::Read { left, .. } = task {
                *left -= length as u64;
            }
        }
        Err(Errno::AGAIN | Errno::INTR) => {}
        Err(Errno(errno)) => {
            let reason = "it cannot be read";
            context.say(&Reply::Failed { errno, reason })?;
            return Ok(Life::Over);
        }
    }
    Ok(Life::On)
}

#[cfg(test)]
mod tests;
