//! The question at the end of a run in review mode, on a real terminal: each
//! answer does what it says, and nothing is applied unless somebody asked.

use std::fs;
use std::path::PathBuf;

use stockade_testkit::pty::Terminal;
use stockade_testkit::tools::soon;
use stockade_testkit::{Finished, World};

/// How a question ends, whatever is offered.
const QUESTION_END: &str = "or decide [l]ater? ";
/// What the command exits with, whatever becomes of its layer.
const CODE: i32 = 3;
/// One plain file, one that is held.
const WRITES: &str = "echo text > plain; echo '#!/bin/sh' > .git/hooks/pre-commit; exit 3";

fn prepared() -> World {
    let world = World::new();
    world.outside_sh("git init -q .").ok();
    world.write("project/file", "one\n");
    world
}

/// A run in review mode whose question is on the screen.
fn asked(world: &World, script: &str) -> Terminal {
    let mut command = world.stockade();
    command.args(["run", "--workspace", "review", "--", "sh", "-c", script]);
    let mut terminal = Terminal::start(&command);
    terminal.expect("waits:");
    terminal.expect(QUESTION_END);
    terminal
}

fn ends(terminal: &mut Terminal) {
    let status = terminal.wait();
    assert_eq!(status.code(), Some(CODE), "{}", terminal.screen);
}

fn is_there(world: &World, name: &str) -> bool {
    world.project.join(name).exists()
}

/// The layers of the runs that wait.
fn waiting(world: &World) -> Vec<PathBuf> {
    let all = world.home.join(".local/state/stockade/workspaces");
    let workspaces = fs::read_dir(all).into_iter().flatten().flatten();
    workspaces
        .flat_map(|workspace| fs::read_dir(workspace.path().join("runs")))
        .flatten()
        .map(|run| run.unwrap().path().join("upper"))
        .collect()
}

/// Nothing reached the tree, and everything waits.
#[track_caller]
fn all_waits(world: &World) {
    assert!(!is_there(world, "plain") && !is_there(world, ".git/hooks/pre-commit"));
    let layers = waiting(world);
    assert_eq!(layers.len(), 1, "{layers:?}");
    assert!(layers[0].join("plain").exists());
    assert!(layers[0].join(".git/hooks/pre-commit").exists());
}

#[test]
fn apply_applies_all() {
    let world = prepared();
    let mut terminal = asked(&world, WRITES);
    assert!(
        terminal.screen.contains("apply all [b]ut the 1 held"),
        "{}",
        terminal.screen
    );
    all_waits(&world);
    terminal.send(b"a\n");
    terminal.expect("2 changes");
    ends(&mut terminal);
    assert!(is_there(&world, "plain") && is_there(&world, ".git/hooks/pre-commit"));
    assert!(waiting(&world).is_empty());
}

#[test]
fn but_the_held_leaves_them_waiting() {
    let world = prepared();
    let mut terminal = asked(&world, WRITES);
    terminal.send(b" BUT \n");
    terminal.expect("1 changes");
    terminal.expect("1 changes still wait");
    ends(&mut terminal);
    assert!(is_there(&world, "plain") && !is_there(&world, ".git/hooks/pre-commit"));
    let layers = waiting(&world);
    assert!(layers[0].join(".git/hooks/pre-commit").exists());
    assert!(!layers[0].join("plain").exists());
}

#[test]
fn discard_drops_all() {
    let world = prepared();
    let mut terminal = asked(&world, WRITES);
    terminal.send(b"discard\n");
    terminal.expect("discarded");
    ends(&mut terminal);
    assert!(!is_there(&world, "plain") && !is_there(&world, ".git/hooks/pre-commit"));
    assert!(waiting(&world).is_empty());
}

#[test]
fn show_shows_and_asks_again() {
    let world = prepared();
    let mut terminal = asked(&world, WRITES);
    terminal.send(b"s\n");
    terminal.expect("+#!/bin/sh");
    terminal.expect("+text");
    terminal.expect(QUESTION_END);
    all_waits(&world);
    terminal.send(b"l\n");
    terminal.expect("later: `stockade apply");
    ends(&mut terminal);
    all_waits(&world);
}

/// What is long goes through the caller's pager, which gets the terminal.
#[test]
fn what_is_long_is_paged() {
    let world = prepared();
    let mut command = world.stockade();
    command
        .env(
            "PAGER",
            "sed 's/^/paged: /'; echo answer the pager; read x </dev/tty; echo \"got $x\"",
        )
        .args(["run", "--workspace", "review", "--", "sh", "-c"])
        .arg(format!("seq 1 100 > long; {WRITES}"));
    let mut terminal = Terminal::start(&command);
    terminal.expect(QUESTION_END);
    terminal.send(b"s\n");
    terminal.expect("paged:     +100");
    terminal.expect("answer the pager");
    terminal.send(b"a\n");
    terminal.expect("got a");
    terminal.expect(QUESTION_END);
    all_waits(&world);
    // A pager has Ctrl-C for itself; the question is there again.
    terminal.send(b"s\n");
    terminal.expect("answer the pager");
    terminal.send(b"\x03");
    terminal.expect(QUESTION_END);
    all_waits(&world);
    terminal.send(b"d\n");
    ends(&mut terminal);
    assert!(waiting(&world).is_empty());
}

