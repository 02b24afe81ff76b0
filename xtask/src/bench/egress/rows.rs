//! What is measured of the way out, and the bar that each row must meet.

use super::arena::{Arena, HOST, Home, Measured, Way};
use crate::bench::meter::Meter;
use crate::bench::report;
use crate::bench::rows::{Bar, Figure, Limit, Row};
use crate::bench::statistics::{Shuffler, Summary};
use crate::shell;
use anyhow::{Context, Result};

type Measure = fn(&Bench) -> Result<Vec<Row>>;

const ROWS: &[(&str, Measure)] = &[
    ("tunnel bulk", bulk),
    ("new connections", connections),
    ("inspected requests", requests),
    ("decision", decision),
    ("start with a network", start),
];

struct Bench<'a> {
    arena: &'a Arena,
    quick: bool,
}

pub fn measure(arena: &Arena, quick: bool, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Row>> {
    let bench = Bench { arena, quick };
    let mut rows = Vec::new();
    for (name, measure) in ROWS {
        if wanted(name) {
            let new = shell::phase(name, || measure(&bench))?;
            report::print(&new);
            rows.extend(new);
        }
    }
    Ok(rows)
}

impl Bench<'_> {
    fn rounds(&self, full: usize) -> usize {
        if self.quick { 2 } else { full }
    }

    /// Runs every contender in each round, in random order; the first round is thrown away.
    fn interleaved(
        &self,
        ways: &[Way],
        rounds: usize,
        mut one: impl FnMut(Way) -> Result<Measured>,
    ) -> Result<Vec<(Way, Vec<Measured>)>> {
        let mut results: Vec<(Way, Vec<Measured>)> =
            ways.iter().map(|&way| (way, Vec::new())).collect();
        let mut shuffler = Shuffler::new();
        for round in 0..=rounds {
            let mut order: Vec<usize> = (0..ways.len()).collect();
            shuffler.shuffle(&mut order);
            for index in order {
                let measured = tried(ways[index], &mut one)?;
                if round > 0 {
                    results[index].1.push(measured);
                }
            }
        }
        Ok(results)
    }
}

/// On a busy machine a peer fails now and then, which says nothing of Stockade: it gets another try.
fn tried(way: Way, one: &mut impl FnMut(Way) -> Result<Measured>) -> Result<Measured> {
    const PEER_TRIES: usize = 5;
    let tries = match way {
        Way::Direct | Way::Stockade => 1,
        _ => PEER_TRIES,
    };
    let mut last = None;
    for _ in 0..tries {
        match one(way) {
            Ok(measured) => return Ok(measured),
            Err(error) => {
                println!("failed behind {}", way.name());
                last = Some(error);
            }
        }
    }
    let error = last.context("there was no try")?;
    Err(error.context(format!("behind {}", way.name())))
}

/// A row from one figure of each run; runs that have none are left out.
fn row(
    name: &str,
    unit: &'static str,
    results: &[(Way, Vec<Measured>)],
    of: impl Fn(&Measured) -> Option<f64>,
) -> Row {
    let mut row = Row::new(name, unit);
    for (way, runs) in results {
        let rounds: Vec<f64> = runs.iter().filter_map(&of).collect();
        if !rounds.is_empty() {
            row.figures.push(Figure {
                contender: way.name(),
                rounds,
            });
        }
    }
    row
}

fn number(measured: &Measured, name: &str) -> Option<f64> {
    measured.report[name].as_f64()
}

fn bulk(bench: &Bench) -> Result<Vec<Row>> {
    const SLOW: &[Way] = &[Way::MitmproxyTunnel, Way::Srt];
    let ways = [
        Way::Direct,
        Way::Stockade,
        Way::Squid,
        Way::Tinyproxy,
        Way::MitmproxyTunnel,
        Way::Srt,
    ];
    let size = |way| match (bench.quick, SLOW.contains(&way)) {
        (true, _) => 256u64,
        (false, true) => 512,
        (false, false) => 4096,
    };
    let results = bench.interleaved(&ways, bench.rounds(5), |way| {
        bench.arena.client(
            way,
            Home::Tunnel,
            &["bulk", HOST, &size(way).to_string(), "1"],
        )
    })?;
    let speed = row("tunnel bulk, one stream", "MiB/s", &results, |one| {
        number(one, "mebibytes_per_second")
    })
    .demand_of("squid", Limit::AtLeast(1.3))
    .demand_of("srt", Limit::AtLeast(5.0));
    let mut cpu = Row::new("tunnel bulk, CPU time of the proxy", "s/GiB");
    for (way, runs) in &results {
        let gibibytes = size(*way) as f64 / 1024.0;
        let rounds: Vec<f64> = runs
            .iter()
            .filter_map(|one| Some(one.cpu_seconds? / gibibytes))
            .collect();
        if !rounds.is_empty() {
            cpu.figures.push(Figure {
                contender: way.name(),
                rounds,
            });
        }
    }
    let mut memory = row(
        "resident memory of the egress process after it",
        "MiB",
        &results,
        |one| Some(one.resident_bytes? as f64 / (1024.0 * 1024.0)),
    );
    memory.note = Some("after gigabytes have flowed; the bar on an idle process is below");
    Ok(vec![
        speed,
        cpu.demand_of("squid", Limit::AtMost(0.4)),
        memory,
    ])
}

