//! What is executed in the command's place, a kernel of its own or an installed
//! OCI runtime: whether this machine has it, what the plan says of it, and what
//! is not held where there is one.

use crate::facts::{Ability, Facts, Gvisor, MachineFacts, RuntimeFacts, SavedMachine};
use crate::guarantee::Guarantee::{self, *};
use crate::plan::{
    Accelerator, Form, Guest, GuestKernel, Limits, Machine, Runtime, Wall, WorkspaceMode,
};
use crate::policy::Policy;
use crate::runtimes;

use super::findings::Findings;
use super::limits;

/// Memory that QEMU takes besides the machine's own: what it is itself, and the
/// code that it translated.
const QEMU_BYTES: u64 = 256 << 20;
/// Least memory of a machine, in MiB.
const MACHINE_MIB_MIN: u64 = 192;
/// Memory of a machine where nothing limits it, in MiB.
const MACHINE_MIB: u64 = 2048;

/// Most processors of a machine.
const PROCESSORS_MAX: u32 = 64;

/// Refuses where there is no such kernel, and what one would not keep.
pub(super) fn check(policy: &Policy, facts: &Facts, findings: &mut Findings) {
    match policy.wall.0 {
        Wall::Container if policy.oci_runtime().is_some() => {
            return check_runtime(policy, facts, findings);
        }
        Wall::Seatbelt | Wall::Process => return refuse_runtime(policy, findings),
        Wall::Container => return,
        Wall::Gvisor => check_gvisor(policy, facts, findings),
        Wall::Microvm => check_machine(policy, facts, findings),
    }
    if let Some(rule) = &policy.nested_sandbox {
        findings.refuse(
            PR1,
            format!(
                "{} ({}) lets programs reach more of the host's kernel, and they do not reach it",
                rule.id, rule.origin
            ),
            "remove process.nested_sandbox: sandboxes within a kernel of their own need no leave",
        );
    }
}

fn check_gvisor(policy: &Policy, facts: &Facts, findings: &mut Findings) {
    if let Gvisor::Missing { reason, remedy } = &facts.gvisor {
        findings.refuse(PR1, reason, remedy);
    }
    demand_guard(
        policy,
        "names in a live workspace are made by the file server of the command's own kernel, \
         which asks no guard",
        findings,
    );
    findings.lose(
        PR7,
        "a process that its own kernel refuses for the number of processes is not told of",
    );
}

/// A live workspace whose names nobody guards is refused.
fn demand_guard(policy: &Policy, because: &str, findings: &mut Findings) {
    let live = policy.workspace_mode.0 == WorkspaceMode::Live && !policy.write.is_empty();
    if live && policy.form == Form::Namespaces {
        findings.demand(
            FS4,
            because,
            "use filesystem.workspace = \"review\" or \"discard\" (`--workspace review`), or add \
             \"FS4\" to weaken",
        );
    }
}

/// An OCI runtime makes containers and nothing else.
fn refuse_runtime(policy: &Policy, findings: &mut Findings) {
    if let Some((kind, rule)) = &policy.runtime {
        findings.refuse(
            PR1,
            format!("{} ({}) makes containers alone", kind.word(), rule.origin),
            "add wall = \"container\" (`--wall container`), or remove container.runtime",
        );
    }
}

/// What an OCI runtime could be asked for and cannot keep, and whether this one
/// may be used.
fn check_runtime(policy: &Policy, facts: &Facts, findings: &mut Findings) {
    match &facts.runtime {
        RuntimeFacts::Missing { reason, remedy } => findings.refuse(PR1, reason, remedy),
        RuntimeFacts::Found(runtime) => check_version(policy, runtime, findings),
    }
    demand_guard(
        policy,
        "names in a live workspace are guarded by Landlock, which would forbid every mount of an \
         OCI runtime",
        findings,
    );
    if let Some(rule) = &policy.nested_sandbox {
        findings.refuse(
            PR1,
            format!(
                "{} ({}) lets programs make namespaces, and a container of an OCI runtime does not",
                rule.id, rule.origin
            ),
            "remove process.nested_sandbox, or remove container.runtime",
        );
    }
    findings.lose(
        FS2,
        "Landlock would forbid every mount of an OCI runtime, so the mounts are the only check",
    );
}

