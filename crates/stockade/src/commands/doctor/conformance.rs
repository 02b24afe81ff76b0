//! `stockade doctor --attack --all-walls`: which wall holds which guarantee,
//! shown by the same attacks behind each of them.

use serde_json::{Value, json};
use stockade_attacks::{Table, Verdict};
use stockade_engine::probe;
use stockade_policy::facts::RuntimeFacts;
use stockade_policy::guarantee::Guarantee;
use stockade_policy::plan::{RuntimeKind, Wall};
use stockade_policy::runtimes::known_broken;

use super::attack::{Attacked, Behind, Claims, attacked};
use super::{Format, print};
use crate::exit::ExitCode;

/// What came of one guarantee behind one wall.
struct Cell {
    /// `held`, `partial`, `not-held`, `cannot` or `failed`; `unverified` where
    /// the plan holds it and nothing can be run to show it.
    status: &'static str,
    /// By what, or why not.
    why: String,
    stopped: usize,
    /// Attacks that got through although the wall claims to hold.
    escaped: Vec<String>,
}

struct Column {
    wall: String,
    /// The version of its runtime that was used in any case.
    accepted: Option<String>,
    cells: Vec<Cell>,
}

/// Every wall; the container wall also with each OCI runtime that is installed,
/// whatever is known against the version `accepted`. The wall of macOS comes
/// last: its plan is all that there is of it here.
fn all(accepted: Option<&str>) -> Vec<Behind> {
    let found = |kind| match probe::runtime::found(kind, None) {
        RuntimeFacts::Found(runtime) => Some(runtime),
        RuntimeFacts::Missing { .. } => None,
    };
    let runtimes = RuntimeKind::ALL.into_iter().filter_map(found);
    let runtimes = runtimes.map(|runtime| Behind {
        runtime: Some(runtime.kind),
        accepted: accepted
            .filter(|accepted| *accepted == runtime.version)
            .filter(|version| known_broken(runtime.kind, version).is_some())
            .map(str::to_owned),
        ..Behind::of(Wall::Container)
    });
    Wall::ALL
        .map(Behind::of)
        .into_iter()
        .chain(runtimes)
        .chain([Behind::of(Wall::Seatbelt)])
        .collect()
}

