//! What a machine and its host tell each other over vsock before anything else.
//!
//! A machine that was restored from a snapshot is a copy: of its random numbers,
//! of its identity, of its clock. So a machine answers nobody until it was told
//! its [`Generation`], which no other machine is ever told, and it falls silent
//! again when the device says that every connection was cut
//! (`VIRTIO_VSOCK_EVENT_TRANSPORT_RESET`), which a snapshot has in it.
//!
//! The program of this crate is the smallest machine that does so. It is for
//! seeing that a hypervisor works, not for running commands: it has no memory
//! protection, no file and no process.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

/// Where the machine takes generations: one a connection, which the machine ends
/// after its answer.
pub const GENERATION_PORT: u32 = 1024;
/// Where the tiny machine tells what it has: one byte is one question
/// ([`ASK`], [`END`]), and its answer is a [`Facts`].
pub const FACTS_PORT: u32 = 1025;
/// Where the tiny machine sends back what it gets.
pub const ECHO_PORT: u32 = 7;
/// Asks for [`Facts`].
pub const ASK: u8 = b'?';
/// Ends the machine, without an answer.
pub const END: u8 = b'.';

/// What begins a message with a generation, and its answer; the number is the
/// version of both.
const MAGIC: [u8; 8] = *b"stkgen01";
/// Bytes of an encoded [`Generation`].
pub const GENERATION_BYTES: usize = 8 + 16 + 32 + 6 + 2 + 8;
/// Bytes of the answer to one.
pub const ANSWER_BYTES: usize = 8 + 16;
/// Bytes of encoded [`Facts`].
pub const FACTS_BYTES: usize = 8 + 8 + 16 + 16 + 6 + 2 + 8;

/// What one start of a machine has and no other: never told twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    pub identity: [u8; 16],
    /// For the machine's random numbers.
    pub entropy: [u8; 32],
    /// Its network card's address from now on.
    pub mac: [u8; 6],
    /// Now, in milliseconds since 1970.
    pub clock_ms: u64,
}

impl Generation {
    pub fn encode(&self) -> [u8; GENERATION_BYTES] {
        let mut bytes = [0; GENERATION_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.identity);
        bytes[24..56].copy_from_slice(&self.entropy);
        bytes[56..62].copy_from_slice(&self.mac);
        bytes[64..].copy_from_slice(&self.clock_ms.to_le_bytes());
        bytes
    }

    /// `None` for anything else.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; GENERATION_BYTES] = bytes.try_into().ok()?;
        if bytes[..8] != MAGIC || bytes[62..64] != [0; 2] {
            return None;
        }
        Some(Self {
            identity: bytes[8..24].try_into().ok()?,
            entropy: bytes[24..56].try_into().ok()?,
            mac: bytes[56..62].try_into().ok()?,
            clock_ms: u64::from_le_bytes(bytes[64..].try_into().ok()?),
        })
    }

    /// What a machine says when this is its generation.
    pub fn answer(&self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..].copy_from_slice(&self.identity);
        bytes
    }
}

/// What the tiny machine has in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// How often it was asked, this time included.
    pub asked: u64,
    /// How many generations it has had.
    pub generations: u64,
    pub identity: [u8; 16],
    /// Drawn for this answer.
    pub random: [u8; 16],
    pub mac: [u8; 6],
    /// As the last generation said.
    pub clock_ms: u64,
}

impl Facts {
    pub fn encode(&self) -> [u8; FACTS_BYTES] {
        let mut bytes = [0; FACTS_BYTES];
        bytes[..8].copy_from_slice(&self.asked.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.generations.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.identity);
        bytes[32..48].copy_from_slice(&self.random);
        bytes[48..54].copy_from_slice(&self.mac);
        bytes[56..].copy_from_slice(&self.clock_ms.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; FACTS_BYTES]) -> Self {
        let number = |at: usize| {
            let mut one = [0; 8];
            one.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(one)
        };
        let mut facts = Self {
            asked: number(0),
            generations: number(8),
            clock_ms: number(56),
            ..Self::default()
        };
        facts.identity.copy_from_slice(&bytes[16..32]);
        facts.random.copy_from_slice(&bytes[32..48]);
        facts.mac.copy_from_slice(&bytes[48..54]);
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENERATION: Generation = Generation {
        identity: [1; 16],
        entropy: [2; 32],
        mac: [3; 6],
        clock_ms: 4,
    };

    #[test]
    fn a_generation_is_told_whole_or_not_at_all() {
        let bytes = GENERATION.encode();
        assert_eq!(Generation::decode(&bytes), Some(GENERATION));
        assert_eq!(Generation::decode(&bytes[1..]), None);
        assert_eq!(Generation::decode(&[&bytes[..], &[0]].concat()), None);
        for wrong in [0, 7, 62, 63] {
            let mut bytes = bytes;
            bytes[wrong] ^= 1;
            assert_eq!(Generation::decode(&bytes), None, "byte {wrong}");
        }
        assert_eq!(GENERATION.answer()[8..], [1; 16]);
    }

    #[test]
    fn facts_come_back_as_they_were() {
        let facts = Facts {
            asked: 1,
            generations: 2,
            identity: [3; 16],
            random: [4; 16],
            mac: [5; 6],
            clock_ms: 6,
        };
        assert_eq!(Facts::decode(&facts.encode()), facts);
    }
}
