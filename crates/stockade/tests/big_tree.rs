//! A tree of 300,000 files with a sparse one of 20 GiB: each mode and each
//! command costs what is changed, and the sparse file stays sparse.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stockade_testkit::{Finished, World, skip};

const DIRECTORIES: usize = 300;
const FILES: usize = 1000;
const SPARSE: u64 = 20 << 30;
/// What a run truncates it to.
const SHORTER: u64 = 19 << 30;
/// Where in it there is data, besides its end.
const MIDDLE: u64 = 10 << 30;
/// What the sparse file may take up on the disk. The kernel copies in pieces
/// of 1 MiB; a hole that was filled would be thousands of times as much.
const DISK_MAX: u64 = 64 << 20;

/// Reads a few files, changes one, adds to the sparse one and cuts it.
const WORK: &str = "set -e; cat d3/f4 d299/f999; ls d7 | wc -l; echo changed > d5/f6; \
     printf '!' >> sparse; tail -c 4 sparse; truncate -s 19G sparse; \
     printf 'inside' | dd of=sparse bs=1 seek=5G conv=notrunc status=none";

fn stockade(world: &World, arguments: &[&str]) -> Finished {
    Finished::of(world.stockade().args(arguments).output().unwrap())
}

fn make(world: &World) {
    for directory in 0..DIRECTORIES {
        let directory = world.project.join(format!("d{directory}"));
        fs::create_dir(&directory).unwrap();
        for file in 0..FILES {
            File::create(directory.join(format!("f{file}"))).unwrap();
        }
    }
    make_sparse(world);
}

/// Makes the sparse file as it is at first.
fn make_sparse(world: &World) {
    let mut sparse = File::create(world.project.join("sparse")).unwrap();
    sparse.set_len(SPARSE).unwrap();
    put(&mut sparse, MIDDLE, b"middle");
    put(&mut sparse, SPARSE - 3, b"end");
}

fn put(file: &mut File, at: u64, bytes: &[u8]) {
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(bytes).unwrap();
}

/// The bytes of a file from a place on.
fn bytes(path: &Path, at: u64, length: u64) -> String {
    let mut file = File::open(path).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    let mut text = String::new();
    file.take(length).read_to_string(&mut text).unwrap();
    text
}

/// It has this size, still has its data, and takes up almost nothing.
#[track_caller]
fn is_sparse(path: &Path, size: u64) {
    let status = fs::metadata(path).unwrap();
    assert_eq!(status.len(), size);
    let disk = status.blocks() * 512;
    assert!(disk < DISK_MAX, "{path:?} takes up {disk} bytes");
    assert_eq!(bytes(path, MIDDLE, 6), "middle");
}

/// As it was at first.
#[track_caller]
fn is_untouched(world: &World) {
    let sparse = world.project.join("sparse");
    is_sparse(&sparse, SPARSE);
    assert_eq!(bytes(&sparse, SPARSE - 3, 3), "end");
    assert_eq!(bytes(&sparse, 5 << 30, 2), "\0\0");
    assert_eq!(bytes(&world.project.join("d5/f6"), 0, 9), "");
}

/// As a run left it.
#[track_caller]
fn is_changed(tree: &Path) {
    let sparse = tree.join("sparse");
    is_sparse(&sparse, SHORTER);
    assert_eq!(bytes(&sparse, 5 << 30, 6), "inside");
    assert_eq!(bytes(&tree.join("d5/f6"), 0, 9), "changed\n");
}

fn run(world: &World, mode: &str) -> Finished {
    let run = world.run(&["--workspace", mode], &["sh", "-c", WORK]);
    assert_eq!(run.stdout, format!("{FILES}\nend!"), "{}", run.stderr);
    run.expect_code(0)
}

/// The layers of all runs that wait.
fn layers(world: &World) -> Vec<PathBuf> {
    let all = world.home.join(".local/state/stockade/workspaces");
    let workspaces = fs::read_dir(all).into_iter().flatten().flatten();
    workspaces
        .flat_map(|workspace| fs::read_dir(workspace.path().join("runs")))
        .flatten()
        .map(|run| run.unwrap().path())
        .collect()
}

