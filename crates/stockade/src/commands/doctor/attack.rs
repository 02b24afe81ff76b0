//! `stockade doctor --attack`: lays bait, starts sandboxes with the hostile
//! corpus in them, and prints what became of each attack.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::{self, IsTerminal};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use serde_json::Value;
use stockade_attacks::bait::{Bait, Layout};
use stockade_attacks::{Needs, Start, Table, Verdict, is_planted};
use stockade_engine::probe;
use stockade_engine::state::Places;
use stockade_policy::facts::ControlGroups;
use stockade_policy::guarantee::Guarantee;
use stockade_policy::plan::{RuntimeKind, Wall};
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
/// Where machine images are in it.
const MACHINES: &str = "machines";

/// What is attacked.
#[derive(Clone, Debug)]
pub struct Behind {
    pub wall: Wall,
    /// The OCI runtime that makes the container, and the version of it that is
    /// used in any case.
    pub runtime: Option<RuntimeKind>,
    pub accepted: Option<String>,
}

impl Behind {
    pub fn of(wall: Wall) -> Self {
        Self {
            wall,
            runtime: None,
            accepted: None,
        }
    }

    /// Its name for people.
    pub fn name(&self) -> String {
        match self.runtime {
            Some(runtime) => format!("{} ({})", self.wall.word(), runtime.word()),
            None => self.wall.word().to_owned(),
        }
    }

    /// Whether something else than the launcher starts the command: it keeps no
    /// guard over a live workspace, and is refused under one.
    fn has_guest(&self) -> bool {
        self.wall.has_own_kernel() || self.runtime.is_some()
    }

    /// The options that choose it.
    fn options(&self) -> Vec<String> {
        let mut options = vec![format!("--wall={}", self.wall.word())];
        options.extend(self.runtime.map(|one| format!("--runtime={}", one.word())));
        let accepted = self.accepted.iter();
        options.extend(accepted.map(|version| format!("--accept-runtime={version}")));
        let mode = match self.has_guest() {
            true => "review",
            false => "live",
        };
        options.push(format!("--workspace={mode}"));
        options
    }
}

/// Attacks behind one wall; fails when something escaped.
pub fn run(format: Format, behind: &Behind) -> anyhow::Result<ExitCode> {
    let table = match attacked(behind)? {
        Attacked::Interrupted(code) => return Ok(code),
        Attacked::Cannot(why) => {
            anyhow::bail!("the {} wall cannot be had here\n{why}", behind.name())
        }
        Attacked::Planned(_) => anyhow::bail!(
            "nothing runs behind the {} wall on this system\n  remedy: `stockade explain --wall {0}` \
             says what it would hold",
            behind.name()
        ),
        Attacked::Done { table, .. } => table,
    };
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

/// What came of attacking one wall.
pub enum Attacked {
    Interrupted(ExitCode),
    /// The wall cannot be had on this machine: the refusal.
    Cannot(String),
    /// It is another system's: what its plan says of each guarantee.
    Planned(Claims),
    Done {
        /// What the plan says of each guarantee.
        claims: Claims,
        table: Table,
    },
}

/// By the id of a guarantee: `held`, `partial` or `not-held`, and by what or
/// why.
pub type Claims = BTreeMap<String, (String, String)>;

/// Runs the corpus behind one wall, under the default policy.
pub fn attacked(behind: &Behind) -> anyhow::Result<Attacked> {
    let program = std::fs::read_link("/proc/self/exe").context("cannot find my own program")?;
    // The bait is taken away also when a person loses patience.
    let signals = Signals::take_over(&[signal::INTERRUPT, signal::TERMINATE, signal::HANG_UP])
        .context("cannot handle signals")?;
    let mut interrupted = None;
    let scratch = Scratch::new().context("cannot make a scratch directory")?;
    let (workspace, home) = (scratch.0.join("workspace"), scratch.0.join("home"));
    let state = home.join(STATE);
    private_directory(&state).context("cannot make a state directory")?;
    private_directory(&workspace).context("cannot make a project")?;
    if behind.wall == Wall::Microvm {
        lend_machines(&state).context("cannot lend the machine images")?;
    }
    let plan = |configuration| claims(&program, behind, &workspace, &home, configuration);
    let mut claims = match plan(None)? {
        Ok(claims) => claims,
        Err(why) => return Ok(Attacked::Cannot(why)),
    };
    if behind.wall == Wall::Seatbelt {
        return Ok(Attacked::Planned(claims));
    }
    let layout = Layout {
        scratch: &scratch.0,
        workspace: &workspace,
        home: Some(&home),
        state: Some(&state),
    };
    let mut bait = Bait::lay(&layout).context("cannot lay the bait")?;
    let way_out = bait.way_out().context("cannot write a policy")?;
    add_what_the_way_out_holds(&mut claims, plan(Some(&way_out))?);
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
                &front(&program, behind, start),
            )
        },
    )
    .context("cannot run the attacks")?;
    if let Some(arrived) = interrupted.or(signals.next()?) {
        show::line("stockade: interrupted; not every attack was tried");
        return Ok(Attacked::Interrupted(ExitCode::from(
            128 + arrived.number as u8,
        )));
    }
    if behind.has_guest() && !is_planted(&workspace).context("cannot look at the project")? {
        excuse_what_waits(&mut table);
    }
    excuse_what_the_plan_gives_up(&mut table, &claims);
    Ok(Attacked::Done { claims, table })
}

