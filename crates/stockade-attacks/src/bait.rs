//! The host's side: lays the bait before a sandbox starts, and looks afterwards
//! whether it was touched.
//!
//! Everything lies in directories that the caller owns, except three files
//! with unmistakable names in /tmp, /var/tmp and /dev/shm, and kernel objects;
//! all of it is removed when the bait is dropped. No real credential is used.

pub mod way_out;

use crate::corpus::{CREDENTIALS, TYPED, TYPED_HIGH};
use crate::{Stage, Verdict};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::pty::OpenptFlags;
use rustix::termios::Termios;
use std::collections::BTreeSet;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use stockade_sys::hostile;

/// Where bait may be laid. All directories are the caller's own and are made
/// when they are missing.
pub struct Layout<'a> {
    /// Gets the directory `beside`, which no policy grants.
    pub scratch: &'a Path,
    /// The directory that the policy lets the sandbox write.
    pub workspace: &'a Path,
    /// A made-up home directory; never the user's real one.
    pub home: Option<&'a Path>,
    /// The directory in which the front under test keeps its log.
    pub state: Option<&'a Path>,
}

/// The bait, as long as it lies.
pub struct Bait {
    stage: Stage,
    listeners: Listeners,
    victims: Vec<Child>,
    queue_id: Option<i32>,
    posix_queue: Option<OwnedFd>,
    stdin: File,
    /// Files that must not change, the attack that would change them, and
    /// their content.
    sentinels: Vec<(PathBuf, &'static str, Vec<u8>)>,
    names_beside: BTreeSet<OsString>,
    terminal: Option<Terminal>,
    /// Open in this process and in all that it starts, on purpose.
    _leaked: Vec<OwnedFd>,
}

/// A terminal of the host that a front is started on.
pub struct Terminal {
    /// The side that plays the person and the screen.
    pub controller: OwnedFd,
    /// Name of the side that becomes the controlling terminal.
    pub path: PathBuf,
    /// Kept open so that what was typed into it can be seen afterwards.
    side: OwnedFd,
    modes: Termios,
}

impl Bait {
    /// Lays everything. Kernel objects that this kernel or user cannot have
    /// are left out, which the stage then says.
    pub fn lay(layout: &Layout<'_>) -> io::Result<Self> {
        let token = random_name()?;
        let queue = format!("stockade-bait-{}", &random_name()?[..12]);
        let beside = layout.scratch.join("beside");
        for directory in [
            Some(beside.as_path()),
            Some(layout.workspace),
            layout.home,
            layout.state,
        ]
        .into_iter()
        .flatten()
        {
            std::fs::create_dir_all(directory)?;
        }
        let sentinels = lay_files(layout, &beside, &token)?;
        let public = lay_public(&queue, &token);
        let stdin = File::open(beside.join("stdin"))?;
        let listeners = Listeners::open(layout, &beside, &queue)?;
        let victims = vec![victim(&token)?, victim(&token)?];
        hostile::kill(victims[1].id() as i32, 19)?;
        let objects = Objects::make(&queue, &token);
        let input = stdin.metadata()?;
        let stage = Stage {
            token_backwards: token.chars().rev().collect(),
            workspace: layout.workspace.to_path_buf(),
            home: layout.home.map(Path::to_path_buf),
            state: layout.state.map(Path::to_path_buf),
            public_secrets: public,
            tcp: local_addresses(&listeners.tcp, TcpListener::local_addr)?,
            udp: local_addresses(&listeners.udp, UdpSocket::local_addr)?,
            abstract_name: abstract_name(&queue),
            sockets: socket_paths(layout, &beside),
            victim: victims[0].id() as i32,
            stopped_victim: victims[1].id() as i32,
            ipc_key: objects.key,
            shm_id: objects.segment,
            queue,
            key: objects.session_key,
            stdin: (input.dev(), input.ino()),
            handle: handle_of(&beside.join("secret")),
            disk: std::fs::metadata(&beside)?.dev(),
            limits: None,
            round: 1,
            kernel: crate::stage::kernel(),
            unconfined: false,
            beside: beside.clone(),
        };
        Ok(Self {
            stage,
            listeners,
            victims,
            queue_id: objects.message_queue,
            posix_queue: objects.posix_queue,
            stdin,
            sentinels,
            names_beside: names_in(&beside)?,
            terminal: None,
            _leaked: leak(&beside)?,
        })
    }

