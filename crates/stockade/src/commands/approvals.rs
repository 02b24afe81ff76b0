//! `stockade approvals`: answers what runs ask about, from another terminal,
//! and what they left that would run later.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::json;
use stockade_engine::control::{
    self, Choice, ControlError, ControlRequest, ControlResponse, HeldRequest,
};
use stockade_engine::events::RunId;
use stockade_engine::policy_text::KEPT_FOR_MAX;
use stockade_engine::state::{Places, StateDirectory};
use stockade_engine::way_out::ask_name;
use stockade_policy::path::printable;

use super::holds;
use crate::exit::ExitCode;

/// Show and answer what commands want to reach, and what is held of what they wrote
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show and answer what commands want to reach, and what is held of what they wrote.\n\n\
        With `approval.network = \"ask\"` a connection to a host that no rule names is held for \
        at most a minute while you decide. A run on a terminal asks there; every run can be \
        answered here. What is shown of the command comes from inside the sandbox and is not \
        verified; the destination is. Cloud metadata services, the loopback and other places \
        beyond any rule are never asked about.\n\n\
        What a run writes to a guarded name (git hooks, CI steps, editor tasks, agent \
        configuration) would run later, outside. It is held: the run goes on, the project is as it \
        was, and here you put it in place or throw it away, now or later.",
    after_long_help = "Examples:\n  \
        stockade approvals                            what is waiting now\n  \
        stockade approvals allow 3f9k2m7x0abc-4       let this one request through\n  \
        stockade approvals allow 3f9k-4 --run         this destination until the run ends\n  \
        stockade approvals allow 3f9k-4 --always --for 7d\n                                                \
        in every run, as a rule with expiry in your own policy file\n  \
        stockade approvals deny 3f9k-4                do not ask again in this run\n  \
        stockade approvals show 3f9k-h1               what a run wrote to a guarded name\n  \
        stockade approvals allow 3f9k-h1              put it in place\n  \
        stockade approvals deny 3f9k-h1               throw it away\n\n\
        Exit code: 0, or 1 when nobody waited for the answer any more."
)]
pub struct Args {
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show what is waiting for an answer
    List,
    /// Let a waiting request through
    Allow {
        /// As `stockade approvals` shows it; the beginning of the run's id is enough
        id: String,
        /// Also later requests to this destination, until the run ends
        #[arg(long, conflicts_with = "always")]
        run: bool,
        /// In every run: written to your own policy file, with expiry
        #[arg(long)]
        always: bool,
        /// How long the rule of --always holds, at most a year
        #[arg(
            long = "for",
            value_name = "TIME",
            requires = "always",
            default_value = "30d"
        )]
        lifetime: String,
        /// Put a held file in place although the one in the project changed
        #[arg(long)]
        force: bool,
    },
    /// Show what is held of what a run wrote
    Show {
        /// As `stockade approvals` shows it
        id: String,
    },
    /// Refuse a waiting request, and all later ones to it in this run
    Deny {
        /// As `stockade approvals` shows it
        id: String,
    },
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let state = StateDirectory::open(&Places::of_caller()?)?;
    match &arguments.action {
        None | Some(Action::List) => list(&state, arguments.json),
        Some(Action::Allow {
            id,
            run,
            always,
            lifetime,
            force,
        }) => {
            if holds::is_hold(id) {
                return holds::answer(&state, id, true, *force, arguments.json);
            }
            let choice = match (run, always) {
                (_, true) => Choice::Always,
                (true, false) => Choice::Run,
                (false, false) => Choice::Once,
            };
            answer(&state, id, choice, Some(seconds(lifetime)?), arguments.json)
        }
        Some(Action::Show { id }) => holds::show(&state, id),
        Some(Action::Deny { id }) if holds::is_hold(id) => {
            holds::answer(&state, id, false, false, arguments.json)
        }
        Some(Action::Deny { id }) => answer(&state, id, Choice::Deny, None, arguments.json),
    }
}

fn seconds(text: &str) -> anyhow::Result<u64> {
    let lifetime: Duration = humantime::parse_duration(text)
        .with_context(|| format!("`{}` is no time, such as 30d", printable(text.as_bytes())))?;
    if lifetime > KEPT_FOR_MAX {
        bail!("a rule for more than a year belongs into a policy file by hand");
    }
    Ok(lifetime.as_secs())
}

