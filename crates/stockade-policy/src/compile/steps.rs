//! Puts the actions of a plan in the order in which they are performed.
//!
//! The order is part of the security argument: the view is complete before
//! the old root is dropped, privileges go before the last two checks are
//! loaded, and the system call filter comes last, because what it forbids is
//! needed until then.

use std::collections::BTreeSet;

use crate::facts::{Ability, Facts, Gvisor, MachineFacts, PathKind, RuntimeFacts};
use crate::guarantee::Guarantee::{self, *};
use crate::landlock::{self, Object, Rights};
use crate::network::rules::Capture;
use crate::path::AbsolutePath;
use crate::plan::{
    Accelerator, Access, Action, CONTAINER_ROOT, Cover, Form, GUEST_DIRECTORY, Landlock,
    LandlockRule, Limits, MaskPath, Step, Wall, WorkspaceMode,
};
use crate::policy::Policy;
use crate::seccomp;

use super::guest;
use super::limits;
use super::network::Opened;
use super::sockets;
use super::view::{self, Absent, Entries, Entry, View};

/// Largest file that is copied instead of mounted.
const COPY_BYTES_MAX: u64 = 256 << 10;

/// What the steps are made of.
pub(super) struct Parts<'a> {
    pub(super) policy: &'a Policy,
    pub(super) facts: &'a Facts,
    pub(super) view: &'a View,
    pub(super) limits: &'a Limits,
    pub(super) directory: &'a AbsolutePath,
    pub(super) network: Option<&'a Opened>,
    /// The profile of the wall `seatbelt`.
    pub(super) profile: Option<String>,
}

pub(super) fn in_order(parts: &Parts<'_>) -> Vec<Step> {
    let Parts {
        policy,
        facts,
        view,
        limits,
        ..
    } = *parts;
    let mut list = StepList {
        steps: Vec::with_capacity(view.entries.len() + 32),
        nested_sandbox: policy.makes_namespaces(),
        overlay: view
            .layered
            .clone()
            .map(|workspace| (workspace, facts.layers.clone())),
        view: Some(view),
    };
    if let Some(profile) = &parts.profile {
        list.below_seatbelt(parts, profile);
        return list.steps;
    }
    list.supervise(policy, facts);
    if parts.network.is_some() {
        list.push("egress.process", Action::StartEgress, BY_EGRESS);
    }
    list.prepare(policy.form);
    if policy.form == Form::Namespaces {
        list.build_view(parts);
    }
    list.push(
        "enter.directory",
        Action::EnterDirectory {
            path: within_root(policy, parts.directory),
        },
        &[FS2],
    );
    list.limit(policy, facts, limits);
    list.confine(policy, facts, view);
    if parts.network.is_some() {
        list.push("egress.self-test", Action::TestEgress, BY_EGRESS);
    }
    if policy.has_guest() {
        list.push(
            "guest.kernel",
            Action::SeeGuestKernel,
            &[PR1, PR2, PR3, PR6, PR8, FS5],
        );
    }
    list.steps
}

/// Guarantees that the egress process holds.
const BY_EGRESS: &[Guarantee] = &[NT1, NT2, NT3, NT4, NT5, NT6, CR1, CR2, CR3];

/// The steps with which the launcher begins under every plan but unusual ones
/// (a nested sandbox, a grant of /dev). It can perform them before the plan is
/// known, and then finds them again at its beginning.
pub fn prelude() -> Vec<Step> {
    let mut list = StepList {
        steps: Vec::with_capacity(24),
        nested_sandbox: false,
        overlay: None,
        view: None,
    };
    list.prepare(Form::Namespaces);
    list.push("view.root", Action::NewRoot, &[FS1, FS2, FS5, EP1]);
    for (path, entry) in view::constant_entries() {
        list.place(&path, &entry);
    }
    list.steps
}

struct StepList<'a> {
    steps: Vec<Step>,
    nested_sandbox: bool,
    /// The workspace and its frozen layers, when it is an overlay.
    overlay: Option<(AbsolutePath, Vec<AbsolutePath>)>,
    /// Says where on the host things are; `None` before there is a plan.
    view: Option<&'a View>,
}

