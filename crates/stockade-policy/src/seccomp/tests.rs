//! Tests of the rules, of the compiler and of the compiled filters together.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::assemble::{self, INSTRUCTIONS_MAX, RETURN_KILL_PROCESS, audit_architecture};
use super::rules::{Condition, Sense, UNLISTED, Width};
use super::simulate::{Call, run};
use super::*;

const ARCHITECTURES: [Architecture; 2] = [Architecture::X86_64, Architecture::Aarch64];
const DENIED: Options = Options {
    nested_sandbox: NestedSandbox::Denied,
};
const NESTED: Options = Options {
    nested_sandbox: NestedSandbox::Allowed,
};

fn file_name(architecture: Architecture, options: Options) -> String {
    let architecture = match architecture {
        Architecture::X86_64 => "x86_64",
        Architecture::Aarch64 => "aarch64",
    };
    let nested = match options.nested_sandbox {
        NestedSandbox::Denied => "",
        NestedSandbox::Allowed => "-nested",
    };
    format!(
        "{}/data/seccomp-{architecture}{nested}.bpf",
        env!("CARGO_MANIFEST_DIR")
    )
}

fn encode(program: &[Instruction]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for instruction in program {
        bytes.extend(instruction.code.to_le_bytes());
        bytes.extend([instruction.jump_true, instruction.jump_false]);
        bytes.extend(instruction.operand.to_le_bytes());
    }
    bytes
}

#[test]
fn compiled_filters_are_current() {
    for architecture in ARCHITECTURES {
        for options in [DENIED, NESTED] {
            let path = file_name(architecture, options);
            let bytes = encode(&compile(architecture, options));
            if std::env::var_os("UPDATE_EXPECT").is_some() {
                std::fs::write(&path, &bytes).unwrap();
            }
            let kept = std::fs::read(&path).unwrap();
            assert!(
                kept == bytes,
                "{path} is out of date: run the tests with UPDATE_EXPECT=1"
            );
        }
    }
}

#[test]
fn filters_fit_the_kernel() {
    for architecture in ARCHITECTURES {
        for options in [DENIED, NESTED] {
            let length = program(architecture, options).len();
            assert!(
                (1..=INSTRUCTIONS_MAX).contains(&length),
                "{length} instructions"
            );
        }
    }
}

#[test]
fn names_and_tables_agree() {
    let ruled: BTreeSet<String> = rules().into_iter().map(|rule| rule.name).collect();
    let known: BTreeSet<String> = ARCHITECTURES
        .into_iter()
        .flat_map(numbers)
        .map(|(name, _)| name.to_owned())
        .collect();
    assert_eq!(
        ruled.difference(&known).collect::<Vec<_>>(),
        Vec::<&String>::new()
    );
    assert_eq!(
        known.difference(&ruled).collect::<Vec<_>>(),
        Vec::<&String>::new()
    );
}

#[test]
fn no_rule_is_shadowed() {
    let rules = rules();
    for (index, rule) in rules.iter().enumerate() {
        let shadow = rules[..index].iter().find(|earlier| {
            earlier.name == rule.name
                && earlier.conditions.is_empty()
                && (earlier.applies == Applies::Always || earlier.applies == rule.applies)
        });
        assert_eq!(shadow, None, "line {} never speaks", rule.line);
    }
}

/// The filter's verdict on a native call, in words.
fn verdict(architecture: Architecture, options: Options, name: &str, arguments: &[u64]) -> String {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    let number = number(architecture, name).unwrap_or_else(|| panic!("no call {name}"));
    let call = Call {
        number,
        architecture: audit_architecture(architecture),
        arguments: all,
    };
    let value = run(&program(architecture, options), &call).unwrap();
    if value == assemble::RETURN_ALLOW {
        return Action::Allow.to_string();
    }
    assert_eq!(value & 0xffff_0000, assemble::RETURN_ERRNO);
    Action::Errno((value & 0xffff) as u16).to_string()
}

/// High bits that the kernel cuts off: a filter must not be led astray by them.
const HIGH: u64 = 0xdead_beef_0000_0000;

/// Name, arguments, verdict by default, verdict with sandboxes inside.
type Case = (&'static str, &'static [u64], &'static str, &'static str);

