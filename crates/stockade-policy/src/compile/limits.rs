//! Turns demanded limits into numbers for this machine, and writes the files
//! from which programs read how much of the machine they have.

use std::fmt::Write as _;

use crate::facts::{ControlGroups, Facts};
use crate::guarantee::Guarantee;
use crate::plan::{Limits, Resource, ResourceLimit};
use crate::policy::limit_defaults::{
    DISK_BYTES, MEMORY_PERCENT, OPEN_FILES, PROCESSES, STORE_BYTES,
};
use crate::policy::{Amount, LimitDemands, Policy};

use super::findings::Findings;

/// One inode for so many bytes of private directories.
const BYTES_PER_INODE: u64 = 4096;
const INODES_MAX: u64 = 1_000_000;

pub(super) fn resolve(policy: &Policy, facts: &Facts, findings: &mut Findings) -> Limits {
    let demands = &policy.limits;
    let (disk_bytes, disk_inodes) = disk(demands, facts, findings);
    let limits = Limits {
        memory_bytes: Some(memory(demands, facts, findings)),
        processes: Some(
            demands
                .processes
                .as_ref()
                .map_or(PROCESSES, |(count, _)| *count),
        ),
        cpu_percent: demands.cpu_percent.as_ref().map(|(percent, _)| *percent),
        cpu_seconds: demands.cpu_seconds.as_ref().map(|(seconds, _)| *seconds),
        wall_time_ms: demands.wall_time_ms.as_ref().map(|(time, _)| *time),
        open_files: Some(open_files(demands, facts, findings)),
        file_bytes: demands.file_bytes.as_ref().map(|(bytes, _)| *bytes),
        disk_bytes,
        disk_inodes,
        store_bytes: demands
            .store_bytes
            .as_ref()
            .map_or(STORE_BYTES, |(bytes, _)| *bytes),
        exact: missing_controllers(facts, demands.cpu_percent.is_some()).is_empty(),
    };
    check_exact(policy, facts, &limits, findings);
    limits
}

/// Whether a control group can hold any of the limits.
pub(super) fn has_control_group(facts: &Facts) -> bool {
    CONTROLLERS
        .iter()
        .any(|controller| has_controller(facts, controller))
}

/// The limits that setrlimit(2) takes.
pub(super) fn resource_limits(facts: &Facts, limits: &Limits) -> Vec<ResourceLimit> {
    let equal = |resource, limit| ResourceLimit {
        resource,
        soft: limit,
        hard: limit,
    };
    let mut list = vec![equal(Resource::Core, 0)];
    // Without a control group the watchdog holds the memory limit and names
    // it. The kernel's own limit is for one process only and refuses an
    // allocation without a trace, so it stands where no program could go on
    // anyway: at the memory of the machine.
    let data = (limits.memory_bytes.is_some() && !has_controller(facts, "memory"))
        .then_some(facts.memory_total_bytes);
    // The kernel sends SIGXCPU, which says what happened, only below the hard
    // limit (setrlimit(2)).
    list.extend(limits.cpu_seconds.map(|seconds| ResourceLimit {
        resource: Resource::Cpu,
        soft: seconds,
        hard: seconds.saturating_add(1),
    }));
    list.extend(data.map(|bytes| equal(Resource::Data, bytes)));
    list.extend(
        limits
            .file_bytes
            .map(|bytes| equal(Resource::FileSize, bytes)),
    );
    list.extend(
        limits
            .open_files
            .map(|files| equal(Resource::OpenFiles, files)),
    );
    list.extend(
        limits
            .processes
            .map(|count| equal(Resource::Processes, count)),
    );
    list
}

/// The limits of what a kernel of the command's own consists of. Those of the
/// command are that kernel's to hold: here they would stop the kernel itself.
pub(super) fn around_guest(limits: &Limits) -> Vec<ResourceLimit> {
    let equal = |resource, limit| ResourceLimit {
        resource,
        soft: limit,
        hard: limit,
    };
    let processes = limits.processes_around_guest();
    let processes = processes.map(|count| equal(Resource::Processes, count));
    std::iter::once(equal(Resource::Core, 0))
        .chain(processes)
        .collect()
}

