//! `cargo xtask test`: everything that must hold before a change lands, as root and as an
//! ordinary user.

use crate::firecracker;
use crate::kernel_package;
use crate::libtest::{self, Tally};
use crate::packages::{self, Escalation, Purpose};
use crate::user::{self, Scratch, User};
use crate::{fuzz, shell, tidy};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Install what the tests need and run all checks and tests.
///
/// As root: installs missing Debian packages, checks style, builds, runs all tests as root, runs
/// the end-to-end tests again as the user `stockade-test` (made if missing, with a readable copy of
/// the Rust toolchain in /opt/stockade-ci), and fuzzes each parser.
///
/// As an ordinary user: the same without the half that runs as root; missing packages are named.
///
/// A test that the machine cannot run prints why and is counted as skipped. Abilities named in
/// STOCKADE_REQUIRE (by default all: userns, landlock, seccomp, gvisor, microvm; cgroup and firecracker for root) must not be
/// the reason for a skip; set STOCKADE_REQUIRE= to allow every skip.
#[derive(clap::Args)]
pub struct Options {
    /// Install missing packages with sudo when this is not root.
    #[arg(long)]
    sudo: bool,
    /// Seconds of fuzzing, which the targets share; 0 leaves fuzzing out.
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    fuzz: u32,
}

/// What a machine must be able to do unless `STOCKADE_REQUIRE` says otherwise.
const REQUIRED: &[&str] = &["userns", "landlock", "seccomp", "gvisor", "microvm"];
/// What root must be able to do besides.
const REQUIRED_OF_ROOT: &[&str] = &["cgroup", "firecracker"];
/// What property tests begin with (proptest's variable): a change is judged by the same cases as
/// the one before. Run by themselves, and by the fuzzer, they look for new ones.
const RANDOM_SEED: &str = "PROPTEST_RNG_SEED";
/// The packages whose integration tests run the product from end to end.
const END_TO_END: &[&str] = &["stockade", "stockade-testkit"];

pub fn run(options: &Options) -> Result<()> {
    let mut tally = Tally::default();
    let phases = phases(options, &mut tally);
    for skip in &tally.skipped {
        println!("skipped: {skip}");
    }
    if phases.is_err() {
        // A phase that stopped early without a failed test is still one failure.
        tally.failed = tally.failed.max(1);
    }
    // The error goes first, so that the tally is the last line in every case.
    if let Err(error) = phases {
        println!("\nerror: {error:#}");
        println!("{}", closing_line(&tally));
        std::process::exit(1);
    }
    println!("\n{}", closing_line(&tally));
    Ok(())
}

fn closing_line(tally: &Tally) -> String {
    let skipped = tally.skipped.len();
    format!(
        "{} passed, {} failed, {skipped} skipped",
        tally.passed, tally.failed
    )
}

fn phases(options: &Options, tally: &mut Tally) -> Result<()> {
    let escalation = if options.sudo {
        Escalation::Sudo
    } else {
        Escalation::Refuse
    };
    shell::phase("packages", || packages::ensure(Purpose::Tests, escalation))?;
    let kernel = shell::phase("kernel package", kernel_package::ensure)?;
    let firecracker = shell::phase("Firecracker", firecracker::ensure)?;
    shell::phase("rustfmt", || {
        shell::run(shell::cargo().args(["fmt", "--all", "--check"]))
    })?;
    // Beside the rest, because its last and longest part has work for one processor.
    let product = std::thread::spawn(build);
    shell::phase("clippy", clippy)?;
    let origin = shell::phase("build the tests' internet", build_origin)?;
    shell::phase("tidy", || tidy::run(&tidy::Options::compare()))?;
    shell::phase("build the tests", || {
        shell::run(shell::cargo().args(["test", "--quiet", "--workspace", "--no-run"]))
    })?;
    let product = shell::phase("build", || match product.join() {
        Ok(product) => product,
        Err(_) => bail!("the build panicked"),
    })?;
    let account = if user::is_root() { "root" } else { "this user" };
    // What fails here does not hide what fails after it.
    let as_first = shell::phase(&format!("tests as {account}"), || {
        let required = required(user::is_root());
        let mut tests = shell::cargo();
        tests
            .args([
                "test",
                "--workspace",
                "--no-fail-fast",
                "--",
                "--show-output",
            ])
            .env("STOCKADE_BIN", &product)
            .env("STOCKADE_ORIGIN", &origin)
            .env("STOCKADE_KERNEL_PACKAGE", &kernel)
            .env("STOCKADE_FIRECRACKER", &firecracker)
            .env("STOCKADE_REQUIRE", required.join(","));
        if std::env::var_os(RANDOM_SEED).is_none() {
            tests.env(RANDOM_SEED, "1");
        }
        judge(libtest::run(&mut tests)?, &required, tally)
    });
    let as_second = match user::is_root() {
        true => shell::phase("end-to-end tests as an ordinary user", || {
            end_to_end_as_ordinary_user(&product, &origin, &kernel, tally)
        }),
        false => {
            println!("\nnot run: the half that needs root; run `cargo xtask test` as root for it");
            Ok(())
        }
    };
    as_first.and(as_second)?;
    if options.fuzz > 0 {
        shell::phase("fuzz", || {
            fuzz::run(&fuzz::Options::sharing_seconds(options.fuzz)?)
        })?;
    }
    Ok(())
}

