//! A control group for one sandbox: cgroup v2 where it is delegated or the
//! caller is root, cgroup v1 for root on hybrid machines (cgroups(7)).

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stockade_policy::facts::ControlGroups;
use stockade_policy::plan::Limits;
use stockade_sys::rustix::event::{EventfdFlags, eventfd};
use stockade_sys::rustix::io::Errno;
use stockade_sys::rustix::process::{Pid, geteuid, test_kill_process};

/// Every group of ours has this prefix, then the supervisor's pid namespace and
/// process id.
const PREFIX: &str = "stockade-";
/// Where control groups are.
const MOUNT: &str = "/sys/fs/cgroup";
/// Deeper groups are not looked at.
const DEPTH_MAX: usize = 16;
/// Far longer than it takes from making a group to joining it.
const STALE_AFTER: Duration = Duration::from_secs(60);
/// Period of the CPU quota in microseconds, the kernel's default.
const CPU_PERIOD_MICROS: u64 = 100_000;

/// A control group, removed when dropped.
#[derive(Debug)]
pub struct ControlGroup {
    version: Version,
    /// One directory for v2; one per controller for v1.
    directories: Vec<(String, PathBuf)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// What the group counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub peak_memory_bytes: Option<u64>,
    /// Processes that were killed because memory ran out.
    pub memory_kills: u64,
    /// Forks that were refused because of the process limit.
    pub refused_forks: u64,
}

impl ControlGroup {
    /// Makes a group with these limits; `None` when the machine offers none.
    pub fn create(groups: &ControlGroups, limits: &Limits) -> io::Result<Option<Self>> {
        let name = format!("{PREFIX}{}-{}", own_namespace()?, std::process::id());
        let (version, places) = match groups {
            ControlGroups::None { .. } => return Ok(None),
            ControlGroups::V2 { directory, .. } => (
                Version::Two,
                vec![(String::new(), directory.as_path().join(&name))],
            ),
            ControlGroups::V1 { directories } => (
                Version::One,
                directories
                    .iter()
                    .map(|(controller, directory)| {
                        (controller.clone(), directory.as_path().join(&name))
                    })
                    .collect(),
            ),
        };
        let mut group = Self {
            version,
            directories: Vec::new(),
        };
        for (controller, directory) in places {
            if let Some(parent) = directory.parent() {
                remove_stale(parent);
            }
            create_own(&directory)?;
            // Pushed at once: what exists is removed when a later step fails.
            group.directories.push((controller, directory));
        }
        group.set(limits)?;
        Ok(Some(group))
    }

    /// Makes a group and removes it again, to see that it can be done.
    pub fn probe(groups: &ControlGroups) -> io::Result<()> {
        let limits = Limits {
            memory_bytes: Some(1 << 30),
            processes: Some(64),
            cpu_percent: None,
            cpu_seconds: None,
            wall_time_ms: None,
            open_files: None,
            file_bytes: None,
            disk_bytes: 0,
            store_bytes: 0,
            disk_inodes: 0,
            exact: true,
        };
        Self::create(groups, &limits).map(drop)
    }

    fn set(&self, limits: &Limits) -> io::Result<()> {
        let cpu_quota = limits
            .cpu_percent
            .map(|percent| u64::from(percent) * CPU_PERIOD_MICROS / 100);
        match self.version {
            Version::Two => {
                if let Some(bytes) = limits.memory_bytes {
                    self.write("", "memory.max", bytes)?;
                    self.write("", "memory.oom.group", 1)?;
                    // Absent on machines without swap accounting.
                    ignore_missing(self.write("", "memory.swap.max", 0))?;
                }
                if let Some(processes) = limits.processes {
                    self.write("", "pids.max", processes)?;
                }
                if let Some(quota) = cpu_quota {
                    self.write("", "cpu.max", format!("{quota} {CPU_PERIOD_MICROS}"))?;
                }
            }
            Version::One => {
                if let Some(bytes) = limits.memory_bytes {
                    self.write("memory", "memory.limit_in_bytes", bytes)?;
                    ignore_missing(self.write("memory", "memory.memsw.limit_in_bytes", bytes))?;
                }
                if let Some(processes) = limits.processes {
                    self.write("pids", "pids.max", processes)?;
                }
                if let Some(quota) = cpu_quota {
                    self.write("cpu", "cpu.cfs_period_us", CPU_PERIOD_MICROS)?;
                    self.write("cpu", "cpu.cfs_quota_us", quota)?;
                }
            }
        }
        Ok(())
    }

    /// Files that let in the thread that writes `0` to them; none with cgroup
    /// v2, where who makes the group has to [`ControlGroup::join`] the process.
    pub fn entrances(&self) -> io::Result<Vec<OwnedFd>> {
        let open = |(_, directory): &(String, PathBuf)| {
            let tasks = fs::OpenOptions::new()
                .write(true)
                .open(directory.join("tasks"))?;
            Ok(tasks.into())
        };
        match self.version {
            Version::One => self.directories.iter().map(open).collect(),
            Version::Two => Ok(Vec::new()),
        }
    }

    /// Puts a process into the group, unless it enters by itself.
    pub fn join(&self, pid: u32) -> io::Result<()> {
        match self.version {
            Version::One => Ok(()),
            Version::Two => self.write("", "cgroup.procs", pid),
        }
    }

