//! Content digests (image-spec, descriptor.md).

use std::fmt;
use std::io::{self, Read};

use sha2::{Digest as _, Sha256};

/// A SHA-256 digest, the only kind that is accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest {
    hex: String,
}

impl Digest {
    /// `sha256:` and 64 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let hex = text.strip_prefix("sha256:")?;
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (hex.len() == 64 && hex.bytes().all(digit)).then(|| Self {
            hex: hex.to_owned(),
        })
    }

    /// The 64 digits.
    pub fn hex(&self) -> &str {
        &self.hex
    }

    fn of(hasher: Sha256) -> Self {
        let digest = hasher.finalize();
        let hex = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { hex }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "sha256:{}", self.hex)
    }
}

/// Hashes and counts what is read through it.
pub(crate) struct Hashing<R> {
    inner: R,
    hasher: Sha256,
    length: u64,
}

impl<R: Read> Hashing<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self {
            inner,
            hasher: Sha256::new(),
            length: 0,
        }
    }

    /// Reads what is left, and returns length and digest of everything.
    pub(crate) fn finish(mut self) -> io::Result<(u64, Digest)> {
        io::copy(&mut self, &mut io::sink())?;
        Ok((self.length, Digest::of(self.hasher)))
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..length]);
        self.length += length as u64;
        Ok(length)
    }
}
