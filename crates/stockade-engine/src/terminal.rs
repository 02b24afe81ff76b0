//! The caller's terminal while a command has a private one.
//!
//! The caller's is put into raw mode, so that keys reach the private
//! terminal's own line discipline, and back whatever happens: on every way out
//! by `Drop`, and when this process is killed by a guard process that outlives
//! it for a moment.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::getpgrp;
use rustix::termios::{
    OptionalActions, OutputModes, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
    tcsetwinsize,
};
use stockade_sys::rustix;
use stockade_sys::{process, signal};

use crate::streams::{CallerTerminal, StandardStream, Wait, remember};

/// Both terminals of an interactive run.
pub struct Terminals {
    caller: CallerTerminal,
    master: OwnedFd,
    keys: Keys,
    /// Something of this process reads the caller's terminal meanwhile.
    lent: bool,
    to_master: Direction,
    to_caller: Direction,
    /// The last that was shown, to explain a failure.
    last_words: Vec<u8>,
    /// Most bytes that are still shown, once the command is over.
    rest: Option<usize>,
}

/// More than a pseudo-terminal buffers (tty_buffer.c: 64 KiB).
const REST_BYTES: usize = 128 * 1024;

/// Bytes on their way in one direction.
#[derive(Default)]
struct Direction {
    pending: Vec<u8>,
    over: bool,
}

impl Terminals {
    /// Copies modes and size to the private terminal and takes the caller's.
    pub fn connect(caller: CallerTerminal, master: OwnedFd) -> io::Result<Self> {
        let terminal = caller.output.descriptor();
        let mut modes = tcgetattr(terminal)?;
        let saved = modes.clone();
        if !caller.reads {
            // Output only: what the private terminal would translate, the
            // caller's translates already.
            modes.output_modes.remove(OutputModes::OPOST);
        }
        tcsetattr(&master, OptionalActions::Now, &modes)?;
        fcntl_setfl(&master, fcntl_getfl(&master)? | OFlags::NONBLOCK)?;
        let mut terminals = Self {
            caller,
            master,
            keys: Keys::new(saved),
            lent: false,
            to_master: Direction {
                pending: Vec::new(),
                over: !caller.reads,
            },
            to_caller: Direction::default(),
            last_words: Vec::new(),
            rest: None,
        };
        terminals.resize();
        terminals.take()?;
        Ok(terminals)
    }

    /// Takes over the window size. A size that cannot be read is left alone.
    pub fn resize(&self) {
        if let Ok(size) = tcgetwinsize(self.caller.output.descriptor()) {
            let _unsupported = tcsetwinsize(&self.master, size).is_err();
        }
    }

    /// Puts the caller's modes back, for a question of this process.
    pub fn lend(&mut self) {
        self.give_back();
        self.lent = true;
    }

    /// The question is over.
    pub fn take_again(&mut self) -> io::Result<()> {
        match std::mem::take(&mut self.lent) {
            true => self.take(),
            false => Ok(()),
        }
    }

    /// Raw mode, if keys are relayed and this job is in the foreground.
    pub fn take(&mut self) -> io::Result<()> {
        match self.lent || !self.caller.reads {
            true => Ok(()),
            false => self.keys.take(),
        }
    }

    /// Puts the caller's modes back.
    pub fn give_back(&mut self) {
        self.keys.give_back();
    }

