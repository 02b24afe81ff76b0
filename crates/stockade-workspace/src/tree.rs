//! The state of one file: what it is, its attributes and its content, read by
//! descriptors and without following a link; and what differs between two.
//!
//! Attributes that steer an overlay (`user.overlay.*`) are never part of a
//! file's state: they are read as [`Marks`] and stay in the layer.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::text;

/// Attributes of an overlay mounted with `userxattr` (kernel, overlayfs.rst).
const OVERLAY_PREFIX: &[u8] = b"user.overlay.";
/// Extended attributes that belong to a file's state besides `user.*`.
const ACCESS_LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
/// Most bytes of the names of one file's attributes, and of one value: what
/// the kernel allows (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`, limits.h).
const ATTRIBUTE_BYTES_MAX: usize = 64 * 1024;

/// A point in time as a file system stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Time {
    /// Seconds since the epoch; negative before it.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    /// A character or block device; a sandbox cannot make one.
    Device,
}

/// The state of one file, as far as it is compared and carried over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub kind: FileKind,
    /// Permission bits, at most 0o7777.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Bytes of content; 0 for what has none.
    pub size: u64,
    pub modified: Time,
    /// Where a symbolic link leads.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "text::option"
    )]
    pub target: Option<Vec<u8>>,
    /// Extended attributes: `user.*` but not `user.overlay.*`, and access lists.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        with = "text::map"
    )]
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Which file it is, among all of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
}

/// What an overlay wrote on a file of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// A directory that hides what lower layers have below its name.
    pub opaque: bool,
    /// A directory in which empty files may be whiteouts.
    pub whiteouts_inside: bool,
    /// An empty file that is a whiteout if its directory says so.
    pub whiteout: bool,
    /// Copied up from a lower layer; carried along by a rename.
    pub origin: bool,
    /// Whether there is any `user.overlay.*` attribute.
    pub any: bool,
}

/// One file as it was found in one directory.
#[derive(Clone, Debug)]
pub struct Found {
    pub entry: Entry,
    pub identity: Identity,
    /// When content, attributes or name last changed (ctime).
    pub changed: Time,
    /// How many names it has on its file system.
    pub links: u64,
    pub marks: Marks,
    device_number: u64,
}

