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
    ) -> Reply {
        let paths = (self.path(call, places, from), self.path(call, places, to));
        let (Some(from_path), Some(to_path)) = paths else {
            return Reply::GoOn;
        };
        let Some(new) = places.locate_file(to, &to_path) else {
            return Reply::GoOn;
        };
        let descriptor = match source {
            Source::Descriptor if from_path.is_empty() => Some(from.directory),
            Source::Followed => own_descriptor(&from_path),
            _ => None,
        };
        if let Some(number) = descriptor {
            return self.link_descriptor(places, number, &new);
        }
        let old = match source {
            Source::Followed => places.locate_followed(from, &from_path),
            _ => places.locate(from, &from_path),
        };
        let Some(old) = old else {
            return Reply::GoOn;
        };
        // A second name would be a way to change the first.
        if self.is_held(&old.path) || git::part(&old.name) == Some(git::Part::Config) {
            return Reply::Fails(Errno::PERM);
        }
        if git::part(&new.name) == Some(git::Part::Config) {
            return Reply::Fails(Errno::PERM);
        }
        match self.judge_new(&new) {
            Ok(Verdict::Ordinary) => {}
            Ok(Verdict::Report(rule)) => self.record.note_reported(&new.path, &rule),
            Ok(Verdict::Hold(rule)) => {
                return match self.divert_copy(&old, &new, &rule) {
                    Ok(()) => Reply::Returns(0),
                    Err(error) => error.into(),
                };
            }
            Err(error) => return error.into(),
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
    ) -> Reply {
        match self.judge_new(new) {
            Ok(Verdict::Ordinary) if git::part(&new.name).is_none() => {}
            Ok(Verdict::Report(rule)) => self.record.note_reported(&new.path, &rule),
            // What is open for writing can still be changed afterwards.
            Ok(_) => return Reply::Fails(Errno::PERM),
            Err(error) => return error.into(),
        }
        let found = places.target.reopen(number, OFlags::PATH | OFlags::CLOEXEC);
        if found
            .ok()
            .and_then(|found| places.path_of(&found))
            .is_some_and(|path| self.is_held(&path))
        {
            return Reply::Fails(Errno::PERM);
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
    ) -> Reply {
        let Ok(target) = places.target.path(target) else {
            return Reply::GoOn;
        };
        let path = self.path(call, places, at);
        let Some(place) = path.and_then(|path| places.locate_file(at, &path)) else {
            return Reply::GoOn;
        };
        match self.judge_link(&place, &target) {
            Ok(Verdict::Ordinary) => {}
            Ok(Verdict::Report(rule)) => self.record.note_reported(&place.path, &rule),
            Ok(Verdict::Hold(rule)) => {
                return match self.divert_link(&place, &rule, &target) {
                    Ok(()) => Reply::Returns(0),
                    Err(error) => error.into(),
                };
            }
            Err(error) => return error.into(),
        }
        let made = symlinkat(&target[..], &place.parent, &*place.name);
        if made.is_ok() {
            self.record.created(&place.path);
        }
        done(made)
    }
}
