//! Package managers against the real registries: what `stockade learn` prints
//! is enough, all of it is needed, and inspection does not break their trust.
//!
//! No registry is named here. Where this machine reaches none, outside, the
//! test is skipped.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, iter};

use stockade_testkit::{Finished, World, has_program, skip};

/// A package manager and one small package for it.
struct Manager {
    test: &'static str,
    program: &'static str,
    /// Fetches the package into the project, without asking twice.
    script: &'static str,
    /// A file of the project that is there when it worked.
    shows: &'static str,
}

/// One file of a project for cargo, written before.
const MANIFEST: &str = "[package]\nname = \"demo\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\
                        [dependencies]\nitoa = \"1\"\n";

const PIP: Manager = Manager {
    test: "pip_needs_exactly_what_was_learned",
    program: "/usr/bin/pip3",
    script: "/usr/bin/pip3 install --no-cache-dir --retries 0 --target site six",
    shows: "site/six.py",
};

const NPM: Manager = Manager {
    test: "npm_needs_exactly_what_was_learned",
    program: "npm",
    script: "npm install --fetch-retries 0 --no-audit --no-fund ms",
    shows: "node_modules/ms/package.json",
};

const CARGO: Manager = Manager {
    test: "cargo_needs_exactly_what_was_learned",
    program: "cargo",
    script: "export CARGO_NET_RETRY=0 CARGO_HOME=$PWD/cargo; cargo fetch && \
             ls -d cargo/registry/cache/*/itoa-* && touch fetched",
    shows: "fetched",
};

#[test]
fn pip_needs_exactly_what_was_learned() {
    check(&PIP);
}

#[test]
fn npm_needs_exactly_what_was_learned() {
    check(&NPM);
}

#[test]
fn cargo_needs_exactly_what_was_learned() {
    check(&CARGO);
}

fn check(manager: &Manager) {
    if !reaches_its_registry(manager) {
        return;
    }
    let learned = learned(manager);
    let hosts: Vec<&str> = learned
        .lines()
        .filter(|line| line.starts_with("    \""))
        .collect();
    assert!(!hosts.is_empty(), "{learned}");
    assert!(works(manager, &learned), "{learned}");
    assert!(!works(manager, ""));
    for host in &hosts {
        let less = learned.replace(&format!("{host}\n"), "");
        assert!(!works(manager, &less), "without {host}: {learned}");
    }
    let inspected: String = hosts
        .iter()
        .map(|host| inspecting(host.trim().trim_end_matches(',').trim_matches('"')))
        .collect();
    assert!(works(manager, &inspected), "{inspected}");
}

fn inspecting(host: &str) -> String {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    format!("[[network.rule]]\nhost = \"{name}\"\ntls = \"inspect\"\n")
}

/// A world in which the manager has a project.
fn world(manager: &Manager) -> World {
    let world = World::new();
    if manager.program == "cargo" {
        world.write(world.project.join("Cargo.toml"), MANIFEST);
        world.write(world.project.join("src/lib.rs"), "");
    }
    world
}

/// The variables by which the toolchain of this process is found from another
/// home: rustup's own `cargo` looks for it there.
fn environment(manager: &Manager) -> Vec<(&'static str, OsString)> {
    if manager.program != "cargo" {
        return Vec::new();
    }
    let mut rustc = Command::new("rustc");
    let Ok(output) = rustc.args(["--print", "sysroot"]).output() else {
        return Vec::new();
    };
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = iter::once(sysroot.join("bin")).chain(std::env::split_paths(&path));
    let path = std::env::join_paths(path).expect("a search path can be made longer");
    let mut environment = vec![("PATH", path)];
    // RUSTUP_HOME/toolchains/NAME, as rustup lays it out.
    if let Some(home) = sysroot.parent().and_then(Path::parent) {
        environment.push(("RUSTUP_HOME", home.into()));
    }
    environment
}

/// Whether it works on this machine without a sandbox.
fn reaches_its_registry(manager: &Manager) -> bool {
    let missing = match manager.program.starts_with('/') {
        true => !fs::exists(manager.program).unwrap_or_default(),
        false => !has_program(manager.program),
    };
    if missing {
        let reason = format!("there is no {}", manager.program);
        skip(manager.test, manager.program, &reason);
        return false;
    }
    let world = world(manager);
    let exports: String = environment(manager)
        .iter()
        .map(|(name, value)| format!("export {name}='{}'; ", value.display()))
        .collect();
    let finished = world.outside_sh(&(exports + manager.script));
    if finished.code != Some(0) {
        let reason = format!(
            "no registry outside the sandbox either: {}",
            finished.stderr
        );
        skip(manager.test, "registries", &reason);
        return false;
    }
    true
}

fn stockade(world: &World, manager: &Manager, words: &[&str]) -> Finished {
    let mut command = world.stockade();
    command
        .args(words)
        .args(["--read", "toolchains", "--", "sh", "-c", manager.script])
        .envs(environment(manager))
        .stdin(Stdio::null());
    Finished::of(command.output().expect("stockade starts"))
}

/// The policy that a learning run prints.
fn learned(manager: &Manager) -> String {
    let world = world(manager);
    let file = world.outside().join("learned.toml");
    let words = ["learn", "--output", file.to_str().expect("ASCII")];
    stockade(&world, manager, &words).expect_code(0);
    assert!(world.project.join(manager.shows).exists());
    fs::read_to_string(file).expect("it was written")
}

/// Whether the package arrives under this policy.
fn works(manager: &Manager, policy: &str) -> bool {
    let world = world(manager);
    world.policy(policy);
    let finished = stockade(&world, manager, &["run", "--wall-time", "5m"]);
    // 124 is a command that was ended for its time.
    assert_ne!(finished.code, Some(124), "it hangs: {finished:?}");
    let arrived = world.project.join(manager.shows).exists();
    assert_eq!(arrived, finished.code == Some(0), "{finished:?}");
    if !arrived {
        println!("{policy}\n{}", finished.stderr);
    }
    arrived
}
