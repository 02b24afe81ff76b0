//! One table of nftables that redirects TCP connections to a port of this
//! network namespace, spoken over netlink (linux/netfilter/nf_tables.h), so
//! that no program for it has to be installed.
//!
//! In the words of nft(8):
//!
//! ```text
//! table inet stockade {
//!     chain output {
//!         type nat hook output priority dstnat; policy accept;
//!         meta nfproto ipv4 meta l4proto tcp ip daddr != 127.0.0.0/8 tcp dport != 53 redirect to :PORT
//!         meta nfproto ipv6 meta l4proto tcp ip6 daddr != ::1 tcp dport != 53 redirect to :PORT
//!     }
//! }
//! ```
//!
//! Port 53 needs none: with every address local, whoever listens on it for all
//! addresses is reached at the one that was asked.

use std::io;

use super::netlink::{
    APPEND, Answer, CREATE, DUMP, EXCLUSIVE, Family, Messages, Netlink, REQUEST, Then, attribute,
    attributes, failure, find, malformed, nested,
};

const TABLE: &[u8] = b"stockade\0";
const CHAIN: &[u8] = b"output\0";

/// Redirects every TCP connection that a process of the caller's network
/// namespace opens, unless to 127.0.0.0/8, ::1 or port 53, to `port` of
/// 127.0.0.1 or ::1, and reads back from the kernel that chain and rules are as
/// sent. Needs CAP_NET_ADMIN in that namespace.
///
/// Whether rules can be had at all depends on how the kernel was built: its
/// error says what is missing.
pub fn redirect_to(port: u16) -> io::Result<()> {
    let netlink = Netlink::open(Family::Netfilter)?;
    netlink.send(&set_up(port))?;
    netlink.send(&questions())?;
    let mut seen = Seen::default();
    netlink.answers(|answer| seen.take(&answer))?;
    seen.compare(port)
}

/// Tries [`redirect_to`] in namespaces that are made for it and go away again:
/// whether this user may have a redirect on this kernel. Costs a process and a
/// network namespace; `EBUSY` when this process has several threads.
pub fn redirect_ability() -> io::Result<()> {
    use crate::process::{exit_now, fork, leave_network_and_users, wait_for};
    match fork()? {
        None => {
            let tried = leave_network_and_users().and_then(|()| redirect_to(1));
            let code = tried.map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0);
            // Numbers of errors fit: Linux has none above 133 that leaves it.
            exit_now(code)
        }
        Some(child) => match wait_for(child)? {
            crate::process::Change::Exited(0) => Ok(()),
            crate::process::Change::Exited(code) => Err(io::Error::from_raw_os_error(code)),
            _ => Err(io::Error::other("the process that tried was killed")),
        },
    }
}

// Sequence numbers, by which answers are told apart.
const SET_UP: u32 = 1;
const THE_CHAIN: u32 = 2;
const THE_RULES: u32 = 3;

// linux/netfilter/nfnetlink.h and nf_tables.h
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NFTABLES: u16 = libc::NFNL_SUBSYS_NFTABLES as u16;
const NEW_TABLE: u16 = kind(libc::NFT_MSG_NEWTABLE);
const NEW_CHAIN: u16 = kind(libc::NFT_MSG_NEWCHAIN);
const GET_CHAIN: u16 = kind(libc::NFT_MSG_GETCHAIN);
const NEW_RULE: u16 = kind(libc::NFT_MSG_NEWRULE);
const GET_RULE: u16 = kind(libc::NFT_MSG_GETRULE);
const NFPROTO_UNSPEC: u8 = 0;
const NFPROTO_INET: u8 = 1;
const NFPROTO_IPV4: u8 = 2;
const NFPROTO_IPV6: u8 = 10;
const TABLE_NAME: u16 = 1;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const REGISTER: u32 = 1;
/// NF_INET_LOCAL_OUT
const HOOK_OUTPUT: u32 = 3;
/// NF_IP_PRI_NAT_DST
const PRIORITY: i32 = -100;
const POLICY_ACCEPT: u32 = 1;
const TYPE_NAT: &[u8] = b"nat\0";
/// Port of DNS (RFC 1035), which is listened on and not redirected.
const NAMES_PORT: u16 = 53;

const fn kind(message: libc::c_int) -> u16 {
    (NFTABLES << 8) | message as u16
}

/// The transaction: all of it takes effect, or nothing.
fn set_up(port: u16) -> Messages {
    let mut messages = Messages::default();
    messages.add(BATCH_BEGIN, REQUEST, 0, |bytes| {
        generic(bytes, NFPROTO_UNSPEC, NFTABLES);
    });
    let create = REQUEST | CREATE | EXCLUSIVE;
    messages.add(NEW_TABLE, create, SET_UP, |bytes| {
        generic(bytes, NFPROTO_INET, 0);
        attribute(bytes, TABLE_NAME, TABLE);
    });
    messages.add(NEW_CHAIN, create, SET_UP, chain);
    for rule in rules(port) {
        messages.add(NEW_RULE, REQUEST | CREATE | APPEND, SET_UP, |bytes| {
            generic(bytes, NFPROTO_INET, 0);
            attribute(bytes, RULE_TABLE, TABLE);
            attribute(bytes, RULE_CHAIN, CHAIN);
            nested(bytes, RULE_EXPRESSIONS, |bytes| {
                rule.iter()
                    .for_each(|expression| expression.write_to(bytes));
            });
        });
    }
    messages.add(BATCH_END, REQUEST, 0, |bytes| {
        generic(bytes, NFPROTO_UNSPEC, NFTABLES);
    });
    messages
}

