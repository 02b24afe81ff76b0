//! The grammars of single values of the network half: hosts, networks, ports,
//! patterns, credentials' places.

use std::net::IpAddr;

use super::{Parsed, duration_ms, host_name, port_number, quoted};
use crate::network::address::{Network, is_translation_length};
use crate::network::pattern::PATTERN_BYTES_MAX;
use crate::network::rules::{GraphQl, Target, TlsMode};
use crate::network::suffix;
use crate::problem::{Fault, closest};
use crate::value::{HostPattern, HostReach};

/// Longest time for which a request is held while somebody is asked.
pub(crate) const APPROVAL_WAIT_MS_MAX: u64 = 60_000;

/// `network.deny`: a host pattern or a network, with an optional port for the
/// former.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenyPattern {
    pub target: Target,
    pub port: Option<u16>,
}

/// `network.publish`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    pub host_port: u16,
    pub port: u16,
}

/// `network.proxy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamAddress {
    pub host: String,
    pub port: u16,
}

const IP_ADDRESS: &str = "an IP address is allowed by a rule of its own";

/// `network.allow`: `host`, `*.host` or `**.host`, each with an optional port.
pub(crate) fn host(text: &str) -> Parsed<HostPattern> {
    let pattern = pattern(text)?;
    if pattern.reach != HostReach::Exact && suffix::is_shared(&pattern.host) {
        return Err(Fault::new(
            "shared-suffix",
            format!(
                "{}: anybody can register a name below {}",
                quoted(text),
                pattern.host
            ),
        )
        .help("name the hosts, or a domain that belongs to one owner"));
    }
    Ok(pattern)
}

/// `host` of a rule: without a port.
pub(crate) fn host_alone(text: &str) -> Parsed<HostPattern> {
    let pattern = host(text)?;
    match pattern.port {
        None => Ok(pattern),
        Some(port) => Err(Fault::new(
            "bad-host",
            format!("{}: the port stands in a key of its own", quoted(text)),
        )
        .help(format!("write `ports = [{port}]` beside it"))),
    }
}

/// `network.deny`.
pub(crate) fn denied(text: &str) -> Parsed<DenyPattern> {
    if let Some(network) = Network::parse(text.trim_matches(['[', ']'])) {
        return Ok(DenyPattern {
            target: Target::Network(network),
            port: None,
        });
    }
    if text.contains('/') && text.split('/').next().is_some_and(is_address) {
        return network(text).map(|network| DenyPattern {
            target: Target::Network(network),
            port: None,
        });
    }
    let HostPattern { reach, host, port } = pattern(text)?;
    Ok(DenyPattern {
        target: Target::Host { reach, name: host },
        port,
    })
}

fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

fn pattern(text: &str) -> Parsed<HostPattern> {
    let bad = |why: &str| Fault::new("bad-host", format!("{}: {why}", quoted(text)));
    let by_rule = "write a [[network.rule]] with `cidr = \"…\"`";
    if text.contains("://") || (text.contains('/') && Network::parse(text).is_none()) {
        return Err(bad("this is an address of a page, not a host")
            .help("write only the host, for example \"docs.example.com\""));
    }
    if text.starts_with('[') || text.matches(':').count() > 1 || text.contains('/') {
        return Err(bad(IP_ADDRESS).help(by_rule));
    }
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (
            name,
            Some(port_number(port).ok_or_else(|| bad("the port is not a number from 1 to 65535"))?),
        ),
        None => (text, None),
    };
    let (reach, base) = match (name.strip_prefix("**."), name.strip_prefix("*.")) {
        (Some(base), _) => (HostReach::AnyLabels, base),
        (None, Some(base)) => (HostReach::OneLabel, base),
        (None, None) => (HostReach::Exact, name),
    };
    if base.contains('*') {
        return Err(bad("a star can only be the first label")
            .help("write \"*.example.com\" for one label, \"**.example.com\" for any number"));
    }
    let base = ascii(base).map_err(|why| bad(why).help("write the name as A-labels (xn--…)"))?;
    host_name(&base).map_err(|why| match why {
        super::IP_ADDRESS => bad(IP_ADDRESS).help(by_rule),
        _ => bad(why).help("host names have letters, digits, dots and inner hyphens"),
    })?;
    let last = base.rsplit('.').next().unwrap_or_default();
    if last == "localhost" {
        return Err(bad("the host's loopback is never reachable").help(
            "the sandbox has a loopback of its own, which needs no rule; `host_ports` offers \
             ports of the host",
        ));
    }
    if last == "invalid" {
        return Err(bad("no name below `invalid` exists (RFC 6761)"));
    }
    Ok(HostPattern {
        reach,
        host: base,
        port,
    })
}

