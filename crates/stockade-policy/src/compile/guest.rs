//! A kernel of the command's own: whether this machine has one, what the plan
//! says of it, and what is not held where there is one.

use crate::facts::{Facts, Gvisor};
use crate::guarantee::Guarantee::{self, *};
use crate::plan::{Form, Guest, GuestKernel, Wall, WorkspaceMode};
use crate::policy::Policy;

use super::findings::Findings;

/// Refuses where there is no such kernel, and what one would not keep.
pub(super) fn check(policy: &Policy, facts: &Facts, findings: &mut Findings) {
    match (policy.wall.0, &facts.gvisor) {
        (Wall::Seatbelt | Wall::Process | Wall::Container, _) => return,
        (Wall::Gvisor, Gvisor::Found(_)) => {}
        (Wall::Gvisor, Gvisor::Missing { reason, remedy }) => {
            findings.refuse(PR1, reason, remedy);
        }
        (Wall::Microvm, _) => findings.refuse(
            PR1,
            "there is no virtual machine on this machine yet",
            "`stockade vm build`, or use a weaker wall",
        ),
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
    let live = policy.workspace_mode.0 == WorkspaceMode::Live && !policy.write.is_empty();
    if live && policy.form == Form::Namespaces {
        findings.demand(
            FS4,
            "names in a live workspace are made by the file server of the command's own kernel, \
             which asks no guard",
            "use filesystem.workspace = \"review\" or \"discard\", or add \"FS4\" to weaken",
        );
    }
    findings.lose(
        PR7,
        "a process that its own kernel refuses for the number of processes is not told of",
    );
}

/// What the plan says of the kernel.
pub(super) fn in_plan(policy: &Policy, facts: &Facts) -> Option<Guest> {
    let kernel = match (policy.wall.0, &facts.gvisor) {
        (Wall::Gvisor, Gvisor::Found(runsc)) => GuestKernel::Gvisor(runsc.clone()),
        _ => return None,
    };
    Some(Guest {
        kernel,
        host_name: facts.host_name.clone(),
    })
}

/// What holds a guarantee besides what holds it around any process; `None`
/// where that is all.
pub(super) fn mechanism(guarantee: Guarantee) -> Option<&'static str> {
    Some(match guarantee {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::fixtures::{compiled, facts, policy, rule};
    use crate::plan::{Action, Plan};

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
        let mut policy = gvisor();
        policy.wall.0 = Wall::Microvm;
        let refused = compiled(&policy, &facts).unwrap_err();
        assert!(refused.iter().any(|one| one.remedy.contains("vm build")));
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
