//! The programs that run inside, as bytes.
//!
//! `stockade` is one file: the agent is part of it, and goes into a sandbox as
//! a sealed memory file that is executed by its descriptor. Empty on systems
//! for which there is no such program.

/// The agent's ELF file, for the architecture of this build.
pub static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stockade-agent"));

/// The tiny machine's (`stockade-guest`), which Firecracker takes for a kernel.
pub static GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stockade-guest"));
