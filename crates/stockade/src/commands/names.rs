//! What a run did to the work tree, at its end.

use std::io::IsTerminal;

use stockade_engine::names::{GuardedName, NameSummary};
use stockade_workspace::namer::What;

use crate::show;

/// Most guarded names that are named one by one; the report has all.
const SHOWN_MAX: usize = 20;

/// Says what is held and what will run later, and on a terminal how much was
/// changed in all.
pub fn say(names: &NameSummary) {
    for one in names.guarded.iter().take(SHOWN_MAX) {
        show::line(&format!("stockade: {}", row(one)));
    }
    if names.guarded.len() > SHOWN_MAX {
        show::line(&format!(
            "stockade: and {} more: `--report FILE` has them all",
            names.guarded.len() - SHOWN_MAX
        ));
    }
    if names.guarded.iter().any(|one| one.hold.is_some()) {
        show::line(
            "stockade: `stockade approvals` shows what is held; `stockade approvals allow ID` \
             puts it in place",
        );
    }
    let tally = &names.tally;
    let changes = tally.created + tally.changed + tally.removed;
    if changes > 0 && std::io::stderr().is_terminal() {
        show::line(&format!(
            "stockade: {} created, {} changed ({}), {} removed in the workspace",
            tally.created,
            tally.changed,
            size(tally.bytes),
            tally.removed
        ));
    }
}

fn row(one: &GuardedName) -> String {
    let what = match one.what {
        What::Held => "held",
        What::Removed => "removed, a copy is held",
        What::Refused => "refused",
        What::Reported => "changed",
    };
    let hold = one
        .hold
        .as_deref()
        .map_or_else(String::new, |id| format!(" [{id}]"));
    let keys = match one.keys.is_empty() {
        true => String::new(),
        false => format!(", for {}", one.keys.join(", ")),
    };
    format!(
        "{what}{hold}: {} ({}: {}{keys})",
        one.path, one.kind, one.reason
    )
}

/// Bytes in the largest unit that leaves at least one.
pub fn size(bytes: u64) -> String {
    let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_where_and_why() {
        let one = GuardedName {
            what: What::Held,
            path: "/w/.git/config".into(),
            kind: "git".into(),
            rule: "guard.git".into(),
            reason: "git runs what it names".into(),
            hold: Some("r-h1".into()),
            keys: vec!["core.pager".into()],
        };
        assert_eq!(
            row(&one),
            "held [r-h1]: /w/.git/config (git: git runs what it names, for core.pager)"
        );
        assert_eq!(size(1536), "1.5 KiB");
    }
}
