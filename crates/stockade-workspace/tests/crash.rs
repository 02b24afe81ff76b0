//! An apply that is killed at any moment ends in the same state when it is
//! called again.

mod layers;

use std::cell::Cell;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use layers::{World, again, assert_same, observe, open};
use stockade_workspace::apply::{self, OnConflict, Ownership, Request};
use stockade_workspace::diff::diff;
use stockade_workspace::journal::Journal;

const INSIDE: &str = "STOCKADE_TEST_INSIDE";
const PLACE: &str = "STOCKADE_TEST_PLACE";
const CONSUME: &str = "STOCKADE_TEST_CONSUME";
const STOP_AT: &str = "STOCKADE_TEST_STOP_AT";
/// Kills that must find an apply in the middle.
const KILLS: usize = 100;

/// A tree and what a command did to it: every kind of change.
fn prepare(world: &World) -> layers::Tree {
    let base = world.at("base");
    for directory in [
        "src/deep/deeper",
        "old/tree",
        "again/x",
        "file-to-be",
        "plain",
    ] {
        fs::create_dir_all(base.join(directory)).unwrap();
    }
    for index in 0..12 {
        fs::write(
            base.join(format!("plain/{index}")),
            format!("old {index}\n"),
        )
        .unwrap();
    }
    for name in [
        "src/a",
        "src/deep/b",
        "src/deep/deeper/c",
        "old/tree/d",
        "again/x/e",
        "file-to-be/f",
        "directory-to-be",
    ] {
        fs::write(base.join(name), name).unwrap();
    }
    fs::hard_link(base.join("src/a"), base.join("src/a-link")).unwrap();
    let view = world.mount(&["upper"], true);
    let at = |name: &str| view.0.join(name);
    for index in 0..12 {
        match index % 4 {
            0 => fs::write(at(&format!("plain/{index}")), "new\n").unwrap(),
            1 => fs::remove_file(at(&format!("plain/{index}"))).unwrap(),
            2 => fs::rename(
                at(&format!("plain/{index}")),
                at(&format!("plain/moved {index}")),
            )
            .unwrap(),
            _ => fs::hard_link(
                at(&format!("plain/{index}")),
                at(&format!("plain/link {index}")),
            )
            .unwrap(),
        }
    }
    fs::write(at("src/a"), "changed").unwrap();
    fs::remove_dir_all(at("old")).unwrap();
    fs::remove_dir_all(at("again")).unwrap();
    fs::create_dir(at("again")).unwrap();
    fs::write(at("again/new"), "made again").unwrap();
    fs::remove_dir_all(at("file-to-be")).unwrap();
    fs::write(at("file-to-be"), "a file now").unwrap();
    fs::remove_file(at("directory-to-be")).unwrap();
    fs::create_dir_all(at("directory-to-be/below")).unwrap();
    fs::write(at("directory-to-be/below/g"), "inside").unwrap();
    symlink("nowhere", at("link")).unwrap();
    fs::create_dir_all(at("new/tree")).unwrap();
    fs::write(at("new/tree/h"), "h").unwrap();
    drop(view);
    // Mounted anew: the kernel remembers which file a name was linked from
    // only while it is mounted.
    observe(&world.mount(&["upper"], false).0)
}

/// In the process that is killed: applies, and says so.
fn victim(place: &Path) {
    let stop_at: Option<usize> = std::env::var(STOP_AT)
        .ok()
        .map(|number| number.parse().unwrap());
    let reached = Cell::new(0);
    let progress = |_, _| {
        reached.set(reached.get() + 1);
        if Some(reached.get()) == stop_at {
            let process = rustix::process::getpid();
            rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
        }
    };
    std::io::stdout().write_all(b"ready\n").unwrap();
    finish(place, &progress);
}

/// Applies everything, or what an interrupted call left.
fn finish(place: &Path, progress: &dyn Fn(usize, usize)) {
    let consume = std::env::var_os(CONSUME).is_some_and(|value| value == "1");
    finish_with(
        place,
        progress,
        if consume {
            Ownership::Consume
        } else {
            Ownership::Keep
        },
    );
}

