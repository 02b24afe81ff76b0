//! Secrets that go into the head of a request: a header, the query, the path.
//!
//! Each place is either filled, or holds exactly the placeholder; anything
//! else in it is a credential of someone else (CR3).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use stockade_policy::network::rules::{Attach, Mode};
use zeroize::Zeroizing;

use super::{Denial, Wanted, denied};

/// User name of git over HTTPS where the binding names none; hosts that take
/// tokens ignore it.
const GIT_USER: &str = "x-access-token";

/// Everything but the unreserved characters (RFC 3986, section 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Headers that carry no credential and must not be overwritten by one.
const NO_PLACE: &[&str] = &[
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The parts of a request in which secrets are placed.
pub(super) struct Head<'a> {
    pub headers: &'a mut HeaderMap,
    /// Canonical.
    pub path: &'a mut String,
    /// As it came, without its question mark.
    pub query: &'a mut Option<String>,
}

/// Whether something was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placed {
    Yes,
    /// The client sent no placeholder.
    No,
}

/// What goes into a place that holds `value`: the secret, or `None` when the
/// place stays empty.
pub(super) fn placed<'a>(wanted: &'a Wanted, value: &str) -> Result<Option<&'a str>, Denial> {
    match (wanted.mode, &wanted.placeholder) {
        (Mode::Attach, _) if value.is_empty() => Ok(Some(wanted.secret.reveal())),
        (Mode::Replace, _) if value.is_empty() => Ok(None),
        (Mode::Replace, Some(placeholder)) if value == placeholder => {
            Ok(Some(wanted.secret.reveal()))
        }
        _ => Err(foreign(wanted.mode)),
    }
}

pub(super) fn foreign(mode: Mode) -> Denial {
    denied(
        "foreign-credential",
        match mode {
            Mode::Attach => {
                "the request carries a credential of its own, but this host has one that is \
                 attached outside: send none"
            }
            Mode::Replace => {
                "the request carries a credential other than the placeholder that this host's \
                 credential has inside"
            }
        }
        .to_owned(),
    )
}

/// Whether a secret can be placed so at all, checked before anything runs.
pub(super) fn check_form(form: &Attach, mode: Mode) -> Result<(), String> {
    match form {
        Attach::Header { name, format } => {
            let name = HeaderName::try_from(name.as_str())
                .map_err(|_| format!("`{name}` is no header name"))?;
            if NO_PLACE.contains(&name.as_str()) {
                return Err(format!("a credential cannot go into the header `{name}`"));
            }
            if format.matches("{}").count() != 1 {
                return Err(format!("`{format}` must hold {{}} once"));
            }
            HeaderValue::from_str(format).map_err(|_| "the format has bytes that no header has")?;
        }
        Attach::Basic { user } if user.contains(':') => {
            return Err("a user name of Basic has no colon (RFC 7617)".to_owned());
        }
        Attach::Path if mode == Mode::Attach => {
            return Err(
                "a secret in the path needs a placeholder to be put in its place".to_owned(),
            );
        }
        Attach::Json { pointer } if !pointer.starts_with('/') => {
            return Err(format!("`{pointer}` is no JSON pointer to a member"));
        }
        _ => {}
    }
    Ok(())
}

/// The header that a form fills.
pub(super) fn header_of(form: &Attach) -> Option<HeaderName> {
    match form {
        Attach::Header { name, .. } => HeaderName::try_from(name.as_str()).ok(),
        Attach::Basic { .. } | Attach::SigV4 { .. } => Some(AUTHORIZATION),
        _ => None,
    }
}

/// Puts the secret of `wanted` where `form` says. Body forms and SigV4 are not
/// placed here.
pub(super) fn place(form: &Attach, wanted: &Wanted, head: &mut Head<'_>) -> Result<Placed, Denial> {
    match form {
        Attach::Header { name, format } => {
            let name = HeaderName::try_from(name.as_str()).map_err(|_| {
                denied(
                    "bad-request",
                    "the credential's header is damaged".to_owned(),
                )
            })?;
            header(&name, format, wanted, head.headers)
        }
        Attach::Basic { user } => basic(user, wanted, head.headers),
        Attach::Query { name } => query(name, wanted, head.query),
        Attach::Path => path(wanted, head.path),
        Attach::Form { .. } | Attach::Json { .. } | Attach::SigV4 { .. } => Ok(Placed::No),
    }
}

