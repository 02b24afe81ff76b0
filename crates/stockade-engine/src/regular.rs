//! Reads small files of which it is not sure what they are.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use stockade_sys::rustix;

/// No link on the way, not even to the file itself.
pub(crate) const WITHOUT_LINKS: ResolveFlags =
    ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);

/// The content of a regular file of at most so many bytes; `None` for anything
/// else, and for what cannot be read.
pub(crate) fn read(path: &Path, resolve: ResolveFlags, bytes_max: u64) -> Option<Vec<u8>> {
    // Not to wait for the writer of a pipe.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let handle = openat2(CWD, path, flags, Mode::empty(), resolve).ok()?;
    if FileType::from_raw_mode(fstat(&handle).ok()?.st_mode) != FileType::RegularFile {
        return None;
    }
    let mut text = Vec::new();
    File::from(handle)
        .take(bytes_max + 1)
        .read_to_end(&mut text)
        .ok()?;
    (text.len() as u64 <= bytes_max).then_some(text)
}
