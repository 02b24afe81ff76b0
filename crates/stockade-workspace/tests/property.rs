//! Laws of layers, held against the kernel's own overlay: what was applied is
//! what the mounted overlay showed, and what was not applied left no trace.

mod layers;
#[path = "layers/operations.rs"]
mod operations;

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use layers::{Mounted, World, again, assert_same, observe, open};
use operations::{Operation, operation, perform};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use stockade_policy::path::AbsolutePath;
use stockade_sys::rustix::mount::{MountFlags, mount};
use stockade_workspace::apply::{self, OnConflict, Ownership, Request, Stamp};
use stockade_workspace::diff::diff;
use stockade_workspace::flatten::flatten_to;
use stockade_workspace::journal::Journal;
use stockade_workspace::merge::merge;
use stockade_workspace::restore::restore;
use stockade_workspace::run_dir::{Fate, NewRun};
use stockade_workspace::settle::apply_run;
use stockade_workspace::store::Store;

/// How many sequences each of two processes tries of each law; together more
/// than 1,000. `STOCKADE_SEQUENCES` sets another number.
const SEQUENCES: u32 = 520;
const SEED: &str = "STOCKADE_SEED";
/// What is tried where nothing else is asked for: a change is judged by the same
/// sequences as the one before. `STOCKADE_SEED=random` looks for new ones.
const SEEDS: [u64; 2] = [0x5eed_0001, 0x5eed_0002];
const SEQUENCES_VARIABLE: &str = "STOCKADE_SEQUENCES";
const MEMORY: &str = "STOCKADE_MEMORY";
/// How many sequences each process tries where the disk makes them slow.
const ON_DISK: u32 = 20;
const INSIDE: &str = "STOCKADE_TEST_INSIDE";

/// Tries one law below a scratch directory with sequences of operations, and
/// dice for what else is chosen.
type Check = fn(&Path, Vec<Vec<Operation>>, u64) -> Result<(), TestCaseError>;

/// Runs a law in two processes with different seeds, each in namespaces of its
/// own, or here when this is one of them.
fn law(name: &str, check: Check) {
    if std::env::var_os(INSIDE).is_some() {
        return trial(check, false);
    }
    in_two_processes(name, &[]);
}

/// As [`law`], for a law that would wait for the disk most of the time: it is
/// held in memory, and with a few sequences on the disk.
fn law_in_memory(name: &str, check: Check) {
    if std::env::var_os(INSIDE).is_some() {
        return trial(check, std::env::var_os(MEMORY).is_some());
    }
    in_two_processes(name, &[(MEMORY, "1".to_owned())]);
    if std::env::var_os(SEED).is_none() {
        in_two_processes(name, &[(SEQUENCES_VARIABLE, ON_DISK.to_string())]);
    }
}

