//! Attacks on what may be written: FS2 and FS6.

use super::{attacks, create_in, open, open_for_writing, same_mode, tidy, workspace_path};
use crate::inside::has_own_kernel;
use crate::verdict::error_name;
use crate::{Stage, Verdict};
use rustix::fs::{AtFlags, CWD, OFlags};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

attacks! {
    FS2 "fs2-append-beside", Ordinary, Plain, "appends to a file beside the workspace" => append;
    FS2 "fs2-create-beside", Ordinary, Plain, "creates a file beside the workspace"
        => |stage| create_in(&stage.beside);
    FS2 "fs2-create-in-system", Ordinary, Plain, "creates files in system directories and in /"
        => |stage| create_in_system(stage);
    FS2 "fs2-open-system-files", Ordinary, Plain, "opens system files for writing"
        => |_| Verdict::all(SYSTEM_FILES.iter().map(open_for_writing));
    FS2 "fs2-change-modes", Ordinary, Plain, "changes modes of system files, which Landlock allows"
        => change_modes;
    FS2 "fs2-own-executable", Ordinary, Plain, "rewrites or re-marks the product's own program"
        => own_executable;
    FS2 "fs2-preload", Ordinary, Never("would plant a library for every program"),
        "creates /etc/ld.so.preload" => |_| create_exactly("/etc/ld.so.preload");
    FS2 "fs2-kernel-settings", Ordinary, Plain,
        "opens core_pattern, modprobe and the like for writing"
        => |_| Verdict::all(SETTINGS.iter().map(open_for_writing));
    FS2 "fs2-sysrq", Ordinary, WhereKernelHasIt, "opens /proc/sysrq-trigger for writing"
        => |_| open_for_writing("/proc/sysrq-trigger");
    FS2 "fs2-sysfs", Ordinary, Plain, "opens files of /sys for writing"
        => |_| Verdict::all(SYSFS.iter().map(open_for_writing));
    FS2 "fs2-binary-formats", Ordinary, Never("depends on what is mounted"),
        "registers an interpreter with binfmt_misc"
        => |_| open_for_writing("/proc/sys/fs/binfmt_misc/register");
    FS2 "fs2-rename-workspace", Ordinary, Plain, "renames the workspace and the directory above it"
        => rename_workspace;
    FS2 "fs2-dangling-link", Ordinary, Plain,
        "writes through a link to a file that is not there yet"
        => dangling_link;
    FS2 "fs2-link-standard-input", Ordinary, Plain,
        "links the host's read-only file on descriptor 0 into the workspace and writes there"
        => link_standard_input;
    FS2 "fs2-home-startup-files", Ordinary, Plain, "appends to .bashrc and .profile in the home"
        => startup_files;
    FS6 "fs6-fill-tmp", SmallLimits, Never("fills the host"), "writes more than its budget to /tmp"
        => |stage| fill(stage, Path::new("/tmp"));
    FS6 "fs6-fill-shm", SmallLimits, Never("fills the host"),
        "writes more than its budget to /dev/shm"
        => |stage| fill(stage, Path::new("/dev/shm"));
    FS6 "fs6-fill-home", SmallLimits, Never("fills the host"),
        "writes more than its budget to the home"
        => |stage| fill(stage, stage.home.as_deref().unwrap_or(Path::new("/root")));
    FS6 "fs6-sparse-then-copy", SmallLimits, Never("fills the host"),
        "reserves more than its budget with fallocate" => reserve;
    FS6 "fs6-many-files", SmallLimits, Never("fills the host"), "creates more files than its budget"
        => many_files;
}

const SYSTEM_FILES: &[&str] = &[
    "/etc/passwd",
    "/etc/shadow",
    "/etc/group",
    "/etc/hosts",
    "/etc/profile",
    "/etc/ld.so.cache",
    "/etc/nsswitch.conf",
    "/usr/bin/env",
    "/usr/bin/id",
    "/bin/sh",
];

const SETTINGS: &[&str] = &[
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hotplug",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/kernel/yama/ptrace_scope",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/fs/suid_dumpable",
];

const SYSFS: &[&str] = &[
    "/sys/kernel/uevent_helper",
    "/sys/power/state",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/mm/ksm/run",
    "/sys/module/kernel/parameters/panic",
    "/sys/kernel/debug/sched/debug",
];

