//! Facts that a way out rests on: whether connections can be redirected here,
//! and which files of certificate roots programs read.
//!
//! The redirect is tried once for each start of the machine: it takes a
//! process and a network namespace, which a run has no time for. A cached
//! answer is no promise; the run itself sets the redirect up and refuses when
//! it cannot.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use stockade_policy::facts::{Ability, ImageFacts};
use stockade_policy::path::AbsolutePath;
use stockade_sys::network::redirect_ability;

use super::answer;
use crate::image;
use crate::state::{StateDirectory, StateError};

/// Name of the cached answer in the state directory.
const CACHE: &str = "redirect";

/// Where distributions put the roots that most programs read.
const CA_BUNDLES: [&str; 6] = [
    // Debian, Ubuntu, Arch, Alpine.
    "/etc/ssl/certs/ca-certificates.crt",
    // Fedora and its relatives.
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    // openSUSE.
    "/etc/ssl/ca-bundle.pem",
    "/var/lib/ca-certificates/ca-bundle.pem",
    // OpenSSL's own default.
    "/etc/ssl/cert.pem",
];

/// Trust stores of Java that are shared by installations.
const JAVA_STORES: [&str; 2] = [
    "/etc/ssl/certs/java/cacerts",
    "/etc/pki/ca-trust/extracted/java/cacerts",
];
/// Where installations of Java are.
const JAVA_HOMES: [&str; 2] = ["/usr/lib/jvm", "/usr/java"];
/// Most installations that are looked at.
const JAVA_HOMES_MAX: usize = 64;

/// Whether this user may redirect connections on this kernel.
pub fn redirect(state: &StateDirectory) -> Result<Ability, StateError> {
    answer::ability(state, CACHE, b"", tried)
}

/// The same, without a look at what was found before.
pub fn tried() -> Ability {
    match redirect_ability() {
        Ok(()) => Ability::Yes,
        Err(error) => Ability::No {
            reason: format!("this kernel has no nftables redirect for this user ({error})"),
            remedy: remedy(&error).to_owned(),
        },
    }
}

/// Files of certificate roots (PEM), links resolved, each once; those of the
/// image where there is one.
pub fn ca_bundles(image: Option<&ImageFacts>) -> Vec<AbsolutePath> {
    match image {
        Some(image) => existing_in(image, &CA_BUNDLES),
        None => existing(CA_BUNDLES.iter().map(PathBuf::from)),
    }
}

fn existing_in(image: &ImageFacts, candidates: &[&str]) -> Vec<AbsolutePath> {
    let Ok(root) = image::Root::open(image) else {
        return Vec::new();
    };
    let named = candidates
        .iter()
        .filter_map(|path| AbsolutePath::parse(path).ok());
    each_once(named.filter_map(|path| root.file(&path).ok()?))
}

/// Trust stores of the Java installations, links resolved, each once.
pub fn java_stores(
    environment: &BTreeMap<Vec<u8>, Vec<u8>>,
    image: Option<&ImageFacts>,
) -> Vec<AbsolutePath> {
    if let Some(image) = image {
        return existing_in(image, &JAVA_STORES);
    }
    let named = environment
        .get(&b"JAVA_HOME"[..])
        .map(|home| PathBuf::from(std::ffi::OsStr::from_bytes(home)));
    let installed = JAVA_HOMES
        .iter()
        .filter_map(|homes| std::fs::read_dir(homes).ok())
        .flatten()
        .flatten()
        .map(|home| home.path())
        .take(JAVA_HOMES_MAX);
    let below = installed
        .chain(named)
        .flat_map(|home| ["lib", "jre/lib"].map(|lib| home.join(lib).join("security/cacerts")));
    existing(JAVA_STORES.iter().map(PathBuf::from).chain(below))
}

fn existing(candidates: impl Iterator<Item = PathBuf>) -> Vec<AbsolutePath> {
    each_once(candidates.filter_map(|path| resolved_file(&path)))
}

fn each_once(found: impl Iterator<Item = AbsolutePath>) -> Vec<AbsolutePath> {
    let mut seen = std::collections::BTreeSet::new();
    found.filter(|path| seen.insert(path.clone())).collect()
}

fn resolved_file(path: &Path) -> Option<AbsolutePath> {
    let resolved = std::fs::canonicalize(path).ok()?;
    let is_file = std::fs::metadata(&resolved).is_ok_and(|status| status.is_file());
    AbsolutePath::parse(resolved.as_os_str().as_bytes())
        .ok()
        .filter(|_| is_file)
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "allow unprivileged user namespaces; `stockade doctor` says how"
        }
        _ => "load the modules nf_tables, nft_chain_nat and nft_redir (`modprobe nft_redir`)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_behind_links_is_found_once() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().canonicalize().unwrap();
        let store = home.join("lib/security/cacerts");
        std::fs::create_dir_all(store.parent().unwrap()).unwrap();
        std::fs::write(&store, b"").unwrap();
        std::os::unix::fs::symlink("lib", home.join("jre")).unwrap();
        let link = home.join("link");
        std::os::unix::fs::symlink(&store, &link).unwrap();
        let found = existing([link, store.clone(), home.join("nothing")].into_iter());
        assert_eq!(
            found,
            [AbsolutePath::parse(store.to_str().unwrap()).unwrap()]
        );
    }
}
