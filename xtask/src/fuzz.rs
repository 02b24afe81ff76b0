//! `cargo xtask fuzz`: coverage-guided fuzzing on the stable compiler.
//!
//! `cargo fuzz` wants a nightly compiler for the address sanitizer. The parsers have no
//! `unsafe`, so a sanitizer would find nothing; libFuzzer's coverage needs only code-generation
//! flags that stable accepts. The crate `fuzz` is outside the workspace, because everything it
//! uses is built with those flags.

use crate::shell;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Fuzz every parser that reads bytes from elsewhere.
///
/// Each target under fuzz/targets runs for the given time, guided by coverage, from its corpus in
/// fuzz/corpus. The seed is printed. A crash shows the panic and the input, and leaves the input in
/// target/fuzz/NAME; run it again with `cargo xtask fuzz --target NAME --input FILE`.
#[derive(clap::Args)]
pub struct Options {
    /// Seconds for each target.
    #[arg(default_value_t = 60)]
    seconds: u32,
    /// Only this target.
    #[arg(long)]
    target: Option<String>,
    /// Run the target once, on this file.
    #[arg(long, requires = "target")]
    input: Option<PathBuf>,
    /// Seed of the mutations, printed at each run.
    #[arg(long)]
    seed: Option<u32>,
}

impl Options {
    /// All targets, which share so many seconds evenly.
    pub fn sharing_seconds(seconds: u32) -> Result<Self> {
        let targets = u32::try_from(targets()?.len())?.max(1);
        Ok(Self {
            // 0 would be without end.
            seconds: (seconds / targets).max(1),
            target: None,
            input: None,
            seed: None,
        })
    }
}

/// The pass that records which edges ran and which values were compared.
const COVERAGE: &[&str] = &[
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cdebug-assertions",
    "-Coverflow-checks",
    "-Ccodegen-units=1",
];
/// Largest input that is tried, in bytes.
const INPUT_BYTES_MAX: u32 = 16 * 1024;
const MEMORY_MEGABYTES_MAX: u32 = 1024;
/// Lines of the log that a failure shows: the panic, its trace and the input.
const FAILURE_LINES: usize = 60;

pub fn run(options: &Options) -> Result<()> {
    let targets = targets()?;
    let chosen: Vec<&String> = match &options.target {
        None => targets.iter().collect(),
        Some(name) => targets.iter().filter(|target| *target == name).collect(),
    };
    if chosen.is_empty() {
        bail!("no such target; there are: {}", targets.join(", "));
    }
    let binaries = build()?;
    for target in chosen {
        println!("fuzzing {target} for {} s", options.seconds);
        fuzz(options, target, &binaries)?;
    }
    Ok(())
}

/// The names of the targets, in order.
fn targets() -> Result<Vec<String>> {
    let directory = shell::root().join("fuzz/targets");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&directory).context("there is no fuzz/targets")? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs")
            && let Some(name) = path.file_stem()
        {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Builds all targets and returns the directory that they are in.
fn build() -> Result<PathBuf> {
    let version = shell::capture(Command::new("rustc").args(["--version", "--verbose"]))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc names no host")?;
    let target_directory = shell::target_directory().join("fuzz");
    // With an explicit target, build scripts and macros are not instrumented.
    shell::run(
        shell::cargo()
            .args([
                "build",
                "--quiet",
                "--release",
                "--manifest-path",
                "fuzz/Cargo.toml",
            ])
            .args(["--target", host, "--target-dir"])
            .arg(&target_directory)
            .env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\u{1f}")),
    )?;
    Ok(target_directory.join(host).join("release"))
}

fn fuzz(options: &Options, target: &str, binaries: &Path) -> Result<()> {
    let directory = shell::target_directory().join("fuzz").join(target);
    let found = directory.join("found");
    std::fs::create_dir_all(&found)?;
    let mut command = Command::new(binaries.join(target));
    command.current_dir(&directory);
    if let Some(input) = &options.input {
        return shell::run(command.arg(std::path::absolute(input)?));
    }
    let seed = options.seed.unwrap_or_else(seed_of_the_moment);
    println!("seed {seed}");
    command
        .arg(format!("-max_total_time={}", options.seconds))
        .arg(format!("-seed={seed}"))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        .arg(format!("-rss_limit_mb={MEMORY_MEGABYTES_MAX}"))
        .args([
            "-timeout=10",
            "-verbosity=0",
            "-print_final_stats=1",
            "-artifact_prefix=./",
        ])
        .arg(&found);
    let corpus = shell::root().join("fuzz/corpus").join(target);
    if corpus.is_dir() {
        command.arg(corpus);
    }
    let log_path = directory.join("log");
    command.stderr(File::create(&log_path)?);
    let outcome = shell::run(&mut command);
    let log = std::fs::read_to_string(&log_path).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    match outcome {
        Ok(()) => {
            // The log also lists dictionary words, which nobody wants to read each time.
            lines
                .iter()
                .filter(|line| line.starts_with("stat::"))
                .for_each(|l| println!("{l}"));
            Ok(())
        }
        Err(error) => {
            let tail = &lines[lines.len().saturating_sub(FAILURE_LINES)..];
            println!("{}", tail.join("\n"));
            let again = format!("cargo xtask fuzz --target {target} --input FILE");
            let found = directory.display();
            Err(error.context(format!(
                "the input is in {found}; run it again with `{again}`"
            )))
        }
    }
}

/// A seed that differs from run to run; never 0, which libFuzzer takes for none.
fn seed_of_the_moment() -> u32 {
    let since_epoch = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    since_epoch.subsec_nanos().max(1)
}