/// The processors that a run may use: the first ones that the caller has,
/// rounded up to whole ones.
pub(super) fn processors<'a>(facts: &'a Facts, limits: &Limits) -> &'a [u32] {
    let available = &facts.processors[..];
    let Some(percent) = limits.cpu_percent else {
        return available;
    };
    let wanted = usize::try_from(percent.div_ceil(100))
        .unwrap_or(usize::MAX)
        .max(1);
    &available[..wanted.min(available.len())]
}

/// Content of the files below /sys/devices/system/cpu: ranges of ids.
pub(super) fn processor_file(processors: &[u32]) -> Vec<u8> {
    let mut sorted = processors.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut text = String::new();
    for range in sorted.chunk_by(|left, right| left + 1 == *right) {
        let separator = if text.is_empty() { "" } else { "," };
        let (first, last) = (range[0], range[range.len() - 1]);
        let written = match first == last {
            true => write!(text, "{separator}{first}"),
            false => write!(text, "{separator}{first}-{last}"),
        };
        written.expect("writing to a string cannot fail");
    }
    text.push('\n');
    text.into_bytes()
}

/// Content of /proc/meminfo (proc_meminfo(5)) for a machine with this much
/// memory, all of it free, and no swap.
pub(super) fn memory_file(bytes: u64) -> Vec<u8> {
    let total = bytes / 1024;
    let mut text = String::with_capacity(MEMORY_FIELDS.len() * 28);
    for (name, value) in MEMORY_FIELDS {
        let kib = match value {
            Field::Total => total,
            Field::Half => total / 2,
            Field::Zero => 0,
            Field::Fixed(kib) => kib,
        };
        let label = format!("{name}:");
        writeln!(text, "{label:<16}{kib:>8} kB").expect("writing to a string cannot fail");
    }
    text.into_bytes()
}

const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

enum Field {
    Total,
    Half,
    Zero,
    Fixed(u64),
}

const MEMORY_FIELDS: [(&str, Field); 32] = [
    ("MemTotal", Field::Total),
    ("MemFree", Field::Total),
    ("MemAvailable", Field::Total),
    ("Buffers", Field::Zero),
    ("Cached", Field::Zero),
    ("SwapCached", Field::Zero),
    ("Active", Field::Zero),
    ("Inactive", Field::Zero),
    ("Active(anon)", Field::Zero),
    ("Inactive(anon)", Field::Zero),
    ("Active(file)", Field::Zero),
    ("Inactive(file)", Field::Zero),
    ("Unevictable", Field::Zero),
    ("Mlocked", Field::Zero),
    ("SwapTotal", Field::Zero),
    ("SwapFree", Field::Zero),
    ("Dirty", Field::Zero),
    ("Writeback", Field::Zero),
    ("AnonPages", Field::Zero),
    ("Mapped", Field::Zero),
    ("Shmem", Field::Zero),
    ("KReclaimable", Field::Zero),
    ("Slab", Field::Zero),
    ("SReclaimable", Field::Zero),
    ("SUnreclaim", Field::Zero),
    ("KernelStack", Field::Zero),
    ("PageTables", Field::Zero),
    ("CommitLimit", Field::Half),
    ("Committed_AS", Field::Zero),
    ("VmallocTotal", Field::Fixed(34_359_738_367)),
    ("VmallocUsed", Field::Zero),
    ("Hugepagesize", Field::Fixed(2048)),
];

fn memory(demands: &LimitDemands, facts: &Facts, findings: &mut Findings) -> u64 {
    let machine = facts.memory_total_bytes;
    let share = |percent: u8| {
        let percent = u64::from(percent);
        machine / 100 * percent + machine % 100 * percent / 100
    };
    let Some((amount, rule)) = &demands.memory else {
        return share(MEMORY_PERCENT);
    };
    let wanted = match *amount {
        Amount::PercentOfMachine(percent) => share(percent),
        Amount::Bytes(bytes) => bytes,
        Amount::Least { bytes, percent } => bytes.min(share(percent)),
    };
    if wanted > machine {
        findings.note(format!(
            "{} ({}) is more than this machine's {}; the machine is the limit",
            rule.id,
            rule.origin,
            bytes_text(machine)
        ));
    }
    wanted.min(machine)
}

