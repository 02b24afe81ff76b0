//! What callers ask of a sandbox, and what may be passed on of it.

use std::os::fd::AsFd;
use std::time::Instant;

use rustix::net::{SocketFlags, accept_with};
use stockade_agent::host::Kind;
use stockade_agent::wire::{
    CHUNK_BYTES_MAX, ExecSpec, FileRequest, Request, SPEC_BYTES_MAX, Stream, TASKS_MAX,
    WINDOW_OUT_BYTES, decode, strings,
};
use stockade_policy::path::printable;
use stockade_sys::rustix;

use super::super::client::{Client, Stage, Telling};
use super::super::wire::{FromCaller, Outbox, ToCaller};
use super::{CLIENTS_MAX, Callers, GRACE, Host, Running, What};
use crate::control::is_own;
use crate::events::Event;

/// More than the id of a run takes.
const RUN_ID_BYTES: usize = 64;
/// Highest number of a signal (signal(7)).
const SIGNAL_MAX: i32 = 64;

impl Host {
    pub(super) fn accept(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = accept_with(listener, flags) else {
            return;
        };
        if !is_own(socket.as_fd()) {
            return;
        }
        let mut client = Client::new(socket);
        if self.clients.len() >= CLIENTS_MAX {
            let reason = "too many callers wait for it at once";
            client.conclude(&ToCaller::Refused { reason });
            let _unheard = client.deliver();
            return;
        }
        self.clients.insert(self.next_client, client);
        self.next_client += 1;
    }

    /// Nobody is behind a connection any more.
    pub(super) fn let_go(&mut self, id: u64) {
        if let Some(client) = self.clients.remove(&id)
            && let Stage::Running { task, .. } = client.stage
        {
            self.abandon(task);
        }
    }

    /// Nobody waits for a command any more: it is hung up, and killed if it
    /// goes on.
    pub(super) fn abandon(&mut self, task: u32) {
        let Some(one) = self.running.get_mut(&task) else {
            return;
        };
        one.client = None;
        if let What::Exec(_) = one.what {
            one.kill_at = Some(Instant::now() + GRACE);
        }
        self.link.send(task, &Request::Cancel);
    }

    /// What commands say that nobody waits for is dropped, and the credit for
    /// it given back; else they could not say their last. Not for each few
    /// bytes, and not to an agent that does not listen: it would choose how
    /// much waits for it.
    pub(super) fn read_for_nobody(&mut self) {
        let mut due = Vec::new();
        for (&task, one) in &mut self.running {
            if one.client.is_some() || !self.link.has_room() {
                continue;
            }
            for (owed, stream) in one.owed.iter_mut().zip([Stream::Output, Stream::Error]) {
                if *owed >= WINDOW_OUT_BYTES / 4 {
                    due.push((task, stream, std::mem::take(owed)));
                }
            }
        }
        for (task, stream, bytes) in due {
            self.grant(task, stream, bytes);
        }
    }

    fn grant(&mut self, task: u32, stream: Stream, bytes: u32) {
        if self.link.ledger.grant(task, stream, bytes) {
            self.link.send(task, &Request::Credit { stream, bytes });
        }
    }

    /// Does what a caller asks; `false` when it asks what nobody may.
    pub(super) fn obey(&mut self, id: u64, client: &mut Client) -> bool {
        while self.link.has_room() && client.is_heard() {
            let Client {
                inbox,
                outbox,
                stage,
                ..
            } = client;
            let length = match inbox.first() {
                Ok(Some(frame)) => match decode(frame.body) {
                    Ok(message) if self.obey_one(id, stage, outbox, &message) => frame.length,
                    _ => return false,
                },
                Ok(None) => return true,
                Err(_) => return false,
            };
            inbox.consume(length);
        }
        true
    }

    fn obey_one(
        &mut self,
        id: u64,
        stage: &mut Stage,
        outbox: &mut Outbox,
        message: &FromCaller<'_>,
    ) -> bool {
        let answer = match (&mut *stage, message) {
            (Stage::New(spec), FromCaller::Take) if spec.is_empty() => {
                let Some(answer) = self.take(id) else {
                    return false;
                };
                // Its command follows.
                if answer == ToCaller::NotReady {
                    *stage = Stage::Closing;
                }
                return outbox.push(0, &answer, RUN_ID_BYTES).is_ok();
            }
            (Stage::New(_), FromCaller::Status) => ToCaller::Status {
                commands: self.commands() as u32,
                stopping: self.is_stopping(),
            },
            (Stage::New(_), FromCaller::Stop) => {
                self.ask_to_end("stopped by stockade stop");
                ToCaller::Stopping
            }
            (Stage::New(spec), FromCaller::Task(Request::Part(bytes) | Request::Exec(bytes))) => {
                if spec.len() + bytes.len() > SPEC_BYTES_MAX {
                    return false;
                }
                spec.extend_from_slice(bytes);
                if matches!(message, FromCaller::Task(Request::Part(_))) {
                    return true;
                }
                let spec = std::mem::take(spec);
                return begin(self.execute(id, &spec), stage, outbox);
            }
            (Stage::New(spec), FromCaller::Task(Request::File(request))) if spec.is_empty() => {
                return begin(self.begin_file(id, request), stage, outbox);
            }
            (Stage::Running { task, .. }, FromCaller::Task(request)) => {
                return self.pass_on(*task, request);
            }
            _ => return false,
        };
        *stage = Stage::Closing;
        outbox.push(0, &answer, 0).is_ok()
    }