fn clippy() -> Result<()> {
    let arguments = [
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    shell::run(shell::cargo().args(arguments))
}

/// Builds the product as it is shipped and returns its path.
fn build() -> Result<PathBuf> {
    shell::run(shell::cargo().args(["build", "--quiet", "--release", "--package", "stockade"]))?;
    Ok(shell::target_directory().join("release/stockade"))
}

/// Builds the program that plays the internet in tests and returns its path.
fn build_origin() -> Result<PathBuf> {
    let bin = ["--package", "stockade-testkit", "--bin", "stockade-origin"];
    shell::run(shell::cargo().args(["build", "--quiet"]).args(bin))?;
    Ok(shell::target_directory().join("debug/stockade-origin"))
}

/// The abilities for whose lack no test may be skipped.
fn required(root: bool) -> Vec<String> {
    if let Ok(list) = std::env::var("STOCKADE_REQUIRE") {
        return list
            .split(',')
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect();
    }
    let of_root = if root { REQUIRED_OF_ROOT } else { &[] };
    REQUIRED
        .iter()
        .chain(of_root)
        .map(|ability| (*ability).to_owned())
        .collect()
}

/// Adds a result to the tally; a failed test or a skip that must not be is an error.
fn judge(outcome: (ExitStatus, Tally), required: &[String], tally: &mut Tally) -> Result<()> {
    let (status, mut new) = outcome;
    let forbidden: Vec<String> = new.forbidden_skips(required).map(str::to_owned).collect();
    new.failed += forbidden.len();
    new.skipped.retain(|skip| !forbidden.contains(skip));
    tally.add(new);
    if !forbidden.is_empty() {
        bail!(
            "skipped, although STOCKADE_REQUIRE={} says the machine can:\n  {}",
            required.join(","),
            forbidden.join("\n  ")
        );
    }
    if !status.success() {
        bail!("tests failed ({status})");
    }
    Ok(())
}

fn end_to_end_as_ordinary_user(
    product: &Path,
    origin: &Path,
    kernel: &Path,
    tally: &mut Tally,
) -> Result<()> {
    let ordinary = User::ordinary()?;
    let scratch = Scratch::new(Path::new("/var/tmp"), "stockade-ci")?;
    let product = scratch.install(product)?;
    let origin = scratch.install(origin)?;
    let kernel = scratch.install(kernel)?;
    let work = scratch.directory_of(&ordinary, "work")?;
    let required = required(false);
    let mut first_error = None;
    for test in end_to_end_tests()? {
        let test = scratch.install(&test)?;
        println!("\nas an ordinary user: {}", test.display());
        let mut command = ordinary.command(&test);
        command
            .arg("--show-output")
            .current_dir(&work)
            .env("STOCKADE_BIN", &product)
            .env("STOCKADE_ORIGIN", &origin)
            .env("STOCKADE_KERNEL_PACKAGE", &kernel)
            .env("STOCKADE_REQUIRE", required.join(","));
        // Every program runs, so that one failure does not hide another.
        if let Err(error) = judge(libtest::run(&mut command)?, &required, tally) {
            first_error.get_or_insert(error.context(test.display().to_string()));
        }
    }
    first_error.map_or(Ok(()), Err)
}

/// The executables of the integration tests, as cargo built them.
fn end_to_end_tests() -> Result<Vec<PathBuf>> {
    let mut build = shell::cargo();
    build.args(["test", "--no-run", "--quiet", "--message-format=json"]);
    for package in END_TO_END {
        build.args(["--package", package]);
    }
    let messages = shell::capture(&mut build)?;
    let mut tests = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).context("cargo's message is no JSON")?;
        let is_test = message["target"]["kind"][0] == "test";
        if let (true, Some(executable)) = (is_test, message["executable"].as_str()) {
            tests.push(executable.into());
        }
    }
    Ok(tests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_forbidden_skip_is_a_failure() {
        let new = Tally {
            passed: 2,
            failed: 0,
            skipped: vec!["a: needs userns".into()],
        };
        let mut tally = Tally::default();
        let success = ExitStatus::from_raw(0);
        assert!(judge((success, new), &["userns".into()], &mut tally).is_err());
        assert_eq!(closing_line(&tally), "2 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn an_allowed_skip_is_counted() {
        let new = Tally {
            passed: 2,
            failed: 0,
            skipped: vec!["a: needs cgroup".into()],
        };
        let mut tally = Tally::default();
        let success = ExitStatus::from_raw(0);
        assert!(judge((success, new), &["userns".into()], &mut tally).is_ok());
        assert_eq!(closing_line(&tally), "2 passed, 0 failed, 1 skipped");
    }
}
