//! The strict front: the parsers that every byte from inside meets first.
//!
//! Each is a pure function over bytes, or a small machine that is fed bytes:
//! bounded, linear in its input, and refusing rather than repairing. What
//! the bytes ask for is judged elsewhere, and nothing here opens a socket.

pub mod authority;
pub mod gate;
pub mod head;
pub mod hello;
pub mod path;
pub mod sniff;
pub mod socks;

use stockade_policy::network::destination::RawHost;
use stockade_policy::network::{Destination, Name};

/// What a parser makes of the bytes that have arrived so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// All is well so far, and more has to come.
    NeedMore,
    /// The value, and how many bytes it took.
    Done { value: T, consumed: usize },
}

/// A host name, if the bytes are one and not an address. It goes through the
/// one constructor of destinations, so that it means the same everywhere.
pub(crate) fn host_name(text: &[u8]) -> Option<Name> {
    // Any port will do; only the name is kept.
    let destination = Destination::new(RawHost::Text(text), 443).ok()?;
    destination.name().cloned()
}

#[cfg(test)]
mod differential;
