//! Lowers a plan into the launcher's wire form: a field-by-field copy, so that
//! neither side depends on the other's types.

use stockade_launch::wire;
use stockade_policy::path::AbsolutePath;
use stockade_policy::plan::{
    Access, Action, CONTAINER_ROOT, Cover, Instruction, Listener, MaskPath, PROXY_PORT, Plan,
    Resource, StandIn, StandInKind, Step, StoreFormat, TRANSPARENT_PORT,
};

use crate::guest;
use crate::process::UpperLayer;

/// The steps that the launcher performs; those of the supervisor are left out.
pub(crate) fn launcher_steps(
    plan: &Plan,
    outside: wire::NamespaceIds,
    upper: Option<&UpperLayer>,
    environment: &[(Vec<u8>, Vec<u8>)],
) -> Vec<wire::Step> {
    plan.steps
        .iter()
        .enumerate()
        .filter_map(|(index, step)| {
            let action = match (&step.action, upper) {
                (
                    Action::Overlay {
                        path,
                        layers,
                        access,
                    },
                    Some(upper),
                ) => overlay(path, layers, *access, upper),
                (Action::GuestBundle { path }, _) => wire::Action::GuestBundle {
                    path: bytes(path),
                    config: guest::config(plan, environment)?,
                },
                (Action::RuntimeRoot { program }, _) => wire::Action::RuntimeRoot {
                    program: bytes(program),
                    config: guest::config(plan, environment)?,
                    path: CONTAINER_ROOT.as_bytes().to_vec(),
                },
                (Action::MachineRoot { devices }, _) => wire::Action::MachineRoot {
                    devices: devices.clone(),
                    path: CONTAINER_ROOT.as_bytes().to_vec(),
                },
                (other, _) => action(other, outside)?,
            };
            Some(wire::Step {
                index: index as u32,
                action,
            })
        })
        .collect()
}

/// The overlay of the workspace, on the upper layer that this run has.
fn overlay(
    path: &AbsolutePath,
    layers: &[AbsolutePath],
    access: Access,
    upper: &UpperLayer,
) -> wire::Action {
    wire::Action::Overlay {
        path: bytes(path),
        lower: layers.iter().chain([path]).map(bytes).collect(),
        upper: bytes(&upper.upper),
        work: bytes(&upper.work),
        writable: access == Access::Write,
    }
}

/// Steps that the launcher may perform before there is a plan. None of them
/// depends on what the supervisor knows.
pub(crate) fn prelude(steps: &[Step]) -> Vec<wire::Action> {
    let unknown = [0; wire::NAMESPACES.len()];
    steps
        .iter()
        .filter_map(|step| action(&step.action, unknown))
        .collect()
}

/// Whether the launcher performs the step, and not the supervisor.
pub(crate) fn is_for_launcher(step: &Step) -> bool {
    !matches!(
        step.action,
        Action::CloneNamespaces
            | Action::Fork
            | Action::MapIds { .. }
            | Action::JoinControlGroup
            | Action::PrivateStreams
            | Action::StartEgress
            | Action::TestEgress
            | Action::SeeGuestKernel
            | Action::Seatbelt { .. }
    )
}

fn action(action: &Action, outside: wire::NamespaceIds) -> Option<wire::Action> {
    Some(match action {
        Action::CloneNamespaces
        | Action::Fork
        | Action::MapIds { .. }
        | Action::JoinControlGroup
        | Action::PrivateStreams
        | Action::StartEgress
        | Action::TestEgress
        | Action::SeeGuestKernel
        | Action::GuestBundle { .. }
        | Action::RuntimeRoot { .. }
        | Action::MachineRoot { .. }
        // Not of this wall, which shows no evidence for it: the gate stays shut.
        | Action::Seatbelt { .. } => return None,
        Action::TieToSupervisor => wire::Action::TieToSupervisor,
        Action::ScrubLauncher => wire::Action::ScrubLauncher,
        Action::NotDumpable => wire::Action::NotDumpable,
        Action::VerifyNamespaces => wire::Action::VerifyNamespaces { outside },
        Action::LoopbackUp => wire::Action::LoopbackUp,
        Action::LocalRoutes => wire::Action::LocalRoutes,
        Action::Redirect => wire::Action::Redirect {
            port: TRANSPARENT_PORT,
        },
        Action::Listen { listeners } => wire::Action::Listen {
            listeners: listeners.iter().map(listener).collect(),
        },
        Action::OverlayPart { path, access } => wire::Action::OverlayPart {
            path: bytes(path),
            writable: *access == Access::Write,
        },
        Action::EnterDirectory { path } => wire::Action::EnterDirectory { path: bytes(path) },
        Action::ResourceLimits { limits } => wire::Action::ResourceLimits {
            limits: limits
                .iter()
                .map(|limit| (resource(limit.resource), limit.soft, limit.hard))
                .collect(),
        },
        Action::Processors { processors } => wire::Action::Processors {
            processors: processors.clone(),
        },
        Action::NoNestedNamespaces => wire::Action::NoNestedNamespaces,
        Action::NoNewPrivileges => wire::Action::NoNewPrivileges,
        Action::DropCapabilities => wire::Action::DropCapabilities,
        Action::KeepMapping => wire::Action::KeepMapping,
        Action::Landlock(landlock) => wire::Action::Landlock {
            filesystem: landlock.handled_fs,
            network: landlock.handled_net,
            scoped: landlock.scoped,
            rules: landlock
                .rules
                .iter()
                .map(|rule| (bytes(&rule.path), rule.allowed))
                .collect(),
        },
        Action::Seccomp { program } => wire::Action::Seccomp {
            program: instructions(program),
        },
        Action::SuperviseNames { program } => wire::Action::SuperviseNames {
            program: instructions(program),
        },
        Action::NewRoot
        | Action::PrivateStorage { .. }
        | Action::Symlink { .. }
        | Action::File { .. }
        | Action::PrivateDirectory { .. }
        | Action::Bind { .. }
        | Action::BindWithout { .. }
        | Action::Overlay { .. }
        | Action::Copy { .. }
        | Action::TrustStore { .. }
        | Action::Device { .. }
        | Action::Terminals
        | Action::Proc { .. }
        | Action::Masks { .. }
        | Action::EnterRoot => return view_action(action),
    })
}

