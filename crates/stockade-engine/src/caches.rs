//! The caches of package managers on disk: one directory for each workspace,
//! which runs there share and nothing else uses.
//!
//! `$XDG_CACHE_HOME/stockade/DOMAIN/{path, lock, checked, data/}`, where DOMAIN
//! is made from the workspace's path and `data` is what a run sees. What is in
//! `data` was written by commands: it is walked by descriptor, and no link in
//! it is followed.

mod trim;

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, openat2};
use rustix::io::Errno;
use stockade_policy::caches::Caches;
use stockade_policy::path::AbsolutePath;
use stockade_sys::directory::{self, Hold, LETTING_GO_MAX, Lock};
use stockade_sys::rustix;
use stockade_workspace::store::name_of;

use crate::beside;
use crate::state::{DIRECTORY_NAME, LOCK_WAIT_MAX, StateDirectory, StateError};

pub use trim::{Usage, clear, trim, usage};

/// The part of a domain that runs see.
const DATA: &str = "data";
/// Held shared by runs, and alone by whoever takes something away.
const LOCK: &str = "lock";
/// The workspace's path, for people.
const PATH: &str = "path";
/// When its size was last looked at.
const CHECKED: &str = "checked";
/// The size is looked at when a run ends, at most so often.
const CHECK_EVERY: Duration = Duration::from_secs(60);

/// Why caches cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(
        "cannot {operation} the caches in {path}: {error}\n  remedy: look at what is there; \
         `filesystem.caches = []` in a policy runs without them"
    )]
    System {
        operation: &'static str,
        path: AbsolutePath,
        error: io::Error,
    },
    #[error("the caches in {0} are in use by a run\n  remedy: try again when it has ended")]
    InUse(AbsolutePath),
}

/// Where the caches of all workspaces are: `$XDG_CACHE_HOME/stockade`, links
/// resolved. `None` when that cannot be the caller's own.
pub fn place(home: &AbsolutePath) -> Option<AbsolutePath> {
    let variable = std::env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty());
    let base = match variable {
        Some(value) => PathBuf::from(value),
        None => home.as_path().join(".cache"),
    };
    if !base.is_absolute() {
        return None;
    }
    // What does not exist yet has no links; it is made when a run begins.
    let mut missing = Vec::new();
    let mut existing: &Path = &base;
    let resolved = loop {
        match std::fs::canonicalize(existing) {
            Ok(resolved) => break resolved,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                missing.push(existing.file_name()?);
                existing = existing.parent()?;
            }
            Err(_) => return None,
        }
    };
    let mut path = missing
        .into_iter()
        .rev()
        .fold(resolved, |path, name| path.join(name));
    path.push(DIRECTORY_NAME);
    AbsolutePath::parse(path.into_os_string().into_vec()).ok()
}

/// Where what runs in this workspace see is, or will be.
pub fn of_workspace(place: &AbsolutePath, workspace: &AbsolutePath) -> Option<AbsolutePath> {
    let domain = place.join(name_of(workspace)).ok()?;
    domain.join(DATA).ok()
}

/// The caches of a workspace while a run uses them: nothing is taken away.
#[derive(Debug)]
pub struct Held {
    domain: Domain,
    _lock: Lock,
}

/// Makes what is missing and holds it.
pub fn hold(caches: &Caches, workspace: &AbsolutePath) -> Result<Held, CacheError> {
    let domain = Domain::made(caches, workspace)?;
    let lock = domain.lock(Hold::Shared)?;
    let lock = lock.ok_or_else(|| CacheError::InUse(domain.path.clone()))?;
    domain.make_directories(caches)?;
    Ok(Held {
        domain,
        _lock: lock,
    })
}

impl Held {
    /// Lets go, and has what is too much taken away by a process of its own,
    /// which nobody waits for: `program`, or that of this process, called as
    /// `stockade cache trim`.
    pub fn release(self, bytes_max: u64, program: Option<&Path>) {
        let Self { domain, _lock } = self;
        drop(_lock);
        if !domain.is_due() {
            return;
        }
        let name = domain.path.file_name().unwrap_or_default().to_vec();
        let bytes_max = bytes_max.to_string();
        // If it fails, the next run tries again.
        beside::spawn(
            program,
            &[
                "cache".as_ref(),
                "trim".as_ref(),
                OsStr::from_bytes(&name),
                bytes_max.as_ref(),
            ],
        );
    }
}

/// The directory of one workspace.
#[derive(Debug)]
pub struct Domain {
    pub path: AbsolutePath,
    directory: StateDirectory,
}

