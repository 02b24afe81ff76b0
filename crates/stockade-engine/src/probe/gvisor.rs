//! Whether this machine has a gVisor that can be used.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stockade_policy::facts::Gvisor;
use stockade_policy::path::{AbsolutePath, printable};
use stockade_policy::plan::Runsc;
use stockade_sys::rustix;

/// Where the program is looked for: not in the caller's PATH, which may lead to
/// places that a sandbox can write.
const PLACES: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/usr/sbin"];
/// First release that is used. Those before have no systrap, or an unfinished
/// one, and do not pass descriptors on.
const RELEASE_MIN: u32 = 20_240_101;
/// How it gets there.
const REMEDY: &str = "`apt install -t bookworm-backports runsc`, or put runsc of \
                      https://gvisor.dev/docs/user_guide/install/ into /usr/local/bin";

/// What there is before anybody has looked.
pub fn not_looked_for() -> Gvisor {
    missing("it was not looked for")
}

fn missing(reason: impl Into<String>) -> Gvisor {
    Gvisor::Missing {
        reason: reason.into(),
        remedy: REMEDY.to_owned(),
    }
}

/// Looks for the program, and asks its version.
pub fn found() -> Gvisor {
    let places = PLACES.iter().map(|place| Path::new(place).join("runsc"));
    let Some(program) = places
        .filter_map(|path| std::fs::canonicalize(path).ok())
        .next()
    else {
        return missing(format!("there is no runsc in {}", PLACES.join(", ")));
    };
    if let Err(reason) = is_trusted(&program) {
        return missing(reason);
    }
    match version(&program) {
        Ok(version) => of(&program, version),
        Err(reason) => missing(reason),
    }
}

/// A program that somebody else could change is not what keeps a command in.
pub(super) fn is_trusted(program: &Path) -> Result<(), String> {
    let status = std::fs::metadata(program).map_err(|error| error.to_string())?;
    let caller = rustix::process::geteuid();
    // Where root has no id in the caller's user namespace it is nobody.
    let others = caller.is_root() || status.uid() != caller.as_raw();
    match others && status.mode() & 0o022 == 0 {
        true => Ok(()),
        false => Err(format!(
            "{} is yours, or others may write it",
            program.display()
        )),
    }
}

fn version(program: &PathBuf) -> Result<String, String> {
    let output = Command::new(program)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{} cannot be executed: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let named = text
        .lines()
        .find_map(|line| line.strip_prefix("runsc version "));
    match named {
        Some(version) => Ok(printable(version.trim().as_bytes()).to_string()),
        None => Err(format!("{} does not say its version", program.display())),
    }
}

fn of(program: &Path, version: String) -> Gvisor {
    match (
        release(&version),
        AbsolutePath::parse(program.as_os_str().as_bytes()),
    ) {
        (Some(release), Ok(program)) if release >= RELEASE_MIN => {
            Gvisor::Found(Runsc { program, version })
        }
        _ => missing(format!(
            "runsc {version} ({}) is older than {RELEASE_MIN}, or does not say how old it is",
            program.display()
        )),
    }
}

/// The date in a version: `release-20240729.0`, or Debian's `0.0~20240729.0`.
fn release(version: &str) -> Option<u32> {
    let mut numbers = version.split(|one: char| !one.is_ascii_digit());
    numbers.find(|number| number.len() == 8)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_is_found_in_each_kind_of_version() {
        assert_eq!(release("release-20240729.0"), Some(20_240_729));
        assert_eq!(release("0.0~20240729.0"), Some(20_240_729));
        assert_eq!(release("release-20221219.0-3-gabcdef"), Some(20_221_219));
        assert_eq!(release("VERSION_MISSING"), None);
    }

    #[test]
    fn one_that_is_too_old_is_refused_with_the_remedy() {
        let program = Path::new("/usr/bin/runsc");
        for version in ["0.0~20221219.0", "VERSION_MISSING", ""] {
            let Gvisor::Missing { reason, remedy } = of(program, version.to_owned()) else {
                panic!("{version} is taken");
            };
            assert!(reason.contains("older than 20240101"), "{reason}");
            assert!(remedy.contains("bookworm-backports"));
        }
        assert!(matches!(
            of(program, "0.0~20240729.0".to_owned()),
            Gvisor::Found(_)
        ));
    }
}
