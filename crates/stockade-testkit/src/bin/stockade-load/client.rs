//! The client of the benchmark: what it measures goes to standard output as
//! one line of JSON, times in microseconds.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;

use crate::{BULK_PORT, ECHO_PORT, WEB_PORT};

const WARM_UP: u64 = 20;

/// Bytes a second through some tunnels at a time.
pub fn bulk(host: &str, mebibytes: u64, streams: u64) {
    let bytes = (mebibytes << 20) / streams;
    let start = Instant::now();
    let workers: Vec<_> = (0..streams)
        .map(|_| {
            let host = host.to_owned();
            std::thread::spawn(move || download(&host, bytes).expect("the bytes arrive"))
        })
        .collect();
    for worker in workers {
        worker.join().expect("a worker ends");
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{}",
        json!({ "mebibytes_per_second": mebibytes as f64 / seconds, "seconds": seconds })
    );
}

fn download(host: &str, bytes: u64) -> std::io::Result<()> {
    let mut stream = connect(host, BULK_PORT)?;
    stream.write_all(&bytes.to_be_bytes())?;
    let mut buffer = vec![0u8; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        left -= length as u64;
    }
    Ok(())
}

/// Time until the first byte comes back through a new connection.
pub fn connections(host: &str, count: u64) {
    let one = || -> std::io::Result<()> {
        let mut stream = connect(host, ECHO_PORT)?;
        // Some proxies wait for more than a byte before they pass any on.
        stream.write_all(&[b'x'; 64])?;
        stream.read_exact(&mut [0; 64])
    };
    report(count, || one().expect("an echo"));
}

/// Time of one small HTTPS request on a connection that stays.
pub fn requests(host: &str, roots: &str, count: u64) {
    let stream = connect(host, WEB_PORT).expect("a connection");
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(roots).expect("roots") {
        // A system's bundle may hold some that this library does not take.
        let _odd = store.add(certificate.expect("a certificate")).is_err();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("protocol versions")
        .with_root_certificates(store)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).expect("a server name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a session");
    let mut stream = BufReader::new(StreamOwned::new(connection, stream));
    let request = format!("GET /items/1 HTTP/1.1\r\nhost: {host}\r\naccept: */*\r\n\r\n");
    report(count, || {
        stream
            .get_mut()
            .write_all(request.as_bytes())
            .expect("a request leaves");
        read_reply(&mut stream).expect("a reply arrives");
    });
}

/// A byte there and back over the loopback, for comparison.
pub fn round_trips(count: u64) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let mut near =
        TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (mut far, _) = listener.accept().expect("a connection");
    near.set_nodelay(true)
        .and_then(|()| far.set_nodelay(true))
        .expect("options");
    std::thread::spawn(move || {
        let mut byte = [0];
        while far
            .read_exact(&mut byte)
            .and_then(|()| far.write_all(&byte))
            .is_ok()
        {}
    });
    report(count, || {
        near.write_all(b"x")
            .and_then(|()| near.read_exact(&mut [0]))
            .expect("a round trip");
    });
}

fn report(count: u64, mut one: impl FnMut()) {
    for _ in 0..WARM_UP.min(count) {
        one();
    }
    let whole = Instant::now();
    let mut times: Vec<Duration> = (0..count)
        .map(|_| {
            let start = Instant::now();
            one();
            start.elapsed()
        })
        .collect();
    let seconds = whole.elapsed().as_secs_f64();
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e6;
    println!(
        "{}",
        json!({ "median_us": at(50), "p90_us": at(90), "count": count + WARM_UP.min(count), "seconds": seconds })
    );
}

fn read_reply(stream: &mut impl BufRead) -> std::io::Result<()> {
    let mut line = String::new();
    let mut length = 0;
    loop {
        line.clear();
        if stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let lower = line.to_ascii_lowercase();
        if lower.starts_with("http/1.1 ") && !lower.starts_with("http/1.1 200") {
            return Err(std::io::Error::other(line));
        }
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(std::io::Error::other)?;
        }
        if line == "\r\n" {
            break;
        }
    }
    stream.read_exact(&mut vec![0u8; length])
}

/// Through the proxy of HTTPS_PROXY by CONNECT, else directly.
fn connect(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let Ok(proxy) = std::env::var("HTTPS_PROXY") else {
        return direct(&format!("{host}:{port}"));
    };
    let rest = proxy
        .split_once("://")
        .map_or(proxy.as_str(), |(_, rest)| rest);
    let rest = rest.trim_end_matches('/');
    let (user, address) = match rest.rsplit_once('@') {
        Some((user, address)) => (Some(user), address),
        None => (None, rest),
    };
    let mut stream = direct(address)?;
    let mut request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
    if let Some(user) = user {
        let user = percent_encoding::percent_decode_str(user).collect::<Vec<u8>>();
        request += &format!("Proxy-Authorization: Basic {}\r\n", STANDARD.encode(user));
    }
    stream.write_all((request + "\r\n").as_bytes())?;
    // Byte by byte: what follows belongs to the tunnel.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    if !head.starts_with(b"HTTP/1.1 200") && !head.starts_with(b"HTTP/1.0 200") {
        return Err(std::io::Error::other(
            String::from_utf8_lossy(&head).into_owned(),
        ));
    }
    Ok(stream)
}

fn direct(address: &str) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
    for address in address.to_socket_addrs()? {
        match TcpStream::connect(address) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
