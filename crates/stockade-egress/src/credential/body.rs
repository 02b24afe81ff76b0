//! Secrets that go into the body of a request: a form field or a JSON member.
//!
//! The body is read whole (a rule that sees a part only can be fooled, row
//! 49), and changed in one place without writing the rest anew.

use bytes::Bytes;
use http::HeaderMap;
use http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, TRANSFER_ENCODING,
};
use percent_encoding::percent_decode_str;
use serde::de::IgnoredAny;
use stockade_policy::network::rules::{Attach, Mode};
use zeroize::Zeroizing;

use super::place::{form_encoded, placed};
use super::sigv4::Unsigned;
use super::{Denial, Wanted, denied};

/// Largest body that a secret is put into, in bytes.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;

/// How a body is to be changed before it is sent.
#[derive(Default)]
pub struct BodyPlan {
    pub(super) changes: Vec<Change>,
    /// Signed over the body as it is sent.
    pub(super) sign: Option<Unsigned>,
}

pub(super) struct Change {
    /// `Form` or `Json`; nothing else is planned for a body.
    pub form: Attach,
    pub wanted: Wanted,
}

impl BodyPlan {
    /// The body as it is to be sent. Refused: more than [`BODY_BYTES_MAX`]
    /// (collect one byte more to notice), anything compressed, multipart, or
    /// not of the type that the binding names. `headers` are adjusted to the
    /// new length.
    pub fn rewrite(self, headers: &mut HeaderMap, body: Bytes) -> Result<Bytes, Denial> {
        if body.len() > BODY_BYTES_MAX {
            return Err(denied(
                "body-too-large",
                format!(
                    "a credential of this host covers the body, which must then have at most \
                     {BODY_BYTES_MAX} bytes"
                ),
            ));
        }
        let mut body = body;
        if !self.changes.is_empty() && !body.is_empty() {
            let mut codings = headers.get_all(CONTENT_ENCODING).iter();
            if codings.any(|coding| coding != "identity") {
                return Err(refused("it is compressed"));
            }
            for change in &self.changes {
                body = change.apply(headers, &body)?;
            }
            headers.remove(TRANSFER_ENCODING);
            headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        if let Some(unsigned) = self.sign {
            unsigned.sign_body(headers, &body)?;
        }
        Ok(body)
    }
}

impl Change {
    fn apply(&self, headers: &HeaderMap, body: &Bytes) -> Result<Bytes, Denial> {
        let mut types = headers.get_all(CONTENT_TYPE).iter();
        let (Some(kind), None) = (types.next(), types.next()) else {
            return Err(refused("it has no content type, or two"));
        };
        let kind = kind.to_str().unwrap_or_default();
        let mut parts = kind.split(';').map(|part| part.trim().to_ascii_lowercase());
        let essence = parts.next().unwrap_or_default();
        // Another charset would let the same bytes mean other text.
        if parts
            .any(|part| part.starts_with("charset") && part.trim_matches('"') != "charset=utf-8")
        {
            return Err(refused("its charset is not UTF-8"));
        }
        let Ok(text) = str::from_utf8(body) else {
            return Err(refused("it is not UTF-8"));
        };
        match &self.form {
            Attach::Form { name } if essence == "application/x-www-form-urlencoded" => {
                self.form(name, text)
            }
            Attach::Json { pointer }
                if essence == "application/json" || essence.ends_with("+json") =>
            {
                self.json(pointer, text)
            }
            _ => Err(refused("its content type is not the one of the credential")),
        }
    }

