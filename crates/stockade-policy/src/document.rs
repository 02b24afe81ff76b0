//! One layer of policy as written: `stockade.toml`, or command-line options.
//!
//! [`parse`] takes any bytes and reports every problem at once, each with its
//! place. What a key is called, how its value reads and what it is for stand
//! in one table (`keys`), which this module walks. Paths are resolved later,
//! by [`crate::validate`].

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::guarantee::Guarantee;
use crate::keys::{self, Key};
use crate::plan::Form;
use crate::policy::Amount;
use crate::presets::Preset;
use crate::problem::{Fault, Layer, Located, PROBLEMS_MAX, Place, Problem, closest};
use crate::value::{self, HostPattern, Readable, WrittenPath, quoted};

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
    pub write: List<WrittenPath>,
    pub read: List<Readable>,
    pub hide: List<String>,
    pub network_allow: List<HostPattern>,
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
                Input {
                    key,
                    value: Value::Setting(setting.values),
                },
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
            write: None,
            read: None,
            hide: None,
            network_allow: None,
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
        Some(key) => (key.read)(
            document,
            reader,
            Input {
                key,
                value: Value::Toml(value),
            },
        ),
        None => reader.report(unknown_key(path), Some(name)),
    }
}

fn unknown_key(path: &str) -> Fault {
    if let Some(feature) = keys::later(path) {
        return value::later(feature);
    }
    let fault = Fault::new("unknown-key", format!("unknown key {}", quoted(path)));
    let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
    if let Some(key) = closest(name, keys::names_in(section)) {
        return fault.help(format!("did you mean `{key}`?"));
    }
    match keys::all().iter().find(|key| key.name() == name) {
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

/// A value on its way into the document, with the key that takes it.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub key: &'static Key,
    pub value: Value<'a>,
}

#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    Toml(&'a Spanned<DeValue<'a>>),
    Setting(&'a [&'a str]),
}

/// Collects problems, and knows the places of a source.
pub(crate) struct Reader<'a> {
    layer: &'a Layer,
    source: &'a str,
    line_starts: Vec<usize>,
    problems: Vec<Problem>,
}

impl<'a> Reader<'a> {
    fn new(layer: &'a Layer, source: &'a str) -> Self {
        Self {
            layer,
            source,
            line_starts: line_starts(source.as_bytes()),
            problems: Vec::new(),
        }
    }

    fn report(&mut self, fault: Fault, span: Option<Range<usize>>) {
        if self.problems.len() < PROBLEMS_MAX {
            let place = span.map(|span| self.place(span));
            self.problems.push(fault.at(self.layer, place.as_ref()));
        }
    }

    fn into_problems(mut self) -> Vec<Problem> {
        self.problems
            .sort_by_key(|problem| problem.span.as_ref().map(|span| (span.start, span.end)));
        self.problems
    }

    fn finish(self, document: Document) -> Result<Document, Vec<Problem>> {
        if self.problems.is_empty() {
            Ok(document)
        } else {
            Err(self.into_problems())
        }
    }

    fn place(&self, span: Range<usize>) -> Place {
        Place {
            line: line_of(&self.line_starts, span.start),
            span,
        }
    }

    fn located<T>(&self, value: T, span: Option<Range<usize>>) -> Located<T> {
        let comment = span
            .as_ref()
            .and_then(|span| comment_after(self.source, span.end));
        Located {
            value,
            place: span.map(|span| self.place(span)),
            comment,
        }
    }

    fn parsed<T>(
        &mut self,
        text: &str,
        span: Option<Range<usize>>,
        parse: fn(&str) -> Result<T, Fault>,
    ) -> Option<Located<T>> {
        match parse(text) {
            Ok(value) => Some(self.located(value, span)),
            Err(fault) => {
                self.report(fault, span);
                None
            }
        }
    }

    fn wrong_type(&mut self, input: Input<'_>, wanted: &str, span: Option<Range<usize>>) {
        let fault = Fault::new(
            "wrong-type",
            format!("`{}` must be {wanted}", input.key.path),
        );
        self.report(
            fault.help(format!("for example `{}`", input.key.example)),
            span,
        );
    }

    /// A list of strings.
    pub(crate) fn list<T>(
        &mut self,
        input: Input<'_>,
        parse: fn(&str) -> Result<T, Fault>,
    ) -> List<T> {
        let mut items = Vec::new();
        match input.value {
            Value::Setting(values) => items.extend(
                values
                    .iter()
                    .filter_map(|text| self.parsed(text, None, parse)),
            ),
            Value::Toml(value) => {
                let DeValue::Array(array) = value.get_ref() else {
                    self.wrong_type(input, "a list of strings", Some(value.span()));
                    return None;
                };
                self.check_length(input, array.len(), value.span());
                for item in array.iter().take(LIST_ITEMS_MAX) {
                    match item.get_ref() {
                        DeValue::String(text) => {
                            items.extend(self.parsed(text, Some(item.span()), parse))
                        }
                        _ => self.wrong_type(input, "a list of strings", Some(item.span())),
                    }
                }
            }
        }
        Some(items)
    }

    fn check_length(&mut self, input: Input<'_>, length: usize, span: Range<usize>) {
        if length > LIST_ITEMS_MAX {
            let message = format!(
                "`{}` has {length} items; at most {LIST_ITEMS_MAX} are read",
                input.key.path
            );
            self.report(Fault::new("too-many", message), Some(span));
        }
    }

