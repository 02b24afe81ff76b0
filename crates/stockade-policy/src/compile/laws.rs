//! Laws of compiling, for random machines and policies: it is deterministic,
//! the lowered plan and `decide` say the same, and every field counts for the
//! digest.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::fixtures::*;
use crate::caches::Cache;
use crate::decide::{Decision, Question, decide};
use crate::digest::digest;
use crate::facts::{Facts, HiddenMatch, PathKind};
use crate::guarantee::Guarantee;
use crate::landlock::{
    FS_MAKE_DIR, FS_MAKE_FIFO, FS_MAKE_REG, FS_MAKE_SYM, FS_READ_DIR, FS_READ_FILE, FS_REFER,
    FS_REMOVE_DIR, FS_REMOVE_FILE, FS_TRUNCATE, FS_WRITE_FILE,
};
use crate::path::AbsolutePath;
use crate::plan::{Access, Action, Form, Plan};
use crate::policy::{HidePattern, Policy};

/// Roots below which random trees grow.
const ROOTS: [&str; 5] = ["/home/u/project", "/home/u", "/opt", "/data", "/usr/share"];

/// What the steps of a plan amount to, worked out from the steps alone.
struct Lowered {
    mounts: BTreeMap<AbsolutePath, Mount>,
    masks: Vec<AbsolutePath>,
    /// Handled rights, and rights by path.
    landlock: Option<(u64, BTreeMap<AbsolutePath, u64>)>,
    namespaces: bool,
    /// A process outside makes the names of the host's parts: what it is told
    /// of them.
    supervised: Option<BTreeMap<AbsolutePath, Access>>,
}

enum Mount {
    Host(Access),
    Own,
}

impl Lowered {
    fn of(plan: &Plan) -> Self {
        let mut lowered = Self {
            mounts: BTreeMap::new(),
            masks: Vec::new(),
            landlock: None,
            namespaces: plan.form == Form::Namespaces,
            supervised: None,
        };
        for step in &plan.steps {
            match &step.action {
                Action::Bind {
                    source,
                    path,
                    access,
                    ..
                } => {
                    let caches = plan.caches.as_ref().map(|caches| &caches.path);
                    if Some(path) == caches {
                        lowered.mounts.insert(path.clone(), Mount::Own);
                        continue;
                    }
                    assert_eq!(source, path, "the view shows the host under its own names");
                    lowered.mounts.insert(path.clone(), Mount::Host(*access));
                }
                Action::BindWithout {
                    source,
                    path,
                    absent,
                } => {
                    assert_eq!(source, path, "the view shows the host under its own names");
                    lowered
                        .mounts
                        .insert(path.clone(), Mount::Host(Access::Read));
                    lowered.masks.extend(absent.iter().cloned());
                }
                Action::Copy { path, .. } => {
                    lowered
                        .mounts
                        .insert(path.clone(), Mount::Host(Access::Read));
                }
                Action::PrivateDirectory { path, .. } | Action::File { path, .. } => {
                    lowered.mounts.insert(path.clone(), Mount::Own);
                }
                Action::SuperviseNames { .. } => {
                    let areas = plan.grants.iter().filter(|grant| !grant.private);
                    let areas = areas.map(|grant| (grant.path.clone(), grant.access));
                    lowered.supervised = Some(areas.collect());
                }
                Action::Masks { paths } => {
                    lowered
                        .masks
                        .extend(paths.iter().map(|mask| mask.path.clone()));
                }
                Action::Landlock(ruleset) => {
                    let rules = ruleset
                        .rules
                        .iter()
                        .map(|rule| (rule.path.clone(), rule.allowed));
                    lowered.landlock = Some((ruleset.handled_fs, rules.collect()));
                }
                _ => {}
            }
        }
        lowered
    }

