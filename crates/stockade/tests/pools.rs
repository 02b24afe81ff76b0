//! Pools: each command has a sandbox of its own, which was there before it.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod staying;

use std::fs;
use std::process::Stdio;

use serde_json::Value;
use staying::{Staying, signal, soon};
use stockade_sys::rustix::process::Signal;
use stockade_testkit::{Finished, World, is_root, processes_with, skip};

/// What `stockade list` says of all there is.
fn listed(staying: &Staying) -> Vec<Value> {
    let listed: Value = serde_json::from_str(&staying.stockade(&["list", "--json"]).ok()).unwrap();
    listed["sandboxes"].as_array().unwrap().clone()
}

/// Names of the sandboxes in a state.
fn in_state(staying: &Staying, state: &str) -> Vec<String> {
    let all = listed(staying).into_iter();
    let all = all.filter(|one| one["state"] == state);
    all.map(|one| one["name"].as_str().unwrap().to_owned())
        .collect()
}

#[track_caller]
fn is_full(staying: &Staying, size: u64) {
    let ready = || staying.listed().and_then(|pool| pool["ready"].as_u64());
    soon("the pool is full again", || ready() == Some(size));
    assert_eq!(in_state(staying, "ready").len() as u64, size);
}

#[test]
fn each_command_has_a_sandbox_of_its_own_of_which_nothing_is_left() {
    let pool = Staying::new("own", &["--pool", "2"]);
    let before = in_state(&pool, "ready");
    assert_eq!(before.len(), 2);
    let mark = format!("{}.5", 100_000 + std::process::id());
    let script = format!(
        "mkdir /tmp/own && cat; echo left > file; setsid sleep {mark} > /dev/null 2>&1 & exit 7"
    );
    for _ in 0..3 {
        let mut command = pool.command(&[], &["sh", "-c", &script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"said").unwrap();
        let done = Finished::of(child.wait_with_output().unwrap()).expect_code(7);
        // A private directory is new, the project is not.
        assert_eq!(done.stdout, "said");
        assert_eq!(
            fs::read_to_string(pool.world.project.join("file")).unwrap(),
            "left\n"
        );
        assert_eq!(processes_with(&mark), [] as [u32; 0]);
    }
    let done = pool.sh("cat /tmp/own/x; echo $0").expect_code(0);
    assert_eq!(done.stdout, "sh\n");
    is_full(&pool, 2);
    let after = in_state(&pool, "ready");
    assert!(after.iter().all(|name| !before.contains(name)), "{after:?}");
    let ended = pool.records("sandbox_ended");
    assert_eq!(ended.len(), 4);
    assert!(
        ended
            .iter()
            .all(|one| one["reason"] == "its command is over")
    );
}

#[test]
fn more_commands_than_there_are_sandboxes_wait_for_the_next() {
    let pool = Staying::new("many", &["--pool", "2"]);
    let begin = |_| {
        let mut command = pool.command(&[], &["sh", "-c", "mkdir /tmp/own && echo $$"]);
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let all: Vec<_> = (0..12).map(begin).collect();
    for child in all {
        Finished::of(child.wait_with_output().unwrap()).ok();
    }
    is_full(&pool, 2);
    assert_eq!(pool.records("sandbox_started").len(), 14);
}

#[test]
fn nobody_uses_a_sandbox_of_a_pool_but_who_took_it() {
    let pool = Staying::new("nobody", &["--pool", "1"]);
    let spare = in_state(&pool, "ready").remove(0);
    let refused = pool.stockade(&["exec", &spare, "--", "true"]);
    let refused = refused.expect_code(125);
    assert!(
        refused.stderr.contains("with the name of the pool"),
        "{}",
        refused.stderr
    );
    fs::write(pool.world.outside().join("planted"), "x").unwrap();
    let planted = pool.world.outside().join("planted");
    let planted = planted.to_str().unwrap();
    for name in [&spare, &pool.name] {
        let into = pool.stockade(&["copy", planted, &format!("{name}:/tmp")]);
        assert_ne!(into.code, Some(0));
        assert!(into.stderr.contains("pool"), "{}", into.stderr);
    }
    assert_eq!(in_state(&pool, "ready"), [spare.as_str()]);

    let mut first = pool.spawn("sleep 1000");
    assert_eq!(in_state(&pool, "running"), [spare.as_str()]);
    let second = pool.stockade(&["exec", &spare, "--", "true"]);
    let second = second.expect_code(125);
    assert!(
        second.stderr.contains("for one command, which it has"),
        "{}",
        second.stderr
    );
    // When the caller is killed, the command and its sandbox end.
    signal(first.id(), Signal::KILL);
    first.wait().unwrap();
    soon("it ended", || !in_state(&pool, "running").contains(&spare));
    soon("it is gone", || {
        listed(&pool).iter().all(|one| one["name"] != *spare)
    });
    is_full(&pool, 1);
}

#[test]
fn ending_a_pool_leaves_what_was_taken_to_its_command() {
    let pool = Staying::new("end", &["--pool", "2"]);
    let before = pool.world.kept();
    let child = pool.spawn("while ! test -e go; do sleep 0.05; done; echo done");
    pool.stockade(&["stop", &pool.name]).ok();
    assert_eq!(pool.listed(), None);
    let left = listed(&pool);
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(left[0]["state"], "running");
    let none = pool.sh("true").expect_code(125);
    assert!(
        none.stderr.contains("there is no sandbox called"),
        "{}",
        none.stderr
    );
    fs::write(pool.world.project.join("go"), "").unwrap();
    let done = Finished::of(child.wait_with_output().unwrap());
    assert_eq!(done.ok(), "done");
    assert_eq!(listed(&pool), [] as [Value; 0]);
    let started = format!("start --name {}", pool.name);
    soon("nothing goes on", || processes_with(&started).is_empty());
    let records = |kept: Vec<String>| -> Vec<String> {
        let kept = kept.into_iter();
        kept.filter(|path| path.contains("sandboxes")).collect()
    };
    let after = records(pool.world.kept());
    assert!(after.len() < records(before).len());
    assert!(
        after.iter().all(|path| !path.ends_with(".json")),
        "{after:?}"
    );
}

/// The next one is starting then: it ends by itself, and nothing has to be killed.
#[test]
fn a_pool_is_ended_in_order_while_another_sandbox_starts() {
    let pool = Staying::new("order", &["--pool", "2"]);
    for _ in 0..10 {
        pool.sh("true").ok();
        let stopped = pool.stockade(&["stop", &pool.name]).expect_code(0);
        assert_eq!(stopped.stderr, "");
        assert_eq!(in_state(&pool, "ready"), [""; 0]);
        pool.start(&["--pool", "2"]).ok();
    }
}

#[test]
fn what_was_killed_is_replaced_and_a_pool_of_the_killed_is_gone() {
    let pool = Staying::new("killed", &["--pool", "2"]);
    let started = format!("start --name {}", pool.name);
    let supervisors = || processes_with(&started);
    soon("two supervise", || supervisors().len() == 2);
    signal(supervisors()[0], Signal::KILL);
    soon("it is gone", || in_state(&pool, "ready").len() == 1);
    pool.sh("true").ok();
    is_full(&pool, 2);
    soon("two supervise again", || supervisors().len() == 2);
    for supervisor in supervisors() {
        signal(supervisor, Signal::KILL);
    }
    soon("they are gone", || supervisors().is_empty());
    let litter = pool.stockade(&["gc", "--dry-run"]).ok();
    assert_eq!(litter.matches("sandbox").count(), 3, "{litter}");
    pool.stockade(&["gc"]).ok();
    pool.sh("true").expect_code(125);
    assert_eq!(listed(&pool), [] as [Value; 0]);
    // The name is free.
    assert_eq!(pool.start(&["--pool", "1"]).ok(), pool.name);
}

#[test]
fn the_wall_time_of_a_command_does_not_run_while_its_sandbox_waits() {
    let pool = Staying::prepared("time", &["--pool", "1"], |world| {
        world.policy("[limits]\nwall_time = \"1s\"\n");
    });
    std::thread::sleep(std::time::Duration::from_millis(1500));
    pool.sh("true").ok();
    pool.sh("sleep 1000").expect_code(124);
}

#[test]
fn what_cannot_start_leaves_no_pool_and_no_silence() {
    let pool = Staying::new("fails", &["--pool", "1"]);
    let other = ["start", "--name", "other", "--pool", "3"];
    let failed = pool.stockade(&[&other[..], &["--fail-step", "view.root"]].concat());
    let failed = failed.expect_code(125);
    assert!(failed.stderr.contains("view.root"), "{}", failed.stderr);
    assert!(listed(&pool).iter().all(|one| one["name"] != "other"));
    // A name is one, of a pool or of a sandbox.
    for options in [&["--pool", "2"][..], &[]] {
        let taken = pool.start(options).expect_code(125);
        assert!(taken.stderr.contains("already"), "{}", taken.stderr);
    }
    for size in ["0", "65", "x"] {
        pool.stockade(&["start", "--pool", size]).expect_code(125);
    }
    // The next one is made by the policy of now. Without one there is no pool.
    fs::write(
        pool.world.project.join("stockade.toml"),
        "version = 1\nnonsense = 1\n",
    )
    .unwrap();
    let child = pool.spawn("while ! test -e go; do sleep 0.05; done");
    let empty = pool.sh("true").expect_code(125);
    assert!(
        empty.stderr.contains("has no sandbox ready"),
        "{}",
        empty.stderr
    );
    let refused = pool.records("refused");
    let reason = refused.last().unwrap()["reason"].as_str().unwrap();
    let begin = format!("the pool {} got no other sandbox: ", pool.name);
    assert!(
        reason.starts_with(&begin) && reason.contains("nonsense"),
        "{reason}"
    );
    fs::write(pool.world.project.join("go"), "").unwrap();
    Finished::of(child.wait_with_output().unwrap()).ok();
    assert_eq!(listed(&pool), [] as [Value; 0]);
}

#[test]
fn what_a_command_changed_waits_for_review_under_its_own_run() {
    let pool = Staying::new("review", &["--pool", "1", "--workspace", "review"]);
    let done = pool.sh("echo new > file").expect_code(0);
    let (_, run) = done.stderr.split_once("stockade diff ").unwrap();
    let run = run.split('`').next().unwrap();
    is_full(&pool, 1);
    // The latest that waits is not the one that waits for a command.
    for arguments in [&["diff", run][..], &["diff"]] {
        let diff = pool.stockade(arguments).ok();
        assert!(diff.contains("+new"), "{diff}");
    }
    assert!(!pool.world.project.join("file").exists());
    pool.stockade(&["apply", run]).ok();
    assert!(pool.world.project.join("file").exists());
    pool.stockade(&["stop", &pool.name]).ok();
    pool.world.settle();
    let kept = pool.world.kept();
    assert!(kept.iter().all(|path| !path.contains("/runs/")), "{kept:?}");
}

#[test]
fn every_wall_has_pools() {
    let exact = match is_root() {
        true => "",
        false => "weaken = [\"PR7\"]\n",
    };
    for wall in ["container", "gvisor"] {
        if wall == "gvisor" && !stockade_testkit::has_program("runsc") {
            skip("every_wall_has_pools", wall, "runsc is not installed");
            continue;
        }
        let options = ["--pool", "1", "--wall", wall, "--workspace", "discard"];
        let prepare = |world: &World| drop(world.policy(exact));
        let pool = Staying::prepared(wall, &options, prepare);
        for _ in 0..3 {
            let done = pool.sh("mkdir /tmp/own && echo one > file && echo ran");
            assert_eq!(done.ok(), "ran");
        }
        assert!(!pool.world.project.join("file").exists());
    }
}
