//! Applies a plan inside fresh namespaces, proves each step and runs the
//! command.
//!
//! The launcher is the first process of a sandbox. It is single-threaded and
//! straight-line: take the assignment, apply the steps in order, collect
//! evidence, wait at the gate, run the command, and stay as its init until it
//! ends. It knows nothing of policy files, HTTP or async runtimes.

mod agent;
mod init;
mod listeners;
mod steps;
mod trust;
mod view;
pub mod wire;

use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use stockade_sys::message::{self, Wait};
use stockade_sys::process::{self, Namespaces};
use stockade_sys::rustix::fs::Mode;
use stockade_sys::rustix::io::Errno;
use stockade_sys::rustix::net::{RecvFlags, recv};
use stockade_sys::rustix::process::umask;
use stockade_sys::rustix::thread::sched_yield;
use wire::{Assignment, Report, Request};

/// What a launcher tells its caller's shell when it fails before it could
/// send a report; the supervisor sees the closed control socket first.
const EXIT_LAUNCHER_FAILED: i32 = 125;

/// A failed step: which, and the kernel's error.
struct Failure {
    index: u32,
    error: io::Error,
}

/// What a launcher is given when it is forked, before there is a plan.
pub struct Birth {
    pub namespaces: Namespaces,
    pub streams: [wire::Stream; 3],
    /// What the plan is expected to begin with.
    pub prelude: Vec<wire::Action>,
}

/// Runs the launcher in a freshly forked child and never returns.
///
/// `control` is the child's end of a `SOCK_SEQPACKET` pair, over which the
/// assignment comes. Descriptors named in the streams must be open already.
pub fn launch(control: OwnedFd, birth: &Birth) -> ! {
    let code = match run(control.as_fd(), birth) {
        Ok(()) => 0,
        Err(_) => EXIT_LAUNCHER_FAILED,
    };
    process::exit_now(code)
}

fn run(control: BorrowedFd<'_>, birth: &Birth) -> io::Result<()> {
    stockade_sys::signal::block_all()?;
    // What the launcher makes gets exactly the mode that is given; the command
    // gets the caller's umask back.
    umask(Mode::empty());
    let mut launcher = steps::Launcher::new(control, birth.streams);
    // The longest part of making namespaces, and what every plan begins with,
    // are done while the supervisor still compiles the plan. Whether they
    // worked is said when the plan has come.
    if birth.namespaces == Namespaces::Own {
        launcher.leave_network();
        expect(control, Request::Mapped)?;
    }
    let early: Vec<_> = birth
        .prelude
        .iter()
        .map(|action| launcher.apply(action))
        .collect();
    look_out(control);
    let mut begun = receive_assignment(control)?;
    let joined = begun.join();
    let Begun {
        assignment, agent, ..
    } = begun;
    launcher.set_authority(assignment.authority.clone());
    if let Some(agent) = &agent {
        launcher.keep(&agent.numbers());
    }
    let evidence = joined.and_then(|()| perform(&mut launcher, birth, early, &assignment));
    let evidence = match evidence {
        Ok(evidence) => evidence,
        Err(failure) => {
            let report = Report::StepFailed {
                index: failure.index,
                errno: failure.error.raw_os_error().unwrap_or(0),
                detail: failure.error.to_string(),
            };
            return send(control, &report);
        }
    };
    hand_over(control, evidence, launcher.take_attached())?;
    let null = launcher.take_null();
    let inheritance = init::Inheritance {
        null,
        terminal: launcher.take_terminal(),
        supply: launcher.take_supply(),
        agent,
    };
    drop(launcher);
    look_out(control);
    expect(control, Request::Go)?;
    init::run(control, &assignment, birth.streams, inheritance)
}

/// Says that everything is set up. The descriptors that go with it are closed
/// here: whoever has them now answers for them alone.
fn hand_over(
    control: BorrowedFd<'_>,
    evidence: Vec<wire::Evidence>,
    attached: Vec<(wire::Attached, OwnedFd)>,
) -> io::Result<()> {
    let descriptors: Vec<_> = attached.iter().map(|(_, fd)| fd.as_fd()).collect();
    let report = Report::Ready {
        evidence,
        attached: attached.iter().map(|(kind, _)| *kind).collect(),
    };
    let bytes = wire::encode_message(&report).map_err(io::Error::other)?;
    message::send(control, &bytes, &descriptors, Wait::Yes)
}

