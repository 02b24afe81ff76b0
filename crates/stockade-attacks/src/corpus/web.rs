//! What attacks on the way out speak: HTTP/1.1 to the proxy and past it, TLS to
//! whoever answers, and DNS. Nothing here checks what a careful client checks.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(4);
/// Longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// The header with which the product says that it refused, and why.
const REFUSED: &str = "x-sandbox-denied";
/// Statuses for what was permitted and then failed.
const AFTERWARDS: [u16; 2] = [502, 504];

/// One response.
#[derive(Clone, Debug)]
pub struct Answer {
    status: u16,
    bytes: Vec<u8>,
}

impl Answer {
    /// Why it was refused; `None` when it was permitted.
    pub fn refusal(&self) -> Option<String> {
        let head = String::from_utf8_lossy(&self.bytes);
        let code = head
            .lines()
            .take_while(|line| !line.is_empty())
            .find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case(REFUSED)
                    .then(|| value.trim().to_owned())
            });
        code.filter(|_| !AFTERWARDS.contains(&self.status))
    }

    pub fn line(&self) -> String {
        let text = String::from_utf8_lossy(&self.bytes);
        text.lines().next().unwrap_or_default().to_owned()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The responses in what came, each from its status line on.
fn answers(bytes: &[u8]) -> Vec<Answer> {
    let starts: Vec<usize> = (0..bytes.len())
        .filter(|at| bytes[*at..].starts_with(b"HTTP/1.1 "))
        .collect();
    let ends = starts.iter().skip(1).copied().chain([bytes.len()]);
    let parts = starts
        .iter()
        .zip(ends)
        .map(|(start, end)| &bytes[*start..end]);
    parts
        .filter_map(|part| {
            let status = std::str::from_utf8(part.get(9..12)?).ok()?.parse().ok()?;
            let bytes = part.to_vec();
            Some(Answer { status, bytes })
        })
        .collect()
}

fn only(bytes: &[u8]) -> io::Result<Answer> {
    let first = answers(bytes).into_iter().next();
    first.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Where the environment says that the proxy is.
fn proxy() -> io::Result<SocketAddr> {
    let said = std::env::var("http_proxy").unwrap_or_default();
    let address = said.strip_prefix("http://").unwrap_or(&said);
    let address = address.trim_end_matches('/').rsplit('@').next();
    let parsed = address.and_then(|address| address.parse().ok());
    parsed.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no proxy"))
}

fn connected(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// What comes until the end, or until nothing comes.
fn all_of(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = stream.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes);
    match read {
        Err(error) if bytes.is_empty() => Err(error),
        _ => Ok(bytes),
    }
}

/// Sends bytes to the proxy.
pub fn raw(sent: &[u8]) -> io::Result<Vec<Answer>> {
    let mut stream = connected(proxy()?)?;
    stream.write_all(sent)?;
    Ok(answers(&all_of(&mut stream)?))
}

fn request(method: &str, target: &str, host: &str, headers: &[(&str, &str)]) -> String {
    let own = headers.iter().any(|(name, _)| *name == "Host");
    let mut text = format!("{method} {target} HTTP/1.1\r\n");
    if !own {
        text.push_str(&format!("Host: {host}\r\n"));
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text + "Connection: close\r\n\r\n"
}

/// Asks the proxy for a whole URL, or for a connection with `CONNECT`.
pub fn through_proxy(method: &str, target: &str, headers: &[(&str, &str)]) -> io::Result<Answer> {
    let rest = target.strip_prefix("http://").unwrap_or(target);
    let host = rest.split('/').next().unwrap_or(rest);
    let mut stream = connected(proxy()?)?;
    stream.write_all(request(method, target, host, headers).as_bytes())?;
    if method == "CONNECT" {
        return only(&head(&mut stream)?);
    }
    only(&all_of(&mut stream)?)
}

/// The answer's head, and nothing behind it.
fn head(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut one = [0];
    while !bytes.ends_with(b"\r\n\r\n") && bytes.len() < ANSWER_BYTES_MAX as usize {
        stream.read_exact(&mut one)?;
        bytes.push(one[0]);
    }
    Ok(bytes)
}

/// Asks whoever takes a connection to this address.
pub fn direct(address: SocketAddr, host: &str) -> io::Result<Answer> {
    let mut stream = connected(address)?;
    stream.write_all(request("GET", "/", host, &[]).as_bytes())?;
    only(&all_of(&mut stream)?)
}

/// Has the proxy connect to port 443 of a host, and begins TLS there as if with
/// another.
pub fn encrypted(
    host: &str,
    server_name: &str,
) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let mut stream = connected(proxy()?)?;
    let target = format!("{host}:443");
    stream.write_all(request("CONNECT", &target, &target, &[]).as_bytes())?;
    let answer = only(&head(&mut stream)?)?;
    if answer.status != 200 {
        return Err(io::Error::other(answer.line()));
    }
    let name = ServerName::try_from(server_name.to_owned()).map_err(io::Error::other)?;
    let provider = Arc::new(ring::default_provider());
    let configuration = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        .with_no_client_auth();
    let mut connection =
        ClientConnection::new(Arc::new(configuration), name).map_err(io::Error::other)?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream)?;
    }
    Ok(StreamOwned::new(connection, stream))
}

