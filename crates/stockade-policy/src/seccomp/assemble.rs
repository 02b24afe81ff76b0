//! Turns rules into a program for the kernel's classic BPF machine.
//!
//! A binary search over ranges of call numbers leads to a verdict or to the
//! comparisons of a call's arguments. Only loads of the architecture and the
//! number precede an unconditional verdict, so the kernel (from 5.11) finds out
//! that such a call is always allowed and skips the program for it.
//!
//! Instructions are emitted last first: whatever a jump leads to already has its
//! place, so its distance is known, and a distance over 255 gets an
//! unconditional jump, whose operand is 32 bits, as a stepping stone.

use std::collections::BTreeMap;

use super::rules::{Action, Condition, NestedSandbox, RuleLine, Sense, UNLISTED, Width};
use crate::facts::Architecture;
use crate::plan::Instruction;

/// The longest program that the kernel takes (BPF_MAXINSNS).
pub const INSTRUCTIONS_MAX: usize = 4096;

/// SECCOMP_RET_KILL_PROCESS: the answer to a foreign architecture.
pub const RETURN_KILL_PROCESS: u32 = 0x8000_0000;
/// SECCOMP_RET_ERRNO; the low 16 bits hold the error.
pub const RETURN_ERRNO: u32 = 0x0005_0000;
/// SECCOMP_RET_ALLOW.
pub const RETURN_ALLOW: u32 = 0x7fff_0000;

// Operation codes of linux/bpf_common.h.
pub(super) const LOAD_WORD: u16 = 0x20;
pub(super) const AND: u16 = 0x54;
pub(super) const JUMP: u16 = 0x05;
pub(super) const JUMP_IF_EQUAL: u16 = 0x15;
pub(super) const JUMP_IF_AT_LEAST: u16 = 0x35;
pub(super) const RETURN: u16 = 0x06;

// Offsets in `struct seccomp_data` (linux/seccomp.h).
const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;
const OFFSET_ARGUMENTS: u32 = 16;

/// Value of `seccomp_data.arch` for native calls (linux/audit.h).
pub fn audit_architecture(architecture: Architecture) -> u32 {
    match architecture {
        Architecture::X86_64 => 0xC000_003E,
        Architecture::Aarch64 => 0xC000_00B7,
    }
}

/// The filter's return value that carries out an action.
pub fn return_value(action: Action) -> u32 {
    match action {
        Action::Allow => RETURN_ALLOW,
        Action::Errno(number) => RETURN_ERRNO | u32::from(number),
    }
}

/// Compiles rules for one architecture. `numbers` gives names their numbers; a
/// rule for a name that is not in it is skipped.
pub fn assemble(
    rules: &[RuleLine],
    nested: NestedSandbox,
    architecture: Architecture,
    numbers: &[(&str, u32)],
) -> Vec<Instruction> {
    let ranges = ranges(rules, nested, numbers);
    let mut assembler = Assembler::default();
    let search = assembler.search(&ranges);
    assembler.load(OFFSET_NUMBER, search);
    let native = assembler.last();
    let foreign = assembler.verdict(RETURN_KILL_PROCESS);
    let compare = assembler.branch(
        JUMP_IF_EQUAL,
        audit_architecture(architecture),
        native,
        foreign,
    );
    assembler.load(OFFSET_ARCHITECTURE, compare);
    assembler.finish()
}

/// What is done with a run of call numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict<'a> {
    Always(Action),
    /// The first rule whose conditions hold speaks.
    ByArguments(Vec<&'a RuleLine>),
}

/// Call numbers from `start` up to the start of the next range.
struct Range<'a> {
    start: u32,
    verdict: Verdict<'a>,
}

/// The whole number space, cut where the verdict changes. Everything above the
/// highest known number is unlisted, which includes x32's bit 30 and the -1 of a
/// tracer that skips a call.
fn ranges<'a>(
    rules: &'a [RuleLine],
    nested: NestedSandbox,
    numbers: &[(&str, u32)],
) -> Vec<Range<'a>> {
    let mut by_number: BTreeMap<u32, Verdict<'a>> = BTreeMap::new();
    for (name, number) in numbers {
        by_number.insert(*number, verdict(rules, nested, name));
    }
    let mut ranges = vec![Range {
        start: 0,
        verdict: Verdict::Always(UNLISTED),
    }];
    let mut extend = |start: u32, verdict: Verdict<'a>| {
        let last = ranges.last_mut().expect("the first range is never removed");
        if last.start == start {
            last.verdict = verdict;
        } else if last.verdict != verdict {
            ranges.push(Range { start, verdict });
        }
    };
    for (number, verdict) in &by_number {
        extend(*number, verdict.clone());
        let next = number + 1;
        if !by_number.contains_key(&next) {
            extend(next, Verdict::Always(UNLISTED));
        }
    }
    ranges
}

fn verdict<'a>(rules: &'a [RuleLine], nested: NestedSandbox, name: &str) -> Verdict<'a> {
    let mut relevant = Vec::new();
    for rule in rules
        .iter()
        .filter(|rule| rule.name == name && rule.applies.in_force(nested))
    {
        relevant.push(rule);
        if rule.conditions.is_empty() {
            break;
        }
    }
    match relevant.as_slice() {
        [] => Verdict::Always(UNLISTED),
        [rule, ..] if rule.conditions.is_empty() => Verdict::Always(rule.action),
        _ => Verdict::ByArguments(relevant),
    }
}

/// A place in the program, counted from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Label(usize);

