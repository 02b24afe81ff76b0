//! The guard's part of a digest: what policies say, and the built-in list as
//! its text where it counts.

use super::{Canonical, Encoder};
use crate::guard::{self, Entry, Guard, Judged, Kind, Rank, Rule, Strength};

lists!(Entry, Rank);

structs! {
    Entry { rule, removes, rank }
    Rule { kind, strength, judged, pattern, rule }
}

impl Canonical for Guard {
    fn encode(&self, encoder: &mut Encoder) {
        self.said().to_vec().encode(encoder);
        self.built_in_ranks().to_vec().encode(encoder);
        self.built_in_taken_by().cloned().encode(encoder);
        self.refused_by().cloned().encode(encoder);
        if !self.built_in_ranks().is_empty() {
            encoder.bytes(guard::built_in_text().as_bytes());
        }
    }
}

impl Canonical for Kind {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.bytes(self.word().as_bytes());
    }
}

impl Canonical for Strength {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.bytes(self.word().as_bytes());
    }
}

impl Canonical for Judged {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.tag(match self {
            Self::Always => 0,
            Self::GitConfig => 1,
            Self::GitPointer => 2,
        });
    }
}

impl Canonical for Rank {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.tag(match self {
            Self::BuiltIn => 0,
            Self::User => 1,
            Self::Organisation => 2,
            Self::Project => 3,
        });
    }
}
