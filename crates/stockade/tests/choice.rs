//! `at-least:`: the cheapest wall that holds what the policy demands on this
//! machine, or a refusal that says for each wall why not.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use stockade_testkit::{Finished, World, image, skip};

fn explained(world: &World, options: &[&str]) -> Value {
    let mut command = world.stockade();
    command.args(["explain", "--json"]).args(options);
    let output = command.args(["--", "true"]).stdin(Stdio::null()).output();
    let output = output.unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

fn notes(plan: &Value) -> Vec<&str> {
    let notes = plan["notes"].as_array().unwrap();
    notes.iter().map(|note| note.as_str().unwrap()).collect()
}

/// Starts of commands that the event log knows.
fn starts(world: &World) -> usize {
    let mut log = world.stockade();
    let log = Finished::of(log.args(["log", "--json"]).output().unwrap()).expect_code(0);
    let events = log.stdout.lines();
    events.filter(|line| line.contains("\"started\"")).count()
}

#[test]
fn the_cheapest_is_taken_where_it_holds_everything() {
    let world = World::new();
    world.policy("wall = \"at-least:process\"\n");
    let plan = explained(&world, &[]);
    assert_eq!(plan["wall"], "process");
    assert!(!notes(&plan).iter().any(|note| note.contains("the wall is")));
    // Of the same wall, whoever names it alone wants no other.
    let plan = explained(&world, &["--wall", "process"]);
    assert_eq!(plan["wall"], "process");
}

#[test]
fn what_one_wall_cannot_hold_makes_a_stronger_one_stand() {
    if !image::can_be_made() {
        skip(
            "what_one_wall_cannot_hold",
            "busybox",
            "there is no static busybox",
        );
        return;
    }
    let world = World::new();
    image::import(&world, &[]);
    let policy = "weaken = [\"PR7\"]\n[container]\nimage = \"tiny\"\n";
    world.policy(&format!("wall = \"at-least:process\"\n{policy}"));
    let plan = explained(&world, &[]);
    assert_eq!(plan["wall"], "container");
    let passed_over = "the wall is container, because process cannot keep what is demanded";
    let said = notes(&plan);
    assert!(
        said.iter().any(|note| note.contains(passed_over)),
        "{said:?}"
    );
    let run = world.run(&[], &["cat", "/etc/os-release"]);
    assert!(run.stderr.contains(passed_over), "{}", run.stderr);
    // Whoever names a wall alone gets that one, or nothing.
    world.policy(&format!("wall = \"process\"\n{policy}"));
    world.run(&[], &["true"]).expect_code(125);
}

#[test]
fn a_kernel_of_the_commands_own_has_really_started_once() {
    if !Path::new("/usr/bin/runsc").exists() {
        skip("a_kernel_has_really_started", "gvisor", "there is no runsc");
        return;
    }
    let world = World::new();
    world.policy(
        "wall = \"at-least:gvisor\"\nweaken = [\"PR7\"]\n[filesystem]\nworkspace = \"review\"\n",
    );
    for _ in 0..2 {
        assert_eq!(explained(&world, &[])["wall"], "gvisor");
        assert_eq!(starts(&world), 1);
    }
    world.run(&[], &["true"]).expect_code(0);
    assert_eq!(starts(&world), 2);
    // The doctor looks at what is known.
    let mut doctor = world.stockade();
    let found = doctor.args(["doctor", "--json"]).output().unwrap();
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    let walls = found["walls"].as_array().unwrap();
    let ready = |name: &str| {
        let wall = walls.iter().find(|wall| wall["name"] == name).unwrap();
        wall["ready"].as_bool().unwrap()
    };
    for (name, is_ready) in [
        ("process", true),
        ("container", true),
        ("gvisor", true),
        ("microvm", false),
    ] {
        assert_eq!(ready(name), is_ready, "{name}: {walls:#?}");
    }
    assert_eq!(starts(&world), 2);
}

#[test]
fn where_none_will_do_it_is_said_of_each() {
    let world = World::new();
    // A live workspace guards no names behind gVisor, and there is no image
    // of a machine in this state directory.
    world.policy("wall = \"at-least:gvisor\"\n");
    let refused = world.run(&[], &["true"]).expect_code(125);
    for part in [
        "cannot be kept by the gvisor wall",
        "PR1 cannot be kept by the microvm wall",
        "there is no machine image",
        "nothing was run",
    ] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
    assert_eq!(starts(&world), 0);
}
