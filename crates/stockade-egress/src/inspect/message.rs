//! The headers of requests and responses that pass: whom a request is for,
//! what belongs to one connection only, and what must not come back.

use http::header::{
    ALT_SVC, AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, COOKIE, HOST, HeaderName, HeaderValue, IF_RANGE, RANGE, SET_COOKIE, TE, TRAILER,
    UPGRADE,
};
use http::request::Parts;
use http::{HeaderMap, Method, Version};
use stockade_policy::network::Destination;
use stockade_policy::network::judge::Denial;

use crate::context::denial;
use crate::front::authority::Authority;
use crate::front::head::BadHead;
use crate::front::head::hop_by_hop::HopByHop;
use crate::front::path::{EncodedSlash, PathAndQuery};

/// Most fields in the head of a request; the same as the gate's for HTTP/1.1.
const FIELDS_MAX: usize = 100;

/// Fields that mean something only in a head (RFC 9110, section 6.5.1).
static NEVER_TRAILERS: [HeaderName; 9] = [
    HOST,
    AUTHORIZATION,
    COOKIE,
    SET_COOKIE,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    CONTENT_ENCODING,
    CONTENT_RANGE,
    TRAILER,
];

/// Headers by which frameworks let a client rename the method (row 37).
static METHOD_OVERRIDES: [HeaderName; 3] = [
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-method-override"),
];

/// Whether the two ends of a connection speak TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

/// What a request wants, in canonical form. The same values are judged and
/// sent.
pub struct Wanted {
    pub target: PathAndQuery,
    pub parameters: Vec<(String, String)>,
    /// Lower-case names; no hop-by-hop field.
    pub headers: Vec<(String, String)>,
    pub upgrade: Upgrade,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrade {
    None,
    WebSocket,
}

impl Scheme {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    pub fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl Wanted {
    /// Checks a request against the destination of its connection, takes away
    /// what belongs to the connection, and reads the rest.
    pub fn read(
        parts: &mut Parts,
        destination: &Destination,
        scheme: Scheme,
    ) -> Result<Self, Denial> {
        check_authority(parts, destination, scheme)?;
        if parts.method == Method::CONNECT {
            return Err(bad("CONNECT has no place inside a connection to a host"));
        }
        if parts.headers.len() > FIELDS_MAX {
            return Err(bad("the request has too many headers"));
        }
        let target = parts
            .uri
            .path_and_query()
            .map_or("/", |target| target.as_str());
        // Whether an encoded slash may be there is for the judge to say.
        let target = PathAndQuery::parse(target.as_bytes(), EncodedSlash::Kept)
            .map_err(|why| denial("path", why.to_string()))?;
        let upgrade = upgrade(parts);
        strip_hop_by_hop(&mut parts.headers).map_err(|why| bad(&why.to_string()))?;
        Ok(Self {
            parameters: target.parameters(),
            headers: listed(&parts.headers)?,
            target,
            upgrade,
        })
    }

