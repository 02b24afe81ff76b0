//! Files of certificate roots with the sandbox's own authority added.
//!
//! Pure functions over bytes; the view reads the host's files and mounts the
//! result. Two formats are known: PEM (RFC 7468), which nearly everything
//! reads, and the trust store of Java (JKS), which Java reads in its place
//! whatever the file is called.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};

const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
const END: &[u8] = b"-----END CERTIFICATE-----";

/// The roots, and after them the authority.
pub(crate) fn pem(roots: &[u8], authority: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(roots.len() + authority.len() + 2);
    for part in [roots, authority] {
        bytes.extend_from_slice(part);
        if bytes.last().is_some_and(|&last| last != b'\n') {
            bytes.push(b'\n');
        }
    }
    bytes
}

/// Whether a PEM file holds a certificate at all.
pub(crate) fn has_certificate(pem: &[u8]) -> bool {
    !certificates(pem).is_empty()
}

/// A Java trust store of every certificate in the PEM files. What is no
/// certificate in them is left out, as other readers of PEM do.
///
/// The format is that of `sun.security.provider.JavaKeyStore` (OpenJDK): a
/// header, entries, and a SHA-1 digest over the password and all of them,
/// which protects against accidents only.
pub(crate) fn jks(files: &[&[u8]]) -> Vec<u8> {
    const MAGIC: u32 = 0xFEED_FEED;
    const VERSION: u32 = 2;
    const TRUSTED: u32 = 2;
    let certificates: Vec<Vec<u8>> = files.iter().flat_map(|file| certificates(file)).collect();
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&MAGIC.to_be_bytes());
    bytes.extend_from_slice(&VERSION.to_be_bytes());
    bytes.extend_from_slice(&(certificates.len() as u32).to_be_bytes());
    for (number, certificate) in certificates.iter().enumerate() {
        bytes.extend_from_slice(&TRUSTED.to_be_bytes());
        text(&mut bytes, &format!("root-{number}"));
        // When it was added, in milliseconds since 1970: nobody asks.
        bytes.extend_from_slice(&0u64.to_be_bytes());
        text(&mut bytes, "X.509");
        bytes.extend_from_slice(&(certificate.len() as u32).to_be_bytes());
        bytes.extend_from_slice(certificate);
    }
    let digest = digest(&bytes);
    bytes.extend_from_slice(&digest);
    bytes
}

/// The password that every Java installation has for its own store.
const PASSWORD: &str = "changeit";
/// Part of the digest by definition.
const WHITENER: &[u8] = b"Mighty Aphrodite";

fn digest(store: &[u8]) -> [u8; 20] {
    let mut hash = Sha1::new();
    for unit in PASSWORD.encode_utf16() {
        hash.update(unit.to_be_bytes());
    }
    hash.update(WHITENER);
    hash.update(store);
    hash.finalize().into()
}

/// Text as `java.io.DataOutput.writeUTF` has it; ours is short and ASCII.
fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&(text.len() as u16).to_be_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

/// The certificates (DER) in a PEM file.
fn certificates(pem: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut body: Option<Vec<u8>> = None;
    for line in pem.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii) {
        match (line, &mut body) {
            (BEGIN, _) => body = Some(Vec::new()),
            (END, _) => found.extend(body.take().and_then(|body| STANDARD.decode(body).ok())),
            (line, Some(body)) => body.extend_from_slice(line),
            (_, None) => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[u8] =
        b"# one\n-----BEGIN CERTIFICATE-----\nAQID\nBA==\n-----END CERTIFICATE-----\n\
        junk\n-----BEGIN CERTIFICATE-----\nBQ==\n-----END CERTIFICATE-----";

    #[test]
    fn certificates_are_found_between_other_text() {
        assert_eq!(certificates(TWO), [vec![1, 2, 3, 4], vec![5]]);
        assert!(has_certificate(TWO) && !has_certificate(b"-----END CERTIFICATE-----"));
        let broken = b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n";
        assert!(certificates(broken).is_empty());
        assert!(certificates(b"-----BEGIN CERTIFICATE-----\nAQID").is_empty());
    }

    #[test]
    fn parts_are_separated_by_a_line_end() {
        assert_eq!(pem(b"a", b"b\n"), b"a\nb\n");
        assert_eq!(pem(b"", b"b"), b"b\n");
    }

    #[test]
    fn a_java_store_has_its_header_entries_and_digest() {
        let store = jks(&[TWO]);
        assert_eq!(
            &store[..12],
            &[0xFE, 0xED, 0xFE, 0xED, 0, 0, 0, 2, 0, 0, 0, 2]
        );
        let entry = b"\0\0\0\x02\0\x06root-0\0\0\0\0\0\0\0\0\0\x05X.509\0\0\0\x04\x01\x02\x03\x04";
        assert_eq!(&store[12..12 + entry.len()], entry);
        // Of an empty store, as `keytool` writes it.
        let empty = jks(&[]);
        assert_eq!(
            empty[12..],
            [
                0xe2, 0x68, 0x6e, 0x45, 0xfb, 0x43, 0xdf, 0xa4, 0xd9, 0x92, 0xdd, 0x41, 0xce, 0xb6,
                0xb2, 0x1c, 0x63, 0x30, 0xd7, 0x92
            ]
        );
    }
}
