//! The time between the gate and the end: relays streams and signals, keeps
//! the wall-time limit, and sees to it that nothing is left.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use stockade_sys::memory;
use stockade_sys::rustix;
use stockade_sys::signal::{self, Sender, Signals};
use stockade_walls::process::Sandbox;
use stockade_walls::{self as walls, Report, Usage, WallError};

use crate::names::{NameSummary, Names};
use crate::outcome::{End, LimitHit};
use crate::sandboxes::host::{self, Host};
use crate::streams::{Input, Output, Wait};
use crate::terminal::Terminals;
use crate::way_out::tally::NetworkSummary;
use crate::way_out::{self, WayOut};

/// How long nothing happens before a run is idle.
const IDLE_AFTER: Duration = Duration::from_millis(500);
/// How long a private terminal may be silent once everything inside is gone.
const TERMINAL_PATIENCE: Duration = Duration::from_secs(2);

/// What is supervised.
pub struct Supervision {
    pub sandbox: Sandbox,
    pub signals: Signals,
    pub input: Option<Input>,
    pub outputs: Vec<Output>,
    pub terminals: Option<Terminals>,
    pub wall_time: Option<Duration>,
    /// Readable when the kernel killed a process because memory ran out.
    pub out_of_memory: Option<OwnedFd>,
    pub way_out: Option<WayOut>,
    /// What makes names in the parts of the host that can be written.
    pub names: Option<Names>,
    /// For a sandbox that stays: what its callers and the agent say.
    pub host: Option<Host>,
    /// Set once the command is over; starts as `None`.
    pub ended: Option<(End, Usage)>,
}

/// Whether a signal arrived that ends a process by default.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Nothing,
    ToEnd,
}

/// How it ended and what it used.
pub struct Supervised {
    pub sandbox: Sandbox,
    pub end: End,
    pub usage: Usage,
    /// What the way out came to, if there was one.
    pub network: Option<NetworkSummary>,
    /// What was done to names, where a process outside makes them.
    pub names: Option<NameSummary>,
    pub host: Option<Host>,
    /// The last that the command wrote as errors or on its terminal.
    pub last_words: Vec<u8>,
    /// Why supervision failed, if it did.
    pub failure: Option<WallError>,
}

/// The signals that the supervisor handles itself or hands on.
pub fn handled_signals() -> Vec<i32> {
    let mut numbers = signal::RELAYED.to_vec();
    numbers.extend([
        signal::TERMINAL_STOP,
        signal::CONTINUE,
        signal::WINDOW_CHANGED,
    ]);
    numbers
}

/// What a polled descriptor belongs to.
#[derive(Clone, Copy)]
enum Source {
    Control,
    OutOfMemory,
    Signals,
    Input(Wait),
    Output(usize),
    Keys,
    Screen,
    WayOut(way_out::Source),
    Names,
    Host(host::Source),
}

impl Supervision {
    /// Runs until the sandbox is gone and its output is delivered. Something
    /// was executed by now, so there is always an outcome: a failure here ends
    /// the sandbox and comes with it.
    pub fn run(mut self) -> Supervised {
        let failure = self.relay().err();
        if failure.is_some() {
            self.sandbox.kill();
        }
        if self.names.as_ref().is_some_and(Names::is_serving) {
            // The namer serves until the last process inside is reaped.
            self.sandbox.wait();
        }
        let mut last_words = Vec::new();
        for output in &self.outputs {
            last_words.extend_from_slice(output.last_words());
        }
        if let Some(terminals) = self.terminals.take() {
            last_words.extend_from_slice(terminals.last_words());
        }
        let (end, usage) = self.ended.unwrap_or((End::Lost, Usage::default()));
        if let Some(host) = &mut self.host {
            let failure = failure.as_ref().map(ToString::to_string);
            host.conclude(&end, failure.as_deref());
        }
        Supervised {
            sandbox: self.sandbox,
            end,
            usage,
            network: self.way_out.map(WayOut::finish),
            names: self.names.map(Names::finish),
            host: self.host,
            last_words,
            failure,
        }
    }

