//! Machines of Firecracker: what the driver adds to Firecracker and its jailer, which are given the
//! same configuration and called the same way, without it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::meter;
use super::rounds;
use super::rows::{Figure, Limit, Row};
use crate::{firecracker, shell};

/// As in the driver's own program.
const MEMORY_MIB: u32 = 128;
const IDLE: usize = 5;
/// Whom Firecracker runs as without us.
const USER: &str = "64997";

/// The programs, and a directory with a snapshot.
pub struct Machines {
    directory: PathBuf,
    programs: PathBuf,
    ours: PathBuf,
    /// What the jailer is told of control groups.
    groups: Vec<String>,
    rounds: usize,
}

impl Machines {
    pub fn prepare(directory: PathBuf, rounds: usize) -> Result<Self> {
        let programs = firecracker::ensure()?;
        let example = [
            "build",
            "--quiet",
            "--release",
            "-p",
            "stockade-vm",
            "--example",
            "machines",
        ];
        shell::run(shell::cargo().args(example))?;
        fs::create_dir_all(directory.join("bare/firecracker"))?;
        let mut machines = Self {
            groups: Vec::new(),
            directory,
            programs,
            ours: shell::target_directory().join("release/examples/machines"),
            rounds,
        };
        shell::capture(&mut machines.ours("save"))?;
        let groups = shell::capture(&mut machines.ours("groups"))?;
        machines.groups = groups.lines().map(str::to_owned).collect();
        Ok(machines)
    }

    /// From nothing to the machine's first byte.
    pub fn start(&self) -> Result<Row> {
        let name = "Firecracker behind its jailer, start to the machine's first byte";
        let row = rounds::interleaved(
            name,
            &["stockade", "bare"],
            self.rounds,
            |index| match index {
                0 => self.our_time("boot"),
                _ => {
                    let files = [("kernel", self.directory.join("guest"))];
                    let mut bare = Bare::prepare(self, "boot", &files)?;
                    let started = Instant::now();
                    bare.start(&["--config-file", "configuration"])?;
                    let output = bare.process.as_mut().and_then(|one| one.stdout.as_mut());
                    output.context("a pipe")?.read_exact(&mut [0])?;
                    Ok(started.elapsed())
                }
            },
        )?;
        Ok(row.demand_of("bare", Limit::AtMost(1.2)))
    }

    /// From nothing to a machine that goes on; ours has taken a generation then.
    pub fn restore(&self) -> Result<Row> {
        let name = "Firecracker behind its jailer, a snapshot to a machine that goes on";
        let row = rounds::interleaved(
            name,
            &["stockade", "bare"],
            self.rounds,
            |index| match index {
                0 => self.our_time("restore"),
                _ => {
                    let saved = self.directory.join("saved");
                    let files = ["memory", "state"].map(|name| (name, saved.join(name)));
                    let mut bare = Bare::prepare(self, "restore", &files)?;
                    let started = Instant::now();
                    bare.start(&[])?;
                    bare.load()?;
                    Ok(started.elapsed())
                }
            },
        )?;
        Ok(row.demand_of("bare", Limit::AtMost(1.2)))
    }

    /// What one more restored machine adds, all its processes and its part of ours.
    pub fn memory(&self) -> Result<Row> {
        let mut row = Row::new(
            "memory of one of five idle machines, shared pages divided",
            "MiB",
        );
        let mut ours = self
            .ours("idle")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = ours.stdout.take().context("a pipe")?;
        let said = BufReader::new(output).lines().next().transpose()?;
        let processes = meter::descendants(ours.id())?;
        let bytes: u64 = processes
            .into_iter()
            .filter_map(meter::proportional_bytes)
            .sum();
        drop(ours.stdin.take());
        if said.as_deref() != Some("idle") || !ours.wait()?.success() {
            bail!("the machines did not come up");
        }
        row.figures.push(Figure {
            contender: "stockade",
            rounds: vec![bytes as f64 / IDLE as f64 / f64::from(1 << 20)],
        });
        Ok(row.demand_at_most("stockade", 4.0))
    }

