//! The internet of the tests: a resolver, web origins with and without TLS,
//! echoes and sinks on every address, and a log of all that reached them.
//!
//! It listens on all addresses of the network namespace it is started in and
//! ends when its standard input does. The directory that it is given holds the
//! zone, and gets the log and the certificate of its authority.

mod certificates;
mod mint;
mod names;
mod web;

use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Mutex;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

/// Ports that answer in plain HTTP, and in HTTPS.
const HTTP_PORTS: &[u16] = &[80, 8080];
const HTTPS_PORTS: &[u16] = &[443, 8443];
/// Ports that send back what they are sent.
const ECHO_PORTS: &[u16] = &[7, 9000, 25];
/// UDP ports that only write down what they are sent.
const SINK_PORTS: &[u16] = &[123, 443, 9000];

/// What all servers share.
pub struct World {
    pub directory: PathBuf,
    log: Mutex<std::fs::File>,
}

impl World {
    /// Appends one line to the log.
    pub fn note(&self, entry: Value) {
        let line = format!("{entry}\n");
        let mut log = self.log.lock().expect("no writer panicked");
        log.write_all(line.as_bytes())
            .expect("the log can be written");
    }
}

fn main() {
    let directory = PathBuf::from(
        std::env::args_os()
            .nth(1)
            .expect("usage: stockade-origin DIRECTORY"),
    );
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(directory.join("log.jsonl"))
        .expect("the log can be opened");
    let world = Rc::new(World {
        directory,
        log: Mutex::new(log),
    });
    let born = format!("{}\n", std::process::id());
    put(&world, "born", &born);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, serve(world));
}

/// Appears whole or not at all.
fn put(world: &World, name: &str, content: &str) {
    let new = world.directory.join(format!("{name}.new"));
    std::fs::write(&new, content).expect("a file can be written");
    std::fs::rename(new, world.directory.join(name)).expect("a file can be renamed");
}

async fn serve(world: Rc<World>) {
    let certificates = certificates::Certificates::new();
    put(&world, "authority.pem", &certificates.authority_pem());
    let tls = certificates.server();
    tokio::task::spawn_local(names::serve_udp(world.clone(), udp(53).await));
    tokio::task::spawn_local(names::serve_tcp(world.clone(), tcp(53).await));
    for &port in HTTP_PORTS {
        tokio::task::spawn_local(web::serve(world.clone(), tcp(port).await, None));
    }
    for &port in HTTPS_PORTS {
        tokio::task::spawn_local(web::serve(
            world.clone(),
            tcp(port).await,
            Some(tls.clone()),
        ));
    }
    for &port in ECHO_PORTS {
        tokio::task::spawn_local(echo(world.clone(), tcp(port).await));
    }
    for &port in SINK_PORTS {
        tokio::task::spawn_local(sink(world.clone(), udp(port).await, port));
    }
    put(&world, "listening", "");
    // The test holds the other end.
    let mut buffer = [0u8; 16];
    while !matches!(tokio::io::stdin().read(&mut buffer).await, Ok(0) | Err(_)) {}
    std::process::exit(0);
}

async fn tcp(port: u16) -> TcpListener {
    TcpListener::bind(("::", port))
        .await
        .expect("a port is free")
}

async fn udp(port: u16) -> UdpSocket {
    UdpSocket::bind(("::", port)).await.expect("a port is free")
}

async fn echo(world: Rc<World>, listener: TcpListener) {
    while let Ok((mut stream, peer)) = listener.accept().await {
        let world = world.clone();
        tokio::task::spawn_local(async move {
            let address = stream
                .local_addr()
                .expect("a connected socket has an address");
            world.note(serde_json::json!({
                "kind": "connect", "address": address.ip().to_canonical(), "port": address.port(),
                "peer": peer.ip().to_canonical(),
            }));
            let mut buffer = vec![0u8; 64 * 1024];
            while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                let start = String::from_utf8_lossy(&buffer[..length.min(2048)]).into_owned();
                world.note(
                    serde_json::json!({ "kind": "data", "port": address.port(), "text": start }),
                );
                if stream.write_all(&buffer[..length]).await.is_err() {
                    break;
                }
            }
        });
    }
}

async fn sink(world: Rc<World>, socket: UdpSocket, port: u16) {
    let mut buffer = vec![0u8; 64 * 1024];
    while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
        let text = String::from_utf8_lossy(&buffer[..length.min(2048)]).into_owned();
        world.note(serde_json::json!({
            "kind": "udp", "port": port, "peer": peer.ip().to_canonical(), "text": text,
        }));
    }
}
