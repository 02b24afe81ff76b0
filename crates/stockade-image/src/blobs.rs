//! An image layout on disk, and what in it is the image.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use serde::de::DeserializeOwned;

use crate::hash::{Digest, Hashing};
use crate::spec::{Config, Descriptor, Index, Layout, Manifest, Platform, architecture};
use crate::{ImageError, refused, system};

/// Longest document, in bytes (as registries have it).
const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
/// How deep indices may point to indices.
const INDEX_DEPTH_MAX: usize = 4;
const LAYERS_MAX: usize = 512;

/// A layout (image-spec, image-layout.md). Everything in it is looked up below
/// its directory, without following a link.
pub(crate) struct Blobs {
    root: OwnedFd,
}

/// One image, as its documents say.
pub(crate) struct Found {
    /// The digest of the configuration, which names the image.
    pub id: Digest,
    pub config: Config,
    /// Each layer with the digest of its unpacked content.
    pub layers: Vec<(Descriptor, Digest)>,
}

impl Blobs {
    pub(crate) fn open(root: OwnedFd) -> Result<Self, ImageError> {
        let blobs = Self { root };
        let text = blobs.read_plain("oci-layout")?;
        let layout: Layout = parsed("oci-layout", &text)?;
        match layout.version.starts_with("1.") {
            true => Ok(blobs),
            false => Err(refused(
                "oci-layout",
                format!("says version {:?}, not 1", layout.version),
            )),
        }
    }

    /// Finds the image for this machine, and the one called `reference` if
    /// that is given.
    pub(crate) fn find(&self, reference: Option<&str>) -> Result<Found, ImageError> {
        let index: Index = parsed("index.json", &self.read_plain("index.json")?)?;
        let mut named = index.manifests;
        if let Some(reference) = reference {
            named.retain(|one| one.names().any(|name| name == reference));
            if named.is_empty() {
                return Err(ImageError::Unknown {
                    name: reference.to_owned(),
                });
            }
        }
        let mut manifests = Vec::new();
        let mut others = Vec::new();
        for descriptor in &named {
            self.manifests(descriptor, 0, &mut manifests, &mut others)?;
        }
        let mut fitting: Vec<(Descriptor, Found)> = Vec::new();
        for descriptor in manifests {
            let found = self.image(&descriptor)?;
            let (os, machine) = (&found.config.os, &found.config.architecture);
            if os != "linux" || machine != architecture() {
                others.push(format!("{os}/{machine}"));
            } else if !fitting.iter().any(|(_, one)| one.id == found.id) {
                fitting.push((descriptor, found));
            }
        }
        let names = |list: &[(Descriptor, Found)]| {
            let name = |(one, found): &(Descriptor, Found)| match one.names().next() {
                Some(name) => name.to_owned(),
                None => found.id.to_string(),
            };
            list.iter().map(name).collect::<Vec<_>>().join(", ")
        };
        match fitting.len() {
            0 => Err(ImageError::Platform {
                architecture: architecture(),
                found: match others.is_empty() {
                    true => "none".to_owned(),
                    false => others.join(", "),
                },
            }),
            1 => Ok(fitting.remove(0).1),
            _ => Err(ImageError::Ambiguous {
                found: names(&fitting),
            }),
        }
    }

    /// The manifests that a descriptor leads to, and the platforms of those for
    /// other machines, which need not be there. What is neither index nor
    /// manifest is left out.
    fn manifests(
        &self,
        descriptor: &Descriptor,
        depth: usize,
        found: &mut Vec<Descriptor>,
        others: &mut Vec<String>,
    ) -> Result<(), ImageError> {
        if let Some(Platform {
            os,
            architecture: machine,
        }) = &descriptor.platform
            && (os != "linux" || machine != architecture())
        {
            others.push(format!("{os}/{machine}"));
            return Ok(());
        }
        if descriptor.is_manifest() {
            found.push(descriptor.clone());
            return Ok(());
        }
        if !descriptor.is_index() {
            return Ok(());
        }
        if depth >= INDEX_DEPTH_MAX {
            return Err(refused(
                &descriptor.digest,
                "is an index in too many others",
            ));
        }
        let index: Index = self.document(descriptor)?;
        for inner in &index.manifests {
            let mut inner = inner.clone();
            for (key, value) in &descriptor.annotations {
                inner
                    .annotations
                    .entry(key.clone())
                    .or_insert(value.clone());
            }
            self.manifests(&inner, depth + 1, found, others)?;
        }
        Ok(())
    }

