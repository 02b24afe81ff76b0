//! Decides what the rules of the way out say about one destination, request or
//! git operation. The egress process asks nobody else, and neither does
//! `stockade test`.
//!
//! A decision is a function of the plan, the question and the time that the
//! caller hands in. Deny rules are asked first. Then every rule set must
//! permit: of a set's rules that hold the destination's host and port, and have
//! not expired, only the most specific ones speak, and of those the ones that
//! demand something of the content before the ones that demand nothing.

mod check;
mod git;
mod grants;
mod request;

use std::net::IpAddr;

use super::address::{self, Class, Network};
use super::destination::{Destination, Host, Name};
use super::pattern::Pattern;
use super::rules::{
    Approval, Binding, Budget, DenyRule, NetworkPlan, NetworkRule, Target, TlsMode, holds_port,
};
use super::trie::Index;
use crate::plan::Rule;

pub use git::{GitAction, GitOperation, GitPermit, RefUpdate};
pub use grants::requests::{Requests, rules as rules_for_requests};
pub use request::{RequestHead, RequestPermit};

/// A plan, compiled.
pub struct Judge {
    plan: NetworkPlan,
    sets: Vec<CompiledSet>,
    deny: Index,
}

/// What a question gets for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling<T> {
    Permit(T),
    Denied(Denial),
    /// No rule names it: ask, learn, or deny.
    Unknown(Denial),
}

/// Why something is denied, and the least that would allow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// Stable; programs read it.
    pub code: &'static str,
    /// Id of the rule that spoke.
    pub rule: String,
    /// Where that rule was written.
    pub origin: String,
    /// A sentence for people.
    pub reason: String,
    /// Lines of a policy document; `None` when no policy can allow it.
    pub smallest_grant: Option<String>,
}

/// A connection that may be made, and what it is held to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage {
    pub destination: Destination,
    /// The rule that speaks first.
    pub rule: Rule,
    /// Every rule that speaks: number of the set, number of the rule in it.
    /// Empty when a person, and no rule, permitted it.
    pub rules: Vec<(usize, usize)>,
    pub tls: TlsMode,
    /// Private networks in which the destination may be found.
    pub allow_private: Vec<Network>,
    pub no_alias: bool,
    /// Some rule lets requests become WebSockets.
    pub websocket: bool,
    /// Each with a stable name under which it is counted. Holds the budgets of
    /// a rule only when no other rule of its set could permit a request
    /// instead; the others come with each request's permit.
    pub budgets: Vec<(String, Budget)>,
    /// The earliest moment at which some rule that speaks expires.
    pub expires_unix: Option<u64>,
    pub has_content: bool,
    pub has_git: bool,
    pub has_binding: bool,
    /// The port is one on which a git rule speaks SSH.
    pub git_over_ssh: bool,
}

struct CompiledSet {
    index: Index,
    patterns: Vec<RulePatterns>,
}

/// The patterns of one rule, in the order of their lists.
#[derive(Default)]
struct RulePatterns {
    paths: Vec<Pattern>,
    query: Vec<Pattern>,
    headers: Vec<Pattern>,
    read: Vec<Pattern>,
    push: Vec<Pattern>,
    refs: Vec<Pattern>,
}

/// Names that never leave (RFC 6761), whatever a rule says.
const NEVER_NAMES: [&str; 2] = ["localhost", "invalid"];

impl Judge {
    /// Checks and compiles a plan. An error refuses the set-up or the reload.
    pub fn new(plan: NetworkPlan) -> Result<Self, String> {
        check::plan(&plan)?;
        let sets = plan
            .sets
            .iter()
            .map(|set| {
                let patterns: Result<Vec<_>, String> =
                    set.rules.iter().map(RulePatterns::new).collect();
                Ok(CompiledSet {
                    index: Index::new(set.rules.iter().map(|rule| &rule.target)),
                    patterns: patterns?,
                })
            })
            .collect::<Result<Vec<_>, String>>()?;
        let deny = Index::new(plan.deny.iter().map(|rule| &rule.target));
        Ok(Self { plan, sets, deny })
    }

    pub fn plan(&self) -> &NetworkPlan {
        &self.plan
    }

