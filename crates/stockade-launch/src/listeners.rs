//! The sockets that are opened inside the sandbox for those who wait outside:
//! a socket keeps the network namespace in which it was made
//! (network_namespaces(7)).
//!
//! They are opened before anything runs inside, so nobody can have taken their
//! places. The launcher hands them on and closes its own copies: when their
//! holder outside is gone, connections to them are refused.

use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

use stockade_sys::network::{self, AddressKind, Carries};
use stockade_sys::rustix::fs::{CWD, Mode, OFlags, openat};
use stockade_sys::rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with, socketpair,
};
use stockade_sys::rustix::process::{fchdir, umask};

use crate::steps::named;
use crate::wire::Listener;

/// How many connections wait to be accepted, of each listener.
const BACKLOG: i32 = 512;
/// Unconnected sockets of each family for the self-test.
const PROBES_TCP: usize = 6;
const PROBES_UDP: usize = 3;
/// Port of DNS (RFC 1035).
const NAMES_PORT: u16 = 53;
/// Longest path of a unix socket, without the NUL (unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// How many sockets are opened at most; all are passed in one message, beside
/// the terminal.
const SOCKETS_MAX: usize = stockade_sys::message::DESCRIPTORS_MAX - 1;

/// Sockets that were opened, and init's end of the supply.
#[derive(Default)]
pub(crate) struct Listeners {
    /// Each with the index of its listener in the step.
    opened: Vec<(u32, OwnedFd)>,
    supply: Option<OwnedFd>,
    families: Families,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Families {
    #[default]
    Both,
    OnlyIpv4,
}

impl Listeners {
    /// Opens the sockets of the one step that there is. `make_place` makes the
    /// directory of a path in the view and opens it.
    pub(crate) fn open(
        &mut self,
        listeners: &[Listener],
        make_place: impl Fn(&[u8]) -> io::Result<OwnedFd>,
    ) -> io::Result<String> {
        if !self.opened.is_empty() {
            return Err(io::Error::other("the sockets are open already"));
        }
        for (index, listener) in (0u32..).zip(listeners) {
            let opened = match listener {
                Listener::Unix { path } => vec![listen_at(path, &make_place)?],
                Listener::Supply => vec![self.make_supply()?],
                internet => self.open_internet(internet)?,
            };
            self.opened
                .extend(opened.into_iter().map(|socket| (index, socket)));
        }
        if self.opened.len() > SOCKETS_MAX {
            return Err(io::Error::other("too many sockets to hand over"));
        }
        Ok(match self.families {
            Families::Both => format!("{} sockets opened", self.opened.len()),
            Families::OnlyIpv4 => {
                format!("{} sockets opened; no IPv6 here", self.opened.len())
            }
        })
    }

    /// What is handed over.
    pub(crate) fn take_opened(&mut self) -> Vec<(u32, OwnedFd)> {
        std::mem::take(&mut self.opened)
    }

    /// Init's end of the supply.
    pub(crate) fn take_supply(&mut self) -> Option<OwnedFd> {
        self.supply.take()
    }

    fn make_supply(&mut self) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        self.supply = Some(ours);
        Ok(theirs)
    }

