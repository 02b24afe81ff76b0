//! One run from policy to outcome.
//!
//! Everything up to the gate can refuse, and then nothing was executed; after
//! the gate there is always an outcome.

pub(crate) mod choice;
pub(crate) mod opening;

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use stockade_image::{ImageError, InUse};
use stockade_policy::compile::{self, CommandRequest};
use stockade_policy::decide::Denial;
use stockade_policy::digest::{Digest, digest};
use stockade_policy::facts::{Ability, Facts};
use stockade_policy::guarantee::Guarantee;
use stockade_policy::network::rules::Approval;
use stockade_policy::path::{AbsolutePath, printable};
use stockade_policy::plan::{Action, Form, GuestKernel, Plan, Rule, Step, Unenforceable, Wall};
use stockade_policy::policy::{GrantTarget, PathGrant};
use stockade_sys::rustix::io::read;
use stockade_sys::signal::{self, Signals};
use stockade_walls::WallError;
use stockade_walls::process::{self as process_wall, ChildStream, Embryo, Sandbox, Start};
use stockade_workspace::store::{Lock, StoreError};

use crate::caches::{self, CacheError, Held};
use crate::events::{Decision, Event, ObjectKind, RunId};
use crate::layers::{Base, LayerOutcome, OwnLayer};
use crate::load::{LoadError, Loaded, Selection, load};
use crate::log::{Log, LogError};
use crate::names::{NameSummary, Names};
use crate::notice::Notices;
use crate::outcome::{End, LimitHit, Outcome};
use crate::probe::{self, ProbeError};
use crate::sandboxes::front;
use crate::sandboxes::host::{Host, Hosting};
use crate::secrets::SecretError;
use crate::streams;
use crate::supervise::{Supervised, Supervision, handled_signals};
use crate::terminal::Terminals;
use crate::way_out::tally::NetworkSummary;
use crate::way_out::{Starting, WayOutError};
use crate::{denials, doctor, image, layers, machines};
use opening::Opening;

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub argv: Vec<std::ffi::OsString>,
    /// Where to run it; the current directory when `None`.
    pub directory: Option<PathBuf>,
    pub selection: Selection,
    /// Test aid: the name of a step that is made to fail.
    pub fail_step: Option<String>,
    pub corpus: Corpus,
    /// What is done about destinations that no rule names.
    pub unknown: Unknown,
    /// Lines on standard error while the command runs.
    pub notices: Notices,
    /// The snapshot or fork of the workspace to go on from.
    pub on: Option<String>,
    /// The program that becomes the egress process when it is called as
    /// `stockade egress`; this process's own when `None`.
    pub egress_program: Option<PathBuf>,
}

/// What is done about a destination that no rule names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    /// What the policy says under `approval.network`.
    #[default]
    AsPolicy,
    /// Permitted and recorded, as `stockade learn` does.
    Learn,
    /// And inspected, with each request, as with `stockade learn --requests`.
    LearnRequests,
    /// A person is asked, as with `stockade learn --ask`.
    Ask,
}

/// Whether the program of this process is granted inside, as the attack
/// corpus of `stockade doctor` needs. No policy can ask for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Corpus {
    #[default]
    Absent,
    /// A read grant of its own, which the plan shows like any other.
    Granted,
}

/// A plan that is ready to be applied or printed.
#[derive(Debug)]
pub struct Planned {
    pub plan: Plan,
    digest: OnceLock<Digest>,
    pub facts: Facts,
    pub loaded: Loaded,
    /// What lies below the run's own layer of the workspace.
    pub base: Base,
    /// Keeps those layers in their places until the run has them.
    kept: Mutex<Option<Lock>>,
    /// Keeps the image in its place.
    _image: Option<InUse>,
    /// Likewise the machine image.
    machine: Option<stockade_vm::store::InUse>,
}

