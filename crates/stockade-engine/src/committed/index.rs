//! Reads git's index, versions 2 to 4 (gitformat-index(5)).

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    pub(super) mode: u32,
    pub(super) object: &'a [u8],
    /// 0, or the side of a conflict.
    pub(super) stage: u16,
    /// Announced by `git add -N`: the object is not the file's.
    pub(super) intent_to_add: bool,
    /// Path from the top of the work tree.
    pub(super) name: &'a [u8],
}

/// The text is no index, or one of a kind that is not understood here: split,
/// or with directories in place of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotUnderstood;

/// Bytes of an entry before the object name.
const STAT_BYTES: usize = 40;
const EXTENDED: u16 = 0x4000;
const INTENT_TO_ADD: u16 = 0x2000;

/// Calls `visit` for every entry in order.
pub(super) fn for_each(
    text: &[u8],
    hash_bytes: usize,
    mut visit: impl FnMut(Entry<'_>),
) -> Result<(), NotUnderstood> {
    let mut reader = Reader { text, position: 0 };
    if reader.take(4)? != b"DIRC" {
        return Err(NotUnderstood);
    }
    let version = reader.u32()?;
    if !(2..=4).contains(&version) {
        return Err(NotUnderstood);
    }
    let count = reader.u32()?;
    let mut name: Vec<u8> = Vec::new();
    for _ in 0..count {
        let start = reader.position;
        let stat = reader.take(STAT_BYTES)?;
        let mode = u32::from_be_bytes([stat[24], stat[25], stat[26], stat[27]]);
        let object = reader.take(hash_bytes)?;
        let flags = reader.u16()?;
        let extended = match flags & EXTENDED {
            0 => 0,
            _ if version >= 3 => reader.u16()?,
            _ => return Err(NotUnderstood),
        };
        match version {
            4 => {
                let dropped = reader.offset()?;
                let kept = name.len().checked_sub(dropped).ok_or(NotUnderstood)?;
                name.truncate(kept);
                name.extend_from_slice(reader.until_nul()?);
            }
            _ => {
                name.clear();
                name.extend_from_slice(reader.until_nul()?);
                // Padded by one to eight NULs, one of which was read.
                let length = reader.position - 1 - start;
                reader.take(7 - length % 8)?;
            }
        }
        visit(Entry {
            mode,
            object,
            stage: (flags >> 12) & 3,
            intent_to_add: extended & INTENT_TO_ADD != 0,
            name: &name,
        });
    }
    extensions(reader, hash_bytes)
}

/// Passes over what may be ignored: extensions whose name begins with a
/// capital letter.
fn extensions(mut reader: Reader<'_>, hash_bytes: usize) -> Result<(), NotUnderstood> {
    while reader.text.len() - reader.position > hash_bytes {
        let name = reader.take(4)?;
        if !name[0].is_ascii_uppercase() {
            return Err(NotUnderstood);
        }
        let length = reader.u32()?;
        reader.take(length as usize)?;
    }
    match reader.text.len() - reader.position == hash_bytes {
        true => Ok(()),
        false => Err(NotUnderstood),
    }
}

struct Reader<'a> {
    text: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], NotUnderstood> {
        let end = self.position.checked_add(bytes).ok_or(NotUnderstood)?;
        let taken = self.text.get(self.position..end).ok_or(NotUnderstood)?;
        self.position = end;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16, NotUnderstood> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self) -> Result<u32, NotUnderstood> {
        let bytes = self.take(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// A number as offsets in packs are written (gitformat-pack(5)).
    fn offset(&mut self) -> Result<usize, NotUnderstood> {
        let mut byte = self.take(1)?[0];
        let mut value = usize::from(byte & 0x7f);
        while byte & 0x80 != 0 {
            byte = self.take(1)?[0];
            value = value
                .checked_add(1)
                .and_then(|value| value.checked_mul(128))
                .ok_or(NotUnderstood)?
                | usize::from(byte & 0x7f);
        }
        Ok(value)
    }

    fn until_nul(&mut self) -> Result<&'a [u8], NotUnderstood> {
        let rest = &self.text[self.position..];
        let end = rest.iter().position(|&byte| byte == 0);
        let end = end.ok_or(NotUnderstood)?;
        self.position += end + 1;
        Ok(&rest[..end])
    }
}
