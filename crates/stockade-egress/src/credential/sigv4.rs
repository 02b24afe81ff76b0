//! AWS Signature Version 4: a request is signed anew with the keys that are
//! outside.
//!
//! Written here with `ring`, because the signing crate of the AWS SDK brings
//! more code than this whole process; held against AWS's published examples.

use std::fmt::Write;

use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str};
use ring::{digest, hmac};
use serde::Deserialize;
use stockade_policy::network::Destination;
use stockade_policy::network::rules::Mode;
use zeroize::Zeroizing;

use super::place::{foreign, query_decoded};
use super::{Denial, Wanted, denied};
use crate::secret::SecretText;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

pub(super) const SECURITY_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");
const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const PAYLOAD: HeaderName = HeaderName::from_static("x-amz-content-sha256");

const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// An access key.
#[derive(Clone)]
pub(super) struct Keys {
    id: String,
    secret: SecretText,
    token: Option<SecretText>,
}

/// As `credential_process` of the AWS tools prints it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ProcessOutput {
    access_key_id: String,
    secret_access_key: SecretText,
    session_token: Option<SecretText>,
}

impl Keys {
    /// `ID:SECRET`, `ID:SECRET:TOKEN`, or the JSON of a `credential_process`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let bad = || "an AWS key is written ID:SECRET or ID:SECRET:TOKEN".to_owned();
        if text.starts_with('{') {
            let output: ProcessOutput = serde_json::from_str(text).map_err(|_| bad())?;
            return Ok(Self {
                id: output.access_key_id,
                secret: output.secret_access_key,
                token: output.session_token,
            });
        }
        let mut parts = text.split(':');
        let (Some(id), Some(secret), token, None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(bad());
        };
        if id.is_empty() || secret.is_empty() || !id.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(bad());
        }
        Ok(Self {
            id: id.to_owned(),
            secret: SecretText::new(secret.to_owned()),
            token: token.map(|token| SecretText::new(token.to_owned())),
        })
    }

    /// What must not come back in a response; the id is no secret.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &SecretText> {
        std::iter::once(&self.secret).chain(&self.token)
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }
}

/// Where and for what a signature is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scope {
    pub region: String,
    pub service: String,
}

/// A request that waits for its body to be signed.
pub(super) struct Unsigned {
    keys: Keys,
    scope: Scope,
    method: String,
    path: String,
    query: Option<String>,
    host: String,
    now_unix: u64,
}

/// The parts of a request as they are signed.
pub(super) struct ToSign<'a> {
    pub method: &'a str,
    /// As it is sent; for every service but `s3` it is encoded once more.
    pub path: &'a str,
    pub query: Option<&'a str>,
    /// Names in lower case, sorted.
    pub headers: Vec<(String, String)>,
    /// Hexadecimal digest of the body, or what stands for it.
    pub payload: String,
}

/// What of a request the signature is about.
pub(super) struct Signable<'a> {
    pub destination: &'a Destination,
    pub default_port: u16,
    pub method: &'a str,
    pub headers: &'a mut HeaderMap,
    pub path: &'a str,
    pub query: Option<&'a str>,
    pub now_unix: u64,
}

/// Takes the signature that the client made with its placeholder off a
/// request. What comes back signs it once the body is known.
pub(super) fn prepare(
    wanted: &Wanted,
    bound: (Option<&str>, Option<&str>),
    request: &mut Signable<'_>,
) -> Result<Option<Unsigned>, Denial> {
    let sent = sent(wanted, request.headers)?;
    if wanted.mode == Mode::Replace && sent.is_none() {
        return match request.headers.contains_key(SECURITY_TOKEN) {
            true => Err(foreign(wanted.mode)),
            false => Ok(None),
        };
    }
    let part = |bound: Option<&str>, sent: Option<&String>, what: &str| match (bound, sent) {
        (Some(bound), Some(sent)) if bound != sent => Err(denied(
            "bad-request",
            format!("the request is signed for another {what} than its credential is bound to"),
        )),
        (Some(bound), _) => Ok(bound.to_owned()),
        (None, Some(sent)) => Ok(sent.clone()),
        (None, None) => Err(denied(
            "bad-request",
            format!("the credential must name a {what}, as requests are not signed inside"),
        )),
    };
    let scope = Scope {
        region: part(bound.0, sent.as_ref().map(|scope| &scope.region), "region")?,
        service: part(
            bound.1,
            sent.as_ref().map(|scope| &scope.service),
            "service",
        )?,
    };
    let keys = Keys::parse(wanted.secret.reveal()).map_err(|reason| {
        denied(
            "bad-request",
            format!("the credential is damaged: {reason}"),
        )
    })?;
    for name in [AUTHORIZATION, SECURITY_TOKEN] {
        request.headers.remove(name);
    }
    let host = match request.destination.port() == request.default_port {
        true => request.destination.host().to_string(),
        false => request.destination.to_string(),
    };
    Ok(Some(Unsigned {
        keys,
        scope,
        method: request.method.to_owned(),
        path: request.path.to_owned(),
        query: request.query.map(str::to_owned),
        host,
        now_unix: request.now_unix,
    }))
}

