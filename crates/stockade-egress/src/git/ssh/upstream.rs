//! The SSH client that logs in at the real server.
//!
//! The server is trusted by known_hosts alone, and sees the keys of the host:
//! those of its agent, or the private keys that were handed over.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use russh::client::{AuthResult, Config, Handle, Handler, connect_stream};
use russh::keys::agent::AgentIdentity;
use russh::keys::{Algorithm, EcdsaCurve, HashAlg, PrivateKey, PublicKey};
use russh::keys::{PrivateKeyWithHashAlg, PublicKeyOrCertificate};
use russh::{Preferred, SshId};
use tokio::net::{TcpStream, UnixStream};

use crate::git::agent;
use crate::git::known_hosts::{KnownHosts, NotTrusted};
use crate::secret::SecretText;

/// Most keys that are offered: servers close the connection after some tries
/// (`MaxAuthTries` of sshd_config(5) is 6).
const KEYS_MAX: usize = 6;
/// How long one connection may take until it is logged in.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Where to log in, and with what.
pub struct Upstream {
    /// Canonical name or address.
    pub host: String,
    pub port: u16,
    pub known_hosts: Arc<KnownHosts>,
    /// Socket of the host's ssh agent.
    pub agent: Option<PathBuf>,
    /// Private keys in OpenSSH's format, without a pass phrase.
    pub keys: Vec<SecretText>,
}

#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    #[error("the server is not trusted: {0}")]
    NotTrusted(#[from] NotTrusted),
    #[error(
        "the server accepts none of the host's keys for `{user}` ({tried} tried); `ssh-add -l` outside shows them"
    )]
    Refused { user: String, tried: usize },
    #[error("there is neither an ssh agent nor a key to log in with")]
    NoKeys,
    #[error("the ssh agent does not answer: {0}")]
    Agent(std::io::Error),
    #[error(
        "a private key cannot be read; it may need a pass phrase, which only an agent can take"
    )]
    PrivateKey,
    #[error("the server did not answer in time")]
    Timeout,
    #[error("the connection failed: {0}")]
    Ssh(#[from] russh::Error),
}

/// Checks the server's key.
pub struct Verifier {
    host: String,
    port: u16,
    known_hosts: Arc<KnownHosts>,
    problem: Arc<Mutex<Option<NotTrusted>>>,
}

impl Handler for Verifier {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        key: &PublicKeyOrCertificate,
    ) -> Result<bool, Self::Error> {
        let checked = match key {
            PublicKeyOrCertificate::PublicKey { key, .. } => {
                self.known_hosts.check(&self.host, self.port, key)
            }
            PublicKeyOrCertificate::Certificate(_) => Err(NotTrusted::OnlyAuthority),
        };
        let trusted = checked.is_ok();
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = checked.err();
        Ok(trusted)
    }
}

impl Upstream {
    /// Logs in as `user`.
    pub async fn log_in(
        &self,
        stream: TcpStream,
        user: &str,
    ) -> Result<Handle<Verifier>, LoginError> {
        let both = async {
            let mut handle = self.connect(stream).await?;
            self.authenticate(&mut handle, user).await?;
            Ok(handle)
        };
        tokio::time::timeout(LOGIN_TIMEOUT, both)
            .await
            .unwrap_or(Err(LoginError::Timeout))
    }

    async fn connect(&self, stream: TcpStream) -> Result<Handle<Verifier>, LoginError> {
        let problem = Arc::new(Mutex::new(None));
        let verifier = Verifier {
            host: self.host.clone(),
            port: self.port,
            known_hosts: Arc::clone(&self.known_hosts),
            problem: Arc::clone(&problem),
        };
        let known = self.known_hosts.keys(&self.host, self.port);
        let algorithms: Vec<Algorithm> =
            known.flat_map(|key| algorithms(&key.algorithm())).collect();
        let mut preferred = Preferred::default();
        if !algorithms.is_empty() {
            // Else the server may show a key that is not in known_hosts.
            preferred.key = algorithms.into();
        }
        let config = Config {
            client_id: SshId::Standard("SSH-2.0-stockade".into()),
            inactivity_timeout: Some(super::front::IDLE_TIMEOUT),
            channel_buffer_size: 16,
            preferred,
            ..Config::default()
        };
        let connected = connect_stream(Arc::new(config), stream, verifier).await;
        let problem = problem
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match (connected, problem) {
            (_, Some(problem)) => Err(problem.into()),
            (connected, None) => Ok(connected?),
        }
    }

