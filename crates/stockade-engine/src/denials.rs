//! Explains a failure that the kernel reports without detail.
//!
//! Only a hint: nothing is decided here. A path that the command was given, or
//! that it named in its last words, and that exists outside but is denied by
//! the plan, is the likely cause; the same decision function that the plan was
//! tested with says which rule it was and how to allow it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use stockade_policy::decide::{Decision, Denial, Question, decide};
use stockade_policy::path::AbsolutePath;
use stockade_policy::plan::Plan;

/// Most denials that are explained after a run.
const DENIALS_MAX: usize = 4;
/// Longest path that is looked for in output.
const PATH_BYTES_MAX: usize = 1024;

/// What probably stopped the command, most likely first.
pub fn explain(plan: &Plan, last_words: &[u8]) -> Vec<Denial> {
    let mut denials: Vec<Denial> = program(plan).into_iter().collect();
    let mut seen = BTreeSet::new();
    let argued = plan.command.argv.iter().skip(1).map(Vec::as_slice);
    for text in argued.chain(paths_in(last_words)) {
        let Some(path) = existing(text, plan) else {
            continue;
        };
        if !seen.insert(path.clone()) {
            continue;
        }
        if let Decision::Denied(denial) = decide(plan, &Question::Read(path)) {
            denials.push(denial);
        }
        if denials.len() == DENIALS_MAX {
            break;
        }
    }
    denials
}

/// Why the program itself is not there, when it is outside and in no place
/// where it would be found inside.
fn program(plan: &Plan) -> Option<Denial> {
    let name = plan.command.argv.first()?;
    let places: Vec<PathBuf> = if name.contains(&b'/') {
        vec![
            plan.command
                .directory
                .as_path()
                .join(OsStr::from_bytes(name)),
        ]
    } else {
        let mut environment = plan.command.environment.iter();
        let (_, path) = environment.find(|(name, _)| name == b"PATH")?;
        std::env::split_paths(OsStr::from_bytes(path))
            .map(|place| place.join(OsStr::from_bytes(name)))
            .collect()
    };
    let mut first = None;
    for place in places.iter().filter(|place| place.is_file()) {
        let Ok(resolved) = std::fs::canonicalize(place) else {
            continue;
        };
        let Ok(path) = AbsolutePath::parse(resolved.as_os_str().as_bytes()) else {
            continue;
        };
        match decide(plan, &Question::Execute(path)) {
            Decision::Permit { .. } => return None,
            Decision::Denied(denial) => first = first.or(Some(denial)),
        }
    }
    first
}

/// The path outside that the text names, links resolved; `None` when there is
/// none, because then the sandbox was not the reason.
fn existing(text: &[u8], plan: &Plan) -> Option<AbsolutePath> {
    let text = match text.iter().position(|&byte| byte == b'=') {
        Some(equals) if text.starts_with(b"-") => &text[equals + 1..],
        _ => text,
    };
    let path = if text.starts_with(b"/") {
        PathBuf::from(OsStr::from_bytes(text))
    } else if text.contains(&b'/') && !text.contains(&b':') {
        plan.command
            .directory
            .as_path()
            .join(OsStr::from_bytes(text))
    } else {
        return None;
    };
    let resolved = std::fs::canonicalize(path).ok()?;
    AbsolutePath::parse(resolved.as_os_str().as_bytes()).ok()
}

/// Absolute paths that stand in a text, the last first.
fn paths_in(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || b"'\"`:,;()[]<>".contains(byte);
    text.split(is_end)
        .filter(|word| word.starts_with(b"/") && word.len() > 1 && word.len() < PATH_BYTES_MAX)
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_between_quotes_and_colons() {
        let text = b"cat: /home/u/.ssh/id: No such file\nopen('/etc/x') failed";
        let found: Vec<&[u8]> = paths_in(text).collect();
        assert_eq!(found, [&b"/etc/x"[..], b"/home/u/.ssh/id"]);
    }
}
