//! Rules for the requests of one destination that a learning run saw.

use std::collections::{BTreeMap, BTreeSet};

use super::{literal, quoted, rule};
use crate::network::destination::Destination;

/// Paths of one rule; where there were more, their last parts become patterns.
const PATHS_MAX: usize = 16;
/// What stands at the end of a path that the log cut off.
const CUT: char = '…';
/// Requests of git over HTTP, and what each comes to. A push asks for references
/// first with the path that a clone asks with, and only its second request tells.
const GIT_READ: &str = "/git-upload-pack";
const GIT_PUSH: &str = "/git-receive-pack";
const GIT_REFERENCES: &str = "/info/refs";

/// What was asked of one destination.
#[derive(Clone, Copy, Debug)]
pub struct Requests<'a> {
    /// Method and path of each, as the log has them.
    pub seen: &'a BTreeSet<String>,
    /// There were others.
    pub more: bool,
    /// A line with the private addresses at which the destination was found.
    pub allow_private: Option<&'a str>,
}

/// Rules that permit these requests, with methods and paths as they were.
pub fn rules(destination: &Destination, requests: &Requests<'_>) -> String {
    let mut paths: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (method, path) in requests.seen.iter().filter_map(|one| one.split_once(' ')) {
        paths.entry(path).or_default().insert(method);
    }
    let mut text = git(destination, &mut paths);
    let mut groups: BTreeMap<BTreeSet<&str>, BTreeSet<String>> = BTreeMap::new();
    for (path, methods) in paths {
        groups.entry(methods).or_default().insert(pattern(path));
    }
    for (methods, paths) in groups {
        let paths = match requests.more {
            true => BTreeSet::from(["/**".to_owned()]),
            false => few(paths),
        };
        text.push_str(&rule(destination));
        text.push_str(&format!("methods = {}\n", list(methods)));
        text.push_str(&format!("paths = {}\n", list(paths)));
        if let Some(line) = requests.allow_private {
            text.push_str(&format!("{line}\n"));
        }
    }
    text
}

/// Takes the requests of git away, and makes rules of them.
fn git(destination: &Destination, paths: &mut BTreeMap<&str, BTreeSet<&str>>) -> String {
    let of = |end: &str| -> BTreeSet<String> {
        let ends = paths.keys().filter_map(|path| path.strip_suffix(end));
        ends.filter_map(|path| path.strip_prefix('/'))
            .map(str::to_owned)
            .collect()
    };
    let (read, push) = (of(GIT_READ), of(GIT_PUSH));
    if destination.port() != 443 || read.is_empty() && push.is_empty() {
        return String::new();
    }
    let is_git = |path: &str| {
        let ends = [GIT_READ, GIT_PUSH, GIT_REFERENCES];
        let mut repositories = ends.iter().filter_map(|end| path.strip_suffix(end));
        repositories.any(|path| {
            path.strip_prefix('/')
                .is_some_and(|path| read.contains(path) || push.contains(path))
        })
    };
    paths.retain(|path, _| !is_git(path));
    let mut text = format!("[[network.git]]\nhost = \"{}\"\n", destination.host());
    for (key, repositories) in [("read", read), ("push", push)] {
        // They are compared without the ending.
        let named = |one: &String| pattern(one.strip_suffix(".git").unwrap_or(one));
        if !repositories.is_empty() {
            let named: BTreeSet<String> = repositories.iter().map(named).collect();
            text.push_str(&format!("{key} = {}\n", list(named)));
        }
    }
    text
}

/// What permits this path, or all that it may have begun.
fn pattern(path: &str) -> String {
    let literal = literal(path);
    match literal.strip_suffix(CUT) {
        Some(cut) => format!("{}/**", cut.rsplit_once('/').map_or("", |(above, _)| above)),
        None => literal,
    }
}

/// At most [`PATHS_MAX`]: directories in place of what is below them, as deep as
/// it goes.
fn few(paths: BTreeSet<String>) -> BTreeSet<String> {
    let deepest = paths.iter().map(|path| path.matches('/').count()).max();
    let mut fewer = paths.clone();
    for depth in (0..deepest.unwrap_or(0)).rev() {
        if fewer.len() <= PATHS_MAX {
            break;
        }
        let above = |path: &String| {
            let parts: Vec<&str> = path.split('/').collect();
            match parts.len() - 1 > depth {
                true => format!("{}/**", parts[..=depth].join("/")),
                false => path.clone(),
            }
        };
        fewer = paths.iter().map(above).collect();
    }
    fewer
}

fn list(words: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let words = words.into_iter().map(|word| quoted(word.as_ref()));
    format!("[{}]", words.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document;
    use crate::network::destination::RawHost;
    use crate::problem::{Layer, LayerKind};

    fn learned(host: &str, port: u16, seen: &[&str]) -> String {
        let seen = seen.iter().map(|one| (*one).to_owned()).collect();
        let requests = Requests {
            seen: &seen,
            more: false,
            allow_private: None,
        };
        let destination = Destination::new(RawHost::Text(host.as_bytes()), port).unwrap();
        let text = rules(&destination, &requests);
        let layer = Layer::new(LayerKind::User, "x");
        let whole = format!("version = 1\n{text}");
        let parsed = document::parse(whole.as_bytes(), &layer);
        assert!(parsed.is_ok(), "{text}{parsed:?}");
        text
    }

    #[test]
    fn methods_that_were_used_on_the_same_paths_share_a_rule() {
        let text = learned(
            "api.test",
            443,
            &["GET /v1/a", "GET /v1/b", "POST /v1/b", "GET /v1/c"],
        );
        assert_eq!(
            text,
            "[[network.rule]]\nhost = \"api.test\"\nmethods = [\"GET\"]\n\
             paths = [\"/v1/a\", \"/v1/c\"]\n\
             [[network.rule]]\nhost = \"api.test\"\nmethods = [\"GET\", \"POST\"]\n\
             paths = [\"/v1/b\"]\n"
        );
    }

    #[test]
    fn many_paths_become_the_directories_that_they_are_in() {
        let many: Vec<String> = (0..40).map(|n| format!("GET /p/{}/{n}", n % 3)).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let text = learned("api.test", 8443, &many);
        assert!(
            text.contains("paths = [\"/p/0/**\", \"/p/1/**\", \"/p/2/**\"]"),
            "{text}"
        );
        assert!(text.contains("ports = [8443]"), "{text}");
        let flat: Vec<String> = (0..40).map(|n| format!("GET /{n}")).collect();
        let flat: Vec<&str> = flat.iter().map(String::as_str).collect();
        assert!(learned("api.test", 443, &flat).contains("paths = [\"/**\"]"));
    }

    #[test]
    fn git_has_rules_of_its_own() {
        let text = learned(
            "git.test",
            443,
            &[
                "GET /a/b.git/info/refs",
                "POST /a/b.git/git-upload-pack",
                "GET /c/info/refs",
                "POST /c/git-receive-pack",
                "GET /page",
            ],
        );
        assert_eq!(
            text,
            "[[network.git]]\nhost = \"git.test\"\nread = [\"a/b\"]\npush = [\"c\"]\n\
             [[network.rule]]\nhost = \"git.test\"\nmethods = [\"GET\"]\npaths = [\"/page\"]\n"
        );
    }

    #[test]
    fn what_was_cut_off_or_is_a_pattern_permits_itself() {
        let text = learned("api.test", 443, &["GET /a/b…", "GET /x**y\"z"]);
        assert!(text.contains("\"/a/**\""), "{text}");
        assert!(text.contains("/x*y"), "{text}");
    }
}
