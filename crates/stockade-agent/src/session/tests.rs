//! Tests of the session: against a kernel that answers by chance, and a host
//! that keeps to the rules.

use std::collections::BTreeMap;

use super::*;
use crate::buffer::Inbox;
use crate::host::{Accepted, Kind, Ledger};
use crate::system::chance::{Chance, ChanceKernel};
use crate::wire::{Size, WINDOW_IN_BYTES, Write, encode};
use proptest::prelude::*;

fn frame(task: u32, request: &Request<'_>) -> Vec<u8> {
    let mut frame = vec![0; wire::HEADER_BYTES + wire::BODY_BYTES_MAX];
    let length = encode(task, request, &mut frame).unwrap();
    frame[wire::HEADER_BYTES..length].to_vec()
}

fn session(seed: u64) -> Session<ChanceKernel> {
    Session::new(ChanceKernel::new(seed))
}

fn greeted(seed: u64) -> Session<ChanceKernel> {
    let mut session = session(seed);
    let hello = frame(0, &Request::Hello { version: VERSION });
    session.receive(0, &hello).unwrap();
    session
}

/// What the session has said, and forgets.
fn said(session: &mut Session<ChanceKernel>) -> Vec<(u32, Vec<u8>)> {
    let bytes = session.out().filled().to_vec();
    session.out().clear();
    let mut inbox = Inbox::default();
    let mut frames = Vec::new();
    for piece in bytes.chunks(4096) {
        inbox.free()[..piece.len()].copy_from_slice(piece);
        inbox.fill(piece.len());
        while let Some(frame) = inbox.first().unwrap() {
            let length = frame.length;
            frames.push((frame.task, frame.body.to_vec()));
            inbox.consume(length);
        }
    }
    frames
}

#[test]
fn another_version_and_another_first_word_are_refused() {
    let mut session = session(1);
    let hello = frame(0, &Request::Hello { version: 7 });
    session.receive(0, &hello).unwrap();
    assert_eq!(session.closing(), Some(Closing::Refused));
    let frames = said(&mut session);
    let reply: Reply<'_> = wire::decode(&frames[0].1).unwrap();
    assert!(matches!(reply, Reply::Refused { reason } if reason.contains("version 2")));
    let mut session = self::session(1);
    let early = frame(1, &Request::Shutdown);
    assert_eq!(session.receive(1, &early), Err(WireError::Malformed));
}

#[test]
fn an_id_in_use_and_data_without_credit_end_the_session() {
    let mut session = greeted(3);
    let write = FileRequest::Write {
        path: b"/a",
        mode: 0,
        how: Write::New,
    };
    let file = frame(1, &Request::File(write));
    let mut chance = 3;
    while session.slots.iter().all(|slot| slot.id != 1) {
        chance += 1;
        session = greeted(chance);
        session.receive(1, &file).unwrap();
    }
    assert!(session.receive(1, &file).is_err());
    let mut inlet = Inlet::new();
    inlet.spend(WINDOW_IN_BYTES as usize).unwrap();
    assert!(inlet.spend(1).is_err());
}

/// A host that keeps to the rules, and does what chance wants.
struct Host {
    chance: Chance,
    ledger: Ledger,
    tasks: BTreeMap<u32, Task>,
}

#[derive(Clone, Copy)]
struct Task {
    kind: Kind,
    ended: bool,
    cancelled: bool,
    used: [u32; 2],
}

impl Host {
    /// One request that is allowed now, if any.
    fn request(&mut self, session: &mut Session<ChanceKernel>) {
        let bytes = vec![7; self.chance.below(9000)];
        if self.chance.one_in(3) {
            self.begin(session);
            return;
        }
        let number = self.chance.below(self.tasks.len().max(1));
        let Some((&id, task)) = self.tasks.iter_mut().nth(number) else {
            return;
        };
        let is_exec = matches!(task.kind, Kind::Exec { .. });
        let stream = [Stream::Output, Stream::Error][self.chance.below(2)];
        let used = &mut task.used[stream as usize];
        let request = match self.chance.below(7) {
            0 | 1 if task.kind != Kind::Read && !task.ended => {
                let most = bytes.len().min(self.ledger.may_send(id));
                assert!(self.ledger.send(id, most));
                Request::Data(&bytes[..most])
            }
            2 | 3 if is_exec || (task.kind == Kind::Read && stream == Stream::Output) => {
                let bytes = std::mem::take(used);
                assert!(self.ledger.grant(id, stream, bytes));
                Request::Credit { stream, bytes }
            }
            4 if is_exec => Request::Signal {
                number: 15,
                group: true,
            },
            5 if task.kind != Kind::Read && !task.ended => {
                task.ended = true;
                Request::End
            }
            6 if !task.cancelled => {
                task.cancelled = true;
                Request::Cancel
            }
            _ if is_exec => Request::Resize {
                size: Size {
                    rows: 1,
                    columns: 2,
                },
            },
            _ => return,
        };
        session.receive(id, &frame(id, &request)).unwrap();
    }

