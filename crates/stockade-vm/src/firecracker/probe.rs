//! Whether machines of Firecracker can be used here.
//!
//! That /dev/kvm can be opened does not say that a machine runs: some hosts offer
//! it and have no processor behind it. So the last question is asked of the
//! smallest machine there is.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};

/// Where both programs are looked for.
pub const PLACES: [&str; 2] = ["/usr/bin", "/usr/local/bin"];
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
    let remedy = |error: &io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            "load the module kvm_intel or kvm_amd; in a virtual machine, \
                                    let its host nest virtualisation"
        }
        io::ErrorKind::PermissionDenied => "join the group that /dev/kvm belongs to (often kvm)",
        _ => "let this process open it (containers need the device passed in)",
    };
    match opened {
        Ok(_) => Ok(()),
        Err(error) => Err(unusable(
            format!("{KVM} cannot be opened: {error}"),
            remedy(&error),
        )),
    }
}

/// A version that is known to be broken, by what is published about it.
struct Broken {
    /// Of the jailer, or of Firecracker.
    of_jailer: bool,
    first: (u32, u32, u32),
    last: (u32, u32, u32),
    why: &'static str,
}

const BROKEN: [Broken; 4] = [
    Broken {
        of_jailer: true,
        first: (0, 0, 0),
        last: (1, 13, 1),
        why: "CVE-2026-1386: the jailer follows links when it copies as root",
    },
    Broken {
        of_jailer: true,
        first: (1, 14, 0),
        last: (1, 14, 0),
        why: "CVE-2026-1386: the jailer follows links when it copies as root",
    },
    Broken {
        of_jailer: false,
        first: (1, 13, 0),
        last: (1, 14, 3),
        why: "CVE-2026-5747: a machine can write outside of its queues (virtio-pci)",
    },
    Broken {
        of_jailer: false,
        first: (1, 15, 0),
        last: (1, 15, 0),
        why: "CVE-2026-5747: a machine can write outside of its queues (virtio-pci)",
    },
];

/// Judges what `--version` said first, such as `Firecracker v1.12.1`.
pub fn judge(line: &str) -> Result<(), Unusable> {
    let remedy =
        "install Firecracker and its jailer 1.14.4, or 1.15.1 or later, both of one release";
    let parsed = line.split_once(" v").and_then(|(name, version)| {
        let version = version.split(['-', '+']).next()?;
        let mut numbers = version.split('.').map(str::parse::<u32>);
        let mut next = || numbers.next()?.ok();
        Some((name, (next()?, next()?, next()?)))
    });
    let Some((name @ ("Firecracker" | "Jailer"), version)) = parsed else {
        let said: String = line
            .chars()
            .filter(|one| !one.is_control())
            .take(60)
            .collect();
        return Err(unusable(
            format!("{said:?} names no version of Firecracker"),
            remedy,
        ));
    };
    let known = BROKEN.iter().find(|one| {
        one.of_jailer == (name == "Jailer") && (one.first..=one.last).contains(&version)
    });
    match known {
        Some(broken) => Err(unusable(
            format!("{line} is not used: {}", broken.why),
            remedy,
        )),
        None => Ok(()),
    }
}

/// The programs of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    pub firecracker: PathBuf,
    pub jailer: PathBuf,
}

impl Programs {
    /// Both, from the first of these directories that has Firecracker.
    pub fn find(places: &[&Path]) -> Result<Self, Unusable> {
        let place = places
            .iter()
            .find(|place| place.join("firecracker").is_file());
        let remedy = "put `firecracker` and `jailer` of one release into /usr/local/bin";
        let Some(place) = place else {
            return Err(unusable("there is no Firecracker", remedy));
        };
        let programs = Self {
            firecracker: place.join("firecracker"),
            jailer: place.join("jailer"),
        };
        match programs.jailer.is_file() {
            true => Ok(programs),
            false => {
                let reason = format!(
                    "there is no jailer beside {}",
                    programs.firecracker.display()
                );
                Err(unusable(reason, remedy))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_a_published_hole_are_refused_by_its_name() {
        for (line, hole) in [
            ("Jailer v1.12.1", "CVE-2026-1386"),
            ("Jailer v1.13.1", "CVE-2026-1386"),
            ("Jailer v1.14.0", "CVE-2026-1386"),
            ("Firecracker v1.13.0", "CVE-2026-5747"),
            ("Firecracker v1.14.3", "CVE-2026-5747"),
            ("Firecracker v1.15.0", "CVE-2026-5747"),
        ] {
            let refused = judge(line).unwrap_err();
            assert!(refused.reason.contains(hole), "{line}: {refused}");
            assert!(refused.remedy.contains("1.14.4"));
        }
        for line in [
            "Jailer v1.13.2",
            "Jailer v1.14.1",
            "Jailer v1.15.1",
            "Firecracker v1.12.1",
            "Firecracker v1.14.4",
            "Firecracker v1.15.1",
            "Firecracker v1.16.0-dev",
        ] {
            judge(line).unwrap();
        }
        for line in [
            "",
            "Firecracker",
            "Firecracker v1",
            "Firecracker v1.x.1",
            "QEMU v9.0.0",
        ] {
            let refused = judge(line).unwrap_err();
            assert!(refused.reason.contains("names no version"), "{refused}");
        }
    }

    #[test]
    fn programs_are_taken_from_one_place() {
        let places = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let paths = [places[0].path(), places[1].path()];
        let missing = Programs::find(&paths).unwrap_err();
        assert!(missing.reason.contains("no Firecracker"));
        std::fs::write(paths[1].join("firecracker"), "").unwrap();
        std::fs::write(paths[0].join("jailer"), "").unwrap();
        let alone = Programs::find(&paths).unwrap_err();
        assert!(alone.reason.contains("no jailer beside"));
        std::fs::write(paths[1].join("jailer"), "").unwrap();
        let found = Programs::find(&paths).unwrap();
        assert_eq!(found.jailer, paths[1].join("jailer"));
    }
}
