//! Reads a pack (gitformat-pack(5)) as it passes and searches every object in
//! it for secrets: contents, file names, commit and tag messages.
//!
//! A pack that is not exactly what the format says is refused. Its commits are
//! kept ([`super::history`]), so that one can tell which contains which. Of an object
//! stored as a delta the literal parts are searched; the parts that it copies
//! from its base are searched where the base is, if it is in the pack. The
//! checksum at the end is left to the server.

mod delta;

use flate2::{Decompress, FlushDecompress, Status};

use self::delta::Delta;
use super::commands::Hash;
use super::history::{self, History};
use super::needles::{Needles, Search};

/// A pack may inflate to this many times its largest permitted size.
pub const INFLATION_MAX: u64 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPack {
    #[error("it is no pack of version 2 or 3")]
    Header,
    #[error("an object has a type that does not exist")]
    ObjectType,
    #[error("the header of an object is malformed")]
    ObjectHeader,
    #[error("an object is not compressed as it should be")]
    Compression,
    #[error("an object is not as large as it says")]
    Size,
    #[error("a delta is malformed")]
    Delta,
    #[error("it inflates to more than {0} bytes")]
    TooLarge(u64),
    #[error("there is something behind its end")]
    Trailing,
    #[error("it ends too early")]
    Truncated,
}

/// Reads one pack.
pub struct Scanner {
    state: State,
    hash: Hash,
    /// Bytes of a header that is not complete yet.
    pending: Vec<u8>,
    objects_left: u32,
    inflate: Decompress,
    output: Box<[u8]>,
    object: Object,
    /// How much of the pack was read.
    position: u64,
    inflated: u64,
    inflated_max: u64,
    needles: Needles,
    search: Search,
    finding: Finding,
    history: History,
}

/// Whether there is a secret in what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    Nothing,
    Secret,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Header,
    ObjectHeader,
    Contents,
    Trailer,
    End,
}

/// The object that is being read.
struct Object {
    kind: Kind,
    size: u64,
    seen: u64,
    delta: Option<Delta>,
    /// Where it begins.
    offset: u64,
    /// What was read of it, where it may be a commit.
    kept: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Commit,
    Other,
    /// A delta against the object that begins at this distance before.
    Offset(u64),
    /// A delta against the object of this name.
    Reference(Vec<u8>),
}

/// Longest header of an object: a size of ten bytes and a name of 32.
const OBJECT_HEADER_BYTES_MAX: usize = 10 + 32;
const INFLATE_BYTES: usize = 64 * 1024;

impl Scanner {
    /// `inflated_max` is how many bytes all objects together may have.
    pub fn new(needles: &Needles, hash: Hash, inflated_max: u64) -> Self {
        Self {
            state: State::Header,
            hash,
            pending: Vec::new(),
            objects_left: 0,
            inflate: Decompress::new(true),
            output: vec![0; INFLATE_BYTES].into_boxed_slice(),
            object: Object {
                kind: Kind::Other,
                size: 0,
                seen: 0,
                delta: None,
                offset: 0,
                kept: None,
            },
            position: 0,
            inflated: 0,
            inflated_max,
            needles: needles.clone(),
            search: needles.search(),
            finding: Finding::Nothing,
            history: History::new(hash),
        }
    }

    pub fn finding(&self) -> Finding {
        self.finding
    }

    /// The commits that were read.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Whether the pack is complete.
    pub fn is_complete(&self) -> bool {
        self.state == State::End
    }

    /// Reads the next piece. After an error the scanner is of no use.
    pub fn feed(&mut self, mut input: &[u8]) -> Result<(), BadPack> {
        while !input.is_empty() {
            let rest = match self.state {
                State::Header => self.header(input)?,
                State::ObjectHeader => self.object_header(input)?,
                State::Contents => self.contents(input)?,
                State::Trailer => self.trailer(input),
                State::End => return Err(BadPack::Trailing),
            };
            self.position += (input.len() - rest.len()) as u64;
            input = rest;
        }
        Ok(())
    }

