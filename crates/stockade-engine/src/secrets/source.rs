//! Sources that are read directly: a variable, a file, a command's output.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, geteuid, kill_process_group};
use stockade_egress::secret::SecretText;
use stockade_policy::path::{AbsolutePath, printable};
use zeroize::Zeroizing;

use super::{SECRET_BYTES_MAX, Trouble};

/// How long a command may take; password managers ask their user within it.
const COMMAND_WAIT: Duration = Duration::from_secs(10);

pub(super) fn variable(name: &str) -> Result<SecretText, Trouble> {
    let trouble = |reason: &str| Trouble {
        reason: format!("the variable {name} {reason}"),
        remedy: format!("set {name} in the environment of stockade; it does not reach the inside"),
    };
    let value = std::env::var_os(name).ok_or_else(|| trouble("is not set"))?;
    let value = value
        .into_string()
        .map_err(|_| trouble("is not valid UTF-8"))?;
    if value.is_empty() {
        return Err(trouble("is empty"));
    }
    Ok(SecretText::new(value))
}

/// A file that only its owner can read, reached without following any link: a
/// link in a directory that the sandbox may write would let what runs inside
/// choose which file of the user's is sent out.
pub(super) fn file(path: &AbsolutePath) -> Result<SecretText, Trouble> {
    let shown = path.to_string();
    let trouble = |reason: &str, remedy: String| Trouble {
        reason: format!("the file {shown} {reason}"),
        remedy,
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let handle =
        openat2(CWD, path.as_path(), flags, Mode::empty(), resolve).map_err(
            |errno| match errno {
                Errno::LOOP => trouble(
                    "is reached through a symbolic link",
                    format!("name the file itself: `realpath {shown}`"),
                ),
                Errno::NOENT => trouble("does not exist", "write the secret there".to_owned()),
                other => trouble(
                    &format!("cannot be opened: {}", std::io::Error::from(other)),
                    "let the user who runs stockade read it".to_owned(),
                ),
            },
        )?;
    let status = fstat(&handle).map_err(|errno| {
        trouble(
            &std::io::Error::from(errno).to_string(),
            "look at it".to_owned(),
        )
    })?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Err(trouble("is not a regular file", "name a file".to_owned()));
    }
    if status.st_mode & 0o077 != 0 {
        return Err(trouble(
            "can be accessed by others",
            format!("take that away: `chmod 600 {shown}`"),
        ));
    }
    if status.st_uid != geteuid().as_raw() && status.st_uid != 0 {
        return Err(trouble(
            "belongs to another user",
            "name a file of the user who runs stockade".to_owned(),
        ));
    }
    if status.st_nlink != 1 {
        return Err(trouble(
            "has a second name (a hard link)",
            "name a file with one name only".to_owned(),
        ));
    }
    let text = read_all(File::from(handle)).map_err(|reason| {
        trouble(
            &reason,
            format!("a secret is text of at most {SECRET_BYTES_MAX} bytes"),
        )
    })?;
    // Editors end the last line.
    let value = text.strip_suffix('\n').unwrap_or(&text);
    let value = value.strip_suffix('\r').unwrap_or(value);
    if value.is_empty() {
        return Err(trouble("is empty", "write the secret there".to_owned()));
    }
    Ok(SecretText::new(value.to_owned()))
}

