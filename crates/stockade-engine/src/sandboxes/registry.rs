//! Which sandboxes there are: one directory for each user, in the state
//! directory and checked like it.
//!
//! `NAME.json` says what a sandbox is; its supervisor holds a lock on it for as
//! long as it lives, which tells a sandbox from what a killed supervisor left.
//! `NAME.sock` is where it is spoken to. A pool has a record as well, which the
//! supervisors of its sandboxes hold together.

mod pool;

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::time::SystemTime;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, bind, listen};
use serde::{Deserialize, Serialize};
use stockade_policy::path::printable;
use stockade_policy::plan::Plan;
use stockade_sys::rustix;

use self::pool::Membership;
pub use self::pool::{Joined, Pool};
use crate::control::{address, unix_socket};
use crate::events::{RunId, time_text};
use crate::state::{Lock, LockKind, StateDirectory, StateError, system};

/// Name of the directory in the state directory.
const DIRECTORY: &str = "sandboxes";
const LOCK: &str = "registry.lock";
const RECORD: &str = ".json";
const SOCKET: &str = ".sock";
/// Length of a name that nobody chose.
const GENERATED_LENGTH: usize = 6;
/// Longest record that is read, in bytes; a workspace's path is most of it.
const RECORD_BYTES_MAX: u64 = 64 * 1024;

/// Name of a sandbox: 1 to 32 lower-case letters, digits and inner hyphens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Name(String);

impl Name {
    pub const LENGTH_MAX: usize = 32;

    /// Reads a name; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_name = (1..=Self::LENGTH_MAX).contains(&text.len())
            && text.bytes().all(fits)
            && !text.starts_with('-')
            && !text.ends_with('-');
        is_name.then(|| Self(text.to_owned()))
    }

    fn generate() -> io::Result<Self> {
        let id = RunId::generate()?;
        Ok(Self(id.as_str()[..GENERATED_LENGTH].to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn record(&self) -> String {
        format!("{}{RECORD}", self.0)
    }

    fn socket(&self) -> String {
        format!("{}{SOCKET}", self.0)
    }

    /// The same before it listens.
    fn fresh_socket(&self) -> String {
        format!("{}.new", self.socket())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// How a sandbox fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nothing can be started in it yet.
    Starting,
    /// It waits in its pool for its one command.
    Ready,
    Running,
    /// It was told to end.
    Stopping,
    /// Its supervisor was killed, and everything inside with it.
    Gone,
    /// It is no sandbox: it keeps some that are ready.
    Pool,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Gone => "gone",
            Self::Pool => "pool",
        }
    }
}

/// What is known of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub version: u32,
    pub name: Name,
    /// Id of its run, in the log, in `stockade approvals` and in the store of
    /// layers; empty as long as there is none.
    pub run: String,
    /// When it was started, in UTC (RFC 3339).
    pub since: String,
    pub state: State,
    /// Printable path of the project.
    pub workspace: String,
    /// What it is behind.
    pub wall: String,
    /// The pool that it was made for.
    #[serde(default)]
    pub pool: Option<Name>,
    /// What a pool keeps.
    #[serde(default)]
    pub keeps: Option<Keeps>,
}

/// What makes a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeps {
    /// Tells it from a later pool of the same name.
    pub id: String,
    /// How many sandboxes are to be ready.
    pub size: u32,
}

impl Record {
    fn new(name: Name) -> Self {
        Self {
            version: 1,
            name,
            run: String::new(),
            since: String::new(),
            state: State::Starting,
            workspace: String::new(),
            wall: String::new(),
            pool: None,
            keeps: None,
        }
    }

    /// Whether it is the pool of this name.
    pub fn is_pool(&self, name: &Name) -> bool {
        self.state == State::Pool && self.name == *name
    }

    /// Whether it waits in this pool, or will.
    pub fn is_spare_of(&self, pool: &Name) -> bool {
        matches!(self.state, State::Starting | State::Ready) && self.pool.as_ref() == Some(pool)
    }
}

