//! Installs the Debian packages that the tests and the benchmark use.
//!
//! As root it installs only what is missing, so a second run costs nothing. An ordinary user is
//! told the one command to run, unless `--sudo` was given.
//!
//! What the distribution has only in its backports suite comes from there; the suite is added by
//! a sources file of its own, signed by the distribution's own key, and only when it is needed.

use crate::{shell, user};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A Debian package and a file or command that shows that it is there.
struct Package {
    name: &'static str,
    shown_by: &'static str,
}

const fn package(name: &'static str, shown_by: &'static str) -> Package {
    Package { name, shown_by }
}

/// What the tests run, inside Stockade and outside.
const FOR_TESTS: &[Package] = &[
    package("bubblewrap", "bwrap"),
    package("build-essential", "g++"),
    package("busybox-static", "/usr/bin/busybox"),
    package("crun", "crun"),
    package("curl", "curl"),
    package("dbus", "dbus-daemon"),
    package("default-jdk-headless", "javac"),
    package("gcc", "gcc"),
    package("git", "git"),
    package("gnome-keyring", "gnome-keyring-daemon"),
    package("golang-go", "go"),
    package("iproute2", "/usr/sbin/ip"),
    package("make", "make"),
    package("nodejs", "node"),
    package("npm", "npm"),
    package("openssh-client", "ssh"),
    package("openssh-server", "/usr/sbin/sshd"),
    package("postgresql", "/usr/lib/postgresql"),
    package("procps", "ps"),
    package("python3", "/usr/bin/python3"),
    package("python3-grpcio", "/usr/lib/python3/dist-packages/grpc"),
    package("python3-httpx", "/usr/lib/python3/dist-packages/httpx"),
    package("python3-pip", "/usr/bin/pip3"),
    package("python3-pytest", "/usr/lib/python3/dist-packages/pytest"),
    package(
        "python3-requests",
        "/usr/lib/python3/dist-packages/requests",
    ),
    package("python3-venv", "/usr/share/doc/python3-venv"),
    package("qemu-system-x86", "qemu-system-x86_64"),
    package("runc", "/usr/sbin/runc"),
    package("sqlite3", "sqlite3"),
    package("strace", "strace"),
    package("tmux", "tmux"),
    package("util-linux", "setpriv"),
    package("zsh", "zsh"),
];

/// What the tests and the benchmark of the walls run that Debian 12 has only in its backports.
const FROM_BACKPORTS: &[Package] = &[package("runsc", "runsc")];

/// The sources file of the backports suite, which this program writes.
const BACKPORTS_FILE: &str = "/etc/apt/sources.list.d/stockade-backports.sources";
/// The keyring that the distribution itself installs.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Where the distribution's own sources files are.
const SOURCES: [&str; 2] = ["/etc/apt/sources.list", "/etc/apt/sources.list.d"];

/// What the benchmark and its peers need.
const FOR_BENCHMARK: &[Package] = &[
    package("bubblewrap", "bwrap"),
    package("gcc", "gcc"),
    package("git", "git"),
    package("make", "make"),
    package("nodejs", "node"),
    package("npm", "npm"),
    package("ripgrep", "rg"),
    package("socat", "socat"),
];

/// What the benchmark of the way out needs besides.
const FOR_EGRESS_BENCHMARK: &[Package] = &[
    package("bubblewrap", "bwrap"),
    package("iproute2", "/usr/sbin/ip"),
    package("mitmproxy", "mitmdump"),
    package("nodejs", "node"),
    package("npm", "npm"),
    package("openssl", "openssl"),
    package("ripgrep", "rg"),
    package("socat", "socat"),
    // Debian's other build of squid cannot look into TLS.
    package("squid-openssl", "/usr/lib/squid/security_file_certgen"),
    package("tinyproxy-bin", "tinyproxy"),
];

/// What the benchmark of the walls needs.
const FOR_WALLS_BENCHMARK: &[Package] = &[
    package("busybox-static", "/usr/bin/busybox"),
    package("runc", "/usr/sbin/runc"),
    package("qemu-system-x86", "qemu-system-x86_64"),
];

/// What the packages are for.
#[derive(Clone, Copy)]
pub enum Purpose {
    Tests,
    Benchmark,
    EgressBenchmark,
    WallsBenchmark,
}

/// Whether an ordinary user may call `sudo` to install packages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Escalation {
    /// Say what is missing and stop.
    Refuse,
    /// Call `sudo apt-get`.
    Sudo,
}

/// Makes sure that all packages are there, or says how to install them.
pub fn ensure(purpose: Purpose, escalation: Escalation) -> Result<()> {
    let packages = match purpose {
        Purpose::Tests => FOR_TESTS,
        Purpose::Benchmark => FOR_BENCHMARK,
        Purpose::EgressBenchmark => FOR_EGRESS_BENCHMARK,
        Purpose::WallsBenchmark => FOR_WALLS_BENCHMARK,
    };
    let missing = missing(packages);
    if missing.is_empty() {
        println!("all {} packages are there", packages.len());
    } else {
        install(&missing, escalation)?;
    }
    match purpose {
        Purpose::Tests | Purpose::WallsBenchmark => from_backports(FROM_BACKPORTS),
        _ => Ok(()),
    }
}

