//! Whether KVM runs a machine here.
//!
//! That the device can be opened says little: under some hypervisors it is there
//! and executes no kernel that a distribution makes. So a machine is really
//! booted with it, once for each start of the host's kernel.

use std::fs::OpenOptions;
use std::io::Read;
use std::path::Path;
use std::process::{Child, ChildStderr};
use std::time::{Duration, Instant};

use stockade_policy::facts::Ability;
use stockade_policy::plan::{Accelerator, Machine, Wall};

use super::{answer, program::identity, start};
use crate::load::Loaded;
use crate::notice::Notices;

const DEVICE: &str = "/dev/kvm";
/// How long a machine may take from its start to its end. With KVM it takes one
/// or two seconds; without, or with one that is no use, many more.
const TIME_MAX: Duration = Duration::from_secs(15);
/// How often it is looked at meanwhile.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest line of what it says, in bytes.
const LINE_BYTES_MAX: u64 = 512;
/// Where the answer is kept.
const NAME: &str = "kvm";
const YES: &str = "yes";

/// Whether KVM runs this machine. What the policy says about it is done without
/// a trial: the run shows it. `program` is stockade's own, that of this process
/// when `None`.
pub(crate) fn works(
    loaded: &Loaded,
    machine: &Machine,
    program: Option<&Path>,
    notices: Notices,
) -> Ability {
    let choice = loaded
        .policy
        .accelerator
        .as_ref()
        .map(|(choice, _)| *choice);
    if choice == Some(Accelerator::Tcg) {
        return no("the policy says so", "");
    }
    let opened = OpenOptions::new().read(true).write(true).open(DEVICE);
    if let Err(error) = opened {
        return no(
            format!("{DEVICE} cannot be opened: {error}"),
            "load the kernel's module for KVM, and be a member of the group that the device \
             belongs to",
        );
    }
    if choice == Some(Accelerator::Kvm) {
        return Ability::Yes;
    }
    let program = program.unwrap_or(Path::new("/proc/self/exe"));
    let depends_on = [
        identity(program),
        identity(machine.program.as_path()),
        machine.kernel_digest.clone(),
        machine.initramfs_digest.clone(),
    ];
    let key = answer::of_this_start(depends_on.join("\n").as_bytes());
    // An answer that cannot be kept is found again.
    if let Ok(Some(kept)) = answer::kept(&loaded.state, NAME, &key) {
        return judged(kept);
    }
    notices.say(&format!(
        "stockade: seeing whether KVM runs a machine here, for at most {} seconds, once",
        TIME_MAX.as_secs()
    ));
    let found = tried(loaded, program);
    let _not_kept = answer::keep(&loaded.state, NAME, &key, &found).is_err();
    judged(found)
}

fn no(reason: impl Into<String>, remedy: &str) -> Ability {
    Ability::No {
        reason: reason.into(),
        remedy: remedy.to_owned(),
    }
}

/// What an answer says: yes, or why not.
fn judged(answer: String) -> Ability {
    match answer.as_str() {
        YES => Ability::Yes,
        _ => no(
            answer,
            "it is tried again after the next start of this machine; `--accelerator kvm` shows \
             what happens",
        ),
    }
}

/// Runs `true` in a machine with KVM, in the project as it would be run there.
fn tried(loaded: &Loaded, program: &Path) -> String {
    let policy = &loaded.policy;
    let place = (policy.workspace_mode.0, policy.workspace.as_path());
    let with_kvm = ["--accelerator", Accelerator::Kvm.word()];
    let child = start::command(program, Wall::Microvm, &with_kvm, place).spawn();
    let result = child.and_then(|mut child| {
        let ended = ended(&mut child, TIME_MAX)?;
        Ok((ended, said_by(child.stderr.take())))
    });
    match result {
        Ok((Some(true), _)) => YES.to_owned(),
        Ok((Some(false), said)) => format!("a machine does not start with it: {said}"),
        Ok((None, _)) => format!(
            "a machine does not come up in {} seconds with it",
            TIME_MAX.as_secs()
        ),
        Err(error) => format!("it could not be tried: {error}"),
    }
}

/// Whether it succeeded, once it ended; who takes longer is killed, and with it
/// all that it started.
fn ended(child: &mut Child, time_max: Duration) -> std::io::Result<Option<bool>> {
    let deadline = Instant::now() + time_max;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(PAUSE);
    }
}

/// What it said first.
fn said_by(errors: Option<ChildStderr>) -> String {
    let mut said = Vec::new();
    let read = errors.map(|errors| errors.take(LINE_BYTES_MAX).read_to_end(&mut said));
    // What could not be read was not said.
    let _unread = read.is_none_or(|read| read.is_err());
    start::first_line(&said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_does_not_end_is_ended() {
        let run = |script: &str, time_max| {
            let mut child = Command::new("/bin/sh")
                .args(["-c", script])
                .spawn()
                .unwrap();
            ended(&mut child, time_max).unwrap()
        };
        let long = Duration::from_secs(60);
        assert_eq!(run("exit 0", long), Some(true));
        assert_eq!(run("exit 3", long), Some(false));
        assert_eq!(run("exec sleep 1000", Duration::from_millis(50)), None);
    }

    #[test]
    fn only_yes_is_yes() {
        assert_eq!(judged(YES.to_owned()), Ability::Yes);
        let Ability::No { reason, .. } = judged("because".to_owned()) else {
            panic!("a reason is taken for yes");
        };
        assert_eq!(reason, "because");
    }
}
