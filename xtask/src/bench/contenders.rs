//! Who is measured, and the exact command that each of them is started with.

use super::mounts;
use crate::shell;
use crate::user::{self, Scratch, User};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// One way to run a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Contender {
    /// The command itself, with no sandbox.
    Bare,
    /// This product, with its default policy.
    Stockade,
    /// bubblewrap, told to make the same namespaces and mounts as Stockade's plan.
    Bubblewrap,
    /// bubblewrap with about half of these mounts, as people type it; no bar refers to it.
    BubblewrapFewer,
    /// The command line of @anthropic-ai/sandbox-runtime.
    Srt,
    /// The binary inside @openai/codex, without its node shim.
    Codex,
}

pub const ALL: &[Contender] = &[
    Contender::Bare,
    Contender::Stockade,
    Contender::Bubblewrap,
    Contender::BubblewrapFewer,
    Contender::Srt,
    Contender::Codex,
];

/// The contenders that were asked for; all when none was named.
pub fn chosen(only: &[Contender]) -> Vec<Contender> {
    ALL.iter()
        .copied()
        .filter(|one| only.is_empty() || only.contains(one))
        .collect()
}

impl Contender {
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Stockade => "stockade",
            Self::Bubblewrap => "bubblewrap",
            Self::BubblewrapFewer => "bubblewrap, fewer mounts",
            Self::Srt => "srt",
            Self::Codex => "codex",
        }
    }
}

/// The programs and directories of one benchmark, all readable by the user who runs it.
pub struct Arena {
    pub user: User,
    pub scratch: Scratch,
    pub stockade: PathBuf,
    /// None where no peer is a contender.
    pub peers: Option<Peers>,
    /// The home directory that the commands get: empty, and removed at the end.
    pub home: PathBuf,
    /// Options of `bwrap` for the mounts of Stockade's plan, by project.
    same_mounts: Mutex<BTreeMap<PathBuf, Vec<String>>>,
}

/// Where the programs of the peers lie.
pub struct Peers {
    srt: PathBuf,
    codex: PathBuf,
    srt_settings: PathBuf,
}

impl Peers {
    /// The script of the command line of `@anthropic-ai/sandbox-runtime`.
    pub fn srt_program(&self) -> &Path {
        &self.srt
    }
}

/// The settings that the field's figures were measured with: no network, two hidden stores.
const SRT_SETTINGS: &str = r#"{
  "network": { "allowedDomains": [], "deniedDomains": [] },
  "filesystem": { "denyRead": ["~/.ssh", "~/.aws"], "allowWrite": ["."], "denyWrite": [] }
}
"#;
/// Stands for each file whose content Stockade makes up; below the scratch directory.
const EMPTY_FILE: &str = "empty";
const NPM_PACKAGES: &[&str] = &["@anthropic-ai/sandbox-runtime", "@openai/codex"];

/// Installs the npm packages once, below the target directory, and returns where.
pub fn download_peers() -> Result<PathBuf> {
    let installed = shell::target_directory().join("bench-peers");
    if !NPM_PACKAGES
        .iter()
        .all(|name| installed.join("node_modules").join(name).is_dir())
    {
        std::fs::create_dir_all(&installed)?;
        let flags = ["install", "--silent", "--no-fund", "--no-audit", "--prefix"];
        shell::run(
            Command::new("npm")
                .args(flags)
                .arg(&installed)
                .args(NPM_PACKAGES),
        )?;
    }
    Ok(installed)
}

/// Copies the npm packages into `scratch`, where the ordinary user can read them.
pub fn install_peers(scratch: &Scratch) -> Result<Peers> {
    let installed = download_peers()?;
    user::copy_tree(&installed.join("node_modules"), scratch.path())?;
    let modules = scratch.path().join("node_modules");
    let srt_settings = scratch.path().join("srt.json");
    std::fs::write(&srt_settings, SRT_SETTINGS)?;
    Ok(Peers {
        srt: modules.join("@anthropic-ai/sandbox-runtime/dist/cli.js"),
        codex: codex_binary(&modules.join("@openai"))?,
        srt_settings,
    })
}

/// The vendored binary lies in a package of its own for each platform.
fn codex_binary(packages: &Path) -> Result<PathBuf> {
    for package in std::fs::read_dir(packages)? {
        let Ok(triples) = std::fs::read_dir(package?.path().join("vendor")) else {
            continue;
        };
        for triple in triples {
            let binary = triple?.path().join("bin/codex");
            if binary.is_file() {
                return Ok(binary);
            }
        }
    }
    anyhow::bail!("no codex binary below {}", packages.display())
}

