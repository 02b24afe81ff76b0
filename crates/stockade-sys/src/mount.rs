//! What rustix lacks of the new mount API: mount_setattr(2).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::check;

/// Mount attributes to set (MOUNT_ATTR_* of linux/mount.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes(u64);

impl Attributes {
    pub const NONE: Self = Self(0);
    pub const READ_ONLY: Self = Self(0x1);
    pub const NO_SETUID: Self = Self(0x2);
    pub const NO_DEVICES: Self = Self(0x4);
    pub const NO_EXECUTE: Self = Self(0x8);

    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// How far a change of attributes reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    One,
    /// This mount and all below it.
    Recursive,
}

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Adds attributes to the mount that `mount` is the root of.
pub fn set_attributes(mount: BorrowedFd<'_>, set: Attributes, reach: Reach) -> io::Result<()> {
    let attributes = MountAttr {
        set: set.0,
        clear: 0,
        propagation: 0,
        userns_fd: 0,
    };
    setattr(
        mount.as_raw_fd(),
        c"",
        libc::AT_EMPTY_PATH,
        reach,
        &attributes,
    )
}

/// Takes attributes off the mount that `mount` is the root of.
pub fn clear_attributes(mount: BorrowedFd<'_>, clear: Attributes, reach: Reach) -> io::Result<()> {
    let attributes = MountAttr {
        set: 0,
        clear: clear.0,
        propagation: 0,
        userns_fd: 0,
    };
    setattr(
        mount.as_raw_fd(),
        c"",
        libc::AT_EMPTY_PATH,
        reach,
        &attributes,
    )
}

/// Cuts every mount of this mount namespace off from its peers, so that
/// nothing done here shows elsewhere and nothing done elsewhere shows here.
pub fn make_all_private() -> io::Result<()> {
    let attributes = MountAttr {
        set: 0,
        clear: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    setattr(libc::AT_FDCWD, c"/", 0, Reach::Recursive, &attributes)
}

fn setattr(
    directory: i32,
    path: &std::ffi::CStr,
    flags: i32,
    reach: Reach,
    attributes: &MountAttr,
) -> io::Result<()> {
    let flags = match reach {
        Reach::One => flags,
        Reach::Recursive => flags | libc::AT_RECURSIVE,
    };
    // SAFETY: the path ends in NUL and the structure has the size that is
    // passed; both outlive the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            directory,
            path.as_ptr(),
            flags,
            attributes as *const MountAttr,
            size_of::<MountAttr>(),
        )
    })?;
    Ok(())
}