impl Found {
    /// Looks at `name` in `directory`; `None` when there is nothing.
    pub fn at(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<Self>> {
        let status = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) => status,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut found = Self::of(&status);
        match found.entry.kind {
            FileKind::Symlink => {
                let target = rustix::fs::readlinkat(directory, name, Vec::new())?;
                found.entry.target = Some(target.into_bytes());
            }
            FileKind::File | FileKind::Directory => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let handle = rustix::fs::openat(directory, name, flags, Mode::empty())?;
                found.read_attributes(handle.as_fd())?;
            }
            FileKind::Fifo | FileKind::Socket | FileKind::Device => {}
        }
        Ok(Some(found))
    }

    /// Looks at the directory that `handle` is.
    pub fn of_directory(handle: BorrowedFd<'_>) -> io::Result<Self> {
        let mut found = Self::of(&rustix::fs::fstat(handle)?);
        found.read_attributes(handle)?;
        Ok(found)
    }

    /// Whether it is an overlay's whiteout: a character device 0:0.
    pub fn is_whiteout_device(&self) -> bool {
        self.entry.kind == FileKind::Device && self.device_number == 0
    }

    fn of(status: &Stat) -> Self {
        let kind = match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Directory,
            FileType::Symlink => FileKind::Symlink,
            FileType::Fifo => FileKind::Fifo,
            FileType::Socket => FileKind::Socket,
            _ => FileKind::Device,
        };
        let size = match kind {
            FileKind::File | FileKind::Symlink => status.st_size.unsigned_abs(),
            _ => 0,
        };
        Self {
            entry: Entry {
                kind,
                mode: status.st_mode & 0o7777,
                uid: status.st_uid,
                gid: status.st_gid,
                size,
                modified: Time {
                    seconds: status.st_mtime,
                    nanoseconds: status.st_mtime_nsec as u32,
                },
                target: None,
                attributes: BTreeMap::new(),
            },
            identity: Identity {
                device: status.st_dev,
                inode: status.st_ino,
            },
            changed: Time {
                seconds: status.st_ctime,
                nanoseconds: status.st_ctime_nsec as u32,
            },
            links: status.st_nlink,
            marks: Marks::default(),
            device_number: match FileType::from_raw_mode(status.st_mode) {
                FileType::CharacterDevice => status.st_rdev,
                _ => u64::MAX,
            },
        }
    }

    fn read_attributes(&mut self, handle: BorrowedFd<'_>) -> io::Result<()> {
        let path = by_descriptor(handle);
        let mut names = vec![0u8; 256];
        let length = loop {
            match rustix::fs::listxattr(path.as_str(), &mut names[..]) {
                Ok(length) => break length,
                Err(Errno::RANGE) if names.len() < ATTRIBUTE_BYTES_MAX => {
                    names.resize(ATTRIBUTE_BYTES_MAX, 0);
                }
                Err(Errno::NOTSUP) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        };
        for name in names[..length].split(|&byte| byte == 0) {
            if let Some(mark) = name.strip_prefix(OVERLAY_PREFIX) {
                self.marks.any = true;
                match mark {
                    b"opaque" => match value(&path, name)?.as_deref() {
                        Some(b"y") => self.marks.opaque = true,
                        Some(b"x") => self.marks.whiteouts_inside = true,
                        _ => {}
                    },
                    b"origin" => self.marks.origin = true,
                    b"whiteout" => self.marks.whiteout = true,
                    _ => {}
                }
            } else if is_carried(name) {
                let value = value(&path, name)?.unwrap_or_default();
                self.entry.attributes.insert(name.to_vec(), value);
            }
        }
        Ok(())
    }
}

/// The value of one attribute; `None` when it may not be read or is gone.
fn value(path: &str, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut buffer = vec![0u8; 256];
    loop {
        match rustix::fs::getxattr(path, name, &mut buffer[..]) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(Some(buffer));
            }
            Err(Errno::RANGE) if buffer.len() < ATTRIBUTE_BYTES_MAX => {
                buffer.resize(ATTRIBUTE_BYTES_MAX, 0);
            }
            Err(Errno::ACCESS | Errno::PERM | Errno::NODATA) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A path to what a descriptor is, also one opened with `O_PATH` (proc(5)).
pub(crate) fn by_descriptor(handle: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", handle.as_raw_fd())
}

/// Whether `name` is an attribute that only an overlay reads.
pub(crate) fn is_overlay_attribute(name: &[u8]) -> bool {
    name.starts_with(OVERLAY_PREFIX)
}

/// Whether `name` is an attribute that is part of a file's state.
pub(crate) fn is_carried(name: &[u8]) -> bool {
    name.starts_with(b"user.") && !is_overlay_attribute(name) || ACCESS_LISTS.contains(&name)
}

/// The names of all attributes of what `handle` is.
pub(crate) fn attribute_names(handle: BorrowedFd<'_>) -> io::Result<Vec<Vec<u8>>> {
    let mut names = vec![0u8; ATTRIBUTE_BYTES_MAX];
    let length = match rustix::fs::listxattr(by_descriptor(handle).as_str(), &mut names[..]) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => 0,
        Err(error) => return Err(error.into()),
    };
    let names = names[..length].split(|&byte| byte == 0);
    Ok(names
        .filter(|name| !name.is_empty())
        .map(<[u8]>::to_vec)
        .collect())
}

