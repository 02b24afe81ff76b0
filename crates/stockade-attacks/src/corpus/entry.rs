//! Attacks on what enters with the command: PR5; on the log: AU1; and on the
//! proof that the command is confined: AU2.

use super::{attacks, create_in, open, status};
use crate::{Stage, Verdict};
use rustix::fs::OFlags;
use std::io;
use std::path::{Path, PathBuf};

attacks! {
    PR5 "pr5-descriptors", Ordinary, Plain, "looks for descriptors from 3 to 4096" => descriptors;
    PR5 "pr5-directory-descriptor", Ordinary, Plain, "climbs out with .. of an inherited directory"
        => directories;
    PR5 "pr5-environment", Ordinary, Plain, "looks for a secret in its environment" => environment;
    PR5 "pr5-agent-variables", Ordinary, Plain, "looks for variables that lead to agents and buses"
        => variables;
    PR5 "pr5-working-directory", Ordinary, Never("the directory is the same without a sandbox"),
        "looks whether its directory lies outside the view"
        => directory;
    AU1 "au1-open-log", Ordinary, Plain,
        "opens the product's log for writing, and adds to it" => log;
    AU1 "au1-replace-log", Ordinary, Plain, "moves the product's log away" => replace_log;
    AU2 "au2-unconfined-start", Ordinary, Plain,
        "looks whether it was started without its walls" => unconfined;
    AU2 "au2-speak-as-launcher", Ordinary, Plain,
        "looks for the channel on which the launcher reports evidence" => channel;
}

/// Descriptors above the standard ones, and what each one is.
fn inherited() -> Vec<(u32, PathBuf)> {
    let link = |number: u32| {
        let target = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        Some((number, target))
    };
    (3..=4096).filter_map(link).collect()
}

fn descriptors(_: &Stage) -> Verdict {
    match inherited().first() {
        None => Verdict::Stopped("none".into()),
        Some((number, target)) => Verdict::Escaped(format!("{number} is {}", target.display())),
    }
}

fn directories(stage: &Stage) -> Verdict {
    if inherited().is_empty() {
        return Verdict::Stopped("no descriptor to climb from".into());
    }
    Verdict::all(inherited().into_iter().map(|(number, _)| {
        let path = format!("/proc/self/fd/{number}/../beside/secret");
        super::read_secret(stage, path)
    }))
}

fn environment(stage: &Stage) -> Verdict {
    use std::os::unix::ffi::OsStrExt;
    let secret = std::env::vars_os().find(|(_, value)| stage.found_in(value.as_bytes()));
    match secret {
        Some((name, _)) => Verdict::Escaped(format!("{} holds it", name.display())),
        None => super::read_secret(stage, "/proc/self/environ"),
    }
}

fn variables(_: &Stage) -> Verdict {
    const LEADING: &[&str] = &[
        "SSH_AUTH_SOCK",
        "SSH_AGENT_PID",
        "GPG_AGENT_INFO",
        "DBUS_SESSION_BUS_ADDRESS",
        "DOCKER_HOST",
        "KUBECONFIG",
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "NPM_TOKEN",
        "LD_PRELOAD",
        "STOCKADE_BAIT_AGENT",
    ];
    match LEADING.iter().find(|name| std::env::var_os(name).is_some()) {
        Some(name) => Verdict::Escaped(format!("{name} is set")),
        None => Verdict::Stopped("none is set".into()),
    }
}

fn directory(stage: &Stage) -> Verdict {
    match std::fs::read_link("/proc/self/cwd") {
        Ok(path) if path.starts_with(&stage.workspace) => {
            Verdict::Stopped("it is the workspace".into())
        }
        Ok(path) => Verdict::Escaped(format!("it is {}", path.display())),
        Err(error) => Verdict::refused(&error),
    }
}

fn log(stage: &Stage) -> Verdict {
    let Some(state) = &stage.state else {
        return Verdict::Inconclusive("no log was staged".into());
    };
    let listed = match std::fs::read_dir(state) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(_) => vec![state.join("sentinel.jsonl")],
    };
    let files = listed.into_iter().map(super::open_for_writing);
    Verdict::all(files.chain([create_in(state)]))
}

fn replace_log(stage: &Stage) -> Verdict {
    let Some(state) = &stage.state else {
        return Verdict::Inconclusive("no log was staged".into());
    };
    let away = state.with_extension("moved");
    let moved = std::fs::rename(state, &away).and_then(|()| std::fs::rename(&away, state));
    Verdict::of(moved, |()| "moved it away and back".into())
}

fn unconfined(_: &Stage) -> Verdict {
    let expected = [
        ("Seccomp", "2"),
        ("NoNewPrivs", "1"),
        ("CapEff", "0000000000000000"),
    ];
    Verdict::all(expected.map(|(name, wanted)| match status("self", name) {
        Ok(value) if value == wanted => Verdict::Stopped("confined".into()),
        Ok(value) => Verdict::Escaped(format!("started with {name} {value}")),
        Err(error) => Verdict::Inconclusive(error.to_string()),
    }))
}

fn channel(_: &Stage) -> Verdict {
    let own = inherited().into_iter().map(|(number, target)| {
        Verdict::Escaped(format!("descriptor {number} is {}", target.display()))
    });
    let third = open(Path::new("/dev/fd/3"), OFlags::WRONLY);
    let of_launcher = descriptor_of_launcher();
    Verdict::all(own.chain([
        Verdict::of(third, |_| "opened descriptor 3".into()),
        Verdict::of(of_launcher, |path| format!("opened {}", path.display())),
    ]))
}

/// A descriptor of process 1, above its standard ones, that opens for writing.
fn descriptor_of_launcher() -> io::Result<PathBuf> {
    for entry in std::fs::read_dir("/proc/1/fd")? {
        let entry = entry?;
        let extra = entry.file_name().to_str().is_some_and(is_extra);
        if extra && open(&entry.path(), OFlags::WRONLY).is_ok() {
            return Ok(entry.path());
        }
    }
    Err(io::Error::from(rustix::io::Errno::NOENT))
}

fn is_extra(name: &str) -> bool {
    name.parse::<u32>().is_ok_and(|number| number > 2)
}
