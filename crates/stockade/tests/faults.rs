//! Whatever fails before the command starts, the command does not start; and
//! whoever is killed, nothing inside is left.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stockade_testkit::{World, processes_with};

/// Names of the steps of the plan that `stockade run OPTIONS` would apply.
fn steps(world: &World, options: &[&str]) -> Vec<String> {
    let mut command = world.stockade();
    command
        .args(["explain", "--json"])
        .args(options)
        .stdin(Stdio::null());
    let output = command.output().expect("stockade starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a plan is JSON");
    let steps = plan["steps"].as_array().expect("a plan has steps");
    steps
        .iter()
        .map(|step| step["name"].as_str().expect("a name").to_owned())
        .collect()
}

/// Makes each step fail in turn: nothing runs, nothing is left, and the
/// message names the step.
#[track_caller]
fn no_step_may_fail(world: &World, options: &[&str]) {
    let before = listing(world);
    let steps = steps(world, options);
    assert!(steps.len() > 10, "{steps:?}");
    for step in &steps {
        let report = world.outside().join("report.json");
        let mut command = world.stockade();
        command
            .args(["run", "--fail-step", step, "--report"])
            .arg(&report)
            .args(options);
        command.args(["--", "touch", "marker"]).process_group(0);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn().expect("stockade starts");
        let group = child.id();
        let output = child.wait_with_output().expect("stockade ends");
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{step}: {message}");
        assert!(message.contains(step.as_str()), "{step}: {message}");
        assert_eq!(listing(world), before, "{step}");
        let report: serde_json::Value =
            serde_json::from_slice(&fs::read(report).expect("a report")).expect("JSON");
        assert_eq!(report["outcome"], "refused", "{step}");
        assert!(
            within(SURVIVAL_MAX, || group_is_empty(group)),
            "{step}: a process is left"
        );
    }
}

fn listing(world: &World) -> BTreeMap<std::ffi::OsString, u64> {
    let entries = fs::read_dir(&world.project)
        .expect("the project can be listed")
        .flatten();
    entries
        .map(|entry| {
            (
                entry.file_name(),
                entry.metadata().map_or(0, |metadata| metadata.len()),
            )
        })
        .collect()
}

/// What the product promises: nothing inside outlives the front by more.
const SURVIVAL_MAX: Duration = Duration::from_secs(2);
/// For things that take as long as the machine is loaded.
const PATIENCE: Duration = Duration::from_secs(60);

fn within(time: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + time;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether no process but zombies is in this process group (proc_pid_stat(5)).
fn group_is_empty(group: u32) -> bool {
    let pids = fs::read_dir("/proc")
        .expect("/proc can be listed")
        .flatten();
    !pids
        .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok())
        .any(|stat| {
            let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
            let mut fields = fields.split_ascii_whitespace();
            let state = fields.next().unwrap_or("Z");
            let in_group = fields
                .nth(1)
                .is_some_and(|number| number == group.to_string());
            in_group && !matches!(state, "Z" | "X")
        })
}

fn kill(pid: u32) {
    // Only ever a process that this test started.
    let mut command = Command::new("kill");
    let _gone = command
        .args(["-KILL", &pid.to_string()])
        .stderr(Stdio::null())
        .status()
        .is_err();
}

/// Children of a process (proc_pid_task(5)).
fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_ascii_whitespace()
        .filter_map(|number| number.parse().ok())
        .collect()
}

/// Children whose argument list begins with this.
fn children_called(pid: u32, name: &str) -> Vec<u32> {
    let is_called = |child: &u32| {
        fs::read(format!("/proc/{child}/cmdline"))
            .is_ok_and(|text| text.starts_with(name.as_bytes()))
    };
    children(pid).into_iter().filter(is_called).collect()
}

#[test]
fn no_step_may_fail_by_default() {
    no_step_may_fail(&World::new(), &[]);
}

#[test]
fn no_step_may_fail_with_everything_granted() {
    let world = World::new();
    world.write("data/file", "data\n");
    world.write("project/.env", "SECRET=1\n");
    let options = [
        "--read",
        "toolchains",
        "--write",
        "~/data",
        "--hide",
        "**/.env",
    ];
    let limits = [
        "--memory",
        "1GiB",
        "--cpus",
        "1",
        "--wall-time",
        "5m",
        "--disk",
        "64MiB",
    ];
    no_step_may_fail(&world, &[&options[..], &limits].concat());
}

#[test]
fn no_step_may_fail_with_a_nested_sandbox() {
    no_step_may_fail(&World::new(), &["--nested-sandbox"]);
}

