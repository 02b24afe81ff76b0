//! The strict front: the parsers that every byte from inside meets first.
//!
//! Each is a pure function over bytes, or a small machine that is fed bytes:
//! bounded, linear in its input, and refusing rather than repairing. What
//! the bytes ask for is judged elsewhere, and nothing here opens a socket.

pub mod authority;
pub mod path;
pub mod sniff;
pub mod socks;

/// What a parser makes of the bytes that have arrived so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// All is well so far, and more has to come.
    NeedMore,
    /// The value, and how many bytes it took.
    Done { value: T, consumed: usize },
}
