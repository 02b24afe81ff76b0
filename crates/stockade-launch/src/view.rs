//! The steps that build the view: a fresh tmpfs as root, and on it only what
//! the plan names, put there with the new mount API.
//!
//! Every path is resolved by openat2(2) without following a link, so nothing
//! that an earlier run left in the workspace can steer where a mount lands.
//! A missing mount point is made only on the launcher's own tmpfs; on a
//! directory of the host it is an error, never a placeholder.

mod absent;
mod masks;
mod overlay;
mod runtime;
mod trust_store;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use stockade_sys::mount::{self, Attributes, Reach};
use stockade_sys::rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags, fchmod, fstat, fstatvfs,
    mkdirat, mknodat, openat, openat2, symlinkat, unlinkat,
};
use stockade_sys::rustix::io::Errno;
use stockade_sys::rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, unmount,
};
use stockade_sys::rustix::process::{fchdir, geteuid, pivot_root};
use stockade_sys::terminal;

use crate::steps::{go_to_root, named};
use crate::wire::Action;
use masks::Sources;

/// Holds the private storage while the view is built; gone before the gate.
const WORK: &str = ".stockade";
/// A directory of the host, in the launcher's own mount namespace, that every
/// view needs until it is entered. The storage is put there to go away.
const DISCARDED: &str = "/dev";
/// How many files `Copy` copies at most.
const COPY_FILES_MAX: usize = 256;

/// The view under construction.
#[derive(Default)]
pub(crate) struct View {
    /// The new root's tmpfs.
    root: Option<OwnedFd>,
    /// The tmpfs behind all private directories.
    storage: Option<OwnedFd>,
    /// The storage is mounted at [`WORK`] for the time being.
    storage_attached: bool,
    /// Read-only mounts of what covers are made of.
    mask_sources: Option<Sources>,
    /// The host's root: kept until Landlock has shown that it refuses it.
    old_root: Option<OwnedFd>,
    stored: u32,
    /// The workspace as an overlay, and where it is.
    overlay: Option<(Vec<u8>, OwnedFd)>,
    /// Where something that is not the launcher's own begins (a part of the
    /// host, /proc), or a link: below, nothing is made.
    foreign: Vec<Vec<u8>>,
    /// Where a private directory begins: what lies below is not on the root.
    private: Vec<Vec<u8>>,
    /// Certificate (PEM) of the sandbox's own authority.
    pub(crate) authority: Option<Vec<u8>>,
    /// The certificate roots of the first trust store.
    roots: Option<Vec<u8>>,
    pub(crate) terminal_master: Option<OwnedFd>,
    pub(crate) terminal: Option<OwnedFd>,
}

impl View {
    /// Performs one view step; `with_terminal` opens a private terminal as
    /// soon as there are terminals.
    pub(crate) fn apply(&mut self, action: &Action, with_terminal: bool) -> io::Result<String> {
        match action {
            Action::NewRoot => self.new_root(),
            Action::PrivateStorage { bytes, inodes } => self.private_storage(*bytes, *inodes),
            Action::Symlink { path, target } => self.symlink(path, target),
            Action::File {
                path,
                content,
                mode,
                writable,
            } => self.file(path, content, *mode, *writable),
            Action::PrivateDirectory { path, mode } => self.private_directory(path, *mode),
            Action::GuestBundle { path, config } => self.guest_bundle(path, config),
            Action::RuntimeRoot {
                program,
                config,
                path,
            } => self.runtime_root(program, config, path),
            Action::MachineRoot { devices, path } => self.machine_root(devices, path),
            Action::Bind {
                source,
                path,
                writable,
                directory,
            } => self.bind(source, path, *writable, *directory),
            Action::BindWithout {
                source,
                path,
                absent,
            } => self.bind_without(source, path, absent),
            Action::Overlay {
                path,
                lower,
                upper,
                work,
                writable,
            } => {
                let layers = overlay::Layers { lower, upper, work };
                self.mount_overlay(path, &layers, *writable)
            }
            Action::OverlayPart { path, writable } => self.overlay_part(path, *writable),
            Action::Copy {
                source,
                path,
                bytes_max,
            } => self.copy(source, path, *bytes_max),
            Action::TrustStore {
                source,
                path,
                format,
            } => self.trust_store(source.as_deref(), path, *format),
            Action::Device { name } => self.device(name),
            Action::Terminals => self.terminals(with_terminal),
            Action::Proc {
                writable,
                nested_namespaces,
            } => self.proc(*writable, *nested_namespaces),
            Action::Masks { paths } => self.masks(paths),
            Action::EnterRoot => self.enter_root(),
            _ => Err(io::Error::from(io::ErrorKind::InvalidInput)),
        }
    }

