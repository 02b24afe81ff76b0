//! The entries of a tar stream, bounded and taken apart by hand: names and
//! attributes that stand before an entry (GNU, PAX) may be of any length in a
//! hostile archive, and would be held in memory.

use std::io::{self, BufReader, Read};

use flate2::read::MultiGzDecoder;
use rustix::fs::{Mode, OFlags, mkdirat, openat};
use ruzstd::decoding::StreamingDecoder;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use tar::{Archive, EntryType, PaxExtensions};

use crate::{Budget, ImageError, refused, system};

/// Longest path of an entry and of what it links to, in bytes (PATH_MAX).
const PATH_BYTES_MAX: usize = 4096;
/// Longest record before an entry, in bytes.
const RECORD_BYTES_MAX: u64 = 1 << 20;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// What one entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    HardLink,
}

/// One entry of an archive.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Components of the path; none for the root itself.
    pub path: Vec<Vec<u8>>,
    pub kind: Kind,
    pub target: Vec<u8>,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Seconds since 1970.
    pub modified: i64,
    pub size: u64,
}

impl Entry {
    /// The path, for messages and comparisons.
    pub(crate) fn name(&self) -> Vec<u8> {
        self.path.join(&b'/')
    }
}

/// The content of a blob, unpacked as its first bytes ask for.
pub(crate) fn unpacked<'a>(packed: impl Read + 'a) -> Result<Box<dyn Read + 'a>, ImageError> {
    let mut packed = BufReader::with_capacity(128 << 10, packed);
    let start = io::BufRead::fill_buf(&mut packed).map_err(system("read the image"))?;
    if start.starts_with(&GZIP) {
        return Ok(Box::new(MultiGzDecoder::new(packed)));
    }
    if start.starts_with(&ZSTD) {
        let decoder = StreamingDecoder::new(packed);
        return match decoder {
            Ok(decoder) => Ok(Box::new(decoder)),
            Err(error) => Err(refused("a layer", format!("cannot be unpacked: {error}"))),
        };
    }
    Ok(Box::new(packed))
}

/// Calls `each` for every entry, with its content. Every byte of the stream is
/// taken from the budget, and so is every entry.
pub(crate) fn entries(
    stream: &mut dyn Read,
    place: &str,
    budget: &mut Budget,
    each: &mut dyn FnMut(&Entry, &mut dyn Read) -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    let broken = |error: io::Error| refused(place, format!("is no archive: {error}"));
    // One byte more than allowed, so that too many are seen.
    let mut archive = Archive::new(stream.take(budget.bytes().saturating_add(1)));
    let mut before = Before::default();
    for entry in archive.entries().map_err(broken)?.raw(true) {
        let mut entry = entry.map_err(broken)?;
        let size = entry.header().entry_size().map_err(broken)?;
        // A header and the padding count too.
        budget.take(size.saturating_add(512), 0)?;
        if before.takes(&mut entry, size, place)? {
            continue;
        }
        budget.take(0, 1)?;
        let one = std::mem::take(&mut before).complete(entry.header(), size, place)?;
        if let Some(one) = one {
            each(&one, &mut entry)?;
        }
    }
    Ok(())
}

/// What stands before an entry and belongs to it.
#[derive(Default)]
struct Before {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    ids: (Option<u32>, Option<u32>),
    modified: Option<i64>,
}

impl Before {
    /// Takes a record that is no entry of its own.
    fn takes(
        &mut self,
        entry: &mut tar::Entry<'_, impl Read>,
        size: u64,
        place: &str,
    ) -> Result<bool, ImageError> {
        let kind = entry.header().entry_type();
        let is_record = kind.is_gnu_longname()
            || kind.is_gnu_longlink()
            || kind.is_pax_local_extensions()
            || kind.is_pax_global_extensions();
        if !is_record {
            return Ok(false);
        }
        if size > RECORD_BYTES_MAX {
            return Err(refused(
                place,
                "has a name or attributes of over a megabyte",
            ));
        }
        let mut record = Vec::new();
        let read = entry.read_to_end(&mut record);
        read.map_err(|error| refused(place, format!("is no archive: {error}")))?;
        let text = || {
            record
                .split(|&byte| byte == 0)
                .next()
                .unwrap_or_default()
                .to_vec()
        };
        if kind.is_gnu_longname() {
            self.path = Some(text());
        } else if kind.is_gnu_longlink() {
            self.target = Some(text());
        } else if kind.is_pax_local_extensions() {
            self.pax(&record, place)?;
        }
        Ok(true)
    }