/// What all runs wait for. A run that ends meanwhile has nothing to show.
fn list(state: &StateDirectory, as_json: bool) -> anyhow::Result<ExitCode> {
    let mut waiting = Vec::new();
    for run in control::runs(state)? {
        match control::ask(state, &run, &ControlRequest::List) {
            Ok(ControlResponse::Held { held }) => {
                waiting.extend(held.into_iter().map(|held| (run.clone(), held)));
            }
            Ok(_) | Err(ControlError::Over(_)) => {}
            Err(error) => crate::show::line(&format!("stockade: {error}")),
        }
    }
    let held = holds::all(state)?;
    let mut output = io::stdout().lock();
    if as_json {
        let waiting: Vec<_> = waiting
            .iter()
            .map(|(run, held)| {
                let id = ask_name(run, held.ask);
                json!({"id": id, "run": run, "held": held})
            })
            .collect();
        let held: Vec<_> = held.iter().map(holds::value).collect();
        let value = json!({"version": 1, "waiting": waiting, "holds": held});
        writeln!(output, "{value}")?;
    } else if waiting.is_empty() && held.is_empty() {
        writeln!(output, "Nothing is waiting for an answer.")?;
    } else {
        waiting.sort_by(|(_, one), (_, other)| one.domain.cmp(&other.domain));
        let mut domain = None;
        for (run, held) in &waiting {
            if domain != Some(&held.domain) {
                writeln!(output, "{}", printable(held.domain.as_bytes()))?;
                domain = Some(&held.domain);
            }
            write!(output, "{}", row(run, held))?;
        }
        if !held.is_empty() {
            writeln!(output, "Held, until you allow or deny it:")?;
        }
        for meta in &held {
            write!(output, "{}", holds::row(meta))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn row(run: &RunId, held: &HeldRequest) -> String {
    let mut text = format!(
        "  {:<20} {} {}  waiting {} s\n",
        ask_name(run, held.ask),
        held.destination,
        held.request.as_deref().unwrap_or_default(),
        held.held_ms / 1000,
    );
    if let Some(command) = &held.command {
        text.push_str(&format!(
            "  {:<20} asked by, in its own words, not verified: {command}\n",
            ""
        ));
    }
    // The run's answer is printable already; a foreign socket's need not be.
    text.lines()
        .map(|line| format!("{}\n", printable(line.as_bytes())))
        .collect()
}

fn answer(
    state: &StateDirectory,
    id: &str,
    choice: Choice,
    lifetime_s: Option<u64>,
    as_json: bool,
) -> anyhow::Result<ExitCode> {
    let (run, ask) = find(state, id)?;
    let request = ControlRequest::Answer {
        ask,
        choice,
        lifetime_s,
    };
    let (done, text) = match control::ask(state, &run, &request) {
        Ok(ControlResponse::Done { message }) => (true, message),
        Ok(ControlResponse::Refused { reason }) => (false, reason),
        Ok(_) => bail!("the run {run} is of another version"),
        Err(ControlError::Over(run)) => (false, format!("the run {run} is over")),
        Err(error) => return Err(error.into()),
    };
    if as_json {
        println!("{}", json!({"version": 1, "done": done, "message": text}));
    } else if done {
        println!("{}", printable(text.as_bytes()));
    } else {
        crate::show::line(&format!("stockade: {}", printable(text.as_bytes())));
    }
    Ok(match done {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The run and the number that `RUN-NUMBER` names.
fn find(state: &StateDirectory, id: &str) -> anyhow::Result<(RunId, u64)> {
    let shown = printable(id.as_bytes());
    let Some((prefix, number)) = id.rsplit_once('-') else {
        bail!("`{shown}` is no id of a waiting request\n  remedy: `stockade approvals` shows them");
    };
    let number = number
        .parse()
        .with_context(|| format!("`{shown}` is no id of a waiting request"))?;
    let runs = control::runs(state)?;
    Ok((one_of(runs, prefix)?, number))
}

/// The only run whose id starts so.
pub fn one_of(runs: Vec<RunId>, prefix: &str) -> anyhow::Result<RunId> {
    let mut fitting = runs
        .into_iter()
        .filter(|run| run.as_str().starts_with(prefix));
    let shown = printable(prefix.as_bytes());
    match (fitting.next(), fitting.next()) {
        (Some(run), None) => Ok(run),
        (Some(_), Some(_)) => bail!("several runs have an id that starts with `{shown}`"),
        _ => bail!("no run with a network has an id that starts with `{shown}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_named_by_the_beginning_of_its_id() {
        let runs = || vec![RunId::from_random(1), RunId::from_random(2)];
        assert_eq!(one_of(runs(), "1").unwrap(), RunId::from_random(1));
        assert!(one_of(runs(), "").is_err());
        assert!(one_of(runs(), "z").is_err());
    }

    #[test]
    fn what_comes_from_inside_stays_on_its_line() {
        let held = HeldRequest {
            ask: 1,
            domain: "a.test".into(),
            destination: "a.test:443".into(),
            entry: "connect".into(),
            request: None,
            process: Some(1),
            command: Some("curl\u{1b}[2J".into()),
            held_ms: 2500,
        };
        let row = row(&RunId::from_random(0), &held);
        assert_eq!(row.lines().count(), 2);
        assert!(
            row.contains("waiting 2 s") && !row.contains('\u{1b}'),
            "{row}"
        );
    }
}
