//! From a document to what one layer says: presets filled in, paths resolved,
//! every item with the rule that it makes.

mod guarded;
mod network;

use crate::caches::Cache;
use crate::document::{Document, List, Setting, from_settings};
use crate::guarantee::Guarantee;
use crate::path::{AbsolutePath, PathError};
use crate::plan::{Accelerator, Form, Rule, RuntimeKind, WallDemand, WorkspaceMode};
use crate::policy::{Amount, GrantTarget, NamedSet};
use crate::problem::{Fault, Layer, LayerKind, Located, Place, Problem};
use crate::value::{Readable, WrittenGuard, WrittenPath, bad_path};

pub(crate) use network::{LayerBudget, LayerNetwork};

/// What paths are relative to. Both are absolute with links resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The project directory.
    pub workspace: AbsolutePath,
    /// The caller's home directory.
    pub home: AbsolutePath,
}

/// One thing that a layer says, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item<T> {
    pub value: T,
    pub rule: Rule,
    pub place: Option<Place>,
}

/// `None` says nothing; an empty list says "none".
pub(crate) type Said<T> = Option<Vec<Item<T>>>;

/// What one layer says, ready to be merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPolicy {
    pub(crate) layer: Layer,
    /// It names a preset, which states a whole starting point.
    pub(crate) names_preset: bool,
    pub(crate) wall: Option<Item<WallDemand>>,
    pub(crate) image: Option<Item<String>>,
    pub(crate) runtime: Option<Item<RuntimeKind>>,
    pub(crate) accelerator: Option<Item<Accelerator>>,
    pub(crate) accepted_runtime: Option<Item<String>>,
    pub(crate) workspace: Option<Item<WorkspaceMode>>,
    pub(crate) write: Said<GrantTarget>,
    pub(crate) read: Said<GrantTarget>,
    pub(crate) hide: Said<String>,
    pub(crate) guard: Said<WrittenGuard>,
    pub(crate) guard_report: Said<WrittenGuard>,
    pub(crate) guarded_ask: Option<Item<bool>>,
    pub(crate) caches: Said<Cache>,
    pub(crate) cache_bytes: Option<Item<u64>>,
    pub(crate) network: LayerNetwork,
    pub(crate) environment_pass: Said<String>,
    pub(crate) environment_set: Said<(String, String)>,
    pub(crate) weaken: Said<Guarantee>,
    pub(crate) nested_sandbox: Option<Item<bool>>,
    pub(crate) form: Option<Item<Form>>,
    pub(crate) memory: Option<Item<Amount>>,
    pub(crate) processes: Option<Item<u64>>,
    pub(crate) cpu_percent: Option<Item<u32>>,
    pub(crate) cpu_seconds: Option<Item<u64>>,
    pub(crate) wall_time_ms: Option<Item<u64>>,
    pub(crate) open_files: Option<Item<u64>>,
    pub(crate) file_bytes: Option<Item<u64>>,
    pub(crate) disk_bytes: Option<Item<u64>>,
    pub(crate) store_bytes: Option<Item<u64>>,
    pub(crate) exact: Option<Item<bool>>,
}

