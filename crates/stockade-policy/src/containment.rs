//! Which of two things that policies list is the larger one: paths, hosts,
//! names of variables, guarantees.
//!
//! The relation may err only towards "not covered": a layer that takes away
//! then takes away too much, never too little.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use crate::caches::Cache;
use crate::guarantee::Guarantee;
use crate::network::rules::Target;
use crate::path::AbsolutePath;
use crate::policy::{GrantTarget, NamedSet};
use crate::sets;
use crate::value::HostReach;

/// What the relation depends on beside the two values.
pub(crate) struct Scope<'a> {
    home: &'a AbsolutePath,
    system: OnceCell<Vec<AbsolutePath>>,
    toolchains: OnceCell<Vec<AbsolutePath>>,
}

impl<'a> Scope<'a> {
    pub(crate) fn new(home: &'a AbsolutePath) -> Self {
        Self {
            home,
            system: OnceCell::new(),
            toolchains: OnceCell::new(),
        }
    }

    /// For what does not depend on a home: hosts, names, guarantees.
    pub(crate) fn without_home() -> Scope<'static> {
        static ROOT: std::sync::LazyLock<AbsolutePath> =
            std::sync::LazyLock::new(AbsolutePath::root);
        Scope::new(&ROOT)
    }

    /// The paths that the set stands for on every machine: the environment can
    /// only add to them.
    fn places(&self, set: NamedSet) -> &[AbsolutePath] {
        let cell = match set {
            NamedSet::System => &self.system,
            NamedSet::Toolchains => &self.toolchains,
        };
        cell.get_or_init(|| {
            let candidates = sets::candidates(set, self.home, &BTreeMap::new());
            candidates
                .into_iter()
                .map(|candidate| candidate.path)
                .collect()
        })
    }
}

/// Something of which a policy lists what is allowed.
pub(crate) trait Contained: Clone + PartialEq {
    /// Whether all that `other` allows is allowed by `self`.
    fn covers(&self, other: &Self, scope: &Scope<'_>) -> bool;

    /// What both allow. Of any two values here one covers the other, or they
    /// are taken to have nothing in common.
    fn meet(&self, other: &Self, scope: &Scope<'_>) -> Option<Self> {
        if other.covers(self, scope) {
            Some(self.clone())
        } else {
            self.covers(other, scope).then(|| other.clone())
        }
    }
}

impl Contained for GrantTarget {
    fn covers(&self, other: &Self, scope: &Scope<'_>) -> bool {
        match (self, other) {
            (Self::Path(outer), Self::Path(inner)) => inner.is_within(outer),
            (Self::Set(outer), Self::Set(inner)) => outer == inner,
            (Self::Set(set), Self::Path(inner)) => scope
                .places(*set)
                .iter()
                .any(|place| inner.is_within(place)),
            // What the environment adds to a set is not known here.
            (Self::Path(outer), Self::Set(_)) => outer.is_root(),
        }
    }
}

impl Contained for Target {
    fn covers(&self, other: &Self, _: &Scope<'_>) -> bool {
        let (
            Self::Host { reach, name },
            Self::Host {
                reach: inner,
                name: other,
            },
        ) = (self, other)
        else {
            return match (self, other) {
                (Self::Network(outer), Self::Network(inner)) => outer.covers(inner),
                // A name says nothing about addresses, nor the other way round.
                _ => false,
            };
        };
        let below = other
            .strip_suffix(name.as_str())
            .and_then(|labels| labels.strip_suffix('.'));
        match (reach, inner) {
            (HostReach::Exact, inner) => *inner == HostReach::Exact && name == other,
            (HostReach::OneLabel, HostReach::Exact) => {
                below.is_some_and(|label| !label.contains('.'))
            }
            (HostReach::OneLabel, inner) => *inner == HostReach::OneLabel && name == other,
            (HostReach::AnyLabels, HostReach::Exact) => below.is_some(),
            (HostReach::AnyLabels, _) => below.is_some() || name == other,
        }
    }
}

/// Names of variables, or prefixes that end in `*`.
impl Contained for String {
    fn covers(&self, other: &Self, _: &Scope<'_>) -> bool {
        // Every prefix has at least one character, so most pairs differ at once.
        if self.as_bytes().first() != other.as_bytes().first() {
            return false;
        }
        match self.strip_suffix('*') {
            Some(prefix) => other.starts_with(prefix),
            None => self == other,
        }
    }
}

impl Contained for Cache {
    fn covers(&self, other: &Self, _: &Scope<'_>) -> bool {
        self == other
    }
}

impl Contained for Guarantee {
    fn covers(&self, other: &Self, _: &Scope<'_>) -> bool {
        self == other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value;

    fn covers(outer: &str, inner: &str) -> bool {
        let home = AbsolutePath::root();
        let target = |text| value::denied(text).unwrap().target;
        target(outer).covers(&target(inner), &Scope::new(&home))
    }

    #[test]
    fn hosts() {
        for (outer, inner) in [
            ("a.example", "a.example"),
            ("*.example", "a.example"),
            ("*.example", "*.example"),
            ("**.example", "a.b.example"),
            ("**.example", "*.example"),
            ("**.example", "**.a.example"),
            ("10.0.0.0/8", "10.1.0.0/16"),
            ("10.0.0.0/8", "10.0.0.0/8"),
        ] {
            assert!(covers(outer, inner), "{outer} {inner}");
        }
        for (outer, inner) in [
            ("*.example", "a.b.example"),
            ("*.example", "example"),
            ("**.example", "example"),
            ("**.example", "a.badexample"),
            ("*.example", "**.example"),
            ("*.example", "*.a.example"),
            ("10.1.0.0/16", "10.0.0.0/8"),
            ("a.example", "10.0.0.0/8"),
            ("a.example", "*.example"),
        ] {
            assert!(!covers(outer, inner), "{outer} {inner}");
        }
    }

    #[test]
    fn sets_cover_their_places_and_only_the_root_covers_a_set() {
        let home = AbsolutePath::parse("/home/u").unwrap();
        let scope = Scope::new(&home);
        let path = |text| GrantTarget::Path(AbsolutePath::parse(text).unwrap());
        let system = GrantTarget::Set(NamedSet::System);
        let toolchains = GrantTarget::Set(NamedSet::Toolchains);
        assert!(system.covers(&path("/usr/lib/x"), &scope));
        assert!(!system.covers(&path("/var"), &scope));
        assert!(!system.covers(&toolchains, &scope) && !toolchains.covers(&system, &scope));
        assert!(path("/").covers(&toolchains, &scope));
        assert!(!path("/home/u").covers(&toolchains, &scope));
        assert_eq!(system.meet(&path("/usr"), &scope), Some(path("/usr")));
        assert_eq!(path("/").meet(&system, &scope), Some(system));
    }
}
