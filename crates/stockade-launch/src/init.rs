//! The launcher after the gate: starts the command and stays as the init of
//! its pid namespace until the command ends.
//!
//! When init ends, the kernel kills everything else in the namespace
//! (pid_namespaces(7)), so whatever the command left behind ends with it.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use stockade_sys::process::{self, Change, SignalTarget, Spawn};
use stockade_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use stockade_sys::rustix::fs::{Access, AtFlags, CWD, Mode, StatVfs, accessat, statvfs};
use stockade_sys::rustix::io::Errno;
use stockade_sys::rustix::process::{
    WaitId, WaitIdOptions, ioctl_tiocsctty, setpgid, setsid, umask, waitid,
};
use stockade_sys::{memory, signal, terminal};

use crate::agent::Agent;
use crate::listeners::{self, Supplied};
use crate::wire::{Assignment, End, Limit, Report, Request, Stream, Usage, Watch};
use crate::{receive, send};

/// How long a command runs before its init gives back what it waits without.
const IDLE_AFTER: Duration = Duration::from_millis(500);
/// Bounds of the pause between two samples.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// Private storage with no more than this left counts as full, in bytes.
const FULL_BYTES: u64 = 1 << 20;
/// How fast memory can be filled at most: some 4 GB a second.
const FILL_BYTES_PER_MS: u64 = 4_000_000;

/// How long processes that the command left may take to finish: time for a
/// `tee` behind it to write down what it was given.
const LEFTOVERS_MAX: Duration = Duration::from_millis(500);

/// What the launcher leaves to init. The command inherits none of it.
pub(crate) struct Inheritance {
    /// The command's side of the private terminal.
    pub(crate) terminal: Option<OwnedFd>,
    /// On which somebody outside asks for sockets.
    pub(crate) supply: Option<OwnedFd>,
    /// The sandbox's own /dev/null, where a stream leads there.
    pub(crate) null: Option<OwnedFd>,
    /// What is run instead of the command, in a sandbox that stays.
    pub(crate) agent: Option<Agent>,
}

/// Runs the command and reports its end.
pub(crate) fn run(
    control: BorrowedFd<'_>,
    assignment: &Assignment,
    streams: [Stream; 3],
    inheritance: Inheritance,
) -> io::Result<()> {
    let Inheritance {
        terminal,
        supply,
        null,
        agent,
    } = inheritance;
    let signals = signal::Signals::take_over(&[signal::CHILD])?;
    // Without a session of its own a command that gets a terminal could type
    // into another session's.
    if std::process::id() == 1 {
        setsid()?;
    }
    if let Some(terminal) = &terminal {
        ioctl_tiocsctty(terminal)?;
    }
    let started = match agent {
        Some(agent) => agent.start(assignment, null, streams),
        None => start(assignment, streams, terminal.as_ref(), null),
    };
    let command = match started {
        Ok(command) => command,
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(0);
            return send(control, &Report::NotExecuted { errno });
        }
    };
    close_streams(streams);
    send(control, &Report::Started)?;
    let mut keeper = Keeper {
        control,
        command,
        terminal,
        supply,
        watch: assignment.watch,
        usage: Usage::default(),
        shared_at_start: shared_on_machine(),
    };
    let end = keeper.wait(&signals)?;
    if !matches!(end, End::Limit(_)) {
        let_leftovers_finish(&signals)?;
    }
    keeper.note_full_storage();
    let (largest, cpu_micros) = process::usage_of_children();
    keeper.usage.peak_memory_bytes = keeper.usage.peak_memory_bytes.max(largest);
    keeper.usage.cpu_micros = cpu_micros;
    send(
        control,
        &Report::Ended {
            end,
            usage: keeper.usage,
            alone: !has_children()?,
        },
    )
}

