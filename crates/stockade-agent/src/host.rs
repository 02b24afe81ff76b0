//! The host's side: what it may believe of an agent, and that is nothing.
//!
//! A hostile command may have taken the agent's place. So each frame is
//! checked against what was asked: a task that the host did not begin, a
//! stream without credit, an end that was told already is a [`Violation`], and
//! whoever holds the session ends the sandbox. No path and no number from
//! inside means anything outside.

use std::collections::BTreeMap;

use crate::wire::{
    REASON_BYTES_MAX, Reply, Stream, TASKS_MAX, VERSION, WINDOW_IN_BYTES, WINDOW_OUT_BYTES,
    WireError,
};

/// What a task is, as far as its replies differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A command; `has_error` unless both its outputs are one stream.
    Exec { has_error: bool },
    /// A file, directory or watch that is read.
    Read,
    /// A file that is written.
    Write,
    /// The clock that is set: it is done or failed, without having started.
    Clock,
}

/// Why an agent is not believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    Wire(WireError),
    /// It speaks another version, or refused this one.
    Refused(String),
    /// It said something that does not follow from what it was asked.
    OutOfTurn(&'static str),
}

impl core::fmt::Display for Violation {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Wire(error) => error.fmt(formatter),
            Self::Refused(reason) => write!(formatter, "it refuses: {reason}"),
            Self::OutOfTurn(what) => write!(formatter, "{what}, which was not its turn"),
        }
    }
}

impl std::error::Error for Violation {}

impl From<WireError> for Violation {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

/// What an acceptable reply means for its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// The session has begun.
    Greeted,
    /// The task goes on.
    On,
    /// This was its last word.
    Over,
}

/// What the host knows of its tasks.
#[derive(Debug, Default)]
pub struct Ledger {
    greeted: bool,
    last: u32,
    tasks: BTreeMap<u32, Account>,
}

#[derive(Debug)]
struct Account {
    kind: Kind,
    started: bool,
    /// Streams that may still come: output, error.
    open: [bool; 2],
    /// What the agent may still send of each.
    credit: [u32; 2],
    /// What the host may still send.
    input: u32,
}

impl Ledger {
    pub fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// How many tasks there are.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The id of a new task; `None` when there are as many as there can be.
    pub fn begin(&mut self, kind: Kind) -> Option<u32> {
        if self.tasks.len() >= TASKS_MAX {
            return None;
        }
        loop {
            self.last = self.last.checked_add(1).unwrap_or(1);
            if !self.tasks.contains_key(&self.last) {
                break;
            }
        }
        let open = match kind {
            Kind::Exec { has_error } => [true, has_error],
            Kind::Read => [true, false],
            Kind::Write | Kind::Clock => [false, false],
        };
        let account = Account {
            kind,
            started: kind == Kind::Clock,
            open,
            credit: [WINDOW_OUT_BYTES; 2],
            input: WINDOW_IN_BYTES,
        };
        self.tasks.insert(self.last, account);
        Some(self.last)
    }

    /// How many bytes a task can be sent now.
    pub fn may_send(&self, task: u32) -> usize {
        self.tasks.get(&task).map_or(0, |one| one.input as usize)
    }

    /// Counts what a task is sent; `false` when it may not be.
    pub fn send(&mut self, task: u32, length: usize) -> bool {
        let Some(account) = self.tasks.get_mut(&task) else {
            return false;
        };
        let left = u32::try_from(length).map(|length| account.input.checked_sub(length));
        match left {
            Ok(Some(left)) => {
                account.input = left;
                true
            }
            _ => false,
        }
    }

    /// Counts credit that a stream is given; `false` when it would be more
    /// than the window, or there is no such task.
    pub fn grant(&mut self, task: u32, stream: Stream, bytes: u32) -> bool {
        let Some(account) = self.tasks.get_mut(&task) else {
            return false;
        };
        let credit = &mut account.credit[stream as usize];
        match credit.checked_add(bytes) {
            Some(sum) if sum <= WINDOW_OUT_BYTES => {
                *credit = sum;
                true
            }
            _ => false,
        }
    }

    /// Checks a reply, and counts what it says.
    pub fn accept(&mut self, task: u32, reply: &Reply<'_>) -> Result<Accepted, Violation> {
        if let Reply::Refused { reason } = reply {
            return Err(Violation::Refused(shown(reason)));
        }
        if !self.greeted {
            return match reply {
                Reply::Hello { version: VERSION } if task == 0 => {
                    self.greeted = true;
                    Ok(Accepted::Greeted)
                }
                Reply::Hello { version } => Err(Violation::Refused(format!(
                    "it speaks version {version}, not {VERSION}"
                ))),
                _ => Err(Violation::OutOfTurn("it spoke before it said hello")),
            };
        }
        let account = self.tasks.get_mut(&task);
        let account = account.ok_or(Violation::OutOfTurn("it spoke of an unknown task"))?;
        let accepted = account.accept(reply)?;
        if accepted == Accepted::Over {
            self.tasks.remove(&task);
        }
        Ok(accepted)
    }
}

