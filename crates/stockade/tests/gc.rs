//! `stockade gc`: what killed processes leave is found, and nothing else goes.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use stockade_sys::rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with,
};
use stockade_testkit::tools::soon;
use stockade_testkit::{Finished, World, has_program, skip};

fn stockade(world: &World, arguments: &[&str]) -> Finished {
    Finished::of(world.stockade().args(arguments).output().unwrap())
}

/// Kind and last component of everything that is listed.
fn listed(world: &World, arguments: &[&str]) -> Vec<(String, String)> {
    let arguments = [&["gc", "--json"], arguments].concat();
    let list: Value = serde_json::from_str(&stockade(world, &arguments).ok()).unwrap();
    let text = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
    let mut found: Vec<_> = list["found"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            let place = text(one, "place");
            let name = place.rsplit('/').next().unwrap_or_default();
            (text(one, "kind"), name.to_owned())
        })
        // Groups of other tests that were killed belong to the machine.
        .filter(|(kind, _)| kind != "control-group")
        .collect();
    found.sort();
    found
}

fn private(path: &Path) {
    fs::create_dir_all(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
}

/// The store of the world's one workspace.
fn store(world: &World) -> PathBuf {
    let all = world.home.join(".local/state/stockade/workspaces");
    fs::read_dir(all).unwrap().next().unwrap().unwrap().path()
}

#[test]
fn what_killed_processes_leave_is_found_and_cleared_away() {
    let world = World::new();
    world.write("project/file", "one\n");
    let review = |text: &str| {
        let script = format!("echo {text} > file");
        world
            .run(&["--workspace", "review"], &["sh", "-c", &script])
            .ok()
    };
    review("two");
    stockade(&world, &["snapshot", "kept"]).expect_code(0);
    world.settle();
    assert_eq!(listed(&world, &["--dry-run"]), []);
    let store = store(&world);
    let state = world.home.join(".local/state/stockade");
    private(&store.join("runs/half"));
    private(&store.join("runs/.trash-0123"));
    private(&store.join("layers/0123456789abcdef/tree"));
    private(&store.join("layers/0123456789abcdef"));
    private(&state.join("images"));
    private(&state.join("images/partial"));
    private(&state.join("images/partial/0123456789abcdef"));
    fs::write(state.join("images/partial/0123456789abcdef/file"), "x").unwrap();
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    );
    let socket = socket.unwrap();
    let name = "run-0123456789ab.sock";
    bind(&socket, &SocketAddrUnix::new(state.join(name)).unwrap()).unwrap();
    drop(socket);
    let expected = [
        ("image", "0123456789abcdef"),
        ("layer", ".trash-0123"),
        ("layer", "0123456789abcdef"),
        ("layer", "half"),
        ("socket", "0123456789ab"),
    ]
    .map(|(kind, name)| (kind.to_owned(), name.to_owned()));
    assert_eq!(listed(&world, &["--dry-run"]), expected);
    assert!(store.join("runs/half").exists() && state.join(name).exists());
    assert_eq!(listed(&world, &[]), expected);
    assert!(!store.join("runs/half").exists() && !state.join(name).exists());
    assert_eq!(listed(&world, &["--dry-run"]), []);
    // What waits, and what was kept, is still there.
    stockade(&world, &["apply"]).expect_code(0);
    assert_eq!(
        fs::read_to_string(world.project.join("file")).unwrap(),
        "two\n"
    );
    stockade(&world, &["restore", "kept"]).expect_code(0);
    assert_eq!(
        fs::read_to_string(world.project.join("file")).unwrap(),
        "one\n"
    );
}

/// A run in discard mode that writes `one` and `two`, killed while its command goes on.
fn killed_in_discard_mode(world: &World) {
    let mut product = world.stockade();
    product.args(["run", "--workspace", "discard", "--", "sh", "-c"]);
    product.arg("echo x > one; echo x > two; echo written; exec sleep 1000");
    let mut run = product.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = [0; 8];
    run.stdout.take().unwrap().read_exact(&mut said).unwrap();
    run.kill().unwrap();
    run.wait().unwrap();
    // The last of a killed sandbox go a moment after their front.
    assert!(soon(|| !listed(world, &["--dry-run"]).is_empty()));
}

