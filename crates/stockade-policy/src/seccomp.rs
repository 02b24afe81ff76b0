//! The filter of system calls: from rules as data to a program for the kernel.
//!
//! `data/seccomp.rules` is the policy, one rule and its reason a line. [`compile`]
//! turns it into a program; because that takes longer than starting a sandbox
//! may, the compiled programs are kept next to it and [`program`] only reads
//! them. A test compares the two and, with UPDATE_EXPECT=1, writes them anew.

pub mod assemble;
pub mod names;
pub mod oci;
pub mod rules;
pub mod simulate;

use std::collections::HashMap;

use crate::facts::Architecture;
use crate::plan::Instruction;

pub use rules::{Action, Applies, NestedSandbox, RuleLine};

/// What the filter depends on besides the architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub nested_sandbox: NestedSandbox,
}

/// The filter for this architecture, ready for seccomp(2). Takes microseconds.
pub fn program(architecture: Architecture, options: Options) -> Vec<Instruction> {
    decode(compiled(architecture, options))
}

/// The same filter, made from the rules. Takes about a millisecond.
pub fn compile(architecture: Architecture, options: Options) -> Vec<Instruction> {
    assemble::assemble(
        &rules(),
        options.nested_sandbox,
        architecture,
        &numbers(architecture),
    )
}

/// All rules, in the order in which they are asked.
pub fn rules() -> Vec<RuleLine> {
    rules::parse(RULES).expect("the embedded rules parse: a test reads them")
}

/// Names and numbers of this architecture's system calls, by number.
pub fn numbers(architecture: Architecture) -> Vec<(&'static str, u32)> {
    let table = table(architecture).lines();
    table.filter_map(parse_number).collect()
}

fn table(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::X86_64 => SYSCALLS_X86_64,
        Architecture::Aarch64 => SYSCALLS_AARCH64,
    }
}

/// Number of a system call; `None` when this architecture lacks it. For more
/// than one of them see [`numbers_of`].
pub fn number(architecture: Architecture, name: &str) -> Option<u32> {
    let table = table(architecture).lines();
    let mut numbers = table.filter_map(parse_number);
    let (_, number) = numbers.find(|(known, _)| *known == name)?;
    Some(number)
}

/// The numbers of these calls, in their order; one that this architecture lacks
/// is left out. The table is read once: each start of a command asks.
pub fn numbers_of<'a>(
    architecture: Architecture,
    names: impl IntoIterator<Item = &'a str>,
) -> Vec<(&'a str, u32)> {
    let known: HashMap<&str, u32> = numbers(architecture).into_iter().collect();
    let names = names.into_iter();
    names
        .filter_map(|name| Some((name, *known.get(name)?)))
        .collect()
}

/// What the rules say about a native call, judged without the compiled filter.
pub fn judge(
    architecture: Architecture,
    options: Options,
    number: u32,
    arguments: [u64; 6],
) -> Action {
    let name = numbers(architecture)
        .into_iter()
        .find(|(_, known)| *known == number);
    name.map_or(rules::UNLISTED, |(name, _)| {
        rules::judge(&rules(), options.nested_sandbox, name, &arguments)
    })
}

const RULES: &str = include_str!("../data/seccomp.rules");
const SYSCALLS_X86_64: &str = include_str!("../data/syscalls-x86_64.txt");
const SYSCALLS_AARCH64: &str = include_str!("../data/syscalls-aarch64.txt");

/// Bytes of one `struct sock_filter`: code, two distances, operand.
const INSTRUCTION_BYTES: usize = 8;

fn compiled(architecture: Architecture, options: Options) -> &'static [u8] {
    match (architecture, options.nested_sandbox) {
        (Architecture::X86_64, NestedSandbox::Denied) => {
            include_bytes!("../data/seccomp-x86_64.bpf")
        }
        (Architecture::X86_64, NestedSandbox::Allowed) => {
            include_bytes!("../data/seccomp-x86_64-nested.bpf")
        }
        (Architecture::Aarch64, NestedSandbox::Denied) => {
            include_bytes!("../data/seccomp-aarch64.bpf")
        }
        (Architecture::Aarch64, NestedSandbox::Allowed) => {
            include_bytes!("../data/seccomp-aarch64-nested.bpf")
        }
    }
}

fn decode(bytes: &[u8]) -> Vec<Instruction> {
    bytes
        .as_chunks::<INSTRUCTION_BYTES>()
        .0
        .iter()
        .map(
            |&[code_low, code_high, jump_true, jump_false, a, b, c, d]| Instruction {
                code: u16::from_le_bytes([code_low, code_high]),
                jump_true,
                jump_false,
                operand: u32::from_le_bytes([a, b, c, d]),
            },
        )
        .collect()
}

fn parse_number(line: &'static str) -> Option<(&'static str, u32)> {
    let line = line.split('#').next().unwrap_or(line);
    let (name, number) = line.split_once(' ')?;
    Some((name, number.parse().ok()?))
}

#[cfg(test)]
mod tests;
