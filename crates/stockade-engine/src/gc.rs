//! What killed processes left behind, everywhere that the product keeps
//! something: found without a change, and cleared away.
//!
//! Nothing is found of what is in use, waits for a person, or is a snapshot.

use std::os::fd::AsFd;

use stockade_image::{ImageError, Store as Images};
use stockade_policy::path::printable;
use stockade_vm::saved::Kept;
use stockade_vm::store::Store as Machines;
use stockade_walls::control_group;
use stockade_workspace::gc as layers;
use stockade_workspace::store::{Store, StoreError};

use crate::control;
use crate::probe::machine;
use crate::sandboxes::registry::Registry;
use crate::state::{StateDirectory, StateError};

/// One thing that was left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// `layer`, `image`, `machine-image`, `saved-machine`, `control-group`, `socket` or
    /// `sandbox`.
    pub kind: &'static str,
    /// Where it is, printable.
    pub place: String,
}

#[derive(Debug, thiserror::Error)]
pub enum GcError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(transparent)]
    Machine(#[from] stockade_vm::VmError),
    #[error(transparent)]
    State(#[from] StateError),
}

/// Everything that was left behind.
pub fn find(state: &StateDirectory) -> Result<Vec<Left>, GcError> {
    let mut found = Vec::new();
    let mut add = |kind, place: &[u8]| {
        let place = printable(place);
        found.push(Left { kind, place });
    };
    for store in Store::all(state.as_fd())? {
        for path in layers::litter(&store)? {
            add("layer", path.as_bytes());
        }
    }
    for path in Images::open(state.as_fd())?.litter()? {
        add("image", path.as_os_str().as_encoded_bytes());
    }
    for path in Machines::open(state.as_fd())?.litter()? {
        add("machine-image", path.as_os_str().as_encoded_bytes());
    }
    for one in stale_machines(state)? {
        add("saved-machine", one.path.as_os_str().as_encoded_bytes());
    }
    for path in control_group::stale() {
        add("control-group", path.as_os_str().as_encoded_bytes());
    }
    for run in control::dead(state)? {
        add("socket", run.as_str().as_bytes());
    }
    for name in Registry::litter(state)? {
        add("sandbox", name.as_str().as_bytes());
    }
    Ok(found)
}

/// Saved machines from which the installed QEMU cannot go on: it was updated.
/// Without any QEMU nobody can tell.
fn stale_machines(state: &StateDirectory) -> Result<Vec<Kept>, GcError> {
    let machines = Machines::open(state.as_fd())?;
    if machines.list()?.is_empty() {
        return Ok(Vec::new());
    }
    match machine::installed_qemu(state) {
        Some(qemu) => Ok(machines.stale(&qemu)?),
        None => Ok(Vec::new()),
    }
}

/// Clears it away, and returns what is gone.
pub fn clear(state: &StateDirectory) -> Result<Vec<Left>, GcError> {
    let found = find(state)?;
    for store in Store::all(state.as_fd())? {
        layers::collect(&store)?;
    }
    Images::open(state.as_fd())?.clear()?;
    let machines = Machines::open(state.as_fd())?;
    machines.clear()?;
    machines.remove_saved(&stale_machines(state)?)?;
    control_group::clear();
    for run in control::dead(state)? {
        control::bury(state, &run);
    }
    if !Registry::litter(state)?.is_empty() {
        Registry::open(state)?.list()?;
    }
    let left = find(state)?;
    Ok(found
        .into_iter()
        .filter(|one| !left.contains(one))
        .collect())
}
