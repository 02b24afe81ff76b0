//! Clears away what nothing refers to: half-made and half-removed runs, and
//! layers of no run and no snapshot.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Dir, renameat};

use crate::store::{Store, StoreError, directory, system};

/// What was cleared away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    pub runs: usize,
    pub layers: usize,
}

/// Clears away what nothing refers to. Waiting runs and snapshots stay,
/// however old they are.
pub fn collect(store: &Store) -> Result<Collected, StoreError> {
    let _lock = store.lock()?;
    collect_locked(store)
}

/// As [`collect`], for who holds the lock of the store. Runs are made under
/// that lock, so one without a record is one whose maker died.
pub(crate) fn collect_locked(store: &Store) -> Result<Collected, StoreError> {
    let mut collected = Collected::default();
    let failed = system("clear the store");
    let runs = store.part("runs")?;
    let mut whole = BTreeSet::new();
    let mut referenced = BTreeSet::new();
    for run in store.runs()? {
        let meta = run.meta();
        whole.insert(meta.id.clone());
        referenced.extend(meta.layers.iter().cloned());
        referenced.extend(meta.preimages.iter().cloned());
        referenced.extend(meta.freezing.iter().cloned());
        clear_trash(run.directory())?;
    }
    for name in directory::names(runs.as_fd()).map_err(&failed)? {
        if !whole.contains(&name) {
            remove(runs.as_fd(), &name)?;
            collected.runs += 1;
        }
    }
    clear_trash(runs.as_fd())?;
    for snapshot in store.snapshots()? {
        referenced.extend(snapshot.layers);
    }
    let layers = store.part("layers")?;
    for name in directory::names(layers.as_fd()).map_err(&failed)? {
        if !referenced.contains(&name) {
            remove(layers.as_fd(), &name)?;
            collected.layers += 1;
        }
    }
    clear_trash(layers.as_fd())?;
    Ok(collected)
}

/// Removes a directory by one step, so that no half of it is ever used.
pub(crate) fn remove(parent: BorrowedFd<'_>, name: &str) -> Result<(), StoreError> {
    let failed = system("clear the store");
    let trash = format!(".trash-{}", directory::random_name().map_err(&failed)?);
    renameat(parent, name, parent, trash.as_str()).map_err(|error| failed(error.into()))?;
    directory::remove_tree(parent, &trash).map_err(&failed)
}

/// Finishes removals that were interrupted, and drops records that were never
/// put in place.
fn clear_trash(parent: BorrowedFd<'_>) -> Result<(), StoreError> {
    let failed = system("clear the store");
    let mut names = Vec::new();
    let entries = Dir::read_from(parent).map_err(|error| failed(error.into()))?;
    for entry in entries {
        let entry = entry.map_err(|error| failed(error.into()))?;
        if let Ok(name) = entry.file_name().to_str()
            && (name.starts_with(".trash-") || name.starts_with(".meta.json."))
        {
            names.push(name.to_owned());
        }
    }
    for name in names {
        directory::remove_tree(parent, &name).map_err(&failed)?;
    }
    Ok(())
}
