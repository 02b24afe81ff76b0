//! The head of a reply, for the few that are not read by an HTTP library:
//! those of an organisation's proxy to CONNECT, and in tests.

use super::hop_by_hop::HopByHop;
use super::{BadHead, Headers, Upgrade, Version, framing, parse_version, split};

/// The head of one reply. After a 1xx other than 101 another one follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyHead {
    pub version: Version,
    /// 100 to 599.
    pub status: u16,
    pub headers: Headers,
    pub framing: ReplyFraming,
    /// Of a reply with status 101.
    pub upgrade: Option<Upgrade>,
    pub hop_by_hop: HopByHop,
}

/// How long the body of a reply is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyFraming {
    None,
    Length(u64),
    Chunked,
    /// As long as the connection is open.
    UntilClose,
}

/// Reads exactly one head, as [`super::HeadReader`] measured it.
pub fn parse_reply(head: &[u8], request_method: &str) -> Result<ReplyHead, BadHead> {
    let (first, headers) = split(head)?;
    let (version, rest) = first.split_at_checked(8).ok_or(BadHead::StatusLine)?;
    let version = parse_version(version)?;
    let status = match rest {
        // The space before a missing reason is often left out.
        [b' ', status @ ..] if status.len() == 3 => status,
        [b' ', a, b, c, b' ', ..] => &[*a, *b, *c],
        _ => return Err(BadHead::StatusLine),
    };
    if !status.iter().all(u8::is_ascii_digit) || !matches!(status[0], b'1'..=b'5') {
        return Err(BadHead::StatusLine);
    }
    let status = status
        .iter()
        .fold(0, |status, digit| status * 10 + u16::from(digit - b'0'));
    let hop_by_hop = HopByHop::new(headers.values("connection"))?;
    Ok(ReplyHead {
        version,
        status,
        framing: framing::of_reply(&headers, version, status, request_method)?,
        upgrade: match status {
            101 => super::asked_upgrade(&headers, version, &hop_by_hop)?,
            _ => None,
        },
        headers,
        hop_by_hop,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(head: &str, method: &str) -> Result<ReplyHead, BadHead> {
        parse_reply(head.as_bytes(), method)
    }

    #[test]
    fn the_body_of_a_reply_is_framed_as_the_standard_says() {
        for (head, method, framing) in [
            ("HTTP/1.1 200 OK\r\n\r\n", "GET", ReplyFraming::UntilClose),
            (
                "HTTP/1.1 200\r\nContent-Length: 7\r\n\r\n",
                "GET",
                ReplyFraming::Length(7),
            ),
            (
                "HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n",
                "GET",
                ReplyFraming::Chunked,
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n",
                "HEAD",
                ReplyFraming::None,
            ),
            (
                "HTTP/1.0 200 Connection established\r\n\r\n",
                "CONNECT",
                ReplyFraming::None,
            ),
            (
                "HTTP/1.1 403 No\r\nContent-Length: 3\r\n\r\n",
                "CONNECT",
                ReplyFraming::Length(3),
            ),
            (
                "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n",
                "GET",
                ReplyFraming::None,
            ),
            ("HTTP/1.1 100 Continue\r\n\r\n", "POST", ReplyFraming::None),
        ] {
            assert_eq!(
                reply(head, method).map(|head| head.framing),
                Ok(framing),
                "{head:?}"
            );
        }
        let switch = "HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
        let upgrade = reply(switch, "GET").map(|head| head.upgrade);
        assert_eq!(upgrade, Ok(Some(Upgrade::WebSocket)));
    }

    #[test]
    fn row_32_a_reply_with_two_lengths_is_refused() {
        for (head, refusal) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
                BadHead::ContentLength,
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                BadHead::TwoFramings,
            ),
            (
                "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                BadHead::TransferEncoding,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
                BadHead::TransferEncoding,
            ),
            ("HTTP/1.1 2000 OK\r\n\r\n", BadHead::StatusLine),
            ("HTTP/1.1 099 OK\r\n\r\n", BadHead::StatusLine),
            ("HTTP/1.1 600 OK\r\n\r\n", BadHead::StatusLine),
            ("HTTP/1.1  200 OK\r\n\r\n", BadHead::StatusLine),
            ("HTTP/1.1\r\n\r\n", BadHead::StatusLine),
            ("HTTP/2.0 200 OK\r\n\r\n", BadHead::Version),
            ("HTTP/1.1 200 OK\n\r\n", BadHead::LineEnd),
        ] {
            assert_eq!(reply(head, "GET"), Err(refusal), "{head:?}");
        }
    }
}
