//! A machine that was saved: its memory, the state of its devices, and its disks.
//!
//! ```text
//! <directory>/     0700, the caller's
//!   memory         as long as the machine's memory; holes where it was never used
//!   state          Firecracker's, of its version
//!   drive-<name>   each disk
//! ```
//!
//! All of it is copied out of Firecracker's reach: what was saved stays as it was
//! saved, whatever the machine does afterwards. Machines that are restored from it
//! share its memory's pages until they write to them.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use stockade_sys::rustix::fs::{SeekFrom, copy_file_range, fsync, seek};
use stockade_sys::rustix::io::Errno;

use super::jail::Jail;
use super::{FirecrackerError, system};

pub(crate) const MEMORY: &str = "memory";
pub(crate) const STATE: &str = "state";
/// The state of a few devices takes some 16 KiB.
const STATE_BYTES_MAX: u64 = 1 << 20;

/// One that was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    directory: PathBuf,
    /// Of disks in it.
    drives: Vec<String>,
}

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All memory.
    Full,
    /// What changed since the machine was last saved or restored. It is put
    /// together with that, so that what is kept is whole again.
    Difference,
}

impl Snapshot {
    /// One that was kept.
    pub fn open(directory: &Path) -> Result<Self, FirecrackerError> {
        let failed = system("open the snapshot");
        let mut drives = Vec::new();
        for entry in std::fs::read_dir(directory).map_err(&failed)? {
            let name = entry.map_err(&failed)?.file_name();
            if let Some(name) = name.to_str().filter(|name| name.starts_with("drive-")) {
                drives.push(name.to_owned());
            }
        }
        drives.sort();
        Ok(Self {
            directory: directory.to_owned(),
            drives,
        })
    }

    /// Its files, by their names in a jail.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, PathBuf)> {
        let drives = self.drives.iter().map(String::as_str);
        let names = [MEMORY, STATE].into_iter().chain(drives);
        names.map(|name| (name, self.directory.join(name)))
    }

    /// Copies what Firecracker just saved out of the jail, onto `base` if that is
    /// a difference to it.
    pub(crate) fn keep(
        jail: &Jail,
        directory: &Path,
        memory_bytes: u64,
        base: Option<&Self>,
        drives: &[(String, File)],
    ) -> Result<Self, FirecrackerError> {
        let failed = system("keep the snapshot");
        let memory = jail.written(MEMORY, memory_bytes)?;
        if memory.metadata().map_err(&failed)?.len() != memory_bytes {
            return Err(FirecrackerError::Violation {
                who: "Firecracker",
                reason: "the memory that it saved has another size".into(),
            });
        }
        let mut state = Vec::new();
        let saved = jail.written(STATE, STATE_BYTES_MAX)?;
        let mut saved = saved.take(STATE_BYTES_MAX);
        saved.read_to_end(&mut state).map_err(&failed)?;
        DirBuilder::new()
            .mode(0o700)
            .create(directory)
            .map_err(&failed)?;
        let kept = Self {
            directory: directory.to_owned(),
            drives: drives.iter().map(|(name, _)| name.clone()).collect(),
        };
        let done = kept.write(&memory, &state, base, drives);
        if done.is_err() {
            // The reason is the one above; what was made here is ours alone.
            let _removed = std::fs::remove_dir_all(directory).is_ok();
        }
        done.map_err(failed)?;
        Ok(kept)
    }

    fn write(
        &self,
        memory: &File,
        state: &[u8],
        base: Option<&Self>,
        drives: &[(String, File)],
    ) -> io::Result<()> {
        let target = self.create(MEMORY)?;
        target.set_len(memory.metadata()?.len())?;
        if let Some(base) = base {
            copy_data(&File::open(base.directory.join(MEMORY))?, &target)?;
        }
        copy_data(memory, &target)?;
        fsync(&target)?;
        let mut file = self.create(STATE)?;
        file.write_all(state)?;
        fsync(&file)?;
        for (name, drive) in drives {
            let target = self.create(name)?;
            target.set_len(drive.metadata()?.len())?;
            copy_data(drive, &target)?;
        }
        Ok(())
    }

    /// Readable to whoever is given a name of it: a jailed Firecracker.
    fn create(&self, name: &str) -> io::Result<File> {
        let path = self.directory.join(name);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o444))?;
        Ok(file)
    }
}

/// Copies what is in a file, and leaves what is a hole in it as it is in the
/// other (SEEK_DATA in lseek(2)).
pub(crate) fn copy_data(source: &File, target: &File) -> io::Result<()> {
    let mut at = 0;
    loop {
        let start = match seek(source, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let end = seek(source, SeekFrom::Hole(start))?;
        let (mut from, mut to) = (start, start);
        while from < end {
            let bytes = usize::try_from(end - from).map_err(io::Error::other)?;
            let copied = copy_file_range(source, Some(&mut from), target, Some(&mut to), bytes)?;
            if copied == 0 {
                // It became shorter meanwhile.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_difference_changes_what_is_in_it_and_nothing_else() {
        let base = tempfile::tempfile().unwrap();
        base.write_all_at(&[1; 40_960], 0).unwrap();
        let difference = tempfile::tempfile().unwrap();
        difference.set_len(1 << 20).unwrap();
        difference.write_all_at(&[2; 4096], 8192).unwrap();
        // Zeros are content too.
        difference.write_all_at(&[0; 4096], 16_384).unwrap();
        let whole = tempfile::tempfile().unwrap();
        whole.set_len(1 << 20).unwrap();
        copy_data(&base, &whole).unwrap();
        copy_data(&difference, &whole).unwrap();
        let mut bytes = vec![9; 1 << 20];
        whole.read_exact_at(&mut bytes, 0).unwrap();
        let page = |number: usize| bytes[number * 4096];
        let pages: Vec<u8> = (0..11).map(page).collect();
        assert_eq!(pages, [1, 1, 2, 1, 0, 1, 1, 1, 1, 1, 0]);
    }
}