    /// Whether a connection may be made; `now_unix` in seconds.
    pub fn connection(&self, destination: &Destination, now_unix: u64) -> Ruling<Passage> {
        if let Some(denial) = self.beyond_rules(destination) {
            return Ruling::Denied(denial);
        }
        match self.speaking(destination, now_unix) {
            Ok(speaking) => Ruling::Permit(self.passage(destination, &speaking)),
            Err(Silent::Granting(denial)) => Ruling::Unknown(denial),
            Err(Silent::Ceiling(denial)) => Ruling::Denied(denial),
        }
    }

    /// The passage for a destination that a person, or learning, permitted and
    /// that no rule names. `connection` must have said `Unknown` to it.
    pub fn provisional(&self, destination: &Destination) -> Passage {
        let binding = self.bindings_for(destination).next().is_some();
        let allow_private = match destination.host() {
            // The address that was named is the one that was permitted.
            Host::Address(address) => vec![Network::around(*address, 128)],
            Host::Name(_) => Vec::new(),
        };
        Passage {
            destination: destination.clone(),
            rule: Rule {
                id: "approval".to_owned(),
                origin: "this run".to_owned(),
                reason: "permitted for this run".to_owned(),
            },
            rules: Vec::new(),
            tls: match (binding, destination.port()) {
                (true, _) => TlsMode::Inspect,
                (false, 443 | 80) => TlsMode::Passthrough,
                (false, _) => TlsMode::Raw,
            },
            allow_private,
            no_alias: false,
            websocket: !binding,
            budgets: vec![self.whole_budget()],
            expires_unix: None,
            has_content: false,
            has_git: false,
            has_binding: binding,
            git_over_ssh: false,
        }
    }

    /// Whether an address of a permitted destination may be dialled: neither
    /// on the floor, nor denied, nor private without a rule that says so. The
    /// address judged must be the one dialled.
    pub fn address(&self, passage: &Passage, address: IpAddr) -> Result<(), Denial> {
        for (face, class) in address::faces(address, &self.plan.nat64) {
            let shown = match face == address {
                true => format!("{address}"),
                false => format!("{address} (which stands for {face})"),
            };
            if let Class::Never(what) = class {
                let named = passage.destination.host();
                return Err(floor(&format!("{named} is at {shown}: {what}")));
            }
            if let Some(rule) = self.denied_by(&Host::Address(face), passage.destination.port()) {
                return Err(denied_by_rule(rule, &shown));
            }
            let Class::Private(what) = class else {
                continue;
            };
            let named = |network: &Network| network.contains(face);
            if !passage.allow_private.iter().any(named) {
                return Err(Denial {
                    code: "private-address",
                    rule: passage.rule.id.clone(),
                    origin: passage.rule.origin.clone(),
                    reason: format!(
                        "{} is at {shown}: {what}, and no rule allows it there",
                        passage.destination.host()
                    ),
                    smallest_grant: Some(grants::private(&passage.destination, face)),
                });
            }
        }
        Ok(())
    }

    /// Whether the name of an alias is within what the passage's rules name;
    /// to be asked for every name of a chain when `no_alias` is set.
    pub fn alias(&self, passage: &Passage, alias: &Name) -> Result<(), Denial> {
        let host = Host::Name(alias.clone());
        for &(set, number) in &passage.rules {
            let rule = &self.plan.sets[set].rules[number];
            if rule.no_alias && !rule.target.holds(&host) {
                return Err(Denial {
                    code: "alias",
                    rule: rule.rule.id.clone(),
                    origin: rule.rule.origin.clone(),
                    reason: format!(
                        "{} is an alias of {alias}, which the rule does not name",
                        passage.destination.host()
                    ),
                    smallest_grant: None,
                });
            }
        }
        Ok(())
    }

    /// Whether the name may be answered: some rule could permit some port.
    pub fn resolvable(&self, name: &Name, now_unix: u64) -> Ruling<()> {
        let host = Host::Name(name.clone());
        if let Some(denial) = never_named(name) {
            return Ruling::Denied(denial);
        }
        let whole = |rule: &&DenyRule| rule.ports.is_empty();
        if let Some(rule) = self.deny_rules(&host).find(whole) {
            return Ruling::Denied(denied_by_rule(rule, name.as_str()));
        }
        for (number, set) in self.sets.iter().enumerate() {
            let rules = &self.plan.sets[number].rules;
            let mut held = set.index.groups(&host).into_iter().flatten();
            if !held.any(|rule| lives(&rules[*rule], now_unix)) {
                let denial = self.not_allowed(number, &format!("{name}"), grants::name(name));
                return match number {
                    0 => self.unknown_unless_ceiling(denial, &host, now_unix),
                    _ => Ruling::Denied(denial),
                };
            }
        }
        match self.sets.is_empty() {
            true => Ruling::Unknown(self.not_allowed(0, name.as_str(), grants::name(name))),
            false => Ruling::Permit(()),
        }
    }

