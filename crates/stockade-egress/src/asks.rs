//! Requests that wait for a person.
//!
//! A destination that no rule names is held while the engine asks, once for
//! all that wait for the same one. What is held is bounded in number and time;
//! a client that goes away takes its question with it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use stockade_policy::network::{Destination, Host};
use tokio::sync::Notify;

use crate::audit::{Audit, printable};
use crate::wire::{Answer, Ask, Entry, FromEgress};

/// Requests that are held at one time.
pub const HELD_MAX: usize = 64;

/// The questions that are open.
#[derive(Default)]
pub struct Asks {
    last: Cell<u64>,
    held: Cell<usize>,
    open: RefCell<HashMap<Destination, Rc<Question>>>,
}

struct Question {
    ask: u64,
    waiting: Cell<usize>,
    answer: RefCell<Option<Answer>>,
    answered: Notify,
}

/// What is asked.
pub struct About<'a> {
    pub destination: &'a Destination,
    pub entry: Entry,
    /// Method and path, when they are known already.
    pub request: Option<String>,
    /// Port from which the sandbox connected.
    pub client_port: u16,
}

/// How holding ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    Answered(Answer),
    TimedOut,
    /// The client closed its connection.
    Abandoned,
    TooMany,
}

impl Asks {
    /// Holds until an answer, `wait`, or the end of `gone`.
    pub async fn hold(
        &self,
        audit: &Audit,
        about: &About<'_>,
        wait: Duration,
        gone: impl Future<Output = ()>,
    ) -> Held {
        if self.held.get() >= HELD_MAX {
            return Held::TooMany;
        }
        let place = self.take_place(audit, about);
        let question = place.question.clone();
        let answered = async {
            loop {
                if let Some(answer) = question.answer.borrow().clone() {
                    return answer;
                }
                question.answered.notified().await;
            }
        };
        tokio::select! {
            biased;
            answer = answered => Held::Answered(answer),
            () = gone => Held::Abandoned,
            () = tokio::time::sleep(wait) => Held::TimedOut,
        }
    }

    /// Passes on the engine's answer. One for a question that is closed
    /// already is nothing.
    pub fn answer(&self, ask: u64, answer: Answer) {
        let mut open = self.open.borrow_mut();
        let found = open
            .iter()
            .find(|(_, question)| question.ask == ask)
            .map(|(destination, _)| destination.clone());
        if let Some(question) = found.and_then(|destination| open.remove(&destination)) {
            question.answer.replace(Some(answer));
            question.answered.notify_waiters();
        }
    }

    fn take_place<'a>(&'a self, audit: &'a Audit, about: &About<'_>) -> Place<'a> {
        self.held.set(self.held.get() + 1);
        let known = self.open.borrow().get(about.destination).cloned();
        let question = known.unwrap_or_else(|| self.ask(audit, about));
        question.waiting.set(question.waiting.get() + 1);
        Place {
            asks: self,
            audit,
            destination: about.destination.clone(),
            question,
        }
    }

    fn ask(&self, audit: &Audit, about: &About<'_>) -> Rc<Question> {
        let ask = self.last.get() + 1;
        self.last.set(ask);
        let question = Rc::new(Question {
            ask,
            waiting: Cell::new(0),
            answer: RefCell::new(None),
            answered: Notify::new(),
        });
        self.open
            .borrow_mut()
            .insert(about.destination.clone(), question.clone());
        audit.send(FromEgress::Ask(Ask {
            ask,
            host: about.destination.host().to_string(),
            port: about.destination.port(),
            domain: registrable(about.destination.host()),
            entry: about.entry,
            request: about.request.as_deref().map(printable),
            client_port: about.client_port,
        }));
        question
    }
}

/// One held request; its drop closes the question when nobody else waits.
struct Place<'a> {
    asks: &'a Asks,
    audit: &'a Audit,
    destination: Destination,
    question: Rc<Question>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.asks.held.set(self.asks.held.get() - 1);
        let left = self.question.waiting.get() - 1;
        self.question.waiting.set(left);
        if left == 0 && self.question.answer.borrow().is_none() {
            self.asks.open.borrow_mut().remove(&self.destination);
            self.audit.send(FromEgress::AskGone {
                ask: self.question.ask,
            });
        }
    }
}

/// The part of a name that somebody registered, by the public suffix list;
/// the host itself where there is none.
fn registrable(host: &Host) -> String {
    match host {
        Host::Name(name) => psl::domain_str(name.as_str())
            .unwrap_or(name.as_str())
            .to_owned(),
        Host::Address(_) => host.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stockade_policy::network::destination::RawHost;

    fn destination() -> Destination {
        Destination::new(RawHost::Text(b"www.a.co.uk"), 443).unwrap()
    }

    fn about(destination: &Destination) -> About<'_> {
        About {
            destination,
            entry: Entry::Connect,
            request: None,
            client_port: 1,
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_same_destination_is_asked_once_and_all_get_the_answer() {
        let (asks, audit) = (Asks::default(), Audit::default());
        let destination = destination();
        let never = std::future::pending::<()>;
        let hold = || async {
            let about = about(&destination);
            asks.hold(&audit, &about, Duration::from_secs(60), never())
                .await
        };
        let answer = async {
            tokio::task::yield_now().await;
            let Some(FromEgress::Ask(ask)) = audit.take() else {
                panic!("nothing was asked");
            };
            assert_eq!(ask.domain, "a.co.uk");
            assert!(audit.take().is_none(), "asked twice");
            asks.answer(ask.ask, Answer::Once);
        };
        let (first, second, ()) = tokio::join!(hold(), hold(), answer);
        assert_eq!(first, Held::Answered(Answer::Once));
        assert_eq!(second, Held::Answered(Answer::Once));
        assert!(audit.take().is_none());
        assert_eq!(asks.held.get(), 0);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_client_that_leaves_takes_its_question_with_it() {
        let (asks, audit) = (Asks::default(), Audit::default());
        let destination = destination();
        let about = about(&destination);
        let gone = tokio::task::yield_now();
        let held = asks
            .hold(&audit, &about, Duration::from_secs(60), gone)
            .await;
        assert_eq!(held, Held::Abandoned);
        assert!(matches!(audit.take(), Some(FromEgress::Ask(_))));
        assert!(matches!(audit.take(), Some(FromEgress::AskGone { .. })));
        assert!(asks.open.borrow().is_empty());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_held_is_bounded() {
        let (asks, audit) = (Asks::default(), Audit::default());
        asks.held.set(HELD_MAX);
        let destination = destination();
        let about = about(&destination);
        let held = asks
            .hold(
                &audit,
                &about,
                Duration::from_secs(60),
                std::future::pending(),
            )
            .await;
        assert_eq!(held, Held::TooMany);
    }
}
