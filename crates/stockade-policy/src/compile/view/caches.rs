//! Caches of package managers: one mount of a directory that belongs to this
//! workspace alone, and what leads programs there.

use crate::caches::{Caches, Lead, PLACE, RULE};
use crate::facts::Facts;
use crate::guarantee::Guarantee;
use crate::path::AbsolutePath;
use crate::plan::{Access, Grant};
use crate::policy::{Policy, limit_defaults};

use super::super::environment;
use super::super::findings::Findings;
use super::super::limits::bytes_text;
use super::{Entry, View, built_in, nearest};

pub(super) fn enter(view: &mut View, policy: &Policy, facts: &Facts, findings: &mut Findings) {
    if policy.caches.is_empty() {
        return;
    }
    // A home of the host has its own caches.
    let (Some(source), Ok(path)) = (facts.caches.clone(), view.home.join(PLACE)) else {
        return;
    };
    if !is_private(view, &path) {
        return;
    }
    lead(view, policy, facts, &path);
    view.entries.insert(
        path.clone(),
        Entry::Caches {
            source: source.clone(),
        },
    );
    let bytes_max = policy
        .limits
        .cache_bytes
        .as_ref()
        .map_or(limit_defaults::CACHE_BYTES, |(bytes, _)| *bytes);
    let caches = Caches {
        source,
        path: path.clone(),
        list: policy.caches.clone(),
        bytes_max,
    };
    let reason = format!(
        "caches of this project, kept for its next runs: {}",
        caches.names()
    );
    view.grants.push(Grant {
        path,
        access: Access::Write,
        private: true,
        rule: built_in(RULE, &reason),
    });
    findings.lose(
        Guarantee::FS6,
        format!(
            "caches are cut down to {} only when a run has ended",
            bytes_text(bytes_max)
        ),
    );
    view.caches = Some(caches);
}

/// Makes each program find its cache, unless the policy grants the place where
/// it looks anyway.
fn lead(view: &mut View, policy: &Policy, facts: &Facts, path: &AbsolutePath) {
    let directories = policy
        .caches
        .iter()
        .flat_map(|(cache, _)| cache.directories());
    for directory in directories {
        let Ok(place) = path.join(directory.path) else {
            continue;
        };
        match directory.lead {
            Lead::Variable(name) => {
                let usual = environment::passed(policy, facts, name.as_bytes())
                    .and_then(|value| AbsolutePath::parse(value).ok())
                    .or_else(|| view.home.join(directory.usual?).ok());
                let granted = usual.is_some_and(|usual| shows_host(view, &usual));
                if !granted {
                    view.cache_variables.push((name.to_owned(), place));
                }
            }
            Lead::Link(name) => {
                let moved = environment::passed(policy, facts, b"CARGO_HOME")
                    .and_then(|value| AbsolutePath::parse(value).ok());
                let link = match (moved, name.strip_prefix(".cargo/")) {
                    (Some(cargo_home), Some(below)) => cargo_home.join(below).ok(),
                    _ => view.home.join(name).ok(),
                };
                if let Some(link) = link.filter(|link| is_private(view, link)) {
                    let target = place.as_bytes().to_vec();
                    view.entries.insert(link, Entry::Symlink { target });
                }
            }
        }
    }
}

/// Whether a private directory is around the path, and nothing stands there.
fn is_private(view: &View, path: &AbsolutePath) -> bool {
    !view.entries.contains_key(path)
        && matches!(nearest(&view.entries, path), Some(Entry::Private { .. }))
}

fn shows_host(view: &View, path: &AbsolutePath) -> bool {
    matches!(nearest(&view.entries, path), Some(Entry::Host { .. }))
}
