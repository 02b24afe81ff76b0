//! Patterns over relative paths, and the folding under which names are compared.
//!
//! A pattern is a list of components: `**` stands for any number of them, `*`
//! and `?` match within one, `[a-z]` and `[!a-z]` one byte. Names are folded
//! first, because what a program finds under a name is decided by the file
//! system and by the program: a directory with case folding (ext4, f2fs) and
//! HFS+ take `.GIT`, and `.g` U+200C `it`, for `.git`.

use std::borrow::Cow;

/// A path as relative components, folded.
pub(crate) type Folded<'a> = Vec<Cow<'a, [u8]>>;

/// One component of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Component {
    /// Any number of components, none included.
    Any,
    Literal(Vec<u8>),
    Wildcard(Vec<u8>),
}

/// A compiled pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(pub(crate) Vec<Component>);

impl Pattern {
    /// Compiles. Without a slash inside it matches at any depth; a slash at the
    /// start or inside makes it relative to the top, as in gitignore(5).
    /// Empty components and `.` are left out.
    pub(crate) fn new(text: &str) -> Self {
        let floating = !text.trim_end_matches('/').contains('/');
        let mut components = Vec::new();
        if floating {
            components.push(Component::Any);
        }
        for part in text.split('/').filter(|part| !matches!(*part, "" | ".")) {
            let component = match part {
                "**" if components.last() == Some(&Component::Any) => continue,
                "**" => Component::Any,
                _ if part.contains(['*', '?', '[']) => {
                    Component::Wildcard(part.to_lowercase().into_bytes())
                }
                _ => Component::Literal(fold(part.as_bytes()).into_owned()),
            };
            components.push(component);
        }
        Self(components)
    }

    /// As [`Pattern::new`], matching also everything below what it names.
    pub(crate) fn with_content(text: &str) -> Self {
        let mut pattern = Self::new(text);
        if pattern.0.last() != Some(&Component::Any) {
            pattern.0.push(Component::Any);
        }
        pattern
    }

    /// Whether it holds at any depth.
    pub(crate) fn floats(&self) -> bool {
        self.0.first() == Some(&Component::Any)
    }

    pub(crate) fn matches(&self, path: &[Cow<'_, [u8]>]) -> bool {
        // All but `**` take exactly one name, so the last takes the last: most
        // patterns are told apart by that.
        if let (Some(last), Some(name)) = (self.0.last(), path.last())
            && !last.takes(name)
        {
            return false;
        }
        self.reached(path).is_some_and(|states| {
            let end = self.0.len();
            // A last `**` may stand for nothing.
            states.contains(&(end, true)) || states.contains(&(end, false))
        })
    }

    /// Whether something below the directory could match, because a name in
    /// the pattern (not only a `**` at its start) led here.
    pub(crate) fn is_above(&self, path: &[Cow<'_, [u8]>]) -> bool {
        self.reached(path).is_some_and(|states| {
            states
                .iter()
                .any(|&(index, named)| named && index < self.0.len())
        })
    }

    /// The components of the pattern before which matching can stand after the
    /// whole path, and whether a name was matched on the way.
    fn reached(&self, path: &[Cow<'_, [u8]>]) -> Option<Vec<(usize, bool)>> {
        let mut states = Vec::with_capacity(8);
        self.enter(&mut states, 0, false);
        for name in path {
            let mut next = Vec::with_capacity(states.len() + 1);
            for &(index, named) in &states {
                match self.0.get(index) {
                    Some(Component::Any) => self.enter(&mut next, index, named),
                    Some(component) if component.takes(name) => {
                        let any_name =
                            matches!(component, Component::Wildcard(text) if text == b"*");
                        let named = named || !any_name || !self.floats();
                        self.enter(&mut next, index + 1, named);
                    }
                    _ => {}
                }
            }
            if next.is_empty() {
                return None;
            }
            states = next;
        }
        Some(states)
    }

    /// Adds a state, and those that follow it when `**` stands for nothing.
    fn enter(&self, states: &mut Vec<(usize, bool)>, index: usize, named: bool) {
        if states.contains(&(index, named)) {
            return;
        }
        states.push((index, named));
        if self.0.get(index) == Some(&Component::Any) {
            self.enter(states, index + 1, named);
        }
    }
}

impl Component {
    fn takes(&self, name: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Literal(text) => text == name,
            Self::Wildcard(text) => wildcard(text, name),
        }
    }
}

/// Components of a path, folded; empty ones and `.` are left out.
pub(crate) fn components(path: &[u8]) -> Folded<'_> {
    path.split(|&byte| byte == b'/')
        .filter(|part| !matches!(*part, b"" | b"."))
        .map(fold)
        .collect()
}

/// A name as file systems and git may compare it: letters without case,
/// ignorable code points, trailing dots and spaces removed, and `git~1`, which
/// a FAT or NTFS volume takes for `.git`, as `.git`.
pub(crate) fn fold(name: &[u8]) -> Cow<'_, [u8]> {
    let plain = |byte: &u8| byte.is_ascii() && !byte.is_ascii_uppercase();
    let tail = |byte: &u8| matches!(byte, b'.' | b' ');
    let folded = match name.iter().all(plain) {
        true => Cow::Borrowed(name),
        false => Cow::Owned(folded(name)),
    };
    if folded.as_ref() == b"git~1" {
        return Cow::Borrowed(b".git");
    }
    let end = folded.iter().rposition(|byte| !tail(byte));
    match (end, folded) {
        (Some(end), Cow::Borrowed(name)) => Cow::Borrowed(&name[..=end]),
        (Some(end), Cow::Owned(mut name)) => {
            name.truncate(end + 1);
            Cow::Owned(name)
        }
        (None, name) => name,
    }
}

