//! The instructions of an object that is stored as what differs from another
//! one (gitformat-pack(5), "Deltified representation"), as far as secrets can
//! be in them.

use super::BadPack;
use crate::git::needles::Search;

/// The instructions of a delta: two sizes, then copies and literals.
#[derive(Default)]
pub(super) struct Delta {
    sizes_read: u8,
    size_bytes: u8,
    expect: Expect,
}

#[derive(Default, PartialEq, Eq)]
enum Expect {
    #[default]
    Instruction,
    /// Arguments of a copy.
    Arguments(u32),
    Literal(usize),
}

impl Delta {
    /// Whether a secret ends in a literal of `bytes`.
    pub(super) fn feed(&mut self, mut bytes: &[u8], search: &mut Search) -> Result<bool, BadPack> {
        let mut found = false;
        while let Some((first, rest)) = bytes.split_first() {
            if self.sizes_read < 2 {
                self.size_byte(*first)?;
                bytes = rest;
                continue;
            }
            bytes = match self.expect {
                Expect::Literal(length) => {
                    let (literal, rest) = bytes.split_at(length.min(bytes.len()));
                    found |= search.feed(literal);
                    self.expect = match length - literal.len() {
                        0 => Expect::Instruction,
                        left => Expect::Literal(left),
                    };
                    rest
                }
                Expect::Arguments(left) => {
                    self.expect = match left - 1 {
                        0 => Expect::Instruction,
                        left => Expect::Arguments(left),
                    };
                    rest
                }
                Expect::Instruction => {
                    self.instruction(*first, search)?;
                    rest
                }
            };
        }
        Ok(found)
    }

    fn size_byte(&mut self, byte: u8) -> Result<(), BadPack> {
        self.size_bytes += 1;
        if self.size_bytes > 10 {
            return Err(BadPack::Delta);
        }
        if byte & 0x80 == 0 {
            self.sizes_read += 1;
            self.size_bytes = 0;
        }
        Ok(())
    }

    fn instruction(&mut self, byte: u8, search: &mut Search) -> Result<(), BadPack> {
        self.expect = match byte {
            0 => return Err(BadPack::Delta),
            // Literals in a row are one text; a copy ends it.
            1..=0x7f => Expect::Literal(usize::from(byte)),
            _ => {
                search.reset();
                match (byte & 0x7f).count_ones() {
                    0 => Expect::Instruction,
                    arguments => Expect::Arguments(arguments),
                }
            }
        };
        Ok(())
    }

    pub(super) fn is_complete(&self) -> bool {
        self.sizes_read == 2 && self.expect == Expect::Instruction
    }
}
