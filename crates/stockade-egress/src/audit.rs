//! What leaves for the engine: one event for each decision and each end.
//!
//! Events are queued here and sent by the control task, so that a slow engine
//! never stops bytes that were already permitted. The queue is bounded:
//! a decision waits for room and is refused without it, everything else is
//! counted as lost. Permitted requests that follow each other closely leave
//! together, because each packet wakes the engine; everything else leaves at
//! once. How events are stored and shown is the engine's affair.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use stockade_policy::network::judge::Denial;
use stockade_policy::plan::Rule;
use tokio::sync::Notify;

use crate::wire::{self, Entry, FromEgress, MESSAGE_BYTES_MAX, NetworkEvent, Totals, Verdict};

/// Messages that wait for the engine at most.
pub const QUEUE_MAX: usize = 4096;
/// Events that leave together at most.
const TOGETHER_MAX: usize = 64;
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

/// The oldest messages, encoded.
pub struct Packet {
    pub bytes: Vec<u8>,
    messages: usize,
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

    /// Ends when something is queued.
    pub async fn filled(&self) {
        while self.queue.borrow().is_empty() {
            self.filled.notified().await;
        }
    }

    /// The oldest message or events, encoded, once there are any. They stay in
    /// the queue until they were [`sent`](Self::sent).
    pub async fn oldest(&self) -> Packet {
        loop {
            if let Some(packet) = self.packet() {
                return packet;
            }
            self.filled.notified().await;
        }
    }

    /// Ends at `until`, or earlier once what is queued must not wait.
    pub async fn gather(&self, until: Instant) {
        if Instant::now() >= until {
            return;
        }
        let pressing = async {
            while !self.is_pressing() {
                self.filled.notified().await;
            }
        };
        // However it ended: now they leave.
        let _late = tokio::time::timeout_at(until.into(), pressing)
            .await
            .is_err();
    }

    /// The packet has left.
    pub fn sent(&self, packet: Packet) {
        let mut queue = self.queue.borrow_mut();
        let left = packet.messages.min(queue.len());
        queue.drain(..left);
        drop(queue);
        self.drained.notify_waiters();
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
        let mut queue = self.queue.borrow_mut();
        let waits = may_wait(&message);
        queue.push_back(message);
        // Whoever sends has been told of those before.
        if !waits || queue.len() == 1 || queue.len() >= TOGETHER_MAX {
            self.filled.notify_one();
        }
    }

    /// As many of the oldest as may leave together; `None` when there are none.
    fn packet(&self) -> Option<Packet> {
        let mut bytes = Vec::new();
        let mut messages = 0;
        let mut queue = self.queue.borrow_mut();
        while let Some(message) = queue.get(messages) {
            let is_event = matches!(message, FromEgress::Event(_));
            if messages > 0 && (!is_event || messages >= TOGETHER_MAX) {
                break;
            }
            match wire::encode(message) {
                Ok(encoded) if bytes.len() + encoded.len() <= MESSAGE_BYTES_MAX => {
                    bytes.extend_from_slice(&encoded);
                    messages += 1;
                }
                Ok(_) => break,
                // Texts are cut, so every message fits; one that does not is
                // no reason to stop.
                Err(_) => {
                    queue.remove(messages);
                    self.lose();
                    continue;
                }
            }
            if !is_event {
                break;
            }
        }
        (messages > 0).then_some(Packet { bytes, messages })
    }

