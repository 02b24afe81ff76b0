//! SOCKS version 5 (RFC 1928): CONNECT without authentication, nothing else.
//!
//! Who asks is known by the listener, so a user name would mean nothing;
//! a client that insists on one is turned away. Version 4 is refused.

use std::net::IpAddr;

use stockade_policy::network::destination::RawHost;
use stockade_policy::network::{BadDestination, Destination};

use super::Progress;

/// The answer to a greeting that offers to go without authentication.
pub const NO_AUTHENTICATION: [u8; 2] = [VERSION, 0x00];
/// The answer to any other greeting: no acceptable method.
pub const NO_METHOD: [u8; 2] = [VERSION, 0xFF];

const VERSION: u8 = 5;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const DOMAIN_NAME: u8 = 3;
const IPV6: u8 = 4;

/// The methods of authentication that a client offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// May go without; else only [`NO_METHOD`] can be answered.
    pub no_authentication: bool,
}

/// The outcome of a request (RFC 1928 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    Succeeded = 0,
    GeneralFailure = 1,
    /// What a denial is answered with.
    NotAllowed = 2,
    NetworkUnreachable = 3,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    TimeToLiveExpired = 6,
    CommandNotSupported = 7,
    AddressTypeNotSupported = 8,
}

/// Why a client is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSocks {
    #[error("only version 5 of SOCKS is spoken here")]
    Version,
    #[error("the greeting offers no method of authentication")]
    NoMethods,
    #[error("only CONNECT is offered, neither BIND nor UDP ASSOCIATE")]
    Command,
    #[error("the reserved byte of the request is not zero")]
    Reserved,
    #[error("the request has an unknown type of address")]
    AddressType,
    #[error(transparent)]
    Destination(#[from] BadDestination),
}

impl BadSocks {
    /// What a bad request is answered with before the connection is closed.
    pub fn reply(self) -> Reply {
        match self {
            Self::Command => Reply::CommandNotSupported,
            Self::AddressType => Reply::AddressTypeNotSupported,
            Self::Version | Self::NoMethods | Self::Reserved | Self::Destination(_) => {
                Reply::GeneralFailure
            }
        }
    }
}

/// The client's first message, at most 257 bytes.
pub fn parse_greeting(bytes: &[u8]) -> Result<Progress<Greeting>, BadSocks> {
    let [version, rest @ ..] = bytes else {
        return Ok(Progress::NeedMore);
    };
    if *version != VERSION {
        return Err(BadSocks::Version);
    }
    let [count, methods @ ..] = rest else {
        return Ok(Progress::NeedMore);
    };
    if *count == 0 {
        return Err(BadSocks::NoMethods);
    }
    let Some(methods) = methods.get(..usize::from(*count)) else {
        return Ok(Progress::NeedMore);
    };
    Ok(Progress::Done {
        value: Greeting {
            no_authentication: methods.contains(&0),
        },
        consumed: 2 + methods.len(),
    })
}

/// The request after the greeting, at most 262 bytes. A name may hold only
/// letters, digits, dots, hyphens and underscores: a zero byte in it once
/// made a filter and a resolver read two different names.
pub fn parse_request(bytes: &[u8]) -> Result<Progress<Destination>, BadSocks> {
    check_beginning(bytes)?;
    let [_, _, _, kind, rest @ ..] = bytes else {
        return Ok(Progress::NeedMore);
    };
    let (prefix, address_bytes) = match (*kind, rest) {
        (IPV4, _) => (0, 4),
        (IPV6, _) => (0, 16),
        (DOMAIN_NAME, [length, ..]) => (1, usize::from(*length)),
        (DOMAIN_NAME, []) => return Ok(Progress::NeedMore),
        _ => return Err(BadSocks::AddressType),
    };
    let end = prefix + address_bytes;
    let (Some(address), Some(port)) = (rest.get(prefix..end), rest.get(end..end + 2)) else {
        return Ok(Progress::NeedMore);
    };
    let port = port
        .iter()
        .fold(0, |port, byte| port << 8 | u16::from(*byte));
    Ok(Progress::Done {
        value: destination(*kind, address, port)?,
        consumed: 4 + end + 2,
    })
}

/// The answer to a request. The bound address is of no use to a client of
/// CONNECT and stays zero.
pub fn encode_reply(reply: Reply) -> [u8; 10] {
    [VERSION, reply as u8, 0, IPV4, 0, 0, 0, 0, 0, 0]
}

/// As early as the bytes are there, so that a client that speaks something
/// else is answered at once.
fn check_beginning(bytes: &[u8]) -> Result<(), BadSocks> {
    if bytes.first().is_some_and(|version| *version != VERSION) {
        return Err(BadSocks::Version);
    }
    if bytes.get(1).is_some_and(|command| *command != CONNECT) {
        return Err(BadSocks::Command);
    }
    if bytes.get(2).is_some_and(|reserved| *reserved != 0) {
        return Err(BadSocks::Reserved);
    }
    Ok(())
}

