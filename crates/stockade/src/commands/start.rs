//! `stockade start`: makes a sandbox that stays.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use serde_json::json;
use stockade_engine::notice::Notices;
use stockade_engine::run::{Prepared, Request, plan_to_run, stay};
use stockade_engine::sandboxes::Name;
use stockade_engine::sandboxes::call::stop;
use stockade_engine::sandboxes::detach::{Announcement, Detached, detach};
use stockade_engine::sandboxes::host::Hosting;
use stockade_engine::sandboxes::pool::{Successor, write_failure};
use stockade_engine::sandboxes::registry::{Joined, Pool, Registry, Reserved};
use stockade_engine::state::{Places, StateDirectory};

use super::options::PolicyOptions;
use crate::exit::ExitCode;
use crate::show;

/// How a plan and the log name what is run in a sandbox that stays.
const COMMAND: &str = "stockade-agent";
/// Most sandboxes of one pool.
const POOL_MAX: i64 = 64;

/// Start a sandbox that stays, for many commands
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Start a sandbox that stays, for many commands.\n\n\
        It is a sandbox like that of `stockade run`, under the same policy and limits, but it ends \
        only with `stockade stop`, at its wall-time limit, or when its supervisor is killed. \
        Commands are started in it with `stockade exec`; they share its files, processes and \
        network, and none of them is confined less than the first. Limits are those of all \
        commands together.\n\n\
        The name of the sandbox is printed once commands can be started in it.\n\n\
        With --pool N it is N sandboxes that wait, each for one command: `stockade exec NAME` takes \
        one, which nobody used before, and another takes its place. So each command has a sandbox \
        of its own and waits for no start, behind any wall. A place in the pool costs what an idle \
        sandbox costs. A policy that changed counts for those that are started after it did.",
    after_long_help = "Examples:\n  \
        stockade start --name web --publish 3000\n  \
        stockade exec web -- npm ci\n  \
        stockade exec -t web -- bash\n  \
        stockade stop web\n  \
        stockade start --name tests --pool 2 --wall microvm\n  \
        stockade exec tests -- npm test               in a machine of its own\n\n\
        Exit code: 0, or 125 when there is no sandbox; then nothing is left of it."
)]
pub struct Args {
    /// Name of the sandbox: lower-case letters, digits and hyphens; made up
    /// when left out
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    name: Option<Name>,
    /// Keep N sandboxes ready, each for one command
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=POOL_MAX))]
    pool: Option<u32>,
    /// Of which pool another sandbox is started, by its id
    #[arg(long, value_name = "ID", hide = true, requires_all = ["pool", "name"])]
    successor: Option<String>,
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

/// Detaches a supervisor, or those of a pool, and says what became of it.
pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let name = match arguments.pool {
        Some(size) => match fill(arguments, size)? {
            Filled::Supervised(code) => return Ok(code),
            Filled::Full(name) => name,
            Filled::Failed => return Ok(ExitCode::from(crate::cli::EXIT_FAILED)),
        },
        None => match detach().context("cannot make the supervisor")? {
            Detached::Supervisor(announcement) => return supervise(arguments, announcement, None),
            Detached::Caller(waiting) => match waiting.wait(&mut std::io::stderr())? {
                Some(name) => name,
                None => return Ok(ExitCode::from(crate::cli::EXIT_FAILED)),
            },
        },
    };
    let text = match (arguments.json, arguments.pool) {
        (true, Some(size)) => json!({"version": 1, "name": name, "pool": size}).to_string(),
        (true, None) => json!({"version": 1, "name": name}).to_string(),
        (false, _) => name.to_string(),
    };
    writeln!(std::io::stdout(), "{text}")
        .with_context(|| format!("cannot say that the sandbox {name} stands"))?;
    Ok(ExitCode::SUCCESS)
}

/// What became of a pool.
enum Filled {
    /// This was one of its supervisors, and its sandbox is over.
    Supervised(ExitCode),
    Full(Name),
    /// A sandbox did not stand; it has said why.
    Failed,
}

/// Starts sandboxes until the pool has as many as it wants, one after the other:
/// the first may save what the others go on from.
fn fill(arguments: &Args, size: u32) -> anyhow::Result<Filled> {
    let registry = registry()?;
    let founded = match (&arguments.successor, &arguments.name) {
        (Some(id), Some(name)) => Err(Pool {
            name: name.clone(),
            id: id.clone(),
        }),
        (_, name) => Ok(registry.found(name.clone(), size)?),
    };
    let pool = match &founded {
        Ok(founded) => founded.which(),
        Err(pool) => pool,
    };
    while registry.wants(pool)? {
        match detach().context("cannot make the supervisor")? {
            Detached::Supervisor(announcement) => {
                let pool = pool.clone();
                // Their descriptors are closed here, and are the caller's still.
                std::mem::forget((founded, registry));
                let code = supervise(arguments, announcement, Some(&pool))?;
                return Ok(Filled::Supervised(code));
            }
            Detached::Caller(waiting) => {
                let mut words = Vec::new();
                let stands = match founded {
                    Ok(_) => waiting.wait(&mut std::io::stderr()),
                    Err(_) => waiting.wait(&mut words),
                };
                // One that does not stand may be one too many.
                if stands?.is_some() || !registry.wants(pool)? {
                    continue;
                }
                match founded {
                    Ok(_) => drop(stop(&registry, &pool.name)?),
                    Err(_) => {
                        write_failure(&StateDirectory::open(&Places::of_caller()?)?, pool, &words)?
                    }
                }
                return Ok(Filled::Failed);
            }
        }
    }
    Ok(Filled::Full(pool.name.clone()))
}

fn registry() -> anyhow::Result<Registry> {
    let state = StateDirectory::open(&Places::of_caller()?)?;
    Ok(Registry::open(&state)?)
}

/// A name for the sandbox, and what makes the next one of its pool; `None` when
/// the pool wants none.
fn reserve(
    arguments: &Args,
    pool: Option<&Pool>,
) -> anyhow::Result<Option<(Box<Reserved>, Option<Successor>)>> {
    let registry = registry()?;
    let Some(pool) = pool else {
        let reserved = registry.reserve(arguments.name.clone())?;
        return Ok(Some((Box::new(reserved), None)));
    };
    let Joined::Member(reserved) = registry.join(pool)? else {
        return Ok(None);
    };
    let mut own: Vec<OsString> = std::env::args_os().skip(1).collect();
    if arguments.name.is_none() {
        own.extend(["--name", pool.name.as_str()].map(OsString::from));
    }
    if arguments.successor.is_none() {
        own.extend(["--successor", &pool.id].map(OsString::from));
    }
    Ok(Some((reserved, Some(Successor::new(own)))))
}

/// The supervisor, until the sandbox is over.
fn supervise(
    arguments: &Args,
    announcement: Announcement,
    pool: Option<&Pool>,
) -> anyhow::Result<ExitCode> {
    let mut prepared = Prepared::detached()?;
    let Some((reserved, successor)) = reserve(arguments, pool)? else {
        return Ok(ExitCode::SUCCESS);
    };
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
        successor,
    };
    stay(&request, &planned, prepared, hosting)?;
    Ok(ExitCode::SUCCESS)
}
