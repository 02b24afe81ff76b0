//! Snapshots, forks and restoring them, through the command line.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use stockade_testkit::{Finished, World};

fn stockade(world: &World, arguments: &[&str]) -> Finished {
    Finished::of(world.stockade().args(arguments).output().unwrap())
}

/// Everything of the project that a restore gives back.
fn state(world: &World) -> String {
    world
        .outside_sh(
            "find . -printf '%P|%y|%m|%T@|%l|%n\\n' | sort; \
             find . -type f | sort | xargs -d '\\n' sha256sum",
        )
        .ok()
}

fn prepared() -> World {
    let world = World::new();
    world.write("project/file", "one\n");
    world.write("project/directory/inner", "inner\n");
    world.write("project/gone", "gone\n");
    world.write("project/mode", "mode\n");
    let name = std::ffi::OsStr::from_bytes(b"na\xffme");
    fs::write(world.project.join(name), "bytes\n").unwrap();
    world
        .outside_sh(
            "ln file hard; ln -s file soft; truncate -s 50M sparse; chmod 640 mode; \
             touch -d '2001-02-03 04:05:06.123456789' mode directory",
        )
        .ok();
    world
}

const WRITES: &str = "echo two > file; rm gone; echo new > new; rm -r directory; echo f > directory; \
                      chmod 600 mode; ln -sf other soft; echo x > sparse";

fn run_of(finished: &Finished) -> String {
    let words: Vec<&str> = finished.stderr.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "run").unwrap();
    words[at + 1].to_owned()
}

#[test]
fn what_was_applied_after_a_snapshot_is_given_back_exactly() {
    let world = prepared();
    let before = state(&world);
    stockade(&world, &["snapshot", "before"]).expect_code(0);
    for script in [
        WRITES,
        "echo three > file; mkdir more; echo m > more/m; rm new",
    ] {
        world
            .run(&["--workspace", "review"], &["sh", "-c", script])
            .expect_code(0);
        stockade(&world, &["apply"]).expect_code(0);
    }
    assert_eq!(
        fs::read_to_string(world.project.join("file")).unwrap(),
        "three\n"
    );
    let after = state(&world);
    stockade(&world, &["snapshot", "after"]).expect_code(0);
    stockade(&world, &["restore", "before"]).expect_code(0);
    let hard_is_another_file = |state: &str| state.replace("|2\n", "|1\n");
    assert_eq!(
        hard_is_another_file(&state(&world)),
        hard_is_another_file(&before)
    );
    stockade(&world, &["restore", "after"]).expect_code(0);
    assert_eq!(
        hard_is_another_file(&state(&world)),
        hard_is_another_file(&after)
    );
}

#[test]
fn a_tree_that_the_host_changed_is_not_given_back_and_said_to_be() {
    let world = prepared();
    stockade(&world, &["snapshot", "before"]).expect_code(0);
    world.write("project/file", "by hand\n");
    let refused = stockade(&world, &["restore", "before"]).expect_code(125);
    assert!(refused.stderr.contains("file"), "{}", refused.stderr);
    assert_eq!(
        fs::read_to_string(world.project.join("file")).unwrap(),
        "by hand\n"
    );
}

#[test]
fn forks_go_on_from_a_snapshot_and_not_into_each_other() {
    let world = prepared();
    let before = state(&world);
    let first = world.run(&["--workspace", "review"], &["sh", "-c", WRITES]);
    let run = run_of(&first);
    stockade(&world, &["snapshot", "tried", "--of", &run]).expect_code(0);
    for name in ["left", "right"] {
        stockade(&world, &["fork", "tried", name]).expect_code(0);
        let script = format!("cat file; ls directory gone; echo {name} >> file; cat file");
        let inside = world.run(&["--on", name], &["sh", "-c", &script]);
        assert_eq!(inside.stdout, format!("two\ndirectory\ntwo\n{name}\n"));
    }
    let again = world.run(&["--on", "left"], &["cat", "file"]);
    assert_eq!(again.stdout, "two\nleft\n");
    stockade(&world, &["restore", "tried", "--in", "left"]).expect_code(0);
    let again = world.run(&["--on", "left"], &["cat", "file"]);
    assert_eq!(again.stdout, "two\n");
    let again = world.run(&["--on", "tried"], &["cat", "file"]);
    assert_eq!(again.stdout, "two\n");
    assert_eq!(state(&world), before);
    stockade(&world, &["apply", "right"]).expect_code(0);
    assert_eq!(
        fs::read_to_string(world.project.join("file")).unwrap(),
        "two\nright\n"
    );
}