/// The name as A-labels in lower case (UTS 46). A label that mixes scripts is
/// refused: it looks like another name.
fn ascii(name: &str) -> Result<String, &'static str> {
    if name.is_ascii() {
        return Ok(name.to_ascii_lowercase());
    }
    if name.split('.').any(mixes_scripts) {
        return Err("a label mixes letters of several scripts, so it may look like another name");
    }
    idna::domain_to_ascii_strict(name).map_err(|_| "this is no name by UTS 46")
}

fn mixes_scripts(label: &str) -> bool {
    let mut scripts = label.chars().filter_map(script);
    let Some(first) = scripts.next() else {
        return false;
    };
    scripts.any(|script| script != first)
}

/// First and last character, number of the script. The scripts of East Asia
/// are written together and count as one.
const SCRIPTS: &[(char, char, u8)] = &[
    ('A', 'Z', 0),
    ('a', 'z', 0),
    ('\u{c0}', '\u{24f}', 0),
    ('\u{370}', '\u{3ff}', 1),
    ('\u{400}', '\u{52f}', 2),
    ('\u{530}', '\u{58f}', 3),
    ('\u{590}', '\u{5ff}', 4),
    ('\u{600}', '\u{77f}', 5),
    ('\u{900}', '\u{97f}', 6),
    ('\u{980}', '\u{9ff}', 7),
    ('\u{e00}', '\u{e7f}', 8),
    ('\u{10a0}', '\u{10ff}', 9),
    ('\u{1100}', '\u{11ff}', 10),
    ('\u{13a0}', '\u{13ff}', 11),
    ('\u{1e00}', '\u{1eff}', 0),
    ('\u{1f00}', '\u{1fff}', 1),
    ('\u{2c80}', '\u{2cff}', 12),
    ('\u{2e80}', '\u{9fff}', 10),
    ('\u{ac00}', '\u{d7af}', 10),
    ('\u{20000}', '\u{3ffff}', 10),
];

/// Digits and hyphens belong to every script; what is not in the table is one
/// script more.
fn script(character: char) -> Option<u8> {
    const OTHER: u8 = u8::MAX;
    if character.is_ascii() && !character.is_ascii_alphabetic() {
        return None;
    }
    let found = SCRIPTS
        .iter()
        .find(|(first, last, _)| (*first..=*last).contains(&character));
    Some(found.map_or(OTHER, |(_, _, script)| *script))
}

/// `cidr`, `allow_private`: a network or an address.
pub(crate) fn network(text: &str) -> Parsed<Network> {
    Network::parse(text).ok_or_else(|| {
        let fault = Fault::new("bad-network", format!("{} is no network", quoted(text)));
        let (address, bits) = text.split_once('/').unwrap_or((text, ""));
        match (address.parse(), bits.parse()) {
            (Ok(address), Ok(bits)) => fault.help(format!(
                "the address has bits behind the prefix; did you mean \"{}\"?",
                Network::around(address, bits)
            )),
            _ => fault.help("for example \"10.0.0.0/8\", \"192.0.2.7\" or \"fd12::/16\""),
        }
    })
}

/// `network.nat64`: a translation prefix (RFC 6052).
pub(crate) fn nat64(text: &str) -> Parsed<Network> {
    let network = network(text)?;
    match network.address().is_ipv6() && is_translation_length(network.bits()) {
        true => Ok(network),
        false => Err(Fault::new(
            "bad-network",
            format!("{} is no translation prefix", quoted(text)),
        )
        .help("an IPv6 prefix of 32, 40, 48, 56, 64 or 96 bits (RFC 6052)")),
    }
}

