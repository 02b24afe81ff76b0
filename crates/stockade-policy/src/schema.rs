//! The JSON schema of a policy document and the commented file that
//! `stockade init` writes, both from the table of keys.

use serde_json::{Map, Value, json};

use crate::guarantee::Guarantee;
use crate::keys::{self, Fields, Grammar, Key, Text};
use crate::presets;

/// JSON schema (draft 2020-12) of `stockade.toml`.
pub fn schema() -> Value {
    let mut properties = table("");
    for (section, about) in keys::SECTIONS {
        properties.insert(
            (*section).to_owned(),
            json!({
                "type": "object",
                "description": about,
                "additionalProperties": false,
                "properties": table(section),
            }),
        );
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Stockade policy",
        "type": "object",
        "required": ["version"],
        "additionalProperties": false,
        "properties": properties,
    })
}

/// A policy that says nothing but its preset, with every key shown.
pub fn template() -> String {
    let mut last = Vec::new();
    let mut text = String::from(
        "# What commands may do in this project. `stockade explain` shows the result.\n",
    );
    let sections = std::iter::once(&("", "")).chain(keys::SECTIONS);
    for (section, about) in sections {
        if !section.is_empty() {
            text.push('\n');
            comment(&mut text, about);
            text.push_str(&format!("[{section}]\n"));
        }
        let keys = keys::all().filter(|key| key.section() == *section);
        let (tables, plain): (Vec<_>, Vec<_>) = keys.partition(|key| key.grammar.is_table());
        plain.into_iter().for_each(|key| show(&mut text, key));
        // TOML counts what follows a table as part of it.
        if section.is_empty() {
            last.extend(tables);
        } else {
            tables.into_iter().for_each(|key| show(&mut text, key));
        }
    }
    last.into_iter().for_each(|key| show(&mut text, key));
    text
}

/// One key with what it is for; only the first two are in force.
fn show(text: &mut String, key: &Key) {
    const ACTIVE: &[&str] = &["version", "preset"];
    text.push('\n');
    comment(text, key.about);
    if key.path == "preset" {
        for preset in presets::all() {
            comment(text, &format!("- {}: {}", preset.name, preset.about));
        }
    }
    if let Grammar::Table(fields) | Grammar::Tables(fields) = &key.grammar {
        for field in fields.shown() {
            comment(text, &format!("- {}: {}", field.name, field.about));
        }
    }
    let shown = if ACTIVE.contains(&key.path) { "" } else { "#" };
    for line in key.example.lines() {
        text.push_str(&format!("{shown}{line}\n"));
    }
}

fn table(section: &str) -> Map<String, Value> {
    let keys = keys::all().filter(|key| key.section() == section);
    keys.map(|key| (key.name().to_owned(), property(&key.grammar, key.about)))
        .collect()
}

fn property(grammar: &Grammar, about: &str) -> Value {
    let list = |items: Value| json!({ "type": "array", "items": items, "maxItems": crate::document::LIST_ITEMS_MAX });
    let mut value = match grammar {
        Grammar::Version => json!({ "const": 1 }),
        Grammar::Boolean => json!({ "type": "boolean" }),
        Grammar::Count => json!({ "type": "integer", "minimum": 1 }),
        Grammar::Number => json!({ "type": "number", "exclusiveMinimum": 0 }),
        Grammar::Text(form) => text_schema(form),
        Grammar::Moment => json!({ "type": "string" }),
        Grammar::List(form) => list(text_schema(form)),
        Grammar::Numbers(pattern) => list(json!({ "anyOf": [
            { "type": "integer", "minimum": 1, "maximum": u16::MAX },
            { "type": "string", "pattern": pattern },
        ] })),
        Grammar::Variables => {
            json!({ "type": "object", "additionalProperties": { "type": "string" } })
        }
        Grammar::Table(fields) => object(*fields),
        Grammar::Tables(fields) => list(object(*fields)),
    };
    value["description"] = json!(about);
    value
}

fn object(fields: &dyn Fields) -> Value {
    let properties: Map<String, Value> = fields
        .shown()
        .into_iter()
        .map(|field| (field.name.to_owned(), property(field.grammar, field.about)))
        .collect();
    json!({ "type": "object", "additionalProperties": false, "properties": properties })
}

fn text_schema(form: &Text) -> Value {
    let words = |words: Vec<&str>| json!({ "type": "string", "enum": words });
    match form {
        Text::Words(list) => words(list.to_vec()),
        Text::Preset => words(presets::all().iter().map(|preset| preset.name).collect()),
        Text::Guarantee => words(
            Guarantee::ALL
                .iter()
                .map(|guarantee| guarantee.id())
                .collect(),
        ),
        Text::Pattern(pattern) => json!({ "type": "string", "pattern": pattern }),
    }
}

/// Appends text as comment lines of readable width.
fn comment(text: &mut String, about: &str) {
    const WIDTH: usize = 88;
    let mut line = String::from("#");
    for word in about.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            text.push_str(&line);
            text.push('\n');
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    text.push_str(&line);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::parse;
    use crate::problem::{Layer, LayerKind};

    fn layer() -> Layer {
        Layer::new(LayerKind::User, "template")
    }

    #[test]
    fn the_template_parses_and_names_every_key() {
        let template = template();
        parse(template.as_bytes(), &layer()).unwrap();
        for key in keys::all() {
            for line in key.example.lines() {
                assert!(template.contains(line), "{}", key.path);
            }
        }
    }

    #[test]
    fn the_template_parses_with_every_key_switched_on() {
        let uncommented: Vec<String> = template()
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(example) if !example.starts_with(' ') => example.to_owned(),
                _ => line.to_owned(),
            })
            .collect();
        parse(uncommented.join("\n").as_bytes(), &layer()).unwrap();
    }

    #[test]
    fn the_schema_lists_exactly_the_keys() {
        let schema = schema();
        for key in keys::all() {
            let section = match key.section() {
                "" => &schema["properties"],
                section => &schema["properties"][section]["properties"],
            };
            assert!(
                section[key.name()]["description"].is_string(),
                "{}",
                key.path
            );
        }
        assert_eq!(
            schema["properties"]["limits"]["additionalProperties"],
            json!(false)
        );
    }
}
