//! What is measured: one function a row, and the bar that each must meet.

use super::contenders::{Arena, Contender};
use super::fixtures;
use super::meter::{Meter, Sample};
use super::statistics::{Shuffler, Summary};
use super::{Scale, report};
use crate::shell;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// One line of the report: the same figure of all contenders.
pub struct Row {
    pub name: String,
    pub unit: &'static str,
    pub figures: Vec<Figure>,
    pub bars: Vec<Bar>,
    /// What a reader must know about this row.
    pub note: Option<&'static str>,
}

/// The figures of one contender, one a round; rounds are in the same order for all.
pub struct Figure {
    pub contender: &'static str,
    pub rounds: Vec<f64>,
}

impl Figure {
    pub fn summary(&self) -> Summary {
        Summary::of(self.rounds.iter().copied())
    }
}

/// What Stockade must reach.
pub struct Bar {
    pub demand: String,
    /// What was measured; the spread is that of the ratios of single rounds.
    pub measured: Summary,
    pub(super) limit: Limit,
}

#[derive(Clone, Copy)]
pub(super) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    fn of(measured: Summary, other: &str, limit: Limit) -> Self {
        let demand = match limit {
            Limit::AtMost(limit) => format!("≤ {limit} × {other}"),
            Limit::AtLeast(limit) => format!("≥ {limit} × {other}"),
        };
        Self {
            demand,
            measured,
            limit,
        }
    }

    pub fn is_met(&self) -> bool {
        match self.limit {
            Limit::AtMost(limit) => self.measured.median <= limit,
            Limit::AtLeast(limit) => self.measured.median >= limit,
        }
    }
}

impl Row {
    pub(super) fn new(name: &str, unit: &'static str) -> Self {
        Self {
            name: name.to_owned(),
            unit,
            figures: Vec::new(),
            bars: Vec::new(),
            note: None,
        }
    }

    fn rounds_of(&self, contender: &str) -> Option<&[f64]> {
        let figure = self
            .figures
            .iter()
            .find(|figure| figure.contender == contender)?;
        Some(&figure.rounds)
    }

    /// The ratio of Stockade to another in the same round, over all rounds.
    pub fn ratio(&self, other: &str) -> Option<Summary> {
        self.ratio_between("stockade", other)
    }

    fn ratio_between(&self, one: &str, other: &str) -> Option<Summary> {
        let (own, others) = (self.rounds_of(one)?, self.rounds_of(other)?);
        Some(Summary::of(
            own.iter().zip(others).map(|(own, other)| own / other),
        ))
    }

    /// Adds a bar on that ratio, unless one of the two was not measured.
    fn demand(self, other: Contender, limit: Limit) -> Self {
        self.demand_of(other.name(), limit)
    }

    /// The same, of a contender by its name in the row.
    pub(super) fn demand_of(mut self, other: &str, limit: Limit) -> Self {
        if let Some(measured) = self.ratio(other) {
            self.bars.push(Bar::of(measured, other, limit));
        }
        self
    }

    /// Adds a bar on the figure itself, in the unit of the row.
    pub(super) fn demand_at_most(mut self, contender: &str, most: f64) -> Self {
        if let Some(own) = self.rounds_of(contender) {
            let measured = Summary::of(own.iter().copied());
            self.bars.push(Bar {
                demand: format!("{contender} ≤ {most} {}", self.unit),
                measured,
                limit: Limit::AtMost(most),
            });
        }
        self
    }

    /// Adds a bar on the ratio of any two contenders.
    pub(super) fn demand_between(mut self, one: &str, other: &str, limit: Limit) -> Self {
        if let Some(measured) = self.ratio_between(one, other) {
            let mut bar = Bar::of(measured, other, limit);
            bar.demand = format!("{one} {}", bar.demand);
            self.bars.push(bar);
        }
        self
    }
}

/// What all rows share.
struct Bench<'a> {
    arena: &'a Arena,
    scale: Scale,
    chosen: &'a [Contender],
    meter: Meter,
}

