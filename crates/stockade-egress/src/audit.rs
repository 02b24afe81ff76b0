//! What leaves for the engine: one event for each decision and each end.
//!
//! Events are queued here and sent by the control task, so that a slow engine
//! never stops bytes that were already permitted. The queue is bounded:
//! a decision waits for room and is refused without it, everything else is
//! counted as lost. How events are stored and shown is the engine's affair.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::Duration;

use stockade_policy::network::judge::Denial;
use stockade_policy::plan::Rule;
use tokio::sync::Notify;

use crate::wire::{self, Entry, FromEgress, NetworkEvent, Totals, Verdict};

/// Messages that wait for the engine at most.
pub const QUEUE_MAX: usize = 4096;
/// How long a decision waits for room in the queue.
const ROOM_WAIT: Duration = Duration::from_secs(5);
/// Longest text of an event, in bytes, so that a message always fits.
const TEXT_BYTES_MAX: usize = 2048;

/// The queue to the engine, and what is counted over the whole run.
#[derive(Default)]
pub struct Audit {
    queue: RefCell<VecDeque<FromEgress>>,
    filled: Notify,
    drained: Notify,
    totals: Cell<Totals>,
    /// Connections, names and requests that were permitted.
    allowed: Cell<u64>,
}

/// What was decided upon.
#[derive(Clone, Debug)]
pub struct Subject {
    pub connection: u64,
    pub entry: Entry,
    /// `host:port`, canonical.
    pub destination: String,
    /// Method and path; a query is cut off.
    pub request: Option<String>,
    pub generation: u64,
}

impl Audit {
    /// Records that `rule` permits it. An error when the engine does not read:
    /// what cannot be written down is not done.
    pub async fn allowed(&self, subject: &Subject, rule: &Rule, code: &str) -> Result<(), Denial> {
        if !self.room().await {
            self.lose();
            return Err(unrecorded());
        }
        self.permit(subject, rule, code);
        Ok(())
    }

    /// As [`allowed`](Self::allowed), for callers that cannot wait: a full
    /// queue refuses at once.
    pub fn allowed_now(&self, subject: &Subject, rule: &Rule, code: &str) -> Result<(), Denial> {
        if self.is_full() {
            self.lose();
            return Err(unrecorded());
        }
        self.permit(subject, rule, code);
        Ok(())
    }

    /// Records a denial. It holds whether or not the event finds room.
    pub fn denied(&self, subject: &Subject, denial: &Denial) {
        self.update(|totals| totals.denied += 1);
        self.event(decided(subject, Verdict::Denied, denial));
    }

    /// Records that somebody is asked.
    pub fn held(&self, subject: &Subject, denial: &Denial) {
        self.event(decided(subject, Verdict::Held, denial));
    }

    /// Queues an event; counted as lost without room.
    pub fn event(&self, event: NetworkEvent) {
        self.send(FromEgress::Event(event));
    }

    /// Queues any message; counted as lost without room.
    pub fn send(&self, message: FromEgress) {
        if self.is_full() {
            self.lose();
            return;
        }
        self.push(message);
    }

    /// The oldest message, encoded, once there is one. It stays in the queue
    /// until it was [`sent`](Self::sent).
    pub async fn oldest(&self) -> Vec<u8> {
        loop {
            let encoded = self.queue.borrow().front().map(wire::encode);
            match encoded {
                Some(Ok(bytes)) => return bytes,
                // Texts are cut, so every message fits; one that does not is
                // no reason to stop.
                Some(Err(_)) => {
                    self.sent();
                    self.lose();
                }
                None => self.filled.notified().await,
            }
        }
    }

    /// The oldest message has left.
    pub fn sent(&self) {
        let left = self.queue.borrow_mut().pop_front().is_some();
        if left {
            self.drained.notify_waiters();
        }
    }

    /// Ends when nothing is queued.
    pub async fn emptied(&self) {
        while !self.queue.borrow().is_empty() {
            self.drained.notified().await;
        }
    }

    /// Forgets what is queued; counted as lost.
    pub fn clear(&self) {
        let lost = std::mem::take(&mut *self.queue.borrow_mut()).len() as u64;
        self.update(|totals| totals.events_lost += lost);
    }

    /// Forgets what is queued and all counts: what the self-test did is none
    /// of the sandbox's doing.
    pub fn restart(&self) {
        self.queue.borrow_mut().clear();
        self.totals.set(Totals::default());
        self.allowed.set(0);
    }

    /// The oldest message, if there is one.
    #[cfg(test)]
    pub fn take(&self) -> Option<FromEgress> {
        let message = self.queue.borrow_mut().pop_front();
        self.drained.notify_waiters();
        message
    }

    /// A connection began.
    pub fn opened(&self) {
        self.update(|totals| totals.connections += 1);
    }

    /// A connection ended after so many bytes.
    pub fn closed(&self, uploaded: u64, downloaded: u64) {
        self.update(|totals| {
            totals.uploaded_bytes += uploaded;
            totals.downloaded_bytes += downloaded;
        });
    }

    pub fn totals(&self) -> Totals {
        self.totals.get()
    }

