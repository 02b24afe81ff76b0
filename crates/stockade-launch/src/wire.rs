//! What crosses between the supervisor and the launcher, and nothing else.
//!
//! Both sides are the same build, so there is one version; it is checked all
//! the same, because a mismatch must be a refusal and not a misreading.

use serde::{Deserialize, Serialize};

/// Version of everything in this module.
pub const VERSION: u32 = 1;

/// Largest encoded assignment, in bytes: room for some 100,000 masks.
pub const ASSIGNMENT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Largest message on the control socket, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// What the launcher is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    pub version: u32,
    pub steps: Vec<Step>,
    pub argv: Vec<Vec<u8>>,
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Low nine bits.
    pub umask: u32,
    /// What is executed instead of the command or the agent.
    pub guest: Option<Guest>,
    pub watch: Watch,
    /// Certificate (PEM) of the sandbox's own authority, for the steps that
    /// write trust stores. It is made with the sandbox, so it is in no plan.
    pub authority: Option<Vec<u8>>,
    /// Test aid: this step is made to fail. It can only make a run refuse.
    pub fail_at: Option<u32>,
}

/// A program that starts the agent within something of its own: a kernel, or a
/// container. It finds the agent's channel as descriptor 3 and its program as
/// descriptor 4, and passes both on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guest {
    /// Its path, once the view was entered, and its arguments.
    pub arguments: Vec<Vec<u8>>,
    /// It is user 0 of a user namespace of its own, and has every capability
    /// there; these are user and group outside of that.
    pub own_user_namespace: Option<(u32, u32)>,
}

/// Where a standard stream of the command leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    /// The sandbox's own /dev/null.
    Null,
    /// An inherited descriptor of this number.
    Descriptor(i32),
    /// The private terminal.
    Terminal,
}

/// What the launcher samples while the command runs, because nothing in the
/// kernel holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    pub memory_bytes_max: Option<u64>,
    pub processes_max: Option<u64>,
}

/// One step and its index in the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub index: u32,
    pub action: Action,
}

/// Inode numbers of the supervisor's namespaces, in the order of
/// [`NAMESPACES`].
pub type NamespaceIds = [u64; 7];

/// Names below /proc/self/ns.
pub const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "ipc", "uts", "cgroup", "net"];

/// What a step does; the meaning of each is documented where the plan is
/// defined. Paths are absolute bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    TieToSupervisor,
    ScrubLauncher,
    NotDumpable,
    VerifyNamespaces {
        outside: NamespaceIds,
    },
    LoopbackUp,
    LocalRoutes,
    Redirect {
        port: u16,
    },
    Listen {
        listeners: Vec<Listener>,
    },
    TrustStore {
        source: Option<Vec<u8>>,
        path: Vec<u8>,
        format: StoreFormat,
    },
    NewRoot,
    PrivateStorage {
        bytes: u64,
        inodes: u64,
    },
    Symlink {
        path: Vec<u8>,
        target: Vec<u8>,
    },
    File {
        path: Vec<u8>,
        content: Vec<u8>,
        mode: u32,
        writable: bool,
    },
    PrivateDirectory {
        path: Vec<u8>,
        mode: u32,
    },
    Bind {
        source: Vec<u8>,
        path: Vec<u8>,
        writable: bool,
        directory: bool,
    },
    BindWithout {
        source: Vec<u8>,
        path: Vec<u8>,
        absent: Vec<Vec<u8>>,
    },
    /// `lower` from the topmost layer down; the last is the directory itself.
    Overlay {
        path: Vec<u8>,
        lower: Vec<Vec<u8>>,
        upper: Vec<u8>,
        work: Vec<u8>,
        writable: bool,
    },
    OverlayPart {
        path: Vec<u8>,
        writable: bool,
    },
    Copy {
        source: Vec<u8>,
        path: Vec<u8>,
        bytes_max: u64,
    },
    Device {
        name: String,
    },
    Terminals,
    Proc {
        writable: bool,
        nested_namespaces: bool,
    },
    Masks {
        paths: Vec<MaskPath>,
    },
    EnterRoot,
    EnterDirectory {
        path: Vec<u8>,
    },
    ResourceLimits {
        limits: Vec<(u8, u64, u64)>,
    },
    Processors {
        processors: Vec<u32>,
    },
    NoNestedNamespaces,
    NoNewPrivileges,
    DropCapabilities,
    KeepMapping,
    /// `config` is the text of the bundle's `config.json`.
    GuestBundle {
        path: Vec<u8>,
        config: Vec<u8>,
    },
    /// `config` likewise; `path` is where the view is under the new root.
    RuntimeRoot {
        program: Vec<u8>,
        config: Vec<u8>,
        path: Vec<u8>,
    },
    MachineRoot {
        devices: Vec<String>,
        path: Vec<u8>,
    },
    Landlock {
        filesystem: u64,
        network: u64,
        scoped: u64,
        rules: Vec<(Vec<u8>, u64)>,
    },
    Seccomp {
        program: Vec<(u16, u8, u8, u32)>,
    },
    SuperviseNames {
        program: Vec<(u16, u8, u8, u32)>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaskPath {
    pub path: Vec<u8>,
    pub directory: bool,
    pub required: bool,
    pub cover: Cover,
}

/// What stands where something is taken away; the meaning of each is
/// documented where the plan is defined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cover {
    Empty,
    Sealed,
    Committed(Vec<StandIn>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandIn {
    pub name: Vec<u8>,
    pub kind: StandInKind,
    pub content: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StandInKind {
    File,
    Executable,
    Link,
    Directory,
}

/// Sockets to open; the meaning of each is documented where the plan is
/// defined. All but the last four listen, on TCP ports of the loopback unless
/// they say otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Listener {
    Proxy(u16),
    Transparent(u16),
    HostPort(u16),
    /// Port 53 of every address.
    NamesTcp,
    Unix {
        path: Vec<u8>,
    },
    /// Port 53 of every address.
    NamesUdp,
    Supply,
    ProbeTcp,
    ProbeUdp,
}

/// How a trust store is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreFormat {
    Pem,
    Jks,
}

/// What a descriptor is that comes with [`Report::Ready`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attached {
    /// Master side of the private terminal.
    Terminal,
    /// Where the calls arrive that a process outside decides.
    Names,
    /// The sandbox's user namespace, then its mount namespace, for that process.
    UserNamespace,
    MountNamespace,
    /// A socket of the listener with this index in the step that opens them.
    Listener(u32),
}

