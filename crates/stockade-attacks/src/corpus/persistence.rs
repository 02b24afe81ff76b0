//! Attacks that leave something for a later run: EP1.

use super::attacks;
use crate::{Stage, Verdict};
use std::io;
use std::path::{Path, PathBuf};
use stockade_sys::hostile;

attacks! {
    EP1 "ep1-temporary-files", TwoRuns, Plain, "leaves files in /tmp and /var/tmp for a later run"
        => |stage| files(stage, &["/tmp", "/var/tmp"]);
    EP1 "ep1-shared-memory", TwoRuns, Plain, "leaves files in /dev/shm for a later run"
        => |stage| files(stage, &["/dev/shm"]);
    EP1 "ep1-home", TwoRuns, Plain, "leaves files in the home for a later run"
        => |stage| match &stage.home {
            Some(home) => files(stage, &[home]),
            None => Verdict::Inconclusive("no made-up home was staged".into()),
        };
    EP1 "ep1-run-directories", TwoRuns, Plain, "leaves files in /run and beside the workspace"
        => |stage| match stage.workspace.parent() {
            Some(above) => files(stage, &[Path::new("/run"), Path::new("/dev"), above]),
            None => Verdict::Inconclusive("the workspace is the root".into()),
        };
    EP1 "ep1-kernel-objects", TwoRuns, Plain,
        "leaves a System V segment and a POSIX queue" => objects;
}

/// In the first run leaves a mark in each place that can be written; in the
/// second looks for it and takes it away.
fn files<P: AsRef<Path>>(stage: &Stage, directories: &[P]) -> Verdict {
    let name = format!(".stockade-mark-{}", stage.queue);
    let marks = directories
        .iter()
        .map(|directory| directory.as_ref().join(&name));
    if stage.round == 1 {
        let left = marks
            .filter(|mark| std::fs::write(mark, "attacked").is_ok())
            .count();
        return Verdict::Inconclusive(format!("left {left} files; the second run looks"));
    }
    // Every mark is taken away, also when the first tells all.
    let found: Vec<Verdict> = marks.map(|mark| found_mark(&mark)).collect();
    Verdict::all(found)
}

fn found_mark(mark: &PathBuf) -> Verdict {
    match std::fs::symlink_metadata(mark) {
        Ok(_) => {
            super::tidy(mark);
            Verdict::Escaped(format!("{} was still there", mark.display()))
        }
        Err(error) => Verdict::refused(&error),
    }
}

fn objects(stage: &Stage) -> Verdict {
    let key = stage.ipc_key ^ 0x00ff_0000;
    let name = std::ffi::CString::new(format!("{}-mark", stage.queue.replace('\0', "")))
        .expect("null bytes were just removed");
    if stage.round == 1 {
        let made: [io::Result<()>; 2] = [
            hostile::shm_create(key, b"mark").map(drop),
            hostile::mq_create(&name, b"mark").map(drop),
        ];
        let left = made.iter().filter(|result| result.is_ok()).count();
        return Verdict::Inconclusive(format!("left {left} objects; the second run looks"));
    }
    let segment = hostile::shm_find(key).and_then(hostile::shm_remove);
    let queue = hostile::mq_unlink(&name);
    Verdict::all([
        Verdict::of(segment, |()| "the segment was still there".into()),
        Verdict::of(queue, |()| "the queue was still there".into()),
    ])
}
