//! The rules of the way out, as compiled into a plan.
//!
//! They cross to the egress process as they are (both are one build), so the
//! types here are also the wire form. They hold no secret.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::address::Network;
use super::destination::Host;
use crate::path::AbsolutePath;
use crate::plan::Rule;
use crate::value::HostReach;

/// Everything that the way out of one sandbox is held to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkPlan {
    /// What may be reached. All sets must permit: the first is what the
    /// granting layers allow together, each other one is the ceiling of a
    /// layer that takes away. No set, or an empty one, denies all.
    pub sets: Vec<RuleSet>,
    /// Taken away from everything above, whatever is more specific.
    pub deny: Vec<DenyRule>,
    pub credentials: Vec<Binding>,
    pub approval: Approval,
    /// How long a request to an unknown destination is held at most.
    pub approval_wait_ms: u64,
    pub publish: Vec<Publish>,
    /// Ports of the host's loopback that are offered on the sandbox's own.
    pub host_ports: Vec<HostPort>,
    pub sockets: Vec<SocketOffer>,
    /// Budgets of the whole sandbox; those of a rule stand beside them.
    pub budget: Budget,
    pub capture: Capture,
    /// `address:port` of the resolvers to ask; empty for the machine's own.
    pub resolvers: Vec<(IpAddr, u16)>,
    /// Files with more roots that upstream certificates may rest on (PEM).
    pub roots: Vec<AbsolutePath>,
    /// HTTP proxy of the organisation through which everything is dialled.
    pub upstream_proxy: Option<UpstreamProxy>,
    /// Prefixes that this network translates IPv4 into (RFC 6052), beside the
    /// well-known one.
    pub nat64: Vec<Network>,
    /// Serve counters in the Prometheus text format on a unix socket.
    pub metrics: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleSet {
    /// The layers that it comes from, for messages.
    pub origin: String,
    pub rules: Vec<NetworkRule>,
}

/// One entry of `network.allow`, `network.rule` or `network.git`.
///
/// Of the rules that match a destination only those with the most specific
/// target speak, and of those the ones with demands before the ones without;
/// a request is permitted when one of them permits it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRule {
    pub rule: Rule,
    pub target: Target,
    /// Inclusive; empty stands for 443 and 80.
    pub ports: Vec<(u16, u16)>,
    pub tls: TlsMode,
    /// `None` where nothing is demanded of the content.
    pub content: Option<Content>,
    pub git: Option<Git>,
    /// Private networks in which the named host may be found.
    pub allow_private: Vec<Network>,
    /// Refuse when the name is an alias of a name outside the rule.
    pub no_alias: bool,
    pub budget: Budget,
    /// Seconds since 1970 after which the rule is as if it were not there.
    pub expires_unix: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// Lower-case A-labels, without the stars.
    Host { reach: HostReach, name: String },
    /// IP literals; the only way to permit one.
    Network(Network),
}

impl Target {
    /// Whether the host is held; compared label by label.
    pub fn holds(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Network(network), Host::Address(address)) => network.contains(*address),
            (Self::Host { reach, name }, Host::Name(host)) => {
                let host = host.as_str();
                let before = host
                    .strip_suffix(name.as_str())
                    .and_then(|labels| labels.strip_suffix('.'));
                match reach {
                    HostReach::Exact => host == name,
                    HostReach::OneLabel => before.is_some_and(|label| !label.contains('.')),
                    HostReach::AnyLabels => before.is_some(),
                }
            }
            _ => false,
        }
    }
}

/// As in a policy: `*.host`, or a network.
impl std::fmt::Display for Target {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Network(network) => network.fmt(formatter),
            Self::Host { reach, name } => {
                let stars = match reach {
                    HostReach::Exact => "",
                    HostReach::OneLabel => "*.",
                    HostReach::AnyLabels => "**.",
                };
                write!(formatter, "{stars}{name}")
            }
        }
    }
}

/// Ports that a rule without any stands for.
pub const DEFAULT_PORTS: [u16; 2] = [443, 80];

/// Whether inclusive ranges hold a port; no range stands for
/// [`DEFAULT_PORTS`].
pub fn holds_port(ports: &[(u16, u16)], port: u16) -> bool {
    match ports {
        [] => DEFAULT_PORTS.contains(&port),
        ranges => ranges
            .iter()
            .any(|(low, high)| (*low..=*high).contains(&port)),
    }
}

/// How TLS to a destination is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TlsMode {
    /// Encrypted end to end; the server name must equal the destination.
    Passthrough,
    /// Ended and begun again here, each request judged.
    Inspect,
    /// Any bytes: for protocols that are not TLS from their first byte on.
    Raw,
}

/// What a request must be like. Empty lists demand nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// Upper case.
    pub methods: Vec<String>,
    /// Patterns over the canonical path: `*` within a segment, `**` across.
    pub paths: Vec<String>,
    /// Parameter and pattern of its value: each must be there; and with
    /// `query_only` no other may.
    pub query: Vec<(String, String)>,
    pub query_only: bool,
    /// Lower-case header and pattern of its value: each must be there.
    pub headers: Vec<(String, String)>,
    pub graphql: GraphQl,
    pub body_bytes_max: Option<u64>,
    /// May be upgraded to a WebSocket.
    pub websocket: bool,
    /// `%2F` in a path is kept instead of refused.
    pub encoded_slash: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GraphQl {
    #[default]
    NotLookedAt,
    /// Only requests whose every operation is a query.
    ReadOnly,
}

