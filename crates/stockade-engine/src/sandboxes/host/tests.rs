//! A stand-in speaks in the agent's place, as a hostile command could.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use proptest::prelude::*;
use rustix::io::{read, write};
use stockade_agent::buffer::Inbox;
use stockade_agent::wire::{
    ExecSpec, FileRequest, Size, Stream, VERSION, decode, encode, encode_spec,
};

use stockade_policy::path::AbsolutePath;

use super::super::registry::{Name, Registry};
use super::super::wire::{FromCaller, ToCaller};
use super::*;
use crate::outcome::End;
use crate::state::StateDirectory;

/// A host, its stand-in, and what whoever started it waits for.
struct Stage {
    host: Host,
    agent: UnixStream,
    answer: UnixStream,
    state: StateDirectory,
    _scratch: tempfile::TempDir,
}

const NAME: &str = "stand-in";
const END: &str = "the end";

impl Stage {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().canonicalize().unwrap().join("state");
        let path = AbsolutePath::parse(path.to_str().unwrap()).unwrap();
        let state = StateDirectory::open_at(&path).unwrap();
        let registry = Registry::open(&state).unwrap();
        let reserved = Box::new(registry.reserve(Name::parse(NAME)).unwrap());
        let (answer, announced) = UnixStream::pair().unwrap();
        let (agent, channel) = UnixStream::pair().unwrap();
        agent.set_nonblocking(true).unwrap();
        let hosting = Hosting::Stay {
            reserved,
            announcement: Announcement::of(announced.into()),
            successor: None,
        };
        let (run, log) = (RunId::from_random(1), Log::at(&state));
        let host = Host::new(hosting, channel.into(), run, log).unwrap();
        Self {
            host,
            agent,
            answer,
            state,
            _scratch: scratch,
        }
    }

    /// One that serves.
    fn greeted() -> Self {
        let mut stage = Self::new();
        stage.say(0, &Reply::Hello { version: VERSION }).unwrap();
        stage
    }

    /// The agent says something, and the host hears it.
    fn say(&mut self, task: u32, reply: &Reply<'_>) -> io::Result<()> {
        let mut bytes = vec![0; 70_000];
        let length = encode(task, reply, &mut bytes).unwrap();
        self.send(&bytes[..length])
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        assert_eq!(write(&self.agent, bytes).unwrap(), bytes.len());
        self.host.advance(Source::Agent, PollFlags::IN)
    }

    /// A caller that has just connected.
    fn caller(&mut self) -> UnixStream {
        let (caller, socket) = UnixStream::pair().unwrap();
        caller.set_nonblocking(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        let id = self.host.next_client;
        self.host.clients.insert(id, Client::new(socket.into()));
        self.host.next_client += 1;
        caller
    }

    /// The last caller says something, and the host hears it.
    fn ask(&mut self, caller: &UnixStream, message: &FromCaller<'_>) {
        let mut bytes = vec![0; 70_000];
        let length = encode(0, message, &mut bytes).unwrap();
        write(caller, &bytes[..length]).unwrap();
        let id = self.host.next_client - 1;
        self.host
            .advance(Source::Client(id), PollFlags::IN)
            .unwrap();
    }

    fn exec(&mut self, caller: &UnixStream) {
        let spec = encode_spec(&ExecSpec {
            arguments: b"true\0",
            environment: b"",
            directory: b"",
            user: None,
            terminal: None,
            input: true,
            merged: false,
        });
        let spec = spec.unwrap();
        self.ask(caller, &FromCaller::Task(Request::Exec(&spec)));
    }

    /// Nothing of what the stand-in did reached anything but the sandbox.
    fn ends_alone(mut self, failure: &io::Error) {
        self.host.conclude(&End::Lost, Some(&failure.to_string()));
        drop(self.host);
        let registry = Registry::open(&self.state).unwrap();
        assert!(registry.list().unwrap().is_empty());
    }
}

/// What a caller was told by now.
fn over(status: Status) -> Reply<'static> {
    let met = Met::NONE;
    Reply::Ended { status, met }
}

fn told(caller: &UnixStream) -> Vec<String> {
    let mut inbox = Inbox::default();
    let mut all = Vec::new();
    while let Ok(length) = read(caller, inbox.free()) {
        if length == 0 {
            all.push(END.to_owned());
            break;
        }
        inbox.fill(length);
        while let Some(frame) = inbox.first().unwrap() {
            let message: ToCaller<'_> = decode(frame.body).unwrap();
            all.push(format!("{message:?}"));
            let length = frame.length;
            inbox.consume(length);
        }
    }
    all
}

