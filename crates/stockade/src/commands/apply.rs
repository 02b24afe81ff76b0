//! `stockade apply` and `stockade discard`: settle what a run in review mode
//! changed.

use std::ffi::OsString;

use serde_json::json;
use stockade_policy::guard::Guard;
use stockade_policy::path::printable;
use stockade_workspace::apply::OnConflict;
use stockade_workspace::change::Change;
use stockade_workspace::run_dir::Run;
use stockade_workspace::settle::{Applied, apply_run, discard_run, is_interrupted};
use stockade_workspace::store::Store;

use super::diff::is_named;
use super::project::{Project, ProjectOptions, Waiting, print_json};
use super::tend;
use crate::exit::ExitCode;
use crate::show;

/// Exit code when something still waits.
const EXIT_LEFT: u8 = 1;

/// Bring what a run in review mode changed into the project
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Bring what a run in review mode changed into the project: everything, or only the named \
        paths. Each file is replaced as a whole. When the project changed underneath, nothing is applied \
        and the paths are listed. Held changes (`stockade diff` says which and why) are applied only \
        with --held or when their path is named. After an interruption the same command goes on.",
    after_long_help = "Examples:\n  \
        stockade apply                     all but what is held, of the latest run\n  \
        stockade apply --held              everything\n  \
        stockade apply src                 what is below src\n  \
        stockade apply .git/hooks/x        this one, although it is held\n\n\
        Exit code: 0 when nothing waits any more, 1 when something does, 125 when nothing was applied"
)]
pub struct Args {
    #[command(flatten)]
    project: ProjectOptions,
    /// Also what is held
    #[arg(long)]
    held: bool,
    /// All but what is held (the default)
    #[arg(long, conflicts_with = "held")]
    all_but_held: bool,
    /// Apply the rest when some paths changed underneath
    #[arg(long)]
    skip_conflicts: bool,
    /// Also a run of which a crash of the machine may have lost a part
    #[arg(long)]
    incomplete: bool,
    /// A waiting run (the latest when none is named), then paths
    #[arg(value_name = "RUN|PATH")]
    arguments: Vec<OsString>,
}

/// Which changes are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    AllButHeld,
    All,
}

/// Runs `stockade apply`.
pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let project = Project::find(&arguments.project)?;
    let (run, paths) = project.run_and_paths(&arguments.arguments)?;
    let id = run.meta().id.clone();
    let choice = match arguments.held {
        true => Choice::All,
        false => Choice::AllButHeld,
    };
    if !arguments.incomplete {
        run.check_whole()?;
    }
    let on_conflict = match arguments.skip_conflicts {
        true => OnConflict::Skip,
        false => OnConflict::Refuse,
    };
    let applied = apply(
        &project.store,
        &project.loaded.policy.guard,
        run,
        choice,
        &paths,
        on_conflict,
    )?;
    if arguments.project.json {
        let text = |path: &Vec<u8>| printable(path);
        print_json(&json!({
            "version": 1,
            "run": id,
            "applied": applied.outcome.applied.iter().map(text).collect::<Vec<_>>(),
            "conflicts": applied.outcome.conflicts,
            "left": applied.left,
        }))?;
    } else {
        say(&id, &applied);
    }
    Ok(ExitCode::from(match applied.left {
        0 => 0,
        _ => EXIT_LEFT,
    }))
}

/// Applies a choice of a run's changes; an interrupted apply is finished
/// instead.
pub fn apply(
    store: &Store,
    guard: &Guard,
    mut run: Run,
    choice: Choice,
    paths: &[Vec<u8>],
    on_conflict: OnConflict,
) -> anyhow::Result<Applied> {
    // First: what a command writes between this look and the apply would not
    // be known to be held.
    run.take()?;
    let held: Vec<Vec<u8>> = match is_interrupted(&run)? {
        true => Vec::new(),
        false => Waiting::of(store, guard, &run)?
            .held_paths()
            .into_iter()
            .map(<[u8]>::to_vec)
            .collect(),
    };
    let selected = |change: &Change| {
        let is_held = held.binary_search(&change.path).is_ok();
        is_named(change, paths)
            && (!is_held || choice == Choice::All || paths.contains(&change.path))
    };
    let applied = apply_run(store, run, &selected, on_conflict, &|_, _| {})?;
    tend::in_background(store);
    Ok(applied)
}

/// Says what was applied and what still waits.
pub fn say(id: &str, applied: &Applied) {
    show::line(&format!(
        "stockade: {} changes of run {id} are applied",
        applied.outcome.applied.len()
    ));
    for conflict in &applied.outcome.conflicts {
        show::line(&format!(
            "stockade: left as it was: {} {}",
            printable(&conflict.path),
            conflict.reason.words()
        ));
    }
    if applied.left > 0 {
        show::line(&format!(
            "stockade: {} changes still wait: `stockade diff {id}` shows them; held ones are applied \
             by name or with --held",
            applied.left
        ));
    }
}

/// Drop what a run in review mode changed
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  \
        stockade discard               the latest waiting run\n  \
        stockade discard RUN")]
pub struct DiscardArgs {
    #[command(flatten)]
    project: ProjectOptions,
    /// A waiting run; the latest when none is named
    #[arg(value_name = "RUN")]
    run: Option<String>,
}

/// Runs `stockade discard`.
pub fn discard(arguments: &DiscardArgs) -> anyhow::Result<ExitCode> {
    let project = Project::find(&arguments.project)?;
    let run = project.store.run(arguments.run.as_deref())?;
    let id = run.meta().id.clone();
    discard_run(&project.store, run)?;
    match arguments.project.json {
        true => print_json(&json!({ "version": 1, "run": id, "state": "discarded" }))?,
        false => show::line(&format!("stockade: run {id} is discarded")),
    }
    Ok(ExitCode::from(0))
}
