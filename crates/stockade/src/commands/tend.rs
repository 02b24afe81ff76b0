//! `stockade tend`: brings what runs wrote to the disk, makes deep chains of
//! layers short and clears away what killed processes left of others. Not for
//! people: it is started by what makes it due, and nobody waits for it.

use std::path::PathBuf;

use stockade_engine::layers;
use stockade_workspace::flatten::{flatten, is_due};
use stockade_workspace::gc::collect;
use stockade_workspace::settle::reach_disk;
use stockade_workspace::store::Store;

use super::project::{Project, ProjectOptions};
use crate::exit::ExitCode;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The project directory
    #[arg(long, value_name = "DIR")]
    project: PathBuf,
}

/// Runs `stockade tend`.
pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let project = Project::find(&ProjectOptions {
        project: Some(arguments.project.clone()),
        json: false,
    })?;
    reach_disk(&project.store)?;
    if is_due(&project.store)? {
        flatten(&project.store)?;
    }
    collect(&project.store)?;
    Ok(ExitCode::SUCCESS)
}

/// Starts a process that flattens, when that is due. Whatever fails is left to
/// the next time: the chain works as it is.
pub fn in_background(store: &Store) {
    if is_due(store).unwrap_or(false) {
        layers::tend(None, store.workspace());
    }
}
