//! Before anything runs inside: each way out refuses what is not allowed.
//!
//! It asks through sockets of the sandbox itself, so it sees what a program
//! inside would see: the routes, the redirect, the listeners and the judge
//! together. What it asks for is beyond any rule, so that neither a generous
//! policy nor a person who is asked could permit it. A list of hosts that was
//! parsed and is not enforced would show here.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use stockade_policy::network::rules::Capture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use crate::context::Context;
use crate::dial;
use crate::proxy_token::ProxyToken;
use crate::wire::Entry;

/// Never delegated (RFC 6761), and denied before any rule is asked.
const CANARY: &str = "canary.stockade.invalid";
/// Metadata services of clouds: on the floor.
const FLOOR_IPV4: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
const FLOOR_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254);
const NAMES_PORT: u16 = 53;
const HTTPS_PORT: u16 = 443;
/// For the whole test; it takes a millisecond or two.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Sockets of the sandbox to ask with, and what there is to ask.
#[derive(Default)]
pub struct Probes {
    pub tcp: Vec<OwnedFd>,
    pub udp: Vec<OwnedFd>,
    /// Where the explicit proxy listens inside.
    pub proxies: Vec<SocketAddr>,
    /// Where the stub listens inside.
    pub names: Vec<SocketAddr>,
    /// There is a listener for redirected connections.
    pub transparent: bool,
}

/// What was asked and what was seen; or what should have been refused.
type Seen = Result<Vec<(String, String)>, (String, String)>;

/// Asks each entry for what must be refused, in both families where there are
/// both.
pub async fn run(context: &Rc<Context>, probes: Probes) -> Seen {
    let capture = context.judge().plan().capture;
    let token = context.proxy_token.as_ref();
    match tokio::time::timeout(TIMEOUT, all(capture, token, probes)).await {
        Ok(seen) => seen,
        Err(_) => Err((
            "self-test".to_owned(),
            "an entry did not answer within 5 s".to_owned(),
        )),
    }
}

async fn all(capture: Capture, token: Option<&ProxyToken>, probes: Probes) -> Seen {
    let mut sockets = Sockets::new(probes.tcp, probes.udp).map_err(trouble("probes"))?;
    if probes.proxies.is_empty() {
        return Err(missing("the explicit proxy"));
    }
    let mut seen = Vec::new();
    for proxy in &probes.proxies {
        for entry in [Entry::Connect, Entry::HttpProxy, Entry::Socks] {
            let name = format!("{entry:?} {proxy}");
            let stream = sockets.connect(*proxy).await.map_err(trouble(&name))?;
            let answer = match token {
                None => refused_by_proxy(entry, "", stream).await,
                Some(_) => unauthorised(entry, stream).await,
            };
            seen.push((name.clone(), answer.map_err(trouble(&name))?));
            if let (Some(token), Entry::Connect | Entry::HttpProxy) = (token, entry) {
                let stream = sockets.connect(*proxy).await.map_err(trouble(&name))?;
                let answer = refused_by_proxy(entry, &token.field(), stream).await;
                let name = format!("{name} with the token");
                seen.push((name.clone(), answer.map_err(trouble(&name))?));
            }
        }
    }
    for family in sockets.families() {
        seen.push(direct(&mut sockets, capture, probes.transparent, family).await?);
        if capture == Capture::Transparent {
            seen.extend(names(&mut sockets, family).await?);
        }
        seen.push(datagram_elsewhere(&mut sockets, family).await?);
    }
    Ok(seen)
}

/// A request for the canary that must be answered with a refusal.
/// `fields` are more lines of the head, for HTTP.
async fn refused_by_proxy(entry: Entry, fields: &str, mut stream: TcpStream) -> io::Result<String> {
    let mut answer = vec![0; 512];
    if entry == Entry::Socks {
        stream.write_all(&[5, 1, 0]).await?;
        stream.read_exact(&mut answer[..2]).await?;
        let mut request = vec![5, 1, 0, 3, CANARY.len() as u8];
        request.extend_from_slice(CANARY.as_bytes());
        request.extend_from_slice(&HTTPS_PORT.to_be_bytes());
        stream.write_all(&request).await?;
        stream.read_exact(&mut answer[..10]).await?;
        return match answer[1] {
            2 => Ok("reply 2, not allowed".to_owned()),
            other => Err(io::Error::other(format!(
                "the canary got reply {other} instead of a refusal"
            ))),
        };
    }
    stream
        .write_all(canary_request(entry, fields).as_bytes())
        .await?;
    let length = stream.read(&mut answer).await?;
    match answer[..length].starts_with(b"HTTP/1.1 403 ") {
        true => Ok("403".to_owned()),
        false => Err(io::Error::other(
            "the canary got another answer than a refusal",
        )),
    }
}

