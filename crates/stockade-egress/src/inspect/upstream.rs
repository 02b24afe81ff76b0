//! Connections to the one origin of a conversation: made when they are needed,
//! used again while they are open, never shared with another conversation.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use http::{HeaderMap, Method, Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::TokioIo;
use stockade_policy::network::judge::Denial;
use tokio::io::{AsyncRead, AsyncWrite};

use super::authority::Protocol;
use super::body::{Fault, RequestBody};
use super::environment::Environment;
use super::message::Scheme;
use super::tasks::Tasks;
use super::tls::Offer;
use crate::context::denial;

/// How long an origin may take to begin its answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(600);

const HTTP1_BUFFER_BYTES: usize = 128 * 1024;
/// An origin's heads: as large as large servers allow.
const FIELDS_MAX: usize = 200;
const HEAD_BYTES_MAX: u32 = 64 * 1024;
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 2 * 1024 * 1024;

/// Why there is no response.
pub enum Failure {
    /// Stands in the log already.
    Recorded(Denial),
    /// Found in the body that was to be sent.
    Body(Denial),
}

/// The origin's side of one conversation.
pub struct Upstream<E> {
    environment: Rc<E>,
    scheme: Scheme,
    tasks: Tasks,
    /// Agreed upon with the first connection; later ones must speak the same,
    /// because the client goes on speaking it.
    protocol: Cell<Protocol>,
    sender: RefCell<Option<Sender>>,
    /// Why the first connection failed, for the first request to tell.
    failure: RefCell<Option<Denial>>,
}

enum Sender {
    Http1(http1::SendRequest<RequestBody>),
    Http2(http2::SendRequest<RequestBody>),
}

/// Whether a connection has carried requests before, so that the origin may
/// have closed it meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Age {
    Fresh,
    Used,
}

/// A request that may be sent a second time: it changes nothing (RFC 9110,
/// section 9.2.2) and has no body.
struct Again {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

impl<E: Environment> Upstream<E> {
    pub fn new(environment: Rc<E>, scheme: Scheme, tasks: Tasks) -> Self {
        Self {
            environment,
            scheme,
            tasks,
            protocol: Cell::new(Protocol::Http1),
            sender: RefCell::new(None),
            failure: RefCell::new(None),
        }
    }

    pub fn protocol(&self) -> Protocol {
        self.protocol.get()
    }

    /// The origin could not be asked: `protocol` is what the client gets, and
    /// `denial` what its first request is told. Later ones try anew.
    pub fn unreached(&self, protocol: Protocol, denial: Denial) {
        self.protocol.set(protocol);
        *self.failure.borrow_mut() = Some(denial);
    }

    /// Connects and agrees upon one of the protocols of `offer`.
    pub async fn connect(&self, offer: Offer) -> Result<Protocol, Denial> {
        let stream = self.environment.dial().await?;
        let (sender, protocol) = match self.scheme {
            Scheme::Http => (self.begin(stream, Protocol::Http1).await?, Protocol::Http1),
            Scheme::Https => {
                let host = self.environment.destination().host();
                let (stream, protocol) = self
                    .environment
                    .origins()
                    .connect(host, offer, stream)
                    .await
                    .map_err(|why| {
                        let denial = denial("upstream-tls", format!("TLS to {host} failed: {why}"));
                        self.environment.denied(None, &denial);
                        denial
                    })?;
                (self.begin(stream, protocol).await?, protocol)
            }
        };
        self.protocol.set(protocol);
        *self.sender.borrow_mut() = Some(sender);
        Ok(protocol)
    }

    /// Sends a request; its headers are as the origin is to see them. `fault`
    /// is where its body leaves a denial.
    pub async fn send(
        &self,
        request: Request<RequestBody>,
        fault: &Fault,
    ) -> Result<Response<Incoming>, Failure> {
        let sending = self.send_or_again(request, fault);
        let late = |_| Err(self.failed("it did not answer in time"));
        let sent = tokio::time::timeout(ANSWER_TIME_MAX, sending).await;
        sent.unwrap_or_else(late)
            .map_err(|denial| match fault.take() {
                Some(denial) => Failure::Body(denial),
                None => Failure::Recorded(denial),
            })
    }

