//! Isolation back ends of Stockade.
//!
//! A wall takes a compiled plan and makes a sandbox that waits at the gate:
//! everything is set up and evidenced, nothing has been executed. Whoever
//! asked checks the evidence and lets the command go, or drops the sandbox,
//! which kills it. Walls see plans only; they know nothing of policies.

pub mod agent;
pub mod control_group;
pub mod egress;
pub mod guest;
mod lower;
pub mod oci;
pub mod process;
pub mod seatbelt;

pub use stockade_launch::wire::{End, Evidence, Limit, Report, Request, Stream, Usage};

use std::io;

/// Why a sandbox could not be set up. Nothing was executed.
#[derive(Debug, thiserror::Error)]
pub enum WallError {
    /// A step of the plan did not take effect.
    #[error("step {index} ({name}) failed: {detail}")]
    Step {
        index: usize,
        name: String,
        detail: String,
        errno: i32,
    },
    /// The launcher ended without a report.
    #[error("the launcher ended before it reached the gate")]
    LauncherGone,
    /// The launcher said something that it may not say here.
    #[error("the launcher broke the protocol: {0}")]
    Protocol(String),
    #[error("{what}: {error}")]
    System {
        what: &'static str,
        error: io::Error,
    },
}

impl WallError {
    /// Names the call that failed.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::System { what, error }
    }
}
