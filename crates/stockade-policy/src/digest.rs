//! The digest of a plan: SHA-256 over a canonical encoding of every field.
//!
//! The encoding is neither Debug output nor JSON, so that neither a change of
//! wording nor of a library changes a digest. Lists and byte strings carry
//! their length, variants a fixed number and options a mark, so that two
//! different plans never encode to the same bytes. Every type is taken apart
//! field by field: a new field does not compile until it is encoded here.

use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::caches::{Cache, Caches, Lead};
use crate::guarantee::Guarantee;
use crate::path::AbsolutePath;
use crate::plan::{
    Accelerator, Access, Action, Command, Cover, Form, Grant, Guest, GuestKernel, Hold, Image,
    Instruction, Landlock, LandlockRule, Limits, Listener, Machine, Mask, MaskPath, Plan, Resource,
    ResourceLimit, Rule, Runsc, Runtime, RuntimeKind, StandIn, StandInKind, Step, StoreFormat,
    Wall, WorkspaceMode,
};

/// Names this encoding; part of what is hashed.
const ENCODING: &[u8] = b"stockade-plan-1";

/// SHA-256 of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

/// The digest of a plan.
pub fn digest(plan: &Plan) -> Digest {
    let mut encoder = Encoder(Vec::with_capacity(32 << 10));
    encoder.bytes(ENCODING);
    plan.encode(&mut encoder);
    Digest(Sha256::digest(&encoder.0).into())
}

impl Digest {
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}

struct Encoder(Vec<u8>);

impl Encoder {
    fn tag(&mut self, tag: u8) {
        self.0.push(tag);
    }

    fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

/// Writes the number of a variant and its fields.
macro_rules! variant {
    ($encoder:ident, $tag:literal $(, $field:ident)*) => {{
        $encoder.tag($tag);
        $($field.encode($encoder);)*
    }};
}
trait Canonical {
    fn encode(&self, encoder: &mut Encoder);
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl Canonical for $number {
            fn encode(&self, encoder: &mut Encoder) {
                encoder.number(u64::from(*self));
            }
        })*
    };
}

numbers!(bool, u16, u32, u64);

impl Canonical for usize {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.number(*self as u64);
    }
}

impl Canonical for String {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.bytes(self.as_bytes());
    }
}

impl Canonical for AbsolutePath {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.bytes(self.as_bytes());
    }
}

/// Byte strings are written whole, not as a list of numbers.
impl Canonical for Vec<u8> {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.bytes(self);
    }
}

macro_rules! lists {
    ($($item:ty),* $(,)?) => {
        $(impl Canonical for Vec<$item> {
            fn encode(&self, encoder: &mut Encoder) {
                encoder.number(self.len() as u64);
                self.iter().for_each(|item| item.encode(encoder));
            }
        })*
    };
}

lists!(
    Vec<u8>,
    (Vec<u8>, Vec<u8>),
    (Cache, Rule),
    (Guarantee, Hold),
    AbsolutePath,
    Grant,
    Guarantee,
    Instruction,
    LandlockRule,
    Listener,
    Mask,
    MaskPath,
    ResourceLimit,
    StandIn,
    Step,
    String,
    u32,
    usize,
);

impl<T: Canonical> Canonical for Option<T> {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            None => encoder.tag(0),
            Some(value) => {
                encoder.tag(1);
                value.encode(encoder);
            }
        }
    }
}

impl<A: Canonical, B: Canonical> Canonical for (A, B) {
    fn encode(&self, encoder: &mut Encoder) {
        self.0.encode(encoder);
        self.1.encode(encoder);
    }
}

/// Encodes the named fields in their order; fails to compile when one is
/// missing.
macro_rules! structs {
    ($($name:ident { $($field:ident),* $(,)? })*) => {
        $(impl Canonical for $name {
            fn encode(&self, encoder: &mut Encoder) {
                let Self { $($field),* } = self;
                $($field.encode(encoder);)*
            }
        })*
    };
}

structs! {
    Plan {
        wall, image, form, command, workspace, workspace_mode, uid, gid, umask, grants, masks, guard, limits, caches,
        nested_sandbox, guest, network, steps, guarantees, notes,
    }
    Command { argv, directory, environment }
    Caches { source, path, list, bytes_max }
    Image { name, id, root, rule }
    Guest { kernel, host_name }
    Runsc { program, version }
    Runtime { kind, program, version }
    Machine {
        program, version, image, release, kernel, kernel_digest, initramfs, initramfs_digest,
        memory, processors, accelerator, saved,
    }
    Rule { id, origin, reason }
    Grant { path, access, private, rule }
    Mask { path, directory, committed, rule }
    Step { name, action, holds }
    MaskPath { path, directory, required, cover }
    StandIn { name, kind, content }
    ResourceLimit { resource, soft, hard }
    Landlock { handled_fs, handled_net, scoped, rules }
    LandlockRule { path, allowed }
    Instruction { code, jump_true, jump_false, operand }
    Limits {
        memory_bytes, processes, cpu_percent, cpu_seconds, wall_time_ms, open_files, file_bytes,
        disk_bytes, disk_inodes, store_bytes, exact,
    }
}

