//! Installing a seccomp filter (seccomp(2)), and answering the calls that one
//! holds for a supervisor (seccomp_unotify(2)).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

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

/// What a filter answers for calls that a supervisor decides
/// (SECCOMP_RET_USER_NOTIF).
pub const NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;

/// Whether this kernel can hold calls for a supervisor, without a signal
/// making a program repeat one that was already performed
/// (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, Linux 5.19).
pub fn can_notify() -> bool {
    // SAFETY: with flags that the kernel knows it goes on to the null program
    // and says EFAULT; with others EINVAL. Nothing is installed.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            LISTENER_FLAGS,
            std::ptr::null::<libc::sock_fprog>(),
        )
    };
    answer < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

const LISTENER_FLAGS: libc::c_ulong =
    libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;

/// As [`install`], for a program that answers [`NOTIFY`] to some calls: the
/// descriptor on which they arrive. `EBUSY` when an outer filter has one.
pub fn install_with_listener(program: &[Instruction]) -> io::Result<OwnedFd> {
    let length =
        u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let header = libc::sock_fprog {
        len: length,
        filter: program.as_ptr().cast_mut().cast(),
    };
    // SAFETY: as in `install`.
    let listener = check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            LISTENER_FLAGS,
            &raw const header,
        )
    })?;
    // SAFETY: the kernel made this descriptor for us; it is closed on exec.
    Ok(unsafe { OwnedFd::from_raw_fd(listener as i32) })
}

/// A call that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// Names the call, not the process: once the process is gone, no answer
    /// reaches another.
    pub id: u64,
    /// The calling thread, in the receiver's pid namespace.
    pub thread: u32,
    /// Number of the system call.
    pub number: u32,
    pub arguments: [u64; 6],
}

/// The listener's side: receives calls and answers them
/// (seccomp_unotify(2)).
#[derive(Debug)]
pub struct Listener(OwnedFd);

// `_IOWR('!', 0, struct seccomp_notif)` and its relatives of linux/seccomp.h.
const RECEIVE: libc::c_ulong = 0xC050_2100;
const SEND: libc::c_ulong = 0xC018_2101;
const ID_VALID: libc::c_ulong = 0x4008_2102;
const ADD_DESCRIPTOR: libc::c_ulong = 0x4018_2103;
const SET_FLAGS: libc::c_ulong = 0x4008_2104;
const SYNC_WAKE_UP: u64 = 1;

impl Listener {
    pub fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// Has the kernel hand the processor over between caller and listener
    /// (Linux 6.6); without it everything works, a little slower.
    pub fn wake_in_step(&self) {
        // SAFETY: the request takes the flags by value.
        let _older_kernel =
            unsafe { libc::ioctl(self.0.as_raw_fd(), SET_FLAGS as _, SYNC_WAKE_UP) } < 0;
    }

    /// Whether [`Self::receive`] also returns when nobody is left whose calls
    /// are held. Before Linux 6.11 it then waits for ever.
    pub fn receiving_ends() -> bool {
        receiving_ends_in(rustix::system::uname().release().to_bytes())
    }

    /// Waits for the next call. `None` when it is gone before it could be
    /// read, as when its process was killed.
    pub fn receive(&self) -> io::Result<Option<Notification>> {
        // SAFETY: all-zero is what the kernel demands of this structure.
        let mut raw: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills in the structure that the request names.
        match check(unsafe { libc::ioctl(self.0.as_raw_fd(), RECEIVE as _, &raw mut raw) }.into()) {
            Ok(_) => Ok(Some(Notification {
                id: raw.id,
                thread: raw.pid,
                number: raw.data.nr as u32,
                arguments: raw.data.args,
            })),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT | libc::EINTR) => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Whether the call still waits: what was read of its process until now
    /// was that process's.
    pub fn is_waiting(&self, call: &Notification) -> bool {
        // SAFETY: the kernel reads the id.
        unsafe { libc::ioctl(self.0.as_raw_fd(), ID_VALID as _, &raw const call.id) == 0 }
    }

    /// The call returns this value, or fails with this error.
    pub fn answer(&self, call: &Notification, result: Result<i64, i32>) -> io::Result<()> {
        let (val, error) = match result {
            Ok(value) => (value, 0),
            Err(errno) => (0, -errno),
        };
        self.send(libc::seccomp_notif_resp {
            id: call.id,
            val,
            error,
            flags: 0,
        })
    }

    /// The kernel performs the call itself, with whatever the memory of the
    /// process holds by then: not a decision about its arguments
    /// (SECCOMP_USER_NOTIF_FLAG_CONTINUE).
    pub fn go_on(&self, call: &Notification) -> io::Result<()> {
        self.send(libc::seccomp_notif_resp {
            id: call.id,
            val: 0,
            error: 0,
            flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        })
    }

    /// Puts a copy of the descriptor into the calling process, which does not
    /// run on yet: the number that it has there.
    pub fn hand_over(
        &self,
        call: &Notification,
        descriptor: BorrowedFd<'_>,
        close_on_exec: bool,
    ) -> io::Result<i32> {
        let request = libc::seccomp_notif_addfd {
            id: call.id,
            flags: 0,
            srcfd: descriptor.as_raw_fd() as u32,
            newfd: 0,
            newfd_flags: if close_on_exec {
                libc::O_CLOEXEC as u32
            } else {
                0
            },
        };
        // SAFETY: the kernel reads the structure.
        let number = check(
            unsafe { libc::ioctl(self.0.as_raw_fd(), ADD_DESCRIPTOR as _, &raw const request) }
                .into(),
        )?;
        Ok(number as i32)
    }

    /// A call that is gone by now needs no answer.
    fn send(&self, response: libc::seccomp_notif_resp) -> io::Result<()> {
        // SAFETY: the kernel reads the structure.
        let sent = unsafe { libc::ioctl(self.0.as_raw_fd(), SEND as _, &raw const response) };
        match check(sent.into()) {
            Ok(_) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn receiving_ends_in(release: &[u8]) -> bool {
    let mut numbers = release
        .split(|byte| !byte.is_ascii_digit())
        .map(|digits| std::str::from_utf8(digits).ok()?.parse::<u32>().ok());
    let mut next = || numbers.next().flatten();
    match (next(), next()) {
        (Some(major), Some(minor)) => (major, minor) >= (6, 11),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::receiving_ends_in;

    #[test]
    fn receiving_is_trusted_to_end_only_where_the_kernel_says_so() {
        for release in ["6.11", "6.11.0-rc1", "6.18.44-fc-v669", "7.0.1", "10.2"] {
            assert!(receiving_ends_in(release.as_bytes()), "{release}");
        }
        for release in [
            "6.10.99",
            "5.19.0-50-generic",
            "4.14.336",
            "6",
            "",
            "6.x",
            "x6.12",
        ] {
            assert!(!receiving_ends_in(release.as_bytes()), "{release}");
        }
    }
}
