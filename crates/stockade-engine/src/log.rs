//! The event log: JSON lines in the state directory, each naming the SHA-256
//! of the line before it.
//!
//! Any number of processes append at once: each takes an advisory lock, reads
//! the last line, and adds whole lines in one write. There is no second file
//! that holds the head of the chain, because after a crash it could disagree
//! with the log; the last line is the head.
//!
//! A writer that dies in mid-line leaves a torn end. The next writer keeps the
//! torn bytes, records them in a [`Event::LogRepaired`] that names their hash
//! and the last whole record, and goes on; [`verify`] reports every tear.
//!
//! Appending does not call fsync(2). What was written survives the death of
//! any process, which is what a hostile command can bring about; only a power
//! failure loses the last seconds, and an fsync at each event (milliseconds)
//! would cost more than the whole sandbox.
//!
//! What the chain cannot show: whoever can write the state directory (never a
//! sandboxed command) can remove or change whole lines at the end of the
//! newest file, or write the chain anew from some line on. Only a copy of a
//! head hash kept elsewhere shows that, so [`Log::append`] and [`verify`]
//! return the head, and `verify` takes such an anchor.

mod read;
mod verify;

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::time::SystemTime;

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

pub use self::read::{Entry, Filter, Follow, Records, read};
pub use self::verify::{Broken, Tear, Verified, VerifyError, verify};
use crate::events::{Event, Hash, LINE_BYTES_MAX, LineError, Record, RunId, VERSION, time_text};
use crate::state::{LockKind, StateDirectory, StateError};

/// Size in bytes at which the newest file is rotated.
pub const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// How many rotated files are kept beside the newest.
pub const ROTATED_FILES_MAX: usize = 31;

/// Most bytes about what one run reaches: a quarter of what is kept. What runs inside chooses how much
/// there is to record of its requests, and must not be able to push out what other runs did, or
/// its own beginning.
pub const RUN_BYTES_MAX: u64 = (ROTATED_FILES_MAX as u64 + 1) * FILE_BYTES_MAX / 4;

const NEWEST: &str = "events.jsonl";
const LOCK: &str = "events.lock";

/// Events of one write; with [`LINE_BYTES_MAX`] it bounds how far a file can
/// grow over [`FILE_BYTES_MAX`].
const EVENTS_AT_ONCE: usize = 64;

/// No log file that stockade wrote is larger; a larger one is not read.
const READ_BYTES_MAX: u64 = FILE_BYTES_MAX + (EVENTS_AT_ONCE as u64 + 2) * LINE_BYTES_MAX as u64;

/// Why the log cannot be written or read. A run is refused then (AU1).
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(
        "cannot {operation} the event log {path} (AU1): {source}\n  remedy: check the free space \
         and the mount of that directory"
    )]
    System {
        operation: &'static str,
        path: String,
        source: io::Error,
    },
    #[error(
        "the event log {path} is damaged (AU1): {reason}\n  remedy: move the events*.jsonl files \
         of that directory elsewhere and keep them as evidence; a new log starts at the next run"
    )]
    Damaged { path: String, reason: String },
    #[error("an event cannot be encoded (AU1): {0}")]
    Encode(#[from] serde_json::Error),
}

/// What an append did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// SHA-256 of the last line now in the log: an anchor for [`verify`].
    pub head: Hash,
    /// Number of that line's record; 0 for an empty log.
    pub seq: u64,
    /// The end of the log was damaged, which is now recorded.
    pub repaired: bool,
    /// By how much the log grew.
    pub bytes: u64,
}

/// The log, opened for appending. It holds no lock between calls, and may be
/// shared by threads.
#[derive(Clone, Debug)]
pub struct Log {
    state: StateDirectory,
    bounds: Bounds,
}

/// When files are rotated and how many are kept.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    file_bytes_max: u64,
    rotated_files_max: usize,
}

const BOUNDS: Bounds = Bounds {
    file_bytes_max: FILE_BYTES_MAX,
    rotated_files_max: ROTATED_FILES_MAX,
};

impl Log {
    /// Makes the log when it is missing and finds the end of its chain, so
    /// that a log that cannot be used is known before anything runs.
    pub fn open(state: &StateDirectory) -> Result<Self, LogError> {
        let log = Self::at(state);
        let _lock = log.state.lock(LOCK, LockKind::Exclusive)?;
        log.end()?;
        Ok(log)
    }

    /// The log without looking at it: whether it can be used shows at the
    /// first [`append`](Self::append). For a run, which appends before it
    /// starts anything.
    pub fn at(state: &StateDirectory) -> Self {
        Self {
            state: state.clone(),
            bounds: BOUNDS,
        }
    }

