//! Rules about the text of the source files: first lines, length of functions, `unsafe`, and
//! words that mark unfinished work.

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use std::path::{Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A function that is longer no longer fits a screen, signature and braces included.
const FUNCTION_LINES_MAX: usize = 80;
/// `main.rs` of the product only starts it.
const MAIN_LINES_MAX: usize = 30;
/// Where `unsafe` may be: one crate, and one file of each program that has no C library that would
/// do it for it (the tiny machine has not even a kernel).
const UNSAFE_PLACES: &[&str] = &[
    "crates/stockade-sys/",
    "crates/stockade-agent/src/program/raw.rs",
    "crates/stockade-guest/src/program/raw.rs",
];
/// Words in comments that mark unfinished work. Split, so that this file does not hold them.
const UNFINISHED_WORDS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];
/// Macros that stand in for code.
const UNFINISHED_MACROS: &[&str] = &["todo", "unimplemented"];

/// One finding for each broken rule in the Rust files below `root`.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for path in rust_files(root)? {
        let source = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy();
        findings.extend(check_file(&name, &source));
    }
    Ok(findings)
}

fn check_file(name: &str, source: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if !source.starts_with("//!") {
        problems.push((
            1,
            "the file must open with `//!` and say what it is for".to_owned(),
        ));
    }
    if name == "crates/stockade/src/main.rs" && source.lines().count() > MAIN_LINES_MAX {
        problems.push((1, format!("main.rs is over {MAIN_LINES_MAX} lines")));
    }
    problems.extend(unfinished_words(source));
    match (syn::parse_file(source), source.parse()) {
        (Ok(file), Ok(tokens)) => {
            problems.extend(long_functions(&file));
            token_problems(name, tokens, &mut problems);
        }
        (Err(error), _) => {
            problems.push((
                error.span().start().line,
                format!("cannot be parsed: {error}"),
            ));
        }
        (_, Err(error)) => problems.push((error.span().start().line, error.to_string())),
    }
    problems.sort();
    problems
        .into_iter()
        .map(|(line, what)| format!("{name}:{line}: {what}"))
        .collect()
}

fn unfinished_words(source: &str) -> Vec<(usize, String)> {
    let mut problems = Vec::new();
    for (index, line) in source.lines().enumerate() {
        let mut words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        if let Some(word) = words.find(|word| UNFINISHED_WORDS.contains(word)) {
            problems.push((index + 1, format!("{word} marks unfinished work")));
        }
    }
    problems
}

fn long_functions(file: &syn::File) -> Vec<(usize, String)> {
    let mut lengths = FunctionLengths::default();
    lengths.visit_file(file);
    lengths.too_long
}

#[derive(Default)]
struct FunctionLengths {
    too_long: Vec<(usize, String)>,
}

impl FunctionLengths {
    fn measure(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let first = signature.span().start().line;
        let lines = block.span().end().line + 1 - first;
        if lines > FUNCTION_LINES_MAX {
            let what = format!("fn {} has {lines} lines", signature.ident);
            self.too_long
                .push((first, format!("{what}, over {FUNCTION_LINES_MAX}")));
        }
    }
}

impl<'ast> Visit<'ast> for FunctionLengths {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.measure(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.measure(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.measure(&function.sig, block);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

/// Finds `unsafe`, macros that stand in for code, and tests that are switched off.
fn token_problems(name: &str, tokens: TokenStream, problems: &mut Vec<(usize, String)>) {
    let mut trees = tokens.into_iter().peekable();
    while let Some(tree) = trees.next() {
        match tree {
            TokenTree::Ident(word) => {
                let line = word.span().start().line;
                let word = word.to_string();
                let is_macro =
                    matches!(trees.peek(), Some(TokenTree::Punct(p)) if p.as_char() == '!');
                let may_be_unsafe = UNSAFE_PLACES.iter().any(|place| name.starts_with(place));
                if word == "unsafe" && !may_be_unsafe {
                    let places = UNSAFE_PLACES.join(" and ");
                    problems.push((line, format!("`unsafe` belongs in {places} only")));
                }
                if is_macro && UNFINISHED_MACROS.contains(&word.as_str()) {
                    problems.push((line, format!("{word}! stands in for code")));
                }
            }
            TokenTree::Punct(mark) if mark.as_char() == '#' => {
                if let Some(TokenTree::Group(group)) = trees.peek()
                    && attribute_name(group) == "ignore"
                {
                    let line = mark.span().start().line;
                    problems.push((line, "a test that is switched off".to_owned()));
                }
            }
            TokenTree::Group(group) => token_problems(name, group.stream(), problems),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

fn attribute_name(group: &proc_macro2::Group) -> String {
    group
        .stream()
        .into_iter()
        .next()
        .map(|tree| tree.to_string())
        .unwrap_or_default()
}

/// All Rust files below `directory`, in order, without build products and hidden directories.
pub fn rust_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut entries: Vec<_> = std::fs::read_dir(directory)
        .with_context(|| format!("cannot list {}", directory.display()))?
        .collect::<Result<_, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if entry.file_type()?.is_dir() {
            if name != "target" && name != "node_modules" && !name.starts_with('.') {
                files.extend(rust_files(&path)?);
            }
        } else if name.ends_with(".rs") {
            files.push(path);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_body(name: &str, body: &str) -> Vec<String> {
        check_file(name, &format!("//! A file.\n{body}"))
    }

    #[test]
    fn a_file_says_what_it_is_for() {
        assert_eq!(check_file("a.rs", "fn a() {}\n").len(), 1);
        assert!(check_body("a.rs", "fn a() {}\n").is_empty());
    }

    #[test]
    fn unsafe_counts_as_code_only_and_in_its_places_only() {
        let code = "fn a() { unsafe { b() } }\n";
        assert_eq!(check_body("crates/stockade/src/a.rs", code).len(), 1);
        assert_eq!(check_body("crates/stockade-agent/src/a.rs", code).len(), 1);
        assert!(check_body("crates/stockade-sys/src/a.rs", code).is_empty());
        assert!(check_body("crates/stockade-agent/src/program/raw.rs", code).is_empty());
        let words = "/// unsafe\nfn a() { let _b = \"unsafe\"; }\n";
        assert!(check_body("a.rs", words).is_empty());
    }

    #[test]
    fn unfinished_work_is_found() {
        let comment = format!("// {}: later\n", UNFINISHED_WORDS[0]);
        assert_eq!(check_body("a.rs", &comment).len(), 1);
        let stand_in = format!("fn a() {{ {}!() }}\n", UNFINISHED_MACROS[0]);
        assert_eq!(check_body("a.rs", &stand_in).len(), 1);
        assert_eq!(check_body("a.rs", "#[ignore]\nfn a() {}\n").len(), 1);
        assert!(check_body("a.rs", "fn a() { let _b = \"/tmp/XXXXXX\"; }\n").is_empty());
    }

    #[test]
    fn long_functions_are_found_wherever_they_are() {
        let body = |lines: usize| "    b();\n".repeat(lines - 2);
        let function = |lines: usize| format!("fn a() {{\n{}}}\n", body(lines));
        assert!(check_body("a.rs", &function(FUNCTION_LINES_MAX)).is_empty());
        assert_eq!(
            check_body("a.rs", &function(FUNCTION_LINES_MAX + 1)).len(),
            1
        );
        let method = format!("impl A {{\n{}}}\n", function(FUNCTION_LINES_MAX + 1));
        assert_eq!(check_body("a.rs", &method).len(), 1);
    }
}
