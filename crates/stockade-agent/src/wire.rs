//! The protocol: frames over one ordered stream of bytes.
//!
//! A frame is a header of eight bytes, little-endian, and a body: the length
//! of the body (`u32`, at most [`BODY_BYTES_MAX`]), and the task it belongs to
//! (`u32`, chosen by the host; 0 is the session itself). The body is one
//! message in postcard. Messages borrow from the frame: to decode one
//! allocates nothing.
//!
//! The first frame of each side is its `Hello`. Streams are bounded by credit:
//! whoever receives says how many bytes it has room for, so that one slow
//! reader holds up neither the other tasks nor anybody's memory.

use serde::{Deserialize, Serialize};

/// Version of everything in this module. Another one is refused.
pub const VERSION: u32 = 2;

/// Length of a frame's header.
pub const HEADER_BYTES: usize = 8;
/// Largest body of a frame.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// Most bytes of a stream in one frame.
pub const CHUNK_BYTES_MAX: usize = 16 * 1024;
/// Largest encoded [`ExecSpec`]; it comes in several frames.
pub const SPEC_BYTES_MAX: usize = 1024 * 1024;
/// Most strings in the arguments and environment of one command.
pub const STRINGS_MAX: usize = 16 * 1024;
/// Most tasks at one time.
pub const TASKS_MAX: usize = 64;
/// Credit that each stream out of the sandbox has at most.
pub const WINDOW_OUT_BYTES: u32 = 64 * 1024;
/// Credit that each stream into the sandbox has at first, and at most.
pub const WINDOW_IN_BYTES: u32 = 32 * 1024;
/// Longest path, as in Linux (`PATH_MAX`), without the NUL.
pub const PATH_BYTES_MAX: usize = 4095;
/// Longest text of a refusal.
pub const REASON_BYTES_MAX: usize = 256;

/// From the host to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request<'a> {
    /// The first frame, for task 0.
    Hello { version: u32 },
    /// A part of a task's [`ExecSpec`] that does not fit one frame.
    Part(#[serde(borrow)] &'a [u8]),
    /// The last part: start the command.
    Exec(#[serde(borrow)] &'a [u8]),
    /// Begin with a file.
    File(#[serde(borrow)] FileRequest<'a>),
    /// Bytes of the stream into the sandbox.
    Data(#[serde(borrow)] &'a [u8]),
    /// The end of that stream.
    End,
    /// Room for so many more bytes of a stream.
    Credit { stream: Stream, bytes: u32 },
    /// Send a signal to a command, or to all of its process group.
    Signal { number: i32, group: bool },
    /// The caller's terminal has another size.
    Resize { size: Size },
    /// Give a file task up.
    Cancel,
    /// Set the machine's clock, where that is the agent's to set.
    SetClock { seconds: i64, nanoseconds: u32 },
    /// End the sandbox, for task 0.
    Shutdown,
}

/// From the agent to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply<'a> {
    /// The answer to `Hello`.
    Hello { version: u32 },
    /// The session ends, for the reason given.
    Refused { reason: &'a str },
    /// The command runs; `process` is its id inside.
    Started { process: u32 },
    /// The task is over without having done what it was to do.
    Failed { errno: i32, reason: &'a str },
    /// Bytes of a stream out of the sandbox.
    Data {
        stream: Stream,
        #[serde(borrow)]
        bytes: &'a [u8],
    },
    /// The end of a stream.
    End { stream: Stream },
    /// Room for so many more bytes of the stream into the sandbox.
    Credit { bytes: u32 },
    /// A command on a terminal was stopped by a signal (job control).
    Stopped { signal: i32 },
    /// The command ended, and so does the task.
    Ended { status: Status, met: Met },
    /// A file task, or one without streams, did what it was to do.
    Done,
}

/// A stream out of the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output, a terminal's screen, or a file's content.
    Output,
    /// Standard error.
    Error,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    Exited(i32),
    Killed { signal: i32, core: bool },
}

/// Limits that the agent holds commands to, and that something inside has met
/// since it last told. Where others hold them, none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Met {
    /// A process or thread was refused.
    pub processes: bool,
    /// The kernel killed somebody because there was no memory left.
    pub memory: bool,
    /// Private directories are full.
    pub disk: bool,
}

impl Met {
    pub const NONE: Self = Self {
        processes: false,
        memory: false,
        disk: false,
    };
}

/// Size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    pub rows: u16,
    pub columns: u16,
}

/// Whom a command runs as; needs an agent that may change to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

/// A command to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSpec<'a> {
    /// Each argument with a NUL behind it; the first names the program.
    pub arguments: &'a [u8],
    /// Variables, `NAME=VALUE` with a NUL behind each; they replace those of
    /// the agent.
    pub environment: &'a [u8],
    /// Where to run it; the agent's own directory when empty.
    pub directory: &'a [u8],
    /// The agent's own user when `None`.
    pub user: Option<User>,
    /// Run it on a new terminal of this size.
    pub terminal: Option<Size>,
    /// Standard input comes from the host; else it is /dev/null.
    pub input: bool,
    /// One stream for standard output and standard error, in order.
    pub merged: bool,
}

