//! A plan with a network and little else, written by hand.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use stockade_policy::facts::{Architecture, ControlGroups};
use stockade_policy::path::AbsolutePath;
use stockade_policy::plan::{
    Access, Action, Command, Form, Limits, Listener, Plan, Rule, Step, StoreFormat, WorkspaceMode,
};
use stockade_policy::seccomp;
use stockade_sys::rustix::process::{getegid, geteuid};
use stockade_walls::WallError;
use stockade_walls::process::{self, AtGate, ChildStream, Embryo, Identity, Start};

/// A directory of the host that goes when the test ends.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("stockade-walls-{}-{number}", std::process::id());
        let path = Path::new("/var/tmp").join(name);
        fs::create_dir(&path).expect("a scratch directory can be made");
        fs::write(path.join("roots.pem"), ROOT).expect("a file can be written");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _left = fs::remove_dir_all(&self.0).is_err();
    }
}

const ROOT: &str = "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n";
pub const AUTHORITY: &str = "-----BEGIN CERTIFICATE-----\nBAUG\n-----END CERTIFICATE-----\n";

pub fn path(path: impl AsRef<Path>) -> AbsolutePath {
    AbsolutePath::parse(path.as_ref().as_os_str().as_bytes()).expect("an absolute path")
}

/// A sandbox that runs this program in the given role.
pub fn plan(scratch: &Scratch, role: &str) -> Plan {
    let mut actions = vec![
        Action::CloneNamespaces,
        Action::MapIds { every_id: false },
        Action::TieToSupervisor,
        Action::ScrubLauncher,
        Action::VerifyNamespaces,
        Action::LoopbackUp,
        Action::LocalRoutes,
        Action::Redirect,
        Action::NewRoot,
        Action::PrivateStorage {
            bytes: 16 << 20,
            inodes: 1024,
        },
    ];
    actions.extend(view(scratch));
    actions.push(Action::Listen {
        listeners: listeners(),
    });
    actions.extend(stores(scratch));
    actions.extend([
        Action::EnterRoot,
        Action::EnterDirectory { path: path("/") },
        Action::NoNestedNamespaces,
        Action::NoNewPrivileges,
        Action::DropCapabilities,
        Action::NotDumpable,
        Action::Seccomp {
            program: seccomp::program(
                architecture(),
                seccomp::Options {
                    nested_sandbox: seccomp::NestedSandbox::Denied,
                },
            ),
        },
    ]);
    let steps = actions.into_iter().enumerate().map(|(index, action)| Step {
        name: format!("step {index}"),
        action,
        holds: Vec::new(),
    });
    Plan {
        wall: stockade_policy::plan::Wall::Process,
        image: None,
        form: Form::Namespaces,
        command: Command {
            argv: vec![b"/test".to_vec(), role.into()],
            directory: path("/"),
            environment: vec![(b"TOKEN".to_vec(), b"planned".to_vec())],
        },
        workspace: path("/"),
        workspace_mode: (
            WorkspaceMode::Live,
            Rule {
                id: "filesystem.workspace".into(),
                origin: "test".into(),
                reason: "test".into(),
            },
        ),
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        umask: 0o022,
        grants: Vec::new(),
        masks: Vec::new(),
        limits: limits(),
        guard: stockade_policy::guard::Guard::nothing(),
        caches: None,
        nested_sandbox: false,
        guest: None,
        network: None,
        steps: steps.collect(),
        guarantees: Vec::new(),
        notes: Vec::new(),
    }
}

fn architecture() -> Architecture {
    match cfg!(target_arch = "aarch64") {
        true => Architecture::Aarch64,
        false => Architecture::X86_64,
    }
}

pub fn listeners() -> Vec<Listener> {
    vec![
        Listener::Proxy,
        Listener::Transparent,
        Listener::NamesUdp,
        Listener::NamesTcp,
        Listener::HostPort(8123),
        Listener::Unix {
            path: path("/run/offers/agent"),
        },
        // On the root, which is read-only for the command.
        Listener::Unix {
            path: path("/run/other/agent"),
        },
        Listener::Supply,
        Listener::ProbeTcp,
        Listener::ProbeUdp,
    ]
}

/// The parts of the host that this program needs, and itself.
fn view(scratch: &Scratch) -> Vec<Action> {
    let mut actions = Vec::new();
    for name in ["/usr", "/bin", "/lib", "/lib64", "/lib32"] {
        let place = Path::new(name);
        if let Ok(target) = fs::read_link(place) {
            actions.push(Action::Symlink {
                path: path(name),
                target: target.as_os_str().as_bytes().to_vec(),
            });
        } else if place.is_dir() {
            actions.push(bind(place, name, Access::Read, true));
        }
    }
    let program = std::env::current_exe().expect("a program has a path");
    actions.push(bind(&program, "/test", Access::Read, false));
    actions.push(bind(&scratch.0, "/scratch", Access::Write, true));
    actions.extend(["null", "zero", "urandom"].map(|name| Action::Device {
        name: name.to_owned(),
    }));
    actions.push(Action::Proc { writable: false });
    actions.push(Action::PrivateDirectory {
        path: path("/run/offers"),
        mode: 0o755,
    });
    actions
}

/// Below a directory of the host, and at a place of the launcher's own.
fn stores(scratch: &Scratch) -> [Action; 3] {
    let store = |source, place, format| Action::TrustStore {
        source,
        path: path(place),
        format,
    };
    let roots = path(scratch.0.join("roots.pem"));
    [
        store(Some(roots), "/scratch/roots.pem", StoreFormat::Pem),
        store(None, "/etc/own.pem", StoreFormat::Pem),
        store(None, "/etc/own.jks", StoreFormat::Jks),
    ]
}

fn bind(source: &Path, to: &str, access: Access, directory: bool) -> Action {
    Action::Bind {
        source: path(fs::canonicalize(source).expect("it exists")),
        path: path(to),
        access,
        directory,
    }
}

fn limits() -> Limits {
    Limits {
        memory_bytes: None,
        processes: None,
        cpu_percent: None,
        cpu_seconds: None,
        wall_time_ms: None,
        open_files: None,
        file_bytes: None,
        disk_bytes: 16 << 20,
        store_bytes: 0,
        disk_inodes: 1024,
        exact: false,
    }
}

/// Sets the plan up to the gate, with standard output to a pipe that is read
/// from the second value.
pub fn start(
    plan: &Plan,
    fail_at: Option<usize>,
) -> Result<(AtGate, std::io::PipeReader), WallError> {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let writer = Arc::new(OwnedFd::from(writer));
    let identity = Identity {
        uid: plan.uid,
        gid: plan.gid,
        every_id: false,
    };
    let streams = [
        ChildStream::Null,
        ChildStream::Descriptor(writer.clone()),
        ChildStream::Descriptor(writer.clone()),
    ];
    let embryo = Embryo::fork(plan.form, identity, streams, &[]);
    drop(writer);
    let none = ControlGroups::None {
        reason: String::new(),
        remedy: String::new(),
    };
    let start = Start {
        plan,
        control_groups: &none,
        extra_environment: &[(b"TOKEN".to_vec(), b"placeholder".to_vec())],
        authority: Some(AUTHORITY.as_bytes()),
        upper: None,
        agent: None,
        fail_at,
    };
    let gate = process::start(embryo, start)?.finish(plan)?;
    assert_eq!(gate.missing_evidence(plan), [0usize; 0]);
    Ok((gate, reader))
}
