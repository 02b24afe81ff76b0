//! In which kernel the agent runs, where the plan says that it is not the
//! host's. No command is started before that was seen.

use std::io;

use stockade_agent::host::Kind;
use stockade_agent::wire::{FileRequest, Reply, Request};
use stockade_policy::path::printable;
use stockade_policy::plan::GuestKernel;

use super::Host;

/// What a kernel says of itself (proc_version(5)).
const VERSION: &str = "/proc/version";
/// What a kernel was started with (proc_cmdline(5)). A machine may well have the
/// same kernel as the host, but not the same arguments.
const ARGUMENTS: &str = "/proc/cmdline";
/// What only a machine's kernel is started with.
const MACHINE: &[u8] = b" stockade=";
/// Longest answer that is looked at, in bytes.
const BYTES_MAX: usize = 1024;

/// What is known of the agent's kernel.
#[derive(Debug)]
pub(super) enum Kernel {
    /// It is the host's, by the plan.
    Hosts,
    /// It is to be another one.
    Unseen(GuestKernel),
    /// The agent was asked, and has said so much.
    Asked {
        task: u32,
        path: &'static str,
        said: Vec<u8>,
        over: bool,
    },
    /// It was another one.
    Seen(String),
}

impl Kernel {
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

    /// Whether commands may be started. An error when the kernel is not what
    /// the plan says.
    pub(super) fn is_seen(&mut self) -> io::Result<bool> {
        match self {
            Self::Hosts | Self::Seen(_) => return Ok(true),
            Self::Unseen(_) | Self::Asked { over: false, .. } => return Ok(false),
            Self::Asked { said, path, .. } => {
                let host = std::fs::read(*path)?;
                *self = Self::Seen(judged(path, said, &host)?);
            }
        }
        Ok(true)
    }
}

/// What shows that a kernel is another one than the host's.
fn judged(path: &str, said: &[u8], host: &[u8]) -> io::Result<String> {
    let said = said.trim_ascii();
    let differs = !said.is_empty() && said != host.trim_ascii();
    let expected = match path {
        ARGUMENTS => said.windows(MACHINE.len()).any(|part| part == MACHINE),
        _ => said.starts_with(b"Linux version "),
    };
    match differs && expected {
        true => Ok(format!(
            "{path} of the agent's kernel says: {}",
            printable(said)
        )),
        false => Err(io::Error::other(
            "it runs on the host's kernel, or does not say on which (AU2)",
        )),
    }
}

impl Host {
    /// Asks which kernel it is, where that matters.
    pub(super) fn look_at_kernel(&mut self) {
        let path = match &self.kernel {
            Kernel::Unseen(GuestKernel::Gvisor(_)) => VERSION,
            Kernel::Unseen(GuestKernel::Machine(_)) => ARGUMENTS,
            _ => return,
        };
        let Some(task) = self.link.ledger.begin(Kind::Read) else {
            return;
        };
        self.kernel = Kernel::Asked {
            task,
            path,
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

    /// What was seen of the kernel, once it was.
    pub(crate) fn kernel(&self) -> Option<&str> {
        match &self.kernel {
            Kernel::Seen(evidence) => Some(evidence),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &[u8] = b"Linux version 6.12.1 (gcc) #1 SMP\n";

    #[test]
    fn only_another_kernel_counts() {
        let seen = |said: &[u8]| judged(VERSION, said, HOST);
        assert!(seen(b"Linux version 4.4.0 #1 SMP 2016\n").is_ok());
        assert!(seen(HOST).is_err());
        assert!(seen(b"Linux version 6.12.1 (gcc) #1 SMP").is_err());
        assert!(seen(b"").is_err());
        assert!(seen(b"no kernel").is_err());
        let arguments = b"quiet stockade=0:0:22:host";
        assert!(judged(ARGUMENTS, arguments, b"quiet").is_ok());
        assert!(judged(ARGUMENTS, arguments, arguments).is_err());
        assert!(judged(ARGUMENTS, b"quiet ro", b"quiet").is_err());
    }

    #[test]
    fn the_answer_is_bounded_and_belongs_to_its_task() {
        let mut kernel = Kernel::Asked {
            task: 3,
            path: VERSION,
            said: Vec::new(),
            over: false,
        };
        let stream = stockade_agent::wire::Stream::Output;
        let bytes = &[b'x'; BYTES_MAX + 1][..];
        let data = Reply::Data { stream, bytes };
        assert!(!kernel.note(4, &data));
        assert!(kernel.note(3, &data) && kernel.note(3, &data));
        assert!(matches!(&kernel, Kernel::Asked { said, .. } if said.len() == BYTES_MAX));
        assert!(!kernel.is_seen().unwrap());
        assert!(kernel.note(3, &Reply::Done));
        assert!(kernel.is_seen().is_err());
    }
}
