//! A part of the host without some of its names.
//!
//! An overlay without an upper layer: on top a layer of our own that holds
//! nothing but whiteouts (a character device 0:0, which a user namespace may
//! make, mknod(2)) and the directories around them, below it the host's
//! directory. `userxattr` is not used: with it, attributes that an earlier run
//! left on files would steer the overlay.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use stockade_sys::rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, StatVfsMountFlags, Timespec, Timestamps, Uid, chmodat,
    chownat, fstat, fstatvfs, mkdirat, mknodat, openat, statat, utimensat,
};
use stockade_sys::rustix::io::Errno;
use stockade_sys::rustix::mount::MountAttrFlags;

use super::{Make, View, filesystem, is_invalid, open_beneath, open_host};
use crate::steps::named;
use crate::wire::{Cover, MaskPath};

impl View {
    /// Mounts a directory of the host read-only and without the names
    /// `absent`, each a path below `path`.
    ///
    /// Some places do not allow it: an overlay does not show what is mounted
    /// below, and the kernel refuses to uncover it; two overlays on top of each
    /// other are the most it stacks. There the names are covered instead.
    pub(super) fn bind_without(
        &mut self,
        source: &[u8],
        path: &[u8],
        absent: &[Vec<u8>],
    ) -> io::Result<String> {
        let host = open_host(source, OFlags::DIRECTORY).map_err(|error| named(error, source))?;
        let names = absent
            .iter()
            .map(|name| below(name, path))
            .collect::<io::Result<Vec<_>>>()?;
        let tree = match self.overlay(host.as_fd(), &names) {
            Ok(tree) => tree,
            Err(error) => {
                self.bind(source, path, false, true)?;
                let covered = self.masks(&covers(absent))?;
                return Ok(format!("read-only; {covered}, no overlay: {error}"));
            }
        };
        for (name, absolute) in names.iter().zip(absent) {
            match open_beneath(tree.as_fd(), name, OFlags::empty()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                _ => return Err(named(io::Error::other("the name is still there"), absolute)),
            }
        }
        if !fstatvfs(&tree)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(named(io::Error::other("the mount is not read-only"), path));
        }
        self.attach_at(&tree, path, Make::Parent)?;
        self.foreign.push(path.to_vec());
        Ok(format!("read-only, {} names absent", names.len()))
    }

    fn overlay(&mut self, host: BorrowedFd<'_>, names: &[&[u8]]) -> io::Result<OwnedFd> {
        let layer = self.whiteouts(host, names)?;
        // The old root is still the root, so its /proc leads to descriptors.
        let [top, bottom] = [layer.as_raw_fd(), host.as_raw_fd()];
        let layers = format!("/proc/self/fd/{top}:/proc/self/fd/{bottom}");
        let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV;
        match filesystem("overlay", &[("lowerdir", layers.clone())], attributes) {
            // Older kernels take layers only from mounts that are attached.
            Err(error) if !self.storage_attached && is_invalid(&error) => {
                self.attach_storage()?;
                filesystem("overlay", &[("lowerdir", layers)], attributes)
            }
            other => other,
        }
    }

    /// Makes the top layer. A name whose directory is gone since the probe
    /// needs no whiteout.
    fn whiteouts(&mut self, host: BorrowedFd<'_>, names: &[&[u8]]) -> io::Result<OwnedFd> {
        let stored = self.stored_name();
        mkdirat(self.storage()?, stored.as_str(), Mode::RWXU)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let layer = openat(self.storage()?, stored.as_str(), flags, Mode::empty())?;
        let mut directories = BTreeSet::from([&b"."[..]]);
        for name in names {
            let parent = name
                .iter()
                .rposition(|&byte| byte == b'/')
                .map_or(&b"."[..], |end| &name[..end]);
            match open_beneath(host, parent, OFlags::DIRECTORY) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => drop(found?),
            }
            let slashes = name.iter().enumerate().filter(|&(_, &byte)| byte == b'/');
            for directory in slashes.map(|(end, _)| &name[..end]) {
                if directories.insert(directory) {
                    mkdirat(&layer, directory, Mode::RWXU)?;
                }
            }
            mknodat(&layer, *name, FileType::CharacterDevice, Mode::empty(), 0)?;
        }
        // Now that making things changes no time any more.
        for directory in directories {
            resemble(host, layer.as_fd(), directory)?;
        }
        Ok(layer)
    }
}

/// Gives a directory of the layer the owner, mode and times of the host's,
/// because the upper one of merged directories is the one that shows.
fn resemble(host: BorrowedFd<'_>, layer: BorrowedFd<'_>, directory: &[u8]) -> io::Result<()> {
    let like = fstat(open_beneath(host, directory, OFlags::DIRECTORY)?)?;
    let own = statat(layer, directory, AtFlags::SYMLINK_NOFOLLOW)?;
    if (like.st_uid, like.st_gid) != (own.st_uid, own.st_gid) {
        let (owner, group) = (Uid::from_raw(like.st_uid), Gid::from_raw(like.st_gid));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        match chownat(layer, directory, Some(owner), Some(group), flags) {
            // The id has no name inside. That gives nothing away: an overlay
            // also asks what its maker, the caller, may do with the host's.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mode = Mode::from_raw_mode(like.st_mode & 0o7777);
    chmodat(layer, directory, mode, AtFlags::empty())?;
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: like.st_atime,
            tv_nsec: like.st_atime_nsec as _,
        },
        last_modification: Timespec {
            tv_sec: like.st_mtime,
            tv_nsec: like.st_mtime_nsec as _,
        },
    };
    Ok(utimensat(
        layer,
        directory,
        &times,
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

fn below<'a>(name: &'a [u8], path: &[u8]) -> io::Result<&'a [u8]> {
    name.strip_prefix(path)
        .and_then(|rest| rest.strip_prefix(b"/"))
        .filter(|rest| !rest.is_empty())
        .ok_or_else(|| named(io::ErrorKind::InvalidInput.into(), name))
}

fn covers(absent: &[Vec<u8>]) -> Vec<MaskPath> {
    let cover = |path: &Vec<u8>| MaskPath {
        path: path.clone(),
        directory: false,
        required: false,
        cover: Cover::Empty,
    };
    absent.iter().map(cover).collect()
}
