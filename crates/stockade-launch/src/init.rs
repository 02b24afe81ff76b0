//! The launcher after the gate: starts the command and stays as the init of
//! its pid namespace until the command ends.
//!
//! When init ends, the kernel kills everything else in the namespace
//! (pid_namespaces(7)), so whatever the command left behind ends with it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use stockade_sys::process::{self, Change, SignalTarget};
use stockade_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use stockade_sys::rustix::fs::{CWD, Mode, OFlags, openat, statvfs};
use stockade_sys::rustix::io::Errno;
use stockade_sys::rustix::process::{ioctl_tiocsctty, setpgid, setsid, umask};
use stockade_sys::{signal, terminal};

use crate::wire::{Assignment, End, Limit, Report, Request, Stream, Usage, Watch};
use crate::{receive, send};

/// Runs the command and reports its end.
pub(crate) fn run(
    control: BorrowedFd<'_>,
    assignment: &Assignment,
    terminal: Option<OwnedFd>,
) -> io::Result<()> {
    let signals = signal::Signals::take_over(&[signal::CHILD])?;
    // Without a session of its own a command that gets a terminal could type
    // into another session's.
    if std::process::id() == 1 {
        setsid()?;
    }
    if let Some(terminal) = &terminal {
        ioctl_tiocsctty(terminal)?;
    }
    let command = match start(assignment, terminal.as_ref()) {
        Ok(command) => command,
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(0);
            return send(control, &Report::NotExecuted { errno }, None);
        }
    };
    close_streams(assignment);
    send(control, &Report::Started, None)?;
    let mut keeper = Keeper {
        control,
        command,
        terminal,
        watch: assignment.watch,
        usage: Usage::default(),
    };
    let end = keeper.wait(&signals)?;
    keeper.note_full_storage();
    let (largest, cpu_micros) = process::usage_of_children();
    keeper.usage.peak_memory_bytes = keeper.usage.peak_memory_bytes.max(largest);
    keeper.usage.cpu_micros = cpu_micros;
    send(
        control,
        &Report::Ended {
            end,
            usage: keeper.usage,
        },
        None,
    )
}

/// Forks the command; fails with the error of execve(2) if it cannot run.
fn start(assignment: &Assignment, terminal: Option<&OwnedFd>) -> io::Result<u32> {
    let (status, failed) =
        stockade_sys::rustix::pipe::pipe_with(stockade_sys::rustix::pipe::PipeFlags::CLOEXEC)?;
    match process::fork()? {
        None => {
            drop(status);
            let error = become_command(assignment, terminal);
            let code = error.raw_os_error().unwrap_or(0).to_ne_bytes();
            // When even this fails, the exit code still says so.
            let _written = stockade_sys::rustix::io::write(&failed, &code).is_ok();
            process::exit_now(127)
        }
        Some(command) => {
            drop(failed);
            let mut code = [0u8; 4];
            match stockade_sys::rustix::io::read(&status, &mut code)? {
                0 => Ok(command),
                _ => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(code))),
            }
        }
    }
}

/// In the child: streams, group, signals, exec. Returns only an error.
fn become_command(assignment: &Assignment, terminal: Option<&OwnedFd>) -> io::Error {
    match prepare_command(assignment, terminal) {
        Ok(()) => execute(assignment),
        Err(error) => error,
    }
}

fn prepare_command(assignment: &Assignment, terminal: Option<&OwnedFd>) -> io::Result<()> {
    setpgid(None, None)?;
    if let Some(terminal) = terminal {
        signal::ignore(stockade_sys::signal::TERMINAL_OUTPUT);
        terminal::set_foreground(terminal.as_fd(), std::process::id())?;
    }
    for (number, stream) in (0i32..).zip(assignment.streams) {
        let source = match stream {
            Stream::Descriptor(source) => source,
            Stream::Terminal => terminal
                .map(AsRawFd::as_raw_fd)
                .ok_or_else(|| io::Error::other("there is no terminal"))?,
            Stream::Null => {
                let flags = if number == 0 {
                    OFlags::RDONLY
                } else {
                    OFlags::WRONLY
                };
                let null = openat(CWD, "/dev/null", flags | OFlags::CLOEXEC, Mode::empty())?;
                process::become_standard(null.as_raw_fd(), number)?;
                continue;
            }
        };
        process::become_standard(source, number)?;
    }
    umask(Mode::from_raw_mode(assignment.umask));
    signal::reset_all()
}

