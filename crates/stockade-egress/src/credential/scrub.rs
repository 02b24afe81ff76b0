//! Takes secrets out of responses before the sandbox sees them.
//!
//! A found secret is overwritten with stars of the same length, so lengths
//! that were announced stay true. Only bytes that may be the beginning of a
//! secret are held back, so streams of events are not delayed. Decoding what
//! is compressed is left to [`super::decode`].

use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use zeroize::Zeroizing;

use super::patterns::{Patterns, Span};

const STAR: u8 = b'*';

/// One direction of one stream; a response or a WebSocket has its own.
pub struct Scrubber {
    patterns: Rc<Patterns>,
    /// Held back: may be the beginning of a secret. Not yet overwritten.
    carried: Zeroizing<Vec<u8>>,
    /// How many bytes of `carried` belong to a secret that was found.
    carried_found: usize,
    count: u64,
}

impl Scrubber {
    pub(super) fn new(patterns: Rc<Patterns>) -> Self {
        Self {
            patterns,
            carried: Zeroizing::new(Vec::new()),
            carried_found: 0,
            count: 0,
        }
    }

    /// How many times a secret was found.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Overwrites secrets in all values, `Location` among them (row 45). A
    /// field whose name carries one is left out.
    pub fn headers(&mut self, headers: &mut HeaderMap) {
        let bad_names: Vec<_> = headers
            .keys()
            // Names are folded to lower case on arrival.
            .filter(|name| self.patterns.is_in(name.as_str().as_bytes()))
            .cloned()
            .collect();
        for name in bad_names {
            headers.remove(name);
            self.count += 1;
        }
        for value in headers.values_mut() {
            if let Some(clean) = self.whole(value.as_bytes()) {
                // Stars can stand wherever the bytes of a value can.
                *value = HeaderValue::from_bytes(&clean)
                    .unwrap_or_else(|_| HeaderValue::from_static("***"));
            }
        }
    }

    /// A text that is known whole; `None` when nothing is in it.
    pub fn whole(&mut self, text: &[u8]) -> Option<Vec<u8>> {
        let mut found = Vec::new();
        self.patterns.find_all(text, &mut found);
        if found.is_empty() {
            return None;
        }
        self.count += found.len() as u64;
        let mut clean = text.to_vec();
        overwrite(&mut clean, &found);
        Some(clean)
    }

    /// The next piece of the body; what comes out may be shorter, and the rest
    /// comes with a later piece or with [`Scrubber::finish`].
    pub fn chunk(&mut self, piece: Bytes) -> Bytes {
        if self.carried.is_empty() {
            return self.scrub(piece, 0);
        }
        let mut joined = BytesMut::with_capacity(self.carried.len() + piece.len());
        joined.extend_from_slice(&self.carried);
        joined.extend_from_slice(&piece);
        let found_before = std::mem::take(&mut self.carried_found);
        self.carried.clear();
        self.scrub(joined.freeze(), found_before)
    }

    /// What was still held back, at the end of the body.
    pub fn finish(&mut self) -> Bytes {
        let mut found = Vec::new();
        self.patterns.find_all(&self.carried, &mut found);
        self.count += found.len() as u64;
        found.push((0, std::mem::take(&mut self.carried_found)));
        let mut rest = BytesMut::from(self.carried.as_slice());
        overwrite(&mut rest, &found);
        self.carried.clear();
        rest.freeze()
    }

    /// `found_before` bytes at the start belong to a secret that is counted.
    fn scrub(&mut self, bytes: Bytes, found_before: usize) -> Bytes {
        let mut found = Vec::new();
        self.patterns.find_all(&bytes, &mut found);
        let held = self.patterns.unfinished(&bytes);
        let cut = bytes.len() - held;
        // What lies wholly in the part that is held is found again with it.
        found.retain(|&(start, _)| start < cut);
        self.count += found.len() as u64;
        if found_before > 0 {
            found.push((0, found_before));
        }
        if held > 0 {
            self.carried.extend_from_slice(&bytes[cut..]);
            let ends = found.iter().map(|(_, end)| end.saturating_sub(cut));
            self.carried_found = ends.max().unwrap_or(0);
        }
        let out = bytes.slice(..cut);
        if found.is_empty() {
            return out;
        }
        let mut out = out
            .try_into_mut()
            .unwrap_or_else(|shared| BytesMut::from(&*shared));
        overwrite(&mut out, &found);
        out.freeze()
    }
}

/// Spans may reach beyond the end.
fn overwrite(bytes: &mut [u8], found: &[Span]) {
    let length = bytes.len();
    for &(start, end) in found {
        bytes[start.min(length)..end.min(length)].fill(STAR);
    }
}

#[cfg(test)]
mod tests {
    use super::super::encodings::forms;
    use super::*;
    use base64::Engine;
    use proptest::prelude::*;

    fn scrubber(secrets: &[&str]) -> Scrubber {
        let texts = secrets.iter().flat_map(|secret| forms(secret)).collect();
        Scrubber::new(Rc::new(Patterns::new(texts).unwrap()))
    }

    fn run(scrubber: &mut Scrubber, text: &[u8], sizes: &[usize]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut rest = Bytes::copy_from_slice(text);
        let mut sizes = sizes.iter().cycle();
        while !rest.is_empty() {
            let size = sizes.next().map_or(1, |size| *size).clamp(1, rest.len());
            out.extend_from_slice(&scrubber.chunk(rest.split_to(size)));
        }
        out.extend_from_slice(&scrubber.finish());
        out
    }