    fn form(&self, name: &str, text: &str) -> Result<Bytes, Denial> {
        let mut out = Zeroizing::new(String::with_capacity(text.len() + 256));
        let mut is_placed = false;
        for field in text.split('&') {
            let (key, value) = field.split_once('=').unwrap_or((field, ""));
            if !out.is_empty() {
                out.push('&');
            }
            if form_decoded(key) != name {
                out.push_str(field);
                continue;
            }
            if std::mem::replace(&mut is_placed, true) {
                return Err(refused("the field of the credential is there twice"));
            }
            match placed(&self.wanted, &form_decoded(value))? {
                Some(secret) => {
                    out.push_str(&form_encoded(name));
                    out.push('=');
                    out.push_str(&form_encoded(secret));
                }
                None => out.push_str(field),
            }
        }
        if !is_placed && self.wanted.mode == Mode::Attach {
            if !out.is_empty() {
                out.push('&');
            }
            out.push_str(&form_encoded(name));
            out.push('=');
            out.push_str(&form_encoded(self.wanted.secret.reveal()));
        }
        Ok(Bytes::copy_from_slice(out.as_bytes()))
    }

    fn json(&self, pointer: &str, text: &str) -> Result<Bytes, Denial> {
        serde_json::from_str::<IgnoredAny>(text).map_err(|_| refused("it is not JSON"))?;
        let Some(place) = find(text, pointer).map_err(refused)? else {
            return match self.wanted.mode {
                Mode::Replace => Ok(Bytes::copy_from_slice(text.as_bytes())),
                Mode::Attach => Err(refused("it has no object where the credential belongs")),
            };
        };
        let quoted = |text: &str| Zeroizing::new(serde_json::Value::from(text).to_string());
        let (start, end, new) = match place {
            Place::Value(start, end) => {
                // Only a string or null can be a credential's place.
                let old: Option<String> = serde_json::from_str(&text[start..end])
                    .map_err(|_| refused("the member of the credential is not a string"))?;
                match placed(&self.wanted, &old.unwrap_or_default())? {
                    Some(secret) => (start, end, quoted(secret)),
                    None => return Ok(Bytes::copy_from_slice(text.as_bytes())),
                }
            }
            Place::Missing { .. } if self.wanted.mode == Mode::Replace => {
                return Ok(Bytes::copy_from_slice(text.as_bytes()));
            }
            Place::Missing { at, name, is_alone } => {
                let mut member = quoted(&name);
                member.push(':');
                member.push_str(&quoted(self.wanted.secret.reveal()));
                if !is_alone {
                    member.push(',');
                }
                (at, at, member)
            }
        };
        let out = Zeroizing::new([&text[..start], &new, &text[end..]].concat());
        Ok(Bytes::copy_from_slice(out.as_bytes()))
    }
}

fn refused(reason: &str) -> Denial {
    denied(
        "bad-request",
        format!("a credential of this host goes into the body, but {reason}"),
    )
}

fn form_decoded(text: &str) -> String {
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

/// Where a JSON pointer leads in valid JSON text.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Value(usize, usize),
    /// The object is there, its member is not.
    Missing {
        at: usize,
        name: String,
        is_alone: bool,
    },
}

/// RFC 6901 through objects and arrays. A name that is there twice on the way
/// is refused: readers disagree about which one counts.
fn find(text: &str, pointer: &str) -> Result<Option<Place>, &'static str> {
    let mut at = skip_space(text, 0);
    let mut names = pointer.split('/').skip(1).peekable();
    while let Some(name) = names.next() {
        let name = name.replace("~1", "/").replace("~0", "~");
        let found = match text.as_bytes().get(at) {
            Some(b'{') => member(text, at, &name)?,
            Some(b'[') => index(&name).and_then(|index| element(text, at, index)),
            _ => return Ok(None),
        };
        match found {
            Some(value) => at = value,
            None if names.peek().is_none() && text.as_bytes().get(at) == Some(&b'{') => {
                let first = skip_space(text, at + 1);
                return Ok(Some(Place::Missing {
                    at: at + 1,
                    name,
                    is_alone: text.as_bytes().get(first) == Some(&b'}'),
                }));
            }
            None => return Ok(None),
        }
    }
    Ok(Some(Place::Value(at, skip_value(text, at))))
}

