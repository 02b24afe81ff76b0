//! The end of a run in review or discard mode: what became of what it wrote,
//! and, on a terminal, the question what should.

use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;

use serde_json::{Value, json};
use stockade_engine::layers::LayerOutcome;
use stockade_engine::run::Planned;
use stockade_sys::rustix::fs::{CWD, Mode, OFlags, openat};
use stockade_sys::rustix::process::getpgrp;
use stockade_sys::rustix::termios::{QueueSelector, tcflush, tcgetpgrp};
use stockade_workspace::apply::OnConflict;
use stockade_workspace::settle::discard_run;
use stockade_workspace::store::Store;

use super::apply::{self, Choice};
use super::diff;
use super::project::{Waiting, explanation, row};
use crate::show;

/// Most special changes that are named at the end of a run.
const SHOWN_MAX: usize = 20;
/// Longest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 64;

/// Says what became of the layer; with `ask`, lets a person on the terminal
/// settle what waits.
pub fn conclude(planned: &Planned, layer: &LayerOutcome, ask: bool) {
    match layer {
        LayerOutcome::Unchanged => {
            show::line("stockade: the workspace is unchanged; nothing waits for review");
        }
        LayerOutcome::Waiting { run, .. } => {
            if let Err(error) = waiting(planned, run, ask) {
                show::line(&format!(
                    "stockade: what the command wrote waits in run {run}: {error:#}"
                ));
            }
        }
        LayerOutcome::Discarded => {
            show::line("stockade: what the command wrote to the workspace is discarded");
        }
        LayerOutcome::Failed { run, error } => show::line(&format!(
            "stockade: what the command wrote is in run {run}, but the store failed: {error}"
        )),
    }
}

fn waiting(planned: &Planned, id: &str, ask: bool) -> anyhow::Result<()> {
    let loaded = &planned.loaded;
    let store = Store::open(loaded.state.as_fd(), &loaded.policy.workspace)?;
    let run = store.run(Some(id))?;
    let waiting = Waiting::of(&store, &loaded.policy.guard, &run)?;
    if waiting.changes.is_empty() {
        discard_run(&store, run)?;
        show::line("stockade: the workspace is unchanged; nothing waits for review");
        return Ok(());
    }
    show::line(&format!("stockade: run {id} waits: {}", waiting.counts()));
    let special: Vec<_> = waiting
        .in_order()
        .into_iter()
        .filter_map(|(change, verdict)| Some((change, verdict?)))
        .collect();
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
    let desk = if ask { Desk::open() } else { None };
    let Some(mut desk) = desk else {
        show::line(&format!(
            "stockade: `stockade diff {id}` shows it, `stockade apply {id}` or `stockade discard {id}` \
             settles it"
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
    let guard = &loaded.policy.guard;
    let applied = apply::apply(&store, guard, run, choice, &[], OnConflict::Refuse)?;
    apply::say(id, &applied);
    Ok(())
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

    /// Asks until there is an answer; the end of the input means later.
    fn ask(&mut self, held: usize) -> anyhow::Result<Answer> {
        // What was typed before, or by what ran before, answers nothing.
        tcflush(self.0.as_fd(), QueueSelector::IFlush)?;
        let but_held = match held {
            0 => String::new(),
            held => format!(", apply all [b]ut the {held} held"),
        };
        let question =
            format!("stockade: [a]pply all{but_held}, [s]how, [d]iscard, or decide [l]ater? ");
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

/// The part of a report about the workspace.
pub fn report(planned: &Planned, layer: Option<&LayerOutcome>) -> Value {
    let mode = planned.plan.workspace_mode.0.word();
    let mut report = json!({ "mode": mode });
    let (state, run) = match layer {
        None => return report,
        Some(LayerOutcome::Unchanged) => ("unchanged", None),
        Some(LayerOutcome::Waiting { run, usage }) => {
            report["files"] = json!(usage.files);
            report["bytes"] = json!(usage.bytes);
            ("waiting", Some(run))
        }
        Some(LayerOutcome::Discarded) => ("discarded", None),
        Some(LayerOutcome::Failed { run, error }) => {
            report["error"] = json!(error);
            ("failed", Some(run))
        }
    };
    report["state"] = json!(state);
    report["run"] = json!(run);
    report
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
