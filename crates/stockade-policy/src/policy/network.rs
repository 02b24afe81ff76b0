//! The network half of a validated policy.

use std::net::IpAddr;

use crate::network::address::Network;
use crate::network::rules::{
    Approval, Binding, Budget, DenyRule, HostPort, Publish, RuleSet, SocketKind, UpstreamProxy,
};
use crate::path::AbsolutePath;
use crate::plan::Rule;

/// What the user allows to be reached and offered, merged from all layers. The
/// plan's network part is this and what the machine adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkPolicy {
    /// As in [`crate::network::NetworkPlan::sets`]: the first is what the
    /// granting layers allow together, the others are ceilings.
    pub sets: Vec<RuleSet>,
    pub deny: Vec<DenyRule>,
    pub credentials: Vec<Binding>,
    pub approval: Approval,
    /// The rule by which people are asked.
    pub approval_rule: Option<Rule>,
    /// `None` for the longest.
    pub approval_wait_ms: Option<u64>,
    pub publish: Vec<Publish>,
    pub host_ports: Vec<HostPort>,
    pub sockets: Vec<SocketDemand>,
    pub budget: Budget,
    pub resolvers: Vec<(IpAddr, u16)>,
    pub roots: Vec<AbsolutePath>,
    pub upstream_proxy: Option<UpstreamProxy>,
    pub nat64: Vec<Network>,
    pub metrics: bool,
}

/// A unix socket that is to be offered inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketDemand {
    pub rule: Rule,
    /// On the host; `None` for the caller's ssh agent.
    pub path: Option<AbsolutePath>,
    /// Inside; `None` for a place that compiling chooses.
    pub inside: Option<AbsolutePath>,
    pub kind: SocketKind,
}

impl NetworkPolicy {
    /// Whether anything is to be reached, offered or asked about, so that an
    /// egress process is needed.
    pub fn opens_anything(&self) -> bool {
        self.sets.first().is_some_and(|set| !set.rules.is_empty())
            || !self.publish.is_empty()
            || !self.host_ports.is_empty()
            || !self.sockets.is_empty()
            || self.approval != Approval::Deny
    }
}
