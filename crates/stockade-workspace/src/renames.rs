//! Pairs files that are gone with files that are new.
//!
//! An overlay keeps no trace of a rename that user space could trust, so a
//! pair is found by what the files are: the same content, not empty, with the
//! same name or the same time of modification; else the same content, when
//! each side has exactly one.

use std::collections::{BTreeMap, HashMap};
use std::io;

use crate::change::{Aspects, Change, ChangeKind};
use crate::diff::DiffError;
use crate::stack::Stack;
use crate::tree::{self, FileKind};

/// Most files that are compared by content on one side. Beyond, what was
/// renamed shows as deleted and created, which applies just the same.
const CANDIDATES_MAX: usize = 10_000;
/// Most bytes of a file that is compared.
const CANDIDATE_BYTES_MAX: u64 = 64 * 1024 * 1024;

type Key = (u64, [u8; 32]);

/// Turns each pair of a deleted and a created file into one renamed file.
pub(crate) fn pair(
    mut changes: Vec<Change>,
    whole: &Stack,
    lower: &Stack,
) -> Result<Vec<Change>, DiffError> {
    let gone = candidates(&changes, &ChangeKind::Deleted);
    let new = candidates(&changes, &ChangeKind::Created);
    if gone.len() > CANDIDATES_MAX || new.len() > CANDIDATES_MAX {
        return Ok(changes);
    }
    let gone_sizes = sizes(&changes, &gone);
    let new_sizes = sizes(&changes, &new);
    let mut by_content: BTreeMap<Key, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
    let sides = [(&gone, &new_sizes, lower), (&new, &gone_sizes, whole)];
    for (side, (list, other, stack)) in sides.into_iter().enumerate() {
        for &index in list {
            let size = size(&changes[index]);
            if !other.contains_key(&size) {
                continue;
            }
            let Some(digest) = digest(stack, &changes[index].path)? else {
                continue;
            };
            let pair = by_content.entry((size, digest)).or_default();
            if side == 0 {
                pair.0.push(index)
            } else {
                pair.1.push(index)
            }
        }
    }
    let mut removed = Vec::new();
    for (gone, new) in by_content.into_values() {
        for (from, to) in matches(&changes, gone, new) {
            let old = changes[from].clone();
            let change = &mut changes[to];
            change.kind = ChangeKind::Renamed { from: old.path };
            change.before = old.before;
            change.was = old.was;
            change.aspects = rename_aspects(change);
            removed.push(from);
        }
    }
    removed.sort_unstable();
    let mut index = 0;
    changes.retain(|_| {
        index += 1;
        removed.binary_search(&(index - 1)).is_err()
    });
    Ok(changes)
}

fn rename_aspects(change: &Change) -> Aspects {
    let (Some(after), Some(before)) = (&change.after, &change.before) else {
        return Aspects::default();
    };
    Aspects {
        content: false,
        mode: after.mode != before.mode,
        owner: (after.uid, after.gid) != (before.uid, before.gid),
        times: after.modified != before.modified,
        attributes: after.attributes != before.attributes,
        links: false,
    }
}

/// Which of equal files belong together.
fn matches(changes: &[Change], mut gone: Vec<usize>, mut new: Vec<usize>) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    let name = |index: usize| tree::split(&changes[index].path).1;
    let modified = |index: usize| {
        let change = &changes[index];
        let entry = change.after.as_ref().or(change.before.as_ref());
        entry.map(|entry| entry.modified)
    };
    let same_name = |from: usize, to: usize| name(from) == name(to);
    let same_time = |from: usize, to: usize| modified(from) == modified(to);
    let rules: [&dyn Fn(usize, usize) -> bool; 3] = [
        &|from, to| same_name(from, to) && same_time(from, to),
        &same_time,
        &same_name,
    ];
    for rule in rules {
        gone.retain(|&from| match new.iter().position(|&to| rule(from, to)) {
            Some(at) => {
                pairs.push((from, new.remove(at)));
                false
            }
            None => true,
        });
    }
    if let ([from], [to]) = (&gone[..], &new[..]) {
        pairs.push((*from, *to));
    }
    pairs
}

fn candidates(changes: &[Change], kind: &ChangeKind) -> Vec<usize> {
    let is_candidate = |change: &Change| {
        let entry = change.after.as_ref().or(change.before.as_ref());
        change.kind == *kind
            && change.linked_to.is_none()
            && entry.is_some_and(|entry| {
                entry.kind == FileKind::File && (1..=CANDIDATE_BYTES_MAX).contains(&entry.size)
            })
    };
    let all = changes.iter().enumerate();
    all.filter(|(_, change)| is_candidate(change))
        .map(|(index, _)| index)
        .collect()
}

fn sizes(changes: &[Change], indices: &[usize]) -> HashMap<u64, ()> {
    indices
        .iter()
        .map(|&index| (size(&changes[index]), ()))
        .collect()
}

fn size(change: &Change) -> u64 {
    let entry = change.after.as_ref().or(change.before.as_ref());
    entry.map_or(0, |entry| entry.size)
}

/// `None` for a file that may not be read.
fn digest(stack: &Stack, path: &[u8]) -> Result<Option<[u8; 32]>, DiffError> {
    let opened = stack
        .open(path)
        .and_then(|mut file| tree::digest(&mut file));
    match opened {
        Ok(digest) => Ok(Some(digest)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        Err(source) => Err(DiffError::System {
            path: path.to_vec(),
            source,
        }),
    }
}
