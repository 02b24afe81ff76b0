//! From the network half of a policy to the plan's: what the machine adds, the
//! sockets that are opened inside, and the files that name the sandbox's
//! authority.

use std::collections::{BTreeMap, BTreeSet};

use crate::facts::{Ability, Facts, PathKind};
use crate::guarantee::Guarantee;
use crate::network::machine::{Crossings, UNPRIVILEGED_FROM};
use crate::network::rules::{
    Approval, Binding, Capture, NetworkPlan, SocketKind, SocketOffer, Source, Target,
};
use crate::network::{Judge, rules::holds_port};
use crate::path::AbsolutePath;
use crate::plan::{
    Form, GUEST_PROXY_HOST, Listener, PROXY_PORT, StoreFormat, TRANSPARENT_PORT, Wall,
};
use crate::policy::{Policy, SocketDemand};

use super::findings::Findings;
use super::view::{Entry, View, nearest};

/// Variable that says where the caller's ssh agent listens (ssh-agent(1)).
const AGENT_VARIABLE: &[u8] = b"SSH_AUTH_SOCK";

const AGENT_NAME: &str = "ssh-agent.sock";
const TRUST_FILE: &str = "ca.pem";

/// How long a request is held when the policy does not say.
const APPROVAL_WAIT_MS: u64 = 60_000;

/// Ports inside that belong to the way out itself.
const OWN_PORTS: [u16; 3] = [53, PROXY_PORT, TRANSPARENT_PORT];

/// Variables from which tools take a file of certificate roots.
const TRUST_VARIABLES: [&str; 15] = [
    "AWS_CA_BUNDLE",
    "BUNDLE_SSL_CA_CERT",
    "CARGO_HTTP_CAINFO",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "CURL_CA_BUNDLE",
    "DENO_CERT",
    "GIT_SSL_CAINFO",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "HTTPLIB2_CA_CERTS",
    "NIX_SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
    "npm_config_cafile",
];

/// A way out, and what it needs inside.
pub(super) struct Opened {
    pub(super) plan: NetworkPlan,
    pub(super) listeners: Vec<Listener>,
    /// Files of roots, the first one with those of the host.
    pub(super) stores: Vec<Store>,
    trust_file: Option<AbsolutePath>,
}

pub(super) struct Store {
    pub(super) source: Option<AbsolutePath>,
    pub(super) path: AbsolutePath,
    pub(super) format: StoreFormat,
}

/// `None` when nothing is opened; what cannot be is among the findings.
pub(super) fn open(
    policy: &Policy,
    facts: &Facts,
    view: &View,
    findings: &mut Findings,
) -> Option<Opened> {
    if !policy.network.opens_anything() {
        return None;
    }
    if policy.form == Form::LandlockOnly {
        findings.refuse(
            Guarantee::NT1,
            "a network is opened, but this form has no network namespace, so the only way out \
             cannot be held to it",
            "leave the network closed, or use process.form = \"namespaces\"",
        );
        return None;
    }
    let plan = plan(policy, facts, view, findings);
    if policy.form == Form::Seatbelt {
        super::seatbelt::check_network(&plan, findings);
    }
    if let Err(why) = Judge::new(plan.clone()) {
        findings.refuse(Guarantee::NT2, why, "change this rule");
    }
    check_ports(&plan, findings);
    if policy.wall.0 == Wall::Microvm {
        check_crossings(&plan, findings);
    }
    losses(&plan, findings);
    let (stores, trust_file) = match plan.inspects() {
        true => stores(facts, view),
        false => (Vec::new(), None),
    };
    Some(Opened {
        listeners: listeners(&plan, policy.wall.0),
        plan,
        stores,
        trust_file,
    })
}

/// Paths that must be known for a way out.
pub(super) fn questions(
    policy: &Policy,
    environment: &BTreeMap<Vec<u8>, Vec<u8>>,
) -> Vec<AbsolutePath> {
    if !policy.network.opens_anything() {
        return Vec::new();
    }
    let files = offered_sockets(policy, environment)
        .into_iter()
        .chain(super::view::name_files());
    files.chain(secret_files(policy)).collect()
}

/// The unix sockets that a policy offers, as named. They are the host's, whatever
/// an image has there.
pub(super) fn offered_sockets(
    policy: &Policy,
    environment: &BTreeMap<Vec<u8>, Vec<u8>>,
) -> Vec<AbsolutePath> {
    let agent = environment
        .get(AGENT_VARIABLE)
        .and_then(|path| AbsolutePath::parse(path).ok());
    let sockets = policy.network.sockets.iter();
    sockets
        .filter_map(|socket| match &socket.kind {
            SocketKind::SshAgent { .. } => agent.clone(),
            SocketKind::Stream => socket.path.clone(),
        })
        .collect()
}

