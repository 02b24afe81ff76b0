//! The grammars of single values: paths, hosts, names, sizes, durations.
//!
//! Each parser takes the text as written and answers with a typed value or
//! with what is wrong and what to write instead.

use serde::{Deserialize, Serialize};

use crate::caches::Cache;
use crate::guarantee::Guarantee;
use crate::path::{AbsolutePath, PathError, printable};
use crate::plan::{Accelerator, Form, RuntimeKind, Wall, WallDemand, WorkspaceMode};
use crate::policy::{Amount, NamedSet};
use crate::presets::{self, Preset};
use crate::problem::{Fault, closest};

mod network;

pub use network::{DenyPattern, Published, UpstreamAddress};
pub(crate) use network::{
    approval, approval_wait, credential_name, denied, expires, format, graphql, header,
    header_name, host, host_alone, https_url, json_pointer, method, nat64, network, parameter,
    path_pattern, port, ports, proxy, published, reference, repository, resolver, text, tls_mode,
    value_pattern,
};

type Parsed<T> = Result<T, Fault>;

/// A path as written, before the project and the home are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WrittenPath {
    /// Relative to the project; empty for the project itself.
    Project(String),
    /// Relative to the home directory; empty for the home itself.
    Home(String),
    Absolute(AbsolutePath),
}

/// What may stand in `filesystem.read`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readable {
    Set(NamedSet),
    Path(WrittenPath),
}

/// Names of the sets that `filesystem.read` knows.
pub(crate) const SETS: &[(&str, NamedSet)] = &[
    ("system", NamedSet::System),
    ("toolchains", NamedSet::Toolchains),
];

/// Whether the last name of a pattern stands for itself or for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HostReach {
    /// `host`: that name only.
    Exact,
    /// `*.host`: one label below it.
    OneLabel,
    /// `**.host`: one label or more below it.
    AnyLabels,
}

/// A host pattern with an optional port, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPattern {
    pub reach: HostReach,
    pub host: String,
    pub port: Option<u16>,
}

impl std::fmt::Display for HostPattern {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self.reach {
            HostReach::Exact => "",
            HostReach::OneLabel => "*.",
            HostReach::AnyLabels => "**.",
        })?;
        formatter.write_str(&self.host)?;
        match self.port {
            Some(port) => write!(formatter, ":{port}"),
            None => Ok(()),
        }
    }
}

/// `filesystem.read`: a named set or a path.
pub(crate) fn readable(text: &str) -> Parsed<Readable> {
    if let Some((_, set)) = SETS.iter().find(|(name, _)| *name == text) {
        return Ok(Readable::Set(*set));
    }
    let bare = !text.contains(['/', '.', '~']);
    match closest(text, SETS.iter().map(|(name, _)| *name)) {
        Some(name) if bare => Err(Fault::new(
            "unknown-set",
            format!("no set is called {}", quoted(text)),
        )
        .help(format!(
            "did you mean \"{name}\"? For a directory of the project write \"./{text}\""
        ))),
        _ => path(text).map(Readable::Path),
    }
}

/// `filesystem.write`: a path, and no named set.
pub(crate) fn writable(text: &str) -> Parsed<WrittenPath> {
    if SETS.iter().any(|(name, _)| *name == text) {
        return Err(Fault::new(
            "set-not-writable",
            format!("the set \"{text}\" can only be read"),
        )
        .help(format!("for a directory of the project write \"./{text}\"")));
    }
    path(text)
}

pub(crate) fn path(text: &str) -> Parsed<WrittenPath> {
    if text.is_empty() {
        return Err(Fault::new("bad-path", "the path is empty")
            .help("write \".\" for the project, \"~\" for the home, or a path"));
    }
    if text.split('/').any(|component| component == "..") {
        return Err(parent_component(text));
    }
    let relative_to =
        |root: &AbsolutePath, rest: &str| root.join(rest).map_err(|error| bad_path(text, error));
    if let Some(rest) = text.strip_prefix('~') {
        if !(rest.is_empty() || rest.starts_with('/')) {
            return Err(Fault::new(
                "bad-path",
                format!("{} names another user's home", quoted(text)),
            )
            .help("write \"~/…\" for your own home, or the absolute path"));
        }
        relative_to(&AbsolutePath::root(), rest)?;
        return Ok(WrittenPath::Home(rest.to_owned()));
    }
    let absolute = relative_to(&AbsolutePath::root(), text)?;
    Ok(if text.starts_with('/') {
        WrittenPath::Absolute(absolute)
    } else {
        WrittenPath::Project(text.to_owned())
    })
}

