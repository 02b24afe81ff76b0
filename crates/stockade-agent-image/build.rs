//! Builds what runs inside apart from everything else: the agent, and the tiny
//! machine.
//!
//! They have no standard library and no C library, and so need flags that the
//! rest of the workspace must not have. Their target directories are this
//! crate's own, so nothing waits for the lock of the other one. What they depend
//! on is in the workspace's Cargo.lock and was fetched for the rest already.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// A program, by the name of its crate.
struct Program {
    name: &'static str,
    architectures: &'static [&'static str],
    flags: &'static [&'static str],
}

const PROGRAMS: [Program; 2] = [
    Program {
        name: "stockade-agent",
        architectures: &["x86_64", "aarch64"],
        flags: &[],
    },
    Program {
        name: "stockade-guest",
        architectures: &["x86_64"],
        // Nobody has switched the vector registers on in a machine without a
        // kernel, and hypervisors that interpret instructions know few of
        // theirs. The compiler warns that other code could not be linked to it;
        // there is none.
        flags: &["-Ctarget-feature=-sse,-sse2,+soft-float"],
    },
];

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

fn variable(name: &str) -> OsString {
    std::env::var_os(name).unwrap_or_default()
}

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(variable("OUT_DIR"));
    for program in &PROGRAMS {
        let source = PathBuf::from(variable("CARGO_MANIFEST_DIR"))
            .join("..")
            .join(program.name);
        for part in ["src", "Cargo.toml", "../../Cargo.lock"] {
            println!("cargo::rerun-if-changed={}", source.join(part).display());
        }
        let target = out.join(program.name);
        let architecture = variable("CARGO_CFG_TARGET_ARCH");
        let runs_here = variable("CARGO_CFG_TARGET_OS") == "linux"
            && program
                .architectures
                .iter()
                .any(|known| architecture == *known);
        if !runs_here {
            // Nothing stays there; whoever needs the program says so.
            std::fs::write(target, []).expect("OUT_DIR can be written");
            continue;
        }
        match program.built(&source, &out.join("target")) {
            Some(built) => {
                std::fs::copy(built, target).expect("OUT_DIR can be written");
            }
            None => {
                let name = program.name;
                println!("cargo::error={name} could not be built; the reason is above");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

impl Program {
    /// The program; `None` when it could not be built.
    fn built(&self, source: &Path, directory: &Path) -> Option<PathBuf> {
        // Without the network first: normally everything is there.
        let done = [true, false].into_iter().any(|offline| {
            let status = self.cargo(source, directory, offline).status();
            status.is_ok_and(|status| status.success())
        });
        let program = directory
            .join(variable("TARGET"))
            .join("agent")
            .join(self.name);
        done.then_some(program)
    }

    fn cargo(&self, source: &Path, directory: &Path, offline: bool) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .args(["rustc", "--quiet", "--bin", self.name])
            .args(["--no-default-features", "--features", "program"])
            .args(["--profile", "agent", "--target"])
            .arg(variable("TARGET"))
            .arg("--manifest-path")
            .arg(source.join("Cargo.toml"))
            .arg("--target-dir")
            .arg(directory);
        if offline {
            command.arg("--offline");
        }
        command.arg("--").args(LINK).args(self.flags);
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
}
