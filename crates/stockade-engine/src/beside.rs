//! Processes that put things in order beside a run, and that nobody waits for.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Starts `program`, or that of this process. It is in a group of its own, so
/// that no key of the terminal ends it. That it fails must do no harm.
pub(crate) fn spawn(program: Option<&Path>, arguments: &[&OsStr]) {
    let spawned = Command::new(program.unwrap_or(Path::new("/proc/self/exe")))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .process_group(0)
        .spawn();
    drop(spawned);
}
