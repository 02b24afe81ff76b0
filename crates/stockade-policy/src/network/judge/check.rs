//! Refuses plans that no document makes, before they are compiled: rules also
//! come from approvals, and the egress process trusts none of them blindly.

use super::RulePatterns;
use crate::network::address::is_translation_length;
use crate::network::destination::{Destination, Host, RawHost};
use crate::network::pattern::Pattern;
use crate::network::rules::{NetworkPlan, NetworkRule, Target};
use crate::network::suffix;
use crate::value::HostReach;

/// Rules, bindings and deny rules together.
const RULES_MAX: usize = 20_000;

pub(super) fn plan(plan: &NetworkPlan) -> Result<(), String> {
    let granted: usize = plan.sets.iter().map(|set| set.rules.len()).sum();
    if granted + plan.deny.len() + plan.credentials.len() > RULES_MAX {
        return Err(format!("there are more than {RULES_MAX} rules"));
    }
    for rule in plan.sets.iter().flat_map(|set| &set.rules) {
        self::rule(rule).map_err(|why| format!("{}: {why}", rule.rule.id))?;
    }
    for rule in &plan.deny {
        let checked = name(&rule.target).and_then(|()| ports(&rule.ports));
        checked.map_err(|why| format!("{}: {why}", rule.rule.id))?;
    }
    for binding in &plan.credentials {
        let checked = target(&binding.host).and_then(|()| ports(&binding.ports));
        checked.map_err(|why| format!("{}: {why}", binding.rule.id))?;
    }
    for network in &plan.nat64 {
        if network.address().is_ipv4() || !is_translation_length(network.bits()) {
            return Err(format!("{network} is no translation prefix (RFC 6052)"));
        }
    }
    Ok(())
}

fn rule(rule: &NetworkRule) -> Result<(), String> {
    target(&rule.target)?;
    ports(&rule.ports)?;
    if rule.content.is_some() && rule.git.is_some() {
        return Err("a rule on git has no rule on requests".to_owned());
    }
    if let Some(content) = &rule.content {
        let upper = |method: &String| {
            !method.is_empty() && !method.bytes().any(|byte| byte.is_ascii_lowercase())
        };
        if !content.methods.iter().all(upper) {
            return Err("methods are written in capitals".to_owned());
        }
        let lower = |(name, _): &(String, String)| !name.bytes().any(|b| b.is_ascii_uppercase());
        if !content.headers.iter().all(lower) {
            return Err("names of headers are written in lower case".to_owned());
        }
    }
    Ok(())
}

fn target(target: &Target) -> Result<(), String> {
    name(target)?;
    match target {
        Target::Host { reach, name } if *reach != HostReach::Exact && suffix::is_shared(name) => {
            Err(format!(
                "{target} would hold names that anybody can register"
            ))
        }
        _ => Ok(()),
    }
}

/// The name is in the form in which destinations are compared.
fn name(target: &Target) -> Result<(), String> {
    let Target::Host { name, .. } = target else {
        return Ok(());
    };
    let canonical = Destination::new(RawHost::Text(name.as_bytes()), 1)
        .map_err(|error| format!("{target}: {error}"))?;
    match canonical.host() {
        Host::Name(parsed) if parsed.as_str() == name => Ok(()),
        _ => Err(format!("{target} is not in canonical form")),
    }
}

fn ports(ports: &[(u16, u16)]) -> Result<(), String> {
    match ports.iter().all(|(low, high)| *low > 0 && low <= high) {
        true => Ok(()),
        false => Err("a range of ports is empty or holds 0".to_owned()),
    }
}

impl RulePatterns {
    pub(super) fn new(rule: &NetworkRule) -> Result<Self, String> {
        let list = |texts: &[String]| {
            let patterns = texts.iter().map(|text| Pattern::new(text));
            patterns.collect::<Result<Vec<_>, _>>()
        };
        let values = |pairs: &[(String, String)]| {
            let patterns = pairs.iter().map(|(_, text)| Pattern::new(text));
            patterns.collect::<Result<Vec<_>, _>>()
        };
        let compile = || -> Result<Self, String> {
            let mut patterns = Self::default();
            if let Some(content) = &rule.content {
                patterns.paths = list(&content.paths)?;
                patterns.query = values(&content.query)?;
                patterns.headers = values(&content.headers)?;
            }
            if let Some(git) = &rule.git {
                patterns.read = list(&git.read)?;
                patterns.push = list(&git.push)?;
                patterns.refs = list(&git.refs)?;
            }
            Ok(patterns)
        };
        compile().map_err(|why| format!("{}: {why}", rule.rule.id))
    }
}
