//! The network part of the canonical encoding.
//!
//! Rests on the macros and the trait of the module above; what an encoding
//! must hold to is said there.

use std::net::IpAddr;

use super::{Canonical, Encoder};
use crate::network::address::Network;
use crate::network::rules::{
    Approval, Attach, Binding, Budget, Capture, Content, DenyRule, Git, GraphQl, HostPort, Mode,
    NetworkPlan, NetworkRule, Publish, RuleSet, SocketKind, SocketOffer, Source, Target, TlsMode,
    UpstreamProxy,
};
use crate::value::HostReach;

lists!(
    (IpAddr, u16),
    (String, String),
    (u16, u16),
    Binding,
    DenyRule,
    HostPort,
    Network,
    NetworkRule,
    Publish,
    RuleSet,
    SocketOffer,
);

structs! {
    NetworkPlan {
        sets, deny, credentials, approval, approval_wait_ms, publish, host_ports, sockets, budget,
        capture, resolvers, roots, upstream_proxy, nat64, metrics,
    }
    RuleSet { origin, rules }
    NetworkRule {
        rule, target, ports, tls, content, git, allow_private, no_alias, budget, expires_unix,
    }
    Content {
        methods, paths, query, query_only, headers, graphql, body_bytes_max, websocket,
        encoded_slash,
    }
    Git { read, push, refs, push_bytes_max, delete, ssh_port }
    Budget { upload_bytes_max, download_bytes_max, connections_max, requests_per_minute }
    DenyRule { rule, target, ports }
    Binding {
        rule, name, source, host, ports, methods, paths, mode, form, variable, scrub, plaintext,
        expires_unix,
    }
    Publish { rule, host_port, port }
    HostPort { rule, port }
    SocketOffer { rule, path, inside, kind }
    UpstreamProxy { rule, host, port, send_address }
}

/// Writes the number of each variant that has no fields.
macro_rules! marks {
    ($($name:ident { $($variant:ident = $tag:literal),* $(,)? })*) => {
        $(impl Canonical for $name {
            fn encode(&self, encoder: &mut Encoder) {
                encoder.tag(match self { $(Self::$variant => $tag),* });
            }
        })*
    };
}

marks! {
    Approval { Deny = 0, Ask = 1, Learn = 2, LearnRequests = 3 }
    Capture { Transparent = 0, ProxyOnly = 1 }
    GraphQl { NotLookedAt = 0, ReadOnly = 1 }
    HostReach { Exact = 0, OneLabel = 1, AnyLabels = 2 }
    Mode { Attach = 0, Replace = 1 }
    TlsMode { Passthrough = 0, Inspect = 1, Raw = 2 }
}

impl Canonical for IpAddr {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            Self::V4(address) => encoder.bytes(&address.octets()),
            Self::V6(address) => encoder.bytes(&address.octets()),
        }
    }
}

impl Canonical for Network {
    fn encode(&self, encoder: &mut Encoder) {
        self.address().encode(encoder);
        encoder.tag(self.bits());
    }
}

impl Canonical for Target {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            Self::Host { reach, name } => variant!(encoder, 0, reach, name),
            Self::Network(network) => variant!(encoder, 1, network),
        }
    }
}

impl Canonical for SocketKind {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            Self::Stream => variant!(encoder, 0),
            Self::SshAgent { keys } => variant!(encoder, 1, keys),
        }
    }
}

impl Canonical for Attach {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            Self::Header { name, format } => variant!(encoder, 0, name, format),
            Self::Basic { user } => variant!(encoder, 1, user),
            Self::Query { name } => variant!(encoder, 2, name),
            Self::Path => variant!(encoder, 3),
            Self::Form { name } => variant!(encoder, 4, name),
            Self::Json { pointer } => variant!(encoder, 5, pointer),
            Self::SigV4 { region, service } => variant!(encoder, 6, region, service),
        }
    }
}

impl Canonical for Box<Source> {
    fn encode(&self, encoder: &mut Encoder) {
        (**self).encode(encoder);
    }
}

impl Canonical for Source {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            Self::Env { variable } => variant!(encoder, 0, variable),
            Self::File { path } => variant!(encoder, 1, path),
            Self::Command { argv } => variant!(encoder, 2, argv),
            Self::Keyring { name } => variant!(encoder, 3, name),
            Self::OAuth2 {
                token_url,
                client_id,
                client_secret,
                refresh_token,
                scopes,
            } => variant!(
                encoder,
                4,
                token_url,
                client_id,
                client_secret,
                refresh_token,
                scopes
            ),
            Self::GitHubApp {
                api_url,
                app_id,
                installation_id,
                private_key,
                repositories,
                permissions,
            } => variant!(
                encoder,
                5,
                api_url,
                app_id,
                installation_id,
                private_key,
                repositories,
                permissions
            ),
            Self::AwsSts {
                endpoint,
                region,
                access_key_id,
                secret_access_key,
                role,
                policy,
                seconds,
            } => variant!(
                encoder,
                6,
                endpoint,
                region,
                access_key_id,
                secret_access_key,
                role,
                policy,
                seconds
            ),
        }
    }
}