/// Files from which secrets of the policy's credentials are read, as named.
pub(super) fn secret_files(policy: &Policy) -> Vec<AbsolutePath> {
    let mut files = Vec::new();
    for binding in &policy.network.credentials {
        each_stored(&binding.source, &mut |source| {
            if let Source::File { path } = source {
                files.push(path.clone());
            }
        });
    }
    files
}

impl Opened {
    /// Variables of the way out; those of credentials come with their values
    /// at run time.
    pub(super) fn variables(&self, wall: Wall) -> Vec<(&'static str, Vec<u8>)> {
        let host = match wall {
            Wall::Microvm => GUEST_PROXY_HOST,
            _ => "127.0.0.1",
        };
        let http = format!("http://{host}:{PROXY_PORT}").into_bytes();
        let mut variables = vec![
            ("HTTP_PROXY", http.clone()),
            ("http_proxy", http.clone()),
            ("HTTPS_PROXY", http.clone()),
            ("https_proxy", http.clone()),
            // No SOCKS here: Python's httpx reads all of them, and ends when it
            // finds a scheme for which it lacks a library.
            ("ALL_PROXY", http.clone()),
            ("all_proxy", http),
            ("NO_PROXY", b"localhost,127.0.0.1,::1".to_vec()),
            ("no_proxy", b"localhost,127.0.0.1,::1".to_vec()),
        ];
        if let Some(path) = &self.trust_file {
            let named = TRUST_VARIABLES.map(|name| (name, path.as_bytes().to_vec()));
            variables.extend(named);
        }
        let agent = self
            .plan
            .sockets
            .iter()
            .find(|socket| matches!(socket.kind, SocketKind::SshAgent { .. }));
        if let Some(agent) = agent {
            variables.push(("SSH_AUTH_SOCK", agent.inside.as_bytes().to_vec()));
        }
        variables
    }

    /// Names of variables that hold a secret outside, or a placeholder inside:
    /// the caller's values never enter.
    pub(super) fn secret_variables(&self) -> BTreeSet<&str> {
        let mut names = BTreeSet::new();
        for binding in &self.plan.credentials {
            names.extend(binding.variable.as_deref());
            each_stored(&binding.source, &mut |source| {
                if let Source::Env { variable } = source {
                    names.insert(variable);
                }
            });
        }
        names
    }
}

/// The sources that hold a secret: this one, or those that minting rests on.
fn each_stored<'a>(source: &'a Source, visit: &mut dyn FnMut(&'a Source)) {
    let nested: Vec<&'a Source> = match source {
        Source::Env { .. }
        | Source::File { .. }
        | Source::Command { .. }
        | Source::Keyring { .. } => return visit(source),
        Source::OAuth2 {
            client_secret,
            refresh_token,
            ..
        } => [client_secret, refresh_token]
            .into_iter()
            .flatten()
            .map(|source| &**source)
            .collect(),
        Source::GitHubApp { private_key, .. } => vec![private_key],
        Source::AwsSts {
            access_key_id,
            secret_access_key,
            ..
        } => vec![access_key_id, secret_access_key],
    };
    for source in nested {
        each_stored(source, visit);
    }
}

fn plan(policy: &Policy, facts: &Facts, view: &View, findings: &mut Findings) -> NetworkPlan {
    let network = &policy.network;
    let capture = match &facts.redirect {
        _ if policy.form == Form::Seatbelt => Capture::ProxyOnly,
        Ability::Yes => Capture::Transparent,
        Ability::No { reason, remedy } => {
            findings.note(format!(
                "only programs that use the proxy variables have a way out, because connections \
                 cannot be redirected: {reason}; {remedy}"
            ));
            Capture::ProxyOnly
        }
    };
    if facts.landlock_abi == 0 && policy.form != Form::Seatbelt {
        findings.note(
            "the egress process is held by its filter of system calls and by having no capability \
             only, because the kernel has no Landlock: it could read the files that you can read",
        );
    }
    NetworkPlan {
        sets: network.sets.clone(),
        deny: network.deny.clone(),
        credentials: network.credentials.clone(),
        approval: network.approval,
        approval_wait_ms: network.approval_wait_ms.unwrap_or(APPROVAL_WAIT_MS),
        publish: network.publish.clone(),
        host_ports: network.host_ports.clone(),
        sockets: network
            .sockets
            .iter()
            .filter_map(|demand| offer(demand, facts, view, findings))
            .collect(),
        budget: network.budget,
        capture,
        resolvers: network.resolvers.clone(),
        roots: network.roots.clone(),
        upstream_proxy: network.upstream_proxy.clone(),
        nat64: network.nat64.clone(),
        metrics: network.metrics,
    }
}

