//! A root file system that is being made. Every name is resolved by the kernel
//! as if its directory were the root (openat2(2), `RESOLVE_IN_ROOT`), so that
//! no link in it, whoever made it, leads out.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, chownat,
    fchmod, futimens, linkat, mkdirat, openat, openat2, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use stockade_sys::directory::remove_tree;

use crate::archive::Entry;

/// What may stay of a mode: nobody is given rights by who owns a file.
const FILE_MODE: u32 = 0o777;
const DIRECTORY_MODE: u32 = 0o1777;

/// Directory, name, and whether it is a directory itself.
const MOUNT_POINTS: [(&[u8], &[u8], bool); 3] = [
    (b"etc", b"hosts", false),
    (b"etc", b"resolv.conf", false),
    (b"var", b"tmp", true),
];

/// The directory that becomes the root.
pub(crate) struct Tree {
    root: OwnedFd,
    /// Whether owners can be set as the image has them.
    owners: bool,
    /// What directories get in the end, because names are still made in them.
    directories: BTreeMap<Vec<u8>, (u32, i64)>,
    /// The directory that was used last.
    last: Option<(Vec<u8>, OwnedFd)>,
}

impl Tree {
    pub(crate) fn new(root: OwnedFd) -> Self {
        Self {
            root,
            owners: rustix::process::geteuid().is_root(),
            directories: BTreeMap::new(),
            last: None,
        }
    }

