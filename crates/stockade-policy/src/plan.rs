//! The plan: a policy compiled for one command on this machine.
//!
//! It is complete (whoever applies it needs nothing else), printable, and has
//! a digest. `explain`, `test`, enforcement and the log all read this value.

use serde::{Deserialize, Serialize};

use crate::caches::Caches;
use crate::guarantee::Guarantee;
use crate::guard::Guard;
use crate::network::NetworkPlan;
use crate::path::AbsolutePath;

/// How a guarantee's mechanism is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Namespaces, a private view, Landlock and seccomp.
    Namespaces,
    /// Landlock and seccomp alone, for machines without user namespaces; used
    /// only when the policy names it.
    LandlockOnly,
    /// A profile of macOS's Seatbelt: the host's own names, and rules over
    /// them. The wall `seatbelt` has no other form.
    Seatbelt,
}

/// How writes reach the workspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkspaceMode {
    /// Directly.
    #[default]
    Live,
    /// Into a layer of this run's own, until a person applies it.
    Review,
    /// Into a layer that goes with the run.
    Discard,
}

/// What to run and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// At least one element; bytes, passed on as they are.
    pub argv: Vec<Vec<u8>>,
    pub directory: AbsolutePath,
    /// The complete environment inside, sorted by name.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What a path in the view may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Read, list and execute.
    Read,
    /// Also create, change and remove.
    Write,
}

/// Where a rule was written; shown with every decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Stable id, for example `filesystem.write[0]` or `credential.ssh`.
    pub id: String,
    /// Layer and line, for example `stockade.toml:7` or `built-in`.
    pub origin: String,
    /// Why the rule is there.
    pub reason: String,
}

/// One granted or private part of the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Path inside, which is also the path outside unless `private`.
    pub path: AbsolutePath,
    pub access: Access,
    /// The content is this run's own: nothing of the host's is visible there.
    pub private: bool,
    pub rule: Rule,
}

/// One path that is taken away again below a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask {
    pub path: AbsolutePath,
    pub directory: bool,
    /// What git's index holds stands there, read-only, instead of nothing.
    pub committed: bool,
    pub rule: Rule,
}

/// One action. The supervisor performs those before the gate that need the
/// outside; the launcher performs the rest, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Stable name, for example `view.bind /usr`.
    pub name: String,
    pub action: Action,
    /// The guarantees that rest on this step.
    pub holds: Vec<Guarantee>,
}

