//! Safe wrappers over the system calls that Stockade makes.
//!
//! The only crate in which `unsafe` is allowed. It knows the kernel and knows
//! nothing of policies: every function does one thing that a manual page
//! describes and returns the kernel's own error. What `rustix` wraps well is
//! used from there and re-exported, so that no other crate talks to libc.

pub use rustix;

pub mod counter;
pub mod directory;
pub mod entry;
pub mod guard;
pub mod hostile;
pub mod landlock;
pub mod lease;
pub mod memory;
pub mod message;
pub mod mount;
pub mod network;
pub mod privilege;
pub mod process;
pub mod seccomp;
pub mod signal;
pub mod terminal;

use std::io;

/// Turns the `-1` of a libc call into the error it left in `errno`.
fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
