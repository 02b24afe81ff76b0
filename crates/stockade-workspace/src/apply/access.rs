//! Reaching files of the caller's own that their mode closes to the caller.
//!
//! A command inside may take the rights of a directory away, and so may the
//! user. What is the caller's own is opened up for as long as it takes; the
//! steps at the end give every directory the mode that it should have.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::tree;

/// Opens the directory at a path below `root`.
pub(crate) fn directory(root: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    match tree::open_directory(root, path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        other => return other,
    }
    let mut directory = open_directory(root, b".")?;
    for name in path
        .split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty())
    {
        directory = open_directory(directory.as_fd(), name)?;
        writable(directory.as_fd())?;
    }
    Ok(directory)
}

/// A directory, and what was opened up to reach it. Closed again when dropped.
#[derive(Debug)]
pub(crate) struct Visit {
    pub handle: OwnedFd,
    /// Directories with the modes that they had, the nearest last.
    closed: Vec<(OwnedFd, u32)>,
}

impl Visit {
    /// The mode that the directory has when nobody visits it, if another.
    pub(crate) fn closed_mode(&self) -> Option<u32> {
        let (last, mode) = self.closed.last()?;
        let of = |handle: &OwnedFd| rustix::fs::fstat(handle).map(|status| status.st_ino).ok();
        (of(last) == of(&self.handle)).then_some(*mode)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        for (directory, mode) in self.closed.drain(..).rev() {
            // Whoever removed it meanwhile wants no mode either.
            let _gone = super::copy::mode(directory.as_fd(), mode).is_err();
        }
    }
}

/// Opens the directory at a path for as long as the value lives.
pub(crate) fn visit(root: BorrowedFd<'_>, path: &[u8]) -> io::Result<Visit> {
    let mut closed = Vec::new();
    match tree::open_directory(root, path) {
        // One that can be listed may still not be entered.
        Ok(handle) if rustix::fs::fstat(&handle)?.st_mode & 0o500 == 0o500 => {
            return Ok(Visit { handle, closed });
        }
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
        Ok(_) | Err(_) => {}
    }
    let mut visit = Visit {
        handle: tree::open_directory(root, b"")?,
        closed: Vec::new(),
    };
    for name in path
        .split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty())
    {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let next = tree::open_beneath(visit.handle.as_fd(), name, flags)?;
        let mode = add_rights(next.as_fd(), 0o500)?;
        if mode & 0o500 != 0o500 {
            closed.push((next.try_clone()?, mode));
        }
        visit.closed.append(&mut closed);
        visit.handle = tree::open_directory(next.as_fd(), b"")?;
    }
    Ok(visit)
}

/// Opens a directory in `directory`.
pub(crate) fn open_directory(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    match tree::open_directory(directory, name) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        other => return other,
    }
    let handle = tree::open_beneath(directory, name, OFlags::PATH | OFlags::DIRECTORY)?;
    add_rights(handle.as_fd(), 0o700)?;
    tree::open_directory(directory, name)
}

/// Opens a regular file in `directory` for reading, and leaves its mode as it
/// was.
pub(crate) fn open_file(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<File> {
    match tree::open_file(directory, name) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        other => return other,
    }
    let handle = tree::open_beneath(directory, name, OFlags::PATH)?;
    let mode = add_rights(handle.as_fd(), 0o400)?;
    let opened = tree::open_file(directory, name);
    super::copy::mode(handle.as_fd(), mode)?;
    opened
}

/// Makes sure that names can be made and removed in a directory, and that it
/// can be moved.
pub(crate) fn writable(directory: BorrowedFd<'_>) -> io::Result<()> {
    add_rights(directory, 0o700).map(drop)
}

/// Gives the owner rights to what is the caller's own. Returns the mode that
/// it had.
pub(crate) fn add_rights(handle: BorrowedFd<'_>, rights: u32) -> io::Result<u32> {
    let status = rustix::fs::fstat(handle)?;
    let mode = status.st_mode & 0o7777;
    let caller = rustix::process::geteuid();
    if mode & rights == rights || caller.is_root() || caller.as_raw() != status.st_uid {
        return Ok(mode);
    }
    let path = tree::by_descriptor(handle);
    match rustix::fs::chmod(path.as_str(), Mode::from_raw_mode(mode | rights)) {
        Ok(()) | Err(Errno::NOENT) => Ok(mode),
        Err(error) => Err(error.into()),
    }
}