impl Account {
    fn accept(&mut self, reply: &Reply<'_>) -> Result<Accepted, Violation> {
        let is_exec = matches!(self.kind, Kind::Exec { .. });
        match reply {
            Reply::Started { .. } if !self.started => self.started = true,
            Reply::Failed { reason, .. }
                if (!self.started || !is_exec) && reason.len() <= REASON_BYTES_MAX =>
            {
                return Ok(Accepted::Over);
            }
            Reply::Data { stream, bytes } if self.started && self.open[*stream as usize] => {
                let credit = &mut self.credit[*stream as usize];
                let left = u32::try_from(bytes.len())
                    .ok()
                    .and_then(|length| credit.checked_sub(length));
                *credit = left.ok_or(Violation::OutOfTurn("it sent more than it may"))?;
            }
            Reply::End { stream } if is_exec && self.started && self.open[*stream as usize] => {
                self.open[*stream as usize] = false;
            }
            Reply::Credit { bytes } if !matches!(self.kind, Kind::Read | Kind::Clock) => {
                let sum = self.input.checked_add(*bytes);
                self.input = sum
                    .filter(|&sum| sum <= WINDOW_IN_BYTES)
                    .ok_or(Violation::OutOfTurn("it gave more credit than there is"))?;
            }
            Reply::Stopped { .. } if is_exec && self.started => {}
            Reply::Ended { .. } if is_exec && self.started && self.open == [false; 2] => {
                return Ok(Accepted::Over);
            }
            Reply::Done if !is_exec && self.started => return Ok(Accepted::Over),
            _ => return Err(Violation::OutOfTurn("it spoke of something else")),
        }
        Ok(Accepted::On)
    }
}

/// A reason as it can be shown: short, and without what a terminal obeys.
pub fn shown(reason: &str) -> String {
    let printable = |c: char| if c.is_control() { '?' } else { c };
    reason
        .chars()
        .take(REASON_BYTES_MAX)
        .map(printable)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Met, Status};

    const HELLO: Reply<'_> = Reply::Hello { version: VERSION };

    fn greeted() -> Ledger {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.accept(0, &HELLO), Ok(Accepted::Greeted));
        ledger
    }

    #[test]
    fn nothing_is_believed_before_hello_and_no_other_version_at_all() {
        let mut ledger = Ledger::default();
        let task = ledger.begin(Kind::Read).unwrap();
        assert!(ledger.accept(task, &Reply::Done).is_err());
        let other = Reply::Hello {
            version: VERSION + 1,
        };
        assert!(matches!(
            ledger.accept(0, &other),
            Err(Violation::Refused(_))
        ));
        assert!(greeted().accept(0, &HELLO).is_err());
    }

    #[test]
    fn a_command_goes_its_way_and_no_other() {
        let mut ledger = greeted();
        let task = ledger.begin(Kind::Exec { has_error: true }).unwrap();
        let data = |stream| Reply::Data {
            stream,
            bytes: b"x",
        };
        let end = |stream| Reply::End { stream };
        let ended = Reply::Ended {
            status: Status::Exited(0),
            met: Met::NONE,
        };
        assert!(ledger.accept(task, &data(Stream::Output)).is_err());
        assert!(
            ledger
                .accept(task + 1, &Reply::Started { process: 1 })
                .is_err()
        );
        ledger.accept(task, &Reply::Started { process: 1 }).unwrap();
        assert!(ledger.accept(task, &Reply::Started { process: 1 }).is_err());
        ledger.accept(task, &data(Stream::Output)).unwrap();
        ledger.accept(task, &end(Stream::Output)).unwrap();
        assert!(ledger.accept(task, &data(Stream::Output)).is_err());
        assert!(ledger.accept(task, &ended).is_err());
        assert!(ledger.accept(task, &Reply::Done).is_err());
        ledger.accept(task, &end(Stream::Error)).unwrap();
        assert_eq!(ledger.accept(task, &ended), Ok(Accepted::Over));
        assert!(ledger.accept(task, &ended).is_err());
    }

    #[test]
    fn a_clock_is_set_or_not_and_says_nothing_else() {
        let mut ledger = greeted();
        let clock = |ledger: &mut Ledger| ledger.begin(Kind::Clock).unwrap();
        let task = clock(&mut ledger);
        for reply in [
            Reply::Started { process: 0 },
            Reply::Credit { bytes: 0 },
            Reply::End {
                stream: Stream::Output,
            },
        ] {
            assert!(ledger.accept(task, &reply).is_err(), "{reply:?}");
        }
        assert_eq!(ledger.accept(task, &Reply::Done), Ok(Accepted::Over));
        let task = clock(&mut ledger);
        let failed = Reply::Failed {
            errno: 1,
            reason: "",
        };
        assert_eq!(ledger.accept(task, &failed), Ok(Accepted::Over));
    }

    #[test]
    fn credit_bounds_both_directions() {
        let mut ledger = greeted();
        let task = ledger.begin(Kind::Exec { has_error: false }).unwrap();
        ledger.accept(task, &Reply::Started { process: 1 }).unwrap();
        let chunk = vec![0; 16 * 1024];
        let data = Reply::Data {
            stream: Stream::Output,
            bytes: &chunk,
        };
        for _ in 0..4 {
            ledger.accept(task, &data).unwrap();
        }
        assert!(ledger.accept(task, &data).is_err());
        assert!(ledger.grant(task, Stream::Output, WINDOW_OUT_BYTES));
        assert!(!ledger.grant(task, Stream::Output, 1));
        assert!(ledger.send(task, WINDOW_IN_BYTES as usize));
        assert!(!ledger.send(task, 1));
        assert!(
            ledger
                .accept(task, &Reply::Credit { bytes: u32::MAX })
                .is_err()
        );
        assert!(!ledger.grant(task + 1, Stream::Output, 1));
    }

    #[test]
    fn there_are_so_many_tasks_and_their_ids_differ() {
        let mut ledger = greeted();
        let ids: std::collections::BTreeSet<_> = (0..TASKS_MAX)
            .filter_map(|_| ledger.begin(Kind::Write))
            .collect();
        assert_eq!(ids.len(), TASKS_MAX);
        assert_eq!(ledger.begin(Kind::Write), None);
    }

    #[test]
    fn a_reason_moves_no_cursor() {
        assert_eq!(shown("a\x1b[2Jb"), "a?[2Jb");
        assert_eq!(shown(&"x".repeat(1000)).len(), REASON_BYTES_MAX);
    }
}
