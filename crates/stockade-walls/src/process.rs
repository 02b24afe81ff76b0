//! The process wall: namespaces, a private view, Landlock and seccomp around
//! an ordinary process, without any helper program.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use stockade_launch::Birth;
use stockade_launch::wire::{self, Assignment, Attached, Report, Request, Watch};
use stockade_policy::facts::ControlGroups;
use stockade_policy::path::AbsolutePath;
use stockade_policy::plan::{Action, Form, GuestKernel, Limits, Listener, Plan, Step};
use stockade_sys::counter;
use stockade_sys::message::{self, Message, Wait};
use stockade_sys::process::{Child, Forked, Namespaces, fork_into};
use stockade_sys::rustix::fs::{AtFlags, MemfdFlags, Mode, OFlags, memfd_create, openat, statat};
use stockade_sys::rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use stockade_sys::rustix::process::{
    DumpableBehavior, Signal, WaitId, WaitIdOptions, pidfd_send_signal, set_dumpable_behavior,
    waitid,
};

use crate::agent::Agent;
use crate::control_group::{ControlGroup, Counted};
use crate::{WallError, guest, lower};

/// The child's end of a standard stream.
#[derive(Debug)]
pub enum ChildStream {
    Null,
    /// Closed in this process once the child has it.
    Descriptor(std::sync::Arc<OwnedFd>),
    Terminal,
}

/// Who the sandbox runs as: the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// Map all ids onto themselves, not only the caller's.
    pub every_id: bool,
}

/// A forked launcher that waits for its assignment. Made before the plan is
/// known, so that the kernel makes the namespaces meanwhile. Dropping it kills
/// it.
#[derive(Debug)]
pub struct Embryo {
    sandbox: Sandbox,
    namespaces: Namespaces,
    prelude: Vec<Step>,
    /// What shows that the id maps are in place.
    mapped: io::Result<String>,
}

/// Where a run's own layer of the workspace is: directories of the store that
/// exist, on one mount, links resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpperLayer {
    pub upper: AbsolutePath,
    /// overlayfs works here.
    pub work: AbsolutePath,
}

/// What a start needs besides the launcher.
pub struct Start<'a> {
    pub plan: &'a Plan,
    pub control_groups: &'a ControlGroups,
    /// Variables whose values are made with the sandbox and so are in no plan
    /// (placeholders for secrets); they replace those of the plan.
    pub extra_environment: &'a [(Vec<u8>, Vec<u8>)],
    /// Certificate (PEM) of the sandbox's own authority, for the plan's trust
    /// stores.
    pub authority: Option<&'a [u8]>,
    /// For a plan with an overlay of the workspace. It is made with the run
    /// and so is in no plan.
    pub upper: Option<&'a UpperLayer>,
    /// For a sandbox that stays: what is run instead of the plan's command.
    pub agent: Option<Agent>,
    /// Test aid: make this step of the plan fail.
    pub fail_at: Option<usize>,
}

/// A sandbox in which everything is set up and nothing was executed. Dropping
/// it kills it.
#[derive(Debug)]
pub struct AtGate {
    sandbox: Sandbox,
    /// One for each step of the plan that took effect.
    pub evidence: Vec<Evidence>,
    /// Master side of the private terminal.
    pub terminal: Option<OwnedFd>,
    /// Sockets of the sandbox, in the order of the plan's [`Action::Listen`];
    /// one listener may have several, for instance one for each family.
    pub listeners: Vec<(Listener, OwnedFd)>,
    /// What the process needs that makes names ([`Action::SuperviseNames`]).
    pub names: Option<NameSupervision>,
}

/// Where the calls arrive that make names, and the sandbox's view.
#[derive(Debug)]
pub struct NameSupervision {
    pub listener: OwnedFd,
    pub user_namespace: OwnedFd,
    pub mount_namespace: OwnedFd,
}

impl NameSupervision {
    /// `None` when one is missing.
    fn of(mut attached: Vec<(Attached, OwnedFd)>) -> Option<Self> {
        let mut take = |kind: Attached| {
            let index = attached.iter().position(|(one, _)| *one == kind)?;
            Some(attached.swap_remove(index).1)
        };
        Some(Self {
            listener: take(Attached::Names)?,
            user_namespace: take(Attached::UserNamespace)?,
            mount_namespace: take(Attached::MountNamespace)?,
        })
    }
}

