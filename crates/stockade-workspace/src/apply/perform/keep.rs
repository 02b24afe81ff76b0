//! The preimages: a layer that over the new tree shows the old one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FileType, Mode, RenameFlags, XattrFlags};
use rustix::io::Errno;

use super::super::plan::Keep;
use super::super::{access, copy};
use super::{Placed, TEMPORARY_PREFIX, Worker, identity, settle};
use crate::tree::{self, Entry, FileKind, Found};

/// Marks a directory of the preimages as all that there was.
const OPAQUE: (&str, &[u8]) = ("user.overlay.opaque", b"y");
/// Marks a directory that has more below it, as one that was copied up.
const MERGES: (&str, &[u8]) = ("user.overlay.origin", b"");
impl Worker<'_> {
    pub(super) fn make_kept(&self, path: &[u8]) -> io::Result<()> {
        if path.is_empty() {
            return Ok(());
        }
        let parent = copy::parent(self.request.preimages, path)?;
        let name = tree::split(path).1;
        match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let kept = access::open_directory(parent.as_fd(), name)?;
        Ok(rustix::fs::fsetxattr(
            &kept,
            MERGES.0,
            MERGES.1,
            XattrFlags::empty(),
        )?)
    }

    /// Keeps what was there, which now has the name `name` in `directory`, or
    /// that nothing was there.
    pub(super) fn remember(
        &self,
        placed: &Placed<'_>,
        directory: BorrowedFd<'_>,
        name: &[u8],
    ) -> io::Result<()> {
        if let Some(old) = placed.old {
            if identity(directory, name)? == Some(old) {
                self.keep_old(directory, name, placed.path, placed.keep)?;
            }
            return self.mark_kept(placed.path);
        }
        match placed.keep {
            Keep::Absent => self.keep_absent(placed.path),
            Keep::Old | Keep::Nothing => Ok(()),
        }
    }

    pub(super) fn keep_old(
        &self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
        keep: Keep,
    ) -> io::Result<()> {
        if keep != Keep::Old {
            return copy::remove(directory, name);
        }
        let parent = copy::parent(self.request.preimages, path)?;
        let to = tree::split(path).1;
        let mode = self.open_up(directory, name)?;
        match rustix::fs::renameat_with(directory, name, &parent, to, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            // Another file system: a copy first, so that there is always one.
            Err(Errno::XDEV) => {
                if identity(parent.as_fd(), to)?.is_none() {
                    let temporary = [TEMPORARY_PREFIX.as_bytes(), b"keeping"].concat();
                    copy::remove(parent.as_fd(), &temporary)?;
                    copy::tree(directory, name, parent.as_fd(), &temporary)?;
                    self.tick();
                    rustix::fs::renameat(&parent, &temporary[..], &parent, to)?;
                }
                self.tick();
                copy::remove(directory, name)?;
            }
            Err(error) => return Err(error.into()),
        }
        if let Some(mode) = mode {
            let moved = access::open_directory(parent.as_fd(), to)?;
            copy::mode(moved.as_fd(), mode)?;
        }
        Ok(())
    }

    /// A directory can only be moved by who may write to it. Returns the mode
    /// that it had, when it had to be changed.
    fn open_up(&self, directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<u32>> {
        match Found::at(directory, name)? {
            Some(found) if found.entry.kind == FileKind::Directory => {
                let handle = access::open_directory(directory, name)?;
                access::writable(handle.as_fd())?;
                Ok(Some(found.entry.mode))
            }
            _ => Ok(None),
        }
    }

    /// An old directory is all that there was: nothing below shows through.
    pub(super) fn mark_kept(&self, path: &[u8]) -> io::Result<()> {
        let name = tree::split(path).1;
        let parent = match copy::parent(self.request.preimages, path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let Some(found) = Found::at(parent.as_fd(), name)? else {
            return Ok(());
        };
        if found.entry.kind != FileKind::Directory || found.marks.opaque {
            return Ok(());
        }
        let kept = access::open_directory(parent.as_fd(), name)?;
        access::writable(kept.as_fd())?;
        rustix::fs::fsetxattr(&kept, OPAQUE.0, OPAQUE.1, XattrFlags::empty())?;
        copy::mode(kept.as_fd(), found.entry.mode)
    }

    /// A whiteout among the preimages (a character device 0:0, which anybody
    /// may make since Linux 5.8).
    pub(super) fn keep_absent(&self, path: &[u8]) -> io::Result<()> {
        let parent = copy::parent(self.request.preimages, path)?;
        let (name, kind) = (tree::split(path).1, FileType::CharacterDevice);
        match rustix::fs::mknodat(&parent, name, kind, Mode::empty(), 0) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn finish_kept(&self, path: &[u8], entry: &Entry) -> io::Result<()> {
        settle(self.request.preimages, path, |directory| {
            copy::describe(directory, entry)?;
            copy::times(directory, entry.modified)
        })
    }
}
