//! The wall `seatbelt`: what it refuses because macOS cannot hold it, and what
//! it holds of each guarantee.
//!
//! What a policy demands in so many words and macOS cannot give is refused, by
//! name. What it loses against the other walls whatever the policy says is
//! listed with the guarantee.

use crate::guarantee::Guarantee::{self, *};
use crate::network::NetworkPlan;
use crate::plan::{Form, Hold, Limits, Resource, ResourceLimit, Step, WorkspaceMode};
use crate::policy::Policy;
use crate::seatbelt::{self, Sources};

use super::findings::Findings;
use super::guarantees::{egress_mechanism, evidence, shown_by};
use super::network::Opened;
use super::view::View;

/// What macOS cannot hold: guarantee, what is lost.
const LOST: [(Guarantee, &str); 11] = [
    (
        FS1,
        "what is not granted is refused and not absent: that a path exists can be found out",
    ),
    (
        FS3,
        "a credential is refused and not absent; a hard link to it that was made before the run \
         is another name, for which no rule speaks",
    ),
    (
        FS4,
        "what would be held is refused; a directory moved out of one that the guard skips \
         (node_modules) brings along what it holds",
    ),
    (
        PR2,
        "Seatbelt refuses set-id programs, and nothing else keeps privileges from being gained",
    ),
    (
        PR3,
        "what the user's other processes were started with can be read (KERN_PROCARGS2), and \
         that they exist",
    ),
    (
        PR4,
        "a process that leaves its process group can outlive the run",
    ),
    (
        PR5,
        "descriptors above 255 enter where the caller left them open without close-on-exec",
    ),
    (
        PR6,
        "the standard streams are the caller's own; on a terminal Seatbelt refuses ioctl(2)",
    ),
    (
        PR7,
        "memory has no limit, and processes are counted together with the user's others",
    ),
    (
        EP1,
        "only the temporary directory is this run's own; the home and /tmp are the host's, and \
         are refused",
    ),
    (
        AU2,
        "sandbox-exec applies the profile and starts the command in one, so there is no moment \
         between for evidence: it starts nothing where the profile does not compile",
    ),
];

/// Refuses what is demanded by name and has no counterpart on macOS.
pub(super) fn check(policy: &Policy, findings: &mut Findings) {
    if policy.form != Form::Seatbelt {
        return;
    }
    let another = "use another wall";
    if let (mode @ (WorkspaceMode::Review | WorkspaceMode::Discard), rule) = &policy.workspace_mode
    {
        findings.refuse(
            FS4,
            format!(
                "workspace = \"{}\" ({}) needs a layer over the workspace, and macOS mounts none",
                mode.word(),
                rule.origin
            ),
            "use workspace = \"live\", or another wall",
        );
    }
    if let Some((name, rule)) = &policy.image {
        findings.refuse(
            FS1,
            format!("the image {name} ({}) holds programs of Linux", rule.origin),
            another,
        );
    }
    if let Some(rule) = &policy.nested_sandbox {
        findings.refuse(
            PR1,
            format!(
                "{} ({}): below Seatbelt no other sandbox can be applied",
                rule.id, rule.origin
            ),
            "remove the rule, or use another wall",
        );
    }
    check_limits(policy, findings);
    findings.note(
        "the profile was never seen by a Mac when this version was made; docs/seatbelt.md lists \
         what only a Mac can show",
    );
}

fn check_limits(policy: &Policy, findings: &mut Findings) {
    let limits = &policy.limits;
    let exact = limits.exact.as_ref();
    let demanded = [
        (
            PR7,
            "limits.memory",
            limits.memory.as_ref().map(|(_, rule)| rule),
        ),
        (
            PR7,
            "limits.cpu",
            limits.cpu_percent.as_ref().map(|(_, rule)| rule),
        ),
        (PR7, "limits.exact", exact),
        (
            FS6,
            "limits.disk",
            limits.disk_bytes.as_ref().map(|(_, rule)| rule),
        ),
    ];
    for (guarantee, key, rule) in demanded {
        let Some(rule) = rule else { continue };
        findings.demand(
            guarantee,
            format!(
                "{key} ({}) is nothing that macOS can hold for a group of processes",
                rule.origin
            ),
            format!("remove it, add \"{guarantee}\" to weaken, or use another wall"),
        );
    }
}

/// Refuses what the way out offers elsewhere by namespaces and mounts.
pub(super) fn check_network(plan: &NetworkPlan, findings: &mut Findings) {
    let remedy = "remove the rule, or use another wall";
    for offer in &plan.publish {
        findings.refuse(
            NT1,
            format!(
                "port {} is published: the loopback is the host's own, and a server there would \
                 serve every process of the machine",
                offer.port
            ),
            remedy,
        );
    }
    for offer in &plan.sockets {
        findings.refuse(
            NT1,
            format!(
                "{} is offered: a socket cannot be put at another place",
                offer.path
            ),
            remedy,
        );
    }
    for binding in &plan.credentials {
        findings.refuse(
            CR1,
            format!(
                "the credential {} is attached to inspected requests, and no program would trust \
                 the sandbox's authority without a change to the keychain",
                binding.name
            ),
            remedy,
        );
    }
    if plan.credentials.is_empty() && plan.inspects() {
        findings.refuse(
            NT6,
            "a rule inspects requests, and no program would trust the sandbox's authority \
             without a change to the keychain",
            "allow the host by name alone, or use another wall",
        );
    }
}