impl Unsigned {
    /// Signs at once where the client says what its body is, or the service
    /// does not need to know; otherwise gives itself back and waits for the
    /// body.
    pub(super) fn sign_early(self, headers: &mut HeaderMap) -> Result<Option<Self>, Denial> {
        let payload = match headers.get(PAYLOAD).map(HeaderValue::to_str) {
            Some(Ok(named)) if is_digest(named) => named.to_owned(),
            Some(Ok(named @ (UNSIGNED | "STREAMING-UNSIGNED-PAYLOAD-TRAILER"))) => named.to_owned(),
            Some(_) => {
                return Err(denied(
                    "bad-request",
                    "the body is signed piece by piece with a key that does not exist; let the \
                     client send it unsigned (for S3: without `aws-chunked` signing)"
                        .to_owned(),
                ));
            }
            None if self.scope.service == "s3" => {
                headers.insert(PAYLOAD, HeaderValue::from_static(UNSIGNED));
                UNSIGNED.to_owned()
            }
            None => return Ok(Some(self)),
        };
        self.sign(headers, payload).map(|()| None)
    }

    pub(super) fn sign_body(self, headers: &mut HeaderMap, body: &[u8]) -> Result<(), Denial> {
        self.sign(headers, hash(body))
    }

    fn sign(&self, headers: &mut HeaderMap, payload: String) -> Result<(), Denial> {
        let date = timestamp(self.now_unix);
        insert(headers, DATE, &date)?;
        if let Some(token) = &self.keys.token {
            insert(headers, SECURITY_TOKEN, token.reveal())?;
        }
        let mut signed = vec![("host".to_owned(), self.host.clone())];
        for name in headers.keys() {
            if name != CONTENT_TYPE && !name.as_str().starts_with("x-amz-") {
                continue;
            }
            let values = headers.get_all(name).iter().map(HeaderValue::to_str);
            let values: Vec<_> = values
                .collect::<Result<_, _>>()
                .map_err(|_| denied("bad-request", format!("the header `{name}` is not text")))?;
            let spaced = values.join(",");
            let value: Vec<_> = spaced.split(' ').filter(|part| !part.is_empty()).collect();
            signed.push((name.as_str().to_owned(), value.join(" ")));
        }
        signed.sort();
        let request = ToSign {
            method: &self.method,
            path: &self.path,
            query: self.query.as_deref(),
            headers: signed,
            payload,
        };
        let authorization = request.authorization(&self.keys, &self.scope, &date);
        insert(headers, AUTHORIZATION, &authorization)
    }
}

