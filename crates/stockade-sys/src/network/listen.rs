//! Sockets that are opened inside a sandbox and used outside it: a socket
//! keeps the network namespace in which it was made (network_namespaces(7)).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{
    ip_original_dst, ipv6_original_dst, set_ipv6_freebind, set_ipv6_v6only, set_tcp_congestion,
};
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketFlags, SocketType, bind, connect, getpeername, getsockname,
    socket_with,
};

use crate::check;

/// The two families of internet addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKind {
    Ipv4,
    Ipv6,
}

/// What a socket carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// TCP.
    Stream,
    /// UDP.
    Datagrams,
}

impl AddressKind {
    /// 127.0.0.1 or ::1.
    pub fn loopback(self) -> IpAddr {
        match self {
            Self::Ipv4 => Ipv4Addr::LOCALHOST.into(),
            Self::Ipv6 => Ipv6Addr::LOCALHOST.into(),
        }
    }

    /// The address that stands for all.
    pub fn every(self) -> IpAddr {
        match self {
            Self::Ipv4 => Ipv4Addr::UNSPECIFIED.into(),
            Self::Ipv6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    fn family(self) -> AddressFamily {
        match self {
            Self::Ipv4 => AddressFamily::INET,
            Self::Ipv6 => AddressFamily::INET6,
        }
    }
}

/// A new socket that is not bound, does not block and is closed on exec. One
/// of TCP sends as fast as its other end reads.
pub fn open(kind: AddressKind, carries: Carries) -> io::Result<OwnedFd> {
    let socket_type = match carries {
        Carries::Stream => SocketType::STREAM,
        Carries::Datagrams => SocketType::DGRAM,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(kind.family(), socket_type, flags, None)?;
    if carries == Carries::Stream {
        do_not_pace(&socket);
    }
    Ok(socket)
}

/// The machine's own choice may pace what is sent by a timer, as BBR does.
/// Between two ends on one machine, where no packet is lost, that halves the
/// speed. Connections that are accepted do as their listener (tcp(7)).
fn do_not_pace(socket: &OwnedFd) {
    // Every kernel has it and everyone may choose it; it is about speed only.
    let _as_before = set_tcp_congestion(socket, "reno").is_err();
}

/// Binds a socket; an IPv6 one takes no IPv4 addresses.
fn bind_to(socket: &OwnedFd, address: SocketAddr) -> io::Result<()> {
    if address.is_ipv6() {
        set_ipv6_v6only(socket, true)?;
    }
    Ok(bind(socket, &address)?)
}

/// A TCP socket that listens at `address` and `port`; `backlog` connections
/// wait at most.
pub fn listen(kind: AddressKind, address: IpAddr, port: u16, backlog: i32) -> io::Result<OwnedFd> {
    let socket = open(kind, Carries::Stream)?;
    bind_to(&socket, SocketAddr::new(address, port))?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

/// A UDP socket bound to `port` of every address, whose messages tell to which
/// address they were sent; answers may come from any address (ip(7), ipv6(7)).
pub fn listen_to_datagrams(kind: AddressKind, port: u16) -> io::Result<OwnedFd> {
    let socket = open(kind, Carries::Datagrams)?;
    match kind {
        AddressKind::Ipv4 => {
            set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
        }
        AddressKind::Ipv6 => {
            set_option(
                socket.as_fd(),
                libc::IPPROTO_IPV6,
                libc::IPV6_RECVPKTINFO,
                1,
            )?;
            // A route alone makes no IPv6 address one's own to send from.
            set_ipv6_freebind(&socket, true)?;
        }
    }
    bind_to(&socket, SocketAddr::new(kind.every(), port))?;
    Ok(socket)
}

/// Says of a TCP socket that its reader is woken once so many bytes have come,
/// or the stream has ended, and not before (SO_RCVLOWAT, socket(7)). What is
/// there already is announced at once if it is enough.
pub fn wake_at(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
}

/// Whether an error of the functions above says that there is no IPv6.
pub fn is_without_ipv6(kind: AddressKind, error: &io::Error) -> bool {
    let codes = [libc::EAFNOSUPPORT, libc::EPFNOSUPPORT, libc::EADDRNOTAVAIL];
    kind == AddressKind::Ipv6
        && error
            .raw_os_error()
            .is_some_and(|code| codes.contains(&code))
}

/// Where a redirected connection was going before the redirect. For one that
/// was not redirected, the address at which it was accepted.
pub fn original_destination(connection: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    let accepted_at = local_address(connection)?;
    let original = match accepted_at {
        SocketAddr::V4(_) => ip_original_dst(connection).map(SocketAddr::from),
        SocketAddr::V6(_) => ipv6_original_dst(connection).map(SocketAddr::from),
    };
    match original {
        Ok(original) => Ok(original),
        // No connection tracking in this namespace, so no redirect either.
        Err(Errno::NOENT | Errno::NOPROTOOPT) => Ok(accepted_at),
        Err(error) => Err(error.into()),
    }
}

/// Address and port of this end of a socket.
pub fn local_address(socket: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    internet(getsockname(socket)?)
}

/// Address and port of the other end of a connected socket.
pub fn peer_address(socket: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    internet(getpeername(socket)?.ok_or(Errno::NOTCONN)?)
}

/// Whether packets to `address` would stay on this machine, because one of its
/// interfaces has that address: the kernel then picks it as the source too.
/// Nothing is sent.
///
/// An error when the kernel will not say (as for a broadcast address): such an
/// address is better not dialled.
pub fn is_own_address(address: IpAddr) -> io::Result<bool> {
    /// Port of the discard protocol (RFC 863); any other would do.
    const DISCARD: u16 = 9;
    let kind = match address {
        IpAddr::V4(_) => AddressKind::Ipv4,
        IpAddr::V6(_) => AddressKind::Ipv6,
    };
    let socket = match open(kind, Carries::Datagrams) {
        Err(error) if is_without_ipv6(kind, &error) => return Ok(false),
        other => other?,
    };
    match connect(&socket, &SocketAddr::new(address, DISCARD)) {
        Ok(()) => {
            let source = internet(getsockname(&socket)?)?;
            Ok(source.ip() == address)
        }
        // Nothing leads there.
        Err(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ADDRNOTAVAIL) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn internet(address: SocketAddrAny) -> io::Result<SocketAddr> {
    SocketAddr::try_from(address)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not an internet address"))
}

fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the value is an int that outlives the call, and its size is
    // passed with it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    check(result.into())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::sockopt::tcp_congestion;
    use std::io::Write;

    #[test]
    fn the_loopback_is_our_own_and_an_example_is_not() {
        assert!(is_own_address(Ipv4Addr::LOCALHOST.into()).unwrap());
        // Of documentation (RFC 5737): routed or not, nobody's.
        assert!(!is_own_address(Ipv4Addr::new(203, 0, 113, 9).into()).unwrap());
    }

    #[test]
    fn connections_of_the_inside_are_not_paced() {
        let kind = AddressKind::Ipv4;
        let listener = listen(kind, kind.loopback(), 0, 1).unwrap();
        let address = local_address(listener.as_fd()).unwrap();
        let _client = std::net::TcpStream::connect(address).unwrap();
        let accepted = std::net::TcpListener::from(listener).accept().unwrap().0;
        assert_eq!(tcp_congestion(&accepted).unwrap(), "reno");
        let connecting = open(kind, Carries::Stream).unwrap();
        assert_eq!(tcp_congestion(&connecting).unwrap(), "reno");
    }

    #[test]
    fn a_reader_is_woken_once_enough_is_there_or_less_is_enough() {
        let kind = AddressKind::Ipv4;
        let listener = listen(kind, kind.loopback(), 0, 1).unwrap();
        let address = local_address(listener.as_fd()).unwrap();
        let mut writer = std::net::TcpStream::connect(address).unwrap();
        let reader = std::net::TcpListener::from(listener).accept().unwrap().0;
        let is_readable = |wait_ms: i64| {
            let mut polled = [PollFd::new(&reader, PollFlags::IN)];
            let wait = Timespec {
                tv_sec: 0,
                tv_nsec: wait_ms * 1_000_000,
            };
            poll(&mut polled, Some(&wait)).unwrap() > 0
        };
        wake_at(reader.as_fd(), 1000).unwrap();
        writer.write_all(&[0; 999]).unwrap();
        assert!(!is_readable(20));
        writer.write_all(&[0; 1]).unwrap();
        assert!(is_readable(900));
        wake_at(reader.as_fd(), 2000).unwrap();
        assert!(!is_readable(20));
        wake_at(reader.as_fd(), 1).unwrap();
        assert!(is_readable(900));
        wake_at(reader.as_fd(), 2000).unwrap();
        drop(writer);
        assert!(is_readable(900));
    }

    #[test]
    fn what_was_not_redirected_was_going_where_it_arrived() {
        let kind = AddressKind::Ipv4;
        let listener = listen(kind, kind.loopback(), 0, 1).unwrap();
        let address = local_address(listener.as_fd()).unwrap();
        let _client = std::net::TcpStream::connect(address).unwrap();
        let accepted = std::net::TcpListener::from(listener).accept().unwrap().0;
        assert_eq!(original_destination(accepted.as_fd()).unwrap(), address);
    }
}
