//! No attack is a dud: each one that does no harm is run without a sandbox, as
//! root, and must get what it is after.

use std::ffi::OsString;
use std::io;
use std::process::Command;
use stockade_attacks::bait::{Bait, Layout};
use stockade_attacks::{Attack, Needs, Proof, Start, Verdict, all, run};

const PROGRAM: &str = env!("CARGO_BIN_EXE_stockade-attack");

/// Attacks that root needs, or that a kernel may not offer, are skipped with
/// this reason unless STOCKADE_REQUIRE names it.
fn skip(what: &str, reason: &str) -> bool {
    let required = std::env::var("STOCKADE_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|name| name == what),
        "{what} is required: {reason}"
    );
    eprintln!("skipped: {what}: {reason}");
    true
}

/// Runs each attack of a start by itself, as the corpus demands outside.
fn outside(start: &Start, apart: bool) -> io::Result<Vec<u8>> {
    let program = || OsString::from(PROGRAM);
    let mut front: Vec<OsString> = Vec::new();
    if apart {
        front.extend(["unshare", "--mount", "--net", "--"].map(OsString::from));
    }
    front.extend([program(), "--unsafe-outside".into()]);
    start.output(&[program()], &front)
}

/// Everything in a scratch directory of its own, one attack at a time.
fn without_sandbox(attack: &Attack) -> Verdict {
    let scratch = tempfile::Builder::new()
        .prefix("stockade-test-")
        .tempdir()
        .expect("scratch");
    let mut bait = Bait::lay(&Layout {
        scratch: scratch.path(),
        workspace: &scratch.path().join("workspace"),
        home: Some(&scratch.path().join("home")),
        state: Some(&scratch.path().join("state")),
    })
    .expect("the bait can be laid");
    let apart = attack.proof == Proof::Apart;
    let table = run(
        &mut bait,
        |other| other.id == attack.id,
        |start| outside(start, apart),
    )
    .expect("a run");
    table.rows.into_iter().next().expect("one row").verdict
}

#[test]
fn every_harmless_attack_succeeds_where_nothing_stops_it() {
    let root = std::fs::metadata("/proc/self")
        .is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0);
    if !root && skip("root", "half of the attacks need root to succeed") {
        return;
    }
    let mut duds = Vec::new();
    for attack in all() {
        if matches!(attack.proof, Proof::Never(_)) || attack.needs == Needs::SmallLimits {
            continue;
        }
        let mut verdict = without_sandbox(attack);
        // A race is not won each time.
        for _ in 0..3 {
            if !matches!(verdict, Verdict::Escaped(_)) {
                verdict = without_sandbox(attack);
            }
        }
        if attack.proof == Proof::WhereKernelHasIt && is_missing(&verdict) {
            skip(attack.id, "this kernel does not have it");
            continue;
        }
        if !matches!(verdict, Verdict::Escaped(_)) {
            duds.push(format!("{}: {verdict:?}", attack.id));
        }
    }
    assert!(duds.is_empty(), "duds:\n{}", duds.join("\n"));
}

fn is_missing(verdict: &Verdict) -> bool {
    let names = [
        "ENOSYS",
        "ENOENT",
        "EAFNOSUPPORT",
        "EPROTONOSUPPORT",
        "EOPNOTSUPP",
    ];
    matches!(verdict, Verdict::Stopped(how) if names.contains(&how.as_str()))
}

#[test]
fn the_corpus_refuses_a_bare_machine() {
    let refused = Command::new(PROGRAM)
        .args(["--stage", "{}", "--only", "pr1-io-uring"])
        .env_remove("STOCKADE")
        .output()
        .expect("the program starts");
    assert_eq!(refused.status.code(), Some(2));
    assert!(refused.stdout.is_empty());
}

#[test]
fn outside_a_sandbox_only_one_attack_may_be_named() {
    let scratch = tempfile::tempdir().expect("scratch");
    let workspace = scratch.path().join("workspace");
    let layout = Layout {
        scratch: scratch.path(),
        workspace: &workspace,
        home: None,
        state: None,
    };
    let bait = Bait::lay(&layout).expect("the bait can be laid");
    let stage = serde_json::to_string(bait.stage()).expect("a stage");
    let only = "pr1-io-uring,pr1-bpf";
    let refused = Command::new(PROGRAM)
        .args(["--unsafe-outside", "--stage", &stage, "--only", only])
        .output()
        .expect("the program starts");
    assert_eq!(refused.status.code(), Some(2));
    assert!(refused.stdout.is_empty());
}

#[test]
fn the_secret_does_not_stand_in_the_stage() {
    let scratch = tempfile::tempdir().expect("scratch");
    let workspace = scratch.path().join("workspace");
    let layout = Layout {
        scratch: scratch.path(),
        workspace: &workspace,
        home: None,
        state: None,
    };
    let bait = Bait::lay(&layout).expect("the bait can be laid");
    let stage = serde_json::to_string(bait.stage()).expect("a stage");
    assert!(!stage.contains(&bait.stage().token()));
}

#[test]
fn the_bait_leaves_nothing_behind() {
    let scratch = tempfile::tempdir().expect("scratch");
    let workspace = scratch.path().join("workspace");
    let layout = Layout {
        scratch: scratch.path(),
        workspace: &workspace,
        home: None,
        state: None,
    };
    let bait = Bait::lay(&layout).expect("the bait can be laid");
    let stage = bait.stage().clone();
    assert!(stage.public_secrets.iter().all(|path| path.exists()));
    drop(bait);
    assert!(!stage.public_secrets.iter().any(|path| path.exists()));
    assert!(!stage.sockets.iter().any(|path| path.exists()));
    assert!(!std::path::Path::new(&format!("/proc/{}", stage.victim)).exists());
    let segments = std::fs::read_to_string("/proc/sysvipc/shm").expect("the list of segments");
    let key = stage.ipc_key.to_string();
    assert!(
        !segments
            .lines()
            .any(|line| line.split_whitespace().next() == Some(&key))
    );
}
