//! The program `stockade-agent` as bytes.
//!
//! `stockade` is one file: the agent is part of it, and goes into a sandbox as
//! a sealed memory file that is executed by its descriptor. Empty on systems
//! for which there is no agent.

/// The ELF file, for the architecture of this build.
pub static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stockade-agent"));