    fn pax(&mut self, record: &[u8], place: &str) -> Result<(), ImageError> {
        let broken = |error: io::Error| refused(place, format!("has a broken attribute: {error}"));
        for extension in PaxExtensions::new(record) {
            let extension = extension.map_err(broken)?;
            let value = extension.value_bytes();
            let number = || str::from_utf8(value).ok()?.parse().ok();
            let bad = || refused(place, "has an attribute that is no number");
            match extension.key_bytes() {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.target = Some(value.to_vec()),
                b"uid" => self.ids.0 = Some(number().ok_or_else(bad)?),
                b"gid" => self.ids.1 = Some(number().ok_or_else(bad)?),
                b"mtime" => {
                    let whole = value.split(|&byte| byte == b'.').next().unwrap_or_default();
                    let seconds = str::from_utf8(whole)
                        .ok()
                        .and_then(|text| text.parse().ok());
                    self.modified = Some(seconds.ok_or_else(bad)?);
                }
                // The reader of headers does not know of it, and what follows
                // would be read at the wrong place.
                b"size" => return Err(refused(place, "has a file too large for its format")),
                key if key.starts_with(b"GNU.sparse.") => {
                    return Err(refused(
                        place,
                        "has a sparse file, which layers do not have",
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The entry; `None` for what is no file.
    fn complete(
        self,
        header: &tar::Header,
        size: u64,
        place: &str,
    ) -> Result<Option<Entry>, ImageError> {
        let path = self
            .path
            .unwrap_or_else(|| header.path_bytes().into_owned());
        let shown = String::from_utf8_lossy(&path).escape_debug().to_string();
        let bad = |reason: &str| refused(place, format!("has an entry {shown:?} {reason}"));
        let kind = match header.entry_type() {
            EntryType::Regular | EntryType::Continuous => Kind::File,
            EntryType::Directory => Kind::Directory,
            EntryType::Symlink => Kind::Symlink,
            EntryType::Link => Kind::HardLink,
            EntryType::Char | EntryType::Block => return Err(bad("that is a device node")),
            EntryType::Fifo => return Err(bad("that is a pipe")),
            EntryType::GNUSparse => return Err(bad("that is sparse, which layers do not have")),
            other => {
                return Err(bad(&format!(
                    "of the unknown kind {:?}",
                    other.as_byte() as char
                )));
            }
        };
        let target = match (kind, self.target) {
            (Kind::File | Kind::Directory, _) => Vec::new(),
            (_, Some(target)) => target,
            (_, None) => header.link_name_bytes().unwrap_or_default().into_owned(),
        };
        let number = |number: io::Result<u64>| {
            let number = number.ok().and_then(|number| u32::try_from(number).ok());
            number.ok_or_else(|| bad("whose owner is no number"))
        };
        Ok(Some(Entry {
            path: components(&path).map_err(bad)?,
            kind,
            target,
            mode: header.mode().map_err(|_| bad("without a mode"))? & 0o7777,
            uid: self.ids.0.map_or_else(|| number(header.uid()), Ok)?,
            gid: self.ids.1.map_or_else(|| number(header.gid()), Ok)?,
            modified: match self.modified {
                Some(seconds) => seconds,
                None => header.mtime().map_or(0, |seconds| seconds as i64),
            },
            size: match kind {
                Kind::File => size,
                _ => 0,
            },
        }))
    }
}

/// The components of a path that stays below its root, or why it does not.
pub(crate) fn components(path: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
    if path.len() > PATH_BYTES_MAX {
        return Err("whose name is too long");
    }
    if path.first() == Some(&b'/') {
        return Err("that is absolute");
    }
    let mut components = Vec::new();
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err("that leads out with `..`"),
            _ if part.contains(&0) => return Err("with a NUL byte in its name"),
            _ if part.len() > 255 => return Err("whose name is too long"),
            _ => components.push(part.to_vec()),
        }
    }
    Ok(components)
}

/// Unpacks an archive of a layout: only the files that a layout has.
pub(crate) fn layout(
    archive: impl Read,
    into: &OwnedFd,
    budget: &mut Budget,
) -> Result<(), ImageError> {
    let made = |error: rustix::io::Errno| system("unpack the archive")(error.into());
    mkdirat(into, "blobs", Mode::RWXU).map_err(made)?;
    mkdirat(into, "blobs/sha256", Mode::RWXU).map_err(made)?;
    let mut stream = unpacked(archive)?;
    entries(
        &mut *stream,
        "the archive",
        budget,
        &mut |entry, content| {
            let name = entry.name();
            let known = match &entry.path[..] {
                [plain] => matches!(&plain[..], b"oci-layout" | b"index.json"),
                [blobs, kind, hex] => {
                    let digest = format!("sha256:{}", String::from_utf8_lossy(hex));
                    blobs == b"blobs"
                        && kind == b"sha256"
                        && crate::Digest::parse(&digest).is_some()
                }
                _ => false,
            };
            // Exports have more for other tools beside it.
            if !known || entry.kind == Kind::Directory {
                return Ok(());
            }
            let shown = String::from_utf8_lossy(&name).into_owned();
            if entry.kind != Kind::File {
                return Err(refused(shown, "is no regular file"));
            }
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let file = openat(into.as_fd(), &name[..], flags, Mode::RUSR | Mode::WUSR);
            let mut file: File = file
                .map_err(|error| match error {
                    rustix::io::Errno::EXIST => refused(shown, "is in the archive twice"),
                    other => made(other),
                })?
                .into();
            io::copy(content, &mut file).map_err(system("unpack the archive"))?;
            Ok(())
        },
    )
}
