//! Which of the masks are better than covers: below a directory that can only
//! be read, the name itself can be left out of what is mounted.
//!
//! A cover shows the name, and a process outside that replaces the covered
//! file by renaming takes the cover off. A directory that can be written needs
//! the real one, and keeps its covers.

use std::collections::{BTreeMap, BTreeSet};

use crate::path::AbsolutePath;
use crate::plan::{Access, Mask};

use super::{Entry, View};

/// The names to leave out, by the part of the host that would show them.
pub(in crate::compile) type Absent<'a> = BTreeMap<&'a AbsolutePath, Vec<&'a AbsolutePath>>;

/// Sorts the masks of a view: those for credentials of `home` and for what a
/// `hide` pattern matched, where the part around them can only be read.
///
/// The system's credentials stay covered: they are few, they lie in /etc,
/// which every run mounts, and their names are the same everywhere.
pub(in crate::compile) fn absent<'a>(view: &'a View, home: &AbsolutePath) -> Absent<'a> {
    let mut absent = Absent::new();
    for mask in &view.masks {
        if is_eligible(mask, home)
            && let Some(part) = read_only_part_around(view, &mask.path)
        {
            absent.entry(part).or_default().push(&mask.path);
        }
    }
    if !absent.is_empty() {
        // What is mounted below a name needs the name.
        let needed: BTreeSet<&[u8]> = view
            .entries
            .keys()
            .flat_map(AbsolutePath::ancestors)
            .collect();
        for names in absent.values_mut() {
            names.retain(|name| !needed.contains(name.as_bytes()));
        }
        absent.retain(|_, names| !names.is_empty());
    }
    absent
}

fn is_eligible(mask: &Mask, home: &AbsolutePath) -> bool {
    match mask.rule.id.split('.').next() {
        Some("credential") => mask.path.is_within(home),
        Some("filesystem") => true,
        _ => false,
    }
}

fn read_only_part_around<'a>(view: &'a View, path: &AbsolutePath) -> Option<&'a AbsolutePath> {
    if view.entries.contains_key(path) {
        return None;
    }
    let around = path
        .ancestors()
        .find_map(|above| view.entries.get_key_value(above));
    match around? {
        (
            part,
            Entry::Host {
                access: Access::Read,
                directory: true,
            },
        ) if !view.is_layered(part) => Some(part),
        _ => None,
    }
}
