//! Attacks on the view itself: FS5.

use super::{attacks, open, read_secret, tidy, workspace_path};
use crate::{Stage, Verdict};
use rustix::fs::{CWD, OFlags};
use rustix::mount::{FsOpenFlags, MountFlags, OpenTreeFlags, UnmountFlags};
use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use stockade_sys::hostile;

/// Flags of clone(2) for namespaces, by name.
const NAMESPACES: &[(&str, i32)] = &[
    ("mount", 0x0002_0000),
    ("cgroup", 0x0200_0000),
    ("uts", 0x0400_0000),
    ("ipc", 0x0800_0000),
    ("user", 0x1000_0000),
    ("pid", 0x2000_0000),
    ("network", 0x4000_0000),
];
const NEW_USER: i32 = 0x1000_0000;

attacks! {
    FS5 "fs5-mount-tmpfs", Ordinary, Apart, "mounts a file system over a directory of the workspace"
        => |stage| mount_over(stage, "tmpfs", MountFlags::empty());
    FS5 "fs5-bind", Ordinary, Apart, "binds / onto a directory of the workspace"
        => |stage| mount_over(stage, "/", MountFlags::BIND | MountFlags::REC);
    FS5 "fs5-mount-proc", Ordinary, Apart, "mounts another /proc"
        => |stage| mount_over(stage, "proc", MountFlags::empty());
    FS5 "fs5-unmount", Ordinary, Apart, "takes mounts away to see what they cover" => unmount;
    FS5 "fs5-remount", Ordinary, Apart, "makes read-only mounts writable with mount(2)" => remount;
    FS5 "fs5-mount-attributes", Ordinary, Apart,
        "makes read-only mounts writable with mount_setattr(2)"
        => mount_attributes;
    FS5 "fs5-new-mount-interface", Ordinary, Plain, "opens a new file system with fsopen(2)"
        => |_| Verdict::of(rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)
            .map_err(io::Error::from), |_| "opened a tmpfs".into());
    FS5 "fs5-clone-tree", Ordinary, Apart, "clones the tree of mounts with open_tree(2)"
        => |_| Verdict::of(clone_tree(), |_| "cloned the mounts".into());
    FS5 "fs5-pivot-root", Ordinary, Never("needs a root of its own"),
        "changes the root with pivot_root(2)"
        => |stage| Verdict::of(rustix::process::pivot_root(&stage.workspace, &stage.workspace)
            .map_err(io::Error::from), |()| "changed the root".into());
    FS5 "fs5-chroot-twice", Ordinary, Plain, "leaves a root by a second chroot(2)" => chroot_twice;
    FS5 "fs5-unshare", Ordinary, Plain, "makes namespaces with unshare(2)"
        => |_| Verdict::all(NAMESPACES.iter().map(|(name, flag)| Verdict::of(
            hostile::unshare(*flag), |()| format!("made a {name} namespace")).about(name)));
    FS5 "fs5-unshare-user-then-mount", Ordinary, Plain, "makes user and mount namespaces at once"
        => |_| Verdict::of(hostile::unshare(NEW_USER | NAMESPACES[0].1),
            |()| "made user and mount namespaces".into());
    FS5 "fs5-clone-user", Ordinary, Plain, "makes a user namespace with clone(2)"
        => |_| Verdict::of(hostile::clone_into(NEW_USER), |()| "made a user namespace".into());
    FS5 "fs5-clone3-user", Ordinary, Plain, "makes a user namespace with clone3(2)"
        => |_| Verdict::of(hostile::clone3_into(NEW_USER as u64),
            |()| "made a user namespace".into());
    FS5 "fs5-enter-namespaces", Ordinary, Plain,
        "enters namespaces of other processes with setns(2)"
        => enter;
    FS5 "fs5-fuse", Ordinary, Never("depends on the kernel's modules"), "opens /dev/fuse"
        => |_| super::open_for_writing("/dev/fuse");
    FS5 "fs5-link-steers-next-run", TwoRuns, Plain,
        "leaves links to secrets in the workspace for a later run to follow" => links_for_later;
}

