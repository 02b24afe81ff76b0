//! What changed in the tree since the run started, and is about to be
//! overwritten or removed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::access;
use crate::change::{Change, ChangeKind, Origin};
use crate::text;
use crate::tree::{self, Entry, FileKind, Found, Identity, Time};

/// What the clock of a file system may be behind by: one tick, generously.
const TICK_NS: u32 = 20_000_000;

/// When a run started, in the time that file systems stamp changes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// The file system that it was taken on.
    pub device: u64,
    pub time: Time,
}

impl Stamp {
    /// Takes a stamp by making the file `name` in `directory`. What changes
    /// later, on the same file system, has this time of change or a later one.
    ///
    /// Where the kernel has fine-grained times (6.13), what changed earlier has
    /// an earlier one; elsewhere what changed within the same tick, at most
    /// 10 ms before, counts as later.
    pub fn take(directory: BorrowedFd<'_>, name: &str) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(directory, name, flags, mode)?;
        // A time that was looked at is not given out again.
        rustix::fs::fstat(&file)?;
        rustix::fs::fchmod(&file, mode)?;
        let status = rustix::fs::fstat(&file)?;
        Ok(Self {
            device: status.st_dev,
            time: Time {
                seconds: status.st_ctime,
                nanoseconds: status.st_ctime_nsec as u32,
            },
        })
    }

    /// The first time of change that counts as after the start on `device`.
    fn on(&self, device: u64) -> Time {
        let mut time = self.time;
        if device != self.device {
            if time.nanoseconds < TICK_NS {
                time.seconds -= 1;
                time.nanoseconds += 1_000_000_000;
            }
            time.nanoseconds -= TICK_NS;
        }
        time
    }
}

/// A file that an earlier part of the same apply changed, as it left it: at
/// this time of change it is still as the run found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Own {
    pub(crate) identity: Identity,
    pub(crate) changed: Time,
}

impl Own {
    /// Whether both are about one file.
    pub(crate) fn is_of_same(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}

/// What tells changes of others from what the run found and what applying did.
#[derive(Clone, Copy)]
pub(super) struct Since<'a> {
    pub stamp: Option<&'a Stamp>,
    pub own: &'a [Own],
}

impl Since<'_> {
    fn is_later(&self, found: &Found) -> bool {
        let own = |own: &Own| (own.identity, own.changed) == (found.identity, found.changed);
        self.stamp.is_some_and(|stamp| {
            found.changed >= stamp.on(found.identity.device) && !self.own.iter().any(own)
        })
    }
}

/// One path that is not as the run found it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    #[serde(with = "text")]
    pub path: Vec<u8>,
    pub reason: ConflictReason,
}

/// What happened to a path since the run started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConflictReason {
    Changed,
    Made,
    Removed,
    /// Another file stands there than when the changes were listed.
    Replaced,
    /// Another file system is mounted there or above.
    Mounted,
}

impl ConflictReason {
    /// As the end of a sentence that starts with the path.
    pub fn words(self) -> &'static str {
        match self {
            Self::Changed => "changed since the run started",
            Self::Made => "was made since the run started",
            Self::Removed => "was removed since the run started",
            Self::Replaced => "was replaced since the changes were listed",
            Self::Mounted => "is on another file system",
        }
    }
}

/// What stands in the way of one change; `None` when nothing does.
pub(super) fn of(
    change: &Change,
    base: BorrowedFd<'_>,
    since: Since<'_>,
) -> io::Result<Option<ConflictReason>> {
    let there = match &change.kind {
        ChangeKind::Renamed { from } => {
            if let Some(reason) = at(base, from, change.was.as_ref(), since)? {
                return Ok(Some(reason));
            }
            None
        }
        _ => change.was.as_ref(),
    };
    if let Some(reason) = at(base, &change.path, there, since)? {
        return Ok(Some(reason));
    }
    let copied_up = change.is.as_ref().is_some_and(|is| is.copied_up);
    if change.kind != ChangeKind::Created || !copied_up {
        return Ok(None);
    }
    // It came up from something that is no longer there. A directory comes up
    // only under its own name; a file may have been renamed inside, and then
    // nothing was removed from the directory outside.
    if change.is(FileKind::Directory) {
        return Ok(Some(ConflictReason::Removed));
    }
    let Ok(parent) = access::visit(base, tree::split(&change.path).0) else {
        return Ok(None);
    };
    let parent = Found::of_directory(parent.handle.as_fd())?;
    Ok(since.is_later(&parent).then_some(ConflictReason::Removed))
}

