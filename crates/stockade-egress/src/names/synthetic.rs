//! The addresses that stand for names inside.
//!
//! Each name that is answered gets one address of each family, which leads
//! back to exactly that name and is never given to another one. What is
//! dialled for it in the end is decided outside, when it is dialled.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use stockade_policy::network::Name;

/// Most names of one run.
pub const NAMES_MAX: usize = 8192;
/// Most new names of one group within a minute. A name under a wildcard can
/// be anything, so its labels can carry data to whoever owns the domain, once
/// it is dialled; more than this is a channel and no use of a service.
pub const NEW_NAMES_PER_MINUTE: usize = 100;

/// 198.18.0.0/15 is for tests of network devices (RFC 2544), so no host that
/// anyone wants to reach has an address in it.
const IPV4_FIRST: u32 = 0xC612_0000;
const IPV4_BITS: u32 = 15;
/// fd53:7463:6b61::/96, a unique local prefix (RFC 4193); the last 32 bits are
/// the IPv4 address.
const IPV6_FIRST: u128 = 0xFD53_7463_6B61 << 80;
/// Some programs take .0 and .255 for addresses of a network.
const HOSTS_IN_24_BITS: u32 = 254;

/// Both addresses of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    pub ipv4: Ipv4Addr,
    pub ipv6: Ipv6Addr,
}

/// Why a name gets no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAssigned {
    #[error("more than {NAMES_MAX} names were looked up")]
    Full,
    #[error(
        "more than {NEW_NAMES_PER_MINUTE} new names of one domain were looked up within a minute"
    )]
    TooMany,
}

/// All names of one run.
#[derive(Debug, Default)]
pub struct Synthetic {
    names: Vec<Name>,
    indices: HashMap<Name, u32>,
    /// When names of a group were new last, oldest first.
    new: HashMap<String, VecDeque<u64>>,
}

impl Synthetic {
    /// The addresses of a name, new or not. `group` is what new names are
    /// counted by, the registrable domain or the rule; `second` is a clock
    /// that only goes forward.
    pub fn assign(&mut self, name: &Name, group: &str, second: u64) -> Result<Pair, NotAssigned> {
        if let Some(index) = self.indices.get(name) {
            return Ok(pair(*index));
        }
        if self.names.len() >= NAMES_MAX {
            return Err(NotAssigned::Full);
        }
        let index = u32::try_from(self.names.len()).map_err(|_| NotAssigned::Full)?;
        self.count(group, second)?;
        self.names.push(name.clone());
        self.indices.insert(name.clone(), index);
        Ok(pair(index))
    }

    /// The name that an address stands for.
    pub fn name_of(&self, address: IpAddr) -> Option<&Name> {
        let index = index_of(address)?;
        self.names.get(usize::try_from(index).ok()?)
    }

    fn count(&mut self, group: &str, second: u64) -> Result<(), NotAssigned> {
        // A group appears together with a name, so there are never more.
        let times = match self.new.get_mut(group) {
            Some(times) => times,
            None => self.new.entry(group.to_owned()).or_default(),
        };
        while times
            .front()
            .is_some_and(|time| second.saturating_sub(*time) >= 60)
        {
            times.pop_front();
        }
        if times.len() >= NEW_NAMES_PER_MINUTE {
            return Err(NotAssigned::TooMany);
        }
        times.push_back(second);
        Ok(())
    }
}

/// Whether an address is one of those that stand for names, given out or not.
/// None of them is ever dialled.
pub fn is_synthetic(address: IpAddr) -> bool {
    low_bits(address).is_some()
}

fn pair(index: u32) -> Pair {
    // NAMES_MAX names need 33 times 256 addresses of the 512 times 256.
    let low = index / HOSTS_IN_24_BITS * 256 + index % HOSTS_IN_24_BITS + 1;
    Pair {
        ipv4: Ipv4Addr::from(IPV4_FIRST + low),
        ipv6: Ipv6Addr::from(IPV6_FIRST + u128::from(IPV4_FIRST + low)),
    }
}