fn folded(name: &[u8]) -> Vec<u8> {
    let mut text = String::with_capacity(name.len());
    let mut bytes = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        text.clear();
        for character in chunk.valid().chars() {
            match character {
                _ if character.is_ascii() => text.push(character.to_ascii_lowercase()),
                _ if ignorable(character) => {}
                // Both ways, so that U+017F meets `s` and U+212A meets `k`.
                _ => text.extend(character.to_uppercase().flat_map(char::to_lowercase)),
            }
        }
        bytes.extend_from_slice(text.as_bytes());
        bytes.extend_from_slice(chunk.invalid());
    }
    bytes
}

/// Code points that case folding file systems drop when they compare names
/// (Default_Ignorable_Code_Point of the Unicode Character Database; those of
/// HFS+ are among them).
fn ignorable(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// `*`, `?` and `[…]` against one name, in time of the product of both lengths.
fn wildcard(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut place) = (0, 0);
    // Where to continue when a later part fails: behind the last star, which
    // then takes one byte more.
    let mut star: Option<(usize, usize)> = None;
    while place < name.len() {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at + 1, place));
            at += 1;
            continue;
        }
        if let Some(length) = one(&pattern[at..], name[place]) {
            at += length;
            place += 1;
            continue;
        }
        let Some((behind, taken)) = star else {
            return false;
        };
        star = Some((behind, taken + 1));
        (at, place) = (behind, taken + 1);
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

/// Bytes of the pattern that match this byte; `None` when it does not match.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern.first()? {
        b'?' => Some(1),
        b'[' => match class(pattern, byte) {
            Some((length, true)) => Some(length),
            Some((_, false)) => None,
            // Without its end it stands for itself, as in glob(7).
            None => (byte == b'[').then_some(1),
        },
        literal => (literal == byte).then_some(1),
    }
}

