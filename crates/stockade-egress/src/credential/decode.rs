//! Content codings: a response is decoded to be scrubbed, and sent on as it is.
//!
//! Only what can be read whole is passed. Memory is bounded by the windows of
//! the codings and by [`PIECE_BYTES_MAX`]; a body that grows beyond measure is
//! refused.

mod deflate;
mod zstd;

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use bytes::{Bytes, BytesMut};
use http::HeaderValue;
use stockade_policy::network::judge::Denial;

use self::deflate::Deflate;
use self::zstd::Zstd;
use super::denied;

/// What a request whose response is scrubbed may accept. The decoder of `zstd`
/// gives nothing away before a window is full, which would hold back streams of
/// events, so it is not asked for; who sends it all the same is understood.
pub const ACCEPT_ENCODING: HeaderValue = HeaderValue::from_static("gzip, deflate, br");

/// Largest piece that comes out at once.
pub const PIECE_BYTES_MAX: usize = 64 * 1024;

/// Most bytes that come out for each that goes in, beyond [`FREE_BYTES`].
/// Deflate cannot reach more than 1,032; text reaches 50.
const RATIO_MAX: u64 = 1100;
const FREE_BYTES: u64 = 4 * 1024 * 1024;

/// One step of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub read: usize,
    pub written: usize,
}

/// One content coding. A step that neither reads nor writes waits for more.
pub(super) trait Decode {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, String>;
    /// The coded data is complete.
    fn is_complete(&self) -> bool;
}

/// Decodes one body.
pub struct Decoder {
    coding: Box<dyn Decode>,
    input: BytesMut,
    read: u64,
    written: u64,
}

/// The decoder for a `Content-Encoding`; `None` where nothing is coded. More
/// than one coding, and any other, is refused (`unscannable-encoding`).
pub fn decoder(coding: Option<&HeaderValue>) -> Result<Option<Decoder>, Denial> {
    let Some(coding) = coding else {
        return Ok(None);
    };
    let name = coding.to_str().unwrap_or("?").trim().to_ascii_lowercase();
    let coding: Box<dyn Decode> = match name.as_str() {
        "" | "identity" => return Ok(None),
        "gzip" | "x-gzip" => Box::new(Deflate::gzip()),
        "deflate" => Box::new(Deflate::zlib_or_raw()),
        "br" => Box::new(Brotli::new()),
        "zstd" => Box::new(Zstd::new()),
        other => {
            let shown = other.escape_default().to_string();
            return Err(unscannable(&format!(
                "its content coding `{shown}` cannot be decoded"
            )));
        }
    };
    Ok(Some(Decoder {
        coding,
        input: BytesMut::new(),
        read: 0,
        written: 0,
    }))
}

impl Decoder {
    /// Takes the next piece of the body. Call [`Decoder::pull`] until it gives
    /// nothing before the next one.
    pub fn push(&mut self, piece: &Bytes) {
        self.input.extend_from_slice(piece);
    }

    /// At most [`PIECE_BYTES_MAX`] decoded bytes; `None` when more is needed.
    pub fn pull(&mut self) -> Result<Option<Bytes>, Denial> {
        let mut output = BytesMut::zeroed(PIECE_BYTES_MAX);
        let mut filled = 0;
        while filled < output.len() {
            let step = self
                .coding
                .step(&self.input, &mut output[filled..])
                .map_err(|reason| unscannable(&reason))?;
            let _consumed = self.input.split_to(step.read);
            filled += step.written;
            self.read += step.read as u64;
            self.written += step.written as u64;
            if self.written > FREE_BYTES.saturating_add(self.read.saturating_mul(RATIO_MAX)) {
                return Err(unscannable("it grows beyond measure when it is decoded"));
            }
            if step.read == 0 && step.written == 0 {
                break;
            }
        }
        output.truncate(filled);
        Ok((filled > 0).then(|| output.freeze()))
    }

    /// At the end of the body, after the last [`Decoder::pull`].
    pub fn finish(&self) -> Result<(), Denial> {
        let is_empty = self.read == 0 && self.input.is_empty();
        // A response without a body may name a coding.
        if is_empty || (self.coding.is_complete() && self.input.is_empty()) {
            return Ok(());
        }
        Err(unscannable("its compressed data ends too early"))
    }
}

fn unscannable(reason: &str) -> Denial {
    denied(
        "unscannable-encoding",
        format!("the response cannot be searched for secrets: {reason}"),
    )
}

struct Brotli {
    state: BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>,
    total: usize,
    is_complete: bool,
}

impl Brotli {
    fn new() -> Self {
        // No large windows: 16 MiB at most (RFC 7932, section 9.1).
        let state = BrotliState::new_strict(
            StandardAlloc::default(),
            StandardAlloc::default(),
            StandardAlloc::default(),
        );
        Self {
            state,
            total: 0,
            is_complete: false,
        }
    }
}