const CASES: &[Case] = &[
    ("read", &[], "allow", "allow"),
    ("ptrace", &[], "allow", "allow"),
    // Set-user-id files.
    ("fchmod", &[3, 0o755], "allow", "allow"),
    ("fchmod", &[3, 0o2755], "allow", "allow"),
    ("fchmod", &[3, 0o4755], "deny EPERM", "deny EPERM"),
    ("fchmod", &[3, HIGH | 0o4755], "deny EPERM", "deny EPERM"),
    ("fchmodat", &[0, 0, 0o755], "allow", "allow"),
    ("fchmodat", &[0, 0, 0o6755], "deny EPERM", "deny EPERM"),
    ("fchmodat2", &[0, 0, 0o755], "allow", "allow"),
    ("fchmodat2", &[0, 0, 0o4000], "deny EPERM", "deny EPERM"),
    ("openat", &[0, 0, 0o101, 0o644], "allow", "allow"),
    ("openat", &[0, 0, 0o101, 0o4644], "deny EPERM", "deny EPERM"),
    (
        "openat",
        &[0, 0, 0o20_200_002, 0o4644],
        "deny EPERM",
        "deny EPERM",
    ),
    // Without O_CREAT the mode is not used and may be anything.
    ("openat", &[0, 0, 0, 0o4644], "allow", "allow"),
    ("openat2", &[], "deny ENOSYS", "allow"),
    ("mknodat", &[0, 0, 0o010_644], "allow", "allow"),
    ("mknodat", &[0, 0, 0o104_755], "deny EPERM", "deny EPERM"),
    ("mknodat", &[0, 0, 0o020_644], "deny EPERM", "allow"),
    ("mknodat", &[0, 0, 0o060_644], "deny EPERM", "allow"),
    // Namespaces and the view.
    ("clone", &[0x0011], "allow", "allow"),
    ("clone", &[0x003d_0f00], "allow", "allow"),
    ("clone", &[0x1000_0011], "deny EPERM", "allow"),
    ("clone", &[HIGH | 0x4000_0011], "deny EPERM", "allow"),
    ("clone3", &[], "deny ENOSYS", "allow"),
    ("unshare", &[0x400], "allow", "allow"),
    ("unshare", &[0x80], "deny EPERM", "allow"),
    ("unshare", &[0x0002_0000], "deny EPERM", "allow"),
    ("setns", &[], "deny EPERM", "allow"),
    ("mount", &[], "deny EPERM", "allow"),
    ("move_mount", &[], "deny EPERM", "allow"),
    ("open_tree_attr", &[], "deny EPERM", "allow"),
    ("chroot", &[], "deny EPERM", "allow"),
    ("statmount", &[], "deny ENOSYS", "allow"),
    // Sockets.
    ("socket", &[1, 1, 0], "allow", "allow"),
    ("socket", &[2, 0x8_0801, 0], "allow", "allow"),
    ("socket", &[10, 2, 17], "allow", "allow"),
    ("socket", &[HIGH | 2, HIGH | 1, HIGH | 6], "allow", "allow"),
    ("socket", &[16, 3, 0], "allow", "allow"),
    (
        "socket",
        &[16, 3, 4],
        "deny EPROTONOSUPPORT",
        "deny EPROTONOSUPPORT",
    ),
    (
        "socket",
        &[40, 1, 0],
        "deny EAFNOSUPPORT",
        "deny EAFNOSUPPORT",
    ),
    (
        "socket",
        &[17, 3, 0],
        "deny EAFNOSUPPORT",
        "deny EAFNOSUPPORT",
    ),
    (
        "socket",
        &[HIGH | 38, 5, 0],
        "deny EAFNOSUPPORT",
        "deny EAFNOSUPPORT",
    ),
    ("socket", &[2, 3, 1], "deny EPERM", "deny EPERM"),
    (
        "socket",
        &[10, HIGH | 0x8_0803, 255],
        "deny EPERM",
        "deny EPERM",
    ),
    ("socket", &[2, 10, 3], "deny EPERM", "deny EPERM"),
    (
        "socket",
        &[2, 5, 132],
        "deny ESOCKTNOSUPPORT",
        "deny ESOCKTNOSUPPORT",
    ),
    ("socket", &[2, 2, 1], "deny EACCES", "deny EACCES"),
    (
        "socket",
        &[2, 1, 262],
        "deny EPROTONOSUPPORT",
        "deny EPROTONOSUPPORT",
    ),
    ("socketpair", &[1, 1], "allow", "allow"),
    (
        "socketpair",
        &[2, 1],
        "deny EAFNOSUPPORT",
        "deny EAFNOSUPPORT",
    ),
    ("sendto", &[3, 0, 0, 0x4000], "allow", "allow"),
    (
        "sendto",
        &[3, 0, 0, 0x2000_4000],
        "deny EOPNOTSUPP",
        "deny EOPNOTSUPP",
    ),
    ("sendmsg", &[3, 0, 0x4000], "allow", "allow"),
    (
        "sendmsg",
        &[3, 0, 0x2000_0000],
        "deny EOPNOTSUPP",
        "deny EOPNOTSUPP",
    ),
    ("sendmmsg", &[3, 0, 1, 0], "allow", "allow"),
    (
        "sendmmsg",
        &[3, 0, 1, 0x2000_0000],
        "deny EOPNOTSUPP",
        "deny EOPNOTSUPP",
    ),
    ("setsockopt", &[3, 6, 1], "allow", "allow"),
    ("setsockopt", &[3, 1, 30], "allow", "allow"),
    (
        "setsockopt",
        &[3, 6, 30],
        "deny ENOPROTOOPT",
        "deny ENOPROTOOPT",
    ),
    (
        "setsockopt",
        &[3, 6, 31],
        "deny ENOPROTOOPT",
        "deny ENOPROTOOPT",
    ),
    // Terminals.
    ("ioctl", &[0, 0x5401], "allow", "allow"),
    ("ioctl", &[0, 0x5412], "deny EPERM", "deny EPERM"),
    ("ioctl", &[0, HIGH | 0x5412], "deny EPERM", "deny EPERM"),
    ("ioctl", &[0, HIGH | 0x541C], "deny EPERM", "deny EPERM"),
    ("ioctl", &[0, 0x5423], "deny EPERM", "deny EPERM"),
    // Personalities.
    ("personality", &[0xffff_ffff], "allow", "allow"),
    ("personality", &[0x4_0000], "allow", "allow"),
    ("personality", &[0x2_0008], "allow", "allow"),
    ("personality", &[0x40_0000], "deny EPERM", "deny EPERM"),
    // The machine, the kernel and its secrets.
    ("io_uring_setup", &[], "deny ENOSYS", "deny ENOSYS"),
    ("keyctl", &[], "deny ENOSYS", "deny ENOSYS"),
    ("bpf", &[], "deny EPERM", "deny EPERM"),
    ("userfaultfd", &[], "deny EPERM", "deny EPERM"),
    ("perf_event_open", &[], "deny EPERM", "deny EPERM"),
    ("open_by_handle_at", &[], "deny EPERM", "deny EPERM"),
    ("name_to_handle_at", &[], "allow", "allow"),
    ("reboot", &[], "deny EPERM", "deny EPERM"),
];

