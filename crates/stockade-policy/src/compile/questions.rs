//! What must be known about the machine before a policy can be compiled.

use std::collections::{BTreeMap, BTreeSet};

use crate::facts::Facts;
use crate::path::AbsolutePath;
use crate::policy::{GrantTarget, NamedSet, PathGrant, Policy};
use crate::sets;

use super::{network, secrets, view};

/// Every path of which the compiler wants a [`PathFact`](crate::facts::PathFact)
/// first, sorted and without repetition; [`credential_questions`] comes after.
///
/// Each granted path comes with all directories above it, because a link in
/// the middle decides what is mounted. `image` is what an image has in its
/// root, if there is one.
pub fn questions(
    policy: &Policy,
    home: &AbsolutePath,
    environment: &BTreeMap<Vec<u8>, Vec<u8>>,
    directory: &AbsolutePath,
    image: &[AbsolutePath],
) -> Vec<AbsolutePath> {
    let mut wanted = BTreeSet::new();
    ask(&mut wanted, &policy.workspace);
    ask(&mut wanted, directory);
    let mut granted_sets = BTreeSet::new();
    for grant in policy.write.iter().chain(&policy.read) {
        match &grant.target {
            GrantTarget::Path(path) => ask(&mut wanted, path),
            GrantTarget::Set(set) => _ = granted_sets.insert(*set),
        }
    }
    for path in image {
        ask(&mut wanted, path);
    }
    for set in granted_sets {
        for candidate in sets::candidates(set, home, environment) {
            ask(&mut wanted, &candidate.path);
        }
    }
    for path in network::questions(policy, environment) {
        ask(&mut wanted, &path);
    }
    wanted.extend(view::mount_points());
    wanted.extend(view::markers(&policy.workspace));
    for file in &policy.kept {
        ask(&mut wanted, file);
    }
    wanted.remove(&AbsolutePath::root());
    wanted.into_iter().collect()
}

/// What must be known about credentials, once the answers to [`questions`]
/// say what is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialQuestions {
    /// Paths to look up as before.
    pub paths: Vec<AbsolutePath>,
    /// A directory and a pattern below it, where `*` stands for any bytes
    /// within one component. What matches belongs into `facts.paths` too.
    pub patterns: Vec<(AbsolutePath, &'static str)>,
}

/// The credential places that could be seen under this policy. Without the
/// answers they would be taken for missing and stay visible.
pub fn credential_questions(policy: &Policy, facts: &Facts) -> CredentialQuestions {
    let mut granted: Vec<AbsolutePath> = Vec::with_capacity(64);
    let named = policy
        .write
        .iter()
        .chain(&policy.read)
        .flat_map(|grant| targets(grant, facts));
    for path in named.chain([policy.workspace.clone()]) {
        granted.extend(
            facts
                .paths
                .get(&path)
                .and_then(|fact| fact.resolved.clone()),
        );
    }
    let reach = secrets::Reach::of(&facts.home, granted.iter());
    CredentialQuestions {
        paths: secrets::literals(&facts.home, &reach),
        patterns: secrets::patterns(&facts.home, &reach),
    }
}

/// The directories that a person granted and that exist, links resolved:
/// below them the engine looks for unix sockets on which a process outside
/// listens. The system set is not among them.
pub fn granted_roots(policy: &Policy, facts: &Facts) -> Vec<AbsolutePath> {
    roots(policy, facts, |target| {
        *target != GrantTarget::Set(NamedSet::System)
    })
}

/// Where `hide` patterns apply: the workspace and what is granted by path. A
/// toolchain holds a hundred thousand files and nothing of the project's.
pub fn hide_roots(policy: &Policy, facts: &Facts) -> Vec<AbsolutePath> {
    roots(policy, facts, |target| {
        matches!(target, GrantTarget::Path(_))
    })
}

fn roots(
    policy: &Policy,
    facts: &Facts,
    counts: impl Fn(&GrantTarget) -> bool,
) -> Vec<AbsolutePath> {
    let resolved = |path: &AbsolutePath| facts.paths.get(path)?.resolved.clone();
    let mut roots = BTreeSet::from_iter(resolved(&policy.workspace));
    let grants = policy.write.iter().chain(&policy.read);
    for grant in grants.filter(|grant| counts(&grant.target)) {
        roots.extend(targets(grant, facts).iter().filter_map(resolved));
    }
    let covered = |path: &AbsolutePath| path.ancestors().any(|above| roots.contains(above));
    roots
        .iter()
        .filter(|path| !covered(path))
        .cloned()
        .collect()
}

fn targets(grant: &PathGrant, facts: &Facts) -> Vec<AbsolutePath> {
    match &grant.target {
        GrantTarget::Path(path) => vec![path.clone()],
        // What an image has in place of them is nobody's credential.
        GrantTarget::Set(_) if facts.image.is_some() => Vec::new(),
        GrantTarget::Set(set) => sets::candidates(*set, &facts.home, &facts.environment)
            .into_iter()
            .map(|candidate| candidate.path)
            .collect(),
    }
}

fn ask(wanted: &mut BTreeSet<AbsolutePath>, path: &AbsolutePath) {
    let mut next = Some(path.clone());
    while let Some(path) = next {
        next = path.parent();
        if !wanted.insert(path) {
            return;
        }
    }
}