impl Decode for Brotli {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, String> {
        if self.is_complete {
            return match input {
                [] => Ok(Step {
                    read: 0,
                    written: 0,
                }),
                _ => Err("bytes follow its compressed data".to_owned()),
            };
        }
        let (mut available_in, mut read) = (input.len(), 0);
        let (mut available_out, mut written) = (output.len(), 0);
        let result = BrotliDecompressStream(
            &mut available_in,
            &mut read,
            input,
            &mut available_out,
            &mut written,
            output,
            &mut self.total,
            &mut self.state,
        );
        match result {
            BrotliResult::ResultFailure => Err("its compressed data is damaged".to_owned()),
            BrotliResult::ResultSuccess => {
                self.is_complete = true;
                Ok(Step { read, written })
            }
            BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => {
                Ok(Step { read, written })
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.is_complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn decode(coding: &'static str, body: &[u8], size: usize) -> Result<Vec<u8>, Denial> {
        let coding = HeaderValue::from_static(coding);
        let mut decoder = decoder(Some(&coding))?.expect("a coding");
        let mut out = Vec::new();
        for piece in body.chunks(size) {
            decoder.push(&Bytes::copy_from_slice(piece));
            while let Some(decoded) = decoder.pull()? {
                assert!(decoded.len() <= PIECE_BYTES_MAX);
                out.extend_from_slice(&decoded);
            }
        }
        decoder.finish()?;
        Ok(out)
    }

    fn text() -> Vec<u8> {
        let lines = (0..20_000).map(|line| format!("line {line} of {}\n", line * 7919));
        lines.collect::<String>().into_bytes()
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut writer = flate2::GzBuilder::new()
            .filename("name")
            .comment("a comment")
            .extra(vec![1, 2, 3])
            .write(Vec::new(), flate2::Compression::best());
        writer.write_all(text).unwrap();
        writer.finish().unwrap()
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest)
    }

    #[test]
    fn each_coding_is_decoded_at_any_border() {
        let text = text();
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        zlib.write_all(&text).unwrap();
        let mut raw = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        raw.write_all(&text).unwrap();
        for (coding, body) in [
            ("gzip", gzip(&text)),
            ("deflate", zlib.finish().unwrap()),
            ("deflate", raw.finish().unwrap()),
            ("zstd", zstd(&text)),
        ] {
            for size in [1, 3, 1000, usize::MAX] {
                let out = decode(coding, &body, size).unwrap();
                assert!(out == text, "{coding} in pieces of {size}");
            }
            for damaged in [&body[..body.len() - 1], &[body.as_slice(), b"x"].concat()] {
                let denial = decode(coding, damaged, 1000).unwrap_err();
                assert_eq!(denial.code, "unscannable-encoding", "{coding}");
            }
        }
    }

    #[test]
    fn brotli_is_decoded() {
        // `printf 'hello hello hello hello' | brotli`, as a stored block and a
        // compressed one cannot be made here without an encoder.
        let stored = b"\x0b\x02\x80hello\x03";
        for size in [1, 2, 100] {
            assert_eq!(decode("br", stored, size).unwrap(), b"hello");
        }
        assert!(decode("br", &stored[..6], 1).is_err());
        assert!(decode("br", b"\x0b\x02\x80hello\x03x", 1).is_err());
    }

    #[test]
    fn two_members_of_gzip_are_one_body() {
        let body = [gzip(b"abc"), gzip(b"def")].concat();
        for size in [1, 1000] {
            assert_eq!(decode("gzip", &body, size).unwrap(), b"abcdef");
        }
    }

    #[test]
    fn row_50_what_cannot_be_decoded_is_refused() {
        for coding in ["compress", "gzip, br", "dcb", "x"] {
            let value = HeaderValue::from_static(coding);
            let denial = decoder(Some(&value)).map(|_| ()).unwrap_err();
            assert_eq!(denial.code, "unscannable-encoding");
        }
        assert!(decoder(None).unwrap().is_none());
        assert!(decode("gzip", b"", 1).unwrap().is_empty());
    }

    #[test]
    fn a_bomb_of_zstd_is_refused() {
        // A frame of a 1 MiB window with blocks that repeat one byte 128 Ki
        // times: 4 bytes each.
        let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x50];
        let block = ((128 * 1024_u32) << 3) | (1 << 1);
        for _ in 0..1000 {
            bomb.extend_from_slice(&block.to_le_bytes()[..3]);
            bomb.push(0);
        }
        let denial = decode("zstd", &bomb, usize::MAX).unwrap_err();
        assert!(
            denial.reason.contains("beyond measure"),
            "{}",
            denial.reason
        );
    }

    #[test]
    fn a_large_window_of_zstd_is_refused() {
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x80];
        let denial = decode("zstd", &frame, 1).unwrap_err();
        assert!(denial.reason.contains("window"), "{}", denial.reason);
    }
}
