//! `stockade untrust`: takes the trust in a project's policy file back.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Context;
use stockade_engine::discover::POLICY_FILE_NAME;
use stockade_engine::events::untrusted;
use stockade_engine::log::Log;
use stockade_engine::state::{Places, StateDirectory};
use stockade_engine::trust::{list, untrust};
use stockade_policy::path::AbsolutePath;

use super::trust::{resolve, start_directory};
use crate::exit::ExitCode;

/// Take the trust in a project's stockade.toml back
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Take the trust in a project's stockade.toml back.\n\n\
        From the next run on the file can only take rights away. The file itself is not touched, \
        and need not exist any more. `stockade trust --list` shows what is trusted.",
    after_long_help = "Examples:\n  \
        stockade untrust                  the policy of this directory or the nearest above it\n  \
        stockade untrust ~/work/site      of that project\n\n\
        Exit code: 0, or 1 when nothing there was trusted."
)]
pub struct Args {
    /// The project directory or its stockade.toml [default: this project]
    path: Option<PathBuf>,
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let state = StateDirectory::open(&Places::of_caller()?)?;
    let start = start_directory(arguments.path.as_deref())?;
    let start = resolve(&start).or_else(|_| lexical(&start))?;
    // A named path means that file alone, no path the nearest one upwards.
    let search = if arguments.path.is_some() {
        Search::Here
    } else {
        Search::Upwards
    };
    let Some(path) = trusted_file(&state, start.clone(), search)? else {
        eprintln!("No trusted {POLICY_FILE_NAME} belongs to {start}.");
        return Ok(ExitCode::FAILURE);
    };
    if let Some(sha256) = untrust(&state, &path)? {
        Log::open(&state)?.append(None, &[untrusted(&path, sha256)], SystemTime::now())?;
    }
    println!("No longer trusted: {path}");
    Ok(ExitCode::SUCCESS)
}

#[derive(Clone, Copy)]
enum Search {
    Here,
    Upwards,
}

fn trusted_file(
    state: &StateDirectory,
    start: AbsolutePath,
    search: Search,
) -> anyhow::Result<Option<AbsolutePath>> {
    let entries = list(state)?;
    let mut next = Some(start);
    while let Some(directory) = next {
        let path = directory.join(POLICY_FILE_NAME)?;
        if entries.iter().any(|entry| entry.path == path) {
            return Ok(Some(path));
        }
        next = match search {
            Search::Here => None,
            Search::Upwards => directory.parent(),
        };
    }
    Ok(None)
}

/// For a directory that no longer exists.
fn lexical(path: &Path) -> anyhow::Result<AbsolutePath> {
    use std::os::unix::ffi::OsStrExt;
    AbsolutePath::parse(path.as_os_str().as_bytes())
        .with_context(|| format!("cannot use {}", path.display()))
}
