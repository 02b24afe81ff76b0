//! The validated policy: what the user allows, after all layers are merged.
//!
//! A value of this type has no unknown keys, no unresolved relative path and
//! no contradiction left; only [`crate::document`] and the merge build one.

mod network;

use crate::caches::Cache;
use crate::guarantee::Guarantee;
use crate::guard::Guard;
use crate::path::AbsolutePath;
use crate::plan::{Accelerator, Form, Rule, RuntimeKind, Wall, WallDemand, WorkspaceMode};

pub use network::{NetworkPolicy, SocketDemand};

/// What the user allows, merged from all layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The wall, and the rule that says so. Where a stronger one will do too it
    /// is the weakest of those, until one has been chosen.
    pub wall: (Wall, Rule),
    /// What the layers demand of the wall.
    pub wall_demand: WallDemand,
    /// The name of the image that the command runs on, instead of on the
    /// host's system directories.
    pub image: Option<(String, Rule)>,
    /// The installed OCI runtime that makes containers; `None` for our own.
    pub runtime: Option<(RuntimeKind, Rule)>,
    /// A version of it that is used although something is known against it.
    pub accepted_runtime: Option<(String, Rule)>,
    /// What executes a machine; `None` for KVM where that really works.
    pub accelerator: Option<(Accelerator, Rule)>,
    pub form: Form,
    /// The project directory, links resolved.
    pub workspace: AbsolutePath,
    /// How writes reach it, and the rule that says so.
    pub workspace_mode: (WorkspaceMode, Rule),
    pub write: Vec<PathGrant>,
    pub read: Vec<PathGrant>,
    pub hide: Vec<HidePattern>,
    /// Names that are held or reported where something may be written.
    pub guard: Guard,
    /// Files in parts that may be written which must stay as they are; where
    /// the compiler finds them it keeps them read-only.
    pub kept: Vec<AbsolutePath>,
    /// Caches that are kept between the runs of this workspace.
    pub caches: Vec<(Cache, Rule)>,
    /// Tools that bring their own sandbox (Chromium, bubblewrap) may make
    /// namespaces inside.
    pub nested_sandbox: Option<Rule>,
    /// Names, or prefixes ending in `*`, of variables that enter.
    pub environment_pass: Vec<(String, Rule)>,
    pub environment_set: Vec<(String, String, Rule)>,
    pub network: NetworkPolicy,
    pub limits: LimitDemands,
    /// Guarantees of which the user accepts, by name, less than all.
    pub weaken: Vec<(Guarantee, Rule)>,
}

impl Policy {
    /// Whether what the launcher executes makes namespaces of its own: a
    /// sandbox of the user's, gVisor, or an OCI runtime.
    pub fn makes_namespaces(&self) -> bool {
        self.nested_sandbox.is_some() || self.wall.0 == Wall::Gvisor || self.oci_runtime().is_some()
    }

    /// The installed OCI runtime that makes this container, where one does.
    pub fn oci_runtime(&self) -> Option<RuntimeKind> {
        let runtime = self.runtime.as_ref().map(|(kind, _)| *kind);
        runtime.filter(|_| self.wall.0 == Wall::Container)
    }

    /// Whether what is executed in the command's place has a root of its own,
    /// because what it is linked to is not for the command: an OCI runtime, and
    /// QEMU where the system within is an image's.
    pub fn has_root_apart(&self) -> bool {
        let on_image = self.wall.0 == Wall::Microvm && self.image.is_some();
        self.oci_runtime().is_some() || on_image
    }

    /// Whether something is executed in the command's place that starts it
    /// within.
    pub fn has_guest(&self) -> bool {
        self.wall.0.has_own_kernel() || self.oci_runtime().is_some()
    }
}

/// A path or a named set that is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathGrant {
    pub target: GrantTarget,
    pub rule: Rule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantTarget {
    Path(AbsolutePath),
    Set(NamedSet),
}

/// Sets of paths that are found on the machine (module `sets`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NamedSet {
    /// /usr, /etc and what else programs need to start.
    System,
    /// Rust, Node, Python, Go and Java as installed for this user.
    Toolchains,
}

/// A glob that takes paths below writable and readable grants away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HidePattern {
    /// Relative to the workspace, `*`, `?`, `[..]` and `**` as in gitignore.
    pub pattern: String,
    pub rule: Rule,
}

/// Limits as demanded; `None` takes the default that `compile` states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitDemands {
    pub memory: Option<(Amount, Rule)>,
    pub processes: Option<(u64, Rule)>,
    /// Hundredths of a processor.
    pub cpu_percent: Option<(u32, Rule)>,
    pub cpu_seconds: Option<(u64, Rule)>,
    pub wall_time_ms: Option<(u64, Rule)>,
    pub open_files: Option<(u64, Rule)>,
    pub file_bytes: Option<(u64, Rule)>,
    pub disk_bytes: Option<(u64, Rule)>,
    /// All caches of one workspace together, once a run has ended.
    pub cache_bytes: Option<(u64, Rule)>,
    /// Layers that wait in the store of the workspace.
    pub store_bytes: Option<(u64, Rule)>,
    /// Refuse to run when a limit would only be held by sampling.
    pub exact: Option<Rule>,
}

/// Bytes, or a share of the machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Bytes(u64),
    /// 1 to 100.
    PercentOfMachine(u8),
    /// The smaller of both, when layers state one of each.
    Least {
        bytes: u64,
        percent: u8,
    },
}

/// What applies where no layer states a limit. Merging measures layers that
/// may only take away against these, so that none of them raises a limit by
/// stating it. Limits that are not named here have no default.
pub mod limit_defaults {
    /// Share of the machine's memory.
    pub const MEMORY_PERCENT: u8 = 80;
    pub const PROCESSES: u64 = 4096;
    pub const OPEN_FILES: u64 = 65_536;
    /// Private directories; they live in memory, so also at most half of it.
    pub const DISK_BYTES: u64 = 4 << 30;
    /// Caches of one workspace.
    pub const CACHE_BYTES: u64 = 5 << 30;
    /// Layers that wait in the store of one workspace.
    pub const STORE_BYTES: u64 = 20 << 30;
}
