//! How a run ended, as a value: for the exit code, the report and the log.

use std::time::Duration;

use serde::Serialize;
use stockade_policy::digest::Digest;
use stockade_policy::plan::{Hold, Plan};
use stockade_walls::process::Evidence;

/// The wall-time limit ended the run.
pub const EXIT_TIME_LIMIT: i32 = 124;
/// Stockade refused or failed, and nothing ran.
pub const EXIT_REFUSED: i32 = 125;
/// The command was found and could not be executed.
pub const EXIT_NOT_EXECUTABLE: i32 = 126;
/// The command was not found.
pub const EXIT_NOT_FOUND: i32 = 127;
/// Added to the number of the signal that ended the command.
pub const EXIT_SIGNAL_BASE: i32 = 128;

/// How the command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    Killed {
        signal: i32,
        core: bool,
    },
    /// execve(2) failed with this error; nothing ran.
    NotExecuted {
        errno: i32,
    },
    /// A limit ended the run.
    Limit(LimitHit),
    /// The launcher was killed from outside; how the command ended is unknown.
    Lost,
}

/// A limit that was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitHit {
    Memory,
    Processes,
    Disk,
    CpuTime,
    WallTime,
    FileSize,
}

impl LimitHit {
    /// Key of the policy.
    pub fn key(self) -> &'static str {
        match self {
            Self::Memory => "limits.memory",
            Self::Processes => "limits.processes",
            Self::Disk => "limits.disk",
            Self::CpuTime => "limits.cpu_time",
            Self::WallTime => "limits.wall_time",
            Self::FileSize => "limits.file_size",
        }
    }
}

/// A run that was started.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub run: String,
    pub digest: Digest,
    pub end: End,
    pub limits_hit: Vec<LimitHit>,
    pub duration: Duration,
    pub cpu: Duration,
    pub peak_memory_bytes: u64,
    pub evidence: Vec<Evidence>,
}

impl Outcome {
    /// The exit code of the whole, as documented in the module's constants.
    pub fn exit_code(&self) -> i32 {
        match self.end {
            End::Exited(code) => code,
            End::Killed { signal, .. } => EXIT_SIGNAL_BASE + signal,
            End::NotExecuted { errno } if is_not_found(errno) => EXIT_NOT_FOUND,
            End::NotExecuted { .. } => EXIT_NOT_EXECUTABLE,
            End::Limit(LimitHit::WallTime) => EXIT_TIME_LIMIT,
            // What the kernel does when memory runs out.
            End::Limit(_) | End::Lost => EXIT_SIGNAL_BASE + stockade_sys::signal::KILL,
        }
    }

    /// The machine-readable form.
    pub fn report(&self, plan: &Plan) -> ReportV1 {
        let (outcome, code, signal) = match self.end {
            End::Exited(code) => ("exited", Some(code), None),
            End::Killed { signal, .. } => ("killed", None, Some(signal)),
            End::NotExecuted { .. } => ("not_executed", None, None),
            End::Limit(_) => ("limit", None, None),
            End::Lost => ("lost", None, None),
        };
        ReportV1 {
            version: 1,
            run: self.run.clone(),
            outcome,
            exit_code: self.exit_code(),
            code,
            signal,
            core_dumped: matches!(self.end, End::Killed { core: true, .. }),
            limit: match self.end {
                End::Limit(limit) => Some(limit),
                _ => self.limits_hit.first().copied(),
            },
            limits_hit: self.limits_hit.clone(),
            plan_digest: self.digest.to_string(),
            duration_ms: self.duration.as_millis() as u64,
            cpu_ms: self.cpu.as_millis() as u64,
            peak_memory_bytes: self.peak_memory_bytes,
            guarantees: guarantees(plan, &self.evidence),
            notes: plan.notes.clone(),
        }
    }
}

fn is_not_found(errno: i32) -> bool {
    use stockade_sys::rustix::io::Errno;
    [Errno::NOENT, Errno::NOTDIR]
        .iter()
        .any(|error| error.raw_os_error() == errno)
}

fn guarantees(plan: &Plan, evidence: &[Evidence]) -> Vec<GuaranteeV1> {
    plan.guarantees
        .iter()
        .map(|(guarantee, hold)| {
            let (state, by, lost, steps) = match hold {
                Hold::Held { by, steps } => ("held", Some(by.clone()), None, steps.as_slice()),
                Hold::Partial { by, lost, steps } => (
                    "partial",
                    Some(by.clone()),
                    Some(lost.clone()),
                    steps.as_slice(),
                ),
                Hold::NotHeld { because } => ("not_held", None, Some(because.clone()), &[][..]),
            };
            GuaranteeV1 {
                id: guarantee.id(),
                state,
                by,
                lost,
                evidence: evidence
                    .iter()
                    .filter(|item| steps.contains(&item.step))
                    .map(|item| EvidenceV1 {
                        step: plan
                            .steps
                            .get(item.step)
                            .map_or("", |step| step.name.as_str())
                            .into(),
                        shows: item.detail.clone(),
                    })
                    .collect(),
            }
        })
        .collect()
}

/// What `--report` writes, version 1.
#[derive(Clone, Debug, Serialize)]
pub struct ReportV1 {
    pub version: u32,
    pub run: String,
    /// `exited`, `killed`, `not_executed`, `limit` or `lost`.
    pub outcome: &'static str,
    /// Exit code of `stockade run` itself.
    pub exit_code: i32,
    /// Exit code of the command, when it exited by itself.
    pub code: Option<i32>,
    /// Signal that ended the command, when one did.
    pub signal: Option<i32>,
    pub core_dumped: bool,
    /// The limit that ended the run or, failing that, the first that was met.
    pub limit: Option<LimitHit>,
    pub limits_hit: Vec<LimitHit>,
    pub plan_digest: String,
    pub duration_ms: u64,
    pub cpu_ms: u64,
    pub peak_memory_bytes: u64,
    pub guarantees: Vec<GuaranteeV1>,
    pub notes: Vec<String>,
}

/// One guarantee in a report.
#[derive(Clone, Debug, Serialize)]
pub struct GuaranteeV1 {
    pub id: &'static str,
    /// `held`, `partial` or `not_held`.
    pub state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<EvidenceV1>,
}

/// What showed that a step took effect.
#[derive(Clone, Debug, Serialize)]
pub struct EvidenceV1 {
    pub step: String,
    pub shows: String,
}
