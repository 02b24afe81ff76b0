//! The forms in which a secret may come back in a response.
//!
//! What is listed here is found; what is not is not. A service that answers
//! with the secret reversed, encrypted or split cannot be caught by looking
//! for text: narrow and short-lived secrets are the answer to that.

use std::collections::BTreeSet;
use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use zeroize::Zeroizing;

/// Shortest secret, in bytes, that can be told from other text in all forms.
pub const SECRET_BYTES_MIN: usize = 8;

/// All forms of `secret`, without doubles: as it is, base64 at each alignment
/// (which covers any `user:secret`), hexadecimal, percent-encoded, and as in
/// JSON and HTML.
pub fn forms(secret: &str) -> Vec<Zeroizing<Vec<u8>>> {
    let bytes = secret.as_bytes();
    let mut forms = BTreeSet::new();
    forms.insert(bytes.to_vec());
    forms.insert(hexadecimal(bytes, Case::Lower));
    forms.insert(hexadecimal(bytes, Case::Upper));
    for case in [Case::Lower, Case::Upper] {
        forms.insert(percent(bytes, case, |byte| !is_unreserved(byte)));
        forms.insert(percent(bytes, case, |byte| {
            !is_unreserved(byte) && !b"!'()*".contains(&byte)
        }));
        // Some writers keep a slash, and some keep no sign at all.
        forms.insert(percent(bytes, case, |byte| {
            !is_unreserved(byte) && byte != b'/'
        }));
        forms.insert(percent(bytes, case, |byte| !byte.is_ascii_alphanumeric()));
        forms.insert(percent(bytes, case, |_| true));
    }
    forms.insert(form_field(bytes));
    forms.extend(json(secret));
    forms.insert(html(secret));
    for before in 0..3 {
        base64_at(bytes, before, &mut forms);
    }
    forms.into_iter().map(Zeroizing::new).collect()
}

/// How the letters of hexadecimal digits are written.
#[derive(Clone, Copy)]
enum Case {
    Lower,
    Upper,
}

/// The characters of base64 that are wholly given by the secret when `before`
/// bytes stand in front of it in its group of three. The one or two characters
/// at each end that other bytes have a part in are left out.
fn base64_at(bytes: &[u8], before: usize, forms: &mut BTreeSet<Vec<u8>>) {
    let mut padded = Zeroizing::new(vec![0; before]);
    padded.extend_from_slice(bytes);
    let first = (before * 8).div_ceil(6);
    let end = padded.len() * 8 / 6;
    let standard = Zeroizing::new(STANDARD.encode(&*padded));
    let url_safe = Zeroizing::new(URL_SAFE.encode(&*padded));
    let standard = &standard.as_bytes()[first..end];
    forms.insert(standard.to_vec());
    forms.insert(url_safe.as_bytes()[first..end].to_vec());
    forms.insert(escaped_slash(standard));
    for case in [Case::Lower, Case::Upper] {
        forms.insert(percent(standard, case, |byte| {
            !byte.is_ascii_alphanumeric()
        }));
    }
}

fn hexadecimal(bytes: &[u8], case: Case) -> Vec<u8> {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        push_hexadecimal(&mut text, *byte, case);
    }
    text.into_bytes()
}

fn percent(bytes: &[u8], case: Case, is_encoded: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() * 3);
    for &byte in bytes {
        if is_encoded(byte) {
            let mut text = String::from("%");
            push_hexadecimal(&mut text, byte, case);
            out.extend_from_slice(text.as_bytes());
        } else {
            out.push(byte);
        }
    }
    out
}

fn push_hexadecimal(text: &mut String, byte: u8, case: Case) {
    let written = match case {
        Case::Lower => write!(text, "{byte:02x}"),
        Case::Upper => write!(text, "{byte:02X}"),
    };
    debug_assert!(written.is_ok(), "writing to a String cannot fail");
}

/// RFC 3986, section 2.3.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// `application/x-www-form-urlencoded` (WHATWG URL, section 5.2).
fn form_field(bytes: &[u8]) -> Vec<u8> {
    let encoded = percent(bytes, Case::Upper, |byte| {
        byte != b' ' && !byte.is_ascii_alphanumeric() && !b"*-._".contains(&byte)
    });
    encoded
        .into_iter()
        .map(|byte| if byte == b' ' { b'+' } else { byte })
        .collect()
}

/// Within a JSON string: with what must be escaped, with `/` escaped as some
/// writers do, and with everything beyond ASCII escaped.
fn json(secret: &str) -> Vec<Vec<u8>> {
    let mut plain = String::new();
    let mut ascii = String::new();
    for letter in secret.chars() {
        let escaped = match letter {
            '"' => "\\\"".to_owned(),
            '\\' => "\\\\".to_owned(),
            '\t' => "\\t".to_owned(),
            other => other.to_string(),
        };
        plain.push_str(&escaped);
        if letter.is_ascii() {
            ascii.push_str(&escaped);
        } else {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                let written = write!(ascii, "\\u{unit:04x}");
                debug_assert!(written.is_ok(), "writing to a String cannot fail");
            }
        }
    }
    // Go and some browsers' writers escape these so that HTML cannot end.
    let for_html = plain
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026");
    vec![
        escaped_slash(plain.as_bytes()),
        plain.into_bytes(),
        ascii.into_bytes(),
        for_html.into_bytes(),
    ]
}

fn escaped_slash(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for &byte in bytes {
        if byte == b'/' {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out
}

fn html(secret: &str) -> Vec<u8> {
    secret
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(secret: &str, text: &str) -> bool {
        forms(secret)
            .iter()
            .any(|form| memchr::memmem::find(text.as_bytes(), form).is_some())
    }

    #[test]
    fn every_form_is_found_in_what_carries_it() {
        let secret = "k/9+\"é<s3cret&key>~";
        for text in [
            format!("token={secret}"),
            STANDARD.encode(format!("user:{secret}")),
            STANDARD.encode(format!("use:{secret}")),
            STANDARD.encode(format!("us:{secret}!")),
            URL_SAFE.encode(format!("u{secret}")),
            secret.bytes().map(|byte| format!("{byte:02x}")).collect(),
            secret.bytes().map(|byte| format!("{byte:02X}")).collect(),
            secret.bytes().map(|byte| format!("%{byte:02x}")).collect(),
            percent_encoding::utf8_percent_encode(secret, percent_encoding::NON_ALPHANUMERIC)
                .to_string(),
            "k/9%2B%22%C3%A9%3Cs3cret%26key%3E~".to_owned(),
            serde_json::to_string(secret).unwrap(),
        ] {
            assert!(found(secret, &text), "{text}");
        }
        assert!(!found(secret, "k/9+\"é<s3cret&key"));
    }

    #[test]
    fn a_plain_secret_has_few_forms() {
        // Itself, two of hexadecimal, two of full percent, two with its one
        // sign percent-encoded, three of base64.
        assert!(forms("ghp_0123456789abcdef").len() <= 10);
    }
}
