//! Whether this machine has a gVisor that can be used.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use stockade_policy::facts::Gvisor;
use stockade_policy::path::AbsolutePath;
use stockade_policy::plan::Runsc;

use super::program;
use crate::state::StateDirectory;

/// Where the program is looked for.
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

/// Looks for the program, and asks its version where `state` holds none.
pub fn found(state: Option<&StateDirectory>) -> Gvisor {
    match program::found("runsc", &PLACES, "runsc version ", state) {
        Ok((program, version)) => of(&program, version),
        Err(reason) => missing(reason),
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
