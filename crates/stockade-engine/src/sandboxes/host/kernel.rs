//! Where the agent runs, where the plan says that something else has started it:
//! in another kernel than the host's, or in a container. No command is started
//! before that was seen.

use std::io;

use stockade_agent::host::Kind;
use stockade_agent::wire::{FileRequest, Reply, Request};
use stockade_policy::path::printable;
use stockade_policy::plan::GuestKernel;
use stockade_vm::qemu::MARK;

use super::Host;

/// What a kernel says of itself (proc_version(5)).
const VERSION: &str = "/proc/version";
/// What a kernel was started with (proc_cmdline(5)). A machine may well have the
/// same kernel as the host, but not the same arguments.
const ARGUMENTS: &str = "/proc/cmdline";
/// What the host's kernel says of who asks (proc_pid_status(5)).
const STATUS: &str = "/proc/self/status";
/// What is mounted for who asks (proc_pid_mountinfo(5)).
const MOUNTS: &str = "/proc/self/mountinfo";
/// Longest answer that is looked at, in bytes: the mounts of a large view.
const BYTES_MAX: usize = 256 << 10;

/// What is known of where the agent runs.
#[derive(Debug)]
pub(super) enum Kernel {
    /// Where the launcher has started it.
    Hosts,
    /// It is to be another place; what was answered so far.
    Unseen {
        place: GuestKernel,
        answers: Vec<Vec<u8>>,
    },
    /// The agent was asked the next question, and has said so much.
    Asked {
        place: GuestKernel,
        answers: Vec<Vec<u8>>,
        task: u32,
        said: Vec<u8>,
        over: bool,
    },
    /// It was that place.
    Seen(String),
}

/// The files that show it.
fn questions(place: &GuestKernel) -> &'static [&'static str] {
    match place {
        GuestKernel::Gvisor(_) => &[VERSION],
        GuestKernel::Machine(_) => &[ARGUMENTS],
        GuestKernel::Hosts(_) => &[STATUS, MOUNTS],
    }
}

impl Kernel {
    pub(super) fn unseen(place: GuestKernel) -> Self {
        Self::Unseen {
            place,
            answers: Vec::new(),
        }
    }