/// Why a name cannot be had, or the registry not be used.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(
        "there is a sandbox called {0} already\n  remedy: choose another name, or end that one: \
         `stockade stop {0}`"
    )]
    Taken(Name),
    #[error("the pool {0} was ended")]
    Disbanded(Name),
    #[error("cannot {what} the sandbox {name}: {error}")]
    System {
        what: &'static str,
        name: Name,
        error: io::Error,
    },
}

/// What becomes of what a killed supervisor left, when it is met.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Litter {
    Stays,
    Goes,
}

/// The opened directory.
#[derive(Clone, Debug)]
pub struct Registry {
    directory: StateDirectory,
}

impl Registry {
    /// Opens or makes it in the caller's state directory.
    pub fn open(state: &StateDirectory) -> Result<Self, StateError> {
        let path = state.path_of(DIRECTORY);
        let directory = StateDirectory::open_at(&path)?;
        Ok(Self { directory })
    }

    /// What killed supervisors left, without a change.
    pub fn litter(state: &StateDirectory) -> Result<Vec<Name>, StateError> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        if rustix::fs::statat(state, DIRECTORY, flags).is_err() {
            return Ok(Vec::new());
        }
        let registry = Self::open(state)?;
        let _lock = registry.lock()?;
        let gone = registry.all(Litter::Stays)?.into_iter();
        let gone = gone.filter(|record| record.state == State::Gone);
        Ok(gone.map(|record| record.name).collect())
    }

    /// Takes a name, or makes one. What killed supervisors left goes.
    pub fn reserve(&self, name: Option<Name>) -> Result<Reserved, RegistryError> {
        let _lock = self.lock()?;
        self.all(Litter::Goes)?;
        self.take(name, None)
    }

    /// The caller holds the lock.
    fn take(
        &self,
        name: Option<Name>,
        membership: Option<Membership>,
    ) -> Result<Reserved, RegistryError> {
        let (file, name) = self.make(name)?;
        let mut record = Record::new(name);
        record.since = time_text(SystemTime::now());
        record.pool = membership.as_ref().map(|one| one.pool().clone());
        let mut reserved = Reserved {
            registry: self.clone(),
            file,
            record,
            membership,
        };
        rustix::fs::flock(&reserved.file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| reserved.failed("lock", error.into()))?;
        reserved.write()?;
        Ok(reserved)
    }

    /// Makes the record of this name, or of one that nobody has.
    fn make(&self, name: Option<Name>) -> Result<(File, Name), RegistryError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let is_given = name.is_some();
        let mut name = match name {
            Some(name) => name,
            None => self.unused()?,
        };
        loop {
            match self.directory.open_file(&name.record(), flags) {
                Ok(file) => return Ok((file, name)),
                Err(StateError::System { source, .. })
                    if source.kind() == io::ErrorKind::AlreadyExists =>
                {
                    match is_given {
                        true => return Err(RegistryError::Taken(name)),
                        false => name = self.unused()?,
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn unused(&self) -> Result<Name, RegistryError> {
        Name::generate()
            .map_err(|error| system("name a sandbox in", self.directory.path(), error).into())
    }

    /// All sandboxes, by name. What killed supervisors left is told once, as
    /// gone, and then removed.
    pub fn list(&self) -> Result<Vec<Record>, StateError> {
        let _lock = self.lock()?;
        self.all(Litter::Goes)
    }

    /// The same, and what killed supervisors left stays to be told.
    pub(super) fn look(&self) -> Result<Vec<Record>, StateError> {
        let _lock = self.lock()?;
        self.all(Litter::Stays)
    }

    fn lock(&self) -> Result<Lock, StateError> {
        self.directory.lock(LOCK, LockKind::Exclusive)
    }

    /// The caller holds the lock.
    fn all(&self, litter: Litter) -> Result<Vec<Record>, StateError> {
        let failed = |errno: Errno| system("list", self.directory.path(), errno);
        // A descriptor of its own: reading a directory moves its offset.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory =
            rustix::fs::openat(&self.directory, ".", flags, Mode::empty()).map_err(failed)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_str().ok();
            names.extend(name.and_then(|name| Name::parse(name.strip_suffix(RECORD)?)));
        }
        names.sort();
        let mut records = Vec::new();
        for name in names {
            records.extend(self.examine(name, litter)?);
        }
        Ok(records)
    }

    /// Reads one record, and finds out whether its supervisor is gone; `None`
    /// when it went meanwhile.
    fn examine(&self, name: Name, litter: Litter) -> Result<Option<Record>, StateError> {
        let Some(file) = self.directory.open_existing(&name.record(), OFlags::RDWR)? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        (&file)
            .take(RECORD_BYTES_MAX)
            .read_to_end(&mut bytes)
            .map_err(|error| system("read", &self.directory.path_of(&name.record()), error))?;
        // One that was killed while it wrote left half of it.
        let mut record: Record =
            serde_json::from_slice(&bytes).unwrap_or_else(|_| Record::new(name.clone()));
        record.name = name;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                record.state = State::Gone;
                if litter == Litter::Goes {
                    self.remove(&record.name);
                }
            }
            Err(Errno::WOULDBLOCK) => {}
            Err(errno) => {
                let path = self.directory.path_of(&record.name.record());
                return Err(system("lock", &path, errno));
            }
        }
        Ok(Some(record))
    }

    /// Removes what is left of a sandbox.
    fn remove(&self, name: &Name) {
        // The record last: without it nobody looks for the rest.
        for name in [name.fresh_socket(), name.socket(), name.record()] {
            // What is gone already needs no removing.
            let _gone = rustix::fs::unlinkat(&self.directory, name, AtFlags::empty()).is_err();
        }
    }

    /// Where a sandbox is spoken to.
    pub(super) fn address(&self, name: &Name) -> Result<rustix::net::SocketAddrUnix, Errno> {
        address(&self.directory, &name.socket())
    }
}

