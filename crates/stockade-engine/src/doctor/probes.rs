//! Tries what a run needs, by making the system calls that a run makes.
//!
//! What would change this process is tried in a forked child, which reports
//! one error number through a pipe and ends.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use stockade_policy::facts::Architecture;
use stockade_policy::seccomp::{NestedSandbox, Options, program};
use stockade_sys::mount::{self, Attributes, Reach};
use stockade_sys::process::{
    Child, Forked, Namespaces, exit_now, fork_into, leave_control_group, leave_network,
};
use stockade_sys::rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use stockade_sys::rustix::io::{Errno, read, write};
use stockade_sys::rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsmount, fsopen, move_mount, open_tree,
};
use stockade_sys::rustix::pipe::{PipeFlags, pipe_with};
use stockade_sys::rustix::process::{
    DumpableBehavior, PidfdFlags, WaitId, WaitIdOptions, dumpable_behavior, getegid, geteuid,
    getpid, pidfd_open, set_dumpable_behavior, waitid,
};
use stockade_sys::rustix::thread::set_no_new_privs;
use stockade_sys::{landlock, network, seccomp};

/// The character devices that a run brings in from the host.
pub const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// What was being tried when setting namespaces up failed, in the order of
/// the attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Making namespaces: clone3(2), and unshare(2) for the last ones.
    Clone,
    /// Writing the id maps of the new user namespace.
    Map,
    /// Cutting the mounts off from the host's.
    Private,
    /// A new tmpfs with the new mount API, put in place.
    Tmpfs,
    /// mount_setattr(2).
    ReadOnly,
    /// A device node of the host in the new view.
    Devices,
    /// A new devpts.
    Terminals,
    /// A new procfs.
    Proc,
    /// Bringing up `lo`.
    Loopback,
}

impl Stage {
    const ALL: [Self; 9] = [
        Self::Clone,
        Self::Map,
        Self::Private,
        Self::Tmpfs,
        Self::ReadOnly,
        Self::Devices,
        Self::Terminals,
        Self::Proc,
        Self::Loopback,
    ];
}

/// Why namespaces cannot be had.
#[derive(Debug)]
pub struct NamespacesFailure {
    pub stage: Stage,
    pub error: io::Error,
}

/// Makes every namespace that a run makes, and mounts in them.
pub fn namespaces() -> Result<(), NamespacesFailure> {
    let failed = |stage| move |error| NamespacesFailure { stage, error };
    // A supervisor that has failed is not dumpable any more, and then the id
    // maps of its child belong to root. It holds nothing that must be kept.
    let before = dumpable_behavior().map_err(|error| failed(Stage::Clone)(error.into()))?;
    let dumpable = |behavior| set_dumpable_behavior(behavior).map_err(io::Error::from);
    dumpable(DumpableBehavior::Dumpable).map_err(failed(Stage::Clone))?;
    let tried = try_namespaces();
    dumpable(before).map_err(failed(Stage::Clone))?;
    tried
}

fn try_namespaces() -> Result<(), NamespacesFailure> {
    let failed = |stage| move |error| NamespacesFailure { stage, error };
    let (go, tell) = pipe().map_err(failed(Stage::Clone))?;
    let (answer, report) = pipe().map_err(failed(Stage::Clone))?;
    let child = match fork_into(Namespaces::Own).map_err(failed(Stage::Clone))? {
        Forked::Child => {
            drop((tell, answer));
            let mut byte = [0u8; 1];
            if matches!(read(&go, &mut byte), Ok(1)) {
                let (stage, error) = match complete() {
                    Ok(()) => (u8::MAX, 0),
                    Err((stage, error)) => (stage as u8, error.raw_os_error().unwrap_or(0)),
                };
                send(report.as_fd(), stage, error);
            }
            exit_now(0)
        }
        Forked::Parent(child) => child,
    };
    drop((go, report));
    let mapped = map_ids(child.pid);
    if mapped.is_ok() {
        // A child that is gone already has said why.
        let _told = write(&tell, b"g").is_ok();
    }
    drop(tell);
    let outcome = receive(answer.as_fd());
    wait(&child).map_err(failed(Stage::Clone))?;
    mapped.map_err(failed(Stage::Map))?;
    match outcome.map_err(failed(Stage::Private))? {
        (u8::MAX, _) => Ok(()),
        (stage, error) => Err(NamespacesFailure {
            stage: Stage::ALL
                .get(usize::from(stage))
                .copied()
                .unwrap_or(Stage::Private),
            error: io::Error::from_raw_os_error(error),
        }),
    }
}

/// Maps the caller's own ids, as a run of an ordinary user does.
fn map_ids(pid: u32) -> io::Result<()> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    std::fs::write(format!("/proc/{pid}/setgroups"), "deny")?;
    std::fs::write(format!("/proc/{pid}/uid_map"), format!("{uid} {uid} 1\n"))?;
    std::fs::write(format!("/proc/{pid}/gid_map"), format!("{gid} {gid} 1\n"))
}

