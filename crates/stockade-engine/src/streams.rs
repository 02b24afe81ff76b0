//! The standard streams of a run: pipes and a terminal of its own, never the
//! caller's descriptors.
//!
//! A descriptor of the caller's could be opened again inside with more rights,
//! or typed into. Relaying costs little, since splice(2) and tee(2) move pages
//! and not bytes. What the command does not read from standard input is left
//! there for whoever reads next, as it would be outside: from a pipe only what
//! was consumed inside is taken, and the offset of a file is put back.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, OFlags, SeekFrom, fcntl_getfl, fcntl_setfl, fstat, seek};
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd, read, write};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice, tee};
use stockade_sys::process::same_description;
use stockade_sys::rustix;
use stockade_walls::process::ChildStream;

/// Most bytes that move in one call, and the size of a relay's buffer.
const CHUNK_BYTES: usize = 64 * 1024;
/// Capacity of the pipes that carry output.
const PIPE_BYTES: usize = 256 * 1024;
/// Numbers at which the child's ends are kept, clear of the standard ones.
const FIRST_NUMBER: i32 = 10;

/// The streams of one run, before it starts.
pub struct Prepared {
    child: [ChildStream; 3],
    pub input: Option<Input>,
    pub outputs: Vec<Output>,
    /// The caller's terminal, when one of the streams is one.
    pub terminal: Option<CallerTerminal>,
}

impl Prepared {
    /// The child's ends, which close in this process when they are dropped.
    pub fn take_child(&mut self) -> [ChildStream; 3] {
        std::mem::replace(&mut self.child, [const { ChildStream::Null }; 3])
    }
}

/// Which of the caller's descriptors is a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerTerminal {
    /// Standard input is the terminal: keys are relayed.
    pub reads: bool,
    /// Where output of the private terminal goes.
    pub output: StandardStream,
}

/// One of the caller's standard descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandardStream {
    Input,
    Output,
    Error,
}

impl StandardStream {
    const ALL: [Self; 3] = [Self::Input, Self::Output, Self::Error];

