//! The kernel behind a session: processes, terminals and files.

use core::ffi::CStr;
use core::mem::MaybeUninit;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, SeekFrom, Timestamps, UTIME_OMIT, chmodat,
    fcntl_getfl, fcntl_setfl, fstat, ftruncate, inotify, mkdirat, openat, seek, statat, symlinkat,
    utimensat,
};
use rustix::io;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Signal, WaitOptions, chdir, ioctl_tiocsctty, kill_process, kill_process_group, setsid,
    wait,
};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};
use stockade_agent::files::{self, Entry, Kind, RECORD_BYTES_MAX};
use stockade_agent::system::{Change, Errno, Stage, Started, System};
use stockade_agent::wire::{
    ExecSpec, FileRequest, Met, PATH_BYTES_MAX, Size, Status, User, Write, strings,
};

use crate::confine::Confinement;
use crate::raw::{self, Program};

/// The kernel of this machine.
#[derive(Debug)]
pub struct Kernel {
    /// What commands take on, where the agent itself is not confined.
    pub confinement: Option<Confinement>,
}

const NOENT: Errno = Errno(2);
const NOEXEC: Errno = Errno(8);
const ACCES: Errno = Errno(13);
const NOTDIR: Errno = Errno(20);
const NAMETOOLONG: Errno = Errno(36);

/// A clock that is so little wrong is left as it is.
const TOLERANCE_NANOSECONDS: i64 = 200_000_000;

/// What execvp(3) takes for a missing PATH.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