pub(crate) fn bad_path(text: &str, error: PathError) -> Fault {
    Fault::new("bad-path", format!("{}: {error}", quoted(text)))
}

fn parent_component(text: &str) -> Fault {
    let mut depth = 0_i64;
    let leaves = text.split('/').any(|component| {
        depth += match component {
            "" | "." => 0,
            ".." => -1,
            _ => 1,
        };
        depth < 0
    });
    if leaves && !text.starts_with(['/', '~']) {
        Fault::new(
            "path-leaves-project",
            format!("{} leaves the project", quoted(text)),
        )
        .help("write the absolute path, or one that starts with \"~/\"")
    } else {
        Fault::new(
            "bad-path",
            format!(
                "{} contains `..`, whose meaning depends on links",
                quoted(text)
            ),
        )
        .help("write the path without `..`")
    }
}

/// Most groups of alternatives in one glob; matching them nests as deep.
const ALTERNATIVES_MAX: usize = 16;

/// `filesystem.hide`: a glob relative to the project.
pub(crate) fn glob(text: &str) -> Parsed<String> {
    let bad = |why: &str| Fault::new("bad-pattern", format!("{}: {why}", quoted(text)));
    if text.trim_matches('/').is_empty() {
        return Err(bad("the pattern matches nothing"));
    }
    if text.len() >= crate::path::PATH_BYTES_MAX || text.contains('\0') {
        return Err(bad("the pattern can match no path"));
    }
    if text.matches('{').count() > ALTERNATIVES_MAX {
        return Err(bad("the pattern has too many alternatives").help("write several patterns"));
    }
    if text.starts_with('!') {
        return Err(bad("a pattern cannot show again what another hides")
            .help("name what is to be hidden more exactly"));
    }
    if text.starts_with('~') || text.split('/').any(|component| component == "..") {
        return Err(bad("patterns are relative to the project").help(
            "what is not granted is absent anyway; only paths below the project need hiding",
        ));
    }
    match globset::GlobBuilder::new(text)
        .literal_separator(true)
        .build()
    {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(bad(&error.kind().to_string())),
    }
}

/// What may stand in `filesystem.guard` and `filesystem.guard_report`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WrittenGuard {
    /// `defaults`: the built-in list; `false` for `!defaults`, without it.
    Defaults(bool),
    Pattern(String),
    /// `!pattern`.
    Removed(String),
}

/// `filesystem.guard`: a pattern, one that is taken out, or the built-in list.
pub(crate) fn guarded(text: &str) -> Parsed<WrittenGuard> {
    match text {
        "defaults" => Ok(WrittenGuard::Defaults(true)),
        "!defaults" => Ok(WrittenGuard::Defaults(false)),
        _ => guard_pattern(text),
    }
}

/// `filesystem.guard_report`: a pattern, or one that is taken out.
pub(crate) fn guard_pattern(text: &str) -> Parsed<WrittenGuard> {
    let (pattern, removed) = match text.strip_prefix('!') {
        Some(pattern) => (pattern, true),
        None => (text, false),
    };
    if pattern == "defaults" {
        return Err(bad_guard(text, "the built-in list is named in `guard`")
            .help("for a file of that name write \"**/defaults\""));
    }
    if pattern.contains(['{', '}', '\\']) {
        return Err(
            bad_guard(text, "guarded paths know `*`, `?`, `[…]` and `**`")
                .help("write one pattern for each alternative"),
        );
    }
    let pattern = glob(pattern)?;
    if pattern
        .split('/')
        .all(|part| matches!(part, "" | "." | "*" | "**"))
    {
        return Err(bad_guard(text, "the pattern matches everything")
            .help("name what is guarded; `workspace = \"review\"` holds every change"));
    }
    Ok(match removed {
        true => WrittenGuard::Removed(pattern),
        false => WrittenGuard::Pattern(pattern),
    })
}

fn bad_guard(text: &str, why: &str) -> Fault {
    Fault::new("bad-pattern", format!("{}: {why}", quoted(text)))
}

const IP_ADDRESS: &str = "the host is an IP address";

/// Letters, digits and inner hyphens (RFC 952, RFC 1123), and no name that
/// some resolver would take for an IPv4 address.
fn host_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("the host is empty");
    }
    if name.ends_with('.') {
        return Err("the host ends in a dot");
    }
    if name.len() > 253 {
        return Err("the host is longer than 253 characters");
    }
    for label in name.split('.') {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if label.is_empty() || label.len() > 63 {
            return Err("a label must have 1 to 63 characters");
        }
        if !label.bytes().all(inner) || label.starts_with('-') || label.ends_with('-') {
            return Err("a label is not a host name");
        }
    }
    let last = name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase();
    let hexadecimal = last
        .strip_prefix("0x")
        .is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
    if hexadecimal || last.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(IP_ADDRESS);
    }
    Ok(())
}