/// As [`told`], up to the end, which is waited for: what another test forks has
/// the host's side of the connection too, until it executes.
fn told_to_the_end(caller: &UnixStream) -> Vec<String> {
    caller.set_nonblocking(false).unwrap();
    caller
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let told = told(caller);
    assert_eq!(told.last().map(String::as_str), Some(END), "{told:?}");
    told
}

const STARTED: Reply<'_> = Reply::Started { process: 7 };

#[test]
fn a_sandbox_stands_when_the_agent_has_greeted() {
    let stage = Stage::greeted();
    assert!(stage.host.stood());
    let mut name = [0; 32];
    let length = read(&stage.answer, &mut name).unwrap();
    assert_eq!(&name[..length], NAME.as_bytes());
    let mut silent = Stage::new();
    silent.host.phase = Phase::Greeting {
        until: Instant::now(),
    };
    let error = silent.host.tick().unwrap_err();
    assert!(!silent.host.stood());
    silent.ends_alone(&error);
}

#[test]
fn one_that_nobody_waits_for_any_more_does_not_stand() {
    let mut stage = Stage::new();
    stage.answer.shutdown(Shutdown::Both).unwrap();
    assert!(stage.say(0, &Reply::Hello { version: VERSION }).is_err());
}

#[test]
fn a_command_goes_its_way() {
    let mut stage = Stage::greeted();
    let caller = stage.caller();
    stage.exec(&caller);
    assert!(told(&caller).is_empty());
    stage.say(1, &STARTED).unwrap();
    let bytes = b"out";
    let stream = Stream::Output;
    stage.say(1, &Reply::Data { stream, bytes }).unwrap();
    for stream in [Stream::Output, Stream::Error] {
        stage.say(1, &Reply::End { stream }).unwrap();
    }
    let status = Status::Exited(3);
    stage.say(1, &over(status)).unwrap();
    let told = told_to_the_end(&caller);
    assert_eq!(told.len(), 6, "{told:?}");
    assert!(told[4].contains("Exited(3)"), "{told:?}");
}

