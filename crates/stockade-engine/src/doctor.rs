//! Finds out what this machine can hold, and why not.
//!
//! `probes` tries, `cause` explains what failed. Whether something works is
//! decided by trying it, never by a version or a setting; the last check sets
//! up a whole sandbox, to the point where a command would start.

mod cause;
mod network;
mod probes;

use std::io;

use stockade_policy::facts::{Ability, Architecture, ControlGroups, Gvisor, RuntimeFacts};
use stockade_policy::guarantee::Guarantee;
use stockade_policy::plan::{Action, Form, Hold, Plan, Runtime, RuntimeKind, Unenforceable, Wall};
use stockade_policy::runtimes::known_broken;
use stockade_sys::directory;
use stockade_sys::rustix::process::geteuid;
use stockade_walls::WallError;
use stockade_walls::control_group::ControlGroup;
use stockade_walls::process::{self as process_wall, ChildStream, Embryo, Start};

pub use cause::{Cause, Circumstances};

use crate::caches;
use crate::events::RunId;
use crate::layers::OwnLayer;
use crate::load::CliSetting;
use crate::log::Log;
use crate::probe;
use crate::run::choice;
use crate::run::opening::Opening;
use crate::run::{Planned, Refusal, Request, plan_with};
use crate::state::{Places, StateDirectory};

/// One ability of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub name: &'static str,
    pub finding: Finding,
}

/// What came of trying it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It works; says what was seen.
    Works(String),
    Lacks(Cause),
}

/// How a guarantee fares on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// As the plan says.
    Planned(Hold),
    /// This machine cannot hold it.
    Cannot { reason: String, remedy: String },
}

/// The form without namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// What the policy has to weaken by name.
    pub weaken: Vec<Guarantee>,
    pub guarantees: Vec<(Guarantee, Hold)>,
}

/// What was found out.
#[derive(Debug)]
pub struct Examination {
    pub checks: Vec<Check>,
    /// In the order of [`Guarantee::ALL`]; empty when there is no policy to
    /// judge by.
    pub guarantees: Vec<(Guarantee, Standing)>,
    /// Why a wall would not do for the request; empty when it would. Nothing
    /// when there is no policy to judge by.
    pub walls: Vec<(Wall, Vec<Unenforceable>)>,
    /// What the form without namespaces would hold here, when it is needed
    /// and can be had.
    pub landlock_only: Option<Fallback>,
    /// Why there is no plan, unless its guarantees say so.
    pub refusal: Option<Refusal>,
    /// Whether `stockade run` works for the request.
    pub ready: bool,
}

/// Tries everything that a run for `request` needs.
///
/// The calling process must have one thread. Afterwards it is not dumpable
/// (prctl(2), PR_SET_DUMPABLE), as after a run.
pub fn examine(request: &Request) -> Examination {
    let here = Circumstances::read();
    let namespaces = probes::namespaces().map_err(|failure| cause::of_namespaces(&failure, &here));
    let mut checks = basic_checks(&here);
    checks.push(check(
        "namespaces",
        namespaces.clone().map(|()| {
            "user, mount, pid, ipc, uts, cgroup and network, with tmpfs, devices, devpts, proc \
             and lo in them"
                .into()
        }),
    ));
    checks.extend(network::checks());
    let ability = match &namespaces {
        Ok(()) => Ability::Yes,
        Err(cause) => Ability::No {
            reason: cause.reason.clone(),
            remedy: cause.remedy.clone(),
        },
    };
    let mut examination = Examination {
        checks,
        guarantees: Vec::new(),
        walls: Vec::new(),
        landlock_only: None,
        refusal: None,
        ready: false,
    };
    match plan_with(request, ability) {
        Ok(planned) => rehearse(request, &planned, &mut examination),
        Err(Refusal::Unenforceable(items)) => {
            examination.guarantees = overlay(request, &items);
        }
        Err(other) => examination.refusal = Some(other),
    }
    examination.walls = walls(request, &namespaces);
    if !examination.ready {
        examination.landlock_only = landlock_only(request);
    }
    examination
}

/// Each wall of Linux with what speaks against it. All of them are made of
/// namespaces.
fn walls(request: &Request, namespaces: &Result<(), Cause>) -> Vec<(Wall, Vec<Unenforceable>)> {
    let judged = Wall::ALL.iter().filter_map(|&wall| {
        let objections = match namespaces {
            Ok(()) => choice::objections(request, wall).ok()?,
            Err(cause) => vec![Unenforceable {
                guarantee: Guarantee::FS1,
                wall: wall.word(),
                reason: cause.reason.clone(),
                remedy: cause.remedy.clone(),
            }],
        };
        Some((wall, objections))
    });
    judged.collect()
}

