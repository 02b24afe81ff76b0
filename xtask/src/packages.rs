//! Installs the Debian packages that the tests and the benchmark use.
//!
//! As root it installs only what is missing, so a second run costs nothing. An ordinary user is
//! told the one command to run, unless `--sudo` was given.

use crate::{shell, user};
use anyhow::{Result, bail};
use std::path::Path;
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
    package("sqlite3", "sqlite3"),
    package("strace", "strace"),
    package("tmux", "tmux"),
    package("util-linux", "setpriv"),
    package("zsh", "zsh"),
];

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
        return Ok(());
    }
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
    shell::run(apt_get().args(install).args(&missing))
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
