//! What applying does, step by step, worked out before the first step.
//!
//! The steps are recorded in the journal, so that whoever continues does not
//! have to work them out again from a tree that is half changed.

mod ends;

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::select::{ancestors, find};
use crate::change::{Change, ChangeKind, Changes, Source};
use crate::text;
use crate::tree::{self, Entry, FileKind, Identity, Time};

/// One step. Each can be begun again after it was interrupted anywhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub(crate) enum Step {
    /// Make a directory among the preimages, for the old versions in it.
    Keep {
        #[serde(with = "text")]
        path: Vec<u8>,
    },
    /// Take overlay attributes off a file of the layer, and set its mode.
    Strip {
        #[serde(with = "text")]
        path: Vec<u8>,
        mode: u32,
    },
    /// Make a directory in the tree.
    Make {
        #[serde(with = "text")]
        path: Vec<u8>,
        keep: Keep,
    },
    /// Bring a file, or a directory with all that is in it, into the tree.
    Put {
        #[serde(with = "text")]
        path: Vec<u8>,
        level: usize,
        how: How,
        entry: Entry,
        new: Identity,
        old: Option<Identity>,
        keep: Keep,
    },
    /// Make another name for a file of the tree.
    Link {
        #[serde(with = "text")]
        path: Vec<u8>,
        #[serde(with = "text")]
        to: Vec<u8>,
        old: Option<Identity>,
        keep: Keep,
    },
    /// Take something away from the tree.
    Remove {
        #[serde(with = "text")]
        path: Vec<u8>,
        old: Identity,
        /// Whether the layer's whiteout goes too.
        clear: bool,
        /// Whether the old version is kept.
        keep: Keep,
    },
    /// Give a directory its attributes and times, now that all names are made.
    Finish {
        #[serde(with = "text")]
        path: Vec<u8>,
        entry: Entry,
        times: bool,
        /// The mode and time of the layer's directory, which lost names.
        layer: Option<(u32, Time)>,
    },
    /// The same for a directory among the preimages.
    Kept {
        #[serde(with = "text")]
        path: Vec<u8>,
        entry: Entry,
    },
}

/// How a file leaves the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum How {
    Move,
    Copy,
}

/// What the preimages remember of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Keep {
    /// What stood there.
    Old,
    /// That nothing stood there.
    Absent,
    /// Nothing: a directory above remembers already.
    Nothing,
}

/// The steps for the selected changes, in order. `may_move` says that the
/// layer is given up and can be moved from.
pub(super) fn steps(changes: &Changes, selected: &[bool], may_move: bool) -> Vec<Step> {
    let mut plan = Plan::new(changes, selected, may_move);
    for (index, selected) in selected.iter().enumerate() {
        if *selected {
            plan.change(index);
        }
    }
    plan.order()
}

/// What puts are sorted by: the rank in a git directory, links after what they
/// are links to, the path.
type Order = (u8, bool, Vec<u8>);

/// The selected changes that are names of one file.
struct Names {
    /// The first of them, by path.
    first: usize,
    number: u64,
    /// Whether one of them cannot be moved, and so none is: what is moved and
    /// what is copied are two files.
    copied: bool,
}

struct Plan<'a> {
    all: &'a Changes,
    changes: &'a [Change],
    selected: &'a [bool],
    may_move: bool,
    /// Directories of the layer that can leave it as they are.
    whole: BTreeSet<&'a [u8]>,
    /// The selected names of each file.
    names: HashMap<Identity, Names>,
    strips: Vec<Step>,
    makes: Vec<Step>,
    puts: Vec<(Order, Step)>,
    removes: Vec<Step>,
    /// Directories in which names are made or removed.
    parents: BTreeSet<Vec<u8>>,
}

impl<'a> Plan<'a> {
    fn new(all: &'a Changes, selected: &'a [bool], may_move: bool) -> Self {
        let changes = all.as_slice();
        let mut names = HashMap::new();
        for (index, change) in changes.iter().enumerate() {
            if let Some(is) = change.is.as_ref().filter(|_| selected[index]) {
                let new = Names {
                    first: index,
                    number: 0,
                    copied: false,
                };
                names.entry(is.identity).or_insert(new).number += 1;
            }
        }
        let mut plan = Self {
            all,
            changes,
            selected,
            may_move,
            whole: BTreeSet::new(),
            names,
            strips: Vec::new(),
            makes: Vec::new(),
            puts: Vec::new(),
            removes: Vec::new(),
            parents: BTreeSet::new(),
        };
        if may_move {
            plan.whole = plan.whole_directories();
            while plan.copy_what_is_torn() {
                plan.whole = plan.whole_directories();
            }
        }
        plan
    }

