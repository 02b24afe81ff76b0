//! Merges the network half.
//!
//! The rules of granting layers are united into the first rule set. A layer
//! that takes away becomes a rule set of its own when it states any rule: then
//! both must permit, whatever the patterns are, so nothing has to be
//! intersected here. What is denied anywhere is denied.

use crate::containment::{Contained, Scope};
use crate::network::rules::{
    Approval, Binding, Budget, HostPort, NetworkRule, Publish, RuleSet, SocketKind, TlsMode,
    holds_port,
};
use crate::policy::{NetworkPolicy, SocketDemand};
use crate::problem::{Fault, LayerKind, Place, Problem};
use crate::validate::{Item, LayerBudget, LayerNetwork, LayerPolicy, Said};

/// `all` are the layers in their order, `granting` and `narrowing` its parts.
pub(super) fn merged(
    granting: &[&LayerPolicy],
    narrowing: &[&LayerPolicy],
    all: &[&LayerPolicy],
) -> NetworkPolicy {
    let organisation: Vec<&LayerPolicy> = narrowing
        .iter()
        .copied()
        .filter(|policy| policy.layer.kind == LayerKind::Organisation)
        .collect();
    // What only says how, the organisation says above everyone.
    let how: Vec<&LayerPolicy> = granting.iter().chain(&organisation).copied().collect();
    let ask = switch(granting, all, |network| &network.ask);
    NetworkPolicy {
        sets: sets(granting, narrowing),
        deny: all
            .iter()
            .flat_map(|policy| &policy.network.deny)
            .map(|item| item.value.clone())
            .collect(),
        credentials: left(last_of_each_name(granting), narrowing, |network| {
            &network.credentials
        }),
        approval: match ask {
            Some(_) => Approval::Ask,
            None => Approval::Deny,
        },
        approval_rule: ask.map(|item| item.rule.clone()),
        approval_wait_ms: least(all, |network| &network.approval_wait_ms),
        publish: left(
            united(granting, |network| &network.publish),
            narrowing,
            |network| &network.publish,
        ),
        host_ports: left(
            united(granting, |network| &network.host_ports),
            narrowing,
            |network| &network.host_ports,
        ),
        sockets: left(
            united(granting, |network| &network.sockets),
            narrowing,
            |network| &network.sockets,
        ),
        budget: Budget {
            upload_bytes_max: least(all, |network| &network.budget.upload_bytes_max),
            download_bytes_max: least(all, |network| &network.budget.download_bytes_max),
            connections_max: least(all, |network| &network.budget.connections_max),
            requests_per_minute: least(all, |network| &network.budget.requests_per_minute),
        },
        resolvers: last(&how, |network| &network.resolvers)
            .into_iter()
            .flatten()
            .map(|item| item.value)
            .collect(),
        roots: plain(united(&how, |network| &network.roots)),
        upstream_proxy: last(&how, |network| &network.proxy).map(|item| item.value.clone()),
        nat64: plain(united(&how, |network| &network.nat64)),
        metrics: switch(granting, all, |network| &network.metrics).is_some(),
    }
}

/// What contradicts across rules and credentials, with both places.
pub(super) fn contradictions(granting: &[&LayerPolicy]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let bindings = last_of_each_name(granting);
    for policy in granting {
        for item in policy.network.rules.iter().flatten() {
            let rule = &item.value.rule;
            if !item.value.tls_is_written || rule.tls == TlsMode::Inspect {
                continue;
            }
            for binding in bindings
                .iter()
                .filter(|binding| overlap(rule, &binding.value))
            {
                let fault = Fault::new(
                    "contradiction",
                    format!(
                        "{} ({}) lets TLS to {} pass unread, but the credential \"{}\" ({}) is \
                         attached to requests there",
                        rule.rule.id,
                        rule.rule.origin,
                        rule.target,
                        binding.value.name,
                        binding.rule.origin
                    ),
                );
                let fault = fault.help("remove `tls` from the rule, or the credential");
                problems.push(fault.at(&policy.layer, item.place.as_ref()));
            }
        }
    }
    problems
}

