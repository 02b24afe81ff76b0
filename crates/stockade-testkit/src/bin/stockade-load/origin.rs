//! The origin of the benchmark.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::{BULK_PORT, ECHO_PORT, WEB_PORT, everywhere};

/// Name of the origin in its certificate.
pub const NAME: &str = "origin.bench";
/// What each request is answered with.
const PAGE_BYTES: usize = 256;

/// Serves until its standard input ends; `directory` gets the certificate of
/// its authority, and then a file that says that it listens.
pub fn serve(directory: PathBuf) {
    let tls = configuration(&directory);
    accept(BULK_PORT, |stream| drop(send_bulk(stream)));
    accept(ECHO_PORT, |stream| drop(echo(stream)));
    accept(WEB_PORT, move |stream| drop(answer(stream, tls.clone())));
    std::fs::write(directory.join("listening"), "").expect("a file can be written");
    let mut rest = Vec::new();
    let _ended = std::io::stdin().read_to_end(&mut rest).is_err();
}

fn accept(port: u16, serve: impl Fn(TcpStream) + Send + Sync + 'static) {
    let listener = TcpListener::bind(everywhere(port)).expect("a port is free");
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            let _delayed = stream.set_nodelay(true).is_err();
            std::thread::spawn(move || serve(stream));
        }
    });
}

/// Reads a count of bytes as eight bytes, big-endian, and sends as many.
fn send_bulk(mut stream: TcpStream) -> std::io::Result<()> {
    let mut count = [0u8; 8];
    stream.read_exact(&mut count)?;
    let mut left = u64::from_be_bytes(count);
    let chunk = vec![0x5au8; 1 << 20];
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
        stream.write_all(&chunk[..part])?;
        left -= part as u64;
    }
    Ok(())
}

fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buffer = [0u8; 4096];
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..length])?;
    }
}

/// HTTP/1.1 requests without bodies, until the client has enough.
fn answer(stream: TcpStream, tls: Arc<ServerConfig>) -> std::io::Result<()> {
    let connection = ServerConnection::new(tls).map_err(std::io::Error::other)?;
    let mut stream = BufReader::new(StreamOwned::new(connection, stream));
    let mut reply = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {PAGE_BYTES}\r\n\r\n"
    );
    reply.push_str(&"x".repeat(PAGE_BYTES));
    let mut line = String::new();
    loop {
        line.clear();
        if stream.read_line(&mut line)? == 0 {
            return Ok(());
        }
        if line == "\r\n" {
            stream.get_mut().write_all(reply.as_bytes())?;
        }
    }
}

fn configuration(directory: &std::path::Path) -> Arc<ServerConfig> {
    let key = KeyPair::generate().expect("a key");
    let mut parameters = CertificateParams::new(Vec::new()).expect("parameters");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // OpenSSL takes a leaf with its issuer's name for one that signed itself.
    parameters
        .distinguished_name
        .push(DnType::CommonName, "Benchmark authority");
    let authority = parameters.self_signed(&key).expect("a certificate");
    std::fs::write(directory.join("authority.pem"), authority.pem())
        .expect("a file can be written");
    let issuer = Issuer::new(parameters, key);
    let key = KeyPair::generate().expect("a key");
    let mut leaf = CertificateParams::new(vec![NAME.to_owned()]).expect("parameters");
    leaf.distinguished_name.push(DnType::CommonName, NAME);
    let leaf = leaf.signed_by(&key, &issuer).expect("a certificate");
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("protocol versions")
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .expect("a certificate and its key");
    Arc::new(config)
}
