//! The images of one user.
//!
//! ```text
//! images/                 0700, in the state directory
//!   lock                  held while names or trees come or go
//!   names/<name>          the id of a tree
//!   trees/<id>/           root/ and image.json; locked, shared, while in use
//!   partial/<random>/     an import under way, locked by it
//! ```

use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use stockade_sys::directory::{self, Hold, LETTING_GO_MAX};

use crate::blobs::Blobs;
use crate::spec::RuntimeConfig;
use crate::tree::Tree;
use crate::{Budget, Digest, ImageError, Limits, archive, layer, refused, system};

const VERSION: u32 = 1;
const META: &str = "image.json";
const ROOT: &str = "root";
const NAME_BYTES_MAX: usize = 128;

/// The images of the caller.
#[derive(Debug)]
pub struct Store {
    directory: OwnedFd,
    names: OwnedFd,
    trees: OwnedFd,
    partial: OwnedFd,
}

/// What is known of one image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    pub version: u32,
    /// `sha256:…` of its configuration.
    pub id: String,
    /// Milliseconds since 1970.
    pub imported_ms: u64,
    /// Bytes and entries of its archives when unpacked.
    pub bytes: u64,
    pub entries: u64,
    pub architecture: String,
    /// What it says of commands.
    pub config: RuntimeConfig,
    /// The names that it has, sorted; filled in when it is read.
    #[serde(skip)]
    pub names: Vec<String>,
}

/// What an import brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    pub image: Image,
    /// The tree was there already.
    pub was_there: bool,
}

/// The root file system of an image, which stays as long as this lives.
#[derive(Debug)]
pub struct InUse {
    pub image: Image,
    /// Path of the root file system, its links resolved.
    pub root: PathBuf,
    _lock: directory::Lock,
}

impl Store {
    /// Opens the store below a private directory, and makes it there.
    pub fn open(state: BorrowedFd<'_>) -> Result<Self, ImageError> {
        let failed = system("open the images");
        let directory = directory::make_private(state, "images").map_err(&failed)?;
        let part = |name| directory::make_private(directory.as_fd(), name).map_err(&failed);
        Ok(Self {
            names: part("names")?,
            trees: part("trees")?,
            partial: part("partial")?,
            directory,
        })
    }

    /// Imports the image of a layout (a directory, or an archive of one), and
    /// gives it a name. `progress` is told which layer of how many comes next.
    pub fn import(
        &self,
        source: &Path,
        name: &str,
        reference: Option<&str>,
        limits: Limits,
        progress: &dyn Fn(usize, usize),
    ) -> Result<Imported, ImageError> {
        check_name(name)?;
        self.clear()?;
        let partial = Partial::new(self)?;
        let mut budget = Budget::new(limits);
        let blobs = Blobs::open(partial.layout(source, &mut budget)?)?;
        let found = blobs.find(reference)?;
        if let Some(image) = self.image(&found.id)? {
            self.name(name, &found.id)?;
            let names = self.names_of(&image.id)?;
            let image = Image { names, ..image };
            return Ok(Imported {
                image,
                was_there: true,
            });
        }
        let mut budget = Budget::new(limits);
        let failed = system("make the root file system");
        let made = directory::make_private(partial.directory.as_fd(), ROOT).map_err(&failed)?;
        let mut tree = Tree::new(made);
        for (number, one) in found.layers.iter().enumerate() {
            progress(number, found.layers.len());
            layer::apply(&blobs, one, &mut tree, &mut budget)?;
        }
        tree.add_mount_points().map_err(&failed)?;
        tree.finish().map_err(&failed)?;
        let (bytes, entries) = budget.taken();
        let image = Image {
            version: VERSION,
            id: found.id.to_string(),
            imported_ms: now_ms(),
            bytes,
            entries,
            architecture: found.config.architecture,
            config: found.config.config.unwrap_or_default(),
            names: vec![name.to_owned()],
        };
        let text = serde_json::to_vec_pretty(&image).map_err(|error| failed(error.into()))?;
        directory::write_whole(partial.directory.as_fd(), META, &text).map_err(&failed)?;
        partial.keep(&found.id)?;
        self.name(name, &found.id)?;
        Ok(Imported {
            image,
            was_there: false,
        })
    }

    /// Every image, the latest first.
    pub fn list(&self) -> Result<Vec<Image>, ImageError> {
        let failed = system("list the images");
        let mut images = Vec::new();
        for hex in directory::names(self.trees.as_fd()).map_err(&failed)? {
            let Some(id) = Digest::parse(&format!("sha256:{hex}")) else {
                continue;
            };
            if let Some(mut image) = self.image(&id)? {
                image.names = self.names_of(&image.id)?;
                images.push(image);
            }
        }
        images.sort_by_key(|image| std::cmp::Reverse(image.imported_ms));
        Ok(images)
    }

