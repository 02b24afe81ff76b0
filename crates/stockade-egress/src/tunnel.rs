//! Bytes both ways between two connections, unchanged.
//!
//! A young tunnel copies through one buffer that all share, so that an idle
//! one costs nothing; a busy one moves pages through a pipe (splice(2)), which
//! is half of the work; and where bytes come faster than any network brings
//! them one by one, they are let gather for a moment, which halves it again.
//! All count what they move before it is passed on.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use stockade_policy::network::judge::Denial;
use stockade_sys::network::wake_at;
use stockade_sys::rustix::net::{Shutdown, shutdown, sockopt};
use stockade_sys::rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::context::{Conversation, revoked};

/// Bytes in one direction after which pages are moved instead of copied.
const SPLICE_AFTER: u64 = 256 * 1024;
const COPY_BYTES: usize = 64 * 1024;
/// Wanted size of a pipe; the kernel may allow less (pipe(7)).
const PIPE_BYTES: usize = 1024 * 1024;
/// Pipes of that size at one time: the kernel lets all processes of a user
/// together have 64. Others keep the size that they are born with.
const LARGE_PIPES_MAX: usize = 16;
/// Empty pipes that are kept for the next tunnel.
const PIPES_KEPT: usize = 16;
/// A direction that moves so many bytes within this time gathers.
const FAST_BYTES: u64 = 4 * 1024 * 1024;
const FAST_WITHIN: Duration = Duration::from_millis(20);
/// What gathers before it is moved on, and how long that may take.
const GATHERED_BYTES: u32 = 256 * 1024;
const GATHER_TIME_MAX: Duration = Duration::from_millis(1);
/// Without a byte in either direction, after which a tunnel ends.
const IDLE: Duration = Duration::from_secs(600);

thread_local! {
    /// Never borrowed across an await.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; COPY_BYTES]);
    static PIPES: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
    static LARGE_PIPES: Cell<usize> = const { Cell::new(0) };
}

/// An empty pipe.
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    large: bool,
}

/// How fast a direction is, and whether its bytes are let gather.
struct Pace {
    since: Instant,
    bytes: u64,
    gathers: bool,
}

/// Why a direction stopped before its end.
enum Stop {
    Network,
    Refused(Denial),
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Self {
        Self::Network
    }
}

/// Carries bytes until both ends have closed, the rules change their mind, a
/// budget is used up, or nothing has moved for ten minutes. `early` was read
/// from the client already.
pub async fn carry(
    conversation: &Conversation,
    client: TcpStream,
    early: &[u8],
    upstream: TcpStream,
) {
    let activity = Cell::new(Instant::now());
    let sent = |bytes| conversation.uploaded(bytes);
    let received = |bytes| conversation.downloaded(bytes);
    let up = async {
        if !early.is_empty() {
            sent(early.len() as u64).map_err(Stop::Refused)?;
            write_all(&upstream, early).await?;
        }
        pump(&client, &upstream, &sent, &activity).await
    };
    let down = pump(&upstream, &client, &received, &activity);
    let stop = tokio::select! {
        both = async { tokio::try_join!(up, down) } => both.err(),
        () = conversation.revoked() => Some(Stop::Refused(revoked())),
        () = idle(&activity) => Some(Stop::Network),
    };
    match stop {
        None => return,
        Some(Stop::Refused(denial)) => conversation.denied(None, &denial),
        Some(Stop::Network) => {}
    }
    // A stream that was cut must not look like one that ended.
    for stream in [&client, &upstream] {
        // Of a socket that is broken already nothing is left to cut.
        let _broken = sockopt::set_socket_linger(stream, Some(Duration::ZERO)).is_err();
    }
}

/// One direction, to its end; then the other side is told.
async fn pump(
    from: &TcpStream,
    to: &TcpStream,
    count: &dyn Fn(u64) -> Result<(), Denial>,
    activity: &Cell<Instant>,
) -> Result<(), Stop> {
    let mut moved = 0;
    loop {
        if moved >= SPLICE_AFTER
            && let Some(pipe) = Pipe::take()
        {
            move_pages(from, to, count, activity, &pipe).await?;
            pipe.give_back();
            break;
        }
        let bytes = copy(from, to, count).await?;
        if bytes == 0 {
            break;
        }
        activity.set(Instant::now());
        moved += bytes;
    }
    shut(to);
    Ok(())
}

/// Copies what is there; 0 at the end.
async fn copy(
    from: &TcpStream,
    to: &TcpStream,
    count: &dyn Fn(u64) -> Result<(), Denial>,
) -> Result<u64, Stop> {
    loop {
        from.readable().await?;
        let step = SCRATCH.with_borrow_mut(|scratch| -> Result<_, Stop> {
            let bytes = match from.try_read(scratch) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                other => other?,
            };
            count(bytes as u64).map_err(Stop::Refused)?;
            let written = match to.try_write(&scratch[..bytes]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                other => other?,
            };
            Ok(Some((bytes, scratch[written..bytes].to_vec())))
        })?;
        if let Some((bytes, rest)) = step {
            write_all(to, &rest).await?;
            return Ok(bytes as u64);
        }
    }
}