/// Whether the file system of the tests keeps holes, and keeps so large ones.
fn keeps_holes(world: &World) -> bool {
    let file = File::create(world.outside().join("probe")).unwrap();
    file.set_len(SPARSE).is_ok() && file.metadata().unwrap().blocks() * 512 < DISK_MAX
}

fn discards(world: &World) {
    run(world, "discard");
    is_untouched(world);
    assert_eq!(layers(world), Vec::<PathBuf>::new());
    // Waiting first makes no difference.
    run(world, "review");
    is_untouched(world);
    let diff = stockade(world, &["diff", "--stat"]).ok();
    let lines: Vec<&str> = diff.lines().collect();
    assert_eq!(lines.len(), 3, "{diff}");
    assert!(lines[1].starts_with("modified   d5/f6"), "{diff}");
    assert!(lines[2].starts_with("modified   sparse"), "{diff}");
    let layers_of_run = layers(world);
    is_changed(&layers_of_run[0].join("upper"));
    let whole = stockade(world, &["diff"]).ok();
    assert!(whole.contains("binary") && whole.len() < 10_000, "{whole}");
    stockade(world, &["discard"]).expect_code(0);
    is_untouched(world);
    assert_eq!(layers(world), Vec::<PathBuf>::new());
}

/// A touched file of the same size is compared, which must not read 20 GiB of
/// zeros twice, and found to be the same.
fn compares(world: &World) {
    let script = "printf middle | dd of=sparse bs=1 seek=10G conv=notrunc status=none; \
                  touch -d 2001-02-03 sparse";
    world
        .run(&["--workspace", "review"], &["sh", "-c", script])
        .expect_code(0);
    let diff = stockade(world, &["diff", "--stat"]).ok();
    assert!(diff.contains("modified   sparse (time)"), "{diff}");
    stockade(world, &["discard"]).expect_code(0);
}

/// Applied by moving it, kept for a snapshot, and given back.
fn applies_and_restores(world: &World) {
    stockade(world, &["snapshot", "before"]).expect_code(0);
    run(world, "review");
    stockade(world, &["apply"]).expect_code(0);
    is_changed(&world.project);
    assert_eq!(layers(world), Vec::<PathBuf>::new());
    stockade(world, &["restore", "before"]).expect_code(0);
    is_untouched(world);
    stockade(world, &["snapshot", "before", "--delete"]).expect_code(0);
}

/// Applied by copying it, because a snapshot has the layer too.
fn applies_by_copying(world: &World) {
    run(world, "review");
    stockade(world, &["diff", "--stat"]).expect_code(0);
    let id = layers(world)[0].file_name().unwrap().to_owned();
    let id = id.to_str().unwrap();
    stockade(world, &["snapshot", "tried", "--of", id]).expect_code(0);
    let inside = world.run(
        &["--on", "tried"],
        &["sh", "-c", "stat -c %s sparse; cat d5/f6"],
    );
    assert_eq!(inside.ok(), format!("{SHORTER}\nchanged"));
    stockade(world, &["apply", id]).expect_code(0);
    is_changed(&world.project);
    stockade(world, &["snapshot", "tried", "--delete"]).expect_code(0);
}

/// One tree for all, because making it takes longer than everything else.
#[test]
fn a_big_tree_with_a_sparse_file_works_in_each_mode() {
    let world = World::new();
    if !keeps_holes(&world) {
        return skip("a_big_tree", "sparse", "no sparse files of 20 GiB here");
    }
    make(&world);
    discards(&world);
    compares(&world);
    applies_and_restores(&world);
    applies_by_copying(&world);
    make_sparse(&world);
    fs::write(world.project.join("d5/f6"), "").unwrap();
    is_untouched(&world);
    run(&world, "live");
    is_changed(&world.project);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        !mounts.contains(world.outside().to_str().unwrap()),
        "{mounts}"
    );
}
