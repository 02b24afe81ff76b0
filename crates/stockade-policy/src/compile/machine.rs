//! Refuses what this kernel, this caller or this version cannot enforce.

use crate::facts::{Ability, ControlGroups, Facts};
use crate::guarantee::Guarantee;
use crate::plan::{Form, Wall, WorkspaceMode};
use crate::policy::Policy;

use super::findings::Findings;

/// First kernel with `mount_setattr` (mount_setattr(2)), without which a view
/// cannot be made read-only with everything mounted below it.
const KERNEL_MIN: (u32, u32) = (5, 12);

/// Landlock ABI that knows moving files between directories; before it every
/// such rename fails with EXDEV (landlock(7), LANDLOCK_ACCESS_FS_REFER).
const LANDLOCK_ABI_REFER: u32 = 2;

/// Guarantees that rest on user namespaces.
const ON_NAMESPACES: [Guarantee; 6] = [
    Guarantee::FS1,
    Guarantee::FS3,
    Guarantee::PR3,
    Guarantee::PR4,
    Guarantee::PR8,
    Guarantee::NT1,
];

pub(super) fn check(policy: &Policy, facts: &Facts, findings: &mut Findings) {
    if policy.form == Form::Namespaces {
        check_namespaces(facts, findings);
    }
    if policy.form == Form::Seatbelt {
        // What follows asks for what Linux has.
        return;
    }
    check_landlock(policy, facts, findings);
    check_overlay(policy, facts, findings);
    check_container(policy, facts, findings);
    super::guest::check(policy, facts, findings);
    super::image::check(policy, findings);
}

/// The container wall promises what the kernel counts, and not what a watchdog
/// may see too late.
fn check_container(policy: &Policy, facts: &Facts, findings: &mut Findings) {
    if policy.wall.0 < Wall::Container {
        return;
    }
    if policy.form != Form::Namespaces {
        findings.refuse(
            Guarantee::FS1,
            "this form has no namespaces, and a container is made of them",
            "remove process.form = \"landlock-only\"",
        );
    }
    if let ControlGroups::None { reason, remedy } = &facts.control_groups {
        findings.demand(
            Guarantee::PR7,
            format!("its limits must be exact, and there is no control group: {reason}"),
            format!("{remedy}; or add \"PR7\" to weaken, or use wall = \"process\""),
        );
    }
}

/// What is written to the workspace can wait in a layer only where the
/// workspace can be mounted as an overlay.
fn check_overlay(policy: &Policy, facts: &Facts, findings: &mut Findings) {
    let (mode, rule) = &policy.workspace_mode;
    if *mode == WorkspaceMode::Live {
        return;
    }
    let what = format!(
        "the workspace cannot be \"{}\" ({})",
        mode.word(),
        rule.origin
    );
    if policy.form == Form::LandlockOnly {
        findings.refuse(
            Guarantee::FS4,
            format!("{what}: this form of the wall mounts nothing"),
            "use process.form = \"namespaces\", or workspace = \"live\"",
        );
    }
    if let Ability::No { reason, remedy } = &facts.overlay {
        findings.refuse(
            Guarantee::FS4,
            format!("{what}: {reason}"),
            format!("{remedy}; or use workspace = \"live\""),
        );
    }
}

fn check_namespaces(facts: &Facts, findings: &mut Findings) {
    if facts.kernel < KERNEL_MIN {
        let (major, minor) = facts.kernel;
        findings.refuse(
            Guarantee::FS1,
            format!(
                "kernel {major}.{minor} has no mount_setattr, so no read-only view can be built"
            ),
            format!("use kernel {}.{} or newer", KERNEL_MIN.0, KERNEL_MIN.1),
        );
    }
    if let Ability::No { reason, remedy } = &facts.user_namespaces {
        for guarantee in ON_NAMESPACES {
            findings.refuse(
                guarantee,
                format!("user namespaces cannot be made: {reason}"),
                format!("{remedy}; or accept less by name with process.form = \"landlock-only\""),
            );
        }
    }
}

fn check_landlock(policy: &Policy, facts: &Facts, findings: &mut Findings) {
    let remedy = "boot a kernel with Landlock (5.13 or newer, `landlock` in its lsm= list)";
    match (facts.landlock_abi, policy.form) {
        // Nothing of it is used there.
        _ if policy.wall.0 == Wall::Gvisor || policy.oci_runtime().is_some() => {}
        (0, Form::LandlockOnly) => {
            for guarantee in [Guarantee::FS1, Guarantee::FS2] {
                findings.refuse(
                    guarantee,
                    "the kernel has no Landlock and this form rests on it alone",
                    remedy,
                );
            }
        }
        (0, Form::Namespaces) => {
            findings.demand(
                Guarantee::FS2,
                "the kernel has no Landlock, so the mounts are the only check of what is written",
                format!("{remedy}, or add \"FS2\" to weaken"),
            );
            findings.demand(
                Guarantee::PR6,
                "the kernel has no Landlock, so /proc/self/fd can re-open a standard descriptor",
                format!("{remedy}, or add \"PR6\" to weaken"),
            );
        }
        (abi, _) if abi < LANDLOCK_ABI_REFER => findings.note(
            "Landlock of this kernel forbids moving files between directories: \
             builds may fail with EXDEV",
        ),
        _ => {}
    }
}