/// Installs packages of the distribution's stable suite.
fn install(missing: &[&str], escalation: Escalation) -> Result<()> {
    if !user::is_root() && escalation == Escalation::Refuse {
        bail!(
            "packages are missing; install them and run this again, or add --sudo:\n  \
             sudo apt-get install --no-install-recommends {}",
            missing.join(" ")
        );
    }
    println!("installing {}", missing.join(" "));
    shell::run(apt_get().args(["update", "--quiet=2"]))?;
    let install = ["install", "--yes", "--quiet=2", "--no-install-recommends"];
    shell::run(apt_get().args(install).args(missing))
}

/// Installs what only the backports suite has. Root alone adds a suite to a machine; anybody else
/// is told how.
fn from_backports(packages: &[Package]) -> Result<()> {
    let missing = missing(packages);
    if missing.is_empty() {
        return Ok(());
    }
    let release = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let suite = format!("{}-backports", code_name(&release).unwrap_or("stable"));
    if !user::is_root() {
        bail!(
            "packages of the backports suite are missing; add the suite and install them:\n  \
             sudo apt-get install -t {suite} {}",
            missing.join(" ")
        );
    }
    println!("installing {} from {suite}", missing.join(" "));
    let mirror = mirror()?;
    fs::write(BACKPORTS_FILE, sources(&mirror, &suite))
        .with_context(|| format!("cannot write {BACKPORTS_FILE}"))?;
    shell::run(apt_get().args(["update", "--quiet=2"]))?;
    let install = ["install", "--yes", "--quiet=2", "--no-install-recommends"];
    shell::run(apt_get().args(install).args(["-t", &suite]).args(&missing))
}

/// A sources file of one suite (deb822, sources.list(5)).
fn sources(mirror: &str, suite: &str) -> String {
    format!("Types: deb\nURIs: {mirror}\nSuites: {suite}\nComponents: main\nSigned-By: {KEYRING}\n")
}

/// Where this machine gets its distribution from.
fn mirror() -> Result<String> {
    let mut files = vec![PathBuf::from(SOURCES[0])];
    if let Ok(entries) = fs::read_dir(SOURCES[1]) {
        files.extend(entries.flatten().map(|entry| entry.path()));
    }
    let texts = files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok());
    let mut mirrors = texts.filter_map(|text| main_mirror(&text));
    mirrors
        .next()
        .context("no sources file of apt names a mirror of Debian")
}

/// The mirror of the distribution itself, and not of its security suite, in a sources file of
/// either form.
fn main_mirror(text: &str) -> Option<String> {
    let words = text
        .lines()
        .filter(|line| line.starts_with("URIs:") || line.starts_with("deb "))
        .flat_map(str::split_whitespace);
    let mut addresses = words.filter(|word| word.contains("://"));
    let address = addresses.find(|word| word.trim_end_matches('/').ends_with("/debian"))?;
    Some(address.to_owned())
}

/// The release's code name (os-release(5)).
fn code_name(release: &str) -> Option<&str> {
    let line = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    Some(line.trim_matches('"'))
}

fn missing(packages: &[Package]) -> Vec<&'static str> {
    let present = |mark: &str| match mark.starts_with('/') {
        true => Path::new(mark).exists(),
        false => shell::find_program(mark).is_some(),
    };
    packages
        .iter()
        .filter(|one| !present(one.shown_by))
        .map(|one| one.name)
        .collect()
}

fn apt_get() -> Command {
    let mut command = match user::is_root() {
        true => Command::new("apt-get"),
        false => {
            let mut sudo = Command::new("sudo");
            sudo.arg("apt-get");
            sudo
        }
    };
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_that_of_the_distribution_itself() {
        let old = "# a comment\ndeb http://mirror.test/debian-security bookworm-security main\n\
                   deb [arch=amd64] http://mirror.test/debian/ bookworm main\n";
        assert_eq!(
            main_mirror(old).as_deref(),
            Some("http://mirror.test/debian/")
        );
        let new = "Types: deb\nURIs: http://deb.test/debian\nSuites: bookworm\n";
        assert_eq!(main_mirror(new).as_deref(), Some("http://deb.test/debian"));
        assert_eq!(main_mirror("deb http://other.test/things x main\n"), None);
    }

    #[test]
    fn the_suite_is_named_after_the_release_and_signed_by_its_key() {
        let release = "NAME=\"Debian\"\nVERSION_CODENAME=bookworm\n";
        assert_eq!(code_name(release), Some("bookworm"));
        let text = sources("http://deb.test/debian", "bookworm-backports");
        assert!(text.contains("\nSuites: bookworm-backports\n"));
        assert!(text.contains("\nSigned-By: /usr/share/keyrings/"));
    }
}
