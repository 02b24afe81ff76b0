//! The part of the system call filter that the form without a network
//! namespace needs: no socket that leads anywhere can be made.
//!
//! It stands before the filter proper and only ever refuses more. Every
//! other ABI falls through to the filter, which refuses it.

use crate::facts::Architecture;
use crate::landlock::FS_RESOLVE_UNIX;
use crate::plan::Instruction;
use crate::seccomp::Action;
use crate::seccomp::assemble::{self, audit_architecture};

/// `BPF_LD | BPF_W | BPF_ABS`, `BPF_JMP | BPF_JEQ | BPF_K` and
/// `BPF_RET | BPF_K` (linux/bpf_common.h).
const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// Offsets in `struct seccomp_data` (seccomp(2)); the argument's low half.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;

const AF_UNIX: u32 = 1;
const EAFNOSUPPORT: u16 = 97;

/// Instructions that refuse every socket(2) but, where Landlock keeps them to
/// sockets of the run itself, unix ones. Pairs (socketpair(2)) stay possible.
pub(super) fn refusal(architecture: Architecture, handled_fs: u64) -> Vec<Instruction> {
    let refused = assemble::return_value(Action::Errno(EAFNOSUPPORT));
    let mut end = vec![plain(RETURN, refused)];
    if handled_fs & FS_RESOLVE_UNIX != 0 {
        end.insert(0, plain(LOAD, FIRST_ARGUMENT));
        end.insert(
            1,
            Instruction {
                jump_true: 1,
                ..plain(JUMP_IF_EQUAL, AF_UNIX)
            },
        );
    }
    let beyond = |after: usize| u8::try_from(after + end.len()).expect("a dozen instructions");
    let mut program = vec![
        plain(LOAD, ARCHITECTURE),
        unless(audit_architecture(architecture), beyond(2)),
        plain(LOAD, NUMBER),
        unless(seccomp_number(architecture), beyond(0)),
    ];
    program.append(&mut end);
    program
}

fn plain(code: u16, operand: u32) -> Instruction {
    Instruction {
        code,
        jump_true: 0,
        jump_false: 0,
        operand,
    }
}

/// Skips so many instructions unless the loaded word equals `operand`.
fn unless(operand: u32, skipped: u8) -> Instruction {
    Instruction {
        jump_false: skipped,
        ..plain(JUMP_IF_EQUAL, operand)
    }
}

/// Number of socket(2); a constant because a search of the table is not for
/// the start path. A test compares.
fn seccomp_number(architecture: Architecture) -> u32 {
    match architecture {
        Architecture::X86_64 => 41,
        Architecture::Aarch64 => 198,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp;
    use crate::seccomp::assemble::RETURN_ALLOW;
    use crate::seccomp::simulate::{self, Call};

    const ARCHITECTURES: [Architecture; 2] = [Architecture::X86_64, Architecture::Aarch64];

    fn answer(architecture: Architecture, handled_fs: u64, name: &str, family: u64) -> u32 {
        let mut program = refusal(architecture, handled_fs);
        let options = seccomp::Options {
            nested_sandbox: seccomp::NestedSandbox::Denied,
        };
        program.extend(seccomp::program(architecture, options));
        let call = Call {
            architecture: audit_architecture(architecture),
            number: seccomp::number(architecture, name).unwrap(),
            arguments: [family, 1, 0, 0, 0, 0],
        };
        simulate::run(&program, &call).unwrap()
    }

    #[test]
    fn only_pairs_can_be_made_and_unix_sockets_where_landlock_keeps_them_in() {
        let refused = assemble::return_value(Action::Errno(EAFNOSUPPORT));
        for architecture in ARCHITECTURES {
            for family in [1, 2, 10, 16] {
                assert_eq!(answer(architecture, 0, "socket", family), refused);
            }
            assert_eq!(answer(architecture, 0, "socketpair", 1), RETURN_ALLOW);
            assert_eq!(answer(architecture, 0, "read", 2), RETURN_ALLOW);
            assert_eq!(
                answer(architecture, FS_RESOLVE_UNIX, "socket", 1),
                RETURN_ALLOW
            );
            for family in [2, 10, 16] {
                assert_eq!(
                    answer(architecture, FS_RESOLVE_UNIX, "socket", family),
                    refused
                );
            }
        }
    }

    #[test]
    fn the_number_is_the_tables() {
        for architecture in ARCHITECTURES {
            let number = seccomp::number(architecture, "socket");
            assert_eq!(number, Some(seccomp_number(architecture)));
        }
    }
}
