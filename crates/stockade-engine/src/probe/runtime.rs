//! Whether this machine has the OCI runtime that a policy names.

use std::os::unix::ffi::OsStrExt;

use stockade_policy::facts::RuntimeFacts;
use stockade_policy::path::AbsolutePath;
use stockade_policy::plan::{Runtime, RuntimeKind};

use super::program;
use crate::state::StateDirectory;

/// Where the program is looked for.
const PLACES: [&str; 4] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];

/// What there is before anybody has looked.
pub fn not_looked_for() -> RuntimeFacts {
    RuntimeFacts::Missing {
        reason: "it was not looked for".to_owned(),
        remedy: String::new(),
    }
}

/// Looks for the program, and asks its version where `state` holds none.
pub fn found(kind: RuntimeKind, state: Option<&StateDirectory>) -> RuntimeFacts {
    found_in(kind, &PLACES, state)
}

fn found_in(kind: RuntimeKind, places: &[&str], state: Option<&StateDirectory>) -> RuntimeFacts {
    let name = kind.word();
    match look(kind, places, state) {
        Ok(runtime) => RuntimeFacts::Found(runtime),
        Err(reason) => RuntimeFacts::Missing {
            reason,
            remedy: format!("`apt install {name}`, or remove container.runtime"),
        },
    }
}

fn look(
    kind: RuntimeKind,
    places: &[&str],
    state: Option<&StateDirectory>,
) -> Result<Runtime, String> {
    let prefix = format!("{} version ", kind.word());
    let (program, said) = program::found_with_text(kind.word(), places, state)?;
    let absolute = AbsolutePath::parse(program.as_os_str().as_bytes());
    Ok(Runtime {
        kind,
        program: absolute.map_err(|error| error.to_string())?,
        version: version(&said, &prefix)
            .ok_or_else(|| format!("{} does not say its version", program.display()))?,
    })
}

/// `1.1.5+ds1`; or with what a distribution made of it, `1.1.5+ds1-1+deb12u1`,
/// which Debian says as the commit.
fn version(said: &str, prefix: &str) -> Option<String> {
    let line = |prefix: &str| said.lines().find_map(|line| line.strip_prefix(prefix));
    let version = line(prefix)?.trim();
    let commit = line("commit: ").map(str::trim).unwrap_or_default();
    let longer = commit
        .strip_prefix(version)
        .is_some_and(|rest| !rest.is_empty());
    Some(if longer { commit } else { version }.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_version_is_that_of_the_distribution_where_it_says_one() {
        let version = |said| version(said, "runc version ").unwrap_or_default();
        assert_eq!(
            version("runc version 1.3.3\ncommit: v1.3.3-0-gd842d771\n"),
            "1.3.3"
        );
        let debian = "runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\nspec: 1.0.2-dev\n";
        assert_eq!(version(debian), "1.1.5+ds1-1+deb12u1");
        assert_eq!(version("runc version 1.4.0\ncommit: 1.4.0\n"), "1.4.0");
        assert_eq!(version("something else\n"), "");
    }

    #[test]
    fn a_program_that_others_may_write_or_that_says_nothing_is_not_used() {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("runc");
        let places = [place.path().to_str().unwrap()];
        let reason = || match found_in(RuntimeKind::Runc, &places, None) {
            RuntimeFacts::Missing { reason, .. } => reason,
            RuntimeFacts::Found(runtime) => runtime.version,
        };
        assert!(reason().contains("there is no runc"));
        std::fs::write(&program, "#!/bin/sh\necho runc version 1.1.11\n").unwrap();
        let may = |mode| {
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        may(0o777);
        assert!(reason().contains("others may write it"), "{}", reason());
        may(0o755);
        // What another test forks has it open for writing, until it executes.
        while reason().contains("busy") {
            std::thread::yield_now();
        }
        // Only what belongs to somebody else is relied on.
        let own = match stockade_sys::rustix::process::geteuid().is_root() {
            true => "1.1.11",
            false => "is yours",
        };
        assert!(reason().contains(own), "{}", reason());
    }
}
