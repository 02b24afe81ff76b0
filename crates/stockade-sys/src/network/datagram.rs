//! Datagrams with the address to which they were sent, so that an answer can
//! come from there (IP_PKTINFO in ip(7), IPV6_PKTINFO in ipv6(7)).

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::check;

/// A datagram that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// How many bytes of the buffer it fills.
    pub length: usize,
    /// It was longer than the buffer.
    pub cut: bool,
    pub from: SocketAddr,
    /// The address, among all that the socket is bound to, that was asked.
    pub destination: IpAddr,
}

/// Room for one message with an address, laid out for the kernel.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Receives one datagram on a socket of
/// [`listen_to_datagrams`](super::listen_to_datagrams).
///
/// `InvalidData` when it does not say to which address it was sent.
pub fn receive_with_destination(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut peer = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut control = Control([0; 64]);
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: all-zero is a valid `msghdr`; the pointers that follow are to
    // objects that outlive the call, each with its own size.
    let (header, length) = unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_name = peer.as_mut_ptr().cast();
        header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut control.0).cast();
        header.msg_controllen = size_of::<Control>() as _;
        let flags = libc::MSG_CMSG_CLOEXEC;
        let length = check(libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) as _)?;
        (header, length as usize)
    };
    // SAFETY: the kernel wrote an address into the zeroed storage.
    let peer = unsafe { peer.assume_init() };
    let from = socket_address(&peer).ok_or_else(unknown)?;
    // SAFETY: the kernel filled `header` and the control bytes behind it.
    let destination = unsafe { destination(&header) }.ok_or_else(unknown)?;
    Ok(Received {
        length,
        cut: header.msg_flags & libc::MSG_TRUNC != 0,
        from,
        destination,
    })
}

/// Sends one datagram to `to` that comes from `source` and the socket's port.
pub fn send_from(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    source: IpAddr,
    to: SocketAddr,
) -> io::Result<()> {
    let (mut address, address_length) = raw_address(to);
    let mut control = Control([0; 64]);
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: all-zero is a valid `msghdr`; the pointers are to objects that
    // outlive the call, and sendmsg(2) only reads. The control bytes have room
    // for one message of the larger kind, and are aligned for its header.
    let sent = unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_name = (&raw mut address).cast();
        header.msg_namelen = address_length;
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut control.0).cast();
        header.msg_controllen = size_of::<Control>() as _;
        header.msg_controllen = write_source(&header, source) as _;
        check(libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) as _)?
    };
    match sent as usize == bytes.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// The address that the control message of a received datagram holds.
///
/// # Safety
/// `header` must be as recvmsg(2) left it, with its buffers alive.
unsafe fn destination(header: &libc::msghdr) -> Option<IpAddr> {
    // SAFETY: the caller's contract; the macros of cmsg(3) stay within the
    // control bytes, and the kernel's messages have the lengths they say.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while !message.is_null() {
            let data = libc::CMSG_DATA(message);
            match ((*message).cmsg_level, (*message).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info: libc::in_pktinfo = data.cast::<libc::in_pktinfo>().read_unaligned();
                    let bytes = info.ipi_addr.s_addr.to_ne_bytes();
                    return Some(Ipv4Addr::from(bytes).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info: libc::in6_pktinfo = data.cast::<libc::in6_pktinfo>().read_unaligned();
                    return Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                }
                _ => message = libc::CMSG_NXTHDR(header, message),
            }
        }
        None
    }
}

