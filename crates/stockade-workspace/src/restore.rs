//! Gives the tree back as a snapshot saw it.

pub(crate) mod covers;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, openat, statat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use stockade_policy::path::printable;

use self::covers::{Covers, Until};
use crate::apply::{self, OnConflict, Outcome, Ownership, Request, Stamp};
use crate::journal::Journal;
use crate::settle::{Layers, SettleError};
use crate::snapshot::Snapshot;
use crate::store::{Store, StoreError, read_record, system, write_record};
use crate::tree::{Identity, Time};

const RECORD: &str = "restore.json";
const JOURNAL: &str = "restore-journal";
/// Deepest directory that is looked at.
const DEPTH_MAX: usize = 256;
/// What the clocks of two file systems may differ by, in nanoseconds.
const TICK_NS: u32 = 20_000_000;
/// Most paths that a refusal names.
const SHOWN_MAX: usize = 20;

/// A restore on its way: what is needed to finish it.
#[derive(Debug, Serialize, Deserialize)]
struct Underway {
    snapshot: String,
    /// The layer that takes the versions which are replaced.
    preimages: String,
}

/// Why the tree was not given back.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error(transparent)]
    Settle(#[from] SettleError),
    /// Nothing was changed.
    #[error("{}", changed_text(.0))]
    Changed(Vec<Vec<u8>>),
}

impl From<StoreError> for RestoreError {
    fn from(error: StoreError) -> Self {
        Self::Settle(error.into())
    }
}

impl From<crate::diff::DiffError> for RestoreError {
    fn from(error: crate::diff::DiffError) -> Self {
        Self::Settle(error.into())
    }
}

impl From<apply::ApplyError> for RestoreError {
    fn from(error: apply::ApplyError) -> Self {
        Self::Settle(error.into())
    }
}

fn changed_text(paths: &[Vec<u8>]) -> String {
    let mut text = String::from(
        "the snapshot cannot be given back exactly: the tree was changed outside of stockade since",
    );
    for path in paths.iter().take(SHOWN_MAX) {
        text.push_str(&format!("\n    {}", printable(path)));
    }
    if paths.len() > SHOWN_MAX {
        text.push_str(&format!("\n    and {} more", paths.len() - SHOWN_MAX));
    }
    text.push_str(
        "\n  remedy: put these back yourself, or go on from the snapshot beside the tree: \
         `stockade fork`",
    );
    text
}

/// Makes the tree what the snapshot saw: contents, modes, times, links,
/// attributes. What is replaced goes under every snapshot. An interrupted call
/// is finished by the next one.
pub fn restore(
    store: &Store,
    name: &str,
    progress: &dyn Fn(usize, usize),
) -> Result<Outcome, RestoreError> {
    let _lock = store.lock()?;
    let mut journal = Journal::open(store.as_fd(), JOURNAL).map_err(system("read the journal"))?;
    let underway = match read_record::<Underway>(store.as_fd(), RECORD)? {
        Some(underway) if journal.is_pending() && underway.snapshot != name => {
            return Err(StoreError::Refused(format!(
                "restoring {} was interrupted\n  remedy: finish it: `stockade restore {}`",
                underway.snapshot, underway.snapshot
            ))
            .into());
        }
        Some(underway) if journal.is_pending() => underway,
        _ => begin(store, name)?,
    };
    let snapshot = store.known_snapshot(&underway.snapshot)?;
    let below: Vec<String> = snapshot
        .layers
        .iter()
        .filter(|id| **id != underway.preimages)
        .cloned()
        .collect();
    let layers = Layers::frozen(store, &below)?;
    let list = layers.layers();
    let preimages = store.layer_tree(&underway.preimages)?;
    let request = Request {
        layers: &list,
        base: layers.base(),
        preimages: preimages.as_fd(),
        stamp: None,
        own: &[],
        ownership: Ownership::Keep,
        on_conflict: OnConflict::Refuse,
        progress,
    };
    let outcome = match journal.is_pending() {
        true => apply::resume(&request, &mut journal)?,
        false if list.is_empty() => Outcome::default(),
        false => {
            let changes = layers.changes()?;
            apply::apply(&changes, &|_| true, &request, &mut journal)?
        }
    };
    drop(layers);
    store.close_layer(&underway.preimages)?;
    unlinkat(store.as_fd(), RECORD, AtFlags::empty())
        .map_err(|error| system("end the restore")(error.into()))?;
    crate::gc::collect_locked(store)?;
    Ok(outcome)
}

