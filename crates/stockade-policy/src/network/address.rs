//! Which addresses are dialled at all: the floor that no rule lifts.
//!
//! An address that stands for another one (IPv4-mapped, NAT64, 6to4, Teredo
//! and the like) is judged as both, and the worse judgement counts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// A prefix of addresses, in canonical form: no host bits, IPv4 for
/// IPv4-mapped ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

/// What an address is, as far as reaching it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Public,
    /// Only where a rule names it; the text says what it is.
    Private(&'static str),
    /// Beyond any rule.
    Never(&'static str),
}

/// The worst of what an address is and of what it may stand for. `nat64` are
/// the translation prefixes of this network, beside the well-known one.
pub fn classify(address: IpAddr, nat64: &[Network]) -> Class {
    let severity = |class: &Class| match class {
        Class::Public => 0,
        Class::Private(_) => 1,
        Class::Never(_) => 2,
    };
    faces(address, nat64)
        .into_iter()
        .map(|(_, class)| class)
        .max_by_key(severity)
        .unwrap_or(Class::Never("no address"))
}

/// The address itself and every IPv4 address that it may stand for, each with
/// what it is.
pub fn faces(address: IpAddr, nat64: &[Network]) -> Vec<(IpAddr, Class)> {
    match address.to_canonical() {
        IpAddr::V4(v4) => vec![(IpAddr::V4(v4), of_v4(v4))],
        IpAddr::V6(v6) => {
            let mut faces = vec![(IpAddr::V6(v6), of_v6(v6, nat64))];
            let embedded = embedded(v6, nat64);
            faces.extend(embedded.into_iter().map(|v4| (IpAddr::V4(v4), of_v4(v4))));
            faces
        }
    }
}

impl Network {
    /// `None` when there are more bits than the family has, or host bits set.
    pub fn new(address: IpAddr, bits: u8) -> Option<Self> {
        let network = Self { address, bits };
        let all = if address.is_ipv4() { 32 } else { 128 };
        (bits <= all && network.masked(address) == address).then_some(network)
    }

    /// `address/bits`, or an address alone.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let full = if address.is_ipv4() { 32 } else { 128 };
        Self::new(address, bits.unwrap_or(full))
    }

    pub fn address(&self) -> IpAddr {
        self.address
    }

    pub fn bits(&self) -> u8 {
        self.bits
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4() && self.masked(address) == self.address
    }

    /// Whether every address of `other` is one of `self`.
    pub fn covers(&self, other: &Self) -> bool {
        self.bits <= other.bits && self.contains(other.address)
    }

    /// What both contain: prefixes either nest or are apart.
    pub fn meet(&self, other: &Self) -> Option<Self> {
        if self.covers(other) {
            Some(*other)
        } else {
            other.covers(self).then_some(*self)
        }
    }

    /// Whether all of it lies in one private range, so that who names it means
    /// that range. A wider one, such as all addresses, names no private range.
    pub fn is_private(&self) -> bool {
        let outer =
            |bits: u8, class: Class| bits <= self.bits && matches!(class, Class::Private(_));
        match self.address {
            IpAddr::V4(address) => V4.iter().any(|(first, bits, class)| {
                outer(*bits, *class) && within_v4(address, *first, *bits)
            }),
            IpAddr::V6(address) => {
                let translator = within(address, NAT64_LOCAL) && NAT64_LOCAL.1 <= self.bits;
                translator
                    || V6.iter().any(|(first, bits, class)| {
                        outer(*bits, *class) && within(address, (*first, *bits))
                    })
            }
        }
    }

    /// The network of these many leading bits around an address.
    pub fn around(address: IpAddr, bits: u8) -> Self {
        let bits = bits.min(if address.is_ipv4() { 32 } else { 128 });
        let network = Self { address, bits };
        Self {
            address: network.masked(address),
            bits,
        }
    }

    fn masked(&self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX
                    .checked_shl(32 - u32::from(self.bits.min(32)))
                    .unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from(u32::from(address) & mask))
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.bits.min(128)))
                    .unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from(u128::from(address) & mask))
            }
        }
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.address, self.bits)
    }
}