    fn relay(&mut self) -> Result<(), WallError> {
        let stood = Instant::now();
        let mut patience = Some(IDLE_AFTER);
        while self.ended.is_none() || self.has_output() {
            let wall = self.wall_ends(stood);
            let Some(ready) = self
                .poll(self.deadline(wall), &mut patience)
                .map_err(system("poll"))?
            else {
                if let (Some(_), Some(terminals)) = (&self.ended, &mut self.terminals) {
                    terminals.give_up();
                    continue;
                }
                if wall.is_none_or(|wall| wall > Instant::now())
                    && let Some(host) = &mut self.host
                {
                    host.tick().map_err(system("the agent"))?;
                    continue;
                }
                self.sandbox.kill();
                self.end((End::Limit(LimitHit::WallTime), Usage::default()))?;
                continue;
            };
            for (source, events) in ready {
                let of_sandbox = matches!(source, Source::Control | Source::OutOfMemory);
                if of_sandbox && self.ended.is_some() {
                    continue;
                }
                match source {
                    // One process was killed; what is left is no whole any more.
                    Source::OutOfMemory => {
                        self.sandbox.kill();
                        self.end((End::Limit(LimitHit::Memory), Usage::default()))?;
                    }
                    Source::Control => {
                        if let Some(end) = self.report()? {
                            self.end(end)?;
                        }
                    }
                    Source::Signals => {
                        if self.relay_signals()? == Asked::ToEnd && self.ended.is_some() {
                            // Only undelivered output is left, and nobody
                            // wants it.
                            self.outputs.clear();
                            self.terminals = None;
                        }
                    }
                    Source::WayOut(source) => {
                        if let Some(way_out) = &mut self.way_out {
                            way_out.advance(source);
                        }
                    }
                    Source::Names => {
                        if let Some(names) = &mut self.names
                            && self.ended.is_none()
                        {
                            names.advance().map_err(system("the namer"))?;
                        }
                    }
                    Source::Host(source) => {
                        if let Some(host) = &mut self.host
                            && self.ended.is_none()
                        {
                            host.advance(source, events).map_err(system("the agent"))?;
                        }
                    }
                    other => self.advance(other, events).map_err(system("relay"))?,
                }
            }
            if self.ended.is_some() {
                self.finish_output().map_err(system("relay"))?;
            }
            self.attend().map_err(system("the terminal"))?;
        }
        Ok(())
    }

    /// Until when to wait, the wall-time limit being reached at `wall`.
    fn deadline(&self, wall: Option<Instant>) -> Option<Instant> {
        match (&self.ended, &self.terminals) {
            (None, _) => {
                let host = self.host.as_ref().and_then(Host::deadline);
                wall.into_iter().chain(host).min()
            }
            (Some(_), Some(_)) => Some(Instant::now() + TERMINAL_PATIENCE),
            (Some(_), None) => None,
        }
    }

    /// When the wall-time limit is reached; it does not run for a sandbox that
    /// waits for whoever takes it.
    fn wall_ends(&self, stood: Instant) -> Option<Instant> {
        let since = match &self.host {
            Some(host) => host.works_since(stood)?,
            None => stood,
        };
        Some(since + self.wall_time?)
    }

    /// Gives the terminal to a question of the way out, and takes it back
    /// when that is answered.
    fn attend(&mut self) -> io::Result<()> {
        let Some(way_out) = &mut self.way_out else {
            return Ok(());
        };
        if self.ended.is_some() {
            way_out.close_question();
        } else if way_out.wants_terminal() {
            if let Some(terminals) = &mut self.terminals {
                terminals.lend();
            }
            way_out.ask();
        }
        if !way_out.has_terminal()
            && let Some(terminals) = &mut self.terminals
        {
            terminals.take_again()?;
        }
        Ok(())
    }

    /// Whether a question has the terminal: then nothing from inside is shown
    /// and no key goes inside.
    fn is_asking(&self) -> bool {
        self.way_out.as_ref().is_some_and(WayOut::has_terminal)
    }

    /// Nobody inside writes any more.
    fn finish_output(&mut self) -> io::Result<()> {
        if let Some(terminals) = &mut self.terminals {
            terminals.finish();
        }
        self.outputs.iter_mut().try_for_each(Output::finish)
    }

