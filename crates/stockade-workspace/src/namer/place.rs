//! Where a path leads: resolved here, once, to a descriptor of the directory
//! and a last name, so that nothing that happens in the tree meanwhile can make
//! the call land elsewhere than where it was judged.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, accessat, openat, openat2,
    readlinkat, statat,
};
use rustix::io::Errno;
use rustix::process::{fchdir, getcwd};
use stockade_policy::path::AbsolutePath;

use super::Reply;
use super::call::{HERE, Named};
use super::target::Target;

/// A part of the view that is the host's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    pub path: AbsolutePath,
    pub writable: bool,
    /// The run's own, around a part of the host: nothing in it is guarded, and
    /// nothing in it stays.
    pub private: bool,
    /// The workspace itself.
    pub workspace: bool,
}

/// A name in a part of the host that can be written.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) parent: OwnedFd,
    pub(super) name: Vec<u8>,
    /// Absolute, as inside and outside.
    pub(super) path: Vec<u8>,
}

/// Links that are followed in one path (path_resolution(7)).
const LINKS_MAX: u32 = 40;

impl Place {
    /// What is held must be what could have been written: the kernel's own
    /// answer, as for a part that is mounted read-only.
    pub(super) fn check_writable(&self, exists: bool) -> rustix::io::Result<()> {
        let (name, access) = match exists {
            true => (&*self.name, Access::WRITE_OK),
            false => (&b"."[..], Access::WRITE_OK | Access::EXEC_OK),
        };
        accessat(&self.parent, name, access, AtFlags::EACCESS)
    }

    /// What stands there; `None` when nothing does.
    pub(super) fn stat(&self) -> rustix::io::Result<Option<Stat>> {
        match statat(&self.parent, &*self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Looks paths up for one held call.
pub(super) struct Places<'a> {
    pub(super) target: Target<'a>,
    pub(super) areas: &'a [Area],
}

impl Places<'_> {
    /// Where a path leads, the last name not followed. The reply is
    /// [`Reply::GoOn`] when that is not a name in a part of the host that can
    /// be written: then the kernel gives its own answer, and Landlock the last
    /// word. What is not there now is told from here, because by the time the
    /// kernel looks somebody may have made it, and Landlock would refuse.
    pub(super) fn locate(&self, at: Named, path: &[u8]) -> Result<Place, Reply> {
        let start = match path.first().ok_or(Reply::GoOn)? {
            b'/' => None,
            _ => Some(self.start(at)?),
        };
        self.place(start, path)
    }

    /// As [`Self::locate`], for what is no directory: a slash at the end is an
    /// error, which the kernel tells best.
    pub(super) fn locate_file(&self, at: Named, path: &[u8]) -> Result<Place, Reply> {
        match path.ends_with(b"/") {
            true => Err(Reply::GoOn),
            false => self.locate(at, path),
        }
    }

    /// As [`Self::locate`], with a link in the last place followed; and what
    /// stands there.
    pub(super) fn locate_followed(
        &self,
        at: Named,
        path: &[u8],
    ) -> Result<(Place, Option<Stat>), Reply> {
        let mut place = self.locate(at, path)?;
        for _ in 0..LINKS_MAX {
            let stat = place.stat()?;
            if !stat.is_some_and(|stat| file_type(&stat) == FileType::Symlink) {
                return Ok((place, stat));
            }
            let target = readlinkat(&place.parent, &*place.name, Vec::new())?;
            let target = target.as_bytes();
            let start = match target.first().ok_or(Reply::GoOn)? {
                b'/' => None,
                _ => Some(place.parent),
            };
            place = self.place(start, target)?;
        }
        Err(Errno::LOOP.into())
    }

    fn start(&self, at: Named) -> Result<OwnedFd, Reply> {
        self.target.directory(at.directory).map_err(|_| Reply::GoOn)
    }

    fn place(&self, start: Option<OwnedFd>, path: &[u8]) -> Result<Place, Reply> {
        let (start, path) = match self.own_directory(path) {
            Some((directory, rest)) => (Some(directory), rest),
            // The rest leads back to whoever looks it up.
            None if path.starts_with(b"/proc/") || path.starts_with(b"/dev/") => {
                return Err(Reply::GoOn);
            }
            None => (start, path),
        };
        let path = match path.strip_suffix(b"/") {
            Some(path) => path.trim_ascii_end_slashes(),
            None => path,
        };
        let (above, name) = match path.iter().rposition(|&byte| byte == b'/') {
            Some(0) => (&b"/"[..], &path[1..]),
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b""[..], path),
        };
        if matches!(name, b"" | b"." | b"..") {
            return Err(Reply::GoOn);
        }
        let parent = match (start, above) {
            (Some(start), b"") => start,
            (None, b"") => return Err(Reply::GoOn),
            (Some(start), above) => open_directory(start, above)?,
            (None, above) => open_directory(CWD, above)?,
        };
        let mut path = self.path_of(&parent).ok_or(Reply::GoOn)?;
        if path != b"/" {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        if !self.is_writable(&path) {
            return Err(Reply::GoOn);
        }
        Ok(Place {
            parent,
            name: name.to_vec(),
            path,
        })
    }

    /// A path that begins with a directory that the process has open or is in,
    /// as libraries name it where a call takes no descriptor.
    fn own_directory<'a>(&self, path: &'a [u8]) -> Option<(OwnedFd, &'a [u8])> {
        let rest = path
            .strip_prefix(b"/proc/self/")
            .or_else(|| path.strip_prefix(b"/proc/thread-self/"))
            .or_else(|| path.strip_prefix(b"/dev/"))?;
        if let Some(rest) = rest.strip_prefix(b"cwd/") {
            return Some((self.target.directory(HERE).ok()?, rest));
        }
        let rest = rest.strip_prefix(b"fd/")?;
        let slash = rest.iter().position(|&byte| byte == b'/')?;
        let number = std::str::from_utf8(&rest[..slash]).ok()?.parse().ok()?;
        Some((self.target.directory(number).ok()?, &rest[slash + 1..]))
    }

