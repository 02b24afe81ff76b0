//! Each limit holds, and the result names the one that was met.

use std::process::Stdio;

use serde_json::Value;
use stockade_testkit::{Finished, World, has_program, is_root, skip};

/// Runs and returns how it ended with the report.
fn reported(world: &World, options: &[&str], argv: &[&str]) -> (Finished, Value) {
    let report = world.outside().join("report.json");
    let path = report.to_str().expect("a world's path is ASCII");
    let finished = world.run(&[&["--report", path], options].concat(), argv);
    let text = std::fs::read(&report).expect("a report is written");
    (
        finished,
        serde_json::from_slice(&text).expect("a report is JSON"),
    )
}

#[track_caller]
fn names(report: &Value, limit: &str) {
    let hit = report["limits_hit"].as_array().expect("a list of limits");
    assert!(
        hit.iter().any(|name| name == limit),
        "{limit} is not named: {hit:?}"
    );
}

/// What the plan says of its limits.
fn planned(world: &World, options: &[&str]) -> Value {
    let mut command = world.stockade();
    command
        .args(["explain", "--json"])
        .args(options)
        .stdin(Stdio::null());
    let output = command.output().expect("stockade starts");
    let plan: Value = serde_json::from_slice(&output.stdout).expect("a plan is JSON");
    plan["limits"].clone()
}

const PYTHON: &str = "/usr/bin/python3";

fn has_python(test: &str) -> bool {
    let found = std::path::Path::new(PYTHON).exists();
    if !found {
        skip(test, "python3", "there is no /usr/bin/python3");
    }
    found
}

#[test]
fn memory_of_all_processes_together() {
    if !has_python("memory_of_all_processes_together") {
        return;
    }
    let world = World::new();
    // Each stays below the limit, all together do not.
    let script = "import os, time\n\
                  for _ in range(4):\n    \
                      if os.fork() == 0: break\n\
                  x = b'x' * (48 << 20)\n\
                  time.sleep(60)\n";
    let argv = [PYTHON, "-c", script];
    let (finished, report) = reported(&world, &["--memory", "128MiB"], &argv);
    assert_ne!(finished.code, Some(0));
    names(&report, "memory");
    assert!(
        finished.stderr.contains("limits.memory"),
        "{}",
        finished.stderr
    );
}

#[test]
fn memory_of_one_process() {
    if !has_python("memory_of_one_process") {
        return;
    }
    let world = World::new();
    let small = [PYTHON, "-c", "x = b'x' * (16 << 20); print(len(x))"];
    let (finished, report) = reported(&world, &["--memory", "128MiB"], &small);
    assert_eq!(finished.ok(), "16777216");
    assert_eq!(report["limits_hit"], serde_json::json!([]));
    let large = [PYTHON, "-c", "x = b'x' * (512 << 20); print(len(x))"];
    let (finished, report) = reported(&world, &["--memory", "128MiB"], &large);
    assert_ne!(finished.code, Some(0), "{}", finished.stdout);
    names(&report, "memory");
}

#[test]
fn memory_in_private_directories_counts_as_disk() {
    let world = World::new();
    for directory in ["/tmp", "/dev/shm", "/var/tmp", "$HOME"] {
        let script = format!("head -c 33554432 /dev/zero > {directory}/file");
        let argv = ["sh", "-c", &script];
        let (finished, report) = reported(&world, &["--disk", "16MiB"], &argv);
        assert_ne!(finished.code, Some(0), "{directory}");
        assert!(
            finished.stderr.contains("No space left"),
            "{directory}: {}",
            finished.stderr
        );
        names(&report, "disk");
    }
    let (finished, report) = reported(
        &world,
        &["--disk", "64MiB"],
        &["sh", "-c", "head -c 33554432 /dev/zero > /tmp/a"],
    );
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(report["limits_hit"], serde_json::json!([]));
}

#[test]
fn files_in_private_directories_are_counted() {
    let world = World::new();
    let script = "i=0; while [ $i -lt 9000 ]; do : > /tmp/$i || exit 9; i=$((i + 1)); done";
    let (finished, report) = reported(&world, &["--disk", "16MiB"], &["sh", "-c", script]);
    assert_ne!(finished.code, Some(0));
    assert!(
        finished.stderr.contains("No space left"),
        "{}",
        finished.stderr
    );
    names(&report, "disk");
}

#[test]
fn processes() {
    if !has_python("processes") {
        return;
    }
    let world = World::new();
    // Bounded: at most 64, whatever the limit does.
    let script = "import os, time\n\
                  made = 0\n\
                  for _ in range(64):\n    \
                      try: child = os.fork()\n    \
                      except BlockingIOError: break\n    \
                      if child == 0: time.sleep(60); os._exit(0)\n    \
                      made += 1\n\
                  print(made, flush=True)\n\
                  time.sleep(1)\n";
    let argv = [PYTHON, "-c", script];
    let (finished, report) = reported(&world, &["--processes", "16"], &argv);
    let made: u32 = finished.stdout.trim().parse().unwrap_or(0);
    assert!(made < 17, "{finished:?}");
    names(&report, "processes");
    let (finished, report) = reported(&world, &["--processes", "256"], &argv);
    assert_eq!(finished.ok(), "64");
    assert_eq!(report["limits_hit"], serde_json::json!([]));
}

