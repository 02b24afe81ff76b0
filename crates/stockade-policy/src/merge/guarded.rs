//! The guard of a run, from what all layers say about guarded paths.
//!
//! The built-in list counts unless the user or the organisation says
//! `!defaults`. Where the organisation says `defaults`, it counts as its own
//! word, which users cannot take anything out of.

use crate::guard::{Entry, Guard, Judged, Kind, Rank, Rule, Strength};
use crate::problem::LayerKind;
use crate::validate::{Item, LayerPolicy};
use crate::value::WrittenGuard;

pub(super) fn guard(layers: &[&LayerPolicy]) -> Guard {
    let mut said = Vec::new();
    for policy in layers {
        let lists = [
            (&policy.guard, Strength::Hold),
            (&policy.guard_report, Strength::Report),
        ];
        for (list, strength) in lists {
            let entries = list.iter().flatten();
            said.extend(entries.filter_map(|item| entry(item, strength, rank(policy))));
        }
    }
    let guard = match taken_away(layers) {
        _ if insisted(layers) => Guard::new(said, vec![Rank::Organisation]),
        Some(rule) => Guard::new(said, Vec::new()).without_built_in(rule),
        None => Guard::new(said, vec![Rank::BuiltIn]),
    };
    let denied = layers
        .iter()
        .filter_map(|policy| policy.guarded_ask.as_ref())
        .find(|item| !item.value);
    match denied {
        Some(item) => guard.refusing(item.rule.clone()),
        None => guard,
    }
}

fn rank(policy: &LayerPolicy) -> Rank {
    match policy.layer.kind {
        LayerKind::Organisation => Rank::Organisation,
        LayerKind::User | LayerKind::CommandLine => Rank::User,
        LayerKind::Project(_) => Rank::Project,
    }
}

fn entry(item: &Item<WrittenGuard>, strength: Strength, rank: Rank) -> Option<Entry> {
    let (pattern, removes) = match &item.value {
        WrittenGuard::Pattern(pattern) => (pattern, false),
        WrittenGuard::Removed(pattern) => (pattern, true),
        WrittenGuard::Defaults(_) => return None,
    };
    Some(Entry {
        rule: Rule {
            kind: Kind::Custom,
            strength,
            judged: Judged::Always,
            pattern: pattern.clone(),
            rule: item.rule.clone(),
        },
        removes,
        rank,
    })
}

/// Who says `!defaults`.
fn taken_away(layers: &[&LayerPolicy]) -> Option<crate::plan::Rule> {
    let mut said = layers
        .iter()
        .flat_map(|policy| policy.guard.iter().flatten());
    let item = said.find(|item| item.value == WrittenGuard::Defaults(false))?;
    Some(item.rule.clone())
}

/// Whether the organisation says `defaults`.
fn insisted(layers: &[&LayerPolicy]) -> bool {
    let organisation = layers
        .iter()
        .filter(|policy| policy.layer.kind == LayerKind::Organisation);
    organisation
        .flat_map(|policy| policy.guard.iter().flatten())
        .any(|item| item.value == WrittenGuard::Defaults(true))
}
