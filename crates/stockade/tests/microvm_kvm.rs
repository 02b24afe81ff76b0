//! What executes a machine: the processor, where a trial showed that it does.

mod machines;

use std::fs;

use machines::{nothing_is_left, stockade, with_image};
use serde_json::Value;
use stockade_testkit::World;

/// What is said while it is tried.
const TRIED: &str = "seeing whether KVM runs a machine here";

/// What the plan says of a machine.
fn accelerator(world: &World) -> String {
    let plan = stockade(world, &["explain", "--json", "--", "true"]).ok();
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let word = plan["kernel"]["accelerator"].as_str();
    word.unwrap_or_else(|| panic!("no accelerator: {plan}"))
        .to_owned()
}

#[test]
fn the_processor_is_used_where_it_really_runs_a_machine() {
    let Some(world) = with_image("the_processor_is_used_where_it_really_runs_a_machine") else {
        return;
    };
    let device = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm");
    let run = world.run(&[], &["uname", "-r"]).expect_code(0);
    assert!(run.stdout.starts_with("6."), "{}", run.stdout);
    // Where the device cannot be opened there is nothing to try.
    assert_eq!(run.stderr.contains(TRIED), device.is_ok(), "{}", run.stderr);
    let used = accelerator(&world);
    let says_why = run
        .stderr
        .contains("QEMU translates the machine's instructions");
    assert_eq!(says_why, used == "tcg", "{}", run.stderr);
    // The answer is kept, whatever it was.
    let again = world.run(&[], &["true"]).expect_code(0);
    assert!(!again.stderr.contains(TRIED), "{}", again.stderr);
    nothing_is_left(&world);

    // Who asks for one of them gets it or a refusal, and never the other.
    let forced = world.run(&["--accelerator", "kvm"], &["uname", "-r"]);
    match used.as_str() {
        "kvm" => assert_eq!(forced.expect_code(0).stdout, run.stdout),
        _ => {
            let refused = forced.expect_code(125);
            let mut because = vec!["it said: ", "asks for KVM, and /dev/kvm cannot be opened"];
            because.retain(|because| refused.stderr.contains(because));
            assert_eq!(because.len(), 1, "{}", refused.stderr);
        }
    }
    let translated = world.run(&["--accelerator", "tcg"], &["uname", "-r"]);
    let translated = translated.expect_code(0);
    assert_eq!(translated.stdout, run.stdout);
    assert!(
        !translated.stderr.contains("instructions"),
        "{}",
        translated.stderr
    );
    nothing_is_left(&world);
}

#[test]
fn an_answer_about_kvm_counts_for_what_it_was_given_for() {
    let Some(world) = with_image("an_answer_about_kvm_counts_for_what_it_was_given_for") else {
        return;
    };
    let kept = world.home.join(".local/state/stockade/kvm");
    world.run(&[], &["true"]).expect_code(0);
    let Ok(answer) = fs::read_to_string(&kept) else {
        // Nothing was tried, so nothing is kept.
        assert_eq!(accelerator(&world), "tcg");
        return;
    };
    // "yes" for another start of the host's kernel is no answer.
    let (key, _) = answer.split_once('\n').unwrap();
    fs::write(&kept, format!("0{key}\nyes.\n")).unwrap();
    let run = world.run(&[], &["true"]).expect_code(0);
    assert!(run.stderr.contains(TRIED), "{}", run.stderr);
    assert_eq!(fs::read_to_string(&kept).unwrap(), answer);
    nothing_is_left(&world);
}
