//! The canonical form of a request's path and query.
//!
//! What is matched against the rules is also what is sent, so no server can
//! read another path than the one that was judged. Two spellings that a
//! server may treat alike have one canonical form; spellings on which servers
//! differ are refused.

use percent_encoding::percent_decode_str;

/// Longest path and query together, in bytes as they came.
pub const TARGET_BYTES_MAX: usize = 32 * 1024;

/// What becomes of `%2F` and `%5C` in a path: some servers take them for a
/// separator, others for a part of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodedSlash {
    Refused,
    /// For hosts whose rule says so, where such names are in use.
    Kept,
}

/// A path and a query, ready to be matched and sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathAndQuery {
    path: String,
    query: Option<String>,
}

/// Why a path or a query is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPath {
    #[error("the path does not begin with a slash")]
    NoSlash,
    #[error("the path and query are longer than {TARGET_BYTES_MAX} bytes")]
    TooLong,
    #[error("the path or query has a byte that must be percent-encoded, or a fragment")]
    ForbiddenByte,
    #[error("the path or query has a percent sign that is not followed by two hexadecimal digits")]
    BadEscape,
    #[error("the path or query has an encoded control character")]
    EncodedControl,
    #[error(
        "the path has an encoded slash or backslash (%2F, %5C); `encoded_slash` in the rule allows it"
    )]
    EncodedSlash,
    #[error("the path has a `.` or `..` behind an encoded slash or before a parameter")]
    HiddenDotSegment,
}

impl PathAndQuery {
    /// Of a target in origin form, or of what follows the authority in an
    /// absolute URI; nothing at all stands for `/`.
    pub fn parse(target: &[u8], encoded_slash: EncodedSlash) -> Result<Self, BadPath> {
        if target.len() > TARGET_BYTES_MAX {
            return Err(BadPath::TooLong);
        }
        let mark = target.iter().position(|byte| *byte == b'?');
        let (path, query) = match mark {
            Some(mark) => (&target[..mark], Some(&target[mark + 1..])),
            None => (target, None),
        };
        let target = Self {
            path: canonical_path(path, encoded_slash)?,
            query: query.map(checked_query).transpose()?,
        };
        // Escaped it can be three times as long as it came.
        let query = target.query.as_ref().map_or(0, |query| 1 + query.len());
        match target.path.len() + query > TARGET_BYTES_MAX {
            true => Err(BadPath::TooLong),
            false => Ok(target),
        }
    }

    /// Begins with `/`; unreserved characters are plain, all others are
    /// escaped with upper-case digits; no `.`, `..` or empty segment but a
    /// last empty one.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// As it came, without the `?`.
    pub fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    /// The parameters of the query as forms encode them, decoded. Bytes that
    /// are no UTF-8 become U+FFFD, which no pattern names.
    pub fn parameters(&self) -> Vec<(String, String)> {
        let pieces = self.query().unwrap_or_default().split('&');
        pieces
            .filter(|piece| !piece.is_empty())
            .map(|piece| {
                let (name, value) = piece.split_once('=').unwrap_or((piece, ""));
                (form_decoded(name), form_decoded(value))
            })
            .collect()
    }
}

/// The form in which it is sent.
impl std::fmt::Display for PathAndQuery {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.path)?;
        match &self.query {
            Some(query) => write!(formatter, "?{query}"),
            None => Ok(()),
        }
    }
}

fn canonical_path(path: &[u8], encoded_slash: EncodedSlash) -> Result<String, BadPath> {
    match path.first() {
        None => return Ok("/".to_owned()),
        Some(b'/') => {}
        Some(_) => return Err(BadPath::NoSlash),
    }
    let normal = normal_escapes(path, encoded_slash)?;
    let mut segments: Vec<&str> = Vec::new();
    // The text before the first slash is empty.
    let mut pieces = normal.split('/').skip(1).peekable();
    while let Some(piece) = pieces.next() {
        let last = pieces.peek().is_none();
        match piece {
            "." | "" => {}
            ".." => drop(segments.pop()),
            other if hides_dot_segment(other) => return Err(BadPath::HiddenDotSegment),
            other => segments.push(other),
        }
        // A path that ended in a directory still does (RFC 3986 §5.2.4).
        if last && matches!(piece, "." | ".." | "") {
            segments.push("");
        }
    }
    Ok(format!("/{}", segments.join("/")))
}

