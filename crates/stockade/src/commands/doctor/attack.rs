//! `stockade doctor --attack`: lays bait, starts sandboxes with the hostile
//! corpus in them, and prints what became of each attack.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::{self, IsTerminal};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use stockade_attacks::bait::{Bait, Layout};
use stockade_attacks::{Needs, Start, Table, Verdict};
use stockade_engine::probe;
use stockade_policy::facts::ControlGroups;
use stockade_sys::rustix::process::geteuid;
use stockade_sys::signal::{self, Signals};

use super::{Format, print};
use crate::exit::ExitCode;
use crate::show;

/// The hidden command that is the corpus.
const INSIDE: &str = "attack-inside";
/// The attack on memory of which only a control group keeps an exact count.
const SAMPLED: &str = "pr7-memory-file";
/// Where the front keeps its state below the home that it is given.
const STATE: &str = ".local/state/stockade";

/// Attacks; fails when something escaped.
pub fn run(format: Format) -> anyhow::Result<ExitCode> {
    let program = std::fs::read_link("/proc/self/exe").context("cannot find my own program")?;
    // The bait is taken away also when a person loses patience.
    let signals = Signals::take_over(&[signal::INTERRUPT, signal::TERMINATE, signal::HANG_UP])
        .context("cannot handle signals")?;
    let mut interrupted = None;
    let scratch = Scratch::new().context("cannot make a scratch directory")?;
    let (workspace, home) = (scratch.0.join("workspace"), scratch.0.join("home"));
    let state = home.join(STATE);
    private_directory(&state).context("cannot make a state directory")?;
    let layout = Layout {
        scratch: &scratch.0,
        workspace: &workspace,
        home: Some(&home),
        state: Some(&state),
    };
    let mut bait = Bait::lay(&layout).context("cannot lay the bait")?;
    let mut table = stockade_attacks::run(
        &mut bait,
        |_| true,
        |start| {
            interrupted = interrupted.or(signals.next()?);
            if interrupted.is_some() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            announce(start);
            start.output(
                &[program.clone().into(), INSIDE.into()],
                &front(&program, start),
            )
        },
    )
    .context("cannot run the attacks")?;
    if let Some(arrived) = interrupted.or(signals.next()?) {
        show::line("stockade: interrupted; not every attack was tried");
        return Ok(ExitCode::from(128 + arrived.number as u8));
    }
    excuse_what_the_plan_gives_up(&mut table);
    match format {
        Format::Text => print(&table.text())?,
        Format::Json => print(&format!("{:#}\n", table.json()))?,
    }
    Ok(if table.nothing_escaped() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The command line that starts the corpus in a sandbox of the default policy.
fn front(program: &Path, start: &Start) -> Vec<OsString> {
    let mut line: Vec<OsString> = vec![program.into()];
    line.extend(["run", "--quiet", "--attack-corpus", "--project"].map(OsString::from));
    line.push(start.workspace.clone().into());
    if let Some(limits) = start.limits {
        line.extend(
            [
                format!("--memory={}B", limits.memory_bytes),
                format!("--processes={}", limits.processes),
                format!("--open-files={}", limits.open_files),
                format!("--disk={}B", limits.disk_bytes),
            ]
            .map(OsString::from),
        );
    }
    line.push("--".into());
    line.push(program.into());
    line.push(INSIDE.into());
    line
}

/// Without a control group this memory is sampled, and the plan itself says
/// that its limit is best effort: passing it between two samples breaks no
/// promise, and does not count as a stop either.
fn excuse_what_the_plan_gives_up(table: &mut Table) {
    let groups = probe::control_groups(geteuid().as_raw());
    let exact = !matches!(groups, ControlGroups::None { .. });
    for row in &mut table.rows {
        if row.id == SAMPLED && !exact && matches!(row.verdict, Verdict::Escaped(_)) {
            row.verdict = Verdict::Inconclusive(
                "passed between two samples; best effort without a control group, as the plan says"
                    .into(),
            );
        }
    }
}

/// Says what is going on to a person who waits.
fn announce(start: &Start) {
    if !io::stderr().is_terminal() {
        return;
    }
    let place = match start.needs {
        Needs::Ordinary => "in an ordinary sandbox",
        Needs::Terminal => "in a sandbox on a terminal",
        Needs::SmallLimits => "in a sandbox with small limits",
        Needs::TwoRuns => "in two sandboxes, one after the other",
    };
    let attacks = start
        .arguments
        .last()
        .map_or(0, |ids| ids.split(',').count());
    show::line(&format!("stockade: {attacks} attack(s) {place}"));
}

/// A directory of our own, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Self> {
        // Links resolved: the project must be named as the kernel sees it.
        let parent = std::fs::canonicalize(std::env::temp_dir())?;
        let run = stockade_engine::events::RunId::generate()?;
        let path = parent.join(format!("stockade-attack-{}", run.as_str()));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            show::line(&format!(
                "stockade: {} is left behind: {error}",
                self.0.display()
            ));
        }
    }
}

fn private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}
