//! Attacks on limits: PR7.

use super::{attacks, open_for_writing, tidy};
use crate::stage::SmallLimits;
use crate::verdict::error_name;
use crate::{Stage, Verdict};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::Resource;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use stockade_sys::hostile;

attacks! {
    PR7 "pr7-fork", SmallLimits, Never("loads the host"), "starts more processes than its limit"
        => |stage| with_limits(stage, fork);
    PR7 "pr7-threads", SmallLimits, Never("loads the host"), "starts more threads than its limit"
        => |stage| with_limits(stage, threads);
    PR7 "pr7-memory", SmallLimits, Never("loads the host"), "uses more memory than its limit"
        => |stage| with_limits(stage, memory);
    PR7 "pr7-memory-file", SmallLimits, Never("loads the host"),
        "keeps more than its memory limit in a file without a name"
        => |stage| with_limits(stage, memory_file);
    PR7 "pr7-open-files", SmallLimits, Never("needs a small limit"),
        "opens more files than its limit"
        => |stage| with_limits(stage, open_files);
    PR7 "pr7-raise-limits", Ordinary, Never("the host's limits may be infinite"),
        "raises its own hard limits"
        => raise;
    PR7 "pr7-spared-by-the-kernel", Ordinary, Never("needs a capability that root may lack"),
        "makes itself the last to be killed without memory"
        => |_| Verdict::of(std::fs::write("/proc/self/oom_score_adj", "-999"),
            |()| "is killed last".into());
    PR7 "pr7-nice", Ordinary, Plain, "takes more than its share of the processor"
        => |_| Verdict::of(hostile::set_nice(-20), |()| "has the highest priority".into());
    PR7 "pr7-real-time", Ordinary, Plain, "runs in real time, before everything else"
        => |_| Verdict::of(hostile::real_time(), |()| "runs in real time".into());
    PR7 "pr7-leave-control-group", Ordinary, Never("depends on what is mounted"),
        "moves itself to another control group" => leave_group;
    PR7 "pr7-mount-control-groups", Ordinary, Apart, "mounts the control groups to change its own"
        => mount_groups;
}

/// Runs with limits that are small enough to be tried.
fn with_limits(stage: &Stage, attack: impl FnOnce(&SmallLimits) -> Verdict) -> Verdict {
    match &stage.limits {
        Some(limits)
            if limits.processes <= 2048
                && limits.open_files <= 65_536
                && limits.memory_bytes <= 1 << 30 =>
        {
            attack(limits)
        }
        _ => Verdict::Inconclusive("no small limit was staged".into()),
    }
}

/// Does one thing up to twice its limit. The first error is the stop, unless
/// the limit was passed by then.
fn repeat(limit: u64, mut step: impl FnMut() -> io::Result<()>) -> Verdict {
    for count in 0..limit.saturating_mul(2) {
        match step() {
            Err(error) if count <= limit => {
                return Verdict::Stopped(format!("{} after {count}", error_name(&error)));
            }
            Err(_) => return Verdict::Escaped(format!("{count} of {limit}")),
            Ok(()) => {}
        }
    }
    Verdict::Escaped(format!("twice the limit of {limit}"))
}

fn fork(limits: &SmallLimits) -> Verdict {
    let mut children = Vec::new();
    let verdict = repeat(limits.processes, || {
        children.push(hostile::fork_sleeper()?);
        Ok(())
    });
    children.into_iter().for_each(hostile::end_sleeper);
    verdict
}

fn threads(limits: &SmallLimits) -> Verdict {
    let mut kept = Vec::new();
    repeat(limits.processes, || {
        let (sender, receiver) = mpsc::channel::<()>();
        let builder = std::thread::Builder::new().stack_size(64 << 10);
        builder.spawn(move || receiver.recv().is_ok())?;
        kept.push(sender);
        Ok(())
    })
}

