//! The plan as JSON. These types are the contract with programs and change
//! only by a new version; they are converted by hand from the plan.

use serde::Serialize;

use crate::digest::digest;
use crate::path::printable;
use crate::plan::{Access, Action, Form, Grant, GuestKernel, Hold, Limits, Mask, Plan, Rule, Step};

use super::guarded::GuardV1;
use super::network::NetworkV1;
use super::rules_in_force;

/// A plan, version 1. Paths and arguments are text in which bytes that are
/// not printable UTF-8 appear as escapes.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainV1 {
    pub version: u32,
    /// 64 hexadecimal digits.
    pub digest: String,
    /// `process`, `container`, `gvisor` or `microvm`.
    pub wall: &'static str,
    /// What stands for the system; `null` is the host's directories.
    pub image: Option<ImageV1>,
    /// `namespaces` or `landlock-only`.
    pub form: &'static str,
    pub command: CommandV1,
    pub workspace: String,
    pub workspace_mode: WorkspaceModeV1,
    pub grants: Vec<GrantV1>,
    pub masks: Vec<MaskV1>,
    pub guard: GuardV1,
    /// What is kept between the runs of this workspace; `null` is nothing.
    pub caches: Option<CachesV1>,
    /// Names only: a value may be a secret.
    pub environment: Vec<String>,
    /// Hosts that may be reached; empty denies all.
    pub network_allow: Vec<String>,
    /// The way out in full; absent where nothing is opened.
    pub network: Option<NetworkV1>,
    pub nested_sandbox: bool,
    /// The installed OCI runtime that makes the container; `null` without one.
    pub runtime: Option<KernelV1>,
    /// The kernel of the command's own; `null` where it runs on the host's.
    pub kernel: Option<KernelV1>,
    pub limits: LimitsV1,
    pub system_calls: Vec<SystemCallV1>,
    pub steps: Vec<StepV1>,
    pub guarantees: Vec<GuaranteeV1>,
    pub notes: Vec<String>,
}

/// A kernel of the command's own, or an OCI runtime.
#[derive(Clone, Debug, Serialize)]
pub struct KernelV1 {
    /// `gvisor`, or `linux` in a virtual machine; `runc` or `crun`.
    pub name: &'static str,
    pub version: String,
    /// The program that starts it.
    pub program: String,
    /// SHA-256 of the saved state from which a machine goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved: Option<String>,
    /// What executes a machine's instructions: `kvm` or `tcg`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<&'static str>,
}

/// An image that was imported.
#[derive(Clone, Debug, Serialize)]
pub struct ImageV1 {
    pub name: String,
    /// `sha256:` and the digest of its configuration.
    pub id: String,
    pub rule: RuleV1,
}

/// How writes reach the workspace.
#[derive(Clone, Debug, Serialize)]
pub struct WorkspaceModeV1 {
    /// `live`, `review` or `discard`.
    pub mode: &'static str,
    pub rule: RuleV1,
}