    /// Whether something else is queued than a few events that may wait.
    fn is_pressing(&self) -> bool {
        let queue = self.queue.borrow();
        queue.len() >= TOGETHER_MAX || !queue.iter().all(may_wait)
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

/// Of a connection that is on record already, and nothing out of order.
fn may_wait(message: &FromEgress) -> bool {
    matches!(
        message,
        FromEgress::Event(
            NetworkEvent::Decided {
                request: Some(_),
                verdict: Verdict::Allowed,
                ..
            } | NetworkEvent::CredentialUsed { .. }
        )
    )
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
        let rule = rule();
        assert!(audit.allowed_now(&subject(None), &rule, "allowed").is_err());
        audit.denied(&subject(None), &unrecorded());
        assert_eq!(audit.totals().events_lost, 2);
        assert_eq!(audit.totals().denied, QUEUE_MAX as u64 + 1);
        assert!(audit.take().is_some());
        assert!(audit.allowed_now(&subject(None), &rule, "allowed").is_ok());
    }

    fn rule() -> Rule {
        Rule {
            id: "r".to_owned(),
            origin: "o".to_owned(),
            reason: String::new(),
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn events_leave_together_in_their_order_and_other_messages_alone() {
        let audit = Audit::default();
        let request = |connection| {
            let mut subject = subject(Some("GET /"));
            subject.connection = connection;
            audit.allowed_now(&subject, &rule(), "allowed").unwrap();
        };
        (0..3).for_each(request);
        audit.send(FromEgress::AskGone { ask: 1 });
        (3..TOGETHER_MAX as u64 + 4).for_each(request);
        let mut packets = Vec::new();
        for _ in 0..3 {
            // With so much in the queue nothing is waited for.
            let late = Instant::now() + Duration::from_secs(3600);
            audit.gather(late).await;
            let packet = audit.oldest().await;
            packets.push(wire::decode_packet(&packet.bytes).unwrap());
            audit.sent(packet);
        }
        let lengths: Vec<usize> = packets.iter().map(Vec::len).collect();
        assert_eq!(lengths, [3, 1, TOGETHER_MAX]);
        assert_eq!(packets[1], [FromEgress::AskGone { ask: 1 }]);
        let numbers = packets
            .iter()
            .flatten()
            .filter_map(|message| match message {
                FromEgress::Event(NetworkEvent::Decided { connection, .. }) => Some(*connection),
                _ => None,
            });
        assert!(numbers.eq(0..TOGETHER_MAX as u64 + 3));
        // One is left, and waits for others.
        let soon = Instant::now() + Duration::from_millis(1);
        audit.gather(soon).await;
        assert!(Instant::now() >= soon);
        let last = audit.oldest().await;
        assert_eq!(wire::decode_packet(&last.bytes).unwrap().len(), 1);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn only_permitted_requests_wait_for_each_other() {
        let waits = |audit: &Audit| !audit.is_pressing();
        let audit = Audit::default();
        let request = subject(Some("GET /"));
        audit.allowed_now(&request, &rule(), "allowed").unwrap();
        audit.event(NetworkEvent::CredentialUsed {
            connection: 1,
            credential: "c".to_owned(),
            destination: "a.test:443".to_owned(),
        });
        assert!(waits(&audit));
        audit.denied(&request, &unrecorded());
        assert!(!waits(&audit));
        audit.clear();
        audit
            .allowed_now(&subject(None), &rule(), "allowed")
            .unwrap();
        assert!(!waits(&audit));
        audit.clear();
        audit.event(NetworkEvent::Alert {
            connection: 1,
            code: "foreign-credential".to_owned(),
            destination: "a.test:443".to_owned(),
            detail: String::new(),
        });
        assert!(!waits(&audit));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_packet_of_the_longest_events_is_not_too_long() {
        let long = "\u{1b}".repeat(TEXT_BYTES_MAX);
        let audit = Audit::default();
        let mut denial = unrecorded();
        denial.reason.clone_from(&long);
        denial.smallest_grant = Some(long.clone());
        for _ in 0..TOGETHER_MAX {
            audit.denied(&subject(Some(&long)), &denial);
        }
        let mut left = TOGETHER_MAX;
        while left > 0 {
            let packet = audit.oldest().await;
            assert!(packet.bytes.len() <= MESSAGE_BYTES_MAX);
            left -= wire::decode_packet(&packet.bytes).unwrap().len();
            audit.sent(packet);
        }
        assert_eq!(audit.totals().events_lost, 0);
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
