//! The one definition of commands and options: help, completions and the man
//! page are generated from it.

use std::ffi::OsString;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use stockade_engine::run::Prepared;

use crate::commands;
use crate::exit::ExitCode;
use crate::show;

/// Stockade itself failed or refused: nothing ran (as documented in `run`).
pub(crate) const EXIT_FAILED: u8 = 125;

/// A containment boundary for commands that an AI agent chose
#[derive(Debug, Parser)]
#[command(
    name = "stockade",
    version,
    about,
    long_about = "A containment boundary for commands that an AI agent chose.\n\n\
        A command inside can write the project and private temporary files, and nothing else. It \
        sees no credential, no other process and no service of this machine; it reaches no host \
        that a policy does not name, and nothing of it outlives the run. Each run proves its guarantees before the command starts; \
        if one cannot be kept, nothing runs.",
    after_long_help = "Start here:\n  \
        stockade run -- npm test          run a command in the project around this directory\n  \
        stockade explain -- npm test      what that command could read, write and reach\n  \
        stockade learn -- npm install     which hosts a command needs, as lines of policy\n  \
        stockade doctor                   what this machine can hold, and what to do about the rest\n\n\
        Policy files, the later below the earlier: /etc/stockade/stockade.toml (organisation),\n\
        ~/.config/stockade/stockade.toml (user), stockade.toml (project). None is needed.",
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(commands::run::Args),
    Shell(commands::shell::Args),
    Start(commands::start::Args),
    Copy(commands::copy::Args),
    Exec(commands::exec::Args),
    List(commands::list::Args),
    Stop(commands::stop::Args),
    Explain(commands::explain::Args),
    Test(commands::test::Args),
    Diff(commands::diff::Args),
    Apply(commands::apply::Args),
    Discard(commands::apply::DiscardArgs),
    Snapshot(commands::snapshot::Args),
    Fork(commands::snapshot::ForkArgs),
    Restore(commands::snapshot::RestoreArgs),
    Doctor(commands::doctor::Args),
    Init(commands::init::Args),
    Trust(commands::trust::Args),
    Untrust(commands::untrust::Args),
    Learn(commands::learn::Args),
    Approvals(commands::approvals::Args),
    Reload(commands::reload::Args),
    Log(commands::log::Args),
    Secret(commands::secret::Args),
    Cache(commands::cache::Args),
    Image(commands::image::Args),
    Vm(commands::vm::Args),
    Gc(commands::gc::Args),
    Completions(commands::generate::CompletionsArgs),
    Man(commands::generate::ManArgs),
    Schema(commands::generate::SchemaArgs),
    /// Run one attack of the corpus, inside a sandbox
    #[command(hide = true, name = "attack-inside")]
    AttackInside(commands::doctor::InsideArgs),
    /// Keep the layers of a project in order; started by what makes it due
    #[command(hide = true)]
    Tend(commands::tend::Args),
    /// Carry the connections of one sandbox; started by `stockade run`
    #[command(hide = true)]
    Egress,
}

/// Parses the arguments of this process, runs the command and returns the exit
/// code.
pub fn main() -> u8 {
    let command = std::env::args_os().nth(1);
    let is = |name: &str| command.as_deref().is_some_and(|command| command == name);
    if is("egress") {
        return commands::egress::run().number();
    }
    let done = if is("run") {
        run()
    } else if is("exec") {
        // As often, and with less to do.
        parsed("exec").map(|arguments| shown(commands::exec::run(&arguments)))
    } else if is("start") {
        // What the supervisor builds here it keeps.
        parsed("start").map(|arguments| shown(commands::start::run(&arguments)))
    } else {
        Cli::try_parse().map(|cli| perform(&cli.command))
    };
    done.unwrap_or_else(|error| explained(&error)).number()
}

/// `stockade run` is what agents call for each command: its own definition is
/// enough for it, and building all the others would take longer than the plan.
fn run() -> Result<ExitCode, clap::Error> {
    let prepared = Prepared::new();
    let arguments = match plain() {
        Some(command) => commands::run::Args::plain(command),
        None => parsed("run")?,
    };
    Ok(shown(commands::run::run(&arguments, prepared)))
}

