//! `cargo xtask bench workspace`: what it costs that a run's changes to the project are watched
//! (live mode) or kept in a layer (review mode), and what snapshots cost.

use super::contenders::{Arena, Contender};
use super::fixtures;
use super::report;
use super::rounds::{self, empty};
use super::rows::{Limit, Row, milliseconds};
use super::statistics::Shuffler;
use crate::packages::{self, Escalation, Purpose};
use crate::shell;
use crate::user::{Scratch, User};
use anyhow::{Context, Result, bail};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Measure live mode, review mode and snapshots against the same work outside and against copies.
///
/// Builds the release binary and runs as an ordinary user, all contenders interleaved in random
/// order. Takes about 12 minutes; with --quick about 3. Fails when a bar is missed, unless --quick.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    common: report::Common,
}

/// How the work is done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Outside,
    Live,
    /// In review mode, what was changed then applied.
    Review,
    /// In a copy of the project, outside.
    Copy,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Outside => "outside",
            Self::Live => "live",
            Self::Review => "review",
            Self::Copy => "copy",
        }
    }
}

struct Bench {
    arena: Arena,
    quick: bool,
    /// Files of a large and of a small project.
    large: usize,
    small: usize,
    /// Directories of what earlier rounds made.
    trash: Cell<usize>,
}

type Measure = fn(&Bench) -> Result<Vec<Row>>;

const ROWS: &[(&str, Measure)] = &[
    ("npm install and C compile", work),
    ("start with many files", start),
    ("snapshot and fork", snapshots),
    ("git status", git_status),
];

pub fn run(options: &Options) -> Result<()> {
    let arena = shell::phase("prepare", prepare)?;
    let bench = Bench {
        arena,
        quick: options.common.quick,
        large: if options.common.quick {
            30_000
        } else {
            300_000
        },
        small: 300,
        trash: Cell::new(0),
    };
    let machine = report::machine();
    println!("{machine}");
    let mut rows = Vec::new();
    for (name, measure) in ROWS {
        if options.common.wants(name) {
            let new = shell::phase(name, || measure(&bench))?;
            report::print(&new);
            rows.extend(new);
        }
    }
    report::conclude(&rows, &machine, &options.common)
}

fn prepare() -> Result<Arena> {
    packages::ensure(Purpose::Benchmark, Escalation::Refuse)?;
    let user = User::ordinary()?;
    let scratch = Scratch::new(&user.home, "stockade-workspace-bench")?;
    shell::run(shell::cargo().args(["build", "--quiet", "--release", "-p", "stockade"]))?;
    let stockade = scratch.install(&shell::target_directory().join("release/stockade"))?;
    Arena::new(user, scratch, stockade, None)
}

const NPM: &str = "npm install --silent --offline --no-audit --no-fund";
const MAKE: &str = "make --silent -j2";

/// The work that writes most names, and one that mostly computes, each alone and one after the
/// other; the bars are about both together.
fn work(bench: &Bench) -> Result<Vec<Row>> {
    let installed = if bench.quick { 2_000 } else { 20_000 };
    let project = fixtures::npm_project(&bench.arena, bench.large, installed)?;
    let three = [Way::Outside, Way::Live, Way::Review];
    let both = format!("{NPM} && {MAKE}");
    let mut rows = Vec::new();
    for (name, script) in [("npm install", NPM), ("C compile", MAKE)] {
        let name = format!("{name}, {installed} files installed, apply included");
        rows.push(bench.worked(&name, &project, script, &three, bench.rounds(7))?);
    }
    let name = format!("both, in a project of {} files", bench.large);
    let four = [Way::Outside, Way::Live, Way::Review, Way::Copy];
    let together = bench.worked(&name, &project, &both, &four, bench.rounds(5))?;
    rows.push(
        together
            .demand_between("live", "outside", Limit::AtMost(1.1))
            .demand_between("review", "outside", Limit::AtMost(1.5))
            .demand_between("review", "copy", Limit::AtMost(0.5)),
    );
    std::fs::remove_dir_all(project)?;
    Ok(rows)
}