/// Measures every row whose name is wanted.
pub fn measure(
    arena: &Arena,
    scale: Scale,
    chosen: &[Contender],
    wanted: &dyn Fn(&str) -> bool,
) -> Result<Vec<Row>> {
    let bench = Bench {
        arena,
        scale,
        chosen,
        meter: Meter::new(),
    };
    println!("CPU time: {}", bench.meter.method());
    let mut rows = Vec::new();
    for (name, measure) in ROWS {
        if wanted(name) {
            let new = shell::phase(name, || measure(&bench))?;
            // Shown at once, so that a run that is stopped was not for nothing.
            report::print(&new);
            rows.extend(new);
        }
    }
    Ok(rows)
}

type Measure = fn(&Bench) -> Result<Vec<Row>>;

const ROWS: &[(&str, Measure)] = &[
    ("start of true", start),
    ("sandboxes a second", throughput),
    ("memory of an idle run", memory),
    ("20,000 files", many_files),
    ("C compile", c_compile),
    ("Rust compile", rust_compile),
    ("start with a deny pattern", deny_pattern),
];

fn start(bench: &Bench) -> Result<Vec<Row>> {
    let project = bench.arena.project("empty")?;
    let samples = bench.rounds(bench.chosen, bench.scale.rounds, |contender| {
        bench.arena.command(contender, &project, &["true"])
    })?;
    let wall = row("wall time of `true`", "ms", &samples, |sample| {
        milliseconds(sample.wall)
    })
    .demand(Contender::Bubblewrap, Limit::AtMost(0.8))
    .demand(Contender::Srt, Limit::AtMost(1.0 / 80.0))
    .demand(Contender::Codex, Limit::AtMost(0.1));
    let cpu = row("CPU time of `true`", "ms", &samples, |sample| {
        milliseconds(sample.cpu)
    })
    .demand(Contender::Bubblewrap, Limit::AtMost(1.2));
    Ok(vec![wall, cpu])
}

fn throughput(bench: &Bench) -> Result<Vec<Row>> {
    const WORKERS: usize = 2;
    let project = bench.arena.project("throughput")?;
    let few = bench.without(&[Contender::Srt, Contender::Codex]);
    let mut row = Row::new("sandboxes a second, two at a time", "1/s");
    row.figures = empty_figures(&few);
    let mut shuffler = Shuffler::new();
    for _ in 0..bench.scale.long_rounds {
        for index in shuffled(few.len(), &mut shuffler) {
            let start = Instant::now();
            std::thread::scope(|scope| {
                let worker = || -> Result<()> {
                    for _ in 0..bench.scale.batch {
                        let mut command = bench.arena.command(few[index], &project, &["true"])?;
                        shell::run(command.stdout(Stdio::null()))?;
                    }
                    Ok(())
                };
                let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(worker)).collect();
                workers
                    .into_iter()
                    .try_for_each(|one| one.join().expect("workers do not panic"))
            })?;
            let sandboxes = (WORKERS * bench.scale.batch) as f64;
            row.figures[index]
                .rounds
                .push(sandboxes / start.elapsed().as_secs_f64());
        }
    }
    Ok(vec![row.demand(Contender::Bubblewrap, Limit::AtLeast(1.2))])
}

fn memory(bench: &Bench) -> Result<Vec<Row>> {
    const MEBIBYTE: f64 = 1024.0 * 1024.0;
    const MEBIBYTES_MAX: f64 = 8.0;
    let project = bench.arena.project("idle")?;
    let few = bench.without(&[Contender::Bare]);
    let mut resident = Row::new("resident memory of all helpers of an idle run", "MiB");
    let mut proportional = Row::new("the same, shared pages divided", "MiB");
    for &contender in &few {
        let mut command = bench.arena.command(contender, &project, &["sleep", "3"])?;
        let memory = bench.meter.idle_memory(&mut command)?;
        println!(
            "{}: {} helper processes",
            contender.name(),
            memory.processes
        );
        let figure = |bytes: u64| Figure {
            contender: contender.name(),
            rounds: vec![bytes as f64 / MEBIBYTE],
        };
        resident.figures.push(figure(memory.resident));
        proportional.figures.extend(memory.proportional.map(figure));
    }
    let resident = resident.demand_at_most(Contender::Stockade.name(), MEBIBYTES_MAX);
    Ok(vec![resident, proportional])
}

const ONCE_NOTE: &str = "has the start of the sandbox in it; the bar is about the work, and is held \
                         on ten times in one sandbox";

