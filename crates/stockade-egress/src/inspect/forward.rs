//! The doors of the inspector: how a connection from inside becomes requests.
//!
//! Each serves one connection until it ends, and everything that it started
//! ends with it, also when the caller drops it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use stockade_policy::network::Destination;
use stockade_policy::network::judge::Denial;
use tokio::io::{AsyncRead, AsyncWrite};

use super::activity::Activity;
use super::authority::Protocol;
use super::body::ResponseBody;
use super::environment::Environment;
use super::exchange::Session;
use super::gated::{Gated, Line};
use super::message::Scheme;
use super::refusal::{self, Dialect};
use super::tasks::Tasks;
use super::tls::{BadHello, ClientTls, Greeted};
use super::upstream::Upstream;
use crate::context::denial;
use crate::front::authority::Authority;
use crate::front::gate::Forms;

/// A head with everything in it; the gate in front allows 32 KiB.
const HTTP1_BUFFER_BYTES: usize = 64 * 1024;
const FIELDS_MAX: usize = 100;
/// Names and values of one head of HTTP/2, with 32 bytes for each field.
const HEAD_BYTES_MAX: u32 = 32 * 1024;
const STREAMS_MAX: u32 = 100;
/// Streams that a client may reset before they were looked at (CVE-2023-44487),
/// and errors it may cause (CVE-2025-8671), before its connection is closed.
const RESETS_MAX: usize = 20;
const LOCAL_RESETS_MAX: usize = 256;
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
const SEND_BUFFER_BYTES: usize = 128 * 1024;
const PING_EVERY: Duration = Duration::from_secs(60);
const PONG_WITHIN: Duration = Duration::from_secs(20);
/// How long a client of HTTP/2 has to finish after it was told to.
const GOODBYE_TIME_MAX: Duration = Duration::from_secs(5);
/// Destinations that one connection to the explicit proxy keeps open.
const PROXIED_MAX: usize = 8;

/// Serves TLS that is inspected; the ClientHello is the first thing on
/// `client`.
pub async fn serve_tls<E, C>(environment: Rc<E>, client: C) -> io::Result<()>
where
    E: Environment,
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let greeted = Greeted::read(client).await?;
    let destination = environment.destination().clone();
    let offer = match greeted.offer(&destination) {
        Ok(offer) => offer,
        Err(why) => {
            environment.denied(None, &bad_hello(why));
            return greeted.refuse().await;
        }
    };
    let (tasks, _guard) = Tasks::new();
    let upstream = Upstream::new(Rc::clone(&environment), Scheme::Https, tasks.clone());
    let protocol = match upstream.connect(offer).await {
        Ok(protocol) => protocol,
        // The client is told over TLS, as it would be by the origin.
        Err(denial) => {
            upstream.unreached(offer.preferred(), denial);
            offer.preferred()
        }
    };
    let authority = environment
        .authority()
        .ok_or_else(|| io::Error::other("nothing is inspected in this sandbox"))?;
    let configuration = authority
        .configuration(destination.host(), protocol)
        .map_err(io::Error::other)?;
    let client = greeted.accept(configuration).await?;
    let session = Rc::new(Session::new(
        Rc::clone(&environment),
        Scheme::Https,
        upstream,
        Activity::new(),
        line_of(&*environment),
    ));
    let served = async {
        match protocol {
            Protocol::Http1 => serve_http1(session, client).await,
            Protocol::Http2 => serve_http2(session, client, tasks).await,
        }
    };
    until_revoked(&*environment, served).await
}

/// Serves plain HTTP/1.1 whose requests all go to one destination.
pub async fn serve_plain<E, C>(environment: Rc<E>, client: C) -> io::Result<()>
where
    E: Environment,
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (tasks, _guard) = Tasks::new();
    let upstream = Upstream::new(Rc::clone(&environment), Scheme::Http, tasks);
    let session = Rc::new(Session::new(
        Rc::clone(&environment),
        Scheme::Http,
        upstream,
        Activity::new(),
        line_of(&*environment),
    ));
    until_revoked(&*environment, serve_http1(session, client)).await
}

