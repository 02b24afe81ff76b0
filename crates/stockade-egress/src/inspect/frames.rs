//! The frames of a WebSocket (RFC 6455, section 5), read where a secret could
//! be in them.
//!
//! What the origin sends is put into new frames, because a secret may lie
//! across two of them; what the client sends is only looked at.

use bytes::{Bytes, BytesMut};

use crate::credential::Scrubber;

/// Most bytes of a control frame's payload.
const CONTROL_BYTES_MAX: u64 = 125;

const FINAL: u8 = 0x80;
const RESERVED: u8 = 0x70;
const OPCODE: u8 = 0x0f;
const MASKED: u8 = 0x80;
const CONTINUATION: u8 = 0;
const CONTROL: u8 = 8;

/// Why frames are not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a WebSocket frame is not as RFC 6455 has it, or uses an extension")]
pub struct BadFrame;

/// Which end sends: clients mask, servers do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    Client,
    Origin,
}

/// Reads frames that come in pieces.
pub struct FrameReader {
    sender: Sender,
    /// The beginning of a frame, until it is known where its payload begins.
    head: Vec<u8>,
    frame: Option<Frame>,
}

#[derive(Clone, Copy)]
struct Frame {
    opcode: u8,
    last: bool,
    mask: [u8; 4],
    read: u64,
    length: u64,
}

/// A part of one frame's payload, unmasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// As in the frame; 0 for one that continues a message.
    pub opcode: u8,
    /// The frame begins or ends with this part.
    pub begins: bool,
    pub ends: bool,
    /// The frame is the last of its message.
    pub last: bool,
}

/// Puts what an origin sends into new frames, without secrets.
pub struct Reframer {
    reader: FrameReader,
    scrubber: Scrubber,
    control: Vec<u8>,
    /// What the first frame of the message has to say, until it was sent.
    opcode: u8,
}

impl FrameReader {
    pub fn new(sender: Sender) -> Self {
        Self {
            sender,
            head: Vec::new(),
            frame: None,
        }
    }

    /// Calls `each` for every part of a payload in `bytes`.
    pub fn read<E: From<BadFrame>>(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(Part, Bytes) -> Result<(), E>,
    ) -> Result<(), E> {
        loop {
            let Some(frame) = &mut self.frame else {
                let Some((byte, rest)) = bytes.split_first() else {
                    return Ok(());
                };
                bytes = rest;
                self.head.push(*byte);
                self.frame = parse(&self.head, self.sender)?;
                continue;
            };
            let left = frame.length - frame.read;
            let taken = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
            let ends = taken as u64 == left;
            if taken == 0 && !ends {
                return Ok(());
            }
            let (payload, rest) = bytes.split_at(taken);
            bytes = rest;
            let part = Part {
                opcode: frame.opcode,
                begins: frame.read == 0,
                ends,
                last: frame.last,
            };
            let payload = frame.unmasked(payload);
            if ends {
                self.frame = None;
                self.head.clear();
            }
            each(part, payload)?;
        }
    }
}

impl Frame {
    fn unmasked(&mut self, payload: &[u8]) -> Bytes {
        let mut clear = BytesMut::from(payload);
        if self.mask != [0; 4] {
            for (byte, at) in clear.iter_mut().zip(self.read..) {
                // Of four; the cast keeps the low bits.
                *byte ^= self.mask[(at % 4) as usize];
            }
        }
        self.read += payload.len() as u64;
        clear.freeze()
    }
}