/// `ports`: a port or an inclusive range.
pub(crate) fn ports(text: &str) -> Parsed<(u16, u16)> {
    let parsed = match text.split_once('-') {
        Some((low, high)) => port_number(low).zip(port_number(high)),
        None => port_number(text).map(|port| (port, port)),
    };
    parsed.filter(|(low, high)| low <= high).ok_or_else(|| {
        Fault::new(
            "bad-port",
            format!("{} is no port and no range", quoted(text)),
        )
        .help("for example 5432 or \"8000-8010\"")
    })
}

/// `network.host_ports`.
pub(crate) fn port(text: &str) -> Parsed<u16> {
    port_number(text).ok_or_else(|| {
        Fault::new("bad-port", format!("{} is no port", quoted(text)))
            .help("a number from 1 to 65535")
    })
}

/// `network.publish`: `port`, or `port of the host:port inside`.
pub(crate) fn published(text: &str) -> Parsed<Published> {
    let parsed = match text.split_once(':') {
        Some(("0", port)) => port_number(port).map(|port| (0, port)),
        Some((host_port, port)) => port_number(host_port).zip(port_number(port)),
        None => port_number(text).map(|port| (port, port)),
    };
    let parsed = parsed.map(|(host_port, port)| Published { host_port, port });
    parsed.ok_or_else(|| {
        Fault::new("bad-port", format!("{} publishes no port", quoted(text))).help(
            "write \"3000\", \"8080:3000\" for another port of the host, or \"0:3000\" for any",
        )
    })
}

/// `tls`.
pub(crate) fn tls_mode(text: &str) -> Parsed<TlsMode> {
    match text {
        "passthrough" => Ok(TlsMode::Passthrough),
        "inspect" => Ok(TlsMode::Inspect),
        "raw" => Ok(TlsMode::Raw),
        _ => Err(unknown_word(text, &["passthrough", "inspect", "raw"])),
    }
}

/// `graphql`.
pub(crate) fn graphql(text: &str) -> Parsed<GraphQl> {
    match text {
        "read-only" => Ok(GraphQl::ReadOnly),
        _ => Err(unknown_word(text, &["read-only"])),
    }
}

/// `approval.network`: whether people are asked.
pub(crate) fn approval(text: &str) -> Parsed<bool> {
    match text {
        "ask" => Ok(true),
        "deny" => Ok(false),
        _ => Err(unknown_word(text, &["ask", "deny"])),
    }
}

fn unknown_word(text: &str, words: &[&str]) -> Fault {
    let fault = Fault::new("unknown-word", format!("unknown word {}", quoted(text)));
    match closest(text, words.iter().copied()) {
        Some(word) => fault.help(format!("did you mean \"{word}\"?")),
        None => fault.help(format!("the words are: {}", words.join(", "))),
    }
}

/// `approval.wait`.
pub(crate) fn approval_wait(text: &str) -> Parsed<u64> {
    let wait = duration_ms(text)?;
    match wait <= APPROVAL_WAIT_MS_MAX {
        true => Ok(wait),
        false => Err(Fault::new(
            "bad-duration",
            format!("{}: a request is held for at most 60s", quoted(text)),
        )),
    }
}

/// `methods`: a method of HTTP in capitals.
pub(crate) fn method(text: &str) -> Parsed<String> {
    const METHOD_BYTES_MAX: usize = 32;
    let fault = || Fault::new("bad-method", format!("{} is no method", quoted(text)));
    if text.is_empty() || text.len() > METHOD_BYTES_MAX || !text.bytes().all(is_token) {
        return Err(fault().help("for example \"GET\""));
    }
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err(fault().help(format!("did you mean \"{}\"?", text.to_ascii_uppercase())));
    }
    if text == "CONNECT" {
        return Err(fault().help("tunnels are made by the proxy; allow the host and the port"));
    }
    Ok(text.to_owned())
}