    /// Id of the wildcard rule under which a name is answered, by which new
    /// names are counted; `None` when a rule names it exactly.
    pub fn wildcard(&self, name: &Name, now_unix: u64) -> Option<&str> {
        let set = self.sets.first()?;
        let rules = &self.plan.sets[0].rules;
        let groups = set.index.groups(&Host::Name(name.clone()));
        let most_specific = groups
            .into_iter()
            .flatten()
            .map(|rule| &rules[*rule])
            .find(|rule| lives(rule, now_unix))?;
        let exact = matches!(&most_specific.target, Target::Host { name: named, .. } if named == name.as_str());
        (!exact).then_some(most_specific.rule.id.as_str())
    }

    /// The credentials that are bound to a destination, with their numbers.
    pub fn bindings_for(
        &self,
        destination: &Destination,
    ) -> impl Iterator<Item = (usize, &Binding)> {
        let bound = |binding: &Binding| {
            binding.host.holds(destination.host()) && holds_port(&binding.ports, destination.port())
        };
        let numbered = self.plan.credentials.iter().enumerate();
        numbered.filter(move |(_, binding)| bound(binding))
    }

    /// The floor and the deny rules.
    fn beyond_rules(&self, destination: &Destination) -> Option<Denial> {
        match destination.host() {
            Host::Name(name) => {
                if let Some(denial) = never_named(name) {
                    return Some(denial);
                }
            }
            Host::Address(address) => {
                if let Class::Never(what) = address::classify(*address, &self.plan.nat64) {
                    return Some(floor(&format!("{address} is beyond any rule: {what}")));
                }
            }
        }
        self.denied_by(destination.host(), destination.port())
            .map(|rule| denied_by_rule(rule, &destination.to_string()))
    }

    fn denied_by(&self, host: &Host, port: u16) -> Option<&DenyRule> {
        self.deny_rules(host)
            .find(|rule| rule.ports.is_empty() || holds_port(&rule.ports, port))
    }

    fn deny_rules(&self, host: &Host) -> impl Iterator<Item = &DenyRule> {
        let found = self.deny.groups(host).into_iter().flatten();
        found.map(|number| &self.plan.deny[*number])
    }

    /// The rules that speak about a destination, for each set.
    fn speaking(
        &self,
        destination: &Destination,
        now_unix: u64,
    ) -> Result<Vec<Vec<usize>>, Silent> {
        let mut speaking = Vec::with_capacity(self.sets.len().max(1));
        let mut granting = None;
        for number in 0..self.sets.len().max(1) {
            let rules = self.speaking_of(number, destination, now_unix);
            if rules.is_empty() {
                let denial = self.silence(number, destination, now_unix);
                match number {
                    0 => granting = Some(denial),
                    // What a person could grant would change nothing here.
                    _ => return Err(Silent::Ceiling(denial)),
                }
            }
            speaking.push(rules);
        }
        match granting {
            Some(denial) => Err(Silent::Granting(denial)),
            None => Ok(speaking),
        }
    }

    fn speaking_of(&self, set: usize, destination: &Destination, now_unix: u64) -> Vec<usize> {
        let Some(compiled) = self.sets.get(set) else {
            return Vec::new();
        };
        let rules = &self.plan.sets[set].rules;
        let holds =
            |rule: &NetworkRule| holds_this_port(rule, destination.port()) && lives(rule, now_unix);
        for group in compiled.index.groups(destination.host()) {
            let held = group.iter().copied().filter(|rule| holds(&rules[*rule]));
            let (demanding, plain): (Vec<usize>, Vec<usize>) =
                held.partition(|rule| demands(&rules[*rule]));
            if !demanding.is_empty() {
                return demanding;
            }
            if !plain.is_empty() {
                return plain;
            }
        }
        Vec::new()
    }

