//! Whether this machine can start a virtual one.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stockade_policy::facts::{Ability, MachineFacts, MachineFound, SavedMachine};
use stockade_policy::path::AbsolutePath;
use stockade_policy::plan::{Accelerator, Machine};
use stockade_vm::store::{InUse, Store};

use super::program;
use crate::state::StateDirectory;

/// Where QEMU is looked for.
const PLACES: [&str; 2] = ["/usr/bin", "/usr/local/bin"];
const PROGRAM: &str = "qemu-system-x86_64";
const REMEDY: &str = "`apt install qemu-system-x86`, and `stockade vm build` once";
/// The image that is used.
const IMAGE: &str = "default";

/// What there is before anybody has looked.
pub fn not_looked_for() -> MachineFacts {
    missing("it was not looked for")
}

/// What the image store says of a fault has its own remedy.
fn missing(reason: impl Into<String>) -> MachineFacts {
    let reason = reason.into();
    let (reason, remedy) = match reason.split_once("\n  remedy: ") {
        Some((reason, remedy)) => (reason.to_owned(), remedy.to_owned()),
        None => (reason, REMEDY.to_owned()),
    };
    MachineFacts::Missing { reason, remedy }
}

/// Looks for QEMU, asks its version, and verifies the image, which stays as long
/// as the second value lives. `kvm` says whether KVM runs that machine.
pub fn found(
    state: &StateDirectory,
    kvm: impl FnOnce(&Machine) -> Ability,
) -> (MachineFacts, Option<InUse>) {
    match look(state) {
        Ok((machine, used)) => {
            let saved = saved(&machine, &used);
            let kvm = kvm(&machine);
            let found = MachineFound {
                machine,
                saved,
                system: system(),
                kvm,
            };
            (MachineFacts::Found(Box::new(found)), Some(used))
        }
        Err(reason) => (missing(reason), None),
    }
}

/// Where programs of the host and what they are linked to really are, among the
/// places that the launcher puts around QEMU (`stockade-launch/src/view/runtime.rs`).
fn system() -> Vec<AbsolutePath> {
    const PLACES: [&str; 7] = [
        "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
    ];
    let directories = PLACES.into_iter().filter(|path| {
        std::fs::symlink_metadata(path).is_ok_and(|place| place.file_type().is_dir())
    });
    directories
        .filter_map(|path| AbsolutePath::parse(path).ok())
        .collect()
}

/// From what a machine can go on.
fn saved(machine: &Machine, used: &InUse) -> Vec<SavedMachine> {
    let Some(qemu) = qemu(machine) else {
        return Vec::new();
    };
    let saved = used.saved(&qemu).into_iter();
    let saved = saved.map(|one| SavedMachine {
        memory: one.memory,
        network: one.network,
        digest: one.digest,
    });
    saved.collect()
}

/// What tells one QEMU from another: its version, and the file that it is. `None`
/// when nobody can tell.
pub fn qemu(machine: &Machine) -> Option<String> {
    identity(machine.program.as_path(), &machine.version)
}

/// The same of the QEMU that is found.
pub fn installed_qemu(state: &StateDirectory) -> Option<String> {
    let (program, version) = program_of(state).ok()?;
    identity(&program, &version)
}

fn identity(program: &Path, version: &str) -> Option<String> {
    let file = std::fs::metadata(program).ok()?;
    Some(format!(
        "{version} {} {}.{}",
        file.size(),
        file.mtime(),
        file.mtime_nsec()
    ))
}

/// QEMU, and its version.
fn program_of(state: &StateDirectory) -> Result<(PathBuf, String), String> {
    let (program, version) =
        program::found(PROGRAM, &PLACES, "QEMU emulator version ", Some(state))?;
    // A distribution says more behind it.
    let version = version.split(' ').next().unwrap_or_default().to_owned();
    Ok((program, version))
}

fn look(state: &StateDirectory) -> Result<(Machine, InUse), String> {
    let (program, version) = program_of(state)?;
    let store = Store::open(state.as_fd()).map_err(|error| error.to_string())?;
    let used = store.use_image(IMAGE, stockade_agent_image::IMAGE);
    let used = used.map_err(|error| error.to_string())?;
    let absolute = |path: &Path| {
        AbsolutePath::parse(path.as_os_str().as_bytes()).map_err(|error| error.to_string())
    };
    let machine = Machine {
        program: absolute(&program)?,
        version,
        image: used.image.name.clone(),
        release: used.image.release.clone(),
        kernel: absolute(&used.kernel)?,
        kernel_digest: used.image.kernel.clone(),
        initramfs: absolute(&used.initramfs)?,
        initramfs_digest: used.image.initramfs.clone(),
        memory: 0,
        processors: 1,
        accelerator: Accelerator::Tcg,
        saved: None,
    };
    Ok((machine, used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_with_a_remedy_of_its_own_has_no_other() {
        let parts = |said: &str| match missing(said) {
            MachineFacts::Missing { reason, remedy } => (reason, remedy),
            MachineFacts::Found(_) => panic!("{said} is a machine"),
        };
        let own = parts("no image\n  remedy: build it");
        assert_eq!(own, ("no image".to_owned(), "build it".to_owned()));
        assert_eq!(parts("no QEMU"), ("no QEMU".to_owned(), REMEDY.to_owned()));
    }
}