    /// What the attacks inside are told.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// The environment that the front gets in addition, with secrets in it.
    pub fn environment(&self) -> Vec<(String, String)> {
        vec![
            ("STOCKADE_BAIT_SECRET".into(), self.stage.token()),
            (
                "STOCKADE_BAIT_AGENT".into(),
                self.stage.beside.join("host.sock").display().to_string(),
            ),
        ]
    }

    /// Where the front finds a policy that opens a way out.
    pub fn way_out(&self) -> io::Result<PathBuf> {
        let scratch = self.stage.beside.parent();
        let place = scratch.ok_or(io::ErrorKind::NotFound)?.join("way-out");
        way_out::lay(&place, &self.stage.token())?;
        Ok(place)
    }

    /// The front's standard input: a file of the host, open for reading only.
    pub fn stdin(&self) -> io::Result<File> {
        self.stdin.try_clone()
    }

    /// Opens a terminal for the front to be started on; [`Self::verify_after`]
    /// then also looks at that.
    pub fn open_terminal(&mut self) -> io::Result<&Terminal> {
        let terminal = Terminal::open()?;
        Ok(self.terminal.insert(terminal))
    }

    /// Looks outside, after all sandboxes have ended, whether anything was
    /// touched. Processes that were left behind get one second to be gone; then
    /// they are found and killed.
    pub fn verify_after(&self) -> Vec<(&'static str, Verdict)> {
        await_end_of_lingering(&self.stage.linger_mark());
        let mut verdicts = Vec::new();
        for (path, attack, content) in &self.sentinels {
            let now = std::fs::read(path).unwrap_or_default();
            verdicts.push((
                *attack,
                told(now != *content, || format!("{} changed", path.display())),
            ));
        }
        verdicts.extend(self.verify_beside());
        verdicts.extend(self.listeners.verify());
        verdicts.extend(self.verify_processes());
        verdicts.push(("pr6-shared-flags", self.verify_flags()));
        if let Some(terminal) = &self.terminal {
            verdicts.extend(terminal.verify());
        }
        verdicts
    }

    fn verify_beside(&self) -> Vec<(&'static str, Verdict)> {
        let now = names_in(&self.stage.beside).unwrap_or_default();
        let changed = now.symmetric_difference(&self.names_beside).next().cloned();
        let verdict = told(changed.is_some(), || {
            format!("{changed:?} came or went outside")
        });
        vec![
            ("fs2-create-beside", verdict.clone()),
            ("fs2-dangling-link", verdict),
        ]
    }

    fn verify_processes(&self) -> Vec<(&'static str, Verdict)> {
        let state = |pid: i32| -> String {
            let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let after = text
                .rsplit_once(')')
                .map(|(_, rest)| rest.trim_start().to_owned());
            after.unwrap_or_default().chars().take(1).collect()
        };
        let alive = matches!(state(self.stage.victim).as_str(), "S" | "R" | "D");
        let stopped = state(self.stage.stopped_victim) == "T";
        let mut verdicts = vec![
            (
                "pr3-signal-victim",
                told(!alive, || "the host's process was hit".into()),
            ),
            (
                "pr3-signal-everyone",
                told(!stopped, || "a stopped process went on".into()),
            ),
        ];
        let left = end_lingering(&self.stage.linger_mark());
        for attack in crate::all()
            .iter()
            .filter(|attack| attack.id.starts_with("pr4-"))
        {
            let lives = left.contains(attack.id);
            verdicts.push((
                attack.id,
                told(lives, || "its process outlived the sandbox".into()),
            ));
        }
        verdicts
    }

