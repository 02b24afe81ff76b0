//! What the host staged, as told to the attacks inside.

use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What the host staged: where each bait lies. It travels as one JSON text in
/// an argument, so it never holds the secret itself in a form that a search
/// of arguments and environments would find.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// The secret that every bait holds, written backwards.
    pub token_backwards: String,
    /// The writable directory of the sandbox.
    pub workspace: PathBuf,
    /// A directory outside every grant, which holds `secret`, `sentinel` and
    /// `host.sock`.
    pub beside: PathBuf,
    /// The caller's home directory, when it is a made-up one full of bait.
    pub home: Option<PathBuf>,
    /// The directory in which the product keeps its log, when it is staged.
    pub state: Option<PathBuf>,
    /// Files with the secret in public places (/tmp, /var/tmp, /dev/shm).
    pub public_secrets: Vec<PathBuf>,
    /// TCP listeners of the host, on its loopback and its own address.
    pub tcp: Vec<SocketAddr>,
    /// UDP sockets of the host.
    pub udp: Vec<SocketAddr>,
    /// Name of an abstract stream listener of the host.
    pub abstract_name: String,
    /// Paths of listeners of the host, in the workspace and beside it.
    pub sockets: Vec<PathBuf>,
    /// A process of the host whose environment holds the secret.
    pub victim: i32,
    /// A process of the host that is stopped, to be seen if it is continued.
    pub stopped_victim: i32,
    /// Key of a System V segment and of a System V queue, and the segment's id.
    pub ipc_key: i32,
    pub shm_id: Option<i32>,
    /// Name of a POSIX queue of the host, without a slash.
    pub queue: String,
    /// Id of a key in the host's session keyring; its description is `queue`.
    pub key: Option<i32>,
    /// Device and inode of the file that is the front's standard input.
    pub stdin: (u64, u64),
    /// Type and bytes of a file handle of `beside`/secret.
    pub handle: Option<(i32, Vec<u8>)>,
    /// Device number of the file system that `beside` lies on.
    pub disk: u64,
    /// Limits of this sandbox, when they are small enough to be tried out.
    pub limits: Option<SmallLimits>,
    /// 1 for the first of two runs, 2 for the second; 1 when there is one.
    pub round: u32,
    /// What the host's kernel says of itself, by which one of the sandbox's own
    /// is told apart.
    pub kernel: String,
    /// Set when an attack is run without a sandbox; it then spares what is not
    /// bait, such as other people's terminals.
    #[serde(default)]
    pub unconfined: bool,
}

/// Limits small enough to be tried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmallLimits {
    pub memory_bytes: u64,
    pub processes: u64,
    pub open_files: u64,
    /// Budget of the private directories together.
    pub disk_bytes: u64,
    pub disk_inodes: u64,
}

/// What the kernel under this process says of its version and its start.
pub(crate) fn kernel() -> String {
    let said = |path| std::fs::read_to_string(path).unwrap_or_default();
    ["/proc/version", "/proc/cmdline"].map(said).concat()
}

impl Stage {
    /// The secret that every bait holds.
    pub fn token(&self) -> String {
        self.token_backwards.chars().rev().collect()
    }

    /// Whether these bytes hold the secret.
    pub fn found_in(&self, bytes: &[u8]) -> bool {
        let token = self.token();
        bytes
            .windows(token.len())
            .any(|window| window == token.as_bytes())
    }

    /// The path of the secret beside the workspace.
    pub fn secret(&self) -> PathBuf {
        self.beside.join("secret")
    }

    /// The name of the queue and of the key, as system calls take it.
    pub fn queue_name(&self) -> CString {
        CString::new(self.queue.replace('\0', "")).expect("null bytes were just removed")
    }

    /// Whether these arguments are those of a process that the bait started.
    pub fn is_victim(&self, arguments: &[u8]) -> bool {
        arguments.starts_with(b"sleep\0") && arguments.windows(5).any(|part| part == b"86397")
    }

    /// An attribute of processes that must not outlive the sandbox: it stands
    /// in their arguments.
    pub fn linger_mark(&self) -> String {
        format!("stockade-linger-{}", &self.queue)
    }
}