/// What an untrusted layer says that the rest does not grant.
pub(super) fn widenings(
    network: &LayerNetwork,
    granted: &NetworkPolicy,
    scope: &Scope<'_>,
    report: &mut dyn FnMut(Option<&Place>, &str),
) {
    let rules = granted.sets.first().map_or(&[][..], |set| &set.rules);
    for item in network.rules.iter().flatten() {
        let rule = &item.value.rule;
        if !rules.iter().any(|wide| covers(wide, rule, scope)) {
            report(item.place.as_ref(), &format!("reach {}", shown(rule)));
        }
    }
    each(
        &network.credentials,
        &granted.credentials,
        &mut |place, binding| {
            report(place, &format!("use the credential \"{}\"", binding.name));
        },
    );
    each(&network.publish, &granted.publish, &mut |place, publish| {
        report(place, &format!("publish the port {}", publish.port));
    });
    each(
        &network.host_ports,
        &granted.host_ports,
        &mut |place, port| {
            report(
                place,
                &format!("reach the port {} of this machine", port.port),
            );
        },
    );
    each(&network.sockets, &granted.sockets, &mut |place, socket| {
        let what = match &socket.path {
            Some(path) => format!("be offered the socket {path}"),
            None => "be offered the ssh agent".to_owned(),
        };
        report(place, &what);
    });
    ways(network, granted, report);
    budgets(&network.budget, &granted.budget, report);
}

/// What an untrusted layer says about how the outside is reached.
fn ways(
    network: &LayerNetwork,
    granted: &NetworkPolicy,
    report: &mut dyn FnMut(Option<&Place>, &str),
) {
    let mut how = |place: Option<&Place>, same: bool, what: &str| {
        if !same {
            report(place, what);
        }
    };
    for item in network.resolvers.iter().flatten() {
        let same = granted.resolvers.contains(&item.value);
        how(item.place.as_ref(), same, "choose the resolvers");
    }
    for item in network.roots.iter().flatten() {
        let same = granted.roots.contains(&item.value);
        how(item.place.as_ref(), same, "trust more certificates");
    }
    for item in network.nat64.iter().flatten() {
        let same = granted.nat64.contains(&item.value);
        how(
            item.place.as_ref(),
            same,
            "say how addresses are translated",
        );
    }
    if let Some(item) = &network.proxy {
        let key = |proxy: &crate::network::rules::UpstreamProxy| {
            (proxy.host.clone(), proxy.port, proxy.send_address)
        };
        let same = granted.upstream_proxy.as_ref().map(key) == Some(key(&item.value));
        how(item.place.as_ref(), same, "choose the upstream proxy");
    }
    if let Some(item) = network.ask.as_ref().filter(|item| item.value) {
        let same = granted.approval != Approval::Deny;
        how(item.place.as_ref(), same, "ask for more during the run");
    }
    if let Some(item) = network.metrics.as_ref().filter(|item| item.value) {
        how(item.place.as_ref(), granted.metrics, "serve counters");
    }
}

fn budgets(said: &LayerBudget, granted: &Budget, report: &mut dyn FnMut(Option<&Place>, &str)) {
    for (name, said, limit) in [
        (
            "upload_bytes_max",
            &said.upload_bytes_max,
            granted.upload_bytes_max,
        ),
        (
            "download_bytes_max",
            &said.download_bytes_max,
            granted.download_bytes_max,
        ),
        (
            "connections",
            &said.connections_max,
            granted.connections_max,
        ),
        (
            "requests_per_minute",
            &said.requests_per_minute,
            granted.requests_per_minute,
        ),
    ] {
        if let (Some(item), Some(limit)) = (said, limit)
            && item.value > limit
        {
            report(
                item.place.as_ref(),
                &format!("raise the limit `network.{name}`"),
            );
        }
    }
}

/// Two things that are one but for where they were written.
trait Twin {
    fn is_twin(&self, other: &Self) -> bool;
}

