//! Whether a GraphQL request only reads: every operation in it is a query.
//!
//! It looks at documents as a tokenizer does and refuses whatever two servers
//! could read differently: repeated members, other content types, documents
//! that the server knows by an identifier. What a query of a server may cause
//! is that server's business.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Largest request body that is looked at; larger ones are refused.
pub const BODY_BYTES_MAX: usize = 256 * 1024;

/// Requests in one batch.
const BATCH_MAX: usize = 64;

/// Deepest nesting of brackets in a document.
const DEPTH_MAX: usize = 256;

/// Members and parameters by which servers look up a stored document, which
/// could be anything.
const STORED: [&str; 6] = [
    "extensions",
    "id",
    "documentid",
    "doc_id",
    "queryid",
    "hash",
];

/// Why a request is not known to only read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReadOnly {
    #[error("it holds a mutation")]
    Mutation,
    #[error("it holds a subscription")]
    Subscription,
    #[error("its document is not plain GraphQL operations and fragments")]
    Document,
    #[error("it names a stored document, whose text cannot be seen")]
    Stored,
    #[error("it holds no document")]
    NoDocument,
    #[error("its body is not the JSON of a GraphQL request, or says something twice")]
    Body,
    #[error("its content type is neither application/json nor application/graphql")]
    ContentType,
    #[error("its method is neither GET nor POST")]
    Method,
}

/// Judges a whole request. `query` are the decoded parameters of its URL;
/// they count for POST as well, because some servers read them.
pub fn read_only(
    method: &str,
    query: &[(String, String)],
    content_type: Option<&str>,
    body: &[u8],
) -> Result<(), NotReadOnly> {
    let in_query = parameters(query)?;
    match method {
        "GET" if !body.is_empty() => Err(NotReadOnly::Body),
        "GET" if in_query == 0 => Err(NotReadOnly::NoDocument),
        "GET" => Ok(()),
        "POST" => match media_type(content_type.unwrap_or_default()) {
            Some(Media::Json) => json_body(body),
            Some(Media::Document) => {
                document(std::str::from_utf8(body).map_err(|_| NotReadOnly::Document)?)
            }
            None => Err(NotReadOnly::ContentType),
        },
        _ => Err(NotReadOnly::Method),
    }
}

/// Checks the documents among the parameters and counts them.
fn parameters(query: &[(String, String)]) -> Result<usize, NotReadOnly> {
    let mut documents = 0;
    for (name, value) in query {
        let name = name.to_ascii_lowercase();
        if STORED.contains(&name.as_str()) {
            return Err(NotReadOnly::Stored);
        }
        if name == "query" {
            document(value)?;
            documents += 1;
        }
    }
    Ok(documents)
}

enum Media {
    Json,
    Document,
}

fn media_type(text: &str) -> Option<Media> {
    let mut parts = text.split(';').map(str::trim);
    let essence = parts.next()?.to_ascii_lowercase();
    let utf8 = parts.all(|parameter| {
        let parameter = parameter.to_ascii_lowercase();
        matches!(parameter.as_str(), "charset=utf-8" | "charset=\"utf-8\"")
    });
    match essence.as_str() {
        "application/json" if utf8 => Some(Media::Json),
        "application/graphql" if utf8 => Some(Media::Document),
        _ => None,
    }
}

fn json_body(body: &[u8]) -> Result<(), NotReadOnly> {
    let requests: Requests = serde_json::from_slice(body).map_err(|_| NotReadOnly::Body)?;
    if requests.0.is_empty() {
        return Err(NotReadOnly::NoDocument);
    }
    for request in requests.0 {
        if request.stored {
            return Err(NotReadOnly::Stored);
        }
        document(&request.document.ok_or(NotReadOnly::NoDocument)?)?;
    }
    Ok(())
}

/// One request or a batch of them.
struct Requests(Vec<Request>);

#[derive(Default)]
struct Request {
    document: Option<String>,
    stored: bool,
}