/// Length of the class at the start of a pattern, and whether it holds a byte.
fn class(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    let negated = matches!(pattern.get(1), Some(b'!' | b'^'));
    let first = 1 + usize::from(negated);
    let end = pattern
        .iter()
        .skip(first + 1)
        .position(|&part| part == b']')?
        + first
        + 1;
    let mut members = &pattern[first..end];
    let mut holds = false;
    while let [low, rest @ ..] = members {
        if let [b'-', high, rest @ ..] = rest {
            holds |= (*low..=*high).contains(&byte);
            members = rest;
        } else {
            holds |= *low == byte;
            members = rest;
        }
    }
    Some((end + 1, holds != negated))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        Pattern::new(pattern).matches(&components(path.as_bytes()))
    }

    fn above(pattern: &str, path: &str) -> bool {
        Pattern::new(pattern).is_above(&components(path.as_bytes()))
    }

    #[test]
    fn components_match_whole_and_stars_stay_within_one() {
        for (pattern, path) in [
            ("**/.git/hooks/*", ".git/hooks/pre-commit"),
            ("**/.git/hooks/*", "a/b/.git/hooks/x"),
            (".idea/**", ".idea/a/b"),
            (".idea/**", ".idea"),
            ("*.pth", "lib/x.pth"),
            ("/top", "top"),
            ("a/**/b", "a/b"),
            ("a/**/b", "a/x/y/b"),
            ("x[0-9].?", "x7.c"),
            ("x[!0-9]", "xa"),
            ("a*b*c", "aXbbYc"),
            ("x[", "x["),
        ] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("**/.git/hooks/*", ".git/hooks"),
            ("**/.git/hooks/*", ".git/hooks/a/b"),
            ("deploy/x", "a/deploy/x"),
            ("/top", "a/top"),
            ("*.pth", "x.pth/y"),
            ("x[!0-9]", "x7"),
            ("a*b*c", "aXbb"),
        ] {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
    }

    #[test]
    fn names_are_compared_as_file_systems_may() {
        for name in [
            ".git",
            ".GIT",
            ".Git ",
            ".git.",
            "git~1",
            "GIT~1",
            ".g\u{200c}it",
            "\u{feff}.git",
            ".gi\u{fe0f}t",
        ] {
            assert_eq!(fold(name.as_bytes()).as_ref(), b".git", "{name:?}");
        }
        assert_eq!(fold("hoo\u{212a}\u{17f}".as_bytes()).as_ref(), b"hooks");
        assert_eq!(fold(b"..").as_ref(), b"..");
        assert_eq!(fold(b"\xff.GIT").as_ref(), b"\xff.git");
        assert_ne!(fold(b"git").as_ref(), b".git");
    }

    #[test]
    fn a_directory_is_above_only_where_a_name_leads() {
        for (pattern, path) in [
            ("**/.git/hooks/**", ".git"),
            ("**/.git/hooks/**", "a/.git/hooks"),
            ("**/.git/modules/**/hooks/*", "a/.git/modules/x"),
            ("**/.github/workflows/**", ".github"),
            ("deploy/**", "deploy"),
            ("*/secret", "anything"),
        ] {
            assert!(above(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("**/.git/hooks/**", "src"),
            ("**/.git/hooks/**", ".git/objects"),
            ("**/Makefile", "src"),
            ("**/*/secret", "src"),
            ("deploy/**", "a/deploy"),
        ] {
            assert!(!above(pattern, path), "{pattern} {path}");
        }
    }

    /// As the rules say it, without any short cut.
    fn matches_plainly(pattern: &[Component], path: &[Cow<'_, [u8]>]) -> bool {
        match (pattern, path) {
            ([], path) => path.is_empty(),
            ([Component::Any, rest @ ..], path) => {
                (0..=path.len()).any(|taken| matches_plainly(rest, &path[taken..]))
            }
            ([first, rest @ ..], [name, below @ ..]) => {
                first.takes(name) && matches_plainly(rest, below)
            }
            (_, []) => false,
        }
    }

    #[test]
    fn every_short_pattern_matches_as_the_rules_say() {
        let lists = |parts: &[&str]| -> Vec<String> {
            let mut found = vec![String::new()];
            for _ in 0..4 {
                let longer = |list: &String| {
                    let list = list.clone();
                    parts
                        .iter()
                        .map(move |part| format!("{list}/{part}"))
                        .collect::<Vec<_>>()
                };
                let next: Vec<String> = found.iter().flat_map(longer).collect();
                found.extend(next);
                found.sort();
                found.dedup();
            }
            found
        };
        let paths = lists(&["a", "b", "ab"]);
        let mut matching = 0;
        for pattern in lists(&["**", "*", "a", "?b"]) {
            // Some float and some do not.
            for pattern in [&*pattern, pattern.trim_start_matches('/')] {
                let compiled = Pattern::new(pattern);
                for path in &paths {
                    let path = components(path.as_bytes());
                    let expected = matches_plainly(&compiled.0, &path);
                    assert_eq!(compiled.matches(&path), expected, "{pattern} {path:?}");
                    matching += usize::from(expected);
                }
            }
        }
        assert!(matching > 1000, "{matching}");
    }

    #[test]
    fn many_stars_do_not_take_for_ever() {
        let pattern = "*a".repeat(200);
        let name = "a".repeat(250) + "b";
        assert!(!matches(&pattern, &name));
        let deep = "**/a/".repeat(100) + "b";
        assert!(!matches(&deep, &"a/".repeat(1000)));
    }
}
