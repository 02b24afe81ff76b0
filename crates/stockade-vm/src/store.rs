//! The machine images of one user.
//!
//! ```text
//! machines/              0700, in the state directory
//!   lock                 held while images come or go
//!   images/<name>/       kernel, initramfs, image.json, saved/; locked, shared, while in use
//!   partial/<random>/    a build under way, locked by it
//! ```

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::renameat;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use stockade_sys::directory::{self, Hold, LETTING_GO_MAX, Lock};

use crate::source::{self, Source};
use crate::{VmError, initramfs, system};

const VERSION: u32 = 1;
const META: &str = "image.json";
const KERNEL: &str = "kernel";
const INITRAMFS: &str = "initramfs";
const NAME_BYTES_MAX: usize = 64;

/// The machine images of the caller.
#[derive(Debug)]
pub struct Store {
    directory: OwnedFd,
    images: OwnedFd,
    partial: OwnedFd,
}

/// What is known of one image. Digests are SHA-256, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    pub version: u32,
    /// What it is called; filled in when it is read.
    #[serde(skip)]
    pub name: String,
    /// What `uname -r` says in the machine.
    pub release: String,
    /// Where the kernel was taken from.
    pub from: String,
    /// Modules in the order in which they are loaded.
    pub modules: Vec<String>,
    pub kernel: String,
    pub initramfs: String,
    /// The agent in it.
    pub agent: String,
    /// Milliseconds since 1970.
    pub built_ms: u64,
}

/// An image that stays as long as this lives, each part seen to be what was
/// built.
#[derive(Debug)]
pub struct InUse {
    pub image: Image,
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
    /// Its directory, locked.
    lock: Lock,
}

impl InUse {
    /// The directory of the image.
    pub(crate) fn place(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }
}

impl Store {
    /// Opens the store below a private directory, and makes it there.
    pub fn open(state: BorrowedFd<'_>) -> Result<Self, VmError> {
        let failed = system("open the machine images");
        let directory = directory::make_private(state, "machines").map_err(&failed)?;
        let part = |name| directory::make_private(directory.as_fd(), name).map_err(&failed);
        Ok(Self {
            images: part("images")?,
            partial: part("partial")?,
            directory,
        })
    }

    /// Builds an image with this agent, in place of one of the same name.
    pub fn build(&self, source: &Source, name: &str, agent: &[u8]) -> Result<Image, VmError> {
        check_name(name)?;
        self.clear()?;
        let (kernel, modules) = source::read(source)?;
        let names = modules.iter().map(|module| module.name.clone()).collect();
        let contents: Vec<_> = modules.into_iter().map(|module| module.content).collect();
        let initramfs = initramfs::archive(agent, &contents);
        let image = Image {
            version: VERSION,
            name: name.to_owned(),
            release: kernel.release,
            from: kernel.from,
            modules: names,
            kernel: digest(&kernel.image),
            initramfs: digest(&initramfs),
            agent: digest(agent),
            built_ms: now_ms(),
        };
        let failed = system("keep the machine image");
        let text = serde_json::to_vec_pretty(&image).map_err(|error| failed(error.into()))?;
        let partial = Partial::new(self)?;
        let place = partial.directory.as_fd();
        directory::write_whole(place, KERNEL, &kernel.image).map_err(&failed)?;
        directory::write_whole(place, INITRAMFS, &initramfs).map_err(&failed)?;
        directory::write_whole(place, META, &text).map_err(&failed)?;
        partial.keep(name)?;
        Ok(image)
    }

    /// Every image, by name.
    pub fn list(&self) -> Result<Vec<Image>, VmError> {
        let names = directory::names(self.images.as_fd()).map_err(system("list machine images"))?;
        let mut images = Vec::new();
        for name in names {
            if let Some((_, image)) = self.image(&name)? {
                images.push(image);
            }
        }
        Ok(images)
    }

    /// Removes an image that no sandbox uses.
    pub fn remove(&self, name: &str) -> Result<(), VmError> {
        check_name(name)?;
        let _lock = self.lock()?;
        let unknown = || VmError::Unknown {
            name: name.to_owned(),
        };
        self.image(name)?.ok_or_else(unknown)?;
        self.put_away(name)
    }

    /// The image of a name, to start a machine with this agent from.
    pub fn use_image(&self, name: &str, agent: &[u8]) -> Result<InUse, VmError> {
        check_name(name)?;
        let named = || name.to_owned();
        let _lock = self.lock()?;
        let (place, image) = self
            .image(name)?
            .ok_or_else(|| VmError::Unknown { name: named() })?;
        let lock = lock_image(&place, Hold::Shared, Duration::ZERO)?;
        let lock = lock.ok_or_else(|| VmError::Unknown { name: named() })?;
        if image.version != VERSION || image.agent != digest(agent) {
            return Err(VmError::OtherVersion { name: named() });
        }
        let failed = system("read the machine image");
        for (file, expected) in [(KERNEL, &image.kernel), (INITRAMFS, &image.initramfs)] {
            let content = directory::open_record(place.as_fd(), file).map_err(&failed)?;
            let found = content.map(digest_of).transpose().map_err(&failed)?;
            if found.as_ref() != Some(expected) {
                return Err(VmError::Altered {
                    name: named(),
                    file,
                });
            }
        }
        let path = directory::path_of(place.as_fd()).map_err(&failed)?;
        let path = PathBuf::from(std::ffi::OsString::from_vec(path));
        Ok(InUse {
            image,
            kernel: path.join(KERNEL),
            initramfs: path.join(INITRAMFS),
            lock,
        })
    }

