//! Covers what is taken away in a part that can be written: with nothing, or
//! with what git's index holds at that place.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use stockade_sys::mount::{self, Attributes, Reach};
use stockade_sys::rustix::fs::{FileType, Mode, OFlags, fchmod, fstat, mkdirat, openat, symlinkat};
use stockade_sys::rustix::io::Errno;
use stockade_sys::rustix::mount::OpenTreeFlags;

use super::{View, attach, attach_to, clone_tree, leads_nowhere, open_beneath, write_all};
use crate::steps::named;
use crate::wire::{Cover, MaskPath, StandIn, StandInKind};

/// Read-only mounts to clone covers from.
pub(super) struct Sources {
    /// An empty file that nobody may open.
    file: OwnedFd,
    /// An empty directory.
    directory: OwnedFd,
    /// A directory that nobody may open.
    sealed: OwnedFd,
}

impl View {
    pub(super) fn masks(&mut self, paths: &[MaskPath]) -> io::Result<String> {
        if self.mask_sources.is_none() {
            self.mask_sources = Some(self.make_mask_sources()?);
        }
        let (mut masked, mut committed) = (0, 0);
        for mask in paths {
            let target = match self.open_inside(&mask.path, OFlags::empty()) {
                Ok(target) => target,
                Err(error) if error.kind() == io::ErrorKind::NotFound && !mask.required => continue,
                // A layer has something else where the path would lead on.
                Err(error) if self.is_layered(&mask.path) && leads_nowhere(&error) => continue,
                Err(error) => return Err(named(error, &mask.path)),
            };
            // What the path is now decides, not what it was when the plan was
            // made: a file cannot be covered by a directory.
            let is_directory =
                FileType::from_raw_mode(fstat(&target)?.st_mode) == FileType::Directory;
            let stand_in = match &mask.cover {
                Cover::Committed(entries) if is_directory == mask.directory => self
                    .stand_in(entries, is_directory)
                    .map_err(|error| named(error, &mask.path))?,
                _ => None,
            };
            let Some(sources) = &self.mask_sources else {
                return Err(io::Error::other("no mask sources"));
            };
            let tree = match (stand_in, is_directory, &mask.cover) {
                (Some(tree), ..) => {
                    committed += 1;
                    tree
                }
                (None, false, _) => sources.clone_of(&sources.file)?,
                (None, true, Cover::Empty) => sources.clone_of(&sources.directory)?,
                (None, true, _) => sources.clone_of(&sources.sealed)?,
            };
            attach_to(tree.as_fd(), target.as_fd()).map_err(|error| named(error, &mask.path))?;
            masked += 1;
        }
        let total = paths.len();
        Ok(match committed {
            0 => format!("{masked} of {total} covered"),
            _ => format!("{masked} of {total} covered, {committed} by what git's index holds"),
        })
    }

    /// A read-only mount of what git's index holds; `None` when the entries do
    /// not fit what is covered. The storage is the launcher's own, so nothing
    /// in it leads elsewhere, and names are resolved beneath it all the same.
    fn stand_in(&mut self, entries: &[StandIn], directory: bool) -> io::Result<Option<OwnedFd>> {
        let name = self.stored_name();
        match entries {
            _ if directory => {
                mkdirat(self.storage()?, name.as_str(), Mode::from_raw_mode(0o755))?;
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let own = openat(self.storage()?, name.as_str(), flags, Mode::empty())?;
                for entry in entries {
                    make_entry(own.as_fd(), entry)?;
                }
            }
            [only] if only.name.is_empty() && !matches!(only.kind, StandInKind::Link) => {
                make_file(self.storage()?, name.as_bytes(), only)?;
            }
            _ => return Ok(None),
        }
        let tree = self.clone_stored(&name)?;
        mount::set_attributes(tree.as_fd(), Attributes::READ_ONLY, Reach::One)?;
        Ok(Some(tree))
    }

    fn make_mask_sources(&mut self) -> io::Result<Sources> {
        let storage = self.storage()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(storage, "mask-file", flags, Mode::from_raw_mode(0o600))?;
        fchmod(&file, Mode::empty())?;
        drop(file);
        mkdirat(storage, "mask-directory", Mode::from_raw_mode(0o555))?;
        mkdirat(storage, "mask-sealed", Mode::empty())?;
        Ok(Sources {
            file: self.mask_source("mask-file")?,
            directory: self.mask_source("mask-directory")?,
            sealed: self.mask_source("mask-sealed")?,
        })
    }

    fn mask_source(&mut self, name: &str) -> io::Result<OwnedFd> {
        let tree = self.clone_stored(name)?;
        mount::set_attributes(tree.as_fd(), Attributes::READ_ONLY, Reach::One)?;
        // So that it goes when the storage goes; only a mounted storage has
        // to carry it, because nothing can be cloned from a loose tree then.
        let carried = attach(tree.as_fd(), self.storage()?, name);
        if self.storage_attached {
            carried?;
        }
        Ok(tree)
    }
}

impl Sources {
    fn clone_of(&self, source: &OwnedFd) -> io::Result<OwnedFd> {
        clone_tree(source.as_fd(), "", OpenTreeFlags::AT_EMPTY_PATH)
    }
}

/// Makes one entry below `top`, and the directories above it, one component
/// after the other: an entry could be a link, and leads nowhere here.
fn make_entry(top: BorrowedFd<'_>, entry: &StandIn) -> io::Result<()> {
    let mut above = Vec::new();
    let mut rest = &entry.name[..];
    while let Some(slash) = rest.iter().position(|&byte| byte == b'/') {
        let parent = above.last().map_or(top, OwnedFd::as_fd);
        make_directory(parent, &rest[..slash])?;
        let directory = open_beneath(parent, &rest[..slash], OFlags::DIRECTORY)?;
        above.push(directory);
        rest = &rest[slash + 1..];
    }
    let parent = above.last().map_or(top, OwnedFd::as_fd);
    match entry.kind {
        StandInKind::Link => Ok(symlinkat(&entry.content[..], parent, rest)?),
        StandInKind::Directory => make_directory(parent, rest),
        StandInKind::File | StandInKind::Executable => make_file(parent, rest, entry),
    }
}

fn make_directory(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The mode is the one that git's index knows: executable or not. The time is
/// now, so git never takes the file for the one that it saw outside.
fn make_file(parent: BorrowedFd<'_>, name: &[u8], entry: &StandIn) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(parent, name, flags, Mode::from_raw_mode(0o600))?;
    write_all(file.as_fd(), &entry.content)?;
    let mode = match entry.kind {
        StandInKind::Executable => 0o755,
        _ => 0o644,
    };
    Ok(fchmod(&file, Mode::from_raw_mode(mode))?)
}