#[test]
fn what_a_killed_run_in_discard_mode_wrote_goes() {
    let world = World::new();
    let review = ["--workspace", "review"];
    world.run(&review, &["sh", "-c", "echo x > waits"]).ok();
    let count = |part: &str| fs::read_dir(store(&world).join(part)).unwrap().count();
    world.settle();
    assert_eq!(count("runs"), 1);
    killed_in_discard_mode(&world);
    assert_eq!(count("runs"), 2);
    let left = listed(&world, &["--dry-run"]);
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(listed(&world, &[]), left);
    assert_eq!(count("runs"), 1);
    // And so does the next run, beside which it is cleared away.
    killed_in_discard_mode(&world);
    private(&store(&world).join("runs/half"));
    world.run(&["--workspace", "discard"], &["true"]).ok();
    assert!(soon(|| count("runs") == 1));
    stockade(&world, &["apply"]).expect_code(0);
    assert!(world.project.join("waits").exists());
    // What a person took a part of is that person's.
    killed_in_discard_mode(&world);
    let run = fs::read_dir(store(&world).join("runs")).unwrap().next();
    let run = run.unwrap().unwrap().file_name().into_string().unwrap();
    stockade(&world, &["apply", &run, "one"]).expect_code(1);
    stockade(&world, &["gc"]).ok();
    stockade(&world, &["apply"]).expect_code(0);
    assert!(world.project.join("one").exists() && world.project.join("two").exists());
}

#[test]
fn a_user_without_anything_has_nothing_left_behind() {
    let world = World::new();
    let said = stockade(&world, &["gc", "--dry-run"]).ok();
    let own = said.lines().filter(|line| !line.contains("control-group"));
    for line in own {
        assert_eq!(line, "Nothing is left behind.");
    }
}

/// Calls that leave a name behind, and until which one of each process it is killed.
const CALLS: [(&str, u32); 4] = [
    ("bind", 8),
    ("rename,renameat,renameat2", 6),
    ("mkdir,mkdirat", 20),
    ("link,linkat,symlink,symlinkat", 6),
];

/// Traces what it is given and all that comes of it; each process is killed at its
/// call of this number. It ends when all of them have ended.
fn traced(world: &World, (calls, number): (&str, u32)) -> Command {
    let mut traced = Command::new("strace");
    traced
        .args(["-f", "-qq", "-o", "/dev/null", "-e"])
        .arg(format!("trace={calls}"))
        .arg("-e")
        .arg(format!("inject={calls}:signal=KILL:when={number}"))
        .current_dir(&world.project)
        .env_clear();
    for (name, value) in world.stockade().get_envs() {
        traced.env(name, value.unwrap_or_default());
    }
    traced
}

/// Clears up after what was killed.
fn clear_up(world: &World) {
    // What was done in review mode waits for a person.
    while stockade(world, &["discard"]).code == Some(0) {}
    stockade(world, &["gc"]).ok();
}

/// A run, killed so; whether it went well none the less.
fn run_killed_at(world: &World, run: &[&str], kill: (&str, u32)) -> bool {
    let mut traced = traced(world, kill);
    traced.arg(world.stockade().get_program()).args(run);
    let finished = Finished::of(traced.output().unwrap());
    clear_up(world);
    finished.code == Some(0)
}

