//! What is taken away again below a grant: credentials, what a `hide` pattern
//! matched, and sockets on which a process outside listens.

use std::collections::BTreeMap;

use crate::facts::{Facts, PathKind};
use crate::guarantee::Guarantee;
use crate::path::AbsolutePath;
use crate::plan::{Access, Cover, Form, Mask, Rule, Wall};
use crate::policy::Policy;

use super::super::findings::Findings;
use super::super::secrets;
use super::{Entry, View, built_in, nearest};

/// Where the kernel lists keys.
const KEY_LISTS: [&str; 2] = ["/proc/keys", "/proc/key-users"];

pub(super) fn enter(view: &mut View, policy: &Policy, facts: &Facts, findings: &mut Findings) {
    let mut masks = BTreeMap::new();
    credentials(&mut masks, view, facts, findings.weakened(Guarantee::FS3));
    hidden(&mut masks, view, policy, facts, findings);
    sockets(&mut masks, view, facts);
    bound_secrets(&mut masks, view, policy, facts);
    if policy.form == Form::Namespaces {
        caches_of_others(&mut masks, view, facts);
        kernel_keys(&mut masks, policy, findings);
    }
    for grant in view.grants.iter().filter(|grant| !grant.private) {
        if let Some(above) = grant.path.ancestors().find_map(|above| masks.get(above)) {
            let Rule { id, origin, .. } = &grant.rule;
            findings.note(format!(
                "{} is granted by {id} ({origin}) but hidden with {}",
                grant.path, above.path
            ));
        }
    }
    let outermost: Vec<Mask> = masks
        .iter()
        .filter(|(path, _)| !path.ancestors().any(|above| masks.contains_key(above)))
        .map(|(_, mask)| mask.clone())
        .collect();
    view.masks = match policy.form {
        Form::Namespaces | Form::Seatbelt => outermost,
        Form::LandlockOnly => refuse_what_landlock_cannot_take(outermost, facts, findings),
    };
}

/// Makes the directories between a writable grant and a cover mount points of
/// their own, which rename(2) refuses to move (EBUSY). Otherwise the command
/// could move what is covered to where no pattern of the next run matches, or
/// to and fro while another run looks for it.
pub(super) fn pin(view: &mut View) {
    // An overlay moves no directory that lies in a lower layer (EXDEV), so there
    // what is covered stays where it is without pins.
    let masks = view.masks.iter();
    let layered = view.layered.clone();
    let is_direct = |mask: &&Mask| !layered.as_ref().is_some_and(|at| mask.path.is_within(at));
    for mask in masks.filter(is_direct) {
        let mut between = Vec::new();
        let mut next = mask.path.parent();
        while let Some(directory) = next {
            if let Some(entry) = view.entries.get(&directory) {
                let writable = Entry::Host {
                    access: Access::Write,
                    directory: true,
                };
                if *entry == writable {
                    let pins = between.into_iter().map(|pin| (pin, writable.clone()));
                    view.entries.extend(pins);
                }
                break;
            }
            next = directory.parent();
            between.push(directory);
        }
    }
}

type Masks = BTreeMap<AbsolutePath, Mask>;

fn credentials(masks: &mut Masks, view: &View, facts: &Facts, weakened: bool) {
    let granted = view
        .grants
        .iter()
        .filter(|grant| !grant.private)
        .map(|grant| &grant.path);
    let reach = secrets::Reach::of(&facts.home, granted);
    for found in secrets::found(facts, &reach) {
        let (Some(path), Some(kind)) = (&found.fact.resolved, &found.fact.resolved_kind) else {
            continue;
        };
        // A grant of a credential itself exists only where the policy weakens
        // FS3 by name; covering it again would undo that.
        let granted_by_name = weakened
            && view
                .grants
                .iter()
                .any(|grant| grant.path == *path || grant.path == *found.path);
        if !granted_by_name {
            cover(
                masks,
                view,
                path,
                *kind == PathKind::Directory,
                secrets::rule(found.credential),
            );
        }
    }
}

fn hidden(
    masks: &mut Masks,
    view: &mut View,
    policy: &Policy,
    facts: &Facts,
    findings: &mut Findings,
) {
    let mut committed = Vec::new();
    for found in &facts.hidden {
        let Some(pattern) = policy.hide.get(found.pattern) else {
            continue;
        };
        let rule = &pattern.rule;
        cover(masks, view, &found.path, found.directory, rule.clone());
        // Where nothing can be written, nothing can be staged either.
        let is_writable = matches!(
            nearest(&view.entries, &found.path),
            Some(Entry::Host {
                access: Access::Write,
                ..
            })
        );
        let mask = masks.get_mut(&found.path).filter(|mask| mask.rule == *rule);
        let (true, Some(mask)) = (is_writable, mask) else {
            continue;
        };
        if found.cover != Cover::Empty {
            view.covers.insert(found.path.clone(), found.cover.clone());
        }
        if found.is_committed() {
            mask.committed = true;
            committed.push(format!("{} ({}, {})", found.path, rule.id, rule.origin));
        }
    }
    if !committed.is_empty() {
        findings.note(format!(
            "hidden, and tracked by git: inside stands what its index holds, read-only, in place of \
             {}",
            some_of(&committed)
        ));
    }
}

