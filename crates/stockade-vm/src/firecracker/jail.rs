//! The directory that is one Firecracker's root: what goes in, what comes out,
//! and that nothing of it stays.
//!
//! ```text
//! BASE/                        0700, the caller's: nobody else makes a name in it
//!   firecracker/               called like the program, as the jailer has it
//!     <random>/                locked while the machine lives
//!       root/                  what Firecracker sees as /, and owns once it runs
//! ```
//!
//! Once it runs, every name in `root` is the machine's to make: links are not
//! followed, and nothing but what was asked for is opened.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use stockade_sys::directory::{self, Lock};
use stockade_sys::rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, fchmod, fstat, linkat, openat,
};
use stockade_sys::rustix::io::Errno;
use stockade_sys::rustix::process::geteuid;

use super::groups::Groups;
use super::{FirecrackerError, system};
use crate::firecracker::snapshot::copy_data;

const ROOT: &str = "root";

/// One machine's directory and control groups, gone when dropped.
#[derive(Debug)]
pub struct Jail {
    machines: OwnedFd,
    name: String,
    root: OwnedFd,
    groups: Option<Groups>,
    _lock: Lock,
}

impl Jail {
    /// Makes one in the directory of all machines.
    pub fn new(machines: BorrowedFd<'_>, groups: Option<Groups>) -> Result<Self, FirecrackerError> {
        let failed = system("make a directory for the machine");
        let name = directory::random_name().map_err(&failed)?;
        let own = directory::make_private(machines, &name).map_err(&failed)?;
        let lock = directory::try_lock_directory(own.as_fd()).map_err(&failed)?;
        let root = directory::make_private(own.as_fd(), ROOT).map_err(&failed)?;
        Ok(Self {
            machines: machines.try_clone_to_owned().map_err(&failed)?,
            name,
            root,
            groups,
            _lock: lock.ok_or_else(|| failed(Errno::WOULDBLOCK.into()))?,
        })
    }

    /// Removes what machines left whose supervisor was killed.
    pub fn sweep(machines: BorrowedFd<'_>, groups: Option<&Groups>) -> io::Result<()> {
        for name in directory::names(machines)? {
            let Some(own) = directory::open_private_if_there(machines, &name)? else {
                continue;
            };
            if let Some(_lock) = directory::try_lock_directory(own.as_fd())? {
                remove(machines, &name, groups)?;
            }
        }
        Ok(())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Puts a file there, to be read: a second name of it where nobody but the
    /// caller can change it and everybody may read it, else a copy. Returns it,
    /// opened.
    pub fn place(&self, name: &str, file: &Path) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let source = File::from(openat(CWD, file, flags, Mode::empty())?);
        let status = source.metadata()?;
        if !status.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        let is_safe = status.uid() == geteuid().as_raw() && status.mode() & 0o022 == 0;
        if is_safe && status.mode() & 0o004 != 0 {
            let opened = format!("/proc/self/fd/{}", source.as_raw_fd());
            match linkat(CWD, &*opened, &self.root, name, AtFlags::SYMLINK_FOLLOW) {
                Ok(()) => return Ok(source),
                Err(Errno::XDEV | Errno::PERM | Errno::MLINK) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let target = self.create(name)?;
        target.set_len(status.len())?;
        copy_data(&source, &target)?;
        Ok(target)
    }

    /// Puts these bytes there, to be read.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.create(name)?.write_all(bytes)
    }

    fn create(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&self.root, name, flags, Mode::empty())?;
        fchmod(&file, Mode::from_raw_mode(0o444))?;
        Ok(file.into())
    }

    /// Opens a regular file that Firecracker wrote, of at most so many bytes.
    pub fn written(&self, name: &str, bytes_max: u64) -> Result<File, FirecrackerError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.root, name, flags, Mode::empty());
        let failed = system("open what Firecracker saved");
        let file = File::from(file.map_err(|errno| failed(errno.into()))?);
        let status = file.metadata().map_err(&failed)?;
        if !status.is_file() || status.len() > bytes_max {
            return Err(FirecrackerError::Violation {
                who: "Firecracker",
                reason: format!("{name} is no regular file, or larger than {bytes_max} bytes"),
            });
        }
        Ok(file)
    }

    /// Connects to a socket that Firecracker made. The socket is opened before, so
    /// that a link to another one leads nowhere.
    pub fn dial(&self, name: &str) -> io::Result<UnixStream> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = openat(&self.root, name, flags, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&socket)?.st_mode) != FileType::Socket {
            return Err(io::Error::other("it is no socket"));
        }
        UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd()))
    }

    /// Removes a file that Firecracker wrote.
    pub fn forget(&self, name: &str) -> io::Result<()> {
        directory::remove_tree(self.root(), name)
    }
}

