//! The four forms of a request's target (RFC 9112 §3.2).

use super::{BadHead, Target, fields};
use crate::front::authority::{Authority, connect_target};

pub fn parse(method: &str, target: &[u8]) -> Result<Target, BadHead> {
    if method == "CONNECT" {
        return Ok(Target::Authority(connect_target(target)?));
    }
    match target {
        b"*" if method == "OPTIONS" => Ok(Target::Asterisk),
        [b'/', ..] => {
            check_bytes(target)?;
            Ok(Target::Origin(fields::text(target)?))
        }
        _ => parse_absolute(target),
    }
}

fn parse_absolute(target: &[u8]) -> Result<Target, BadHead> {
    let mark = target.windows(3).position(|bytes| bytes == b"://");
    let (scheme, rest) = target.split_at(mark.ok_or(BadHead::TargetForm)?);
    if !scheme.eq_ignore_ascii_case(b"http") {
        return Err(BadHead::Scheme);
    }
    let rest = &rest[3..];
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?'));
    let (authority, path) = rest.split_at(end.unwrap_or(rest.len()));
    check_bytes(path)?;
    Ok(Target::Absolute {
        authority: Authority::parse(authority)?,
        path: fields::text(path)?,
    })
}

/// A fragment is never sent, and the other bytes are ones that some parsers
/// take as they are and others refuse or change.
fn check_bytes(path: &[u8]) -> Result<(), BadHead> {
    let query = path.iter().position(|byte| *byte == b'?');
    let (path, query) = path.split_at(query.unwrap_or(path.len()));
    let bad_in_path = |byte: &u8| b"#<>`\\".contains(byte) || !byte.is_ascii_graphic();
    let bad_in_query = |byte: &u8| b"#<>\"".contains(byte) || !byte.is_ascii_graphic();
    if path.iter().any(bad_in_path) || query.iter().any(bad_in_query) {
        return Err(BadHead::TargetByte);
    }
    Ok(())
}
