//! The same rules as an OCI runtime takes them (runtime-spec 1.0.2,
//! config-linux.md, "Seccomp").
//!
//! There a rule is one action for some calls whose arguments meet all of its
//! tests, rules have no order, and an argument has one test at most. So the
//! conditions of a call become cells: parts of what its arguments can be that do
//! not overlap, each fixed by some bits of each argument, and each with one
//! answer. Arguments are split in their order, so that cells that differ in a
//! later one have the same test of each earlier one: libseccomp makes a tree of
//! them in which it never goes back.

use std::collections::BTreeMap;

use super::rules::{Action, Condition, NestedSandbox, RuleLine, Sense, UNLISTED};

/// One rule. What no rule is about returns [`UNLISTED`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OciRule {
    pub names: Vec<String>,
    pub action: Action,
    /// All must hold.
    pub tests: Vec<Test>,
}

/// `argument & mask == value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// 0 to 5.
    pub argument: usize,
    pub mask: u64,
    pub value: u64,
}

/// All rules: first those for whole calls, then the cells.
pub fn rules(nested: NestedSandbox) -> Vec<OciRule> {
    let lines = super::rules();
    let mut calls: BTreeMap<&str, Vec<&RuleLine>> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.applies.in_force(nested)) {
        calls.entry(&line.name).or_default().push(line);
    }
    let mut whole: BTreeMap<Action, Vec<String>> = BTreeMap::new();
    let mut parts = Vec::new();
    for (name, lines) in calls {
        match lines.first() {
            Some(first) if first.conditions.is_empty() => {
                whole.entry(first.action).or_default().push(name.to_owned());
            }
            _ => split(name, &lines, [Known::default(); 6], &mut parts),
        }
    }
    whole.remove(&UNLISTED);
    let whole = whole.into_iter().map(|(action, names)| OciRule {
        names,
        action,
        tests: Vec::new(),
    });
    whole.chain(parts).collect()
}

/// The bits of an argument that a cell fixes.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    mask: u64,
    value: u64,
}

/// Adds the cells within one that some bits fix.
fn split(name: &str, lines: &[&RuleLine], known: [Known; 6], cells: &mut Vec<OciRule>) {
    let (action, open) = answer(lines, &known);
    let Some((argument, bit)) = open.iter().map(|open| next_bit(open, &known)).min() else {
        if action != UNLISTED {
            cells.push(OciRule {
                names: vec![name.to_owned()],
                action,
                tests: tests(&known),
            });
        }
        return;
    };
    let bit = 1 << (u64::BITS - 1 - bit);
    for value in [bit, 0] {
        let mut known = known;
        known[argument].mask |= bit;
        known[argument].value |= value;
        split(name, lines, known, cells);
    }
}

fn tests(known: &[Known; 6]) -> Vec<Test> {
    let fixed = known
        .iter()
        .enumerate()
        .filter(|(_, known)| known.mask != 0);
    fixed
        .map(|(argument, known)| Test {
            argument,
            mask: known.mask,
            value: known.value,
        })
        .collect()
}

/// What the rules answer within a cell, if no condition is left open that could
/// matter.
fn answer<'a>(lines: &[&'a RuleLine], known: &[Known; 6]) -> (Action, Vec<&'a Condition>) {
    let mut open = Vec::new();
    for line in lines {
        let states = line.conditions.iter().map(|one| (one, holds(one, known)));
        let states: Vec<_> = states.collect();
        if states.iter().any(|(_, state)| *state == Some(false)) {
            continue;
        }
        let before = open.len();
        let undecided = states.into_iter().filter(|(_, state)| state.is_none());
        open.extend(undecided.map(|(condition, _)| condition));
        if open.len() == before {
            return (line.action, open);
        }
    }
    (UNLISTED, open)
}

/// Whether a condition holds for all of a cell or for none of it.
fn holds(condition: &Condition, known: &[Known; 6]) -> Option<bool> {
    let Known { mask, value } = known[condition.argument];
    let seen = mask & condition.mask;
    let possible = |listed: &&u64| (*listed ^ value) & seen == 0;
    let listed = match condition.values.iter().any(|listed| possible(&listed)) {
        false => false,
        true if seen == condition.mask => true,
        true => return None,
    };
    Some(listed == (condition.sense == Sense::AnyOf))
}

