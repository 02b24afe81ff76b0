//! Guarded paths, shown.

use serde::Serialize;

use super::wire::{RuleV1, rule};
use super::{Detail, Page, Tone, column, source};
use crate::guard::{Entry, Judged, Rank, Strength};
use crate::path::printable;
use crate::plan::Plan;

/// Names that are held or reported where something may be written.
#[derive(Clone, Debug, Serialize)]
pub struct GuardV1 {
    /// `ask`: what is held waits for approval; `deny`: the call fails.
    pub approval: &'static str,
    /// Every rule, the built-in ones first.
    pub rules: Vec<GuardedV1>,
}

#[derive(Clone, Debug, Serialize)]
pub struct GuardedV1 {
    /// What reads it: `git`, `ci`, `editor`, `shell`, `build`, `agent`,
    /// `policy`, or `custom` for what a policy names.
    pub kind: &'static str,
    /// `hold` or `report`.
    pub strength: &'static str,
    /// `always`, `git-config` or `git-pointer`: what decides about content.
    pub judged: &'static str,
    pub pattern: String,
    /// The rule takes paths out; a built-in one only those of its kind.
    pub removes: bool,
    /// Whose word it is: `built-in`, `user`, `organisation` or `project`.
    pub rank: &'static str,
    pub rule: RuleV1,
}

pub(super) fn json(plan: &Plan) -> GuardV1 {
    GuardV1 {
        approval: match plan.guard.refused_by() {
            None => "ask",
            Some(_) => "deny",
        },
        rules: plan.guard.entries().iter().map(guarded).collect(),
    }
}

fn guarded(entry: &Entry) -> GuardedV1 {
    GuardedV1 {
        kind: entry.rule.kind.word(),
        strength: entry.rule.strength.word(),
        judged: match entry.rule.judged {
            Judged::Always => "always",
            Judged::GitConfig => "git-config",
            Judged::GitPointer => "git-pointer",
        },
        pattern: entry.rule.pattern.clone(),
        removes: entry.removes,
        rank: match entry.rank {
            Rank::BuiltIn => "built-in",
            Rank::User => "user",
            Rank::Organisation => "organisation",
            Rank::Project => "project",
        },
        rule: rule(&entry.rule.rule),
    }
}

pub(super) fn text(page: &mut Page, plan: &Plan, detail: Detail) {
    page.heading("Guarded: names that run or steer something outside");
    let count = |strength| {
        let counts = |entry: &&Entry| !entry.removes && entry.rule.strength == strength;
        plan.guard.entries().iter().filter(counts).count()
    };
    let held = match plan.guard.refused_by() {
        _ if !plan.keeps_guard() => "not held in this plan (FS4 below says why)".to_owned(),
        None => "held until you approve it".to_owned(),
        Some(rule) => format!("refused by {} ({})", rule.id, rule.origin),
    };
    page.item(&format!(
        "{} patterns: what is written there is {held}",
        count(Strength::Hold)
    ));
    page.item(&format!(
        "{} patterns: what is written there is named in the report",
        count(Strength::Report)
    ));
    let shown = match detail {
        Detail::Summary => plan.guard.said(),
        Detail::Verbose => plan.guard.entries(),
    };
    let word = |entry: &Entry| match (entry.removes, entry.rule.strength) {
        (true, _) => "not",
        (false, Strength::Hold) => "hold",
        (false, Strength::Report) => "report",
    };
    let pattern = |entry: &Entry| printable(entry.rule.pattern.as_bytes());
    let width = column(shown.iter().map(pattern));
    for entry in shown {
        let origin = page.toned(Tone::Faint, &source(&entry.rule.rule));
        page.item(&format!(
            "{:<6}  {:width$}  {}  {origin}",
            word(entry),
            pattern(entry),
            entry.rule.rule.reason
        ));
    }
}
