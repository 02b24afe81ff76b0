//! What a layer takes up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, openat, statat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Directories are open one in the other up to this depth; what lies deeper is
/// not counted.
const DEPTH_MAX: usize = 256;

/// What a layer takes up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Entries that are no directories; whiteouts count.
    pub files: u64,
    pub directories: u64,
    /// Bytes on the disk (st_blocks), each file with several names once for
    /// each.
    pub bytes: u64,
}

impl Usage {
    /// Nothing at all is in the layer.
    pub fn is_nothing(&self) -> bool {
        self.files == 0 && self.directories == 0
    }
}

/// Walks a layer without following a link. A directory that cannot be opened
/// counts as empty.
pub fn measure(root: BorrowedFd<'_>) -> io::Result<Usage> {
    let mut usage = Usage::default();
    walk(root, &mut |status| {
        usage.bytes = usage.bytes.saturating_add(status.st_blocks as u64 * 512);
        match FileType::from_raw_mode(status.st_mode) {
            FileType::Directory => usage.directories += 1,
            _ => usage.files += 1,
        }
    })?;
    Ok(usage)
}

/// Shows everything below a directory, and returns whether that was all: a
/// directory that cannot be opened, or is too deep, is not entered.
pub(crate) fn walk(root: BorrowedFd<'_>, seen: &mut dyn FnMut(&Stat)) -> io::Result<bool> {
    let mut all = true;
    let mut open: Vec<(OwnedFd, Dir)> = vec![read(root)?];
    while let Some((directory, entries)) = open.last_mut() {
        let Some(entry) = entries.next() else {
            open.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let status = match statat(&*directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) => status,
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        seen(&status);
        if FileType::from_raw_mode(status.st_mode) != FileType::Directory {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let inner = openat(&*directory, name, flags, Mode::empty());
        match inner {
            Ok(inner) if open.len() < DEPTH_MAX => open.push(read(inner.as_fd())?),
            _ => all = false,
        }
    }
    Ok(all)
}

fn read(directory: BorrowedFd<'_>) -> io::Result<(OwnedFd, Dir)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let own = openat(directory, ".", flags, Mode::empty())?;
    let entries = Dir::read_from(&own)?;
    Ok((own, entries))
}

#[cfg(test)]
mod tests {
    use super::measure;
    use std::os::fd::AsFd;

    #[test]
    fn files_are_counted_and_links_are_not_followed() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(place.path().join("a/b")).unwrap();
        std::fs::write(place.path().join("a/b/file"), vec![1u8; 100_000]).unwrap();
        std::os::unix::fs::symlink("/", place.path().join("a/link")).unwrap();
        let root = std::fs::File::open(place.path()).unwrap();
        let usage = measure(root.as_fd()).unwrap();
        assert_eq!((usage.files, usage.directories), (2, 2));
        assert!(usage.bytes >= 100_000 && usage.bytes < 200_000, "{usage:?}");
    }
}