    /// The directory of an image.
    pub(crate) fn place_of(&self, name: &str) -> Result<OwnedFd, VmError> {
        check_name(name)?;
        let found = self.image(name)?.map(|(place, _)| place);
        found.ok_or_else(|| VmError::Unknown {
            name: name.to_owned(),
        })
    }

    pub(crate) fn lock(&self) -> Result<Lock, VmError> {
        directory::lock(self.directory.as_fd(), "lock").map_err(system("lock the machine images"))
    }

    fn image(&self, name: &str) -> Result<Option<(OwnedFd, Image)>, VmError> {
        let failed = system("read the machine image");
        let place = directory::open_private_if_there(self.images.as_fd(), name);
        let Some(place) = place.map_err(&failed)? else {
            return Ok(None);
        };
        let Some(text) = directory::read_whole(place.as_fd(), META).map_err(&failed)? else {
            return Ok(None);
        };
        let image: Image = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
        let name = name.to_owned();
        Ok(Some((place, Image { name, ..image })))
    }

    /// Takes an image away, if there is one, in one step. Needs the lock.
    fn put_away(&self, name: &str) -> Result<(), VmError> {
        let failed = system("remove the machine image");
        let place = directory::open_private_if_there(self.images.as_fd(), name);
        let Some(place) = place.map_err(&failed)? else {
            return Ok(());
        };
        let in_use = || VmError::InUse {
            name: name.to_owned(),
        };
        let alone = lock_image(&place, Hold::Alone, LETTING_GO_MAX)?;
        let _alone = alone.ok_or_else(in_use)?;
        let trash = format!(".trash-{}", directory::random_name().map_err(&failed)?);
        let moved = renameat(&self.images, name, &self.partial, trash.as_str());
        moved.map_err(|error| failed(error.into()))?;
        directory::remove_tree(self.partial.as_fd(), &trash).map_err(&failed)
    }

    /// What interrupted builds and removals left, as paths.
    pub fn litter(&self) -> Result<Vec<PathBuf>, VmError> {
        let _lock = self.lock()?;
        let place =
            directory::path_of(self.partial.as_fd()).map_err(system("list machine images"))?;
        let place = PathBuf::from(std::ffi::OsString::from_vec(place));
        let left = self.left()?.into_iter();
        Ok(left.map(|(name, _)| place.join(name)).collect())
    }

    /// Removes it.
    pub fn clear(&self) -> Result<(), VmError> {
        let _lock = self.lock()?;
        for (name, _lock) in self.left()? {
            directory::remove_tree(self.partial.as_fd(), &name)
                .map_err(system("clear away an interrupted build"))?;
        }
        Ok(())
    }

    /// Names of what nobody is at work on, locked.
    fn left(&self) -> Result<Vec<(String, Lock)>, VmError> {
        let failed = system("look for interrupted builds");
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

/// A build under way. Dropped, nothing of it is left.
pub(crate) struct Partial<'a> {
    pub(crate) store: &'a Store,
    name: String,
    pub(crate) directory: OwnedFd,
    _lock: Option<Lock>,
}

impl<'a> Partial<'a> {
    pub(crate) fn new(store: &'a Store) -> Result<Self, VmError> {
        let failed = system("begin the build");
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

    /// Makes the build an image, in place of one of the same name.
    fn keep(self, name: &str) -> Result<(), VmError> {
        let _lock = self.store.lock()?;
        self.store.put_away(name)?;
        renameat(&self.store.partial, &self.name, &self.store.images, name)
            .map_err(|error: Errno| system("keep the machine image")(error.into()))
    }
}

impl Drop for Partial<'_> {
    fn drop(&mut self) {
        // What cannot be removed now is cleared away by the next build.
        let _left = directory::remove_tree(self.store.partial.as_fd(), &self.name).is_err();
    }
}

fn lock_image(place: &OwnedFd, hold: Hold, patience: Duration) -> Result<Option<Lock>, VmError> {
    directory::lock_directory_within(place.as_fd(), hold, patience)
        .map_err(system("lock the machine image"))
}

fn check_name(name: &str) -> Result<(), VmError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let first = name.bytes().next();
    let first = first.is_some_and(|byte| byte.is_ascii_alphanumeric());
    match first && name.len() <= NAME_BYTES_MAX && name.bytes().all(plain) {
        true => Ok(()),
        false => Err(VmError::Name {
            name: name.to_owned(),
        }),
    }
}

fn digest(content: &[u8]) -> String {
    hexadecimal(Sha256::new_with_prefix(content))
}

pub(crate) fn digest_of(mut file: impl Read) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 256 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hexadecimal(hasher)),
            length => hasher.update(&buffer[..length]),
        }
    }
}

fn hexadecimal(hasher: Sha256) -> String {
    let digest = hasher.finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests;
