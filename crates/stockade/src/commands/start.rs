//! `stockade start`: makes a sandbox that stays.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use serde_json::json;
use stockade_engine::notice::Notices;
use stockade_engine::run::{Prepared, Request, plan_to_run, stay};
use stockade_engine::sandboxes::Name;
use stockade_engine::sandboxes::detach::{Announcement, Detached, detach};
use stockade_engine::sandboxes::host::Hosting;
use stockade_engine::sandboxes::registry::Registry;
use stockade_engine::state::{Places, StateDirectory};

use super::options::PolicyOptions;
use crate::exit::ExitCode;
use crate::show;

/// How a plan and the log name what is run in a sandbox that stays.
const COMMAND: &str = "stockade-agent";

/// Start a sandbox that stays, for many commands
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Start a sandbox that stays, for many commands.\n\n\
        It is a sandbox like that of `stockade run`, under the same policy and limits, but it ends \
        only with `stockade stop`, at its wall-time limit, or when its supervisor is killed. \
        Commands are started in it with `stockade exec`; they share its files, processes and \
        network, and none of them is confined less than the first. Limits are those of all \
        commands together.\n\n\
        The name of the sandbox is printed once commands can be started in it.",
    after_long_help = "Examples:\n  \
        stockade start --name web --publish 3000\n  \
        stockade exec web -- npm ci\n  \
        stockade exec -t web -- bash\n  \
        stockade stop web\n\n\
        Exit code: 0, or 125 when there is no sandbox; then nothing is left of it."
)]
pub struct Args {
    /// Name of the sandbox: lower-case letters, digits and hyphens; made up
    /// when left out
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    name: Option<Name>,
    #[command(flatten)]
    policy: PolicyOptions,
    /// Where commands run unless they say otherwise; it must lie in the project
    #[arg(long, short = 'C', value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Say nothing on standard error but refusals
    #[arg(long, short)]
    quiet: bool,
    /// Test aid: make the named step fail, to see that nothing runs
    #[arg(long, value_name = "STEP", hide = true)]
    fail_step: Option<String>,
}

/// Reads the name of a sandbox.
pub fn parse_name(text: &str) -> Result<Name, String> {
    Name::parse(text).ok_or_else(|| {
        format!(
            "a name has 1 to {} lower-case letters, digits and inner hyphens",
            Name::LENGTH_MAX
        )
    })
}

/// Detaches a supervisor and says what became of it.
pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    match detach().context("cannot make the supervisor")? {
        Detached::Supervisor(announcement) => supervise(arguments, announcement),
        Detached::Caller(waiting) => match waiting.wait()? {
            Some(name) => {
                let text = match arguments.json {
                    true => json!({"version": 1, "name": name}).to_string(),
                    false => name.to_string(),
                };
                writeln!(std::io::stdout(), "{text}")
                    .with_context(|| format!("cannot say that the sandbox {name} stands"))?;
                Ok(ExitCode::SUCCESS)
            }
            None => Ok(ExitCode::from(crate::cli::EXIT_FAILED)),
        },
    }
}

/// The supervisor, until the sandbox is over.
fn supervise(arguments: &Args, announcement: Announcement) -> anyhow::Result<ExitCode> {
    let mut prepared = Prepared::detached()?;
    let state = StateDirectory::open(&Places::of_caller()?)?;
    let reserved = Registry::open(&state)?.reserve(arguments.name.clone())?;
    let request = Request {
        argv: vec![OsString::from(COMMAND)],
        directory: arguments.directory.clone(),
        selection: arguments.policy.selection(),
        fail_step: arguments.fail_step.clone(),
        notices: match arguments.quiet {
            true => Notices::Silent,
            false => Notices::Said,
        },
        ..Request::default()
    };
    let planned = plan_to_run(&request, &mut prepared)?;
    if !arguments.quiet {
        for note in &planned.plan.notes {
            show::line(&format!("stockade: note: {note}"));
        }
    }
    let hosting = Hosting::Stay {
        reserved,
        announcement,
    };
    stay(&request, &planned, prepared, hosting)?;
    Ok(ExitCode::SUCCESS)
}