/// A sandbox that stays, a command in it and its end, killed so.
fn sandbox_killed_at(world: &World, start: &[&str], kill: (&str, u32)) -> bool {
    const SCRIPT: &str = "\"$0\" \"$@\" --name killed >&2 && \"$0\" exec killed true >&2 && \
                          \"$0\" stop killed >&2; echo $?";
    let mut traced = traced(world, kill);
    traced.args(["sh", "-c", SCRIPT]);
    traced.arg(world.stockade().get_program()).args(start);
    traced.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = traced.spawn().unwrap();
    let mut code = String::new();
    let said = child.stdout.take().unwrap();
    BufReader::new(said).read_line(&mut code).unwrap();
    // Nobody stopped it where whoever was to do so was killed.
    assert!(soon(|| {
        stockade(world, &["stop", "killed"]);
        child.try_wait().unwrap().is_some()
    }));
    clear_up(world);
    code == "0\n"
}

/// Kills what `killed_at` does at each call of [`CALLS`]: nothing that is not found
/// may stay.
fn at_each_call(world: &World, killed_at: impl Fn((&str, u32)) -> bool) {
    // What is kept for good is there after a failure at the latest.
    killed_at(("execve", 2));
    killed_at(("bind", 1));
    let before = world.kept();
    let mut killed = 0;
    for (calls, last) in CALLS {
        for number in 1..=last {
            killed += u32::from(!killed_at((calls, number)));
            assert_eq!(listed(world, &["--dry-run"]), [], "{calls} {number}");
            let mut more = world.kept();
            more.retain(|path| !before.contains(path));
            assert_eq!(more, [""; 0], "{calls} {number}");
        }
    }
    assert!(killed > 4, "{killed}");
}

/// The number of a call that none makes.
const NEVER: (&str, u32) = ("bind", 1000);

/// Not at random moments: right at each call that leaves something behind, whichever
/// process of the run makes it.
#[test]
fn a_kill_at_any_call_that_makes_a_name_leaves_nothing() {
    if !has_program("strace") {
        let test = "a_kill_at_any_call_that_makes_a_name_leaves_nothing";
        return skip(test, "strace", "there is no strace on PATH");
    }
    let named = "[network]\nallow = [\"example.com:443\"]\n";
    let offers = format!("{named}publish = [\"0:3000\"]\n");
    let behind = |wall| format!("wall = \"{wall}\"\nweaken = [\"PR7\"]\n{named}");
    let plain = ["run", "--", "true"];
    let review = ["run", "--workspace", "review", "--", "true"];
    let discard = ["run", "--workspace", "discard", "--", "true"];
    let mut runs = vec![
        (offers, &plain[..]),
        (String::new(), &review),
        (String::new(), &discard),
        (behind("container"), &plain),
    ];
    if has_program("runsc") {
        runs.push((behind("gvisor"), &review));
    }
    for (policy, run) in runs {
        let world = World::new();
        world.write("project/file", "one\n");
        world.policy(&policy);
        at_each_call(&world, |kill| run_killed_at(&world, run, kill));
        // gVisor traces what it runs and does not start where it is traced itself:
        // there it is killed up to its start.
        let is_whole = run_killed_at(&world, run, NEVER);
        assert!(is_whole || policy.contains("gvisor"), "{policy}");
    }
}

#[test]
fn a_sandbox_that_stays_leaves_nothing_when_killed_at_any_call() {
    if !has_program("strace") {
        let test = "a_sandbox_that_stays_leaves_nothing_when_killed_at_any_call";
        return skip(test, "strace", "there is no strace on PATH");
    }
    let named = "[network]\nallow = [\"example.com:443\"]\npublish = [\"0:3000\"]\n";
    let container = "wall = \"container\"\nweaken = [\"PR7\"]\n".to_owned() + named;
    let review = ["start", "--workspace", "review"];
    for (policy, start) in [
        (named.to_owned(), &["start"][..]),
        (String::new(), &review),
        (container, &["start"]),
        (named.to_owned(), &["start", "--pool", "1"]),
    ] {
        let world = World::new();
        world.write("project/file", "one\n");
        world.policy(&policy);
        at_each_call(&world, |kill| sandbox_killed_at(&world, start, kill));
        assert!(sandbox_killed_at(&world, start, NEVER));
    }
}
