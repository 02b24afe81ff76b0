//! What one run has in the store: its own layer, and what is known of it.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fgetxattr,
    flistxattr, fsetxattr, fstat, mkdirat, renameat, syncfs, utimensat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use stockade_policy::path::{AbsolutePath, printable};

use crate::apply::{Own, Stamp};
use crate::measure::{Usage, measure};
use crate::store::directory::{self, Hold, LETTING_GO_MAX, Lock};
use crate::store::{Store, StoreError, read_record, record_text, system, write_record};

/// Version of the records.
pub const VERSION: u32 = 1;

const META: &str = "meta.json";
const UPPER: &str = "upper";
const WORK: &str = "work";
const STAMP: &str = "stamp";
/// Attributes of overlayfs itself, which are never copied.
const OVERLAY_ATTRIBUTES: &[u8] = b"user.overlay.";

/// What happens with the layer when the run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It waits for a person.
    Review,
    /// It goes with the run.
    Discard,
}

/// How the last command in a layer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    pub exit_code: i32,
}

/// What is known of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunMeta {
    pub version: u32,
    pub id: String,
    /// A name that a person gave.
    pub name: Option<String>,
    pub fate: Fate,
    /// Milliseconds since 1970.
    pub started_ms: u64,
    /// When the run began, or the snapshot that it began from: what changed
    /// later in the tree, changed underneath.
    pub stamp: Stamp,
    /// Ids of the frozen layers below its own, the topmost first.
    pub layers: Vec<String>,
    /// The snapshot that it began from.
    pub snapshot: Option<String>,
    /// The last command, printable.
    pub command: Vec<String>,
    /// `None` while it runs, and when it was killed.
    pub ended: Option<Ended>,
    /// The own layer as last measured.
    pub usage: Option<Usage>,
    /// The layer that its own one is becoming.
    #[serde(default)]
    pub freezing: Option<String>,
    /// The layer that takes old versions while it is applied.
    #[serde(default)]
    pub preimages: Option<String>,
    /// What applying a part of it changed in the tree besides.
    #[serde(default)]
    pub own: Vec<Own>,
    /// The boot of the machine in which the own layer was written to, until
    /// all of that is on the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsynced: Option<String>,
}

/// What a new run begins with.
#[derive(Clone, Debug)]
pub struct NewRun {
    pub id: String,
    pub name: Option<String>,
    pub fate: Fate,
    pub layers: Vec<String>,
    pub snapshot: Option<String>,
    /// That of the snapshot; now when `None`.
    pub stamp: Option<Stamp>,
    pub command: Vec<String>,
    /// Whether a command begins in it at once. Then nothing waits for the
    /// disk: until [`Run::reach_disk`] the layer is of no use after a crash of
    /// the machine.
    pub begins: bool,
}

/// One run of the store.
#[derive(Debug)]
pub struct Run {
    runs: OwnedFd,
    directory: OwnedFd,
    meta: RunMeta,
    lock: Option<Lock>,
}

/// Makes the directories of a run. The record comes last: without it there is
/// no run, and what is there is cleared away some time.
pub(crate) fn create(store: &Store, new: NewRun) -> Result<Run, StoreError> {
    crate::store::check_name(&new.id)?;
    let failed = system("make the layer of the run");
    let runs = store.part("runs")?;
    match mkdirat(&runs, new.id.as_str(), Mode::RWXU) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Err(StoreError::Exists { name: new.id }),
        Err(error) => return Err(failed(error.into())),
    }
    let run_directory = directory::open_private(runs.as_fd(), &new.id).map_err(&failed)?;
    let lock = directory::try_lock_directory(run_directory.as_fd()).map_err(&failed)?;
    let meta = RunMeta {
        version: VERSION,
        id: new.id,
        name: new.name,
        fate: new.fate,
        started_ms: now_ms(),
        stamp: match new.stamp {
            Some(stamp) => stamp,
            None => Stamp::take(run_directory.as_fd(), STAMP).map_err(&failed)?,
        },
        layers: new.layers,
        snapshot: new.snapshot,
        command: new.command,
        ended: None,
        usage: None,
        freezing: None,
        preimages: None,
        own: Vec::new(),
        unsynced: match new.begins {
            true => Some(boot().map_err(&failed)?),
            false => None,
        },
    };
    let run = Run {
        runs,
        directory: run_directory,
        meta,
        lock,
    };
    run.make_layer(store).map_err(&failed)?;
    let text = record_text(&run.meta)?;
    let write = match new.begins {
        true => directory::write_soon,
        false => directory::write_whole,
    };
    write(run.directory.as_fd(), META, &text).map_err(&failed)?;
    Ok(run)
}

