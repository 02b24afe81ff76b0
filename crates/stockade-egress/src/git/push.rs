//! Holds a push back until all of it is known to be permitted.
//!
//! The commands are judged as soon as they are there; the pack is counted,
//! read object by object and searched for secrets as it comes. Only then may
//! anything be sent on: a server keeps what it was sent, whatever it answers.
//!
//! Whether a moved reference still contains what it held is read from the
//! commits in the pack. A move that they do not show to be a fast-forward
//! (forced, or to commits that the server has already) counts as a deletion.

use std::io::{self, Write as _};

use flate2::write::GzDecoder;
use stockade_policy::network::judge::{Denial, GitAction, GitOperation, GitPermit, RefUpdate};
use stockade_policy::plan::Rule;

use super::commands::{Change, Collector, Commands, Update};
use super::needles::Needles;
use super::pack::{Finding, INFLATION_MAX, Scanner};
use super::report;
use super::spool::{Room, Spool};

/// Largest pack where the rule does not say another size.
pub const PACK_BYTES_MAX: u64 = 100 * 1024 * 1024;

/// How much of a refused push is still read, so that the client hears why
/// instead of finding the connection closed.
pub const DRAIN_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Asks the policy.
pub type Judgement<'a> = dyn Fn(&GitOperation<'_>) -> Result<GitPermit, Denial> + 'a;

/// What one push is held to.
pub struct Settings {
    /// Canonical.
    pub repository: String,
    pub transport: Transport,
    pub coding: Coding,
    /// Secrets that no push may carry.
    pub needles: Needles,
    pub room: Room,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Https,
    Ssh,
}

/// `Content-Encoding` of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    Identity,
    Gzip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    More,
    /// The push is complete, or no more of it is of interest.
    Complete,
}

/// A push that may be sent on as it is, without a `Content-Encoding`.
#[derive(Debug)]
pub struct Vetted {
    pub permit: GitPermit,
    pub body: Spool,
}

/// A push of which nothing is sent on.
#[derive(Debug)]
pub struct Refused {
    pub denial: Denial,
    /// What the server would answer in such a case, from which git prints
    /// the reason; `None` when the client cannot be told that way.
    pub answer: Option<Vec<u8>>,
}

/// Reads one push.
pub struct PushFilter<'a> {
    settings: Settings,
    judge: Box<Judgement<'a>>,
    gzip: Option<GzDecoder<Vec<u8>>>,
    state: State,
    drained: u64,
}

enum State {
    Commands(Collector),
    Pack(Box<Held>),
    Refused(Box<Refusal>),
}

struct Held {
    commands: Commands,
    permit: GitPermit,
    /// `None` where no pack follows.
    scanner: Option<Scanner>,
    body: Spool,
    body_bytes_max: u64,
    pack_bytes_max: u64,
}

struct Refusal {
    denial: Denial,
    commands: Option<Commands>,
    /// Finds the end of the pack.
    scanner: Option<Scanner>,
}

/// Compressed bytes that are inflated at once; at worst a mebibyte comes out.
const GZIP_BYTES: usize = 1024;

impl<'a> PushFilter<'a> {
    pub fn new(settings: Settings, judge: Box<Judgement<'a>>) -> Self {
        let gzip = match settings.coding {
            Coding::Identity => None,
            Coding::Gzip => Some(GzDecoder::new(Vec::new())),
        };
        Self {
            settings,
            judge,
            gzip,
            state: State::Commands(Collector::default()),
            drained: 0,
        }
    }

    /// Takes the next piece of the body.
    pub fn feed(&mut self, piece: &[u8]) -> Progress {
        let Some(mut gzip) = self.gzip.take() else {
            return self.plain(piece);
        };
        let mut progress = Progress::More;
        for part in piece.chunks(GZIP_BYTES) {
            let written = gzip.write_all(part).and_then(|()| gzip.flush());
            let plain = std::mem::take(gzip.get_mut());
            if !plain.is_empty() {
                progress = self.plain(&plain);
            }
            if written.is_err() {
                self.refuse_form("its compression is broken");
            }
        }
        self.gzip = Some(gzip);
        progress
    }

    /// Whether the answer is known to be no.
    pub fn is_refused(&self) -> bool {
        matches!(self.state, State::Refused(_))
    }

    /// Whether nothing has come yet.
    pub fn is_untouched(&self) -> bool {
        matches!(&self.state, State::Commands(collector) if collector.is_empty())
    }

