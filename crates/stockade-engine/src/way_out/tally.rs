//! What the way out of one run came to, for the words at its end.
//!
//! A command can ask for any number of hosts, so what is kept is bounded; the
//! log has every decision.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use stockade_egress::wire::Totals;

use crate::events::Event;
use crate::events::network::{LEARNED, LEARNED_PRIVATE, Verdict};

/// Most different destinations that are kept of each kind.
const KEPT_MAX: usize = 256;

/// Most different requests that are kept of one destination.
const REQUESTS_MAX: usize = 512;

/// Sums of a run, and what was denied or learned.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NetworkSummary {
    pub connections: u64,
    pub denied: u64,
    pub uploaded_bytes: u64,
    pub downloaded_bytes: u64,
    /// Each denied destination once for each reason.
    pub denials: Vec<DeniedDestination>,
    /// What no rule named and a learning run permitted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub learned: Vec<Learned>,
    /// Destinations beyond what is kept; the log has them.
    pub left_out: u64,
    pub alerts: u64,
    /// Why the sandbox had no network at the end, if it had none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

/// Requests to one destination that were denied for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeniedDestination {
    /// `HOST:PORT`.
    pub destination: String,
    /// Method and path of the first, when they were known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Stable code.
    pub code: String,
    pub reason: String,
    pub rule: String,
    pub origin: String,
    /// Lines to add to a policy; `None` where no policy may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smallest_grant: Option<String>,
    pub count: u64,
}

/// A destination that the command needed.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Learned {
    /// `HOST:PORT`.
    pub destination: String,
    /// Lines that permit it, as the egress process proposes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grant: Option<String>,
    /// Method and path of each request, where they were seen.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub requests: BTreeSet<String>,
    /// There were more requests than are kept.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// Collects a [`NetworkSummary`].
#[derive(Debug, Default)]
pub struct Tally {
    denied: BTreeMap<(String, String), DeniedDestination>,
    learned: BTreeMap<String, Learned>,
    left_out: u64,
    alerts: u64,
}

impl Tally {
    /// Counts one event of the way out.
    pub fn count(&mut self, event: &Event) {
        match event {
            Event::NetworkAlert { .. } => self.alerts += 1,
            Event::NetworkDecided(decision) if decision.verdict == Verdict::Denied => {
                let key = (decision.destination.clone(), decision.code.clone());
                if let Some(known) = self.denied.get_mut(&key) {
                    known.count += 1;
                } else if self.denied.len() == KEPT_MAX {
                    self.left_out += 1;
                } else {
                    let denied = DeniedDestination {
                        destination: decision.destination.clone(),
                        request: decision.request.clone(),
                        code: decision.code.clone(),
                        reason: decision.reason.clone(),
                        rule: decision.rule.clone(),
                        origin: decision.origin.clone(),
                        smallest_grant: decision.smallest_grant.clone(),
                        count: 1,
                    };
                    self.denied.insert(key, denied);
                }
            }
            Event::NetworkDecided(decision)
                if decision.verdict == Verdict::Allowed
                    && [LEARNED, LEARNED_PRIVATE].contains(&decision.code.as_str()) =>
            {
                if !self.learned.contains_key(&decision.destination)
                    && self.learned.len() == KEPT_MAX
                {
                    self.left_out += 1;
                    return;
                }
                let learned = self.learned_of(&decision.destination);
                // What says more about a destination stays.
                if decision.smallest_grant.is_some() {
                    learned.grant.clone_from(&decision.smallest_grant);
                }
            }
            Event::NetworkDecided(decision)
                if decision.verdict == Verdict::Allowed && decision.rule == LEARNED =>
            {
                let learned = self.learned.get_mut(&decision.destination);
                if let (Some(learned), Some(request)) = (learned, &decision.request) {
                    if learned.requests.len() < REQUESTS_MAX {
                        learned.requests.insert(request.clone());
                    } else {
                        learned.more |= !learned.requests.contains(request);
                    }
                }
            }
            _ => {}
        }
    }

    /// A destination that a person permitted while learning.
    pub fn learn(&mut self, destination: &str) {
        if self.learned.len() < KEPT_MAX {
            self.learned_of(destination);
        }
    }

    fn learned_of(&mut self, destination: &str) -> &mut Learned {
        let learned = self.learned.entry(destination.to_owned());
        learned.or_insert_with(|| Learned {
            destination: destination.to_owned(),
            ..Learned::default()
        })
    }

    pub fn summary(self, totals: Totals, lost: Option<String>) -> NetworkSummary {
        NetworkSummary {
            connections: totals.connections,
            denied: totals.denied,
            uploaded_bytes: totals.uploaded_bytes,
            downloaded_bytes: totals.downloaded_bytes,
            denials: self.denied.into_values().collect(),
            learned: self.learned.into_values().collect(),
            left_out: self.left_out,
            alerts: self.alerts,
            lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::network::NetworkDecision;

    fn decided(destination: &str, verdict: Verdict, code: &str) -> Event {
        Event::NetworkDecided(NetworkDecision {
            connection: 1,
            entry: "connect".into(),
            verdict,
            destination: destination.into(),
            request: None,
            rule: String::new(),
            origin: String::new(),
            generation: 0,
            code: code.into(),
            reason: String::new(),
            smallest_grant: None,
        })
    }

    #[test]
    fn requests_are_kept_of_what_was_learned_and_of_nothing_else() {
        let mut tally = Tally::default();
        tally.count(&decided("a.test:443", Verdict::Allowed, LEARNED));
        let mut ask = |destination: &str, rule: &str, request: String| {
            let Event::NetworkDecided(mut decision) =
                decided(destination, Verdict::Allowed, "allowed")
            else {
                return;
            };
            decision.rule = rule.into();
            decision.request = Some(request);
            tally.count(&Event::NetworkDecided(decision));
        };
        ask("a.test:443", "network.rule[0]", "GET /not".into());
        ask("b.test:443", LEARNED, "GET /neither".into());
        for number in 0..REQUESTS_MAX + 1 {
            ask("a.test:443", LEARNED, format!("GET /{number}"));
        }
        let learned = tally.summary(Totals::default(), None).learned;
        assert_eq!(learned.len(), 1);
        assert_eq!(learned[0].requests.len(), REQUESTS_MAX);
        assert!(learned[0].more && !learned[0].requests.contains("GET /not"));
    }

    #[test]
    fn denials_are_grouped_and_bounded() {
        let mut tally = Tally::default();
        for _ in 0..3 {
            tally.count(&decided("a.test:443", Verdict::Denied, "not-allowed"));
        }
        tally.count(&decided("a.test:443", Verdict::Denied, "method"));
        tally.count(&decided("b.test:443", Verdict::Allowed, ""));
        tally.count(&decided("c.test:22", Verdict::Allowed, LEARNED));
        for number in 0..KEPT_MAX {
            tally.count(&decided(
                &format!("x{number}.test:443"),
                Verdict::Denied,
                "floor",
            ));
        }
        let summary = tally.summary(Totals::default(), None);
        assert_eq!(summary.denials.len(), KEPT_MAX);
        assert_eq!(summary.left_out, 2);
        let first: Vec<_> = summary
            .denials
            .iter()
            .take(2)
            .map(|denied| (denied.code.as_str(), denied.count))
            .collect();
        assert_eq!(first, [("method", 1), ("not-allowed", 3)]);
        assert_eq!(summary.learned[0].destination, "c.test:22");
    }
}
