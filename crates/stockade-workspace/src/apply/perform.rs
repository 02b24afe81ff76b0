//! Performing the steps of a plan, each so that it can be begun again.

mod keep;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::conflict::{Conflict, ConflictReason};
use super::plan::{How, Keep, Step};
use super::{ApplyError, Request, access, copy};
use crate::journal::Journal;
use crate::tree::{self, Entry, FileKind, Found, Identity, Time};

/// What names begin with that are only there for a moment.
const TEMPORARY_PREFIX: &str = ".stockade-";

/// Why a step was not done: the tree changed, or the system refused.
enum Stop {
    Conflict(ConflictReason),
    System(io::Error),
}

impl<E: Into<io::Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::System(error.into())
    }
}

type Done = Result<(), Stop>;

pub(super) struct Worker<'a> {
    request: &'a Request<'a>,
    journal: &'a mut Journal,
}

/// Something to be put at a path.
struct Placed<'a> {
    path: &'a [u8],
    old: Option<Identity>,
    keep: Keep,
}

impl<'a> Worker<'a> {
    pub(super) fn new(request: &'a Request<'a>, journal: &'a mut Journal) -> Self {
        Self { request, journal }
    }

    /// Performs what is left and removes the journal. What turned out to be
    /// changed meanwhile is left alone and returned.
    pub(super) fn run(mut self) -> Result<Vec<Conflict>, ApplyError> {
        let mut conflicts = Vec::new();
        while let Some(step) = self.journal.step() {
            let (operation, path) = describe(&step);
            match self.perform(&step) {
                Ok(()) => {}
                Err(Stop::Conflict(reason)) => {
                    let path = path.to_vec();
                    conflicts.push(Conflict { path, reason });
                }
                Err(Stop::System(source)) => {
                    return Err(ApplyError::Step {
                        operation,
                        path: path.to_vec(),
                        source,
                    });
                }
            }
            self.journal.done().map_err(ApplyError::Journal)?;
            self.tick();
        }
        self.journal.end().map_err(ApplyError::Journal)?;
        Ok(conflicts)
    }

    fn tick(&self) {
        let (next, all) = self.journal.position();
        (self.request.progress)(next, all);
    }

    fn perform(&mut self, step: &Step) -> Done {
        match step {
            Step::Keep { path } => Ok(self.make_kept(path)?),
            Step::Strip { path, mode } => Ok(self.strip(path, *mode)?),
            Step::Make { path, keep } => Ok(self.make(path, *keep)?),
            Step::Put {
                path,
                level,
                how,
                entry,
                new,
                old,
                keep,
            } => {
                let placed = Placed {
                    path,
                    old: *old,
                    keep: *keep,
                };
                match how {
                    How::Move => self.put_by_move(&placed, entry, *new),
                    How::Copy => self.put_by_copy(&placed, *level, entry),
                }
            }
            Step::Link {
                path,
                to,
                old,
                keep,
            } => {
                let placed = Placed {
                    path,
                    old: *old,
                    keep: *keep,
                };
                self.put_link(&placed, to)
            }
            Step::Remove {
                path,
                old,
                clear,
                keep,
            } => self.remove(path, *old, *clear, *keep),
            Step::Finish {
                path,
                entry,
                times,
                layer,
            } => Ok(self.finish(path, entry, *times, *layer)?),
            Step::Kept { path, entry } => Ok(self.finish_kept(path, entry)?),
        }
    }

    fn strip(&self, path: &[u8], mode: u32) -> io::Result<()> {
        let layer = self.request.layers[0];
        let parent = match copy::parent(layer, path) {
            // It moved before an interruption.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let name = tree::split(path).1;
        let file = match rustix::fs::openat(&parent, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            other => other?,
        };
        let status = rustix::fs::fstat(&file)?;
        match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile | FileType::Directory => {}
            _ => return Ok(()),
        }
        access::add_rights(file.as_fd(), 0o600)?;
        for name in tree::attribute_names(file.as_fd())? {
            if tree::is_overlay_attribute(&name) {
                let path = tree::by_descriptor(file.as_fd());
                rustix::fs::removexattr(path.as_str(), &name[..])?;
            }
        }
        copy::mode(file.as_fd(), mode)
    }