    /// Takes a reply, if it is about this.
    pub(super) fn note(&mut self, of: u32, reply: &Reply<'_>) -> bool {
        let Self::Asked {
            task, said, over, ..
        } = self
        else {
            return false;
        };
        if *task != of {
            return false;
        }
        match reply {
            Reply::Data { bytes, .. } => {
                let room = BYTES_MAX.saturating_sub(said.len());
                said.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            Reply::Done | Reply::Failed { .. } => *over = true,
            _ => {}
        }
        true
    }

    /// Whether commands may be started. An error when the place is not what the
    /// plan says.
    pub(super) fn is_seen(&mut self) -> io::Result<bool> {
        let (place, mut answers, said) = match std::mem::replace(self, Self::Hosts) {
            Self::Asked {
                place,
                answers,
                said,
                over: true,
                ..
            } => (place, answers, said),
            other => {
                *self = other;
                return Ok(matches!(self, Self::Hosts | Self::Seen(_)));
            }
        };
        answers.push(said);
        if answers.len() < questions(&place).len() {
            *self = Self::Unseen { place, answers };
            return Ok(false);
        }
        *self = Self::Seen(judged(&place, &answers)?);
        Ok(true)
    }
}

/// What shows that the agent is where the plan says.
fn judged(place: &GuestKernel, answers: &[Vec<u8>]) -> io::Result<String> {
    let of_host = |path: &str| std::fs::read(path);
    match (place, answers) {
        (GuestKernel::Gvisor(_), [said]) => another(place, said, &of_host(VERSION)?),
        (GuestKernel::Machine(_), [said]) => another(place, said, &of_host(ARGUMENTS)?),
        (GuestKernel::Hosts(_), [status, mounts]) => confined(status, mounts, &of_host(STATUS)?),
        _ => Err(io::Error::other("it was not asked where it runs (AU2)")),
    }
}

/// What shows that a kernel is another one than the host's, and the plan's.
fn another(place: &GuestKernel, said: &[u8], host: &[u8]) -> io::Result<String> {
    let said = said.trim_ascii();
    let differs = !said.is_empty() && said != host.trim_ascii();
    let (expected, since) = match place {
        GuestKernel::Gvisor(_) => (said.starts_with(b"Linux version "), ""),
        GuestKernel::Hosts(_) => (false, ""),
        GuestKernel::Machine(machine) => {
            let mark = format!("{MARK}{}", machine.mark());
            let mut words = said.split(|&byte| byte == b' ');
            let since = match machine.saved {
                Some(_) => "; it was restored from a saved state; a filter refused keyctl there",
                None => "; it booted; a filter refused keyctl there",
            };
            (words.any(|word| word == mark.as_bytes()), since)
        }
    };
    match differs && expected {
        true => Ok(format!(
            "{} of the agent's kernel says: {}{since}",
            questions(place)[0],
            printable(said)
        )),
        false => Err(io::Error::other(
            "it runs on the host's kernel, or does not say on which (AU2)",
        )),
    }
}

/// What shows that an OCI runtime confined what it started: process 1 of a pid
/// namespace, no capability, no way to gain one, a filter more than the
/// launcher's, and a root and a process table that cannot be written. The
/// namespaces themselves were seen when the launcher made those around it.
fn confined(status: &[u8], mounts: &[u8], own_status: &[u8]) -> io::Result<String> {
    let field = |status: &[u8], name: &str| -> Option<String> {
        let text = String::from_utf8_lossy(status);
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(|value| value.trim().to_owned())
    };
    let filters = |status: &[u8]| field(status, "Seccomp_filters")?.parse::<u32>().ok();
    let none =
        |name: &&str| field(status, name).is_none_or(|set| !set.trim_matches('0').is_empty());
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
    let read_only = |place: &str| {
        let mounts = String::from_utf8_lossy(mounts);
        let mut at_place = mounts.lines().filter_map(|line| {
            let mut fields = line.split(' ').skip(4);
            (fields.next()? == place).then_some(fields.next()?.to_owned())
        });
        // The last one is on top.
        at_place
            .next_back()
            .is_some_and(|options| options.split(',').any(|one| one == "ro"))
    };
    let wrong = [
        (
            field(status, "Pid").as_deref() != Some("1"),
            "a pid namespace",
        ),
        (sets.iter().any(none), "empty capability sets"),
        (
            field(status, "NoNewPrivs").as_deref() != Some("1"),
            "no_new_privs",
        ),
        (
            filters(status) < filters(own_status).map(|own| own + 2) || filters(status).is_none(),
            "the rules of system calls",
        ),
        (!read_only("/"), "a root that cannot be written"),
        (
            !read_only("/proc"),
            "a process table that cannot be written",
        ),
    ];
    match wrong.iter().find(|(wrong, _)| *wrong) {
        None => Ok(format!(
            "the agent is process 1, has no capability, no_new_privs and {} filters; / and /proc \
             are read-only",
            filters(status).unwrap_or_default()
        )),
        Some((_, what)) => Err(io::Error::other(format!(
            "the container lacks {what}, or does not show it (AU2)"
        ))),
    }
}

impl Host {
    /// Asks where it is, where that matters.
    pub(super) fn look_at_kernel(&mut self) {
        let Kernel::Unseen { place, answers } = &mut self.kernel else {
            return;
        };
        let Some(path) = questions(place).get(answers.len()) else {
            return;
        };
        let Some(task) = self.link.ledger.begin(Kind::Read) else {
            return;
        };
        self.kernel = Kernel::Asked {
            place: place.clone(),
            answers: std::mem::take(answers),
            task,
            said: Vec::new(),
            over: false,
        };
        let request = FileRequest::Read {
            path: path.as_bytes(),
            offset: 0,
            length: BYTES_MAX as u64,
        };
        self.link.send(task, &Request::File(request));
    }