mod guard;
mod network;

impl Canonical for u8 {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.tag(*self);
    }
}

/// By id, so that the order of the list does not matter.
impl Canonical for Guarantee {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.bytes(self.id().as_bytes());
    }
}

/// By name, so that the order of the list does not matter.
impl Canonical for Cache {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.bytes(self.name().as_bytes());
        if let Self::Own(_) = self {
            for directory in self.directories() {
                if let Lead::Variable(name) = directory.lead {
                    encoder.bytes(name.as_bytes());
                }
            }
        }
    }
}

impl Canonical for Wall {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.tag(match self {
            Self::Process => 0,
            Self::Container => 1,
            Self::Gvisor => 2,
            Self::Microvm => 3,
            Self::Seatbelt => 16,
        });
    }
}

impl Canonical for GuestKernel {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            Self::Gvisor(runsc) => variant!(encoder, 0, runsc),
            Self::Machine(machine) => variant!(encoder, 1, machine),
            Self::Hosts(runtime) => variant!(encoder, 2, runtime),
        }
    }
}

impl Canonical for Accelerator {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.bytes(self.word().as_bytes());
    }
}

/// By name, so that the order of the list does not matter.
impl Canonical for RuntimeKind {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.bytes(self.word().as_bytes());
    }
}

impl Canonical for Form {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.tag(match self {
            Self::Namespaces => 0,
            Self::LandlockOnly => 1,
            Self::Seatbelt => 2,
        });
    }
}

impl Canonical for WorkspaceMode {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.tag(match self {
            Self::Live => 0,
            Self::Review => 1,
            Self::Discard => 2,
        });
    }
}

impl Canonical for Access {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.tag(match self {
            Self::Read => 0,
            Self::Write => 1,
        });
    }
}

impl Canonical for Cover {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            Self::Empty => variant!(encoder, 0),
            Self::Sealed => variant!(encoder, 1),
            Self::Committed(stand_ins) => variant!(encoder, 2, stand_ins),
        }
    }
}

impl Canonical for StandInKind {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.tag(match self {
            Self::File => 0,
            Self::Executable => 1,
            Self::Link => 2,
            Self::Directory => 3,
        });
    }
}

impl Canonical for Resource {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.tag(match self {
            Self::Core => 0,
            Self::Cpu => 1,
            Self::Data => 2,
            Self::FileSize => 3,
            Self::OpenFiles => 4,
            Self::Processes => 5,
        });
    }
}

impl Canonical for Listener {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            Self::Proxy => variant!(encoder, 0),
            Self::Transparent => variant!(encoder, 1),
            Self::NamesUdp => variant!(encoder, 2),
            Self::NamesTcp => variant!(encoder, 3),
            Self::HostPort(port) => variant!(encoder, 4, port),
            Self::Unix { path } => variant!(encoder, 5, path),
            Self::Supply => variant!(encoder, 6),
            Self::ProbeTcp => variant!(encoder, 7),
            Self::ProbeUdp => variant!(encoder, 8),
            Self::SocketPort { port, path } => variant!(encoder, 9, port, path),
        }
    }
}

impl Canonical for StoreFormat {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.tag(match self {
            Self::Pem => 0,
            Self::Jks => 1,
        });
    }
}

impl Canonical for Hold {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            Self::Held { by, steps } => variant!(encoder, 0, by, steps),
            Self::Partial { by, lost, steps } => variant!(encoder, 1, by, lost, steps),
            Self::NotHeld { because } => variant!(encoder, 2, because),
        }
    }
}

