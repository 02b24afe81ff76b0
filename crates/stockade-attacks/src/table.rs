//! The table of guarantees and attacks, for people and as JSON.

use crate::verdict::Verdict;
use serde_json::json;
use stockade_policy::guarantee::Guarantee;

/// One attack and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub guarantee: Guarantee,
    pub id: String,
    pub summary: String,
    pub verdict: Verdict,
}

/// What became of every attack that was tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    pub rows: Vec<Row>,
}

impl Table {
    /// Whether nothing escaped. Open questions do not count as escapes; they
    /// are shown.
    pub fn nothing_escaped(&self) -> bool {
        !self
            .rows
            .iter()
            .any(|row| matches!(row.verdict, Verdict::Escaped(_)))
    }

    /// The table as text: the attacks below each guarantee, then the sums.
    pub fn text(&self) -> String {
        let width = self.rows.iter().map(|row| row.id.len()).max().unwrap_or(0);
        let mut lines = Vec::new();
        for guarantee in Guarantee::ALL {
            let mut rows = self
                .rows
                .iter()
                .filter(|row| row.guarantee == *guarantee)
                .peekable();
            if rows.peek().is_some() {
                lines.push(format!("{guarantee}  {}", guarantee.promise()));
            }
            lines.extend(rows.map(|row| {
                let (word, detail) = words(&row.verdict);
                format!("  {word:<9} {:<width$}  {detail}", row.id)
            }));
        }
        let (stopped, escaped, open) = self.sums();
        lines.push(format!(
            "{stopped} stopped, {escaped} escaped, {open} could not be tried\n"
        ));
        lines.join("\n")
    }

    /// The table as one JSON object.
    pub fn json(&self) -> serde_json::Value {
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| {
                let (word, detail) = words(&row.verdict);
                json!({
                    "guarantee": row.guarantee.id(),
                    "attack": row.id,
                    "summary": row.summary,
                    "verdict": word.trim_end_matches('!').to_lowercase(),
                    "detail": detail,
                })
            })
            .collect();
        let (stopped, escaped, open) = self.sums();
        json!({ "rows": rows, "stopped": stopped, "escaped": escaped, "open": open })
    }

    fn sums(&self) -> (usize, usize, usize) {
        let count = |wanted: fn(&Verdict) -> bool| {
            self.rows.iter().filter(|row| wanted(&row.verdict)).count()
        };
        (
            count(|verdict| matches!(verdict, Verdict::Stopped(_))),
            count(|verdict| matches!(verdict, Verdict::Escaped(_))),
            count(|verdict| matches!(verdict, Verdict::Inconclusive(_))),
        )
    }
}

fn words(verdict: &Verdict) -> (&'static str, &str) {
    match verdict {
        Verdict::Stopped(how) => ("stopped", how),
        Verdict::Escaped(gained) => ("ESCAPED!", gained),
        Verdict::Inconclusive(why) => ("open", why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_groups_by_guarantee_and_counts() {
        let row = |guarantee, id: &str, verdict| Row {
            guarantee,
            id: id.into(),
            summary: "tries".into(),
            verdict,
        };
        let table = Table {
            rows: vec![
                row(Guarantee::PR1, "pr1-b", Verdict::Escaped("a ring".into())),
                row(
                    Guarantee::FS1,
                    "fs1-long",
                    Verdict::Stopped("ENOENT".into()),
                ),
                row(
                    Guarantee::FS1,
                    "fs1-c",
                    Verdict::Inconclusive("no disk".into()),
                ),
            ],
        };
        assert_eq!(
            table.text(),
            "FS1  only granted paths can be read; everything else is absent\n\
             \x20 stopped   fs1-long  ENOENT\n\
             \x20 open      fs1-c     no disk\n\
             PR1  system calls outside the filter are refused on every ABI\n\
             \x20 ESCAPED!  pr1-b     a ring\n\
             1 stopped, 1 escaped, 1 could not be tried\n"
        );
        assert!(!table.nothing_escaped());
        assert_eq!(table.json()["rows"][0]["verdict"], "escaped");
        assert_eq!(table.json()["escaped"], 1);
    }
}
