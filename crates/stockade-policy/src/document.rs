//! One layer of policy as written: `stockade.toml`, or command-line options.
//!
//! [`parse`] takes any bytes and reports every problem at once, each with its
//! place. What a key is called, how its value reads and what it is for stand
//! in one table (`keys`), which this module walks. Paths are resolved later,
//! by [`crate::validate`].

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::caches::Cache;
use crate::guarantee::Guarantee;
use crate::keys;
use crate::plan::{Accelerator, Form, RuntimeKind, WallDemand, WorkspaceMode};
use crate::policy::Amount;
use crate::presets::Preset;
use crate::problem::{Fault, Layer, Located, PROBLEMS_MAX, Place, Problem, closest};
use crate::value::{self, HostPattern, Readable, WrittenGuard, WrittenPath, quoted};
use crate::written::WrittenNetwork;
use reader::{line_of, line_starts};

pub(crate) use reader::{Input, Reader, Value};

mod reader;

/// Longest source that is read, in bytes.
pub const SOURCE_BYTES_MAX: usize = 1 << 20;

/// Most items that one list may have; merging compares them pairwise.
pub const LIST_ITEMS_MAX: usize = 1000;

/// Most dots that keys and fractions may have in one file.
const KEY_DOTS_MAX: usize = 500;

/// A list that may be absent, which says nothing; an empty one says "none".
pub type List<T> = Option<Vec<Located<T>>>;

/// One layer as written. Every value is well-formed; paths are unresolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    pub layer: Layer,
    pub preset: Option<Located<&'static Preset>>,
    pub wall: Option<Located<WallDemand>>,
    pub image: Option<Located<String>>,
    pub runtime: Option<Located<RuntimeKind>>,
    pub accepted_runtime: Option<Located<String>>,
    pub accelerator: Option<Located<Accelerator>>,
    pub workspace: Option<Located<WorkspaceMode>>,
    pub write: List<WrittenPath>,
    pub read: List<Readable>,
    pub hide: List<String>,
    pub guard: List<WrittenGuard>,
    pub guard_report: List<WrittenGuard>,
    /// `approval.guarded`.
    pub guarded_ask: Option<Located<bool>>,
    pub caches: List<Cache>,
    pub cache_bytes: Option<Located<u64>>,
    pub network_allow: List<HostPattern>,
    pub network: WrittenNetwork,
    pub environment_pass: List<String>,
    pub environment_set: Option<Vec<(Located<String>, String)>>,
    pub nested_sandbox: Option<Located<bool>>,
    pub form: Option<Located<Form>>,
    pub memory: Option<Located<Amount>>,
    pub processes: Option<Located<u64>>,
    /// Hundredths of a processor.
    pub cpu_percent: Option<Located<u32>>,
    pub cpu_seconds: Option<Located<u64>>,
    pub wall_time_ms: Option<Located<u64>>,
    pub open_files: Option<Located<u64>>,
    pub file_bytes: Option<Located<u64>>,
    pub disk_bytes: Option<Located<u64>>,
    pub store_bytes: Option<Located<u64>>,
    pub exact: Option<Located<bool>>,
    pub weaken: List<Guarantee>,
}

/// One command-line option: the dotted key and its values, one for each item
/// of a list, exactly one for anything else. `environment.set` takes
/// `NAME=value` items.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    pub key: &'a str,
    pub values: &'a [&'a str],
}

/// Parses a policy file; on failure every problem is in the list, in the
/// order of the source.
pub fn parse(source: &[u8], layer: &Layer) -> Result<Document, Vec<Problem>> {
    let whole = |fault: Fault| vec![fault.at(layer, None)];
    if source.len() > SOURCE_BYTES_MAX {
        return Err(whole(
            Fault::new(
                "too-large",
                format!(
                    "the file has {} bytes; a policy has at most 1 MiB",
                    source.len()
                ),
            )
            .help("is this the right file?"),
        ));
    }
    let text =
        str::from_utf8(source).map_err(|error| not_text(source, error.valid_up_to(), layer))?;
    if key_dots(text) > KEY_DOTS_MAX {
        let fault = Fault::new("too-deep", "the file nests far deeper than any policy");
        return Err(whole(fault.help("is this the right file?")));
    }
    let mut reader = Reader::new(layer, text);
    let (root, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        for error in errors.iter().take(PROBLEMS_MAX) {
            reader.report(
                Fault::new("syntax", syntax_message(error.message())),
                error.span(),
            );
        }
        return Err(reader.into_problems());
    }
    let mut document = Document::empty(layer);
    if version(&mut reader, root.get_ref()) {
        walk(&mut document, &mut reader, root.get_ref());
    }
    reader.finish(document)
}