    /// The host's root, if the view was entered; the caller closes it.
    pub(crate) fn take_old_root(&mut self) -> Option<OwnedFd> {
        self.old_root
            .take()
            .or_else(|| open_host(b"/", OFlags::DIRECTORY).ok())
    }

    fn root(&self) -> io::Result<BorrowedFd<'_>> {
        self.root
            .as_ref()
            .map(AsFd::as_fd)
            .ok_or_else(|| io::Error::other("no new root yet"))
    }

    fn storage(&self) -> io::Result<BorrowedFd<'_>> {
        self.storage
            .as_ref()
            .map(AsFd::as_fd)
            .ok_or_else(|| io::Error::other("no storage yet"))
    }

    fn new_root(&mut self) -> io::Result<String> {
        self.old_root = Some(open_host(b"/", OFlags::DIRECTORY)?);
        mount::make_all_private()?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        // The root holds only mount points and a few links.
        let options = [
            ("size", "16m".to_string()),
            ("nr_inodes", "65536".into()),
            ("mode", "0755".into()),
        ];
        let root = filesystem("tmpfs", &options, attributes)?;
        // On top of "/": the process keeps the old root as its root, so host
        // paths still resolve, and pivot_root(2) finds a mounted new root.
        attach(root.as_fd(), CWD, "/")?;
        self.root = Some(root);
        Ok("tmpfs on a private mount tree".into())
    }

    fn private_storage(&mut self, bytes: u64, inodes: u64) -> io::Result<String> {
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let options = [
            ("size", bytes.to_string()),
            ("nr_inodes", inodes.to_string()),
            ("mode", "0700".into()),
        ];
        let storage = filesystem("tmpfs", &options, attributes)?;
        let limits = fstatvfs(&storage)?;
        self.storage = Some(storage);
        Ok(format!(
            "{} bytes, {} inodes",
            limits.f_blocks * limits.f_frsize,
            limits.f_files
        ))
    }

    fn symlink(&mut self, path: &[u8], target: &[u8]) -> io::Result<String> {
        self.make(path, Make::Symlink { target })?;
        self.foreign.push(path.to_vec());
        Ok("link".into())
    }

    fn file(
        &mut self,
        path: &[u8],
        content: &[u8],
        mode: u32,
        writable: bool,
    ) -> io::Result<String> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let make = |directory: BorrowedFd<'_>, name: &[u8]| -> io::Result<()> {
            let file = openat(directory, name, flags, Mode::from_raw_mode(0o600))?;
            write_all(file.as_fd(), content)?;
            Ok(fchmod(&file, Mode::from_raw_mode(mode))?)
        };
        let on_root = self.is_own(path) && !is_below(path, &self.private);
        if writable || on_root {
            // No mount: a mount point could not be replaced (rename(2),
            // EBUSY), and the root becomes read-only as a whole.
            let (parent, name) = split(path);
            self.make(parent, Make::Parent)?;
            let parent = open_beneath(self.root()?, relative(parent), OFlags::DIRECTORY)
                .map_err(|error| named(error, path))?;
            make(parent.as_fd(), name).map_err(|error| named(error, path))?;
            return Ok(format!("{} bytes of our own", content.len()));
        }
        let name = self.stored_name();
        make(self.storage()?, name.as_bytes())?;
        let tree = self.clone_stored(&name)?;
        mount::set_attributes(tree.as_fd(), Attributes::READ_ONLY, Reach::One)?;
        self.attach_at(&tree, path, Make::File)?;
        Ok(format!("{} bytes of our own", content.len()))
    }

    fn private_directory(&mut self, path: &[u8], mode: u32) -> io::Result<String> {
        let name = self.stored_name();
        // The launcher's umask is 0, so the mode is as given.
        mkdirat(self.storage()?, name.as_str(), Mode::from_raw_mode(mode))?;
        let tree = self.clone_stored(&name)?;
        self.attach_at(&tree, path, Make::Parent)?;
        self.private.push(path.to_vec());
        Ok("private".into())
    }

    /// A directory with the bundle (config.json of the OCI runtime
    /// specification), and a place for the state of what runs it.
    fn guest_bundle(&mut self, path: &[u8], config: &[u8]) -> io::Result<String> {
        self.private_directory(path, 0o700)?;
        self.file(&[path, b"/config.json"].concat(), config, 0o400, true)?;
        self.private_directory(&[path, b"/state"].concat(), 0o700)?;
        Ok(format!("a bundle, configured by {} bytes", config.len()))
    }

    fn bind(
        &mut self,
        source: &[u8],
        path: &[u8],
        writable: bool,
        directory: bool,
    ) -> io::Result<String> {
        let kind = if directory {
            OFlags::DIRECTORY
        } else {
            OFlags::empty()
        };
        let host = open_host(source, kind).map_err(|error| named(error, source))?;
        let tree = clone_tree(
            host.as_fd(),
            "",
            OpenTreeFlags::AT_EMPTY_PATH | OpenTreeFlags::AT_RECURSIVE,
        )
        .map_err(|error| named(error, source))?;
        let mut attributes = Attributes::NO_SETUID.and(Attributes::NO_DEVICES);
        if !writable {
            attributes = attributes.and(Attributes::READ_ONLY);
        }
        mount::set_attributes(tree.as_fd(), attributes, Reach::Recursive)?;
        let kind = if directory { Make::Parent } else { Make::File };
        self.attach_at(&tree, path, kind)?;
        self.foreign.push(path.to_vec());
        let read_only = fstatvfs(&tree)?.f_flag.contains(StatVfsMountFlags::RDONLY);
        if !writable && !read_only {
            return Err(named(io::Error::other("the mount is not read-only"), path));
        }
        Ok(if read_only {
            "read-only".into()
        } else {
            "writable".into()
        })
    }

    /// Copies the regular files below `source` that the caller can read.
    fn copy(&mut self, source: &[u8], path: &[u8], bytes_max: u64) -> io::Result<String> {
        let host = open_host(source, OFlags::DIRECTORY).map_err(|error| named(error, source))?;
        let name = self.stored_name();
        mkdirat(self.storage()?, name.as_str(), Mode::from_raw_mode(0o755))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own = openat(self.storage()?, name.as_str(), flags, Mode::empty())?;
        let mut budget = CopyBudget {
            bytes: bytes_max,
            files: COPY_FILES_MAX,
            large: Vec::new(),
        };
        copy_directory(host.as_fd(), own.as_fd(), path, &mut budget, 4)?;
        fchmod(&own, Mode::from_raw_mode(0o755))?;
        let tree = self.clone_stored(&name)?;
        mount::set_attributes(tree.as_fd(), Attributes::READ_ONLY, Reach::One)?;
        self.attach_at(&tree, path, Make::Parent)?;
        self.foreign.push(path.to_vec());
        for large in &budget.large {
            self.bind(large, large, false, false)?;
        }
        let (copied, mounted) = (COPY_FILES_MAX - budget.files, budget.large.len());
        Ok(format!(
            "{copied} files copied, {mounted} large ones mounted"
        ))
    }

    fn device(&self, name: &str) -> io::Result<String> {
        let (path, tree) = host_device(name)?;
        self.attach_at(&tree, path.as_bytes(), Make::File)?;
        Ok("the host's device, node read-only".into())
    }

    fn terminals(&mut self, with_terminal: bool) -> io::Result<String> {
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let options = [
            ("ptmxmode", "0666".to_string()),
            ("mode", "0620".into()),
            ("max", "1024".into()),
        ];
        let devpts = filesystem("devpts", &options, attributes)?;
        if with_terminal {
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
            let master = openat(&devpts, "ptmx", flags, Mode::empty())?;
            stockade_sys::rustix::pty::unlockpt(&master)?;
            self.terminal = Some(terminal::open_peer(master.as_fd())?);
            self.terminal_master = Some(master);
        }
        self.attach_at(&devpts, b"/dev/pts", Make::Parent)?;
        self.foreign.push(b"/dev/pts".to_vec());
        Ok("a devpts instance of our own".into())
    }

    fn proc(&mut self, writable: bool, nested_namespaces: bool) -> io::Result<String> {
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let proc = filesystem("proc", &[], attributes)?;
        if !nested_namespaces {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let limit = openat(&proc, "sys/user/max_user_namespaces", flags, Mode::empty())?;
            write_all(limit.as_fd(), b"0")?;
        }
        if !writable {
            mount::set_attributes(proc.as_fd(), Attributes::READ_ONLY, Reach::One)?;
        }
        self.attach_at(&proc, b"/proc", Make::Parent)?;
        self.foreign.push(b"/proc".to_vec());
        // For anybody else owner permissions do, and a covered /proc would
        // forbid a nested sandbox its own (mount_namespaces(7)).
        if writable && geteuid().is_root() {
            self.protect_proc(proc.as_fd())?;
        }
        Ok("a procfs of this pid namespace".into())
    }

    /// In a writable /proc, what belongs to the kernel stays read-only: for a
    /// caller whose user id is 0, owner permissions would let it through.
    fn protect_proc(&self, proc: BorrowedFd<'_>) -> io::Result<()> {
        for name in ["sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi"] {
            let part = match openat(proc, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
                Ok(part) => part,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            };
            let tree = clone_tree(part.as_fd(), "", OpenTreeFlags::AT_EMPTY_PATH)?;
            mount::set_attributes(tree.as_fd(), Attributes::READ_ONLY, Reach::One)?;
            attach_to(tree.as_fd(), part.as_fd())?;
        }
        Ok(())
    }

    fn enter_root(&mut self) -> io::Result<String> {
        let root = self
            .root
            .take()
            .ok_or_else(|| io::Error::other("no new root yet"))?;
        fchdir(&root)?;
        self.discard_storage(root.as_fd())?;
        mount::set_attributes(root.as_fd(), Attributes::READ_ONLY, Reach::One)?;
        // pivot_root(2): with "." twice the old root ends up on top of the new
        // one and is then taken off.
        pivot_root(".", ".")?;
        unmount(".", UnmountFlags::DETACH)?;
        go_to_root()?;
        let new = fstat(&root)?;
        let is_new = |path| {
            stockade_sys::rustix::fs::stat(path)
                .map(|now| (new.st_dev, new.st_ino) == (now.st_dev, now.st_ino))
        };
        let read_only = fstatvfs(&root)?.f_flag.contains(StatVfsMountFlags::RDONLY);
        // "/.." leads to what is mounted on top of the root, were there something.
        if !is_new("/")? || !is_new("/..")? || !read_only {
            return Err(io::Error::other("the new root is not in place"));
        }
        Ok("the old root is gone, the new one is read-only".into())
    }

    /// Moves the storage as a whole, which nothing inside may reach, to the old
    /// root, with which it is unmounted: the kernel waits for all processors
    /// once for each tree that is unmounted or closed by itself.
    fn discard_storage(&mut self, root: BorrowedFd<'_>) -> io::Result<()> {
        let Some(storage) = self.storage.take() else {
            return Ok(());
        };
        self.mask_sources = None;
        let moved = attach(storage.as_fd(), CWD, DISCARDED).is_ok();
        if self.storage_attached {
            if !moved {
                unmount(WORK, UnmountFlags::DETACH)?;
            }
            unlinkat(root, WORK, AtFlags::REMOVEDIR)?;
        }
        Ok(())
    }

    /// A mount of one part of the private storage. Kernels before 6.15 clone
    /// only from a mounted tree; then the storage is mounted while the view is
    /// built, which costs an unmount.
    fn clone_stored(&mut self, name: &str) -> io::Result<OwnedFd> {
        match clone_tree(self.storage()?, name, OpenTreeFlags::empty()) {
            Err(error) if !self.storage_attached && is_invalid(&error) => {}
            other => return other,
        }
        self.attach_storage()?;
        clone_tree(self.storage()?, name, OpenTreeFlags::empty())
    }

    fn attach_storage(&mut self) -> io::Result<()> {
        mkdirat(self.root()?, WORK, Mode::from_raw_mode(0o700))?;
        attach(self.storage()?, self.root()?, WORK)?;
        self.storage_attached = true;
        Ok(())
    }

    /// Opens a directory of the view for something that goes with the sandbox,
    /// so never one of the host. It is made where it is missing and everything
    /// above it is the launcher's own. Links are not followed.
    pub(crate) fn make_place(&self, path: &[u8]) -> io::Result<OwnedFd> {
        if self.is_own(path) && relative(path) != b"." {
            self.make(path, Make::Parent)?;
        }
        let nearest = |places| nearest(path, places).unwrap_or(0);
        if nearest(&self.foreign) > nearest(&self.private) {
            return Err(named(io::Error::other("this place is the host's"), path));
        }
        self.open_inside(path, OFlags::DIRECTORY)
            .map_err(|error| named(error, path))
    }

    fn stored_name(&mut self) -> String {
        self.stored += 1;
        format!("{}", self.stored)
    }

    /// Opens a path of the new view, links not followed.
    fn open_inside(&self, path: &[u8], kind: OFlags) -> io::Result<OwnedFd> {
        open_beneath(self.root()?, relative(path), kind)
    }

    /// Mounts `tree` at `path`. A missing mount point is made where everything
    /// above it is the launcher's own; elsewhere it must exist already, and is
    /// found without following a link.
    fn attach_at(&self, tree: &OwnedFd, path: &[u8], kind: Make<'_>) -> io::Result<()> {
        let root = self.root()?;
        if self.is_own(path) {
            self.make(path, kind)?;
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            return move_mount(tree, "", root, relative(path), flags)
                .map_err(|error| named(error.into(), path));
        }
        let target =
            self.open_inside(path, OFlags::empty())
                .map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound => named(
                        io::Error::other("a mount point is missing on the host"),
                        path,
                    ),
                    _ => named(error, path),
                })?;
        attach_to(tree.as_fd(), target.as_fd()).map_err(|error| named(error, path))
    }

    /// Whether nothing of the host and no link lies at or above `path`, so that
    /// the path leads only through what the launcher has made itself.
    fn is_own(&self, path: &[u8]) -> bool {
        !is_below(path, &self.foreign)
    }

    /// Makes something of the launcher's own, and the directories above it.
    fn make(&self, path: &[u8], what: Make<'_>) -> io::Result<()> {
        if !self.is_own(path) {
            return Err(named(io::Error::other("this place is the host's"), path));
        }
        let (root, place) = (self.root()?, relative(path));
        let made = match what {
            Make::Parent => mkdirat(root, place, Mode::from_raw_mode(0o755)),
            Make::File => mknodat(
                root,
                place,
                FileType::RegularFile,
                Mode::from_raw_mode(0o444),
                0,
            ),
            Make::Symlink { target } => symlinkat(target, root, place),
        };
        match (made, what) {
            (Ok(()), _) => Ok(()),
            // A mount point may be there already; a link may not.
            (Err(Errno::EXIST), Make::Parent | Make::File) => Ok(()),
            (Err(Errno::NOENT), _) if place != b"." => {
                self.make(split(path).0, Make::Parent)?;
                self.make(path, what)
            }
            (Err(error), _) => Err(named(error.into(), path)),
        }
    }
}

