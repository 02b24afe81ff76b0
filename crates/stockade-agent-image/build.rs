//! Builds the agent apart from everything else.
//!
//! It has no standard library and no C library, and so needs flags that the
//! rest of the workspace must not have. Its target directory is this crate's
//! own, so nothing waits for the lock of the other one. What it depends on is
//! in the workspace's Cargo.lock and was fetched for the rest already.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Nothing of the C compiler's: not its start files, not its libraries. A
/// fixed address, because nobody is there who could relocate the program.
const LINK: [&str; 8] = [
    "-Clink-arg=-nostartfiles",
    "-Clink-arg=-nostdlib",
    "-Clink-arg=-static",
    "-Clink-arg=-no-pie",
    "-Clink-arg=-Wl,--build-id=none",
    "-Clink-arg=-Wl,-z,noexecstack",
    "-Crelocation-model=static",
    "-Cforce-unwind-tables=no",
];

fn main() -> ExitCode {
    let variable = |name| std::env::var_os(name).unwrap_or_default();
    let out = PathBuf::from(variable("OUT_DIR"));
    let agent = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../stockade-agent");
    for part in ["src", "Cargo.toml", "../../Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", agent.join(part).display());
    }
    println!("cargo::rerun-if-changed=build.rs");
    let target = out.join("stockade-agent");
    let runs_here = variable("CARGO_CFG_TARGET_OS") == "linux"
        && ["x86_64", "aarch64"]
            .iter()
            .any(|known| variable("CARGO_CFG_TARGET_ARCH") == *known);
    if !runs_here {
        // Nothing stays there; whoever needs the agent says so.
        std::fs::write(target, []).expect("OUT_DIR can be written");
        return ExitCode::SUCCESS;
    }
    match built(&agent, &out.join("target"), &variable("TARGET")) {
        Some(program) => {
            std::fs::copy(program, target).expect("OUT_DIR can be written");
            ExitCode::SUCCESS
        }
        None => {
            println!("cargo::error=stockade-agent could not be built; the reason is above");
            ExitCode::FAILURE
        }
    }
}

/// The program; `None` when it could not be built.
fn built(agent: &Path, directory: &Path, triple: &OsString) -> Option<PathBuf> {
    // Without the network first: normally everything is there.
    let done = [true, false].into_iter().any(|offline| {
        let status = cargo(agent, directory, triple, offline).status();
        status.is_ok_and(|status| status.success())
    });
    let program = directory.join(triple).join("agent").join("stockade-agent");
    done.then_some(program)
}

fn cargo(agent: &Path, directory: &Path, triple: &OsString, offline: bool) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["rustc", "--quiet", "--bin", "stockade-agent"])
        .args(["--no-default-features", "--features", "program"])
        .args(["--profile", "agent", "--target"])
        .arg(triple)
        .arg("--manifest-path")
        .arg(agent.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(directory);
    if offline {
        command.arg("--offline");
    }
    command.arg("--").args(LINK);
    // What the outer build was told is not for this one: flags, wrappers,
    // target directory, profile.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        let is_own = name.starts_with("CARGO_") || name.starts_with("RUST");
        let stays = [
            "CARGO_HOME",
            "CARGO_MAKEFLAGS",
            "RUSTUP_HOME",
            "RUSTUP_TOOLCHAIN",
        ];
        if is_own && !stays.contains(&&*name) {
            command.env_remove(&*name);
        }
    }
    command
}
