//! A kernel and its modules: installed, in a package, or as files.
//!
//! A package is read as a stream. Only files of known names are taken from it,
//! into memory and bounded, so it does not matter what else it holds.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use tar::{Archive, EntryType};

use crate::modules::{self, Module};
use crate::unpack::{read_bounded, reader};
use crate::{VmError, refused, system};

/// Most bytes of a kernel.
const KERNEL_BYTES_MAX: u64 = 128 << 20;
/// Most bytes of a module as it is packed.
const PACKED_BYTES_MAX: u64 = 32 << 20;
/// Most bytes of a list of what is built in.
const BUILT_IN_BYTES_MAX: u64 = 4 << 20;
/// Most bytes of a package once unpacked; a kernel's are about 600 MB.
const PACKAGE_BYTES_MAX: u64 = 8 << 30;
/// How deep modules lie below their directory, at most.
const DEPTH_MAX: usize = 12;

/// Where a kernel is taken from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The newest of the distribution's own that can be a machine's: from
    /// `/boot` and `/lib/modules`.
    Installed,
    /// A kernel package of Debian or one of its relatives.
    Package(PathBuf),
    /// A kernel and the directory of its modules (`/lib/modules/RELEASE`).
    Files { kernel: PathBuf, modules: PathBuf },
}

/// A kernel as it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// The bootable file.
    pub image: Vec<u8>,
    /// What `uname -r` says.
    pub release: String,
    /// Modules by name that a machine may need, packed as they were.
    pub modules: BTreeMap<String, Vec<u8>>,
    /// `modules.builtin`: paths, one a line.
    pub built_in: String,
    /// Where it is from, for people.
    pub from: String,
}

/// Reads a kernel and the modules that a machine loads, in their order.
pub fn read(source: &Source) -> Result<(Kernel, Vec<Module>), VmError> {
    let kernel = match source {
        Source::Installed => return installed(Path::new("/boot"), Path::new("/lib/modules")),
        Source::Package(path) => package(path)?,
        Source::Files { kernel, modules } => files(kernel, modules)?,
    };
    let modules = modules::in_order(&kernel)?;
    Ok((kernel, modules))
}

/// The newest kernel in `boot` that has what is needed.
fn installed(boot: &Path, modules_of: &Path) -> Result<(Kernel, Vec<Module>), VmError> {
    let mut releases = Vec::new();
    if let Ok(names) = std::fs::read_dir(boot) {
        let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        releases.extend(names.filter_map(|name| Some(name.strip_prefix("vmlinuz-")?.to_owned())));
    }
    releases.sort_by(|one, other| by_number(other, one));
    let mut reason = format!("{} holds none", boot.display());
    for (number, release) in releases.iter().enumerate() {
        let kernel = boot.join(format!("vmlinuz-{release}"));
        let found = files(&kernel, &modules_of.join(release))
            .and_then(|kernel| Ok((modules::in_order(&kernel)?, kernel)));
        match found {
            Ok((modules, kernel)) => return Ok((kernel, modules)),
            // The newest is what people mean.
            Err(error) if number == 0 => reason = error.to_string(),
            Err(_) => {}
        }
    }
    Err(VmError::NoKernel { reason })
}

/// Compares releases: numbers by their value, the rest by letters.
fn by_number(one: &str, other: &str) -> Ordering {
    let parts = |text: &str| {
        let mut parts = Vec::new();
        for part in text.split(|c: char| !c.is_ascii_alphanumeric()) {
            parts.push((part.parse::<u64>().unwrap_or(0), part.to_owned()));
        }
        parts
    };
    parts(one).cmp(&parts(other))
}

fn files(kernel: &Path, modules: &Path) -> Result<Kernel, VmError> {
    let from = kernel.display().to_string();
    let read = |path: &Path, most| {
        let content = open(path).and_then(|file| read_bounded(file, most));
        content.map_err(|error| {
            refused(
                path.display().to_string(),
                format!("cannot be read: {error}"),
            )
        })
    };
    let mut found = Kernel {
        image: read(kernel, KERNEL_BYTES_MAX)?,
        from,
        ..Kernel::default()
    };
    found.release = release_of(&found)?;
    let built_in = read(&modules.join("modules.builtin"), BUILT_IN_BYTES_MAX)?;
    found.built_in = String::from_utf8_lossy(&built_in).into_owned();
    let mut waiting = vec![(modules.join("kernel"), 0)];
    while let Some((directory, depth)) = waiting.pop() {
        let entries = std::fs::read_dir(&directory).map_err(system("list the modules"))?;
        for entry in entries {
            let entry = entry.map_err(system("list the modules"))?;
            let kind = entry.file_type().map_err(system("list the modules"))?;
            let name = entry.file_name();
            if kind.is_dir() && depth < DEPTH_MAX {
                waiting.push((entry.path(), depth + 1));
            } else if let Some(name) = name.to_str().and_then(modules::wanted)
                && kind.is_file()
            {
                let content = read(&entry.path(), PACKED_BYTES_MAX)?;
                found.modules.insert(name, content);
            }
        }
    }
    Ok(found)
}

