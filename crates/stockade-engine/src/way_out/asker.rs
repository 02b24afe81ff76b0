//! Which process of a sandbox opened a connection: best effort, for a person
//! who is asked about it.
//!
//! The port leads to a socket in the sandbox's own table of connections
//! (proc_net_tcp(5)), and the socket to a process that has it open. All of it
//! is read while the command runs and may lie; nothing is decided by it.

use std::fs;
use std::path::{Path, PathBuf};

use stockade_policy::path::printable;

/// Most processes and descriptors that are looked at.
const PROCESSES_MAX: usize = 512;
const DESCRIPTORS_MAX: usize = 8192;
/// Longest command line that is shown, in bytes.
const COMMAND_BYTES_MAX: usize = 160;
/// Longest table of connections that is read, in bytes.
const TABLE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Who asked, as it calls itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Process id outside.
    pub process: u32,
    /// Its command line, printable and cut.
    pub command: String,
}

/// The process below `init` that has the connection from `port` open.
pub fn find(init: u32, port: u16) -> Option<Asker> {
    let wanted = format!("socket:[{}]", inode(init, port)?);
    let mut left = DESCRIPTORS_MAX;
    for process in processes(init) {
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).ok();
        for descriptor in descriptors.into_iter().flatten().flatten() {
            left = left.checked_sub(1)?;
            if fs::read_link(descriptor.path()).is_ok_and(|target| target == Path::new(&wanted)) {
                let command = command(process);
                return Some(Asker { process, command });
            }
        }
    }
    None
}

/// Inode number of the socket that connects from `port`.
fn inode(init: u32, port: u16) -> Option<u64> {
    ["tcp", "tcp6"].iter().find_map(|table| {
        let table = read(format!("/proc/{init}/net/{table}"), TABLE_BYTES_MAX)?;
        let table = String::from_utf8(table).ok()?;
        table.lines().skip(1).find_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let (_, local) = fields.nth(1)?.rsplit_once(':')?;
            if u16::from_str_radix(local, 16) != Ok(port) {
                return None;
            }
            // After the local address: remote, state, queues, timer,
            // retransmissions, uid, timeout, inode. Sockets without one are
            // nobody's any more.
            fields.nth(7)?.parse().ok().filter(|&inode| inode != 0)
        })
    })
}

/// `init` and everything below it, from the kernel's lists of children.
fn processes(init: u32) -> Vec<u32> {
    let mut found = vec![init];
    let mut next = 0;
    while next < found.len() && found.len() < PROCESSES_MAX {
        let threads = fs::read_dir(format!("/proc/{}/task", found[next])).ok();
        for thread in threads.into_iter().flatten().flatten() {
            let children = fs::read_to_string(thread.path().join("children"));
            let children = children.unwrap_or_default();
            found.extend(
                children
                    .split_ascii_whitespace()
                    .flat_map(str::parse::<u32>),
            );
        }
        next += 1;
    }
    found.truncate(PROCESSES_MAX);
    found
}

fn command(process: u32) -> String {
    let line = read(format!("/proc/{process}/cmdline"), COMMAND_BYTES_MAX);
    let mut line = line.unwrap_or_default();
    while line.last() == Some(&0) {
        line.pop();
    }
    for byte in &mut line {
        if *byte == 0 {
            *byte = b' ';
        }
    }
    printable(&line)
}

fn read(path: impl Into<PathBuf>, bytes_max: usize) -> Option<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let file = fs::File::open(path.into()).ok()?;
    file.take(bytes_max as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_process_behind_a_port_is_found() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                continue;
            };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let port = client.local_addr().unwrap().port();
            let asker = find(std::process::id(), port).unwrap();
            assert_eq!(asker.process, std::process::id());
            assert!(!asker.command.is_empty());
        }
        assert_eq!(find(std::process::id(), 1), None);
    }
}