/// Asks for the chain and for all rules in it.
fn questions() -> Messages {
    let mut messages = Messages::default();
    messages.add(GET_CHAIN, REQUEST, THE_CHAIN, |bytes| {
        generic(bytes, NFPROTO_INET, 0);
        attribute(bytes, CHAIN_TABLE, TABLE);
        attribute(bytes, CHAIN_NAME, CHAIN);
    });
    messages.add(GET_RULE, REQUEST | DUMP, THE_RULES, |bytes| {
        generic(bytes, NFPROTO_INET, 0);
        attribute(bytes, RULE_TABLE, TABLE);
        attribute(bytes, RULE_CHAIN, CHAIN);
    });
    messages
}

/// `struct nfgenmsg`: family, version, resource.
fn generic(bytes: &mut Vec<u8>, family: u8, resource: u16) {
    bytes.extend_from_slice(&[family, 0]);
    bytes.extend_from_slice(&resource.to_be_bytes());
}

fn chain(bytes: &mut Vec<u8>) {
    generic(bytes, NFPROTO_INET, 0);
    attribute(bytes, CHAIN_TABLE, TABLE);
    attribute(bytes, CHAIN_NAME, CHAIN);
    nested(bytes, CHAIN_HOOK, |bytes| {
        attribute(bytes, HOOK_NUMBER, &HOOK_OUTPUT.to_be_bytes());
        attribute(bytes, HOOK_PRIORITY, &PRIORITY.to_be_bytes());
    });
    attribute(bytes, CHAIN_POLICY, &POLICY_ACCEPT.to_be_bytes());
    attribute(bytes, CHAIN_TYPE, TYPE_NAT);
}

/// One expression of a rule, as its name and its attributes.
#[derive(Debug, PartialEq, Eq)]
struct Expression {
    name: &'static [u8],
    attributes: Vec<(u16, Vec<u8>)>,
}

impl Expression {
    fn write_to(&self, bytes: &mut Vec<u8>) {
        nested(bytes, LIST_ELEMENT, |bytes| {
            attribute(bytes, EXPRESSION_NAME, self.name);
            nested(bytes, EXPRESSION_DATA, |bytes| {
                for (kind, value) in &self.attributes {
                    attribute(bytes, *kind, value);
                }
            });
        });
    }

    /// Whether the kernel's form of an expression says the same. It may say
    /// more: what is left out when sending has a value when read.
    fn is(&self, element: &[u8]) -> io::Result<bool> {
        let element = attributes(element)?;
        let data = attributes(find(&element, EXPRESSION_DATA).ok_or_else(malformed)?)?;
        let same_name = find(&element, EXPRESSION_NAME) == Some(self.name);
        let same = |(kind, value): &(u16, Vec<u8>)| find(&data, *kind) == Some(value.as_slice());
        Ok(same_name && self.attributes.iter().all(same))
    }
}

/// The two rules, each a list of expressions: what does not compare as it
/// should ends the rule.
fn rules(port: u16) -> [Vec<Expression>; 2] {
    // Offsets of the destination in the headers of both families.
    let not_loopback = [
        (NFPROTO_IPV4, 16, vec![127]),
        (NFPROTO_IPV6, 24, [&[0; 15][..], &[1]].concat()),
    ];
    not_loopback.map(|(family, offset, loopback)| {
        const META_PROTOCOL_OF_NETFILTER: u32 = 15;
        const META_PROTOCOL_OF_LAYER_4: u32 = 16;
        vec![
            meta(META_PROTOCOL_OF_NETFILTER),
            compare(Comparison::Equal, &[family]),
            meta(META_PROTOCOL_OF_LAYER_4),
            compare(Comparison::Equal, &[libc::IPPROTO_TCP as u8]),
            payload(Header::Network, offset, loopback.len() as u32),
            compare(Comparison::NotEqual, &loopback),
            payload(Header::Transport, 2, 2),
            compare(Comparison::NotEqual, &NAMES_PORT.to_be_bytes()),
            immediate(&port.to_be_bytes()),
            Expression {
                name: b"redir\0",
                attributes: vec![(1, number(REGISTER))],
            },
        ]
    })
}

fn meta(key: u32) -> Expression {
    Expression {
        name: b"meta\0",
        attributes: vec![(1, number(REGISTER)), (2, number(key))],
    }
}

#[derive(Clone, Copy)]
enum Comparison {
    Equal = 0,
    NotEqual = 1,
}

