//! Routes that make every address a local one (rtnetlink(7)), so that nothing
//! sent in a private network namespace has anywhere else to go.

use std::io;

use super::netlink::{
    Answer, CREATE, EXCLUSIVE, Family, Messages, Netlink, REQUEST, Then, attribute, attributes,
    failure, find, malformed, read_u32,
};

/// `lo` has this index in every network namespace (net/flow.h in the kernel).
const LOOPBACK_INDEX: u32 = 1;

/// Which families of addresses are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families {
    pub ipv4: bool,
    /// Kernels can be built or started without it.
    pub ipv6: bool,
}

/// Adds `local 0.0.0.0/0 dev lo` and `local ::/0 dev lo` to the table `local`
/// of the caller's network namespace, and has the kernel look up an address
/// that is nobody's to see that it is local now. Needs CAP_NET_ADMIN there,
/// and `lo` up.
///
/// A kernel without IPv6 has no such addresses to route; `Families` says so.
pub fn make_everything_local() -> io::Result<Families> {
    let mut messages = Messages::default();
    for (number, family) in (0u32..).zip(&FAMILIES) {
        add_route(&mut messages, 2 * number, family);
        look_up(&mut messages, 2 * number + 1, family);
    }
    let netlink = Netlink::open(Family::Route)?;
    netlink.send(&messages)?;
    let mut seen: [Option<io::Result<()>>; 2] = [None, None];
    netlink.answers(|answer| {
        let place = seen
            .get_mut(answer.sequence as usize / 2)
            .ok_or_else(malformed)?;
        let outcome = outcome(&answer)?;
        // The route comes before the look-up: its error is the one to report.
        if !matches!(place, Some(Err(_))) {
            *place = Some(outcome);
        }
        // Only an error of a route is sent, but always an answer to a look-up.
        match answer.sequence as usize == 2 * FAMILIES.len() - 1 {
            true => Ok(Then::Stop),
            false => Ok(Then::ReadOn),
        }
    })?;
    let [ipv4, ipv6] = seen.map(|outcome| outcome.unwrap_or_else(|| Err(malformed())));
    ipv4?;
    match ipv6 {
        Ok(()) => Ok(Families {
            ipv4: true,
            ipv6: true,
        }),
        Err(error) if is_missing_family(&error) => Ok(Families {
            ipv4: true,
            ipv6: false,
        }),
        Err(error) => Err(error),
    }
}

/// Whether the error of a route says that the kernel has no IPv6, or has it
/// switched off here (`disable_ipv6` in ip-sysctl of the kernel's documents).
fn is_missing_family(error: &io::Error) -> bool {
    let codes = [
        libc::EAFNOSUPPORT,
        libc::EPFNOSUPPORT,
        libc::EOPNOTSUPP,
        libc::EACCES,
    ];
    error
        .raw_os_error()
        .is_some_and(|code| codes.contains(&code))
}

struct AddressKind {
    family: u8,
    bits: u8,
    /// Set apart for documentation (RFC 5737, RFC 3849): no address of anyone.
    example: &'static [u8],
}

const FAMILIES: [AddressKind; 2] = [
    AddressKind {
        family: libc::AF_INET as u8,
        bits: 32,
        example: &[198, 51, 100, 1],
    },
    AddressKind {
        family: libc::AF_INET6 as u8,
        bits: 128,
        example: &[0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    },
];

fn add_route(messages: &mut Messages, sequence: u32, family: &AddressKind) {
    let flags = REQUEST | CREATE | EXCLUSIVE;
    messages.add(libc::RTM_NEWROUTE, flags, sequence, |bytes| {
        // struct rtmsg: family, lengths of destination and source, TOS, table,
        // protocol, scope, type, flags.
        bytes.extend_from_slice(&[family.family, 0, 0, 0, libc::RT_TABLE_LOCAL]);
        bytes.extend_from_slice(&[libc::RTPROT_STATIC, libc::RT_SCOPE_HOST, libc::RTN_LOCAL]);
        bytes.extend_from_slice(&[0; 4]);
        attribute(bytes, libc::RTA_OIF, &LOOPBACK_INDEX.to_ne_bytes());
    });
}

fn look_up(messages: &mut Messages, sequence: u32, family: &AddressKind) {
    messages.add(libc::RTM_GETROUTE, REQUEST, sequence, |bytes| {
        bytes.extend_from_slice(&[family.family, family.bits, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        attribute(bytes, libc::RTA_DST, family.example);
    });
}

/// What one answer says: an error, or a route that must be local.
fn outcome(answer: &Answer<'_>) -> io::Result<io::Result<()>> {
    if i32::from(answer.kind) == libc::NLMSG_ERROR {
        return Ok(match failure(answer)? {
            Some(error) => Err(error),
            None => Ok(()),
        });
    }
    if answer.kind != libc::RTM_NEWROUTE {
        return Err(malformed());
    }
    let kind = *answer.body.get(7).ok_or_else(malformed)?;
    let attributes = attributes(answer.body.get(12..).ok_or_else(malformed)?)?;
    let device = find(&attributes, libc::RTA_OIF).ok_or_else(malformed)?;
    if kind == libc::RTN_LOCAL && read_u32(device, 0)? == LOOPBACK_INDEX {
        Ok(Ok(()))
    } else {
        Ok(Err(io::Error::other("an address leads elsewhere")))
    }
}