fn check(name: &'static str, tried: Result<String, Cause>) -> Check {
    let finding = match tried {
        Ok(seen) => Finding::Works(seen),
        Err(cause) => Finding::Lacks(cause),
    };
    Check { name, finding }
}

fn basic_checks(here: &Circumstances) -> Vec<Check> {
    let landlock = probes::landlock().map_err(|error| cause::of_landlock(&error, here));
    vec![
        check("kernel", kernel(here)),
        check("fork", fork(here)),
        check(
            "landlock",
            landlock.map(|abi| format!("ABI {abi}; a ruleset refused what it should")),
        ),
        check("seccomp", filter(here)),
        check("control groups", control_groups()),
        check("devices", devices()),
        check("state", state()),
        check("gvisor", gvisor()),
        check("firecracker", firecracker()),
        check("runc", runtime(RuntimeKind::Runc)),
        check("crun", runtime(RuntimeKind::Crun)),
    ]
}

fn kernel(here: &Circumstances) -> Result<String, Cause> {
    let missing = |call: &'static str, since: &'static str| {
        move |error: io::Error| cause::of_call(call, since, &error, here)
    };
    probes::mount_attributes().map_err(missing("mount_setattr", "5.12"))?;
    probes::resolve_without_links().map_err(missing("openat2", "5.6"))?;
    probes::process_descriptors().map_err(missing("pidfd_open", "5.3"))?;
    let (major, minor) =
        probe::kernel().map_err(|error| cause::of(error.to_string(), "use a Linux kernel"))?;
    Ok(format!(
        "{major}.{minor}; mount_setattr, openat2 and pidfd_open work"
    ))
}

fn fork(here: &Circumstances) -> Result<String, Cause> {
    probes::plain_fork().map_err(|error| cause::of_call("clone3", "5.3", &error, here))?;
    Ok("this process has one thread, and clone3 works".into())
}

fn filter(here: &Circumstances) -> Result<String, Cause> {
    let architecture = match std::env::consts::ARCH {
        "aarch64" => Architecture::Aarch64,
        _ => Architecture::X86_64,
    };
    let instructions = probes::filter(architecture)
        .map_err(|error| cause::of_call("seccomp", "3.17", &error, here))?;
    Ok(format!(
        "a filter of {instructions} instructions refused what it should"
    ))
}

/// Makes a group with a limit in it and takes it away again.
fn control_groups() -> Result<String, Cause> {
    let groups = probe::control_groups(geteuid().as_raw());
    let version = match &groups {
        ControlGroups::None { reason, remedy } => {
            return Err(cause::of(
                format!("{reason}; limits are held by rlimits and a watchdog instead"),
                remedy.clone(),
            ));
        }
        ControlGroups::V2 { .. } => "2",
        ControlGroups::V1 { .. } => "1",
    };
    ControlGroup::probe(&groups).map_err(|error| {
        cause::of(
            format!("a control group cannot be made: {error}"),
            "free control groups, or run below a systemd session with `Delegate=yes`",
        )
    })?;
    Ok(format!("a version {version} group was made and removed"))
}

fn devices() -> Result<String, Cause> {
    for name in probes::DEVICES {
        std::fs::File::open(format!("/dev/{name}")).map_err(|error| {
            cause::of(
                format!("/dev/{name} cannot be opened: {error}"),
                "mount /dev with devices, or make the missing node",
            )
        })?;
    }
    Ok(format!("{} can be opened", probes::DEVICES.join(", ")))
}

/// Likewise only a run tries it; here its version is judged.
fn runtime(kind: RuntimeKind) -> Result<String, Cause> {
    let word = kind.word();
    let runtime = match probe::runtime::found(kind, None) {
        RuntimeFacts::Found(runtime) => runtime,
        RuntimeFacts::Missing { reason, remedy } => {
            let reason = format!("{reason}; only container.runtime = \"{word}\" needs it");
            return Err(cause::of(reason, remedy));
        }
    };
    let Runtime {
        program, version, ..
    } = &runtime;
    match known_broken(kind, version) {
        None => Ok(format!(
            "{program} {version}; for container.runtime = \"{word}\""
        )),
        Some(broken) => Err(cause::of(
            format!("{program} {version} {broken}; only container.runtime = \"{word}\" needs it"),
            format!(
                "upgrade it; or container.accept_runtime = \"{version}\", if your distribution \
                 repaired it"
            ),
        )),
    }
}

/// Only a run tries it: to start it takes some tenths of a second.
fn gvisor() -> Result<String, Cause> {
    match probe::gvisor::found(None) {
        Gvisor::Found(runsc) => Ok(format!(
            "{} {}, on the platform systrap; for wall = \"gvisor\"",
            runsc.program, runsc.version
        )),
        Gvisor::Missing { reason, remedy } => Err(cause::of(
            format!("{reason}; only wall = \"gvisor\" needs it"),
            remedy,
        )),
    }
}

