//! Absolute paths as bytes: the only form in which a path enters a plan.
//!
//! A path on Linux is any bytes but NUL; turning it into a string would lose
//! names that are not UTF-8, so nothing here does.

use std::borrow::Borrow;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Longest path that the kernel takes, its terminating NUL included
/// (`PATH_MAX`, limits.h).
pub const PATH_BYTES_MAX: usize = 4096;

/// An absolute path without `.`, `..`, empty components or NUL.
///
/// The form is lexical: nothing is looked up, so no link can steer it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct AbsolutePath(Vec<u8>);

/// Why bytes are not an [`AbsolutePath`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("the path is empty")]
    Empty,
    #[error("the path is not absolute")]
    Relative,
    #[error("the path contains a NUL byte")]
    Nul,
    #[error("the path contains `..`")]
    Parent,
    #[error("the path is longer than {PATH_BYTES_MAX} bytes")]
    TooLong,
}

impl TryFrom<Vec<u8>> for AbsolutePath {
    type Error = PathError;

    fn try_from(bytes: Vec<u8>) -> Result<Self, PathError> {
        Self::parse(bytes)
    }
}

impl From<AbsolutePath> for Vec<u8> {
    fn from(path: AbsolutePath) -> Self {
        path.0
    }
}

impl AbsolutePath {
    /// The root directory.
    pub fn root() -> Self {
        Self(b"/".to_vec())
    }

    /// Takes an absolute path; `.` and repeated slashes are removed, `..` is
    /// refused because what it means depends on links.
    pub fn parse(bytes: impl AsRef<[u8]>) -> Result<Self, PathError> {
        let bytes = bytes.as_ref();
        match bytes.first() {
            None => return Err(PathError::Empty),
            Some(b'/') => {}
            Some(_) => return Err(PathError::Relative),
        }
        Self::root().join(bytes)
    }

    /// Appends a relative path (leading slashes are ignored) under the same
    /// rules as [`AbsolutePath::parse`].
    pub fn join(&self, relative: impl AsRef<[u8]>) -> Result<Self, PathError> {
        let mut joined = self.0.clone();
        for component in relative.as_ref().split(|&byte| byte == b'/') {
            match component {
                b"" | b"." => continue,
                b".." => return Err(PathError::Parent),
                _ if component.contains(&0) => return Err(PathError::Nul),
                _ => {
                    if joined.last() != Some(&b'/') {
                        joined.push(b'/');
                    }
                    joined.extend_from_slice(component);
                }
            }
        }
        if joined.len() >= PATH_BYTES_MAX {
            return Err(PathError::TooLong);
        }
        Ok(Self(joined))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    pub fn is_root(&self) -> bool {
        self.0 == b"/"
    }

    /// The components from the root down.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0
            .split(|&byte| byte == b'/')
            .filter(|component| !component.is_empty())
    }

    /// The directory that holds this path; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        let cut = self.0.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        Some(Self(self.0[..cut.max(1)].to_vec()))
    }

    /// The bytes of every directory above this path, nearest first, the root
    /// last; nothing for the root itself. Borrowed, so that looking up what
    /// covers a path allocates nothing.
    pub fn ancestors(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = (!self.is_root()).then_some(&self.0[..]);
        std::iter::from_fn(move || {
            let path = rest?;
            let cut = path.iter().rposition(|&byte| byte == b'/')?;
            rest = (cut > 0).then(|| &path[..cut]);
            Some(&path[..cut.max(1)])
        })
    }

    /// The last component; `None` for the root.
    pub fn file_name(&self) -> Option<&[u8]> {
        self.components().last()
    }

    /// Where a link at this path with these bytes leads when no further link
    /// is on the way; `None` when that is no path. Purely lexical.
    pub fn link_target(&self, target: &[u8]) -> Option<Self> {
        let mut place = match target.first()? {
            b'/' => Self::root(),
            _ => self.parent()?,
        };
        for component in target.split(|&byte| byte == b'/') {
            place = match component {
                b".." => place.parent().unwrap_or_else(Self::root),
                _ => place.join(component).ok()?,
            };
        }
        Some(place)
    }

    /// Whether this path is `base` or lies below it.
    pub fn is_within(&self, base: &Self) -> bool {
        base.is_root()
            || self.0 == base.0
            || (self.0.starts_with(&base.0) && self.0.get(base.0.len()) == Some(&b'/'))
    }

    /// The part below `base`, without a leading slash; empty for `base`
    /// itself, `None` when the path lies elsewhere.
    pub fn relative_to(&self, base: &Self) -> Option<&[u8]> {
        if !self.is_within(base) {
            return None;
        }
        let tail = &self.0[base.0.len()..];
        Some(tail.strip_prefix(b"/").unwrap_or(tail))
    }
}

