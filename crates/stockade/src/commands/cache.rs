//! `stockade cache`: lists and clears the caches that runs keep.

use std::path::PathBuf;

use anyhow::{Context, bail};
use serde_json::json;
use stockade_engine::caches::{self, Domain};
use stockade_engine::discover;
use stockade_engine::state::Places;
use stockade_policy::caches::{Cache, is_name};
use stockade_policy::path::AbsolutePath;

use super::trust::{resolve, start_directory};
use crate::exit::ExitCode;

/// Show or clear the caches that runs keep for each project
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show or clear the caches that runs keep for each project.\n\n\
        Package managers and compilers inside keep what they fetched and built for the next run in \
        the same project. No other project and nothing outside uses it. `filesystem.caches` in a \
        policy says which; `filesystem.cache_bytes_max` how much may stay when a run has ended.",
    after_long_help = "Examples:\n  \
        stockade cache list              every project, and what its caches hold\n  \
        stockade cache clear             all caches of this project\n  \
        stockade cache clear npm         one of them\n  \
        stockade cache clear --all       those of every project"
)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show what the caches of each project hold
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Empty caches of this project
    Clear {
        /// Only this one: cargo, npm, pip, go, ccache, or one that a policy names
        name: Option<String>,
        /// The project directory; found from the current directory otherwise
        #[arg(long, value_name = "DIR", conflicts_with = "all")]
        project: Option<PathBuf>,
        /// Those of every project
        #[arg(long)]
        all: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take away what is too much; started when a run has ended
    #[command(hide = true)]
    Trim { domain: String, bytes_max: u64 },
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let home = Places::of_caller()?.home;
    let place = caches::place(&home).context(
        "your cache directory cannot be used\n  remedy: set XDG_CACHE_HOME to one that can",
    )?;
    match &arguments.command {
        Command::List { json } => list(&place, *json),
        Command::Clear {
            name,
            project,
            all,
            json,
        } => {
            let domains = match all {
                true => Domain::all(&place)?,
                false => {
                    let start = resolve(&start_directory(project.as_deref())?)?;
                    let workspace = discover::find_project(&start, &home)?.root;
                    Domain::of(&place, &workspace)?.into_iter().collect()
                }
            };
            if let Some(name) = name {
                check_name(name, &domains)?;
            }
            clear(&domains, name.as_deref(), *json)
        }
        Command::Trim { domain, bytes_max } => {
            if let Some(domain) = Domain::existing(&place, domain.as_bytes())? {
                caches::trim(&domain, *bytes_max)?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Whether something is known of a cache, or one of these holds it.
fn check_name(name: &str, domains: &[Domain]) -> anyhow::Result<()> {
    let mut found = Cache::KNOWN.iter().any(|cache| cache.name() == name);
    for domain in domains {
        found |= is_name(name) && caches::usage(domain)?.contains_key(name);
    }
    if !found {
        let names: Vec<&str> = Cache::KNOWN.iter().map(Cache::name).collect();
        bail!(
            "no cache is called {name:?}\n  the caches are: {}, and those that a policy names \
             (`stockade cache list`)",
            names.join(", ")
        );
    }
    Ok(())
}

fn list(place: &AbsolutePath, as_json: bool) -> anyhow::Result<ExitCode> {
    let mut projects = Vec::new();
    for domain in Domain::all(place)? {
        let workspace = shown(&domain);
        let usage = caches::usage(&domain)?;
        if !as_json {
            println!("{workspace}");
            for (name, usage) in &usage {
                println!(
                    "  {name:<7} {:>12} bytes in {} files",
                    usage.bytes, usage.files
                );
            }
        }
        let list: Vec<_> = usage
            .iter()
            .map(|(name, usage)| {
                json!({"name": name, "bytes": usage.bytes, "files": usage.files,
                       "used_unix": usage.used_unix})
            })
            .collect();
        projects
            .push(json!({"project": workspace, "path": domain.path.to_string(), "caches": list}));
    }
    if as_json {
        println!("{}", json!({"version": 1, "projects": projects}));
    } else if projects.is_empty() {
        println!("No project has caches.");
    }
    Ok(ExitCode::SUCCESS)
}

fn clear(domains: &[Domain], cache: Option<&str>, as_json: bool) -> anyhow::Result<ExitCode> {
    let mut cleared = Vec::new();
    for domain in domains {
        caches::clear(domain, cache)?;
        if !as_json {
            println!("cleared: {}", shown(domain));
        }
        cleared.push(shown(domain));
    }
    if as_json {
        println!("{}", json!({"version": 1, "cleared": cleared}));
    } else if cleared.is_empty() {
        println!("There are no caches here.");
    }
    Ok(ExitCode::SUCCESS)
}

/// The project's path, escaped where it is printed by [`AbsolutePath`].
fn shown(domain: &Domain) -> String {
    let workspace = domain.workspace();
    workspace.map_or_else(
        || "a project of unknown path".to_owned(),
        |path| path.to_string(),
    )
}