/// A socket with its links resolved, and its place inside.
fn offer(
    demand: &SocketDemand,
    facts: &Facts,
    view: &View,
    findings: &mut Findings,
) -> Option<SocketOffer> {
    let rule = &demand.rule;
    let by = format!("{} ({})", rule.id, rule.origin);
    let agent = matches!(demand.kind, SocketKind::SshAgent { .. });
    let named = match &demand.path {
        Some(path) => Some(path.clone()),
        None => facts
            .environment
            .get(AGENT_VARIABLE)
            .and_then(|path| AbsolutePath::parse(path).ok()),
    };
    let Some(named) = named else {
        findings.refuse(
            Guarantee::NT1,
            format!("{by} offers the ssh agent, but SSH_AUTH_SOCK names none"),
            "start an agent (`eval $(ssh-agent)`), or remove the table",
        );
        return None;
    };
    let fact = facts.paths.get(&named);
    let found = fact.and_then(|fact| fact.resolved.clone().zip(fact.resolved_kind.clone()));
    let Some((path, PathKind::Socket)) = found else {
        findings.refuse(
            Guarantee::NT1,
            format!("{by} offers {named}, which is no socket"),
            "start what listens there, or remove the table",
        );
        return None;
    };
    let name = match agent {
        true => AGENT_NAME.to_owned(),
        false => file_name(&path),
    };
    let inside = match &demand.inside {
        Some(inside) => inside.clone(),
        None => view.way_out.as_ref()?.join(&name).ok()?,
    };
    if !matches!(nearest(&view.entries, &inside), Some(Entry::Private { .. })) {
        findings.refuse(
            Guarantee::NT1,
            format!("{by} puts a socket at {inside}, which is not in a private directory"),
            "choose a place below /run or /tmp",
        );
        return None;
    }
    Some(SocketOffer {
        rule: rule.clone(),
        path,
        inside,
        kind: demand.kind.clone(),
    })
}

/// The last component; text, because the policy that named it was.
fn file_name(path: &AbsolutePath) -> String {
    let bytes = path.as_bytes();
    let name = bytes
        .rsplit(|byte| *byte == b'/')
        .next()
        .unwrap_or_default();
    String::from_utf8(name.to_vec()).unwrap_or_else(|_| "socket".to_owned())
}

fn check_ports(plan: &NetworkPlan, findings: &mut Findings) {
    for port in &plan.host_ports {
        if OWN_PORTS.contains(&port.port) {
            findings.refuse(
                Guarantee::NT1,
                format!(
                    "{} ({}) wants port {} inside, on which the way out listens",
                    port.rule.id, port.rule.origin, port.port
                ),
                "let the service listen on another port",
            );
        }
    }
    for publish in &plan.publish {
        if OWN_PORTS.contains(&publish.port) {
            findings.refuse(
                Guarantee::NT1,
                format!(
                    "{} ({}) publishes port {}, on which the way out itself listens",
                    publish.rule.id, publish.rule.origin, publish.port
                ),
                "let the server inside listen on another port",
            );
        }
    }
    let mut inside = BTreeSet::new();
    for socket in &plan.sockets {
        if !inside.insert(&socket.inside) {
            findings.refuse(
                Guarantee::NT1,
                format!(
                    "{} ({}) puts a second socket at {}",
                    socket.rule.id, socket.rule.origin, socket.inside
                ),
                "give it a place of its own with `inside`",
            );
        }
    }
}

/// Refuses what cannot be led into a machine.
fn check_crossings(plan: &NetworkPlan, findings: &mut Findings) {
    for publish in &plan.publish {
        let by = format!("{} ({})", publish.rule.id, publish.rule.origin);
        let port = publish.port;
        if port < UNPRIVILEGED_FROM {
            findings.refuse(
                Guarantee::NT1,
                format!("{by} publishes port {port}, on which nothing in a machine can listen"),
                format!("let the server inside listen on port {UNPRIVILEGED_FROM} or above"),
            );
        }
        if plan.host_ports.iter().any(|offered| offered.port == port) {
            findings.refuse(
                Guarantee::NT1,
                format!("{by} publishes port {port}, which is a port of the host inside"),
                "let the server inside listen on another port",
            );
        }
    }
    if Crossings::of(plan).is_none() {
        findings.refuse(
            Guarantee::NT1,
            "more is offered than there are ports between a machine and its sandbox",
            "offer less",
        );
    }
}

