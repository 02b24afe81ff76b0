//! Finds the credential places that exist on this machine, so that the view
//! can cover them and a grant can be refused.

use crate::credentials::{self, Base, Credential};
use crate::facts::{Facts, PathFact};
use crate::path::AbsolutePath;
use crate::plan::Rule;

/// One credential place that exists.
pub(super) struct Found<'a> {
    pub(super) path: &'a AbsolutePath,
    pub(super) fact: &'a PathFact,
    pub(super) credential: &'static Credential,
}

/// Every literal credential place, for the engine to look up.
pub(super) fn literals(home: &AbsolutePath) -> impl Iterator<Item = AbsolutePath> {
    credentials::all()
        .iter()
        .filter(|credential| credential.is_literal())
        .filter_map(|credential| base(credential, home).join(credential.pattern).ok())
}

/// Every place with `*` in a component: the directory above the first such
/// component, and the pattern below it.
pub(super) fn patterns(home: &AbsolutePath) -> Vec<(AbsolutePath, &'static str)> {
    credentials::all()
        .iter()
        .filter(|credential| !credential.is_literal())
        .filter_map(|credential| {
            let (head, tail) = split_at_star(credential.pattern);
            Some((base(credential, home).join(head).ok()?, tail))
        })
        .collect()
}

/// The credential places among the facts, in the order of the list.
pub(super) fn found(facts: &Facts) -> Vec<Found<'_>> {
    let mut found = Vec::new();
    let mut place = Vec::with_capacity(256);
    for credential in credentials::all() {
        place.clear();
        place.extend_from_slice(base(credential, &facts.home).as_bytes());
        if place != b"/" {
            place.push(b'/');
        }
        if credential.is_literal() {
            place.extend_from_slice(credential.pattern.as_bytes());
            let fact = facts.paths.get_key_value(place.as_slice());
            found.extend(fact.map(|(path, fact)| Found {
                path,
                fact,
                credential,
            }));
            continue;
        }
        let (head, tail) = split_at_star(credential.pattern);
        place.extend_from_slice(head.as_bytes());
        found.extend(matching(facts, &place, tail, credential));
    }
    found
}

/// The rule under which a credential is covered or refused.
pub(crate) fn rule(credential: &Credential) -> Rule {
    Rule {
        id: format!("credential.{}", credential.id),
        origin: "built-in".to_owned(),
        reason: credential.reason.to_owned(),
    }
}

fn matching<'a>(
    facts: &'a Facts,
    head: &[u8],
    tail: &'static str,
    credential: &'static Credential,
) -> impl Iterator<Item = Found<'a>> {
    // Keys are in byte order, so all keys with a common beginning are adjacent.
    let start = head.to_vec();
    facts
        .paths
        .range::<[u8], _>((std::ops::Bound::Included(head), std::ops::Bound::Unbounded))
        .take_while({
            let start = start.clone();
            move |(path, _)| path.as_bytes().starts_with(&start)
        })
        .filter(move |(path, _)| {
            let below = &path.as_bytes()[start.len()..];
            matches(tail.as_bytes(), below.strip_prefix(b"/").unwrap_or(below))
        })
        .map(move |(path, fact)| Found {
            path,
            fact,
            credential,
        })
}

fn base<'a>(credential: &Credential, home: &'a AbsolutePath) -> &'a AbsolutePath {
    static ROOT: std::sync::LazyLock<AbsolutePath> = std::sync::LazyLock::new(AbsolutePath::root);
    match credential.base {
        Base::Home => home,
        Base::System => &ROOT,
    }
}

/// Splits before the first component that holds `*`.
fn split_at_star(pattern: &'static str) -> (&'static str, &'static str) {
    let star = pattern.find('*').unwrap_or(pattern.len());
    match pattern[..star].rfind('/') {
        Some(slash) => (&pattern[..slash], &pattern[slash + 1..]),
        None => ("", pattern),
    }
}

/// Component by component; `*` stands for any bytes within one component.
fn matches(pattern: &[u8], path: &[u8]) -> bool {
    let mut wanted = pattern.split(|&byte| byte == b'/');
    let mut given = path.split(|&byte| byte == b'/');
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some(wanted), Some(given)) if component_matches(wanted, given) => {}
            _ => return false,
        }
    }
}

fn component_matches(pattern: &[u8], name: &[u8]) -> bool {
    let mut parts = pattern.split(|&byte| byte == b'*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        if part.is_empty() {
            continue;
        }
        let Some(at) = rest.windows(part.len()).position(|window| window == part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stays_within_its_component() {
        assert!(matches(b"a/*/key*.pem", b"a/b/key-1.pem"));
        assert!(!matches(b"a/*/key*.pem", b"a/b/c/key-1.pem"));
        assert!(!matches(b"a/*", b"a"));
        assert!(component_matches(b"*", b""));
        assert!(!component_matches(b"ab*ba", b"aba"));
    }

    #[test]
    fn patterns_are_split_before_the_first_star() {
        assert_eq!(split_at_star("a/b*/c"), ("a", "b*/c"));
        assert_eq!(split_at_star("*/c"), ("", "*/c"));
    }
}
