//! The commits of one pack, and which of them contain which.
//!
//! A push says from where to where a reference moves, but not whether the new
//! commit contains the old one. The pack shows it: a commit is named by the
//! hash of its text, and its text names its parents. What the pack does not
//! hold cannot be shown.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::commands::Hash;

/// A commit whose text is longer is not kept, in bytes.
pub const COMMIT_BYTES_MAX: u64 = 1024 * 1024;
/// Texts of all commits of a pack that are kept, in bytes.
pub const HISTORY_BYTES_MAX: usize = 64 * 1024 * 1024;

pub struct History {
    hash: Hash,
    texts: HashMap<u64, Rc<[u8]>>,
    offsets: HashMap<Vec<u8>, u64>,
    bytes: usize,
}

/// What an entry costs beside its text.
const ENTRY_BYTES: usize = 256;

impl History {
    pub fn new(hash: Hash) -> Self {
        Self {
            hash,
            texts: HashMap::new(),
            offsets: HashMap::new(),
            bytes: 0,
        }
    }

    /// Whether a commit begins at this offset of the pack.
    pub fn has_at(&self, offset: u64) -> bool {
        self.texts.contains_key(&offset)
    }

    pub fn has(&self, name: &[u8]) -> bool {
        self.offsets.contains_key(name)
    }

    pub fn offset_of(&self, name: &[u8]) -> Option<u64> {
        self.offsets.get(name).copied()
    }

    /// Keeps a commit, unless there are too many.
    pub fn add(&mut self, offset: u64, text: Vec<u8>) {
        self.bytes += text.len() + ENTRY_BYTES;
        if self.bytes > HISTORY_BYTES_MAX {
            return;
        }
        let header = format!("commit {}\0", text.len());
        let name = match self.hash {
            Hash::Sha1 => digest::<Sha1>(header.as_bytes(), &text),
            Hash::Sha256 => digest::<Sha256>(header.as_bytes(), &text),
        };
        self.offsets.insert(name, offset);
        self.texts.insert(offset, text.into());
    }

    /// Keeps a commit that is stored as what differs from another one.
    pub fn add_delta(&mut self, offset: u64, base: u64, delta: &[u8]) {
        let base = self.texts.get(&base).cloned();
        if let Some(text) = base.and_then(|base| apply(&base, delta)) {
            self.add(offset, text);
        }
    }

    /// Whether the pack shows that `new` contains `old`; both in hexadecimal.
    pub fn contains(&self, new: &str, old: &str) -> bool {
        let (Some(new), Some(old)) = (decode(new), decode(old)) else {
            return false;
        };
        let mut seen = HashSet::new();
        let mut left = vec![new];
        while let Some(name) = left.pop() {
            if name == old {
                return true;
            }
            let Some(text) = self.offset_of(&name).and_then(|at| self.texts.get(&at)) else {
                continue;
            };
            if seen.insert(name) {
                left.extend(parents(text));
            }
        }
        false
    }
}

fn digest<D: Digest>(header: &[u8], text: &[u8]) -> Vec<u8> {
    let mut hasher = D::new();
    hasher.update(header);
    hasher.update(text);
    hasher.finalize().to_vec()
}

/// Names on the `parent` lines, which follow the `tree` line.
fn parents(text: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    text.split(|byte| *byte == b'\n')
        .skip(1)
        .map_while(|line| line.strip_prefix(b"parent "))
        .filter_map(|name| decode(str::from_utf8(name).ok()?))
}

fn decode(hexadecimal: &str) -> Option<Vec<u8>> {
    let pairs = hexadecimal.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                u8::try_from(digit(high)? * 16 + digit(low)?).ok()
            }
            _ => None,
        })
        .collect()
}

/// Applies a delta (gitformat-pack(5), "Deltified representation"); `None`
/// when it is malformed or gives more than a commit may have.
fn apply(base: &[u8], mut delta: &[u8]) -> Option<Vec<u8>> {
    let source = take_size(&mut delta)?;
    let target = take_size(&mut delta)?;
    if source != base.len() as u64 || target > COMMIT_BYTES_MAX {
        return None;
    }
    let mut output = Vec::new();
    while let Some((instruction, rest)) = delta.split_first() {
        delta = rest;
        let part = match instruction {
            0 => return None,
            1..=0x7f => {
                let (literal, rest) = delta.split_at_checked(usize::from(*instruction))?;
                delta = rest;
                literal
            }
            _ => {
                let offset = take_argument(instruction & 0x0f, &mut delta)?;
                let length = match take_argument(instruction >> 4 & 7, &mut delta)? {
                    0 => 0x10000,
                    length => length,
                };
                base.get(offset..offset.checked_add(length)?)?
            }
        };
        output.extend_from_slice(part);
        if output.len() as u64 > target {
            return None;
        }
    }
    (output.len() as u64 == target).then_some(output)
}

fn take_size(delta: &mut &[u8]) -> Option<u64> {
    let mut size: u64 = 0;
    for shift in (0..u64::BITS - 8).step_by(7) {
        let (byte, rest) = delta.split_first()?;
        *delta = rest;
        size |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(size);
        }
    }
    None
}

/// The bytes that `present` has a bit for, the lowest first.
fn take_argument(present: u8, delta: &mut &[u8]) -> Option<usize> {
    let mut argument = 0;
    for bit in 0..4 {
        if present & (1 << bit) != 0 {
            let (byte, rest) = delta.split_first()?;
            *delta = rest;
            argument |= usize::from(*byte) << (8 * bit);
        }
    }
    Some(argument)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps a commit with these parents and returns its name.
    fn add(history: &mut History, offset: u64, parents: &[&str]) -> String {
        let mut text = format!("tree {}\n", "0".repeat(40));
        for parent in parents {
            text.push_str(&format!("parent {parent}\n"));
        }
        text.push_str(&format!("author {offset}\n\nparent {}\n", "f".repeat(40)));
        history.add(offset, text.into_bytes());
        let (name, _) = history
            .offsets
            .iter()
            .find(|(_, at)| **at == offset)
            .unwrap();
        name.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn what_the_pack_shows_is_known_and_nothing_else() {
        let mut history = History::new(Hash::Sha1);
        let old = "a".repeat(40);
        let other = "b".repeat(40);
        let first = add(&mut history, 1, &[&old]);
        let second = add(&mut history, 2, &[&other]);
        let merge = add(&mut history, 3, &[&second, &first]);
        assert!(history.contains(&merge, &old));
        assert!(history.contains(&merge, &first));
        assert!(history.contains(&first, &first));
        assert!(!history.contains(&second, &old));
        // The line in the message is no parent.
        assert!(!history.contains(&merge, &"f".repeat(40)));
        assert!(!history.contains(&old, &first));
    }

    #[test]
    fn a_commit_stored_as_a_delta_counts() {
        let mut history = History::new(Hash::Sha1);
        let old = "c".repeat(40);
        history.add(1, b"tree x\nparent ".to_vec());
        // Copy 14 bytes from 0, then the name of the parent.
        let mut delta = vec![14, 55, 0x90, 14, 41];
        delta.extend_from_slice(old.as_bytes());
        delta.push(b'\n');
        history.add_delta(9, 1, &delta);
        let name = digest::<Sha1>(
            b"commit 55\0",
            &[b"tree x\nparent ", old.as_bytes(), b"\n"].concat(),
        );
        assert_eq!(history.offset_of(&name), Some(9));
        for end in 0..delta.len() {
            assert_eq!(apply(b"tree x\nparent ", &delta[..end]), None);
        }
        assert_eq!(apply(b"short", &delta), None);
    }
}