/// What the policy gives up by name, and what has no effect.
fn losses(plan: &NetworkPlan, findings: &mut Findings) {
    for binding in &plan.credentials {
        let by = format!("credential \"{}\" ({})", binding.name, binding.rule.origin);
        if !binding.scrub {
            findings.lose(Guarantee::CR1, format!("{by} stays in responses"));
        }
        if binding.plaintext {
            findings.lose(Guarantee::CR2, format!("{by} is also sent without TLS"));
        }
        if !is_reachable(plan, binding) {
            findings.note(format!(
                "{by} is never used: no rule allows {}",
                binding.host
            ));
        }
    }
    if let Some(proxy) = plan
        .upstream_proxy
        .as_ref()
        .filter(|proxy| !proxy.send_address)
    {
        findings.lose(
            Guarantee::NT4,
            format!(
                "the proxy {}:{} ({}) resolves names itself, so addresses are not checked",
                proxy.host, proxy.port, proxy.rule.origin
            ),
        );
    }
}

/// Whether some rule and the binding have a host in common, as far as their
/// patterns show.
fn is_reachable(plan: &NetworkPlan, binding: &Binding) -> bool {
    let rules = plan.sets.first().map_or(&[][..], |set| &set.rules);
    plan.approval != Approval::Deny
        || rules.iter().any(|rule| {
            let ports = binding
                .ports
                .first()
                .is_none_or(|(low, _)| holds_port(&rule.ports, *low));
            ports && (related(&rule.target, &binding.host) || related(&binding.host, &rule.target))
        })
}

fn related(outer: &Target, inner: &Target) -> bool {
    match (outer, inner) {
        (Target::Host { name: outer, .. }, Target::Host { name: inner, .. }) => {
            inner == outer
                || inner
                    .strip_suffix(outer.as_str())
                    .is_some_and(|labels| labels.ends_with('.'))
        }
        (Target::Network(outer), Target::Network(inner)) => outer.covers(inner),
        _ => false,
    }
}

fn listeners(plan: &NetworkPlan, wall: Wall) -> Vec<Listener> {
    let mut listeners = vec![Listener::Proxy];
    if plan.capture == Capture::Transparent {
        listeners.extend([
            Listener::Transparent,
            Listener::NamesUdp,
            Listener::NamesTcp,
        ]);
    }
    let ports = plan.host_ports.iter();
    listeners.extend(ports.map(|port| Listener::HostPort(port.port)));
    listeners.extend(plan.sockets.iter().map(|socket| Listener::Unix {
        path: socket.inside.clone(),
    }));
    if wall == Wall::Microvm {
        let crossings = Crossings::of(plan).unwrap_or_default();
        let ports = crossings.sockets.into_iter();
        listeners.extend(ports.map(|one| Listener::SocketPort {
            port: one.port,
            path: one.inside,
        }));
    }
    if !plan.publish.is_empty() {
        listeners.push(Listener::Supply);
    }
    listeners.extend([Listener::ProbeTcp, Listener::ProbeUdp]);
    listeners
}

/// Every file of roots that programs inside can see, and one of our own.
fn stores(facts: &Facts, view: &View) -> (Vec<Store>, Option<AbsolutePath>) {
    let seen = |path: &&AbsolutePath| {
        let host = matches!(nearest(&view.entries, path), Some(Entry::Host { .. }));
        host && !view.masks.iter().any(|mask| path.is_within(&mask.path))
    };
    let store = |format| {
        move |path: &AbsolutePath| Store {
            // The launcher reads Java's stores from the roots of the first.
            source: (format == StoreFormat::Pem).then(|| path.clone()),
            path: path.clone(),
            format,
        }
    };
    let bundles = facts.ca_bundles.iter().filter(seen);
    let mut stores: Vec<Store> = bundles.map(store(StoreFormat::Pem)).collect();
    let own = view
        .way_out
        .as_ref()
        .and_then(|directory| directory.join(TRUST_FILE).ok());
    stores.extend(own.iter().map(|path| Store {
        source: facts.ca_bundles.first().cloned(),
        path: path.clone(),
        format: StoreFormat::Pem,
    }));
    let java = facts.java_stores.iter().filter(seen);
    stores.extend(java.map(store(StoreFormat::Jks)));
    (stores, own)
}

#[cfg(test)]
pub(crate) mod tests;
