//! Reads who commits, and what the caller keeps out of every repository, from
//! the caller's own git configuration.
//!
//! A strict reader of lines: it runs nothing, follows no include, and takes
//! only the keys that [`stockade_policy::git`] lists. What it does not
//! understand it leaves out, so the worst case is a commit without a name.

pub mod leads;

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::ResolveFlags;
use stockade_policy::git::{FILE_NAME, KEYS};
use stockade_policy::path::AbsolutePath;
use stockade_sys::rustix;

use crate::regular;

/// Largest configuration that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Longest value in bytes.
const VALUE_BYTES_MAX: usize = 1024;
/// Most settings that are taken.
const SETTINGS_MAX: usize = 64;

/// The settings of the files that git reads for this user, in git's order
/// (git-config(1), FILES). A file that cannot be read counts as missing.
pub fn identity(
    home: &AbsolutePath,
    environment: &BTreeMap<Vec<u8>, Vec<u8>>,
) -> Vec<(String, Vec<u8>)> {
    let mut settings: Vec<_> = files(home, environment)
        .iter()
        .filter_map(|file| read(file))
        .flat_map(|text| parse(&text))
        .collect();
    settings.truncate(SETTINGS_MAX);
    settings
}

/// The files that hold the caller's own settings, the strongest last.
fn files(home: &AbsolutePath, environment: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<PathBuf> {
    match named(environment, "GIT_CONFIG_GLOBAL") {
        Some(file) => vec![file],
        None => vec![
            configuration_directory(home, environment).join("git/config"),
            home.as_path().join(FILE_NAME),
        ],
    }
}

fn configuration_directory(
    home: &AbsolutePath,
    environment: &BTreeMap<Vec<u8>, Vec<u8>>,
) -> PathBuf {
    named(environment, "XDG_CONFIG_HOME").unwrap_or_else(|| home.as_path().join(".config"))
}

/// An absolute path in a variable.
fn named(environment: &BTreeMap<Vec<u8>, Vec<u8>>, name: &str) -> Option<PathBuf> {
    let value = environment
        .get(name.as_bytes())
        .filter(|value| value.starts_with(b"/"))?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(value)))
}

