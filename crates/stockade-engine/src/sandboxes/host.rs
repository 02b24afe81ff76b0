//! The supervisor's side of a sandbox that stays: between its callers and the
//! agent inside.
//!
//! Nothing here waits, and nothing grows without a bound: what the agent sends
//! is bounded by credit that callers give, what callers send by credit that the
//! agent gives and by what waits for it. An agent that says what cannot be true
//! ends the sandbox; a caller that does is let go.

mod birth;
mod clock;
mod end;
mod kernel;
mod one;
mod orders;
mod own;
mod taken;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::PollFlags;
use stockade_agent::host::Accepted;
use stockade_agent::wire::{Met, Reply, Request, Status, TASKS_MAX};
use stockade_policy::plan::{GuestKernel, Plan, WorkspaceMode};
use stockade_sys::{rustix, signal};
use stockade_walls::agent::Agent;

use super::client::{Client, Stage};
use super::detach::Announcement;
use super::link::Link;
use super::pool::Successor;
use super::registry::{Reserved, State};
use crate::events::{Event, RunId};
use crate::log::{Log, LogError};
use clock::Clock;
use kernel::Kernel;
use one::One;
use own::Own;
use taken::Taking;

/// How long the agent may take to greet.
const GREETING_MAX: Duration = Duration::from_secs(30);
/// How long it may take in a machine that has to boot, on a busy host whose
/// processor does not help.
const BOOT_MAX: Duration = Duration::from_secs(300);
/// How long commands may take to end when they are asked to.
const GRACE: Duration = Duration::from_secs(5);
/// How long they, and the agent, may take when they have to.
const PATIENCE: Duration = Duration::from_secs(3);
/// Most callers at one time; others are turned away.
const CLIENTS_MAX: usize = 2 * TASKS_MAX;

/// What a sandbox with an agent needs besides what a run needs.
#[derive(Debug)]
pub enum Hosting {
    /// It stays, for whoever finds it in the registry.
    Stay {
        reserved: Box<Reserved>,
        announcement: Announcement,
        /// What makes the next one, for one of a pool.
        successor: Option<Successor>,
    },
    /// It is for one command, of the process at the other end.
    Once { caller: OwnedFd },
}

/// Who has commands started.
#[derive(Debug)]
enum Callers {
    Anybody {
        reserved: Box<Reserved>,
        /// Until the sandbox stands, and whoever started it knows.
        announcement: Option<Announcement>,
        /// Of a pool: who has it, and what makes the next one.
        taking: Option<Taking>,
    },
    One(One),
}

/// What can be polled for the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Agent,
    Listener,
    Client(u64),
}

/// How far the sandbox is.
#[derive(Debug)]
enum Phase {
    /// The agent has not greeted yet.
    Greeting {
        until: Instant,
    },
    Serving,
    /// Commands were asked to end.
    Asking {
        until: Instant,
    },
    /// Commands were killed.
    Killing {
        until: Instant,
    },
    /// The agent was asked to end.
    Leaving {
        until: Instant,
    },
}

/// What a task is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// The command with this number.
    Exec(u64),
    /// A file, directory or watch that is read.
    Read,
    /// A file that is written, or made at once.
    Write,
}

/// A command that runs, or a file that is copied, whether anybody still waits for it or not.
#[derive(Debug)]
struct Running {
    what: What,
    since: Instant,
    client: Option<u64>,
    /// Credit that the agent used and did not get back.
    owed: [u32; 2],
    /// When it is killed, its caller being gone.
    kill_at: Option<Instant>,
}

/// One sandbox that stays.
#[derive(Debug)]
pub struct Host {
    callers: Callers,
    kernel: Kernel,
    /// Where the kernel has a clock of its own.
    clock: Option<Clock>,
    own: Option<Own>,
    /// On its way to the launcher.
    agent: Option<Agent>,
    link: Link,
    /// When the agent closed its channel, as seen here.
    closed: Option<Instant>,
    listener: Option<OwnedFd>,
    clients: BTreeMap<u64, Client>,
    next_client: u64,
    running: BTreeMap<u32, Running>,
    execs: u64,
    /// Limits that the agent said were met: none but those that it holds.
    met: Met,
    phase: Phase,
    /// Why it is to end, once it is.
    reason: Option<String>,
    run: RunId,
    log: Log,
}

