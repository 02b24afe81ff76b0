//! One permitted connection of the sandbox: it dials, judges what is asked on
//! it, counts, and records its end whatever ends it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use stockade_policy::network::Destination;
use stockade_policy::network::judge::{
    Denial, GitOperation, GitPermit, Judge, Passage, RequestHead, RequestPermit, Ruling,
};
use stockade_policy::network::rules::{Budget, NetworkRule};
use stockade_policy::plan::Rule;
use tokio::net::TcpStream;

use super::{Context, now_unix};
use crate::audit::Subject;
use crate::budget::Charge;
use crate::dial;
use crate::wire::{Entry, NetworkEvent};

/// Counts of one conversation.
#[derive(Debug, Default)]
pub struct Counters {
    pub uploaded: Cell<u64>,
    pub downloaded: Cell<u64>,
    pub requests: Cell<u64>,
    pub scrubbed: Cell<u64>,
    pub credentials: RefCell<Vec<String>>,
}

/// One permitted connection of the sandbox. Its end is recorded on drop.
pub struct Conversation {
    pub context: Rc<Context>,
    pub id: u64,
    pub entry: Entry,
    pub client_port: u16,
    pub destination: Destination,
    pub passage: Passage,
    /// Of the rules when it began.
    pub generation: u64,
    pub counters: Rc<Counters>,
    pub(super) basis: Basis,
    pub(super) charge: Charge,
    pub(super) started: Instant,
}

/// What a conversation rests on.
#[derive(Clone, Debug)]
pub(super) enum Basis {
    /// The rules in force.
    Rules,
    /// An answer to a question, for this conversation only.
    Answer(Box<NetworkRule>),
    /// An offer of the plan: a port of the host or a published port.
    Offer(Rule),
}

impl Conversation {
    /// Opens the connection outside: resolved, every address judged, dialled.
    pub async fn dial(&self) -> Result<TcpStream, Denial> {
        let judge = self.judge();
        let resolver = self.context.resolver.borrow().clone();
        let dialled = async {
            let vetted = resolver
                .vet(&judge, &self.destination, &self.passage)
                .await?;
            if let Some(grant) = vetted.learned_private() {
                self.learned_private(grant)?;
            }
            dial::connect(&vetted).await
        };
        dialled
            .await
            .inspect_err(|denial| self.denied(None, denial))
    }

    /// Judges and records one request, and counts it against its budgets.
    /// `line` is the method and the path for the log.
    pub fn judge_request(
        &self,
        head: &RequestHead<'_>,
        line: &str,
    ) -> Result<RequestPermit, Denial> {
        let ruling = self.judge().request(&self.destination, head, now_unix());
        let permit = match ruling {
            Ruling::Permit(permit) => permit,
            Ruling::Denied(denial) | Ruling::Unknown(denial) => {
                self.denied(Some(line), &denial);
                return Err(denial);
            }
        };
        self.count_request(line, &permit.rule, &permit.budgets)?;
        Ok(permit)
    }

    /// Judges and records one git operation; `line` describes it for the log.
    pub fn judge_git(&self, operation: &GitOperation<'_>, line: &str) -> Result<GitPermit, Denial> {
        match self.judge().git(&self.destination, operation, now_unix()) {
            Ruling::Permit(permit) => {
                self.count_request(line, &permit.rule, &[])?;
                Ok(permit)
            }
            Ruling::Denied(denial) | Ruling::Unknown(denial) => {
                self.denied(Some(line), &denial);
                Err(denial)
            }
        }
    }

    /// Counts the connection itself against the requests a minute: nobody sees
    /// what is asked on it.
    pub fn count_unseen(&self) -> Result<(), Denial> {
        let counted = self.context.budgets.request(&self.charge, &[]);
        counted.inspect_err(|denial| self.denied(None, denial))
    }

    fn count_request(
        &self,
        line: &str,
        rule: &Rule,
        budgets: &[(String, Budget)],
    ) -> Result<(), Denial> {
        let counted = self
            .context
            .budgets
            .request(&self.charge, budgets)
            .and_then(|()| {
                let subject = self.subject(Some(line));
                self.context.audit.allowed_now(&subject, rule, "allowed")
            });
        if let Err(denial) = &counted {
            self.denied(Some(line), denial);
        }
        let requests = &self.counters.requests;
        requests.set(requests.get() + 1);
        counted
    }

