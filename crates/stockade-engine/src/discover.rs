//! Finding the project and the policy files that apply to a run.
//!
//! Looking upwards for a file is how planted files come to be used, so the
//! search ends at the home directory, at the root, and at any directory that
//! someone else owns or in which everyone may create files: a
//! `/tmp/stockade.toml` or `/tmp/.git` has no say. Files are handed on as
//! bytes, read once from one descriptor; parsing is left to
//! `stockade_policy`, trust to [`crate::trust`].

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use stockade_policy::path::AbsolutePath;

use crate::state::Places;

/// Name of a policy file.
pub const POLICY_FILE_NAME: &str = "stockade.toml";

/// Directory of the organisation's policy file.
pub const ORGANISATION_DIRECTORY: &str = "/etc/stockade";

/// Largest policy file in bytes.
pub const POLICY_BYTES_MAX: u64 = 1024 * 1024;

/// Whose policy a file states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    Organisation,
    User,
    Project,
}

/// A policy file as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub layer: Layer,
    /// Where it was looked for.
    pub path: AbsolutePath,
    /// Where the content really is, links resolved. When this lies in a part
    /// that the run may write, the run could widen the next one.
    pub resolved: AbsolutePath,
    pub content: Vec<u8>,
}

/// The project that a run belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    /// The project directory, links resolved.
    pub root: AbsolutePath,
    pub policy_file: Option<Source>,
    /// What was left out of account and why, in a line each for the user.
    pub notes: Vec<String>,
}

/// Why a policy file, or the place that it was looked for from, is not used.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    #[error("the policy file {path} is larger than {} bytes", POLICY_BYTES_MAX)]
    Oversized { path: String },
    #[error("refusing the policy file {path}: {reason}\n  remedy: {remedy}")]
    Refused {
        path: String,
        reason: String,
        remedy: String,
    },
    #[error("cannot {operation} {path}: {source}")]
    System {
        operation: &'static str,
        path: String,
        source: io::Error,
    },
}

/// Finds the project of the directory `start`: the nearest directory upwards
/// with a `stockade.toml`, else the nearest with a `.git`, else `start`.
///
/// `home` and `/` are never a project found by searching, only when `start` is
/// one of them, and then without a policy file.
pub fn find_project(start: &AbsolutePath, home: &AbsolutePath) -> Result<Project, DiscoverError> {
    let start = resolve(start)?;
    // A home that does not exist bounds nothing.
    let home = resolve(home).unwrap_or_else(|_| home.clone());
    let mut notes = Vec::new();
    let mut repository = None;
    let mut next = Some(start.clone());
    while let Some(directory) = next {
        if directory.is_root() || directory == home {
            break;
        }
        if let Some(reason) = shared_with_others(&directory)? {
            for name in [POLICY_FILE_NAME, ".git"] {
                if exists(&directory, name)? {
                    notes.push(format!(
                        "{directory}/{name} does not count, because {reason}"
                    ));
                }
            }
            break;
        }
        if exists(&directory, POLICY_FILE_NAME)? {
            let policy_file = project_file(&directory)?;
            return Ok(Project {
                root: directory,
                policy_file,
                notes,
            });
        }
        if repository.is_none() && exists(&directory, ".git")? {
            repository = Some(directory.clone());
        }
        next = directory.parent();
    }
    Ok(Project {
        root: repository.unwrap_or(start),
        policy_file: None,
        notes,
    })
}

/// Refuses a policy file where it would take the place of another one further
/// up; for files that nobody trusts. A command could have written it, to have
/// what the other one hides shown to a run in this directory.
pub fn refuse_displacement(policy_file: &Source, home: &AbsolutePath) -> Result<(), DiscoverError> {
    let home = resolve(home).unwrap_or_else(|_| home.clone());
    let mut next = policy_file.path.parent().and_then(|root| root.parent());
    while let Some(directory) = next {
        if directory.is_root() || directory == home || shared_with_others(&directory)?.is_some() {
            break;
        }
        if exists(&directory, POLICY_FILE_NAME)? {
            return Err(refused(
                &policy_file.path,
                &format!(
                    "it is not trusted and would take the place of {directory}/{POLICY_FILE_NAME}"
                ),
                &format!("read it, then run `stockade trust`, or remove it, or run in {directory}"),
            ));
        }
        next = directory.parent();
    }
    Ok(())
}

