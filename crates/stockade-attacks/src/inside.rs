//! The entry point inside a sandbox: runs each attack in a process of its own
//! and prints one JSON line for each.
//!
//! The same hidden subcommand also serves as the processes that attacks leave
//! behind and as the helper that gives the front a controlling terminal.

use crate::{Attack, Stage, Verdict, find, within};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use stockade_sys::hostile;

/// First argument of the helper that gives a command a controlling terminal:
/// `--on-terminal PATH COMMAND…`.
pub const ON_TERMINAL: &str = "--on-terminal";
/// Id of the first line, which shows that the sandbox started at all.
pub(crate) const STARTED: &str = "started";
/// First argument of a process that is left behind: `--linger KIND MARK`.
const LINGER: &str = "--linger";
/// How long one attack may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a process that was left behind lives where nothing ends it.
const LINGERING: Duration = Duration::from_secs(60);
/// Longest detail that is reported.
const DETAIL_CHARACTERS_MAX: usize = 300;
/// Exit status for arguments or a place that the corpus refuses.
const REFUSED: i32 = 2;

/// One line of the report.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    pub id: String,
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// How a process that is left behind behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linger {
    Quiet,
    Deaf,
    Respawning,
    HoldsStreams,
    Stopped,
}

impl Linger {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Quiet, "quiet"),
        (Self::Deaf, "deaf"),
        (Self::Respawning, "respawning"),
        (Self::HoldsStreams, "holds-streams"),
        (Self::Stopped, "stopped"),
    ];
}

/// What the arguments of the hidden subcommand ask for.
#[derive(Debug, Default)]
struct Request {
    stage: Option<Stage>,
    only: Vec<String>,
    one: Option<String>,
    unsafe_outside: bool,
}

/// Runs the hidden subcommand. `arguments` are the last of the process's own:
/// `--stage JSON --only ID,ID…` runs those attacks, each in a process of its
/// own; `--unsafe-outside` lifts the check that this is a sandbox, for exactly
/// one attack. Returns an exit status: 0 when all were tried, 2 when refused.
pub fn inside(arguments: &[String]) -> i32 {
    let own: Vec<OsString> = std::env::args_os().collect();
    let before = own.len().saturating_sub(arguments.len());
    // A second call in one process keeps the first answer, which is the same.
    SUBCOMMAND.get_or_init(|| own.get(1..before).unwrap_or_default().to_vec());
    let outcome = match arguments {
        [first, kind, _mark] if first == LINGER => {
            linger(kind);
            Ok(())
        }
        [first, path, command @ ..] if first == ON_TERMINAL => {
            on_terminal(Path::new(path), command)
        }
        _ => parse(arguments).and_then(serve),
    };
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("stockade: attacks refused: {error}");
            REFUSED
        }
    }
}

/// The arguments between the program and those of [`inside`], with which the
/// program has to be started again.
static SUBCOMMAND: OnceLock<Vec<OsString>> = OnceLock::new();

fn again() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(SUBCOMMAND.get().into_iter().flatten());
    command
}

fn parse(arguments: &[String]) -> io::Result<Request> {
    let mut request = Request::default();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || {
            rest.next()
                .ok_or_else(|| invalid(format!("{argument} needs a value")))
        };
        match argument.as_str() {
            "--stage" => request.stage = Some(serde_json::from_str(value()?)?),
            "--only" => request.only = value()?.split(',').map(str::to_owned).collect(),
            "--one" => request.one = Some(value()?.clone()),
            "--unsafe-outside" => request.unsafe_outside = true,
            _ => return Err(invalid(format!("unknown argument {argument}"))),
        }
    }
    Ok(request)
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

fn serve(request: Request) -> io::Result<()> {
    let stage = request.stage.ok_or_else(|| invalid("no stage".into()))?;
    let stage = Stage {
        unconfined: request.unsafe_outside,
        ..stage
    };
    if !request.unsafe_outside {
        require_sandbox()?;
    } else if request.one.is_none() && request.only.len() != 1 {
        return Err(invalid(
            "outside a sandbox exactly one attack may be named".into(),
        ));
    }
    if let Some(id) = &request.one {
        return print(&Line {
            id: id.clone(),
            verdict: (named(id)?.run)(&stage),
        });
    }
    print(&Line {
        id: STARTED.into(),
        verdict: Verdict::Inconclusive(String::new()),
    })?;
    let arguments = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let place = within::Place::of(agent_is_first(), has_own_kernel(&stage), &arguments);
    for id in &request.only {
        let attack = named(id)?;
        let verdict = match within::untried(id, place) {
            Some(untried) => untried,
            None => in_child(attack, &stage, request.unsafe_outside),
        };
        let verdict = within::judged(id, place, verdict);
        print(&Line {
            id: id.clone(),
            verdict,
        })?;
    }
    Ok(())
}

fn named(id: &str) -> io::Result<&'static Attack> {
    find(id).ok_or_else(|| invalid(format!("no attack is called {id}")))
}

/// Whether something else than the launcher started this sandbox: its first
/// process is then the agent.
pub(crate) fn agent_is_first() -> bool {
    std::fs::read("/proc/1/comm").is_ok_and(|name| name.starts_with(b"stockade-agent"))
}

/// Whether the kernel under this process is one of the sandbox's own.
pub(crate) fn has_own_kernel(stage: &Stage) -> bool {
    agent_is_first() && crate::stage::kernel() != stage.kernel
}

