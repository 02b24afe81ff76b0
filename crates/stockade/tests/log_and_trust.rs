//! The event log and the trust in a project's policy file, from outside.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use stockade_testkit::{World, is_root};

fn stockade(world: &World, arguments: &[&str]) -> Output {
    let mut command = world.stockade();
    command
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("stockade starts")
}

#[track_caller]
fn success(output: Output) -> String {
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{:?}: {message}", output.status);
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

fn records(world: &World) -> Vec<serde_json::Value> {
    let text = success(stockade(world, &["log", "--json"]));
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect()
}

fn kinds(world: &World) -> Vec<String> {
    records(world)
        .iter()
        .map(|record| record["event"].to_string())
        .collect()
}

fn state(world: &World) -> PathBuf {
    world.home.join(".local/state/stockade")
}

#[test]
fn the_chain_verifies_after_runs_also_side_by_side() {
    let world = World::new();
    for _ in 0..2 {
        let children: Vec<_> = (0..2)
            .map(|_| {
                let mut command = world.stockade();
                command
                    .args(["run", "--", "true"])
                    .stdin(Stdio::null())
                    .spawn()
                    .unwrap()
            })
            .collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
    }
    let verified = success(stockade(&world, &["log", "--verify"]));
    assert!(!verified.is_empty());
    let runs: std::collections::BTreeSet<String> = records(&world)
        .iter()
        .map(|record| record["run"].to_string())
        .collect();
    assert_eq!(runs.len(), 4, "{runs:?}");
}

#[test]
fn a_changed_line_shows() {
    let world = World::new();
    world.sh("true").expect_code(0);
    world.sh("exit 3").expect_code(3);
    let log = find_log(&world);
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.lines().count() >= 6, "{text}");
    fs::write(&log, text.replacen("\"code\":0", "\"code\":1", 1)).unwrap();
    let verified = stockade(&world, &["log", "--verify"]);
    assert_eq!(verified.status.code(), Some(1));
}

fn find_log(world: &World) -> PathBuf {
    let entries = fs::read_dir(state(world))
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    let mut logs: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
        .collect();
    assert_eq!(logs.len(), 1, "{logs:?}");
    logs.remove(0)
}

#[test]
fn each_decision_is_on_record_with_its_rule() {
    let world = World::new();
    let secret = world.write("secret", "x");
    world
        .run(&[], &["cat", secret.to_str().unwrap()])
        .expect_code(1);
    let records = records(&world);
    let text = serde_json::to_string(&records).unwrap();
    for part in ["run_planned", "started", "denied", "exited", "/home/secret"] {
        assert!(text.contains(part), "`{part}` is missing in {text}");
    }
    // A refused run is on record as well.
    stockade(&world, &["run", "--fail-step", "view.root", "--", "true"]);
    assert!(
        kinds(&world)
            .iter()
            .any(|kind| kind.contains("step_failed")),
        "{:?}",
        kinds(&world)
    );
    let shown = success(stockade(&world, &["log", "-n", "3"]));
    assert!(shown.lines().count() >= 3, "{shown}");
}

#[test]
fn the_state_directory_is_the_callers_alone() {
    let world = World::new();
    world.sh("true").expect_code(0);
    let mode = |path: &PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&state(&world)), 0o700);
    for entry in fs::read_dir(state(&world)).unwrap().flatten() {
        assert_eq!(mode(&entry.path()) & 0o077, 0, "{:?}", entry.path());
    }
}

#[test]
fn the_log_cannot_be_reached_from_inside() {
    let world = World::new();
    world.sh("true").expect_code(0);
    let before = fs::read(find_log(&world)).unwrap();
    let path = state(&world);
    let grant = world.home.join(".local");
    let options = ["--write", grant.to_str().unwrap()];
    let script = format!(
        "ls {0}; rm -rf {0}; echo x >> {0}/log.jsonl",
        path.display()
    );
    let inside = world.run(&options, &["sh", "-c", &script]);
    assert_ne!(inside.code, Some(0), "{inside:?}");
    assert!(fs::read(find_log(&world)).unwrap().starts_with(&before));
    success(stockade(&world, &["log", "--verify"]));
}

