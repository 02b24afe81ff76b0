//! Which SSH server is whom: the lines of known_hosts(5), as in sshd(8).
//!
//! A host that no line names is refused: nobody is there to be asked.
//! Certificate authorities are not supported, and a host that only they vouch
//! for is refused too.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use russh::keys::PublicKey;

/// Longest line that is read, in bytes.
const LINE_BYTES_MAX: usize = 16 * 1024;
const DEFAULT_PORT: u16 = 22;

#[derive(Clone, Debug, Default)]
pub struct KnownHosts(Vec<Entry>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTrusted {
    #[error("no line of known_hosts names it; connect to it once outside the sandbox")]
    Unknown,
    #[error(
        "its key is not the one in known_hosts; somebody may be in between, or it has a new key"
    )]
    Changed,
    #[error("known_hosts says that its key was revoked")]
    Revoked,
    #[error(
        "only a certificate authority vouches for it, which is not supported; add its own key to known_hosts"
    )]
    OnlyAuthority,
}

#[derive(Clone, Debug)]
struct Entry {
    marker: Marker,
    hosts: Hosts,
    key: PublicKey,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    None,
    Revoked,
    Authority,
}

#[derive(Clone, Debug)]
enum Hosts {
    Patterns(Vec<String>),
    Hashed { salt: Vec<u8>, hash: Vec<u8> },
}

impl KnownHosts {
    /// Lines that cannot be read name nobody.
    pub fn parse(text: &[u8]) -> Self {
        let lines = text.split(|byte| *byte == b'\n');
        Self(lines.filter_map(parse_line).collect())
    }

    /// Keys by which a host may show that it is itself.
    pub fn keys<'a>(&'a self, host: &str, port: u16) -> impl Iterator<Item = &'a PublicKey> {
        let name = address(host, port);
        self.0
            .iter()
            .filter(move |entry| entry.marker == Marker::None && entry.hosts.name(&name))
            .map(|entry| &entry.key)
    }

    pub fn check(&self, host: &str, port: u16, key: &PublicKey) -> Result<(), NotTrusted> {
        let name = address(host, port);
        let is_same = |entry: &&Entry| entry.key.key_data() == key.key_data();
        // A revoked key is refused for every host that the line names.
        let mut of_host = self.0.iter().filter(|entry| entry.hosts.name(&name));
        let revoked = |entry: &Entry| entry.marker == Marker::Revoked && is_same(&entry);
        if of_host.clone().any(revoked) {
            return Err(NotTrusted::Revoked);
        }
        if self
            .keys(host, port)
            .any(|known| known.key_data() == key.key_data())
        {
            return Ok(());
        }
        if self.keys(host, port).next().is_some() {
            return Err(NotTrusted::Changed);
        }
        match of_host.any(|entry| entry.marker == Marker::Authority) {
            true => Err(NotTrusted::OnlyAuthority),
            false => Err(NotTrusted::Unknown),
        }
    }
}

/// As known_hosts writes it: the port only where it is not SSH's own, and
/// brackets only with a port. `host` may have those of an IPv6 address.
pub fn address(host: &str, port: u16) -> String {
    let inner = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let host = inner.unwrap_or(host).to_ascii_lowercase();
    match port {
        DEFAULT_PORT => host,
        _ => format!("[{host}]:{port}"),
    }
}

fn parse_line(line: &[u8]) -> Option<Entry> {
    if line.len() > LINE_BYTES_MAX {
        return None;
    }
    let line = str::from_utf8(line).ok()?;
    let mut fields = line.split_ascii_whitespace().peekable();
    let marker = match *fields.peek()? {
        "@revoked" => Marker::Revoked,
        "@cert-authority" => Marker::Authority,
        other if other.starts_with(['#', '@']) => return None,
        _ => Marker::None,
    };
    if marker != Marker::None {
        fields.next();
    }
    let hosts = parse_hosts(fields.next()?)?;
    let (algorithm, key) = (fields.next()?, fields.next()?);
    let key = PublicKey::from_openssh(&format!("{algorithm} {key}")).ok()?;
    Some(Entry { marker, hosts, key })
}

fn parse_hosts(text: &str) -> Option<Hosts> {
    let Some(hashed) = text.strip_prefix("|1|") else {
        let patterns = text.split(',').map(str::to_ascii_lowercase).collect();
        return Some(Hosts::Patterns(patterns));
    };
    let (salt, hash) = hashed.split_once('|')?;
    Some(Hosts::Hashed {
        salt: STANDARD.decode(salt).ok()?,
        hash: STANDARD.decode(hash).ok()?,
    })
}