/// Opens a regular file; anything else could keep the caller waiting.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(CWD, path, flags, Mode::empty())?;
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file.into()),
        _ => Err(io::Error::other("it is no regular file")),
    }
}

/// What a kernel says of itself (Linux, Documentation/arch/x86/boot.rst,
/// `kernel_version`).
fn release_of(kernel: &Kernel) -> Result<String, VmError> {
    let image = &kernel.image;
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b".+~_-".contains(byte);
    let text = || {
        let header = image.get(0x200..0x210)?;
        let offset = usize::from(u16::from_le_bytes([header[14], header[15]]));
        let text = image.get(0x200 + offset..)?;
        let end = text.iter().position(|&byte| byte == b' ' || byte == 0)?;
        let whole = (1..=64).contains(&end) && text[..end].iter().all(plain);
        (&header[2..6] == b"HdrS" && offset > 0 && whole).then_some(&text[..end])
    };
    match text() {
        Some(text) => Ok(String::from_utf8_lossy(text).into_owned()),
        None => Err(refused(&kernel.from, "is no kernel for x86")),
    }
}

/// The archive of a package: `!<arch>\n`, then a header of 60 bytes before
/// each part (deb(5), ar(5)).
fn package(path: &Path) -> Result<Kernel, VmError> {
    let place = path.display().to_string();
    let broken = |error: io::Error| refused(&place, format!("is no usable package: {error}"));
    let mut file = BufReader::new(open(path).map_err(broken)?);
    let mut magic = [0; 8];
    file.read_exact(&mut magic).map_err(broken)?;
    if &magic != b"!<arch>\n" {
        return Err(refused(&place, "is no package: it is no archive"));
    }
    loop {
        let mut header = [0; 60];
        file.read_exact(&mut header).map_err(broken)?;
        let size = str::from_utf8(&header[48..58]).ok();
        let size = size.and_then(|text| text.trim_end().parse::<u64>().ok());
        let Some(size) = size.filter(|_| &header[58..] == b"`\n") else {
            return Err(refused(&place, "is no package: a header is malformed"));
        };
        if header.starts_with(b"data.tar") {
            let mut data = reader((&mut file).take(size)).map_err(broken)?;
            let kernel = content(&mut data, &place).map_err(broken)?;
            let release = release_of(&kernel)?;
            return Ok(Kernel { release, ..kernel });
        }
        // Parts begin at even places.
        let size = size + size % 2;
        let skipped = io::copy(&mut (&mut file).take(size), &mut io::sink()).map_err(broken)?;
        if skipped < size {
            return Err(refused(&place, "is no package: it is cut short"));
        }
    }
}

/// What a package's content holds of a kernel.
fn content(data: &mut dyn Read, place: &str) -> io::Result<Kernel> {
    let mut kernel = Kernel {
        from: place.to_owned(),
        ..Kernel::default()
    };
    // One byte more than allowed, so that too many are seen.
    let mut archive = Archive::new(data.take(PACKAGE_BYTES_MAX));
    // Raw: names that stand before an entry could be of any length. What has
    // such a name is not looked for.
    for entry in archive.entries()?.raw(true) {
        let entry = entry?;
        if entry.header().entry_type() != EntryType::Regular {
            continue;
        }
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let path = path.strip_prefix("./").unwrap_or(&path);
        let file_name = path.rsplit('/').next().unwrap_or(path);
        let in_modules = path.strip_prefix("usr/").unwrap_or(path);
        let in_modules = in_modules.starts_with("lib/modules/");
        let twice = || io::Error::other(format!("it holds {path} twice"));
        if path == format!("boot/{file_name}") && file_name.starts_with("vmlinuz-") {
            if !kernel.image.is_empty() {
                return Err(io::Error::other("it holds two kernels"));
            }
            kernel.image = read_bounded(entry, KERNEL_BYTES_MAX)?;
        } else if in_modules && file_name == "modules.builtin" {
            if !kernel.built_in.is_empty() {
                return Err(twice());
            }
            let text = read_bounded(entry, BUILT_IN_BYTES_MAX)?;
            kernel.built_in = String::from_utf8_lossy(&text).into_owned();
        } else if in_modules && let Some(name) = modules::wanted(file_name) {
            let content = read_bounded(entry, PACKED_BYTES_MAX)?;
            if kernel.modules.insert(name, content).is_some() {
                return Err(twice());
            }
        }
    }
    match kernel.image.is_empty() {
        true => Err(io::Error::other("it holds no kernel")),
        false => Ok(kernel),
    }
}

#[cfg(test)]
pub(crate) mod tests;
