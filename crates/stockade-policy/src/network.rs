//! The network half of a policy, as pure values: what a destination is, which
//! addresses are never dialled, which rules there are and what they decide.
//!
//! The egress process enforces exactly these values; nothing here opens a
//! socket or reads a clock.

pub mod address;
pub mod destination;
pub mod judge;
pub mod machine;
pub mod pattern;
pub mod rules;
pub mod suffix;
mod trie;

pub use destination::{BadDestination, Destination, Host, Name};
pub use judge::Judge;
pub use rules::NetworkPlan;
