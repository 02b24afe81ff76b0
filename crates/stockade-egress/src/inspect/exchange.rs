//! One request and its response: checked against the destination, judged,
//! given what it may carry, sent, and its answer cleaned.
//!
//! The order matters: what belongs to the connection goes first, then the
//! judge sees exactly what will be sent, then credentials are attached. Which
//! connection the request came on is left to [`super::forward`], its body to
//! [`super::outgoing`].

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use http::header::{CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, HOST, HeaderValue, TE, UPGRADE};
use http::request::Parts;
use http::{Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use stockade_policy::network::judge::{Denial, RequestHead, RequestPermit};

use super::activity::{Abandonment, Activity, Serving};
use super::authority::Protocol;
use super::body::{Fault, RequestBody, ResponseBody, ResponseStream, ScrubbedStream};
use super::environment::Environment;
use super::gated::Line;
use super::message::{self, Scheme, Upgrade, Wanted};
use super::outgoing::{Prepared, Step};
use super::refusal::{self, Dialect};
use super::upstream::{Failure, Upstream};
use super::websocket::{self, Watch};
use crate::context::denial;
use crate::credential::{Scrubber, decode};

/// What goes on after a connection has become a WebSocket.
pub type Relay = Pin<Box<dyn Future<Output = ()>>>;

/// A connection from inside whose requests go to one destination.
pub struct Session<E> {
    pub environment: Rc<E>,
    pub scheme: Scheme,
    pub upstream: Upstream<E>,
    pub activity: Rc<Activity>,
    pub relay: RefCell<Option<Relay>>,
    /// To the gate of HTTP/1.1.
    pub line: Arc<Line>,
    answered: Cell<u64>,
}

/// A request that may be sent.
pub struct Judged {
    pub wanted: Wanted,
    pub permit: RequestPermit,
    /// Method and path, for the log.
    pub line: String,
    pub serving: Rc<Serving>,
}

impl<E: Environment> Session<E> {
    pub fn new(
        environment: Rc<E>,
        scheme: Scheme,
        upstream: Upstream<E>,
        activity: Rc<Activity>,
        line: Arc<Line>,
    ) -> Self {
        Self {
            environment,
            scheme,
            upstream,
            activity,
            relay: RefCell::new(None),
            line,
            answered: Cell::new(0),
        }
    }

    /// Answers a request in any case: with the origin's response or with why
    /// there is none.
    pub async fn answer(
        self: Rc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, Infallible> {
        let abandonment = Abandonment::new(Rc::clone(&self.activity));
        let serving = Rc::new(self.activity.begin());
        self.answered.set(self.answered.get() + 1);
        let identifier = format!("{}-{}", self.environment.number(), self.answered.get());
        let dialect = Dialect::of(request.version(), request.headers());
        let asked_upgrade = request.headers().contains_key(UPGRADE);
        let answer = self.exchange(request, serving).await;
        let mut response = answer.unwrap_or_else(|denial| {
            let host = self.environment.destination().to_string();
            refusal::response(&denial, &host, &identifier, dialect)
        });
        // What came after a request to upgrade may be of the other protocol
        // and must not be taken for a request (row 33).
        if asked_upgrade && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        abandonment.answered();
        Ok(response)
    }

    async fn exchange(
        &self,
        mut request: Request<Incoming>,
        serving: Rc<Serving>,
    ) -> Result<Response<ResponseBody>, Denial> {
        let upgraded = hyper::upgrade::on(&mut request);
        let (mut parts, incoming) = request.into_parts();
        let wanted = Wanted::read(&mut parts, self.environment.destination(), self.scheme)
            .inspect_err(|denial| {
                let line = format!("{} {}", parts.method, parts.uri.path());
                self.environment.denied(Some(&line), denial);
            })?;
        let line = wanted.line(&parts.method);
        let permit = self.judge(&parts, &wanted, &line)?;
        let judged = Judged {
            wanted,
            permit,
            line,
            serving,
        };
        match judged.wanted.upgrade {
            Upgrade::WebSocket => self.upgrade(parts, judged, upgraded).await,
            Upgrade::None => self.forward(parts, incoming, judged).await,
        }
    }

    fn judge(&self, parts: &Parts, wanted: &Wanted, line: &str) -> Result<RequestPermit, Denial> {
        let head = RequestHead {
            method: parts.method.as_str(),
            path: wanted.target.path(),
            query: &wanted.parameters,
            headers: &wanted.headers,
            upgrade_websocket: wanted.upgrade == Upgrade::WebSocket,
            tls: self.scheme == Scheme::Https,
        };
        self.environment.judge_request(&head, line)
    }

    async fn forward(
        &self,
        mut parts: Parts,
        incoming: Incoming,
        judged: Judged,
    ) -> Result<Response<ResponseBody>, Denial> {
        let fault = Fault::default();
        let step = self.prepare(&mut parts, incoming, &judged, &fault).await;
        let prepared = match step.inspect_err(|denial| self.record(&judged, denial))? {
            Step::Send(prepared) => prepared,
            Step::Answer(response) => return Ok(*response),
        };
        let Prepared {
            body,
            target,
            scrubber,
        } = prepared;
        self.address(&mut parts, target)?;
        let request = Request::from_parts(parts, body);
        let sent = self.upstream.send(request, &fault).await;
        let response = sent.map_err(|failure| self.fail(&judged, failure))?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let denial = denial(
                "bad-request",
                "the origin changes to another protocol unasked",
            );
            self.record(&judged, &denial);
            return Err(denial);
        }
        self.incoming(response, scrubber, Rc::clone(&judged.serving))
            .inspect_err(|denial| self.record(&judged, denial))
    }

    /// Gives the request its target and the name of its host.
    fn address(&self, parts: &mut Parts, target: String) -> Result<(), Denial> {
        let destination = self.environment.destination();
        let authority = message::authority_text(destination, self.scheme);
        let uri = match self.upstream.protocol() {
            Protocol::Http1 => {
                let host = HeaderValue::from_str(&authority).map_err(unwritable)?;
                parts.headers.insert(HOST, host);
                parts.version = Version::HTTP_11;
                if parts.headers.contains_key(TE) {
                    parts
                        .headers
                        .insert(CONNECTION, HeaderValue::from_static("te"));
                }
                Uri::try_from(target).map_err(unwritable)?
            }
            Protocol::Http2 => {
                parts.headers.remove(HOST);
                parts.version = Version::HTTP_2;
                Uri::builder()
                    .scheme(self.scheme.as_str())
                    .authority(authority)
                    .path_and_query(target)
                    .build()
                    .map_err(unwritable)?
            }
        };
        parts.uri = uri;
        Ok(())
    }

    /// The response as the client may see it.
    fn incoming(
        &self,
        response: Response<Incoming>,
        scrubber: Option<Scrubber>,
        serving: Rc<Serving>,
    ) -> Result<Response<ResponseBody>, Denial> {
        let (mut parts, incoming) = response.into_parts();
        message::clean_response(&mut parts.headers)?;
        // Versions are each connection's own.
        parts.version = Version::HTTP_11;
        parts.extensions.clear();
        let stream = ResponseStream {
            incoming,
            meter: self.environment.meter(),
            serving,
        };
        let Some(mut scrubber) = scrubber else {
            let body = ResponseBody::Streamed(Box::new(stream));
            return Ok(Response::from_parts(parts, body));
        };
        let mut codings = parts.headers.get_all(CONTENT_ENCODING).iter();
        let decoder = decode::decoder(codings.next())?;
        if codings.next().is_some() {
            return Err(denial(
                "unscannable-encoding",
                "the response is coded more than once",
            ));
        }
        if decoder.is_some() {
            parts.headers.remove(CONTENT_ENCODING);
            parts.headers.remove(CONTENT_LENGTH);
        }
        scrubber.headers(&mut parts.headers);
        if scrubber.count() > 0 {
            self.environment.scrubbed(scrubber.count());
        }
        self.environment
            .vault()
            .remember_cookies(self.environment.destination(), &parts.headers);
        let body = ScrubbedStream::new(stream, scrubber, decoder);
        Ok(Response::from_parts(
            parts,
            ResponseBody::Scrubbed(Box::new(body)),
        ))
    }

    async fn upgrade(
        &self,
        mut parts: Parts,
        judged: Judged,
        client: OnUpgrade,
    ) -> Result<Response<ResponseBody>, Denial> {
        let record = |denial: &Denial| self.record(&judged, denial);
        parts.headers.remove(TE);
        let attached = self.attach(&mut parts, &judged).await.inspect_err(record)?;
        let reads_frames = attached.scrubber.is_some() || attached.applied.checks_body();
        websocket::prepare(&mut parts, reads_frames).inspect_err(record)?;
        self.address(&mut parts, attached.target)?;
        let request = Request::from_parts(parts, RequestBody::empty());
        let sent = self.upstream.send(request, &Fault::default()).await;
        let mut response = sent.map_err(|failure| self.fail(&judged, failure))?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let serving = Rc::clone(&judged.serving);
            return self
                .incoming(response, attached.scrubber, serving)
                .inspect_err(record);
        }
        let origin = hyper::upgrade::on(&mut response);
        let (mut head, _) = response.into_parts();
        websocket::accept(&mut head.headers, reads_frames).inspect_err(record)?;
        let mut scrubber = attached.scrubber;
        if let Some(scrubber) = &mut scrubber {
            scrubber.headers(&mut head.headers);
        }
        let watch = Watch {
            meter: self.environment.meter(),
            serving: Rc::clone(&judged.serving),
            applied: attached.applied,
            scrubber,
        };
        let relay = websocket::relay(client, origin, watch);
        *self.relay.borrow_mut() = Some(Box::pin(relay));
        self.line.switch();
        head.extensions.clear();
        Ok(Response::from_parts(head, ResponseBody::empty()))
    }

    fn fail(&self, judged: &Judged, failure: Failure) -> Denial {
        match failure {
            Failure::Recorded(denial) => denial,
            Failure::Body(denial) => {
                self.record(judged, &denial);
                denial
            }
        }
    }

    /// Records a denial that the judge has not seen.
    pub(super) fn record(&self, judged: &Judged, denial: &Denial) {
        const OF_THE_JUDGE: [&str; 3] = ["git-read", "git-push", "git-ref"];
        const DISHONEST: [&str; 3] = [
            "placeholder-off-binding",
            "foreign-credential",
            "git-secret",
        ];
        if DISHONEST.contains(&denial.code) {
            self.environment.alert(denial.code, &denial.reason);
        }
        if !OF_THE_JUDGE.contains(&denial.code) {
            self.environment.denied(Some(&judged.line), denial);
        }
    }
}

fn unwritable(error: impl std::fmt::Display) -> Denial {
    denial(
        "bad-request",
        format!("the request cannot be written anew: {error}"),
    )
}
