//! The network of a fresh namespace, and who listens on unix sockets outside.

mod datagram;
mod listen;
mod netlink;
mod redirect;
mod routes;
mod unix;

pub use datagram::{Received, receive_with_destination, send_from};
pub use listen::{
    AddressKind, Carries, is_own_address, is_without_ipv6, listen, listen_to_datagrams,
    local_address, open, original_destination, peer_address, wake_at,
};
pub use redirect::{redirect_ability, redirect_to};
pub use routes::{Families, make_everything_local};
pub use unix::{BoundSocket, bound_unix_sockets};

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::check;

/// Brings up `lo` (netdevice(7)). The kernel then adds 127.0.0.1 and ::1.
pub fn loopback_up() -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
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