fn canary_request(entry: Entry, fields: &str) -> String {
    match entry {
        Entry::Connect => {
            format!("CONNECT {CANARY}:443 HTTP/1.1\r\nHost: {CANARY}:443\r\n{fields}\r\n")
        }
        _ => format!("GET http://{CANARY}/ HTTP/1.1\r\nHost: {CANARY}\r\n{fields}\r\n"),
    }
}

/// A client without the token is not even told what is allowed.
async fn unauthorised(entry: Entry, mut stream: TcpStream) -> io::Result<String> {
    let mut answer = vec![0; 512];
    let (request, refusal) = match entry {
        Entry::Socks => (vec![5, 1, 0], &[5, 0xff][..]),
        _ => (
            canary_request(entry, "").into_bytes(),
            &b"HTTP/1.1 407 "[..],
        ),
    };
    stream.write_all(&request).await?;
    let length = stream.read(&mut answer).await?;
    match answer[..length].starts_with(refusal) {
        true => Ok("refused without the token".to_owned()),
        false => Err(io::Error::other("a client without the token was served")),
    }
}

/// A connection that knows of no proxy, to an address on the floor.
async fn direct(
    sockets: &mut Sockets,
    capture: Capture,
    transparent: bool,
    family: Family,
) -> Result<(String, String), (String, String)> {
    let target = SocketAddr::new(family.floor(), HTTPS_PORT);
    let name = format!("direct {target}");
    let connected = sockets.connect(target).await;
    if capture == Capture::ProxyOnly || !transparent {
        return match connected {
            Err(error) => Ok((name, format!("not connected: {error}"))),
            Ok(_) => Err((name, "a direct connection was accepted".to_owned())),
        };
    }
    let mut stream = connected.map_err(trouble(&name))?;
    let mut byte = [0];
    match stream.read(&mut byte).await {
        Ok(0) | Err(_) => Ok((name, "closed".to_owned())),
        Ok(_) => Err((name, "a direct connection got data".to_owned())),
    }
}

/// The canary has no address, whichever server is asked.
async fn names(sockets: &mut Sockets, family: Family) -> Seen {
    let mut seen = Vec::new();
    for server in [family.loopback(), family.floor()] {
        let server = SocketAddr::new(server, NAMES_PORT);
        let name = format!("name by UDP {server}");
        let asked = async {
            let socket = sockets.datagrams(server).await?;
            socket.send(&canary_query()).await?;
            let mut answer = vec![0; 512];
            let length = socket.recv(&mut answer).await?;
            no_such_name(&answer[..length])
        };
        seen.push((name.clone(), asked.await.map_err(trouble(&name))?));
    }
    let server = SocketAddr::new(family.loopback(), NAMES_PORT);
    let name = format!("name by TCP {server}");
    let asked = async {
        let mut stream = sockets.connect(server).await?;
        let query = canary_query();
        stream.write_u16(query.len() as u16).await?;
        stream.write_all(&query).await?;
        let length = stream.read_u16().await?;
        let mut answer = vec![0; usize::from(length)];
        stream.read_exact(&mut answer).await?;
        no_such_name(&answer)
    };
    seen.push((name.clone(), asked.await.map_err(trouble(&name))?));
    Ok(seen)
}