/// Argument and bit, counted from the highest, by which a condition is decided.
fn next_bit(condition: &Condition, known: &[Known; 6]) -> (usize, u32) {
    let unseen = condition.mask & !known[condition.argument].mask;
    (condition.argument, unseen.leading_zeros())
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use proptest::prelude::*;

    use super::*;
    use crate::seccomp;

    /// The answer of whoever enforces the rules: at most one may speak.
    fn enforced(rules: &[OciRule], name: &str, arguments: &[u64; 6]) -> Action {
        let met = |test: &Test| arguments[test.argument] & test.mask == test.value;
        let mut speaking = rules
            .iter()
            .filter(|rule| rule.names.iter().any(|one| one == name))
            .filter(|rule| rule.tests.iter().all(met));
        let action = speaking.next().map_or(UNLISTED, |rule| rule.action);
        assert!(speaking.next().is_none(), "{name} {arguments:x?}");
        action
    }

    #[test]
    fn whole_calls_come_in_few_rules_and_cells_stay_within_what_a_filter_can_be() {
        let rules = rules(NestedSandbox::Denied);
        let whole = rules.iter().filter(|rule| rule.tests.is_empty()).count();
        assert!(whole <= 8, "{whole}");
        // Some three instructions each, of 4096.
        assert!(rules.len() < 1000, "{}", rules.len());
    }

    #[test]
    fn cells_that_differ_in_a_later_argument_agree_in_the_earlier_ones() {
        let rules = rules(NestedSandbox::Denied);
        for one in &rules {
            for other in rules.iter().filter(|other| other.names == one.names) {
                let apart = |left: &Test, right: &Test| {
                    let common = left.mask & right.mask;
                    (left.value ^ right.value) & common != 0
                };
                let first = one
                    .tests
                    .iter()
                    .zip(&other.tests)
                    .find(|(left, right)| left != right);
                if let Some((left, right)) = first {
                    assert_eq!(left.argument, right.argument, "{one:?} {other:?}");
                    assert!(apart(left, right), "{one:?} {other:?}");
                }
            }
        }
    }

    type OfBoth = [(NestedSandbox, Vec<OciRule>); 2];

    /// The rules, and what becomes of them.
    fn compared() -> &'static (Vec<RuleLine>, OfBoth) {
        static COMPARED: OnceLock<(Vec<RuleLine>, OfBoth)> = OnceLock::new();
        COMPARED.get_or_init(|| {
            let both = [NestedSandbox::Denied, NestedSandbox::Allowed];
            (seccomp::rules(), both.map(|nested| (nested, rules(nested))))
        })
    }

    proptest! {
        /// Also of values that the rules name, and of their neighbours.
        #[test]
        fn they_say_what_the_rules_say(
            seed in any::<[u64; 6]>(),
            picks in any::<[prop::sample::Index; 6]>(),
            near in prop::array::uniform6(0_u64..5),
        ) {
            let (lines, of_both) = compared();
            for (nested, oci) in of_both {
                for line in lines {
                    let named: Vec<u64> = lines
                        .iter()
                        .filter(|other| other.name == line.name)
                        .flat_map(|other| &other.conditions)
                        .flat_map(|condition| condition.values.iter().copied().chain([condition.mask]))
                        .collect();
                    let mut arguments = seed;
                    for (index, argument) in arguments.iter_mut().enumerate() {
                        if let (false, 1..) = (named.is_empty(), near[index]) {
                            *argument = picks[index].get(&named).wrapping_add(near[index]).wrapping_sub(2);
                        }
                    }
                    prop_assert_eq!(
                        enforced(oci, &line.name, &arguments),
                        super::super::rules::judge(lines, *nested, &line.name, &arguments),
                        "{} {:x?}", line.name, arguments
                    );
                }
            }
        }
    }
}
