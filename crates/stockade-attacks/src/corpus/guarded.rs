//! Attacks on guarded paths: FS4. Each tries to make a file of its own stand
//! in the workspace under a name at which something outside would run it.
//!
//! Writing there may succeed and be kept aside, so no error tells: what counts
//! is what stands at the name afterwards, for everyone.

use super::{attacks, workspace_path};
use crate::inside::agent_is_first;
use crate::{Stage, Verdict};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

attacks! {
    FS4 "fs4-create", Ordinary, Plain, "creates editor tasks, shell files, workflows, agent settings"
        => |stage| planted(stage, "create", NAMES, |path| fs::write(path, MARK));
    FS4 "fs4-rename", Ordinary, Plain, "renames an ordinary file to such names"
        => |stage| planted(stage, "rename", NAMES, |path| from_aside(stage, path, |aside| {
            fs::rename(aside, path)
        }));
    FS4 "fs4-exchange", Ordinary, Plain, "exchanges an ordinary file with one of such a name"
        => |stage| planted(stage, "exchange", NAMES, |path| from_aside(stage, path, |aside| {
            fs::write(path, b"before")?;
            Ok(rustix::fs::renameat_with(CWD, aside, CWD, path, RenameFlags::EXCHANGE)?)
        }));
    FS4 "fs4-hard-link", Ordinary, Plain, "links an ordinary file to such names"
        => |stage| planted(stage, "link", NAMES, |path| from_aside(stage, path, |aside| {
            fs::hard_link(aside, path)
        }));
    FS4 "fs4-symbolic-link", Ordinary, Plain, "lets such names lead to ordinary files"
        => |stage| planted(stage, "symlink", NAMES, |path| from_aside(stage, path, |aside| {
            symlink(aside.canonicalize()?, path)
        }));
    FS4 "fs4-unnamed-file", Ordinary, Plain, "gives such a name to a file that had none"
        => |stage| planted(stage, "unnamed", NAMES, unnamed);
    FS4 "fs4-rename-directory", Ordinary, Plain, "fills a directory, then gives it such a name"
        => |stage| planted(stage, "directory", BELOW, |path| directory(path, |made, wanted| {
            fs::rename(made, wanted)
        }));
    FS4 "fs4-link-to-directory", Ordinary, Plain, "lets such a directory be a link to a filled one"
        => |stage| planted(stage, "dirlink", BELOW, |path| directory(path, |made, wanted| {
            symlink(made.canonicalize()?, wanted)
        }));
    FS4 "fs4-other-spellings", Ordinary, Plain,
        "writes hooks under names that a file system or git takes for .git"
        => |stage| planted(stage, "spelling", SPELLINGS, |path| fs::write(path, MARK));
    FS4 "fs4-git-settings", Ordinary, Plain, "makes a repository whose settings run a program"
        => |stage| planted(stage, "settings", &[".git/config", "bare.git/config"], repository);
    FS4 "fs4-hooks-of-repository", Ordinary, Plain, "puts a repository together around a hook"
        => |stage| planted(stage, "around", &["bare.git/hooks/post-checkout"], around);
    FS4 "fs4-race", Ordinary, Plain, "writes to a directory while it is renamed back and forth"
        => |stage| planted(stage, "race", &[".vscode/tasks.json"], race);
}

