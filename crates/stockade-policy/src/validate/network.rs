//! The network half of one layer: rules from what is written, with the
//! defaults that depend on the rule itself.

mod credential;

use std::net::IpAddr;

use super::{Context, Item, Rules, Said, resolve};
use crate::document::{Document, List};
use crate::network::address::Network;
use crate::network::rules::{
    Binding, Budget, Content, DenyRule, Git, GraphQl, HostPort, NetworkRule, Publish, SocketKind,
    Target, TlsMode, UpstreamProxy,
};
use crate::path::AbsolutePath;
use crate::plan::Rule;
use crate::policy::SocketDemand;
use crate::problem::{Fault, Layer, Located, Place, Problem};
use crate::value::{HostPattern, WrittenPath};
use crate::written::{WrittenBudget, WrittenGit, WrittenNetwork, WrittenRule, WrittenSocket};

/// What one layer says about the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LayerNetwork {
    /// Of `allow`, `rule` and `git` together; `None` when none is there.
    pub rules: Said<Reach>,
    pub deny: Vec<Item<DenyRule>>,
    pub credentials: Said<Binding>,
    pub publish: Said<Publish>,
    pub host_ports: Said<HostPort>,
    pub sockets: Said<SocketDemand>,
    pub resolvers: Said<(IpAddr, u16)>,
    pub roots: Said<AbsolutePath>,
    pub proxy: Option<Item<UpstreamProxy>>,
    pub nat64: Said<Network>,
    pub budget: LayerBudget,
    pub metrics: Option<Item<bool>>,
    pub ask: Option<Item<bool>>,
    pub approval_wait_ms: Option<Item<u64>>,
}

/// One rule, and whether its way with TLS was written or follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    pub rule: NetworkRule,
    pub tls_is_written: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LayerBudget {
    pub upload_bytes_max: Option<Item<u64>>,
    pub download_bytes_max: Option<Item<u64>>,
    pub connections_max: Option<Item<u64>>,
    pub requests_per_minute: Option<Item<u64>>,
}

pub(super) fn network(
    document: &Document,
    context: &Context,
    problems: &mut Vec<Problem>,
) -> LayerNetwork {
    let written = &document.network;
    let mut builder = Builder {
        layer: &document.layer,
        rules: Rules {
            layer: &document.layer,
        },
        context,
        problems,
    };
    LayerNetwork {
        rules: builder.reach(&document.network_allow, written),
        deny: builder.deny(written),
        credentials: builder.credentials(&written.credentials),
        publish: builder.publish(written),
        host_ports: builder.host_ports(written),
        sockets: builder.sockets(&written.sockets),
        resolvers: builder.rules.list("network.resolvers", &written.resolvers),
        roots: builder.roots(&written.roots),
        proxy: builder.proxy(written),
        nat64: builder.rules.list("network.nat64", &written.nat64),
        budget: builder.budget(&written.budget),
        metrics: builder.rules.one("network.metrics", &written.metrics),
        ask: builder.rules.one("approval.network", &written.approval),
        approval_wait_ms: builder
            .rules
            .one("approval.wait", &written.approval_wait_ms),
    }
}

struct Builder<'a> {
    layer: &'a Layer,
    rules: Rules<'a>,
    context: &'a Context,
    problems: &'a mut Vec<Problem>,
}