    fn verify_flags(&self) -> Verdict {
        match rustix::fs::fcntl_getfl(&self.stdin) {
            Ok(flags) => told(flags.contains(OFlags::NONBLOCK), || {
                "it does not block now".into()
            }),
            Err(error) => Verdict::Inconclusive(error.to_string()),
        }
    }
}

impl Drop for Bait {
    /// Takes everything away again. What is gone already is no error.
    fn drop(&mut self) {
        for victim in &mut self.victims {
            drop(victim.kill().and_then(|()| victim.wait()));
        }
        drop(self.stage.shm_id.map(hostile::shm_remove));
        drop(self.queue_id.map(hostile::msg_remove));
        drop(self.stage.key.map(hostile::keyctl_invalidate));
        if self.posix_queue.take().is_some() {
            drop(hostile::mq_unlink(&self.stage.queue_name()));
        }
        for path in self.stage.public_secrets.iter().chain(&self.stage.sockets) {
            drop(std::fs::remove_file(path));
        }
    }
}

impl Terminal {
    fn open() -> io::Result<Self> {
        let controller =
            rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        rustix::pty::grantpt(&controller)?;
        rustix::pty::unlockpt(&controller)?;
        let name = rustix::pty::ptsname(&controller, Vec::new())?;
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let side = rustix::fs::open(&path, flags, rustix::fs::Mode::empty())?;
        let modes = rustix::termios::tcgetattr(&side)?;
        Ok(Self {
            controller,
            path,
            side,
            modes,
        })
    }

    fn verify(&self) -> Vec<(&'static str, Verdict)> {
        let modes = rustix::termios::tcgetattr(&self.side);
        let changed = !modes.is_ok_and(|modes| {
            modes.local_modes == self.modes.local_modes
                && modes.input_modes == self.modes.input_modes
                && modes.output_modes == self.modes.output_modes
        });
        let typed = self.typed();
        let arrived = |yes: bool| told(yes, || "the caller's terminal got input".into());
        let plainly = typed
            .replace(TYPED_HIGH.trim_end(), "")
            .contains(TYPED.trim_end());
        vec![
            ("pr6-type", arrived(plainly)),
            (
                "pr6-type-high-bits",
                arrived(typed.contains(TYPED_HIGH.trim_end())),
            ),
            (
                "pr6-leave-raw",
                told(changed, || "the caller's terminal was left changed".into()),
            ),
        ]
    }

