//! Root file systems out of OCI images (image-spec v1.1).
//!
//! An image is imported from a layout on disk or an archive of one. Nothing in
//! it is trusted: every blob is verified by size and digest before a byte of it
//! counts, every name is resolved by the kernel below the root file system that
//! is being made, and everything is bounded. What cannot be had is a refusal
//! that leaves nothing behind.
//!
//! A root file system is one plain directory, named by the digest of the
//! image's configuration. It never changes: sandboxes mount it read-only.

mod archive;
mod blobs;
mod hash;
mod layer;
mod spec;
mod store;
mod tree;

use std::io;

pub use hash::Digest;
pub use spec::RuntimeConfig;
pub use store::{Image, Imported, InUse, Store};

/// What an import may take up. Each bound is there against archives that are
/// made to exhaust the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all layers together once unpacked, with what describes them.
    pub bytes: u64,
    /// Files, directories and links of all layers together.
    pub entries: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 32 << 30,
            entries: 4_000_000,
        }
    }
}

/// Why an image cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The image itself is at fault; `place` says which part of it.
    #[error(
        "{place} {reason}\n  remedy: nothing of it was kept; get the image from its maker again"
    )]
    Refused { place: String, reason: String },
    #[error(
        "the image is larger than {bytes} bytes or {entries} files once unpacked\n  remedy: if it is meant to be so large, raise --max-bytes or --max-files"
    )]
    TooLarge { bytes: u64, entries: u64 },
    #[error(
        "no image for linux/{architecture} is in it; there are: {found}\n  remedy: pull or export it for this platform"
    )]
    Platform {
        architecture: &'static str,
        found: String,
    },
    #[error("it holds several images: {found}\n  remedy: choose one with --reference")]
    Ambiguous { found: String },
    #[error(
        "there is no image {name:?}\n  remedy: `stockade image list` shows what there is; `stockade image import` adds one"
    )]
    Unknown { name: String },
    #[error(
        "{name:?} is no name for an image: letters, digits, `.`, `_`, `-`, `/` and `:`, at most 128, and a letter or digit first"
    )]
    Name { name: String },
    #[error("image {name} is in use by a sandbox\n  remedy: stop it first (`stockade list`)")]
    InUse { name: String },
    #[error("cannot {doing}: {source}")]
    System {
        doing: &'static str,
        source: io::Error,
    },
}

pub(crate) fn system(doing: &'static str) -> impl Fn(io::Error) -> ImageError {
    move |source| ImageError::System { doing, source }
}

pub(crate) fn refused(place: impl Into<String>, reason: impl Into<String>) -> ImageError {
    ImageError::Refused {
        place: place.into(),
        reason: reason.into(),
    }
}

/// What is left of the limits.
#[derive(Debug)]
pub(crate) struct Budget {
    limits: Limits,
    bytes: u64,
    entries: u64,
}

impl Budget {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            bytes: limits.bytes,
            entries: limits.entries,
        }
    }

    pub(crate) fn take(&mut self, bytes: u64, entries: u64) -> Result<(), ImageError> {
        let left = self.bytes.checked_sub(bytes);
        match (left, self.entries.checked_sub(entries)) {
            (Some(bytes), Some(entries)) => {
                (self.bytes, self.entries) = (bytes, entries);
                Ok(())
            }
            _ => Err(ImageError::TooLarge {
                bytes: self.limits.bytes,
                entries: self.limits.entries,
            }),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What was taken: bytes and entries.
    pub(crate) fn taken(&self) -> (u64, u64) {
        (
            self.limits.bytes - self.bytes,
            self.limits.entries - self.entries,
        )
    }
}
