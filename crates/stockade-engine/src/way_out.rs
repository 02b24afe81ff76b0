//! The supervisor's side of the way out of one sandbox, while a command runs.
//!
//! The egress process decides; this writes its decisions to the log, puts its
//! questions to a person, hands over new rules, and sees to it that it ends
//! with the run. If it ends first the sandbox has no network, which is said
//! once. Nothing here waits: the supervisor has streams to relay.

mod answers;
mod asker;
mod channel;
mod question;
mod start;
pub mod tally;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant, SystemTime};

use stockade_egress::wire::{FromEgress, SetUp, ToEgress, Totals};
use stockade_policy::network::rules::NetworkRule;

pub use self::channel::ChannelError;
use stockade_walls::egress::Egress;

use self::answers::Held;
pub use self::answers::ask_name;
use self::channel::{Channel, Heard};
use self::question::{DESTINATIONS_MAX, Desk, Question};
pub use self::start::{Caller, Extras, Starting, Tested, WayOutError, set_up};
use self::tally::{NetworkSummary, Tally};
use crate::control::{ClientId, ControlResponse, ControlServer, HeldRequest};
use crate::events::network::{event, text};
use crate::events::{Event, RunId};
use crate::log::{Log, LogError, RUN_BYTES_MAX};
use crate::notice::Notices;
use crate::state::{Places, StateDirectory, StateError};

/// Messages that are taken before anything else has its turn.
const MESSAGES_AT_ONCE: usize = 64;
/// How long the egress process may take to say its last words.
const FAREWELL: Duration = Duration::from_secs(1);

/// What reads the policy anew for a reload.
pub trait Reload {
    /// The rules that hold from now on, or why the old ones go on to.
    fn network(&self, granted: &[NetworkRule]) -> Result<SetUp, String>;
}

/// What the supervisor's side needs from the run.
pub struct Terms {
    pub run: RunId,
    pub log: Log,
    pub state: StateDirectory,
    pub places: Places,
    /// Process id of the sandbox's init.
    pub init: u32,
    /// There is a terminal among the caller's streams, so a person may be
    /// asked on it.
    pub on_terminal: bool,
    pub notices: Notices,
    pub reload: Box<dyn Reload>,
}

/// The way out of a sandbox whose command runs. Dropping it ends the egress
/// process.
pub struct WayOut {
    /// `None` once the egress process is gone.
    channel: Option<Channel>,
    process: Egress,
    control: ControlServer,
    terms: Terms,
    held: BTreeMap<u64, Held>,
    desk: Option<Desk>,
    question: Option<Question>,
    /// Destinations that a person denied in this run.
    denied: BTreeSet<String>,
    /// Rules that a person added in this run.
    granted: Vec<NetworkRule>,
    /// Who waits for the outcome of a reload.
    reloading: Option<ClientId>,
    events: Vec<Event>,
    /// How many bytes of the log are about this way out.
    recorded: u64,
    tally: Tally,
    totals: Totals,
    lost: Option<String>,
}

/// What can be polled for the way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Egress,
    /// Another terminal; `None` for a new one.
    Control(Option<ClientId>),
    /// The terminal on which a question is open.
    Desk,
}

impl WayOut {
    /// Goes on with an egress process that has been tested.
    pub fn open(starting: Starting, terms: Terms) -> Result<Self, StateError> {
        let control = ControlServer::open(&terms.state, &terms.run)?;
        let Starting { channel, process } = starting;
        Ok(Self {
            channel: Some(channel),
            process,
            control,
            desk: terms.on_terminal.then(Desk::open).flatten(),
            terms,
            held: BTreeMap::new(),
            question: None,
            denied: BTreeSet::new(),
            granted: Vec::new(),
            reloading: None,
            events: Vec::new(),
            recorded: 0,
            tally: Tally::default(),
            totals: Totals::default(),
            lost: None,
        })
    }

    /// What to poll for reading.
    pub fn waits_for(&self) -> impl Iterator<Item = (Source, BorrowedFd<'_>)> {
        let egress = self
            .channel
            .iter()
            .map(|channel| (Source::Egress, channel.as_fd()));
        let desk = self
            .desk
            .iter()
            .filter(|_| self.question.is_some())
            .map(|desk| (Source::Desk, desk.as_fd()));
        let control = self
            .control
            .waits_for()
            .map(|(client, fd)| (Source::Control(client), fd));
        egress.chain(desk).chain(control)
    }

    /// What was polled for is there.
    pub fn advance(&mut self, source: Source) {
        match source {
            Source::Egress => self.hear(),
            Source::Desk => self.read_desk(),
            Source::Control(None) => self.control.accept(),
            Source::Control(Some(client)) => {
                if let Some(request) = self.control.take(client) {
                    self.serve(client, request);
                }
            }
        }
        self.write_down();
    }

    /// Whether the next thing to do is to ask on the terminal, for which the
    /// supervisor has to let go of it first.
    pub fn wants_terminal(&self) -> bool {
        self.question.is_none() && self.desk.is_some() && self.held.values().any(|held| !held.told)
    }

    /// A question is open: nothing else may use the terminal.
    pub fn has_terminal(&self) -> bool {
        self.question.is_some()
    }