    fn passage(&self, destination: &Destination, speaking: &[Vec<usize>]) -> Passage {
        let mut rules = Vec::new();
        let mut budgets = vec![self.whole_budget()];
        let mut private: Option<Vec<Network>> = None;
        for (set, numbers) in speaking.iter().enumerate() {
            rules.extend(numbers.iter().map(|number| (set, *number)));
            let list = numbers
                .iter()
                .flat_map(|number| private_networks(&self.plan.sets[set].rules[*number]))
                .collect();
            private = Some(match private {
                None => list,
                Some(so_far) => met(&so_far, &list),
            });
            if let [only] = numbers[..] {
                budgets.push(self.budget(set, only));
            }
        }
        let all = || {
            rules
                .iter()
                .map(|(set, number)| &self.plan.sets[*set].rules[*number])
        };
        let has_content = all().any(|rule| rule.content.is_some());
        let git_over_ssh = all().any(|rule| ssh_port(rule) == Some(destination.port()));
        let has_git = all().any(|rule| rule.git.is_some());
        let has_binding = self.bindings_for(destination).next().is_some();
        let inspected = has_content || has_binding || (has_git && !git_over_ssh);
        let strictest = all().map(|rule| rule.tls).max_by_key(strictness);
        let tls = match strictest {
            _ if git_over_ssh => TlsMode::Raw,
            Some(tls) if !inspected => tls,
            _ => TlsMode::Inspect,
        };
        Passage {
            destination: destination.clone(),
            rule: rules
                .first()
                .map(|(set, number)| self.plan.sets[*set].rules[*number].rule.clone())
                .unwrap_or_else(default_rule),
            tls,
            allow_private: private.unwrap_or_default(),
            no_alias: all().any(|rule| rule.no_alias),
            websocket: speaking.iter().enumerate().all(|(set, numbers)| {
                let rules = &self.plan.sets[set].rules;
                numbers
                    .iter()
                    .any(|number| request::takes_websockets(&rules[*number], has_binding))
            }),
            budgets,
            expires_unix: all().filter_map(|rule| rule.expires_unix).min(),
            has_content,
            has_git,
            has_binding,
            git_over_ssh,
            rules,
        }
    }

    fn whole_budget(&self) -> (String, Budget) {
        ("network".to_owned(), self.plan.budget)
    }

    fn budget(&self, set: usize, number: usize) -> (String, Budget) {
        let rule = &self.plan.sets[set].rules[number];
        let name = format!("{} ({})", rule.rule.id, rule.rule.origin);
        (name, rule.budget)
    }

    /// Why no rule of a set speaks about a destination.
    fn silence(&self, set: usize, destination: &Destination, now_unix: u64) -> Denial {
        let grant = grants::destination(destination);
        let mut denial = self.not_allowed(set, &destination.to_string(), grant);
        let Some(compiled) = self.sets.get(set) else {
            return denial;
        };
        let rules = &self.plan.sets[set].rules;
        let groups = compiled.index.groups(destination.host());
        for rule in groups.into_iter().flatten().map(|rule| &rules[*rule]) {
            let (id, origin) = (&rule.rule.id, &rule.rule.origin);
            let (code, why) = match (
                lives(rule, now_unix),
                holds_this_port(rule, destination.port()),
            ) {
                (false, true) => ("expired", "has expired"),
                (true, false) => ("not-allowed", "names the host with other ports"),
                _ => continue,
            };
            denial.code = code;
            denial.reason = format!("{}: {id} ({origin}) {why}", denial.reason);
            break;
        }
        denial
    }

    fn not_allowed(&self, set: usize, what: &str, grant: String) -> Denial {
        match (set, self.plan.sets.get(set)) {
            (1.., Some(ceiling)) => Denial {
                code: "not-allowed",
                rule: "network.allow".to_owned(),
                origin: ceiling.origin.clone(),
                reason: format!(
                    "{what} is not within what {} allows at most",
                    ceiling.origin
                ),
                smallest_grant: None,
            },
            _ => Denial {
                code: "not-allowed",
                rule: "network.allow".to_owned(),
                origin: "built-in".to_owned(),
                reason: format!("no rule allows {what}"),
                smallest_grant: Some(grant),
            },
        }
    }

    /// A name that no granting rule holds is only worth a question when no
    /// ceiling forbids it.
    fn unknown_unless_ceiling(&self, denial: Denial, host: &Host, now_unix: u64) -> Ruling<()> {
        for (number, set) in self.sets.iter().enumerate().skip(1) {
            let rules = &self.plan.sets[number].rules;
            let mut held = set.index.groups(host).into_iter().flatten();
            if !held.any(|rule| lives(&rules[*rule], now_unix)) {
                let what = host.to_string();
                return Ruling::Denied(self.not_allowed(number, &what, String::new()));
            }
        }
        Ruling::Unknown(denial)
    }
}

