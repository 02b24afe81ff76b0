//! Laws of layers, held against the kernel's own overlay: what was applied is
//! what the mounted overlay showed, and what was not applied left no trace.

mod layers;
#[path = "layers/operations.rs"]
mod operations;

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use layers::{World, again, assert_same, observe, open};
use operations::{Operation, operation, perform};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use stockade_workspace::apply::{self, OnConflict, Ownership, Request, Stamp};
use stockade_workspace::diff::diff;
use stockade_workspace::journal::Journal;
use stockade_workspace::merge::merge;

/// How many sequences each of two processes tries of each law; together more
/// than 1,000. `STOCKADE_SEQUENCES` sets another number.
const SEQUENCES: u32 = 520;
const SEED: &str = "STOCKADE_SEED";
const SEQUENCES_VARIABLE: &str = "STOCKADE_SEQUENCES";
const INSIDE: &str = "STOCKADE_TEST_INSIDE";

/// Tries one law below a scratch directory with sequences of operations, and
/// dice for what else is chosen.
type Check = fn(&Path, Vec<Vec<Operation>>, u64) -> Result<(), TestCaseError>;

/// Runs a law in two processes with different seeds, each in namespaces of its
/// own, or here when this is one of them.
fn law(name: &str, check: Check) {
    if std::env::var_os(INSIDE).is_some() {
        return trial(check);
    }
    let seeds: Vec<u64> = match std::env::var(SEED) {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..2).map(|_| random()).collect(),
    };
    let start = |seed: &u64| {
        eprintln!("{name}: {SEED}={seed}");
        let mut command: Command = again(name, &[(SEED, seed.to_string())]);
        command.spawn().expect("cannot run unshare")
    };
    let children: Vec<Child> = seeds.iter().map(start).collect();
    for (mut child, seed) in children.into_iter().zip(seeds) {
        assert!(child.wait().unwrap().success(), "failed with {SEED}={seed}");
    }
}

fn random() -> u64 {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).unwrap();
    u64::from_le_bytes(bytes)
}

fn trial(check: Check) {
    let seed: u64 = std::env::var(SEED).unwrap().parse().unwrap();
    let number = std::env::var(SEQUENCES_VARIABLE).ok();
    let cases = number.map_or(SEQUENCES, |number| number.parse().unwrap());
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 600,
        ..Config::default()
    };
    let mut bytes = [0u8; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let source = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, source);
    let scratch = scratch();
    let sequences = proptest::collection::vec(proptest::collection::vec(operation(), 0..14), 4);
    let outcome = runner.run(&(sequences, any::<u64>()), |(operations, dice)| {
        check(scratch.path(), operations, dice)
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// On the file system of the temporary directory, or where it is told.
fn scratch() -> tempfile::TempDir {
    let parent = std::env::var_os("STOCKADE_SCRATCH").map(PathBuf::from);
    let parent = parent.unwrap_or_else(|| "/var/tmp".into());
    tempfile::Builder::new()
        .prefix("stockade-layers")
        .tempdir_in(parent)
        .unwrap()
}

/// Makes a tree and a layer over it by random operations; returns what the
/// overlay showed.
fn run(world: &World, base: &[Operation], inside: &[Operation]) -> (layers::Tree, Stamp) {
    for operation in base {
        perform(&world.at("base"), operation);
    }
    let journal = open(&world.at("journal"));
    let [upper, base] = ["upper", "base"].map(|name| open(&world.at(name)));
    apply::resemble(upper.as_fd(), base.as_fd()).unwrap();
    let stamp = Stamp::take(journal.as_fd(), "stamp").unwrap();
    let view = world.mount(&["upper"], true);
    for operation in inside {
        perform(&view.0, operation);
    }
    let shown = observe(&view.0);
    drop(view);
    // Mounted anew, because the kernel remembers which file a name was linked
    // from only while it is mounted.
    let view = world.mount(&["upper"], false);
    let again = observe(&view.0);
    drop(view);
    assert_same(
        "the overlay shows the same twice",
        &without_links(&shown),
        &without_links(&again),
    );
    (again, stamp)
}

fn request<'a>(
    layers: &'a [std::os::fd::BorrowedFd<'a>],
    base: std::os::fd::BorrowedFd<'a>,
    preimages: std::os::fd::BorrowedFd<'a>,
    stamp: Stamp,
    ownership: Ownership,
) -> Request<'a> {
    Request {
        layers,
        base,
        preimages,
        stamp: Some(stamp),
        ownership,
        on_conflict: OnConflict::Refuse,
        progress: &|_, _| {},
    }
}

fn applied(
    scratch: &Path,
    operations: Vec<Vec<Operation>>,
    dice: u64,
) -> Result<(), TestCaseError> {
    let world = World::new(scratch);
    let (shown, stamp) = run(
        &world,
        &[&operations[0][..], &operations[1]].concat(),
        &operations[2],
    );
    let start = observe(&world.at("base"));
    let [upper, base, preimages, journal] =
        ["upper", "base", "preimages", "journal"].map(|name| open(&world.at(name)));
    let layers = [upper.as_fd()];
    let changes = diff(&layers, base.as_fd()).unwrap();
    assert_same(
        "listing changes nothing",
        &start,
        &observe(&world.at("base")),
    );
    let ownership = if dice & 1 == 0 {
        Ownership::Consume
    } else {
        Ownership::Keep
    };
    let request = request(&layers, base.as_fd(), preimages.as_fd(), stamp, ownership);
    let mut journal = Journal::open(journal.as_fd(), "journal").unwrap();
    if dice & 2 != 0 {
        in_parts(&world, dice, &request, &mut journal, (&start, &shown));
        return Ok(());
    }
    apply::apply(&changes, &|_| true, &request, &mut journal).unwrap();
    prop_assert!(!journal.is_pending());
    let after = observe(&world.at("base"));
    assert_same("the tree is what the overlay showed", &shown, &after);
    let mut names = fs::read_dir(world.at("preimages")).unwrap();
    if names.next().is_none() {
        // At most the time of the workspace itself was another.
        return Ok(());
    }
    let view = world.mount(&["preimages"], false);
    let back = observe(&view.0);
    drop(view);
    assert_same(
        "the preimages give the old tree back",
        &without_links(&start),
        &without_links(&back),
    );
    Ok(())
}

