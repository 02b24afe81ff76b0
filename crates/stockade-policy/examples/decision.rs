//! Prints what one decision costs with 1,000 rules, in nanoseconds: the median
//! over batches of hits and misses. For the benchmark of the way out.

use std::hint::black_box;
use std::time::Instant;

use stockade_policy::network::destination::{Destination, RawHost};
use stockade_policy::network::judge::Judge;
use stockade_policy::network::rules::{
    Approval, Budget, Capture, NetworkPlan, NetworkRule, RuleSet, Target, TlsMode,
};
use stockade_policy::plan::Rule;
use stockade_policy::value::HostReach;

const RULES: usize = 1000;
const BATCHES: usize = 101;

fn main() {
    let judge = Judge::new(plan()).expect("the rules are sound");
    let destinations: Vec<Destination> = (0..64)
        .map(|number| {
            let host = match number % 4 {
                0 => format!("host{}.example{}.test", number * 15, number % 7),
                1 => format!("deep.label.host{}.example{}.test", number * 15, number % 7),
                2 => format!("absent{number}.example1.test"),
                _ => format!("other{number}.invalid.test"),
            };
            Destination::new(RawHost::Text(host.as_bytes()), 443).expect("a destination")
        })
        .collect();
    let mut times: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let start = Instant::now();
            for destination in &destinations {
                black_box(judge.connection(black_box(destination), 1));
            }
            start.elapsed().as_nanos() as f64 / destinations.len() as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{:.0}", times[BATCHES / 2]);
}

fn plan() -> NetworkPlan {
    let rules = (0..RULES).map(rule).collect();
    NetworkPlan {
        sets: vec![RuleSet {
            origin: "benchmark".into(),
            rules,
        }],
        deny: Vec::new(),
        credentials: Vec::new(),
        approval: Approval::Deny,
        approval_wait_ms: 0,
        publish: Vec::new(),
        host_ports: Vec::new(),
        sockets: Vec::new(),
        budget: Budget::default(),
        capture: Capture::Transparent,
        resolvers: Vec::new(),
        roots: Vec::new(),
        upstream_proxy: None,
        nat64: Vec::new(),
        metrics: false,
    }
}

fn rule(number: usize) -> NetworkRule {
    let (reach, name) = match number % 3 {
        0 => (
            HostReach::Exact,
            format!("host{number}.example{}.test", number % 7),
        ),
        1 => (
            HostReach::OneLabel,
            format!("wide{number}.example{}.test", number % 7),
        ),
        _ => (
            HostReach::AnyLabels,
            format!("deep{number}.example{}.test", number % 7),
        ),
    };
    NetworkRule {
        rule: Rule {
            id: format!("network.allow[{number}]"),
            origin: "benchmark".into(),
            reason: String::new(),
        },
        target: Target::Host { reach, name },
        ports: vec![(443, 443)],
        tls: TlsMode::Passthrough,
        content: None,
        git: None,
        allow_private: Vec::new(),
        no_alias: false,
        budget: Budget::default(),
        expires_unix: None,
    }
}