/// What shows that a step of the plan took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Index into the plan's steps.
    pub step: usize,
    pub detail: String,
}

/// A sandbox whose command runs or has run. Dropping it kills what is left.
#[derive(Debug)]
pub struct Sandbox {
    child: OwnedFd,
    pid: u32,
    control: OwnedFd,
    group: Option<ControlGroup>,
    reaped: bool,
}

impl Embryo {
    /// Whether the launcher can go on with this plan: it was forked for its
    /// form, and what it has done is what the plan begins with.
    pub fn fits(&self, plan: &Plan) -> bool {
        let form = match self.namespaces {
            Namespaces::Own => Form::Namespaces,
            Namespaces::None => Form::LandlockOnly,
        };
        let steps = plan
            .steps
            .iter()
            .filter(|step| lower::is_for_launcher(step));
        form == plan.form && self.prelude.iter().eq(steps.take(self.prelude.len()))
    }

    /// Forks the launcher, which inherits `streams` and performs the steps of
    /// `prelude` at once, and maps the ids.
    ///
    /// Afterwards this process is not dumpable. It cannot be so earlier:
    /// /proc/PID/uid_map of a child forked from a process that is not dumpable
    /// belongs to root.
    pub fn fork(
        form: Form,
        identity: Identity,
        streams: [ChildStream; 3],
        prelude: &[Step],
    ) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (control, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let namespaces = match form {
            Form::Namespaces => Namespaces::Own,
            Form::LandlockOnly => Namespaces::None,
            Form::Seatbelt => return Err(io::ErrorKind::Unsupported.into()),
        };
        let birth = Birth {
            namespaces,
            streams: streams.each_ref().map(|stream| match stream {
                ChildStream::Null => wire::Stream::Null,
                ChildStream::Terminal => wire::Stream::Terminal,
                ChildStream::Descriptor(fd) => wire::Stream::Descriptor(fd.as_raw_fd()),
            }),
            prelude: lower::prelude(prelude),
        };
        set_dumpable_behavior(DumpableBehavior::Dumpable)?;
        let Child { pid, pidfd } = match fork_into(namespaces)? {
            Forked::Child => {
                // Else the launcher would keep its own socket open, and never
                // see that the supervisor died before it was tied to it.
                drop(control);
                stockade_launch::launch(theirs, &birth)
            }
            Forked::Parent(child) => child,
        };
        let mut embryo = Self {
            sandbox: Sandbox {
                child: pidfd,
                pid,
                control,
                group: None,
                reaped: false,
            },
            namespaces,
            prelude: prelude.to_vec(),
            mapped: Ok("no namespace, no map".into()),
        };
        if namespaces == Namespaces::Own {
            embryo.mapped = map_ids(pid, identity);
            // A launcher that is gone shows when the plan is handed over.
            let _gone = embryo.sandbox.request(&Request::Mapped).is_err();
        }
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        Ok(embryo)
    }
}

/// A sandbox that is being set up by its launcher. Dropping it kills it.
#[derive(Debug)]
pub struct Underway(AtGate);

impl Underway {
    /// Waits until everything is set up.
    pub fn finish(self, plan: &Plan) -> Result<AtGate, WallError> {
        let mut gate = self.0;
        gate.await_ready(plan)?;
        Ok(gate)
    }
}