/// Opens a run; `None` when it is not there, or not whole.
pub(crate) fn open(
    store: &Store,
    runs: BorrowedFd<'_>,
    name: &str,
) -> Result<Option<Run>, StoreError> {
    let failed = system("open a run of the store");
    let Some(directory) = directory::open_private_if_there(runs, name).map_err(&failed)? else {
        return Ok(None);
    };
    let Some(meta) = read_record::<RunMeta>(directory.as_fd(), META)? else {
        return Ok(None);
    };
    if meta.version != VERSION {
        return Err(StoreError::Malformed {
            what: format!("run {}", printable(name.as_bytes())),
            path: store.path().to_string(),
            reason: format!("it is of version {}", meta.version),
        });
    }
    let mut run = Run {
        runs: store.part("runs")?,
        directory,
        meta,
        lock: None,
    };
    if run.meta.freezing.is_some() && !run.is_in_use()? {
        run.finish_freezing(store)?;
    }
    Ok(Some(run))
}

impl Run {
    pub fn meta(&self) -> &RunMeta {
        &self.meta
    }

    /// Keeps other processes from using the run while this value lives.
    pub fn take(&mut self) -> Result<(), StoreError> {
        match self.take_within(LETTING_GO_MAX)? {
            true => Ok(()),
            false => Err(StoreError::Busy {
                name: self.meta.id.clone(),
            }),
        }
    }

    /// The same; `false` when a process uses it.
    pub(crate) fn try_take(&mut self) -> Result<bool, StoreError> {
        self.take_within(Duration::ZERO)
    }

    fn take_within(&mut self, patience: Duration) -> Result<bool, StoreError> {
        if self.lock.is_none() {
            let own = self.directory.as_fd();
            let lock = directory::lock_directory_within(own, Hold::Alone, patience);
            self.lock = lock.map_err(system("lock the run"))?;
        }
        Ok(self.lock.is_some())
    }

    /// Whether a process uses it: its command runs, or it is being applied.
    pub fn is_in_use(&self) -> Result<bool, StoreError> {
        if self.lock.is_some() {
            return Ok(true);
        }
        let lock = directory::try_lock_directory(self.directory.as_fd());
        Ok(lock.map_err(system("lock the run"))?.is_none())
    }

    /// The layers below its own as they are now: another process may have
    /// merged some.
    pub(crate) fn current_layers(&self) -> Result<Vec<String>, StoreError> {
        let meta = read_record::<RunMeta>(self.directory.as_fd(), META)?;
        Ok(meta.map_or_else(|| self.meta.layers.clone(), |meta| meta.layers))
    }

    /// The own layer.
    pub fn upper(&self) -> Result<OwnedFd, StoreError> {
        directory::open_directory(self.directory.as_fd(), UPPER.as_bytes())
            .map_err(system("open the layer of the run"))
    }

    /// Where the own layer and the working directory of overlayfs are, links
    /// resolved.
    pub fn places(&self) -> Result<(AbsolutePath, AbsolutePath), StoreError> {
        let failed = system("find the layer of the run");
        let place = |name: &str| {
            let directory = directory::open_directory(self.directory.as_fd(), name.as_bytes())?;
            let path = directory::path_of(directory.as_fd())?;
            AbsolutePath::parse(path).map_err(io::Error::other)
        };
        Ok((
            place(UPPER).map_err(&failed)?,
            place(WORK).map_err(&failed)?,
        ))
    }

    /// The directory of the run, for what applying it keeps there.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Records that a command begins in the own layer, over `layers`: those
    /// that it has, or what they were before some were merged.
    pub fn begin(&mut self, command: Vec<String>, layers: Vec<String>) -> Result<(), StoreError> {
        self.check_whole()?;
        let failed = system("make the layer of the run");
        let boot = boot().map_err(&failed)?;
        // An overlay that did not wait for the disk is not mounted again on
        // what it left in its working directory.
        directory::remove_tree(self.directory.as_fd(), WORK).map_err(&failed)?;
        mkdirat(&self.directory, WORK, Mode::RWXU).map_err(|error| failed(error.into()))?;
        // On the disk before anything is written to the layer.
        self.update(|meta| {
            meta.command = command;
            meta.layers = layers;
            meta.ended = None;
            meta.unsynced = Some(boot);
        })
    }