    /// Records that something of this conversation was refused.
    pub fn denied(&self, request: Option<&str>, denial: &Denial) {
        self.context.audit.denied(&self.subject(request), denial);
    }

    /// Records what no honest program does.
    pub fn alert(&self, code: &str, detail: &str) {
        self.context.audit.event(NetworkEvent::Alert {
            connection: self.id,
            code: code.to_owned(),
            destination: self.destination.to_string(),
            detail: crate::audit::printable(detail),
        });
    }

    /// Records that a credential was attached.
    pub fn credential_used(&self, name: &str) {
        let mut used = self.counters.credentials.borrow_mut();
        if !used.iter().any(|one| one == name) {
            used.push(name.to_owned());
        }
        self.context.audit.event(NetworkEvent::CredentialUsed {
            connection: self.id,
            credential: name.to_owned(),
            destination: self.destination.to_string(),
        });
    }

    /// Counts bytes that go out. After an error nothing more may go.
    pub fn uploaded(&self, bytes: u64) -> Result<(), Denial> {
        let cell = &self.counters.uploaded;
        cell.set(cell.get() + bytes);
        self.charge.uploaded(bytes)
    }

    /// Counts bytes that come in. After an error nothing more may come.
    pub fn downloaded(&self, bytes: u64) -> Result<(), Denial> {
        let cell = &self.counters.downloaded;
        cell.set(cell.get() + bytes);
        self.charge.downloaded(bytes)
    }

    /// The rules that this conversation is judged by at this moment.
    pub fn judge(&self) -> Rc<Judge> {
        let judge = self.context.judge();
        match &self.basis {
            Basis::Answer(rule) => self.context.judge_with(rule).map_or(judge, Rc::new),
            _ => judge,
        }
    }

    /// Ends once the rules in force no longer permit this conversation, or its
    /// rule has expired.
    pub async fn revoked(&self) {
        let mut generation = self.context.generation.subscribe();
        loop {
            if !self.is_permitted() {
                return;
            }
            let expiry = self.passage.expires_unix.unwrap_or(u64::MAX);
            // Woken once in an hour at least: a suspended machine's clock of
            // sleeps stands still while the calendar goes on.
            let left = expiry.saturating_sub(now_unix()).clamp(1, 3600);
            tokio::select! {
                changed = generation.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(Duration::from_secs(left)) => {}
            }
        }
    }

    fn is_permitted(&self) -> bool {
        match &self.basis {
            Basis::Offer(rule) => self.context.is_offered(rule),
            _ => match self.judge().connection(&self.destination, now_unix()) {
                // The strictness of TLS was settled when it began, and a
                // WebSocket may be open that is not to be any more (row 51).
                Ruling::Permit(passage) => {
                    passage.tls == self.passage.tls
                        && (passage.websocket || !self.passage.websocket)
                }
                _ => false,
            },
        }
    }

    fn learned_private(&self, grant: &str) -> Result<(), Denial> {
        let rule = Rule {
            reason: grant.to_owned(),
            ..self.passage.rule.clone()
        };
        let subject = self.subject(None);
        self.context
            .audit
            .allowed_now(&subject, &rule, "learned-private")
    }

    fn subject(&self, request: Option<&str>) -> Subject {
        Subject {
            connection: self.id,
            entry: self.entry,
            destination: self.destination.to_string(),
            request: request.map(str::to_owned),
            generation: self.context.generation(),
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        let counters = &self.counters;
        let (uploaded, downloaded) = (counters.uploaded.get(), counters.downloaded.get());
        self.context.audit.closed(uploaded, downloaded);
        self.context.audit.event(NetworkEvent::Closed {
            connection: self.id,
            destination: self.destination.to_string(),
            rule: self.passage.rule.id.clone(),
            generation: self.generation,
            uploaded_bytes: uploaded,
            downloaded_bytes: downloaded,
            duration_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            requests: counters.requests.get(),
            credentials: counters.credentials.borrow().clone(),
            scrubbed: counters.scrubbed.get(),
        });
    }
}