/// Nor does Ctrl-C in the pager of `diff` end `diff` under it.
#[test]
fn a_pager_has_the_keys_for_itself() {
    let world = prepared();
    let script = format!("seq 1 100 > long; {WRITES}");
    world
        .run(&["--workspace", "review"], &["sh", "-c", &script])
        .expect_code(CODE);
    let mut command = world.stockade();
    let pager = "cat; trap 'echo heard' INT; echo answer the pager; \
                 until read x </dev/tty; do :; done; echo \"got $x\"";
    command.env("PAGER", pager).arg("diff");
    let mut terminal = Terminal::start(&command);
    terminal.expect("answer the pager");
    terminal.send(b"\x03");
    terminal.expect("heard");
    terminal.send(b"q\n");
    terminal.expect("got q");
    assert_eq!(terminal.wait().code(), Some(0), "{}", terminal.screen);
}

#[test]
fn nonsense_is_asked_again() {
    let world = prepared();
    let mut terminal = asked(&world, WRITES);
    let long = [&b"a".repeat(3000)[..], b"\n"].concat();
    let nonsense: [&[u8]; 8] = [
        b"\n",
        b"y\n",
        b"yes\n",
        b"a b\n",
        b"apply all\n",
        b"\xff\xfe\n",
        b"\x1b[A\n",
        &long,
    ];
    for words in nonsense {
        terminal.send(words);
        terminal.expect(QUESTION_END);
    }
    all_waits(&world);
    terminal.send(b"a\n");
    ends(&mut terminal);
    assert!(is_there(&world, "plain"));
}

/// What was typed while the command ran, or by the command's leave, is no
/// answer.
#[test]
fn what_was_typed_before_answers_nothing() {
    let world = prepared();
    let mut command = world.stockade();
    command
        .args(["run", "--workspace", "review", "--", "sh", "-c"])
        .arg(format!(
            "echo type; read first; echo \"read $first\"; {WRITES}"
        ));
    let mut terminal = Terminal::start(&command);
    terminal.expect("type");
    terminal.send(b"a\na\na\n");
    terminal.expect("read a");
    terminal.expect(QUESTION_END);
    terminal.send(b"l\n");
    terminal.expect("later:");
    ends(&mut terminal);
    all_waits(&world);
}

#[test]
fn ctrl_c_applies_nothing() {
    let world = prepared();
    let mut terminal = asked(&world, WRITES);
    terminal.send(b"\x03");
    terminal.wait();
    all_waits(&world);
    assert!(!terminal.screen.contains("applied"), "{}", terminal.screen);
    // And the terminal is as it was.
    let modes = terminal.modes();
    for mode in ["icanon", "echo", "isig"] {
        assert!(modes.split_whitespace().any(|one| one == mode), "{modes}");
    }
    let applied = world.stockade().args(["apply", "--held"]).output().unwrap();
    Finished::of(applied).expect_code(0);
    assert!(is_there(&world, "plain"));
}

#[test]
fn the_end_of_the_input_means_later() {
    let world = prepared();
    let mut terminal = asked(&world, WRITES);
    terminal.send(b"\x04");
    terminal.expect("later:");
    ends(&mut terminal);
    all_waits(&world);
}

#[test]
fn a_terminal_that_is_gone_applies_nothing() {
    let world = prepared();
    let mut terminal = asked(&world, WRITES);
    terminal.hang_up();
    terminal.wait();
    all_waits(&world);
    let discarded = world.stockade().arg("discard").output().unwrap();
    Finished::of(discarded).expect_code(0);
    assert!(waiting(&world).is_empty());
}

/// Nor is anything applied when the process that asks is killed.
#[test]
fn a_killed_question_applies_nothing() {
    let world = prepared();
    let terminal = asked(&world, WRITES);
    // Dropping it kills.
    drop(terminal);
    all_waits(&world);
    let discard = || world.stockade().arg("discard").output().unwrap();
    assert!(soon(|| discard().status.success()));
}

#[test]
fn an_answer_that_cannot_be_followed_leaves_all_waiting() {
    let world = prepared();
    let mut terminal = asked(&world, &format!("echo two > file; {WRITES}"));
    world.write("project/file", "by hand\n");
    terminal.send(b"a\n");
    terminal.expect("file changed since the run started");
    ends(&mut terminal);
    all_waits(&world);
    let file = fs::read_to_string(world.project.join("file")).unwrap();
    assert_eq!(file, "by hand\n");
}

/// Who redirects an end, or wants silence, is not asked.
#[test]
fn without_a_person_nobody_is_asked() {
    for (options, redirection, said) in [
        ("", "2> stderr", "stockade apply"),
        ("", "< /dev/null", "stockade apply"),
        ("--quiet", "", ""),
    ] {
        let world = prepared();
        let line = format!(
            "\"$0\" run {options} --workspace review -- sh -c \"$1\" {redirection}; \
             echo \"ended with $?\"; cat stderr"
        );
        let stockade = world.stockade();
        let mut command = std::process::Command::new("sh");
        command
            .args(["-c", &line])
            .arg(stockade.get_program())
            .arg(WRITES);
        for (name, value) in stockade.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command.current_dir(&world.project);
        let mut terminal = Terminal::start(&command);
        terminal.expect("ended with 3");
        terminal.wait();
        assert!(terminal.screen.contains(said), "{}", terminal.screen);
        assert!(
            !terminal.screen.contains(QUESTION_END),
            "{}",
            terminal.screen
        );
        all_waits(&world);
    }
}
