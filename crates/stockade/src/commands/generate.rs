//! `stockade completions`, `man` and `schema`: texts generated from the one
//! definition of the command line and of the policy.

use std::io::{self, Write};

use crate::exit::ExitCode;

/// Print completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Example:\n  \
    stockade completions bash > ~/.local/share/bash-completion/completions/stockade")]
pub struct CompletionsArgs {
    shell: clap_complete::Shell,
}

/// Print the manual page
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Example:\n  stockade man | man -l -")]
pub struct ManArgs {
    /// The page of one subcommand
    subcommand: Option<String>,
}

/// Print the JSON Schema of stockade.toml
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Example:\n  stockade schema > stockade.schema.json")]
pub struct SchemaArgs {}

pub fn completions(arguments: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut definition = crate::cli::definition();
    clap_complete::generate(
        arguments.shell,
        &mut definition,
        "stockade",
        &mut io::stdout(),
    );
    Ok(ExitCode::SUCCESS)
}

pub fn man(arguments: &ManArgs) -> anyhow::Result<ExitCode> {
    let definition = crate::cli::definition();
    let definition = match &arguments.subcommand {
        None => definition,
        Some(name) => {
            let Some(found) = definition.find_subcommand(name) else {
                anyhow::bail!("there is no subcommand called `{name}`");
            };
            // clap keeps names for the life of the program.
            let full: &'static str = Box::leak(format!("stockade-{name}").into_boxed_str());
            found.clone().name(full)
        }
    };
    clap_mangen::Man::new(definition).render(&mut io::stdout())?;
    Ok(ExitCode::SUCCESS)
}

pub fn schema(_: &SchemaArgs) -> anyhow::Result<ExitCode> {
    let schema = serde_json::to_string_pretty(&stockade_policy::schema::schema())?;
    writeln!(io::stdout(), "{schema}")?;
    Ok(ExitCode::SUCCESS)
}
