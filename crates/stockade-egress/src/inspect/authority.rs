//! The certificate authority of one sandbox: it vouches, to programs inside
//! and to nobody else, for the hosts whose TLS is inspected.
//!
//! Its key is made when the egress process starts and ends with it; it is
//! never written anywhere. The certificate is name-constrained to what the
//! plan can inspect, so that the key would be worth nothing for other hosts
//! even if it leaked. How programs inside come to trust it is left to the
//! engine.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    NameConstraints, PKCS_ECDSA_P256_SHA256, SerialNumber,
};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls::sign::{CertifiedKey, SigningKey, SingleCertAndKey};
use stockade_policy::network::NetworkPlan;
use stockade_policy::network::address::Network;
use stockade_policy::network::destination::Host;
use stockade_policy::network::rules::{Approval, Target, TlsMode};

/// How long the authority and its leaves are valid.
const VALID: Duration = Duration::from_secs(24 * 60 * 60);

/// How far before its making the authority is valid, for clocks that are set
/// back a little while a run goes on.
const VALID_BEFORE: Duration = Duration::from_secs(10 * 60);

/// Hosts whose certificates are kept; making one anew costs about 0.1 ms.
const LEAVES_MAX: usize = 1024;

/// Subtrees in the name constraints. OpenSSL gives up when names times
/// constraints get too many (`NAME_CHECK_MAX`), and every handshake of every
/// program checks them one by one.
const SUBTREES_MAX: usize = 256;

/// Which hosts an authority may vouch for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All: unknown destinations can be permitted while the run goes on, or
    /// there are more than constraints can hold.
    Any,
    /// These names with everything below them, and these addresses.
    Only {
        names: BTreeSet<String>,
        networks: BTreeSet<Network>,
    },
}

/// The protocol that is spoken inside TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.1, whether or not the client asked for it by ALPN.
    Http1,
    Http2,
}

/// The authority: its key, the one key of its leaves, and what was signed.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    scope: Scope,
    not_before: SystemTime,
    leaf_pair: KeyPair,
    leaf_key: Arc<dyn SigningKey>,
    tickets: Arc<dyn ProducesTickets>,
    configurations: RefCell<HashMap<(Host, Protocol), Arc<ServerConfig>>>,
}

#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("the sandbox's certificate authority cannot be made: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("the sandbox's certificate authority cannot be used: {0}")]
    Tls(#[from] rustls::Error),
    #[error("the kernel gives no random numbers")]
    Random,
    #[error("the clock is before 1970")]
    Clock,
    #[error(
        "the sandbox's certificate authority was made for other hosts than {0}; a new run makes one for it"
    )]
    OutOfScope(String),
}

impl Scope {
    /// What a plan could have inspected: every target that a rule inspects or
    /// that a credential is bound to.
    pub fn of(plan: &NetworkPlan) -> Self {
        if plan.approval != Approval::Deny {
            return Self::Any;
        }
        let rules = plan.sets.iter().flat_map(|set| &set.rules);
        let inspected = rules
            .filter(|rule| {
                rule.tls == TlsMode::Inspect || rule.content.is_some() || rule.git.is_some()
            })
            .map(|rule| &rule.target)
            .chain(plan.credentials.iter().map(|binding| &binding.host));
        let mut names = BTreeSet::new();
        let mut networks = BTreeSet::new();
        for target in inspected {
            match target {
                Target::Host { name, .. } => names.insert(name.clone()),
                Target::Network(network) => networks.insert(*network),
            };
        }
        if names.len() + networks.len() > SUBTREES_MAX {
            return Self::Any;
        }
        Self::Only { names, networks }
    }

    /// Whether a certificate for `host` would be accepted.
    pub fn covers(&self, host: &Host) -> bool {
        let Self::Only { names, networks } = self else {
            return true;
        };
        match host {
            Host::Address(address) => networks.iter().any(|network| network.contains(*address)),
            Host::Name(name) => {
                let mut rest = name.as_str();
                loop {
                    if names.contains(rest) {
                        return true;
                    }
                    match rest.split_once('.') {
                        Some((_, parent)) => rest = parent,
                        None => return false,
                    }
                }
            }
        }
    }

    /// Whether everything that `other` covers is covered by this one: what a
    /// reload has to keep to, because the certificate inside stays the same.
    pub fn covers_all(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Only { .. }, Self::Any) => false,
            (Self::Only { networks: mine, .. }, Self::Only { names, networks }) => {
                let below = |name: &String| self.covers_text(name);
                names.iter().all(below)
                    && networks
                        .iter()
                        .all(|network| mine.iter().any(|own| own.covers(network)))
            }
        }
    }

    fn covers_text(&self, name: &str) -> bool {
        let Self::Only { names, .. } = self else {
            return true;
        };
        std::iter::successors(Some(name), |rest| {
            rest.split_once('.').map(|(_, parent)| parent)
        })
        .any(|candidate| names.contains(candidate))
    }

    /// Each kind of name gets a constraint, because a kind without one is not
    /// constrained at all (RFC 5280, section 4.2.1.10). `invalid` is a name
    /// that nobody has (RFC 6761).
    fn constraints(&self) -> Option<NameConstraints> {
        let Self::Only { names, networks } = self else {
            return None;
        };
        let mut permitted: Vec<GeneralSubtree> = names
            .iter()
            .map(|name| GeneralSubtree::DnsName(name.clone()))
            .collect();
        if permitted.is_empty() {
            permitted.push(GeneralSubtree::DnsName("invalid".to_owned()));
        }
        let subtree =
            |address, bits| GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(address, bits));
        permitted.extend(
            networks
                .iter()
                .map(|network| subtree(network.address(), network.bits())),
        );
        let excluded = if networks.is_empty() {
            vec![
                subtree(IpAddr::from([0; 4]), 0),
                subtree(IpAddr::from([0; 16]), 0),
            ]
        } else {
            Vec::new()
        };
        Some(NameConstraints {
            permitted_subtrees: permitted,
            excluded_subtrees: excluded,
        })
    }
}

