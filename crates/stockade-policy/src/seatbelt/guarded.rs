//! The guard as filters of SBPL.
//!
//! What [`crate::guard`] decides entry by entry becomes one formula over
//! regular expressions, because exceptions of one layer are not those of
//! another and the last rule alone could not say so. A path that is judged by
//! its content counts as held: no rule sees the content.

use std::fmt;

use crate::guard::pattern::{Component, Pattern};
use crate::guard::{self, Entry, Guard, Kind, Rank, Strength, compile};
use crate::path::AbsolutePath;

use super::text::{self, ANYTHING, Inexpressible};

/// What an operation is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    Never,
    Always,
    Regex(Vec<String>),
    Subpath(String),
    All(Vec<Filter>),
    Any(Vec<Filter>),
    Not(Box<Filter>),
}

/// A writable place.
pub(super) struct Scope<'a> {
    /// What patterns are relative to: the workspace, or the place itself.
    pub(super) base: &'a AbsolutePath,
    /// Names above the base count for patterns that hold at any depth.
    pub(super) floats: bool,
}

/// What is below a place, and not below another that has rules of its own.
pub(super) fn inside<'a>(
    place: &AbsolutePath,
    inner: impl Iterator<Item = &'a AbsolutePath>,
) -> Result<Filter, Inexpressible> {
    let mut filter = Filter::Subpath(text::quoted(place)?);
    for other in inner {
        filter = filter.and(Filter::Subpath(text::quoted(other)?).not());
    }
    Ok(filter)
}

/// What the guard holds or refuses in this scope.
pub(super) fn refused(guard: &Guard, scope: &Scope<'_>) -> Result<Filter, Inexpressible> {
    text::quoted(scope.base)?;
    let entries = guard.entries();
    let of = |rank| entries.iter().filter(move |entry| entry.rank == rank);
    let user: Vec<(&Entry, Filter)> = of(Rank::User)
        .map(|entry| (entry, matching(entry, scope)))
        .collect();
    let built_in = holds(&not_skipped(of(Rank::BuiltIn), scope));
    let organisation = not_skipped(of(Rank::Organisation), scope);
    let speaks = organisation
        .iter()
        .fold(Filter::Never, |any, (_, filter)| any.or(filter.clone()));
    let without = replaced(built_in.clone(), &user);
    let with = replaced(built_in, &organisation).or(replaced(Filter::Never, &user));
    let decided = speaks.clone().and(with).or(speaks.not().and(without));
    let project = of(Rank::Project)
        .map(|entry| (entry, matching(entry, scope)))
        .collect::<Vec<_>>();
    Ok(decided.or(holds(&project)))
}

/// Directories above a place that would be held: moved there or made there,
/// they could bring or hide what it is about.
pub(super) fn above(guard: &Guard, scope: &Scope<'_>) -> Result<Filter, Inexpressible> {
    text::quoted(scope.base)?;
    let holds = |entry: &&Entry| !entry.removes && entry.rule.strength == Strength::Hold;
    let mut found: Vec<String> = Vec::new();
    for entry in guard.entries().iter().filter(holds) {
        let pattern = compile(entry).pattern;
        for length in 1..pattern.0.len() {
            let prefix = &pattern.0[..length];
            let leads = |part: &Component| match part {
                Component::Any => false,
                Component::Wildcard(text) => text != b"*" || !pattern.floats(),
                Component::Literal(_) => true,
            };
            if prefix.iter().any(leads) {
                found.extend(anchored(&pattern, prefix, scope));
            }
        }
    }
    found.sort();
    found.dedup();
    Ok(Filter::regex(found))
}

/// Names with characters that a file system may leave out or take for letters
/// when it compares names: none of them could be told from a guarded one.
pub(super) fn deceptive() -> Filter {
    let ranges = [
        '\u{ad}'..='\u{ad}',
        '\u{34f}'..='\u{34f}',
        '\u{61c}'..='\u{61c}',
        '\u{17f}'..='\u{17f}',
        '\u{180b}'..='\u{180f}',
        '\u{200b}'..='\u{200f}',
        '\u{202a}'..='\u{202e}',
        '\u{2060}'..='\u{206f}',
        '\u{212a}'..='\u{212a}',
        '\u{fb00}'..='\u{fb06}',
        '\u{fe00}'..='\u{fe0f}',
        '\u{feff}'..='\u{feff}',
    ];
    let characters: Vec<String> = ranges
        .into_iter()
        .flatten()
        .map(|one| one.to_string())
        .collect();
    Filter::regex(vec![format!("({})", characters.join("|"))])
}

