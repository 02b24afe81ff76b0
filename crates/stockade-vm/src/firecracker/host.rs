//! Where machines are, and how one begins.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use stockade_guest::Generation;
use stockade_sys::guard::{Guarded, Program};
use stockade_sys::rustix::rand::{GetRandomFlags, getrandom};

use super::configuration::{API, CONFIGURATION, Configuration, KERNEL};
pub use super::groups::Groups;
use super::jail::{self, Jail};
use super::machine::{Machine, Started};
use super::snapshot::{MEMORY, STATE, Snapshot};
use super::{FirecrackerError, console::Console, probe, system};

/// What confines Firecracker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// Its jailer, as root: a root directory, a user and a control group of its
    /// own; and a pid namespace of ours.
    Jailer {
        program: PathBuf,
        /// Whom it runs as. No other process should.
        uid: u32,
        gid: u32,
        groups: Groups,
    },
    /// Its own system call filters, and whatever the caller is confined by. For an
    /// ordinary user, whom the jailer does not work for.
    Own,
}

/// A directory of machines.
#[derive(Debug)]
pub struct Host {
    base: PathBuf,
    machines: OwnedFd,
    firecracker: PathBuf,
    confinement: Confinement,
}

impl Host {
    /// Opens the directory, makes it where it is missing, and removes what killed
    /// machines left there. It must be the caller's own and closed to others; with
    /// snapshots in the same file system, machines share memory with them.
    ///
    /// Refused where the caller cannot open /dev/kvm.
    pub fn open(
        base: &Path,
        firecracker: &Path,
        confinement: Confinement,
    ) -> Result<Self, FirecrackerError> {
        probe::open_kvm()?;
        let failed = system("open the directory of machines");
        let name = firecracker.file_name().and_then(|name| name.to_str());
        let name = name.filter(|name| name.contains("firecracker"));
        let named_so = "the jailer wants a program that is called firecracker";
        let name = name.ok_or_else(|| failed(io::Error::other(named_so)))?;
        let machines = jail::machines(base, name).map_err(&failed)?;
        let host = Self {
            base: base.to_owned(),
            machines,
            firecracker: firecracker.to_owned(),
            confinement,
        };
        Jail::sweep(host.machines.as_fd(), host.groups()).map_err(&failed)?;
        Ok(host)
    }

    /// Boots a machine. Returns when it has taken its first generation.
    pub fn boot(&self, configuration: &Configuration) -> Result<Machine, FirecrackerError> {
        let since = Instant::now();
        let failed = system("put the machine's files in place");
        if !configuration.drives.iter().all(|one| one.has_good_name()) {
            return Err(failed(io::Error::other("a drive's name is not allowed")));
        }
        let jail = self.jail()?;
        let mut drives = Vec::new();
        for (name, file) in configuration.files() {
            let placed = jail.place(&name, file).map_err(&failed)?;
            if name != KERNEL {
                drives.push((name, placed));
            }
        }
        let document = serde_json::to_vec(&configuration.document());
        let document = document.map_err(|error| failed(error.into()))?;
        jail.write(CONFIGURATION, &document).map_err(&failed)?;
        let more = ["--config-file", CONFIGURATION];
        let started = self.start(jail, configuration.memory, &more)?;
        Machine::begin(Started {
            since,
            drives,
            ..started
        })
    }

    /// Starts a machine as it was when it was saved, but for what it must have for
    /// itself. Returns when it has taken a generation that no other has.
    pub fn restore(&self, snapshot: &Snapshot) -> Result<Machine, FirecrackerError> {
        let since = Instant::now();
        let failed = system("put the snapshot's files in place");
        let jail = self.jail()?;
        let mut memory_bytes = 0;
        let mut drives = Vec::new();
        for (name, file) in snapshot.files() {
            let placed = jail.place(name, &file).map_err(&failed)?;
            match name {
                MEMORY => memory_bytes = placed.metadata().map_err(&failed)?.len(),
                STATE => {}
                _ => drives.push((name.to_owned(), placed)),
            }
        }
        let memory = u32::try_from(memory_bytes >> 20);
        let memory = memory.map_err(|error| failed(io::Error::other(error)))?;
        let mut started = Started {
            since,
            drives,
            base: Some(snapshot.clone()),
            ..self.start(jail, memory, &[])?
        };
        let load = Load {
            snapshot_path: STATE,
            mem_backend: Backend {
                backend_type: "File",
                backend_path: MEMORY,
            },
            enable_diff_snapshots: true,
            resume_vm: true,
        };
        let api = started.api()?;
        api.change("load the snapshot", "PUT", "/snapshot/load", &load)?;
        Machine::begin(started)
    }