impl Domain {
    /// Every workspace that has caches.
    pub fn all(place: &AbsolutePath) -> Result<Vec<Self>, CacheError> {
        let entries = match std::fs::read_dir(place.as_path()) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(system("list", place, error)),
        };
        let mut all = Vec::new();
        for entry in entries {
            let name = entry
                .map_err(|error| system("list", place, error))?
                .file_name();
            if is_domain(name.as_bytes()) {
                all.extend(Self::existing(place, name.as_bytes())?);
            }
        }
        all.sort_by_key(Self::workspace);
        Ok(all)
    }

    /// That of a workspace; `None` when it has no caches.
    pub fn of(place: &AbsolutePath, workspace: &AbsolutePath) -> Result<Option<Self>, CacheError> {
        Self::existing(place, name_of(workspace).as_bytes())
    }

    /// By its name, which is 32 hexadecimal digits.
    pub fn existing(place: &AbsolutePath, name: &[u8]) -> Result<Option<Self>, CacheError> {
        let path = match place.join(name) {
            Ok(path) if is_domain(name) && path.as_path().is_dir() => path,
            _ => return Ok(None),
        };
        // Also checks who owns the place.
        StateDirectory::open_at(place)?;
        let directory = StateDirectory::open_at(&path)?;
        Ok(Some(Self { path, directory }))
    }

    fn made(caches: &Caches, workspace: &AbsolutePath) -> Result<Self, CacheError> {
        let parents = caches
            .source
            .parent()
            .and_then(|path| Some((path.parent()?, path)));
        let Some((place, path)) = parents else {
            return Err(system("use", &caches.source, io::ErrorKind::InvalidInput));
        };
        StateDirectory::open_at(&place)?;
        let directory = StateDirectory::open_at(&path)?;
        let domain = Self { path, directory };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        // Only the first run says where it was.
        if let Ok(mut file) = domain.directory.open_file(PATH, flags) {
            file.write_all(workspace.as_bytes())
                .map_err(|error| system("make", &domain.path, error))?;
        }
        Ok(domain)
    }

    /// The workspace; `None` when its name was never written.
    pub fn workspace(&self) -> Option<AbsolutePath> {
        let file = self.directory.open_existing(PATH, OFlags::RDONLY).ok()??;
        let mut path = Vec::new();
        file.take(4096).read_to_end(&mut path).ok()?;
        AbsolutePath::parse(path).ok()
    }

    /// What runs see, as a descriptor.
    fn data(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(
            &self.directory,
            DATA,
            flags,
            Mode::empty(),
        )?)
    }

    /// The lock; `None` when it is held so that this one cannot be had. A
    /// shared one is waited for: it is only ever held alone for moments.
    fn lock(&self, hold: Hold) -> Result<Option<Lock>, CacheError> {
        let file = self
            .directory
            .open_file(LOCK, OFlags::RDWR | OFlags::CREATE)?;
        let patience = match hold {
            Hold::Shared => LOCK_WAIT_MAX,
            Hold::Alone => LETTING_GO_MAX,
        };
        directory::lock_within(file.into(), hold, patience)
            .map_err(|error| system("lock", &self.path, error))
    }

    /// The directories that programs are led to: a link to nothing would stop
    /// them. A command may have put something else there; then it stays so.
    fn make_directories(&self, caches: &Caches) -> Result<(), CacheError> {
        let failed = |error| system("make", &self.path, error);
        make(self.directory.as_fd(), DATA).map_err(failed)?;
        let data = self.data().map_err(failed)?;
        let directories = caches
            .list
            .iter()
            .flat_map(|(cache, _)| cache.directories());
        for directory in directories {
            let (first, rest) = directory
                .path
                .split_once('/')
                .map_or((directory.path, None), |(first, rest)| (first, Some(rest)));
            make(data.as_fd(), first).map_err(failed)?;
            let Some(rest) = rest else { continue };
            if let Ok(parent) = open_beneath(data.as_fd(), first) {
                // What stands there instead is the command's own doing.
                let _made = make(parent.as_fd(), rest).is_ok();
            }
        }
        Ok(())
    }

    /// Whether its size was not looked at for a while; from now on it was.
    fn is_due(&self) -> bool {
        let flags = OFlags::WRONLY | OFlags::CREATE;
        let Ok(file) = self.directory.open_file(CHECKED, flags) else {
            return false;
        };
        let now = SystemTime::now();
        let metadata = file.metadata().ok();
        let age = metadata.and_then(|metadata| {
            // Empty: it was just made.
            (metadata.len() > 0).then(|| now.duration_since(metadata.modified().ok()?).ok())?
        });
        let is_due = age.is_none_or(|age| age >= CHECK_EVERY);
        is_due && (&file).write_all(b"1").is_ok() && file.set_modified(now).is_ok()
    }
}

fn is_domain(name: &[u8]) -> bool {
    name.len() == 32 && name.iter().all(u8::is_ascii_hexdigit)
}

fn make(parent: std::os::fd::BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn open_beneath(parent: std::os::fd::BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(parent, name, flags, Mode::empty(), resolve)?)
}

fn system(operation: &'static str, path: &AbsolutePath, error: impl Into<io::Error>) -> CacheError {
    CacheError::System {
        operation,
        path: path.clone(),
        error: error.into(),
    }
}