/// Has a sandbox set up to the gate, which goes on while the caller does
/// something else. `embryo` is the outcome of [`Embryo::fork`] for this plan.
pub fn start(embryo: io::Result<Embryo>, start: Start<'_>) -> Result<Underway, WallError> {
    let plan = start.plan;
    let mut embryo = embryo.map_err(|error| {
        step_failed(plan, &error, |action| {
            matches!(action, Action::CloneNamespaces | Action::Fork)
        })
    })?;
    if !embryo.fits(plan) {
        return Err(WallError::Protocol(
            "the launcher was forked for another plan".into(),
        ));
    }
    if has(plan, |action| matches!(action, Action::JoinControlGroup)) {
        embryo.sandbox.group = ControlGroup::create(start.control_groups, &group_limits(plan))
            .map_err(|error| {
                step_failed(plan, &error, |action| {
                    matches!(action, Action::JoinControlGroup)
                })
            })?;
    }
    if plan.has_overlay() != start.upper.is_some() {
        return Err(WallError::Protocol(
            "an overlay and its upper layer come together".into(),
        ));
    }
    let assignment = assignment(&start, &embryo)?;
    let mut gate = AtGate {
        sandbox: embryo.sandbox,
        evidence: Vec::with_capacity(plan.steps.len()),
        terminal: None,
        listeners: Vec::new(),
        names: None,
    };
    gate.supervise(plan, embryo.mapped, start.fail_at)?;
    gate.sandbox
        .begin(plan, &assignment, start.agent.as_ref())?;
    Ok(Underway(gate))
}

/// How fast the processor's counter is, which a machine that boots has to be told
/// and no other; it is measured then, and in no plan.
fn counter_khz(plan: &Plan) -> u32 {
    let kernel = plan.guest.as_ref().map(|guest| &guest.kernel);
    match kernel {
        Some(GuestKernel::Machine(machine)) if machine.saved.is_none() => {
            counter::ticks_per_millisecond()
        }
        _ => 0,
    }
}

/// What the control group is held to.
fn group_limits(plan: &Plan) -> Limits {
    let mut limits = plan.limits.clone();
    if plan.wall.has_own_kernel() {
        limits.processes = limits.processes_around_guest();
    }
    limits
}

/// The step that joins the control group.
fn joining(plan: &Plan) -> Option<usize> {
    let joins = |step: &stockade_policy::plan::Step| step.action == Action::JoinControlGroup;
    plan.steps.iter().position(joins)
}

fn has(plan: &Plan, which: impl Fn(&Action) -> bool) -> bool {
    plan.steps.iter().any(|step| which(&step.action))
}

/// The failure of the first step that `which` names.
fn step_failed(plan: &Plan, error: &io::Error, which: impl Fn(&Action) -> bool) -> WallError {
    let index = plan
        .steps
        .iter()
        .position(|step| which(&step.action))
        .unwrap_or(0);
    step_error(
        plan,
        index,
        error.to_string(),
        error.raw_os_error().unwrap_or(0),
    )
}

fn step_error(plan: &Plan, index: usize, detail: String, errno: i32) -> WallError {
    let name = plan
        .steps
        .get(index)
        .map_or_else(|| "unknown".into(), |step| step.name.clone());
    WallError::Step {
        index,
        name,
        detail,
        errno,
    }
}

fn assignment(start: &Start<'_>, embryo: &Embryo) -> Result<Vec<u8>, WallError> {
    let plan = start.plan;
    // A control group holds memory and processes exactly; without one the
    // launcher samples.
    let grouped = embryo.sandbox.group.is_some();
    let processes = match plan.wall.has_own_kernel() {
        true => plan.limits.processes_around_guest(),
        false => plan.limits.processes,
    };
    let watch = Watch {
        memory_bytes_max: plan.limits.memory_bytes.filter(|_| !grouped),
        processes_max: processes.filter(|_| !grouped),
    };
    let environment = environment(&plan.command.environment, start.extra_environment);
    Assignment {
        version: wire::VERSION,
        steps: lower::launcher_steps(plan, own_namespaces()?, start.upper, &environment),
        argv: plan.command.argv.clone(),
        environment,
        umask: plan.umask,
        guest: guest::executed(plan, counter_khz(plan)),
        watch,
        authority: start.authority.map(<[u8]>::to_vec),
        fail_at: start.fail_at.map(|step| step as u32),
    }
    .encode()
    .map_err(|error| WallError::Protocol(error.to_string()))
}

/// The variables of the plan, replaced and completed by others.
fn environment(
    planned: &[(Vec<u8>, Vec<u8>)],
    extra: &[(Vec<u8>, Vec<u8>)],
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let kept = planned
        .iter()
        .filter(|(name, _)| !extra.iter().any(|(replaced, _)| replaced == name));
    kept.chain(extra).cloned().collect()
}