    /// To be called when the stream is over.
    pub fn finish(&self) -> Result<(), BadPack> {
        if self.is_complete() {
            Ok(())
        } else {
            Err(BadPack::Truncated)
        }
    }

    fn header<'a>(&mut self, input: &'a [u8]) -> Result<&'a [u8], BadPack> {
        let rest = self.collect(input, 12);
        let Ok(header) = <[u8; 12]>::try_from(&*self.pending) else {
            return Ok(rest);
        };
        let [magic @ .., v3, v2, v1, v0, c3, c2, c1, c0] = header;
        let version = u32::from_be_bytes([v3, v2, v1, v0]);
        if magic != *b"PACK" || !matches!(version, 2 | 3) {
            return Err(BadPack::Header);
        }
        self.objects_left = u32::from_be_bytes([c3, c2, c1, c0]);
        self.pending.clear();
        self.next_object();
        Ok(rest)
    }

    fn object_header<'a>(&mut self, input: &'a [u8]) -> Result<&'a [u8], BadPack> {
        let (first, rest) = input.split_at(1);
        self.pending.extend_from_slice(first);
        if let Some(mut object) = parse_object_header(&self.pending, self.hash)? {
            // The byte that completed the header is not counted yet.
            object.offset = self.position + 1 - self.pending.len() as u64;
            object.kept = self.may_be_commit(&object).then(Vec::new);
            self.object = object;
            self.pending.clear();
            self.inflate.reset(true);
            self.search = self.needles.search();
            self.state = State::Contents;
        } else if self.pending.len() > OBJECT_HEADER_BYTES_MAX {
            return Err(BadPack::ObjectHeader);
        }
        Ok(rest)
    }

    fn contents<'a>(&mut self, input: &'a [u8]) -> Result<&'a [u8], BadPack> {
        let mut output = std::mem::take(&mut self.output);
        let (taken, given) = (self.inflate.total_in(), self.inflate.total_out());
        let status = self
            .inflate
            .decompress(input, &mut output, FlushDecompress::None)
            .map_err(|_| BadPack::Compression)?;
        // Both are at most the length of a slice.
        let taken = (self.inflate.total_in() - taken) as usize;
        let given = (self.inflate.total_out() - given) as usize;
        self.inflated_bytes(&output[..given])?;
        self.output = output;
        match status {
            Status::StreamEnd => self.end_of_object()?,
            // No progress though there was input and room.
            _ if taken == 0 && given == 0 => return Err(BadPack::Compression),
            _ => {}
        }
        Ok(&input[taken..])
    }

    fn inflated_bytes(&mut self, bytes: &[u8]) -> Result<(), BadPack> {
        self.inflated += bytes.len() as u64;
        self.object.seen += bytes.len() as u64;
        if self.inflated > self.inflated_max {
            return Err(BadPack::TooLarge(self.inflated_max));
        }
        if self.object.seen > self.object.size {
            return Err(BadPack::Size);
        }
        if let Some(kept) = &mut self.object.kept {
            kept.extend_from_slice(bytes);
        }
        let found = match &mut self.object.delta {
            Some(delta) => delta.feed(bytes, &mut self.search)?,
            None => self.search.feed(bytes),
        };
        if found {
            self.finding = Finding::Secret;
        }
        Ok(())
    }

    fn may_be_commit(&self, object: &Object) -> bool {
        let base = match &object.kind {
            Kind::Commit => true,
            Kind::Other => false,
            Kind::Offset(distance) => self.history.has_at(object.offset.wrapping_sub(*distance)),
            Kind::Reference(name) => self.history.has(name),
        };
        base && object.size <= history::COMMIT_BYTES_MAX
    }

    fn keep_commit(&mut self) {
        let (offset, Some(kept)) = (self.object.offset, self.object.kept.take()) else {
            return;
        };
        match &self.object.kind {
            Kind::Commit => self.history.add(offset, kept),
            Kind::Offset(distance) => {
                let base = offset.wrapping_sub(*distance);
                self.history.add_delta(offset, base, &kept);
            }
            Kind::Reference(name) => {
                if let Some(base) = self.history.offset_of(name) {
                    self.history.add_delta(offset, base, &kept);
                }
            }
            Kind::Other => {}
        }
    }

    fn end_of_object(&mut self) -> Result<(), BadPack> {
        if self.object.seen != self.object.size {
            return Err(BadPack::Size);
        }
        if self
            .object
            .delta
            .as_ref()
            .is_some_and(|delta| !delta.is_complete())
        {
            return Err(BadPack::Delta);
        }
        self.keep_commit();
        self.objects_left -= 1;
        self.next_object();
        Ok(())
    }

    fn next_object(&mut self) {
        self.state = match self.objects_left {
            0 => State::Trailer,
            _ => State::ObjectHeader,
        };
    }

    fn trailer<'a>(&mut self, input: &'a [u8]) -> &'a [u8] {
        let rest = self.collect(input, self.hash.bytes());
        if self.pending.len() == self.hash.bytes() {
            self.state = State::End;
        }
        rest
    }

    /// Moves bytes to `pending` until it has `wanted`.
    fn collect<'a>(&mut self, input: &'a [u8], wanted: usize) -> &'a [u8] {
        let missing = wanted.saturating_sub(self.pending.len());
        let (taken, rest) = input.split_at(missing.min(input.len()));
        self.pending.extend_from_slice(taken);
        rest
    }
}

