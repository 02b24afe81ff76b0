//! Finds the socket files of the host that a run could reach.
//!
//! A read-only mount does not stop connect(2), and Landlock does so only from
//! ABI 9, so every socket file below a grant to which a process outside is
//! bound is covered, whatever it is called by now.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use stockade_policy::path::AbsolutePath;
use stockade_sys::network::{BoundSocket, bound_unix_sockets};
use stockade_sys::rustix::fs::{major, minor};
use stockade_sys::rustix::io::Errno;

/// Socket files below `roots` to which a process of this network namespace is
/// bound.
pub fn of_host(roots: &[AbsolutePath]) -> io::Result<Vec<AbsolutePath>> {
    let bound = match bound_unix_sockets() {
        Ok(bound) => bound,
        // Inside another sandbox sock_diag(7) may be refused. Then nothing
        // tells a socket that is in use from one that is not: cover all.
        Err(error) if is_refusal(&error) => return walk(roots, |_| true),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    let mut elsewhere = HashSet::new();
    for socket in &bound {
        match locate(socket) {
            Place::Known(path) => found.extend(path.filter(|path| is_below(path, roots))),
            Place::Unknown if may_hold(roots, socket) => {
                elsewhere.insert(u64::from(socket.inode));
            }
            Place::Unknown => {}
        }
    }
    if !elsewhere.is_empty() {
        found.extend(walk(roots, |file| elsewhere.contains(&file.ino()))?);
    }
    found.sort();
    found.dedup();
    Ok(found)
}

fn is_refusal(error: &io::Error) -> bool {
    [
        Errno::PROTONOSUPPORT,
        Errno::AFNOSUPPORT,
        Errno::PERM,
        Errno::ACCESS,
    ]
    .iter()
    .any(|refusal| error.raw_os_error() == Some(refusal.raw_os_error()))
}

/// Where the file of a bound socket is.
enum Place {
    /// Only there; `None` where this user cannot look, and so did not put it
    /// into a project either.
    Known(Option<AbsolutePath>),
    /// Bound by a relative name, renamed, or linked to more names than one.
    Unknown,
}

fn locate(socket: &BoundSocket) -> Place {
    if socket.path.first() != Some(&b'/') {
        return Place::Unknown;
    }
    let real = match std::fs::canonicalize(OsStr::from_bytes(&socket.path)) {
        Ok(real) => real,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Place::Known(None),
        Err(_) => return Place::Unknown,
    };
    let same = std::fs::symlink_metadata(&real)
        .is_ok_and(|file| file.ino() == u64::from(socket.inode) && file.nlink() == 1);
    match AbsolutePath::parse(real.as_os_str().as_bytes()) {
        Ok(path) if same => Place::Known(Some(path)),
        _ => Place::Unknown,
    }
}

fn is_below(path: &AbsolutePath, roots: &[AbsolutePath]) -> bool {
    roots.iter().any(|root| path.is_within(root))
}

/// Whether a root may be on the file system of the socket. Numbers with major 0
/// are made up, and some file systems (btrfs, overlayfs) show others in stat(2).
fn may_hold(roots: &[AbsolutePath], socket: &BoundSocket) -> bool {
    roots.iter().any(|root| {
        std::fs::metadata(root.as_path()).is_ok_and(|file| {
            let (high, low) = (major(file.dev()), minor(file.dev()));
            high == 0 || (high << 20 | low) == socket.device
        })
    })
}

/// The socket files below `roots` that `wanted` picks; follows no link.
fn walk(
    roots: &[AbsolutePath],
    wanted: impl Fn(&Metadata) -> bool,
) -> io::Result<Vec<AbsolutePath>> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = roots.iter().map(|root| root.as_path().to_owned()).collect();
    while let Some(directory) = open.pop() {
        let Some(entries) = unless_gone(std::fs::read_dir(&directory))? else {
            continue;
        };
        for entry in entries {
            let Some(entry) = unless_gone(entry)? else {
                continue;
            };
            let Some(kind) = unless_gone(entry.file_type())? else {
                continue;
            };
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_socket() {
                let picked = unless_gone(entry.metadata())?.is_some_and(|file| wanted(&file));
                if picked {
                    found.push(absolute(&entry.path())?);
                }
            }
        }
    }
    Ok(found)
}

/// `None` for what vanished meanwhile or this user may not see.
fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) => match error.kind() {
            // The net directory of a process that ended says EINVAL (proc(5)).
            ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::PermissionDenied
            | ErrorKind::InvalidInput => Ok(None),
            _ => Err(error),
        },
    }
}

fn absolute(path: &Path) -> io::Result<AbsolutePath> {
    AbsolutePath::parse(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::time::{Duration, Instant};

    #[test]
    fn a_socket_is_found_under_every_name_it_has_by_now() {
        let scratch = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(scratch.path()).unwrap();
        std::fs::create_dir(root.join("granted")).unwrap();
        let _plain = UnixListener::bind(root.join("granted/plain")).unwrap();
        let _renamed = UnixListener::bind(root.join("granted/before")).unwrap();
        std::fs::rename(root.join("granted/before"), root.join("granted/after")).unwrap();
        let _linked = UnixListener::bind(root.join("outside")).unwrap();
        std::fs::hard_link(root.join("outside"), root.join("granted/link")).unwrap();
        // Nobody is bound to this one any more.
        drop(UnixListener::bind(root.join("granted/stale")).unwrap());
        let granted = absolute(&root.join("granted")).unwrap();
        let expected: Vec<AbsolutePath> = ["after", "link", "plain"]
            .iter()
            .map(|name| granted.join(name.as_bytes()).unwrap())
            .collect();
        let granted = [granted];
        let begun = Instant::now();
        // What another test forks has the stale one too, until it executes.
        while of_host(&granted).unwrap() != expected && begun.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        assert_eq!(of_host(&granted).unwrap(), expected);
    }
}
