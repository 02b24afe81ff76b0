//! `stockade copy`: brings files into a sandbox that stays, and out of it.

mod out;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::json;
use stockade_engine::load::{Selection, load};
use stockade_engine::sandboxes::Name;
use stockade_engine::sandboxes::files::Files;
use stockade_engine::sandboxes::registry::Registry;
use stockade_engine::state::{Places, StateDirectory};
use stockade_policy::path::printable;
use stockade_sys::rustix::fs::OFlags;

use super::project::print_json;
use crate::exit::ExitCode;
use crate::show;

/// Exit code when something was left out.
const EXIT_LEFT: u8 = 1;
/// More does not come out unless it is asked for.
const BYTES_MAX: u64 = 10 << 30;
/// Deeper trees are not copied.
const DEPTH_MAX: usize = 128;
/// How often somebody who waits is told how far it is.
const TOLD_EVERY: Duration = Duration::from_secs(2);

/// Copy files into a sandbox that stays, or out of it
#[derive(Debug, clap::Args)]
#[command(
    visible_alias = "cp",
    long_about = "Copy files and directories into a sandbox that stays, or out of it.\n\n\
        One of the two places is inside: NAME:PATH. When the target is a directory that is there, \
        the copy is made in it; else the target becomes the copy. Permission bits and times go along, \
        owners do not.\n\n\
        What comes out may be hostile. It never replaces anything outside, links are not made there, \
        set-user-id bits are dropped, and names that something outside would execute or obey (git \
        hooks, editor tasks and the like, as for a run) are left out unless --held is given.",
    after_long_help = "Examples:\n  \
        stockade copy web:dist .              the directory dist comes out, into this one\n  \
        stockade copy web:/tmp/report.html report.html\n  \
        stockade copy fixtures web:/tmp       into the sandbox\n\n\
        Exit code: 0, 1 when something was left out, 125 when it failed"
)]
pub struct Args {
    /// Also names that are held when a run writes them
    #[arg(long)]
    held: bool,
    /// Stop when what comes out is more than this
    #[arg(long, value_name = "BYTES", default_value_t = BYTES_MAX)]
    max_bytes: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// What to copy
    #[arg(value_name = "FROM")]
    from: OsString,
    /// Where to
    #[arg(value_name = "TO")]
    to: OsString,
}

/// One of the two places.
enum Place {
    Outside(PathBuf),
    Inside { name: Name, path: Vec<u8> },
}

impl Place {
    fn of(text: &OsStr) -> Self {
        let bytes = text.as_bytes();
        let inside = bytes
            .iter()
            .position(|&byte| byte == b':')
            .and_then(|colon| {
                let name = Name::parse(std::str::from_utf8(&bytes[..colon]).ok()?)?;
                let path = match &bytes[colon + 1..] {
                    b"" => b".",
                    path => path,
                };
                Some(Self::Inside {
                    name,
                    path: path.to_vec(),
                })
            });
        inside.unwrap_or_else(|| Self::Outside(text.into()))
    }
}

/// What was copied.
#[derive(Debug, Default)]
struct Copied {
    files: u64,
    directories: u64,
    links: u64,
    bytes: u64,
    left_out: Vec<LeftOut>,
    told: Option<Instant>,
}

#[derive(Debug)]
struct LeftOut {
    path: String,
    why: String,
}

impl Copied {
    fn leave_out(&mut self, path: &[u8], why: &str) {
        self.left_out.push(LeftOut {
            path: printable(path).to_string(),
            why: why.to_owned(),
        });
    }

    /// Says how far it is, now and then, to a person.
    fn tell(&mut self) {
        let told = *self.told.get_or_insert_with(Instant::now);
        if told.elapsed() > TOLD_EVERY && std::io::stderr().is_terminal() {
            self.told = Some(Instant::now());
            let (files, bytes) = (self.files, self.bytes);
            show::line(&format!("stockade: {files} files, {bytes} bytes so far"));
        }
    }
}

