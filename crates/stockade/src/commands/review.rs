//! The end of a run in review or discard mode: what became of what it wrote,
//! and, on a terminal, the question what should.

use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;

use serde_json::{Value, json};
use stockade_engine::layers::LayerOutcome;
use stockade_engine::run::Planned;
use stockade_policy::path::printable;
use stockade_policy::plan::Plan;
use stockade_sys::rustix::fs::{CWD, Mode, OFlags, openat};
use stockade_sys::rustix::process::getpgrp;
use stockade_sys::rustix::termios::{QueueSelector, tcflush, tcgetpgrp};
use stockade_sys::signal::LetThrough;
use stockade_workspace::apply::OnConflict;
use stockade_workspace::change::Change;
use stockade_workspace::held::Verdict;
use stockade_workspace::measure::Usage;
use stockade_workspace::run_dir::Run;
use stockade_workspace::settle::discard_run;
use stockade_workspace::store::Store;
use stockade_workspace::tree::join;

use super::apply::{self, Choice};
use super::diff;
use super::project::{Waiting, explanation, row};
use crate::show;

/// Most special changes that are named at the end of a run.
const SHOWN_MAX: usize = 20;
/// Longest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 64;

/// The end of a run with a layer of its own. Looked at once, for the report and
/// for the person.
pub enum Ending<'a> {
    Unchanged,
    Waiting(Box<Waits<'a>>),
    /// It waits, but cannot be looked at.
    Unread {
        run: &'a str,
        usage: &'a Usage,
        error: anyhow::Error,
    },
    Discarded,
    Failed {
        run: &'a str,
        error: &'a str,
    },
}

/// A run that waits, with what it changed.
pub struct Waits<'a> {
    usage: &'a Usage,
    store: Store,
    run: Run,
    waiting: Waiting,
}

impl<'a> Ending<'a> {
    /// Looks at what a run left in its layer. One that changed nothing is
    /// removed.
    pub fn of(planned: &Planned, layer: &'a LayerOutcome) -> Self {
        match layer {
            LayerOutcome::Unchanged => Self::Unchanged,
            LayerOutcome::Waiting { run, usage } => match Waits::look(planned, run, usage) {
                Ok(Some(waits)) => Self::Waiting(Box::new(waits)),
                Ok(None) => Self::Unchanged,
                Err(error) => Self::Unread { run, usage, error },
            },
            LayerOutcome::Discarded => Self::Discarded,
            LayerOutcome::Failed { run, error } => Self::Failed { run, error },
        }
    }

    /// Says what became of the layer, and lets a person on the terminal settle
    /// what waits.
    pub fn conclude(self, planned: &Planned) {
        match self {
            Self::Unchanged => {
                show::line("stockade: the workspace is unchanged; nothing waits for review");
            }
            Self::Waiting(waits) => {
                let id = waits.run.meta().id.clone();
                if let Err(error) = waits.conclude(planned) {
                    say_where(&id, &error);
                }
            }
            Self::Unread { run, error, .. } => say_where(run, &error),
            Self::Discarded => {
                show::line("stockade: what the command wrote to the workspace is discarded");
            }
            Self::Failed { run, error } => show::line(&format!(
                "stockade: what the command wrote is in run {run}, but the store failed: {error}"
            )),
        }
    }
}

fn say_where(run: &str, error: &anyhow::Error) {
    show::line(&format!(
        "stockade: what the command wrote waits in run {run}: {error:#}"
    ));
}

impl<'a> Waits<'a> {
    /// `None` when nothing changed after all.
    fn look(planned: &Planned, id: &str, usage: &'a Usage) -> anyhow::Result<Option<Self>> {
        let loaded = &planned.loaded;
        let store = Store::open(loaded.state.as_fd(), &loaded.policy.workspace)?;
        let run = store.run(Some(id))?;
        let waiting = Waiting::of(&store, &loaded.policy.guard, &run)?;
        if waiting.changes.is_empty() {
            drop(waiting);
            discard_run(&store, run)?;
            return Ok(None);
        }
        Ok(Some(Self {
            usage,
            store,
            run,
            waiting,
        }))
    }

    fn conclude(self, planned: &Planned) -> anyhow::Result<()> {
        let Self {
            store,
            run,
            waiting,
            ..
        } = self;
        let id = run.meta().id.clone();
        say(&id, &waiting);
        let Some(mut desk) = Desk::open() else {
            show::line(&format!(
                "stockade: `stockade diff {id}` shows it, `stockade apply {id}` or \
                 `stockade discard {id}` settles it"
            ));
            return Ok(());
        };
        let answer = loop {
            match desk.ask(waiting.held())? {
                Answer::Show => diff::show(&run, &waiting)?,
                answer => break answer,
            }
        };
        // What keeps layers in their places would keep those that now can go.
        drop(waiting);
        let choice = match answer {
            Answer::Show | Answer::Later => {
                show::line(&format!("stockade: later: `stockade apply {id}`"));
                return Ok(());
            }
            Answer::Discard => {
                discard_run(&store, run)?;
                show::line("stockade: discarded");
                return Ok(());
            }
            Answer::All => Choice::All,
            Answer::AllButHeld => Choice::AllButHeld,
        };
        let guard = &planned.loaded.policy.guard;
        let applied = apply::apply(&store, guard, run, choice, &[], OnConflict::Refuse)?;
        apply::say(&id, &applied);
        Ok(())
    }
}