/// Makes sure that the snapshot can be given back, and notes that it will be.
fn begin(store: &Store, name: &str) -> Result<Underway, RestoreError> {
    let snapshot = store.known_snapshot(name)?;
    let changed = changed_since(store, &snapshot)?;
    if !changed.is_empty() {
        return Err(RestoreError::Changed(changed));
    }
    let underway = Underway {
        snapshot: name.to_owned(),
        preimages: store.new_layer()?,
    };
    store.put_under_snapshots(&underway.preimages, "")?;
    write_record(store.as_fd(), RECORD, &underway)?;
    Ok(underway)
}

/// The snapshot that a restore was interrupted at, if one was.
pub(crate) fn underway(store: &Store) -> Result<Option<String>, StoreError> {
    let underway = read_record::<Underway>(store.as_fd(), RECORD)?;
    Ok(underway.map(|underway| underway.snapshot))
}

/// Paths of the tree that the host changed after the snapshot: their time of
/// change is later, and no layer of old versions explains it.
fn changed_since(store: &Store, snapshot: &Snapshot) -> Result<Vec<Vec<u8>>, StoreError> {
    let failed = system("look through the tree");
    let base = crate::tree_root(store.workspace()).map_err(&failed)?;
    let mut walk = Walk {
        stamp: snapshot.stamp,
        covers: Covers::of(store, &snapshot.preimages)?,
        changed: Vec::new(),
    };
    walk.directory(base.as_fd(), &[], None, 0)
        .map_err(&failed)?;
    Ok(walk.changed)
}

struct Walk {
    stamp: Stamp,
    covers: Covers,
    changed: Vec<Vec<u8>>,
}

impl Walk {
    fn directory(
        &mut self,
        directory: BorrowedFd<'_>,
        path: &[u8],
        above: Option<Until>,
        depth: usize,
    ) -> io::Result<()> {
        if depth > DEPTH_MAX {
            return Err(io::Error::other(format!("{} is too deep", printable(path))));
        }
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let status = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(status) => status,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            };
            let inner: Vec<u8> = match path {
                [] => name.to_bytes().to_vec(),
                _ => [path, b"/", name.to_bytes()].concat(),
            };
            let cover = self.covers.at(&inner);
            let below = later(above, cover.and_then(|cover| cover.below));
            if is_after(time_of_change(&status), self.stamp, status.st_dev) {
                let file = Identity {
                    device: status.st_dev,
                    inode: status.st_ino,
                };
                let own = later(above, cover.map(|cover| cover.own));
                let until = later(own, self.covers.of_file(file));
                if !until.is_some_and(|until| explains(until, &status)) {
                    self.changed.push(inner.clone());
                }
            }
            if FileType::from_raw_mode(status.st_mode) == FileType::Directory {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                match openat(directory, name, flags, Mode::empty()) {
                    Ok(next) => self.directory(next.as_fd(), &inner, below, depth + 1)?,
                    // It is unreadable to a run of the caller's as well.
                    Err(Errno::ACCESS) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }
}

fn later(one: Option<Until>, other: Option<Until>) -> Option<Until> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.later(other)),
        (one, other) => one.or(other),
    }
}

fn explains(until: Until, status: &Stat) -> bool {
    let changed = time_of_change(status);
    until
        .0
        .is_none_or(|closed| !is_after(changed, closed, status.st_dev))
}

fn time_of_change(status: &Stat) -> Time {
    Time {
        seconds: status.st_ctime as _,
        nanoseconds: status.st_ctime_nsec as u32,
    }
}

/// Whether a time of change is at or after a stamp.
fn is_after(changed: Time, stamp: Stamp, device: u64) -> bool {
    let mut from = stamp.time;
    if device != stamp.device {
        if from.nanoseconds < TICK_NS {
            from.seconds -= 1;
            from.nanoseconds += 1_000_000_000;
        }
        from.nanoseconds -= TICK_NS;
    }
    (changed.seconds, changed.nanoseconds) >= (from.seconds, from.nanoseconds)
}
