//! The licence of every dependency must be permissive, and must be stated.

use super::{list, text};
use anyhow::Result;
use serde_json::Value;

/// SPDX names that ask for no more than attribution.
const PERMISSIVE: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "NCSA",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Unlicense",
    "Zlib",
];

/// One finding for each package that states no licence or none that is permissive.
pub fn check(metadata: &Value) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for package in list(metadata, "packages")? {
        let (name, manifest) = (text(package, "name")?, text(package, "manifest_path")?);
        match package["license"].as_str() {
            Some(licence) if is_permissive(licence) => {}
            Some(licence) => findings.push(format!("{manifest}:1: {name} is under {licence}")),
            None => findings.push(format!("{manifest}:1: {name} states no licence")),
        }
    }
    Ok(findings)
}

/// Whether an SPDX expression can be satisfied with permissive licences alone.
///
/// The old form with a slash means OR. Anything that cannot be read counts as not permissive.
fn is_permissive(expression: &str) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let verdict = any_of(&mut words);
    verdict && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any_of(words: &mut Words) -> bool {
    let mut verdict = all_of(words);
    while words.next_if_eq(&"OR").is_some() {
        // Evaluated in full so that the rest of the expression is consumed.
        verdict |= all_of(words);
    }
    verdict
}

fn all_of(words: &mut Words) -> bool {
    let mut verdict = one(words);
    while words.next_if_eq(&"AND").is_some() {
        verdict &= one(words);
    }
    verdict
}

fn one(words: &mut Words) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let verdict = any_of(words);
        return words.next() == Some(")") && verdict;
    }
    let Some(name) = words.next() else {
        return false;
    };
    if words.next_if_eq(&"WITH").is_none() {
        return PERMISSIVE.contains(&name);
    }
    let exception = words.next().unwrap_or_default();
    PERMISSIVE.contains(&format!("{name} WITH {exception}").as_str())
}

#[cfg(test)]
mod tests {
    use super::is_permissive;

    #[test]
    fn reads_expressions() {
        assert!(is_permissive("MIT"));
        assert!(is_permissive("MIT/Apache-2.0"));
        assert!(is_permissive("GPL-3.0-only OR MIT"));
        assert!(is_permissive("(MIT OR Apache-2.0) AND Unicode-3.0"));
        assert!(is_permissive(
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT"
        ));
        assert!(is_permissive("Unlicense OR MIT"));
    }

    #[test]
    fn refuses_copyleft_and_nonsense() {
        assert!(!is_permissive("GPL-3.0-only"));
        assert!(!is_permissive("MIT AND LGPL-2.1-or-later"));
        assert!(!is_permissive("(MIT OR Apache-2.0) AND GPL-2.0-only"));
        assert!(!is_permissive("MIT MIT"));
        assert!(!is_permissive("(MIT"));
        assert!(!is_permissive(""));
    }
}