    /// Takes a name away, and the image when that was its last and no sandbox
    /// uses it. An id takes all its names away.
    pub fn remove(&self, name: &str) -> Result<(), ImageError> {
        let _lock = self.lock()?;
        let (id, names) = match Digest::parse(name) {
            Some(id) => {
                let names = self.names_of(&id.to_string())?;
                (id, names)
            }
            None => (self.id_of(name)?, vec![name.to_owned()]),
        };
        let unknown = || ImageError::Unknown {
            name: name.to_owned(),
        };
        let tree = directory::open_private_if_there(self.trees.as_fd(), id.hex());
        let tree = tree
            .map_err(system("open the image"))?
            .ok_or_else(unknown)?;
        let others = self.names_of(&id.to_string())?;
        let last = others.iter().all(|other| names.contains(other));
        let used = || ImageError::InUse {
            name: name.to_owned(),
        };
        let _alone = match last {
            true => Some(lock_tree(&tree, Hold::Alone, LETTING_GO_MAX)?.ok_or_else(used)?),
            false => None,
        };
        for name in &names {
            self.forget(name)?;
        }
        if last {
            let failed = system("remove the image");
            let trash = format!(".trash-{}", directory::random_name().map_err(&failed)?);
            rustix::fs::renameat(&self.trees, id.hex(), &self.partial, trash.as_str())
                .map_err(|error| failed(error.into()))?;
            directory::remove_tree(self.partial.as_fd(), &trash).map_err(&failed)?;
        }
        Ok(())
    }

    /// The root file system of an image, by name or id.
    pub fn use_image(&self, name: &str) -> Result<InUse, ImageError> {
        let _lock = self.lock()?;
        let id = match Digest::parse(name) {
            Some(id) => id,
            None => self.id_of(name)?,
        };
        let unknown = || ImageError::Unknown {
            name: name.to_owned(),
        };
        let image = self.image(&id)?.ok_or_else(unknown)?;
        let failed = system("open the image");
        let tree = directory::open_private(self.trees.as_fd(), id.hex()).map_err(&failed)?;
        let lock = lock_tree(&tree, Hold::Shared, Duration::ZERO)?.ok_or_else(unknown)?;
        let root = directory::open_directory(tree.as_fd(), ROOT.as_bytes()).map_err(&failed)?;
        let root = directory::path_of(root.as_fd()).map_err(&failed)?;
        use std::os::unix::ffi::OsStringExt;
        Ok(InUse {
            image,
            root: PathBuf::from(std::ffi::OsString::from_vec(root)),
            _lock: lock,
        })
    }

    fn lock(&self) -> Result<directory::Lock, ImageError> {
        directory::lock(self.directory.as_fd(), "lock").map_err(system("lock the images"))
    }

    fn image(&self, id: &Digest) -> Result<Option<Image>, ImageError> {
        let failed = system("read the image");
        let tree = directory::open_private_if_there(self.trees.as_fd(), id.hex());
        let Some(tree) = tree.map_err(&failed)? else {
            return Ok(None);
        };
        let Some(text) = directory::read_whole(tree.as_fd(), META).map_err(&failed)? else {
            return Ok(None);
        };
        let image: Image = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
        match image.version {
            VERSION => Ok(Some(image)),
            other => Err(refused(
                format!("image {id}"),
                format!("is of version {other} of the store"),
            )),
        }
    }

    fn name(&self, name: &str, id: &Digest) -> Result<(), ImageError> {
        directory::write_whole(
            self.names.as_fd(),
            &file_of(name),
            id.to_string().as_bytes(),
        )
        .map_err(system("name the image"))
    }

    fn forget(&self, name: &str) -> Result<(), ImageError> {
        match unlinkat(&self.names, file_of(name), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(system("remove the name")(error.into())),
        }
    }

    fn id_of(&self, name: &str) -> Result<Digest, ImageError> {
        check_name(name)?;
        let text = directory::read_whole(self.names.as_fd(), &file_of(name))
            .map_err(system("read the name of an image"))?;
        let id = text.and_then(|text| Digest::parse(str::from_utf8(&text).ok()?));
        id.ok_or_else(|| ImageError::Unknown {
            name: name.to_owned(),
        })
    }

    fn names_of(&self, id: &str) -> Result<Vec<String>, ImageError> {
        let failed = system("list the names of images");
        let mut names = Vec::new();
        for file in directory::names(self.names.as_fd()).map_err(&failed)? {
            let text = directory::read_whole(self.names.as_fd(), &file).map_err(&failed)?;
            if text.as_deref() == Some(id.as_bytes()) {
                names.push(name_of(&file));
            }
        }
        names.sort();
        Ok(names)
    }

    /// What interrupted imports and removals left, as paths.
    pub fn litter(&self) -> Result<Vec<PathBuf>, ImageError> {
        let _lock = self.lock()?;
        let place = directory::path_of(self.partial.as_fd()).map_err(system("list the images"))?;
        use std::os::unix::ffi::OsStringExt;
        let place = PathBuf::from(std::ffi::OsString::from_vec(place));
        let left = self.left()?.into_iter();
        Ok(left.map(|(name, _)| place.join(name)).collect())
    }

