//! Which of two things that policies list is the larger one: paths, hosts,
//! names of variables, guarantees.
//!
//! The relation may err only towards "not covered": a layer that takes away
//! then takes away too much, never too little.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use crate::guarantee::Guarantee;
use crate::path::AbsolutePath;
use crate::policy::{GrantTarget, NamedSet};
use crate::sets;
use crate::value::{HostPattern, HostReach};

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

impl Contained for HostPattern {
    /// A pattern without a port and one with a port are never compared: which
    /// ports the former stands for is decided elsewhere.
    fn covers(&self, other: &Self, _: &Scope<'_>) -> bool {
        if self.port != other.port {
            return false;
        }
        let below = other
            .host
            .strip_suffix(&self.host)
            .and_then(|labels| labels.strip_suffix('.'));
        match (self.reach, other.reach) {
            (HostReach::Exact, reach) => reach == HostReach::Exact && self.host == other.host,
            (HostReach::OneLabel, HostReach::Exact) => {
                below.is_some_and(|label| !label.contains('.'))
            }
            (HostReach::OneLabel, reach) => reach == HostReach::OneLabel && self.host == other.host,
            (HostReach::AnyLabels, HostReach::Exact) => below.is_some(),
            (HostReach::AnyLabels, _) => below.is_some() || self.host == other.host,
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
        let host = |text| value::host(text).unwrap();
        host(outer).covers(&host(inner), &Scope::new(&home))
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
            ("a.example:443", "a.example:443"),
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
            ("a.example", "a.example:443"),
            ("a.example:443", "a.example"),
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
