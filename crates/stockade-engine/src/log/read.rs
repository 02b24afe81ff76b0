//! Reading and following the log.
//!
//! A reader takes the lock only to open all files at one moment, with their
//! sizes; what lies within these never changes, so it is read without a lock.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::OFlags;
use stockade_policy::path::printable;

use super::{BOUNDS, Bounds, LOCK, LogError, NEWEST, READ_BYTES_MAX, rotated_name};
use crate::events::Record;
use crate::state::{LockKind, StateDirectory};

/// Which records are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only of the run whose id starts so; `None` for all.
    pub run: Option<String>,
}

/// One line of the log as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A record, and the line as it is stored, without its newline.
    Record { record: Box<Record>, line: String },
    /// A line that is no record of this version; never filtered away.
    Unreadable {
        /// Name of the file in the state directory.
        file: String,
        /// 1 for the first line.
        line: u64,
        /// Its beginning, printable.
        text: String,
    },
}

/// Reads all that is in the log now, oldest first.
pub fn read(state: &StateDirectory, filter: Filter) -> Result<Records, LogError> {
    let segments = snapshot(state, BOUNDS)?;
    Ok(Records {
        state: state.clone(),
        filter,
        segments: segments.into(),
        ready: VecDeque::new(),
        last: None,
    })
}

/// The records of one moment; see [`read`].
#[derive(Debug)]
pub struct Records {
    state: StateDirectory,
    filter: Filter,
    segments: VecDeque<Segment>,
    ready: VecDeque<Entry>,
    last: Option<Position>,
}

impl Records {
    /// Goes on with what is added after the moment of [`read`], whether or
    /// not all of these records were taken.
    pub fn follow(mut self) -> Follow {
        if let Some(segment) = self.segments.pop_back() {
            let line = 0;
            let offset = segment.size;
            self.last = Some(Position {
                segment,
                offset,
                line,
            });
        }
        Follow {
            state: self.state,
            filter: self.filter,
            position: self.last,
        }
    }
}

impl Iterator for Records {
    type Item = Result<Entry, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Some(Ok(entry));
            }
            let mut position = Position::start(self.segments.pop_front()?);
            match position.entries(&self.state, &self.filter) {
                Ok(entries) => self.ready = entries.into(),
                Err(error) => return Some(Err(error)),
            }
            self.last = Some(position);
        }
    }
}

/// What is added to the log from some moment on; see [`Records::follow`].
#[derive(Debug)]
pub struct Follow {
    state: StateDirectory,
    filter: Filter,
    position: Option<Position>,
}

impl Follow {
    /// What was added since the last call; does not wait.
    pub fn poll(&mut self) -> Result<Vec<Entry>, LogError> {
        let segments = snapshot(&self.state, BOUNDS)?;
        // The position keeps its file open, so that its inode number cannot
        // belong to another file.
        let known = self.position.as_ref().and_then(|position| {
            segments
                .iter()
                .position(|segment| segment.identity == position.segment.identity)
        });
        let mut entries = Vec::new();
        for segment in segments.into_iter().skip(known.unwrap_or(0)) {
            match &mut self.position {
                Some(position) if position.segment.identity == segment.identity => {
                    position.segment = segment;
                }
                position => *position = Some(Position::start(segment)),
            }
            if let Some(position) = &mut self.position {
                entries.extend(position.entries(&self.state, &self.filter)?);
            }
        }
        Ok(entries)
    }
}

/// One file of the log as it was at one moment.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) name: String,
    file: File,
    size: u64,
    /// Device and inode.
    identity: (u64, u64),
}

impl Segment {
    /// Its bytes from `offset` up to the size of that moment.
    pub(super) fn bytes(&self, state: &StateDirectory, offset: u64) -> Result<Vec<u8>, LogError> {
        let path = || state.path_of(&self.name).to_string();
        if self.size > READ_BYTES_MAX {
            let reason = "it is larger than stockade lets it grow".to_owned();
            return Err(LogError::Damaged {
                path: path(),
                reason,
            });
        }
        let length = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length];
        self.file
            .read_exact_at(&mut bytes, offset)
            .map_err(|source| LogError::System {
                operation: "read",
                path: path(),
                source,
            })?;
        Ok(bytes)
    }
}

/// Opens all files, oldest first.
pub(super) fn snapshot(state: &StateDirectory, bounds: Bounds) -> Result<Vec<Segment>, LogError> {
    let _lock = state.lock(LOCK, LockKind::Shared)?;
    let rotated = (1..=bounds.rotated_files_max).rev().map(rotated_name);
    let mut segments = Vec::new();
    for name in rotated.chain([NEWEST.to_owned()]) {
        let Some(file) = state.open_existing(&name, OFlags::RDONLY)? else {
            continue;
        };
        let status = file.metadata().map_err(|source| LogError::System {
            operation: "inspect",
            path: state.path_of(&name).to_string(),
            source,
        })?;
        let identity = (status.dev(), status.ino());
        segments.push(Segment {
            name,
            file,
            size: status.len(),
            identity,
        });
    }
    Ok(segments)
}

/// How far one file has been read.
#[derive(Debug)]
struct Position {
    segment: Segment,
    offset: u64,
    /// Lines read so far.
    line: u64,
}

impl Position {
    fn start(segment: Segment) -> Self {
        Self {
            segment,
            offset: 0,
            line: 0,
        }
    }

    /// Takes the whole lines up to the segment's size; a line that is not
    /// finished yet is left for the next time.
    fn entries(&mut self, state: &StateDirectory, filter: &Filter) -> Result<Vec<Entry>, LogError> {
        let bytes = self.segment.bytes(state, self.offset)?;
        let mut entries = Vec::new();
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            let Some(text) = line.strip_suffix(b"\n") else {
                break;
            };
            self.offset += line.len() as u64;
            self.line += 1;
            entries.extend(self.entry(text, filter));
        }
        Ok(entries)
    }

    fn entry(&self, line: &[u8], filter: &Filter) -> Option<Entry> {
        let (Ok(record), Ok(text)) = (Record::from_line(line), std::str::from_utf8(line)) else {
            let shown = &line[..line.len().min(120)];
            return Some(Entry::Unreadable {
                file: self.segment.name.clone(),
                line: self.line,
                text: printable(shown),
            });
        };
        let wanted = match (&filter.run, &record.run) {
            (None, _) => true,
            (Some(prefix), Some(run)) => run.as_str().starts_with(prefix.as_str()),
            (Some(_), None) => false,
        };
        wanted.then(|| Entry::Record {
            record: Box::new(record),
            line: text.to_owned(),
        })
    }
}
