//! From a destination to addresses that may be dialled.
//!
//! A name is resolved here, outside, and nowhere else. All of its addresses
//! are judged before one of them is dialled, and the very addresses that were
//! judged go to `dial`: a name that answers differently the next time (DNS
//! rebinding) changes nothing. Which addresses are permitted is the judge's.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use hickory_proto::rr::{Name as DnsName, RData, RecordType};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use stockade_policy::network::destination::RawHost;
use stockade_policy::network::judge::{Denial, Judge, Passage};
use stockade_policy::network::rules::{NetworkPlan, UpstreamProxy};
use stockade_policy::network::{Destination, Host, Name};

use crate::context::denial;

/// Answers that are kept, each for its own time to live.
const CACHE_ENTRIES_MAX: u64 = 1024;
/// Longest time for which an answer is kept.
const CACHE_TIME_MAX: Duration = Duration::from_secs(300);
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);
/// Addresses of one name; more are a mistake or an attack.
const ADDRESSES_MAX: usize = 64;
/// Lines of /etc/hosts that are read.
const HOSTS_BYTES_MAX: usize = 1024 * 1024;

/// Asks the machine's resolvers, or those of the plan.
pub struct Resolver {
    servers: Option<TokioResolver>,
    /// /etc/hosts, lower case.
    hosts: HashMap<String, Vec<IpAddr>>,
    proxy: Option<UpstreamProxy>,
}

/// A destination with addresses that were judged. Made here only.
#[derive(Clone, Debug)]
pub struct Vetted {
    destination: Destination,
    route: Route,
    learned_private: Option<String>,
}

/// How a vetted destination is reached.
#[derive(Clone, Debug)]
pub enum Route {
    /// One of these, in this order of preference.
    Direct(Vec<SocketAddr>),
    /// Through the organisation's proxy at one of `proxy`, which is told
    /// `target`.
    Proxy {
        proxy: Vec<SocketAddr>,
        target: String,
    },
}

impl Vetted {
    pub fn destination(&self) -> &Destination {
        &self.destination
    }

    pub fn route(&self) -> &Route {
        &self.route
    }

    /// While learning: the policy that a private address would have needed.
    pub fn learned_private(&self) -> Option<&str> {
        self.learned_private.as_deref()
    }
}

impl Resolver {
    /// Reads the machine's configuration unless the plan names resolvers.
    /// Without any resolver names of /etc/hosts and addresses still work.
    pub fn new(plan: &NetworkPlan) -> Self {
        Self {
            servers: servers(plan),
            hosts: read_hosts(),
            proxy: plan.upstream_proxy.clone(),
        }
    }

    /// Resolves and judges. Any address that may not be dialled refuses the
    /// whole name: an honest name has none, and what is left might be chosen
    /// by whoever added it.
    pub async fn vet(
        &self,
        judge: &Judge,
        destination: &Destination,
        passage: &Passage,
    ) -> Result<Vetted, Denial> {
        if let Some(proxy) = &self.proxy
            && !proxy.send_address
            && destination.name().is_some()
        {
            return Ok(Vetted {
                destination: destination.clone(),
                route: self.by_proxy(proxy, destination.to_string()).await?,
                learned_private: None,
            });
        }
        let addresses = self.judged(judge, destination, passage).await?;
        let learned_private = addresses.1;
        let port = destination.port();
        let addresses: Vec<SocketAddr> = prefer(addresses.0)
            .into_iter()
            .map(|address| SocketAddr::new(address, port))
            .collect();
        let route = match (&self.proxy, addresses.first()) {
            (Some(proxy), Some(first)) => self.by_proxy(proxy, first.to_string()).await?,
            _ => Route::Direct(addresses),
        };
        Ok(Vetted {
            destination: destination.clone(),
            route,
            learned_private,
        })
    }

    async fn judged(
        &self,
        judge: &Judge,
        destination: &Destination,
        passage: &Passage,
    ) -> Result<(Vec<IpAddr>, Option<String>), Denial> {
        let (addresses, chain) = match destination.host() {
            Host::Address(address) => (vec![*address], Vec::new()),
            Host::Name(name) => self.resolve(name).await?,
        };
        if passage.no_alias {
            check_aliases(judge, destination, passage, &chain)?;
        }
        let mut learned = None;
        for &address in &addresses {
            // What the kernel will not say is better not dialled.
            if stockade_sys::network::is_own_address(address).unwrap_or(true) {
                return Err(denial(
                    "floor",
                    format!("{destination} is {address}, an address of this machine"),
                ));
            }
            match judge.address(passage, address) {
                Ok(()) => {}
                Err(refused)
                    if refused.code == "private-address" && judge.plan().approval.learns() =>
                {
                    learned = Some(refused.smallest_grant.unwrap_or(refused.reason));
                }
                Err(refused) => return Err(refused),
            }
        }
        Ok((addresses, learned))
    }

