//! Small programs that tests bring along, and waiting for what must happen.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{World, has_program, skip};

/// Compiles a C program into the project; `None` and a skip when there is no
/// compiler.
#[track_caller]
pub fn compile_c(world: &World, test: &str, name: &str, source: &str) -> Option<PathBuf> {
    compile_c_with(world, test, name, source, &[])
}

/// The same with options for the compiler.
#[track_caller]
pub fn compile_c_with(
    world: &World,
    test: &str,
    name: &str,
    source: &str,
    options: &[&str],
) -> Option<PathBuf> {
    if !has_program("gcc") {
        skip(test, "gcc", "there is no gcc on PATH");
        return None;
    }
    let file = world.write(world.outside().join(format!("{name}.c")), source);
    let program = world.project.join(name);
    let mut gcc = Command::new("gcc");
    gcc.arg("-O1")
        .args(options)
        .arg("-o")
        .arg(&program)
        .arg(&file);
    let output = gcc.output().expect("gcc starts");
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() && options.contains(&"-m32") {
        skip(
            test,
            "gcc",
            &format!("gcc makes no 32-bit programs: {messages}"),
        );
        return None;
    }
    assert!(output.status.success(), "{name}.c: {messages}");
    Some(program)
}

/// Whether `condition` becomes true in good time; generous, for loaded
/// machines.
pub fn soon(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    condition()
}

/// Waits until a file exists and returns what it holds.
#[track_caller]
pub fn await_file(path: &Path) -> String {
    assert!(
        soon(|| std::fs::read(path).is_ok_and(|bytes| bytes.ends_with(b"\n"))),
        "{path:?}"
    );
    String::from_utf8_lossy(&std::fs::read(path).expect("it was read before")).into_owned()
}
