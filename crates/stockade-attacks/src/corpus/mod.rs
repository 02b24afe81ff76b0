//! The attacks, one module for each family of guarantees, and what they share.

mod calls;
mod entry;
pub(crate) mod guarded;
mod limits;
mod network;
mod objects;
mod persistence;
mod privilege;
mod processes;
mod reading;
mod terminal;
mod view;
mod way_out;
mod web;
mod writing;

pub(crate) use reading::CREDENTIALS;
pub(crate) use terminal::{TYPED, TYPED_HIGH};

use crate::{Attack, Stage, Verdict};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// Writes one family of attacks: guarantee, id, kind of sandbox, proof,
/// summary, and what is tried.
macro_rules! attacks {
    ($(
        $guarantee:ident $id:literal, $needs:ident, $proof:expr, $summary:literal => $run:expr;
    )*) => {
        pub const ATTACKS: &[crate::Attack] = &[$(crate::Attack {
            id: $id,
            guarantee: stockade_policy::guarantee::Guarantee::$guarantee,
            summary: $summary,
            needs: crate::Needs::$needs,
            proof: {
                #[allow(unused_imports)]
                use crate::Proof::*;
                $proof
            },
            run: $run,
        },)*];
    };
}
pub(crate) use attacks;

/// The whole corpus, in the order of the guarantees.
pub fn all() -> &'static [Attack] {
    static ALL: LazyLock<Vec<Attack>> = LazyLock::new(|| {
        let families = [
            reading::ATTACKS,
            writing::ATTACKS,
            guarded::ATTACKS,
            view::ATTACKS,
            calls::ATTACKS,
            privilege::ATTACKS,
            processes::ATTACKS,
            entry::ATTACKS,
            terminal::ATTACKS,
            limits::ATTACKS,
            objects::ATTACKS,
            network::ATTACKS,
            way_out::ATTACKS,
            persistence::ATTACKS,
        ];
        let mut all = families.concat();
        all.sort_by_key(|attack| attack.guarantee);
        all
    });
    &ALL
}

/// Reads a file in the hope of the secret.
fn read_secret(stage: &Stage, path: impl AsRef<Path>) -> Verdict {
    let path = path.as_ref();
    match read_some(path) {
        Ok(bytes) if stage.found_in(&bytes) => {
            Verdict::Escaped(format!("read the secret at {}", path.display()))
        }
        Ok(_) => Verdict::Stopped("something else is there".into()),
        Err(error) => Verdict::refused(&error),
    }
}

/// The first part of a file, without waiting for a writer.
fn read_some(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, OFlags::RDONLY)?
        .take(1 << 20)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens without creating, without waiting and without following a controlling
/// terminal.
fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Opens for writing and writes nothing: that it opens is the escape.
fn open_for_writing(path: impl AsRef<Path>) -> Verdict {
    let path = path.as_ref();
    match open(path, OFlags::WRONLY) {
        // The kernel says that a program is running before it says that the
        // mount is read-only, so a mode has to tell.
        Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => same_mode(path),
        opened => Verdict::of(opened, |_| format!("opened {} for writing", path.display())),
    }
}

/// Sets the mode that a file has already.
fn same_mode(path: &Path) -> Verdict {
    let set = std::fs::metadata(path)
        .and_then(|found| std::fs::set_permissions(path, found.permissions()));
    Verdict::of(set, |()| {
        format!("may change the mode of {}", path.display())
    })
}

/// Creates a file in a directory and removes it again.
fn create_in(directory: impl AsRef<Path>) -> Verdict {
    let path = directory
        .as_ref()
        .join(format!(".stockade-probe-{}", std::process::id()));
    let created = File::create_new(&path);
    let verdict = Verdict::of(created, |_| format!("created {}", path.display()));
    if matches!(verdict, Verdict::Escaped(_)) {
        let removed = std::fs::remove_file(&path);
        return removed.map_or_else(|error| verdict.clone().about(error), |()| verdict.clone());
    }
    verdict
}

/// Ids of the processes that /proc shows.
fn processes() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// One line of /proc/PID/status, without its name.
fn status(pid: &str, name: &str) -> io::Result<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map(|value| value.trim().to_owned())
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// A fresh name in the workspace.
fn workspace_path(stage: &Stage, name: &str) -> PathBuf {
    stage
        .workspace
        .join(format!(".stockade-{name}-{}", std::process::id()))
}

/// Removes what an attack left in the workspace. That it is not there is
/// just as well.
fn tidy(path: &Path) {
    let gone = match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => std::fs::remove_dir(path),
        _ => std::fs::remove_file(path),
    };
    drop(gone);
}