/// First address, bits, what it is. The registry of IANA for special purposes
/// (RFC 6890), and the metadata services of the large clouds, which hand out
/// credentials to whoever asks. The ranges for documentation (RFC 5737) are
/// not here: nobody's private network is there, and they lead nowhere.
const V4: &[(Ipv4Addr, u8, Class)] = &[
    (
        Ipv4Addr::new(0, 0, 0, 0),
        8,
        Class::Never("the unspecified network"),
    ),
    (
        Ipv4Addr::new(127, 0, 0, 0),
        8,
        Class::Never("the host's loopback"),
    ),
    (
        Ipv4Addr::new(169, 254, 0, 0),
        16,
        Class::Never("link-local, where clouds serve metadata"),
    ),
    (Ipv4Addr::new(224, 0, 0, 0), 4, Class::Never("multicast")),
    (
        Ipv4Addr::new(240, 0, 0, 0),
        4,
        Class::Never("reserved, or broadcast"),
    ),
    // Alibaba Cloud, Azure, Oracle Cloud.
    (Ipv4Addr::new(100, 100, 100, 200), 32, METADATA),
    (Ipv4Addr::new(168, 63, 129, 16), 32, METADATA),
    (Ipv4Addr::new(192, 0, 0, 192), 32, METADATA),
    (
        Ipv4Addr::new(10, 0, 0, 0),
        8,
        Class::Private("a private network (RFC 1918)"),
    ),
    (
        Ipv4Addr::new(172, 16, 0, 0),
        12,
        Class::Private("a private network (RFC 1918)"),
    ),
    (
        Ipv4Addr::new(192, 168, 0, 0),
        16,
        Class::Private("a private network (RFC 1918)"),
    ),
    (
        Ipv4Addr::new(100, 64, 0, 0),
        10,
        Class::Private("a carrier's private network (RFC 6598)"),
    ),
    (
        Ipv4Addr::new(198, 18, 0, 0),
        15,
        Class::Private("a network for benchmarks (RFC 2544)"),
    ),
    (
        Ipv4Addr::new(192, 0, 0, 0),
        24,
        Class::Private("a network for protocols (RFC 6890)"),
    ),
    (
        Ipv4Addr::new(192, 88, 99, 0),
        24,
        Class::Private("the former relays of 6to4 (RFC 7526)"),
    ),
];

const METADATA: Class = Class::Never("the metadata service of a cloud");

/// As above. What lies outside 2000::/3 and is not named is assigned to nobody.
const V6: &[(Ipv6Addr, u8, Class)] = &[
    (
        Ipv6Addr::UNSPECIFIED,
        128,
        Class::Never("the unspecified address"),
    ),
    (
        Ipv6Addr::LOCALHOST,
        128,
        Class::Never("the host's loopback"),
    ),
    (
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0),
        10,
        Class::Never("link-local"),
    ),
    (
        Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0),
        8,
        Class::Never("multicast"),
    ),
    // AWS (metadata, credentials of pods), Google Cloud, Oracle Cloud, Scaleway.
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0), 32, METADATA),
    (Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0), 32, METADATA),
    (Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0, 0), 32, METADATA),
    (Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0), 32, METADATA),
    (
        Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0),
        7,
        Class::Private("a private network (RFC 4193)"),
    ),
    (
        Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0),
        10,
        Class::Private("a site's private network (RFC 3879)"),
    ),
    (
        Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0),
        48,
        Class::Private("a network for benchmarks (RFC 5180)"),
    ),
    (
        Ipv6Addr::new(0x2001, 0x10, 0, 0, 0, 0, 0, 0),
        28,
        Class::Private("identifiers of hosts, not addresses (RFC 4843)"),
    ),
    (
        Ipv6Addr::new(0x2001, 0x20, 0, 0, 0, 0, 0, 0),
        28,
        Class::Private("identifiers of hosts, not addresses (RFC 7343)"),
    ),
];

