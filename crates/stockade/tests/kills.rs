//! Killed at a random moment, each command that changes the store or the tree
//! ends as before or after, leaves no litter, and the same command goes on.
//!
//! With the 60 kills of runs in live mode (`live.rs`) and the 100 of applying
//! as a library (`stockade-workspace/tests/crash.rs`) more than 300 moments.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stockade_sys::rustix;
use stockade_testkit::{Finished, World, binary};

/// Kills that each test must land while its command is at work.
const RUNS: u32 = 40;
const APPLIES: u32 = 40;
const SNAPSHOTS: u32 = 30;
const RESTORES: u32 = 40;
const FLATTENINGS: u32 = 40;
const COLLECTIONS: u32 = 30;

/// Most attempts for one kill that lands.
const TRIES: u32 = 12;

fn stockade(world: &World, arguments: &[&str]) -> Finished {
    Finished::of(world.stockade().args(arguments).output().unwrap())
}

fn random() -> u64 {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).unwrap();
    u64::from_le_bytes(bytes)
}

/// Everything of the project, without which names are one file.
fn state(world: &World) -> String {
    world
        .outside_sh(
            "find . -printf '%P|%y|%m|%T@|%l\\n' | sort; \
             find . -type f | sort | xargs -d '\\n' -r sha256sum",
        )
        .ok()
}

fn prepared() -> World {
    let world = World::new();
    for number in 0..20 {
        world.write(format!("project/d{}/f{number}", number % 4), "old\n");
    }
    world.write("project/file", "one\n");
    world.outside_sh("ln file hard; ln -s file soft").ok();
    world
}

const WRITES: &str = "for i in 0 1 2 3; do for f in d$i/*; do echo $1 > $f; done; \
    echo $1 > d$i/new; done; echo $1 > file; rm -rf d3; mkdir -p made; echo $1 > made/f; \
    ln -sf x$1 soft; chmod 600 d0/f0";

/// A review run that changed much; its id.
fn review(world: &World, on: &[&str], word: &str) -> String {
    let mut options = vec!["--workspace", "review"];
    options.extend(on);
    let run = world.run(&options, &["sh", "-c", WRITES, "sh", word]);
    let run = run.expect_code(0);
    let words: Vec<&str> = run.stderr.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "run").unwrap();
    words[at + 1].to_owned()
}

fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_ascii_whitespace()
        .filter_map(|number| number.parse().ok())
        .collect()
}

/// The process and those below it that run the program of the product.
fn of_the_product(pid: u32) -> Vec<u32> {
    let program = fs::canonicalize(binary()).unwrap();
    let mut found = vec![pid];
    let mut waiting = children(pid);
    while let Some(pid) = waiting.pop() {
        if fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program) {
            found.push(pid);
        }
        waiting.extend(children(pid));
    }
    found
}

fn kill(pid: u32) {
    // Only ever a process that this test started.
    if let Some(pid) = rustix::process::Pid::from_raw(pid.cast_signed()) {
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_err();
    }
}

/// Kills commands at moments that spread over what they last took.
struct Killer {
    landed: u32,
    wanted: u32,
    tries: u32,
    took: Duration,
}

impl Killer {
    fn new(wanted: u32, took: Duration) -> Self {
        Self {
            landed: 0,
            wanted,
            tries: 0,
            took,
        }
    }

    fn is_done(&self) -> bool {
        self.landed >= self.wanted
    }

    /// Starts a command and kills one of its processes; whether that was
    /// before it ended.
    fn kill(&mut self, mut command: Command) -> bool {
        self.tries += 1;
        assert!(
            self.tries < TRIES * self.wanted,
            "only {} of {} kills came before the end",
            self.landed,
            self.tries
        );
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        let started = Instant::now();
        let mut child = command.spawn().unwrap();
        let most = self.took.as_micros() as u64 + 1;
        std::thread::sleep(Duration::from_micros(random() % most));
        let victims = of_the_product(child.id());
        let was_running = child.try_wait().unwrap().is_none();
        if was_running {
            kill(victims[random() as usize % victims.len()]);
        }
        finish(&mut child);
        if was_running {
            self.landed += 1;
        } else {
            self.took = started.elapsed().min(self.took).mul_f32(0.9);
        }
        was_running
    }

