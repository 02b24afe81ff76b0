//! `stockade learn`: runs a command and prints the smallest network policy
//! that would have sufficed.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;
use stockade_engine::policy_text::{Detail, learned_policy};
use stockade_engine::run::{Finished, Planned, Prepared, Request, Unknown};

use super::options::PolicyOptions;
use super::run::{Voice, attempt, code, create};
use crate::exit::ExitCode;
use crate::show;

/// Run a command and print the network policy that it needs
#[derive(Debug, Default, clap::Args)]
#[command(
    long_about = "Run a command and print the network policy that it needs.\n\n\
        The command runs in a sandbox as with `stockade run`, except that hosts that no rule names \
        are allowed for this run and written down: learn only from commands that you would let \
        reach the network. With --ask each new host is a question first. Cloud metadata services, \
        the loopback and other places beyond any rule stay out of reach, and denied hosts stay \
        denied.\n\n\
        What is printed names exact hosts and ports, never a pattern; add it to a policy file. With \
        --requests it also names methods, paths and git repositories: then the command's TLS ends in the \
        egress process, whose authority the usual tools trust inside. A program that trusts \
        only certificates of its own fails under it, as it would under the printed rules.",
    after_long_help = "Examples:\n  \
        stockade learn -- npm install                  print what it needed\n  \
        stockade learn --ask -- ./unknown-script       decide about each host\n  \
        stockade learn --requests -- ./deploy.sh       methods, paths and repositories too\n  \
        stockade learn --output network.toml -- cargo fetch\n\n\
        Exit code: the command's own, as with `stockade run`."
)]
pub struct Args {
    #[command(flatten)]
    policy: PolicyOptions,
    /// Run in DIR, which must lie in the project
    #[arg(long, short = 'C', value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Ask about each new host instead of allowing it
    #[arg(long)]
    ask: bool,
    /// Also inspect what is asked of each new host, and print its requests
    #[arg(long, conflicts_with = "ask")]
    requests: bool,
    /// Write the policy to FILE instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub fn run(arguments: &Args, prepared: Prepared) -> anyhow::Result<ExitCode> {
    let request = Request {
        argv: arguments.command.clone(),
        directory: arguments.directory.clone(),
        selection: arguments.policy.selection(),
        unknown: match (arguments.ask, arguments.requests) {
            (true, _) => Unknown::Ask,
            (false, true) => Unknown::LearnRequests,
            (false, false) => Unknown::Learn,
        },
        ..Request::default()
    };
    // Opened first: what was learned must not be lost for want of a file.
    let file = arguments
        .output
        .as_deref()
        .map(|path: &Path| create(path).with_context(|| format!("cannot write {}", path.display())))
        .transpose()?;
    let (planned, finished) = attempt(&request, prepared, Voice::Normal)?;
    let detail = match arguments.requests {
        true => Detail::Requests,
        false => Detail::Hosts,
    };
    let text = match arguments.json {
        true => format!("{}\n", json_of(&planned, &finished, detail)),
        false => text_of(&finished, detail),
    };
    match file {
        Some(mut file) => file.write_all(text.as_bytes())?,
        None => std::io::stdout().write_all(text.as_bytes())?,
    }
    Ok(code(finished.outcome.exit_code()))
}

fn text_of(finished: &Finished, detail: Detail) -> String {
    let learned = finished
        .network
        .as_ref()
        .map(|network| learned_policy(&network.learned, detail))
        .unwrap_or_default();
    if learned.is_empty() {
        show::line("stockade: nothing was reached that the policy does not allow already");
    }
    learned
}

fn json_of(planned: &Planned, finished: &Finished, detail: Detail) -> serde_json::Value {
    let network = finished.network.as_ref();
    json!({
        "version": 1,
        "run": finished.outcome.run,
        "plan_digest": planned.digest().to_string(),
        "exit_code": finished.outcome.exit_code(),
        "learned": network.map(|network| &network.learned),
        "denials": network.map(|network| &network.denials),
        "policy": text_of(finished, detail),
    })
}