async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Moves pages to the end of the stream. The pipe is empty between two rounds,
/// so that `EAGAIN` always speaks of the socket.
async fn move_pages(
    from: &TcpStream,
    to: &TcpStream,
    count: &dyn Fn(u64) -> Result<(), Denial>,
    activity: &Cell<Instant>,
    pipe: &Pipe,
) -> Result<(), Stop> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    let mut pace = Pace::new();
    loop {
        let next = from.async_io(Interest::READABLE, || {
            Ok(splice(from, None, &pipe.write, None, PIPE_BYTES, flags)?)
        });
        let bytes = if pace.gathers {
            match tokio::time::timeout(GATHER_TIME_MAX, next).await {
                Ok(bytes) => bytes?,
                Err(_) => {
                    pace.rest(from)?;
                    continue;
                }
            }
        } else {
            next.await?
        };
        if bytes == 0 {
            return Ok(());
        }
        count(bytes as u64).map_err(Stop::Refused)?;
        let mut left = bytes;
        while left > 0 {
            left -= to
                .async_io(Interest::WRITABLE, || {
                    Ok(splice(&pipe.read, None, to, None, left, flags)?)
                })
                .await?;
        }
        let now = Instant::now();
        activity.set(now);
        pace.moved(from, bytes as u64, now)?;
    }
}

impl Pace {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            bytes: 0,
            gathers: false,
        }
    }

    fn moved(&mut self, from: &TcpStream, bytes: u64, now: Instant) -> io::Result<()> {
        if self.gathers {
            return Ok(());
        }
        self.bytes += bytes;
        if now.duration_since(self.since) > FAST_WITHIN {
            (self.since, self.bytes) = (now, 0);
        } else if self.bytes >= FAST_BYTES {
            wake_at(from.as_fd(), GATHERED_BYTES)?;
            self.gathers = true;
        }
        Ok(())
    }

    /// Not enough came in time: what is there moves on, and what comes is not
    /// waited for until it is fast again.
    fn rest(&mut self, from: &TcpStream) -> io::Result<()> {
        wake_at(from.as_fd(), 1)?;
        *self = Self::new();
        Ok(())
    }
}

/// Ends when nothing has moved for long enough.
async fn idle(activity: &Cell<Instant>) {
    loop {
        let quiet = activity.get().elapsed();
        if quiet >= IDLE {
            return;
        }
        tokio::time::sleep(IDLE - quiet).await;
    }
}

/// Tells the other side that no more comes. One that is gone needs no telling.
fn shut(to: &TcpStream) {
    let _gone = shutdown(to, Shutdown::Write).is_err();
}

impl Pipe {
    /// `None` when the process has no descriptors left: copying goes on.
    fn take() -> Option<Self> {
        if let Some(pipe) = PIPES.with_borrow_mut(Vec::pop) {
            return Some(pipe);
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        let has_room = LARGE_PIPES.get() < LARGE_PIPES_MAX;
        // A smaller pipe works as well.
        let large = has_room && fcntl_setpipe_size(&write, PIPE_BYTES).is_ok();
        LARGE_PIPES.set(LARGE_PIPES.get() + usize::from(large));
        Some(Self { read, write, large })
    }

    /// Only of a pipe that is empty.
    fn give_back(self) {
        PIPES.with_borrow_mut(|pipes| {
            if pipes.len() < PIPES_KEPT {
                pipes.push(self);
            }
        });
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        LARGE_PIPES.set(LARGE_PIPES.get() - usize::from(self.large));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn only_what_is_faster_than_a_network_gathers() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = std::net::TcpStream::connect(address).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        drop(client);
        let mut pace = Pace::new();
        let start = pace.since;
        let half = FAST_BYTES / 2;
        // As much, in more time.
        for round in 1..10 {
            let now = start + round * (FAST_WITHIN + Duration::from_millis(1));
            pace.moved(&stream, half, now).unwrap();
            assert!(!pace.gathers);
        }
        let now = pace.since;
        pace.moved(&stream, half, now).unwrap();
        assert!(!pace.gathers);
        pace.moved(&stream, half, now).unwrap();
        assert!(pace.gathers);
        pace.rest(&stream).unwrap();
        assert!(!pace.gathers);
    }

    #[test]
    fn pipes_that_are_large_are_few_and_all_pipes_serve() {
        let pipes: Vec<Pipe> = (0..LARGE_PIPES_MAX + 2)
            .map(|_| Pipe::take().unwrap())
            .collect();
        let large = pipes.iter().filter(|pipe| pipe.large).count();
        assert!(large <= LARGE_PIPES_MAX);
        assert_eq!(LARGE_PIPES.get(), large);
        drop(pipes);
        assert_eq!(LARGE_PIPES.get(), 0);
    }
}
