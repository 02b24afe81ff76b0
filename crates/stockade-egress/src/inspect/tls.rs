//! The two TLS connections of an inspected conversation: the one that ends
//! here, with a certificate of the sandbox's authority, and the one that is
//! begun to the origin, always verified.
//!
//! What is said inside them is left to the rest of this module.

use std::cell::OnceCell;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::server::{Acceptor, ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use stockade_policy::network::destination::{Destination, Host, RawHost};
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake, TlsConnector};

use super::authority::Protocol;
use super::roots::{RootPlaces, RootsError};

/// Versions that are spoken on both sides.
pub static VERSIONS: &[&SupportedProtocolVersion] =
    &[&rustls::version::TLS13, &rustls::version::TLS12];

/// How long each part of a handshake may take.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// rustls reads 4 KiB at a time; larger reads from the kernel are cheaper.
const CLIENT_BUFFER_BYTES: usize = 16 * 1024;
const ORIGIN_BUFFER_BYTES: usize = 32 * 1024;

/// A connection whose TLS is ended or begun here.
pub type ClientTls<C> = tokio_rustls::server::TlsStream<BufReader<C>>;
pub type OriginTls = tokio_rustls::client::TlsStream<BufReader<TcpStream>>;

/// Cryptography for both sides; passed on explicitly, so that there is no
/// default of the process that something else could set.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider())))
}

/// Protocols that may be agreed upon with the origin: those that the client
/// speaks, so that both sides speak the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    Http1,
    Http2,
    Both,
}

/// Why a client's greeting is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHello {
    #[error("the TLS greeting names another server than the connection was made for")]
    OtherName,
    #[error("the TLS greeting names no server")]
    NoName,
    #[error("the TLS greeting offers neither HTTP/1.1 nor HTTP/2")]
    NoProtocol,
}

/// A client that has said hello and waits.
pub struct Greeted<C> {
    start: StartHandshake<BufReader<C>>,
}

impl<C: AsyncRead + AsyncWrite + Unpin> Greeted<C> {
    /// Reads the ClientHello.
    pub async fn read(client: C) -> io::Result<Self> {
        let client = BufReader::with_capacity(CLIENT_BUFFER_BYTES, client);
        let acceptor = LazyConfigAcceptor::new(Acceptor::default(), client);
        let start = timeout(HANDSHAKE_TIME_MAX, acceptor).await??;
        Ok(Self { start })
    }

    /// What the client speaks, if it asks for `destination` and nothing else.
    pub fn offer(&self, destination: &Destination) -> Result<Offer, BadHello> {
        let hello = self.start.client_hello();
        check_name(&hello, destination)?;
        let Some(protocols) = hello.alpn() else {
            return Ok(Offer::Http1);
        };
        let (mut http1, mut http2) = (false, false);
        for protocol in protocols {
            http1 |= protocol == Protocol::Http1.alpn();
            http2 |= protocol == Protocol::Http2.alpn();
        }
        match (http1, http2) {
            (true, true) => Ok(Offer::Both),
            (true, false) => Ok(Offer::Http1),
            (false, true) => Ok(Offer::Http2),
            (false, false) => Err(BadHello::NoProtocol),
        }
    }

    /// Finishes the handshake.
    pub async fn accept(self, configuration: Arc<ServerConfig>) -> io::Result<ClientTls<C>> {
        timeout(HANDSHAKE_TIME_MAX, self.start.into_stream(configuration)).await?
    }

    /// Ends the handshake with the alert `access_denied` (RFC 8446, 6.2).
    pub async fn refuse(self) -> io::Result<()> {
        let configuration = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(NoCertificate));
        match self.accept(Arc::new(configuration)).await {
            Ok(_) => Err(io::Error::other(
                "a handshake without certificate succeeded",
            )),
            Err(_) => Ok(()),
        }
    }
}

impl Offer {
    /// What to speak with the client when the origin could not be asked.
    pub fn preferred(self) -> Protocol {
        match self {
            Self::Http1 => Protocol::Http1,
            Self::Http2 | Self::Both => Protocol::Http2,
        }
    }

    fn alpn(self) -> Vec<Vec<u8>> {
        let names = |protocols: &[Protocol]| {
            protocols
                .iter()
                .map(|protocol| protocol.alpn().to_vec())
                .collect()
        };
        match self {
            Self::Http1 => names(&[Protocol::Http1]),
            Self::Http2 => names(&[Protocol::Http2]),
            Self::Both => names(&[Protocol::Http2, Protocol::Http1]),
        }
    }
}

