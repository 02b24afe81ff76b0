//! Virtual machines from what a distribution packages.
//!
//! A machine is a kernel, an initial file system that holds the agent and the
//! modules it needs, and QEMU. Everything else that it sees is exported to it
//! by QEMU: the view of a sandbox, which QEMU itself runs in. So the machine
//! has no disk, no file system of its own, and no device but those that
//! [`qemu`] names.
//!
//! - [`source`]: a kernel and its modules, from a package or from the disk.
//! - [`modules`]: which modules are needed, and in which order.
//! - [`initramfs`]: the initial file system.
//! - [`store`]: what was built, each part with its digest.
//! - [`saved`]: machines that booted and wait, to go on from.
//! - [`qemu`]: the command line.
//!
//! [`firecracker`] drives machines of another kind, from kernels of any origin.
//!
//! Nothing is downloaded. A package is read, never unpacked by the names that
//! it brings.

pub mod firecracker;
pub mod initramfs;
pub mod modules;
pub mod qemu;
pub mod saved;
pub mod source;
pub mod store;
mod unpack;

use std::io;

/// What failed, and what can be done about it.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// Something of a kernel or a package is not as it has to be.
    #[error("{place} {reason}")]
    Refused { place: String, reason: String },
    #[error(
        "no installed kernel can be a machine's: {reason}\n  remedy: install a generic kernel package, or name one: `stockade vm build --kernel-package FILE.deb`"
    )]
    NoKernel { reason: String },
    #[error("there is no machine image {name}\n  remedy: `stockade vm build --name {name}`")]
    Unknown { name: String },
    #[error(
        "{name:?} is no name for a machine image: letters, digits, `.`, `_` and `-`, at most 64, and a letter or digit first"
    )]
    Name { name: String },
    #[error(
        "machine image {name} is in use by a sandbox\n  remedy: stop it first (`stockade list`)"
    )]
    InUse { name: String },
    #[error(
        "machine image {name} was built by another version of stockade\n  remedy: build it again: `stockade vm build --name {name}`"
    )]
    OtherVersion { name: String },
    #[error(
        "machine image {name}: {file} is not what was built\n  remedy: build it again: `stockade vm build --name {name}`"
    )]
    Altered { name: String, file: &'static str },
    #[error("QEMU did not save the machine: {reason}")]
    NotSaved { reason: String },
    #[error("cannot {doing}: {source}")]
    System {
        doing: &'static str,
        source: io::Error,
    },
}

pub(crate) fn system(doing: &'static str) -> impl Fn(io::Error) -> VmError {
    move |source| VmError::System { doing, source }
}

pub(crate) fn refused(place: impl Into<String>, reason: impl Into<String>) -> VmError {
    VmError::Refused {
        place: place.into(),
        reason: reason.into(),
    }
}
