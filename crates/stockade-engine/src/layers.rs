//! The layer of the workspace that a run in review or discard mode writes to.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{fgetxattr, fstatfs, fstatvfs};
use rustix::io::Errno;
use stockade_policy::facts::{Ability, Facts};
use stockade_policy::path::{AbsolutePath, printable};
use stockade_policy::plan::{Rule, WorkspaceMode};
use stockade_sys::rustix;
use stockade_walls::process::UpperLayer;
use stockade_workspace::apply::Stamp;
use stockade_workspace::gc;
use stockade_workspace::measure::Usage;
use stockade_workspace::run_dir::{Fate, NewRun, Run};
use stockade_workspace::store::{Lock, Store, StoreError};

use crate::beside;
use crate::events::RunId;
use crate::load::Loaded;
use crate::run::{Planned, Refusal};

/// First kernel on which a user namespace may mount an overlay (5.11).
const KERNEL_MIN: (u32, u32) = (5, 11);
/// File systems that cannot take an upper layer (linux/magic.h): an overlay,
/// NFS, CIFS, SMB2, FUSE.
const NO_UPPER_LAYER: [(i64, &str); 5] = [
    (0x794c_7630, "an overlay"),
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x6573_5546, "FUSE"),
];
/// A run is not started when less is free where its layer is, in bytes.
const FREE_BYTES_MIN: u64 = 16 << 20;

/// What lies below a run's own layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Base {
    /// The workspace as it is.
    #[default]
    Tree,
    /// The frozen layers of a snapshot, over the workspace.
    Snapshot {
        name: String,
        layers: Vec<String>,
        stamp: Stamp,
    },
    /// A run that waits, which goes on in its own layer.
    Waiting { run: String, layers: Vec<String> },
}

impl Base {
    /// Finds what `on` names, and puts the policy into review mode for it. The
    /// layers stay where they are as long as the lock lives.
    pub(crate) fn choose(
        loaded: &mut Loaded,
        on: Option<&str>,
    ) -> Result<(Self, Option<Lock>), StoreError> {
        let Some(name) = on else {
            return Ok((Self::Tree, None));
        };
        let workspace = loaded.policy.workspace.clone();
        let unknown = || StoreError::Unknown {
            what: "snapshot or fork",
            name: printable(name.as_bytes()),
            remedy: "`stockade snapshot --list` and `stockade diff --list` list them",
        };
        let store = Store::open_existing(loaded.state.as_fd(), &workspace)?.ok_or_else(unknown)?;
        let kept = store.keep_layers()?;
        let base = match store.snapshot(name)? {
            Some(snapshot) => Self::Snapshot {
                name: name.to_owned(),
                layers: snapshot.layers,
                stamp: snapshot.stamp,
            },
            None => {
                let run = store.run(Some(name)).map_err(|error| match error {
                    StoreError::Unknown { .. } => unknown(),
                    other => other,
                })?;
                Self::Waiting {
                    run: run.meta().id.clone(),
                    layers: run.meta().layers.clone(),
                }
            }
        };
        let mode = &mut loaded.policy.workspace_mode;
        if mode.0 == WorkspaceMode::Live {
            *mode = (
                WorkspaceMode::Review,
                Rule {
                    id: "--on".to_owned(),
                    origin: "command line".to_owned(),
                    reason: format!("goes on from {name}"),
                },
            );
        }
        Ok((base, Some(kept)))
    }

    fn layers(&self) -> &[String] {
        match self {
            Self::Tree => &[],
            Self::Snapshot { layers, .. } | Self::Waiting { layers, .. } => layers,
        }
    }

    /// Fills in what a plan depends on.
    pub(crate) fn complete(&self, loaded: &Loaded, facts: &mut Facts) -> Result<(), StoreError> {
        if loaded.policy.workspace_mode.0 == WorkspaceMode::Live {
            return Ok(());
        }
        facts.overlay = ability(loaded, facts.kernel);
        if self.layers().is_empty() {
            return Ok(());
        }
        let store = Store::open(loaded.state.as_fd(), &loaded.policy.workspace)?;
        facts.layers = store.layer_places(self.layers())?;
        Ok(())
    }
}

/// Whether the workspace can be the lower layer of an overlay whose upper one
/// is in the store.
fn ability(loaded: &Loaded, kernel: (u32, u32)) -> Ability {
    match obstacle(loaded, kernel) {
        None => Ability::Yes,
        Some((reason, remedy)) => Ability::No {
            reason,
            remedy: remedy.to_owned(),
        },
    }
}