    fn begin(&mut self, session: &mut Session<ChanceKernel>) {
        let has_error = self.chance.one_in(2);
        let is_terminal = !has_error && self.chance.one_in(2);
        let kinds = [
            Kind::Exec { has_error },
            Kind::Read,
            Kind::Write,
            Kind::Clock,
        ];
        let kind = kinds[self.chance.below(4)];
        let Some(id) = self.ledger.begin(kind) else {
            return;
        };
        let spec = ExecSpec {
            arguments: b"a\0b\0",
            environment: b"",
            directory: b"/",
            user: None,
            terminal: is_terminal.then_some(Size {
                rows: 24,
                columns: 80,
            }),
            input: self.chance.one_in(2),
            merged: !has_error && !is_terminal,
        };
        let mut encoded = [0; 256];
        let encoded = postcard::to_slice(&spec, &mut encoded).unwrap();
        let path = b"/x";
        let files = [
            FileRequest::Read {
                path,
                offset: 0,
                length: 100_000,
            },
            FileRequest::List { path },
            FileRequest::Watch { path },
        ];
        match kind {
            Kind::Exec { .. } => {
                let (one, other) = encoded.split_at(3);
                session
                    .receive(id, &frame(id, &Request::Part(one)))
                    .unwrap();
                session
                    .receive(id, &frame(id, &Request::Exec(other)))
                    .unwrap();
            }
            Kind::Read => {
                let request = Request::File(files[self.chance.below(3)]);
                session.receive(id, &frame(id, &request)).unwrap();
            }
            Kind::Write => {
                let write = FileRequest::Write {
                    path,
                    mode: 0o600,
                    how: Write::Replace,
                };
                session
                    .receive(id, &frame(id, &Request::File(write)))
                    .unwrap();
            }
            Kind::Clock => {
                let (seconds, nanoseconds) = (1, 2);
                let clock = Request::SetClock {
                    seconds,
                    nanoseconds,
                };
                session.receive(id, &frame(id, &clock)).unwrap();
                // It is over with its answer.
                return;
            }
        }
        let task = Task {
            kind,
            ended: false,
            cancelled: false,
            used: [0; 2],
        };
        self.tasks.insert(id, task);
    }

    /// Takes what the session said; all of it must be acceptable.
    fn listen(&mut self, session: &mut Session<ChanceKernel>) {
        for (id, body) in said(session) {
            let reply: Reply<'_> = wire::decode(&body).unwrap();
            match self.ledger.accept(id, &reply) {
                Ok(Accepted::Over) => {
                    self.tasks.remove(&id);
                }
                Ok(_) => {}
                Err(violation) => panic!("{reply:?} of {id}: {violation}"),
            }
            if let (Reply::Data { stream, bytes }, Some(task)) = (reply, self.tasks.get_mut(&id)) {
                task.used[stream as usize] += bytes.len() as u32;
            }
        }
    }
}

proptest! {
    /// Whatever the kernel does, an honest host can believe the session, and
    /// the session never says more than there is room for.
    #[test]
    fn what_a_session_says_follows_from_what_it_was_asked(seed in any::<u64>()) {
        let mut session = greeted(seed);
        let mut host = Host {
            chance: Chance::new(seed.rotate_left(17)),
            ledger: Ledger::default(),
            tasks: BTreeMap::new(),
        };
        for _ in 0..600 {
            if session.has_room() {
                host.request(&mut session);
            }
            let mut tokens = Vec::new();
            session.waits(|token, _, _| tokens.push(token));
            for token in tokens {
                if host.chance.one_in(2) {
                    session.ready(token).unwrap();
                }
            }
            session.work().unwrap();
            if host.chance.one_in(3) {
                session.reap().unwrap();
            }
            if host.chance.one_in(4) {
                host.listen(&mut session);
            }
        }
        host.listen(&mut session);
        let known = session.slots.iter().filter(|slot| slot.id != 0).count();
        prop_assert_eq!(known, host.ledger.len());
    }

    /// Whatever a host says, the session ends or goes on; it never panics.
    #[test]
    fn any_frames_are_survived(
        seed in any::<u64>(),
        frames in prop::collection::vec((0u32..4, prop::collection::vec(any::<u8>(), 0..40)), 0..60),
    ) {
        let mut session = greeted(seed);
        for (task, body) in frames {
            if !session.has_room() || session.receive(task, &body).is_err() {
                break;
            }
            let mut tokens = Vec::new();
            session.waits(|token, _, _| tokens.push(token));
            for token in tokens {
                session.ready(token).unwrap();
            }
            session.work().unwrap();
            session.reap().unwrap();
        }
    }
}