/// What stands at a path that the launcher makes.
#[derive(Clone, Copy)]
enum Make<'a> {
    /// A directory that only holds other things, or is a mount point.
    Parent,
    /// An empty file, as a mount point.
    File,
    Symlink {
        target: &'a [u8],
    },
}

/// Whether `path` is one of `places` or lies below one.
fn is_below(path: &[u8], places: &[Vec<u8>]) -> bool {
    places.iter().any(|place| {
        path.strip_prefix(place.as_slice())
            .is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
    })
}

/// Length of the longest of `places` that is `path` or above it.
fn nearest(path: &[u8], places: &[Vec<u8>]) -> Option<usize> {
    let above = places
        .iter()
        .filter(|place| is_below(path, std::slice::from_ref(place)));
    above.map(Vec::len).max()
}

/// The directory of an absolute path and its last component.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let cut = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    (&path[..cut], &path[(cut + 1).min(path.len())..])
}

/// A device of the host, with its path, to be mounted.
fn host_device(name: &str) -> io::Result<(String, OwnedFd)> {
    let path = format!("/dev/{name}");
    let host = open_host(path.as_bytes(), OFlags::empty())
        .map_err(|error| named(error, path.as_bytes()))?;
    if FileType::from_raw_mode(fstat(&host)?.st_mode) != FileType::CharacterDevice {
        return Err(named(
            io::Error::other("not a character device"),
            path.as_bytes(),
        ));
    }
    let tree = clone_tree(host.as_fd(), "", OpenTreeFlags::AT_EMPTY_PATH)?;
    let attributes = Attributes::NO_SETUID
        .and(Attributes::NO_EXECUTE)
        .and(Attributes::READ_ONLY);
    mount::set_attributes(tree.as_fd(), attributes, Reach::One)?;
    Ok((path, tree))
}

