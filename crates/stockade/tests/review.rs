//! Review and discard mode: what a command writes to the workspace goes to a
//! layer of its own.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use stockade_testkit::{Finished, World};

/// What is in the store of the world's one workspace, by part.
fn store(world: &World, part: &str) -> Vec<PathBuf> {
    let all = world.home.join(".local/state/stockade/workspaces");
    let mut found = Vec::new();
    for workspace in fs::read_dir(all).into_iter().flatten().flatten() {
        for entry in fs::read_dir(workspace.path().join(part))
            .into_iter()
            .flatten()
        {
            found.push(entry.unwrap().path());
        }
    }
    found
}

/// Every path of the project with mode, time and content.
fn state(world: &World) -> String {
    world
        .outside_sh(
            "find . -printf '%P %y %m %T@ %l\\n' | sort; \
             find . -type f | sort | xargs -d '\\n' sha256sum",
        )
        .ok()
}

const WRITES: &str = "echo new > new; echo more >> file; rm directory/inner; rmdir directory; \
                      mkdir directory; touch directory/other; chmod 600 mode; ln -s x link; \
                      mv moved here; cat file; ls directory";

fn prepared() -> World {
    let world = World::new();
    world.write("project/file", "one\n");
    world.write("project/directory/inner", "inner\n");
    world.write("project/mode", "mode\n");
    world.write("project/moved", "moved\n");
    world
}

#[test]
fn what_is_written_in_review_mode_waits_and_the_tree_is_untouched() {
    let world = prepared();
    let before = state(&world);
    let run = world.run(&["--workspace", "review"], &["sh", "-c", WRITES]);
    assert!(run.stderr.contains("waits"), "{}", run.stderr);
    assert_eq!(run.ok(), "one\nmore\nother");
    assert_eq!(state(&world), before);
    let runs = store(&world, "runs");
    assert_eq!(runs.len(), 1, "{runs:?}");
    let upper = runs[0].join("upper");
    assert_eq!(
        fs::read_to_string(upper.join("file")).unwrap(),
        "one\nmore\n"
    );
    assert_eq!(fs::read_to_string(upper.join("here")).unwrap(), "moved\n");
}

#[test]
fn discard_mode_leaves_nothing_anywhere() {
    let world = prepared();
    let before = state(&world);
    let run = world.run(&["--workspace", "discard"], &["sh", "-c", WRITES]);
    assert_eq!(run.ok(), "one\nmore\nother");
    assert_eq!(state(&world), before);
    assert_eq!(store(&world, "runs"), Vec::<PathBuf>::new());
}

#[test]
fn a_run_that_wrote_nothing_leaves_nothing_to_review() {
    let world = prepared();
    let run = world.run(&["--workspace", "review"], &["cat", "file"]);
    assert!(run.stderr.contains("unchanged"), "{}", run.stderr);
    assert_eq!(run.ok(), "one");
    assert_eq!(store(&world, "runs"), Vec::<PathBuf>::new());
}

/// The strictest of all files and options wins, whoever says it.
#[test]
fn no_option_takes_review_away() {
    let world = prepared();
    world.policy("[filesystem]\nworkspace = \"review\"\n");
    let before = state(&world);
    world
        .run(&["--workspace", "live"], &["sh", "-c", WRITES])
        .ok();
    assert_eq!(state(&world), before);
    let mut explain = world.stockade();
    explain.args(["explain", "--json", "--", "true"]);
    let plan: serde_json::Value =
        serde_json::from_slice(&explain.output().unwrap().stdout).unwrap();
    assert_eq!(plan["workspace_mode"]["mode"], "review");
}

/// A part that may not be written is part of the same overlay, read-only.
#[test]
fn only_granted_parts_of_the_layered_workspace_are_writable() {
    let world = prepared();
    world.policy("[filesystem]\nworkspace = \"review\"\nwrite = [\"directory\"]\n");
    let run = world.sh(
        "echo x > directory/new && cat directory/new; echo x > new || echo refused; \
         echo x >> file || echo refused; mv directory elsewhere || echo refused",
    );
    assert_eq!(run.ok(), "x\nrefused\nrefused\nrefused");
    assert!(!world.project.join("directory/new").exists());
}

#[test]
fn what_is_hidden_stays_hidden_and_cannot_be_moved_away() {
    let world = prepared();
    world.write("project/directory/.env", "SECRET=hunter2\n");
    world.policy("[filesystem]\nworkspace = \"review\"\nhide = [\"**/.env\"]\n");
    let run = world.sh(
        "cat directory/.env; mv directory elsewhere; cat elsewhere/.env; rm -rf directory; \
         ln directory/.env l; cp -a directory copy; grep -rs hunter2 . ; echo done",
    );
    assert!(!run.stdout.contains("hunter2"), "{}", run.stdout);
    let all = world.home.join(".local/state/stockade/workspaces");
    for run in store(&world, "runs") {
        let found = std::process::Command::new("grep")
            .args(["-rs", "hunter2"])
            .arg(run.join("upper"))
            .output()
            .unwrap();
        assert!(found.stdout.is_empty(), "{all:?}");
    }
}

