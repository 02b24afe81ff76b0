//! `stockade gc`: what killed processes leave is found, and nothing else goes.

use std::fs;
use std::io::Read;
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

/// A run of which each process is killed at its call of this number, and then what
/// clears up after it.
fn killed_at(world: &World, run: &[&str], (calls, number): (&str, u32)) -> Finished {
    let product = world.stockade();
    // It ends when every process of the run has ended.
    let mut traced = Command::new("strace");
    traced
        .args(["-f", "-qq", "-o", "/dev/null", "-e"])
        .arg(format!("trace={calls}"))
        .arg("-e")
        .arg(format!("inject={calls}:signal=KILL:when={number}"))
        .arg(product.get_program())
        .args(run)
        .current_dir(&world.project)
        .env_clear();
    for (name, value) in product.get_envs() {
        traced.env(name, value.unwrap_or_default());
    }
    let finished = Finished::of(traced.output().unwrap());
    // What a killed run did in review mode waits for a person.
    while stockade(world, &["discard"]).code == Some(0) {}
    stockade(world, &["gc"]).ok();
    finished
}

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
        stockade(&world, run).ok();
        // What is kept for good is there after a failure at the latest.
        killed_at(&world, run, ("execve", 2));
        killed_at(&world, run, ("bind", 1));
        let before = world.kept();
        let mut killed = 0;
        for (calls, last) in CALLS {
            for number in 1..=last {
                let finished = killed_at(&world, run, (calls, number));
                killed += u32::from(finished.code != Some(0));
                assert_eq!(listed(&world, &["--dry-run"]), [], "{calls} {number}");
                let mut more = world.kept();
                more.retain(|path| !before.contains(path));
                assert_eq!(more, [""; 0], "{calls} {number}: {finished:?}");
            }
        }
        assert!(killed > 4, "{killed}");
        stockade(&world, run).ok();
    }
}