/// Resolves what a document says; on failure every problem is in the list.
pub fn validate(document: &Document, context: &Context) -> Result<LayerPolicy, Vec<Problem>> {
    let document = with_preset(document)?;
    let mut validator = Validator {
        layer: &document.layer,
        context,
        problems: Vec::new(),
    };
    let rules = Rules {
        layer: &document.layer,
    };
    let network = network::network(&document, context, &mut validator.problems);
    let policy = LayerPolicy {
        layer: document.layer.clone(),
        names_preset: document.preset.is_some(),
        wall: rules.one("wall", &document.wall),
        image: rules.one("container.image", &document.image),
        runtime: rules.one("container.runtime", &document.runtime),
        accelerator: rules.one("microvm.accelerator", &document.accelerator),
        accepted_runtime: rules.one("container.accept_runtime", &document.accepted_runtime),
        workspace: rules.one("filesystem.workspace", &document.workspace),
        write: validator.writable(&document.write),
        read: validator.readable(&document.read),
        hide: rules.list("filesystem.hide", &document.hide),
        guard: validator.guarded("filesystem.guard", &document.guard),
        guard_report: validator.guarded("filesystem.guard_report", &document.guard_report),
        guarded_ask: rules.one("approval.guarded", &document.guarded_ask),
        caches: rules.list("filesystem.caches", &document.caches),
        cache_bytes: rules.one("filesystem.cache_bytes_max", &document.cache_bytes),
        network,
        environment_pass: rules.list("environment.pass", &document.environment_pass),
        environment_set: rules.variables(&document.environment_set),
        weaken: rules.list("weaken", &document.weaken),
        nested_sandbox: rules.one("process.nested_sandbox", &document.nested_sandbox),
        form: rules.one("process.form", &document.form),
        memory: rules.one("limits.memory", &document.memory),
        processes: rules.one("limits.processes", &document.processes),
        cpu_percent: rules.one("limits.cpus", &document.cpu_percent),
        cpu_seconds: rules.one("limits.cpu_time", &document.cpu_seconds),
        wall_time_ms: rules.one("limits.wall_time", &document.wall_time_ms),
        open_files: rules.one("limits.open_files", &document.open_files),
        file_bytes: rules.one("limits.file_size", &document.file_bytes),
        disk_bytes: rules.one("limits.disk", &document.disk_bytes),
        store_bytes: rules.one("filesystem.store_bytes_max", &document.store_bytes),
        exact: rules.one("limits.exact", &document.exact),
    };
    if validator.problems.is_empty() {
        Ok(policy)
    } else {
        Err(validator.problems)
    }
}

/// Fills in, from the preset that the document names, each key that the
/// document does not say itself.
fn with_preset(document: &Document) -> Result<Document, Vec<Problem>> {
    let mut filled = document.clone();
    let Some(named) = &document.preset else {
        return Ok(filled);
    };
    let settings: Vec<Setting<'_>> = named
        .value
        .settings
        .iter()
        .map(|(key, values)| Setting { key, values })
        .collect();
    let mut preset = from_settings(&settings, &document.layer)?;
    let origin = Located {
        value: (),
        place: named.place.clone(),
        comment: Some(format!(
            "preset \"{}\": {}",
            named.value.name, named.value.about
        )),
    };
    macro_rules! fill {
        (lists [$($list:ident)*] scalars [$($scalar:ident)*]) => {
            $(if filled.$list.is_none() {
                preset.$list.iter_mut().flatten().for_each(|item| move_to(item, &origin));
                filled.$list = preset.$list.take();
            })*
            $(if filled.$scalar.is_none() {
                preset.$scalar.iter_mut().for_each(|item| move_to(item, &origin));
                filled.$scalar = preset.$scalar.take();
            })*
        };
    }
    fill! {
        lists [write read hide caches guard guard_report network_allow environment_pass weaken]
        scalars [wall image runtime accepted_runtime accelerator workspace guarded_ask nested_sandbox form memory processes cpu_percent cpu_seconds
            wall_time_ms open_files file_bytes disk_bytes cache_bytes store_bytes exact]
    }
    Ok(filled)
}

fn move_to<T>(item: &mut Located<T>, origin: &Located<()>) {
    item.place = origin.place.clone();
    item.comment = origin.comment.clone();
}

/// Makes rules of located values.
struct Rules<'a> {
    layer: &'a Layer,
}

