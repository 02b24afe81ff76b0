//! How a supervisor leaves its caller: a process of its own session, which the
//! caller waits for only until it is known whether the sandbox stands.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, Mode, OFlags, fcntl_getfl, fcntl_setfl, openat};
use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open, setsid};
use stockade_sys::{process, rustix};

use super::Name;

/// Who goes on after [`detach`].
pub enum Detached {
    Caller(Waiting),
    Supervisor(Announcement),
}

/// The caller's side.
pub struct Waiting {
    /// What the supervisor says on its standard error until it is on its own.
    words: OwnedFd,
    /// The name, once the sandbox stands.
    answer: OwnedFd,
    supervisor: u32,
}

/// The supervisor's side: not on its own yet.
#[derive(Debug)]
pub struct Announcement {
    answer: OwnedFd,
    /// Standard error leads to the caller until then.
    speaks: bool,
}

/// Forks the process that becomes the supervisor: in a session of its own,
/// with nothing of the caller's open but what its words go to. This process
/// must have one thread (`EBUSY`).
pub fn detach() -> io::Result<Detached> {
    let (words, said) = pipe_with(PipeFlags::CLOEXEC)?;
    let (answer, announced) = pipe_with(PipeFlags::CLOEXEC)?;
    match process::fork()? {
        Some(supervisor) => Ok(Detached::Caller(Waiting {
            words,
            answer,
            supervisor,
        })),
        None => {
            setsid()?;
            let null = null()?;
            for number in 0..2 {
                process::become_standard(null.as_raw_fd(), number)?;
            }
            process::become_standard(said.as_raw_fd(), 2)?;
            // None of them may be closed by its owner as well.
            std::mem::forget((words, said, answer, null));
            process::close_descriptors_but(&[], announced.as_fd())?;
            Ok(Detached::Supervisor(Announcement {
                answer: announced,
                speaks: true,
            }))
        }
    }
}

fn null() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    Ok(openat(CWD, "/dev/null", flags, Mode::empty())?)
}

impl Announcement {
    #[cfg(test)]
    pub(super) fn of(answer: OwnedFd) -> Self {
        Self {
            answer,
            speaks: false,
        }
    }

    /// The sandbox stands: from here on nobody waits. An error when nobody did
    /// any more, and so nobody knows its name.
    pub(super) fn stand(self, name: &Name) -> io::Result<()> {
        if self.speaks {
            process::become_standard(null()?.as_raw_fd(), 2)?;
        }
        let written = write(&self.answer, name.as_str().as_bytes())?;
        match written == name.as_str().len() {
            true => Ok(()),
            false => Err(io::ErrorKind::WriteZero.into()),
        }
    }
}

impl Waiting {
    /// Waits until the sandbox stands, and returns its name; `None` when it
    /// does not. What the supervisor says meanwhile, then why, goes to `words`.
    pub fn wait(self, words: &mut dyn Write) -> io::Result<Option<Name>> {
        fcntl_setfl(&self.words, fcntl_getfl(&self.words)? | OFlags::NONBLOCK)?;
        let pid = Pid::from_raw(self.supervisor.cast_signed()).ok_or(io::ErrorKind::NotFound)?;
        let supervisor = pidfd_open(pid, PidfdFlags::empty())?;
        // One that gives up closes its end before it has said why.
        let (mut may_answer, mut may_speak) = (true, true);
        loop {
            // What is over would be ready for ever: another stands in its place.
            let either = |may, one| if may { one } else { &supervisor };
            let mut descriptors = [
                PollFd::new(&supervisor, PollFlags::IN),
                PollFd::new(either(may_answer, &self.answer), PollFlags::IN),
                PollFd::new(either(may_speak, &self.words), PollFlags::IN),
            ];
            match poll(&mut descriptors, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let [ended, answered, _] = descriptors.map(|one| !one.revents().is_empty());
            may_speak = self.pass_on(words)?;
            if may_answer && answered {
                match self.answered()? {
                    Some(name) => return Ok(Some(name)),
                    None => may_answer = false,
                }
            }
            if ended {
                return self.failed(words);
            }
        }
    }

    fn answered(&self) -> io::Result<Option<Name>> {
        let mut bytes = [0; Name::LENGTH_MAX];
        let length = read(&self.answer, &mut bytes)?;
        let name = std::str::from_utf8(&bytes[..length]).ok();
        Ok(name.and_then(Name::parse))
    }

    fn failed(&self, words: &mut dyn Write) -> io::Result<Option<Name>> {
        self.pass_on(words)?;
        match process::wait_for(self.supervisor)? {
            process::Change::Killed { signal, .. } => Err(io::Error::other(format!(
                "the supervisor was ended by signal {signal}"
            ))),
            _ => Ok(None),
        }
    }

    /// Passes on what is said now; `false` when there will be nothing more.
    fn pass_on(&self, words: &mut dyn Write) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        loop {
            match read(&self.words, &mut bytes) {
                Ok(0) => return Ok(false),
                Ok(length) => words.write_all(&bytes[..length])?,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
