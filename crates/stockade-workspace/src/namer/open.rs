//! Opening and truncating: descriptors that the process asked for.

use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, ftruncate, openat};
use rustix::io::Errno;
use stockade_sys::seccomp::Notification;

use super::call::Named;
use super::judge::Verdict;
use super::place::{Place, Places, file_type};
use super::target::own_descriptor;
use super::{Namer, Reply, WAITING_MAX, done, hand_over, permissions, with_umask};

impl Namer {
    pub(super) fn open(
        &mut self,
        call: &Notification,
        places: &Places<'_>,
        at: Named,
        flags: OFlags,
        mode: u32,
    ) -> Reply {
        if flags.contains(OFlags::PATH) {
            return Reply::GoOn;
        }
        let Some(path) = self.path(call, places, at) else {
            return Reply::GoOn;
        };
        if let Some(number) = own_descriptor(&path) {
            return self.reopen(places, number, flags);
        }
        if flags.contains(OFlags::TMPFILE) {
            return match places.directory(at, &path) {
                Some((directory, _)) => with_umask(places, || {
                    openat(&directory, ".", flags | OFlags::CLOEXEC, permissions(mode))
                })
                .map_or_else(Reply::Fails, |file| Reply::Descriptor(file, flags)),
                None => Reply::GoOn,
            };
        }
        let exclusive = flags.contains(OFlags::CREATE | OFlags::EXCL);
        let follows = !exclusive && !flags.contains(OFlags::NOFOLLOW);
        // Somebody outside may make or remove the name at the same time.
        if path.ends_with(b"/") {
            return Reply::GoOn;
        }
        for _ in 0..8 {
            let place = match follows {
                true => places.locate_followed(at, &path),
                false => places.locate(at, &path),
            };
            let Some(place) = place else {
                return Reply::GoOn;
            };
            let found = match place.stat() {
                Ok(Some(stat)) if !exclusive => self.open_existing(call, place, &stat, flags),
                Ok(None) if flags.contains(OFlags::CREATE) => {
                    self.create(places, place, flags, mode)
                }
                // The kernel says what is wrong.
                _ => return Reply::GoOn,
            };
            match found {
                Err(Errno::EXIST) if !exclusive => continue,
                Err(Errno::NOENT) if flags.contains(OFlags::CREATE) => continue,
                Err(error) => return error.into(),
                Ok(reply) => return reply,
            }
        }
        Reply::GoOn
    }

    /// Opens again what the process has open, through /proc or /dev.
    pub(super) fn reopen(&mut self, places: &Places<'_>, number: i32, flags: OFlags) -> Reply {
        let Ok(found) = places.target.reopen(number, OFlags::PATH | OFlags::CLOEXEC) else {
            return Reply::GoOn;
        };
        let is_file = fstat(&found).is_ok_and(|stat| file_type(&stat) == FileType::RegularFile);
        let path = places.path_of(&found).filter(|_| is_file);
        let Some(path) = path.filter(|path| places.is_writable(path)) else {
            return Reply::GoOn;
        };
        // What is guarded has no second way in.
        if self.is_held(&path) {
            return Reply::Fails(Errno::ACCESS);
        }
        let kept = flags.difference(OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW);
        match places.target.reopen(number, kept | OFlags::CLOEXEC) {
            Ok(file) => Reply::Descriptor(file, flags),
            Err(error) => error.into(),
        }
    }

    pub(super) fn open_existing(
        &mut self,
        call: &Notification,
        place: Place,
        stat: &Stat,
        flags: OFlags,
    ) -> rustix::io::Result<Reply> {
        let flags_here = flags.difference(OFlags::CREATE | OFlags::EXCL) | OFlags::NOFOLLOW;
        match file_type(stat) {
            FileType::RegularFile => {}
            FileType::Fifo => {
                return Ok(self.open_pipe(call, place, flags_here, flags));
            }
            // Devices, sockets, directories and links: as the kernel says.
            _ => return Ok(Reply::GoOn),
        }
        match self.judge(&place) {
            Verdict::Hold(rule) => {
                let file = self.divert(&place, &rule, Some(stat), stat.st_mode, flags)?;
                return Ok(Reply::Descriptor(file, flags));
            }
            Verdict::Report(rule) => self.record.note_reported(&place.path, &rule),
            Verdict::Ordinary => {}
        }
        let file = openat(
            &place.parent,
            &*place.name,
            flags_here | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        self.record.changed(&place.path);
        Ok(Reply::Descriptor(file, flags))
    }

    /// A pipe waits for its other end, so a thread of its own opens it.
    pub(super) fn open_pipe(
        &mut self,
        call: &Notification,
        place: Place,
        flags_here: OFlags,
        flags: OFlags,
    ) -> Reply {
        if Arc::strong_count(&self.waiting) > WAITING_MAX {
            return Reply::Fails(Errno::MFILE);
        }
        let (listener, call) = (self.listener.clone(), *call);
        let counted = self.waiting.clone();
        let thread = std::thread::Builder::new().stack_size(64 << 10);
        let spawned = thread.spawn(move || {
            let opened = openat(
                &place.parent,
                &*place.name,
                flags_here | OFlags::CLOEXEC,
                Mode::empty(),
            );
            let _gone = match opened {
                Ok(pipe) => hand_over(&listener, &call, pipe, flags),
                Err(error) => listener.answer(&call, Err(error.raw_os_error())),
            }
            .is_err();
            drop(counted);
        });
        match spawned {
            Ok(_) => Reply::Elsewhere,
            Err(_) => Reply::Fails(Errno::AGAIN),
        }
    }

    pub(super) fn create(
        &mut self,
        places: &Places<'_>,
        place: Place,
        flags: OFlags,
        mode: u32,
    ) -> rustix::io::Result<Reply> {
        match self.judge_new(&place)? {
            Verdict::Hold(rule) => {
                let file = self.divert(&place, &rule, None, mode, flags)?;
                return Ok(Reply::Descriptor(file, flags));
            }
            Verdict::Report(rule) => self.record.note_reported(&place.path, &rule),
            Verdict::Ordinary => {}
        }
        let flags_here = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = with_umask(places, || {
            openat(
                &place.parent,
                &*place.name,
                flags_here | OFlags::CLOEXEC,
                permissions(mode),
            )
        })?;
        self.record.created(&place.path);
        Ok(Reply::Descriptor(file, flags))
    }

    pub(super) fn truncate(
        &mut self,
        call: &Notification,
        places: &Places<'_>,
        at: Named,
        length: i64,
    ) -> Reply {
        let path = self.path(call, places, at);
        let Some(place) = path.and_then(|path| places.locate_followed(at, &path)) else {
            return Reply::GoOn;
        };
        let Ok(length) = u64::try_from(length) else {
            return Reply::GoOn;
        };
        let Ok(Some(stat)) = place.stat() else {
            return Reply::GoOn;
        };
        match self.open_existing(call, place, &stat, OFlags::WRONLY) {
            Ok(Reply::Descriptor(file, _)) => done(ftruncate(&file, length)),
            Ok(reply) => reply,
            Err(error) => error.into(),
        }
    }
}
