//! The agent: the one program inside every sandbox that stays, its protocol,
//! and the host's side of that.
//!
//! The agent is confined like everything else inside, and what it starts
//! inherits that: nobody enters a sandbox from outside, so a second entry
//! cannot be weaker than the first. It is no boundary. A hostile command may
//! take its place, so the host checks every frame ([`host`]) and believes
//! nothing.
//!
//! - [`wire`]: the messages and their frames.
//! - [`buffer`]: bytes of a bounded number on their way in and out.
//! - [`machine`]: what a machine is told first.
//! - [`session`]: what the agent does with messages; pure but for [`system`].
//! - [`system`]: what a session asks of the kernel.
//!
//! All memory is taken when a session is made. Nothing is allocated later, so
//! there is no request that could exhaust it.

#![cfg_attr(not(any(feature = "host", test, fuzzing)), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod buffer;
mod exec;
pub mod files;
#[cfg(feature = "host")]
pub mod host;
pub mod machine;
pub mod session;
pub mod system;
pub mod wire;