impl Hosts {
    fn name(&self, name: &str) -> bool {
        match self {
            Self::Hashed { salt, hash } => {
                let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, salt);
                hmac::verify(&key, name.as_bytes(), hash).is_ok()
            }
            Self::Patterns(patterns) => {
                let matches = |pattern: &str| glob(pattern.as_bytes(), name.as_bytes());
                let (excluded, included): (Vec<&String>, Vec<&String>) = patterns
                    .iter()
                    .partition(|pattern| pattern.starts_with('!'));
                included.iter().any(|pattern| matches(pattern))
                    && !excluded.iter().any(|pattern| matches(&pattern[1..]))
            }
        }
    }
}

/// `*` stands for any characters and `?` for one (ssh_config(5), PATTERNS).
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while from < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                retry = Some((at, from));
                at += 1;
            }
            Some(one) if *one == b'?' || *one == text[from] => {
                at += 1;
                from += 1;
            }
            _ => match retry {
                Some((star, start)) => {
                    retry = Some((star, start + 1));
                    at = star + 1;
                    from = start + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|one| *one == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";
    const B: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA6rWI3G1sz07DnfFlrouTcysQlj2P+jpNSOEWD9OJ3X";

    fn check(lines: &str, host: &str, port: u16, key: &str) -> Result<(), NotTrusted> {
        let key = PublicKey::from_openssh(key).unwrap();
        KnownHosts::parse(lines.as_bytes()).check(host, port, &key)
    }

    #[test]
    fn a_host_is_known_by_its_own_lines() {
        let lines = format!("# comment\nother {B}\n h1,10.0.0.1 {A} comment\n[h2]:2222 {A}\n");
        assert_eq!(check(&lines, "h1", 22, A), Ok(()));
        assert_eq!(check(&lines, "H1", 22, A), Ok(()));
        let six = format!("::1 {A}\n[::1]:2222 {A}");
        for host in ["::1", "[::1]"] {
            assert_eq!(check(&six, host, 22, A), Ok(()));
            assert_eq!(check(&six, host, 2222, A), Ok(()));
        }
        assert_eq!(check(&lines, "10.0.0.1", 22, A), Ok(()));
        assert_eq!(check(&lines, "h2", 2222, A), Ok(()));
        assert_eq!(check(&lines, "h1", 22, B), Err(NotTrusted::Changed));
        assert_eq!(check(&lines, "h2", 22, A), Err(NotTrusted::Unknown));
        assert_eq!(check(&lines, "h1", 2222, A), Err(NotTrusted::Unknown));
        assert_eq!(
            check("h1 ssh-ed25519 broken\n", "h1", 22, A),
            Err(NotTrusted::Unknown)
        );
    }

    #[test]
    fn patterns_and_markers_hold() {
        let lines =
            format!("*.a.test,!no.a.test {A}\n@cert-authority c {A}\n@revoked * {B}\nr {B}");
        assert_eq!(check(&lines, "x.a.test", 22, A), Ok(()));
        assert_eq!(check(&lines, "no.a.test", 22, A), Err(NotTrusted::Unknown));
        assert_eq!(check(&lines, "a.test", 22, A), Err(NotTrusted::Unknown));
        assert_eq!(check(&lines, "c", 22, A), Err(NotTrusted::OnlyAuthority));
        assert_eq!(check(&lines, "r", 22, B), Err(NotTrusted::Revoked));
        assert!(glob(b"*a*b", b"xaxxab") && !glob(b"?", b"") && !glob(b"*a", b"ab"));
    }

    #[test]
    fn hashed_names_are_those_of_ssh_keygen() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("known");
        std::fs::write(&file, format!("h1 {A}\n[h2]:2222 {A}\n")).unwrap();
        let hashed = std::process::Command::new("ssh-keygen")
            .args(["-q", "-H", "-f"])
            .arg(&file)
            .output()
            .unwrap();
        assert!(hashed.status.success());
        let lines = std::fs::read_to_string(&file).unwrap();
        assert!(lines.starts_with("|1|"), "{lines}");
        assert_eq!(check(&lines, "h1", 22, A), Ok(()));
        assert_eq!(check(&lines, "h2", 2222, A), Ok(()));
        assert_eq!(check(&lines, "h3", 22, A), Err(NotTrusted::Unknown));
    }
}
