//! Bytes on their way: buffers of a fixed size, taken once.

use alloc::vec;
use alloc::vec::Vec;

use serde::Serialize;

use crate::wire::{self, BODY_BYTES_MAX, HEADER_BYTES, WireError};

/// Bytes that are put in at one end and taken out at the other.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    /// A buffer for at most so many bytes.
    pub fn new(capacity: usize) -> Self {
        Self {
            bytes: vec![0; capacity],
            start: 0,
            end: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.end - self.start
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// How many more bytes there is room for.
    pub fn room(&self) -> usize {
        self.bytes.len() - self.len()
    }

    /// What is in it, oldest first.
    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The room, in one piece.
    pub fn free(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.bytes[self.end..]
    }

    /// So many bytes of the free room were filled in.
    pub fn fill(&mut self, length: usize) {
        self.end = self.bytes.len().min(self.end + length);
    }

    /// So many of the oldest bytes were used.
    pub fn consume(&mut self, length: usize) {
        self.start = self.end.min(self.start + length);
        if self.start == self.end {
            self.clear();
        }
    }

    /// Puts all of `bytes` in, or nothing.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        let free = self.free();
        let target = free.get_mut(..bytes.len()).ok_or(WireError::NoRoom)?;
        target.copy_from_slice(bytes);
        self.fill(bytes.len());
        Ok(())
    }

    /// Puts a frame in.
    pub fn frame<T: Serialize>(&mut self, task: u32, message: &T) -> Result<(), WireError> {
        // What was sent already is given up only when its room is needed:
        // moving the rest at each frame would cost more than sending it.
        let length = match wire::encode(task, message, &mut self.bytes[self.end..]) {
            Ok(length) => length,
            Err(_) => wire::encode(task, message, self.free())?,
        };
        self.fill(length);
        Ok(())
    }

    pub fn clear(&mut self) {
        self.start = 0;
        self.end = 0;
    }
}

/// One frame of an [`Inbox`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub task: u32,
    pub body: &'a [u8],
    /// What to [`consume`](Inbox::consume) afterwards.
    pub length: usize,
}

/// Frames on their way in. Room for the largest is always there.
#[derive(Debug)]
pub struct Inbox(Buffer);

impl Default for Inbox {
    fn default() -> Self {
        Self(Buffer::new(HEADER_BYTES + BODY_BYTES_MAX))
    }
}

impl Inbox {
    /// Where what comes next is to be put.
    pub fn free(&mut self) -> &mut [u8] {
        self.0.free()
    }

    pub fn fill(&mut self, length: usize) {
        self.0.fill(length);
    }

    /// The oldest frame, when all of it is there.
    pub fn first(&self) -> Result<Option<Frame<'_>>, WireError> {
        let filled = self.0.filled();
        let Some(bytes) = filled.first_chunk() else {
            return Ok(None);
        };
        let (length, task) = wire::header(*bytes)?;
        let whole = HEADER_BYTES + length;
        let body = filled.get(HEADER_BYTES..whole);
        Ok(body.map(|body| Frame {
            task,
            body,
            length: whole,
        }))
    }

    pub fn consume(&mut self, length: usize) {
        self.0.consume(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Request;
    use proptest::prelude::*;

    #[test]
    fn a_buffer_takes_all_or_nothing_and_keeps_the_order() {
        let mut buffer = Buffer::new(4);
        buffer.push(b"abc").unwrap();
        assert_eq!(buffer.push(b"de"), Err(WireError::NoRoom));
        buffer.consume(2);
        buffer.push(b"def").unwrap();
        assert_eq!((buffer.filled(), buffer.room()), (&b"cdef"[..], 0));
        buffer.consume(9);
        assert!(buffer.is_empty());
    }

    proptest! {
        /// However a stream is cut, the same frames come out.
        #[test]
        fn frames_come_out_as_they_went_in(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20),
            cut in 1usize..200,
        ) {
            let mut out = Buffer::new(64 * 1024);
            for (task, body) in (0..).zip(&bodies) {
                out.frame(task, &Request::Data(body)).unwrap();
            }
            let mut inbox = Inbox::default();
            let mut seen = Vec::new();
            for piece in out.filled().chunks(cut) {
                inbox.free()[..piece.len()].copy_from_slice(piece);
                inbox.fill(piece.len());
                while let Some(frame) = inbox.first().unwrap() {
                    let length = frame.length;
                    let Ok(Request::Data(bytes)) = wire::decode(frame.body) else { panic!() };
                    prop_assert_eq!(frame.task as usize, seen.len());
                    seen.push(bytes.to_vec());
                    inbox.consume(length);
                }
            }
            prop_assert_eq!(seen, bodies);
        }
    }
}
