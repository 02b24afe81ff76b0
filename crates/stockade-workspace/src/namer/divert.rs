//! Held names: what is written goes to a hold.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, OFlags, RenameFlags, Stat, fstat, readlinkat, renameat_with, unlinkat,
};
use rustix::io::Errno;

use super::judge::{self, Verdict};
use super::place::{self, Place, file_type};
use super::{Namer, Reply, git};
use crate::holds::{Operation, copy};

impl Namer {
    /// What is opened for writing at a held name is the content of a hold.
    pub(super) fn divert(
        &mut self,
        place: &Place,
        rule: &judge::Ruling,
        before: Option<&Stat>,
        mode: u32,
        flags: OFlags,
    ) -> rustix::io::Result<OwnedFd> {
        if let Some(id) = self.record.hold_of(&place.path)
            && let Ok(file) = self
                .terms
                .holds
                .content(id, flags.difference(OFlags::TMPFILE))
        {
            return Ok(file);
        }
        self.check_holding(place, rule)?;
        place.check_writable(before.is_some())?;
        let there = self.put_back(place)?;
        let stamp = before.or(there.as_ref());
        let wish = self.wish(place, rule, Operation::Write, mode, stamp);
        let (id, content) = self.terms.holds.begin(wish).map_err(refused)?;
        if before.is_some() && !flags.contains(OFlags::TRUNC) {
            let old = place::open_to_look(&place.parent, &place.name)?;
            self.fill(&id, &old, &content)?;
        }
        drop(content);
        self.record
            .note_held(&place.path, rule, &id, Operation::Write);
        self.terms.holds.content(&id, flags).map_err(refused)
    }

    /// Refuses what would be held where the policy says so.
    fn check_holding(&mut self, place: &Place, rule: &judge::Ruling) -> rustix::io::Result<()> {
        if self.terms.guard.refused_by().is_none() {
            return Ok(());
        }
        self.record.note_refused(&place.path, rule);
        Err(Errno::ACCESS)
    }

    pub(super) fn divert_copy(
        &mut self,
        old: &Place,
        new: &Place,
        rule: &judge::Ruling,
    ) -> rustix::io::Result<()> {
        let source = place::open_to_look(&old.parent, &old.name)?;
        let stat = fstat(&source)?;
        if file_type(&stat) != FileType::RegularFile {
            return Err(Errno::PERM);
        }
        self.check_holding(new, rule)?;
        new.check_writable(false)?;
        self.put_back(new)?;
        let before = new.stat()?;
        let wish = self.wish(new, rule, Operation::Write, stat.st_mode, before.as_ref());
        let (id, content) = self.terms.holds.begin(wish).map_err(refused)?;
        self.fill(&id, &source, &content)?;
        self.record
            .note_held(&new.path, rule, &id, Operation::Write);
        Ok(())
    }

    /// Copies what a hold begins with; one that cannot be filled is no hold.
    fn fill(&self, id: &str, source: &OwnedFd, content: &OwnedFd) -> rustix::io::Result<()> {
        match copy(source.as_fd(), content.as_fd(), judge::KEPT_BYTES_MAX) {
            Ok(true) => Ok(()),
            _ => {
                self.terms.holds.discard(id).map_err(refused)?;
                Err(Errno::ACCESS)
            }
        }
    }

    pub(super) fn divert_link(
        &mut self,
        place: &Place,
        rule: &judge::Ruling,
        target: &[u8],
    ) -> rustix::io::Result<()> {
        let before = place.stat()?;
        if before.is_some() {
            return Err(Errno::EXIST);
        }
        self.check_holding(place, rule)?;
        place.check_writable(false)?;
        let before = self.put_back(place)?;
        let wish = self.wish(place, rule, Operation::Link, 0o777, before.as_ref());
        let (id, content) = self.terms.holds.begin(wish).map_err(refused)?;
        rustix::io::write(&content, target)?;
        self.record
            .note_held(&place.path, rule, &id, Operation::Link);
        Ok(())
    }

    /// What happens when a name is to become another; `None` to perform it.
    pub(super) fn moved_to(
        &mut self,
        old: &Place,
        new: &Place,
        stat: &Stat,
    ) -> rustix::io::Result<Option<Reply>> {
        match file_type(stat) {
            FileType::Directory => {
                // Programs copy instead, and each name is judged.
                let carries = self.is_above(&new.path)
                    || self.is_held(&new.path)
                    || git::part(&new.name).is_some();
                return Ok(carries.then_some(Reply::Fails(Errno::XDEV)));
            }
            FileType::Symlink => {
                let target = readlinkat(&old.parent, &*old.name, Vec::new())?;
                if let Verdict::Hold(rule) = self.judge_link(new, target.as_bytes())? {
                    self.divert_link(new, &rule, target.as_bytes())?;
                    unlinkat(&old.parent, &*old.name, AtFlags::empty())?;
                    return Ok(Some(Reply::Returns(0)));
                }
                return Ok(None);
            }
            FileType::RegularFile => {}
            _ if self.is_held(&new.path) => return Err(Errno::PERM),
            _ => return Ok(None),
        }
        match self.judge_new(new)? {
            Verdict::Ordinary => Ok(None),
            Verdict::Report(rule) => {
                self.record.note_reported(&new.path, &rule);
                Ok(None)
            }
            Verdict::Hold(rule) if rule.by_keys => self.move_config(old, new, &rule).map(Some),
            Verdict::Hold(rule) => {
                self.divert_copy(old, new, &rule)?;
                unlinkat(&old.parent, &*old.name, AtFlags::empty())?;
                self.record.removed(&old.path);
                Ok(Some(Reply::Returns(0)))
            }
        }
    }

    /// git writes `config.lock` and renames it. Keys that run nothing pass; for
    /// others the call fails, so that git says that nothing was set.
    pub(super) fn move_config(
        &mut self,
        old: &Place,
        new: &Place,
        rule: &judge::Ruling,
    ) -> rustix::io::Result<Reply> {
        let source = place::open_to_look(&old.parent, &old.name)?;
        let directory = self.directory_of(new);
        match git::judge_config(source, new, &directory) {
            Ok(lease) => {
                let moved = renameat_with(
                    &old.parent,
                    &*old.name,
                    &new.parent,
                    &*new.name,
                    RenameFlags::empty(),
                );
                drop(lease);
                moved?;
                self.record.moved(&old.path, &new.path, false);
                Ok(Reply::Returns(0))
            }
            Err(objection) => {
                let mut rule = rule.clone();
                if let git::Objection::Keys(keys) = objection {
                    rule.keys = keys;
                }
                self.divert_copy(old, new, &rule)?;
                Ok(Reply::Fails(Errno::ACCESS))
            }
        }
    }
}

/// A hold that cannot be kept is a refusal.
pub(super) fn refused(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::ACCESS)
}
