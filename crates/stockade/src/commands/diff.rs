//! `stockade diff`: what a run in review mode changed.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use stockade_policy::path::printable;
use stockade_sys::signal::{LetThrough, OthersKeys};
use stockade_workspace::change::Change;
use stockade_workspace::held::Verdict;
use stockade_workspace::run_dir::Run;
use stockade_workspace::unified::{Difference, difference};

use super::project::{Project, ProjectOptions, Waiting, explanation, print_json, row};
use crate::exit::ExitCode;

/// Show what a run in review mode changed
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show what a run in review mode changed, the held changes first: those that could run \
        later, outside, and need to be applied by name.",
    after_long_help = "Examples:\n  \
        stockade diff                  what the latest waiting run changed\n  \
        stockade diff --stat           one line for each path\n  \
        stockade diff src/main.rs      only this path\n  \
        stockade diff --list           the runs that wait"
)]
pub struct Args {
    #[command(flatten)]
    project: ProjectOptions,
    /// One line for each path, without the text
    #[arg(long)]
    stat: bool,
    /// List the runs that wait
    #[arg(long)]
    list: bool,
    /// A waiting run (the latest when none is named), then paths
    #[arg(value_name = "RUN|PATH")]
    arguments: Vec<OsString>,
}

/// Runs the command.
pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let project = Project::find(&arguments.project)?;
    if arguments.list {
        return list(&project, arguments.project.json);
    }
    let (run, paths) = project.run_and_paths(&arguments.arguments)?;
    let waiting = Waiting::of(&project.store, &project.loaded.policy.guard, &run)?;
    let shown: Vec<_> = waiting
        .in_order()
        .into_iter()
        .filter(|(change, _)| is_named(change, &paths))
        .collect();
    if arguments.project.json {
        print_json(&json(&run, &waiting, &shown))?;
        return Ok(ExitCode::from(0));
    }
    let text = text(&run, &waiting, &shown, arguments.stat)?;
    page(&text)?;
    Ok(ExitCode::from(0))
}

/// Shows everything that a run changed.
pub fn show(run: &Run, waiting: &Waiting) -> anyhow::Result<()> {
    page(&text(run, waiting, &waiting.in_order(), false)?)
}

fn list(project: &Project, as_json: bool) -> anyhow::Result<ExitCode> {
    let mut rows = Vec::new();
    let mut values = Vec::new();
    for run in project.store.runs()? {
        let meta = run.meta();
        let in_use = run.is_in_use()?;
        let state = match (in_use, &meta.ended) {
            (true, _) => "in use",
            (false, None) if meta.command.is_empty() => "fork",
            (false, None) => "interrupted",
            (false, Some(_)) => "waits",
        };
        let bytes = meta.usage.map_or(0, |usage| usage.bytes);
        let command = meta.command.join(" ");
        rows.push(format!(
            "{}  {state:<11}  {bytes:>12} bytes  {}{command}",
            meta.id,
            meta.name
                .as_ref()
                .map_or_else(String::new, |name| format!("{name}: ")),
        ));
        let mut value = serde_json::to_value(meta)?;
        value["state"] = json!(state);
        values.push(value);
    }
    match as_json {
        true => print_json(&json!({ "version": 1, "runs": values }))?,
        false if rows.is_empty() => page("nothing waits for review\n")?,
        false => page(&format!("{}\n", rows.join("\n")))?,
    }
    Ok(ExitCode::from(0))
}

/// Whether a change is about one of the named paths; all are when none is.
pub fn is_named(change: &Change, paths: &[Vec<u8>]) -> bool {
    let below = |path: &[u8], named: &[u8]| {
        named.is_empty()
            || path
                .strip_prefix(named)
                .is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
    };
    paths.is_empty()
        || change
            .paths()
            .any(|path| paths.iter().any(|named| below(path, named)))
}

fn text(
    run: &Run,
    waiting: &Waiting,
    shown: &[(&Change, Option<&Verdict>)],
    stat: bool,
) -> anyhow::Result<String> {
    let mut text = format!("run {}: {}\n", run.meta().id, waiting.counts());
    if let Err(torn) = run.check_whole() {
        text.push_str(&format!("note: {torn}\n"));
    }
    for (change, verdict) in shown {
        text.push_str(&row(change));
        text.push('\n');
        if let Some(verdict) = verdict {
            text.push_str(&format!("    {}\n", explanation(verdict)));
        }
        if stat {
            continue;
        }
        match difference(change, &waiting.whole, &waiting.below)? {
            Difference::Text(lines) => text.push_str(&escaped(&lines)),
            Difference::Binary { .. } => text.push_str("    binary\n"),
            Difference::None => {}
        }
    }
    Ok(text)
}

/// Lines of files that a command wrote: nothing in them may steer a terminal.
fn escaped(lines: &[u8]) -> String {
    let mut text = String::with_capacity(lines.len());
    for line in lines.split_inclusive(|&byte| byte == b'\n') {
        let (line, end) = match line.split_last() {
            Some((b'\n', line)) => (line, "\n"),
            _ => (line, "\n"),
        };
        let parts: Vec<String> = line.split(|&byte| byte == b'\t').map(printable).collect();
        text.push_str("    ");
        text.push_str(&parts.join("\t"));
        text.push_str(end);
    }
    text
}

fn json(run: &Run, waiting: &Waiting, shown: &[(&Change, Option<&Verdict>)]) -> Value {
    let changes: Vec<Value> = shown
        .iter()
        .map(|(change, verdict)| {
            let mut value = json!(change);
            value["guard"] = json!(verdict);
            value
        })
        .collect();
    json!({
        "version": 1,
        "run": run.meta(),
        "summary": waiting.changes.summary(),
        "held": waiting.held(),
        "changes": changes,
    })
}

/// Shows text; on a terminal through a pager, which only the environment
/// names.
fn page(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let short = text.lines().count() < 20;
    if !out.is_terminal() || short {
        return Ok(out.write_all(text.as_bytes())?);
    }
    let pager = std::env::var("PAGER")
        .ok()
        .filter(|pager| !pager.trim().is_empty());
    let pager = pager.unwrap_or_else(|| "less -R".to_owned());
    // At the end of a run signals are blocked, and a pager inherits that.
    let through = LetThrough::begin()?;
    // Outside of the project, so that nothing there is taken for a
    // configuration.
    let child = Command::new("sh")
        .args(["-c", &pager])
        .current_dir("/")
        .env("LESSSECURE", "1")
        .env_remove("LESSOPEN")
        .stdin(Stdio::piped())
        .spawn();
    drop(through);
    let _others = OthersKeys::begin()?;
    let Ok(mut child) = child else {
        return Ok(out.write_all(text.as_bytes())?);
    };
    if let Some(mut input) = child.stdin.take() {
        // The reader may have seen enough.
        let _closed = input.write_all(text.as_bytes()).is_err();
    }
    child.wait()?;
    Ok(())
}
