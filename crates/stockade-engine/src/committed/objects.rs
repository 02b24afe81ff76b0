//! Reads blobs of a git repository: loose ones and those in packs
//! (gitformat-pack(5)). Each is checked against its name.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use flate2::read::ZlibDecoder;
use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, openat2};
use sha1::{Digest as _, Sha1};
use sha2::Sha256;
use stockade_policy::path::AbsolutePath;
use stockade_sys::rustix;

use super::{Hash, granted, open_absolute, open_beneath, read_beneath};

/// Largest object that is read, in bytes: what is hidden is small.
const OBJECT_BYTES_MAX: u64 = 16 << 20;
/// Bytes that are inflated in all: a pack could ask for any amount of work.
const INFLATED_BYTES_MAX: u64 = 128 << 20;
/// Longest chain of deltas; git makes 50 (git-pack-objects(1), --depth).
const DEPTH_MAX: usize = 256;
/// Most packs that are searched, and other object directories.
const PACKS_MAX: usize = 4096;
const ALTERNATES_MAX: usize = 16;

/// What begins an index of a pack, version 2.
const PACK_INDEX: &[u8; 8] = b"\xfftOc\0\0\0\x02";
const PACK_INDEX_FANOUT: u64 = 8;
const PACK_INDEX_NAMES: u64 = PACK_INDEX_FANOUT + 1024;

/// The object directories of a repository.
pub(super) struct Objects {
    directories: Vec<OwnedFd>,
    packs: Vec<Pack>,
    hash: Hash,
    inflated: Cell<u64>,
}

struct Pack {
    index: File,
    data: File,
    objects: u64,
    hash_bytes: u64,
}

/// How an object in a pack is stored.
enum Stored {
    Whole(Vec<u8>),
    /// What differs from the object at this place of the same pack.
    OffsetDelta(u64, Vec<u8>),
    /// What differs from the object of this name.
    NameDelta(Vec<u8>, Vec<u8>),
}

impl Objects {
    /// Opens what is there; object directories that others are borrowed from
    /// (gitrepository-layout(5), info/alternates) only where they are granted.
    pub(super) fn open(common: BorrowedFd<'_>, hash: Hash, roots: &[AbsolutePath]) -> Self {
        let mut directories: Vec<OwnedFd> =
            open_directory(common, b"objects").into_iter().collect();
        let alternates = directories
            .first()
            .and_then(|own| borrowed(own.as_fd(), roots))
            .unwrap_or_default();
        directories.extend(alternates);
        let mut packs = Vec::new();
        for directory in &directories {
            packs_of(directory.as_fd(), hash, &mut packs);
        }
        Self {
            directories,
            packs,
            hash,
            inflated: Cell::new(0),
        }
    }

    /// The content of a blob; `None` when it is missing, too large, or not
    /// what its name says.
    pub(super) fn blob(&self, name: &[u8]) -> Option<Vec<u8>> {
        let content = self.loose(name).or_else(|| self.packed(name))?;
        let header = format!("blob {}\0", content.len());
        let is_right = match self.hash {
            Hash::Sha1 => {
                let digest = Sha1::new().chain_update(&header).chain_update(&content);
                digest.finalize()[..] == *name
            }
            Hash::Sha256 => {
                let digest = Sha256::new().chain_update(&header).chain_update(&content);
                digest.finalize()[..] == *name
            }
        };
        is_right.then_some(content)
    }

    fn loose(&self, name: &[u8]) -> Option<Vec<u8>> {
        let (first, rest) = name.split_first()?;
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        let place = format!("{first:02x}/{rest}");
        let file = self
            .directories
            .iter()
            .find_map(|directory| open_beneath(directory.as_fd(), &place))?;
        let mut object = self.inflate(File::from(file))?;
        let end = object.iter().position(|&byte| byte == 0)?;
        object[..end].starts_with(b"blob ").then_some(())?;
        object.drain(..=end);
        Some(object)
    }