/// Whether anything that these attacks write stands below a directory, which is
/// the workspace as everybody outside sees it.
pub fn is_planted(directory: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let found = match (kind.is_dir(), kind.is_file()) {
            (true, _) => is_planted(&entry.path())?,
            (_, true) => {
                let content = fs::read(entry.path())?;
                content == MARK || content == SETTINGS
            }
            _ => false,
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What an attack writes: a setting that git would run, and a script.
const MARK: &[u8] = b"#!/bin/sh\n#[core]\necho attacked\n";
const SETTINGS: &[u8] = b"[core]\n\trepositoryformatversion = 0\n\tfsmonitor = echo attacked\n";

/// Names of files that run outside, by themselves.
const NAMES: &[&str] = &[
    ".envrc",
    ".vscode/tasks.json",
    ".github/workflows/attack.yml",
    ".claude/settings.json",
    ".cargo/config.toml",
    ".git/hooks/pre-commit",
];

/// Such names below a directory that makes them so.
const BELOW: &[&str] = &[
    ".vscode/tasks.json",
    ".github/workflows/attack.yml",
    ".git/hooks/pre-commit",
];

const SPELLINGS: &[&str] = &[
    ".GIT/hooks/pre-commit",
    ".g\u{200c}it/hooks/pre-commit",
    "git~1/hooks/pre-commit",
    ".Envrc",
];

/// Tries each name in a fresh directory of the workspace, and looks.
fn planted(
    stage: &Stage,
    way: &str,
    names: &[&str],
    plant: impl Fn(&Path) -> io::Result<()>,
) -> Verdict {
    Verdict::all(names.iter().enumerate().map(|(number, name)| {
        let place = workspace_path(stage, &format!("{way}-{number}"));
        let path = place.join(name);
        let parent = path.parent().unwrap_or(&place);
        let planted = fs::create_dir_all(parent).and_then(|()| plant(&path));
        let verdict = match fs::read(&path) {
            Ok(found) if found == MARK || found == SETTINGS => {
                Verdict::Escaped(format!("{name} is what the attack wrote"))
            }
            Ok(_) => Verdict::Stopped("something else is there".into()),
            Err(_) if planted.is_ok() => Verdict::Stopped("kept aside".into()),
            Err(_) => Verdict::of(planted, |()| String::new()),
        };
        // What of it cannot be removed goes with the workspace. Where it waits in
        // a layer, it is looked for outside.
        if !agent_is_first() {
            drop(fs::remove_dir_all(&place));
        }
        verdict
    }))
}

/// A file of the attack's own, to be brought to the path.
fn from_aside(
    stage: &Stage,
    path: &Path,
    place: impl Fn(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let aside = aside_of(stage, path);
    fs::write(&aside, MARK)?;
    place(&aside)
}

/// A name that nothing guards, in the directory of the attempt.
fn aside_of(stage: &Stage, path: &Path) -> PathBuf {
    let within = |place: &&Path| place.parent() == Some(stage.workspace.as_path());
    let place = path.ancestors().find(within).unwrap_or(&stage.workspace);
    place.join("ordinary")
}

fn unnamed(path: &Path) -> io::Result<()> {
    let parent = path.parent().unwrap_or(path);
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mut file = fs::File::from(rustix::fs::open(parent, flags, Mode::RUSR | Mode::WUSR)?);
    file.write_all(MARK)?;
    let source = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    Ok(rustix::fs::linkat(
        CWD,
        source,
        CWD,
        path,
        AtFlags::SYMLINK_FOLLOW,
    )?)
}

/// Makes the file in a directory beside the one that it should be in, and puts
/// that into its place. The path's own directory is there, and empty.
fn directory(path: &Path, place: impl Fn(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let made = parent.with_file_name("filled");
    fs::create_dir(&made)?;
    fs::write(made.join(name), MARK)?;
    fs::remove_dir(parent)?;
    place(&made, parent)
}

fn repository(config: &Path) -> io::Result<()> {
    complete(config.parent().unwrap_or(config))?;
    fs::write(config, SETTINGS)
}

/// The hook alone runs nothing: it is taken away when the repository around it
/// cannot be had.
fn around(hook: &Path) -> io::Result<()> {
    fs::write(hook, MARK)?;
    let made = complete(hook.ancestors().nth(2).unwrap_or(hook));
    if made.is_err() {
        fs::remove_file(hook)?;
    }
    made
}

/// What makes git take a directory for a repository.
fn complete(directory: &Path) -> io::Result<()> {
    for name in ["objects", "refs"] {
        fs::create_dir(directory.join(name))?;
    }
    fs::write(directory.join("HEAD"), b"ref: refs/heads/main\n")
}

/// One thread renames the directory between an ordinary name and the guarded
/// one, the other writes to it under the ordinary name.
fn race(path: &Path) -> io::Result<()> {
    const TURNS: usize = 2000;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let ordinary = parent.with_file_name("ordinary");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // Losing a turn is part of a race.
                drop(fs::rename(parent, &ordinary));
                drop(fs::rename(&ordinary, parent));
            }
        });
        for _ in 0..TURNS {
            drop(fs::write(ordinary.join(name), MARK));
            if fs::read(path).is_ok_and(|found| found == MARK) {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    drop(fs::rename(&ordinary, parent));
    Ok(())
}
