//! What the layers make of one path together.

use super::{Entry, Kind, Rank, Rule, Strength};

/// The built-in list speaks first and users replace what it says. Where the
/// organisation speaks, it replaces both, and users only add to it. A project
/// only adds.
pub(super) fn decide<'a>(matching: &[&'a Entry]) -> Option<&'a Rule> {
    let of_rank = |rank: Rank| -> Vec<&'a Entry> {
        let of_rank = |entry: &&&'a Entry| entry.rank == rank;
        matching.iter().filter(of_rank).copied().collect()
    };
    let built_in = strongest(&without_skipped(of_rank(Rank::BuiltIn)));
    let user = of_rank(Rank::User);
    let organisation = without_skipped(of_rank(Rank::Organisation));
    let verdict = match organisation.is_empty() {
        true => replaced(built_in, &user),
        false => stronger(replaced(built_in, &organisation), replaced(None, &user)),
    };
    stronger(verdict, strongest(&of_rank(Rank::Project)))
}

/// The built-in list skips whole kinds in some directories.
fn without_skipped(mut said: Vec<&Entry>) -> Vec<&Entry> {
    let skipped: Vec<Kind> = said
        .iter()
        .filter(|entry| entry.removes && entry.rule.kind != Kind::Custom)
        .map(|entry| entry.rule.kind)
        .collect();
    said.retain(|entry| !skipped.contains(&entry.rule.kind));
    said
}

/// What a layer makes of an earlier verdict. Its last entry about holding
/// decides that; only what it took out there can become less than held.
fn replaced<'a>(before: Option<&'a Rule>, said: &[&'a Entry]) -> Option<&'a Rule> {
    let last = |strength: Strength| {
        let of_strength = |entry: &&&'a Entry| entry.rule.strength == strength;
        said.iter().rfind(of_strength).copied()
    };
    let before = match last(Strength::Hold) {
        Some(hold) if !hold.removes => return Some(&hold.rule),
        Some(_) => None,
        None => before,
    };
    match last(Strength::Report) {
        Some(report) if !report.removes => stronger(before, Some(&report.rule)),
        Some(_) => before.filter(|rule| rule.strength == Strength::Hold),
        None => before,
    }
}

fn strongest<'a>(said: &[&'a Entry]) -> Option<&'a Rule> {
    said.iter()
        .filter(|entry| !entry.removes)
        .map(|entry| &entry.rule)
        .fold(None, |best, rule| stronger(best, Some(rule)))
}

/// The stronger of both, of equals the first.
fn stronger<'a>(left: Option<&'a Rule>, right: Option<&'a Rule>) -> Option<&'a Rule> {
    match (left, right) {
        (Some(left), Some(right)) if right.strength > left.strength => Some(right),
        (left, right) => left.or(right),
    }
}