    fn packed(&self, name: &[u8]) -> Option<Vec<u8>> {
        let mut deltas = Vec::new();
        let (mut pack, mut offset) = self.find(name)?;
        let mut content = loop {
            match self.stored(pack, offset)? {
                Stored::Whole(content) => break content,
                Stored::OffsetDelta(base, delta) => {
                    offset = base;
                    deltas.push(delta);
                }
                Stored::NameDelta(base, delta) => {
                    deltas.push(delta);
                    match self.find(&base) {
                        Some(found) => (pack, offset) = found,
                        None => break self.loose(&base)?,
                    }
                }
            }
            if deltas.len() > DEPTH_MAX {
                return None;
            }
        };
        while let Some(delta) = deltas.pop() {
            content = apply(&content, &delta)?;
        }
        Some(content)
    }

    fn find(&self, name: &[u8]) -> Option<(&Pack, u64)> {
        self.packs
            .iter()
            .find_map(|pack| Some((pack, pack.find(name)?)))
    }

    fn stored(&self, pack: &Pack, offset: u64) -> Option<Stored> {
        let mut reader = BufReader::with_capacity(
            4096,
            At {
                file: &pack.data,
                offset,
            },
        );
        let mut next = || {
            let mut byte = [0];
            reader.read_exact(&mut byte).ok()?;
            Some(byte[0])
        };
        // The type, then the size, which the inflated bytes say again.
        let first = next()?;
        let mut byte = first;
        while byte & 0x80 != 0 {
            byte = next()?;
        }
        match (first >> 4) & 7 {
            3 => Some(Stored::Whole(self.inflate(reader)?)),
            6 => {
                let mut byte = next()?;
                let mut distance = u64::from(byte & 0x7f);
                while byte & 0x80 != 0 {
                    byte = next()?;
                    distance = distance.checked_add(1)?.checked_mul(128)? | u64::from(byte & 0x7f);
                }
                let base = offset.checked_sub(distance).filter(|base| *base < offset)?;
                Some(Stored::OffsetDelta(base, self.inflate(reader)?))
            }
            7 => {
                let mut base = vec![0; self.hash.bytes()];
                reader.read_exact(&mut base).ok()?;
                Some(Stored::NameDelta(base, self.inflate(reader)?))
            }
            _ => None,
        }
    }

    fn inflate(&self, compressed: impl Read) -> Option<Vec<u8>> {
        let left = INFLATED_BYTES_MAX.checked_sub(self.inflated.get())?;
        let most = OBJECT_BYTES_MAX.min(left);
        let mut content = Vec::new();
        let mut limited = ZlibDecoder::new(compressed).take(most + 1);
        limited.read_to_end(&mut content).ok()?;
        self.inflated
            .set(self.inflated.get() + content.len() as u64);
        (content.len() as u64 <= most).then_some(content)
    }
}

impl Pack {
    fn open(directory: BorrowedFd<'_>, index_name: &[u8], hash: Hash) -> Option<Self> {
        let index = File::from(open_beneath(directory, path(index_name))?);
        let data_name = [index_name.strip_suffix(b"idx")?, b"pack"].concat();
        let data = File::from(open_beneath(directory, path(&data_name))?);
        let mut magic = [0; 8];
        index.read_exact_at(&mut magic, 0).ok()?;
        (magic == *PACK_INDEX).then_some(())?;
        let objects = read_u32(&index, PACK_INDEX_NAMES - 4)?;
        Some(Self {
            index,
            data,
            objects: objects.into(),
            hash_bytes: hash.bytes() as u64,
        })
    }