fn open_files(demands: &LimitDemands, facts: &Facts, findings: &mut Findings) -> u64 {
    let Some((files, rule)) = &demands.open_files else {
        return OPEN_FILES.min(facts.open_files_max);
    };
    if *files > facts.open_files_max {
        findings.refuse(
            Guarantee::PR7,
            format!(
                "{} ({}) asks for {files} open files, but the hard limit here is {}",
                rule.id, rule.origin, facts.open_files_max
            ),
            "lower it, or raise the hard limit (`ulimit -Hn`)",
        );
    }
    *files
}

fn disk(demands: &LimitDemands, facts: &Facts, findings: &mut Findings) -> (u64, u64) {
    let machine = facts.memory_total_bytes;
    let bytes = match &demands.disk_bytes {
        None => DISK_BYTES.min(machine / 2),
        Some((bytes, rule)) => {
            if *bytes > machine {
                findings.refuse(
                    Guarantee::FS6,
                    format!(
                        "{} ({}) is more than this machine's memory of {}, where private \
                         directories live",
                        rule.id,
                        rule.origin,
                        bytes_text(machine)
                    ),
                    "lower limits.disk",
                );
            }
            *bytes
        }
    };
    (bytes, (bytes / BYTES_PER_INODE).clamp(1, INODES_MAX))
}

fn check_exact(policy: &Policy, facts: &Facts, limits: &Limits, findings: &mut Findings) {
    if limits.exact {
        return;
    }
    let (reason, remedy) = why_not_exact(facts, limits.cpu_percent.is_some());
    match &policy.limits.exact {
        Some(rule) => findings.refuse(
            Guarantee::PR7,
            format!(
                "{} ({}) demands exact limits: {reason}",
                rule.id, rule.origin
            ),
            format!("{remedy}; or remove limits.exact"),
        ),
        None => findings.lose(
            Guarantee::PR7,
            format!(
                "limits are best effort, and of shared memory the growth on the whole machine \
                 counts: {reason}"
            ),
        ),
    }
}

/// Why limits are only sampled here, and what would change that.
fn why_not_exact(facts: &Facts, cpu_limited: bool) -> (String, String) {
    if let ControlGroups::None { reason, remedy } = &facts.control_groups {
        return (reason.clone(), remedy.clone());
    }
    (
        format!(
            "the control group lacks the controllers {}",
            missing_controllers(facts, cpu_limited).join(", ")
        ),
        "delegate them to this user".to_owned(),
    )
}

fn missing_controllers(facts: &Facts, cpu_limited: bool) -> Vec<&'static str> {
    let needed = CONTROLLERS
        .into_iter()
        .filter(|controller| *controller != "cpu" || cpu_limited);
    needed
        .filter(|controller| !has_controller(facts, controller))
        .collect()
}

fn has_controller(facts: &Facts, wanted: &str) -> bool {
    match &facts.control_groups {
        ControlGroups::V2 { controllers, .. } => {
            controllers.iter().any(|controller| controller == wanted)
        }
        ControlGroups::V1 { directories } => directories.contains_key(wanted),
        ControlGroups::None { .. } => false,
    }
}

/// Bytes in the largest binary unit that keeps them at or above one, rounded
/// down to a tenth.
pub(crate) fn bytes_text(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (1..units.len())
        .rev()
        .find(|unit| bytes >= 1 << (10 * unit))
        .unwrap_or(0);
    let size = 1_u64 << (10 * unit);
    match bytes % size * 10 / size {
        0 => format!("{} {}", bytes / size, units[unit]),
        tenth => format!("{}.{tenth} {}", bytes / size, units[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_written_as_ranges() {
        assert_eq!(processor_file(&[0, 1, 2, 3]), b"0-3\n");
        assert_eq!(processor_file(&[5, 0, 2, 1]), b"0-2,5\n");
        assert_eq!(processor_file(&[7]), b"7\n");
        assert_eq!(processor_file(&[]), b"\n");
    }

    #[test]
    fn meminfo_has_the_kernels_columns() {
        let text = String::from_utf8(memory_file(2 << 30)).unwrap();
        assert!(text.starts_with("MemTotal:        2097152 kB\nMemFree:         2097152 kB\n"));
        assert!(text.contains("\nSwapTotal:             0 kB\n"));
    }

    #[test]
    fn bytes_are_readable() {
        assert_eq!(bytes_text(0), "0 B");
        assert_eq!(bytes_text(1536), "1.5 KiB");
        assert_eq!(bytes_text(4 << 30), "4 GiB");
    }
}
