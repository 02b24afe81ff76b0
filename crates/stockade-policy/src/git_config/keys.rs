//! What is known about keys, read from `data/git-config.keys`.

use std::sync::LazyLock;

use super::read::Setting;

const TEXT: &str = include_str!("../../data/git-config.keys");

/// Said of keys of which nothing is known.
pub(super) const UNKNOWN: &str = "nothing is known of this key; a program that reads it may run it";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Any,
    Bang,
    Program,
    Url,
    Changed,
    Name,
    Inside,
    Plain,
}

#[derive(Debug)]
struct Line {
    holds: bool,
    condition: Condition,
    section: &'static str,
    middle: Middle,
    /// `None` for every name.
    name: Option<&'static str>,
    reason: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Middle {
    None,
    Some,
    Either,
    /// Exactly this subsection.
    Exact(&'static str),
}

/// Why a setting runs something or leads git elsewhere; `None` when it does
/// neither. `before`: another value stood there.
pub(super) fn executes(
    setting: &Setting,
    before: bool,
    git_directory: Option<&[u8]>,
) -> Option<&'static str> {
    static LINES: LazyLock<Vec<Line>> =
        LazyLock::new(|| parse(TEXT).expect("the list of keys is tested"));
    let mut known = false;
    for line in LINES.iter().filter(|line| line.names(&setting.key)) {
        if !line.holds {
            known = true;
        } else if line.condition.holds(setting, before, git_directory) {
            return Some(line.reason);
        }
    }
    (!known).then_some(UNKNOWN)
}

impl Line {
    fn names(&self, key: &[u8]) -> bool {
        let Some(first) = key.iter().position(|&byte| byte == b'.') else {
            return false;
        };
        if &key[..first] != self.section.as_bytes() {
            return false;
        }
        let rest = &key[first + 1..];
        let (subsection, name) = match rest.iter().rposition(|&byte| byte == b'.') {
            Some(last) => (Some(&rest[..last]), &rest[last + 1..]),
            None => (None, rest),
        };
        let middle = match self.middle {
            Middle::None => subsection.is_none(),
            Middle::Some => subsection.is_some(),
            Middle::Either => true,
            Middle::Exact(text) => subsection == Some(text.as_bytes()),
        };
        middle
            && self
                .name
                .is_none_or(|pattern| match pattern.strip_suffix('*') {
                    Some(prefix) => name.starts_with(prefix.as_bytes()),
                    None => name == pattern.as_bytes(),
                })
    }
}

impl Condition {
    fn holds(self, setting: &Setting, before: bool, git_directory: Option<&[u8]>) -> bool {
        let value = setting.value.as_deref();
        let text = value.unwrap_or_default();
        match self {
            Self::Any => true,
            Self::Bang => text.trim_ascii_start().first() == Some(&b'!'),
            Self::Program => !is_boolean(value),
            Self::Url => text.first() == Some(&b'-') || contains(text, b"::"),
            Self::Changed => before,
            Self::Name => {
                let odd = |byte: &u8| byte.is_ascii_control() || matches!(byte, b':' | b'\\');
                text != b"."
                    && (matches!(text.first(), Some(b'-' | b'/' | b'.')) || text.iter().any(odd))
            }
            Self::Inside => !git_directory.is_some_and(|place| stays_inside(place, text)),
            Self::Plain => text.contains(&b':'),
        }
    }
}

/// A value that git takes for a boolean (git_parse_maybe_bool).
fn is_boolean(value: Option<&[u8]>) -> bool {
    let Some(value) = value else { return true };
    let words: [&[u8]; 7] = [b"", b"true", b"yes", b"on", b"false", b"no", b"off"];
    words.iter().any(|word| word.eq_ignore_ascii_case(value))
        || value.len() < 10 && value.iter().all(u8::is_ascii_digit)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Whether a path relative to a directory stays in the workspace to which the
/// directory is relative, and ends in no git directory.
fn stays_inside(directory: &[u8], path: &[u8]) -> bool {
    if path
        .first()
        .is_none_or(|&byte| byte == b'/' || byte == b'~')
    {
        return false;
    }
    let parts = |path: &'_ [u8]| -> Vec<Vec<u8>> {
        path.split(|&byte| byte == b'/')
            .filter(|part| !matches!(*part, b"" | b"."))
            .map(<[u8]>::to_vec)
            .collect()
    };
    let mut place = parts(directory);
    for part in parts(path) {
        if part != b".." {
            place.push(part);
        } else if place.pop().is_none() {
            return false;
        }
    }
    !place.iter().any(|part| crate::guard::is_git_name(part))
}

fn parse(text: &'static str) -> Result<Vec<Line>, String> {
    let mut lines: Vec<Line> = Vec::new();
    for (index, text) in text.lines().enumerate() {
        if text.trim().is_empty() || text.starts_with('#') {
            continue;
        }
        let parsed = line(text).and_then(|line| match lines.last() {
            Some(last) if line.holds && !last.holds => Err("it holds, behind a line that passes"),
            _ => Ok(line),
        });
        lines.push(parsed.map_err(|why| format!("line {}: {why}", index + 1))?);
    }
    Ok(lines)
}

fn line(text: &'static str) -> Result<Line, &'static str> {
    let (verdict, rest) = text.split_once(' ').ok_or("it has no condition")?;
    let (condition, rest) = rest.split_once(' ').ok_or("it has no key")?;
    let (key, reason) = rest.split_once(' ').unwrap_or((rest, ""));
    let holds = match (verdict, reason) {
        ("hold", "") => return Err("it has no reason"),
        ("hold", _) => true,
        ("pass", "") => false,
        _ => return Err("it neither holds nor passes, or gives a reason to pass"),
    };
    let condition = match condition {
        "any" => Condition::Any,
        "bang" => Condition::Bang,
        "program" => Condition::Program,
        "url" => Condition::Url,
        "changed" => Condition::Changed,
        "name" => Condition::Name,
        "inside" => Condition::Inside,
        "plain" => Condition::Plain,
        _ => return Err("no such condition"),
    };
    if key.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err("the key is not in lower case");
    }
    let (section, rest) = key.split_once('.').ok_or("the key has no section")?;
    let (middle, name) = match rest.rsplit_once('.') {
        _ if rest == "**" => (Middle::Either, None),
        None => (Middle::None, rest.ne("*").then_some(rest)),
        Some(("*", name)) => (Middle::Some, name.ne("*").then_some(name)),
        Some(("**", name)) => (Middle::Either, name.ne("*").then_some(name)),
        Some((exact, name)) => (Middle::Exact(exact), Some(name)),
    };
    Ok(Line {
        holds,
        condition,
        section,
        middle,
        name,
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_parses() {
        let lines = parse(TEXT).unwrap();
        assert!(lines.len() > 300);
        for text in [
            "hold any core.x",
            "pass any core.x why",
            "hold maybe core.x why",
            "hold any core why",
            "hold any core.X why",
            "keep any core.x why",
        ] {
            assert!(line(text).is_err(), "{text}");
        }
        assert!(parse("pass any a.b\nhold any c.d why").is_err());
    }

    #[test]
    fn a_worktree_stays_in_the_workspace() {
        for (directory, path, inside) in [
            (".git/modules/sub", "../../../sub", true),
            (".git", "..", true),
            (".git/modules/sub", "../../../../sub", false),
            (".git/modules/sub", "../..", false),
            (".git/modules/sub", "../../../x/.GIT", false),
            (".git/modules/sub", "/etc", false),
            (".git/modules/sub", "~/x", false),
            (".git/modules/sub", "", false),
        ] {
            assert_eq!(
                stays_inside(directory.as_bytes(), path.as_bytes()),
                inside,
                "{directory} {path}"
            );
        }
    }
}
