//! Runs a filter as the kernel would, to answer what it does with a call.
//!
//! It knows the instructions that [`super::assemble`] emits and refuses all
//! others, so a damaged program shows up as an error.

use super::assemble::{AND, JUMP, JUMP_IF_AT_LEAST, JUMP_IF_EQUAL, LOAD_WORD, RETURN};
use crate::plan::Instruction;

/// One system call (`struct seccomp_data` of linux/seccomp.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub number: u32,
    /// AUDIT_ARCH_* of the ABI by which it was made.
    pub architecture: u32,
    pub arguments: [u64; 6],
}

/// A program that the kernel would refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    #[error("instruction {0} is outside the program")]
    OutOfBounds(usize),
    #[error("instruction {0} has an unknown operation")]
    UnknownOperation(usize),
    #[error("instruction {0} reads outside the call")]
    BadOffset(usize),
}

/// The SECCOMP_RET_* value of a call. All jumps lead forward, so it ends.
pub fn run(program: &[Instruction], call: &Call) -> Result<u32, SimulationError> {
    let mut accumulator = 0u32;
    let mut place = 0usize;
    loop {
        let instruction = program
            .get(place)
            .ok_or(SimulationError::OutOfBounds(place))?;
        let operand = instruction.operand;
        let choose = |met: bool| {
            usize::from(if met {
                instruction.jump_true
            } else {
                instruction.jump_false
            })
        };
        let skip = match instruction.code {
            RETURN => return Ok(operand),
            LOAD_WORD => {
                accumulator = call
                    .word(operand)
                    .ok_or(SimulationError::BadOffset(place))?;
                0
            }
            AND => {
                accumulator &= operand;
                0
            }
            JUMP => operand as usize,
            JUMP_IF_EQUAL => choose(accumulator == operand),
            JUMP_IF_AT_LEAST => choose(accumulator >= operand),
            _ => return Err(SimulationError::UnknownOperation(place)),
        };
        place += 1 + skip;
    }
}

impl Call {
    /// The 32-bit word at this offset; the instruction pointer reads as zero.
    fn word(&self, offset: u32) -> Option<u32> {
        match offset {
            0 => Some(self.number),
            4 => Some(self.architecture),
            8 | 12 => Some(0),
            16..64 if offset.is_multiple_of(4) => {
                let argument = self.arguments[(offset as usize - 16) / 8];
                Some(if offset.is_multiple_of(8) {
                    argument as u32
                } else {
                    (argument >> 32) as u32
                })
            }
            _ => None,
        }
    }
}
