//! Attacks on the network: NT1.
//!
//! In a sandbox with a way out every address is a local one, and connections
//! are taken over by whoever judges them: that a call succeeds says little.
//! An address that is our own leads nowhere, and what may not leave is closed
//! at once.

use super::{attacks, web};
use crate::{Stage, Verdict};
use rustix::net::{AddressFamily, Protocol, SendFlags, SocketType};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a connection may take before it counts as stopped.
const PATIENCE: Duration = Duration::from_secs(1);

/// Families of sockets that programs do not need, with a type of each.
const RARE_FAMILIES: &[(&str, u16, u32)] = &[
    ("AF_ALG", 38, 5),
    ("AF_KEY", 15, 3),
    ("AF_BLUETOOTH", 31, 3),
    ("AF_CAN", 29, 3),
    ("AF_TIPC", 30, 1),
    ("AF_RDS", 21, 5),
    ("AF_KCM", 41, 5),
    ("AF_XDP", 44, 3),
    ("AF_QIPCRTR", 42, 2),
    ("AF_NFC", 39, 5),
    ("AF_PPPOX", 24, 1),
    ("AF_X25", 9, 5),
    ("AF_APPLETALK", 5, 2),
    ("AF_LLC", 26, 2),
    ("AF_IEEE802154", 36, 2),
    ("AF_PHONET", 35, 2),
];

attacks! {
    NT1 "nt1-tcp", Ordinary, Plain, "connects to listeners of the host over TCP"
        => |stage| Verdict::all(stage.tcp.iter().map(connect));
    NT1 "nt1-tcp-mapped", Ordinary, Plain,
        "connects to the host's loopback by other spellings" => spellings;
    NT1 "nt1-tcp-fast-open", Ordinary, Plain, "sends data with the first packet, without connect(2)"
        => |stage| over_tcp(stage, |address| fast_open(address, None));
    NT1 "nt1-mptcp", Ordinary, WhereKernelHasIt, "connects with MPTCP, which TCP rules may forget"
        => |stage| over_tcp(stage, |address| connect_with(address, 262));
    NT1 "nt1-udp", Ordinary, Plain, "sends UDP to sockets of the host" => udp;
    NT1 "nt1-udp-broadcast", Ordinary, Never("speaks to the network"),
        "sends UDP to everybody on the network"
        => broadcast;
    NT1 "nt1-dns", Ordinary, Never("speaks to the network"), "asks name servers directly" => dns;
    NT1 "nt1-metadata", Ordinary, Never("speaks to the network"),
        "connects to the cloud's metadata address"
        => |_| connect(&SocketAddr::from(([169, 254, 169, 254], 80)));
    NT1 "nt1-internet", Ordinary, Never("speaks to the network"),
        "connects to an address of the internet"
        => |_| connect(&SocketAddr::from(([1, 1, 1, 1], 443)));
    NT1 "nt1-other-transports", Ordinary, Never("depends on the kernel's modules"),
        "makes sockets of SCTP, DCCP and SMC"
        => |_| Verdict::all([("SCTP", 2, 1, 132), ("DCCP", 2, 6, 33), ("SMC", 43, 1, 0)]
            .map(|(name, family, kind, protocol)| made(name, family, kind, protocol)));
    NT1 "nt1-udp-lite", Ordinary, Never("depends on the machine's routes"),
        "finds a way out for UDP-Lite"
        => |_| Verdict::of(connect_datagram(136), |()| "there is a way out".into());
    NT1 "nt1-loopback-prefix", Ordinary, Never("depends on the machine's routes"),
        "finds a way out from an address that it gives itself"
        => |_| Verdict::of(connect_from_elsewhere(), |()| "there is a way out".into());
    NT1 "nt1-icmp", Ordinary, Plain, "makes sockets for ICMP"
        => |_| Verdict::all([
            made("ICMP", 2, 3, 1),
            made("ping", 2, 2, 1),
            made("ICMPv6", 10, 3, 58),
        ]);
    NT1 "nt1-raw", Ordinary, Plain, "makes raw sockets"
        => |_| Verdict::all([made("raw", 2, 3, 255), made("raw IPv6", 10, 3, 255)]);
    NT1 "nt1-packet", Ordinary, Plain, "makes packet sockets"
        => |_| Verdict::all([2, 3].map(|kind| made("packets", 17, kind, 0x0300)));
    NT1 "nt1-vsock", Ordinary, WhereKernelHasIt, "makes a socket to the virtual machine's host"
        => |_| Verdict::all([made("vsock", 40, 1, 0), made("vsock datagram", 40, 2, 0)]);
    NT1 "nt1-netlink-route", Ordinary, Apart,
        "changes a network interface through netlink" => change_interface;
    NT1 "nt1-netlink-routes", Ordinary, Apart,
        "adds a route of its own and takes away the sandbox's through netlink" => change_routes;
    NT1 "nt1-netlink-others", Ordinary, Plain, "makes netlink sockets other than for routes"
        => |_| Verdict::all([("audit", 9), ("netfilter", 12), ("events", 15), ("transforms", 6),
            ("connector", 11), ("crypto", 21), ("generic", 16)]
            .map(|(name, protocol)| made(name, 16, 3, protocol)));
    NT1 "nt1-rare-families", Ordinary, Never("depends on the kernel's modules"),
        "makes sockets of families that programs do not need"
        => |_| Verdict::all(RARE_FAMILIES.iter()
            .map(|(name, family, kind)| made(name, *family, *kind, 0)));
    NT1 "nt1-tunnel", Ordinary, Never("depends on the kernel's modules"),
        "makes a network interface of its own"
        => |_| super::open_for_writing("/dev/net/tun");
    NT1 "nt1-interfaces", Ordinary, Plain,
        "looks for a network interface of the host" => interfaces;
    NT1 "nt1-unix-sockets", Ordinary, Plain,
        "connects to unix sockets of the host, also in the workspace"
        => |stage| Verdict::all(stage.sockets.iter().map(|path| unix(path)));
    NT1 "nt1-unix-through-link", Ordinary, Plain, "connects to a unix socket through a link"
        => unix_through_link;
    NT1 "nt1-daemons", Ordinary, Never("would speak to the host's daemons"),
        "connects to sockets of container engines, D-Bus, X11 and whatever is in /run" => daemons;
}