pub(super) fn form_encoded(text: &str) -> Zeroizing<String> {
    Zeroizing::new(utf8_percent_encode(text, RESERVED).to_string())
}

/// The one value of a header; empty when it is not there.
fn single(headers: &HeaderMap, name: &HeaderName, mode: Mode) -> Result<String, Denial> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().map_or(b"".as_slice(), HeaderValue::as_bytes);
    if values.next().is_some() {
        return Err(foreign(mode));
    }
    let value = str::from_utf8(value).map_err(|_| foreign(mode))?;
    Ok(value.trim().to_owned())
}

fn insert(headers: &mut HeaderMap, name: &HeaderName, value: &str) -> Result<Placed, Denial> {
    let mut value = HeaderValue::from_str(value).map_err(|_| {
        denied(
            "bad-request",
            "the credential has bytes that no header has".to_owned(),
        )
    })?;
    value.set_sensitive(true);
    headers.insert(name, value);
    Ok(Placed::Yes)
}

fn header(
    name: &HeaderName,
    format: &str,
    wanted: &Wanted,
    headers: &mut HeaderMap,
) -> Result<Placed, Denial> {
    let value = single(headers, name, wanted.mode)?;
    let (before, after) = format.split_once("{}").unwrap_or((format, ""));
    let inner = match (wanted.mode, value.as_str()) {
        (_, "") => "",
        (Mode::Attach, _) => return Err(foreign(wanted.mode)),
        // Schemes are written in any case (RFC 9110, section 11.1).
        (Mode::Replace, value) => value
            .split_at_checked(before.len())
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(before))
            .and_then(|(_, rest)| rest.strip_suffix(after))
            .ok_or_else(|| foreign(wanted.mode))?,
    };
    match placed(wanted, inner)? {
        Some(secret) => {
            let value = Zeroizing::new(format!("{before}{secret}{after}"));
            insert(headers, name, &value)
        }
        None => Ok(Placed::No),
    }
}

fn basic(user: &str, wanted: &Wanted, headers: &mut HeaderMap) -> Result<Placed, Denial> {
    let value = single(headers, &AUTHORIZATION, wanted.mode)?;
    let password = match (wanted.mode, value.as_str()) {
        (_, "") => String::new(),
        (Mode::Attach, _) => return Err(foreign(wanted.mode)),
        (Mode::Replace, value) => sent_password(value).ok_or_else(|| foreign(wanted.mode))?,
    };
    let user = if user.is_empty() { GIT_USER } else { user };
    match placed(wanted, &password)? {
        Some(secret) => {
            let pair = Zeroizing::new(format!("{user}:{secret}"));
            let encoded = Zeroizing::new(STANDARD.encode(&*pair));
            let value = Zeroizing::new(format!("Basic {}", *encoded));
            insert(headers, &AUTHORIZATION, &value)
        }
        None => Ok(Placed::No),
    }
}

/// The password of a Basic header; which user the client names is its own
/// affair, the one of the binding is sent.
fn sent_password(value: &str) -> Option<String> {
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (_, password) = decoded.split_once(':')?;
    Some(password.to_owned())
}

