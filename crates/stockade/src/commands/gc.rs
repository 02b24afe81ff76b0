//! `stockade gc`: clears away what killed processes left behind.

use serde_json::json;
use stockade_engine::gc;
use stockade_engine::state::{Places, StateDirectory};

use crate::exit::ExitCode;

/// Clear away what killed processes left behind
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Clear away what killed processes left behind: half-made layers and those of \
        runs in discard mode, interrupted imports of images, machines that another QEMU saved, control groups and sockets.\n\n\
        Every run does the same for what it meets, so this is needed only to see that nothing is \
        left, or to have the room at once. What is in use, waits for you or is a snapshot stays.",
    after_long_help = "Examples:\n  \
        stockade gc --dry-run     what would be removed\n  \
        stockade gc"
)]
pub struct Args {
    /// Only list what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let state = StateDirectory::open(&Places::of_caller()?)?;
    let found = match arguments.dry_run {
        true => gc::find(&state)?,
        false => gc::clear(&state)?,
    };
    if arguments.json {
        let list: Vec<_> = found
            .iter()
            .map(|one| json!({"kind": one.kind, "place": one.place}))
            .collect();
        println!(
            "{}",
            json!({"version": 1, "dry_run": arguments.dry_run, "found": list})
        );
        return Ok(ExitCode::SUCCESS);
    }
    let verb = match arguments.dry_run {
        true => "would remove",
        false => "removed",
    };
    for one in &found {
        println!("{verb}: {} {}", one.kind, one.place);
    }
    if found.is_empty() {
        println!("Nothing is left behind.");
    }
    Ok(ExitCode::SUCCESS)
}
