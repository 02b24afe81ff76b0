//! The store of the project around the current directory, for the commands
//! that look at what waits.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use anyhow::bail;
use stockade_engine::load::{Loaded, Selection, load};
use stockade_policy::guard::Guard;
use stockade_policy::path::printable;
use stockade_workspace::change::{Change, ChangeKind, Changes};
use stockade_workspace::held::{self, Verdict};
use stockade_workspace::run_dir::Run;
use stockade_workspace::settle::Layers;
use stockade_workspace::stack::Stack;
use stockade_workspace::store::Store;

/// Where the command looks
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ProjectOptions {
    /// Project directory; otherwise found as by `stockade run`
    #[arg(long, value_name = "DIR")]
    pub project: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The project's policy and store.
pub struct Project {
    pub loaded: Loaded,
    pub store: Store,
}

impl Project {
    /// Finds the project and its store; a project without one has nothing
    /// that waits, and gets an empty one.
    pub fn find(options: &ProjectOptions) -> anyhow::Result<Self> {
        let loaded = load(&Selection {
            project: options.project.clone(),
            settings: Vec::new(),
        })?;
        let store = Store::open(loaded.state.as_fd(), &loaded.policy.workspace)?;
        Ok(Self { loaded, store })
    }

    /// Splits positional arguments into a run and paths of the workspace: the
    /// first one is a run when it is called like one.
    pub fn run_and_paths(&self, arguments: &[OsString]) -> anyhow::Result<(Run, Vec<Vec<u8>>)> {
        let named = arguments.first().and_then(|first| first.to_str());
        let mut rest = arguments;
        let run = match named.map(|name| self.store.run(Some(name))) {
            Some(Ok(run)) => {
                rest = &arguments[1..];
                run
            }
            Some(Err(error)) if !self.is_path(&arguments[0]) => return Err(error.into()),
            _ => self.store.run(None)?,
        };
        let paths = rest.iter().map(|path| self.relative(Path::new(path)));
        Ok((run, paths.collect::<anyhow::Result<_>>()?))
    }

    /// Whether an argument is meant as a path: it looks like one, or there is
    /// something.
    fn is_path(&self, argument: &OsString) -> bool {
        let bytes = argument.as_bytes();
        bytes.contains(&b'/') || bytes.contains(&b'.') || Path::new(argument).exists()
    }

    /// A path as the workspace knows it.
    fn relative(&self, path: &Path) -> anyhow::Result<Vec<u8>> {
        let workspace = self.loaded.policy.workspace.as_path();
        let mut absolute = self.loaded.current.as_path().to_path_buf();
        if path.is_absolute() {
            absolute = PathBuf::from("/");
        }
        for component in path.components() {
            match component {
                Component::ParentDir => {
                    absolute.pop();
                }
                Component::Normal(name) => absolute.push(name),
                _ => {}
            }
        }
        match absolute.strip_prefix(workspace) {
            Ok(relative) => Ok(relative.as_os_str().as_bytes().to_vec()),
            Err(_) => bail!(
                "{} is not in the project {}",
                printable(path.as_os_str().as_bytes()),
                self.loaded.policy.workspace
            ),
        }
    }
}

/// What a run changes, each change with what the guard says of it.
pub struct Waiting {
    pub changes: Changes,
    pub verdicts: Vec<Option<Verdict>>,
    pub below: Stack,
    pub whole: Stack,
    /// Keeps what the stacks read in its place.
    _layers: Layers,
}

impl Waiting {
    /// Looks at a run.
    pub fn of(store: &Store, guard: &Guard, run: &Run) -> anyhow::Result<Self> {
        let layers = Layers::of_run(store, run)?;
        let changes = layers.changes()?;
        let (whole, below) = layers.stacks()?;
        let verdicts = changes
            .iter()
            .map(|change| held::judge(guard, change, &below, &whole))
            .collect();
        Ok(Self {
            changes,
            verdicts,
            below,
            whole,
            _layers: layers,
        })
    }

    /// The changes and what the guard says, held ones first.
    pub fn in_order(&self) -> Vec<(&Change, Option<&Verdict>)> {
        let mut all: Vec<_> = self
            .changes
            .iter()
            .zip(self.verdicts.iter().map(Option::as_ref))
            .collect();
        all.sort_by_key(|(_, verdict)| match verdict {
            Some(verdict) if verdict.held => 0,
            Some(_) => 1,
            None => 2,
        });
        all
    }

    /// The changes of which the guard says something, held ones first.
    pub fn special(&self) -> Vec<(&Change, &Verdict)> {
        let all = self.in_order().into_iter();
        all.filter_map(|(change, verdict)| Some((change, verdict?)))
            .collect()
    }

    /// How many changes are held.
    pub fn held(&self) -> usize {
        let held = |verdict: &&Verdict| verdict.held;
        self.verdicts.iter().flatten().filter(held).count()
    }

    /// Paths of held changes, sorted.
    pub fn held_paths(&self) -> Vec<&[u8]> {
        let all = self.changes.iter().zip(&self.verdicts);
        all.filter(|(_, verdict)| verdict.as_ref().is_some_and(|verdict| verdict.held))
            .map(|(change, _)| &change.path[..])
            .collect()
    }

    /// Counts in one line.
    pub fn counts(&self) -> String {
        let summary = self.changes.summary();
        let parts = [
            (summary.created, "created"),
            (summary.modified, "modified"),
            (summary.deleted, "deleted"),
            (summary.renamed, "renamed"),
            (summary.replaced, "replaced"),
            (summary.recreated, "made again"),
        ];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        match parts.is_empty() {
            true => "no changes".to_owned(),
            false => format!("{}, {} bytes", parts.join(", "), summary.bytes),
        }
    }
}

/// One change as a line, with whatever the run made of names escaped.
pub fn row(change: &Change) -> String {
    let path = printable(&change.path);
    let size = change.after.as_ref().map_or(0, |entry| entry.size);
    match &change.kind {
        ChangeKind::Created => match &change.linked_to {
            Some(other) => format!("created    {path} (same file as {})", printable(other)),
            None => format!("created    {path} ({size} bytes)"),
        },
        ChangeKind::Modified => format!("modified   {path} ({})", aspects(change)),
        ChangeKind::Deleted => format!("deleted    {path}"),
        ChangeKind::Renamed { from } => format!("renamed    {} -> {path}", printable(from)),
        ChangeKind::Replaced => format!("replaced   {path} (by {})", kind_words(change)),
        ChangeKind::Recreated => format!("made again {path}"),
    }
}

fn aspects(change: &Change) -> String {
    let aspects = change.aspects;
    let mode = |entry: Option<&stockade_workspace::tree::Entry>| {
        entry.map_or_else(String::new, |entry| format!("{:04o}", entry.mode))
    };
    let mut words = Vec::new();
    if aspects.content {
        let size =
            |entry: Option<&stockade_workspace::tree::Entry>| entry.map_or(0, |entry| entry.size);
        words.push(format!(
            "{} -> {} bytes",
            size(change.before.as_ref()),
            size(change.after.as_ref())
        ));
    }
    if aspects.mode {
        words.push(format!(
            "mode {} -> {}",
            mode(change.before.as_ref()),
            mode(change.after.as_ref())
        ));
    }
    let more = [
        (aspects.owner, "owner"),
        (aspects.attributes, "attributes"),
        (aspects.links, "links"),
        (aspects.times && words.is_empty(), "time"),
    ];
    words.extend(
        more.iter()
            .filter(|(differs, _)| *differs)
            .map(|(_, word)| (*word).to_owned()),
    );
    words.join(", ")
}

fn kind_words(change: &Change) -> &'static str {
    use stockade_workspace::tree::FileKind;
    match change.after.as_ref().map(|entry| entry.kind) {
        Some(FileKind::File) => "a file",
        Some(FileKind::Directory) => "a directory",
        Some(FileKind::Symlink) => "a symbolic link",
        _ => "a special file",
    }
}

/// Why a change is special, for the lines below it.
pub fn explanation(verdict: &Verdict) -> String {
    let word = match verdict.held {
        true => "held",
        false => "note",
    };
    let detail = verdict.detail.as_ref().map_or_else(String::new, |detail| {
        format!(" ({})", printable(detail.as_bytes()))
    });
    format!(
        "{word}, {}: {}{detail} [{}]",
        verdict.kind, verdict.reason, verdict.rule
    )
}

/// Prints a value as JSON.
pub fn print_json(value: &serde_json::Value) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    Ok(out.write_all(b"\n")?)
}
