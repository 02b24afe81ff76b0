//! Takes the least recently used parts of caches away.
//!
//! What belongs together goes together: a crate or a module that was unpacked
//! would be broken without some of its files, and nothing checks it again.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fchmod, openat, openat2, statat,
    unlinkat,
};
use rustix::io::Errno;
use stockade_policy::caches::is_name;
use stockade_sys::directory::Hold;
use stockade_sys::rustix;

use super::{CacheError, Domain, system};

/// How deep caches are walked.
const DEPTH_MAX: usize = 256;
/// How long the lock is held at once, and let go in between, so that a run that
/// begins meanwhile hardly waits.
const BURST: Duration = Duration::from_millis(20);

/// Places below which each entry, so many components further down, is one unit.
const UNITS: &[(&str, usize)] = &[
    ("cargo/registry/src", 2),
    ("cargo/registry/cache", 2),
    ("cargo/registry/index", 1),
    ("cargo/git/db", 1),
    ("cargo/git/checkouts", 1),
];
/// Where a directory whose name has an `@` is one unpacked module.
const MODULES: &str = "go/mod";
/// Below it, single files of the download cache.
const DOWNLOADS: &str = "go/mod/cache";

/// What one cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes on disk.
    pub bytes: u64,
    pub files: u64,
    /// When it was last used, in seconds since 1970; 0 for an empty one.
    pub used_unix: i64,
}

/// What goes as a whole.
struct Unit {
    path: Vec<u8>,
    usage: Usage,
}