/// Waits a moment for the other processes inside; those that are left after it
/// end with init.
fn let_leftovers_finish(signals: &signal::Signals) -> io::Result<()> {
    let deadline = Instant::now() + LEFTOVERS_MAX;
    loop {
        while signals.next()?.is_some() {}
        while process::reap_one()?.is_some() {}
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !has_children()? {
            return Ok(());
        }
        let left = Timespec {
            tv_sec: 0,
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Init adopts every orphan, so its children are all that is left inside.
fn has_children() -> io::Result<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match waitid(WaitId::All, options) {
        Ok(_) => Ok(true),
        Err(Errno::CHILD) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Starts the command; fails with the error of execve(2) if it cannot run.
fn start(
    assignment: &Assignment,
    streams: [Stream; 3],
    terminal: Option<&OwnedFd>,
    null: Option<OwnedFd>,
) -> io::Result<u32> {
    umask(Mode::from_raw_mode(assignment.umask));
    let program = Program::of(assignment).ok_or(Errno::INVAL)?;
    match terminal {
        Some(terminal) => start_on_terminal(streams, terminal, null.as_ref(), &program),
        None => start_on_pipes(streams, null.as_ref(), &program),
    }
}

fn start_on_pipes(
    streams: [Stream; 3],
    null: Option<&OwnedFd>,
    program: &Program,
) -> io::Result<u32> {
    let mut numbers = [-1; 3];
    for (number, stream) in numbers.iter_mut().zip(streams) {
        *number = match (stream, null) {
            (Stream::Descriptor(source), _) => source,
            (Stream::Null, Some(null)) => null.as_raw_fd(),
            _ => return Err(Errno::BADF.into()),
        };
    }
    program.each(|path, arguments| {
        let environment = &program.environment;
        let streams = numbers;
        process::spawn(
            path,
            &Spawn {
                arguments,
                environment,
                streams,
            },
        )
    })
}

/// With a terminal the command must be its foreground group before it runs,
/// which posix_spawn(3) cannot do everywhere: fork, and report a failed exec
/// through a pipe.
fn start_on_terminal(
    streams: [Stream; 3],
    terminal: &OwnedFd,
    null: Option<&OwnedFd>,
    program: &Program,
) -> io::Result<u32> {
    fork_and_execute(|| match prepare_command(streams, terminal, null) {
        Err(error) => error,
        Ok(()) => program
            .each(|path, arguments| -> io::Result<u32> {
                Err(process::execute(path, arguments, &program.environment))
            })
            .err()
            .unwrap_or_else(|| Errno::NOENT.into()),
    })
}

/// Forks a child for `become_command`, which returns only what failed; that
/// comes back through a pipe.
pub(crate) fn fork_and_execute(become_command: impl FnOnce() -> io::Error) -> io::Result<u32> {
    use stockade_sys::rustix::pipe::{PipeFlags, pipe_with};
    let (status, failed) = pipe_with(PipeFlags::CLOEXEC)?;
    match process::fork()? {
        None => {
            drop(status);
            let error = become_command();
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

fn prepare_command(
    streams: [Stream; 3],
    terminal: &OwnedFd,
    null: Option<&OwnedFd>,
) -> io::Result<()> {
    setpgid(None, None)?;
    signal::ignore(signal::TERMINAL_OUTPUT);
    terminal::set_foreground(terminal.as_fd(), std::process::id())?;
    for (number, stream) in (0i32..).zip(streams) {
        match stream {
            Stream::Descriptor(source) => process::become_standard(source, number)?,
            Stream::Terminal => process::become_standard(terminal.as_raw_fd(), number)?,
            Stream::Null => {
                let null = null.ok_or(Errno::BADF)?;
                process::become_standard(null.as_raw_fd(), number)?;
            }
        }
    }
    signal::reset_all()
}

/// A command name and the places where it may be found, as execvp(3) looks, in
/// the view and the environment of the command.
pub(crate) struct Program {
    candidates: Vec<CString>,
    pub(crate) arguments: Vec<CString>,
    pub(crate) environment: Vec<CString>,
}

impl Program {
    /// `None` when a string contains NUL or there is no name.
    pub(crate) fn of(assignment: &Assignment) -> Option<Self> {
        let name = assignment.argv.first()?;
        let arguments = assignment
            .argv
            .iter()
            .map(|argument| CString::new(argument.as_slice()));
        let environment = assignment
            .environment
            .iter()
            .map(|(name, value)| CString::new([name.as_slice(), b"=", value.as_slice()].concat()));
        let candidates = candidates(name, &assignment.environment)
            .into_iter()
            .map(CString::new);
        Some(Self {
            candidates: candidates.collect::<Result<_, _>>().ok()?,
            arguments: arguments.collect::<Result<_, _>>().ok()?,
            environment: environment.collect::<Result<_, _>>().ok()?,
        })
    }

    /// Tries one place after another until `run` succeeds; otherwise the error
    /// that a shell would report.
    fn each<T>(&self, run: impl Fn(&CStr, &[CString]) -> io::Result<T>) -> io::Result<T> {
        let mut result = Errno::NOENT.into();
        for candidate in &self.candidates {
            // Trying to execute what is not there costs more than looking.
            match accessat(CWD, candidate.as_c_str(), Access::EXISTS, AtFlags::empty()) {
                Err(Errno::NOENT | Errno::NOTDIR) => continue,
                Err(error) => {
                    result = error.into();
                    continue;
                }
                Ok(()) => {}
            }
            let error = match run(candidate, &self.arguments) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::NOENT | Errno::NOTDIR) => {}
                // A shell goes on looking and reports this one if nothing fits.
                Some(Errno::ACCESS) => result = error,
                Some(Errno::NOEXEC) => {
                    // A script without `#!`: a shell runs it itself (execvp(3)).
                    let mut shell = vec![c"/bin/sh".to_owned(), candidate.clone()];
                    shell.extend(self.arguments.iter().skip(1).cloned());
                    return run(c"/bin/sh", &shell);
                }
                _ => return Err(error),
            }
        }
        Err(result)
    }
}

/// Where a command name may be found: itself when it has a slash, else each
/// absolute entry of PATH. An empty name is found nowhere.
fn candidates(name: &[u8], environment: &[(Vec<u8>, Vec<u8>)]) -> Vec<Vec<u8>> {
    if name.is_empty() {
        return Vec::new();
    }
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
fn close_streams(streams: [Stream; 3]) {
    let mut numbers: Vec<i32> = streams
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
    supply: Option<OwnedFd>,
    watch: Watch,
    usage: Usage,
    shared_at_start: u64,
}

impl Keeper<'_> {
    fn wait(&mut self, signals: &signal::Signals) -> io::Result<End> {
        let mut next_sample = self.is_watching().then(|| Instant::now() + PAUSE_MIN);
        let mut idle_at = Some(Instant::now() + IDLE_AFTER);
        loop {
            let control = self.control;
            // Without a supply the control socket stands in its place.
            let supply = self.supply.as_ref().map_or(control, OwnedFd::as_fd);
            let mut descriptors = [
                PollFd::new(&control, PollFlags::IN),
                PollFd::new(signals, PollFlags::IN),
                PollFd::new(&supply, PollFlags::IN),
            ];
            let next = next_sample.into_iter().chain(idle_at).min();
            let left = next.map(|next| {
                let left = next.saturating_duration_since(Instant::now());
                Timespec {
                    tv_sec: left.as_secs() as i64,
                    tv_nsec: left.subsec_nanos().into(),
                }
            });
            match poll(&mut descriptors, left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if idle_at.is_some_and(|at| at <= Instant::now()) {
                // The start went through much of the program, and this loop does not.
                memory::let_go_of_code();
                idle_at = None;
            }
            let asked = !descriptors[0].revents().is_empty();
            let changed = !descriptors[1].revents().is_empty();
            let wanted = !descriptors[2].revents().is_empty();
            if next_sample.is_some_and(|next| next <= Instant::now()) && !changed {
                let sample = Sample::take(self.shared_at_start);
                if let Some(limit) = self.judge(&sample) {
                    return Ok(End::Limit(limit));
                }
                next_sample = Some(Instant::now() + self.pause_after(&sample));
            }
            if changed && let Some(end) = self.reap(signals)? {
                if self.is_watching() && end != End::Exited(0) {
                    self.look_back();
                }
                return Ok(end);
            }
            if wanted
                && let Some(supply) = &self.supply
                && listeners::supply(supply.as_fd()) == Supplied::Ended
            {
                self.supply = None;
            }
            if asked {
                self.obey()?;
            }
        }
    }

    /// Whether anything has to be sampled; otherwise an idle sandbox costs
    /// nothing.
    fn is_watching(&self) -> bool {
        self.watch.memory_bytes_max.is_some() || self.watch.processes_max.is_some()
    }

    /// Finds out whether a command that failed may have failed for a limit: it
    /// may have met that between two samples.
    fn look_back(&mut self) {
        let mut sample = Sample::take(self.shared_at_start);
        // The command itself, which is gone by now.
        sample.threads += 1;
        // There is nothing left to end.
        let _passed = self.judge(&sample);
    }

    /// How long the next sample can wait: at most as long as it would take to
    /// fill what is left of the memory limit.
    fn pause_after(&self, sample: &Sample) -> Duration {
        let left = self
            .watch
            .memory_bytes_max
            .map(|most| most.saturating_sub(sample.memory_bytes));
        let fill = left.map_or(PAUSE_MAX, |left| {
            Duration::from_millis(left / FILL_BYTES_PER_MS)
        });
        fill.clamp(PAUSE_MIN, PAUSE_MAX)
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
                        send(self.control, &Report::Stopped { signal })?;
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

    /// Remembers a sample; the limit that was passed and ends the run, if any.
    fn judge(&mut self, sample: &Sample) -> Option<Limit> {
        self.usage.peak_memory_bytes = self.usage.peak_memory_bytes.max(sample.memory_bytes);
        if self
            .watch
            .processes_max
            .is_some_and(|most| sample.threads >= most)
        {
            self.note(Limit::Processes);
        }
        if self
            .watch
            .memory_bytes_max
            .is_some_and(|most| sample.memory_bytes > most)
        {
            self.note(Limit::Memory);
            return Some(Limit::Memory);
        }
        None
    }

    /// The private directories share one file system; when it is full at the
    /// end, that limit was met.
    fn note_full_storage(&mut self) {
        // A file server in between leaves a rest that it could not fill.
        let is_full = |storage: &StatVfs| {
            let rest = (storage.f_blocks / 64).min(FULL_BYTES / storage.f_frsize.max(1));
            storage.f_bavail <= rest || storage.f_favail == 0
        };
        if let Ok(storage) = statvfs("/tmp")
            && storage.f_blocks > 0
            && is_full(&storage)
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

/// What is used inside at one moment.
struct Sample {
    /// Resident memory that is no page of a file, plus the private directories
    /// and other shared memory.
    memory_bytes: u64,
    threads: u64,
}

impl Sample {
    /// Adds up what /proc tells of every process of this pid namespace.
    ///
    /// Memory that is held without being mapped (memfd_create(2), System V
    /// segments) belongs to no process there. The machine tells how much of
    /// such memory there is in all, so its growth since `shared_at_start` is
    /// counted, at the risk of counting another program's.
    fn take(shared_at_start: u64) -> Self {
        let mut pages = 0;
        let mut threads = 0;
        // Without /proc nothing could be said; the view always has it.
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            if !entry.file_name().as_bytes().iter().all(u8::is_ascii_digit) {
                continue;
            }
            let directory = entry.path();
            if let Ok(statm) = std::fs::read_to_string(directory.join("statm")) {
                let mut fields = statm
                    .split(' ')
                    .skip(1)
                    .map(|field| field.parse().unwrap_or(0));
                let (resident, shared): (u64, u64) =
                    (fields.next().unwrap_or(0), fields.next().unwrap_or(0));
                pages += resident.saturating_sub(shared);
            }
            threads +=
                std::fs::read_dir(directory.join("task")).map_or(0, |tasks| tasks.count() as u64);
        }
        let private = pages * stockade_sys::rustix::param::page_size() as u64;
        let shared = shared_on_machine().saturating_sub(shared_at_start);
        Self {
            memory_bytes: private + shared,
            threads,
        }
    }
}

/// Shared and tmpfs memory of the whole machine, in bytes (sysinfo(2)).
fn shared_on_machine() -> u64 {
    let info = stockade_sys::rustix::system::sysinfo();
    info.sharedram as u64 * u64::from(info.mem_unit)
}
