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
    ) -> Result<Reply, Reply> {
        if flags.contains(OFlags::PATH) {
            return Ok(Reply::GoOn);
        }
        let path = self.path(call, places, at)?;
        if let Some(number) = own_descriptor(&path) {
            return self.reopen(places, number, flags);
        }
        if flags.contains(OFlags::TMPFILE) {
            let directory = places.directory(at, &path)?;
            let file = with_umask(places, || {
                openat(&directory, ".", flags | OFlags::CLOEXEC, permissions(mode))
            })?;
            return Ok(Reply::Descriptor(file, flags));
        }
        let exclusive = flags.contains(OFlags::CREATE | OFlags::EXCL);
        let follows = !exclusive && !flags.contains(OFlags::NOFOLLOW);
        // Somebody outside may make or remove the name at the same time.
        if path.ends_with(b"/") {
            return Ok(Reply::GoOn);
        }
        for _ in 0..8 {
            let (place, there) = match follows {
                true => places.locate_followed(at, &path)?,
                false => {
                    let place = places.locate(at, &path)?;
                    let there = place.stat()?;
                    (place, there)
                }
            };
            let found = match there {
                Some(_) if exclusive => Err(Errno::EXIST),
                Some(stat) => self.open_existing(call, place, &stat, flags),
                None if flags.contains(OFlags::CREATE) => self.create(places, place, flags, mode),
                None => Err(Errno::NOENT),
            };
            match found {
                Err(Errno::EXIST) if !exclusive => continue,
                Err(Errno::NOENT) if flags.contains(OFlags::CREATE) => continue,
                other => return Ok(other?),
            }
        }
        Ok(Reply::GoOn)
    }

    /// Opens again what the process has open, through /proc or /dev.
    pub(super) fn reopen(
        &mut self,
        places: &Places<'_>,
        number: i32,
        flags: OFlags,
    ) -> Result<Reply, Reply> {
        let found = places.target.reopen(number, OFlags::PATH | OFlags::CLOEXEC);
        let found = found.map_err(|_| Reply::GoOn)?;
        let is_file = fstat(&found).is_ok_and(|stat| file_type(&stat) == FileType::RegularFile);
        let path = places.path_of(&found).filter(|_| is_file);
        let path = path.filter(|path| places.is_writable(path));
        let path = path.ok_or(Reply::GoOn)?;
        // What is guarded has no second way in.
        if self.is_held(&path) {
            return Err(Errno::ACCESS.into());
        }
        let kept = flags.difference(OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW);
        let file = places.target.reopen(number, kept | OFlags::CLOEXEC)?;
        Ok(Reply::Descriptor(file, flags))
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
    ) -> Result<Reply, Reply> {
        let (place, there) = places.locate_followed(at, &self.path(call, places, at)?)?;
        let length = u64::try_from(length).map_err(|_| Reply::GoOn)?;
        let stat = there.ok_or(Errno::NOENT)?;
        match self.open_existing(call, place, &stat, OFlags::WRONLY)? {
            Reply::Descriptor(file, _) => done(ftruncate(&file, length)),
            reply => Ok(reply),
        }
    }
}