fn connections(bench: &Bench) -> Result<Vec<Row>> {
    const MEBIBYTES_MAX: f64 = 12.0;
    let ways = [
        Way::Direct,
        Way::Stockade,
        Way::Squid,
        Way::Tinyproxy,
        Way::MitmproxyTunnel,
        Way::Srt,
    ];
    let count = if bench.quick { "50" } else { "300" };
    let results = bench.interleaved(&ways, bench.rounds(5), |way| {
        bench
            .arena
            .client(way, Home::Tunnel, &["connections", HOST, count])
    })?;
    let new = row(
        "new connection to the first byte back, median",
        "µs",
        &results,
        |one| number(one, "median_us"),
    )
    .demand_of("srt", Limit::AtMost(0.2));
    let idle = bench.interleaved(&[Way::Stockade], bench.rounds(3), |way| {
        bench
            .arena
            .client(way, Home::Tunnel, &["connections", HOST, "1"])
    })?;
    let mut memory = row(
        "resident memory of an idle egress process",
        "MiB",
        &idle,
        |one| Some(one.resident_bytes? as f64 / (1024.0 * 1024.0)),
    );
    if let Some(figure) = memory.figures.first() {
        let measured = figure.summary();
        let demand = format!("≤ {MEBIBYTES_MAX} MiB");
        memory
            .bars
            .push(Bar::new(demand, measured, Limit::AtMost(MEBIBYTES_MAX)));
    }
    Ok(vec![new, memory])
}

fn requests(bench: &Bench) -> Result<Vec<Row>> {
    let ways = [Way::Direct, Way::Stockade, Way::SquidBump, Way::Mitmproxy];
    let count = |way| match (bench.quick, way) {
        (true, _) => 200u64,
        (false, Way::Mitmproxy) => 500,
        // So many that the start of Stockade's process, which counts, is small in it.
        (false, _) => 20_000,
    };
    let results = bench.interleaved(&ways, bench.rounds(5), |way| {
        let roots = bench.arena.roots(way).display().to_string();
        bench.arena.client(
            way,
            Home::Inspect,
            &["requests", HOST, &roots, &count(way).to_string()],
        )
    })?;
    let latency = row(
        "inspected request on a connection that stays, median",
        "µs",
        &results,
        |one| number(one, "median_us"),
    );
    let mut cpu = row(
        "inspected request, CPU time of the proxy",
        "µs",
        &results,
        |one| Some(one.cpu_seconds? * 1e6 / number(one, "count")?),
    );
    cpu.note = Some(
        "Stockade judges method and path, attaches a credential and scrubs it from the answer; the others only look",
    );
    Ok(vec![
        latency,
        cpu.demand_of("squid ssl-bump", Limit::AtMost(0.3)),
    ])
}

fn decision(bench: &Bench) -> Result<Vec<Row>> {
    let example = shell::target_directory().join("release/examples/decision");
    let rounds = bench.rounds(9);
    let mut own = Vec::new();
    for _ in 0..rounds {
        let text = shell::capture(&mut std::process::Command::new(&example))?;
        own.push(
            text.trim()
                .parse::<f64>()
                .context("the example prints nanoseconds")?
                / 1e3,
        );
    }
    let trips = bench.interleaved(&[Way::Direct], rounds, |way| {
        bench
            .arena
            .client(way, Home::Nothing, &["round-trips", "5000"])
    })?;
    let mut row = row(
        "one decision with 1,000 rules, and a round trip over the loopback",
        "µs",
        &trips,
        |one| number(one, "median_us"),
    );
    row.figures
        .iter_mut()
        .for_each(|figure| figure.contender = "round trip");
    row.figures.push(Figure {
        contender: "stockade",
        rounds: own,
    });
    Ok(vec![row.demand_of("round trip", Limit::AtMost(0.1))])
}

fn start(bench: &Bench) -> Result<Vec<Row>> {
    let meter = Meter::new();
    let rounds = if bench.quick { 7 } else { 60 };
    let mut row = Row::new("start and end of `true`", "ms");
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..rounds + 3 {
        for (home, times) in [(Home::Tunnel, &mut with), (Home::Nothing, &mut without)] {
            let mut command = bench.arena.stockade_with(home);
            let sample = meter.measure(command.args(["run", "--", "true"]))?;
            if round >= 3 {
                times.push(sample.wall.as_secs_f64() * 1e3);
            }
        }
    }
    row.figures.push(Figure {
        contender: "stockade",
        rounds: with,
    });
    row.figures.push(Figure {
        contender: "without a network",
        rounds: without,
    });
    Ok(vec![row.demand_of("without a network", Limit::AtMost(1.8))])
}

/// Of a bar that refers to no contender.
impl Bar {
    fn new(demand: String, measured: Summary, limit: Limit) -> Self {
        Self {
            demand,
            measured,
            limit,
        }
    }
}
