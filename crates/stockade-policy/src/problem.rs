//! Where something in a policy was written, and what is wrong with it.
//!
//! A [`Problem`] is a value: the command line renders it with the source line,
//! and its `Display` is the plain form for logs and tests.

use std::fmt;
use std::ops::Range;

/// Problems that one layer reports at most; a hostile file cannot grow more.
pub const PROBLEMS_MAX: usize = 100;

/// Whether the user has confirmed the content of a project's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trust {
    /// The user confirmed exactly this content; it counts as the user's own.
    Trusted,
    /// The agent may have written it; it can only take away.
    Untrusted,
}

/// Who speaks in a layer, from the ceiling down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LayerKind {
    /// A ceiling that nothing widens; it grants nothing by itself.
    Organisation,
    User,
    Project(Trust),
    CommandLine,
}

/// One source of policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layer {
    pub kind: LayerKind,
    /// For display: a file name such as `stockade.toml`, or `command line`.
    pub name: String,
}

impl Layer {
    pub fn new(kind: LayerKind, name: impl Into<String>) -> Self {
        Self {
            kind,
            name: name.into(),
        }
    }
}

/// A place in the source of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Bytes in the source.
    pub span: Range<usize>,
    /// Counted from 1.
    pub line: u32,
}

/// A value and where it was written; no place when it came from an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located<T> {
    pub value: T,
    pub place: Option<Place>,
    /// The comment that follows on the same line: the user's own reason.
    pub comment: Option<String>,
}

/// One thing that is wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    /// Stable name of the kind of problem, for example `unknown-key`.
    pub id: &'static str,
    pub layer: Layer,
    /// Bytes in the source of `layer`; `None` when the problem has no place.
    pub span: Option<Range<usize>>,
    /// Counted from 1.
    pub line: Option<u32>,
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(formatter, "{}:{line}: ", self.layer.name)?,
            None => write!(formatter, "{}: ", self.layer.name)?,
        }
        formatter.write_str(&self.message)?;
        match &self.help {
            Some(help) => write!(formatter, "\n  help: {help}"),
            None => Ok(()),
        }
    }
}

/// What is wrong with a single value, before its place is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub id: &'static str,
    pub message: String,
    pub help: Option<String>,
}

impl Fault {
    pub(crate) fn new(id: &'static str, message: impl Into<String>) -> Self {
        Self {
            id,
            message: message.into(),
            help: None,
        }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    pub(crate) fn at(self, layer: &Layer, place: Option<&Place>) -> Problem {
        Problem {
            id: self.id,
            layer: layer.clone(),
            span: place.map(|place| place.span.clone()),
            line: place.map(|place| place.line),
            message: self.message,
            help: self.help,
        }
    }
}

/// The candidate that `written` was probably meant to be, if one is close.
pub(crate) fn closest<'a>(
    written: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    const WORD_BYTES_MAX: usize = 40;
    if written.len() > WORD_BYTES_MAX {
        return None;
    }
    let near = written.len().div_ceil(3).min(3);
    candidates
        .into_iter()
        .map(|candidate| {
            (
                distance(written.as_bytes(), candidate.as_bytes()),
                candidate,
            )
        })
        .filter(|(distance, _)| *distance <= near)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Edits between two words, a swap of neighbours counting as one (optimal
/// string alignment).
fn distance(left: &[u8], right: &[u8]) -> usize {
    let mut before = vec![0; right.len() + 1];
    let mut above: Vec<usize> = (0..=right.len()).collect();
    for (row, from) in left.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, to) in right.iter().enumerate() {
            let mut best = (above[column] + usize::from(from != to))
                .min(above[column + 1] + 1)
                .min(current[column] + 1);
            if row > 0 && column > 0 && *from == right[column - 1] && left[row - 1] == *to {
                best = best.min(before[column - 1] + 1);
            }
            current.push(best);
        }
        before = std::mem::replace(&mut above, current);
    }
    above[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closest_forgives_a_slip_but_does_not_guess() {
        let keys = ["filesystem", "network", "limits", "read", "write"];
        assert_eq!(closest("filesytem", keys), Some("filesystem"));
        assert_eq!(closest("raed", keys), Some("read"));
        assert_eq!(closest("x", keys), None);
        assert_eq!(closest("colour", keys), None);
        assert_eq!(closest(&"n".repeat(5000), keys), None);
    }
}
