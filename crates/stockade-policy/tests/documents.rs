//! Every example of a policy in the documents is one that works: it is read,
//! validated, merged, and accepted by the judge.

use std::fs;
use std::path::{Path, PathBuf};

use stockade_policy::document::parse;
use stockade_policy::merge::merge;
use stockade_policy::network::{Judge, NetworkPlan};
use stockade_policy::path::AbsolutePath;
use stockade_policy::problem::{Layer, LayerKind};
use stockade_policy::validate::{Context, validate};

const FENCE: &str = "```toml";

/// The README and all pages in `docs`.
fn pages() -> Vec<PathBuf> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![top.join("README.md")];
    for entry in fs::read_dir(top.join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    pages
}

/// Each example with the number of its first line.
fn examples(page: &str) -> Vec<(usize, String)> {
    let mut examples = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if line.trim() == FENCE {
            let example = lines.by_ref().map(|(_, line)| line);
            let example: Vec<&str> = example.take_while(|line| line.trim() != "```").collect();
            examples.push((number + 2, example.join("\n")));
        }
    }
    examples
}

/// What is wrong with an example, if anything.
fn problems(example: &str) -> Result<(), String> {
    let context = Context {
        workspace: AbsolutePath::parse("/home/u/project").unwrap(),
        home: AbsolutePath::parse("/home/u").unwrap(),
    };
    let source = match example.contains("version = 1") {
        true => example.to_owned(),
        false => format!("version = 1\n{example}"),
    };
    let shown = |problems: Vec<_>| format!("{problems:#?}");
    let layer = Layer::new(LayerKind::User, "example.toml");
    let document = parse(source.as_bytes(), &layer).map_err(shown)?;
    let policy = validate(&document, &context).map_err(shown)?;
    let network = merge(&[policy], &context).map_err(shown)?.network;
    let plan = NetworkPlan {
        sets: network.sets,
        deny: network.deny,
        credentials: network.credentials,
        ..NetworkPlan::nothing()
    };
    Judge::new(plan).map(drop)
}

#[test]
fn every_example_of_the_documents_is_a_policy() {
    let mut found = 0;
    let mut wrong = String::new();
    for path in pages() {
        let page = fs::read_to_string(&path).unwrap();
        for (line, example) in examples(&page) {
            found += 1;
            if let Err(problem) = problems(&example) {
                wrong += &format!("{}:{line}: {problem}\n", path.display());
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(found > 10, "only {found} examples were found");
}