fn in_two_processes(name: &str, variables: &[(&str, String)]) {
    let seeds: Vec<u64> = match std::env::var(SEED).as_deref() {
        Ok("random") => (0..2).map(|_| random()).collect(),
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => SEEDS.to_vec(),
    };
    let start = |seed: &u64| {
        eprintln!("{name}: {SEED}={seed}");
        let mut command: Command = again(name, &[(SEED, seed.to_string())]);
        for (name, value) in variables {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
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

fn trial(check: Check, in_memory: bool) {
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
    let _memory = in_memory.then(|| memory_on(scratch.path())).flatten();
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

/// Mounts memory in the namespaces of this process, unless it keeps no
/// attributes (before Linux 6.6): then the directory itself is used.
fn memory_on(place: &Path) -> Option<Mounted> {
    let (kind, options) = ("tmpfs", c"mode=0755");
    mount("tmpfs", place, kind, MountFlags::empty(), options).unwrap();
    let mounted = Mounted(place.to_owned());
    let flags = rustix::fs::XattrFlags::empty();
    let keeps = rustix::fs::setxattr(place, "user.stockade", b"1", flags);
    keeps.is_ok().then_some(mounted)
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
        own: &[],
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
    let first = apply::apply(&changes, &some, request, journal).unwrap();
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
    // What the first part changed is newer than the run, and no conflict.
    let own = first.own(request.base).unwrap();
    let request = Request {
        own: &own,
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

/// Snapshots of a project and of a run, with applies between them, and layers
/// that are merged now and then: each is given back exactly, however often.
fn restored(
    scratch: &Path,
    operations: Vec<Vec<Operation>>,
    dice: u64,
) -> Result<(), TestCaseError> {
    let world = World::new(scratch);
    let state = world.at("state");
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    let base = world.at("base");
    for operation in &operations[0] {
        perform(&base, operation);
    }
    let workspace = AbsolutePath::parse(base.as_os_str().as_bytes()).unwrap();
    let store = Store::open(open(&state).as_fd(), &workspace).unwrap();
    let mut seen = vec![("s0", observe(&base))];
    store.take_snapshot("s0", None).unwrap();
    let flatten = |bit: u32| {
        if dice >> bit & 1 == 0 {
            flatten_to(&store, 1, 1).unwrap();
        }
    };
    let run = new_run(&store, "run");
    for (name, operations) in [("s1", &operations[1]), ("s2", &operations[2])] {
        seen.push((name, work_in(&world, &store, &run, operations)));
        store.take_snapshot(name, Some(&run)).unwrap();
        flatten(0);
    }
    if dice & 2 == 0 {
        bring(&store, &run, dice);
        seen.push(("s3", observe(&base)));
        store.take_snapshot("s3", None).unwrap();
        flatten(2);
    }
    let run = new_run(&store, "other");
    let shown = work_in(&world, &store, &run, &operations[3]);
    bring(&store, &run, 0);
    assert_same("what was applied", &shown, &observe(&base));
    flatten(3);
    seen.push(("s4", observe(&base)));
    store.take_snapshot("s4", None).unwrap();
    for turn in 0..4u32 {
        let (name, tree) = &seen[(dice >> (8 + 8 * turn)) as usize % seen.len()];
        restore(&store, name, &|_, _| {}).unwrap();
        let back = observe(&base);
        assert_same(name, &without_links(tree), &without_links(&back));
        flatten(4 + turn);
    }
    Ok(())
}

fn new_run(store: &Store, id: &str) -> String {
    let new = NewRun {
        id: id.to_owned(),
        name: None,
        fate: Fate::Review,
        layers: Vec::new(),
        snapshot: None,
        stamp: None,
        command: Vec::new(),
        begins: true,
    };
    store.new_run(new).unwrap().meta().id.clone()
}

/// Performs operations in a run; returns what it showed afterwards.
fn work_in(world: &World, store: &Store, id: &str, operations: &[Operation]) -> layers::Tree {
    let run = store.run(Some(id)).unwrap();
    let (upper, work) = run.places().unwrap();
    let below = store.layer_places(&run.meta().layers).unwrap();
    let lower: Vec<_> = below.iter().map(|path| path.as_path().to_owned()).collect();
    let (upper, work) = (upper.as_path(), work.as_path());
    let base = world.at("base");
    {
        let view = world.mount_at(Some((upper, work)), &lower, &base);
        for operation in operations {
            perform(&view.0, operation);
        }
    }
    let all = [&[upper.to_owned()], &lower[..]].concat();
    observe(&world.mount_at(None, &all, &base).0)
}

/// Applies a run, or at first a part of it.
fn bring(store: &Store, id: &str, dice: u64) {
    let some = |change: &stockade_workspace::change::Change| {
        let sum: u64 = change.path.iter().map(|byte| u64::from(*byte)).sum();
        dice & 4 == 0 || sum.wrapping_mul(dice) % 5 < 2
    };
    let run = store.run(Some(id)).unwrap();
    let applied = apply_run(store, run, &some, OnConflict::Refuse, &|_, _| {}).unwrap();
    assert_eq!(applied.outcome.conflicts, []);
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
fn a_snapshot_is_given_back_exactly() {
    law_in_memory("a_snapshot_is_given_back_exactly", restored);
}

#[test]
fn what_is_discarded_leaves_no_trace() {
    law("what_is_discarded_leaves_no_trace", discarded);
}
