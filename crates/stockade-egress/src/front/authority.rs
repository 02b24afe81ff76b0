//! `host:port` as it stands in CONNECT, in `Host` and in an absolute URI.
//!
//! Split byte by byte: no user information, no percent signs, no repairs. The
//! host itself is read by the one constructor of [`Destination`].

use stockade_policy::network::destination::RawHost;
use stockade_policy::network::{BadDestination, Destination, Host};

/// A host with the port that was written behind it, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    host: Host,
    port: Option<u16>,
}

/// Why bytes are no authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAuthority {
    #[error(transparent)]
    Destination(#[from] BadDestination),
    #[error("the port must be written, as in example.test:443")]
    MissingPort,
    #[error("the port must be from 1 to 65535, in plain digits")]
    BadPort,
    #[error("an IPv6 address must stand in brackets, as in [2001:db8::1]:443")]
    Brackets,
}

impl Authority {
    /// The authority of a `Host` field or of an absolute URI.
    pub fn parse(text: &[u8]) -> Result<Self, BadAuthority> {
        let (host, port) = split(text)?;
        let port = port.map(parse_port).transpose()?;
        let destination = Destination::new(RawHost::Text(host), port.unwrap_or(u16::MAX))?;
        Ok(Self {
            host: destination.host().clone(),
            port,
        })
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The port, where one was written.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Where it leads when no port means `default_port`. Fails only for a
    /// default of 0.
    pub fn destination(&self, default_port: u16) -> Result<Destination, BadDestination> {
        let port = self.port.unwrap_or(default_port);
        match &self.host {
            Host::Name(name) => Destination::new(RawHost::Text(name.as_str().as_bytes()), port),
            Host::Address(address) => Destination::new(RawHost::Address(*address), port),
        }
    }

    /// Whether it leads to `destination` when no port means `default_port`.
    pub fn leads_to(&self, destination: &Destination, default_port: u16) -> bool {
        self.host == *destination.host() && self.port.unwrap_or(default_port) == destination.port()
    }
}

/// The target of CONNECT, whose port is never left out (RFC 9110 §9.3.6).
pub fn connect_target(text: &[u8]) -> Result<Destination, BadAuthority> {
    let (host, port) = split(text)?;
    let port = parse_port(port.ok_or(BadAuthority::MissingPort)?)?;
    Ok(Destination::new(RawHost::Text(host), port)?)
}

fn split(text: &[u8]) -> Result<(&[u8], Option<&[u8]>), BadAuthority> {
    let host_bytes = match text {
        [b'[', ..] => {
            let close = text.iter().position(|byte| *byte == b']');
            close.ok_or(BadAuthority::Brackets)? + 1
        }
        _ => text
            .iter()
            .position(|byte| *byte == b':')
            .unwrap_or(text.len()),
    };
    let (host, rest) = text.split_at(host_bytes);
    match rest {
        [] => Ok((host, None)),
        // Without brackets nothing tells the last group of an address from a
        // port, so a second colon is refused.
        [b':', port @ ..] if port.contains(&b':') => Err(BadAuthority::Brackets),
        [b':', port @ ..] => Ok((host, Some(port))),
        _ => Err(BadAuthority::Brackets),
    }
}

fn parse_port(digits: &[u8]) -> Result<u16, BadAuthority> {
    let plain = matches!(digits, [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit));
    let text = str::from_utf8(digits).map_err(|_| BadAuthority::BadPort)?;
    text.parse()
        .ok()
        .filter(|_| plain)
        .ok_or(BadAuthority::BadPort)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(text: &str) -> Result<String, BadAuthority> {
        connect_target(text.as_bytes()).map(|destination| destination.to_string())
    }

    #[test]
    fn row_12_connect_wants_a_port_in_plain_digits() {
        assert_eq!(connect("a.test:443").as_deref(), Ok("a.test:443"));
        assert_eq!(connect("A.test.:65535").as_deref(), Ok("a.test:65535"));
        assert_eq!(connect("a.test"), Err(BadAuthority::MissingPort));
        for port in [
            "",
            "0",
            "00",
            "0443",
            "+443",
            "-1",
            " 443",
            "443 ",
            "4_4",
            "65536",
            "99999999999",
            "0x1bb",
            "https",
            "443\0",
        ] {
            let text = format!("a.test:{port}");
            assert_eq!(connect(&text), Err(BadAuthority::BadPort), "{text:?}");
        }
    }

    #[test]
    fn addresses_of_both_families_are_understood() {
        assert_eq!(
            connect("[2001:DB8::1]:8443").as_deref(),
            Ok("[2001:db8::1]:8443")
        );
        assert_eq!(connect("192.0.2.7:22").as_deref(), Ok("192.0.2.7:22"));
        for text in [
            "2001:db8::1:443",
            "[2001:db8::1",
            "[2001:db8::1]443",
            "[::1]:443:1",
            "[::1]]:443",
            "[a.test]:443",
            "[::1%25eth0]:443",
            "[]:443",
            ":443",
        ] {
            assert!(
                connect(text).is_err(),
                "{text:?} became {:?}",
                connect(text)
            );
        }
    }

    #[test]
    fn row_11_user_information_and_other_tricks_are_refused() {
        for text in [
            "user@a.test:443",
            "user:secret@a.test:443",
            "a.test@evil.test:443",
            "a.test\\.evil.test:443",
            "a.test%2f.evil.test:443",
            "a.test#.evil.test:443",
            "a.test?:443",
            "a.test/:443",
            "http://a.test:443",
            "a.test:443/",
            "a.test:443#x",
            "a.test\t:443",
            "ä.test:443",
        ] {
            assert!(
                connect(text).is_err(),
                "{text:?} became {:?}",
                connect(text)
            );
        }
    }

    #[test]
    fn row_15_an_address_with_a_zone_is_refused() {
        for text in [
            "[fe80::1%eth0]:443",
            "[fe80::1%25eth0]:443",
            "[fe80::1%2]:443",
            "fe80::1%1:443",
        ] {
            assert!(connect(text).is_err(), "{text}");
        }
        assert_eq!(
            connect("[2001:db8::1]:443").as_deref(),
            Ok("[2001:db8::1]:443")
        );
    }

    #[test]
    fn a_host_field_may_leave_the_port_out() {
        let authority = Authority::parse(b"A.test").expect("it is one");
        assert_eq!(authority.port(), None);
        let destination = authority.destination(80).expect("80 is a port");
        assert_eq!(destination.to_string(), "a.test:80");
        assert!(authority.leads_to(&destination, 80));
        assert!(!authority.leads_to(&destination, 443));
        let authority = Authority::parse(b"127.1:8080").expect("it is one");
        assert_eq!(
            authority.destination(80).map(|d| d.to_string()).as_deref(),
            Ok("127.0.0.1:8080")
        );
        assert_eq!(Authority::parse(b"a.test:"), Err(BadAuthority::BadPort));
        assert_eq!(Authority::parse(b""), Err(BadDestination::Empty.into()));
    }
}