    /// To be called when the body is over, or complete.
    pub fn finish(mut self) -> Result<Vetted, Box<Refused>> {
        let whole_gzip = self.gzip.take().is_none_or(|gzip| gzip.finish().is_ok());
        if !whole_gzip {
            self.refuse_form("its compression is broken");
        }
        self.conclude();
        match self.state {
            State::Pack(held) => {
                let mut held = *held;
                match held.body.rewind() {
                    Ok(()) => Ok(Vetted {
                        permit: held.permit,
                        body: held.body,
                    }),
                    Err(error) => Err(Box::new(Refused {
                        denial: unspooled(&held.permit.rule, &error),
                        answer: None,
                    })),
                }
            }
            State::Refused(refusal) => {
                let commands = refusal.commands.as_ref();
                let answer = commands.and_then(|all| report::refusal(all, &refusal.denial));
                Err(Box::new(Refused {
                    denial: refusal.denial,
                    answer,
                }))
            }
            State::Commands(_) => Err(Box::new(Refused {
                denial: malformed(None, "it ends too early"),
                answer: None,
            })),
        }
    }

    fn plain(&mut self, piece: &[u8]) -> Progress {
        match &mut self.state {
            State::Commands(collector) => match collector.feed(piece) {
                Ok(None) => Progress::More,
                Ok(Some((commands, bytes))) => self.begin(commands, &bytes),
                Err(problem) => {
                    self.refuse_form(&problem.to_string());
                    Progress::Complete
                }
            },
            State::Pack(_) => self.pack(piece),
            State::Refused(_) => self.drain(piece),
        }
    }

    /// Judges the commands; `bytes` are they and what came behind them.
    fn begin(&mut self, commands: Commands, bytes: &[u8]) -> Progress {
        let (list, rest) = bytes.split_at(commands.bytes);
        let updates = updates(&commands, |update| update.change == Change::Delete);
        let permit = match self.ask(&commands, &updates) {
            Ok(permit) => permit,
            Err(denial) => return self.refuse(denial, commands, rest),
        };
        if self.settings.needles.are_in(list) {
            let denial = secret(&permit.rule);
            return self.refuse(denial, commands, rest);
        }
        let body = Spool::new(&self.settings.room).and_then(|mut body| {
            body.write(list)?;
            Ok(body)
        });
        let body = match body {
            Ok(body) => body,
            Err(error) => {
                let denial = unspooled(&permit.rule, &error);
                return self.refuse(denial, commands, rest);
            }
        };
        let pack_bytes_max = permit.push_bytes_max.unwrap_or(PACK_BYTES_MAX);
        let scanner = commands.have_pack().then(|| {
            let inflated = pack_bytes_max.saturating_mul(INFLATION_MAX);
            Scanner::new(&self.settings.needles, commands.hash, inflated)
        });
        self.state = State::Pack(Box::new(Held {
            body_bytes_max: pack_bytes_max.saturating_add(list.len() as u64),
            pack_bytes_max,
            commands,
            permit,
            scanner,
            body,
        }));
        self.pack(rest)
    }

    fn ask(&self, commands: &Commands, updates: &[RefUpdate]) -> Result<GitPermit, Denial> {
        let action = match commands.updates.is_empty() {
            // With an empty list git asks whether it may push at all.
            true => GitAction::PushAny,
            false => GitAction::Push { updates },
        };
        (self.judge)(&GitOperation {
            repository: &self.settings.repository,
            action,
            over_ssh: self.settings.transport == Transport::Ssh,
        })
    }

    fn pack(&mut self, piece: &[u8]) -> Progress {
        let State::Pack(held) = &mut self.state else {
            return Progress::More;
        };
        let Some(scanner) = &mut held.scanner else {
            if !piece.is_empty() {
                self.refuse_held(|held| {
                    malformed(
                        Some(&held.permit.rule),
                        "a pack follows commands that need none",
                    )
                });
            }
            return Progress::Complete;
        };
        if let Err(problem) = scanner.feed(piece) {
            self.refuse_held(|held| {
                held.scanner = None;
                malformed(Some(&held.permit.rule), &format!("of its pack, {problem}"))
            });
            return Progress::Complete;
        }
        let complete = match scanner.is_complete() {
            true => Progress::Complete,
            false => Progress::More,
        };
        if scanner.finding() == Finding::Secret {
            self.refuse_held(|held| secret(&held.permit.rule));
            return complete;
        }
        if held.body.bytes() + piece.len() as u64 > held.body_bytes_max {
            self.refuse_held(|held| too_large(&held.permit.rule, held.pack_bytes_max));
            return complete;
        }
        if let Err(error) = held.body.write(piece) {
            self.refuse_held(|held| unspooled(&held.permit.rule, &error));
        }
        complete
    }

    /// What can be said only of the whole.
    fn conclude(&mut self) {
        let State::Pack(held) = &self.state else {
            return;
        };
        if let Some(scanner) = &held.scanner
            && let Err(problem) = scanner.finish()
        {
            self.refuse_held(|held| {
                malformed(Some(&held.permit.rule), &format!("of its pack, {problem}"))
            });
            return;
        }
        if let Err(denial) = self.check_moves(held) {
            self.refuse_held(|_| denial);
        }
    }

