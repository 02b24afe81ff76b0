//! The caller's own places on this machine: home, configuration and the state
//! directory that holds the event log and the trust store.
//!
//! The state directory decides what is trusted and what was done, so it is
//! used only when nobody else can have prepared it: it is opened by its
//! descriptor without following a link, and its owner and mode are checked on
//! each opening, whether or not it was just made. All files in it are opened
//! relative to that descriptor. What is stored there is left to [`crate::log`]
//! and [`crate::trust`].

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use stockade_policy::path::AbsolutePath;

/// Name of the directory below the state and configuration directories.
pub const DIRECTORY_NAME: &str = "stockade";

/// How long a lock on a file of the state directory is waited for. Each is
/// held for microseconds; a longer wait means that its holder was stopped.
pub const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);

/// Why the state directory, or a file in it, is not used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Someone else could have prepared or could change what is there.
    #[error("refusing to use {path}: {reason}\n  remedy: {remedy}")]
    Unsafe {
        path: String,
        reason: String,
        remedy: String,
    },
    /// An environment variable that names a place has no usable value.
    #[error("the variable {variable} {reason}\n  remedy: {remedy}")]
    Variable {
        variable: &'static str,
        reason: String,
        remedy: String,
    },
    /// Another process has held the lock for longer than [`LOCK_WAIT_MAX`].
    #[error(
        "{path} has been locked by another process for {} s\n  remedy: find it with `fuser {path}`; \
         a stopped run of stockade can be continued with `kill -CONT`",
        LOCK_WAIT_MAX.as_secs()
    )]
    Locked { path: String },
    #[error("cannot {operation} {path}: {source}")]
    System {
        operation: &'static str,
        path: String,
        source: io::Error,
    },
}

/// Where the caller's files are, from `HOME` and the XDG base directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    pub home: AbsolutePath,
    /// Where the state directory is or will be.
    pub state: AbsolutePath,
    /// Where the user's own policy file is looked for.
    pub configuration: AbsolutePath,
}

impl Places {
    /// Reads the variables of this process.
    pub fn of_caller() -> Result<Self, StateError> {
        Self::from_variables(std::env::var_os::<&str>)
    }

    /// Reads variables through `variable`.
    ///
    /// `HOME` must be an absolute path to a directory that the caller owns: a
    /// home inherited through sudo would mix two people's state. An empty XDG
    /// variable counts as unset (XDG Base Directory Specification); a relative
    /// one is refused rather than ignored, because the log would silently go
    /// elsewhere.
    pub fn from_variables(
        variable: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Self, StateError> {
        let home = match absolute("HOME", variable("HOME"))? {
            Some(home) => home,
            None => {
                return Err(StateError::Variable {
                    variable: "HOME",
                    reason: "is not set".to_owned(),
                    remedy: "set it to your home directory".to_owned(),
                });
            }
        };
        check_home(&home)?;
        let state = match absolute("XDG_STATE_HOME", variable("XDG_STATE_HOME"))? {
            Some(base) => base,
            None => below(&home, "HOME", ".local/state")?,
        };
        let configuration = match absolute("XDG_CONFIG_HOME", variable("XDG_CONFIG_HOME"))? {
            Some(base) => base,
            None => below(&home, "HOME", ".config")?,
        };
        Ok(Self {
            state: below(&state, "XDG_STATE_HOME", DIRECTORY_NAME)?,
            configuration: below(&configuration, "XDG_CONFIG_HOME", DIRECTORY_NAME)?,
            home,
        })
    }
}

/// The opened and checked state directory.
#[derive(Clone, Debug)]
pub struct StateDirectory {
    path: AbsolutePath,
    handle: Arc<OwnedFd>,
}

impl StateDirectory {
    /// Opens the caller's state directory, making it (mode 0700) with its
    /// parents when it is missing.
    pub fn open(places: &Places) -> Result<Self, StateError> {
        Self::open_at(&places.state)
    }

    /// Opens or makes a state directory at `path`. The parents may be reached
    /// through links; the last component may not be one.
    pub fn open_at(path: &AbsolutePath) -> Result<Self, StateError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(unsafe_place(
                path,
                "it is the root directory",
                "name another directory",
            ));
        };
        let parent_handle = open_parent(&parent)?;
        match rustix::fs::mkdirat(&parent_handle, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(system("make", path, errno)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = match rustix::fs::openat(&parent_handle, name, flags, Mode::empty()) {
            Ok(handle) => handle,
            // A final link gives ENOTDIR or ELOOP (open(2), O_NOFOLLOW).
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(unsafe_place(
                    path,
                    "it is a symbolic link or not a directory",
                    &format!("look at what it is, then remove it: `rm -i '{path}'`"),
                ));
            }
            Err(errno) => return Err(system("open", path, errno)),
        };
        let status = rustix::fs::fstat(&handle).map_err(|errno| system("inspect", path, errno))?;
        check_private(path, &status, FileType::Directory)?;
        Ok(Self {
            path: path.clone(),
            handle: Arc::new(handle),
        })
    }

