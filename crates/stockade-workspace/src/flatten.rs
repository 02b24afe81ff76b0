//! Keeps chains of layers short: layers that lie one on the other become one
//! that shows the same.
//!
//! Each snapshot of a run adds a layer to it, and each apply adds one under
//! every snapshot; what looks through a chain opens every layer of it. So a
//! chain that is deeper than [`DEPTH_MAX`] has a part of it merged, in a
//! process of its own that nobody waits for. The merged layer is built where
//! nothing looks for layers, gets its place by a rename, and then takes the
//! place of those that it stands for in one record after the other: killed
//! anywhere, each chain is the old one or the new one. Layers that another
//! chain needs stay. A run that is in use, and one whose apply was
//! interrupted, keeps its chain until a later time.

mod inspect;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, mkdirat, renameat};

use crate::merge::merge;
use crate::restore::{self, covers::Covers};
use crate::run_dir::{Run, VERSION, now_ms};
use crate::settle::is_interrupted;
use crate::snapshot::LayerMeta;
use crate::store::{Store, StoreError, directory, system};

/// A chain of more layers is flattened.
pub const DEPTH_MAX: usize = 24;
/// How many layers a chain should have afterwards: fewer, so that not every
/// snapshot makes it due again.
const DEPTH_AFTER: usize = 12;
/// Most layers that one call makes; what is left is done by the next.
const ROUNDS_MAX: usize = 64;
/// Where merged layers are built and old ones are emptied, in the store. Its
/// lock belongs to the process that flattens.
const PLACE: &str = "flattening";

/// Whether a chain is too deep, or a process that flattened was killed.
pub fn is_due(store: &Store) -> Result<bool, StoreError> {
    let is_deep = |layers: &[String]| layers.len() > DEPTH_MAX;
    if store.snapshots()?.iter().any(|one| is_deep(&one.layers))
        || store.runs()?.iter().any(|one| is_deep(&one.meta().layers))
    {
        return Ok(true);
    }
    let place = directory::open_private_if_there(store.as_fd(), PLACE);
    let Some(place) = place.map_err(system("open the store"))? else {
        return Ok(false);
    };
    let names = directory::names(place.as_fd()).map_err(system("open the store"))?;
    Ok(!names.is_empty() && try_lock(place.as_fd())?.is_some())
}

/// Flattens what is too deep, and returns how many merged layers that made.
/// Waits for another process that is at it: what became too deep meanwhile,
/// that one does not look at again.
pub fn flatten(store: &Store) -> Result<usize, StoreError> {
    flatten_to(store, DEPTH_MAX, DEPTH_AFTER)
}

/// As [`flatten`], for chains that are deeper than `most`, down to `after`
/// layers where that can be.
pub fn flatten_to(store: &Store, most: usize, after: usize) -> Result<usize, StoreError> {
    let place = store.part(PLACE)?;
    let _alone = directory::lock_directory(place.as_fd()).map_err(system("lock the store"))?;
    clear(place.as_fd())?;
    let mut unfit = BTreeSet::new();
    let mut made = 0;
    for _ in 0..ROUNDS_MAX {
        let Some(window) = next(store, &unfit, (most, after))? else {
            break;
        };
        let found = unfit_of(store, &window)?;
        if !found.is_empty() {
            unfit.extend(found);
            continue;
        }
        if replace(store, place.as_fd(), window)? {
            made += 1;
        }
        clear(place.as_fd())?;
    }
    Ok(made)
}

/// Removes what a killed process left, unless one is at work.
pub(crate) fn clear_litter(store: &Store) -> Result<(), StoreError> {
    let place = directory::open_private_if_there(store.as_fd(), PLACE);
    match place.map_err(system("open the store"))? {
        Some(place) if try_lock(place.as_fd())?.is_some() => clear(place.as_fd()),
        _ => Ok(()),
    }
}

/// What [`clear_litter`] would remove.
pub(crate) fn litter(store: &Store) -> Result<Vec<String>, StoreError> {
    let place = directory::open_private_if_there(store.as_fd(), PLACE);
    match place.map_err(system("open the store"))? {
        Some(place) if try_lock(place.as_fd())?.is_some() => {
            directory::all_names(place.as_fd()).map_err(system("list the store"))
        }
        _ => Ok(Vec::new()),
    }
}

fn try_lock(place: BorrowedFd<'_>) -> Result<Option<directory::Lock>, StoreError> {
    directory::try_lock_directory(place).map_err(system("lock the store"))
}

fn clear(place: BorrowedFd<'_>) -> Result<(), StoreError> {
    let failed = system("clear the store");
    for name in directory::all_names(place).map_err(&failed)? {
        directory::remove_tree(place, &name).map_err(&failed)?;
    }
    Ok(())
}

/// Layers that lie one on the other, the topmost first, and are of one kind.
struct Window {
    ids: Vec<String>,
    kind: Kind,
    /// Until the merged layer is in place, none of them goes.
    kept: directory::Lock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// What a run wrote.
    Frozen,
    /// Old versions of what was applied.
    Old,
}

