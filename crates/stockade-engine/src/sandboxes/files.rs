//! Files of a sandbox that stays, as a caller reads and writes them.
//!
//! Everything is done by the agent inside, which can do what any command there
//! can, and nothing more. What comes out is believed as little as a command's
//! output: a name is one before it is used outside.

use std::io::{Read, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
pub use stockade_agent::files::Kind;
use stockade_agent::files::{self, Entry};
use stockade_agent::wire::{
    CHUNK_BYTES_MAX, FileRequest, Reply, Request, Stream, WINDOW_IN_BYTES, decode,
};
use stockade_sys::rustix;

use super::Name;
use super::call::{CallError, Connection};
use super::registry::Registry;
use super::wire::{FromCaller, ToCaller};

/// Why a file could not be read, written or made.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error(transparent)]
    Call(#[from] CallError),
    /// What the kernel inside said.
    #[error("{reason}: {error}")]
    Inside {
        reason: String,
        error: std::io::Error,
    },
    #[error("the sandbox ended: {0}")]
    Over(String),
    /// The end outside.
    #[error(transparent)]
    Outside(#[from] std::io::Error),
}

/// What a directory inside holds, as its sandbox says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub name: Vec<u8>,
    pub kind: Kind,
    /// Permission bits; never set-user-id and the like.
    pub mode: u32,
    pub bytes: u64,
    /// Seconds since 1970.
    pub modified: i64,
}

/// The files of one sandbox.
#[derive(Clone, Copy, Debug)]
pub struct Files<'a> {
    pub registry: &'a Registry,
    pub name: &'a Name,
}

impl Files<'_> {
    /// Writes the content of a regular file to `sink`; how many bytes it was.
    pub fn read(&self, path: &[u8], sink: &mut dyn Write) -> Result<u64, FileError> {
        let (offset, length) = (0, u64::MAX);
        let request = FileRequest::Read {
            path,
            offset,
            length,
        };
        self.perform(&request, &mut std::io::empty(), sink)
    }

    /// Makes what `source` gives the content of a regular file.
    pub fn write(&self, path: &[u8], mode: u32, source: &mut dyn Read) -> Result<(), FileError> {
        let how = stockade_agent::wire::Write::Replace;
        let request = FileRequest::Write { path, mode, how };
        self.perform(&request, source, &mut std::io::sink())
            .map(drop)
    }

    /// What is in a directory, but for names that no directory can have.
    pub fn list(&self, path: &[u8]) -> Result<Vec<Listed>, FileError> {
        let mut bytes = Vec::new();
        let request = FileRequest::List { path };
        self.perform(&request, &mut std::io::empty(), &mut bytes)?;
        let mut listed = Vec::new();
        let mut rest = &bytes[..];
        let broken = || std::io::Error::other("the sandbox lists what is no directory");
        while let Some((entry, length)) = files::take::<Entry<'_>>(rest).map_err(|_| broken())? {
            let is_name = !entry.name.is_empty()
                && !entry.name.contains(&b'/')
                && !entry.name.contains(&0)
                && entry.name != b"."
                && entry.name != b"..";
            if !is_name {
                return Err(broken().into());
            }
            listed.push(Listed {
                name: entry.name.to_vec(),
                kind: entry.kind,
                mode: entry.mode & 0o777,
                bytes: entry.bytes,
                modified: entry.modified,
            });
            rest = &rest[length..];
        }
        match rest.is_empty() {
            true => Ok(listed),
            false => Err(broken().into()),
        }
    }

    /// Makes a directory; that it is there already is no error.
    pub fn make_directory(&self, path: &[u8], mode: u32) -> Result<(), FileError> {
        match self.make(&FileRequest::Directory { path, mode }) {
            Err(FileError::Inside { error, .. })
                if error.kind() == std::io::ErrorKind::AlreadyExists =>
            {
                Ok(())
            }
            other => other,
        }
    }

    pub fn make_link(&self, path: &[u8], target: &[u8]) -> Result<(), FileError> {
        self.make(&FileRequest::Link { path, target })
    }

    /// Sets permission bits and the time of the last modification.
    pub fn describe(
        &self,
        path: &[u8],
        mode: u32,
        (seconds, nanoseconds): (i64, u32),
    ) -> Result<(), FileError> {
        self.make(&FileRequest::Describe {
            path,
            mode,
            seconds,
            nanoseconds,
        })
    }

    fn make(&self, request: &FileRequest<'_>) -> Result<(), FileError> {
        let (mut source, mut sink) = (std::io::empty(), std::io::sink());
        self.perform(request, &mut source, &mut sink).map(drop)
    }

    fn perform(
        &self,
        request: &FileRequest<'_>,
        source: &mut dyn Read,
        sink: &mut dyn Write,
    ) -> Result<u64, FileError> {
        let connection = Connection::open(self.registry, self.name);
        let connection = match connection {
            Err(CallError::Absent(name))
                if self.registry.has_pool(&name).map_err(CallError::from)? =>
            {
                Err(CallError::IsPool(name))
            }
            other => other,
        }?;
        let mut task = Task {
            connection,
            credit: 0,
            source_over: !matches!(request, FileRequest::Write { .. }),
            came: 0,
        };
        let carried = request.path().len() + request.target().map_or(0, <[u8]>::len);
        task.say(&Request::File(*request), carried)?;
        task.run(source, sink)
    }
}

