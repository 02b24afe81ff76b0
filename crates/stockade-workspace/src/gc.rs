//! Clears away what nothing refers to: half-made and half-removed runs, what
//! killed runs in discard mode wrote, and layers of no run and no snapshot.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::renameat;
use stockade_policy::path::AbsolutePath;

use crate::run_dir::{self, Fate, Run};
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
    let aside = {
        let _lock = store.lock()?;
        let abandoned = abandoned(store)?.into_iter();
        abandoned
            .map(Run::set_aside)
            .collect::<Result<Vec<_>, _>>()?
    };
    // They can be large; meanwhile others may begin.
    for (runs, name) in &aside {
        directory::remove_tree(runs.as_fd(), name).map_err(system("clear the store"))?;
    }
    let _lock = store.lock()?;
    let mut collected = collect_locked(store)?;
    collected.runs += aside.len();
    Ok(collected)
}

/// Whether a killed run left something. The caller holds the lock of the store.
pub fn is_due(store: &Store) -> Result<bool, StoreError> {
    let runs = store.part("runs")?;
    for name in directory::all_names(runs.as_fd()).map_err(system("list the runs"))? {
        let whole = match name.starts_with('.') {
            true => None,
            false => run_dir::open(store, runs.as_fd(), &name)?,
        };
        let Some(mut run) = whole else {
            return Ok(true);
        };
        if take_abandoned(&mut run)? {
            return Ok(true);
        }
    }
    Ok(false)
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
    let abandoned = abandoned(store)?;
    let id = |run: &Run| run.meta().id.clone();
    add("runs", abandoned.iter().map(id).collect());
    add("runs", halves(store)?);
    add("runs", trash(store.part("runs")?.as_fd())?);
    add("layers", unreferenced(store)?);
    add("layers", trash(store.part("layers")?.as_fd())?);
    add("flattening", crate::flatten::litter(store)?);
    let path = |name: String| store.path().join(name).ok();
    Ok(names.into_iter().filter_map(path).collect())
}

/// As [`collect`], for who holds the lock of the store, but for what killed runs
/// wrote. Runs are made under that lock, so one without a record is one whose
/// maker died.
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

/// Runs in discard mode whose supervisor was killed, locked.
fn abandoned(store: &Store) -> Result<Vec<Run>, StoreError> {
    let mut abandoned = Vec::new();
    for mut run in store.runs()? {
        if take_abandoned(&mut run)? {
            abandoned.push(run);
        }
    }
    Ok(abandoned)
}

fn take_abandoned(run: &mut Run) -> Result<bool, StoreError> {
    Ok(run.meta().fate == Fate::Discard && run.try_take()?)
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