/// Makes a layer of command-line options.
pub fn from_settings(settings: &[Setting<'_>], layer: &Layer) -> Result<Document, Vec<Problem>> {
    let mut reader = Reader::new(layer, "");
    let mut document = Document::empty(layer);
    for setting in settings {
        match keys::find(setting.key) {
            Some(key) => (key.read)(
                &mut document,
                &mut reader,
                key.input(Value::Setting(setting.values)),
            ),
            None => reader.report(unknown_key(setting.key), None),
        }
    }
    reader.finish(document)
}

impl Document {
    /// A layer that says nothing.
    pub fn empty(layer: &Layer) -> Self {
        Self {
            layer: layer.clone(),
            preset: None,
            wall: None,
            image: None,
            runtime: None,
            accepted_runtime: None,
            accelerator: None,
            workspace: None,
            write: None,
            read: None,
            hide: None,
            guard: None,
            guard_report: None,
            guarded_ask: None,
            caches: None,
            cache_bytes: None,
            network_allow: None,
            network: WrittenNetwork::default(),
            environment_pass: None,
            environment_set: None,
            nested_sandbox: None,
            form: None,
            memory: None,
            processes: None,
            cpu_percent: None,
            cpu_seconds: None,
            wall_time_ms: None,
            open_files: None,
            file_bytes: None,
            disk_bytes: None,
            store_bytes: None,
            exact: None,
            weaken: None,
        }
    }
}

/// Dots outside strings and comments: each one in a key opens a table. The
/// TOML parser bounds the length of a key and the nesting of values, but their
/// product would exhaust the stack when such a tree is dropped.
fn key_dots(text: &str) -> usize {
    let tokens = toml_parser::Source::new(text).lex();
    tokens
        .filter(|token| token.kind() == toml_parser::lexer::TokenKind::Dot)
        .count()
}

fn not_text(source: &[u8], position: usize, layer: &Layer) -> Vec<Problem> {
    let place = Place {
        span: position..position + 1,
        line: line_of(&line_starts(source), position),
    };
    let fault = Fault::new("not-utf8", "the file is not UTF-8 text")
        .help("a policy is a TOML file in UTF-8");
    vec![fault.at(layer, Some(&place))]
}

/// The parser's words, of which some are only a fragment.
fn syntax_message(message: &str) -> String {
    format!("not valid TOML: {}", value::unquoted(message.trim_end()))
}

/// Whether the rest may be judged by the rules of version 1.
fn version(reader: &mut Reader<'_>, root: &DeTable<'_>) -> bool {
    let Some(version) = root.get("version") else {
        let fault = Fault::new("no-version", "the file does not say its version");
        reader.report(fault.help("start it with `version = 1`"), Some(0..0));
        return true;
    };
    let one = matches!(version.get_ref(), DeValue::Integer(number) if number.radix() == 10 && number.as_str() == "1");
    if !one {
        let fault = Fault::new(
            "bad-version",
            "this version of Stockade reads only policies with `version = 1`",
        );
        reader.report(
            fault.help("write `version = 1`, or use the Stockade that the file was written for"),
            Some(version.span()),
        );
    }
    one
}

fn walk(document: &mut Document, reader: &mut Reader<'_>, root: &DeTable<'_>) {
    for (name, value) in root {
        let path: &str = name.get_ref();
        match value.get_ref() {
            _ if !keys::is_section(path) => entry(document, reader, path, name.span(), value),
            DeValue::Table(section) => {
                for (name, value) in section {
                    entry(
                        document,
                        reader,
                        &format!("{path}.{}", name.get_ref()),
                        name.span(),
                        value,
                    );
                }
            }
            _ => {
                let fault = Fault::new("wrong-type", format!("`{path}` must be one table"));
                reader.report(
                    fault.help(format!("write `[{path}]` once, with its keys below it")),
                    Some(name.span()),
                );
            }
        }
    }
}

fn entry(
    document: &mut Document,
    reader: &mut Reader<'_>,
    path: &str,
    name: Range<usize>,
    value: &Spanned<DeValue<'_>>,
) {
    match keys::find(path) {
        Some(key) => (key.read)(document, reader, key.input(Value::Toml(value))),
        None => reader.report(unknown_key(path), Some(name)),
    }
}

fn unknown_key(path: &str) -> Fault {
    let fault = Fault::new("unknown-key", format!("unknown key {}", quoted(path)));
    let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
    if let Some(key) = closest(name, keys::names_in(section)) {
        return fault.help(format!("did you mean `{key}`?"));
    }
    match keys::all().find(|key| key.name() == name) {
        Some(key) if key.section().is_empty() => {
            fault.help(format!("`{name}` stands at the top, before any table"))
        }
        Some(key) => fault.help(format!("`{name}` belongs to `[{}]`", key.section())),
        None => {
            let known: Vec<&str> = keys::names_in(section).collect();
            fault.help(format!("the keys here are: {}", known.join(", ")))
        }
    }
}
