//! What the next run finds its project and its policy by: the policy file and
//! the repository. A command that could take them away would widen what the
//! next one may do.

use crate::facts::{Facts, PathKind};
use crate::guarantee::Guarantee;
use crate::path::AbsolutePath;
use crate::plan::{Access, Form, Grant};
use crate::policy::{GrantTarget, PathGrant, Policy};

use super::super::findings::Findings;
use super::{Entry, View, built_in, nearest_above};

/// Read-only inside: without it, or with another, less would be hidden.
const POLICY_FILE: &str = "stockade.toml";
/// Stays where it is, writable: without it a directory further up would count
/// as the project.
const REPOSITORY: &str = ".git";

/// Where the markers of a project are.
pub(in super::super) fn markers(workspace: &AbsolutePath) -> impl Iterator<Item = AbsolutePath> {
    [POLICY_FILE, REPOSITORY]
        .into_iter()
        .filter_map(|name| workspace.join(name).ok())
}

/// Makes the markers that exist mount points of their own, which can be
/// neither removed nor renamed (EBUSY). A link cannot be kept like that.
pub(super) fn keep(view: &mut View, policy: &Policy, facts: &Facts, findings: &mut Findings) {
    if view.layered.is_some() {
        // The next run reads the host's, which this one does not write.
        return;
    }
    for marker in markers(&policy.workspace) {
        let Some(fact) = facts.paths.get(&marker) else {
            continue;
        };
        let above = nearest_above(&view.entries, &marker);
        let is_writable = above
            == Some(&Entry::Host {
                access: Access::Write,
                directory: true,
            });
        let is_in_place = fact.resolved.as_ref() == Some(&marker);
        if !is_writable || !is_in_place || view.entries.contains_key(&marker) {
            continue;
        }
        if policy.form == Form::LandlockOnly {
            findings.lose(
                Guarantee::FS5,
                format!("a command can remove {marker}, by which the next run is set up"),
            );
            continue;
        }
        let directory = fact.kind == PathKind::Directory;
        let access = match marker.file_name() == Some(POLICY_FILE.as_bytes()) {
            true => policy_file_access(view, policy, &marker),
            false => Access::Write,
        };
        view.entries
            .insert(marker, Entry::Host { access, directory });
    }
}

/// Makes files in a part that is written read-only mounts: pointers of a git
/// directory outside, which decide what git runs there.
pub(super) fn keep_files(view: &mut View, policy: &Policy, facts: &Facts, findings: &mut Findings) {
    for file in &policy.kept {
        let in_place = facts.paths.get(file).is_some_and(|fact| {
            fact.kind == PathKind::File && fact.resolved.as_ref() == Some(file)
        });
        let writable = Entry::Host {
            access: Access::Write,
            directory: true,
        };
        if nearest_above(&view.entries, file) != Some(&writable) {
            continue;
        }
        if !in_place {
            findings.refuse(
                Guarantee::FS5,
                format!("{file} is no file any more, and would be open to the command"),
                "start again",
            );
            continue;
        }
        let entry = Entry::Host {
            access: Access::Read,
            directory: false,
        };
        view.entries.insert(file.clone(), entry);
        view.grants.push(Grant {
            path: file.clone(),
            access: Access::Read,
            private: false,
            rule: built_in(
                "built-in.git-pointer",
                "says where git finds its configuration and hooks",
            ),
        });
    }
}

/// Read-only, unless a person grants exactly this file to be written.
fn policy_file_access(view: &mut View, policy: &Policy, file: &AbsolutePath) -> Access {
    let by_name = |grant: &PathGrant| grant.target == GrantTarget::Path(file.clone());
    if policy.write.iter().any(by_name) {
        return Access::Write;
    }
    view.grants.push(Grant {
        path: file.clone(),
        access: Access::Read,
        private: false,
        rule: built_in(
            "built-in.policy-file",
            "a command must not change the policy of the next",
        ),
    });
    Access::Read
}
