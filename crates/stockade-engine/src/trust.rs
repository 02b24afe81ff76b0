//! Which project policy files a person has trusted, by path and content.
//!
//! A project's own file can be written by the command that it is to confine,
//! so by itself it only takes away. Trusting it records the SHA-256 of its
//! content; any change makes it untrusted again. The store is one small JSON
//! file in the state directory, replaced whole by a rename, so that a reader
//! sees either the old or the new one. Logging the act is left to the caller,
//! who does it first.

use std::fs::File;
use std::io::{self, Read, Write};
use std::time::SystemTime;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use stockade_policy::path::AbsolutePath;

use crate::events::{Hash, time_text};
use crate::state::{LockKind, StateDirectory, StateError, system};

/// Most files that can be trusted at a time.
pub const ENTRIES_MAX: usize = 4096;

const STORE: &str = "trust.json";
const REPLACEMENT: &str = "trust.json.new";
const LOCK: &str = "trust.lock";
const VERSION: u32 = 1;

/// A full store with the longest paths, each byte written as two digits.
const STORE_BYTES_MAX: u64 = ENTRIES_MAX as u64 * 9000;

/// Whether the content of a file is what a person trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    Trusted,
    /// The path was trusted with another content, of which this is the hash.
    Changed {
        was: Hash,
    },
    Unknown,
}

/// One trusted file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedFile {
    pub path: AbsolutePath,
    pub sha256: Hash,
    /// When it was trusted, UTC in RFC 3339.
    pub time: String,
}

/// Why the store cannot be read or written. Nothing is trusted then.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(
        "the trust store {path} cannot be understood: {reason}\n  remedy: remove it and trust the \
         projects again with `stockade trust`"
    )]
    Damaged { path: String, reason: String },
    #[error(
        "{ENTRIES_MAX} files are trusted already\n  remedy: take some out with `stockade untrust`"
    )]
    Full,
}

/// Whether `content`, just read from `path`, is trusted.
///
/// Pass the bytes that will be parsed; reading the file again would let it
/// change in between.
pub fn is_trusted(
    state: &StateDirectory,
    path: &AbsolutePath,
    content: &[u8],
) -> Result<Trust, TrustError> {
    let sha256 = Hash::of(content);
    let entry = list(state)?.into_iter().find(|entry| entry.path == *path);
    Ok(match entry {
        Some(entry) if entry.sha256 == sha256 => Trust::Trusted,
        Some(entry) => Trust::Changed { was: entry.sha256 },
        None => Trust::Unknown,
    })
}

/// Trusts `content` at `path` in place of what was trusted there.
pub fn trust(
    state: &StateDirectory,
    path: &AbsolutePath,
    content: &[u8],
    now: SystemTime,
) -> Result<Hash, TrustError> {
    let _lock = state.lock(LOCK, LockKind::Exclusive)?;
    let mut entries = list(state)?;
    entries.retain(|entry| entry.path != *path);
    if entries.len() >= ENTRIES_MAX {
        return Err(TrustError::Full);
    }
    let sha256 = Hash::of(content);
    entries.push(TrustedFile {
        path: path.clone(),
        sha256,
        time: time_text(now),
    });
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    replace(state, &entries)?;
    Ok(sha256)
}

/// Takes the trust in `path` back; returns the hash that was trusted.
pub fn untrust(state: &StateDirectory, path: &AbsolutePath) -> Result<Option<Hash>, TrustError> {
    let _lock = state.lock(LOCK, LockKind::Exclusive)?;
    let mut entries = list(state)?;
    let Some(index) = entries.iter().position(|entry| entry.path == *path) else {
        return Ok(None);
    };
    let removed = entries.remove(index);
    replace(state, &entries)?;
    Ok(Some(removed.sha256))
}

/// All trusted files, sorted by path.
pub fn list(state: &StateDirectory) -> Result<Vec<TrustedFile>, TrustError> {
    let Some(file) = state.open_existing(STORE, OFlags::RDONLY)? else {
        return Ok(Vec::new());
    };
    let path = state.path_of(STORE);
    let damaged = |reason: String| TrustError::Damaged {
        path: path.to_string(),
        reason,
    };
    let mut bytes = Vec::new();
    file.take(STORE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| system("read", &path, error))?;
    if bytes.len() as u64 > STORE_BYTES_MAX {
        return Err(damaged(
            "it is larger than stockade lets it grow".to_owned(),
        ));
    }
    let store: Store =
        serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    if store.version != VERSION {
        return Err(damaged(format!(
            "its version is {}, not {VERSION}",
            store.version
        )));
    }
    store
        .trusted
        .into_iter()
        .map(|entry| {
            let path = entry
                .path
                .into_path()
                .ok_or_else(|| damaged("an entry's path is not an absolute path".to_owned()))?;
            Ok(TrustedFile {
                path,
                sha256: entry.sha256,
                time: entry.time,
            })
        })
        .collect()
}