impl Twin for Publish {
    fn is_twin(&self, other: &Self) -> bool {
        (self.host_port, self.port) == (other.host_port, other.port)
    }
}

impl Twin for HostPort {
    fn is_twin(&self, other: &Self) -> bool {
        self.port == other.port
    }
}

impl Twin for SocketDemand {
    fn is_twin(&self, other: &Self) -> bool {
        (&self.path, &self.inside, &self.kind) == (&other.path, &other.inside, &other.kind)
    }
}

impl Twin for Binding {
    fn is_twin(&self, other: &Self) -> bool {
        let elsewhere = Self {
            rule: self.rule.clone(),
            ..other.clone()
        };
        *self == elsewhere
    }
}

impl Twin for crate::path::AbsolutePath {
    fn is_twin(&self, other: &Self) -> bool {
        self == other
    }
}

impl Twin for crate::network::address::Network {
    fn is_twin(&self, other: &Self) -> bool {
        self == other
    }
}

/// What a ceiling of the same kind leaves.
trait Ceiling: Twin {
    fn admits(&self, granted: &Self) -> bool {
        self.is_twin(granted)
    }
}

impl Ceiling for Publish {}
impl Ceiling for HostPort {}

impl Ceiling for SocketDemand {
    fn admits(&self, granted: &Self) -> bool {
        match (&self.kind, &granted.kind) {
            (SocketKind::SshAgent { keys }, SocketKind::SshAgent { keys: granted }) => {
                granted.iter().all(|key| keys.contains(key))
            }
            (SocketKind::Stream, SocketKind::Stream) => self.path == granted.path,
            _ => false,
        }
    }
}

impl Ceiling for Binding {
    /// Where it goes is what a ceiling bounds; what it is, is the user's.
    fn admits(&self, granted: &Self) -> bool {
        self.host == granted.host && contains_ports(&self.ports, &granted.ports)
    }
}

fn sets(granting: &[&LayerPolicy], narrowing: &[&LayerPolicy]) -> Vec<RuleSet> {
    let rules = |policy: &LayerPolicy| -> Option<Vec<NetworkRule>> {
        let rules = policy.network.rules.as_ref()?;
        Some(rules.iter().map(|item| item.value.rule.clone()).collect())
    };
    let said: Vec<&LayerPolicy> = granting
        .iter()
        .copied()
        .filter(|policy| policy.network.rules.is_some())
        .collect();
    let names: Vec<&str> = said
        .iter()
        .map(|policy| policy.layer.name.as_str())
        .collect();
    let mut granted: Vec<NetworkRule> = Vec::new();
    for rule in said.iter().filter_map(|policy| rules(policy)).flatten() {
        let twin = |other: &NetworkRule| {
            let elsewhere = NetworkRule {
                rule: rule.rule.clone(),
                ..other.clone()
            };
            elsewhere == rule
        };
        if !granted.iter().any(twin) {
            granted.push(rule);
        }
    }
    let first = RuleSet {
        origin: names.join(", "),
        rules: granted,
    };
    let ceilings = narrowing.iter().filter_map(|policy| {
        Some(RuleSet {
            origin: policy.layer.name.clone(),
            rules: rules(policy)?,
        })
    });
    std::iter::once(first).chain(ceilings).collect()
}