/// Decodes what is unreserved (RFC 3986 §6.2.2.2) and writes every other
/// escape, and every character that needs one, in one way.
fn normal_escapes(path: &[u8], encoded_slash: EncodedSlash) -> Result<String, BadPath> {
    let mut normal = String::with_capacity(path.len());
    let mut rest = path;
    while let [byte, after @ ..] = rest {
        rest = after;
        let mut value = *byte;
        if value == b'%' {
            (value, rest) = escape(after)?;
            match value {
                b'/' | b'\\' if encoded_slash == EncodedSlash::Refused => {
                    return Err(BadPath::EncodedSlash);
                }
                0..=0x1F | 0x7F => return Err(BadPath::EncodedControl),
                _ if !is_unreserved(value) => {
                    push_escape(&mut normal, value);
                    continue;
                }
                _ => {}
            }
        }
        match value {
            b'/' => normal.push('/'),
            _ if is_path_character(value) => normal.push(char::from(value)),
            // In use by clients that escape too little, and harmless.
            b'"' | b'[' | b']' | b'^' | b'{' | b'|' | b'}' => push_escape(&mut normal, value),
            _ => return Err(BadPath::ForbiddenByte),
        }
    }
    Ok(normal)
}

/// The byte that two digits stand for, and what follows them.
fn escape(digits: &[u8]) -> Result<(u8, &[u8]), BadPath> {
    let [high, low, rest @ ..] = digits else {
        return Err(BadPath::BadEscape);
    };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (Some(high), Some(low)) = (digit(*high), digit(*low)) else {
        return Err(BadPath::BadEscape);
    };
    let value = u8::try_from(high << 4 | low).map_err(|_| BadPath::BadEscape)?;
    Ok((value, rest))
}

