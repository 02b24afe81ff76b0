//! The second filter: it holds the calls that make, change or take away a name,
//! or open a file for writing, until a process outside has decided.
//!
//! What the first filter refuses stays refused: of several answers the kernel
//! takes the strictest (seccomp(2)). Everything else passes untouched, plain
//! opens, reads and stats above all.

use super::assemble::{self, AND, JUMP_IF_EQUAL, LOAD_WORD, RETURN, RETURN_ALLOW};
use super::numbers_of;
use crate::facts::Architecture;
use crate::plan::Instruction;

/// SECCOMP_RET_USER_NOTIF.
pub const RETURN_NOTIFY: u32 = 0x7fc0_0000;

/// Held whatever their arguments are.
pub const ALWAYS: &[&str] = &[
    "creat",
    "mkdir",
    "mkdirat",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "mknod",
    "mknodat",
    "unlink",
    "unlinkat",
    "rmdir",
    "truncate",
];

/// Held when one of [`WRITING`] is among the flags: the call, and the argument
/// that has the flags.
pub const OPENING: &[(&str, u32)] = &[("open", 1), ("openat", 2)];

/// O_ACCMODE, O_CREAT and O_TRUNC (asm-generic/fcntl.h). An unnamed file
/// (O_TMPFILE) can only be opened for writing.
pub const WRITING: u32 = 0o3 | 0o100 | 0o1000;

/// Names and numbers of the calls that may be held; one that this architecture
/// lacks is left out.
pub fn held(architecture: Architecture) -> Vec<(&'static str, u32)> {
    let opening = OPENING.iter().map(|(name, _)| *name);
    numbers_of(architecture, ALWAYS.iter().copied().chain(opening))
}

/// The program for this architecture.
pub fn program(architecture: Architecture) -> Vec<Instruction> {
    let mut always = Vec::new();
    let mut opening = Vec::new();
    for (name, number) in held(architecture) {
        match OPENING.iter().find(|(open, _)| *open == name) {
            Some((_, flags)) => opening.push((number, *flags)),
            None => always.push(number),
        }
    }
    let instruction = |code, operand, jump_true: usize, jump_false: usize| Instruction {
        code,
        jump_true: u8::try_from(jump_true).expect("the program is short"),
        jump_false: u8::try_from(jump_false).expect("the program is short"),
        operand,
    };
    // Laid out as: two loads and the architecture, one comparison a call, the
    // verdict for the rest, one block for each way to open, the verdicts.
    let blocks = 3 * opening.len();
    let mut rest = always.len() + opening.len();
    let mut program = vec![
        instruction(LOAD_WORD, 4, 0, 0),
        // The first filter ends calls of other ABIs.
        instruction(
            JUMP_IF_EQUAL,
            assemble::audit_architecture(architecture),
            0,
            1 + rest,
        ),
        instruction(LOAD_WORD, 0, 0, 0),
    ];
    for number in &always {
        rest -= 1;
        program.push(instruction(JUMP_IF_EQUAL, *number, rest + 1 + blocks, 0));
    }
    for (index, (number, _)) in opening.iter().enumerate() {
        rest -= 1;
        program.push(instruction(JUMP_IF_EQUAL, *number, rest + 1 + 3 * index, 0));
    }
    program.push(instruction(RETURN, RETURN_ALLOW, 0, 0));
    for (index, (_, flags)) in opening.iter().enumerate() {
        let left = 3 * (opening.len() - index - 1);
        program.push(instruction(LOAD_WORD, 16 + 8 * flags, 0, 0));
        program.push(instruction(AND, WRITING, 0, 0));
        program.push(instruction(JUMP_IF_EQUAL, 0, left + 1, left));
    }
    program.push(instruction(RETURN, RETURN_NOTIFY, 0, 0));
    program.push(instruction(RETURN, RETURN_ALLOW, 0, 0));
    program
}

#[cfg(test)]
mod tests {
    use super::super::number;
    use super::super::simulate::{self, Call};
    use super::*;

    const ARCHITECTURES: [Architecture; 2] = [Architecture::X86_64, Architecture::Aarch64];

    fn answer(architecture: Architecture, name: &str, arguments: [u64; 6]) -> Option<u32> {
        let call = Call {
            number: number(architecture, name)?,
            architecture: assemble::audit_architecture(architecture),
            arguments,
        };
        Some(simulate::run(&program(architecture), &call).unwrap())
    }

    #[test]
    fn every_call_that_changes_a_name_is_held() {
        for architecture in ARCHITECTURES {
            for name in ALWAYS {
                let answer = answer(architecture, name, [0; 6]);
                assert!(
                    answer.is_none_or(|answer| answer == RETURN_NOTIFY),
                    "{name}"
                );
            }
            for flags in [1, 2, 3, 0o100, 0o1000, 0o20_200_002] {
                for (name, argument) in OPENING {
                    let mut arguments = [0; 6];
                    arguments[*argument as usize] = flags;
                    let answer = answer(architecture, name, arguments);
                    assert!(
                        answer.is_none_or(|answer| answer == RETURN_NOTIFY),
                        "{name}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_other_call_passes() {
        for architecture in ARCHITECTURES {
            for (name, _) in super::super::numbers(architecture) {
                if ALWAYS.contains(&name) {
                    continue;
                }
                // For an open: O_CLOEXEC | O_DIRECTORY | O_NOFOLLOW, for reading.
                let arguments = [0, 0o2_600_000, 0o2_600_000, 0, 0, 0];
                assert_eq!(
                    answer(architecture, name, arguments),
                    Some(RETURN_ALLOW),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn other_abis_are_left_to_the_first_filter() {
        let call = Call {
            number: 5,
            architecture: 0x4000_0003,
            arguments: [u64::MAX; 6],
        };
        let program = program(Architecture::X86_64);
        assert_eq!(simulate::run(&program, &call), Ok(RETURN_ALLOW));
    }
}
