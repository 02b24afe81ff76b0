//! Bytes both ways between two connections, unchanged.
//!
//! A young tunnel copies through one buffer that all share, so that an idle
//! one costs nothing; a busy one moves pages through a pipe (splice(2)), which
//! is a fifth of the work. Both count what they move before it is passed on.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use stockade_policy::network::judge::Denial;
use stockade_sys::rustix::net::{Shutdown, shutdown, sockopt};
use stockade_sys::rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::context::{Conversation, revoked};

/// Bytes in one direction after which pages are moved instead of copied.
const SPLICE_AFTER: u64 = 256 * 1024;
const COPY_BYTES: usize = 64 * 1024;
/// Wanted size of a pipe; the kernel may allow less (pipe(7)).
const PIPE_BYTES: usize = 512 * 1024;
/// Empty pipes that are kept for the next tunnel.
const PIPES_KEPT: usize = 16;
/// Without a byte in either direction, after which a tunnel ends.
const IDLE: Duration = Duration::from_secs(600);

thread_local! {
    /// Never borrowed across an await.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; COPY_BYTES]);
    static PIPES: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

/// An empty pipe.
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
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
    loop {
        let bytes = from
            .async_io(Interest::READABLE, || {
                Ok(splice(from, None, &pipe.write, None, PIPE_BYTES, flags)?)
            })
            .await?;
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
        activity.set(Instant::now());
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
        // A smaller pipe works as well.
        let _smaller = fcntl_setpipe_size(&write, PIPE_BYTES).is_err();
        Some(Self { read, write })
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
