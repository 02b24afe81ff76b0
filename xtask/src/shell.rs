//! Runs other programs: with their output shown, or captured, and with failures that say what ran.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Runs `work` under a heading, prints how long it took, and names the phase in its failure.
pub fn phase<T>(title: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("\n== {title}");
    let start = Instant::now();
    let outcome = work();
    let seconds = start.elapsed().as_secs_f64();
    match outcome {
        Ok(value) => {
            println!("-- {title}: done in {seconds:.1} s");
            Ok(value)
        }
        Err(error) => {
            println!("-- {title}: FAILED after {seconds:.1} s");
            Err(error.context(format!("phase failed: {title}")))
        }
    }
}

/// Runs `command` with its output shown; anything but success is an error.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs `command` and returns what it wrote to its standard output, which must be UTF-8.
/// Its standard error is shown.
pub fn capture(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        bail!("{} ended with {}", shown(command), output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("output of {}", shown(command)))
}

/// The cargo that runs this program, to be started at the top of the checkout.
pub fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root());
    // What cargo told this program about itself would make build scripts that look at it run
    // again, and everything above them compile again.
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_"]
            .iter()
            .any(|prefix| name_text.starts_with(prefix))
        {
            command.env_remove(&name);
        }
    }
    command
}

/// The top of the checkout.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the checkout")
}

/// Cargo's target directory.
pub fn target_directory() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => root().join(directory),
        None => root().join("target"),
    }
}

/// Where `program` lies on the search path, as a shell would find it.
pub fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|p| p.is_file())
}

/// The command as a person would type it, for messages.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}