impl Hosting {
    /// Prepares the agent and its channel; `state` is that of a machine, where
    /// the plan goes on from one.
    pub(crate) fn begin(
        mut self,
        state: Option<OwnedFd>,
        run: &RunId,
        plan: &Plan,
        log: &Log,
    ) -> io::Result<Host> {
        let (agent, channel) = match state {
            Some(state) => Agent::in_machine(state)?,
            None => Agent::prepare(stockade_agent_image::IMAGE)?,
        };
        if let Self::Stay {
            reserved,
            successor,
            ..
        } = &mut self
        {
            reserved.describe(run, plan);
            if let Some(successor) = successor {
                successor.waits = plan.workspace_mode.0 == WorkspaceMode::Review;
            }
        }
        let mut host = Host::new(self, channel, run.clone(), log.clone())?;
        host.agent = Some(agent);
        if let Some(guest) = &plan.guest {
            host.kernel = Kernel::unseen(guest.kernel.clone());
            if matches!(guest.kernel, GuestKernel::Machine(_)) {
                host.own = Some(Own::of(plan));
                host.clock = Some(Clock::default());
                birth::introduce(&mut host.link, plan)?;
                host.phase = Phase::Greeting {
                    until: Instant::now() + BOOT_MAX,
                };
            }
        }
        Ok(host)
    }
}

impl Host {
    /// One whose agent, at the other end of the channel, has said nothing yet.
    fn new(hosting: Hosting, channel: OwnedFd, run: RunId, log: Log) -> io::Result<Self> {
        let callers = match hosting {
            Hosting::Stay {
                reserved,
                announcement,
                successor,
            } => Callers::Anybody {
                reserved,
                announcement: Some(announcement),
                taking: successor.map(Taking::new),
            },
            Hosting::Once { caller } => Callers::One(One::new(caller)),
        };
        Ok(Self {
            callers,
            kernel: Kernel::Hosts,
            clock: None,
            own: None,
            agent: None,
            link: Link::new(channel)?,
            closed: None,
            listener: None,
            clients: BTreeMap::new(),
            next_client: 0,
            running: BTreeMap::new(),
            execs: 0,
            met: Met::NONE,
            phase: Phase::Greeting {
                until: Instant::now() + GREETING_MAX,
            },
            reason: None,
            run,
            log,
        })
    }

    /// Variables that every command has besides those of the plan, where the
    /// agent does not have them of its own.
    pub(crate) fn add_environment(&mut self, variables: Vec<(Vec<u8>, Vec<u8>)>) {
        if let Some(own) = &mut self.own {
            own.add(variables);
        }
    }

    /// What the launcher is given.
    pub(crate) fn take_agent(&mut self) -> Option<Agent> {
        self.agent.take()
    }

    /// Whether the sandbox stood, and whoever started it knows.
    pub(crate) fn stood(&self) -> bool {
        match &self.callers {
            Callers::Anybody { announcement, .. } => announcement.is_none(),
            Callers::One(one) => one.is_served(),
        }
    }

    /// What to poll, and for what.
    pub fn waits_for(&self) -> Vec<(Source, BorrowedFd<'_>, PollFlags)> {
        let mut waits = Vec::with_capacity(2 + self.clients.len());
        if !self.link.is_closed() {
            let more = match self.link.has_more() {
                true => PollFlags::OUT,
                false => PollFlags::empty(),
            };
            waits.push((Source::Agent, self.link.channel(), PollFlags::IN | more));
        }
        if let Some(listener) = &self.listener {
            waits.push((Source::Listener, listener.as_fd(), PollFlags::IN));
        }
        for (&id, client) in &self.clients {
            let mut flags = PollFlags::empty();
            if client.is_heard() && self.link.has_room() {
                flags |= PollFlags::IN;
            }
            if !client.outbox.is_empty() {
                flags |= PollFlags::OUT;
            }
            waits.push((Source::Client(id), client.socket.as_fd(), flags));
        }
        waits
    }

