//! Git directories wherever they are: what makes a directory one, and whether
//! it would run something.
//!
//! `.git` is known by its name. A bare repository, or the common directory that
//! a forged pointer leads to, is known by what is in it, and can be put
//! together in any order; so each name that could complete one is looked at.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, fstat, openat, statat};
use stockade_policy::git_config;
use stockade_policy::guard;
use stockade_sys::lease::ReadLease;

use super::place::{Place, open_to_look};
use crate::holds::is_regular;

/// Largest configuration that is judged, in bytes.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// What a name means for the directory it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Makes the directory one of git's, together with others.
    Sign,
    Config,
    Hooks,
}

pub(super) fn part(name: &[u8]) -> Option<Part> {
    let is = |one: &str| name.eq_ignore_ascii_case(one.as_bytes());
    if ["HEAD", "objects", "refs", "commondir"].into_iter().any(is) {
        Some(Part::Sign)
    } else if ["config", "config.worktree"].into_iter().any(is) {
        Some(Part::Config)
    } else if is("hooks") {
        Some(Part::Hooks)
    } else {
        None
    }
}

/// Whether git could take this directory for its own, or for the common part
/// of one, now or once `coming` is there.
pub(super) fn is_git_directory(directory: &OwnedFd, coming: Option<&[u8]>) -> bool {
    let has = |name: &str| {
        coming.is_some_and(|coming| coming.eq_ignore_ascii_case(name.as_bytes()))
            || statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    };
    has("HEAD") || has("commondir") || (has("objects") && has("refs"))
}

/// Whether a name is a hook of the git directory above its directory.
pub(super) fn is_hook(place: &Place) -> bool {
    let mut parts = place.path.rsplit(|&byte| byte == b'/').skip(1);
    let in_hooks = parts
        .next()
        .is_some_and(|above| part(above) == Some(Part::Hooks));
    if !in_hooks || !guard::is_hook_name(&place.name) {
        return false;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // What cannot be looked at is taken for one.
    openat(&place.parent, "..", flags, Mode::empty())
        .map_or(true, |above| is_git_directory(&above, None))
}

/// Why a directory that is about to become git's would run something; `None`
/// when it would not.
pub(super) fn runs_something(directory: &OwnedFd) -> Option<String> {
    for name in ["config", "config.worktree"] {
        if statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_err() {
            continue;
        }
        let Some((lease, text)) = open_to_look(directory, name.as_bytes())
            .ok()
            .and_then(read_settled)
        else {
            return Some(format!("{name} cannot be judged"));
        };
        drop(lease);
        match git_config::executing_keys(&text) {
            Ok(found) if found.is_empty() => {}
            Ok(found) => return Some(format!("{} in {name}", found[0].key)),
            Err(_) => return Some(format!("{name} is malformed")),
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(hooks) = openat(directory, "hooks", flags, Mode::empty()) else {
        // A link would lead to hooks that can be written elsewhere.
        return statat(directory, "hooks", AtFlags::SYMLINK_NOFOLLOW)
            .is_ok()
            .then(|| "hooks is no directory".to_owned());
    };
    let names = Dir::read_from(&hooks).ok()?;
    for entry in names.flatten() {
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") && guard::is_hook_name(name) {
            return Some(format!("the hook {}", String::from_utf8_lossy(name)));
        }
    }
    None
}

/// Why a new configuration must not take the place of the old one by itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Objection {
    /// These keys make git run something.
    Keys(Vec<String>),
    /// It cannot be told.
    Unclear,
}

/// Judges a file that is to become the configuration at `place`. While the
/// lease is kept nobody can change it: nobody has it open for writing, and
/// there is no second name.
pub(super) fn judge_config(
    source: OwnedFd,
    place: &Place,
    directory: &[u8],
) -> Result<ReadLease, Objection> {
    let (lease, new) = read_settled(source).ok_or(Objection::Unclear)?;
    let old = match open_to_look(&place.parent, &place.name) {
        Ok(old) => read_all(&old).ok_or(Objection::Unclear)?,
        Err(_) => Vec::new(),
    };
    match git_config::newly_executing_in(&old, &new, directory) {
        Ok(found) if found.is_empty() => Ok(lease),
        Ok(found) => Err(Objection::Keys(
            found.into_iter().map(|one| one.key).collect(),
        )),
        Err(_) => Err(Objection::Unclear),
    }
}

/// The content of a file that nobody can change meanwhile.
fn read_settled(file: OwnedFd) -> Option<(ReadLease, Vec<u8>)> {
    let stat = fstat(&file).ok()?;
    if !is_regular(&stat) || stat.st_nlink != 1 {
        return None;
    }
    let lease = ReadLease::take(file).ok()?;
    let text = read_all(lease.as_fd())?;
    Some((lease, text))
}

fn read_all(file: impl AsFd) -> Option<Vec<u8>> {
    use std::io::Read;
    let mut text = Vec::new();
    let mut file =
        std::fs::File::from(file.as_fd().try_clone_to_owned().ok()?).take(CONFIG_BYTES_MAX + 1);
    file.read_to_end(&mut text).ok()?;
    (text.len() as u64 <= CONFIG_BYTES_MAX).then_some(text)
}
