//! `stockade init`: writes a commented policy file.
//!
//! The text comes from the same table as the parser and the JSON schema, so it
//! cannot name a key that does not exist.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::{Context, bail};
use stockade_engine::discover::POLICY_FILE_NAME;
use stockade_engine::events::{Hash, trusted};
use stockade_engine::log::Log;
use stockade_engine::state::{Places, StateDirectory};
use stockade_engine::trust::trust;
use stockade_policy::path::printable;
use stockade_policy::{presets, schema};

use super::trust::resolve;
use crate::exit::ExitCode;

/// Write a commented stockade.toml
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Write a commented stockade.toml.\n\n\
        No file is needed to start: without one, `stockade run` uses the built-in policy (write \
        the project, read what programs need, no network). The file that this writes starts from \
        a preset; every other key is there as a comment with its meaning, to switch on.\n\n\
        What this writes is trusted at once. After a change the file only takes rights away, \
        until you look at it and run `stockade trust`. Your own file for all projects is \
        ~/.config/stockade/stockade.toml.",
    after_long_help = "Examples:\n  \
        stockade init                      in the current directory\n  \
        stockade init --preset build       start from a preset\n  \
        stockade init --print              only show it"
)]
pub struct Args {
    /// Directory to write it in
    #[arg(default_value = ".")]
    directory: PathBuf,
    /// Start from a preset: default, build, read-only, ci or strict
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Print it instead of writing a file
    #[arg(long, conflicts_with = "directory")]
    print: bool,
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let text = text(arguments.preset.as_deref())?;
    if arguments.print {
        io::stdout().lock().write_all(text.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    // Whatever could keep the file from being trusted is known before it is made.
    let state = StateDirectory::open(&Places::of_caller()?)?;
    let log = Log::open(&state)?;
    let directory = resolve(&arguments.directory)?;
    let path = directory.join(POLICY_FILE_NAME)?;
    // O_EXCL neither overwrites a file nor follows a link (open(2)).
    let mut file = match OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path.as_path())
    {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!("{path} exists already\n  remedy: `stockade init --print` shows a fresh one")
        }
        Err(error) => return Err(error).with_context(|| format!("cannot make {path}")),
    };
    file.write_all(text.as_bytes())
        .with_context(|| format!("cannot write {path}"))?;
    let now = SystemTime::now();
    log.append(None, &[trusted(&path, Hash::of(text.as_bytes()))], now)?;
    trust(&state, &path, text.as_bytes(), now)?;
    println!("Wrote {path} and trusted it. After changing it, run `stockade trust`.");
    Ok(ExitCode::SUCCESS)
}

fn text(preset: Option<&str>) -> anyhow::Result<String> {
    let template = schema::template();
    let Some(name) = preset else {
        return Ok(template);
    };
    if presets::find(name).is_none() {
        let names: Vec<_> = presets::all().iter().map(|preset| preset.name).collect();
        bail!(
            "there is no preset {:?}\n  remedy: use one of {}",
            printable(name.as_bytes()),
            names.join(", ")
        );
    }
    let lines = template
        .lines()
        .map(|line| match line.starts_with("preset = ") {
            true => format!("preset = \"{name}\"\n"),
            false => format!("{line}\n"),
        });
    Ok(lines.collect())
}

#[cfg(test)]
mod tests {
    use stockade_policy::document;
    use stockade_policy::problem::{Layer, LayerKind};

    use super::*;

    #[test]
    fn what_is_written_parses_with_and_without_every_preset() {
        let layer = Layer::new(LayerKind::User, POLICY_FILE_NAME);
        let names = presets::all().iter().map(|preset| Some(preset.name));
        for preset in names.chain([None]) {
            let document = document::parse(text(preset).unwrap().as_bytes(), &layer).unwrap();
            let name = document.preset.map(|preset| preset.value.name);
            assert!(preset.is_none() || name == preset, "{preset:?}");
        }
        let error = text(Some("buidl")).unwrap_err().to_string();
        assert!(error.contains("default, build"), "{error}");
    }
}
