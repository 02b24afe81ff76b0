//! Bodies on their way: counted, held to their limits, and never longer in
//! memory than a piece unless a rule has to see them whole.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use stockade_policy::network::judge::Denial;

use super::activity::Serving;
use super::environment::Meter;
use crate::context::denial;
use crate::credential::decode::Decoder;
use crate::credential::{Applied, Scrubber};
use crate::git::spool::Spool;

/// Why a body ended before its end. The text is for the log of the peer's
/// library only; the denial itself is kept in [`Fault`].
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("{0}")]
    Denied(String),
    #[error(transparent)]
    Broken(#[from] hyper::Error),
}

/// Where a body that flows leaves the denial that stopped it.
#[derive(Clone, Default)]
pub struct Fault(Rc<RefCell<Option<Denial>>>);

/// What may become of trailers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trailers {
    Kept,
    /// A credential is bound to the host: some servers treat trailers as
    /// headers, and nobody judged these.
    Dropped,
}

/// The body of a request to an origin.
pub enum RequestBody {
    Whole(Option<Bytes>),
    Streamed(Box<RequestStream>),
    /// A push to git that was judged whole.
    Spooled(Box<SpooledBody>),
}

pub struct SpooledBody {
    pub spool: Spool,
    pub left: u64,
    pub meter: Rc<dyn Meter>,
    pub serving: Rc<Serving>,
    pub fault: Fault,
}

pub struct RequestStream {
    pub incoming: Incoming,
    pub meter: Rc<dyn Meter>,
    pub serving: Rc<Serving>,
    /// Bytes that may still come.
    pub left: Option<u64>,
    pub trailers: Trailers,
    /// Looks for placeholders.
    pub applied: Applied,
    pub fault: Fault,
}

/// The body of a response to a client.
pub enum ResponseBody {
    Whole(Option<Bytes>),
    Streamed(Box<ResponseStream>),
    Scrubbed(Box<ScrubbedStream>),
}

/// A response that could carry a secret.
pub struct ScrubbedStream {
    pub stream: ResponseStream,
    pub scrubber: Scrubber,
    pub decoder: Option<Decoder>,
    /// Scrubbed in the headers and so far.
    pub counted: u64,
    /// What comes when the body is over.
    pub end: End,
}

pub enum End {
    NotYet,
    Trailers(HeaderMap),
    Over,
}

pub struct ResponseStream {
    pub incoming: Incoming,
    pub meter: Rc<dyn Meter>,
    pub serving: Rc<Serving>,
}

impl Fault {
    pub fn take(&self) -> Option<Denial> {
        self.0.borrow_mut().take()
    }

    pub fn seen(&self) -> Option<Denial> {
        self.0.borrow().clone()
    }

    fn stop<T>(&self, denial: Denial) -> Poll<Option<Result<T, BodyError>>> {
        let text = format!("{}: {}", denial.code, denial.reason);
        *self.0.borrow_mut() = Some(denial);
        Poll::Ready(Some(Err(BodyError::Denied(text))))
    }
}

impl RequestBody {
    pub fn whole(bytes: Bytes) -> Self {
        Self::Whole((!bytes.is_empty()).then_some(bytes))
    }

    pub fn empty() -> Self {
        Self::Whole(None)
    }
}

impl ResponseBody {
    pub fn whole(bytes: Bytes) -> Self {
        Self::Whole((!bytes.is_empty()).then_some(bytes))
    }

    pub fn empty() -> Self {
        Self::Whole(None)
    }
}

/// A body that a rule has to see whole, with at most `bytes_max` bytes.
pub async fn collect(
    mut incoming: Incoming,
    bytes_max: usize,
    serving: &Serving,
) -> Result<Bytes, Denial> {
    let too_large = || {
        denial(
            "body-too-large",
            format!(
                "the rule has to see the whole body, which must then have at most {bytes_max} bytes"
            ),
        )
    };
    if incoming.size_hint().lower() > bytes_max as u64 {
        return Err(too_large());
    }
    let mut whole: Option<Bytes> = None;
    let mut joined = BytesMut::new();
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|_| denial("bad-request", "the body ended before its end"))?;
        serving.touch();
        // Trailers have no place in what is rewritten.
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if joined.len() + data.len() + whole.as_ref().map_or(0, Bytes::len) > bytes_max {
            return Err(too_large());
        }
        match whole.take() {
            None if joined.is_empty() => whole = Some(data),
            first => {
                joined.extend_from_slice(&first.unwrap_or_default());
                joined.extend_from_slice(&data);
            }
        }
    }
    Ok(whole.unwrap_or_else(|| joined.freeze()))
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Streamed(stream) => stream.poll(context),
            Self::Spooled(spooled) => spooled.next(),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Streamed(stream) => stream.incoming.is_end_stream(),
            Self::Spooled(spooled) => spooled.left == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => exact(bytes.as_ref()),
            Self::Streamed(stream) => stream.incoming.size_hint(),
            Self::Spooled(spooled) => SizeHint::with_exact(spooled.left),
        }
    }
}