impl Planned {
    /// The plan's digest: computed when it is first asked for, so that a launcher
    /// need not wait for it.
    pub fn digest(&self) -> Digest {
        *self.digest.get_or_init(|| digest(&self.plan))
    }

    /// Hands over what keeps the layers in their places.
    pub(crate) fn kept_layers(&self) -> Option<Lock> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.take()
    }
}

/// Why nothing was run.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error("the directory {path} cannot be used: {error}")]
    Directory { path: String, error: std::io::Error },
    #[error("{}", list(.0))]
    Unenforceable(Vec<Unenforceable>),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("{error}{}", diagnosis.as_deref().map(|text| format!("\n{text}")).unwrap_or_default())]
    Wall {
        error: WallError,
        diagnosis: Option<String>,
    },
    #[error("no evidence for {}: the command was not started (AU2)", steps.join(", "))]
    Gate { steps: Vec<String> },
    #[error(
        "step {step} failed: {error}\n  remedy: `stockade doctor` says what this machine lacks; \
         without a `network` part the command runs with no network at all"
    )]
    WayOut { step: String, error: WayOutError },
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Caches(#[from] CacheError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("there is no step called {0}\n  remedy: `stockade explain --verbose` lists the steps")]
    NoSuchStep(String),
    #[error("cannot set up {what}: {error}")]
    System {
        what: &'static str,
        error: std::io::Error,
    },
}

