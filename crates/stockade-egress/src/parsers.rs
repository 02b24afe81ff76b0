//! The root of another crate: the parsers alone, for fuzz/.
//!
//! The egress crate also holds TLS, HTTP, SSH and a resolver, which take many
//! minutes to build for fuzzing and are not fuzzed. The parsers use none of
//! it, so fuzz/Cargo.toml names this file as a library of its own.

pub mod front;
pub mod names;