/// The command of `stockade run -- COMMAND…`, which needs no parser.
fn plain() -> Option<Vec<OsString>> {
    let mut arguments = std::env::args_os().skip(2);
    let command: Vec<OsString> = match arguments.next() {
        Some(separator) if separator == "--" => arguments.collect(),
        _ => return None,
    };
    (!command.is_empty()).then_some(command)
}

/// Reads the arguments of one command without defining the others.
fn parsed<T: Args + FromArgMatches>(name: &'static str) -> Result<T, clap::Error> {
    let definition = clap::Command::new(name)
        .bin_name(format!("stockade {name}"))
        .no_binary_name(true);
    let matches = T::augment_args(definition).try_get_matches_from(std::env::args_os().skip(2))?;
    T::from_arg_matches(&matches)
}

fn perform(command: &Command) -> ExitCode {
    let result = match command {
        Command::Run(arguments) => commands::run::run(arguments, Prepared::new()),
        Command::Shell(arguments) => commands::shell::run(arguments),
        Command::Start(arguments) => commands::start::run(arguments),
        Command::Copy(arguments) => commands::copy::run(arguments),
        Command::Exec(arguments) => commands::exec::run(arguments),
        Command::List(arguments) => commands::list::run(arguments),
        Command::Stop(arguments) => commands::stop::run(arguments),
        Command::Explain(arguments) => commands::explain::run(arguments),
        Command::Test(arguments) => commands::test::run(arguments),
        Command::Diff(arguments) => commands::diff::run(arguments),
        Command::Apply(arguments) => commands::apply::run(arguments),
        Command::Discard(arguments) => commands::apply::discard(arguments),
        Command::Snapshot(arguments) => commands::snapshot::run(arguments),
        Command::Fork(arguments) => commands::snapshot::fork(arguments),
        Command::Restore(arguments) => commands::snapshot::restore(arguments),
        Command::Doctor(arguments) => commands::doctor::run(arguments),
        Command::Init(arguments) => commands::init::run(arguments),
        Command::Trust(arguments) => commands::trust::run(arguments),
        Command::Untrust(arguments) => commands::untrust::run(arguments),
        Command::Learn(arguments) => Prepared::new()
            .map_err(anyhow::Error::from)
            .and_then(|prepared| commands::learn::run(arguments, prepared)),
        Command::Approvals(arguments) => commands::approvals::run(arguments),
        Command::Reload(arguments) => commands::reload::run(arguments),
        Command::Log(arguments) => commands::log::run(arguments),
        Command::Secret(arguments) => commands::secret::run(arguments),
        Command::Cache(arguments) => commands::cache::run(arguments),
        Command::Image(arguments) => commands::image::run(arguments),
        Command::Vm(arguments) => commands::vm::run(arguments),
        Command::Gc(arguments) => commands::gc::run(arguments),
        Command::Completions(arguments) => commands::generate::completions(arguments),
        Command::Man(arguments) => commands::generate::man(arguments),
        Command::Schema(arguments) => commands::generate::schema(arguments),
        Command::AttackInside(arguments) => commands::doctor::inside(arguments),
        Command::Tend(arguments) => commands::tend::run(arguments),
        Command::Egress => Ok(commands::egress::run()),
    };
    shown(result)
}

/// Shows why a command failed, if it did.
fn shown(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        show::error(&error);
        ExitCode::from(EXIT_FAILED)
    })
}

/// Prints help, or what is wrong with the arguments. The latter must not look
/// like the exit code of a command that ran.
fn explained(error: &clap::Error) -> ExitCode {
    // Nobody is there to read it when this fails.
    let _unread = error.print().is_err();
    ExitCode::from(if error.use_stderr() { EXIT_FAILED } else { 0 })
}

/// The definition, for generators.
pub fn definition() -> clap::Command {
    Cli::command()
}
