//! The token of an explicit proxy that others than the sandbox can reach.
//!
//! Where the sandbox has no loopback of its own, every process of the machine
//! could connect. A connection must then begin with the token, which only the
//! environment inside holds; SOCKS5 is refused, because it has no place for it
//! that clients use. What follows on the same connection is the same client's.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};

use crate::front::head::Headers;
use crate::secret::SecretText;

/// The user that stands before the token.
const USER: &str = "stockade";

/// Shortest token: 128 bits in hexadecimal digits.
const BYTES_MIN: usize = 32;

/// What a client has to show.
#[derive(Clone, Debug)]
pub struct ProxyToken(SecretText);

impl ProxyToken {
    /// `None` for what could be guessed, or could not stand in a URL as it is.
    pub fn new(token: SecretText) -> Option<Self> {
        let text = token.reveal();
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        (plain && text.len() >= BYTES_MIN).then_some(Self(token))
    }

    /// Whether a request shows the token, in the one field that there is for it
    /// (`Proxy-Authorization: Basic`, RFC 7617). Two such fields are refused.
    pub fn admits(&self, headers: &Headers) -> bool {
        let mut fields = headers.values("proxy-authorization");
        let (Some(value), None) = (fields.next(), fields.next()) else {
            return false;
        };
        let Some((scheme, encoded)) = value.split_once(' ') else {
            return false;
        };
        let shown = BASE64_STANDARD.decode(encoded.trim()).unwrap_or_default();
        scheme.eq_ignore_ascii_case("basic") && same(&shown, self.credentials().as_bytes())
    }

    /// The field that shows the token.
    pub fn field(&self) -> String {
        let encoded = BASE64_STANDARD.encode(self.credentials());
        format!("Proxy-Authorization: Basic {encoded}\r\n")
    }

    fn credentials(&self) -> String {
        format!("{USER}:{}", self.0.reveal())
    }
}

/// Takes the same time for every value of the same length: what is compared are
/// digests, all of their bytes.
fn same(shown: &[u8], wanted: &[u8]) -> bool {
    let (shown, wanted) = (Sha256::digest(shown), Sha256::digest(wanted));
    let pairs = shown.iter().zip(wanted.iter());
    pairs.fold(0, |differences, (one, other)| differences | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::head::parse_request;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    fn admits(fields: &str) -> bool {
        let token = ProxyToken::new(SecretText::new(TOKEN.to_owned())).unwrap();
        let head = format!("CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n{fields}\r\n");
        token.admits(&parse_request(head.as_bytes()).unwrap().headers)
    }

    #[test]
    fn exactly_the_token_is_admitted_once() {
        let field = |text: &str| {
            format!(
                "Proxy-Authorization: Basic {}\r\n",
                BASE64_STANDARD.encode(text)
            )
        };
        let right = field(&format!("stockade:{TOKEN}"));
        assert!(admits(&right));
        assert!(admits(&right.replace("Basic", "basic")));
        for wrong in [
            String::new(),
            field(TOKEN),
            field("stockade:"),
            field(&format!("other:{TOKEN}")),
            field(&format!("stockade:{TOKEN}0")),
            field(&format!("stockade:{}", &TOKEN[1..])),
            right.replace("Basic", "Bearer"),
            right.replace("Proxy-A", "A"),
            format!("{right}{right}"),
            "Proxy-Authorization: Basic\r\n".to_owned(),
        ] {
            assert!(!admits(&wrong), "{wrong}");
        }
    }

    #[test]
    fn a_token_that_could_be_guessed_is_none() {
        for text in ["", "0123456789abcdef", "0123456789abcdef0123456789abcde%"] {
            assert!(ProxyToken::new(SecretText::new(text.to_owned())).is_none());
        }
    }
}