/// A byte of a token of HTTP (RFC 9110, section 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// `paths`: a pattern over paths.
pub(crate) fn path_pattern(text: &str) -> Parsed<String> {
    let bad = |why: &str| Fault::new("bad-pattern", format!("{}: {why}", quoted(text)));
    if !text.starts_with('/') && !text.starts_with("**") {
        return Err(bad("a path begins with a slash").help("for example \"/repos/acme/**\""));
    }
    if text.contains(['?', '#']) {
        return Err(bad("a path has no query").help("the query has a key of its own, `query`"));
    }
    if text.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err(bad("paths are compared without dot segments"));
    }
    value_pattern(text)
}

/// The pattern of a value: of a query parameter or a header.
pub(crate) fn value_pattern(text: &str) -> Parsed<String> {
    let control = text.bytes().any(|byte| byte.is_ascii_control());
    if text.len() > PATTERN_BYTES_MAX || control {
        return Err(Fault::new(
            "bad-pattern",
            format!("{}: no request has that", quoted(text)),
        ));
    }
    Ok(text.to_owned())
}

/// `query`, `form`: the name of a parameter.
pub(crate) fn parameter(text: &str) -> Parsed<String> {
    match text.is_empty() {
        false => value_pattern(text),
        true => Err(Fault::new("bad-pattern", "the name is empty")),
    }
}

/// The name of a header, in lower case.
pub(crate) fn header_name(text: &str) -> Parsed<String> {
    match !text.is_empty() && text.bytes().all(is_token) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err(
            Fault::new("bad-header", format!("{} is no header", quoted(text)))
                .help("for example \"Authorization\""),
        ),
    }
}

/// The name of a header, as it is sent.
pub(crate) fn header(text: &str) -> Parsed<String> {
    header_name(text).map(|_| text.to_owned())
}

/// `format`: what stands around the secret.
pub(crate) fn format(text: &str) -> Parsed<String> {
    let visible = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    match visible && text.matches("{}").count() == 1 {
        true => Ok(text.to_owned()),
        false => Err(Fault::new(
            "bad-format",
            format!("{} must hold {{}} once", quoted(text)),
        )
        .help("for example \"Bearer {}\"")),
    }
}

/// `json`: where in a body (RFC 6901).
pub(crate) fn json_pointer(text: &str) -> Parsed<String> {
    match text.starts_with('/') && text.len() <= PATTERN_BYTES_MAX {
        true => Ok(text.to_owned()),
        false => Err(Fault::new(
            "bad-pointer",
            format!("{} is no JSON pointer", quoted(text)),
        )
        .help("for example \"/auth/token\"")),
    }
}

/// Repositories of a git host.
pub(crate) fn repository(text: &str) -> Parsed<String> {
    let bad = |why: &str| Fault::new("bad-pattern", format!("{}: {why}", quoted(text)));
    if text.is_empty() || text.starts_with('/') || text.ends_with('/') || text.contains("//") {
        return Err(bad("a repository is written \"owner/name\""));
    }
    if text.contains("://") || text.contains([':', '@']) {
        return Err(bad("this is an address").help("write \"owner/name\"; the host has a key"));
    }
    if let Some(name) = text.strip_suffix(".git") {
        return Err(
            bad("repositories are compared without `.git`").help(format!("write \"{name}\""))
        );
    }
    if text.split('/').any(|part| matches!(part, "." | "..")) {
        return Err(bad("no repository is called that"));
    }
    value_pattern(text)
}

/// References that may be pushed.
pub(crate) fn reference(text: &str) -> Parsed<String> {
    match text.starts_with("refs/") {
        true => value_pattern(text),
        false => Err(Fault::new(
            "bad-pattern",
            format!("{} is not the full name of a reference", quoted(text)),
        )
        .help(format!("for a branch write \"refs/heads/{text}\""))),
    }
}