    fn report(&self, what: &str) {
        println!(
            "{what}: killed at {} moments of {}",
            self.landed, self.tries
        );
    }
}

/// Waits for a command of which any process may have been killed.
fn finish(child: &mut Child) {
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < Duration::from_secs(60), "it hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn timed(work: impl FnOnce()) -> Duration {
    let started = Instant::now();
    work();
    started.elapsed()
}

fn command(world: &World, arguments: &[&str]) -> Command {
    let mut command = world.stockade();
    command.args(arguments);
    command
}

/// The store of the world's one workspace.
fn store(world: &World) -> PathBuf {
    let all = world.home.join(".local/state/stockade/workspaces");
    fs::read_dir(all).unwrap().next().unwrap().unwrap().path()
}

fn names(directory: PathBuf) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Discards every run, deletes every snapshot, and finds nothing left: no
/// layer, no temporary name, no mount.
fn nothing_is_left(world: &World) {
    world.settle();
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(&stockade(world, arguments).ok()).unwrap()
    };
    for run in json(&["diff", "--list", "--json"])["runs"]
        .as_array()
        .unwrap()
    {
        stockade(world, &["discard", run["id"].as_str().unwrap()]).expect_code(0);
    }
    // One more, so that what was killed last is cleared away too.
    if !stockade(world, &["snapshot", "end"])
        .stderr
        .contains("taken")
    {
        panic!("no snapshot can be taken");
    }
    let listed = json(&["snapshot", "--list", "--json"]);
    for snapshot in listed["snapshots"].as_array().unwrap() {
        let name = snapshot["name"].as_str().unwrap();
        stockade(world, &["snapshot", name, "--delete"]).expect_code(0);
    }
    for part in ["runs", "layers", "flattening"] {
        let left = names(store(world).join(part));
        assert_eq!(left, Vec::<String>::new(), "{part}");
    }
    let litter = world
        .outside_sh("find . -name '.stockade-*' -o -type c -o -type b")
        .ok();
    assert_eq!(litter, "");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        !mounts.contains(world.project.to_str().unwrap()),
        "{mounts}"
    );
    assert!(
        stockade_testkit::processes_with(world.project.to_str().unwrap()).is_empty(),
        "a process is left"
    );
}

#[test]
fn a_killed_run_leaves_the_tree_and_waits_or_is_gone() {
    let world = prepared();
    let before = state(&world);
    let run = |mode: &'static str| {
        let script = format!("{WRITES}; sleep 0.02");
        let options = [
            "run",
            "--workspace",
            mode,
            "--",
            "sh",
            "-c",
            &script,
            "sh",
            "w",
        ];
        command(&world, &options)
    };
    let took = timed(|| {
        run("review").output().unwrap();
    });
    let mut killer = Killer::new(RUNS, took);
    while !killer.is_done() {
        let mode = ["review", "discard"][random() as usize % 2];
        killer.kill(run(mode));
        assert_eq!(state(&world), before, "{mode}");
    }
    // What waits can be looked at.
    let waiting = || {
        let list = stockade(&world, &["diff", "--list", "--json"]).ok();
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        list["runs"].as_array().unwrap().clone()
    };
    let started = Instant::now();
    // The last of a killed sandbox go a moment after their front, and what was to
    // be discarded goes beside the next run.
    loop {
        let waiting = waiting();
        let Some(id) = waiting.first().map(|run| run["id"].as_str().unwrap()) else {
            break;
        };
        let _busy_or_gone = stockade(&world, &["discard", id]);
        assert!(started.elapsed() < Duration::from_secs(60), "{id}");
    }
    assert_eq!(run("review").output().unwrap().status.code(), Some(0));
    killer.report("runs");
    nothing_is_left(&world);
}

