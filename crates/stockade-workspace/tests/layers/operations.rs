//! Random things that a command does to a tree.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rustix::fs::{AtFlags, FileType, Timespec, Timestamps, XattrFlags};

/// A place in the tree: components out of [`NAMES`].
pub type Place = Vec<u8>;

const NAMES: [&[u8]; 7] = [
    b"a",
    b"b",
    b"c",
    b"d.txt",
    b"a.b",
    b"\xff\xfe",
    "é\n".as_bytes(),
];

#[derive(Clone, Debug)]
pub enum Operation {
    Write(Place, u16, u8),
    Append(Place, u8),
    Sparse(Place, u8),
    Directory(Place),
    Directories(Place),
    Symlink(Place, Place),
    Link(Place, Place),
    Rename(Place, Place),
    /// As mv(1) does it where rename(2) is refused.
    Move(Place, Place),
    Remove(Place),
    RemoveTree(Place),
    /// `rm -r` and `mkdir`.
    Again(Place),
    Mode(Place, u16),
    Touch(Place, i32, u32),
    Attribute(Place, u8, u8),
    NoAttribute(Place, u8),
    Fifo(Place),
    OpenForWriting(Place),
}

fn place() -> impl Strategy<Value = Place> {
    proptest::collection::vec(0..NAMES.len() as u8, 1..4)
}

pub fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    prop_oneof![
        6 => (place(), any::<u16>(), any::<u8>()).prop_map(|(p, n, b)| Write(p, n % 6000, b)),
        3 => (place(), any::<u8>()).prop_map(|(p, b)| Append(p, b)),
        1 => (place(), any::<u8>()).prop_map(|(p, b)| Sparse(p, b)),
        3 => place().prop_map(Directory),
        5 => place().prop_map(Directories),
        2 => (place(), place()).prop_map(|(p, t)| Symlink(p, t)),
        4 => (place(), place()).prop_map(|(p, t)| Link(p, t)),
        6 => (place(), place()).prop_map(|(p, t)| Rename(p, t)),
        4 => (place(), place()).prop_map(|(p, t)| Move(p, t)),
        4 => place().prop_map(Remove),
        3 => place().prop_map(RemoveTree),
        3 => place().prop_map(Again),
        3 => (place(), any::<u16>()).prop_map(|(p, m)| Mode(p, m)),
        2 => (place(), any::<i32>(), 0..1_000_000_000u32).prop_map(|(p, s, n)| Touch(p, s, n)),
        2 => (place(), 0..3u8, any::<u8>()).prop_map(|(p, n, v)| Attribute(p, n, v)),
        1 => (place(), 0..3u8).prop_map(|(p, n)| NoAttribute(p, n)),
        1 => place().prop_map(Fifo),
        1 => place().prop_map(OpenForWriting),
    ]
}

/// The path of a place, relative.
pub fn path_of(place: &Place) -> PathBuf {
    let names = place
        .iter()
        .map(|&index| OsStr::from_bytes(NAMES[index as usize % NAMES.len()]));
    names.collect()
}

/// Does what can be done; a command's calls fail, too. Never follows a link
/// out of `root`: links are relative to names that stay below.
pub fn perform(root: &Path, operation: &Operation) {
    // What the tree does not allow is simply not done.
    let _refused = attempt(root, operation).is_err();
}