/// Looks for layers to merge.
fn next(
    store: &Store,
    unfit: &BTreeSet<String>,
    (most, after): (usize, usize),
) -> Result<Option<Window>, StoreError> {
    let _lock = store.lock()?;
    let mut open = BTreeSet::new();
    let mut chains = Vec::new();
    let underway = restore::underway(store)?;
    for snapshot in store.snapshots()? {
        open.extend(snapshot.preimages.iter().cloned());
        if underway.as_ref() != Some(&snapshot.name) {
            chains.push(snapshot.layers);
        }
    }
    for run in store.runs()? {
        open.extend(run.meta().preimages.clone());
        if is_free(&run)? {
            chains.push(run.meta().layers.clone());
        }
    }
    chains.retain(|chain| chain.len() > most);
    chains.sort_by_key(|chain| std::cmp::Reverse(chain.len()));
    for chain in chains {
        let mut layers = Vec::new();
        for id in &chain {
            let meta = store.layer_meta(id)?;
            let kind = meta.as_ref().and_then(|meta| match meta.closed {
                _ if unfit.contains(id) => None,
                Some(_) => Some(Kind::Old),
                // Old versions are still being put into it.
                None if open.contains(id) => None,
                None => Some(Kind::Frozen),
            });
            layers.push((kind, meta.map_or(0, |meta| meta.bytes)));
        }
        if let Some((kind, range)) = choose(&layers, after) {
            return Ok(Some(Window {
                ids: chain[range].to_vec(),
                kind,
                kept: store.keep_layers()?,
            }));
        }
    }
    Ok(None)
}

/// Whether nobody uses or changes the layers of a run.
fn is_free(run: &Run) -> Result<bool, StoreError> {
    Ok(run.meta().freezing.is_none() && !run.is_in_use()? && !is_interrupted(run)?)
}

/// Which part of a chain is merged: as many as it takes, else as many as can
/// be, and of those the ones with the least in them, so that a large layer is
/// not gone through each time.
fn choose(layers: &[(Option<Kind>, u64)], after: usize) -> Option<(Kind, std::ops::Range<usize>)> {
    let wanted = layers.len().checked_sub(after)? + 1;
    let mut best: Option<(usize, u64, usize, Kind)> = None;
    let mut start = 0;
    while start < layers.len() {
        let kind = layers[start].0;
        let rest = layers[start..].iter();
        let length = rest.take_while(|layer| layer.0 == kind).count();
        let size = wanted.min(length);
        if let Some(kind) = kind.filter(|_| size >= 2) {
            for at in start..=start + length - size {
                let part = layers[at..at + size].iter();
                let bytes = part.fold(0, |sum: u64, layer| sum.saturating_add(layer.1));
                let is_better = best.is_none_or(|(most, least, _, _)| {
                    size > most || size == most && bytes <= least
                });
                if is_better {
                    best = Some((size, bytes, at, kind));
                }
            }
        }
        start += length;
    }
    best.map(|(size, _, at, kind)| (kind, at..at + size))
}

/// Layers of a window that cannot be merged.
fn unfit_of(store: &Store, window: &Window) -> Result<Vec<String>, StoreError> {
    let mut unfit = Vec::new();
    for id in &window.ids {
        let tree = store.layer_tree(id)?;
        let fits = inspect::can_be_merged(tree.as_fd(), window.kind == Kind::Old);
        if !fits.map_err(system("look through a layer"))? {
            unfit.push(id.clone());
        }
    }
    Ok(unfit)
}

/// Makes one layer of a window and puts it into every chain that has the
/// window; `false` when none has it any more.
fn replace(store: &Store, place: BorrowedFd<'_>, window: Window) -> Result<bool, StoreError> {
    let failed = system("merge layers");
    let trees = window.ids.iter().map(|id| store.layer_tree(id));
    let trees: Vec<OwnedFd> = trees.collect::<Result<_, _>>()?;
    let (id, layer) = store.make_layer_directory(place, 0)?;
    mkdirat(&layer, crate::snapshot::TREE, Mode::RWXU).map_err(|error| failed(error.into()))?;
    let into = directory::open_directory(layer.as_fd(), crate::snapshot::TREE.as_bytes());
    let into = into.map_err(&failed)?;
    let borrowed: Vec<BorrowedFd<'_>> = trees.iter().map(AsFd::as_fd).collect();
    join(place, &borrowed, into.as_fd()).map_err(&failed)?;
    let mut closed = None;
    if window.kind == Kind::Old {
        let covers = Covers::of(store, &window.ids)?;
        covers.write(layer.as_fd()).map_err(&failed)?;
        closed = covers.latest();
    }
    let usage = crate::measure::measure(into.as_fd()).map_err(&failed)?;
    let meta = LayerMeta {
        version: VERSION,
        frozen_ms: now_ms(),
        bytes: usage.bytes,
        closed,
        merged: store.originals(&window.ids)?,
    };
    crate::store::write_record(layer.as_fd(), crate::snapshot::META, &meta)?;
    // The old ones go, so the new one must be on the disk.
    rustix::fs::syncfs(&layer).map_err(|error| failed(error.into()))?;
    let _lock = store.lock()?;
    let layers = store.part("layers")?;
    renameat(place, id.as_str(), &layers, id.as_str()).map_err(|error| failed(error.into()))?;
    let switched = switch(store, &window, &id)?;
    drop(window.kept);
    crate::gc::set_aside(store, place)?;
    Ok(switched)
}