    /// Where the object is in the pack.
    fn find(&self, name: &[u8]) -> Option<u64> {
        let first = u64::from(*name.first()?);
        let fanout = |bucket: u64| read_u32(&self.index, PACK_INDEX_FANOUT + bucket * 4);
        let mut low = match first {
            0 => 0,
            _ => u64::from(fanout(first - 1)?),
        };
        let mut high = u64::from(fanout(first)?).min(self.objects);
        let mut found = vec![0; name.len()];
        while low < high {
            let middle = low + (high - low) / 2;
            let place = PACK_INDEX_NAMES + middle * self.hash_bytes;
            self.index.read_exact_at(&mut found, place).ok()?;
            match found[..].cmp(name) {
                std::cmp::Ordering::Equal => return self.offset(middle),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    fn offset(&self, position: u64) -> Option<u64> {
        // After the names come check sums of four bytes each.
        let small = PACK_INDEX_NAMES + self.objects * (self.hash_bytes + 4);
        let offset = read_u32(&self.index, small + position * 4)?;
        if offset & 0x8000_0000 == 0 {
            return Some(offset.into());
        }
        let large = small + self.objects * 4;
        let mut bytes = [0; 8];
        let place = large + u64::from(offset & 0x7fff_ffff) * 8;
        self.index.read_exact_at(&mut bytes, place).ok()?;
        Some(u64::from_be_bytes(bytes))
    }
}

/// A file read from an offset on.
struct At<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// Applies a delta: copies of the base and bytes of its own.
fn apply(base: &[u8], delta: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = delta.iter().copied();
    let mut size = || {
        let (mut value, mut shift) = (0_u64, 0_u32);
        loop {
            let byte = bytes.next()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            shift += 7;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
    };
    let (from, to) = (size()?, size()?);
    (from == base.len() as u64 && to <= OBJECT_BYTES_MAX).then_some(())?;
    let mut content = Vec::with_capacity(to as usize);
    while let Some(instruction) = bytes.next() {
        if instruction & 0x80 == 0 {
            let taken = content.len();
            content.extend(bytes.by_ref().take(instruction.into()));
            let complete = content.len() - taken == usize::from(instruction) && instruction != 0;
            complete.then_some(())?;
        } else {
            let mut number = |places: std::ops::Range<u32>, first: u32| {
                let mut value = 0_usize;
                for place in places {
                    if instruction & (1 << place) != 0 {
                        value |= usize::from(bytes.next()?) << (8 * (place - first));
                    }
                }
                Some(value)
            };
            let offset = number(0..4, 0)?;
            let length = match number(4..7, 4)? {
                0 => 0x10000,
                length => length,
            };
            content.extend_from_slice(base.get(offset..offset.checked_add(length)?)?);
        }
        (content.len() as u64 <= to).then_some(())?;
    }
    (content.len() as u64 == to).then_some(content)
}

fn packs_of(objects: BorrowedFd<'_>, hash: Hash, packs: &mut Vec<Pack>) {
    let Some(directory) = open_directory(objects, b"pack") else {
        return;
    };
    let Ok(entries) = Dir::read_from(&directory) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_bytes();
        if name.ends_with(b".idx") && packs.len() < PACKS_MAX {
            packs.extend(Pack::open(directory.as_fd(), name, hash));
        }
    }
}

fn borrowed(objects: BorrowedFd<'_>, roots: &[AbsolutePath]) -> Option<Vec<OwnedFd>> {
    let text = read_beneath(objects, "info/alternates", super::TEXT_BYTES_MAX)?;
    // Relative ones are so to the directory that names them.
    let link = format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&objects)
    );
    let base = std::fs::read_link(link).ok()?;
    let base = AbsolutePath::parse(base.as_os_str().as_bytes()).ok()?;
    let lines = text.split(|&byte| byte == b'\n');
    let named = lines.filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    let directories = named
        .take(ALTERNATES_MAX)
        .filter_map(|line| granted(&base, line, roots))
        .filter_map(|path| open_absolute(&path, OFlags::DIRECTORY).ok());
    Some(directories.collect())
}

fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(parent, name, flags, Mode::empty(), resolve).ok()
}

fn read_u32(file: &File, offset: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(u32::from_be_bytes(bytes))
}

fn path(name: &[u8]) -> &std::path::Path {
    std::path::Path::new(std::ffi::OsStr::from_bytes(name))
}
