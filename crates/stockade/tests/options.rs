//! Options of the command line add to what applies without them, and what a
//! denial proposes works as proposed.

use stockade_testkit::World;

#[test]
fn a_variable_enters_in_addition() {
    let world = World::new();
    let mut command = world.stockade();
    command
        .args(["run", "--env", "TOKEN_NAME", "--", "env"])
        .env("TOKEN_NAME", "value");
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("TOKEN_NAME=value\n") && text.contains("LANG=C.UTF-8\n"),
        "{text}"
    );
}

#[test]
fn a_path_is_read_in_addition_and_from_the_current_directory() {
    let world = World::new();
    world.write("data/file", "content");
    let show = ["cat", "../data/file"];
    assert_eq!(world.run(&["--read", "../data"], &show).ok(), "content");
    assert_eq!(
        world
            .run(&["--preset", "read-only", "--read", "../data"], &show)
            .ok(),
        "content"
    );
    let write = ["sh", "-c", "echo x > new && echo y > ../data/new"];
    assert_ne!(
        world
            .run(&["--preset", "read-only", "--read", "../data"], &write)
            .code,
        Some(0)
    );
    assert_eq!(world.run(&["--write", "../data"], &write).code, Some(0));
}

#[test]
fn what_a_denial_proposes_works_in_a_policy_file() {
    let world = World::new();
    let file = world.write("data/file", "content");
    let show = ["cat", file.to_str().unwrap()];
    let denied = world.run(&[], &show).expect_code(1);
    assert!(denied.stderr.contains("to allow it:"), "{}", denied.stderr);
    let mut question = world.stockade();
    question.args(["test", "--json", "read"]).arg(&file);
    let answer = question.output().unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    let grant = answer["denial"]["smallest_grant"].as_str().unwrap();
    world.policy(grant);
    assert_eq!(world.run(&[], &show).ok(), "content");
}
