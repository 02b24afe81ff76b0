//! The head of an HTTP/1 request, read more strictly than any server reads it.
//!
//! What two readers on the way could understand differently (where a head
//! ends, how long its body is, which host it is for) is refused, because
//! request smuggling lives on such differences. RFC 9112.

mod fields;
mod framing;
pub mod hop_by_hop;
pub mod reply;
mod scan;
mod target;

pub use fields::Headers;
pub(super) use fields::{check_trailers, parse_fields};
pub use scan::HeadReader;
pub(super) use scan::Section;

use super::authority::{Authority, BadAuthority};
use hop_by_hop::HopByHop;
use stockade_policy::network::Destination;

/// Longest head with its request line and final empty line.
pub const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Most header fields of a head.
pub const HEADERS_MAX: usize = 100;
/// Longest method. The longest registered one has 16 bytes.
pub const METHOD_BYTES_MAX: usize = 32;
/// Longest body that can be announced: what every reader can count, JavaScript
/// included.
pub const BODY_BYTES_MAX: u64 = 1 << 53;

/// The head of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// As it came; methods are case-sensitive.
    pub method: String,
    pub target: Target,
    pub version: Version,
    /// In the order in which they came.
    pub headers: Headers,
    /// Of the `Host` field; `None` only in HTTP/1.0. Where the target names a
    /// host too, both are the same.
    pub host: Option<Authority>,
    pub framing: Framing,
    /// What the client wants to speak next; `Connection` names it too.
    pub upgrade: Option<Upgrade>,
    /// The client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
    pub hop_by_hop: HopByHop,
}

/// What a request is for (RFC 9112 §3.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Path and query as they came; begins with `/`.
    Origin(String),
    /// To a proxy, `http` only. The path may be empty, or begin with `?`.
    Absolute { authority: Authority, path: String },
    /// Of CONNECT.
    Authority(Destination),
    /// Of OPTIONS, about the server as a whole.
    Asterisk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Http10,
    Http11,
}

/// How long the body of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    None,
    Length(u64),
    Chunked,
}

/// What a connection may become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upgrade {
    WebSocket,
    /// Lower case. Never answered with 101, so the client goes on in HTTP/1.
    Other(String),
}

/// Why a head, or the framing of a body, is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHead {
    #[error("the head is longer than {HEAD_BYTES_MAX} bytes")]
    TooLong,
    #[error("the head has more than {HEADERS_MAX} header fields")]
    TooManyHeaders,
    #[error("a line does not end in CR LF")]
    LineEnd,
    #[error("the head begins with an empty line")]
    EmptyFirstLine,
    #[error("the head has a control character or a byte that is not ASCII")]
    ForbiddenByte,
    #[error("the first line is not method, target and version with single spaces between them")]
    RequestLine,
    #[error("the first line is not version, status and reason")]
    StatusLine,
    #[error("the method is no token of at most {METHOD_BYTES_MAX} bytes")]
    Method,
    #[error("only HTTP/1.1 and HTTP/1.0 are spoken here")]
    Version,
    #[error("the target has a form that this request must not have")]
    TargetForm,
    #[error("the target has a fragment, or a byte that must be percent-encoded")]
    TargetByte,
    #[error("only http:// may stand in a request to a proxy; use CONNECT for https://")]
    Scheme,
    #[error(transparent)]
    Authority(#[from] BadAuthority),
    #[error("a header field has no name, or one with a space or another forbidden byte")]
    HeaderName,
    #[error("a header field goes on in a second line")]
    FoldedLine,
    #[error("there must be exactly one Host field")]
    HostCount,
    #[error("the Host field names another host than the target")]
    HostMismatch,
    #[error("Content-Length must be there once, in plain digits, at most {BODY_BYTES_MAX}")]
    ContentLength,
    #[error("Transfer-Encoding must be there once and be `chunked`, and only in HTTP/1.1")]
    TransferEncoding,
    #[error("Content-Length and Transfer-Encoding exclude each other")]
    TwoFramings,
    #[error("the request must not have a body")]
    UnexpectedBody,
    #[error("a WebSocket begins with one Upgrade field in a GET of HTTP/1.1")]
    Upgrade,
    #[error("only 100-continue can be expected")]
    Expect,
    #[error("Connection names a field that no hop may take away")]
    Connection,
    #[error("a chunk has a bad size, an extension, or no line end behind it")]
    Chunk,
    #[error("a trailer field is one that must stand in the head")]
    Trailer,
    #[error("too many bytes were sent before the change of protocol was answered")]
    EarlyBytes,
}

