//! Making directories and nodes, renaming and removing.

use rustix::fs::{
    AtFlags, FileType, OFlags, RenameFlags, mkdirat, mknodat, renameat_with, unlinkat,
};
use rustix::io::Errno;
use stockade_sys::seccomp::Notification;

use super::call::Named;
use super::judge::Verdict;
use super::place::{Place, Places, file_type};
use super::{Namer, Reply, done, git, permissions, with_umask};

impl Namer {
    pub(super) fn make_directory(
        &mut self,
        call: &Notification,
        places: &Places<'_>,
        at: Named,
        mode: u32,
    ) -> Result<Reply, Reply> {
        let place = places.locate(at, &self.path(call, places, at)?)?;
        // Programs make a path by making each of its parts, most of which are there.
        if place.stat()?.is_some() {
            return Err(Errno::EXIST.into());
        }
        self.completes_git(&place)?;
        let made = with_umask(places, || {
            mkdirat(&place.parent, &*place.name, permissions(mode))
        });
        if made.is_ok() {
            self.record.created(&place.path);
        }
        done(made)
    }

    pub(super) fn make_node(
        &mut self,
        call: &Notification,
        places: &Places<'_>,
        at: Named,
        mode: u32,
    ) -> Result<Reply, Reply> {
        let place = places.locate_file(at, &self.path(call, places, at)?)?;
        let kind = match FileType::from_raw_mode(mode) {
            FileType::Fifo => FileType::Fifo,
            FileType::Socket => FileType::Socket,
            // "Zero is a regular file" (mknod(2)).
            FileType::RegularFile => FileType::RegularFile,
            _ if mode & 0o170_000 == 0 => FileType::RegularFile,
            _ => return Ok(Reply::GoOn),
        };
        match self.judge_new(&place)? {
            Verdict::Ordinary => {}
            Verdict::Report(rule) => self.record.note_reported(&place.path, &rule),
            Verdict::Hold(rule) if kind == FileType::RegularFile => {
                let held = self.divert(&place, &rule, None, mode, OFlags::WRONLY);
                return done(held.map(drop));
            }
            Verdict::Hold(_) => return Err(Errno::PERM.into()),
        }
        let made = with_umask(places, || {
            mknodat(&place.parent, &*place.name, kind, permissions(mode), 0)
        });
        if made.is_ok() {
            self.record.created(&place.path);
        }
        done(made)
    }

    pub(super) fn rename(
        &mut self,
        call: &Notification,
        places: &Places<'_>,
        [from, to]: [Named; 2],
        flags: u32,
    ) -> Result<Reply, Reply> {
        let from_path = self.path(call, places, from)?;
        let to_path = self.path(call, places, to)?;
        let old = places.locate(from, &from_path)?;
        let new = places.locate(to, &to_path)?;
        let stat = old.stat()?.ok_or(Errno::NOENT)?;
        let is_directory = file_type(&stat) == FileType::Directory;
        if !is_directory && (from_path.ends_with(b"/") || to_path.ends_with(b"/")) {
            return Err(Errno::NOTDIR.into());
        }
        let flags = RenameFlags::from_bits_retain(flags);
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(Errno::INVAL.into());
        }
        if flags.contains(RenameFlags::EXCHANGE) {
            return self.exchange(&old, &new);
        }
        if let Some(reply) = self.moved_to(&old, &new, &stat)? {
            return Ok(reply);
        }
        let removal = self.before_removal(&old, &stat);
        let moved = renameat_with(&old.parent, &*old.name, &new.parent, &*new.name, flags);
        match moved {
            Ok(()) => self.record.moved(&old.path, &new.path, is_directory),
            Err(_) => self.forget(removal),
        }
        done(moved)
    }

    pub(super) fn exchange(&mut self, old: &Place, new: &Place) -> Result<Reply, Reply> {
        let is_free = |place: &Place| {
            matches!(self.judge(place), Verdict::Ordinary)
                && !self.is_above(&place.path)
                && git::part(&place.name).is_none()
        };
        if !is_free(old) || !is_free(new) {
            return Err(Errno::PERM.into());
        }
        let flags = RenameFlags::EXCHANGE;
        let moved = renameat_with(&old.parent, &*old.name, &new.parent, &*new.name, flags);
        if moved.is_ok() {
            self.record.changed(&old.path);
            self.record.changed(&new.path);
        }
        done(moved)
    }

    pub(super) fn remove(
        &mut self,
        call: &Notification,
        places: &Places<'_>,
        at: Named,
        directory: bool,
    ) -> Result<Reply, Reply> {
        let path = self.path(call, places, at)?;
        let place = match directory {
            true => places.locate(at, &path)?,
            false => places.locate_file(at, &path)?,
        };
        let stat = match place.stat()? {
            Some(stat) => stat,
            None if self.take_back(&place.path) => return Ok(Reply::Returns(0)),
            None => return Err(Errno::NOENT.into()),
        };
        let removal = match directory {
            true => None,
            false => self.before_removal(&place, &stat),
        };
        let flags = match directory {
            true => AtFlags::REMOVEDIR,
            false => AtFlags::empty(),
        };
        let removed = unlinkat(&place.parent, &*place.name, flags);
        match removed {
            Ok(()) => self.record.removed(&place.path),
            Err(_) => self.forget(removal),
        }
        done(removed)
    }
}
