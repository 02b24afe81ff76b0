//! A connection whose every HTTP/1.1 head passes the strict gate before the
//! HTTP library reads it.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::activity::HeadClock;
use crate::front::gate::{Forms, Gate};
use crate::front::head::BadHead;
use crate::refusal;

/// How long a client has to read the last answer and go.
const LINGER: Duration = Duration::from_secs(1);

/// One TLS record holds as much.
const READ_BYTES: usize = 16 * 1024;

/// What the stream and those who answer its requests tell each other. The
/// stream may have to move between threads for the sake of upgrades.
pub struct Line {
    /// Number of the connection, by which the log knows it.
    number: u64,
    /// Where all its requests go, in print; empty where each names its own.
    host: String,
    switched: AtomicBool,
    refused: Mutex<Option<BadHead>>,
}

/// The stream behind the gate.
pub struct Gated<S> {
    stream: S,
    gate: Gate,
    line: Arc<Line>,
    clock: Arc<HeadClock>,
    read: Box<[u8]>,
    passed: Vec<u8>,
    taken: usize,
    flushed: bool,
    ending: Ending,
    lingering: Option<Pin<Box<Sleep>>>,
}

/// How far the end of a refused connection has come.
enum Ending {
    Not,
    /// The answer to a bad head, which the library never saw.
    Answering {
        bytes: Vec<u8>,
        written: usize,
    },
    Over,
}

impl Line {
    /// Of the connection with this number; `host` is told to a client that is
    /// refused.
    pub fn new(number: u64, host: String) -> Self {
        Self {
            number,
            host,
            switched: AtomicBool::new(false),
            refused: Mutex::new(None),
        }
    }

    /// The origin agreed to a WebSocket: what follows is no HTTP.
    pub fn switch(&self) {
        self.switched.store(true, Ordering::Relaxed);
    }

    /// Why the connection was closed, if the gate did it.
    pub fn refused(&self) -> Option<BadHead> {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse(&self, bad: BadHead) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(bad);
    }

    fn answer(&self, bad: BadHead) -> Vec<u8> {
        refusal::http1_bad_head(bad, &self.host, &self.number.to_string())
    }
}

impl<S> Gated<S> {
    pub fn new(stream: S, forms: Forms, line: Arc<Line>, clock: Arc<HeadClock>) -> Self {
        Self {
            stream,
            gate: Gate::new(forms),
            line,
            clock,
            read: vec![0; READ_BYTES].into_boxed_slice(),
            passed: Vec::new(),
            taken: 0,
            flushed: true,
            ending: Ending::Not,
            lingering: None,
        }
    }

    /// Hands on what has passed; says whether there was anything.
    fn hand_on(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let waiting = &self.passed[self.taken..];
        if waiting.is_empty() {
            return false;
        }
        let length = waiting.len().min(buffer.remaining());
        buffer.put_slice(&waiting[..length]);
        self.taken += length;
        if self.taken == self.passed.len() {
            self.passed.clear();
            self.taken = 0;
        }
        true
    }

    fn judge(&mut self, length: usize) {
        if self.line.switched.load(Ordering::Relaxed) {
            self.gate.switched(&mut self.passed);
        }
        match self.gate.push(&self.read[..length], &mut self.passed) {
            Ok(()) if self.gate.is_idle() || self.gate.is_waiting() => self.clock.head_ended(),
            Ok(()) => self.clock.bytes_came(),
            Err(bad) => {
                self.line.refuse(bad);
                // Only where no response is on its way.
                self.ending = match self.clock.is_serving() || !self.flushed {
                    true => Ending::Over,
                    false => Ending::Answering {
                        bytes: self.line.answer(bad),
                        written: 0,
                    },
                };
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Gated<S> {
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Ending::Answering { bytes, written } = &mut self.ending {
            while *written < bytes.len() {
                let stream = Pin::new(&mut self.stream);
                let length = ready!(stream.poll_write(context, &bytes[*written..]))?;
                if length == 0 {
                    break;
                }
                *written += length;
            }
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.ending = Ending::Over;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Gated<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.gate.is_waiting() && this.line.switched.load(Ordering::Relaxed) {
                this.gate.switched(&mut this.passed);
            }
            if this.hand_on(buffer) {
                return Poll::Ready(Ok(()));
            }
            if !matches!(this.ending, Ending::Not) {
                return this.poll_end(context);
            }
            let mut read = ReadBuf::new(&mut this.read);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut read))?;
            let length = read.filled().len();
            if length == 0 {
                return Poll::Ready(Ok(()));
            }
            this.judge(length);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Gated<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.flushed = false;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.flushed = false;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.flushed = true;
        Poll::Ready(Ok(()))
    }

    /// Unread bytes at the end would become a reset that takes the answer
    /// away (RFC 9112, section 9.6), so what still comes is thrown away for a
    /// moment.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
        }
        let lingering = this
            .lingering
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        loop {
            if lingering.as_mut().poll(context).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut read = ReadBuf::new(&mut this.read);
            match ready!(Pin::new(&mut this.stream).poll_read(context, &mut read)) {
                Ok(()) if !read.filled().is_empty() => {}
                // Its end, or an error that says the same.
                _ => return Poll::Ready(Ok(())),
            }
        }
    }
}
