//! What commands are held to within a machine: the limits of the policy, and the
//! rules of system calls.

mod machines;

use std::fs;
use std::time::{Duration, Instant};

use machines::{POLICY, machines_of, nothing_is_left, stockade, with_image};
use serde_json::Value;
use stockade_sys::rustix::process::{Pid, Signal, kill_process};
use stockade_testkit::{World, has_program, skip};

/// Sends a signal to a machine that a test started.
fn signal(process: u32, signal: Signal) {
    let process = Pid::from_raw(process.cast_signed()).unwrap();
    kill_process(process, signal).unwrap();
}

/// The policy of the machine that was saved, with one limit more.
fn policy(limit: &str) -> String {
    match limit.starts_with("memory") {
        true => POLICY.to_owned(),
        false => format!("{POLICY}{limit}\n"),
    }
}

/// Runs a script; its exit code, and the limits that are named in the report.
fn limits_hit(world: &World, script: &str) -> (Option<i32>, String) {
    let report = world.outside().join("report.json");
    let options = ["--report", report.to_str().unwrap()];
    let run = world.run(&options, &["sh", "-c", script]);
    let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    let hit = report["limits_hit"].to_string();
    for limit in report["limits_hit"].as_array().unwrap() {
        let key = format!("limits.{}", limit.as_str().unwrap());
        assert!(run.stderr.contains(&key), "{run:?}");
    }
    (run.code, hit)
}

#[test]
fn c22_what_ran_out_in_a_machine_is_named() {
    let test = "c22_what_ran_out_in_a_machine_is_named";
    if !has_program("python3") {
        return skip(test, "python3", "it allocates the memory");
    }
    let Some(world) = with_image(test) else {
        return;
    };
    for (limit, script) in [
        (
            "processes = 64",
            "i=0; while [ $i -lt 200 ]; do sleep 100 & i=$((i+1)); done; exit 3",
        ),
        (
            "memory = \"556MiB\"",
            "/usr/bin/python3 -S -c 'x = bytearray(1 << 30); x[::4096] = x[::4096]; print(len(x))'",
        ),
        (
            "file_size = \"1MiB\"",
            "exec dd if=/dev/zero of=large bs=64k count=100",
        ),
        ("cpu_time = \"1s\"", "while :; do :; done"),
        // All private directories share it.
        (
            "disk = \"20MiB\"",
            "head -c 15M /dev/zero >/tmp/one; exec dd if=/dev/zero of=/dev/shm/other bs=64k count=200",
        ),
    ] {
        world.policy(&policy(limit));
        let (code, hit) = limits_hit(&world, script);
        let word = limit.split(' ').next().unwrap();
        assert_ne!(code, Some(0), "{limit}: {hit}");
        assert_eq!(hit, format!("[\"{word}\"]"));
    }
    assert_eq!(
        fs::metadata(world.project.join("large")).unwrap().len(),
        1 << 20
    );
    // Under a limit that is not met, nothing is said.
    world.policy(&policy("processes = 64"));
    let (code, hit) = limits_hit(&world, "sleep 0.1 & wait");
    assert_eq!((code, &*hit), (Some(0), "[]"));
    nothing_is_left(&world);
}

/// Every command of a machine that stays, and not only the first, is held to the
/// rules and to what all of them share.
#[test]
fn a_later_command_is_confined_as_the_first() {
    let Some(world) = with_image("a_later_command_is_confined_as_the_first") else {
        return;
    };
    world.policy(&format!("{POLICY}processes = 40\nopen_files = 123\n"));
    stockade(&world, &["start", "--name", "box"]).ok();
    let exec = |script: &str| stockade(&world, &["exec", "box", "--", "sh", "-c", script]);
    let asked = "grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status | tr -d '\\t'; ulimit -Hn; \
        ulimit -Hc; cat /proc/self/cgroup";
    for _ in 0..2 {
        assert_eq!(
            exec(asked).ok(),
            "NoNewPrivs:1\nSeccomp:2\n123\n0\n0::/commands"
        );
    }
    // What one leaves behind counts for the next.
    let fill =
        "i=0; while [ $i -lt 60 ]; do sleep 1000 </dev/null >/dev/null 2>&1 & i=$((i+1)); done";
    assert_ne!(exec(fill).code, Some(0));
    assert_ne!(exec("true; sh -c 'sleep 0.1; true' | cat").code, Some(0));
    stockade(&world, &["stop", "box"]).ok();
    let log = stockade(&world, &["log", "--json"]).ok();
    assert!(log.contains("limits.processes"), "{log}");
    nothing_is_left(&world);
}

/// Seconds by which the clock of a machine is ahead of the host's, at least and
/// at most: it was read between two readings outside.
fn ahead(world: &World) -> (f64, f64) {
    let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    let before = now();
    let exec = stockade(world, &["exec", "box", "--", "date", "+%s.%N"]);
    let inside: f64 = exec.ok().parse().unwrap();
    (inside - now(), inside - before)
}

/// The clock goes as fast as the host's, goes on while the machine is paused, and
/// is set before each command: then one that was wrong is right.
#[test]
fn c16_the_clock_of_a_paused_machine_is_right() {
    let Some(world) = with_image("c16_the_clock_of_a_paused_machine_is_right") else {
        return;
    };
    stockade(&world, &["start", "--name", "box"]).ok();
    let is_right = |when: &str| {
        let (least, most) = ahead(&world);
        assert!(least < 1.0 && most > -1.0, "{when}: {least} {most}");
    };
    is_right("at first");
    let [machine] = machines_of(&world)[..] else {
        panic!("one machine runs");
    };
    signal(machine, Signal::STOP);
    std::thread::sleep(Duration::from_secs(5));
    signal(machine, Signal::CONT);
    is_right("after a pause");
    // While a command runs, nobody sets the clock for some seconds: it is the
    // machine's own that goes as it should.
    let script = "date +%s.%N; sleep 4; date +%s.%N";
    let begun = Instant::now();
    let said = stockade(&world, &["exec", "box", "--", "sh", "-c", script]).ok();
    let outside = begun.elapsed().as_secs_f64();
    let times: Vec<f64> = said.lines().map(|line| line.parse().unwrap()).collect();
    let inside = times[1] - times[0];
    assert!(inside > 3.9 && inside < outside + 0.5, "{inside} {outside}");
    stockade(&world, &["stop", "box"]).ok();
    nothing_is_left(&world);
}
