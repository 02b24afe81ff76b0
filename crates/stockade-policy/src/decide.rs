//! Answers what a plan allows, and with which rule; enforcement carries out
//! the same plan.

use serde::Serialize;

use crate::caches;
use crate::compile::{places, secrets};
use crate::credentials;
use crate::git;
use crate::guard::{Judged, Strength};
use crate::network;
use crate::network::destination::{Destination, Host, RawHost};
use crate::network::judge::Ruling;
use crate::network::rules::{Approval, TlsMode};
use crate::path::{AbsolutePath, printable};
use crate::plan::{Access, Action, Form, Grant, Mask, Plan, Rule};

/// Links of the view that one question may go through (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// What somebody wants to know. Paths have the links of the host resolved;
/// links that the view itself makes (/bin, /dev/fd) are followed here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    Read(AbsolutePath),
    Write(AbsolutePath),
    Execute(AbsolutePath),
    Connect { host: String, port: u16 },
}

/// The answer, with the rule that spoke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Permit { rule: Rule, note: Option<String> },
    Denied(Denial),
}

/// Why something is denied and the least that would allow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    pub question: Question,
    pub rule: Rule,
    pub reason: String,
    /// Lines of a policy document.
    pub smallest_grant: Option<String>,
    /// Whether a person could allow it at all, in a policy of their own.
    pub person_may_grant: bool,
}

/// A denial for programs; stable within its version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DenialV1 {
    pub version: u32,
    /// `read`, `write`, `execute` or `connect`.
    pub action: &'static str,
    /// Path, or host and port.
    pub object: String,
    pub rule: String,
    pub origin: String,
    pub reason: String,
    pub smallest_grant: Option<String>,
    pub person_may_grant: bool,
}

/// Decides one question. What is hidden stays hidden, whatever is granted
/// below it; else the most specific grant speaks.
///
/// Of rules that expire it is assumed that they have: [`decide_at`] knows the
/// moment.
pub fn decide(plan: &Plan, question: &Question) -> Decision {
    decide_at(plan, question, u64::MAX)
}

/// As [`decide`], at a moment in seconds since 1970: rules may expire.
pub fn decide_at(plan: &Plan, question: &Question, now_unix: u64) -> Decision {
    let (path, need) = match question {
        Question::Read(path) => (path, Need::Read),
        Question::Write(path) => (path, Need::Write),
        Question::Execute(path) => (path, Need::Execute),
        Question::Connect { host, port } => return connect(plan, question, host, *port, now_unix),
    };
    let place = follow(plan, path);
    let judge = Judge {
        plan,
        question,
        path: &place,
        need,
        home: home(plan),
    };
    let mask = nearest(&plan.masks, &place, |mask| &mask.path);
    let grant = nearest(&plan.grants, &place, |grant| &grant.path);
    match (mask, grant) {
        (Some(mask), _) => judge.by_mask(mask),
        (None, Some(grant)) => judge.by_grant(grant),
        (None, None) => judge.by_default(plan),
    }
}

impl Question {
    fn action(&self) -> &'static str {
        match self {
            Self::Read(_) => "read",
            Self::Write(_) => "write",
            Self::Execute(_) => "execute",
            Self::Connect { .. } => "connect",
        }
    }

    fn object(&self) -> String {
        match self {
            Self::Read(path) | Self::Write(path) | Self::Execute(path) => path.to_string(),
            Self::Connect { host, port } => format!("{}:{port}", printable(host.as_bytes())),
        }
    }
}

impl Denial {
    /// What a person would do to allow it, lines of a policy or words; `None`
    /// when no policy can.
    pub fn remedy(&self) -> Option<String> {
        let grant = self.smallest_grant.as_deref().map(str::trim_end);
        let change = || match self.rule.id.starts_with("credential.") {
            true => "grant exactly this place and add \"FS3\" to weaken".to_owned(),
            false => format!("change {} ({})", self.rule.id, self.rule.origin),
        };
        self.person_may_grant
            .then(|| grant.map_or_else(change, str::to_owned))
    }