    /// The directory of an entry, and directories above that no entry made.
    /// Names of these are given to `made`.
    pub(crate) fn parent(
        &mut self,
        entry: &Entry,
        made: &mut dyn FnMut(Vec<u8>),
    ) -> io::Result<OwnedFd> {
        let above = &entry.path[..entry.path.len().saturating_sub(1)];
        let name = above.join(&b'/');
        if let Some((last, handle)) = &self.last
            && *last == name
        {
            return handle.try_clone();
        }
        let handle = match self.directory(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                for length in 1..=above.len() {
                    let name = above[..length].join(&b'/');
                    if self.directory(&name).is_ok() {
                        continue;
                    }
                    let upper = self.directory(&above[..length - 1].join(&b'/'))?;
                    mkdirat(&upper, &above[length - 1][..], Mode::RWXU)?;
                    self.directories.insert(name.clone(), (0o755, 0));
                    made(name);
                }
                self.directory(&name)?
            }
            other => other?,
        };
        self.last = Some((name, handle.try_clone()?));
        Ok(handle)
    }

    /// A directory by its path, links in it followed within the root.
    pub(crate) fn directory(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let path = if path.is_empty() { b"." } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(&self.root, path, flags, Mode::empty(), resolve)?)
    }

    /// Makes a directory, or takes over the one that is there.
    pub(crate) fn make_directory(&mut self, parent: &OwnedFd, entry: &Entry) -> io::Result<()> {
        let mode = (entry.mode & DIRECTORY_MODE, entry.modified);
        let name = entry.name();
        let Some(last) = entry.path.last() else {
            self.directories.insert(name, mode);
            return self.own(self.root.as_fd(), ".", entry);
        };
        match mkdirat(parent, &last[..], Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) if is_directory(parent, last)? => {}
            Err(Errno::EXIST) => {
                self.remove(parent, last)?;
                mkdirat(parent, &last[..], Mode::RWXU)?;
            }
            Err(error) => return Err(error.into()),
        }
        self.directories.insert(name, mode);
        self.own(parent.as_fd(), &last[..], entry)
    }

    pub(crate) fn make_file(
        &mut self,
        parent: &OwnedFd,
        entry: &Entry,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        let last = last(entry)?;
        self.remove(parent, last)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(parent, last, flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = File::from(file);
        let written = io::copy(content, &mut file)?;
        if written != entry.size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.own(parent.as_fd(), last, entry)?;
        fchmod(&file, Mode::from_raw_mode(entry.mode & FILE_MODE))?;
        Ok(futimens(&file, &times(entry.modified))?)
    }

    pub(crate) fn make_symlink(&mut self, parent: &OwnedFd, entry: &Entry) -> io::Result<()> {
        let last = last(entry)?;
        self.remove(parent, last)?;
        symlinkat(&entry.target[..], parent, last)?;
        self.own(parent.as_fd(), last, entry)?;
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        Ok(utimensat(parent, last, &times(entry.modified), flags)?)
    }

    /// Makes another name for a regular file of the tree. `Ok(false)` when the
    /// target is none.
    pub(crate) fn make_link(
        &mut self,
        parent: &OwnedFd,
        entry: &Entry,
        target: &[Vec<u8>],
    ) -> io::Result<bool> {
        let (Some((name, above)), last) = (target.split_last(), last(entry)?) else {
            return Ok(false);
        };
        let from = match self.directory(&above.join(&b'/')) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other?,
        };
        let there = match statat(&from, &name[..], AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) => FileType::from_raw_mode(status.st_mode),
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if !matches!(there, FileType::RegularFile | FileType::Symlink) || entry.path == target {
            return Ok(false);
        }
        self.remove(parent, last)?;
        linkat(&from, &name[..], parent, last, AtFlags::empty())?;
        Ok(true)
    }

    /// Removes whatever stands at a name.
    pub(crate) fn remove(&mut self, parent: &OwnedFd, name: &[u8]) -> io::Result<()> {
        match unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {
                // What was used last may lie in it.
                self.last = None;
                // Names that are no text are moved to one that is.
                let plain = format!(".stockade-{}", stockade_sys::directory::random_name()?);
                rustix::fs::renameat(parent, name, &self.root, plain.as_str())?;
                remove_tree(self.root.as_fd(), &plain)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Names in a directory.
    pub(crate) fn names(directory: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(name.to_vec());
            }
        }
        Ok(names)
    }

    /// Makes what sandboxes mount something at, where it is missing: a tree that
    /// can only be read has no room for it later.
    pub(crate) fn add_mount_points(&mut self) -> io::Result<()> {
        for (above, name, is_directory) in MOUNT_POINTS {
            let parent = match self.directory(above) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            let made = match is_directory {
                true => mkdirat(&parent, name, Mode::RWXU).map(|()| {
                    let path = [above, b"/", name].concat();
                    self.directories.insert(path, (0o1777, 0));
                }),
                false => {
                    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                    openat(&parent, name, flags, Mode::from_raw_mode(0o644)).map(drop)
                }
            };
            match made {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Gives directories their modes and times, the deepest first. One that a
    /// later layer took away is left out.
    pub(crate) fn finish(self) -> io::Result<()> {
        for (path, (mode, modified)) in self.directories.iter().rev() {
            let path = if path.is_empty() { &b"."[..] } else { path };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
            let directory = match openat2(&self.root, path, flags, Mode::empty(), resolve) {
                Ok(directory) => directory,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(error) => return Err(error.into()),
            };
            futimens(&directory, &times(*modified))?;
            fchmod(&directory, Mode::from_raw_mode(*mode))?;
        }
        Ok(())
    }

    fn own(
        &self,
        parent: BorrowedFd<'_>,
        name: impl rustix::path::Arg,
        entry: &Entry,
    ) -> io::Result<()> {
        if !self.owners {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        Ok(chownat(parent, name, Some(uid), Some(gid), flags)?)
    }
}

fn is_directory(parent: &OwnedFd, name: &[u8]) -> io::Result<bool> {
    let status = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(status.st_mode) == FileType::Directory)
}

fn last(entry: &Entry) -> io::Result<&[u8]> {
    let last = entry.path.last().map(|name| &name[..]);
    last.ok_or(io::Error::from(io::ErrorKind::InvalidInput))
}

fn times(seconds: i64) -> Timestamps {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}
