//! Files in the checkout that the product itself writes must be what it would write now.

use crate::shell;
use anyhow::{Context, Result};

/// A file below the top of the checkout and the arguments that make `stockade` print it.
struct Generator {
    file: &'static str,
    arguments: &'static [&'static str],
}

/// Every generated file. A new one needs a line here and nothing else.
const GENERATORS: &[Generator] = &[
    generator("docs/generated/stockade.schema.json", &["schema"]),
    generator("docs/generated/stockade.1", &["man"]),
    generator("docs/generated/stockade.bash", &["completions", "bash"]),
    generator("docs/generated/stockade.fish", &["completions", "fish"]),
    generator("docs/generated/_stockade", &["completions", "zsh"]),
];

const fn generator(file: &'static str, arguments: &'static [&'static str]) -> Generator {
    Generator { file, arguments }
}

/// One finding for each file that differs from what the product prints.
pub fn check() -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for generator in GENERATORS {
        let current = std::fs::read_to_string(shell::root().join(generator.file)).ok();
        if current != Some(generator.print()?) {
            let file = generator.file;
            findings.push(format!(
                "{file}:1: not current; run `cargo xtask tidy --write`"
            ));
        }
    }
    Ok(findings)
}

/// Writes all generated files.
pub fn write() -> Result<()> {
    for generator in GENERATORS {
        let path = shell::root().join(generator.file);
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        std::fs::write(&path, generator.print()?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        println!("wrote {}", generator.file);
    }
    Ok(())
}

impl Generator {
    fn print(&self) -> Result<String> {
        let run = ["run", "--quiet", "--package", "stockade", "--"];
        shell::capture(shell::cargo().args(run).args(self.arguments))
    }
}
