//! The supervisor's side of the namer: starts it when the first name is to be
//! made, hears what it tells, and ends the run if it is gone.
//!
//! A command that makes no name never has one: the process costs a fork, and
//! most starts need none.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, chdir, chroot, kill_process,
    set_parent_process_death_signal, waitid,
};
use serde::Serialize;
use stockade_policy::facts::Architecture;
use stockade_policy::guard::Guard;
use stockade_policy::path::AbsolutePath;
use stockade_policy::plan::{Access, Form, Grant, Plan};
use stockade_sys::message::{self, Wait};
use stockade_sys::seccomp::{Listener, Notification};
use stockade_sys::{privilege, process, rustix, signal};
use stockade_walls::process::NameSupervision;
use stockade_workspace::holds::Holds;
use stockade_workspace::namer::{self, Area, Message, Noted, Tally, Terms};

use crate::events::RunId;
use crate::state::StateDirectory;

/// Longest message of the namer, in bytes: one path, rule and reason.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// How long the namer may take to count what was changed, once everything
/// inside is gone. Only a file system that does not answer takes so long.
const LAST_WORDS_MAX: Duration = Duration::from_secs(20);

/// What a run did to names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NameSummary {
    #[serde(flatten)]
    pub tally: Tally,
    /// Guarded names, the held ones first.
    pub guarded: Vec<GuardedName>,
}

/// A guarded name that the run touched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuardedName {
    pub what: namer::What,
    /// Printable.
    pub path: String,
    pub kind: String,
    pub rule: String,
    pub reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
}

/// What a namer is made of.
struct Plans {
    run: RunId,
    form: Form,
    architecture: Architecture,
    areas: Vec<Area>,
    guard: Guard,
    workspace: AbsolutePath,
    state: StateDirectory,
    view: [OwnedFd; 2],
    /// Where the view is below the root of who makes the calls.
    root: Option<AbsolutePath>,
}

/// Names of one run.
pub struct Names {
    stage: Stage,
    tally: Tally,
    noted: Vec<Noted>,
}

enum Stage {
    /// Nobody asked for a name yet.
    Waiting {
        listener: Listener,
        plans: Box<Plans>,
    },
    Serving {
        namer: Pid,
        channel: OwnedFd,
    },
    Over,
}

impl Names {
    /// `supervision` came with the launcher's evidence.
    pub fn new(
        supervision: NameSupervision,
        plan: &Plan,
        architecture: Architecture,
        run: &RunId,
        state: &StateDirectory,
    ) -> Self {
        let is_written = |grant: &Grant| !grant.private && grant.access == Access::Write;
        let is_around = |private: &Grant| {
            let mut written = plan.grants.iter().filter(|grant| is_written(grant));
            written.any(|grant| grant.path.is_within(&private.path))
        };
        // What is written to a layer of the run's own is native.
        let is_layer = |grant: &Grant| plan.has_overlay() && grant.path == plan.workspace;
        let areas = plan
            .grants
            .iter()
            .filter(|grant| !grant.private || is_around(grant))
            .map(|grant| Area {
                path: grant.path.clone(),
                writable: grant.access == Access::Write && !is_layer(grant),
                private: grant.private,
                workspace: grant.path == plan.workspace,
            })
            .collect();
        let plans = Plans {
            run: run.clone(),
            form: plan.form,
            architecture,
            areas,
            guard: plan.guard.clone(),
            workspace: plan.workspace.clone(),
            state: state.clone(),
            view: [supervision.user_namespace, supervision.mount_namespace],
            root: plan.view_root(),
        };
        Self {
            stage: Stage::Waiting {
                listener: Listener::new(supervision.listener),
                plans: Box::new(plans),
            },
            tally: Tally::default(),
            noted: Vec::new(),
        }
    }