#[test]
fn no_step_may_fail_without_namespaces() {
    let world = World::new();
    // Landlock cannot hide a part of /etc again, so nothing of it is granted.
    world.policy(
        "weaken = [\"FS3\"]\n[process]\nform = \"landlock-only\"\n\
         [filesystem]\nread = [\"/usr\"]\n",
    );
    no_step_may_fail(&world, &[]);
}

/// Starts a run that leaves processes everywhere it can and says when it is
/// there; `needle` stands in the command line of each.
fn start(world: &World, needle: &str) -> Child {
    let script = format!(
        "sleep {needle} & setsid sleep {needle} & (setsid sh -c 'trap \"\" TERM HUP INT; \
         sleep {needle}; :' &); : > started; sleep {needle}; touch survived"
    );
    let mut command = world.stockade();
    command
        .args(["run", "--quiet", "--", "sh", "-c", &script])
        .process_group(0);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command.spawn().expect("stockade starts")
}

fn needle(number: u32) -> String {
    format!("{}.{number:03}", 10_000_000 + std::process::id())
}

#[test]
fn nothing_outlives_a_killed_front() {
    let world = World::new();
    let needle = needle(1);
    let mut front = start(&world, &needle);
    assert!(within(PATIENCE, || world.project.join("started").exists()));
    assert!(within(PATIENCE, || processes_with(&format!(
        "sleep {needle}"
    ))
    .len()
        >= 5));
    front.kill().unwrap();
    assert!(
        within(SURVIVAL_MAX, || processes_with(&needle).is_empty()),
        "something is left"
    );
    front.wait().unwrap();
    assert!(!world.project.join("survived").exists());
}

#[test]
fn a_killed_namer_ends_the_run() {
    let world = World::new();
    let needle = needle(3);
    let front = start(&world, &needle);
    assert!(within(PATIENCE, || world.project.join("started").exists()));
    let namers = children_called(front.id(), "stockade-namer");
    assert_eq!(namers.len(), 1, "{namers:?}");
    kill(namers[0]);
    let output = front.wait_with_output().unwrap();
    assert_ne!(output.status.code(), Some(0), "{output:?}");
    assert!(
        within(SURVIVAL_MAX, || processes_with(&needle).is_empty()),
        "something is left"
    );
}

#[test]
fn a_killed_launcher_ends_the_run() {
    let world = World::new();
    let needle = needle(2);
    let front = start(&world, &needle);
    assert!(within(PATIENCE, || world.project.join("started").exists()));
    let launchers = children_called(front.id(), "stockade-init");
    assert_eq!(launchers.len(), 1, "{launchers:?}");
    kill(launchers[0]);
    let output = front.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(137), "{output:?}");
    assert!(
        within(SURVIVAL_MAX, || processes_with(&needle).is_empty()),
        "something is left"
    );
    assert!(!world.project.join("survived").exists());
}

/// Kills the front at many moments of its start.
#[test]
fn nothing_outlives_a_front_that_was_killed_early() {
    for step in 0..24 {
        let world = World::new();
        let needle = needle(100 + step);
        let mut front = start(&world, &needle);
        let group = front.id();
        std::thread::sleep(Duration::from_micros(u64::from(step) * 700));
        front.kill().unwrap();
        front.wait().unwrap();
        let gone = || group_is_empty(group) && processes_with(&needle).is_empty();
        assert!(within(SURVIVAL_MAX, gone), "something is left after {step}");
    }
}

/// Kills the launcher at many moments: either nothing ran, and 125 says so,
/// or the command was killed.
#[test]
fn a_launcher_that_is_killed_early_never_hangs_the_front() {
    for step in 0..24 {
        let world = World::new();
        let needle = needle(200 + step);
        let mut front = start(&world, &needle);
        let pid = front.id();
        let killed = within(PATIENCE, || {
            !children(pid).is_empty() || front.try_wait().is_ok_and(|status| status.is_some())
        });
        assert!(killed);
        std::thread::sleep(Duration::from_micros(u64::from(step) * 500));
        let launchers = children(pid);
        launchers.iter().for_each(|&launcher| kill(launcher));
        let output = front.wait_with_output().unwrap();
        let code = output.status.code();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(
            matches!(code, Some(125 | 137)),
            "{step}: {code:?} {message}"
        );
        if world.project.join("started").exists() {
            assert_eq!(code, Some(137), "{step}: {message}");
        }
        assert!(
            within(SURVIVAL_MAX, || processes_with(&needle).is_empty()),
            "{step}"
        );
    }
}
