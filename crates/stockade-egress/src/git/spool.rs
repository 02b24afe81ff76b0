//! Holds what was received until it is judged, in memory that no file names.
//!
//! All spools of a process share one room, so that many pushes at once cannot
//! take more memory than one may.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use stockade_sys::rustix::fs::{MemfdFlags, memfd_create};

/// How many bytes a process holds back at most, in all its spools.
pub const ROOM_BYTES: u64 = 512 * 1024 * 1024;

const CHUNK_BYTES: usize = 64 * 1024;

/// Space that spools share; cheap to clone.
#[derive(Clone, Debug)]
pub struct Room(Arc<AtomicU64>);

impl Room {
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(AtomicU64::new(bytes)))
    }

    fn take(&self, bytes: u64) -> bool {
        let order = Ordering::Relaxed;
        self.0
            .fetch_update(order, order, |left| left.checked_sub(bytes))
            .is_ok()
    }
}

/// Bytes that are held back; gone when dropped.
#[derive(Debug)]
pub struct Spool {
    file: File,
    bytes: u64,
    room: Room,
}

impl Spool {
    pub fn new(room: &Room) -> io::Result<Self> {
        let file = memfd_create("stockade-push", MemfdFlags::CLOEXEC)?;
        Ok(Self {
            file: file.into(),
            bytes: 0,
            room: room.clone(),
        })
    }

    /// How much is held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fails with [`io::ErrorKind::StorageFull`] when the room is taken.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let length = bytes.len() as u64;
        if !self.room.take(length) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes += length;
        self.file.write_all(bytes)
    }

    /// To be called before the first [`Self::next_chunk`].
    pub fn rewind(&mut self) -> io::Result<()> {
        self.file.rewind()
    }

    /// The next part, or `None` at the end. Reads memory, so it never waits.
    pub fn next_chunk(&mut self) -> io::Result<Option<Bytes>> {
        let mut chunk = vec![0; CHUNK_BYTES];
        let length = self.file.read(&mut chunk)?;
        chunk.truncate(length);
        Ok((length > 0).then(|| chunk.into()))
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.room.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_comes_back_and_room_is_given_back() {
        let room = Room::new(100_000);
        let mut spool = Spool::new(&room).unwrap();
        spool.write(&[1; 60_000]).unwrap();
        spool.write(&[2; 30_000]).unwrap();
        let mut other = Spool::new(&room).unwrap();
        let full = other.write(&[0; 10_001]).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        spool.rewind().unwrap();
        let mut all = Vec::new();
        while let Some(chunk) = spool.next_chunk().unwrap() {
            all.extend_from_slice(&chunk);
        }
        assert_eq!(all, [vec![1; 60_000], vec![2; 30_000]].concat());
        drop(spool);
        other.write(&[0; 100_000]).unwrap();
    }
}
