//! Reads SBPL: expressions first, then rules.

use std::cell::RefCell;
use std::collections::HashMap;

use regex::bytes::{Regex, RegexBuilder};

use super::{Filter, OPERATIONS, Parameters, Profile, Rule};

/// One expression.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    Word(String),
    Text(Vec<u8>),
    Raw(String),
    List(Vec<Form>),
}

/// Understands a profile, or says what in it is not the language.
pub fn parse(text: &str, parameters: &Parameters) -> Result<Profile, String> {
    let mut reader = Reader { rest: text };
    let mut profile = Profile {
        allow_by_default: true,
        rules: Vec::new(),
    };
    let version = reader.form()?.ok_or("there is no version")?;
    if version != Form::List(vec![word("version"), word("1")]) {
        return Err(format!("{version:?} is not (version 1)"));
    }
    while let Some(form) = reader.form()? {
        let Form::List(list) = &form else {
            return Err(format!("{form:?} stands alone"));
        };
        let [action, rest @ ..] = &list[..] else {
            return Err("an empty list".to_owned());
        };
        let allow = match word_of(action)? {
            "allow" => true,
            "deny" => false,
            other => return Err(format!("no action is called {other}")),
        };
        match rest {
            [one] if *one == word("default") => profile.allow_by_default = allow,
            _ => profile.rules.push(rule(allow, rest, parameters)?),
        }
    }
    Ok(profile)
}

fn word(text: &str) -> Form {
    Form::Word(text.to_owned())
}

fn word_of(form: &Form) -> Result<&str, String> {
    match form {
        Form::Word(text) => Ok(text),
        other => Err(format!("{other:?} is no word")),
    }
}

fn rule(allow: bool, rest: &[Form], parameters: &Parameters) -> Result<Rule, String> {
    let is_word = |form: &&Form| matches!(form, Form::Word(_));
    let names = rest.iter().take_while(is_word).count();
    let mut operations = Vec::new();
    for form in &rest[..names] {
        let name = word_of(form)?;
        let known = |operation: &&str| super::covers(name, operation);
        if !OPERATIONS.iter().any(known) {
            return Err(format!("no operation is called {name}"));
        }
        operations.push(name.to_owned());
    }
    if operations.is_empty() {
        return Err("a rule without an operation".to_owned());
    }
    let filters = rest[names..]
        .iter()
        .map(|form| filter(form, parameters))
        .collect::<Result<_, _>>()?;
    Ok(Rule {
        allow,
        operations,
        filters,
    })
}

fn filter(form: &Form, parameters: &Parameters) -> Result<Filter, String> {
    let Form::List(list) = form else {
        return Err(format!("{form:?} is no filter"));
    };
    let [name, arguments @ ..] = &list[..] else {
        return Err("an empty filter".to_owned());
    };
    let filters = || {
        let each = arguments.iter().map(|form| filter(form, parameters));
        each.collect::<Result<Vec<_>, _>>()
    };
    let one = || match arguments {
        [one] => text(one, parameters),
        _ => Err(format!("{name:?} takes one value")),
    };
    let name_of = |bytes: Vec<u8>| String::from_utf8(bytes).map_err(|error| error.to_string());
    Ok(match word_of(name)? {
        "literal" => Filter::Literal(absolute(one()?)?),
        "subpath" => Filter::Subpath(absolute(one()?)?),
        "regex" => Filter::Regex(expression(arguments)?),
        "global-name" | "sysctl-name" => Filter::Name(name_of(one()?)?),
        "sysctl-name-prefix" => Filter::NamePrefix(name_of(one()?)?),
        "target" if *arguments == [word("same-sandbox")] => Filter::SameSandbox,
        "remote" => match arguments {
            [kind, place] if *kind == word("ip") => remote(&name_of(text(place, parameters)?)?)?,
            _ => return Err(format!("{arguments:?} is nothing remote")),
        },
        "require-all" => Filter::All(filters()?),
        "require-any" => Filter::Any(filters()?),
        "require-not" => match &mut filters()?[..] {
            [one] => Filter::Not(Box::new(one.clone())),
            _ => return Err("require-not takes one filter".to_owned()),
        },
        other => return Err(format!("no filter is called {other}")),
    })
}

/// A rule about a relative path would never match.
fn absolute(path: Vec<u8>) -> Result<Vec<u8>, String> {
    match path.first() {
        Some(b'/') => Ok(path),
        _ => Err("a path that is not absolute".to_owned()),
    }
}

/// The kernel takes no other hosts.
fn remote(place: &str) -> Result<Filter, String> {
    let (host, port) = place.rsplit_once(':').ok_or("a place without a port")?;
    let localhost = match host {
        "localhost" => true,
        "*" => false,
        _ => return Err("host must be * or localhost in network address".to_owned()),
    };
    let port = match port {
        "*" => None,
        number => Some(number.parse().map_err(|_| format!("{number} is no port"))?),
    };
    Ok(Filter::RemoteIp { localhost, port })
}

