//! Finding secrets in a stream of bytes, as they are and in the encodings in
//! which one usually meets them.
//!
//! This finds accidents and simple copies. A secret that was encrypted or
//! otherwise changed is not found.

use std::sync::Arc;

use aho_corasick::AhoCorasick;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// A shorter secret is not looked for: it would be found by chance.
pub const SECRET_BYTES_MIN: usize = 8;

/// A set of secrets to look for, by default none; cheap to clone.
#[derive(Clone, Default)]
pub struct Needles(Option<Arc<Compiled>>);

struct Compiled {
    automaton: AhoCorasick,
    longest: usize,
}

/// Why a set of secrets cannot be looked for.
#[derive(Debug, thiserror::Error)]
#[error("the secrets are too many or too long to be looked for")]
pub struct TooMuch;

/// Looks through one stream, which comes in pieces.
pub struct Search {
    needles: Needles,
    /// The end of what came before, shorter than the longest needle.
    tail: Vec<u8>,
}

impl Needles {
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, TooMuch> {
        let mut patterns: Vec<Vec<u8>> = secrets
            .into_iter()
            .filter(|secret| secret.len() >= SECRET_BYTES_MIN)
            .flat_map(forms)
            .collect();
        patterns.sort();
        patterns.dedup();
        let Some(longest) = patterns.iter().map(Vec::len).max() else {
            return Ok(Self(None));
        };
        let automaton = AhoCorasick::new(&patterns).map_err(|_| TooMuch)?;
        Ok(Self(Some(Arc::new(Compiled { automaton, longest }))))
    }

    /// Whether there is a secret in `bytes`, which is all there is.
    pub fn are_in(&self, bytes: &[u8]) -> bool {
        let Self(Some(compiled)) = self else {
            return false;
        };
        compiled.automaton.is_match(bytes)
    }

    /// The beginning of a stream.
    pub fn search(&self) -> Search {
        Search {
            needles: self.clone(),
            tail: Vec::new(),
        }
    }
}

/// Shows none of the secrets.
impl std::fmt::Debug for Needles {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Needles")
    }
}

impl Search {
    /// Whether a secret ends in `bytes`, the next piece of the stream.
    pub fn feed(&mut self, bytes: &[u8]) -> bool {
        let Needles(Some(compiled)) = &self.needles else {
            return false;
        };
        let keep = compiled.longest - 1;
        // Only what may straddle the border is copied.
        self.tail.extend_from_slice(&bytes[..bytes.len().min(keep)]);
        let found = compiled.automaton.is_match(&self.tail) || compiled.automaton.is_match(bytes);
        if bytes.len() >= keep {
            self.tail.clear();
            self.tail.extend_from_slice(&bytes[bytes.len() - keep..]);
        } else {
            let excess = self.tail.len().saturating_sub(keep);
            self.tail.drain(..excess);
        }
        found
    }

    /// What follows has nothing to do with what came before.
    pub fn reset(&mut self) {
        self.tail.clear();
    }
}

/// The secret as it is, in base64 at each of the three alignments, in
/// hexadecimal and percent-encoded.
fn forms(secret: &[u8]) -> Vec<Vec<u8>> {
    let mut forms = vec![secret.to_vec()];
    for skipped in 0..3 {
        forms.extend(aligned_base64(secret, skipped));
    }
    let mut hexadecimal = String::new();
    let mut percent = String::new();
    let mut percent_all = String::new();
    for byte in secret {
        hexadecimal.push_str(&format!("{byte:02x}"));
        percent_all.push_str(&format!("%{byte:02x}"));
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            percent.push(char::from(*byte));
        } else {
            percent.push_str(&format!("%{byte:02X}"));
        }
    }
    forms.push(hexadecimal.to_ascii_uppercase().into_bytes());
    forms.push(hexadecimal.into_bytes());
    forms.push(percent_all.to_ascii_uppercase().into_bytes());
    forms.push(percent_all.into_bytes());
    forms.push(percent.into_bytes());
    forms
}

/// The characters of base64 that depend on nothing but the secret, when
/// `skipped` bytes of something else come before it in its group of three.
fn aligned_base64(secret: &[u8], skipped: usize) -> [Vec<u8>; 2] {
    let mut padded = vec![0; skipped];
    padded.extend_from_slice(secret);
    let first = (skipped * 8).div_ceil(6);
    let last = padded.len() * 8 / 6;
    [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD]
        .map(|alphabet| alphabet.encode(&padded).into_bytes()[first..last].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"s3cret/?token+value";

    #[test]
    fn each_encoding_is_found_and_others_are_not() {
        let needles = Needles::new([SECRET]).unwrap();
        let mut texts = vec![
            SECRET.to_vec(),
            b"733363726574".to_vec(),
            b"s3cret%2F%3Ftoken%2Bvalue".to_vec(),
        ];
        texts[1] = SECRET
            .iter()
            .flat_map(|b| format!("{b:02X}").into_bytes())
            .collect();
        for before in ["", "u:", "user:", "us:"] {
            let text = [before.as_bytes(), SECRET, b"more"].concat();
            texts.push(STANDARD_NO_PAD.encode(&text).into_bytes());
            texts.push(URL_SAFE_NO_PAD.encode(&text).into_bytes());
        }
        for text in texts {
            let shown = String::from_utf8_lossy(&text).into_owned();
            assert!(needles.are_in(&text), "{shown}");
            // At every border of two pieces.
            for border in 0..text.len() {
                let mut search = needles.search();
                let found = search.feed(&text[..border]) | search.feed(&text[border..]);
                assert!(found, "{shown} at {border}");
            }
            let mut search = needles.search();
            assert!(text.chunks(1).any(|byte| search.feed(byte)), "{shown}");
        }
        assert!(!needles.are_in(b"s3cret/?token+valuf"));
    }

    #[test]
    fn short_secrets_and_none_find_nothing() {
        let none = Needles::new([]).unwrap();
        assert!(!none.search().feed(b"anything"));
        let short = Needles::new([b"1234567".as_slice()]).unwrap();
        assert!(!short.are_in(b"1234567"));
    }
}
