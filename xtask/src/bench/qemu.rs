//! Machines of QEMU: what going on from a saved state takes against booting the same machine.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::rounds;
use super::rows::{Limit, Row};
use crate::{kernel_package, shell};

/// The example program that starts them, and a directory with an image and a saved state.
pub struct Machines {
    directory: PathBuf,
    program: PathBuf,
    rounds: usize,
}

impl Machines {
    pub fn prepare(directory: PathBuf, rounds: usize) -> Result<Self> {
        let package = kernel_package::ensure()?;
        let example = ["--release", "-p", "stockade-vm", "--example", "qemu"];
        shell::run(shell::cargo().args(["build", "--quiet"]).args(example))?;
        let machines = Self {
            directory: directory.join("qemu"),
            program: shell::target_directory().join("release/examples/qemu"),
            rounds,
        };
        shell::run(machines.command("build").arg(package))?;
        shell::run(&mut machines.command("save"))?;
        Ok(machines)
    }

    /// From nothing until a command has ended in the machine.
    pub fn first_command(&self) -> Result<Row> {
        let name = "QEMU without /dev/kvm, start to the end of a first command";
        let row = rounds::interleaved(name, &["restore", "boot"], self.rounds, |index| {
            let what = ["restore", "boot"][index];
            let text = shell::capture(&mut self.command(what))?;
            Ok(Duration::from_micros(text.trim().parse()?))
        })?;
        Ok(row.demand_between("restore", "boot", Limit::AtMost(0.2)))
    }

    fn command(&self, what: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(&self.directory).arg(what);
        command
    }
}
