//! The steps of the launcher that do not build the view, and their evidence.
//!
//! Evidence is an observation of the effect, not of the call: a limit is read
//! back, a refused call is made and refused, a namespace is compared.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use stockade_sys::rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat};
use stockade_sys::rustix::io::Errno;
use stockade_sys::rustix::process::{
    Resource, Rlimit, Signal, chdir, fchdir, getrlimit, set_parent_process_death_signal, setrlimit,
};
use stockade_sys::rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use stockade_sys::{landlock, network, privilege, process, seccomp};

use crate::listeners::Listeners;
use crate::view::View;
use crate::wire::{Action, Attached, NAMESPACES, NamespaceIds, Stream};

/// State that steps hand on to later steps.
pub(crate) struct Launcher<'a> {
    control: BorrowedFd<'a>,
    streams: [Stream; 3],
    /// Numbers of other descriptors that are needed later.
    kept: Vec<i32>,
    view: View,
    listeners: Listeners,
    /// Why the network of the host could not be left.
    network: Option<io::Error>,
    /// Where the calls arrive that a process outside decides, and what it
    /// enters to decide them.
    names: Vec<(Attached, OwnedFd)>,
    /// Opened before that, because it is opened for writing.
    null: Option<OwnedFd>,
}

impl<'a> Launcher<'a> {
    pub(crate) fn new(control: BorrowedFd<'a>, streams: [Stream; 3]) -> Self {
        Self {
            control,
            streams,
            kept: Vec::new(),
            view: View::default(),
            listeners: Listeners::default(),
            network: None,
            names: Vec::new(),
            null: None,
        }
    }

    /// Leaves the network of the host. A failure is kept for the step that
    /// needs it, so that it is reported like any other.
    pub(crate) fn leave_network(&mut self) {
        self.network = process::leave_network().err();
    }

    /// Descriptors that a later scrub must not close. Most plans begin with it,
    /// before there are any.
    pub(crate) fn keep(&mut self, numbers: &[i32]) {
        self.kept.extend_from_slice(numbers);
    }

    /// The certificate that trust stores get.
    pub(crate) fn set_authority(&mut self, authority: Option<Vec<u8>>) {
        self.view.authority = authority;
    }

    /// What goes to the supervisor.
    pub(crate) fn take_attached(&mut self) -> Vec<(Attached, OwnedFd)> {
        let terminal = self.view.terminal_master.take();
        let terminal = terminal.map(|master| (Attached::Terminal, master));
        let names = std::mem::take(&mut self.names);
        let listeners = self.listeners.take_opened().into_iter();
        let listeners = listeners.map(|(index, socket)| (Attached::Listener(index), socket));
        terminal.into_iter().chain(names).chain(listeners).collect()
    }

    pub(crate) fn take_supply(&mut self) -> Option<OwnedFd> {
        self.listeners.take_supply()
    }

    pub(crate) fn take_null(&mut self) -> Option<OwnedFd> {
        self.null.take()
    }

    pub(crate) fn take_terminal(&mut self) -> Option<OwnedFd> {
        self.view.terminal.take()
    }

    /// Applies one step and returns what shows that it took effect.
    pub(crate) fn apply(&mut self, action: &Action) -> io::Result<String> {
        match action {
            Action::TieToSupervisor => tie_to_supervisor(self.control),
            Action::ScrubLauncher => self.scrub(),
            Action::NotDumpable => not_dumpable(),
            Action::VerifyNamespaces { outside } => {
                process::leave_control_group()?;
                verify_namespaces(outside)
            }
            Action::LoopbackUp => match self.network.take() {
                Some(error) => Err(error),
                None => network::loopback_up().map(|()| "lo is up".into()),
            },
            Action::LocalRoutes => local_routes(),
            Action::Redirect { port } => network::redirect_to(*port)
                .map(|()| format!("TCP leads to port {port}; the rules read back as sent")),
            Action::Listen { listeners } => self
                .listeners
                .open(listeners, |directory| self.view.make_place(directory)),
            Action::EnterDirectory { path } => {
                if self.streams.contains(&Stream::Null) {
                    let flags = OFlags::RDWR | OFlags::CLOEXEC;
                    self.null = Some(openat(CWD, "/dev/null", flags, Mode::empty())?);
                }
                enter_directory(path)
            }
            Action::ResourceLimits { limits } => resource_limits(limits),
            Action::Processors { processors } => keep_to_processors(processors),
            Action::NoNestedNamespaces => no_nested_namespaces(),
            Action::NoNewPrivileges => no_new_privileges(),
            Action::DropCapabilities => drop_capabilities(),
            Action::KeepMapping => privilege::drop_all_but_mapping()
                .map(|()| "all sets hold CAP_SETFCAP and nothing else".into()),
            Action::Landlock {
                filesystem,
                network,
                scoped,
                rules,
            } => {
                let handled = landlock::Handled {
                    filesystem: *filesystem,
                    network: *network,
                    scoped: *scoped,
                };
                restrict(handled, rules, self.view.take_old_root())
            }
            Action::Seccomp { program } => filter(program),
            Action::SuperviseNames { program } => self.supervise_names(program),
            view_step => {
                let terminal = self.streams.contains(&Stream::Terminal);
                self.view.apply(view_step, terminal)
            }
        }
    }

