//! Where settings of a git configuration lead: the files that git runs, or
//! reads further settings from, because somebody configured it so.

use super::Malformed;
use super::keys::{self, UNKNOWN};
use super::read::{self, Setting};
use crate::path::printable;

/// Most settings of one file that are followed.
const LEADS_MAX: usize = 256;

/// How a value names files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeadKind {
    /// A directory of hooks.
    Hooks,
    /// A file with more settings.
    Include,
    /// A command line, or the path of a file.
    Command,
}

/// One setting that leads to files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lead {
    pub kind: LeadKind,
    /// As in [`super::Finding`].
    pub key: String,
    /// Line in the text, from 1.
    pub line: u32,
    pub value: Vec<u8>,
}

/// What the settings of a text lead to, in its order; at most 256. Conditions
/// of includes are taken to be met.
///
/// Fails where git would not read the text, and then runs nothing of it.
pub fn leads(text: &[u8]) -> Result<Vec<Lead>, Malformed> {
    let mut leads = Vec::new();
    for setting in read::settings(text)? {
        if let (Some(kind), Some(value)) = (kind(&setting), &setting.value)
            && leads.len() < LEADS_MAX
        {
            leads.push(Lead {
                kind,
                key: printable(&setting.key),
                line: setting.line,
                value: value.clone(),
            });
        }
    }
    Ok(leads)
}

fn kind(setting: &Setting) -> Option<LeadKind> {
    let key = &setting.key[..];
    let is_command = || {
        let known = keys::executes(setting, false, None).is_some_and(|why| why != UNKNOWN);
        let words = setting.value.as_deref().unwrap_or_default();
        // An alias without it is a command of git's own.
        known && (!key.starts_with(b"alias.") || words.trim_ascii_start().starts_with(b"!"))
    };
    match key {
        b"core.hookspath" => Some(LeadKind::Hooks),
        b"include.path" => Some(LeadKind::Include),
        _ if key.starts_with(b"includeif.") && key.ends_with(b".path") => Some(LeadKind::Include),
        _ => is_command().then_some(LeadKind::Command),
    }
}

/// The words of a command line that may be paths: what a shell would take
/// apart is taken apart everywhere, so that each part is looked at.
pub fn words(command: &[u8]) -> impl Iterator<Item = &[u8]> {
    let parts = |byte: &u8| byte.is_ascii_whitespace() || b"!;|&()<>{}\"'`=$,\\".contains(byte);
    command
        .split(parts)
        .filter(|word| !word.is_empty() && *word != b"." && *word != b"..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_or_includes_is_found_and_nothing_else() {
        let text = b"[core]\n\tbare = false\n\thooksPath = .githooks\n[include]\npath = ../.gitconfig\n\
            [includeIf \"gitdir:/x/\"] path = y\n[filter \"lfs\"]\nclean = ./tools/lfs %f\n\
            [alias]\nlg = log\nx = !./x.sh\n[remote \"origin\"]\nurl = https://x.example/y\n[lint]\nby = ./z\n";
        let found: Vec<_> = leads(text)
            .unwrap()
            .into_iter()
            .map(|lead| (lead.kind, lead.line, String::from_utf8(lead.value).unwrap()))
            .collect();
        let expected = [
            (LeadKind::Hooks, 3, ".githooks"),
            (LeadKind::Include, 5, "../.gitconfig"),
            (LeadKind::Include, 6, "y"),
            (LeadKind::Command, 8, "./tools/lfs %f"),
            (LeadKind::Command, 11, "!./x.sh"),
        ];
        assert_eq!(
            found,
            expected.map(|(kind, line, value)| (kind, line, value.to_owned()))
        );
        assert!(leads(b"[core").is_err());
    }

    #[test]
    fn each_part_of_a_command_line_is_a_word() {
        let found: Vec<&[u8]> = words(b"!f() { x=./a \"b c\"; }; f --by=../d | ./e").collect();
        let expected: [&[u8]; 9] = [
            b"f", b"x", b"./a", b"b", b"c", b"f", b"--by", b"../d", b"./e",
        ];
        assert_eq!(found, expected);
    }
}
