//! `stockade reload`: gives running commands the network rules as the policy
//! files say them now.

use anyhow::bail;
use serde_json::json;
use stockade_engine::control::{self, ControlError, ControlRequest, ControlResponse};
use stockade_engine::state::{Places, StateDirectory};
use stockade_policy::path::printable;

use super::approvals::one_of;
use crate::exit::ExitCode;

/// Give running commands the network rules as the files say them now
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Give running commands the network rules as the policy files say them now.\n\n\
        Each run reads its own policy files again, with its own options and the same trust as at \
        its start. The new rules replace the old ones in one step, and connections that they no \
        longer allow are closed. If anything in the files is wrong, or more than the rules of the \
        network changed, the old rules hold and the reason is shown.",
    after_long_help = "Examples:\n  \
        stockade reload            every run of yours that has a network\n  \
        stockade reload 3f9k       only the run whose id starts so\n\n\
        Exit code: 0, or 1 when a run keeps its old rules."
)]
pub struct Args {
    /// Beginning of the run's id, as `stockade log` shows it; every run when
    /// left out
    run: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let state = StateDirectory::open(&Places::of_caller()?)?;
    let mut runs = control::runs(&state)?;
    if let Some(prefix) = &arguments.run {
        runs = vec![one_of(runs, prefix)?];
    }
    let mut outcomes = Vec::new();
    for run in runs {
        let (done, text) = match control::ask(&state, &run, &ControlRequest::Reload) {
            Ok(ControlResponse::Done { message }) => (true, message),
            Ok(ControlResponse::Refused { reason }) => (false, reason),
            Ok(_) => bail!("the run {run} is of another version"),
            Err(ControlError::Over(_)) => continue,
            Err(error) => (false, error.to_string()),
        };
        if !arguments.json {
            let shown = printable(text.as_bytes());
            match done {
                true => println!("{run}: {shown}"),
                false => crate::show::line(&format!("stockade: {run} keeps its rules: {shown}")),
            }
        }
        outcomes.push((run, done, text));
    }
    if arguments.json {
        let runs: Vec<_> = outcomes
            .iter()
            .map(|(run, done, text)| json!({"run": run, "done": done, "message": text}))
            .collect();
        println!("{}", json!({"version": 1, "runs": runs}));
    } else if outcomes.is_empty() {
        println!("No command is running that has a network.");
    }
    Ok(match outcomes.iter().all(|(_, done, _)| *done) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
