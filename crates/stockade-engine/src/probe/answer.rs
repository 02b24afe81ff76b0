//! Answers that took their time to find, kept in the state directory.
//!
//! Only "yes" is kept: what was missing may have been added since. It holds for
//! one start of one kernel, one user, and what else the question depends on.
//! A kept answer is no promise; the run itself shows evidence, or refuses.

use std::io::{Read, Write};

use rustix::fs::OFlags;
use sha2::{Digest, Sha256};
use stockade_policy::facts::Ability;
use stockade_sys::rustix;

use crate::state::{StateDirectory, StateError};

/// Longest kept answer, in bytes.
const BYTES_MAX: u64 = 1024;

/// The answer that is kept under `name`, or that of `tried`, which is kept.
/// `depends_on` is what else than machine and user an answer holds for.
pub(super) fn kept(
    state: &StateDirectory,
    name: &str,
    depends_on: &[u8],
    tried: impl FnOnce() -> Ability,
) -> Result<Ability, StateError> {
    let key = key(depends_on);
    if is_known(state, name, &key)? {
        return Ok(Ability::Yes);
    }
    let ability = tried();
    if ability == Ability::Yes {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let mut file = state.open_file(name, flags)?;
        // A write that is cut short leaves no valid key: it is tried again then.
        let _short = file.write_all(key.as_bytes()).is_err();
    }
    Ok(ability)
}

fn key(depends_on: &[u8]) -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let uname = rustix::system::uname();
    let digest: String = Sha256::digest(depends_on)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!(
        "{} {} {} {digest}",
        boot.trim(),
        uname.release().to_string_lossy(),
        rustix::process::geteuid().as_raw(),
    )
}

fn is_known(state: &StateDirectory, name: &str, key: &str) -> Result<bool, StateError> {
    let Some(file) = state.open_existing(name, OFlags::RDONLY)? else {
        return Ok(false);
    };
    let mut text = String::new();
    let read = file.take(BYTES_MAX).read_to_string(&mut text);
    Ok(read.is_ok() && text == key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stockade_policy::path::AbsolutePath;

    #[test]
    fn only_yes_is_kept_and_only_for_what_it_depends_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("state");
        let path = AbsolutePath::parse(path.to_str().unwrap()).unwrap();
        let state = StateDirectory::open_at(&path).unwrap();
        let ask = |depends_on: &[u8], answer: &Ability| {
            let mut asked = false;
            let tried = || {
                asked = true;
                answer.clone()
            };
            let given = kept(&state, "answer", depends_on, tried).unwrap();
            (given, asked)
        };
        let no = Ability::No {
            reason: String::new(),
            remedy: String::new(),
        };
        assert_eq!(ask(b"this", &no), (no.clone(), true));
        assert_eq!(ask(b"this", &Ability::Yes), (Ability::Yes, true));
        assert_eq!(ask(b"this", &no), (Ability::Yes, false));
        assert_eq!(ask(b"that", &no), (no.clone(), true));
        std::fs::write(path.as_path().join("answer"), b"x").unwrap();
        assert_eq!(ask(b"this", &no), (no.clone(), true));
    }
}