impl Drop for Jail {
    fn drop(&mut self) {
        // What stays is found by the next sweep.
        let _gone = remove(self.machines.as_fd(), &self.name, self.groups.as_ref()).is_ok();
    }
}

fn remove(machines: BorrowedFd<'_>, name: &str, groups: Option<&Groups>) -> io::Result<()> {
    if let Some(groups) = groups {
        groups.remove(name)?;
    }
    directory::remove_tree(machines, name)
}

/// Opens the directory of all machines of a program, and makes it.
pub fn machines(base: &Path, program: &str) -> io::Result<OwnedFd> {
    let path = base.to_str().filter(|path| path.starts_with('/'));
    let path = path.ok_or_else(|| io::Error::other("no absolute path in UTF-8"))?;
    let base = directory::make_private(CWD, path)?;
    directory::make_private(base.as_fd(), program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn jail() -> (tempfile::TempDir, Jail) {
        let private = fs::Permissions::from_mode(0o700);
        let base = tempfile::Builder::new()
            .permissions(private)
            .tempdir()
            .unwrap();
        let machines = machines(base.path(), "firecracker").unwrap();
        let jail = Jail::new(machines.as_fd(), None).unwrap();
        (base, jail)
    }

    fn root(base: &tempfile::TempDir, jail: &Jail) -> std::path::PathBuf {
        base.path()
            .join("firecracker")
            .join(jail.name())
            .join("root")
    }

    #[test]
    fn a_link_or_a_pipe_of_the_machines_leads_nowhere() {
        let (base, jail) = jail();
        let root = root(&base, &jail);
        let outside = base.path().join("outside");
        let _listener = std::os::unix::net::UnixListener::bind(&outside).unwrap();
        symlink(&outside, root.join("socket")).unwrap();
        fs::write(base.path().join("secret"), "secret").unwrap();
        symlink(base.path().join("secret"), root.join("link")).unwrap();
        stockade_sys::rustix::fs::mknodat(
            jail.root(),
            "pipe",
            FileType::Fifo,
            Mode::from_raw_mode(0o666),
            0,
        )
        .unwrap();
        fs::write(root.join("large"), "12345").unwrap();
        for name in ["socket", "link", "pipe", "large"] {
            assert!(jail.dial(name).is_err(), "{name}");
            assert!(jail.written(name, 4).is_err(), "{name}");
        }
        assert!(jail.written("large", 5).is_ok());
    }

    #[test]
    fn only_what_nobody_else_can_change_is_linked() {
        let (base, jail) = jail();
        for (mode, linked) in [
            (0o644, true),
            (0o600, false),
            (0o664, false),
            (0o646, false),
        ] {
            let (file, name) = (base.path().join("file"), format!("m{mode:o}"));
            fs::write(&file, "content").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            jail.place(&name, &file).unwrap();
            let placed = root(&base, &jail).join(&name);
            assert_eq!(fs::read(&placed).unwrap(), b"content");
            assert_eq!(
                fs::metadata(&placed).unwrap().nlink() == 2,
                linked,
                "{mode:o}"
            );
            assert_ne!(fs::metadata(&placed).unwrap().mode() & 0o004, 0);
            fs::remove_file(&file).unwrap();
        }
        symlink("/etc/passwd", base.path().join("link")).unwrap();
        assert!(jail.place("link", &base.path().join("link")).is_err());
        assert!(jail.place("directory", base.path()).is_err());
    }

    #[test]
    fn nothing_stays_and_what_a_killed_one_left_is_swept() {
        let (base, jail) = jail();
        let machines = machines(base.path(), "firecracker").unwrap();
        let left = directory::make_private(machines.as_fd(), "left").unwrap();
        directory::make_private(left.as_fd(), "root").unwrap();
        Jail::sweep(machines.as_fd(), None).unwrap();
        assert_eq!(directory::names(machines.as_fd()).unwrap(), [jail.name()]);
        drop(jail);
        assert!(directory::names(machines.as_fd()).unwrap().is_empty());
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(super::machines(base.path(), "firecracker").is_err());
    }
}
