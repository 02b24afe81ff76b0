//! The process that made a held call: its memory, its directories, its umask.
//!
//! Everything is read once and kept. Whether it was that process's is known
//! only when the call is seen to wait still, afterwards.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use stockade_sys::process::read_memory;

use super::call::HERE;

/// Longest path that the kernel takes, its terminating NUL included (PATH_MAX).
const PATH_BYTES_MAX: usize = 4096;
const PAGE_BYTES: u64 = 4096;

/// Threads whose status is kept open.
const STATUSES_MAX: usize = 64;

/// Open /proc/THREAD/status. Each belongs to its thread and not to the number:
/// of one that is gone nothing can be read (ESRCH), whoever has its number now.
#[derive(Default)]
pub(super) struct Statuses(RefCell<BTreeMap<u32, OwnedFd>>);

/// A thread that waits, seen through the host's /proc.
pub(super) struct Target<'a> {
    pub(super) proc: &'a OwnedFd,
    pub(super) thread: u32,
    pub(super) statuses: &'a Statuses,
}

impl Target<'_> {
    /// A path argument: bytes up to the NUL.
    pub(super) fn path(&self, address: u64) -> io::Result<Vec<u8>> {
        let mut path = Vec::new();
        let mut address = address;
        let mut chunk = [0u8; PAGE_BYTES as usize];
        while path.len() < PATH_BYTES_MAX {
            // Never over the end of a page: the next may not be there.
            let to_end = PAGE_BYTES - address % PAGE_BYTES;
            // Most paths are short.
            let wanted = if path.is_empty() {
                to_end.min(256)
            } else {
                to_end
            };
            let read = read_memory(self.thread, address, &mut chunk[..wanted as usize])?;
            let chunk = &chunk[..read];
            if let Some(end) = chunk.iter().position(|&byte| byte == 0) {
                path.extend_from_slice(&chunk[..end]);
                return Ok(path);
            }
            if read == 0 {
                return Err(Errno::FAULT.into());
            }
            path.extend_from_slice(chunk);
            address += read as u64;
        }
        Err(Errno::NAMETOOLONG.into())
    }

    /// The directory from which a relative path is looked up.
    pub(super) fn directory(&self, descriptor: i32) -> rustix::io::Result<OwnedFd> {
        let name = match descriptor {
            HERE => format!("{}/cwd", self.thread),
            number => format!("{}/fd/{number}", self.thread),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(self.proc, name, flags, Mode::empty())
    }

    /// What one of its descriptors is open on, opened anew with these flags.
    pub(super) fn reopen(&self, descriptor: i32, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        openat(self.proc, self.descriptor(descriptor), flags, Mode::empty())
    }

    /// Where one of its descriptors is, below the host's /proc.
    pub(super) fn descriptor(&self, number: i32) -> String {
        format!("{}/fd/{number}", self.thread)
    }

    /// Bits that new files do not get.
    pub(super) fn umask(&self) -> io::Result<Mode> {
        let mut statuses = self.statuses.0.borrow_mut();
        if let Some(umask) = statuses.get(&self.thread).and_then(umask_in) {
            return Ok(umask);
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let name = format!("{}/status", self.thread);
        let status = openat(self.proc, name, flags, Mode::empty())?;
        let umask = umask_in(&status).ok_or(io::ErrorKind::InvalidData)?;
        if statuses.len() >= STATUSES_MAX {
            statuses.clear();
        }
        statuses.insert(self.thread, status);
        Ok(umask)
    }
}

fn umask_in(status: &OwnedFd) -> Option<Mode> {
    // It is the second line (proc_pid_status(5)).
    let mut head = [0u8; 128];
    let read = rustix::io::pread(status, &mut head, 0).ok()?;
    let bits = head[..read]
        .split(|&byte| byte == b'\n')
        .find_map(|line| line.strip_prefix(b"Umask:\t"))
        .and_then(|digits| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
    bits.map(Mode::from_raw_mode)
}

/// A path that names an open descriptor of whoever looks it up; the number.
pub(super) fn own_descriptor(path: &[u8]) -> Option<i32> {
    let number = match path {
        b"/dev/stdin" => return Some(0),
        b"/dev/stdout" => return Some(1),
        b"/dev/stderr" => return Some(2),
        _ => [
            &b"/dev/fd/"[..],
            b"/proc/self/fd/",
            b"/proc/thread-self/fd/",
        ]
        .iter()
        .find_map(|prefix| path.strip_prefix(*prefix))?,
    };
    let is_number = !number.is_empty() && number.iter().all(u8::is_ascii_digit);
    is_number
        .then(|| std::str::from_utf8(number).ok()?.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    /// What is kept open of a process says what is so now, and nothing once
    /// the process is gone.
    #[test]
    fn a_umask_is_never_remembered() {
        let script = "umask 027; echo; read _; umask 0; echo; read _";
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut to = shell.stdin.take().unwrap();
        let mut from = BufReader::new(shell.stdout.take().unwrap()).lines();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = rustix::fs::open("/proc", flags, Mode::empty()).unwrap();
        let statuses = Statuses::default();
        let umask = || {
            let target = Target {
                proc: &proc,
                thread: shell.id(),
                statuses: &statuses,
            };
            target.umask().map(|mode| mode.as_raw_mode()).ok()
        };
        for expected in [0o027, 0] {
            from.next().unwrap().unwrap();
            assert_eq!(umask(), Some(expected));
            assert_eq!(umask(), Some(expected));
            assert_eq!(statuses.0.borrow().len(), 1);
            writeln!(to).unwrap();
        }
        let thread = shell.id();
        shell.wait().unwrap();
        let target = Target {
            proc: &proc,
            thread,
            statuses: &statuses,
        };
        assert!(target.umask().is_err());
    }
}
