//! Where `stockade secret` keeps secrets: the system keyring, or a private file
//! of the state directory where there is none.

use std::io::{self, Read, Write};
use std::time::SystemTime;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use stockade_egress::secret::SecretText;
use zeroize::Zeroizing;

use super::keyring::Keyring;
use super::{SECRET_BYTES_MAX, SecretError};
use crate::events::time_text;
use crate::state::{LockKind, StateDirectory, StateError, system};

const FILE: &str = "secrets.json";
const REPLACEMENT: &str = "secrets.json.new";
const LOCK: &str = "secrets.lock";
const VERSION: u32 = 1;

/// Most secrets in the file.
const ENTRIES_MAX: usize = 256;
/// Twice what they can take, because of JSON's escapes.
const FILE_BYTES_MAX: u64 = (ENTRIES_MAX * (SECRET_BYTES_MAX + 1024) * 2) as u64;

/// Longest name.
pub const NAME_BYTES_MAX: usize = 64;

/// Where a secret is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Keyring,
    /// Mode 0600; not encrypted.
    File,
}

/// What may be said of a stored secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub name: String,
    pub place: Place,
    /// UTC in RFC 3339, where it is known.
    pub stored: Option<String>,
}

pub struct Store {
    state: StateDirectory,
}

impl Store {
    pub fn open(state: StateDirectory) -> Self {
        Self { state }
    }

    /// Stores a secret in place of what had its name, and says where.
    pub fn set(
        &self,
        name: &str,
        value: &SecretText,
        now: SystemTime,
    ) -> Result<Place, SecretError> {
        check_name(name)?;
        let length = value.reveal().len();
        if length == 0 || length > SECRET_BYTES_MAX {
            return Err(SecretError::Store {
                reason: format!("a secret has 1 to {SECRET_BYTES_MAX} bytes, this one {length}"),
                remedy: "give another value".to_owned(),
            });
        }
        if let Some(mut keyring) = open_keyring()? {
            keyring.set(name, value).map_err(trouble)?;
            // What was kept in the file before must not stay there.
            self.change(|entries| entries.retain(|entry| entry.name != name))?;
            return Ok(Place::Keyring);
        }
        self.change(|entries| {
            entries.retain(|entry| entry.name != name);
            entries.push(Stored {
                name: name.to_owned(),
                value: value.clone(),
                stored: time_text(now),
            });
        })?;
        Ok(Place::File)
    }

    /// From the keyring, else from the file.
    pub fn get(&self, name: &str) -> Result<Option<SecretText>, SecretError> {
        check_name(name)?;
        if let Some(mut keyring) = open_keyring()? {
            let value = keyring.get(name).map_err(trouble)?;
            if value.is_some() {
                return Ok(value);
            }
        }
        let stored = self.load()?.into_iter().find(|entry| entry.name == name);
        Ok(stored.map(|entry| entry.value))
    }

    /// All names, sorted. One that is in both places is there twice; the
    /// keyring's counts.
    pub fn list(&self) -> Result<Vec<Entry>, SecretError> {
        let mut entries = Vec::new();
        if let Some(mut keyring) = open_keyring()? {
            let found = keyring.list().map_err(trouble)?;
            entries.extend(found.into_iter().map(|(name, time)| Entry {
                name,
                place: Place::Keyring,
                stored: time.map(time_text),
            }));
        }
        entries.extend(self.load()?.into_iter().map(|entry| Entry {
            name: entry.name,
            place: Place::File,
            stored: Some(entry.stored),
        }));
        entries.sort();
        Ok(entries)
    }

    /// From wherever it is; whether it was there.
    pub fn remove(&self, name: &str) -> Result<bool, SecretError> {
        check_name(name)?;
        let mut was_there = false;
        if let Some(mut keyring) = open_keyring()? {
            was_there = keyring.remove(name).map_err(trouble)?;
        }
        self.change(|entries| {
            let before = entries.len();
            entries.retain(|entry| entry.name != name);
            was_there |= entries.len() < before;
        })?;
        Ok(was_there)
    }

    /// The path of the file, for messages.
    pub fn file(&self) -> String {
        self.state.path_of(FILE).to_string()
    }

    fn load(&self) -> Result<Vec<Stored>, SecretError> {
        let Some(file) = self.state.open_existing(FILE, OFlags::RDONLY)? else {
            return Ok(Vec::new());
        };
        let path = self.state.path_of(FILE);
        let damaged = |reason: &str| SecretError::Store {
            reason: format!("{path} cannot be understood: {reason}"),
            remedy: "remove it and store the secrets again with `stockade secret set`".to_owned(),
        };
        let mut bytes = Zeroizing::new(Vec::new());
        file.take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| system("read", &path, error))?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(damaged("it is larger than stockade lets it grow"));
        }
        // The parser's own message could quote a secret.
        let content: Content =
            serde_json::from_slice(&bytes).map_err(|_| damaged("it is not what was written"))?;
        if content.version != VERSION {
            return Err(damaged("it is of another version"));
        }
        Ok(content.secrets)
    }

    /// Changes the file under its lock; nothing is written when nothing
    /// changed, so that the file is only there when it is needed.
    fn change(&self, change: impl FnOnce(&mut Vec<Stored>)) -> Result<(), SecretError> {
        let _lock = self.state.lock(LOCK, LockKind::Exclusive)?;
        let mut entries = self.load()?;
        let before = entries.clone();
        change(&mut entries);
        if entries == before {
            return Ok(());
        }
        if entries.len() > ENTRIES_MAX {
            return Err(SecretError::Store {
                reason: format!("it holds {ENTRIES_MAX} secrets already"),
                remedy: "take some out with `stockade secret remove`".to_owned(),
            });
        }
        self.replace(entries).map_err(SecretError::State)
    }

    /// Writes the new file beside the old one and renames it.
    fn replace(&self, secrets: Vec<Stored>) -> Result<(), StateError> {
        let path = self.state.path_of(FILE);
        let content = Content {
            version: VERSION,
            secrets,
        };
        let bytes = serde_json::to_vec_pretty(&content)
            .map_err(|error| system("encode", &path, io::Error::from(error)))?;
        let bytes = Zeroizing::new(bytes);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let mut file = self.state.open_file(REPLACEMENT, flags)?;
        file.write_all(&bytes)
            .and_then(|()| file.sync_all())
            .map_err(|error| system("write", &self.state.path_of(REPLACEMENT), error))?;
        rustix::fs::renameat(&self.state, REPLACEMENT, &self.state, FILE)
            .map_err(|errno| system("replace", &path, errno))
    }
}

/// The stored form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    secrets: Vec<Stored>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    name: String,
    value: SecretText,
    stored: String,
}

/// Letters, digits, `.`, `_` and `-`: safe in every message and policy.
fn check_name(name: &str) -> Result<(), SecretError> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_good) {
        return Ok(());
    }
    Err(SecretError::Store {
        reason: "this is no name for a secret".to_owned(),
        remedy: format!(
            "use 1 to {NAME_BYTES_MAX} letters, digits, `.`, `_` and `-`, for example `github`"
        ),
    })
}

fn open_keyring() -> Result<Option<Keyring>, SecretError> {
    Keyring::open().map_err(trouble)
}

fn trouble(reason: String) -> SecretError {
    SecretError::Store {
        reason,
        remedy: "unlock the keyring in your session; to do without it, unset \
                 DBUS_SESSION_BUS_ADDRESS and XDG_RUNTIME_DIR"
            .to_owned(),
    }
}
