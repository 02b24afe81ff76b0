//! Copies of files for where they cannot be moved: content with its holes,
//! then owner, attributes, mode and times.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps, Uid,
};
use rustix::io::Errno;

use super::access;
use crate::tree::{self, Entry, FileKind, Found, Time};

/// Copies one file that is not a directory to a new name, as `entry` says it
/// should be.
pub(crate) fn file(
    from: BorrowedFd<'_>,
    name: &[u8],
    to: BorrowedFd<'_>,
    new_name: &[u8],
    entry: &Entry,
) -> io::Result<()> {
    let private = Mode::RUSR | Mode::WUSR;
    match entry.kind {
        FileKind::File => {
            let source = access::open_file(from, name)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            let target = rustix::fs::openat(to, new_name, flags | OFlags::CLOEXEC, private)?;
            content(source.as_fd(), target.as_fd())?;
            describe(target.as_fd(), entry)?;
            times(target.as_fd(), entry.modified)?;
            rustix::fs::fdatasync(&target)?;
        }
        FileKind::Symlink => {
            let target = entry.target.as_deref().unwrap_or_default();
            rustix::fs::symlinkat(target, to, new_name)?;
            own(to, new_name, entry)?;
            times_at(to, new_name, entry.modified)?;
        }
        FileKind::Fifo | FileKind::Socket => {
            let kind = match entry.kind {
                FileKind::Fifo => FileType::Fifo,
                _ => FileType::Socket,
            };
            rustix::fs::mknodat(to, new_name, kind, private, 0)?;
            own(to, new_name, entry)?;
            rustix::fs::chmodat(
                to,
                new_name,
                Mode::from_raw_mode(entry.mode),
                AtFlags::empty(),
            )?;
            times_at(to, new_name, entry.modified)?;
        }
        FileKind::Directory | FileKind::Device => {
            return Err(io::Error::other("only files are copied"));
        }
    }
    Ok(())
}

/// Copies a file or a directory with all that is in it, as it is.
pub(crate) fn tree(
    from: BorrowedFd<'_>,
    name: &[u8],
    to: BorrowedFd<'_>,
    new_name: &[u8],
) -> io::Result<()> {
    let Some(found) = Found::at(from, name)? else {
        return Err(Errno::NOENT.into());
    };
    if found.entry.kind != FileKind::Directory {
        return file(from, name, to, new_name, &found.entry);
    }
    rustix::fs::mkdirat(to, new_name, Mode::RWXU)?;
    let source = access::open_directory(from, name)?;
    let target = tree::open_directory(to, new_name)?;
    for inner in tree::names(source.as_fd())? {
        self::tree(source.as_fd(), &inner, target.as_fd(), &inner)?;
    }
    describe(target.as_fd(), &found.entry)?;
    times(target.as_fd(), found.entry.modified)
}

