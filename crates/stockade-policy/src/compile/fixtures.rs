//! A machine and a policy for tests, as fixed values.

use std::collections::BTreeMap;

use super::{CommandRequest, compile};
use crate::facts::{
    Ability, Architecture, ControlGroups, Facts, Gvisor, MachineFacts, MachineFound, PathFact,
    PathKind, RuntimeFacts,
};
use crate::path::AbsolutePath;
use crate::plan::{
    Accelerator, Form, Machine, Plan, Rule, Runsc, Runtime, RuntimeKind, Unenforceable,
};
use crate::policy::{GrantTarget, LimitDemands, NamedSet, NetworkPolicy, PathGrant, Policy};

pub(crate) fn path(text: &str) -> AbsolutePath {
    AbsolutePath::parse(text).unwrap()
}

pub(crate) fn rule(id: &str) -> Rule {
    Rule {
        id: id.to_owned(),
        origin: "stockade.toml:1".to_owned(),
        reason: "test".to_owned(),
    }
}

/// A project that may be written, and the system set.
pub(crate) fn policy() -> Policy {
    let (wall_demand, wall_rule) = crate::defaults::wall();
    Policy {
        wall: (wall_demand.least, wall_rule),
        wall_demand,
        image: None,
        runtime: None,
        accelerator: None,
        accepted_runtime: None,
        form: Form::Namespaces,
        workspace: path("/home/u/project"),
        workspace_mode: crate::defaults::workspace_mode(),
        write: vec![grant("filesystem.write[0]", "/home/u/project")],
        read: vec![PathGrant {
            target: GrantTarget::Set(NamedSet::System),
            rule: Rule {
                origin: "built-in".to_owned(),
                ..rule("filesystem.read[0]")
            },
        }],
        hide: Vec::new(),
        caches: Vec::new(),
        guard: crate::guard::Guard::built_in(),
        kept: Vec::new(),
        nested_sandbox: None,
        environment_pass: ["PATH", "LC_*", "TERM"]
            .map(|name| (name.to_owned(), rule("environment.pass")))
            .to_vec(),
        environment_set: Vec::new(),
        network: NetworkPolicy::default(),
        limits: LimitDemands::default(),
        weaken: Vec::new(),
    }
}

pub(crate) fn grant(id: &str, target: &str) -> PathGrant {
    PathGrant {
        target: GrantTarget::Path(path(target)),
        rule: rule(id),
    }
}

fn gvisor() -> Gvisor {
    Gvisor::Found(Runsc {
        program: path("/usr/bin/runsc"),
        version: "release-20240729.0".to_owned(),
    })
}

fn runtime() -> RuntimeFacts {
    RuntimeFacts::Found(Runtime {
        kind: RuntimeKind::Runc,
        program: path("/usr/sbin/runc"),
        version: "1.3.3".to_owned(),
    })
}

fn no_kvm() -> Ability {
    Ability::No {
        reason: "/dev/kvm is not there".to_owned(),
        remedy: "load it".to_owned(),
    }
}

fn machine() -> MachineFacts {
    let machine = Machine {
        program: path("/usr/bin/qemu-system-x86_64"),
        version: "7.2".to_owned(),
        image: "default".to_owned(),
        release: "6.12.1-x".to_owned(),
        kernel: path("/state/kernel"),
        kernel_digest: "k".to_owned(),
        initramfs: path("/state/initramfs"),
        initramfs_digest: "i".to_owned(),
        memory: 0,
        processors: 1,
        accelerator: Accelerator::Tcg,
        saved: None,
    };
    MachineFacts::Found(Box::new(MachineFound {
        machine,
        saved: Vec::new(),
        system: vec![path("/usr")],
        kvm: no_kvm(),
    }))
}

