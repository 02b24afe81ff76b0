//! The network half of a document as written: rules, credentials, sockets and
//! approvals, before paths are resolved and defaults filled in.
//!
//! What each key is called and how its value reads stands in `keys`.

use std::net::IpAddr;

use crate::document::List;
use crate::network::address::Network;
use crate::network::rules::{GraphQl, TlsMode};
use crate::problem::Located;
use crate::value::{DenyPattern, HostPattern, Published, UpstreamAddress, WrittenPath};

type One<T> = Option<Located<T>>;
type Pairs = Option<Vec<(String, String)>>;

/// All keys of `[network]` but `allow`, and the tables beside it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WrittenNetwork {
    pub deny: List<DenyPattern>,
    pub rules: List<WrittenRule>,
    pub git: List<WrittenGit>,
    pub credentials: List<WrittenCredential>,
    pub sockets: List<WrittenSocket>,
    pub resolvers: List<(IpAddr, u16)>,
    pub roots: List<WrittenPath>,
    pub proxy: One<UpstreamAddress>,
    pub proxy_resolves: One<bool>,
    pub publish: List<Published>,
    pub host_ports: List<u16>,
    pub nat64: List<Network>,
    pub budget: WrittenBudget,
    pub metrics: One<bool>,
    pub approval: One<bool>,
    pub approval_wait_ms: One<u64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct WrittenBudget {
    pub upload_bytes_max: One<u64>,
    pub download_bytes_max: One<u64>,
    pub connections: One<u64>,
    pub requests_per_minute: One<u64>,
}

/// `[[network.rule]]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WrittenRule {
    pub host: One<HostPattern>,
    pub cidr: One<Network>,
    pub ports: List<(u16, u16)>,
    pub tls: One<TlsMode>,
    pub methods: List<String>,
    pub paths: List<String>,
    pub query: Pairs,
    pub query_only: One<bool>,
    pub headers: Pairs,
    pub graphql: One<GraphQl>,
    pub body_bytes_max: One<u64>,
    pub websocket: One<bool>,
    pub encoded_slash: One<bool>,
    pub budget: WrittenBudget,
    pub allow_private: List<Network>,
    pub no_alias: One<bool>,
    pub expires: One<u64>,
    pub reason: One<String>,
}

/// `[[network.git]]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WrittenGit {
    pub host: One<HostPattern>,
    pub read: List<String>,
    pub push: List<String>,
    pub refs: List<String>,
    pub push_bytes_max: One<u64>,
    pub delete: One<bool>,
    pub ssh_port: One<u64>,
    pub allow_private: List<Network>,
    pub expires: One<u64>,
    pub reason: One<String>,
}

/// `[[credential]]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WrittenCredential {
    pub name: One<String>,
    pub host: One<HostPattern>,
    pub ports: List<(u16, u16)>,
    pub methods: List<String>,
    pub paths: List<String>,
    pub from: One<WrittenSource>,
    pub attach: One<WrittenPlace>,
    pub replace: One<WrittenPlace>,
    pub variable: One<String>,
    pub scrub: One<bool>,
    pub plaintext: One<bool>,
    pub expires: One<u64>,
}

/// `from`: exactly one of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WrittenSource {
    pub env: One<String>,
    pub file: One<WrittenPath>,
    pub command: List<String>,
    pub keyring: One<String>,
    pub oauth2: Option<Box<Located<WrittenOAuth2>>>,
    pub github_app: Option<Box<Located<WrittenGitHubApp>>>,
    pub aws_sts: Option<Box<Located<WrittenAwsSts>>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct WrittenOAuth2 {
    pub token_url: One<String>,
    pub client_id: One<String>,
    pub client_secret: One<WrittenSource>,
    pub refresh_token: One<WrittenSource>,
    pub scopes: List<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct WrittenGitHubApp {
    pub api_url: One<String>,
    pub app_id: One<String>,
    pub installation_id: One<String>,
    pub private_key: One<WrittenSource>,
    pub repositories: List<String>,
    pub permissions: Pairs,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct WrittenAwsSts {
    pub endpoint: One<String>,
    pub region: One<String>,
    pub access_key_id: One<WrittenSource>,
    pub secret_access_key: One<WrittenSource>,
    pub role: One<String>,
    pub policy: One<String>,
    pub duration_seconds: One<u64>,
}

/// `attach` or `replace`: exactly one of the places.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WrittenPlace {
    pub header: One<String>,
    pub format: One<String>,
    pub basic: One<String>,
    pub query: One<String>,
    pub path: One<bool>,
    pub form: One<String>,
    pub json: One<String>,
    pub sigv4: One<WrittenSigV4>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct WrittenSigV4 {
    pub region: One<String>,
    pub service: One<String>,
}

/// `[[socket]]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WrittenSocket {
    pub path: One<WrittenPath>,
    pub inside: One<WrittenPath>,
    pub ssh_agent: List<String>,
}