/// The attacks are real, so they are not run by accident on a bare machine.
fn require_sandbox() -> io::Result<()> {
    let marked = std::env::var_os("STOCKADE").is_some_and(|value| value == "1");
    let first = ["/proc/1/cmdline", "/proc/1/comm"]
        .iter()
        .any(|path| std::fs::read(path).is_ok_and(|name| name.starts_with(b"stockade-init")))
        || agent_is_first();
    let filtered = std::fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| status.lines().any(|line| line == "NoNewPrivs:\t1"));
    if marked && (first || filtered) {
        return Ok(());
    }
    Err(io::Error::other("this is not a Stockade sandbox"))
}

/// Prints one line at once; a sandbox that is ended keeps what it printed.
fn print(line: &Line) -> io::Result<()> {
    let text = serde_json::to_string(line)?;
    let mut output = io::stdout().lock();
    writeln!(output, "{text}")?;
    output.flush()
}

/// Runs one attack in a process of its own: being killed is being stopped.
fn in_child(attack: &Attack, stage: &Stage, unsafe_outside: bool) -> Verdict {
    let stage = match serde_json::to_string(stage) {
        Ok(stage) => stage,
        Err(error) => return Verdict::Inconclusive(error.to_string()),
    };
    let mut command = again();
    command.args(["--stage", &stage, "--one", attack.id]);
    if unsafe_outside {
        command.arg("--unsafe-outside");
    }
    match command.stdout(Stdio::piped()).spawn() {
        Ok(child) => await_verdict(child),
        Err(error) => Verdict::Inconclusive(format!("cannot start: {error}")),
    }
}

fn await_verdict(mut child: Child) -> Verdict {
    let end = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) => {
                let ended = child.kill().and_then(|()| child.wait());
                return Verdict::Inconclusive(format!("no end in time ({})", ended.is_ok()));
            }
            Err(error) => return Verdict::Inconclusive(error.to_string()),
        }
    };
    match read_line(&mut child) {
        Ok(line) => shortened(line.verdict),
        Err(_) if status.signal().is_some() => {
            Verdict::Stopped(format!("killed by signal {}", status.signal().unwrap_or(0)))
        }
        Err(error) => Verdict::Inconclusive(format!("{status}: {error}")),
    }
}

/// What the child has printed by now; a process that it left behind may hold
/// the pipe open, so the end of the stream is not waited for.
fn read_line(child: &mut Child) -> io::Result<Line> {
    let mut output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    rustix::fs::fcntl_setfl(&output, OFlags::NONBLOCK)?;
    let mut bytes = vec![0_u8; 65536];
    let mut filled = 0;
    loop {
        match output.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(serde_json::from_slice(&bytes[..filled])?)
}

fn shortened(verdict: Verdict) -> Verdict {
    let short = |text: String| text.chars().take(DETAIL_CHARACTERS_MAX).collect();
    match verdict {
        Verdict::Stopped(text) => Verdict::Stopped(short(text)),
        Verdict::Escaped(text) => Verdict::Escaped(short(text)),
        Verdict::Inconclusive(text) => Verdict::Inconclusive(short(text)),
    }
}

/// Starts a process that tries to outlive the sandbox. `mark` stands in its
/// arguments, by which the check outside finds it.
pub(crate) fn leave_process(how: Linger, mark: &str) -> io::Result<()> {
    let name = Linger::ALL
        .iter()
        .find(|(kind, _)| *kind == how)
        .map_or("quiet", |(_, name)| name);
    let mut command = again();
    command
        .args([LINGER, name, mark])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if how != Linger::HoldsStreams {
        command.stderr(Stdio::null());
    }
    let child = command.spawn()?;
    // Long enough for it to leave our session.
    std::thread::sleep(Duration::from_millis(100));
    drop(child);
    Ok(())
}

/// Lives on, in a session of its own and without ties to a parent. What fails
/// here only makes the attack weaker, so it goes on.
fn linger(kind: &str) {
    let how = Linger::ALL
        .iter()
        .find(|(_, name)| *name == kind)
        .map(|(how, _)| *how);
    let untied = rustix::process::setsid().is_ok()
        & rustix::process::set_parent_process_death_signal(None).is_ok();
    if !untied {
        eprintln!("stockade: the attack keeps a tie to its parent");
    }
    let end = Instant::now() + LINGERING;
    match how {
        Some(Linger::Deaf) => hostile::ignore_signals(),
        Some(Linger::Stopped) => drop(hostile::kill(std::process::id() as i32, 19)),
        Some(Linger::Respawning) => respawn(end),
        _ => {}
    }
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn respawn(end: Instant) {
    let Some(mark) = std::env::args().next_back() else {
        return;
    };
    while Instant::now() < end {
        let twin = again().args([LINGER, "quiet", &mark]).spawn();
        if twin.and_then(|mut twin| twin.wait()).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Becomes the leader of a session on the terminal and then the command.
fn on_terminal(path: &Path, command: &[String]) -> io::Result<()> {
    let [program, arguments @ ..] = command else {
        return Err(invalid("no command".into()));
    };
    rustix::process::setsid()?;
    let terminal = rustix::fs::open(path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty())?;
    rustix::process::ioctl_tiocsctty(&terminal)?;
    rustix::stdio::dup2_stdin(&terminal)?;
    rustix::stdio::dup2_stdout(&terminal)?;
    rustix::stdio::dup2_stderr(&terminal)?;
    Err(Command::new(program).args(arguments).exec())
}
