//! Installed OCI runtimes that can make a container, and their versions that
//! are known to let a container out.

use crate::plan::RuntimeKind;

/// What is known of the versions before one that repaired something.
struct Repaired {
    /// Major and minor number of the series in which it was repaired.
    series: (u64, u64),
    by: Version,
    advisories: &'static str,
}

/// GHSA-xr7r-f8xq-vfvv.
const LEAKED_DIRECTORY: &str = "CVE-2024-21626";
/// GHSA-9493-h29p-rfm2, GHSA-qw9x-cqr3-wc7r, GHSA-cgrx-mc8f-2prm.
const REDIRECTED_WRITES: &str = "CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881";
/// GHSA-wr4f-w546-m398.
const INHERITED_CAPABILITIES: &str = "CVE-2022-27650";

/// The oldest repair of each kind first. A version is measured against the entry
/// of its own series; one of an older series than all of them is broken, one of
/// a newer series is not.
const RUNC: &[Repaired] = &[
    repaired((1, 1), release(1, 1, 12), LEAKED_DIRECTORY),
    repaired((1, 2), release(1, 2, 8), REDIRECTED_WRITES),
    repaired((1, 3), release(1, 3, 3), REDIRECTED_WRITES),
    repaired((1, 4), candidate(1, 4, 0, 3), REDIRECTED_WRITES),
];
const CRUN: &[Repaired] = &[repaired((1, 4), release(1, 4, 4), INHERITED_CAPABILITIES)];

/// A version as its numbers; a release candidate comes before its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    numbers: (u64, u64, u64),
    /// `u64::MAX` for a release.
    candidate: u64,
}

const fn release(major: u64, minor: u64, patch: u64) -> Version {
    candidate(major, minor, patch, u64::MAX)
}

const fn candidate(major: u64, minor: u64, patch: u64, candidate: u64) -> Version {
    Version {
        numbers: (major, minor, patch),
        candidate,
    }
}

const fn repaired(series: (u64, u64), by: Version, advisories: &'static str) -> Repaired {
    Repaired {
        series,
        by,
        advisories,
    }
}

impl Version {
    /// `1.3.3`, `1.2`, `1.4.0-rc.2`, `1.1.5+ds1-1+deb12u1`.
    fn parse(text: &str) -> Option<Self> {
        let plain = text.split('+').next()?;
        let (numbers, rest) = plain.split_once('-').unwrap_or((plain, ""));
        let mut numbers = numbers.split('.').map(|number| number.parse().ok());
        let (major, minor) = (numbers.next()??, numbers.next()??);
        let patch = numbers.next().unwrap_or(Some(0))?;
        let candidate = match rest.strip_prefix("rc") {
            Some(number) => number.trim_start_matches('.').parse().ok()?,
            None => u64::MAX,
        };
        Some(Self {
            numbers: (major, minor, patch),
            candidate,
        })
    }

    fn series(self) -> (u64, u64) {
        (self.numbers.0, self.numbers.1)
    }
}

/// Why a version must not be used; `None` where nothing is known against it.
///
/// Distributions repair older versions without changing their number, which
/// nothing in the number shows: those are refused as well, and a user who knows
/// accepts one by name.
pub fn known_broken(kind: RuntimeKind, version: &str) -> Option<String> {
    let table = match kind {
        RuntimeKind::Runc => RUNC,
        RuntimeKind::Crun => CRUN,
    };
    let Some(version) = Version::parse(version) else {
        return Some("does not say its version in numbers".to_owned());
    };
    let newest = table.iter().rfind(|one| one.series <= version.series());
    let own = newest.filter(|one| one.series == version.series());
    match (newest, own) {
        // Of a series that began after all repairs.
        (Some(last), None) if table.last().is_some_and(|end| end.series == last.series) => None,
        (_, Some(repaired)) if version >= repaired.by => {
            // A series that ended before a later repair never got it.
            let later = table.iter().find(|one| {
                one.series > repaired.series && one.advisories != repaired.advisories
            })?;
            Some(of(later))
        }
        (_, Some(repaired)) => Some(of(repaired)),
        (_, None) => table.first().map(of),
    }
}

fn of(repaired: &Repaired) -> String {
    let (major, minor, patch) = repaired.by.numbers;
    let candidate = match repaired.by.candidate {
        u64::MAX => String::new(),
        number => format!("-rc.{number}"),
    };
    format!(
        "lets a container out ({}; repaired in {major}.{minor}.{patch}{candidate})",
        repaired.advisories
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_against_a_version_is_said_with_its_number() {
        let broken = |kind, version| known_broken(kind, version).unwrap_or_default();
        for (version, advisory) in [
            ("1.0.0-rc93", LEAKED_DIRECTORY),
            ("1.0.3", LEAKED_DIRECTORY),
            ("1.1.5+ds1-1+deb12u1", LEAKED_DIRECTORY),
            ("1.1.11", LEAKED_DIRECTORY),
            ("1.1.12", REDIRECTED_WRITES),
            ("1.1.15", REDIRECTED_WRITES),
            ("1.2.0-rc.1", REDIRECTED_WRITES),
            ("1.2.7", REDIRECTED_WRITES),
            ("1.3.0", REDIRECTED_WRITES),
            ("1.3.2+dev", REDIRECTED_WRITES),
            ("1.4.0-rc.2", REDIRECTED_WRITES),
        ] {
            let said = broken(RuntimeKind::Runc, version);
            assert!(said.contains(advisory), "{version}: {said}");
        }
        for version in [
            "1.2.8",
            "1.2.9",
            "1.3.3",
            "1.4.0-rc.3",
            "1.4.0",
            "1.5.1",
            "2.0.0",
        ] {
            assert_eq!(broken(RuntimeKind::Runc, version), "", "{version}");
        }
        for version in ["0.19", "1.3", "1.4.3"] {
            let said = broken(RuntimeKind::Crun, version);
            assert!(said.contains(INHERITED_CAPABILITIES), "{version}: {said}");
        }
        for version in ["1.4.4", "1.8.1", "1.21"] {
            assert_eq!(broken(RuntimeKind::Crun, version), "", "{version}");
        }
        for version in ["", "unknown", "1", "one.two"] {
            assert!(
                known_broken(RuntimeKind::Runc, version).is_some(),
                "{version}"
            );
        }
    }
}