/// Collects instructions, last first.
#[derive(Default)]
struct Assembler {
    reversed: Vec<Instruction>,
    returns: BTreeMap<u32, Label>,
}

impl Assembler {
    fn finish(mut self) -> Vec<Instruction> {
        self.reversed.reverse();
        self.reversed
    }

    /// The instruction emitted last, which comes first when the program runs.
    fn last(&self) -> Label {
        Label(self.reversed.len() - 1)
    }

    fn emit(&mut self, code: u16, operand: u32, jump_true: u8, jump_false: u8) -> Label {
        self.reversed.push(Instruction {
            code,
            jump_true,
            jump_false,
            operand,
        });
        self.last()
    }

    fn search(&mut self, ranges: &[Range<'_>]) -> Label {
        if let [range] = ranges {
            return match &range.verdict {
                Verdict::Always(action) => self.verdict(return_value(*action)),
                Verdict::ByArguments(rules) => self.by_arguments(rules),
            };
        }
        let (low, high) = ranges.split_at(ranges.len() / 2);
        let above = self.search(high);
        let below = self.search(low);
        self.branch(JUMP_IF_AT_LEAST, high[0].start, above, below)
    }

    fn by_arguments(&mut self, rules: &[&RuleLine]) -> Label {
        let mut otherwise = self.verdict(return_value(UNLISTED));
        for rule in rules.iter().rev() {
            let mut met = self.verdict(return_value(rule.action));
            for condition in rule.conditions.iter().rev() {
                met = self.condition(condition, met, otherwise);
            }
            otherwise = met;
        }
        otherwise
    }

    fn condition(&mut self, condition: &Condition, met: Label, unmet: Label) -> Label {
        let (listed, unlisted) = match condition.sense {
            Sense::AnyOf => (met, unmet),
            Sense::NoneOf => (unmet, met),
        };
        match condition.width {
            Width::Low32 => self.low_word(condition, listed, unlisted),
            Width::All64 => condition.values.iter().rev().fold(unlisted, |next, value| {
                self.both_words(condition, *value, listed, next)
            }),
        }
    }

    fn low_word(&mut self, condition: &Condition, listed: Label, unlisted: Label) -> Label {
        let compares = condition.values.iter().rev().fold(unlisted, |next, value| {
            self.branch(JUMP_IF_EQUAL, low(*value), listed, next)
        });
        self.masked_load(
            low_offset(condition.argument),
            low(condition.mask),
            compares,
        )
    }

    fn both_words(
        &mut self,
        condition: &Condition,
        value: u64,
        same: Label,
        other: Label,
    ) -> Label {
        let low_same = self.branch(JUMP_IF_EQUAL, low(value), same, other);
        let low_offset = low_offset(condition.argument);
        let low_half = self.masked_load(low_offset, low(condition.mask), low_same);
        let high_same = self.branch(JUMP_IF_EQUAL, high(value), low_half, other);
        self.masked_load(low_offset + 4, high(condition.mask), high_same)
    }

    /// Loads a word, masks it and goes on at `next`, the last instruction.
    fn masked_load(&mut self, offset: u32, mask: u32, next: Label) -> Label {
        let next = if mask == u32::MAX {
            next
        } else {
            self.and(mask, next)
        };
        self.load(offset, next)
    }

    fn and(&mut self, mask: u32, next: Label) -> Label {
        self.assert_falls_through(next);
        self.emit(AND, mask, 0, 0)
    }

    fn load(&mut self, offset: u32, next: Label) -> Label {
        self.assert_falls_through(next);
        self.emit(LOAD_WORD, offset, 0, 0)
    }

    /// A return; one that is near is used again.
    fn verdict(&mut self, value: u32) -> Label {
        const NEAR: usize = 200;
        match self.returns.get(&value) {
            Some(label) if self.reversed.len() - label.0 < NEAR => *label,
            _ => {
                let label = self.emit(RETURN, value, 0, 0);
                self.returns.insert(value, label);
                label
            }
        }
    }

    fn branch(&mut self, code: u16, operand: u32, met: Label, unmet: Label) -> Label {
        // The second stepping stone moves the first one away, so both are placed
        // before either distance is taken.
        let met = self.within_reach(met);
        let unmet = self.within_reach(unmet);
        let met_distance = self.distance(met);
        let unmet_distance = self.distance(unmet);
        self.emit(code, operand, met_distance, unmet_distance)
    }

    fn within_reach(&mut self, target: Label) -> Label {
        let distance = self.reversed.len() - target.0 - 1;
        // One is kept back for the stepping stone of the other target.
        if distance < usize::from(u8::MAX) {
            return target;
        }
        let distance = u32::try_from(distance).expect("a program has at most 4096 instructions");
        self.emit(JUMP, distance, 0, 0)
    }

    fn distance(&self, target: Label) -> u8 {
        u8::try_from(self.reversed.len() - target.0 - 1).expect("within_reach came first")
    }

    fn assert_falls_through(&self, next: Label) {
        assert_eq!(
            next,
            self.last(),
            "the next instruction must be the last one emitted"
        );
    }
}

fn low_offset(argument: usize) -> u32 {
    // Both architectures are little-endian: the low word comes first.
    OFFSET_ARGUMENTS + 8 * u32::try_from(argument).expect("an argument is 0 to 5")
}

fn low(value: u64) -> u32 {
    (value & u64::from(u32::MAX)) as u32
}

fn high(value: u64) -> u32 {
    (value >> 32) as u32
}