/// What a step does. Paths are inside the new view unless called `source`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    // Performed by the supervisor.
    /// clone3(2) into new user, mount, pid, ipc, uts, cgroup and network
    /// namespaces.
    CloneNamespaces,
    /// Fork without namespaces (the Landlock-only form).
    Fork,
    /// Write the id maps. `every_id` maps all ids onto themselves, else only
    /// the caller's.
    MapIds {
        every_id: bool,
    },
    /// Make a control group with these limits and put the launcher into it.
    JoinControlGroup,
    /// Standard streams become pipes or a private terminal.
    PrivateStreams,
    /// Start the process through which everything leaves, and give it the
    /// plan's network part.
    StartEgress,
    /// Through each listener of [`Action::Listen`], what is not allowed is
    /// refused; the gate stays shut until this was seen.
    TestEgress,
    /// The agent was started within the plan's own kernel and saw another one
    /// than the host's, or in the runtime's container and saw itself confined;
    /// no command is started before.
    SeeGuestKernel,

    // Performed by the launcher.
    /// Die with the supervisor (PR_SET_PDEATHSIG and an end-of-file on the
    /// control socket).
    TieToSupervisor,
    /// Close all but the listed descriptors; empty environment and arguments
    /// of the launcher itself.
    ScrubLauncher,
    /// PR_SET_DUMPABLE 0 for the launcher.
    NotDumpable,
    /// Compare namespaces with the supervisor's: each must differ.
    VerifyNamespaces,
    /// Bring up `lo` in the private network namespace.
    LoopbackUp,
    /// Make every address a local one (`local 0.0.0.0/0 dev lo` and `::/0` in
    /// the table `local`, rtnetlink(7)), so that packets have nowhere to go
    /// but to listeners of the namespace, and fail at once without one.
    LocalRoutes,
    /// Redirect every TCP connection that is not to the loopback to
    /// [`TRANSPARENT_PORT`] (nftables, output hook of type nat).
    Redirect,
    /// Open these sockets in the private network namespace, and hand them to
    /// the supervisor.
    Listen {
        listeners: Vec<Listener>,
    },
    /// Replace a file of certificate roots in the view by the same file with
    /// the sandbox's own authority added. The authority comes beside the plan.
    TrustStore {
        /// Where the file is on the host, links resolved; `None` for a new
        /// file that starts with the roots of the first store of the plan.
        source: Option<AbsolutePath>,
        path: AbsolutePath,
        format: StoreFormat,
    },
    /// Make all mounts private, then a fresh tmpfs as the new root.
    NewRoot,
    /// One tmpfs that backs all private directories.
    PrivateStorage {
        bytes: u64,
        inodes: u64,
    },
    Symlink {
        path: AbsolutePath,
        target: Vec<u8>,
    },
    /// A regular file in the private storage with this content: mounted and
    /// read-only, or `writable` and then no mount, so that programs that
    /// replace files by renaming can.
    File {
        path: AbsolutePath,
        content: Vec<u8>,
        mode: u32,
        writable: bool,
    },
    /// A directory of the private storage, mounted at `path`.
    PrivateDirectory {
        path: AbsolutePath,
        mode: u32,
    },
    /// Mount `source` of the host, with everything mounted below it.
    Bind {
        source: AbsolutePath,
        path: AbsolutePath,
        access: Access,
        directory: bool,
    },
    /// Mount the directory `source` of the host read-only, without the names
    /// `absent` below it: they do not exist there, whatever the host does with
    /// them during the run.
    BindWithout {
        source: AbsolutePath,
        path: AbsolutePath,
        absent: Vec<AbsolutePath>,
    },
    /// Mount the workspace `path` as an overlay (overlayfs, `userxattr`): what
    /// is written goes to an upper layer in the store. Where that is comes
    /// beside the plan, because it is made with the run.
    Overlay {
        path: AbsolutePath,
        /// Frozen layers between the upper one and the directory itself, the
        /// topmost first.
        layers: Vec<AbsolutePath>,
        access: Access,
    },
    /// Mount a part of the overlay at its own place again.
    OverlayPart {
        path: AbsolutePath,
        access: Access,
    },
    /// A private copy, owned by the caller, of small files of the host that
    /// programs refuse when their owner has no id inside (OpenSSH).
    Copy {
        source: AbsolutePath,
        path: AbsolutePath,
        bytes_max: u64,
    },
    /// A device node of the host: null, zero, full, random, urandom, tty.
    Device {
        name: String,
    },
    /// A new devpts instance at /dev/pts.
    Terminals,
    /// A new procfs at /proc; `writable` only for nested sandboxes.
    Proc {
        writable: bool,
    },
    /// Cover files and directories, each with what its [`Cover`] says.
    Masks {
        paths: Vec<MaskPath>,
    },
    /// Make the new root the root, and drop the old one.
    EnterRoot,
    /// chdir(2) into the command's directory; it must exist inside.
    EnterDirectory {
        path: AbsolutePath,
    },
    ResourceLimits {
        limits: Vec<ResourceLimit>,
    },
    Processors {
        processors: Vec<u32>,
    },
    /// user.max_user_namespaces = 0 in the new user namespace.
    NoNestedNamespaces,
    NoNewPrivileges,
    /// Program of `struct sock_filter` whose held calls a process outside
    /// decides (seccomp_unotify(2)); the listener goes to the supervisor.
    SuperviseNames {
        program: Vec<Instruction>,
    },
    Landlock(Landlock),
    DropCapabilities,
    /// As `DropCapabilities`, but for the one without which user 0 can map no
    /// user 0 into a further user namespace (CAP_SETFCAP, user_namespaces(7)).
    KeepMapping,
    /// At `path`, a private directory of the caller's own: what a kernel of the
    /// command's own is started from. The command's variables come beside the
    /// plan.
    GuestBundle {
        path: AbsolutePath,
    },
    /// Put an OCI runtime under a root of its own, and the finished view below
    /// that, at [`CONTAINER_ROOT`]: what starts the container is not in it. The
    /// bundle comes beside the plan, because it holds the command's variables.
    RuntimeRoot {
        program: AbsolutePath,
    },
    /// Put QEMU likewise, with what the host's programs are linked to, where the
    /// system within is an image's: nothing of its root is in the view. `devices`
    /// are the host's that it has.
    MachineRoot {
        devices: Vec<String>,
    },
    /// Program of `struct sock_filter` (seccomp(2)).
    Seccomp {
        program: Vec<Instruction>,
    },
    /// Start the command below this profile ([`crate::seatbelt`]).
    Seatbelt {
        profile: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaskPath {
    pub path: AbsolutePath,
    pub directory: bool,
    /// Fail when the path is missing; else a missing path is skipped.
    pub required: bool,
    pub cover: Cover,
}

/// What stands, read-only, where something is taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cover {
    /// An empty file that nobody may open, or an empty directory.
    Empty,
    /// As `Empty`, but a directory that nobody may open either: a program that
    /// takes stock of its files fails instead of finding them gone.
    Sealed,
    /// What git's index holds at this place, so that git sees no difference.
    Committed(Vec<StandIn>),
}

