//! The ordinary user that root borrows, so that one run covers both kinds of caller.
//!
//! Root makes the account `stockade-test` once, and a copy of the active Rust toolchain that it
//! can read: root's own lies below `/root`, which is closed to others.

use crate::shell;
use anyhow::{Context, Result, bail};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NAME: &str = "stockade-test";
/// Where the readable copy of the toolchain lies, one directory a toolchain.
const TOOLCHAINS: &str = "/opt/stockade-ci/rust";
const SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Whether this process is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// An account that commands run as, with the search path and home that they get.
pub struct User {
    pub home: PathBuf,
    pub search_path: String,
    /// Top of the Rust toolchain that `search_path` begins with.
    pub toolchain: PathBuf,
    name: String,
    /// The user and group to change to; none when this process already is that user.
    identity: Option<(u32, u32)>,
}

impl User {
    /// An ordinary account: this process's own, or when this is root the test account.
    pub fn ordinary() -> Result<Self> {
        if !is_root() {
            let home = std::env::var_os("HOME").context("HOME is not set")?.into();
            let name = std::env::var("USER").unwrap_or_else(|_| "user".into());
            return Ok(Self::new(home, name, active_toolchain()?, None));
        }
        if account()?.is_none() {
            println!("adding the user {NAME}");
            let add = ["--system", "--create-home", "--shell", "/bin/bash", NAME];
            shell::run(Command::new("useradd").args(add))?;
        }
        let (uid, gid, home) = account()?.context("useradd made no account")?;
        Ok(Self::new(
            home,
            NAME.into(),
            share_toolchain()?,
            Some((uid, gid)),
        ))
    }

    fn new(home: PathBuf, name: String, toolchain: PathBuf, identity: Option<(u32, u32)>) -> Self {
        let search_path = format!("{}:{SEARCH_PATH}", toolchain.join("bin").display());
        Self {
            home,
            search_path,
            toolchain,
            name,
            identity,
        }
    }

    /// `program`, to be run as this user with a fresh environment and no other groups.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("HOME", &self.home)
            .env("USER", &self.name)
            .env("LOGNAME", &self.name)
            .env("PATH", &self.search_path)
            .env("LANG", "C.UTF-8")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::null());
        if let Some((uid, gid)) = self.identity {
            // The standard library also drops root's supplementary groups here.
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Makes `path` and all below it this user's own.
    pub fn give(&self, path: &Path) -> Result<()> {
        let Some((uid, gid)) = self.identity else {
            return Ok(());
        };
        let owner = format!("{uid}:{gid}");
        shell::run(
            Command::new("chown")
                .args(["-R", "--no-dereference", &owner])
                .arg(path),
        )
    }
}

/// The numbers and the home of the test account, if there is one.
fn account() -> Result<Option<(u32, u32, PathBuf)>> {
    let output = Command::new("getent")
        .args(["passwd", NAME])
        .output()
        .context("getent")?;
    let line = String::from_utf8(output.stdout)?;
    let fields: Vec<&str> = line.trim().split(':').collect();
    let [_, _, uid, gid, _, home, _] = fields[..] else {
        return Ok(None);
    };
    Ok(Some((uid.parse()?, gid.parse()?, home.into())))
}

/// The top of the toolchain in use.
fn active_toolchain() -> Result<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let path = shell::capture(Command::new(rustc).args(["--print", "sysroot"]))?;
    Ok(path.trim().into())
}

/// A copy of the active toolchain that every user can read, and its path.
///
/// Hard links make it free on one file system. The copy is renamed into place when it is
/// complete, so an interrupted run leaves nothing half done behind.
fn share_toolchain() -> Result<PathBuf> {
    let source = active_toolchain()?;
    let name = source
        .file_name()
        .context("the toolchain's directory has no name")?;
    let rustc_version = source.join("bin/rustc").metadata()?.modified()?;
    let copy = Path::new(TOOLCHAINS).join(name);
    if copy
        .join("bin/rustc")
        .metadata()
        .is_ok_and(|m| m.modified().ok() == Some(rustc_version))
    {
        return Ok(copy);
    }
    println!("making {} readable at {}", source.display(), copy.display());
    let partial = Path::new(TOOLCHAINS).join(format!("partial-{}", std::process::id()));
    std::fs::create_dir_all(&partial)?;
    // `-p` would keep a closed directory mode; the top must be open to the user.
    std::fs::set_permissions(TOOLCHAINS, std::fs::Permissions::from_mode(0o755))?;
    std::fs::set_permissions(&partial, std::fs::Permissions::from_mode(0o755))?;
    for part in ["bin", "lib", "libexec"].map(|part| source.join(part)) {
        if part.exists() {
            copy_tree(&part, &partial)?;
        }
    }
    if copy.exists() {
        std::fs::remove_dir_all(&copy)?;
    }
    std::fs::rename(&partial, &copy)?;
    Ok(copy)
}

/// Copies `source` and all below it into the directory `into`, by hard links where that works.
pub fn copy_tree(source: &Path, into: &Path) -> Result<()> {
    let linked = Command::new("cp")
        .arg("-al")
        .arg(source)
        .arg(into)
        .stderr(Stdio::null())
        .status();
    if linked.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    shell::run(
        Command::new("cp")
            .args(["-a", "--reflink=auto"])
            .arg(source)
            .arg(into),
    )
}

/// A new directory that every user can enter, removed when this value goes.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes `PARENT/NAME-PID`; fails when it is already there. Removes what runs that were killed
    /// left behind under the same name.
    pub fn new(parent: &Path, name: &str) -> Result<Self> {
        remove_leftovers(parent, name)?;
        let path = parent.join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Copies `source` in, executable by everyone, and returns the copy's path.
    pub fn install(&self, source: &Path) -> Result<PathBuf> {
        let Some(name) = source.file_name() else {
            bail!("{} is no file", source.display())
        };
        let copy = self.0.join(name);
        std::fs::copy(source, &copy)
            .with_context(|| format!("cannot copy {}", source.display()))?;
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755))?;
        Ok(copy)
    }

    /// Makes a directory that belongs to `user`.
    pub fn directory_of(&self, user: &User, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        std::fs::create_dir(&path)?;
        user.give(&path)?;
        Ok(path)
    }
}

/// Removes each `PARENT/NAME-PID` whose process is gone.
fn remove_leftovers(parent: &Path, name: &str) -> Result<()> {
    for entry in std::fs::read_dir(parent)? {
        let entry = entry?;
        let file_name = entry.file_name();
        let process = file_name
            .to_str()
            .and_then(|text| text.strip_prefix(name)?.strip_prefix('-'));
        let Some(Ok(process)) = process.map(str::parse::<u32>) else {
            continue;
        };
        if !Path::new(&format!("/proc/{process}")).exists() {
            println!(
                "removing {}, left behind by a run that was killed",
                entry.path().display()
            );
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}
