//! Finds what git's index holds where something is hidden.
//!
//! A tracked file that is covered would look emptied, and its directory
//! deserted: `git add -A` would fail or stage that. So inside stands what the
//! index has. It is read here, as data: no git is started, so nothing that the
//! repository configures can run, and nothing outside the granted trees is
//! opened, whatever a pointer or a link in the repository says. What is not
//! understood is left out; then nothing can be staged there.

mod index;
mod objects;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, fstat, lstat, openat2, statat,
};
use rustix::io::Errno;
use stockade_policy::facts::HiddenMatch;
use stockade_policy::path::AbsolutePath;
use stockade_policy::plan::{Cover, StandIn, StandInKind};
use stockade_sys::rustix;

use objects::Objects;

/// Largest index that is read, in bytes.
const INDEX_BYTES_MAX: u64 = 256 << 20;
/// Largest configuration and pointer file, in bytes.
const TEXT_BYTES_MAX: u64 = 64 << 10;
/// Most entries and bytes that stand in for hidden files in one run.
const STAND_INS_MAX: usize = 8192;
const STAND_IN_BYTES_MAX: usize = 16 << 20;
/// Longest component of a name (NAME_MAX).
const NAME_BYTES_MAX: usize = 255;

/// Kinds of entries in an index (gitformat-index(5)).
const MODE_KIND: u32 = 0o170_000;
const MODE_LINK: u32 = 0o120_000;
const MODE_SUBMODULE: u32 = 0o160_000;

/// How objects are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hash {
    Sha1,
    Sha256,
}

impl Hash {
    fn bytes(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }
}

/// Fills in, for matches below `roots`, where they are in their repository and
/// what its index holds there.
pub fn look_up(hidden: &mut [HiddenMatch], roots: &[AbsolutePath]) {
    let mut repositories = Repositories {
        roots,
        known: HashMap::new(),
        list: Vec::new(),
    };
    let mut wanted: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (position, found) in hidden.iter_mut().enumerate() {
        let Some(repository) = repositories.around(&found.path) else {
            continue;
        };
        let work_tree = &repositories.list[repository].work_tree;
        found.in_repository = found.path.relative_to(work_tree).map(<[u8]>::to_vec);
        wanted.entry(repository).or_default().push(position);
    }
    let mut left = Left {
        entries: STAND_INS_MAX,
        bytes: STAND_IN_BYTES_MAX,
    };
    for (repository, positions) in wanted {
        repositories.list[repository].fill(hidden, &positions, roots, &mut left);
    }
}

/// What may still stand in.
struct Left {
    entries: usize,
    bytes: usize,
}

/// Repositories around hidden paths.
struct Repositories<'a> {
    roots: &'a [AbsolutePath],
    /// By directory, which of the list is around it.
    known: HashMap<AbsolutePath, Option<usize>>,
    list: Vec<Repository>,
}

impl Repositories<'_> {
    /// The repository whose work tree holds `path`, not above the root that
    /// is granted.
    fn around(&mut self, path: &AbsolutePath) -> Option<usize> {
        let root = self.roots.iter().find(|root| path.is_within(root))?;
        let mut passed = Vec::new();
        let mut next = path.parent();
        let mut found = None;
        while let Some(directory) = next.filter(|directory| directory.is_within(root)) {
            if let Some(&known) = self.known.get(&directory) {
                found = known;
                break;
            }
            let repository = Repository::open(&directory, self.roots);
            next = directory.parent();
            passed.push(directory);
            if let Some(repository) = repository {
                found = Some(self.list.len());
                self.list.push(repository);
                break;
            }
        }
        for directory in passed {
            self.known.insert(directory, found);
        }
        found
    }
}

/// One work tree and its git directories.
struct Repository {
    work_tree: AbsolutePath,
    /// Holds the index.
    own: OwnedFd,
    /// Holds the objects and the configuration; another one in a linked work
    /// tree (gitrepository-layout(5), commondir).
    common: OwnedFd,
}