/// What each cache of a workspace holds.
pub fn usage(domain: &Domain) -> Result<BTreeMap<String, Usage>, CacheError> {
    let failed = |error| system("read", &domain.path, error);
    let data = match domain.data() {
        Ok(data) => data,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut usage = BTreeMap::new();
    for unit in units(data.as_fd()).map_err(failed)? {
        let first = unit.path.split(|&byte| byte == b'/').next();
        let name = first.and_then(|name| std::str::from_utf8(name).ok());
        let name = name.filter(|name| is_name(name)).unwrap_or("other");
        let sum: &mut Usage = usage.entry(name.to_owned()).or_default();
        sum.bytes += unit.usage.bytes;
        sum.files += unit.usage.files;
        sum.used_unix = sum.used_unix.max(unit.usage.used_unix);
    }
    Ok(usage)
}

/// Takes away what was not used for longest until `bytes_max` are left;
/// nothing while a run uses the caches. Returns the bytes that went.
pub fn trim(domain: &Domain, bytes_max: u64) -> Result<u64, CacheError> {
    let failed = |error| system("cut down", &domain.path, error);
    let Ok(data) = domain.data() else {
        return Ok(0);
    };
    let mut units = units(data.as_fd()).map_err(failed)?;
    units.sort_by_key(|unit| unit.usage.used_unix);
    let total: u64 = units.iter().map(|unit| unit.usage.bytes).sum();
    let mut excess = total.saturating_sub(bytes_max);
    let mut gone = 0;
    let mut units = units.into_iter();
    while excess > 0 {
        let Some(_lock) = domain.lock(Hold::Alone)? else {
            return Ok(gone);
        };
        let began = Instant::now();
        while excess > 0 && began.elapsed() < BURST {
            let Some(unit) = units.next() else {
                return Ok(gone);
            };
            // A file that is gone already needs no room.
            remove(data.as_fd(), &unit.path).map_err(failed)?;
            excess = excess.saturating_sub(unit.usage.bytes);
            gone += unit.usage.bytes;
        }
        drop(_lock);
        if excess > 0 {
            std::thread::sleep(BURST);
        }
    }
    Ok(gone)
}

/// Empties the cache of this name ([`is_name`]), or all of a workspace.
pub fn clear(domain: &Domain, cache: Option<&str>) -> Result<(), CacheError> {
    let failed = |error| system("clear", &domain.path, error);
    let Some(_lock) = domain.lock(Hold::Alone)? else {
        return Err(CacheError::InUse(domain.path.clone()));
    };
    let data = match domain.data() {
        Ok(data) => data,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    let cleared = match cache {
        Some(cache) => remove(data.as_fd(), cache.as_bytes()),
        None => names(data.as_fd()).and_then(|names| {
            names
                .iter()
                .try_for_each(|(name, _)| remove(data.as_fd(), name))
        }),
    };
    cleared.map_err(failed)
}

fn units(data: BorrowedFd<'_>) -> io::Result<Vec<Unit>> {
    let mut walk = Walk {
        units: Vec::new(),
        path: Vec::new(),
    };
    walk.directory(data, None, 0)?;
    Ok(walk.units)
}

struct Walk {
    units: Vec<Unit>,
    /// Path of what is looked at.
    path: Vec<u8>,
}

impl Walk {
    /// Adds everything in a directory to the unit `into`, or to units of its
    /// own.
    fn directory(
        &mut self,
        directory: BorrowedFd<'_>,
        into: Option<usize>,
        depth: usize,
    ) -> io::Result<()> {
        if depth > DEPTH_MAX {
            return Ok(());
        }
        let base = self.path.len();
        for (name, _) in names(directory)? {
            let facts = match statat(directory, &name[..], AtFlags::SYMLINK_NOFOLLOW) {
                Ok(facts) => facts,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            };
            if base != 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&name);
            let is_directory = FileType::from_raw_mode(facts.st_mode) == FileType::Directory;
            let unit = match into {
                Some(unit) => Some(unit),
                None if !is_directory || is_unit(&self.path) => {
                    self.units.push(Unit {
                        path: self.path.clone(),
                        usage: Usage::default(),
                    });
                    Some(self.units.len() - 1)
                }
                None => None,
            };
            if let Some(unit) = unit {
                count(&mut self.units[unit].usage, &facts, is_directory);
            }
            if is_directory {
                match open(directory, &name) {
                    Ok(below) => self.directory(below.as_fd(), unit, depth + 1)?,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    // A command took its own rights away; `clear` gives them back.
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                    Err(error) => return Err(error),
                }
            }
            self.path.truncate(base);
        }
        Ok(())
    }
}

/// Directories are read in passing, so their times say nothing.
fn count(usage: &mut Usage, facts: &Stat, is_directory: bool) {
    usage.bytes += u64::try_from(facts.st_blocks).unwrap_or(0) * 512;
    if !is_directory {
        usage.files += 1;
        let used = facts.st_atime.max(facts.st_mtime);
        usage.used_unix = usage.used_unix.max(used);
    }
}

fn is_unit(path: &[u8]) -> bool {
    let below = |place: &str| {
        let rest = path.strip_prefix(place.as_bytes())?;
        rest.strip_prefix(b"/")
    };
    let components = |rest: &[u8]| rest.split(|&byte| byte == b'/').count();
    let is_counted = UNITS
        .iter()
        .any(|(place, depth)| below(place).is_some_and(|rest| components(rest) == *depth));
    let is_module = below(MODULES).is_some_and(|rest| {
        let last = rest.rsplit(|&byte| byte == b'/').next();
        last.is_some_and(|name| name.contains(&b'@')) && below(DOWNLOADS).is_none()
    });
    is_counted || is_module
}

/// Removes what is at a path, with all below; nothing when it is gone.
fn remove(data: BorrowedFd<'_>, path: &[u8]) -> io::Result<()> {
    let (parent, name) = match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&b"."[..], path),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let parent = match openat2(data, parent, flags, Mode::empty(), resolve) {
        Ok(parent) => parent,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    remove_at(parent.as_fd(), name, 0)
}

fn remove_at(parent: BorrowedFd<'_>, name: &[u8], depth: usize) -> io::Result<()> {
    let mut result = unlinkat(parent, name, AtFlags::empty());
    if result == Err(Errno::ACCESS) {
        // Go makes its modules read-only.
        fchmod(parent, Mode::RWXU)?;
        result = unlinkat(parent, name, AtFlags::empty());
    }
    match result {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // A directory (unlink(2)).
        Err(Errno::ISDIR | Errno::PERM) if depth <= DEPTH_MAX => {}
        Err(error) => return Err(error.into()),
    }
    let below = match open(parent, name) {
        Ok(below) => below,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            give_rights_back(parent, name)?;
            open(parent, name)?
        }
        Err(error) => return Err(error),
    };
    fchmod(&below, Mode::RWXU)?;
    for (entry, _) in names(below.as_fd())? {
        remove_at(below.as_fd(), &entry, depth + 1)?;
    }
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// To a directory that its owner may not even open. Linux changes no mode
/// without following links (fchmodat(2)), so it is named by a descriptor.
fn give_rights_back(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = openat(parent, name, flags, Mode::empty())?;
    let link = format!("/proc/self/fd/{}", place.as_raw_fd());
    Ok(rustix::fs::chmod(link, Mode::RWXU)?)
}

fn open(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(parent, name, flags, Mode::empty())?)
}

