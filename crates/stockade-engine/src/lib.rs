//! Life cycle of a run: discovery, trust, gate, limits, events.
//!
//! The engine ties policy, walls and launcher together for one run. It knows
//! nothing of HTTP or of how its results are shown.

mod beside;
pub mod caches;
pub mod committed;
pub mod control;
pub mod denials;
pub mod discover;
pub mod doctor;
pub mod events;
pub mod gc;
pub mod git;
pub mod hide;
mod image;
pub mod layers;
pub mod load;
pub mod log;
mod machines;
pub mod names;
pub mod notice;
pub mod outcome;
pub mod policy_text;
pub mod probe;
mod regular;
pub mod run;
pub mod sandboxes;
pub mod secrets;
pub mod sockets;
pub mod state;
pub mod streams;
pub mod supervise;
pub mod terminal;
pub mod trust;
pub mod way_out;
pub mod worktree;