    pub fn path(&self) -> &AbsolutePath {
        &self.path
    }

    /// Opens a private file of this directory: mode 0600 when it is made,
    /// never through a link, and refused when it is not a regular file, has
    /// another owner or a second name, or others may access it.
    pub(crate) fn open_file(&self, name: &str, flags: OFlags) -> Result<File, StateError> {
        let path = self.path_of(name);
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let handle = match rustix::fs::openat(&*self.handle, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(handle) => handle,
            Err(Errno::LOOP) => {
                return Err(unsafe_place(
                    &path,
                    "it is a symbolic link",
                    &format!("look at where it leads, then remove it: `rm -i '{path}'`"),
                ));
            }
            Err(errno) => return Err(system("open", &path, errno)),
        };
        let status = rustix::fs::fstat(&handle).map_err(|errno| system("inspect", &path, errno))?;
        check_private(&path, &status, FileType::RegularFile)?;
        Ok(File::from(handle))
    }

    /// Like [`StateDirectory::open_file`]; `None` when the file is missing.
    pub(crate) fn open_existing(
        &self,
        name: &str,
        flags: OFlags,
    ) -> Result<Option<File>, StateError> {
        match self.open_file(name, flags) {
            Ok(file) => Ok(Some(file)),
            Err(StateError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Takes the advisory lock on the file `name`, which is made when missing.
    /// The lock is let go when the value is dropped or the process dies
    /// (flock(2)).
    pub(crate) fn lock(&self, name: &str, kind: LockKind) -> Result<Lock, StateError> {
        let operation = match kind {
            LockKind::Shared => FlockOperation::NonBlockingLockShared,
            LockKind::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        let started = Instant::now();
        let mut pause = Duration::from_micros(50);
        loop {
            let file = self.open_file(name, OFlags::RDWR | OFlags::CREATE)?;
            match rustix::fs::flock(&file, operation) {
                // A lock file that was removed meanwhile locks nothing.
                Ok(()) if self.is_still_named(&file, name)? => return Ok(Lock { _file: file }),
                Ok(()) => continue,
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(errno) => return Err(system("lock", &self.path_of(name), errno)),
            }
            if started.elapsed() > LOCK_WAIT_MAX {
                return Err(StateError::Locked {
                    path: self.path_of(name).to_string(),
                });
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        }
    }

    /// The path of a file in this directory, for messages.
    pub(crate) fn path_of(&self, name: &str) -> AbsolutePath {
        // Names are constants of this crate: short and without `..` or NUL.
        self.path.join(name).unwrap_or_else(|_| self.path.clone())
    }

    fn is_still_named(&self, file: &File, name: &str) -> Result<bool, StateError> {
        let status = rustix::fs::fstat(file)
            .map_err(|errno| system("inspect", &self.path_of(name), errno))?;
        Ok(status.st_nlink > 0)
    }
}

impl AsFd for StateDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// Who else may hold a lock at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    /// Other readers.
    Shared,
    /// Nobody.
    Exclusive,
}

/// An advisory lock, held while this lives.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

pub(crate) fn system(
    operation: &'static str,
    path: &AbsolutePath,
    source: impl Into<io::Error>,
) -> StateError {
    StateError::System {
        operation,
        path: path.to_string(),
        source: source.into(),
    }
}

fn unsafe_place(path: &AbsolutePath, reason: &str, remedy: &str) -> StateError {
    StateError::Unsafe {
        path: path.to_string(),
        reason: reason.to_owned(),
        remedy: remedy.to_owned(),
    }
}

fn absolute(
    variable: &'static str,
    value: Option<OsString>,
) -> Result<Option<AbsolutePath>, StateError> {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    AbsolutePath::parse(value.into_vec())
        .map(Some)
        .map_err(|error| StateError::Variable {
            variable,
            reason: format!("cannot be used: {error}"),
            remedy: "set it to an absolute path without `..`".to_owned(),
        })
}

fn below(
    base: &AbsolutePath,
    variable: &'static str,
    relative: &str,
) -> Result<AbsolutePath, StateError> {
    base.join(relative).map_err(|error| StateError::Variable {
        variable,
        reason: format!("cannot be used: {error}"),
        remedy: "set it to a shorter path".to_owned(),
    })
}

fn check_home(home: &AbsolutePath) -> Result<(), StateError> {
    let status = rustix::fs::stat(home.as_path()).map_err(|errno| StateError::Variable {
        variable: "HOME",
        reason: format!(
            "names {home}, which cannot be used: {}",
            io::Error::from(errno)
        ),
        remedy: "set it to your home directory".to_owned(),
    })?;
    let caller = rustix::process::geteuid().as_raw();
    if FileType::from_raw_mode(status.st_mode) != FileType::Directory || status.st_uid != caller {
        return Err(StateError::Variable {
            variable: "HOME",
            reason: format!("names {home}, which is not a directory of user {caller}"),
            remedy: "set it to your own home directory; with sudo, use `sudo -H`".to_owned(),
        });
    }
    Ok(())
}

/// Opens the directory around the state directory, making it when missing
/// (mode 0700, as the XDG specification asks).
fn open_parent(parent: &AbsolutePath) -> Result<OwnedFd, StateError> {
    let mut missing = Vec::new();
    let mut existing = parent.clone();
    while let Some(above) = existing.parent() {
        if !matches!(rustix::fs::stat(existing.as_path()), Err(Errno::NOENT)) {
            break;
        }
        missing.push(std::mem::replace(&mut existing, above));
    }
    for directory in missing.iter().rev() {
        match rustix::fs::mkdir(directory.as_path(), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(system("make", directory, errno)),
        }
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let handle = rustix::fs::open(parent.as_path(), flags, Mode::empty())
        .map_err(|errno| system("open", parent, errno))?;
    let status = rustix::fs::fstat(&handle).map_err(|errno| system("inspect", parent, errno))?;
    let caller = rustix::process::geteuid().as_raw();
    let others_rename = status.st_mode & 0o002 != 0 && status.st_mode & 0o1000 == 0;
    if (status.st_uid != caller && status.st_uid != 0) || others_rename {
        return Err(unsafe_place(
            parent,
            "another user owns it or can replace what is in it",
            "point XDG_STATE_HOME to a directory of your own, or take the rights of others away \
             with `chmod o-w`",
        ));
    }
    Ok(handle)
}

/// Refuses what others own, may access, or know by a second name.
fn check_private(path: &AbsolutePath, status: &Stat, kind: FileType) -> Result<(), StateError> {
    let caller = rustix::process::geteuid().as_raw();
    if FileType::from_raw_mode(status.st_mode) != kind {
        return Err(unsafe_place(
            path,
            "it is of another kind than stockade makes",
            &format!("look at what it is, then move it away: `ls -ld '{path}'`"),
        ));
    }
    if status.st_uid != caller {
        let owner = status.st_uid;
        return Err(unsafe_place(
            path,
            &format!("user {owner} owns it, not you (user {caller}), and may have prepared it"),
            "look at what it holds, then remove it; it is made afresh at the next run",
        ));
    }
    if status.st_mode & 0o077 != 0 {
        let mode = if kind == FileType::Directory {
            "700"
        } else {
            "600"
        };
        return Err(unsafe_place(
            path,
            &format!(
                "others may access it (mode {:04o})",
                status.st_mode & 0o7777
            ),
            &format!("check that what it holds is yours, then run `chmod {mode} '{path}'`"),
        ));
    }
    if kind == FileType::RegularFile && status.st_nlink > 1 {
        return Err(unsafe_place(
            path,
            "it has a second name (a hard link), through which it could be changed",
            "find the other name with `find -samefile` and remove it",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::*;

    fn absolute_path(path: &Path) -> AbsolutePath {
        AbsolutePath::parse(path.as_os_str().as_bytes()).unwrap()
    }

    fn refusal(path: &Path) -> String {
        StateDirectory::open_at(&absolute_path(path))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn makes_a_private_directory_with_its_parents() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("a/b/stockade");
        for _ in 0..2 {
            let state = StateDirectory::open_at(&absolute_path(&path)).unwrap();
            assert_eq!(state.path(), &absolute_path(&path));
            assert_eq!(
                fs::metadata(&path).unwrap().permissions().mode() & 0o7777,
                0o700
            );
        }
        assert_eq!(
            fs::metadata(scratch.path().join("a"))
                .unwrap()
                .permissions()
                .mode()
                & 0o7777,
            0o700
        );
    }

    #[test]
    fn refuses_a_link_a_file_and_a_shared_directory() {
        let scratch = tempfile::tempdir().unwrap();
        let real = scratch.path().join("real");
        fs::create_dir(&real).unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o700)).unwrap();
        symlink(&real, scratch.path().join("link")).unwrap();
        assert!(refusal(&scratch.path().join("link")).contains("symbolic link"));
        fs::write(scratch.path().join("file"), "").unwrap();
        assert!(refusal(&scratch.path().join("file")).contains("not a directory"));
        for mode in [0o750, 0o705, 0o770, 0o777] {
            fs::set_permissions(&real, fs::Permissions::from_mode(mode)).unwrap();
            let message = refusal(&real);
            assert!(message.contains(&format!("mode {mode:04o}")), "{message}");
            assert!(message.contains("chmod 700"), "{message}");
        }
    }

    #[test]
    fn reaches_the_directory_through_a_link_of_a_parent() {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir(scratch.path().join("real")).unwrap();
        symlink("real", scratch.path().join("link")).unwrap();
        StateDirectory::open_at(&absolute_path(&scratch.path().join("link/stockade"))).unwrap();
        assert!(scratch.path().join("real/stockade").is_dir());
    }

    #[test]
    fn refuses_a_parent_in_which_others_can_rename() {
        let scratch = tempfile::tempdir().unwrap();
        let parent = scratch.path().join("parent");
        fs::create_dir(&parent).unwrap();
        fs::set_permissions(&parent, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refusal(&parent.join("stockade")).contains("can replace"));
        assert!(!parent.join("stockade").exists());
        fs::set_permissions(&parent, fs::Permissions::from_mode(0o1777)).unwrap();
        StateDirectory::open_at(&absolute_path(&parent.join("stockade"))).unwrap();
    }

    #[test]
    fn refuses_what_another_user_owns() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give a directory to another user");
            return;
        }
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("stockade");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        assert!(refusal(&path).contains("user 65534 owns it"));
        std::os::unix::fs::chown(scratch.path(), Some(65534), None).unwrap();
        assert!(refusal(&scratch.path().join("other")).contains("another user owns it"));
    }

    #[test]
    fn refuses_files_that_others_reach() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("stockade");
        let state = StateDirectory::open_at(&absolute_path(&path)).unwrap();
        let open = |name: &str| state.open_file(name, OFlags::RDWR | OFlags::CREATE);
        open("good").unwrap();
        assert_eq!(
            fs::metadata(path.join("good"))
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o600
        );
        symlink("good", path.join("link")).unwrap();
        assert!(
            open("link")
                .unwrap_err()
                .to_string()
                .contains("symbolic link")
        );
        fs::set_permissions(path.join("good"), fs::Permissions::from_mode(0o644)).unwrap();
        assert!(open("good").unwrap_err().to_string().contains("chmod 600"));
        fs::set_permissions(path.join("good"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(path.join("good"), path.join("second")).unwrap();
        assert!(open("good").unwrap_err().to_string().contains("hard link"));
        rustix::fs::mknodat(&state, "pipe", FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(
            open("pipe")
                .unwrap_err()
                .to_string()
                .contains("another kind")
        );
    }

    #[test]
    fn places_come_from_variables_that_must_be_absolute_and_the_callers() {
        let scratch = tempfile::tempdir().unwrap();
        let home = scratch.path().as_os_str().to_owned();
        let with = |state: &'static str| {
            let home = home.clone();
            Places::from_variables(move |name| match name {
                "HOME" => Some(home.clone()),
                "XDG_STATE_HOME" => Some(state.into()),
                _ => None,
            })
        };
        let places = with("").unwrap();
        assert_eq!(
            places.state,
            places.home.join(".local/state/stockade").unwrap()
        );
        assert_eq!(
            places.configuration,
            places.home.join(".config/stockade").unwrap()
        );
        assert_eq!(
            with("/s").unwrap().state,
            AbsolutePath::parse("/s/stockade").unwrap()
        );
        assert!(
            with("s")
                .unwrap_err()
                .to_string()
                .contains("XDG_STATE_HOME")
        );
        for (home, part) in [
            (None, "is not set"),
            (Some("home"), "not absolute"),
            (Some("/dev/null"), "not a dir"),
        ] {
            let error = Places::from_variables(|name| {
                (name == "HOME")
                    .then_some(home)
                    .flatten()
                    .map(OsString::from)
            });
            assert!(error.unwrap_err().to_string().contains(part), "{home:?}");
        }
    }
}