#[derive(Clone, Debug, Serialize)]
pub struct CommandV1 {
    pub argv: Vec<String>,
    pub directory: String,
    pub uid: u32,
    pub gid: u32,
    /// Three octal digits.
    pub umask: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct RuleV1 {
    pub id: String,
    pub origin: String,
    pub reason: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct GrantV1 {
    pub path: String,
    /// `read` or `write`; to write includes to read.
    pub access: &'static str,
    pub private: bool,
    pub rule: RuleV1,
}

/// Caches that are kept; `source` is their place on the host.
#[derive(Clone, Debug, Serialize)]
pub struct CachesV1 {
    pub names: Vec<String>,
    pub source: String,
    pub path: String,
    pub bytes_max: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct MaskV1 {
    pub path: String,
    pub directory: bool,
    /// What git's index holds stands there, read-only, instead of nothing.
    pub committed: bool,
    pub rule: RuleV1,
}

/// Bytes, counts, seconds and milliseconds as the names say; `null` is no
/// limit.
#[derive(Clone, Debug, Serialize)]
pub struct LimitsV1 {
    pub exact: bool,
    pub memory_bytes: Option<u64>,
    pub processes: Option<u64>,
    pub cpu_percent: Option<u32>,
    pub cpu_seconds: Option<u64>,
    pub wall_time_ms: Option<u64>,
    pub open_files: Option<u64>,
    pub file_bytes: Option<u64>,
    pub disk_bytes: u64,
    pub disk_inodes: u64,
    pub store_bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct SystemCallV1 {
    pub action: String,
    pub name: String,
    pub condition: Option<String>,
    pub reason: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct StepV1 {
    pub name: String,
    pub holds: Vec<&'static str>,
    /// The profile of the wall `seatbelt`, in its one step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct GuaranteeV1 {
    pub id: &'static str,
    pub promise: &'static str,
    /// `held`, `partial` or `not-held`.
    pub status: &'static str,
    pub by: Option<String>,
    pub lost: Option<String>,
    pub because: Option<String>,
    /// Indexes of the steps that must show evidence.
    pub steps: Vec<usize>,
}

/// The plan as a value that serialises.
pub fn json(plan: &Plan) -> ExplainV1 {
    ExplainV1 {
        version: 1,
        digest: digest(plan).to_string(),
        wall: plan.wall.word(),
        image: plan.image.as_ref().map(|image| ImageV1 {
            name: image.name.clone(),
            id: image.id.clone(),
            rule: rule(&image.rule),
        }),
        form: match plan.form {
            Form::Namespaces => "namespaces",
            Form::LandlockOnly => "landlock-only",
            Form::Seatbelt => "seatbelt",
        },
        command: CommandV1 {
            argv: plan
                .command
                .argv
                .iter()
                .map(|word| printable(word))
                .collect(),
            directory: plan.command.directory.to_string(),
            uid: plan.uid,
            gid: plan.gid,
            umask: format!("{:03o}", plan.umask),
        },
        workspace: plan.workspace.to_string(),
        workspace_mode: WorkspaceModeV1 {
            mode: plan.workspace_mode.0.word(),
            rule: rule(&plan.workspace_mode.1),
        },
        grants: plan.grants.iter().map(grant).collect(),
        masks: plan.masks.iter().map(mask).collect(),
        guard: super::guarded::json(plan),
        caches: plan.caches.as_ref().map(|caches| CachesV1 {
            names: caches
                .list
                .iter()
                .map(|(cache, _)| cache.name().to_owned())
                .collect(),
            source: caches.source.to_string(),
            path: caches.path.to_string(),
            bytes_max: caches.bytes_max,
        }),
        environment: plan
            .command
            .environment
            .iter()
            .map(|(name, _)| printable(name))
            .collect(),
        network_allow: network_allow(plan),
        network: plan.network.as_ref().map(super::network::json),
        nested_sandbox: plan.nested_sandbox,
        runtime: runtime(plan),
        kernel: kernel(plan),
        limits: limits(&plan.limits),
        system_calls: match plan.form {
            Form::Seatbelt => Vec::new(),
            _ => rules_in_force(plan).map(system_call).collect(),
        },
        steps: plan.steps.iter().map(step).collect(),
        guarantees: plan.guarantees.iter().map(guarantee).collect(),
        notes: plan.notes.clone(),
    }
}

/// The OCI runtime that makes the container.
fn runtime(plan: &Plan) -> Option<KernelV1> {
    match &plan.guest.as_ref()?.kernel {
        GuestKernel::Hosts(runtime) => Some(KernelV1 {
            name: runtime.kind.word(),
            version: runtime.version.clone(),
            program: runtime.program.to_string(),
            saved: None,
            accelerator: None,
        }),
        GuestKernel::Gvisor(_) | GuestKernel::Machine(_) => None,
    }
}

/// The kernel of the command's own.
fn kernel(plan: &Plan) -> Option<KernelV1> {
    match &plan.guest.as_ref()?.kernel {
        GuestKernel::Hosts(_) => None,
        GuestKernel::Gvisor(runsc) => Some(KernelV1 {
            name: "gvisor",
            version: runsc.version.clone(),
            program: runsc.program.to_string(),
            saved: None,
            accelerator: None,
        }),
        GuestKernel::Machine(machine) => Some(KernelV1 {
            name: "linux",
            version: machine.release.clone(),
            program: machine.program.to_string(),
            saved: machine.saved.clone(),
            accelerator: Some(machine.accelerator.word()),
        }),
    }
}

/// What the granting layers name, as patterns.
fn network_allow(plan: &Plan) -> Vec<String> {
    let granted = plan.network.iter().flat_map(|network| network.sets.first());
    granted
        .flat_map(|set| &set.rules)
        .map(|rule| rule.target.to_string())
        .collect()
}

pub(super) fn rule(rule: &Rule) -> RuleV1 {
    let Rule { id, origin, reason } = rule.clone();
    RuleV1 { id, origin, reason }
}

fn grant(grant: &Grant) -> GrantV1 {
    GrantV1 {
        path: grant.path.to_string(),
        access: match grant.access {
            Access::Read => "read",
            Access::Write => "write",
        },
        private: grant.private,
        rule: rule(&grant.rule),
    }
}

fn mask(mask: &Mask) -> MaskV1 {
    MaskV1 {
        path: mask.path.to_string(),
        directory: mask.directory,
        committed: mask.committed,
        rule: rule(&mask.rule),
    }
}

fn limits(limits: &Limits) -> LimitsV1 {
    let Limits {
        memory_bytes,
        processes,
        cpu_percent,
        cpu_seconds,
        wall_time_ms,
        open_files,
        file_bytes,
        disk_bytes,
        disk_inodes,
        store_bytes,
        exact,
    } = limits.clone();
    LimitsV1 {
        exact,
        memory_bytes,
        processes,
        cpu_percent,
        cpu_seconds,
        wall_time_ms,
        open_files,
        file_bytes,
        disk_bytes,
        disk_inodes,
        store_bytes,
    }
}

fn system_call(rule: crate::seccomp::RuleLine) -> SystemCallV1 {
    SystemCallV1 {
        action: rule.action.to_string(),
        name: rule.name,
        condition: (!rule.condition.is_empty()).then_some(rule.condition),
        reason: rule.reason,
    }
}

fn step(step: &Step) -> StepV1 {
    StepV1 {
        name: step.name.clone(),
        holds: step.holds.iter().map(|guarantee| guarantee.id()).collect(),
        profile: match &step.action {
            Action::Seatbelt { profile } => Some(profile.clone()),
            _ => None,
        },
    }
}

fn guarantee((guarantee, hold): &(crate::guarantee::Guarantee, Hold)) -> GuaranteeV1 {
    let (status, by, lost, because, steps) = match hold.clone() {
        Hold::Held { by, steps } => ("held", Some(by), None, None, steps),
        Hold::Partial { by, lost, steps } => ("partial", Some(by), Some(lost), None, steps),
        Hold::NotHeld { because } => ("not-held", None, None, Some(because), Vec::new()),
    };
    GuaranteeV1 {
        id: guarantee.id(),
        promise: guarantee.promise(),
        status,
        by,
        lost,
        because,
        steps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::fixtures::{compiled, facts, policy};

    #[test]
    fn no_value_of_the_environment_is_shown() {
        let mut policy = policy();
        let rule = crate::compile::fixtures::rule("environment.set");
        policy
            .environment_set
            .push(("API_KEY".to_owned(), "hunter2".to_owned(), rule));
        let plan = compiled(&policy, &facts()).unwrap();
        let text = serde_json::to_string(&json(&plan)).unwrap();
        assert!(text.contains("API_KEY") && !text.contains("hunter2"));
        let page = crate::explain::text(
            &plan,
            crate::explain::Style::Ansi,
            crate::explain::Detail::Verbose,
        );
        assert!(page.contains("API_KEY") && !page.contains("hunter2"));
    }

    #[test]
    fn the_keys_are_the_contract() {
        let plan = compiled(&policy(), &facts()).unwrap();
        let value = serde_json::to_value(json(&plan)).unwrap();
        let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert_eq!(value["version"], 1);
        assert_eq!(
            keys,
            [
                "caches",
                "command",
                "digest",
                "environment",
                "form",
                "grants",
                "guarantees",
                "guard",
                "image",
                "kernel",
                "limits",
                "masks",
                "nested_sandbox",
                "network",
                "network_allow",
                "notes",
                "runtime",
                "steps",
                "system_calls",
                "version",
                "wall",
                "workspace",
                "workspace_mode",
            ]
        );
    }
}
