//! Holds: what a run wanted to write to guarded names, kept aside until a
//! person approves it.
//!
//! Each hold is a directory with `meta.json` and `content`. The description is
//! on disk before the run can write the first byte, so a run that is killed at
//! any moment leaves whole holds and nothing else.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode, ResolveFlags, Stat, mkdirat, openat,
    openat2, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use stockade_policy::path::AbsolutePath;

use crate::store::directory::{self, Lock, make_private};
use crate::store::{DIRECTORY_NAME, name_of};

/// Version of [`Meta`].
const VERSION: u32 = 1;
/// Largest description, in bytes: two paths and a rule.
const META_BYTES_MAX: u64 = 64 << 10;
const META: &str = "meta.json";
const CONTENT: &str = "content";

/// What the run wanted to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Make or replace a regular file; `content` has its bytes.
    Write,
    /// Make a symbolic link; `content` is where it leads.
    Link,
    /// Removed: done, and `content` has what was there.
    Remove,
}

/// The state of a name when it was held, by which an approval sees that it
/// changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    pub inode: u64,
    pub bytes: u64,
    /// Seconds and nanoseconds of the last change of the inode.
    pub changed: (i64, u32),
}

impl Stamp {
    fn of(stat: &Stat) -> Self {
        Self {
            inode: stat.st_ino,
            bytes: stat.st_size as u64,
            changed: (stat.st_ctime, stat.st_ctime_nsec as u32),
        }
    }
}

/// The description of a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    version: u32,
    pub id: String,
    pub run: String,
    /// Absolute; see [`text_of`].
    path: String,
    pub operation: Operation,
    pub kind: String,
    pub rule: String,
    pub reason: String,
    /// Permission bits that the run asked for.
    pub mode: u32,
    /// Seconds since 1970.
    pub at: u64,
    /// What stood there; `None` when nothing did.
    pub before: Option<Stamp>,
    /// Keys of a git configuration that make git run something.
    #[serde(default)]
    pub keys: Vec<String>,
}

impl Meta {
    /// The guarded path.
    pub fn path(&self) -> Vec<u8> {
        bytes_of(&self.path)
    }
}

/// Bytes of a path as text that leads back to them: as they are, or, when they
/// are not UTF-8, `hex:` and their digits. A path begins with a slash, so the
/// two cannot be mistaken.
fn text_of(path: &[u8]) -> String {
    match std::str::from_utf8(path) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let digits = path.iter().map(|byte| format!("{byte:02x}"));
            format!("hex:{}", digits.collect::<String>())
        }
    }
}

fn bytes_of(text: &str) -> Vec<u8> {
    let Some(digits) = text.strip_prefix("hex:") else {
        return text.as_bytes().to_vec();
    };
    digits
        .as_bytes()
        .chunks(2)
        .filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

/// What is to be held.
pub struct Wish<'a> {
    pub run: &'a str,
    pub path: &'a [u8],
    pub operation: Operation,
    pub kind: &'a str,
    pub rule: &'a str,
    pub reason: &'a str,
    pub mode: u32,
    pub before: Option<&'a Stat>,
    pub keys: Vec<String>,
}

/// The directory of all holds of a workspace.
#[derive(Debug)]
pub struct Holds(OwnedFd);

/// Why a hold was not put in place.
#[derive(Debug, thiserror::Error)]
pub enum ApproveError {
    #[error("there is no hold {0}")]
    Unknown(String),
    #[error("{0} changed since it was held; look at both and decide again with --force")]
    Changed(String),
    #[error("cannot put {path} in place: {error}")]
    System { path: String, error: io::Error },
}

impl Holds {
    /// `directory` belongs to the caller alone.
    pub fn at(directory: OwnedFd) -> Self {
        Self(directory)
    }

    /// Begins a hold: its id, and its content, open for reading and writing.
    pub fn begin(&self, wish: Wish<'_>) -> io::Result<(String, OwnedFd)> {
        for number in 1..100_000u32 {
            let id = format!("{}-h{number}", wish.run);
            match mkdirat(&self.0, id.as_str(), Mode::RWXU) {
                Err(Errno::EXIST) => continue,
                other => other?,
            }
            let directory = self.open(&id)?;
            let meta = Meta {
                version: VERSION,
                id: id.clone(),
                run: wish.run.to_owned(),
                path: text_of(wish.path),
                operation: wish.operation,
                kind: wish.kind.to_owned(),
                rule: wish.rule.to_owned(),
                reason: wish.reason.to_owned(),
                mode: wish.mode & 0o777,
                at: now(),
                before: wish.before.map(Stamp::of),
                keys: wish.keys,
            };
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let content = openat(&directory, CONTENT, flags, Mode::RUSR | Mode::WUSR)?;
            let file = openat(&directory, "meta.new", flags, Mode::RUSR | Mode::WUSR)?;
            File::from(file).write_all(&serde_json::to_vec(&meta)?)?;
            renameat(&directory, "meta.new", &directory, META)?;
            return Ok((id, content));
        }
        Err(io::Error::other("too many holds of one run"))
    }

    /// The content of a hold, opened again with these flags.
    pub fn content(&self, id: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let flags =
            (flags | OFlags::CLOEXEC | OFlags::NOFOLLOW).difference(OFlags::CREATE | OFlags::EXCL);
        Ok(openat(self.open(id)?, CONTENT, flags, Mode::empty())?)
    }