fn query(name: &str, wanted: &Wanted, query: &mut Option<String>) -> Result<Placed, Denial> {
    let old = query.clone().unwrap_or_default();
    let mut new = Zeroizing::new(String::with_capacity(old.len() + 128));
    let (mut is_there, mut result) = (false, Placed::No);
    let mut push = |key: &str, value: &str| {
        let between = if new.is_empty() { "" } else { "&" };
        new.push_str(&Zeroizing::new(format!("{between}{key}={value}")));
    };
    for field in old.split('&').filter(|field| !field.is_empty()) {
        let (key, value) = field.split_once('=').unwrap_or((field, ""));
        if query_decoded(key) != name {
            push(key, value);
            continue;
        }
        if std::mem::replace(&mut is_there, true) {
            return Err(foreign(wanted.mode));
        }
        match placed(wanted, &query_decoded(value))? {
            Some(secret) => {
                push(key, &form_encoded(secret));
                result = Placed::Yes;
            }
            None => push(key, value),
        }
    }
    if !is_there && wanted.mode == Mode::Attach {
        push(&form_encoded(name), &form_encoded(wanted.secret.reveal()));
        result = Placed::Yes;
    }
    // A query in which nothing was placed goes out as it came.
    if result == Placed::Yes {
        *query = Some(new.to_string());
    }
    Ok(result)
}

