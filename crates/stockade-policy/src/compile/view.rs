//! Lays out the file system of a run: what of the host is mounted where, what
//! is private, and what is taken away again.
//!
//! The layout is a map from path to entry. A path sorts after every directory
//! above it, so the order of the map is an order in which it can be built.

mod absent;
mod caches;
mod grants;
mod markers;
mod masks;
mod overlay;
mod private;
mod seatbelt;

use std::collections::BTreeMap;

use crate::caches::Caches;
use crate::facts::Facts;
use crate::path::AbsolutePath;
use crate::plan::{Access, Cover, Form, Grant, Limits, Mask, Rule};
use crate::policy::Policy;

use super::findings::Findings;
use super::image::HostPlaces;

pub(super) use absent::{Absent, absent};
pub(super) use markers::markers;
pub(super) use private::{constant_entries, mount_points, name_files, resolver};

/// The finished layout.
pub(super) struct View {
    pub(super) entries: Entries,
    pub(super) grants: Vec<Grant>,
    pub(super) masks: Vec<Mask>,
    /// What stands where something is taken away, if not nothing.
    pub(super) covers: BTreeMap<AbsolutePath, Cover>,
    /// The home directory inside.
    pub(super) home: AbsolutePath,
    /// The private runtime directory, when the policy passes its variable.
    pub(super) runtime_directory: Option<AbsolutePath>,
    /// What is kept between the runs of this workspace, and the variables that
    /// lead there.
    pub(super) caches: Option<Caches>,
    pub(super) cache_variables: Vec<(String, AbsolutePath)>,
    /// The file that `core.excludesFile` of git is to name, when git does not
    /// find it by itself.
    pub(super) git_excludes: Option<AbsolutePath>,
    /// The private directory of the way out, when there is one.
    pub(super) way_out: Option<AbsolutePath>,
    /// The workspace, when it is an overlay: what of the host lies there is
    /// shown through layers, and written to the upper one.
    pub(super) layered: Option<AbsolutePath>,
    /// Where the image is, and what is not its own.
    pub(super) image: Option<(AbsolutePath, HostPlaces)>,
}

impl View {
    /// Where on the host lies what is shown at this path.
    pub(super) fn source(&self, path: &AbsolutePath) -> AbsolutePath {
        match &self.image {
            Some((root, host)) if host.leave_to_image(path) => {
                let relative = path.relative_to(&AbsolutePath::root()).unwrap_or_default();
                root.join(relative).unwrap_or_else(|_| path.clone())
            }
            _ => path.clone(),
        }
    }

    /// Whether the part of the host at `path` is shown through layers.
    pub(super) fn is_layered(&self, path: &AbsolutePath) -> bool {
        self.layered
            .as_ref()
            .is_some_and(|workspace| path.is_within(workspace))
    }

    /// Whether every constant entry stands where it always does.
    pub(super) fn begins_as_usual(&self) -> bool {
        constant_entries().iter().all(|(path, entry)| {
            let own = self.entries.get(path) == Some(entry);
            own && !matches!(nearest_above(&self.entries, path), Some(Entry::Host { .. }))
        })
    }
}

pub(super) type Entries = BTreeMap<AbsolutePath, Entry>;

/// What stands at one path of the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A part of the host, at the same path, with no link in it.
    Host {
        access: Access,
        directory: bool,
    },
    /// A directory of this run's own.
    Private {
        mode: u32,
    },
    Symlink {
        target: Vec<u8>,
    },
    File {
        content: Vec<u8>,
    },
    /// A file in a private directory that programs may change and replace.
    Settings {
        content: Vec<u8>,
    },
    Device {
        name: &'static str,
    },
    Terminals,
    Proc,
    /// A private copy of a directory of the host.
    Copy,
    /// Caches of this workspace, a directory of the host that is the sandbox's
    /// own: what it writes there, no other workspace and nothing outside uses.
    Caches {
        source: AbsolutePath,
    },
}

pub(super) fn lay_out(
    policy: &Policy,
    facts: &Facts,
    limits: &Limits,
    findings: &mut Findings,
) -> View {
    let host = grants::collect(policy, facts, findings);
    let mut view = View {
        entries: Entries::new(),
        grants: Vec::new(),
        masks: Vec::new(),
        covers: BTreeMap::new(),
        home: facts.home.clone(),
        runtime_directory: None,
        caches: None,
        cache_variables: Vec::new(),
        git_excludes: None,
        way_out: None,
        layered: None,
        image: facts.image.as_ref().map(|image| {
            let host = HostPlaces::resolved(policy, facts);
            (image.root.clone(), host)
        }),
    };
    match policy.form {
        Form::Namespaces => {
            host.enter(&mut view, findings);
            overlay::enter(&mut view, policy, findings);
            private::enter(&mut view, policy, facts, limits, findings);
            caches::enter(&mut view, policy, facts, findings);
            drop_what_is_covered(&mut view);
        }
        Form::LandlockOnly => {
            host.enter(&mut view, findings);
            drop_what_is_covered(&mut view);
            view.entries
                .retain(|_, entry| matches!(entry, Entry::Host { .. }));
            private::enter_without_mounts(&mut view);
        }
        Form::Seatbelt => {
            host.enter(&mut view, findings);
            drop_what_is_covered(&mut view);
            seatbelt::enter(&mut view);
        }
    }
    markers::keep(&mut view, policy, facts, findings);
    markers::keep_files(&mut view, policy, facts, findings);
    masks::enter(&mut view, policy, facts, findings);
    masks::pin(&mut view);
    view.grants
        .sort_by(|left, right| left.path.cmp(&right.path));
    view
}

/// The entry that decides about a path: its own or that of the nearest
/// directory above it.
pub(super) fn nearest<'a>(entries: &'a Entries, path: &AbsolutePath) -> Option<&'a Entry> {
    entries.get(path).or_else(|| nearest_above(entries, path))
}

fn nearest_above<'a>(entries: &'a Entries, path: &AbsolutePath) -> Option<&'a Entry> {
    path.ancestors().find_map(|above| entries.get(above))
}

/// Leaves out mounts and links that a mount above already shows. Grants are a
/// union: what lies below a writable part is writable.
fn drop_what_is_covered(view: &mut View) {
    let mut kept = Entries::new();
    let mut narrower = Vec::new();
    for (path, entry) in std::mem::take(&mut view.entries) {
        let above = match nearest_above(&kept, &path) {
            Some(Entry::Host {
                access,
                directory: true,
            }) => Some(*access),
            _ => None,
        };
        let covered = match (&entry, above) {
            (Entry::Host { access, .. }, Some(above)) => {
                if *access < above {
                    narrower.push(path.clone());
                }
                *access <= above
            }
            (Entry::Symlink { .. }, Some(_)) => true,
            _ => false,
        };
        if !covered || view.layered.as_ref() == Some(&path) {
            kept.insert(path, entry);
        }
    }
    view.entries = kept;
    view.grants
        .retain(|grant| narrower.binary_search(&grant.path).is_err());
}

fn built_in(id: &str, reason: &str) -> Rule {
    Rule {
        id: id.to_owned(),
        origin: "built-in".to_owned(),
        reason: reason.to_owned(),
    }
}