    /// From here on a call that makes a name waits for the supervisor.
    fn supervise_names(&mut self, program: &[(u16, u8, u8, u32)]) -> io::Result<String> {
        // Nobody outside could open these of a process that is not dumpable.
        for (kind, name) in [
            (Attached::UserNamespace, "/proc/self/ns/user"),
            (Attached::MountNamespace, "/proc/self/ns/mnt"),
        ] {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            self.names
                .push((kind, openat(CWD, name, flags, Mode::empty())?));
        }
        let listener = seccomp::install_with_listener(&instructions(program))?;
        self.names.push((Attached::Names, listener));
        match seccomp::is_filtered() {
            true => Ok("calls that make names wait for a process outside".into()),
            false => Err(io::Error::other("the filter is not in force")),
        }
    }

    /// Keeps the control socket and the command's streams, closes the rest,
    /// and empties what /proc shows of this process.
    fn scrub(&mut self) -> io::Result<String> {
        let streams = self.streams.iter().filter_map(|stream| match stream {
            Stream::Descriptor(number) => Some(*number),
            _ => None,
        });
        let kept: Vec<i32> = streams.chain(self.kept.iter().copied()).collect();
        process::close_descriptors_but(&kept, self.control)?;
        process::scrub_arguments(c"stockade-init");
        process::leave_session_keyring()?;
        Ok(format!(
            "{} descriptors kept, no environment",
            kept.len() + 1
        ))
    }
}

fn tie_to_supervisor(control: BorrowedFd<'_>) -> io::Result<String> {
    use stockade_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The supervisor may have died before the call above. Then its end of the
    // socket is closed, which shows at once.
    let mut descriptors = [PollFd::new(&control, PollFlags::empty())];
    poll(
        &mut descriptors,
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    )?;
    if descriptors[0]
        .revents()
        .intersects(PollFlags::HUP | PollFlags::ERR)
    {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    Ok("SIGKILL when the supervisor dies".into())
}

fn not_dumpable() -> io::Result<String> {
    privilege::set_not_dumpable().map(|()| "PR_GET_DUMPABLE is 0".into())
}

fn verify_namespaces(outside: &NamespaceIds) -> io::Result<String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let own = openat(CWD, "/proc/self/ns", flags, Mode::empty())?;
    let mut text = Vec::new();
    for (name, &id) in NAMESPACES.iter().zip(outside) {
        // What the link says (namespaces(7)): to follow it makes the kernel set
        // up a file first.
        let link = readlinkat(&own, *name, text)?;
        if namespace_id(link.to_bytes()).ok_or(io::ErrorKind::InvalidData)? == id {
            return Err(io::Error::other(format!(
                "the {name} namespace is the host's"
            )));
        }
        text = link.into_bytes();
    }
    let pid = std::process::id();
    if pid != 1 {
        return Err(io::Error::other(format!(
            "the launcher is process {pid}, not 1"
        )));
    }
    Ok(format!(
        "{} differ from the supervisor's",
        NAMESPACES.join(", ")
    ))
}

/// The number in `net:[4026531840]`.
fn namespace_id(link: &[u8]) -> Option<u64> {
    let number = link
        .strip_suffix(b"]")?
        .rsplit(|&byte| byte == b'[')
        .next()?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

fn local_routes() -> io::Result<String> {
    let families = network::make_everything_local()?;
    Ok(match families.ipv6 {
        true => "every IPv4 and IPv6 address is local".into(),
        false => "every IPv4 address is local; no IPv6 here".into(),
    })
}

fn enter_directory(path: &[u8]) -> io::Result<String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let root = openat(CWD, "/", flags, Mode::empty())?;
    let directory = openat2(root, path, flags, Mode::empty(), resolve)?;
    fchdir(directory)?;
    Ok("entered without following a link".into())
}

