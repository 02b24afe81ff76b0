//! Directories and small files that belong to the caller alone.
//!
//! Everything is opened relative to a descriptor and without following a link.
//! Owner and mode are checked on each opening, as for the state directory
//! around it.

use std::ffi::{CStr, CString};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, chmod, flock, fstat, fsync, mkdirat,
    openat, renameat, unlinkat,
};
use rustix::io::Errno;

/// Longest record that is read, in bytes.
const RECORD_BYTES_MAX: u64 = 16 << 20;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Opens a directory of the caller's own, mode 0700.
pub fn open_private(parent: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let directory = openat(parent, name, DIRECTORY, Mode::empty())?;
    let status = fstat(&directory)?;
    let caller = rustix::process::geteuid().as_raw();
    if status.st_uid != caller || status.st_mode & 0o077 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{name} belongs to somebody else, or others may enter it"),
        ));
    }
    Ok(directory)
}

/// Opens a directory of the caller's own, and makes it when it is missing.
pub fn make_private(parent: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    // It is there nearly always, and to make it would lock its parent first.
    if let Some(directory) = open_private_if_there(parent, name)? {
        return Ok(directory);
    }
    match mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => open_private(parent, name),
        Err(error) => Err(error.into()),
    }
}

/// `None` when it is missing.
pub fn open_private_if_there(parent: BorrowedFd<'_>, name: &str) -> io::Result<Option<OwnedFd>> {
    match open_private(parent, name) {
        Ok(directory) => Ok(Some(directory)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Any directory, links not followed.
pub fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    Ok(openat(parent, name, DIRECTORY, Mode::empty())?)
}

/// Where a descriptor leads, as a path with its links resolved.
pub fn path_of(descriptor: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    use std::os::fd::AsRawFd;
    let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    Ok(rustix::fs::readlink(link, Vec::new())?.into_bytes())
}

/// Replaces a file as a whole: whoever reads it sees the old or the new
/// content, also after a crash of the machine.
pub fn write_whole(parent: BorrowedFd<'_>, name: &str, content: &[u8]) -> io::Result<()> {
    replace(parent, name, content, |file| file.sync_all())?;
    Ok(fsync(parent)?)
}

/// As [`write_whole`], but a crash of the machine may leave the old file, an
/// empty one or none, until the file system has written everything.
pub fn write_soon(parent: BorrowedFd<'_>, name: &str, content: &[u8]) -> io::Result<()> {
    replace(parent, name, content, |_| Ok(()))
}

fn replace(
    parent: BorrowedFd<'_>,
    name: &str,
    content: &[u8],
    settle: impl Fn(&std::fs::File) -> io::Result<()>,
) -> io::Result<()> {
    let temporary = format!(".{name}.{}", random_name()?);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(parent, temporary.as_str(), flags, Mode::RUSR | Mode::WUSR)?;
    let mut file = std::fs::File::from(file);
    let written = file.write_all(content).and_then(|()| settle(&file));
    let renamed = written.and_then(|()| Ok(renameat(parent, &*temporary, parent, name)?));
    if renamed.is_err() {
        // The first error is the one to tell.
        let _left = unlinkat(parent, temporary.as_str(), AtFlags::empty()).is_err();
    }
    renamed
}

/// Opens a file of the caller's own for reading, whatever may stand in its
/// place; `None` when it is missing.
pub fn open_record(parent: BorrowedFd<'_>, name: &str) -> io::Result<Option<std::fs::File>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match openat(parent, name, flags, Mode::empty()) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads a whole file; `None` when it is missing.
pub fn read_whole(parent: BorrowedFd<'_>, name: &str) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = open_record(parent, name)? else {
        return Ok(None);
    };
    let mut content = Vec::new();
    file.take(RECORD_BYTES_MAX + 1).read_to_end(&mut content)?;
    match content.len() as u64 > RECORD_BYTES_MAX {
        true => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the file is too long",
        )),
        false => Ok(Some(content)),
    }
}

/// Names in a directory, but no hidden ones, sorted.
pub fn names(directory: BorrowedFd<'_>) -> io::Result<Vec<String>> {
    let mut names = all_names(directory)?;
    names.retain(|name| !name.starts_with('.'));
    Ok(names)
}

