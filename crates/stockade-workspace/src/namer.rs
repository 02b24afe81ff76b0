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
mod change;
mod divert;
mod git;
mod judge;
mod link;
mod open;
mod place;
mod record;
mod target;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::umask;
use stockade_policy::facts::Architecture;
use stockade_policy::guard::Guard;
use stockade_sys::seccomp::{Listener, Notification};

use crate::holds::Holds;
use call::{Call, Decoder, Named};
pub use place::Area;
use place::Places;
use record::Record;
pub use record::{Message, Noted, Tally, What};
use target::{Statuses, Target};

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

/// What becomes of a held call. As an error it is one that was found on the way,
/// so that what finds it can be called with `?`.
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

fn done(result: rustix::io::Result<()>) -> Result<Reply, Reply> {
    result?;
    Ok(Reply::Returns(0))
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
        statuses: Rc::default(),
        listener: Arc::new(listener),
        waiting: Arc::new(()),
    };
    namer.serve_one(&decoder, first)?;
    let ends = Listener::receiving_ends();
    loop {
        // Where receiving waits for the end as well, one call of the kernel is
        // enough for each that is held.
        if ends && let Some(call) = namer.listener.receive()? {
            namer.serve_one(&decoder, call)?;
            continue;
        }
        let mut descriptors = [PollFd::new(&*namer.listener, PollFlags::IN)];
        match poll(&mut descriptors, ends.then_some(&Timespec::default())) {
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
    statuses: Rc<Statuses>,
    listener: Arc<Listener>,
    /// Counts the threads that wait for the other end of a pipe.
    waiting: Arc<()>,
}

impl Namer {
    fn serve_one(&mut self, decoder: &Decoder, call: Notification) -> io::Result<()> {
        let reply = match decoder.decode(&call) {
            Some(decoded) => self.decide(&call, decoded).unwrap_or_else(|reply| reply),
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

    fn decide(&mut self, call: &Notification, decoded: Call) -> Result<Reply, Reply> {
        let (proc, areas) = (self.terms.proc.clone(), self.terms.areas.clone());
        let statuses = self.statuses.clone();
        let places = Places {
            target: Target {
                proc: &proc,
                thread: call.thread,
                statuses: &statuses,
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
    fn path(&self, call: &Notification, places: &Places<'_>, at: Named) -> Result<Vec<u8>, Reply> {
        match places.target.path(at.address) {
            Ok(path) if self.listener.is_waiting(call) => Ok(path),
            _ => Err(Reply::GoOn),
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
            let errno = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
            listener.answer(call, Err(errno))
        }
    }
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