fn member(text: &str, object: usize, name: &str) -> Result<Option<usize>, &'static str> {
    let bytes = text.as_bytes();
    let mut found = None;
    let mut at = skip_space(text, object + 1);
    while bytes.get(at) == Some(&b'"') {
        let end = skip_value(text, at);
        let key: String = serde_json::from_str(&text[at..end]).map_err(|_| "a name is damaged")?;
        // Behind the name is a colon.
        let value = skip_space(text, skip_space(text, end) + 1);
        if key == name && found.replace(value).is_some() {
            return Err("a name on the way to the credential is there twice");
        }
        at = skip_space(text, skip_value(text, value));
        if bytes.get(at) == Some(&b',') {
            at = skip_space(text, at + 1);
        }
    }
    Ok(found)
}

fn element(text: &str, array: usize, index: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = skip_space(text, array + 1);
    for _ in 0..index {
        at = skip_space(text, skip_value(text, at));
        if bytes.get(at) != Some(&b',') {
            return None;
        }
        at = skip_space(text, at + 1);
    }
    (bytes.get(at) != Some(&b']')).then_some(at)
}

/// Digits without a leading zero (RFC 6901, section 4).
fn index(name: &str) -> Option<usize> {
    let is_plain = name == "0" || !name.starts_with(['0', '+']);
    is_plain.then(|| name.parse().ok()).flatten()
}

fn skip_space(text: &str, from: usize) -> usize {
    let rest = text.as_bytes().get(from..).unwrap_or_default();
    from + rest
        .iter()
        .take_while(|byte| b" \t\r\n".contains(byte))
        .count()
}

