//! The supervisor's side of the way out of one sandbox, while a command runs.
//!
//! The egress process decides; this writes its decisions to the log, puts its
//! questions to a person, hands over new rules, and sees to it that it ends
//! with the run. If it ends first the sandbox has no network, which is said
//! once. Nothing here waits: the supervisor has streams to relay.

mod asker;
mod channel;
mod question;
mod start;
pub mod tally;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant, SystemTime};

use stockade_egress::wire::{Answer, Ask, FromEgress, SetUp, ToEgress, Totals};
use stockade_policy::network::address::Network;
use stockade_policy::network::destination::{Destination, Host};
use stockade_policy::network::rules::{Budget, NetworkRule, Target, TlsMode};
use stockade_policy::plan::Rule;
use stockade_policy::value::HostReach;

pub use self::channel::ChannelError;
use stockade_walls::egress::Egress;

use self::channel::{Channel, Heard};
use self::question::{DESTINATIONS_MAX, Desk, Question};
pub use self::start::{Caller, Extras, Starting, Tested, WayOutError, set_up};
use self::tally::{NetworkSummary, Tally};
use crate::control::{
    Choice, ClientId, ControlRequest, ControlResponse, ControlServer, HeldRequest,
};
use crate::events::network::{ApprovalAnswer, entry_name, event, text};
use crate::events::{Event, RunId};
use crate::log::{Log, LogError};
use crate::notice::Notices;
use crate::policy_text::{self, KEPT_FOR, KEPT_FOR_MAX};
use crate::state::{Places, StateDirectory, StateError};

/// Messages that are taken before anything else has its turn.
const MESSAGES_AT_ONCE: usize = 64;
/// Most requests that are held at one time; the egress process holds fewer.
const HELD_MAX: usize = 256;
/// Most destinations whose denial is remembered, so that nobody is asked twice.
const DENIED_MAX: usize = 1024;
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
    tally: Tally,
    totals: Totals,
    lost: Option<String>,
}

struct Held {
    shown: HeldRequest,
    destination: Option<Destination>,
    since: Instant,
    /// Was part of a question on the terminal, or of a line about it.
    told: bool,
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
        for _ in 0..MESSAGES_AT_ONCE {
            let Some(channel) = &mut self.channel else {
                return;
            };
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
        if let Err(error) = written
            && self.channel.is_some()
        {
            self.lose(&error.to_string());
            self.events.clear();
        }
    }

    fn hold(&mut self, ask: &Ask) {
        let destination = destination_of(ask);
        let name = destination
            .as_ref()
            .map_or_else(|| text(&ask.host), ToString::to_string);
        // Asked and answered: a command must not wear a person down.
        if self.held.len() >= HELD_MAX || destination.is_none() || self.denied.contains(&name) {
            self.answer_egress(ask.ask, Answer::Deny);
            return;
        }
        let asker = asker::find(self.terms.init, ask.client_port);
        let shown = HeldRequest {
            ask: ask.ask,
            domain: text(&ask.domain),
            destination: name,
            entry: entry_name(ask.entry).to_owned(),
            request: ask.request.as_deref().map(text),
            process: asker.as_ref().map(|asker| asker.process),
            command: asker.map(|asker| asker.command),
            held_ms: 0,
        };
        let told = self.desk.is_none();
        if told {
            self.tell_of(std::slice::from_ref(&shown));
        }
        let held = Held {
            shown,
            destination,
            since: Instant::now(),
            told,
        };
        self.held.insert(ask.ask, held);
    }

    /// Says where held requests can be answered.
    fn tell_of(&self, held: &[HeldRequest]) {
        for held in held {
            self.terms.notices.say(&format!(
                "stockade: {} waits for an answer: `stockade approvals allow {}` in another \
                 terminal",
                held.destination,
                ask_name(&self.terms.run, held.ask)
            ));
        }
    }

    /// Nobody waits for this answer any more.
    fn forget(&mut self, ask: u64) {
        self.held.remove(&ask);
        let Some(question) = &mut self.question else {
            return;
        };
        question.asks.retain(|&asked| asked != ask);
        if question.asks.is_empty() {
            self.question = None;
            if let Some(desk) = &self.desk {
                let line = "\r\nstockade: nobody waits for this any more";
                let _unseen = desk.tell(line).is_err();
            }
        }
    }

    fn read_desk(&mut self) {
        let (Some(desk), Some(question)) = (&self.desk, &mut self.question) else {
            return;
        };
        let choice = match desk.read(question) {
            Ok(None) => return,
            Ok(Some(choice)) => choice,
            // The terminal is gone; other terminals may answer.
            Err(_) => {
                self.desk = None;
                self.question = None;
                return;
            }
        };
        let Some(question) = self.question.take() else {
            return;
        };
        for ask in question.asks {
            let said = self.answer(ask, choice, KEPT_FOR, "terminal");
            if let (Err(reason), Some(desk)) = (said, &self.desk) {
                let _unseen = desk.tell(&format!("stockade: {reason}")).is_err();
            }
        }
    }

    fn serve(&mut self, client: ClientId, request: ControlRequest) {
        let response = match request {
            ControlRequest::List => ControlResponse::Held {
                held: self.held.values().map(Held::shown_now).collect(),
            },
            ControlRequest::Answer {
                ask,
                choice,
                lifetime_s,
            } => {
                let lifetime = lifetime_s.map_or(KEPT_FOR, Duration::from_secs);
                match self.answer(ask, choice, lifetime.min(KEPT_FOR_MAX), "control") {
                    Ok(message) => ControlResponse::Done { message },
                    Err(reason) => ControlResponse::Refused { reason },
                }
            }
            ControlRequest::Reload => match self.reload(client) {
                Ok(()) => return,
                Err(reason) => ControlResponse::Refused { reason },
            },
        };
        self.control.reply(client, &response);
    }

