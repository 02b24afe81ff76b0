//! Measures one command: time on the wall, CPU time of all its processes, memory of its helpers.
//!
//! CPU time that `wait4` reports covers a child and the descendants that were waited for. Processes
//! that die with their namespace, or that were left behind, can be missing from it. As root the
//! harness therefore puts itself into a control group, where the kernel counts every process, and
//! subtracts its own share. Both ways were seen to agree for the bare command.

use crate::user;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use wait4::Wait4;

/// What one run of a command took.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub wall: Duration,
    pub cpu: Duration,
}

/// Resident memory of some processes together, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory {
    pub resident: u64,
    /// Each page divided by the number of processes that share it; none where it may not be read.
    pub proportional: Option<u64>,
    pub processes: usize,
}

/// How long the kernel gets to finish off processes that outlive the front process by a moment.
const SETTLE: Duration = Duration::from_millis(4);

/// Measures commands that this process starts.
pub struct Meter {
    group: Option<ControlGroup>,
}

impl Meter {
    /// Counts in a control group of its own where this process is root and has cgroup v2.
    pub fn new() -> Self {
        let group = if user::is_root() {
            ControlGroup::enter().ok()
        } else {
            None
        };
        Self { group }
    }

    /// How the CPU time is counted, in words for the report.
    pub fn method(&self) -> &'static str {
        match self.group {
            Some(_) => "cgroup v2 cpu.stat, all processes",
            None => "wait4, processes that were waited for",
        }
    }

    /// Runs `command` once; anything but success is an error with what it wrote.
    pub fn measure(&self, command: &mut Command) -> Result<Sample> {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let before = self
            .group
            .as_ref()
            .map(ControlGroup::others_cpu)
            .transpose()?;
        let start = Instant::now();
        let mut child = command
            .spawn()
            .with_context(|| crate::shell::shown(command))?;
        let usage = child.wait4()?;
        let wall = start.elapsed();
        if !usage.status.success() {
            let mut message = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                std::io::Read::read_to_string(&mut stderr, &mut message)?;
            }
            bail!(
                "{} ended with {}: {message}",
                crate::shell::shown(command),
                usage.status
            );
        }
        let cpu = match (&self.group, before) {
            (Some(group), Some(before)) => {
                std::thread::sleep(SETTLE);
                Duration::from_nanos(u64::try_from(group.others_cpu()? - before).unwrap_or(0))
            }
            _ => usage.rusage.utime + usage.rusage.stime,
        };
        Ok(Sample { wall, cpu })
    }

    /// Starts `command`, waits until its payload `sleep` idles, and adds up all other processes.
    pub fn idle_memory(&self, command: &mut Command) -> Result<Memory> {
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        std::thread::sleep(Duration::from_millis(1500));
        let memory = descendants(child.id()).and_then(|processes| sum_memory(&processes));
        child.wait()?;
        memory
    }
}

/// `first` and all processes below it.
pub(super) fn descendants(first: u32) -> Result<Vec<u32>> {
    let mut pairs = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(process) = entry?.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        if let Some(parent) = status_field(process, "PPid:") {
            pairs.push((process, u32::try_from(parent)?));
        }
    }
    let mut found = vec![first];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        found.extend(
            pairs
                .iter()
                .filter(|pair| pair.1 == parent)
                .map(|pair| pair.0),
        );
        next += 1;
    }
    Ok(found)
}

fn sum_memory(processes: &[u32]) -> Result<Memory> {
    let mut sum = Memory {
        proportional: Some(0),
        ..Memory::default()
    };
    let mut payloads = 0;
    for &process in processes {
        let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        if name.trim() == "sleep" {
            payloads += 1;
            continue;
        }
        // A process that ended meanwhile has none.
        let Some(resident) = status_field(process, "VmRSS:") else {
            continue;
        };
        sum.resident += resident * 1024;
        sum.proportional = sum
            .proportional
            .zip(proportional_bytes(process))
            .map(|(a, b)| a + b);
        sum.processes += 1;
    }
    if payloads != 1 {
        bail!("expected one idle `sleep`, found {payloads}");
    }
    Ok(sum)
}

/// Resident memory of a process; none when it is gone.
pub(super) fn resident_bytes(process: u32) -> Option<u64> {
    Some(status_field(process, "VmRSS:")? * 1024)
}

/// The number after `key` in `/proc/PROCESS/status`; sizes there are in KiB.
fn status_field(process: u32, key: &str) -> Option<u64> {
    number_after(
        &fs::read_to_string(format!("/proc/{process}/status")).ok()?,
        key,
    )
}

/// The same, with pages that processes share divided among them.
pub(super) fn proportional_bytes(process: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?;
    number_after(&rollup, "Pss:").map(|kibibytes| kibibytes * 1024)
}

fn number_after(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

/// A cgroup v2 group that holds this process and all that it starts.
struct ControlGroup {
    path: PathBuf,
    /// Where this process came from, and goes back to.
    origin: PathBuf,
}

impl ControlGroup {
    fn enter() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let is_cgroup2 = |line: &&str| line.split(' ').nth(2) == Some("cgroup2");
        let mount = mounts
            .lines()
            .find(is_cgroup2)
            .context("no cgroup v2 is mounted")?;
        let mount = Path::new(mount.split(' ').nth(1).context("odd mount line")?);
        let membership = fs::read_to_string("/proc/self/cgroup")?;
        let own = membership
            .lines()
            .find_map(|line| line.strip_prefix("0::/"));
        let origin = mount.join(own.context("this process is in no cgroup v2 group")?);
        let path = mount.join(format!("stockade-bench-{}", std::process::id()));
        fs::create_dir(&path)?;
        let group = Self { path, origin };
        fs::write(
            group.path.join("cgroup.procs"),
            std::process::id().to_string(),
        )?;
        Ok(group)
    }

    /// CPU time in nanoseconds of all processes that were ever in the group, without this one.
    /// Only differences mean anything: this process also ran before it entered the group.
    fn others_cpu(&self) -> Result<i64> {
        let text = fs::read_to_string(self.path.join("cpu.stat"))?;
        let all = number_after(&text, "usage_usec").context("cpu.stat has no usage_usec")?;
        let own = fs::read_to_string("/proc/self/schedstat")?;
        let own: i64 = own
            .split(' ')
            .next()
            .context("schedstat is empty")?
            .parse()?;
        Ok(i64::try_from(all)? * 1000 - own)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let own = std::process::id().to_string();
        let left = fs::write(self.origin.join("cgroup.procs"), own);
        // What was measured last may still be about to end.
        let remove = || {
            (0..50).find_map(|_| {
                std::thread::sleep(SETTLE);
                fs::remove_dir(&self.path).ok()
            })
        };
        if let Err(error) =
            left.and_then(|()| remove().map_or_else(|| fs::remove_dir(&self.path), Ok))
        {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}