fn text(form: &Form, parameters: &Parameters) -> Result<Vec<u8>, String> {
    match form {
        Form::Text(text) => Ok(text.clone()),
        Form::List(list) => match &list[..] {
            [name, Form::Text(key)] if *name == word("param") => {
                let key = String::from_utf8_lossy(key);
                let value = parameters.get(key.as_ref());
                let value = value.ok_or_else(|| format!("no parameter is called {key}"))?;
                Ok(value.clone().into_bytes())
            }
            _ => Err(format!("{form:?} is no text")),
        },
        _ => Err(format!("{form:?} is no text")),
    }
}

thread_local! {
    /// A list of guarded names is long, and the same in each profile.
    static COMPILED: RefCell<HashMap<String, Regex>> = RefCell::new(HashMap::new());
}

/// Compiled expressions that are kept at most.
const COMPILED_MAX: usize = 256;

/// Several expressions as one.
fn expression(forms: &[Form]) -> Result<Regex, String> {
    let mut whole = Vec::new();
    for form in forms {
        let Form::Raw(text) = form else {
            return Err(format!("{form:?} is no regular expression"));
        };
        check(text)?;
        whole.push(format!("(?:{text})"));
    }
    let whole = whole.join("|");
    COMPILED.with_borrow_mut(|compiled| {
        if let Some(known) = compiled.get(&whole) {
            return Ok(known.clone());
        }
        let regex = RegexBuilder::new(&whole)
            .unicode(false)
            .dot_matches_new_line(true)
            .size_limit(64 << 20)
            .build()
            .map_err(|error| error.to_string())?;
        if compiled.len() >= COMPILED_MAX {
            compiled.clear();
        }
        compiled.insert(whole, regex.clone());
        Ok(regex)
    })
}

/// The regular expressions of AppleMatch: POSIX's extended ones, over bytes,
/// here without counted repetition, named classes and look-around.
fn check(text: &str) -> Result<(), String> {
    let mut before = ' ';
    for letter in text.chars() {
        let escaped = before == '\\';
        if escaped && letter.is_ascii_alphanumeric() {
            return Err(format!("\\{letter} has a meaning of its own: {text}"));
        }
        if !escaped && (matches!(letter, '{' | '}') || (before == '(' && letter == '?')) {
            return Err(format!("{letter} is not supported: {text}"));
        }
        before = if escaped { ' ' } else { letter };
    }
    Ok(())
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    /// The next expression; `None` at the end.
    fn form(&mut self) -> Result<Option<Form>, String> {
        self.blank();
        let Some(first) = self.rest.chars().next() else {
            return Ok(None);
        };
        match first {
            '(' => {
                self.rest = &self.rest[1..];
                let mut list = Vec::new();
                loop {
                    self.blank();
                    if let Some(rest) = self.rest.strip_prefix(')') {
                        self.rest = rest;
                        return Ok(Some(Form::List(list)));
                    }
                    list.push(self.form()?.ok_or("a list without its end")?);
                }
            }
            ')' => Err("a list without its beginning".to_owned()),
            '"' => {
                self.rest = &self.rest[1..];
                Ok(Some(Form::Text(self.string()?)))
            }
            '#' => {
                let rest = self.rest.strip_prefix("#\"").ok_or("a lone #")?;
                let (raw, rest) = rest.split_once('"').ok_or("a text without its end")?;
                self.rest = rest;
                Ok(Some(Form::Raw(raw.to_owned())))
            }
            _ => {
                let ends = |letter: char| letter.is_whitespace() || "()\";#".contains(letter);
                let end = self.rest.find(ends).unwrap_or(self.rest.len());
                let (text, rest) = self.rest.split_at(end);
                self.rest = rest;
                match text {
                    "" => Err(format!("{first:?} begins nothing")),
                    _ => Ok(Some(word(text))),
                }
            }
        }
    }

    fn blank(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            let Some(comment) = self.rest.strip_prefix(';') else {
                return;
            };
            self.rest = comment.find('\n').map_or("", |end| &comment[end..]);
        }
    }

    fn string(&mut self) -> Result<Vec<u8>, String> {
        let mut text = String::new();
        let mut letters = self.rest.char_indices();
        while let Some((at, letter)) = letters.next() {
            match letter {
                '"' => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(text.into_bytes());
                }
                '\\' => match letters.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, 'r')) => text.push('\r'),
                    Some((_, 't')) => text.push('\t'),
                    Some((_, same @ ('"' | '\\'))) => text.push(same),
                    other => return Err(format!("{other:?} is no escape")),
                },
                _ => text.push(letter),
            }
        }
        Err("a text without its end".to_owned())
    }
}
