//! The loop of the agent: one thread, which waits for everything at once.

use core::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, FdFlags, fcntl_setfd, read, write};
use rustix::process::{WaitOptions, getpid, umask, wait};
use rustix::time::{ClockId, clock_gettime};
use stockade_agent::buffer::Inbox;
use stockade_agent::session::{Session, Token, Wait};
use stockade_agent::wire::{TASKS_MAX, WireError};

use crate::kernel::Kernel;
use crate::raw;

/// Descriptors of a task that can be polled at one time, at most.
const PARTS_MAX: usize = 4;
const POLLED_MAX: usize = 2 + TASKS_MAX * PARTS_MAX;

/// How long what commands left may take to finish: time for a `tee` behind one
/// to write down what it was given. The launcher grants the same.
const LEFTOVERS_MAX: Duration = Duration::from_millis(500);

const EXIT_DONE: i32 = 0;
pub const EXIT_FAILED: i32 = 125;

/// Serves until the host says otherwise or goes away. `relay` is open so long.
pub fn serve(channel: OwnedFd, kernel: Kernel, relay: Option<OwnedFd>) -> i32 {
    match prepared(&channel) {
        Ok(signals) => {
            let mut agent = Agent {
                session: Session::new(kernel),
                inbox: Inbox::default(),
                channel,
                signals,
                relay,
            };
            agent.serve()
        }
        Err(_) => EXIT_FAILED,
    }
}

fn prepared(channel: &OwnedFd) -> Result<OwnedFd, stockade_agent::system::Errno> {
    let failed = |error: Errno| stockade_agent::system::Errno(error.raw_os_error());
    raw::hide_memory()?;
    raw::take_name(c"stockade-agent")?;
    if let Some(mask) = raw::argument().and_then(octal) {
        umask(Mode::from_raw_mode(mask));
    }
    fcntl_setfd(channel, FdFlags::CLOEXEC).map_err(failed)?;
    let flags = fcntl_getfl(channel).map_err(failed)?;
    fcntl_setfl(channel, flags | OFlags::NONBLOCK).map_err(failed)?;
    raw::take_signals()
}

/// A umask as shells write it. The launcher sets it where it starts the agent
/// itself; a kernel of the command's own begins with another.
fn octal(text: &core::ffi::CStr) -> Option<u32> {
    let text = text.to_str().ok()?;
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|&mask| mask <= 0o777)
}

struct Agent {
    session: Session<Kernel>,
    inbox: Inbox,
    channel: OwnedFd,
    signals: OwnedFd,
    /// Ends what carries offers, when it is closed.
    relay: Option<OwnedFd>,
}

/// What became of the channel.
#[derive(PartialEq, Eq)]
enum Channel {
    Open,
    Closed,
}

impl Agent {
    fn serve(&mut self) -> i32 {
        loop {
            if self.turn().is_err() {
                self.session.refuse("this is not the protocol of version 2");
            }
            if self.send() == Channel::Closed {
                return EXIT_FAILED;
            }
            if self.session.closing().is_some() && self.session.out().is_empty() {
                self.relay = None;
                self.let_leftovers_finish();
                return EXIT_DONE;
            }
            if self.wait() == Channel::Closed {
                return EXIT_DONE;
            }
        }
    }

    /// Waits a moment for what commands left behind, where it ends with this
    /// process: as the first of its kernel. Elsewhere the launcher does.
    fn let_leftovers_finish(&self) {
        if !getpid().is_init() {
            return;
        }
        let Ok(deadline) =
            Timespec::try_from(LEFTOVERS_MAX).map(|most| clock_gettime(ClockId::Monotonic) + most)
        else {
            return;
        };
        loop {
            self.forget_signals();
            while matches!(wait(WaitOptions::NOHANG), Ok(Some(_))) {}
            let left = deadline - clock_gettime(ClockId::Monotonic);
            let nobody = matches!(wait(WaitOptions::NOHANG), Err(Errno::CHILD));
            if nobody || left.tv_sec < 0 {
                return;
            }
            // What it was is looked for in the next turn.
            let _again = poll(
                &mut [PollFd::new(&self.signals, PollFlags::IN)],
                Some(&left),
            );
        }
    }