/// The first line that a command prints. It is started without a shell, in the
/// root directory, with stockade's environment; its errors are not shown,
/// because they may quote the secret.
pub(super) fn command(argv: &[String], project: &AbsolutePath) -> Result<SecretText, Trouble> {
    let Some((name, arguments)) = argv.split_first() else {
        return Err(Trouble {
            reason: "its command is empty".to_owned(),
            remedy: "name a program".to_owned(),
        });
    };
    let shown = printable(name.as_bytes());
    let trouble = |reason: &str| Trouble {
        reason: format!("the command `{shown}` {reason}"),
        remedy: "run the command by hand and look at what it says".to_owned(),
    };
    let program = program(name, project).map_err(|reason| trouble(&reason))?;
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|error| trouble(&format!("cannot be started: {error}")))?;
    let output = output(&mut child);
    let group = Pid::from_child(&child);
    let ended = output.and_then(|output| {
        let status = child.wait().map_err(|error| error.to_string())?;
        Ok((output, status))
    });
    let (output, status) = ended.map_err(|reason| {
        // It is not waited for yet, so its group is still its own.
        let _gone = kill_process_group(group, Signal::KILL).is_err();
        let _unreaped = child.wait().is_err();
        trouble(&reason)
    })?;
    if !status.success() {
        return Err(trouble(&format!("failed ({status})")));
    }
    let line = output
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match str::from_utf8(line) {
        Ok("") => Err(trouble("printed nothing on its first line")),
        Ok(line) => Ok(SecretText::new(line.to_owned())),
        Err(_) => Err(trouble("printed something else than UTF-8 text")),
    }
}

/// Finds the program as execvp(3) would, but never in the project, where what
/// runs inside could have put one, and never relative to a directory.
fn program(name: &str, project: &AbsolutePath) -> Result<PathBuf, String> {
    let found = if name.starts_with('/') {
        PathBuf::from(name)
    } else if name.contains('/') {
        return Err("is named by a relative path; write the absolute one".to_owned());
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .filter(|directory| directory.is_absolute())
            .map(|directory| directory.join(name))
            .find(|candidate| candidate.is_file())
            .ok_or("is not in PATH")?
    };
    let resolved = found
        .canonicalize()
        .map_err(|error| format!("cannot be found: {error}"))?;
    let is_inside = |path: &Path| path.starts_with(project.as_path());
    if is_inside(&found) || is_inside(&resolved) {
        return Err("lies in the project, where a command inside could have put it".to_owned());
    }
    // Called by the name that was asked for: some programs look at it.
    Ok(found)
}

/// Everything that the child prints until it closes its output.
fn output(child: &mut Child) -> Result<Zeroizing<Vec<u8>>, String> {
    let mut stdout = child.stdout.take().ok_or("has no output")?;
    let started = Instant::now();
    let mut output = Zeroizing::new(Vec::new());
    let mut buffer = Zeroizing::new([0; 4096]);
    loop {
        let left = COMMAND_WAIT.saturating_sub(started.elapsed());
        let timeout = Timespec::try_from(left).map_err(|error| error.to_string())?;
        let mut polled = [PollFd::new(&stdout, PollFlags::IN)];
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) => return Err(format!("took longer than {} s", COMMAND_WAIT.as_secs())),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(std::io::Error::from(errno).to_string()),
        }
        let length = stdout
            .read(&mut *buffer)
            .map_err(|error| error.to_string())?;
        // The first line is enough: a tool that stays in the background may
        // hold the output open.
        let is_line = buffer[..length].contains(&b'\n');
        output.extend_from_slice(&buffer[..length]);
        if length == 0 || is_line {
            return wait_for_end(child, started).map(|()| output);
        }
        if output.len() > SECRET_BYTES_MAX {
            return Err(format!("printed more than {SECRET_BYTES_MAX} bytes"));
        }
    }
}

/// A child that has said its line must end in time as well.
fn wait_for_end(child: &mut Child, started: Instant) -> Result<(), String> {
    let mut pause = Duration::from_millis(1);
    while child
        .try_wait()
        .map_err(|error| error.to_string())?
        .is_none()
    {
        if started.elapsed() > COMMAND_WAIT {
            return Err(format!("took longer than {} s", COMMAND_WAIT.as_secs()));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    Ok(())
}

fn read_all(file: File) -> Result<Zeroizing<String>, String> {
    let mut text = Zeroizing::new(String::new());
    let limit = SECRET_BYTES_MAX as u64 + 1;
    file.take(limit)
        .read_to_string(&mut text)
        .map_err(|error| format!("cannot be read: {error}"))?;
    if text.len() > SECRET_BYTES_MAX {
        return Err("is too large".to_owned());
    }
    Ok(text)
}
