//! `stockade trust`: lets a project's policy file count as the user's own.
//!
//! What is shown, hashed and trusted are the same bytes, read once. The act is
//! logged before it takes effect.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, bail};
use stockade_engine::discover::{POLICY_FILE_NAME, Source, find_project};
use stockade_engine::events::{Hash, trusted};
use stockade_engine::log::Log;
use stockade_engine::state::{Places, StateDirectory};
use stockade_engine::trust::{Trust, is_trusted, list, trust};
use stockade_policy::path::{AbsolutePath, printable};

use crate::exit::ExitCode;

/// Let the project's stockade.toml widen what its runs may do
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Let the project's stockade.toml widen what its runs may do.\n\n\
        A command inside can write the project, and may have put a stockade.toml there. So by \
        itself that file can only take rights away. Trusting it records the SHA-256 of its content; from then on it \
        counts as your own policy, still below the organisation's. Any change to it makes it \
        untrusted again, and a run that it would have widened is refused until you look at it.\n\n\
        The file is shown before you are asked.",
    after_long_help = "Examples:\n  \
        stockade trust                  look at and trust the policy of this project\n  \
        stockade trust ~/work/site      of that project\n  \
        stockade trust --yes            without a question, for scripts\n  \
        stockade trust --list           what is trusted\n\n\
        Exit code: 0, or 1 when you answer no."
)]
pub struct Args {
    /// The project directory or its stockade.toml [default: this project]
    path: Option<PathBuf>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// List the trusted files
    #[arg(long, conflicts_with_all = ["path", "yes"])]
    list: bool,
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let places = Places::of_caller()?;
    let state = StateDirectory::open(&places)?;
    if arguments.list {
        return print_list(&state);
    }
    let source = find_source(arguments.path.as_deref(), &places)?;
    let was = match is_trusted(&state, &source.path, &source.content)? {
        Trust::Trusted => {
            println!("{} is trusted already.", source.path);
            return Ok(ExitCode::SUCCESS);
        }
        Trust::Changed { was } => Some(was),
        Trust::Unknown => None,
    };
    let sha256 = Hash::of(&source.content);
    if !arguments.yes && !confirm(&source, sha256, was)? {
        eprintln!("Not trusted; nothing was changed.");
        return Ok(ExitCode::FAILURE);
    }
    let now = SystemTime::now();
    Log::open(&state)?.append(None, &[trusted(&source.path, sha256)], now)?;
    trust(&state, &source.path, &source.content, now)?;
    println!("Trusted {} (sha256 {sha256}).", source.path);
    Ok(ExitCode::SUCCESS)
}

/// Where a project path on the command line leads: the directory to search
/// from. The policy file itself stands for its directory.
pub(super) fn start_directory(path: Option<&Path>) -> anyhow::Result<PathBuf> {
    let current = std::env::current_dir()
        .context("the current directory is gone; change into one that exists")?;
    Ok(match path {
        None => current,
        Some(path) if path.file_name() == Some(POLICY_FILE_NAME.as_ref()) => {
            current.join(path.parent().unwrap_or(Path::new("")))
        }
        Some(path) => current.join(path),
    })
}

/// The same directory with all links resolved.
pub(super) fn resolve(path: &Path) -> anyhow::Result<AbsolutePath> {
    use std::os::unix::ffi::OsStrExt;
    let shown = printable(path.as_os_str().as_bytes());
    let resolved = path
        .canonicalize()
        .with_context(|| format!("cannot find {shown}"))?;
    AbsolutePath::parse(resolved.as_os_str().as_bytes())
        .with_context(|| format!("cannot use {shown}"))
}

fn find_source(path: Option<&Path>, places: &Places) -> anyhow::Result<Source> {
    let start = resolve(&start_directory(path)?)?;
    let project = find_project(&start, &places.home)?;
    for note in &project.notes {
        eprintln!("note: {note}");
    }
    match project.policy_file {
        Some(source) => Ok(source),
        None => bail!(
            "no {POLICY_FILE_NAME} belongs to {start}\n  remedy: `stockade init` writes one; it is \
             not looked for in the home directory, or where others may create files"
        ),
    }
}

fn confirm(source: &Source, sha256: Hash, was: Option<Hash>) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        bail!(
            "cannot ask, because the standard input is not a terminal\n  remedy: look at {} \
             yourself, then run this with --yes",
            source.path
        );
    }
    let mut terminal = io::stderr().lock();
    writeln!(terminal, "{}\nsha256 {sha256}", source.path)?;
    if let Some(was) = was {
        writeln!(
            terminal,
            "It was trusted with another content (sha256 {was})."
        )?;
    }
    writeln!(terminal)?;
    for line in shown_lines(&source.content) {
        writeln!(terminal, "  {line}")?;
    }
    write!(
        terminal,
        "\nMay this file widen what runs in its project may do? [y/N] "
    )?;
    terminal.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// The file for a terminal: what it would act on is escaped.
fn shown_lines(content: &[u8]) -> impl Iterator<Item = String> {
    let content = content.strip_suffix(b"\n").unwrap_or(content);
    content.split(|&byte| byte == b'\n').map(|line| {
        line.split(|&byte| byte == b'\t')
            .map(printable)
            .collect::<Vec<_>>()
            .join("    ")
    })
}

fn print_list(state: &StateDirectory) -> anyhow::Result<ExitCode> {
    let mut output = io::stdout().lock();
    for entry in list(state)? {
        let time = printable(entry.time.as_bytes());
        writeln!(output, "{time}  {}  {}", entry.sha256, entry.path)?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_lines_cannot_hide_a_line() {
        let lines: Vec<_> = shown_lines(b"a\tb\n\x1b[1A\x1b[2Kc\rd\n").collect();
        assert_eq!(lines, ["a    b", "\\u{1b}[1A\\u{1b}[2Kc\\rd"]);
    }

    #[test]
    fn the_policy_file_stands_for_its_directory() {
        let current = std::env::current_dir().unwrap();
        assert_eq!(start_directory(None).unwrap(), current);
        assert_eq!(
            start_directory(Some(Path::new("stockade.toml"))).unwrap(),
            current.join("")
        );
        let path = Path::new("/a/stockade.toml");
        assert_eq!(start_directory(Some(path)).unwrap(), Path::new("/a"));
        assert_eq!(
            start_directory(Some(Path::new("/a/b"))).unwrap(),
            Path::new("/a/b")
        );
    }
}
