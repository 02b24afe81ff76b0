//! Landlock (landlock(7)): a ruleset that a process lays on itself.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::check;

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;

/// ABI of this kernel's Landlock; 0 when it is missing or switched off.
pub fn abi() -> u32 {
    version().unwrap_or(0)
}

/// ABI of this kernel's Landlock. `ENOSYS` when the kernel was built without
/// it, `EOPNOTSUPP` when it was left out at boot.
pub fn version() -> io::Result<u32> {
    // SAFETY: with a null attribute and the VERSION flag the call only reports.
    let version = check(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0usize,
            CREATE_RULESET_VERSION,
        )
    })?;
    Ok(version as u32)
}

/// Rights that a ruleset handles: everything handled is denied unless a rule
/// allows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Handled {
    pub filesystem: u64,
    pub network: u64,
    pub scoped: u64,
}

/// A ruleset under construction.
pub struct Ruleset(OwnedFd);

impl Ruleset {
    /// The kernel refuses rights that it does not know, so pass exactly those
    /// of its [`abi`].
    pub fn new(handled: Handled) -> io::Result<Self> {
        // Older kernels know a shorter structure and take a longer one only
        // when the rest is zero.
        // SAFETY: the structure is plain integers of the size that is passed.
        let fd = check(unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &raw const handled,
                size_of::<Handled>(),
                0u32,
            )
        })?;
        // SAFETY: the kernel made this descriptor for us.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// Allows `rights` on what `path` (an O_PATH descriptor) names and below.
    pub fn allow(&self, path: BorrowedFd<'_>, rights: u64) -> io::Result<()> {
        #[repr(C, packed)]
        struct PathBeneath {
            allowed: u64,
            parent: i32,
        }
        let rule = PathBeneath {
            allowed: rights,
            parent: path.as_raw_fd(),
        };
        // SAFETY: the structure has the packed layout of linux/landlock.h and
        // outlives the call.
        check(unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                self.0.as_raw_fd(),
                RULE_PATH_BENEATH,
                &raw const rule,
                0u32,
            )
        })?;
        Ok(())
    }

    /// Lays the ruleset on the calling thread, for good. Needs no_new_privs.
    pub fn restrict_self(self) -> io::Result<()> {
        // SAFETY: takes integers.
        check(unsafe {
            libc::syscall(libc::SYS_landlock_restrict_self, self.0.as_raw_fd(), 0u32)
        })?;
        Ok(())
    }
}