/// Says that a run waits, and what of it is special.
fn say(id: &str, waiting: &Waiting) {
    show::line(&format!("stockade: run {id} waits: {}", waiting.counts()));
    let special = waiting.special();
    for (change, verdict) in special.iter().take(SHOWN_MAX) {
        show::line(&format!("stockade:   {}", row(change)));
        show::line(&format!("stockade:       {}", explanation(verdict)));
    }
    if special.len() > SHOWN_MAX {
        show::line(&format!(
            "stockade:   and {} more",
            special.len() - SHOWN_MAX
        ));
    }
}

/// What a person wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    All,
    AllButHeld,
    Show,
    Discard,
    Later,
}

/// The controlling terminal of the caller, after the command has ended.
struct Desk(std::fs::File);

impl Desk {
    /// `None` unless a person can read and answer.
    fn open() -> Option<Self> {
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return None;
        }
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = openat(CWD, "/dev/tty", flags, Mode::empty()).ok()?;
        let ours = tcgetpgrp(&terminal).is_ok_and(|group| group == getpgrp());
        ours.then(|| Self(terminal.into()))
    }

    /// Asks until there is an answer; the end of the input means later. Whoever
    /// types Ctrl-C or hangs up ends this process, and the run waits.
    fn ask(&mut self, held: usize) -> anyhow::Result<Answer> {
        // What was typed before, or by what ran before, answers nothing.
        tcflush(self.0.as_fd(), QueueSelector::IFlush)?;
        let but_held = match held {
            0 => String::new(),
            held => format!(", apply all [b]ut the {held} held"),
        };
        let question =
            format!("stockade: [a]pply all{but_held}, [s]how, [d]iscard, or decide [l]ater? ");
        // Only here: during the run they went to the command, a pager gets
        // them for itself, and what is applied is not left half done.
        let _through = LetThrough::begin()?;
        loop {
            self.0.write_all(question.as_bytes())?;
            match self.line()? {
                None => return Ok(Answer::Later),
                Some(line) => {
                    if let Some(answer) = answer(&line) {
                        return Ok(answer);
                    }
                }
            }
        }
    }

    fn line(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let mut byte = [0u8; 1];
        loop {
            match self.0.read(&mut byte) {
                Ok(0) => return Ok(None),
                Ok(_) if byte[0] == b'\n' => return Ok(Some(line)),
                Ok(_) if line.len() < ANSWER_BYTES_MAX => line.push(byte[0]),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn answer(line: &[u8]) -> Option<Answer> {
    let word = str::from_utf8(line).ok()?.trim().to_ascii_lowercase();
    match word.as_str() {
        "a" | "apply" => Some(Answer::All),
        "b" | "but" => Some(Answer::AllButHeld),
        "s" | "show" => Some(Answer::Show),
        "d" | "discard" => Some(Answer::Discard),
        "l" | "later" => Some(Answer::Later),
        _ => None,
    }
}

/// The part of a report about the layer.
pub fn report(planned: &Planned, ending: Option<&Ending<'_>>) -> Value {
    let plan = &planned.plan;
    let mut report = json!({ "mode": plan.workspace_mode.0.word() });
    let (state, run) = match ending {
        None => return report,
        Some(Ending::Unchanged) => ("unchanged", None),
        Some(Ending::Waiting(waits)) => {
            report["files"] = json!(waits.usage.files);
            report["bytes"] = json!(waits.usage.bytes);
            report["guarded"] = guarded(plan, &waits.waiting);
            ("waiting", Some(waits.run.meta().id.as_str()))
        }
        Some(Ending::Unread { run, usage, error }) => {
            report["files"] = json!(usage.files);
            report["bytes"] = json!(usage.bytes);
            report["error"] = json!(format!("{error:#}"));
            ("waiting", Some(*run))
        }
        Some(Ending::Discarded) => ("discarded", None),
        Some(Ending::Failed { run, error }) => {
            report["error"] = json!(error);
            ("failed", Some(*run))
        }
    };
    report["state"] = json!(state);
    report["run"] = json!(run);
    report
}

/// The guarded names among what waits, the held ones first, with the keys that
/// they have in a report of live mode.
fn guarded(plan: &Plan, waiting: &Waiting) -> Value {
    let special = waiting.special();
    let one = |(change, verdict): &(&Change, &Verdict)| {
        let mut one = json!({
            "what": match verdict.held {
                true => "held",
                false => "reported",
            },
            "path": printable(&join(plan.workspace.as_bytes(), &change.path)),
            "kind": verdict.kind,
            "rule": verdict.rule,
            "reason": verdict.reason,
        });
        if let Some(detail) = &verdict.detail {
            one["detail"] = json!(printable(detail.as_bytes()));
        }
        one
    };
    special.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::{Answer, answer};

    #[test]
    fn only_whole_words_and_letters_are_answers() {
        assert_eq!(answer(b" A \r"), Some(Answer::All));
        assert_eq!(answer(b"but"), Some(Answer::AllButHeld));
        assert_eq!(answer(b"l"), Some(Answer::Later));
        for nothing in [&b""[..], b"y", b"ad", b"\xff"] {
            assert_eq!(answer(nothing), None);
        }
    }
}
