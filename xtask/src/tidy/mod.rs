//! `cargo xtask tidy`: the rules of the house that neither the compiler nor clippy knows.

mod dependencies;
mod generated;
mod licences;
mod sources;
mod specification;

use crate::shell;
use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Check the rules of the checkout that the compiler does not know.
///
/// Which crate may depend on which, licences of all dependencies, `unsafe` in its two places only, the
/// first line of each file, the length of functions, words that mark unfinished work, whether the
/// tests that SPECIFICATION.md names exist, and whether generated files are current. Prints one
/// `file:line: problem` a finding and fails if there is any.
#[derive(clap::Args)]
pub struct Options {
    /// Write the generated files instead of comparing them.
    #[arg(long)]
    write: bool,
}

impl Options {
    /// Compare and write nothing.
    pub fn compare() -> Self {
        Self { write: false }
    }
}

pub fn run(options: &Options) -> Result<()> {
    let mut findings = check()?;
    if options.write {
        generated::write()?;
    } else {
        findings.extend(generated::check()?);
    }
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!(
            "{} findings; each line above names a place and a rule",
            findings.len()
        );
    }
    println!("tidy");
    Ok(())
}

/// All checks that need no build of the product.
fn check() -> Result<Vec<String>> {
    let metadata = metadata()?;
    let mut findings = dependencies::check(&metadata)?;
    findings.extend(licences::check(&metadata)?);
    findings.extend(sources::check(shell::root())?);
    findings.extend(specification::check(shell::root())?);
    Ok(findings)
}

/// What cargo knows about the workspace and all its dependencies.
fn metadata() -> Result<Value> {
    let text = shell::capture(shell::cargo().args(["metadata", "--format-version", "1"]))?;
    serde_json::from_str(&text).context("cargo metadata is no JSON")
}

/// A string in cargo's metadata, or an error that names the key.
fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key]
        .as_str()
        .with_context(|| format!("cargo metadata has no {key}"))
}

/// A list in cargo's metadata, or an error that names the key.
fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value]> {
    Ok(value[key]
        .as_array()
        .with_context(|| format!("cargo metadata has no {key}"))?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_checkout_is_tidy() {
        let findings = super::check().unwrap();
        assert!(findings.is_empty(), "{}", findings.join("\n"));
    }
}
