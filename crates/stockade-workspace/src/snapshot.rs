//! Frozen layers, and snapshots made of them.
//!
//! A snapshot is a list of layers over the tree. Taking one renames the layer
//! of a run, or writes down that there is none; forking from one makes an empty
//! layer on top. Neither looks at a file. What is applied to the tree later
//! puts the old versions into one more layer at the bottom of every snapshot;
//! what the host changes itself is found by its time of change.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, mkdirat, unlinkat};
use serde::{Deserialize, Serialize};
use stockade_policy::path::{AbsolutePath, printable};

use crate::apply::Stamp;
use crate::run_dir::{Fate, NewRun, Run, VERSION, now_ms};
use crate::store::{Store, StoreError, check_name, directory, read_record, system, write_record};

pub(crate) const META: &str = "meta.json";
pub(crate) const TREE: &str = "tree";
const ENDING: &str = ".json";

/// What is known of a frozen layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerMeta {
    pub version: u32,
    /// Milliseconds since 1970.
    pub frozen_ms: u64,
    /// Bytes on the disk.
    pub bytes: u64,
    /// For a layer of old versions: when the tree had the new ones.
    pub closed: Option<Stamp>,
    /// The layers that were merged into it, none of them a merged one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<String>,
}

/// A state of the workspace that can be gone back to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    pub version: u32,
    pub name: String,
    /// Milliseconds since 1970.
    pub made_ms: u64,
    /// Ids of the layers over the tree, the topmost first.
    pub layers: Vec<String>,
    /// Those of them that hold old versions of what was applied since.
    pub preimages: Vec<String>,
    /// What changed later in the tree is not what the snapshot saw.
    pub stamp: Stamp,
}

impl Store {
    /// The tree of a frozen layer.
    pub fn layer_tree(&self, id: &str) -> Result<OwnedFd, StoreError> {
        let layer = self.layer(id)?;
        directory::open_directory(layer.as_fd(), TREE.as_bytes())
            .map_err(system("open a frozen layer"))
    }

    pub(crate) fn layer(&self, id: &str) -> Result<OwnedFd, StoreError> {
        check_name(id)?;
        let layers = self.part("layers")?;
        directory::open_private(layers.as_fd(), id).map_err(system("open a frozen layer"))
    }

    /// Where frozen layers are, links resolved.
    pub fn layer_places(&self, ids: &[String]) -> Result<Vec<AbsolutePath>, StoreError> {
        let failed = system("find a frozen layer");
        let place = |id: &String| {
            let tree = self.layer_tree(id)?;
            let path = directory::path_of(tree.as_fd()).map_err(&failed)?;
            AbsolutePath::parse(path).map_err(|error| failed(std::io::Error::other(error)))
        };
        ids.iter().map(place).collect()
    }

    /// The frozen layers and what is known of them.
    pub fn layers(&self) -> Result<Vec<(String, LayerMeta)>, StoreError> {
        let layers = self.part("layers")?;
        let mut found = Vec::new();
        for name in directory::names(layers.as_fd()).map_err(system("list the layers"))? {
            if let Some(meta) = self.layer_meta(&name)? {
                found.push((name, meta));
            }
        }
        Ok(found)
    }

    pub(crate) fn layer_meta(&self, id: &str) -> Result<Option<LayerMeta>, StoreError> {
        read_record(self.layer(id)?.as_fd(), META)
    }

    /// The layers that these stand for, merged ones resolved: two chains with
    /// the same show the same.
    pub fn originals(&self, ids: &[String]) -> Result<Vec<String>, StoreError> {
        let mut all = Vec::new();
        for id in ids {
            match self.layer_meta(id)? {
                Some(meta) if !meta.merged.is_empty() => all.extend(meta.merged),
                _ => all.push(id.clone()),
            }
        }
        Ok(all)
    }

    /// Bytes that frozen layers take up together. A merged one shares its
    /// files with those of its parts that are still there.
    pub(crate) fn layer_bytes(&self) -> Result<u64, StoreError> {
        let mut layers: Vec<(BTreeSet<String>, u64)> = Vec::new();
        for (id, meta) in self.layers()? {
            let parts = match meta.merged.is_empty() {
                true => BTreeSet::from([id]),
                false => meta.merged.into_iter().collect(),
            };
            layers.push((parts, meta.bytes));
        }
        layers.sort_by_key(|(parts, _)| parts.len());
        let mut sum: u64 = 0;
        for at in 0..layers.len() {
            let (before, rest) = layers.split_at_mut(at);
            let (parts, bytes) = &mut rest[0];
            let inside = before.iter().filter(|(others, _)| others.is_subset(parts));
            let shared = inside.fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
            *bytes = bytes.saturating_sub(shared);
            sum = sum.saturating_add(*bytes);
        }
        Ok(sum)
    }