fn own_namespaces() -> Result<wire::NamespaceIds, WallError> {
    let failed = |error: stockade_sys::rustix::io::Errno| {
        WallError::system("stat of /proc/self/ns")(error.into())
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(
        stockade_sys::rustix::fs::CWD,
        "/proc/self/ns",
        flags,
        Mode::empty(),
    )
    .map_err(failed)?;
    let mut ids = [0; wire::NAMESPACES.len()];
    for (id, name) in ids.iter_mut().zip(wire::NAMESPACES) {
        *id = statat(&directory, name, AtFlags::empty())
            .map_err(failed)?
            .st_ino;
    }
    Ok(ids)
}

impl AtGate {
    /// Performs the supervisor's steps.
    fn supervise(
        &mut self,
        plan: &Plan,
        mapped: io::Result<String>,
        fail_at: Option<usize>,
    ) -> Result<(), WallError> {
        let mut mapped = Some(mapped);
        for (index, step) in plan.steps.iter().enumerate() {
            let done = match &step.action {
                Action::CloneNamespaces => Ok("clone3 made the namespaces".to_string()),
                Action::Fork => Ok("forked".into()),
                Action::PrivateStreams => {
                    Ok("standard streams are pipes or a terminal of our own".into())
                }
                Action::MapIds { .. } => match mapped.take() {
                    Some(mapped) => mapped,
                    None => Err(io::Error::other("the ids are mapped once")),
                },
                Action::JoinControlGroup => match &self.sandbox.group {
                    Some(group) => group.join(self.sandbox.pid).map(|()| String::new()),
                    None => Err(io::Error::other("there is no control group to join")),
                },
                _ => continue,
            };
            let done = if fail_at == Some(index) {
                Err(io::Error::other("made to fail by --fail-step"))
            } else {
                done
            };
            let detail = done.map_err(|error| {
                step_error(
                    plan,
                    index,
                    error.to_string(),
                    error.raw_os_error().unwrap_or(0),
                )
            })?;
            // Whether it is in its group is seen when it is ready.
            if step.action != Action::JoinControlGroup {
                self.evidence.push(Evidence {
                    step: index,
                    detail,
                });
            }
        }
        Ok(())
    }

    /// Looks whether the launcher is in its control group.
    fn see_group(&mut self, plan: &Plan) -> Result<(), WallError> {
        let (Some(step), Some(group)) = (joining(plan), &self.sandbox.group) else {
            return Ok(());
        };
        let detail = group.shows(self.sandbox.pid).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(0);
            step_error(plan, step, error.to_string(), errno)
        })?;
        self.evidence.push(Evidence { step, detail });
        Ok(())
    }

    fn await_ready(&mut self, plan: &Plan) -> Result<(), WallError> {
        let (report, descriptors) = self.sandbox.receive_with_descriptors()?;
        match report {
            Some(Report::Ready { evidence, attached }) => {
                for wire::Evidence { index, detail } in evidence {
                    self.evidence.push(Evidence {
                        step: index as usize,
                        detail,
                    });
                }
                self.see_group(plan)?;
                self.take_over(plan, &attached, descriptors)
            }
            Some(Report::StepFailed {
                index,
                errno,
                detail,
            }) => Err(step_error(plan, index as usize, detail, errno)),
            Some(other) => Err(WallError::Protocol(format!("{other:?} before the gate"))),
            None => Err(WallError::LauncherGone),
        }
    }

    /// Sorts the descriptors that came with the report.
    fn take_over(
        &mut self,
        plan: &Plan,
        attached: &[Attached],
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), WallError> {
        if attached.len() != descriptors.len() {
            return Err(WallError::Protocol(format!(
                "{} descriptors came instead of {}",
                descriptors.len(),
                attached.len()
            )));
        }
        let planned = plan.steps.iter().find_map(|step| match &step.action {
            Action::Listen { listeners } => Some(listeners.as_slice()),
            _ => None,
        });
        let mut supervision = Vec::new();
        for (attached, descriptor) in attached.iter().zip(descriptors) {
            match attached {
                Attached::Terminal => self.terminal = Some(descriptor),
                Attached::Names | Attached::UserNamespace | Attached::MountNamespace => {
                    supervision.push((*attached, descriptor));
                }
                Attached::Listener(index) => {
                    let listener = planned.unwrap_or_default().get(*index as usize);
                    let listener = listener.ok_or_else(|| {
                        WallError::Protocol("a socket came that was not asked for".into())
                    })?;
                    self.listeners.push((listener.clone(), descriptor));
                }
            }
        }
        self.names = NameSupervision::of(supervision);
        // Held calls that nobody decides would wait for ever.
        let supervises = |action: &Action| matches!(action, Action::SuperviseNames { .. });
        if has(plan, supervises) && self.names.is_none() {
            return Err(WallError::Protocol(
                "the listener for names is missing".into(),
            ));
        }
        Ok(())
    }

    /// The steps of the plan for which there is no evidence, but for what is seen
    /// within, before a command is started there.
    pub fn missing_evidence(&self, plan: &Plan) -> Vec<usize> {
        let mut missing = without_evidence(plan.steps.len(), &self.evidence);
        missing.retain(|&step| plan.steps[step].action != Action::SeeGuestKernel);
        missing
    }

    /// Process id of the sandbox's init, as seen outside.
    pub fn pid(&self) -> u32 {
        self.sandbox.pid
    }

    /// A descriptor that becomes readable when the sandbox ran out of memory
    /// and goes on with one process less; `None` where that cannot be.
    pub fn out_of_memory(&self) -> Result<Option<OwnedFd>, WallError> {
        match &self.sandbox.group {
            Some(group) => group
                .out_of_memory()
                .map_err(WallError::system("watch for the end of memory")),
            None => Ok(None),
        }
    }

    /// Opens the gate: the command is executed.
    pub fn go(self) -> Result<Sandbox, WallError> {
        self.sandbox.request(&Request::Go)?;
        Ok(self.sandbox)
    }
}

