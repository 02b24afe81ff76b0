//! What the benchmark of the walls measures of our machines of Firecracker: times
//! of the driver itself, without the start of this program.
//!
//! `machines DIRECTORY PROGRAMS boot|restore` prints microseconds: until the first
//! byte of a booted machine, or until a restored one has answered. `save` prepares
//! for the latter and prints where the snapshot is. `idle` says so and keeps five
//! restored machines until its input ends. `groups` prints what the jailer is told of
//! control groups, so that others can be started alike.

use std::error::Error;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use stockade_agent_image::GUEST;
use stockade_vm::firecracker::configuration::Configuration;
use stockade_vm::firecracker::host::{Confinement, Groups, Host};
use stockade_vm::firecracker::snapshot::{Kind, Snapshot};

/// Whom Firecracker runs as.
const USER: u32 = 64_998;
/// In MiB, as in the measurements of Firecracker itself.
const MEMORY: u32 = 128;
const IDLE: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let [directory, programs, what] = &words[..] else {
        return Err("machines DIRECTORY PROGRAMS boot|save|restore|idle|groups".into());
    };
    let (directory, programs) = (Path::new(directory), Path::new(programs));
    let host = Host::open(
        &directory.join("machines"),
        &programs.join("firecracker"),
        Confinement::Jailer {
            program: programs.join("jailer"),
            uid: USER,
            gid: USER,
            groups: Groups::of_system()?,
        },
    )?;
    let saved = directory.join("saved");
    match what.to_str() {
        Some("boot") => {
            let machine = host.boot(&configuration(directory)?)?;
            let took = machine.first_output_after().ok_or("it said nothing")?;
            println!("{}", took.as_micros());
        }
        Some("save") => {
            host.boot(&configuration(directory)?)?
                .save(Kind::Full, &saved)?;
            println!("{}", saved.display());
        }
        Some("restore") => {
            let snapshot = Snapshot::open(&saved)?;
            let start = Instant::now();
            let _machine = host.restore(&snapshot)?;
            println!("{}", start.elapsed().as_micros());
        }
        Some("idle") => {
            let snapshot = Snapshot::open(&saved)?;
            let machines = (0..IDLE).map(|_| host.restore(&snapshot));
            let _machines = machines.collect::<Result<Vec<_>, _>>()?;
            println!("idle");
            std::io::stdin().read_to_end(&mut Vec::new())?;
        }
        Some("groups") => {
            for word in Groups::of_system()?.arguments(MEMORY) {
                println!("{word}");
            }
        }
        _ => return Err("not one of these".into()),
    }
    Ok(())
}

fn configuration(directory: &Path) -> Result<Configuration, Box<dyn Error>> {
    let kernel: PathBuf = directory.join("guest");
    fs::write(&kernel, GUEST)?;
    Ok(Configuration {
        kernel,
        arguments: String::new(),
        memory: MEMORY,
        processors: 1,
        drives: Vec::new(),
    })
}
