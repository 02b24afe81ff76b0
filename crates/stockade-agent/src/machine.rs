//! What a machine is told before its session begins: one frame, in front of the
//! host's greeting. Whether its kernel has just booted or goes on from a saved
//! state, it is nobody before.

use serde::{Deserialize, Serialize};

use crate::wire::WireError;

/// Length of what makes a machine's random numbers its own.
pub const ENTROPY_BYTES: usize = 32;
/// Largest body of the frame.
pub const BIRTH_BYTES_MAX: usize = 64 * 1024;
/// Most offers.
pub const OFFERS_MAX: usize = 256;

/// What makes a machine this one and no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Birth<'a> {
    /// From the host's kernel, for this machine alone.
    pub entropy: [u8; ENTROPY_BYTES],
    /// What time it is, since 1970.
    pub seconds: i64,
    pub nanoseconds: u32,
    /// Whom commands run as.
    pub uid: u32,
    pub gid: u32,
    pub umask: u32,
    /// What the machine is called (sethostname(2)).
    #[serde(borrow)]
    pub name: &'a [u8],
    /// Directories of the view that become the machine's own memory, each with
    /// a NUL behind it: temporary ones, which nobody outside looks into. The
    /// exported view takes neither sockets nor named pipes.
    #[serde(borrow)]
    pub private: &'a [u8],
    /// The rules of system calls for every command, as seccomp(2) takes them:
    /// `struct sock_filter`, one behind the other. At least one.
    #[serde(borrow)]
    pub filter: &'a [u8],
    pub limits: Limits,
    /// What is offered ([`Offer`]), one behind the other.
    #[serde(borrow)]
    pub offers: &'a [u8],
    /// What the private directories hold together, in bytes and in files.
    pub disk_bytes: u64,
    pub disk_inodes: u64,
}

/// What a machine is offered beside hosts, or offers itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Offer<'a> {
    /// A port of the machine's loopback, which leads to the same one of its gateway.
    Port(u16),
    /// A port of its card, which leads to one of its loopback.
    Published { card_port: u16, port: u16 },
    /// A unix socket at an absolute path of the view, which leads to a port of the
    /// gateway.
    Socket {
        #[serde(borrow)]
        path: &'a [u8],
        port: u16,
    },
}

/// Appends one to what [`offers`] takes.
#[cfg(feature = "host")]
pub fn push_offer(block: &mut std::vec::Vec<u8>, offer: &Offer<'_>) -> Result<(), WireError> {
    let encoded = postcard::to_extend(offer, core::mem::take(block));
    *block = encoded.map_err(|_| WireError::NoRoom)?;
    Ok(())
}

/// The offers of a birth. The last is an error where they are none.
pub fn offers(mut block: &[u8]) -> impl Iterator<Item = Result<Offer<'_>, WireError>> {
    core::iter::from_fn(move || {
        if block.is_empty() {
            return None;
        }
        let taken = postcard::take_from_bytes(block);
        let (offer, rest) = match taken {
            Ok((offer, rest)) => (Ok(offer), rest),
            Err(_) => (Err(WireError::Malformed), &[][..]),
        };
        block = rest;
        Some(offer)
    })
}

/// Length of one instruction of a filter.
pub const INSTRUCTION_BYTES: usize = 8;
/// Most instructions of a filter.
pub const INSTRUCTIONS_MAX: usize = 512;

/// What commands are held to within the machine, besides what it is as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Most processes and threads at one time, the agent's included.
    pub processes: Option<u64>,
    /// Of each process: open files, the size of a file, seconds of processor time.
    pub open_files: Option<u64>,
    pub file_bytes: Option<u64>,
    pub cpu_seconds: Option<u64>,
}

#[cfg(all(test, feature = "host"))]
mod tests {
    use super::*;

    #[test]
    fn offers_come_as_they_were_given_and_others_are_none() {
        let given = [
            Offer::Port(5432),
            Offer::Published {
                card_port: 1,
                port: 3000,
            },
            Offer::Socket {
                path: b"/run/one",
                port: 2,
            },
        ];
        let mut block = std::vec::Vec::new();
        for offer in &given {
            push_offer(&mut block, offer).unwrap();
        }
        let taken: std::vec::Vec<_> = offers(&block).collect();
        assert_eq!(taken, given.map(Ok));
        assert_eq!(offers(&[]).count(), 0);
        // Cut off, and of no kind.
        block.pop();
        assert_eq!(offers(&block).last(), Some(Err(WireError::Malformed)));
        let strange: std::vec::Vec<_> = offers(&[9, 9, 9]).collect();
        assert_eq!(strange, [Err(WireError::Malformed)]);
    }
}