/// Entries of one rank with the paths for which they count: a kind that is
/// skipped somewhere says nothing there.
fn not_skipped<'a>(
    entries: impl Iterator<Item = &'a Entry>,
    scope: &Scope<'_>,
) -> Vec<(&'a Entry, Filter)> {
    let all: Vec<(&Entry, Filter)> = entries
        .map(|entry| (entry, matching(entry, scope)))
        .collect();
    let skips = |kind: Kind| {
        let of_kind = all
            .iter()
            .filter(|(entry, _)| entry.removes && entry.rule.kind == kind);
        of_kind.fold(Filter::Never, |any, (_, filter)| any.or(filter.clone()))
    };
    let counts = |(entry, filter): &(&'a Entry, Filter)| match entry.rule.kind {
        Kind::Custom => (*entry, filter.clone()),
        kind => (*entry, filter.clone().and(skips(kind).not())),
    };
    all.iter().map(counts).collect()
}

/// What any of these holds.
fn holds(entries: &[(&Entry, Filter)]) -> Filter {
    entries
        .iter()
        .filter(|(entry, _)| !entry.removes && entry.rule.strength == Strength::Hold)
        .fold(Filter::Never, |any, (_, filter)| any.or(filter.clone()))
}

/// What a layer makes of what was held before: its last entry about holding
/// decides.
fn replaced(before: Filter, entries: &[(&Entry, Filter)]) -> Filter {
    entries
        .iter()
        .filter(|(entry, _)| entry.rule.strength == Strength::Hold)
        .fold(before, |held, (entry, filter)| match entry.removes {
            false => held.or(filter.clone()),
            true => held.and(filter.clone().not()),
        })
}

/// The paths that an entry matches.
fn matching(entry: &Entry, scope: &Scope<'_>) -> Filter {
    let compiled = compile(entry);
    let pattern: &Pattern = &compiled.pattern;
    let matched = Filter::regex(anchored(pattern, &pattern.0, scope));
    match compiled.hooks {
        // As git lays them there, and nothing runs them.
        true => {
            matched.and(Filter::regex(vec![format!("{}[. ]*$", text::folded(b".sample"))]).not())
        }
        false => matched,
    }
}

/// The first components of a pattern as whole paths. Where no name above the
/// base can begin a match, or where it may, the expression is the same for every
/// base.
fn anchored(pattern: &Pattern, components: &[Component], scope: &Scope<'_>) -> Vec<String> {
    if let [Component::Any, first @ Component::Literal(_), rest @ ..] = components {
        let above = guard::pattern::components(scope.base.as_bytes());
        if scope.floats || !pattern.matches(&above) && !pattern.is_above(&above) {
            let body = body(&[std::slice::from_ref(first), rest].concat());
            return vec![format!("^.*/{body}$")];
        }
    }
    let body = body(components);
    let base = text::folded(scope.base.as_bytes());
    let mut found = vec![format!("^{base}/{body}$")];
    if scope.floats && pattern.floats() {
        found.push(format!("^/{body}$"));
    }
    found
}

fn body(components: &[Component]) -> String {
    let mut body = String::new();
    let mut slash = false;
    for (index, component) in components.iter().enumerate() {
        let last = index + 1 == components.len();
        let before = if std::mem::take(&mut slash) { "/" } else { "" };
        match component {
            Component::Any if last && before.is_empty() => body.push_str(".*"),
            Component::Any if last => body.push_str("(/.*)?"),
            Component::Any => body.push_str(&format!("{before}(.*/)?")),
            Component::Literal(name) => {
                body.push_str(before);
                body.push_str(&literal(name));
                slash = true;
            }
            Component::Wildcard(pattern) => {
                body.push_str(before);
                body.push_str(&wildcard(pattern));
                body.push_str(TAIL);
                slash = true;
            }
        }
    }
    body
}

/// Dots and spaces at its end do not tell a name from another.
const TAIL: &str = "[. ]*";

fn literal(name: &[u8]) -> String {
    let folded = text::folded(name);
    match name {
        b".git" => format!("({folded}{TAIL}|{})", text::folded(b"git~1")),
        _ => format!("{folded}{TAIL}"),
    }
}