    /// The denial as a record that an agent can act on.
    pub fn record(&self) -> DenialV1 {
        DenialV1 {
            version: 1,
            action: self.question.action(),
            object: self.question.object(),
            rule: self.rule.id.clone(),
            origin: self.rule.origin.clone(),
            reason: self.reason.clone(),
            smallest_grant: self.smallest_grant.clone(),
            person_may_grant: self.person_may_grant,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Read,
    Write,
    Execute,
}

/// What would allow something that is denied.
enum Grantable {
    ByPath,
    /// A person can, but not by adding a line.
    ByChange,
    Never,
}

struct Judge<'a> {
    plan: &'a Plan,
    question: &'a Question,
    /// Links of the view followed.
    path: &'a AbsolutePath,
    need: Need,
    home: AbsolutePath,
}

impl Judge<'_> {
    fn by_grant(&self, grant: &Grant) -> Decision {
        let rule = &grant.rule;
        match (grant.private, grant.access, self.need) {
            (false, Access::Write, Need::Execute) if rule.id == "built-in.devices" => self.denied(
                rule,
                "a device is not a program".to_owned(),
                Grantable::Never,
            ),
            (false, Access::Read, Need::Write) => {
                let reason = format!("{} is granted for reading only", grant.path);
                self.denied(rule, reason, Grantable::ByPath)
            }
            (false, Access::Write, Need::Write) => self.by_guard(rule),
            (false, ..) => permit(rule, None),
            (true, Access::Write, _) if rule.id == caches::RULE => {
                permit(rule, Some("kept for later runs in this project"))
            }
            (true, Access::Write, Need::Write) => {
                permit(rule, Some("private: it is gone after the run"))
            }
            (true, Access::Read, Need::Read) => {
                permit(rule, Some("shows this run, not the machine"))
            }
            (true, Access::Read, _) => {
                let reason = format!("{} only shows this run to its readers", grant.path);
                self.denied(rule, reason, Grantable::Never)
            }
            (true, Access::Write, Need::Read) if git::is_own_file(&rule.id) => {
                permit(rule, Some("made for this run"))
            }
            (true, Access::Write, Need::Read) if *self.path == grant.path => {
                permit(rule, Some("a private directory, empty at the start"))
            }
            (true, Access::Write, Need::Read | Need::Execute) => {
                let reason = format!("{} is private; the host's content is absent", grant.path);
                self.absent(rule, reason)
            }
        }
    }

    /// Where a step keeps the guard, what it says of the name counts.
    fn by_guard(&self, granted: &Rule) -> Decision {
        let guarded = self.plan.guarded(self.path);
        let Some(guarded) = guarded.filter(|_| self.plan.keeps_guard()) else {
            return permit(granted, None);
        };
        if self.plan.form == Form::Seatbelt && guarded.strength == Strength::Hold {
            let reason = format!(
                "it is guarded ({}), and Seatbelt can only refuse what would be kept for approval",
                guarded.rule.reason
            );
            return self.denied(&guarded.rule, reason, Grantable::ByChange);
        }
        let condition = match guarded.judged {
            Judged::Always => "",
            Judged::GitConfig => " where its keys run something",
            Judged::GitPointer => " where it leads elsewhere",
        };
        match (guarded.strength, self.plan.guard.refused_by()) {
            (Strength::Report, _) => {
                let note = format!("named in the report: {}", guarded.rule.reason);
                permit(granted, Some(&note))
            }
            (Strength::Hold, None) => {
                let note = format!("held{condition} until you approve it; nothing appears outside");
                permit(&guarded.rule, Some(&note))
            }
            (Strength::Hold, Some(_)) if guarded.judged != Judged::Always => {
                permit(&guarded.rule, Some(&format!("refused{condition}")))
            }
            (Strength::Hold, Some(refused)) => {
                let reason = format!(
                    "it is guarded ({}), and {} ({}) refuses what is",
                    guarded.rule.reason, refused.id, refused.origin
                );
                self.denied(&guarded.rule, reason, Grantable::ByChange)
            }
        }
    }

    fn by_mask(&self, mask: &Mask) -> Decision {
        let instead = match mask.committed {
            true => "; what git's index holds stands there, read-only",
            false => "",
        };
        let reason = format!("{} is hidden: {}{instead}", mask.path, mask.rule.reason);
        let grantable = match mask.rule.id.as_str() {
            "built-in.socket" | "built-in.secret" => Grantable::Never,
            _ => Grantable::ByChange,
        };
        self.denied(&mask.rule, reason, grantable)
    }

