//! Answers that took their time to find, kept in the state directory.
//!
//! Each is kept with a key that says what it holds for, and counts for nothing
//! else. A kept answer is no promise: the run itself shows evidence, or refuses.

use std::io::{Read, Write};

use rustix::fs::OFlags;
use sha2::{Digest, Sha256};
use stockade_policy::facts::Ability;
use stockade_sys::rustix;

use crate::state::{StateDirectory, StateError};

/// Longest answer that is kept, with its key, in bytes.
const BYTES_MAX: u64 = 4096;
/// Shows that an answer was written to its end.
const END: &str = ".\n";

/// Whether something works: kept under `name`, or that of `tried`, of which only
/// "yes" is kept, because what was missing may have been added since. It holds for
/// one start of one kernel, one user, and for what `depends_on` says.
pub(super) fn ability(
    state: &StateDirectory,
    name: &str,
    depends_on: &[u8],
    tried: impl FnOnce() -> Ability,
) -> Result<Ability, StateError> {
    let key = of_this_start(depends_on);
    if kept(state, name, &key)?.is_some() {
        return Ok(Ability::Yes);
    }
    let ability = tried();
    if ability == Ability::Yes {
        keep(state, name, &key, "yes")?;
    }
    Ok(ability)
}

/// A key for what holds for one start of one kernel, one user, and this.
pub(super) fn of_this_start(depends_on: &[u8]) -> String {
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

/// What is kept under `name`, if it is for this key. The key is one line.
pub(super) fn kept(
    state: &StateDirectory,
    name: &str,
    key: &str,
) -> Result<Option<String>, StateError> {
    let Some(file) = state.open_existing(name, OFlags::RDONLY)? else {
        return Ok(None);
    };
    let mut text = String::new();
    let read = file.take(BYTES_MAX).read_to_string(&mut text);
    let answer = read.ok().and_then(|_| {
        let rest = text.strip_prefix(key)?.strip_prefix('\n')?;
        Some(rest.strip_suffix(END)?.to_owned())
    });
    Ok(answer)
}

/// Keeps an answer in place of the one before. One that is cut short counts for
/// nothing, and is found again.
pub(super) fn keep(
    state: &StateDirectory,
    name: &str,
    key: &str,
    answer: &str,
) -> Result<(), StateError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let mut file = state.open_file(name, flags)?;
    let _short = file
        .write_all(format!("{key}\n{answer}{END}").as_bytes())
        .is_err();
    Ok(())
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
            let given = ability(&state, "answer", depends_on, tried).unwrap();
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
        // What was not written to its end counts for nothing.
        let file = path.as_path().join("answer");
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(ask(b"this", &no), (no.clone(), true));
    }
}
