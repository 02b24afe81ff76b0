//! The two ends of the egress benchmark: an origin that is no bottleneck, and
//! a client that measures through a proxy.
//!
//! Plain threads and blocking sockets, so that what is measured is the proxy.
//! A client prints one line of JSON and stays until its standard input ends,
//! so that its caller can look up what the proxy used.

mod client;
mod origin;

use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Port on which the origin sends as many bytes as it is asked for.
pub const BULK_PORT: u16 = 9001;
/// Port on which it sends back what it gets.
pub const ECHO_PORT: u16 = 9002;
/// Port on which it answers HTTPS requests.
pub const WEB_PORT: u16 = 443;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["origin", directory] => return origin::serve(PathBuf::from(directory)),
        ["bulk", host, mebibytes, streams] => {
            client::bulk(host, number(mebibytes), number(streams))
        }
        ["connections", host, count] => client::connections(host, number(count)),
        ["requests", host, roots, count] => client::requests(host, roots, number(count)),
        ["round-trips", count] => client::round_trips(number(count)),
        _ => {
            eprintln!(
                "usage: stockade-load origin DIRECTORY | bulk HOST MEBIBYTES STREAMS | \
                 connections HOST COUNT | requests HOST ROOTS COUNT | round-trips COUNT\n\
                 The proxy is taken from HTTPS_PROXY; without it the client connects directly."
            );
            std::process::exit(2);
        }
    }
    let mut rest = Vec::new();
    let _ended = std::io::stdin().read_to_end(&mut rest).is_err();
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

/// Every address of both families.
pub fn everywhere(port: u16) -> SocketAddr {
    SocketAddr::from(([0u16; 8], port))
}