fn push_escape(text: &mut String, value: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    text.push('%');
    text.push(char::from(DIGITS[usize::from(value >> 4)]));
    text.push(char::from(DIGITS[usize::from(value & 15)]));
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// `pchar` of RFC 3986 §3.3, without escapes.
fn is_path_character(byte: u8) -> bool {
    is_unreserved(byte) || b"!$&'()*+,;=:@".contains(&byte)
}

/// Some servers cut a parameter off a segment (`..;x`) or decode a separator
/// (`..%2F`) before they resolve `..`; others do not.
fn hides_dot_segment(segment: &str) -> bool {
    let parts = segment.split("%2F").flat_map(|part| part.split("%5C"));
    parts.into_iter().any(|part| {
        let name = part.split(';').next().unwrap_or_default();
        let name = name.split("%3B").next().unwrap_or_default();
        matches!(name, "." | "..")
    })
}

fn checked_query(query: &[u8]) -> Result<String, BadPath> {
    let mut checked = String::with_capacity(query.len());
    let mut rest = query;
    while let [byte, after @ ..] = rest {
        rest = after;
        match byte {
            b'%' if escape(after)?.0 == 0 => return Err(BadPath::EncodedControl),
            // The two that no URI parser takes as they are (WHATWG URL, query
            // state), and that clients write all the same.
            b'"' | b'<' | b'>' => push_escape(&mut checked, *byte),
            b'#' => return Err(BadPath::ForbiddenByte),
            b'!'..=b'~' => checked.push(char::from(*byte)),
            _ => return Err(BadPath::ForbiddenByte),
        }
    }
    Ok(checked)
}

fn form_decoded(text: &str) -> String {
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn canonical(target: &str) -> Result<String, BadPath> {
        PathAndQuery::parse(target.as_bytes(), EncodedSlash::Refused).map(|path| path.to_string())
    }

    fn keeping(target: &str) -> Result<String, BadPath> {
        PathAndQuery::parse(target.as_bytes(), EncodedSlash::Kept).map(|path| path.to_string())
    }

    #[test]
    fn row_36_one_path_has_one_form() {
        for (written, form) in [
            ("", "/"),
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a/b/", "/a/b/"),
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/.%2e/%2e/b/..", "/"),
            ("/a/b/.", "/a/b/"),
            ("/../../a", "/a"),
            ("//a///b//", "/a/b/"),
            ("/a//../b", "/b"),
            ("/%61%7e%2D", "/a~-"),
            ("/%c3%a4%3b;%3f", "/%C3%A4%3B;%3F"),
            ("/a;v=1/b", "/a;v=1/b"),
            ("/%252e%252e/%25", "/%252e%252e/%25"),
            ("/%25%32%65", "/%252e"),
            ("/a|b[c]{d}", "/a%7Cb%5Bc%5D%7Bd%7D"),
            ("/...", "/..."),
            ("/a%20b", "/a%20b"),
            ("?a=1", "/?a=1"),
            ("/a?b/../c&%2f", "/a?b/../c&%2f"),
            ("/a?", "/a?"),
            ("/a?x=\"<>\"", "/a?x=%22%3C%3E%22"),
        ] {
            assert_eq!(canonical(written).as_deref(), Ok(form), "{written}");
        }
    }

    #[test]
    fn row_36_what_servers_read_differently_is_refused() {
        for (written, refusal) in [
            ("a", BadPath::NoSlash),
            ("*", BadPath::NoSlash),
            ("/a%2Fb", BadPath::EncodedSlash),
            ("/a%5cb", BadPath::EncodedSlash),
            ("/a\\b", BadPath::ForbiddenByte),
            ("/a b", BadPath::ForbiddenByte),
            ("/a#b", BadPath::ForbiddenByte),
            ("/a?b#c", BadPath::ForbiddenByte),
            ("/a<b", BadPath::ForbiddenByte),
            ("/ä", BadPath::ForbiddenByte),
            ("/a?ä", BadPath::ForbiddenByte),
            ("/a\r\nb", BadPath::ForbiddenByte),
            ("/a?b\0", BadPath::ForbiddenByte),
            ("/%00", BadPath::EncodedControl),
            ("/a%0d%0a", BadPath::EncodedControl),
            ("/%7F", BadPath::EncodedControl),
            ("/a?%00", BadPath::EncodedControl),
            ("/%", BadPath::BadEscape),
            ("/%2", BadPath::BadEscape),
            ("/%+1", BadPath::BadEscape),
            ("/%u002e", BadPath::BadEscape),
            ("/a?100%", BadPath::BadEscape),
            ("/a/..;x/b", BadPath::HiddenDotSegment),
            ("/a/%2e%2e;/b", BadPath::HiddenDotSegment),
            ("/a/..%3Bx/b", BadPath::HiddenDotSegment),
            ("/a/.;/b", BadPath::HiddenDotSegment),
        ] {
            assert_eq!(canonical(written), Err(refusal), "{written}");
        }
        let long = format!("/{}", "a".repeat(TARGET_BYTES_MAX));
        assert_eq!(canonical(&long), Err(BadPath::TooLong));
        // What would be too long in the form in which it is sent.
        let quotes = |start: &str, count| format!("{start}{}", "\"".repeat(count));
        for start in ["/", "/?"] {
            let most = (TARGET_BYTES_MAX - start.len()) / 3;
            assert!(canonical(&quotes(start, most)).is_ok());
            let longer = canonical(&quotes(start, most + 1));
            assert_eq!(longer, Err(BadPath::TooLong));
        }
    }

    #[test]
    fn row_36_an_encoded_slash_is_kept_where_the_rule_says_so() {
        assert_eq!(keeping("/@scope%2fname").as_deref(), Ok("/@scope%2Fname"));
        assert_eq!(keeping("/a%5cb").as_deref(), Ok("/a%5Cb"));
        for written in ["/a%2f..%2fb", "/..%2Fb", "/a%5c%2e%2e", "/a%2f.;x"] {
            assert_eq!(
                keeping(written),
                Err(BadPath::HiddenDotSegment),
                "{written}"
            );
        }
    }

    #[test]
    fn parameters_are_decoded_as_forms_are() {
        let target = b"/?a=1+2&b=%3D%26&&c&d==x;y&%c3%a4=%ff";
        let parsed = PathAndQuery::parse(target, EncodedSlash::Refused).expect("it is good");
        let pairs = parsed.parameters();
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(n, v)| (&n[..], &v[..])).collect();
        let expected = [
            ("a", "1 2"),
            ("b", "=&"),
            ("c", ""),
            ("d", "=x;y"),
            ("ä", "\u{FFFD}"),
        ];
        assert_eq!(pairs, expected);
        assert_eq!(parsed.query(), Some("a=1+2&b=%3D%26&&c&d==x;y&%c3%a4=%ff"));
    }

    proptest! {
        #[test]
        fn the_canonical_form_is_its_own(target in "/([a.;/?&=%]|%2[eEfF5]|%5[cC]|%41|%3[bB]|[ -~]){0,24}") {
            for choice in [EncodedSlash::Refused, EncodedSlash::Kept] {
                let Ok(once) = PathAndQuery::parse(target.as_bytes(), choice) else { continue };
                let twice = PathAndQuery::parse(once.to_string().as_bytes(), choice);
                prop_assert_eq!(twice, Ok(once.clone()));
                let segments: Vec<&str> = once.path().split('/').skip(1).collect();
                prop_assert!(!segments.iter().any(|segment| matches!(*segment, "." | "..")));
                prop_assert!(!segments.iter().rev().skip(1).any(|segment| segment.is_empty()));
            }
        }
    }
}
