//! Says of every guarantee whether a plan holds it, by what, and which steps
//! must show evidence.

use crate::caches::Caches;
use crate::facts::Facts;
use crate::guarantee::Guarantee::{self, *};
use crate::network::NetworkPlan;
use crate::plan::{Form, Hold, Limits, Step, WorkspaceMode};
use crate::policy::{GrantTarget, Policy};

use super::findings::Findings;
use super::guarded;
use super::guest;
use super::limits::bytes_text;

pub(super) fn judge(
    policy: &Policy,
    facts: &Facts,
    limits: &Limits,
    network: Option<&NetworkPlan>,
    caches: Option<&Caches>,
    steps: &[Step],
    findings: &mut Findings,
) -> Vec<(Guarantee, Hold)> {
    if policy.form == Form::Seatbelt {
        return super::seatbelt::judge(policy, limits, network, steps, findings);
    }
    lose_by_form(policy, findings);
    lose_by_choice(policy, facts, limits, findings);
    let judged = Guarantee::ALL.iter().map(|&guarantee| {
        let hold = match (
            mechanism(policy, limits, network, caches, steps, guarantee),
            findings.lost(guarantee),
        ) {
            (Err(because), _) => Hold::NotHeld {
                because: because.to_owned(),
            },
            (Ok(by), None) => Hold::Held {
                by,
                steps: evidence(shown_by(guarantee, network), steps),
            },
            (Ok(by), Some(lost)) => Hold::Partial {
                by,
                lost,
                steps: evidence(shown_by(guarantee, network), steps),
            },
        };
        (guarantee, hold)
    });
    judged.collect()
}

/// What the Landlock-only form loses, whatever the policy says.
fn lose_by_form(policy: &Policy, findings: &mut Findings) {
    if policy.form == Form::Namespaces {
        return;
    }
    findings.lose(
        FS1,
        "that a path exists is visible, and so are the processes in /proc",
    );
    findings.lose(
        FS6,
        "there are no private directories; only single files have a limit",
    );
    findings.lose(
        PR3,
        "processes outside can be seen, though not traced or signalled",
    );
    findings.lose(PR4, "a process that leaves its session can outlive the run");
    findings.lose(
        PR8,
        "System V objects and message queues are shared with the user's own",
    );
    findings.lose(EP1, "there is no private /tmp, /dev/shm, /run or home");
    findings.note(
        "this form has no namespaces: no private /tmp, no process table of its own, \
         no loopback, no new terminals",
    );
}

/// What is lost by what the policy says or by what the machine is.
fn lose_by_choice(policy: &Policy, facts: &Facts, limits: &Limits, findings: &mut Findings) {
    let writes = policy
        .write
        .iter()
        .any(|grant| matches!(grant.target, GrantTarget::Path(_)));
    if writes && policy.form == Form::Namespaces {
        findings.lose(FS6, workspace_budget(policy, limits));
    }
    if let Some(rule) = &policy.nested_sandbox {
        findings.lose(
            FS2,
            "Landlock would forbid every mount of a nested sandbox, so the mounts are the only check",
        );
        findings.lose(
            PR6,
            "without Landlock /proc/self/fd can re-open a standard descriptor",
        );
        findings.lose(PR1, "a nested user namespace reaches more of the kernel");
        findings.note(format!(
            "nested sandboxes are allowed by {} ({}): there is no Landlock layer, \
             and /proc/meminfo shows the machine's memory",
            rule.id, rule.origin
        ));
    }
    if facts.uid == 0 && !limits.exact {
        findings.lose(
            PR7,
            "root's processes are not counted without a control group",
        );
    }
    if facts.landlock_abi < LANDLOCK_ABI_SCOPES && policy.form == Form::LandlockOnly {
        findings.lose(PR3, "this kernel's Landlock does not keep signals inside");
    }
}

/// First Landlock ABI that scopes signals and abstract sockets (landlock(7)).
const LANDLOCK_ABI_SCOPES: u32 = 6;

fn workspace_budget(policy: &Policy, limits: &Limits) -> String {
    if policy.workspace_mode.0 != WorkspaceMode::Live {
        return format!(
            "what is written to the workspace is limited only by the disk; a run is refused when \
             its store holds {} already",
            bytes_text(limits.store_bytes)
        );
    }
    match limits.file_bytes {
        Some(bytes) => format!(
            "in the workspace only a single file is limited ({}), not their number or sum",
            bytes_text(bytes)
        ),
        None => "in the workspace writes are limited only by the disk".to_owned(),
    }
}

/// The indexes of the steps on which a guarantee rests. The gate itself waits
/// for every step.
pub(super) fn evidence(guarantee: Guarantee, steps: &[Step]) -> Vec<usize> {
    let rests = |step: &Step| guarantee == AU2 || step.holds.contains(&guarantee);
    steps
        .iter()
        .enumerate()
        .filter(|(_, step)| rests(step))
        .map(|(index, _)| index)
        .collect()
}

/// Where there is no way out, what shows that shows the rest of it too.
pub(super) fn shown_by(guarantee: Guarantee, network: Option<&NetworkPlan>) -> Guarantee {
    match (guarantee, network) {
        (NT3 | NT4 | NT5 | NT6, None) => NT2,
        _ => guarantee,
    }
}