fn port_number(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0)
}

/// `environment.pass`: a name, or a prefix and a star.
pub(crate) fn variable_pattern(text: &str) -> Parsed<String> {
    if text == "*" {
        return Err(
            Fault::new("bad-variable", "the whole environment cannot be passed")
                .help("list the names, or prefixes such as \"NPM_CONFIG_*\""),
        );
    }
    variable(text.strip_suffix('*').unwrap_or(text)).map(|_| text.to_owned())
}

/// `environment.set`: the name of a variable.
pub(crate) fn variable(text: &str) -> Parsed<String> {
    let first = text
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    if first
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    {
        return Ok(text.to_owned());
    }
    Err(Fault::new(
        "bad-variable",
        format!("{} is not the name of a variable", quoted(text)),
    )
    .help("names have letters, digits and `_`, and do not start with a digit"))
}

/// The value of a variable.
pub(crate) fn variable_value(text: &str) -> Parsed<String> {
    if text.contains('\0') {
        return Err(Fault::new(
            "bad-variable",
            "the value contains a NUL byte, which no variable can hold",
        ));
    }
    Ok(text.to_owned())
}

/// `weaken`: the id of a guarantee.
pub(crate) fn guarantee(text: &str) -> Parsed<Guarantee> {
    let ids = || Guarantee::ALL.iter().map(|guarantee| guarantee.id());
    Guarantee::from_id(text).ok_or_else(|| {
        let fault = Fault::new(
            "unknown-guarantee",
            format!("no guarantee is called {}", quoted(text)),
        );
        match closest(&text.to_ascii_uppercase(), ids()) {
            Some(id) => fault.help(format!("did you mean \"{id}\"?")),
            None => fault.help("`stockade doctor` lists the guarantees"),
        }
    })
}

/// `filesystem.caches`: the name of a cache, or one with its variable.
pub(crate) fn cache(text: &str) -> Parsed<Cache> {
    let names = || Cache::KNOWN.iter().map(|cache| cache.name());
    Cache::parse(text).ok_or_else(|| {
        let fault = Fault::new(
            "unknown-cache",
            format!("no cache is called {}", quoted(text)),
        );
        match closest(text, names()) {
            Some(name) => fault.help(format!("did you mean \"{name}\"?")),
            None => fault.help(format!(
                "the caches are: {}; or NAME=VARIABLE for another program, for example \
                 \"uv=UV_CACHE_DIR\"",
                names().collect::<Vec<_>>().join(", ")
            )),
        }
    })
}

/// `preset`: the name of a preset.
pub(crate) fn preset(text: &str) -> Parsed<&'static Preset> {
    presets::find(text).ok_or_else(|| {
        let names = || presets::all().iter().map(|preset| preset.name);
        let fault = Fault::new(
            "unknown-preset",
            format!("no preset is called {}", quoted(text)),
        );
        match closest(text, names()) {
            Some(name) => fault.help(format!("did you mean \"{name}\"?")),
            None => fault.help(format!(
                "the presets are: {}",
                names().collect::<Vec<_>>().join(", ")
            )),
        }
    })
}

/// `process.form`.
pub(crate) fn form(text: &str) -> Parsed<Form> {
    match text {
        "namespaces" => Ok(Form::Namespaces),
        "landlock-only" => Ok(Form::LandlockOnly),
        _ => Err(Fault::new(
            "unknown-word",
            format!("no form is called {}", quoted(text)),
        )
        .help("write \"namespaces\" or \"landlock-only\"")),
    }
}

/// `wall`. With `at-least:` a stronger one will do too.
pub(crate) fn wall(text: &str) -> Parsed<WallDemand> {
    let name = text.strip_prefix("at-least:").unwrap_or(text);
    match Wall::from_word(name) {
        Some(Wall::Seatbelt) if name != text => Err(Fault::new(
            "unknown-word",
            "no other wall is compared with \"seatbelt\", which only macOS has".to_owned(),
        )
        .help("write \"seatbelt\" alone")),
        Some(least) => Ok(WallDemand {
            least,
            exactly: name == text,
        }),
        None => Err(Fault::new(
            "unknown-word",
            format!("no wall is called {}", quoted(text)),
        )
        .help("write \"process\", \"container\", \"gvisor\" or \"microvm\", or \"at-least:\" before it")),
    }
}

