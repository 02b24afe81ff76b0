//! The step that adds the sandbox's own authority to a file of certificate
//! roots. What such files look like is left to `trust`.

use std::fs::File;
use std::io::{self, Read};

use stockade_sys::rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};

use super::View;
use crate::steps::named;
use crate::trust;
use crate::wire::StoreFormat;

/// Largest file of roots that is read, in bytes; those of distributions have
/// a quarter of a megabyte.
const ROOTS_BYTES_MAX: u64 = 8 << 20;

impl View {
    /// Mounts, at `path`, the roots with the authority added.
    pub(super) fn trust_store(
        &mut self,
        source: Option<&[u8]>,
        path: &[u8],
        format: StoreFormat,
    ) -> io::Result<String> {
        let roots = match (source, format) {
            (Some(source), StoreFormat::Pem) => {
                let roots = read(source).map_err(|error| named(error, source))?;
                self.roots.get_or_insert(roots.clone());
                roots
            }
            // The host's own store is in a format that only Java reads; what
            // it trusts is what the other programs of the machine trust.
            _ => self.roots.clone().unwrap_or_default(),
        };
        let Some(authority) = self.authority.clone() else {
            if source.is_none() {
                self.file(path, &roots, 0o444, false)?;
            }
            return Ok("no authority to add".into());
        };
        if !trust::has_certificate(&authority) {
            return Err(io::Error::other("the authority is no certificate"));
        }
        let content = match format {
            StoreFormat::Pem => trust::pem(&roots, &authority),
            StoreFormat::Jks => trust::jks(&[&roots, &authority]),
        };
        self.file(path, &content, 0o444, false)?;
        let known = roots.len();
        Ok(format!(
            "{known} bytes of roots of the host, and one of our own"
        ))
    }
}

/// Reads a regular file of the host, links not followed.
fn read(path: &[u8]) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = openat2(CWD, path, flags, Mode::empty(), resolve)?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("not a regular file"));
    }
    let mut content = Vec::new();
    File::from(file)
        .take(ROOTS_BYTES_MAX + 1)
        .read_to_end(&mut content)?;
    match content.len() as u64 > ROOTS_BYTES_MAX {
        true => Err(io::Error::other("too large for a file of roots")),
        false => Ok(content),
    }
}