    /// Refuses a layer of which a crash of the machine may have lost a part:
    /// files in it may be empty or missing that the command had written.
    pub fn check_whole(&self) -> Result<(), StoreError> {
        let Some(written_in) = &self.meta.unsynced else {
            return Ok(());
        };
        if *written_in == boot().map_err(system("find out when the machine was started"))? {
            return Ok(());
        }
        let id = &self.meta.id;
        Err(StoreError::Refused(format!(
            "the machine was started anew before all that run {id} wrote was on the disk, so files in \
             it may be empty or missing\n  remedy: look at it with `stockade diff {id}`; `stockade apply \
             --incomplete {id}` takes it as it is, `stockade discard {id}` drops it"
        )))
    }

    /// Waits until all that was written to the own layer is on the disk.
    pub fn reach_disk(&mut self) -> Result<(), StoreError> {
        if self.meta.unsynced.is_none() {
            return Ok(());
        }
        self.sync()?;
        self.update(|meta| meta.unsynced = None)
    }

    /// As [`Run::reach_disk`], for who must keep nobody from using the run:
    /// what is used meanwhile is left for the next time.
    pub(crate) fn reach_disk_beside(&mut self, store: &Store) -> Result<(), StoreError> {
        if self.meta.unsynced.is_none() || self.check_whole().is_err() || self.is_in_use()? {
            return Ok(());
        }
        self.sync()?;
        let _lock = store.lock()?;
        let now = read_record::<RunMeta>(self.directory.as_fd(), META)?;
        let is_as_before = now.as_ref() == Some(&self.meta);
        if is_as_before && self.take().is_ok() {
            self.update(|meta| meta.unsynced = None)?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), StoreError> {
        let failed = system("bring the layer of the run to the disk");
        syncfs(self.upper()?).map_err(|error| failed(error.into()))
    }

    /// Records how the command ended and what the layer takes up now.
    pub fn end(&mut self, exit_code: i32, usage: Usage) -> Result<(), StoreError> {
        self.change(|meta| {
            meta.ended = Some(Ended {
                at_ms: now_ms(),
                exit_code,
            });
            meta.usage = Some(usage);
        })?;
        // It reaches the disk with the layer.
        let text = record_text(&self.meta)?;
        directory::write_soon(self.directory.as_fd(), META, &text)
            .map_err(system("write the record of the run"))
    }

    /// Records what is left of the own layer after a part was applied.
    pub(crate) fn measure_again(&mut self, own: &[Own]) -> Result<(), StoreError> {
        let usage = self.measure()?;
        self.update(|meta| {
            meta.usage = Some(usage);
            let again = |old: &Own| own.iter().any(|new| new.is_of_same(old));
            meta.own.retain(|old| !again(old));
            meta.own.extend_from_slice(own);
        })
    }

    /// What the own layer takes up.
    pub fn measure(&self) -> Result<Usage, StoreError> {
        let upper = self.upper()?;
        measure(upper.as_fd()).map_err(system("measure the layer of the run"))
    }

    /// Changes what is recorded.
    pub(crate) fn update(&mut self, change: impl FnOnce(&mut RunMeta)) -> Result<(), StoreError> {
        self.change(change)?;
        self.write()
    }

    /// Another process may have put a layer under the run meanwhile, so the
    /// record is read again first.
    fn change(&mut self, change: impl FnOnce(&mut RunMeta)) -> Result<(), StoreError> {
        if let Some(meta) = read_record(self.directory.as_fd(), META)? {
            self.meta = meta;
        }
        change(&mut self.meta);
        Ok(())
    }

    /// Takes the own layer away, as a directory named `name` in `to`.
    pub(crate) fn move_layer(&self, to: BorrowedFd<'_>, name: &str) -> Result<(), StoreError> {
        renameat(&self.directory, UPPER, to, name)
            .map_err(|error| system("freeze the layer of the run")(error.into()))
    }

    /// Finishes what makes the own layer a frozen one, from wherever it was
    /// interrupted.
    pub(crate) fn finish_freezing(&mut self, store: &Store) -> Result<(), StoreError> {
        let Some(id) = self.meta.freezing.clone() else {
            return Ok(());
        };
        let is_moved = store.layer_tree(&id).is_ok();
        // The new layer first: what is recorded as finished must be there.
        if is_moved {
            self.meta.layers.insert(0, id.clone());
        }
        self.make_layer(store)
            .map_err(system("make the layer of the run"))?;
        self.update(|meta| {
            if is_moved {
                meta.layers.insert(0, id);
                meta.usage = None;
            }
            meta.freezing = None;
        })
    }

    /// Empties the own layer.
    pub(crate) fn clear(&mut self, store: &Store) -> Result<(), StoreError> {
        let failed = system("clear the layer of the run");
        let trash = format!(".trash-{}", directory::random_name().map_err(&failed)?);
        match renameat(&self.directory, UPPER, &self.directory, trash.as_str()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(failed(error.into())),
        }
        self.make_layer(store).map_err(&failed)?;
        let stamp = Stamp::take(self.directory.as_fd(), STAMP).map_err(&failed)?;
        self.update(|meta| {
            meta.stamp = stamp;
            meta.own.clear();
            meta.usage = None;
            meta.ended = None;
        })?;
        directory::remove_tree(self.directory.as_fd(), &trash).map_err(&failed)
    }

    /// Removes the run and everything in it.
    pub fn remove(self) -> Result<(), StoreError> {
        let (runs, trash) = self.set_aside()?;
        directory::remove_tree(runs.as_fd(), &trash).map_err(system("remove the run"))
    }

    /// The first step of that: no half of it is ever taken for a run. Returns what
    /// is left to remove, by its parent and its name.
    pub(crate) fn set_aside(mut self) -> Result<(OwnedFd, String), StoreError> {
        self.take()?;
        let failed = system("remove the run");
        let trash = format!(".trash-{}", directory::random_name().map_err(&failed)?);
        renameat(
            &self.runs,
            self.meta.id.as_str(),
            &self.runs,
            trash.as_str(),
        )
        .map_err(|error| failed(error.into()))?;
        Ok((self.runs, trash))
    }

    fn write(&self) -> Result<(), StoreError> {
        write_record(self.directory.as_fd(), META, &self.meta)
    }

    /// Makes what is missing of the own layer and overlayfs's directory. The
    /// layer's root is the root of the workspace inside, so it looks like what
    /// is below it.
    pub(crate) fn make_layer(&self, store: &Store) -> io::Result<()> {
        for name in [WORK, UPPER] {
            match mkdirat(&self.directory, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let upper = directory::open_directory(self.directory.as_fd(), UPPER.as_bytes())?;
        let below = match self.meta.layers.first() {
            Some(layer) => store.layer_tree(layer).map_err(io::Error::other)?,
            None => open_workspace(store)?,
        };
        resemble(below.as_fd(), upper.as_fd())
    }
}

fn open_workspace(store: &Store) -> io::Result<OwnedFd> {
    crate::tree_root(store.workspace())
}

/// Gives a directory the owner, mode, attributes and times of another one.
pub(crate) fn resemble(like: BorrowedFd<'_>, own: BorrowedFd<'_>) -> io::Result<()> {
    let (wanted, is) = (fstat(like)?, fstat(own)?);
    if (wanted.st_uid, wanted.st_gid) != (is.st_uid, is.st_gid) {
        let (owner, group) = (Uid::from_raw(wanted.st_uid), Gid::from_raw(wanted.st_gid));
        match chownat(own, "", Some(owner), Some(group), AtFlags::EMPTY_PATH) {
            // An ordinary user cannot give a directory away; who may write the
            // workspace may write it all the same.
            Ok(()) | Err(Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
    }
    fchmod(own, Mode::from_raw_mode(wanted.st_mode & 0o7777))?;
    copy_attributes(like, own)?;
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: wanted.st_atime as _,
            tv_nsec: wanted.st_atime_nsec as _,
        },
        last_modification: Timespec {
            tv_sec: wanted.st_mtime as _,
            tv_nsec: wanted.st_mtime_nsec as _,
        },
    };
    Ok(utimensat(own, ".", &times, AtFlags::empty())?)
}

/// Copies extended attributes, access control lists among them, as far as the
/// file systems allow it.
fn copy_attributes(like: BorrowedFd<'_>, own: BorrowedFd<'_>) -> io::Result<()> {
    // Most have none, and room for all that there may be is 64 KiB.
    let mut none = [0u8; 0];
    match flistxattr(like, &mut none[..]) {
        Ok(0) | Err(Errno::NOTSUP) => return Ok(()),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    let mut names = vec![0u8; 64 << 10];
    let length = flistxattr(like, &mut names[..])?;
    for name in names[..length].split_inclusive(|&byte| byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else {
            continue;
        };
        if name.to_bytes().starts_with(OVERLAY_ATTRIBUTES) {
            continue;
        }
        let mut value = vec![0u8; 64 << 10];
        let Ok(length) = fgetxattr(like, name, &mut value[..]) else {
            continue;
        };
        let set = fsetxattr(own, name, &value[..length], XattrFlags::empty());
        if let Err(error) = set
            && !matches!(error, Errno::NOTSUP | Errno::PERM | Errno::ACCESS)
        {
            return Err(error.into());
        }
    }
    Ok(())
}

/// Which boot of the machine this is (random(4)).
fn boot() -> io::Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim_end().to_owned())
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
