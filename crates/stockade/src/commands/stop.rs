//! `stockade stop`: ends sandboxes that stay.

use serde_json::json;
use stockade_engine::sandboxes::Name;
use stockade_engine::sandboxes::call::{CallError, Stopped, list, stop};
use stockade_engine::sandboxes::registry::{Registry, State};
use stockade_engine::state::{Places, StateDirectory};

use super::start::parse_name;
use crate::exit::ExitCode;
use crate::show;

/// End sandboxes that stay
#[derive(Debug, clap::Args)]
#[command(
    long_about = "End sandboxes that `stockade start` made, and wait until nothing is left of them.\n\n\
        Commands that run in them get SIGTERM and five seconds, then everything inside is killed. \
        In review mode what was written waits as after `stockade run`: `stockade diff`.",
    after_long_help = "Examples:\n  \
        stockade stop web api\n  \
        stockade stop --all\n\n\
        Exit code: 0, or 1 when one of them could not be ended."
)]
pub struct Args {
    /// Names of the sandboxes
    #[arg(value_parser = parse_name, required_unless_present = "all", conflicts_with = "all")]
    names: Vec<Name>,
    /// Every sandbox of yours
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let state = StateDirectory::open(&Places::of_caller()?)?;
    let registry = Registry::open(&state)?;
    let names = match arguments.all {
        true => list(&registry)?
            .into_iter()
            .filter(|listed| listed.record.state != State::Gone)
            .map(|listed| listed.record.name)
            .collect(),
        false => arguments.names.clone(),
    };
    let mut outcomes = Vec::new();
    for name in names {
        let outcome = match stop(&registry, &name) {
            // Another one ended it meanwhile.
            Err(CallError::Absent(_)) if arguments.all => continue,
            other => other,
        };
        if !arguments.json {
            match &outcome {
                Ok(Stopped::InOrder) => {}
                Ok(Stopped::Killed) => show::line(&format!(
                    "stockade: the supervisor of {name} did not answer and was killed"
                )),
                Err(error) => show::line(&format!("stockade: {error}")),
            }
        }
        outcomes.push((name, outcome));
    }
    if arguments.json {
        let sandboxes: Vec<_> = outcomes
            .iter()
            .map(|(name, outcome)| {
                let error = outcome.as_ref().err().map(ToString::to_string);
                let killed = matches!(outcome, Ok(Stopped::Killed));
                json!({"name": name, "done": error.is_none(), "killed": killed, "error": error})
            })
            .collect();
        println!("{}", json!({"version": 1, "sandboxes": sandboxes}));
    }
    Ok(match outcomes.iter().all(|(_, outcome)| outcome.is_ok()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
