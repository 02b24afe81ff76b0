//! Which keys of a git configuration make git run something, or lead it
//! elsewhere.
//!
//! Reads as git does (config.c), and refuses what git would refuse, so that no
//! key is seen by git and not here. What is known about keys is data
//! (`data/git-config.keys`); a key that nothing is known of counts as one that
//! runs something.

mod keys;
mod leads;
mod read;

use crate::path::printable;
use read::Setting;

pub use leads::{Lead, LeadKind, leads, words};
pub use read::Malformed;

/// Longest text that is read, in bytes; git's own files have some hundred.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// A key that runs something or leads git elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// `section.name` or `section.subsection.name`, printable.
    pub key: String,
    /// Line in the text, from 1.
    pub line: u32,
    /// What git does with it.
    pub why: &'static str,
}

/// Every key that runs something or leads git elsewhere, in the order of the
/// text. `core.worktree` always counts: see [`newly_executing_in`].
///
/// Fails where git would not read the text; whoever asks then holds it.
pub fn executing_keys(text: &[u8]) -> Result<Vec<Finding>, Malformed> {
    newly_executing(b"", text)
}

/// The keys of `new` that run something or lead git elsewhere, and did not
/// stand in `old` with the same value. An old text that git would not read
/// counts as empty.
pub fn newly_executing(old: &[u8], new: &[u8]) -> Result<Vec<Finding>, Malformed> {
    compared(old, new, None)
}

/// As [`newly_executing`], for a configuration in `git_directory`, a path
/// relative to the workspace. A `core.worktree` relative to it that stays in
/// the workspace, and out of every git directory, passes: submodules have one.
pub fn newly_executing_in(
    old: &[u8],
    new: &[u8],
    git_directory: &[u8],
) -> Result<Vec<Finding>, Malformed> {
    compared(old, new, Some(git_directory))
}

fn compared(
    old: &[u8],
    new: &[u8],
    git_directory: Option<&[u8]>,
) -> Result<Vec<Finding>, Malformed> {
    if is_reference(new) {
        return Ok(Vec::new());
    }
    let old = read::settings(old).unwrap_or_default();
    let mut findings = Vec::new();
    for setting in read::settings(new)? {
        let same = |other: &Setting| other.key == setting.key && other.value == setting.value;
        if old.iter().any(same) {
            continue;
        }
        let before = old.iter().any(|other| other.key == setting.key);
        if let Some(why) = keys::executes(&setting, before, git_directory) {
            findings.push(Finding {
                key: printable(&setting.key),
                line: setting.line,
                why,
            });
        }
    }
    Ok(findings)
}

/// What a branch called `config` holds: git reads no configuration in it.
fn is_reference(text: &[u8]) -> bool {
    let line = text.strip_suffix(b"\n").unwrap_or(text);
    matches!(line.len(), 40 | 64) && line.iter().all(u8::is_ascii_hexdigit)
}

#[cfg(test)]
mod tests;
