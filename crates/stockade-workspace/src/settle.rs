//! Settles what a run wrote: shows it, brings it into the tree, or drops it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::apply::{self, ApplyError, OnConflict, Outcome, Ownership, Request};
use crate::change::{Change, Changes};
use crate::diff::{DiffError, diff};
use crate::journal::Journal;
use crate::run_dir::{Fate, Run};
use crate::stack::Stack;
use crate::store::{Lock, Store, StoreError, directory, system};

/// Name of the journal and of the old versions in a run's directory.
const JOURNAL: &str = "journal";
const PREIMAGES: &str = "preimages";

/// Why a run cannot be settled.
#[derive(Debug, thiserror::Error)]
pub enum SettleError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Diff(#[from] DiffError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// The layers of a run over the tree, open. No layer of the store goes while
/// this lives.
#[derive(Debug)]
pub struct Layers {
    layers: Vec<OwnedFd>,
    base: OwnedFd,
    _kept: Lock,
}

impl Layers {
    /// Opens the layers of a run, its own first.
    pub fn of_run(store: &Store, run: &Run) -> Result<Self, StoreError> {
        let kept = store.keep_layers()?;
        let mut layers = vec![run.upper()?];
        for id in &run.current_layers()? {
            layers.push(store.layer_tree(id)?);
        }
        Self::over_tree(store, layers, kept)
    }

    /// Opens frozen layers, the topmost first.
    pub fn frozen(store: &Store, ids: &[String]) -> Result<Self, StoreError> {
        let kept = store.keep_layers()?;
        let layers = ids.iter().map(|id| store.layer_tree(id));
        Self::over_tree(store, layers.collect::<Result<_, _>>()?, kept)
    }

    fn over_tree(store: &Store, layers: Vec<OwnedFd>, kept: Lock) -> Result<Self, StoreError> {
        let base = crate::tree_root(store.workspace()).map_err(system("open the workspace"))?;
        Ok(Self {
            layers,
            base,
            _kept: kept,
        })
    }

    /// The layers, the topmost first.
    pub fn layers(&self) -> Vec<BorrowedFd<'_>> {
        self.layers.iter().map(AsFd::as_fd).collect()
    }

    /// The tree.
    pub fn base(&self) -> BorrowedFd<'_> {
        self.base.as_fd()
    }

    /// What the layers change in the tree.
    pub fn changes(&self) -> Result<Changes, DiffError> {
        diff(&self.layers(), self.base())
    }

    /// The tree with the layers, and without.
    pub fn stacks(&self) -> Result<(Stack, Stack), StoreError> {
        let failed = system("read the layers");
        let whole = Stack::new(&self.layers(), self.base()).map_err(&failed)?;
        let below = Stack::new(&[], self.base()).map_err(&failed)?;
        Ok((whole, below))
    }
}

/// What became of a run that was applied.
#[derive(Debug)]
pub struct Applied {
    pub outcome: Outcome,
    /// Changes that still wait; the run is gone when there are none.
    pub left: usize,
}

/// Whether an apply of this run was interrupted.
pub fn is_interrupted(run: &Run) -> Result<bool, StoreError> {
    let journal = Journal::open(run.directory(), JOURNAL).map_err(system("read the journal"))?;
    Ok(journal.is_pending())
}

/// Brings what `selected` chooses into the tree. An interrupted call is
/// finished first, with what it had chosen; nothing else is applied then.
///
/// Where the store has snapshots, the old versions go under them before
/// anything changes, so that each still shows what it saw.
pub fn apply_run(
    store: &Store,
    mut run: Run,
    selected: &dyn Fn(&Change) -> bool,
    on_conflict: OnConflict,
    progress: &dyn Fn(usize, usize),
) -> Result<Applied, SettleError> {
    run.take()?;
    let _lock = store.lock()?;
    if run.meta().fate == Fate::Discard {
        // It was killed; what a person takes a part of waits for that person.
        run.update(|meta| meta.fate = Fate::Review)?;
    }
    // What is moved into the tree must not be lost later.
    run.reach_disk()?;
    let mut journal =
        Journal::open(run.directory(), JOURNAL).map_err(system("read the journal"))?;
    let interrupted = journal.is_pending();
    let preimages = preimages(store, &mut run, interrupted)?;
    let own = run.meta().own.clone();
    let layers = Layers::of_run(store, &run)?;
    let list = layers.layers();
    let request = Request {
        layers: &list,
        base: layers.base(),
        preimages: preimages.as_fd(),
        stamp: Some(run.meta().stamp),
        own: &own,
        ownership: match list.len() {
            1 => Ownership::Consume,
            _ => Ownership::Keep,
        },
        on_conflict,
        progress,
    };
    let outcome = match interrupted {
        true => apply::resume(&request, &mut journal)?,
        false => {
            let changes = layers.changes()?;
            apply::apply(&changes, selected, &request, &mut journal)?
        }
    };
    let left = layers.changes()?.len();
    keep_preimages(store, &mut run)?;
    let own = outcome.own(layers.base())?;
    drop(layers);
    if left == 0 {
        run.remove()?;
    } else {
        run.measure_again(&own)?;
    }
    crate::gc::collect_locked(store)?;
    Ok(Applied { outcome, left })
}

/// The directory for the old versions: a layer under every snapshot where
/// there is one, else a directory of the run that goes when it is applied.
fn preimages(store: &Store, run: &mut Run, interrupted: bool) -> Result<OwnedFd, SettleError> {
    let failed = system("make room for the old versions");
    if interrupted && let Some(id) = &run.meta().preimages {
        return Ok(store.layer_tree(id)?);
    }
    if interrupted {
        return Ok(directory::open_private(run.directory(), PREIMAGES).map_err(&failed)?);
    }
    // What an apply that was finished left behind.
    keep_preimages(store, run)?;
    if !store.is_referenced_from_snapshots()? {
        return Ok(directory::make_private(run.directory(), PREIMAGES).map_err(&failed)?);
    }
    let id = store.new_layer()?;
    run.update(|meta| meta.preimages = Some(id.clone()))?;
    store.put_under_snapshots(&id, &run.meta().id)?;
    Ok(store.layer_tree(&id)?)
}

/// Settles the old versions of an apply that is over.
fn keep_preimages(store: &Store, run: &mut Run) -> Result<(), SettleError> {
    if let Some(id) = run.meta().preimages.clone() {
        store.close_layer(&id)?;
        run.update(|meta| meta.preimages = None)?;
    }
    directory::remove_tree(run.directory(), PREIMAGES)
        .map_err(system("remove the old versions"))?;
    Ok(())
}

/// Brings the layers of runs to the disk whose commands did not wait for it,
/// while nobody waits. What is in use is left out.
pub fn reach_disk(store: &Store) -> Result<(), StoreError> {
    for mut run in store.runs()? {
        run.reach_disk_beside(store)?;
    }
    Ok(())
}

/// Drops what a run wrote. Nothing of it reached the tree, unless it was
/// applied in part.
pub fn discard_run(store: &Store, mut run: Run) -> Result<(), SettleError> {
    run.take()?;
    let _lock = store.lock()?;
    if is_interrupted(&run)? {
        return Err(SettleError::Apply(ApplyError::Pending));
    }
    keep_preimages(store, &mut run)?;
    run.remove()?;
    crate::gc::collect_locked(store)?;
    Ok(())
}
