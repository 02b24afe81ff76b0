//! What commands are held to in a machine: the rules of system calls that the
//! host holds QEMU to as well, a number of processes for all of them, and limits
//! of each.
//!
//! The agent stays outside of the rules, because it sets the clock; each command
//! takes them before it is one. The number of processes is a control group's,
//! in which the agent is: limits of a user do not bind user 0.

use core::ffi::CStr;

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, StatVfs, fstatvfs, mkdirat};
use rustix::io::{self, Errno, pread, write};
use rustix::mount::{MountFlags, mount};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stockade_agent::machine::{Birth, INSTRUCTION_BYTES, INSTRUCTIONS_MAX, Limits};
use stockade_agent::system;
use stockade_agent::wire::Met;

use crate::guest::{Step, open, while_};
use crate::raw;

const GROUPS: &CStr = c"/groups";
const CONTROL: &CStr = c"/groups/cgroup.subtree_control";
const GROUP: &CStr = c"/groups/commands";
const MOST: &CStr = c"/groups/commands/pids.max";
const MEMBERS: &CStr = c"/groups/commands/cgroup.procs";
const EVENTS: &CStr = c"/groups/commands/pids.events";
/// What the kernel counts (proc(5)).
const COUNTERS: &CStr = c"/root/proc/vmstat";

/// With so few bytes left, a file system is full: the launcher says the same.
const REST_BYTES: u64 = 1 << 20;

/// What a command takes on before it is one.
#[derive(Debug)]
pub struct Confinement {
    filter: [u8; INSTRUCTIONS_MAX * INSTRUCTION_BYTES],
    length: usize,
    limits: Limits,
    refused: Counter,
    killed: Counter,
    /// The file system of the private directories.
    pub storage: OwnedFd,
}

/// A number in a file of the kernel, which only grows.
#[derive(Debug)]
struct Counter {
    file: OwnedFd,
    /// With the blank behind it.
    name: &'static [u8],
    last: u64,
}

impl Counter {
    fn new(file: OwnedFd, name: &'static [u8]) -> Self {
        let mut counter = Self {
            file,
            name,
            last: 0,
        };
        // What was counted before is nobody's.
        let _before = counter.has_grown();
        counter
    }

    fn has_grown(&mut self) -> bool {
        let mut text = [0; 16 * 1024];
        let mut used = 0;
        while let Some(room) = text.get_mut(used..).filter(|room| !room.is_empty()) {
            match pread(&self.file, room, used as u64) {
                Ok(0) | Err(_) => break,
                Ok(length) => used += length,
            }
        }
        let lines = text[..used].split(|&byte| byte == b'\n');
        let value = lines.filter_map(|line| line.strip_prefix(self.name)).next();
        let now = value.map_or(0, number);
        let grown = now > self.last;
        self.last = now;
        grown
    }
}

fn number(digits: &[u8]) -> u64 {
    let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |sum: u64, &digit| {
        sum.saturating_mul(10).saturating_add((digit - b'0').into())
    })
}

impl Confinement {
    /// Prepares it, and puts this process and all that it will start into the
    /// group. To be called with the process table in its place, by user 0.
    pub fn new(birth: &Birth<'_>, storage: OwnedFd) -> Step<Self> {
        let mut filter = [0; INSTRUCTIONS_MAX * INSTRUCTION_BYTES];
        let length = birth.filter.len();
        let room = filter.get_mut(..length).filter(|room| !room.is_empty());
        room.ok_or(("take the rules of system calls", Errno::INVAL))?
            .copy_from_slice(birth.filter);
        let refused = group(birth.limits.processes)?;
        let counters = while_("open the kernel's counters", open(COUNTERS, OFlags::RDONLY))?;
        raise(&birth.limits)?;
        Ok(Self {
            filter,
            length,
            limits: birth.limits,
            refused: Counter::new(refused, b"max "),
            killed: Counter::new(counters, b"oom_kill "),
            storage,
        })
    }