    /// The sockets of one listener, for each family that the kernel has.
    fn open_internet(&mut self, listener: &Listener) -> io::Result<Vec<OwnedFd>> {
        let mut sockets = open_kind(AddressKind::Ipv4, listener)?;
        if self.families == Families::Both {
            match open_kind(AddressKind::Ipv6, listener) {
                Ok(more) => sockets.extend(more),
                Err(error) if network::is_without_ipv6(AddressKind::Ipv6, &error) => {
                    self.families = Families::OnlyIpv4;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(sockets)
    }
}

fn open_kind(kind: AddressKind, listener: &Listener) -> io::Result<Vec<OwnedFd>> {
    let tcp = |address: IpAddr, port: u16| {
        network::listen(kind, address, port, BACKLOG)
            .map(|socket| vec![socket])
            .map_err(|error| at_port(error, port))
    };
    match listener {
        // A redirect leads to the loopback, wherever the connection was going.
        Listener::Proxy(port) | Listener::Transparent(port) | Listener::HostPort(port) => {
            tcp(kind.loopback(), *port)
        }
        Listener::NamesTcp => tcp(kind.every(), NAMES_PORT),
        Listener::NamesUdp => network::listen_to_datagrams(kind, NAMES_PORT)
            .map(|socket| vec![socket])
            .map_err(|error| at_port(error, NAMES_PORT)),
        Listener::ProbeTcp => probes(kind, Carries::Stream, PROBES_TCP),
        Listener::ProbeUdp => probes(kind, Carries::Datagrams, PROBES_UDP),
        Listener::Unix { .. } | Listener::Supply => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn probes(kind: AddressKind, carries: Carries, count: usize) -> io::Result<Vec<OwnedFd>> {
    (0..count).map(|_| network::open(kind, carries)).collect()
}

/// Says which port an error is about; an error that only says that there is
/// no IPv6 stays as it is.
fn at_port(error: io::Error, port: u16) -> io::Error {
    if network::is_without_ipv6(AddressKind::Ipv6, &error) {
        return error;
    }
    io::Error::new(error.kind(), format!("port {port}: {error}"))
}

/// A unix socket that listens at a path of the view, which only the caller may
/// connect to.
fn listen_at(
    path: &[u8],
    make_place: impl Fn(&[u8]) -> io::Result<OwnedFd>,
) -> io::Result<OwnedFd> {
    let cut = path.iter().rposition(|&byte| byte == b'/');
    let (directory, name) = match cut {
        Some(cut) if path.len() <= SOCKET_PATH_BYTES_MAX => (&path[..cut], &path[cut + 1..]),
        Some(_) => return Err(named(io::Error::other("too long for a socket"), path)),
        None => return Err(named(io::ErrorKind::InvalidInput.into(), path)),
    };
    let place = make_place(directory)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind_in(&socket, &place, name).map_err(|error| named(error, path))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Binds to a name in an open directory: bind(2) takes no directory, but a
/// name without a slash is looked up in the current one, and is never followed
/// when something is there already.
fn bind_in(socket: &OwnedFd, place: &OwnedFd, name: &[u8]) -> io::Result<()> {
    let address = SocketAddrUnix::new(name)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let before = openat(CWD, ".", flags, Mode::empty())?;
    fchdir(place)?;
    let mask = umask(Mode::from_raw_mode(0o177));
    let bound = bind(socket, &address);
    umask(mask);
    fchdir(&before)?;
    Ok(bound?)
}

/// Answers one request for a socket, if one is there. Whoever asks is outside
/// and trusted; what it says is checked all the same.
pub(crate) fn supply(channel: BorrowedFd<'_>) -> Supplied {
    use stockade_sys::message::{Wait, receive_into, send};
    let mut request = [0u8; 1];
    let kind = match receive_into(channel, &mut request, Wait::No) {
        Ok(None) => return Supplied::Ended,
        Ok(Some(_)) => match request {
            [b'4'] => AddressKind::Ipv4,
            [b'6'] => AddressKind::Ipv6,
            _ => return Supplied::Answered,
        },
        Err(error) if is_passing(&error) => return Supplied::Answered,
        Err(_) => return Supplied::Ended,
    };
    use std::os::fd::AsFd;
    let socket = network::open(kind, Carries::Stream).ok();
    // Without a socket the answer says so, and the asker does not wait.
    let attached: Vec<_> = socket.iter().map(AsFd::as_fd).collect();
    match send(channel, &request, &attached, Wait::No) {
        Ok(()) => Supplied::Answered,
        Err(error) if is_passing(&error) => Supplied::Answered,
        Err(_) => Supplied::Ended,
    }
}

/// Whether the channel goes on in spite of an error.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::InvalidData
    )
}

/// What became of the supply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Supplied {
    Answered,
    /// Nobody asks any more.
    Ended,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use stockade_sys::message::{self, Wait};

    #[test]
    fn a_socket_is_supplied_for_a_request_and_for_nothing_else() {
        let mut listeners = Listeners::default();
        let theirs = listeners.make_supply().unwrap();
        let ours = listeners.take_supply().unwrap();
        assert_eq!(supply(ours.as_fd()), Supplied::Answered);
        for request in [&b"4"[..], b"5", b"44"] {
            message::send(theirs.as_fd(), request, &[], Wait::No).unwrap();
            assert_eq!(supply(ours.as_fd()), Supplied::Answered);
        }
        let answer = message::receive(theirs.as_fd(), 1, Wait::No)
            .unwrap()
            .unwrap();
        assert_eq!(
            (answer.bytes.as_slice(), answer.descriptors.len()),
            (&b"4"[..], 1)
        );
        assert!(message::receive(theirs.as_fd(), 1, Wait::No).is_err());
        drop(theirs);
        assert_eq!(supply(ours.as_fd()), Supplied::Ended);
    }
}