    /// Answers one held request, and says what was done.
    fn answer(
        &mut self,
        ask: u64,
        choice: Choice,
        lifetime: Duration,
        by: &str,
    ) -> Result<String, String> {
        let Some(held) = self.held.remove(&ask) else {
            return Err("nobody waits for this answer any more".to_owned());
        };
        self.forget(ask);
        let name = held.shown.destination.clone();
        let mut kept = None;
        let answer = match (choice, &held.destination) {
            (Choice::Deny, _) | (_, None) => {
                if self.denied.len() < DENIED_MAX {
                    self.denied.insert(name.clone());
                }
                Answer::Deny
            }
            (Choice::Once, Some(_)) => Answer::Once,
            (Choice::Run, Some(destination)) => self.granted_rule(destination, "for this run"),
            (Choice::Always, Some(destination)) => {
                kept = Some(self.keep(destination, lifetime));
                self.granted_rule(destination, "for good")
            }
        };
        if answer != Answer::Deny {
            self.tally.learn(&name);
        }
        self.note(Event::Approval(ApprovalAnswer {
            destination: name.clone(),
            answer: choice.name().to_owned(),
            by: by.to_owned(),
            command: held.shown.command,
        }));
        self.answer_egress(ask, answer);
        let done = format!("{name}: {}", choice.name());
        match kept {
            None => Ok(done),
            Some(Ok(path)) => Ok(format!("{done}, written to {path}")),
            // The run goes on with it; only the file could not take it.
            Some(Err(error)) => Err(format!("{name} is allowed for this run only: {error}")),
        }
    }

    fn granted_rule(&mut self, destination: &Destination, how: &str) -> Answer {
        let rule = rule_for(destination, how);
        self.granted.push(rule.clone());
        Answer::Rule(Box::new(rule))
    }

    fn keep(&self, destination: &Destination, lifetime: Duration) -> Result<String, String> {
        let now = SystemTime::now();
        let lines = policy_text::kept_rule(destination, now, now + lifetime);
        policy_text::keep(&self.terms.places, &self.terms.state, &lines)
            .map(|path| path.to_string())
            .map_err(|error| error.to_string())
    }

    fn answer_egress(&mut self, ask: u64, answer: Answer) {
        let message = ToEgress::Answer { ask, answer };
        if let Some(channel) = &self.channel
            && let Err(error) = channel.send(&message, &[])
        {
            self.lose(&error.to_string());
        }
    }

    fn reload(&mut self, client: ClientId) -> Result<(), String> {
        let Some(channel) = &self.channel else {
            return Err("the egress process is gone".to_owned());
        };
        if self.reloading.is_some() {
            return Err("another reload is going on".to_owned());
        }
        let replaced = self.terms.reload.network(&self.granted).and_then(|set_up| {
            channel
                .send_set_up(&ToEgress::Replace, &set_up)
                .map_err(|error| error.to_string())
        });
        match replaced {
            Ok(()) => {
                self.reloading = Some(client);
                Ok(())
            }
            Err(reason) => {
                self.note(Event::PolicyReloaded {
                    generation: None,
                    refused: text(&reason),
                });
                Err(reason)
            }
        }
    }

    fn reloaded(&mut self, response: &ControlResponse) {
        if let Some(client) = self.reloading.take() {
            self.control.reply(client, response);
        }
    }

    fn policy_file(&self) -> String {
        format!("{}/stockade.toml", self.terms.places.configuration)
    }
}

impl Held {
    fn shown_now(&self) -> HeldRequest {
        let mut shown = self.shown.clone();
        shown.held_ms = self.since.elapsed().as_millis() as u64;
        shown
    }
}

/// How a person names a held request: the run, then its number.
pub fn ask_name(run: &RunId, ask: u64) -> String {
    format!("{}-{ask}", run.as_str())
}

fn destination_of(ask: &Ask) -> Option<Destination> {
    policy_text::destination(&ask.host)
        .filter(|destination| destination.port() == ask.port)
        .or_else(|| policy_text::destination(&format!("{}:{}", ask.host, ask.port)))
}

/// The narrowest rule that permits a destination.
fn rule_for(destination: &Destination, how: &str) -> NetworkRule {
    let target = match destination.host() {
        Host::Name(name) => Target::Host {
            reach: HostReach::Exact,
            name: name.to_string(),
        },
        Host::Address(address) => {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            // All bits of the address: there are no host bits to be set.
            match Network::new(*address, bits) {
                Some(network) => Target::Network(network),
                None => unreachable!("a whole address is a network"),
            }
        }
    };
    let port = destination.port();
    NetworkRule {
        rule: Rule {
            id: "approval.network".into(),
            origin: "approved by a person".into(),
            reason: format!("approved {how}"),
        },
        target,
        ports: vec![(port, port)],
        tls: match port {
            443 => TlsMode::Passthrough,
            _ => TlsMode::Raw,
        },
        content: None,
        git: None,
        allow_private: Vec::new(),
        no_alias: false,
        budget: Budget::default(),
        expires_unix: None,
    }
}

fn remove_metrics(state: &StateDirectory, run: &RunId) {
    let name = start::metrics_name(run);
    let flags = rustix::fs::AtFlags::empty();
    let _gone = rustix::fs::unlinkat(state, name, flags).is_err();
}
