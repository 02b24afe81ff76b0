//! The paper must not rot: every guarantee has a row in SPECIFICATION.md, and every test and every
//! attack that is named there exists.

use super::sources;
use anyhow::{Context, Result};
use std::path::Path;

const FILE: &str = "SPECIFICATION.md";
/// Where the ids of guarantees and of attacks are defined.
const GUARANTEES: &str = "crates/stockade-policy/src/guarantee.rs";
const ATTACKS: &str = "crates/stockade-attacks/src/corpus/";

/// One finding for each name without a counterpart in the sources below `root`.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let text =
        std::fs::read_to_string(root.join(FILE)).with_context(|| format!("cannot read {FILE}"))?;
    let mut sources = Vec::new();
    for path in sources::rust_files(root)? {
        let source = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy();
        sources.push((name.into_owned(), source));
    }
    Ok(check_text(&text, &sources))
}

/// `sources` are names from the top of the checkout and their contents.
fn check_text(text: &str, sources: &[(String, String)]) -> Vec<String> {
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let problems = quoted(line).filter_map(|name| problem(name, sources));
        findings.extend(problems.map(|what| format!("{FILE}:{}: {what}", index + 1)));
    }
    let guarantees = sources.iter().find(|(name, _)| name == GUARANTEES);
    for id in guarantees
        .iter()
        .flat_map(|(_, source)| source.lines().filter_map(guarantee))
    {
        if !text
            .lines()
            .any(|line| line.starts_with(&format!("| {id} |")))
        {
            findings.push(format!("{FILE}:1: the guarantee {id} has no row"));
        }
    }
    findings
}

/// What stands between back quotes.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// What is wrong with a name, if it is the name of a test or of attacks.
fn problem(name: &str, sources: &[(String, String)]) -> Option<String> {
    if let Some((file, test)) = name.split_once(".rs::") {
        let file = format!("{file}.rs");
        let mut named = sources
            .iter()
            .filter(|(path, _)| ends_with_path(path, &file));
        return match (named.next(), named.next()) {
            (None, _) => Some(format!("there is no file {file}")),
            (Some(_), Some(_)) => Some(format!("{file} names several files")),
            (Some((_, source)), None) => (!source.contains(&format!("fn {test}(")))
                .then(|| format!("{file} has no test {test}")),
        };
    }
    if !is_attack(name) {
        return None;
    }
    let wanted = match name.strip_suffix('*') {
        Some(prefix) => format!("\"{prefix}"),
        None => format!("\"{name}\""),
    };
    let found = sources
        .iter()
        .any(|(path, source)| path.starts_with(ATTACKS) && source.contains(&wanted));
    (!found).then(|| format!("there is no attack {name}"))
}

/// Whether `path` is `end`, or ends in it after a slash.
fn ends_with_path(path: &str, end: &str) -> bool {
    path.strip_suffix(end)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
}

/// Ids of attacks begin like `fs1-`.
fn is_attack(name: &str) -> bool {
    matches!(name.as_bytes(), [a, b, digit, b'-', _, ..]
        if a.is_ascii_lowercase() && b.is_ascii_lowercase() && digit.is_ascii_digit())
}

/// The id in a line such as `FS1: "only granted paths can be read",`.
fn guarantee(line: &str) -> Option<&str> {
    let (id, promise) = line.trim().split_once(": \"")?;
    let well_formed = id.len() == 3 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (well_formed && promise.ends_with(',')).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        let sources = [
            ("a/tests/one.rs", "fn holds() {}"),
            ("b/tests/one.rs", "fn holds() {}"),
            (GUARANTEES, "    FS1: \"a promise\",\n"),
            (
                "crates/stockade-attacks/src/corpus/x.rs",
                "FS1 \"fs1-dots\", Ordinary",
            ),
        ];
        check_text(
            text,
            &sources.map(|(name, source)| (name.into(), source.into())),
        )
    }

    #[test]
    fn names_that_exist_are_fine() {
        let text = "| FS1 | `a/tests/one.rs::holds` | `fs1-*` `fs1-dots` | `stockade run` |";
        assert_eq!(findings(text), Vec::<String>::new());
    }

    #[test]
    fn every_wrong_name_is_a_finding() {
        let text = "| FS2 | `a/tests/one.rs::breaks` `tests/one.rs::holds` `two.rs::x` | `pr1-*` |";
        assert_eq!(
            findings(text),
            [
                "SPECIFICATION.md:1: a/tests/one.rs has no test breaks",
                "SPECIFICATION.md:1: tests/one.rs names several files",
                "SPECIFICATION.md:1: there is no file two.rs",
                "SPECIFICATION.md:1: there is no attack pr1-*",
                "SPECIFICATION.md:1: the guarantee FS1 has no row",
            ]
        );
    }
}
