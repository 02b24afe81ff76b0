//! Whether machines of Firecracker can be used here.
//!
//! That /dev/kvm can be opened does not say that a machine runs: some hosts offer
//! it and have no processor behind it. So the last question is asked of the
//! smallest machine there is.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use stockade_sys::rustix::process::geteuid;

use super::configuration::Configuration;
use super::host::{Confinement, Groups, Host};
use super::{FirecrackerError, system};

const KVM: &str = "/dev/kvm";

/// Why not, and what can be done about it.
#[derive(Debug, thiserror::Error)]
#[error("{reason}\n  remedy: {remedy}")]
pub struct Unusable {
    pub reason: String,
    pub remedy: String,
}

fn unusable(reason: impl Into<String>, remedy: impl Into<String>) -> Unusable {
    Unusable {
        reason: reason.into(),
        remedy: remedy.into(),
    }
}

/// Opens /dev/kvm, and closes it again.
pub fn open_kvm() -> Result<(), Unusable> {
    let opened = OpenOptions::new().read(true).write(true).open(KVM);
    opened.map(drop).map_err(|error| closed_kvm(&error))
}

fn closed_kvm(error: &io::Error) -> Unusable {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => {
            "load the module kvm_intel or kvm_amd; in a virtual machine, let its host nest \
             virtualisation"
        }
        io::ErrorKind::PermissionDenied => {
            "join the group that /dev/kvm belongs to (often kvm), or be root"
        }
        _ => "let this process open it (containers need the device passed in)",
    };
    unusable(format!("{KVM} cannot be opened: {error}"), remedy)
}

/// A version that is known to be broken, by what is published about it.
struct Broken {
    part: Part,
    first: (u32, u32, u32),
    last: (u32, u32, u32),
    why: &'static str,
}

const FOLLOWED_LINKS: &str = "CVE-2026-1386: the jailer follows links when it copies as root";
const WRITES_OUTSIDE: &str =
    "CVE-2026-5747: a machine can write outside of its queues (virtio-pci)";

const BROKEN: [Broken; 4] = [
    Broken {
        part: Part::Jailer,
        first: (0, 0, 0),
        last: (1, 13, 1),
        why: FOLLOWED_LINKS,
    },
    Broken {
        part: Part::Jailer,
        first: (1, 14, 0),
        last: (1, 14, 0),
        why: FOLLOWED_LINKS,
    },
    Broken {
        part: Part::Firecracker,
        first: (1, 13, 0),
        last: (1, 14, 3),
        why: WRITES_OUTSIDE,
    },
    Broken {
        part: Part::Firecracker,
        first: (1, 15, 0),
        last: (1, 15, 0),
        why: WRITES_OUTSIDE,
    },
];

/// Which of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Firecracker,
    Jailer,
}

/// Judges a version such as `1.12.1`.
pub fn judge(part: Part, version: &str) -> Result<(), Unusable> {
    let remedy =
        "install Firecracker and its jailer 1.14.4, or 1.15.1 or later, both of one release";
    let mut numbers = version
        .split(['-', '+'])
        .next()
        .unwrap_or_default()
        .split('.');
    let mut next = || numbers.next()?.parse::<u32>().ok();
    let (Some(major), Some(minor), Some(patch)) = (next(), next(), next()) else {
        let reason = format!("{version:?} is no version of {part:?}");
        return Err(unusable(reason, remedy));
    };
    let known = BROKEN
        .iter()
        .find(|one| one.part == part && (one.first..=one.last).contains(&(major, minor, patch)));
    match known {
        Some(broken) => Err(unusable(
            format!("{part:?} {version} is not used: {}", broken.why),
            remedy,
        )),
        None => Ok(()),
    }
}

/// Whom Firecracker runs as while it is tried: nobody has this number.
const NOBODY: u32 = 64_999;
const MEMORY_MIB: u32 = 16;

/// Starts the smallest machine (an ELF file), in a directory that is made and
/// removed here, and says who it was.
pub fn try_machine(
    directory: &Path,
    firecracker: &Path,
    jailer: &Path,
    guest: &[u8],
) -> Result<(), Unusable> {
    open_kvm()?;
    let tried = machine(directory, firecracker, jailer, guest);
    let removed = std::fs::remove_dir_all(directory);
    match (tried, removed) {
        (Ok(()), Ok(())) => Ok(()),
        (Ok(()), Err(error)) => Err(unusable(
            format!("{} cannot be removed: {error}", directory.display()),
            "remove it",
        )),
        (Err(FirecrackerError::Unusable(why)), _) => Err(why),
        (Err(error), _) => Err(unusable(
            format!("{KVM} can be opened, but the smallest machine does not run: {error}"),
            "use a host whose processor executes machines; in a virtual machine, let its host nest \
             virtualisation",
        )),
    }
}

fn machine(
    directory: &Path,
    firecracker: &Path,
    jailer: &Path,
    guest: &[u8],
) -> Result<(), FirecrackerError> {
    let failed = system("try a machine");
    DirBuilder::new()
        .mode(0o700)
        .create(directory)
        .map_err(&failed)?;
    let kernel = directory.join("guest");
    std::fs::write(&kernel, guest).map_err(&failed)?;
    let confinement = match geteuid().is_root() {
        true => Confinement::Jailer {
            program: jailer.to_owned(),
            uid: NOBODY,
            gid: NOBODY,
            groups: Groups::of_system().map_err(&failed)?,
        },
        false => Confinement::Own,
    };
    let host = Host::open(&directory.join("machines"), firecracker, confinement)?;
    let configuration = Configuration {
        kernel,
        arguments: String::new(),
        memory: MEMORY_MIB,
        processors: 1,
        drives: Vec::new(),
    };
    host.boot(&configuration).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_a_published_hole_are_refused_by_its_name() {
        let (virtio, links) = ("CVE-2026-5747", "CVE-2026-1386");
        for (part, version, hole) in [
            (Part::Jailer, "1.12.1", links),
            (Part::Jailer, "1.13.1", links),
            (Part::Jailer, "1.14.0", links),
            (Part::Firecracker, "1.13.0", virtio),
            (Part::Firecracker, "1.14.3", virtio),
            (Part::Firecracker, "1.15.0", virtio),
        ] {
            let refused = judge(part, version).unwrap_err();
            assert!(refused.reason.contains(hole), "{version}: {refused}");
            assert!(refused.remedy.contains("1.14.4"));
        }
        for version in ["1.13.2", "1.14.1", "1.14.4", "1.15.1"] {
            judge(Part::Jailer, version).unwrap();
        }
        for version in ["1.12.1", "1.14.4", "1.15.1", "1.16.0-dev"] {
            judge(Part::Firecracker, version).unwrap();
        }
        for version in ["", "1", "1.12", "1.x.1", "v1.12.1"] {
            let refused = judge(Part::Jailer, version).unwrap_err();
            assert!(refused.reason.contains("is no version"), "{refused}");
        }
    }

    #[test]
    fn who_cannot_open_the_device_is_told_how() {
        for (kind, remedy) in [
            (io::ErrorKind::NotFound, "kvm_intel"),
            (io::ErrorKind::PermissionDenied, "group"),
            (io::ErrorKind::Other, "passed in"),
        ] {
            let refused = closed_kvm(&kind.into());
            assert!(refused.remedy.contains(remedy), "{refused}");
        }
    }
}