#[test]
fn calls_get_the_verdict_that_the_rules_mean() {
    for architecture in ARCHITECTURES {
        for (name, arguments, by_default, nested) in CASES {
            let what = format!("{architecture:?} {name} {arguments:x?}");
            assert_eq!(
                verdict(architecture, DENIED, name, arguments),
                *by_default,
                "{what}"
            );
            assert_eq!(
                verdict(architecture, NESTED, name, arguments),
                *nested,
                "{what}"
            );
        }
    }
}

#[test]
fn old_names_of_x86_follow_the_new_ones() {
    let old: &[(&str, &[u64], &str)] = &[
        ("open", &[0, 0o101, 0o4644], "deny EPERM"),
        ("open", &[0, 0o101, 0o644], "allow"),
        ("creat", &[0, 0o4644], "deny EPERM"),
        ("creat", &[0, 0o644], "allow"),
        ("chmod", &[0, 0o4755], "deny EPERM"),
        ("chmod", &[0, 0o755], "allow"),
        ("mknod", &[0, 0o020_644], "deny EPERM"),
        ("mknod", &[0, 0o104_644], "deny EPERM"),
        ("mknod", &[0, 0o010_644], "allow"),
        ("modify_ldt", &[], "deny ENOSYS"),
        ("iopl", &[], "deny EPERM"),
        ("fork", &[], "allow"),
    ];
    for (name, arguments, expected) in old {
        assert_eq!(
            verdict(Architecture::X86_64, DENIED, name, arguments),
            *expected,
            "{name}"
        );
    }
}

#[test]
fn calls_of_another_abi_never_pass() {
    const IA32: u32 = 0x4000_0003;
    const ARM: u32 = 0x4000_0028;
    const X32_BIT: u32 = 0x4000_0000;
    let x86_64 = program(Architecture::X86_64, DENIED);
    let native = audit_architecture(Architecture::X86_64);
    for number in (0..600).chain([u32::MAX]) {
        for foreign in [IA32, ARM, audit_architecture(Architecture::Aarch64)] {
            let call = Call {
                number,
                architecture: foreign,
                arguments: [0; 6],
            };
            assert_eq!(run(&x86_64, &call), Ok(RETURN_KILL_PROCESS));
        }
        let x32 = Call {
            number: number | X32_BIT,
            architecture: native,
            arguments: [0; 6],
        };
        assert_eq!(run(&x86_64, &x32), Ok(assemble::return_value(UNLISTED)));
    }
}