impl BadHead {
    /// The status that tells the client best what is wrong.
    pub fn status(self) -> u16 {
        match self {
            Self::TooLong | Self::TooManyHeaders => 431,
            Self::Version => 505,
            Self::Expect => 417,
            _ => 400,
        }
    }
}

/// Reads exactly one head, as [`HeadReader`] measured it.
pub fn parse_request(head: &[u8]) -> Result<Head, BadHead> {
    let (first, headers) = split(head)?;
    let parts: Vec<&[u8]> = first.split(|byte| *byte == b' ').collect();
    let [method, target, version] = parts[..] else {
        return Err(BadHead::RequestLine);
    };
    if method.len() > METHOD_BYTES_MAX || !fields::is_token(method) {
        return Err(BadHead::Method);
    }
    let method = fields::text(method)?;
    let version = parse_version(version)?;
    let target = target::parse(&method, target)?;
    let host = checked_host(&headers, version, &target)?;
    let framing = framing::of_request(&headers, version)?;
    if matches!(target, Target::Authority(_))
        && !matches!(framing, Framing::None | Framing::Length(0))
    {
        return Err(BadHead::UnexpectedBody);
    }
    let hop_by_hop = HopByHop::new(headers.values("connection"))?;
    let upgrade = asked_upgrade(&headers, version, &hop_by_hop)?;
    let plain_get = method == "GET" && framing == Framing::None;
    if upgrade == Some(Upgrade::WebSocket) && !plain_get {
        return Err(BadHead::Upgrade);
    }
    Ok(Head {
        expects_continue: expects_continue(&headers, version)?,
        method,
        target,
        version,
        headers,
        host,
        framing,
        upgrade,
        hop_by_hop,
    })
}

/// The first line and the header fields.
fn split(head: &[u8]) -> Result<(&[u8], Headers), BadHead> {
    // Whoever calls, the lines are known to be good.
    if HeadReader::new(Section::Head).read(head)? != Some(head.len()) {
        return Err(BadHead::LineEnd);
    }
    let first_bytes = memchr::memchr(b'\r', head).ok_or(BadHead::LineEnd)?;
    let (first, rest) = head.split_at(first_bytes);
    Ok((first, parse_fields(rest.get(2..).unwrap_or_default())?))
}

fn parse_version(text: &[u8]) -> Result<Version, BadHead> {
    match text {
        b"HTTP/1.1" => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        _ => Err(BadHead::Version),
    }
}

/// The target's host wins (RFC 9112 §3.2.2), and since no honest client names
/// another one beside it, a different `Host` is refused.
fn checked_host(
    headers: &Headers,
    version: Version,
    target: &Target,
) -> Result<Option<Authority>, BadHead> {
    let mut values = headers.values("host");
    let host = match (values.next(), values.next()) {
        (Some(host), None) => Authority::parse(host.as_bytes())?,
        (None, _) if version == Version::Http10 => return Ok(None),
        _ => return Err(BadHead::HostCount),
    };
    let same = match target {
        Target::Origin(_) | Target::Asterisk => true,
        Target::Absolute { authority, .. } => {
            let port = |authority: &Authority| authority.port().unwrap_or(80);
            host.host() == authority.host() && port(&host) == port(authority)
        }
        Target::Authority(destination) => host.leads_to(destination, destination.port()),
    };
    if same {
        Ok(Some(host))
    } else {
        Err(BadHead::HostMismatch)
    }
}

fn asked_upgrade(
    headers: &Headers,
    version: Version,
    hop_by_hop: &HopByHop,
) -> Result<Option<Upgrade>, BadHead> {
    if !hop_by_hop.names("upgrade") || version == Version::Http10 {
        return Ok(None);
    }
    let values: Vec<&str> = headers.values("upgrade").collect();
    let websocket = |value: &str| value.eq_ignore_ascii_case("websocket");
    match values[..] {
        [] => Ok(None),
        [value] if websocket(value) => Ok(Some(Upgrade::WebSocket)),
        // A list leaves open what a 101 would mean.
        _ if values
            .iter()
            .any(|value| value.split(',').any(|one| websocket(one.trim()))) =>
        {
            Err(BadHead::Upgrade)
        }
        _ => Ok(Some(Upgrade::Other(values.join(", ").to_ascii_lowercase()))),
    }
}

fn expects_continue(headers: &Headers, version: Version) -> Result<bool, BadHead> {
    let values: Vec<&str> = headers.values("expect").collect();
    match values[..] {
        [] => Ok(false),
        [value] if value.eq_ignore_ascii_case("100-continue") => Ok(version == Version::Http11),
        _ => Err(BadHead::Expect),
    }
}

#[cfg(test)]
mod tests;
