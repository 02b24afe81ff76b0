//! Header and trailer fields.

use super::BadHead;

/// Header fields in the order in which they came: lower-case name, and value
/// without the white space around it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// In the form in which requests are judged.
    pub fn as_slice(&self) -> &[(String, String)] {
        &self.0
    }

    /// All values of one field; `name` is lower case.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let fields = self.0.iter().filter(move |(field, _)| field == name);
        fields.map(|(_, value)| value.as_str())
    }
}

/// The lines up to and with the empty one. That they end in CR LF and hold
/// nothing but visible ASCII, spaces and tabs is known already.
pub(in crate::front) fn parse_fields(lines: &[u8]) -> Result<Headers, BadHead> {
    let mut fields = Vec::new();
    let mut rest = lines;
    while let Some(length) = memchr::memchr(b'\r', rest) {
        let line = &rest[..length];
        rest = rest.get(length + 2..).unwrap_or_default();
        if line.is_empty() {
            break;
        }
        fields.push(parse_field(line)?);
    }
    Ok(Headers(fields))
}

/// Trailers come after a request was judged, so what it was judged by, where
/// it goes and how long it is must not stand there (RFC 9110 §6.5.1).
pub(in crate::front) fn check_trailers(trailers: &Headers) -> Result<(), BadHead> {
    const HEAD_ONLY: &[&str] = &[
        "authorization",
        "cache-control",
        "connection",
        "cookie",
        "expect",
        "host",
        "keep-alive",
        "max-forwards",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    const HEAD_ONLY_PREFIXES: &[&str] = &[
        "content-",
        "if-",
        "proxy-",
        "sec-",
        "x-forwarded-",
        "x-http-",
    ];
    let bad = trailers.as_slice().iter().any(|(name, _)| {
        HEAD_ONLY.contains(&name.as_str())
            || HEAD_ONLY_PREFIXES
                .iter()
                .any(|prefix| name.starts_with(prefix))
    });
    if bad { Err(BadHead::Trailer) } else { Ok(()) }
}

/// Whether it is a token of RFC 9110 §5.6.2.
pub(super) fn is_token(text: &[u8]) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(allowed)
}

/// As text; the scan has let only ASCII pass.
pub(super) fn text(bytes: &[u8]) -> Result<String, BadHead> {
    let text = str::from_utf8(bytes).map_err(|_| BadHead::ForbiddenByte)?;
    Ok(text.to_owned())
}

fn parse_field(line: &[u8]) -> Result<(String, String), BadHead> {
    if matches!(line.first(), Some(b' ' | b'\t')) {
        return Err(BadHead::FoldedLine);
    }
    let colon = memchr::memchr(b':', line).ok_or(BadHead::HeaderName)?;
    let (name, value) = line.split_at(colon);
    // A space before the colon is no token byte either.
    if !is_token(name) {
        return Err(BadHead::HeaderName);
    }
    let value = text(&value[1..])?;
    let value = value.trim_matches([' ', '\t']).to_owned();
    Ok((text(name)?.to_ascii_lowercase(), value))
}