fn compare(comparison: Comparison, value: &[u8]) -> Expression {
    Expression {
        name: b"cmp\0",
        attributes: vec![
            (1, number(REGISTER)),
            (2, number(comparison as u32)),
            (3, data(value)),
        ],
    }
}

#[derive(Clone, Copy)]
enum Header {
    Network = 1,
    Transport = 2,
}

fn payload(header: Header, offset: u32, length: u32) -> Expression {
    Expression {
        name: b"payload\0",
        attributes: vec![
            (1, number(REGISTER)),
            (2, number(header as u32)),
            (3, number(offset)),
            (4, number(length)),
        ],
    }
}

fn immediate(value: &[u8]) -> Expression {
    Expression {
        name: b"immediate\0",
        attributes: vec![(1, number(REGISTER)), (2, data(value))],
    }
}

/// Numbers in nf_tables are in network order.
fn number(value: u32) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

fn data(value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    attribute(&mut bytes, DATA_VALUE, value);
    bytes
}

/// What the kernel said it has.
#[derive(Default)]
struct Seen {
    chain: bool,
    /// The expressions of each rule, as they came.
    rules: Vec<Vec<u8>>,
}

impl Seen {
    fn take(&mut self, answer: &Answer<'_>) -> io::Result<Then> {
        match (i32::from(answer.kind), answer.kind) {
            (libc::NLMSG_ERROR, _) => match failure(answer)? {
                Some(error) => return Err(error),
                None => return Err(malformed()),
            },
            (libc::NLMSG_DONE, _) => return Ok(Then::Stop),
            (_, NEW_CHAIN) if answer.sequence == THE_CHAIN => {
                self.chain = is_our_chain(&attributes_of(answer)?)?;
            }
            (_, NEW_RULE) if answer.sequence == THE_RULES => {
                let attributes = attributes_of(answer)?;
                let expressions = find(&attributes, RULE_EXPRESSIONS).ok_or_else(malformed)?;
                self.rules.push(expressions.to_vec());
            }
            _ => return Err(malformed()),
        }
        Ok(Then::ReadOn)
    }

    fn compare(&self, port: u16) -> io::Result<()> {
        let wanted = rules(port);
        let mut same = self.chain && self.rules.len() == wanted.len();
        for (seen, wanted) in self.rules.iter().zip(&wanted) {
            let elements = attributes(seen)?;
            same &= elements.len() == wanted.len();
            for ((_, element), expression) in elements.iter().zip(wanted) {
                same &= expression.is(element)?;
            }
        }
        match same {
            true => Ok(()),
            false => Err(io::Error::other("the redirect reads back differently")),
        }
    }
}

/// The attributes after the `struct nfgenmsg` of an answer.
fn attributes_of<'a>(answer: &Answer<'a>) -> io::Result<Vec<(u16, &'a [u8])>> {
    attributes(answer.body.get(4..).ok_or_else(malformed)?)
}

fn is_our_chain(chain: &[(u16, &[u8])]) -> io::Result<bool> {
    let hook = attributes(find(chain, CHAIN_HOOK).ok_or_else(malformed)?)?;
    Ok(find(chain, CHAIN_TYPE) == Some(TYPE_NAT)
        && find(&hook, HOOK_NUMBER) == Some(&HOOK_OUTPUT.to_be_bytes())
        && find(&hook, HOOK_PRIORITY) == Some(&PRIORITY.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer that holds a rule the way the kernel would send it.
    fn seen(rules: &[Vec<Expression>]) -> Seen {
        let rules = rules.iter().map(|rule| {
            let mut bytes = Vec::new();
            rule.iter()
                .for_each(|expression| expression.write_to(&mut bytes));
            bytes
        });
        Seen {
            chain: true,
            rules: rules.collect(),
        }
    }

    #[test]
    fn only_what_was_sent_passes_for_it() {
        assert!(seen(&rules(15001)).compare(15001).is_ok());
        assert!(seen(&rules(15001)).compare(15002).is_err());
        let [first, second] = rules(15001);
        assert!(seen(&[second, first]).compare(15001).is_err());
        assert!(seen(&rules(15001)[..1]).compare(15001).is_err());
        let mut shorter = rules(15001);
        shorter[1].remove(4);
        assert!(seen(&shorter).compare(15001).is_err());
        let without_chain = Seen {
            chain: false,
            ..seen(&rules(15001))
        };
        assert!(without_chain.compare(15001).is_err());
    }

    #[test]
    fn a_transaction_begins_and_ends_and_holds_the_port() {
        let messages = set_up(0x3a99);
        let bytes = messages.bytes();
        assert_eq!(&bytes[4..6], &BATCH_BEGIN.to_ne_bytes());
        assert_eq!(&bytes[bytes.len() - 16..][..2], &BATCH_END.to_ne_bytes());
        let ports = bytes.windows(2).filter(|two| two == &[0x3a, 0x99]).count();
        assert_eq!(ports, 2);
    }
}