impl From<Protocol> for Offer {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Http1 => Self::Http1,
            Protocol::Http2 => Self::Http2,
        }
    }
}

/// Begins TLS to origins, verified by the roots of the machine and of the
/// policy.
pub struct Origins {
    roots: Roots,
    connectors: OnceCell<Connectors>,
}

enum Roots {
    Places(RootPlaces),
    Loaded(Arc<RootCertStore>),
}

struct Connectors {
    http1: TlsConnector,
    http2: TlsConnector,
    both: TlsConnector,
}

#[derive(Debug, thiserror::Error)]
pub enum OriginTlsError {
    #[error(transparent)]
    Roots(#[from] RootsError),
    #[error("TLS to origins cannot be set up: {0}")]
    SetUp(rustls::Error),
    #[error("its name cannot stand in a TLS greeting")]
    Name,
    #[error("it did not finish the TLS handshake within {} s", HANDSHAKE_TIME_MAX.as_secs())]
    Slow,
    #[error("{0}")]
    Handshake(io::Error),
    #[error("it does not speak HTTP/2, and the client speaks nothing else")]
    NotHttp2,
}

impl Origins {
    /// Roots are read from `places` when they are first needed.
    pub fn new(places: RootPlaces) -> Self {
        Self {
            roots: Roots::Places(places),
            connectors: OnceCell::new(),
        }
    }

    pub fn with_roots(roots: Arc<RootCertStore>) -> Self {
        Self {
            roots: Roots::Loaded(roots),
            connectors: OnceCell::new(),
        }
    }

    /// Begins TLS on a connection that was dialled for `host`.
    pub async fn connect(
        &self,
        host: &Host,
        offer: Offer,
        stream: TcpStream,
    ) -> Result<(OriginTls, Protocol), OriginTlsError> {
        let connectors = self.connectors()?;
        let connector = match offer {
            Offer::Http1 => &connectors.http1,
            Offer::Http2 => &connectors.http2,
            Offer::Both => &connectors.both,
        };
        let name = match host {
            Host::Name(name) => {
                ServerName::try_from(name.as_str().to_owned()).map_err(|_| OriginTlsError::Name)?
            }
            Host::Address(address) => ServerName::from(*address),
        };
        let stream = BufReader::with_capacity(ORIGIN_BUFFER_BYTES, stream);
        let stream = timeout(HANDSHAKE_TIME_MAX, connector.connect(name, stream))
            .await
            .map_err(|_| OriginTlsError::Slow)?
            .map_err(OriginTlsError::Handshake)?;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(Protocol::Http2.alpn());
        match (http2, offer) {
            (true, _) => Ok((stream, Protocol::Http2)),
            (false, Offer::Http2) => Err(OriginTlsError::NotHttp2),
            (false, _) => Ok((stream, Protocol::Http1)),
        }
    }

    fn connectors(&self) -> Result<&Connectors, OriginTlsError> {
        if let Some(connectors) = self.connectors.get() {
            return Ok(connectors);
        }
        let roots = match &self.roots {
            Roots::Places(places) => places.load()?,
            Roots::Loaded(roots) => Arc::clone(roots),
        };
        let configuration = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .map_err(OriginTlsError::SetUp)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // The copies share one store of sessions to resume.
        let connector = |offer: Offer| {
            let mut configuration = configuration.clone();
            configuration.alpn_protocols = offer.alpn();
            TlsConnector::from(Arc::new(configuration))
        };
        Ok(self.connectors.get_or_init(|| Connectors {
            http1: connector(Offer::Http1),
            http2: connector(Offer::Http2),
            both: connector(Offer::Both),
        }))
    }
}

/// A name must be there and be the destination's; for an address there is
/// none to send (RFC 6066, section 3).
fn check_name(hello: &ClientHello<'_>, destination: &Destination) -> Result<(), BadHello> {
    match (hello.server_name(), destination.host()) {
        (None, Host::Address(_)) => Ok(()),
        (None, Host::Name(_)) => Err(BadHello::NoName),
        (Some(name), host) => {
            let named = Destination::new(RawHost::Text(name.as_bytes()), destination.port());
            let same = named.is_ok_and(|named| named.host() == host);
            same.then_some(()).ok_or(BadHello::OtherName)
        }
    }
}

#[derive(Debug)]
struct NoCertificate;

impl ResolvesServerCert for NoCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        None
    }
}
