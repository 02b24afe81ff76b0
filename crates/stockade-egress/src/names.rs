//! The names that exist inside: a stub that answers for permitted names only.
//!
//! It answers out of its own head. No query leaves, so a name that is looked
//! up carries no data out. What is permitted, and which addresses stand for
//! a name, is asked through a function; addresses are kept by [`synthetic`].
//! RFC 1035, RFC 6891.

mod query;
pub mod synthetic;

use std::net::{Ipv4Addr, Ipv6Addr};

use stockade_policy::network::Name;

use query::{Code, Query, Refused};

/// Longest query that is looked at, over UDP or TCP. A question has at most
/// 259 bytes, and what EDNS adds to it is short.
pub const QUERY_BYTES_MAX: usize = 4096;

/// How long a client may keep an answer. An address stands for its name as
/// long as the sandbox runs, but the rules may change.
const TIME_TO_LIVE_SECONDS: u32 = 60;

const TYPE_A: u16 = 1;
const TYPE_PTR: u16 = 12;
const TYPE_AAAA: u16 = 28;

/// What there is to say about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// It exists and has these addresses, and records of no other type: no
    /// service bindings, hence no keys for an encrypted ClientHello.
    Found {
        ipv4: Option<Ipv4Addr>,
        ipv6: Option<Ipv6Addr>,
    },
    /// It does not exist as far as the sandbox may know.
    NotFound,
    /// It would exist, and there is no room for it.
    Unavailable,
}

/// The answer to one query (without the length that TCP puts before both), or
/// `None` for bytes that deserve none. `lookup` is called at most once, with
/// a name that has the one canonical form; never for names of this machine
/// or for reverse look-ups.
pub fn answer(query: &[u8], lookup: impl FnOnce(&Name) -> Lookup) -> Option<Vec<u8>> {
    let query = match Query::parse(query) {
        Ok(query) => query,
        Err(Refused::Silently) => return None,
        Err(Refused::With(reply)) => return Some(reply),
    };
    let found = match &query.name {
        Some(name) => known_here(name, query.kind).unwrap_or_else(|| lookup(name)),
        None => Lookup::NotFound,
    };
    Some(match found {
        Lookup::NotFound => query.reply(Code::NoSuchName, &[]),
        Lookup::Unavailable => query.reply(Code::ServerFailure, &[]),
        Lookup::Found { ipv4, ipv6 } => {
            let data = match query.kind {
                TYPE_A => ipv4.map(|address| address.octets().to_vec()),
                TYPE_AAAA => ipv6.map(|address| address.octets().to_vec()),
                _ => None,
            };
            let record = data.map(|data| record(query.kind, &data));
            query.reply(Code::NoError, &record.unwrap_or_default())
        }
    })
}

/// `localhost` is this machine wherever it is looked up (RFC 6761 §6.3), and
/// no address has a name that anyone outside gave it.
fn known_here(name: &Name, kind: u16) -> Option<Lookup> {
    let top = name.labels().next_back()?;
    match top {
        "localhost" => Some(Lookup::Found {
            ipv4: Some(Ipv4Addr::LOCALHOST),
            ipv6: Some(Ipv6Addr::LOCALHOST),
        }),
        "arpa" => Some(Lookup::NotFound),
        _ if kind == TYPE_PTR => Some(Lookup::NotFound),
        _ => None,
    }
}

/// A record for the name of the question.
fn record(kind: u16, data: &[u8]) -> Vec<u8> {
    // A pointer to the first byte behind the header (RFC 1035 §4.1.4).
    const NAME_OF_THE_QUESTION: [u8; 2] = [0xC0, 12];
    const CLASS_IN: [u8; 2] = [0, 1];
    // An address has at most 16 bytes.
    let length = [0, data.len() as u8];
    [
        &NAME_OF_THE_QUESTION[..],
        &kind.to_be_bytes(),
        &CLASS_IN,
        &TIME_TO_LIVE_SECONDS.to_be_bytes(),
        &length,
        data,
    ]
    .concat()
}

#[cfg(test)]
mod tests;