/// One request within TLS.
pub fn over_tls(host: &str, path: &str, headers: &[(&str, &str)]) -> io::Result<Answer> {
    let mut stream = encrypted(host, host)?;
    stream.write_all(request("GET", path, host, headers).as_bytes())?;
    stream.flush()?;
    only(&all_of(&mut stream)?)
}

/// A client that believes everybody: that the server proves nothing is no hindrance to an
/// attack.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// What a name server answered.
#[derive(Clone, Copy, Debug)]
pub struct Resolved {
    pub records: u16,
    /// It holds an address for benchmarks (RFC 2544), which stands for a name
    /// inside the sandbox.
    pub stand_in: bool,
}

/// Asks the first name server of the sandbox, with a number for the type.
pub fn resolve(name: &str, kind: u16) -> io::Result<Resolved> {
    let configured = std::fs::read_to_string("/etc/resolv.conf")?;
    let server = configured.lines().find_map(|line| {
        line.strip_prefix("nameserver")?
            .trim()
            .parse::<IpAddr>()
            .ok()
    });
    let server = server.ok_or(io::ErrorKind::NotFound)?;
    ask(server, name, kind, PATIENCE)
}

/// Asks a name server, with a number for the type.
pub fn ask(server: IpAddr, name: &str, kind: u16, patience: Duration) -> io::Result<Resolved> {
    let own = match server {
        IpAddr::V4(_) => "0.0.0.0:0",
        IpAddr::V6(_) => "[::]:0",
    };
    let socket = UdpSocket::bind(own)?;
    socket.set_read_timeout(Some(patience))?;
    socket.connect((server, 53))?;
    let mut question = b"\x13\x37\x01\0\0\x01\0\0\0\0\0\0".to_vec();
    for label in name.split('.') {
        question.push(label.len() as u8);
        question.extend_from_slice(label.as_bytes());
    }
    question.push(0);
    question.extend_from_slice(&kind.to_be_bytes());
    question.extend_from_slice(&1_u16.to_be_bytes());
    socket.send(&question)?;
    let mut answer = [0; 1232];
    let length = socket.recv(&mut answer)?;
    let records = u16::from_be_bytes([answer[6], answer[7]]);
    // The first bytes of 198.18.0.0/15, behind the question.
    let behind = &answer[question.len().min(length)..length];
    let stand_in = behind
        .windows(2)
        .any(|pair| pair == [198, 18] || pair == [198, 19]);
    Ok(Resolved { records, stand_in })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_told_from_what_failed_later() {
        let said = b"HTTP/1.1 502 Bad Gateway\r\nX-Sandbox-Denied: unresolvable\r\n\r\n{}\
            HTTP/1.1 403 Forbidden\r\nX-Sandbox-Denied: path\r\n\r\nHTTP/1.1 200 OK\r\n\r\n\
            X-Sandbox-Denied: no";
        let found: Vec<_> = answers(said).iter().map(Answer::refusal).collect();
        assert_eq!(found, [None, Some("path".to_owned()), None]);
        assert!(only(b"SSH-2.0").is_err());
    }
}