/// Removes a file or a directory with all that is in it, however deep.
pub fn remove(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    let top = access::open_directory(directory, name)?;
    access::writable(top.as_fd())?;
    // A directory below moves up to the top before it is emptied, so that no
    // depth costs more than one descriptor.
    let mut moved = 0u64;
    loop {
        let names = tree::names(top.as_fd())?;
        if names.is_empty() {
            break;
        }
        for inner in names {
            match rustix::fs::unlinkat(&top, &inner[..], AtFlags::empty()) {
                Ok(()) => continue,
                Err(Errno::ISDIR | Errno::PERM) => {}
                Err(error) => return Err(error.into()),
            }
            let below = access::open_directory(top.as_fd(), &inner)?;
            access::writable(below.as_fd())?;
            for deeper in tree::names(below.as_fd())? {
                match rustix::fs::unlinkat(&below, &deeper[..], AtFlags::empty()) {
                    Ok(()) => continue,
                    Err(Errno::ISDIR | Errno::PERM) => {}
                    Err(error) => return Err(error.into()),
                }
                let deeper_handle = access::open_directory(below.as_fd(), &deeper)?;
                access::writable(deeper_handle.as_fd())?;
                loop {
                    let free = format!(".stockade-removed-{moved}");
                    moved += 1;
                    let flags = RenameFlags::NOREPLACE;
                    match rustix::fs::renameat_with(&below, &deeper[..], &top, free.as_str(), flags)
                    {
                        Ok(()) => break,
                        Err(Errno::EXIST) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            rustix::fs::unlinkat(&top, &inner[..], AtFlags::REMOVEDIR)?;
        }
    }
    rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?;
    Ok(())
}

/// Gives a new layer the owner, mode, attributes and time of the tree that it
/// will lie over: an overlay shows those of its top layer as the tree's own.
/// To be called before it is mounted.
pub fn resemble(layer: BorrowedFd<'_>, tree: BorrowedFd<'_>) -> io::Result<()> {
    let like = Found::of_directory(tree)?.entry;
    describe(layer, &like)?;
    times(layer, like.modified)
}

/// Gives an open file or directory owner, attributes and mode.
pub(crate) fn describe(handle: BorrowedFd<'_>, entry: &Entry) -> io::Result<()> {
    let status = rustix::fs::fstat(handle)?;
    if (status.st_uid, status.st_gid) != (entry.uid, entry.gid) {
        let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
        rustix::fs::fchown(handle, Some(uid), Some(gid))?;
    }
    let path = tree::by_descriptor(handle);
    for name in tree::attribute_names(handle)? {
        if tree::is_carried(&name) && !entry.attributes.contains_key(&name) {
            rustix::fs::removexattr(path.as_str(), &name[..])?;
        }
    }
    for (name, value) in &entry.attributes {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(path.as_str(), &name[..], value, flags)?;
    }
    // Last, because a change of owner takes bits away.
    mode(handle, entry.mode)
}

/// Sets permission bits through a descriptor of any kind.
pub(crate) fn mode(handle: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    let path = tree::by_descriptor(handle);
    Ok(rustix::fs::chmod(path.as_str(), Mode::from_raw_mode(mode))?)
}

/// Sets the time of modification; that of the last access stays.
pub(crate) fn times(handle: BorrowedFd<'_>, modified: Time) -> io::Result<()> {
    Ok(rustix::fs::futimens(handle, &stamps(modified))?)
}

fn times_at(directory: BorrowedFd<'_>, name: &[u8], modified: Time) -> io::Result<()> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    Ok(rustix::fs::utimensat(
        directory,
        name,
        &stamps(modified),
        flags,
    )?)
}

fn stamps(modified: Time) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: modified.seconds,
            tv_nsec: modified.nanoseconds.into(),
        },
    }
}

fn own(directory: BorrowedFd<'_>, name: &[u8], entry: &Entry) -> io::Result<()> {
    let status = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if (status.st_uid, status.st_gid) == (entry.uid, entry.gid) {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    Ok(rustix::fs::chownat(
        directory,
        name,
        Some(uid),
        Some(gid),
        flags,
    )?)
}

/// Copies content, by sharing it where the file system can, and leaves holes
/// where there are holes.
fn content(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let size = rustix::fs::fstat(from)?.st_size.unsigned_abs();
    rustix::fs::ftruncate(to, size)?;
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Only a hole is left.
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => at,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(start))
            .unwrap_or(size)
            .min(size);
        range(from, to, start, end)?;
        at = end.max(start + 1);
    }
    Ok(())
}

fn range(from: BorrowedFd<'_>, to: BorrowedFd<'_>, start: u64, end: u64) -> io::Result<()> {
    let (mut read, mut written) = (start, start);
    while read < end {
        let length = usize::try_from(end - read)
            .unwrap_or(usize::MAX)
            .min(1 << 30);
        match rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut written), length) {
            // The file is shorter than it was.
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {
                return by_hand(from, to, read, end);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn by_hand(from: BorrowedFd<'_>, to: BorrowedFd<'_>, start: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0u8; 64 * 1024];
    let mut at = start;
    while at < end {
        let most = usize::try_from(end - at)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let length = rustix::io::pread(from, &mut buffer[..most], at)?;
        if length == 0 {
            break;
        }
        let mut done = 0;
        while done < length {
            done += rustix::io::pwrite(to, &buffer[done..length], at + done as u64)?;
        }
        at += length as u64;
    }
    Ok(())
}

/// A directory to work in, for callers that only have its place.
pub(crate) fn parent(root: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    access::directory(root, tree::split(path).0)
}
