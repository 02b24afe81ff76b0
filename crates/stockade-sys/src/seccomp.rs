//! Installing a seccomp filter (seccomp(2)).

use std::io;

use crate::check;

/// One instruction, laid out as `struct sock_filter` of linux/filter.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    pub code: u16,
    pub jump_true: u8,
    pub jump_false: u8,
    pub operand: u32,
}

/// Installs the program on the calling thread, for good. Needs no_new_privs.
/// `EINVAL` when the program is empty, longer than 4096 or malformed.
pub fn install(program: &[Instruction]) -> io::Result<()> {
    let length =
        u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let header = libc::sock_fprog {
        len: length,
        filter: program.as_ptr().cast_mut().cast(),
    };
    // SAFETY: `header` describes `program`, whose layout is that of
    // `sock_filter`; the kernel copies it and writes nothing.
    check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0u32,
            &raw const header,
        )
    })?;
    Ok(())
}

/// Whether a filter is in force on the calling thread (PR_GET_SECCOMP).
pub fn is_filtered() -> bool {
    // SAFETY: takes integers.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) == 2 }
}

/// The error that keyctl(2) gives: a call that every filter of ours refuses,
/// so that its answer shows a filter at work.
pub fn refused_call() -> io::Error {
    const KEYCTL_GET_KEYRING_ID: libc::c_int = 0;
    const KEY_SPEC_SESSION_KEYRING: libc::c_int = -3;
    // SAFETY: takes integers and, without the create flag, changes nothing.
    match check(unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            KEYCTL_GET_KEYRING_ID,
            KEY_SPEC_SESSION_KEYRING,
            0,
        )
    }) {
        Ok(_) => io::Error::from_raw_os_error(0),
        Err(error) => error,
    }
}