impl Builder<'_> {
    fn reach(&mut self, allow: &List<HostPattern>, written: &WrittenNetwork) -> Said<Reach> {
        if allow.is_none() && written.rules.is_none() && written.git.is_none() {
            return None;
        }
        let mut reach = Vec::new();
        for (index, located) in allow.iter().flatten().enumerate() {
            let key = "network.allow";
            let item = self.rules.item(
                key,
                format!("{key}[{index}]"),
                located,
                located.value.clone(),
            );
            reach.push(allowed(item));
        }
        for (index, located) in written.rules.iter().flatten().enumerate() {
            let rule = self.rule_of("network.rule", index, located, &located.value.reason);
            reach.extend(self.rule(&rule, located));
        }
        for (index, located) in written.git.iter().flatten().enumerate() {
            let rule = self.rule_of("network.git", index, located, &located.value.reason);
            reach.extend(git(rule, located));
        }
        Some(reach)
    }

    fn rule_of<T>(
        &self,
        key: &str,
        index: usize,
        located: &Located<T>,
        reason: &Option<Located<String>>,
    ) -> Rule {
        let mut rule = self
            .rules
            .item(key, format!("{key}[{index}]"), located, ())
            .rule;
        if let Some(reason) = reason {
            rule.reason.clone_from(&reason.value);
        }
        rule
    }

    /// Each part of a rule's ports that is treated in one way.
    fn rule(&mut self, rule: &Rule, located: &Located<WrittenRule>) -> Vec<Item<Reach>> {
        let written = &located.value;
        let Some(target) = target(&written.host, &written.cidr) else {
            return Vec::new();
        };
        let content = content(written);
        let tls = written.tls.as_ref().map(|tls| tls.value);
        if let (Some(_), Some(tls @ (TlsMode::Passthrough | TlsMode::Raw))) = (&content, tls) {
            self.contradiction(written, tls);
        }
        let ports = values(&written.ports);
        let parts = match (&content, tls) {
            (Some(_), _) => vec![(ports, TlsMode::Inspect)],
            (None, Some(tls)) => vec![(ports, tls)],
            (None, None) => by_default(&ports),
        };
        let part = |(ports, tls)| Reach {
            rule: NetworkRule {
                rule: rule.clone(),
                target: target.clone(),
                ports,
                tls,
                content: content.clone(),
                git: None,
                allow_private: values(&written.allow_private),
                no_alias: said(&written.no_alias),
                budget: rule_budget(&written.budget),
                expires_unix: one(&written.expires),
            },
            tls_is_written: written.tls.is_some(),
        };
        let item = |value| Item {
            value,
            rule: rule.clone(),
            place: located.place.clone(),
        };
        parts.into_iter().map(part).map(item).collect()
    }

    fn contradiction(&mut self, written: &WrittenRule, tls: TlsMode) {
        let mode = match tls {
            TlsMode::Raw => "raw",
            _ => "passthrough",
        };
        let fault = Fault::new(
            "contradiction",
            format!("`tls = \"{mode}\"` hides the requests on which this rule demands something"),
        );
        let place = written.tls.as_ref().and_then(|tls| tls.place.as_ref());
        self.problems.push(
            fault
                .help("remove `tls`, or what is demanded of requests")
                .at(self.layer, place),
        );
    }

    fn deny(&self, written: &WrittenNetwork) -> Vec<Item<DenyRule>> {
        let denied = |(index, located): (usize, &Located<crate::value::DenyPattern>)| {
            let key = "network.deny";
            let item = self.rules.item(key, format!("{key}[{index}]"), located, ());
            let value = DenyRule {
                rule: item.rule.clone(),
                target: located.value.target.clone(),
                ports: located
                    .value
                    .port
                    .map(|port| (port, port))
                    .into_iter()
                    .collect(),
            };
            Item {
                value,
                rule: item.rule,
                place: item.place,
            }
        };
        let list = written.deny.iter().flatten().enumerate();
        list.map(denied).collect()
    }

    fn publish(&self, written: &WrittenNetwork) -> Said<Publish> {
        let key = "network.publish";
        self.ruled(key, &written.publish, |rule, published| Publish {
            rule,
            host_port: published.host_port,
            port: published.port,
        })
    }

    fn host_ports(&self, written: &WrittenNetwork) -> Said<HostPort> {
        let key = "network.host_ports";
        self.ruled(key, &written.host_ports, |rule, port| HostPort {
            rule,
            port: *port,
        })
    }

    /// Items that carry their rule themselves.
    fn ruled<T, U>(&self, key: &str, list: &List<T>, make: impl Fn(Rule, &T) -> U) -> Said<U> {
        let item = |(index, located): (usize, &Located<T>)| {
            let item = self.rules.item(key, format!("{key}[{index}]"), located, ());
            Item {
                value: make(item.rule.clone(), &located.value),
                rule: item.rule,
                place: item.place,
            }
        };
        list.as_ref()
            .map(|list| list.iter().enumerate().map(item).collect())
    }

    fn roots(&mut self, list: &List<WrittenPath>) -> Said<AbsolutePath> {
        let mut items = Vec::new();
        for (index, located) in list.as_ref()?.iter().enumerate() {
            if let Some(path) = self.path(&located.value, located.place.as_ref()) {
                let key = "network.roots";
                items.push(
                    self.rules
                        .item(key, format!("{key}[{index}]"), located, path),
                );
            }
        }
        Some(items)
    }

    fn proxy(&self, written: &WrittenNetwork) -> Option<Item<UpstreamProxy>> {
        let located = written.proxy.as_ref()?;
        let key = "network.proxy";
        let item = self.rules.item(key, key.to_owned(), located, ());
        let value = UpstreamProxy {
            rule: item.rule.clone(),
            host: located.value.host.clone(),
            port: located.value.port,
            send_address: !said(&written.proxy_resolves),
        };
        Some(Item {
            value,
            rule: item.rule,
            place: item.place,
        })
    }

    fn budget(&self, written: &WrittenBudget) -> LayerBudget {
        let one = |key, value| self.rules.one(key, value);
        LayerBudget {
            upload_bytes_max: one("network.upload_bytes_max", &written.upload_bytes_max),
            download_bytes_max: one("network.download_bytes_max", &written.download_bytes_max),
            connections_max: one("network.connections", &written.connections),
            requests_per_minute: one("network.requests_per_minute", &written.requests_per_minute),
        }
    }

    fn sockets(&mut self, list: &List<WrittenSocket>) -> Said<SocketDemand> {
        let mut items = Vec::new();
        for (index, located) in list.as_ref()?.iter().enumerate() {
            let key = "socket";
            let item = self.rules.item(key, format!("{key}[{index}]"), located, ());
            let written = &located.value;
            let mut path = |path: &Option<Located<WrittenPath>>| {
                let path = path.as_ref()?;
                self.path(&path.value, path.place.as_ref())
            };
            let value = SocketDemand {
                rule: item.rule.clone(),
                path: path(&written.path),
                inside: path(&written.inside),
                kind: match &written.ssh_agent {
                    Some(_) => SocketKind::SshAgent {
                        keys: values(&written.ssh_agent),
                    },
                    None => SocketKind::Stream,
                },
            };
            items.push(Item {
                value,
                rule: item.rule,
                place: item.place,
            });
        }
        Some(items)
    }

    fn path(&mut self, written: &WrittenPath, place: Option<&Place>) -> Option<AbsolutePath> {
        match resolve(written, self.context) {
            Ok(path) => Some(path),
            Err(fault) => {
                self.problems.push(fault.at(self.layer, place));
                None
            }
        }
    }
}