#[test]
fn where_no_overlay_can_be_had_nothing_runs_and_the_remedy_is_said() {
    let world = prepared();
    let mut command = world.stockade();
    command
        .env("XDG_STATE_HOME", world.project.join("state"))
        .args(["run", "--workspace", "review", "--", "touch", "ran"]);
    let refused = Finished::of(command.output().unwrap()).expect_code(125);
    assert!(
        refused.stderr.contains("FS4") && refused.stderr.contains("XDG_STATE_HOME"),
        "{}",
        refused.stderr
    );
    assert!(!world.project.join("ran").exists());
    world.policy("[process]\nform = \"landlock-only\"\n");
    let refused = world
        .run(&["--workspace", "discard"], &["touch", "ran"])
        .expect_code(125);
    assert!(
        refused.stderr.contains("mounts nothing"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_store_that_is_full_refuses_early() {
    let world = prepared();
    let script = "head -c 3000000 /dev/zero > big";
    world
        .run(&["--workspace", "review"], &["sh", "-c", script])
        .ok();
    world.policy("[filesystem]\nworkspace = \"review\"\nstore_bytes_max = \"1MiB\"\n");
    let refused = world.sh("touch ran").expect_code(125);
    for part in ["store_bytes_max", "stockade diff --list"] {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
}

#[test]
fn runs_at_once_have_layers_of_their_own() {
    let world = prepared();
    let before = state(&world);
    let children: Vec<_> = (0..6)
        .map(|number| {
            let script =
                format!("for i in 1 2 3; do echo {number} >> file; sleep 0.1; done; cat file");
            let mut command = world.stockade();
            command
                .args(["run", "--workspace", "review", "--", "sh", "-c", &script])
                .stdout(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    for (number, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text, format!("one\n{number}\n{number}\n{number}\n"));
    }
    assert_eq!(store(&world, "runs").len(), 6);
    assert_eq!(state(&world), before);
}

/// What a killed run wrote waits, and nothing is left mounted.
#[test]
fn a_killed_run_waits_for_review() {
    let world = prepared();
    let before = state(&world);
    let mut command = world.stockade();
    command
        .args(["run", "--workspace", "review", "--", "sh", "-c"])
        .arg("echo new > new; echo ready; sleep 1000")
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let arrived = |world: &World| {
        let runs = store(world, "runs");
        runs.iter().any(|run| run.join("upper/new").exists())
    };
    while !arrived(&world) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(arrived(&world));
    assert_eq!(state(&world), before);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let own = world.project.to_str().unwrap();
    assert!(!mounts.contains(own), "{mounts}");
}

/// The record of the one run that waits.
fn record(world: &World) -> (PathBuf, serde_json::Value) {
    let path = store(world, "runs")[0].join("meta.json");
    let record = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    (path, record)
}

#[test]
fn a_run_is_brought_to_the_disk_after_its_end() {
    let world = prepared();
    let run = world.run(&["--workspace", "review"], &["sh", "-c", WRITES]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let started = Instant::now();
    while record(&world).1.get("unsynced").is_some() {
        assert!(started.elapsed() < Duration::from_secs(60), "never synced");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(record(&world).1["ended"]["exit_code"], 0);
}

#[test]
fn what_a_crash_of_the_machine_may_have_torn_is_not_taken_for_whole() {
    let world = prepared();
    let before = state(&world);
    world.run(&["--workspace", "review"], &["sh", "-c", "echo new > new"]);
    let started = Instant::now();
    while record(&world).1.get("unsynced").is_some() {
        assert!(started.elapsed() < Duration::from_secs(60), "never synced");
        std::thread::sleep(Duration::from_millis(20));
    }
    // As it would be after a power failure right after the run.
    let (path, mut record) = record(&world);
    record["unsynced"] = "00000000-0000-0000-0000-000000000000".into();
    fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
    let id = record["id"].as_str().unwrap().to_owned();
    let attempts: [&[&str]; 3] = [
        &["apply"],
        &["snapshot", "s", "--of", &id],
        &["run", "--on", &id, "--", "true"],
    ];
    for attempt in attempts {
        let refused = stockade(&world, attempt);
        assert_ne!(refused.code, Some(0), "{attempt:?}");
        assert!(refused.stderr.contains("started anew"), "{refused:?}");
        assert!(refused.stderr.contains("--incomplete"), "{refused:?}");
    }
    assert_eq!(state(&world), before);
    let shown = stockade(&world, &["diff"]);
    assert!(shown.stdout.contains("note: the machine"), "{shown:?}");
    stockade(&world, &["apply", "--incomplete"]).ok();
    assert_eq!(
        fs::read_to_string(world.project.join("new")).unwrap(),
        "new\n"
    );
    // A record that never reached the disk is no run, and no obstacle.
    world.run(&["--workspace", "review"], &["sh", "-c", "echo new > more"]);
    fs::write(store(&world, "runs")[0].join("meta.json"), "").unwrap();
    let nothing = stockade(&world, &["diff", "--list"]).ok();
    assert_eq!(nothing, "nothing waits for review");
    stockade(&world, &["gc"]).ok();
    assert_eq!(store(&world, "runs"), Vec::<PathBuf>::new());
}

#[test]
fn a_run_goes_on_in_its_own_layer_again_and_again() {
    let world = prepared();
    world.run(&["--workspace", "review"], &["sh", "-c", "echo 1 > new"]);
    let id = record(&world).1["id"].as_str().unwrap().to_owned();
    for _ in 0..3 {
        let more = ["sh", "-c", "echo more >> new; wc -l < new"];
        world.run(&["--on", &id], &more).ok();
    }
    stockade(&world, &["apply"]).ok();
    assert_eq!(
        fs::read_to_string(world.project.join("new")).unwrap(),
        "1\nmore\nmore\nmore\n"
    );
}

fn stockade(world: &World, arguments: &[&str]) -> Finished {
    Finished::of(world.stockade().args(arguments).output().unwrap())
}

/// What the command saw is what the tree is after applying.
#[test]
fn apply_brings_everything_and_discard_nothing() {
    let world = prepared();
    let before = state(&world);
    world
        .run(&["--workspace", "review"], &["sh", "-c", WRITES])
        .ok();
    stockade(&world, &["discard"]).expect_code(0);
    assert_eq!(state(&world), before);
    let script = format!("{{ {WRITES}; }} > /dev/null; find . -printf '%P %y %m %T@ %l\\n' | sort");
    let inside = world
        .run(&["--workspace", "review"], &["sh", "-c", &script])
        .ok();
    let diff = stockade(&world, &["diff"]).ok();
    for part in [
        "created    new",
        "modified   file",
        "+more",
        "renamed    moved -> here",
        "0600",
    ] {
        assert!(diff.contains(part), "{part}: {diff}");
    }
    stockade(&world, &["apply"]).expect_code(0);
    let outside = world
        .outside_sh("find . -printf '%P %y %m %T@ %l\\n' | sort")
        .ok();
    assert_eq!(outside, inside);
    assert_eq!(store(&world, "runs"), Vec::<PathBuf>::new());
    stockade(&world, &["diff"]).expect_code(125);
}

#[test]
fn held_changes_come_first_and_need_their_name() {
    let world = prepared();
    world.outside_sh("git init -q .").ok();
    let script = "echo '#!/bin/sh' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; \
                  mkdir -p .vscode; echo '{}' > .vscode/tasks.json; echo plain > a";
    let run = world.run(&["--workspace", "review"], &["sh", "-c", script]);
    assert!(run.stderr.contains("held, git"), "{}", run.stderr);
    let diff = stockade(&world, &["diff", "--stat"]).ok();
    let at = |what: &str| diff.find(what).unwrap_or_else(|| panic!("{what}: {diff}"));
    assert!(at("pre-commit") < at("created    a") && at("tasks.json") < at("created    a"));
    stockade(&world, &["apply"]).expect_code(1);
    assert!(world.project.join("a").exists());
    assert!(!world.project.join(".git/hooks/pre-commit").exists());
    assert!(!world.project.join(".vscode/tasks.json").exists());
    stockade(&world, &["apply", ".vscode/tasks.json"]).expect_code(1);
    assert!(world.project.join(".vscode/tasks.json").exists());
    assert!(!world.project.join(".git/hooks/pre-commit").exists());
    stockade(&world, &["apply", "--held"]).expect_code(0);
    assert!(world.project.join(".git/hooks/pre-commit").exists());
}

#[test]
fn what_the_host_changed_meanwhile_is_not_overwritten() {
    let world = prepared();
    world
        .run(&["--workspace", "review"], &["sh", "-c", WRITES])
        .ok();
    world.write("project/file", "by hand\n");
    let before = state(&world);
    let refused = stockade(&world, &["apply"]).expect_code(125);
    assert!(refused.stderr.contains("file"), "{}", refused.stderr);
    assert_eq!(state(&world), before);
    stockade(&world, &["apply", "--skip-conflicts"]).expect_code(1);
    assert_eq!(
        fs::read_to_string(world.project.join("file")).unwrap(),
        "by hand\n"
    );
    assert!(world.project.join("new").exists());
}

/// Applying one name changes its other names, and the directory of what was
/// renamed; what a person changed is a conflict all the same.
#[test]
fn a_part_that_was_applied_is_no_conflict_for_the_rest() {
    let world = prepared();
    world
        .outside_sh("ln file one; ln file two; ln file three; mkdir apart; echo x > apart/y")
        .ok();
    let script =
        "rm one two three; ln file again; mv mode renamed; echo more >> renamed; echo z >> apart/y";
    let inside = world.run(&["--workspace", "review"], &["sh", "-c", script]);
    inside.ok();
    for part in ["one", "again"] {
        stockade(&world, &["apply", part]).expect_code(1);
    }
    world.write("project/apart/y", "by hand\n");
    let refused = stockade(&world, &["apply"]).expect_code(125);
    assert!(
        refused.stderr.contains("1 of the paths"),
        "{}",
        refused.stderr
    );
    assert!(refused.stderr.contains("apart/y"), "{}", refused.stderr);
    stockade(&world, &["apply", "--skip-conflicts"]).expect_code(1);
    let names = world.outside_sh("ls; cat renamed again apart/y").ok();
    assert_eq!(
        names,
        "again\napart\ndirectory\nfile\nmoved\nrenamed\nmode\nmore\none\nby hand"
    );
}

/// Names and content that a command chose do not steer the terminal.
#[test]
fn what_is_shown_is_escaped() {
    let world = prepared();
    let script = "printf 'a\\033[31mb\\n' > text; : > \"$(printf 'n\\033[2Jm')\"";
    let run = world.run(&["--workspace", "review"], &["sh", "-c", script]);
    let diff = stockade(&world, &["diff"]).ok();
    assert!(!diff.contains('\u{1b}') && diff.contains("text"), "{diff}");
    assert!(!run.stderr.contains('\u{1b}'), "{}", run.stderr);
}

/// The report names what is held as it does in live mode, whether or not
/// anybody is told.
#[test]
fn a_report_names_what_is_held() {
    let world = prepared();
    world.outside_sh("git init -q .").ok();
    let path = world.home.join("report.json");
    let layer = |options: &[&str], script: &str| {
        let mut all = vec!["--workspace", "review", "--report", path.to_str().unwrap()];
        all.extend(options);
        world.run(&all, &["sh", "-c", script]).expect_code(0);
        let text = fs::read_to_string(&path).unwrap();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        report["layer"].clone()
    };
    let script = "echo x > .git/hooks/pre-commit; git config core.pager ./evil; echo y > Makefile; \
                  echo z > new";
    for options in [&[][..], &["--quiet"]] {
        let layer = layer(options, script);
        assert_eq!(layer["state"], "waiting", "{layer}");
        let runs = store(&world, "runs");
        let id = runs[0].file_name().unwrap().to_str().unwrap();
        assert_eq!(layer["run"], id);
        let one = |name: &str| {
            let path = world.project.join(name);
            let all = layer["guarded"].as_array().unwrap().iter();
            let mut found = all.filter(|one| one["path"] == path.to_str().unwrap());
            let one = found.next().unwrap_or_else(|| panic!("{name}: {layer}"));
            assert!(found.next().is_none(), "{layer}");
            one.clone()
        };
        let hook = one(".git/hooks/pre-commit");
        assert_eq!(
            (&hook["what"], &hook["kind"]),
            (&"held".into(), &"git".into())
        );
        assert!(
            hook["rule"].is_string() && hook["reason"].is_string(),
            "{hook}"
        );
        let config = one(".git/config");
        assert_eq!(config["what"], "held");
        assert!(
            config["detail"].as_str().unwrap().contains("core.pager"),
            "{config}"
        );
        assert_eq!(one("Makefile")["what"], "reported");
        assert_eq!(layer["guarded"].as_array().unwrap().len(), 3, "{layer}");
        assert_eq!(
            layer["guarded"][2]["what"], "reported",
            "held ones come first: {layer}"
        );
        stockade(&world, &["discard"]).expect_code(0);
    }
    // What came to nothing is not said to wait.
    let layer = layer(&[], "echo x > new; rm new");
    assert_eq!(
        (&layer["state"], &layer["run"]),
        (&"unchanged".into(), &().into())
    );
    assert_eq!(store(&world, "runs"), Vec::<PathBuf>::new());
}
