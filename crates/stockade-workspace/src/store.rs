//! The store of one workspace: what runs wrote and nobody applied yet, and
//! frozen layers.
//!
//! ```text
//! workspaces/<32 hexadecimal digits of SHA-256 of the workspace's path>/
//!   path                  the workspace's path
//!   lock                  held while layers change hands
//!   readers               shared by who reads layers, so that none goes
//!   runs/<id>/            meta.json, upper/, work/ and what applying needs
//!   layers/<id>/          meta.json, tree/: frozen
//!   snapshots/<name>.json
//!   flattening/           merged layers that are being built
//! ```
//!
//! The directory lies in the caller's state directory (mode 0700), where no
//! sandbox can write.

pub use stockade_sys::directory;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use stockade_policy::path::{AbsolutePath, printable};

use crate::run_dir::{self, NewRun, Run};
pub use directory::Lock;

/// Name below the state directory.
pub(crate) const DIRECTORY_NAME: &str = "workspaces";
/// The lock of those who read layers.
const READERS: &str = "readers";

/// Why the store cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {operation}: {source}")]
    System {
        operation: String,
        source: io::Error,
    },
    /// A record that this version did not write like that.
    #[error("{what} in {path} cannot be read: {reason}\n  remedy: remove it if it is not needed")]
    Malformed {
        what: String,
        path: String,
        reason: String,
    },
    #[error("there is no {what} called {name}\n  remedy: {remedy}")]
    Unknown {
        what: &'static str,
        name: String,
        remedy: &'static str,
    },
    #[error("{name} is in use by another process\n  remedy: wait until it ends")]
    Busy { name: String },
    #[error("{name} exists already\n  remedy: choose another name, or remove it first")]
    Exists { name: String },
    #[error("{0}")]
    Refused(String),
}

/// The store of one workspace.
#[derive(Debug)]
pub struct Store {
    directory: OwnedFd,
    workspace: AbsolutePath,
    path: AbsolutePath,
}

impl Store {
    /// Opens the store of `workspace` in the state directory `state`, and makes
    /// it when it is missing.
    pub fn open(state: BorrowedFd<'_>, workspace: &AbsolutePath) -> Result<Self, StoreError> {
        let failed = system("make the store of the workspace");
        let all = directory::make_private(state, DIRECTORY_NAME).map_err(&failed)?;
        let directory =
            directory::make_private(all.as_fd(), &name_of(workspace)).map_err(&failed)?;
        for part in ["runs", "layers", "snapshots"] {
            directory::make_private(directory.as_fd(), part).map_err(&failed)?;
        }
        Self::opened(directory, workspace)
    }

    /// `None` when the workspace has no store.
    pub fn open_existing(
        state: BorrowedFd<'_>,
        workspace: &AbsolutePath,
    ) -> Result<Option<Self>, StoreError> {
        let failed = system("open the store of the workspace");
        let Some(all) = directory::open_private_if_there(state, DIRECTORY_NAME).map_err(&failed)?
        else {
            return Ok(None);
        };
        let name = name_of(workspace);
        match directory::open_private_if_there(all.as_fd(), &name).map_err(&failed)? {
            Some(_) => Self::open(state, workspace).map(Some),
            None => Ok(None),
        }
    }

    /// The stores of all workspaces.
    pub fn all(state: BorrowedFd<'_>) -> Result<Vec<Self>, StoreError> {
        let failed = system("list the stores");
        let Some(all) = directory::open_private_if_there(state, DIRECTORY_NAME).map_err(&failed)?
        else {
            return Ok(Vec::new());
        };
        let mut stores = Vec::new();
        for name in directory::names(all.as_fd()).map_err(&failed)? {
            let store = directory::open_private(all.as_fd(), &name).map_err(&failed)?;
            // One without a path was never used.
            let path = directory::read_whole(store.as_fd(), "path").map_err(&failed)?;
            if let Some(Ok(workspace)) = path.map(AbsolutePath::parse) {
                stores.extend(Self::open_existing(state, &workspace)?);
            }
        }
        Ok(stores)
    }

    fn opened(directory: OwnedFd, workspace: &AbsolutePath) -> Result<Self, StoreError> {
        let failed = system("open the store of the workspace");
        match directory::read_whole(directory.as_fd(), "path").map_err(&failed)? {
            Some(path) if path == workspace.as_bytes() => {}
            Some(path) => {
                return Err(StoreError::Refused(format!(
                    "the store of {workspace} belongs to {}",
                    printable(&path)
                )));
            }
            None => directory::write_whole(directory.as_fd(), "path", workspace.as_bytes())
                .map_err(&failed)?,
        }
        let path = directory::path_of(directory.as_fd()).map_err(&failed)?;
        let path = AbsolutePath::parse(path).map_err(|error| failed(io::Error::other(error)))?;
        Ok(Self {
            directory,
            workspace: workspace.clone(),
            path,
        })
    }

    pub fn workspace(&self) -> &AbsolutePath {
        &self.workspace
    }

    /// Where the store is, links resolved.
    pub fn path(&self) -> &AbsolutePath {
        &self.path
    }

    /// Waits until no other process changes which layers there are.
    pub fn lock(&self) -> Result<Lock, StoreError> {
        directory::lock(self.directory.as_fd(), "lock").map_err(system("lock the store"))
    }