/// `container.image`: the name of an imported image, or its digest.
pub(crate) fn image(text: &str) -> Parsed<String> {
    const BYTES_MAX: usize = 128;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:".contains(&byte);
    let first = text
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric());
    match first && text.len() <= BYTES_MAX && text.bytes().all(plain) {
        true => Ok(text.to_owned()),
        false => Err(Fault::new(
            "bad-name",
            format!("{} is no name of an image", quoted(text)),
        )
        .help("`stockade image list` shows the names that there are")),
    }
}

/// `container.runtime`.
pub(crate) fn runtime(text: &str) -> Parsed<RuntimeKind> {
    let known = RuntimeKind::ALL
        .into_iter()
        .find(|kind| kind.word() == text);
    known.ok_or_else(|| {
        Fault::new(
            "unknown-word",
            format!("no OCI runtime that can be used is called {}", quoted(text)),
        )
        .help("write \"runc\" or \"crun\", or remove the key: then Stockade makes the container")
    })
}

/// `container.accept_runtime`: a version as the runtime says it.
pub(crate) fn runtime_version(text: &str) -> Parsed<String> {
    const BYTES_MAX: usize = 128;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".+~:_-".contains(&byte);
    match !text.is_empty() && text.len() <= BYTES_MAX && text.bytes().all(plain) {
        true => Ok(text.to_owned()),
        false => Err(
            Fault::new("bad-version", format!("{} is no version", quoted(text)))
                .help("write it as the refusal and `stockade doctor` do"),
        ),
    }
}

/// `microvm.accelerator`.
pub(crate) fn accelerator(text: &str) -> Parsed<Accelerator> {
    let mut known = Accelerator::ALL.into_iter();
    known.find(|one| one.word() == text).ok_or_else(|| {
        Fault::new(
            "unknown-word",
            format!("{} executes no machine", quoted(text)),
        )
        .help("write \"kvm\" or \"tcg\", or remove the key: then it is KVM where that really works")
    })
}

/// `filesystem.workspace`.
pub(crate) fn workspace(text: &str) -> Parsed<WorkspaceMode> {
    match text {
        "live" => Ok(WorkspaceMode::Live),
        "review" => Ok(WorkspaceMode::Review),
        "discard" => Ok(WorkspaceMode::Discard),
        _ => Err(Fault::new(
            "unknown-word",
            format!("{} is no way to treat the workspace", quoted(text)),
        )
        .help("write \"live\", \"review\" or \"discard\"")),
    }
}

/// `limits.memory`: a size or a share of the machine.
pub(crate) fn amount(text: &str) -> Parsed<Amount> {
    let Some(share) = text.strip_suffix('%') else {
        return size(text).map(Amount::Bytes);
    };
    match share.parse::<u8>() {
        Ok(percent @ 1..=100) if share.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok(Amount::PercentOfMachine(percent))
        }
        _ => Err(Fault::new(
            "bad-size",
            format!("{} is not a share from 1% to 100%", quoted(text)),
        )),
    }
}

/// Units of sizes, in bytes.
const SIZE_UNITS: &[(&str, u64)] = &[
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

/// A positive number of bytes with its unit.
pub(crate) fn size(text: &str) -> Parsed<u64> {
    let bad = || {
        Fault::new("bad-size", format!("{} is not a size", quoted(text)))
            .help("write a number and a unit, for example \"512MiB\" or \"2GiB\"")
    };
    let (number, factor) = SIZE_UNITS
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?.trim_end(), *factor)))
        .ok_or_else(bad)?;
    scaled(number, factor)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(bad)
}

/// A positive duration in milliseconds, rounded up.
pub(crate) fn duration_ms(text: &str) -> Parsed<u64> {
    let parsed = humantime::parse_duration(text).ok().and_then(|duration| {
        u64::try_from(duration.as_nanos().div_ceil(1_000_000))
            .ok()
            .filter(|ms| *ms > 0)
    });
    parsed.ok_or_else(|| {
        Fault::new(
            "bad-duration",
            format!("{} is not a duration", quoted(text)),
        )
        .help("write a number and a unit, for example \"30s\", \"10m\" or \"1h 30m\"")
    })
}

/// Processor time counts in whole seconds (RLIMIT_CPU, setrlimit(2)).
pub(crate) fn duration_seconds(text: &str) -> Parsed<u64> {
    duration_ms(text).map(|ms| ms.div_ceil(1000))
}

/// Digits with at most one point, times a factor, without rounding through a
/// binary fraction; `None` on overflow and on anything else.
fn scaled(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty()
        || number.ends_with('.')
        || fraction.len() > 6
        || !digits(whole)
        || !digits(fraction)
    {
        return None;
    }
    let base = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    let parts = format!("{fraction:0<6}").parse::<u64>().ok()?;
    let part = u128::from(parts) * u128::from(factor) / 1_000_000;
    base.checked_add(u64::try_from(part).ok()?)
}

