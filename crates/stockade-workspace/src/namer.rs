//! The namer: the process that makes, changes and takes away names in the
//! parts of the host that a run may write, instead of the run.
//!
//! A filter holds the calls that do so (seccomp_unotify(2)); Landlock refuses
//! them to whoever is inside, whatever the filter let through. So each name is
//! made here or not at all, one after the other: arguments are copied once, the
//! directory is resolved to a descriptor once, the guard judges where it really
//! is, and the call is performed on that descriptor.
//!
//! What is not about such a name goes on in the kernel as if nobody had looked
//! (`go_on`). That decides nothing: a program that changes its arguments
//! meanwhile meets Landlock.

mod call;
mod git;
mod judge;
mod place;
mod record;
mod target;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, Stat, fstat, ftruncate, linkat, mkdirat, mknodat,
    openat, readlinkat, renameat_with, symlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::umask;
use stockade_policy::facts::Architecture;
use stockade_policy::guard::Guard;
use stockade_sys::seccomp::{Listener, Notification};

use crate::holds::{Holds, Operation, Wish};
use call::{Call, Decoder, Named, Source};
use judge::Verdict;
pub use place::Area;
use place::{Place, Places, file_type};
use record::Record;
pub use record::{Message, Noted, Tally, What};
use target::{Target, own_descriptor};

/// What the namer of a run is told.
pub struct Terms {
    pub run: String,
    pub architecture: Architecture,
    /// The host's parts of the view, those that can be read only as well.
    pub areas: Vec<Area>,
    pub guard: Guard,
    pub holds: Holds,
    /// The host's /proc, opened before the sandbox's view was entered.
    pub proc: OwnedFd,
    /// Where the messages go ([`Message`], as JSON), one a packet.
    pub channel: OwnedFd,
}

/// What becomes of a held call.
enum Reply {
    /// The kernel performs it, or says why not.
    GoOn,
    Returns(i64),
    Fails(Errno),
    Descriptor(OwnedFd, OFlags),
    /// Somebody else answers.
    Elsewhere,
}

impl From<Errno> for Reply {
    fn from(error: Errno) -> Self {
        Self::Fails(error)
    }
}

fn done(result: rustix::io::Result<()>) -> Reply {
    match result {
        Ok(()) => Reply::Returns(0),
        Err(error) => Reply::Fails(error),
    }
}

/// Pipes with a name that wait for their other end at the same time; more are
/// refused (EMFILE).
const WAITING_MAX: usize = 64;