    async fn send_or_again(
        &self,
        request: Request<RequestBody>,
        fault: &Fault,
    ) -> Result<Response<Incoming>, Denial> {
        let (mut sender, age) = self.sender().await?;
        let again = (age == Age::Used).then(|| Again::of(&request)).flatten();
        let failure = match self.attempt(&mut sender, request).await {
            Ok(response) => {
                self.keep(sender);
                return Ok(response);
            }
            Err(failure) => failure,
        };
        if let Some(denial) = fault.seen() {
            return Err(denial);
        }
        let reason = error_text(failure.error());
        let unsent = failure.into_message_if_unsent(age);
        let Some(request) = unsent.or_else(|| again.map(Again::request)) else {
            return Err(self.failed(&reason));
        };
        self.connect(self.protocol().into()).await?;
        let (mut sender, _) = self.sender().await?;
        match self.attempt(&mut sender, request).await {
            Ok(response) => {
                self.keep(sender);
                Ok(response)
            }
            Err(failure) => Err(fault
                .seen()
                .unwrap_or_else(|| self.failed(&error_text(failure.error())))),
        }
    }

    async fn attempt(
        &self,
        sender: &mut Sender,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<RequestBody>>> {
        match sender {
            Sender::Http1(sender) => sender.try_send_request(request).await,
            Sender::Http2(sender) => sender.try_send_request(request).await,
        }
    }

    /// A connection that can take a request now.
    async fn sender(&self) -> Result<(Sender, Age), Denial> {
        if let Some(sender) = self.usable().await {
            return Ok((sender, Age::Used));
        }
        if let Some(denial) = self.failure.borrow_mut().take() {
            return Err(denial);
        }
        self.connect(self.protocol().into()).await?;
        match self.usable().await {
            Some(sender) => Ok((sender, Age::Fresh)),
            None => Err(self.failed("it closed the connection at once")),
        }
    }

    async fn usable(&self) -> Option<Sender> {
        let sender = match &mut *self.sender.borrow_mut() {
            // Streams share their connection.
            Some(Sender::Http2(sender)) => Some(Sender::Http2(sender.clone())),
            other => other.take(),
        };
        match sender? {
            Sender::Http1(mut sender) => {
                sender.ready().await.ok()?;
                Some(Sender::Http1(sender))
            }
            Sender::Http2(mut sender) => {
                sender.ready().await.ok()?;
                Some(Sender::Http2(sender))
            }
        }
    }

    fn keep(&self, sender: Sender) {
        if let Sender::Http1(_) = sender {
            *self.sender.borrow_mut() = Some(sender);
        }
    }

    async fn begin<S>(&self, stream: S, protocol: Protocol) -> Result<Sender, Denial>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = TokioIo::new(stream);
        let broken = |error: hyper::Error| self.failed(&error_text(&error));
        match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::Builder::new()
                    // As most programs write them; some old servers care.
                    .title_case_headers(true)
                    .max_headers(FIELDS_MAX)
                    .max_buf_size(HTTP1_BUFFER_BYTES)
                    .handshake(stream)
                    .await
                    .map_err(broken)?;
                self.tasks.spawn(async move {
                    // Its error is also that of the request it carried.
                    drop(connection.with_upgrades().await);
                });
                Ok(Sender::Http1(sender))
            }
            Protocol::Http2 => {
                let (sender, connection) = http2::Builder::new(self.tasks.clone())
                    .initial_stream_window_size(STREAM_WINDOW_BYTES)
                    .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                    .max_header_list_size(HEAD_BYTES_MAX)
                    .handshake(stream)
                    .await
                    .map_err(broken)?;
                self.tasks.spawn(async move { drop(connection.await) });
                Ok(Sender::Http2(sender))
            }
        }
    }

    fn failed(&self, reason: &str) -> Denial {
        let destination = self.environment.destination();
        let reason = format!("{destination} did not answer as a web server: {reason}");
        let denial = denial("unresolvable", reason);
        self.environment.denied(None, &denial);
        denial
    }
}

impl Again {
    fn of(request: &Request<RequestBody>) -> Option<Self> {
        let safe = matches!(
            *request.method(),
            Method::GET | Method::HEAD | Method::OPTIONS
        );
        let empty = matches!(request.body(), RequestBody::Whole(None));
        (safe && empty).then(|| Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            headers: request.headers().clone(),
        })
    }

    fn request(self) -> Request<RequestBody> {
        let mut request = Request::new(RequestBody::empty());
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        *request.headers_mut() = self.headers;
        request
    }
}

trait Unsent {
    fn into_message_if_unsent(self, age: Age) -> Option<Request<RequestBody>>;
}

impl Unsent for TrySendError<Request<RequestBody>> {
    /// The request, when nothing of it was sent over a connection that the
    /// origin had closed already.
    fn into_message_if_unsent(mut self, age: Age) -> Option<Request<RequestBody>> {
        (age == Age::Used).then(|| self.take_message()).flatten()
    }
}

/// An error with its causes.
pub fn error_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}
