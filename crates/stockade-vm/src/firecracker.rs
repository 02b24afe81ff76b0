//! Machines of Firecracker, behind its jailer.
//!
//! Firecracker is the confined process here: what it says, and what it writes, is
//! the machine's word. It is executed by its jailer, which gives it a root of its
//! own, a user of its own and a control group; we add a pid namespace, and end it
//! with us ([`stockade_sys::guard`]).
//!
//! - [`configuration`]: what a machine has.
//! - [`host`]: where machines are, and how one begins: booted, or restored.
//! - [`machine`]: one that runs.
//! - [`snapshot`]: one that was saved, whole or as a difference.
//! - [`probe`]: whether any of this can be used here.
//!
//! Nothing of the product runs commands in one of these yet: see
//! `docs/firecracker.md`.

mod api;
pub mod configuration;
mod console;
mod groups;
pub mod host;
mod jail;
pub mod machine;
pub mod probe;
pub mod snapshot;

use std::io;
use std::time::Duration;

/// How long a machine may take for one answer. Far more than it needs: it is
/// there so that a hostile one is given up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What failed, and what can be done about it.
#[derive(Debug, thiserror::Error)]
pub enum FirecrackerError {
    #[error("cannot {doing}: {source}")]
    System {
        doing: &'static str,
        source: io::Error,
    },
    /// A call of its API.
    #[error("Firecracker refused to {doing} ({status}): {reason}")]
    Refused {
        doing: &'static str,
        status: u16,
        reason: String,
    },
    /// Firecracker, or the machine, does not keep to its protocol.
    #[error("{who} is not to be believed: {reason}")]
    Violation { who: &'static str, reason: String },
    #[error("the machine has ended; it last said: {said}")]
    Ended { said: String },
    #[error("nothing in the machine takes connections on port {port}")]
    Closed { port: u32 },
    #[error("{who} did not answer in time")]
    Silent { who: &'static str },
    #[error("{0}")]
    Unusable(#[from] probe::Unusable),
    /// A difference has nothing that it could be a difference to.
    #[error("the machine was neither restored nor saved before, so there is nothing to add to")]
    NoBase,
}

pub(crate) fn system(doing: &'static str) -> impl Fn(io::Error) -> FirecrackerError {
    move |source| match source.kind() {
        // What a socket with a deadline says (socket(7)).
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            FirecrackerError::Silent { who: "the machine" }
        }
        _ => FirecrackerError::System { doing, source },
    }
}

/// Text of the machine's, made fit for a terminal: at most 400 characters.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let printable = |one: char| if one.is_control() { ' ' } else { one };
    let start = text.char_indices().rev().nth(399).map_or(0, |(at, _)| at);
    text[start..].chars().map(printable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_says_is_made_fit_for_a_terminal() {
        assert_eq!(shown(b"a\x1b[2Jb\n\xff"), "a [2Jb \u{fffd}");
        assert_eq!(shown("ä".repeat(1000).as_bytes()).chars().count(), 400);
    }
}