impl StepList<'_> {
    fn push(&mut self, name: impl Into<String>, action: Action, holds: &[Guarantee]) {
        self.steps.push(Step {
            name: name.into(),
            action,
            holds: holds.to_vec(),
        });
    }

    /// macOS: sandbox-exec(1) applies the profile and starts the command.
    fn below_seatbelt(&mut self, parts: &Parts<'_>, profile: &str) {
        if parts.network.is_some() {
            self.push("egress.process", Action::StartEgress, BY_EGRESS);
        }
        self.push("launcher.scrub", Action::ScrubLauncher, &[PR5]);
        let path = parts.directory.clone();
        self.push("enter.directory", Action::EnterDirectory { path }, &[FS2]);
        let limits = super::seatbelt::limits(parts.limits);
        self.push(
            "limit.resources",
            Action::ResourceLimits { limits },
            &[FS6, PR7],
        );
        self.push(
            "confine.seatbelt",
            Action::Seatbelt {
                profile: profile.to_owned(),
            },
            &[FS1, FS2, FS3, FS4, FS5, PR2, PR3, PR6, PR8, NT1, NT2, NT3],
        );
    }

    fn supervise(&mut self, policy: &Policy, facts: &Facts) {
        self.push("supervisor.streams", Action::PrivateStreams, &[PR5, PR6]);
        match policy.form {
            Form::Namespaces => {
                self.push(
                    "supervisor.namespaces",
                    Action::CloneNamespaces,
                    &[FS1, PR3, PR4, PR8, NT1, NT2],
                );
                let every_id = facts.maps_every_id;
                self.push("supervisor.ids", Action::MapIds { every_id }, &[PR2]);
            }
            Form::LandlockOnly | Form::Seatbelt => {
                self.push("supervisor.fork", Action::Fork, &[]);
            }
        }
        if limits::has_control_group(facts) {
            self.push("supervisor.control-group", Action::JoinControlGroup, &[PR7]);
        }
    }

    fn prepare(&mut self, form: Form) {
        self.push("launcher.tie", Action::TieToSupervisor, &[PR4]);
        self.push("launcher.scrub", Action::ScrubLauncher, &[PR5]);
        self.push("launcher.not-dumpable", Action::NotDumpable, &[PR3, PR5]);
        if form == Form::Namespaces {
            self.push("network.loopback", Action::LoopbackUp, &[]);
        }
    }

    fn build_view(&mut self, parts: &Parts<'_>) {
        let Parts { view, limits, .. } = *parts;
        self.push("view.root", Action::NewRoot, &[FS1, FS2, FS5, EP1]);
        // Where the host's own /dev or /proc is granted, it comes first.
        let early = match view.begins_as_usual() && !self.nested_sandbox {
            true => view::constant_entries(),
            false => Entries::new(),
        };
        for (path, entry) in &early {
            self.place(path, entry);
        }
        self.push(
            "launcher.verify-namespaces",
            Action::VerifyNamespaces,
            &[FS5, PR3, PR8, NT1, NT2],
        );
        if let Some(network) = parts.network {
            self.route(network);
        }
        self.push(
            "view.storage",
            Action::PrivateStorage {
                bytes: limits.disk_bytes,
                inodes: limits.disk_inodes,
            },
            &[FS6, EP1],
        );
        let later = view
            .entries
            .iter()
            .filter(|(path, _)| !early.contains_key(*path));
        let absent = view::absent(view, &parts.facts.home);
        for (path, entry) in later {
            match absent.get(path) {
                Some(names) => self.place_without(path, names),
                None => self.place(path, entry),
            }
        }
        self.mask(view, &absent);
        if parts.policy.wall.0 == Wall::Gvisor {
            self.gvisor(parts.facts);
        }
        if let Some(network) = parts.network {
            self.listen(network);
        }
        if parts.policy.oci_runtime().is_some() {
            self.runtime(parts.facts);
        }
        if parts.policy.wall.0 == Wall::Microvm {
            self.machine(parts);
        }
        self.push("view.enter", Action::EnterRoot, &[FS1, FS2, FS5]);
    }

    /// Puts kernel and initial file system of a machine into the view, or, where
    /// the system there is an image's, with QEMU above it.
    fn machine(&mut self, parts: &Parts<'_>) {
        let Parts { policy, facts, .. } = *parts;
        let MachineFacts::Found(found) = &facts.machine else {
            return;
        };
        let machine = &found.machine;
        let kvm = guest::accelerator(policy, facts) == Accelerator::Kvm;
        if policy.has_root_apart() {
            let devices = kvm.then(|| KVM.to_owned()).into_iter().collect();
            let root = Action::MachineRoot { devices };
            self.push("guest.root", root, &[FS1, PR1, PR5]);
            if parts.network.is_some() {
                let (path, content) = view::resolver();
                self.push("guest.names", file(path, &content, Access::Read), &[NT3]);
            }
        } else {
            let mode = 0o700;
            let path = AbsolutePath::parse(GUEST_DIRECTORY).expect("the path is absolute");
            let directory = Action::PrivateDirectory { path, mode };
            self.push("guest.directory", directory, &[PR1]);
        }
        for (name, source) in [
            ("kernel", &machine.kernel),
            ("initramfs", &machine.initramfs),
        ] {
            let path = AbsolutePath::parse(format!("{GUEST_DIRECTORY}/{name}"));
            let action = Action::Bind {
                source: source.clone(),
                path: path.expect("the path is absolute"),
                access: Access::Read,
                directory: false,
            };
            self.push(format!("guest.image {name}"), action, &[PR1]);
        }
        if kvm && !policy.has_root_apart() {
            let name = KVM.to_owned();
            self.push("guest.accelerator", Action::Device { name }, &[PR1]);
        }
    }

    /// Puts what starts gVisor where that will not see it.
    fn gvisor(&mut self, facts: &Facts) {
        let directory = AbsolutePath::parse(GUEST_DIRECTORY).expect("the path is absolute");
        self.push(
            "guest.bundle",
            Action::GuestBundle { path: directory },
            &[PR1, PR5],
        );
        if let Gvisor::Found(runsc) = &facts.gvisor {
            let program = format!("{GUEST_DIRECTORY}/runsc");
            let path = AbsolutePath::parse(program).expect("the path is absolute");
            let source = runsc.program.clone();
            let action = Action::Bind {
                source,
                path,
                access: Access::Read,
                directory: false,
            };
            self.push("guest.program", action, &[PR1]);
        }
    }

    /// Puts the finished view below the root of what makes the container.
    fn runtime(&mut self, facts: &Facts) {
        if let RuntimeFacts::Found(runtime) = &facts.runtime {
            let program = runtime.program.clone();
            self.push("guest.root", Action::RuntimeRoot { program }, &[PR1, PR5]);
        }
    }

    /// Leaves connections nowhere to go but to the way out.
    fn route(&mut self, network: &Opened) {
        self.push("network.routes", Action::LocalRoutes, &[NT1, NT3]);
        if network.plan.capture == Capture::Transparent {
            self.push("network.redirect", Action::Redirect, &[NT1, NT2]);
        }
    }

    fn listen(&mut self, network: &Opened) {
        self.push(
            "network.listen",
            Action::Listen {
                listeners: network.listeners.clone(),
            },
            &[NT1, NT2, NT3],
        );
        for store in &network.stores {
            self.push(
                format!("network.trust {}", store.path),
                Action::TrustStore {
                    source: store.source.as_ref().map(|source| self.source(source)),
                    path: store.path.clone(),
                    format: store.format,
                },
                &[NT5, NT6],
            );
        }
    }

    fn place(&mut self, path: &AbsolutePath, entry: &Entry) {
        let (kind, action) = self.action(path.clone(), entry);
        let holds: &[Guarantee] = match entry {
            Entry::Host { .. } if kind != "bind" => &[FS1, FS2, FS4],
            Entry::Host { .. } => &[FS1, FS2],
            Entry::Private { .. } | Entry::Caches { .. } => &[FS1, EP1],
            Entry::Device { .. } => &[FS1],
            Entry::Terminals => &[PR6],
            Entry::Proc => &[PR3],
            Entry::Symlink { .. } | Entry::File { .. } | Entry::Settings { .. } | Entry::Copy => {
                &[]
            }
        };
        self.push(format!("view.{kind} {path}"), action, holds);
    }

    fn action(&self, path: AbsolutePath, entry: &Entry) -> (&'static str, Action) {
        let source = self.source(&path);
        match entry {
            Entry::Host { access, .. } if self.is_layered(&path) => self.layered(path, *access),
            Entry::Host { access, directory } => {
                let (access, directory) = (*access, *directory);
                let action = Action::Bind {
                    source,
                    path,
                    access,
                    directory,
                };
                ("bind", action)
            }
            Entry::Private { mode } => ("private", Action::PrivateDirectory { path, mode: *mode }),
            Entry::Symlink { target } => {
                let target = target.clone();
                ("link", Action::Symlink { path, target })
            }
            Entry::File { content } => ("file", file(path, content, Access::Read)),
            Entry::Settings { content } => ("settings", file(path, content, Access::Write)),
            Entry::Device { name } => {
                let name = (*name).to_owned();
                ("device", Action::Device { name })
            }
            Entry::Terminals => ("terminals", Action::Terminals),
            Entry::Proc => {
                let writable = self.nested_sandbox;
                ("proc", Action::Proc { writable })
            }
            Entry::Caches { source } => {
                let action = Action::Bind {
                    source: source.clone(),
                    path,
                    access: Access::Write,
                    directory: true,
                };
                ("caches", action)
            }
            Entry::Copy => {
                let bytes_max = COPY_BYTES_MAX;
                let action = Action::Copy {
                    source,
                    path,
                    bytes_max,
                };
                ("copy", action)
            }
        }
    }

    fn source(&self, path: &AbsolutePath) -> AbsolutePath {
        self.view
            .map_or_else(|| path.clone(), |view| view.source(path))
    }

    fn is_layered(&self, path: &AbsolutePath) -> bool {
        self.overlay
            .as_ref()
            .is_some_and(|(workspace, _)| path.is_within(workspace))
    }

    /// The overlay of the workspace, or a part of it.
    fn layered(&self, path: AbsolutePath, access: Access) -> (&'static str, Action) {
        match &self.overlay {
            Some((workspace, layers)) if *workspace == path => {
                let layers = layers.clone();
                let action = Action::Overlay {
                    path,
                    layers,
                    access,
                };
                ("overlay", action)
            }
            _ => ("overlay-part", Action::OverlayPart { path, access }),
        }
    }

    /// A part of the host that can only be read, without some names.
    fn place_without(&mut self, path: &AbsolutePath, absent: &[&AbsolutePath]) {
        let action = Action::BindWithout {
            source: self.source(path),
            path: path.clone(),
            absent: absent.iter().map(|&name| name.clone()).collect(),
        };
        self.push(
            format!("view.bind-without {path}"),
            action,
            &[FS1, FS2, FS3],
        );
    }

    /// Covers what is taken away and not left out already.
    fn mask(&mut self, view: &View, absent: &Absent<'_>) {
        let left_out: BTreeSet<&AbsolutePath> = absent.values().flatten().copied().collect();
        let paths = view
            .masks
            .iter()
            .filter(|mask| !left_out.contains(&mask.path))
            .map(|mask| MaskPath {
                path: mask.path.clone(),
                directory: mask.directory,
                // What is gone since the probe cannot be read either.
                required: false,
                cover: view.covers.get(&mask.path).cloned().unwrap_or(Cover::Empty),
            })
            .collect();
        self.push("view.masks", Action::Masks { paths }, &[FS1, FS3, PR8, NT1]);
    }

    fn limit(&mut self, policy: &Policy, facts: &Facts, limits: &Limits) {
        let list = match policy.wall.0.has_own_kernel() {
            true => limits::around_guest(limits),
            false => limits::resource_limits(facts, limits),
        };
        let holds: &[Guarantee] = match limits.file_bytes {
            Some(_) => &[FS6, PR7],
            None => &[PR7],
        };
        self.push(
            "limit.resources",
            Action::ResourceLimits { limits: list },
            holds,
        );
        let processors = limits::processors(facts, limits).to_vec();
        self.push(
            "limit.processors",
            Action::Processors { processors },
            &[PR7],
        );
    }

    fn confine(&mut self, policy: &Policy, facts: &Facts, view: &View) {
        if policy.form == Form::Namespaces && !policy.makes_namespaces() {
            self.push(
                "confine.no-nesting",
                Action::NoNestedNamespaces,
                &[FS5, PR1, PR2],
            );
        }
        self.push("confine.no-new-privileges", Action::NoNewPrivileges, &[PR2]);
        let maps_ids = policy.wall.0 == Wall::Gvisor || policy.oci_runtime().is_some();
        let capabilities = match maps_ids && facts.uid == 0 {
            true => Action::KeepMapping,
            false => Action::DropCapabilities,
        };
        self.push("confine.capabilities", capabilities, &[FS5, PR2]);
        // None around a nested sandbox, gVisor or an OCI runtime: Landlock refuses every mount(2)
        // to whoever it confines, and a layer that leaves the file system alone still refuses moves between directories once an inner layer does not
        // (LANDLOCK_ACCESS_FS_REFER in landlock(7)).
        let around_another = policy.form == Form::Namespaces && policy.makes_namespaces();
        if facts.landlock_abi > 0 && !around_another {
            let holds: &[Guarantee] = match policy.form {
                Form::Namespaces => &[FS2, PR3, PR6],
                _ => &[FS1, FS2, FS3, FS5, PR3, PR6, PR8, NT1, NT2],
            };
            let ruleset = landlock_ruleset(policy, facts, view);
            self.push("confine.landlock", Action::Landlock(ruleset), holds);
        }
        if supervises_names(policy, facts, &view.entries) {
            let program = seccomp::names::program(facts.architecture);
            self.push(
                "confine.names",
                Action::SuperviseNames { program },
                &[FS2, FS4],
            );
        }
        let mut program = match policy.form {
            Form::Namespaces => Vec::new(),
            _ => sockets::refusal(facts.architecture, landlock::handled(facts.landlock_abi).fs),
        };
        program.extend(seccomp::program(
            facts.architecture,
            seccomp_options(policy),
        ));
        self.push(
            "confine.system-calls",
            Action::Seccomp { program },
            &[PR1, PR2, PR6, PR8, NT1, NT2],
        );
    }
}

