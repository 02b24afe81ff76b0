//! Control groups as Firecracker's jailer makes them (cgroups(7)).
//!
//! It makes one for each machine and never removes one, so we do.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Holds the groups of all our machines.
const PARENT: &str = "stockade-firecracker";
/// What Firecracker itself needs beside the machine's memory.
const OVERHEAD_MIB: u64 = 64;
/// Its threads, and some.
const PROCESSES: u64 = 64;

/// The groups of this system that can limit memory and processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    version: u8,
    /// Where each hierarchy is mounted.
    mounts: Vec<PathBuf>,
}

impl Groups {
    pub fn of_system() -> io::Result<Self> {
        Ok(Self::of(&fs::read_to_string("/proc/mounts")?))
    }

    /// Version 1 where both controllers are in its hierarchies, else 2.
    fn of(mounts: &str) -> Self {
        let lines: Vec<Vec<&str>> = mounts
            .lines()
            .map(|line| line.split(' ').collect())
            .filter(|fields: &Vec<&str>| fields.len() >= 4)
            .collect();
        let with = |controller: &str| {
            let found = lines.iter().find(|fields| {
                fields[2] == "cgroup" && fields[3].split(',').any(|option| option == controller)
            });
            found.map(|fields| PathBuf::from(fields[1]))
        };
        if let (Some(memory), Some(pids)) = (with("memory"), with("pids")) {
            return Self {
                version: 1,
                mounts: vec![memory, pids],
            };
        }
        let unified = lines.iter().filter(|fields| fields[2] == "cgroup2");
        Self {
            version: 2,
            mounts: unified.map(|fields| fields[1].into()).collect(),
        }
    }

    /// What the jailer is told, for a machine with so much memory in MiB.
    pub fn arguments(&self, memory: u32) -> Vec<String> {
        let bytes = (u64::from(memory) + OVERHEAD_MIB) << 20;
        let file = match self.version {
            1 => "memory.limit_in_bytes",
            _ => "memory.max",
        };
        let words = [
            "--cgroup-version",
            &self.version.to_string(),
            "--parent-cgroup",
            PARENT,
            "--cgroup",
            &format!("pids.max={PROCESSES}"),
            "--cgroup",
            &format!("{file}={bytes}"),
        ];
        words.map(str::to_owned).to_vec()
    }

    /// Removes the groups of a machine whose processes are gone. Missing is fine.
    pub fn remove(&self, machine: &str) -> io::Result<()> {
        for mount in &self.mounts {
            let group = mount.join(PARENT).join(machine);
            let mut tries = 0;
            loop {
                match fs::remove_dir(&group) {
                    Ok(()) => break,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    // The kernel forgets processes a moment after they ended.
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy && tries < 200 => {
                        tries += 1;
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_one_that_has_the_controllers() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                      cgroup /sys/fs/cgroup/pids cgroup rw,relatime,pids 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        let groups = Groups::of(hybrid);
        let pids = PathBuf::from("/sys/fs/cgroup/pids");
        assert_eq!((groups.version, &groups.mounts[1]), (1, &pids));
        let words = groups.arguments(64).join(" ");
        assert_eq!(
            words,
            "--cgroup-version 1 --parent-cgroup stockade-firecracker --cgroup pids.max=64 \
             --cgroup memory.limit_in_bytes=134217728"
        );
        let unified = Groups::of("cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n");
        assert_eq!(unified.version, 2);
        assert!(
            unified
                .arguments(64)
                .contains(&"memory.max=134217728".to_owned())
        );
    }
}