    fn image(&self, descriptor: &Descriptor) -> Result<Found, ImageError> {
        let manifest: Manifest = self.document(descriptor)?;
        let config: Config = self.document(&manifest.config)?;
        let id = digest_of(&manifest.config)?;
        let layers = manifest.layers;
        if layers.len() > LAYERS_MAX {
            return Err(refused(
                &descriptor.digest,
                format!("has over {LAYERS_MAX} layers"),
            ));
        }
        if config.rootfs.diff_ids.len() != layers.len() {
            return Err(refused(
                &manifest.config.digest,
                "names another number of layers than its manifest",
            ));
        }
        let unpacked = config.rootfs.diff_ids.iter().map(|text| {
            Digest::parse(text)
                .ok_or_else(|| refused(&manifest.config.digest, "names a layer by no SHA-256"))
        });
        let unpacked = unpacked.collect::<Result<Vec<_>, _>>()?;
        Ok(Found {
            id,
            config,
            layers: layers.into_iter().zip(unpacked).collect(),
        })
    }

    /// A document by its descriptor, verified before it is read.
    fn document<T: DeserializeOwned>(&self, descriptor: &Descriptor) -> Result<T, ImageError> {
        if descriptor.size > DOCUMENT_BYTES_MAX {
            return Err(refused(&descriptor.digest, "is too long for a document"));
        }
        let text = {
            let mut text = Vec::new();
            let mut blob = self.blob(descriptor)?;
            blob.reader()
                .read_to_end(&mut text)
                .map_err(system("read a document of the image"))?;
            blob.verify()?;
            text
        };
        parsed(&descriptor.digest, &text)
    }

    /// A blob, to be read and then verified.
    pub(crate) fn blob(&self, descriptor: &Descriptor) -> Result<Blob, ImageError> {
        let digest = digest_of(descriptor)?;
        let file = self.open_file(&format!("blobs/sha256/{}", digest.hex()))?;
        let length = fstat(&file).map_err(|error| system("read the image")(error.into()))?;
        if length.st_size.unsigned_abs() != descriptor.size {
            return Err(refused(
                &descriptor.digest,
                format!("has {} bytes, not {}", length.st_size, descriptor.size),
            ));
        }
        Ok(Blob {
            reader: Hashing::new(file.take(descriptor.size)),
            digest,
            size: descriptor.size,
        })
    }

    fn read_plain(&self, name: &str) -> Result<Vec<u8>, ImageError> {
        let mut text = Vec::new();
        self.open_file(name)?
            .take(DOCUMENT_BYTES_MAX + 1)
            .read_to_end(&mut text)
            .map_err(system("read the image"))?;
        match text.len() as u64 > DOCUMENT_BYTES_MAX {
            true => Err(refused(name, "is too long for a document")),
            false => Ok(text),
        }
    }

    fn open_file(&self, name: &str) -> Result<File, ImageError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let opened = openat2(self.root.as_fd(), name, flags, Mode::empty(), resolve);
        let file = opened.map_err(|error| match error {
            rustix::io::Errno::NOENT => refused(name, "is missing: this is no whole OCI layout"),
            rustix::io::Errno::LOOP => refused(name, "is reached through a link"),
            other => system("open the image")(other.into()),
        })?;
        let kind = fstat(&file).map(|status| FileType::from_raw_mode(status.st_mode));
        match kind {
            Ok(FileType::RegularFile) => Ok(file.into()),
            _ => Err(refused(name, "is no regular file")),
        }
    }
}

/// One blob on its way.
pub(crate) struct Blob {
    reader: Hashing<std::io::Take<File>>,
    digest: Digest,
    size: u64,
}

impl Blob {
    pub(crate) fn reader(&mut self) -> &mut impl Read {
        &mut self.reader
    }

    /// Reads what is left, and compares. What was read before counts only when
    /// this succeeds.
    pub(crate) fn verify(self) -> Result<(), ImageError> {
        let (length, digest) = self.reader.finish().map_err(system("read the image"))?;
        match length == self.size && digest == self.digest {
            true => Ok(()),
            false => Err(refused(
                self.digest.to_string(),
                format!("has another content: {digest}, {length} bytes"),
            )),
        }
    }
}

fn digest_of(descriptor: &Descriptor) -> Result<Digest, ImageError> {
    Digest::parse(&descriptor.digest)
        .ok_or_else(|| refused(format!("{:?}", descriptor.digest), "is no SHA-256 digest"))
}

fn parsed<T: DeserializeOwned>(place: &str, text: &[u8]) -> Result<T, ImageError> {
    serde_json::from_slice(text).map_err(|error| refused(place, format!("cannot be read: {error}")))
}