    /// The descriptor, which the runtime keeps open for the process's life.
    pub fn descriptor(self) -> BorrowedFd<'static> {
        match self {
            Self::Input => rustix::stdio::stdin(),
            Self::Output => rustix::stdio::stdout(),
            Self::Error => rustix::stdio::stderr(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Null,
    Terminal,
    Pipe,
    File,
    Other,
}

/// Looks at the caller's descriptors and makes the child's.
pub fn prepare() -> io::Result<Prepared> {
    let mut kinds = [Kind::Null; 3];
    for (kind, stream) in kinds.iter_mut().zip(StandardStream::ALL) {
        *kind = classify(stream.descriptor())?;
    }
    let terminal = [
        StandardStream::Output,
        StandardStream::Error,
        StandardStream::Input,
    ]
    .into_iter()
    .find(|&stream| kinds[stream as usize] == Kind::Terminal)
    .map(|output| CallerTerminal {
        reads: kinds[0] == Kind::Terminal,
        output,
    });
    let mut prepared = Prepared {
        child: [ChildStream::Null, ChildStream::Null, ChildStream::Null],
        input: None,
        outputs: Vec::new(),
        terminal,
    };
    prepared.child[0] = match kinds[0] {
        Kind::Null => ChildStream::Null,
        Kind::Terminal => ChildStream::Terminal,
        kind => {
            let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
            never_wait(&ours)?;
            prepared.input = Some(Input::new(ours, kind)?);
            descriptor(theirs)?
        }
    };
    let shared = kinds[1] != Kind::Terminal
        && kinds[1] == kinds[2]
        && same_description(
            StandardStream::Output.descriptor(),
            StandardStream::Error.descriptor(),
        ) == Some(true);
    for stream in [StandardStream::Output, StandardStream::Error] {
        prepared.child[stream as usize] = match kinds[stream as usize] {
            Kind::Null => ChildStream::Null,
            Kind::Terminal => ChildStream::Terminal,
            // `2>&1` outside: one pipe keeps the order of what is written.
            _ if shared && stream == StandardStream::Error => match &prepared.child[1] {
                ChildStream::Descriptor(output) => ChildStream::Descriptor(Arc::clone(output)),
                _ => ChildStream::Null,
            },
            _ => {
                let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
                never_wait(&ours)?;
                let keep = match stream == StandardStream::Error || shared {
                    true => Keep::LastWords,
                    false => Keep::Nothing,
                };
                prepared.outputs.push(Output::new(ours, stream, keep));
                descriptor(theirs)?
            }
        };
    }
    Ok(prepared)
}

/// No streams at all: /dev/null inside, and nothing to relay.
pub fn none() -> Prepared {
    Prepared {
        child: [const { ChildStream::Null }; 3],
        input: None,
        outputs: Vec::new(),
        terminal: None,
    }
}

/// A pipe for what is said by a program that is not the command; what is said is
/// read without waiting.
pub(crate) fn words() -> io::Result<(OwnedFd, ChildStream)> {
    let (words, said) = pipe_with(PipeFlags::CLOEXEC)?;
    never_wait(&words)?;
    Ok((words, ChildStream::Descriptor(std::sync::Arc::new(said))))
}

/// Whether one of the caller's streams is closed or /dev/null.
pub(crate) fn leads_nowhere(stream: StandardStream) -> io::Result<bool> {
    Ok(classify(stream.descriptor())? == Kind::Null)
}

/// The command can open the other end of its pipes through /proc, and empty or
/// fill them between poll(2) and what follows. Waiting there would keep the
/// supervisor from its limits and signals.
fn never_wait(ours: &OwnedFd) -> io::Result<()> {
    Ok(fcntl_setfl(ours, fcntl_getfl(ours)? | OFlags::NONBLOCK)?)
}

/// Moves a descriptor out of the way of the standard numbers.
fn descriptor(fd: OwnedFd) -> io::Result<ChildStream> {
    let moved = fcntl_dupfd_cloexec(&fd, FIRST_NUMBER)?;
    fcntl_setfd(&moved, FdFlags::CLOEXEC)?;
    Ok(ChildStream::Descriptor(Arc::new(moved)))
}

fn classify(fd: BorrowedFd<'_>) -> io::Result<Kind> {
    let stat = match fstat(fd) {
        Ok(stat) => stat,
        // Closed: inside it is /dev/null, so that nothing else takes its number.
        Err(Errno::BADF) => return Ok(Kind::Null),
        Err(error) => return Err(error.into()),
    };
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Fifo => Kind::Pipe,
        FileType::RegularFile => Kind::File,
        FileType::CharacterDevice => {
            let null = rustix::fs::makedev(1, 3);
            if stat.st_rdev == null {
                Kind::Null
            } else if rustix::termios::isatty(fd) {
                Kind::Terminal
            } else {
                Kind::Other
            }
        }
        _ => Kind::Other,
    })
}

/// What a relay waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Readable,
    Writable,
}

/// Standard input on its way in.
pub struct Input {
    /// Our end of the pipe; `None` once the command has seen the end.
    pipe: Option<OwnedFd>,
    kind: Kind,
    /// The pipe has room: the next thing to wait for is input.
    room: bool,
    /// Bytes that were duplicated into the pipe and not yet taken from the
    /// caller's.
    duplicated: usize,
    /// Bytes of a file that were moved into the pipe.
    given: u64,
    /// Bytes that were read from the caller's and not yet written.
    pending: Vec<u8>,
    /// After the end of a file: the other end of the pipe, to see at the end
    /// of the run what was left in it.
    remainder: Option<OwnedFd>,
}

impl Input {
    fn new(pipe: OwnedFd, kind: Kind) -> io::Result<Self> {
        if kind == Kind::Pipe {
            // With room for one buffer the pipe is writable exactly when it is
            // empty, which tells how much the command has consumed.
            fcntl_setpipe_size(&pipe, rustix::param::page_size())?;
        }
        Ok(Self {
            pipe: Some(pipe),
            kind,
            room: false,
            duplicated: 0,
            given: 0,
            pending: Vec::new(),
            remainder: None,
        })
    }

    /// The descriptor to poll and for what; `None` when input is over.
    pub fn waits_for(&self) -> Option<(BorrowedFd<'_>, Wait)> {
        let pipe = self.pipe.as_ref()?;
        Some(if self.room {
            (StandardStream::Input.descriptor(), Wait::Readable)
        } else {
            (pipe.as_fd(), Wait::Writable)
        })
    }

