//! Two adjacent layers into one that shows the same over whatever is below.
//!
//! Both stay as they are: frozen layers are never written, so files get a
//! second name instead of a copy. What hides what is below still hides it.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Mode, XattrFlags};
use rustix::io::Errno;

use crate::apply::{access, copy};
use crate::measure::walk;
use crate::stack::DEPTH_MAX;
use crate::tree::{self, FileKind, Found, Identity};

const OPAQUE: (&str, &[u8]) = ("user.overlay.opaque", b"y");
const ORIGIN: &str = "user.overlay.origin";

/// Writes into the empty directory `into` a layer that shows what `upper` over
/// `lower` shows, whatever is below. After an interruption, remove `into` and
/// begin again.
pub fn merge(upper: BorrowedFd<'_>, lower: BorrowedFd<'_>, into: BorrowedFd<'_>) -> io::Result<()> {
    let (above, below) = (Found::of_directory(upper)?, Found::of_directory(lower)?);
    let several = &several_names([upper, lower])?;
    let below_shows = !above.marks.opaque;
    let merged = Merged {
        upper: Some(Place::of(upper, &above)),
        lower: below_shows.then(|| Place::of(lower, &below)),
        opaque: above.marks.opaque || below.marks.opaque,
        several,
    };
    merged.fill(into, 0)?;
    finish(into, &above, merged.opaque, false)
}

/// A directory of one layer.
#[derive(Clone, Copy)]
struct Place<'a> {
    handle: BorrowedFd<'a>,
    whiteouts_inside: bool,
}

/// A directory of the merged layer, and what goes into it.
struct Merged<'a> {
    upper: Option<Place<'a>>,
    lower: Option<Place<'a>>,
    opaque: bool,
    several: &'a BTreeSet<Identity>,
}