fn append(stage: &Stage) -> Verdict {
    let sentinel = stage.beside.join("sentinel");
    let written = OpenOptions::new().append(true).open(sentinel);
    Verdict::of(
        written.and_then(|mut file| file.write_all(b"attacked\n")),
        |()| "changed a file beside the workspace".into(),
    )
}

fn create_exactly(path: &str) -> Verdict {
    let made = OpenOptions::new().write(true).create_new(true).open(path);
    let verdict = Verdict::of(made, |_| format!("created {path}"));
    if matches!(verdict, Verdict::Escaped(_)) {
        tidy(Path::new(path));
    }
    verdict
}

fn create_in_system(stage: &Stage) -> Verdict {
    let directories = [
        "/",
        "/usr",
        "/usr/bin",
        "/usr/lib",
        "/usr/local/bin",
        "/etc",
        "/opt",
        "/var",
        "/var/lib",
        "/home",
        "/mnt",
        "/srv",
        "/boot",
        "/dev",
        "/sys",
    ];
    let above = above_workspace(stage);
    // In a kernel of the sandbox's own that is that kernel's.
    let own = |path: &&Path| has_own_kernel(stage) && **path == *Path::new("/dev");
    let all = directories.iter().map(Path::new).chain(above);
    let all = all.filter(|path| !own(path));
    Verdict::all(all.map(create_in))
}

/// The directory that holds the workspace, if it is the host's: one of the
/// same name in a private /tmp may well be changed.
fn above_workspace(stage: &Stage) -> Option<&Path> {
    let above = stage.workspace.parent()?;
    let device = std::fs::metadata(above).ok()?.dev();
    (device == stage.disk).then_some(above)
}

fn change_modes(stage: &Stage) -> Verdict {
    let system = ["/usr/bin/env", "/etc/passwd", "/usr", "/"].map(PathBuf::from);
    Verdict::all(
        system
            .into_iter()
            .chain([stage.secret()])
            .map(|path| same_mode(&path)),
    )
}

fn own_executable(stage: &Stage) -> Verdict {
    let Ok(path) = std::env::current_exe() else {
        return Verdict::Inconclusive("the path of the executable is unknown".into());
    };
    if path.starts_with(&stage.workspace) {
        return Verdict::Inconclusive("the program lies in the workspace".into());
    }
    let beside = path.parent().map(|directory| {
        let created = create_in(directory);
        // A program in the user's own /var/tmp is brought into a private one.
        // A kernel of the sandbox's own shows all parts of the view as one device.
        let private = has_own_kernel(stage) && directory.starts_with("/var/tmp");
        match (&created, same_device(&path, directory) && !private) {
            (Verdict::Escaped(_), false) => {
                Verdict::Stopped("the directory is of another file system".into())
            }
            _ => created,
        }
    });
    Verdict::all([same_mode(&path)].into_iter().chain(beside))
}

fn same_device(one: &Path, other: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev());
    matches!((device(one), device(other)), (Ok(one), Ok(other)) if one == other)
}

fn rename_workspace(stage: &Stage) -> Verdict {
    let moved = |path: &Path| -> Option<Verdict> {
        let mut away = path.as_os_str().to_owned();
        away.push("-moved");
        let result = std::fs::rename(path, &away);
        if result.is_ok()
            && let Err(error) = std::fs::rename(&away, path)
        {
            return Some(Verdict::Escaped(format!(
                "moved and not moved back: {error}"
            )));
        }
        Some(Verdict::of(result, |()| {
            format!("moved {}", path.display())
        }))
    };
    let above = above_workspace(stage);
    Verdict::all(
        [Some(stage.workspace.as_path()), above]
            .into_iter()
            .flatten()
            .filter_map(moved),
    )
}

fn dangling_link(stage: &Stage) -> Verdict {
    let link = workspace_path(stage, "dangling");
    let target = stage.beside.join("created-through-link");
    let written = std::os::unix::fs::symlink(&target, &link).and_then(|()| {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&link)
            .map(drop)
    });
    let verdict = Verdict::of(written, |()| format!("created {}", target.display()));
    if matches!(verdict, Verdict::Escaped(_)) {
        tidy(&target);
    }
    tidy(&link);
    verdict
}