/// The project that a person named: `root` itself, with its policy file.
pub fn project_at(root: &AbsolutePath) -> Result<Project, DiscoverError> {
    let root = resolve(root)?;
    let policy_file = match exists(&root, POLICY_FILE_NAME)? {
        true => project_file(&root)?,
        false => None,
    };
    Ok(Project {
        root,
        policy_file,
        notes: Vec::new(),
    })
}

/// Reads the user's own policy file. It may be a link (to a dotfiles
/// directory), but what it leads to must belong to the caller or root and be
/// writable by nobody else.
pub fn user_file(places: &Places) -> Result<Option<Source>, DiscoverError> {
    let owners = [rustix::process::geteuid().as_raw(), 0];
    let path = child(&places.configuration, POLICY_FILE_NAME);
    private_file(Layer::User, path, &owners)
}

/// Reads the organisation's policy file. It and its directory must belong to
/// root and be writable by nobody else.
pub fn organisation_file() -> Result<Option<Source>, DiscoverError> {
    let directory = AbsolutePath::root().join(ORGANISATION_DIRECTORY);
    // The constant is a short absolute path.
    let directory = directory.unwrap_or_else(|_| AbsolutePath::root());
    organisation_file_in(&directory)
}

fn organisation_file_in(directory: &AbsolutePath) -> Result<Option<Source>, DiscoverError> {
    let status = match rustix::fs::stat(directory.as_path()) {
        Ok(status) => status,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(system("inspect", directory, errno)),
    };
    check_owner_and_mode(directory, &status, &[0])?;
    private_file(
        Layer::Organisation,
        child(directory, POLICY_FILE_NAME),
        &[0],
    )
}

fn private_file(
    layer: Layer,
    path: AbsolutePath,
    owners: &[u32],
) -> Result<Option<Source>, DiscoverError> {
    let resolved = match fs::symlink_metadata(path.as_path()) {
        Ok(_) => resolve(&path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // A file in place of the directory holds no policy file either.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(None),
        Err(error) => return Err(system("inspect", &path, error)),
    };
    let (file, status) = open_regular(&resolved)?;
    check_owner_and_mode(&resolved, &status, owners)?;
    let content = read_bounded(file, &resolved)?;
    Ok(Some(Source {
        layer,
        path,
        resolved,
        content,
    }))
}

/// A project's file is never a link: a run may have made it, to have the
/// product read something else.
fn project_file(directory: &AbsolutePath) -> Result<Option<Source>, DiscoverError> {
    let path = child(directory, POLICY_FILE_NAME);
    let (file, _) = open_regular(&path)?;
    let content = read_bounded(file, &path)?;
    Ok(Some(Source {
        layer: Layer::Project,
        resolved: path.clone(),
        path,
        content,
    }))
}

/// Opens without following a final link and without waiting for the writer
/// of a pipe.
fn open_regular(path: &AbsolutePath) -> Result<(File, Stat), DiscoverError> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let handle = match rustix::fs::open(path.as_path(), flags, Mode::empty()) {
        Ok(handle) => handle,
        Err(Errno::LOOP) => {
            return Err(refused(
                path,
                "it is a symbolic link",
                "replace it by a regular file with the same content",
            ));
        }
        // Opening a socket (open(2), ENXIO).
        Err(Errno::NXIO) => return Err(not_regular(path)),
        Err(errno) => return Err(system("open", path, errno)),
    };
    let status = rustix::fs::fstat(&handle).map_err(|errno| system("inspect", path, errno))?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Err(not_regular(path));
    }
    Ok((File::from(handle), status))
}