    async fn authenticate(
        &self,
        handle: &mut Handle<Verifier>,
        user: &str,
    ) -> Result<(), LoginError> {
        let mut tried = 0;
        if let Some(path) = &self.agent {
            let mut agent = UnixStream::connect(path).await.map_err(LoginError::Agent)?;
            let identities = agent::list(&mut agent).await.map_err(LoginError::Agent)?;
            // Keys of a kind that is not known here, and certificates, are passed over.
            let keys = identities
                .iter()
                .filter_map(|one| PublicKey::from_bytes(&one.blob).ok());
            let mut signer = AgentSigner(agent);
            for key in keys.take(KEYS_MAX) {
                tried += 1;
                let hash = rsa_hash(handle, &key.algorithm()).await?;
                let result = handle
                    .authenticate_publickey_with(user, key, hash, &mut signer)
                    .await;
                // A key that the agent declines to use is like one that it does not have.
                if matches!(result, Ok(AuthResult::Success)) {
                    return Ok(());
                }
            }
        }
        for key in self.keys.iter().take(KEYS_MAX.saturating_sub(tried)) {
            let key = PrivateKey::from_openssh(key.reveal()).map_err(|_| LoginError::PrivateKey)?;
            if key.is_encrypted() {
                return Err(LoginError::PrivateKey);
            }
            tried += 1;
            let hash = rsa_hash(handle, &key.algorithm()).await?;
            let key = PrivateKeyWithHashAlg::new(Arc::new(key), hash);
            if handle.authenticate_publickey(user, key).await?.success() {
                return Ok(());
            }
        }
        match tried {
            0 => Err(LoginError::NoKeys),
            _ => Err(LoginError::Refused {
                user: user.to_owned(),
                tried,
            }),
        }
    }
}

/// With which signatures a known key may be shown; never with SHA-1.
fn algorithms(known: &Algorithm) -> Vec<Algorithm> {
    match known {
        Algorithm::Rsa { .. } => [HashAlg::Sha512, HashAlg::Sha256]
            .map(|hash| Algorithm::Rsa { hash: Some(hash) })
            .to_vec(),
        Algorithm::Ed25519
        | Algorithm::Ecdsa {
            curve: EcdsaCurve::NistP256 | EcdsaCurve::NistP384 | EcdsaCurve::NistP521,
        } => vec![known.clone()],
        _ => Vec::new(),
    }
}

async fn rsa_hash(
    handle: &Handle<Verifier>,
    algorithm: &Algorithm,
) -> Result<Option<HashAlg>, LoginError> {
    if !matches!(algorithm, Algorithm::Rsa { .. }) {
        return Ok(None);
    }
    let best = handle.best_supported_rsa_hash().await?.flatten();
    Ok(Some(best.unwrap_or(HashAlg::Sha256)))
}

/// Has the host's agent sign.
struct AgentSigner(UnixStream);

#[derive(Debug, thiserror::Error)]
enum SignError {
    #[error(transparent)]
    Send(#[from] russh::SendError),
    #[error(transparent)]
    Agent(#[from] std::io::Error),
    #[error("the agent declines to sign")]
    Declined,
    #[error("the key cannot be written")]
    Key,
}

/// `SSH_AGENT_RSA_SHA2_256` and `SSH_AGENT_RSA_SHA2_512`.
const RSA_SHA2_256: u32 = 2;
const RSA_SHA2_512: u32 = 4;

impl russh::Signer for AgentSigner {
    type Error = SignError;

    async fn auth_sign(
        &mut self,
        key: &AgentIdentity,
        hash: Option<HashAlg>,
        mut data: Vec<u8>,
    ) -> Result<Vec<u8>, Self::Error> {
        let AgentIdentity::PublicKey { key, .. } = key else {
            return Err(SignError::Key);
        };
        let blob = key.to_bytes().map_err(|_| SignError::Key)?;
        let flags = match hash {
            Some(HashAlg::Sha256) => RSA_SHA2_256,
            Some(HashAlg::Sha512) => RSA_SHA2_512,
            _ => 0,
        };
        let signature = agent::sign(&mut self.0, &blob, &data, flags).await?;
        let signature = signature.ok_or(SignError::Declined)?;
        // The request for which it is wanted has it at its end.
        agent::write_string(&mut data, &signature);
        Ok(data)
    }
}
