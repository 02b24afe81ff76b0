//! Paths as SBPL: strings for what is granted, regular expressions for what is
//! taken away.

use crate::path::AbsolutePath;

/// Links that every macOS has in its root, and where they lead (firmlinks and
/// the layout of the system volume; hier(7)).
const LINKS: [(&str, &str); 3] = [
    ("/etc", "/private/etc"),
    ("/tmp", "/private/tmp"),
    ("/var", "/private/var"),
];

/// Where the data volume is mounted; its places have shorter names.
const DATA: &str = "/System/Volumes/Data";

/// A path that no rule can name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path} {problem}")]
pub struct Inexpressible {
    pub path: AbsolutePath,
    problem: &'static str,
}

/// The links of the root directory.
pub(super) fn links() -> impl Iterator<Item = AbsolutePath> {
    LINKS.iter().map(|(link, _)| super::place(link))
}

/// The path under which the kernel of macOS asks, as far as the layout of the
/// system decides it.
pub fn resolved(path: &AbsolutePath) -> AbsolutePath {
    let below = |path: &AbsolutePath, from: &str, to: &str| {
        let rest = path.relative_to(&super::place(from))?;
        super::place(to).join(rest).ok()
    };
    let path = below(path, DATA, "/").unwrap_or_else(|| path.clone());
    LINKS
        .iter()
        .find_map(|(link, target)| below(&path, link, target))
        .unwrap_or(path)
}

/// A string. APFS and HFS+ keep names as UTF-8, so nothing else is a name; of
/// control characters only those are taken for which the language has a letter.
pub(super) fn quoted(path: &AbsolutePath) -> Result<String, Inexpressible> {
    let refused = |problem| Inexpressible {
        path: path.clone(),
        problem,
    };
    let text = std::str::from_utf8(path.as_bytes())
        .map_err(|_| refused("is not UTF-8, and no name on macOS is anything else"))?;
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            _ if character.is_control() => {
                return Err(refused(
                    "has a control character, which SBPL cannot express",
                ));
            }
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    Ok(quoted)
}

/// This path, under any case of its letters.
pub(super) fn exactly(path: &AbsolutePath) -> String {
    format!("^{}$", folded(path.as_bytes()))
}

/// This path and everything below it.
pub(super) fn below(path: &AbsolutePath) -> String {
    format!("^{}(/|$)", folded(path.as_bytes()))
}

/// A part of a regular expression that matches these bytes under any case and
/// any normal form: more rather than less. What is not ASCII stands for any
/// bytes within its component, together with the letter before it, which may be
/// part of the same character.
pub(super) fn folded(bytes: &[u8]) -> String {
    let mut regex = String::with_capacity(bytes.len() * 4);
    for (at, &byte) in bytes.iter().enumerate() {
        match (byte, bytes.get(at + 1)) {
            (b'/', _) => regex.push('/'),
            (0x80.., _) => {
                if !regex.ends_with(ANYTHING) {
                    regex.push_str(ANYTHING);
                }
            }
            (byte, Some(0x80..)) if byte.is_ascii_alphabetic() => {}
            (byte, _) => regex.push_str(&one(byte)),
        }
    }
    regex
}

/// Any bytes within a component.
pub(super) const ANYTHING: &str = "[^/]*";

/// One byte in both cases. A quote would end the expression, and control
/// characters have no letter in it: any byte stands for them.
pub(super) fn one(byte: u8) -> String {
    let letter = char::from(byte);
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' => format!(
            "[{}{}]",
            letter.to_ascii_lowercase(),
            letter.to_ascii_uppercase()
        ),
        b'0'..=b'9'
        | b'_'
        | b'-'
        | b' '
        | b'/'
        | b','
        | b':'
        | b'='
        | b'@'
        | b'%'
        | b'~'
        | b'#'
        | b'!'
        | b'&'
        | b'\''
        | b';'
        | b'<'
        | b'>'
        | b'`' => letter.to_string(),
        b'"' | 0..=0x1f | 0x7f.. => ".".to_owned(),
        _ => format!("\\{letter}"),
    }
}