    fn make(&self, path: &[u8], keep: Keep) -> io::Result<()> {
        if keep == Keep::Absent {
            self.keep_absent(path)?;
            self.tick();
        }
        let parent = self.base_parent(path)?;
        match rustix::fs::mkdirat(&parent, tree::split(path).1, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn put_by_move(&mut self, placed: &Placed<'_>, entry: &Entry, new: Identity) -> Done {
        let name = tree::split(placed.path).1;
        let parent = self.base_parent(placed.path)?;
        let layer = copy::parent(self.request.layers[0], placed.path)?;
        access::writable(layer.as_fd())?;
        if identity(parent.as_fd(), name)? != Some(new) {
            if entry.kind == FileKind::Directory {
                let moved = access::open_directory(layer.as_fd(), name)?;
                access::writable(moved.as_fd())?;
            }
            self.place(placed, parent.as_fd(), (layer.as_fd(), name))?;
            self.tick();
        }
        if entry.kind == FileKind::Directory {
            let moved = access::open_directory(parent.as_fd(), name)?;
            copy::mode(moved.as_fd(), entry.mode)?;
        }
        self.remember(placed, layer.as_fd(), name)?;
        Ok(())
    }

    fn put_by_copy(&mut self, placed: &Placed<'_>, level: usize, entry: &Entry) -> Done {
        let layer = copy::parent(self.request.layers[level], placed.path)?;
        let name = tree::split(placed.path).1.to_vec();
        self.put_new(placed, &|directory, temporary| {
            copy::file(layer.as_fd(), &name, directory, temporary, entry)
        })
    }

    fn put_link(&mut self, placed: &Placed<'_>, to: &[u8]) -> Done {
        let other = copy::parent(self.request.base, to)?;
        let name = tree::split(to).1.to_vec();
        self.put_new(placed, &|directory, temporary| {
            let flags = AtFlags::empty();
            Ok(rustix::fs::linkat(
                &other,
                &name[..],
                directory,
                temporary,
                flags,
            )?)
        })
    }

    /// Makes something under a temporary name beside its place, then puts it
    /// there.
    fn put_new(
        &mut self,
        placed: &Placed<'_>,
        make: &dyn Fn(BorrowedFd<'_>, &[u8]) -> io::Result<()>,
    ) -> Done {
        let name = tree::split(placed.path).1;
        let parent = self.base_parent(placed.path)?;
        let begun = self.journal.begun().cloned();
        let complete = begun
            .as_ref()
            .and_then(|begun| Some((begun.name.clone(), begun.file?)));
        let (temporary, new) = match complete {
            Some(complete) => complete,
            None => {
                if let Some(begun) = &begun {
                    copy::remove(parent.as_fd(), &begun.name)?;
                }
                let temporary = temporary_name()?;
                self.journal.temporary(&temporary)?;
                self.tick();
                make(parent.as_fd(), &temporary)?;
                self.tick();
                let new = identity(parent.as_fd(), &temporary)?;
                let new = new.ok_or(io::Error::from(Errno::NOENT))?;
                self.journal.complete(new)?;
                self.tick();
                (temporary, new)
            }
        };
        if identity(parent.as_fd(), name)? != Some(new) {
            let result = self.place(placed, parent.as_fd(), (parent.as_fd(), &temporary));
            if let Err(stop) = result {
                copy::remove(parent.as_fd(), &temporary)?;
                return Err(stop);
            }
            self.tick();
        }
        self.remember(placed, parent.as_fd(), &temporary)?;
        Ok(())
    }

    /// The moment at which a file is replaced. What was there then has the
    /// name that the new one had.
    fn place(
        &self,
        placed: &Placed<'_>,
        parent: BorrowedFd<'_>,
        from: (BorrowedFd<'_>, &[u8]),
    ) -> Done {
        let name = tree::split(placed.path).1;
        let rename = |flags| rustix::fs::renameat_with(from.0, from.1, parent, name, flags);
        match placed.old {
            None => match rename(RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => Err(Stop::Conflict(ConflictReason::Made)),
                other => Ok(other?),
            },
            Some(old) => {
                // A directory can only be moved by who may write to it.
                let is_directory = Found::at(parent, name)?
                    .is_some_and(|found| found.entry.kind == FileKind::Directory);
                if is_directory {
                    access::writable(access::open_directory(parent, name)?.as_fd())?;
                }
                match rename(RenameFlags::EXCHANGE) {
                    Err(Errno::NOENT) if identity(parent, name)?.is_none() => {
                        return Err(Stop::Conflict(ConflictReason::Removed));
                    }
                    other => other?,
                }
                if identity(from.0, from.1)? == Some(old) {
                    return Ok(());
                }
                rename(RenameFlags::EXCHANGE)?;
                Err(Stop::Conflict(ConflictReason::Replaced))
            }
        }
    }

    fn remove(&self, path: &[u8], old: Identity, clear: bool, keep: Keep) -> Done {
        let name = tree::split(path).1;
        match self.base_parent(path) {
            Ok(parent) => match identity(parent.as_fd(), name)? {
                Some(there) if there == old => {
                    self.keep_old(parent.as_fd(), name, path, keep)?;
                    self.tick();
                }
                Some(_) => return Err(Stop::Conflict(ConflictReason::Replaced)),
                None => {}
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        self.mark_kept(path)?;
        if clear {
            self.clear(path)?;
        }
        Ok(())
    }

    /// Takes a whiteout that hides nothing any more from the layer.
    fn clear(&self, path: &[u8]) -> io::Result<()> {
        let parent = match copy::parent(self.request.layers[0], path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let name = tree::split(path).1;
        if Found::at(parent.as_fd(), name)?.is_some_and(|found| found.is_whiteout_device()) {
            access::writable(parent.as_fd())?;
            rustix::fs::unlinkat(&parent, name, AtFlags::empty())?;
        }
        Ok(())
    }

    fn finish(
        &self,
        path: &[u8],
        entry: &Entry,
        times: bool,
        layer: Option<(u32, Time)>,
    ) -> io::Result<()> {
        if let Some((mode, modified)) = layer {
            settle(self.request.layers[0], path, |directory| {
                copy::times(directory, modified)?;
                copy::mode(directory, mode)
            })?;
        }
        settle(self.request.base, path, |directory| {
            copy::describe(directory, entry)?;
            match times {
                true => copy::times(directory, entry.modified),
                false => Ok(()),
            }
        })
    }

    /// The directory of the tree that a path is in, ready for names to be made
    /// and removed.
    fn base_parent(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let parent = copy::parent(self.request.base, path)?;
        access::writable(parent.as_fd())?;
        Ok(parent)
    }
}

/// Does something to a directory, if it is there and no link stands in its
/// place.
fn settle(
    root: BorrowedFd<'_>,
    path: &[u8],
    act: impl Fn(BorrowedFd<'_>) -> io::Result<()>,
) -> io::Result<()> {
    match access::directory(root, path) {
        Ok(directory) => act(directory.as_fd()),
        Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            _ => Err(error),
        },
    }
}

fn identity(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<Identity>> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(status) => Ok(Some(Identity {
            device: status.st_dev,
            inode: status.st_ino,
        })),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn temporary_name() -> io::Result<Vec<u8>> {
    let mut random = [0u8; 12];
    let length = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    if length < random.len() {
        return Err(io::Error::other("no random bytes"));
    }
    let digits = random.iter().map(|byte| format!("{byte:02x}"));
    Ok(format!("{TEMPORARY_PREFIX}{}", digits.collect::<String>()).into_bytes())
}

/// The words of an error, and the path.
fn describe(step: &Step) -> (&'static str, &[u8]) {
    match step {
        Step::Keep { path } | Step::Kept { path, .. } => ("keep the old state of", path),
        Step::Strip { path, .. } => ("prepare", path),
        Step::Make { path, .. } => ("make the directory", path),
        Step::Put { path, .. } => ("replace", path),
        Step::Link { path, .. } => ("link", path),
        Step::Remove { path, .. } => ("remove", path),
        Step::Finish { path, .. } => ("set the attributes of", path),
    }
}