/// Puts the merged layer into every chain that has the window.
fn switch(store: &Store, window: &Window, id: &str) -> Result<bool, StoreError> {
    let mut switched = false;
    let underway = restore::underway(store)?;
    for mut snapshot in store.snapshots()? {
        let is_settled = underway.as_ref() != Some(&snapshot.name);
        if is_settled && exchange(&mut snapshot.layers, &window.ids, id) {
            exchange(&mut snapshot.preimages, &window.ids, id);
            store.write_snapshot(&snapshot)?;
            switched = true;
        }
    }
    for mut run in store.runs()? {
        let has_it = exchange(&mut run.meta().layers.clone(), &window.ids, id);
        if has_it && is_free(&run)? && run.take().is_ok() {
            run.update(|meta| {
                exchange(&mut meta.layers, &window.ids, id);
            })?;
            switched = true;
        }
    }
    Ok(switched)
}

/// Puts `id` in place of `window`; whether it was there.
fn exchange(chain: &mut Vec<String>, window: &[String], id: &str) -> bool {
    let at = chain.windows(window.len()).position(|part| part == window);
    if let Some(at) = at {
        chain.splice(at..at + window.len(), [id.to_owned()]);
    }
    at.is_some()
}

/// Merges trees, the topmost first. By halves, so that each file is gone
/// through a few times only.
fn join(place: BorrowedFd<'_>, trees: &[BorrowedFd<'_>], into: BorrowedFd<'_>) -> io::Result<()> {
    let (above, below) = trees.split_at(trees.len() / 2);
    let (above, below) = (half(place, above)?, half(place, below)?);
    merge(above.tree(), below.tree(), into)?;
    for half in [above, below] {
        if let Half::Made(name, _) = half {
            directory::remove_tree(place, &name)?;
        }
    }
    Ok(())
}

/// A part of what is merged.
enum Half<'a> {
    Layer(BorrowedFd<'a>),
    Made(String, OwnedFd),
}

impl Half<'_> {
    fn tree(&self) -> BorrowedFd<'_> {
        match self {
            Self::Layer(tree) => *tree,
            Self::Made(_, tree) => tree.as_fd(),
        }
    }
}

fn half<'a>(place: BorrowedFd<'_>, trees: &[BorrowedFd<'a>]) -> io::Result<Half<'a>> {
    if let [tree] = trees {
        return Ok(Half::Layer(*tree));
    }
    let name = format!("half-{}", directory::random_name()?);
    let tree = directory::make_private(place, &name)?;
    join(place, trees, tree.as_fd())?;
    Ok(Half::Made(name, tree))
}

#[cfg(test)]
mod tests {
    use super::{DEPTH_AFTER, Kind, choose, exchange};

    fn frozen(bytes: u64) -> (Option<Kind>, u64) {
        (Some(Kind::Frozen), bytes)
    }

    #[test]
    fn the_least_of_a_chain_is_merged_and_the_large_ones_stay() {
        let mut chain = vec![frozen(10); 25];
        chain[24] = frozen(1 << 30);
        let (kind, range) = choose(&chain, DEPTH_AFTER).unwrap();
        assert_eq!((kind, range), (Kind::Frozen, 10..24));
        assert_eq!(chain.len() - 14 + 1, DEPTH_AFTER);
    }

    #[test]
    fn nothing_is_merged_across_another_kind_or_an_unfit_layer() {
        let mut chain = vec![frozen(1); 15];
        chain[5] = (None, 1);
        chain.extend([(Some(Kind::Old), 1); 12]);
        assert_eq!(choose(&chain, DEPTH_AFTER).unwrap(), (Kind::Old, 15..27));
        let alone: Vec<_> = (0..30)
            .map(|number| match number % 2 {
                0 => frozen(1),
                _ => (None, 1),
            })
            .collect();
        assert_eq!(choose(&alone, DEPTH_AFTER), None);
    }

    #[test]
    fn only_whole_windows_are_exchanged() {
        let chain = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
        let mut has_it = chain("abcd");
        assert!(exchange(&mut has_it, &chain("bc"), "m"));
        assert_eq!(has_it, chain("amd"));
        let mut part = chain("cd");
        assert!(!exchange(&mut part, &chain("bc"), "m"));
        assert_eq!(part, chain("cd"));
    }
}
