//! Clears away what nothing refers to: half-made and half-removed runs, and
//! layers of no run and no snapshot.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::renameat;
use stockade_policy::path::AbsolutePath;

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

/// What [`collect`] would clear away, as paths.
pub fn litter(store: &Store) -> Result<Vec<AbsolutePath>, StoreError> {
    let _lock = store.lock()?;
    let mut names: Vec<String> = Vec::new();
    let mut add = |part: &str, found: Vec<String>| {
        names.extend(found.into_iter().map(|name| format!("{part}/{name}")));
    };
    for run in store.runs()? {
        add(&format!("runs/{}", run.meta().id), trash(run.directory())?);
    }
    add("runs", halves(store)?);
    add("runs", trash(store.part("runs")?.as_fd())?);
    add("layers", unreferenced(store)?);
    add("layers", trash(store.part("layers")?.as_fd())?);
    add("flattening", crate::flatten::litter(store)?);
    let path = |name: String| store.path().join(name).ok();
    Ok(names.into_iter().filter_map(path).collect())
}

/// As [`collect`], for who holds the lock of the store. Runs are made under
/// that lock, so one without a record is one whose maker died.
pub(crate) fn collect_locked(store: &Store) -> Result<Collected, StoreError> {
    let mut collected = Collected::default();
    for run in store.runs()? {
        clear_trash(run.directory())?;
    }
    let runs = store.part("runs")?;
    for name in halves(store)? {
        remove(runs.as_fd(), &name)?;
        collected.runs += 1;
    }
    clear_trash(runs.as_fd())?;
    let layers = store.part("layers")?;
    for name in unreferenced(store)? {
        // Whoever reads layers keeps them all; the next call takes them.
        let Some(_alone) = store.try_take_layers()? else {
            break;
        };
        set_one_aside(layers.as_fd(), &name, layers.as_fd())?;
        collected.layers += 1;
    }
    clear_trash(layers.as_fd())?;
    crate::flatten::clear_litter(store)?;
    Ok(collected)
}

/// Runs that were never made whole.
fn halves(store: &Store) -> Result<Vec<String>, StoreError> {
    let whole: BTreeSet<String> = store
        .runs()?
        .iter()
        .map(|run| run.meta().id.clone())
        .collect();
    let runs = store.part("runs")?;
    let mut names = directory::names(runs.as_fd()).map_err(system("clear the store"))?;
    names.retain(|name| !whole.contains(name));
    Ok(names)
}

/// Layers that no run and no snapshot has.
fn unreferenced(store: &Store) -> Result<Vec<String>, StoreError> {
    let mut referenced = BTreeSet::new();
    for run in store.runs()? {
        let meta = run.meta();
        referenced.extend(meta.layers.iter().cloned());
        referenced.extend(meta.preimages.iter().cloned());
        referenced.extend(meta.freezing.iter().cloned());
    }
    for snapshot in store.snapshots()? {
        referenced.extend(snapshot.layers);
        referenced.extend(snapshot.preimages);
    }
    let layers = store.part("layers")?;
    let mut names = directory::names(layers.as_fd()).map_err(system("clear the store"))?;
    names.retain(|name| !referenced.contains(name));
    Ok(names)
}

/// Moves layers that nothing refers to into `place`, to be removed there
/// without the lock of the store, which the caller holds.
pub(crate) fn set_aside(store: &Store, place: BorrowedFd<'_>) -> Result<(), StoreError> {
    let names = unreferenced(store)?;
    let Some(_alone) = store.try_take_layers()? else {
        return Ok(());
    };
    let layers = store.part("layers")?;
    for name in names {
        set_one_aside(layers.as_fd(), &name, place)?;
    }
    Ok(())
}

fn set_one_aside(
    parent: BorrowedFd<'_>,
    name: &str,
    place: BorrowedFd<'_>,
) -> Result<String, StoreError> {
    let failed = system("clear the store");
    let trash = format!(".trash-{}", directory::random_name().map_err(&failed)?);
    renameat(parent, name, place, trash.as_str()).map_err(|error| failed(error.into()))?;
    Ok(trash)
}

/// Removes a directory by one step, so that no half of it is ever used.
pub(crate) fn remove(parent: BorrowedFd<'_>, name: &str) -> Result<(), StoreError> {
    let trash = set_one_aside(parent, name, parent)?;
    directory::remove_tree(parent, &trash).map_err(system("clear the store"))
}

/// Finishes removals that were interrupted, and drops records that were never
/// put in place.
fn clear_trash(parent: BorrowedFd<'_>) -> Result<(), StoreError> {
    for name in trash(parent)? {
        directory::remove_tree(parent, &name).map_err(system("clear the store"))?;
    }
    Ok(())
}

fn trash(parent: BorrowedFd<'_>) -> Result<Vec<String>, StoreError> {
    let mut names = directory::all_names(parent).map_err(system("clear the store"))?;
    names.retain(|name| name.starts_with(".trash-") || name.starts_with(".meta.json."));
    Ok(names)
}