/// One entry of git's index that stands where a hidden file lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandIn {
    /// Below the hidden directory, without `.`, `..` and empty components;
    /// empty when the hidden path is the file itself.
    pub name: Vec<u8>,
    pub kind: StandInKind,
    /// Bytes of the file, or what the link holds.
    pub content: Vec<u8>,
}

/// The kinds of files that git keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandInKind {
    File,
    Executable,
    Link,
    /// An empty directory, which is what a submodule that is not checked out
    /// looks like.
    Directory,
}

/// A socket, or one for each family, that the launcher opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listener {
    /// TCP on [`PROXY_PORT`] of 127.0.0.1 and ::1: HTTP proxy and SOCKS5.
    Proxy,
    /// TCP on [`TRANSPARENT_PORT`] of 127.0.0.1 and ::1, where the redirect leads.
    Transparent,
    /// UDP port 53 of every address.
    NamesUdp,
    /// TCP port 53 of every address.
    NamesTcp,
    /// TCP on this port of 127.0.0.1 and ::1, for the same port of the host.
    HostPort(u16),
    /// A unix stream socket at this path of the view; they stand in the order
    /// of the plan's socket offers.
    Unix {
        path: AbsolutePath,
    },
    /// TCP on this port of 127.0.0.1 and ::1, for the unix socket that is offered
    /// at this path: a machine's end of it leads there.
    SocketPort {
        port: u16,
        path: AbsolutePath,
    },
    /// A channel on which init hands out fresh TCP sockets of the sandbox.
    Supply,
    /// Unconnected sockets for the self-test.
    ProbeTcp,
    ProbeUdp,
}

/// Port of the explicit proxy inside.
pub const PROXY_PORT: u16 = 3128;

/// Where a machine finds the proxy: its gateway, which is the loopback of the
/// namespace that QEMU is in.
pub const GUEST_PROXY_HOST: &str = "192.88.99.2";

/// Port inside to which other TCP connections are redirected.
pub const TRANSPARENT_PORT: u16 = 15001;

/// How a file of certificate roots is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFormat {
    /// PEM certificates, one after the other.
    Pem,
    /// Trust store of Java (JKS, password `changeit`).
    Jks,
}

/// One resource limit (setrlimit(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceLimit {
    pub resource: Resource,
    pub soft: u64,
    pub hard: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Core,
    Cpu,
    Data,
    FileSize,
    OpenFiles,
    Processes,
}

/// Landlock ruleset (landlock(7)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Landlock {
    pub handled_fs: u64,
    pub handled_net: u64,
    pub scoped: u64,
    pub rules: Vec<LandlockRule>,
}

/// Rights below one path of the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LandlockRule {
    pub path: AbsolutePath,
    pub allowed: u64,
}

/// `struct sock_filter` of linux/filter.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub code: u16,
    pub jump_true: u8,
    pub jump_false: u8,
    pub operand: u32,
}

/// How a guarantee fares under this plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Held; `by` names the mechanisms, `steps` indexes those that must show
    /// evidence.
    Held { by: String, steps: Vec<usize> },
    /// Weakened by name in the policy, or not held in full on this machine.
    Partial {
        by: String,
        lost: String,
        steps: Vec<usize>,
    },
    /// Not part of this plan, and why (a wall or a feature that it needs).
    NotHeld { because: String },
}

/// Numbers that the run is held to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub memory_bytes: Option<u64>,
    pub processes: Option<u64>,
    /// Hundredths of a processor; affinity is rounded up.
    pub cpu_percent: Option<u32>,
    pub cpu_seconds: Option<u64>,
    pub wall_time_ms: Option<u64>,
    pub open_files: Option<u64>,
    pub file_bytes: Option<u64>,
    pub disk_bytes: u64,
    pub disk_inodes: u64,
    /// What the store of the workspace may hold when a run with a layer of its
    /// own starts.
    pub store_bytes: u64,
    /// Held by control groups (exact) or by rlimits and a watchdog.
    pub exact: bool,
}