    /// Decisions that permitted something.
    pub fn permitted(&self) -> u64 {
        self.allowed.get()
    }

    fn permit(&self, subject: &Subject, rule: &Rule, code: &str) {
        self.allowed.set(self.allowed.get() + 1);
        self.push(FromEgress::Event(NetworkEvent::Decided {
            connection: subject.connection,
            entry: subject.entry,
            destination: printable(&subject.destination),
            request: subject.request.as_deref().map(redacted),
            verdict: Verdict::Allowed,
            rule: cut(&rule.id),
            origin: cut(&rule.origin),
            generation: subject.generation,
            code: cut(code),
            reason: cut(&rule.reason),
            smallest_grant: None,
        }));
    }

    fn is_full(&self) -> bool {
        self.queue.borrow().len() >= QUEUE_MAX
    }

    async fn room(&self) -> bool {
        if !self.is_full() {
            return true;
        }
        let wait = async {
            while self.is_full() {
                self.drained.notified().await;
            }
        };
        tokio::time::timeout(ROOM_WAIT, wait).await.is_ok()
    }

    fn push(&self, message: FromEgress) {
        self.queue.borrow_mut().push_back(message);
        self.filled.notify_one();
    }

    fn lose(&self) {
        self.update(|totals| totals.events_lost += 1);
    }

    fn update(&self, change: impl FnOnce(&mut Totals)) {
        let mut totals = self.totals.get();
        change(&mut totals);
        self.totals.set(totals);
    }
}

fn decided(subject: &Subject, verdict: Verdict, denial: &Denial) -> NetworkEvent {
    NetworkEvent::Decided {
        connection: subject.connection,
        entry: subject.entry,
        destination: printable(&subject.destination),
        request: subject.request.as_deref().map(redacted),
        verdict,
        rule: cut(&denial.rule),
        origin: cut(&denial.origin),
        generation: subject.generation,
        code: denial.code.to_owned(),
        reason: printable(&denial.reason),
        smallest_grant: denial.smallest_grant.as_deref().map(cut),
    }
}

fn unrecorded() -> Denial {
    Denial {
        code: "rate",
        rule: String::new(),
        origin: String::new(),
        reason: "the log does not take more events at this moment".to_owned(),
        smallest_grant: None,
    }
}

/// A request without what follows `?`: queries carry tokens and personal data.
fn redacted(request: &str) -> String {
    match request.split_once('?') {
        Some((before, _)) => printable(before),
        None => printable(request),
    }
}

/// Control characters become their escapes: texts come from inside and end
/// on terminals.
pub fn printable(text: &str) -> String {
    let mut clean = String::with_capacity(text.len().min(TEXT_BYTES_MAX));
    for character in text.chars() {
        if clean.len() >= TEXT_BYTES_MAX {
            clean.push('…');
            break;
        }
        if character.is_control() {
            clean.extend(character.escape_default());
        } else {
            clean.push(character);
        }
    }
    clean
}

fn cut(text: &str) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    let mut end = TEXT_BYTES_MAX;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(request: Option<&str>) -> Subject {
        Subject {
            connection: 1,
            entry: Entry::Connect,
            destination: "a.test:443".to_owned(),
            request: request.map(str::to_owned),
            generation: 1,
        }
    }

    #[test]
    fn a_query_never_reaches_the_log_and_control_characters_are_escaped() {
        let audit = Audit::default();
        audit.denied(
            &subject(Some("GET /a\u{1b}[2J?token=s3cret")),
            &unrecorded(),
        );
        let Some(FromEgress::Event(NetworkEvent::Decided { request, .. })) = audit.take() else {
            panic!("no event");
        };
        assert_eq!(request.as_deref(), Some("GET /a\\u{1b}[2J"));
    }

    #[test]
    fn a_full_queue_refuses_what_it_cannot_record_and_counts() {
        let audit = Audit::default();
        for _ in 0..QUEUE_MAX {
            audit.denied(&subject(None), &unrecorded());
        }
        let rule = Rule {
            id: "r".to_owned(),
            origin: "o".to_owned(),
            reason: String::new(),
        };
        assert!(audit.allowed_now(&subject(None), &rule, "allowed").is_err());
        audit.denied(&subject(None), &unrecorded());
        assert_eq!(audit.totals().events_lost, 2);
        assert_eq!(audit.totals().denied, QUEUE_MAX as u64 + 1);
        assert!(audit.take().is_some());
        assert!(audit.allowed_now(&subject(None), &rule, "allowed").is_ok());
    }

    #[test]
    fn every_event_fits_a_message() {
        let long = "é".repeat(100_000);
        let audit = Audit::default();
        let mut denial = unrecorded();
        denial.rule.clone_from(&long);
        denial.origin.clone_from(&long);
        denial.reason.clone_from(&long);
        denial.smallest_grant = Some(long.clone());
        let mut subject = subject(Some(&long));
        subject.destination = long;
        audit.denied(&subject, &denial);
        let message = audit.take().unwrap();
        let bytes = postcard::to_allocvec(&message).unwrap();
        assert!(bytes.len() < crate::wire::MESSAGE_BYTES_MAX);
    }
}