/// How a client of the explicit proxy gets at destinations.
pub trait Door: 'static {
    type Environment: Environment;

    /// Number of the client's connection, for what goes to no destination.
    fn number(&self) -> u64;

    /// Judges a destination, records that, and gives the conversation with it.
    fn open(
        &self,
        destination: Destination,
    ) -> impl Future<Output = Result<Rc<Self::Environment>, Closed>>;

    /// Records a request that names no destination.
    fn denied(&self, denial: &Denial);
}

/// A destination that may not be reached.
pub struct Closed {
    pub denial: Denial,
    /// Under which it is recorded.
    pub number: u64,
}

/// Serves an explicit proxy's plain HTTP/1.1, where each request names its
/// destination in an absolute URI. Several requests may share a conversation.
pub async fn serve_proxy<C, D>(client: C, door: D) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    D: Door,
{
    let (tasks, _guard) = Tasks::new();
    let activity = Activity::new();
    let line = Arc::new(Line::new(door.number(), String::new()));
    let proxy = Rc::new(Proxy {
        door,
        tasks,
        activity: Rc::clone(&activity),
        line: Arc::clone(&line),
        sessions: RefCell::default(),
        upgraded: RefCell::new(None),
    });
    let service = {
        let proxy = Rc::clone(&proxy);
        service_fn(move |request| Rc::clone(&proxy).answer(request))
    };
    let served = serve_gated(client, Forms::Proxy, &activity, &line, service).await;
    if let Some(bad) = line.refused() {
        proxy.door.denied(&crate::refusal::bad_head(bad));
    }
    served?;
    let upgraded = proxy.upgraded.borrow_mut().take();
    match upgraded {
        Some(session) => until_revoked(&*session.environment, relay(&session)).await,
        None => Ok(()),
    }
}

/// What a client of the explicit proxy has open.
struct Proxy<D: Door> {
    door: D,
    tasks: Tasks,
    activity: Rc<Activity>,
    line: Arc<Line>,
    sessions: RefCell<HashMap<Destination, Rc<Session<D::Environment>>>>,
    upgraded: RefCell<Option<Rc<Session<D::Environment>>>>,
}

