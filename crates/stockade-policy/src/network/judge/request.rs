//! Judges one HTTP request on a connection that may be made.

use super::{Denial, Judge, RulePatterns, Ruling, Silent, grants};
use crate::network::destination::Destination;
use crate::network::rules::{Budget, Content, GraphQl, NetworkRule};
use crate::plan::Rule;

/// What is judged of a request. Text is as it will be sent.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    pub method: &'a str,
    /// Canonical, without the query.
    pub path: &'a str,
    /// Decoded, in order.
    pub query: &'a [(String, String)],
    /// Lower-case names.
    pub headers: &'a [(String, String)],
    pub upgrade_websocket: bool,
    /// The request came over TLS that is ended here.
    pub tls: bool,
}

/// A request that may be sent, and what it is held to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestPermit {
    pub rule: Rule,
    pub body_bytes_max: Option<u64>,
    /// Its body must be GraphQL without a mutation; whoever has the body checks.
    pub graphql_read_only: bool,
    /// It must be a git operation that [`Judge::git`] permits; anything else
    /// is to be refused.
    pub git: bool,
    /// Each with the name under which it is counted; one that the passage has
    /// too is counted once.
    pub budgets: Vec<(String, Budget)>,
    /// Headers that name another method are to be taken out.
    pub strip_method_override: bool,
}

impl Judge {
    /// Whether a request may be sent; `now_unix` in seconds.
    pub fn request(
        &self,
        destination: &Destination,
        request: &RequestHead<'_>,
        now_unix: u64,
    ) -> Ruling<RequestPermit> {
        if let Some(denial) = self.beyond_rules(destination) {
            return Ruling::Denied(denial);
        }
        let speaking = match self.speaking(destination, now_unix) {
            Ok(speaking) => speaking,
            Err(Silent::Granting(denial)) => return Ruling::Unknown(denial),
            Err(Silent::Ceiling(denial)) => return Ruling::Denied(denial),
        };
        let bound = self.bindings_for(destination).next().is_some();
        let mut permit: Option<RequestPermit> = None;
        for (set, numbers) in speaking.iter().enumerate() {
            let asked = Asked {
                judge: self,
                destination,
                request,
                set,
                bound,
            };
            match asked.of_rules(numbers) {
                Err(denial) => return Ruling::Denied(denial),
                Ok(one) => permit = Some(together(permit, one)),
            }
        }
        match permit {
            Some(mut permit) => {
                permit.budgets.insert(0, self.whole_budget());
                Ruling::Permit(permit)
            }
            None => Ruling::Unknown(self.silence(0, destination, now_unix)),
        }
    }
}

/// Whether requests of the rule may become WebSockets: it says so, or it
/// demands nothing and no credential could be sent through.
pub(super) fn takes_websockets(rule: &NetworkRule, bound: bool) -> bool {
    match &rule.content {
        Some(content) => content.websocket,
        None => rule.git.is_none() && !bound,
    }
}

/// One request before the rules of one set.
struct Asked<'a> {
    judge: &'a Judge,
    destination: &'a Destination,
    request: &'a RequestHead<'a>,
    set: usize,
    bound: bool,
}

/// What a rule did not like; the later ones are the nearer misses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Miss {
    GitOnly,
    Path,
    Method,
    Query,
    Header,
    EncodedSlash,
    Websocket,
    DnsMessage,
}