fn destination(kind: u8, address: &[u8], port: u16) -> Result<Destination, BadDestination> {
    if kind == DOMAIN_NAME {
        // Brackets and colons have a type of their own here.
        if address.contains(&b':') || address.contains(&b'[') {
            return Err(BadDestination::ForbiddenByte);
        }
        return Destination::new(RawHost::Text(address), port);
    }
    let address = if let Ok(bytes) = <[u8; 4]>::try_from(address) {
        IpAddr::from(bytes)
    } else {
        let bytes = <[u8; 16]>::try_from(address).map_err(|_| BadDestination::BadAddress)?;
        IpAddr::from(bytes)
    };
    Destination::new(RawHost::Address(address), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_name(name: &[u8], port: u16) -> Vec<u8> {
        let mut bytes = vec![5, 1, 0, 3, u8::try_from(name.len()).expect("short")];
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(&port.to_be_bytes());
        bytes
    }

    fn parsed(bytes: &[u8]) -> Result<String, BadSocks> {
        match parse_request(bytes)? {
            Progress::Done { value, consumed } => {
                assert_eq!(consumed, bytes.len());
                Ok(value.to_string())
            }
            Progress::NeedMore => panic!("it is complete"),
        }
    }

    #[test]
    fn greetings_are_understood_piece_by_piece() {
        let greeting = [5, 2, 2, 0, 99];
        for end in 0..4 {
            assert_eq!(parse_greeting(&greeting[..end]), Ok(Progress::NeedMore));
        }
        let value = Greeting {
            no_authentication: true,
        };
        assert_eq!(
            parse_greeting(&greeting),
            Ok(Progress::Done { value, consumed: 4 })
        );
        let value = Greeting {
            no_authentication: false,
        };
        assert_eq!(
            parse_greeting(&[5, 1, 2]),
            Ok(Progress::Done { value, consumed: 3 })
        );
        assert_eq!(parse_greeting(&[5, 0]), Err(BadSocks::NoMethods));
        assert_eq!(parse_greeting(&[4, 1]), Err(BadSocks::Version));
    }

    #[test]
    fn row_07_no_byte_in_a_name_ends_it_early() {
        assert_eq!(
            parsed(&by_name(b"Allowed.test", 443)).as_deref(),
            Ok("allowed.test:443")
        );
        assert_eq!(
            parsed(&by_name(b"a_b-c.test.", 1)).as_deref(),
            Ok("a_b-c.test:1")
        );
        for name in [
            &b"evil.test\0.allowed.test"[..],
            b"allowed.test\0",
            b"allowed.test\r\n",
            b"a b.test",
            b"a/b",
            b"a%2e.test",
            b"a@b.test",
            b"a:1",
            b"[::1]",
            b"::1",
            b"\xc3\xa4.test",
            b"",
        ] {
            let refusal = parsed(&by_name(name, 443)).expect_err("it must be refused");
            assert_eq!(refusal.reply(), Reply::GeneralFailure, "{name:?}");
        }
    }

    #[test]
    fn requests_are_understood_piece_by_piece() {
        let mut ipv6 = vec![5, 1, 0, 4];
        ipv6.extend_from_slice(&[
            0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 187,
        ]);
        for (request, destination) in [
            (vec![5, 1, 0, 1, 192, 0, 2, 7, 0, 22], "192.0.2.7:22"),
            (ipv6, "[2001:db8::1]:443"),
            (by_name(b"a.test", 8080), "a.test:8080"),
        ] {
            for end in 0..request.len() {
                assert_eq!(parse_request(&request[..end]), Ok(Progress::NeedMore));
            }
            assert_eq!(parsed(&request).as_deref(), Ok(destination));
        }
    }

    #[test]
    fn everything_but_connect_is_refused() {
        for command in [0, 2, 3, 9] {
            let refusal = parse_request(&[5, command]).expect_err("it must be refused");
            assert_eq!(refusal.reply(), Reply::CommandNotSupported);
        }
        assert_eq!(parse_request(&[5, 1, 1]), Err(BadSocks::Reserved));
        assert_eq!(parse_request(&[5, 1, 0, 2]), Err(BadSocks::AddressType));
        assert_eq!(parse_request(&[4, 1]), Err(BadSocks::Version));
        assert_eq!(
            parsed(&by_name(b"a.test", 0)),
            Err(BadDestination::BadPort.into())
        );
        assert_eq!(
            encode_reply(Reply::NotAllowed),
            [5, 2, 0, 1, 0, 0, 0, 0, 0, 0]
        );
    }
}
