//! The rules of system calls as written in `data/seccomp.rules`.
//!
//! This parses the text and says, plainly and slowly, what it means for one
//! call. The compiled filter must agree with it; how a filter is made is left to
//! [`super::assemble`].

use std::fmt;

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    Allow,
    /// The call does nothing and returns this error (errno(3)).
    Errno(u16),
}

/// The answer to a call without a rule: libraries take the older way.
pub const UNLISTED: Action = Action::Errno(38);

/// When a rule is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    Always,
    /// Only while sandboxes inside are denied (the default).
    UnlessNested,
    /// Only while sandboxes inside are allowed.
    IfNested,
}

/// Whether programs inside may make sandboxes of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NestedSandbox {
    Denied,
    Allowed,
}

/// One rule with its reason, for enforcement and for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleLine {
    /// Line of the rules file, from 1.
    pub line: usize,
    pub action: Action,
    /// Name of the system call.
    pub name: String,
    /// All must hold; empty when the rule is unconditional.
    pub conditions: Vec<Condition>,
    /// The conditions as written; empty when there is none.
    pub condition: String,
    pub applies: Applies,
    pub reason: String,
}

/// A test of one argument: its masked value is, or is not, one of some values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// 0 to 5.
    pub argument: usize,
    pub width: Width,
    /// Bits that are looked at; already limited to the width.
    pub mask: u64,
    pub sense: Sense,
    /// At least one.
    pub values: Vec<u64>,
}

/// How much of an argument is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    Low32,
    All64,
}

/// Whether a value of the list makes a condition hold or fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sense {
    AnyOf,
    NoneOf,
}

/// A line of a rules file that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct RuleError {
    pub line: usize,
    pub problem: String,
}

/// Reads a rules file; the first bad line is the error.
pub fn parse(text: &str) -> Result<Vec<RuleLine>, RuleError> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
        .map(|(index, line)| {
            let line_number = index + 1;
            parse_line(line_number, line).map_err(|problem| RuleError {
                line: line_number,
                problem,
            })
        })
        .collect()
}

/// What the rules say about one call: the first that applies speaks.
pub fn judge<'a>(
    rules: impl IntoIterator<Item = &'a RuleLine>,
    nested: NestedSandbox,
    name: &str,
    arguments: &[u64; 6],
) -> Action {
    rules
        .into_iter()
        .filter(|rule| rule.name == name && rule.applies.in_force(nested))
        .find(|rule| {
            rule.conditions
                .iter()
                .all(|condition| condition.holds(arguments))
        })
        .map_or(UNLISTED, |rule| rule.action)
}

impl Applies {
    /// Whether a rule counts under this choice.
    pub fn in_force(self, nested: NestedSandbox) -> bool {
        match self {
            Applies::Always => true,
            Applies::UnlessNested => nested == NestedSandbox::Denied,
            Applies::IfNested => nested == NestedSandbox::Allowed,
        }
    }
}

impl Condition {
    /// Whether these arguments meet the condition.
    pub fn holds(&self, arguments: &[u64; 6]) -> bool {
        let listed = self
            .values
            .contains(&(arguments[self.argument] & self.mask));
        listed == (self.sense == Sense::AnyOf)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Allow => formatter.write_str("allow"),
            Action::Errno(number) => match error_name(*number) {
                Some(name) => write!(formatter, "deny {name}"),
                None => write!(formatter, "deny {number}"),
            },
        }
    }
}

impl fmt::Display for RuleLine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.action, self.name)?;
        if !self.condition.is_empty() {
            write!(formatter, " when {}", self.condition)?;
        }
        match self.applies {
            Applies::Always => {}
            Applies::UnlessNested => formatter.write_str(" [unless nested]")?,
            Applies::IfNested => formatter.write_str(" [if nested]")?,
        }
        write!(formatter, " # {}", self.reason)
    }
}

