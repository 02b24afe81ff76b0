//! Trees, layers and a real overlay over them, for tests.
//!
//! Mounting needs namespaces of the test's own: the test executable starts
//! itself again under unshare(1), where only what a test calls mounts.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use stockade_sys::rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

const INSIDE: &str = "STOCKADE_TEST_INSIDE";

/// The command that runs the test `name` of this executable in namespaces.
pub fn again(name: &str, variables: &[(&str, String)]) -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--user",
        "--map-root-user",
        "--mount",
        "--propagation",
        "private",
    ]);
    command.arg(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        name,
        "--nocapture",
        "--test-threads=1",
        "--include-ignored",
    ]);
    command.env(INSIDE, fs::read_link("/proc/self/ns/mnt").unwrap());
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command
}

/// One tree with an empty layer over it, and places for the rest.
pub struct World {
    pub scratch: tempfile::TempDir,
}

impl World {
    pub fn new(parent: &Path) -> Self {
        let scratch = tempfile::Builder::new()
            .prefix("w")
            .tempdir_in(parent)
            .unwrap();
        for name in ["base", "upper", "work", "view", "preimages", "journal"] {
            fs::create_dir(scratch.path().join(name)).unwrap();
        }
        Self { scratch }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Mounts the overlay of `layers`, top first, over the base; the first is
    /// written to when `writable`.
    pub fn mount(&self, layers: &[&str], writable: bool) -> Mounted {
        self.mount_over(layers, "base", writable)
    }

    pub fn mount_over(&self, layers: &[&str], base: &str, writable: bool) -> Mounted {
        let (upper, lower) = match writable {
            true => (Some(self.at(layers[0])), &layers[1..]),
            false => (None, layers),
        };
        let lower: Vec<_> = lower.iter().map(|name| self.at(name)).collect();
        let work = self.at("work");
        let upper = upper.as_deref().map(|upper| (upper, &*work));
        self.mount_at(upper, &lower, &self.at(base))
    }

    /// The same for layers that lie anywhere: that which is written to with
    /// its working directory, the others, the base.
    pub fn mount_at(
        &self,
        upper: Option<(&Path, &Path)>,
        lower: &[PathBuf],
        base: &Path,
    ) -> Mounted {
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let lower = lower.iter().map(|layer| &**layer).chain([base]).map(path);
        let lower: Vec<_> = lower.collect();
        let mut options = format!("userxattr,lowerdir={}", lower.join(":"));
        if let Some((upper, work)) = upper {
            let (upper, work) = (path(upper), path(work));
            options.push_str(&format!(",upperdir={upper},workdir={work}"));
        }
        let (view, data) = (self.at("view"), CString::new(options).unwrap());
        mount("overlay", &view, "overlay", MountFlags::empty(), &*data).unwrap();
        Mounted(view)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The overlay keeps a directory without rights below work.
        let mut left = vec![self.at("work")];
        let runs = fs::read_dir(self.at("state/workspaces"));
        for workspace in runs.into_iter().flatten().flatten() {
            for run in fs::read_dir(workspace.path().join("runs"))
                .into_iter()
                .flatten()
                .flatten()
            {
                left.push(run.path().join("work"));
            }
        }
        for work in left
            .iter()
            .map(|work| work.join("work"))
            .filter(|work| work.exists())
        {
            fs::set_permissions(&work, fs::Permissions::from_mode(0o700)).unwrap();
        }
    }
}

pub struct Mounted(pub PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let done = unmount(&self.0, UnmountFlags::empty());
        assert!(done.is_ok() || std::thread::panicking());
    }
}

/// All that is compared of one path.
#[derive(Clone, PartialEq, Eq)]
pub struct State {
    pub kind: String,
    pub mode: u32,
    pub modified: (i64, i64),
    pub content: Vec<u8>,
    pub attributes: BTreeMap<OsString, Vec<u8>>,
    /// The first path that is the same file.
    pub first_name: PathBuf,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let content = String::from_utf8_lossy(&self.content[..self.content.len().min(40)]);
        write!(
            f,
            "{} {:o} {:?} {content:?}({}) {:?} ={:?}",
            self.kind,
            self.mode,
            self.modified,
            self.content.len(),
            self.attributes,
            self.first_name
        )
    }
}

pub type Tree = BTreeMap<PathBuf, State>;

/// Everything below a directory, the directory itself as the empty path.
pub fn observe(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut names: BTreeMap<(u64, u64), PathBuf> = BTreeMap::new();
    look(root, Path::new(""), &mut tree, &mut names);
    tree
}

fn look(root: &Path, path: &Path, tree: &mut Tree, names: &mut BTreeMap<(u64, u64), PathBuf>) {
    let full = root.join(path);
    let status = fs::symlink_metadata(&full).unwrap();
    let kind = status.file_type();
    let mut content = Vec::new();
    let word = if kind.is_dir() {
        "directory"
    } else if kind.is_symlink() {
        content = fs::read_link(&full).unwrap().into_os_string().into_vec();
        "symlink"
    } else if kind.is_fifo() {
        "fifo"
    } else if kind.is_socket() {
        "socket"
    } else if kind.is_file() {
        content = fs::read(&full).unwrap();
        "file"
    } else {
        "device"
    };
    let identity = (status.dev(), status.ino());
    let is_shared = !kind.is_dir() && status.nlink() > 1;
    let first_name = match is_shared {
        true => names
            .entry(identity)
            .or_insert_with(|| path.to_owned())
            .clone(),
        false => path.to_owned(),
    };
    let state = State {
        kind: word.to_owned(),
        mode: status.mode() & 0o7777,
        modified: (status.mtime(), status.mtime_nsec()),
        content,
        attributes: attributes(&full, kind.is_dir() || kind.is_file()),
        first_name,
    };
    tree.insert(path.to_owned(), state);
    if kind.is_dir() {
        let mut names_here: Vec<_> = fs::read_dir(&full)
            .unwrap()
            .map(|one| one.unwrap().file_name())
            .collect();
        names_here.sort();
        for name in names_here {
            look(root, &path.join(name), tree, names);
        }
    }
}

fn attributes(path: &Path, may_have: bool) -> BTreeMap<OsString, Vec<u8>> {
    let mut found = BTreeMap::new();
    if !may_have {
        return found;
    }
    let file = File::open(path).unwrap();
    let mut names = vec![0u8; 4096];
    let length = rustix::fs::flistxattr(file.as_fd(), &mut names[..]).unwrap();
    for name in names[..length]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
    {
        // What an overlay wrote shows only on layers, never in a view; what a
        // command wrote under such a name never reaches the tree.
        if name.starts_with(b"user.overlay.") || !name.starts_with(b"user.") {
            continue;
        }
        let mut value = vec![0u8; 4096];
        let length = rustix::fs::fgetxattr(file.as_fd(), name, &mut value[..]).unwrap();
        value.truncate(length);
        found.insert(OsStr::from_bytes(name).to_owned(), value);
    }
    found
}

/// Fails with the paths that differ.
#[track_caller]
pub fn assert_same(what: &str, left: &Tree, right: &Tree) {
    let mut report = String::new();
    for path in left
        .keys()
        .chain(right.keys())
        .collect::<std::collections::BTreeSet<_>>()
    {
        let (one, other) = (left.get(path), right.get(path));
        if one != other {
            report.push_str(&format!("{path:?}:\n   {one:?}\n   {other:?}\n"));
        }
    }
    assert!(report.is_empty(), "{what}\n{report}");
}

/// Opens a directory for the library.
pub fn open(path: &Path) -> File {
    File::open(path).unwrap()
}
