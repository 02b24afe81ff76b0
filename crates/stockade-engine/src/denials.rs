//! Explains a failure that the kernel reports without detail.
//!
//! Only a hint: nothing is decided here. A path that the command was given, or
//! that it named in its last words, and that the plan denies, is the likely
//! cause; the same decision function that the plan was tested with says which
//! rule it was and how to allow it.
//!
//! Whoever chose the command also chose these texts, and often reads the hint.
//! So the host is not asked about them: whether a path exists and where its
//! links lead stays as unknown as it is inside. The exception is a bare program
//! name, which is looked for in the caller's own PATH.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use stockade_policy::decide::{Decision, Denial, Question, decide};
use stockade_policy::path::AbsolutePath;
use stockade_policy::plan::{Action, Plan};

/// Most denials that are explained after a run.
const DENIALS_MAX: usize = 4;
/// Longest path that is looked for in output.
const PATH_BYTES_MAX: usize = 1024;
/// Where files of a machine and its users are (hier(7)). Much else that begins
/// with a slash is no path of this machine: a regular expression, a place that
/// a compiler noted elsewhere.
const TREES: [&[u8]; 16] = [
    b"Users", b"boot", b"data", b"dev", b"etc", b"home", b"lib", b"media", b"mnt", b"opt", b"proc",
    b"root", b"run", b"srv", b"tmp", b"var",
];

/// What probably stopped the command, most likely first.
pub fn explain(plan: &Plan, last_words: &[u8]) -> Vec<Denial> {
    let mut denials: Vec<Denial> = program(plan).into_iter().collect();
    let mut seen = BTreeSet::new();
    let argued = plan.command.argv.iter().skip(1).map(Vec::as_slice);
    let named = argued
        .chain(paths_in(last_words))
        .filter_map(|text| named(text, &plan.command.directory));
    for path in named.chain(hidden_in(plan, last_words)) {
        if !is_likely(&path, plan) || is_left_out(&path, plan) || !seen.insert(path.clone()) {
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

/// Why the program itself is not there: it is named by a path that is denied,
/// or it is only in such places of the caller's PATH.
fn program(plan: &Plan) -> Option<Denial> {
    let name = plan.command.argv.first()?;
    if name.contains(&b'/') {
        let path = named(name, &plan.command.directory)?;
        return match decide(plan, &Question::Execute(path)) {
            Decision::Denied(denial) if !is_left_out(denial_path(&denial)?, plan) => Some(denial),
            _ => None,
        };
    }
    let mut environment = plan.command.environment.iter();
    let (_, path) = environment.find(|(name, _)| name == b"PATH")?;
    let places: Vec<PathBuf> = std::env::split_paths(OsStr::from_bytes(path))
        .map(|place| place.join(OsStr::from_bytes(name)))
        .collect();
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

fn denial_path(denial: &Denial) -> Option<&AbsolutePath> {
    match &denial.question {
        Question::Read(path) | Question::Write(path) | Question::Execute(path) => Some(path),
        Question::Connect { .. } => None,
    }
}

/// The path that the text names, worked out without looking.
fn named(text: &[u8], directory: &AbsolutePath) -> Option<AbsolutePath> {
    let text = match text.iter().position(|&byte| byte == b'=') {
        Some(equals) if text.starts_with(b"-") => &text[equals + 1..],
        _ => text,
    };
    let is_relative = !text.starts_with(b"/");
    if text.iter().any(u8::is_ascii_whitespace)
        || (is_relative && (!text.contains(&b'/') || text.contains(&b':')))
    {
        return None;
    }
    let mut path = match is_relative {
        true => directory.clone(),
        false => AbsolutePath::root(),
    };
    for component in text.split(|&byte| byte == b'/') {
        path = match component {
            b".." => path.parent().unwrap_or_else(AbsolutePath::root),
            other => path.join(other).ok()?,
        };
    }
    Some(path)
}

/// Whether the path is in a place where this machine may have files.
fn is_likely(path: &AbsolutePath, plan: &Plan) -> bool {
    let tree = path.components().next();
    tree.is_some_and(|tree| TREES.contains(&tree)) || tree == plan.workspace.components().next()
}

/// Whether the view shows not even the name, so that a hint would.
fn is_left_out(path: &AbsolutePath, plan: &Plan) -> bool {
    plan.steps.iter().any(|step| match &step.action {
        Action::BindWithout { absent, .. } => absent.iter().any(|name| path.is_within(name)),
        _ => false,
    })
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

/// Hidden files of the workspace that a text names by a relative path. Git
/// writes paths from the top of its work tree, others from where they stand.
fn hidden_in(plan: &Plan, text: &[u8]) -> Vec<AbsolutePath> {
    let hidden: BTreeSet<&AbsolutePath> = plan.masks.iter().map(|mask| &mask.path).collect();
    let mut bases = Vec::new();
    let mut next = Some(plan.command.directory.clone());
    while let Some(directory) = next.filter(|above| above.is_within(&plan.workspace)) {
        next = directory.parent();
        bases.push(directory);
    }
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || b"'\"`:,;()<>".contains(byte);
    text.split(is_end)
        .filter(|word| (1..PATH_BYTES_MAX).contains(&word.len()) && !word.starts_with(b"/"))
        .flat_map(|word| bases.iter().filter_map(move |base| base.join(word).ok()))
        .filter(|path| hidden.contains(path))
        .take(DENIALS_MAX)
        .collect()
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

    #[test]
    fn a_text_is_turned_into_a_path_without_looking() {
        let directory = AbsolutePath::parse("/home/u/project").unwrap();
        let named = |text: &str| named(text.as_bytes(), &directory).map(|path| path.to_string());
        assert_eq!(named("/root/./x").as_deref(), Some("/root/x"));
        assert_eq!(named("../data/x").as_deref(), Some("/home/u/data/x"));
        assert_eq!(named("--in=../../../../x").as_deref(), Some("/x"));
        assert_eq!(named("word"), None);
        assert_eq!(named("host:a/b"), None);
        assert_eq!(named("cat /root/x"), None);
    }
}
