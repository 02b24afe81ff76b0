//! What a client sees when it is refused: a status, a header and a body that
//! programs can read, and for gRPC the status of its own protocol.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode, Version};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use stockade_policy::network::judge::Denial;

use super::body::ResponseBody;
use crate::refusal;

/// Carries the code of the denial.
pub const DENIED_HEADER: HeaderName = HeaderName::from_static("x-sandbox-denied");

/// gRPC's number for "permission denied".
const GRPC_PERMISSION_DENIED: HeaderValue = HeaderValue::from_static("7");

/// What a gRPC message escapes: everything but printable ASCII, and `%`.
const GRPC_MESSAGE: &AsciiSet = &CONTROLS.add(b'%');

/// In which protocol a refusal is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Http,
    Grpc,
}

impl Dialect {
    /// Of a request with these headers.
    pub fn of(version: Version, headers: &HeaderMap) -> Self {
        let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        let grpc = kind.is_some_and(|kind| kind.starts_with(b"application/grpc"));
        match grpc && version == Version::HTTP_2 {
            true => Self::Grpc,
            false => Self::Http,
        }
    }
}

/// The answer that tells a denial. `host` is the destination, in print.
pub fn response(
    denial: &Denial,
    host: &str,
    request_id: &str,
    dialect: Dialect,
) -> Response<ResponseBody> {
    match dialect {
        Dialect::Http => in_http(denial, host, request_id),
        Dialect::Grpc => in_grpc(denial, request_id),
    }
}

fn in_http(denial: &Denial, host: &str, request_id: &str) -> Response<ResponseBody> {
    let text = refusal::body(denial, host, request_id) + "\n";
    let mut response = Response::new(ResponseBody::whole(Bytes::from(text)));
    let status = StatusCode::from_u16(refusal::status(denial.code).0);
    *response.status_mut() = status.unwrap_or(StatusCode::FORBIDDEN);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(DENIED_HEADER, HeaderValue::from_static(denial.code));
    response
}

/// An answer of git's own protocol, from which git prints why.
pub fn in_git(denial: &Denial, kind: &str, body: Vec<u8>) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::whole(Bytes::from(body)));
    let headers = response.headers_mut();
    if let Ok(kind) = HeaderValue::from_str(kind) {
        headers.insert(CONTENT_TYPE, kind);
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(DENIED_HEADER, HeaderValue::from_static(denial.code));
    response
}

/// A "Trailers-Only" response of the gRPC protocol.
fn in_grpc(denial: &Denial, request_id: &str) -> Response<ResponseBody> {
    let message = format!("{}: {} ({request_id})", denial.code, denial.reason);
    let message = utf8_percent_encode(&message, GRPC_MESSAGE).to_string();
    let message = HeaderValue::from_str(&message);
    let mut response = Response::new(ResponseBody::empty());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", GRPC_PERMISSION_DENIED);
    headers.insert(
        "grpc-message",
        message.unwrap_or_else(|_| HeaderValue::from_static(denial.code)),
    );
    headers.insert(DENIED_HEADER, HeaderValue::from_static(denial.code));
    response
}