    fn by_default(&self, plan: &Plan) -> Decision {
        let leads_to_grant = plan.form == Form::Namespaces
            && plan
                .grants
                .iter()
                .any(|grant| grant.path.is_within(self.path));
        if leads_to_grant && self.need == Need::Read {
            let rule = default_rule("directories on the way to a grant exist, and nothing else");
            return permit(&rule, Some("holds only what is granted below it"));
        }
        if plan.form == Form::Seatbelt && self.path.is_root() && self.need == Need::Read {
            let rule = default_rule("no program of macOS starts without the names in /");
            return permit(&rule, Some("names only"));
        }
        let rule = default_rule("what no rule grants is absent");
        self.absent(&rule, "no rule grants it".to_owned())
    }

    /// Nothing of the host's is there; for a credential that has a reason of
    /// its own.
    fn absent(&self, rule: &Rule, reason: String) -> Decision {
        match credentials::covers(self.path, &self.home) {
            Some(credential) => {
                let reason = format!("it is a credential: {}", credential.reason);
                self.denied(&secrets::rule(credential), reason, Grantable::ByChange)
            }
            None => self.denied(rule, reason, Grantable::ByPath),
        }
    }

    fn denied(&self, rule: &Rule, reason: String, grantable: Grantable) -> Decision {
        let grantable = match grantable {
            Grantable::ByPath => self.grantable_by_path(),
            other => other,
        };
        let smallest_grant = match grantable {
            Grantable::ByPath => self.grant_line(),
            _ => None,
        };
        Decision::Denied(Denial {
            question: self.question.clone(),
            rule: rule.clone(),
            reason,
            person_may_grant: smallest_grant.is_some() || matches!(grantable, Grantable::ByChange),
            smallest_grant,
        })
    }

    /// What compiling would say to a grant of exactly this path: nothing is
    /// proposed that it refuses.
    fn grantable_by_path(&self) -> Grantable {
        let refused = match self.need {
            Need::Write => places::never_written(self.path, &self.home).is_some(),
            Need::Read | Need::Execute => places::has_own(self.path),
        };
        match credentials::covers(self.path, &self.home) {
            _ if refused => Grantable::Never,
            Some(_) => Grantable::ByChange,
            None => Grantable::ByPath,
        }
    }

    /// The policy lines that grant exactly this path; none for a path that is
    /// not UTF-8, which a policy cannot name.
    fn grant_line(&self) -> Option<String> {
        let (key, default) = match self.need {
            Need::Write => ("write", "."),
            Need::Read | Need::Execute => ("read", "system"),
        };
        let path = std::str::from_utf8(self.path.as_bytes()).ok()?;
        let quoted = |text: &str| toml::Value::String(text.to_owned());
        // A list in a file replaces the built-in one, which must not get lost.
        let kept = match self.rests_on_default(key) {
            true => format!("{}, ", quoted(default)),
            false => String::new(),
        };
        Some(format!("[filesystem]\n{key} = [{kept}{}]\n", quoted(path)))
    }

    fn rests_on_default(&self, key: &str) -> bool {
        let id = format!("filesystem.{key}[");
        let built_in =
            |grant: &Grant| grant.rule.origin == "built-in" && grant.rule.id.starts_with(&id);
        self.plan.grants.iter().any(built_in)
    }
}

/// The home directory inside.
fn home(plan: &Plan) -> AbsolutePath {
    let variable = plan
        .command
        .environment
        .iter()
        .find(|(name, _)| name == b"HOME");
    variable
        .and_then(|(_, value)| AbsolutePath::parse(value).ok())
        .unwrap_or_else(AbsolutePath::root)
}

