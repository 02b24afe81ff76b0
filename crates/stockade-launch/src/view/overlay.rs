//! The workspace as an overlay: below it the real directory and what earlier
//! runs left as frozen layers, on top a directory of the store that takes what
//! is written.
//!
//! `userxattr`, because nothing else can be had in a user namespace. With it
//! the kernel follows no redirect and no metadata-only copy, and it keeps its
//! own attributes from whoever is inside; what attributes an earlier run left
//! in the workspace itself can at most hide names there.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use stockade_sys::mount::{self, Attributes, Reach};
use stockade_sys::rustix::fs::{
    AtFlags, Mode, OFlags, StatVfsMountFlags, Timespec, Timestamps, fstat, fstatfs, fstatvfs,
    openat, statat, unlinkat, utimensat,
};
use stockade_sys::rustix::io::Errno;
use stockade_sys::rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};

use super::{Make, View, clone_tree, is_below, open_beneath, open_host};
use crate::steps::named;

/// File system type of an overlay (linux/magic.h).
const OVERLAYFS_SUPER_MAGIC: i64 = 0x794c_7630;
/// Written through the overlay to see where it arrives, and removed.
const MARKER: &str = ".stockade-marker";
/// Longest string that fsconfig(2) takes, without its end.
const OPTION_BYTES_MAX: usize = 255;

/// Where the layers of an overlay are on the host.
pub(super) struct Layers<'a> {
    /// From the topmost down; the last is the directory itself.
    pub(super) lower: &'a [Vec<u8>],
    pub(super) upper: &'a [u8],
    pub(super) work: &'a [u8],
}

impl View {
    /// Mounts the overlay and shows that what is written arrives in the upper
    /// layer and nowhere else.
    pub(super) fn mount_overlay(
        &mut self,
        path: &[u8],
        layers: &Layers<'_>,
        writable: bool,
    ) -> io::Result<String> {
        let open =
            |path: &[u8]| open_host(path, OFlags::DIRECTORY).map_err(|error| named(error, path));
        let lower = layers
            .lower
            .iter()
            .map(|path| open(path))
            .collect::<io::Result<Vec<_>>>()?;
        let (upper, work) = (open(layers.upper)?, open(layers.work)?);
        let base = lower
            .last()
            .ok_or_else(|| io::Error::other("no lower layer"))?;
        let tree = mount_layers(&lower, upper.as_fd(), work.as_fd())
            .map_err(|error| named(error, path))?;
        try_out(tree.as_fd(), upper.as_fd(), base.as_fd()).map_err(|error| named(error, path))?;
        let mut attributes = Attributes::NO_SETUID.and(Attributes::NO_DEVICES);
        if !writable {
            attributes = attributes.and(Attributes::READ_ONLY);
        }
        mount::set_attributes(tree.as_fd(), attributes, Reach::One)?;
        check_writable(tree.as_fd(), path, writable)?;
        self.attach_at(&tree, path, Make::Parent)?;
        self.foreign.push(path.to_vec());
        self.overlay = Some((path.to_vec(), tree));
        Ok(format!(
            "{} lower layers; a file that was made in it was in the upper layer and not below",
            lower.len()
        ))
    }

    /// Mounts a part of the overlay at its own place, with rights of its own.
    pub(super) fn overlay_part(&mut self, path: &[u8], writable: bool) -> io::Result<String> {
        let (root, tree) = self
            .overlay
            .as_ref()
            .ok_or_else(|| io::Error::other("no overlay yet"))?;
        let inside = path
            .strip_prefix(root.as_slice())
            .and_then(|rest| rest.strip_prefix(b"/"))
            .filter(|rest| !rest.is_empty())
            .ok_or_else(|| named(io::ErrorKind::InvalidInput.into(), path))?;
        let part = open_beneath(tree.as_fd(), inside, OFlags::empty())
            .map_err(|error| named(error, path))?;
        let part = clone_tree(part.as_fd(), "", OpenTreeFlags::AT_EMPTY_PATH)
            .map_err(|error| named(error, path))?;
        // The overlay itself may be read-only, and then so is a clone of it.
        let mut attributes = Attributes::NO_SETUID.and(Attributes::NO_DEVICES);
        match writable {
            true => mount::clear_attributes(part.as_fd(), Attributes::READ_ONLY, Reach::One)?,
            false => attributes = attributes.and(Attributes::READ_ONLY),
        }
        mount::set_attributes(part.as_fd(), attributes, Reach::One)?;
        check_writable(part.as_fd(), path, writable)?;
        self.attach_at(&part, path, Make::File)?;
        self.foreign.push(path.to_vec());
        Ok(match writable {
            true => "part of the overlay, writable".into(),
            false => "part of the overlay, read-only".into(),
        })
    }