/// A wildcard of the guard: lower case, `*`, `?` and classes of bytes.
fn wildcard(pattern: &[u8]) -> String {
    let mut regex = String::new();
    let mut rest = pattern;
    while let [first, tail @ ..] = rest {
        rest = tail;
        match first {
            b'*' => regex.push_str(ANYTHING),
            b'?' => regex.push_str("[^/]"),
            b'[' => match class(tail) {
                Some((class, length)) => {
                    regex.push_str(&class);
                    rest = &tail[length..];
                }
                None => regex.push_str("\\["),
            },
            0x80.. if regex.ends_with(ANYTHING) => {}
            0x80.. => regex.push_str(ANYTHING),
            &byte => regex.push_str(&text::one(byte)),
        }
    }
    regex
}

/// The class behind a bracket, in both cases, and its length with the bracket at
/// its end. One with a byte that has a meaning of its own in a class becomes any
/// byte: more is guarded then, not less.
fn class(pattern: &[u8]) -> Option<(String, usize)> {
    let negated = matches!(pattern.first(), Some(b'!' | b'^'));
    let start = usize::from(negated);
    let end = start
        + 1
        + pattern
            .get(start + 1..)?
            .iter()
            .position(|&byte| byte == b']')?;
    let members = &pattern[start..end];
    let plain = |&byte: &u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.';
    let plain_members = members.iter().all(|byte| plain(byte) || *byte == b'-')
        && members.first() != Some(&b'-')
        && members.last() != Some(&b'-');
    if !plain_members {
        return Some(("[^/]".to_owned(), end + 1));
    }
    let text = String::from_utf8_lossy(members);
    let sign = if negated { "^/" } else { "" };
    let both = format!("[{sign}{text}{}]", text.to_ascii_uppercase());
    Some((both, end + 1))
}

impl Filter {
    fn regex(expressions: Vec<String>) -> Self {
        match expressions.is_empty() {
            true => Self::Never,
            false => Self::Regex(expressions),
        }
    }

    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Never, _) | (_, Self::Never) => Self::Never,
            (Self::Always, filter) | (filter, Self::Always) => filter,
            (Self::All(mut filters), filter) => {
                filters.push(filter);
                Self::All(filters)
            }
            (left, right) => Self::All(vec![left, right]),
        }
    }

    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Always, _) | (_, Self::Always) => Self::Always,
            (Self::Never, filter) | (filter, Self::Never) => filter,
            (Self::Regex(mut left), Self::Regex(right)) => {
                left.extend(right);
                Self::Regex(left)
            }
            (Self::Any(mut filters), filter) => {
                match (filters.last_mut(), filter) {
                    (Some(Self::Regex(left)), Self::Regex(right)) => left.extend(right),
                    (Some(Self::All(left)), Self::All(right)) if same_tail(left, &right) => {
                        let first = std::mem::replace(&mut left[0], Self::Never);
                        left[0] = first.or(right[0].clone());
                    }
                    (_, filter) => filters.push(filter),
                }
                Self::Any(filters)
            }
            (Self::All(mut left), Self::All(right)) if same_tail(&left, &right) => {
                let first = std::mem::replace(&mut left[0], Self::Never);
                left[0] = first.or(right[0].clone());
                Self::All(left)
            }
            (left, right) => Self::Any(vec![left, right]),
        }
    }

    fn not(self) -> Self {
        match self {
            Self::Never => Self::Always,
            Self::Always => Self::Never,
            Self::Not(filter) => *filter,
            filter => Self::Not(Box::new(filter)),
        }
    }
}

/// Whether two conjunctions differ at most in their first part, so that one
/// disjunction there says the same.
fn same_tail(left: &[Filter], right: &[Filter]) -> bool {
    left.len() > 1 && left[1..] == right[1..]
}

impl fmt::Display for Filter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |formatter: &mut fmt::Formatter<'_>, name: &str, filters: &[Self]| {
            write!(formatter, "({name}")?;
            for filter in filters {
                write!(formatter, "\n  {filter}")?;
            }
            formatter.write_str(")")
        };
        match self {
            // A place that there is not.
            Self::Never => formatter.write_str("(literal \"\")"),
            Self::Always => formatter.write_str("(subpath \"/\")"),
            Self::Regex(expressions) => {
                formatter.write_str("(regex")?;
                for expression in expressions {
                    write!(formatter, "\n  #\"{expression}\"")?;
                }
                formatter.write_str(")")
            }
            Self::Subpath(path) => write!(formatter, "(subpath {path})"),
            Self::All(filters) => list(formatter, "require-all", filters),
            Self::Any(filters) => list(formatter, "require-any", filters),
            Self::Not(filter) => write!(formatter, "(require-not {filter})"),
        }
    }
}
