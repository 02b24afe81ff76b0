//! What all connections of one sandbox share, and what one connection is.
//!
//! Here a destination becomes a conversation: judged, asked about where the
//! policy says so, counted and recorded. How bytes arrive and how they leave
//! is for the entries and for `dial`.

mod conversation;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use stockade_policy::network::address::Network;
use stockade_policy::network::judge::{Denial, Judge, Passage, Ruling};
use stockade_policy::network::rules::{
    Approval, Budget, NetworkPlan, NetworkRule, Target, TlsMode,
};
use stockade_policy::network::{Destination, Host, Name};
use stockade_policy::plan::Rule;
use stockade_policy::value::HostReach;
use tokio::net::TcpStream;
use tokio::sync::watch;

use self::conversation::Basis;
pub use self::conversation::{Conversation, Counters};
use crate::asks::{About, Asks, Held};
use crate::audit::{Audit, Subject};
use crate::budget::Budgets;
use crate::dial;
use crate::git_ssh::GitOverSsh;
use crate::inspect::inspection::Inspection;
use crate::names::synthetic::Synthetic;
use crate::proxy_token::ProxyToken;
use crate::resolve::Resolver;
use crate::wire::{Answer, Entry};

/// Rules that answers and learning add to one run at most.
const GRANTED_MAX: usize = 1024;

/// All that the connections of one sandbox share.
pub struct Context {
    /// The rules in force; replaced as a whole.
    judge: RefCell<Rc<Judge>>,
    /// Counts the replacements; every conversation watches it.
    generation: watch::Sender<u64>,
    /// The plan without what was granted during the run.
    plan: RefCell<NetworkPlan>,
    granted: RefCell<Vec<NetworkRule>>,
    pub audit: Audit,
    pub resolver: RefCell<Rc<Resolver>>,
    pub budgets: Budgets,
    pub asks: Asks,
    /// What inspected connections share.
    pub inspection: Inspection,
    /// `None` where no rule of the first plan speaks of it.
    pub git_over_ssh: Option<GitOverSsh>,
    /// What the explicit proxy wants to be shown; `None` where only the sandbox
    /// can reach it.
    pub proxy_token: Option<ProxyToken>,
    last_connection: Cell<u64>,
    /// Connections of the sandbox that are open, of every entry.
    pub open: Cell<u64>,
    /// Addresses inside that stand for names.
    pub names: RefCell<Synthetic>,
    /// Names that were denied and recorded.
    pub denied_names: RefCell<HashSet<Name>>,
    pub started: Instant,
}

/// Who wants to go where, as an entry has understood it.
#[derive(Clone, Debug)]
pub struct Wish {
    pub connection: u64,
    pub entry: Entry,
    pub destination: Destination,
    /// Method and path, when they are known already.
    pub request: Option<String>,
    /// Port from which the sandbox connected.
    pub client_port: u16,
}

impl Context {
    /// An error when the plan's rules cannot be understood.
    pub fn new(
        plan: NetworkPlan,
        resolver: Resolver,
        inspection: Inspection,
        git_over_ssh: Option<GitOverSsh>,
    ) -> Result<Self, String> {
        Ok(Self {
            judge: RefCell::new(Rc::new(Judge::new(plan.clone())?)),
            generation: watch::Sender::new(1),
            plan: RefCell::new(plan),
            granted: RefCell::default(),
            audit: Audit::default(),
            resolver: RefCell::new(Rc::new(resolver)),
            budgets: Budgets::default(),
            asks: Asks::default(),
            inspection,
            git_over_ssh,
            proxy_token: None,
            last_connection: Cell::new(0),
            open: Cell::new(0),
            names: RefCell::default(),
            denied_names: RefCell::default(),
            started: Instant::now(),
        })
    }

    /// The rules in force.
    pub fn judge(&self) -> Rc<Judge> {
        self.judge.borrow().clone()
    }

    /// Counts replacements of the rules, from 1.
    pub fn generation(&self) -> u64 {
        *self.generation.borrow()
    }