    /// What shows that a process is in the group.
    pub fn shows(&self, pid: u32) -> io::Result<String> {
        for (_, directory) in &self.directories {
            let members = fs::read_to_string(directory.join("cgroup.procs"))?;
            if !members.lines().any(|line| line.parse() == Ok(pid)) {
                return Err(io::Error::other("the process is not listed in its group"));
            }
        }
        let names: Vec<&str> = self
            .directories
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|name| !name.is_empty())
            .collect();
        Ok(match self.version {
            Version::Two => "listed in a cgroup v2 group of its own".into(),
            Version::One => format!(
                "listed in cgroup v1 groups of its own: {}",
                names.join(", ")
            ),
        })
    }

    /// A descriptor that becomes readable when memory ran out in the group and
    /// the kernel picked one process to kill; `None` with cgroup v2, which then
    /// kills the whole group by itself (memory.oom.group).
    pub fn out_of_memory(&self) -> io::Result<Option<OwnedFd>> {
        if self.version == Version::Two {
            return Ok(None);
        }
        // Memory controller of cgroup v1, "OOM Control": the event descriptor
        // and the file are registered by number.
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let control = fs::File::open(self.file("memory", "memory.oom_control")?)?;
        let numbers = format!("{} {}", event.as_raw_fd(), control.as_raw_fd());
        self.write("memory", "cgroup.event_control", numbers)?;
        Ok(Some(event))
    }

    /// What the group counted so far.
    pub fn counted(&self) -> Counted {
        let (peak, kills, forks) = match self.version {
            Version::Two => (
                self.read("", "memory.peak"),
                self.read_field("", "memory.events", "oom_kill"),
                self.read_field("", "pids.events", "max"),
            ),
            Version::One => (
                self.read("memory", "memory.max_usage_in_bytes"),
                self.read_field("memory", "memory.oom_control", "oom_kill"),
                self.read_field("pids", "pids.events", "max"),
            ),
        };
        Counted {
            peak_memory_bytes: peak.and_then(|text| text.trim().parse().ok()),
            memory_kills: kills.unwrap_or(0),
            refused_forks: forks.unwrap_or(0),
        }
    }

    fn file(&self, controller: &str, file: &str) -> io::Result<PathBuf> {
        self.directories
            .iter()
            .find(|(name, _)| self.version == Version::Two || name == controller)
            .map(|(_, directory)| directory.join(file))
            .ok_or_else(|| io::Error::other(format!("no {controller} controller")))
    }

    fn write(&self, controller: &str, file: &str, value: impl ToString) -> io::Result<()> {
        let path = self.file(controller, file)?;
        fs::write(&path, value.to_string())
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    fn read(&self, controller: &str, file: &str) -> Option<String> {
        fs::read_to_string(self.file(controller, file).ok()?).ok()
    }

    fn read_field(&self, controller: &str, file: &str, field: &str) -> Option<u64> {
        self.read(controller, file)?.lines().find_map(|line| {
            let (name, value) = line.split_once(' ')?;
            if name == field {
                value.trim().parse().ok()
            } else {
                None
            }
        })
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        for (_, directory) in &self.directories {
            remove_when_empty(directory);
        }
    }
}

/// Removes a group; its last process may still be on its way out.
fn remove_when_empty(directory: &std::path::Path) {
    for _ in 0..200 {
        match fs::remove_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Removed, or gone already; anything else is left for the next
            // start's `remove_stale`.
            _ => return,
        }
    }
}

/// Makes a directory that carries this process's id. One that is there already
/// is of a dead process with the same id.
fn create_own(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_dir(directory)?;
            fs::create_dir(directory)
        }
        other => other,
    }
}

/// Removes groups that a killed supervisor left behind. A group with a process
/// in it cannot be removed, so a living sandbox is never touched.
fn remove_stale(parent: &Path) {
    for group in stale_below(parent) {
        // The next start tries again.
        let _left = fs::remove_dir(group).is_err();
    }
}

/// The inode of the pid namespace that this process is in (pid_namespaces(7)).
fn own_namespace() -> io::Result<u64> {
    Ok(fs::metadata("/proc/self/ns/pid")?.ino())
}

/// Whether a group is of a supervisor that is gone. That of another pid
/// namespace cannot be seen; then a group is not touched that may be about to
/// be joined.
fn is_stale(group: &fs::DirEntry, namespace: u64) -> bool {
    let name = group.file_name();
    let maker = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
    let Some((of, pid)) = maker.and_then(|maker| maker.split_once('-')) else {
        return false;
    };
    let (Ok(of), Some(pid)) = (of.parse::<u64>(), pid.parse().ok().and_then(Pid::from_raw)) else {
        return false;
    };
    if of == namespace {
        return test_kill_process(pid) == Err(Errno::SRCH);
    }
    let made = group.metadata().and_then(|metadata| metadata.modified());
    made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > STALE_AFTER))
}

fn stale_below(parent: &Path) -> Vec<PathBuf> {
    let (Ok(entries), Ok(namespace)) = (fs::read_dir(parent), own_namespace()) else {
        return Vec::new();
    };
    let stale = entries.flatten().filter(|group| is_stale(group, namespace));
    stale.map(|group| group.path()).collect()
}

/// Groups that killed supervisors of this user left behind, wherever these
/// were started.
pub fn stale() -> Vec<PathBuf> {
    let user = geteuid().as_raw();
    let Ok(namespace) = own_namespace() else {
        return Vec::new();
    };
    let mut stale = Vec::new();
    let mut look = vec![(PathBuf::from(MOUNT), 0)];
    while let Some((directory, depth)) = look.pop() {
        // Groups come and go meanwhile.
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let is_own = || {
                entry
                    .metadata()
                    .is_ok_and(|metadata| metadata.uid() == user)
            };
            if is_stale(&entry, namespace) && is_own() {
                stale.push(entry.path());
            } else if depth < DEPTH_MAX {
                look.push((entry.path(), depth + 1));
            }
        }
    }
    stale
}

/// Removes them, as far as nothing is in them.
pub fn clear() {
    for group in stale() {
        // What is in use stays, and is found again.
        let _left = fs::remove_dir(group).is_err();
    }
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