    /// Readable when there is something for [`Self::advance`].
    pub fn waits_for(&self) -> Option<BorrowedFd<'_>> {
        match &self.stage {
            Stage::Waiting { listener, .. } => Some(listener.as_fd()),
            Stage::Serving { channel, .. } => Some(channel.as_fd()),
            Stage::Over => None,
        }
    }

    pub fn is_serving(&self) -> bool {
        matches!(self.stage, Stage::Serving { .. })
    }

    /// Goes on. An error means that no name can be made any more, and the run
    /// must end.
    pub fn advance(&mut self) -> io::Result<()> {
        match &self.stage {
            Stage::Waiting { listener, .. } => {
                let Some(call) = listener.receive()? else {
                    return Ok(());
                };
                if is_of_terminal(listener, &call) {
                    return listener.go_on(&call);
                }
                let stage = std::mem::replace(&mut self.stage, Stage::Over);
                if let Stage::Waiting { listener, plans } = stage {
                    self.stage = start(listener, call, *plans)?;
                }
                Ok(())
            }
            Stage::Serving { .. } => match self.hear(Wait::Yes)? {
                true => Ok(()),
                false => {
                    self.bury();
                    Err(io::Error::other("the process that makes names is gone"))
                }
            },
            Stage::Over => Ok(()),
        }
    }

    /// Takes one message; `false` when there will be none.
    fn hear(&mut self, wait: Wait) -> io::Result<bool> {
        let Stage::Serving { channel, .. } = &self.stage else {
            return Ok(false);
        };
        let Some(packet) = message::receive(channel.as_fd(), MESSAGE_BYTES_MAX, wait)? else {
            return Ok(false);
        };
        match serde_json::from_slice(&packet.bytes).map_err(io::Error::other)? {
            Message::Noted(noted) => self.noted.push(noted),
            Message::Withdrawn { hold } => {
                self.noted
                    .retain(|noted| noted.hold.as_deref() != Some(&hold));
            }
            Message::Tally(tally) => self.tally = tally,
        }
        Ok(true)
    }

    /// What it came to. The sandbox is gone, so the namer is about to be.
    pub fn finish(mut self) -> NameSummary {
        let deadline = Instant::now() + LAST_WORDS_MAX;
        while self.is_heard(deadline) && self.hear(Wait::No).unwrap_or(false) {}
        self.bury();
        let mut noted = std::mem::take(&mut self.noted);
        noted.sort_by(|one, other| (one.what, &one.path).cmp(&(other.what, &other.path)));
        NameSummary {
            tally: self.tally,
            guarded: noted
                .into_iter()
                .map(|noted| GuardedName {
                    what: noted.what,
                    path: stockade_policy::path::printable(&noted.path),
                    kind: noted.kind,
                    rule: noted.rule,
                    reason: noted.reason,
                    hold: noted.hold,
                    keys: noted.keys,
                })
                .collect(),
        }
    }

    /// Waits for a message, or for the end of the channel.
    fn is_heard(&self, deadline: Instant) -> bool {
        let Stage::Serving { channel, .. } = &self.stage else {
            return false;
        };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(left) = Timespec::try_from(left) else {
                return false;
            };
            match poll(&mut [PollFd::new(channel, PollFlags::IN)], Some(&left)) {
                Ok(ready) => return ready > 0,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    fn bury(&mut self) {
        if let Stage::Serving { namer, .. } = std::mem::replace(&mut self.stage, Stage::Over) {
            let _gone = kill_process(namer, Signal::KILL).is_err();
            let _reaped = waitid(WaitId::Pid(namer), WaitIdOptions::EXITED).is_err();
        }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.bury();
    }
}

/// Whether a call opens one of the devices that shells open at their start, and
/// that no part of the host can stand for. If the path changes meanwhile,
/// Landlock has the last word as always.
fn is_of_terminal(listener: &Listener, call: &Notification) -> bool {
    let mut path = [0u8; 10];
    // The path is the second argument of openat(2), and the first of others.
    let is = |address: u64, path: &mut [u8; 10]| {
        let length = process::read_memory(call.thread, address, path).unwrap_or(0);
        length == path.len() && (path.starts_with(b"/dev/tty\0") || *path == *b"/dev/null\0")
    };
    let [first, second, ..] = call.arguments;
    (is(first, &mut path) || is(second, &mut path)) && listener.is_waiting(call)
}

fn start(listener: Listener, first: Notification, plans: Plans) -> io::Result<Stage> {
    let holds = Holds::of(plans.state.as_fd(), &plans.workspace)?;
    let flags = SocketFlags::CLOEXEC;
    let (channel, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = openat(CWD, "/proc", flags, Mode::empty())?;
    let null = openat(
        CWD,
        "/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let supervisor = rustix::process::getpid();
    match process::fork()? {
        Some(namer) => Ok(Stage::Serving {
            namer: Pid::from_raw(namer as i32).ok_or(io::ErrorKind::InvalidData)?,
            channel,
        }),
        None => {
            // Whatever happens here, this process never returns to the
            // supervisor's work.
            let view = match plans.form {
                Form::Namespaces => Some(&plans.view),
                Form::LandlockOnly | Form::Seatbelt => None,
            };
            let terms = Terms {
                run: plans.run.as_str().to_owned(),
                architecture: plans.architecture,
                areas: plans.areas,
                guard: plans.guard,
                holds,
                proc,
                channel: theirs,
            };
            let view = view.map(|view| (view, plans.root.as_ref()));
            let served = become_namer(view, &listener, &null, &terms, supervisor)
                .and_then(|()| namer::serve(listener, first, terms));
            process::exit_now(i32::from(served.is_err()))
        }
    }
}

/// Leaves everything of the supervisor's behind and enters the sandbox's view,
/// so that what is mounted there is in force for it too.
fn become_namer(
    view: Option<(&[OwnedFd; 2], Option<&AbsolutePath>)>,
    listener: &Listener,
    null: &OwnedFd,
    terms: &Terms,
    supervisor: Pid,
) -> io::Result<()> {
    signal::block_all()?;
    for number in 0..3 {
        process::become_standard(null.as_raw_fd(), number)?;
    }
    let mut kept = vec![
        listener.as_fd().as_raw_fd(),
        terms.holds.as_fd().as_raw_fd(),
        terms.proc.as_raw_fd(),
    ];
    let namespaces = view.iter().flat_map(|(namespaces, _)| *namespaces);
    kept.extend(namespaces.map(AsRawFd::as_raw_fd));
    process::close_descriptors_but(&kept, terms.channel.as_fd())?;
    process::scrub_arguments(c"stockade-namer");
    if let Some(([user, mount], root)) = view {
        process::enter_view(user.as_fd(), mount.as_fd())?;
        // What is above it is no part of the view, and no name is made there.
        if let Some(root) = root {
            chroot(root.as_path())?;
            chdir("/")?;
        }
    }
    privilege::keep_only_tracing()?;
    privilege::set_no_new_privileges()?;
    privilege::set_not_dumpable()?;
    // Entering a user namespace clears it, so it comes last.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match rustix::process::getppid() == Some(supervisor) {
        true => Ok(()),
        false => Err(io::ErrorKind::BrokenPipe.into()),
    }
}