/// The frame whose beginning is `head`; `None` when more of it has to come.
fn parse(head: &[u8], sender: Sender) -> Result<Option<Frame>, BadFrame> {
    let [first, second, ..] = *head else {
        return Ok(None);
    };
    let masked = second & MASKED != 0;
    if first & RESERVED != 0 || masked != (sender == Sender::Client) {
        return Err(BadFrame);
    }
    let opcode = first & OPCODE;
    let extended = match second & !MASKED {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let Some(rest) = head.get(2 + extended..) else {
        return Ok(None);
    };
    let length = match extended {
        0 => u64::from(second & !MASKED),
        _ => head[2..2 + extended]
            .iter()
            .fold(0, |length, byte| length << 8 | u64::from(*byte)),
    };
    let known = matches!(opcode, 0..=2 | 8..=10);
    let control = opcode >= CONTROL;
    let last = first & FINAL != 0;
    if !known || length >> 63 != 0 || control && (length > CONTROL_BYTES_MAX || !last) {
        return Err(BadFrame);
    }
    let mask = match (masked, rest) {
        (false, _) => [0; 4],
        (true, [a, b, c, d, ..]) => [*a, *b, *c, *d],
        (true, _) => return Ok(None),
    };
    Ok(Some(Frame {
        opcode,
        last,
        mask,
        read: 0,
        length,
    }))
}

impl Reframer {
    pub fn new(scrubber: Scrubber) -> Self {
        Self {
            reader: FrameReader::new(Sender::Origin),
            scrubber,
            control: Vec::new(),
            opcode: CONTINUATION,
        }
    }

    /// How many secrets were taken out so far.
    pub fn count(&self) -> u64 {
        self.scrubber.count()
    }

    /// The frames to send for the next bytes from the origin.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<u8>, BadFrame> {
        let mut out = Vec::with_capacity(bytes.len() + 16);
        let Self {
            reader,
            scrubber,
            control,
            opcode,
        } = self;
        reader.read::<BadFrame>(bytes, |part, payload| {
            if part.opcode >= CONTROL {
                control.extend_from_slice(&payload);
                if part.ends {
                    let whole = scrubber.whole(control);
                    let payload = whole.as_deref().unwrap_or(control);
                    write(&mut out, part.opcode | FINAL, payload);
                    control.clear();
                }
                return Ok(());
            }
            if part.begins && part.opcode != CONTINUATION {
                *opcode = part.opcode;
            }
            let clean = scrubber.chunk(payload);
            let last = part.ends && part.last;
            if last {
                let rest = scrubber.finish();
                let joined = [&clean[..], &rest[..]].concat();
                write(&mut out, *opcode | FINAL, &joined);
            } else if !clean.is_empty() {
                write(&mut out, *opcode, &clean);
            }
            if last || !clean.is_empty() {
                *opcode = CONTINUATION;
            }
            Ok(())
        })?;
        Ok(out)
    }
}

fn write(out: &mut Vec<u8>, first: u8, payload: &[u8]) {
    out.push(first);
    match payload.len() {
        length @ ..=125 => out.push(length as u8),
        length @ ..=0xffff => {
            out.push(126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            out.push(127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(sender: Sender, pieces: &[&[u8]]) -> Result<Vec<(Part, Bytes)>, BadFrame> {
        let mut reader = FrameReader::new(sender);
        let mut parts = Vec::new();
        for piece in pieces {
            reader.read::<BadFrame>(piece, |part, payload| {
                parts.push((part, payload));
                Ok(())
            })?;
        }
        Ok(parts)
    }

    #[test]
    fn row_50_a_masked_frame_is_read_across_pieces() {
        // The example of RFC 6455, section 5.7: "Hello", masked.
        let frame = [
            0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58,
        ];
        for cut in 0..frame.len() {
            let (before, after) = frame.split_at(cut);
            let parts = parts(Sender::Client, &[before, after]).unwrap();
            let text: Vec<u8> = parts.iter().flat_map(|(_, text)| text.to_vec()).collect();
            assert_eq!(text, b"Hello", "{cut}");
            assert!(parts.last().unwrap().0.ends);
        }
    }

    #[test]
    fn row_50_what_cannot_be_read_is_refused() {
        for frame in [
            // Compressed, masked by a server, unknown, and long or cut control.
            &[0xc1, 0x00][..],
            &[0x81, 0x80, 0, 0, 0, 0],
            &[0x83, 0x00],
            &[0x89, 126, 0, 200],
            &[0x09, 0x00],
            &[0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert_eq!(parts(Sender::Origin, &[frame]), Err(BadFrame), "{frame:?}");
        }
        assert_eq!(parts(Sender::Client, &[&[0x81, 0x05]]), Err(BadFrame));
        assert!(parts(Sender::Origin, &[&[0x81, 0x00, 0x8a, 0x00]]).is_ok());
    }
}
