//! Whether a wall that rests on another program really starts here: gVisor, a
//! machine, an OCI runtime.
//!
//! That the program is there says little of it: its platform may not work on
//! this machine. So `true` is run behind the wall, once for each start of the
//! machine and each version of what is started.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use stockade_policy::facts::Ability;
use stockade_policy::path::printable;
use stockade_policy::plan::{GuestKernel, Plan, Wall, WorkspaceMode};

use super::{answer, program::identity};
use crate::state::{StateDirectory, StateError};

/// What `stockade run` ends with when it refused (sysexits-like, README).
const EXIT_REFUSED: i32 = 125;

/// Whether what `plan` executes in the command's place starts. `program` is
/// stockade's own, that of this process when `None`. A wall of stockade's alone
/// needs no trial: its run shows evidence or says what is missing.
pub(crate) fn starts(
    state: &StateDirectory,
    plan: &Plan,
    program: Option<&Path>,
) -> Result<Ability, StateError> {
    let Some(guest) = &plan.guest else {
        return Ok(Ability::Yes);
    };
    let program = program.unwrap_or(Path::new("/proc/self/exe"));
    let mut parts = vec![identity(program)];
    match &guest.kernel {
        GuestKernel::Gvisor(runsc) => parts.push(identity(runsc.program.as_path())),
        GuestKernel::Hosts(runtime) => parts.push(identity(runtime.program.as_path())),
        GuestKernel::Machine(machine) => parts.extend([
            identity(machine.program.as_path()),
            machine.kernel_digest.clone(),
            machine.initramfs_digest.clone(),
            machine.accelerator.word().to_owned(),
        ]),
    }
    let name = format!("starts-{}", plan.wall.word());
    answer::ability(state, &name, parts.join("\n").as_bytes(), || {
        let mode = plan.workspace_mode.0;
        tried(program, plan.wall, mode, plan.workspace.as_path())
    })
}

/// Runs `true` in the project as it would be run there.
fn tried(program: &Path, wall: Wall, mode: WorkspaceMode, project: &Path) -> Ability {
    judged(command(program, wall, &[], (mode, project)).output(), wall)
}

/// `true` behind the wall, with these options, in the project as it would be run
/// there. What it says on standard error is piped.
pub(super) fn command(
    program: &Path,
    wall: Wall,
    options: &[&str],
    (mode, project): (WorkspaceMode, &Path),
) -> Command {
    let mut command = Command::new(program);
    command
        .args(["run", "--quiet", "--wall", wall.word()])
        .args(["--workspace", mode.word(), "--project"])
        .arg(project)
        .args(options)
        .args(["--", "true"])
        .current_dir(project)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// The first line of what it said, as one that can be printed.
pub(super) fn first_line(said: &[u8]) -> String {
    let line = said.split(|byte| *byte == b'\n').next().unwrap_or_default();
    printable(line.strip_prefix(b"stockade: ").unwrap_or(line))
}

fn judged(run: std::io::Result<Output>, wall: Wall) -> Ability {
    let said = match run {
        // Whatever `true` came to, there was a kernel to run it.
        Ok(run) if run.status.code().is_some_and(|code| code != EXIT_REFUSED) => {
            return Ability::Yes;
        }
        Ok(run) => run.stderr,
        Err(error) => error.to_string().into_bytes(),
    };
    Ability::No {
        reason: format!("it does not start here: {}", first_line(&said)),
        remedy: format!("`stockade run --wall {} -- true` says more", wall.word()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_refuses_or_dies_does_not_start() {
        let trial = |script: &str| {
            let script = format!("echo 'stockade: said' >&2; {script}");
            let run = Command::new("/bin/sh").args(["-c", &script]).output();
            judged(run, Wall::Gvisor)
        };
        assert_eq!(trial("exit 0"), Ability::Yes);
        assert_eq!(trial("exit 127"), Ability::Yes);
        for script in ["exit 125", "kill -9 $$"] {
            let Ability::No { reason, remedy } = trial(script) else {
                panic!("{script} is taken for a start");
            };
            assert_eq!(reason, "it does not start here: said");
            assert!(remedy.contains("--wall gvisor"), "{remedy}");
        }
        assert!(matches!(
            tried(
                Path::new("/nothing"),
                Wall::Microvm,
                WorkspaceMode::Live,
                Path::new("/")
            ),
            Ability::No { .. }
        ));
    }
}