impl Repository {
    fn open(work_tree: &AbsolutePath, roots: &[AbsolutePath]) -> Option<Self> {
        let marker = work_tree.join(".git").ok()?;
        let facts = lstat(marker.as_bytes()).ok()?;
        let kind = FileType::from_raw_mode(facts.st_mode);
        let own_path = match kind {
            FileType::Directory => marker,
            FileType::RegularFile => {
                let text = read_absolute(&marker)?;
                let target = text.strip_prefix(b"gitdir: ")?.trim_ascii_end();
                granted(work_tree, target, roots)?
            }
            _ => return None,
        };
        let own = open_absolute(&own_path, OFlags::DIRECTORY).ok()?;
        let common = match read_beneath(own.as_fd(), "commondir", TEXT_BYTES_MAX) {
            Some(target) => {
                let path = granted(&own_path, target.trim_ascii_end(), roots)?;
                open_absolute(&path, OFlags::DIRECTORY).ok()?
            }
            None => open_absolute(&own_path, OFlags::DIRECTORY).ok()?,
        };
        Some(Self {
            work_tree: work_tree.clone(),
            own,
            common,
        })
    }

    fn fill(
        &self,
        hidden: &mut [HiddenMatch],
        positions: &[usize],
        roots: &[AbsolutePath],
        left: &mut Left,
    ) {
        // A new repository has no index, and tracks nothing.
        let index = statat(&self.own, "index", AtFlags::SYMLINK_NOFOLLOW);
        if index.is_err_and(|error| error == Errno::NOENT) {
            return;
        }
        let text = read_beneath(self.own.as_fd(), "index", INDEX_BYTES_MAX).unwrap_or_default();
        let hash = self.hash();
        let by_name: HashMap<Vec<u8>, usize> = positions
            .iter()
            .filter_map(|&position| Some((hidden[position].in_repository.clone()?, position)))
            .collect();
        let any_directory = positions.iter().any(|&position| hidden[position].directory);
        let mut tracked: BTreeMap<usize, Vec<Wanted>> = BTreeMap::new();
        let read = index::for_each(&text, hash.bytes(), |entry| {
            let position = match by_name.get(entry.name) {
                Some(&position) => Some((position, entry.name.len())),
                None if any_directory => nearest(&by_name, entry.name),
                None => None,
            };
            let Some((position, length)) = position else {
                return;
            };
            let below = entry.name.get(length + 1..).unwrap_or_default();
            tracked.entry(position).or_default().push(Wanted {
                name: below.to_vec(),
                mode: entry.mode,
                object: entry.object.to_vec(),
                is_settled: entry.stage == 0 && !entry.intent_to_add,
            });
        });
        if read.is_err() {
            for &position in positions {
                hidden[position].cover = Cover::Sealed;
            }
            return;
        }
        if tracked.is_empty() {
            return;
        }
        let objects = Objects::open(self.common.as_fd(), hash, roots);
        for (position, entries) in tracked {
            let found = &mut hidden[position];
            found.cover = stand_ins(entries, found.directory, &objects, left)
                .map_or(Cover::Sealed, Cover::Committed);
        }
    }

    /// Git refuses a repository whose objects are named otherwise than its
    /// configuration says; one that says so in another way is not understood.
    fn hash(&self) -> Hash {
        let text = read_beneath(self.common.as_fd(), "config", TEXT_BYTES_MAX).unwrap_or_default();
        let lower = text.to_ascii_lowercase();
        let says = |needle: &[u8]| lower.windows(needle.len()).any(|part| part == needle);
        match says(b"objectformat") && says(b"sha256") {
            true => Hash::Sha256,
            false => Hash::Sha1,
        }
    }
}

/// An entry of the index at or below a hidden path.
struct Wanted {
    name: Vec<u8>,
    mode: u32,
    object: Vec<u8>,
    /// Neither in conflict nor only announced.
    is_settled: bool,
}

/// The hidden directory that an entry lies below.
fn nearest(by_name: &HashMap<Vec<u8>, usize>, name: &[u8]) -> Option<(usize, usize)> {
    let slashes = name.iter().enumerate().rev();
    slashes
        .filter(|&(_, &byte)| byte == b'/')
        .find_map(|(end, _)| Some((*by_name.get(&name[..end])?, end)))
}

