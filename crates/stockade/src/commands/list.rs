//! `stockade list`: the sandboxes that stay.

use std::io::{self, Write};

use serde_json::json;
use stockade_engine::sandboxes::call::{Listed, list};
use stockade_engine::sandboxes::registry::Registry;
use stockade_engine::state::{Places, StateDirectory};
use stockade_policy::path::printable;

use crate::exit::ExitCode;

/// Show the sandboxes that stay
#[derive(Debug, clap::Args)]
#[command(long_about = "Show the sandboxes that `stockade start` made.\n\n\
        Of a pool it shows how many of its sandboxes are ready, and these as well. A sandbox \
        whose supervisor was killed is shown once as gone: everything in it ended with \
        the supervisor.")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let state = StateDirectory::open(&Places::of_caller()?)?;
    let sandboxes = list(&Registry::open(&state)?)?;
    let mut output = io::stdout().lock();
    if arguments.json {
        let sandboxes: Vec<_> = sandboxes.iter().map(value).collect();
        writeln!(output, "{}", json!({"version": 1, "sandboxes": sandboxes}))?;
    } else if sandboxes.is_empty() {
        writeln!(output, "There is no sandbox.")?;
    } else {
        let head = [
            "NAME",
            "RUN",
            "SINCE",
            "STATE",
            "COMMANDS",
            "WALL",
            "WORKSPACE",
        ];
        writeln!(output, "{}", row(head))?;
        for listed in &sandboxes {
            let record = &listed.record;
            let cells = [
                record.name.as_str(),
                &record.run,
                &record.since,
                record.state.name(),
                &work(listed),
                &record.wall,
                &record.workspace,
            ];
            writeln!(output, "{}", printable(row(cells).as_bytes()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// How many commands run in it, or how many sandboxes of a pool are ready.
fn work(listed: &Listed) -> String {
    match (listed.ready, &listed.record.keeps, listed.commands) {
        (Some(ready), Some(keeps), _) => format!("{ready} of {}", keeps.size),
        (.., Some(commands)) => commands.to_string(),
        _ => "-".to_owned(),
    }
}

fn value(listed: &Listed) -> serde_json::Value {
    let record = &listed.record;
    json!({
        "name": record.name,
        "run": record.run,
        "since": record.since,
        "state": record.state,
        "workspace": record.workspace,
        "wall": record.wall,
        "commands": listed.commands,
        "pool": record.pool,
        "ready": listed.ready,
        "size": record.keeps.as_ref().map(|keeps| keeps.size),
    })
}

fn row([name, run, since, state, commands, wall, workspace]: [&str; 7]) -> String {
    format!("{name:<16}  {run:<12}  {since:<24}  {state:<8}  {commands:>8}  {wall:<7}  {workspace}")
}