    fn groups(&self) -> Option<&Groups> {
        match &self.confinement {
            Confinement::Jailer { groups, .. } => Some(groups),
            Confinement::Own => None,
        }
    }

    fn jail(&self) -> Result<Jail, FirecrackerError> {
        Jail::new(self.machines.as_fd(), self.groups().cloned())
    }

    fn start(&self, jail: Jail, memory: u32, more: &[&str]) -> Result<Started, FirecrackerError> {
        let failed = system("start Firecracker");
        let (read, write) = io::pipe().map_err(&failed)?;
        let null = File::open("/dev/null").map_err(&failed)?;
        let (program, arguments) = self.command(jail.name(), memory, more);
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|error| failed(error.into()));
        let arguments = arguments.iter().map(|one| text(one.as_bytes()));
        let guard = Guarded::start(&Program {
            path: &text(program.as_os_str().as_bytes())?,
            arguments: &arguments.collect::<Result<Vec<_>, _>>()?,
            environment: &[],
            directory: jail.root(),
            input: null.as_fd(),
            output: write.as_fd(),
            error: write.as_fd(),
            own_namespace: matches!(self.confinement, Confinement::Jailer { .. }),
        });
        let guard = guard.map_err(&failed)?;
        Ok(Started {
            guard,
            console: Console::of(read.into()).map_err(&failed)?,
            jail,
            api: None,
            since: Instant::now(),
            memory_bytes: u64::from(memory) << 20,
            drives: Vec::new(),
            base: None,
        })
    }

    /// What is executed.
    fn command(&self, name: &str, memory: u32, more: &[&str]) -> (&Path, Vec<String>) {
        let own = ["--api-sock", API, "--level", "Error"];
        let own = own.iter().chain(more).map(|one| (*one).to_owned());
        let shown = |path: &Path| path.to_string_lossy().into_owned();
        match &self.confinement {
            Confinement::Own => {
                let first = ["firecracker", "--id", name].map(str::to_owned);
                (&self.firecracker, first.into_iter().chain(own).collect())
            }
            Confinement::Jailer {
                program,
                uid,
                gid,
                groups,
            } => {
                let mut words = vec!["jailer".to_owned()];
                for (option, value) in [
                    ("--id", name.to_owned()),
                    ("--exec-file", shown(&self.firecracker)),
                    ("--uid", uid.to_string()),
                    ("--gid", gid.to_string()),
                    ("--chroot-base-dir", shown(&self.base)),
                ] {
                    words.extend([option.to_owned(), value]);
                }
                words.extend(groups.arguments(memory));
                words.push("--".to_owned());
                words.extend(own);
                (program, words)
            }
        }
    }
}

#[derive(Serialize)]
struct Load {
    snapshot_path: &'static str,
    mem_backend: Backend,
    enable_diff_snapshots: bool,
    resume_vm: bool,
}

#[derive(Serialize)]
struct Backend {
    backend_type: &'static str,
    backend_path: &'static str,
}

/// One that no machine was ever told.
pub(crate) fn fresh_generation() -> Result<Generation, FirecrackerError> {
    let failed = system("get random numbers");
    let mut random = [0; 16 + 32 + 6];
    let filled = getrandom(&mut random, GetRandomFlags::empty());
    if filled.map_err(|errno| failed(errno.into()))? != random.len() {
        return Err(failed(io::ErrorKind::UnexpectedEof.into()));
    }
    let mut generation = Generation {
        identity: [0; 16],
        entropy: [0; 32],
        mac: [0; 6],
        clock_ms: 0,
    };
    generation.identity.copy_from_slice(&random[..16]);
    generation.entropy.copy_from_slice(&random[16..48]);
    generation.mac.copy_from_slice(&random[48..]);
    // Of nobody's making, and one card's (IEEE 802).
    generation.mac[0] = generation.mac[0] & 0xfc | 2;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_err(|error| failed(io::Error::other(error)))?;
    generation.clock_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    Ok(generation)
}