/// Ports on which TLS or plain HTTP is expected.
const WEB_PORTS: [u16; 2] = [80, 443];

fn allowed(item: Item<HostPattern>) -> Item<Reach> {
    let HostPattern { reach, host, port } = item.value;
    let tls = match port {
        Some(port) if !WEB_PORTS.contains(&port) => TlsMode::Raw,
        _ => TlsMode::Passthrough,
    };
    let rule = NetworkRule {
        rule: item.rule.clone(),
        target: Target::Host { reach, name: host },
        ports: port.map(|port| (port, port)).into_iter().collect(),
        tls,
        content: None,
        git: None,
        allow_private: Vec::new(),
        no_alias: false,
        budget: Budget::default(),
        expires_unix: None,
    };
    Item {
        value: Reach {
            rule,
            tls_is_written: false,
        },
        rule: item.rule,
        place: item.place,
    }
}

fn git(rule: Rule, located: &Located<WrittenGit>) -> Option<Item<Reach>> {
    const HTTPS: u16 = 443;
    let written = &located.value;
    let value = NetworkRule {
        rule: rule.clone(),
        target: target(&written.host, &None)?,
        ports: vec![(HTTPS, HTTPS)],
        tls: TlsMode::Inspect,
        content: None,
        git: Some(Git {
            read: values(&written.read),
            push: values(&written.push),
            refs: values(&written.refs),
            push_bytes_max: one(&written.push_bytes_max),
            delete: said(&written.delete),
            ssh_port: one(&written.ssh_port).and_then(|port| u16::try_from(port).ok()),
        }),
        allow_private: values(&written.allow_private),
        no_alias: false,
        budget: Budget::default(),
        expires_unix: one(&written.expires),
    };
    Some(Item {
        value: Reach {
            rule: value,
            tls_is_written: false,
        },
        rule,
        place: located.place.clone(),
    })
}

