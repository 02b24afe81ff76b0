//! Frozen layers, and snapshots made of them.

use std::os::fd::{AsFd, OwnedFd};

use serde::{Deserialize, Serialize};
use stockade_policy::path::AbsolutePath;

use crate::run_dir::Stamp;
use crate::store::{Store, StoreError, directory, read_record, system};

const META: &str = "meta.json";
const TREE: &str = "tree";

/// What is known of a frozen layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerMeta {
    pub version: u32,
    /// Milliseconds since 1970.
    pub frozen_ms: u64,
    /// Bytes on the disk.
    pub bytes: u64,
}

/// A state of the workspace that can be gone back to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    pub version: u32,
    pub name: String,
    /// Milliseconds since 1970.
    pub made_ms: u64,
    /// Ids of the frozen layers over the workspace, the topmost first.
    pub layers: Vec<String>,
    /// What changed later in the workspace is not what the snapshot saw.
    pub stamp: Stamp,
}

impl Store {
    /// The tree of a frozen layer.
    pub fn layer_tree(&self, id: &str) -> Result<OwnedFd, StoreError> {
        crate::store::check_name(id)?;
        let failed = system("open a frozen layer");
        let layers = self.part("layers")?;
        let layer = directory::open_private(layers.as_fd(), id).map_err(&failed)?;
        directory::open_directory(layer.as_fd(), TREE.as_bytes()).map_err(&failed)
    }

    /// Where frozen layers are, links resolved.
    pub fn layer_places(&self, ids: &[String]) -> Result<Vec<AbsolutePath>, StoreError> {
        let place = |id: &String| {
            let tree = self.layer_tree(id)?;
            let path = directory::path_of(tree.as_fd()).map_err(system("find a frozen layer"))?;
            AbsolutePath::parse(path)
                .map_err(|error| system("find a frozen layer")(std::io::Error::other(error)))
        };
        ids.iter().map(place).collect()
    }

    /// A snapshot by its name.
    pub fn snapshot(&self, name: &str) -> Result<Option<Snapshot>, StoreError> {
        if crate::store::check_name(name).is_err() {
            return Ok(None);
        }
        let snapshots = self.part("snapshots")?;
        read_record(snapshots.as_fd(), &format!("{name}.json"))
    }

    /// The frozen layers and what is known of them.
    pub fn layers(&self) -> Result<Vec<(String, LayerMeta)>, StoreError> {
        let layers = self.part("layers")?;
        let mut found = Vec::new();
        for name in directory::names(layers.as_fd()).map_err(system("list the layers"))? {
            let layer = directory::open_private(layers.as_fd(), &name)
                .map_err(system("open a frozen layer"))?;
            if let Some(meta) = read_record::<LayerMeta>(layer.as_fd(), META)? {
                found.push((name, meta));
            }
        }
        Ok(found)
    }
}