/// Compares what stands at a path with what was seen there.
fn at(
    base: BorrowedFd<'_>,
    path: &[u8],
    expected: Option<&Origin>,
    since: Since<'_>,
) -> io::Result<Option<ConflictReason>> {
    let (parent, name) = tree::split(path);
    let found = match access::visit(base, parent) {
        Ok(parent) => Found::at(parent.handle.as_fd(), name)?,
        Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => None,
            Some(Errno::XDEV) => return Ok(Some(ConflictReason::Mounted)),
            _ => return Err(error),
        },
    };
    Ok(match (found, expected) {
        (None, None) => None,
        (Some(_), None) => Some(ConflictReason::Made),
        (None, Some(_)) => Some(ConflictReason::Removed),
        (Some(found), Some(expected)) => {
            if found.identity != expected.identity {
                Some(ConflictReason::Replaced)
            } else if found.entry.kind == FileKind::Directory {
                // Its own time moves with every name in it; the names are
                // changes of their own.
                None
            } else if found.changed != expected.changed || since.is_later(&found) {
                Some(ConflictReason::Changed)
            } else {
                None
            }
        }
    })
}

/// A file of the tree that what is left of the changes is judged by, and that
/// applying a part of them touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Watched {
    path: Vec<u8>,
    /// How it is, and will be.
    entry: Entry,
    /// Which file it is; `None` for one that is put there.
    before: Option<(Identity, Time)>,
}

/// What to look at again when those that are `picked` are applied. Files that
/// others changed already are left out: they stay conflicts.
///
/// Files change by what happens to others: one with several names, here or in
/// the layer, when one of these comes or goes, and the directory of one that
/// was renamed inside.
pub(super) fn watch(
    all: &[Change],
    picked: &[bool],
    base: BorrowedFd<'_>,
    since: Since<'_>,
) -> io::Result<Vec<Watched>> {
    let mut watched = Vec::new();
    for (change, picked) in all.iter().zip(picked) {
        let several = change.is.as_ref().is_some_and(|is| is.links > 1);
        if *picked {
            let put = change.after.as_ref().filter(|_| several);
            watched.extend(put.map(|entry| Watched {
                path: change.path.clone(),
                entry: entry.clone(),
                before: None,
            }));
            continue;
        }
        let had = change.was.as_ref();
        let linked = had.is_some_and(|was| several || was.links > 1);
        let came_up =
            change.kind == ChangeKind::Created && change.is.as_ref().is_some_and(|is| is.copied_up);
        if !(linked || came_up) || of(change, base, since)?.is_some() {
            continue;
        }
        let path = match (&change.kind, linked) {
            (ChangeKind::Renamed { from }, _) => &from[..],
            (_, true) => &change.path[..],
            (_, false) => tree::split(&change.path).0,
        };
        watched.extend(found(base, path)?.map(|found| Watched {
            path: path.to_vec(),
            entry: found.entry,
            before: Some((found.identity, found.changed)),
        }));
    }
    Ok(watched)
}

/// Those that applying changed, as they are now. A change of somebody else at
/// the same time shows by more than the time of change.
pub(super) fn own(watched: &[Watched], base: BorrowedFd<'_>) -> io::Result<Vec<Own>> {
    let mut own = Vec::new();
    for Watched {
        path,
        entry,
        before,
    } in watched
    {
        let Some(now) = found(base, path)? else {
            continue;
        };
        let same = now.entry == *entry || now.entry.kind == FileKind::Directory;
        let touched = before
            .is_none_or(|(identity, changed)| identity == now.identity && changed != now.changed);
        if same && touched {
            own.push(Own {
                identity: now.identity,
                changed: now.changed,
            });
        }
    }
    own.sort();
    own.dedup();
    Ok(own)
}

fn found(base: BorrowedFd<'_>, path: &[u8]) -> io::Result<Option<Found>> {
    let (parent, name) = tree::split(path);
    match access::visit(base, parent) {
        Ok(parent) if path.is_empty() => Found::of_directory(parent.handle.as_fd()).map(Some),
        Ok(parent) => Found::at(parent.handle.as_fd(), name),
        Err(_) => Ok(None),
    }
}