/// Opens a path below `root` without following any link, leaving `root` or
/// crossing into another mount. The empty path is `root` itself.
pub fn open_beneath(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    let how = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let flags = flags | OFlags::CLOEXEC;
    loop {
        match rustix::fs::openat2(root, path, flags, Mode::empty(), how) {
            // Something else on the machine was renamed meanwhile (openat2(2)).
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Opens a directory for listing and as a place for names.
pub fn open_directory(root: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    open_beneath(root, path, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Opens a regular file of `directory` for reading; anything else is an error,
/// and a fifo does not block.
pub fn open_file(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let handle = rustix::fs::openat(directory, name, flags | OFlags::CLOEXEC, Mode::empty())?;
    let status = rustix::fs::fstat(&handle)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(File::from(handle))
}

/// The names in a directory but `.` and `..`, sorted.
pub fn names(directory: BorrowedFd<'_>) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Whether two files hold the same bytes. What is a hole in both is passed
/// over, so that a file costs what it takes up and not what it says it holds.
pub fn same_content(one: &mut File, other: &mut File) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0u8; 64 * 1024], vec![0u8; 64 * 1024]);
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let mut at = 0;
    while let Some(start) = next_data(one, at)?
        .into_iter()
        .chain(next_data(other, at)?)
        .min()
    {
        one.seek(SeekFrom::Start(start))?;
        other.seek(SeekFrom::Start(start))?;
        let length = fill(one, &mut left)?;
        if length != fill(other, &mut right)? || left[..length] != right[..length] {
            return Ok(false);
        }
        if length == 0 {
            break;
        }
        at = start + length as u64;
    }
    Ok(true)
}

/// Where data begins at or after `at`; `None` when there is only a hole
/// (lseek(2), `SEEK_DATA`).
fn next_data(file: &File, at: u64) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        Ok(start) => Ok(Some(start)),
        Err(Errno::NXIO) => Ok(None),
        // A file system that does not tell.
        Err(Errno::INVAL) => Ok(Some(at)),
        Err(error) => Err(error.into()),
    }
}

/// SHA-256 of a file's content.
pub fn digest(file: &mut File) -> io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; 64 * 1024];
    loop {
        match fill(file, &mut buffer)? {
            0 => return Ok(hash.finalize().into()),
            length => hash.update(&buffer[..length]),
        }
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// The directory part and the last component of a relative path.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(cut) => (&path[..cut], &path[cut + 1..]),
        None => (b"", path),
    }
}

/// A path for `name` in the directory `path`.
pub fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    match path {
        b"" => name.to_vec(),
        _ => [path, b"/", name].concat(),
    }
}

/// Whether `path` is below the directory `above`.
pub fn is_below(path: &[u8], above: &[u8]) -> bool {
    above.is_empty() && !path.is_empty()
        || path
            .strip_prefix(above)
            .is_some_and(|rest| rest.first() == Some(&b'/'))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::same_content;

    /// A file of this size with one byte at each of these places.
    fn sparse(size: u64, bytes: &[u64]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        for &at in bytes {
            file.write_all_at(b"x", at).unwrap();
        }
        file
    }

    /// As large as file systems allow: nobody could read it.
    #[test]
    fn holes_are_compared_without_reading_them() {
        const SIZE: u64 = 1 << 43;
        let same = |one: &[u64], other: &[u64]| {
            same_content(&mut sparse(SIZE, one), &mut sparse(SIZE, other)).unwrap()
        };
        assert!(same(&[], &[]));
        assert!(same(&[0, 1 << 40, SIZE - 1], &[0, 1 << 40, SIZE - 1]));
        assert!(!same(&[1 << 40], &[]));
        assert!(!same(&[], &[SIZE - 1]));
        assert!(!same(&[1 << 40], &[(1 << 40) + 1]));
        assert!(!same_content(&mut sparse(5, &[]), &mut sparse(6, &[])).unwrap());
    }

    #[test]
    fn a_hole_is_the_same_as_zeros() {
        let zeros = tempfile::tempfile().unwrap();
        zeros.write_all_at(&vec![0u8; 300_000], 0).unwrap();
        let (mut zeros, mut hole) = (zeros, sparse(300_000, &[]));
        assert!(same_content(&mut zeros, &mut hole).unwrap());
        assert!(same_content(&mut hole, &mut zeros).unwrap());
        hole.write_all_at(b"x", 200_000).unwrap();
        assert!(!same_content(&mut zeros, &mut hole).unwrap());
    }
}