impl<'de> Deserialize<'de> for Requests {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Requests;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a GraphQL request or a list of them")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Requests, A::Error> {
                Ok(Requests(vec![request(map)?]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Requests, A::Error> {
                let mut requests = Vec::new();
                while let Some(request) = list.next_element::<Request>()? {
                    if requests.len() == BATCH_MAX {
                        return Err(serde::de::Error::custom("the batch is too long"));
                    }
                    requests.push(request);
                }
                Ok(Requests(requests))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl<'de> Deserialize<'de> for Request {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Request;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a GraphQL request")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Request, A::Error> {
                request(map)
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// Names are compared without case, because Go's JSON does so; of two members
/// with one name some servers take the first and some the last.
fn request<'de, A: MapAccess<'de>>(mut map: A) -> Result<Request, A::Error> {
    let mut request = Request::default();
    while let Some(name) = map.next_key::<String>()? {
        let lower = name.to_ascii_lowercase();
        if lower == "query" {
            if name != lower || request.document.is_some() {
                return Err(serde::de::Error::custom("the document is there twice"));
            }
            request.document = Some(map.next_value()?);
        } else if STORED.contains(&lower.as_str()) {
            let empty = map.next_value::<EmptyOrNot>()?.0;
            request.stored |= !empty;
        } else {
            map.next_value::<IgnoredAny>()?;
        }
    }
    Ok(request)
}

/// Whether a JSON value is null or an empty object, as clients send for
/// `extensions` that they do not use.
struct EmptyOrNot(bool);

impl<'de> Deserialize<'de> for EmptyOrNot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        Ok(Self(match value {
            serde_json::Value::Null => true,
            serde_json::Value::Object(members) => members.is_empty(),
            _ => false,
        }))
    }
}

/// Checks that every definition of a document is a query or a fragment.
fn document(text: &str) -> Result<(), NotReadOnly> {
    let mut tokens = Tokens { rest: text };
    let mut operations = 0;
    while let Some(token) = tokens.next()? {
        match token {
            Token::Open(b'{') => {
                operations += 1;
                tokens.skip_selection(1)?;
            }
            Token::Name("query") => {
                operations += 1;
                tokens.skip_selection(0)?;
            }
            Token::Name("fragment") => tokens.skip_selection(0)?,
            Token::Name("mutation") => return Err(NotReadOnly::Mutation),
            Token::Name("subscription") => return Err(NotReadOnly::Subscription),
            _ => return Err(NotReadOnly::Document),
        }
    }
    if operations == 0 {
        return Err(NotReadOnly::NoDocument);
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Name(&'a str),
    Open(u8),
    Close(u8),
    /// Strings, numbers and other punctuation, which decide nothing here.
    Other,
}

struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Tokens<'a> {
    /// Skips up to the end of the selection set of a definition; `open` of
    /// its braces are open already.
    fn skip_selection(&mut self, open: usize) -> Result<(), NotReadOnly> {
        let mut stack: Vec<u8> = vec![b'{'; open];
        loop {
            match self.next()?.ok_or(NotReadOnly::Document)? {
                Token::Open(bracket) if stack.len() < DEPTH_MAX => stack.push(bracket),
                Token::Open(_) => return Err(NotReadOnly::Document),
                Token::Close(bracket) => {
                    if stack.pop() != Some(opening(bracket)) {
                        return Err(NotReadOnly::Document);
                    }
                    if stack.is_empty() && bracket == b'}' {
                        return Ok(());
                    }
                }
                Token::Name(_) | Token::Other => {}
            }
        }
    }

    fn next(&mut self) -> Result<Option<Token<'a>>, NotReadOnly> {
        self.skip_ignored()?;
        let text = self.rest;
        let Some(first) = text.bytes().next() else {
            return Ok(None);
        };
        let (token, length) = match first {
            b'{' | b'(' | b'[' => (Token::Open(first), 1),
            b'}' | b')' | b']' => (Token::Close(first), 1),
            b'"' => (Token::Other, string_length(text)?),
            b'_' | b'a'..=b'z' | b'A'..=b'Z' => {
                let length = word_length(text);
                (Token::Name(&text[..length]), length)
            }
            b'0'..=b'9' | b'-' => (Token::Other, number_length(text)),
            b'!' | b'$' | b'&' | b':' | b'=' | b'@' | b'|' => (Token::Other, 1),
            b'.' if text.starts_with("...") => (Token::Other, 3),
            _ => return Err(NotReadOnly::Document),
        };
        self.rest = &text[length..];
        Ok(Some(token))
    }

    fn skip_ignored(&mut self) -> Result<(), NotReadOnly> {
        loop {
            let ignored = [' ', '\t', '\r', '\n', ',', '\u{feff}'];
            self.rest = self.rest.trim_start_matches(ignored);
            let Some(comment) = self.rest.strip_prefix('#') else {
                return Ok(());
            };
            let end = comment.find(['\r', '\n']).unwrap_or(comment.len());
            // Early servers ended lines at these two as well.
            if comment[..end].contains(['\u{2028}', '\u{2029}']) {
                return Err(NotReadOnly::Document);
            }
            self.rest = &comment[end..];
        }
    }
}

fn opening(closing: u8) -> u8 {
    match closing {
        b'}' => b'{',
        b')' => b'(',
        _ => b'[',
    }
}

fn word_length(text: &str) -> usize {
    text.bytes()
        .position(|byte| !(byte.is_ascii_alphanumeric() || byte == b'_'))
        .unwrap_or(text.len())
}

fn number_length(text: &str) -> usize {
    text.bytes()
        .position(|byte| !(byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.')))
        .unwrap_or(text.len())
}

/// Length of the string at the start of `text`, with its quotes.
fn string_length(text: &str) -> Result<usize, NotReadOnly> {
    if let Some(block) = text.strip_prefix("\"\"\"") {
        return block_length(block).map(|length| length + 3);
    }
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            b'\r' | b'\n' => break,
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Ok(at + 1),
            _ => {}
        }
    }
    Err(NotReadOnly::Document)
}

/// Length of a block string after its opening quotes. Servers older than
/// block strings read one as several strings, and what stands between them as
/// tokens: so no keyword that writes may stand in there.
fn block_length(block: &str) -> Result<usize, NotReadOnly> {
    let mut from = 0;
    loop {
        let at = from + block[from..].find("\"\"\"").ok_or(NotReadOnly::Document)?;
        if at > 0 && block.as_bytes()[at - 1] == b'\\' {
            from = at + 3;
            continue;
        }
        let content = &block[..at];
        if content.contains("mutation") || content.contains("subscription") {
            return Err(NotReadOnly::Document);
        }
        return Ok(at + 3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(body: &str) -> Result<(), NotReadOnly> {
        read_only("POST", &[], Some("application/json"), body.as_bytes())
    }

    fn get(name: &str, value: &str) -> Result<(), NotReadOnly> {
        let query = [(name.to_owned(), value.to_owned())];
        read_only("GET", &query, None, b"")
    }

    #[test]
    fn row_38_documents_that_only_read_pass() {
        for text in [
            "{ viewer { login } }",
            "query { a }",
            "query Q($a: In = {b: [1, 2]}, $c: [Int!]!) @d(e: \"}\") { a(x: $a) { ...F } } fragment F on T { id }",
            "# mutation\nquery { a(text: \"mutation { b }\") }",
            "query { a(text: \"\"\"two\nlines \\\"\"\" } \"\"\") }",
            "\u{feff}query{a(n:-1.5e+3)},{b}",
        ] {
            assert_eq!(document(text), Ok(()), "{text}");
        }
        assert_eq!(get("query", "{a}"), Ok(()));
        assert_eq!(
            post(r#"{"query":"{a}","variables":{"query":1},"operationName":null,"extensions":{}}"#),
            Ok(())
        );
        assert_eq!(post(r#"[{"query":"{a}"},{"query":"query B{b}"}]"#), Ok(()));
        assert_eq!(
            read_only(
                "POST",
                &[],
                Some("application/graphql; charset=UTF-8"),
                b"{a}"
            ),
            Ok(())
        );
    }

    #[test]
    fn row_38_documents_that_write_do_not() {
        for (text, why) in [
            ("mutation { a }", NotReadOnly::Mutation),
            ("query A { a } mutation B { b }", NotReadOnly::Mutation),
            ("{ a } # x\rmutation B { b }", NotReadOnly::Mutation),
            ("subscription { a }", NotReadOnly::Subscription),
            (
                "query A($x: I = {y: 1}) { a } mutation B { b }",
                NotReadOnly::Mutation,
            ),
            ("# \u{2028} mutation { a }\n{ a }", NotReadOnly::Document),
            (
                "{ a(x: \"\"\"\" } } mutation M { b } # \"\"\") }",
                NotReadOnly::Document,
            ),
            ("{ a(x: \"b) }", NotReadOnly::Document),
            ("{ a ( } )", NotReadOnly::Document),
            ("{ a", NotReadOnly::Document),
            ("type Q { a: Int }", NotReadOnly::Document),
            ("\"note\" mutation { a }", NotReadOnly::Document),
            ("{ a } ; mutation { b }", NotReadOnly::Document),
            ("fragment F on T { id }", NotReadOnly::NoDocument),
            ("", NotReadOnly::NoDocument),
        ] {
            assert_eq!(document(text), Err(why), "{text}");
        }
        let deep = format!("{}a{}", "{".repeat(400), "}".repeat(400));
        assert_eq!(document(&deep), Err(NotReadOnly::Document));
    }

    #[test]
    fn row_38_bodies_that_could_be_read_differently_are_refused() {
        for (body, why) in [
            (
                r#"{"query":"{a}","query":"mutation{b}"}"#,
                NotReadOnly::Body,
            ),
            (
                r#"{"query":"{a}","Query":"mutation{b}"}"#,
                NotReadOnly::Body,
            ),
            (
                r#"{"query":"{a}","qu\u0065ry":"mutation{b}"}"#,
                NotReadOnly::Body,
            ),
            (
                r#"[{"query":"{a}"},{"query":"mutation{b}"}]"#,
                NotReadOnly::Mutation,
            ),
            (
                r#"{"extensions":{"persistedQuery":{}},"query":"{a}"}"#,
                NotReadOnly::Stored,
            ),
            (r#"{"id":"stored","query":"{a}"}"#, NotReadOnly::Stored),
            (r#"{"variables":{}}"#, NotReadOnly::NoDocument),
            ("[]", NotReadOnly::NoDocument),
            ("query=mutation", NotReadOnly::Body),
            (
                r#"{"query":"{a}"} {"query":"mutation{b}"}"#,
                NotReadOnly::Body,
            ),
        ] {
            assert_eq!(post(body), Err(why), "{body}");
        }
        let form = Some("application/x-www-form-urlencoded");
        assert_eq!(
            read_only("POST", &[], form, b"query={a}"),
            Err(NotReadOnly::ContentType)
        );
        let utf7 = Some("application/json; charset=utf-7");
        assert_eq!(
            read_only("POST", &[], utf7, br#"{"query":"{a}"}"#),
            Err(NotReadOnly::ContentType)
        );
        assert_eq!(get("query", "mutation{a}"), Err(NotReadOnly::Mutation));
        assert_eq!(get("id", "stored"), Err(NotReadOnly::Stored));
        assert_eq!(get("other", "x"), Err(NotReadOnly::NoDocument));
        let query = [("query".to_owned(), "mutation{b}".to_owned())];
        assert_eq!(
            read_only(
                "POST",
                &query,
                Some("application/json"),
                br#"{"query":"{a}"}"#
            ),
            Err(NotReadOnly::Mutation)
        );
        assert_eq!(read_only("PUT", &[], None, b""), Err(NotReadOnly::Method));
    }
}