    /// Keeps every frozen layer in its place while the lock lives, for who
    /// found one and is about to read it or to refer to it. Waits only while
    /// layers are being set aside.
    pub fn keep_layers(&self) -> Result<Lock, StoreError> {
        directory::lock_shared(self.directory.as_fd(), READERS).map_err(system("lock the layers"))
    }

    /// The opposite; `None` when somebody keeps them.
    pub(crate) fn try_take_layers(&self) -> Result<Option<Lock>, StoreError> {
        directory::try_lock(self.directory.as_fd(), READERS).map_err(system("lock the layers"))
    }

    /// Opens one of the store's parts.
    pub(crate) fn part(&self, name: &str) -> Result<OwnedFd, StoreError> {
        directory::make_private(self.directory.as_fd(), name).map_err(system("open the store"))
    }

    /// Makes a run with an empty layer of its own. It stays when the process
    /// dies, and is then as if the run had ended.
    pub fn new_run(&self, new: NewRun) -> Result<Run, StoreError> {
        run_dir::create(self, new)
    }

    /// The runs that can be looked at, oldest first. One that another process
    /// is making or removing is left out.
    pub fn runs(&self) -> Result<Vec<Run>, StoreError> {
        let runs = self.part("runs")?;
        let mut found = Vec::new();
        for name in directory::names(runs.as_fd()).map_err(system("list the runs"))? {
            if let Some(run) = run_dir::open(self, runs.as_fd(), &name)? {
                found.push(run);
            }
        }
        found.sort_by(|left, right| {
            let key = |run: &Run| (run.meta().started_ms, run.meta().id.clone());
            key(left).cmp(&key(right))
        });
        Ok(found)
    }

    /// The run with this id or name, or the latest that waits when `None`; where
    /// all are in use, the latest of them.
    pub fn run(&self, name: Option<&str>) -> Result<Run, StoreError> {
        let mut runs = self.runs()?;
        let found = match name {
            None => {
                let waits = |run: &Run| run.is_in_use().is_ok_and(|is_in_use| !is_in_use);
                match runs.iter().rposition(waits) {
                    Some(latest) => Some(runs.swap_remove(latest)),
                    None => runs.pop(),
                }
            }
            Some(name) => runs
                .into_iter()
                .find(|run| run.meta().id == name || run.meta().name.as_deref() == Some(name)),
        };
        found.ok_or_else(|| StoreError::Unknown {
            what: "waiting run",
            name: name.map_or_else(
                || "the latest".to_owned(),
                |name| printable(name.as_bytes()),
            ),
            remedy: "`stockade diff --list` lists the runs of this workspace that wait",
        })
    }

    /// Bytes that runs and layers take up, as last measured.
    pub fn bytes(&self) -> Result<u64, StoreError> {
        let runs = self.runs()?.into_iter();
        let own: u64 = runs
            .filter_map(|run| run.meta().usage.map(|usage| usage.bytes))
            .sum();
        Ok(own.saturating_add(self.layer_bytes()?))
    }
}

impl AsFd for Store {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// A name that may be given to a fork or a snapshot.
pub fn check_name(name: &str) -> Result<(), StoreError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let begins = name
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric());
    match begins && name.len() <= 64 && name.bytes().all(fits) {
        true => Ok(()),
        false => Err(StoreError::Refused(format!(
            "{} is no name\n  remedy: use up to 64 letters, digits, `-`, `_` and `.`, a letter or \
             digit first",
            printable(name.as_bytes())
        ))),
    }
}

/// Name of what is kept for a workspace, here and among caches: half a SHA-256 is enough to tell paths apart,
/// and the path itself is kept beside.
pub fn name_of(workspace: &AbsolutePath) -> String {
    let digest = Sha256::digest(workspace.as_bytes());
    digest[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

pub(crate) fn system(operation: &str) -> impl Fn(io::Error) -> StoreError + '_ {
    move |source| StoreError::System {
        operation: operation.to_owned(),
        source,
    }
}

/// Writes a record.
pub(crate) fn write_record<T: Serialize>(
    parent: BorrowedFd<'_>,
    name: &str,
    record: &T,
) -> Result<(), StoreError> {
    let text = record_text(record)?;
    directory::write_whole(parent, name, &text).map_err(system("write a record of the store"))
}

/// The content of a record.
pub(crate) fn record_text<T: Serialize>(record: &T) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec_pretty(record)
        .map_err(|error| system("write a record of the store")(error.into()))
}

/// Reads a record; `None` when it is missing.
pub(crate) fn read_record<T: DeserializeOwned>(
    parent: BorrowedFd<'_>,
    name: &str,
) -> Result<Option<T>, StoreError> {
    let content =
        directory::read_whole(parent, name).map_err(system("read a record of the store"))?;
    // An empty one was not yet on the disk when the machine went down.
    let Some(content) = content.filter(|content| !content.is_empty()) else {
        return Ok(None);
    };
    let record = serde_json::from_slice(&content).map_err(|error| StoreError::Malformed {
        what: name.to_owned(),
        path: directory::path_of(parent)
            .map_or_else(|_| "the store".to_owned(), |path| printable(&path)),
        reason: error.to_string(),
    })?;
    Ok(Some(record))
}
