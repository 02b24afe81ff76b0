//! Lines that the supervisor says while a command runs.
//!
//! They go to standard error when it takes them at once: a reader who has
//! stopped must not stop the supervisor.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::write;
use stockade_sys::rustix;

use crate::streams::StandardStream;

/// Whether lines are said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notices {
    #[default]
    Said,
    Silent,
}

impl Notices {
    /// Says one line. On a terminal it starts at the left margin even while
    /// the terminal is in raw mode.
    pub fn say(self, line: &str) {
        if self == Self::Silent {
            return;
        }
        let error = StandardStream::Error.descriptor();
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut descriptors = [PollFd::from_borrowed_fd(error, PollFlags::OUT)];
        let takes = poll(&mut descriptors, Some(&now)).is_ok_and(|ready| ready > 0);
        if takes {
            let text = match rustix::termios::isatty(error) {
                true => format!("\r{line}\r\n"),
                false => format!("{line}\n"),
            };
            // A pipe that polls writable takes PIPE_BUF bytes at once.
            let most = text.len().min(4096);
            let _unread = write(error, &text.as_bytes()[..most]).is_err();
        }
    }
}