    /// The command is over: what it did not read stays with the caller.
    fn end(&mut self, end: (End, Usage)) -> Result<(), WallError> {
        if let Some(mut input) = self.input.take() {
            input.abandon().map_err(system("relay"))?;
        }
        self.ended = Some(end);
        self.finish_output().map_err(system("relay"))
    }

    fn has_output(&self) -> bool {
        let piped = self
            .outputs
            .iter()
            .any(|output| output.waits_for().is_some());
        piped
            || self
                .terminals
                .as_ref()
                .is_some_and(|terminals| !terminals.drained())
    }

    /// Waits for anything; `None` when the deadline passed first. After so much
    /// `patience`, once, what the wait does not need is given back.
    fn poll(
        &self,
        deadline: Option<Instant>,
        patience: &mut Option<Duration>,
    ) -> io::Result<Option<Vec<(Source, PollFlags)>>> {
        let control = self.sandbox.control();
        let mut sources = vec![Source::Signals];
        let mut descriptors = vec![PollFd::new(&self.signals, PollFlags::IN)];
        if self.ended.is_none() {
            sources.push(Source::Control);
            descriptors.push(PollFd::new(&control, PollFlags::IN));
            if let Some(event) = &self.out_of_memory {
                sources.push(Source::OutOfMemory);
                descriptors.push(PollFd::new(event, PollFlags::IN));
            }
        }
        if self.ended.is_none()
            && let Some(waits) = self.names.as_ref().and_then(Names::waits_for)
        {
            sources.push(Source::Names);
            descriptors.push(PollFd::from_borrowed_fd(waits, PollFlags::IN));
        }
        if self.ended.is_none()
            && let Some(host) = &self.host
        {
            for (source, descriptor, flags) in host.waits_for() {
                sources.push(Source::Host(source));
                descriptors.push(PollFd::from_borrowed_fd(descriptor, flags));
            }
        }
        if let Some(way_out) = &self.way_out {
            for (source, descriptor) in way_out.waits_for() {
                sources.push(Source::WayOut(source));
                descriptors.push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
            }
        }
        if !self.is_asking() {
            self.add_streams(&mut sources, &mut descriptors);
        }
        loop {
            let left = match deadline {
                None => None,
                Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
                    None => return Ok(None),
                    left => left,
                },
            };
            let longest = left.into_iter().chain(*patience).min();
            match poll(&mut descriptors, longest.map(timespec).as_ref()) {
                Ok(0) if patience.is_some() && longest == *patience => {
                    // The start went through much of the program.
                    memory::let_go_of_code();
                    *patience = None;
                }
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(ready(&sources, &descriptors)))
    }

