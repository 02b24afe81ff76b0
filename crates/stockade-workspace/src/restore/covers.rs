//! Which paths of the tree old versions are kept of, and until when that
//! explains a change.
//!
//! A layer of old versions says it by what is in it. A merged one cannot: its
//! parts were closed at different times, so it has the list in a file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Mode, OFlags, openat};
use serde::{Deserialize, Serialize};

use crate::apply::{Stamp, access};
use crate::store::{Store, StoreError, directory, system};
use crate::text;
use crate::tree::{self, FileKind, Found, Identity};

/// Name of the list in the directory of a merged layer.
const NAME: &str = "covers";
const VERSION: u32 = 1;
/// Longest list that is read, in bytes.
const BYTES_MAX: u64 = 1 << 30;
/// Deepest directory that is looked at.
const DEPTH_MAX: usize = 256;

/// Until when a change is explained; without end while the layer still takes
/// old versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Until(pub(super) Option<Stamp>);

impl Until {
    pub(super) fn later(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(one), Some(two)) if one.time >= two.time => Self(Some(one)),
            (Some(_), Some(two)) => Self(Some(two)),
            _ => Self(None),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cover {
    /// For the path itself.
    pub(super) own: Until,
    /// For everything below it.
    pub(super) below: Option<Until>,
}

/// What all layers of old versions explain together.
#[derive(Debug, Default)]
pub(crate) struct Covers {
    paths: BTreeMap<Vec<u8>, Cover>,
    /// Files that may have another name in the tree: moving one name away
    /// changed the time of change of all.
    shared: BTreeMap<Identity, Until>,
}

/// The first line of a list.
#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    stamps: Vec<Stamp>,
}

/// The other lines: numbers of stamps.
#[derive(Serialize, Deserialize)]
struct Line {
    #[serde(with = "text")]
    path: Vec<u8>,
    own: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    below: Option<usize>,
}

impl Covers {
    /// Those of layers of old versions.
    pub(crate) fn of(store: &Store, ids: &[String]) -> Result<Self, StoreError> {
        let failed = system("look through old versions");
        let mut covers = Self::default();
        for id in ids {
            let layer = store.layer(id)?;
            if covers.read(layer.as_fd()).map_err(&failed)? {
                continue;
            }
            let closed = store.layer_meta(id)?.and_then(|meta| meta.closed);
            let tree = store.layer_tree(id)?;
            covers
                .add(tree.as_fd(), &[], Until(closed), 0)
                .map_err(&failed)?;
        }
        Ok(covers)
    }

    pub(super) fn at(&self, path: &[u8]) -> Option<Cover> {
        self.paths.get(path).copied()
    }

    pub(super) fn of_file(&self, file: Identity) -> Option<Until> {
        self.shared.get(&file).copied()
    }

    /// The last moment that something is explained until.
    pub(crate) fn latest(&self) -> Option<Stamp> {
        let all = self.paths.values().map(|cover| cover.own);
        all.reduce(Until::later).and_then(|until| until.0)
    }

    fn cover(&mut self, path: Vec<u8>, new: Cover) {
        let cover = self.paths.entry(path).or_insert(new);
        cover.own = cover.own.later(new.own);
        cover.below = match (cover.below, new.below) {
            (Some(one), Some(two)) => Some(one.later(two)),
            (one, two) => one.or(two),
        };
    }

    /// Adds what a directory of a layer covers.
    fn add(
        &mut self,
        directory: BorrowedFd<'_>,
        path: &[u8],
        until: Until,
        depth: usize,
    ) -> io::Result<()> {
        if depth > DEPTH_MAX {
            return Ok(());
        }
        for name in tree::names(directory)? {
            let Some(found) = Found::at(directory, &name)? else {
                continue;
            };
            let inner = match path {
                [] => name.clone(),
                _ => [path, b"/", &name].concat(),
            };
            let is_directory = found.entry.kind == FileKind::Directory;
            let is_whole = !is_directory || found.marks.opaque;
            let cover = Cover {
                own: until,
                below: is_whole.then_some(until),
            };
            self.cover(inner.clone(), cover);
            if is_directory {
                let visit = access::visit(directory, &name)?;
                self.add(visit.handle.as_fd(), &inner, until, depth + 1)?;
            } else if found.links > 1 {
                let shared = self.shared.entry(found.identity).or_insert(until);
                *shared = shared.later(until);
            }
        }
        Ok(())
    }