    fn ours(&self, what: &str) -> Command {
        let mut command = Command::new(&self.ours);
        command.arg(&self.directory).arg(&self.programs).arg(what);
        command
    }

    fn our_time(&self, what: &str) -> Result<Duration> {
        let text = shell::capture(&mut self.ours(what))?;
        Ok(Duration::from_micros(text.trim().parse()?))
    }
}

/// Firecracker as somebody would start it by hand, gone when dropped.
struct Bare<'a> {
    machines: &'a Machines,
    name: String,
    root: PathBuf,
    process: Option<Child>,
}

impl<'a> Bare<'a> {
    /// The jail's directory with these files in it.
    fn prepare(machines: &'a Machines, what: &str, files: &[(&str, PathBuf)]) -> Result<Self> {
        let name = format!("{what}{}", std::process::id());
        let root = machines
            .directory
            .join("bare/firecracker")
            .join(&name)
            .join("root");
        fs::create_dir_all(&root)?;
        for (name, file) in files {
            fs::hard_link(file, root.join(name))?;
        }
        let configuration = json!({
            "boot-source": { "kernel_image_path": "kernel", "boot_args": "" },
            "drives": [],
            "machine-config": {
                "vcpu_count": 1, "mem_size_mib": MEMORY_MIB, "smt": false, "track_dirty_pages": true,
            },
            "vsock": { "guest_cid": 3, "uds_path": "vsock" },
        });
        fs::write(root.join("configuration"), configuration.to_string())?;
        Ok(Self {
            machines,
            name,
            root,
            process: None,
        })
    }

    fn start(&mut self, more: &[&str]) -> Result<()> {
        let programs = &self.machines.programs;
        let child = Command::new(programs.join("jailer"))
            .args([
                "--id",
                &self.name,
                "--uid",
                USER,
                "--gid",
                USER,
                "--exec-file",
            ])
            .arg(programs.join("firecracker"))
            .arg("--chroot-base-dir")
            .arg(self.machines.directory.join("bare"))
            .args(&self.machines.groups)
            .args(["--", "--api-sock", "api", "--level", "Error"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        self.process = Some(child);
        Ok(())
    }

    /// Loads the snapshot and lets it go on.
    fn load(&self) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(30);
        let mut api = loop {
            match UnixStream::connect(self.root.join("api")) {
                Ok(api) => break api,
                Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_micros(200)),
                Err(error) => return Err(error.into()),
            }
        };
        let body = json!({
            "snapshot_path": "state", "enable_diff_snapshots": true, "resume_vm": true,
            "mem_backend": { "backend_type": "File", "backend_path": "memory" },
        })
        .to_string();
        write!(
            api,
            "PUT /snapshot/load HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut status = [0; 12];
        api.read_exact(&mut status)?;
        if &status != b"HTTP/1.1 204" {
            bail!("the snapshot was not loaded");
        }
        Ok(())
    }
}

impl Drop for Bare<'_> {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // The next measurement says more clearly what is wrong.
            let _ended = process.kill().is_ok() && process.wait().is_ok();
        }
        for group in self.groups() {
            // The kernel forgets processes a moment after they ended.
            let gone = (0..200).any(|_| {
                std::thread::sleep(Duration::from_millis(1));
                fs::remove_dir(&group).is_ok() || !group.exists()
            });
            if !gone {
                eprintln!("cannot remove {}", group.display());
            }
        }
        let _removed = self
            .root
            .parent()
            .is_some_and(|own: &Path| fs::remove_dir_all(own).is_ok());
    }
}

impl Bare<'_> {
    /// What the jailer made for it, in either version's hierarchies.
    fn groups(&self) -> Vec<PathBuf> {
        let below = Path::new("stockade-firecracker").join(&self.name);
        let top = PathBuf::from("/sys/fs/cgroup");
        let hierarchies = fs::read_dir(&top).into_iter().flatten().flatten();
        let places = hierarchies.map(|entry| entry.path()).chain([top]);
        let groups = places.map(|place| place.join(&below));
        groups.filter(|group| group.exists()).collect()
    }
}