/// All of the entries, or nothing: with a part of them git would see the rest
/// deleted.
fn stand_ins(
    entries: Vec<Wanted>,
    directory: bool,
    objects: &Objects,
    left: &mut Left,
) -> Option<Vec<StandIn>> {
    let mut made: BTreeMap<Vec<u8>, StandIn> = BTreeMap::new();
    for entry in entries {
        let fits = match directory {
            true => is_plain(&entry.name),
            false => entry.name.is_empty() && entry.mode & MODE_KIND != MODE_LINK,
        };
        if !fits || !entry.is_settled || left.entries == 0 {
            return None;
        }
        let kind = match entry.mode & MODE_KIND {
            MODE_LINK => StandInKind::Link,
            MODE_SUBMODULE => StandInKind::Directory,
            _ if entry.mode & 0o100 != 0 => StandInKind::Executable,
            _ => StandInKind::File,
        };
        let content = match kind {
            StandInKind::Directory => Vec::new(),
            _ => objects.blob(&entry.object)?,
        };
        // symlink(2) takes no such target.
        let unfit = content.is_empty() || content.contains(&0) || content.len() > 4095;
        if kind == StandInKind::Link && unfit {
            return None;
        }
        left.bytes = left.bytes.checked_sub(content.len())?;
        left.entries -= 1;
        let name = entry.name.clone();
        let stand_in = StandIn {
            name: entry.name,
            kind,
            content,
        };
        if made.insert(name, stand_in).is_some() {
            return None;
        }
    }
    // A file cannot be above another one.
    let below_file = |name: &Vec<u8>| {
        let slashes = name.iter().enumerate();
        slashes
            .filter(|&(_, &byte)| byte == b'/')
            .any(|(end, _)| made.contains_key(&name[..end]))
    };
    if made.keys().any(below_file) {
        return None;
    }
    Some(made.into_values().collect())
}

/// Whether every component can be made as it is.
fn is_plain(name: &[u8]) -> bool {
    name.len() < 4096
        && !name.contains(&0)
        && name.split(|&byte| byte == b'/').all(|component| {
            !matches!(component, b"" | b"." | b"..") && component.len() <= NAME_BYTES_MAX
        })
}

/// Where a pointer of the repository leads, if that is granted.
fn granted(base: &AbsolutePath, target: &[u8], roots: &[AbsolutePath]) -> Option<AbsolutePath> {
    let target = Path::new(std::ffi::OsStr::from_bytes(target));
    let resolved = std::fs::canonicalize(base.as_path().join(target)).ok()?;
    let path = AbsolutePath::parse(resolved.as_os_str().as_bytes()).ok()?;
    roots
        .iter()
        .any(|root| path.is_within(root))
        .then_some(path)
}

fn open_absolute(path: &AbsolutePath, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(CWD, path.as_bytes(), flags, Mode::empty(), resolve)
}

fn read_absolute(path: &AbsolutePath) -> Option<Vec<u8>> {
    read(open_absolute(path, OFlags::RDONLY).ok()?, TEXT_BYTES_MAX)
}

/// A regular file below a directory, reached without a link.
fn open_beneath(directory: BorrowedFd<'_>, name: impl AsRef<Path>) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = openat2(directory, name.as_ref(), flags, Mode::empty(), resolve).ok()?;
    let kind = FileType::from_raw_mode(fstat(&file).ok()?.st_mode);
    (kind == FileType::RegularFile).then_some(file)
}

fn read_beneath(directory: BorrowedFd<'_>, name: &str, bytes_max: u64) -> Option<Vec<u8>> {
    read(open_beneath(directory, name)?, bytes_max)
}

fn read(file: OwnedFd, bytes_max: u64) -> Option<Vec<u8>> {
    let facts = fstat(&file).ok()?;
    if FileType::from_raw_mode(facts.st_mode) != FileType::RegularFile {
        return None;
    }
    let mut text = Vec::with_capacity(usize::try_from(facts.st_size).ok()?.min(1 << 20));
    let mut limited = File::from(file).take(bytes_max + 1);
    limited.read_to_end(&mut text).ok()?;
    (text.len() as u64 <= bytes_max).then_some(text)
}

#[cfg(test)]
mod tests;