    pub(super) fn is_layered(&self, path: &[u8]) -> bool {
        self.overlay
            .as_ref()
            .is_some_and(|(root, _)| is_below(path, std::slice::from_ref(root)))
    }
}

/// The overlay, not attached anywhere.
fn mount_layers(
    lower: &[OwnedFd],
    upper: BorrowedFd<'_>,
    work: BorrowedFd<'_>,
) -> io::Result<OwnedFd> {
    // The old root is still the root, so its /proc leads to descriptors.
    let place = |fd: BorrowedFd<'_>| format!("/proc/self/fd/{}", fd.as_raw_fd());
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let context = context.as_fd();
    let mut one_by_one = true;
    for layer in lower {
        // Since Linux 6.8; before, all layers are one string.
        match fsconfig_set_string(context, "lowerdir+", place(layer.as_fd())) {
            Ok(()) => {}
            Err(Errno::INVAL) if std::ptr::eq(layer, &lower[0]) => {
                one_by_one = false;
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    if !one_by_one {
        let places: Vec<String> = lower.iter().map(|layer| place(layer.as_fd())).collect();
        let places = places.join(":");
        if places.len() > OPTION_BYTES_MAX {
            return Err(io::Error::other(
                "this kernel takes no more than some ten layers (Linux 6.8 takes 500)",
            ));
        }
        fsconfig_set_string(context, "lowerdir", places)?;
    }
    fsconfig_set_string(context, "upperdir", place(upper))?;
    fsconfig_set_string(context, "workdir", place(work))?;
    fsconfig_set_flag(context, "userxattr")?;
    // What else a kernel may switch on by its configuration needs attributes
    // that a user namespace has not.
    fsconfig_set_string(context, "index", "off")?;
    // Nothing in it waits for the disk: else the end of each run would wait for
    // all that the whole machine has to write. Who needs the layer on the disk
    // brings it there. Since Linux 5.10, and only a matter of speed.
    let _older = fsconfig_set_flag(context, "volatile").is_err();
    fsconfig_create(context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Makes a file in the overlay, looks where it arrived, and removes it.
fn try_out(tree: BorrowedFd<'_>, upper: BorrowedFd<'_>, base: BorrowedFd<'_>) -> io::Result<()> {
    if fstatfs(tree)?.f_type as i64 != OVERLAYFS_SUPER_MAGIC {
        return Err(io::Error::other("the mount is no overlay"));
    }
    let before = fstat(upper)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    openat(tree, MARKER, flags, Mode::RUSR)?;
    let is_in = |layer: BorrowedFd<'_>| match statat(layer, MARKER, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(io::Error::from(error)),
    };
    let seen = (is_in(upper)?, is_in(base)?);
    unlinkat(tree, MARKER, AtFlags::empty())?;
    if seen != (true, false) || is_in(upper)? {
        return Err(io::Error::other(
            "what is written in the overlay does not stay in the upper layer",
        ));
    }
    // The directory is to look as before.
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: before.st_atime,
            tv_nsec: before.st_atime_nsec as _,
        },
        last_modification: Timespec {
            tv_sec: before.st_mtime,
            tv_nsec: before.st_mtime_nsec as _,
        },
    };
    Ok(utimensat(tree, ".", &times, AtFlags::empty())?)
}

fn check_writable(mount: BorrowedFd<'_>, path: &[u8], writable: bool) -> io::Result<()> {
    let read_only = fstatvfs(mount)?.f_flag.contains(StatVfsMountFlags::RDONLY);
    match read_only == writable {
        true => Err(named(
            io::Error::other("the mount has not the rights of the plan"),
            path,
        )),
        false => Ok(()),
    }
}