fn start(bench: &Bench) -> Result<Vec<Row>> {
    let project = bench.project("start", bench.large)?;
    let name = format!("start and end of `true`, {} files", bench.large);
    let ways = [Way::Live, Way::Review];
    let row = bench.interleaved(&name, &ways, bench.rounds(40), |way| {
        let started = Instant::now();
        shell::run(&mut bench.command(way, &project, &["true"])?)?;
        Ok(started.elapsed())
    })?;
    std::fs::remove_dir_all(project)?;
    Ok(vec![row.demand_between(
        "review",
        "live",
        Limit::AtMost(1.2),
    )])
}

/// Contenders are sizes of the project, and the copy that people make instead.
fn snapshots(bench: &Bench) -> Result<Vec<Row>> {
    const CONTENDERS: [&str; 3] = ["large", "small", "cp -a"];
    let large = bench.project("many", bench.large)?;
    let small = bench.project("few", bench.small)?;
    let copy = bench.arena.home.join("copy-of-many");
    let mut rows = Vec::new();
    for verb in ["snapshot", "fork"] {
        let mut row = Row::new(
            &format!("{verb} of {} and of {} files", bench.large, bench.small),
            "ms",
        );
        row.figures = CONTENDERS.map(empty).into();
        let mut shuffler = Shuffler::new();
        for round in 0..=bench.rounds(20) {
            let mut order = [0, 1];
            shuffler.shuffle(&mut order);
            for index in order {
                let project = [&large, &small][index];
                let took = bench.snapshot(verb, project, round)?;
                if round > 0 {
                    row.figures[index].rounds.push(milliseconds(took));
                }
            }
        }
        for _ in 0..bench.rounds(3) {
            let took = bench.copy(&large, &copy)?;
            row.figures[2].rounds.push(milliseconds(took));
            std::fs::remove_dir_all(&copy)?;
        }
        rows.push(
            row.demand_between("large", "small", Limit::AtMost(1.5))
                .demand_between("large", "cp -a", Limit::AtMost(0.001)),
        );
    }
    std::fs::remove_dir_all(large)?;
    Ok(rows)
}

/// Ten calls after a first one, timed inside, so that the start of the sandbox is not in it.
fn git_status(bench: &Bench) -> Result<Vec<Row>> {
    const FILES: usize = 20_000;
    const SCRIPT: &str = "git status --short && begun=$(date +%s%N) && \
        for _ in 1 2 3 4 5 6 7 8 9 10; do git status --short; done && \
        echo $(($(date +%s%N) - begun))";
    let project = fixtures::repository(&bench.arena, FILES)?;
    let ways = [Way::Outside, Way::Live, Way::Review];
    let name = format!("`git status`, {FILES} files, from the second call on");
    let row = bench.interleaved(&name, &ways, bench.rounds(20), |way| {
        let mut command = bench.command(way, &project, &["sh", "-c", SCRIPT])?;
        let shown = shell::capture(command.stderr(Stdio::null()))?;
        if way == Way::Review {
            bench.discard(&project)?;
        }
        let nanoseconds: u64 = shown.trim().parse().context("git status said something")?;
        Ok(Duration::from_nanos(nanoseconds / 10))
    })?;
    let row = row
        .demand_between("live", "outside", Limit::AtMost(1.1))
        .demand_between("review", "outside", Limit::AtMost(1.4));
    Ok(vec![row])
}

impl Bench {
    fn rounds(&self, full: usize) -> usize {
        if self.quick { 2 } else { full }
    }

    fn project(&self, name: &str, files: usize) -> Result<PathBuf> {
        fixtures::large_project(&self.arena, name, files, 0)
    }

    fn interleaved(
        &self,
        name: &str,
        ways: &[Way],
        rounds: usize,
        mut one: impl FnMut(Way) -> Result<Duration>,
    ) -> Result<Row> {
        let names: Vec<_> = ways.iter().map(|way| way.name()).collect();
        rounds::interleaved(name, &names, rounds, |index| one(ways[index]))
    }