/// Writes the new store beside the old one and renames it. The caller holds
/// the lock. Unlike the log this calls fsync(2): it is rare, and an empty
/// store after a power failure would refuse every run.
fn replace(state: &StateDirectory, entries: &[TrustedFile]) -> Result<(), TrustError> {
    let trusted = entries
        .iter()
        .map(|entry| StoredFile {
            path: StoredPath::new(&entry.path),
            sha256: entry.sha256,
            time: entry.time.clone(),
        })
        .collect();
    let path = state.path_of(STORE);
    let mut bytes = serde_json::to_vec_pretty(&Store {
        version: VERSION,
        trusted,
    })
    .map_err(|error| system("encode", &path, io::Error::from(error)))?;
    bytes.push(b'\n');
    let mut file: File =
        state.open_file(REPLACEMENT, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
    file.write_all(&bytes)
        .and_then(|()| file.sync_all())
        .map_err(|error| system("write", &state.path_of(REPLACEMENT), error))?;
    rustix::fs::renameat(state, REPLACEMENT, state, STORE)
        .map_err(|errno| system("replace", &path, errno))?;
    Ok(())
}

/// The stored form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Store {
    version: u32,
    trusted: Vec<StoredFile>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredFile {
    path: StoredPath,
    sha256: Hash,
    time: String,
}

/// A path as text when it is UTF-8, else as hexadecimal digits, so that no two
/// paths share a spelling.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StoredPath {
    Text(String),
    Bytes { hexadecimal: String },
}

impl StoredPath {
    fn new(path: &AbsolutePath) -> Self {
        match std::str::from_utf8(path.as_bytes()) {
            Ok(text) => StoredPath::Text(text.to_owned()),
            Err(_) => StoredPath::Bytes {
                hexadecimal: path
                    .as_bytes()
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect(),
            },
        }
    }

    fn into_path(self) -> Option<AbsolutePath> {
        let bytes = match self {
            StoredPath::Text(text) => text.into_bytes(),
            StoredPath::Bytes { hexadecimal } => hexadecimal
                .as_bytes()
                .chunks(2)
                .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
                .collect::<Option<_>>()?,
        };
        AbsolutePath::parse(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::thread;

    use super::*;

    fn fixture() -> (tempfile::TempDir, StateDirectory) {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("stockade");
        let path = AbsolutePath::parse(path.as_os_str().as_bytes()).unwrap();
        let state = StateDirectory::open_at(&path).unwrap();
        (scratch, state)
    }

    fn path(bytes: &[u8]) -> AbsolutePath {
        AbsolutePath::parse(bytes).unwrap()
    }

    #[test]
    fn trust_is_in_a_path_and_its_content() {
        let (_scratch, state) = fixture();
        let (one, other) = (path(b"/p/stockade.toml"), path(b"/p/\xff\n/stockade.toml"));
        assert_eq!(is_trusted(&state, &one, b"a").unwrap(), Trust::Unknown);
        let was = trust(&state, &one, b"a", SystemTime::UNIX_EPOCH).unwrap();
        trust(&state, &other, b"b", SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(is_trusted(&state, &one, b"a").unwrap(), Trust::Trusted);
        assert_eq!(is_trusted(&state, &other, b"b").unwrap(), Trust::Trusted);
        assert_eq!(
            is_trusted(&state, &one, b"b").unwrap(),
            Trust::Changed { was }
        );
        assert_eq!(
            is_trusted(&state, &path(b"/q/stockade.toml"), b"a").unwrap(),
            Trust::Unknown
        );
        trust(&state, &one, b"b", SystemTime::UNIX_EPOCH).unwrap();
        assert!(matches!(
            is_trusted(&state, &one, b"a").unwrap(),
            Trust::Changed { .. }
        ));
        assert_eq!(list(&state).unwrap().len(), 2);
        assert_eq!(untrust(&state, &one).unwrap(), Some(Hash::of(b"b")));
        assert_eq!(untrust(&state, &one).unwrap(), None);
        assert_eq!(is_trusted(&state, &one, b"b").unwrap(), Trust::Unknown);
    }

    #[test]
    fn concurrent_changes_lose_nothing() {
        let (_scratch, state) = fixture();
        thread::scope(|scope| {
            for number in 0..8 {
                let state = &state;
                scope.spawn(move || {
                    let path = path(format!("/p{number}").as_bytes());
                    trust(state, &path, b"a", SystemTime::UNIX_EPOCH).unwrap();
                });
            }
        });
        assert_eq!(list(&state).unwrap().len(), 8);
    }

    #[test]
    fn a_damaged_or_planted_store_trusts_nothing() {
        let (scratch, state) = fixture();
        let one = path(b"/p/stockade.toml");
        trust(&state, &one, b"a", SystemTime::UNIX_EPOCH).unwrap();
        let store = scratch.path().join("stockade/trust.json");
        let good = fs::read_to_string(&store).unwrap();
        for bad in [
            "",
            "{",
            &good.replace("\"version\": 1", "\"version\": 2"),
            &good.replace("/p/", "p/"),
            &good.replace("\"time\"", "\"tame\""),
        ] {
            fs::write(&store, bad).unwrap();
            assert!(matches!(
                is_trusted(&state, &one, b"a"),
                Err(TrustError::Damaged { .. })
            ));
        }
        fs::rename(&store, scratch.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(scratch.path().join("elsewhere"), &store).unwrap();
        assert!(matches!(
            is_trusted(&state, &one, b"a"),
            Err(TrustError::State(_))
        ));
    }
}
