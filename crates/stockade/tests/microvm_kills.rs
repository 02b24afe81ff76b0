//! Nothing stays of machines: not of runs and supervisors that were killed at any
//! moment, not of one that was being saved, and not of many that came and went.

mod machines;

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use machines::{POLICY, machines_of, nothing_is_left, stockade, with_image};
use serde_json::Value;
use stockade_sys::rustix;
use stockade_testkit::machine::QEMU;
use stockade_testkit::tools::soon;
use stockade_testkit::{World, binary, image, is_root, processes_with};

/// Kills of one run, at moments that spread over its whole life.
fn kills() -> u32 {
    // The machinery is the same for everybody.
    if is_root() { 100 } else { 20 }
}
/// Kills while a machine boots to be saved, which takes seconds.
const SAVINGS: u32 = 4;
/// Machines that come and go.
const MACHINES: u32 = 20;

/// What runs of a world could leave behind.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    mounts: usize,
    machines: usize,
    /// Everything in the state directory.
    files: Vec<String>,
}

impl Traces {
    fn of(world: &World) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let home = world.home.to_str().unwrap();
        Self {
            mounts: mounts.lines().filter(|line| line.contains(home)).count(),
            machines: machines_of(world).len(),
            files: world.kept(),
        }
    }
}

/// Nothing of this world is left to be cleared away, but what belongs to all of
/// the user's worlds.
fn nothing_to_collect(world: &World) {
    stockade(world, &["gc"]).ok();
    let list = stockade(world, &["gc", "--dry-run", "--json"]).ok();
    let list: Value = serde_json::from_str(&list).unwrap();
    let found = list["found"].as_array().unwrap();
    let of_world = found.iter().filter(|one| one["kind"] != "control-group");
    assert_eq!(of_world.collect::<Vec<_>>(), Vec::<&Value>::new());
}

fn quiet(world: &World, arguments: &[&str]) -> Child {
    let mut command = world.stockade();
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}

/// A process and those below it that run the product.
fn of_the_product(process: u32) -> Vec<u32> {
    let program = fs::canonicalize(binary()).unwrap();
    let mut found = vec![process];
    let mut waiting = vec![process];
    while let Some(process) = waiting.pop() {
        let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
        let children = children.unwrap_or_default();
        for child in children.split_ascii_whitespace() {
            let child: u32 = child.parse().unwrap();
            if fs::read_link(format!("/proc/{child}/exe")).is_ok_and(|exe| exe == program) {
                found.push(child);
            }
            waiting.push(child);
        }
    }
    found
}

fn kill(process: u32) {
    // Only ever a process that this test started.
    if let Some(process) = rustix::process::Pid::from_raw(process.cast_signed()) {
        let _gone = rustix::process::kill_process(process, rustix::process::Signal::KILL).is_err();
    }
}

#[test]
fn a_run_in_a_machine_may_be_killed_at_any_moment() {
    let Some(world) = with_image("a_run_in_a_machine_may_be_killed_at_any_moment") else {
        return;
    };
    // All that a machine can have: what carries offers, and, every other time, an
    // image.
    let offers = "[network]\nhost_ports = [7001]\npublish = [\"0:3000\"]\n";
    world.policy(&format!("{POLICY}{offers}"));
    let mark = format!("killed-in-machine-{}", std::process::id());
    let script = format!("sleep 0.05; : {mark}");
    let plain = vec!["run", "--", "sh", "-c", &script];
    let mut runs = vec![plain];
    if image::can_be_made() {
        image::import(&world, &[]);
        runs.push(vec!["run", "--image", "tiny", "--", "sh", "-c", &script]);
    }
    // What goes on from a saved state is what is measured.
    assert!(quiet(&world, &runs[0]).wait().unwrap().success());
    let begun = Instant::now();
    for run in &runs {
        assert!(quiet(&world, run).wait().unwrap().success());
    }
    let life = begun.elapsed() / u32::try_from(runs.len()).unwrap();
    nothing_to_collect(&world);
    let before = Traces::of(&world);
    for number in 0..kills() {
        let mut run = quiet(&world, &runs[number as usize % runs.len()]);
        std::thread::sleep(life * number / kills());
        // The front process, the supervisor, the launcher: one after the other.
        let victims = of_the_product(run.id());
        kill(victims[number as usize / runs.len() % victims.len()]);
        run.wait().unwrap();
    }
    assert!(soon(|| processes_with(&mark).is_empty()));
    nothing_is_left(&world);
    nothing_to_collect(&world);
    assert_eq!(Traces::of(&world), before);
    stockade(&world, &["log", "--verify"]).ok();
    world.run(&[], &["true"]).expect_code(0);
}

