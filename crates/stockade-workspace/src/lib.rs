//! What a run does to a work tree, and how it is kept visible and reversible.
//!
//! Nothing here starts a sandbox or knows the network. Paths are bytes; every
//! file of the tree is reached through descriptors and without following a
//! link out of it, because whoever wrote the tree may be hostile.

pub mod apply;
pub mod change;
pub mod diff;
pub mod flatten;
pub mod gc;
pub mod held;
pub mod holds;
pub mod journal;
pub mod measure;
pub mod merge;
pub mod namer;
mod renames;
pub mod restore;
pub mod run_dir;
pub mod settle;
pub mod snapshot;
pub mod stack;
pub mod store;
mod text;
pub mod tree;
pub mod unified;

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use stockade_policy::path::AbsolutePath;

/// Opens the root of a work tree by a path whose links are resolved, so a
/// link that stands there now was not meant.
pub(crate) fn tree_root(workspace: &AbsolutePath) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(
        CWD,
        workspace.as_bytes(),
        flags,
        Mode::empty(),
        resolve,
    )?)
}
