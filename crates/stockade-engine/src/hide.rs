//! Finds what a policy's `hide` patterns match, without following a link.
//!
//! One walk over the granted trees serves all patterns; without patterns there
//! is no walk. A matched directory is covered as a whole and not entered.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use globset::{Candidate, GlobBuilder, GlobSet, GlobSetBuilder};
use rustix::fs::{Dir, FileType, Mode, OFlags, openat};
use stockade_policy::facts::HiddenMatch;
use stockade_policy::path::AbsolutePath;
use stockade_policy::policy::Policy;
use stockade_sys::rustix;

/// Most matches that are covered: each is a mount, and the kernel allows
/// 100,000 in a namespace (fs.mount-max, proc_sys_fs(5)).
pub const MATCHES_MAX: usize = 50_000;
/// Deepest directory that is entered; the kernel's longest path allows 2048.
const DEPTH_MAX: usize = 2048;

/// Why the matches could not be found. A walk that was cut short would leave
/// files readable, so there is no partial answer.
#[derive(Debug, thiserror::Error)]
pub enum HideError {
    #[error("the hide pattern `{pattern}` is malformed: {error}")]
    Pattern {
        pattern: String,
        error: globset::Error,
    },
    #[error("cannot look for hidden files in {path}: {error}")]
    Walk {
        path: AbsolutePath,
        error: io::Error,
    },
    #[error(
        "the hide patterns match more than {MATCHES_MAX} files\n  remedy: hide a directory as a \
         whole, for example `secrets/` instead of `secrets/**`"
    )]
    TooMany,
}

/// Every existing path below `roots` that a pattern matches.
pub fn matches(policy: &Policy, roots: &[AbsolutePath]) -> Result<Vec<HiddenMatch>, HideError> {
    if policy.hide.is_empty() {
        return Ok(Vec::new());
    }
    let mut builder = GlobSetBuilder::new();
    for hide in &policy.hide {
        let pattern = anchored(&hide.pattern);
        let glob = GlobBuilder::new(&pattern)
            .literal_separator(true)
            .backslash_escape(true)
            .build()
            .map_err(|error| HideError::Pattern {
                pattern: hide.pattern.clone(),
                error,
            })?;
        builder.add(glob);
    }
    let set = builder.build().map_err(|error| HideError::Pattern {
        pattern: "all together".into(),
        error,
    })?;
    let mut walk = Walk {
        set,
        found: Vec::new(),
        relative: Vec::new(),
    };
    for root in roots {
        walk.root(root)?;
    }
    Ok(walk.found)
}

/// As in gitignore: a pattern without a slash matches at any depth, one with a
/// slash is relative to the granted tree; a trailing slash is dropped.
fn anchored(pattern: &str) -> String {
    let pattern = pattern.trim_end_matches('/');
    match pattern.strip_prefix('/') {
        Some(rest) => rest.to_owned(),
        None if pattern.contains('/') => pattern.to_owned(),
        None => format!("**/{pattern}"),
    }
}

struct Walk {
    set: GlobSet,
    found: Vec<HiddenMatch>,
    /// Path below the root that is being walked.
    relative: Vec<u8>,
}

impl Walk {
    fn root(&mut self, root: &AbsolutePath) -> Result<(), HideError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let failed = |error: rustix::io::Errno| HideError::Walk {
            path: root.clone(),
            error: error.into(),
        };
        match openat(rustix::fs::CWD, root.as_bytes(), flags, Mode::empty()) {
            Ok(directory) => self.directory(root, directory.as_fd(), 0),
            // A single granted file has nothing below it.
            Err(rustix::io::Errno::NOTDIR) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    fn directory(
        &mut self,
        root: &AbsolutePath,
        directory: BorrowedFd<'_>,
        depth: usize,
    ) -> Result<(), HideError> {
        let failed = |error: rustix::io::Errno| HideError::Walk {
            path: root.clone(),
            error: error.into(),
        };
        if depth > DEPTH_MAX {
            return Err(failed(rustix::io::Errno::LOOP));
        }
        let entries = Dir::read_from(directory).map_err(failed)?;
        let base = self.relative.len();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            if base != 0 {
                self.relative.push(b'/');
            }
            self.relative.extend_from_slice(name);
            let kind = entry.file_type();
            let is_directory = kind == FileType::Directory;
            if !self.matched(root, kind)? && is_directory {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                match openat(directory, entry.file_name(), flags, Mode::empty()) {
                    Ok(below) => self.directory(root, below.as_fd(), depth + 1)?,
                    // Gone, or unreadable: then it is so inside as well.
                    Err(rustix::io::Errno::NOENT | rustix::io::Errno::ACCESS) => {}
                    Err(error) => return Err(failed(error)),
                }
            }
            self.relative.truncate(base);
        }
        Ok(())
    }

    fn matched(&mut self, root: &AbsolutePath, kind: FileType) -> Result<bool, HideError> {
        let path = std::path::Path::new(std::ffi::OsStr::from_bytes(&self.relative));
        let candidate = Candidate::new(path);
        let Some(&pattern) = self.set.matches_candidate(&candidate).first() else {
            return Ok(false);
        };
        if self.found.len() >= MATCHES_MAX {
            return Err(HideError::TooMany);
        }
        let path = root.join(&self.relative).map_err(|_| HideError::Walk {
            path: root.clone(),
            error: io::ErrorKind::InvalidFilename.into(),
        })?;
        let hidden = match kind {
            FileType::Symlink => covered_by_link(&path),
            FileType::Directory => Some((path, true)),
            _ => Some((path, false)),
        };
        let hidden = hidden.map(|(path, directory)| HiddenMatch::new(path, directory, pattern));
        self.found.extend(hidden);
        Ok(true)
    }
}

/// A link cannot be covered; what it leads to can. `None` when it leads
/// nowhere. What lies outside the grants is absent anyway.
fn covered_by_link(link: &AbsolutePath) -> Option<(AbsolutePath, bool)> {
    let target = std::fs::canonicalize(link.as_path()).ok()?;
    let directory = target.is_dir();
    AbsolutePath::parse(target.as_os_str().as_bytes())
        .ok()
        .map(|path| (path, directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_matching_link_leads_to_is_hidden() {
        let scratch = tempfile::tempdir().unwrap();
        let base = std::fs::canonicalize(scratch.path()).unwrap();
        let root = AbsolutePath::parse(base.as_os_str().as_bytes()).unwrap();
        std::fs::write(base.join("real"), "secret").unwrap();
        std::os::unix::fs::symlink("real", base.join(".env")).unwrap();
        std::os::unix::fs::symlink("gone", base.join("other.env")).unwrap();
        let set = GlobSetBuilder::new()
            .add(GlobBuilder::new("**/*.env").build().unwrap())
            .add(GlobBuilder::new("**/.env").build().unwrap())
            .build()
            .unwrap();
        let mut walk = Walk {
            set,
            found: Vec::new(),
            relative: Vec::new(),
        };
        walk.root(&root).unwrap();
        let hidden: Vec<_> = walk.found.iter().map(|found| found.path.clone()).collect();
        assert_eq!(hidden, [root.join("real").unwrap()]);
    }

    #[test]
    fn patterns_without_a_slash_match_at_any_depth() {
        assert_eq!(anchored(".env"), "**/.env");
        assert_eq!(anchored("/secrets/"), "secrets");
        assert_eq!(anchored("a/*.key"), "a/*.key");
        assert_eq!(anchored("**/*.key"), "**/*.key");
    }
}