    /// What of the host can be done at a path.
    fn host_access(&self, path: &AbsolutePath) -> Option<Access> {
        if self.masks.iter().any(|mask| path.is_within(mask)) {
            return None;
        }
        let mounted = match self.namespaces {
            false => Some(Access::Write),
            true => match nearest(&self.mounts, path)? {
                Mount::Host(access) => Some(*access),
                Mount::Own => None,
            },
        }?;
        match self.landlock_access(path)? {
            Access::Read => Some(Access::Read),
            Access::Write => Some(mounted),
        }
    }

    fn landlock_access(&self, path: &AbsolutePath) -> Option<Access> {
        let Some((handled, rules)) = &self.landlock else {
            return Some(Access::Write);
        };
        let granted = std::iter::once(path.as_bytes())
            .chain(path.ancestors())
            .filter_map(|above| rules.get(above))
            .fold(!handled, |granted, allowed| granted | allowed);
        let has = |right: u64| granted & right == right;
        match (
            has(FS_READ_FILE | FS_READ_DIR) || has(FS_READ_FILE),
            has(FS_WRITE_FILE),
        ) {
            (true, true) => Some(Access::Write),
            // The process outside writes, where a write grant is the nearest.
            (true, false) => {
                let areas = self.supervised.as_ref();
                let area = areas.and_then(|areas| nearest(areas, path)).copied();
                Some(area.unwrap_or(Access::Read))
            }
            _ => None,
        }
    }
}

fn nearest<'a, T>(map: &'a BTreeMap<AbsolutePath, T>, path: &AbsolutePath) -> Option<&'a T> {
    map.get(path)
        .or_else(|| path.ancestors().find_map(|above| map.get(above)))
}

/// A random place: a root and up to three short names.
fn place() -> impl Strategy<Value = AbsolutePath> {
    let name = prop::sample::select(vec!["a", "b", ".ssh", "c-d", ".config"]);
    (
        prop::sample::select(ROOTS.to_vec()),
        prop::collection::vec(name, 0..4),
    )
        .prop_map(|(root, names)| {
            names
                .iter()
                .fold(path(root), |place, name| place.join(name).unwrap())
        })
}

#[derive(Clone, Debug)]
struct Case {
    policy: Policy,
    facts: Facts,
    asked: Vec<AbsolutePath>,
}

prop_compose! {
    fn case()(
        reads in prop::collection::vec(place(), 0..4),
        writes in prop::collection::vec(place(), 0..3),
        hidden in prop::collection::vec(place(), 0..3),
        others in prop::collection::vec(place(), 0..12),
        form in prop::sample::select(vec![Form::Namespaces, Form::Namespaces, Form::LandlockOnly]),
        nested in any::<bool>(),
        weakened in any::<bool>(),
        landlock_abi in 0_u32..11,
    ) -> Case {
        let mut policy = Policy { form, ..policy() };
        policy.read.extend(reads.iter().map(|place| grant("filesystem.read", &place.to_string())));
        policy.write.extend(writes.iter().map(|place| grant("filesystem.write", &place.to_string())));
        policy.hide = vec![HidePattern { pattern: "x".to_owned(), rule: rule("filesystem.hide[0]") }];
        policy.caches = Cache::KNOWN.iter().map(|cache| (cache.clone(), rule("filesystem.caches"))).collect();
        policy.nested_sandbox = nested.then(|| rule("process.nested_sandbox"));
        if weakened {
            policy.weaken = [Guarantee::FS1, Guarantee::FS2, Guarantee::FS3, Guarantee::PR6]
                .map(|guarantee| (guarantee, rule("weaken")))
                .to_vec();
        }
        let mut facts = Facts { landlock_abi, ..facts() };
        facts.caches = Some(path("/home/u/.cache/stockade/0123/data"));
        let asked: Vec<_> = [reads, writes, hidden.clone(), others].concat();
        for place in &asked {
            for above in std::iter::once(place.as_bytes()).chain(place.ancestors()) {
                let text = String::from_utf8(above.to_vec()).unwrap();
                facts.paths.entry(path(&text)).or_insert(fact(PathKind::Directory, &text));
            }
        }
        facts.hidden = hidden
            .into_iter()
            .map(|path| HiddenMatch::new(path, true, 0))
            .collect();
        Case { policy, facts, asked }
    }
}