fn finish_with(place: &Path, progress: &dyn Fn(usize, usize), ownership: Ownership) {
    let [upper, base, preimages, journal] =
        ["upper", "base", "preimages", "journal"].map(|name| open(&place.join(name)));
    let layers: [BorrowedFd<'_>; 1] = [upper.as_fd()];
    let request = Request {
        layers: &layers,
        base: base.as_fd(),
        preimages: preimages.as_fd(),
        stamp: None,
        own: &[],
        ownership,
        on_conflict: OnConflict::Refuse,
        progress,
    };
    let mut journal = Journal::open(journal.as_fd(), "journal").unwrap();
    if journal.is_pending() {
        let outcome = apply::resume(&request, &mut journal).unwrap();
        assert_eq!(outcome.conflicts, []);
    }
    let changes = diff(&layers, base.as_fd()).unwrap();
    let outcome = apply::apply(&changes, &|_| true, &request, &mut journal).unwrap();
    assert_eq!(outcome.conflicts, []);
}

fn start(place: &Path, ownership: Ownership, stop_at: Option<usize>) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "the_process_that_is_killed", "--nocapture"]);
    command
        .env(PLACE, place)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command.env(
        CONSUME,
        if ownership == Ownership::Consume {
            "1"
        } else {
            "0"
        },
    );
    if let Some(stop_at) = stop_at {
        command.env(STOP_AT, stop_at.to_string());
    }
    command
}

/// Runs the victim until it is dead; whether it was killed.
fn killed(mut command: Command) -> bool {
    let status = command.stdout(Stdio::null()).status().unwrap();
    assert!(status.success() || status.signal() == Some(9), "{status}");
    !status.success()
}

fn is_pending(world: &World) -> bool {
    world.at("journal/journal").exists()
}

fn check(world: &World, shown: &layers::Tree, start: &layers::Tree, what: &str) {
    assert_same(what, shown, &observe(&world.at("base")));
    assert!(!is_pending(world), "{what}: the journal is left");
    let view = world.mount(&["preimages"], false);
    let back = observe(&view.0);
    drop(view);
    let plain = |tree: &layers::Tree| {
        let mut tree = tree.clone();
        tree.iter_mut()
            .for_each(|(path, state)| state.first_name = path.clone());
        tree
    };
    assert_same(&format!("{what}: preimages"), &plain(start), &plain(&back));
}

fn inside(name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    assert!(
        again(name, &[])
            .status()
            .expect("cannot run unshare")
            .success()
    );
    false
}

/// Not a test of its own: what the others start and kill.
#[test]
fn the_process_that_is_killed() {
    if let Some(place) = std::env::var_os(PLACE) {
        victim(Path::new(&place));
    }
}

/// Killed at each place at which the state on disk changes, one after the
/// other, until an apply ends before its turn.
#[test]
fn killed_at_every_step_it_ends_the_same() {
    if !inside("killed_at_every_step_it_ends_the_same") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    for ownership in [Ownership::Consume, Ownership::Keep] {
        let mut stop_at = 1;
        loop {
            let world = World::new(scratch.path());
            let shown = prepare(&world);
            let before = observe(&world.at("base"));
            let died = killed(start(world.scratch.path(), ownership, Some(stop_at)));
            finish_with(world.scratch.path(), &|_, _| {}, ownership);
            check(
                &world,
                &shown,
                &before,
                &format!("{ownership:?}, killed at step {stop_at}"),
            );
            if !died {
                break;
            }
            stop_at += 1;
        }
        assert!(stop_at > 30, "only {stop_at} steps with {ownership:?}");
    }
}

/// Killed from outside, again and again while the same apply goes on.
#[test]
fn killed_at_random_it_ends_the_same() {
    if !inside("killed_at_random_it_ends_the_same") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (mut in_the_middle, mut tries) = (0, 0u64);
    // How long is waited at most, so that half of the kills come too early.
    let mut most = 4096u16;
    while in_the_middle < KILLS {
        let ownership = if tries % 2 == 0 {
            Ownership::Consume
        } else {
            Ownership::Keep
        };
        let world = World::new(scratch.path());
        let shown = prepare(&world);
        let before = observe(&world.at("base"));
        loop {
            tries += 1;
            assert!(
                tries < 5000,
                "only {in_the_middle} of {tries} kills came in the middle"
            );
            let mut child = start(world.scratch.path(), ownership, None)
                .spawn()
                .unwrap();
            let mut output = child.stdout.take().unwrap();
            let mut heard = Vec::new();
            while !heard.ends_with(b"ready\n") {
                let mut byte = [0u8; 1];
                if output.read(&mut byte).unwrap() == 0 {
                    break;
                }
                heard.push(byte[0]);
            }
            // A busy wait of random length: a sleep would wake too late.
            let mut bytes = [0u8; 2];
            rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).unwrap();
            for _ in 0..u16::from_le_bytes(bytes) % most {
                std::thread::yield_now();
            }
            child.kill().unwrap();
            let status = child.wait().unwrap();
            if status.success() {
                most = (most / 2).max(16);
                break;
            }
            assert_eq!(status.signal(), Some(9), "{status}");
            if is_pending(&world) {
                in_the_middle += 1;
            } else {
                most = most.saturating_add(most / 8 + 1);
            }
        }
        check(
            &world,
            &shown,
            &before,
            &format!("{ownership:?}, killed {tries} times"),
        );
    }
}
