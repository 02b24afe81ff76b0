//! What the layers of a run change in the tree below them.
//!
//! Only directories that a layer touches are walked, so the cost follows the
//! size of the change and not of the tree. What counts is what the mounted
//! overlay shows: a directory that was made again is marked opaque and has no
//! whiteouts, so what it hides is found by listing what is below.

mod links;

use std::io;
use std::os::fd::BorrowedFd;

use crate::change::{Aspects, Change, ChangeKind, Changes, Origin, Source, Touched};
use crate::renames;
use crate::stack::{DEPTH_MAX, Dir, Stack, View};
use crate::tree::{self, Entry, FileKind, Found};

/// Why layers cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    #[error(
        "{} is more than {DEPTH_MAX} directories deep, too deep to be looked through\n  remedy: discard the run, or make the tree flatter and run again",
        printable(.path)
    )]
    TooDeep { path: Vec<u8> },
    #[error(
        "{} is a device, which no command in a sandbox can make: the layer was written by something else\n  remedy: discard the run",
        printable(.path)
    )]
    Device { path: Vec<u8> },
    #[error("cannot read {}: {source}", printable(.path))]
    System { path: Vec<u8>, source: io::Error },
}

/// Everything that `layers`, top first, change in `base`.
///
/// Nothing is written. The directories must not change meanwhile for the
/// answer to be exact; that `base` did is found again when it is applied.
pub fn diff(layers: &[BorrowedFd<'_>], base: BorrowedFd<'_>) -> Result<Changes, DiffError> {
    diff_over(layers, &[], base)
}

/// Everything that `layers` change in what `below`, more layers, show over
/// `base`.
pub fn diff_over(
    layers: &[BorrowedFd<'_>],
    below: &[BorrowedFd<'_>],
    base: BorrowedFd<'_>,
) -> Result<Changes, DiffError> {
    let all: Vec<_> = layers.iter().chain(below).copied().collect();
    let at = |source| DiffError::System {
        path: Vec::new(),
        source,
    };
    let whole = Stack::new(&all, base).map_err(at)?;
    let lower = Stack::new(below, base).map_err(at)?;
    let mut walk = Walk {
        level: layers.len(),
        ..Walk::default()
    };
    let (root, root_below) = (whole.root().map_err(at)?, lower.root().map_err(at)?);
    let tops = (root.top().map_err(at)?, root_below.top().map_err(at)?);
    walk.both(b"", (&root, &tops.0), (&root_below, &tops.1))?;
    walk.find_links();
    let changes = renames::pair(walk.changes, &whole, &lower)?;
    Ok(Changes::new(changes, walk.touched, walk.strays))
}

/// A path for a message: what is not printable is escaped.
pub(crate) fn printable(path: &[u8]) -> String {
    match path {
        b"" => "the workspace".to_owned(),
        _ => {
            let text = String::from_utf8_lossy(path);
            let escape = |one: char| match one.is_control() {
                true => one.escape_default().to_string(),
                false => one.to_string(),
            };
            text.chars().map(escape).collect()
        }
    }
}

#[derive(Default)]
struct Walk {
    /// The first level that is not compared but compared with.
    level: usize,
    depth: usize,
    changes: Vec<Change>,
    touched: Vec<Touched>,
    strays: Vec<Vec<u8>>,
    /// Files of the layers with several names that are otherwise as they were.
    same_with_links: Vec<Change>,
}

impl Walk {
    /// A directory that is there with and without the layers. How it was found
    /// is told, because by now it may have been opened up to be listed.
    fn both(
        &mut self,
        path: &[u8],
        (now, after): (&Dir, &Found),
        (below, before): (&Dir, &Found),
    ) -> Result<(), DiffError> {
        let system = |source| system(path, source);
        let recreated = now.without_above(self.level).is_none();
        self.touched.push(Touched {
            path: path.to_vec(),
            recreated,
            copied_up: after.marks.origin,
            before: before.entry.clone(),
            after: after.entry.clone(),
        });
        let mut names = now.names_in(0..self.level).map_err(system)?;
        if recreated {
            names.extend(below.names_in(0..usize::MAX).map_err(system)?);
        }
        for name in names {
            self.name(path, &name, Some(now), Some(below))?;
        }
        Ok(())
    }

    /// A directory that is there only with the layers, or only without.
    fn one(
        &mut self,
        path: &[u8],
        now: Option<&Dir>,
        below: Option<&Dir>,
    ) -> Result<(), DiffError> {
        let names = match now.or(below) {
            Some(directory) => directory.names_in(0..usize::MAX),
            None => return Ok(()),
        };
        for name in names.map_err(|source| system(path, source))? {
            self.name(path, &name, now, below)?;
        }
        Ok(())
    }

    fn name(
        &mut self,
        parent: &[u8],
        name: &[u8],
        now: Option<&Dir>,
        below: Option<&Dir>,
    ) -> Result<(), DiffError> {
        let path = tree::join(parent, name);
        let look = |directory: Option<&Dir>| match directory {
            Some(directory) => directory.look(name).map_err(|source| system(&path, source)),
            None => Ok(None),
        };
        let after = look(now)?;
        if after.as_ref().is_some_and(|view| view.level >= self.level) {
            return Ok(());
        }
        let before = look(below)?;
        if after.is_none() && before.is_none() {
            if now.is_some() {
                self.strays.push(path);
            }
            return Ok(());
        }
        if let Some(View { found, .. }) = &after
            && found.entry.kind == FileKind::Device
        {
            return Err(DiffError::Device { path });
        }
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(DiffError::TooDeep { path });
        }
        let enter = |directory: Option<&Dir>, view: &Option<View>| match (directory, view) {
            (Some(directory), Some(view)) => directory
                .enter(name, view)
                .map_err(|source| system(&path, source)),
            _ => Ok(None),
        };
        let inside = (enter(now, &after)?, enter(below, &before)?);
        let at = self.changes.len();
        self.compare(
            &path,
            after.as_ref(),
            before.as_ref(),
            &inside,
            (now, below),
        )?;
        let found = after.as_ref().zip(before.as_ref());
        match (&inside, found) {
            ((Some(now), Some(below)), Some((after, before))) => {
                self.both(&path, (now, &after.found), (below, &before.found))?;
                self.forget_recreated(at, &path);
            }
            ((now, below), _) => {
                self.one(&path, now.as_ref(), None)?;
                self.one(&path, None, below.as_ref())?;
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// A directory that was made again, as it was, and holds all that it held,
    /// is no change.
    fn forget_recreated(&mut self, at: usize, path: &[u8]) {
        let Some((first, rest)) = self.changes.get(at..).and_then(<[_]>::split_first) else {
            return;
        };
        let invisible = first.path == path
            && first.kind == ChangeKind::Recreated
            && first.aspects.is_empty()
            && rest.iter().all(|change| change.kind == ChangeKind::Created);
        if invisible {
            self.changes.remove(at);
        }
    }

    /// Notes how one path differs, if it does.
    fn compare(
        &mut self,
        path: &[u8],
        after: Option<&View>,
        before: Option<&View>,
        inside: &(Option<Dir>, Option<Dir>),
        parents: (Option<&Dir>, Option<&Dir>),
    ) -> Result<(), DiffError> {
        let mut change = change_of(path, after, before);
        if let (Some(is), Some(now)) = (&mut change.is, parents.0)
            && is.copied_up
            && self.level > 1
        {
            let came_up = now.came_up(tree::split(path).1, self.level);
            is.copied_up = came_up.map_err(|source| system(path, source))?;
        }
        let (Some(new), Some(old)) = (after, before) else {
            self.changes.push(change);
            return Ok(());
        };
        if new.found.entry.kind != old.found.entry.kind {
            change.kind = ChangeKind::Replaced;
            self.changes.push(change);
            return Ok(());
        }
        let is_directory = new.found.entry.kind == FileKind::Directory;
        let (one, other) = (&new.found.entry, &old.found.entry);
        change.aspects = aspects(change.after.as_ref().unwrap_or(one), other);
        if one.kind == FileKind::File && one.size == other.size {
            let same = same_content(tree::split(path).1, parents, new, old);
            change.aspects.content = !same.map_err(|source| system(path, source))?;
        }
        if is_directory {
            // Which follows from every name that is made or removed in it.
            change.aspects.times = false;
            let opaque = inside
                .0
                .as_ref()
                .is_some_and(|now| now.without_above(self.level).is_none());
            if opaque {
                change.kind = ChangeKind::Recreated;
            } else if change.aspects.is_empty() {
                return Ok(());
            }
        } else {
            // A copy of a file with other names is no longer that file.
            change.aspects.links = old.found.links > 1 && new.found.links == 1;
            if change.aspects.is_empty() {
                if new.found.links > 1 {
                    self.same_with_links.push(change);
                }
                return Ok(());
            }
        }
        self.changes.push(change);
        Ok(())
    }
}

fn change_of(path: &[u8], after: Option<&View>, before: Option<&View>) -> Change {
    let mut marked = after.is_some_and(|view| view.found.marks.any);
    let mut entry = after.map(|view| view.found.entry.clone());
    if let Some(entry) = entry.as_mut().filter(|entry| entry.kind == FileKind::File) {
        // Such a file would give rights away outside. Only one that was
        // there before keeps the bits.
        let had = before.map_or(0, |view| view.found.entry.mode);
        let kept = entry.mode & !(0o6000 & !had);
        marked |= kept != entry.mode;
        entry.mode = kept;
    }
    Change {
        path: path.to_vec(),
        kind: match (after, before) {
            (Some(_), None) => ChangeKind::Created,
            (None, _) => ChangeKind::Deleted,
            (Some(_), Some(_)) => ChangeKind::Modified,
        },
        before: before.map(|view| view.found.entry.clone()),
        after: entry,
        aspects: Aspects::default(),
        linked_to: None,
        was: before.map(|view| Origin {
            identity: view.found.identity,
            changed: view.found.changed,
            links: view.found.links,
        }),
        is: after.map(|view| Source {
            level: view.level,
            identity: view.found.identity,
            links: view.found.links,
            copied_up: view.found.marks.origin,
            marked,
        }),
    }
}

fn aspects(after: &Entry, before: &Entry) -> Aspects {
    Aspects {
        content: after.size != before.size || after.target != before.target,
        mode: after.mode != before.mode,
        owner: (after.uid, after.gid) != (before.uid, before.gid),
        times: after.modified != before.modified,
        attributes: after.attributes != before.attributes,
        links: false,
    }
}

/// Compares two regular files of the same size. What cannot be read is taken
/// to differ.
fn same_content(
    name: &[u8],
    parents: (Option<&Dir>, Option<&Dir>),
    new: &View,
    old: &View,
) -> io::Result<bool> {
    if new.found.entry.size == 0 {
        return Ok(true);
    }
    let (Some(now), Some(below)) = parents else {
        return Ok(false);
    };
    let open = |directory: &Dir, view| match directory.open(name, view) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        other => other.map(Some),
    };
    match (open(now, new)?, open(below, old)?) {
        (Some(mut one), Some(mut other)) => tree::same_content(&mut one, &mut other),
        _ => Ok(false),
    }
}

fn system(path: &[u8], source: io::Error) -> DiffError {
    DiffError::System {
        path: path.to_vec(),
        source,
    }
}