fn permits(plan: &Plan, question: Question) -> bool {
    match decide(plan, &question) {
        Decision::Permit { rule, .. } => !rule.id.starts_with("built-in.private"),
        Decision::Denied(_) => false,
    }
}

proptest! {
    #[test]
    fn compiling_is_deterministic(case in case()) {
        let once = compiled(&case.policy, &case.facts);
        prop_assert_eq!(&once, &compiled(&case.policy, &case.facts));
        if let Ok(plan) = once {
            prop_assert_eq!(digest(&plan), digest(&plan.clone()));
        }
    }

    #[test]
    fn the_lowered_plan_and_the_decision_agree(case in case()) {
        let Ok(plan) = compiled(&case.policy, &case.facts) else { return Ok(()) };
        let lowered = Lowered::of(&plan);
        for place in &case.asked {
            for place in [place.clone(), place.join("below").unwrap()] {
                // A directory on the way to a grant may be listed, which shows
                // nothing of the host; a question below it settles the matter.
                let on_the_way = plan.grants.iter().any(|grant| {
                    grant.path != place && grant.path.is_within(&place)
                });
                let access = lowered.host_access(&place);
                let read = permits(&plan, Question::Read(place.clone()));
                prop_assert!(read || access.is_none(), "{} readable but denied", place);
                prop_assert!(!read || on_the_way || access.is_some(), "{} absent", place);
                let write = permits(&plan, Question::Write(place.clone()));
                prop_assert_eq!(write, access == Some(Access::Write), "{}", place);
            }
        }
    }

    #[test]
    fn where_names_are_made_outside_nobody_inside_can_make_one(case in case()) {
        let Ok(plan) = compiled(&case.policy, &case.facts) else { return Ok(()) };
        let lowered = Lowered::of(&plan);
        let Some((_, rules)) = &lowered.landlock else { return Ok(()) };
        if lowered.supervised.is_none() { return Ok(()) }
        let changes = FS_WRITE_FILE | FS_MAKE_REG | FS_MAKE_DIR | FS_MAKE_SYM | FS_MAKE_FIFO
            | FS_REMOVE_FILE | FS_REMOVE_DIR | FS_REFER | FS_TRUNCATE;
        for (place, mount) in &lowered.mounts {
            if !matches!(mount, Mount::Host(Access::Write)) { continue }
            let granted = std::iter::once(place.as_bytes())
                .chain(place.ancestors())
                .filter_map(|above| rules.get(above))
                .fold(0, |granted, allowed| granted | allowed);
            prop_assert_eq!(granted & changes, 0, "{}", place);
        }
    }

    #[test]
    fn what_can_be_written_lies_below_a_write_grant(case in case()) {
        let Ok(plan) = compiled(&case.policy, &case.facts) else { return Ok(()) };
        let lowered = Lowered::of(&plan);
        let written: Vec<_> = case.policy.write.iter().filter_map(|grant| match &grant.target {
            crate::policy::GrantTarget::Path(path) => Some(path),
            crate::policy::GrantTarget::Set(_) => None,
        }).collect();
        for place in &case.asked {
            if lowered.host_access(place) == Some(Access::Write) {
                prop_assert!(written.iter().any(|grant| place.is_within(grant)), "{}", place);
            }
        }
    }

    #[test]
    fn steps_build_parents_before_children(case in case()) {
        let Ok(plan) = compiled(&case.policy, &case.facts) else { return Ok(()) };
        let places: Vec<_> = plan.steps.iter().filter_map(|step| match &step.action {
            Action::Bind { path, .. }
            | Action::BindWithout { path, .. }
            | Action::PrivateDirectory { path, .. } => Some(path),
            _ => None,
        }).collect();
        for (index, place) in places.iter().enumerate() {
            prop_assert!(!places[index + 1..].iter().any(|later| place.is_within(later)));
        }
    }
}
