//! What tests of virtual machines need: QEMU and the kernel package, Firecracker
//! and its jailer, which `cargo xtask test` keeps beside what is built.

use std::path::PathBuf;

use crate::{has_program, skip};

/// The program that runs machines.
pub const QEMU: &str = "qemu-system-x86_64";

/// The kernel package, if a machine can be started at all; else the test is
/// skipped. `STOCKADE_KERNEL_PACKAGE` names another.
#[track_caller]
pub fn kernel_package(test: &str) -> Option<PathBuf> {
    let package = match std::env::var_os("STOCKADE_KERNEL_PACKAGE") {
        Some(path) => Some(PathBuf::from(path)),
        None => newest(),
    };
    match package {
        _ if !has_program(QEMU) => {
            skip(test, "microvm", "there is no qemu-system-x86_64 on PATH");
            None
        }
        None => {
            let reason = "there is no kernel package; `cargo xtask test` brings one";
            skip(test, "microvm", reason);
            None
        }
        found => found,
    }
}

/// The directory with Firecracker and its jailer, for root, who can open /dev/kvm;
/// else the test is skipped. `STOCKADE_FIRECRACKER` names another.
#[track_caller]
pub fn firecracker(test: &str) -> Option<PathBuf> {
    let directory = match std::env::var_os("STOCKADE_FIRECRACKER") {
        Some(path) => Some(PathBuf::from(path)),
        None => packages().map(|packages| packages.join("firecracker")),
    };
    let directory = directory.filter(|one| one.join("firecracker").is_file());
    let kvm = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm");
    match (directory, kvm) {
        (Some(directory), Ok(_)) => Some(directory),
        (None, _) => {
            let reason = "there is no Firecracker; `cargo xtask test` brings it";
            skip(test, "firecracker", reason);
            None
        }
        (_, Err(error)) => {
            let reason = format!("/dev/kvm cannot be opened: {error}");
            skip(test, "firecracker", &reason);
            None
        }
    }
}

/// Where what was downloaded is.
fn packages() -> Option<PathBuf> {
    // Tests are in target/PROFILE/deps.
    let test = std::env::current_exe().ok()?;
    Some(test.ancestors().nth(3)?.join("packages"))
}

/// The last of the packages in the target directory.
fn newest() -> Option<PathBuf> {
    let packages = std::fs::read_dir(packages()?).ok()?.flatten();
    let names = packages.map(|entry| entry.path());
    let is_kernel = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("linux-image-") && name.ends_with(".deb"))
    };
    names.filter(is_kernel).max()
}