fn obstacle(loaded: &Loaded, kernel: (u32, u32)) -> Option<(String, &'static str)> {
    const ELSEWHERE: &str =
        "set XDG_STATE_HOME to a directory on a local disk, outside the workspace";
    let workspace = &loaded.policy.workspace;
    if kernel < KERNEL_MIN {
        let reason = format!(
            "kernel {}.{} mounts no overlay for a user",
            kernel.0, kernel.1
        );
        return Some((reason, "use kernel 5.11 or newer"));
    }
    let state = std::fs::canonicalize(loaded.state.path().as_path());
    let state = state.ok().and_then(|path| {
        use std::os::unix::ffi::OsStringExt;
        AbsolutePath::parse(path.into_os_string().into_vec()).ok()
    });
    let state = state.as_ref().unwrap_or(loaded.state.path());
    if state.is_within(workspace) || workspace.is_within(state) {
        let reason = format!("its layers would be kept in {state}, and one lies in the other");
        return Some((reason, ELSEWHERE));
    }
    if let Ok(status) = fstatfs(loaded.state.as_fd()) {
        let magic = status.f_type;
        if let Some((_, name)) = NO_UPPER_LAYER.iter().find(|(number, _)| *number == magic) {
            let reason = format!("its layers would be kept in {state}, which is on {name}");
            return Some((reason, ELSEWHERE));
        }
    }
    let probe = fgetxattr(
        loaded.state.as_fd(),
        "user.overlay.opaque",
        &mut [0u8; 1][..],
    );
    if probe == Err(Errno::NOTSUP) {
        let reason = format!(
            "its layers would be kept in {state}, whose file system has no extended attributes"
        );
        return Some((reason, ELSEWHERE));
    }
    mount_below(workspace).map(|mount| {
        (
            format!("{mount} is mounted below it, which an overlay would not show"),
            "unmount it, or run in a project directory without mounts",
        )
    })
}

/// Something that is mounted below a directory, in the mount namespace of this
/// process (proc_pid_mountinfo(5)).
fn mount_below(workspace: &AbsolutePath) -> Option<String> {
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    let places = mounts
        .split(|&byte| byte == b'\n')
        .filter_map(|line| line.split(|&byte| byte == b' ').nth(4));
    let mut below = places.map(unescaped).filter(|place| {
        let rest = place.strip_prefix(workspace.as_bytes());
        rest.is_some_and(|rest| rest.first() == Some(&b'/'))
    });
    below.next().map(|place| printable(&place))
}

/// Octal escapes of mountinfo.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = |digits: &[u8]| {
            let text = str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        };
        match (first, tail.get(..3).and_then(octal)) {
            (b'\\', Some(byte)) => {
                plain.push(byte);
                rest = &tail[3..];
            }
            _ => {
                plain.push(first);
                rest = tail;
            }
        }
    }
    plain
}

/// What became of a run's own layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerOutcome {
    /// Nothing was written.
    Unchanged,
    /// It waits until a person applies or discards it.
    Waiting { run: String, usage: Usage },
    /// It is gone.
    Discarded,
    /// The store failed; what was written may still be there.
    Failed { run: String, error: String },
}

/// The layer that one run writes to. Dropped before the end, it is removed if
/// it was made for this run.
#[derive(Debug)]
pub(crate) struct OwnLayer {
    run: Option<Run>,
    place: UpperLayer,
    fate: Fate,
    is_new: bool,
    /// Whether there was something of a killed run when this one began.
    is_littered: bool,
}