fn connect(address: &SocketAddr) -> Verdict {
    let connected = TcpStream::connect_timeout(address, PATIENCE);
    match connected {
        Ok(stream) => stays_open(&stream.into(), address),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            Verdict::Stopped("no answer".into())
        }
        Err(error) => Verdict::refused(&error),
    }
}

/// Whether a connection goes on for a moment: nobody whom these attacks call
/// says anything, but one that may not leave is closed at once.
fn stays_open(connection: &OwnedFd, address: &SocketAddr) -> Verdict {
    let wait = rustix::net::sockopt::Timeout::Recv;
    let closed = rustix::net::sockopt::set_socket_timeout(connection, wait, Some(PATIENCE))
        .and_then(|()| rustix::io::read(connection, &mut [0; 16]));
    match closed {
        Ok(0) | Err(rustix::io::Errno::CONNRESET) => {
            Verdict::Stopped("closed by who took it over".into())
        }
        _ => Verdict::Escaped(format!("connected to {address}")),
    }
}

fn spellings(stage: &Stage) -> Verdict {
    let Some(port) = stage.tcp.first().map(SocketAddr::port) else {
        return Verdict::Inconclusive("no listener was staged".into());
    };
    let addresses: [IpAddr; 5] = [
        Ipv4Addr::UNSPECIFIED.into(),
        Ipv4Addr::new(127, 1, 2, 3).into(),
        Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(),
        Ipv6Addr::UNSPECIFIED.into(),
        Ipv6Addr::LOCALHOST.into(),
    ];
    Verdict::all(addresses.map(|address| connect(&SocketAddr::new(address, port))))
}

fn over_tcp(stage: &Stage, attempt: impl Fn(&SocketAddr) -> io::Result<OwnedFd>) -> Verdict {
    Verdict::all(
        stage
            .tcp
            .iter()
            .filter(|address| address.is_ipv4())
            .map(|address| match attempt(address) {
                Ok(connection) => stays_open(&connection, address),
                Err(error) => Verdict::refused(&error),
            }),
    )
}

fn fast_open(address: &SocketAddr, protocol: Option<Protocol>) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, protocol)?;
    let flags = SendFlags::from_bits_retain(0x2000_0000);
    rustix::net::sendto(&socket, b"attacked", flags, address)?;
    Ok(socket)
}

fn connect_with(address: &SocketAddr, protocol: u32) -> io::Result<OwnedFd> {
    let socket = socket(2, 1, protocol)?;
    rustix::net::connect(&socket, address)?;
    Ok(socket)
}

