//! `stockade snapshot`, `fork` and `restore`: states of the project that can
//! be gone back to.

use serde_json::json;
use stockade_policy::path::printable;
use stockade_workspace::restore;
use stockade_workspace::store::directory::random_name;

use super::project::{Project, ProjectOptions, print_json};
use super::tend;
use crate::exit::ExitCode;
use crate::show;

/// Remember the project, or what a waiting run shows of it
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Remember the project as it is, or as a waiting run shows it. Costs the same whatever the \
        size: no file is copied. What is applied to the project later keeps its old versions for it.",
    after_long_help = "Examples:\n  \
        stockade snapshot before              the project as it is\n  \
        stockade snapshot tried --of RUN      what a waiting run shows\n  \
        stockade run --on tried -- make       go on from it, in review mode\n  \
        stockade restore before               give it back exactly"
)]
pub struct Args {
    #[command(flatten)]
    project: ProjectOptions,
    /// The waiting run to remember; it goes on on top
    #[arg(long, value_name = "RUN")]
    of: Option<String>,
    /// List the snapshots
    #[arg(long, conflicts_with_all = ["of", "delete"])]
    list: bool,
    /// Remove the snapshot
    #[arg(long, requires = "name")]
    delete: bool,
    /// Its name; one is made up when there is none
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

/// Runs `stockade snapshot`.
pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let project = Project::find(&arguments.project)?;
    let store = &project.store;
    if arguments.list {
        return list(&project, arguments.project.json);
    }
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None => format!("s-{}", random_name()?),
    };
    if arguments.delete {
        store.delete_snapshot(&name)?;
        let line = format!("snapshot {} is deleted", printable(name.as_bytes()));
        return said(&arguments.project, "deleted", &name, &line);
    }
    let snapshot = store.take_snapshot(&name, arguments.of.as_deref())?;
    tend::in_background(store);
    let line = format!("snapshot {} is taken", snapshot.name);
    said(&arguments.project, "taken", &snapshot.name, &line)
}

fn said(options: &ProjectOptions, state: &str, name: &str, line: &str) -> anyhow::Result<ExitCode> {
    match options.json {
        true => print_json(&json!({ "version": 1, "name": name, "state": state }))?,
        false => show::line(&format!("stockade: {line}")),
    }
    Ok(ExitCode::from(0))
}

fn list(project: &Project, as_json: bool) -> anyhow::Result<ExitCode> {
    let snapshots = project.store.snapshots()?;
    if as_json {
        print_json(&json!({ "version": 1, "snapshots": snapshots }))?;
        return Ok(ExitCode::from(0));
    }
    if snapshots.is_empty() {
        println!("there are no snapshots");
    }
    for snapshot in snapshots {
        println!("{}  on {} layers", snapshot.name, snapshot.layers.len());
    }
    Ok(ExitCode::from(0))
}

/// Make a waiting run that begins with a snapshot
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  \
        stockade fork before try-1\n  \
        stockade run --on try-1 -- make\n  \
        stockade diff try-1")]
pub struct ForkArgs {
    #[command(flatten)]
    project: ProjectOptions,
    /// The snapshot
    #[arg(value_name = "SNAPSHOT")]
    snapshot: String,
    /// Name of the fork
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

/// Runs `stockade fork`.
pub fn fork(arguments: &ForkArgs) -> anyhow::Result<ExitCode> {
    let project = Project::find(&arguments.project)?;
    let run = project
        .store
        .fork(&arguments.snapshot, arguments.name.as_deref())?;
    let meta = run.meta();
    let name = meta.name.as_ref().unwrap_or(&meta.id);
    let line = format!("fork {name} is made: `stockade run --on {name} -- COMMAND` works in it");
    said(&arguments.project, "made", name, &line)
}

/// Give the project, or a fork, back as a snapshot saw it
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Give the project back exactly as a snapshot saw it: contents, modes, times, links and \
        attributes. Where something else than `stockade apply` changed the project since, nothing is \
        done and the paths are listed. After an interruption the same command goes on."
)]
pub struct RestoreArgs {
    #[command(flatten)]
    project: ProjectOptions,
    /// The snapshot
    #[arg(value_name = "SNAPSHOT")]
    snapshot: String,
    /// Reset this fork instead of the project
    #[arg(long = "in", value_name = "FORK")]
    inside: Option<String>,
}

/// Runs `stockade restore`.
pub fn restore(arguments: &RestoreArgs) -> anyhow::Result<ExitCode> {
    let project = Project::find(&arguments.project)?;
    let name = &arguments.snapshot;
    let line = match &arguments.inside {
        Some(fork) => {
            project.store.reset_run(fork, name)?;
            format!("{} is as {name} again", printable(fork.as_bytes()))
        }
        None => {
            let outcome = restore::restore(&project.store, name, &|_, _| {})?;
            tend::in_background(&project.store);
            format!(
                "the project is as {name} again: {} paths were put back",
                outcome.applied.len()
            )
        }
    };
    said(&arguments.project, "restored", name, &line)
}