fn instructions(program: &[Instruction]) -> Vec<(u16, u8, u8, u32)> {
    program
        .iter()
        .map(|one| (one.code, one.jump_true, one.jump_false, one.operand))
        .collect()
}

/// The actions that build the view.
fn view_action(action: &Action) -> Option<wire::Action> {
    Some(match action {
        Action::NewRoot => wire::Action::NewRoot,
        Action::PrivateStorage { bytes, inodes } => wire::Action::PrivateStorage {
            bytes: *bytes,
            inodes: *inodes,
        },
        Action::Symlink { path, target } => wire::Action::Symlink {
            path: bytes(path),
            target: target.clone(),
        },
        Action::File {
            path,
            content,
            mode,
            writable,
        } => wire::Action::File {
            path: bytes(path),
            content: content.clone(),
            mode: *mode,
            writable: *writable,
        },
        Action::PrivateDirectory { path, mode } => wire::Action::PrivateDirectory {
            path: bytes(path),
            mode: *mode,
        },
        Action::Bind {
            source,
            path,
            access,
            directory,
        } => wire::Action::Bind {
            source: bytes(source),
            path: bytes(path),
            writable: *access == Access::Write,
            directory: *directory,
        },
        Action::BindWithout {
            source,
            path,
            absent,
        } => wire::Action::BindWithout {
            source: bytes(source),
            path: bytes(path),
            absent: absent.iter().map(bytes).collect(),
        },
        Action::Copy {
            source,
            path,
            bytes_max,
        } => wire::Action::Copy {
            source: bytes(source),
            path: bytes(path),
            bytes_max: *bytes_max,
        },
        Action::TrustStore {
            source,
            path,
            format,
        } => wire::Action::TrustStore {
            source: source.as_ref().map(bytes),
            path: bytes(path),
            format: store_format(format),
        },
        Action::Device { name } => wire::Action::Device { name: name.clone() },
        Action::Terminals => wire::Action::Terminals,
        Action::Proc { writable } => wire::Action::Proc {
            writable: *writable,
            nested_namespaces: *writable,
        },
        Action::Masks { paths } => wire::Action::Masks {
            paths: paths.iter().map(mask).collect(),
        },
        Action::EnterRoot => wire::Action::EnterRoot,
        // Not of the view: `action` does not pass it on.
        _ => return None,
    })
}

fn store_format(format: &StoreFormat) -> wire::StoreFormat {
    match format {
        StoreFormat::Pem => wire::StoreFormat::Pem,
        StoreFormat::Jks => wire::StoreFormat::Jks,
    }
}

fn mask(mask: &MaskPath) -> wire::MaskPath {
    wire::MaskPath {
        path: bytes(&mask.path),
        directory: mask.directory,
        required: mask.required,
        cover: match &mask.cover {
            Cover::Empty => wire::Cover::Empty,
            Cover::Sealed => wire::Cover::Sealed,
            Cover::Committed(stand_ins) => {
                wire::Cover::Committed(stand_ins.iter().map(stand_in).collect())
            }
        },
    }
}

fn stand_in(stand_in: &StandIn) -> wire::StandIn {
    wire::StandIn {
        name: stand_in.name.clone(),
        kind: match stand_in.kind {
            StandInKind::File => wire::StandInKind::File,
            StandInKind::Executable => wire::StandInKind::Executable,
            StandInKind::Link => wire::StandInKind::Link,
            StandInKind::Directory => wire::StandInKind::Directory,
        },
        content: stand_in.content.clone(),
    }
}

fn listener(listener: &Listener) -> wire::Listener {
    match listener {
        Listener::Proxy => wire::Listener::Proxy(PROXY_PORT),
        Listener::Transparent => wire::Listener::Transparent(TRANSPARENT_PORT),
        Listener::HostPort(port) | Listener::SocketPort { port, .. } => {
            wire::Listener::HostPort(*port)
        }
        Listener::NamesTcp => wire::Listener::NamesTcp,
        Listener::NamesUdp => wire::Listener::NamesUdp,
        Listener::Unix { path } => wire::Listener::Unix { path: bytes(path) },
        Listener::Supply => wire::Listener::Supply,
        Listener::ProbeTcp => wire::Listener::ProbeTcp,
        Listener::ProbeUdp => wire::Listener::ProbeUdp,
    }
}

fn bytes(path: &AbsolutePath) -> Vec<u8> {
    path.as_bytes().to_vec()
}

/// Numbers that `stockade_launch` maps back.
fn resource(resource: Resource) -> u8 {
    match resource {
        Resource::Core => 0,
        Resource::Cpu => 1,
        Resource::Data => 2,
        Resource::FileSize => 3,
        Resource::OpenFiles => 4,
        Resource::Processes => 5,
    }
}