    /// A number for a connection of the sandbox.
    pub fn next_connection(&self) -> u64 {
        let next = self.last_connection.get() + 1;
        self.last_connection.set(next);
        next
    }

    /// Puts new rules in force, together with what was granted during the run;
    /// connections that they do not permit end. An error leaves all as it was.
    pub fn replace(&self, plan: NetworkPlan) -> Result<u64, String> {
        let judge = Judge::new(with_rules(&plan, &self.granted.borrow()))?;
        self.resolver.replace(Rc::new(Resolver::new(&plan)));
        self.plan.replace(plan);
        Ok(self.enforce(judge))
    }

    /// Adds a rule until the run ends. One that is not understood, or one too
    /// many, adds nothing.
    pub fn grant(&self, rule: NetworkRule) -> Result<(), String> {
        let mut granted = self.granted.borrow().clone();
        if granted.len() >= GRANTED_MAX {
            return Err(format!(
                "{GRANTED_MAX} rules were granted in this run already"
            ));
        }
        granted.push(rule);
        let judge = Judge::new(with_rules(&self.plan.borrow(), &granted))?;
        self.granted.replace(granted);
        self.judge.replace(Rc::new(judge));
        Ok(())
    }

    fn enforce(&self, judge: Judge) -> u64 {
        self.judge.replace(Rc::new(judge));
        self.generation.send_modify(|generation| *generation += 1);
        self.generation()
    }

    /// Judges a wish and asks where the policy says so. `gone` ends when the
    /// client has gone; it is looked at only while somebody is asked.
    pub async fn admit(
        self: &Rc<Self>,
        wish: Wish,
        gone: impl Future<Output = ()>,
    ) -> Result<Rc<Conversation>, Denial> {
        let subject = self.subject(&wish);
        let outcome = match self.judge().connection(&wish.destination, now_unix()) {
            Ruling::Permit(passage) => self.open(wish, passage, Basis::Rules),
            Ruling::Denied(denial) => Err(denial),
            Ruling::Unknown(denial) => self.unknown(wish, denial, gone).await,
        };
        match outcome {
            Ok(conversation) => {
                let code = match (&conversation.basis, self.approval()) {
                    (Basis::Answer(_), _) => "approved",
                    (_, approval)
                        if approval.learns() && conversation.passage.rule.id == LEARNED =>
                    {
                        "learned"
                    }
                    _ => "allowed",
                };
                self.audit
                    .allowed(&subject, &conversation.passage.rule, code)
                    .await?;
                Ok(conversation)
            }
            Err(denial) => {
                self.audit.denied(&subject, &denial);
                Err(denial)
            }
        }
    }

    /// A conversation that an offer of the plan permits, whatever the rules
    /// say of its destination.
    pub async fn offer(
        self: &Rc<Self>,
        wish: Wish,
        rule: &Rule,
    ) -> Result<Rc<Conversation>, Denial> {
        let subject = self.subject(&wish);
        let mut passage = offered(wish.destination.clone(), rule.clone());
        // As the judge names it, so that all count against one account.
        let whole = self.judge().plan().budget;
        passage.budgets.push(("network".to_owned(), whole));
        match self.open(wish, passage, Basis::Offer(rule.clone())) {
            Ok(conversation) => {
                self.audit.allowed(&subject, rule, "allowed").await?;
                Ok(conversation)
            }
            Err(denial) => {
                self.audit.denied(&subject, &denial);
                Err(denial)
            }
        }
    }

    /// Opens a connection to a host that the policy names outside its rules:
    /// the place where a credential is minted. Judged as if an exact rule
    /// without private networks permitted it, unless a rule does.
    pub async fn dial_named(&self, destination: &Destination) -> Result<TcpStream, Denial> {
        let passage = match self.judge().connection(destination, now_unix()) {
            Ruling::Permit(passage) => passage,
            Ruling::Denied(denial) => return Err(denial),
            Ruling::Unknown(denial) => {
                let rule = self.exact_rule(destination, "credential");
                self.passage_by(rule, destination).ok_or(denial)?.0
            }
        };
        let resolver = self.resolver.borrow().clone();
        let vetted = resolver.vet(&self.judge(), destination, &passage).await?;
        dial::connect(&vetted).await
    }