/// A file to read, write, list, make or describe. Paths are bytes without NUL, resolved
/// inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileRequest<'a> {
    /// The content of a regular file, as stream `Output`.
    Read {
        path: &'a [u8],
        offset: u64,
        length: u64,
    },
    /// The stream into the sandbox becomes the content of a regular file,
    /// which is made with `mode` when it is missing.
    Write {
        path: &'a [u8],
        mode: u32,
        how: Write,
    },
    /// The names of a directory, as stream `Output`: see [`crate::files`].
    List { path: &'a [u8] },
    /// What changes in a directory or file, as stream `Output`, until the
    /// task is cancelled: see [`crate::files`].
    Watch { path: &'a [u8] },
    /// Make a directory with `mode`.
    Directory { path: &'a [u8], mode: u32 },
    /// Make a symbolic link that leads to `target`.
    Link { path: &'a [u8], target: &'a [u8] },
    /// Set permission bits and time of modification (since 1970).
    Describe {
        path: &'a [u8],
        mode: u32,
        seconds: i64,
        nanoseconds: u32,
    },
}

impl<'a> FileRequest<'a> {
    /// The path that it is about.
    pub fn path(&self) -> &'a [u8] {
        match *self {
            Self::Read { path, .. }
            | Self::Write { path, .. }
            | Self::List { path }
            | Self::Watch { path }
            | Self::Directory { path, .. }
            | Self::Link { path, .. }
            | Self::Describe { path, .. } => path,
        }
    }

    /// Where a link is to lead.
    pub fn target(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Link { target, .. } => Some(target),
            _ => None,
        }
    }

    /// Whether all its paths are paths.
    pub fn is_sound(&self) -> bool {
        let is_path = |path: &[u8]| !path.is_empty() && is_path_or_empty(path);
        is_path(self.path()) && self.target().is_none_or(is_path)
    }
}

/// What becomes of the content that a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Write {
    Replace,
    Append,
    /// There must be no file yet.
    New,
}

/// Why bytes are no frame or message, or no acceptable one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The length in a header is above [`BODY_BYTES_MAX`].
    TooLong,
    Malformed,
    /// There is no room for a message; a bound was computed wrongly.
    NoRoom,
}

impl core::fmt::Display for WireError {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str(match self {
            Self::TooLong => "a frame is longer than 64 KiB",
            Self::Malformed => "a frame holds no message of this protocol",
            Self::NoRoom => "there is no room for a message",
        })
    }
}

impl core::error::Error for WireError {}

/// Decodes exactly one message; trailing bytes are an error.
pub fn decode<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, WireError> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        _ => Err(WireError::Malformed),
    }
}

/// Writes one frame to the beginning of `target`; its whole length.
pub fn encode<T: Serialize>(task: u32, message: &T, target: &mut [u8]) -> Result<usize, WireError> {
    let (header, body) = target
        .split_at_mut_checked(HEADER_BYTES)
        .ok_or(WireError::NoRoom)?;
    let most = body.len().min(BODY_BYTES_MAX);
    let length = postcard::to_slice(message, &mut body[..most])
        .map_err(|_| WireError::NoRoom)?
        .len();
    header[..4].copy_from_slice(&(length as u32).to_le_bytes());
    header[4..].copy_from_slice(&task.to_le_bytes());
    Ok(HEADER_BYTES + length)
}

