//! Messages of netlink(7): writing requests, reading answers.
//!
//! What a message means is left to the modules beside this one. The kernel
//! works through a request before send(2) returns, so its answers are there at
//! once and are never waited for.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// Length of `struct nlmsghdr`, and of an attribute's header.
const HEADER_BYTES: usize = 16;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// Everything is padded to this.
const ALIGNMENT: usize = 4;
/// Marks an attribute that holds attributes (linux/netlink.h).
const NESTED: u16 = 0x8000;
/// What is left of an attribute's type without its flags.
const TYPE_MASK: u16 = 0x3fff;

pub(super) const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
pub(super) const CREATE: u16 = libc::NLM_F_CREATE as u16;
pub(super) const EXCLUSIVE: u16 = libc::NLM_F_EXCL as u16;
pub(super) const DUMP: u16 = libc::NLM_F_DUMP as u16;
pub(super) const APPEND: u16 = libc::NLM_F_APPEND as u16;

/// Which part of the kernel answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Route,
    Netfilter,
    SocketDiagnosis,
}

impl Family {
    fn protocol(self) -> Option<Protocol> {
        match self {
            // NETLINK_ROUTE is 0, which stands for the default.
            Self::Route => None,
            Self::Netfilter => Some(netlink::NETFILTER),
            Self::SocketDiagnosis => Some(netlink::SOCK_DIAG),
        }
    }
}

/// Messages that are sent together.
#[derive(Default)]
pub(super) struct Messages(Vec<u8>);

impl Messages {
    /// Adds one message; `body` writes what follows the header.
    pub(super) fn add(
        &mut self,
        kind: u16,
        flags: u16,
        sequence: u32,
        body: impl FnOnce(&mut Vec<u8>),
    ) {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; HEADER_BYTES]);
        body(&mut self.0);
        let length = (self.0.len() - start) as u32;
        let header = &mut self.0[start..start + HEADER_BYTES];
        header[..4].copy_from_slice(&length.to_ne_bytes());
        header[4..6].copy_from_slice(&kind.to_ne_bytes());
        header[6..8].copy_from_slice(&flags.to_ne_bytes());
        header[8..12].copy_from_slice(&sequence.to_ne_bytes());
        pad(&mut self.0);
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Appends one attribute. Values are far below the 64 KiB that fit.
pub(super) fn attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    nested_with(bytes, kind, |bytes| bytes.extend_from_slice(value));
}

/// Appends one attribute that holds what `body` appends.
pub(super) fn nested(bytes: &mut Vec<u8>, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    nested_with(bytes, kind | NESTED, body);
}

fn nested_with(bytes: &mut Vec<u8>, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; ATTRIBUTE_HEADER_BYTES]);
    body(bytes);
    let length = (bytes.len() - start) as u16;
    bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    bytes[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
    pad(bytes);
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
}

/// One message of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer<'a> {
    pub(super) kind: u16,
    pub(super) sequence: u32,
    pub(super) body: &'a [u8],
}

/// What the caller wants after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    ReadOn,
    Stop,
}

/// A netlink socket of the caller's network namespace.
pub(super) struct Netlink(OwnedFd);

impl Netlink {
    pub(super) fn open(family: Family) -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            family.protocol(),
        )?;
        Ok(Self(socket))
    }

    pub(super) fn send(&self, messages: &Messages) -> io::Result<()> {
        let sent = send(&self.0, &messages.0, SendFlags::empty())?;
        if sent == messages.0.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::WriteZero.into())
        }
    }

    /// Passes each answer to `take` until it says to stop. An error message is
    /// passed like any other: [`failure`] reads it. Fails with `WouldBlock`
    /// when the kernel has no more answers.
    pub(super) fn answers(
        &self,
        mut take: impl FnMut(Answer<'_>) -> io::Result<Then>,
    ) -> io::Result<()> {
        // What the kernel fills at most in one dump (netlink(7)).
        let mut buffer = vec![0u8; 32 * 1024];
        loop {
            let (length, full) = recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT)?;
            if full > length {
                return Err(malformed());
            }
            let mut rest = &buffer[..length];
            while !rest.is_empty() {
                let (answer, after) = split(rest)?;
                if take(answer)? == Then::Stop {
                    return Ok(());
                }
                rest = after;
            }
        }
    }
}

