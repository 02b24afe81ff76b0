//! Attacks that try to gain privilege: PR2.

use super::{attacks, status, tidy, workspace_path};
use crate::{Stage, Verdict};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use stockade_sys::hostile;

attacks! {
    PR2 "pr2-capabilities-held", Ordinary, Plain, "looks for capabilities that were left" => held;
    PR2 "pr2-capset", Ordinary, Plain, "takes every capability with capset(2)"
        => |_| Verdict::of(take_all(), |sets| format!("holds {sets}"));
    PR2 "pr2-ambient", Ordinary, Never("needs inheritable capabilities"),
        "raises ambient capabilities"
        => |_| Verdict::all((0..41).map(|capability| Verdict::of(
            hostile::raise_ambient(capability), |()| format!("raised {capability}"))));
    PR2 "pr2-clear-no-new-privileges", Ordinary, Plain,
        "looks whether no_new_privs is off, and clears it"
        => no_new_privileges;
    PR2 "pr2-become-root", Ordinary, Plain, "changes user and group" => become_other;
    PR2 "pr2-supplementary-groups", Ordinary, Plain, "joins groups with setgroups(2)"
        => |_| Verdict::of(hostile::set_groups(0), |()| "joined the root group".into());
    PR2 "pr2-setuid-programs", Ordinary, Never("needs an ordinary user"),
        "runs set-user-id programs and looks whether the loader saw a privileged start" => setuid;
    PR2 "pr2-file-capabilities", Ordinary, Plain, "gives a file of its own capabilities"
        => file_capabilities;
    PR2 "pr2-user-namespace", Ordinary, Plain, "gains all capabilities in a new user namespace"
        => |_| Verdict::of(hostile::unshare(0x1000_0000).and_then(|()| status("self", "CapEff")),
            |set| format!("holds {set}"));
    PR2 "pr2-chroot", Ordinary, Plain, "uses CAP_SYS_CHROOT"
        => |_| Verdict::of(rustix::process::chroot("/").map_err(io::Error::from),
            |()| "changed the root".into());
    PR2 "pr2-memory-map", Ordinary, Never("its argument is wrong on purpose"),
        "rewrites the map of its own memory with prctl(2)"
        => |_| Verdict::of(hostile::set_memory_map(), |()| "changed the program break".into());
    PR2 "pr2-filter-absent", Ordinary, Plain, "looks whether a filter is in force at all"
        => |_| match status("self", "Seccomp") {
            Ok(mode) if mode == "2" => Verdict::Stopped("a filter is in force".into()),
            Ok(mode) => Verdict::Escaped(format!("Seccomp is {mode}")),
            Err(error) => Verdict::Inconclusive(error.to_string()),
        };
}

const NONE: &str = "0000000000000000";

fn held(_: &Stage) -> Verdict {
    Verdict::all(
        ["CapEff", "CapPrm", "CapInh", "CapAmb"].map(|set| match status("self", set) {
            Ok(value) if value == NONE => Verdict::Stopped("none".into()),
            Ok(value) => Verdict::Escaped(format!("{set} is {value}")),
            Err(error) => Verdict::Inconclusive(error.to_string()),
        }),
    )
}

fn take_all() -> io::Result<String> {
    let all = hostile::capset_all();
    let now = status("self", "CapEff")?;
    match all {
        Err(error) if now == NONE => Err(error),
        _ => Ok(now),
    }
}

fn no_new_privileges(_: &Stage) -> Verdict {
    match status("self", "NoNewPrivs") {
        Ok(value) if value == "1" => {}
        Ok(value) => return Verdict::Escaped(format!("NoNewPrivs is {value}")),
        Err(error) => return Verdict::Inconclusive(error.to_string()),
    }
    match hostile::clear_no_new_privileges() {
        Ok(()) => Verdict::Escaped("cleared it".into()),
        Err(error) => Verdict::Stopped(crate::verdict::error_name(&error)),
    }
}

/// An ordinary user tries to become root; root tries to become somebody else,
/// which takes the same capability.
fn become_other(_: &Stage) -> Verdict {
    let root = rustix::process::getuid().is_root();
    let target = if root { 1 } else { 0 };
    let tried = [
        ("group", hostile::set_group(target)),
        ("user", hostile::set_user(target)),
    ];
    Verdict::all(tried.map(|(what, result)| match result {
        Ok(()) => Verdict::Escaped(format!("became {what} {target}")),
        // EINVAL says that the id does not exist in this user namespace.
        Err(error) => Verdict::Stopped(crate::verdict::error_name(&error)),
    }))
}

/// The loader ignores LD_SHOW_AUXV in a privileged start (ld.so(8)), so its
/// silence shows that privilege was gained.
fn setuid(stage: &Stage) -> Verdict {
    if rustix::process::getuid().is_root() {
        return held(stage).about("already root");
    }
    let names = [
        "su",
        "sudo",
        "mount",
        "umount",
        "passwd",
        "newgrp",
        "chsh",
        "pkexec",
        "newuidmap",
    ];
    let programs = names.map(|name| format!("/usr/bin/{name}"));
    let privileged = programs.into_iter().filter(|program| {
        std::fs::metadata(program).is_ok_and(|found| found.permissions().mode() & 0o4000 != 0)
    });
    Verdict::all(privileged.map(|program| {
        let shown = Command::new(&program)
            .arg("--version")
            .env("LD_SHOW_AUXV", "1")
            .output();
        match shown {
            Ok(output) if output.stdout.windows(9).any(|part| part == b"AT_SECURE") => {
                Verdict::Stopped("no privilege gained".into())
            }
            Ok(_) => Verdict::Escaped(format!("{program} started with privilege")),
            Err(error) => Verdict::refused(&error),
        }
    }))
}

/// CAP_SYS_ADMIN permitted and effective, as `struct vfs_cap_data`.
fn file_capabilities(stage: &Stage) -> Verdict {
    let path = workspace_path(stage, "capable");
    let mut value = Vec::new();
    for word in [0x0200_0001_u32, 1 << 21, 0, 0, 0] {
        value.extend_from_slice(&word.to_le_bytes());
    }
    let set = std::fs::write(&path, b"#!/bin/sh\n").and_then(|()| {
        let flags = rustix::fs::XattrFlags::empty();
        Ok(rustix::fs::setxattr(
            &path,
            "security.capability",
            &value,
            flags,
        )?)
    });
    tidy(&path);
    Verdict::of(set, |()| "the file has capabilities".into())
}