#[test]
fn a_machine_that_stays_goes_with_its_supervisor() {
    let Some(world) = with_image("a_machine_that_stays_goes_with_its_supervisor") else {
        return;
    };
    let names: Vec<String> = (0..3)
        .map(|number| format!("goes-{number}-{}", std::process::id()))
        .collect();
    for name in &names {
        stockade(&world, &["start", "--quiet", "--name", name]).ok();
        let script = "sleep 1000 </dev/null >/dev/null 2>&1 &";
        stockade(&world, &["exec", name, "--", "sh", "-c", script]).ok();
    }
    assert_eq!(machines_of(&world).len(), names.len());
    for name in &names {
        for supervisor in processes_with(&format!("start --quiet --name {name}")) {
            kill(supervisor);
        }
    }
    nothing_is_left(&world);
    stockade(&world, &["start", "--name", &names[0]]).ok();
    stockade(&world, &["stop", &names[0]]).ok();
    nothing_to_collect(&world);
}

/// A machine that boots to be saved ends with whoever wanted it, and what it had
/// written by then is cleared away.
#[test]
fn a_saving_may_be_killed_at_any_moment() {
    let Some(world) = with_image("a_saving_may_be_killed_at_any_moment") else {
        return;
    };
    let images = world.home.join(".local/state/stockade/machines/images");
    let saved = images.join("default/saved");
    fs::remove_dir_all(&saved).unwrap();
    let state = world.home.to_str().unwrap().to_owned();
    let savers = || {
        let machines = processes_with(QEMU).into_iter();
        let arguments = |process| fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        machines
            .filter(|&process| String::from_utf8_lossy(&arguments(process)).contains(&state))
            .count()
    };
    for number in 0..SAVINGS {
        let mut run = quiet(&world, &["run", "--", "true"]);
        assert!(soon(|| savers() > 0));
        std::thread::sleep(Duration::from_millis(700) * number);
        run.kill().unwrap();
        run.wait().unwrap();
        assert!(soon(|| savers() == 0), "kill {number}");
    }
    nothing_to_collect(&world);
    let run = world.run(&[], &["true"]).expect_code(0);
    assert!(!run.stderr.contains("was not saved"), "{run:?}");
    assert!(saved.join("300-0/state").exists());
    nothing_is_left(&world);
}

#[test]
fn twenty_machines_come_and_go_without_a_trace() {
    let Some(world) = with_image("twenty_machines_come_and_go_without_a_trace") else {
        return;
    };
    let stays = format!("stays-{}", std::process::id());
    stockade(&world, &["start", "--quiet", "--name", &stays]).ok();
    let exec = |name: &str| stockade(&world, &["exec", name, "--", "true"]).ok();
    let one = format!("one-{}", std::process::id());
    let come_and_go = || {
        stockade(&world, &["start", "--quiet", "--name", &one]).ok();
        exec(&one);
        exec(&stays);
        stockade(&world, &["stop", &one]).ok();
    };
    come_and_go();
    let supervisors = processes_with(&format!("start --quiet --name {stays}"));
    let [supervisor] = supervisors[..] else {
        panic!("{supervisors:?}");
    };
    let [machine] = machines_of(&world)[..] else {
        panic!("one machine stays");
    };
    let before = Traces::of(&world);
    // Others may not look into it.
    let descriptors = |process: u32| {
        let list = fs::read_dir(format!("/proc/{process}/fd"));
        list.map(Iterator::count)
    };
    let open = is_root().then(|| [supervisor, machine].map(|one| descriptors(one).unwrap()));
    let memory = resident_kib(supervisor);
    for _ in 0..MACHINES {
        come_and_go();
    }
    assert_eq!(Traces::of(&world), before);
    assert_eq!(processes_with(&one), [0; 0]);
    if let Some(open) = open {
        // The last connection is closed a moment after its caller has its answer.
        assert!(soon(|| {
            let now = [supervisor, machine].map(|one| descriptors(one).unwrap());
            now.iter().zip(open).all(|(now, before)| *now <= before)
        }));
    }
    let grown = resident_kib(supervisor).saturating_sub(memory);
    assert!(grown < 512, "{grown} KiB");
    stockade(&world, &["stop", &stays]).ok();
    nothing_is_left(&world);
    nothing_to_collect(&world);
}

/// Memory of a process that is in memory, in KiB (proc_pid_status(5)).
fn resident_kib(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_ascii_whitespace().next());
    number.unwrap().parse().unwrap()
}
