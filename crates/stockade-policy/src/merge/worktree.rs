//! What belongs to a project whose git directory lies elsewhere.

use super::{Scope, takes_away};
use crate::containment::Contained;
use crate::path::AbsolutePath;
use crate::plan::{Form, Rule};
use crate::policy::{GrantTarget, PathGrant, Policy};
use crate::validate::{Context, Item, LayerPolicy, Said};

/// Id of the rule by which it is granted.
const RULE: &str = "built-in.git-worktree";

/// The git directory of a linked work tree, outside the project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worktree {
    /// The repository: read, because it holds the configuration and hooks.
    pub common: AbsolutePath,
    /// What git writes: the work tree's own directory, objects and references.
    pub written: Vec<AbsolutePath>,
    /// Files in them that say where the repository is; they stay as they are.
    pub pointers: Vec<AbsolutePath>,
}

/// Grants it where the whole project may be written: it is a part of that.
/// Ceilings keep their word, and so does a policy that gives less.
pub fn grant_worktree(
    policy: &mut Policy,
    layers: &[LayerPolicy],
    context: &Context,
    worktree: &Worktree,
) {
    let project = GrantTarget::Path(context.workspace.clone());
    // Without mounts, a file in a directory that is written cannot be kept.
    let whole = policy.write.iter().any(|grant| grant.target == project);
    if !whole || policy.form == Form::LandlockOnly {
        return;
    }
    let scope = Scope::new(&context.home);
    let narrowing: Vec<&LayerPolicy> = layers.iter().filter(|layer| takes_away(layer)).collect();
    let permitted = |path: &AbsolutePath, list: &dyn Fn(&LayerPolicy) -> &Said<GrantTarget>| {
        let target = GrantTarget::Path(path.clone());
        let covers = |limit: &Item<GrantTarget>| limit.value.covers(&target, &scope);
        narrowing.iter().all(|layer| match list(layer) {
            Some(ceiling) => ceiling.iter().any(covers),
            None => true,
        })
    };
    let written = worktree.written.iter();
    if !permitted(&worktree.common, &|layer| &layer.read)
        || !written
            .clone()
            .all(|path| permitted(path, &|layer| &layer.write))
    {
        return;
    }
    policy.write.extend(written.map(grant));
    policy.read.push(grant(&worktree.common));
    policy.kept.extend(worktree.pointers.iter().cloned());
}

/// Whether a grant is one of these, and nobody asked for it by name.
pub fn is_of_worktree(grant: &PathGrant) -> bool {
    grant.rule.id == RULE
}

fn grant(path: &AbsolutePath) -> PathGrant {
    PathGrant {
        target: GrantTarget::Path(path.clone()),
        rule: Rule {
            id: RULE.to_owned(),
            origin: "built-in".to_owned(),
            reason: "the git directory of this linked work tree".to_owned(),
        },
    }
}