/// The caller's own list of names that no repository takes (`core.excludesFile`
/// of gitignore(5)); empty when there is none, or when it is too large.
pub fn excludes(home: &AbsolutePath, environment: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<u8> {
    let named = files(home, environment)
        .iter()
        .filter_map(|file| read(file))
        .flat_map(|text| parse_keys(&text, &["core.excludesfile"]))
        .last();
    let file = match named {
        Some((_, value)) => match value.strip_prefix(b"~/") {
            Some(below) => home.as_path().join(std::ffi::OsStr::from_bytes(below)),
            None => PathBuf::from(std::ffi::OsStr::from_bytes(&value)),
        },
        None => configuration_directory(home, environment).join("git/ignore"),
    };
    match file.is_absolute() {
        true => read(&file).unwrap_or_default(),
        false => Vec::new(),
    }
}

fn read(path: &std::path::Path) -> Option<Vec<u8>> {
    regular::read(path, ResolveFlags::empty(), FILE_BYTES_MAX)
}

fn parse(text: &[u8]) -> Vec<(String, Vec<u8>)> {
    parse_keys(text, &KEYS)
}

fn parse_keys(text: &[u8], keys: &[&str]) -> Vec<(String, Vec<u8>)> {
    let mut section = None;
    let mut settings = Vec::new();
    let mut continued = false;
    for line in text.split(|&byte| byte == b'\n') {
        let line = line.trim_ascii();
        // A value over several lines is left out, and its rest is no setting.
        let is_rest = std::mem::replace(&mut continued, line.ends_with(b"\\"));
        if is_rest || continued {
            continue;
        }
        let setting = match line.strip_prefix(b"[") {
            None => line,
            Some(header) => {
                let Some(end) = header.iter().position(|&byte| byte == b']') else {
                    section = None;
                    continue;
                };
                section = section_name(&header[..end]);
                header[end + 1..].trim_ascii()
            }
        };
        if let (Some(section), Some((name, value))) = (&section, name_and_value(setting)) {
            let key = format!("{section}.{name}");
            if keys.contains(&key.as_str()) {
                settings.push((key, value));
            }
        }
    }
    settings
}

/// A section without a subsection, in lower case.
fn section_name(header: &[u8]) -> Option<String> {
    let plain = header
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
    plain.then(|| String::from_utf8_lossy(header).to_ascii_lowercase())
}

fn name_and_value(line: &[u8]) -> Option<(String, Vec<u8>)> {
    let equals = line.iter().position(|&byte| byte == b'=')?;
    let name = line[..equals].trim_ascii();
    let plain = name
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
    let value = unquoted(line[equals + 1..].trim_ascii())?;
    let fits = value.len() <= VALUE_BYTES_MAX && !value.iter().any(u8::is_ascii_control);
    (plain && fits).then(|| (String::from_utf8_lossy(name).to_ascii_lowercase(), value))
}

/// A value without quotes, escapes and comment (git-config(1), Syntax).
fn unquoted(text: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    // Bytes up to here are quoted, so white space there is part of the value.
    let mut kept = 0;
    let mut quoted = false;
    let mut bytes = text.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'"' => quoted = !quoted,
            b'\\' => value.push(*bytes.next().filter(|next| b"\"\\".contains(next))?),
            b'#' | b';' if !quoted => break,
            _ => value.push(byte),
        }
        if quoted || !byte.is_ascii_whitespace() {
            kept = value.len();
        }
    }
    value.truncate(kept);
    (!quoted).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<(String, String)> {
        let shown = |value: Vec<u8>| String::from_utf8(value).unwrap();
        parse(text.as_bytes())
            .into_iter()
            .map(|(key, value)| (key, shown(value)))
            .collect()
    }

    fn name(value: &str) -> Vec<(String, String)> {
        vec![("user.name".to_owned(), value.to_owned())]
    }

    #[test]
    fn values_are_read_as_git_reads_them() {
        for (text, value) in [
            ("[user]\nname = A B", "A B"),
            ("[USER]\n\tName=A B  ; comment", "A B"),
            ("[user] name = \"A # B \" # comment", "A # B "),
            ("[user]\r\nname = A \\\"B\\\" \\\\\"\"\r\n", "A \"B\" \\"),
            (
                "; first\n[core]\npager = less\n[user]\nname = M\u{fc}ller",
                "M\u{fc}ller",
            ),
        ] {
            assert_eq!(parsed(text), name(value), "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_or_not_listed_is_left_out() {
        for text in [
            "[user \"x\"]\nname = A",
            "[user]\nname = A \\\nname = B",
            "[user]\nname = \"A",
            "[user]\nname = A\\nB",
            "[user\nname = A",
            "name = A",
            "[user]\nname",
            "[include]\npath = /etc/passwd",
            "[core]\nsshCommand = evil\n[credential]\nhelper = evil",
        ] {
            assert_eq!(parsed(text), [], "{text}");
        }
    }

    #[test]
    fn the_home_file_comes_after_the_one_below_the_configuration_directory() {
        let scratch = tempfile::tempdir().unwrap();
        let home = AbsolutePath::parse(scratch.path().as_os_str().as_bytes()).unwrap();
        std::fs::create_dir_all(scratch.path().join(".config/git")).unwrap();
        std::fs::write(
            scratch.path().join(".config/git/config"),
            "[user]\nname = X",
        )
        .unwrap();
        std::fs::write(scratch.path().join(".gitconfig"), "[user]\nname = Y").unwrap();
        let found = identity(&home, &BTreeMap::new());
        let expected = ["X", "Y"].map(|value| ("user.name".to_owned(), value.as_bytes().to_vec()));
        assert_eq!(found, expected);
    }
}