/// AU1: what cannot be recorded is not run.
#[test]
fn a_log_that_cannot_be_written_refuses_the_run() {
    let world = World::new();
    world.sh("true").expect_code(0);
    let log = find_log(&world);
    fs::remove_file(&log).unwrap();
    fs::create_dir(&log).unwrap();
    let run = stockade(&world, &["run", "--", "touch", "marker"]);
    assert_eq!(
        run.status.code(),
        Some(125),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    assert!(!world.project.join("marker").exists());
    if !is_root() {
        fs::remove_dir(&log).unwrap();
        fs::write(&log, "").unwrap();
        fs::set_permissions(&log, fs::Permissions::from_mode(0o400)).unwrap();
        let run = stockade(&world, &["run", "--", "touch", "marker"]);
        assert_eq!(
            run.status.code(),
            Some(125),
            "{}",
            String::from_utf8_lossy(&run.stderr)
        );
        assert!(!world.project.join("marker").exists());
    }
}

#[test]
fn a_full_disk_under_the_log_refuses_the_run() {
    let world = World::new();
    // The limit of file size stands for a full disk: the next write fails.
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg("ulimit -f 0; trap '' XFSZ; exec \"$@\"")
        .arg("sh");
    shell
        .arg(stockade_testkit::binary())
        .args(["run", "--", "touch", "marker"]);
    shell
        .env_clear()
        .env("HOME", &world.home)
        .env("PATH", "/usr/bin:/bin");
    let run = shell
        .current_dir(&world.project)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(
        run.status.code(),
        Some(125),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    assert!(!world.project.join("marker").exists());
}

#[test]
fn a_project_file_widens_only_when_trusted() {
    let world = World::new();
    let data = world.write("data/file", "data\n");
    let data = data.to_str().unwrap();
    let read = || stockade(&world, &["run", "--", "cat", data]);
    let write = |path: &str| {
        world.write(
            "project/stockade.toml",
            format!("version = 1\n[filesystem]\nread = [\"system\", {path}]\n"),
        )
    };
    write("\"~/data\"");
    let run = read();
    let message = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(125), "{message}");
    assert!(
        message.contains("stockade trust") && message.contains("stockade.toml:3"),
        "{message}"
    );

    // Without a terminal to ask on, nothing is trusted.
    assert!(!stockade(&world, &["trust"]).status.success());
    assert_eq!(read().status.code(), Some(125));

    success(stockade(&world, &["trust", "--yes"]));
    assert_eq!(success(read()), "data\n");
    assert!(success(stockade(&world, &["trust", "--list"])).contains("project/stockade.toml"));

    // The agent changes it: it is asked about again.
    write("\"~/data\", \"~/.config\"");
    let run = read();
    assert_eq!(
        run.status.code(),
        Some(125),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );

    // The trusted content comes back, and its trust with it, until taken back.
    write("\"~/data\"");
    assert_eq!(success(read()), "data\n");
    success(stockade(&world, &["untrust"]));
    assert_eq!(read().status.code(), Some(125));
    let kinds = kinds(&world).join(" ");
    assert!(
        kinds.contains("trusted") && kinds.contains("untrusted"),
        "{kinds}"
    );
}

#[test]
fn an_untrusted_file_that_narrows_applies() {
    let world = World::new();
    world.write("project/.env", "SECRET=1\n");
    world.write(
        "project/stockade.toml",
        "version = 1\n[filesystem]\nhide = [\"**/.env\"]\n[limits]\nwall_time = \"10m\"\n",
    );
    let inside = world.sh("cat .env || echo hidden");
    assert_eq!(inside.ok(), "hidden");
}

#[test]
fn a_run_that_plants_a_policy_gains_nothing() {
    let world = World::new();
    world.write("data/file", "data\n");
    let script = "printf 'version = 1\\n[filesystem]\\nread = [\"~/data\"]\\n' > stockade.toml; \
                  stockade trust --yes";
    world.sh(script);
    assert!(!world.project.join("stockade.toml").exists(), "it is held");
    world
        .outside_sh(&script.replace("stockade trust --yes", "true"))
        .ok();
    let run = stockade(&world, &["run", "--", "true"]);
    assert_eq!(
        run.status.code(),
        Some(125),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
}

#[test]
fn init_writes_a_file_that_is_trusted_and_runs() {
    let world = World::new();
    success(stockade(&world, &["init"]));
    world.sh("true").expect_code(0);
    // A second one does not overwrite the first.
    assert_eq!(stockade(&world, &["init"]).status.code(), Some(125));
}
