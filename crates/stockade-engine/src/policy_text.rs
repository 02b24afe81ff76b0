//! Lines of a policy, written for a person: what to add after denials, what a
//! learning run needed, and a rule that a person asked to keep.
//!
//! Only text is made here, from destinations in canonical form, which hold no
//! character that TOML would take for more than itself. What the keys mean is
//! left to the policy crate; what is written to a file is parsed by it first.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use stockade_policy::document;
use stockade_policy::network::destination::{Destination, RawHost};
use stockade_policy::network::judge::{Requests, rules_for_requests};
use stockade_policy::path::AbsolutePath;
use stockade_policy::problem::{Layer, LayerKind};

use crate::discover::{self, DiscoverError, POLICY_FILE_NAME};
use crate::state::{LockKind, Places, StateDirectory, StateError};
use crate::way_out::tally::Learned;

/// How long a rule lives that a person asked to keep, unless they say.
pub const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// And at most.
pub const KEPT_FOR_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Why a rule could not be added to the user's policy file.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(
        "the rule does not fit into {path}: {reason}\n  remedy: add these lines yourself:\n{lines}"
    )]
    DoesNotFit {
        path: String,
        reason: String,
        lines: String,
    },
    #[error("cannot write {path}: {source}")]
    System { path: String, source: io::Error },
}

/// What the policy of a learning run names. Requests in the open are seen in
/// each run, and say nothing of those that are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    Hosts,
    Requests,
}

/// A destination from its text form `HOST:PORT`.
pub fn destination(text: &str) -> Option<Destination> {
    let (host, port) = text.rsplit_once(':')?;
    Destination::new(RawHost::Text(host.as_bytes()), port.parse().ok()?).ok()
}

/// The rule that permits exactly this destination until `expires`.
pub fn kept_rule(destination: &Destination, now: SystemTime, expires: SystemTime) -> String {
    let mut text = rule(destination);
    let day = |time| humantime::format_rfc3339_seconds(time).to_string();
    // Writing to a string cannot fail.
    let _never = writeln!(text, "expires = \"{}\"", day(expires)).is_err();
    let _never = writeln!(text, "reason = \"approved on {}\"", day(now)).is_err();
    text
}

/// The smallest policy that permits what was learned: exact hosts, and by
/// [`Detail::Requests`] exact methods and paths where requests were seen.
pub fn learned_policy(learned: &[Learned], detail: Detail) -> String {
    merged(learned.iter().flat_map(|learned| {
        match (&learned.grant, destination(&learned.destination)) {
            (_, Some(destination))
                if detail == Detail::Requests && !learned.requests.is_empty() =>
            {
                Some(rules_for_requests(&destination, &requests_of(learned)))
            }
            (Some(grant), _) => Some(grant.clone()),
            (None, Some(destination)) => Some(allowed(&destination)),
            (None, None) => None,
        }
    }))
}

fn requests_of(learned: &Learned) -> Requests<'_> {
    let grant = learned.grant.as_deref().unwrap_or_default();
    Requests {
        seen: &learned.requests,
        more: learned.more,
        allow_private: grant.lines().find(|line| line.starts_with("allow_private")),
    }
}

/// Many small grants as one text: hosts of `network.allow` in one list, other
/// blocks one after the other, each once.
pub fn merged(grants: impl IntoIterator<Item = String>) -> String {
    let mut allow = BTreeSet::new();
    let mut blocks: Vec<String> = Vec::new();
    for grant in grants {
        for block in blocks_of(&grant) {
            match hosts_of(&block) {
                Some(hosts) => allow.extend(hosts),
                None if blocks.contains(&block) => {}
                None => blocks.push(block),
            }
        }
    }
    let mut text = String::new();
    if !allow.is_empty() {
        text.push_str("[network]\nallow = [\n");
        for host in allow {
            let _never = writeln!(text, "    {host},").is_err();
        }
        text.push_str("]\n");
    }
    for block in blocks {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&block);
    }
    text
}

/// Adds lines at the end of the user's policy file, which keeps its comments
/// and its mode. The result is parsed before it replaces the file in one step.
pub fn keep(
    places: &Places,
    state: &StateDirectory,
    lines: &str,
) -> Result<AbsolutePath, KeepError> {
    let _lock = state.lock("policy.lock", LockKind::Exclusive)?;
    let (path, mut content, mode) = match discover::user_file(places)? {
        Some(source) => {
            let mode = fs::metadata(source.resolved.as_path())
                .map_or(0o600, |status| status.permissions().mode() & 0o777);
            (source.resolved, source.content, mode)
        }
        None => (fresh_file(places)?, Vec::new(), 0o600),
    };
    if !content.is_empty() {
        let end = if content.ends_with(b"\n") {
            "\n"
        } else {
            "\n\n"
        };
        content.extend_from_slice(end.as_bytes());
    }
    content.extend_from_slice(lines.as_bytes());
    let layer = Layer::new(LayerKind::User, POLICY_FILE_NAME);
    if let Err(problems) = document::parse(&content, &layer) {
        return Err(KeepError::DoesNotFit {
            path: path.to_string(),
            reason: problems
                .first()
                .map_or_else(String::new, |problem| problem.message.clone()),
            lines: lines.to_owned(),
        });
    }
    replace(path.as_path(), &content, mode).map_err(|source| KeepError::System {
        path: path.to_string(),
        source,
    })?;
    Ok(path)
}