    /// A script that must find the project as it was first, and leaves files of known names.
    fn worked(
        &self,
        name: &str,
        project: &Path,
        script: &str,
        ways: &[Way],
        rounds: usize,
    ) -> Result<Row> {
        let copy = self.arena.home.join("copy-of-npm");
        self.interleaved(name, ways, rounds, |way| {
            let number = self.trash.get();
            self.trash.set(number + 1);
            let trash = self.arena.scratch.path().join(format!("trash{number}"));
            clean(project, &trash)?;
            // What the last one left to be written is not this one's.
            shell::run(&mut Command::new("sync"))?;
            let started = Instant::now();
            let place = match way {
                Way::Copy => {
                    self.copy(project, &copy)?;
                    &copy
                }
                _ => project,
            };
            let mut command = self.command(way, place, &["sh", "-c", script])?;
            shell::run(command.stdout(Stdio::null()).stderr(Stdio::null()))?;
            if way == Way::Review {
                let mut apply = self.arena.start(&self.arena.stockade, &["apply", "--held"]);
                apply.current_dir(project).env("HOME", &self.arena.home);
                shell::run(apply.stdout(Stdio::null()).stderr(Stdio::null()))?;
            }
            let took = started.elapsed();
            if !place.join("package.json").exists() || !is_done(place, script) {
                bail!("the work was not done in {}", place.display());
            }
            if way == Way::Copy {
                std::fs::rename(&copy, trash.join("copy"))?;
            }
            Ok(took)
        })
    }

    fn command(&self, way: Way, project: &Path, arguments: &[&str]) -> Result<Command> {
        match way {
            Way::Outside | Way::Copy => self.arena.command(Contender::Bare, project, arguments),
            Way::Live => self.arena.command(Contender::Stockade, project, arguments),
            Way::Review => {
                let mut command = self.own(project, &["run", "--workspace", "review", "--"]);
                command.args(arguments);
                Ok(command)
            }
        }
    }

    /// The product with these arguments, as the user calls it in the project.
    fn own(&self, project: &Path, arguments: &[&str]) -> Command {
        let mut command = self.arena.start(&self.arena.stockade, arguments);
        command.current_dir(project).env("HOME", &self.arena.home);
        command
    }

    fn stockade(&self, project: &Path, arguments: &[&str]) -> Result<()> {
        let mut command = self.own(project, arguments);
        shell::run(command.stdout(Stdio::null()).stderr(Stdio::null()))
    }

    fn discard(&self, project: &Path) -> Result<()> {
        // There is nothing to discard where a run changed nothing.
        let mut list = self.own(project, &["diff", "--list", "--json"]);
        if shell::capture(&mut list)?.contains("\"run\"") {
            self.stockade(project, &["discard"])?;
        }
        Ok(())
    }

    /// Takes a snapshot, or forks from one, and takes it away again; only the first is timed.
    fn snapshot(&self, verb: &str, project: &Path, round: usize) -> Result<Duration> {
        let (from, to) = (format!("snapshot{round}"), format!("fork{round}"));
        if verb == "fork" {
            self.stockade(project, &["snapshot", &from])?;
        }
        let timed: &[&str] = match verb {
            "fork" => &["fork", &from, &to],
            _ => &["snapshot", &from],
        };
        let started = Instant::now();
        self.stockade(project, timed)?;
        let took = started.elapsed();
        if verb == "fork" {
            self.stockade(project, &["discard", &to])?;
        }
        self.stockade(project, &["snapshot", "--delete", &from])?;
        Ok(took)
    }

    fn copy(&self, project: &Path, copy: &Path) -> Result<Duration> {
        let started = Instant::now();
        let mut command = self.arena.user.command("cp");
        shell::run(command.arg("-a").arg(project).arg(copy))?;
        Ok(started.elapsed())
    }
}

/// Moves what the work made out of the way. It is not deleted before the end: ext4 looks long for
/// an inode that was not freed a moment ago, and whoever comes next would pay for it.
fn clean(project: &Path, trash: &Path) -> Result<()> {
    std::fs::create_dir(trash)?;
    for entry in std::fs::read_dir(project)? {
        let path = entry?.path();
        let extension = path.extension().unwrap_or_default();
        let name = path.file_name().unwrap_or_default();
        let is_made = extension == "o"
            || extension == "a"
            || name == "package-lock.json"
            || name == "node_modules";
        if is_made {
            std::fs::rename(&path, trash.join(name))?;
        }
    }
    Ok(())
}

/// Work that was not done, or not applied, is no figure.
fn is_done(project: &Path, script: &str) -> bool {
    let npm =
        !script.contains("npm") || project.join("node_modules/package0/package.json").exists();
    let make = !script.contains("make") || project.join("libc-bench.a").exists();
    npm && make
}