/// The error of a message of kind `NLMSG_ERROR`, with `None` for an
/// acknowledgement.
pub(super) fn failure(answer: &Answer<'_>) -> io::Result<Option<io::Error>> {
    let code = read_u32(answer.body, 0)? as i32;
    Ok((code != 0).then(|| io::Error::from_raw_os_error(code.saturating_neg())))
}

/// Splits the first message off.
fn split(bytes: &[u8]) -> io::Result<(Answer<'_>, &[u8])> {
    let length = read_u32(bytes, 0)? as usize;
    if length < HEADER_BYTES || length > bytes.len() {
        return Err(malformed());
    }
    let answer = Answer {
        kind: read_u16(bytes, 4)?,
        sequence: read_u32(bytes, 8)?,
        body: &bytes[HEADER_BYTES..length],
    };
    Ok((answer, &bytes[padded(length, bytes.len())..]))
}

/// The attributes in `bytes`, by type without its flags.
pub(super) fn attributes(bytes: &[u8]) -> io::Result<Vec<(u16, &[u8])>> {
    let mut found = Vec::new();
    let mut rest = bytes;
    while rest.len() >= ATTRIBUTE_HEADER_BYTES {
        let length = usize::from(read_u16(rest, 0)?);
        if length < ATTRIBUTE_HEADER_BYTES || length > rest.len() {
            return Err(malformed());
        }
        let kind = read_u16(rest, 2)? & TYPE_MASK;
        found.push((kind, &rest[ATTRIBUTE_HEADER_BYTES..length]));
        rest = &rest[padded(length, rest.len())..];
    }
    Ok(found)
}

/// The value of the first attribute of this type.
pub(super) fn find<'a>(attributes: &[(u16, &'a [u8])], kind: u16) -> Option<&'a [u8]> {
    let found = attributes.iter().find(|(other, _)| *other == kind);
    found.map(|(_, value)| *value)
}

/// The padding after the last one may be missing.
fn padded(length: usize, most: usize) -> usize {
    length.next_multiple_of(ALIGNMENT).min(most)
}

pub(super) fn read_u32(bytes: &[u8], at: usize) -> io::Result<u32> {
    let bytes = bytes.get(at..at + 4).ok_or_else(malformed)?;
    Ok(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

fn read_u16(bytes: &[u8], at: usize) -> io::Result<u16> {
    let bytes = bytes.get(at..at + 2).ok_or_else(malformed)?;
    Ok(u16::from_ne_bytes([bytes[0], bytes[1]]))
}

pub(super) fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed netlink answer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let mut messages = Messages::default();
        messages.add(7, REQUEST, 3, |bytes| {
            attribute(bytes, 1, b"abc");
            nested(bytes, 2, |bytes| attribute(bytes, 5, &[9]));
        });
        messages.add(8, REQUEST, 4, |_| {});
        let (first, rest) = split(messages.bytes()).unwrap();
        assert_eq!((first.kind, first.sequence), (7, 3));
        let found = attributes(first.body).unwrap();
        assert_eq!(find(&found, 1), Some(&b"abc"[..]));
        let inner = attributes(find(&found, 2).unwrap()).unwrap();
        assert_eq!(inner, [(5, &[9][..])]);
        let (second, rest) = split(rest).unwrap();
        assert_eq!((second.kind, second.sequence, rest), (8, 4, &[][..]));
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        for bytes in [&[15, 0, 0, 0][..], &[0; 16], &[17; 16], &[1, 2, 3]] {
            assert!(split(bytes).is_err(), "{bytes:?}");
        }
        assert!(attributes(&[3, 0, 1, 0]).is_err());
        assert!(attributes(&[9, 0, 1, 0, 1, 2, 3, 4]).is_err());
        let short = Answer {
            kind: 2,
            sequence: 0,
            body: &[1, 2],
        };
        assert!(failure(&short).is_err());
    }
}
