//! From files and options to one policy: finds the layers, asks the trust
//! store, parses, validates and merges.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use stockade_policy::document::{self, Setting};
use stockade_policy::merge::{Worktree, grant_worktree, merge};
use stockade_policy::path::{AbsolutePath, printable};
use stockade_policy::policy::Policy;
use stockade_policy::problem::{Layer, LayerKind, Problem, Trust as LayerTrust};
use stockade_policy::validate::{Context, LayerPolicy, validate};

use crate::discover::{self, DiscoverError, Source};
use crate::git;
use crate::probe;
use crate::state::{Places, StateDirectory, StateError};
use crate::trust::{self, Trust, TrustError};
use crate::worktree::{self, Found};

/// One option of the command line: a key of the policy and its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CliSetting {
    pub key: &'static str,
    pub values: Vec<String>,
}

/// What a caller may say about where and under which policy to run.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The project directory; found from the current directory when `None`.
    pub project: Option<PathBuf>,
    pub settings: Vec<CliSetting>,
}

/// A policy and what it was made from.
#[derive(Debug)]
pub struct Loaded {
    pub policy: Policy,
    pub home: AbsolutePath,
    /// The caller's current directory, links resolved.
    pub current: AbsolutePath,
    pub state: StateDirectory,
    pub sources: Vec<LayerSource>,
    /// Things that were ignored for safety and that a person should know.
    pub notes: Vec<String>,
}

/// One file that takes part, for rendering problems.
#[derive(Clone, Debug)]
pub struct LayerSource {
    pub layer: Layer,
    pub content: Vec<u8>,
}

/// Why there is no policy.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("the {what} {path} cannot be used: {error}")]
    Directory {
        what: &'static str,
        path: String,
        error: std::io::Error,
    },
    #[error(
        "the current directory cannot be used: {error}\n  remedy: change to a directory that exists"
    )]
    Current { error: std::io::Error },
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// The policy is wrong; all problems at once.
    #[error("the policy has {} problem(s)", problems.len())]
    Problems {
        problems: Vec<Problem>,
        sources: Vec<LayerSource>,
    },
}

/// Loads the policy for the caller's current directory.
pub fn load(selection: &Selection) -> Result<Loaded, LoadError> {
    let places = Places::of_caller()?;
    let state = StateDirectory::open(&places)?;
    let home = resolve("home directory", places.home.as_path())?;
    let current = std::env::current_dir().map_err(|error| LoadError::Current { error })?;
    let current = resolve("current directory", &current)?;
    let project = match &selection.project {
        Some(path) => discover::project_at(&resolve("project directory", path)?)?,
        None => discover::find_project(&current, &home)?,
    };
    let mut files = Vec::new();
    if let Some(source) = discover::organisation_file()? {
        files.push((LayerKind::Organisation, source));
    }
    if let Some(source) = discover::user_file(&places)? {
        files.push((LayerKind::User, source));
    }
    if let Some(source) = project.policy_file {
        let trust = match trust::is_trusted(&state, &source.resolved, &source.content)? {
            Trust::Trusted => LayerTrust::Trusted,
            Trust::Changed { .. } | Trust::Unknown => {
                // Who names the project has chosen its policy file.
                if selection.project.is_none() {
                    discover::refuse_displacement(&source, &home)?;
                }
                LayerTrust::Untrusted
            }
        };
        files.push((LayerKind::Project(trust), source));
    }
    let context = Context {
        workspace: project.root,
        home: home.clone(),
    };
    let mut notes = project.notes;
    let worktree = match worktree::linked(&context.workspace) {
        Found::Nothing => None,
        Found::Linked(worktree) => Some(worktree),
        Found::Refused(note) => {
            notes.push(note);
            None
        }
    };
    let settings = &selection.settings;
    let (mut policy, sources) = policy(files, settings, &context, &current, worktree.as_ref())?;
    let led = git::leads::guarded(&context.workspace, &home, &probe::environment());
    policy.guard = policy.guard.with_found(led);
    Ok(Loaded {
        policy,
        home,
        current,
        state,
        sources,
        notes,
    })
}

fn resolve(what: &'static str, path: &Path) -> Result<AbsolutePath, LoadError> {
    let failed = |error: std::io::Error| LoadError::Directory {
        what,
        path: printable(path.as_os_str().as_bytes()),
        error,
    };
    let resolved = std::fs::canonicalize(path).map_err(failed)?;
    if !resolved.is_dir() {
        return Err(failed(std::io::ErrorKind::NotADirectory.into()));
    }
    AbsolutePath::parse(resolved.as_os_str().as_bytes())
        .map_err(|error| failed(std::io::Error::other(error)))
}