fn mount_over(stage: &Stage, source: &str, flags: MountFlags) -> Verdict {
    let target = workspace_path(stage, "mount");
    if let Err(error) = std::fs::create_dir(&target) {
        return Verdict::Inconclusive(format!("cannot make a directory: {error}"));
    }
    let kind = if source.starts_with('/') { "" } else { source };
    let mounted = rustix::mount::mount(source, &target, kind, flags, None).map_err(io::Error::from);
    let verdict = Verdict::of(mounted, |()| format!("mounted {source}"));
    if matches!(verdict, Verdict::Escaped(_))
        && let Err(error) = rustix::mount::unmount(&target, UnmountFlags::DETACH)
    {
        return verdict.about(error);
    }
    tidy(&target);
    verdict
}

/// Mount points of this namespace, the newest first.
fn mount_points() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut points: Vec<String> = text
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(str::to_owned)
        .collect();
    points.reverse();
    points.push("/".into());
    points
}

fn unmount(_: &Stage) -> Verdict {
    Verdict::all(first_escape(mount_points(), |point| {
        let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        let taken = rustix::mount::unmount(point, flags).map_err(io::Error::from);
        Verdict::of(taken, |()| format!("took {point} away"))
    }))
}

fn remount(_: &Stage) -> Verdict {
    Verdict::all(first_escape(mount_points(), |point| {
        let bind = rustix::mount::mount_remount(point, MountFlags::BIND, "");
        Verdict::of(bind.map_err(io::Error::from), |()| {
            format!("remounted {point}")
        })
    }))
}

fn mount_attributes(_: &Stage) -> Verdict {
    Verdict::all(first_escape(mount_points(), |point| {
        match CString::new(point) {
            Ok(path) => Verdict::of(hostile::mount_writable(&path), |()| {
                format!("made {point} writable")
            }),
            Err(_) => Verdict::Inconclusive("the path holds a null byte".into()),
        }
    }))
}

/// Tries one after the other and stops at the first escape, which is harm
/// enough.
fn first_escape(points: Vec<String>, attempt: impl Fn(&str) -> Verdict) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for point in points {
        verdicts.push(attempt(&point));
        if matches!(verdicts.last(), Some(Verdict::Escaped(_))) {
            break;
        }
    }
    verdicts
}

fn clone_tree() -> io::Result<impl AsFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Ok(rustix::mount::open_tree(CWD, "/", flags)?)
}

fn chroot_twice(stage: &Stage) -> Verdict {
    let inner = workspace_path(stage, "root");
    let climb = || -> io::Result<()> {
        std::fs::create_dir(&inner)?;
        rustix::process::chroot(&inner)?;
        for _ in 0..64 {
            rustix::process::chdir("..")?;
        }
        Ok(rustix::process::chroot(".")?)
    };
    let climbed = std::env::set_current_dir(&stage.workspace).and_then(|()| climb());
    let verdict = match climbed {
        Ok(()) => read_secret(stage, stage.secret()),
        Err(error) => Verdict::refused(&error),
    };
    tidy(&inner);
    verdict
}

fn enter(_: &Stage) -> Verdict {
    let kinds = ["mnt", "user", "pid", "net", "ipc", "uts", "cgroup"];
    let processes = super::processes();
    Verdict::all(processes.iter().take(8).flat_map(|pid| {
        kinds.map(|kind| {
            let path = format!("/proc/{pid}/ns/{kind}");
            let entered = open(Path::new(&path), OFlags::RDONLY)
                .and_then(|namespace| hostile::setns(namespace.as_fd(), 0));
            match entered {
                Ok(()) => Verdict::Escaped(format!("entered {path}")),
                Err(error) => Verdict::Stopped(crate::verdict::error_name(&error)),
            }
        })
    }))
}

fn links_for_later(stage: &Stage) -> Verdict {
    let links = [
        ("later-file", stage.secret()),
        ("later-directory", stage.beside.clone()),
    ];
    if stage.round == 1 {
        for (name, target) in links {
            let made = std::os::unix::fs::symlink(target, stage.workspace.join(name));
            if let Err(error) = made {
                return Verdict::Inconclusive(format!("cannot make a link: {error}"));
            }
        }
        return Verdict::Inconclusive("links are laid; the second run looks".into());
    }
    Verdict::all([
        read_secret(stage, stage.workspace.join("later-file")),
        read_secret(
            stage,
            stage.workspace.join("later-directory").join("secret"),
        ),
    ])
}