/// A name that is taken for as long as this lives.
#[derive(Debug)]
pub struct Reserved {
    registry: Registry,
    file: File,
    record: Record,
    /// Given up after the name.
    membership: Option<Membership>,
}

impl Reserved {
    pub fn name(&self) -> &Name {
        &self.record.name
    }

    /// Whether it is for one command, of whoever takes it from its pool.
    pub(super) fn is_of_pool(&self) -> bool {
        self.membership.is_some()
    }

    /// Notes which run it is.
    pub(super) fn describe(&mut self, run: &RunId, plan: &Plan) {
        self.record.run = run.as_str().to_owned();
        self.record.workspace = printable(plan.workspace.as_bytes());
        self.record.wall = plan.wall.word().to_owned();
    }

    /// Says in which state it is. One whose pool was ended does not get ready.
    pub(super) fn publish(&mut self, state: State) -> Result<(), RegistryError> {
        let _lock = self.registry.lock()?;
        if let Some(membership) = &self.membership
            && state == State::Ready
        {
            membership.check(&self.registry)?;
        }
        self.record.state = state;
        self.write()
    }

    /// Says that somebody has taken it from its pool. Returned is what keeps the
    /// pool in being for whoever makes the next one; `None` when the pool was
    /// ended.
    pub(super) fn publish_taken(&mut self) -> Result<Option<File>, RegistryError> {
        let _lock = self.registry.lock()?;
        self.record.state = State::Running;
        self.write()?;
        let membership = self.membership.as_ref();
        Ok(membership.and_then(|membership| membership.share().ok()))
    }

    /// The caller holds the registry's lock.
    fn write(&mut self) -> Result<(), RegistryError> {
        let written = write(&mut self.file, &self.record);
        written.map_err(|error| self.failed("record", error))
    }

    /// The socket at which commands and questions arrive.
    pub(super) fn listen(&self) -> Result<OwnedFd, RegistryError> {
        self.bound()
            .map_err(|errno| self.failed("listen for", errno.into()))
    }