/// Layers stay as long as something refers to them, and go then.
#[test]
fn layers_go_with_the_last_that_needs_them() {
    let world = prepared();
    let layers = || {
        let all = world.home.join(".local/state/stockade/workspaces");
        let workspace = fs::read_dir(all).unwrap().next().unwrap().unwrap().path();
        fs::read_dir(workspace.join("layers")).unwrap().count()
    };
    let first = world.run(&["--workspace", "review"], &["sh", "-c", WRITES]);
    let run = run_of(&first);
    stockade(&world, &["snapshot", "tried", "--of", &run]).expect_code(0);
    stockade(&world, &["fork", "tried", "other"]).expect_code(0);
    assert_eq!(layers(), 1);
    stockade(&world, &["snapshot", "tried", "--delete"]).expect_code(0);
    stockade(&world, &["discard", &run]).expect_code(0);
    assert_eq!(layers(), 1);
    assert_eq!(
        world.run(&["--on", "other"], &["cat", "file"]).stdout,
        "two\n"
    );
    stockade(&world, &["discard", "other"]).expect_code(0);
    assert_eq!(layers(), 0);
}

/// A chain that is deeper is flattened.
const DEPTH_MAX: usize = 24;

/// What a run that uses a chain sees stays, whatever is flattened meanwhile,
/// and every snapshot is given back as it was.
#[test]
fn chains_are_flattened_under_what_goes_on() {
    let world = prepared();
    stockade(&world, &["snapshot", "start"]).expect_code(0);
    let start = state(&world);
    let mut states = Vec::new();
    for number in 0..DEPTH_MAX + 6 {
        let script = format!("echo {number} > file; mkdir -p d; rm -f d/*; echo > d/{number}");
        world
            .run(&["--workspace", "review"], &["sh", "-c", &script])
            .expect_code(0);
        stockade(&world, &["apply"]).expect_code(0);
        if number % 9 == 0 {
            let name = format!("s{number}");
            stockade(&world, &["snapshot", &name]).expect_code(0);
            states.push((name, state(&world)));
        }
    }
    world.settle();
    let depth = || {
        let list = stockade(&world, &["snapshot", "--list", "--json"]).ok();
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        let all = list["snapshots"].as_array().unwrap().iter();
        all.map(|one| one["layers"].as_array().unwrap().len())
            .max()
            .unwrap()
    };
    assert!(depth() <= DEPTH_MAX, "{}", depth());
    let of = world.run(&["--on", "start"], &["sh", "-c", "cat file; ls d"]);
    assert_eq!(of.stdout, "one\n");
    let same = |one: &str, other: &str| {
        let alone = |state: &str| state.replace("|2\n", "|1\n");
        assert_eq!(alone(one), alone(other));
    };
    for (name, wanted) in &states {
        stockade(&world, &["restore", name]).expect_code(0);
        same(&state(&world), wanted);
    }
    // What the host changes is still found, also under merged old versions.
    world.write("project/d/27", "by hand\n");
    let refused = stockade(&world, &["restore", "start"]).expect_code(125);
    assert!(refused.stderr.contains("d/27"), "{}", refused.stderr);
    fs::remove_file(world.project.join("d/27")).unwrap();
    let refused = stockade(&world, &["restore", "start"]).expect_code(125);
    assert!(refused.stderr.contains("d"), "{}", refused.stderr);
    let last = &states.last().unwrap().0;
    stockade(&world, &["snapshot", last, "--delete"]).expect_code(0);
    assert_ne!(state(&world), start);
    world.settle();
}

#[test]
fn a_chain_of_snapshots_keeps_working() {
    let world = prepared();
    let first = world.run(&["--workspace", "review"], &["sh", "-c", "echo 0 > count"]);
    let run = run_of(&first);
    const LENGTH: usize = 100;
    for number in 1..=LENGTH {
        let name = format!("s{number}");
        stockade(&world, &["snapshot", &name, "--of", &run]).expect_code(0);
        if number % 10 == 0 {
            let script = format!("echo {number} > count; echo {number} > f{number}");
            world
                .run(&["--on", &run], &["sh", "-c", &script])
                .expect_code(0);
        } else {
            let script = format!("echo {number} > f{number}");
            world
                .run(&["--on", &run], &["sh", "-c", &script])
                .expect_code(0);
        }
    }
    // In the background the chains became short, and show the same.
    world.settle();
    stockade(&world, &["snapshot", "last", "--of", &run]).expect_code(0);
    world.settle();
    let list = stockade(&world, &["snapshot", "--list", "--json"]).ok();
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let snapshots = list["snapshots"].as_array().unwrap();
    assert_eq!(snapshots.len(), LENGTH + 1);
    for snapshot in snapshots {
        let depth = snapshot["layers"].as_array().unwrap().len();
        assert!(depth <= DEPTH_MAX, "{snapshot}");
    }
    let diff = stockade(&world, &["diff", "--json", &run]).ok();
    let diff: serde_json::Value = serde_json::from_str(&diff).unwrap();
    let changes = diff["changes"].as_array().unwrap();
    assert_eq!(changes.len(), LENGTH + 1, "count, and a file of each run");
    let inside = world.run(&["--on", &run], &["sh", "-c", "cat count; ls f* | wc -l"]);
    assert_eq!(inside.stdout, format!("{LENGTH}\n{}\n", LENGTH + 1));
    let inside = world.run(&["--on", "s50"], &["sh", "-c", "cat count; ls f* | wc -l"]);
    assert_eq!(inside.stdout, "40\n50\n");
}
