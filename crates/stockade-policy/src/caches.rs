//! Caches of package managers and compilers that are kept between the runs of
//! one workspace.
//!
//! The trust domain is the workspace: a run can already write that tree, so it
//! gains nothing over a later run there by altering a cache of its own. Other
//! workspaces and the host never see it.

use crate::path::AbsolutePath;

/// Where caches stand inside, below the home.
pub const PLACE: &str = ".cache/stockade";
/// Id of the rule that grants them.
pub const RULE: &str = "built-in.caches";

/// The caches that a policy can name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cache {
    Cargo,
    Npm,
    Pip,
    Go,
    Ccache,
    Own(OwnCache),
}

/// A cache of a program that nothing is known of but the variable by which it
/// is led to it: `uv=UV_CACHE_DIR`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnCache {
    name: String,
    variable: String,
}

/// How one program is led to its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead<'a> {
    /// The variable names the directory.
    Variable(&'a str),
    /// A link at this path below the home (below the value of CARGO_HOME for
    /// what begins with `.cargo`) leads there.
    Link(&'a str),
}

/// One directory of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directory<'a> {
    /// Below the place of all caches.
    pub path: &'a str,
    pub lead: Lead<'a>,
    /// Where the program keeps it without that, below the home, if it is
    /// known. Where the policy grants that place, the program is left to it.
    pub usual: Option<&'a str>,
}

/// Variables that name something else than a directory for what can be lost.
const NO_CACHE: [&str; 9] = [
    "HOME",
    "PATH",
    "PWD",
    "SHELL",
    "STOCKADE",
    "TMPDIR",
    "TMPPREFIX",
    "USER",
    "IFS",
];
/// Longest name of a cache, and of a variable.
const NAME_BYTES_MAX: usize = 32;
const VARIABLE_BYTES_MAX: usize = 64;

impl Cache {
    /// The caches that something is known of.
    pub const KNOWN: &'static [Self] = &[Self::Cargo, Self::Npm, Self::Pip, Self::Go, Self::Ccache];

    pub fn name(&self) -> &str {
        match self {
            Self::Cargo => "cargo",
            Self::Npm => "npm",
            Self::Pip => "pip",
            Self::Go => "go",
            Self::Ccache => "ccache",
            Self::Own(own) => &own.name,
        }
    }

    /// A known one by its name, or `NAME=VARIABLE`.
    pub fn parse(text: &str) -> Option<Self> {
        let known = |text: &str| Self::KNOWN.iter().find(|cache| cache.name() == text);
        let Some((name, variable)) = text.split_once('=') else {
            return known(text).cloned();
        };
        let plain = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        let is_variable = variable.len() <= VARIABLE_BYTES_MAX
            && variable.bytes().all(plain)
            && variable
                .bytes()
                .next()
                .is_some_and(|first| !first.is_ascii_digit());
        let leads_elsewhere = NO_CACHE.contains(&variable) || variable.starts_with("LD_");
        let fits = is_name(name) && known(name).is_none() && is_variable && !leads_elsewhere;
        fits.then(|| {
            Self::Own(OwnCache {
                name: name.to_owned(),
                variable: variable.to_owned(),
            })
        })
    }

    /// Its directories. Sources: The Cargo Book, "Cargo Home"; config(7) of
    /// npm; pip(1); `go help environment`; ccache(1).
    pub fn directories(&self) -> Vec<Directory<'_>> {
        use Lead::{Link, Variable};
        let one = |path, lead, usual| Directory {
            path,
            lead,
            usual: Some(usual),
        };
        match self {
            // Not all of CARGO_HOME: programs, settings and tokens are there.
            Self::Cargo => vec![
                one("cargo/registry", Link(".cargo/registry"), ".cargo/registry"),
                one("cargo/git", Link(".cargo/git"), ".cargo/git"),
            ],
            Self::Npm => vec![one("npm", Variable("npm_config_cache"), ".npm")],
            Self::Pip => vec![one("pip", Variable("PIP_CACHE_DIR"), ".cache/pip")],
            Self::Go => vec![
                one("go/mod", Variable("GOMODCACHE"), "go/pkg/mod"),
                one("go/build", Variable("GOCACHE"), ".cache/go-build"),
            ],
            Self::Ccache => vec![one("ccache", Variable("CCACHE_DIR"), ".cache/ccache")],
            Self::Own(own) => vec![Directory {
                path: &own.name,
                lead: Variable(&own.variable),
                usual: None,
            }],
        }
    }
}

/// Whether a cache may be called like this: 1 to 32 lower-case letters, digits
/// and inner hyphens.
pub fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().all(plain)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// The caches of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caches {
    /// Where they are on the host; holds nothing else.
    pub source: AbsolutePath,
    /// Where they are inside.
    pub path: AbsolutePath,
    /// Which, with the rule that lists each.
    pub list: Vec<(Cache, crate::plan::Rule)>,
    /// Bytes that they may hold together once a run has ended.
    pub bytes_max: u64,
}

impl Caches {
    /// Their names, as one text.
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.list.iter().map(|(cache, _)| cache.name()).collect();
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_directory_lies_in_the_cache_of_its_name() {
        let own = Cache::parse("uv=UV_CACHE_DIR").unwrap();
        for cache in Cache::KNOWN.iter().chain([&own]) {
            for directory in cache.directories() {
                let first = directory.path.split('/').next();
                assert_eq!(first, Some(cache.name()), "{}", directory.path);
            }
        }
        let known = Cache::KNOWN.iter();
        assert!(
            known
                .clone()
                .all(|cache| Cache::parse(cache.name()).as_ref() == Some(cache))
        );
    }

    #[test]
    fn a_cache_of_ones_own_has_a_plain_name_and_a_variable_for_it() {
        let lead = Cache::parse("gradle-8=GRADLE_USER_HOME").unwrap();
        assert_eq!(
            lead.directories()[0].lead,
            Lead::Variable("GRADLE_USER_HOME")
        );
        for text in [
            "",
            "uv",
            "=X",
            "uv=",
            "Uv=X",
            "../x=X",
            "a/b=X",
            "npm=X",
            "-a=X",
            "uv=path",
            "uv=1X",
            "uv=PATH",
            "uv=HOME",
            "uv=LD_PRELOAD",
            "uv=X=Y",
            "uv=X Y",
        ] {
            assert_eq!(Cache::parse(text), None, "{text}");
        }
    }
}