impl<D: Door> Proxy<D> {
    async fn answer(
        self: Rc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, Infallible> {
        let Some(destination) = proxied(&request) else {
            let denial = denial(
                "bad-request",
                "the request to the proxy names no http:// address",
            );
            self.door.denied(&denial);
            let identifier = self.door.number().to_string();
            return Ok(refusal::response(&denial, "", &identifier, Dialect::Http));
        };
        // Deciding may take a person's time; the clock of heads rests.
        let serving = self.activity.begin();
        let session = match self.session(&destination).await {
            Ok(session) => session,
            Err(Closed { denial, number }) => {
                let (host, identifier) = (destination.to_string(), number.to_string());
                return Ok(refusal::response(
                    &denial,
                    &host,
                    &identifier,
                    Dialect::Http,
                ));
            }
        };
        let response = Rc::clone(&session).answer(request).await;
        drop(serving);
        if session.relay.borrow().is_some() {
            *self.upgraded.borrow_mut() = Some(session);
        }
        response
    }

    async fn session(
        &self,
        destination: &Destination,
    ) -> Result<Rc<Session<D::Environment>>, Closed> {
        if let Some(known) = self.sessions.borrow().get(destination) {
            return Ok(Rc::clone(known));
        }
        let environment = self.door.open(destination.clone()).await?;
        self.watch(Rc::clone(&environment));
        let upstream = Upstream::new(Rc::clone(&environment), Scheme::Http, self.tasks.clone());
        let session = Rc::new(Session::new(
            environment,
            Scheme::Http,
            upstream,
            Rc::clone(&self.activity),
            Arc::clone(&self.line),
        ));
        let mut sessions = self.sessions.borrow_mut();
        if sessions.len() >= PROXIED_MAX {
            sessions.clear();
        }
        sessions.insert(destination.clone(), Rc::clone(&session));
        Ok(session)
    }

    /// Closes the client's connection once one of its conversations must end.
    fn watch(&self, environment: Rc<D::Environment>) {
        let activity = Rc::clone(&self.activity);
        self.tasks.spawn(async move {
            environment.revoked().await;
            activity.close();
        });
    }
}

fn line_of(environment: &impl Environment) -> Arc<Line> {
    let host = environment.destination().to_string();
    Arc::new(Line::new(environment.number(), host))
}

async fn until_revoked<E: Environment>(
    environment: &E,
    served: impl Future<Output = io::Result<()>>,
) -> io::Result<()> {
    tokio::select! {
        ended = served => ended,
        () = environment.revoked() => Ok(()),
    }
}

fn proxied(request: &Request<Incoming>) -> Option<Destination> {
    if request.uri().scheme_str() != Some("http") {
        return None;
    }
    let authority = request.uri().authority()?.as_str();
    let authority = Authority::parse(authority.as_bytes()).ok()?;
    authority.destination(Scheme::Http.default_port()).ok()
}

fn bad_hello(why: BadHello) -> Denial {
    let code = match why {
        BadHello::OtherName => "sni-mismatch",
        BadHello::NoName => "no-sni",
        BadHello::NoProtocol => "bad-request",
    };
    denial(code, why.to_string())
}

async fn serve_http1<E, C>(session: Rc<Session<E>>, client: C) -> io::Result<()>
where
    E: Environment,
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = {
        let session = Rc::clone(&session);
        service_fn(move |request| Rc::clone(&session).answer(request))
    };
    let served = serve_gated(
        client,
        Forms::Origin,
        &session.activity,
        &session.line,
        service,
    );
    let served = served.await;
    if let Some(bad) = session.line.refused() {
        let denial = crate::refusal::bad_head(bad);
        session.environment.denied(None, &denial);
    }
    served?;
    relay(&session).await
}

async fn relay<E>(session: &Session<E>) -> io::Result<()> {
    let relay = session.relay.borrow_mut().take();
    if let Some(relay) = relay {
        relay.await;
    }
    Ok(())
}

async fn serve_gated<C, S, F>(
    client: C,
    forms: Forms,
    activity: &Activity,
    line: &Arc<Line>,
    service: S,
) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<
            Request<Incoming>,
            Response = Response<ResponseBody>,
            Error = Infallible,
            Future = F,
        >,
    F: Future<Output = Result<Response<ResponseBody>, Infallible>>,
{
    let client = Gated::new(client, forms, Arc::clone(line), activity.head());
    let connection = http1::Builder::new()
        .auto_date_header(false)
        .max_headers(FIELDS_MAX)
        .max_buf_size(HTTP1_BUFFER_BYTES)
        .serve_connection(TokioIo::new(client), service)
        .with_upgrades();
    tokio::select! {
        ended = connection => ended.map_err(io::Error::other),
        () = activity.expired() => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn serve_http2<E, C>(
    session: Rc<Session<E>>,
    client: ClientTls<C>,
    tasks: Tasks,
) -> io::Result<()>
where
    E: Environment,
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let activity = Rc::clone(&session.activity);
    let service = service_fn(move |request| Rc::clone(&session).answer(request));
    let connection = http2::Builder::new(tasks)
        .auto_date_header(false)
        .timer(TokioTimer::new())
        .max_header_list_size(HEAD_BYTES_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(LOCAL_RESETS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PONG_WITHIN)
        .serve_connection(TokioIo::new(client), service);
    tokio::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended.map_err(io::Error::other),
        () = activity.expired() => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::time::timeout(GOODBYE_TIME_MAX, connection)
        .await?
        .map_err(io::Error::other)
}