fn attempt(root: &Path, operation: &Operation) -> io::Result<()> {
    use Operation::*;
    let at = |place: &Place| root.join(path_of(place));
    let real = |place: &Place| reachable(root, place);
    match operation {
        Write(place, length, byte) => {
            let text = format!("{byte}\n").repeat(usize::from(*length) / 3 + 1);
            fs::write(real(place)?, text)
        }
        Append(place, byte) => fs::OpenOptions::new()
            .append(true)
            .open(real(place)?)?
            .write_all(&[*byte]),
        Sparse(place, byte) => {
            let file = fs::File::create(real(place)?)?;
            file.set_len(300_000)?;
            file.write_at(&[*byte], 200_000).map(drop)
        }
        Directory(place) => fs::create_dir(at(place)),
        Directories(place) => fs::create_dir_all(at(place)),
        Symlink(place, target) => symlink(path_of(target), at(place)),
        Link(place, new) => fs::hard_link(at(place), at(new)),
        Rename(place, new) => fs::rename(at(place), at(new)),
        Move(place, new) => {
            // Not through a link either, which may lead into what is copied.
            fs::rename(at(place), at(new)).or_else(|_| copy_away(&real(place)?, &real(new)?))
        }
        Remove(place) => fs::remove_file(at(place)).or_else(|_| fs::remove_dir(at(place))),
        RemoveTree(place) => fs::remove_dir_all(at(place)),
        Again(place) => {
            fs::remove_dir_all(at(place))?;
            fs::create_dir(at(place))
        }
        OpenForWriting(place) => fs::OpenOptions::new()
            .write(true)
            .open(real(place)?)
            .map(drop),
        _ => describe(root, operation),
    }
}

/// Changes what a file says of itself, or makes one of another kind.
fn describe(root: &Path, operation: &Operation) -> io::Result<()> {
    use Operation::*;
    let real = |place: &Place| reachable(root, place);
    match operation {
        Mode(place, mode) => {
            let path = real(place)?;
            // Root in a user namespace sees everything; what ordinary users
            // close to themselves has tests of its own.
            let mode = u32::from(*mode) & 0o777 | if path.is_dir() { 0o700 } else { 0o600 };
            fs::set_permissions(path, fs::Permissions::from_mode(mode))
        }
        Touch(place, seconds, nanoseconds) => {
            let time = Timespec {
                tv_sec: i64::from(*seconds),
                tv_nsec: i64::from(*nanoseconds),
            };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            let parent = fs::File::open(root)?;
            Ok(rustix::fs::utimensat(
                &parent,
                path_of(place),
                &times,
                AtFlags::SYMLINK_NOFOLLOW,
            )?)
        }
        Attribute(place, name, value) => {
            let file = fs::File::open(real(place)?)?;
            Ok(rustix::fs::fsetxattr(
                file.as_fd(),
                format!("user.{name}"),
                &[*value; 3],
                XattrFlags::empty(),
            )?)
        }
        NoAttribute(place, name) => {
            let file = fs::File::open(real(place)?)?;
            Ok(rustix::fs::fremovexattr(
                file.as_fd(),
                format!("user.{name}"),
            )?)
        }
        Fifo(place) => {
            let parent = fs::File::open(root)?;
            let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
            Ok(rustix::fs::mknodat(
                &parent,
                path_of(place),
                FileType::Fifo,
                mode,
                0,
            )?)
        }
        _ => Ok(()),
    }
}

/// The path of a place that no link leads to and that opening does not block.
fn reachable(root: &Path, place: &Place) -> io::Result<PathBuf> {
    let mut path = root.to_owned();
    for name in path_of(place).iter() {
        path.push(name);
        if fs::symlink_metadata(&path).is_ok_and(|status| status.is_symlink()) {
            return Err(io::Error::other("a link"));
        }
    }
    let is_fifo = fs::symlink_metadata(&path)
        .is_ok_and(|status| std::os::unix::fs::FileTypeExt::is_fifo(&status.file_type()));
    match is_fifo {
        true => Err(io::Error::other("a fifo")),
        false => Ok(path),
    }
}

fn copy_away(from: &Path, to: &Path) -> io::Result<()> {
    if to.starts_with(from) || !from.is_dir() {
        return Err(io::Error::other("nothing to copy"));
    }
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let target = to.join(entry.file_name());
        if kind.is_dir() {
            copy_away(&entry.path(), &target)?;
        } else if kind.is_file() {
            fs::copy(entry.path(), &target)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(entry.path())?, &target)?;
        }
    }
    fs::remove_dir_all(from)
}