fn list(items: &[Unenforceable]) -> String {
    items
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

/// A finished run and what may explain its failure.
#[derive(Debug)]
pub struct Finished {
    pub outcome: Outcome,
    pub denials: Vec<Denial>,
    /// What the way out came to, if there was one.
    pub network: Option<NetworkSummary>,
    /// What was done to names, where a process outside makes them.
    pub names: Option<NameSummary>,
    /// What became of the run's own layer of the workspace, if it had one.
    pub layer: Option<LayerOutcome>,
    /// The log could not take the end of the run.
    pub log_error: Option<LogError>,
    /// Why the run was ended before the command was, if stockade failed.
    pub failure: Option<WallError>,
}

/// What is set up before the plan is known: the streams of the run, and the
/// launcher, so that the kernel makes its namespaces while the plan is being
/// compiled. Nothing in it can run a command without a plan.
pub struct Prepared {
    streams: streams::Prepared,
    signals: Signals,
    embryo: std::io::Result<Embryo>,
    /// Started as soon as the policy is known to need one.
    egress: Option<Starting>,
    /// No stream leads inside.
    detached: bool,
    /// What the program says that starts a kernel of the command's own.
    words: Option<OwnedFd>,
}

impl Prepared {
    /// Prepares a run by the caller. This process must have one thread.
    pub fn new() -> Result<Self, Refusal> {
        Self::with(false, false)
    }

    /// As [`Prepared::new`], for a sandbox to which no stream leads.
    pub fn detached() -> Result<Self, Refusal> {
        Self::with(true, false)
    }

    /// As [`Prepared::detached`], around what starts a kernel or a container of
    /// the command's own.
    fn around_guest() -> Result<Self, Refusal> {
        Self::with(true, true)
    }

    fn with(detached: bool, guest: bool) -> Result<Self, Refusal> {
        let system = |what| move |error| Refusal::System { what, error };
        let mut streams = prepare_streams(detached)?;
        let signals = Signals::take_over(&handled_signals()).map_err(system("signals"))?;
        signal::ignore(signal::PIPE);
        let (child, words) = streams_of_child(&mut streams, guest)?;
        let (form, identity) = (Form::Namespaces, probe::identity()?);
        let embryo = Embryo::fork(form, identity, child, &compile::prelude());
        Ok(Self {
            streams,
            signals,
            embryo,
            egress: None,
            detached,
            words,
        })
    }

    /// The launcher for this plan. One that has begun differently is replaced;
    /// few plans need that.
    fn launcher(&mut self, plan: &Plan) -> Result<std::io::Result<Embryo>, Refusal> {
        let gone = || Err(std::io::Error::other("the launcher was used already"));
        let embryo = std::mem::replace(&mut self.embryo, gone());
        let fits = match &embryo {
            Ok(embryo) => embryo.fits(plan),
            Err(_) => plan.form == Form::Namespaces,
        };
        if fits && (plan.guest.is_none() || self.words.is_some()) {
            return Ok(embryo);
        }
        drop(embryo);
        self.streams = prepare_streams(self.detached)?;
        let (child, words) = streams_of_child(&mut self.streams, plan.guest.is_some())?;
        self.words = words;
        Ok(Embryo::fork(plan.form, probe::identity()?, child, &[]))
    }
}

/// What the launcher takes over, and where the words can be read of what starts a
/// kernel or a container of the command's own.
fn streams_of_child(
    streams: &mut streams::Prepared,
    guest: bool,
) -> Result<([ChildStream; 3], Option<OwnedFd>), Refusal> {
    let mut child = streams.take_child();
    if !guest {
        return Ok((child, None));
    }
    let (words, said) = streams::words().map_err(|error| Refusal::System {
        what: "the standard streams",
        error,
    })?;
    child[2] = said;
    Ok((child, Some(words)))
}

fn prepare_streams(detached: bool) -> Result<streams::Prepared, Refusal> {
    let system = |error| Refusal::System {
        what: "the standard streams",
        error,
    };
    match detached {
        true => Ok(streams::none()),
        false => streams::prepare().map_err(system),
    }
}

/// Compiles the plan for a request; nothing is started. That user namespaces
/// can be had is taken for granted: to try costs a process, and the run itself
/// finds out.
pub fn plan(request: &Request) -> Result<Planned, Refusal> {
    plan_with(request, Ability::Yes)
}

/// As [`plan`], with what is known of user namespaces.
pub fn plan_with(request: &Request, user_namespaces: Ability) -> Result<Planned, Refusal> {
    compiled(request, load(&request.selection)?, user_namespaces)
}

/// As [`plan`], for a run that is to follow: what takes its time is started as
/// soon as the policy is known to need it.
pub fn plan_to_run(request: &Request, prepared: &mut Prepared) -> Result<Planned, Refusal> {
    let loaded = load(&request.selection)?;
    // Where something else starts the command another process is the
    // supervisor, and starts it.
    if wants_way_out(request, &loaded) && !loaded.policy.has_guest() {
        // A failure shows again, and is told, when the process is needed.
        prepared.egress = Starting::spawn(request.egress_program.as_deref()).ok();
    }
    let planned = compiled(request, loaded, Ability::Yes)?;
    let Some(used) = &planned.machine else {
        return Ok(planned);
    };
    let Some(machine) = machines::that_boots(&planned.plan) else {
        return Ok(planned);
    };
    let of = (machine, planned.plan.network.is_some());
    let program = request.egress_program.as_deref();
    request.notices.say(
        "stockade: a machine of this kind is booted for the first time, and saved so that others \
         need not",
    );
    match machines::save(&planned.loaded.state, used, of, program) {
        Ok(()) => {
            drop(planned);
            compiled(request, load(&request.selection)?, Ability::Yes)
        }
        Err(error) => {
            let words = format!("stockade: note: it was not saved, and boots: {error}");
            request.notices.say(&words);
            Ok(planned)
        }
    }
}

/// Whether a plan for this policy has a network part.
fn wants_way_out(request: &Request, loaded: &Loaded) -> bool {
    request.unknown != Unknown::AsPolicy || loaded.policy.network.opens_anything()
}

fn compiled(
    request: &Request,
    mut loaded: Loaded,
    user_namespaces: Ability,
) -> Result<Planned, Refusal> {
    if request.corpus == Corpus::Granted {
        loaded.policy.read.push(own_program()?);
    }
    match request.unknown {
        Unknown::AsPolicy => {}
        Unknown::Learn => loaded.policy.network.approval = Approval::Learn,
        Unknown::LearnRequests => loaded.policy.network.approval = Approval::LearnRequests,
        Unknown::Ask => loaded.policy.network.approval = Approval::Ask,
    }
    let (base, kept) = Base::choose(&mut loaded, request.on.as_deref())?;
    let directory = directory(request, &loaded)?;
    let (image, used) = image::chosen(&loaded)?.unzip();
    let mut facts = probe::facts(&loaded.policy, &loaded.home, &directory, image)?;
    facts.user_namespaces = user_namespaces;
    base.complete(&loaded, &mut facts)?;
    if wants_way_out(request, &loaded) {
        facts.redirect = probe::network::redirect(&loaded.state).map_err(LoadError::from)?;
        let image = facts.image.as_ref();
        facts.ca_bundles = probe::network::ca_bundles(image);
        facts.java_stores = probe::network::java_stores(&facts.environment, image);
    }
    let command = CommandRequest {
        argv: request
            .argv
            .iter()
            .map(|argument| argument.clone().into_vec())
            .collect(),
        directory,
    };
    let program = request.egress_program.as_deref();
    let own = (program, request.notices);
    let (mut plan, machine) = choice::cheapest(&mut loaded, &mut facts, &command, own)?;
    plan.notes.extend(loaded.notes.iter().cloned());
    Ok(Planned {
        plan,
        digest: OnceLock::new(),
        facts,
        loaded,
        base,
        kept: Mutex::new(kept),
        _image: used,
        machine,
    })
}

/// The file that this process runs, as a grant.
fn own_program() -> Result<PathGrant, Refusal> {
    let failed = |error| Refusal::System {
        what: "the program of this process",
        error,
    };
    let path = std::fs::read_link("/proc/self/exe").map_err(failed)?;
    let path = AbsolutePath::parse(path.into_os_string().into_vec())
        .map_err(|error| failed(std::io::Error::other(error)))?;
    let rule = Rule {
        id: "doctor.attack".into(),
        origin: "built-in".into(),
        reason: "attack corpus".into(),
    };
    Ok(PathGrant {
        target: GrantTarget::Path(path),
        rule,
    })
}

fn directory(request: &Request, loaded: &Loaded) -> Result<AbsolutePath, Refusal> {
    let Some(path) = &request.directory else {
        return Ok(loaded.current.clone());
    };
    let failed = |error: std::io::Error| Refusal::Directory {
        path: stockade_policy::path::printable(path.as_os_str().as_encoded_bytes()),
        error,
    };
    let resolved = std::fs::canonicalize(path).map_err(failed)?;
    AbsolutePath::parse(resolved.into_os_string().into_vec())
        .map_err(|error| failed(std::io::Error::other(error)))
}

/// Runs the command under its plan.
pub fn run(request: &Request, planned: &Planned, prepared: Prepared) -> Result<Finished, Refusal> {
    if planned.plan.guest.is_none() {
        return begin(request, planned, prepared, None);
    }
    // What was prepared for a command of the host's kernel is of no use here.
    drop(prepared);
    let caller = front::divide(&planned.plan).map_err(|error| Refusal::System {
        what: "the supervisor",
        error,
    })?;
    let hosting = Hosting::Once { caller };
    begin(request, planned, Prepared::around_guest()?, Some(hosting))
}

/// As [`run`], with the agent as the command: returns when the sandbox is over.
/// One in which the agent never greeted is a refusal.
pub fn stay(
    request: &Request,
    planned: &Planned,
    prepared: Prepared,
    hosting: Hosting,
) -> Result<Finished, Refusal> {
    if planned.plan.form == Form::LandlockOnly {
        return Err(Refusal::Unenforceable(vec![no_namespaces(
            planned.plan.wall.word(),
        )]));
    }
    begin(request, planned, prepared, Some(hosting))
}

/// Why a sandbox in the Landlock-only form cannot stay.
fn no_namespaces(wall: &'static str) -> Unenforceable {
    Unenforceable {
        guarantee: Guarantee::PR4,
        wall,
        reason: "without a pid namespace what commands leave behind cannot be ended when the \
                 sandbox is"
            .into(),
        remedy: "`stockade doctor` says how this machine gets user namespaces; `stockade run` \
                 works without them"
            .into(),
    }
}

/// Why a plan for macOS is only explained here.
fn only_on_macos() -> Unenforceable {
    Unenforceable {
        guarantee: Guarantee::FS1,
        wall: Wall::Seatbelt.word(),
        reason: "this wall is macOS's: Linux has no Seatbelt".into(),
        remedy: "use wall = \"process\", or `stockade explain` to see what a Mac would apply"
            .into(),
    }
}

fn begin(
    request: &Request,
    planned: &Planned,
    prepared: Prepared,
    hosting: Option<Hosting>,
) -> Result<Finished, Refusal> {
    if planned.plan.wall == Wall::Seatbelt {
        return Err(Refusal::Unenforceable(vec![only_on_macos()]));
    }
    let run = RunId::generate().map_err(|error| Refusal::System {
        what: "the id of the run",
        error,
    })?;
    let log = Log::at(&planned.loaded.state);
    let caches = hold_caches(planned, &run, &log)?;
    let mut layer = None;
    let result = OwnLayer::prepare(planned, &run).and_then(|own| {
        layer = own;
        let host = hosting.map(|hosting| host(hosting, planned, &run, &log));
        let host = host.transpose()?;
        gate(
            request,
            planned,
            prepared,
            &run,
            &log,
            (layer.as_ref(), host),
        )
    });
    let (supervision, evidence, words) = match result {
        Ok(started) => started,
        Err(refusal) => {
            log.append(Some(&run), &[refusal_event(&refusal)], SystemTime::now())?;
            return Err(refusal);
        }
    };
    let clock = Instant::now();
    let mut supervised = supervision.run();
    let network = supervised.network.take();
    let names = supervised.names.take();
    // It keeps its name until nothing is left.
    let mut host = supervised.host.take();
    let mut evidence = evidence;
    let mut met = Vec::new();
    if let Some(host) = &mut host {
        host.await_front();
        supervised.end = host.end_of_command(supervised.end.clone());
        supervised.last_words.extend_from_slice(host.last_words());
        evidence.extend(kernel_seen(&planned.plan, host));
        met = host.limits_met();
    }
    let mut outcome = outcome(planned, run.clone(), &supervised, clock.elapsed(), evidence);
    met.retain(|limit| !outcome.limits_hit.contains(limit));
    outcome.limits_hit.append(&mut met);
    let mut finished = finish(planned, outcome, &supervised.last_words, &run, &log);
    finished.failure = supervised.failure.take();
    finished.network = network;
    finished.names = names;
    // Now at the latest everything of the sandbox is gone.
    drop(supervised);
    if let (Some(held), Some(caches)) = (caches, &planned.plan.caches) {
        held.release(caches.bytes_max, request.egress_program.as_deref());
    }
    let is_littered = layer.as_ref().is_some_and(OwnLayer::is_littered);
    finished.layer = layer.map(|layer| layer.finish(finished.outcome.exit_code()));
    if is_littered || matches!(finished.layer, Some(LayerOutcome::Waiting { .. })) {
        layers::tend(request.egress_program.as_deref(), &planned.plan.workspace);
    }
    match host {
        Some(host) if !host.stood() => Err(Refusal::System {
            what: "the agent",
            error: std::io::Error::other(reason(&host, words)),
        }),
        _ => Ok(finished),
    }
}

/// Why a sandbox did not stand, with what was said within it.
fn reason(host: &Host, words: Option<OwnedFd>) -> String {
    let mut said = [0; 2048];
    let length = words.map_or(0, |words| read(&words, &mut said).unwrap_or(0));
    match said[..length].trim_ascii() {
        b"" => host.reason().to_owned(),
        said => format!("{}; it said: {}", host.reason(), printable(said)),
    }
}

/// What showed in which kernel the command ran.
fn kernel_seen(plan: &Plan, host: &Host) -> Option<process_wall::Evidence> {
    let seen = |step: &Step| step.action == Action::SeeGuestKernel;
    Some(process_wall::Evidence {
        step: plan.steps.iter().position(seen)?,
        detail: host.kernel()?.to_owned(),
    })
}

/// What stands between the agent of a sandbox that stays and its callers.
fn host(hosting: Hosting, planned: &Planned, run: &RunId, log: &Log) -> Result<Host, Refusal> {
    let failed = |error| Refusal::System {
        what: "the agent",
        error,
    };
    let state = saved_state(planned).map_err(std::io::Error::other);
    let state = state.map_err(failed)?;
    hosting
        .begin(state, run, &planned.plan, log)
        .map_err(failed)
}

/// The state from which a machine goes on, seen to be the plan's.
fn saved_state(planned: &Planned) -> Result<Option<OwnedFd>, stockade_vm::VmError> {
    let guest = planned.plan.guest.as_ref().map(|guest| &guest.kernel);
    let (Some(GuestKernel::Machine(machine)), Some(used)) = (guest, &planned.machine) else {
        return Ok(None);
    };
    let Some(digest) = &machine.saved else {
        return Ok(None);
    };
    let network = planned.plan.network.is_some();
    let state = used.open_saved(machine.memory, network, digest)?;
    Ok(Some(state.into()))
}

/// Makes the caches of the plan, and keeps them while the command runs.
fn hold_caches(planned: &Planned, run: &RunId, log: &Log) -> Result<Option<Held>, Refusal> {
    let Some(caches) = &planned.plan.caches else {
        return Ok(None);
    };
    match caches::hold(caches, &planned.plan.workspace) {
        Ok(held) => Ok(Some(held)),
        Err(error) => {
            let refusal = Refusal::Caches(error);
            log.append(Some(run), &[refusal_event(&refusal)], SystemTime::now())?;
            Err(refusal)
        }
    }
}

/// What runs, what showed that it may, and what the program says that starts a
/// kernel of the command's own.
type Started = (Supervision, Vec<process_wall::Evidence>, Option<OwnedFd>);

/// Sets everything up, checks the evidence and opens the gate.
fn gate(
    request: &Request,
    planned: &Planned,
    mut prepared: Prepared,
    run: &RunId,
    log: &Log,
    (layer, mut host): (Option<&OwnLayer>, Option<Host>),
) -> Result<Started, Refusal> {
    let plan = &planned.plan;
    let fail_at = fail_at(request, plan)?;
    let system = |what| move |error| Refusal::System { what, error };
    let early = prepared.egress.take();
    let mut opening = Opening::begin(request, planned, early, run, fail_at)?;
    let extras = opening.as_ref().map(Opening::extras).unwrap_or_default();
    let more = extras.environment();
    if let Some(host) = &mut host {
        host.add_environment(more.clone());
    }
    let start = Start {
        plan,
        control_groups: &planned.facts.control_groups,
        extra_environment: &more,
        authority: extras.authority.as_deref(),
        upper: layer.map(OwnLayer::place),
        agent: host.as_mut().and_then(Host::take_agent),
        fail_at,
    };
    let embryo = prepared.launcher(plan)?;
    let (streams, signals, words) = (prepared.streams, prepared.signals, prepared.words);
    let refused = |error| Refusal::Wall {
        diagnosis: doctor::diagnose(&error, plan),
        error,
    };
    let underway = process_wall::start(embryo, start).map_err(refused)?;
    // While the launcher works. A command whose run is not on record is not
    // started.
    let event = Event::run_planned(plan, &planned.digest().to_string());
    log.append(Some(run), &[event], SystemTime::now())?;
    if let Some(opening) = &mut opening {
        opening.await_ready()?;
    }
    let mut gate = underway.finish(plan).map_err(refused)?;
    if let Some(opening) = &mut opening {
        opening.test(&mut gate)?;
    }
    demand_evidence(&gate, plan, fail_at)?;
    let on_terminal = streams.terminal.is_some();
    let terminals = streams.terminal.zip(gate.terminal.take());
    let terminals = terminals.map(|(caller, master)| Terminals::connect(caller, master));
    let terminals = terminals.transpose().map_err(system("the terminal"))?;
    let evidence = std::mem::take(&mut gate.evidence);
    let process = gate.pid();
    let opened =
        opening.map(|opening| opening.open(request, planned, run, log, process, on_terminal));
    let way_out = opened.transpose()?;
    let names = names(&mut gate, planned, run);
    let late = |error| Refusal::Wall {
        error,
        diagnosis: None,
    };
    let out_of_memory = gate.out_of_memory().map_err(late)?;
    let sandbox = gate.go().map_err(late)?;
    log.append(Some(run), &[Event::Started { process }], SystemTime::now())?;
    let supervision = Supervision {
        sandbox,
        signals,
        input: streams.input,
        outputs: streams.outputs,
        terminals,
        wall_time: plan.limits.wall_time_ms.map(Duration::from_millis),
        out_of_memory,
        way_out,
        names,
        host,
        ended: None,
    };
    Ok((supervision, evidence, words))
}

/// What makes names for the sandbox, where its plan has that.
fn names(gate: &mut process_wall::AtGate, planned: &Planned, run: &RunId) -> Option<Names> {
    let supervision = gate.names.take()?;
    let architecture = planned.facts.architecture;
    let state = &planned.loaded.state;
    Some(Names::new(
        supervision,
        &planned.plan,
        architecture,
        run,
        state,
    ))
}

/// Refuses unless each step of the plan has shown something.
fn demand_evidence(
    gate: &process_wall::AtGate,
    plan: &Plan,
    fail_at: Option<usize>,
) -> Result<(), Refusal> {
    let is_seen_within = |step: &usize| plan.steps[*step].action == Action::SeeGuestKernel;
    let mut missing = gate.missing_evidence(plan);
    // Here it can be made to fail, which no other step outside has to see.
    missing.extend(fail_at.filter(is_seen_within));
    match missing.is_empty() {
        true => Ok(()),
        false => Err(without_evidence(plan, &missing)),
    }
}

/// Names the steps of the plan that showed nothing.
fn without_evidence(plan: &Plan, missing: &[usize]) -> Refusal {
    let name = |&index: &usize| plan.steps[index].name.clone();
    Refusal::Gate {
        steps: missing.iter().map(name).collect(),
    }
}

fn fail_at(request: &Request, plan: &Plan) -> Result<Option<usize>, Refusal> {
    let Some(name) = &request.fail_step else {
        return Ok(None);
    };
    match plan.steps.iter().position(|step| step.name == *name) {
        Some(index) => Ok(Some(index)),
        None => Err(Refusal::NoSuchStep(name.clone())),
    }
}

fn refusal_event(refusal: &Refusal) -> Event {
    match refusal {
        Refusal::Wall {
            error: WallError::Step { name, detail, .. },
            ..
        } => Event::step_failed(name, detail),
        Refusal::WayOut { step, error } => Event::step_failed(step, &error.to_string()),
        Refusal::Gate { steps } => Event::step_failed(&steps.join(", "), "no evidence"),
        other => Event::refused(None, &other.to_string(), ""),
    }
}

fn outcome(
    planned: &Planned,
    run: RunId,
    supervised: &Supervised,
    duration: Duration,
    evidence: Vec<process_wall::Evidence>,
) -> Outcome {
    let Supervised { sandbox, usage, .. } = supervised;
    let mut end = supervised.end.clone();
    let mut limits_hit: Vec<LimitHit> =
        usage.limits_met.iter().map(|&limit| limit.into()).collect();
    let mut peak_memory_bytes = usage.peak_memory_bytes;
    read_group(sandbox, &mut end, &mut limits_hit, &mut peak_memory_bytes);
    let by_signal = |number| {
        matches!(end, End::Killed { signal, .. } if signal == number)
            || matches!(end, End::Exited(code) if code == crate::outcome::EXIT_SIGNAL_BASE + number)
    };
    // Who ignores SIGXCPU is killed at the hard limit, one second later.
    let spent = |seconds: u64| by_signal(signal::KILL) && usage.cpu_micros >= seconds * 1_000_000;
    if let Some(seconds) = planned.plan.limits.cpu_seconds
        && (by_signal(signal::CPU_TIME) || spent(seconds))
    {
        limits_hit.push(LimitHit::CpuTime);
    }
    if planned.plan.limits.file_bytes.is_some() && by_signal(signal::FILE_SIZE) {
        limits_hit.push(LimitHit::FileSize);
    }
    if let End::Limit(limit) = end
        && !limits_hit.contains(&limit)
    {
        limits_hit.insert(0, limit);
    }
    Outcome {
        run: run.as_str().to_owned(),
        digest: planned.digest(),
        end,
        limits_hit,
        duration,
        cpu: Duration::from_micros(usage.cpu_micros),
        peak_memory_bytes,
        evidence,
    }
}

/// A control group knows exactly what was reached.
fn read_group(sandbox: &Sandbox, end: &mut End, hit: &mut Vec<LimitHit>, peak: &mut u64) {
    let Some(counted) = sandbox.counted() else {
        return;
    };
    *peak = (*peak).max(counted.peak_memory_bytes.unwrap_or(0));
    if counted.memory_kills > 0 {
        hit.push(LimitHit::Memory);
        // The kernel may have picked the sandbox's init: then the launcher
        // could not report, but the counter says why it is gone.
        if *end == End::Lost {
            *end = End::Limit(LimitHit::Memory);
        }
    }
    if counted.refused_forks > 0 {
        hit.push(LimitHit::Processes);
    }
}

fn finish(
    planned: &Planned,
    outcome: Outcome,
    last_words: &[u8],
    run: &RunId,
    log: &Log,
) -> Finished {
    let failed = !matches!(outcome.end, End::Exited(0));
    let denials = if failed {
        denials::explain(&planned.plan, last_words)
    } else {
        Vec::new()
    };
    let mut events: Vec<Event> = denials
        .iter()
        .map(|denial| {
            let object = denial.record().object;
            let decision = Decision::new(object.as_bytes(), ObjectKind::Read, &denial.rule);
            let grant = denial.smallest_grant.as_deref();
            Event::Denied(match grant {
                Some(grant) => decision.with_grant(grant),
                None => decision,
            })
        })
        .collect();
    events.extend(outcome.limits_hit.iter().map(|limit| Event::LimitHit {
        limit: limit.key().to_owned(),
    }));
    events.push(Event::Exited {
        code: match outcome.end {
            End::Exited(code) => Some(code),
            _ => None,
        },
        signal: match outcome.end {
            End::Killed { signal, .. } => Some(signal),
            _ => None,
        },
        duration_ms: outcome.duration.as_millis() as u64,
        peak_memory_bytes: Some(outcome.peak_memory_bytes),
    });
    let log_error = log.append(Some(run), &events, SystemTime::now()).err();
    Finished {
        outcome,
        denials,
        network: None,
        names: None,
        layer: None,
        log_error,
        failure: None,
    }
}