/// Tried by a machine of its own, which takes some hundredths of a second.
fn firecracker() -> Result<String, Cause> {
    let unused = |reason: String| format!("{reason}; no wall uses it yet");
    let name = directory::random_name()
        .map_err(|error| cause::of(unused(error.to_string()), "report this"))?;
    let scratch = std::env::temp_dir().join(format!("stockade-doctor-{name}"));
    match probe::firecracker::tried(&scratch) {
        Ok(seen) => Ok(unused(seen)),
        Err(why) => Err(cause::of(unused(why.reason), why.remedy)),
    }
}

fn state() -> Result<String, Cause> {
    let unusable = |error: String| {
        cause::of(
            format!("the event log cannot be kept: {error}"),
            "set HOME or XDG_STATE_HOME to a directory of your own that can be written",
        )
    };
    let places = Places::of_caller().map_err(|error| unusable(error.to_string()))?;
    let directory = StateDirectory::open(&places).map_err(|error| unusable(error.to_string()))?;
    Log::open(&directory).map_err(|error| unusable(error.to_string()))?;
    Ok(format!(
        "{} is private and holds the event log",
        directory.path()
    ))
}

/// Sets the plan up to the gate and takes everything down again.
fn rehearse(request: &Request, planned: &Planned, examination: &mut Examination) {
    let plan = &planned.plan;
    let (seen, failed) = match to_the_gate(request, planned) {
        Ok(missing) if missing.is_empty() => {
            let steps = plan.steps.len();
            let seen = format!("a sandbox was set up; all {steps} steps showed evidence");
            (Ok(seen), Vec::new())
        }
        Ok(missing) => {
            let names: Vec<&str> = missing
                .iter()
                .map(|&index| plan.steps[index].name.as_str())
                .collect();
            let reason = format!("no evidence for {}", names.join(", "));
            (Err(cause::of(reason, "report this")), missing)
        }
        Err((failed, cause)) => (Err(cause), failed),
    };
    examination.ready = seen.is_ok();
    let cause = seen.as_ref().err().cloned();
    examination.guarantees = plan
        .guarantees
        .iter()
        .map(|(guarantee, hold)| (*guarantee, standing(hold, &failed, cause.as_ref())))
        .collect();
    examination.checks.push(check("rehearsal", seen));
}

/// The steps without evidence; or those that failed, and why.
fn to_the_gate(request: &Request, planned: &Planned) -> Result<Vec<usize>, (Vec<usize>, Cause)> {
    let plan = &planned.plan;
    let of_way_out = |refusal: Refusal| {
        let failed = |name: &String| plan.steps.iter().position(|step| step.name == *name);
        let steps = match &refusal {
            Refusal::WayOut { step, .. } => failed(step).into_iter().collect(),
            _ => Vec::new(),
        };
        let cause = cause::of(
            refusal.to_string(),
            "run `stockade explain` to see what the network part asks for",
        );
        (steps, cause)
    };
    let of_wall = |error: WallError| {
        let failed = match &error {
            WallError::Step { index, .. } => vec![*index],
            _ => (0..plan.steps.len()).collect(),
        };
        let cause = cause_of(&error, plan).unwrap_or_else(|| {
            cause::of(
                error.to_string(),
                "run `stockade explain --verbose` to see the step",
            )
        });
        (failed, cause)
    };
    let run = RunId::generate().map_err(|error| {
        let what = "the id of the run";
        of_way_out(Refusal::System { what, error })
    })?;
    let streams = [ChildStream::Null, ChildStream::Null, ChildStream::Null];
    let embryo = probe::identity()
        .map_err(std::io::Error::other)
        .and_then(|identity| Embryo::fork(plan.form, identity, streams, &[]));
    let mut opening = Opening::begin(request, planned, None, &run, None).map_err(of_way_out)?;
    let extras = opening.as_ref().map(Opening::extras).unwrap_or_default();
    let layer = OwnLayer::prepare(planned, &run).map_err(of_way_out)?;
    // Kept to the end, as for a run.
    let _caches = match &plan.caches {
        Some(planned) => {
            let held = caches::hold(planned, &plan.workspace);
            Some(held.map_err(|error| of_way_out(Refusal::Caches(error)))?)
        }
        None => None,
    };
    let start = Start {
        plan,
        control_groups: &planned.facts.control_groups,
        extra_environment: &extras.environment(),
        authority: extras.authority.as_deref(),
        upper: layer.as_ref().map(OwnLayer::place),
        agent: None,
        fail_at: None,
    };
    let mut gate = process_wall::start(embryo, start)
        .and_then(|underway| underway.finish(plan))
        .map_err(of_wall)?;
    if let Some(opening) = &mut opening {
        opening
            .await_ready()
            .and_then(|()| opening.test(&mut gate))
            .map_err(of_way_out)?;
    }
    Ok(gate.missing_evidence(plan))
}