fn parse_line(line: usize, text: &str) -> Result<RuleLine, String> {
    let (rule, reason) = text
        .split_once('#')
        .ok_or("a rule needs a reason after #")?;
    let reason = reason.trim();
    if reason.is_empty() {
        return Err("a rule needs a reason after #".into());
    }
    let (rule, applies) = split_tag(rule.trim())?;
    let (head, condition) = match rule.split_once(" when ") {
        Some((head, condition)) => (head, condition.trim()),
        None => (rule, ""),
    };
    let words: Vec<&str> = head.split_whitespace().collect();
    let (action, name) = match words.as_slice() {
        ["allow", name] => (Action::Allow, *name),
        ["deny", error, name] => (Action::Errno(error_number(error)?), *name),
        _ => {
            return Err(format!(
                "expected `allow NAME` or `deny ERROR NAME`, found `{head}`"
            ));
        }
    };
    let conditions = if condition.is_empty() {
        Vec::new()
    } else {
        condition
            .split(" and ")
            .map(parse_condition)
            .collect::<Result<_, _>>()?
    };
    Ok(RuleLine {
        line,
        action,
        name: name.to_owned(),
        conditions,
        condition: condition.to_owned(),
        applies,
        reason: reason.to_owned(),
    })
}

fn split_tag(rule: &str) -> Result<(&str, Applies), String> {
    let Some((rest, tag)) = rule.split_once('[') else {
        return Ok((rule, Applies::Always));
    };
    match tag.trim() {
        "unless nested]" => Ok((rest.trim(), Applies::UnlessNested)),
        "if nested]" => Ok((rest.trim(), Applies::IfNested)),
        other => Err(format!("unknown tag `[{other}`")),
    }
}

fn parse_condition(text: &str) -> Result<Condition, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (operand, rest) = words.split_first().ok_or("an empty condition")?;
    let (argument, width) = parse_operand(operand)?;
    let (mask, rest) = match rest {
        ["&", mask, rest @ ..] => (constant(mask)?, rest),
        rest => (u64::MAX, rest),
    };
    let (sense, values) = match rest {
        ["==", value] => (Sense::AnyOf, std::slice::from_ref(value)),
        ["!=", value] => (Sense::NoneOf, std::slice::from_ref(value)),
        ["in", values @ ..] => (Sense::AnyOf, values),
        ["not", "in", values @ ..] => (Sense::NoneOf, values),
        _ => {
            return Err(format!(
                "expected ==, !=, in or not in with values in `{text}`"
            ));
        }
    };
    let mask = match width {
        Width::Low32 => mask & u64::from(u32::MAX),
        Width::All64 => mask,
    };
    let values: Vec<u64> = values
        .iter()
        .map(|value| constant(value))
        .collect::<Result<_, _>>()?;
    // A value with bits outside the mask can never match, so it is a mistake.
    match values.iter().find(|value| *value & !mask != 0) {
        _ if values.is_empty() => Err(format!("no value in `{text}`")),
        Some(value) => Err(format!("{value:#x} has bits outside the mask in `{text}`")),
        None => Ok(Condition {
            argument,
            width,
            mask,
            sense,
            values,
        }),
    }
}

fn parse_operand(operand: &str) -> Result<(usize, Width), String> {
    let (argument, width) = match operand
        .strip_prefix("low32(")
        .and_then(|rest| rest.strip_suffix(')'))
    {
        Some(argument) => (argument, Width::Low32),
        None => (operand, Width::All64),
    };
    let index = argument
        .strip_prefix("arg")
        .and_then(|digits| digits.parse::<usize>().ok());
    match index {
        Some(index) if index < 6 => Ok((index, width)),
        _ => Err(format!(
            "expected arg0 to arg5 or low32(..) of it, found `{operand}`"
        )),
    }
}

/// A number, a name, or several joined by `|`.
fn constant(text: &str) -> Result<u64, String> {
    text.split('|').try_fold(0, |bits, word| {
        let number = match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => word.parse().ok(),
        };
        let named = || {
            CONSTANTS
                .iter()
                .find(|(name, _)| *name == word)
                .map(|(_, value)| *value)
        };
        let value = number
            .or_else(named)
            .ok_or_else(|| format!("unknown constant `{word}`"))?;
        Ok(bits | value)
    })
}

fn error_number(name: &str) -> Result<u16, String> {
    ERRORS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, number)| *number)
        .ok_or_else(|| format!("unknown error `{name}`"))
}

fn error_name(number: u16) -> Option<&'static str> {
    ERRORS
        .iter()
        .find(|(_, known)| *known == number)
        .map(|(name, _)| *name)
}

/// Numbers of asm-generic/errno.h, alike on both architectures.
const ERRORS: &[(&str, u16)] = &[
    ("EPERM", 1),
    ("EACCES", 13),
    ("ENOSYS", 38),
    ("ENOPROTOOPT", 92),
    ("EPROTONOSUPPORT", 93),
    ("ESOCKTNOSUPPORT", 94),
    ("EOPNOTSUPP", 95),
    ("EAFNOSUPPORT", 97),
];

