//! The image that a run stands on: chosen by the policy, kept in its place
//! while it is used, and looked at as if its root were the root.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, readlinkat};
use rustix::io::Errno;
use stockade_image::{ImageError, InUse, Store};
use stockade_policy::compile::HostPlaces;
use stockade_policy::facts::{ImageFacts, PathFact, PathKind};
use stockade_policy::path::AbsolutePath;
use stockade_sys::rustix;

use crate::load::Loaded;

/// The image that a policy names, if it names one. It stays as long as the
/// second value lives.
pub(crate) fn chosen(loaded: &Loaded) -> Result<Option<(ImageFacts, InUse)>, ImageError> {
    let Some((name, _)) = &loaded.policy.image else {
        return Ok(None);
    };
    let used = Store::open(loaded.state.as_fd())?.use_image(name)?;
    let failed = |source| ImageError::System {
        doing: "look into the image",
        source,
    };
    let root = AbsolutePath::parse(used.root.as_os_str().as_bytes())
        .map_err(|error| failed(io::Error::other(error)))?;
    let host = HostPlaces::of(&loaded.policy, &loaded.home);
    let parts = parts(&root, &host).map_err(failed)?;
    let variables = used.image.config.env.iter().flatten();
    let environment = variables
        .filter_map(|text| text.split_once('='))
        .filter(|(name, value)| !name.is_empty() && !name.contains('\0') && !value.contains('\0'))
        .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect();
    let facts = ImageFacts {
        id: used.image.id.clone(),
        root,
        parts,
        environment,
    };
    Ok(Some((facts, used)))
}

/// The largest parts of an image that hold no place of the host's.
fn parts(root: &AbsolutePath, host: &HostPlaces) -> io::Result<Vec<AbsolutePath>> {
    let mut parts = Vec::new();
    let mut waiting = vec![AbsolutePath::root()];
    while let Some(inside) = waiting.pop() {
        let relative = inside
            .relative_to(&AbsolutePath::root())
            .unwrap_or_default();
        let place = root.join(relative).map_err(io::Error::other)?;
        // Every directory on the way was seen to be no link.
        for entry in std::fs::read_dir(place.as_path())? {
            let entry = entry?;
            let Ok(path) = inside.join(entry.file_name().into_vec()) else {
                continue;
            };
            if host.leave_to_image(&path) {
                parts.push(path);
            } else if !host.hold(&path) && entry.file_type()?.is_dir() {
                waiting.push(path);
            }
        }
    }
    parts.sort();
    Ok(parts)
}

/// The root file system of an image, to be looked at.
pub(crate) struct Root {
    root: OwnedFd,
    path: AbsolutePath,
}

impl Root {
    pub(crate) fn open(image: &ImageFacts) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            root: openat(CWD, image.root.as_bytes(), flags, Mode::empty())?,
            path: image.root.clone(),
        })
    }

    /// What is at a path of the image; `None` when nothing is.
    pub(crate) fn fact(&self, path: &AbsolutePath) -> io::Result<Option<PathFact>> {
        let Some(place) = self.open_at(path, OFlags::NOFOLLOW)? else {
            return Ok(None);
        };
        let status = fstat(&place)?;
        let kind = match FileType::from_raw_mode(status.st_mode) {
            FileType::Symlink => PathKind::Symlink {
                target: readlinkat(&place, "", Vec::new())?.into_bytes(),
            },
            other => kind_of(other),
        };
        let landed = self.open_at(path, OFlags::empty())?;
        let landed = landed.map(|landed| {
            let kind = kind_of(FileType::from_raw_mode(fstat(&landed)?.st_mode));
            Ok::<_, io::Error>((self.inside(&landed)?, kind))
        });
        let (resolved, resolved_kind) = match landed.transpose()? {
            Some((Some(resolved), kind)) => (Some(resolved), Some(kind)),
            _ => (None, None),
        };
        Ok(Some(PathFact {
            kind,
            resolved,
            resolved_kind,
            uid: status.st_uid,
            gid: status.st_gid,
            mode: status.st_mode & 0o7777,
        }))
    }

    /// A file of the image, links resolved; `None` when it is none.
    pub(crate) fn file(&self, path: &AbsolutePath) -> io::Result<Option<AbsolutePath>> {
        let fact = self.fact(path)?;
        Ok(fact.and_then(|fact| match fact.resolved_kind {
            Some(PathKind::File) => fact.resolved,
            _ => None,
        }))
    }

    fn open_at(&self, path: &AbsolutePath, more: OFlags) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::CLOEXEC | more;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        match openat2(&self.root, path.as_bytes(), flags, Mode::empty(), resolve) {
            Ok(place) => Ok(Some(place)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The path inside of something that was opened.
    fn inside(&self, place: &OwnedFd) -> io::Result<Option<AbsolutePath>> {
        let link = format!("/proc/self/fd/{}", place.as_fd().as_raw_fd());
        let path = rustix::fs::readlink(link, Vec::new())?.into_bytes();
        let path = AbsolutePath::parse(path).map_err(io::Error::other)?;
        let relative = path.relative_to(&self.path);
        Ok(relative.and_then(|relative| AbsolutePath::root().join(relative).ok()))
    }
}

fn kind_of(kind: FileType) -> PathKind {
    match kind {
        FileType::Directory => PathKind::Directory,
        FileType::RegularFile => PathKind::File,
        FileType::Socket => PathKind::Socket,
        _ => PathKind::Other,
    }
}