/// `None` when more bytes are needed.
fn parse_object_header(bytes: &[u8], hash: Hash) -> Result<Option<Object>, BadPack> {
    let Some(size_bytes) = varint_bytes(bytes) else {
        return Ok(None);
    };
    // Four bits in the first byte, seven in each other one.
    let mut size = u64::from(bytes[0] & 0x0f);
    for (index, byte) in bytes[1..size_bytes].iter().enumerate() {
        let part = u64::from(byte & 0x7f);
        let shift = 4 + 7 * index as u32;
        if shift >= u64::BITS || part.leading_zeros() < shift {
            return Err(BadPack::ObjectHeader);
        }
        size |= part << shift;
    }
    let Some(kind) = parse_kind(bytes[0] >> 4 & 7, &bytes[size_bytes..], hash)? else {
        return Ok(None);
    };
    let is_delta = matches!(kind, Kind::Offset(_) | Kind::Reference(_));
    Ok(Some(Object {
        kind,
        size,
        seen: 0,
        delta: is_delta.then(Delta::default),
        offset: 0,
        kept: None,
    }))
}

/// `None` when more bytes of the base are needed.
fn parse_kind(code: u8, base: &[u8], hash: Hash) -> Result<Option<Kind>, BadPack> {
    let kind = match code {
        1 => Kind::Commit,
        2..=4 => Kind::Other,
        6 => match varint_bytes(base) {
            Some(bytes) => Kind::Offset(distance(&base[..bytes])?),
            None => return Ok(None),
        },
        7 => match base.get(..hash.bytes()) {
            Some(name) => Kind::Reference(name.to_vec()),
            None => return Ok(None),
        },
        _ => return Err(BadPack::ObjectType),
    };
    Ok(Some(kind))
}

/// Seven bits a byte, the first the highest; each but the last counts one more.
fn distance(bytes: &[u8]) -> Result<u64, BadPack> {
    let (last, leading) = bytes.split_last().ok_or(BadPack::ObjectHeader)?;
    let mut distance: u64 = 0;
    for byte in leading {
        distance = (distance << 7 | u64::from(byte & 0x7f)) + 1;
        if distance > u64::MAX >> 8 {
            return Err(BadPack::ObjectHeader);
        }
    }
    Ok(distance << 7 | u64::from(last & 0x7f))
}

/// How many bytes a number takes whose bytes but the last have the high bit.
fn varint_bytes(bytes: &[u8]) -> Option<usize> {
    let last = bytes.iter().position(|byte| byte & 0x80 == 0)?;
    Some(last + 1)
}

#[cfg(test)]
mod tests;
