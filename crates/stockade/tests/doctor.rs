//! `stockade doctor`: what it finds on this machine and on crippled ones, and
//! the hostile corpus, of which nothing may escape.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use stockade_attacks::bait::{Bait, Layout};
use stockade_testkit::{Finished, World, binary, has_program, is_root, runtime_version, skip};

/// What the process wall promises of every run.
const PROMISED: [&str; 18] = [
    "FS1", "FS2", "FS3", "FS4", "FS5", "FS6", "PR1", "PR2", "PR3", "PR4", "PR5", "PR6", "PR7",
    "PR8", "NT1", "EP1", "AU1", "AU2",
];

/// What it promises besides of one with a way out and a credential.
const PROMISED_OF_THE_WAY_OUT: [&str; 8] = ["NT2", "NT3", "NT4", "NT5", "NT6", "CR1", "CR2", "CR3"];

fn doctor(world: &World, arguments: &[&str]) -> Output {
    let mut command = world.stockade();
    command.arg("doctor").args(arguments).stdin(Stdio::null());
    command.output().expect("stockade starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> Value {
    let found = serde_json::from_slice(&output.stdout);
    found
        .unwrap_or_else(|error| panic!("{error}: {}{}", text(&output.stdout), text(&output.stderr)))
}

fn check<'a>(found: &'a Value, name: &str) -> &'a Value {
    let checks = found["checks"].as_array().expect("a list of checks");
    let check = checks.iter().find(|check| check["name"] == name);
    check.unwrap_or_else(|| panic!("no check is called {name}: {found:#}"))
}

#[test]
fn a_machine_that_can_run_commands_says_what_holds_each_guarantee() {
    let world = World::new();
    let output = doctor(&world, &[]);
    let page = text(&output.stdout);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{page}{}",
        text(&output.stderr)
    );
    for guarantee in PROMISED {
        let held = format!("\n{guarantee} held ");
        assert_eq!(page.matches(&held).count(), 1, "{guarantee}: {page}");
    }
    assert!(
        page.ends_with("Commands can run in this directory.\n"),
        "{page}"
    );

    let found = json(&doctor(&world, &["--json"]));
    assert_eq!(found["ready"], true);
    assert_eq!(found["landlock_only"], Value::Null);
    for name in [
        "kernel",
        "fork",
        "landlock",
        "seccomp",
        "devices",
        "state",
        "namespaces",
    ] {
        assert_eq!(check(&found, name)["works"], true, "{found:#}");
    }
    assert_eq!(check(&found, "rehearsal")["works"], true, "{found:#}");
    // Nothing needs it, so that it is missing is said with a remedy and no more.
    let firecracker = check(&found, "firecracker");
    let words = firecracker.to_string();
    assert!(words.contains("no wall uses it yet"), "{words}");
    assert!(
        firecracker["works"] == true
            || words.contains("into /usr/local/bin")
            || words.contains("1.14.4"),
        "{words}"
    );
    let guarantees = found["guarantees"]
        .as_array()
        .expect("a list of guarantees");
    for guarantee in PROMISED {
        let row = guarantees.iter().find(|row| row["id"] == guarantee);
        let status = row.and_then(|row| row["status"].as_str());
        assert!(
            matches!(status, Some("held" | "partial")),
            "{guarantee}: {found:#}"
        );
    }
}

#[test]
fn no_attack_of_the_corpus_escapes() {
    let world = World::new();
    let output = doctor(&world, &["--attack", "--json"]);
    let table = json(&output);
    let rows = table["rows"].as_array().expect("a list of attacks");
    let of = |verdict: &str| -> Vec<&Value> {
        rows.iter()
            .filter(|row| row["verdict"] == verdict)
            .collect()
    };
    assert_eq!(of("escaped"), Vec::<&Value>::new());
    let mut stopped: BTreeMap<&str, usize> = BTreeMap::new();
    for row in of("stopped") {
        *stopped
            .entry(row["guarantee"].as_str().expect("an id"))
            .or_default() += 1;
    }
    for guarantee in PROMISED.iter().chain(&PROMISED_OF_THE_WAY_OUT) {
        assert!(
            stopped.contains_key(guarantee),
            "nothing attacked {guarantee}: {table:#}"
        );
    }
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    // Nothing is left behind, and the user's own log says nothing of it.
    assert!(!world.home.join(".local/state/stockade").exists());
}

