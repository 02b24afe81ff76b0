//! The order of the steps, and how directories are when all names are made.

use std::collections::{BTreeMap, BTreeSet};

use super::super::select::{ancestors, find};
use super::{Keep, Plan, Step};
use crate::change::ChangeKind;
use crate::tree::{self, Entry, FileKind, Time};

impl Plan<'_> {
    pub(super) fn order(mut self) -> Vec<Step> {
        let mut finishes = self.finishes();
        let kept = self.kept();
        self.puts.sort_by(|one, other| one.0.cmp(&other.0));
        let mut steps: Vec<Step> = kept
            .keys()
            .map(|path| Step::Keep { path: path.clone() })
            .collect();
        // Deepest first: what is in a closed directory before it is closed.
        steps.extend(self.strips.drain(..).rev());
        steps.append(&mut self.makes);
        steps.extend(self.puts.into_iter().map(|(_, step)| step));
        steps.append(&mut self.removes);
        steps.append(&mut finishes);
        // Deepest first: making a name in a directory changes its time.
        steps.extend(
            kept.into_iter()
                .rev()
                .map(|(path, entry)| Step::Kept { path, entry }),
        );
        steps
    }

    /// The directories that the preimages need, with how they were.
    fn kept(&self) -> BTreeMap<Vec<u8>, Entry> {
        let mut kept = BTreeMap::new();
        for step in self
            .makes
            .iter()
            .chain(&self.removes)
            .chain(self.puts.iter().map(|put| &put.1))
        {
            let (Step::Make { path, keep }
            | Step::Put { path, keep, .. }
            | Step::Link { path, keep, .. }
            | Step::Remove { path, keep, .. }) = step
            else {
                continue;
            };
            if *keep != Keep::Nothing {
                self.keep_directories(&mut kept, tree::split(path).0);
            }
        }
        for (path, entry) in self.finished() {
            if self.before(&path).is_some_and(|before| before != entry.0) {
                self.keep_directories(&mut kept, &path);
            }
        }
        kept
    }

    fn keep_directories(&self, kept: &mut BTreeMap<Vec<u8>, Entry>, path: &[u8]) {
        for above in std::iter::once(path)
            .chain(ancestors(path))
            .chain([&b""[..]])
        {
            if let Some(entry) = self.before(above) {
                kept.entry(above.to_vec()).or_insert(entry);
            }
        }
    }

    /// How a directory of the tree is before anything is done.
    fn before(&self, path: &[u8]) -> Option<Entry> {
        let touched = self.touched(path).map(|touched| touched.before.clone());
        touched.or_else(|| {
            let change = &self.changes[find(self.changes, path)?];
            let before = change.before.clone()?;
            let stays = !matches!(change.kind, ChangeKind::Renamed { .. });
            (stays && before.kind == FileKind::Directory).then_some(before)
        })
    }

    fn finishes(&self) -> Vec<Step> {
        let all = self.finished().into_iter().rev();
        all.map(|(path, (entry, times))| Step::Finish {
            layer: self.layer_state(&path),
            path,
            entry,
            times,
        })
        .collect()
    }

    fn layer_state(&self, path: &[u8]) -> Option<(u32, Time)> {
        let touched = self.touched(path).map(|touched| &touched.after);
        let change = find(self.changes, path).and_then(|at| self.changes[at].after.as_ref());
        let after = touched.or(change).filter(|_| self.may_move)?;
        Some((after.mode, after.modified))
    }

    /// How each directory of the tree is when all is done, and whether its
    /// time of modification is then known.
    fn finished(&self) -> BTreeMap<Vec<u8>, (Entry, bool)> {
        let everything = self.selected.iter().all(|selected| *selected);
        let mut partly: BTreeSet<&[u8]> = BTreeSet::new();
        for (index, change) in self.changes.iter().enumerate() {
            if !self.selected[index] {
                partly.extend(change.paths().map(|path| tree::split(path).0));
            }
        }
        let mut paths = self.parents.clone();
        for parent in &self.parents {
            // These may have to be made accessible for a while.
            let closed = |path: &&[u8]| {
                self.before(path)
                    .is_some_and(|entry| entry.mode & 0o700 != 0o700)
            };
            paths.extend(ancestors(parent).filter(closed).map(<[u8]>::to_vec));
        }
        for (index, change) in self.changes.iter().enumerate() {
            let stays = !change.makes_directory() && change.is(FileKind::Directory);
            if self.selected[index] && stays {
                paths.insert(change.path.clone());
            }
        }
        if everything {
            let moved = self.all.touched.iter();
            let moved = moved.filter(|touched| touched.before.modified != touched.after.modified);
            paths.extend(moved.map(|touched| touched.path.clone()));
        }
        let mut finished = BTreeMap::new();
        for path in paths {
            if self.whole.contains(&path[..]) || self.is_in_whole(&path) {
                continue;
            }
            if let Some(entry) = self.end_of(&path) {
                let times = !partly.contains(&path[..]) && self.layers_have(&path);
                finished.insert(path, (entry, times));
            }
        }
        finished
    }

    /// How a directory is in the end; `None` for one that is gone by then.
    fn end_of(&self, path: &[u8]) -> Option<Entry> {
        let change = find(self.changes, path);
        if let Some(at) = change.filter(|at| self.selected[*at]) {
            return match self.changes[at].is(FileKind::Directory) {
                true => self.changes[at].after.clone(),
                false => None,
            };
        }
        let mut entry = self.before(path)?;
        if let Some(touched) = self.touched(path) {
            entry.modified = touched.after.modified;
        }
        let gone = |above: &[u8]| {
            find(self.changes, above)
                .is_some_and(|at| self.selected[at] && self.changes[at].takes_directory())
        };
        (!ancestors(path).any(gone)).then_some(entry)
    }

    fn layers_have(&self, path: &[u8]) -> bool {
        self.touched(path).is_some()
            || find(self.changes, path).is_some_and(|at| self.changes[at].is(FileKind::Directory))
    }
}
