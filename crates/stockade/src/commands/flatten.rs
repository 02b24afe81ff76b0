//! `stockade flatten`: makes deep chains of layers short. Not for people: it is
//! started by what makes a chain deeper, and nobody waits for it.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use stockade_workspace::flatten::{flatten, is_due};
use stockade_workspace::store::Store;

use super::project::{Project, ProjectOptions};
use crate::exit::ExitCode;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The project directory
    #[arg(long, value_name = "DIR")]
    project: PathBuf,
}

/// Runs `stockade flatten`.
pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let project = Project::find(&ProjectOptions {
        project: Some(arguments.project.clone()),
        json: false,
    })?;
    flatten(&project.store)?;
    Ok(ExitCode::SUCCESS)
}

/// Starts a process that flattens, when that is due. Whatever fails is left to
/// the next time: the chain works as it is.
pub fn in_background(store: &Store) {
    if !is_due(store).unwrap_or(false) {
        return;
    }
    // In a group of its own, so that no key of the terminal ends it.
    let spawned = Command::new("/proc/self/exe")
        .arg("flatten")
        .arg("--project")
        .arg(store.workspace().as_path())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    drop(spawned);
}
