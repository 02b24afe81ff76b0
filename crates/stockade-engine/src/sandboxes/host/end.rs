//! The end of a sandbox that stays: who is told, and what is written down.

use super::super::wire::ToCaller;
use super::{Callers, Host, What};
use crate::events::Event;
use crate::outcome::{EXIT_SIGNAL_BASE, EXIT_TIME_LIMIT, End, LimitHit};

impl Host {
    /// Everything inside is gone: callers learn why, as far as they listen, and
    /// the log does. `failure` is why supervision failed, if it did.
    pub(crate) fn conclude(&mut self, end: &End, failure: Option<&str>) {
        self.listener = None;
        let why = why(end, failure);
        let reason = match (failure, end, &self.reason) {
            // Asked to end, and it did.
            (None, End::Exited(_), Some(asked)) => asked.clone(),
            _ => why,
        };
        let code = match end {
            End::Limit(LimitHit::WallTime) => EXIT_TIME_LIMIT,
            _ => EXIT_SIGNAL_BASE + stockade_sys::signal::KILL,
        };
        for client in self.clients.values_mut() {
            // What the agent said before its end comes first.
            if client.deliver() {
                let reason = &reason;
                client.conclude(&ToCaller::Over { code, reason });
                let _unheard = client.deliver();
            }
        }
        self.clients.clear();
        let mut events: Vec<Event> = std::mem::take(&mut self.running)
            .into_values()
            .filter_map(|one| match one.what {
                What::Exec(exec) => Some(Event::ExecEnded {
                    exec,
                    code: None,
                    signal: None,
                    error: "the sandbox ended".to_owned(),
                    duration_ms: one.since.elapsed().as_millis() as u64,
                }),
                What::Read | What::Write => None,
            })
            .collect();
        if let Callers::Anybody {
            reserved,
            announcement: None,
            ..
        } = &self.callers
        {
            events.push(Event::SandboxEnded {
                name: reserved.name().to_string(),
                reason: reason.clone(),
            });
        }
        self.reason = Some(reason);
        // Nobody is left who could be told.
        let _unwritten = self.write_down(&events).is_err();
    }

    /// Limits that were met in a kernel of the sandbox's own, which holds them.
    pub(crate) fn limits_met(&self) -> Vec<LimitHit> {
        let is_machine = self.own.is_some();
        let of = |met: bool, limit| (is_machine && met).then_some(limit);
        [
            of(self.met.memory, LimitHit::Memory),
            of(self.met.processes, LimitHit::Processes),
            of(self.met.disk, LimitHit::Disk),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Why it ended, once it has.
    pub(crate) fn reason(&self) -> &str {
        self.reason.as_deref().unwrap_or("it ended")
    }
}

fn why(end: &End, failure: Option<&str>) -> String {
    match (failure, end) {
        (Some(failure), _) => failure.to_owned(),
        (None, End::Limit(limit)) => format!("the limit {} was reached", limit.key()),
        (None, End::NotExecuted { errno }) => {
            let error = std::io::Error::from_raw_os_error(*errno);
            format!(
                "the agent cannot be executed: {error}\n  remedy: where it is a matter of \
                 permission, the setting vm.memfd_noexec has to be 0 or 1"
            )
        }
        (None, End::Exited(_) | End::Killed { .. }) => "the agent inside ended".to_owned(),
        (None, End::Lost) => "it was killed from outside".to_owned(),
    }
}
