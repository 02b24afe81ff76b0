//! The configuration of an OCI bundle (runtime-spec 1.0.2, config.md) for a
//! plan, as pure code.
//!
//! Its root is the launcher's view as it stands, so that everything that the
//! plan's steps put there or took away is in force; the container's first
//! process is the agent. gVisor sees that view as its own root; an OCI runtime
//! has a root of its own, and the view below it.

use serde_json::{Value, json};
use stockade_policy::path::AbsolutePath;
use stockade_policy::plan::{Access, CONTAINER_ROOT, GUEST_DIRECTORY, GuestKernel, Limits, Plan};
use stockade_policy::seccomp::oci::{self, OciRule};
use stockade_policy::seccomp::rules::{Action, NestedSandbox, UNLISTED};

/// Version of the specification.
const VERSION: &str = "1.0.2";

/// The agent's program, where an OCI runtime passes it on.
const AGENT: &str = "/proc/self/fd/4";

/// Where a kernel of its own has its own: no device of the host is there.
const OWN: [&[u8]; 2] = [b"/dev/", b"/proc/"];

/// What the default of OCI runtimes covers in /proc and /sys, and who has keys.
const MASKED: [&str; 10] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/sys/firmware",
];
/// What it makes read-only.
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// The configuration. Text that is no UTF-8 cannot be told in JSON: a variable
/// with such a value is left out.
pub fn config(plan: &Plan, environment: &[(Vec<u8>, Vec<u8>)]) -> Value {
    let host_name = plan.guest.as_ref().map(|guest| guest.host_name.as_str());
    let in_container = is_container(plan);
    let (root, program, mounts) = match in_container {
        true => (CONTAINER_ROOT, AGENT, container_mounts()),
        false => ("/", "stockade-agent", kernel_mounts(plan)),
    };
    let mut config = json!({
        "ociVersion": VERSION,
        "hostname": host_name.unwrap_or_default(),
        "root": { "path": root, "readonly": false },
        "process": {
            "terminal": false,
            // Who starts the runtime, in its own namespace.
            "user": { "uid": 0, "gid": 0, "umask": plan.umask },
            "args": [program, format!("{:04o}", plan.umask)],
            "env": variables(environment),
            "cwd": text(&plan.command.directory),
            "capabilities": {
                "bounding": [], "effective": [], "inheritable": [], "permitted": [], "ambient": [],
            },
            "noNewPrivileges": true,
            "rlimits": resource_limits(&plan.limits),
        },
        "mounts": mounts,
        "linux": {
            "namespaces": [
                { "type": "pid" }, { "type": "mount" }, { "type": "ipc" }, { "type": "uts" },
            ],
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
        },
    });
    if in_container {
        config["linux"]["seccomp"] = system_calls();
    }
    config
}

/// Whether it is for an OCI runtime, on the host's kernel.
fn is_container(plan: &Plan) -> bool {
    let kernel = plan.guest.as_ref().map(|guest| &guest.kernel);
    matches!(kernel, Some(GuestKernel::Hosts(_)))
}

/// The rules of system calls. Without architectures they are for the runtime's
/// own, and calls of every other kill.
fn system_calls() -> Value {
    let action = |action| match action {
        Action::Allow => json!({ "action": "SCMP_ACT_ALLOW" }),
        Action::Errno(error) => json!({ "action": "SCMP_ACT_ERRNO", "errnoRet": error }),
    };
    let rule = |rule: OciRule| {
        let tests = rule.tests.iter().map(|test| {
            json!({
                "index": test.argument, "op": "SCMP_CMP_MASKED_EQ",
                "value": test.mask, "valueTwo": test.value,
            })
        });
        let mut value = action(rule.action);
        value["names"] = json!(rule.names);
        value["args"] = tests.collect();
        value
    };
    let Action::Errno(unlisted) = UNLISTED else {
        unreachable!("what is not listed is refused")
    };
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": unlisted,
        "syscalls": oci::rules(NestedSandbox::Denied).into_iter().map(rule).collect::<Vec<_>>(),
    })
}

/// What a container has besides the view: the process table of its own pid
/// namespace. A runtime leaves /dev alone where the bundle mounts one.
fn container_mounts() -> Vec<Value> {
    let devices = format!("{CONTAINER_ROOT}/dev");
    vec![
        json!({
            "destination": "/dev", "type": "bind", "source": devices, "options": ["rbind"],
        }),
        json!({
            "destination": "/proc", "type": "proc", "source": "proc",
            "options": ["nosuid", "nodev", "noexec", "ro"],
        }),
    ]
}