    fn bound(&self) -> Result<OwnedFd, Errno> {
        let listener = unix_socket(
            rustix::net::SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        )?;
        let directory = &self.registry.directory;
        let name = self.record.name.socket();
        // Bound under another name first: who finds it before it listens would
        // take the sandbox for one that is gone.
        let fresh = self.record.name.fresh_socket();
        bind(&listener, &address(directory, &fresh)?)?;
        listen(&listener, 128)?;
        rustix::fs::renameat(directory, &fresh, directory, &name)?;
        Ok(listener)
    }

    fn failed(&self, what: &'static str, error: io::Error) -> RegistryError {
        RegistryError::System {
            what,
            name: self.record.name.clone(),
            error,
        }
    }
}

/// Not by renaming: the lock is on this file.
fn write(file: &mut File, record: &Record) -> io::Result<()> {
    let bytes = serde_json::to_vec(record)?;
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(&bytes)
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.registry.remove(&self.record.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stockade_policy::path::AbsolutePath;

    pub(super) fn registry() -> (tempfile::TempDir, StateDirectory, Registry) {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().canonicalize().unwrap().join("state");
        let state =
            StateDirectory::open_at(&AbsolutePath::parse(path.to_str().unwrap()).unwrap()).unwrap();
        let registry = Registry::open(&state).unwrap();
        (scratch, state, registry)
    }

    #[test]
    fn names_have_one_form() {
        for good in ["a", "0", "web-1", &"x".repeat(32)] {
            assert!(Name::parse(good).is_some(), "{good}");
        }
        for bad in [
            "",
            "-",
            "-a",
            "a-",
            "A",
            "a.b",
            "a/b",
            "..",
            "a b",
            "a\n",
            "é",
            &"x".repeat(33),
        ] {
            assert!(Name::parse(bad).is_none(), "{bad}");
        }
        assert_eq!(Name::generate().unwrap().as_str().len(), GENERATED_LENGTH);
        assert!(Name::parse(Name::generate().unwrap().as_str()).is_some());
    }

    #[test]
    fn a_name_is_taken_once_and_free_again_afterwards() {
        let (_scratch, _state, registry) = registry();
        let name = Name::parse("one").unwrap();
        let first = registry.reserve(Some(name.clone())).unwrap();
        assert!(matches!(
            registry.reserve(Some(name.clone())),
            Err(RegistryError::Taken(taken)) if taken == name
        ));
        let second = registry.reserve(None).unwrap();
        let _listener = second.listen().unwrap();
        let listed = registry.list().unwrap();
        assert_eq!(listed.len(), 2);
        assert!(listed.iter().all(|one| one.state == State::Starting));
        drop((first, second));
        assert!(registry.list().unwrap().is_empty());
        registry.reserve(Some(name)).unwrap();
    }

    #[test]
    fn what_a_killed_supervisor_left_is_told_once_and_goes() {
        let (_scratch, state, registry) = registry();
        let name = Name::parse("one").unwrap();
        let mut left = registry.reserve(Some(name.clone())).unwrap();
        left.publish(State::Running).unwrap();
        let listener = left.listen().unwrap();
        // As after SIGKILL: descriptors are closed, names are still there.
        let file = left.file.try_clone().unwrap();
        std::mem::forget(left);
        rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
        drop(listener);
        // Killed between the two names of its socket.
        let place = registry.directory.path().as_path().to_owned();
        std::fs::write(place.join(name.fresh_socket()), "").unwrap();
        let found = Registry::litter(&state).unwrap();
        assert_eq!(found, std::slice::from_ref(&name));
        let listed = registry.list().unwrap();
        assert_eq!(listed[0].state, State::Gone);
        assert!(registry.list().unwrap().is_empty());
        let left = std::fs::read_dir(&place).unwrap();
        assert_eq!(left.count(), 1, "only the lock is left");
        let again = registry.reserve(Some(name)).unwrap();
        drop(again);
        let left = std::fs::read_dir(registry.directory.path().as_path()).unwrap();
        assert_eq!(left.count(), 1, "only the lock is left");
    }
}