/// What is left after a part was applied is listed anew and applied.
fn in_parts(
    world: &World,
    dice: u64,
    request: &Request<'_>,
    journal: &mut Journal,
    (start, shown): (&layers::Tree, &layers::Tree),
) {
    let some = |change: &stockade_workspace::change::Change| {
        let sum: u64 = change.path.iter().map(|byte| u64::from(*byte)).sum();
        sum.wrapping_mul(dice) % 5 < 2
    };
    let changes = diff(request.layers, request.base).unwrap();
    apply::apply(&changes, &some, request, journal).unwrap();
    let view = world.mount(&["upper"], false);
    let left = observe(&view.0);
    drop(view);
    assert_same(
        "a part taken out of the layer shows the same",
        &without_links(shown),
        &without_links(&left),
    );
    let changes = diff(request.layers, request.base).unwrap();
    fs::create_dir(world.at("preimages too")).unwrap();
    let second = open(&world.at("preimages too"));
    // What the first part brought is newer than the run.
    let request = Request {
        stamp: None,
        preimages: second.as_fd(),
        ..*request
    };
    apply::apply(&changes, &|_| true, &request, journal).unwrap();
    let after = observe(&world.at("base"));
    assert_same("in two parts it becomes the same", shown, &after);
    let kept: Vec<&str> = ["preimages", "preimages too"]
        .into_iter()
        .filter(|name| fs::read_dir(world.at(name)).unwrap().next().is_some())
        .collect();
    if !kept.is_empty() {
        let view = world.mount(&kept, false);
        let back = observe(&view.0);
        drop(view);
        assert_same(
            "the preimages of two parts give the old tree back",
            &without_links(start),
            &without_links(&back),
        );
    }
}

/// Links that reach over layers cannot be shown by an overlay.
fn without_links(tree: &layers::Tree) -> layers::Tree {
    let mut tree = tree.clone();
    for (path, state) in &mut tree {
        state.first_name = path.clone();
    }
    tree
}

fn merged(scratch: &Path, operations: Vec<Vec<Operation>>, _: u64) -> Result<(), TestCaseError> {
    let world = World::new(scratch);
    for operation in &operations[0] {
        perform(&world.at("base"), operation);
    }
    for name in ["one", "two", "both"] {
        fs::create_dir(world.at(name)).unwrap();
    }
    for (layers, operations) in [
        (&["one"][..], &operations[1]),
        (&["two", "one"], &operations[2]),
    ] {
        let view = world.mount(layers, true);
        for operation in operations {
            perform(&view.0, operation);
        }
    }
    let shown = {
        let view = world.mount(&["two", "one"], false);
        observe(&view.0)
    };
    let [one, two, both] = ["one", "two", "both"].map(|name| open(&world.at(name)));
    merge(two.as_fd(), one.as_fd(), both.as_fd()).unwrap();
    let view = world.mount(&["both"], false);
    let flat = observe(&view.0);
    drop(view);
    assert_same("one layer shows what two did", &shown, &flat);
    // And over a tree that is another than the one they were made over.
    let layers = [two.as_fd(), one.as_fd()];
    let base = open(&world.at("base"));
    let list = |layers: &[std::os::fd::BorrowedFd<'_>]| {
        let changes = diff(layers, base.as_fd()).unwrap();
        changes
            .iter()
            .map(|change| (change.path.clone(), change.after.clone()))
            .collect::<Vec<_>>()
    };
    prop_assert_eq!(list(&layers), list(&[both.as_fd()]));
    Ok(())
}

fn discarded(scratch: &Path, operations: Vec<Vec<Operation>>, _: u64) -> Result<(), TestCaseError> {
    let world = World::new(scratch);
    for operation in operations[0].iter().chain(&operations[1]) {
        perform(&world.at("base"), operation);
    }
    let start = observe(&world.at("base"));
    {
        let view = world.mount(&["upper"], true);
        for operation in operations[2].iter().chain(&operations[3]) {
            perform(&view.0, operation);
        }
    }
    let parent = open(world.scratch.path());
    apply::remove(parent.as_fd(), b"upper").unwrap();
    prop_assert!(!world.at("upper").exists());
    assert_same("nothing was changed", &start, &observe(&world.at("base")));
    Ok(())
}

#[test]
fn what_was_applied_is_what_the_overlay_showed() {
    law("what_was_applied_is_what_the_overlay_showed", applied);
}

#[test]
fn two_layers_merged_show_the_same() {
    law("two_layers_merged_show_the_same", merged);
}

#[test]
fn what_is_discarded_leaves_no_trace() {
    law("what_is_discarded_leaves_no_trace", discarded);
}
