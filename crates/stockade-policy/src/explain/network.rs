//! The network part of a plan, for people and for programs. Secrets are not in
//! a plan; what is shown of a credential is where it comes from and goes.

use serde::Serialize;

use super::wire::{RuleV1, rule};
use super::{Page, Tone, source};
use crate::network::rules::{
    Approval, Attach, Binding, Budget, Capture, Content, Git, GraphQl, Mode, NetworkPlan,
    NetworkRule, SocketKind, SocketOffer, Source, TlsMode,
};
use crate::plan::{Form, Plan};

/// The way out, version 1; absent where nothing is opened.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkV1 {
    /// All of them must permit: what is granted, then each ceiling.
    pub sets: Vec<RuleSetV1>,
    pub deny: Vec<TargetV1>,
    pub credentials: Vec<CredentialV1>,
    /// `deny`, `ask` or `learn`.
    pub approval: &'static str,
    pub approval_wait_ms: u64,
    pub publish: Vec<PublishV1>,
    pub host_ports: Vec<HostPortV1>,
    pub sockets: Vec<SocketV1>,
    pub budget: BudgetV1,
    /// `transparent` or `proxy-only`.
    pub capture: &'static str,
    pub resolvers: Vec<String>,
    pub roots: Vec<String>,
    pub upstream_proxy: Option<String>,
    pub nat64: Vec<String>,
    pub metrics: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct RuleSetV1 {
    pub origin: String,
    pub rules: Vec<TargetV1>,
}

#[derive(Clone, Debug, Serialize)]
pub struct TargetV1 {
    /// A host pattern or a network.
    pub target: String,
    /// Ports and ranges, as `443` or `8000-8010`.
    pub ports: Vec<String>,
    /// `passthrough`, `inspect` or `raw`; absent for what is denied.
    pub tls: Option<&'static str>,
    /// What is demanded of requests or git operations, in words.
    pub demands: Vec<String>,
    pub allow_private: Vec<String>,
    pub budget: BudgetV1,
    /// Seconds since 1970.
    pub expires_unix: Option<u64>,
    pub rule: RuleV1,
}