    /// Takes it on, for good: in the process that is to be a command, which must
    /// have no way to new privileges.
    pub fn take(&self) -> Result<(), system::Errno> {
        let both = |most| Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        let limits = [
            (Resource::Core, Some(both(0))),
            // The signal that says what happened comes only below the hard limit.
            (
                Resource::Cpu,
                self.limits.cpu_seconds.map(|soft| Rlimit {
                    current: Some(soft),
                    maximum: Some(soft.saturating_add(1)),
                }),
            ),
            (Resource::Fsize, self.limits.file_bytes.map(both)),
            (Resource::Nofile, self.limits.open_files.map(both)),
        ];
        for (resource, limit) in limits {
            if let Some(limit) = limit {
                setrlimit(resource, limit).map_err(plain)?;
            }
        }
        self.take_rules()
    }

    /// Takes on the rules of system calls alone.
    pub fn take_rules(&self) -> Result<(), system::Errno> {
        raw::install_filter(&self.filter[..self.length])
    }

    /// Sees that it holds, in a process of its own.
    pub fn try_out(&self) -> Step<()> {
        let seen = raw::try_in_child(|| self.take().is_ok() && raw::is_filtered());
        match seen {
            Ok(true) => Ok(()),
            Ok(false) => Err(("see the rules of system calls in force", Errno::PERM)),
            Err(system::Errno(number)) => Err((
                "try the rules of system calls",
                Errno::from_raw_os_error(number),
            )),
        }
    }

    /// Which limits were met since this was asked before.
    pub fn met(&mut self) -> Met {
        Met {
            processes: self.refused.has_grown(),
            memory: self.killed.has_grown(),
            disk: is_full(&self.storage),
        }
    }
}

/// Whether there is no room left, or no more than nobody could fill.
fn is_full(storage: &OwnedFd) -> bool {
    let full = |storage: StatVfs| {
        let rest = (storage.f_blocks / 64).min(REST_BYTES / storage.f_frsize.max(1));
        storage.f_bavail <= rest || storage.f_favail == 0
    };
    fstatvfs(storage).is_ok_and(full)
}

fn plain(error: Errno) -> system::Errno {
    system::Errno(error.raw_os_error())
}

/// Makes a group with this process in it; the file that counts what it refuses.
fn group(processes: Option<u64>) -> Step<OwnedFd> {
    let doing = "limit the number of processes";
    let everybody = Mode::from_raw_mode(0o755);
    let harmless = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    while_(doing, mkdirat(CWD, GROUPS, everybody))?;
    while_(doing, mount(c"groups", GROUPS, c"cgroup2", harmless, None))?;
    while_(doing, put(CONTROL, b"+pids"))?;
    while_(doing, mkdirat(CWD, GROUP, everybody))?;
    if let Some(most) = processes {
        let mut digits = [0; 20];
        while_(doing, put(MOST, decimal(most, &mut digits)))?;
    }
    while_(doing, put(MEMBERS, b"0"))?;
    while_(doing, open(EVENTS, OFlags::RDONLY))
}

fn put(file: &CStr, text: &[u8]) -> io::Result<()> {
    let written = write(open(file, OFlags::WRONLY)?, text)?;
    match written == text.len() {
        true => Ok(()),
        false => Err(Errno::IO),
    }
}

pub fn decimal(number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let (mut first, mut rest) = (digits.len(), number);
    while first == digits.len() || rest > 0 {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    &digits[first..]
}

/// Makes room for the limits of the plan where the kernel's own are lower, and
/// leaves the number of processes to the group alone, which counts refusals.
fn raise(limits: &Limits) -> Step<()> {
    let none = Rlimit {
        current: None,
        maximum: None,
    };
    while_("raise a limit", setrlimit(Resource::Nproc, none))?;
    let Some(files) = limits.open_files else {
        return Ok(());
    };
    let own = getrlimit(Resource::Nofile);
    let room = Rlimit {
        maximum: own.maximum.map(|most| most.max(files)),
        ..own
    };
    while_("raise a limit", setrlimit(Resource::Nofile, room))
}