    /// Asks about the oldest held request and those of the same domain.
    pub fn ask(&mut self) {
        let Some(desk) = &self.desk else { return };
        let domain = match self.held.values().find(|held| !held.told) {
            Some(held) => held.shown.domain.clone(),
            None => return,
        };
        let mut asked: Vec<HeldRequest> = Vec::new();
        for held in self.held.values_mut().filter(|held| !held.told) {
            if held.shown.domain == domain && asked.len() < DESTINATIONS_MAX {
                held.told = true;
                asked.push(held.shown.clone());
            }
        }
        // A job in the background must not read, and a terminal that takes no
        // question gets no answer: then another terminal can give it.
        let question = match desk.is_ours() {
            true => desk.ask(&asked, &self.policy_file()).ok(),
            false => None,
        };
        if question.is_none() {
            self.tell_of(&asked);
        }
        self.question = question;
    }

    /// The command is over: nobody has to answer any more.
    pub fn close_question(&mut self) {
        if self.question.take().is_some()
            && let Some(desk) = &self.desk
        {
            let _unseen = desk.tell("").is_err();
        }
        self.held.clear();
    }

    /// Lets the egress process finish, and sums up.
    pub fn finish(mut self) -> NetworkSummary {
        self.close_question();
        let deadline = Instant::now() + FAREWELL;
        if let Some(channel) = &self.channel
            && channel.send(&ToEgress::Finish, &[]).is_err()
        {
            self.channel = None;
        }
        let mut finished = false;
        while !finished && let Some(channel) = &mut self.channel {
            let left = deadline.saturating_duration_since(Instant::now());
            match channel.receive(left) {
                Ok(FromEgress::Finished(totals)) => {
                    self.totals = totals;
                    finished = true;
                }
                Ok(FromEgress::Event(message)) => self.note(event(message)),
                Ok(_) => {}
                Err(_) => break,
            }
            if self.events.len() >= MESSAGES_AT_ONCE {
                self.write_down();
            }
        }
        self.write_down();
        self.channel = None;
        self.process.kill();
        remove_metrics(&self.terms.state, &self.terms.run);
        self.tally.summary(self.totals, self.lost)
    }

    /// Takes what the egress process says, up to a bound.
    fn hear(&mut self) {
        let mut heard = 0;
        while let Some(channel) = &mut self.channel {
            if heard >= MESSAGES_AT_ONCE && !channel.holds_more() {
                return;
            }
            heard += 1;
            match channel.try_receive() {
                Ok(Heard::Message(message)) => self.message(message),
                Ok(Heard::Nothing) => return,
                Err(error) => self.lose(&error.to_string()),
            }
        }
    }

    fn message(&mut self, message: FromEgress) {
        match message {
            FromEgress::Event(message) => self.note(event(message)),
            FromEgress::Ask(ask) => self.hold(&ask),
            FromEgress::AskGone { ask } => self.forget(ask),
            FromEgress::Replaced { generation } => {
                self.note(Event::PolicyReloaded {
                    generation: Some(generation),
                    refused: String::new(),
                });
                let message = format!("the new rules hold (generation {generation})");
                self.reloaded(&ControlResponse::Done { message });
            }
            FromEgress::NotReplaced { reason } => {
                let reason = text(&reason);
                self.note(Event::PolicyReloaded {
                    generation: None,
                    refused: reason.clone(),
                });
                self.reloaded(&ControlResponse::Refused { reason });
            }
            FromEgress::Failed { what, reason } => {
                self.lose(&format!("{}: {}", text(&what), text(&reason)));
            }
            FromEgress::Ready { .. } | FromEgress::Tested { .. } | FromEgress::Finished(_) => {
                self.lose("it spoke out of turn");
            }
        }
    }

    /// The sandbox has no network from now on.
    fn lose(&mut self, reason: &str) {
        self.channel = None;
        self.process.kill();
        self.held.clear();
        self.close_question();
        self.reloaded(&ControlResponse::Refused {
            reason: "the egress process is gone".to_owned(),
        });
        self.terms.notices.say(&format!(
            "stockade: the egress process ended ({reason}): the command goes on without a network"
        ));
        self.note(Event::NetworkLost {
            reason: reason.to_owned(),
        });
        self.lost = Some(reason.to_owned());
    }

    fn note(&mut self, event: Event) {
        self.tally.count(&event);
        self.events.push(event);
    }

    /// What is not on record is not done: without a log there is no way out.
    fn write_down(&mut self) {
        if self.events.is_empty() {
            return;
        }
        let events = std::mem::take(&mut self.events);
        let written: Result<_, LogError> =
            self.terms
                .log
                .append(Some(&self.terms.run), &events, SystemTime::now());
        match written {
            Ok(appended) => self.recorded += appended.bytes,
            Err(error) if self.channel.is_some() => {
                self.lose(&error.to_string());
                self.events.clear();
            }
            Err(_) => {}
        }
        if self.recorded > RUN_BYTES_MAX && self.channel.is_some() {
            let reason = format!(
                "what is recorded of this run fills its part of the event log, {} MiB; a new run \
                 has one of its own",
                RUN_BYTES_MAX >> 20
            );
            self.lose(&reason);
            self.write_down();
        }
    }
}

fn remove_metrics(state: &StateDirectory, run: &RunId) {
    let name = start::metrics_name(run);
    let flags = rustix::fs::AtFlags::empty();
    let _gone = rustix::fs::unlinkat(state, name, flags).is_err();
}