    /// All holds, oldest first. What is no hold is skipped: a run that was
    /// killed while it began one had not written anything yet.
    pub fn list(&self) -> io::Result<Vec<Meta>> {
        let mut found = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if name.starts_with('.') {
                continue;
            }
            if let Ok(meta) = self.meta(name) {
                found.push(meta);
            }
        }
        found.sort_by(|one, other| (one.at, &one.id).cmp(&(other.at, &other.id)));
        Ok(found)
    }

    pub fn meta(&self, id: &str) -> io::Result<Meta> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(self.open(id)?, META, flags, Mode::empty())?;
        let mut text = Vec::new();
        File::from(file)
            .take(META_BYTES_MAX)
            .read_to_end(&mut text)?;
        let meta: Meta = serde_json::from_slice(&text)?;
        match meta.version == VERSION && meta.id == id {
            true => Ok(meta),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Throws a hold away.
    pub fn discard(&self, id: &str) -> io::Result<()> {
        let directory = self.open(id)?;
        for name in [META, CONTENT, "meta.new"] {
            match unlinkat(&directory, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(unlinkat(&self.0, id, AtFlags::REMOVEDIR)?)
    }

    /// Puts what is held where the run wanted it, in one rename, and forgets
    /// the hold. What was removed is put back. Nothing follows a link on the
    /// way, and a name that changed since is left alone unless `force`.
    pub fn approve(&self, id: &str, force: bool) -> Result<Meta, ApproveError> {
        let meta = self
            .meta(id)
            .map_err(|_| ApproveError::Unknown(id.to_owned()))?;
        let path = meta.path();
        let shown = String::from_utf8_lossy(&path).into_owned();
        let system = |error: io::Error| ApproveError::System {
            path: shown.clone(),
            error,
        };
        let (parent, name) = open_parent(&path).map_err(system)?;
        let now = match statat(&parent, &*name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(Stamp::of(&stat)),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(system(error.into())),
        };
        // What was removed is put back only where nothing stands now.
        let expected = match meta.operation {
            Operation::Remove => None,
            _ => meta.before,
        };
        if now != expected && !force {
            return Err(ApproveError::Changed(shown));
        }
        self.place(&meta, &parent, &name).map_err(system)?;
        self.discard(id).map_err(system)?;
        Ok(meta)
    }

    fn place(&self, meta: &Meta, parent: &OwnedFd, name: &[u8]) -> io::Result<()> {
        let mut content = File::from(self.content(&meta.id, OFlags::RDONLY)?);
        let new = format!(".stockade-{}", meta.id);
        match unlinkat(parent, new.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        if meta.operation == Operation::Link {
            let mut target = Vec::new();
            content.read_to_end(&mut target)?;
            symlinkat(&target[..], parent, new.as_str())?;
        } else {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let mode = Mode::from_raw_mode(meta.mode as RawMode);
            let mut file = File::from(openat(parent, new.as_str(), flags, mode)?);
            io::copy(&mut content, &mut file)?;
            file.sync_all()?;
        }
        let placed = renameat(parent, new.as_str(), parent, name);
        if placed.is_err() {
            unlinkat(parent, new.as_str(), AtFlags::empty())?;
        }
        Ok(placed?)
    }

    /// Keeps other runs in this tree from deciding the same kind of thing at
    /// the same time, while the lock lives.
    pub(crate) fn lock(&self) -> io::Result<Lock> {
        directory::lock(self.0.as_fd(), ".lock")
    }

    fn open(&self, id: &str) -> io::Result<OwnedFd> {
        if id.is_empty() || id.contains('/') || id.starts_with('.') {
            return Err(io::ErrorKind::NotFound.into());
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.0, id, flags, Mode::empty())?)
    }
}

impl AsFd for Holds {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Opens the directory of `path` without following a link; directories that
/// are missing are made.
fn open_parent(path: &[u8]) -> io::Result<(OwnedFd, Vec<u8>)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut parts: Vec<&[u8]> = path
        .split(|&byte| byte == b'/')
        .filter(|part| !part.is_empty())
        .collect();
    let name = parts.pop().ok_or(io::ErrorKind::InvalidInput)?.to_vec();
    let mut directory = openat(CWD, "/", flags, Mode::empty())?;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    for part in parts {
        directory = match openat2(&directory, part, flags, Mode::empty(), resolve) {
            Err(Errno::NOENT) => {
                mkdirat(&directory, part, Mode::from_raw_mode(0o777))?;
                openat2(&directory, part, flags, Mode::empty(), resolve)?
            }
            other => other?,
        };
    }
    Ok((directory, name))
}

/// Copies at most `bytes_max` bytes from one file into another; `false` when
/// there were more.
pub(crate) fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>, bytes_max: u64) -> io::Result<bool> {
    let mut source = File::from(from.try_clone_to_owned()?).take(bytes_max + 1);
    let mut target = File::from(to.try_clone_to_owned()?);
    Ok(io::copy(&mut source, &mut target)? <= bytes_max)
}

pub(crate) fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

impl Holds {
    /// The holds of a workspace, below the state directory.
    pub fn of(state: BorrowedFd<'_>, workspace: &AbsolutePath) -> io::Result<Self> {
        let all = make_private(state, DIRECTORY_NAME)?;
        let workspace = make_private(all.as_fd(), &name_of(workspace))?;
        Ok(Self(make_private(workspace.as_fd(), "holds")?))
    }

    /// The holds of every workspace that has some.
    pub fn all(state: BorrowedFd<'_>) -> io::Result<Vec<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let workspaces = match openat(state, DIRECTORY_NAME, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            other => other?,
        };
        let mut all = Vec::new();
        for entry in Dir::read_from(&workspaces)? {
            let name = entry?.file_name().to_owned();
            if name.to_bytes().starts_with(b".") {
                continue;
            }
            let workspace = openat(&workspaces, &*name, flags, Mode::empty())?;
            match openat(&workspace, "holds", flags, Mode::empty()) {
                Ok(directory) => all.push(Self(directory)),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(all)
    }
}
