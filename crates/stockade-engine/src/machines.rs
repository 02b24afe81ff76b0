//! Saves a machine that is wanted for the first time, so that it and all later
//! ones go on from there instead of booting.
//!
//! What is saved has never seen a workspace: it is booted for this alone, by
//! `stockade run` in a directory of its own, behind the process wall like any
//! command, and is written down where the agent waits for its host.

use std::fs::{DirBuilder, File};
use std::io::{self, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use stockade_policy::plan::{Accelerator, GuestKernel, Machine, Plan};
use stockade_sys::counter;
use stockade_sys::rustix::io::read;
use stockade_vm::VmError;
use stockade_vm::saved::{self, Saving};
use stockade_vm::store::{InUse, Store};
use stockade_walls::guest;

use crate::probe;
use crate::state::StateDirectory;

/// How long it may take, on a busy host whose processor does not help.
const TIME_MAX: &str = "300s";
/// The program of this process.
const OWN: &str = "/proc/self/exe";

/// Why nothing was saved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SaveError {
    #[error(transparent)]
    Store(#[from] VmError),
    #[error("{error}{}", match said.as_str() { "" => String::new(), said => format!("; it said: {said}") })]
    Machine { error: VmError, said: String },
    #[error("cannot {doing}: {error}")]
    System {
        doing: &'static str,
        error: io::Error,
    },
}

fn system(doing: &'static str) -> impl Fn(io::Error) -> SaveError {
    move |error| SaveError::System { doing, error }
}

/// The machine of a plan, if it would boot for long.
pub(crate) fn that_boots(plan: &Plan) -> Option<&Machine> {
    match &plan.guest.as_ref()?.kernel {
        GuestKernel::Machine(machine) => Some(machine)
            .filter(|machine| machine.saved.is_none() && machine.accelerator == Accelerator::Tcg),
        _ => None,
    }
}

/// Saves this machine, with a network card or without one. `program` is executed
/// as `stockade run`; this process's own when `None`.
pub(crate) fn save(
    state: &StateDirectory,
    used: &InUse,
    (machine, network): (&Machine, bool),
    program: Option<&Path>,
) -> Result<(), SaveError> {
    let Some(qemu) = probe::machine::qemu(machine) else {
        return Err(system("look at QEMU")(io::ErrorKind::NotFound.into()));
    };
    let store = Store::open(state.as_fd())?;
    let saving = store.begin_saving()?;
    let project = prepare(&saving, used)?;
    let mut said = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(saving.path().join("said"))
        .map_err(system("keep what QEMU says"))?;
    let errors = said.try_clone().map_err(system("keep what QEMU says"))?;
    let mut child = Command::new(program.unwrap_or(Path::new(OWN)))
        .args([
            "run",
            "-q",
            "--wall",
            "process",
            "--wall-time",
            TIME_MAX,
            "--",
        ])
        .args(guest::to_save(
            machine,
            network,
            &project,
            counter::ticks_per_millisecond(),
        ))
        .current_dir(&project)
        .env_clear()
        // The search for a policy and for a project ends there.
        .env("HOME", saving.path())
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .map_err(system("start a machine to be saved"))?;
    let result = converse(&mut child);
    if result.is_err() {
        // It may be waiting for ever; when it has ended already there is nobody.
        let _gone = child.kill().is_err();
    }
    child.wait().map_err(system("wait for the machine"))?;
    if let Err(error) = result {
        let mut text = [0; 1024];
        said.rewind().map_err(system("read what QEMU said"))?;
        let length = read(&said, &mut text).unwrap_or(0);
        let said = stockade_policy::path::printable(text[..length].trim_ascii());
        return Err(SaveError::Machine { error, said });
    }
    let kind = (machine.memory, network, &*qemu);
    saving.keep(used, &project.join("state"), kind)?;
    Ok(())
}

/// A directory with copies of what a machine boots from: what is behind the wall
/// may write there.
fn prepare(saving: &Saving<'_>, used: &InUse) -> Result<std::path::PathBuf, SaveError> {
    let project = saving.path().join("project");
    let made = DirBuilder::new().mode(0o700).create(&project);
    made.map_err(system("make a place for the machine"))?;
    for (from, name) in [(&used.kernel, "kernel"), (&used.initramfs, "initramfs")] {
        std::fs::copy(from, project.join(name)).map_err(system("copy the machine image"))?;
    }
    Ok(project)
}

fn converse(child: &mut Child) -> Result<(), VmError> {
    let (from, to) = (child.stdout.take(), child.stdin.take());
    match from.zip(to) {
        Some((from, to)) => saved::save(from, to, "cat >state"),
        None => Err(VmError::NotSaved {
            reason: "it has no monitor".to_owned(),
        }),
    }
}