/// Threads of the host that a kernel of the command's own needs besides those
/// that stand for the command's.
const GUEST_THREADS: u64 = 512;

impl Limits {
    /// Most threads of the host where the command has a kernel of its own: each
    /// of the command's processes may need two of them.
    pub fn processes_around_guest(&self) -> Option<u64> {
        let processes = self.processes?;
        Some(processes.saturating_mul(2).saturating_add(GUEST_THREADS))
    }
}

/// What stands between a command and the machine; a stronger one is the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wall {
    /// A profile of macOS's Seatbelt. It holds less than the others, and
    /// nowhere else: so it comes before them, and whoever wants at least
    /// something never gets it.
    Seatbelt,
    /// Namespaces, Landlock and seccomp.
    Process,
    /// The same, with limits that the kernel counts exactly (control groups),
    /// on the host's system directories or on an image.
    Container,
    /// The same around gVisor, whose kernel answers the command's system calls.
    Gvisor,
    /// The same around a virtual machine with a kernel of its own.
    Microvm,
}

impl Wall {
    /// Every wall of Linux, the weakest first.
    pub const ALL: [Self; 4] = [Self::Process, Self::Container, Self::Gvisor, Self::Microvm];

    /// The wall of this name.
    pub fn from_word(word: &str) -> Option<Self> {
        let mut known = Self::ALL.into_iter().chain([Self::Seatbelt]);
        known.find(|wall| wall.word() == word)
    }

    /// The word of the policy.
    pub fn word(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Container => "container",
            Self::Gvisor => "gvisor",
            Self::Microvm => "microvm",
            Self::Seatbelt => "seatbelt",
        }
    }

    /// Whether the command has a kernel of its own, so that this wall stands
    /// around that kernel.
    pub fn has_own_kernel(self) -> bool {
        self >= Self::Gvisor
    }
}

/// What a layer says of the wall. Of two the greater counts: the stronger wall,
/// and of the same wall the one that no other may replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallDemand {
    pub least: Wall,
    /// It is that wall; otherwise the cheapest that is at least as strong and
    /// holds what the policy demands (`at-least:`).
    pub exactly: bool,
}

impl WallDemand {
    /// The walls that will do, the cheapest first.
    pub fn candidates(self) -> impl Iterator<Item = Wall> {
        let named = self.exactly.then_some(self.least);
        let stronger = Wall::ALL
            .into_iter()
            .filter(move |wall| !self.exactly && *wall >= self.least);
        named.into_iter().chain(stronger)
    }
}

/// What is executed in the command's place: what starts a kernel of its own, or
/// an installed OCI runtime. The wall stands around that, and the agent starts
/// the command within.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    pub kernel: GuestKernel,
    /// The machine's name inside (uname(2)).
    pub host_name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestKernel {
    Gvisor(Runsc),
    Machine(Machine),
    /// The host's, in a container that an installed OCI runtime makes.
    Hosts(Runtime),
}

/// An installed OCI runtime as it was found on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    pub kind: RuntimeKind,
    /// Links resolved.
    pub program: AbsolutePath,
    /// As it says itself, with what the distribution made of it.
    pub version: String,
}

/// An OCI runtime that can make the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuntimeKind {
    Runc,
    Crun,
}

impl RuntimeKind {
    pub const ALL: [Self; 2] = [Self::Runc, Self::Crun];

    /// The word of the policy, and the program's name.
    pub fn word(self) -> &'static str {
        match self {
            Self::Runc => "runc",
            Self::Crun => "crun",
        }
    }
}

/// A virtual machine as this machine can start one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// QEMU, a path of the view as well; links resolved.
    pub program: AbsolutePath,
    /// As it says itself.
    pub version: String,
    /// Name of the machine image.
    pub image: String,
    /// What `uname -r` says within.
    pub release: String,
    /// The image's kernel and initial file system, and their SHA-256.
    pub kernel: AbsolutePath,
    pub kernel_digest: String,
    pub initramfs: AbsolutePath,
    pub initramfs_digest: String,
    /// Its memory in MiB; 0 until the plan says how much.
    pub memory: u32,
    /// How many processors it has.
    pub processors: u32,
    /// Who executes its instructions.
    pub accelerator: Accelerator,
    /// SHA-256 of the saved state from which it goes on; `None` where it boots.
    pub saved: Option<String>,
}

impl Machine {
    /// What the arguments of its kernel are known by: the host's have none, and
    /// those of another image another one.
    pub fn mark(&self) -> &str {
        const LENGTH: usize = 32;
        self.initramfs_digest
            .get(..LENGTH)
            .unwrap_or(&self.initramfs_digest)
    }
}

