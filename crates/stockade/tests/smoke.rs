//! The shortest way through the whole product.

use stockade_testkit::World;

#[test]
fn a_command_runs_in_the_project_and_writes_there() {
    let world = World::new();
    world.sh("echo hello > file && cat file").expect_code(0);
    assert_eq!(
        std::fs::read_to_string(world.project.join("file")).unwrap(),
        "hello\n"
    );
}

#[test]
fn the_home_is_private_and_empty() {
    let world = World::new();
    world.write(".ssh/id_ed25519", "secret");
    let inside = world.sh("ls -A \"$HOME\"; cat \"$HOME/.ssh/id_ed25519\"");
    // Beside the project what leads to caches, which no run has filled yet.
    assert_eq!(inside.stdout.trim(), ".cache\n.cargo\nproject");
    let files = world.sh("cd && find .cache .cargo ! -type d ! -type l");
    assert_eq!(files.ok(), "");
    assert_ne!(inside.code, Some(0));
}