impl Canonical for Action {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            Self::CloneNamespaces => variant!(encoder, 0),
            Self::Fork => variant!(encoder, 1),
            Self::MapIds { every_id } => variant!(encoder, 2, every_id),
            Self::JoinControlGroup => variant!(encoder, 3),
            Self::PrivateStreams => variant!(encoder, 4),
            Self::TieToSupervisor => variant!(encoder, 5),
            Self::ScrubLauncher => variant!(encoder, 6),
            Self::NotDumpable => variant!(encoder, 7),
            Self::VerifyNamespaces => variant!(encoder, 8),
            Self::LoopbackUp => variant!(encoder, 9),
            Self::NewRoot => variant!(encoder, 10),
            Self::PrivateStorage { bytes, inodes } => variant!(encoder, 11, bytes, inodes),
            Self::Symlink { path, target } => variant!(encoder, 13, path, target),
            Self::File {
                path,
                content,
                mode,
                writable,
            } => {
                variant!(encoder, 14, path, content, mode, writable)
            }
            Self::PrivateDirectory { path, mode } => variant!(encoder, 15, path, mode),
            Self::Bind {
                source,
                path,
                access,
                directory,
            } => {
                variant!(encoder, 16, source, path, access, directory)
            }
            Self::Copy {
                source,
                path,
                bytes_max,
            } => {
                variant!(encoder, 17, source, path, bytes_max)
            }
            Self::Device { name } => variant!(encoder, 18, name),
            Self::Terminals => variant!(encoder, 19),
            Self::Proc { writable } => variant!(encoder, 20, writable),
            Self::Masks { paths } => variant!(encoder, 21, paths),
            Self::EnterRoot => variant!(encoder, 22),
            Self::EnterDirectory { path } => variant!(encoder, 23, path),
            Self::ResourceLimits { limits } => variant!(encoder, 24, limits),
            Self::Processors { processors } => variant!(encoder, 25, processors),
            Self::NoNestedNamespaces => variant!(encoder, 26),
            Self::NoNewPrivileges => variant!(encoder, 27),
            Self::Landlock(ruleset) => variant!(encoder, 28, ruleset),
            Self::DropCapabilities => variant!(encoder, 29),
            Self::KeepMapping => variant!(encoder, 42),
            Self::Seccomp { program } => variant!(encoder, 30, program),
            Self::SuperviseNames { program } => variant!(encoder, 39, program),
            Self::StartEgress => variant!(encoder, 32),
            Self::TestEgress => variant!(encoder, 33),
            Self::LocalRoutes => variant!(encoder, 34),
            Self::Redirect => variant!(encoder, 35),
            Self::Listen { listeners } => variant!(encoder, 36, listeners),
            Self::GuestBundle { path } => variant!(encoder, 43, path),
            Self::RuntimeRoot { program } => variant!(encoder, 49, program),
            Self::MachineRoot { devices } => variant!(encoder, 50, devices),
            Self::SeeGuestKernel => variant!(encoder, 44),
            Self::Seatbelt { profile } => variant!(encoder, 48, profile),
            Self::BindWithout { .. }
            | Self::TrustStore { .. }
            | Self::Overlay { .. }
            | Self::OverlayPart { .. } => encode_layered(self, encoder),
        }
    }
}

