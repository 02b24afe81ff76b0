//! What a machine is told before its session begins: one frame, in front of the
//! host's greeting. Whether its kernel has just booted or goes on from a saved
//! state, it is nobody before.

use serde::{Deserialize, Serialize};

/// Length of what makes a machine's random numbers its own.
pub const ENTROPY_BYTES: usize = 32;
/// Largest body of the frame.
pub const BIRTH_BYTES_MAX: usize = 8 * 1024;

/// What makes a machine this one and no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Birth<'a> {
    /// From the host's kernel, for this machine alone.
    pub entropy: [u8; ENTROPY_BYTES],
    /// What time it is, since 1970.
    pub seconds: i64,
    pub nanoseconds: u32,
    /// Whom commands run as.
    pub uid: u32,
    pub gid: u32,
    pub umask: u32,
    /// What the machine is called (sethostname(2)).
    #[serde(borrow)]
    pub name: &'a [u8],
    /// Directories of the view that become the machine's own memory, each with
    /// a NUL behind it: temporary ones, which nobody outside looks into. The
    /// exported view takes neither sockets nor named pipes.
    #[serde(borrow)]
    pub private: &'a [u8],
    /// The rules of system calls for every command, as seccomp(2) takes them:
    /// `struct sock_filter`, one behind the other. At least one.
    #[serde(borrow)]
    pub filter: &'a [u8],
    pub limits: Limits,
    /// What the private directories hold together, in bytes and in files.
    pub disk_bytes: u64,
    pub disk_inodes: u64,
}

/// Length of one instruction of a filter.
pub const INSTRUCTION_BYTES: usize = 8;
/// Most instructions of a filter.
pub const INSTRUCTIONS_MAX: usize = 512;

/// What commands are held to within the machine, besides what it is as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Most processes and threads at one time, the agent's included.
    pub processes: Option<u64>,
    /// Of each process: open files, the size of a file, seconds of processor time.
    pub open_files: Option<u64>,
    pub file_bytes: Option<u64>,
    pub cpu_seconds: Option<u64>,
}