/// What executes the instructions of a virtual machine, in QEMU's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Accelerator {
    /// The processor (`/dev/kvm`).
    Kvm,
    /// QEMU, which translates them.
    Tcg,
}

impl Accelerator {
    pub const ALL: [Self; 2] = [Self::Kvm, Self::Tcg];

    /// The word of the policy.
    pub fn word(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// gVisor's program as it was found on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runsc {
    /// Links resolved.
    pub program: AbsolutePath,
    /// As it says itself.
    pub version: String,
}

/// Where the view holds what starts a kernel of the command's own. Within that
/// kernel nothing of it is there.
pub const GUEST_DIRECTORY: &str = "/run/stockade-guest";

/// Where the view is under the root of an OCI runtime, or of QEMU.
pub const CONTAINER_ROOT: &str = "/container";

/// The image whose directories are the system inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// As the policy names it.
    pub name: String,
    /// The digest of its configuration, `sha256:…`.
    pub id: String,
    /// Where its root file system is on the host.
    pub root: AbsolutePath,
    pub rule: Rule,
}

impl WorkspaceMode {
    /// The word of the policy.
    pub fn word(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Review => "review",
            Self::Discard => "discard",
        }
    }
}

/// A policy compiled for one command on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub wall: Wall,
    /// `None` shows the host's system directories.
    pub image: Option<Image>,
    pub form: Form,
    pub command: Command,
    pub workspace: AbsolutePath,
    /// How writes reach the workspace, and the rule that says so.
    pub workspace_mode: (WorkspaceMode, Rule),
    pub uid: u32,
    pub gid: u32,
    pub umask: u32,
    pub grants: Vec<Grant>,
    pub masks: Vec<Mask>,
    /// Names below writable grants that are held or reported.
    pub guard: Guard,
    pub limits: Limits,
    /// What is kept between the runs of this workspace.
    pub caches: Option<Caches>,
    pub nested_sandbox: bool,
    /// `None` where the launcher starts the command itself.
    pub guest: Option<Guest>,
    /// What the way out is held to; `None` where nothing is reached, offered
    /// or published, and then there is no egress process.
    pub network: Option<NetworkPlan>,
    pub steps: Vec<Step>,
    pub guarantees: Vec<(Guarantee, Hold)>,
    /// What the user weakened by name, or what this machine cannot hold in
    /// full: printed at each run when not empty.
    pub notes: Vec<String>,
}

impl Plan {
    /// Where the view is under the root of what the launcher executes; `None`
    /// where it is that root.
    pub fn view_root(&self) -> Option<AbsolutePath> {
        let moves = |step: &Step| {
            matches!(
                step.action,
                Action::RuntimeRoot { .. } | Action::MachineRoot { .. }
            )
        };
        let apart = self.steps.iter().any(moves);
        apart.then(|| AbsolutePath::parse(CONTAINER_ROOT).expect("the path is absolute"))
    }

    /// What guards a path of the host that this plan lets the command write;
    /// `None` where nothing does, or where it cannot write.
    pub fn guarded(&self, path: &AbsolutePath) -> Option<&crate::guard::Rule> {
        let writable = self
            .grants
            .iter()
            .filter(|grant| !grant.private && grant.access == Access::Write);
        let grant = writable
            .filter(|grant| path.is_within(&grant.path))
            .max_by_key(|grant| grant.path.as_bytes().len())?;
        match path.relative_to(&self.workspace) {
            Some(relative) => self.guard.judge(relative),
            None => {
                let relative = path.relative_to(&grant.path).unwrap_or_default();
                self.guard.judge_below(&grant.path, relative)
            }
        }
    }

    /// Whether a step of this plan keeps guarded paths from becoming active.
    pub fn keeps_guard(&self) -> bool {
        let keeps = |step: &Step| step.holds.contains(&Guarantee::FS4);
        self.steps.iter().any(keeps)
    }

    /// Whether writes to the workspace go to a layer of this run's own.
    pub fn has_overlay(&self) -> bool {
        let overlay = |step: &Step| matches!(step.action, Action::Overlay { .. });
        self.steps.iter().any(overlay)
    }
}

/// A guarantee that was demanded and cannot be kept here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{guarantee} cannot be kept by the {wall} wall: {reason}\n  remedy: {remedy}")]
pub struct Unenforceable {
    pub guarantee: Guarantee,
    pub wall: &'static str,
    pub reason: String,
    pub remedy: String,
}