    /// A string.
    pub(crate) fn text<T>(
        &mut self,
        input: Input<'_>,
        parse: fn(&str) -> Result<T, Fault>,
    ) -> Option<Located<T>> {
        match input.value {
            Value::Setting([text]) => self.parsed(text, None, parse),
            Value::Toml(value) if value.get_ref().is_str() => self.parsed(
                value.get_ref().as_str().unwrap_or_default(),
                Some(value.span()),
                parse,
            ),
            other => {
                self.wrong_type(input, "a string", other.span());
                None
            }
        }
    }

    /// A whole number from 1 up.
    pub(crate) fn count(&mut self, input: Input<'_>) -> Option<Located<u64>> {
        let number = match input.value {
            Value::Setting([text]) => text.parse().ok(),
            Value::Toml(value) => match value.get_ref() {
                DeValue::Integer(number) => {
                    u64::from_str_radix(number.as_str(), number.radix()).ok()
                }
                _ => None,
            },
            Value::Setting(_) => None,
        };
        self.checked(
            input,
            "a whole number from 1 up",
            number.filter(|number| *number > 0),
        )
    }

    /// A number of processors, in hundredths.
    pub(crate) fn hundredths(&mut self, input: Input<'_>) -> Option<Located<u32>> {
        let number = match input.value {
            Value::Setting([text]) => text.parse().ok(),
            Value::Toml(value) => match value.get_ref() {
                DeValue::Integer(number) if number.radix() == 10 => number.as_str().parse().ok(),
                DeValue::Float(number) => number.as_str().parse().ok(),
                _ => None,
            },
            Value::Setting(_) => None,
        };
        let hundredths = number.map(|number: f64| (number * 100.0).round());
        // The range is checked first, so the conversion is exact.
        let hundredths = hundredths
            .filter(|number| (1.0..=1e6).contains(number))
            .map(|number| number as u32);
        self.checked(input, "a number from 0.01 to 10000", hundredths)
    }

    pub(crate) fn boolean(&mut self, input: Input<'_>) -> Option<Located<bool>> {
        let value = match input.value {
            Value::Setting([text]) => text.parse().ok(),
            Value::Toml(value) => value.get_ref().as_bool(),
            Value::Setting(_) => None,
        };
        self.checked(input, "true or false", value)
    }

    fn checked<T>(
        &mut self,
        input: Input<'_>,
        wanted: &str,
        value: Option<T>,
    ) -> Option<Located<T>> {
        let span = input.value.span();
        match value {
            Some(value) => Some(self.located(value, span)),
            None => {
                self.wrong_type(input, wanted, span);
                None
            }
        }
    }

    /// A table of variables.
    pub(crate) fn variables(&mut self, input: Input<'_>) -> Option<Vec<(Located<String>, String)>> {
        let mut pairs = Vec::new();
        match input.value {
            Value::Setting(values) => {
                for text in values {
                    let (name, content) = text.split_once('=').unwrap_or((text, ""));
                    pairs.extend(self.variable(name, content, None));
                }
            }
            Value::Toml(value) => {
                let DeValue::Table(table) = value.get_ref() else {
                    self.wrong_type(input, "a table of strings", Some(value.span()));
                    return None;
                };
                self.check_length(input, table.len(), value.span());
                for (name, content) in table.iter().take(LIST_ITEMS_MAX) {
                    match content.get_ref() {
                        DeValue::String(text) => {
                            pairs.extend(self.variable(name.get_ref(), text, Some(name.span())))
                        }
                        _ => self.wrong_type(input, "a table of strings", Some(content.span())),
                    }
                }
            }
        }
        Some(pairs)
    }

    fn variable(
        &mut self,
        name: &str,
        content: &str,
        span: Option<Range<usize>>,
    ) -> Option<(Located<String>, String)> {
        let content = self.parsed(content, span.clone(), value::variable_value);
        let name = self.parsed(name, span, value::variable);
        Some((name?, content?.value))
    }
}

impl Value<'_> {
    fn span(&self) -> Option<Range<usize>> {
        match self {
            Value::Toml(value) => Some(value.span()),
            Value::Setting(_) => None,
        }
    }
}

/// Where each line starts, in bytes.
fn line_starts(source: &[u8]) -> Vec<usize> {
    let ends = source
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n');
    std::iter::once(0)
        .chain(ends.map(|(position, _)| position + 1))
        .collect()
}

fn line_of(line_starts: &[usize], position: usize) -> u32 {
    let line = line_starts.partition_point(|start| *start <= position);
    u32::try_from(line).unwrap_or(u32::MAX)
}

/// The comment on the rest of the line, when nothing but closing punctuation
/// stands before it.
fn comment_after(source: &str, end: usize) -> Option<String> {
    const COMMENT_CHARACTERS_MAX: usize = 200;
    let rest = source.get(end..)?.lines().next()?;
    let comment = rest
        .trim_start_matches([' ', '\t', ',', ']', '}'])
        .strip_prefix('#')?
        .trim();
    let shown: String = comment.chars().take(COMMENT_CHARACTERS_MAX).collect();
    (!shown.is_empty()).then(|| crate::path::printable(shown.as_bytes()))
}
