//! What the tests stand on: a conversation whose dial leads to an origin on
//! the loopback, and origins that tell what they were sent.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::Future;
use std::io::Write as _;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use stockade_policy::network::Destination;
use stockade_policy::network::destination::RawHost;
use stockade_policy::network::judge::{
    Denial, GitOperation, GitPermit, Judge, RequestHead, RequestPermit, Ruling,
};
use stockade_policy::network::rules::{
    Approval, Attach, Binding, Budget, Capture, Content, Git, Mode, NetworkPlan, NetworkRule,
    RuleSet, Source, Target, TlsMode,
};
use stockade_policy::plan::Rule;
use stockade_policy::value::HostReach;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::context::denial;
use crate::credential::{Fetch, Vault};
use crate::git::needles::Needles;
use crate::git::spool::Room;
use crate::inspect::authority::{Authority, Protocol, Scope};
use crate::inspect::environment::{Environment, Meter};
use crate::inspect::fetch::Fetcher;
use crate::inspect::forward::serve_tls;
use crate::inspect::tls::{Origins, VERSIONS, provider};
use crate::secret::SecretText;
use crate::wire::SecretSource;

pub const HOST: &str = "origin.test";
pub const SECRET: &str = "ghp_0123456789abcdefghijklmnopqrstuvwxyz";

pub type OriginBody = UnsyncBoxBody<Bytes, Infallible>;

/// A conversation with [`HOST`].
pub struct Double {
    pub destination: Destination,
    pub judge: Rc<Judge>,
    pub origins: RefCell<&'static Origins>,
    pub authority: Rc<Authority>,
    pub origin: Cell<SocketAddr>,
    pub dials: Cell<u64>,
    pub revoked: Notify,
    pub requests: Cell<u64>,
    pub denials: RefCell<Vec<Denial>>,
    pub alerts: RefCell<Vec<String>>,
    pub uploaded: Cell<u64>,
    pub downloaded: Cell<u64>,
    pub upload_max: Cell<u64>,
    pub scrubbed: Cell<u64>,
    pub credentials: RefCell<Vec<String>>,
    pub vault: Rc<Vault>,
    pub needles: Needles,
    pub room: Room,
}

/// An inspected world: an origin, the inspector, and what is trusted inside.
pub struct World {
    pub double: Rc<Double>,
    /// Where the inspector listens for clients.
    pub address: SocketAddr,
    /// What programs inside trust.
    pub pem: String,
    pub tasks: Rc<LocalSet>,
}

impl Meter for Double {
    fn uploaded(&self, bytes: u64) -> Result<(), Denial> {
        self.uploaded.set(self.uploaded.get() + bytes);
        if self.uploaded.get() > self.upload_max.get() {
            return Err(denial("budget", "no more may be uploaded"));
        }
        Ok(())
    }

    fn downloaded(&self, bytes: u64) -> Result<(), Denial> {
        self.downloaded.set(self.downloaded.get() + bytes);
        Ok(())
    }

    fn scrubbed(&self, count: u64) {
        self.scrubbed.set(self.scrubbed.get() + count);
    }

    fn denied(&self, _line: Option<&str>, denial: &Denial) {
        self.denials.borrow_mut().push(denial.clone());
    }

    fn alert(&self, code: &str, detail: &str) {
        self.alerts.borrow_mut().push(format!("{code}: {detail}"));
    }
}

impl Environment for Double {
    fn destination(&self) -> &Destination {
        &self.destination
    }

    fn number(&self) -> u64 {
        7
    }

    async fn dial(&self) -> Result<TcpStream, Denial> {
        self.dials.set(self.dials.get() + 1);
        TcpStream::connect(self.origin.get())
            .await
            .map_err(|error| denial("unresolvable", error.to_string()))
    }

    async fn revoked(&self) {
        self.revoked.notified().await;
    }

    fn judge_request(&self, head: &RequestHead<'_>, _line: &str) -> Result<RequestPermit, Denial> {
        self.requests.set(self.requests.get() + 1);
        permitted(self.judge.request(&self.destination, head, 0)).inspect_err(|denial| {
            self.denials.borrow_mut().push(denial.clone());
        })
    }

    fn judge_git(&self, operation: &GitOperation<'_>, _line: &str) -> Result<GitPermit, Denial> {
        permitted(self.judge.git(&self.destination, operation, 0))
    }

    fn credential_used(&self, name: &str) {
        self.credentials.borrow_mut().push(name.to_owned());
    }

    fn origins(&self) -> &Origins {
        *self.origins.borrow()
    }

    fn authority(&self) -> Option<&Authority> {
        Some(&self.authority)
    }

    fn vault(&self) -> Rc<Vault> {
        Rc::clone(&self.vault)
    }