/// The numbers below `steps` that no evidence is about.
fn without_evidence(steps: usize, evidence: &[Evidence]) -> Vec<usize> {
    let mut seen = vec![false; steps];
    for evidence in evidence {
        if let Some(slot) = seen.get_mut(evidence.step) {
            *slot = true;
        }
    }
    (0..steps).filter(|&step| !seen[step]).collect()
}

impl Sandbox {
    /// Readable when the launcher has something to report or is gone.
    pub fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// The next report; `None` when the launcher is gone.
    pub fn receive(&self) -> Result<Option<Report>, WallError> {
        self.receive_with_descriptors().map(|(report, _)| report)
    }

    /// Sends a signal to the command.
    pub fn signal(&self, number: i32, group: bool) -> Result<(), WallError> {
        self.request(&Request::Signal { number, group })
    }

    /// Kills everything inside and waits until it is gone.
    pub fn kill(&mut self) {
        if !self.reaped {
            // Gone already is as good as killed.
            let _gone = pidfd_send_signal(&self.child, Signal::KILL).is_err();
            self.wait();
        }
    }

    /// Waits until the sandbox's init is gone; the kernel has then killed
    /// everything else in its pid namespace.
    pub fn wait(&mut self) {
        while !self.reaped {
            match waitid(WaitId::PidFd(self.child.as_fd()), WaitIdOptions::EXITED) {
                Err(error) if error == stockade_sys::rustix::io::Errno::INTR => {}
                _ => self.reaped = true,
            }
        }
    }

    /// What the control group counted, if there is one.
    pub fn counted(&self) -> Option<Counted> {
        self.group.as_ref().map(ControlGroup::counted)
    }

    /// Hands the assignment over in a memory file and says to begin.
    fn begin(
        &self,
        plan: &Plan,
        assignment: &[u8],
        agent: Option<&Agent>,
    ) -> Result<(), WallError> {
        let flags = MemfdFlags::CLOEXEC;
        let file = memfd_create("stockade-plan", flags)
            .map_err(|error| WallError::system("memfd_create")(error.into()))?;
        std::fs::File::from(file.try_clone().map_err(WallError::system("dup"))?)
            .write_all(assignment)
            .map_err(WallError::system("write of the plan"))?;
        let entrances = match &self.group {
            Some(group) => group.entrances(),
            None => Ok(Vec::new()),
        };
        let entrances = entrances.map_err(|error| {
            step_failed(plan, &error, |action| *action == Action::JoinControlGroup)
        })?;
        let join = joining(plan).map(|step| (step as u32, entrances.len() as u8));
        let bytes = wire::encode_message(&Request::Begin { join })
            .map_err(|error| WallError::Protocol(error.to_string()))?;
        let mut attached = vec![file.as_fd()];
        attached.extend(entrances.iter().map(AsFd::as_fd));
        attached.extend(agent.into_iter().flat_map(Agent::descriptors));
        message::send(self.control.as_fd(), &bytes, &attached, Wait::Yes)
            .map_err(|_| WallError::LauncherGone)
    }