    /// Makes an empty layer that old versions will be put into.
    pub(crate) fn new_layer(&self) -> Result<String, StoreError> {
        let layers = self.part("layers")?;
        let (id, layer) = self.make_layer_directory(layers.as_fd(), 0)?;
        let failed = system("make a layer");
        mkdirat(&layer, TREE, Mode::RWXU).map_err(|error| failed(error.into()))?;
        // The root of a layer of old versions must not show another root than
        // the tree's was.
        let tree = directory::open_directory(layer.as_fd(), TREE.as_bytes()).map_err(&failed)?;
        let base = crate::tree_root(self.workspace()).map_err(&failed)?;
        crate::run_dir::resemble(base.as_fd(), tree.as_fd()).map_err(&failed)?;
        Ok(id)
    }

    pub(crate) fn make_layer_directory(
        &self,
        place: BorrowedFd<'_>,
        bytes: u64,
    ) -> Result<(String, OwnedFd), StoreError> {
        let failed = system("make a layer");
        let id = directory::random_name().map_err(&failed)?;
        let layer = directory::make_private(place, &id).map_err(&failed)?;
        let meta = LayerMeta {
            version: VERSION,
            frozen_ms: now_ms(),
            bytes,
            closed: None,
            merged: Vec::new(),
        };
        write_record(layer.as_fd(), META, &meta)?;
        Ok((id, layer))
    }

    /// Notes that everything whose old version is in the layer is in the tree.
    pub(crate) fn close_layer(&self, id: &str) -> Result<(), StoreError> {
        let layer = self.layer(id)?;
        let Some(mut meta) = read_record::<LayerMeta>(layer.as_fd(), META)? else {
            return Ok(());
        };
        let tree = self.layer_tree(id)?;
        let usage = crate::measure::measure(tree.as_fd()).map_err(system("measure a layer"))?;
        meta.bytes = usage.bytes;
        meta.closed =
            Some(Stamp::take(layer.as_fd(), "stamp").map_err(system("find out the time"))?);
        write_record(layer.as_fd(), META, &meta)
    }

    /// A snapshot by its name.
    pub fn snapshot(&self, name: &str) -> Result<Option<Snapshot>, StoreError> {
        if check_name(name).is_err() {
            return Ok(None);
        }
        read_record(self.part("snapshots")?.as_fd(), &format!("{name}{ENDING}"))
    }

    /// As [`Store::snapshot`]; a missing one is an error.
    pub fn known_snapshot(&self, name: &str) -> Result<Snapshot, StoreError> {
        self.snapshot(name)?.ok_or_else(|| StoreError::Unknown {
            what: "snapshot",
            name: printable(name.as_bytes()),
            remedy: "`stockade snapshot --list` lists the snapshots of this workspace",
        })
    }