/// Serves until nobody is left whose calls are held. The calling process has
/// entered the view of the sandbox, and blocks all signals.
pub fn serve(listener: Listener, first: Notification, terms: Terms) -> io::Result<()> {
    listener.wake_in_step();
    let decoder = Decoder::new(terms.architecture);
    let areas: Arc<[Area]> = terms.areas.into();
    let mut namer = Namer {
        record: Record::new(terms.channel, areas.clone()),
        terms: Parts {
            run: terms.run,
            areas,
            guard: terms.guard,
            holds: terms.holds,
            proc: Arc::new(terms.proc),
        },
        listener: Arc::new(listener),
        waiting: Arc::new(()),
    };
    namer.serve_one(&decoder, first)?;
    loop {
        let mut descriptors = [PollFd::new(&*namer.listener, PollFlags::IN)];
        match poll(&mut descriptors, None) {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        let events = descriptors[0].revents();
        if events.contains(PollFlags::IN) {
            if let Some(call) = namer.listener.receive()? {
                namer.serve_one(&decoder, call)?;
            }
        } else if events.intersects(PollFlags::HUP | PollFlags::ERR) {
            namer.settle();
            namer.record.finish();
            return Ok(());
        }
    }
}

struct Parts {
    run: String,
    areas: Arc<[Area]>,
    guard: Guard,
    holds: Holds,
    proc: Arc<OwnedFd>,
}

struct Namer {
    terms: Parts,
    record: Record,
    listener: Arc<Listener>,
    /// Counts the threads that wait for the other end of a pipe.
    waiting: Arc<()>,
}

impl Namer {
    fn serve_one(&mut self, decoder: &Decoder, call: Notification) -> io::Result<()> {
        let reply = match decoder.decode(&call) {
            Some(decoded) => self.decide(&call, decoded),
            None => Reply::GoOn,
        };
        match reply {
            Reply::GoOn => self.listener.go_on(&call),
            Reply::Returns(value) => self.listener.answer(&call, Ok(value)),
            Reply::Fails(error) => self.listener.answer(&call, Err(error.raw_os_error())),
            Reply::Descriptor(descriptor, flags) => {
                hand_over(&self.listener, &call, descriptor, flags)
            }
            Reply::Elsewhere => Ok(()),
        }
    }

    fn decide(&mut self, call: &Notification, decoded: Call) -> Reply {
        let (proc, areas) = (self.terms.proc.clone(), self.terms.areas.clone());
        let places = Places {
            target: Target {
                proc: &proc,
                thread: call.thread,
            },
            areas: &areas,
        };
        match decoded {
            Call::Open { at, flags, mode } => self.open(call, &places, at, flags, mode),
            Call::MakeDirectory { at, mode } => self.make_directory(call, &places, at, mode),
            Call::MakeNode { at, mode } => self.make_node(call, &places, at, mode),
            Call::Rename { from, to, flags } => self.rename(call, &places, [from, to], flags),
            Call::Link { from, source, to } => self.link(call, &places, from, source, to),
            Call::Symlink { target, at } => self.symlink(call, &places, target, at),
            Call::Remove { at, directory } => self.remove(call, &places, at, directory),
            Call::Truncate { at, length } => self.truncate(call, &places, at, length),
        }
    }

    /// Reads a path argument. Only while the call waits was the memory that of
    /// the process that made it.
    fn path(&self, call: &Notification, places: &Places<'_>, at: Named) -> Option<Vec<u8>> {
        let path = places.target.path(at.address).ok()?;
        self.listener.is_waiting(call).then_some(path)
    }

    fn open(
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
    fn reopen(&mut self, places: &Places<'_>, number: i32, flags: OFlags) -> Reply {
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

    fn open_existing(
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
    fn open_pipe(
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

    fn create(
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

    fn make_directory(
        &mut self,
        call: &Notification,
        places: &Places<'_>,
        at: Named,
        mode: u32,
    ) -> Reply {
        let path = self.path(call, places, at);
        let Some(place) = path.and_then(|path| places.locate(at, &path)) else {
            return Reply::GoOn;
        };
        if let Err(error) = self.completes_git(&place) {
            return error.into();
        }
        let made = with_umask(places, || {
            mkdirat(
                &place.parent,
                &*place.name,
                Mode::from_raw_mode(mode & 0o3777),
            )
        });
        if made.is_ok() {
            self.record.created(&place.path);
        }
        done(made)
    }

    fn make_node(
        &mut self,
        call: &Notification,
        places: &Places<'_>,
        at: Named,
        mode: u32,
    ) -> Reply {
        let path = self.path(call, places, at);
        let Some(place) = path.and_then(|path| places.locate_file(at, &path)) else {
            return Reply::GoOn;
        };
        let kind = match FileType::from_raw_mode(mode) {
            FileType::Fifo => FileType::Fifo,
            FileType::Socket => FileType::Socket,
            // "Zero is a regular file" (mknod(2)).
            FileType::RegularFile => FileType::RegularFile,
            _ if mode & 0o170_000 == 0 => FileType::RegularFile,
            _ => return Reply::GoOn,
        };
        match self.judge_new(&place) {
            Ok(Verdict::Ordinary) => {}
            Ok(Verdict::Report(rule)) => self.record.note_reported(&place.path, &rule),
            Ok(Verdict::Hold(rule)) if kind == FileType::RegularFile => {
                let held = self.divert(&place, &rule, None, mode, OFlags::WRONLY);
                return done(held.map(drop));
            }
            Ok(Verdict::Hold(_)) => return Reply::Fails(Errno::PERM),
            Err(error) => return error.into(),
        }
        let made = with_umask(places, || {
            mknodat(&place.parent, &*place.name, kind, permissions(mode), 0)
        });
        if made.is_ok() {
            self.record.created(&place.path);
        }
        done(made)
    }

    fn rename(
        &mut self,
        call: &Notification,
        places: &Places<'_>,
        [from, to]: [Named; 2],
        flags: u32,
    ) -> Reply {
        let paths = (self.path(call, places, from), self.path(call, places, to));
        let (Some(from_path), Some(to_path)) = paths else {
            return Reply::GoOn;
        };
        let old = places.locate(from, &from_path);
        let new = places.locate(to, &to_path);
        let (Some(old), Some(new)) = (old, new) else {
            return Reply::GoOn;
        };
        let Ok(Some(stat)) = old.stat() else {
            return Reply::GoOn;
        };
        let is_directory = file_type(&stat) == FileType::Directory;
        if !is_directory && (from_path.ends_with(b"/") || to_path.ends_with(b"/")) {
            return Reply::GoOn;
        }
        let flags = RenameFlags::from_bits_retain(flags);
        if flags.contains(RenameFlags::WHITEOUT) {
            return Reply::Fails(Errno::INVAL);
        }
        if flags.contains(RenameFlags::EXCHANGE) {
            return self.exchange(&old, &new);
        }
        match self.moved_to(&old, &new, &stat) {
            Ok(None) => {}
            Ok(Some(reply)) => return reply,
            Err(error) => return error.into(),
        }
        let removal = self.before_removal(&old, &stat);
        let moved = renameat_with(&old.parent, &*old.name, &new.parent, &*new.name, flags);
        match moved {
            Ok(()) => self.record.moved(&old.path, &new.path, is_directory),
            Err(_) => self.forget(removal),
        }
        done(moved)
    }

    fn exchange(&mut self, old: &Place, new: &Place) -> Reply {
        let is_free = |place: &Place| {
            matches!(self.judge(place), Verdict::Ordinary)
                && !self.is_above(&place.path)
                && git::part(&place.name).is_none()
        };
        if !is_free(old) || !is_free(new) {
            return Reply::Fails(Errno::PERM);
        }
        let flags = RenameFlags::EXCHANGE;
        let moved = renameat_with(&old.parent, &*old.name, &new.parent, &*new.name, flags);
        if moved.is_ok() {
            self.record.changed(&old.path);
            self.record.changed(&new.path);
        }
        done(moved)
    }

    fn link(
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
    fn link_descriptor(&mut self, places: &Places<'_>, number: i32, new: &Place) -> Reply {
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

    fn symlink(
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

    fn remove(
        &mut self,
        call: &Notification,
        places: &Places<'_>,
        at: Named,
        directory: bool,
    ) -> Reply {
        let path = self.path(call, places, at);
        let Some(place) = path.and_then(|path| match directory {
            true => places.locate(at, &path),
            false => places.locate_file(at, &path),
        }) else {
            return Reply::GoOn;
        };
        let stat = match place.stat() {
            Ok(Some(stat)) => stat,
            Ok(None) if self.take_back(&place.path) => return Reply::Returns(0),
            _ => return Reply::GoOn,
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

    fn truncate(
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

/// The process gets its descriptor before it runs on, and by then nobody else
/// has the file open for it: a program that writes another and executes it must
/// not meet ETXTBSY.
fn hand_over(
    listener: &Listener,
    call: &Notification,
    descriptor: OwnedFd,
    flags: OFlags,
) -> io::Result<()> {
    let close_on_exec = flags.contains(OFlags::CLOEXEC);
    let number = listener.hand_over(call, descriptor.as_fd(), close_on_exec);
    drop(descriptor);
    match number {
        Ok(number) => listener.answer(call, Ok(number.into())),
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(libc_eio());
            listener.answer(call, Err(errno))
        }
    }
}

fn libc_eio() -> i32 {
    Errno::IO.raw_os_error()
}

/// Permission bits of a new file; never those that lend the owner's rights.
fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o3777)
}

/// Makes something with the umask of the process that asked.
fn with_umask<T>(
    places: &Places<'_>,
    make: impl FnOnce() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    let theirs = places.target.umask().map_err(|_| Errno::SRCH)?;
    let ours = umask(theirs);
    let made = make();
    umask(ours);
    made
}

impl Namer {
    /// What is opened for writing at a held name is the content of a hold.
    fn divert(
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
        place.check_writable(before.is_some())?;
        let wish = self.wish(place, rule, Operation::Write, mode, before);
        let (id, content) = self.begin(wish)?;
        if before.is_some() && !flags.contains(OFlags::TRUNC) {
            let old = place::open_to_look(&place.parent, &place.name)?;
            match git::keep(&old, &content, judge::KEPT_BYTES_MAX) {
                Ok(true) => {}
                _ => return Err(Errno::ACCESS),
            }
        }
        drop(content);
        self.put_back(place);
        self.record
            .note_held(&place.path, rule, &id, Operation::Write);
        self.terms.holds.content(&id, flags).map_err(refused)
    }

    /// Begins a hold, unless the policy refuses what would be held.
    fn begin(&self, wish: Wish<'_>) -> rustix::io::Result<(String, OwnedFd)> {
        match self.terms.guard.refused_by() {
            Some(_) => Err(Errno::ACCESS),
            None => self.terms.holds.begin(wish).map_err(refused),
        }
    }

    fn divert_copy(
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
        let before = new.stat()?;
        new.check_writable(false)?;
        let wish = self.wish(new, rule, Operation::Write, stat.st_mode, before.as_ref());
        let (id, content) = self.begin(wish)?;
        match git::keep(&source, &content, judge::KEPT_BYTES_MAX) {
            Ok(true) => {}
            _ => return Err(Errno::ACCESS),
        }
        self.put_back(new);
        self.record
            .note_held(&new.path, rule, &id, Operation::Write);
        Ok(())
    }

    fn divert_link(
        &mut self,
        place: &Place,
        rule: &judge::Ruling,
        target: &[u8],
    ) -> rustix::io::Result<()> {
        let before = place.stat()?;
        if before.is_some() {
            return Err(Errno::EXIST);
        }
        place.check_writable(false)?;
        let wish = self.wish(place, rule, Operation::Link, 0o777, None);
        let (id, content) = self.begin(wish)?;
        rustix::io::write(&content, target)?;
        self.record
            .note_held(&place.path, rule, &id, Operation::Link);
        Ok(())
    }

    /// What happens when a name is to become another; `None` to perform it.
    fn moved_to(
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
    fn move_config(
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
                if moved.is_ok() {
                    self.record.moved(&old.path, &new.path, false);
                }
                Ok(done(moved))
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
fn refused(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::ACCESS)
}
