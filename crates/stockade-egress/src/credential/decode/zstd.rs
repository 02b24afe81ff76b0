//! `zstd` (RFC 8878), one block at a time so that few bytes cannot become many
//! at once; windows of at most 8 MiB, as RFC 9659 demands of this coding.

use ruzstd::decoding::FrameDecoder;

use super::{Decode, Step};

const WINDOW_BYTES_MAX: u64 = 8 * 1024 * 1024;
const BLOCK_BYTES_MAX: usize = 128 * 1024;
const CHECKSUM_BYTES: usize = 4;

pub(super) struct Zstd {
    frame: FrameDecoder,
    place: Place,
    /// Whether a checksum follows the last block.
    has_checksum: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Head {
        is_first: bool,
    },
    Blocks,
    /// All blocks are read; decoded bytes may be left.
    Drain,
}

const WAIT: Step = Step {
    read: 0,
    written: 0,
};

impl Zstd {
    pub(super) fn new() -> Self {
        Self {
            frame: FrameDecoder::new(),
            place: Place::Head { is_first: true },
            has_checksum: false,
        }
    }

    fn head(&mut self, input: &[u8]) -> Result<Step, String> {
        let Some(head) = Head::parse(input)? else {
            return Ok(WAIT);
        };
        if head.window_bytes > WINDOW_BYTES_MAX {
            return Err("its compression window is larger than 8 MiB".to_owned());
        }
        self.frame
            .reset(&input[..head.length])
            .map_err(|_| "it is not zstd".to_owned())?;
        self.has_checksum = head.has_checksum;
        self.place = Place::Blocks;
        Ok(Step {
            read: head.length,
            written: 0,
        })
    }

    fn block(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, String> {
        // What is decoded goes out before more is decoded.
        let written = self.drain(output)?;
        let Some(&[a, b, c]) = input.first_chunk::<3>() else {
            return Ok(Step { read: 0, written });
        };
        let head = u32::from_le_bytes([a, b, c, 0]);
        let (is_last, kind) = (head & 1 == 1, (head >> 1) & 3);
        let size = usize::try_from(head >> 3).map_err(|_| "a block is too long".to_owned())?;
        if size > BLOCK_BYTES_MAX {
            return Err("a block is too long".to_owned());
        }
        // One byte stands for all of a block that repeats it.
        let content = if kind == 1 { 1 } else { size };
        let checksum = if is_last && self.has_checksum {
            CHECKSUM_BYTES
        } else {
            0
        };
        let length = 3 + content + checksum;
        if written > 0 || input.len() < length {
            return Ok(Step { read: 0, written });
        }
        let (read, written) = self
            .frame
            .decode_from_to(&input[..length], output)
            .map_err(|_| "its compressed data is damaged".to_owned())?;
        if is_last {
            self.place = Place::Drain;
        } else if read != length {
            return Err("its compressed data is damaged".to_owned());
        }
        Ok(Step {
            read: length,
            written,
        })
    }

    fn drain(&mut self, output: &mut [u8]) -> Result<usize, String> {
        std::io::Read::read(&mut self.frame, output)
            .map_err(|_| "its compressed data is damaged".to_owned())
    }
}

impl Decode for Zstd {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, String> {
        match self.place {
            Place::Head { .. } => self.head(input),
            Place::Blocks => self.block(input, output),
            Place::Drain => {
                let written = self.drain(output)?;
                if written == 0 {
                    self.place = Place::Head { is_first: false };
                    if !input.is_empty() {
                        return self.head(input);
                    }
                }
                Ok(Step { read: 0, written })
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.place == Place::Head { is_first: false }
    }
}

struct Head {
    length: usize,
    window_bytes: u64,
    has_checksum: bool,
}

impl Head {
    /// RFC 8878, section 3.1.1.1; `None` when more is needed. Skippable frames
    /// and dictionaries are refused: nothing sends them over HTTP.
    fn parse(input: &[u8]) -> Result<Option<Self>, String> {
        let magic = 0xfd2f_b528_u32.to_le_bytes();
        if input
            .iter()
            .zip(magic)
            .any(|(byte, wanted)| *byte != wanted)
        {
            return Err("it is not zstd".to_owned());
        }
        let Some(&descriptor) = input.get(4) else {
            return Ok(None);
        };
        if descriptor & 0x0b != 0 {
            return Err("it needs a dictionary or a later version of zstd".to_owned());
        }
        let is_single = descriptor & 0x20 != 0;
        let size_bytes = match (descriptor >> 6, is_single) {
            (0, false) => 0,
            (0, true) => 1,
            (1, _) => 2,
            (2, _) => 4,
            _ => 8,
        };
        let size_at = if is_single { 5 } else { 6 };
        let length = size_at + size_bytes;
        if input.len() < length {
            return Ok(None);
        }
        let window_bytes = if is_single {
            let mut size = [0; 8];
            size[..size_bytes].copy_from_slice(&input[size_at..length]);
            // Two bytes begin to count at 256.
            u64::from_le_bytes(size).saturating_add(if size_bytes == 2 { 256 } else { 0 })
        } else {
            let base = 1_u64 << (10 + (input[5] >> 3));
            base + base / 8 * u64::from(input[5] & 7)
        };
        Ok(Some(Self {
            length,
            window_bytes,
            has_checksum: descriptor & 0x04 != 0,
        }))
    }
}