impl Asked<'_> {
    /// The first rule that permits, or the denial of the nearest miss.
    fn of_rules(&self, numbers: &[usize]) -> Result<RequestPermit, Denial> {
        let rules = &self.judge.plan.sets[self.set].rules;
        let shape = git_shape(self.request);
        let has_git = numbers.iter().any(|number| rules[*number].git.is_some());
        // What is plainly git is judged as git, not as some request that a
        // rule on paths may let through.
        if has_git && shape == GitShape::Plain {
            return Ok(self.permit_of_git(numbers));
        }
        let mut nearest: Option<(Miss, usize)> = None;
        for &number in numbers {
            match self.of_rule(number) {
                Ok(()) => return Ok(self.permit(number, numbers)),
                Err(miss) if nearest.is_none_or(|(so_far, _)| miss > so_far) => {
                    nearest = Some((miss, number));
                }
                Err(_) => {}
            }
        }
        if has_git && shape == GitShape::Possible {
            return Ok(self.permit_of_git(numbers));
        }
        let (miss, number) = nearest.unwrap_or((Miss::Path, 0));
        Err(self.denial(miss, number))
    }

    fn of_rule(&self, number: usize) -> Result<(), Miss> {
        let rule = &self.judge.plan.sets[self.set].rules[number];
        let patterns = &self.judge.sets[self.set].patterns[number];
        let none = Content::default();
        let content = match (&rule.content, &rule.git) {
            (Some(content), _) => content,
            (None, Some(_)) => return Err(Miss::GitOnly),
            (None, None) => &none,
        };
        matches_content(content, patterns, self.request)?;
        if has_encoded_slash(self.request.path) && !content.encoded_slash {
            return Err(Miss::EncodedSlash);
        }
        if self.request.upgrade_websocket && !takes_websockets(rule, self.bound) {
            return Err(Miss::Websocket);
        }
        if is_dns_message(self.request) && !names_dns_message(content) {
            return Err(Miss::DnsMessage);
        }
        Ok(())
    }

    fn permit(&self, number: usize, numbers: &[usize]) -> RequestPermit {
        let rules = &self.judge.plan.sets[self.set].rules;
        let rule = &rules[number];
        let content = rule.content.as_ref();
        let demanded = |number: &usize| {
            let content = rules[*number].content.as_ref();
            content.is_some_and(|content| !content.methods.is_empty())
        };
        RequestPermit {
            rule: rule.rule.clone(),
            body_bytes_max: content.and_then(|content| content.body_bytes_max),
            graphql_read_only: content.is_some_and(|content| content.graphql == GraphQl::ReadOnly),
            git: false,
            budgets: vec![self.judge.budget(self.set, number)],
            strip_method_override: numbers.iter().any(demanded),
        }
    }

    fn permit_of_git(&self, numbers: &[usize]) -> RequestPermit {
        let rules = &self.judge.plan.sets[self.set].rules;
        let first = numbers
            .iter()
            .copied()
            .find(|number| rules[*number].git.is_some())
            .unwrap_or_default();
        RequestPermit {
            rule: rules[first].rule.clone(),
            body_bytes_max: None,
            graphql_read_only: false,
            git: true,
            budgets: vec![self.judge.budget(self.set, first)],
            strip_method_override: true,
        }
    }

    fn denial(&self, miss: Miss, number: usize) -> Denial {
        let rule = &self.judge.plan.sets[self.set].rules[number];
        let (id, origin) = (&rule.rule.id, &rule.rule.origin);
        let RequestHead { method, path, .. } = *self.request;
        let (code, what) = match miss {
            Miss::GitOnly => ("git-read", format!("{id} ({origin}) permits git only")),
            Miss::Path => ("path", format!("{id} ({origin}) does not permit {path}")),
            Miss::Method => (
                "method",
                format!("{id} ({origin}) does not permit {method} {path}"),
            ),
            Miss::Query => (
                "query",
                format!("the query is not as {id} ({origin}) demands it"),
            ),
            Miss::Header => (
                "header",
                format!("the headers are not as {id} ({origin}) demands them"),
            ),
            Miss::EncodedSlash => (
                "path",
                format!("{id} ({origin}) does not keep an encoded slash or backslash in paths"),
            ),
            Miss::Websocket => (
                "websocket",
                format!("{id} ({origin}) does not permit WebSockets"),
            ),
            Miss::DnsMessage => (
                "dns-message",
                format!(
                    "names are not resolved over HTTPS; {id} ({origin}) does not name that content type"
                ),
            ),
        };
        Denial {
            code,
            rule: id.clone(),
            origin: origin.clone(),
            reason: format!("{}: {what}", self.destination),
            smallest_grant: (self.set == 0)
                .then(|| grants::request(self.destination, self.request)),
        }
    }
}