impl SpooledBody {
    /// The spool is memory, so reading it does not wait.
    fn next(&mut self) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let chunk = match self.spool.next_chunk() {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return Poll::Ready(None),
            Err(error) => {
                let reason = format!("the push cannot be read back: {error}");
                return self.fault.stop(denial("git-size", reason));
            }
        };
        let length = chunk.len() as u64;
        self.left = self.left.saturating_sub(length);
        self.serving.touch();
        if let Err(denial) = self.meter.uploaded(length) {
            return self.fault.stop(denial);
        }
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }
}

impl RequestStream {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(frame) = ready!(Pin::new(&mut self.incoming).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let frame = frame?;
        self.serving.touch();
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => return Poll::Ready(self.trailers(frame)),
        };
        let length = data.len() as u64;
        if let Some(left) = &mut self.left {
            match left.checked_sub(length) {
                Some(rest) => *left = rest,
                None => {
                    return self.fault.stop(denial(
                        "body-too-large",
                        "the body is longer than the rule allows",
                    ));
                }
            }
        }
        let counted = self.meter.uploaded(length);
        if let Err(denial) = counted.and_then(|()| self.applied.check_body(&data)) {
            return self.fault.stop(denial);
        }
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn trailers(&self, frame: Frame<Bytes>) -> Option<Result<Frame<Bytes>, BodyError>> {
        let mut trailers = frame.into_trailers().ok()?;
        if self.trailers == Trailers::Dropped {
            return None;
        }
        super::message::clean_trailers(&mut trailers);
        Some(Ok(Frame::trailers(trailers)))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Streamed(stream) => stream.poll(context),
            Self::Scrubbed(stream) => stream.poll(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Streamed(stream) => stream.incoming.is_end_stream(),
            Self::Scrubbed(stream) => matches!(stream.end, End::Over),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => exact(bytes.as_ref()),
            Self::Streamed(stream) => stream.incoming.size_hint(),
            // Stars are as long as what they replace.
            Self::Scrubbed(stream) => match stream.decoder {
                None => stream.stream.incoming.size_hint(),
                Some(_) => SizeHint::default(),
            },
        }
    }
}

impl ScrubbedStream {
    pub fn new(stream: ResponseStream, scrubber: Scrubber, decoder: Option<Decoder>) -> Self {
        let end = match stream.incoming.is_end_stream() {
            true => End::Over,
            false => End::NotYet,
        };
        Self {
            counted: scrubber.count(),
            stream,
            scrubber,
            decoder,
            end,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            match std::mem::replace(&mut self.end, End::Over) {
                End::Over => return Poll::Ready(None),
                End::Trailers(trailers) => {
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                End::NotYet => self.end = End::NotYet,
            }
            if let Some(decoder) = &mut self.decoder
                && let Some(piece) = decoder.pull().map_err(|why| self.stream.stopped(why))?
            {
                let clean = self.scrubber.chunk(piece);
                self.count();
                if !clean.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(clean))));
                }
                continue;
            }
            let frame = ready!(self.stream.poll(context)).transpose()?;
            let data = match frame.map(Frame::into_data) {
                Some(Ok(data)) => data,
                Some(Err(frame)) => match self.finish(frame.into_trailers().ok())? {
                    Some(rest) => return Poll::Ready(Some(Ok(Frame::data(rest)))),
                    None => continue,
                },
                None => match self.finish(None)? {
                    Some(rest) => return Poll::Ready(Some(Ok(Frame::data(rest)))),
                    None => continue,
                },
            };
            if let Some(decoder) = &mut self.decoder {
                decoder.push(&data);
                continue;
            }
            let clean = self.scrubber.chunk(data);
            self.count();
            if !clean.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(clean))));
            }
        }
    }

    /// The body is over: what was held back, then the trailers.
    fn finish(&mut self, trailers: Option<HeaderMap>) -> Result<Option<Bytes>, BodyError> {
        if let Some(decoder) = &self.decoder {
            decoder.finish().map_err(|why| self.stream.stopped(why))?;
        }
        let rest = self.scrubber.finish();
        self.end = match trailers {
            Some(mut trailers) => {
                self.scrubber.headers(&mut trailers);
                End::Trailers(trailers)
            }
            None => End::Over,
        };
        self.count();
        Ok((!rest.is_empty()).then_some(rest))
    }

    fn count(&mut self) {
        let found = self.scrubber.count() - self.counted;
        if found > 0 {
            self.counted += found;
            self.stream.meter.scrubbed(found);
        }
    }
}

impl ResponseStream {
    /// The client cannot be told any more; the log is.
    fn stopped(&self, denial: Denial) -> BodyError {
        self.meter.denied(None, &denial);
        BodyError::Denied(format!("{}: {}", denial.code, denial.reason))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(frame) = ready!(Pin::new(&mut self.incoming).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let frame = frame?;
        self.serving.touch();
        if let Some(data) = frame.data_ref() {
            let counted = self.meter.downloaded(data.len() as u64);
            counted.map_err(|denial| self.stopped(denial))?;
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

fn exact(bytes: Option<&Bytes>) -> SizeHint {
    SizeHint::with_exact(bytes.map_or(0, |bytes| bytes.len() as u64))
}