fn many_files(bench: &Bench) -> Result<Vec<Row>> {
    let project = fixtures::repository(bench.arena, bench.scale.files)?;
    let find = "find . -type f -newer .git/HEAD";
    let few = bench.without(&[Contender::BubblewrapFewer]);
    let mut rows = Vec::new();
    for (name, command) in [("git status", "git status --short"), ("find", find)] {
        let ten = format!("for _ in 1 2 3 4 5 6 7 8 9 10; do {command}; done");
        let measured = |script: &str, times: &str| -> Result<Row> {
            let samples = bench.rounds(&few, bench.scale.rounds / 2 + 1, |contender| {
                bench
                    .arena
                    .command(contender, &project, &["sh", "-c", script])
            })?;
            let name = format!("`{name}`, {} files, {times}", bench.scale.files);
            Ok(row(&name, "ms", &samples, |sample| {
                milliseconds(sample.wall)
            }))
        };
        let mut once = measured(command, "once")?;
        once.note = Some(ONCE_NOTE);
        let ten = measured(&ten, "ten times in one sandbox")?;
        rows.extend([once, ten.demand(Contender::Bare, Limit::AtMost(1.1))]);
    }
    Ok(rows)
}

fn c_compile(bench: &Bench) -> Result<Vec<Row>> {
    let project = fixtures::c_project(bench.arena)?;
    let few = bench.without(&[Contender::BubblewrapFewer, Contender::Srt, Contender::Codex]);
    let samples = bench.rounds(&few, bench.scale.long_rounds, |contender| {
        bench.arena.command(
            contender,
            &project,
            &["make", "--silent", "--always-make", "-j2"],
        )
    })?;
    let row = row("C compile, make -j2", "ms", &samples, |sample| {
        milliseconds(sample.wall)
    });
    Ok(vec![row.demand(Contender::Bare, Limit::AtMost(1.02))])
}

fn rust_compile(bench: &Bench) -> Result<Vec<Row>> {
    let project = fixtures::rust_project(bench.arena)?;
    let toolchain = bench.arena.user.toolchain.display();
    let policy = format!(
        "version = 1\n[filesystem]\nwrite = [\".\"]\nread = [\"system\", \"{toolchain}\"]\n"
    );
    let configuration = fixtures::configuration(bench.arena, "rust-policy", &policy)?;
    let few = bench.only(&[Contender::Bare, Contender::Stockade]);
    let arguments = ["rustc", "--edition", "2021", "-Copt-level=2", "main.rs"];
    let samples = bench.rounds(&few, bench.scale.long_rounds, |contender| {
        let mut command = bench.arena.command(contender, &project, &arguments)?;
        command.env("XDG_CONFIG_HOME", &configuration);
        Ok(command)
    })?;
    let row = row("Rust compile, rustc -O", "ms", &samples, |sample| {
        milliseconds(sample.wall)
    });
    Ok(vec![row.demand(Contender::Bare, Limit::AtMost(1.02))])
}

/// The same command with and without the pattern; the two take the places of contenders.
fn deny_pattern(bench: &Bench) -> Result<Vec<Row>> {
    const SECONDS_MAX: f64 = 1.0;
    if !bench.chosen.contains(&Contender::Stockade) {
        return Ok(Vec::new());
    }
    let Scale {
        large_files,
        hidden_files,
        ..
    } = bench.scale;
    let project = fixtures::large_project(bench.arena, "large", large_files, hidden_files)?;
    let plain = "version = 1\n[filesystem]\nwrite = [\".\"]\n";
    let hiding = format!("{plain}hide = [\"**/*.key\"]\n");
    let plain = fixtures::configuration(bench.arena, "plain-policy", plain)?;
    let hiding = fixtures::configuration(bench.arena, "hiding-policy", &hiding)?;
    assert_hidden(bench, &project, &hiding)?;
    let name = format!("start with {large_files} files, pattern that hides {hidden_files}");
    let mut row = Row::new(&name, "ms");
    for (label, configuration) in [("without pattern", plain), ("with pattern", hiding)] {
        let samples = bench.rounds(
            &[Contender::Stockade],
            bench.scale.long_rounds,
            |contender| {
                let mut command = bench.arena.command(contender, &project, &["true"])?;
                command.env("XDG_CONFIG_HOME", &configuration);
                Ok(command)
            },
        )?;
        let rounds = samples[0]
            .1
            .iter()
            .map(|sample| milliseconds(sample.wall))
            .collect();
        row.figures.push(Figure {
            contender: label,
            rounds,
        });
    }
    let (without, with) = (&row.figures[0].rounds, &row.figures[1].rounds);
    let measured = Summary::of(
        with.iter()
            .zip(without)
            .map(|(with, without)| with - without),
    );
    let limit = Limit::AtMost(SECONDS_MAX * 1000.0);
    let demand = format!("≤ {SECONDS_MAX} s over the start without");
    row.bars.push(Bar {
        demand,
        measured,
        limit,
    });
    Ok(vec![row])
}

