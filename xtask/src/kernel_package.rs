//! The kernel that the tests of virtual machines boot: a generic one of Debian's
//! next release, as a package file beside what is built. It is downloaded by apt,
//! which verifies it, and never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{shell, user};
use anyhow::{Context, Result, bail};

/// The release that it is from: the machine's own may have a kernel without what
/// is needed (virtio ports that a machine without PCI finds).
const SUITE: &str = "trixie";
/// Depends on the package with the kernel, whose name has its version.
const NEWEST: &str = "linux-image-amd64";
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The package, which is downloaded where it is missing.
pub fn ensure() -> Result<PathBuf> {
    let directory = shell::target_directory().join("packages");
    if let Some(package) = found(&directory)? {
        println!("the kernel package is there: {}", package.display());
        return Ok(package);
    }
    let apt = Apt::new(&directory)?;
    shell::run(apt.command("apt-get").args(["update", "--quiet=2"]))?;
    let name = apt.newest()?;
    println!("downloading {name}, about 110 MB");
    shell::run(
        apt.command("apt-get")
            .args(["download", "--quiet=2", &name])
            .current_dir(&directory),
    )?;
    match found(&directory)? {
        Some(package) => {
            fs::remove_dir_all(apt.state)?;
            Ok(package)
        }
        None => bail!(
            "apt-get downloaded {name}, and {} has it not",
            directory.display()
        ),
    }
}

fn found(directory: &Path) -> Result<Option<PathBuf>> {
    fs::create_dir_all(directory)?;
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.starts_with("linux-image-") && name.ends_with(".deb")) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Apt with a source and lists of its own, so that the machine's stay as they are.
struct Apt {
    state: PathBuf,
}

impl Apt {
    fn new(directory: &Path) -> Result<Self> {
        let state = directory.join("apt");
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(state.join(part))?;
        }
        let source = format!(
            "deb [arch=amd64 signed-by={KEYS}] {} {SUITE} main\n",
            archive()?
        );
        fs::write(state.join("sources.list"), source)?;
        Ok(Self { state })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (option, part) in [
            ("Dir::Etc::sourcelist", "sources.list"),
            ("Dir::State::lists", "lists"),
            ("Dir::Cache", "cache"),
        ] {
            let value = self.state.join(part);
            command.args(["-o", &format!("{option}={}", value.display())]);
        }
        command.args(["-o", "Dir::Etc::sourceparts=-"]);
        if user::is_root() {
            // The target directory need not be open to apt's own user.
            command.args(["-o", "APT::Sandbox::User=root"]);
        }
        command
    }

    /// The name of the newest kernel's package.
    fn newest(&self) -> Result<String> {
        let depends = ["depends", "--important", NEWEST];
        let text = output(self.command("apt-cache").args(depends))?;
        let name = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("Depends: "));
        let name = name.filter(|name| name.starts_with("linux-image-"));
        Ok(name.context("the newest kernel has no package")?.to_owned())
    }
}

/// Where this machine gets Debian's packages.
fn archive() -> Result<String> {
    let format = ["indextargets", "--format", "$(REPO_URI)"];
    let text = output(Command::new("apt-get").args(format))?;
    let archive = text
        .lines()
        .find(|uri| uri.trim_end_matches('/').ends_with("/debian"));
    Ok(archive
        .context("no source of apt is Debian's archive")?
        .to_owned())
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}
