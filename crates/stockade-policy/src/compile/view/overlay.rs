//! The workspace as an overlay, in the modes in which what is written does not
//! reach it directly.

use crate::path::AbsolutePath;
use crate::plan::{Access, WorkspaceMode};
use crate::policy::Policy;

use super::super::findings::Findings;
use super::{Entry, View, nearest};

/// Makes the workspace an overlay when anything in it can be written. Parts
/// of it that have a grant of their own are then parts of the overlay.
pub(super) fn enter(view: &mut View, policy: &Policy, findings: &mut Findings) {
    let (mode, rule) = &policy.workspace_mode;
    if *mode == WorkspaceMode::Live {
        return;
    }
    let workspace = &policy.workspace;
    let around = match nearest_writable(view, workspace) {
        true => Access::Write,
        false => Access::Read,
    };
    let writable = Entry::Host {
        access: Access::Write,
        directory: true,
    };
    let below = |(path, entry): (&AbsolutePath, &Entry)| {
        let is_written = matches!(
            entry,
            Entry::Host {
                access: Access::Write,
                ..
            }
        );
        is_written && path.is_within(workspace)
    };
    if around == Access::Read && !view.entries.iter().any(below) {
        findings.note(format!(
            "nothing in the workspace can be written, so `{}` ({}) changes nothing",
            rule.id, rule.origin
        ));
        return;
    }
    if around == Access::Write {
        view.entries.insert(workspace.clone(), writable);
    }
    view.layered = Some(workspace.clone());
}

fn nearest_writable(view: &View, workspace: &AbsolutePath) -> bool {
    let own_or_above = std::iter::once(workspace.as_bytes())
        .chain(workspace.ancestors())
        .filter_map(|path| view.entries.get(path));
    let mut own_or_above = own_or_above.chain(nearest(&view.entries, workspace));
    own_or_above.any(|entry| {
        matches!(
            entry,
            Entry::Host {
                access: Access::Write,
                directory: true
            }
        )
    })
}