impl Arena {
    pub fn new(
        user: User,
        scratch: Scratch,
        stockade: PathBuf,
        peers: Option<Peers>,
    ) -> Result<Self> {
        let home = scratch.directory_of(&user, "home")?;
        std::fs::write(scratch.path().join(EMPTY_FILE), "")?;
        Ok(Self {
            user,
            scratch,
            stockade,
            peers,
            home,
            same_mounts: Mutex::default(),
        })
    }

    /// `arguments` in `project`, run by `contender`.
    pub fn command(
        &self,
        contender: Contender,
        project: &Path,
        arguments: &[&str],
    ) -> Result<Command> {
        let mut command = match contender {
            Contender::Bare => self.user.command(arguments[0]),
            Contender::Stockade => self.start(&self.stockade, &["run", "--"]),
            Contender::Bubblewrap => self.bubblewrap(project, &self.same_mounts(project)?),
            Contender::BubblewrapFewer => self.bubblewrap(project, &self.fewer_mounts(project)?),
            Contender::Srt => {
                let peers = self.peers()?;
                let mut node = self.user.command("node");
                node.arg(&peers.srt)
                    .arg("--settings")
                    .arg(&peers.srt_settings)
                    .arg("--");
                node
            }
            Contender::Codex => {
                let own = ["sandbox", "-P", ":workspace", "--"];
                self.start(&self.peers()?.codex, &own)
            }
        };
        let rest = match contender {
            Contender::Bare => &arguments[1..],
            _ => arguments,
        };
        command
            .args(rest)
            .current_dir(project)
            .env("HOME", &self.home);
        Ok(command)
    }

    fn peers(&self) -> Result<&Peers> {
        self.peers.as_ref().context("the peers are not installed")
    }

    pub fn start(&self, program: &Path, own: &[&str]) -> Command {
        let mut command = self.user.command(program);
        command.args(own);
        command
    }

    fn bubblewrap(&self, project: &Path, mounts: &[String]) -> Command {
        let mut command = self.user.command("bwrap");
        command.args([
            "--unshare-all",
            "--die-with-parent",
            "--new-session",
            "--clearenv",
        ]);
        command.args(mounts).arg("--chdir").arg(project);
        command.arg("--setenv").arg("HOME").arg(&self.home);
        command.args(["--setenv", "PATH", &self.user.search_path, "--"]);
        command
    }

    /// The mounts of Stockade's plan for `project`; it is asked once for each project.
    fn same_mounts(&self, project: &Path) -> Result<Vec<String>> {
        let mut known = self
            .same_mounts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(options) = known.get(project) {
            return Ok(options.clone());
        }
        let mut explain = self.start(&self.stockade, &["explain", "--json", "--", "true"]);
        explain.current_dir(project).env("HOME", &self.home);
        let plan = shell::capture(&mut explain)?;
        let options = mounts::options_of(&plan, &self.scratch.path().join(EMPTY_FILE))?;
        known.insert(project.to_owned(), options.clone());
        Ok(options)
    }

    /// System directories read-only, private temporary directories, an empty home, the project
    /// writable; nothing masked.
    fn fewer_mounts(&self, project: &Path) -> Result<Vec<String>> {
        let project = project
            .to_str()
            .context("the project's path is not UTF-8")?;
        let home = self.home.to_str().context("the home's path is not UTF-8")?;
        let mut options = vec!["--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc"];
        for (target, link) in [
            ("usr/bin", "/bin"),
            ("usr/sbin", "/sbin"),
            ("usr/lib", "/lib"),
            ("usr/lib64", "/lib64"),
        ] {
            options.extend(["--symlink", target, link]);
        }
        options.extend(["--dev", "/dev", "--proc", "/proc"]);
        for private in ["/run", "/tmp", "/var/tmp", home] {
            options.extend(["--tmpfs", private]);
        }
        options.extend(["--bind", project, project]);
        Ok(options.into_iter().map(str::to_owned).collect())
    }

    /// A new project in the home directory; the caller fills it and gives it to the user.
    pub fn project(&self, name: &str) -> Result<PathBuf> {
        let path = self.home.join(name);
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        self.user.give(&path)?;
        Ok(path)
    }
}