    pub fn approval(&self) -> Approval {
        self.plan.borrow().approval
    }

    async fn unknown(
        self: &Rc<Self>,
        wish: Wish,
        denial: Denial,
        gone: impl Future<Output = ()>,
    ) -> Result<Rc<Conversation>, Denial> {
        match self.approval() {
            Approval::Deny => Err(denial),
            Approval::Learn | Approval::LearnRequests => {
                let rule = self.exact_rule(&wish.destination, LEARNED);
                self.grant(rule)
                    .map_err(|reason| because(&denial, reason))?;
                self.judge_again(wish, denial)
            }
            Approval::Ask => self.ask(wish, denial, gone).await,
        }
    }

    async fn ask(
        self: &Rc<Self>,
        wish: Wish,
        denial: Denial,
        gone: impl Future<Output = ()>,
    ) -> Result<Rc<Conversation>, Denial> {
        self.audit.held(&self.subject(&wish), &denial);
        let about = About {
            destination: &wish.destination,
            entry: wish.entry,
            request: wish.request.clone(),
            client_port: wish.client_port,
        };
        let wait = Duration::from_millis(self.plan.borrow().approval_wait_ms.min(60_000));
        let held = self.asks.hold(&self.audit, &about, wait, gone).await;
        let refused = |code, reason: &str| Denial {
            code,
            reason: reason.to_owned(),
            ..denial.clone()
        };
        match held {
            Held::Answered(Answer::Once) => {
                let rule = self.exact_rule(&wish.destination, "approval.once");
                let (passage, rule) = self
                    .passage_by(rule, &wish.destination)
                    .ok_or_else(|| denial.clone())?;
                self.open(wish, passage, Basis::Answer(Box::new(rule)))
            }
            Held::Answered(Answer::Rule(rule)) => {
                self.grant(*rule)
                    .map_err(|reason| because(&denial, reason))?;
                self.judge_again(wish, denial)
            }
            Held::Answered(Answer::Deny) => Err(refused("approval-denied", "you said no")),
            Held::TimedOut => Err(refused("approval-timeout", "nobody answered in time")),
            Held::Abandoned => Err(refused("approval-timeout", "the client did not wait")),
            Held::TooMany => Err(refused(
                "approval-timeout",
                "too many requests wait for an answer already",
            )),
        }
    }

    /// After a grant: only the rules, so that a grant that does not cover the
    /// wish permits nothing.
    fn judge_again(
        self: &Rc<Self>,
        wish: Wish,
        denial: Denial,
    ) -> Result<Rc<Conversation>, Denial> {
        match self.judge().connection(&wish.destination, now_unix()) {
            Ruling::Permit(passage) => self.open(wish, passage, Basis::Rules),
            Ruling::Denied(denial) => Err(denial),
            Ruling::Unknown(_) => Err(denial),
        }
    }

    /// What the rules in force and `rule` say together.
    fn passage_by(
        &self,
        rule: NetworkRule,
        destination: &Destination,
    ) -> Option<(Passage, NetworkRule)> {
        let judge = self.judge_with(&rule)?;
        match judge.connection(destination, now_unix()) {
            Ruling::Permit(passage) => Some((passage, rule)),
            _ => None,
        }
    }

    fn judge_with(&self, rule: &NetworkRule) -> Option<Judge> {
        let mut rules = self.granted.borrow().clone();
        rules.push(rule.clone());
        Judge::new(with_rules(&self.plan.borrow(), &rules)).ok()
    }

