//! `stockade shell`: an interactive shell in a sandbox.

use std::ffi::OsString;

use stockade_engine::run::{Prepared, Request};

use super::options::PolicyOptions;
use super::run::{Voice, perform};
use crate::exit::ExitCode;

/// Open a shell in a fresh sandbox
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Open a shell in a fresh sandbox, to look around as a command would.\n\n\
        Runs the shell named by $SHELL, else /bin/sh. Everything ends when the shell ends.",
    after_long_help = "Examples:\n  \
        stockade shell\n  \
        stockade shell --read toolchains --memory 4GiB"
)]
pub struct Args {
    #[command(flatten)]
    policy: PolicyOptions,
}

/// Runs the shell and returns its exit code.
pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let shell = std::env::var_os("SHELL")
        .filter(|shell| shell.as_encoded_bytes().starts_with(b"/"))
        .unwrap_or_else(|| OsString::from("/bin/sh"));
    let request = Request {
        argv: vec![shell],
        directory: None,
        selection: arguments.policy.selection(),
        ..Request::default()
    };
    perform(&request, Prepared::new(), None, Voice::Normal)
}