/// Opens a path of the host as it was when the launcher started.
fn open_host(path: &[u8], kind: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(
        CWD,
        path,
        OFlags::PATH | OFlags::CLOEXEC | kind,
        Mode::empty(),
        resolve,
    )?)
}

fn open_beneath(root: BorrowedFd<'_>, path: &[u8], kind: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(
        root,
        path,
        OFlags::PATH | OFlags::CLOEXEC | kind,
        Mode::empty(),
        resolve,
    )?)
}

fn relative(path: &[u8]) -> &[u8] {
    match path.strip_prefix(b"/") {
        Some(b"") | None => b".",
        Some(rest) => rest,
    }
}

/// A link or a file stands where a directory was expected.
fn leads_nowhere(error: &io::Error) -> bool {
    [Errno::LOOP, Errno::NOTDIR]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

/// A descriptor with rights from one that only names a place of ours.
fn reopen(place: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(openat(place, ".", flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// A new, detached file system.
fn filesystem(
    kind: &str,
    options: &[(&str, String)],
    attributes: MountAttrFlags,
) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(context.as_fd(), *key, value.as_str())?;
    }
    fsconfig_create(context.as_fd())?;
    Ok(fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes,
    )?)
}

fn clone_tree(place: BorrowedFd<'_>, path: &str, flags: OpenTreeFlags) -> io::Result<OwnedFd> {
    let flags = flags
        | OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    Ok(open_tree(place, path, flags)?)
}

fn attach(tree: BorrowedFd<'_>, place: BorrowedFd<'_>, path: &str) -> io::Result<()> {
    Ok(move_mount(
        tree,
        "",
        place,
        path,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )?)
}

fn attach_to(tree: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(tree, "", target, "", flags)?)
}