/// Attacks that a policy can let through are let through by one: none of them
/// only seems to be stopped.
#[test]
fn what_attacks_the_way_out_gets_through_where_a_policy_lets_it() {
    let world = World::new();
    world.write(
        world.home.join(".config/stockade/stockade.toml"),
        "version = 1\n[network]\nallow = [\"**.example.com\", \"**.example.com:22\"]\n\
         [[network.rule]]\nhost = \"stockade-bound.example.com\"\nmethods = [\"GET\"]\n",
    );
    let scratch = world.outside().join("bait");
    let bait = Bait::lay(&Layout {
        scratch: &scratch,
        workspace: &world.project,
        home: None,
        state: None,
    })
    .unwrap();
    let program = binary();
    let stage = serde_json::to_string(bait.stage()).unwrap();
    let attacks = [
        "nt2-other-host",
        "nt2-other-port",
        "nt3-other-names",
        "nt6-method",
        "nt6-path",
        "cr1-search",
        "cr3-own-credential",
    ];
    let mut run = world.stockade();
    run.args(["run", "--quiet", "--attack-corpus", "--env", "LEAKED", "--"])
        .arg(&program)
        .args(["attack-inside", "--stage", &stage, "--only"])
        .arg(attacks.join(","))
        .env("LEAKED", bait.stage().token());
    let finished = Finished::of(run.output().unwrap());
    let said = finished.ok();
    for attack in attacks {
        let line = said.lines().find(|line| line.contains(attack));
        let line: Value = serde_json::from_str(line.unwrap_or("null")).unwrap();
        assert_eq!(line["verdict"], "escaped", "{attack}: {said}");
    }
}

#[test]
fn an_interrupted_attack_takes_its_bait_away() {
    let world = World::new();
    let scratch = world.outside().join("tmp");
    std::fs::create_dir(&scratch).expect("a directory can be made");
    let mut command = world.stockade();
    command.args(["doctor", "--attack"]).env("TMPDIR", &scratch);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().expect("stockade starts");
    let laid = || std::fs::read_dir(&scratch).is_ok_and(|mut entries| entries.next().is_some());
    while !laid() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let killed = Command::new("kill")
        .arg("-INT")
        .arg(child.id().to_string())
        .status();
    assert!(killed.is_ok_and(|status| status.success()));
    let output = child.wait_with_output().expect("stockade ends");
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("interrupted"),
        "{}",
        text(&output.stderr)
    );
    assert!(!laid());
}

/// Runs a script with `stockade` as `$S` in a new user namespace of the kind
/// that `flags` ask for; `None` where that cannot be had.
fn in_namespace(world: &World, test: &str, flags: &[&str], script: &str) -> Option<Output> {
    if !has_program("unshare") {
        skip(test, "unshare", "there is no unshare program");
        return None;
    }
    let mut command = Command::new("unshare");
    command
        .args(flags)
        .args(["sh", "-c", script])
        .current_dir(&world.project)
        .env_clear();
    command
        .env("HOME", &world.home)
        .env("S", binary())
        .env("LANG", "C.UTF-8");
    command
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .stdin(Stdio::null());
    let output = command.output().expect("unshare starts");
    if output.status.code() == Some(77) {
        skip(test, "userns", &text(&output.stderr));
        return None;
    }
    Some(output)
}

#[test]
fn user_namespaces_that_are_switched_off_are_named_with_the_setting() {
    let test = "user_namespaces_that_are_switched_off_are_named_with_the_setting";
    let world = World::new();
    let off = "echo 0 > /proc/sys/user/max_user_namespaces || exit 77; ";
    let flags = ["--user", "--map-root-user"];
    let script = format!("{off} exec \"$S\" doctor --json");
    let Some(output) = in_namespace(&world, test, &flags, &script) else {
        return;
    };
    let found = json(&output);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(found["ready"], false);
    let namespaces = check(&found, "namespaces");
    let reason = namespaces["reason"].as_str().expect("a reason");
    assert!(
        reason.starts_with("user.max_user_namespaces is 0"),
        "{found:#}"
    );
    assert!(
        namespaces["remedy"]
            .as_str()
            .is_some_and(|text| text.contains("sysctl -w"))
    );
    let cannot = |id: &str| {
        let rows = found["guarantees"].as_array().expect("a list");
        rows.iter()
            .any(|row| row["id"] == id && row["status"] == "cannot")
    };
    assert!(cannot("FS1") && cannot("PR3") && cannot("NT1"), "{found:#}");
    let other = &found["landlock_only"]["guarantees"];
    let has_landlock = check(&found, "landlock")["works"] == true;
    assert_eq!(other.is_array(), has_landlock, "{found:#}");

    // A run says the same, and nothing runs.
    let script = format!("{off} exec \"$S\" run -- touch ran");
    let Some(output) = in_namespace(&world, test, &flags, &script) else {
        return;
    };
    assert_eq!(output.status.code(), Some(125));
    let said = text(&output.stderr);
    assert!(
        said.contains("cause: user.max_user_namespaces is 0"),
        "{said}"
    );
    assert!(
        said.contains("\n  remedy: ") && said.contains("landlock-only"),
        "{said}"
    );
    assert!(!world.project.join("ran").exists());
}