fn read_bounded(file: File, path: &AbsolutePath) -> Result<Vec<u8>, DiscoverError> {
    let mut content = Vec::new();
    file.take(POLICY_BYTES_MAX + 1)
        .read_to_end(&mut content)
        .map_err(|error| system("read", path, error))?;
    if content.len() as u64 > POLICY_BYTES_MAX {
        return Err(DiscoverError::Oversized {
            path: path.to_string(),
        });
    }
    Ok(content)
}

fn check_owner_and_mode(
    path: &AbsolutePath,
    status: &Stat,
    owners: &[u32],
) -> Result<(), DiscoverError> {
    if !owners.contains(&status.st_uid) {
        return Err(refused(
            path,
            &format!(
                "user {} owns it, who has no say in this policy",
                status.st_uid
            ),
            &format!("check its content, then run `chown {} '{path}'`", owners[0]),
        ));
    }
    if status.st_mode & 0o022 != 0 {
        return Err(refused(
            path,
            &format!(
                "others may change it (mode {:04o})",
                status.st_mode & 0o7777
            ),
            &format!("check its content, then run `chmod go-w '{path}'`"),
        ));
    }
    Ok(())
}

/// Why a directory's content may be someone else's; `None` when it may not.
/// A group may write: many systems give each user a group of their own.
fn shared_with_others(directory: &AbsolutePath) -> Result<Option<String>, DiscoverError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let status = rustix::fs::open(directory.as_path(), flags, Mode::empty())
        .and_then(rustix::fs::fstat)
        .map_err(|errno| system("inspect", directory, errno))?;
    let caller = rustix::process::geteuid().as_raw();
    if status.st_uid != caller && status.st_uid != 0 {
        return Ok(Some(format!("user {} owns {directory}", status.st_uid)));
    }
    // Sticky and writable by a group is a shared directory like /tmp.
    let is_sticky = status.st_mode & 0o1000 != 0;
    if status.st_mode & 0o002 != 0 || (is_sticky && status.st_mode & 0o020 != 0) {
        return Ok(Some(format!("others may create files in {directory}")));
    }
    Ok(None)
}

/// Whether the name exists, whatever it is.
fn exists(directory: &AbsolutePath, name: &str) -> Result<bool, DiscoverError> {
    let path = child(directory, name);
    match rustix::fs::statat(rustix::fs::CWD, path.as_path(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        // A directory so deep that the name no longer fits holds none.
        Err(Errno::NOENT | Errno::NAMETOOLONG) => Ok(false),
        // One that may be listed by nobody but its owner shows nothing.
        Err(Errno::ACCESS) => Ok(false),
        Err(errno) => Err(system("inspect", &path, errno)),
    }
}

fn resolve(path: &AbsolutePath) -> Result<AbsolutePath, DiscoverError> {
    let resolved = fs::canonicalize(path.as_path()).map_err(|error| system("find", path, error))?;
    AbsolutePath::parse(resolved.as_os_str().as_bytes())
        .map_err(|error| system("use", path, io::Error::other(error)))
}

/// A path below a directory; when it would be too long for the kernel it
/// stays the directory, which then is of the wrong kind.
fn child(directory: &AbsolutePath, name: &str) -> AbsolutePath {
    directory.join(name).unwrap_or_else(|_| directory.clone())
}

fn not_regular(path: &AbsolutePath) -> DiscoverError {
    refused(
        path,
        "it is not a regular file",
        "replace it by a regular file, or remove it",
    )
}

fn refused(path: &AbsolutePath, reason: &str, remedy: &str) -> DiscoverError {
    DiscoverError::Refused {
        path: path.to_string(),
        reason: reason.to_owned(),
        remedy: remedy.to_owned(),
    }
}

fn system(
    operation: &'static str,
    path: &AbsolutePath,
    source: impl Into<io::Error>,
) -> DiscoverError {
    DiscoverError::System {
        operation,
        path: path.to_string(),
        source: source.into(),
    }
}

#[cfg(test)]
mod tests;