impl ToSign<'_> {
    /// The `Authorization` header; `date` as from [`timestamp`].
    pub(super) fn authorization(&self, keys: &Keys, scope: &Scope, date: &str) -> String {
        let day = &date[..8];
        let Scope { region, service } = scope;
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(";");
        let canonical = self.canonical(service, &names);
        let within = format!("{day}/{region}/{service}/aws4_request");
        let to_sign = format!(
            "{ALGORITHM}\n{date}\n{within}\n{}",
            hash(canonical.as_bytes())
        );
        let start = Zeroizing::new(format!("AWS4{}", keys.secret.reveal()));
        let mut key = hmac(start.as_bytes(), day.as_bytes());
        for part in [region.as_str(), service, "aws4_request", &to_sign] {
            key = hmac(&key, part.as_bytes());
        }
        let signature = hexadecimal(&key);
        format!(
            "{ALGORITHM} Credential={}/{within}, SignedHeaders={names}, Signature={signature}",
            keys.id
        )
    }

    fn canonical(&self, service: &str, names: &str) -> String {
        let once = |segment: &str| encoded(&percent_decode_str(segment).collect::<Vec<u8>>());
        let segments = self.path.split('/').map(|segment| match service {
            "s3" => once(segment),
            _ => encoded(once(segment).as_bytes()),
        });
        let path = segments.collect::<Vec<_>>().join("/");
        let mut query: Vec<_> = self
            .query
            .unwrap_or_default()
            .split('&')
            .filter(|field| !field.is_empty())
            .map(|field| {
                let (name, value) = field.split_once('=').unwrap_or((field, ""));
                let part = |text: &str| encoded(query_decoded(text).as_bytes());
                (part(name), part(value))
            })
            .collect();
        query.sort();
        let query: Vec<_> = query
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let mut canonical = format!("{}\n{path}\n{}\n", self.method, query.join("&"));
        for (name, value) in &self.headers {
            canonical.push_str(&format!("{name}:{value}\n"));
        }
        format!("{canonical}\n{names}\n{}", self.payload)
    }
}

/// The scope of the client's own signature; `None` when it signed nothing.
fn sent(wanted: &Wanted, headers: &HeaderMap) -> Result<Option<Scope>, Denial> {
    let refused = || foreign(wanted.mode);
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, more) = (values.next(), values.next());
    let value = value.map_or(Ok(""), HeaderValue::to_str);
    let value = value.map_err(|_| refused())?.trim();
    match (wanted.mode, value, more) {
        (Mode::Attach, "", None) if headers.contains_key(SECURITY_TOKEN) => return Err(refused()),
        (_, "", None) => return Ok(None),
        (Mode::Replace, _, None) => {}
        _ => return Err(refused()),
    }
    let credential = value
        .strip_prefix(ALGORITHM)
        .and_then(|rest| rest.trim_start().strip_prefix("Credential="))
        .and_then(|rest| rest.split([',', ' ']).next())
        .ok_or_else(refused)?;
    let mut parts = credential.split('/');
    let (id, _date, region, service) = (parts.next(), parts.next(), parts.next(), parts.next());
    match (id, region, service, parts.next(), parts.next()) {
        (Some(id), Some(region), Some(service), Some("aws4_request"), None)
            if wanted.placeholder.as_deref() == Some(id) =>
        {
            Ok(Some(Scope {
                region: region.to_owned(),
                service: service.to_owned(),
            }))
        }
        _ => Err(refused()),
    }
}

/// The hexadecimal digest of a body.
pub(super) fn hash(body: &[u8]) -> String {
    hexadecimal(digest::digest(&digest::SHA256, body).as_ref())
}

/// `20150830T123600Z`.
pub(super) fn timestamp(now_unix: u64) -> String {
    let (days, second) = (now_unix / 86_400, now_unix % 86_400);
    // Days are counted from March of the year 0, so that leap days come last
    // (the proleptic Gregorian calendar has 146,097 days in 400 years).
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let (month, next) = match month_from_march {
        0..10 => (month_from_march + 3, 0),
        _ => (month_from_march - 9, 1),
    };
    let year = era * 400 + year_of_era + next;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) -> Result<(), Denial> {
    let mut value = HeaderValue::from_str(value).map_err(|_| {
        denied(
            "bad-request",
            "the signature cannot be written as a header".to_owned(),
        )
    })?;
    value.set_sensitive(true);
    headers.insert(name, value);
    Ok(())
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn encoded(bytes: &[u8]) -> String {
    percent_encoding::percent_encode(bytes, RESERVED).to_string()
}

fn hmac(key: &[u8], text: &[u8]) -> Zeroizing<Vec<u8>> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    Zeroizing::new(hmac::sign(&key, text).as_ref().to_vec())
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let written = write!(text, "{byte:02x}");
        debug_assert!(written.is_ok(), "writing to a String cannot fail");
    }
    text
}

#[cfg(test)]
mod tests;