/// Finds the program as execvp(3) does, in the view and the environment of the
/// command, and becomes it.
fn execute(assignment: &Assignment) -> io::Error {
    let strings = || -> Option<(Vec<CString>, Vec<CString>)> {
        let arguments = assignment
            .argv
            .iter()
            .map(|argument| CString::new(argument.as_slice()));
        let environment = assignment
            .environment
            .iter()
            .map(|(name, value)| CString::new([name.as_slice(), b"=", value.as_slice()].concat()));
        Some((
            arguments.collect::<Result<_, _>>().ok()?,
            environment.collect::<Result<_, _>>().ok()?,
        ))
    };
    let Some((arguments, environment)) = strings() else {
        return Errno::INVAL.into();
    };
    let Some(name) = assignment.argv.first().filter(|name| !name.is_empty()) else {
        return Errno::NOENT.into();
    };
    let mut result = Errno::NOENT.into();
    for candidate in candidates(name, &assignment.environment) {
        let Ok(program) = CString::new(candidate) else {
            continue;
        };
        let error = process::execute(&program, &arguments, &environment);
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT | Errno::NOTDIR) => {}
            // A shell goes on looking and reports this one if nothing else fits.
            Some(Errno::ACCESS) => result = error,
            Some(Errno::NOEXEC) => {
                // A script without `#!`: a shell runs it itself (execvp(3)).
                let mut shell = vec![c"/bin/sh".to_owned(), program];
                shell.extend(arguments.into_iter().skip(1));
                return process::execute(c"/bin/sh", &shell, &environment);
            }
            _ => return error,
        }
    }
    result
}

/// Where a command name may be found: itself when it has a slash, else each
/// absolute entry of PATH.
fn candidates(name: &[u8], environment: &[(Vec<u8>, Vec<u8>)]) -> Vec<Vec<u8>> {
    if name.contains(&b'/') {
        return vec![name.to_vec()];
    }
    let path = environment
        .iter()
        .find(|(variable, _)| variable == b"PATH")
        .map_or(&b"/usr/local/bin:/usr/bin:/bin"[..], |(_, value)| value);
    path.split(|&byte| byte == b':')
        .filter(|directory| directory.first() == Some(&b'/'))
        .map(|directory| [directory, b"/", name].concat())
        .collect()
}

/// Closes the launcher's copies of the command's streams, so that a reader
/// outside sees the end when the command closes them.
fn close_streams(assignment: &Assignment) {
    let mut numbers: Vec<i32> = assignment
        .streams
        .iter()
        .filter_map(|stream| match stream {
            Stream::Descriptor(number) => Some(*number),
            _ => None,
        })
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    for number in numbers {
        process::close_number(number);
    }
}

/// Waits for the command, hands signals on and watches limits.
struct Keeper<'a> {
    control: BorrowedFd<'a>,
    command: u32,
    terminal: Option<OwnedFd>,
    watch: Watch,
    usage: Usage,
}