/// `None` where nothing is demanded of requests.
fn content(written: &WrittenRule) -> Option<Content> {
    let demanded = written.methods.is_some()
        || written.paths.is_some()
        || written.query.is_some()
        || written.query_only.is_some()
        || written.headers.is_some()
        || written.graphql.is_some()
        || written.body_bytes_max.is_some()
        || written.websocket.is_some()
        || written.encoded_slash.is_some();
    demanded.then(|| Content {
        methods: values(&written.methods),
        paths: values(&written.paths),
        query: written.query.clone().unwrap_or_default(),
        query_only: said(&written.query_only),
        headers: written.headers.clone().unwrap_or_default(),
        graphql: one(&written.graphql).unwrap_or(GraphQl::NotLookedAt),
        body_bytes_max: one(&written.body_bytes_max),
        websocket: said(&written.websocket),
        encoded_slash: said(&written.encoded_slash),
    })
}

/// Ports with the way that each is treated when nothing is said: TLS or plain
/// HTTP where those are usual, any bytes elsewhere.
fn by_default(ports: &[(u16, u16)]) -> Vec<(Vec<(u16, u16)>, TlsMode)> {
    if ports.is_empty() {
        return vec![(Vec::new(), TlsMode::Passthrough)];
    }
    let mut web = Vec::new();
    let mut other = Vec::new();
    for &(low, high) in ports {
        let mut low = u32::from(low);
        for port in WEB_PORTS.map(u32::from) {
            if (low..=u32::from(high)).contains(&port) {
                web.push((port as u16, port as u16));
                if low < port {
                    other.push((low as u16, (port - 1) as u16));
                }
                low = port + 1;
            }
        }
        if low <= u32::from(high) {
            other.push((low as u16, high));
        }
    }
    let parts = [(web, TlsMode::Passthrough), (other, TlsMode::Raw)];
    parts
        .into_iter()
        .filter(|(ports, _)| !ports.is_empty())
        .collect()
}

fn target(
    host: &Option<Located<HostPattern>>,
    network: &Option<Located<Network>>,
) -> Option<Target> {
    match (host, network) {
        (Some(host), _) => Some(Target::Host {
            reach: host.value.reach,
            name: host.value.host.clone(),
        }),
        (None, Some(network)) => Some(Target::Network(network.value)),
        (None, None) => None,
    }
}

fn rule_budget(written: &WrittenBudget) -> Budget {
    Budget {
        upload_bytes_max: one(&written.upload_bytes_max),
        download_bytes_max: one(&written.download_bytes_max),
        connections_max: one(&written.connections),
        requests_per_minute: one(&written.requests_per_minute),
    }
}

fn values<T: Clone>(list: &List<T>) -> Vec<T> {
    list.iter()
        .flatten()
        .map(|located| located.value.clone())
        .collect()
}

fn one<T: Clone>(value: &Option<Located<T>>) -> Option<T> {
    value.as_ref().map(|located| located.value.clone())
}

fn said(value: &Option<Located<bool>>) -> bool {
    value.as_ref().is_some_and(|located| located.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_split_by_what_is_usual_on_them() {
        assert_eq!(by_default(&[]), [(vec![], TlsMode::Passthrough)]);
        assert_eq!(
            by_default(&[(443, 443), (5432, 5432)]),
            [
                (vec![(443, 443)], TlsMode::Passthrough),
                (vec![(5432, 5432)], TlsMode::Raw)
            ]
        );
        assert_eq!(
            by_default(&[(1, u16::MAX)]),
            [
                (vec![(80, 80), (443, 443)], TlsMode::Passthrough),
                (vec![(1, 79), (81, 442), (444, u16::MAX)], TlsMode::Raw)
            ]
        );
    }
}
