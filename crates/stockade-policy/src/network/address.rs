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
