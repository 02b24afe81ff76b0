//! The chunked coding of a body (RFC 9112 §7.1), in its plainest form: no
//! extensions, no white space, and trailers that change nothing.

use crate::front::head::{
    BODY_BYTES_MAX, BadHead, HeadReader, Section, check_trailers, parse_fields,
};

/// Digits of a chunk's size, so that zeros in front do not go on for ever.
const SIZE_DIGITS_MAX: usize = 16;

/// Follows one chunked body from its first size to the end of its trailers.
#[derive(Debug)]
pub struct Chunks(State);

#[derive(Debug)]
enum State {
    Size { digits: usize, size: u64 },
    SizeEnd { size: u64 },
    Data { left: u64 },
    DataReturn,
    DataEnd,
    Trailers { reader: HeadReader, held: Vec<u8> },
    Done,
}

const NEXT_SIZE: State = State::Size { digits: 0, size: 0 };

impl Default for Chunks {
    fn default() -> Self {
        Self(NEXT_SIZE)
    }
}

impl Chunks {
    /// Appends to `passed` what is good, and says how many bytes were taken
    /// and whether the body has ended.
    pub fn push(&mut self, bytes: &[u8], passed: &mut Vec<u8>) -> Result<(usize, bool), BadHead> {
        let mut taken = 0;
        while taken < bytes.len() && !matches!(self.0, State::Done) {
            taken += self.step(&bytes[taken..], passed)?;
        }
        Ok((taken, matches!(self.0, State::Done)))
    }

    fn step(&mut self, bytes: &[u8], passed: &mut Vec<u8>) -> Result<usize, BadHead> {
        match &mut self.0 {
            State::Data { left } => {
                let taken =
                    usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= taken as u64;
                if *left == 0 {
                    self.0 = State::DataReturn;
                }
                passed.extend_from_slice(&bytes[..taken]);
                Ok(taken)
            }
            State::Trailers { reader, held } => {
                let end = reader.feed(bytes)?;
                let taken = end.unwrap_or(bytes.len());
                held.extend_from_slice(&bytes[..taken]);
                if end.is_some() {
                    check_trailers(&parse_fields(held)?)?;
                    passed.append(held);
                    self.0 = State::Done;
                }
                Ok(taken)
            }
            _ => {
                self.0 = self.after_byte(bytes[0])?;
                passed.push(bytes[0]);
                Ok(1)
            }
        }
    }

    /// In the states that go byte by byte.
    fn after_byte(&self, byte: u8) -> Result<State, BadHead> {
        match (&self.0, byte) {
            (State::Size { digits, size }, _) if byte.is_ascii_hexdigit() => {
                let digit = char::from(byte).to_digit(16).ok_or(BadHead::Chunk)?;
                // At most 2^53 before, so that the product fits.
                let size = size * 16 + u64::from(digit);
                let digits = digits + 1;
                if digits > SIZE_DIGITS_MAX || size > BODY_BYTES_MAX {
                    return Err(BadHead::Chunk);
                }
                Ok(State::Size { digits, size })
            }
            (State::Size { digits: 1.., size }, b'\r') => Ok(State::SizeEnd { size: *size }),
            (State::SizeEnd { size: 0 }, b'\n') => Ok(State::Trailers {
                reader: HeadReader::new(Section::Trailers),
                held: Vec::new(),
            }),
            (State::SizeEnd { size }, b'\n') => Ok(State::Data { left: *size }),
            (State::DataReturn, b'\r') => Ok(State::DataEnd),
            (State::DataEnd, b'\n') => Ok(NEXT_SIZE),
            _ => Err(BadHead::Chunk),
        }
    }
}
