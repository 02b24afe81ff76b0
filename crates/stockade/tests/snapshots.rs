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
    let inside = world.run(&["--on", &run], &["sh", "-c", "cat count; ls f* | wc -l"]);
    assert_eq!(inside.stdout, format!("{LENGTH}\n{}\n", LENGTH + 1));
    let inside = world.run(&["--on", "s50"], &["sh", "-c", "cat count; ls f* | wc -l"]);
    assert_eq!(inside.stdout, "40\n50\n");
}