/// The profile of a plan with this wall; a path that it cannot name is refused.
pub(super) fn profile(
    policy: &Policy,
    view: &View,
    network: Option<&Opened>,
    findings: &mut Findings,
) -> Option<String> {
    if policy.form != Form::Seatbelt {
        return None;
    }
    let sources = Sources {
        grants: &view.grants,
        masks: &view.masks,
        guard: &policy.guard,
        workspace: &policy.workspace,
        network: network.map(|opened| &opened.plan),
    };
    match seatbelt::profile(sources) {
        Ok(profile) => Some(profile),
        Err(problem) => {
            findings.refuse(FS1, problem.to_string(), "rename it, or remove the rule");
            Some(String::new())
        }
    }
}

/// The limits that setrlimit(2) of macOS takes for one process.
pub(super) fn limits(limits: &Limits) -> Vec<ResourceLimit> {
    let equal = |resource, limit| ResourceLimit {
        resource,
        soft: limit,
        hard: limit,
    };
    let optional = [
        (Resource::Cpu, limits.cpu_seconds),
        (Resource::FileSize, limits.file_bytes),
        (Resource::OpenFiles, limits.open_files),
        (Resource::Processes, limits.processes),
    ];
    let stated = optional
        .into_iter()
        .filter_map(|(resource, limit)| Some(equal(resource, limit?)));
    std::iter::once(equal(Resource::Core, 0))
        .chain(stated)
        .collect()
}

/// How each guarantee fares.
pub(super) fn judge(
    policy: &Policy,
    limits: &Limits,
    network: Option<&NetworkPlan>,
    steps: &[Step],
    findings: &mut Findings,
) -> Vec<(Guarantee, Hold)> {
    for (guarantee, lost) in LOST {
        findings.lose(guarantee, lost);
    }
    let files = match limits.file_bytes {
        Some(_) => "only single files have a limit, not their number or sum",
        None => "writes are limited only by the disk",
    };
    findings.lose(FS6, files);
    let judged = Guarantee::ALL.iter().map(|&guarantee| {
        let steps = evidence(shown_by(guarantee, network), steps);
        let hold = match (
            mechanism(policy, network, guarantee),
            findings.lost(guarantee),
        ) {
            (Err(because), _) => Hold::NotHeld {
                because: because.to_owned(),
            },
            (Ok(by), None) => Hold::Held {
                by: by.to_owned(),
                steps,
            },
            (Ok(by), Some(lost)) => Hold::Partial {
                by: by.to_owned(),
                lost,
                steps,
            },
        };
        (guarantee, hold)
    });
    judged.collect()
}

fn mechanism(
    policy: &Policy,
    network: Option<&NetworkPlan>,
    guarantee: Guarantee,
) -> Result<&'static str, &'static str> {
    Ok(match guarantee {
        FS1 | FS2 => "a profile that permits what is granted and nothing else",
        FS3 => "rules of the profile over every case of a credential's name",
        FS4 if policy.write.is_empty() => "nothing outside can be written",
        FS4 => "the profile refuses to write guarded names, and keeps what is above them in place",
        FS5 => "no mount is permitted; links that a run can make are not followed",
        FS6 => "RLIMIT_FSIZE where a file has a limit",
        PR1 => return Err("macOS lets no program load a filter of system calls"),
        PR2 => "set-id programs and files are refused",
        PR3 => "signals, task ports and process information are for the same sandbox only",
        PR4 => "the process group is killed when the run ends",
        PR5 => "descriptors closed, listed variables only",
        PR6 => "no ioctl(2) and no opening of a terminal is permitted",
        PR7 => "rlimits for each process and a wall-time clock",
        PR8 => "shared memory, semaphores and services of others are refused",
        NT1 if network.is_some() => {
            "the profile permits one port of the loopback, where the egress process wants a token"
        }
        NT1 | NT2 if network.is_none() => "the profile permits no connection",
        NT3 if network.is_some() => "the resolver is refused; the egress process resolves",
        NT2 | NT4 | NT5 | NT6 if network.is_some() => egress_mechanism(guarantee),
        NT1 | NT2 | NT3 | NT4 | NT5 | NT6 => "there is no way out at all",
        CR1 | CR2 | CR3 => return Err("no credential is bound"),
        EP1 => "a temporary directory made for the run and removed with it",
        EP2 => return Err("this wall has no snapshots of processes"),
        AU1 => "hash-chained event log; each decision names its rule",
        AU2 => "the profile is compiled before the command is started",
    })
}