    /// Adds the events in order, all as of `now` and all in one write unless
    /// they are more than 64. `run` is the run that they belong to.
    ///
    /// After an error nothing of the last write is left in the log.
    pub fn append(
        &self,
        run: Option<&RunId>,
        events: &[Event],
        now: SystemTime,
    ) -> Result<Appended, LogError> {
        let _lock = self.state.lock(LOCK, LockKind::Exclusive)?;
        let mut end = self.end()?;
        let repaired = end.repair.is_some();
        let time = time_text(now);
        let mut bytes = 0;
        for events in events.chunks(EVENTS_AT_ONCE) {
            let (after, added) = self.append_chunk(end, run, events, &time)?;
            end = after;
            bytes += added;
        }
        Ok(Appended {
            head: end.hash,
            seq: end.seq,
            repaired: repaired && !events.is_empty(),
            bytes,
        })
    }

    fn append_chunk(
        &self,
        end: End,
        run: Option<&RunId>,
        events: &[Event],
        time: &str,
    ) -> Result<(End, u64), LogError> {
        let End {
            mut file,
            mut size,
            seq,
            hash,
            repair,
        } = end;
        let mut lines = Lines {
            bytes: Vec::with_capacity(512),
            seq,
            hash,
            time,
        };
        // A tear stays in the file in which its repair is recorded.
        let may_rotate = repair.is_none();
        if let Some(repair) = repair {
            if repair.newline_is_missing {
                lines.bytes.push(b'\n');
            }
            lines.push(None, repair.event)?;
        }
        for event in events {
            lines.push(run, event.clone())?;
        }
        let grown = size + lines.bytes.len() as u64;
        if may_rotate && size > 0 && grown > self.bounds.file_bytes_max {
            self.rotate()?;
            file = self.open_newest()?;
            size = 0;
        }
        if let Err(source) = file.write_all(&lines.bytes) {
            // A full disk must not leave half a line. Should this fail too,
            // the next writer finds a torn end and records it.
            file.set_len(size).ok();
            return Err(self.failed("write", NEWEST, source));
        }
        let added = lines.bytes.len() as u64;
        let end = End {
            file,
            size: size + added,
            seq: lines.seq,
            hash: lines.hash,
            repair: None,
        };
        Ok((end, added))
    }

    /// Moves each file one number up, from the first free number down, so
    /// that a crash between two renames loses nothing and leaves the order.
    fn rotate(&self) -> Result<(), LogError> {
        let kept = self.bounds.rotated_files_max;
        let free = (1..=kept).find(|&number| !self.exists(&rotated_name(number)));
        for number in (1..=free.unwrap_or(kept)).rev() {
            let from = if number == 1 {
                NEWEST.to_owned()
            } else {
                rotated_name(number - 1)
            };
            // The oldest file is replaced only when no number is free.
            rustix::fs::renameat(&self.state, &from, &self.state, rotated_name(number))
                .map_err(|errno| self.failed("rotate", &from, errno.into()))?;
        }
        Ok(())
    }

    fn exists(&self, name: &str) -> bool {
        let status = rustix::fs::statat(&self.state, name, AtFlags::SYMLINK_NOFOLLOW);
        !matches!(status, Err(Errno::NOENT))
    }