/// Refuses a version that is known to let containers out, unless it is accepted
/// exactly.
fn check_version(policy: &Policy, runtime: &Runtime, findings: &mut Findings) {
    let Some(broken) = runtimes::known_broken(runtime.kind, &runtime.version) else {
        return;
    };
    let (name, version) = (runtime.kind.word(), &runtime.version);
    let what = format!("{name} {version} ({}) {broken}", runtime.program);
    let accepted = policy.accepted_runtime.as_ref();
    match accepted.filter(|(accepted, _)| accepted == version) {
        Some((_, rule)) => findings.note(format!("{what}; accepted by {}", rule.origin)),
        None => findings.refuse(
            PR2,
            what,
            format!(
                "upgrade {name}, or remove container.runtime; if your distribution repaired this \
                 version, container.accept_runtime = \"{version}\" says so"
            ),
        ),
    }
}

fn check_machine(policy: &Policy, facts: &Facts, findings: &mut Findings) {
    match &facts.machine {
        MachineFacts::Missing { reason, remedy } => findings.refuse(PR1, reason, remedy),
        MachineFacts::Found(found) => check_kvm(policy, &found.kvm, findings),
    }
    if policy.form != Form::Namespaces {
        findings.refuse(
            PR1,
            "a machine is shown a view of its own, which needs namespaces",
            "use the form \"namespaces\"",
        );
    }
}

/// Refuses where KVM is demanded and is not there, and says why it is slow where
/// it is not demanded.
fn check_kvm(policy: &Policy, kvm: &Ability, findings: &mut Findings) {
    let Ability::No { reason, remedy } = kvm else {
        return;
    };
    match &policy.accelerator {
        None => findings.note(format!(
            "QEMU translates the machine's instructions, which is slow: {reason} ({remedy})"
        )),
        Some((Accelerator::Tcg, _)) => {}
        Some((Accelerator::Kvm, rule)) => findings.refuse(
            PR1,
            format!("{} ({}) asks for KVM, and {reason}", rule.id, rule.origin),
            format!("{remedy}; or remove microvm.accelerator"),
        ),
    }
}

/// What executes the machine of this policy.
pub(super) fn accelerator(policy: &Policy, facts: &Facts) -> Accelerator {
    let works = matches!(&facts.machine, MachineFacts::Found(found) if found.kvm == Ability::Yes);
    match &policy.accelerator {
        Some((Accelerator::Tcg, _)) => Accelerator::Tcg,
        _ if works => Accelerator::Kvm,
        _ => Accelerator::Tcg,
    }
}

/// What the plan says of the kernel.
pub(super) fn in_plan(policy: &Policy, facts: &Facts, limits: &Limits) -> Option<Guest> {
    let kernel = match policy.wall.0 {
        Wall::Gvisor => match &facts.gvisor {
            Gvisor::Found(runsc) => GuestKernel::Gvisor(runsc.clone()),
            Gvisor::Missing { .. } => return None,
        },
        Wall::Microvm => match &facts.machine {
            MachineFacts::Found(found) => {
                let memory = memory(limits);
                let network = policy.network.opens_anything();
                let accelerator = accelerator(policy, facts);
                // Only what boots for a long time is worth saving.
                let fits = |one: &&SavedMachine| {
                    accelerator == Accelerator::Tcg
                        && one.memory == memory
                        && one.network == network
                };
                let saved = found.saved.iter().find(fits).map(|one| one.digest.clone());
                GuestKernel::Machine(Machine {
                    memory,
                    processors: processors(accelerator, facts, limits),
                    accelerator,
                    saved,
                    ..found.machine.clone()
                })
            }
            MachineFacts::Missing { .. } => return None,
        },
        _ => match (policy.oci_runtime(), &facts.runtime) {
            (Some(_), RuntimeFacts::Found(runtime)) => GuestKernel::Hosts(runtime.clone()),
            _ => return None,
        },
    };
    Some(Guest {
        kernel,
        host_name: facts.host_name.clone(),
    })
}

/// Who translates instructions does it for one processor.
fn processors(accelerator: Accelerator, facts: &Facts, limits: &Limits) -> u32 {
    let available = limits::processors(facts, limits).len();
    let available = u32::try_from(available).unwrap_or(u32::MAX);
    match accelerator {
        Accelerator::Tcg => 1,
        Accelerator::Kvm => available.clamp(1, PROCESSORS_MAX),
    }
}