fn plain(error: io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

/// A path with a NUL behind it.
struct PathBuffer([u8; PATH_BYTES_MAX + 1]);

impl PathBuffer {
    fn new() -> Self {
        Self([0; PATH_BYTES_MAX + 1])
    }

    /// The parts one behind the other.
    fn set(&mut self, parts: &[&[u8]]) -> Result<&CStr, Errno> {
        let mut end = 0;
        for part in parts {
            let target = self.0[..PATH_BYTES_MAX].get_mut(end..end + part.len());
            target.ok_or(NAMETOOLONG)?.copy_from_slice(part);
            end += part.len();
        }
        self.0[end] = 0;
        CStr::from_bytes_until_nul(&self.0).map_err(|_| Errno::INVAL)
    }
}

/// The command's side of its streams.
struct Streams {
    input: OwnedFd,
    output: OwnedFd,
    error: Option<OwnedFd>,
    is_terminal: bool,
}

impl System for Kernel {
    type Handle = OwnedFd;

    fn start(&mut self, spec: &ExecSpec<'_>) -> Result<Started<OwnedFd>, Errno> {
        let (status, failed) = pipe_with(PipeFlags::CLOEXEC).map_err(plain)?;
        never_wait(&status)?;
        let (theirs, input, output, error) = streams(spec).map_err(plain)?;
        let process = raw::fork(|| {
            let (stage, Errno(errno)) = become_command(spec, &theirs, self.confinement.as_ref());
            let mut answer = [0; 8];
            answer[..4].copy_from_slice(&errno.to_le_bytes());
            answer[4..].copy_from_slice(&(stage as i32).to_le_bytes());
            // When even this fails, the exit code still says so.
            let _written = io::write(&failed, &answer).is_ok();
        })?;
        Ok(Started {
            process,
            status,
            input,
            output,
            error,
        })
    }

    fn read(&mut self, from: &OwnedFd, buffer: &mut [u8]) -> Result<usize, Errno> {
        io::read(from, buffer).map_err(plain)
    }

    fn write(&mut self, to: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
        io::write(to, bytes).map_err(plain)
    }

    fn waiting(&mut self, handle: &OwnedFd) -> Option<usize> {
        let waiting = io::ioctl_fionread(handle).ok()?;
        usize::try_from(waiting).ok()
    }

    fn resize(&mut self, terminal: &OwnedFd, size: Size) -> Result<(), Errno> {
        tcsetwinsize(terminal, winsize(size)).map_err(plain)
    }

    fn signal(&mut self, process: u32, number: i32, group: bool) {
        let process = i32::try_from(process).ok().and_then(Pid::from_raw);
        if let (Some(process), Some(signal)) = (process, Signal::from_named_raw(number)) {
            // Who is gone needs no signal.
            let _gone = match group {
                true => kill_process_group(process, signal),
                false => kill_process(process, signal),
            }
            .is_err();
        }
    }

    fn changed(&mut self) -> Option<(u32, Change)> {
        loop {
            let (process, status) = match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(changed) => changed?,
                Err(io::Errno::INTR) => continue,
                Err(_) => return None,
            };
            let change = if let Some(code) = status.exit_status() {
                Change::Ended(Status::Exited(code))
            } else if let Some(signal) = status.terminating_signal() {
                let core = status.as_raw() & 0x80 != 0;
                Change::Ended(Status::Killed { signal, core })
            } else if let Some(signal) = status.stopping_signal() {
                Change::Stopped(signal)
            } else {
                continue;
            };
            return Some((process.as_raw_nonzero().get().unsigned_abs(), change));
        }
    }

    fn open(&mut self, request: &FileRequest<'_>) -> Result<OwnedFd, Errno> {
        let mut buffer = PathBuffer::new();
        match *request {
            FileRequest::Read { path, offset, .. } => {
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
                let file = regular(buffer.set(&[path])?, flags, Mode::empty())?;
                seek(&file, SeekFrom::Start(offset)).map_err(plain)?;
                Ok(file)
            }
            FileRequest::Write { path, mode, how } => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY;
                let flags = match how {
                    Write::Replace => flags,
                    Write::Append => flags | OFlags::APPEND,
                    Write::New => flags | OFlags::EXCL,
                };
                let mode = Mode::from_raw_mode(mode & 0o7777);
                let file = regular(buffer.set(&[path])?, flags, mode)?;
                // Not O_TRUNC: what is no regular file is left as it is.
                if how == Write::Replace {
                    ftruncate(&file, 0).map_err(plain)?;
                }
                Ok(file)
            }
            FileRequest::List { path } => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                openat(CWD, buffer.set(&[path])?, flags, Mode::empty()).map_err(plain)
            }
            FileRequest::Watch { path } => {
                let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
                let watch = inotify::init(flags).map_err(plain)?;
                let of = inotify::WatchFlags::ALL_EVENTS
                    .difference(inotify::WatchFlags::ACCESS | inotify::WatchFlags::OPEN);
                inotify::add_watch(&watch, buffer.set(&[path])?, of).map_err(plain)?;
                Ok(watch)
            }
            _ => Err(Errno::INVAL),
        }
    }

    fn make(&mut self, request: &FileRequest<'_>) -> Result<(), Errno> {
        let mut buffer = PathBuffer::new();
        let path = buffer.set(&[request.path()])?;
        let permissions = |mode: u32| Mode::from_raw_mode(mode & 0o7777);
        match *request {
            FileRequest::Directory { mode, .. } => {
                mkdirat(CWD, path, permissions(mode)).map_err(plain)
            }
            FileRequest::Link { target, .. } => {
                let mut buffer = PathBuffer::new();
                symlinkat(buffer.set(&[target])?, CWD, path).map_err(plain)
            }
            FileRequest::Describe {
                mode,
                seconds,
                nanoseconds,
                ..
            } => {
                chmodat(CWD, path, permissions(mode), AtFlags::empty()).map_err(plain)?;
                let times = Timestamps {
                    last_access: Timespec {
                        tv_sec: 0,
                        tv_nsec: UTIME_OMIT,
                    },
                    last_modification: Timespec {
                        tv_sec: seconds,
                        tv_nsec: nanoseconds.into(),
                    },
                };
                utimensat(CWD, path, &times, AtFlags::empty()).map_err(plain)
            }
            _ => Err(Errno::INVAL),
        }
    }

    fn records(
        &mut self,
        of: &OwnedFd,
        cookie: &mut u64,
        buffer: &mut [u8],
    ) -> Result<usize, Errno> {
        match FileType::from_raw_mode(fstat(of).map_err(plain)?.st_mode) {
            FileType::Directory => entries(of, cookie, buffer),
            _ => changes(of, buffer),
        }
    }

    fn set_clock(&mut self, seconds: i64, nanoseconds: u32) -> Result<(), Errno> {
        let time = Timespec {
            tv_sec: seconds,
            tv_nsec: nanoseconds.into(),
        };
        // What is said was so a moment ago: a clock that is right stays ahead.
        let ahead = clock_gettime(ClockId::Realtime) - time;
        if (ahead.tv_sec == 0 && ahead.tv_nsec < TOLERANCE_NANOSECONDS)
            || (ahead.tv_sec == -1 && ahead.tv_nsec > 1_000_000_000 - TOLERANCE_NANOSECONDS)
        {
            return Ok(());
        }
        clock_settime(ClockId::Realtime, time).map_err(plain)
    }

    fn met(&mut self) -> Met {
        self.confinement
            .as_mut()
            .map_or(Met::NONE, Confinement::met)
    }
}