/// Writes the control message that says where a datagram comes from; its
/// length.
///
/// # Safety
/// The control bytes of `header` must be writable, aligned for a `cmsghdr`
/// and long enough for an `in6_pktinfo`.
unsafe fn write_source(header: &libc::msghdr, source: IpAddr) -> usize {
    // SAFETY: the caller's contract; the first message always fits, so its
    // header is not null. All-zero is a valid value of both structures.
    unsafe {
        let message = libc::CMSG_FIRSTHDR(header);
        let data = libc::CMSG_DATA(message);
        let size = match source {
            IpAddr::V4(source) => {
                (*message).cmsg_level = libc::IPPROTO_IP;
                (*message).cmsg_type = libc::IP_PKTINFO;
                let mut info: libc::in_pktinfo = std::mem::zeroed();
                info.ipi_spec_dst.s_addr = u32::from_ne_bytes(source.octets());
                data.cast::<libc::in_pktinfo>().write_unaligned(info);
                size_of::<libc::in_pktinfo>()
            }
            IpAddr::V6(source) => {
                (*message).cmsg_level = libc::IPPROTO_IPV6;
                (*message).cmsg_type = libc::IPV6_PKTINFO;
                let mut info: libc::in6_pktinfo = std::mem::zeroed();
                info.ipi6_addr.s6_addr = source.octets();
                data.cast::<libc::in6_pktinfo>().write_unaligned(info);
                size_of::<libc::in6_pktinfo>()
            }
        };
        (*message).cmsg_len = libc::CMSG_LEN(size as u32) as _;
        libc::CMSG_SPACE(size as u32) as usize
    }
}

fn socket_address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let storage: *const libc::sockaddr_storage = storage;
    // SAFETY: the storage is large enough and aligned for both kinds, and its
    // family says which of them the kernel wrote.
    unsafe {
        match libc::c_int::from((*storage).ss_family) {
            libc::AF_INET => {
                let address = storage.cast::<libc::sockaddr_in>().read();
                let ip = Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, u16::from_be(address.sin_port)).into())
            }
            libc::AF_INET6 => {
                let address = storage.cast::<libc::sockaddr_in6>().read();
                let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
                let port = u16::from_be(address.sin6_port);
                Some(SocketAddrV6::new(ip, port, 0, address.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

fn raw_address(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    // SAFETY: all-zero is a valid value of every structure here, and the
    // storage is large enough and aligned for both kinds.
    unsafe {
        let length = match address {
            SocketAddr::V4(address) => {
                let mut raw: libc::sockaddr_in = std::mem::zeroed();
                raw.sin_family = libc::AF_INET as libc::sa_family_t;
                raw.sin_port = address.port().to_be();
                raw.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
                storage.as_mut_ptr().cast::<libc::sockaddr_in>().write(raw);
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(address) => {
                let mut raw: libc::sockaddr_in6 = std::mem::zeroed();
                raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                raw.sin6_port = address.port().to_be();
                raw.sin6_addr.s6_addr = address.ip().octets();
                raw.sin6_scope_id = address.scope_id();
                storage.as_mut_ptr().cast::<libc::sockaddr_in6>().write(raw);
                size_of::<libc::sockaddr_in6>()
            }
        };
        (storage.assume_init(), length as libc::socklen_t)
    }
}

fn unknown() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a datagram without addresses")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{AddressKind, listen_to_datagrams, local_address};
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn an_answer_comes_from_the_address_that_was_asked() {
        let socket = listen_to_datagrams(AddressKind::Ipv4, 0).unwrap();
        let port = local_address(socket.as_fd()).unwrap().port();
        let asked = Ipv4Addr::new(127, 1, 2, 3);
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect((asked, port)).unwrap();
        client.send(b"who").unwrap();
        let mut buffer = [0; 2];
        let received = receive_with_destination(socket.as_fd(), &mut buffer).unwrap();
        assert_eq!(received.destination, IpAddr::from(asked));
        assert_eq!(received.from, client.local_addr().unwrap());
        assert!(received.cut && received.length == 2 && &buffer == b"wh");
        send_from(socket.as_fd(), b"me", asked.into(), received.from).unwrap();
        // A connected socket takes only what comes from where it asked.
        assert_eq!(client.recv(&mut buffer).unwrap(), 2);
        assert_eq!(&buffer, b"me");
    }
}
