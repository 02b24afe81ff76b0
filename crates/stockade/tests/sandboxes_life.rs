//! How sandboxes that stay begin and end: names, limits, kills, and that
//! nothing is left of them.

mod staying;

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use staying::{Staying, signal, soon};
use stockade_sys::rustix::process::{Pid, Signal, kill_process};
use stockade_testkit::net::{Internet, ORIGIN};
use stockade_testkit::{Finished, World, has_program, processes_with, skip};

/// Files of the world's registry.
fn files(world: &World) -> Vec<String> {
    let directory = world.home.join(".local/state/stockade/sandboxes");
    let mut files: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    files
}

/// Processes inside that have this mark in their command line.
fn marked(mark: &str) -> Vec<u32> {
    let mut found = processes_with(mark);
    // A caller's command line has it as well.
    found.retain(|pid| {
        !fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains("\0exec\0"))
    });
    found
}

#[test]
fn a_name_is_taken_once_and_refusals_leave_nothing() {
    let staying = Staying::new("names", &[]);
    let again = staying.start(&[]).expect_code(125);
    assert!(again.stderr.contains("already"), "{}", again.stderr);
    for options in [
        &["--name", "Upper"][..],
        &["--name", "../up"],
        &["--name", "refused", "--read", "/no/such/place"],
        &["--name", "refused", "--fail-step", "enter.directory"],
        &["--name", "refused", "-C", "/"],
    ] {
        let refused = staying.stockade(&[&["start"], options].concat());
        assert!(!refused.stderr.is_empty(), "{options:?}");
        assert_eq!(refused.expect_code(125).stdout, "", "{options:?}");
    }
    let weak = "weaken = [\"FS1\", \"FS3\", \"FS6\", \"PR3\", \"PR4\", \"PR8\", \"EP1\"]";
    let form = "[process]\nform = \"landlock-only\"";
    let policy = staying.world.policy(&format!("{weak}\n{form}\n"));
    let refused = staying.stockade(&["start"]).expect_code(125);
    assert!(
        refused.stderr.contains("without a pid namespace"),
        "{}",
        refused.stderr
    );
    fs::remove_file(policy).unwrap();
    let record = format!("{}.json", staying.name);
    let socket = format!("{}.sock", staying.name);
    let mut expected = vec![record, socket, "registry.lock".to_owned()];
    expected.sort();
    assert_eq!(files(&staying.world), expected);
    // Without a name it gets one.
    let name = staying.stockade(&["start", "--quiet"]).ok();
    assert!(name.len() == 6 && name.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    let listed = staying.listed().unwrap();
    assert_eq!(listed["state"], "running");
    assert_eq!(listed["wall"], "process");
    assert_eq!(listed["workspace"], staying.world.project.to_str().unwrap());
    assert_eq!(listed["run"].as_str().unwrap().len(), 12);
    staying
        .stockade(&["stop", &name, &staying.name])
        .expect_code(0);
    assert_eq!(files(&staying.world), ["registry.lock"]);
    let absent = staying.stockade(&["stop", &name]).expect_code(1);
    assert!(absent.stderr.contains("there is no sandbox called"));
    assert_eq!(staying.stockade(&["list"]).ok(), "There is no sandbox.");
}

#[test]
fn stopping_asks_commands_first_and_leaves_nothing() {
    let staying = Staying::new("stops", &[]);
    let mark = format!("mark-{}", staying.name);
    let mut asked = staying.spawn("trap 'exit 9' TERM; while :; do sleep 0.01; done");
    let mut deaf = staying.spawn(&format!(
        "trap '' TERM; while :; do sleep 0.1; done; : {mark}"
    ));
    staying
        .sh(&format!(
            "setsid sh -c 'while :; do sleep 0.1; done; : {mark}' >/dev/null 2>&1 &"
        ))
        .ok();
    soon("they run", || marked(&mark).len() >= 2);
    staying.stockade(&["stop", &staying.name]).expect_code(0);
    assert_eq!(asked.wait().unwrap().code(), Some(9));
    assert_eq!(deaf.wait().unwrap().code(), Some(137));
    assert_eq!(marked(&mark), [0; 0]);
    assert_eq!(files(&staying.world), ["registry.lock"]);
    let ended = staying.records("sandbox_ended");
    assert_eq!(ended[0]["reason"], "stopped by stockade stop");
    assert_eq!(staying.records("exited").len(), 1);
}

#[test]
fn a_killed_supervisor_takes_everything_along() {
    let staying = Staying::new("killed", &[]);
    let mark = format!("mark-{}", staying.name);
    for _ in 0..5 {
        let mut child = staying.spawn(&format!("while :; do sleep 0.1; done; : {mark}"));
        soon("it runs", || !marked(&mark).is_empty());
        signal(staying.supervisor(), Signal::KILL);
        assert_eq!(child.wait().unwrap().code(), Some(137));
        soon("nothing is left", || marked(&mark).is_empty());
        staying.exec(&["true"]).expect_code(125);
        let found = staying.stockade(&["gc", "--dry-run"]).ok();
        assert!(found.contains(&staying.name), "{found}");
        let listed = staying.listed().unwrap();
        assert_eq!(listed["state"], "gone");
        assert_eq!(staying.listed(), None);
        assert_eq!(files(&staying.world), ["registry.lock"]);
        staying.start(&[]).expect_code(0);
        signal(staying.supervisor(), Signal::KILL);
        // The next start finds the litter as well.
        soon("the name is free", || staying.start(&[]).code == Some(0));
    }
}

/// Kills of the supervisor, at moments that spread over its whole life.
const KILLS: u32 = 30;

#[test]
fn a_supervisor_may_be_killed_at_any_moment() {
    let staying = Staying::new("moments", &[]);
    let mark = format!("mark-{}", staying.name);
    let other = format!("other-{}", staying.name);
    let script = format!("sh -c 'while :; do sleep 0.1; done; : {mark}' & exec sleep 1000");
    let start = ["start", "--name", &other];
    let begun = Instant::now();
    staying.stockade(&start).expect_code(0);
    staying
        .stockade(&["exec", &other, "--", "true"])
        .expect_code(0);
    staying.stockade(&["stop", &other]).expect_code(0);
    let life = begun.elapsed();
    for number in 0..KILLS {
        std::thread::scope(|scope| {
            let work = || {
                staying.stockade(&start);
                staying.stockade(&["exec", &other, "--", "sh", "-c", &script]);
                staying.stockade(&["stop", &other]);
            };
            let working = scope.spawn(work);
            // Some of them hit a command that waits for the kill.
            std::thread::sleep(life * 2 * number / KILLS);
            while !working.is_finished() {
                for pid in processes_with(&format!("start --name {other}")) {
                    signal_if_there(pid, Signal::KILL);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        soon("nothing is left", || {
            marked(&mark).is_empty() && processes_with(&format!("start --name {other}")).is_empty()
        });
        // A launcher that is about to end may still have the lock of the record.
        soon(
            &format!("its litter is cleared after kill {number}"),
            || {
                staying.stockade(&["list"]).expect_code(0);
                files(&staying.world).len() == 3
            },
        );
        assert_eq!(staying.commands(), Some(0));
    }
    staying.stockade(&start).expect_code(0);
    staying.stockade(&["log", "--verify"]).expect_code(0);
}

fn signal_if_there(pid: u32, number: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    let _gone = kill_process(pid, number).is_err();
}

#[test]
fn a_supervisor_that_is_asked_or_stopped_ends_too() {
    let staying = Staying::new("asked-to", &[]);
    signal(staying.supervisor(), Signal::TERM);
    soon("it is over", || staying.listed().is_none());
    staying.start(&[]).expect_code(0);
    let supervisor = staying.supervisor();
    signal(supervisor, Signal::STOP);
    let stopped = staying.stockade(&["stop", "--json", &staying.name]).ok();
    assert!(stopped.contains("\"killed\":true"), "{stopped}");
    assert!(!Path::new(&format!("/proc/{supervisor}/root/.")).exists());
    assert_eq!(files(&staying.world), ["registry.lock"]);
}

#[test]
fn a_killed_caller_ends_its_command_and_no_other() {
    let staying = Staying::new("caller", &[]);
    let mark = format!("mark-{}", staying.name);
    let mut other = staying.spawn("exec sleep 1000");
    for script in [
        "exec sleep 1000",
        // It does not mind being hung up, and is killed.
        "trap '' HUP; while :; do sleep 0.1; done",
        // It is in the midst of writing to nobody.
        "trap '' HUP PIPE; exec yes",
    ] {
        let mut child = staying.spawn(&format!("{script}; : {mark}"));
        signal(child.id(), Signal::KILL);
        child.wait().unwrap();
        soon("the command is gone", || staying.commands() == Some(1));
    }
    assert!(other.try_wait().unwrap().is_none());
    signal(other.id(), Signal::TERM);
    assert_eq!(other.wait().unwrap().code(), Some(143));
    assert_eq!(staying.records("exec_ended").len(), 4);
}

#[test]
fn limits_are_those_of_the_sandbox() {
    let staying = Staying::new("limits", &["--wall-time", "3s"]);
    let done = staying.exec(&["sleep", "1000"]).expect_code(124);
    assert!(done.stderr.contains("limits.wall_time"), "{}", done.stderr);
    soon("it is over", || staying.listed().is_none());
    assert_eq!(staying.records("limit_hit")[0]["limit"], "limits.wall_time");
    staying.start(&["--memory", "64MiB"]).expect_code(0);
    // Two of them together are too much.
    let fill = "head -c 40000000 /dev/zero | tail -c 40000000 | (read -r never; sleep 1000)";
    let mut first = staying.spawn(&format!("{fill} & wait"));
    let mut second = staying.spawn(&format!("{fill} & wait"));
    assert_eq!(second.wait().unwrap().code(), Some(137));
    assert_eq!(first.wait().unwrap().code(), Some(137));
    soon("it is over", || staying.listed().is_none());
    assert!(
        staying
            .records("limit_hit")
            .iter()
            .any(|hit| hit["limit"] == "limits.memory"),
    );
}

#[test]
fn guarded_names_are_held_and_layers_wait() {
    let staying = Staying::new("writes", &[]);
    staying
        .sh("git init -q . && echo x > .git/hooks/pre-commit && echo y > file")
        .ok();
    assert!(staying.world.project.join("file").exists());
    assert!(!staying.world.project.join(".git/hooks/pre-commit").exists());
    let approvals = staying.stockade(&["approvals"]).ok();
    assert!(approvals.contains("pre-commit"), "{approvals}");
    staying.stockade(&["stop", &staying.name]).expect_code(0);
    staying.start(&["--workspace", "review"]).expect_code(0);
    staying.sh("echo z > file").ok();
    assert_eq!(staying.sh("cat file").ok(), "z");
    assert_eq!(
        fs::read_to_string(staying.world.project.join("file")).unwrap(),
        "y\n"
    );
    let run = staying.listed().unwrap()["run"]
        .as_str()
        .unwrap()
        .to_owned();
    staying.stockade(&["stop", &staying.name]).expect_code(0);
    let diff = staying.stockade(&["diff", &run]).ok();
    assert!(diff.contains("+z"), "{diff}");
    staying.stockade(&["apply", &run]).expect_code(0);
    assert_eq!(
        fs::read_to_string(staying.world.project.join("file")).unwrap(),
        "z\n"
    );
    staying.start(&["--workspace", "discard"]).expect_code(0);
    staying.sh("echo thrown > file").ok();
    staying.stockade(&["stop", &staying.name]).expect_code(0);
    assert_eq!(
        fs::read_to_string(staying.world.project.join("file")).unwrap(),
        "z\n"
    );
}

/// Prints the status of the origin, or of the refusal.
const FETCH: &str = "curl -s -o /dev/null -w '%{http_code}' http://HOST/path?secret=1";

fn fetch(staying: &Staying, host: &str) -> String {
    staying.sh(&FETCH.replace("HOST", host)).stdout
}

#[test]
fn a_sandbox_keeps_its_way_out_and_takes_new_rules() {
    let test = "a_sandbox_keeps_its_way_out_and_takes_new_rules";
    for program in ["ip", "unshare", "nsenter", "curl"] {
        if !has_program(program) {
            return skip(test, program, "it is not installed");
        }
    }
    let world = World::new();
    let internet = Internet::start(&world);
    internet.zone("first.test", &[ORIGIN]);
    internet.zone("second.test", &[ORIGIN]);
    internet.policy(&world, "allow = [\"first.test\"]", "");
    let staying = Staying {
        world,
        name: format!("network-{}", std::process::id()),
    };
    let mut start = staying.world.stockade();
    start.args(["start", "--name", &staying.name]);
    let mut start = internet.on_machine(&start);
    let started = start.stdin(Stdio::null()).output().unwrap();
    assert_eq!(Finished::of(started).ok(), staying.name);
    assert_eq!(fetch(&staying, "first.test"), "200");
    assert_eq!(fetch(&staying, "second.test"), "403");
    internet.policy(&staying.world, "allow = [\"second.test\"]", "");
    staying.stockade(&["reload"]).expect_code(0);
    assert_eq!(fetch(&staying, "first.test"), "403");
    assert_eq!(fetch(&staying, "second.test"), "200");
    let record = staying.stockade(&["log", "--network"]).ok();
    assert!(record.contains("second.test") && !record.contains("secret=1"));
    // Without its egress process it goes on without a network.
    let supervisor = staying.supervisor();
    let children = format!("/proc/{supervisor}/task/{supervisor}/children");
    let children = std::fs::read_to_string(children).unwrap();
    let egress = processes_with("stockade egress");
    let egress = egress
        .into_iter()
        .find(|pid| children.split(' ').any(|child| child == pid.to_string()));
    signal(egress.unwrap(), Signal::KILL);
    soon("the loss is on record", || {
        !staying.records("network_lost").is_empty()
    });
    assert_ne!(fetch(&staying, "second.test"), "200");
    assert_eq!(staying.sh("echo on").ok(), "on");
    staying.stockade(&["stop", &staying.name]).expect_code(0);
}