/// Text of the user in a message: escaped, quoted, and cut when long.
pub(crate) fn quoted(text: &str) -> String {
    const SHOWN_MAX: usize = 80;
    let shown = printable(text.as_bytes());
    match shown.char_indices().nth(SHOWN_MAX) {
        Some((cut, _)) => format!("\"{}…\"", &shown[..cut]),
        None => format!("\"{shown}\""),
    }
}

/// A parser's message, which may quote the user's text, made safe to show.
pub(crate) fn unquoted(text: &str) -> String {
    printable(text.replace('\n', ", ").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_shares() {
        for (text, bytes) in [
            ("2GiB", 2 << 30),
            ("1.5 MiB", 3 << 19),
            ("512B", 512),
            ("1kB", 1000),
        ] {
            assert_eq!(amount(text), Ok(Amount::Bytes(bytes)), "{text}");
        }
        assert_eq!(amount("50%"), Ok(Amount::PercentOfMachine(50)));
        for text in [
            "",
            "2",
            "GiB",
            "-1GiB",
            "0B",
            "101%",
            "+5%",
            "0%",
            "1e3MiB",
            "1.GiB",
            "99999999TiB",
            "2 Gi",
            "٣MiB",
        ] {
            assert!(amount(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration_ms("10m"), Ok(600_000));
        assert_eq!(duration_ms("1h 30m"), Ok(5_400_000));
        assert_eq!(duration_ms("1ns"), Ok(1));
        assert_eq!(duration_seconds("1500ms"), Ok(2));
        for text in ["", "0s", "10", "-1s", "soon", "99999999999999999999y"] {
            assert!(duration_ms(text).is_err(), "{text}");
        }
    }

    #[test]
    fn hosts() {
        for (text, shown) in [
            ("docs.example.com", "docs.example.com"),
            ("*.CDN.example.com:443", "*.cdn.example.com:443"),
            ("**.example.com", "**.example.com"),
            ("registry", "registry"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ] {
            assert_eq!(host(text).unwrap().to_string(), shown);
        }
        for text in [
            "",
            "*",
            "**",
            "*.",
            "a.*.b",
            "a*.b",
            "https://a.b",
            "a.b/c",
            "a.b.",
            ".a",
            "a..b",
            "-a.b",
            "a-.b",
            "a_b.c",
            "127.0.0.1",
            "0x7f.1",
            "0x7f000001",
            "2130706433",
            "[::1]",
            "::1",
            "a.b:0",
            "a.b:65536",
            "a.b:+1",
            "a.b:",
            "a.b:80:80",
            "a b.c",
            "a\n.b",
            "localhost",
            "*.localhost",
            "user@a.b",
            "a.b\0",
        ] {
            assert!(host(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn paths() {
        assert_eq!(path("."), Ok(WrittenPath::Project(".".into())));
        assert_eq!(path("~"), Ok(WrittenPath::Home(String::new())));
        assert_eq!(path("~/x"), Ok(WrittenPath::Home("/x".into())));
        assert!(
            matches!(path("/x//y/"), Ok(WrittenPath::Absolute(path)) if path.as_bytes() == b"/x/y")
        );
        for (text, id) in [
            ("", "bad-path"),
            ("../x", "path-leaves-project"),
            ("a/../../x", "path-leaves-project"),
            ("a/../x", "bad-path"),
            ("/a/../x", "bad-path"),
            ("~root", "bad-path"),
            ("~/..", "bad-path"),
            ("a\0", "bad-path"),
        ] {
            assert_eq!(path(text).unwrap_err().id, id, "{text:?}");
        }
        assert_eq!(readable("toolchian").unwrap_err().id, "unknown-set");
        assert!(readable("./toolchian").is_ok());
        assert_eq!(writable("system").unwrap_err().id, "set-not-writable");
    }

    #[test]
    fn names_and_patterns() {
        for text in ["PATH", "LC_*", "_x1"] {
            assert!(variable_pattern(text).is_ok(), "{text}");
        }
        for text in ["", "*", "A*B", "1A", "A-B", "A=B", "A**", "É"] {
            assert!(variable_pattern(text).is_err(), "{text}");
        }
        for text in ["**/.env", "secrets/", "/top", "*.pem", "[a-z].key"] {
            assert!(glob(text).is_ok(), "{text}");
        }
        for text in ["", "/", "!x", "../x", "~/x", "[", "a\0", &"{".repeat(4000)] {
            assert!(glob(text).is_err(), "{text}");
        }
    }
}
