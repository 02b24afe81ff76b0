//! `stockade stop`: ends sandboxes that stay.

use serde_json::json;
use stockade_engine::sandboxes::Name;
use stockade_engine::sandboxes::call::{CallError, Stopped, list, stop};
use stockade_engine::sandboxes::registry::{Record, Registry, State};
use stockade_engine::state::{Places, StateDirectory};

use super::start::parse_name;
use crate::exit::ExitCode;
use crate::show;

/// End sandboxes that stay
#[derive(Debug, clap::Args)]
#[command(
    long_about = "End sandboxes that `stockade start` made, and wait until nothing is left of them.\n\n\
        Commands that run in them get SIGTERM and five seconds, then everything inside is killed. \
        Of a pool those end that wait for a command; one that was taken ends with its command.\n\n\
        In review mode what was written waits as after `stockade run`: `stockade diff`.",
    after_long_help = "Examples:\n  \
        stockade stop web api\n  \
        stockade stop --all\n\n\
        Exit code: 0, or 1 when one of them could not be ended."
)]
pub struct Args {
    /// Names of the sandboxes or pools
    #[arg(value_parser = parse_name, required_unless_present = "all", conflicts_with = "all")]
    names: Vec<Name>,
    /// Every sandbox and pool of yours
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The names of all there is, pools first: none makes another sandbox then.
fn everything(registry: &Registry) -> anyhow::Result<Vec<Name>> {
    let listed = list(registry)?.into_iter().map(|listed| listed.record);
    let mut records: Vec<Record> = listed.filter(|one| one.state != State::Gone).collect();
    records.sort_by_key(|one| one.state != State::Pool);
    Ok(records.into_iter().map(|one| one.name).collect())
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let state = StateDirectory::open(&Places::of_caller()?)?;
    let registry = Registry::open(&state)?;
    let names = match arguments.all {
        true => everything(&registry)?,
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