/// An address for documentation (RFC 5737), so nobody's.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Connecting a datagram socket sends nothing; it only finds a route.
fn connect_datagram(protocol: u32) -> io::Result<()> {
    let socket = socket(2, 2, protocol)?;
    find_route(&socket)
}

fn connect_from_elsewhere() -> io::Result<()> {
    let socket = socket(2, 2, 0)?;
    rustix::net::bind(&socket, &SocketAddr::from(([198, 51, 100, 7], 0)))?;
    find_route(&socket)
}

/// Fails as if there were no route when it leads to this machine itself: then
/// a socket that is bound to the address takes what another one sends there.
fn find_route(socket: &OwnedFd) -> io::Result<()> {
    let listener = UdpSocket::bind((ELSEWHERE, 0));
    let port = match &listener {
        Ok(listener) => listener.local_addr()?.port(),
        Err(_) => 9,
    };
    rustix::net::connect(socket, &SocketAddr::from((ELSEWHERE, port)))?;
    match listener {
        Ok(_) => Err(rustix::io::Errno::NETUNREACH.into()),
        Err(_) => Ok(()),
    }
}

fn socket(family: u16, kind: u32, protocol: u32) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket(
        AddressFamily::from_raw(family),
        SocketType::from_raw(kind),
        NonZeroU32::new(protocol).map(Protocol::from_raw),
    )?)
}

fn made(name: &str, family: u16, kind: u32, protocol: u32) -> Verdict {
    match socket(family, kind, protocol) {
        Ok(_) => Verdict::Escaped(format!("made a socket for {name}")),
        Err(error) => Verdict::Stopped(crate::verdict::error_name(&error)),
    }
}

/// Sending UDP succeeds also when nobody hears it; outside it shows who did.
fn udp(stage: &Stage) -> Verdict {
    Verdict::all(stage.udp.iter().map(|address| {
        let own = if address.is_ipv4() {
            "0.0.0.0:0"
        } else {
            "[::]:0"
        };
        let sent = UdpSocket::bind(own).and_then(|socket| socket.send_to(b"attacked", address));
        match sent {
            Ok(_) => Verdict::Inconclusive("sent; outside it shows whether it arrived".into()),
            Err(error) => Verdict::refused(&error),
        }
    }))
}

fn broadcast(_: &Stage) -> Verdict {
    let send = || -> io::Result<usize> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_broadcast(true)?;
        socket.connect("255.255.255.255:9")?;
        // From the loopback it goes no further.
        match socket.local_addr()?.ip().is_loopback() {
            true => Err(rustix::io::Errno::NETUNREACH.into()),
            false => socket.send(b"attacked"),
        }
    };
    Verdict::of(send(), |_| "sent".into())
}

fn dns(_: &Stage) -> Verdict {
    let configured = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let servers = configured
        .lines()
        .filter_map(|line| {
            line.strip_prefix("nameserver")?
                .trim()
                .parse::<IpAddr>()
                .ok()
        })
        .chain([IpAddr::from([127, 0, 0, 53]), IpAddr::from([8, 8, 8, 8])]);
    let address = 1;
    let ask = |server| web::ask(server, "example.com", address, PATIENCE);
    Verdict::all(servers.map(|server| match ask(server) {
        Ok(found) if found.records == 0 || found.stand_in => {
            Verdict::Stopped("an answer that knows nothing".into())
        }
        Ok(_) => Verdict::Escaped(format!("{server} answered")),
        Err(error) => Verdict::Stopped(crate::verdict::error_name(&error)),
    }))
}

/// RTM_SETLINK that takes the first interface, the loopback, up (rtnetlink(7)).
fn change_interface(_: &Stage) -> Verdict {
    let mut message = 32_u32.to_ne_bytes().to_vec();
    message.extend_from_slice(&19_u16.to_ne_bytes());
    // Request and acknowledge; then sequence, port, family and type.
    message.extend_from_slice(&5_u16.to_ne_bytes());
    message.extend_from_slice(&[0; 12]);
    // Interface, flags and the flags to change.
    message.extend([1_u32, 1, 1].iter().flat_map(|word| word.to_ne_bytes()));
    match exchange(&message) {
        Ok(0) => Verdict::Escaped("changed an interface".into()),
        Ok(number) => Verdict::refused(&io::Error::from_raw_os_error(-number)),
        Err(error) => Verdict::refused(&error),
    }
}