/// A fast start proves nothing if the pattern is not enforced.
fn assert_hidden(bench: &Bench, project: &Path, configuration: &Path) -> Result<()> {
    let script = "cat part0/directory0/*.key | wc -c";
    let mut command = bench
        .arena
        .command(Contender::Stockade, project, &["sh", "-c", script])?;
    command
        .env("XDG_CONFIG_HOME", configuration)
        .stderr(Stdio::null());
    let output = command.output().context("cannot start stockade")?;
    if !output.status.success() || output.stdout.trim_ascii() != b"0" {
        bail!(
            "the deny pattern does not hide: {}",
            String::from_utf8_lossy(&output.stdout)
        );
    }
    Ok(())
}

type Samples = Vec<(Contender, Vec<Sample>)>;

impl Bench<'_> {
    fn only(&self, wanted: &[Contender]) -> Vec<Contender> {
        self.chosen
            .iter()
            .copied()
            .filter(|one| wanted.contains(one))
            .collect()
    }

    fn without(&self, left_out: &[Contender]) -> Vec<Contender> {
        self.chosen
            .iter()
            .copied()
            .filter(|one| !left_out.contains(one))
            .collect()
    }

    /// Runs all contenders in random order, round after round, after the warm-up rounds.
    fn rounds(
        &self,
        contenders: &[Contender],
        rounds: usize,
        command: impl Fn(Contender) -> Result<Command>,
    ) -> Result<Samples> {
        let mut samples: Samples = contenders.iter().map(|one| (*one, Vec::new())).collect();
        let mut shuffler = Shuffler::new();
        for round in 0..self.scale.warm_up.min(rounds) + rounds {
            for index in shuffled(contenders.len(), &mut shuffler) {
                let sample = self.meter.measure(&mut command(contenders[index])?)?;
                if round >= self.scale.warm_up.min(rounds) {
                    samples[index].1.push(sample);
                }
            }
        }
        Ok(samples)
    }
}

fn shuffled(count: usize, shuffler: &mut Shuffler) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    shuffler.shuffle(&mut order);
    order
}

fn empty_figures(contenders: &[Contender]) -> Vec<Figure> {
    let figure = |one: &Contender| Figure {
        contender: one.name(),
        rounds: Vec::new(),
    };
    contenders.iter().map(figure).collect()
}

fn row(name: &str, unit: &'static str, samples: &Samples, of: impl Fn(&Sample) -> f64) -> Row {
    let mut row = Row::new(name, unit);
    for (contender, samples) in samples {
        let rounds = samples.iter().map(&of).collect();
        row.figures.push(Figure {
            contender: contender.name(),
            rounds,
        });
    }
    row
}

pub(super) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(stockade: &[f64], bubblewrap: &[f64]) -> Row {
        let mut row = Row::new("r", "ms");
        for (contender, rounds) in [("stockade", stockade), ("bubblewrap", bubblewrap)] {
            row.figures.push(Figure {
                contender,
                rounds: rounds.to_vec(),
            });
        }
        row
    }

    #[test]
    fn a_bar_is_judged_by_the_median_ratio_of_rounds() {
        let row = two(&[1.0, 4.0, 3.0], &[2.0, 4.0, 10.0]);
        let row = row.demand(Contender::Bubblewrap, Limit::AtMost(0.5));
        assert!((row.bars[0].measured.median - 0.5).abs() < 1e-9);
        assert!(row.bars[0].is_met());
        let row = row.demand(Contender::Bubblewrap, Limit::AtLeast(0.6));
        assert!(!row.bars[1].is_met());
    }

    #[test]
    fn a_bar_against_a_contender_that_did_not_run_is_left_out() {
        let row = two(&[1.0], &[1.0]).demand(Contender::Srt, Limit::AtMost(1.0));
        assert!(row.bars.is_empty());
    }
}