/// Constants of the kernel's headers, alike on both architectures.
const CONSTANTS: &[(&str, u64)] = &[
    // linux/sched.h
    ("CLONE_NEWTIME", 0x0000_0080),
    ("CLONE_NEWNS", 0x0002_0000),
    ("CLONE_NEWCGROUP", 0x0200_0000),
    ("CLONE_NEWUTS", 0x0400_0000),
    ("CLONE_NEWIPC", 0x0800_0000),
    ("CLONE_NEWUSER", 0x1000_0000),
    ("CLONE_NEWPID", 0x2000_0000),
    ("CLONE_NEWNET", 0x4000_0000),
    // asm-generic/fcntl.h and linux/stat.h
    ("O_CREAT", 0o100),
    ("__O_TMPFILE", 0o20_000_000),
    ("S_ISUID", 0o4000),
    ("S_IFMT", 0o170_000),
    ("S_IFCHR", 0o020_000),
    ("S_IFBLK", 0o060_000),
    // linux/personality.h
    ("PER_LINUX32", 0x8),
    ("UNAME26", 0x2_0000),
    ("ADDR_NO_RANDOMIZE", 0x4_0000),
    // linux/socket.h, linux/net.h, linux/in.h, linux/tcp.h, linux/netlink.h
    ("AF_UNIX", 1),
    ("AF_INET", 2),
    ("AF_INET6", 10),
    ("AF_NETLINK", 16),
    ("NETLINK_ROUTE", 0),
    ("SOCK_TYPE_MASK", 0xf),
    ("SOCK_STREAM", 1),
    ("SOCK_DGRAM", 2),
    ("SOCK_RAW", 3),
    ("SOCK_PACKET", 10),
    ("IPPROTO_IP", 0),
    ("IPPROTO_ICMP", 1),
    ("IPPROTO_TCP", 6),
    ("IPPROTO_UDP", 17),
    ("IPPROTO_ICMPV6", 58),
    ("MSG_FASTOPEN", 0x2000_0000),
    ("TCP_FASTOPEN_CONNECT", 30),
    ("TCP_ULP", 31),
    // asm-generic/ioctls.h
    ("TIOCSTI", 0x5412),
    ("TIOCLINUX", 0x541C),
    ("TIOCSETD", 0x5423),
];

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(text: &str, expected: Expect) {
        let shown = match parse(text) {
            Ok(rules) => rules.iter().map(|rule| format!("{rule}\n")).collect(),
            Err(error) => format!("{error}\n"),
        };
        expected.assert_eq(&shown);
    }

    #[test]
    fn rules_are_shown_as_they_are_written() {
        check(
            "\n# heading\nallow read # files\n\
             deny EPERM ioctl when low32(arg1) == TIOCSTI # types\n\
             deny EPERM clone when arg0 & CLONE_NEWNS|CLONE_NEWPID != 0 [unless nested] # view\n",
            expect![[r#"
                allow read # files
                deny EPERM ioctl when low32(arg1) == TIOCSTI # types
                deny EPERM clone when arg0 & CLONE_NEWNS|CLONE_NEWPID != 0 [unless nested] # view
            "#]],
        );
    }

    #[test]
    fn mistakes_name_the_line() {
        check(
            "allow read",
            expect![[r#"
            line 1: a rule needs a reason after #
        "#]],
        );
        check(
            "allow read # x\nforbid write # x",
            expect![[r#"
            line 2: expected `allow NAME` or `deny ERROR NAME`, found `forbid write`
        "#]],
        );
        check(
            "deny EWHAT read # x",
            expect![[r#"
            line 1: unknown error `EWHAT`
        "#]],
        );
        check(
            "allow read when arg6 == 0 # x",
            expect![[r#"
            line 1: expected arg0 to arg5 or low32(..) of it, found `arg6`
        "#]],
        );
        check(
            "allow read when low32(arg1) == 0x100000000 # x",
            expect![[r#"
            line 1: 0x100000000 has bits outside the mask in `low32(arg1) == 0x100000000`
        "#]],
        );
        check(
            "allow read when arg1 in # x",
            expect![[r#"
            line 1: no value in `arg1 in`
        "#]],
        );
        check(
            "allow read [never] # x",
            expect![[r#"
            line 1: unknown tag `[never]`
        "#]],
        );
    }
}