    fn add_streams<'a>(&'a self, sources: &mut Vec<Source>, descriptors: &mut Vec<PollFd<'a>>) {
        let mut add = |source, waits: Option<(std::os::fd::BorrowedFd<'a>, Wait)>| {
            if let Some((fd, wait)) = waits {
                let flags = match wait {
                    Wait::Readable => PollFlags::IN,
                    Wait::Writable => PollFlags::OUT,
                };
                sources.push(source);
                descriptors.push(PollFd::from_borrowed_fd(fd, flags));
            }
        };
        if let Some(input) = &self.input
            && let Some(waits) = input.waits_for()
        {
            add(Source::Input(waits.1), Some(waits));
        }
        for (index, output) in self.outputs.iter().enumerate() {
            add(Source::Output(index), output.waits_for());
        }
        if let Some(terminals) = &self.terminals {
            let [keys, screen] = terminals.waits_for();
            add(Source::Keys, keys);
            add(Source::Screen, screen);
        }
    }

    fn advance(&mut self, source: Source, events: PollFlags) -> io::Result<()> {
        match (source, &mut self.input, &mut self.terminals) {
            (Source::Input(Wait::Writable), Some(input), _) if events.contains(PollFlags::ERR) => {
                input.abandon()
            }
            (Source::Input(_), Some(input), _) => input.advance(),
            (Source::Output(index), ..) => self.outputs[index].advance(),
            (Source::Keys, _, Some(terminals)) => terminals.advance_keys(),
            (Source::Screen, _, Some(terminals)) => terminals.advance_screen(),
            _ => Ok(()),
        }
    }

    /// Takes one report of the launcher; the end, when it is that.
    fn report(&mut self) -> Result<Option<(End, Usage)>, WallError> {
        Ok(match self.sandbox.receive()? {
            Some(Report::Started) => None,
            Some(Report::Stopped { .. }) => {
                self.stop()?;
                None
            }
            Some(Report::NotExecuted { errno }) => {
                Some((End::NotExecuted { errno }, Usage::default()))
            }
            Some(Report::Ended { end, usage, alone }) => {
                // The launcher has only itself to take down: its end is
                // awaited when the sandbox is dropped, after what is left to
                // do here.
                if !alone {
                    self.sandbox.wait();
                }
                Some((end.into(), usage))
            }
            Some(other) => {
                return Err(WallError::Protocol(format!("{other:?} after the gate")));
            }
            None => {
                self.sandbox.wait();
                Some((End::Lost, Usage::default()))
            }
        })
    }

    fn relay_signals(&mut self) -> Result<Asked, WallError> {
        let mut asked = Asked::Nothing;
        while let Some(arrived) = self.signals.next().map_err(system("signalfd"))? {
            if let Some(host) = &mut self.host {
                // Nobody's terminal is its own. What the caller of a run is
                // sent is relayed by the process in front.
                match arrived.number {
                    _ if host.is_of_one() => {}
                    signal::WINDOW_CHANGED | signal::CONTINUE | signal::TERMINAL_STOP => {}
                    number => host.stop(&format!("its supervisor got signal {number}")),
                }
                continue;
            }
            match arrived.number {
                signal::WINDOW_CHANGED => {
                    if let Some(terminals) = &self.terminals {
                        terminals.resize();
                    }
                }
                signal::CONTINUE => self.go_on()?,
                signal::TERMINAL_STOP => {
                    self.signal(signal::STOP, true)?;
                    self.stop()?;
                }
                // What a key sends goes to the whole foreground group, what a
                // process sends to the one it named.
                number => {
                    self.signal(number, arrived.sender == Sender::Kernel)?;
                    asked = Asked::ToEnd;
                }
            }
        }
        Ok(asked)
    }

    /// Sends a signal in; a launcher that is gone shows at the next poll.
    fn signal(&self, number: i32, group: bool) -> Result<(), WallError> {
        match self.sandbox.signal(number, group) {
            Err(WallError::LauncherGone) => Ok(()),
            other => other,
        }
    }

    /// The job inside was stopped: stop as well, so that the caller's shell
    /// takes its terminal back.
    fn stop(&mut self) -> Result<(), WallError> {
        if let Some(terminals) = &mut self.terminals {
            terminals.give_back();
        }
        signal::stop_own_group().map_err(system("kill"))?;
        self.go_on()
    }

    /// Continued: take the terminal again if this job is in the foreground.
    fn go_on(&mut self) -> Result<(), WallError> {
        if let Some(terminals) = &mut self.terminals {
            terminals.take().map_err(system("tcsetattr"))?;
            terminals.resize();
        }
        self.signal(signal::CONTINUE, true)
    }
}

fn ready(sources: &[Source], descriptors: &[PollFd<'_>]) -> Vec<(Source, PollFlags)> {
    sources
        .iter()
        .zip(descriptors)
        .map(|(source, descriptor)| (*source, descriptor.revents()))
        .filter(|(_, events)| !events.is_empty())
        .collect()
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

fn system(what: &'static str) -> impl Fn(io::Error) -> WallError {
    move |error| WallError::System { what, error }
}

impl From<walls::End> for End {
    fn from(end: walls::End) -> Self {
        match end {
            walls::End::Exited(code) => Self::Exited(code),
            walls::End::Killed { signal, core } => Self::Killed { signal, core },
            walls::End::Limit(limit) => Self::Limit(limit.into()),
        }
    }
}

impl From<walls::Limit> for LimitHit {
    fn from(limit: walls::Limit) -> Self {
        match limit {
            walls::Limit::Memory => Self::Memory,
            walls::Limit::Processes => Self::Processes,
            walls::Limit::Disk => Self::Disk,
        }
    }
}
