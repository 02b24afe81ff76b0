//! Saves a machine that is wanted for the first time, so that it and all later
//! ones go on from there instead of booting.
//!
//! What is saved has never seen a workspace: it is booted for this alone, by
//! `stockade run` in a directory of its own, behind the process wall like any
//! command, and is written down where the agent waits for its host.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io::{self, Seek};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use stockade_policy::plan::{Accelerator, GuestKernel, Machine, Plan};
use stockade_sys::counter;
use stockade_sys::guard::{Guarded, Program};
use stockade_sys::rustix::io::read;
use stockade_sys::rustix::pipe::{PipeFlags, pipe_with};
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
    let arguments = guest::to_save(machine, network, &project, counter::ticks_per_millisecond());
    let result = converse(&Place {
        program: program.unwrap_or(Path::new(OWN)),
        home: saving.path(),
        project: &project,
        errors: &errors,
        arguments: &arguments,
    })?;
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

/// Where and how a machine is started to be saved.
struct Place<'a> {
    program: &'a Path,
    home: &'a Path,
    project: &'a Path,
    errors: &'a File,
    arguments: &'a [OsString],
}

/// Starts it and has it saved. It ends with this process, however that ends.
fn converse(place: &Place<'_>) -> Result<Result<(), VmError>, SaveError> {
    let failed = system("start a machine to be saved");
    let words = [
        place.program.as_os_str(),
        OsStr::new("run"),
        OsStr::new("-q"),
        OsStr::new("--wall"),
        OsStr::new("process"),
        OsStr::new("--wall-time"),
        OsStr::new(TIME_MAX),
        OsStr::new("--"),
    ];
    let words = words
        .into_iter()
        .chain(place.arguments.iter().map(|one| &**one));
    let arguments = strings(words).map_err(&failed)?;
    // The search for a policy and for a project ends there.
    let mut home = OsString::from("HOME=");
    home.push(place.home);
    let environment = strings([&*home, OsStr::new("PATH=/usr/bin:/bin")]).map_err(&failed)?;
    let path = strings([place.program.as_os_str()]).map_err(&failed)?;
    let directory = File::open(place.project).map_err(&failed)?;
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()));
    let ((input, to), (from, output)) = (pipe()?, pipe()?);
    let mut machine = Guarded::start(&Program {
        path: &path[0],
        arguments: &arguments,
        environment: &environment,
        directory: directory.as_fd(),
        input: input.as_fd(),
        output: output.as_fd(),
        error: place.errors.as_fd(),
        own_namespace: false,
    })
    .map_err(&failed)?;
    drop((input, output));
    let result = saved::save(File::from(from), File::from(to), "cat >state");
    let ended = match &result {
        Ok(()) => machine.wait(),
        // It may be waiting for ever.
        Err(_) => machine.end(),
    };
    ended.map_err(system("wait for the machine"))?;
    Ok(result)
}

fn strings<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> io::Result<Vec<CString>> {
    let words = words.into_iter();
    words
        .map(|word| CString::new(word.as_bytes()).map_err(io::Error::from))
        .collect()
}