/// Where the user's policy file will be, with its directory made.
fn fresh_file(places: &Places) -> Result<AbsolutePath, KeepError> {
    let failed = |source| KeepError::System {
        path: places.configuration.to_string(),
        source,
    };
    fs::create_dir_all(places.configuration.as_path()).map_err(failed)?;
    places
        .configuration
        .join(POLICY_FILE_NAME)
        .map_err(|error| failed(io::Error::other(error)))
}

/// Writes beside the file and renames: who reads sees the old text or the new.
fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut name = path.as_os_str().as_bytes().to_vec();
    let _never = write!(name, ".{}.new", std::process::id()).is_err();
    let fresh = PathBuf::from(std::ffi::OsStr::from_bytes(&name));
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&fresh)
        .and_then(|mut file| {
            file.write_all(content)?;
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        let _gone = fs::remove_file(&fresh).is_err();
    }
    written
}

/// One entry of `network.allow`, or a rule where an address is meant.
fn allowed(destination: &Destination) -> String {
    match destination.name() {
        Some(name) => format!("[network]\nallow = [\"{name}:{}\"]\n", destination.port()),
        None => rule(destination),
    }
}

fn rule(destination: &Destination) -> String {
    let target = match destination.host() {
        stockade_policy::network::destination::Host::Name(name) => format!("host = \"{name}\""),
        stockade_policy::network::destination::Host::Address(address) => {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            format!("cidr = \"{}/{bits}\"", plain(*address))
        }
    };
    format!(
        "[[network.rule]]\n{target}\nports = [{}]\n",
        destination.port()
    )
}

fn plain(address: IpAddr) -> String {
    address.to_string()
}

/// The tables of a text, each with its header.
fn blocks_of(text: &str) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        match blocks.last_mut() {
            Some(block) if !line.starts_with('[') => {
                block.push_str(line);
                block.push('\n');
            }
            _ => blocks.push(format!("{line}\n")),
        }
    }
    blocks
}

/// The quoted hosts of a block that says nothing but `network.allow`.
fn hosts_of(block: &str) -> Option<Vec<String>> {
    let body = block.strip_prefix("[network]\n").unwrap_or(block).trim();
    let dotted = body.strip_prefix("network.").unwrap_or(body);
    let list = dotted
        .strip_prefix("allow")?
        .trim_start()
        .strip_prefix('=')?;
    let list = list.trim().strip_prefix('[')?.strip_suffix(']')?;
    let hosts: Vec<String> = list
        .split(',')
        .map(|host| host.trim().to_owned())
        .filter(|host| !host.is_empty())
        .collect();
    let are_quoted = hosts
        .iter()
        .all(|host| host.len() > 2 && host.starts_with('"') && host.ends_with('"'));
    are_quoted.then_some(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(destination: &str, grant: Option<&str>) -> Learned {
        Learned {
            destination: destination.into(),
            grant: grant.map(str::to_owned),
            ..Learned::default()
        }
    }

    #[test]
    fn what_was_learned_becomes_one_list_of_exact_hosts() {
        let policy = learned_policy(
            &[
                learned("b.test:443", None),
                learned("a.test:22", None),
                learned("b.test:443", None),
                learned("192.0.2.1:443", None),
                learned("c.test:80", Some("[network]\nallow = [\"c.test:80\"]\n")),
                learned("not a destination", None),
            ],
            Detail::Hosts,
        );
        assert_eq!(
            policy,
            "[network]\nallow = [\n    \"a.test:22\",\n    \"b.test:443\",\n    \"c.test:80\",\n]\n\n\
             [[network.rule]]\ncidr = \"192.0.2.1/32\"\nports = [443]\n"
        );
    }

    #[test]
    fn other_blocks_are_kept_once() {
        let private = "[[network.rule]]\nhost = \"a.test\"\nallow_private = [\"10.0.0.1/32\"]\n";
        let merged = merged([
            private.to_owned(),
            "network.allow = [\"b.test\"]".to_owned(),
            private.to_owned(),
        ]);
        assert_eq!(
            merged,
            format!("[network]\nallow = [\n    \"b.test\",\n]\n\n{private}")
        );
    }

    #[test]
    fn a_kept_rule_says_until_when() {
        let now = SystemTime::UNIX_EPOCH;
        let rule = kept_rule(&destination("a.test:443").unwrap(), now, now + KEPT_FOR);
        assert_eq!(
            rule,
            "[[network.rule]]\nhost = \"a.test\"\nports = [443]\n\
             expires = \"1970-01-31T00:00:00Z\"\nreason = \"approved on 1970-01-01T00:00:00Z\"\n"
        );
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy.toml");
        fs::write(&path, "# mine\n").unwrap();
        replace(&path, b"# mine\nmore\n", 0o640).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"# mine\nmore\n");
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o640);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