/// Names in a directory, sorted.
pub fn all_names(directory: BorrowedFd<'_>) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if let Ok(name) = entry.file_name().to_str()
            && !matches!(name, "." | "..")
        {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// An advisory lock (flock(2)), held while this lives.
#[derive(Debug)]
pub struct Lock {
    file: OwnedFd,
}

impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Who else may have a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    Alone,
    Shared,
}

/// How long a holder that ended can still hold: until a process that it was just
/// forking executes, or until whoever looked at its descriptors
/// (`/proc/PID/fdinfo`) or only tried the lock is done.
pub const LETTING_GO_MAX: Duration = Duration::from_millis(200);

/// The lock on an open file; `None` when it cannot be had within `patience`.
pub fn lock_within(file: OwnedFd, hold: Hold, patience: Duration) -> io::Result<Option<Lock>> {
    let operation = match hold {
        Hold::Alone => FlockOperation::NonBlockingLockExclusive,
        Hold::Shared => FlockOperation::NonBlockingLockShared,
    };
    let begun = Instant::now();
    loop {
        match flock(&file, operation) {
            Ok(()) => return Ok(Some(Lock { file })),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if begun.elapsed() >= patience => return Ok(None),
            Err(Errno::WOULDBLOCK) => thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits for the lock on a file of the caller's own.
pub fn lock(parent: BorrowedFd<'_>, name: &str) -> io::Result<Lock> {
    wait(lock_file(parent, name)?, FlockOperation::LockExclusive)
}

/// As [`lock`], together with others.
pub fn lock_shared(parent: BorrowedFd<'_>, name: &str) -> io::Result<Lock> {
    wait(lock_file(parent, name)?, FlockOperation::LockShared)
}

/// The lock, when nobody else has it.
pub fn try_lock(parent: BorrowedFd<'_>, name: &str) -> io::Result<Option<Lock>> {
    lock_within(lock_file(parent, name)?, Hold::Alone, Duration::ZERO)
}

fn lock_file(parent: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?)
}

fn wait(file: OwnedFd, operation: FlockOperation) -> io::Result<Lock> {
    loop {
        match flock(&file, operation) {
            Ok(()) => return Ok(Lock { file }),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// As [`lock_within`], on a directory itself.
pub fn lock_directory_within(
    directory: BorrowedFd<'_>,
    hold: Hold,
    patience: Duration,
) -> io::Result<Option<Lock>> {
    let file = openat(directory, ".", DIRECTORY, Mode::empty())?;
    lock_within(file, hold, patience)
}

/// The lock on a directory itself, when nobody has it.
pub fn try_lock_directory(directory: BorrowedFd<'_>) -> io::Result<Option<Lock>> {
    lock_directory_within(directory, Hold::Alone, Duration::ZERO)
}

/// The same, once nobody has it any more.
pub fn lock_directory(directory: BorrowedFd<'_>) -> io::Result<Lock> {
    let file = openat(directory, ".", DIRECTORY, Mode::empty())?;
    wait(file, FlockOperation::LockExclusive)
}

/// Sixteen letters and digits that nobody can guess.
pub fn random_name() -> io::Result<String> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Directories below each other that are emptied where they are.
const DEPTH_IN_PLACE: u32 = 16;

/// Removes a file or a directory with all that it holds, whatever it is.
/// Missing is fine, and so is another process that removes the same.
///
/// A hostile command can nest directories deeper than any stack or path. What
/// is deep is moved next to the first directory before it is emptied, so
/// neither grows.
pub fn remove_tree(parent: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    let mut waiting = vec![CString::new(name)?];
    let mut moved = 0_u64;
    let prefix = random_name()?;
    while let Some(name) = waiting.pop() {
        empty(parent, &name, DEPTH_IN_PLACE, &mut |directory, inner| {
            // Moving a directory writes its `..`.
            if open_to_empty(directory, inner)?.is_none() {
                return Ok(());
            }
            moved += 1;
            let place = CString::new(format!(".trash-{prefix}-{moved}"))?;
            match renameat(directory, inner, parent, place.as_c_str()) {
                Ok(()) => waiting.push(place),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
            Ok(())
        })?;
        remove_empty(parent, &name)?;
    }
    Ok(())
}

fn remove_empty(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Empties a directory. What is `depth` directories deeper and holds something
/// goes `aside`.
fn empty(
    parent: BorrowedFd<'_>,
    name: &CStr,
    depth: u32,
    aside: &mut dyn FnMut(BorrowedFd<'_>, &CStr) -> io::Result<()>,
) -> io::Result<()> {
    let Some(opened) = open_to_empty(parent, name)? else {
        return Ok(());
    };
    let mut entries = Dir::new(opened)?;
    while let Some(entry) = entries.read() {
        let (entry, directory) = (entry?, entries.fd()?);
        let inner = entry.file_name();
        if matches!(inner.to_bytes(), b"." | b"..") {
            continue;
        }
        if entry.file_type() != FileType::Directory {
            match unlinkat(directory, inner, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => continue,
                Err(Errno::ISDIR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if unlinkat(directory, inner, AtFlags::REMOVEDIR).is_ok() {
            continue;
        }
        match depth.checked_sub(1) {
            Some(depth) => {
                empty(directory, inner, depth, aside)?;
                remove_empty(directory, inner)?;
            }
            None => aside(directory, inner)?,
        }
    }
    Ok(())
}

/// Opens a directory so that what it holds can be removed, whatever rights
/// its maker gave it; `None` when it is gone.
fn open_to_empty(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<OwnedFd>> {
    use std::os::fd::AsRawFd;
    let is_open = |directory: &OwnedFd| -> io::Result<bool> {
        Ok(fstat(directory)?.st_mode & 0o700 == 0o700)
    };
    match openat(parent, name, DIRECTORY, Mode::empty()) {
        Ok(directory) if is_open(&directory)? => return Ok(Some(directory)),
        Ok(_) | Err(Errno::ACCESS) => {}
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let path = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = match openat(parent, name, path, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    if !is_open(&place)? {
        chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), Mode::RWXU)?;
    }
    match openat(&place, ".", DIRECTORY, Mode::empty()) {
        // Removed after it was opened.
        Err(Errno::NOENT) => Ok(None),
        opened => Ok(Some(opened?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    fn scratch() -> (tempfile::TempDir, OwnedFd) {
        let place = tempfile::tempdir().unwrap();
        let directory = rustix::fs::open(place.path(), DIRECTORY, Mode::empty()).unwrap();
        (place, directory)
    }

    #[test]
    fn a_tree_of_any_depth_and_mode_is_removed() {
        let (place, directory) = scratch();
        let mut inner = make_private(directory.as_fd(), "top").unwrap();
        for _ in 0..3000 {
            std::fs::write(format!("/proc/self/fd/{}/f", raw(&inner)), b"x").unwrap();
            inner = make_private(inner.as_fd(), "deeper").unwrap();
        }
        std::fs::create_dir(place.path().join("top/shut")).unwrap();
        std::fs::write(place.path().join("top/shut/file"), b"x").unwrap();
        let shut = std::fs::Permissions::from_mode(0o000);
        std::fs::set_permissions(place.path().join("top/shut"), shut).unwrap();
        remove_tree(directory.as_fd(), "top").unwrap();
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        remove_tree(directory.as_fd(), "top").unwrap();
    }

    /// As a run that ends and what clears up beside it do.
    #[test]
    fn two_remove_one_tree() {
        let (place, directory) = scratch();
        for round in 0..40 {
            let top = place.path().join("top");
            let deep = top.join("deeper/".repeat(20 + round));
            for one in 0..20 {
                std::fs::create_dir_all(top.join(format!("{one}/inner"))).unwrap();
                std::fs::write(top.join(format!("{one}/inner/file")), b"x").unwrap();
            }
            std::fs::create_dir_all(&deep).unwrap();
            std::fs::write(deep.join("file"), b"x").unwrap();
            let remove = || remove_tree(directory.as_fd(), "top").unwrap();
            std::thread::scope(|scope| {
                scope.spawn(remove);
                scope.spawn(remove);
                remove();
            });
            assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        }
    }

    fn raw(descriptor: &OwnedFd) -> i32 {
        use std::os::fd::AsRawFd;
        descriptor.as_raw_fd()
    }

    /// A link is removed itself, and what it leads to stays.
    #[test]
    fn no_link_is_followed() {
        let (place, directory) = scratch();
        std::fs::create_dir(place.path().join("kept")).unwrap();
        std::fs::write(place.path().join("kept/file"), b"x").unwrap();
        std::fs::create_dir(place.path().join("top")).unwrap();
        std::os::unix::fs::symlink("../kept", place.path().join("top/link")).unwrap();
        remove_tree(directory.as_fd(), "top").unwrap();
        assert!(place.path().join("kept/file").exists());
        std::os::unix::fs::symlink("kept", place.path().join("private")).unwrap();
        assert!(open_private(directory.as_fd(), "private").is_err());
    }

    #[test]
    fn a_record_is_replaced_as_a_whole_and_leaves_nothing_behind() {
        let (place, directory) = scratch();
        assert_eq!(read_whole(directory.as_fd(), "record").unwrap(), None);
        for content in [&b"one"[..], b"two"] {
            write_whole(directory.as_fd(), "record", content).unwrap();
            let read = read_whole(directory.as_fd(), "record").unwrap();
            assert_eq!(read.as_deref(), Some(content));
        }
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_others_may_enter_is_refused() {
        let (place, directory) = scratch();
        std::fs::create_dir(place.path().join("open")).unwrap();
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(place.path().join("open"), open).unwrap();
        assert!(make_private(directory.as_fd(), "open").is_err());
    }
}