#[test]
fn with_sandboxes_inside_the_sockets_stay_closed() {
    for rule in rules().iter().filter(|rule| rule.name == "socket") {
        assert_eq!(rule.applies, Applies::Always, "line {}", rule.line);
    }
}

/// Numbers around the known ones, and arguments made of bits that rules look at.
fn any_call() -> impl Strategy<Value = (u32, [u64; 6])> {
    let number = prop_oneof![9 => 0..560u32, 1 => any::<u32>()];
    let argument = prop_oneof![
        Just(0),
        0..48u64,
        Just(u64::from(u32::MAX)),
        (0..64u32).prop_map(|bit| 1 << bit),
        (0..64u32, 0..64u32).prop_map(|(one, two)| 1 << one | 1 << two),
        (
            any::<u32>(),
            prop::sample::select(&[0x5412u64, 0x541C, 0x5423, 0x5401][..])
        )
            .prop_map(|(high, low)| u64::from(high) << 32 | low),
        any::<u64>(),
    ];
    (number, prop::array::uniform6(argument))
}

fn any_rule() -> impl Strategy<Value = RuleLine> {
    let small = prop_oneof![
        0..4u64,
        Just(u64::from(u32::MAX)),
        Just(1 << 32),
        any::<u64>()
    ];
    let condition = (
        0..6usize,
        any::<bool>(),
        any::<bool>(),
        small.clone(),
        any::<bool>(),
        prop::collection::vec(small, 1..4),
    )
        .prop_map(|(argument, wide, any_of, mask, masked, values)| {
            let mask = if masked { mask } else { u64::MAX };
            let width = if wide { Width::All64 } else { Width::Low32 };
            let mask = if wide {
                mask
            } else {
                mask & u64::from(u32::MAX)
            };
            let sense = if any_of { Sense::AnyOf } else { Sense::NoneOf };
            let values = values.into_iter().map(|value| value & mask).collect();
            Condition {
                argument,
                width,
                mask,
                sense,
                values,
            }
        });
    let applies =
        prop::sample::select(&[Applies::Always, Applies::UnlessNested, Applies::IfNested][..]);
    let action = prop_oneof![Just(Action::Allow), (1..6u16).prop_map(Action::Errno)];
    (
        0..400u32,
        action,
        prop::collection::vec(condition, 0..4),
        applies,
    )
        .prop_map(|(number, action, conditions, applies)| RuleLine {
            line: 0,
            action,
            name: format!("call{number}"),
            conditions,
            condition: String::new(),
            applies,
            reason: String::new(),
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_filter_does_what_the_rules_say(
        calls in prop::collection::vec(any_call(), 1..100),
        architecture in prop::sample::select(&ARCHITECTURES[..]),
        options in prop::sample::select(&[DENIED, NESTED][..]),
    ) {
        let program = program(architecture, options);
        for (number, arguments) in calls {
            let call = Call { number, architecture: audit_architecture(architecture), arguments };
            let expected = assemble::return_value(judge(architecture, options, number, arguments));
            prop_assert_eq!(run(&program, &call), Ok(expected));
        }
    }

    /// Also for rules that nobody wrote, so many that jumps need stepping stones.
    #[test]
    fn any_rules_are_compiled_faithfully(
        rules in prop::collection::vec(any_rule(), 0..600),
        calls in prop::collection::vec(any_call(), 1..100),
        nested in prop::sample::select(&[NestedSandbox::Denied, NestedSandbox::Allowed][..]),
    ) {
        let names: Vec<String> = (0..400).map(|number| format!("call{number}")).collect();
        let numbers: Vec<(&str, u32)> = names.iter().map(String::as_str).zip(0..).collect();
        let architecture = Architecture::X86_64;
        let program = assemble::assemble(&rules, nested, architecture, &numbers);
        for (number, arguments) in calls {
            let call = Call { number, architecture: audit_architecture(architecture), arguments };
            let expected = rules::judge(&rules, nested, &format!("call{number}"), &arguments);
            prop_assert_eq!(run(&program, &call), Ok(assemble::return_value(expected)));
        }
    }
}