    /// Has a command started, and is written down before it is. The error is
    /// what the caller is told.
    fn execute(&mut self, id: u64, bytes: &[u8]) -> Result<Stage, String> {
        if self.is_stopping() {
            return Err("the sandbox is being stopped".to_owned());
        }
        self.may_execute(id)?;
        let spec = decode::<ExecSpec<'_>>(bytes).ok();
        let spec = spec.filter(|spec| spec.is_sound() && spec.user.is_none());
        let spec = spec.ok_or("the command or its variables are malformed")?;
        if self.link.ledger.len() >= TASKS_MAX {
            return Err(too_many());
        }
        let complete = self.own.as_ref().map(|own| own.complete(&spec));
        let complete = match complete {
            Some(complete) => Some(complete.ok_or("the command and its variables are too long")?),
            None => None,
        };
        let exec = self.execs + 1;
        let command = strings(spec.arguments).map(printable).collect();
        self.write_down(&[Event::ExecStarted { exec, command }])
            .map_err(|error| error.to_string())?;
        self.execs = exec;
        let has_error = !spec.merged && spec.terminal.is_none();
        self.set_clock();
        if let Callers::One(one) = &mut self.callers {
            one.begin(has_error);
        }
        let task = self.link.ledger.begin(Kind::Exec { has_error });
        let task = task.ok_or_else(too_many)?;
        let running = Running {
            what: What::Exec(exec),
            since: Instant::now(),
            client: Some(id),
            owed: [0; 2],
            kill_at: None,
        };
        self.running.insert(task, running);
        self.note_use(id);
        self.link
            .execute(task, complete.as_deref().unwrap_or(bytes));
        let telling = Telling::new(has_error);
        Ok(Stage::Running { task, telling })
    }

    /// Has a file read, written, listed, made or described. The error is what
    /// the caller is told.
    fn begin_file(&mut self, id: u64, request: &FileRequest<'_>) -> Result<Stage, String> {
        if self.is_stopping() {
            return Err("the sandbox is being stopped".to_owned());
        }
        self.may_touch_files()?;
        if !request.is_sound() {
            return Err("the path is malformed".to_owned());
        }
        let (what, kind) = match request {
            FileRequest::Read { .. } | FileRequest::List { .. } | FileRequest::Watch { .. } => {
                (What::Read, Kind::Read)
            }
            _ => (What::Write, Kind::Write),
        };
        let task = self.link.ledger.begin(kind).ok_or_else(too_many)?;
        let running = Running {
            what,
            since: Instant::now(),
            client: Some(id),
            owed: [0; 2],
            kill_at: None,
        };
        self.running.insert(task, running);
        self.link.send(task, &Request::File(*request));
        let telling = Telling::of_file(what == What::Read);
        Ok(Stage::Running { task, telling })
    }

    /// Passes on what a caller says of its command or file; `false` when it may
    /// not.
    fn pass_on(&mut self, task: u32, request: &Request<'_>) -> bool {
        // It ended meanwhile.
        let Some(one) = self.running.get_mut(&task) else {
            return true;
        };
        let ledger = &mut self.link.ledger;
        let is_command = matches!(one.what, What::Exec(_));
        let may = match request {
            Request::Data(_) | Request::End if one.what == What::Read => false,
            Request::Data(bytes) => {
                bytes.len() <= CHUNK_BYTES_MAX && ledger.send(task, bytes.len())
            }
            Request::Credit { stream, bytes } => {
                let owed = &mut one.owed[*stream as usize];
                let is_owed = *bytes > 0 && *bytes <= *owed;
                if is_owed {
                    *owed -= bytes;
                }
                is_owed && ledger.grant(task, *stream, *bytes)
            }
            Request::Signal { number, .. } => is_command && (1..=SIGNAL_MAX).contains(number),
            Request::Resize { .. } => is_command,
            Request::End => true,
            _ => false,
        };
        if may {
            self.link.send(task, request);
        }
        may
    }
}

/// Takes note of what was begun, or says why it was not; `false` when that cannot
/// be said.
fn begin(begun: Result<Stage, String>, stage: &mut Stage, outbox: &mut Outbox) -> bool {
    match begun {
        Ok(running) => {
            *stage = running;
            true
        }
        Err(reason) => {
            *stage = Stage::Closing;
            let message = ToCaller::Refused { reason: &reason };
            outbox.push(0, &message, reason.len()).is_ok()
        }
    }
}

fn too_many() -> String {
    format!(
        "{TASKS_MAX} commands run in it already\n  remedy: wait until one ends, or start another \
         sandbox"
    )
}