    /// What was waited for is there.
    pub fn advance(&mut self) -> io::Result<()> {
        let Some(pipe) = self.pipe.take() else {
            return Ok(());
        };
        let outer = StandardStream::Input.descriptor();
        if !self.room {
            // Room, or the command closed its end: only a write could tell,
            // and the transfer below does.
            discard(outer, std::mem::take(&mut self.duplicated))?;
            if self.pending.is_empty() {
                self.room = true;
                self.pipe = Some(pipe);
                return Ok(());
            }
        }
        let moved = match self.kind {
            Kind::Pipe => tee(outer, &pipe, CHUNK_BYTES, SpliceFlags::NONBLOCK),
            Kind::File => splice(outer, None, &pipe, None, CHUNK_BYTES, SpliceFlags::NONBLOCK),
            _ => transfer(outer, pipe.as_fd(), &mut self.pending),
        };
        match moved {
            // The end: our pipe closes, and so the command sees it.
            Ok(0) => {
                if self.kind == Kind::File {
                    self.remainder = Some(other_end(&pipe)?);
                }
            }
            Ok(length) => {
                self.room = false;
                match self.kind {
                    Kind::Pipe => self.duplicated = length,
                    _ => self.given += length as u64,
                }
                self.pipe = Some(pipe);
            }
            // Nothing to read, or the pipe was filled from inside: to wait
            // for input alone would spin.
            Err(Errno::AGAIN | Errno::INTR) => {
                self.room = false;
                self.pipe = Some(pipe);
            }
            // The command closed its end: nobody will read the rest.
            Err(Errno::PIPE) => self.settle(&pipe)?,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The command closed its end, or is over.
    pub fn abandon(&mut self) -> io::Result<()> {
        match self.pipe.take().or_else(|| self.remainder.take()) {
            Some(pipe) => self.settle(&pipe),
            None => Ok(()),
        }
    }

    /// Leaves to the caller what the command did not consume.
    fn settle(&mut self, pipe: &OwnedFd) -> io::Result<()> {
        let unread = rustix::io::ioctl_fionread(pipe)? as usize;
        let outer = StandardStream::Input.descriptor();
        match self.kind {
            Kind::Pipe => {
                let consumed = std::mem::take(&mut self.duplicated).saturating_sub(unread);
                discard(outer, consumed)
            }
            Kind::File if unread > 0 => {
                // The command can open the pipe through /proc and fill it up:
                // what is put back is never more than what was taken.
                let back = self.given.min(unread as u64);
                seek(outer, SeekFrom::Current(-(back as i64)))?;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// A reading end of the pipe that `writer` writes to.
fn other_end(writer: &OwnedFd) -> io::Result<OwnedFd> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

/// Takes `length` bytes from a pipe that holds as many, unless another reader
/// outside took them first.
fn discard(fd: BorrowedFd<'_>, length: usize) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    let mut length = length.min(rustix::io::ioctl_fionread(fd)? as usize);
    let mut buffer = [0u8; 4096];
    while length > 0 {
        let most = buffer.len().min(length);
        match read(fd, &mut buffer[..most]) {
            Ok(0) => return Ok(()),
            Ok(taken) => length -= taken,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes what is pending, after one read if nothing is; for sources that
/// splice(2) cannot take. `Ok(0)` at the end of input.
fn transfer(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    pending: &mut Vec<u8>,
) -> rustix::io::Result<usize> {
    if pending.is_empty() {
        let mut buffer = [0u8; 4096];
        let length = read(from, &mut buffer)?;
        if length == 0 {
            return Ok(0);
        }
        pending.extend_from_slice(&buffer[..length]);
    }
    let written = write(to, pending)?;
    pending.drain(..written);
    Ok(written)
}

/// Standard output or error on its way out.
pub struct Output {
    /// Our end of the pipe; `None` when it is over.
    pipe: Option<OwnedFd>,
    to: StandardStream,
    /// There is something to move: the next thing to wait for is room.
    filled: bool,
    /// The pipe has its full capacity, which few commands need.
    widened: bool,
    /// The destination does not take splice(2) (a terminal, O_APPEND).
    by_copy: bool,
    /// Copied and not yet written.
    pending: Vec<u8>,
    /// Most bytes that are still to come, once the command is over.
    rest: Option<usize>,
    /// The last that went by, where errors are written.
    last_words: Option<Vec<u8>>,
}

/// How much of a command's errors is kept to explain a failure.
const LAST_WORDS_BYTES: usize = 4096;

/// Appends to what is kept, and forgets what is too old.
pub(crate) fn remember(last_words: &mut Vec<u8>, bytes: &[u8]) {
    last_words.extend_from_slice(bytes);
    let excess = last_words.len().saturating_sub(LAST_WORDS_BYTES);
    last_words.drain(..excess);
}

/// Whether the end of what goes by is kept; then it is copied, not spliced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    Nothing,
    LastWords,
}

impl Output {
    /// The last that was written here, if it was kept.
    pub fn last_words(&self) -> &[u8] {
        self.last_words.as_deref().unwrap_or_default()
    }

    fn new(pipe: OwnedFd, to: StandardStream, keep: Keep) -> Self {
        Self {
            pipe: Some(pipe),
            to,
            filled: false,
            widened: false,
            by_copy: keep == Keep::LastWords,
            pending: Vec::new(),
            rest: None,
            last_words: (keep == Keep::LastWords).then(Vec::new),
        }
    }

    /// Every process inside is gone: only what is in the pipe now is still to
    /// come. Its end may never come, because a command can pass the pipe to
    /// another run over a socket in the project.
    pub fn finish(&mut self) -> io::Result<()> {
        if let Some(pipe) = &self.pipe
            && self.pending.is_empty()
        {
            let left = rustix::io::ioctl_fionread(pipe)? as usize;
            let rest = self.rest.unwrap_or(left).min(left);
            self.rest = Some(rest);
            if rest == 0 {
                self.pipe = None;
            }
        }
        Ok(())
    }

    /// The descriptor to poll and for what; `None` when output is over.
    pub fn waits_for(&self) -> Option<(BorrowedFd<'_>, Wait)> {
        let pipe = self.pipe.as_ref()?;
        Some(if self.filled {
            (self.to.descriptor(), Wait::Writable)
        } else {
            (pipe.as_fd(), Wait::Readable)
        })
    }

    /// What was waited for is there.
    pub fn advance(&mut self) -> io::Result<()> {
        let Some(pipe) = self.pipe.take() else {
            return Ok(());
        };
        if !self.filled {
            if !std::mem::replace(&mut self.widened, true) {
                // Unprivileged users have a total budget for pipes; the
                // default capacity does as well, only slower.
                let _capacity = fcntl_setpipe_size(&pipe, PIPE_BYTES).is_ok();
            }
            self.filled = true;
            self.pipe = Some(pipe);
            return Ok(());
        }
        match self.move_some(&pipe) {
            Ok(0) => {}
            Ok(_) => {
                self.filled = !self.pending.is_empty();
                self.pipe = Some(pipe);
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                self.filled = !self.pending.is_empty();
                self.pipe = Some(pipe);
            }
            // The reader outside is gone: ours goes too, and the command gets
            // the SIGPIPE that it would have had outside.
            Err(Errno::PIPE) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Moves what fits; `Ok(0)` at the end.
    fn move_some(&mut self, pipe: &OwnedFd) -> rustix::io::Result<usize> {
        let to = self.to.descriptor();
        let most = self.rest.unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        if !self.by_copy {
            let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
            match splice(pipe, None, to, None, most, flags) {
                Err(Errno::INVAL | Errno::NOSYS | Errno::BADF) => self.by_copy = true,
                other => {
                    self.count(*other.as_ref().unwrap_or(&0));
                    return other;
                }
            }
        }
        if self.pending.is_empty() {
            self.pending.resize(most, 0);
            let length = read(pipe, &mut self.pending[..]);
            self.pending.truncate(*length.as_ref().unwrap_or(&0));
            self.count(self.pending.len());
            if length? == 0 {
                return Ok(0);
            }
            if let Some(last_words) = &mut self.last_words {
                remember(last_words, &self.pending);
            }
        }
        // A pipe that polls writable takes PIPE_BUF bytes without blocking.
        let most = self.pending.len().min(4096);
        let written = write(to, &self.pending[..most])?;
        self.pending.drain(..written);
        Ok(written.max(1))
    }

    /// So many bytes have left the pipe.
    fn count(&mut self, bytes: usize) {
        if let Some(rest) = &mut self.rest {
            *rest = rest.saturating_sub(bytes);
        }
    }
}