    /// What was seen of where it is, once it was.
    pub(crate) fn kernel(&self) -> Option<&str> {
        match &self.kernel {
            Kernel::Seen(evidence) => Some(evidence),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use stockade_policy::path::AbsolutePath;
    use stockade_policy::plan::{Accelerator, Machine, Runsc};

    use super::*;

    const HOST: &[u8] = b"Linux version 6.12.1 (gcc) #1 SMP\n";

    fn path(text: &str) -> AbsolutePath {
        AbsolutePath::parse(text).unwrap()
    }

    fn gvisor() -> GuestKernel {
        GuestKernel::Gvisor(Runsc {
            program: path("/runsc"),
            version: "1".to_owned(),
        })
    }

    fn machine(initramfs: &str) -> GuestKernel {
        GuestKernel::Machine(Machine {
            program: path("/qemu"),
            version: "1".to_owned(),
            image: "default".to_owned(),
            release: "6.12".to_owned(),
            kernel: path("/kernel"),
            kernel_digest: "k".to_owned(),
            initramfs: path("/initramfs"),
            initramfs_digest: initramfs.to_owned(),
            memory: 1,
            processors: 1,
            accelerator: Accelerator::Tcg,
            saved: None,
        })
    }

    #[test]
    fn only_another_kernel_counts() {
        let seen = |said: &[u8]| another(&gvisor(), said, HOST);
        assert!(seen(b"Linux version 4.4.0 #1 SMP 2016\n").is_ok());
        assert!(seen(HOST).is_err());
        assert!(seen(b"Linux version 6.12.1 (gcc) #1 SMP").is_err());
        assert!(seen(b"").is_err());
        assert!(seen(b"no kernel").is_err());
        let arguments = b"quiet stockade=0123\n";
        let seen = |image: &str, said: &[u8], host: &[u8]| another(&machine(image), said, host);
        assert!(seen("0123", arguments, b"quiet").is_ok());
        assert!(seen("0123", arguments, arguments).is_err());
        assert!(seen("0124", arguments, b"quiet").is_err());
        assert!(seen("0123", b"quiet ro", b"quiet").is_err());
    }

    const STATUS_WITHIN: &str = "Name:\tstockade-agent\nPid:\t1\nCapInh:\t0000000000000000\n\
        CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapBnd:\t0000000000000000\n\
        CapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n";
    const MOUNTS_WITHIN: &str = "125 84 0:42 / / ro,relatime - tmpfs none rw\n\
        126 125 0:5 / /proc rw,nosuid - proc proc rw\n\
        142 125 0:46 / /proc ro,nosuid,nodev,noexec - proc proc ro\n";

    #[test]
    fn a_container_in_which_one_thing_is_missing_is_none() {
        let own = b"Seccomp_filters:\t1\n";
        let seen = |status: &str, mounts: &str| {
            confined(status.as_bytes(), mounts.as_bytes(), own).map_err(|error| error.to_string())
        };
        assert!(seen(STATUS_WITHIN, MOUNTS_WITHIN).is_ok());
        for (from, to, lacks) in [
            ("Pid:\t1", "Pid:\t7", "a pid namespace"),
            (
                "CapBnd:\t0000000000000000",
                "CapBnd:\t0000000000000001",
                "capability",
            ),
            ("CapEff:\t0000000000000000\n", "", "capability"),
            ("NoNewPrivs:\t1", "NoNewPrivs:\t0", "no_new_privs"),
            ("Seccomp_filters:\t3", "Seccomp_filters:\t2", "system calls"),
            ("Seccomp_filters:\t3\n", "", "system calls"),
        ] {
            let said = seen(&STATUS_WITHIN.replace(from, to), MOUNTS_WITHIN);
            assert!(said.unwrap_err().contains(lacks), "{from}");
        }
        for (from, to) in [("/ / ro,", "/ / rw,"), ("/proc ro,", "/proc rw,")] {
            let said = seen(STATUS_WITHIN, &MOUNTS_WITHIN.replace(from, to));
            assert!(said.unwrap_err().contains("cannot be written"), "{from}");
        }
        assert!(seen("", "").is_err());
    }

    #[test]
    fn the_answer_is_bounded_and_belongs_to_its_task() {
        let mut kernel = Kernel::Asked {
            place: gvisor(),
            answers: Vec::new(),
            task: 3,
            said: Vec::new(),
            over: false,
        };
        let stream = stockade_agent::wire::Stream::Output;
        let bytes = &[b'x'; BYTES_MAX + 1][..];
        let data = Reply::Data { stream, bytes };
        assert!(!kernel.note(4, &data));
        assert!(kernel.note(3, &data));
        assert!(matches!(&kernel, Kernel::Asked { said, .. } if said.len() == BYTES_MAX));
        assert!(!kernel.is_seen().unwrap());
        assert!(kernel.note(3, &Reply::Done));
        assert!(kernel.is_seen().is_err());
    }
}