    /// All snapshots, oldest first.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>, StoreError> {
        let snapshots = self.part("snapshots")?;
        let names = directory::names(snapshots.as_fd()).map_err(system("list the snapshots"))?;
        let mut found = Vec::new();
        for name in names.iter().filter(|name| name.ends_with(ENDING)) {
            found.extend(read_record::<Snapshot>(snapshots.as_fd(), name)?);
        }
        found.sort_by(|left, right| (left.made_ms, &left.name).cmp(&(right.made_ms, &right.name)));
        Ok(found)
    }

    pub(crate) fn write_snapshot(&self, snapshot: &Snapshot) -> Result<(), StoreError> {
        let snapshots = self.part("snapshots")?;
        write_record(
            snapshots.as_fd(),
            &format!("{}{ENDING}", snapshot.name),
            snapshot,
        )
    }

    /// Takes a snapshot of the tree as it is, or of what a run shows.
    pub fn take_snapshot(&self, name: &str, of: Option<&str>) -> Result<Snapshot, StoreError> {
        check_name(name)?;
        let _lock = self.lock()?;
        if self.snapshot(name)?.is_some() {
            return Err(StoreError::Exists {
                name: name.to_owned(),
            });
        }
        let (layers, stamp) = match of {
            None => {
                let failed = system("find out the time");
                let stamp = Stamp::take(self.as_fd(), "stamp").map_err(&failed)?;
                (Vec::new(), stamp)
            }
            Some(run) => {
                let mut run = self.run(Some(run))?;
                run.take()?;
                refuse_interrupted(&run)?;
                self.freeze(&mut run)?;
                (run.meta().layers.clone(), run.meta().stamp)
            }
        };
        let snapshot = Snapshot {
            version: VERSION,
            name: name.to_owned(),
            made_ms: now_ms(),
            layers,
            preimages: Vec::new(),
            stamp,
        };
        self.write_snapshot(&snapshot)?;
        Ok(snapshot)
    }

    /// Makes a run's own layer a frozen one, and gives it a new one on top.
    fn freeze(&self, run: &mut Run) -> Result<(), StoreError> {
        let usage = run.meta().usage;
        if usage.is_some_and(|usage| usage.is_nothing()) {
            return Ok(());
        }
        run.check_whole()?;
        run.reach_disk()?;
        let layers = self.part("layers")?;
        let bytes = usage.map_or(0, |usage| usage.bytes);
        let (id, layer) = self.make_layer_directory(layers.as_fd(), bytes)?;
        // Noted first: who finds the layer gone knows where it is.
        run.update(|meta| meta.freezing = Some(id.clone()))?;
        run.move_layer(layer.as_fd(), TREE)?;
        run.finish_freezing(self)
    }

    /// Makes a run on a snapshot.
    pub fn fork(&self, snapshot: &str, name: Option<&str>) -> Result<Run, StoreError> {
        let _lock = self.lock()?;
        let snapshot = self.known_snapshot(snapshot)?;
        if let Some(name) = name {
            check_name(name)?;
            let taken = self.snapshot(name)?.is_some() || self.run(Some(name)).is_ok();
            if taken {
                return Err(StoreError::Exists {
                    name: name.to_owned(),
                });
            }
        }
        let id = directory::random_name().map_err(system("make the fork"))?;
        let fork = self.new_run(NewRun {
            id: format!("fork-{id}"),
            name: name.map(str::to_owned),
            fate: Fate::Review,
            layers: snapshot.layers,
            snapshot: Some(snapshot.name),
            stamp: Some(snapshot.stamp),
            command: Vec::new(),
            begins: false,
        })?;
        Ok(fork)
    }

    /// Makes a run show a snapshot again, and nothing else.
    pub fn reset_run(&self, run: &str, snapshot: &str) -> Result<(), StoreError> {
        let _lock = self.lock()?;
        let snapshot = self.known_snapshot(snapshot)?;
        let mut run = self.run(Some(run))?;
        run.take()?;
        refuse_interrupted(&run)?;
        run.clear(self)?;
        run.update(|meta| {
            meta.layers = snapshot.layers;
            meta.snapshot = Some(snapshot.name);
            meta.stamp = snapshot.stamp;
        })?;
        // Its root looks like that of the snapshot.
        run.make_layer(self)
            .map_err(system("make the layer of the fork"))?;
        crate::gc::collect_locked(self).map(drop)
    }

    /// Removes a snapshot, and its layers when nothing else needs them.
    pub fn delete_snapshot(&self, name: &str) -> Result<(), StoreError> {
        let _lock = self.lock()?;
        let snapshot = self.known_snapshot(name)?;
        let snapshots = self.part("snapshots")?;
        let file = format!("{}{ENDING}", snapshot.name);
        unlinkat(&snapshots, file, AtFlags::empty())
            .map_err(|error| system("remove the snapshot")(error.into()))?;
        crate::gc::collect_locked(self).map(drop)
    }

    /// Whether old versions have to be kept for a snapshot or a fork.
    pub(crate) fn is_referenced_from_snapshots(&self) -> Result<bool, StoreError> {
        let forked = |run: &Run| run.meta().snapshot.is_some();
        Ok(!self.snapshots()?.is_empty() || self.runs()?.iter().any(forked))
    }

    /// Puts a layer at the bottom of every snapshot, and of every run but one
    /// that was made from a snapshot.
    pub(crate) fn put_under_snapshots(&self, id: &str, but: &str) -> Result<(), StoreError> {
        for mut snapshot in self.snapshots()? {
            snapshot.layers.push(id.to_owned());
            snapshot.preimages.push(id.to_owned());
            self.write_snapshot(&snapshot)?;
        }
        for mut run in self.runs()? {
            if run.meta().snapshot.is_some() && run.meta().id != but {
                run.update(|meta| meta.layers.push(id.to_owned()))?;
            }
        }
        Ok(())
    }
}

fn refuse_interrupted(run: &Run) -> Result<(), StoreError> {
    match crate::settle::is_interrupted(run)? {
        true => Err(StoreError::Refused(format!(
            "an apply of {} was interrupted\n  remedy: finish it: `stockade apply {}`",
            run.meta().id,
            run.meta().id
        ))),
        false => Ok(()),
    }
}
