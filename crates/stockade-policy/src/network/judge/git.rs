//! Judges one git operation, as parsed from its protocol.

use super::{Denial, Judge, Ruling, Silent, grants, ssh_port};
use crate::network::destination::Destination;
use crate::network::pattern::Pattern;
use crate::network::rules::{Git, holds_port};
use crate::plan::Rule;

/// What is done to which repository.
#[derive(Clone, Copy, Debug)]
pub struct GitOperation<'a> {
    /// `owner/name` or deeper, canonical, without `.git`.
    pub repository: &'a str,
    pub action: GitAction<'a>,
    pub over_ssh: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum GitAction<'a> {
    /// Clone, fetch, list references.
    Read,
    /// What a push would do to each reference.
    Push { updates: &'a [RefUpdate] },
    /// A push whose commands are not known yet.
    PushAny,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefUpdate {
    /// In full, as `refs/heads/main`.
    pub name: String,
    pub delete: bool,
    pub create: bool,
}

/// An operation that may go on, and what it is held to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitPermit {
    pub rule: Rule,
    pub push_bytes_max: Option<u64>,
    /// Every reference was looked at; else the operation must come back with
    /// its updates before anything of it is sent.
    pub refs_checked: bool,
}

/// Branches, which an empty list of references stands for.
const BRANCHES: &str = "refs/heads/";

impl Judge {
    /// Whether a git operation may go on; `now_unix` in seconds.
    pub fn git(
        &self,
        destination: &Destination,
        operation: &GitOperation<'_>,
        now_unix: u64,
    ) -> Ruling<GitPermit> {
        if let Some(denial) = self.beyond_rules(destination) {
            return Ruling::Denied(denial);
        }
        let speaking = match self.speaking(destination, now_unix) {
            Ok(speaking) => speaking,
            Err(Silent::Granting(denial)) => return Ruling::Unknown(denial),
            Err(Silent::Ceiling(denial)) => return Ruling::Denied(denial),
        };
        let mut permit: Option<GitPermit> = None;
        for (set, numbers) in speaking.iter().enumerate() {
            match self.git_of_set(destination, operation, set, numbers) {
                Err(denial) => return Ruling::Denied(denial),
                Ok(one) => permit = Some(together(permit, one)),
            }
        }
        match permit {
            Some(permit) => Ruling::Permit(permit),
            None => Ruling::Unknown(self.silence(0, destination, now_unix)),
        }
    }

    fn git_of_set(
        &self,
        destination: &Destination,
        operation: &GitOperation<'_>,
        set: usize,
        numbers: &[usize],
    ) -> Result<GitPermit, Denial> {
        let rules = &self.plan.sets[set].rules;
        let mut missed: Option<(Miss, usize)> = None;
        for &number in numbers {
            let rule = &rules[number];
            let result = match (&rule.git, &rule.content) {
                (Some(git), _) => {
                    let way = match operation.over_ssh {
                        true => ssh_port(rule) == Some(destination.port()),
                        false => holds_port(&rule.ports, destination.port()),
                    };
                    match way {
                        true => self.git_of_rule(git, operation, set, number),
                        false => Err(Miss::Way),
                    }
                }
                // Nothing is demanded, or the request was judged already.
                (None, None) => Ok(None),
                (None, Some(_)) if !operation.over_ssh => Ok(None),
                (None, Some(_)) => Err(Miss::Way),
            };
            match result {
                Ok(push_bytes_max) => {
                    return Ok(GitPermit {
                        rule: rule.rule.clone(),
                        push_bytes_max,
                        refs_checked: !matches!(operation.action, GitAction::PushAny),
                    });
                }
                Err(miss)
                    if missed
                        .as_ref()
                        .is_none_or(|(so_far, _)| miss.rank() > so_far.rank()) =>
                {
                    missed = Some((miss, number));
                }
                Err(_) => {}
            }
        }
        let (miss, number) = missed.unwrap_or((Miss::Way, 0));
        Err(self.git_denial(destination, operation, set, number, miss))
    }

    fn git_of_rule(
        &self,
        git: &Git,
        operation: &GitOperation<'_>,
        set: usize,
        number: usize,
    ) -> Result<Option<u64>, Miss> {
        let patterns = &self.sets[set].patterns[number];
        let named = |patterns: &[Pattern]| {
            patterns
                .iter()
                .any(|pattern| pattern.matches(operation.repository))
        };
        let may_push = named(&patterns.push);
        match operation.action {
            // Whoever pushes has to fetch first.
            GitAction::Read if may_push || named(&patterns.read) => Ok(None),
            GitAction::Read => Err(Miss::Read),
            _ if !may_push => Err(Miss::Push),
            GitAction::PushAny => Ok(git.push_bytes_max),
            GitAction::Push { updates } => {
                for update in updates {
                    if !may_update(&patterns.refs, &update.name) {
                        return Err(Miss::Reference(update.name.clone()));
                    }
                    if update.delete && !git.delete {
                        return Err(Miss::Delete(update.name.clone()));
                    }
                }
                Ok(git.push_bytes_max)
            }
        }
    }

    fn git_denial(
        &self,
        destination: &Destination,
        operation: &GitOperation<'_>,
        set: usize,
        number: usize,
        miss: Miss,
    ) -> Denial {
        let rule = &self.plan.sets[set].rules[number];
        let (id, origin) = (&rule.rule.id, &rule.rule.origin);
        let repository = operation.repository;
        let is_push = !matches!(operation.action, GitAction::Read);
        let (code, reason) = match &miss {
            Miss::Way => (
                if is_push { "git-push" } else { "git-read" },
                format!("{id} ({origin}) does not permit git at {destination}"),
            ),
            Miss::Read => (
                "git-read",
                format!("{id} ({origin}) does not permit reading {repository}"),
            ),
            Miss::Push => (
                "git-push",
                format!("{id} ({origin}) does not permit pushing to {repository}"),
            ),
            Miss::Reference(name) => (
                "git-ref",
                format!("{id} ({origin}) does not permit pushing {name} of {repository}"),
            ),
            Miss::Delete(name) => (
                "git-ref",
                format!("{id} ({origin}) does not permit deleting {name} of {repository}"),
            ),
        };
        Denial {
            code,
            rule: id.clone(),
            origin: origin.clone(),
            reason,
            smallest_grant: (set == 0).then(|| grants::git(destination, operation, &miss)),
        }
    }
}

/// Why a rule does not permit an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// Not by this protocol or port.
    Way,
    Read,
    Push,
    Reference(String),
    Delete(String),
}

impl Miss {
    /// The higher, the nearer the rule came to permitting.
    fn rank(&self) -> u8 {
        match self {
            Self::Way => 0,
            Self::Read | Self::Push => 1,
            Self::Reference(_) => 2,
            Self::Delete(_) => 3,
        }
    }
}

fn may_update(refs: &[Pattern], name: &str) -> bool {
    match refs {
        [] => name
            .strip_prefix(BRANCHES)
            .is_some_and(|rest| !rest.is_empty()),
        patterns => patterns.iter().any(|pattern| pattern.matches(name)),
    }
}

fn together(left: Option<GitPermit>, right: GitPermit) -> GitPermit {
    let Some(mut left) = left else {
        return right;
    };
    let limits = [left.push_bytes_max, right.push_bytes_max];
    left.push_bytes_max = limits.into_iter().flatten().min();
    left.refs_checked &= right.refs_checked;
    left
}
