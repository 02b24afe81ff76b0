//! `stockade gc`: what killed processes leave is found, and nothing else goes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stockade_sys::rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with,
};
use stockade_testkit::{Finished, World};

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

#[test]
fn a_user_without_anything_has_nothing_left_behind() {
    let world = World::new();
    let said = stockade(&world, &["gc", "--dry-run"]).ok();
    let own = said.lines().filter(|line| !line.contains("control-group"));
    for line in own {
        assert_eq!(line, "Nothing is left behind.");
    }
}
