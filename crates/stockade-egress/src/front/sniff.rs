//! What a connection speaks, told by its first bytes.
//!
//! A guess only: the parser that is chosen by it checks every byte again.

/// The protocols that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Socks5,
    /// A TLS record that carries a handshake.
    Tls,
    /// HTTP/1: the first byte can begin a method that is in use.
    Http,
    /// HTTP/2 without TLS and without an upgrade (RFC 9113 §3.3).
    Http2,
    Ssh,
    Other,
}

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// RFC 4253 §4.2.
const SSH_IDENTIFICATION: &[u8] = b"SSH-";

/// The protocol, or `None` while the bytes do not tell. At most 24 bytes are
/// looked at.
pub fn sniff(bytes: &[u8]) -> Option<Protocol> {
    match bytes.first()? {
        0x05 => Some(Protocol::Socks5),
        0x16 => Some(Protocol::Tls),
        b'P' => told_by(bytes, HTTP2_PREFACE, Protocol::Http2),
        b'S' => told_by(bytes, SSH_IDENTIFICATION, Protocol::Ssh),
        byte if byte.is_ascii_alphabetic() => Some(Protocol::Http),
        _ => Some(Protocol::Other),
    }
}

fn told_by(bytes: &[u8], beginning: &[u8], protocol: Protocol) -> Option<Protocol> {
    if bytes.starts_with(beginning) {
        Some(protocol)
    } else if beginning.starts_with(bytes) {
        None
    } else {
        Some(Protocol::Http)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_told_apart() {
        for (bytes, protocol) in [
            (&b""[..], None),
            (b"\x05", Some(Protocol::Socks5)),
            (b"\x04\x01", Some(Protocol::Other)),
            (b"\x16\x03\x01", Some(Protocol::Tls)),
            (b"GET / HTTP/1.1\r\n", Some(Protocol::Http)),
            (b"P", None),
            (b"PR", None),
            (b"POST", Some(Protocol::Http)),
            (b"PROPFIND", Some(Protocol::Http)),
            (HTTP2_PREFACE, Some(Protocol::Http2)),
            (&HTTP2_PREFACE[..10], None),
            (b"S", None),
            (b"SEARCH", Some(Protocol::Http)),
            (b"SSH-2.0-OpenSSH_9.9\r\n", Some(Protocol::Ssh)),
            (b"\0\0\0\x08\x04\xd2\x16\x2f", Some(Protocol::Other)),
            (b"\r\n", Some(Protocol::Other)),
        ] {
            assert_eq!(sniff(bytes), protocol, "{bytes:?}");
        }
    }
}
