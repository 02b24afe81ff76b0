//! What a session asks of the kernel. The program has the real one; tests and
//! the fuzzer have one that says whatever is hardest.

#[cfg(any(test, fuzzing))]
pub mod chance;

use crate::wire::{ExecSpec, FileRequest, Met, Size, Status};

/// An error number of the kernel (errno(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    pub const INTR: Self = Self(4);
    pub const AGAIN: Self = Self(11);
    pub const NOMEM: Self = Self(12);
    pub const INVAL: Self = Self(22);
    pub const PERM: Self = Self(1);
}

/// A started command. Descriptors never block.
#[derive(Debug)]
pub struct Started<H> {
    pub process: u32,
    /// Ends without a byte when the program was executed; else eight bytes
    /// tell why not: an error number and what failed (a [`Stage`]).
    pub status: H,
    pub input: Option<H>,
    /// A terminal is one handle, which is here.
    pub output: H,
    pub error: Option<H>,
}

/// What failed in a process before it was the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Streams,
    Directory,
    User,
    Execute,
    /// Limits and the rules of system calls, in a machine.
    Confine,
}

impl Stage {
    /// From the number in a status; anything else is [`Stage::Execute`].
    pub fn of(number: i32) -> Self {
        match number {
            0 => Self::Streams,
            1 => Self::Directory,
            2 => Self::User,
            4 => Self::Confine,
            _ => Self::Execute,
        }
    }

    /// What a refusal says.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Streams => "streams or terminal cannot be set up",
            Self::Directory => "the directory cannot be entered",
            Self::User => "the user cannot be changed",
            Self::Execute => "the command cannot be executed",
            Self::Confine => "the command cannot be confined",
        }
    }
}

/// What became of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Ended(Status),
    Stopped(i32),
}

/// The kernel, as far as a session needs it. Nothing here waits, except for
/// regular files.
pub trait System {
    /// An open descriptor, closed when it is dropped.
    type Handle;

    /// Starts a command in a session of its own.
    fn start(&mut self, spec: &ExecSpec<'_>) -> Result<Started<Self::Handle>, Errno>;
    fn read(&mut self, from: &Self::Handle, buffer: &mut [u8]) -> Result<usize, Errno>;
    fn write(&mut self, to: &Self::Handle, bytes: &[u8]) -> Result<usize, Errno>;
    /// How many bytes can be read now; `None` where nobody can tell.
    fn waiting(&mut self, handle: &Self::Handle) -> Option<usize>;
    fn resize(&mut self, terminal: &Self::Handle, size: Size) -> Result<(), Errno>;
    /// A process that is gone needs no signal.
    fn signal(&mut self, process: u32, number: i32, group: bool);
    /// The next child that changed; the kernel has then forgotten one that
    /// ended.
    fn changed(&mut self) -> Option<(u32, Change)>;
    /// Opens what a file request names.
    fn open(&mut self, request: &FileRequest<'_>) -> Result<Self::Handle, Errno>;
    /// Makes or describes what a file request names.
    fn make(&mut self, request: &FileRequest<'_>) -> Result<(), Errno>;
    /// Whole records of a directory or a watch, as many as `buffer` holds; 0
    /// at the end of a directory. `cookie` says where to go on, 0 at first.
    fn records(
        &mut self,
        of: &Self::Handle,
        cookie: &mut u64,
        buffer: &mut [u8],
    ) -> Result<usize, Errno>;
    fn set_clock(&mut self, seconds: i64, nanoseconds: u32) -> Result<(), Errno>;
    /// Which limits were met since this was asked before.
    fn met(&mut self) -> Met;
}