impl Protocol {
    /// Its name in ALPN (RFC 7301).
    pub fn alpn(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}

impl Authority {
    /// Makes an authority for this run, and its certificate in PEM.
    pub fn new(run: &str, scope: Scope) -> Result<(Self, String), AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let now = SystemTime::now();
        let mut parameters = dated(now)?;
        parameters.distinguished_name = subject(run);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        parameters.name_constraints = scope.constraints();
        let certificate = parameters.self_signed(&key)?;

        let leaf_pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let leaf_der = PrivatePkcs8KeyDer::from(leaf_pair.serialize_der());
        let leaf_key = rustls::crypto::ring::sign::any_ecdsa_type(&PrivateKeyDer::Pkcs8(leaf_der))?;
        let authority = Self {
            issuer: Issuer::new(parameters, key),
            scope,
            not_before: now,
            leaf_pair,
            leaf_key,
            tickets: rustls::crypto::ring::Ticketer::new()?,
            configurations: RefCell::default(),
        };
        Ok((authority, certificate.pem()))
    }

    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// How to answer a client that wants `host` and gets `protocol`.
    pub fn configuration(
        &self,
        host: &Host,
        protocol: Protocol,
    ) -> Result<Arc<ServerConfig>, AuthorityError> {
        let key = (host.clone(), protocol);
        if let Some(known) = self.configurations.borrow().get(&key) {
            return Ok(Arc::clone(known));
        }
        if !self.scope.covers(host) {
            return Err(AuthorityError::OutOfScope(host.to_string()));
        }
        let configuration = Arc::new(self.configure(host, protocol)?);
        let mut configurations = self.configurations.borrow_mut();
        // Emptied rather than aged: all of it is made again in 0.1 s.
        if configurations.len() >= LEAVES_MAX {
            configurations.clear();
        }
        configurations.insert(key, Arc::clone(&configuration));
        Ok(configuration)
    }

    fn configure(&self, host: &Host, protocol: Protocol) -> Result<ServerConfig, AuthorityError> {
        let mut parameters = dated(self.not_before)?;
        let name = match host {
            Host::Name(name) => name.as_str().to_owned(),
            Host::Address(address) => address.to_string(),
        };
        parameters.subject_alt_names = CertificateParams::new(vec![name])?.subject_alt_names;
        parameters.distinguished_name = DistinguishedName::new();
        parameters
            .distinguished_name
            .push(DnType::OrganizationName, "Stockade sandbox");
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        // Python 3.13 and later verify strictly and miss it otherwise.
        parameters.use_authority_key_identifier_extension = true;
        let leaf = parameters.signed_by(&self.leaf_pair, &self.issuer)?;

        let certified = CertifiedKey::new(vec![leaf.der().clone()], Arc::clone(&self.leaf_key));
        let mut configuration = ServerConfig::builder_with_provider(super::tls::provider())
            .with_protocol_versions(super::tls::VERSIONS)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        configuration.alpn_protocols = vec![protocol.alpn().to_vec()];
        // Sessions are resumed by tickets, which cost this side no memory.
        configuration.session_storage = Arc::new(NoServerSessionStorage {});
        configuration.ticketer = Arc::clone(&self.tickets);
        Ok(configuration)
    }
}

fn dated(now: SystemTime) -> Result<CertificateParams, AuthorityError> {
    let since_1970 = now
        .duration_since(UNIX_EPOCH)
        .map_err(|_| AuthorityError::Clock)?;
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let mut parameters = CertificateParams::default();
    parameters.not_before = epoch + since_1970.saturating_sub(VALID_BEFORE);
    parameters.not_after = epoch + since_1970 + VALID;
    parameters.serial_number = Some(serial()?);
    Ok(parameters)
}

/// 127 random bits: positive and never zero (RFC 5280, section 4.1.2.2).
fn serial() -> Result<SerialNumber, AuthorityError> {
    let mut bytes = [0; 16];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| AuthorityError::Random)?;
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

fn subject(run: &str) -> DistinguishedName {
    // A common name has at most 64 characters (RFC 5280, appendix A.1).
    let mut name = format!("Stockade sandbox {run}");
    let end = name.char_indices().nth(64).map_or(name.len(), |(at, _)| at);
    name.truncate(end);
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}