    #[test]
    fn row_43_secret_comes_back_in_five_encodings() {
        let secret = "ghp_Abcdefgh0123456789xyz";
        let standard = base64::engine::general_purpose::STANDARD;
        let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
        let percent: String = secret.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let text = format!(
            "{secret} {} {hex} {percent} {}",
            standard.encode(secret),
            standard.encode(format!("x-access-token:{secret}"))
        );
        for size in [1, 2, 7, 4096] {
            let mut scrubber = scrubber(&[secret]);
            let out = run(&mut scrubber, text.as_bytes(), &[size]);
            let out = String::from_utf8(out).unwrap();
            assert_eq!(out.len(), text.len());
            assert_eq!(scrubber.count(), 5, "{out}");
            assert!(out.starts_with(&"*".repeat(secret.len())));
            assert!(!out.contains(&hex) && !out.contains(&percent));
            // At most the characters at the seams are left.
            assert!(
                out.split(' ')
                    .all(|word| word.matches('*').count() >= secret.len())
            );
        }
    }

    #[test]
    fn row_45_location_is_scrubbed() {
        let mut headers = HeaderMap::new();
        headers.insert("location", "https://b.test/?t=s3cretvalue".parse().unwrap());
        headers.insert("x-other", "kept".parse().unwrap());
        headers.insert("s3cretvalue", "1".parse().unwrap());
        let mut scrubber = scrubber(&["s3cretvalue"]);
        scrubber.headers(&mut headers);
        assert_eq!(headers["location"], "https://b.test/?t=***********");
        assert_eq!(headers["x-other"], "kept");
        assert_eq!((headers.len(), scrubber.count()), (2, 2));
    }

    #[test]
    fn an_event_is_not_held_back() {
        let mut scrubber = scrubber(&["s3cretvalue"]);
        let event = Bytes::from_static(b"data: {\"text\":\"hello\"}\n\n");
        assert_eq!(scrubber.chunk(event.clone()), event);
        assert_eq!(scrubber.chunk(Bytes::from_static(b"data: s3cr")), "data: ");
        assert_eq!(scrubber.chunk(Bytes::from_static(b"ab\n")), "s3crab\n");
    }

    #[test]
    fn an_overlap_over_a_border_is_found() {
        for size in 1..20 {
            let mut scrubber = scrubber(&["abcdefgh", "efghijkl"]);
            let out = run(&mut scrubber, b"-abcdefghijkl-abcdefg", &[size]);
            assert_eq!(out, b"-************-abcdefg", "pieces of {size}");
        }
    }

    fn secret() -> impl Strategy<Value = String> {
        "[!-~]{8,40}"
    }

    fn encode(secret: &str, form: usize, before: &str) -> String {
        let standard = base64::engine::general_purpose::STANDARD;
        let url = base64::engine::general_purpose::URL_SAFE_NO_PAD;
        match form {
            0 => secret.to_owned(),
            1 => standard.encode(format!("{before}{secret}")),
            2 => url.encode(format!("{before}{secret}")),
            3 => secret.bytes().map(|byte| format!("{byte:02x}")).collect(),
            4 => secret.bytes().map(|byte| format!("{byte:02X}")).collect(),
            5 => secret.bytes().map(|byte| format!("%{byte:02x}")).collect(),
            6 => secret.bytes().map(|byte| format!("%{byte:02X}")).collect(),
            _ => {
                let text = serde_json::to_string(secret).unwrap();
                text[1..text.len() - 1].to_owned()
            }
        }
    }

    proptest! {
        #[test]
        fn no_secret_survives(
            secret in secret(),
            before in "[ -~]{0,20}",
            after in "[ -~]{0,20}",
            form in 0_usize..8,
            sizes in proptest::collection::vec(1_usize..30, 1..8),
        ) {
            let encoded = encode(&secret, form, &before);
            let text = format!("{before}{encoded}{after}");
            let mut scrubber = scrubber(&[&secret]);
            let out = run(&mut scrubber, text.as_bytes(), &sizes);
            prop_assert_eq!(out.len(), text.len());
            prop_assert!(scrubber.count() >= 1);
            let out = String::from_utf8_lossy(&out).into_owned();
            prop_assert!(!out.contains(&encoded), "{}", out);
        }

        #[test]
        fn pieces_make_no_difference(
            text in "[abs3cret]{0,200}",
            sizes in proptest::collection::vec(1_usize..30, 1..8),
        ) {
            let secrets = ["aabbaabb", "abbaabba", "s3crets3", "33333333"];
            let whole = run(&mut scrubber(&secrets), text.as_bytes(), &[usize::MAX]);
            let pieces = run(&mut scrubber(&secrets), text.as_bytes(), &sizes);
            prop_assert_eq!(whole, pieces);
        }

        #[test]
        fn other_text_is_untouched(
            text in proptest::collection::vec(any::<u8>(), 0..500),
            sizes in proptest::collection::vec(1_usize..30, 1..8),
        ) {
            let mut scrubber = scrubber(&["ghp_Abcdefgh0123456789xyz"]);
            let out = run(&mut scrubber, &text, &sizes);
            prop_assert_eq!(out, text);
            prop_assert_eq!(scrubber.count(), 0);
        }
    }
}