/// A directory of the view, as the launcher finds it when it has entered.
fn within_root(policy: &Policy, directory: &AbsolutePath) -> AbsolutePath {
    if !policy.has_root_apart() {
        return directory.clone();
    }
    let root = AbsolutePath::parse(CONTAINER_ROOT).expect("the path is absolute");
    let within = root.join(directory.as_bytes());
    within.expect("what is an absolute path already has no component that is refused")
}

/// A file with this content; mounted and read-only unless programs may
/// change it.
fn file(path: AbsolutePath, content: &[u8], access: Access) -> Action {
    let (mode, writable) = match access {
        Access::Read => (0o444, false),
        Access::Write => (0o600, true),
    };
    Action::File {
        path,
        content: content.to_vec(),
        mode,
        writable,
    }
}

/// What the system call filter is asked for.
fn seccomp_options(policy: &Policy) -> seccomp::Options {
    seccomp::Options {
        nested_sandbox: match policy.makes_namespaces() {
            true => seccomp::NestedSandbox::Allowed,
            false => seccomp::NestedSandbox::Denied,
        },
    }
}

/// The second check of the same layout.
fn landlock_ruleset(policy: &Policy, facts: &Facts, view: &View) -> Landlock {
    let abi = facts.landlock_abi;
    let handled = match policy.form {
        Form::Namespaces => landlock::handled(abi),
        _ => landlock::handled_landlock_only(abi),
    };
    let Rights { fs, net, scoped } = handled;
    Landlock {
        handled_fs: fs,
        handled_net: net,
        scoped,
        rules: landlock_rules(policy, facts, &view.entries),
    }
}