impl Keeper<'_> {
    fn wait(&mut self, signals: &signal::Signals) -> io::Result<End> {
        let interval = self.interval().map(|interval| Timespec {
            tv_sec: interval.as_secs() as i64,
            tv_nsec: i64::from(interval.subsec_nanos()),
        });
        let mut last_sample = Instant::now();
        loop {
            let control = self.control;
            let mut descriptors = [
                PollFd::new(&control, PollFlags::IN),
                PollFd::new(signals, PollFlags::IN),
            ];
            match poll(&mut descriptors, interval.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let asked = !descriptors[0].revents().is_empty();
            let changed = !descriptors[1].revents().is_empty();
            if let (Some(interval), false) = (self.interval(), changed)
                && last_sample.elapsed() >= interval
            {
                last_sample = Instant::now();
                if let Some(limit) = self.sample() {
                    return Ok(End::Limit(limit));
                }
            }
            if changed && let Some(end) = self.reap(signals)? {
                return Ok(end);
            }
            if asked {
                self.obey()?;
            }
        }
    }

    /// How often to sample; never when nothing is watched, so that an idle
    /// sandbox costs nothing.
    fn interval(&self) -> Option<Duration> {
        let watched = self.watch.memory_bytes_max.is_some() || self.watch.processes_max.is_some();
        watched.then(|| Duration::from_millis(u64::from(self.watch.interval_ms)))
    }

    fn reap(&mut self, signals: &signal::Signals) -> io::Result<Option<End>> {
        while signals.next()?.is_some() {}
        while let Some((pid, change)) = process::reap_one()? {
            if pid != self.command {
                continue;
            }
            match change {
                Change::Exited(code) => return Ok(Some(End::Exited(code))),
                Change::Killed { signal, core } => return Ok(Some(End::Killed { signal, core })),
                Change::Stopped(signal) => {
                    if self.terminal.is_some() {
                        send(self.control, &Report::Stopped { signal }, None)?;
                    }
                }
            }
        }
        Ok(None)
    }

    /// Performs one request; an error when the supervisor is gone, which ends
    /// the launcher and with it the sandbox.
    fn obey(&mut self) -> io::Result<()> {
        match receive(self.control)? {
            Some(Request::Signal { number, group }) => {
                let target = if group {
                    SignalTarget::Group
                } else {
                    SignalTarget::Process
                };
                match process::send_signal(self.command, number, target) {
                    // The command ended in this moment; its end is on its way.
                    Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {
                        Ok(())
                    }
                    other => other,
                }
            }
            Some(_) => Err(io::ErrorKind::InvalidInput.into()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Sums what all processes inside use; the limit that was passed, if any.
    fn sample(&mut self) -> Option<Limit> {
        let (memory, threads) = used_inside();
        self.usage.peak_memory_bytes = self.usage.peak_memory_bytes.max(memory);
        if self
            .watch
            .processes_max
            .is_some_and(|limit| threads >= limit)
        {
            self.note(Limit::Processes);
        }
        if self
            .watch
            .memory_bytes_max
            .is_some_and(|limit| memory > limit)
        {
            self.note(Limit::Memory);
            return Some(Limit::Memory);
        }
        None
    }

    /// The private directories share one file system; when it is full at the
    /// end, that limit was met.
    fn note_full_storage(&mut self) {
        if let Ok(storage) = statvfs("/tmp")
            && storage.f_blocks > 0
            && (storage.f_bavail == 0 || storage.f_favail == 0)
            && std::process::id() == 1
        {
            self.note(Limit::Disk);
        }
    }

    fn note(&mut self, limit: Limit) {
        if !self.usage.limits_met.contains(&limit) {
            self.usage.limits_met.push(limit);
        }
    }
}

/// Memory that only processes inside use, in bytes (resident less shared file
/// pages, plus the private directories), and their number of threads.
fn used_inside() -> (u64, u64) {
    let mut pages = 0;
    let mut threads = 0;
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return (0, 0);
    };
    for entry in entries.flatten() {
        if !entry.file_name().as_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        if let Ok(statm) = std::fs::read_to_string(entry.path().join("statm")) {
            let mut fields = statm
                .split(' ')
                .skip(1)
                .map(|field| field.parse::<u64>().unwrap_or(0));
            let (resident, shared) = (fields.next().unwrap_or(0), fields.next().unwrap_or(0));
            pages += resident.saturating_sub(shared);
        }
        threads +=
            std::fs::read_dir(entry.path().join("task")).map_or(0, |tasks| tasks.count() as u64);
    }
    let stored = statvfs("/tmp").map_or(0, |storage| {
        (storage.f_blocks - storage.f_bfree.min(storage.f_blocks)) * storage.f_frsize
    });
    (
        pages * stockade_sys::rustix::param::page_size() as u64 + stored,
        threads,
    )
}
