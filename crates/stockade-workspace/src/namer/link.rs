//! Links, hard and symbolic.

use rustix::fs::{AtFlags, OFlags, linkat, symlinkat};
use rustix::io::Errno;
use stockade_sys::seccomp::Notification;

use super::call::{Named, Source};
use super::judge::Verdict;
use super::place::{Place, Places};
use super::target::own_descriptor;
use super::{Namer, Reply, done, git};

impl Namer {
    pub(super) fn link(
        &mut self,
        call: &Notification,
        places: &Places<'_>,
        from: Named,
        source: Source,
        to: Named,
    ) -> Result<Reply, Reply> {
        let from_path = self.path(call, places, from)?;
        let to_path = self.path(call, places, to)?;
        let new = places.locate_file(to, &to_path)?;
        let descriptor = match source {
            Source::Descriptor if from_path.is_empty() => Some(from.directory),
            Source::Followed => own_descriptor(&from_path),
            _ => None,
        };
        if let Some(number) = descriptor {
            return self.link_descriptor(places, number, &new);
        }
        let old = match source {
            Source::Followed => places.locate_followed(from, &from_path)?.0,
            _ => places.locate(from, &from_path)?,
        };
        // A second name would be a way to change the first.
        if self.is_held(&old.path) || git::part(&old.name) == Some(git::Part::Config) {
            return Err(Errno::PERM.into());
        }
        if git::part(&new.name) == Some(git::Part::Config) {
            return Err(Errno::PERM.into());
        }
        match self.judge_new(&new)? {
            Verdict::Ordinary => {}
            Verdict::Report(rule) => self.record.note_reported(&new.path, &rule),
            Verdict::Hold(rule) => return done(self.divert_copy(&old, &new, &rule)),
        }
        let made = linkat(
            &old.parent,
            &*old.name,
            &new.parent,
            &*new.name,
            AtFlags::empty(),
        );
        if made.is_ok() {
            self.record.created(&new.path);
        }
        done(made)
    }

    /// Gives a name to a file that the process has open (open(2), O_TMPFILE).
    pub(super) fn link_descriptor(
        &mut self,
        places: &Places<'_>,
        number: i32,
        new: &Place,
    ) -> Result<Reply, Reply> {
        match self.judge_new(new)? {
            Verdict::Ordinary if git::part(&new.name).is_none() => {}
            Verdict::Report(rule) => self.record.note_reported(&new.path, &rule),
            // What is open for writing can still be changed afterwards.
            _ => return Err(Errno::PERM.into()),
        }
        let found = places.target.reopen(number, OFlags::PATH | OFlags::CLOEXEC);
        if found
            .ok()
            .and_then(|found| places.path_of(&found))
            .is_some_and(|path| self.is_held(&path))
        {
            return Err(Errno::PERM.into());
        }
        let made = linkat(
            &*self.terms.proc,
            places.target.descriptor(number),
            &new.parent,
            &*new.name,
            AtFlags::SYMLINK_FOLLOW,
        );
        if made.is_ok() {
            self.record.created(&new.path);
        }
        done(made)
    }

    pub(super) fn symlink(
        &mut self,
        call: &Notification,
        places: &Places<'_>,
        target: u64,
        at: Named,
    ) -> Result<Reply, Reply> {
        let target = places.target.path(target).map_err(|_| Reply::GoOn)?;
        let place = places.locate_file(at, &self.path(call, places, at)?)?;
        match self.judge_link(&place, &target)? {
            Verdict::Ordinary => {}
            Verdict::Report(rule) => self.record.note_reported(&place.path, &rule),
            Verdict::Hold(rule) => return done(self.divert_link(&place, &rule, &target)),
        }
        let made = symlinkat(&target[..], &place.parent, &*place.name);
        if made.is_ok() {
            self.record.created(&place.path);
        }
        done(made)
    }
}