#[test]
fn a_killed_apply_goes_on() {
    let world = prepared();
    stockade(&world, &["snapshot", "start"]).expect_code(0);
    let mut killer: Option<Killer> = None;
    let mut number = 0;
    while killer.as_ref().is_none_or(|killer| !killer.is_done()) {
        number += 1;
        let id = review(&world, &[], &number.to_string());
        // What the command saw, without the tree.
        let shown = {
            let script = "find . -printf '%P|%y|%m|%T@|%l\\n' | sort; \
                find . -type f | sort | xargs -d '\\n' -r sha256sum";
            let inside = world.run(&["--on", &id], &["sh", "-c", script]);
            inside.ok()
        };
        let Some(killer) = &mut killer else {
            let took = timed(|| {
                stockade(&world, &["apply", &id]).expect_code(0);
            });
            assert_eq!(state(&world), shown);
            killer = Some(Killer::new(APPLIES, took));
            continue;
        };
        while killer.kill(command(&world, &["apply", &id])) && !killer.is_done() {}
        // It is finished, or was in time.
        let again = stockade(&world, &["apply", &id]);
        let is_over = again.stderr.contains("there is no");
        assert!(again.code == Some(0) || is_over, "{}", again.stderr);
        assert_eq!(state(&world), shown);
    }
    world.settle();
    killer.unwrap().report("applies");
    nothing_is_left(&world);
}

#[test]
fn a_killed_snapshot_is_there_or_not() {
    let world = prepared();
    let id = review(&world, &[], "0");
    let shown = |world: &World| {
        world
            .run(&["--on", &id], &["sh", "-c", "cat file d0/new"])
            .ok()
    };
    let took = timed(|| {
        stockade(&world, &["snapshot", "s", "--of", &id]).expect_code(0);
    });
    let mut killer = Killer::new(SNAPSHOTS, took);
    let mut number = 0;
    while !killer.is_done() {
        number += 1;
        let script = format!("echo {number} > file");
        world
            .run(&["--on", &id], &["sh", "-c", &script])
            .expect_code(0);
        let name = format!("s{number}");
        killer.kill(command(&world, &["snapshot", &name, "--of", &id]));
        let again = stockade(&world, &["snapshot", &name, "--of", &id]);
        let is_there = again.stderr.contains("exists already");
        assert!(again.code == Some(0) || is_there, "{}", again.stderr);
        assert_eq!(shown(&world), format!("{number}\n0"));
        let of = world.run(&["--on", &name], &["cat", "file"]);
        assert_eq!(of.stdout, format!("{number}\n"));
    }
    killer.report("snapshots");
    nothing_is_left(&world);
}

#[test]
fn a_killed_restore_goes_on() {
    let world = prepared();
    let mut states = Vec::new();
    for name in ["one", "two"] {
        stockade(&world, &["snapshot", name]).expect_code(0);
        states.push((name, state(&world)));
        let id = review(&world, &[], name);
        stockade(&world, &["apply", &id]).expect_code(0);
    }
    let took = timed(|| {
        stockade(&world, &["restore", "two"]).expect_code(0);
    });
    let mut killer = Killer::new(RESTORES, took);
    let mut turn = 0;
    while !killer.is_done() {
        turn += 1;
        let (name, wanted) = &states[turn % 2];
        while killer.kill(command(&world, &["restore", name])) && !killer.is_done() {}
        stockade(&world, &["restore", name]).expect_code(0);
        assert_eq!(&state(&world), wanted, "{name}");
    }
    killer.report("restores");
    nothing_is_left(&world);
}