    fn request(&self, request: &Request) -> Result<(), WallError> {
        let bytes = wire::encode_message(request)
            .map_err(|error| WallError::Protocol(error.to_string()))?;
        message::send(self.control.as_fd(), &bytes, &[], Wait::Yes)
            .map_err(|_| WallError::LauncherGone)
    }

    fn receive_with_descriptors(&self) -> Result<(Option<Report>, Vec<OwnedFd>), WallError> {
        let received = message::receive(self.control.as_fd(), wire::MESSAGE_BYTES_MAX, Wait::Yes)
            .map_err(WallError::system("recvmsg"))?;
        let Some(Message { bytes, descriptors }) = received else {
            return Ok((None, Vec::new()));
        };
        let report =
            wire::decode(&bytes).map_err(|error| WallError::Protocol(error.to_string()))?;
        Ok((Some(report), descriptors))
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Writes the id maps of a child's new user namespace (user_namespaces(7)) and
/// reads them back.
fn map_ids(pid: u32, identity: Identity) -> io::Result<String> {
    let process = open_process(pid)?;
    if identity.every_id {
        let uids = own_map("uid_map")?;
        let gids = own_map("gid_map")?;
        write_at(&process, "uid_map", &uids)?;
        write_at(&process, "gid_map", &gids)?;
        return Ok("every id maps onto itself".into());
    }
    // Without this an unprivileged process could use setgroups(2) to drop a
    // group that denies it access (CVE-2014-8989); the kernel insists.
    write_at(&process, "setgroups", "deny")?;
    write_at(&process, "uid_map", &format!("{0} {0} 1\n", identity.uid))?;
    write_at(&process, "gid_map", &format!("{0} {0} 1\n", identity.gid))?;
    Ok(format!(
        "only user {} and group {} are mapped",
        identity.uid, identity.gid
    ))
}

/// /proc/PID of a child that cannot have been reaped yet, so the number is its.
fn open_process(pid: u32) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(
        stockade_sys::rustix::fs::CWD,
        format!("/proc/{pid}"),
        flags,
        Mode::empty(),
    )?)
}

fn write_at(process: &OwnedFd, name: &str, content: &str) -> io::Result<()> {
    let file = openat(
        process,
        name,
        OFlags::WRONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    std::fs::File::from(file).write_all(content.as_bytes())
}

/// A map in which every id that this process knows stands for itself.
fn own_map(name: &str) -> io::Result<String> {
    let map = std::fs::read_to_string(format!("/proc/self/{name}"))?;
    let mut identity = String::new();
    for line in map.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(inside), Some(_), Some(count)) = (fields.next(), fields.next(), fields.next())
        else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        identity.push_str(&format!("{inside} {inside} {count}\n"));
    }
    Ok(identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_replaced_and_another_is_added() {
        let pair = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        assert_eq!(
            environment(
                &[pair("A", "1"), pair("B", "2")],
                &[pair("A", "3"), pair("C", "4")]
            ),
            [pair("B", "2"), pair("A", "3"), pair("C", "4")]
        );
    }

    #[test]
    fn a_step_without_evidence_is_named_and_evidence_of_no_step_is_nothing() {
        let of = |step| Evidence {
            step,
            detail: String::new(),
        };
        assert_eq!(without_evidence(3, &[of(2), of(0), of(2)]), [1]);
        assert_eq!(without_evidence(2, &[of(7), of(1)]), [0]);
        assert_eq!(without_evidence(2, &[]), [0, 1]);
        assert!(without_evidence(2, &[of(1), of(0)]).is_empty());
    }
}
