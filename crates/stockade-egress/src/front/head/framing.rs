//! How long a body is (RFC 9112 §6.3), without the parts of that section that
//! allow a reader to guess.

use super::reply::ReplyFraming;
use super::{BODY_BYTES_MAX, BadHead, Framing, Headers, Version};

pub fn of_request(headers: &Headers, version: Version) -> Result<Framing, BadHead> {
    match announced(headers, version)? {
        (Some(length), false) => Ok(Framing::Length(length)),
        (None, true) => Ok(Framing::Chunked),
        (None, false) => Ok(Framing::None),
        (Some(_), true) => Err(BadHead::TwoFramings),
    }
}

pub fn of_reply(
    headers: &Headers,
    version: Version,
    status: u16,
    request_method: &str,
) -> Result<ReplyFraming, BadHead> {
    let framing = match announced(headers, version)? {
        (Some(length), false) => ReplyFraming::Length(length),
        (None, true) => ReplyFraming::Chunked,
        (None, false) => ReplyFraming::UntilClose,
        (Some(_), true) => return Err(BadHead::TwoFramings),
    };
    let tunnel = request_method == "CONNECT" && matches!(status, 200..=299);
    let without_body =
        matches!(status, 100..=199 | 204 | 304) || request_method == "HEAD" || tunnel;
    Ok(if without_body {
        ReplyFraming::None
    } else {
        framing
    })
}

/// The length, and whether the body is chunked.
fn announced(headers: &Headers, version: Version) -> Result<(Option<u64>, bool), BadHead> {
    let lengths: Vec<&str> = headers.values("content-length").collect();
    let length = match lengths[..] {
        [] => None,
        [one] => Some(parse_length(one)?),
        // Even equal ones: nobody sends them, and readers join them in
        // different ways.
        _ => return Err(BadHead::ContentLength),
    };
    let codings: Vec<&str> = headers.values("transfer-encoding").collect();
    let chunked = match codings[..] {
        [] => false,
        ["chunked"] if version == Version::Http11 => true,
        _ => return Err(BadHead::TransferEncoding),
    };
    Ok((length, chunked))
}

fn parse_length(digits: &str) -> Result<u64, BadHead> {
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let length: Option<u64> = digits.parse().ok().filter(|_| plain);
    length
        .filter(|length| *length <= BODY_BYTES_MAX)
        .ok_or(BadHead::ContentLength)
}