fn names(directory: BorrowedFd<'_>) -> io::Result<Vec<(Vec<u8>, FileType)>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push((name.to_vec(), entry.file_type()));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use stockade_policy::caches::Caches;
    use stockade_policy::path::AbsolutePath;

    use super::*;

    fn absolute(path: &Path) -> AbsolutePath {
        AbsolutePath::parse(path.as_os_str().as_encoded_bytes()).unwrap()
    }

    /// A domain with files: path, bytes, seconds since it was used.
    fn domain(base: &Path, files: &[(&str, usize, u64)]) -> Domain {
        let workspace = absolute(&base.join("project"));
        let place = absolute(&base.join("stockade"));
        let caches = Caches {
            source: super::super::of_workspace(&place, &workspace).unwrap(),
            path: absolute(base),
            list: Vec::new(),
            bytes_max: 0,
        };
        let held = super::super::hold(&caches, &workspace).unwrap();
        for (name, bytes, age) in files {
            let path = caches.source.as_path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, vec![b'x'; *bytes]).unwrap();
            let time = std::time::SystemTime::now() - Duration::from_secs(*age);
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.set_times(fs::FileTimes::new().set_accessed(time).set_modified(time))
                .unwrap();
        }
        let Domain { path, directory } = held.domain;
        drop(held._lock);
        Domain { path, directory }
    }

    fn left(domain: &Domain) -> Vec<String> {
        let data = domain.data().unwrap();
        let mut paths: Vec<String> = units(data.as_fd())
            .unwrap()
            .iter()
            .map(|unit| String::from_utf8_lossy(&unit.path).into_owned())
            .collect();
        paths.sort();
        paths
    }

    #[test]
    fn what_belongs_together_goes_together_and_the_oldest_first() {
        let scratch = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(scratch.path()).unwrap();
        let domain = domain(
            &base,
            &[
                ("cargo/registry/src/index/old-1.0.0/lib.rs", 100_000, 900),
                ("cargo/registry/src/index/old-1.0.0/Cargo.toml", 4096, 900),
                ("cargo/registry/src/index/new-1.0.0/lib.rs", 100_000, 900),
                ("cargo/registry/src/index/new-1.0.0/used.rs", 4096, 10),
                ("go/mod/example.org/m@v1.0.0/a.go", 100_000, 800),
                ("go/mod/example.org/m@v1.0.0/deep/b.go", 4096, 800),
                ("npm/_cacache/a", 100_000, 700),
                ("npm/_cacache/b", 100_000, 20),
            ],
        );
        let module = domain
            .path
            .as_path()
            .join("data/go/mod/example.org/m@v1.0.0");
        for path in [module.join("deep"), module] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o555)).unwrap();
        }
        assert_eq!(trim(&domain, 10 << 20).unwrap(), 0);
        assert_eq!(left(&domain).len(), 5);
        assert!(trim(&domain, 330_000).unwrap() > 0);
        assert_eq!(
            left(&domain),
            [
                "cargo/registry/src/index/new-1.0.0",
                "npm/_cacache/a",
                "npm/_cacache/b"
            ]
        );
        trim(&domain, 0).unwrap();
        assert_eq!(left(&domain), [""; 0]);
    }

    #[test]
    fn links_in_a_cache_lead_nowhere() {
        let scratch = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(scratch.path()).unwrap();
        let domain = domain(&base, &[("npm/x", 10, 10)]);
        let victim = base.join("victim");
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("file"), vec![b'x'; 100_000]).unwrap();
        let data = domain.path.as_path().join("data");
        symlink(&victim, data.join("pip")).unwrap();
        symlink(&victim, data.join("npm/link")).unwrap();
        fs::create_dir_all(data.join("npm/closed/deep")).unwrap();
        fs::set_permissions(data.join("npm/closed"), fs::Permissions::from_mode(0o000)).unwrap();
        fs::create_dir(data.join("cargo")).unwrap();
        symlink(&victim, data.join("cargo/registry")).unwrap();
        assert!(usage(&domain).unwrap()["pip"].bytes < 100_000);
        trim(&domain, 0).unwrap();
        clear(&domain, Some("pip")).unwrap();
        clear(&domain, None).unwrap();
        assert!(victim.join("file").exists());
        assert_eq!(fs::read_dir(data).unwrap().count(), 0);
    }

    #[test]
    fn nothing_goes_while_a_run_uses_it() {
        let scratch = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(scratch.path()).unwrap();
        let domain = domain(&base, &[("npm/x", 100_000, 10)]);
        let lock = domain.lock(Hold::Shared).unwrap();
        assert_eq!(trim(&domain, 0).unwrap(), 0);
        assert!(
            clear(&domain, None)
                .unwrap_err()
                .to_string()
                .contains("in use")
        );
        drop(lock);
        clear(&domain, None).unwrap();
        assert_eq!(left(&domain), [""; 0]);
    }
}