fn memory(limits: &SmallLimits) -> Verdict {
    const BLOCK: usize = 4 << 20;
    let mut kept: Vec<Vec<u8>> = Vec::new();
    let verdict = repeat(limits.memory_bytes.div_ceil(BLOCK as u64), || {
        let mut block = Vec::new();
        block
            .try_reserve_exact(BLOCK)
            .map_err(|_| io::Error::from_raw_os_error(12))?;
        block.resize(BLOCK, 0xA5);
        kept.push(block);
        Ok(())
    });
    std::hint::black_box(&kept);
    verdict
}

fn memory_file(limits: &SmallLimits) -> Verdict {
    const BLOCK: usize = 4 << 20;
    let created = rustix::fs::memfd_create("bait", rustix::fs::MemfdFlags::CLOEXEC);
    let file = match created {
        Ok(file) => file,
        Err(error) => return Verdict::refused(&error.into()),
    };
    let block = vec![0xA5_u8; BLOCK];
    repeat(limits.memory_bytes.div_ceil(BLOCK as u64), || {
        let mut rest = block.as_slice();
        while !rest.is_empty() {
            rest = &rest[rustix::io::write(&file, rest)?..];
        }
        Ok(())
    })
}

fn open_files(limits: &SmallLimits) -> Verdict {
    let mut kept = Vec::new();
    repeat(limits.open_files, || {
        kept.push(std::fs::File::open("/dev/null")?);
        Ok(())
    })
}

fn raise(_: &Stage) -> Verdict {
    let limits = [
        ("data", Resource::Data, 2_u32),
        ("processes", Resource::Nproc, 6),
        ("open files", Resource::Nofile, 7),
        ("core", Resource::Core, 4),
        ("file size", Resource::Fsize, 1),
    ];
    let bounded = limits
        .into_iter()
        .filter(|(_, resource, _)| rustix::process::getrlimit(*resource).maximum.is_some());
    Verdict::all(bounded.map(|(name, _, number)| {
        Verdict::of(hostile::unlimited(number), |()| {
            format!("{name} without limit")
        })
    }))
}

/// Files that would move a process or lift its limits, a few levels down.
fn group_files() -> Vec<PathBuf> {
    const NAMES: &[&str] = &[
        "cgroup.procs",
        "tasks",
        "memory.max",
        "pids.max",
        "memory.limit_in_bytes",
        "release_agent",
        "notify_on_release",
    ];
    let mut directories = vec![(PathBuf::from("/sys/fs/cgroup"), 0)];
    let mut files = Vec::new();
    while let Some((directory, depth)) = directories.pop() {
        for entry in std::fs::read_dir(&directory)
            .into_iter()
            .flatten()
            .flatten()
        {
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_directory && depth < 3 {
                directories.push((entry.path(), depth + 1));
            } else if NAMES.iter().any(|name| entry.file_name() == *name) {
                files.push(entry.path());
            }
        }
    }
    files
}

fn leave_group(_: &Stage) -> Verdict {
    let files = group_files();
    if files.is_empty() {
        return Verdict::Stopped("no control group shows".into());
    }
    Verdict::all(files.into_iter().map(open_for_writing))
}

fn mount_groups(stage: &Stage) -> Verdict {
    let target = super::workspace_path(stage, "cgroup");
    if let Err(error) = std::fs::create_dir(&target) {
        return Verdict::Inconclusive(format!("cannot make a directory: {error}"));
    }
    let verdict = Verdict::all(["cgroup2", "cgroup"].map(|kind| mount_group(kind, &target)));
    tidy(&target);
    verdict
}

fn mount_group(kind: &str, target: &Path) -> Verdict {
    let mounted = rustix::mount::mount(kind, target, kind, MountFlags::empty(), None);
    match mounted {
        Ok(()) => {
            let gone = rustix::mount::unmount(target, UnmountFlags::DETACH);
            Verdict::Escaped(format!("mounted {kind}; unmounted: {}", gone.is_ok()))
        }
        Err(error) => Verdict::refused(&error.into()),
    }
}
