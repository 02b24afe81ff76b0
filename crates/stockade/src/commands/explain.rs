//! `stockade explain`: prints the plan of a command without running it.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use stockade_engine::run::{Request, plan};
use stockade_policy::explain::{Detail, Style, json, text};

use super::options::PolicyOptions;
use crate::exit::ExitCode;

/// Show what a command could read, write, execute and reach
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show what a command could read, write, execute and reach, and which mechanism \
        holds each guarantee. The plan that is printed is the plan that `stockade run` applies: \
        same options, same digest.",
    after_long_help = "Examples:\n  \
        stockade explain -- npm test\n  \
        stockade explain --read toolchains --verbose\n  \
        stockade explain --json | jq .guarantees"
)]
pub struct Args {
    #[command(flatten)]
    policy: PolicyOptions,
    /// Run in DIR, which must lie in the project
    #[arg(long, short = 'C', value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Print the plan as JSON
    #[arg(long)]
    json: bool,
    /// Also every system call rule and every step
    #[arg(long, short)]
    verbose: bool,
    /// The command and its arguments; `true` when left out
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Prints the plan.
pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let argv = match arguments.command.as_slice() {
        [] => vec![OsString::from("true")],
        command => command.to_vec(),
    };
    let request = Request {
        argv,
        directory: arguments.directory.clone(),
        selection: arguments.policy.selection(),
        ..Request::default()
    };
    let planned = plan(&request)?;
    let output = if arguments.json {
        let mut output = serde_json::to_string_pretty(&json(&planned.plan))?;
        output.push('\n');
        output
    } else {
        let plain = !std::io::stdout().is_terminal()
            || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let style = if plain { Style::Plain } else { Style::Ansi };
        let detail = if arguments.verbose {
            Detail::Verbose
        } else {
            Detail::Summary
        };
        text(&planned.plan, style, detail)
    };
    match std::io::stdout().write_all(output.as_bytes()) {
        // `stockade explain | head` is no failure.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
        other => other?,
    }
    Ok(ExitCode::SUCCESS)
}
