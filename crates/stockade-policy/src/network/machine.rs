//! How what is offered crosses the border of a virtual machine.
//!
//! QEMU is in the sandbox, and so on its loopback; a machine has another one. So
//! each offer has a port where QEMU's user network and what listens in the machine
//! meet: on the sandbox's loopback, or on the machine's card.

use std::collections::BTreeSet;

use super::rules::NetworkPlan;
use crate::path::AbsolutePath;

/// Ports from here on can be opened by anybody (ip(7)); nothing in a machine, and
/// not QEMU, can open one below.
pub const UNPRIVILEGED_FROM: u16 = 1024;

/// Port of names (RFC 1035), at which the sandbox's loopback answers.
const NAMES: u16 = 53;

/// What is offered, and where it crosses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crossings {
    /// The same ports of the machine's loopback and of the sandbox's.
    pub host_ports: Vec<u16>,
    pub published: Vec<PublishedCrossing>,
    pub sockets: Vec<SocketCrossing>,
}

/// A port of the sandbox's loopback that leads to the same one of the machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedCrossing {
    pub port: u16,
    /// Where the machine's card is reached; no command can listen there.
    pub card_port: u16,
}

/// A unix socket in the machine that leads to a port of the sandbox's loopback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketCrossing {
    pub inside: AbsolutePath,
    /// Below those that anybody can open, and nothing else's.
    pub port: u16,
}

impl Crossings {
    /// Those of a plan; `None` where there are more than ports for them.
    pub fn of(plan: &NetworkPlan) -> Option<Self> {
        let host_ports: BTreeSet<u16> = plan.host_ports.iter().map(|one| one.port).collect();
        let published: BTreeSet<u16> = plan.publish.iter().map(|one| one.port).collect();
        let mut card_ports = 1..UNPRIVILEGED_FROM;
        let published = published.iter().map(|&port| {
            let card_port = card_ports.next()?;
            Some(PublishedCrossing { port, card_port })
        });
        let published = published.collect::<Option<_>>()?;
        let mut ports =
            (1..UNPRIVILEGED_FROM).filter(|port| *port != NAMES && !host_ports.contains(port));
        let sockets = plan.sockets.iter().map(|offer| {
            let inside = offer.inside.clone();
            let port = ports.next()?;
            Some(SocketCrossing { inside, port })
        });
        Some(Self {
            sockets: sockets.collect::<Option<_>>()?,
            published,
            host_ports: host_ports.into_iter().collect(),
        })
    }

    /// How many processes carry them in the machine.
    pub fn processes(&self) -> u64 {
        let is_empty =
            self.host_ports.is_empty() && self.published.is_empty() && self.sockets.is_empty();
        u64::from(!is_empty)
    }
}
