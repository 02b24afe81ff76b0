//! Finds many texts at once in a stream, at the speed of memory.
//!
//! What does not fit a SIMD searcher of its own goes into another one: the
//! packed searcher of `aho-corasick` handles up to 64 patterns well, and the
//! automaton's own prefilter is ten times slower on such text.

use aho_corasick::packed;
use aho_corasick::{AhoCorasick, AhoCorasickBuilder, AhoCorasickKind, Input, MatchKind, StartKind};
use zeroize::Zeroizing;

/// Patterns beyond which the packed searcher falls back to a slow one.
const PACKED_PATTERNS_MAX: usize = 64;

/// Texts to look for, none of them empty.
pub struct Patterns {
    texts: Vec<Zeroizing<Vec<u8>>>,
    searchers: Vec<Searcher>,
    bytes_max: usize,
    /// Which bytes a text can begin with.
    first: [bool; 256],
}

enum Searcher {
    Packed(packed::Searcher),
    /// Where the processor has no SIMD instructions for the other.
    Automaton(AhoCorasick),
}

/// A place where a text was found: from, to (not included).
pub type Span = (usize, usize);

impl Patterns {
    /// `Err` when a searcher cannot be built; nothing may then be let through.
    pub fn new(texts: Vec<Zeroizing<Vec<u8>>>) -> Result<Self, String> {
        let texts: Vec<_> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        let mut first = [false; 256];
        for text in &texts {
            first[usize::from(text[0])] = true;
        }
        let searchers = texts
            .chunks(PACKED_PATTERNS_MAX)
            .map(Searcher::new)
            .collect::<Result<_, _>>()?;
        Ok(Self {
            bytes_max: texts.iter().map(|text| text.len()).max().unwrap_or(0),
            texts,
            searchers,
            first,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    pub fn is_in(&self, haystack: &[u8]) -> bool {
        let mut searchers = self.searchers.iter();
        searchers.any(|searcher| searcher.find(haystack, 0).is_some())
    }

    /// Adds where texts begin, overlapping ones too; not sorted.
    pub fn find_all(&self, haystack: &[u8], found: &mut Vec<Span>) {
        for searcher in &self.searchers {
            let mut from = 0;
            while let Some((start, end)) = searcher.find(haystack, from) {
                found.push((start, end));
                from = start + 1;
            }
        }
    }

    /// How many bytes at the end could be the beginning of a text.
    pub fn unfinished(&self, haystack: &[u8]) -> usize {
        let longest = self.bytes_max.saturating_sub(1).min(haystack.len());
        let start = haystack.len() - longest;
        for (offset, byte) in haystack[start..].iter().enumerate() {
            if !self.first[usize::from(*byte)] {
                continue;
            }
            let tail = &haystack[start + offset..];
            let begins =
                |text: &Zeroizing<Vec<u8>>| text.len() > tail.len() && text.starts_with(tail);
            if self.texts.iter().any(begins) {
                return tail.len();
            }
        }
        0
    }
}

impl Searcher {
    fn new(texts: &[Zeroizing<Vec<u8>>]) -> Result<Self, String> {
        let texts = || texts.iter().map(|text| text.as_slice());
        let packed = packed::Config::new()
            .match_kind(packed::MatchKind::LeftmostLongest)
            .only_teddy(true)
            .builder()
            .extend(texts())
            .build();
        if let Some(searcher) = packed {
            return Ok(Self::Packed(searcher));
        }
        AhoCorasickBuilder::new()
            .match_kind(MatchKind::LeftmostLongest)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .start_kind(StartKind::Unanchored)
            .prefilter(false)
            .build(texts())
            .map(Self::Automaton)
            .map_err(|error| format!("cannot search for secrets: {error}"))
    }

    fn find(&self, haystack: &[u8], from: usize) -> Option<Span> {
        let span = aho_corasick::Span {
            start: from,
            end: haystack.len(),
        };
        let found = match self {
            Self::Packed(searcher) => searcher.find_in(haystack, span),
            Self::Automaton(searcher) => searcher.find(Input::new(haystack).span(span)),
        };
        found.map(|found| (found.start(), found.end()))
    }
}

/// Looks for texts in a stream whose pieces end anywhere.
pub struct Scan {
    patterns: std::rc::Rc<Patterns>,
    /// The end of what came, which may be the beginning of a text.
    carried: Zeroizing<Vec<u8>>,
}

impl Scan {
    pub fn new(patterns: std::rc::Rc<Patterns>) -> Self {
        Self {
            patterns,
            carried: Zeroizing::new(Vec::new()),
        }
    }

    /// What follows has nothing to do with what came before.
    pub fn reset(&mut self) {
        self.carried.clear();
    }

    /// Whether a text ends in `piece`.
    pub fn is_found_in(&mut self, piece: &[u8]) -> bool {
        if self.carried.is_empty() {
            let rest = self.patterns.unfinished(piece);
            self.carried.extend_from_slice(&piece[piece.len() - rest..]);
            return self.patterns.is_in(piece);
        }
        self.carried.extend_from_slice(piece);
        let is_found = self.patterns.is_in(&self.carried);
        let rest = self.patterns.unfinished(&self.carried);
        let done = self.carried.len() - rest;
        self.carried.drain(..done);
        is_found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    fn patterns(texts: &[&str]) -> Patterns {
        let texts = texts
            .iter()
            .map(|text| Zeroizing::new(text.as_bytes().to_vec()));
        Patterns::new(texts.collect()).unwrap()
    }

    #[test]
    fn overlapping_texts_are_all_found() {
        let mut found = Vec::new();
        patterns(&["abcdefgh", "efghijkl"]).find_all(b"xabcdefghijkl", &mut found);
        assert_eq!(found, [(1, 9), (5, 13)]);
    }

    #[test]
    fn more_texts_than_one_searcher_takes_are_all_found() {
        let texts: Vec<_> = (0..300).map(|n| format!("secret-{n:04}")).collect();
        let texts: Vec<_> = texts.iter().map(String::as_str).collect();
        let patterns = patterns(&texts);
        for text in &texts {
            assert!(patterns.is_in(format!("..{text}..").as_bytes()), "{text}");
        }
        assert!(!patterns.is_in(b"secret-0300"));
    }

    #[test]
    fn only_what_may_go_on_is_kept() {
        let patterns = patterns(&["abcabd"]);
        assert_eq!(patterns.unfinished(b"xabcab"), 5);
        assert_eq!(patterns.unfinished(b"xabcabd"), 0);
        assert_eq!(patterns.unfinished(b"xabcabc"), 3);
        assert_eq!(patterns.unfinished(b""), 0);
    }

    #[test]
    fn nothing_to_find_finds_nothing() {
        let patterns = patterns(&[]);
        assert!(patterns.is_empty() && !patterns.is_in(b"abc"));
    }

    #[test]
    fn a_text_is_found_over_any_borders() {
        let patterns = Rc::new(patterns(&["abcabd"]));
        for size in 1..8 {
            let mut scan = Scan::new(Rc::clone(&patterns));
            let found = b"--abcabcabd--"
                .chunks(size)
                .any(|piece| scan.is_found_in(piece));
            assert!(found, "pieces of {size}");
        }
    }
}
