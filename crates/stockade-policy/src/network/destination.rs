//! Where a request goes, in one canonical form.
//!
//! Every comparison, every dial, every server name and every line of the log
//! uses this value, so no two of them can mean different hosts. There is one
//! way to make it, and it refuses rather than repairs: what it takes is a
//! subset of what any resolver or URL parser would take for the same host.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Longest name in text form, without the final dot (RFC 1035).
pub const NAME_BYTES_MAX: usize = 253;
/// Longest label (RFC 1035).
pub const LABEL_BYTES_MAX: usize = 63;

/// A host name: lower-case A-labels, without a final dot. Copies share its
/// text: each request makes a dozen of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    Name(Name),
    /// Never an IPv6 address that stands for an IPv4 one.
    Address(IpAddr),
}

/// A host and a port from 1 to 65535.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    host: Host,
    port: u16,
}

/// What a destination is made of.
#[derive(Clone, Copy, Debug)]
pub enum RawHost<'a> {
    /// As it came: a name, an IPv4 address in any spelling, or an IPv6
    /// address with or without brackets.
    Text(&'a [u8]),
    /// From the kernel or a binary protocol.
    Address(IpAddr),
}

/// Why bytes are no destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDestination {
    #[error("the host is empty")]
    Empty,
    #[error("the host is longer than {NAME_BYTES_MAX} bytes")]
    TooLong,
    #[error(
        "the host has a byte that no host name has; names with other letters are written as A-labels (xn--…)"
    )]
    ForbiddenByte,
    #[error("the host has an empty label, or one longer than {LABEL_BYTES_MAX} bytes")]
    BadLabel,
    #[error("the host looks like an IP address and is none")]
    BadAddress,
    #[error("an IPv6 address must not have a zone")]
    Zone,
    #[error("the port must be from 1 to 65535")]
    BadPort,
}

impl Destination {
    /// The only constructor.
    pub fn new(host: RawHost<'_>, port: u16) -> Result<Self, BadDestination> {
        if port == 0 {
            return Err(BadDestination::BadPort);
        }
        let host = match host {
            RawHost::Address(address) => Host::Address(address.to_canonical()),
            RawHost::Text(text) => parse_host(text)?,
        };
        Ok(Self { host, port })
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The name, unless the destination is an address.
    pub fn name(&self) -> Option<&Name> {
        match &self.host {
            Host::Name(name) => Some(name),
            Host::Address(_) => None,
        }
    }
}

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// From the leftmost (most specific) to the rightmost.
    pub fn labels(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('.')
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// As in the authority of a URL: IPv6 in brackets.
impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(formatter),
            Self::Address(IpAddr::V4(address)) => address.fmt(formatter),
            Self::Address(IpAddr::V6(address)) => write!(formatter, "[{address}]"),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.host, self.port)
    }
}