/// `network.resolvers`: an address, and a port if it is not 53.
pub(crate) fn resolver(text: &str) -> Parsed<(IpAddr, u16)> {
    const DNS: u16 = 53;
    let alone = text.trim_matches(['[', ']']).parse().ok();
    let with_port = || {
        let address: std::net::SocketAddr = text.parse().ok()?;
        (address.port() != 0).then(|| (address.ip(), address.port()))
    };
    alone
        .map(|address| (address, DNS))
        .or_else(with_port)
        .ok_or_else(|| {
            Fault::new("bad-address", format!("{} is no resolver", quoted(text)))
                .help("for example \"10.0.0.53\" or \"10.0.0.53:5353\"")
        })
}

/// `network.proxy`.
pub(crate) fn proxy(text: &str) -> Parsed<UpstreamAddress> {
    let bad = |why: &str| Fault::new("bad-proxy", format!("{}: {why}", quoted(text)));
    let example = "for example \"http://proxy.corp.example:3128\"";
    let Some(rest) = text.strip_prefix("http://") else {
        return Err(bad("the proxy must be spoken to by HTTP").help(example));
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains('@') {
        return Err(bad("a policy holds no password"));
    }
    let port = rest
        .rsplit_once(':')
        .and_then(|(_, port)| port_number(port));
    let host = rest.rsplit_once(':').map_or("", |(host, _)| host);
    let name = host_name(host).is_ok() || is_address(host.trim_matches(['[', ']']));
    match port {
        Some(port) if name => Ok(UpstreamAddress {
            host: host.to_ascii_lowercase(),
            port,
        }),
        _ => Err(bad("host and port are needed").help(example)),
    }
}

/// `expires`: seconds since 1970.
pub(crate) fn expires(text: &str) -> Parsed<u64> {
    let day = format!("{text}T00:00:00Z");
    let whole = humantime::parse_rfc3339(text).or_else(|_| humantime::parse_rfc3339(&day));
    let since = whole
        .ok()
        .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    since.map(|since| since.as_secs()).ok_or_else(|| {
        Fault::new("bad-date", format!("{} is no moment", quoted(text)))
            .help("write it in UTC, for example \"2030-12-31T00:00:00Z\"")
    })
}

/// The name of a credential or of an entry of the secret store.
pub(crate) fn credential_name(text: &str) -> Parsed<String> {
    const NAME_BYTES_MAX: usize = 64;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.bytes().all(plain) {
        true => Ok(text.to_owned()),
        false => Err(
            Fault::new("bad-name", format!("{} is no name", quoted(text)))
                .help("letters, digits, `.`, `_` and `-`, at most 64"),
        ),
    }
}

/// An address that secrets are sent to.
pub(crate) fn https_url(text: &str) -> Parsed<String> {
    let rest = text.strip_prefix("https://").unwrap_or_default();
    let plain = rest.bytes().all(|byte| (b'!'..=b'~').contains(&byte));
    match !rest.is_empty() && plain && !rest.contains(['@', '\\', '#']) {
        true => Ok(text.to_owned()),
        false => Err(
            Fault::new("bad-url", format!("{} is no https address", quoted(text)))
                .help("secrets are only sent over TLS, to an address that begins with https://"),
        ),
    }
}

/// Any text that is not empty.
pub(crate) fn text(text: &str) -> Parsed<String> {
    match text.is_empty() || text.contains('\0') {
        false => Ok(text.to_owned()),
        true => Err(Fault::new(
            "bad-text",
            "the text is empty or holds a NUL byte",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_10_names_become_a_labels_and_mixed_scripts_are_refused() {
        for (text, host_name) in [
            ("bücher.example", "xn--bcher-kva.example"),
            ("*.BÜCHER.example", "xn--bcher-kva.example"),
            ("пример.test", "xn--e1afmkfd.test"),
            ("日本語テスト.test", "xn--zckzah4xla1i5341czxwa.test"),
        ] {
            let parsed = host(text).unwrap_or_else(|fault| panic!("{text}: {}", fault.message));
            assert!(parsed.host.is_ascii(), "{text}");
            if host_name.len() < 25 {
                assert_eq!(parsed.host, host_name, "{text}");
            }
        }
        for text in [
            "pаypal.test",
            "аpple.test",
            "ex\u{ad}ample.test",
            "a\u{200d}b.test",
        ] {
            assert!(host(text).is_err(), "{text}");
        }
    }

    #[test]
    fn patterns_over_shared_suffixes_are_refused_unless_denied() {
        for text in ["**.com", "*.co.uk", "*.github.io", "**.newtld"] {
            assert_eq!(host(text).unwrap_err().id, "shared-suffix", "{text}");
            assert!(denied(text).is_ok(), "{text}");
        }
        for text in ["co.uk", "*.acme.github.io", "**.internal"] {
            assert!(host(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn networks_and_ports() {
        assert!(network("10.0.0.0/8").is_ok() && network("192.0.2.7").is_ok());
        let help = network("10.1.2.3/8").unwrap_err().help.unwrap();
        assert!(help.contains("10.0.0.0/8"), "{help}");
        for text in ["", "10.0.0.0/33", "10.0.0", "::1/129", "a.test"] {
            assert!(network(text).is_err(), "{text}");
        }
        assert!(nat64("64:ff9b:1::/96").is_ok());
        assert!(nat64("64:ff9b:1::/80").is_err() && nat64("10.0.0.0/32").is_err());
        assert_eq!(ports("443"), Ok((443, 443)));
        assert_eq!(ports("8000-8010"), Ok((8000, 8010)));
        for text in ["0", "70000", "5-4", "-1", "1-", "x"] {
            assert!(ports(text).is_err(), "{text}");
        }
        assert_eq!(published("0:3000").unwrap().host_port, 0);
        assert_eq!(published("8080:3000").unwrap().port, 3000);
        for text in ["", "0", "3000:0", "a:b", "1:2:3"] {
            assert!(published(text).is_err(), "{text}");
        }
        assert!(denied("10.0.0.0/8").is_ok() && denied("10.0.0.1/8").is_err());
    }

    #[test]
    fn what_requests_are_like() {
        assert!(method("GET").is_ok());
        for text in ["get", "", "G T", "CONNECT"] {
            assert!(method(text).is_err(), "{text}");
        }
        assert!(path_pattern("/a/**").is_ok() && path_pattern("**/x").is_ok());
        for text in ["a", "/a?b", "/a/../b", ""] {
            assert!(path_pattern(text).is_err(), "{text}");
        }
        assert_eq!(header_name("X-Kind"), Ok("x-kind".to_owned()));
        assert!(header_name("X Kind").is_err());
        assert!(format("Bearer {}").is_ok());
        for text in ["Bearer", "{}{}", "a\r\n{}"] {
            assert!(format(text).is_err(), "{text}");
        }
    }

    #[test]
    fn repositories_and_references() {
        for text in ["acme/site", "acme/**", "group/sub/*"] {
            assert!(repository(text).is_ok(), "{text}");
        }
        for text in [
            "",
            "/acme/site",
            "acme/site.git",
            "https://a/b",
            "git@a:b",
            "a/../b",
        ] {
            assert!(repository(text).is_err(), "{text}");
        }
        assert!(reference("refs/heads/agent/*").is_ok());
        assert!(reference("main").is_err());
    }

    #[test]
    fn resolvers_proxies_dates_and_addresses() {
        assert_eq!(resolver("10.0.0.53").unwrap().1, 53);
        assert_eq!(resolver("[fd00::1]:5353").unwrap().1, 5353);
        assert!(resolver("dns.example").is_err());
        assert_eq!(proxy("http://proxy.corp.example:3128").unwrap().port, 3128);
        for text in [
            "https://p:1",
            "http://p",
            "http://u:p@h:1",
            "p:1",
            "http://:1",
        ] {
            assert!(proxy(text).is_err(), "{text}");
        }
        assert_eq!(expires("2030-01-01T00:00:00Z"), expires("2030-01-01"));
        assert!(expires("soon").is_err() && expires("1960-01-01").is_err());
        assert!(https_url("https://a.test/token").is_ok());
        for text in [
            "http://a.test",
            "https://",
            "https://u@a.test",
            "https://a b",
        ] {
            assert!(https_url(text).is_err(), "{text}");
        }
        assert_eq!(approval_wait("60s"), Ok(60_000));
        assert!(approval_wait("61s").is_err());
    }
}
