//! Programs that start a kernel or a container of the command's own: where they
//! are, whether they can be relied on, and of which version they are.
//!
//! To ask a large program for its version takes a tenth of what starting a
//! sandbox with it takes. So what it said is kept in the state directory, for as
//! long as it is the same file, by everything that changes with a file.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stockade_policy::path::printable;
use stockade_sys::rustix;

use super::answer;
use crate::state::StateDirectory;

/// The first of this name in `places`, links resolved, and what its version says
/// behind `prefix`. Not in the caller's PATH, which may lead to places that a
/// sandbox can write. The error is why it cannot be used.
pub(super) fn found(
    name: &str,
    places: &[&str],
    prefix: &str,
    state: Option<&StateDirectory>,
) -> Result<(PathBuf, String), String> {
    let (program, text) = found_with_text(name, places, state)?;
    let named = text.lines().find_map(|line| line.strip_prefix(prefix));
    let version = named.ok_or_else(|| format!("{} does not say its version", program.display()))?;
    Ok((program, version.trim().to_owned()))
}

/// As [`found`], with all that it says of its version, as text that can be shown.
/// What it said before is in `state`; `None` asks it again.
pub(super) fn found_with_text(
    name: &str,
    places: &[&str],
    state: Option<&StateDirectory>,
) -> Result<(PathBuf, String), String> {
    let candidates = places.iter().map(|place| Path::new(place).join(name));
    let program = candidates
        .filter_map(|path| std::fs::canonicalize(path).ok())
        .next();
    let program = program.ok_or_else(|| format!("there is no {name} in {}", places.join(", ")))?;
    let status = std::fs::metadata(&program).map_err(|error| error.to_string())?;
    is_trusted(&program, &status)?;
    let (key, place) = (key(&program, &status), format!("version-{name}"));
    let kept = state.and_then(|state| answer::kept(state, &place, &key).ok()?);
    let text = match kept {
        Some(text) => text,
        None => {
            let text = version_text(&program)?;
            // Without it the program is asked once more.
            let _kept = state.is_none_or(|state| answer::keep(state, &place, &key, &text).is_ok());
            text
        }
    };
    Ok((program, text))
}

/// Which file this is, as long as nobody changes it; empty for one that cannot
/// be looked at.
pub(super) fn identity(program: &Path) -> String {
    let status = std::fs::metadata(program);
    status.map_or_else(|_| String::new(), |status| key(program, &status))
}

/// What tells a file from every other, and from itself before a change: no
/// program can set the time of change (ctime).
fn key(program: &Path, status: &Metadata) -> String {
    let times = [
        status.mtime(),
        status.mtime_nsec(),
        status.ctime(),
        status.ctime_nsec(),
    ];
    format!(
        "{} {} {} {} {times:?}",
        printable(program.as_os_str().as_encoded_bytes()),
        status.dev(),
        status.ino(),
        status.size()
    )
}

/// A program that somebody else could change is not what keeps a command in.
fn is_trusted(program: &Path, status: &Metadata) -> Result<(), String> {
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

fn version_text(program: &Path) -> Result<String, String> {
    let output = Command::new(program)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{} cannot be executed: {error}", program.display()))?;
    let lines = output.stdout.split(|&byte| byte == b'\n');
    let lines = lines.map(|line| printable(line) + "\n");
    Ok(lines.collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use stockade_policy::path::AbsolutePath;

    use super::*;

    #[test]
    fn a_program_is_asked_again_once_it_is_another_file() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let place = root.join("state");
        let place = AbsolutePath::parse(place.to_str().unwrap()).unwrap();
        let state = StateDirectory::open_at(&place).unwrap();
        let program = root.join("tool");
        let status = |text: &str| {
            std::fs::write(&program, text).unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
            std::fs::metadata(&program).unwrap()
        };
        let one = key(&program, &status("one"));
        let kept = |key: &str| answer::kept(&state, "version-tool", key).unwrap();
        assert_eq!(kept(&one), None);
        answer::keep(&state, "version-tool", &one, "tool 1\n").unwrap();
        assert_eq!(kept(&one).unwrap(), "tool 1\n");
        let other = key(&program, &status("other"));
        assert_eq!(kept(&other), None);
    }
}