fn parse_host(text: &[u8]) -> Result<Host, BadDestination> {
    if text.is_empty() {
        return Err(BadDestination::Empty);
    }
    if text.len() > NAME_BYTES_MAX + 1 {
        return Err(BadDestination::TooLong);
    }
    if text.contains(&b'%') {
        return Err(BadDestination::Zone);
    }
    if text.contains(&b':') || text.first() == Some(&b'[') {
        return parse_ipv6(text);
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if !text.iter().copied().all(allowed) {
        return Err(BadDestination::ForbiddenByte);
    }
    let lower: String = text
        .iter()
        .map(|byte| char::from(byte.to_ascii_lowercase()))
        .collect();
    let name = lower.strip_suffix('.').unwrap_or(&lower);
    if name.is_empty() {
        return Err(BadDestination::Empty);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(BadDestination::TooLong);
    }
    if name
        .split('.')
        .any(|label| label.is_empty() || label.len() > LABEL_BYTES_MAX)
    {
        return Err(BadDestination::BadLabel);
    }
    // The WHATWG rule: a host whose last label is a number is an IPv4 address
    // or nothing, because some resolver would take it for one.
    if name.rsplit('.').next().is_some_and(is_numeric) {
        let address = parse_ipv4(name).ok_or(BadDestination::BadAddress)?;
        return Ok(Host::Address(IpAddr::V4(address)));
    }
    Ok(Host::Name(Name(name.into())))
}

fn parse_ipv6(text: &[u8]) -> Result<Host, BadDestination> {
    let bare = match text {
        [b'[', inner @ .., b']'] => inner,
        [b'[', ..] => return Err(BadDestination::BadAddress),
        other => other,
    };
    let bare = str::from_utf8(bare).map_err(|_| BadDestination::ForbiddenByte)?;
    let address: Ipv6Addr = bare.parse().map_err(|_| BadDestination::BadAddress)?;
    Ok(Host::Address(IpAddr::V6(address).to_canonical()))
}

fn is_numeric(label: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    match label.strip_prefix("0x") {
        Some(rest) => rest.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => digits(label),
    }
}

/// All spellings of inet_aton(3): one to four parts in decimal, octal or
/// hexadecimal, the last filling what is left.
fn parse_ipv4(name: &str) -> Option<Ipv4Addr> {
    let parts: Vec<&str> = name.split('.').collect();
    if parts.len() > 4 {
        return None;
    }
    let (last, leading) = parts.split_last()?;
    let mut address: u32 = 0;
    for part in leading {
        let byte = u8::try_from(parse_number(part)?).ok()?;
        address = address << 8 | u32::from(byte);
    }
    let bits = 8 * (4 - u32::try_from(leading.len()).ok()?);
    let last = parse_number(last)?;
    if last >> bits != 0 {
        return None;
    }
    let address = (u64::from(address) << bits) | last;
    Some(Ipv4Addr::from(u32::try_from(address).ok()?))
}

/// At most 32 bits.
fn parse_number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x") {
        // The WHATWG parser reads a bare `0x` as zero.
        Some("") => ("0", 16),
        Some(rest) => (rest, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    let plain = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let number = u64::from_str_radix(digits, radix).ok().filter(|_| plain)?;
    (number <= u64::from(u32::MAX)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(host: &str) -> Result<String, BadDestination> {
        Destination::new(RawHost::Text(host.as_bytes()), 443).map(|d| d.to_string())
    }

    #[test]
    fn one_host_has_one_form() {
        for (written, canonical) in [
            ("a.test", "a.test:443"),
            ("A.Test.", "a.test:443"),
            ("_x.a-b.test", "_x.a-b.test:443"),
            ("127.1", "127.0.0.1:443"),
            ("0x7f.1", "127.0.0.1:443"),
            ("2130706433", "127.0.0.1:443"),
            ("0177.0.0.1", "127.0.0.1:443"),
            ("0x", "0.0.0.0:443"),
            ("10.0.0.1.", "10.0.0.1:443"),
            ("[::1]", "[::1]:443"),
            ("::ffff:10.0.0.1", "10.0.0.1:443"),
            ("[2001:DB8::1]", "[2001:db8::1]:443"),
        ] {
            assert_eq!(text(written).as_deref(), Ok(canonical), "{written}");
        }
    }

    #[test]
    fn what_any_parser_could_read_differently_is_refused() {
        let long = "a".repeat(64);
        for host in [
            "",
            ".",
            "a..test",
            ".a.test",
            "a.test..",
            "a b",
            "a\0.test",
            "a\r\n.test",
            "a@b.test",
            "a/b",
            "a\\b",
            "a?b",
            "a#b",
            "ä.test",
            "a%2e.test",
            "fe80::1%eth0",
            "[::1",
            "::1]",
            "1.2.3.4.5",
            "256.1.1.1",
            "1.2.3.08",
            "4294967296",
            "a.0x1g.1",
            "[a.test]",
            &long,
            "1.2.3.+4",
        ] {
            assert!(text(host).is_err(), "{host:?} became {:?}", text(host));
        }
        assert_eq!(
            Destination::new(RawHost::Text(b"a.test"), 0),
            Err(BadDestination::BadPort)
        );
    }
}
