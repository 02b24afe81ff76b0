//! A stack of overlay layers over a directory, read in user space: what the
//! mounted overlay would show at a path, without mounting it.
//!
//! The rules are the kernel's (overlayfs.rst, `userxattr`): the topmost layer
//! that has a name decides; directories merge until one is opaque, a whiteout
//! or something else; a whiteout hides what is below it. Only descriptors are
//! used and no link is followed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use crate::apply::access::{self, Visit};
use crate::tree::{self, FileKind, Found};

/// How deep a tree may be: each level costs descriptors. A hostile command can
/// make a deeper one; it can only be discarded.
pub const DEPTH_MAX: usize = 200;

/// Layers, top first, the last of which is the directory at the bottom.
#[derive(Debug)]
pub struct Stack {
    layers: Vec<OwnedFd>,
}

/// One directory of one layer.
#[derive(Debug)]
struct Part {
    level: usize,
    visit: Visit,
    whiteouts_inside: bool,
}

/// A directory as the stack shows it: the parts that merge into it, top first.
#[derive(Clone, Debug)]
pub struct Dir {
    parts: Vec<Rc<Part>>,
}

/// What the stack shows at a name.
#[derive(Clone, Debug)]
pub struct View {
    /// The layer that it comes from, 0 being the top.
    pub level: usize,
    pub found: Found,
    /// For a directory, which parts of the directory above have it.
    merged: Vec<usize>,
}

impl Stack {
    /// A stack of `layers`, top first, over `base`.
    pub fn new(layers: &[BorrowedFd<'_>], base: BorrowedFd<'_>) -> io::Result<Self> {
        let all = layers.iter().chain([&base]);
        let layers = all
            .map(|layer| tree::open_directory(*layer, b""))
            .collect::<io::Result<_>>()?;
        Ok(Self { layers })
    }

    /// The directory that all others are in.
    pub fn root(&self) -> io::Result<Dir> {
        let mut parts = Vec::with_capacity(self.layers.len());
        for (level, layer) in self.layers.iter().enumerate() {
            let marks = Found::of_directory(layer.as_fd())?.marks;
            parts.push(Rc::new(Part {
                level,
                visit: access::visit(layer.as_fd(), b"")?,
                whiteouts_inside: marks.whiteouts_inside,
            }));
            if marks.opaque {
                break;
            }
        }
        Ok(Dir { parts })
    }

    /// The directory at a relative path; `None` when there is none.
    pub fn directory(&self, path: &[u8]) -> io::Result<Option<Dir>> {
        let mut directory = self.root()?;
        for name in path
            .split(|&byte| byte == b'/')
            .filter(|name| !name.is_empty())
        {
            let Some(view) = directory.look(name)? else {
                return Ok(None);
            };
            match directory.enter(name, &view)? {
                Some(below) => directory = below,
                None => return Ok(None),
            }
        }
        Ok(Some(directory))
    }

    /// What the stack shows at a relative path, and the directory it is in.
    pub fn look(&self, path: &[u8]) -> io::Result<Option<(Dir, View)>> {
        let (parent, name) = tree::split(path);
        let Some(directory) = self.directory(parent)? else {
            return Ok(None);
        };
        let view = directory.look(name)?;
        Ok(view.map(|view| (directory, view)))
    }

    /// Opens the regular file that the stack shows at a path.
    pub fn open(&self, path: &[u8]) -> io::Result<File> {
        let (directory, view) = self
            .look(path)?
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        directory.open(tree::split(path).1, &view)
    }
}

impl Dir {
    /// What the stack shows at `name`; `None` for nothing or a whiteout.
    pub fn look(&self, name: &[u8]) -> io::Result<Option<View>> {
        let mut view: Option<View> = None;
        for (index, part) in self.parts.iter().enumerate() {
            let Some(found) = Found::at(part.visit.handle.as_fd(), name)? else {
                continue;
            };
            if part.hides(&found) {
                break;
            }
            let is_directory = found.entry.kind == FileKind::Directory;
            let opaque = found.marks.opaque;
            match &mut view {
                None => {
                    let merged = vec![index];
                    view = Some(View {
                        level: part.level,
                        found,
                        merged,
                    });
                }
                Some(view) if is_directory => view.merged.push(index),
                Some(_) => break,
            }
            if !is_directory || opaque {
                break;
            }
        }
        Ok(view)
    }

    /// The directory that `view`, found by [`Dir::look`] at `name`, is; `None`
    /// when it is not a directory.
    pub fn enter(&self, name: &[u8], view: &View) -> io::Result<Option<Self>> {
        if view.found.entry.kind != FileKind::Directory {
            return Ok(None);
        }
        let mut parts = Vec::with_capacity(view.merged.len());
        for &index in &view.merged {
            let part = &self.parts[index];
            let visit = access::visit(part.visit.handle.as_fd(), name)?;
            let whiteouts_inside = Found::of_directory(visit.handle.as_fd())?
                .marks
                .whiteouts_inside;
            parts.push(Rc::new(Part {
                level: part.level,
                visit,
                whiteouts_inside,
            }));
        }
        Ok(Some(Self { parts }))
    }

    /// The names that the stack shows here, sorted.
    pub fn list(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut shown = Vec::new();
        for name in self.names_in(0..usize::MAX)? {
            if self.look(&name)?.is_some() {
                shown.push(name);
            }
        }
        Ok(shown)
    }

    /// Opens the regular file that `view` is.
    pub fn open(&self, name: &[u8], view: &View) -> io::Result<File> {
        tree::open_file(self.parts[view.merged[0]].visit.handle.as_fd(), name)
    }

    /// Whether what the layers above `level` show at `name` came up from below
    /// them: the lowest of them that has the name says so.
    pub(crate) fn came_up(&self, name: &[u8], level: usize) -> io::Result<bool> {
        let mut came_up = false;
        for part in self.parts.iter().filter(|part| part.level < level) {
            match Found::at(part.visit.handle.as_fd(), name)? {
                Some(found) if part.hides(&found) => return Ok(false),
                Some(found) => came_up = found.marks.origin,
                None => {}
            }
        }
        Ok(came_up)
    }

    /// The names that layers of these levels have here, whiteouts included.
    pub(crate) fn names_in(&self, levels: std::ops::Range<usize>) -> io::Result<BTreeSet<Vec<u8>>> {
        let mut all = BTreeSet::new();
        for part in self
            .parts
            .iter()
            .filter(|part| levels.contains(&part.level))
        {
            all.extend(tree::names(part.visit.handle.as_fd())?);
        }
        Ok(all)
    }

    /// The directory without its parts above `level`; `None` when no part is
    /// left.
    pub(crate) fn without_above(&self, level: usize) -> Option<Self> {
        let parts: Vec<_> = self
            .parts
            .iter()
            .filter(|part| part.level >= level)
            .cloned()
            .collect();
        (!parts.is_empty()).then_some(Self { parts })
    }

    /// The directory itself, as its topmost part has it.
    pub(crate) fn top(&self) -> io::Result<Found> {
        let visit = &self.parts[0].visit;
        let mut found = Found::of_directory(visit.handle.as_fd())?;
        if let Some(mode) = visit.closed_mode() {
            found.entry.mode = mode;
        }
        Ok(found)
    }
}

impl Part {
    /// Whether a file of this directory is a whiteout.
    fn hides(&self, found: &Found) -> bool {
        found.is_whiteout_device()
            || self.whiteouts_inside
                && found.marks.whiteout
                && found.entry.kind == FileKind::File
                && found.entry.size == 0
    }
}
