//! `stockade doctor`: what this machine can hold.

use std::process::ExitCode;

/// Show what this machine can hold, and what to do about the rest
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Run attacks inside a sandbox
#[derive(Debug, clap::Args)]
pub struct InsideArgs {
    arguments: Vec<String>,
}

pub fn run(_: &Args) -> anyhow::Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}

pub fn inside(_: &InsideArgs) -> anyhow::Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
