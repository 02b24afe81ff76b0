//! Records in the streams of directories and watches: two bytes of length,
//! little-endian, and one value in postcard.

use serde::{Deserialize, Serialize};

use crate::wire;

/// Longest record with its length: a name has at most 255 bytes.
pub const RECORD_BYTES_MAX: usize = 512;

/// One name of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry<'a> {
    pub name: &'a [u8],
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub bytes: u64,
    /// Seconds since 1970.
    pub modified: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    File,
    Directory,
    Link,
    Other,
}

/// One change in what is watched, as inotify(7) tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change<'a> {
    /// The name in the directory; empty for what is watched itself.
    pub name: &'a [u8],
    /// Bits of inotify(7).
    pub mask: u32,
    /// Joins the two halves of a rename.
    pub cookie: u32,
}

/// Writes a record to the beginning of `target`; its length, or `None` when
/// there is no room.
pub fn put<T: Serialize>(record: &T, target: &mut [u8]) -> Option<usize> {
    let (length, value) = target.split_at_mut_checked(2)?;
    let written = postcard::to_slice(record, value).ok()?.len();
    length.copy_from_slice(&u16::try_from(written).ok()?.to_le_bytes());
    Some(2 + written)
}

/// The first record of a stream and its length; `None` when more is needed.
pub fn take<'a, T: Deserialize<'a>>(
    stream: &'a [u8],
) -> Result<Option<(T, usize)>, wire::WireError> {
    let Some(length) = stream.first_chunk::<2>() else {
        return Ok(None);
    };
    let end = 2 + usize::from(u16::from_le_bytes(*length));
    if end > RECORD_BYTES_MAX {
        return Err(wire::WireError::TooLong);
    }
    match stream.get(2..end) {
        Some(value) => Ok(Some((wire::decode(value)?, end))),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_the_way() {
        let name = [b'n'; 255];
        let entry = Entry {
            name: &name,
            kind: Kind::Link,
            mode: u32::MAX,
            uid: u32::MAX,
            gid: u32::MAX,
            bytes: u64::MAX,
            modified: i64::MIN,
        };
        let mut target = [0; RECORD_BYTES_MAX];
        let length = put(&entry, &mut target).unwrap();
        assert_eq!(take(&target[..length]), Ok(Some((entry, length))));
        assert_eq!(take::<Entry<'_>>(&target[..length - 1]), Ok(None));
        assert_eq!(put(&entry, &mut [0; 40]), None);
        assert_eq!(
            take::<Entry<'_>>(&[255, 255, 0]),
            Err(wire::WireError::TooLong)
        );
    }
}