/// The first names of a list that may be long.
fn some_of(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn sockets(masks: &mut Masks, view: &View, facts: &Facts) {
    for path in &facts.sockets {
        let rule = built_in(
            "built-in.socket",
            "a process outside listens on this socket",
        );
        cover(masks, view, path, false, rule);
    }
}

/// Files that hold the secret of a credential binding, wherever they lie.
fn bound_secrets(masks: &mut Masks, view: &View, policy: &Policy, facts: &Facts) {
    for path in super::super::network::secret_files(policy) {
        let resolved = facts
            .paths
            .get(&path)
            .and_then(|fact| fact.resolved.as_ref());
        let rule = || {
            built_in(
                "built-in.secret",
                "holds the secret of a credential, which stays outside",
            )
        };
        for place in resolved.into_iter().chain([&path]) {
            cover(masks, view, place, false, rule());
        }
    }
}

/// A run that is granted the caller's cache directory would otherwise read and
/// alter what runs in other workspaces use.
fn caches_of_others(masks: &mut Masks, view: &View, facts: &Facts) {
    if let Some(path) = &facts.all_caches {
        let rule = built_in("built-in.caches", "caches of other projects");
        cover(masks, view, path, true, rule);
    }
}

/// No namespace makes the kernel's key rings private (keyrings(7)). The calls
/// are refused; their lists in /proc (proc_keys(5)) are covered.
fn kernel_keys(masks: &mut Masks, policy: &Policy, findings: &mut Findings) {
    if policy.wall.0 == Wall::Gvisor {
        // The command has another /proc.
        return;
    }
    if policy.nested_sandbox.is_some() {
        // The kernel mounts no other /proc where a part of this one is covered.
        findings.lose(
            Guarantee::PR8,
            "the names of the user's kernel keys can be read in /proc/keys",
        );
        return;
    }
    for path in KEY_LISTS {
        let path = AbsolutePath::parse(path).expect("the paths are absolute");
        let mask = Mask {
            path: path.clone(),
            directory: false,
            committed: false,
            rule: built_in("built-in.keys", "lists kernel keys of processes outside"),
        };
        masks.insert(path, mask);
    }
}

/// Covers a path if the host's content would be visible there.
fn cover(masks: &mut Masks, view: &View, path: &AbsolutePath, directory: bool, rule: Rule) {
    if matches!(
        nearest(&view.entries, path),
        Some(Entry::Host { .. } | Entry::Copy)
    ) {
        masks.entry(path.clone()).or_insert(Mask {
            path: path.clone(),
            directory,
            committed: false,
            rule,
        });
    }
}

/// Landlock can only grant, never take away below a grant: what the caller's
/// own permissions do not already withhold is refused.
fn refuse_what_landlock_cannot_take(
    masks: Vec<Mask>,
    facts: &Facts,
    findings: &mut Findings,
) -> Vec<Mask> {
    let mut withheld = 0_usize;
    for mask in masks {
        if is_unreadable(&mask.path, facts) {
            withheld += 1;
            continue;
        }
        let guarantee = match mask.rule.id.split('.').next() {
            Some("credential") => Guarantee::FS3,
            Some("filesystem") => Guarantee::FS1,
            _ => Guarantee::NT1,
        };
        findings.demand(
            guarantee,
            format!(
                "{} stays visible: Landlock cannot hide it ({})",
                mask.path, mask.rule.reason
            ),
            format!(
                "use process.form = \"namespaces\", grant a directory that does not hold it, \
                 or add \"{guarantee}\" to weaken"
            ),
        );
    }
    if withheld > 0 {
        findings.lose(
            Guarantee::FS3,
            format!("{withheld} credential places are withheld only by their permission bits"),
        );
    }
    Vec::new()
}

/// Whether the permission bits keep the caller from reading a path.
fn is_unreadable(path: &AbsolutePath, facts: &Facts) -> bool {
    let Some(fact) = facts.paths.get(path) else {
        return false;
    };
    let own = fact.uid == facts.uid || fact.gid == facts.gid || facts.uid == 0;
    !own && fact.mode & 0o004 == 0
}
