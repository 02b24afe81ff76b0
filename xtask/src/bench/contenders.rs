//! Who is measured, and the exact command that each of them is started with.

use crate::shell;
use crate::user::{self, Scratch, User};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// One way to run a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Contender {
    /// The command itself, with no sandbox.
    Bare,
    /// This product, with its default policy.
    Stockade,
    /// bubblewrap, told to make the same namespaces and mounts.
    Bubblewrap,
    /// The command line of @anthropic-ai/sandbox-runtime.
    Srt,
    /// The binary inside @openai/codex, without its node shim.
    Codex,
}

pub const ALL: &[Contender] = &[
    Contender::Bare,
    Contender::Stockade,
    Contender::Bubblewrap,
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
    pub peers: Peers,
    /// The home directory that the commands get: empty, and removed at the end.
    pub home: PathBuf,
}

/// Where the programs of the peers lie.
pub struct Peers {
    srt: PathBuf,
    codex: PathBuf,
    srt_settings: PathBuf,
}

/// The settings that the field's figures were measured with: no network, two hidden stores.
const SRT_SETTINGS: &str = r#"{
  "network": { "allowedDomains": [], "deniedDomains": [] },
  "filesystem": { "denyRead": ["~/.ssh", "~/.aws"], "allowWrite": ["."], "denyWrite": [] }
}
"#;
const NPM_PACKAGES: &[&str] = &["@anthropic-ai/sandbox-runtime", "@openai/codex"];

/// Installs the npm packages once, below the target directory, and copies them into `scratch`.
pub fn install_peers(scratch: &Scratch) -> Result<Peers> {
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
    /// `arguments` in `project`, run by `contender`.
    pub fn command(&self, contender: Contender, project: &Path, arguments: &[&str]) -> Command {
        let mut command = match contender {
            Contender::Bare => self.user.command(arguments[0]),
            Contender::Stockade => self.start(&self.stockade, &["run", "--"], arguments),
            Contender::Bubblewrap => return self.bubblewrap(project, arguments),
            Contender::Srt => {
                let mut node = self.user.command("node");
                node.arg(&self.peers.srt)
                    .arg("--settings")
                    .arg(&self.peers.srt_settings);
                node.arg("--").args(arguments);
                node
            }
            Contender::Codex => {
                let own = ["sandbox", "-P", ":workspace", "--"];
                self.start(&self.peers.codex, &own, arguments)
            }
        };
        if contender == Contender::Bare {
            command.args(&arguments[1..]);
        }
        command.current_dir(project).env("HOME", &self.home);
        command
    }

    fn start(&self, program: &Path, own: &[&str], arguments: &[&str]) -> Command {
        let mut command = self.user.command(program);
        command.args(own).args(arguments);
        command
    }

    /// The view of Stockade's default policy, as far as bubblewrap's options go: system
    /// directories read-only, private temporary directories, an empty home, the project writable.
    fn bubblewrap(&self, project: &Path, arguments: &[&str]) -> Command {
        let mut command = self.user.command("bwrap");
        command.current_dir(project).env("HOME", &self.home);
        command.args([
            "--unshare-all",
            "--die-with-parent",
            "--new-session",
            "--clearenv",
        ]);
        command.args(["--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc"]);
        for link in ["bin", "sbin", "lib", "lib64"] {
            command.args(["--symlink", &format!("usr/{link}"), &format!("/{link}")]);
        }
        command.args(["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/run"]);
        command
            .args(["--tmpfs", "/tmp", "--tmpfs", "/var/tmp", "--tmpfs"])
            .arg(&self.home);
        command
            .arg("--bind")
            .args([project, project])
            .arg("--chdir")
            .arg(project);
        command.arg("--setenv").arg("HOME").arg(&self.home);
        command.args(["--setenv", "PATH", &self.user.search_path]);
        command.arg("--").args(arguments);
        command
    }

    /// A new project in the home directory; the caller fills it and gives it to the user.
    pub fn project(&self, name: &str) -> Result<PathBuf> {
        let path = self.home.join(name);
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        self.user.give(&path)?;
        Ok(path)
    }
}