    /// Writes the list of a merged layer, in which no file has a name in the
    /// tree. Every moment must be known.
    pub(crate) fn write(&self, layer: BorrowedFd<'_>) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(layer, NAME, flags, Mode::RUSR | Mode::WUSR)?;
        let mut out = BufWriter::new(File::from(file));
        let mut stamps: Vec<Stamp> = Vec::new();
        let mut lines = Vec::with_capacity(self.paths.len());
        for (path, cover) in &self.paths {
            let mut number = |until: Until| {
                let stamp = until
                    .0
                    .ok_or_else(|| io::Error::other("a layer is not closed"))?;
                let known = stamps.iter().position(|one| *one == stamp);
                Ok::<_, io::Error>(known.unwrap_or_else(|| {
                    stamps.push(stamp);
                    stamps.len() - 1
                }))
            };
            lines.push(Line {
                path: path.clone(),
                own: number(cover.own)?,
                below: cover.below.map(number).transpose()?,
            });
        }
        let header = Header {
            version: VERSION,
            stamps,
        };
        serde_json::to_writer(&mut out, &header)?;
        out.write_all(b"\n")?;
        for line in lines {
            serde_json::to_writer(&mut out, &line)?;
            out.write_all(b"\n")?;
        }
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()
    }

    /// Adds the list of a merged layer; `false` when the layer has none.
    fn read(&mut self, layer: BorrowedFd<'_>) -> io::Result<bool> {
        let Some(file) = directory::open_record(layer, NAME)? else {
            return Ok(false);
        };
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the list is damaged");
        let mut lines = BufReader::new(file.take(BYTES_MAX)).split(b'\n');
        let header = lines.next().ok_or_else(damaged)??;
        let header: Header = serde_json::from_slice(&header)?;
        if header.version != VERSION {
            return Err(damaged());
        }
        let stamp = |number: usize| {
            let stamp = header.stamps.get(number).copied();
            Ok::<_, io::Error>(Until(Some(stamp.ok_or_else(damaged)?)))
        };
        for line in lines {
            let line: Line = serde_json::from_slice(&line?)?;
            let cover = Cover {
                own: stamp(line.own)?,
                below: line.below.map(stamp).transpose()?,
            };
            self.cover(line.path, cover);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Time;

    fn until(seconds: i64) -> Until {
        let time = Time {
            seconds,
            nanoseconds: 0,
        };
        Until(Some(Stamp { device: 1, time }))
    }

    #[test]
    fn a_list_is_read_as_it_was_written_and_the_later_moment_counts() {
        let place = tempfile::tempdir().unwrap();
        let layer = File::open(place.path()).unwrap();
        let mut covers = Covers::default();
        let whole = |seconds| Cover {
            own: until(seconds),
            below: Some(until(seconds)),
        };
        let own = |seconds| Cover {
            own: until(seconds),
            below: None,
        };
        covers.cover(b"a\xff".to_vec(), own(5));
        covers.cover(b"a\xff".to_vec(), whole(3));
        covers.cover(b"b".to_vec(), own(7));
        covers.write(layer.as_fd()).unwrap();
        let mut read = Covers::default();
        assert!(read.read(layer.as_fd()).unwrap());
        assert_eq!(read.paths, covers.paths);
        let both = Cover {
            own: until(5),
            below: Some(until(3)),
        };
        assert_eq!(read.at(b"a\xff"), Some(both));
        assert_eq!(read.latest(), until(7).0);
        assert_eq!(read.at(b"c"), None);
    }
}