impl OwnLayer {
    /// Makes or takes the layer of a run; `None` for a plan without an overlay.
    pub(crate) fn prepare(planned: &Planned, id: &RunId) -> Result<Option<Self>, Refusal> {
        let plan = &planned.plan;
        if !plan.has_overlay() {
            return Ok(None);
        }
        let store = Store::open(planned.loaded.state.as_fd(), &plan.workspace)?;
        check_budget(&store, plan.limits.store_bytes)?;
        let fate = match plan.workspace_mode.0 {
            WorkspaceMode::Discard => Fate::Discard,
            _ => Fate::Review,
        };
        let command: Vec<String> = plan
            .command
            .argv
            .iter()
            .map(|word| printable(word))
            .collect();
        let new = |layers: &[String], from: Option<(&String, Stamp)>| NewRun {
            id: id.as_str().to_owned(),
            name: None,
            fate,
            layers: layers.to_vec(),
            snapshot: from.map(|(name, _)| name.clone()),
            stamp: from.map(|(_, stamp)| stamp),
            command: command.clone(),
            begins: true,
        };
        let _lock = store.lock()?;
        // From here on the run's own record keeps its layers.
        let _kept = planned.kept_layers();
        let is_still = |now: &[String], layers: &[String], name: &str| match store.originals(now)?
            == store.originals(layers)?
        {
            true => Ok(()),
            false => Err(StoreError::Busy {
                name: printable(name.as_bytes()),
            }),
        };
        let is_littered = gc::is_due(&store)?;
        let (run, is_new) = match &planned.base {
            Base::Tree => (store.new_run(new(&[], None))?, true),
            Base::Snapshot {
                name,
                layers,
                stamp,
            } => {
                is_still(&store.known_snapshot(name)?.layers, layers, name)?;
                (store.new_run(new(layers, Some((name, *stamp))))?, true)
            }
            Base::Waiting { run, layers } if fate == Fate::Review => {
                let mut run = store.run(Some(run))?;
                run.take()?;
                let id = run.meta().id.clone();
                is_still(&run.meta().layers, layers, &id)?;
                run.begin(command.clone(), layers.clone())?;
                (run, false)
            }
            Base::Waiting { run, .. } => {
                return Err(Refusal::Store(StoreError::Refused(format!(
                    "{run} waits for review and cannot be gone on with in discard mode\n  remedy: \
                     take a snapshot of it first: `stockade snapshot NAME --of {run}`"
                ))));
            }
        };
        let (upper, work) = run.places()?;
        Ok(Some(Self {
            run: Some(run),
            place: UpperLayer { upper, work },
            fate,
            is_new,
            is_littered,
        }))
    }

    pub(crate) fn place(&self) -> &UpperLayer {
        &self.place
    }

    fn settle(&self, mut run: Run, exit_code: i32) -> Result<LayerOutcome, StoreError> {
        let usage = run.measure()?;
        if self.is_new && usage.is_nothing() {
            run.remove()?;
            return Ok(LayerOutcome::Unchanged);
        }
        run.end(exit_code, usage)?;
        Ok(LayerOutcome::Waiting {
            run: run.meta().id.clone(),
            usage,
        })
    }

    pub(crate) fn is_littered(&self) -> bool {
        self.is_littered
    }

    /// Settles the layer after everything of the sandbox is gone.
    pub(crate) fn finish(mut self, exit_code: i32) -> LayerOutcome {
        let Some(run) = self.run.take() else {
            return LayerOutcome::Unchanged;
        };
        let id = run.meta().id.clone();
        let settled = match self.fate {
            Fate::Discard => run.remove().map(|()| LayerOutcome::Discarded),
            Fate::Review => self.settle(run, exit_code),
        };
        settled.unwrap_or_else(|error| LayerOutcome::Failed {
            run: id,
            error: error.to_string(),
        })
    }
}

impl Drop for OwnLayer {
    fn drop(&mut self) {
        if self.is_new
            && let Some(run) = self.run.take()
        {
            // Nothing ran in it. What cannot be removed now is cleared away
            // with the next garbage.
            let _left = run.remove().is_err();
        }
    }
}

/// Starts a process that brings the layers of a workspace to the disk, makes deep
/// chains of them short and clears away what killed processes left: `program`, or that of this process, as `stockade
/// tend`. What fails is left to the next time.
pub fn tend(program: Option<&Path>, workspace: &AbsolutePath) {
    let workspace = workspace.as_path().as_os_str();
    beside::spawn(program, &["tend".as_ref(), "--project".as_ref(), workspace]);
}

/// Refuses early what would fail in the middle.
fn check_budget(store: &Store, bytes_max: u64) -> Result<(), StoreError> {
    const REMEDY: &str = "`stockade diff --list` shows what waits; apply or discard it, or delete \
                          snapshots (`stockade snapshot --list`)";
    let bytes = store.bytes()?;
    if bytes >= bytes_max {
        return Err(StoreError::Refused(format!(
            "the store of {} holds {bytes} bytes, and filesystem.store_bytes_max is {bytes_max}\n  \
             remedy: {REMEDY}",
            store.workspace()
        )));
    }
    let free = fstatvfs(store).map_or(u64::MAX, |status| status.f_bavail * status.f_frsize);
    match free < FREE_BYTES_MIN {
        true => Err(StoreError::Refused(format!(
            "only {free} bytes are free in {}\n  remedy: {REMEDY}",
            store.path()
        ))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::unescaped;

    #[test]
    fn escapes_of_mountinfo_are_undone() {
        assert_eq!(unescaped(br"/a\040b\134c"), b"/a b\\c");
        assert_eq!(unescaped(br"/a\04"), br"/a\04");
    }
}