/// Memory of a machine in MiB, so that QEMU as a whole keeps to the limit.
fn memory(limits: &Limits) -> u32 {
    let limited = limits
        .memory_bytes
        .map(|bytes| bytes.saturating_sub(QEMU_BYTES) >> 20);
    let memory = limited.unwrap_or(MACHINE_MIB).max(MACHINE_MIB_MIN);
    u32::try_from(memory).unwrap_or(u32::MAX)
}

/// What holds a guarantee besides what holds it around any process; `None`
/// where that is all.
pub(super) fn mechanism(guarantee: Guarantee, wall: Wall) -> Option<&'static str> {
    Some(match guarantee {
        PR1 if wall == Wall::Microvm => {
            "system calls go to a kernel of the command's own and never to the host's; the same \
             rules are in force within it and around it; other ABIs and io_uring are refused"
        }
        FS2 => {
            "read-only mounts, around a file server that the command reaches only through its own kernel"
        }
        FS5 => {
            "mounts are made in the command's own kernel, and change nothing outside of it; links \
             that a run can make are not followed"
        }
        PR1 => {
            "system calls go to a kernel of the command's own and never to the host's; a filter \
             is around that kernel"
        }
        PR2 => {
            "no_new_privs and empty capability sets, within a kernel of its own and around it; \
             what is gained within is nothing outside"
        }
        PR3 => "the process table is that of a kernel of its own, in a pid namespace",
        PR6 => "only pipes and terminals of the command's own kernel lead to it",
        PR8 => "kernel objects are those of a kernel of its own, in ipc and network namespaces",
        _ => return None,
    })
}

