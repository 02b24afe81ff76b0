//! Certificates for any name, signed by an authority of this process.
//!
//! Names that begin with `badcert.` get a certificate for another name, and
//! those that begin with `selfsigned.` one that nobody signed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

#[derive(Debug)]
pub struct Certificates {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    made: Mutex<HashMap<String, Arc<CertifiedKey>>>,
}

impl Certificates {
    pub fn new() -> Arc<Self> {
        let key = KeyPair::generate().expect("a key");
        let mut parameters = CertificateParams::new(Vec::new()).expect("parameters");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        parameters
            .distinguished_name
            .push(rcgen::DnType::CommonName, "Stockade test origins");
        let certificate = parameters.self_signed(&key).expect("a certificate");
        Arc::new(Self {
            pem: certificate.pem(),
            issuer: Issuer::new(parameters, key),
            made: Mutex::default(),
        })
    }

    pub fn authority_pem(&self) -> String {
        self.pem.clone()
    }

    /// TLS with HTTP/2 and HTTP/1.1.
    pub fn server(self: &Arc<Self>) -> Arc<ServerConfig> {
        let provider = Arc::new(ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("protocol versions")
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }

    fn make(&self, name: &str) -> CertifiedKey {
        let key = KeyPair::generate().expect("a key");
        let named = match name.strip_prefix("badcert.") {
            Some(_) => "someone-else.test",
            None => name,
        };
        let parameters = CertificateParams::new(vec![named.to_owned()]).expect("parameters");
        let certificate = match name.starts_with("selfsigned.") {
            true => parameters.self_signed(&key),
            false => parameters.signed_by(&key, &self.issuer),
        };
        let certificate = certificate.expect("a certificate").der().clone();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let signer = ring::sign::any_supported_type(&key).expect("a signing key");
        CertifiedKey::new(vec![certificate], signer)
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello
            .server_name()
            .unwrap_or(crate::web::NAMELESS)
            .to_owned();
        let mut made = self.made.lock().ok()?;
        let key = made
            .entry(name)
            .or_insert_with_key(|name| Arc::new(self.make(name)));
        Some(key.clone())
    }
}
