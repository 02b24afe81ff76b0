//! Programs that start a kernel of the command's own: where they are, whether
//! they can be relied on, and of which version they are.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stockade_policy::path::printable;
use stockade_sys::rustix;

/// The first of this name in `places`, links resolved, and what its version says
/// behind `prefix`. Not in the caller's PATH, which may lead to places that a
/// sandbox can write. The error is why it cannot be used.
pub(super) fn found(
    name: &str,
    places: &[&str],
    prefix: &str,
) -> Result<(PathBuf, String), String> {
    let candidates = places.iter().map(|place| Path::new(place).join(name));
    let program = candidates
        .filter_map(|path| std::fs::canonicalize(path).ok())
        .next();
    let program = program.ok_or_else(|| format!("there is no {name} in {}", places.join(", ")))?;
    is_trusted(&program)?;
    let version = version(&program, prefix)?;
    Ok((program, version))
}

/// A program that somebody else could change is not what keeps a command in.
fn is_trusted(program: &Path) -> Result<(), String> {
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

fn version(program: &Path, prefix: &str) -> Result<String, String> {
    let output = Command::new(program)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{} cannot be executed: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let named = text.lines().find_map(|line| line.strip_prefix(prefix));
    match named {
        Some(version) => Ok(printable(version.trim().as_bytes()).to_string()),
        None => Err(format!("{} does not say its version", program.display())),
    }
}