fn never_wait(ours: &OwnedFd) -> Result<(), Errno> {
    let flags = fcntl_getfl(ours).map_err(plain)?;
    fcntl_setfl(ours, flags | OFlags::NONBLOCK).map_err(plain)
}

fn winsize(size: Size) -> Winsize {
    Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

type Ends = (Streams, Option<OwnedFd>, OwnedFd, Option<OwnedFd>);

/// The other side of a terminal; by its name in a kernel that knows no other way
/// (gVisor).
fn peer(master: &OwnedFd, flags: OpenptFlags) -> io::Result<OwnedFd> {
    match ioctl_tiocgptpeer(master, flags) {
        Err(io::Errno::NOTTY) => {}
        other => return other,
    }
    let number =
        raw::terminal_number(master).map_err(|Errno(errno)| io::Errno::from_raw_os_error(errno))?;
    // Ten digits at most.
    let (mut digits, mut first, mut rest) = ([0; 10], 10, number);
    while first == 10 || rest > 0 {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let mut buffer = PathBuffer::new();
    let path = buffer.set(&[b"/dev/pts/", &digits[first..]]);
    let path = path.map_err(|_| io::Errno::NAMETOOLONG)?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty())
}

/// The command's side, and ours: input, output, error.
fn streams(spec: &ExecSpec<'_>) -> io::Result<Ends> {
    let ours = |fd: OwnedFd| {
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        Ok::<_, io::Errno>(fd)
    };
    if let Some(size) = spec.terminal {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        unlockpt(&master)?;
        let peer = peer(&master, flags)?;
        tcsetwinsize(&master, winsize(size))?;
        let output = io::fcntl_dupfd_cloexec(&peer, 4)?;
        let theirs = Streams {
            input: peer,
            output,
            error: None,
            is_terminal: true,
        };
        return Ok((theirs, None, ours(master)?, None));
    }
    let (input, ours_in) = match spec.input {
        true => {
            let (theirs, mine) = pipe_with(PipeFlags::CLOEXEC)?;
            (theirs, Some(ours(mine)?))
        }
        false => {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            (openat(CWD, c"/dev/null", flags, Mode::empty())?, None)
        }
    };
    let (ours_out, output) = pipe_with(PipeFlags::CLOEXEC)?;
    let (ours_error, error) = match spec.merged {
        true => (None, None),
        false => {
            let (mine, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
            (Some(ours(mine)?), Some(theirs))
        }
    };
    let theirs = Streams {
        input,
        output,
        error,
        is_terminal: false,
    };
    Ok((theirs, ours_in, ours(ours_out)?, ours_error))
}

/// In the new process: everything up to the command itself. Returns only what
/// failed.
fn become_command(
    spec: &ExecSpec<'_>,
    streams: &Streams,
    confinement: Option<&Confinement>,
) -> (Stage, Errno) {
    let streams = setsid()
        .map_err(plain)
        .and_then(|_| take_streams(streams))
        .and_then(|()| raw::release_signals());
    if let Err(error) = streams {
        return (Stage::Streams, error);
    }
    if !spec.directory.is_empty() {
        let mut buffer = PathBuffer::new();
        let entered = buffer
            .set(&[spec.directory])
            .and_then(|path| chdir(path).map_err(plain));
        if let Err(error) = entered {
            return (Stage::Directory, error);
        }
    }
    if let Some(user) = spec.user
        && let Err(error) = become_user(user)
    {
        return (Stage::User, plain(error));
    }
    if let Some(confinement) = confinement
        && let Err(error) = confinement.take()
    {
        return (Stage::Confine, error);
    }
    (Stage::Execute, search(spec))
}

fn take_streams(streams: &Streams) -> Result<(), Errno> {
    let error = streams.error.as_ref().unwrap_or(&streams.output);
    raw::become_standard(streams.input.as_fd(), 0)?;
    raw::become_standard(streams.output.as_fd(), 1)?;
    raw::become_standard(error.as_fd(), 2)?;
    match streams.is_terminal {
        true => ioctl_tiocsctty(&streams.input).map_err(plain),
        false => Ok(()),
    }
}

fn become_user(user: User) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    set_thread_groups(&[gid])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

/// Executes the command, found as execvp(3) finds it: itself when it has a
/// slash, else in each absolute entry of its PATH.
fn search(spec: &ExecSpec<'_>) -> Errno {
    let mut buffer = PathBuffer::new();
    let Some(name) = strings(spec.arguments)
        .next()
        .filter(|name| !name.is_empty())
    else {
        return NOENT;
    };
    if name.contains(&b'/') {
        return match buffer.set(&[name]) {
            Ok(path) => execute(path, spec),
            Err(error) => error,
        };
    }
    let path = |variable: &'static [u8]| variable.strip_prefix(b"PATH=");
    let own = raw::environment().find_map(|variable| path(variable.to_bytes()));
    let given = strings(spec.environment).find_map(|variable| variable.strip_prefix(b"PATH="));
    let directories = given.or(own).unwrap_or(DEFAULT_PATH);
    let mut result = NOENT;
    for directory in directories.split(|&byte| byte == b':') {
        if directory.first() != Some(&b'/') {
            continue;
        }
        let Ok(path) = buffer.set(&[directory, b"/", name]) else {
            continue;
        };
        match execute(path, spec) {
            NOENT | NOTDIR => {}
            // A shell goes on looking and reports this one if nothing fits.
            ACCES => result = ACCES,
            error => return error,
        }
    }
    result
}

fn execute(path: &CStr, spec: &ExecSpec<'_>) -> Errno {
    let program = Program {
        interpreter: &[],
        arguments: spec.arguments,
        environment: spec.environment,
    };
    match raw::execute(path, &program) {
        // A script without `#!`: a shell runs it itself (execvp(3)).
        NOEXEC => raw::execute(
            c"/bin/sh",
            &Program {
                interpreter: &[c"/bin/sh", path],
                ..program
            },
        ),
        error => error,
    }
}

/// Opens a regular file; anything else could keep the agent waiting.
fn regular(path: &CStr, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let file = openat(CWD, path, flags | OFlags::CLOEXEC, mode).map_err(plain)?;
    match FileType::from_raw_mode(fstat(&file).map_err(plain)?.st_mode) {
        FileType::RegularFile => Ok(file),
        _ => Err(Errno::INVAL),
    }
}

/// Records of a directory from `cookie` on.
fn entries(directory: &OwnedFd, cookie: &mut u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    // Room for one entry is enough for progress.
    let mut space = [MaybeUninit::uninit(); 4096];
    seek(directory, SeekFrom::Start(*cookie)).map_err(plain)?;
    let mut names = RawDir::new(directory, &mut space);
    let mut used = 0;
    while buffer.len() - used >= RECORD_BYTES_MAX {
        let entry = match names.next() {
            None => break,
            Some(Err(error)) => return Err(plain(error)),
            Some(Ok(entry)) => entry,
        };
        *cookie = entry.next_entry_cookie();
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        // What was removed meanwhile is not there.
        let Ok(found) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        let entry = Entry {
            name: name.to_bytes(),
            kind: match FileType::from_raw_mode(found.st_mode) {
                FileType::RegularFile => Kind::File,
                FileType::Directory => Kind::Directory,
                FileType::Symlink => Kind::Link,
                _ => Kind::Other,
            },
            mode: found.st_mode & 0o7777,
            uid: found.st_uid,
            gid: found.st_gid,
            bytes: found.st_size.unsigned_abs(),
            modified: found.st_mtime,
        };
        used += files::put(&entry, &mut buffer[used..]).unwrap_or(0);
    }
    Ok(used)
}

/// Records of what happened to a watched path.
fn changes(watch: &OwnedFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    // Never more than the records of which fit: an event here is no longer
    // than 16 bytes and its name.
    let mut space = [MaybeUninit::uninit(); RECORD_BYTES_MAX];
    let mut events = inotify::Reader::new(watch, &mut space);
    let mut used = 0;
    while buffer.len() - used >= RECORD_BYTES_MAX {
        if used > 0 && events.is_buffer_empty() {
            break;
        }
        let event = match events.next() {
            Ok(event) => event,
            Err(_) if used > 0 => break,
            Err(error) => return Err(plain(error)),
        };
        let change = files::Change {
            name: event.file_name().map_or(&[], CStr::to_bytes),
            mask: event.events().bits(),
            cookie: event.cookie(),
        };
        used += files::put(&change, &mut buffer[used..]).unwrap_or(0);
    }
    Ok(used)
}