#[test]
fn a_covered_proc_as_in_a_container_is_recognised() {
    let test = "a_covered_proc_as_in_a_container_is_recognised";
    let world = World::new();
    let flags = [
        "--user",
        "--map-root-user",
        "--mount",
        "--pid",
        "--fork",
        "--mount-proc",
    ];
    let cover = "mount -t tmpfs none /proc/irq || mount -t tmpfs none /proc/fs || exit 77; ";
    let script = format!("{cover} exec \"$S\" run -- touch ran");
    let Some(output) = in_namespace(&world, test, &flags, &script) else {
        return;
    };
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(
        said.contains("parts of the /proc here are covered"),
        "{said}"
    );
    assert!(
        said.contains("--security-opt systempaths=unconfined"),
        "{said}"
    );
    assert!(!world.project.join("ran").exists());
}

#[test]
fn a_filter_of_another_sandbox_is_recognised() {
    let world = World::new();
    let program: PathBuf = binary();
    let path = program.to_str().expect("the path is text").to_owned();
    let finished = world
        .run(&["--read", &path], &[path.as_str(), "doctor"])
        .expect_code(1);
    let page = finished.stdout;
    assert!(
        page.contains("a system call filter lies on this process already"),
        "{page}"
    );
    assert!(page.contains("--security-opt seccomp=unconfined"), "{page}");
}

#[test]
fn a_policy_that_cannot_be_used_does_not_hide_what_the_machine_can_do() {
    let world = World::new();
    world.policy("nonsense = true\n");
    let output = doctor(&world, &["--json"]);
    assert_eq!(output.status.code(), Some(1));
    let found = json(&output);
    assert_eq!(found["ready"], false);
    assert_eq!(check(&found, "namespaces")["works"], true);
    assert!(
        text(&output.stderr).contains("nonsense"),
        "{}",
        text(&output.stderr)
    );
}

/// The same attacks behind each wall: what one claims, it holds.
#[test]
fn every_wall_holds_what_it_claims() {
    let world = World::new();
    let mut doctor = world.stockade();
    doctor.args(["doctor", "--attack", "--all-walls", "--json"]);
    let accepted = runtime_version("runc");
    let accept = accepted
        .iter()
        .flat_map(|version| ["--accept-runtime", version]);
    doctor.args(accept);
    let finished = Finished::of(doctor.output().unwrap());
    let found: Value = serde_json::from_str(&finished.ok()).unwrap();
    let walls = found["walls"].as_array().unwrap();
    let names: Vec<_> = walls
        .iter()
        .map(|wall| wall["wall"].as_str().unwrap())
        .collect();
    let (other, here) = names.split_last().unwrap();
    let (own, runtimes) = here.split_at(4);
    assert_eq!(own, ["process", "container", "gvisor", "microvm"]);
    assert_eq!(*other, "seatbelt");
    assert!(runtimes.iter().all(|name| name.starts_with("container (")));
    let runsc = ["/usr/local/bin/runsc", "/usr/bin/runsc"];
    let has_gvisor = runsc.iter().any(|path| Path::new(path).exists());
    if !has_gvisor {
        skip(
            "every_wall_holds_what_it_claims",
            "gvisor",
            "there is no runsc",
        );
    }
    // Nothing of macOS's is said to have been seen here.
    let planned = walls.last().unwrap()["guarantees"].as_array().unwrap();
    let status = |cell: &Value| cell["status"].as_str().unwrap().to_owned();
    let said: Vec<String> = planned.iter().map(status).collect();
    assert!(!said.iter().any(|status| status == "held"), "{said:?}");
    for known in ["unverified", "partial", "not-held"] {
        assert!(said.iter().any(|status| status == known), "{said:?}");
    }
    for wall in &walls[..walls.len() - 1] {
        let cells = wall["guarantees"].as_array().unwrap();
        let counted: u64 = cells
            .iter()
            .map(|cell| cell["stopped"].as_u64().unwrap())
            .sum();
        let cannot = cells.iter().all(|cell| cell["status"] == "cannot");
        let may_not = match wall["wall"].as_str() {
            Some("process") => false,
            Some("container") => !is_root(),
            Some("gvisor") => !is_root() || !has_gvisor,
            // One that is known to let containers out is refused, unless its
            // version is accepted.
            Some("container (runc)") if is_root() && accepted.is_some() => false,
            Some("container (runc)" | "container (crun)") if is_root() => {
                cells[0]["why"].to_string().contains("lets a container out")
            }
            _ => true,
        };
        assert_eq!(cannot, may_not, "{wall}");
        assert!(cannot || counted > 150, "{counted}");
        assert!(
            cells.iter().all(|cell| cell["status"] != "failed"),
            "{wall}"
        );
    }
}
