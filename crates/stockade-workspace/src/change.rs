//! What differs between a tree and the layers over it, as values.

use serde::{Deserialize, Serialize};

use crate::text;
use crate::tree::{Entry, FileKind, Identity, Time};

/// One path that is not as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Relative to the workspace, without a leading slash; any bytes but NUL.
    #[serde(with = "text")]
    pub path: Vec<u8>,
    #[serde(flatten)]
    pub kind: ChangeKind,
    /// What stands there without the layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Entry>,
    /// What the layers show there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Entry>,
    /// For something that was there and still is: what of it differs.
    #[serde(skip_serializing_if = "Aspects::is_empty")]
    pub aspects: Aspects,
    /// Another path of the same change list that is the same file.
    #[serde(skip_serializing_if = "Option::is_none", with = "text::option")]
    pub linked_to: Option<Vec<u8>>,
    #[serde(skip)]
    pub(crate) was: Option<Origin>,
    #[serde(skip)]
    pub(crate) is: Option<Source>,
}

/// What happened to a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum ChangeKind {
    Created,
    Modified,
    Deleted,
    /// Created from the file that is gone at another path. That path has no
    /// change of its own.
    Renamed {
        #[serde(with = "text")]
        from: Vec<u8>,
    },
    /// Something of another kind stands there now.
    Replaced,
    /// A directory that was removed and made again. What is below it has
    /// changes of its own.
    Recreated,
}

/// Which parts of a file differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Aspects {
    pub content: bool,
    pub mode: bool,
    pub owner: bool,
    /// The time of the last modification.
    pub times: bool,
    pub attributes: bool,
    /// Which other names the file has.
    pub links: bool,
}

impl Aspects {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The file that a change found below the layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub identity: Identity,
    pub changed: Time,
    pub links: u64,
}

/// The file that a change found in the layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub level: usize,
    pub identity: Identity,
    pub links: u64,
    /// It came up from a lower layer, under this name or another.
    pub copied_up: bool,
    /// Something must be taken off it before it may leave the layer.
    pub marked: bool,
}

/// A directory that was there and still is, and that the layers touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Touched {
    pub path: Vec<u8>,
    pub before: Entry,
    pub after: Entry,
    /// The layers hide what is below it.
    pub recreated: bool,
    pub copied_up: bool,
}

/// All differences, in the order of their paths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Changes {
    changes: Vec<Change>,
    #[serde(skip)]
    pub(crate) touched: Vec<Touched>,
    /// Whiteouts over nothing, in directories of the layers alone.
    #[serde(skip)]
    pub(crate) strays: Vec<Vec<u8>>,
}

/// Counts and sizes of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    pub created: u64,
    pub modified: u64,
    pub deleted: u64,
    pub renamed: u64,
    pub replaced: u64,
    pub recreated: u64,
    /// Bytes of content in what would be applied.
    pub bytes: u64,
}

impl Changes {
    pub(crate) fn new(
        mut changes: Vec<Change>,
        mut touched: Vec<Touched>,
        strays: Vec<Vec<u8>>,
    ) -> Self {
        changes.sort_by(|one, other| one.path.cmp(&other.path));
        touched.sort_by(|one, other| one.path.cmp(&other.path));
        Self {
            changes,
            touched,
            strays,
        }
    }

    /// The changes, sorted by path.
    pub fn iter(&self) -> std::slice::Iter<'_, Change> {
        self.changes.iter()
    }

    /// How many paths have changed. Directories of which only the time of
    /// modification differs, as it does whenever a name in them changes, are
    /// carried over but not counted.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The change at exactly this path.
    pub fn get(&self, path: &[u8]) -> Option<&Change> {
        let at = self
            .changes
            .binary_search_by(|change| change.path[..].cmp(path));
        at.ok().map(|index| &self.changes[index])
    }

    /// Counts by kind, and bytes.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        for change in &self.changes {
            let count = match change.kind {
                ChangeKind::Created => &mut summary.created,
                ChangeKind::Modified => &mut summary.modified,
                ChangeKind::Deleted => &mut summary.deleted,
                ChangeKind::Renamed { .. } => &mut summary.renamed,
                ChangeKind::Replaced => &mut summary.replaced,
                ChangeKind::Recreated => &mut summary.recreated,
            };
            *count += 1;
            let counted = change.linked_to.is_none();
            let after = change.after.as_ref().filter(|_| counted);
            summary.bytes += after.map_or(0, |entry| entry.size);
        }
        summary
    }

    pub(crate) fn as_slice(&self) -> &[Change] {
        &self.changes
    }
}

impl<'a> IntoIterator for &'a Changes {
    type Item = &'a Change;
    type IntoIter = std::slice::Iter<'a, Change>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Change {
    /// The paths that it is about: its own, and the old one of a rename.
    pub fn paths(&self) -> impl Iterator<Item = &[u8]> {
        let from = match &self.kind {
            ChangeKind::Renamed { from } => Some(&from[..]),
            _ => None,
        };
        std::iter::once(&self.path[..]).chain(from)
    }

    /// Whether it makes a directory where there was none.
    pub(crate) fn makes_directory(&self) -> bool {
        self.was_not(FileKind::Directory) && self.is(FileKind::Directory)
    }

    /// Whether it takes a directory away.
    pub(crate) fn takes_directory(&self) -> bool {
        !self.was_not(FileKind::Directory) && !self.is(FileKind::Directory)
    }

    fn was_not(&self, kind: FileKind) -> bool {
        self.before.as_ref().is_none_or(|entry| entry.kind != kind)
    }

    pub(crate) fn is(&self, kind: FileKind) -> bool {
        self.after.as_ref().is_some_and(|entry| entry.kind == kind)
    }
}
