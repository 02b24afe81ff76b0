//! One DNS query, read strictly, and the reply to it.

use stockade_policy::network::Name;

use super::QUERY_BYTES_MAX;
use crate::front::host_name;

const HEADER_BYTES: usize = 12;
/// Bytes of a name in a message (RFC 1035 §3.1).
const NAME_BYTES_MAX: usize = 255;
const LABEL_BYTES_MAX: u8 = 63;
const CLASS_IN: u16 = 1;
const TYPE_OPT: u16 = 41;
/// What we take over UDP, told to clients that speak EDNS; the value that
/// crosses every network in one piece (DNS Flag Day 2020).
const UDP_BYTES: u16 = 1232;

const IS_REPLY: u8 = 0x80;
const OPERATION: u8 = 0x78;
const AUTHORITATIVE: u8 = 0x04;
const TRUNCATED: u8 = 0x02;
const RECURSION_DESIRED: u8 = 0x01;
const RECURSION_AVAILABLE: u8 = 0x80;
const CHECKING_DISABLED: u8 = 0x10;
const CODE: u8 = 0x0F;

/// A question of class IN.
pub struct Query<'a> {
    /// `None` when no host can have the name.
    pub name: Option<Name>,
    pub kind: u16,
    header: Header,
    question: &'a [u8],
    edns: bool,
}

/// Why there is no query to answer.
pub enum Refused {
    Silently,
    With(Vec<u8>),
}

/// RFC 1035 §4.1.1; `BadVersion` is RFC 6891 §6.1.3.
#[derive(Clone, Copy)]
pub enum Code {
    NoError = 0,
    FormatError = 1,
    ServerFailure = 2,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
    BadVersion = 16,
}

#[derive(Clone, Copy)]
struct Header {
    id: [u8; 2],
    flags: [u8; 2],
}

/// The one record that may stand beside a question.
enum Additional {
    None,
    Edns { version: u8 },
}

impl<'a> Query<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Refused> {
        let (header, counts, body) = match bytes {
            [i, j, f, g, counts @ ..] if bytes.len() <= QUERY_BYTES_MAX => {
                let (counts, body) = counts
                    .split_at_checked(HEADER_BYTES - 4)
                    .ok_or(Refused::Silently)?;
                let header = Header {
                    id: [*i, *j],
                    flags: [*f, *g],
                };
                (header, counts, body)
            }
            _ => return Err(Refused::Silently),
        };
        // Two servers that answer replies would never stop.
        if header.flags[0] & IS_REPLY != 0 {
            return Err(Refused::Silently);
        }
        let refused = |code| Refused::With(reply(header, code, &[], &[], false));
        if header.flags[0] & OPERATION != 0 {
            return Err(refused(Code::NotImplemented));
        }
        let bad = || refused(Code::FormatError);
        let truncated = header.flags[0] & TRUNCATED != 0 || header.flags[1] & CODE != 0;
        // One question, no answers, no authorities, at most one other record.
        let [0, 1, 0, 0, 0, 0, 0, records @ 0..=1] = counts else {
            return Err(bad());
        };
        let labels_bytes = name_bytes(body).filter(|_| !truncated).ok_or_else(bad)?;
        let (labels, rest) = body.split_at(labels_bytes);
        let [k, l, c, d, rest @ ..] = rest else {
            return Err(bad());
        };
        let additional = match records {
            0 if rest.is_empty() => Additional::None,
            1 => parse_edns(rest).ok_or_else(bad)?,
            _ => return Err(bad()),
        };
        let query = Self {
            name: host_name_of(labels),
            kind: u16::from_be_bytes([*k, *l]),
            header,
            question: &body[..labels_bytes + 4],
            edns: matches!(additional, Additional::Edns { .. }),
        };
        if matches!(additional, Additional::Edns { version: 1.. }) {
            return Err(Refused::With(query.reply(Code::BadVersion, &[])));
        }
        if u16::from_be_bytes([*c, *d]) != CLASS_IN {
            return Err(Refused::With(query.reply(Code::Refused, &[])));
        }
        Ok(query)
    }

    /// With the question as it came, so that the case of its letters, which
    /// some clients vary and check, stays as it was. `record` may be empty.
    pub fn reply(&self, code: Code, record: &[u8]) -> Vec<u8> {
        reply(self.header, code, self.question, record, self.edns)
    }
}

fn reply(header: Header, code: Code, question: &[u8], record: &[u8], edns: bool) -> Vec<u8> {
    let code = code as u8;
    let count = |bytes: &[u8]| u8::from(!bytes.is_empty());
    let mut message = header.id.to_vec();
    message.extend_from_slice(&[
        IS_REPLY | AUTHORITATIVE | header.flags[0] & (OPERATION | RECURSION_DESIRED),
        RECURSION_AVAILABLE | header.flags[1] & CHECKING_DISABLED | code & CODE,
    ]);
    message.extend_from_slice(&[
        0,
        count(question),
        0,
        count(record),
        0,
        0,
        0,
        u8::from(edns),
    ]);
    message.extend_from_slice(question);
    message.extend_from_slice(record);
    if edns {
        message.push(0);
        message.extend_from_slice(&TYPE_OPT.to_be_bytes());
        message.extend_from_slice(&UDP_BYTES.to_be_bytes());
        message.extend_from_slice(&[code >> 4, 0, 0, 0, 0, 0]);
    }
    message
}

/// How many bytes the name at the beginning has, with its final zero. A
/// pointer has nothing to point to in a question.
fn name_bytes(bytes: &[u8]) -> Option<usize> {
    let mut end = 0;
    loop {
        let length = *bytes.get(end)?;
        end += 1 + usize::from(length);
        if length > LABEL_BYTES_MAX || end > NAME_BYTES_MAX {
            return None;
        }
        if length == 0 {
            return Some(end);
        }
    }
}

/// The labels as text, unless a label has a byte that no host name has: a dot
/// within a label would become a border between two.
fn host_name_of(labels: &[u8]) -> Option<Name> {
    let mut text = Vec::with_capacity(labels.len());
    let mut rest = labels;
    while let [length, after @ ..] = rest
        && *length != 0
    {
        let (label, after) = after.split_at_checked(usize::from(*length))?;
        if label.contains(&b'.') {
            return None;
        }
        if !text.is_empty() {
            text.push(b'.');
        }
        text.extend_from_slice(label);
        rest = after;
    }
    host_name(&text)
}

/// RFC 6891 §6.1.2: an OPT record of the root, and nothing behind it. Any
/// other record, a signature for example, is nothing we could honour.
fn parse_edns(bytes: &[u8]) -> Option<Additional> {
    let [0, k, l, _, _, _, version, _, _, m, n, options @ ..] = bytes else {
        return None;
    };
    let length = usize::from(u16::from_be_bytes([*m, *n]));
    if u16::from_be_bytes([*k, *l]) != TYPE_OPT || options.len() != length {
        return None;
    }
    let mut rest = options;
    while let [_, _, m, n, after @ ..] = rest {
        rest = after.get(usize::from(u16::from_be_bytes([*m, *n]))..)?;
    }
    rest.is_empty()
        .then_some(Additional::Edns { version: *version })
}