fn landlock_rules(policy: &Policy, facts: &Facts, entries: &Entries) -> Vec<LandlockRule> {
    let abi = facts.landlock_abi;
    let mut rules = Vec::with_capacity(entries.len() + 1);
    let names = match supervises_names(policy, facts, entries) {
        true => Names::Supervised,
        false => Names::Native,
    };
    if policy.form == Form::Namespaces {
        // All that can be listed is what the view itself holds.
        let allowed = landlock::FS_READ_DIR & landlock::handled(abi).fs;
        rules.push(LandlockRule {
            path: within_root(policy, &AbsolutePath::root()),
            allowed,
        });
    }
    if policy.wall.0 == Wall::Microvm {
        rules.extend(rules_of_qemu(policy, facts));
    }
    for (path, entry) in entries {
        let native = |path: &AbsolutePath| is_device(facts, path) || is_layered(policy, path);
        let names_of = |path: &AbsolutePath| match native(path) {
            true => Names::Native,
            false => names_in(path, names, entries),
        };
        let allowed = rights(abi, names_of(path), entry);
        let above = path
            .ancestors()
            .find_map(|above| entries.get_key_value(above))
            .map_or(0, |(path, entry)| {
                rights(abi, names_in(path, names, entries), entry)
            });
        if allowed & !above != 0 {
            rules.push(LandlockRule {
                path: within_root(policy, path),
                allowed,
            });
        }
    }
    rules
}

