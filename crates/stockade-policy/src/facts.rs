//! What is true of this machine and this caller, as a value.
//!
//! The engine fills it by system calls; the compiler only reads it. Anything
//! that could not be determined says so, so that no plan rests on a guess.

use std::collections::BTreeMap;

use crate::path::AbsolutePath;
use crate::plan::{Cover, Machine, Runsc, Runtime};

/// Processor architecture, which decides system call numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    X86_64,
    Aarch64,
}

/// Whether the machine can do something, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ability {
    Yes,
    No { reason: String, remedy: String },
}

/// Control groups that this process may use for a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlGroups {
    /// Directory of a delegated cgroup v2 subtree and the controllers that
    /// can be enabled in it.
    V2 {
        directory: AbsolutePath,
        controllers: Vec<String>,
    },
    /// Per controller (`memory`, `pids`, `cpu`) the directory of this
    /// process's own v1 group, in which it may make children.
    V1 {
        directories: BTreeMap<String, AbsolutePath>,
    },
    None {
        reason: String,
        remedy: String,
    },
}

/// What a path is, without following a final link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathKind {
    Directory,
    File,
    /// A link and the bytes that it holds.
    Symlink {
        target: Vec<u8>,
    },
    Socket,
    Other,
}

/// One path that the policy mentions, as found on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathFact {
    pub kind: PathKind,
    /// The path with every link resolved; equal to the key when no component
    /// is a link. `None` for a dangling link.
    pub resolved: Option<AbsolutePath>,
    /// Kind of what `resolved` names.
    pub resolved_kind: Option<PathKind>,
    /// Owner of the path itself.
    pub uid: u32,
    pub gid: u32,
    /// Permission bits (the low twelve of `st_mode`).
    pub mode: u32,
}

/// Everything that compiling a policy may depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub architecture: Architecture,
    /// Kernel release, major and minor.
    pub kernel: (u32, u32),
    /// Landlock ABI (landlock(7)); 0 when the kernel has none.
    pub landlock_abi: u32,
    pub user_namespaces: Ability,
    /// Whether a process outside can decide the calls that make names
    /// (seccomp_unotify(2), with SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV).
    pub supervised_names: Ability,
    pub control_groups: ControlGroups,
    pub uid: u32,
    pub gid: u32,
    /// Whether the caller may map every id into a new user namespace
    /// (CAP_SETUID and CAP_SETGID, user_namespaces(7)).
    pub maps_every_id: bool,
    /// The caller's home directory with links resolved.
    pub home: AbsolutePath,
    pub user_name: String,
    /// The caller's umask, low nine bits.
    pub umask: u32,
    pub memory_total_bytes: u64,
    /// Processors that this process may run on (sched_getaffinity(2)).
    pub processors: Vec<u32>,
    /// Hard limit of open files (getrlimit(2)).
    pub open_files_max: u64,
    /// The caller's environment.
    pub environment: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Paths that the policy asked about; a path that is not here does not
    /// exist.
    pub paths: BTreeMap<AbsolutePath, PathFact>,
    /// Places below writable grants that a `hide` pattern matched.
    pub hidden: Vec<HiddenMatch>,
    /// Where the caches of this workspace are, or would be made, with no link in
    /// it; `None` where there is no place for them.
    pub caches: Option<AbsolutePath>,
    /// Where the caches of all workspaces are, if they exist.
    pub all_caches: Option<AbsolutePath>,
    /// Unix sockets on which a process outside listens, below a grant.
    pub sockets: Vec<AbsolutePath>,
    /// Whether the workspace can be the lower layer of an overlay whose upper
    /// one is in the store; looked for only where the policy wants one.
    pub overlay: Ability,
    /// Frozen layers of the store on which the run is to go on, the topmost
    /// first.
    pub layers: Vec<AbsolutePath>,
    /// Settings of the caller's own git configuration that say who commits,
    /// in the order of the file: key and value, only keys of
    /// [`crate::git::KEYS`].
    pub git_identity: Vec<(String, Vec<u8>)>,
    /// What the caller's own git configuration keeps out of every repository
    /// (`core.excludesFile` of gitignore(5)); empty when nothing is hidden in
    /// a repository, or when there is no such file.
    pub git_excludes: Vec<u8>,
    /// The machine's own name (uname(2)), which programs look up; empty when it
    /// is not known.
    pub host_name: String,
    /// Whether connections can be redirected in a network namespace of our own
    /// (nftables). Without it only programs that use a proxy have a way out.
    pub redirect: Ability,
    /// Files of certificate roots (PEM) that programs of this machine read,
    /// links resolved.
    pub ca_bundles: Vec<AbsolutePath>,
    /// Trust stores of the Java installations (`cacerts`), links resolved.
    pub java_stores: Vec<AbsolutePath>,
    /// The gVisor of this machine; looked for only where the policy wants it.
    pub gvisor: Gvisor,
    /// What a virtual machine would be; looked for only where the policy wants
    /// one.
    pub machine: MachineFacts,
    /// The installed OCI runtime; looked for only where the policy wants one.
    pub runtime: RuntimeFacts,
    /// The image that the policy names. What is said of paths in its
    /// directories is then said of the image and not of the host.
    pub image: Option<ImageFacts>,
}

/// Whether there is a gVisor that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gvisor {
    Found(Runsc),
    Missing { reason: String, remedy: String },
}

/// Whether a virtual machine can be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineFacts {
    Found(Box<MachineFound>),
    Missing { reason: String, remedy: String },
}

/// A virtual machine that can be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineFound {
    pub machine: Machine,
    /// States from which one can go on instead of booting.
    pub saved: Vec<SavedMachine>,
    /// Directories of the host that hold what QEMU is linked to; links resolved.
    pub system: Vec<AbsolutePath>,
    /// Whether KVM runs it. Where the policy does not say whether it should,
    /// that was really tried.
    pub kvm: Ability,
}

/// A machine that was saved before it knew whom it would work for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedMachine {
    /// In MiB.
    pub memory: u32,
    /// Whether it has a network card.
    pub network: bool,
    /// SHA-256 of the state.
    pub digest: String,
}

/// Whether there is the OCI runtime that the policy names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeFacts {
    Found(Runtime),
    Missing { reason: String, remedy: String },
}

/// An image as it was unpacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFacts {
    /// The digest of its configuration, `sha256:…`.
    pub id: String,
    /// Where its root file system is on the host, links resolved.
    pub root: AbsolutePath,
    /// The largest parts of it that hold no place of the host's: what is in its
    /// root, or in directories on the way to such a place.
    pub parts: Vec<AbsolutePath>,
    /// The variables that it sets.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
}

/// One existing path that a `hide` pattern matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenMatch {
    pub path: AbsolutePath,
    pub directory: bool,
    /// Index of the pattern in the policy.
    pub pattern: usize,
    /// Where it is in the work tree of the git repository around it; `None`
    /// without one.
    pub in_repository: Option<Vec<u8>>,
    /// What is to stand there.
    pub cover: Cover,
}

impl HiddenMatch {
    /// A match that no repository knows of.
    pub fn new(path: AbsolutePath, directory: bool, pattern: usize) -> Self {
        Self {
            path,
            directory,
            pattern,
            in_repository: None,
            cover: Cover::Empty,
        }
    }

    /// Whether what git's index holds stands there.
    pub fn is_committed(&self) -> bool {
        matches!(self.cover, Cover::Committed(_))
    }
}