    /// Removes it.
    pub fn clear(&self) -> Result<(), ImageError> {
        let _lock = self.lock()?;
        for (name, _lock) in self.left()? {
            directory::remove_tree(self.partial.as_fd(), &name)
                .map_err(system("clear away an interrupted import"))?;
        }
        Ok(())
    }

    /// Names of what nobody is at work on, locked.
    fn left(&self) -> Result<Vec<(String, directory::Lock)>, ImageError> {
        let failed = system("look for interrupted imports");
        let mut left = Vec::new();
        for name in directory::all_names(self.partial.as_fd()).map_err(&failed)? {
            let opened = directory::open_private_if_there(self.partial.as_fd(), &name);
            if let Some(one) = opened.map_err(&failed)? {
                let lock = directory::try_lock_directory(one.as_fd()).map_err(&failed)?;
                left.extend(lock.map(|lock| (name, lock)));
            }
        }
        Ok(left)
    }
}

/// An import under way. Dropped, nothing of it is left.
struct Partial<'a> {
    store: &'a Store,
    name: String,
    directory: OwnedFd,
    _lock: Option<directory::Lock>,
}

impl<'a> Partial<'a> {
    fn new(store: &'a Store) -> Result<Self, ImageError> {
        let failed = system("begin the import");
        let _whole = store.lock()?;
        let name = directory::random_name().map_err(&failed)?;
        let directory = directory::make_private(store.partial.as_fd(), &name).map_err(&failed)?;
        let lock = directory::try_lock_directory(directory.as_fd()).map_err(&failed)?;
        Ok(Self {
            store,
            name,
            directory,
            _lock: lock,
        })
    }

    /// The layout at `source`: the directory, or what an archive unpacks to.
    fn layout(&self, source: &Path, budget: &mut Budget) -> Result<OwnedFd, ImageError> {
        let failed = system("open the image");
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = openat(rustix::fs::CWD, source, flags, Mode::empty());
        let opened = opened.map_err(|error| failed(error.into()))?;
        let status = fstat(&opened).map_err(|error| failed(error.into()))?;
        match FileType::from_raw_mode(status.st_mode) {
            FileType::Directory => Ok(opened),
            FileType::RegularFile => {
                let layout = directory::make_private(self.directory.as_fd(), "layout");
                let layout = layout.map_err(&failed)?;
                let mut archive = File::from(opened);
                archive.rewind().map_err(&failed)?;
                archive::layout(archive, &layout, budget)?;
                Ok(layout)
            }
            _ => Err(refused(
                source.display().to_string(),
                "is neither a directory nor an archive",
            )),
        }
    }

    /// Makes the import an image, in one step.
    fn keep(self, id: &Digest) -> Result<(), ImageError> {
        let failed = system("keep the image");
        let _lock = self.store.lock()?;
        let done = format!("{}.done", self.name);
        let move_to = |error: Errno| failed(error.into());
        mkdirat(&self.store.partial, done.as_str(), Mode::RWXU).map_err(move_to)?;
        let tree = directory::open_private(self.store.partial.as_fd(), &done).map_err(&failed)?;
        for name in [ROOT, META] {
            rustix::fs::renameat(&self.directory, name, &tree, name).map_err(move_to)?;
        }
        let renamed = rustix::fs::renameat_with(
            &self.store.partial,
            done.as_str(),
            &self.store.trees,
            id.hex(),
            rustix::fs::RenameFlags::NOREPLACE,
        );
        match renamed {
            // Another import of the same image was faster.
            Ok(()) | Err(Errno::EXIST | Errno::NOTEMPTY) => {}
            Err(error) => return Err(move_to(error)),
        }
        directory::remove_tree(self.store.partial.as_fd(), &done).map_err(&failed)
    }
}

impl Drop for Partial<'_> {
    fn drop(&mut self) {
        // What cannot be removed now is cleared away by the next import.
        let _left = directory::remove_tree(self.store.partial.as_fd(), &self.name).is_err();
    }
}

fn lock_tree(
    tree: &OwnedFd,
    hold: Hold,
    patience: Duration,
) -> Result<Option<directory::Lock>, ImageError> {
    directory::lock_directory_within(tree.as_fd(), hold, patience).map_err(system("lock the image"))
}

fn check_name(name: &str) -> Result<(), ImageError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:".contains(&byte);
    let first = name
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric());
    match first && name.len() <= NAME_BYTES_MAX && name.bytes().all(plain) {
        true => Ok(()),
        false => Err(ImageError::Name {
            name: name.to_owned(),
        }),
    }
}

/// A name as the name of one file.
fn file_of(name: &str) -> String {
    name.replace('/', "%2F")
}

fn name_of(file: &str) -> String {
    file.replace("%2F", "/")
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

impl From<ImageError> for io::Error {
    fn from(error: ImageError) -> Self {
        io::Error::other(error.to_string())
    }
}
