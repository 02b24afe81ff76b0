//! Finds the credential places that exist on this machine, so that the view
//! can cover them and a grant can be refused.

use std::ops::Bound;

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
        let base_length = place.len();
        place.extend_from_slice(split_at_star(credential.pattern).0.as_bytes());
        found.extend(matching(facts, base_length, &place, credential));
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

/// Facts below `head` that are a place of this credential, not below one.
fn matching<'a>(
    facts: &'a Facts,
    base_length: usize,
    head: &[u8],
    credential: &'static Credential,
) -> impl Iterator<Item = Found<'a>> {
    let head = head.to_vec();
    let depth = credential.pattern.split('/').count();
    // Keys are in byte order, so all keys with a common beginning are adjacent.
    facts
        .paths
        .range::<[u8], _>((Bound::Included(&head[..]), Bound::Unbounded))
        .take_while(move |(path, _)| path.as_bytes().starts_with(&head))
        .filter(move |(path, _)| {
            let relative = &path.as_bytes()[base_length..];
            credential.matches(relative) && relative.split(|&byte| byte == b'/').count() == depth
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_finds_its_places_and_nothing_below_them() {
        use crate::compile::fixtures::{fact, facts};
        use crate::facts::PathKind;
        let mut facts = facts();
        for place in [
            "/etc/ssh/ssh_host_rsa_key",
            "/etc/ssh/ssh_host_rsa_key/x",
            "/etc/ssh/moduli",
        ] {
            facts.paths.insert(
                AbsolutePath::parse(place).unwrap(),
                fact(PathKind::File, place),
            );
        }
        let found: Vec<String> = found(&facts)
            .iter()
            .map(|found| found.path.to_string())
            .filter(|path| path.starts_with("/etc/ssh/"))
            .collect();
        assert_eq!(found, ["/etc/ssh/ssh_host_rsa_key"]);
    }

    #[test]
    fn patterns_are_split_before_the_first_star() {
        assert_eq!(split_at_star("a/b*/c"), ("a", "b*/c"));
        assert_eq!(split_at_star("*/c"), ("", "*/c"));
    }
}
