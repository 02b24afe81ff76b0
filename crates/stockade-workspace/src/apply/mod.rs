//! Bringing the changes of a layer into the tree.
//!
//! Each file is replaced in one moment, by a rename. What is replaced or
//! removed goes into a layer of preimages in the format of an overlay, so that
//! the old tree is that layer over the new one. All steps are in the journal
//! before the first is done; after a crash at any moment [`resume`] does the
//! rest and ends in the same state.
//!
//! Nothing here decides what may be applied: the caller selects.

pub(crate) mod access;
mod conflict;
pub(crate) mod copy;
mod perform;
mod plan;
mod select;

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, StatxFlags};

use self::conflict::Since;
pub use self::conflict::{Conflict, ConflictReason, Own, Stamp};
pub use self::copy::{remove, resemble};
use self::perform::Worker;
pub(crate) use self::plan::Step;
use crate::change::{Change, ChangeKind, Changes};
use crate::diff::printable;
use crate::journal::Journal;

/// Where changes come from and go to. All are directories.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The layers that the changes are of, top first.
    pub layers: &'a [BorrowedFd<'a>],
    /// The tree.
    pub base: BorrowedFd<'a>,
    /// Receives the old versions: empty, and best on the tree's file system.
    /// [`resume`] needs the same one.
    pub preimages: BorrowedFd<'a>,
    /// When the run started; without it only what was made, removed or
    /// replaced since the changes were listed is a conflict.
    pub stamp: Option<Stamp>,
    /// What earlier parts left changed: their [`Outcome::own`].
    pub own: &'a [Own],
    pub ownership: Ownership,
    pub on_conflict: OnConflict,
    /// Is told, often, how many steps of how many are done.
    pub progress: &'a dyn Fn(usize, usize),
}

impl Request<'_> {
    fn since(&self) -> Since<'_> {
        Since {
            stamp: self.stamp.as_ref(),
            own: self.own,
        }
    }
}

/// What becomes of the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// They stay as they are: files are copied.
    Keep,
    /// What is applied may be moved out of a single layer. Not for a layer
    /// that a snapshot refers to.
    Consume,
}

/// What a conflict does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnConflict {
    /// Nothing is applied.
    Refuse,
    /// All but what conflicts is applied.
    Skip,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The paths that are now as the layers showed them. After [`resume`]
    /// those of the interrupted call; a directory stands for all below it.
    pub applied: Vec<Vec<u8>>,
    /// What was left as it was, because the tree changed.
    pub conflicts: Vec<Conflict>,
    /// Nothing after [`resume`]: the next part may then report a conflict that
    /// is none.
    watched: Vec<conflict::Watched>,
}

impl Outcome {
    /// What the next part of the same changes must be told. Asked for when the
    /// preimages are where they stay: removing one changes the other names of
    /// the same file.
    pub fn own(&self, base: BorrowedFd<'_>) -> Result<Vec<Own>, ApplyError> {
        conflict::own(&self.watched, base).map_err(cannot_look)
    }
}

/// Why nothing, or not everything, was applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Nothing was changed.
    #[error("{}", conflict_text(.0))]
    Conflicts(Vec<Conflict>),
    /// An earlier call was interrupted; [`resume`] comes first.
    #[error(
        "an earlier apply was interrupted and is not finished\n  remedy: run the same command again"
    )]
    Pending,
    /// The journal has what is left to do.
    #[error("cannot {operation} {}: {source}\n  remedy: remove the cause and run the same command again; it continues where it stopped", printable(.path))]
    Step {
        operation: &'static str,
        path: Vec<u8>,
        source: io::Error,
    },
    #[error("cannot use the journal: {0}")]
    Journal(io::Error),
}

