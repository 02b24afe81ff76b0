//! Finds the credential places that exist on this machine, so that the view
//! can cover them and a grant can be refused.

use std::ops::Bound;
use std::sync::LazyLock;

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

/// Which credential places could be seen: those in or around what is granted.
/// Most runs grant nothing of the home, and then hundreds of places need
/// neither be looked up nor compared.
pub(super) struct Reach<'a> {
    /// The home or a directory above it is granted.
    whole_home: bool,
    /// Granted places, relative to the home and to the root.
    below_home: Vec<&'a [u8]>,
    below_root: Vec<&'a [u8]>,
}

impl<'a> Reach<'a> {
    /// `granted` are places with their links resolved.
    pub(super) fn of(home: &AbsolutePath, granted: impl Iterator<Item = &'a AbsolutePath>) -> Self {
        let mut reach = Self {
            whole_home: false,
            below_home: Vec::new(),
            below_root: Vec::new(),
        };
        for place in granted {
            reach.whole_home |= home.is_within(place);
            reach.below_home.extend(place.relative_to(home));
            reach.below_root.extend(place.relative_to(&ROOT));
        }
        reach
    }

    fn reaches(&self, credential: &Credential) -> bool {
        let granted = match credential.base {
            Base::Home if self.whole_home => return true,
            Base::Home => &self.below_home,
            Base::System => &self.below_root,
        };
        let literal = credential.is_literal();
        let fixed = match literal {
            true => credential.pattern.as_bytes(),
            false => split_at_star(credential.pattern).0.as_bytes(),
        };
        granted.iter().any(|place| {
            let around = fixed.starts_with(place)
                && (place.is_empty() || matches!(fixed.get(place.len()), None | Some(b'/')));
            // Below the star any granted place may be one of the credential's.
            around || (!literal && place.starts_with(fixed))
        })
    }
}

/// The literal credential places within reach, for the engine to look up.
pub(super) fn literals(home: &AbsolutePath, reach: &Reach) -> Vec<AbsolutePath> {
    credentials::all()
        .iter()
        .filter(|credential| credential.is_literal() && reach.reaches(credential))
        .filter_map(|credential| base(credential, home).join(credential.pattern).ok())
        .collect()
}

/// The places within reach that have `*` in a component: the directory above
/// the first such component, and the pattern below it.
pub(super) fn patterns(home: &AbsolutePath, reach: &Reach) -> Vec<(AbsolutePath, &'static str)> {
    credentials::all()
        .iter()
        .filter(|credential| !credential.is_literal() && reach.reaches(credential))
        .filter_map(|credential| {
            let (head, tail) = split_at_star(credential.pattern);
            Some((base(credential, home).join(head).ok()?, tail))
        })
        .collect()
}

/// The credential places within reach among the facts, in the order of the
/// list.
pub(super) fn found<'a>(facts: &'a Facts, reach: &Reach) -> Vec<Found<'a>> {
    let mut found = Vec::new();
    let mut place = Vec::with_capacity(256);
    for credential in credentials::all()
        .iter()
        .filter(|credential| reach.reaches(credential))
    {
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

static ROOT: LazyLock<AbsolutePath> = LazyLock::new(AbsolutePath::root);

fn base<'a>(credential: &Credential, home: &'a AbsolutePath) -> &'a AbsolutePath {
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
        let etc = AbsolutePath::parse("/etc").unwrap();
        let reach = Reach::of(&facts.home, [&etc].into_iter());
        let found: Vec<String> = found(&facts, &reach)
            .iter()
            .map(|found| found.path.to_string())
            .filter(|path| path.starts_with("/etc/ssh/"))
            .collect();
        assert_eq!(found, ["/etc/ssh/ssh_host_rsa_key"]);
    }

    /// A place is within reach exactly when a grant lies around it.
    #[test]
    fn reach_follows_the_grants() {
        let path = |text: &str| AbsolutePath::parse(text).unwrap();
        let home = path("/home/u");
        let literals = |granted: &str| {
            let granted = path(granted);
            literals(&home, &Reach::of(&home, [&granted].into_iter()))
        };
        assert_eq!(literals("/home/u/project"), []);
        assert_eq!(literals("/usr"), []);
        for granted in ["/", "/home", "/home/u"] {
            assert!(
                literals(granted).contains(&path("/home/u/.ssh")),
                "{granted}"
            );
        }
        let config = literals("/home/u/.config");
        assert!(config.contains(&path("/home/u/.config/gcloud")));
        assert!(
            config
                .iter()
                .all(|place| place.is_within(&path("/home/u/.config")))
        );
        assert_eq!(literals("/home/u/.ssh"), [path("/home/u/.ssh")]);
        assert!(literals("/etc").contains(&path("/etc/shadow")));
        let key = path("/etc/ssh/ssh_host_rsa_key");
        assert_eq!(
            patterns(&home, &Reach::of(&home, [&key].into_iter())).len(),
            1
        );
    }

    #[test]
    fn patterns_are_split_before_the_first_star() {
        assert_eq!(split_at_star("a/b*/c"), ("a", "b*/c"));
        assert_eq!(split_at_star("*/c"), ("", "*/c"));
    }
}
