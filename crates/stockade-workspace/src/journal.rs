//! What an interrupted apply had still to do.
//!
//! One file: first all steps, written and synced under another name before it
//! gets its own; then a line for each temporary name before it is made and for
//! each step that is done. A line that was cut off by a crash is not there.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::apply::Step;
use crate::text;
use crate::tree::{self, Identity};

/// The form of the file; another one is refused.
const VERSION: u32 = 1;
/// Most bytes that are read back.
const BYTES_MAX: u64 = 1 << 30;

/// The journal of one layer.
#[derive(Debug)]
pub struct Journal {
    directory: OwnedFd,
    name: String,
    file: Option<File>,
    steps: Vec<Step>,
    /// The first step that is not done.
    next: usize,
    /// The temporary name of the step that was begun.
    begun: Option<Begun>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    pub name: Vec<u8>,
    /// Known when the file of that name is complete.
    pub file: Option<Identity>,
}

#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    steps: Vec<Step>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Temporary(#[serde(with = "text")] Vec<u8>),
    Complete(Identity),
    Done(usize),
}

impl Journal {
    /// Opens the journal `name` in `directory`, whether or not there is one.
    pub fn open(directory: BorrowedFd<'_>, name: &str) -> io::Result<Self> {
        let mut journal = Self {
            directory: tree::open_directory(directory, b"")?,
            name: name.to_owned(),
            file: None,
            steps: Vec::new(),
            next: 0,
            begun: None,
        };
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&journal.directory, name, flags, Mode::empty()) {
            Ok(file) => journal.read(File::from(file))?,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(journal)
    }

    /// Whether an apply was interrupted, and [`crate::apply::resume`] must
    /// finish it before anything else is done with the layer or the tree.
    pub fn is_pending(&self) -> bool {
        self.file.is_some()
    }

    pub(crate) fn begin(&mut self, steps: Vec<Step>) -> io::Result<()> {
        let temporary = format!("{}.new", self.name);
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::TRUNC;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&self.directory, temporary.as_str(), flags, mode)?;
        let mut file = File::from(file);
        let header = Header {
            version: VERSION,
            steps,
        };
        let mut text = serde_json::to_vec(&header)?;
        text.push(b'\n');
        file.write_all(&text)?;
        file.sync_data()?;
        let (from, to) = (temporary.as_str(), self.name.as_str());
        rustix::fs::renameat(&self.directory, from, &self.directory, to)?;
        rustix::fs::fsync(&self.directory)?;
        self.steps = header.steps;
        self.next = 0;
        self.begun = None;
        self.file = Some(file);
        Ok(())
    }

    /// The step to do next, unless all are done.
    pub(crate) fn step(&self) -> Option<Step> {
        self.steps.get(self.next).cloned()
    }

    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    pub(crate) fn begun(&self) -> Option<&Begun> {
        self.begun.as_ref()
    }

    /// Notes a temporary name before it is made.
    pub(crate) fn temporary(&mut self, name: &[u8]) -> io::Result<()> {
        self.write(&Line::Temporary(name.to_vec()))
    }

    /// Notes that the file of the temporary name is complete.
    pub(crate) fn complete(&mut self, file: Identity) -> io::Result<()> {
        self.write(&Line::Complete(file))
    }

    /// Notes that the step is done.
    pub(crate) fn done(&mut self) -> io::Result<()> {
        self.write(&Line::Done(self.next))
    }

    /// Removes the journal: all is done.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        rustix::fs::unlinkat(&self.directory, self.name.as_str(), AtFlags::empty())?;
        self.file = None;
        self.steps.clear();
        Ok(())
    }

    /// How many steps are done, of how many.
    pub(crate) fn position(&self) -> (usize, usize) {
        (self.next, self.steps.len())
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        match &mut self.file {
            Some(file) => file.write_all(&text)?,
            None => return Err(io::Error::other("the journal was not begun")),
        }
        self.follow(line);
        Ok(())
    }

    fn follow(&mut self, line: &Line) {
        match line {
            Line::Temporary(name) => {
                self.begun = Some(Begun {
                    name: name.clone(),
                    file: None,
                });
            }
            Line::Complete(identity) => {
                if let Some(begun) = &mut self.begun {
                    begun.file = Some(*identity);
                }
            }
            Line::Done(step) => {
                self.next = step + 1;
                self.begun = None;
            }
        }
    }

    fn read(&mut self, mut file: File) -> io::Result<()> {
        let mut text = Vec::new();
        Read::by_ref(&mut file)
            .take(BYTES_MAX)
            .read_to_end(&mut text)?;
        let complete = text
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |end| end + 1);
        let mut lines = text[..complete].split(|&byte| byte == b'\n');
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the journal is damaged");
        let header: Header = serde_json::from_slice(lines.next().ok_or_else(damaged)?)?;
        if header.version != VERSION {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the journal was written by another version of stockade",
            ));
        }
        self.steps = header.steps;
        for line in lines.filter(|line| !line.is_empty()) {
            self.follow(&serde_json::from_slice(line)?);
        }
        // What was cut off would run into the next line.
        if complete < text.len() {
            file.set_len(complete as u64)?;
        }
        self.file = Some(file);
        Ok(())
    }
}
