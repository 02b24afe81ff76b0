//! The host's end of an agent's channel, for tests: it believes only what the
//! ledger accepts, and panics at anything else.

use std::io::{Read, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use stockade_agent::buffer::{Buffer, Inbox};
use stockade_agent::host::{Accepted, Kind, Ledger};
use stockade_agent::wire::{
    self, ExecSpec, FileRequest, Reply, Request, Status, Stream, VERSION, decode,
};

/// How long an agent may take for anything: a machine has to boot before it
/// answers.
const PATIENCE: Duration = Duration::from_secs(300);

/// A session with an agent.
#[derive(Debug)]
pub struct Session {
    pub channel: UnixStream,
    pub inbox: Inbox,
    pub ledger: Ledger,
}

/// What came of a task.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub output: Vec<u8>,
    pub error: Vec<u8>,
    pub status: Option<Status>,
    pub failed: Option<(i32, String)>,
}

impl Session {
    /// Says hello; the agent may answer later.
    pub fn begin(channel: UnixStream) -> Self {
        channel
            .set_read_timeout(Some(PATIENCE))
            .expect("a stream has a timeout");
        let mut session = Self {
            channel,
            inbox: Inbox::default(),
            ledger: Ledger::default(),
        };
        session.send(0, &Request::Hello { version: VERSION });
        session
    }

    /// Waits for the answer.
    pub fn wait_for_hello(&mut self) {
        let greeted = self.next(|_, reply| matches!(reply, Reply::Hello { .. }));
        assert!(greeted.1);
    }

    /// Sends one frame.
    pub fn send(&mut self, task: u32, request: &Request<'_>) {
        let mut out = Buffer::new(wire::HEADER_BYTES + wire::BODY_BYTES_MAX);
        out.frame(task, request).expect("a request fits a frame");
        let sent = self.channel.write_all(out.filled());
        sent.expect("the agent reads");
    }

    /// The next reply, which must be acceptable.
    pub fn next<T>(&mut self, take: impl FnOnce(u32, &Reply<'_>) -> T) -> (Accepted, T) {
        loop {
            if let Some(frame) = self.inbox.first().expect("a frame") {
                let reply: Reply<'_> = decode(frame.body).expect("a reply");
                let accepted = self.ledger.accept(frame.task, &reply);
                let accepted = accepted.unwrap_or_else(|error| panic!("{reply:?}: {error}"));
                let taken = take(frame.task, &reply);
                let length = frame.length;
                self.inbox.consume(length);
                return (accepted, taken);
            }
            let length = self.channel.read(self.inbox.free());
            let length = length.expect("the agent answers");
            assert!(length > 0, "the agent is gone");
            self.inbox.fill(length);
        }
    }

    /// Begins a command; its task.
    pub fn exec(&mut self, spec: &ExecSpec<'_>) -> u32 {
        let has_error = !spec.merged && spec.terminal.is_none();
        let task = self.ledger.begin(Kind::Exec { has_error });
        let task = task.expect("there are few tasks");
        let bytes = wire::encode_spec(spec).expect("a description is short");
        let pieces: Vec<_> = bytes.chunks(60_000).collect();
        let (last, parts) = pieces.split_last().expect("a description is not empty");
        for part in parts {
            self.send(task, &Request::Part(part));
        }
        self.send(task, &Request::Exec(last));
        task
    }

    /// Begins with a file; its task.
    pub fn file(&mut self, kind: Kind, request: FileRequest<'_>) -> u32 {
        let task = self.ledger.begin(kind).expect("there are few tasks");
        self.send(task, &Request::File(request));
        task
    }

    /// Gives a task its whole input, as far as there is credit.
    pub fn give(&mut self, task: u32, bytes: &[u8]) {
        for piece in bytes.chunks(wire::CHUNK_BYTES_MAX) {
            while self.ledger.may_send(task) < piece.len() {
                self.next(|_, reply| {
                    assert!(matches!(
                        reply,
                        Reply::Credit { .. } | Reply::Started { .. }
                    ))
                });
            }
            assert!(self.ledger.send(task, piece.len()));
            self.send(task, &Request::Data(piece));
        }
        self.send(task, &Request::End);
    }

    /// Everything until one task is over.
    pub fn finish(&mut self, task: u32) -> Outcome {
        let mut outcome = Outcome::default();
        loop {
            let (accepted, more) = self.next(|of, reply| {
                assert_eq!(of, task);
                match reply {
                    Reply::Data { stream, bytes } => {
                        match stream {
                            Stream::Output => outcome.output.extend_from_slice(bytes),
                            Stream::Error => outcome.error.extend_from_slice(bytes),
                        }
                        return Some((*stream, bytes.len() as u32));
                    }
                    Reply::Ended { status, .. } => outcome.status = Some(*status),
                    Reply::Failed { errno, reason } => {
                        outcome.failed = Some((*errno, (*reason).to_owned()));
                    }
                    _ => {}
                }
                None
            });
            if accepted == Accepted::Over {
                return outcome;
            }
            if let Some((stream, bytes)) = more {
                assert!(self.ledger.grant(task, stream, bytes));
                self.send(task, &Request::Credit { stream, bytes });
            }
        }
    }

    /// A whole script.
    pub fn shell(&mut self, script: &str) -> Outcome {
        let arguments = [b"sh\0-c\0", script.as_bytes(), b"\0"].concat();
        let task = self.exec(&spec(&arguments));
        self.finish(task)
    }
}

/// A command with nothing but its arguments.
pub fn spec(arguments: &[u8]) -> ExecSpec<'_> {
    ExecSpec {
        arguments,
        environment: b"",
        directory: b"",
        user: None,
        terminal: None,
        input: false,
        merged: false,
    }
}