/// Prefixes that only say how an IPv4 address is written in what follows.
const COMPATIBLE: (Ipv6Addr, u8) = (Ipv6Addr::UNSPECIFIED, 96);
const TRANSLATED: (Ipv6Addr, u8) = (Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0), 96);
const NAT64: (Ipv6Addr, u8) = (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);
const NAT64_LOCAL: (Ipv6Addr, u8) = (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48);
const TEREDO: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32);
const SIX_TO_FOUR: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16);
const GLOBAL: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

fn of_v4(address: Ipv4Addr) -> Class {
    let found = V4
        .iter()
        .find(|(first, bits, _)| within_v4(address, *first, *bits));
    found.map_or(Class::Public, |(_, _, class)| *class)
}

fn of_v6(address: Ipv6Addr, nat64: &[Network]) -> Class {
    let found = V6
        .iter()
        .find(|(first, bits, _)| within(address, (*first, *bits)));
    if let Some((_, _, class)) = found {
        return *class;
    }
    let configured = nat64
        .iter()
        .any(|network| network.contains(IpAddr::V6(address)));
    let known = [COMPATIBLE, TRANSLATED, NAT64, GLOBAL];
    if configured || known.iter().any(|prefix| within(address, *prefix)) {
        Class::Public
    } else if within(address, NAT64_LOCAL) {
        Class::Private("a translator of this network (RFC 8215)")
    } else {
        Class::Never("an address that is assigned to nobody")
    }
}

/// IPv4 addresses that packets to this address may end at.
fn embedded(address: Ipv6Addr, nat64: &[Network]) -> Vec<Ipv4Addr> {
    let octets = address.octets();
    let at = |start: usize| {
        Ipv4Addr::new(
            octets[start],
            octets[start + 1],
            octets[start + 2],
            octets[start + 3],
        )
    };
    let mut found = Vec::new();
    for network in nat64 {
        if network.contains(IpAddr::V6(address)) {
            found.extend(translated(octets, network.bits()));
        }
    }
    // The loopback and the unspecified address are no IPv4 addresses.
    let last = [COMPATIBLE, TRANSLATED, NAT64];
    let plain = u128::from(address) > 1;
    if plain && last.iter().any(|prefix| within(address, *prefix)) {
        found.push(at(12));
    }
    if within(address, NAT64_LOCAL) && found.is_empty() {
        found.push(at(12));
    }
    if within(address, SIX_TO_FOUR) {
        found.push(at(2));
    }
    if within(address, TEREDO) {
        // The server, and the client with its bits turned (RFC 4380).
        found.push(at(4));
        found.push(Ipv4Addr::from(!u32::from(at(12))));
    }
    // ISATAP, in any prefix (RFC 5214).
    if matches!(octets[8..12], [0 | 2, 0, 0x5e, 0xfe]) {
        found.push(at(12));
    }
    found
}

/// Where a translation prefix of so many bits keeps the IPv4 address: behind
/// it, with byte 8 left out (RFC 6052, section 2.2).
fn translated(octets: [u8; 16], bits: u8) -> Option<Ipv4Addr> {
    let places: [usize; 4] = match bits {
        32 => [4, 5, 6, 7],
        40 => [5, 6, 7, 9],
        48 => [6, 7, 9, 10],
        56 => [7, 9, 10, 11],
        64 => [9, 10, 11, 12],
        96 => [12, 13, 14, 15],
        _ => return None,
    };
    Some(Ipv4Addr::from(places.map(|place| octets[place])))
}

/// Whether this many bits can be those of a translation prefix (RFC 6052).
pub(crate) fn is_translation_length(bits: u8) -> bool {
    translated([0; 16], bits).is_some()
}

fn within_v4(address: Ipv4Addr, first: Ipv4Addr, bits: u8) -> bool {
    Network {
        address: IpAddr::V4(first),
        bits,
    }
    .contains(IpAddr::V4(address))
}