    /// All addresses, and the names that it is an alias of.
    async fn resolve(&self, name: &Name) -> Result<(Vec<IpAddr>, Vec<String>), Denial> {
        if name.as_str() == "localhost" || name.as_str().ends_with(".localhost") {
            let reason = "localhost is the sandbox's own, and has no meaning outside (RFC 6761)";
            return Err(denial("floor", reason));
        }
        if let Some(addresses) = self.hosts.get(name.as_str()) {
            return Ok((addresses.clone(), Vec::new()));
        }
        let Some(servers) = &self.servers else {
            return Err(unresolvable(name, "this machine names no resolver"));
        };
        let question = DnsName::from_ascii(format!("{name}."))
            .map_err(|error| unresolvable(name, &error.to_string()))?;
        let (four, six) = tokio::join!(
            servers.lookup(question.clone(), RecordType::A),
            servers.lookup(question, RecordType::AAAA)
        );
        let reason = match (&four, &six) {
            (Err(error), Err(_)) => error.to_string(),
            _ => "it has no address".to_owned(),
        };
        let (mut addresses, mut chain) = (Vec::new(), Vec::new());
        for record in [four, six].iter().flatten().flat_map(|one| one.answers()) {
            match &record.data {
                RData::A(address) => addresses.push(IpAddr::V4(address.0)),
                RData::AAAA(address) => addresses.push(IpAddr::V6(address.0)),
                RData::CNAME(target) => chain.push(target.0.to_ascii()),
                _ => {}
            }
        }
        addresses.dedup();
        if addresses.is_empty() {
            return Err(unresolvable(name, &reason));
        }
        if addresses.len() > ADDRESSES_MAX {
            return Err(unresolvable(name, "it has too many addresses"));
        }
        Ok((addresses, chain))
    }

    /// The proxy is the organisation's word: its address is not judged.
    async fn by_proxy(&self, proxy: &UpstreamProxy, target: String) -> Result<Route, Denial> {
        let host = Destination::new(RawHost::Text(proxy.host.as_bytes()), proxy.port)
            .map_err(|error| denial("unresolvable", format!("network.proxy: {error}")))?;
        let addresses = match host.host() {
            Host::Address(address) => vec![*address],
            Host::Name(name) if name.as_str() == "localhost" => vec![Ipv4Addr::LOCALHOST.into()],
            Host::Name(name) => self.resolve(name).await?.0,
        };
        let proxy = prefer(addresses)
            .into_iter()
            .map(|address| SocketAddr::new(address, proxy.port))
            .collect();
        Ok(Route::Proxy { proxy, target })
    }
}

/// Every name on the way must be one that the rules name.
fn check_aliases(
    judge: &Judge,
    destination: &Destination,
    passage: &Passage,
    chain: &[String],
) -> Result<(), Denial> {
    for alias in chain {
        let target = Destination::new(RawHost::Text(alias.as_bytes()), destination.port());
        match target.as_ref().ok().and_then(Destination::name) {
            Some(name) => judge.alias(passage, name)?,
            None => {
                let reason = format!("{destination} is an alias of {alias}, which is no host name");
                return Err(denial("alias", reason));
            }
        }
    }
    Ok(())
}

fn servers(plan: &NetworkPlan) -> Option<TokioResolver> {
    let (config, mut options) = if plan.resolvers.is_empty() {
        hickory_resolver::system_conf::read_system_conf().ok()?
    } else {
        let servers = plan.resolvers.iter().map(|&(address, port)| {
            let (mut udp, mut tcp) = (ConnectionConfig::udp(), ConnectionConfig::tcp());
            (udp.port, tcp.port) = (port, port);
            NameServerConfig::new(address, true, vec![udp, tcp])
        });
        let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
        (config, ResolverOpts::default())
    };
    options.cache_size = CACHE_ENTRIES_MAX;
    options.positive_max_ttl = Some(CACHE_TIME_MAX);
    options.negative_max_ttl = Some(Duration::from_secs(10));
    options.timeout = QUERY_TIMEOUT;
    options.use_hosts_file = ResolveHosts::Never;
    options.preserve_intermediates = true;
    // The port is chosen by the kernel: a bound range of our own would need
    // more system calls and is no less predictable.
    options.os_port_selection = true;
    TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        .with_options(options)
        .build()
        .ok()
}

/// hosts(5). What cannot be read or understood names nothing.
fn read_hosts() -> HashMap<String, Vec<IpAddr>> {
    let mut hosts: HashMap<String, Vec<IpAddr>> = HashMap::new();
    let bytes = std::fs::read("/etc/hosts").unwrap_or_default();
    if bytes.len() > HOSTS_BYTES_MAX {
        return hosts;
    }
    for line in String::from_utf8_lossy(&bytes).lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_ascii_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else {
            continue;
        };
        for name in words {
            hosts
                .entry(name.trim_end_matches('.').to_ascii_lowercase())
                .or_default()
                .push(address);
        }
    }
    hosts
}

/// IPv6 first where this machine has a way to it, then in turns, so that one
/// broken family costs one attempt (RFC 8305, section 4).
fn prefer(addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    let (six, four): (Vec<IpAddr>, Vec<IpAddr>) =
        addresses.into_iter().partition(|address| address.is_ipv6());
    let (first, second) = match six.first() {
        Some(&address) if source_for(address).is_some() => (six, four),
        _ => (four, six),
    };
    let mut ordered = Vec::with_capacity(first.len() + second.len());
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    loop {
        match (first.next(), second.next()) {
            (None, None) => return ordered,
            (one, other) => ordered.extend(one.into_iter().chain(other)),
        }
    }
}

/// The address from which the kernel would send to `address`. connect(2) of a
/// datagram socket sends nothing.
fn source_for(address: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((address, 9)).ok()?;
    socket.local_addr().ok().map(|local| local.ip())
}

fn unresolvable(name: &Name, why: &str) -> Denial {
    denial("unresolvable", format!("{name} cannot be resolved: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns() {
        let four: IpAddr = Ipv4Addr::new(192, 0, 2, 1).into();
        let other: IpAddr = Ipv4Addr::new(192, 0, 2, 2).into();
        let six: IpAddr = "::1".parse().unwrap();
        let ordered = prefer(vec![four, other, six]);
        assert_eq!(ordered.len(), 3);
        assert!(ordered[..2].contains(&six));
    }
}