/// From the supervisor to the launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The id maps are written: perform what every plan begins with.
    Mapped,
    /// Perform the plan. A descriptor with the encoded assignment comes with
    /// this message; then one for each control group that the launcher is to
    /// join; then, for a sandbox that stays, the agent's program, which is run
    /// instead of the command, and its channel.
    Begin {
        /// The step that is to join control groups, and how many.
        join: Option<(u32, u8)>,
    },
    /// Every guarantee has its evidence: run the command.
    Go,
    /// Send a signal to the command; `group` to all of its process group.
    Signal { number: i32, group: bool },
}

/// From the launcher to the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// Every step took effect; the launcher waits at the gate. One descriptor
    /// for each of `attached` comes with this message.
    Ready {
        evidence: Vec<Evidence>,
        attached: Vec<Attached>,
    },
    /// A step failed; nothing was run and nothing will be.
    StepFailed {
        index: u32,
        errno: i32,
        detail: String,
    },
    /// The command could not be executed (execve(2) said `errno`).
    NotExecuted { errno: i32 },
    /// The command is running.
    Started,
    /// The command's job was stopped by a signal (terminal job control).
    Stopped { signal: i32 },
    /// The command ended; everything inside ends with it.
    Ended {
        end: End,
        usage: Usage,
        /// Nothing but the launcher is left inside.
        alone: bool,
    },
}

/// What shows that a step took effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    pub index: u32,
    pub detail: String,
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    Exited(i32),
    Killed {
        signal: i32,
        core: bool,
    },
    /// The launcher ended the sandbox because a watched limit was passed.
    Limit(Limit),
}

/// A limit that the launcher watches or finds full at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    Memory,
    Processes,
    Disk,
}

/// What the run used, as far as the launcher could see.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub peak_memory_bytes: u64,
    pub cpu_micros: u64,
    /// Limits that were met while the command ran.
    pub limits_met: Vec<Limit>,
}

/// Why bytes are no assignment or message.
#[derive(Debug, PartialEq, Eq)]
pub enum DecodeError {
    TooLong,
    Malformed,
    Version(u32),
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLong => formatter.write_str("the encoded form is too long"),
            Self::Malformed => formatter.write_str("the encoded form is malformed"),
            Self::Version(version) => write!(formatter, "version {version} is not {VERSION}"),
        }
    }
}

impl std::error::Error for DecodeError {}

impl Assignment {
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        let bytes = postcard::to_allocvec(self).map_err(|_| DecodeError::Malformed)?;
        if bytes.len() > ASSIGNMENT_BYTES_MAX {
            Err(DecodeError::TooLong)
        } else {
            Ok(bytes)
        }
    }

    /// Takes exactly one assignment; trailing bytes are an error.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > ASSIGNMENT_BYTES_MAX {
            return Err(DecodeError::TooLong);
        }
        let assignment: Self = decode(bytes)?;
        if assignment.version != VERSION {
            return Err(DecodeError::Version(assignment.version));
        }
        Ok(assignment)
    }
}

/// Encodes a message for the control socket.
pub fn encode_message<T: Serialize>(message: &T) -> Result<Vec<u8>, DecodeError> {
    let bytes = postcard::to_allocvec(message).map_err(|_| DecodeError::Malformed)?;
    if bytes.len() > MESSAGE_BYTES_MAX {
        Err(DecodeError::TooLong)
    } else {
        Ok(bytes)
    }
}

/// Decodes exactly one value; trailing bytes are an error.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(DecodeError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_message_survives_the_way() {
        let report = Report::Ready {
            evidence: vec![Evidence {
                index: 3,
                detail: "read-only".into(),
            }],
            attached: vec![Attached::Terminal, Attached::Listener(0)],
        };
        let bytes = encode_message(&report).unwrap();
        assert_eq!(decode::<Report>(&bytes), Ok(report));
    }

    #[test]
    fn trailing_bytes_and_other_versions_are_refused() {
        let assignment = Assignment {
            version: VERSION,
            steps: vec![],
            argv: vec![b"true".to_vec()],
            environment: vec![],
            umask: 0o022,
            guest: None,
            watch: Watch {
                memory_bytes_max: None,
                processes_max: None,
            },
            authority: None,
            fail_at: None,
        };
        let mut bytes = assignment.encode().unwrap();
        assert_eq!(Assignment::decode(&bytes), Ok(assignment.clone()));
        bytes.push(0);
        assert_eq!(Assignment::decode(&bytes), Err(DecodeError::Malformed));
        let other = Assignment {
            version: 7,
            ..assignment
        }
        .encode()
        .unwrap();
        assert_eq!(Assignment::decode(&other), Err(DecodeError::Version(7)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            drop(Assignment::decode(&bytes));
            drop(decode::<Request>(&bytes));
            drop(decode::<Report>(&bytes));
        }
    }
}
