//! The only place that opens a connection to the outside.
//!
//! It takes what was vetted and nothing else. `clippy.toml` forbids the ways
//! around it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use stockade_policy::network::judge::Denial;
use stockade_sys::rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::context::denial;
use crate::offers::HostPermit;
use crate::resolve::{Route, Vetted};

/// For the connection, whatever the number of addresses.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// After which the next address is tried as well (RFC 8305, section 5).
const NEXT_ATTEMPT: Duration = Duration::from_millis(250);
/// Longest head of a proxy's answer, in bytes.
const PROXY_HEAD_BYTES_MAX: usize = 8 * 1024;
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Connects to a vetted destination, directly or through the organisation's
/// proxy, within 10 seconds.
pub async fn connect(vetted: &Vetted) -> Result<TcpStream, Denial> {
    let attempt = async {
        match vetted.route() {
            Route::Direct(addresses) => race(addresses).await,
            Route::Proxy { proxy, target } => through(race(proxy).await?, target).await,
        }
    };
    timed(attempt).await.map_err(|error| {
        let destination = vetted.destination();
        denial(
            "unresolvable",
            format!("{destination} cannot be reached: {error}"),
        )
    })
}

/// Connects to a port of this machine's loopback that the policy offers.
pub async fn connect_host(permit: &HostPermit) -> io::Result<TcpStream> {
    let port = permit.port();
    timed(race(&[
        (Ipv4Addr::LOCALHOST, port).into(),
        (Ipv6Addr::LOCALHOST, port).into(),
    ]))
    .await
}

/// Connects a socket that the sandbox's init made, so one that reaches the
/// inside only, to a server inside.
pub async fn connect_inside(socket: TcpSocket, address: SocketAddr) -> io::Result<TcpStream> {
    timed(attempt(socket, address)).await
}

async fn timed<T>(attempt: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(CONNECT_TIMEOUT, attempt)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// The first of the addresses that answers; each gets a head start.
async fn race(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    if let [only] = addresses {
        return attempt(socket_for(*only)?, *only).await;
    }
    let mut attempts = JoinSet::new();
    let mut addresses = addresses.iter();
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        let next = addresses.next();
        if let Some(&address) = next {
            attempts.spawn(async move { attempt(socket_for(address)?, address).await });
        } else if attempts.is_empty() {
            return Err(last);
        }
        let done = async {
            match attempts.join_next().await {
                Some(Ok(done)) => done,
                // An attempt neither panics nor is cancelled.
                Some(Err(error)) => Err(io::Error::other(error)),
                None => Err(io::ErrorKind::AddrNotAvailable.into()),
            }
        };
        let done = match next {
            Some(_) => tokio::time::timeout(NEXT_ATTEMPT, done).await,
            None => Ok(done.await),
        };
        match done {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => {}
        }
    }
}

fn socket_for(address: SocketAddr) -> io::Result<TcpSocket> {
    if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the one place")]
async fn attempt(socket: TcpSocket, address: SocketAddr) -> io::Result<TcpStream> {
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
    Ok(stream)
}

/// Asks the proxy for a tunnel (RFC 9110, section 9.3.6).
async fn through(mut proxy: TcpStream, target: &str) -> io::Result<TcpStream> {
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    proxy.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    // Byte by byte: what follows the head belongs to the tunnel.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= PROXY_HEAD_BYTES_MAX {
            return Err(io::Error::other("the proxy's answer is too long"));
        }
        head.push(proxy.read_u8().await?);
    }
    let line = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let accepted = line.starts_with(b"HTTP/1.1 2") || line.starts_with(b"HTTP/1.0 2");
    if !accepted {
        let line = String::from_utf8_lossy(line).into_owned();
        return Err(io::Error::other(format!("the proxy refused: {line}")));
    }
    Ok(proxy)
}
