//! Finding secrets in what is pushed, with the searcher and in the forms with
//! which responses are searched.
//!
//! This finds accidents and simple copies. A secret that was encrypted or
//! otherwise changed is not found.

use std::rc::Rc;

use crate::credential::{Patterns, SECRET_BYTES_MIN, Scan, forms};

/// A set of secrets to look for, by default none; cheap to clone.
#[derive(Clone, Default)]
pub struct Needles(Vec<Rc<Patterns>>);

/// Why a set of secrets cannot be looked for.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unsearchable(String);

/// Looks through one stream, which comes in pieces.
pub struct Search(Vec<Scan>);

impl Needles {
    /// All forms of these secrets. One that is shorter than
    /// [`SECRET_BYTES_MIN`] is left out: it would be found by chance.
    pub fn new<'a, T>(secrets: impl IntoIterator<Item = &'a T>) -> Result<Self, Unsearchable>
    where
        T: AsRef<[u8]> + ?Sized + 'a,
    {
        let mut all = Vec::new();
        for secret in secrets.into_iter().map(T::as_ref) {
            match str::from_utf8(secret) {
                _ if secret.len() < SECRET_BYTES_MIN => {}
                Ok(text) => all.extend(forms(text)),
                Err(_) => all.push(secret.to_vec().into()),
            }
        }
        let patterns = Patterns::new(all).map_err(Unsearchable)?;
        Ok(Rc::new(patterns).into())
    }

    /// These, and what is to be found besides.
    pub fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// Whether there is a secret in `bytes`, which is all there is.
    pub fn are_in(&self, bytes: &[u8]) -> bool {
        self.0.iter().any(|patterns| patterns.is_in(bytes))
    }

    /// The beginning of a stream.
    pub fn search(&self) -> Search {
        Search(self.0.iter().cloned().map(Scan::new).collect())
    }
}

/// What is to be found is all forms already.
impl From<Rc<Patterns>> for Needles {
    fn from(patterns: Rc<Patterns>) -> Self {
        let found = Some(patterns).filter(|patterns| !patterns.is_empty());
        Self(found.into_iter().collect())
    }
}

/// Shows none of the secrets.
impl std::fmt::Debug for Needles {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Needles")
    }
}

impl Search {
    /// Whether a secret ends in `bytes`, the next piece of the stream.
    pub fn feed(&mut self, bytes: &[u8]) -> bool {
        // Each of them has to see every piece.
        let found = self.0.iter_mut().map(|scan| scan.is_found_in(bytes));
        found.fold(false, |any, one| any | one)
    }

    /// What follows has nothing to do with what came before.
    pub fn reset(&mut self) {
        self.0.iter_mut().for_each(Scan::reset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_found_across_borders_and_short_ones_are_not() {
        let needles = Needles::new(["long secret", "short"]).unwrap();
        let mut search = needles.search();
        assert!(!search.feed(b"a long se"));
        assert!(search.feed(b"cret"));
        let mut search = needles.search();
        assert!(!search.feed(b"a long se"));
        search.reset();
        assert!(!search.feed(b"cret"));
        assert!(needles.are_in(b"bG9uZyBzZWNyZXQ=") && !needles.are_in(b"short"));
        assert!(!Needles::default().search().feed(b"anything"));
    }
}