    fn needles(&self) -> Result<Needles, Denial> {
        Ok(self.needles.clone())
    }

    fn room(&self) -> Room {
        self.room.clone()
    }

    fn meter(self: &Rc<Self>) -> Rc<dyn Meter> {
        Rc::clone(self) as Rc<dyn Meter>
    }
}

impl Double {
    /// Another conversation in the same world.
    pub fn again(&self, destination: Destination, origin: SocketAddr) -> Self {
        Self {
            destination,
            judge: Rc::clone(&self.judge),
            origins: RefCell::new(*self.origins.borrow()),
            authority: Rc::clone(&self.authority),
            origin: Cell::new(origin),
            dials: Cell::new(0),
            revoked: Notify::new(),
            requests: Cell::new(0),
            denials: RefCell::default(),
            alerts: RefCell::default(),
            uploaded: Cell::new(0),
            downloaded: Cell::new(0),
            upload_max: Cell::new(u64::MAX),
            scrubbed: Cell::new(0),
            credentials: RefCell::default(),
            vault: Rc::clone(&self.vault),
            needles: self.needles.clone(),
            room: self.room.clone(),
        }
    }

    pub fn codes(&self) -> Vec<&'static str> {
        self.denials
            .borrow()
            .iter()
            .map(|denial| denial.code)
            .collect()
    }
}

fn permitted<T>(ruling: Ruling<T>) -> Result<T, Denial> {
    match ruling {
        Ruling::Permit(permit) => Ok(permit),
        Ruling::Denied(denial) | Ruling::Unknown(denial) => Err(denial),
    }
}

/// A plan with one rule for [`HOST`].
pub fn plan(content: Content) -> NetworkPlan {
    let rule = NetworkRule {
        rule: rule("network.rule[0]"),
        target: Target::Host {
            reach: HostReach::Exact,
            name: HOST.to_owned(),
        },
        ports: Vec::new(),
        tls: TlsMode::Inspect,
        content: Some(content),
        git: None,
        allow_private: Vec::new(),
        no_alias: false,
        budget: Budget::default(),
        expires_unix: None,
    };
    NetworkPlan {
        sets: vec![RuleSet {
            origin: "test".to_owned(),
            rules: vec![rule],
        }],
        deny: Vec::new(),
        credentials: Vec::new(),
        approval: Approval::Deny,
        approval_wait_ms: 0,
        publish: Vec::new(),
        host_ports: Vec::new(),
        sockets: Vec::new(),
        budget: Budget::default(),
        capture: Capture::Transparent,
        resolvers: Vec::new(),
        roots: Vec::new(),
        upstream_proxy: None,
        nat64: Vec::new(),
        metrics: false,
    }
}

pub fn rule(id: &str) -> Rule {
    Rule {
        id: id.to_owned(),
        origin: "stockade.toml".to_owned(),
        reason: String::new(),
    }
}

/// A plan in which `a/read` may be read and `a/push` pushed to, without
/// deletions.
pub fn git_plan() -> NetworkPlan {
    let mut plan = plan(Content::default());
    let rule = &mut plan.sets[0].rules[0];
    rule.content = None;
    rule.git = Some(Git {
        read: vec!["a/read".to_owned()],
        push: vec!["a/push".to_owned()],
        ..Git::default()
    });
    plan
}

/// A credential for [`HOST`] in `Authorization`.
pub fn bound(mut plan: NetworkPlan, mode: Mode) -> NetworkPlan {
    plan.credentials.push(Binding {
        rule: rule("credential.token"),
        name: "token".to_owned(),
        source: Source::Env {
            variable: "TOKEN".to_owned(),
        },
        host: Target::Host {
            reach: HostReach::Exact,
            name: HOST.to_owned(),
        },
        ports: vec![(443, 443)],
        methods: Vec::new(),
        paths: Vec::new(),
        mode,
        form: Attach::Header {
            name: "Authorization".to_owned(),
            format: "Bearer {}".to_owned(),
        },
        variable: (mode == Mode::Replace).then(|| "TOKEN".to_owned()),
        scrub: true,
        plaintext: false,
        expires_unix: None,
    });
    plan
}

/// Runs a test against an origin that speaks `protocols` and answers with
/// [`tell`].
pub fn run<F: Future<Output = ()>>(
    plan: NetworkPlan,
    protocols: &[Protocol],
    test: impl FnOnce(World) -> F,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let tasks = Rc::new(LocalSet::new());
    let inside = Rc::clone(&tasks);
    runtime.block_on(tasks.run_until(async move {
        let world = World::new(plan, protocols, inside).await;
        test(world).await;
    }));
}

