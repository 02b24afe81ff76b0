//! `stockade exec`: runs a command in a sandbox that stays.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::bail;
use stockade_engine::outcome::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND};
use stockade_engine::sandboxes::Name;
use stockade_engine::sandboxes::exec::{Command, Done, OfPool, exec, input_is_terminal};
use stockade_engine::sandboxes::registry::Registry;
use stockade_engine::state::{Places, StateDirectory};
use stockade_policy::path::printable;

use super::run::code;
use super::start::parse_name;
use crate::exit::ExitCode;
use crate::show;

/// Run a command in a sandbox that stays
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Run a command in a sandbox that `stockade start` made.\n\n\
        The command is started inside, and is confined as everything there is. Standard input, \
        output and error, and signals, are passed on; what it leaves in the background goes on \
        until the sandbox ends. When this process is killed, the command is hung up, and killed \
        if it goes on. 64 commands can run at one time.\n\n\
        With the name of a pool (`stockade start --pool`) the command gets a sandbox of its own, \
        which nobody used before and of which nothing is left when it ends; another one takes its \
        place in the pool.",
    after_long_help = "Examples:\n  \
        stockade exec web -- npm test\n  \
        stockade exec -t web -- bash                  on a terminal of its own\n  \
        stockade exec --env CI=1 --cwd packages/a web -- make\n\n\
        Exit code:\n  \
        the command's own; 128+n when signal n ended it;\n  \
        124  the wall-time limit ended the sandbox\n  \
        125  there is no such sandbox, or it refused: nothing ran\n  \
        126  the command was found and could not be executed\n  \
        127  the command was not found\n  \
        137  the sandbox ended before the command did"
)]
pub struct Args {
    /// On a terminal of its own, as for a shell
    #[arg(long = "tty", short)]
    terminal: bool,
    /// Set a variable for this command
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<OsString>,
    /// Run in DIR, a path inside; else where the sandbox was started
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Name of the sandbox, or of a pool
    #[arg(value_parser = parse_name)]
    name: Name,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command and returns its exit code.
pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    if arguments.terminal && !input_is_terminal() {
        bail!(
            "--tty needs a terminal as standard input\n  remedy: leave it out; output is then \
             passed on as it is"
        );
    }
    let state = StateDirectory::open(&Places::of_caller()?)?;
    let registry = Registry::open(&state)?;
    let mut command = Command {
        argv: arguments.command.clone(),
        variables: arguments.env.clone(),
        directory: arguments.cwd.clone(),
        terminal: arguments.terminal,
    };
    if arguments.terminal
        && let Some(kind) = std::env::var_os("TERM")
    {
        // What keys and screen speak is a matter of this terminal.
        let mut variable = OsString::from("TERM=");
        variable.push(kind);
        command.variables.insert(0, variable);
    }
    let (done, of_pool) = exec(&registry, &arguments.name, &command)?;
    let number = done.exit_code();
    match &done {
        Done::Ended(_) => {}
        Done::Failed { errno, reason } => {
            show::line(&failed(arguments, number, *errno, reason));
        }
        Done::Over { reason, .. } => show::line(&format!(
            "stockade: the sandbox {} ended before the command did: {}",
            arguments.name,
            printable(reason.as_bytes())
        )),
    }
    if let Some(OfPool { run, waits: true }) = of_pool {
        show::line(&format!(
            "stockade: what it changed in the workspace, if anything, waits: `stockade diff {run}`"
        ));
    }
    Ok(code(number))
}

fn failed(arguments: &Args, number: i32, errno: i32, reason: &str) -> String {
    let name = arguments.command.first();
    let name = name.map(|name| printable(name.as_encoded_bytes()));
    let name = name.unwrap_or_default();
    let error = std::io::Error::from_raw_os_error(errno);
    match number {
        EXIT_NOT_FOUND => format!("stockade: the command {name:?} was not found inside"),
        EXIT_NOT_EXECUTABLE => {
            format!("stockade: the command {name:?} cannot be executed: {error}")
        }
        _ => format!(
            "stockade: {}: {error}\nstockade: nothing was run",
            printable(reason.as_bytes())
        ),
    }
}
