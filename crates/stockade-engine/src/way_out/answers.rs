//! Held requests and what people answer: on the terminal, or over the control
//! socket.

use std::time::{Duration, Instant, SystemTime};

use stockade_egress::wire::{Answer, Ask, ToEgress};
use stockade_policy::network::address::Network;
use stockade_policy::network::destination::{Destination, Host};
use stockade_policy::network::rules::{Budget, NetworkRule, Target, TlsMode};
use stockade_policy::plan::Rule;
use stockade_policy::value::HostReach;

use super::{WayOut, asker};
use crate::control::{Choice, ClientId, ControlRequest, ControlResponse, HeldRequest};
use crate::events::network::{ApprovalAnswer, entry_name, text};
use crate::events::{Event, RunId};
use crate::policy_text::{self, KEPT_FOR, KEPT_FOR_MAX};

/// Most requests that are held at one time; the egress process holds fewer.
const HELD_MAX: usize = 256;
/// Most destinations whose denial is remembered, so that nobody is asked twice.
const DENIED_MAX: usize = 1024;
/// Most rules that a person adds in one run.
const GRANTED_MAX: usize = 1024;

/// A request that waits for an answer.
pub(super) struct Held {
    pub(super) shown: HeldRequest,
    destination: Option<Destination>,
    since: Instant,
    /// Was part of a question on the terminal, or of a line about it.
    pub(super) told: bool,
}

impl WayOut {
    pub(super) fn hold(&mut self, ask: &Ask) {
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
    pub(super) fn tell_of(&self, held: &[HeldRequest]) {
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
    pub(super) fn forget(&mut self, ask: u64) {
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

    pub(super) fn read_desk(&mut self) {
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

    pub(super) fn serve(&mut self, client: ClientId, request: ControlRequest) {
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
        if self.granted.len() < GRANTED_MAX {
            self.granted.push(rule.clone());
        }
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

    pub(super) fn reloaded(&mut self, response: &ControlResponse) {
        if let Some(client) = self.reloading.take() {
            self.control.reply(client, response);
        }
    }

    pub(super) fn policy_file(&self) -> String {
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