#[test]
fn what_cannot_be_true_ends_the_sandbox() {
    let status = Status::Exited(0);
    let chunk = [0; 16 * 1024];
    let data = Reply::Data {
        stream: Stream::Output,
        bytes: &chunk,
    };
    let lies: [&[(u32, Reply<'_>)]; 8] = [
        &[(0, Reply::Hello { version: VERSION })],
        &[(9, STARTED)],
        &[(1, over(status))],
        &[(1, STARTED), (1, STARTED)],
        &[(1, STARTED), (1, over(status))],
        &[(1, STARTED), (1, Reply::Credit { bytes: 1 })],
        &[(1, Reply::Done)],
        &[
            (1, STARTED),
            (1, data),
            (1, data),
            (1, data),
            (1, data),
            (1, data),
        ],
    ];
    for lie in lies {
        let mut stage = Stage::greeted();
        let caller = stage.caller();
        stage.exec(&caller);
        let mut said = Ok(());
        for (task, reply) in lie {
            said = said.and_then(|()| stage.say(*task, reply));
        }
        let error = said.expect_err(&format!("{lie:?}"));
        stage.ends_alone(&error);
        let told = told(&caller);
        assert!(told.iter().any(|one| one.contains("Over")), "{told:?}");
    }
}

#[test]
fn an_agent_that_goes_without_being_asked_ends_the_sandbox() {
    let mut stage = Stage::greeted();
    stage.agent.shutdown(std::net::Shutdown::Both).unwrap();
    stage.host.advance(Source::Agent, PollFlags::HUP).unwrap();
    assert!(stage.host.deadline().is_some());
    stage.host.closed = Some(Instant::now() - PATIENCE);
    let error = stage.host.tick().unwrap_err();
    stage.ends_alone(&error);
}

#[test]
fn a_caller_that_goes_is_hung_up_on_and_its_command_killed() {
    let mut stage = Stage::greeted();
    let caller = stage.caller();
    stage.exec(&caller);
    stage.say(1, &STARTED).unwrap();
    let bytes = &[0; 16 * 1024][..];
    let stream = Stream::Output;
    stage.say(1, &Reply::Data { stream, bytes }).unwrap();
    drop(caller);
    let id = stage.host.next_client - 1;
    stage
        .host
        .advance(Source::Client(id), PollFlags::HUP)
        .unwrap();
    assert!(stage.host.clients.is_empty());
    // Nobody reads it any more, and so nothing waits for a reader.
    for _ in 0..20 {
        stage.say(1, &Reply::Data { stream, bytes }).unwrap();
    }
    let due = stage.host.deadline().unwrap();
    stage.host.running.get_mut(&1).unwrap().kill_at = Some(Instant::now());
    stage.host.tick().unwrap();
    assert!(due > Instant::now() && stage.host.deadline().is_none());
    let mut sent = vec![0; 70_000];
    let length = read(&stage.agent, &mut sent[..]).unwrap();
    let mut inbox = Inbox::default();
    inbox.free()[..length].copy_from_slice(&sent[..length]);
    inbox.fill(length);
    let mut seen = Vec::new();
    while let Some(frame) = inbox.first().unwrap() {
        let request: Request<'_> = decode(frame.body).unwrap();
        seen.push(format!("{request:?}"));
        let length = frame.length;
        inbox.consume(length);
    }
    assert!(seen.contains(&"Cancel".to_owned()), "{seen:?}");
    let kill = "Signal { number: 9, group: true }";
    assert_eq!(seen.last().unwrap(), kill);
}

#[test]
fn an_agent_that_does_not_listen_cannot_make_the_host_grow() {
    let mut stage = Stage::greeted();
    let caller = stage.caller();
    stage.exec(&caller);
    stage.say(1, &STARTED).unwrap();
    drop(caller);
    let id = stage.host.next_client - 1;
    let gone = Source::Client(id);
    stage.host.advance(gone, PollFlags::HUP).unwrap();
    // It takes nothing, and talks until it has no credit left.
    let bytes = &[0; 16 * 1024][..];
    let stream = Stream::Output;
    let said = (0..200_000).try_for_each(|_| stage.say(1, &Reply::Data { stream, bytes }));
    assert!(said.is_err());
    assert!(stage.host.link.waiting() < 256 * 1024);
    stage.ends_alone(&said.unwrap_err());
}

#[test]
fn callers_may_not_say_everything() {
    let spec = b"nonsense";
    let wrong: [FromCaller<'_>; 6] = [
        FromCaller::Task(Request::Shutdown),
        FromCaller::Task(Request::Cancel),
        FromCaller::Task(Request::Hello { version: VERSION }),
        FromCaller::Task(Request::Data(b"early")),
        FromCaller::Task(Request::SetClock {
            seconds: 0,
            nanoseconds: 0,
        }),
        FromCaller::Task(Request::Exec(spec)),
    ];
    let mut stage = Stage::greeted();
    let mut sent = vec![0; 70_000];
    read(&stage.agent, &mut sent[..]).unwrap();
    for message in wrong {
        let caller = stage.caller();
        stage.ask(&caller, &message);
        told_to_the_end(&caller);
        // Nothing of it went inside.
        assert!(read(&stage.agent, &mut sent[..]).is_err(), "{message:?}");
    }
    // Of a command that runs: credit that is not due, and input beyond it.
    for message in [
        Request::Credit {
            stream: Stream::Output,
            bytes: 1,
        },
        Request::Part(spec),
        Request::Signal {
            number: 65,
            group: false,
        },
    ] {
        let caller = stage.caller();
        stage.exec(&caller);
        stage.ask(&caller, &FromCaller::Task(message));
        told_to_the_end(&caller);
    }
    // Of a file that is read: what is for commands, or for one that is written,
    // would be no request that the agent understands.
    let size = Size {
        rows: 1,
        columns: 1,
    };
    for message in [
        Request::Signal {
            number: 15,
            group: true,
        },
        Request::Resize { size },
        Request::Data(b"x"),
        Request::End,
        Request::Cancel,
    ] {
        let caller = stage.caller();
        let file = FileRequest::List { path: b"/tmp" };
        stage.ask(&caller, &FromCaller::Task(Request::File(file)));
        stage.ask(&caller, &FromCaller::Task(message));
        told_to_the_end(&caller);
    }
    let caller = stage.caller();
    let file = FileRequest::List { path: b"a\0b" };
    stage.ask(&caller, &FromCaller::Task(Request::File(file)));
    assert!(told(&caller)[0].contains("malformed"));
}

#[test]
fn there_are_64_commands_at_one_time() {
    let mut stage = Stage::greeted();
    let callers: Vec<_> = (0..TASKS_MAX)
        .map(|_| {
            let caller = stage.caller();
            stage.exec(&caller);
            assert!(told(&caller).is_empty());
            caller
        })
        .collect();
    let one_more = stage.caller();
    stage.exec(&one_more);
    let refused = told(&one_more);
    assert!(
        refused[0].contains("64 commands run in it already"),
        "{refused:?}"
    );
    drop(callers);
}

#[test]
fn an_end_in_order_asks_first() {
    let mut stage = Stage::greeted();
    let caller = stage.caller();
    stage.exec(&caller);
    stage.say(1, &STARTED).unwrap();
    let stopping = stage.caller();
    stage.ask(&stopping, &FromCaller::Stop);
    assert_eq!(told(&stopping)[0], "Stopping");
    assert!(matches!(stage.host.phase, Phase::Asking { .. }));
    let late = stage.caller();
    stage.exec(&late);
    assert!(told(&late)[0].contains("being stopped"));
    for stream in [Stream::Output, Stream::Error] {
        stage.say(1, &Reply::End { stream }).unwrap();
    }
    let status = Status::Killed {
        signal: 15,
        core: false,
    };
    stage.say(1, &over(status)).unwrap();
    assert!(matches!(stage.host.phase, Phase::Leaving { .. }));
    stage.host.phase = Phase::Leaving {
        until: Instant::now(),
    };
    assert!(stage.host.tick().is_err());
}

#[test]
fn the_clock_of_a_machine_is_set_before_a_command_and_while_one_runs() {
    let mut stage = Stage::greeted();
    let caller = stage.caller();
    stage.exec(&caller);
    assert_eq!(
        (stage.host.link.ledger.len(), stage.host.deadline()),
        (1, None)
    );
    let mut stage = Stage::greeted();
    stage.host.clock = Some(Clock::default());
    assert_eq!(stage.host.deadline(), None);
    let caller = stage.caller();
    stage.exec(&caller);
    // The first task is the clock's, the second the command's.
    assert_eq!(stage.host.link.ledger.len(), 2);
    let due = stage.host.deadline().unwrap();
    assert!(due > Instant::now());
    let reason = "";
    stage.say(1, &Reply::Failed { errno: 1, reason }).unwrap();
    stage.say(2, &STARTED).unwrap();
    assert_eq!(stage.host.running.keys().collect::<Vec<_>>(), [&2]);
    stage.host.signal_all(15);
    stage.host.tick().unwrap();
    assert_eq!(stage.host.deadline(), Some(due));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever comes in the agent's place, the host hears it or ends the
    /// sandbox, and keeps no more of it than the books allow.
    #[test]
    fn any_bytes_are_heard_or_end_the_sandbox(
        frames in prop::collection::vec((0u32..3, prop::collection::vec(any::<u8>(), 0..64)), 0..20),
    ) {
        let mut stage = Stage::greeted();
        let caller = stage.caller();
        stage.exec(&caller);
        for (task, body) in frames {
            let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
            bytes.extend(task.to_le_bytes());
            bytes.extend(body);
            if let Err(error) = stage.send(&bytes) {
                stage.ends_alone(&error);
                return Ok(());
            }
        }
    }

    /// Whatever a caller says, the sandbox goes on.
    #[test]
    fn any_bytes_of_a_caller_leave_the_sandbox_alone(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        is_frame in any::<bool>(),
    ) {
        let mut stage = Stage::greeted();
        let caller = stage.caller();
        if is_frame {
            let header = (bytes.len() as u64).to_le_bytes();
            write(&caller, &header).unwrap();
        }
        write(&caller, &bytes).unwrap();
        drop(caller);
        let id = stage.host.next_client - 1;
        for events in [PollFlags::IN, PollFlags::HUP] {
            stage.host.advance(Source::Client(id), events).unwrap();
        }
        prop_assert!(stage.host.clients.is_empty());
        if is_frame && matches!(decode(&bytes), Ok(FromCaller::Stop)) {
            return Ok(());
        }
        let caller = stage.caller();
        stage.exec(&caller);
        prop_assert!(!stage.host.running.is_empty());
    }
}
