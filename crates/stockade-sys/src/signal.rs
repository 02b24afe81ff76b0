//! Signals as data: blocked, and read from a descriptor (signalfd(2)).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::check;

/// The signals that a supervisor hands on to the command.
pub const RELAYED: &[i32] = &[
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGIO,
    libc::SIGPWR,
];

pub const CHILD: i32 = libc::SIGCHLD;
pub const CONTINUE: i32 = libc::SIGCONT;
pub const HANG_UP: i32 = libc::SIGHUP;
pub const INTERRUPT: i32 = libc::SIGINT;
pub const TERMINATE: i32 = libc::SIGTERM;
pub const KILL: i32 = libc::SIGKILL;
pub const STOP: i32 = libc::SIGSTOP;
pub const TERMINAL_STOP: i32 = libc::SIGTSTP;
pub const WINDOW_CHANGED: i32 = libc::SIGWINCH;
/// Sent to a background process that sets or writes its terminal.
pub const TERMINAL_OUTPUT: i32 = libc::SIGTTOU;
pub const PIPE: i32 = libc::SIGPIPE;
pub const CPU_TIME: i32 = libc::SIGXCPU;
pub const FILE_SIZE: i32 = libc::SIGXFSZ;

/// One signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    pub number: i32,
    pub sender: Sender,
}

/// Who sent a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The kernel, for the whole foreground group of a terminal.
    Kernel,
    /// A process, by kill(2) or the like.
    Process,
}

/// Signals that are blocked for the process and readable here instead.
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks `numbers` and opens a descriptor that yields them.
    pub fn take_over(numbers: &[i32]) -> io::Result<Self> {
        let set = set_of(numbers);
        // SAFETY: `set` is initialised and outlives both calls; the null old
        // mask is allowed.
        let fd = unsafe {
            check(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()).into())?;
            check(
                libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK).into(),
            )?
        };
        // SAFETY: the kernel made this descriptor for us.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// The next signal, without waiting.
    pub fn next(&self) -> io::Result<Option<Arrived>> {
        let mut record = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer has the size that is passed.
        let read = unsafe { libc::read(self.0.as_raw_fd(), record.as_mut_ptr().cast(), size) };
        if read < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        if read as usize != size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: the kernel filled the whole record.
        let record = unsafe { record.assume_init() };
        let sender = if record.ssi_code == libc::SI_KERNEL {
            Sender::Kernel
        } else {
            Sender::Process
        };
        Ok(Some(Arrived {
            number: record.ssi_signo as i32,
            sender,
        }))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Lets every signal through to this thread as long as it lives, also those
/// that [`Signals`] took over: they have the action that they have without it.
/// A program started meanwhile begins with none blocked. Keys that were typed
/// before have no effect any more; another signal that waited arrives at once.
pub struct LetThrough(libc::sigset_t);

impl LetThrough {
    /// Begins now.
    pub fn begin() -> io::Result<Self> {
        drop_typed();
        let none = set_of(&[]);
        let mut old = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `none` is initialised, and on success the kernel fills `old`.
        unsafe {
            check(libc::sigprocmask(libc::SIG_SETMASK, &raw const none, old.as_mut_ptr()).into())?;
            Ok(Self(old.assume_init()))
        }
    }
}

impl Drop for LetThrough {
    fn drop(&mut self) {
        restore(&self.0);
    }
}

/// Keeps the keys that interrupt from this thread as long as it lives: they are
/// meant for another program on the same terminal. They have no effect later.
pub struct OthersKeys(libc::sigset_t);

impl OthersKeys {
    /// Begins now, for who has just started the other program.
    pub fn begin() -> io::Result<Self> {
        let keys = set_of(&[libc::SIGINT, libc::SIGQUIT]);
        let mut old = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `keys` is initialised, and on success the kernel fills `old`.
        unsafe {
            check(libc::sigprocmask(libc::SIG_BLOCK, &raw const keys, old.as_mut_ptr()).into())?;
            Ok(Self(old.assume_init()))
        }
    }
}

impl Drop for OthersKeys {
    fn drop(&mut self) {
        drop_typed();
        restore(&self.0);
    }
}

/// Drops what waits of the signals that keys send.
fn drop_typed() {
    for number in [libc::SIGINT, libc::SIGQUIT, libc::SIGTSTP] {
        // SAFETY: SIG_IGN is no function of ours, and what was set before is
        // set again. Ignoring a signal drops it where it waits (signal(7)).
        unsafe {
            let before = libc::signal(number, libc::SIG_IGN);
            libc::signal(number, before);
        }
    }
}

fn restore(mask: &libc::sigset_t) {
    // SAFETY: the set is one that the kernel gave; the null old mask is
    // allowed. Such a call does not fail.
    unsafe {
        libc::sigprocmask(
            libc::SIG_SETMASK,
            std::ptr::from_ref(mask),
            std::ptr::null_mut(),
        );
    }
}

/// Blocks every signal that can be blocked.
pub fn block_all() -> io::Result<()> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises the set before it is read.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        check(libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut()).into())?;
    }
    Ok(())
}

/// Default actions for the signals that this product or its language runtime
/// ignores, and none blocked. What the caller ignores (nohup(1)) stays so.
pub fn reset_all() -> io::Result<()> {
    for number in [libc::SIGPIPE, libc::SIGTTOU] {
        // SAFETY: SIG_DFL is no function of ours, so nothing can dangle.
        unsafe { libc::signal(number, libc::SIG_DFL) };
    }
    let set = set_of(&[]);
    // SAFETY: `set` is initialised and the null old mask is allowed.
    let result =
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) };
    check(result.into())?;
    Ok(())
}

/// Ignores a signal (SIGPIPE, SIGTTOU) in this process.
pub fn ignore(number: i32) {
    // SAFETY: SIG_IGN is no function of ours, so nothing can dangle.
    unsafe { libc::signal(number, libc::SIG_IGN) };
}

pub(crate) fn set_of(numbers: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set; `sigaddset` takes a valid
    // one and refuses numbers that are no signals.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for &number in numbers {
            libc::sigaddset(set.as_mut_ptr(), number);
        }
        set.assume_init()
    }
}

/// Stops the caller's process group as the terminal's stop key would, and
/// returns when it is continued. In an orphaned group, which nobody could
/// continue, the kernel ignores the signal (setpgid(2)).
pub fn stop_own_group() -> io::Result<()> {
    let stop = set_of(&[libc::SIGTSTP]);
    let mut old = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the sets are initialised before they are read; SIG_DFL is no
    // function of ours. While the signal is let through it has its default
    // action, so nothing of ours runs in a handler.
    unsafe {
        libc::signal(libc::SIGTSTP, libc::SIG_DFL);
        check(libc::kill(0, libc::SIGTSTP).into())?;
        check(libc::sigprocmask(libc::SIG_UNBLOCK, &raw const stop, old.as_mut_ptr()).into())?;
        check(libc::sigprocmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut()).into())?;
    }
    Ok(())
}
