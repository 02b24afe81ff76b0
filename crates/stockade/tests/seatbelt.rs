//! The wall of macOS as it shows everywhere else: explained and asked, and never
//! run.

use serde_json::Value;
use stockade_testkit::World;
use stockade_testkit::sbpl::{self, Object, Parameters, Volume};

fn explained(world: &World, options: &[&str]) -> (Option<i32>, String, String) {
    let mut command = world.stockade();
    command
        .args(["explain", "--wall", "seatbelt"])
        .args(options);
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn explaining_prints_the_profile_and_what_macos_cannot_hold() {
    let world = World::new();
    let (code, page, errors) = explained(&world, &["--verbose"]);
    assert_eq!(code, Some(0), "{errors}");
    for part in [
        "Wall seatbelt",
        "(version 1)",
        "(deny default)",
        "macOS lets no program load a filter of system calls",
        "memory has no limit",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let (_, json, _) = explained(&world, &["--json"]);
    let plan: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(plan["wall"], "seatbelt");
    assert_eq!(plan["form"], "seatbelt");
    let steps = plan["steps"].as_array().unwrap();
    let profile = steps
        .iter()
        .find_map(|step| step["profile"].as_str())
        .unwrap();
    let parameters = [("TEMPORARY", "/private/tmp/stockade.x")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let profile = sbpl::parse(profile, &Parameters::from(parameters)).unwrap();
    let allows = |operation: &str, path: String| {
        profile.allows(
            operation,
            Object::Path(path.as_bytes()),
            Volume::CaseFolding,
        )
    };
    let project = world.project.display();
    assert!(allows(
        "file-write-create",
        format!("{project}/src/main.rs")
    ));
    assert!(!allows(
        "file-write-create",
        format!("{project}/.GIT/hooks/pre-commit")
    ));
    assert!(!allows(
        "file-read-data",
        "/root/.ssh/id_ed25519".to_owned()
    ));
}

#[test]
fn nothing_runs_behind_it_on_linux() {
    let world = World::new();
    let run = world
        .run(&["--wall", "seatbelt"], &["touch", "made"])
        .expect_code(125);
    assert!(
        run.stderr.contains("this wall is macOS's"),
        "{}",
        run.stderr
    );
    assert!(run.stderr.contains("remedy"), "{}", run.stderr);
    assert!(!world.project.join("made").exists());
    let mut start = world.stockade();
    let output = start
        .args(["start", "--wall", "seatbelt"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    world.policy("wall = \"process\"\n");
    let output = world.run(&["--wall", "seatbelt"], &["cat", "/proc/self/status"]);
    assert!(output.ok().contains("Seccomp:\t2"), "the stronger one wins");
}

#[test]
fn what_is_demanded_and_cannot_be_held_is_refused() {
    let world = World::new();
    for (options, guarantee) in [
        (&["--memory", "1GiB"][..], "PR7"),
        (&["--workspace", "review"], "FS4"),
    ] {
        let (code, _, errors) = explained(&world, options);
        assert_eq!(code, Some(125), "{errors}");
        let said = format!("{guarantee} cannot be kept by the seatbelt wall");
        assert!(errors.contains(&said), "{errors}");
    }
}

#[test]
fn a_guarded_name_is_refused_and_not_held() {
    let world = World::new();
    world.policy("wall = \"seatbelt\"\n");
    let mut question = world.stockade();
    question
        .args(["test", "--json", "write"])
        .arg(world.project.join(".envrc"));
    let output = question.output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let reason = answer["denial"]["reason"].as_str().unwrap();
    assert!(reason.contains("Seatbelt can only refuse"), "{reason}");
}
