//! What the guard says of a place, and what is kept of what a run takes away.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, RawMode, Stat, openat};
use rustix::io::Errno;
use stockade_policy::guard::{self, Judged, Strength};

use super::divert::refused;
use super::place::{Area, Place, below, file_type, open_to_look};
use super::{Namer, git};
use crate::holds::{Operation, Wish, copy};

/// Largest content of a guarded name that is kept, in bytes.
pub(super) const KEPT_BYTES_MAX: u64 = 16 << 20;

/// The rule that speaks, as far as a hold needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ruling {
    pub(super) kind: String,
    pub(super) id: String,
    pub(super) reason: String,
    /// A git configuration, of which only some keys are held.
    pub(super) by_keys: bool,
    /// Those keys.
    pub(super) keys: Vec<String>,
}

pub(super) enum Verdict {
    Ordinary,
    /// Done, and told at the end.
    Report(Ruling),
    /// Kept aside.
    Hold(Ruling),
}

impl Ruling {
    fn of(rule: &guard::Rule) -> Self {
        Self {
            kind: rule.kind.to_string(),
            id: rule.rule.id.clone(),
            reason: rule.rule.reason.clone(),
            by_keys: rule.judged == Judged::GitConfig,
            keys: Vec::new(),
        }
    }

    fn built_in(id: &str, reason: String, by_keys: bool) -> Self {
        Self {
            kind: guard::Kind::Git.to_string(),
            id: id.to_owned(),
            reason,
            by_keys,
            keys: Vec::new(),
        }
    }
}

impl Namer {
    /// The strongest rule of any part of the host around the path.
    fn rule(&self, path: &[u8]) -> Option<&guard::Rule> {
        let rules = self
            .terms
            .areas_around(path)
            .filter_map(|(area, rest)| match area.workspace {
                true => self.terms.guard.judge(rest),
                false => self.terms.guard.judge_below(&area.path, rest),
            });
        rules.max_by_key(|rule| rule.strength == Strength::Hold)
    }

    pub(super) fn judge(&self, place: &Place) -> Verdict {
        match self.rule(&place.path) {
            // A pointer is made and written in place by git itself. What it
            // leads to is judged by what is in it, so it is told and no more.
            Some(rule) if rule.judged == Judged::GitPointer => Verdict::Report(Ruling::of(rule)),
            Some(rule) if rule.strength == Strength::Hold => Verdict::Hold(Ruling::of(rule)),
            Some(rule) => Verdict::Report(Ruling::of(rule)),
            None => self.judge_git(place),
        }
    }

    /// Hooks and configurations of git directories that have no `.git` in
    /// their path.
    fn judge_git(&self, place: &Place) -> Verdict {
        if self.is_private(&place.path) {
            return Verdict::Ordinary;
        }
        let is_config = git::part(&place.name) == Some(git::Part::Config);
        if is_config && git::is_git_directory(&place.parent, None) {
            let reason = "git reads it wherever it takes the directory for its own";
            return Verdict::Hold(Ruling::built_in("guard.git-directory", reason.into(), true));
        }
        if git::is_hook(place) {
            let reason = "git runs it";
            return Verdict::Hold(Ruling::built_in("guard.git-hook", reason.into(), false));
        }
        Verdict::Ordinary
    }

    /// As [`Self::judge`], for a name that is about to be made.
    pub(super) fn judge_new(&mut self, place: &Place) -> rustix::io::Result<Verdict> {
        self.completes_git(place)?;
        Ok(self.judge(place))
    }

    /// As [`Self::judge_new`], for a link, which can stand for a directory.
    pub(super) fn judge_link(
        &mut self,
        place: &Place,
        target: &[u8],
    ) -> rustix::io::Result<Verdict> {
        let verdict = self.judge_new(place)?;
        if matches!(verdict, Verdict::Ordinary) && is_trial(&place.name, target) {
            return Ok(verdict);
        }
        if matches!(verdict, Verdict::Ordinary) && self.is_above(&place.path) {
            return Ok(Verdict::Hold(Ruling::built_in(
                "guard.link",
                "a link here would stand for guarded names".into(),
                false,
            )));
        }
        let is_part = git::part(&place.name).is_some_and(|part| part != git::Part::Sign);
        if matches!(verdict, Verdict::Ordinary) && is_part {
            let directory = &place.parent;
            if git::is_git_directory(directory, None) {
                return Err(Errno::PERM);
            }
        }
        Ok(verdict)
    }

    /// Refuses the name that would make git take a directory for its own, if
    /// git would then run something.
    pub(super) fn completes_git(&mut self, place: &Place) -> rustix::io::Result<()> {
        let is_sign = git::part(&place.name) == Some(git::Part::Sign);
        // `.git` is guarded by its name.
        if !is_sign || self.is_private(&place.path) || self.rule_is_git(&place.path) {
            return Ok(());
        }
        // Another run in this tree could add the other half meanwhile.
        let _lock = self.terms.holds.lock().map_err(refused)?;
        if !git::is_git_directory(&place.parent, Some(&place.name)) {
            return Ok(());
        }
        match git::runs_something(&place.parent) {
            None => Ok(()),
            Some(what) => {
                let reason = format!("git would take the directory for its own and run {what}");
                let rule = Ruling::built_in("guard.git-directory", reason, false);
                self.record.note_refused(&place.path, &rule);
                Err(Errno::PERM)
            }
        }
    }

    fn rule_is_git(&self, path: &[u8]) -> bool {
        path.split(|&byte| byte == b'/').any(guard::is_git_name)
    }