/// The lists of all layers, each thing once.
fn united<'a, T: Twin + Clone + 'a>(
    layers: &[&'a LayerPolicy],
    list: impl Fn(&'a LayerNetwork) -> &'a Said<T>,
) -> Vec<Item<T>> {
    let mut items: Vec<Item<T>> = Vec::new();
    for item in layers
        .iter()
        .flat_map(|policy| list(&policy.network))
        .flatten()
    {
        if !items.iter().any(|other| other.value.is_twin(&item.value)) {
            items.push(item.clone());
        }
    }
    items
}

/// Later layers win: the command line over the project over the user.
fn last_of_each_name(layers: &[&LayerPolicy]) -> Vec<Item<Binding>> {
    let mut bindings: Vec<Item<Binding>> = Vec::new();
    for item in layers
        .iter()
        .flat_map(|policy| &policy.network.credentials)
        .flatten()
    {
        bindings.retain(|other| other.value.name != item.value.name);
        bindings.push(item.clone());
    }
    bindings
}

fn left<'a, T: Ceiling + Clone + 'a>(
    mut granted: Vec<Item<T>>,
    narrowing: &[&'a LayerPolicy],
    list: impl Fn(&'a LayerNetwork) -> &'a Said<T>,
) -> Vec<T> {
    for ceiling in narrowing
        .iter()
        .filter_map(|policy| list(&policy.network).as_ref())
    {
        granted.retain(|item| ceiling.iter().any(|limit| limit.value.admits(&item.value)));
    }
    plain(granted)
}

fn plain<T>(items: Vec<Item<T>>) -> Vec<T> {
    items.into_iter().map(|item| item.value).collect()
}

fn last<'a, T: 'a>(
    layers: &[&'a LayerPolicy],
    value: impl Fn(&'a LayerNetwork) -> &'a Option<T>,
) -> Option<&'a T> {
    layers
        .iter()
        .rev()
        .find_map(|policy| value(&policy.network).as_ref())
}

fn least(
    layers: &[&LayerPolicy],
    limit: impl Fn(&LayerNetwork) -> &Option<Item<u64>>,
) -> Option<u64> {
    layers
        .iter()
        .filter_map(|policy| limit(&policy.network).as_ref().map(|item| item.value))
        .min()
}

/// Granted by any of `granting` and forbidden by none of `all`.
fn switch<'a>(
    granting: &[&'a LayerPolicy],
    all: &[&'a LayerPolicy],
    value: impl Fn(&'a LayerNetwork) -> &'a Option<Item<bool>>,
) -> Option<&'a Item<bool>> {
    let said = |policy: &&'a LayerPolicy| value(&policy.network).as_ref();
    if all.iter().filter_map(said).any(|item| !item.value) {
        return None;
    }
    granting.iter().filter_map(said).find(|item| item.value)
}

fn each<T: Twin>(said: &Said<T>, granted: &[T], report: &mut dyn FnMut(Option<&Place>, &T)) {
    for item in said.iter().flatten() {
        if !granted.iter().any(|other| other.is_twin(&item.value)) {
            report(item.place.as_ref(), &item.value);
        }
    }
}

fn covers(wide: &NetworkRule, rule: &NetworkRule, scope: &Scope<'_>) -> bool {
    let ssh = |rule: &NetworkRule| rule.git.as_ref().and_then(|git| git.ssh_port);
    let ssh_port = match ssh(rule) {
        None => true,
        Some(port) => ssh(wide) == Some(port) || holds_port(&wide.ports, port),
    };
    wide.target.covers(&rule.target, scope) && contains_ports(&wide.ports, &rule.ports) && ssh_port
}

/// Whether every port of `inner` is one of `outer`.
fn contains_ports(outer: &[(u16, u16)], inner: &[(u16, u16)]) -> bool {
    let inner = match inner {
        [] => &[(443, 443), (80, 80)][..],
        ranges => ranges,
    };
    let mut all = inner.iter().flat_map(|(low, high)| *low..=*high);
    all.all(|port| holds_port(outer, port))
}

fn overlap(rule: &NetworkRule, binding: &Binding) -> bool {
    let scope = Scope::without_home();
    let hosts =
        rule.target.covers(&binding.host, &scope) || binding.host.covers(&rule.target, &scope);
    let mut ports = (1..=u16::MAX).filter(|port| holds_port(&binding.ports, *port));
    hosts && ports.any(|port| holds_port(&rule.ports, port))
}

fn shown(rule: &NetworkRule) -> String {
    match &rule.ports[..] {
        [] => rule.target.to_string(),
        [(low, high)] if low == high => format!("{}:{low}", rule.target),
        _ => format!("{} (ports)", rule.target),
    }
}