/// The actions that put something together out of several things.
fn encode_layered(action: &Action, encoder: &mut Encoder) {
    match action {
        Action::BindWithout {
            source,
            path,
            absent,
        } => {
            variant!(encoder, 31, source, path, absent)
        }
        Action::TrustStore {
            source,
            path,
            format,
        } => variant!(encoder, 37, source, path, format),
        Action::Overlay {
            path,
            layers,
            access,
        } => variant!(encoder, 38, path, layers, access),
        Action::OverlayPart { path, access } => variant!(encoder, 45, path, access),
        // The others are encoded where this is called.
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::fixtures::{compiled, facts, facts_of_root, policy};

    fn plan() -> Plan {
        compiled(&policy(), &facts()).unwrap()
    }

    /// The digest is 64 digits, and stays what it is from run to run.
    #[test]
    fn it_is_stable() {
        let once = digest(&plan()).to_string();
        assert_eq!(once.len(), 64);
        assert_eq!(once, digest(&plan()).to_string());
        assert_ne!(
            digest(&plan()),
            digest(&compiled(&policy(), &facts_of_root()).unwrap())
        );
    }

    #[test]
    fn every_field_counts() {
        let changes: Vec<fn(&mut Plan)> = vec![
            |plan| plan.form = Form::LandlockOnly,
            |plan| plan.command.argv[1].push(b'x'),
            |plan| plan.command.directory = AbsolutePath::root(),
            |plan| plan.command.environment[0].1.push(b'x'),
            |plan| plan.workspace = AbsolutePath::root(),
            |plan| plan.uid += 1,
            |plan| plan.gid += 1,
            |plan| plan.umask += 1,
            |plan| plan.grants[0].private ^= true,
            |plan| plan.grants[0].access = Access::Read,
            |plan| plan.grants[0].path = AbsolutePath::root(),
            |plan| plan.grants[0].rule.reason.push('x'),
            |plan| plan.masks[0].directory ^= true,
            |plan| plan.masks[0].rule.origin.push('x'),
            |plan| plan.guard = crate::guard::Guard::nothing(),
            |plan| plan.masks[0].committed ^= true,
            |plan| {
                plan.caches = Some(Caches {
                    source: AbsolutePath::root(),
                    path: AbsolutePath::root(),
                    list: Vec::new(),
                    bytes_max: 0,
                });
            },
            |plan| plan.limits.memory_bytes = None,
            |plan| plan.limits.processes = None,
            |plan| plan.limits.cpu_percent = Some(0),
            |plan| plan.limits.cpu_seconds = Some(0),
            |plan| plan.limits.wall_time_ms = Some(0),
            |plan| plan.limits.open_files = None,
            |plan| plan.limits.file_bytes = Some(0),
            |plan| plan.limits.disk_bytes += 1,
            |plan| plan.limits.disk_inodes += 1,
            |plan| plan.limits.store_bytes += 1,
            |plan| plan.workspace_mode.0 = WorkspaceMode::Review,
            |plan| plan.workspace_mode.1.origin.push('x'),
            |plan| plan.limits.exact ^= true,
            |plan| plan.nested_sandbox ^= true,
            |plan| plan.steps.swap(0, 1),
            |plan| plan.steps[0].name.push('x'),
            |plan| plan.steps[0].holds.clear(),
            |plan| plan.guarantees[0].0 = Guarantee::EP2,
            |plan| {
                plan.guarantees[0].1 = Hold::NotHeld {
                    because: String::new(),
                }
            },
            |plan| plan.notes.push(String::new()),
        ];
        let mut seen = vec![digest(&plan())];
        for (index, change) in changes.iter().enumerate() {
            let mut changed = plan();
            change(&mut changed);
            let digest = digest(&changed);
            assert!(!seen.contains(&digest), "change {index}");
            seen.push(digest);
        }
    }

    /// Any one change within any step's action is seen.
    #[test]
    fn every_action_counts() {
        let before = plan();
        for index in 0..before.steps.len() {
            let mut changed = before.clone();
            let action = &mut changed.steps[index].action;
            *action = match action.clone() {
                Action::NewRoot => Action::EnterRoot,
                Action::Bind {
                    source,
                    path,
                    access,
                    directory,
                } => Action::Bind {
                    source,
                    path,
                    access,
                    directory: !directory,
                },
                Action::File {
                    path,
                    content,
                    mode,
                    writable,
                } => Action::File {
                    path,
                    content: [content, vec![0]].concat(),
                    mode,
                    writable,
                },
                Action::Landlock(ruleset) => Action::Landlock(Landlock {
                    scoped: ruleset.scoped ^ 1,
                    ..ruleset
                }),
                Action::Seccomp { mut program } => {
                    program[0].operand ^= 1;
                    Action::Seccomp { program }
                }
                _ => Action::NewRoot,
            };
            assert_ne!(
                digest(&changed),
                digest(&before),
                "{}",
                before.steps[index].name
            );
        }
    }

    /// Moving a byte from one field to the next gives another digest.
    #[test]
    fn fields_do_not_run_into_each_other() {
        let with = |argv: [&[u8]; 2]| {
            let mut plan = plan();
            plan.command.argv = argv.map(<[u8]>::to_vec).to_vec();
            digest(&plan)
        };
        assert_ne!(with([b"ab", b"c"]), with([b"a", b"bc"]));
    }

    #[test]
    fn every_part_of_the_network_counts() {
        use crate::compile::network::tests::{facts_with_names, policy_with};
        let source = "network.allow = ['a.example']\nnetwork.deny = ['b.example']\n\
                      network.host_ports = [1]\nnetwork.publish = ['2']\n\
                      [[credential]]\nname = 'x'\nhost = 'a.example'\nfrom = {env = 'A'}\n\
                      attach = {header = 'A'}\n";
        let whole = compiled(&policy_with(source), &facts_with_names()).unwrap();
        let changes: Vec<fn(&mut crate::network::NetworkPlan)> = vec![
            |network| network.sets[0].rules[0].ports.push((1, 2)),
            |network| network.sets[0].rules[0].no_alias = true,
            |network| network.sets[0].origin.push('x'),
            |network| network.sets.push(network.sets[0].clone()),
            |network| network.deny[0].ports.push((1, 1)),
            |network| network.credentials[0].scrub = false,
            |network| network.credentials[0].name.push('x'),
            |network| network.approval = crate::network::rules::Approval::Learn,
            |network| network.approval = crate::network::rules::Approval::LearnRequests,
            |network| network.approval_wait_ms += 1,
            |network| network.publish[0].host_port += 1,
            |network| network.host_ports[0].port += 1,
            |network| network.budget.connections_max = Some(1),
            |network| network.capture = crate::network::rules::Capture::ProxyOnly,
            |network| network.metrics = true,
        ];
        let mut seen = vec![digest(&whole)];
        for change in changes {
            let mut plan = whole.clone();
            change(plan.network.as_mut().unwrap());
            let digest = digest(&plan);
            assert!(!seen.contains(&digest), "change {}", seen.len());
            seen.push(digest);
        }
    }
}