fn within(address: Ipv6Addr, (first, bits): (Ipv6Addr, u8)) -> bool {
    Network {
        address: IpAddr::V6(first),
        bits,
    }
    .contains(IpAddr::V6(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(address: &str) -> char {
        class_with(address, &[])
    }

    fn class_with(address: &str, nat64: &[Network]) -> char {
        match classify(address.parse().unwrap(), nat64) {
            Class::Public => 'p',
            Class::Private(_) => 'r',
            Class::Never(_) => 'n',
        }
    }

    #[test]
    fn rows_16_and_17_the_floor() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.255.0.9",
            "169.254.169.254",
            "169.254.170.2",
            "224.0.0.251",
            "255.255.255.255",
            "240.0.0.1",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "::",
            "::1",
            "fe80::1",
            "fe80::a9fe:a9fe",
            "ff02::fb",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
            "4000::1",
            "100::1",
        ] {
            assert_eq!(class(address), 'n', "{address}");
        }
    }

    #[test]
    fn row_19_private_and_public() {
        for address in [
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "198.18.0.1",
            "192.0.0.8",
            "fc00::1",
            "fd12::1",
            "fec0::1",
            "64:ff9b:1::808:808",
            "2001:2::1",
        ] {
            assert_eq!(class(address), 'r', "{address}");
        }
        for address in [
            "8.8.8.8",
            "172.32.0.1",
            "192.0.2.1",
            "198.51.100.1",
            "203.0.113.9",
            "2001:db8::1",
            "2606:4700::1",
            "2001:4860:4860::8888",
        ] {
            assert_eq!(class(address), 'p', "{address}");
        }
    }

    #[test]
    fn row_14_an_address_that_stands_for_another_is_judged_as_both() {
        for (address, expected) in [
            ("::ffff:127.0.0.1", 'n'),
            ("::ffff:10.0.0.1", 'r'),
            ("::ffff:8.8.8.8", 'p'),
            ("::169.254.169.254", 'n'),
            ("::10.0.0.1", 'r'),
            ("::ffff:0:169.254.169.254", 'n'),
            ("64:ff9b::169.254.169.254", 'n'),
            ("64:ff9b::10.0.0.1", 'r'),
            ("64:ff9b::8.8.8.8", 'p'),
            ("64:ff9b:1::169.254.169.254", 'n'),
            ("2002:a9fe:a9fe::1", 'n'),
            ("2002:0a00:0001::1", 'r'),
            ("2002:0808:0808::1", 'p'),
            // Teredo: a private client (10.0.0.1 with its bits turned).
            ("2001:0:808:808:0:0:f5ff:fffe", 'r'),
            ("2001:0:7f00:1:0:0:f7f7:f7f7", 'n'),
            ("2606:4700::5efe:10.0.0.1", 'r'),
            ("2606:4700::200:5efe:127.0.0.1", 'n'),
        ] {
            assert_eq!(class(address), expected, "{address}");
        }
    }

    #[test]
    fn row_14_the_translation_prefix_of_a_network_is_configurable() {
        let prefix = |text| [Network::parse(text).unwrap()];
        for (address, network) in [
            ("2001:db8::a9fe:a9fe", "2001:db8::/96"),
            ("2001:db8:a9fe:a9fe::", "2001:db8::/32"),
            ("2001:db8:122:a9fe:a9:fe00::", "2001:db8:122::/48"),
            ("2001:db8:122:344:a9:fea9:fe00:0", "2001:db8:122:344::/64"),
        ] {
            assert_eq!(class(address), 'p', "{address}");
            assert_eq!(class_with(address, &prefix(network)), 'n', "{address}");
        }
        let local = prefix("64:ff9b:1::/96");
        assert_eq!(class_with("64:ff9b:1::8.8.8.8", &local), 'p');
        assert_eq!(class_with("64:ff9b:1::10.8.8.8", &local), 'r');
    }

    #[test]
    fn networks_meet_where_one_holds_the_other() {
        let network = |text| Network::parse(text).unwrap();
        assert_eq!(
            network("10.0.0.0/8").meet(&network("10.1.0.0/16")),
            Some(network("10.1.0.0/16"))
        );
        assert_eq!(network("10.0.0.0/8").meet(&network("11.0.0.0/8")), None);
        assert_eq!(
            Network::around("10.1.2.3".parse().unwrap(), 8),
            network("10.0.0.0/8")
        );
        assert_eq!(Network::parse("10.0.0.1/8"), None);
    }
}