/// What holds a guarantee, or why nothing of this version does.
fn mechanism(
    policy: &Policy,
    limits: &Limits,
    network: Option<&NetworkPlan>,
    caches: Option<&Caches>,
    steps: &[Step],
    guarantee: Guarantee,
) -> Result<String, &'static str> {
    let of_guest = match policy.wall.0.has_own_kernel() {
        true => guest::mechanism(guarantee, policy.wall.0),
        false if policy.oci_runtime().is_some() => guest::runtime_mechanism(guarantee),
        false => None,
    };
    if let Some(by) = of_guest {
        return Ok(by.to_owned());
    }
    let text = match (guarantee, policy.form) {
        (FS4, _) => guarded::mechanism(policy, steps)?,
        (NT1 | NT2 | NT3 | NT4 | NT5 | NT6, _) if network.is_some() => egress_mechanism(guarantee),
        (CR1 | CR2 | CR3, _) if network.is_some_and(|plan| !plan.credentials.is_empty()) => {
            egress_mechanism(guarantee)
        }
        (NT3 | NT4 | NT5 | NT6, _) => "there is no way out at all",
        (CR1 | CR2 | CR3, _) => return Err("no credential is bound"),
        (EP2, _) => {
            return Err(
                "holds for the project (`stockade snapshot`); this wall has no snapshots of processes",
            );
        }
        (FS6, Form::Namespaces) => {
            return Ok(format!(
                "private directories share {} and {} inodes of a tmpfs",
                bytes_text(limits.disk_bytes),
                limits.disk_inodes
            ));
        }
        (PR7, _) => return Ok(limits_mechanism(limits)),
        (EP1, Form::Namespaces) if caches.is_some() => return Ok(kept(caches)),
        (AU1, _) => "hash-chained event log; each decision names its rule",
        (AU2, _) => "the gate waits for evidence of every step, else kills and exits 125",
        (PR2, _) => "no_new_privs, empty capability sets, system call filter",
        (PR5, _) => "descriptors closed, launcher emptied and not dumpable, listed variables only",
        (PR1, _) => "seccomp filter; other ABIs and io_uring are refused",
        (_, Form::Namespaces) => namespaces_mechanism(policy, guarantee),
        (_, Form::LandlockOnly | Form::Seatbelt) => landlock_mechanism(guarantee),
    };
    Ok(text.to_owned())
}

fn namespaces_mechanism(policy: &Policy, guarantee: Guarantee) -> &'static str {
    let second_check = policy.nested_sandbox.is_none();
    match guarantee {
        FS1 => "mount namespace with a new root; what is not granted is not mounted",
        FS2 if second_check => "read-only mounts, and Landlock as a second check",
        FS2 => "read-only mounts",
        FS3 => "credential places are not mounted, left out of what is, or covered",
        FS5 => "no capability and no mount call inside; links that a run can make are not followed",
        PR3 => "pid namespace with its own /proc; supervisor and launcher are not dumpable",
        PR4 => "the pid namespace dies with its first process, which is tied to the supervisor",
        PR6 if second_check => {
            "private streams, Landlock on /proc/self/fd, no TIOCSTI or TIOCLINUX"
        }
        PR6 => "private streams, no TIOCSTI or TIOCLINUX",
        PR8 => "ipc and network namespaces; key rings are refused by the system call filter",
        NT1 => "network namespace with nothing but its own loopback; host sockets are covered",
        NT2 => "there is no way out at all",
        EP1 => "a new root and empty private directories each time, gone with the run",
        _ => "",
    }
}

/// What a run may find of earlier ones, and which.
fn kept(caches: Option<&Caches>) -> String {
    let names = caches.map(Caches::names).unwrap_or_default();
    format!(
        "a new root and empty private directories each time, gone with the run; of earlier runs in \
         this project only caches are kept: {names}"
    )
}

pub(super) fn egress_mechanism(guarantee: Guarantee) -> &'static str {
    match guarantee {
        NT1 => {
            "network namespace whose every address is local; only the egress process outside \
             accepts what arrives there"
        }
        NT2 => "the egress process judges one canonical destination, and dials only what it judged",
        NT3 => "names are answered by the egress process, with addresses of its own",
        NT4 => "every address of a name is judged, and the judged one is dialled",
        NT5 => "the server name, and each request's authority where TLS is inspected, is compared",
        NT6 => "requests and git operations are judged by the egress process, and counted",
        CR1 => "secrets stay in the egress process; responses are scrubbed of them",
        CR2 => "attached to requests that the binding names, after the upstream was verified",
        CR3 => "requests with other credentials are refused on bound hosts",
        _ => "",
    }
}

fn landlock_mechanism(guarantee: Guarantee) -> &'static str {
    match guarantee {
        FS1 | FS2 => "Landlock",
        FS3 => "Landlock; a grant around a credential is refused",
        FS5 => "Landlock forbids every mount; links that a run can make are not followed",
        FS6 => "file size limit where one is set",
        PR3 => "Landlock scopes; supervisor and launcher are not dumpable",
        PR4 => "the process group is killed when the supervisor goes",
        PR6 => "private streams, Landlock on /proc/self/fd, no TIOCSTI or TIOCLINUX",
        PR8 => "Landlock scopes; key rings are refused by the system call filter",
        NT1 | NT2 => "the system call filter refuses every socket that leaves the machine",
        EP1 => "only the granted places are written",
        _ => "",
    }
}

fn limits_mechanism(limits: &Limits) -> String {
    let exact = "control group, rlimits, processor affinity and a wall-time clock";
    let sampled = "rlimits for each process, processor affinity, a wall-time clock and a watchdog";
    let by = if limits.exact { exact } else { sampled };
    by.to_owned()
}