    /// Directories of which everything below is selected and can be moved: the
    /// outermost ones.
    fn whole_directories(&self) -> BTreeSet<&'a [u8]> {
        let mut broken: BTreeSet<&[u8]> = BTreeSet::new();
        for (index, change) in self.changes.iter().enumerate() {
            let stays = change.is.as_ref().is_some_and(|is| !self.can_move(is));
            if !self.selected[index] || stays && !change.is(FileKind::Directory) {
                broken.extend(change.paths().flat_map(ancestors));
            }
        }
        broken.extend(self.all.strays.iter().flat_map(|path| ancestors(path)));
        let moves = |index: &usize| {
            let change = &self.changes[*index];
            let leaves = change.makes_directory() || change.kind == ChangeKind::Recreated;
            let is_whole = leaves && !broken.contains(&change.path[..]);
            self.selected[*index] && is_whole && self.leaves_what_is_below(&change.path)
        };
        (0..self.changes.len())
            .filter(moves)
            .map(|index| &self.changes[index].path[..])
            .collect()
    }

    /// Marks files of which some names would be moved and others copied, and
    /// tells whether there was one.
    fn copy_what_is_torn(&mut self) -> bool {
        let mut torn = BTreeSet::new();
        for (index, change) in self.changes.iter().enumerate() {
            let Some(is) = change.is.as_ref().filter(|is| is.links > 1) else {
                continue;
            };
            let moves = self.is_in_whole(&change.path) || self.leaves_what_is_below(&change.path);
            let file = !change.is(FileKind::Directory);
            if file && self.selected[index] && self.can_move(is) && !moves {
                torn.insert(is.identity);
            }
        }
        for identity in &torn {
            if let Some(names) = self.names.get_mut(identity) {
                names.copied = true;
            }
        }
        !torn.is_empty()
    }

    /// Whether all names of a file can leave the layer.
    fn can_move(&self, source: &Source) -> bool {
        let names = self.names.get(&source.identity);
        let all = names.is_some_and(|names| !names.copied && source.links <= names.number);
        source.level == 0 && all
    }

    fn change(&mut self, index: usize) {
        let changes = self.changes;
        let change = &changes[index];
        if let ChangeKind::Renamed { from } = &change.kind {
            self.remove(from, change);
        }
        if self.is_in_whole(&change.path) {
            return self.strip(change);
        }
        if self.whole.contains(&change.path[..]) {
            return self.put(change, How::Move);
        }
        match (&change.kind, change.is(FileKind::Directory)) {
            (ChangeKind::Deleted, _) => self.remove(&change.path, change),
            (ChangeKind::Replaced, true) => {
                self.remove(&change.path, change);
                self.make(change, Keep::Nothing);
            }
            (ChangeKind::Created, true) => self.make(change, self.keep(&change.path, None)),
            // Its attributes are set when it is finished.
            (_, true) => {}
            (_, false) => self.put_file(index),
        }
    }

    /// What moves leaves the overlay's attributes behind.
    fn strip(&mut self, change: &Change) {
        if let (Some(entry), Some(is)) = (&change.after, &change.is)
            && (is.marked || entry.kind == FileKind::Directory && entry.mode & 0o700 != 0o700)
        {
            self.strips.push(Step::Strip {
                path: change.path.clone(),
                mode: entry.mode,
            });
        }
    }

    fn make(&mut self, change: &Change, keep: Keep) {
        self.uses(&change.path);
        self.parents.insert(change.path.clone());
        self.makes.push(Step::Make {
            path: change.path.clone(),
            keep,
        });
    }

    fn put_file(&mut self, index: usize) {
        let change = &self.changes[index];
        let Some(is) = &change.is else {
            return;
        };
        if self.may_move && self.can_move(is) && self.leaves_what_is_below(&change.path) {
            return self.put(change, How::Move);
        }
        let first = self
            .names
            .get(&is.identity)
            .map_or(index, |names| names.first);
        if first == index {
            return self.put(change, How::Copy);
        }
        let old = self.old_at(change);
        self.uses(&change.path);
        let step = Step::Link {
            path: change.path.clone(),
            to: self.changes[first].path.clone(),
            old,
            keep: self.keep(&change.path, old),
        };
        self.puts
            .push(((rank(&change.path), true, change.path.clone()), step));
    }

    fn put(&mut self, change: &Change, how: How) {
        let (Some(is), Some(entry)) = (&change.is, &change.after) else {
            return;
        };
        if how == How::Move {
            self.strip(change);
        }
        let old = self.old_at(change);
        self.uses(&change.path);
        let step = Step::Put {
            path: change.path.clone(),
            level: is.level,
            how,
            entry: entry.clone(),
            new: is.identity,
            old,
            keep: self.keep(&change.path, old),
        };
        self.puts
            .push(((rank(&change.path), false, change.path.clone()), step));
    }

    fn remove(&mut self, path: &[u8], change: &Change) {
        let goes_with_another = |above: &[u8]| {
            let taken = find(self.changes, above)
                .is_some_and(|at| self.selected[at] && self.changes[at].takes_directory());
            taken || self.whole.contains(above)
        };
        let Some(was) = &change.was else {
            return;
        };
        if ancestors(path).any(goes_with_another) {
            return;
        }
        self.uses(path);
        let step = Step::Remove {
            path: path.to_vec(),
            old: was.identity,
            clear: self.may_move && self.leaves_what_is_below(path),
            keep: Keep::Old,
        };
        match change.kind {
            // What stands in the way of a directory goes first.
            ChangeKind::Replaced => self.makes.push(step),
            _ => self.removes.push(step),
        }
    }

    /// What stands at the path of a change, and is replaced.
    fn old_at(&self, change: &Change) -> Option<Identity> {
        match change.kind {
            ChangeKind::Renamed { .. } => None,
            _ => change.was.as_ref().map(|was| was.identity),
        }
    }

    fn keep(&self, path: &[u8], old: Option<Identity>) -> Keep {
        let is_made = |above: &[u8]| {
            find(self.changes, above)
                .is_some_and(|at| self.selected[at] && self.changes[at].makes_directory())
        };
        match old {
            _ if ancestors(path).any(is_made) => Keep::Nothing,
            Some(_) => Keep::Old,
            None => Keep::Absent,
        }
    }

    fn is_in_whole(&self, path: &[u8]) -> bool {
        ancestors(path).any(|above| self.whole.contains(above))
    }

    /// Whether what the layer shows at a path stays the same when the path
    /// goes from the layer to the tree: no directory above hides the tree.
    fn leaves_what_is_below(&self, path: &[u8]) -> bool {
        let parent = tree::split(path).0;
        let hides = |above: &[u8]| self.touched(above).is_none_or(|touched| touched.recreated);
        !ancestors(path).any(hides) && !hides(parent)
    }

    fn touched(&self, path: &[u8]) -> Option<&'a crate::change::Touched> {
        let all = &self.all.touched;
        let at = all.binary_search_by(|touched| touched.path[..].cmp(path));
        at.ok().map(|at| &all[at])
    }

    fn uses(&mut self, path: &[u8]) {
        self.parents.insert(tree::split(path).0.to_vec());
    }
}

/// The order in which files of a git directory must appear: what is pointed
/// to before what points to it.
fn rank(path: &[u8]) -> u8 {
    let mut components = path.split(|&byte| byte == b'/');
    if !components.any(|name| name == b".git") {
        return 0;
    }
    let inside: Vec<&[u8]> = components.collect();
    match inside[..] {
        [] | [b"objects", ..] => 0,
        [b"refs" | b"packed-refs" | b"logs", ..] => 2,
        [b"HEAD" | b"index" | b"ORIG_HEAD" | b"FETCH_HEAD" | b"MERGE_HEAD"] => 3,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::rank;

    #[test]
    fn git_sees_what_is_pointed_to_first() {
        let order = [
            "src/main.rs",
            ".git/objects/ab/cdef",
            ".git/config",
            ".git/refs/heads/main",
            "deep/module/.git/index",
        ];
        let ranks: Vec<u8> = order.iter().map(|path| rank(path.as_bytes())).collect();
        assert_eq!(ranks, [0, 0, 1, 2, 3]);
    }
}
