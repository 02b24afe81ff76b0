//! Which names in a directory of hooks are hooks (githooks(5)).

use std::borrow::Cow;

use super::pattern::{Component, Pattern, fold};

/// Whether a pattern of the list stands for a directory of hooks.
pub(super) fn names_hooks(pattern: &str) -> bool {
    pattern.ends_with("/hooks/**")
}

/// Whether a path below a directory of hooks is one, or may be part of one.
pub(super) fn is_hook(path: &[Cow<'_, [u8]>], pattern: &Pattern) -> bool {
    let Some(name) = path.last() else {
        return false;
    };
    // Below `refs` and `logs` of a nested git directory a branch may be called
    // like that; but they could be a git directory themselves, so real names
    // of hooks are held.
    let nested = pattern.0.contains(&Component::Literal(b"modules".to_vec()));
    let hooks = path.iter().rposition(|part| part.as_ref() == b"hooks");
    let branch = |part: &Cow<'_, [u8]>| matches!(part.as_ref(), b"refs" | b"logs");
    match hooks {
        Some(hooks) if nested && path[..hooks].iter().any(branch) => {
            HOOKS.iter().any(|hook| hook.as_bytes() == name.as_ref())
        }
        _ => is_hook_name(name),
    }
}

/// Whether a file of this name in a directory of hooks may run: all but the
/// samples that git lays there. A hook may call any other file beside it.
pub fn is_hook_name(name: &[u8]) -> bool {
    !fold(name).ends_with(b".sample")
}

/// Whether a file system or git may take a name for `.git`.
pub fn is_git_name(name: &[u8]) -> bool {
    fold(name).as_ref() == b".git"
}

/// Names under which git runs hooks (githooks(5)).
const HOOKS: &[&str] = &[
    "applypatch-msg",
    "pre-applypatch",
    "post-applypatch",
    "pre-commit",
    "pre-merge-commit",
    "prepare-commit-msg",
    "commit-msg",
    "post-commit",
    "pre-rebase",
    "post-checkout",
    "post-merge",
    "pre-push",
    "pre-receive",
    "update",
    "proc-receive",
    "post-receive",
    "post-update",
    "reference-transaction",
    "push-to-checkout",
    "pre-auto-gc",
    "post-rewrite",
    "sendemail-validate",
    "fsmonitor-watchman",
    "p4-changelist",
    "p4-prepare-changelist",
    "p4-post-changelist",
    "p4-pre-submit",
    "post-index-change",
];