/// Performs the steps of the plan, or takes the outcome of those that were
/// performed early, and returns the evidence for each.
fn perform(
    launcher: &mut steps::Launcher<'_>,
    birth: &Birth,
    early: Vec<io::Result<String>>,
    assignment: &Assignment,
) -> Result<Vec<wire::Evidence>, Failure> {
    let mut early = birth.prelude.iter().zip(early);
    let mut evidence = Vec::with_capacity(assignment.steps.len());
    for step in &assignment.steps {
        let index = step.index;
        let outcome = match early.next() {
            Some((done, outcome)) if *done == step.action => outcome,
            Some(_) => Err(io::Error::other("the plan does not begin as expected")),
            None => launcher.apply(&step.action),
        };
        let outcome = match assignment.fail_at {
            Some(fail_at) if fail_at == index => {
                Err(io::Error::other("made to fail by --fail-step"))
            }
            _ => outcome,
        };
        let detail = outcome.map_err(|error| Failure { index, error })?;
        evidence.push(wire::Evidence { index, detail });
    }
    Ok(evidence)
}

/// What comes with the request to begin.
struct Begun {
    assignment: Assignment,
    /// The step that joins control groups, and the files that let in who writes
    /// to them.
    join: Option<(u32, Vec<OwnedFd>)>,
    agent: Option<agent::Agent>,
}

impl Begun {
    /// Joins the control groups. A thread that names itself (`0` in `tasks`)
    /// is let in at once; for any other the kernel first waits for all
    /// processors (cgroup_threadgroup_rwsem), which takes some milliseconds.
    fn join(&mut self) -> Result<(), Failure> {
        let Some((index, groups)) = self.join.take() else {
            return Ok(());
        };
        for group in groups {
            let joined = std::fs::File::from(group).write_all(b"0");
            joined.map_err(|error| Failure { index, error })?;
        }
        Ok(())
    }
}

/// Waits for the request to begin and reads the plan from the descriptor that
/// comes with it.
fn receive_assignment(control: BorrowedFd<'_>) -> io::Result<Begun> {
    let mut buffer = [0u8; 64];
    let received = message::receive_into(control, &mut buffer, Wait::Yes)?;
    let (length, descriptors) = received.ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut descriptors = descriptors.into_iter();
    let request = wire::decode(&buffer[..length]).map_err(io::Error::other)?;
    let (Request::Begin { join }, Some(plan)) = (request, descriptors.next()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let join = join.map(|(index, count)| {
        let groups = descriptors.by_ref().take(count.into()).collect();
        (index, groups)
    });
    let agent = match (descriptors.next(), descriptors.next()) {
        (Some(program), Some(channel)) => Some(agent::Agent { program, channel }),
        (None, _) => None,
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    let mut encoded = Vec::new();
    let mut file = std::fs::File::from(plan);
    file.seek(io::SeekFrom::Start(0))?;
    file.take(wire::ASSIGNMENT_BYTES_MAX as u64 + 1)
        .read_to_end(&mut encoded)?;
    Ok(Begun {
        assignment: Assignment::decode(&encoded).map_err(io::Error::other)?,
        join,
        agent,
    })
}

/// How often to look for an answer before going to sleep; some 100 µs.
const LOOKS: u32 = 200;

/// Looks for an answer that is due at once: to be woken up takes longer than
/// the supervisor needs. Gives way to whoever else has work meanwhile.
fn look_out(control: BorrowedFd<'_>) {
    let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    for _ in 0..LOOKS {
        match recv(control, &mut [0u8; 1][..], peek) {
            Err(Errno::AGAIN) => sched_yield(),
            // An answer, or an error that the receiver will meet as well.
            _ => return,
        }
    }
}

/// Waits for one request and fails unless it is the expected one.
fn expect(control: BorrowedFd<'_>, expected: Request) -> io::Result<()> {
    match receive(control)? {
        Some(request) if request == expected => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Receives one request; `None` when the supervisor is gone.
fn receive(control: BorrowedFd<'_>) -> io::Result<Option<Request>> {
    let mut buffer = [0u8; 256];
    let Some((length, _)) = message::receive_into(control, &mut buffer, Wait::Yes)? else {
        return Ok(None);
    };
    wire::decode(&buffer[..length])
        .map(Some)
        .map_err(io::Error::other)
}

fn send(control: BorrowedFd<'_>, report: &Report) -> io::Result<()> {
    let bytes = wire::encode_message(report).map_err(io::Error::other)?;
    message::send(control, &bytes, &[], Wait::Yes)
}