fn write_all(file: BorrowedFd<'_>, mut content: &[u8]) -> io::Result<()> {
    while !content.is_empty() {
        let written = stockade_sys::rustix::io::write(file, content)?;
        content = &content[written..];
    }
    Ok(())
}

/// Largest file that is copied; a larger one is no configuration.
const COPY_FILE_BYTES_MAX: u64 = 64 << 10;

/// What `Copy` may still copy, and what it leaves to be mounted.
struct CopyBudget {
    bytes: u64,
    files: usize,
    /// Paths of the host, and of the view.
    large: Vec<Vec<u8>>,
}

/// Copies readable regular files and directories, `depth` levels deep; links
/// are copied as links. What cannot be read outside is left out, as it would
/// be unreadable inside too.
fn copy_directory(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    path: &[u8],
    budget: &mut CopyBudget,
    depth: u32,
) -> io::Result<()> {
    use stockade_sys::rustix::fs::{Dir, readlinkat};
    for entry in Dir::new(reopen(from, OFlags::RDONLY | OFlags::DIRECTORY)?)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let place = [path, b"/", name.to_bytes()].concat();
        match entry.file_type() {
            FileType::Symlink => {
                symlinkat(readlinkat(from, name, Vec::new())?, to, name)?;
            }
            FileType::Directory if depth > 0 => {
                let Ok(source) = openat(from, name, flags, Mode::empty()) else {
                    continue;
                };
                mkdirat(to, name, Mode::from_raw_mode(0o755))?;
                let own = openat(to, name, flags | OFlags::DIRECTORY, Mode::empty())?;
                copy_directory(source.as_fd(), own.as_fd(), &place, budget, depth - 1)?;
            }
            FileType::RegularFile => {
                let Ok(source) = openat(from, name, flags, Mode::empty()) else {
                    continue;
                };
                copy_file(source.as_fd(), to, name, place, budget)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn copy_file(
    source: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    name: &std::ffi::CStr,
    place: Vec<u8>,
    budget: &mut CopyBudget,
) -> io::Result<()> {
    let facts = fstat(source)?;
    let size = facts.st_size as u64;
    if budget.files == 0 || size > budget.bytes.min(COPY_FILE_BYTES_MAX) {
        mknodat(
            to,
            name,
            FileType::RegularFile,
            Mode::from_raw_mode(0o444),
            0,
        )?;
        budget.large.push(place);
        return Ok(());
    }
    budget.files -= 1;
    budget.bytes -= size;
    let mut content = vec![0u8; size as usize];
    let read = stockade_sys::rustix::io::read(source, &mut content[..])?;
    content.truncate(read);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let own = openat(to, name, flags, Mode::from_raw_mode(0o600))?;
    write_all(own.as_fd(), &content)?;
    // Never more than the owner's write permission: OpenSSH refuses files
    // that others may write.
    fchmod(&own, Mode::from_raw_mode(facts.st_mode & 0o755))?;
    Ok(())
}
