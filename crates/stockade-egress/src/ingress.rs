//! Accepting connections of the sandbox, and reading their first bytes.
//!
//! How many are open at one time is bounded for the whole sandbox; one more is
//! closed at once and said once a second. What the bytes mean is decided by
//! the entries.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::audit::Subject;
use crate::context::{Context, denial};
use crate::front::Progress;
use crate::wire::Entry;

/// For the first bytes of a connection: a head, a greeting, a ClientHello.
pub const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections of one sandbox at one time, unless the policy says another
/// number.
const CONNECTIONS_MAX: u64 = 512;
/// After an error of accept(2), mostly for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// For a client to close after it was refused.
const LINGER: Duration = Duration::from_secs(1);
/// Between two looks whether a client is still there.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Between two events that say that connections were turned away.
const TURNED_AWAY_EVERY: Duration = Duration::from_secs(1);

/// The bound on open connections, as one listener sees it.
pub struct Gate {
    context: Rc<Context>,
    entry: Entry,
    said: Cell<Option<Instant>>,
}

/// One of the places that the gate gives out; given back on drop.
pub struct Place(Rc<Context>);

impl Gate {
    pub fn new(context: &Rc<Context>, entry: Entry) -> Self {
        Self {
            context: context.clone(),
            entry,
            said: Cell::new(None),
        }
    }

    /// The next connection for which there is a place.
    pub async fn accept(&self, listener: &TcpListener) -> (TcpStream, Place) {
        loop {
            match listener.accept().await {
                Ok((client, _)) => {
                    if let Some(place) = self.place() {
                        // Small answers must not wait for more of them.
                        drop(client.set_nodelay(true));
                        return (client, place);
                    }
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    pub async fn accept_unix(&self, listener: &UnixListener) -> (UnixStream, Place) {
        loop {
            match listener.accept().await {
                Ok((client, _)) => {
                    if let Some(place) = self.place() {
                        return (client, place);
                    }
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    fn place(&self) -> Option<Place> {
        let open = &self.context.open;
        // Of clients, also of those that are being refused: what the policy
        // says of connections is counted where they are opened.
        let budget = self.context.judge().plan().budget;
        let limit = budget
            .connections_max
            .map_or(CONNECTIONS_MAX, |limit| limit.max(CONNECTIONS_MAX));
        if open.get() < limit {
            open.set(open.get() + 1);
            return Some(Place(self.context.clone()));
        }
        let recently = |said: Instant| said.elapsed() < TURNED_AWAY_EVERY;
        if !self.said.get().is_some_and(recently) {
            self.said.set(Some(Instant::now()));
            let reason = format!("{limit} connections are open already");
            self.context.audit.denied(
                &Subject {
                    connection: self.context.next_connection(),
                    entry: self.entry,
                    destination: String::new(),
                    request: None,
                    generation: self.context.generation(),
                },
                &denial("budget", reason),
            );
        }
        None
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
    }
}

/// Why the first bytes of a connection were not understood.
#[derive(Debug, thiserror::Error)]
pub enum Unread<E> {
    #[error("{0}")]
    Bad(E),
    #[error("the connection ended, or said nothing for 10 seconds")]
    Gone,
}

/// Reads until `parse` has its value, for ten seconds at most, and takes the
/// value's bytes out of `buffer`; what was read beyond them stays. `parse`
/// bounds the buffer by refusing what is too long.
pub async fn read_first<T, E>(
    client: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    mut parse: impl FnMut(&[u8]) -> Result<Progress<T>, E>,
) -> Result<T, Unread<E>> {
    let parse = |bytes: &[u8]| {
        Ok(match parse(bytes)? {
            Progress::Done { value, consumed } => Progress::Done {
                value: (value, consumed),
                consumed,
            },
            Progress::NeedMore => Progress::NeedMore,
        })
    };
    let (value, consumed) = peek_first(client, buffer, parse).await?;
    buffer.drain(..consumed);
    Ok(value)
}

/// As [`read_first`], and leaves all bytes in `buffer`.
pub async fn peek_first<T, E>(
    client: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    mut parse: impl FnMut(&[u8]) -> Result<Progress<T>, E>,
) -> Result<T, Unread<E>> {
    let reading = async {
        loop {
            if let Progress::Done { value, .. } = parse(buffer).map_err(Unread::Bad)? {
                return Ok(value);
            }
            read_some(client, buffer).await.map_err(|_| Unread::Gone)?;
        }
    };
    tokio::time::timeout(FIRST_BYTES_TIMEOUT, reading)
        .await
        .unwrap_or(Err(Unread::Gone))
}

/// Appends what is there; an error at the end of the stream.
async fn read_some(client: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.reserve(4096);
    match client.read_buf(buffer).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// Closes a connection on which an answer was just written: unread bytes at
/// close(2) would turn into a reset that takes the answer away (RFC 9112,
/// section 9.6). What still comes is thrown away, for a second at most.
pub async fn linger(mut client: TcpStream) {
    if client.shutdown().await.is_err() {
        return;
    }
    let drain = async {
        let mut scratch = [0u8; 4096];
        while client.read(&mut scratch).await.is_ok_and(|bytes| bytes > 0) {}
    };
    // What is left after that is not worth more time.
    let _rest = tokio::time::timeout(LINGER, drain).await.is_err();
}

/// Ends when the client has closed its connection, without taking a byte of
/// what it sent; never while it stays.
pub async fn gone(client: &TcpStream) {
    match client.peek(&mut [0]).await {
        Ok(0) | Err(_) => {}
        // It sent something and waits: only the other end of the connection can
        // tell more.
        Ok(_) => left(client).await,
    }
}

/// As [`gone`], of a connection that somebody else reads.
pub async fn left(client: impl AsFd) {
    while !is_hung_up(client.as_fd()) {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Whether the peer has closed, even behind bytes that were not read yet
/// (POLLRDHUP, poll(2)).
fn is_hung_up(client: BorrowedFd<'_>) -> bool {
    use stockade_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(client, PollFlags::RDHUP)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match poll(&mut fds, Some(&now)) {
        Ok(_) => fds[0]
            .revents()
            .intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR),
        Err(_) => true,
    }
}
