//! `stockade doctor`: what this machine can hold, and the attacks that show it.

use stockade_policy::plan::{RuntimeKind, Wall};

use crate::exit::ExitCode;

mod attack;
mod conformance;
mod examine;

/// Show what this machine can hold, and what to do about the rest
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show what this machine can hold, and what to do about the rest.\n\n\
        Each ability is tried by system calls, and at the end a sandbox for the policy of this \
        directory is set up to the point where a command would start, and taken down again. \
        With --attack, hostile programs are run in real sandboxes under the default policy, and \
        in one with a way out to three hosts and a credential; a table says of each whether it was \
        stopped.",
    after_long_help = "Examples:\n  \
        stockade doctor\n  \
        stockade doctor --attack\n  \
        stockade doctor --attack --all-walls     which wall holds what, as a table\n  \
        stockade doctor --json | jq '.guarantees[] | select(.status != \"held\")'\n\n\
        Exit code:\n  \
        0  commands can run here; with --attack: no attack escaped\n  \
        1  they cannot, or an attack escaped\n  \
        125  it could not be found out"
)]
pub struct Args {
    /// Run hostile programs inside and show which of them were stopped
    #[arg(long)]
    attack: bool,
    /// Attack the command behind this wall: `process`, `container`, `gvisor` or `microvm`
    #[arg(long, value_name = "WALL", requires = "attack", value_parser = wall)]
    wall: Option<Wall>,
    /// With the wall `container`: made by this OCI runtime, `runc` or `crun`
    #[arg(
        long,
        value_name = "NAME",
        requires = "wall",
        group = "runtimes",
        value_parser = runtime
    )]
    runtime: Option<RuntimeKind>,
    /// An OCI runtime of exactly this version, whatever is known against its number
    #[arg(long, value_name = "VERSION", requires = "runtimes")]
    accept_runtime: Option<String>,
    /// Attack behind every wall, and print which guarantee each of them holds
    #[arg(long, requires = "attack", conflicts_with = "wall", group = "runtimes")]
    all_walls: bool,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

fn wall(word: &str) -> Result<Wall, String> {
    let known = Wall::ALL.into_iter().find(|wall| wall.word() == word);
    known.ok_or_else(|| {
        let words = Wall::ALL.map(Wall::word).join(", ");
        format!("no wall is called that; there are: {words}")
    })
}

fn runtime(word: &str) -> Result<RuntimeKind, String> {
    let mut known = RuntimeKind::ALL.into_iter();
    let found = known.find(|kind| kind.word() == word);
    found.ok_or_else(|| "no OCI runtime that can be used is called that".to_owned())
}

/// Arguments of the hidden command that is the corpus inside.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct InsideArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Examines the machine, or attacks.
pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let format = if arguments.json {
        Format::Json
    } else {
        Format::Text
    };
    if arguments.all_walls {
        conformance::run(format, arguments.accept_runtime.as_deref())
    } else if arguments.attack {
        let behind = attack::Behind {
            wall: arguments.wall.unwrap_or(Wall::Process),
            runtime: arguments.runtime,
            accepted: arguments.accept_runtime.clone(),
        };
        attack::run(format, &behind)
    } else {
        examine::run(format)
    }
}

/// Runs attacks; this process is inside a sandbox.
pub fn inside(arguments: &InsideArgs) -> anyhow::Result<ExitCode> {
    std::process::exit(stockade_attacks::inside(&arguments.arguments))
}

/// How findings are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Json,
}

/// Prints findings. A reader who went away, as in `stockade doctor | head`, is
/// no failure.
fn print(text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}