/// The chain is the old one or the new one, and shows the same.
#[test]
fn a_killed_flattening_leaves_each_chain_whole() {
    let world = prepared();
    let id = review(&world, &[], "0");
    const DEPTH: usize = 24;
    for number in 0..DEPTH {
        stockade(&world, &["snapshot", &format!("s{number}"), "--of", &id]).expect_code(0);
        let script = format!(
            "echo {number} > file; echo {number} > n{number}; rm -f n{}",
            number / 2
        );
        world
            .run(&["--on", &id], &["sh", "-c", &script])
            .expect_code(0);
    }
    // The last one makes it due; its record and layers are kept to begin again.
    let own = |world: &World| {
        let text = stockade(world, &["diff", "--json", &id]).ok();
        let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
        value["changes"].take().to_string()
    };
    let place = store(&world);
    let kept = world.outside().join("kept");
    let copy = |from: &PathBuf, to: &PathBuf| {
        let script = format!(
            // The kernel keeps directories without rights there.
            "chmod -fR u+rwx '{0}'/runs/*/work '{1}'/runs/*/work; \
             rm -rf '{1}' && cp -a '{0}' '{1}'",
            from.display(),
            to.display()
        );
        world.outside_sh(&script).expect_code(0);
    };
    copy(&place, &kept);
    let flatten = ["tend", "--project", world.project.to_str().unwrap()];
    let deep = |world: &World| {
        // One that was killed may still be about to end, and one that waited
        // for it goes on in its place.
        world.settle();
        copy(&kept, &place);
        // In the foreground of this test; the one in the background finds the
        // chain being flattened, or flattened.
        stockade(world, &["snapshot", "deep", "--of", &id]).expect_code(0);
    };
    deep(&world);
    world.settle();
    let wanted = own(&world);
    let mut killer = Killer::new(FLATTENINGS, Duration::from_millis(60));
    while !killer.is_done() {
        deep(&world);
        // Killed where it stands, and begun again while it does something.
        for pid in stockade_testkit::processes_with(&flatten.join(" ")) {
            kill(pid);
        }
        while killer.kill(command(&world, &flatten)) && !killer.is_done() {}
        assert_eq!(own(&world), wanted);
        stockade(&world, &flatten).expect_code(0);
        world.settle();
        assert_eq!(own(&world), wanted);
        let list = stockade(&world, &["snapshot", "--list", "--json"]).ok();
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        for snapshot in list["snapshots"].as_array().unwrap() {
            assert!(snapshot["layers"].as_array().unwrap().len() <= DEPTH);
        }
        let left = names(place.join("flattening"));
        assert_eq!(left, Vec::<String>::new());
    }
    killer.report("flattening");
    nothing_is_left(&world);
}

#[test]
fn a_killed_collection_is_finished_by_the_next() {
    let world = prepared();
    let mut killer = Killer::new(COLLECTIONS, Duration::from_millis(60));
    let mut number = 0;
    while !killer.is_done() {
        number += 1;
        let id = review(&world, &[], &number.to_string());
        let kept = format!("kept{number}");
        let gone = format!("gone{number}");
        stockade(&world, &["snapshot", &gone, "--of", &id]).expect_code(0);
        if number % 4 == 0 {
            stockade(&world, &["fork", &gone, &kept]).expect_code(0);
        }
        killer.kill(command(&world, &["discard", &id]));
        let again = stockade(&world, &["discard", &id]);
        assert!(
            again.code == Some(0) || again.stderr.contains("there is no"),
            "{}",
            again.stderr
        );
        killer.kill(command(&world, &["snapshot", &gone, "--delete"]));
        let again = stockade(&world, &["snapshot", &gone, "--delete"]);
        assert!(
            again.code == Some(0) || again.stderr.contains("there is no"),
            "{}",
            again.stderr
        );
        if number % 4 == 0 {
            let inside = world.run(&["--on", &kept], &["cat", "file"]);
            assert_eq!(inside.stdout, format!("{number}\n"));
            stockade(&world, &["discard", &kept]).expect_code(0);
        }
    }
    killer.report("collections");
    nothing_is_left(&world);
}