/// The end of the value that begins at `from`; the text is known to be JSON.
fn skip_value(text: &str, from: usize) -> usize {
    let bytes = text.as_bytes();
    let (mut depth, mut at) = (0_usize, from);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at = skip_string(bytes, at),
            b'{' | b'[' => (depth, at) = (depth + 1, at + 1),
            b'}' | b']' => (depth, at) = (depth.saturating_sub(1), at + 1),
            b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' => at += 1,
            _ => {
                let scalar = |byte: &&u8| !b",]} \t\r\n".contains(byte);
                at += bytes[at..].iter().take_while(scalar).count();
            }
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn skip_string(bytes: &[u8], from: usize) -> usize {
    let mut at = from + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::SecretText;
    use proptest::prelude::*;

    fn rewrite(form: Attach, mode: Mode, kind: &str, body: &str) -> Result<String, &'static str> {
        let plan = BodyPlan {
            sign: None,
            changes: vec![Change {
                form,
                wanted: Wanted {
                    mode,
                    secret: SecretText::new("s3cr\"et&+".to_owned()),
                    placeholder: Some("PLACEHOLDER12".to_owned()),
                },
            }],
        };
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, kind.parse().unwrap());
        let body = plan
            .rewrite(&mut headers, Bytes::copy_from_slice(body.as_bytes()))
            .map_err(|denial| denial.code)?;
        assert_eq!(headers[CONTENT_LENGTH], body.len().to_string());
        Ok(String::from_utf8(body.to_vec()).unwrap())
    }

    fn form(mode: Mode, body: &str) -> Result<String, &'static str> {
        let form = Attach::Form {
            name: "key".to_owned(),
        };
        rewrite(form, mode, "application/x-www-form-urlencoded", body)
    }

    fn json(mode: Mode, pointer: &str, body: &str) -> Result<String, &'static str> {
        let form = Attach::Json {
            pointer: pointer.to_owned(),
        };
        rewrite(form, mode, "application/json; charset=utf-8", body)
    }

    #[test]
    fn a_form_field_is_filled_or_replaced() {
        let full = "a=1&key=s3cr%22et%26%2B";
        assert_eq!(form(Mode::Attach, "a=1").as_deref(), Ok(full));
        assert_eq!(form(Mode::Attach, "a=1&key=").as_deref(), Ok(full));
        assert_eq!(
            form(Mode::Replace, "a=1&k%65y=PLACEHOLDER12").as_deref(),
            Ok(full)
        );
        assert_eq!(form(Mode::Replace, "a=1").as_deref(), Ok("a=1"));
        assert_eq!(form(Mode::Attach, "key=other"), Err("foreign-credential"));
        assert_eq!(form(Mode::Replace, "key=other"), Err("foreign-credential"));
        assert_eq!(form(Mode::Attach, "key=&key="), Err("bad-request"));
    }

    #[test]
    fn a_json_member_is_filled_or_replaced() {
        let check = |mode, pointer, body, wanted: Result<&str, _>| {
            assert_eq!(
                json(mode, pointer, body).as_deref(),
                wanted.as_ref().copied(),
                "{body}"
            );
        };
        let secret = r#""s3cr\"et&+""#;
        check(
            Mode::Attach,
            "/k",
            "{}",
            Ok(&format!(r#"{{"k":{secret}}}"#)),
        );
        check(
            Mode::Attach,
            "/a/k",
            r#" {"x":1.0,"a": {"b":[1e400]}}"#,
            Ok(&format!(
                r#" {{"x":1.0,"a": {{"k":{secret},"b":[1e400]}}}}"#
            )),
        );
        check(
            Mode::Attach,
            "/a/1",
            r#"{"a":[0,null]}"#,
            Ok(&format!(r#"{{"a":[0,{secret}]}}"#)),
        );
        check(
            Mode::Replace,
            "/k",
            r#"{"a":"PLACEHOLDER12","\u006b" : "PLACE\u0048OLDER12"}"#,
            Ok(&format!(r#"{{"a":"PLACEHOLDER12","\u006b" : {secret}}}"#)),
        );
        check(Mode::Replace, "/k", r#"{"a":1}"#, Ok(r#"{"a":1}"#));
        check(
            Mode::Attach,
            "/k",
            r#"{"k":"mine"}"#,
            Err("foreign-credential"),
        );
        check(Mode::Attach, "/k", r#"{"k":7}"#, Err("bad-request"));
        check(
            Mode::Attach,
            "/k",
            r#"{"k":"","k":"x"}"#,
            Err("bad-request"),
        );
        check(Mode::Attach, "/k", "[1]", Err("bad-request"));
        check(Mode::Attach, "/k", "{", Err("bad-request"));
    }

    #[test]
    fn row_49_and_50_what_is_not_seen_whole_is_refused() {
        let field = || Attach::Form {
            name: "key".to_owned(),
        };
        let long = "a".repeat(BODY_BYTES_MAX + 1);
        assert_eq!(form(Mode::Attach, &long), Err("body-too-large"));
        for kind in [
            "multipart/form-data; boundary=x",
            "application/json",
            "text/plain",
            "application/x-www-form-urlencoded; charset=utf-7",
        ] {
            let denied = rewrite(field(), Mode::Attach, kind, "a=1");
            assert_eq!(denied, Err("bad-request"), "{kind}");
        }
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<i64>().prop_map(serde_json::Value::from),
            "[ -~é\n]{0,10}".prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
                proptest::collection::btree_map("[a-c/~\"]{0,2}", inner, 0..4)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_scanner_agrees_with_serde(value in value(), pointer in "(/[0-2a-c/~\"]{0,2}){0,3}") {
            for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
                let found = find(&text, &pointer).unwrap();
                // Serde reads `~` without its digit as itself, and so do we.
                match value.pointer(&pointer) {
                    Some(wanted) => {
                        let Some(Place::Value(start, end)) = found else {
                            return Err(TestCaseError::fail(format!("{text} {pointer}")));
                        };
                        let read: serde_json::Value = serde_json::from_str(&text[start..end]).unwrap();
                        prop_assert_eq!(&read, wanted);
                    }
                    None => prop_assert!(!matches!(found, Some(Place::Value(..)))),
                }
            }
        }
    }
}