/// A guarantee that rests on a step that failed cannot be held.
fn standing(hold: &Hold, failed: &[usize], cause: Option<&Cause>) -> Standing {
    let rests = match hold {
        Hold::Held { steps, .. } | Hold::Partial { steps, .. } => {
            steps.iter().any(|step| failed.contains(step))
        }
        Hold::NotHeld { .. } => false,
    };
    match cause {
        Some(cause) if rests => Standing::Cannot {
            reason: cause.reason.clone(),
            remedy: cause.remedy.clone(),
        },
        _ => Standing::Planned(hold.clone()),
    }
}

/// The guarantees that were refused, among those of the plan that there would
/// be if namespaces could be had.
fn overlay(request: &Request, items: &[Unenforceable]) -> Vec<(Guarantee, Standing)> {
    let otherwise = plan_with(request, Ability::Yes).ok();
    let planned = |guarantee: Guarantee| {
        let mut guarantees = otherwise
            .iter()
            .flat_map(|planned| &planned.plan.guarantees);
        let found = guarantees.find(|(one, _)| *one == guarantee);
        found.map(|(_, hold)| hold.clone())
    };
    let standing = |guarantee: Guarantee| {
        let refused: Vec<&Unenforceable> = items
            .iter()
            .filter(|item| item.guarantee == guarantee)
            .collect();
        if refused.is_empty() {
            return Standing::Planned(planned(guarantee).unwrap_or_else(|| Hold::NotHeld {
                because: "there is no plan for this directory under this policy".into(),
            }));
        }
        Standing::Cannot {
            reason: joined(refused.iter().map(|item| &item.reason)),
            remedy: joined(refused.iter().map(|item| &item.remedy)),
        }
    };
    let all = Guarantee::ALL.iter();
    all.map(|&guarantee| (guarantee, standing(guarantee)))
        .collect()
}

/// The distinct texts, in their order.
fn joined<'a>(texts: impl Iterator<Item = &'a String>) -> String {
    let mut distinct: Vec<&str> = Vec::new();
    for text in texts {
        if !distinct.contains(&text.as_str()) {
            distinct.push(text);
        }
    }
    distinct.join("; ")
}

/// What the form without namespaces would hold, and what has to be weakened
/// for it.
fn landlock_only(request: &Request) -> Option<Fallback> {
    let mut weaken = Vec::new();
    match plan_with(&in_landlock_only_form(request, &weaken), Ability::Yes) {
        Ok(planned) => {
            return Some(Fallback {
                weaken,
                guarantees: planned.plan.guarantees,
            });
        }
        Err(Refusal::Unenforceable(items)) => {
            weaken.extend(items.iter().map(|item| item.guarantee));
            weaken.sort_unstable();
            weaken.dedup();
        }
        Err(_) => return None,
    }
    let planned = plan_with(&in_landlock_only_form(request, &weaken), Ability::Yes).ok()?;
    Some(Fallback {
        weaken,
        guarantees: planned.plan.guarantees,
    })
}

fn in_landlock_only_form(request: &Request, weaken: &[Guarantee]) -> Request {
    let mut request = request.clone();
    let settings = &mut request.selection.settings;
    settings.retain(|setting| setting.key != "process.form");
    settings.push(CliSetting {
        key: "process.form",
        values: vec!["landlock-only".into()],
    });
    if !weaken.is_empty() {
        let values = weaken
            .iter()
            .map(|guarantee| guarantee.id().to_owned())
            .collect();
        settings.push(CliSetting {
            key: "weaken",
            values,
        });
    }
    request
}

/// What a failed step says about the machine, and the remedy. Only called
/// when a run has failed, so it may take the time to try things again.
pub fn diagnose(error: &WallError, plan: &Plan) -> Option<String> {
    cause_of(error, plan).map(|cause| cause.lines())
}

fn cause_of(error: &WallError, plan: &Plan) -> Option<Cause> {
    let here = Circumstances::read();
    let action = match error {
        WallError::Step { index, .. } => &plan.steps.get(*index)?.action,
        _ => return None,
    };
    match action {
        Action::Landlock(_) => probes::landlock()
            .err()
            .map(|error| cause::of_landlock(&error, &here)),
        Action::Seccomp { .. } => filter(&here).err(),
        Action::JoinControlGroup => control_groups().err(),
        Action::Fork => fork(&here).err(),
        _ if plan.form == Form::Namespaces => {
            let failure = probes::namespaces().err()?;
            let mut cause = cause::of_namespaces(&failure, &here);
            cause
                .remedy
                .push_str("; or accept less by name with process.form = \"landlock-only\"");
            Some(cause)
        }
        _ => None,
    }
}
