//! The clock of a machine: it was right when the machine began, and does not go
//! on where the machine was paused or the host slept.
//!
//! It is set before each command and now and then while one runs; a machine in
//! which nothing runs costs nothing and has its clock set when something does.
//! The agent leaves a clock alone that is right.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use stockade_agent::host::Kind;
use stockade_agent::wire::Request;

use super::Host;

/// How often it is set while a command runs.
const PERIOD: Duration = Duration::from_secs(5);

/// When it was set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    last: Option<Instant>,
}

impl Host {
    /// When it is to be set again.
    pub(super) fn clock_due(&self) -> Option<Instant> {
        let last = self.clock?.last?;
        (self.commands() > 0 && !self.is_stopping()).then(|| last + PERIOD)
    }

    /// Has it set, where that is the host's business.
    pub(super) fn set_clock(&mut self) {
        let Some(clock) = &mut self.clock else {
            return;
        };
        clock.last = Some(Instant::now());
        // Before 1970 nothing is set.
        let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) else {
            return;
        };
        // Where there is no task left, it waits for the next time.
        if let Some(task) = self.link.ledger.begin(Kind::Clock) {
            let request = Request::SetClock {
                seconds: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
                nanoseconds: now.subsec_nanos(),
            };
            self.link.send(task, &request);
        }
    }
}