/// A laptop of an ordinary user, without control groups.
pub(crate) fn facts() -> Facts {
    let environment = [
        ("PATH", "/usr/bin"),
        ("LC_ALL", "C.UTF-8"),
        ("SECRET_TOKEN", "s3cr3t"),
        ("TMPDIR", "/x"),
    ];
    let mut facts = Facts {
        image: None,
        architecture: Architecture::X86_64,
        kernel: (6, 12),
        landlock_abi: 7,
        user_namespaces: Ability::Yes,
        supervised_names: Ability::Yes,
        control_groups: no_control_groups(),
        uid: 1000,
        gid: 1000,
        maps_every_id: false,
        home: path("/home/u"),
        user_name: "u".to_owned(),
        umask: 0o022,
        memory_total_bytes: 10 << 30,
        processors: vec![0, 1, 2, 3],
        open_files_max: 1 << 20,
        environment: environment
            .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
            .into(),
        paths: BTreeMap::new(),
        hidden: Vec::new(),
        caches: None,
        all_caches: None,
        sockets: Vec::new(),
        overlay: Ability::Yes,
        layers: Vec::new(),
        git_identity: Vec::new(),
        git_excludes: Vec::new(),
        host_name: "laptop".to_owned(),
        redirect: Ability::Yes,
        ca_bundles: vec![path("/etc/ssl/certs/ca-certificates.crt")],
        java_stores: Vec::new(),
        gvisor: gvisor(),
        machine: machine(),
        runtime: runtime(),
    };
    add_paths(&mut facts);
    facts
}

fn add_paths(facts: &mut Facts) {
    for directory in [
        "/usr",
        "/etc",
        "/etc/ssh",
        "/home",
        "/home/u",
        "/home/u/project",
        "/home/u/.ssh",
        "/home/u/data",
        "/opt",
        "/tmp",
        "/var/tmp",
        "/run",
        "/dev/shm",
    ] {
        facts
            .paths
            .insert(path(directory), fact(PathKind::Directory, directory));
    }
    facts
        .paths
        .insert(path("/etc/shadow"), fact(PathKind::File, "/etc/shadow"));
    link(facts, "/bin", "usr/bin", "/usr/bin", PathKind::Directory);
    link(
        facts,
        "/lib64",
        "usr/lib64",
        "/usr/lib64",
        PathKind::Directory,
    );
}

/// The same machine for root, with control groups.
pub(crate) fn facts_of_root() -> Facts {
    Facts {
        uid: 0,
        gid: 0,
        maps_every_id: true,
        home: path("/root"),
        user_name: "root".to_owned(),
        control_groups: ControlGroups::V2 {
            directory: path("/sys/fs/cgroup/stockade"),
            controllers: ["memory", "pids", "cpu"].map(str::to_owned).to_vec(),
        },
        ..facts()
    }
}

fn no_control_groups() -> ControlGroups {
    ControlGroups::None {
        reason: "no delegated control group".to_owned(),
        remedy: "run below `systemd-run --user --scope`".to_owned(),
    }
}

pub(crate) fn fact(kind: PathKind, resolved: &str) -> PathFact {
    PathFact {
        kind: kind.clone(),
        resolved: Some(path(resolved)),
        resolved_kind: Some(kind),
        uid: 0,
        gid: 0,
        mode: 0o755,
    }
}

pub(crate) fn link(facts: &mut Facts, from: &str, target: &str, lands: &str, kind: PathKind) {
    let symlink = PathKind::Symlink {
        target: target.as_bytes().to_vec(),
    };
    let fact = PathFact {
        resolved_kind: Some(kind),
        ..fact(symlink, lands)
    };
    facts.paths.insert(path(from), fact);
}

pub(crate) fn request() -> CommandRequest {
    CommandRequest {
        argv: vec![b"npm".to_vec(), b"test".to_vec()],
        directory: path("/home/u/project"),
    }
}

pub(crate) fn compiled(policy: &Policy, facts: &Facts) -> Result<Plan, Vec<Unenforceable>> {
    compile(policy, facts, request())
}
