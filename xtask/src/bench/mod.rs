//! `cargo xtask bench`: Stockade against the bare command and against what people use today, all
//! in one run, as an ordinary user.
//!
//! What is measured and how is told in `docs/benchmark.md`.

mod contenders;
mod egress;
mod fixtures;
mod machines;
mod meter;
mod mounts;
mod qemu;
mod report;
mod rounds;
mod rows;
mod statistics;
mod walls;
mod workspace;

use crate::packages::{self, Escalation, Purpose};
use crate::shell;
use crate::user::{Scratch, User};
use anyhow::Result;
use contenders::{Arena, Contender};
use std::process::Command;

/// Measure Stockade against the bare command, bubblewrap, srt and codex.
///
/// Installs the peers (Debian packages as root; npm packages into target/bench-peers), builds the
/// release binary, and runs all contenders interleaved in random order after warm-up rounds, as an
/// ordinary user: this one, or `stockade-test` when started as root. As root a control group
/// counts the CPU time also of processes that nobody waits for.
///
/// Each row is printed with median, 10th and 90th percentile, the ratio to Stockade of the same
/// round, and the bar that it must meet. Takes about 8 minutes; with --quick about 2. Fails when a
/// bar is missed, unless --quick.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Options {
    #[command(subcommand)]
    suite: Option<Suite>,
    #[command(flatten)]
    common: report::Common,
    /// Only these contenders; may be repeated.
    #[arg(long, value_enum, value_name = "NAME")]
    only: Vec<Contender>,
    /// Measure with real-time priority (SCHED_FIFO 50, all contenders alike), so that other work on
    /// the machine disturbs less; needs root and `chrt`.
    #[arg(long)]
    real_time: bool,
}

#[derive(clap::Subcommand)]
enum Suite {
    Egress(egress::Options),
    Workspace(workspace::Options),
    Walls(walls::Options),
}

/// How much is done for each row.
#[derive(Clone, Copy)]
pub struct Scale {
    /// Rounds that are thrown away.
    warm_up: usize,
    /// Rounds of a command of milliseconds.
    rounds: usize,
    /// Rounds of a command of seconds.
    long_rounds: usize,
    /// Commands a round and worker in the row about throughput.
    batch: usize,
    /// Files in the project that git looks at.
    files: usize,
    /// Files in the large project, and how many of them are hidden.
    large_files: usize,
    hidden_files: usize,
}

const FULL: Scale = Scale {
    warm_up: 3,
    rounds: 40,
    long_rounds: 11,
    batch: 40,
    files: 20_000,
    large_files: 300_000,
    hidden_files: 3_600,
};
const QUICK: Scale = Scale {
    warm_up: 1,
    rounds: 7,
    long_rounds: 2,
    batch: 10,
    files: 20_000,
    large_files: 30_000,
    hidden_files: 360,
};

pub fn run(options: &Options) -> Result<()> {
    match &options.suite {
        Some(Suite::Egress(options)) => return egress::run(options),
        Some(Suite::Workspace(options)) => return workspace::run(options),
        Some(Suite::Walls(options)) => return walls::run(options),
        None => {}
    }
    let scale = if options.common.quick { QUICK } else { FULL };
    let chosen = contenders::chosen(&options.only);
    let arena = shell::phase("prepare", || prepare(&chosen))?;
    if options.real_time {
        take_real_time_priority()?;
    }
    let wanted = |name: &str| options.common.wants(name);
    let machine = report::machine();
    println!("{machine}");
    let rows = rows::measure(&arena, scale, &chosen, &wanted)?;
    report::conclude(&rows, &machine, &options.common)
}

/// Takes a priority above all ordinary processes; what this process starts inherits it.
fn take_real_time_priority() -> Result<()> {
    let own = std::process::id().to_string();
    shell::run(Command::new("chrt").args(["--fifo", "--pid", "50", &own]))
}

/// Installs the peers, builds the product and copies all to where the ordinary user can read it.
fn prepare(chosen: &[Contender]) -> Result<Arena> {
    packages::ensure(Purpose::Benchmark, Escalation::Refuse)?;
    let user = User::ordinary()?;
    let scratch = Scratch::new(&user.home, "stockade-bench")?;
    let peers = contenders::install_peers(&scratch)?;
    // bubblewrap's mounts are taken from Stockade's plan.
    let stockade = if [Contender::Stockade, Contender::Bubblewrap]
        .iter()
        .any(|one| chosen.contains(one))
    {
        shell::run(shell::cargo().args(["build", "--quiet", "--release", "-p", "stockade"]))?;
        scratch.install(&shell::target_directory().join("release/stockade"))?
    } else {
        scratch.path().join("stockade")
    };
    Arena::new(user, scratch, stockade, Some(peers))
}