    /// What to poll; at most one descriptor a direction.
    pub fn waits_for(&self) -> [Option<(BorrowedFd<'_>, Wait)>; 2] {
        let keys = if self.to_master.over || !self.keys.are_taken() {
            None
        } else if self.to_master.pending.is_empty() {
            Some((StandardStream::Input.descriptor(), Wait::Readable))
        } else {
            Some((self.master.as_fd(), Wait::Writable))
        };
        let screen = if self.to_caller.over {
            None
        } else if self.to_caller.pending.is_empty() {
            Some((self.master.as_fd(), Wait::Readable))
        } else {
            Some((self.caller.output.descriptor(), Wait::Writable))
        };
        [keys, screen]
    }

    /// Moves keys inwards; what was waited for is there.
    pub fn advance_keys(&mut self) -> io::Result<()> {
        let from = StandardStream::Input.descriptor();
        move_bytes(from, self.master.as_fd(), &mut self.to_master)
    }

    /// Moves output outwards; what was waited for is there.
    pub fn advance_screen(&mut self) -> io::Result<()> {
        let to = self.caller.output.descriptor();
        let was_empty = self.to_caller.pending.is_empty();
        move_bytes(self.master.as_fd(), to, &mut self.to_caller)?;
        if was_empty {
            remember(&mut self.last_words, &self.to_caller.pending);
            if let Some(rest) = &mut self.rest {
                *rest = rest.saturating_sub(self.to_caller.pending.len());
            }
        }
        if self.rest == Some(0) && self.to_caller.pending.is_empty() {
            self.to_caller.over = true;
        }
        Ok(())
    }

    /// Every process inside is gone: little is still to come. The end may never
    /// come, because a command can pass its terminal to another run.
    pub fn finish(&mut self) {
        self.rest.get_or_insert(REST_BYTES);
    }

    /// Nothing more came: what could be shown has been.
    pub fn give_up(&mut self) {
        if self.to_caller.pending.is_empty() {
            self.to_caller.over = true;
        }
    }

    /// The last that the command showed.
    pub fn last_words(&self) -> &[u8] {
        &self.last_words
    }

    /// Whether everything that was written inside has been shown.
    pub fn drained(&self) -> bool {
        self.to_caller.over
    }
}

/// The keys of the caller's terminal, which is standard input: while they are
/// taken it is in raw mode, and its modes come back whatever happens.
pub(crate) struct Keys {
    saved: Termios,
    /// The terminal is in raw mode now.
    raw: bool,
    guard: Option<Guard>,
}

impl Keys {
    /// Reads the modes that come back.
    pub(crate) fn of(terminal: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self::new(tcgetattr(terminal)?))
    }

    fn new(saved: Termios) -> Self {
        // Setting modes from a background job must not stop this process.
        signal::ignore(signal::TERMINAL_OUTPUT);
        Self {
            saved,
            raw: false,
            guard: None,
        }
    }

    pub(crate) fn are_taken(&self) -> bool {
        self.raw
    }

    /// Raw mode, if this job is in the foreground.
    pub(crate) fn take(&mut self) -> io::Result<()> {
        if self.raw || !in_foreground() {
            return Ok(());
        }
        if self.guard.is_none() {
            self.guard = Some(Guard::start(&self.saved)?);
        }
        let mut raw = self.saved.clone();
        raw.make_raw();
        tcsetattr(
            StandardStream::Input.descriptor(),
            OptionalActions::Now,
            &raw,
        )?;
        self.raw = true;
        Ok(())
    }

    /// Puts the modes back.
    pub(crate) fn give_back(&mut self) {
        if std::mem::take(&mut self.raw) {
            let terminal = StandardStream::Input.descriptor();
            // A terminal that is gone needs no modes.
            let _gone = tcsetattr(terminal, OptionalActions::Drain, &self.saved).is_err();
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.give_back();
    }
}

fn in_foreground() -> bool {
    tcgetpgrp(StandardStream::Input.descriptor()).is_ok_and(|group| group == getpgrp())
}

fn move_bytes(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    direction: &mut Direction,
) -> io::Result<()> {
    if direction.pending.is_empty() {
        direction.pending.resize(16 * 1024, 0);
        let length = read(from, &mut direction.pending[..]);
        direction.pending.truncate(*length.as_ref().unwrap_or(&0));
        match length {
            // EIO is how a pseudo-terminal says that its other side is closed.
            Ok(0) | Err(Errno::IO) => direction.over = true,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        return Ok(());
    }
    let most = direction.pending.len().min(4096);
    match write(to, &direction.pending[..most]) {
        Ok(written) => {
            direction.pending.drain(..written);
        }
        Err(Errno::AGAIN | Errno::INTR) => {}
        Err(Errno::IO | Errno::PIPE) => direction.over = true,
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// A process that only waits for this one to end and then puts the terminal's
/// modes back, so that even SIGKILL leaves it usable.
struct Guard {
    /// Closed by our end, however it comes.
    _alive: OwnedFd,
}

impl Guard {
    fn start(saved: &Termios) -> io::Result<Self> {
        let (watched, alive) = pipe_with(PipeFlags::CLOEXEC)?;
        if process::fork()?.is_none() {
            drop(alive);
            guard(&watched, saved);
        }
        Ok(Self { _alive: alive })
    }
}

fn guard(watched: &OwnedFd, saved: &Termios) -> ! {
    // Signals of the job are not for the guard, nor are its descriptors: a
    // copy of the control socket would hide the supervisor's end.
    let ready =
        signal::block_all().and_then(|()| process::close_descriptors_but(&[], watched.as_fd()));
    let mut byte = [0u8; 1];
    while ready.is_ok() && matches!(read(watched, &mut byte), Err(Errno::INTR)) {}
    let terminal = StandardStream::Input.descriptor();
    let restored = tcsetattr(terminal, OptionalActions::Now, saved).is_ok();
    process::exit_now(i32::from(!restored))
}