impl World {
    async fn new(plan: NetworkPlan, protocols: &[Protocol], tasks: Rc<LocalSet>) -> Self {
        let (outside, outside_pem) = Authority::new("outside", Scope::Any).unwrap();
        let origin = spawn_origin(&outside, protocols, &tasks).await;
        let (authority, pem) = Authority::new("test", Scope::of(&plan)).unwrap();
        // Every credential of these tests has the same secret.
        let secrets = plan.credentials.iter();
        let secrets = secrets.map(|_| SecretSource::Value(SecretText::new(SECRET.to_owned())));
        let fetch: Rc<dyn Fetch> = Rc::new(Fetcher::default());
        let vault = Vault::new(&plan.credentials, secrets.collect(), &fetch, None).unwrap();
        let double = Rc::new(Double {
            vault: Rc::new(vault),
            needles: Needles::new([SECRET.as_bytes()]).unwrap(),
            room: Room::new(64 * 1024 * 1024),
            destination: Destination::new(RawHost::Text(HOST.as_bytes()), 443).unwrap(),
            judge: Rc::new(Judge::new(plan).unwrap()),
            origins: RefCell::new(Box::leak(Box::new(Origins::with_roots(roots(
                &outside_pem,
            ))))),
            authority: Rc::new(authority),
            origin: Cell::new(origin),
            dials: Cell::new(0),
            revoked: Notify::new(),
            requests: Cell::new(0),
            denials: RefCell::default(),
            alerts: RefCell::default(),
            uploaded: Cell::new(0),
            downloaded: Cell::new(0),
            upload_max: Cell::new(u64::MAX),
            scrubbed: Cell::new(0),
            credentials: RefCell::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let environment = Rc::clone(&double);
        tasks.spawn_local(async move {
            while let Ok((client, _)) = listener.accept().await {
                client.set_nodelay(true).unwrap();
                let environment = Rc::clone(&environment);
                // A client that goes away is no failure of the test.
                tokio::task::spawn_local(async move { drop(serve_tls(environment, client).await) });
            }
        });
        Self {
            double,
            address,
            pem,
            tasks,
        }
    }

    /// From now on origins are verified with these.
    pub fn distrust(&self, origins: Origins) {
        *self.double.origins.borrow_mut() = Box::leak(Box::new(origins));
    }

    /// TLS to the inspector with this server name and these protocols.
    pub async fn greet(
        &self,
        name: &str,
        alpn: &[&[u8]],
    ) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let mut configuration = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .unwrap()
            .with_root_certificates(roots(&self.pem))
            .with_no_client_auth();
        configuration.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        TlsConnector::from(Arc::new(configuration))
            .connect(name, stream)
            .await
    }

    /// Sends bytes in HTTP/1.1 and reads until the end.
    pub async fn send(&self, bytes: &[u8]) -> String {
        let stream = self.greet(HOST, &[b"http/1.1"]).await.unwrap();
        exchange(stream, bytes).await
    }

    /// Runs a program; gives what it printed and whether it succeeded. `None`
    /// when it is not there.
    pub async fn program(&self, program: &str, arguments: &[&str]) -> Option<(String, bool)> {
        let mut command = std::process::Command::new(program);
        command.args(arguments).stdin(std::process::Stdio::null());
        let run = tokio::task::spawn_blocking(move || command.output());
        let output = match run.await.unwrap() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            output => output.unwrap(),
        };
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        Some((printed, output.status.success()))
    }

    /// A pipe whose other end is served by `serve`.
    pub fn pipe<F>(&self, serve: impl FnOnce(DuplexStream) -> F) -> DuplexStream
    where
        F: Future<Output = std::io::Result<()>> + 'static,
    {
        let (client, server) = tokio::io::duplex(64 * 1024);
        let served = serve(server);
        self.tasks.spawn_local(async move { drop(served.await) });
        client
    }

    /// A connection of HTTP/2.
    pub async fn http2(&self) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
        let stream = self.greet(HOST, &[b"h2"]).await.unwrap();
        let (sender, connection) =
            hyper::client::conn::http2::handshake(Local, TokioIo::new(stream))
                .await
                .unwrap();
        self.tasks
            .spawn_local(async move { drop(connection.await) });
        sender
    }
}

/// Sends bytes and reads until the end.
pub async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, bytes: &[u8]) -> String {
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    // The inspector need not say goodbye to one that it refused.
    drop(stream.read_to_end(&mut answer).await);
    String::from_utf8_lossy(&answer).into_owned()
}

/// An origin without TLS.
pub async fn plain_origin(tasks: &LocalSet) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::task::spawn_local(async move {
                let server = hyper::server::conn::http1::Builder::new();
                let served = server.serve_connection(TokioIo::new(stream), service_fn(tell));
                drop(served.with_upgrades().await);
            });
        }
    });
    address
}