/// Runs in the new namespaces: makes those that are still missing, and mounts.
fn complete() -> Result<(), (Stage, io::Error)> {
    let at = |stage| move |error: io::Error| (stage, error);
    leave_network().map_err(at(Stage::Clone))?;
    leave_control_group().map_err(at(Stage::Clone))?;
    mount::make_all_private().map_err(at(Stage::Private))?;
    let root = filesystem("tmpfs").map_err(at(Stage::Tmpfs))?;
    attach(root.as_fd(), CWD, "/").map_err(at(Stage::Tmpfs))?;
    let scratch = filesystem("tmpfs").map_err(at(Stage::Tmpfs))?;
    mount::set_attributes(scratch.as_fd(), Attributes::READ_ONLY, Reach::Recursive)
        .map_err(at(Stage::ReadOnly))?;
    for name in DEVICES {
        bring_device(root.as_fd(), name).map_err(at(Stage::Devices))?;
    }
    mount_at(root.as_fd(), "devpts").map_err(at(Stage::Terminals))?;
    mount_at(root.as_fd(), "proc").map_err(at(Stage::Proc))?;
    network::loopback_up().map_err(at(Stage::Loopback))
}

fn filesystem(kind: &str) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID;
    Ok(fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes,
    )?)
}

fn attach(tree: BorrowedFd<'_>, place: BorrowedFd<'_>, path: &str) -> io::Result<()> {
    Ok(move_mount(
        tree,
        "",
        place,
        path,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )?)
}

fn mount_at(root: BorrowedFd<'_>, kind: &str) -> io::Result<()> {
    mkdirat(root, kind, Mode::RWXU)?;
    attach(filesystem(kind)?.as_fd(), root, kind)
}

/// Binds a device of the host and uses it there: a mount of /dev without
/// devices shows only when the node is opened.
fn bring_device(root: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    openat(root, name, flags, Mode::RUSR)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, format!("/dev/{name}"), flags)?;
    attach(tree.as_fd(), root, name)?;
    openat(root, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(())
}

/// Lays a ruleset on a child and sees it refuse. Returns the ABI.
pub fn landlock() -> io::Result<u32> {
    let abi = landlock::version()?;
    in_child(|| {
        let handled = stockade_policy::landlock::handled(abi);
        set_no_new_privs(true)?;
        landlock::Ruleset::new(landlock::Handled {
            filesystem: handled.fs,
            network: handled.net,
            scoped: handled.scoped,
        })?
        .restrict_self()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(CWD, "/", flags, Mode::empty()) {
            Err(Errno::ACCESS) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => Err(Errno::NOTRECOVERABLE.into()),
        }
    })?;
    Ok(abi)
}

/// Installs the filter of a run on a child and sees it refuse. Returns how
/// many instructions it has.
pub fn filter(architecture: Architecture) -> io::Result<usize> {
    let program: Vec<seccomp::Instruction> = program(
        architecture,
        Options {
            nested_sandbox: NestedSandbox::Denied,
        },
    )
    .into_iter()
    .map(|one| seccomp::Instruction {
        code: one.code,
        jump_true: one.jump_true,
        jump_false: one.jump_false,
        operand: one.operand,
    })
    .collect();
    in_child(|| {
        set_no_new_privs(true)?;
        seccomp::install(&program)?;
        let refused = [Errno::NOSYS, Errno::PERM].map(Errno::raw_os_error);
        let answer = seccomp::refused_call().raw_os_error();
        match answer.is_some_and(|code| refused.contains(&code)) && seccomp::is_filtered() {
            true => Ok(()),
            false => Err(Errno::NOTRECOVERABLE.into()),
        }
    })?;
    Ok(program.len())
}

/// openat2(2), which resolves a path without following links.
pub fn resolve_without_links() -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(CWD, "/", flags, Mode::empty(), resolve)?;
    Ok(())
}

/// pidfd_open(2), which names a process for good.
pub fn process_descriptors() -> io::Result<()> {
    pidfd_open(getpid(), PidfdFlags::empty())?;
    Ok(())
}

/// mount_setattr(2). Outside a namespace of one's own it is refused, but not
/// as unknown.
pub fn mount_attributes() -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, "/", flags, Mode::empty())?;
    match mount::set_attributes(root.as_fd(), Attributes::NONE, Reach::One) {
        Err(error) if error.raw_os_error() == Some(Errno::NOSYS.raw_os_error()) => Err(error),
        _ => Ok(()),
    }
}

/// A fork of this process, which must have one thread for that.
pub fn plain_fork() -> io::Result<()> {
    in_child(|| Ok(()))
}

/// Runs `attempt` in a forked child and brings its error back.
fn in_child(attempt: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let (answer, report) = pipe()?;
    let child = match fork_into(Namespaces::None)? {
        Forked::Child => {
            let error = match attempt() {
                Ok(()) => 0,
                Err(error) => error
                    .raw_os_error()
                    .unwrap_or(Errno::NOTRECOVERABLE.raw_os_error()),
            };
            send(report.as_fd(), 0, error);
            exit_now(0)
        }
        Forked::Parent(child) => child,
    };
    drop(report);
    let outcome = receive(answer.as_fd());
    wait(&child)?;
    match outcome?.1 {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

fn send(report: BorrowedFd<'_>, stage: u8, error: i32) {
    let mut message = [stage, 0, 0, 0, 0];
    message[1..].copy_from_slice(&error.to_ne_bytes());
    // When this fails, the missing answer says that something went wrong.
    let _sent = write(report, &message).is_ok();
}

/// The child's answer; one that ended without answering was killed.
fn receive(answer: BorrowedFd<'_>) -> io::Result<(u8, i32)> {
    let mut message = [0u8; 5];
    match read(answer, &mut message)? {
        5 => {
            let [stage, error @ ..] = message;
            Ok((stage, i32::from_ne_bytes(error)))
        }
        _ => Err(Errno::CHILD.into()),
    }
}

fn wait(child: &Child) -> io::Result<()> {
    loop {
        match waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED) {
            Err(Errno::INTR) => {}
            other => return other.map(drop).map_err(io::Error::from),
        }
    }
}