/// Of what is attacked in a sandbox with a way out, the plan of that one speaks.
fn add_what_the_way_out_holds(claims: &mut Claims, there: Result<Claims, String>) {
    let attacks = stockade_attacks::all().iter();
    for attack in attacks.filter(|attack| attack.needs == Needs::WayOut) {
        let id = attack.guarantee.id();
        let claim = match &there {
            Ok(there) => there.get(id).cloned().unwrap_or_default(),
            Err(why) => ("not-held".to_owned(), why.clone()),
        };
        claims.insert(id.to_owned(), claim);
    }
}

/// What the plan says of each guarantee, or the refusal: that of the default
/// policy, or with what stands below `configuration`.
fn claims(
    program: &Path,
    behind: &Behind,
    workspace: &Path,
    home: &Path,
    configuration: Option<&Path>,
) -> anyhow::Result<Result<Claims, String>> {
    let mut explain = Command::new(program);
    explain
        .args(["explain", "--json", "--project"])
        .arg(workspace)
        .args(behind.options())
        .args(["--", "true"])
        .current_dir(workspace)
        .env("HOME", home)
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("XDG_STATE_HOME")
        .stdin(Stdio::null());
    if let Some(configuration) = configuration {
        explain.env("XDG_CONFIG_HOME", configuration);
    }
    let output = explain.output().context("cannot start my own program")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr)
            .trim_end()
            .to_owned();
        return Ok(Err(why));
    }
    let plan: Value = serde_json::from_slice(&output.stdout).context("the plan cannot be read")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let claim = |one: &Value| {
        let why = ["because", "lost", "by"].map(|key| text(&one[key]));
        let why = why.into_iter().find(|why| !why.is_empty());
        (
            text(&one["id"]),
            (text(&one["status"]), why.unwrap_or_default()),
        )
    };
    let guarantees = plan["guarantees"].as_array();
    Ok(Ok(guarantees.into_iter().flatten().map(claim).collect()))
}

/// The command line that starts the corpus in a sandbox of the default policy.
fn front(program: &Path, behind: &Behind, start: &Start) -> Vec<OsString> {
    let mut line: Vec<OsString> = vec![program.into()];
    line.extend(["run", "--quiet", "--attack-corpus", "--project"].map(OsString::from));
    line.push(start.workspace.clone().into());
    line.extend(behind.options().into_iter().map(OsString::from));
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

/// Guarded names that a run sees in its own layer are active nowhere: nothing of
/// them is in the project, as was just seen.
fn excuse_what_waits(table: &mut Table) {
    for row in &mut table.rows {
        if row.guarantee == Guarantee::FS4 && matches!(row.verdict, Verdict::Escaped(_)) {
            let how = "it waits in the run's own layer; nothing of it is in the project";
            row.verdict = Verdict::Stopped(how.into());
        }
    }
}

/// What the plan itself says that it does not hold breaks no promise, and does
/// not count as a stop either. Without a control group memory is sampled, and
/// its limit can be passed between two samples.
fn excuse_what_the_plan_gives_up(table: &mut Table, claims: &Claims) {
    let groups = probe::control_groups(geteuid().as_raw());
    let exact = !matches!(groups, ControlGroups::None { .. });
    for row in &mut table.rows {
        if !matches!(row.verdict, Verdict::Escaped(_)) {
            continue;
        }
        let claim = claims.get(row.guarantee.id());
        let given_up = claim.filter(|(status, _)| status == "not-held");
        if let Some((_, because)) = given_up {
            row.verdict = Verdict::Inconclusive(format!("the plan does not hold it: {because}"));
        } else if row.id == SAMPLED && !exact {
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
        Needs::WayOut => "in a sandbox with a way out and a credential",
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

/// Gives the state directory of the attacked sandboxes the caller's machine
/// images, by second names of their files: to build another would take its time.
/// Each start verifies them.
fn lend_machines(state: &Path) -> anyhow::Result<()> {
    let own = Places::of_caller()?.state;
    let images = own.as_path().join(MACHINES);
    match images.is_dir() {
        true => Ok(lend(&images, &state.join(MACHINES))?),
        false => Ok(()),
    }
}

fn lend(from: &Path, to: &Path) -> io::Result<()> {
    private_directory(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type()?.is_dir() {
            true => lend(&source, &target)?,
            // The scratch directory may be on another file system.
            false => match std::fs::hard_link(&source, &target) {
                Ok(()) => {}
                Err(_) => drop(std::fs::copy(&source, &target)?),
            },
        }
    }
    Ok(())
}

fn private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}
