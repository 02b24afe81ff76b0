//! Reads what test programs print: how many tests passed and failed, and which were skipped.
//!
//! A test that a machine cannot run prints `skipped: TEST: REASON` and returns. The standard test
//! harness counts it as passed, so the figures are put right here.

use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};

/// What some test programs reported together.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tests that passed, the skipped ones not counted.
    pub passed: usize,
    pub failed: usize,
    /// The text after `skipped: ` of each test that was not run, in order.
    pub skipped: Vec<String>,
}

impl Tally {
    /// Adds what another program reported.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped);
    }

    /// The skips that name an ability that this machine must have.
    pub fn forbidden_skips<'a>(&'a self, required: &'a [String]) -> impl Iterator<Item = &'a str> {
        let names_one = |reason: &str| {
            let mut words = reason.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            words.any(|word| required.iter().any(|ability| ability == word))
        };
        let after_test_name = |line: &str| line.split_once(": ").map_or(0, |(name, _)| name.len());
        let skipped = self.skipped.iter().map(String::as_str);
        skipped.filter(move |line| names_one(&line[after_test_name(line)..]))
    }
}

/// Whether the line should be shown to the person who runs the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Yes,
    No,
}

/// Follows the output of test programs line by line.
#[derive(Default)]
struct Reader {
    tally: Tally,
    /// Between `successes:` and the verdict, where the output of tests that passed is repeated.
    in_successes: bool,
}

impl Reader {
    fn line(&mut self, line: &str) -> Shown {
        if let Some(skip) = line.trim_start().strip_prefix("skipped: ") {
            self.tally.skipped.push(skip.to_owned());
            return Shown::No;
        }
        if line == "successes:" {
            self.in_successes = true;
        }
        if line == "failures:" || line.starts_with("test result: ") {
            self.in_successes = false;
        }
        if let Some(verdict) = line.strip_prefix("test result: ") {
            self.tally.passed += count(verdict, " passed");
            self.tally.failed += count(verdict, " failed");
        }
        if self.in_successes {
            Shown::No
        } else {
            Shown::Yes
        }
    }

    fn finish(mut self) -> Tally {
        self.tally.passed = self.tally.passed.saturating_sub(self.tally.skipped.len());
        self.tally
    }
}

/// The number before `what` in libtest's verdict, such as `ok. 3 passed; 0 failed; …`.
fn count(verdict: &str, what: &str) -> usize {
    let before = verdict.split(what).next().unwrap_or_default();
    let digits = before
        .rsplit(|c: char| !c.is_ascii_digit())
        .next()
        .unwrap_or_default();
    digits.parse().unwrap_or(0)
}

/// Runs a test program (or `cargo test`), shows its output without that of passed tests, and
/// returns how it ended and what it reported. The caller passes `--show-output` to the program.
pub fn run(command: &mut Command) -> Result<(ExitStatus, Tally)> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", crate::shell::shown(command)))?;
    let output = child.stdout.take().context("the output is piped")?;
    let tally = read(output, |line| println!("{line}"))?;
    Ok((child.wait()?, tally))
}

fn read(output: impl Read, mut show: impl FnMut(&str)) -> Result<Tally> {
    let mut reader = Reader::default();
    let mut source = BufReader::new(output);
    let mut bytes = Vec::new();
    while source.read_until(b'\n', &mut bytes)? > 0 {
        let line = String::from_utf8_lossy(&bytes);
        let line = line.trim_end_matches('\n');
        if reader.line(line) == Shown::Yes {
            show(line);
        }
        bytes.clear();
    }
    Ok(reader.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
test a ... ok
test b ... ok
test c ... FAILED

successes:

---- b stdout ----
skipped: b: needs userns: clone3 gave EPERM

failures:

---- c stdout ----
broken

test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out
";

    #[test]
    fn adds_the_verdicts_and_takes_the_skipped_from_the_passed() {
        let mut shown = Vec::new();
        let tally = read(OUTPUT.as_bytes(), |line| shown.push(line.to_owned())).unwrap();
        let skipped = vec!["b: needs userns: clone3 gave EPERM".to_owned()];
        assert_eq!(
            tally,
            Tally {
                passed: 41,
                failed: 1,
                skipped
            }
        );
        assert!(shown.iter().any(|line| line == "broken"));
        assert!(!shown.iter().any(|line| line.contains("b stdout")));
    }

    #[test]
    fn a_skip_is_forbidden_when_it_names_a_required_ability() {
        let skipped = vec!["landlock_test: needs userns".to_owned()];
        let tally = Tally {
            skipped,
            ..Tally::default()
        };
        let required = |name: &str| vec![name.to_owned()];
        assert_eq!(tally.forbidden_skips(&required("userns")).count(), 1);
        assert_eq!(tally.forbidden_skips(&required("landlock")).count(), 0);
        assert_eq!(tally.forbidden_skips(&required("user")).count(), 0);
    }
}
