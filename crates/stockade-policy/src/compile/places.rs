//! Judges places: which directories may be a workspace or be written at all,
//! and whether the command's directory keeps to the workspace.

use crate::facts::{Facts, PathKind};
use crate::guarantee::Guarantee;
use crate::path::AbsolutePath;
use crate::policy::Policy;

use super::CommandRequest;
use super::findings::Findings;

/// Directories that are never written, with everything below them.
const SYSTEM_TREES: [&str; 13] = [
    "/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/boot", "/dev",
    "/proc", "/sys", "/run",
];

/// Trees of which the view has its own.
const OWN_TREES: [&str; 2] = ["/proc", "/dev"];

/// Places below a system tree where people do keep projects.
const PROJECT_TREES: [&str; 3] = ["/usr/src", "/usr/local/src", "/run/media"];

/// Directories that hold what belongs to many; only themselves are refused.
const SHARED_DIRECTORIES: [&str; 10] = [
    "/", "/home", "/tmp", "/var", "/var/tmp", "/var/lib", "/opt", "/mnt", "/media", "/srv",
];

/// Checks the workspace and the command's directory. Returns the directory
/// with its links resolved.
pub(super) fn check(
    policy: &Policy,
    facts: &Facts,
    command: &CommandRequest,
    findings: &mut Findings,
) -> AbsolutePath {
    check_workspace(policy, facts, findings);
    if command.argv.is_empty() {
        findings.refuse(
            Guarantee::AU2,
            "there is no command",
            "name a command to run",
        );
    }
    check_directory(policy, facts, command, findings)
}

/// Why a place may not be written, `None` when it may. Shared by workspace
/// and write grants, so that no rule can widen what the other refuses.
pub(crate) fn never_written(path: &AbsolutePath, home: &AbsolutePath) -> Option<String> {
    if is_system(path, home) {
        return Some(format!("{path} belongs to the system"));
    }
    if SHARED_DIRECTORIES.contains(&text(path)) {
        return Some(format!("{path} holds what belongs to others"));
    }
    if home.is_within(path) {
        return Some(format!("{path} holds the whole home directory"));
    }
    None
}

/// Whether a path lies in a tree of which the view has its own, or is the
/// root; no grant can name it.
pub(crate) fn has_own(path: &AbsolutePath) -> bool {
    path.is_root() || OWN_TREES.iter().any(|tree| within(path, tree))
}

/// Whether a path lies in a tree that belongs to the system.
pub(super) fn is_system(path: &AbsolutePath, home: &AbsolutePath) -> bool {
    let below = |tree: &&str| within(path, tree);
    let strictly_below = |tree: &&str| within(path, tree) && text(path) != *tree;
    if within(path, "/root") && !path.is_within(home) && text(home) != "/root" {
        return true;
    }
    SYSTEM_TREES.iter().any(below) && !PROJECT_TREES.iter().any(strictly_below)
}

/// Whether a home directory can be replaced by a private one without hiding
/// what programs need.
pub(super) fn is_replaceable_home(home: &AbsolutePath) -> bool {
    !SYSTEM_TREES.iter().any(|tree| within(home, tree)) && !SHARED_DIRECTORIES.contains(&text(home))
}

fn check_workspace(policy: &Policy, facts: &Facts, findings: &mut Findings) {
    let workspace = &policy.workspace;
    if let Some(reason) = never_written(workspace, &facts.home) {
        findings.refuse(
            Guarantee::FS2,
            format!("the workspace {workspace} cannot be granted: {reason}"),
            "run in a project directory of its own",
        );
    }
    let problem = match facts.paths.get(workspace) {
        None => "does not exist",
        Some(fact) if fact.resolved.as_ref() != Some(workspace) => "is reached through a link",
        Some(fact) if fact.kind != PathKind::Directory => "is not a directory",
        Some(_) => return,
    };
    findings.refuse(
        Guarantee::FS2,
        format!("the workspace {workspace} {problem}"),
        "name a directory that exists",
    );
}

fn check_directory(
    policy: &Policy,
    facts: &Facts,
    command: &CommandRequest,
    findings: &mut Findings,
) -> AbsolutePath {
    let named = &command.directory;
    let resolved = match facts.paths.get(named) {
        Some(fact) if fact.resolved_kind == Some(PathKind::Directory) => fact.resolved.clone(),
        _ => None,
    };
    match resolved {
        None => findings.refuse(
            Guarantee::FS2,
            format!("the command's directory {named} does not exist or is not a directory"),
            "name a directory that exists inside the workspace",
        ),
        Some(directory) if directory.is_within(&policy.workspace) => return directory,
        Some(directory) => findings.refuse(
            Guarantee::FS2,
            format!(
                "the command's directory {directory} lies outside the workspace {}",
                policy.workspace
            ),
            "run inside the workspace; a directory never widens what may be written",
        ),
    }
    named.clone()
}

fn within(path: &AbsolutePath, base: &str) -> bool {
    path.as_bytes()
        .strip_prefix(base.as_bytes())
        .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// The path as text for comparison with the constants above; a path that is
/// not UTF-8 equals none of them.
fn text(path: &AbsolutePath) -> &str {
    std::str::from_utf8(path.as_bytes()).unwrap_or_default()
}