#[derive(Clone, Debug, Serialize)]
pub struct BudgetV1 {
    pub upload_bytes_max: Option<u64>,
    pub download_bytes_max: Option<u64>,
    pub connections_max: Option<u64>,
    pub requests_per_minute: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct CredentialV1 {
    pub name: String,
    pub host: String,
    pub ports: Vec<String>,
    pub methods: Vec<String>,
    pub paths: Vec<String>,
    /// Where it comes from, in words; never its value.
    pub source: String,
    /// `attach` or `replace`.
    pub mode: &'static str,
    /// Where in a request it goes, in words.
    pub place: String,
    pub variable: Option<String>,
    pub scrub: bool,
    pub plaintext: bool,
    pub expires_unix: Option<u64>,
    pub rule: RuleV1,
}

#[derive(Clone, Debug, Serialize)]
pub struct PublishV1 {
    pub host_port: u16,
    pub port: u16,
    pub rule: RuleV1,
}

#[derive(Clone, Debug, Serialize)]
pub struct HostPortV1 {
    pub port: u16,
    pub rule: RuleV1,
}

#[derive(Clone, Debug, Serialize)]
pub struct SocketV1 {
    pub path: String,
    pub inside: String,
    /// Keys that an ssh agent signs with; absent for other sockets.
    pub ssh_agent: Option<Vec<String>>,
    pub rule: RuleV1,
}

/// The network part as a value that serialises.
pub(super) fn json(plan: &NetworkPlan) -> NetworkV1 {
    let denied = |deny: &crate::network::rules::DenyRule| TargetV1 {
        target: deny.target.to_string(),
        ports: ports(&deny.ports),
        tls: None,
        demands: Vec::new(),
        allow_private: Vec::new(),
        budget: budget(&Budget::default()),
        expires_unix: None,
        rule: rule(&deny.rule),
    };
    let set = |set: &crate::network::rules::RuleSet| RuleSetV1 {
        origin: set.origin.clone(),
        rules: set.rules.iter().map(target).collect(),
    };
    NetworkV1 {
        sets: plan.sets.iter().map(set).collect(),
        deny: plan.deny.iter().map(denied).collect(),
        credentials: plan.credentials.iter().map(credential).collect(),
        approval: approval(plan.approval),
        approval_wait_ms: plan.approval_wait_ms,
        publish: plan
            .publish
            .iter()
            .map(|publish| PublishV1 {
                host_port: publish.host_port,
                port: publish.port,
                rule: rule(&publish.rule),
            })
            .collect(),
        host_ports: plan
            .host_ports
            .iter()
            .map(|port| HostPortV1 {
                port: port.port,
                rule: rule(&port.rule),
            })
            .collect(),
        sockets: plan.sockets.iter().map(socket).collect(),
        budget: budget(&plan.budget),
        capture: match plan.capture {
            Capture::Transparent => "transparent",
            Capture::ProxyOnly => "proxy-only",
        },
        resolvers: plan
            .resolvers
            .iter()
            .map(|(address, port)| std::net::SocketAddr::new(*address, *port).to_string())
            .collect(),
        roots: plan.roots.iter().map(ToString::to_string).collect(),
        upstream_proxy: plan
            .upstream_proxy
            .as_ref()
            .map(|proxy| format!("http://{}:{}", proxy.host, proxy.port)),
        nat64: plan.nat64.iter().map(ToString::to_string).collect(),
        metrics: plan.metrics,
    }
}

/// The network part as text.
pub(super) fn text(page: &mut Page, plan: &Plan) {
    page.heading("Network");
    let Some(network) = &plan.network else {
        page.item(match plan.form {
            Form::Namespaces => "denied as a whole; only the run's own loopback exists",
            Form::LandlockOnly | Form::Seatbelt => "denied as a whole, loopback included",
        });
        return;
    };
    page.item(match network.capture {
        Capture::Transparent => {
            "through the egress process only: every TCP connection is caught, names included"
        }
        Capture::ProxyOnly => {
            "through the egress process only, and only for programs that use the proxy variables"
        }
    });
    page.item(match network.approval {
        Approval::Deny => "what is not listed is denied",
        Approval::Ask => "what is not listed is held, and you are asked",
        Approval::Learn => "what is not listed is permitted for this run, and recorded",
        Approval::LearnRequests => {
            "what is not listed is permitted for this run, inspected, and each request recorded"
        }
    });
    for (number, set) in network.sets.iter().enumerate() {
        match number {
            0 => page.item("may be reached:"),
            _ => page.item(&format!("of it, {} leaves only:", set.origin)),
        }
        rules(page, &set.rules);
    }
    for deny in &network.deny {
        let ports = match ports(&deny.ports) {
            list if list.is_empty() => String::new(),
            list => format!(" port {}", list.join(" ")),
        };
        line(page, &format!("never {}{ports}", deny.target), &deny.rule);
    }
    credentials(page, &network.credentials);
    offers(page, network);
    let budget = budget_words(&network.budget);
    if !budget.is_empty() {
        page.item(&format!("of the whole sandbox: {}", budget.join(", ")));
    }
    if network.metrics {
        page.item(
            "counters (Prometheus) on the unix socket metrics-RUN.sock in the state directory, \
             ~/.local/state/stockade",
        );
    }
    if let Some(proxy) = &network.upstream_proxy {
        let told = match proxy.send_address {
            true => "which is told the checked address",
            false => "which resolves names itself",
        };
        let what = format!("through the proxy {}:{}, {told}", proxy.host, proxy.port);
        line(page, &what, &proxy.rule);
    }
}

fn rules(page: &mut Page, rules: &[NetworkRule]) {
    if rules.is_empty() {
        page.item("  nothing");
    }
    for rule in rules {
        let shown = target(rule);
        let ports = match shown.ports.is_empty() {
            true => "443 80".to_owned(),
            false => shown.ports.join(" "),
        };
        let tls = tls(rule.tls);
        line(
            page,
            &format!("  {}  port {ports}  {tls}", shown.target),
            &rule.rule,
        );
        for demand in shown.demands {
            page.item(&format!("      {demand}"));
        }
    }
}

fn credentials(page: &mut Page, bindings: &[Binding]) {
    for binding in bindings {
        let shown = credential(binding);
        let what = format!(
            "credential {}: from {}, {} for {}",
            shown.name, shown.source, shown.place, shown.host
        );
        line(page, &what, &binding.rule);
        if let Some(variable) = &binding.variable {
            page.item(&format!("      ${variable} holds a placeholder inside"));
        }
    }
}

fn offers(page: &mut Page, network: &NetworkPlan) {
    for publish in &network.publish {
        let host_port = match publish.host_port {
            0 => "a free port".to_owned(),
            port => format!("port {port}"),
        };
        let what = format!("port {} inside is {host_port} of 127.0.0.1", publish.port);
        line(page, &what, &publish.rule);
    }
    for port in &network.host_ports {
        let what = format!(
            "port {} inside is that of this machine's 127.0.0.1",
            port.port
        );
        line(page, &what, &port.rule);
    }
    for socket in &network.sockets {
        let what = match &socket.kind {
            SocketKind::Stream => format!("socket {} as {}", socket.path, socket.inside),
            SocketKind::SshAgent { keys } => {
                format!("ssh agent as {}, with {}", socket.inside, keys.join(", "))
            }
        };
        line(page, &what, &socket.rule);
    }
}

fn line(page: &mut Page, what: &str, rule: &crate::plan::Rule) {
    let origin = page.toned(Tone::Faint, &source(rule));
    page.item(&format!("{what}  {}  {origin}", rule.reason));
}

fn target(network_rule: &NetworkRule) -> TargetV1 {
    let mut demands = Vec::new();
    if let Some(content) = &network_rule.content {
        demands.extend(content_words(content));
    }
    if let Some(git) = &network_rule.git {
        demands.extend(git_words(git));
    }
    let private: Vec<String> = network_rule
        .allow_private
        .iter()
        .map(ToString::to_string)
        .collect();
    if !private.is_empty() {
        demands.push(format!("also in {}", private.join(", ")));
    }
    if network_rule.no_alias {
        demands.push("not as an alias of another name".to_owned());
    }
    demands.extend(budget_words(&network_rule.budget));
    TargetV1 {
        target: network_rule.target.to_string(),
        ports: ports(&network_rule.ports),
        tls: Some(tls(network_rule.tls)),
        demands,
        allow_private: private,
        budget: budget(&network_rule.budget),
        expires_unix: network_rule.expires_unix,
        rule: rule(&network_rule.rule),
    }
}

fn content_words(content: &Content) -> Vec<String> {
    let mut words = Vec::new();
    let mut list = |what: &str, items: &[String]| {
        if !items.is_empty() {
            words.push(format!("{what} {}", items.join(", ")));
        }
    };
    list("methods", &content.methods);
    list("paths", &content.paths);
    let pairs = |pairs: &[(String, String)]| -> Vec<String> {
        let pair = |(name, pattern): &(String, String)| format!("{name}={pattern}");
        pairs.iter().map(pair).collect()
    };
    list("query", &pairs(&content.query));
    list("headers", &pairs(&content.headers));
    for (said, what) in [
        (content.query_only, "no other parameters"),
        (
            content.graphql == GraphQl::ReadOnly,
            "GraphQL without mutations",
        ),
        (content.websocket, "WebSockets"),
        (content.encoded_slash, "encoded slashes"),
    ] {
        if said {
            words.push(what.to_owned());
        }
    }
    if let Some(bytes) = content.body_bytes_max {
        words.push(format!("bodies up to {bytes} bytes"));
    }
    words
}

fn git_words(git: &Git) -> Vec<String> {
    let mut words = Vec::new();
    let mut list = |what: &str, items: &[String]| {
        if !items.is_empty() {
            words.push(format!("git {what} {}", items.join(", ")));
        }
    };
    list("read", &git.read);
    list("push", &git.push);
    list("references", &git.refs);
    if let Some(bytes) = git.push_bytes_max {
        words.push(format!("packs up to {bytes} bytes"));
    }
    if git.delete {
        words.push("references may be deleted".to_owned());
    }
    if let Some(port) = git.ssh_port {
        words.push(format!("also over SSH on port {port}"));
    }
    words
}

fn budget_words(budget: &Budget) -> Vec<String> {
    let limits = [
        ("bytes up", budget.upload_bytes_max),
        ("bytes down", budget.download_bytes_max),
        ("connections at one time", budget.connections_max),
        ("requests a minute", budget.requests_per_minute),
    ];
    limits
        .into_iter()
        .filter_map(|(what, limit)| limit.map(|limit| format!("at most {limit} {what}")))
        .collect()
}

fn budget(budget: &Budget) -> BudgetV1 {
    let Budget {
        upload_bytes_max,
        download_bytes_max,
        connections_max,
        requests_per_minute,
    } = *budget;
    BudgetV1 {
        upload_bytes_max,
        download_bytes_max,
        connections_max,
        requests_per_minute,
    }
}

fn credential(binding: &Binding) -> CredentialV1 {
    CredentialV1 {
        name: binding.name.clone(),
        host: binding.host.to_string(),
        ports: ports(&binding.ports),
        methods: binding.methods.clone(),
        paths: binding.paths.clone(),
        source: source_words(&binding.source),
        mode: match binding.mode {
            Mode::Attach => "attach",
            Mode::Replace => "replace",
        },
        place: place_words(&binding.form),
        variable: binding.variable.clone(),
        scrub: binding.scrub,
        plaintext: binding.plaintext,
        expires_unix: binding.expires_unix,
        rule: rule(&binding.rule),
    }
}

fn source_words(source: &Source) -> String {
    match source {
        Source::Env { variable } => format!("your variable {variable}"),
        Source::File { path } => format!("the file {path}"),
        Source::Command { argv } => {
            format!("the command {}", argv.first().map_or("", String::as_str))
        }
        Source::Keyring { name } => format!("the secret store ({name})"),
        Source::OAuth2 { token_url, .. } => format!("the token server {token_url}"),
        Source::GitHubApp { app_id, .. } => format!("the GitHub App {app_id}"),
        Source::AwsSts { role, .. } => format!("the AWS role {role}"),
    }
}

fn place_words(form: &Attach) -> String {
    match form {
        Attach::Header { name, .. } => format!("in the header {name}"),
        Attach::Basic { user } => format!("as the password of {user}"),
        Attach::Query { name } => format!("in the parameter {name}"),
        Attach::Path => "in the path".to_owned(),
        Attach::Form { name } => format!("in the form field {name}"),
        Attach::Json { pointer } => format!("in the JSON body at {pointer}"),
        Attach::SigV4 { .. } => "as an AWS signature".to_owned(),
    }
}

fn socket(offer: &SocketOffer) -> SocketV1 {
    SocketV1 {
        path: offer.path.to_string(),
        inside: offer.inside.to_string(),
        ssh_agent: match &offer.kind {
            SocketKind::Stream => None,
            SocketKind::SshAgent { keys } => Some(keys.clone()),
        },
        rule: rule(&offer.rule),
    }
}

fn ports(ports: &[(u16, u16)]) -> Vec<String> {
    let shown = |(low, high): &(u16, u16)| match low == high {
        true => low.to_string(),
        false => format!("{low}-{high}"),
    };
    ports.iter().map(shown).collect()
}

fn tls(tls: TlsMode) -> &'static str {
    match tls {
        TlsMode::Passthrough => "passthrough",
        TlsMode::Inspect => "inspect",
        TlsMode::Raw => "raw",
    }
}

fn approval(approval: Approval) -> &'static str {
    match approval {
        Approval::Deny => "deny",
        Approval::Ask => "ask",
        Approval::Learn => "learn",
        Approval::LearnRequests => "learn-requests",
    }
}