/// Applies those of `changes` for which `selected` is true, with the
/// directories that they need. A directory is removed only when all changes
/// below it are selected.
///
/// The changes must be those of `request.layers` over `request.base`.
pub fn apply(
    changes: &Changes,
    selected: &dyn Fn(&Change) -> bool,
    request: &Request<'_>,
    journal: &mut Journal,
) -> Result<Outcome, ApplyError> {
    if journal.is_pending() {
        return Err(ApplyError::Pending);
    }
    let all = changes.as_slice();
    let chosen: Vec<bool> = all.iter().map(selected).collect();
    let mut forbidden = vec![false; all.len()];
    let mut picked = select::close(all, &chosen, &forbidden);
    let conflicts = conflicts(all, &picked, request)?;
    if !conflicts.is_empty() {
        if request.on_conflict == OnConflict::Refuse {
            return Err(ApplyError::Conflicts(
                conflicts
                    .into_iter()
                    .map(|(_, conflict)| conflict)
                    .collect(),
            ));
        }
        for (index, _) in &conflicts {
            forbidden[*index] = true;
        }
        picked = select::close(all, &chosen, &forbidden);
    }
    let steps = plan::steps(changes, &picked, may_move(request));
    let mut outcome = Outcome {
        applied: Vec::new(),
        conflicts: conflicts
            .into_iter()
            .map(|(_, conflict)| conflict)
            .collect(),
        watched: Vec::new(),
    };
    if !steps.is_empty() {
        if !picked.iter().all(|picked| *picked) {
            let watched = conflict::watch(all, &picked, request.base, request.since());
            outcome.watched = watched.map_err(cannot_look)?;
        }
        journal.begin(steps).map_err(ApplyError::Journal)?;
        outcome
            .conflicts
            .extend(Worker::new(request, journal).run()?);
    }
    let lost = |path: &[u8]| {
        outcome
            .conflicts
            .iter()
            .any(|conflict| conflict.path == path)
    };
    outcome.applied = all
        .iter()
        .zip(picked)
        .filter(|(change, picked)| *picked && !change.paths().any(lost))
        .map(|(change, _)| change.path.clone())
        .collect();
    Ok(outcome)
}

/// Finishes what an interrupted [`apply`] began. The request must name the
/// same directories; selection and stamp no longer matter.
pub fn resume(request: &Request<'_>, journal: &mut Journal) -> Result<Outcome, ApplyError> {
    let mut applied: Vec<_> = journal.steps().iter().filter_map(brought).collect();
    applied.sort();
    let conflicts = match journal.is_pending() {
        true => Worker::new(request, journal).run()?,
        false => Vec::new(),
    };
    applied.retain(|path| !conflicts.iter().any(|conflict| conflict.path == *path));
    Ok(Outcome {
        applied,
        conflicts,
        watched: Vec::new(),
    })
}

fn cannot_look(source: io::Error) -> ApplyError {
    ApplyError::Step {
        operation: "look at",
        path: Vec::new(),
        source,
    }
}

fn brought(step: &Step) -> Option<Vec<u8>> {
    match step {
        Step::Make { path, .. }
        | Step::Put { path, .. }
        | Step::Link { path, .. }
        | Step::Remove { path, .. } => Some(path.clone()),
        _ => None,
    }
}

fn conflicts(
    all: &[Change],
    picked: &[bool],
    request: &Request<'_>,
) -> Result<Vec<(usize, Conflict)>, ApplyError> {
    let mut conflicts = Vec::new();
    for (index, change) in all.iter().enumerate().filter(|(index, _)| picked[*index]) {
        let reason = conflict::of(change, request.base, request.since());
        let reason = reason.map_err(|source| ApplyError::Step {
            operation: "look at",
            path: change.path.clone(),
            source,
        })?;
        if let Some(reason) = reason {
            let path = match &change.kind {
                ChangeKind::Renamed { from } if reason != ConflictReason::Made => from,
                _ => &change.path,
            };
            let path = path.clone();
            conflicts.push((index, Conflict { path, reason }));
        }
    }
    Ok(conflicts)
}

/// Whether files can be moved from the layer: it is given up, nothing lies
/// between it and the tree, and both are in the same mount.
fn may_move(request: &Request<'_>) -> bool {
    match request.layers {
        [layer] => {
            request.ownership == Ownership::Consume
                && mount_of(*layer).is_some_and(|mount| Some(mount) == mount_of(request.base))
        }
        _ => false,
    }
}

/// Which mount and device a directory is in; `None` where the kernel does not
/// say (before 5.8).
fn mount_of(directory: BorrowedFd<'_>) -> Option<(u64, u32, u32)> {
    let flags = StatxFlags::MNT_ID;
    let status = rustix::fs::statx(directory, c"", AtFlags::EMPTY_PATH, flags).ok()?;
    let says = StatxFlags::from_bits_retain(status.stx_mask).contains(flags);
    says.then_some((
        status.stx_mnt_id,
        status.stx_dev_major,
        status.stx_dev_minor,
    ))
}

fn conflict_text(conflicts: &[Conflict]) -> String {
    const SHOWN_MAX: usize = 20;
    let mut text = format!(
        "{} of the paths to apply changed in the tree meanwhile; nothing was applied:",
        conflicts.len()
    );
    for conflict in conflicts.iter().take(SHOWN_MAX) {
        let path = printable(&conflict.path);
        text.push_str(&format!("\n  {path} {}", conflict.reason.words()));
    }
    if conflicts.len() > SHOWN_MAX {
        text.push_str(&format!("\n  and {} more", conflicts.len() - SHOWN_MAX));
    }
    text.push_str("\n  remedy: --skip-conflicts applies the rest");
    text
}
