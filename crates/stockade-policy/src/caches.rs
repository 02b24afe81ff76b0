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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cache {
    Cargo,
    Npm,
    Pip,
    Go,
    Ccache,
}

/// How one program is led to its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    /// The variable names the directory.
    Variable(&'static str),
    /// A link at this path below the home (below the value of CARGO_HOME for
    /// what begins with `.cargo`) leads there.
    Link(&'static str),
}

/// One directory of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Below the place of all caches.
    pub path: &'static str,
    pub lead: Lead,
    /// Where the program keeps it without that, below the home. Where the
    /// policy grants that place, the program is left to it.
    pub usual: &'static str,
}

impl Cache {
    pub const ALL: &'static [Self] = &[Self::Cargo, Self::Npm, Self::Pip, Self::Go, Self::Ccache];

    pub fn name(self) -> &'static str {
        match self {
            Self::Cargo => "cargo",
            Self::Npm => "npm",
            Self::Pip => "pip",
            Self::Go => "go",
            Self::Ccache => "ccache",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|cache| cache.name() == name)
    }

    /// Its directories. Sources: The Cargo Book, "Cargo Home"; config(7) of
    /// npm; pip(1); `go help environment`; ccache(1).
    pub fn directories(self) -> &'static [Directory] {
        const fn one(path: &'static str, lead: Lead, usual: &'static str) -> Directory {
            Directory { path, lead, usual }
        }
        use Lead::{Link, Variable};
        match self {
            // Not all of CARGO_HOME: programs, settings and tokens are there.
            Self::Cargo => {
                const {
                    &[
                        one("cargo/registry", Link(".cargo/registry"), ".cargo/registry"),
                        one("cargo/git", Link(".cargo/git"), ".cargo/git"),
                    ]
                }
            }
            Self::Npm => const { &[one("npm", Variable("npm_config_cache"), ".npm")] },
            Self::Pip => const { &[one("pip", Variable("PIP_CACHE_DIR"), ".cache/pip")] },
            Self::Go => {
                const {
                    &[
                        one("go/mod", Variable("GOMODCACHE"), "go/pkg/mod"),
                        one("go/build", Variable("GOCACHE"), ".cache/go-build"),
                    ]
                }
            }
            Self::Ccache => const { &[one("ccache", Variable("CCACHE_DIR"), ".cache/ccache")] },
        }
    }
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
        for cache in Cache::ALL {
            assert_eq!(Cache::from_name(cache.name()), Some(*cache));
            for directory in cache.directories() {
                let first = directory.path.split('/').next();
                assert_eq!(first, Some(cache.name()), "{}", directory.path);
            }
        }
    }
}
