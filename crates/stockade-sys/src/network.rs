//! The network of a fresh namespace, and who listens on unix sockets outside.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::check;

/// Brings up `lo` (netdevice(7)). The kernel then adds 127.0.0.1 and ::1.
pub fn loopback_up() -> io::Result<()> {
    let socket = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    // SAFETY: all-zero is a valid `ifreq`; the name fits and ends in NUL.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: `request` is an `ifreq`, as SIOCSIFFLAGS expects.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    check(result.into())?;
    Ok(())
}

fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes integers.
    let fd = check(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) }.into())?;
    // SAFETY: the kernel made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A unix socket of this network namespace that is bound to a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundSocket {
    /// As given to bind(2): maybe relative, maybe renamed since.
    pub path: Vec<u8>,
    /// Inode of the socket file, and its device as the kernel encodes it
    /// (major in the upper twelve bits, minor in the lower twenty).
    pub inode: u32,
    pub device: u32,
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const UDIAG_SHOW_NAME: u32 = 1;
const UDIAG_SHOW_VFS: u32 = 2;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_VFS: u16 = 1;

/// Every unix socket that is bound to a path in this network namespace
/// (sock_diag(7)), whatever its state: a bound datagram socket takes messages
/// without listening.
pub fn bound_unix_sockets() -> io::Result<Vec<BoundSocket>> {
    let socket = socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_SOCK_DIAG)?;
    // struct nlmsghdr, then struct unix_diag_req.
    let mut request = Vec::with_capacity(40);
    request.extend_from_slice(&40u32.to_ne_bytes());
    request.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    request.extend_from_slice(&[0; 8]);
    request.extend_from_slice(&[libc::AF_UNIX as u8, 0, 0, 0]);
    request.extend_from_slice(&u32::MAX.to_ne_bytes());
    request.extend_from_slice(&0u32.to_ne_bytes());
    request.extend_from_slice(&(UDIAG_SHOW_NAME | UDIAG_SHOW_VFS).to_ne_bytes());
    request.extend_from_slice(&[0; 8]);
    rustix::net::send(&socket, &request, rustix::net::SendFlags::empty())?;

    let mut found = Vec::new();
    let mut buffer = vec![0u8; 32 * 1024];
    loop {
        let (length, _) =
            rustix::net::recv(&socket, &mut buffer[..], rustix::net::RecvFlags::empty())?;
        let mut messages = &buffer[..length];
        while messages.len() >= 16 {
            let size = read_u32(messages, 0)? as usize;
            let kind = read_u16(messages, 4)?;
            if size < 16 || size > messages.len() {
                return Err(malformed());
            }
            match i32::from(kind) {
                libc::NLMSG_DONE => return Ok(found),
                libc::NLMSG_ERROR => {
                    return Err(io::Error::from_raw_os_error(
                        -(read_u32(messages, 16)? as i32),
                    ));
                }
                _ => found.extend(parse_socket(&messages[16..size])?),
            }
            messages = &messages[size.next_multiple_of(4).min(messages.len())..];
        }
    }
}

/// Reads one `struct unix_diag_msg` (16 bytes) and its attributes.
fn parse_socket(message: &[u8]) -> io::Result<Option<BoundSocket>> {
    let mut attributes = message.get(16..).ok_or_else(malformed)?;
    let mut path = None;
    let mut place = None;
    while attributes.len() >= 4 {
        let size = usize::from(read_u16(attributes, 0)?);
        if size < 4 || size > attributes.len() {
            return Err(malformed());
        }
        let value = &attributes[4..size];
        match read_u16(attributes, 2)? {
            UNIX_DIAG_NAME if value.first().is_some_and(|&byte| byte != 0) => {
                let end = value
                    .iter()
                    .position(|&byte| byte == 0)
                    .unwrap_or(value.len());
                path = Some(value[..end].to_vec());
            }
            UNIX_DIAG_VFS => place = Some((read_u32(value, 0)?, read_u32(value, 4)?)),
            _ => {}
        }
        attributes = &attributes[size.next_multiple_of(4).min(attributes.len())..];
    }
    Ok(path.zip(place).map(|(path, (inode, device))| BoundSocket {
        path,
        inode,
        device,
    }))
}

fn read_u32(bytes: &[u8], at: usize) -> io::Result<u32> {
    let bytes = bytes.get(at..at + 4).ok_or_else(malformed)?;
    Ok(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

fn read_u16(bytes: &[u8], at: usize) -> io::Result<u16> {
    let bytes = bytes.get(at..at + 2).ok_or_else(malformed)?;
    Ok(u16::from_ne_bytes([bytes[0], bytes[1]]))
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed sock_diag answer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_listener_is_found_by_path_and_inode() {
        let directory = std::env::temp_dir().join(format!("stockade-diag-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("s");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let inode = std::fs::metadata(&path).unwrap().ino();
        let found = bound_unix_sockets().unwrap();
        let path_bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
        assert!(
            found
                .iter()
                .any(|socket| socket.path == path_bytes && u64::from(socket.inode) == inode),
            "{found:?}"
        );
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
