//! A question about held requests, on the terminal of the caller.
//!
//! While it is open the supervisor shows nothing from inside and hands no key
//! inside, so a command can neither write over the question nor answer it.
//! What was typed before the question was there is thrown away, and an answer
//! is a whole line.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, read, write};
use rustix::process::getpgrp;
use rustix::termios::{QueueSelector, tcflush, tcgetpgrp};
use stockade_sys::rustix;

use crate::control::{Choice, HeldRequest};

/// Most destinations that one question is about.
pub const DESTINATIONS_MAX: usize = 8;
/// Longest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 64;
/// How long a terminal that takes no output is waited for.
const WRITE_PATIENCE: Duration = Duration::from_millis(500);

/// What a command left behind is undone first: colours, margins, hidden text
/// (DECSTR, SGR 0), and whatever line the cursor was in.
const FRESH_LINE: &str = "\u{1b}[!p\u{1b}[0m\r\n";

/// The controlling terminal of the caller.
#[derive(Debug)]
pub struct Desk {
    terminal: OwnedFd,
}

/// One open question.
#[derive(Debug)]
pub struct Question {
    /// The held requests that it is about.
    pub asks: Vec<u64>,
    typed: Vec<u8>,
}

impl Desk {
    /// `None` without a controlling terminal.
    pub fn open() -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let terminal = openat(CWD, "/dev/tty", flags, Mode::empty()).ok()?;
        Some(Self { terminal })
    }

    /// Whether this job may read from the terminal now.
    pub fn is_ours(&self) -> bool {
        tcgetpgrp(&self.terminal).is_ok_and(|group| group == getpgrp())
    }

    /// Shows a question about `held`, which is of one domain.
    pub fn ask(&self, held: &[HeldRequest], policy_file: &str) -> io::Result<Question> {
        // What was typed before answers nothing; an answer that comes as soon
        // as the question can be read must not be lost.
        tcflush(&self.terminal, QueueSelector::IFlush)?;
        self.say(&format!("{FRESH_LINE}{}", text(held, policy_file)))?;
        Ok(Question {
            asks: held.iter().map(|held| held.ask).collect(),
            typed: Vec::new(),
        })
    }

    /// Takes what was typed; the choice once a line is one.
    pub fn read(&self, question: &mut Question) -> io::Result<Option<Choice>> {
        let mut buffer = [0u8; 256];
        let length = match read(&self.terminal, &mut buffer[..]) {
            // End of file: nobody is there to answer.
            Ok(0) => return Ok(Some(Choice::Deny)),
            Ok(length) => length,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        question.typed.extend_from_slice(&buffer[..length]);
        let Some(end) = question.typed.iter().position(|&byte| byte == b'\n') else {
            question.typed.truncate(ANSWER_BYTES_MAX);
            return Ok(None);
        };
        let choice = choice(&question.typed[..end]);
        question.typed.clear();
        if choice.is_none() {
            self.say("  please type o, r, a or d: ")?;
        }
        Ok(choice)
    }

    /// Shows one line.
    pub fn tell(&self, line: &str) -> io::Result<()> {
        self.say(&format!("{line}\r\n"))
    }

    fn say(&self, text: &str) -> io::Result<()> {
        let mut left = text.as_bytes();
        while !left.is_empty() {
            match write(&self.terminal, left) {
                Ok(written) => left = &left[written..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let patience = Timespec {
                        tv_sec: 0,
                        tv_nsec: i64::from(WRITE_PATIENCE.subsec_nanos()),
                    };
                    let mut descriptors = [PollFd::new(&self.terminal, PollFlags::OUT)];
                    if poll(&mut descriptors, Some(&patience))? == 0 {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Readable when something was typed.
impl AsFd for Desk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.terminal.as_fd()
    }
}

fn choice(line: &[u8]) -> Option<Choice> {
    let word = str::from_utf8(line).ok()?.trim().to_ascii_lowercase();
    match word.as_str() {
        "o" | "once" => Some(Choice::Once),
        "r" | "run" => Some(Choice::Run),
        "a" | "always" => Some(Choice::Always),
        "d" | "deny" => Some(Choice::Deny),
        _ => None,
    }
}

fn text(held: &[HeldRequest], policy_file: &str) -> String {
    let domain = held.first().map_or("", |held| held.domain.as_str());
    let mut text = format!("stockade: no rule allows {domain}; the command waits for\r\n");
    for held in held {
        let request = held
            .request
            .as_deref()
            .map_or_else(String::new, |request| format!("  {request}"));
        text.push_str(&format!("    {}{request}\r\n", held.destination));
    }
    let command = held.iter().find_map(|held| {
        let command = held.command.as_deref()?;
        Some(format!(
            "{command}  (process {})",
            held.process.unwrap_or(0)
        ))
    });
    if let Some(command) = command {
        text.push_str(&format!(
            "  asked by, in its own words, not verified: {command}\r\n"
        ));
    }
    text.push_str(&format!(
        "  allow [o]nce, for this [r]un, [a]lways (30 days, in {policy_file}), or [d]eny? "
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_words_and_letters_are_answers() {
        assert_eq!(choice(b"o"), Some(Choice::Once));
        assert_eq!(choice(b" Always \r"), Some(Choice::Always));
        assert_eq!(choice(b"d"), Some(Choice::Deny));
        for nothing in [&b""[..], b"y", b"or", b"*", b"\xff"] {
            assert_eq!(choice(nothing), None);
        }
    }

    #[test]
    fn the_question_names_each_destination_and_who_asked() {
        let held = HeldRequest {
            ask: 1,
            domain: "example.com".into(),
            destination: "api.example.com:443".into(),
            entry: "connect".into(),
            request: Some("GET /x".into()),
            process: Some(7),
            command: Some("curl -s x".into()),
            held_ms: 0,
        };
        let text = text(&[held], "~/.config/stockade/stockade.toml");
        for part in [
            "example.com;",
            "api.example.com:443  GET /x",
            "curl -s x",
            "not verified",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains('*'), "a wildcard is never offered: {text}");
    }
}