    /// The directory of a place relative to the workspace, or to the part of
    /// the host that it is in.
    pub(super) fn directory_of(&self, place: &Place) -> Vec<u8> {
        let rests = self.terms.areas_around(&place.path);
        let rest = rests.min_by_key(|(area, _)| !area.workspace);
        let rest = rest.map_or(&b""[..], |(_, rest)| rest);
        let end = rest.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        rest[..end].to_vec()
    }

    /// Whether a path is in a part that is gone with the run.
    fn is_private(&self, path: &[u8]) -> bool {
        self.terms.areas_around(path).next().is_none()
    }

    pub(super) fn is_held(&self, path: &[u8]) -> bool {
        self.rule(path).is_some_and(|rule| {
            rule.strength == Strength::Hold && rule.judged != Judged::GitPointer
        })
    }

    pub(super) fn is_above(&self, path: &[u8]) -> bool {
        let mut rests = self.terms.areas_around(path);
        rests.any(|(area, rest)| match area.workspace {
            true => self.terms.guard.is_above(rest),
            false => self.terms.guard.is_above_below(&area.path, rest),
        })
    }

    pub(super) fn wish<'a>(
        &'a self,
        place: &'a Place,
        rule: &'a Ruling,
        operation: Operation,
        mode: u32,
        before: Option<&'a Stat>,
    ) -> Wish<'a> {
        Wish {
            run: &self.terms.run,
            path: &place.path,
            operation,
            kind: &rule.kind,
            rule: &rule.id,
            reason: &rule.reason,
            mode,
            before,
            keys: rule.keys.clone(),
        }
    }

    /// Keeps a copy of a guarded file that is about to go, so that it can be
    /// put back; the id of the hold.
    pub(super) fn before_removal(&mut self, place: &Place, stat: &Stat) -> Option<String> {
        let Verdict::Hold(rule) = self.judge(place) else {
            return None;
        };
        if file_type(stat) != FileType::RegularFile || self.record.is_new(&place.path) {
            return None;
        }
        let source = open_to_look(&place.parent, &place.name).ok()?;
        let wish = self.wish(place, &rule, Operation::Remove, stat.st_mode, Some(stat));
        let (id, content) = self.terms.holds.begin(wish).ok()?;
        if !matches!(
            copy(source.as_fd(), content.as_fd(), KEPT_BYTES_MAX),
            Ok(true)
        ) {
            self.forget(Some(id));
            return None;
        }
        self.record
            .note_held(&place.path, &rule, &id, Operation::Remove);
        Some(id)
    }

    /// The removal did not happen.
    pub(super) fn forget(&mut self, removal: Option<String>) {
        if let Some(id) = removal {
            self.record.forget(&id);
            // What cannot be discarded is listed, and does no harm.
            let _listed = self.terms.holds.discard(&id).is_err();
        }
    }

    /// A held name that was removed before something new was held for it: the
    /// old content goes back, so that outside nothing changed. What stands
    /// there now, by which an approval tells a later change.
    pub(super) fn put_back(&mut self, place: &Place) -> rustix::io::Result<Option<Stat>> {
        let Some(id) = self.record.removal_of(&place.path).map(str::to_owned) else {
            return Ok(None);
        };
        let Ok(meta) = self.terms.holds.meta(&id) else {
            return Ok(None);
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(meta.mode as RawMode);
        let back = self
            .terms
            .holds
            .content(&id, OFlags::RDONLY)
            .and_then(|content| {
                let file = openat(&place.parent, &*place.name, flags | OFlags::CLOEXEC, mode)?;
                rustix::fs::fchmod(&file, mode)?;
                copy(content.as_fd(), file.as_fd(), KEPT_BYTES_MAX)
            });
        if matches!(back, Ok(true)) {
            self.forget(Some(id));
        }
        place.stat()
    }

    /// At the end: what was opened for writing and left as it was is no hold.
    pub(super) fn settle(&mut self) {
        for (path, id) in self.record.writes() {
            let is_same = || -> std::io::Result<bool> {
                let meta = self.terms.holds.meta(&id)?;
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let there = openat(CWD, &path[..], flags, Mode::empty())?;
                let held = self.terms.holds.content(&id, OFlags::RDONLY)?;
                Ok(meta.operation == Operation::Write && is_alike(there, held)?)
            };
            if is_same().unwrap_or(false) {
                self.forget(Some(id));
            }
        }
    }

    /// A held name that is not in the tree is removed: the hold goes.
    pub(super) fn take_back(&mut self, path: &[u8]) -> bool {
        let Some(id) = self.record.hold_of(path).map(str::to_owned) else {
            return false;
        };
        self.forget(Some(id));
        true
    }
}

/// Whether two files have the same content, neither being large.
fn is_alike(one: OwnedFd, other: OwnedFd) -> std::io::Result<bool> {
    let (one, other) = (File::from(one), File::from(other));
    let bytes = one.metadata()?.len();
    if bytes != other.metadata()?.len() || bytes > KEPT_BYTES_MAX {
        return Ok(false);
    }
    let (mut left, mut right) = (Vec::new(), Vec::new());
    one.take(KEPT_BYTES_MAX).read_to_end(&mut left)?;
    other.take(KEPT_BYTES_MAX).read_to_end(&mut right)?;
    Ok(left == right)
}

/// The link by which `git init` finds out whether there are links. What it
/// could stand for lies beside it, under a name that is guarded alike.
fn is_trial(name: &[u8], target: &[u8]) -> bool {
    target == b"testing" && name.len() == 7 && name[0] == b't'
}

impl super::Parts {
    /// The path below each writable part of the host that it is in.
    fn areas_around<'a>(&'a self, path: &'a [u8]) -> impl Iterator<Item = (&'a Area, &'a [u8])> {
        self.areas
            .iter()
            .filter(|area| area.writable && !area.private)
            .filter_map(move |area| Some((area, below(area.path.as_bytes(), path)?)))
    }
}