    /// As it stands in the log: method and path.
    pub fn line(&self, method: &Method) -> String {
        format!("{method} {}", self.target.path())
    }
}

/// Removes the fields of one connection, before anything else looks at them
/// (row 35). `TE: trailers` stays, which gRPC demands.
fn strip_hop_by_hop(headers: &mut HeaderMap) -> Result<(), BadHead> {
    let options = headers.get_all(CONNECTION).iter();
    let options: Result<Vec<&str>, _> = options.map(HeaderValue::to_str).collect();
    let options = options.map_err(|_| BadHead::Connection)?;
    let hop = HopByHop::new(options.into_iter())?;
    let wants_trailers = headers
        .get_all(TE)
        .iter()
        .any(|value| value.as_bytes().eq_ignore_ascii_case(b"trailers"));
    let gone: Vec<HeaderName> = headers
        .keys()
        .filter(|name| hop.ends_here(name.as_str()))
        .cloned()
        .collect();
    for name in gone {
        headers.remove(name);
    }
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    Ok(())
}

/// Takes away what would rename the method after it was judged.
pub fn strip_method_override(headers: &mut HeaderMap) {
    for name in &METHOD_OVERRIDES {
        headers.remove(name);
    }
}

/// Takes away what asks for a part of a response: a secret that comes in two
/// parts is found in neither.
pub fn strip_ranges(headers: &mut HeaderMap) {
    headers.remove(RANGE);
    headers.remove(IF_RANGE);
}

/// Takes away what must not come back: fields of the connection, and the
/// advice to go on by QUIC, which has no way out. A response whose
/// `Connection` names a field that is for the client is refused: without
/// knowing what belongs to the connection, nothing of it can be passed on.
pub fn clean_response(headers: &mut HeaderMap) -> Result<(), Denial> {
    // It announces trailers, which are passed on.
    let trailer = headers.get(TRAILER).cloned();
    strip_hop_by_hop(headers).map_err(|why| {
        denial(
            "bad-response",
            format!("the origin's response cannot be passed on: {why}"),
        )
    })?;
    headers.remove(TE);
    headers.remove(ALT_SVC);
    if let Some(trailer) = trailer {
        headers.insert(TRAILER, trailer);
    }
    Ok(())
}

/// Trailers that may be sent on: none that means something only in a head.
pub fn clean_trailers(trailers: &mut HeaderMap) {
    for name in NEVER_TRAILERS.iter().chain(&METHOD_OVERRIDES) {
        trailers.remove(name);
    }
    if strip_hop_by_hop(trailers).is_err() {
        trailers.clear();
    }
}

/// The one `Content-Length`, if there is one.
pub fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// How a destination is called in `Host` and `:authority`.
pub fn authority_text(destination: &Destination, scheme: Scheme) -> String {
    match destination.port() == scheme.default_port() {
        true => destination.host().to_string(),
        false => destination.to_string(),
    }
}

/// Every name that the request gives to its host must be the destination.
fn check_authority(parts: &Parts, destination: &Destination, scheme: Scheme) -> Result<(), Denial> {
    let mut hosts = parts.headers.get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(bad("the request has two Host headers"));
    }
    if let Some(named) = parts.uri.scheme_str()
        && named != scheme.as_str()
    {
        return Err(bad(
            "the request names another scheme than its connection has",
        ));
    }
    let authority = parts.uri.authority().map(|authority| authority.as_str());
    if host.is_none() && authority.is_none() {
        return Err(bad("the request names no host"));
    }
    if host.is_none() && parts.version == Version::HTTP_11 {
        return Err(bad("the request has no Host header"));
    }
    let names = host
        .map(HeaderValue::as_bytes)
        .into_iter()
        .chain(authority.map(str::as_bytes));
    for name in names {
        let parsed = Authority::parse(name).map_err(|why| bad(&why.to_string()))?;
        if !parsed.leads_to(destination, scheme.default_port()) {
            return Err(denial(
                "misdirected",
                format!(
                    "the request is for another host than this connection, which leads to {destination}"
                ),
            ));
        }
    }
    Ok(())
}

fn upgrade(parts: &Parts) -> Upgrade {
    let names = |header: HeaderName, wanted: &str| {
        parts
            .headers
            .get_all(header)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|token| token.trim().eq_ignore_ascii_case(wanted))
    };
    let asked = parts.version == Version::HTTP_11
        && names(CONNECTION, "upgrade")
        && names(UPGRADE, "websocket");
    match asked {
        true => Upgrade::WebSocket,
        false => Upgrade::None,
    }
}

fn listed(headers: &HeaderMap) -> Result<Vec<(String, String)>, Denial> {
    headers
        .iter()
        .map(|(name, value)| {
            let value = value
                .to_str()
                .map_err(|_| bad("a header has bytes that are not printable ASCII"))?;
            Ok((name.as_str().to_owned(), value.to_owned()))
        })
        .collect()
}

fn bad(reason: &str) -> Denial {
    denial("bad-request", reason)
}