#[derive(Clone, Copy)]
pub struct Local;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, task: F) {
        tokio::task::spawn_local(task);
    }
}

pub fn roots(pem: &str) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
        .unwrap();
    Arc::new(roots)
}

async fn spawn_origin(
    authority: &Authority,
    protocols: &[Protocol],
    tasks: &LocalSet,
) -> SocketAddr {
    let host = Destination::new(RawHost::Text(HOST.as_bytes()), 443).unwrap();
    let known = authority
        .configuration(host.host(), Protocol::Http1)
        .unwrap();
    let mut configuration = ServerConfig::clone(&known);
    configuration.alpn_protocols = protocols.iter().map(|one| one.alpn().to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(configuration));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::task::spawn_local(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let stream = TokioIo::new(stream);
                if http2 {
                    let server = hyper::server::conn::http2::Builder::new(Local);
                    drop(server.serve_connection(stream, service_fn(tell)).await);
                } else {
                    let server = hyper::server::conn::http1::Builder::new();
                    drop(
                        server
                            .serve_connection(stream, service_fn(tell))
                            .with_upgrades()
                            .await,
                    );
                }
            });
        }
    });
    address
}

/// Answers with what it was sent, and does what the path says.
async fn tell(mut request: Request<Incoming>) -> Result<Response<OriginBody>, Infallible> {
    if request.uri().path() == "/socket" {
        return Ok(socket(request));
    }
    let upgrade = hyper::upgrade::on(&mut request);
    drop(upgrade);
    let (parts, body) = request.into_parts();
    let body = match body.collect().await {
        Ok(body) => body,
        Err(_) => return Ok(Response::new(full("cut"))),
    };
    let trailers = body.trailers().cloned().unwrap_or_default();
    let body = body.to_bytes();
    let mut text = format!("{} {} {:?}\n", parts.method, parts.uri, parts.version);
    for (name, value) in &parts.headers {
        text.push_str(&format!(
            "{name}: {}\n",
            String::from_utf8_lossy(value.as_bytes())
        ));
    }
    for (name, value) in &trailers {
        text.push_str(&format!("trailer {name}: {}\n", value.to_str().unwrap()));
    }
    text.push_str(&format!("\n{}", String::from_utf8_lossy(&body)));
    let mut response = Response::new(full(&text));
    let headers = response.headers_mut();
    match parts.uri.path() {
        "/redirect" => {
            headers.insert(
                "location",
                HeaderValue::from_static("https://elsewhere.test/"),
            );
            *response.status_mut() = StatusCode::FOUND;
        }
        "/quic" => {
            headers.insert("alt-svc", HeaderValue::from_static("h3=\":443\""));
        }
        "/trailers" => {
            headers.insert("trailer", HeaderValue::from_static("x-end"));
            if parts.version == Version::HTTP_11 {
                headers.insert("transfer-encoding", HeaderValue::from_static("chunked"));
            }
            let mut trailers = HeaderMap::new();
            trailers.insert("x-end", HeaderValue::from_static("reached"));
            let end = async move { Some(Ok(trailers)) };
            let body = Full::new(Bytes::from(text)).with_trailers(end);
            *response.body_mut() = body.boxed_unsync();
        }
        "/gzip" => {
            headers.insert("content-encoding", HeaderValue::from_static("gzip"));
            let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
            gzip.write_all(text.as_bytes()).unwrap();
            let coded = Full::new(Bytes::from(gzip.finish().unwrap()));
            *response.body_mut() = coded.boxed_unsync();
        }
        "/goodbye" => {
            headers.insert("connection", HeaderValue::from_static("close"));
        }
        "/unknown-coding" => {
            headers.insert("content-encoding", HeaderValue::from_static("rot13"));
        }
        "/large" => *response.body_mut() = full(&"x".repeat(3_000_000)),
        _ => {}
    }
    Ok(response)
}

fn full(text: &str) -> OriginBody {
    Full::new(Bytes::from(text.to_owned())).boxed_unsync()
}

/// Agrees to a WebSocket and sends back every byte.
fn socket(mut request: Request<Incoming>) -> Response<OriginBody> {
    let extensions = request.headers().get("sec-websocket-extensions").cloned();
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::task::spawn_local(async move {
        let Ok(stream) = upgrade.await else { return };
        let (mut read, mut write) = tokio::io::split(TokioIo::new(stream));
        drop(tokio::io::copy(&mut read, &mut write).await);
        drop(write.shutdown().await);
    });
    let mut response = Response::new(full(""));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert("upgrade", HeaderValue::from_static("websocket"));
    headers.insert("connection", HeaderValue::from_static("upgrade"));
    if let Some(extensions) = extensions {
        headers.insert("x-offered", extensions);
    }
    response
}