impl Rules<'_> {
    fn item<T, U>(&self, key: &str, id: String, located: &Located<T>, value: U) -> Item<U> {
        let origin = match &located.place {
            Some(place) => format!("{}:{}", self.layer.name, place.line),
            None => self.layer.name.clone(),
        };
        let reason = located
            .comment
            .clone()
            .unwrap_or_else(|| format!("listed in `{key}`"));
        Item {
            value,
            rule: Rule { id, origin, reason },
            place: located.place.clone(),
        }
    }

    fn one<T: Clone>(&self, key: &str, value: &Option<Located<T>>) -> Option<Item<T>> {
        value
            .as_ref()
            .map(|located| self.item(key, key.to_owned(), located, located.value.clone()))
    }

    fn list<T: Clone>(&self, key: &str, list: &List<T>) -> Said<T> {
        let item = |(index, located): (usize, &Located<T>)| {
            self.item(
                key,
                format!("{key}[{index}]"),
                located,
                located.value.clone(),
            )
        };
        list.as_ref()
            .map(|list| list.iter().enumerate().map(item).collect())
    }

    fn variables(&self, pairs: &Option<Vec<(Located<String>, String)>>) -> Said<(String, String)> {
        let key = "environment.set";
        let item = |(name, content): &(Located<String>, String)| {
            self.item(
                key,
                format!("{key}.{}", name.value),
                name,
                (name.value.clone(), content.clone()),
            )
        };
        pairs.as_ref().map(|pairs| pairs.iter().map(item).collect())
    }
}

struct Validator<'a> {
    layer: &'a Layer,
    context: &'a Context,
    problems: Vec<Problem>,
}

impl Validator<'_> {
    fn readable(&mut self, list: &List<Readable>) -> Said<GrantTarget> {
        let key = "filesystem.read";
        let rules = Rules { layer: self.layer };
        let mut items = Vec::new();
        for (index, located) in list.as_ref()?.iter().enumerate() {
            let id = format!("{key}[{index}]");
            match &located.value {
                Readable::Set(set) => {
                    // Toolchains do not start without the system's libraries.
                    let sets: &[NamedSet] = match set {
                        NamedSet::System => &[NamedSet::System],
                        NamedSet::Toolchains => &[NamedSet::System, NamedSet::Toolchains],
                    };
                    items.extend(
                        sets.iter().map(|set| {
                            rules.item(key, id.clone(), located, GrantTarget::Set(*set))
                        }),
                    );
                }
                Readable::Path(path) => {
                    let path = self.resolve(path, located.place.as_ref());
                    items.extend(
                        path.map(|path| rules.item(key, id, located, GrantTarget::Path(path))),
                    );
                }
            }
        }
        Some(items)
    }

    fn writable(&mut self, list: &List<WrittenPath>) -> Said<GrantTarget> {
        let key = "filesystem.write";
        let rules = Rules { layer: self.layer };
        let mut items = Vec::new();
        for (index, located) in list.as_ref()?.iter().enumerate() {
            let Some(path) = self.resolve(&located.value, located.place.as_ref()) else {
                continue;
            };
            if path.is_root() && self.layer.kind != LayerKind::Organisation {
                let fault = Fault::new(
                    "writes-everything",
                    "the whole machine cannot be granted for writing",
                );
                let fault = fault.help("name the directories that the command needs to write");
                self.problems
                    .push(fault.at(self.layer, located.place.as_ref()));
            }
            items.push(rules.item(
                key,
                format!("{key}[{index}]"),
                located,
                GrantTarget::Path(path),
            ));
        }
        Some(items)
    }

    fn resolve(&mut self, path: &WrittenPath, place: Option<&Place>) -> Option<AbsolutePath> {
        match resolve(path, self.context) {
            Ok(path) => Some(path),
            Err(fault) => {
                self.problems.push(fault.at(self.layer, place));
                None
            }
        }
    }
}

/// The path that is meant, from the project or the home.
fn resolve(path: &WrittenPath, context: &Context) -> Result<AbsolutePath, Fault> {
    let (written, resolved): (&str, Result<AbsolutePath, PathError>) = match path {
        WrittenPath::Absolute(path) => return Ok(path.clone()),
        WrittenPath::Project(path) => (path, context.workspace.join(path)),
        WrittenPath::Home(path) => (path, context.home.join(path)),
    };
    resolved.map_err(|error| bad_path(written, error))
}
