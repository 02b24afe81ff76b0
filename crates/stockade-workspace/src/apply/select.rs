//! Which changes go together: a file needs the directory that it is in, and a
//! directory goes only when all that was in it goes.

use crate::change::{Change, ChangeKind};
use crate::tree;

/// Extends a choice to what it needs, then takes back what cannot be done
/// without something that was not chosen. `forbidden` is never chosen.
pub(super) fn close(changes: &[Change], chosen: &[bool], forbidden: &[bool]) -> Vec<bool> {
    let mut selected: Vec<bool> = chosen
        .iter()
        .zip(forbidden)
        .map(|(chosen, forbidden)| *chosen && !forbidden)
        .collect();
    for index in 0..changes.len() {
        if selected[index] {
            for above in makers(changes, index) {
                selected[above] |= !forbidden[above];
            }
        }
    }
    loop {
        let before = selected.clone();
        for index in 0..changes.len() {
            if selected[index] {
                selected[index] = makers(changes, index)
                    .into_iter()
                    .all(|above| selected[above]);
            }
            if !selected[index] {
                for above in takers(changes, index) {
                    selected[above] = false;
                }
            }
        }
        if selected == before {
            return selected;
        }
    }
}

/// The index of the change at a path.
pub(super) fn find(changes: &[Change], path: &[u8]) -> Option<usize> {
    changes
        .binary_search_by(|change| change.path[..].cmp(path))
        .ok()
}

/// Every directory above a path, nearest first, the root not included.
pub(super) fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = tree::split(path).0;
    std::iter::from_fn(move || {
        let above = rest;
        rest = tree::split(rest).0;
        (!above.is_empty()).then_some(above)
    })
}

/// Changes that make a directory which this one is in.
fn makers(changes: &[Change], index: usize) -> Vec<usize> {
    let above = ancestors(&changes[index].path);
    above
        .filter_map(|path| find(changes, path))
        .filter(|&above| changes[above].makes_directory())
        .collect()
}

/// Changes that take away a directory which what this one takes away is in.
fn takers(changes: &[Change], index: usize) -> Vec<usize> {
    let path = match &changes[index].kind {
        ChangeKind::Renamed { from } => from,
        _ => &changes[index].path,
    };
    ancestors(path)
        .filter_map(|path| find(changes, path))
        .filter(|&above| changes[above].takes_directory())
        .collect()
}