/// As [`mechanism`], where an OCI runtime makes the container.
pub(super) fn runtime_mechanism(guarantee: Guarantee) -> Option<&'static str> {
    Some(match guarantee {
        FS2 => "read-only mounts",
        PR1 => {
            "the system call rules, loaded by the OCI runtime, within a filter that is around the \
             runtime; other ABIs and io_uring are refused"
        }
        PR2 => {
            "no_new_privs, empty capability sets and the system call rules, seen from within before \
             a command starts"
        }
        PR3 => "a pid namespace within another one, with its own /proc",
        PR6 => "only pipes and terminals that the agent made within lead to it",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::fixtures::{compiled, fact, facts, path, policy, rule};
    use crate::facts::{ImageFacts, PathKind};
    use crate::plan::{Action, Plan, RuntimeKind};

    fn gvisor() -> Policy {
        let mut policy = policy();
        policy.wall = (Wall::Gvisor, rule("wall"));
        policy.weaken = [FS4, PR7].map(|one| (one, rule("weaken"))).to_vec();
        policy
    }

    fn position(plan: &Plan, name: &str) -> Option<usize> {
        plan.steps.iter().position(|step| step.name == name)
    }

    #[test]
    fn the_kernel_is_started_from_the_view_and_is_seen_last() {
        let plan = compiled(&gvisor(), &facts()).unwrap();
        assert!(plan.guest.is_some());
        let last = plan.steps.last().unwrap();
        assert_eq!(last.action, Action::SeeGuestKernel);
        let bundle = position(&plan, "guest.bundle").unwrap();
        assert!(bundle < position(&plan, "guest.program").unwrap());
        assert!(bundle < position(&plan, "view.enter").unwrap());
        for absent in ["confine.landlock", "confine.names", "confine.no-nesting"] {
            assert_eq!(position(&plan, absent), None, "{absent}");
        }
        assert!(compiled(&policy(), &facts()).unwrap().guest.is_none());
    }

    #[test]
    fn a_live_workspace_is_refused_unless_that_is_accepted_by_name() {
        let mut policy = gvisor();
        policy.weaken.retain(|(one, _)| *one != FS4);
        let refused = compiled(&policy, &facts()).unwrap_err();
        assert_eq!(refused.len(), 1);
        assert_eq!((refused[0].guarantee, refused[0].wall), (FS4, "gvisor"));
        assert!(refused[0].remedy.contains("review"));
        policy.workspace_mode.0 = WorkspaceMode::Review;
        assert!(compiled(&policy, &facts()).is_ok());
    }

    #[test]
    fn without_the_program_there_is_nothing() {
        let mut facts = facts();
        facts.gvisor = Gvisor::Missing {
            reason: "no runsc".to_owned(),
            remedy: "install it".to_owned(),
        };
        let refused = compiled(&gvisor(), &facts).unwrap_err();
        assert!(refused.iter().any(|one| one.remedy == "install it"));
        facts.machine = MachineFacts::Missing {
            reason: "no image".to_owned(),
            remedy: "build it".to_owned(),
        };
        let mut policy = gvisor();
        policy.wall.0 = Wall::Microvm;
        let refused = compiled(&policy, &facts).unwrap_err();
        assert!(refused.iter().any(|one| one.remedy == "build it"));
    }

    fn behind_runc() -> Policy {
        let mut policy = policy();
        policy.wall = (Wall::Container, rule("wall"));
        policy.runtime = Some((RuntimeKind::Runc, rule("container.runtime")));
        policy.weaken = vec![(PR7, rule("weaken"))];
        policy.workspace_mode.0 = WorkspaceMode::Review;
        policy
    }

    #[test]
    fn an_oci_runtime_is_executed_under_a_root_of_its_own_and_what_it_made_is_seen() {
        let plan = compiled(&behind_runc(), &facts()).unwrap();
        assert!(matches!(
            plan.guest.as_ref().unwrap().kernel,
            GuestKernel::Hosts(_)
        ));
        let root = position(&plan, "guest.root").unwrap();
        assert_eq!(Some(root + 1), position(&plan, "view.enter"));
        let directory = position(&plan, "enter.directory").unwrap();
        let Action::EnterDirectory { path } = &plan.steps[directory].action else {
            panic!("not a directory");
        };
        assert_eq!(path.to_string(), "/container/home/u/project");
        assert_eq!(plan.steps.last().unwrap().action, Action::SeeGuestKernel);
        for absent in ["confine.landlock", "confine.names", "confine.no-nesting"] {
            assert_eq!(position(&plan, absent), None, "{absent}");
        }
        // A weaker wall is refused with it, a stronger one has its own.
        let mut other = behind_runc();
        other.wall.0 = Wall::Process;
        let refused = compiled(&other, &facts()).unwrap_err();
        assert!(refused[0].remedy.contains("wall = \"container\""));
        other.wall.0 = Wall::Gvisor;
        let gvisor = compiled(&other, &facts()).unwrap().guest.unwrap();
        assert!(matches!(gvisor.kernel, GuestKernel::Gvisor(_)));
    }

    #[test]
    fn a_version_that_lets_containers_out_is_used_only_if_exactly_it_is_accepted() {
        let mut facts = facts();
        let version = |facts: &mut Facts, version: &str| {
            facts.runtime = RuntimeFacts::Found(Runtime {
                kind: RuntimeKind::Runc,
                program: crate::compile::fixtures::path("/usr/sbin/runc"),
                version: version.to_owned(),
            });
        };
        version(&mut facts, "1.1.5+ds1-1+deb12u1");
        let mut policy = behind_runc();
        let refused = compiled(&policy, &facts).unwrap_err();
        assert_eq!(refused.len(), 1);
        assert!(refused[0].reason.contains("CVE-2024-21626"));
        assert!(
            refused[0]
                .remedy
                .contains("accept_runtime = \"1.1.5+ds1-1+deb12u1\"")
        );
        policy.accepted_runtime = Some(("1.1.5".to_owned(), rule("accept")));
        assert!(compiled(&policy, &facts).is_err());
        policy.accepted_runtime = Some(("1.1.5+ds1-1+deb12u1".to_owned(), rule("accept")));
        let plan = compiled(&policy, &facts).unwrap();
        assert!(
            plan.notes
                .iter()
                .any(|note| note.contains("CVE-2024-21626"))
        );
        facts.runtime = RuntimeFacts::Missing {
            reason: "no runc".to_owned(),
            remedy: "install it".to_owned(),
        };
        assert_eq!(
            compiled(&policy, &facts).unwrap_err()[0].remedy,
            "install it"
        );
    }

    #[test]
    fn an_oci_runtime_keeps_no_guard_and_no_sandbox_within() {
        let mut policy = behind_runc();
        policy.workspace_mode.0 = WorkspaceMode::Live;
        let refused = compiled(&policy, &facts()).unwrap_err();
        assert_eq!((refused.len(), refused[0].guarantee), (1, FS4));
        let mut policy = behind_runc();
        policy.nested_sandbox = Some(rule("process.nested_sandbox"));
        assert_eq!(compiled(&policy, &facts()).unwrap_err()[0].guarantee, PR1);
    }

    #[test]
    fn around_a_machine_is_all_of_the_process_wall() {
        let mut policy = policy();
        policy.wall = (Wall::Microvm, rule("wall"));
        policy.weaken = vec![(PR7, rule("weaken"))];
        let plan = compiled(&policy, &facts()).unwrap();
        for step in [
            "guest.image kernel",
            "guest.image initramfs",
            "confine.no-nesting",
            "confine.landlock",
            "confine.names",
            "confine.system-calls",
            "guest.kernel",
        ] {
            assert!(position(&plan, step).is_some(), "{step}");
        }
        let landlock = position(&plan, "confine.landlock").unwrap();
        let Action::Landlock(ruleset) = &plan.steps[landlock].action else {
            panic!("not Landlock");
        };
        let guest = |rule: &&crate::plan::LandlockRule| {
            rule.path.as_bytes() == crate::plan::GUEST_DIRECTORY.as_bytes()
        };
        assert!(ruleset.rules.iter().any(|rule| guest(&rule)));
    }

    /// What QEMU is linked to is the host's, and none of it is in the view that the
    /// machine is shown.
    #[test]
    fn on_an_image_qemu_has_a_root_of_its_own_above_the_view() {
        let (mut policy, mut facts) = in_a_machine(no());
        let plain = compiled(&policy, &facts).unwrap();
        assert_eq!(position(&plain, "guest.root"), None);
        assert_eq!(plain.view_root(), None);
        policy.image = Some(("tiny".to_owned(), rule("container.image")));
        facts.image = Some(ImageFacts {
            id: "sha256:0".to_owned(),
            root: path("/state/root"),
            parts: vec![path("/usr")],
            environment: Vec::new(),
        });
        facts
            .paths
            .insert(path("/usr"), fact(PathKind::Directory, "/usr"));
        let plan = compiled(&policy, &facts).unwrap();
        let at = |name: &str| position(&plan, name).unwrap_or_else(|| panic!("no {name}"));
        assert!(at("view.masks") < at("guest.root"));
        assert!(at("guest.root") < at("guest.image kernel"));
        assert!(at("guest.image initramfs") < at("view.enter"));
        assert_eq!(position(&plan, "guest.directory"), None);
        assert_eq!(plan.view_root().unwrap().to_string(), "/container");
        let Action::EnterDirectory { path } = &plan.steps[at("enter.directory")].action else {
            panic!("not a directory");
        };
        assert_eq!(path.to_string(), "/container/home/u/project");
        let Action::Landlock(ruleset) = &plan.steps[at("confine.landlock")].action else {
            panic!("not Landlock");
        };
        let paths = ruleset.rules.iter().map(|rule| rule.path.to_string());
        let (view, own): (Vec<_>, Vec<_>) = paths.partition(|path| path.starts_with("/container"));
        assert_eq!(own, [crate::plan::GUEST_DIRECTORY, "/usr", "/etc", "/proc"]);
        assert!(view.contains(&"/container/usr".to_owned()));
        let written = |rule: &&crate::plan::LandlockRule| {
            let writes = crate::landlock::FS_WRITE_FILE;
            rule.allowed & writes != 0 && !rule.path.to_string().starts_with("/container")
        };
        assert_eq!(ruleset.rules.iter().find(written), None);
        // The one device is there with the root, because it is not in the view.
        if let MachineFacts::Found(found) = &mut facts.machine {
            found.kvm = Ability::Yes;
        }
        let plan = compiled(&policy, &facts).unwrap();
        assert_eq!(position(&plan, "guest.accelerator"), None);
        let root = position(&plan, "guest.root").unwrap();
        let devices = vec!["kvm".to_owned()];
        assert_eq!(plan.steps[root].action, Action::MachineRoot { devices });
    }

    fn no() -> Ability {
        Ability::No {
            reason: "none is there".to_owned(),
            remedy: "get one".to_owned(),
        }
    }

    fn in_a_machine(kvm: Ability) -> (Policy, Facts) {
        let mut policy = policy();
        policy.wall = (Wall::Microvm, rule("wall"));
        policy.weaken = vec![(PR7, rule("weaken"))];
        let mut facts = facts();
        let memory = memory(&compiled(&policy, &facts).unwrap().limits);
        let MachineFacts::Found(found) = &mut facts.machine else {
            panic!("no machine");
        };
        found.kvm = kvm;
        found.saved = vec![SavedMachine {
            memory,
            network: false,
            digest: "s".to_owned(),
        }];
        (policy, facts)
    }

    fn machine_of(plan: &Plan) -> &Machine {
        let Some(GuestKernel::Machine(machine)) = plan.guest.as_ref().map(|it| &it.kernel) else {
            panic!("no machine");
        };
        machine
    }

    #[test]
    fn kvm_is_a_device_of_the_host_that_only_such_a_machine_has() {
        let (mut policy, facts) = in_a_machine(Ability::Yes);
        let has_device = |plan: &Plan| {
            let rules = plan.steps.iter().find_map(|step| match &step.action {
                Action::Landlock(ruleset) => Some(&ruleset.rules),
                _ => None,
            });
            let allowed = rules
                .unwrap()
                .iter()
                .any(|rule| rule.path.as_bytes() == b"/dev/kvm");
            assert_eq!(position(plan, "guest.accelerator").is_some(), allowed);
            allowed
        };
        let plan = compiled(&policy, &facts).unwrap();
        let machine = machine_of(&plan);
        assert_eq!(
            (machine.accelerator, machine.processors),
            (Accelerator::Kvm, 4)
        );
        assert_eq!(machine.saved, None);
        assert!(has_device(&plan));
        policy.accelerator = Some((Accelerator::Tcg, rule("microvm.accelerator")));
        let plan = compiled(&policy, &facts).unwrap();
        let machine = machine_of(&plan);
        assert_eq!(
            (machine.accelerator, machine.processors),
            (Accelerator::Tcg, 1)
        );
        assert_eq!(machine.saved.as_deref(), Some("s"));
        assert!(!has_device(&plan));
    }

    #[test]
    fn without_kvm_instructions_are_translated_unless_it_is_demanded() {
        let (mut policy, facts) = in_a_machine(no());
        let says_why = |plan: &Plan| plan.notes.iter().any(|note| note.contains("none is there"));
        let plan = compiled(&policy, &facts).unwrap();
        assert_eq!(machine_of(&plan).accelerator, Accelerator::Tcg);
        assert!(says_why(&plan));
        policy.accelerator = Some((Accelerator::Tcg, rule("microvm.accelerator")));
        assert!(!says_why(&compiled(&policy, &facts).unwrap()));
        policy.accelerator = Some((Accelerator::Kvm, rule("microvm.accelerator")));
        let refused = compiled(&policy, &facts).unwrap_err();
        assert_eq!((refused.len(), refused[0].guarantee), (1, PR1));
        assert!(refused[0].remedy.starts_with("get one"));
    }

    #[test]
    fn the_memory_of_a_machine_leaves_room_for_qemu() {
        let mut limits = compiled(&policy(), &facts()).unwrap().limits;
        limits.memory_bytes = Some(2 << 30);
        assert_eq!(memory(&limits), 1792);
        limits.memory_bytes = Some(64 << 20);
        assert_eq!(memory(&limits), 192);
        limits.memory_bytes = None;
        assert_eq!(memory(&limits), 2048);
    }

    #[test]
    fn a_saved_state_is_gone_on_from_where_it_fits() {
        let mut policy = policy();
        policy.wall = (Wall::Microvm, rule("wall"));
        policy.weaken = vec![(PR7, rule("weaken"))];
        let mut facts = facts();
        let saved = |facts: &Facts| match compiled(&policy, facts).unwrap().guest.unwrap().kernel {
            GuestKernel::Machine(machine) => machine.saved,
            GuestKernel::Gvisor(_) | GuestKernel::Hosts(_) => None,
        };
        assert_eq!(saved(&facts), None);
        let limits = compiled(&policy, &facts).unwrap().limits;
        let one = |memory, network, digest: &str| SavedMachine {
            memory,
            network,
            digest: digest.to_owned(),
        };
        let memory = memory(&limits);
        if let MachineFacts::Found(found) = &mut facts.machine {
            found.saved = vec![
                one(memory + 1, false, "larger"),
                one(memory, true, "with a card"),
                one(memory, false, "this one"),
            ];
        }
        assert_eq!(saved(&facts).as_deref(), Some("this one"));
    }

    #[test]
    fn root_keeps_the_one_capability_that_maps_it() {
        let mut facts = facts();
        let capabilities = |facts: &Facts| {
            let plan = compiled(&gvisor(), facts).unwrap();
            let step = position(&plan, "confine.capabilities").unwrap();
            plan.steps[step].action.clone()
        };
        assert_eq!(capabilities(&facts), Action::DropCapabilities);
        facts.uid = 0;
        assert_eq!(capabilities(&facts), Action::KeepMapping);
    }
}