fn index_of(address: IpAddr) -> Option<u32> {
    let low = low_bits(address)?;
    let host = (low % 256).checked_sub(1)?;
    (host < HOSTS_IN_24_BITS).then_some(low / 256 * HOSTS_IN_24_BITS + host)
}

/// The place of an address within 198.18.0.0/15.
fn low_bits(address: IpAddr) -> Option<u32> {
    let ipv4 = match address.to_canonical() {
        IpAddr::V4(address) => u32::from(address),
        IpAddr::V6(address) => u32::try_from(u128::from(address) ^ IPV6_FIRST).ok()?,
    };
    let low = ipv4 ^ IPV4_FIRST;
    (low >> (32 - IPV4_BITS) == 0).then_some(low)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::front::host_name;

    fn name(text: &str) -> Name {
        host_name(text.as_bytes()).expect("it is a name")
    }

    #[test]
    fn every_name_has_its_own_addresses_and_keeps_them() {
        let mut table = Synthetic::default();
        let mut given = HashSet::new();
        for index in 0..NAMES_MAX {
            let group = (index / NEW_NAMES_PER_MINUTE).to_string();
            let name = name(&format!("n{index}.test"));
            let pair = table.assign(&name, &group, 0).expect("there is room");
            assert!(given.insert(pair.ipv4) && pair.ipv4.octets()[3] != 0);
            assert!(is_synthetic(pair.ipv4.into()) && is_synthetic(pair.ipv6.into()));
            assert_eq!(table.name_of(pair.ipv4.into()), Some(&name));
            assert_eq!(table.name_of(pair.ipv6.into()), Some(&name));
            assert_eq!(
                table.name_of(pair.ipv4.to_ipv6_mapped().into()),
                Some(&name)
            );
            assert_eq!(table.assign(&name, &group, 1), Ok(pair));
        }
        assert_eq!(
            table.assign(&name("new.test"), "", 99),
            Err(NotAssigned::Full)
        );
    }

    #[test]
    fn other_addresses_stand_for_nothing() {
        let mut table = Synthetic::default();
        let first = table.assign(&name("a.test"), "", 0).expect("there is room");
        assert_eq!(first.ipv4, Ipv4Addr::new(198, 18, 0, 1));
        assert_eq!(first.ipv6.to_string(), "fd53:7463:6b61::c612:1");
        for (address, synthetic) in [
            ("198.18.0.0", true),
            ("198.18.0.2", true),
            ("198.18.0.255", true),
            ("198.19.255.255", true),
            ("198.20.0.1", false),
            ("198.17.255.255", false),
            ("fd53:7463:6b61::c612:2", true),
            ("fd53:7463:6b61::1", false),
            ("fd53:7463:6b61:1::c612:1", false),
            ("::c612:1", false),
        ] {
            let address: IpAddr = address.parse().expect("it is an address");
            assert_eq!(is_synthetic(address), synthetic, "{address}");
            assert_eq!(table.name_of(address), None, "{address}");
        }
    }

    #[test]
    fn row_23_new_names_of_one_domain_are_counted() {
        let mut table = Synthetic::default();
        let mut look_up = |host: &str, group: &str, second| {
            let name = name(host);
            table.assign(&name, group, second).map(|_| ())
        };
        for index in 0..NEW_NAMES_PER_MINUTE as u64 {
            assert_eq!(
                look_up(&format!("d{index}.evil.test"), "evil.test", index / 2),
                Ok(())
            );
        }
        assert_eq!(
            look_up("more.evil.test", "evil.test", 59),
            Err(NotAssigned::TooMany)
        );
        assert_eq!(look_up("d1.evil.test", "evil.test", 59), Ok(()));
        assert_eq!(look_up("a.good.test", "good.test", 59), Ok(()));
        // The two of second 0 are a minute old.
        assert_eq!(look_up("more1.evil.test", "evil.test", 60), Ok(()));
        assert_eq!(look_up("more2.evil.test", "evil.test", 60), Ok(()));
        assert_eq!(
            look_up("more3.evil.test", "evil.test", 60),
            Err(NotAssigned::TooMany)
        );
    }
}