/// What may be done to git repositories of a host. Repositories are
/// `owner/name` patterns, `*` within a segment and `**` across.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Git {
    pub read: Vec<String>,
    pub push: Vec<String>,
    /// Patterns of full reference names that may be pushed; empty allows
    /// every branch, and nothing else.
    pub refs: Vec<String>,
    /// Largest pack that may be pushed.
    pub push_bytes_max: Option<u64>,
    /// May a reference be deleted or moved without containing what it held.
    pub delete: bool,
    /// Port on which the host speaks SSH, if it may be used.
    pub ssh_port: Option<u16>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    pub upload_bytes_max: Option<u64>,
    pub download_bytes_max: Option<u64>,
    /// At one time.
    pub connections_max: Option<u64>,
    pub requests_per_minute: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DenyRule {
    pub rule: Rule,
    pub target: Target,
    /// Empty stands for every port.
    pub ports: Vec<(u16, u16)>,
}

/// A credential and what it may be attached to. Never holds its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    pub rule: Rule,
    /// Name in the policy; also how events call it.
    pub name: String,
    pub source: Source,
    pub host: Target,
    /// As in [`NetworkRule::ports`].
    pub ports: Vec<(u16, u16)>,
    /// Upper case; empty for every method that the rules permit.
    pub methods: Vec<String>,
    /// Patterns as in [`Content::paths`]; empty for every path.
    pub paths: Vec<String>,
    pub mode: Mode,
    pub form: Attach,
    /// Variable inside that gets the placeholder, in mode `Replace`.
    pub variable: Option<String>,
    /// Take the secret out of responses; `false` is a weakening by name.
    pub scrub: bool,
    /// Also over plain HTTP; a weakening by name.
    pub plaintext: bool,
    pub expires_unix: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// The client sends nothing; what it sends in this place is refused.
    Attach,
    /// The client sends a placeholder, which becomes the secret.
    Replace,
}

/// Where in a request a secret goes. `format` holds `{}` once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attach {
    Header {
        name: String,
        format: String,
    },
    Basic {
        user: String,
    },
    Query {
        name: String,
    },
    /// Replace mode only: the placeholder anywhere in the path.
    Path,
    /// A field of an `application/x-www-form-urlencoded` body.
    Form {
        name: String,
    },
    /// A member of a JSON body by JSON pointer (RFC 6901).
    Json {
        pointer: String,
    },
    /// AWS Signature Version 4: the request is signed anew.
    SigV4 {
        region: Option<String>,
        service: Option<String>,
    },
}

/// Where a secret comes from. Read outside, by the engine or the egress
/// process, never inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    Env {
        variable: String,
    },
    File {
        path: AbsolutePath,
    },
    /// The first line that the command prints; run by the engine.
    Command {
        argv: Vec<String>,
    },
    /// Entry of `stockade secret set NAME`.
    Keyring {
        name: String,
    },
    /// RFC 6749 client credentials grant, or refresh when `refresh` is there.
    OAuth2 {
        token_url: String,
        client_id: String,
        client_secret: Option<Box<Source>>,
        refresh_token: Option<Box<Source>>,
        scopes: Vec<String>,
    },
    /// Installation token of a GitHub App, narrowed.
    GitHubApp {
        api_url: String,
        app_id: String,
        installation_id: String,
        private_key: Box<Source>,
        repositories: Vec<String>,
        permissions: Vec<(String, String)>,
    },
    /// AWS STS AssumeRole with a session policy.
    AwsSts {
        endpoint: String,
        region: String,
        access_key_id: Box<Source>,
        secret_access_key: Box<Source>,
        role: String,
        policy: Option<String>,
        seconds: u64,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Approval {
    #[default]
    Deny,
    Ask,
    /// `stockade learn`: what no rule names is permitted and recorded. No
    /// policy can say this.
    Learn,
    /// `stockade learn --requests`: likewise, and what is asked of those hosts
    /// is inspected, so that it is recorded too.
    LearnRequests,
}

impl Approval {
    /// Whether what no rule names is permitted and recorded.
    pub fn learns(self) -> bool {
        matches!(self, Self::Learn | Self::LearnRequests)
    }
}

/// A server inside that the host reaches on its loopback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publish {
    pub rule: Rule,
    /// On the host's 127.0.0.1; 0 lets the kernel choose.
    pub host_port: u16,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPort {
    pub rule: Rule,
    pub port: u16,
}

/// A unix socket of the host that is offered inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketOffer {
    pub rule: Rule,
    /// On the host, links resolved.
    pub path: AbsolutePath,
    /// Inside.
    pub inside: AbsolutePath,
    pub kind: SocketKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SocketKind {
    /// Bytes pass unchanged; descriptors never do.
    Stream,
    /// An ssh agent that lists and signs only with these keys: a
    /// `SHA256:…` fingerprint or the key's comment.
    SshAgent { keys: Vec<String> },
}

/// How connections of programs that know of no proxy are caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Capture {
    /// Every TCP connection is redirected (nftables), and names resolve.
    Transparent,
    /// Only programs that use the proxy variables have a way out.
    ProxyOnly,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamProxy {
    pub rule: Rule,
    pub host: String,
    pub port: u16,
    /// The vetted address is sent instead of the name; `false` lets the proxy
    /// resolve again, which weakens NT4 by name.
    pub send_address: bool,
}
