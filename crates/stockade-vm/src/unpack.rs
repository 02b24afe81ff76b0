//! Compressed content, recognised by its first bytes and never by a name.

use std::io::{self, BufRead, BufReader, Read};

use flate2::read::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::StreamingDecoder;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const XZ: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Most memory for a dictionary of xz, in KiB: what its highest preset takes.
const XZ_MEMORY_KIB_MAX: u32 = 80 * 1024;

/// What `packed` holds, unpacked as its first bytes ask for.
pub(crate) fn reader<'a>(packed: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut packed = BufReader::with_capacity(128 << 10, packed);
    let start = packed.fill_buf()?;
    if start.starts_with(&XZ) {
        let reader = XzReader::new_mem_limit(packed, true, XZ_MEMORY_KIB_MAX);
        return Ok(Box::new(reader));
    }
    if start.starts_with(&GZIP) {
        return Ok(Box::new(MultiGzDecoder::new(packed)));
    }
    if start.starts_with(&ZSTD) {
        let decoder = StreamingDecoder::new(packed).map_err(io::Error::other)?;
        return Ok(Box::new(decoder));
    }
    Ok(Box::new(packed))
}

/// Reads everything, but no more than `most` bytes.
pub(crate) fn read_bounded(reader: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    reader
        .take(most.saturating_add(1))
        .read_to_end(&mut content)?;
    match content.len() as u64 > most {
        true => Err(io::Error::other(format!("it is larger than {most} bytes"))),
        false => Ok(content),
    }
}

/// The content of one small file, unpacked, at most `most` bytes of it.
pub(crate) fn whole(packed: &[u8], most: u64) -> io::Result<Vec<u8>> {
    read_bounded(reader(packed)?, most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// `xz -9 --check=crc32` of "module\n", as a kernel's modules are packed.
    const PACKED_XZ: &[u8] = &[
        0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x01, 0x69, 0x22, 0xde, 0x36, 0x02, 0x00, 0x21,
        0x01, 0x1c, 0x00, 0x00, 0x00, 0x10, 0xcf, 0x58, 0xcc, 0x01, 0x00, 0x06, 0x6d, 0x6f, 0x64,
        0x75, 0x6c, 0x65, 0x0a, 0x00, 0x00, 0x4f, 0x8a, 0x6e, 0x07, 0x00, 0x01, 0x1b, 0x07, 0x12,
        0xeb, 0xd4, 0x17, 0x90, 0x42, 0x99, 0x0d, 0x01, 0x00, 0x00, 0x00, 0x00, 0x01, 0x59, 0x5a,
    ];

    #[test]
    fn content_is_unpacked_by_its_first_bytes() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"module\n").unwrap();
        let gzip = gzip.finish().unwrap();
        let zstd = ruzstd::encoding::compress_to_vec(
            &b"module\n"[..],
            ruzstd::encoding::CompressionLevel::Fastest,
        );
        for packed in [&gzip[..], &zstd, PACKED_XZ, b"module\n"] {
            assert_eq!(whole(packed, 7).unwrap(), b"module\n");
            assert!(whole(packed, 6).is_err());
        }
    }

    #[test]
    fn what_is_cut_short_is_an_error() {
        for length in [6, 30, PACKED_XZ.len() - 1] {
            assert!(whole(&PACKED_XZ[..length], 100).is_err(), "{length}");
        }
        assert!(whole(&ZSTD, 100).is_err());
        assert!(whole(&GZIP, 100).is_err());
    }
}