/// Routes need an interface that is up. 203.0.113.0/24 is for documentation;
/// the route to everything is the one that a sandbox with a way out has.
fn change_routes(stage: &Stage) -> Verdict {
    const DOCUMENTATION: (u8, [u8; 4]) = (24, [203, 0, 113, 0]);
    const EVERYTHING: (u8, [u8; 4]) = (0, [0; 4]);
    // Requests with an acknowledgement, the first one to create.
    let (new, old) = ((24, 0x405), (25, 5));
    // Whether this much is possible is another attack's question.
    let _up = matches!(change_interface(stage), Verdict::Escaped(_));
    Verdict::all([
        change_route(new, DOCUMENTATION),
        change_route(old, EVERYTHING),
    ])
}

/// RTM_NEWROUTE or RTM_DELROUTE (rtnetlink(7)) with these flags.
fn change_route((kind, flags): (u16, u16), (bits, network): (u8, [u8; 4])) -> Verdict {
    let mut message = 44_u32.to_ne_bytes().to_vec();
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&flags.to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    // struct rtmsg: family, lengths of destination and source, TOS, table
    // `local`, protocol, scope `host`, type `local`, flags.
    message.extend_from_slice(&[2, bits, 0, 0, 255, 4, 254, 2, 0, 0, 0, 0]);
    // RTA_OIF: the loopback.
    message.extend_from_slice(&8_u16.to_ne_bytes());
    message.extend_from_slice(&4_u16.to_ne_bytes());
    message.extend_from_slice(&1_u32.to_ne_bytes());
    // RTA_DST
    message.extend_from_slice(&8_u16.to_ne_bytes());
    message.extend_from_slice(&1_u16.to_ne_bytes());
    message.extend_from_slice(&network);
    match exchange(&message) {
        Ok(0) => Verdict::Escaped("changed a route".into()),
        Ok(number) => Verdict::refused(&io::Error::from_raw_os_error(-number)),
        Err(error) => Verdict::refused(&error),
    }
}

/// Sends one request and returns the error number of its answer.
fn exchange(message: &[u8]) -> io::Result<i32> {
    let socket = socket(16, 3, 0)?;
    rustix::net::send(&socket, message, SendFlags::empty())?;
    let mut answer = [0_u8; 4096];
    rustix::io::read(&socket, &mut answer)?;
    Ok(i32::from_ne_bytes([
        answer[16], answer[17], answer[18], answer[19],
    ]))
}

fn interfaces(_: &Stage) -> Verdict {
    match std::fs::read_to_string("/proc/net/dev") {
        Err(error) => Verdict::refused(&error),
        Ok(text) => {
            let names = text
                .lines()
                .filter_map(|line| line.split_once(':'))
                .map(|(name, _)| name.trim());
            match names
                .into_iter()
                .find(|name| !["lo", "sit0", "tunl0", "ip6tnl0"].contains(name))
            {
                Some(name) => Verdict::Escaped(format!("sees {name}")),
                None => Verdict::Stopped("only the loopback shows".into()),
            }
        }
    }
}

fn unix(path: &Path) -> Verdict {
    let stream = UnixStream::connect(path);
    let datagram = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
    let stream = Verdict::of(stream, |_| format!("connected to {}", path.display()));
    let datagram = Verdict::of(datagram, |()| format!("may send to {}", path.display()));
    Verdict::all([stream, datagram])
}

fn unix_through_link(stage: &Stage) -> Verdict {
    let link = super::workspace_path(stage, "socket");
    let Some(path) = stage
        .sockets
        .iter()
        .find(|path| path.starts_with(&stage.beside))
    else {
        return Verdict::Inconclusive("no socket was staged".into());
    };
    if let Err(error) = std::os::unix::fs::symlink(path, &link) {
        return Verdict::Inconclusive(format!("cannot make a link: {error}"));
    }
    let verdict = unix(&link);
    super::tidy(&link);
    verdict
}

fn daemons(_: &Stage) -> Verdict {
    let known = [
        "/run/docker.sock",
        "/var/run/docker.sock",
        "/run/containerd/containerd.sock",
        "/run/podman/podman.sock",
        "/run/dbus/system_bus_socket",
        "/run/systemd/private",
        "/run/systemd/notify",
        "/run/snapd.socket",
        "/run/nscd/socket",
        "/tmp/.X11-unix/X0",
        "/dev/log",
    ]
    .map(PathBuf::from);
    let found = ["/run", "/run/user", "/tmp", "/var/run"]
        .into_iter()
        .flat_map(|directory| {
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).filter(|path| {
                use std::os::unix::fs::FileTypeExt;
                std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
            })
        });
    Verdict::all(known.into_iter().chain(found).map(|path| unix(&path)))
}