fn link_standard_input(stage: &Stage) -> Verdict {
    let input = match std::fs::metadata("/proc/self/fd/0") {
        Ok(found) if (found.dev(), found.ino()) == stage.stdin => found,
        Ok(_) => return Verdict::Stopped("standard input is not the host's object".into()),
        Err(error) => return Verdict::refused(&error),
    };
    let link = workspace_path(stage, "stdin");
    let linked = rustix::fs::linkat(CWD, "/proc/self/fd/0", CWD, &link, AtFlags::SYMLINK_FOLLOW);
    let opened = linked
        .map_err(io::Error::from)
        .and_then(|()| open(&link, OFlags::WRONLY));
    let verdict = Verdict::of(opened, |_| format!("can write inode {}", input.ino()));
    tidy(&link);
    verdict
}

/// Writing to a private home is allowed; whether the host's changed is seen
/// outside.
fn startup_files(stage: &Stage) -> Verdict {
    let Some(home) = &stage.home else {
        return Verdict::Inconclusive("no made-up home was staged".into());
    };
    for name in [".bashrc", ".profile"] {
        let opened = OpenOptions::new()
            .append(true)
            .create(true)
            .open(home.join(name));
        if let Err(error) = opened.and_then(|mut file| file.write_all(b"# attacked\n")) {
            return Verdict::refused(&error);
        }
    }
    Verdict::Inconclusive("written; outside it shows whether that was the host's".into())
}

fn fill(stage: &Stage, directory: &Path) -> Verdict {
    with_budget(stage, |limit, _| {
        let path = directory.join(format!(".stockade-fill-{}", std::process::id()));
        let mut written = 0_u64;
        let block = vec![0xA5_u8; 1 << 20];
        let mut fill = || -> io::Result<()> {
            let mut file = File::create_new(&path)?;
            while written < limit * 2 {
                file.write_all(&block)?;
                written += block.len() as u64;
            }
            Ok(())
        };
        let result = fill();
        tidy(&path);
        within(
            result,
            format!("wrote {written} of {limit} bytes"),
            written <= limit,
        )
    })
}

fn reserve(stage: &Stage) -> Verdict {
    with_budget(stage, |limit, _| {
        let path = Path::new("/tmp").join(format!(".stockade-reserve-{}", std::process::id()));
        let reserved = File::create_new(&path).and_then(|file| {
            let flags = rustix::fs::FallocateFlags::empty();
            Ok(rustix::fs::fallocate(file.as_fd(), flags, 0, limit * 2)?)
        });
        tidy(&path);
        within(reserved, format!("reserved twice {limit} bytes"), true)
    })
}

fn many_files(stage: &Stage) -> Verdict {
    with_budget(stage, |_, limit| {
        let directory = Path::new("/tmp").join(format!(".stockade-files-{}", std::process::id()));
        let mut made = 0_u64;
        let mut make = || -> io::Result<()> {
            std::fs::create_dir(&directory)?;
            while made < limit * 2 {
                File::create_new(directory.join(made.to_string()))?;
                made += 1;
            }
            Ok(())
        };
        let result = make();
        drop(std::fs::remove_dir_all(&directory));
        within(
            result,
            format!("made {made} files of {limit}"),
            made <= limit,
        )
    })
}

/// Runs with a budget in bytes and inodes, if it is small enough to be tried.
fn with_budget(stage: &Stage, attack: impl FnOnce(u64, u64) -> Verdict) -> Verdict {
    match stage.limits {
        Some(limits) if limits.disk_bytes <= 256 << 20 && limits.disk_inodes <= 1 << 18 => {
            attack(limits.disk_bytes, limits.disk_inodes)
        }
        _ => Verdict::Inconclusive("no small limit was staged".into()),
    }
}

/// A limit held if the attack got an error before it went beyond the limit.
fn within(result: io::Result<()>, what: String, below: bool) -> Verdict {
    match result {
        Err(error) if below => Verdict::Stopped(format!("{}: {what}", error_name(&error))),
        _ => Verdict::Escaped(what),
    }
}
