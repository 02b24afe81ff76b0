//! The command inside: it tries, and prints what became of it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;

use stockade_sys::network;

/// A port on which a server inside listens.
pub const SERVER_PORT: u16 = 8090;

pub fn run() {
    say("token", std::env::var("TOKEN").unwrap_or_default());
    say("descriptors", open_descriptors().join(" "));
    let server = TcpListener::bind(("127.0.0.1", SERVER_PORT));
    for address in [
        "203.0.113.9:443",
        "[2001:db8::7]:8443",
        "10.0.0.1:22",
        "127.0.0.1:3128",
        "[::1]:3128",
        "127.0.0.1:8123",
        "9.9.9.9:53",
        "[2001:db8::9]:53",
    ] {
        say(address, greeting(address));
    }
    for address in ["203.0.113.9:443", "[2001:db8::7]:443"] {
        say(&format!("udp {address}"), datagram(address));
    }
    for address in ["9.9.9.9:53", "[2001:db8::9]:53", "127.0.0.1:53"] {
        say(&format!("udp {address}"), datagram(address));
    }
    say("unix", offered("/run/offers/agent"));
    say("unix on the root", offered("/run/other/agent"));
    for address in ["127.0.0.1", "127.0.0.2", "::1"] {
        say(&format!("own server on {address}"), own_server(address));
    }
    say("published", published(server));
    occupy();
    tamper();
    say("after", greeting("203.0.113.9:443"));
}

/// Nobody outside holds the sockets any more.
pub fn run_alone() {
    for address in ["203.0.113.9:443", "127.0.0.1:3128", "[2001:db8::7]:8443"] {
        say(address, greeting(address));
    }
    say("udp", datagram("9.9.9.9:53"));
    say("unix", offered("/run/offers/agent"));
}

fn say(what: &str, outcome: impl std::fmt::Display) {
    println!("{what}: {outcome}");
}

/// Numbers of the open descriptors; the one that lists them is not counted.
pub fn open_descriptors() -> Vec<String> {
    let entries = std::fs::read_dir("/proc/self/fd").expect("/proc is there");
    let mut numbers: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    // The listing itself has the highest number, being the last one opened.
    numbers.pop();
    numbers.iter().map(ToString::to_string).collect()
}

fn greeting(address: &str) -> String {
    text(TcpStream::connect(address).and_then(read_all))
}

fn offered(path: &str) -> String {
    text(UnixStream::connect(path).and_then(read_all))
}

fn read_all(mut stream: impl Read) -> io::Result<String> {
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn datagram(address: &str) -> String {
    let address: SocketAddr = address.parse().expect("an address");
    let own = if address.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    text(UdpSocket::bind(own).and_then(|socket| {
        socket.connect(address)?;
        socket.send(b"question")?;
        let mut buffer = [0; 100];
        let length = socket.recv(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }))
}

/// A server and a client that are both inside never leave it.
fn own_server(address: &str) -> String {
    text(TcpListener::bind((address, 0)).and_then(|listener| {
        let mut client = TcpStream::connect(listener.local_addr()?)?;
        client.write_all(b"x")?;
        drop(client);
        read_all(listener.accept()?.0)
    }))
}

/// Somebody outside connects to a server inside by a supplied socket.
fn published(server: io::Result<TcpListener>) -> String {
    text(server.and_then(|server| {
        // Asks for it.
        greeting("192.0.2.1:1");
        read_all(server.accept()?.0)
    }))
}

/// The places of the sockets are taken.
fn occupy() {
    for address in ["127.0.0.1", "0.0.0.0"] {
        for port in [3128, 15001, 8123] {
            let bound = TcpListener::bind((address, port)).map(|_| "bound".to_owned());
            say(&format!("bind {address}:{port}"), text(bound));
        }
        let bound = UdpSocket::bind((address, 53)).map(|_| "bound".to_owned());
        say(&format!("bind udp {address}:53"), text(bound));
    }
}

/// Neither the routes nor the redirect can be changed.
fn tamper() {
    let done = |result: io::Result<()>| text(result.map(|()| "done".to_owned()));
    say("lo", done(network::loopback_up()));
    say("routes", done(network::make_everything_local().map(drop)));
    say("redirect", done(network::redirect_to(9)));
    say(
        "users",
        done(stockade_sys::process::leave_network_and_users()),
    );
    say("network", done(stockade_sys::process::leave_network()));
}

fn text(result: io::Result<String>) -> String {
    match result {
        Ok(text) => text,
        Err(error) => format!("{:?}", error.kind()),
    }
}
