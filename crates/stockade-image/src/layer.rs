//! Applies one layer to a root file system (image-spec, layer.md).

use std::collections::HashMap;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use crate::archive::{self, Entry, Kind, components};
use crate::blobs::Blobs;
use crate::hash::{Digest, Hashing};
use crate::spec::Descriptor;
use crate::tree::Tree;
use crate::{Budget, ImageError, refused, system};

const WHITEOUT: &[u8] = b".wh.";
/// Says that nothing of lower layers shows in a directory.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// What this layer has put there so far.
type Own = HashMap<Vec<u8>, Kind>;

/// Unpacks a layer over what is there, and verifies it packed and unpacked.
/// What it made counts only when this succeeds.
pub(crate) fn apply(
    blobs: &Blobs,
    layer: &(Descriptor, Digest),
    tree: &mut Tree,
    budget: &mut Budget,
) -> Result<(), ImageError> {
    let (descriptor, expected) = layer;
    let place = &descriptor.digest[..];
    let mut blob = blobs.blob(descriptor)?;
    {
        let mut stream = Hashing::new(archive::unpacked(blob.reader())?);
        let mut own = Own::new();
        archive::entries(&mut stream, place, budget, &mut |entry, content| {
            let applied = one(tree, &mut own, entry, content, place)?;
            applied.map_err(|error| broken(error, place, entry))
        })?;
        // A bomb may follow the end of the archive.
        let broken = |error| refused(place, format!("cannot be unpacked: {error}"));
        let mut rest = (&mut stream).take(budget.bytes().saturating_add(1));
        let rest = io::copy(&mut rest, &mut io::sink()).map_err(broken)?;
        budget.take(rest, 0)?;
        let (_, unpacked) = stream.finish().map_err(broken)?;
        if unpacked != *expected {
            return Err(refused(
                place,
                format!("unpacks to {unpacked}, and the image says {expected}"),
            ));
        }
    }
    blob.verify()
}

fn broken(error: io::Error, place: &str, entry: &Entry) -> ImageError {
    let name = String::from_utf8_lossy(&entry.name())
        .escape_debug()
        .to_string();
    match error.kind() {
        // Disk and rights are no fault of the image.
        io::ErrorKind::StorageFull
        | io::ErrorKind::QuotaExceeded
        | io::ErrorKind::PermissionDenied
        | io::ErrorKind::ReadOnlyFilesystem => system("unpack the image")(error),
        _ => refused(
            place,
            format!("has an entry {name:?} that cannot be made: {error}"),
        ),
    }
}

fn one(
    tree: &mut Tree,
    own: &mut Own,
    entry: &Entry,
    content: &mut dyn Read,
    place: &str,
) -> Result<io::Result<()>, ImageError> {
    let name = entry.name();
    let shown = || String::from_utf8_lossy(&name).escape_debug().to_string();
    let bad = |reason: &str| refused(place, format!("has an entry {:?} {reason}", shown()));
    let Some(last) = entry.path.last() else {
        // The root itself.
        return Ok(match entry.kind {
            Kind::Directory => tree
                .directory(b"")
                .and_then(|root| tree.make_directory(&root, entry)),
            _ => return Err(bad("that is no directory")),
        });
    };
    let parent = tree.parent(entry, &mut |made| {
        own.insert(made, Kind::Directory);
    });
    let parent = match parent {
        Ok(parent) => parent,
        Err(error) => return Ok(Err(error)),
    };
    if last.starts_with(WHITEOUT) {
        let above = &entry.path[..entry.path.len() - 1];
        return white_out(tree, own, &parent, above, last).map_err(bad);
    }
    let again = own.insert(name.clone(), entry.kind);
    if again.is_some_and(|kind| kind != Kind::Directory || entry.kind != Kind::Directory) {
        return Err(bad("twice"));
    }
    Ok(match entry.kind {
        Kind::Directory => tree.make_directory(&parent, entry),
        Kind::File => tree.make_file(&parent, entry, content),
        Kind::Symlink => {
            check_symlink(entry).map_err(bad)?;
            tree.make_symlink(&parent, entry)
        }
        Kind::HardLink => {
            let target = components(&entry.target).map_err(bad)?;
            match tree.make_link(&parent, entry, &target) {
                Ok(true) => Ok(()),
                Ok(false) => return Err(bad("that links to no file of the image")),
                Err(error) => Err(error),
            }
        }
    })
}

/// A link is read only inside, where its root is the root; one that tries to
/// climb higher was made for another reader.
fn check_symlink(entry: &Entry) -> Result<(), &'static str> {
    if entry.target.is_empty() || entry.target.len() > 4095 || entry.target.contains(&0) {
        return Err("that links to no path");
    }
    if entry.target.first() == Some(&b'/') {
        return Ok(());
    }
    let mut depth = entry.path.len() as i64 - 1;
    for part in entry.target.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => depth -= 1,
            _ => depth += 1,
        }
        if depth < 0 {
            return Err("that links out of the image with `..`");
        }
    }
    Ok(())
}

/// Takes away what lower layers have; what this layer has made stays.
fn white_out(
    tree: &mut Tree,
    own: &Own,
    parent: &OwnedFd,
    above: &[Vec<u8>],
    last: &[u8],
) -> Result<io::Result<()>, &'static str> {
    if last == OPAQUE {
        return Ok(clear(tree, own, parent, &above.join(&b'/')));
    }
    let hidden = &last[WHITEOUT.len()..];
    if matches!(hidden, b"" | b"." | b"..") || hidden.starts_with(WHITEOUT) {
        return Err("that takes nothing away");
    }
    let mut path = above.to_vec();
    path.push(hidden.to_vec());
    match own.contains_key(&path.join(&b'/')) {
        true => Err("that takes away what the same layer brings"),
        false => Ok(tree.remove(parent, hidden)),
    }
}

/// Removes everything below a directory that this layer did not make.
fn clear(tree: &mut Tree, own: &Own, directory: &OwnedFd, path: &[u8]) -> io::Result<()> {
    // Not recursive: an image may be deep.
    let mut waiting = vec![(directory.try_clone()?, path.to_vec())];
    while let Some((directory, path)) = waiting.pop() {
        for name in Tree::names(&directory)? {
            let inner = match path.is_empty() {
                true => name.clone(),
                false => [&path[..], b"/", &name].concat(),
            };
            match own.get(&inner) {
                Some(Kind::Directory) => waiting.push((tree.directory(&inner)?, inner)),
                Some(_) => {}
                None => tree.remove(&directory, &name)?,
            }
        }
    }
    Ok(())
}