/// Runs `stockade copy`.
pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let state = StateDirectory::open(&Places::of_caller()?)?;
    let registry = &Registry::open(&state)?;
    let copied = match (Place::of(&arguments.from), Place::of(&arguments.to)) {
        (Place::Inside { name, path }, Place::Outside(to)) => {
            let files = Files {
                registry,
                name: &name,
            };
            let loaded = load(&Selection::default())?;
            let terms = out::Terms {
                guard: (!arguments.held).then_some(&loaded.policy.guard),
                workspace: loaded.policy.workspace.as_path(),
                bytes_max: arguments.max_bytes,
            };
            out::copy(files, &path, &to, &terms)?
        }
        (Place::Outside(from), Place::Inside { name, path }) => {
            let files = Files {
                registry,
                name: &name,
            };
            bring_in(files, &from, path)?
        }
        _ => bail!(
            "one of the two places has to be inside a sandbox\n  remedy: write it as NAME:PATH; \
             `stockade list` shows the names"
        ),
    };
    report(arguments, &copied)?;
    Ok(ExitCode::from(match copied.left_out.is_empty() {
        true => 0,
        false => EXIT_LEFT,
    }))
}

fn report(arguments: &Args, copied: &Copied) -> anyhow::Result<()> {
    if arguments.json {
        let left_out = copied.left_out.iter();
        let left_out: Vec<_> = left_out
            .map(|one| json!({ "path": one.path, "why": one.why }))
            .collect();
        return print_json(&json!({
            "version": 1,
            "files": copied.files,
            "directories": copied.directories,
            "links": copied.links,
            "bytes": copied.bytes,
            "left_out": left_out,
        }));
    }
    for one in &copied.left_out {
        show::line(&format!("stockade: left out: {}: {}", one.path, one.why));
    }
    show::line(&format!(
        "stockade: copied {} files and {} directories, {} bytes",
        copied.files, copied.directories, copied.bytes
    ));
    Ok(())
}

fn bring_in(files: Files<'_>, from: &Path, mut to: Vec<u8>) -> anyhow::Result<Copied> {
    if files.list(&to).is_ok() {
        let from = fs::canonicalize(from).with_context(|| from.display().to_string())?;
        let name = from.file_name().context("the root cannot be copied")?;
        to.push(b'/');
        to.extend_from_slice(name.as_bytes());
    }
    let mut copied = Copied::default();
    bring_in_one(files, from, &to, 0, &mut copied)?;
    Ok(copied)
}

fn bring_in_one(
    files: Files<'_>,
    from: &Path,
    to: &[u8],
    depth: usize,
    copied: &mut Copied,
) -> anyhow::Result<()> {
    let named = || from.display().to_string();
    copied.tell();
    // A link that was named is followed, others are copied.
    let status = match depth {
        0 => fs::metadata(from),
        _ => fs::symlink_metadata(from),
    };
    let status = status.with_context(named)?;
    let mode = status.permissions().mode() & 0o777;
    let modified = (status.mtime(), status.mtime_nsec() as u32);
    if status.is_file() {
        let mut file = File::options()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(from)
            .with_context(named)?;
        files.write(to, mode, &mut file).with_context(named)?;
        files.describe(to, mode, modified).with_context(named)?;
        copied.files += 1;
        copied.bytes += status.len();
    } else if status.is_dir() {
        if depth == DEPTH_MAX {
            bail!("{} is too deep", named());
        }
        files.make_directory(to, mode | 0o700).with_context(named)?;
        copied.directories += 1;
        for entry in fs::read_dir(from).with_context(named)? {
            let name = entry.with_context(named)?.file_name();
            let inside = [to, b"/", name.as_bytes()].concat();
            bring_in_one(files, &from.join(name), &inside, depth + 1, copied)?;
        }
        files.describe(to, mode, modified).with_context(named)?;
    } else if status.is_symlink() {
        let target = fs::read_link(from).with_context(named)?.into_os_string();
        files
            .make_link(to, &target.into_vec())
            .with_context(named)?;
        copied.links += 1;
    } else {
        copied.leave_out(
            from.as_os_str().as_bytes(),
            "it is no file, directory or link",
        );
    }
    Ok(())
}
