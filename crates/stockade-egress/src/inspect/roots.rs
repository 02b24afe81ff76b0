//! Whom this side believes about who an origin is: the roots of the machine
//! and those that the policy adds.
//!
//! They are read once, at the first inspected connection, because a thousand
//! runs that inspect nothing should not pay for them. Without any root
//! nothing is verified, so nothing is reached.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use stockade_policy::path::AbsolutePath;

/// Where roots come from.
#[derive(Clone, Debug, Default)]
pub struct RootPlaces {
    /// `SSL_CERT_FILE` and `SSL_CERT_DIR` of the caller, as OpenSSL reads
    /// them; without either the places that this system is known to use.
    pub file: Option<PathBuf>,
    pub directory: Option<PathBuf>,
    /// PEM files that the policy adds.
    pub more: Vec<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    #[error("{path} with more certificate roots cannot be read: {reason}")]
    Unreadable { path: String, reason: String },
    #[error("there is no certificate root, so no server can be verified{}", because(.reasons))]
    None { reasons: Vec<String> },
}

impl RootPlaces {
    pub fn new(file: Option<&[u8]>, directory: Option<&[u8]>, more: &[AbsolutePath]) -> Self {
        let path = |bytes: &[u8]| PathBuf::from(std::ffi::OsStr::from_bytes(bytes));
        Self {
            file: file.map(path),
            directory: directory.map(path),
            more: more.iter().map(|more| path(more.as_bytes())).collect(),
        }
    }

    /// Reads all of them. What the policy names must be readable; of the
    /// system's roots those that cannot be used are left out, as every other
    /// program does.
    pub fn load(&self) -> Result<Arc<RootCertStore>, RootsError> {
        let system = if self.file.is_some() || self.directory.is_some() {
            rustls_native_certs::load_certs_from_paths(
                self.file.as_deref(),
                self.directory.as_deref(),
            )
        } else {
            rustls_native_certs::load_native_certs()
        };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(system.certs);
        for path in &self.more {
            roots.add_parsable_certificates(read_pem(path)?);
        }
        if roots.is_empty() {
            let reasons = system.errors.iter().map(ToString::to_string).collect();
            return Err(RootsError::None { reasons });
        }
        Ok(Arc::new(roots))
    }
}

fn read_pem(path: &Path) -> Result<Vec<CertificateDer<'static>>, RootsError> {
    let unreadable = |reason: String| RootsError::Unreadable {
        path: path.display().to_string(),
        reason,
    };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .map_err(|error| unreadable(error.to_string()))?
        .collect();
    let certificates = certificates.map_err(|error| unreadable(error.to_string()))?;
    if certificates.is_empty() {
        return Err(unreadable("it holds no certificate".to_owned()));
    }
    Ok(certificates)
}

fn because(reasons: &[String]) -> String {
    match reasons.first() {
        Some(first) => format!(" ({first})"),
        None => String::new(),
    }
}
