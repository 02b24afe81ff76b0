//! Terminals: what rustix lacks to hand one to a child (ioctl_tty(2)).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::check;

/// Opens the slave side of a pseudo-terminal by its master, so that no path
/// is looked up (TIOCGPTPEER).
pub fn open_peer(master: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: takes integers.
    let fd = check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) }.into())?;
    // SAFETY: the kernel made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Makes the process group `group` the foreground one of the terminal.
pub fn set_foreground(terminal: BorrowedFd<'_>, group: u32) -> io::Result<()> {
    // SAFETY: takes integers.
    check(unsafe { libc::tcsetpgrp(terminal.as_raw_fd(), group as libc::pid_t) }.into())?;
    Ok(())
}