    /// What waits to be read on the caller's side, line by line.
    fn typed(&self) -> String {
        let mut typed = Vec::new();
        let mut line = [0_u8; 4096];
        loop {
            let mut ready = [PollFd::new(&self.side, PollFlags::IN)];
            let now = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            if !poll(&mut ready, Some(&now)).is_ok_and(|ready| ready > 0) {
                break;
            }
            match rustix::io::read(&self.side, &mut line) {
                Ok(0) | Err(_) => break,
                Ok(bytes) => typed.extend_from_slice(&line[..bytes]),
            }
        }
        String::from_utf8_lossy(&typed).into_owned()
    }
}

/// A verdict of a check outside.
fn told(escaped: bool, what: impl FnOnce() -> String) -> Verdict {
    if escaped {
        Verdict::Escaped(what())
    } else {
        Verdict::Stopped("nothing outside changed".into())
    }
}

/// Thirty-two hexadecimal digits that nobody can guess.
fn random_name() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn names_in(directory: &Path) -> io::Result<BTreeSet<OsString>> {
    std::fs::read_dir(directory)?
        .map(|entry| Ok(entry?.file_name()))
        .collect()
}

fn lay_files(
    layout: &Layout<'_>,
    beside: &Path,
    token: &str,
) -> io::Result<Vec<(PathBuf, &'static str, Vec<u8>)>> {
    let mut sentinels = vec![
        (beside.join("sentinel"), "fs2-append-beside"),
        (beside.join("stdin"), "pr6-reopen-input"),
    ];
    std::fs::write(beside.join("secret"), format!("{token}\n"))?;
    if let Some(home) = layout.home {
        for name in CREDENTIALS.iter().copied().flatten() {
            let path = home.join(name);
            std::fs::create_dir_all(path.parent().unwrap_or(home))?;
            std::fs::write(path, format!("{token}\n"))?;
        }
        sentinels.push((home.join(".bashrc"), "fs2-home-startup-files"));
        sentinels.push((home.join(".profile"), "fs2-home-startup-files"));
    }
    if let Some(state) = layout.state {
        sentinels.push((state.join("sentinel.jsonl"), "au1-open-log"));
    }
    let content = b"# left as it was\n".to_vec();
    let lay = |(path, attack): (PathBuf, &'static str)| {
        std::fs::write(&path, &content)?;
        Ok((path, attack, content.clone()))
    };
    sentinels.into_iter().map(lay).collect()
}

/// Secrets in public directories; one that cannot be written there is left out.
fn lay_public(queue: &str, token: &str) -> Vec<PathBuf> {
    let write = |directory: &&str| -> Option<PathBuf> {
        let path = Path::new(directory).join(queue);
        let mut options = File::options();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .ok()?;
        writeln!(file, "{token}").ok().map(|()| path)
    };
    ["/tmp", "/var/tmp", "/dev/shm"]
        .iter()
        .filter_map(write)
        .collect()
}

/// What the host listens on.
struct Listeners {
    tcp: Vec<TcpListener>,
    udp: Vec<UdpSocket>,
    unix: Vec<UnixListener>,
    hidden: UnixListener,
}

impl Listeners {
    fn open(layout: &Layout<'_>, beside: &Path, queue: &str) -> io::Result<Self> {
        let mut tcp = Vec::new();
        let mut udp = Vec::new();
        for address in addresses() {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            tcp.push(listener);
            let socket = UdpSocket::bind(address)?;
            socket.set_nonblocking(true)?;
            udp.push(socket);
        }
        let unix = socket_paths(layout, beside)
            .into_iter()
            .map(UnixListener::bind);
        let unix: Vec<UnixListener> = unix.collect::<io::Result<_>>()?;
        let name = abstract_name(queue);
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name)?;
        let hidden = UnixListener::bind_addr(&address)?;
        for listener in unix.iter().chain([&hidden]) {
            listener.set_nonblocking(true)?;
        }
        Ok(Self {
            tcp,
            udp,
            unix,
            hidden,
        })
    }

    fn verify(&self) -> Vec<(&'static str, Verdict)> {
        let tcp = self.tcp.iter().any(|listener| listener.accept().is_ok());
        let udp = self
            .udp
            .iter()
            .any(|socket| socket.recv(&mut [0; 64]).is_ok());
        let unix = self.unix.iter().any(|listener| listener.accept().is_ok());
        let hidden = self.hidden.accept().is_ok();
        vec![
            (
                "nt1-tcp",
                told(tcp, || "the host's listener was reached".into()),
            ),
            (
                "nt1-udp",
                told(udp, || "the host's socket got a datagram".into()),
            ),
            (
                "nt1-unix-sockets",
                told(unix, || "the host's listener was reached".into()),
            ),
            (
                "pr8-abstract-socket",
                told(hidden, || "the host's listener was reached".into()),
            ),
        ]
    }
}

/// Both loopbacks and the machine's own address, as far as it has them.
fn addresses() -> Vec<SocketAddr> {
    let mut addresses = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    // Connecting a UDP socket sends nothing; it only chooses an address.
    let own = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket
            .connect("192.0.2.1:9")
            .and_then(|()| socket.local_addr())
    });
    addresses.extend(own.ok().map(|own| SocketAddr::new(own.ip(), 0)));
    if UdpSocket::bind("[::1]:0").is_ok() {
        addresses.push(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 0)));
    }
    addresses
}