    /// Asks again, with each move that may lose commits as a deletion.
    fn check_moves(&self, held: &Held) -> Result<(), Denial> {
        let loses = |update: &Update| {
            let contains = |scanner: &Scanner| scanner.history().contains(&update.new, &update.old);
            let kept = held.scanner.as_ref().is_some_and(contains);
            update.change == Change::Move && !kept
        };
        let Some(lost) = held.commands.updates.iter().find(|one| loses(one)) else {
            return Ok(());
        };
        let updates = updates(&held.commands, |update| {
            update.change == Change::Delete || loses(update)
        });
        match self.ask(&held.commands, &updates) {
            Ok(_) => Ok(()),
            Err(mut denial) => {
                denial.reason = format!(
                    "the pack does not show that {} still contains what it held; \
                     {} permits moving it forward only, and nothing forced",
                    lost.name, denial.rule,
                );
                Err(denial)
            }
        }
    }

    fn drain(&mut self, piece: &[u8]) -> Progress {
        let State::Refused(refusal) = &mut self.state else {
            return Progress::More;
        };
        self.drained += piece.len() as u64;
        let Some(scanner) = &mut refusal.scanner else {
            return Progress::Complete;
        };
        let over = scanner.feed(piece).is_err() || scanner.is_complete();
        match over || self.drained > DRAIN_BYTES_MAX {
            true => Progress::Complete,
            false => Progress::More,
        }
    }

    /// Refuses a push by its commands; `rest` is what came behind them.
    fn refuse(&mut self, denial: Denial, commands: Commands, rest: &[u8]) -> Progress {
        let inflated_max = DRAIN_BYTES_MAX * INFLATION_MAX;
        let scanner = commands
            .have_pack()
            .then(|| Scanner::new(&Needles::default(), commands.hash, inflated_max));
        self.state = State::Refused(Box::new(Refusal {
            denial,
            commands: Some(commands),
            scanner,
        }));
        self.drain(rest)
    }

    /// Refuses a push whose commands were permitted, and lets go of its pack.
    fn refuse_held(&mut self, why: impl FnOnce(&mut Held) -> Denial) {
        let nothing = State::Commands(Collector::default());
        match std::mem::replace(&mut self.state, nothing) {
            State::Pack(mut held) => {
                let denial = why(&mut held);
                self.state = State::Refused(Box::new(Refusal {
                    denial,
                    commands: Some(held.commands),
                    scanner: held.scanner,
                }));
            }
            other => self.state = other,
        }
    }

    /// Refuses what is no push at all.
    fn refuse_form(&mut self, problem: &str) {
        if !self.is_refused() {
            self.state = State::Refused(Box::new(Refusal {
                denial: malformed(None, problem),
                commands: None,
                scanner: None,
            }));
        }
    }
}

fn updates(commands: &Commands, deletes: impl Fn(&Update) -> bool) -> Vec<RefUpdate> {
    let update = |update: &Update| RefUpdate {
        name: update.name.clone(),
        delete: deletes(update),
        create: update.change == Change::Create,
    };
    commands.updates.iter().map(update).collect()
}

fn secret(rule: &Rule) -> Denial {
    denial(
        "git-secret",
        Some(rule),
        "the push contains the secret of a credential; nothing of it was sent. \
         Take it out of every commit that is pushed, and push again"
            .to_owned(),
    )
}

fn too_large(rule: &Rule, pack_bytes_max: u64) -> Denial {
    denial(
        "git-size",
        Some(rule),
        format!(
            "the pack is larger than {pack_bytes_max} bytes, which is all that {} permits; \
             `push_bytes_max` raises it",
            rule.id
        ),
    )
}

fn malformed(rule: Option<&Rule>, problem: &str) -> Denial {
    denial(
        "git-push",
        rule,
        format!("the push is malformed: {problem}"),
    )
}

fn unspooled(rule: &Rule, error: &io::Error) -> Denial {
    let reason = match error.kind() {
        io::ErrorKind::StorageFull => {
            "other pushes are being held back at the moment; try again".to_owned()
        }
        _ => format!("the push cannot be held back: {error}"),
    };
    denial("git-size", Some(rule), reason)
}

fn denial(code: &'static str, rule: Option<&Rule>, reason: String) -> Denial {
    let (rule, origin) = match rule {
        Some(rule) => (rule.id.clone(), rule.origin.clone()),
        None => ("git".to_owned(), "built-in".to_owned()),
    };
    Denial {
        code,
        rule,
        origin,
        reason,
        smallest_grant: None,
    }
}

#[cfg(test)]
mod tests;