/// UDP to anything but names fails at once, so that clients of QUIC fall back.
async fn datagram_elsewhere(
    sockets: &mut Sockets,
    family: Family,
) -> Result<(String, String), (String, String)> {
    let target = SocketAddr::new(family.floor(), HTTPS_PORT);
    let name = format!("UDP {target}");
    let socket = sockets.datagrams(target).await;
    let outcome = match socket {
        Err(error) => Err(error),
        Ok(socket) => {
            let sent = socket.send(b"canary").await;
            let mut byte = [0];
            match sent {
                Ok(_) => socket.recv(&mut byte).await,
                Err(error) => Err(error),
            }
        }
    };
    match outcome {
        Err(error) => Ok((name, format!("{error}"))),
        Ok(_) => Err((name, "a datagram was answered".to_owned())),
    }
}

/// One question for the canary's IPv4 address (RFC 1035, section 4.1).
fn canary_query() -> Vec<u8> {
    let mut query = vec![0x53, 0x7d, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in CANARY.split('.') {
        query.push(label.len() as u8);
        query.extend_from_slice(label.as_bytes());
    }
    query.extend_from_slice(&[0, 0, 1, 0, 1]);
    query
}

fn no_such_name(answer: &[u8]) -> io::Result<String> {
    match answer {
        [0x53, 0x7d, _, flags, ..] if flags & 0x0f == 3 => Ok("NXDOMAIN".to_owned()),
        _ => Err(io::Error::other("the canary's name was answered")),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    fn of(socket: &OwnedFd) -> io::Result<Self> {
        let address = stockade_sys::network::local_address(socket.as_fd())?;
        Ok(match address {
            SocketAddr::V4(_) => Self::Ipv4,
            SocketAddr::V6(_) => Self::Ipv6,
        })
    }

    fn loopback(self) -> IpAddr {
        match self {
            Self::Ipv4 => Ipv4Addr::LOCALHOST.into(),
            Self::Ipv6 => Ipv6Addr::LOCALHOST.into(),
        }
    }

    fn floor(self) -> IpAddr {
        match self {
            Self::Ipv4 => FLOOR_IPV4.into(),
            Self::Ipv6 => FLOOR_IPV6.into(),
        }
    }
}

/// Unused sockets of the sandbox.
struct Sockets {
    tcp: Vec<(Family, OwnedFd)>,
    udp: Vec<(Family, OwnedFd)>,
}

impl Sockets {
    fn new(tcp: Vec<OwnedFd>, udp: Vec<OwnedFd>) -> io::Result<Self> {
        let with_family = |sockets: Vec<OwnedFd>| {
            sockets
                .into_iter()
                .map(|socket| Ok((Family::of(&socket)?, socket)))
                .collect::<io::Result<Vec<_>>>()
        };
        Ok(Self {
            tcp: with_family(tcp)?,
            udp: with_family(udp)?,
        })
    }

    fn families(&self) -> Vec<Family> {
        let there = |family: &Family| self.tcp.iter().any(|(one, _)| one == family);
        [Family::Ipv4, Family::Ipv6]
            .into_iter()
            .filter(there)
            .collect()
    }

    async fn connect(&mut self, target: SocketAddr) -> io::Result<TcpStream> {
        let socket = take(&mut self.tcp, target)?;
        let socket = TcpSocket::from_std_stream(std::net::TcpStream::from(socket));
        dial::connect_inside(socket, target).await
    }

    async fn datagrams(&mut self, target: SocketAddr) -> io::Result<UdpSocket> {
        let socket = std::net::UdpSocket::from(take(&mut self.udp, target)?);
        socket.set_nonblocking(true)?;
        let socket = UdpSocket::from_std(socket)?;
        socket.connect(target).await?;
        Ok(socket)
    }
}

fn take(sockets: &mut Vec<(Family, OwnedFd)>, target: SocketAddr) -> io::Result<OwnedFd> {
    let family = match target {
        SocketAddr::V4(_) => Family::Ipv4,
        SocketAddr::V6(_) => Family::Ipv6,
    };
    let found = sockets.iter().position(|(one, _)| *one == family);
    let found = found.ok_or_else(|| io::Error::other("there are too few sockets to test with"))?;
    Ok(sockets.swap_remove(found).1)
}

fn missing(what: &str) -> (String, String) {
    ("listeners".to_owned(), format!("{what} is not there"))
}

fn trouble(what: &str) -> impl FnOnce(io::Error) -> (String, String) {
    let what = what.to_owned();
    move |error| (what, error.to_string())
}