/// The same judge as in the egress process. What only shows when a name is
/// resolved, the addresses, is not known here.
fn connect(plan: &Plan, question: &Question, host: &str, port: u16, now_unix: u64) -> Decision {
    let destination = match Destination::new(RawHost::Text(host.as_bytes()), port) {
        Ok(destination) => destination,
        Err(error) => {
            let rule = network_rule("no request names it");
            return unreachable(question, rule, error.to_string(), None);
        }
    };
    if let Some(decision) = own_loopback(plan, &destination) {
        return decision;
    }
    let Some(network) = &plan.network else {
        let rule = network_rule("an empty list denies all");
        let grant = match plan.form {
            Form::Namespaces | Form::Seatbelt => grant_of(&destination),
            Form::LandlockOnly => None,
        };
        let reason = "the network is denied as a whole".to_owned();
        return unreachable(question, rule, reason, grant);
    };
    let judge = match network::Judge::new(network.clone()) {
        Ok(judge) => judge,
        Err(error) => {
            let rule = network_rule("a plan with such a rule is refused");
            return unreachable(question, rule, error, None);
        }
    };
    match judge.connection(&destination, now_unix) {
        Ruling::Permit(passage) => {
            let note = match passage.tls {
                TlsMode::Inspect => "each request is judged by its rules",
                TlsMode::Passthrough => "TLS is held to this name and passes unread",
                TlsMode::Raw => "any bytes pass",
            };
            permit(&passage.rule, Some(note))
        }
        Ruling::Unknown(denial) if network.approval == Approval::Ask => {
            let rule = network_rule("what no rule names is asked");
            let reason = format!("{}; you are asked during the run", denial.reason);
            unreachable(question, rule, reason, denial.smallest_grant)
        }
        Ruling::Unknown(denial) | Ruling::Denied(denial) => {
            let rule = Rule {
                id: denial.rule,
                origin: denial.origin,
                reason: denial.reason.clone(),
            };
            unreachable(question, rule, denial.reason, denial.smallest_grant)
        }
    }
}

/// Ports inside that lead nowhere but to this run's own servers, unless the
/// plan offers one of the host's there.
fn own_loopback(plan: &Plan, destination: &Destination) -> Option<Decision> {
    let loopback = match destination.host() {
        Host::Address(address) => address.is_loopback(),
        Host::Name(name) => name.labels().next_back() == Some("localhost"),
    };
    if !loopback || plan.form == Form::LandlockOnly {
        return None;
    }
    let offered = plan
        .network
        .iter()
        .flat_map(|network| &network.host_ports)
        .find(|offer| offer.port == destination.port());
    if offered.is_none() && plan.form == Form::Seatbelt {
        // The loopback is the host's.
        return None;
    }
    let Some(offer) = offered else {
        let rule = Rule {
            id: "built-in.loopback".to_owned(),
            origin: "built-in".to_owned(),
            reason: "servers of this run talk to each other".to_owned(),
        };
        let note = "the run's own loopback; nothing of the host listens there";
        return Some(permit(&rule, Some(note)));
    };
    let note = "leads to the same port of the host's 127.0.0.1";
    Some(permit(&offer.rule, Some(note)))
}

fn grant_of(destination: &Destination) -> Option<String> {
    let judge = network::Judge::new(network::NetworkPlan::nothing()).ok()?;
    match judge.connection(destination, 0) {
        Ruling::Unknown(denial) => denial.smallest_grant,
        _ => None,
    }
}

fn unreachable(
    question: &Question,
    rule: Rule,
    reason: String,
    smallest_grant: Option<String>,
) -> Decision {
    Decision::Denied(Denial {
        question: question.clone(),
        rule,
        reason,
        person_may_grant: smallest_grant.is_some(),
        smallest_grant,
    })
}

fn network_rule(reason: &str) -> Rule {
    Rule {
        id: "network.allow".to_owned(),
        origin: "built-in".to_owned(),
        reason: reason.to_owned(),
    }
}

/// Follows the links that the view itself makes.
fn follow(plan: &Plan, path: &AbsolutePath) -> AbsolutePath {
    let mut place = path.clone();
    for _ in 0..LINKS_MAX {
        let Some(next) = plan.steps.iter().find_map(|step| match &step.action {
            Action::Symlink { path: link, target } => substitute(&place, link, target),
            _ => None,
        }) else {
            break;
        };
        place = next;
    }
    place
}

fn substitute(path: &AbsolutePath, link: &AbsolutePath, target: &[u8]) -> Option<AbsolutePath> {
    let rest = path.relative_to(link)?;
    link.link_target(target)?.join(rest).ok()
}

fn nearest<'a, T>(
    list: &'a [T],
    path: &AbsolutePath,
    place: impl Fn(&T) -> &AbsolutePath,
) -> Option<&'a T> {
    let covering = list.iter().filter(|item| path.is_within(place(item)));
    covering.max_by_key(|item| place(item).as_bytes().len())
}

fn permit(rule: &Rule, note: Option<&str>) -> Decision {
    Decision::Permit {
        rule: rule.clone(),
        note: note.map(str::to_owned),
    }
}

fn default_rule(reason: &str) -> Rule {
    Rule {
        id: "filesystem.default".to_owned(),
        origin: "built-in".to_owned(),
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests;
