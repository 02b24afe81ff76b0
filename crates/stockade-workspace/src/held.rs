//! What a guard says about a change that waits.

use std::io::Read;

use serde::Serialize;
use stockade_policy::git_config;
use stockade_policy::guard::{Guard, Judged, Rule, Strength};

use crate::change::{Change, ChangeKind};
use crate::stack::Stack;
use crate::tree::FileKind;

/// Longest git configuration that is read, in bytes; a longer one is held.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Why a change is special.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Whether it becomes active only when a person says so by name.
    pub held: bool,
    /// What reads such a path, for example `git`.
    pub kind: &'static str,
    /// Id of the rule.
    pub rule: String,
    /// Layer and line of the rule.
    pub origin: String,
    /// Why it matters.
    pub reason: String,
    /// What of the content matters.
    pub detail: Option<String>,
}

/// Judges one change; `below` shows the tree as it is, `whole` with the layers.
pub fn judge(guard: &Guard, change: &Change, below: &Stack, whole: &Stack) -> Option<Verdict> {
    let entry = change.after.as_ref();
    let rule = guard.judge(&change.path);
    if let (None, Some(entry)) = (rule, entry)
        && entry.kind == FileKind::Symlink
        && guard.is_above(&change.path)
    {
        return Some(Verdict {
            held: true,
            kind: "link",
            rule: "filesystem.guard".to_owned(),
            origin: "built-in".to_owned(),
            reason: "guarded names would be found behind this link".to_owned(),
            detail: None,
        });
    }
    let rule = rule?;
    // What is gone runs no more.
    let Some(entry) = entry else {
        return Some(verdict(rule, false, Some("removed".to_owned())));
    };
    // What is in a directory is judged name by name.
    if entry.kind == FileKind::Directory || is_only_touched(change) {
        return None;
    }
    if rule.strength != Strength::Hold {
        return Some(verdict(rule, false, None));
    }
    match rule.judged {
        Judged::GitConfig => match git_keys(change, below, whole) {
            None => {
                let why = "it cannot be read as a git configuration";
                Some(verdict(rule, true, Some(why.to_owned())))
            }
            Some(keys) if keys.is_empty() => None,
            Some(keys) => Some(verdict(rule, true, Some(keys.join(", ")))),
        },
        _ => Some(verdict(rule, true, None)),
    }
}

/// Only the time of the last modification differs.
fn is_only_touched(change: &Change) -> bool {
    let aspects = change.aspects;
    change.kind == ChangeKind::Modified
        && !aspects.content
        && !aspects.mode
        && !aspects.attributes
        && !aspects.owner
}

fn verdict(rule: &Rule, held: bool, detail: Option<String>) -> Verdict {
    Verdict {
        held,
        kind: rule.kind.word(),
        rule: rule.rule.id.clone(),
        origin: rule.rule.origin.clone(),
        reason: rule.rule.reason.clone(),
        detail,
    }
}

/// Keys of a git configuration that execute and were not there before; `None`
/// when the content is none that git would read.
fn git_keys(change: &Change, below: &Stack, whole: &Stack) -> Option<Vec<String>> {
    if !change.is(FileKind::File) {
        return None;
    }
    let new = read(whole, &change.path)?;
    let old = match &change.before {
        Some(entry) if entry.kind == FileKind::File => read(below, &change.path)?,
        _ => Vec::new(),
    };
    let found = git_config::newly_executing(&old, &new).ok()?;
    Some(
        found
            .into_iter()
            .map(|finding| format!("{} (line {}): {}", finding.key, finding.line, finding.why))
            .collect(),
    )
}

fn read(stack: &Stack, path: &[u8]) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    let file = stack.open(path).ok()?;
    file.take(CONFIG_BYTES_MAX + 1)
        .read_to_end(&mut content)
        .ok()?;
    (content.len() as u64 <= CONFIG_BYTES_MAX).then_some(content)
}