/// Attacks behind every wall; fails when one does not hold what it claims.
pub fn run(format: Format, accepted: Option<&str>) -> anyhow::Result<ExitCode> {
    let mut columns = Vec::new();
    for behind in all(accepted) {
        let cells = match attacked(&behind)? {
            Attacked::Interrupted(code) => return Ok(code),
            Attacked::Cannot(why) => {
                let cell = |_: &Guarantee| Cell {
                    status: "cannot",
                    why: why.clone(),
                    stopped: 0,
                    escaped: Vec::new(),
                };
                Guarantee::ALL.iter().map(cell).collect()
            }
            Attacked::Planned(claims) => {
                let cell = |guarantee: &Guarantee| planned(*guarantee, &claims);
                Guarantee::ALL.iter().map(cell).collect()
            }
            Attacked::Done { claims, table } => {
                let cell = |guarantee: &Guarantee| cell(*guarantee, &claims, &table);
                Guarantee::ALL.iter().map(cell).collect()
            }
        };
        let wall = behind.name();
        columns.push(Column {
            wall,
            accepted: behind.accepted,
            cells,
        });
    }
    match format {
        Format::Text => print(&text(&columns))?,
        Format::Json => print(&format!("{:#}\n", json(&columns)))?,
    }
    let mut cells = columns.iter().flat_map(|column| &column.cells);
    Ok(match cells.any(|cell| cell.status == "failed") {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

fn cell(guarantee: Guarantee, claims: &Claims, table: &Table) -> Cell {
    let rows = table.rows.iter().filter(|row| row.guarantee == guarantee);
    let mut stopped = 0;
    let mut escaped = Vec::new();
    for row in rows {
        match row.verdict {
            Verdict::Stopped(_) => stopped += 1,
            Verdict::Escaped(_) => escaped.push(row.id.clone()),
            Verdict::Inconclusive(_) => {}
        }
    }
    let (claim, why) = claims.get(guarantee.id()).cloned().unwrap_or_default();
    let status = match &claim[..] {
        _ if !escaped.is_empty() => "failed",
        "held" => "held",
        "partial" => "partial",
        _ => "not-held",
    };
    Cell {
        status,
        why,
        stopped,
        escaped,
    }
}

/// What a plan says that nobody can put to the test here.
fn planned(guarantee: Guarantee, claims: &Claims) -> Cell {
    let (claim, why) = claims.get(guarantee.id()).cloned().unwrap_or_default();
    let status = match &claim[..] {
        "held" => "unverified",
        "partial" => "partial",
        _ => "not-held",
    };
    Cell {
        status,
        why,
        stopped: 0,
        escaped: Vec::new(),
    }
}

fn text(columns: &[Column]) -> String {
    const CELL: usize = 18;
    let promises = Guarantee::ALL
        .iter()
        .map(|one| one.promise().chars().count());
    let width = promises.max().unwrap_or(0);
    let mut lines = vec![format!(
        "{:5}{:width$}  {}",
        "",
        "",
        headings(columns, CELL)
    )];
    for (number, guarantee) in Guarantee::ALL.iter().enumerate() {
        let cells = columns.iter().map(|column| {
            let cell = &column.cells[number];
            let word = match cell.status {
                "failed" => format!("FAILED! {}", cell.escaped.len()),
                _ if cell.stopped > 0 => format!("{} ({})", cell.status, cell.stopped),
                status => status.to_owned(),
            };
            format!("{word:<CELL$}")
        });
        let cells = cells.collect::<String>();
        lines.push(format!(
            "{guarantee}  {:width$}  {}",
            guarantee.promise(),
            cells.trim_end()
        ));
    }
    lines.push("\nIn brackets: attacks that were stopped.".to_owned());
    lines.extend(columns.iter().flat_map(remarks));
    lines.join("\n") + "\n"
}

fn headings(columns: &[Column], cell: usize) -> String {
    let words = columns
        .iter()
        .map(|column| format!("{:<cell$}", column.wall));
    words.collect::<String>().trim_end().to_owned()
}

/// What is not held in full behind a wall, and why.
fn remarks(column: &Column) -> Vec<String> {
    let wall = &column.wall;
    if let Some(cell) = column.cells.first().filter(|cell| cell.status == "cannot") {
        return vec![format!("\n{wall} cannot be had here:\n{}", cell.why)];
    }
    let mut remarks = Vec::new();
    for (cell, guarantee) in column.cells.iter().zip(Guarantee::ALL) {
        match cell.status {
            "held" | "unverified" => {}
            "failed" => remarks.push(format!(
                "  {guarantee}  failed: {}",
                cell.escaped.join(", ")
            )),
            status => remarks.push(format!("  {guarantee}  {status}: {}", cell.why)),
        }
    }
    if let Some(version) = &column.accepted {
        let why = "what is known against its number was overridden by --accept-runtime";
        remarks.push(format!("  version {version}: {why}"));
    }
    let is_planned = column.cells.iter().any(|cell| cell.status == "unverified");
    if is_planned {
        remarks.insert(
            0,
            format!(
                "\nBehind {wall}, where nothing was run: what is unverified only a Mac can show"
            ),
        );
    } else if !remarks.is_empty() {
        remarks.insert(0, format!("\nBehind {wall}:"));
    }
    remarks
}

fn json(columns: &[Column]) -> Value {
    let walls = columns.iter().map(|column| {
        let cells = column
            .cells
            .iter()
            .zip(Guarantee::ALL)
            .map(|(cell, guarantee)| {
                json!({
                    "guarantee": guarantee.id(), "status": cell.status, "why": cell.why,
                    "stopped": cell.stopped, "escaped": cell.escaped,
                })
            });
        json!({ "wall": column.wall, "accepted": column.accepted, "guarantees": cells.collect::<Vec<_>>() })
    });
    json!({ "version": 1, "walls": walls.collect::<Vec<_>>() })
}