/// A command as it crosses in [`Request::Part`] and [`Request::Exec`]; `None`
/// when it is longer than [`SPEC_BYTES_MAX`].
#[cfg(feature = "host")]
pub fn encode_spec(spec: &ExecSpec<'_>) -> Option<std::vec::Vec<u8>> {
    let strings = spec.arguments.len() + spec.environment.len() + spec.directory.len();
    // What is not a string takes less than this.
    let room = strings.checked_add(64)?.min(SPEC_BYTES_MAX);
    let mut bytes = std::vec![0; room];
    let length = postcard::to_slice(spec, &mut bytes).ok()?.len();
    bytes.truncate(length);
    Some(bytes)
}

/// The length of the body and the task that a header names.
pub fn header(bytes: [u8; HEADER_BYTES]) -> Result<(usize, u32), WireError> {
    let [a, b, c, d, e, f, g, h] = bytes;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    match length <= BODY_BYTES_MAX {
        true => Ok((length, u32::from_le_bytes([e, f, g, h]))),
        false => Err(WireError::TooLong),
    }
}

/// The strings of a block in which each has a NUL behind it.
pub fn strings(block: &[u8]) -> impl Iterator<Item = &[u8]> {
    let whole = match block.split_last() {
        Some((0, strings)) => Some(strings),
        _ => None,
    };
    whole
        .into_iter()
        .flat_map(|text| text.split(|&byte| byte == 0))
}

impl ExecSpec<'_> {
    /// Whether the blocks are what they are to be, and within the limits.
    pub fn is_sound(&self) -> bool {
        let ends = |block: &[u8]| block.last().is_none_or(|&byte| byte == 0);
        let count = |block: &[u8]| block.iter().filter(|&&byte| byte == 0).count();
        let named = strings(self.environment).all(|variable| {
            variable
                .iter()
                .position(|&byte| byte == b'=')
                .is_some_and(|position| position > 0)
        });
        !self.arguments.is_empty()
            && ends(self.arguments)
            && ends(self.environment)
            && named
            && count(self.arguments) + count(self.environment) <= STRINGS_MAX
            && is_path_or_empty(self.directory)
    }
}

/// Whether a path has no NUL and is not too long; it may be empty.
pub fn is_path_or_empty(path: &[u8]) -> bool {
    path.len() <= PATH_BYTES_MAX && !path.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_message_survives_the_way() {
        let request = Request::File(FileRequest::Write {
            path: b"/a",
            mode: 0o644,
            how: Write::New,
        });
        let mut target = [0; 64];
        let length = encode(7, &request, &mut target).unwrap();
        let (body, task) = header(*target.first_chunk().unwrap()).unwrap();
        assert_eq!((length, task), (HEADER_BYTES + body, 7));
        assert_eq!(decode::<Request<'_>>(&target[8..length]), Ok(request));
        assert_eq!(
            decode::<Request<'_>>(&target[8..=length]),
            Err(WireError::Malformed)
        );
        assert_eq!(encode(7, &request, &mut [0; 12]), Err(WireError::NoRoom));
        assert_eq!(header([1, 0, 1, 0, 0, 0, 0, 0]), Err(WireError::TooLong));
    }

    #[test]
    fn blocks_are_taken_apart_and_checked() {
        assert!(strings(b"").next().is_none());
        let all: Vec<_> = strings(b"a\0\0bc\0").collect();
        assert_eq!(all, [&b"a"[..], b"", b"bc"]);
        let sound = ExecSpec {
            arguments: b"a\0",
            environment: b"A=1\0B=\0",
            directory: b"",
            user: None,
            terminal: None,
            input: false,
            merged: false,
        };
        assert!(sound.is_sound());
        for (arguments, environment, directory) in [
            (&b""[..], &b""[..], &b""[..]),
            (b"a", b"", b""),
            (b"a\0", b"A", b""),
            (b"a\0", b"A\0", b""),
            (b"a\0", b"=1\0", b""),
            (b"a\0", b"", b"/a\0b"),
        ] {
            let spec = ExecSpec {
                arguments,
                environment,
                directory,
                ..sound
            };
            assert!(!spec.is_sound(), "{spec:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            let _is_request = decode::<Request<'_>>(&bytes).is_ok();
            let _is_reply = decode::<Reply<'_>>(&bytes).is_ok();
            if let Ok(spec) = decode::<ExecSpec<'_>>(&bytes) {
                let _sound = spec.is_sound();
            }
        }
    }
}