    fn open_newest(&self) -> Result<File, LogError> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE;
        Ok(self.state.open_file(NEWEST, flags)?)
    }

    /// Finds the last record. The caller holds the lock.
    fn end(&self) -> Result<End, LogError> {
        let file = self.open_newest()?;
        let size = self.size(&file, NEWEST)?;
        if size == 0 {
            let (seq, hash) = self.end_of_rotated()?;
            return Ok(End {
                file,
                size,
                seq,
                hash,
                repair: None,
            });
        }
        if let Some((seq, hash)) = self.whole_last_line(&file, size, NEWEST)? {
            return Ok(End {
                file,
                size,
                seq,
                hash,
                repair: None,
            });
        }
        self.damaged_end(file, size)
    }

    /// Number and hash of the last record before the newest file.
    fn end_of_rotated(&self) -> Result<(u64, Hash), LogError> {
        for number in 1..=self.bounds.rotated_files_max {
            let name = rotated_name(number);
            let Some(file) = self.state.open_existing(&name, OFlags::RDONLY)? else {
                continue;
            };
            let size = self.size(&file, &name)?;
            // Only files with a whole last line are ever rotated.
            return self.whole_last_line(&file, size, &name)?.ok_or_else(|| {
                self.damaged(
                    &name,
                    "its last line is not whole; a rotated file never ends so",
                )
            });
        }
        Ok((0, Hash::ZERO))
    }

    /// Number and hash of the last line, when it is a whole record.
    fn whole_last_line(
        &self,
        file: &File,
        size: u64,
        name: &str,
    ) -> Result<Option<(u64, Hash)>, LogError> {
        // Most lines are short: one small read is nearly always enough.
        for window in [2048, LINE_BYTES_MAX as u64 + 1] {
            let start = size.saturating_sub(window);
            let mut bytes = vec![0; usize::try_from(size - start).unwrap_or(usize::MAX)];
            file.read_exact_at(&mut bytes, start)
                .map_err(|source| self.failed("read", name, source))?;
            let Some(body) = bytes.strip_suffix(b"\n") else {
                return Ok(None);
            };
            let line_start = match body.iter().rposition(|&byte| byte == b'\n') {
                Some(newline) => newline + 1,
                None if start == 0 => 0,
                None => continue,
            };
            let line = &bytes[line_start..];
            return match self.parse(line, name)? {
                Some(record) => Ok(Some((record.seq, Hash::of(line)))),
                None => Ok(None),
            };
        }
        Ok(None)
    }

    /// The record, `None` when the line is none, and an error for a later
    /// version's record, which must not be taken for damage.
    fn parse(&self, line: &[u8], name: &str) -> Result<Option<Record>, LogError> {
        match Record::from_line(line) {
            Ok(record) => Ok(Some(record)),
            Err(LineError::NotARecord) => Ok(None),
            Err(error @ LineError::LaterVersion { .. }) => {
                Err(self.damaged(name, &error.to_string()))
            }
        }
    }

    /// Finds the last whole record before a torn end, and what to record
    /// about the bytes after it.
    fn damaged_end(&self, file: File, size: u64) -> Result<End, LogError> {
        if size > READ_BYTES_MAX {
            return Err(self.damaged(NEWEST, "it is larger than stockade lets it grow"));
        }
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, 0)
            .map_err(|source| self.failed("read", NEWEST, source))?;
        let newline_is_missing = bytes.last() != Some(&b'\n');
        if newline_is_missing {
            bytes.push(b'\n');
        }
        let mut whole = None;
        let mut damage_start = bytes.len();
        let mut last_line = None;
        for line in bytes.split_inclusive(|&byte| byte == b'\n').rev() {
            last_line.get_or_insert(line);
            if let Some(record) = self.parse(line, NEWEST)? {
                whole = Some((record.seq, Hash::of(line)));
                break;
            }
            damage_start -= line.len();
        }
        let (seq, last_whole) = match whole {
            Some(whole) => whole,
            None => self.end_of_rotated()?,
        };
        let damage = &bytes[damage_start..];
        let event = Event::LogRepaired {
            damaged_bytes: damage.len() as u64,
            damaged_sha256: Hash::of(damage),
            last_whole,
        };
        let hash = last_line.map_or(last_whole, Hash::of);
        let repair = Some(Repair {
            newline_is_missing,
            event,
        });
        Ok(End {
            file,
            size,
            seq,
            hash,
            repair,
        })
    }

    fn size(&self, file: &File, name: &str) -> Result<u64, LogError> {
        let status = file
            .metadata()
            .map_err(|source| self.failed("inspect", name, source))?;
        Ok(status.len())
    }

    fn failed(&self, operation: &'static str, name: &str, source: io::Error) -> LogError {
        LogError::System {
            operation,
            path: self.state.path_of(name).to_string(),
            source,
        }
    }

    fn damaged(&self, name: &str, reason: &str) -> LogError {
        let path = self.state.path_of(name).to_string();
        LogError::Damaged {
            path,
            reason: reason.to_owned(),
        }
    }
}

/// Where the chain ends.
struct End {
    /// The newest file, opened for appending.
    file: File,
    size: u64,
    seq: u64,
    /// What the next line names as its previous line.
    hash: Hash,
    repair: Option<Repair>,
}

struct Repair {
    newline_is_missing: bool,
    event: Event,
}

/// Lines that are chained but not yet written.
struct Lines<'a> {
    bytes: Vec<u8>,
    seq: u64,
    hash: Hash,
    time: &'a str,
}

impl Lines<'_> {
    fn push(&mut self, run: Option<&RunId>, event: Event) -> Result<(), LogError> {
        let record = Record {
            version: VERSION,
            seq: self.seq + 1,
            time: self.time.to_owned(),
            run: run.cloned(),
            event,
            previous: self.hash,
        };
        let line = record.to_line()?;
        self.seq = record.seq;
        self.hash = Hash::of(&line);
        self.bytes.extend_from_slice(&line);
        Ok(())
    }
}

fn rotated_name(number: usize) -> String {
    format!("events.{number}.jsonl")
}

#[cfg(test)]
mod tests;
