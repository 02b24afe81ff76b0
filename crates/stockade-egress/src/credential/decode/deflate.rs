//! `gzip` (RFC 1952) and `deflate` (RFC 1950, and RFC 1951 as some send it).

use flate2::{Crc, Decompress, FlushDecompress, Status};

use super::{Decode, Step};

/// Longest head of a gzip member, with its name and comment.
const HEAD_BYTES_MAX: usize = 64 * 1024;

pub(super) struct Deflate {
    wrapper: Wrapper,
    place: Place,
    inflate: Decompress,
    crc: Crc,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrapper {
    Gzip,
    ZlibOrRaw,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before a member's head; `seen` members are behind.
    Head {
        seen: u64,
    },
    Data {
        seen: u64,
    },
    /// Before a gzip member's checksum and length.
    Tail {
        seen: u64,
    },
    End,
}

const WAIT: Step = Step {
    read: 0,
    written: 0,
};

impl Deflate {
    pub(super) fn gzip() -> Self {
        Self::new(Wrapper::Gzip)
    }

    pub(super) fn zlib_or_raw() -> Self {
        Self::new(Wrapper::ZlibOrRaw)
    }

    fn new(wrapper: Wrapper) -> Self {
        Self {
            wrapper,
            place: Place::Head { seen: 0 },
            inflate: Decompress::new(false),
            crc: Crc::new(),
        }
    }

    fn head(&mut self, input: &[u8], seen: u64) -> Result<Step, String> {
        let read = match self.wrapper {
            Wrapper::ZlibOrRaw => {
                let [first, second, ..] = *input else {
                    return Ok(WAIT);
                };
                let is_zlib = first & 0x0f == 8
                    && u16::from_be_bytes([first, second]).is_multiple_of(31)
                    && second & 0x20 == 0;
                self.inflate = Decompress::new(is_zlib);
                self.place = Place::Data { seen };
                // The head of zlib is read by the decoder itself, which then
                // needs a step even when nothing else is there.
                return self.data(input, &mut [], seen);
            }
            Wrapper::Gzip => match gzip_head(input)? {
                Some(length) => length,
                None if input.len() > HEAD_BYTES_MAX => {
                    return Err("its gzip head is too long".to_owned());
                }
                None => return Ok(WAIT),
            },
        };
        self.inflate.reset(false);
        self.crc.reset();
        self.place = Place::Data { seen };
        Ok(Step { read, written: 0 })
    }

    fn data(&mut self, input: &[u8], output: &mut [u8], seen: u64) -> Result<Step, String> {
        let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
        let status = self
            .inflate
            .decompress(input, output, FlushDecompress::None)
            .map_err(|_| "its compressed data is damaged".to_owned())?;
        let difference = |after: u64, before: u64| {
            usize::try_from(after - before).map_err(|_| "it is too long".to_owned())
        };
        let read = difference(self.inflate.total_in(), before_in)?;
        let written = difference(self.inflate.total_out(), before_out)?;
        self.crc.update(&output[..written]);
        if status == Status::StreamEnd {
            self.place = match self.wrapper {
                Wrapper::Gzip => Place::Tail { seen },
                Wrapper::ZlibOrRaw => Place::End,
            };
        }
        Ok(Step { read, written })
    }

    fn tail(&mut self, input: &[u8], seen: u64) -> Result<Step, String> {
        let Some(tail) = input.first_chunk::<8>() else {
            return Ok(WAIT);
        };
        let (sum, amount) = (
            self.crc.sum().to_le_bytes(),
            self.crc.amount().to_le_bytes(),
        );
        if tail[..4] != sum || tail[4..] != amount {
            return Err("its checksum is wrong".to_owned());
        }
        self.place = Place::Head { seen: seen + 1 };
        Ok(Step {
            read: 8,
            written: 0,
        })
    }
}

impl Decode for Deflate {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, String> {
        match self.place {
            Place::Head { seen } => self.head(input, seen),
            Place::Data { seen } => self.data(input, output, seen),
            Place::Tail { seen } => self.tail(input, seen),
            Place::End if input.is_empty() => Ok(WAIT),
            Place::End => Err("bytes follow its compressed data".to_owned()),
        }
    }

    fn is_complete(&self) -> bool {
        match self.place {
            Place::Head { seen } => seen > 0,
            Place::Data { .. } | Place::Tail { .. } => false,
            Place::End => true,
        }
    }
}

/// Length of a whole member head; `None` when more is needed.
fn gzip_head(input: &[u8]) -> Result<Option<usize>, String> {
    let magic = [0x1f, 0x8b, 8];
    if input
        .iter()
        .zip(magic)
        .any(|(byte, wanted)| *byte != wanted)
    {
        return Err("it is not gzip".to_owned());
    }
    let Some(&flags) = input.get(3) else {
        return Ok(None);
    };
    if flags & 0xe0 != 0 {
        return Err("its gzip head has flags that do not exist".to_owned());
    }
    let mut at = 10;
    if flags & 0x04 != 0 {
        let Some(length) = input.get(at..at + 2) else {
            return Ok(None);
        };
        at += 2 + usize::from(u16::from_le_bytes([length[0], length[1]]));
    }
    // The name, then the comment: each up to a zero byte.
    for flag in [0x08, 0x10] {
        if flags & flag != 0 {
            let rest = input.get(at..).unwrap_or_default();
            let Some(length) = memchr::memchr(0, rest) else {
                return Ok(None);
            };
            at += length + 1;
        }
    }
    if flags & 0x02 != 0 {
        at += 2;
    }
    Ok((input.len() >= at).then_some(at))
}
