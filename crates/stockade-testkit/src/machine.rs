//! What tests of virtual machines need: QEMU, and the kernel package that
//! `cargo xtask packages` keeps beside what is built.

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
            let reason = "there is no kernel package; `cargo xtask packages` brings one";
            skip(test, "microvm", reason);
            None
        }
        found => found,
    }
}

/// The last of the packages in the target directory.
fn newest() -> Option<PathBuf> {
    // Tests are in target/PROFILE/deps.
    let test = std::env::current_exe().ok()?;
    let packages = test.ancestors().nth(3)?.join("packages");
    let packages = std::fs::read_dir(packages).ok()?.flatten();
    let names = packages.map(|entry| entry.path());
    let is_kernel = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("linux-image-") && name.ends_with(".deb"))
    };
    names.filter(is_kernel).max()
}