struct Task {
    connection: Connection,
    /// How many bytes may be sent.
    credit: usize,
    source_over: bool,
    came: u64,
}

impl Task {
    fn say(&mut self, request: &Request<'_>, carried: usize) -> Result<(), FileError> {
        let message = FromCaller::Task(*request);
        let pushed = self.connection.outbox.push(0, &message, carried);
        pushed.map_err(|error| std::io::Error::other(error.to_string()).into())
    }

    fn gone(&self, reason: impl ToString) -> FileError {
        FileError::Call(CallError::Silent {
            name: self.connection.name.clone(),
            reason: reason.to_string(),
        })
    }

    fn run(mut self, source: &mut dyn Read, sink: &mut dyn Write) -> Result<u64, FileError> {
        loop {
            self.feed(source)?;
            // Whoever closed the connection may have answered before: credit for
            // the last bytes of a file comes when nobody needs it any more.
            let _closed = {
                let Connection { socket, outbox, .. } = &mut self.connection;
                outbox.flush(socket.as_fd()).is_err()
            };
            let mut flags = PollFlags::IN;
            if !self.connection.outbox.is_empty() {
                flags |= PollFlags::OUT;
            }
            match poll(&mut [PollFd::new(&self.connection.socket, flags)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(self.gone(error)),
            }
            if let Some(done) = self.hear(sink)? {
                return Ok(done);
            }
        }
    }

    /// Sends as much of the content as there is room for inside.
    fn feed(&mut self, source: &mut dyn Read) -> Result<(), FileError> {
        let mut buffer = [0; CHUNK_BYTES_MAX];
        while !self.source_over && self.credit > 0 {
            let most = self.credit.min(buffer.len());
            let length = match source.read(&mut buffer[..most]) {
                Ok(length) => length,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            if length == 0 {
                self.source_over = true;
                return self.say(&Request::End, 0);
            }
            self.credit -= length;
            self.say(&Request::Data(&buffer[..length]), length)?;
        }
        Ok(())
    }

    /// Takes what came; how many bytes there were, when that is all.
    fn hear(&mut self, sink: &mut dyn Write) -> Result<Option<u64>, FileError> {
        let free = self.connection.inbox.free();
        match recv(&self.connection.socket, free, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(self.gone("it closed the connection")),
            Ok((length, _)) => self.connection.inbox.fill(length),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(self.gone(error)),
        }
        let mut written = 0;
        loop {
            let frame = match self.connection.inbox.first() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => return Err(self.gone(error)),
            };
            let length = frame.length;
            match decode::<ToCaller<'_>>(frame.body) {
                Ok(ToCaller::Task(reply)) => match reply {
                    Reply::Started { .. } => self.credit = WINDOW_IN_BYTES as usize,
                    Reply::Data { bytes, .. } => {
                        sink.write_all(bytes)?;
                        written += bytes.len() as u32;
                        self.came += bytes.len() as u64;
                    }
                    Reply::Credit { bytes } => self.credit += bytes as usize,
                    Reply::Done => return Ok(Some(self.came)),
                    Reply::Failed { errno, reason } => {
                        return Err(FileError::Inside {
                            reason: stockade_agent::host::shown(reason),
                            error: std::io::Error::from_raw_os_error(errno),
                        });
                    }
                    _ => {}
                },
                Ok(ToCaller::Refused { reason }) => {
                    return Err(FileError::Call(CallError::Refused {
                        name: self.connection.name.clone(),
                        reason: reason.to_owned(),
                    }));
                }
                Ok(ToCaller::Over { reason, .. }) => {
                    return Err(FileError::Over(reason.to_owned()));
                }
                _ => return Err(self.gone("it is of another version")),
            }
            self.connection.inbox.consume(length);
        }
        if written > 0 {
            let (stream, bytes) = (Stream::Output, written);
            self.say(&Request::Credit { stream, bytes }, 0)?;
        }
        Ok(None)
    }
}
