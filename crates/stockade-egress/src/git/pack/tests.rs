//! Packs written by hand, whole and in pieces.

use super::*;
use flate2::{Compression, write::ZlibEncoder};
use std::io::Write;

const SECRET: &[u8] = b"ghp_0123456789abcdef";
const BLOB: u8 = 3;
const OFFSET_DELTA: u8 = 6;

fn object(kind: u8, base: &[u8], contents: &[u8]) -> Vec<u8> {
    object_of_size(kind, base, contents, contents.len())
}

fn object_of_size(kind: u8, base: &[u8], contents: &[u8], size: usize) -> Vec<u8> {
    let mut output = Vec::new();
    let mut left = size >> 4;
    let mut byte = kind << 4 | (size & 0x0f) as u8;
    while left > 0 {
        output.push(byte | 0x80);
        byte = (left & 0x7f) as u8;
        left >>= 7;
    }
    output.push(byte);
    output.extend_from_slice(base);
    let mut encoder = ZlibEncoder::new(output, Compression::fast());
    encoder.write_all(contents).unwrap();
    encoder.finish().unwrap()
}

fn pack(objects: &[Vec<u8>]) -> Vec<u8> {
    let mut output = b"PACK\0\0\0\x02".to_vec();
    output.extend_from_slice(&(objects.len() as u32).to_be_bytes());
    objects
        .iter()
        .for_each(|object| output.extend_from_slice(object));
    output.extend_from_slice(&[0; 20]);
    output
}

fn scan(pack: &[u8], piece: usize) -> Result<Finding, BadPack> {
    let secret = str::from_utf8(SECRET).unwrap();
    let needles = Needles::new([secret]).unwrap();
    let mut scanner = Scanner::new(&needles, Hash::Sha1, 1 << 20);
    for piece in pack.chunks(piece) {
        scanner.feed(piece)?;
    }
    scanner.finish()?;
    Ok(scanner.finding())
}

fn check(pack: &[u8], expected: Result<Finding, BadPack>) {
    for piece in [1, 7, pack.len()] {
        assert_eq!(scan(pack, piece), expected, "in pieces of {piece}");
    }
}

/// Two literals, with a copy between them or not.
fn delta(first: &[u8], copy: &[u8], second: &[u8]) -> Vec<u8> {
    let mut delta = vec![0x80, 0x01, 0x20, first.len() as u8];
    delta.extend_from_slice(first);
    delta.extend_from_slice(copy);
    delta.push(second.len() as u8);
    delta.extend_from_slice(second);
    delta
}

#[test]
fn a_secret_is_found_in_every_kind_of_object() {
    for kind in 1..=4 {
        let innocent = object(kind, b"", &[b'x'; 5000]);
        check(&pack(std::slice::from_ref(&innocent)), Ok(Finding::Nothing));
        let text = [&[b'x'; 5000], SECRET].concat();
        let guilty = object(kind, b"", &text);
        check(&pack(&[innocent, guilty]), Ok(Finding::Secret));
    }
}

#[test]
fn a_secret_is_found_in_the_literals_of_a_delta() {
    let (head, tail) = SECRET.split_at(9);
    for (base, kind) in [(&b"\x81\x01"[..], OFFSET_DELTA), (&[9; 20], 7)] {
        let plain = object(BLOB, b"", b"base");
        let whole = delta(b"x", b"", SECRET);
        let guilty = object(kind, base, &whole);
        check(&pack(&[plain.clone(), guilty]), Ok(Finding::Secret));
        let split = object(kind, base, &delta(head, b"", tail));
        check(&pack(&[plain.clone(), split]), Ok(Finding::Secret));
        // With something from the base between them it is another text.
        let parted = object(kind, base, &delta(head, b"\xb1\x01\x02\x03", tail));
        check(&pack(&[plain, parted]), Ok(Finding::Nothing));
    }
}

#[test]
fn the_form_of_a_pack_is_exact() {
    let good = pack(&[object(BLOB, b"", b""), object(BLOB, b"", b"text")]);
    check(&good, Ok(Finding::Nothing));
    check(&pack(&[]), Ok(Finding::Nothing));
    check(&good[..good.len() - 1], Err(BadPack::Truncated));
    check(&[&good[..], b"x"].concat(), Err(BadPack::Trailing));
    check(b"PACK\0\0\0\x04\0\0\0\0", Err(BadPack::Header));
    check(b"KCAP\0\0\0\x02\0\0\0\0", Err(BadPack::Header));
    for kind in [0, 5] {
        check(&pack(&[object(kind, b"", b"x")]), Err(BadPack::ObjectType));
    }
    for size in [3, 5] {
        let object = object_of_size(BLOB, b"", b"text", size);
        check(&pack(&[object]), Err(BadPack::Size));
    }
    let mut broken = pack(&[object(BLOB, b"", b"text")]);
    broken[13] ^= 0xff;
    check(&broken, Err(BadPack::Compression));
    let endless = [b"PACK\0\0\0\x02\0\0\0\x01".as_slice(), &[0xff; 100]].concat();
    check(&endless, Err(BadPack::ObjectHeader));
}

#[test]
fn malformed_deltas_are_refused() {
    for contents in [
        &b"\x01"[..],
        b"\x01\x01\x00",
        b"\x01\x01\x05abc",
        b"\x01\x01\x91\x01",
        &[0x80; 12],
    ] {
        let object = object(OFFSET_DELTA, b"\x0c", contents);
        check(&pack(&[object]), Err(BadPack::Delta));
    }
}

#[test]
fn a_bomb_is_refused() {
    let bomb = object(BLOB, b"", &vec![0; (1 << 20) + 1]);
    assert!(bomb.len() < 8192);
    check(&pack(&[bomb]), Err(BadPack::TooLarge(1 << 20)));
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes: Vec<u8>, piece in 1_usize..40) {
        let start = b"PACK\0\0\0\x02\0\0\0\x02".as_slice();
        let first = scan(&[start, &bytes].concat(), piece);
        proptest::prop_assert!(first.is_err());
    }
}
