//! Read leases (F_SETLEASE in fcntl(2)): a file that nobody has open for
//! writing, and that nobody can open for writing until the lease is gone.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::check;

/// A file, opened for reading, that stays as it is while this exists.
#[derive(Debug)]
pub struct ReadLease(OwnedFd);

impl ReadLease {
    /// `EAGAIN` when somebody has the file open for writing; `EINVAL` where the
    /// file system has no leases; `EACCES` for a file of another user.
    ///
    /// The kernel says with SIGIO that somebody waits for the end of the lease,
    /// which ends this process unless it blocks the signal.
    pub fn take(file: OwnedFd) -> io::Result<Self> {
        set(file.as_fd(), libc::F_RDLCK)?;
        Ok(Self(file))
    }
}

impl AsFd for ReadLease {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for ReadLease {
    fn drop(&mut self) {
        // Closing the descriptor gives the lease up as well.
        let _closed_anyway = set(self.0.as_fd(), libc::F_UNLCK).is_err();
    }
}

fn set(file: BorrowedFd<'_>, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: takes integers.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) }.into())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_open_for_writing_has_no_lease() {
        let path = std::env::temp_dir().join(format!("stockade-lease-{}", std::process::id()));
        std::fs::write(&path, b"content").unwrap();
        let open = || OwnedFd::from(std::fs::File::open(&path).unwrap());
        drop(ReadLease::take(open()).expect("nobody writes"));
        let writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let refused = ReadLease::take(open()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EAGAIN));
        drop(writer);
        drop(ReadLease::take(open()).expect("nobody writes any more"));
        std::fs::remove_file(&path).unwrap();
    }
}