/// Both permits hold.
fn together(left: Option<RequestPermit>, right: RequestPermit) -> RequestPermit {
    let Some(mut left) = left else {
        return right;
    };
    let limits = [left.body_bytes_max, right.body_bytes_max];
    left.body_bytes_max = limits.into_iter().flatten().min();
    left.graphql_read_only |= right.graphql_read_only;
    left.git |= right.git;
    left.strip_method_override |= right.strip_method_override;
    left.budgets.extend(right.budgets);
    left
}

fn matches_content(
    content: &Content,
    patterns: &RulePatterns,
    request: &RequestHead<'_>,
) -> Result<(), Miss> {
    let paths = &patterns.paths;
    if !paths.is_empty() && !paths.iter().any(|pattern| pattern.matches(request.path)) {
        return Err(Miss::Path);
    }
    let methods = &content.methods;
    if !methods.is_empty() && !methods.iter().any(|method| method == request.method) {
        return Err(Miss::Method);
    }
    for ((name, _), pattern) in content.query.iter().zip(&patterns.query) {
        let mut values = values(request.query, name).peekable();
        if values.peek().is_none() || !values.all(|value| pattern.matches(value)) {
            return Err(Miss::Query);
        }
    }
    let named = |name: &String| content.query.iter().any(|(wanted, _)| wanted == name);
    if content.query_only && !request.query.iter().all(|(name, _)| named(name)) {
        return Err(Miss::Query);
    }
    for ((name, _), pattern) in content.headers.iter().zip(&patterns.headers) {
        let mut values = values(request.headers, name).peekable();
        if values.peek().is_none() || !values.all(|value| pattern.matches(value)) {
            return Err(Miss::Header);
        }
    }
    Ok(())
}

/// Servers differ on whether such a slash separates (row 36).
fn has_encoded_slash(path: &str) -> bool {
    path.contains("%2F") || path.contains("%5C")
}

fn values<'a>(pairs: &'a [(String, String)], name: &'a str) -> impl Iterator<Item = &'a str> {
    pairs
        .iter()
        .filter(move |(key, _)| key == name)
        .map(|(_, value)| value.as_str())
}

/// DNS over HTTPS (RFC 8484, and its JSON cousin): a resolver behind an allowed
/// name would answer for every name, and carry what is asked to its owner.
fn is_dns_message(request: &RequestHead<'_>) -> bool {
    const SHORTEST_MESSAGE: usize = 16;
    let dns_type = |value: &str| value.to_ascii_lowercase().contains("application/dns-");
    let typed = ["content-type", "accept"]
        .into_iter()
        .any(|name| values(request.headers, name).any(dns_type));
    // At least the twelve bytes of a DNS header, in base64url.
    let encoded = |value: &str| {
        let digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'=');
        value.len() >= SHORTEST_MESSAGE && value.bytes().all(digit)
    };
    typed || values(request.query, "dns").any(encoded)
}

fn names_dns_message(content: &Content) -> bool {
    let typed = |(name, pattern): &(String, String)| {
        matches!(name.as_str(), "content-type" | "accept") && pattern.contains("application/dns-")
    };
    content.headers.iter().any(typed)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum GitShape {
    /// The smart protocol and large files.
    Plain,
    /// The dumb protocol, whose paths mean other things elsewhere.
    Possible,
    No,
}

fn git_shape(request: &RequestHead<'_>) -> GitShape {
    let path = request.path;
    let ends = |names: &[&str]| names.iter().any(|name| path.ends_with(name));
    let service = values(request.query, "service").any(|value| value.starts_with("git-"));
    if ends(&[
        "/git-upload-pack",
        "/git-receive-pack",
        "/git-upload-archive",
    ]) || (ends(&["/info/refs"]) && service)
        || path.contains("/info/lfs/")
    {
        GitShape::Plain
    } else if ends(&["/info/refs", "/HEAD"]) || path.contains("/objects/") {
        GitShape::Possible
    } else {
        GitShape::No
    }
}