/// Files that have several names in one layer. How many they have in all says
/// nothing: layers that were merged before have names of the same files.
fn several_names(layers: [BorrowedFd<'_>; 2]) -> io::Result<BTreeSet<Identity>> {
    let mut several = BTreeSet::new();
    for layer in layers {
        let mut once = BTreeSet::new();
        walk(layer, &mut |status| {
            let identity = Identity {
                device: status.st_dev,
                inode: status.st_ino,
            };
            let is_directory = FileType::from_raw_mode(status.st_mode) == FileType::Directory;
            if !is_directory && status.st_nlink > 1 && !once.insert(identity) {
                several.insert(identity);
            }
        })?;
    }
    Ok(several)
}

impl<'a> Place<'a> {
    fn of(handle: BorrowedFd<'a>, found: &Found) -> Self {
        Self {
            handle,
            whiteouts_inside: found.marks.whiteouts_inside,
        }
    }

    fn look(&self, name: &[u8]) -> io::Result<Option<(Found, bool)>> {
        let found = Found::at(self.handle, name)?;
        Ok(found.map(|found| {
            let by_attribute = self.whiteouts_inside && found.marks.whiteout;
            let is_whiteout = found.is_whiteout_device()
                || by_attribute && found.entry.kind == FileKind::File && found.entry.size == 0;
            (found, is_whiteout)
        }))
    }
}

impl Merged<'_> {
    fn fill(&self, into: BorrowedFd<'_>, depth: usize) -> io::Result<()> {
        if depth > DEPTH_MAX {
            return Err(io::Error::other(format!(
                "a layer is more than {DEPTH_MAX} directories deep"
            )));
        }
        let mut names = BTreeSet::new();
        for place in self.upper.iter().chain(&self.lower) {
            names.extend(tree::names(place.handle)?);
        }
        for name in names {
            self.name(into, &name, depth)?;
        }
        Ok(())
    }

    fn name(&self, into: BorrowedFd<'_>, name: &[u8], depth: usize) -> io::Result<()> {
        let look = |place: &Option<Place<'_>>| match place {
            Some(place) => place.look(name),
            None => Ok(None),
        };
        let (above, below) = (look(&self.upper)?, look(&self.lower)?);
        let is_directory = |found: &Found| found.entry.kind == FileKind::Directory;
        let (top, whiteout, from) = match (&above, &below) {
            (Some((found, whiteout)), _) => (found, *whiteout, &self.upper),
            (None, Some((found, whiteout))) => (found, *whiteout, &self.lower),
            (None, None) => return Ok(()),
        };
        let Some(from) = from else {
            return Ok(());
        };
        if whiteout {
            // In a directory that hides everything there is nothing to hide.
            if !self.opaque {
                rustix::fs::mknodat(into, name, FileType::CharacterDevice, Mode::empty(), 0)?;
            }
            return Ok(());
        }
        if !is_directory(top) {
            // The mark that it came up would be wrong where it came from the
            // lower layer; a file with other names must stay the same file.
            let new_below = matches!((&above, &below), (Some(_), Some((low, hidden)))
                if *hidden || !low.marks.origin);
            return match top.marks.origin && new_below && !self.several.contains(&top.identity) {
                true => copy::file(from.handle, name, into, name, &top.entry),
                false => link(from.handle, name, into, top),
            };
        }
        let merges = above.as_ref().is_some_and(|(found, _)| !found.marks.opaque)
            && below
                .as_ref()
                .is_some_and(|(found, hidden)| is_directory(found) && !hidden);
        let (opaque, origin) = match (&above, &below) {
            (Some((up, _)), Some((low, _))) if merges => {
                (low.marks.opaque, up.marks.origin && low.marks.origin)
            }
            // The lower layer hides what is below the name.
            (Some(_), Some(_)) => (true, false),
            _ => (top.marks.opaque, top.marks.origin),
        };
        // A directory that did not come up from below has nothing below it. It
        // must hold no whiteouts: the kernel lists them in a directory that
        // does not merge.
        let opaque = opaque || !origin;
        rustix::fs::mkdirat(into, name, Mode::RWXU)?;
        let new = tree::open_directory(into, name)?;
        let enter = |place: &Option<Place<'_>>, is: bool| match place {
            Some(place) if is => access::open_directory(place.handle, name).map(Some),
            _ => Ok(None),
        };
        let upper = enter(&self.upper, above.is_some())?;
        let lower = enter(&self.lower, above.is_none() || merges)?;
        let inner = Merged {
            upper: upper
                .as_ref()
                .zip(above.as_ref())
                .map(|(handle, (found, _))| Place::of(handle.as_fd(), found)),
            lower: lower
                .as_ref()
                .zip(below.as_ref())
                .map(|(handle, (found, _))| Place::of(handle.as_fd(), found)),
            opaque,
            several: self.several,
        };
        inner.fill(new.as_fd(), depth + 1)?;
        finish(new.as_fd(), top, opaque, origin)
    }
}

/// Marks a directory that is full, and gives it its attributes and time.
fn finish(directory: BorrowedFd<'_>, like: &Found, opaque: bool, origin: bool) -> io::Result<()> {
    if opaque {
        rustix::fs::fsetxattr(directory, OPAQUE.0, OPAQUE.1, XattrFlags::empty())?;
    }
    if origin {
        rustix::fs::fsetxattr(directory, ORIGIN, b"", XattrFlags::empty())?;
    }
    copy::describe(directory, &like.entry)?;
    copy::times(directory, like.entry.modified)
}

/// A second name for a file, or a copy where there can be none.
fn link(from: BorrowedFd<'_>, name: &[u8], into: BorrowedFd<'_>, found: &Found) -> io::Result<()> {
    match rustix::fs::linkat(from, name, into, name, AtFlags::empty()) {
        Ok(()) => Ok(()),
        // Another file system, too many names, or not allowed
        // (fs.protected_hardlinks, proc(5)).
        Err(Errno::XDEV | Errno::MLINK | Errno::PERM) => {
            copy::file(from, name, into, name, &found.entry)
        }
        Err(error) => Err(error.into()),
    }
}