fn policy(
    files: Vec<(LayerKind, Source)>,
    settings: &[CliSetting],
    context: &Context,
    current: &AbsolutePath,
    worktree: Option<&Worktree>,
) -> Result<(Policy, Vec<LayerSource>), LoadError> {
    let mut layers = Vec::new();
    let mut problems = Vec::new();
    let mut sources = Vec::new();
    for (kind, source) in files {
        let layer = Layer::new(kind, display_name(&source, context));
        let parsed = document::parse(&source.content, &layer)
            .and_then(|document| validate(&document, context));
        match parsed {
            Ok(valid) => layers.push(valid),
            Err(found) => problems.extend(found),
        }
        sources.push(LayerSource {
            layer,
            content: source.content,
        });
    }
    for (name, settings) in command_line_layers(settings) {
        match command_line_layer(name, &settings, context, current) {
            Ok(valid) => layers.push(valid),
            Err(found) => problems.extend(found),
        }
    }
    if !problems.is_empty() {
        return Err(LoadError::Problems { problems, sources });
    }
    match merge(&layers, context) {
        Ok(mut policy) => {
            if let Some(worktree) = worktree {
                grant_worktree(&mut policy, &layers, context, worktree);
            }
            Ok((policy, sources))
        }
        Err(problems) => Err(LoadError::Problems { problems, sources }),
    }
}

/// Options that say "also" next to a preset are a layer of their own: within
/// one layer a key would replace the preset's.
fn command_line_layers(settings: &[CliSetting]) -> Vec<(&'static str, Vec<&CliSetting>)> {
    const ADDING: [&str; 6] = [
        "filesystem.read",
        "filesystem.write",
        "environment.pass",
        "network.allow",
        "network.publish",
        "network.host_ports",
    ];
    let named = settings.iter().any(|setting| setting.key == "preset");
    let (adding, stating): (Vec<_>, Vec<_>) = settings
        .iter()
        .partition(|setting| named && ADDING.contains(&setting.key));
    let mut layers = vec![("command line", stating), ("command line, added", adding)];
    layers.retain(|(_, settings)| !settings.is_empty());
    layers
}

fn command_line_layer(
    name: &str,
    settings: &[&CliSetting],
    context: &Context,
    current: &AbsolutePath,
) -> Result<LayerPolicy, Vec<Problem>> {
    let layer = Layer::new(LayerKind::CommandLine, name);
    let resolved: Vec<(&'static str, Vec<String>)> = settings
        .iter()
        .map(|setting| (setting.key, from_current(setting, current)))
        .collect();
    let texts: Vec<(&str, Vec<&str>)> = resolved
        .iter()
        .map(|(key, values)| (*key, values.iter().map(String::as_str).collect()))
        .collect();
    let wire: Vec<Setting<'_>> = texts
        .iter()
        .map(|(key, values)| Setting { key, values })
        .collect();
    document::from_settings(&wire, &layer).and_then(|document| validate(&document, context))
}

/// A path on the command line is relative to the current directory, as a
/// person expects; in a file it is relative to the project.
fn from_current(setting: &CliSetting, current: &AbsolutePath) -> Vec<String> {
    if !matches!(setting.key, "filesystem.read" | "filesystem.write") {
        return setting.values.clone();
    }
    setting
        .values
        .iter()
        .map(|value| {
            let named_set = matches!(value.as_str(), "system" | "toolchains");
            if named_set || value.starts_with(['/', '~']) {
                return value.clone();
            }
            let resolved = above(current, value);
            match resolved
                .as_ref()
                .map(|path| std::str::from_utf8(path.as_bytes()))
            {
                Some(Ok(path)) => path.to_owned(),
                // Left as it is: validation names what is wrong with it.
                _ => value.clone(),
            }
        })
        .collect()
}

/// A relative path from `current`, whose links are resolved, so that leading
/// `..` mean its parents. A later `..` could follow a link and is not taken.
fn above(current: &AbsolutePath, value: &str) -> Option<AbsolutePath> {
    let mut base = current.clone();
    let mut rest = value;
    while let Some(tail) = rest
        .strip_prefix("..")
        .filter(|tail| matches!(tail.as_bytes(), [] | [b'/', ..]))
    {
        base = base.parent()?;
        rest = tail.trim_start_matches('/');
    }
    base.join(rest.as_bytes()).ok()
}

fn display_name(source: &Source, context: &Context) -> String {
    match source.path.relative_to(&context.workspace) {
        Some(relative) => printable(relative),
        None => source.path.to_string(),
    }
}