fn text(path: &AbsolutePath) -> String {
    String::from_utf8_lossy(path.as_bytes()).into_owned()
}

fn variables(environment: &[(Vec<u8>, Vec<u8>)]) -> Vec<String> {
    environment
        .iter()
        .filter_map(|(name, value)| {
            let name = std::str::from_utf8(name).ok()?;
            let value = std::str::from_utf8(value).ok()?;
            Some(format!("{name}={value}"))
        })
        .collect()
}

/// What a kernel of its own has of its own; then the parts of the host that can
/// be written, each again at its own place, because such mounts are the ones
/// for which a runtime looks whether somebody outside changed something.
fn kernel_mounts(plan: &Plan) -> Vec<Value> {
    let mount = |to: &str, kind: &str, options: &[&str]| json!({ "destination": to, "type": kind, "source": kind, "options": options });
    let bind = |path: &str| {
        json!({
            "destination": path, "type": "bind", "source": path, "options": ["rbind", "rw"],
        })
    };
    let mut mounts = vec![
        mount("/proc", "proc", &["nosuid", "nodev", "noexec"]),
        mount("/dev", "tmpfs", &["nosuid", "mode=755", "size=65536k"]),
        mount("/dev/pts", "devpts", &["nosuid", "noexec", "newinstance"]),
        // The private ones, with the budget of all private directories: gVisor
        // would put a file system of its own over an empty /tmp.
        bind("/dev/shm"),
        bind("/tmp"),
        // Nothing of what starts the kernel is there for whom it runs.
        mount(GUEST_DIRECTORY, "tmpfs", &["ro", "mode=755", "size=4k"]),
    ];
    let written = plan
        .grants
        .iter()
        .filter(|grant| !grant.private && grant.access == Access::Write)
        .filter(|grant| !OWN.iter().any(|own| grant.path.as_bytes().starts_with(own)));
    mounts.extend(written.map(|grant| bind(&text(&grant.path))));
    mounts
}

/// The limits of each of the command's processes.
fn resource_limits(limits: &Limits) -> Vec<Value> {
    let limit =
        |kind: &str, soft: u64, hard: u64| json!({ "type": kind, "soft": soft, "hard": hard });
    let equal = |kind, value: Option<u64>| value.map(|value| limit(kind, value, value));
    let processor = limits.cpu_seconds;
    std::iter::once(limit("RLIMIT_CORE", 0, 0))
        // The signal that says what happened comes only below the hard limit.
        .chain(processor.map(|soft| limit("RLIMIT_CPU", soft, soft.saturating_add(1))))
        .chain(equal("RLIMIT_FSIZE", limits.file_bytes))
        .chain(equal("RLIMIT_NOFILE", limits.open_files))
        .chain(equal("RLIMIT_NPROC", limits.processes))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            memory_bytes: Some(1 << 30),
            processes: Some(64),
            cpu_percent: None,
            cpu_seconds: Some(5),
            wall_time_ms: None,
            open_files: Some(1024),
            file_bytes: None,
            disk_bytes: 0,
            disk_inodes: 0,
            store_bytes: 0,
            exact: true,
        }
    }

    #[test]
    fn the_limits_of_the_plan_are_those_of_each_process() {
        let found = resource_limits(&limits());
        let kinds: Vec<&str> = found
            .iter()
            .filter_map(|limit| limit["type"].as_str())
            .collect();
        let expected = ["RLIMIT_CORE", "RLIMIT_CPU", "RLIMIT_NOFILE", "RLIMIT_NPROC"];
        assert_eq!(kinds, expected);
        assert_eq!(
            (&found[1]["soft"], &found[1]["hard"]),
            (&json!(5), &json!(6))
        );
        assert_eq!(found[3]["hard"], 64);
    }

    #[test]
    fn variables_are_text() {
        let pair = |name: &[u8], value: &[u8]| (name.to_vec(), value.to_vec());
        let all = [pair(b"A", b"1=2"), pair(b"B", b"\xff"), pair(b"C", b"")];
        assert_eq!(variables(&all), ["A=1=2", "C="]);
    }
}
