//! Reads single values of a source into typed ones, and collects what is wrong
//! with them, each with its place.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Document, LIST_ITEMS_MAX, List};
use crate::keys::Key;
use crate::problem::{Fault, Layer, Located, PROBLEMS_MAX, Place, Problem, closest};
use crate::value::{self, quoted};

/// A value on its way into a document or a table, with the key that takes it.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    /// Dotted name of the key, for messages.
    pub path: &'static str,
    /// A line of TOML that shows the key.
    pub example: &'static str,
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
    pub(super) fn new(layer: &'a Layer, source: &'a str) -> Self {
        Self {
            layer,
            source,
            line_starts: line_starts(source.as_bytes()),
            problems: Vec::new(),
        }
    }

    pub(super) fn report(&mut self, fault: Fault, span: Option<Range<usize>>) {
        if self.problems.len() < PROBLEMS_MAX {
            let place = span.map(|span| self.place(span));
            self.problems.push(fault.at(self.layer, place.as_ref()));
        }
    }

    pub(super) fn into_problems(mut self) -> Vec<Problem> {
        self.problems
            .sort_by_key(|problem| problem.span.as_ref().map(|span| (span.start, span.end)));
        self.problems
    }

    pub(super) fn finish(self, document: Document) -> Result<Document, Vec<Problem>> {
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
        let fault = Fault::new("wrong-type", format!("`{}` must be {wanted}", input.path));
        self.report(fault.help(format!("for example `{}`", input.example)), span);
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

    /// A list whose items are strings or whole numbers.
    pub(crate) fn list_of_numbers<T>(
        &mut self,
        input: Input<'_>,
        parse: fn(&str) -> Result<T, Fault>,
    ) -> List<T> {
        let Value::Toml(value) = input.value else {
            return self.list(input, parse);
        };
        let DeValue::Array(array) = value.get_ref() else {
            self.wrong_type(input, "a list", Some(value.span()));
            return None;
        };
        self.check_length(input, array.len(), value.span());
        let mut items = Vec::new();
        for item in array.iter().take(LIST_ITEMS_MAX) {
            match item.get_ref() {
                DeValue::String(text) => items.extend(self.parsed(text, Some(item.span()), parse)),
                DeValue::Integer(number) if number.radix() == 10 => {
                    items.extend(self.parsed(number.as_str(), Some(item.span()), parse));
                }
                _ => self.wrong_type(input, "a list of numbers or strings", Some(item.span())),
            }
        }
        Some(items)
    }

    fn check_length(&mut self, input: Input<'_>, length: usize, span: Range<usize>) {
        if length > LIST_ITEMS_MAX {
            let message = format!(
                "`{}` has {length} items; at most {LIST_ITEMS_MAX} are read",
                input.path
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

    /// A string, or a date of TOML.
    pub(crate) fn text_or_date<T>(
        &mut self,
        input: Input<'_>,
        parse: fn(&str) -> Result<T, Fault>,
    ) -> Option<Located<T>> {
        match input.value {
            Value::Toml(value) => match value.get_ref() {
                DeValue::Datetime(date) => {
                    self.parsed(&date.to_string(), Some(value.span()), parse)
                }
                _ => self.text(input, parse),
            },
            Value::Setting(_) => self.text(input, parse),
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

    /// A table from names to strings.
    pub(crate) fn pairs(
        &mut self,
        input: Input<'_>,
        name: fn(&str) -> Result<String, Fault>,
        content: fn(&str) -> Result<String, Fault>,
    ) -> Option<Vec<(String, String)>> {
        let table = self.as_table(input, "a table of strings")?;
        let mut pairs = Vec::new();
        for (key, text) in table.iter().take(LIST_ITEMS_MAX) {
            match text.get_ref() {
                DeValue::String(value) => {
                    let value = self.parsed(value, Some(text.span()), content);
                    let key = self.parsed(key.get_ref(), Some(key.span()), name);
                    let pair = key.zip(value).map(|(key, value)| (key.value, value.value));
                    pairs.extend(pair);
                }
                _ => self.wrong_type(input, "a table of strings", Some(text.span())),
            }
        }
        Some(pairs)
    }

    /// A list of tables, each read by the same keys; `check` says what is
    /// wrong with a table whose keys are all well-formed.
    pub(crate) fn tables<T: Default>(
        &mut self,
        input: Input<'_>,
        keys: &'static [Key<T>],
        check: fn(&T) -> Vec<Fault>,
    ) -> List<T> {
        let array = match input.value {
            Value::Toml(value) => match value.get_ref() {
                DeValue::Array(array) => Some((array, value.span())),
                _ => None,
            },
            Value::Setting(_) => None,
        };
        let Some((array, span)) = array else {
            self.wrong_type(input, "a list of tables", input.value.span());
            return None;
        };
        self.check_length(input, array.len(), span);
        let mut items = Vec::new();
        for item in array.iter().take(LIST_ITEMS_MAX) {
            match item.get_ref() {
                DeValue::Table(table) => {
                    let read = self.fields(input.path, table, keys, check, item.span());
                    items.push(self.located(read, Some(item.span())));
                }
                _ => self.wrong_type(input, "a list of tables", Some(item.span())),
            }
        }
        Some(items)
    }

    /// One table.
    pub(crate) fn table<T: Default>(
        &mut self,
        input: Input<'_>,
        keys: &'static [Key<T>],
        check: fn(&T) -> Vec<Fault>,
    ) -> Option<Located<T>> {
        let table = self.as_table(input, "a table")?;
        let span = input.value.span().unwrap_or_default();
        let read = self.fields(input.path, table, keys, check, span.clone());
        Some(self.located(read, Some(span)))
    }

    fn as_table<'b>(&mut self, input: Input<'b>, wanted: &str) -> Option<&'b DeTable<'b>> {
        let table = match input.value {
            Value::Toml(value) => match value.get_ref() {
                DeValue::Table(table) => Some((table, value.span())),
                _ => None,
            },
            Value::Setting(_) => None,
        };
        let Some((table, span)) = table else {
            self.wrong_type(input, wanted, input.value.span());
            return None;
        };
        self.check_length(input, table.len(), span);
        Some(table)
    }

    fn fields<T: Default>(
        &mut self,
        path: &str,
        table: &DeTable<'_>,
        keys: &'static [Key<T>],
        check: fn(&T) -> Vec<Fault>,
        span: Range<usize>,
    ) -> T {
        let problems = self.problems.len();
        let mut read = T::default();
        for (name, value) in table.iter().take(LIST_ITEMS_MAX) {
            match keys.iter().find(|key| key.name() == name.get_ref()) {
                Some(key) => (key.read)(&mut read, self, key.input(Value::Toml(value))),
                None => {
                    let names: Vec<&str> = keys.iter().map(Key::name).collect();
                    self.report(
                        unknown_field(path, name.get_ref(), &names),
                        Some(name.span()),
                    );
                }
            }
        }
        if self.problems.len() == problems {
            for fault in check(&read) {
                self.report(fault, Some(span.clone()));
            }
        }
        read
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

fn unknown_field(path: &str, name: &str, names: &[&str]) -> Fault {
    let message = format!("unknown key {} in `{path}`", quoted(name));
    let fault = Fault::new("unknown-key", message);
    match closest(name, names.iter().copied()) {
        Some(known) => fault.help(format!("did you mean `{known}`?")),
        None => fault.help(format!("the keys here are: {}", names.join(", "))),
    }
}

/// Where each line starts, in bytes.
pub(super) fn line_starts(source: &[u8]) -> Vec<usize> {
    let ends = source
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n');
    std::iter::once(0)
        .chain(ends.map(|(position, _)| position + 1))
        .collect()
}

pub(super) fn line_of(line_starts: &[usize], position: usize) -> u32 {
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
