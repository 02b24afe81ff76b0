//! The complete environment inside: the listed names of the caller's, what
//! the policy sets, and what the view needs. Nothing else enters.

use std::collections::BTreeMap;

use crate::facts::Facts;
use crate::plan::{Form, Rule};
use crate::policy::Policy;

use super::network::Opened;
use super::view::View;

/// Where programs are found when the caller has no PATH (the default of
/// Debian's login.defs).
const PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where rules come from that nobody wrote.
const BUILT_IN: &str = "built-in";

/// Tells programs that they run inside, so that they need not find out by
/// failing.
const MARKER: (&[u8], &[u8]) = (b"STOCKADE", b"1");

pub(super) fn inside(
    policy: &Policy,
    facts: &Facts,
    view: &View,
    network: Option<&Opened>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    // Where the proxy listens is known only when it does, outside of namespaces.
    let own = match policy.form {
        Form::Seatbelt => Vec::new(),
        _ => network
            .map(|opened| opened.variables(policy.wall.0))
            .unwrap_or_default(),
    };
    let mut inside: BTreeMap<&[u8], &[u8]> = facts
        .environment
        .iter()
        .filter(|(name, _)| passes(policy, name))
        .map(|(name, value)| (&name[..], &value[..]))
        .collect();
    if let Some(image) = &facts.image {
        // What names a place of the host leads nowhere; unless a person listed
        // it, and then there is a reason.
        inside.retain(|name, value| {
            let listed = |(pattern, rule): &(String, Rule)| {
                rule.origin != BUILT_IN && matches_name(pattern, name)
            };
            let kept = policy.environment_pass.iter().any(listed);
            *name != b"PATH" && (kept || !value.starts_with(b"/"))
        });
        let own = image.environment.iter();
        inside.extend(own.map(|(name, value)| (&name[..], &value[..])));
    }
    inside.entry(b"PATH").or_insert(PATH);
    inside.insert(b"HOME", view.home.as_bytes());
    if !facts.user_name.is_empty() {
        inside.insert(b"USER", facts.user_name.as_bytes());
        inside.insert(b"LOGNAME", facts.user_name.as_bytes());
    }
    inside.remove(&b"TMPDIR"[..]);
    inside.remove(&b"TMPPREFIX"[..]);
    inside.remove(&b"XDG_RUNTIME_DIR"[..]);
    if policy.form == Form::Namespaces {
        // Outside they may name places that do not exist inside.
        inside.insert(b"TMPDIR", b"/tmp");
        inside.insert(b"TMPPREFIX", b"/tmp/zsh");
    }
    if let Some(directory) = &view.runtime_directory {
        inside.insert(b"XDG_RUNTIME_DIR", directory.as_bytes());
    }
    for (name, path) in &view.cache_variables {
        inside.insert(name.as_bytes(), path.as_bytes());
    }
    // Settings in variables come last of all (git-config(1), GIT_CONFIG_COUNT).
    if let Some(file) = &view.git_excludes
        && !inside.contains_key(&b"GIT_CONFIG_COUNT"[..])
    {
        inside.insert(b"GIT_CONFIG_COUNT", b"1");
        inside.insert(b"GIT_CONFIG_KEY_0", b"core.excludesFile");
        inside.insert(b"GIT_CONFIG_VALUE_0", file.as_bytes());
    }
    for name in network.map(Opened::secret_variables).unwrap_or_default() {
        inside.remove(name.as_bytes());
    }
    for (name, value) in &own {
        inside.insert(name.as_bytes(), value);
    }
    for (name, value, _) in &policy.environment_set {
        inside.insert(name.as_bytes(), value.as_bytes());
    }
    inside.insert(MARKER.0, MARKER.1);
    inside
        .into_iter()
        .map(|(name, value)| (name.to_vec(), value.to_vec()))
        .collect()
}

/// The caller's value of a variable, if the policy lets it in.
pub(super) fn passed<'a>(policy: &Policy, facts: &'a Facts, name: &[u8]) -> Option<&'a [u8]> {
    let value = facts.environment.get(name)?;
    passes(policy, name).then_some(&value[..])
}

fn passes(policy: &Policy, name: &[u8]) -> bool {
    let mut listed = policy.environment_pass.iter();
    listed.any(|(pattern, _)| matches_name(pattern, name))
}

fn matches_name(pattern: &str, name: &[u8]) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix.as_bytes()),
        None => name == pattern.as_bytes(),
    }
}
