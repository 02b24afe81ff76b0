//! Finds the targets that hold a destination, the most specific first.
//!
//! Names are looked up label by label from the right, addresses by prefix
//! length, so that the cost does not grow with the number of rules.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use super::address::Network;
use super::destination::{Host, Name};
use super::rules::Target;
use crate::value::HostReach;

/// Indexes of rules by their targets.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    root: Node,
    /// By prefix length, the longest first.
    networks: BTreeMap<Reverse<u8>, HashMap<IpAddr, Vec<usize>>>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    below: HashMap<Box<str>, Node>,
    exact: Vec<usize>,
    one_label: Vec<usize>,
    any_labels: Vec<usize>,
}

impl Index {
    pub(super) fn new<'a>(targets: impl IntoIterator<Item = &'a Target>) -> Self {
        let mut index = Self::default();
        for (number, target) in targets.into_iter().enumerate() {
            index.insert(number, target);
        }
        index
    }

    fn insert(&mut self, number: usize, target: &Target) {
        match target {
            Target::Host { reach, name } => {
                let mut node = &mut self.root;
                for label in name.rsplit('.') {
                    node = node.below.entry(label.into()).or_default();
                }
                let list = match reach {
                    HostReach::Exact => &mut node.exact,
                    HostReach::OneLabel => &mut node.one_label,
                    HostReach::AnyLabels => &mut node.any_labels,
                };
                list.push(number);
            }
            Target::Network(network) => {
                let prefixes = self.networks.entry(Reverse(network.bits())).or_default();
                prefixes.entry(network.address()).or_default().push(number);
            }
        }
    }

    /// Groups of equally specific rules that hold the host, the most specific
    /// group first: the name itself, then one label, then any number of labels
    /// with the longest base first; for addresses the longest prefix first.
    pub(super) fn groups(&self, host: &Host) -> Vec<&[usize]> {
        match host {
            Host::Name(name) => self.groups_of_name(name),
            Host::Address(address) => self.groups_of_address(*address),
        }
    }

    fn groups_of_name(&self, name: &Name) -> Vec<&[usize]> {
        let count = name.labels().count();
        let mut groups: Vec<&[usize]> = Vec::new();
        let mut node = &self.root;
        for (above, label) in name.labels().rev().enumerate() {
            let Some(next) = node.below.get(label) else {
                break;
            };
            node = next;
            // So many labels of the name stand before this node's own name.
            match count - above - 1 {
                0 => groups.push(&node.exact),
                1 => groups.extend([&node.any_labels[..], &node.one_label]),
                _ => groups.push(&node.any_labels),
            }
        }
        groups.reverse();
        groups.retain(|group| !group.is_empty());
        groups
    }

    fn groups_of_address(&self, address: IpAddr) -> Vec<&[usize]> {
        let found = self
            .networks
            .iter()
            .filter_map(|(Reverse(bits), prefixes)| {
                let prefix = Network::around(address, *bits);
                (prefix.bits() == *bits)
                    .then(|| prefixes.get(&prefix.address()))
                    .flatten()
            });
        found.map(Vec::as_slice).collect()
    }
}