    /// Where a directory is in the view.
    pub(super) fn path_of(&self, directory: &OwnedFd) -> Option<Vec<u8>> {
        use std::os::fd::AsRawFd;
        // The kernel says it of the directory that a process is in more cheaply
        // than by a link of /proc, and nothing else here uses that directory.
        if fchdir(directory).is_ok()
            && let Ok(path) = getcwd(Vec::with_capacity(256))
            && path.as_bytes().starts_with(b"/")
        {
            return Some(path.into_bytes());
        }
        // Removed, or not to be entered.
        let link = format!("self/fd/{}", directory.as_raw_fd());
        let path = readlinkat(self.target.proc, link, Vec::with_capacity(256)).ok()?;
        Some(path.into_bytes())
    }

    /// Whether the nearest part of the host around a path can be written.
    pub(super) fn is_writable(&self, path: &[u8]) -> bool {
        self.areas
            .iter()
            .filter(|area| below(area.path.as_bytes(), path).is_some())
            .max_by_key(|area| area.path.as_bytes().len())
            .is_some_and(|area| area.writable)
    }

    /// Opens a directory that a path names, followed to its end.
    pub(super) fn directory(&self, at: Named, path: &[u8]) -> Result<OwnedFd, Reply> {
        let directory = match path.first().ok_or(Reply::GoOn)? {
            b'/' if path.starts_with(b"/proc/") => return Err(Reply::GoOn),
            b'/' => open_directory(CWD, path)?,
            _ => open_directory(self.start(at)?, path)?,
        };
        let path = self.path_of(&directory).ok_or(Reply::GoOn)?;
        match self.is_writable(&path) {
            true => Ok(directory),
            false => Err(Reply::GoOn),
        }
    }
}

/// Opens a directory, links followed as path_resolution(7) says, except those
/// that lead back to whoever looks them up: they are the kernel's.
fn open_directory(start: impl AsFd, path: &[u8]) -> Result<OwnedFd, Reply> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat2(
        start,
        path,
        flags,
        Mode::empty(),
        ResolveFlags::NO_MAGICLINKS,
    ) {
        Ok(directory) => Ok(directory),
        Err(Errno::LOOP) => Err(Reply::GoOn),
        Err(error) => Err(error.into()),
    }
}

/// The rest of `path` below `root`; `None` when it is not there.
pub(super) fn below<'a>(root: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    if root == b"/" {
        return path.strip_prefix(b"/");
    }
    let rest = path.strip_prefix(root)?;
    match rest {
        b"" => Some(rest),
        _ => rest.strip_prefix(b"/"),
    }
}

pub(super) fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

trait TrimSlashes {
    fn trim_ascii_end_slashes(&self) -> &Self;
}

impl TrimSlashes for [u8] {
    fn trim_ascii_end_slashes(&self) -> &Self {
        let end = self.iter().rposition(|&byte| byte != b'/');
        &self[..end.map_or(0, |end| end + 1)]
    }
}

/// Opens a name of a directory for a look at its content: a regular file that
/// is no link.
pub(super) fn open_to_look(directory: &OwnedFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_a_directory_is_told_by_whole_names() {
        assert_eq!(below(b"/w", b"/w/a/b"), Some(&b"a/b"[..]));
        assert_eq!(below(b"/w", b"/w"), Some(&b""[..]));
        assert_eq!(below(b"/w", b"/wide/a"), None);
        assert_eq!(below(b"/", b"/a"), Some(&b"a"[..]));
    }
}
