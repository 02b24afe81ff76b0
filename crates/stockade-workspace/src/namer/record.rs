//! What the namer tells the supervisor: each guarded name once, and at the end
//! how much was changed.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stockade_sys::message::{self, Wait};

use super::judge::Ruling;
use super::place::{Area, below};
use crate::holds::Operation;

/// Names that are remembered to be counted; what is changed beyond them is
/// counted without being told apart.
const NAMES_MAX: usize = 200_000;
/// Guarded names that are told one by one.
const NOTES_MAX: usize = 1_000;

/// One packet of the channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    Noted(Noted),
    /// Something that was told is no longer so.
    Withdrawn {
        hold: String,
    },
    Tally(Tally),
}

/// A guarded name that the run touched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    pub what: What,
    /// Bytes of the path.
    pub path: Vec<u8>,
    pub kind: String,
    pub rule: String,
    pub reason: String,
    /// Id of the hold.
    pub hold: Option<String>,
    /// Keys of a git configuration that make git run something.
    pub keys: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Kept aside; the tree is as it was.
    Held,
    /// Removed; a copy is kept.
    Removed,
    /// Refused.
    Refused,
    /// Done.
    Reported,
}

/// How much a run changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    pub created: u64,
    pub changed: u64,
    pub removed: u64,
    /// Size of what was created or changed, in bytes.
    pub bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Created,
    Changed,
    Removed,
}

pub(super) struct Record {
    channel: OwnedFd,
    areas: Arc<[Area]>,
    names: BTreeMap<Vec<u8>, Fate>,
    /// Beyond [`NAMES_MAX`].
    more: Tally,
    /// Hold of each path: what is written, what was removed.
    writes: BTreeMap<Vec<u8>, String>,
    removals: BTreeMap<Vec<u8>, String>,
    told: BTreeSet<(What, Vec<u8>)>,
}

impl Record {
    pub(super) fn new(channel: OwnedFd, areas: Arc<[Area]>) -> Self {
        Self {
            channel,
            areas,
            names: BTreeMap::new(),
            more: Tally::default(),
            writes: BTreeMap::new(),
            removals: BTreeMap::new(),
            told: BTreeSet::new(),
        }
    }

    pub(super) fn created(&mut self, path: &[u8]) {
        match self.names.get_mut(path) {
            // Removed and made again.
            Some(fate @ Fate::Removed) => *fate = Fate::Changed,
            Some(_) => {}
            None => self.remember(path, Fate::Created),
        }
    }

    pub(super) fn changed(&mut self, path: &[u8]) {
        if !self.names.contains_key(path) {
            self.remember(path, Fate::Changed);
        }
    }

    pub(super) fn removed(&mut self, path: &[u8]) {
        match self.names.get_mut(path) {
            Some(Fate::Created) => {
                self.names.remove(path);
            }
            Some(fate) => *fate = Fate::Removed,
            None => self.remember(path, Fate::Removed),
        }
    }

    pub(super) fn moved(&mut self, from: &[u8], to: &[u8], directory: bool) {
        if directory {
            let inside = [from, b"/"].concat();
            let moving: Vec<(Vec<u8>, Fate)> = self
                .names
                .range(inside.clone()..)
                .take_while(|(name, _)| name.starts_with(&inside))
                .map(|(name, fate)| (name.clone(), *fate))
                .collect();
            for (name, fate) in moving {
                self.names.remove(&name);
                let renamed = [to, &name[from.len()..]].concat();
                self.names.insert(renamed, fate);
            }
        }
        self.removed(from);
        self.created(to);
    }

    /// Whether this run made it.
    pub(super) fn is_new(&self, path: &[u8]) -> bool {
        self.names.get(path) == Some(&Fate::Created)
    }

    pub(super) fn hold_of(&self, path: &[u8]) -> Option<&str> {
        self.writes.get(path).map(String::as_str)
    }

    /// The writes that are held, with their paths.
    pub(super) fn writes(&self) -> Vec<(Vec<u8>, String)> {
        let writes = self.writes.iter();
        writes
            .map(|(path, id)| (path.clone(), id.clone()))
            .collect()
    }

    pub(super) fn removal_of(&self, path: &[u8]) -> Option<&str> {
        self.removals.get(path).map(String::as_str)
    }

    pub(super) fn note_held(&mut self, path: &[u8], rule: &Ruling, id: &str, operation: Operation) {
        let (held, what) = match operation {
            Operation::Remove => (&mut self.removals, What::Removed),
            _ => (&mut self.writes, What::Held),
        };
        held.insert(path.to_vec(), id.to_owned());
        self.tell(what, path, rule, Some(id));
    }

    pub(super) fn note_reported(&mut self, path: &[u8], rule: &Ruling) {
        self.tell(What::Reported, path, rule, None);
    }

    pub(super) fn note_refused(&mut self, path: &[u8], rule: &Ruling) {
        self.tell(What::Refused, path, rule, None);
    }

    pub(super) fn forget(&mut self, id: &str) {
        for (held, what) in [
            (&mut self.writes, What::Held),
            (&mut self.removals, What::Removed),
        ] {
            let gone: Vec<Vec<u8>> = held
                .iter()
                .filter(|(_, one)| *one == id)
                .map(|(path, _)| path.clone())
                .collect();
            for path in gone {
                held.remove(&path);
                self.told.remove(&(what, path));
            }
        }
        self.send(&Message::Withdrawn {
            hold: id.to_owned(),
        });
    }

    /// The last message.
    pub(super) fn finish(&mut self) {
        let mut tally = self.more;
        for (path, fate) in &self.names {
            match fate {
                Fate::Created => tally.created += 1,
                Fate::Changed => tally.changed += 1,
                Fate::Removed => tally.removed += 1,
            }
            if *fate != Fate::Removed
                && let Ok(stat) = rustix::fs::lstat(&path[..])
                && crate::holds::is_regular(&stat)
            {
                tally.bytes += stat.st_size as u64;
            }
        }
        self.send(&Message::Tally(tally));
    }

    fn remember(&mut self, path: &[u8], fate: Fate) {
        let around = self
            .areas
            .iter()
            .filter(|area| below(area.path.as_bytes(), path).is_some());
        let nearest = around.max_by_key(|area| area.path.as_bytes().len());
        if nearest.is_none_or(|area| area.private) {
            return;
        }
        if self.names.len() < NAMES_MAX {
            self.names.insert(path.to_vec(), fate);
            return;
        }
        match fate {
            Fate::Created => self.more.created += 1,
            Fate::Changed => self.more.changed += 1,
            Fate::Removed => self.more.removed += 1,
        }
    }

    fn tell(&mut self, what: What, path: &[u8], rule: &Ruling, hold: Option<&str>) {
        let is_new = self.told.len() < NOTES_MAX && self.told.insert((what, path.to_vec()));
        if !is_new {
            return;
        }
        self.send(&Message::Noted(Noted {
            what,
            path: path.to_vec(),
            kind: rule.kind.clone(),
            rule: rule.id.clone(),
            reason: rule.reason.clone(),
            hold: hold.map(str::to_owned),
            keys: rule.keys.clone(),
        }));
    }

    /// A supervisor that is gone has killed this process, or is about to.
    fn send(&self, message: &Message) {
        if let Ok(bytes) = serde_json::to_vec(message) {
            let _gone = message::send(self.channel.as_fd(), &bytes, &[], Wait::Yes).is_err();
        }
    }
}
