//! Attacks on the caller's terminal and standard streams: PR6.
//!
//! Typing into a terminal that is private does no harm, so where a call
//! succeeds the check outside decides.

use super::{attacks, open};
use crate::verdict::error_name;
use crate::{Stage, Verdict};
use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use stockade_sys::hostile;

/// What is typed plainly, and what is typed with high bits set: outside it is
/// read back, to tell the attacks apart. Both are comments to a shell.
pub(crate) const TYPED: &str = "#typed by an attack\n";
pub(crate) const TYPED_HIGH: &str = "#typed by an attack with high bits\n";

attacks! {
    PR6 "pr6-type", Terminal, Plain, "types into the terminal (TIOCSTI)"
        => |stage| on_terminals(stage, |file| type_text(file, TYPED, 0));
    PR6 "pr6-type-high-bits", Terminal, Plain, "types with bits set that the kernel drops"
        => |stage| on_terminals(stage, |file| type_text(file, TYPED_HIGH, 1));
    PR6 "pr6-paste", Terminal, Never("needs a virtual console"), "pastes a selection (TIOCLINUX)"
        => |stage| on_terminals(stage, |file| hostile::tioclinux(file.as_fd()));
    PR6 "pr6-discipline", Terminal, Never("sets what is set, so nothing shows outside"),
        "changes the line discipline of the terminal"
        => |stage| on_terminals(stage, |file| hostile::tiocsetd(file.as_fd(), 0));
    PR6 "pr6-console", Terminal, Never("would redirect the console"),
        "takes the console's messages (TIOCCONS)"
        => |stage| on_terminals(stage, |file| hostile::tioccons(file.as_fd()));
    PR6 "pr6-leave-raw", Terminal, Plain, "leaves the terminal without echo"
        => |stage| on_terminals(stage, without_echo);
    PR6 "pr6-reopen-input", Ordinary, Plain, "opens read-only standard input again for writing"
        => reopen;
    PR6 "pr6-shared-flags", Ordinary, Plain,
        "makes the caller's standard input non-blocking" => flags;
}

/// Every way to a terminal that a process has; without a sandbox only its own.
fn terminals(stage: &Stage) -> Vec<File> {
    let own = ["/proc/self/fd/0", "/proc/self/fd/2", "/dev/tty"];
    let others = ["/dev/console", "/dev/tty0", "/dev/tty1"]
        .into_iter()
        .map(str::to_owned);
    let others = others.chain((0..16).map(|number| format!("/dev/pts/{number}")));
    let others = others.filter(|_| !stage.unconfined);
    own.into_iter()
        .map(str::to_owned)
        .chain(others)
        .filter_map(|path| open(Path::new(&path), OFlags::RDWR).ok())
        .chain(
            rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)
                .ok()
                .map(File::from),
        )
        .filter(|file| rustix::termios::isatty(file))
        .collect()
}

fn on_terminals(stage: &Stage, attempt: impl Fn(&File) -> io::Result<()>) -> Verdict {
    Verdict::all(
        terminals(stage)
            .iter()
            .map(|terminal| match attempt(terminal) {
                Ok(()) => {
                    Verdict::Inconclusive("done; outside it shows whose terminal it was".into())
                }
                Err(error) => Verdict::Stopped(error_name(&error)),
            }),
    )
}

fn type_text(terminal: &File, text: &str, high_bits: u32) -> io::Result<()> {
    text.bytes()
        .try_for_each(|byte| hostile::tiocsti(terminal.as_fd(), byte, high_bits))
}

fn without_echo(terminal: &File) -> io::Result<()> {
    let mut modes = rustix::termios::tcgetattr(terminal)?;
    modes.local_modes.remove(rustix::termios::LocalModes::ECHO);
    // A background process that changes modes would be stopped.
    hostile::ignore_signals();
    Ok(rustix::termios::tcsetattr(
        terminal,
        rustix::termios::OptionalActions::Now,
        &modes,
    )?)
}

fn host_input(stage: &Stage) -> Option<Verdict> {
    match std::fs::metadata("/proc/self/fd/0") {
        Ok(found) if (found.dev(), found.ino()) == stage.stdin => None,
        Ok(_) => Some(Verdict::Stopped(
            "standard input is not the host's object".into(),
        )),
        Err(error) => Some(Verdict::refused(&error)),
    }
}

fn reopen(stage: &Stage) -> Verdict {
    host_input(stage).unwrap_or_else(|| super::open_for_writing("/proc/self/fd/0"))
}

fn flags(stage: &Stage) -> Verdict {
    if let Some(verdict) = host_input(stage) {
        return verdict;
    }
    let change = || -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(io::stdin())? | OFlags::NONBLOCK;
        Ok(rustix::fs::fcntl_setfl(io::stdin(), flags)?)
    };
    match change() {
        Ok(()) => Verdict::Inconclusive("set; outside it shows whether it is shared".into()),
        Err(error) => Verdict::refused(&error),
    }
}
