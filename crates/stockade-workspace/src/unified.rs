//! The difference between two versions of a file, as text.

use std::io::{self, Read};
use std::time::Duration;

use similar::{Algorithm, TextDiff};

use crate::change::{Change, ChangeKind};
use crate::stack::Stack;
use crate::tree::{Entry, FileKind};

/// Largest file that is compared line by line; a larger one differs by size.
pub const TEXT_BYTES_MAX: u64 = 2 * 1024 * 1024;
/// How long lines are compared before the answer is given more coarsely: a
/// hostile file can be made to take very long.
const TIME_MAX: Duration = Duration::from_millis(500);
/// How much of a file is looked at for a NUL byte, as git does.
const BINARY_BYTES: usize = 8000;
const CONTEXT_LINES: usize = 3;

/// How two versions of a file differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// A unified diff with its two header lines. The bytes are those of the
    /// files: whoever shows them on a terminal must escape them.
    Text(Vec<u8>),
    /// Bytes that are no text, or too many: only the sizes say something.
    Binary {
        before: Option<u64>,
        after: Option<u64>,
    },
    /// The content is the same.
    None,
}

/// Compares the content of a path without (`below`) and with (`whole`) the
/// layers.
pub fn difference(change: &Change, whole: &Stack, below: &Stack) -> io::Result<Difference> {
    let kept = matches!(
        change.kind,
        ChangeKind::Modified | ChangeKind::Renamed { .. }
    );
    if kept && !change.aspects.content {
        return Ok(Difference::None);
    }
    let old_path = match &change.kind {
        ChangeKind::Renamed { from } => from,
        _ => &change.path,
    };
    let old = side(below, old_path, change.before.as_ref())?;
    let new = side(whole, &change.path, change.after.as_ref())?;
    let (old, new) = match (old, new) {
        (Side::Nothing, Side::Nothing) => return Ok(Difference::None),
        (Side::Binary(before), other) => return Ok(binary(Some(before), other.size())),
        (other, Side::Binary(after)) => return Ok(binary(other.size(), Some(after))),
        (old, new) => (old.text(), new.text()),
    };
    if old == new {
        return Ok(Difference::None);
    }
    let mut text = Vec::new();
    TextDiff::configure()
        .algorithm(Algorithm::Myers)
        .timeout(TIME_MAX)
        .diff_lines(&old[..], &new[..])
        .unified_diff()
        .context_radius(CONTEXT_LINES)
        .header("before", "after")
        .to_writer(&mut text)?;
    // The names are bytes, so they cannot go through the header above.
    let body = text
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .nth(1)
        .map_or(0, |(end, _)| end + 1);
    let name = |there: bool, side: &[u8], path: &[u8]| match there {
        true => [side, path].concat(),
        false => b"/dev/null".to_vec(),
    };
    let mut all = [
        b"--- ",
        &name(change.before.is_some(), b"a/", old_path)[..],
        b"\n+++ ",
        &name(change.after.is_some(), b"b/", &change.path)[..],
        b"\n",
    ]
    .concat();
    all.extend_from_slice(&text[body..]);
    Ok(Difference::Text(all))
}

enum Side {
    Nothing,
    Text(Vec<u8>),
    Binary(u64),
}

impl Side {
    fn size(&self) -> Option<u64> {
        match self {
            Self::Nothing => None,
            Self::Text(text) => Some(text.len() as u64),
            Self::Binary(size) => Some(*size),
        }
    }

    fn text(self) -> Vec<u8> {
        match self {
            Self::Text(text) => text,
            Self::Nothing | Self::Binary(_) => Vec::new(),
        }
    }
}

fn binary(before: Option<u64>, after: Option<u64>) -> Difference {
    Difference::Binary { before, after }
}

fn side(stack: &Stack, path: &[u8], entry: Option<&Entry>) -> io::Result<Side> {
    let Some(entry) = entry else {
        return Ok(Side::Nothing);
    };
    match entry.kind {
        FileKind::File if entry.size > TEXT_BYTES_MAX => Ok(Side::Binary(entry.size)),
        FileKind::File => {
            let mut content = Vec::new();
            let file = match stack.open(path) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Ok(Side::Binary(entry.size));
                }
                other => other?,
            };
            // The tree may grow while it is read.
            file.take(TEXT_BYTES_MAX).read_to_end(&mut content)?;
            match content[..content.len().min(BINARY_BYTES)].contains(&0) {
                true => Ok(Side::Binary(entry.size)),
                false => Ok(Side::Text(content)),
            }
        }
        FileKind::Symlink => Ok(Side::Text(entry.target.clone().unwrap_or_default())),
        _ => Ok(Side::Nothing),
    }
}