/// Resource numbers on the wire; both sides share this table.
fn resource(number: u8) -> io::Result<Resource> {
    Ok(match number {
        0 => Resource::Core,
        1 => Resource::Cpu,
        2 => Resource::Data,
        3 => Resource::Fsize,
        4 => Resource::Nofile,
        5 => Resource::Nproc,
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    })
}

fn resource_limits(limits: &[(u8, u64, u64)]) -> io::Result<String> {
    for &(number, soft, hard) in limits {
        let resource = resource(number)?;
        // Only root could raise a hard limit, so a lower one stays.
        let ceiling = getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let wanted = Rlimit {
            current: finite(soft.min(ceiling)),
            maximum: finite(hard.min(ceiling)),
        };
        setrlimit(resource, wanted)?;
        if getrlimit(resource) != wanted {
            return Err(io::Error::other("a limit reads back differently"));
        }
    }
    Ok(format!("{} limits read back as set", limits.len()))
}

/// rustix writes the kernel's "no limit" as `None`.
fn finite(limit: u64) -> Option<u64> {
    (limit != u64::MAX).then_some(limit)
}

fn keep_to_processors(processors: &[u32]) -> io::Result<String> {
    let mut wanted = CpuSet::new();
    for &processor in processors {
        if processor as usize >= CpuSet::MAX_CPU {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        wanted.set(processor as usize);
    }
    sched_setaffinity(None, &wanted)?;
    let count = sched_getaffinity(None)?.count();
    if count as usize > processors.len() {
        return Err(io::Error::other("more processors than set"));
    }
    Ok(format!("{count} processors"))
}

fn no_nested_namespaces() -> io::Result<String> {
    let value = std::fs::read("/proc/sys/user/max_user_namespaces")?;
    match value.as_slice() {
        b"0\n" => Ok("user.max_user_namespaces is 0".into()),
        _ => Err(io::Error::other("user.max_user_namespaces is not 0")),
    }
}

fn no_new_privileges() -> io::Result<String> {
    privilege::set_no_new_privileges().map(|()| "PR_GET_NO_NEW_PRIVS is 1".into())
}

fn drop_capabilities() -> io::Result<String> {
    privilege::drop_all_capabilities()?;
    Ok("effective, permitted, inheritable, ambient and bounding sets are empty".into())
}

fn restrict(
    handled: landlock::Handled,
    rules: &[(Vec<u8>, u64)],
    old_root: Option<OwnedFd>,
) -> io::Result<String> {
    let ruleset = landlock::Ruleset::new(handled)?;
    for (path, rights) in rules {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let target = openat(CWD, path.as_slice(), flags, Mode::empty())
            .map_err(|error| named(error.into(), path))?;
        ruleset
            .allow(target.as_fd(), *rights)
            .map_err(|error| named(error, path))?;
    }
    ruleset.restrict_self()?;
    if handled.filesystem == 0 {
        return Ok("scopes only".into());
    }
    // The host's root, opened before the view replaced it, proves the rules:
    // it is outside all of them.
    let outside = old_root.ok_or_else(|| io::Error::other("no outside directory to try"))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat(outside, ".", flags, Mode::empty()) {
        Err(error) if error == Errno::ACCESS => Ok(format!(
            "{} rules; a path outside them was refused",
            rules.len()
        )),
        Err(error) => Err(error.into()),
        Ok(_) => Err(io::Error::other("a path outside the rules could be opened")),
    }
}

fn instructions(program: &[(u16, u8, u8, u32)]) -> Vec<seccomp::Instruction> {
    program
        .iter()
        .map(
            |&(code, jump_true, jump_false, operand)| seccomp::Instruction {
                code,
                jump_true,
                jump_false,
                operand,
            },
        )
        .collect()
}

fn filter(program: &[(u16, u8, u8, u32)]) -> io::Result<String> {
    let program = instructions(program);
    seccomp::install(&program)?;
    let answer = seccomp::refused_call();
    let refused = [Errno::NOSYS.raw_os_error(), Errno::PERM.raw_os_error()];
    if seccomp::is_filtered()
        && answer
            .raw_os_error()
            .is_some_and(|code| refused.contains(&code))
    {
        Ok(format!(
            "{} instructions; keyctl was refused",
            program.len()
        ))
    } else {
        Err(io::Error::other("the filter is not in force"))
    }
}

/// Adds the path that an error is about.
pub(crate) fn named(error: io::Error, path: &[u8]) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("{}: {error}", String::from_utf8_lossy(path)),
    )
}

/// The process's own root, for callers that must not look a path up.
pub(crate) fn go_to_root() -> io::Result<()> {
    Ok(chdir("/")?)
}