pub(super) fn query_decoded(text: &str) -> String {
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

fn path(wanted: &Wanted, path: &mut String) -> Result<Placed, Denial> {
    let placeholder = wanted.placeholder.as_deref().unwrap_or_default();
    if placeholder.is_empty() || !path.contains(placeholder) {
        return Ok(Placed::No);
    }
    *path = path.replace(placeholder, &form_encoded(wanted.secret.reveal()));
    Ok(Placed::Yes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::SecretText;

    const STAND_IN: &str = "PLACEHOLDER12";

    struct Request {
        headers: HeaderMap,
        path: String,
        query: Option<String>,
    }

    fn request(header: &str, path: &str, query: &str) -> Request {
        let mut headers = HeaderMap::new();
        if let Some((name, value)) = header.split_once(": ") {
            let name: HeaderName = name.parse().unwrap();
            headers.insert(name, value.parse().unwrap());
        }
        Request {
            headers,
            path: path.to_owned(),
            query: (!query.is_empty()).then(|| query.to_owned()),
        }
    }

    fn run(form: &Attach, mode: Mode, request: &mut Request) -> Result<Placed, &'static str> {
        let wanted = Wanted {
            mode,
            secret: SecretText::new("s3cr/et &x".to_owned()),
            placeholder: (mode == Mode::Replace).then(|| STAND_IN.to_owned()),
        };
        let mut head = Head {
            headers: &mut request.headers,
            path: &mut request.path,
            query: &mut request.query,
        };
        place(form, &wanted, &mut head).map_err(|denial| denial.code)
    }

    fn bearer() -> Attach {
        Attach::Header {
            name: "Authorization".to_owned(),
            format: "Bearer {}".to_owned(),
        }
    }

    #[test]
    fn a_header_is_filled_or_replaced() {
        for (mode, sent, wanted) in [
            (Mode::Attach, "", Ok("Bearer s3cr/et &x")),
            (Mode::Attach, "authorization: ", Ok("Bearer s3cr/et &x")),
            (
                Mode::Attach,
                "authorization: Bearer mine",
                Err("foreign-credential"),
            ),
            (
                Mode::Replace,
                "authorization: bearer PLACEHOLDER12",
                Ok("Bearer s3cr/et &x"),
            ),
            (
                Mode::Replace,
                "authorization: Bearer PLACEHOLDER12x",
                Err("foreign-credential"),
            ),
            (
                Mode::Replace,
                "authorization: PLACEHOLDER12",
                Err("foreign-credential"),
            ),
            (
                Mode::Replace,
                "authorization: Basic eDp5",
                Err("foreign-credential"),
            ),
        ] {
            let mut request = request(sent, "/", "");
            let result = run(&bearer(), mode, &mut request);
            match wanted {
                Ok(value) => {
                    assert_eq!(result, Ok(Placed::Yes), "{sent}");
                    assert_eq!(request.headers["authorization"], value);
                    assert!(request.headers["authorization"].is_sensitive());
                }
                Err(code) => assert_eq!(result, Err(code), "{sent}"),
            }
        }
        let mut nothing = request("", "/", "");
        assert_eq!(run(&bearer(), Mode::Replace, &mut nothing), Ok(Placed::No));
        assert!(nothing.headers.is_empty());
    }

    #[test]
    fn two_values_of_a_header_are_refused() {
        let mut twice = request("authorization: Bearer PLACEHOLDER12", "/", "");
        twice
            .headers
            .append("authorization", "Bearer x".parse().unwrap());
        assert_eq!(
            run(&bearer(), Mode::Replace, &mut twice),
            Err("foreign-credential")
        );
    }

    #[test]
    fn git_gets_basic_without_being_asked() {
        let mut request = request("", "/a/b.git/info/refs", "");
        let form = Attach::Basic {
            user: String::new(),
        };
        assert_eq!(run(&form, Mode::Attach, &mut request), Ok(Placed::Yes));
        let wanted = format!("Basic {}", STANDARD.encode("x-access-token:s3cr/et &x"));
        assert_eq!(request.headers["authorization"], wanted);
    }

    #[test]
    fn basic_is_replaced_whatever_user_was_sent() {
        let form = Attach::Basic {
            user: "me".to_owned(),
        };
        let sent = format!(
            "authorization: basic {}",
            STANDARD.encode("any:PLACEHOLDER12")
        );
        let mut good = request(&sent, "/", "");
        assert_eq!(run(&form, Mode::Replace, &mut good), Ok(Placed::Yes));
        let wanted = format!("Basic {}", STANDARD.encode("me:s3cr/et &x"));
        assert_eq!(good.headers["authorization"], wanted);
        let sent = format!("authorization: Basic {}", STANDARD.encode("any:mine"));
        let denied = run(&form, Mode::Replace, &mut request(&sent, "/", ""));
        assert_eq!(denied, Err("foreign-credential"));
    }

    #[test]
    fn row_47_a_secret_in_the_query_or_path_is_encoded() {
        let form = Attach::Query {
            name: "key".to_owned(),
        };
        for (mode, query, wanted) in [
            (Mode::Attach, "", Some("key=s3cr%2Fet%20%26x")),
            (
                Mode::Attach,
                "a=%2f&key=&b",
                Some("a=%2f&key=s3cr%2Fet%20%26x&b="),
            ),
            (
                Mode::Replace,
                "k%65y=PLACEHOLDER12",
                Some("k%65y=s3cr%2Fet%20%26x"),
            ),
            (Mode::Replace, "a&b=1", Some("a&b=1")),
        ] {
            let mut request = request("", "/", query);
            assert!(run(&form, mode, &mut request).is_ok());
            assert_eq!(request.query.as_deref(), wanted, "{query}");
        }
        for query in ["key=mine", "key=&key="] {
            let denied = run(&form, Mode::Attach, &mut request("", "/", query));
            assert_eq!(denied, Err("foreign-credential"), "{query}");
        }
        let mut bot = request("", "/botPLACEHOLDER12/getMe", "");
        assert_eq!(run(&Attach::Path, Mode::Replace, &mut bot), Ok(Placed::Yes));
        assert_eq!(bot.path, "/bots3cr%2Fet%20%26x/getMe");
    }

    #[test]
    fn forms_that_cannot_hold_are_refused_beforehand() {
        let header = |name: &str, format: &str| Attach::Header {
            name: name.to_owned(),
            format: format.to_owned(),
        };
        for form in [
            header("Host", "{}"),
            header("a b", "{}"),
            header("X-Key", "x"),
            header("X-Key", "{}{}"),
            header("X-Key", "a\r\nb: {}"),
            Attach::Basic {
                user: "a:b".to_owned(),
            },
            Attach::Path,
            Attach::Json {
                pointer: "k".to_owned(),
            },
        ] {
            assert!(check_form(&form, Mode::Attach).is_err(), "{form:?}");
        }
        assert!(check_form(&bearer(), Mode::Attach).is_ok());
        assert!(check_form(&Attach::Path, Mode::Replace).is_ok());
    }
}