/// Compares and hashes as the bytes do, so maps keyed by a path can be searched
/// by a borrowed part of another path.
impl Borrow<[u8]> for AbsolutePath {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

/// Text for people and JSON: bytes that are not printable UTF-8 appear as
/// `\xNN`, so that a name can never forge a line of output.
pub fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control()
                || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
            {
                text.extend(character.escape_default());
            } else {
                text.push(character);
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

impl fmt::Display for AbsolutePath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&printable(&self.0))
    }
}

impl fmt::Debug for AbsolutePath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", printable(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_normalises_without_looking_anything_up() {
        let path = AbsolutePath::parse("//a/./b//c/").unwrap();
        assert_eq!(path.as_bytes(), b"/a/b/c");
        assert_eq!(path.parent().unwrap().as_bytes(), b"/a/b");
        assert_eq!(AbsolutePath::parse("/").unwrap(), AbsolutePath::root());
        assert_eq!(
            AbsolutePath::parse("/a").unwrap().parent(),
            Some(AbsolutePath::root())
        );
    }

    #[test]
    fn parse_refuses_what_depends_on_links_or_cannot_be_a_path() {
        for (bytes, error) in [
            (&b""[..], PathError::Empty),
            (b"a", PathError::Relative),
            (b"/a/../b", PathError::Parent),
            (b"/a\0b", PathError::Nul),
        ] {
            assert_eq!(AbsolutePath::parse(bytes), Err(error));
        }
        assert_eq!(
            AbsolutePath::parse(format!("/{}", "x".repeat(5000))),
            Err(PathError::TooLong)
        );
    }

    #[test]
    fn within_is_by_component_not_by_prefix() {
        let base = AbsolutePath::parse("/home/u").unwrap();
        assert!(AbsolutePath::parse("/home/u/x").unwrap().is_within(&base));
        assert!(!AbsolutePath::parse("/home/user").unwrap().is_within(&base));
        assert_eq!(
            AbsolutePath::parse("/home/u/x/y")
                .unwrap()
                .relative_to(&base),
            Some(&b"x/y"[..])
        );
    }

    #[test]
    fn ancestors_go_up_to_the_root() {
        let path = AbsolutePath::parse("/a/b/c").unwrap();
        let found: Vec<&[u8]> = path.ancestors().collect();
        assert_eq!(found, [&b"/a/b"[..], b"/a", b"/"]);
        assert_eq!(AbsolutePath::root().ancestors().count(), 0);
    }

    #[test]
    fn a_link_target_is_taken_from_the_directory_of_the_link() {
        let link = AbsolutePath::parse("/dev/ptmx").unwrap();
        let lands = |target: &[u8]| link.link_target(target).map(|path| path.to_string());
        assert_eq!(lands(b"pts/ptmx").as_deref(), Some("/dev/pts/ptmx"));
        assert_eq!(lands(b"../a/./b").as_deref(), Some("/a/b"));
        assert_eq!(lands(b"../../../c").as_deref(), Some("/c"));
        assert_eq!(lands(b"/proc").as_deref(), Some("/proc"));
        assert_eq!(lands(b""), None);
    }

    #[test]
    fn printable_escapes_what_could_forge_output() {
        assert_eq!(printable(b"a\nb\xff\x1b[31m"), "a\\nb\\xff\\u{1b}[31m");
    }
}
