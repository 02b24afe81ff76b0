//! Life cycle of a run: discovery, trust, gate, limits, events.
//!
//! The engine ties policy, walls and launcher together for one run. It knows
//! nothing of HTTP or of how its results are shown.

pub mod discover;
pub mod events;
pub mod hide;
pub mod log;
pub mod probe;
pub mod state;
pub mod streams;
pub mod trust;
