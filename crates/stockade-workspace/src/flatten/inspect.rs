//! Which layers can be merged without a trace on anything else.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::FileType;

use crate::measure::walk;

/// Whether a layer can be merged: all of it can be read without changing a
/// mode, since a kill would leave the change; and with `linked_only_inside`
/// no file has another name outside of the layer. The tree has such a name,
/// and one more name would change the file's time there.
pub(super) fn can_be_merged(tree: BorrowedFd<'_>, linked_only_inside: bool) -> io::Result<bool> {
    let is_root = rustix::process::geteuid().is_root();
    let mut fits = true;
    let mut names: BTreeMap<(u64, u64), (u64, u64)> = BTreeMap::new();
    let everything = walk(tree, &mut |status| {
        if FileType::from_raw_mode(status.st_mode) == FileType::Directory {
            fits &= is_root || status.st_mode & 0o500 == 0o500;
        } else if linked_only_inside && status.st_nlink > 1 {
            let file = (status.st_dev, status.st_ino);
            names.entry(file).or_insert((0, status.st_nlink)).0 += 1;
        }
    })?;
    Ok(fits && everything && names.values().all(|(here, all)| here >= all))
}