/// What QEMU may open that is not the command's.
fn rules_of_qemu(policy: &Policy, facts: &Facts) -> Vec<LandlockRule> {
    let abi = facts.landlock_abi;
    let absolute = |path: &str| AbsolutePath::parse(path).expect("the path is absolute");
    let directory = landlock::read_rights(abi, Object::Directory);
    let mut rules = vec![(absolute(GUEST_DIRECTORY), directory)];
    if guest::accelerator(policy, facts) == Accelerator::Kvm {
        let device = landlock::write_rights(abi, Object::Device);
        rules.push((absolute(&format!("/dev/{KVM}")), device));
    }
    if policy.has_root_apart() {
        if let MachineFacts::Found(found) = &facts.machine {
            rules.extend(found.system.iter().map(|path| (path.clone(), directory)));
        }
        rules.push((absolute("/etc"), directory));
        rules.push((absolute("/proc"), rights(abi, Names::Native, &Entry::Proc)));
    }
    let rule = |(path, allowed)| LandlockRule { path, allowed };
    rules.into_iter().map(rule).collect()
}

/// Who makes names at an entry. Rights hold for everything below a directory,
/// whatever is mounted there, so those of a private directory around a part of
/// the host would be rights in that part.
fn names_in(path: &AbsolutePath, names: Names, entries: &Entries) -> Names {
    match entries.get(path) {
        Some(Entry::Private { .. }) if !is_around_host(path, entries) => Names::Native,
        _ => names,
    }
}

