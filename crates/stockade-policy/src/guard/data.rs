//! The built-in list, read from `data/guarded.paths`.
//!
//! One rule a line: kind, strength (`hold`, `report`, or `skip` for what a kind
//! leaves out), how it is judged (`always`, `config`, `pointer`), pattern, reason. The file is part of the program, so a line that
//! does not parse is an error of the build, which a test finds.

use std::sync::LazyLock;

use super::{Entry, Judged, Kind, Rank, Rule, Strength};

pub(super) const TEXT: &str = include_str!("../../data/guarded.paths");

pub(super) fn entries() -> &'static [Entry] {
    static ENTRIES: LazyLock<Vec<Entry>> =
        LazyLock::new(|| parse(TEXT).expect("the built-in list is tested"));
    &ENTRIES
}

/// Every rule of a list, or the first line that is not one.
pub(super) fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let numbered = text.lines().enumerate();
    numbered
        .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'))
        .map(|(index, line)| entry(line).map_err(|why| format!("line {}: {why}", index + 1)))
        .collect()
}

fn entry(line: &str) -> Result<Entry, &'static str> {
    let mut words = line.split_whitespace();
    let mut word = || words.next().ok_or("it has fewer than five fields");
    let kind = match word()? {
        "git" => Kind::Git,
        "ci" => Kind::Ci,
        "editor" => Kind::Editor,
        "shell" => Kind::Shell,
        "build" => Kind::Build,
        "agent" => Kind::Agent,
        "policy" => Kind::Policy,
        _ => return Err("no such kind"),
    };
    let (strength, removes) = match word()? {
        "hold" => (Strength::Hold, false),
        "report" => (Strength::Report, false),
        "skip" => (Strength::Report, true),
        _ => return Err("no such strength"),
    };
    let judged = match word()? {
        "always" => Judged::Always,
        "config" => Judged::GitConfig,
        "pointer" => Judged::GitPointer,
        _ => return Err("it is judged by nothing that exists"),
    };
    let pattern = word()?;
    let plain = |part: &str| !matches!(part, "" | "." | "..");
    if !pattern.starts_with("**/") || !pattern.split('/').all(plain) {
        return Err("the pattern does not start with `**/` or has an odd component");
    }
    let reason: Vec<&str> = words.collect();
    if reason.is_empty() {
        return Err("it has no reason");
    }
    let short = pattern.trim_start_matches("**/");
    Ok(Entry {
        rule: Rule {
            kind,
            strength,
            judged,
            pattern: pattern.to_owned(),
            rule: crate::plan::Rule {
                id: format!("guard.{kind}:{short}"),
                origin: "built-in".to_owned(),
                reason: reason.join(" "),
            },
        },
        removes,
        rank: Rank::BuiltIn,
    })
}