    /// Does everything for which there is no need to wait.
    fn turn(&mut self) -> Result<(), WireError> {
        while self.session.has_room()
            && let Some(frame) = self.inbox.first()?
        {
            let length = frame.length;
            self.session.receive(frame.task, frame.body)?;
            self.inbox.consume(length);
        }
        self.session.work()
    }

    fn send(&mut self) -> Channel {
        let out = self.session.out();
        while !out.is_empty() {
            match write(&self.channel, out.filled()) {
                Ok(sent) => out.consume(sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Channel::Open,
                Err(_) => return Channel::Closed,
            }
        }
        Channel::Open
    }

    /// Waits until there is something to do, and does what that is.
    fn wait(&mut self) -> Channel {
        let mut tokens: [Option<Token>; POLLED_MAX] = [None; POLLED_MAX];
        let events = self.poll(&mut tokens);
        if !events[1].is_empty() {
            self.forget_signals();
            if self.session.reap().is_err() {
                self.session.refuse("too much happened at once");
            }
        }
        for (token, events) in tokens.iter().zip(&events).skip(2) {
            if let (Some(token), false) = (token, events.is_empty())
                && self.session.ready(*token).is_err()
            {
                self.session.refuse("too much happened at once");
            }
        }
        match events[0].intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            true => self.receive(),
            false => Channel::Open,
        }
    }

    /// What happened to the channel, to the children and to each token.
    fn poll(&mut self, tokens: &mut [Option<Token>; POLLED_MAX]) -> [PollFlags; POLLED_MAX] {
        let mut channel = PollFlags::empty();
        if self.session.has_room() && !self.inbox.free().is_empty() {
            channel |= PollFlags::IN;
        }
        if !self.session.out().is_empty() {
            channel |= PollFlags::OUT;
        }
        let more = self.session.is_busy() || self.has_frame();
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let nothing: BorrowedFd<'_> = self.channel.as_fd();
        let mut polled: [PollFd<'_>; POLLED_MAX] =
            core::array::from_fn(|_| PollFd::from_borrowed_fd(nothing, PollFlags::empty()));
        polled[0] = PollFd::from_borrowed_fd(nothing, channel);
        polled[1] = PollFd::new(&self.signals, PollFlags::IN);
        let mut used = 2;
        self.session.waits(|token, handle: &OwnedFd, wait| {
            let flags = match wait {
                Wait::Readable => PollFlags::IN,
                Wait::Writable => PollFlags::OUT,
            };
            if let (Some(slot), Some(name)) = (polled.get_mut(used), tokens.get_mut(used)) {
                *slot = PollFd::from_borrowed_fd(handle.as_fd(), flags);
                *name = Some(token);
                used += 1;
            }
        });
        let mut happened = [PollFlags::empty(); POLLED_MAX];
        // An error is that of a signal; the next turn polls again.
        if poll(&mut polled[..used], more.then_some(&now)).is_ok() {
            for (events, descriptor) in happened.iter_mut().zip(&polled[..used]) {
                *events = descriptor.revents();
            }
        }
        happened
    }

    /// Whether a whole frame waits that can be taken now.
    fn has_frame(&self) -> bool {
        self.session.has_room() && !matches!(self.inbox.first(), Ok(None))
    }

    fn forget_signals(&self) {
        let mut records = [0u8; 1024];
        while matches!(read(&self.signals, &mut records), Ok(length) if length == records.len()) {}
    }

    fn receive(&mut self) -> Channel {
        if self.inbox.free().is_empty() {
            return Channel::Open;
        }
        match read(&self.channel, self.inbox.free()) {
            Ok(0) => Channel::Closed,
            Ok(length) => {
                self.inbox.fill(length);
                Channel::Open
            }
            Err(Errno::AGAIN | Errno::INTR) => Channel::Open,
            Err(_) => Channel::Closed,
        }
    }
}
