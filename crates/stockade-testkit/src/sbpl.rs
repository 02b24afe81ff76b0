//! Judges questions by a profile of Seatbelt as the kernel of macOS does, on
//! every platform: the part of SBPL, version 1, that Stockade writes.
//!
//! What is not in that part is an error, as an unknown word is one for
//! sandbox-exec(1). Of the rules that match the last wins, and without one the
//! default decides. Paths are looked up as that kernel resolves them
//! ([`kernel_path`]).

mod read;

use std::collections::BTreeMap;

use regex::bytes::Regex;

pub use read::parse;

/// What an operation is done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object<'a> {
    /// A path; links of the system's layout are followed.
    Path(&'a [u8]),
    /// A TCP destination.
    Address { loopback: bool, port: u16 },
    /// A service, or a kernel setting.
    Name(&'a str),
    /// A process, and whether it runs below the same profile.
    Process { same_sandbox: bool },
    /// Nothing that a filter could look at.
    Nothing,
}

/// How the volume compares names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Volume {
    CaseSensitive,
    /// The default of macOS.
    CaseFolding,
}

/// A profile that was understood.
#[derive(Clone, Debug)]
pub struct Profile {
    allow_by_default: bool,
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    allow: bool,
    operations: Vec<String>,
    /// Any of them; none at all means every object.
    filters: Vec<Filter>,
}

#[derive(Clone, Debug)]
enum Filter {
    Literal(Vec<u8>),
    Subpath(Vec<u8>),
    /// All expressions of one filter, as one.
    Regex(Regex),
    /// Host (`localhost`, or any) and port (a number, or any).
    RemoteIp {
        localhost: bool,
        port: Option<u16>,
    },
    Name(String),
    NamePrefix(String),
    SameSandbox,
    All(Vec<Filter>),
    Any(Vec<Filter>),
    Not(Box<Filter>),
}

/// Values of `(param "…")`, as `-D` gives them.
pub type Parameters = BTreeMap<String, String>;

/// The operations that are known here: those of macOS that a profile of ours
/// may name.
pub const OPERATIONS: [&str; 30] = [
    "file-clone",
    "file-ioctl",
    "file-link",
    "file-map-executable",
    "file-read-data",
    "file-read-metadata",
    "file-read-xattr",
    "file-write-acl",
    "file-write-create",
    "file-write-data",
    "file-write-flags",
    "file-write-mode",
    "file-write-mount",
    "file-write-owner",
    "file-write-setugid",
    "file-write-times",
    "file-write-umount",
    "file-write-unlink",
    "file-write-xattr",
    "ipc-posix-sem",
    "ipc-posix-shm-read-data",
    "mach-lookup",
    "network-bind",
    "network-inbound",
    "network-outbound",
    "process-exec",
    "process-fork",
    "process-info-pidinfo",
    "signal",
    "sysctl-read",
];

impl Profile {
    /// Whether an operation on an object is permitted, on a volume of this kind.
    ///
    /// # Panics
    /// When there is no such operation among [`OPERATIONS`].
    pub fn allows(&self, operation: &str, object: Object<'_>, volume: Volume) -> bool {
        self.about(object, volume).allows(operation)
    }

    /// The rules that could speak of an object, for many questions about it.
    pub fn about(&self, object: Object<'_>, volume: Volume) -> About<'_> {
        let place = match object {
            Object::Path(path) => kernel_path(path),
            _ => Vec::new(),
        };
        let object = match object {
            Object::Path(_) => Object::Path(&place),
            other => other,
        };
        let speaks = |rule: &&Rule| {
            let mut filters = rule.filters.iter();
            rule.filters.is_empty() || filters.any(|one| one.takes(object, volume))
        };
        About {
            allow_by_default: self.allow_by_default,
            rules: self.rules.iter().filter(speaks).collect(),
        }
    }
}

/// The rules of a profile that match one object.
pub struct About<'a> {
    allow_by_default: bool,
    rules: Vec<&'a Rule>,
}

impl About<'_> {
    /// As [`Profile::allows`].
    ///
    /// # Panics
    /// When there is no such operation among [`OPERATIONS`].
    pub fn allows(&self, operation: &str) -> bool {
        assert!(
            OPERATIONS.contains(&operation),
            "no operation is called {operation}"
        );
        let names = |rule: &&&Rule| rule.operations.iter().any(|name| covers(name, operation));
        let last = self.rules.iter().rfind(names);
        last.map_or(self.allow_by_default, |rule| rule.allow)
    }
}

/// Whether the name of an operation, or of a group of them, stands for one.
fn covers(name: &str, operation: &str) -> bool {
    match name.strip_suffix('*') {
        Some(group) => operation.starts_with(group),
        None => name == operation,
    }
}

impl Filter {
    fn takes(&self, object: Object<'_>, volume: Volume) -> bool {
        match (self, object) {
            (Self::All(filters), _) => filters.iter().all(|one| one.takes(object, volume)),
            (Self::Any(filters), _) => filters.iter().any(|one| one.takes(object, volume)),
            (Self::Not(filter), _) => !filter.takes(object, volume),
            (Self::Literal(place), Object::Path(path)) => {
                folded(place, volume) == folded(path, volume)
            }
            (Self::Subpath(place), Object::Path(path)) => {
                is_within(&folded(path, volume), &folded(place, volume))
            }
            (Self::Regex(regex), Object::Path(path)) => regex.is_match(path),
            (
                Self::RemoteIp { localhost, port },
                Object::Address {
                    loopback,
                    port: asked,
                },
            ) => (loopback || !localhost) && port.is_none_or(|port| port == asked),
            (Self::Name(name), Object::Name(asked)) => name == asked,
            (Self::NamePrefix(prefix), Object::Name(asked)) => asked.starts_with(prefix),
            (Self::SameSandbox, Object::Process { same_sandbox }) => same_sandbox,
            _ => false,
        }
    }
}

fn folded(path: &[u8], volume: Volume) -> Vec<u8> {
    match volume {
        Volume::CaseSensitive => path.to_vec(),
        Volume::CaseFolding => String::from_utf8_lossy(path).to_lowercase().into_bytes(),
    }
}

fn is_within(path: &[u8], place: &[u8]) -> bool {
    let rest = path.strip_prefix(place);
    place == b"/" || rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// The path under which the kernel asks: links of the root directory followed,
/// and the data volume under its short name.
pub fn kernel_path(path: &[u8]) -> Vec<u8> {
    const DATA: &[u8] = b"/System/Volumes/Data";
    let path = match path.strip_prefix(DATA) {
        Some([]) => b"/",
        Some(rest) if rest[0] == b'/' => rest,
        _ => path,
    };
    let linked = [&b"/etc"[..], b"/tmp", b"/var"].iter().any(|link| {
        let head = path.get(..link.len());
        let ends = path.get(link.len()).is_none_or(|&byte| byte == b'/');
        ends && head.is_some_and(|head| head.eq_ignore_ascii_case(link))
    });
    match linked {
        true => [b"/private", path].concat(),
        false => path.to_vec(),
    }
}

#[cfg(test)]
mod tests;