    /// The rule that permits exactly this destination, as an entry of
    /// `network.allow` would.
    fn exact_rule(&self, destination: &Destination, id: &str) -> NetworkRule {
        let (target, allow_private) = match destination.host() {
            Host::Name(name) => {
                let (reach, name) = (HostReach::Exact, name.as_str().to_owned());
                (Target::Host { reach, name }, Vec::new())
            }
            Host::Address(address) => {
                let bits = if address.is_ipv4() { 32 } else { 128 };
                let network = Network::new(*address, bits);
                let network = network.expect("a full-length prefix has no host bits");
                // The address that was named is the one that is permitted.
                (Target::Network(network), vec![network])
            }
        };
        let port = destination.port();
        let bound = self.judge().bindings_for(destination).next().is_some();
        NetworkRule {
            rule: Rule {
                id: id.to_owned(),
                origin: "this run".to_owned(),
                reason: String::new(),
            },
            target,
            ports: vec![(port, port)],
            tls: match port {
                _ if bound => TlsMode::Inspect,
                80 | 443 if self.approval() == Approval::LearnRequests => TlsMode::Inspect,
                80 | 443 => TlsMode::Passthrough,
                _ => TlsMode::Raw,
            },
            content: None,
            git: None,
            allow_private,
            no_alias: false,
            budget: Budget::default(),
            expires_unix: None,
        }
    }

    fn open(
        self: &Rc<Self>,
        wish: Wish,
        passage: Passage,
        basis: Basis,
    ) -> Result<Rc<Conversation>, Denial> {
        let charge = self.budgets.open(&passage.budgets)?;
        self.audit.opened();
        Ok(Rc::new(Conversation {
            context: self.clone(),
            id: wish.connection,
            entry: wish.entry,
            client_port: wish.client_port,
            destination: wish.destination,
            passage,
            generation: self.generation(),
            counters: Rc::default(),
            basis,
            charge,
            started: Instant::now(),
        }))
    }

    fn subject(&self, wish: &Wish) -> Subject {
        Subject {
            connection: wish.connection,
            entry: wish.entry,
            destination: wish.destination.to_string(),
            request: wish.request.clone(),
            generation: self.generation(),
        }
    }
}

impl Context {
    fn is_offered(&self, rule: &Rule) -> bool {
        let plan = self.plan.borrow();
        plan.host_ports.iter().any(|offer| offer.rule.id == rule.id)
            || plan.publish.iter().any(|offer| offer.rule.id == rule.id)
            || plan.sockets.iter().any(|offer| offer.rule.id == rule.id)
    }
}

/// A denial that no rule wrote.
pub fn denial(code: &'static str, reason: impl Into<String>) -> Denial {
    Denial {
        code,
        rule: String::new(),
        origin: String::new(),
        reason: reason.into(),
        smallest_grant: None,
    }
}

/// Why a conversation ends that was permitted once.
pub fn revoked() -> Denial {
    denial("expired", "the rules no longer permit this connection")
}

/// Seconds since 1970; a clock before that is at 1970.
pub fn now_unix() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Id of rules that learning adds.
const LEARNED: &str = "learned";

fn because(denial: &Denial, reason: String) -> Denial {
    Denial {
        reason,
        ..denial.clone()
    }
}

/// The plan with `rules` beside those of the granting layers. Ceilings of the
/// other layers hold for them as well.
fn with_rules(plan: &NetworkPlan, rules: &[NetworkRule]) -> NetworkPlan {
    let mut plan = plan.clone();
    if rules.is_empty() {
        return plan;
    }
    if plan.sets.is_empty() {
        plan.sets.push(Default::default());
    }
    plan.sets[0].rules.extend_from_slice(rules);
    plan
}

fn offered(destination: Destination, rule: Rule) -> Passage {
    Passage {
        destination,
        rule,
        rules: Vec::new(),
        tls: TlsMode::Raw,
        allow_private: Vec::new(),
        no_alias: false,
        websocket: false,
        budgets: Vec::new(),
        expires_unix: None,
        has_content: false,
        has_git: false,
        has_binding: false,
        git_over_ssh: false,
    }
}
