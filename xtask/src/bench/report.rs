//! The figures as a table for people and as JSON for programs.

use super::rows::{Bar, Row};
use super::statistics::Summary;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Where the figures come from: processors, kernel and how busy the machine was, in one line.
pub fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let processors = read("/proc/cpuinfo");
    let model = processors
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model);
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or_default();
    format!("{count} × {model}, Linux {}, load {load}", kernel.trim())
}

/// Prints all rows, each with its contenders and bars.
pub fn print(rows: &[Row]) {
    for row in rows {
        println!("\n{} [{}]", row.name, row.unit);
        println!(
            "  {:<24} {:>9} {:>19} {:>4}  stockade ÷ it",
            "", "median", "p10 – p90", "n"
        );
        for figure in &row.figures {
            let Summary {
                median,
                low,
                high,
                count,
            } = figure.summary();
            let spread = format!("{low:.2} – {high:.2}");
            let ratio = match row.ratio(figure.contender) {
                Some(ratio) if figure.contender != "stockade" => {
                    format!("{:.3} ({:.3} – {:.3})", ratio.median, ratio.low, ratio.high)
                }
                _ => String::new(),
            };
            println!(
                "  {:<24} {median:>9.2} {spread:>19} {count:>4}  {ratio}",
                figure.contender
            );
        }
        if let Some(note) = row.note {
            println!("  note: {note}");
        }
        for bar in &row.bars {
            println!(
                "  {} {}: {:.4}",
                verdict(bar),
                bar.demand,
                bar.measured.median
            );
        }
    }
}

/// What every suite can be told.
#[derive(clap::Args)]
pub struct Common {
    /// Also write all figures to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fewer rounds and less work, to see that it works; bars are printed but do not count.
    #[arg(long)]
    pub quick: bool,
    /// Only rows whose name contains this; may be repeated.
    #[arg(long, value_name = "TEXT")]
    row: Vec<String>,
}

impl Common {
    /// Whether a row is to be measured.
    pub fn wants(&self, name: &str) -> bool {
        self.row.is_empty() || self.row.iter().any(|text| name.contains(text.as_str()))
    }
}

/// The end of a suite: writes all figures where that is wanted, and fails when a bar was missed,
/// unless the suite was only tried.
pub fn conclude(rows: &[Row], machine: &str, options: &Common) -> Result<()> {
    if let Some(path) = &options.json {
        write_json(rows, machine, path)?;
    }
    let bars = rows.iter().flat_map(|row| &row.bars);
    let missed = bars.filter(|bar| !bar.is_met()).count();
    if missed > 0 && !options.quick {
        bail!("{missed} bars were missed");
    }
    Ok(())
}

/// Writes all rows, with the figures of every round, to `path`; `machine` as told by [`machine`].
fn write_json(rows: &[Row], machine: &str, path: &Path) -> Result<()> {
    let rows: Vec<Value> = rows.iter().map(row_value).collect();
    let document = json!({ "version": 1, "machine": machine, "rows": rows });
    let text = serde_json::to_string_pretty(&document)? + "\n";
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn row_value(row: &Row) -> Value {
    let figures = row.figures.iter().map(|figure| {
        json!({
            "contender": figure.contender,
            "summary": summary_value(figure.summary()),
            "stockade_ratio": row.ratio(figure.contender).map(summary_value),
            "rounds": figure.rounds,
        })
    });
    let bars = row.bars.iter().map(|bar| {
        json!({
            "demand": bar.demand,
            "measured": summary_value(bar.measured),
            "met": bar.is_met(),
        })
    });
    json!({
        "name": row.name,
        "unit": row.unit,
        "figures": figures.collect::<Vec<_>>(),
        "bars": bars.collect::<Vec<_>>(),
        "note": row.note,
    })
}

fn summary_value(summary: Summary) -> Value {
    json!({
        "median": summary.median,
        "p10": summary.low,
        "p90": summary.high,
        "count": summary.count,
    })
}

fn verdict(bar: &Bar) -> &'static str {
    if bar.is_met() { "pass" } else { "MISS" }
}
