//! Who listens on unix sockets of this network namespace (sock_diag(7)).

use std::io;

use super::netlink::{
    Answer, DUMP, Family, Messages, Netlink, REQUEST, Then, attributes, failure, find, malformed,
    read_u32,
};

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
/// Length of `struct unix_diag_msg`.
const MESSAGE_BYTES: usize = 16;

/// Every unix socket that is bound to a path in this network namespace
/// (sock_diag(7)), whatever its state: a bound datagram socket takes messages
/// without listening.
pub fn bound_unix_sockets() -> io::Result<Vec<BoundSocket>> {
    let mut request = Messages::default();
    // struct unix_diag_req: family, states, inode, what to show, cookie.
    request.add(SOCK_DIAG_BY_FAMILY, REQUEST | DUMP, 0, |bytes| {
        bytes.extend_from_slice(&[libc::AF_UNIX as u8, 0, 0, 0]);
        bytes.extend_from_slice(&u32::MAX.to_ne_bytes());
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        bytes.extend_from_slice(&(UDIAG_SHOW_NAME | UDIAG_SHOW_VFS).to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
    });
    let netlink = Netlink::open(Family::SocketDiagnosis)?;
    netlink.send(&request)?;
    let mut found = Vec::new();
    netlink.answers(|answer| match i32::from(answer.kind) {
        libc::NLMSG_DONE => Ok(Then::Stop),
        libc::NLMSG_ERROR => match failure(&answer)? {
            Some(error) => Err(error),
            None => Err(malformed()),
        },
        _ => {
            found.extend(parse_socket(&answer)?);
            Ok(Then::ReadOn)
        }
    })?;
    Ok(found)
}

/// Reads one `struct unix_diag_msg` and its attributes.
fn parse_socket(answer: &Answer<'_>) -> io::Result<Option<BoundSocket>> {
    let attributes = attributes(answer.body.get(MESSAGE_BYTES..).ok_or_else(malformed)?)?;
    let Some(name) = find(&attributes, UNIX_DIAG_NAME) else {
        return Ok(None);
    };
    let Some(place) = find(&attributes, UNIX_DIAG_VFS) else {
        return Ok(None);
    };
    let end = name.iter().position(|&byte| byte == 0);
    let path = name[..end.unwrap_or(name.len())].to_vec();
    // A name that begins with NUL is abstract and no path.
    if path.is_empty() {
        return Ok(None);
    }
    Ok(Some(BoundSocket {
        path,
        inode: read_u32(place, 0)?,
        device: read_u32(place, 4)?,
    }))
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
