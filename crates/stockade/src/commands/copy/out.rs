//! Out of a sandbox. Whatever comes may be hostile, and a command inside may
//! change the target's directories at the same time: everything is made new,
//! by descriptors, and no link is followed below the place that a person named.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, bail};
use stockade_engine::sandboxes::files::{FileError, Files, Kind, Listed};
use stockade_policy::guard::{Guard, Strength};
use stockade_policy::path::printable;
use stockade_sys::rustix::fs::{
    CWD, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, fchmod, futimens, mkdirat, openat,
};

use super::{Copied, DEPTH_MAX};

/// What may come out.
pub(super) struct Terms<'a> {
    /// Names that are left out; `None` for none.
    pub(super) guard: Option<&'a Guard>,
    /// The project that these are below.
    pub(super) workspace: &'a Path,
    pub(super) bytes_max: u64,
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

struct Copy<'a> {
    files: Files<'a>,
    terms: &'a Terms<'a>,
    copied: Copied,
}

/// One thing inside and its place outside.
struct Step<'a> {
    inside: &'a [u8],
    parent: BorrowedFd<'a>,
    name: &'a [u8],
    /// As the guard knows it.
    path: &'a [u8],
}

/// Copies a file or directory, with all that is in it.
pub(super) fn copy(
    files: Files<'_>,
    path: &[u8],
    to: &Path,
    terms: &Terms<'_>,
) -> anyhow::Result<Copied> {
    let base = path
        .split(|&byte| byte == b'/')
        .rfind(|name| !name.is_empty());
    let base = base.filter(|name| ![&b"."[..], b".."].contains(name));
    let (parent, name) = match to.is_dir() {
        true => (
            to.to_owned(),
            base.context("give the copy a name: TO is a directory")?
                .to_vec(),
        ),
        false => {
            let name = to.file_name().context("TO has no name")?;
            let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
            (
                parent.unwrap_or(Path::new(".")).to_owned(),
                name.as_bytes().to_vec(),
            )
        }
    };
    let named = || parent.display().to_string();
    let real = std::fs::canonicalize(&parent).with_context(named)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, &real, flags, Mode::empty()).with_context(named)?;
    let below = real.strip_prefix(terms.workspace).unwrap_or(Path::new(""));
    let guarded = join(below.as_os_str().as_bytes(), &name);
    let step = Step {
        inside: path,
        parent: directory.as_fd(),
        name: &name,
        path: &guarded,
    };
    let mut copy = Copy {
        files,
        terms,
        copied: Copied::default(),
    };
    match files.list(path) {
        Ok(entries) => copy.directory(&step, (0o755, None), entries, 0)?,
        Err(FileError::Inside { error, .. }) if error.kind() == io::ErrorKind::NotADirectory => {
            copy.file(&step, (0o644, None))?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(copy.copied)
}

fn join(parent: &[u8], name: &[u8]) -> Vec<u8> {
    match parent {
        b"" => name.to_vec(),
        _ => [parent, b"/", name].concat(),
    }
}

impl Copy<'_> {
    /// Whether a name is left out, which is then noted.
    fn is_held(&mut self, path: &[u8]) -> bool {
        let rule = self.terms.guard.and_then(|guard| guard.judge(path));
        let Some(rule) = rule.filter(|rule| rule.strength == Strength::Hold) else {
            return false;
        };
        let why = format!(
            "{}; --held copies it too",
            printable(rule.rule.reason.as_bytes())
        );
        self.copied.leave_out(path, &why);
        true
    }

    fn one(&mut self, step: &Step<'_>, entry: &Listed, depth: usize) -> anyhow::Result<()> {
        self.copied.tell();
        let what = (entry.mode, Some(entry.modified));
        match entry.kind {
            Kind::File => self.file(step, what),
            Kind::Directory if depth == DEPTH_MAX => {
                bail!("{} is too deep", printable(step.inside))
            }
            Kind::Directory => {
                let entries = self.files.list(step.inside);
                let entries = entries.with_context(|| printable(step.inside).to_string())?;
                self.directory(step, what, entries, depth)
            }
            Kind::Link => {
                self.copied.leave_out(step.path, "it is a link");
                Ok(())
            }
            Kind::Other => {
                self.copied
                    .leave_out(step.path, "it is no file or directory");
                Ok(())
            }
        }
    }

    fn file(&mut self, step: &Step<'_>, what: (u32, Option<i64>)) -> anyhow::Result<()> {
        if self.is_held(step.path) {
            return Ok(());
        }
        let named = || printable(step.path).to_string();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let made = openat(step.parent, step.name, flags | OFlags::CLOEXEC, mode);
        let file = made.with_context(|| format!("{} cannot be made", named()))?;
        let left = self.terms.bytes_max.saturating_sub(self.copied.bytes);
        let mut sink = Bounded {
            file: File::from(file),
            left,
        };
        let read = self.files.read(step.inside, &mut sink);
        self.copied.bytes += read.with_context(named)?;
        self.copied.files += 1;
        describe(sink.file.as_fd(), what).with_context(named)
    }

    fn directory(
        &mut self,
        step: &Step<'_>,
        what: (u32, Option<i64>),
        entries: Vec<Listed>,
        depth: usize,
    ) -> anyhow::Result<()> {
        let named = || printable(step.path).to_string();
        mkdirat(step.parent, step.name, Mode::RWXU)
            .with_context(|| format!("{} cannot be made", named()))?;
        let directory: OwnedFd =
            openat(step.parent, step.name, DIRECTORY, Mode::empty()).with_context(named)?;
        self.copied.directories += 1;
        for entry in &entries {
            let step = Step {
                inside: &join(step.inside, &entry.name),
                parent: directory.as_fd(),
                name: &entry.name,
                path: &join(step.path, &entry.name),
            };
            self.one(&step, entry, depth + 1)?;
        }
        describe(directory.as_fd(), what).with_context(named)
    }
}

/// Permission bits and time of modification, as far as they are known.
fn describe(of: BorrowedFd<'_>, (mode, modified): (u32, Option<i64>)) -> io::Result<()> {
    fchmod(of, Mode::from_raw_mode(mode & 0o777))?;
    let Some(seconds) = modified else {
        return Ok(());
    };
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: seconds,
            tv_nsec: 0,
        },
    };
    Ok(futimens(of, &times)?)
}

/// A file that takes no more than is left.
struct Bounded {
    file: File,
    left: u64,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            return Err(io::Error::other(
                "more comes out than --max-bytes allows\n  remedy: give more, or copy a part",
            ));
        }
        let written = self.file.write(bytes)?;
        self.left -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