impl<T> Ruling<T> {
    /// The permit, where what no rule names is denied.
    pub fn or_denied(self) -> Result<T, Denial> {
        match self {
            Self::Permit(permit) => Ok(permit),
            Self::Denied(denial) | Self::Unknown(denial) => Err(denial),
        }
    }
}

impl NetworkPlan {
    /// What denies everything.
    pub fn nothing() -> Self {
        Self {
            sets: Vec::new(),
            deny: Vec::new(),
            credentials: Vec::new(),
            approval: Approval::Deny,
            approval_wait_ms: 0,
            publish: Vec::new(),
            host_ports: Vec::new(),
            sockets: Vec::new(),
            budget: Budget::default(),
            capture: super::rules::Capture::Transparent,
            resolvers: Vec::new(),
            roots: Vec::new(),
            upstream_proxy: None,
            nat64: Vec::new(),
            metrics: false,
        }
    }

    /// Whether some connection is ended and begun again here, so that programs
    /// inside have to trust the sandbox's own authority.
    pub fn inspects(&self) -> bool {
        let inspected = |rule: &NetworkRule| rule.tls == TlsMode::Inspect || demands(rule);
        let granted = self.sets.iter().take(1).flat_map(|set| &set.rules);
        let mut ceilings = self.sets.iter().skip(1).flat_map(|set| &set.rules);
        !self.credentials.is_empty()
            || self.approval == Approval::LearnRequests
            || granted.into_iter().any(inspected)
            || ceilings.any(inspected)
    }
}

enum Silent {
    /// No rule of those that grant.
    Granting(Denial),
    /// No rule of a layer that takes away.
    Ceiling(Denial),
}

fn lives(rule: &NetworkRule, now_unix: u64) -> bool {
    rule.expires_unix.is_none_or(|end| now_unix < end)
}

fn demands(rule: &NetworkRule) -> bool {
    rule.content.is_some() || rule.git.is_some()
}

fn ssh_port(rule: &NetworkRule) -> Option<u16> {
    rule.git.as_ref().and_then(|git| git.ssh_port)
}

fn holds_this_port(rule: &NetworkRule, port: u16) -> bool {
    holds_port(&rule.ports, port) || ssh_port(rule) == Some(port)
}

/// The private networks of a rule. One that names private addresses says so
/// itself; one that names all addresses does not mean the neighbours.
fn private_networks(rule: &NetworkRule) -> impl Iterator<Item = Network> {
    let own = match &rule.target {
        Target::Network(network) => network.is_private().then_some(*network),
        Target::Host { .. } => None,
    };
    rule.allow_private.iter().copied().chain(own)
}

fn met(left: &[Network], right: &[Network]) -> Vec<Network> {
    let pairs = left
        .iter()
        .flat_map(|one| right.iter().map(move |other| one.meet(other)));
    pairs.flatten().collect()
}

fn strictness(tls: &TlsMode) -> u8 {
    match tls {
        TlsMode::Raw => 0,
        TlsMode::Passthrough => 1,
        TlsMode::Inspect => 2,
    }
}

fn never_named(name: &Name) -> Option<Denial> {
    let last = name.labels().next_back().unwrap_or_default();
    NEVER_NAMES.contains(&last).then(|| {
        floor(&format!(
            "{name} is beyond any rule: no name below {last} is outside (RFC 6761)"
        ))
    })
}

fn floor(reason: &str) -> Denial {
    Denial {
        code: "floor",
        rule: "built-in.floor".to_owned(),
        origin: "built-in".to_owned(),
        reason: reason.to_owned(),
        smallest_grant: None,
    }
}

fn denied_by_rule(rule: &DenyRule, what: &str) -> Denial {
    Denial {
        code: "denied-by-rule",
        rule: rule.rule.id.clone(),
        origin: rule.rule.origin.clone(),
        reason: format!(
            "{what} is denied by {} ({})",
            rule.rule.id, rule.rule.origin
        ),
        smallest_grant: None,
    }
}

fn default_rule() -> Rule {
    Rule {
        id: "network.allow".to_owned(),
        origin: "built-in".to_owned(),
        reason: "an empty list denies all".to_owned(),
    }
}

#[cfg(test)]
mod tests;
