//! `cargo xtask conformance`: which wall holds which guarantee on this machine,
//! shown by attacks; the page in the documentation is one such run.

use anyhow::{Context, Result, bail};
use std::fs;
use std::process::Command;

use crate::{kernel_package, shell};

/// The page that `--write` replaces.
const PAGE: &str = "docs/conformance.md";

/// Attacks every wall and prints which guarantee each of them holds.
#[derive(clap::Args)]
pub struct Options {
    /// Also replace docs/conformance.md by what was found
    #[arg(long)]
    write: bool,
    /// Attack an OCI runtime of this version too, whatever is known against its number
    #[arg(long, value_name = "VERSION")]
    accept_runtime: Option<String>,
}

pub fn run(options: &Options) -> Result<()> {
    shell::run(shell::cargo().args(["build", "--quiet", "--package", "stockade"]))?;
    let program = shell::target_directory().join("debug/stockade");
    // A home with a machine image, apart from the caller's.
    let home = shell::target_directory().join("conformance");
    fs::create_dir_all(&home)?;
    let kernel = kernel_package::ensure()?;
    shell::run(
        Command::new(&program)
            .args(["vm", "build", "--kernel-package"])
            .arg(kernel)
            .env("HOME", &home),
    )?;
    let accepted = options.accept_runtime.iter();
    let output = Command::new(&program)
        .args(["doctor", "--attack", "--all-walls"])
        .args(accepted.flat_map(|version| ["--accept-runtime", version]))
        .env("HOME", &home)
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let table = String::from_utf8(output.stdout).context("the table is no text")?;
    print!("{table}");
    if !output.status.success() {
        bail!(
            "a wall does not hold what it claims, or could not be attacked\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    if options.write {
        fs::write(shell::root().join(PAGE), page(&table))
            .with_context(|| format!("cannot write {PAGE}"))?;
    }
    Ok(())
}

fn page(table: &str) -> String {
    format!(
        "# Which wall holds what\n\n\
         Written by `cargo xtask conformance --write`: the same hostile programs are run behind each wall, under\n\
         the default policy, and under one with a way out and a bound credential, here as root on Linux. Run `stockade doctor --attack --all-walls` for your own\n\
         machine. *Held* rests on the steps that `stockade explain` lists; what is *partial* or *not held* says\n\
         why. A guarantee that a wall claims and an attack breaks fails the command, and CI. *Unverified* is what\n\
         macOS's profile would hold: only a Mac can show it.\n\n\
         ```\n{}\n```\n",
        table.trim_end()
    )
}
