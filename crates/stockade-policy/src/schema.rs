//! The JSON schema of a policy document and the commented file that
//! `stockade init` writes, both from the table of keys.

use serde_json::{Map, Value, json};

use crate::guarantee::Guarantee;
use crate::keys::{self, Grammar, Key, Text};
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
    const ACTIVE: &[&str] = &["version", "preset"];
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
        for key in keys::all().iter().filter(|key| key.section() == *section) {
            text.push('\n');
            comment(&mut text, key.about);
            if key.path == "preset" {
                for preset in presets::all() {
                    comment(&mut text, &format!("- {}: {}", preset.name, preset.about));
                }
            }
            let shown = if ACTIVE.contains(&key.path) { "" } else { "#" };
            text.push_str(&format!("{shown}{}\n", key.example));
        }
    }
    text
}

fn table(section: &str) -> Map<String, Value> {
    let keys = keys::all().iter().filter(|key| key.section() == section);
    keys.map(|key| (key.name().to_owned(), property(key)))
        .collect()
}

fn property(key: &Key) -> Value {
    let mut value = match &key.grammar {
        Grammar::Version => json!({ "const": 1 }),
        Grammar::Boolean => json!({ "type": "boolean" }),
        Grammar::Count => json!({ "type": "integer", "minimum": 1 }),
        Grammar::Number => json!({ "type": "number", "exclusiveMinimum": 0 }),
        Grammar::Text(form) => text_schema(form),
        Grammar::List(form) => {
            json!({ "type": "array", "items": text_schema(form), "maxItems": crate::document::LIST_ITEMS_MAX })
        }
        Grammar::Variables => {
            json!({ "type": "object", "additionalProperties": { "type": "string" } })
        }
    };
    value["description"] = json!(key.about);
    value
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
            assert!(template.contains(key.example), "{}", key.path);
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