#[test]
fn processors_and_memory_seen_inside_fit() {
    let world = World::new();
    let options = ["--cpus", "1", "--memory", "512MiB"];
    assert_eq!(world.run(&options, &["nproc"]).ok(), "1");
    assert_eq!(
        world.run(&options, &["getconf", "_NPROCESSORS_ONLN"]).ok(),
        "1"
    );
    let memory = world
        .run(&options, &["grep", "MemTotal", "/proc/meminfo"])
        .ok();
    assert_eq!(
        memory.split_ascii_whitespace().nth(1),
        Some("524288"),
        "{memory}"
    );
    if has_program("node") {
        let script = "console.log(require('os').cpus().length <= 1 || \
                      require('os').availableParallelism())";
        let seen = world.run(&options, &["node", "-e", script]).ok();
        assert!(matches!(seen.as_str(), "true" | "1"), "{seen}");
    }
    // Without a limit it is what the caller has.
    assert_eq!(
        world.run(&[], &["nproc"]).ok(),
        world.outside_sh("nproc").ok()
    );
}

#[test]
fn processor_time() {
    let world = World::new();
    world.policy("[limits]\ncpu_time = \"1s\"\n");
    let argv = ["sh", "-c", "while :; do :; done"];
    let (finished, report) = reported(&world, &["--wall-time", "300s"], &argv);
    assert_eq!(finished.code, Some(128 + 24), "{}", finished.stderr);
    names(&report, "cpu_time");
    assert!(
        finished.stderr.contains("limits.cpu_time"),
        "{}",
        finished.stderr
    );
    // Who ignores the signal is killed.
    let argv = ["sh", "-c", "trap '' XCPU; while :; do :; done"];
    let (finished, report) = reported(&world, &["--wall-time", "300s"], &argv);
    assert_eq!(finished.code, Some(137), "{}", finished.stderr);
    names(&report, "cpu_time");
}

#[test]
fn wall_time() {
    let world = World::new();
    let (finished, report) = reported(&world, &["--wall-time", "300ms"], &["sleep", "60"]);
    assert_eq!(finished.code, Some(124), "{}", finished.stderr);
    names(&report, "wall_time");
    assert_eq!(report["outcome"], "limit");
    assert_eq!(report["limit"], "wall_time");
    assert_eq!(report["exit_code"], 124);
    assert!(
        finished.stderr.contains("limits.wall_time"),
        "{}",
        finished.stderr
    );
    // A command that ignores every signal ends as well.
    let script = "trap '' TERM INT HUP; while :; do sleep 1; done";
    let finished = world.run(&["--wall-time", "300ms"], &["sh", "-c", script]);
    assert_eq!(finished.code, Some(124), "{}", finished.stderr);
}

#[test]
fn open_files() {
    if !has_python("open_files") {
        return;
    }
    let world = World::new();
    world.policy("[limits]\nopen_files = 64\n");
    let script = "import os, resource\n\
                  files = []\n\
                  try:\n    \
                      while len(files) < 1000: files.append(os.open('/dev/null', os.O_RDONLY))\n\
                  except OSError as error: print(error.strerror)\n\
                  print(len(files) < 64, resource.getrlimit(resource.RLIMIT_NOFILE))\n";
    let output = world.run(&[], &[PYTHON, "-c", script]).ok();
    assert_eq!(output, "Too many open files\nTrue (64, 64)");
}

#[test]
fn file_size() {
    let world = World::new();
    world.policy("[limits]\nfile_size = \"1MiB\"\n");
    let argv = ["dd", "if=/dev/zero", "of=file", "bs=65536", "count=64"];
    let (finished, report) = reported(&world, &[], &argv);
    assert_eq!(finished.code, Some(128 + 25), "{}", finished.stderr);
    names(&report, "file_size");
    assert_eq!(
        std::fs::metadata(world.project.join("file")).unwrap().len(),
        1 << 20
    );
    world
        .run(
            &[],
            &["dd", "if=/dev/zero", "of=small", "bs=65536", "count=8"],
        )
        .expect_code(0);
}

#[test]
fn limits_are_exact_or_refused() {
    let world = World::new();
    let exact = planned(&world, &[])["exact"] == true;
    if is_root() && !exact {
        skip(
            "limits_are_exact_or_refused",
            "cgroup",
            "root has no control groups here",
        );
    }
    world.policy("[limits]\nexact = true\n");
    let finished = world.run(&[], &["touch", "marker"]);
    if exact {
        finished.expect_code(0);
    } else {
        let finished = finished.expect_code(125);
        assert!(
            finished.stderr.contains("limits.exact"),
            "{}",
            finished.stderr
        );
        assert!(finished.stderr.contains("remedy"), "{}", finished.stderr);
        assert!(!world.project.join("marker").exists());
    }
}

/// A limit is never raised from inside.
#[test]
fn limits_cannot_be_raised_inside() {
    let world = World::new();
    world.policy("[limits]\nopen_files = 64\nfile_size = \"1MiB\"\n");
    for script in ["ulimit -Hn 65", "ulimit -Hf unlimited", "ulimit -Hc 1"] {
        let finished = world.sh(script);
        assert_ne!(finished.code, Some(0), "{script}");
    }
}

#[test]
fn a_report_of_a_run_that_met_no_limit() {
    let world = World::new();
    let (finished, report) = reported(&world, &[], &["sh", "-c", "exit 3"]);
    assert_eq!(finished.code, Some(3));
    assert_eq!(report["outcome"], "exited");
    assert_eq!(report["code"], 3);
    assert_eq!(report["limit"], Value::Null);
    assert!(
        report["peak_memory_bytes"]
            .as_u64()
            .is_some_and(|bytes| bytes > 0),
        "{report:#}"
    );
    assert!(
        report["guarantees"]
            .as_array()
            .is_some_and(|list| list.len() > 10),
        "{report:#}"
    );
    assert!(
        report["plan_digest"]
            .as_str()
            .is_some_and(|digest| digest.len() >= 64),
        "{report:#}"
    );
}