fn is_around_host(path: &AbsolutePath, entries: &Entries) -> bool {
    entries
        .iter()
        .any(|(below, entry)| below != path && below.is_within(path) && is_host_written(entry))
}

fn is_host_written(entry: &Entry) -> bool {
    matches!(
        entry,
        Entry::Host {
            access: Access::Write,
            ..
        }
    )
}

/// Whether a path of the host is a device or the like: opening it for writing
/// makes and changes no file.
fn is_device(facts: &Facts, path: &AbsolutePath) -> bool {
    let fact = facts.paths.get(path);
    fact.is_some_and(|fact| fact.resolved_kind == Some(PathKind::Other))
}

/// The device of the host with which its processor executes a machine.
const KVM: &str = "kvm";

/// Who makes names in the parts of the host that can be written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    /// Whoever is inside.
    Native,
    /// A process outside: Landlock refuses everybody else.
    Supervised,
}

/// First Landlock ABI that knows truncation, without which a name's content
/// could be taken away (landlock(7)).
const LANDLOCK_ABI_TRUNCATE: u32 = 3;

/// Whether the names of the host's parts that can be written are made by a
/// process outside. A sandbox inside could hold no listener of its own then,
/// so not around one.
pub(super) fn supervises_names(policy: &Policy, facts: &Facts, entries: &Entries) -> bool {
    !policy.makes_namespaces()
        && facts.landlock_abi >= LANDLOCK_ABI_TRUNCATE
        && facts.supervised_names == Ability::Yes
        && entries
            .iter()
            .any(|(path, entry)| is_host_written(entry) && !is_layered(policy, path))
}

/// Whether what is written at a path goes to a layer of the run's own, where
/// nothing is active before it is applied.
fn is_layered(policy: &Policy, path: &AbsolutePath) -> bool {
    policy.workspace_mode.0 != WorkspaceMode::Live && path.is_within(&policy.workspace)
}

fn rights(abi: u32, names: Names, entry: &Entry) -> u64 {
    let object = |directory| match directory {
        true => Object::Directory,
        false => Object::File,
    };
    match entry {
        Entry::Host {
            access: Access::Read,
            directory,
        } => landlock::read_rights(abi, object(*directory)),
        Entry::Host {
            access: Access::Write,
            directory,
        } => match names {
            Names::Native => landlock::write_rights(abi, object(*directory)),
            Names::Supervised => landlock::supervised_rights(abi, object(*directory)),
        },
        Entry::Private { .. } => match names {
            Names::Native => landlock::write_rights(abi, Object::Directory),
            Names::Supervised => landlock::supervised_rights(abi, Object::Directory),
        },
        // The sandbox's own, of which no name is ever active outside.
        Entry::Caches { .. } => landlock::write_rights(abi, Object::Directory),
        Entry::Device { .. } => landlock::write_rights(abi, Object::Device),
        Entry::Terminals => landlock::device_directory_rights(abi),
        Entry::Proc => (landlock::FS_READ_FILE | landlock::FS_READ_DIR) & landlock::handled(abi).fs,
        Entry::File { .. } => landlock::FS_READ_FILE & landlock::handled(abi).fs,
        Entry::Copy => landlock::read_rights(abi, Object::Directory),
        // The directory around it gives what is needed.
        Entry::Settings { .. } | Entry::Symlink { .. } => 0,
    }
}