fn local_addresses<T>(
    sockets: &[T],
    local: fn(&T) -> io::Result<SocketAddr>,
) -> io::Result<Vec<SocketAddr>> {
    sockets.iter().map(local).collect()
}

fn socket_paths(layout: &Layout<'_>, beside: &Path) -> Vec<PathBuf> {
    let directories = [Some(layout.workspace), Some(beside), layout.home];
    directories
        .into_iter()
        .flatten()
        .map(|directory| directory.join("host.sock"))
        .collect()
}

fn abstract_name(queue: &str) -> String {
    format!("{queue}-abstract")
}

fn handle_of(path: &Path) -> Option<hostile::Handle> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    hostile::name_to_handle(&path).ok()
}

/// A process with the secret in its environment, in a group of its own.
fn victim(token: &str) -> io::Result<Child> {
    Command::new("sleep")
        .arg("86397")
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("BAIT", token)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
}

/// Descriptors that stay open across exec: a file, a directory, one with a
/// high number, and a socket.
fn leak(beside: &Path) -> io::Result<Vec<OwnedFd>> {
    let secret = File::open(beside.join("secret"))?;
    let directory = File::open(beside)?;
    let (near, _far) = std::os::unix::net::UnixStream::pair()?;
    let mut leaked = vec![
        inheritable(secret.as_fd(), 9)?,
        inheritable(directory.as_fd(), 9)?,
        inheritable(near.as_fd(), 9)?,
    ];
    // A low limit of open files leaves no room for the high number.
    leaked.extend(inheritable(secret.as_fd(), 2048));
    Ok(leaked)
}

/// A copy that stays open across exec, numbered at least `lowest`.
fn inheritable(file: BorrowedFd<'_>, lowest: i32) -> io::Result<OwnedFd> {
    let copy = rustix::io::fcntl_dupfd_cloexec(file, lowest)?;
    rustix::io::fcntl_setfd(&copy, rustix::io::FdFlags::empty())?;
    Ok(copy)
}

/// Kernel objects of the host that hold the secret; those that cannot be made
/// here are left out.
struct Objects {
    key: i32,
    segment: Option<i32>,
    message_queue: Option<i32>,
    posix_queue: Option<OwnedFd>,
    session_key: Option<i32>,
}

impl Objects {
    fn make(queue: &str, token: &str) -> Self {
        let digits = queue.rsplit('-').next().unwrap_or_default();
        let key = i32::from_str_radix(&digits[..7.min(digits.len())], 16).unwrap_or(0x5afe) | 1;
        let name = CString::new(queue).expect("the name is made of letters and digits");
        Self {
            key,
            segment: hostile::shm_create(key, token.as_bytes()).ok(),
            message_queue: hostile::msg_create(key, token.as_bytes()).ok(),
            posix_queue: hostile::mq_create(&name, token.as_bytes()).ok(),
            session_key: hostile::add_key(&name, token.as_bytes(), hostile::SESSION_KEYRING).ok(),
        }
    }
}

fn await_end_of_lingering(mark: &str) {
    for _ in 0..20 {
        if lingering(mark).is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Ids of the attacks whose processes live on; they are killed, those that
/// start each other again by repetition.
fn end_lingering(mark: &str) -> BTreeSet<String> {
    let mut attacks = BTreeSet::new();
    for _ in 0..20 {
        let found = lingering(mark);
        if found.is_empty() {
            break;
        }
        for (pid, attack) in found {
            attacks.insert(attack);
            drop(hostile::kill(pid, 9));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    attacks
}

fn lingering(mark: &str) -> Vec<(i32, String)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let last = arguments
            .split(|byte| *byte == 0)
            .rfind(|argument| !argument.is_empty())?;
        let last = String::from_utf8_lossy(last).into_owned();
        let (found, attack) = last.split_once(':')?;
        (found == mark).then(|| (pid, attack.to_owned()))
    })
    .collect()
}