    /// When [`Self::tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let phase = match self.phase {
            Phase::Serving => None,
            Phase::Greeting { until }
            | Phase::Asking { until }
            | Phase::Killing { until }
            | Phase::Leaving { until } => Some(until),
        };
        let closed = self.closed.map(|closed| closed + PATIENCE);
        let kills = self.running.values().filter_map(|one| one.kill_at);
        let clock = self.clock_due();
        let all = phase.into_iter().chain(closed).chain(kills).chain(clock);
        all.min()
    }

    /// What was polled for is there. An error ends the sandbox.
    pub fn advance(&mut self, source: Source, events: PollFlags) -> io::Result<()> {
        match source {
            Source::Agent => self.hear()?,
            Source::Listener => self.accept(),
            Source::Client(id) => {
                let gone = events.intersects(PollFlags::HUP | PollFlags::ERR);
                let is_there = match self.clients.get_mut(&id) {
                    Some(client) if events.contains(PollFlags::IN) => client.receive(),
                    _ => true,
                };
                if gone || !is_there {
                    self.let_go(id);
                }
            }
        }
        self.settle();
        Ok(())
    }

    /// A deadline has passed. An error ends the sandbox.
    pub fn tick(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if self.closed.is_some_and(|closed| closed + PATIENCE <= now) {
            return Err(io::Error::other("it closed its channel"));
        }
        let due = |one: &Running| one.kill_at.is_some_and(|kill_at| kill_at <= now);
        let killed: Vec<u32> = self
            .running
            .iter_mut()
            .filter(|(_, one)| due(one))
            .map(|(&task, one)| {
                one.kill_at = None;
                task
            })
            .collect();
        for task in killed {
            self.signal(task, signal::KILL);
        }
        if self.clock_due().is_some_and(|due| due <= now) {
            self.set_clock();
        }
        match self.phase {
            Phase::Greeting { until } if until <= now => {
                return Err(io::Error::other("it did not greet in time"));
            }
            Phase::Asking { until } if until <= now => {
                self.signal_all(signal::KILL);
                self.phase = Phase::Killing {
                    until: now + PATIENCE,
                };
            }
            Phase::Killing { until } if until <= now => self.leave(),
            Phase::Leaving { until } if until <= now => {
                return Err(io::Error::other("it did not end when it was told to"));
            }
            _ => {}
        }
        self.settle();
        Ok(())
    }

    /// Ends the sandbox in order, for a reason: commands first.
    pub fn stop(&mut self, reason: &str) {
        self.ask_to_end(reason);
        self.settle();
    }

    fn ask_to_end(&mut self, reason: &str) {
        if self.is_stopping() {
            return;
        }
        self.reason = Some(reason.to_owned());
        if matches!(self.phase, Phase::Greeting { .. }) {
            return self.leave();
        }
        // Who asks meanwhile learns it from the supervisor anyway.
        if let Callers::Anybody { reserved, .. } = &mut self.callers {
            let _unsaid = reserved.publish(State::Stopping).is_err();
        }
        self.signal_all(signal::TERMINATE);
        self.signal_all(signal::CONTINUE);
        self.phase = Phase::Asking {
            until: Instant::now() + GRACE,
        };
    }

    fn signal(&mut self, task: u32, number: i32) {
        let group = true;
        self.link.send(task, &Request::Signal { number, group });
    }

    /// Signals every command; what is copied is given up.
    fn signal_all(&mut self, number: i32) {
        let tasks = self.running.iter().map(|(&task, one)| (task, one.what));
        for (task, what) in tasks.collect::<Vec<_>>() {
            match what {
                What::Exec(_) => self.signal(task, number),
                What::Read | What::Write => self.link.send(task, &Request::Cancel),
            }
        }
    }

    /// How many commands run.
    fn commands(&self) -> usize {
        let is_command = |one: &&Running| matches!(one.what, What::Exec(_));
        self.running.values().filter(is_command).count()
    }

    fn leave(&mut self) {
        self.link.send(0, &Request::Shutdown);
        self.phase = Phase::Leaving {
            until: Instant::now() + PATIENCE,
        };
    }

    fn is_stopping(&self) -> bool {
        !matches!(self.phase, Phase::Greeting { .. } | Phase::Serving)
    }

    /// Does everything for which there is no need to wait.
    fn settle(&mut self) {
        let ids: Vec<u64> = self.clients.keys().copied().collect();
        for id in ids {
            let Some(mut client) = self.clients.remove(&id) else {
                continue;
            };
            let stays = self.obey(id, &mut client) && client.deliver();
            let task = match client.stage {
                Stage::Running { task, .. } => Some(task),
                _ => None,
            };
            match (stays, task) {
                (true, _) => {
                    self.clients.insert(id, client);
                }
                (false, Some(task)) => self.abandon(task),
                (false, None) => {}
            }
        }
        self.read_for_nobody();
        self.end_when_used();
        if matches!(self.phase, Phase::Asking { .. } | Phase::Killing { .. })
            && self.running.is_empty()
        {
            self.leave();
        }
        self.link.flush();
        self.start_successor();
        if self.link.is_closed() {
            self.closed.get_or_insert_with(Instant::now);
        }
    }

    /// Takes what the agent sent.
    fn hear(&mut self) -> io::Result<()> {
        let (mut greeted, mut over) = (false, false);
        let mut events = Vec::new();
        let Self {
            link,
            clients,
            running,
            callers,
            kernel,
            met,
            ..
        } = self;
        let heard = link.receive(|task, reply, accepted| {
            greeted |= accepted == Accepted::Greeted;
            if let Callers::One(one) = callers {
                one.note(reply);
            }
            if let Reply::Ended { met: told, .. } = reply {
                met.processes |= told.processes;
                met.memory |= told.memory;
                met.disk |= told.disk;
            }
            if kernel.note(task, reply) {
                return;
            }
            let Some(one) = running.get_mut(&task) else {
                return;
            };
            let client = one.client.and_then(|id| clients.get_mut(&id));
            let telling = client.and_then(|client| match &mut client.stage {
                Stage::Running { telling, .. } => Some(telling),
                _ => None,
            });
            if let Reply::Data { stream, bytes } = reply {
                one.owed[*stream as usize] += bytes.len() as u32;
            }
            if let Some(telling) = telling {
                telling.note(reply);
            }
            if accepted == Accepted::Over {
                events.extend(ended(one, reply));
                running.remove(&task);
                over = true;
            }
        });
        // What is not on record has ended all the same.
        let _unwritten = self.write_down(&events).is_err();
        heard.map_err(|violation| io::Error::other(violation.to_string()))?;
        if over && matches!(self.callers, Callers::One(_)) && !self.is_stopping() {
            self.leave();
        }
        let is_seen = self.kernel.is_seen()?;
        if greeted || self.link.ledger.is_greeted() {
            self.look_at_kernel();
        }
        match (&self.phase, is_seen) {
            (Phase::Greeting { .. }, true) if self.link.ledger.is_greeted() => self.stand(),
            _ => Ok(()),
        }
    }

    /// The agent is there, in the kernel of the plan: commands can be started.
    fn stand(&mut self) -> io::Result<()> {
        if self.is_stopping() {
            return Ok(());
        }
        let reserved = match &mut self.callers {
            Callers::One(one) => {
                self.clients.extend(one.serve().map(|client| (0, client)));
                self.next_client = 1;
                self.phase = Phase::Serving;
                return Ok(());
            }
            Callers::Anybody { reserved, .. } => reserved,
        };
        let name = reserved.name().clone();
        // One whose pool was ended is not to be spoken to at all; whoever finds
        // another before it listens looks again.
        if reserved.is_of_pool() {
            reserved.publish(State::Ready).map_err(io::Error::other)?;
        }
        self.listener = Some(reserved.listen().map_err(io::Error::other)?);
        if !reserved.is_of_pool() {
            reserved.publish(State::Running).map_err(io::Error::other)?;
        }
        let event = Event::SandboxStarted {
            name: name.to_string(),
        };
        self.write_down(&[event]).map_err(io::Error::other)?;
        self.phase = Phase::Serving;
        match &mut self.callers {
            Callers::Anybody { announcement, .. } => match announcement.take() {
                Some(announcement) => announcement.stand(&name),
                None => Ok(()),
            },
            Callers::One(_) => Ok(()),
        }
    }

    /// The one command is the run, whose own records say what becomes of it.
    fn write_down(&self, events: &[Event]) -> Result<(), LogError> {
        if events.is_empty() || matches!(self.callers, Callers::One(_)) {
            return Ok(());
        }
        let appended = self.log.append(Some(&self.run), events, SystemTime::now());
        appended.map(|_| ())
    }
}

/// The record of a command that is over, by the last that the agent said.
fn ended(one: &Running, last: &Reply<'_>) -> Option<Event> {
    let What::Exec(exec) = one.what else {
        return None;
    };
    let (code, signal, error) = match *last {
        Reply::Ended {
            status: Status::Exited(code),
            ..
        } => (Some(code), None, String::new()),
        Reply::Ended {
            status: Status::Killed { signal, .. },
            ..
        } => (None, Some(signal), String::new()),
        Reply::Failed { errno, reason } => {
            let reason = stockade_agent::host::shown(reason);
            let error = io::Error::from_raw_os_error(errno);
            (None, None, format!("{reason}: {error}"))
        }
        _ => return None,
    };
    Some(Event::ExecEnded {
        exec,
        code,
        signal,
        error,
        duration_ms: one.since.elapsed().as_millis() as u64,
    })
}
