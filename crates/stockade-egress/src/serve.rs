//! The life of an egress process, from its set-up to its last words.
//!
//! One thread: what it shares needs no locks, and what one connection costs is
//! easy to bound. It serves while the engine holds the other end of the
//! control socket; without it there is no sandbox to serve.

use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use stockade_policy::network::rules::NetworkPlan;
use stockade_sys::message::{self, Wait};
use stockade_sys::rustix::net::{SocketType, sockopt};
use tokio::io::Interest;
use tokio::net::{TcpListener, UnixDatagram, UnixListener};
use tokio::task::{LocalSet, spawn_local};

use crate::confine::{self, Needs};
use crate::context::Context;
use crate::control;
use crate::git_ssh::GitOverSsh;
use crate::ingress::Gate;
use crate::inspect::inspection::Inspection;
use crate::offers::{self, Published, Supply};
use crate::proxy_token::ProxyToken;
use crate::resolve::Resolver;
use crate::self_test::{self, Probes};
use crate::wire::{Entry, FromEgress, Listener, SetUp, ToEgress};
use crate::{explicit, metrics, stub, transparent};

/// The end was asked for, or the engine went away.
const EXIT_DONE: i32 = 0;
/// Something that must be so is not; the engine was told what.
const EXIT_FAILED: i32 = 1;
/// Not started by an engine.
const EXIT_MISUSED: i32 = 2;

/// Permitted requests that come within this time after others leave together.
const TOGETHER_WITHIN: Duration = Duration::from_millis(5);
/// For the last events at the end.
const FAREWELL: Duration = Duration::from_millis(900);

/// Serves one sandbox over `control`, a `SOCK_SEQPACKET` socket to the engine.
/// Blocks until the end and returns the exit code. Closes every other
/// descriptor of the process but 0, 1 and 2, and confines it for good.
pub fn serve(control: OwnedFd) -> i32 {
    if !matches!(sockopt::socket_type(&control), Ok(SocketType::SEQPACKET)) {
        return EXIT_MISUSED;
    }
    match start(&control) {
        Ok(Some(ready)) => run(ready, control),
        Ok(None) => EXIT_DONE,
        Err(failure) => {
            let failed = FromEgress::Failed {
                what: failure.what.to_owned(),
                reason: failure.reason,
            };
            // The exit code says the same to an engine that cannot be told.
            let _untold = control::send(control.as_fd(), &failed, Wait::Yes).is_err();
            EXIT_FAILED
        }
    }
}

/// What is served, once the process is confined.
struct Ready {
    context: Context,
    listeners: Vec<(Listener, OwnedFd)>,
    published: Vec<Published>,
    metrics: Option<std::os::unix::net::UnixListener>,
    evidence: Vec<(String, String)>,
}

struct Failure {
    what: &'static str,
    reason: String,
}

impl Failure {
    fn of<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self {
            what,
            reason: error.to_string(),
        }
    }
}

/// `None` when the engine went away or changed its mind.
fn start(control: &OwnedFd) -> Result<Option<Ready>, Failure> {
    confine::harden(control.as_fd()).map_err(Failure::of("process"))?;
    let Some(set_up) = take_set_up(control)? else {
        return Ok(None);
    };
    let needs = needs(&set_up);
    let metrics_socket = set_up.metrics_socket.as_deref().map(path_of);
    let (context, ready) = understand(set_up)?;
    control::send(control.as_fd(), &ready, Wait::Yes).map_err(Failure::of("control"))?;
    let Some(listeners) = take_listeners(control)? else {
        return Ok(None);
    };
    let published =
        offers::bind(&context.judge().plan().publish).map_err(Failure::of("publish"))?;
    let metrics = metrics_socket.as_deref().map(metrics::bind);
    let metrics = metrics.transpose().map_err(Failure::of("metrics"))?;
    let mut evidence = confine::confine(&needs).map_err(Failure::of("confinement"))?;
    evidence.extend(metrics_socket.map(|path| {
        let path = crate::audit::printable(&path.to_string_lossy());
        ("metrics".to_owned(), path)
    }));
    Ok(Some(Ready {
        context,
        listeners,
        published,
        metrics,
        evidence,
    }))
}

/// Everything that the set-up says, made; and what the inside has to know.
fn understand(mut set_up: SetUp) -> Result<(Context, FromEgress), Failure> {
    let resolver = Resolver::new(&set_up.network);
    let (inspection, mut announced) =
        Inspection::new(&mut set_up).map_err(Failure::of("credentials"))?;
    let git = GitOverSsh::new(&mut set_up).map_err(Failure::of("git over SSH"))?;
    if let Some(git) = &git {
        let variable = git.variable(&set_up.network);
        let variable = variable.map_err(Failure::of("git over SSH"))?;
        announced.placeholders.push(variable);
    }
    let token = set_up.proxy_token.take().map(|token| {
        ProxyToken::new(token).ok_or_else(|| Failure {
            what: "proxy token",
            reason: "it is too short, or not of letters and digits".to_owned(),
        })
    });
    let context = Context::new(set_up.network, resolver, inspection, git);
    let mut context = context.map_err(Failure::of("rules"))?;
    context.proxy_token = token.transpose()?;
    let ready = FromEgress::Ready {
        authority: announced.authority,
        placeholders: announced.placeholders,
    };
    Ok((context, ready))
}

fn take_set_up(control: &OwnedFd) -> Result<Option<SetUp>, Failure> {
    match control::receive(control.as_fd(), Wait::Yes).map_err(Failure::of("set-up"))? {
        Some((ToEgress::SetUp, descriptors)) => control::read_set_up(descriptors)
            .map(Some)
            .map_err(Failure::of("set-up")),
        Some((ToEgress::Finish, _)) | None => Ok(None),
        Some(_) => Err(Failure {
            what: "set-up",
            reason: "the engine began with something else".to_owned(),
        }),
    }
}

fn take_listeners(control: &OwnedFd) -> Result<Option<Vec<(Listener, OwnedFd)>>, Failure> {
    match control::receive(control.as_fd(), Wait::Yes).map_err(Failure::of("listeners"))? {
        Some((ToEgress::Listen { listeners }, descriptors))
            if listeners.len() == descriptors.len() =>
        {
            Ok(Some(listeners.into_iter().zip(descriptors).collect()))
        }
        Some((ToEgress::Finish, _)) | None => Ok(None),
        Some(_) => Err(Failure {
            what: "listeners",
            reason: "there is not one descriptor for each listener".to_owned(),
        }),
    }
}

fn needs(set_up: &SetUp) -> Needs {
    let network: &NetworkPlan = &set_up.network;
    let roots = network.roots.iter().map(|root| path_of(root.as_bytes()));
    let variables = [&set_up.root_file, &set_up.root_directory];
    let offered = network
        .sockets
        .iter()
        .map(|one| path_of(one.path.as_bytes()));
    Needs {
        readable: roots
            .chain(variables.into_iter().flatten().map(|bytes| path_of(bytes)))
            .collect(),
        sockets: offered
            .chain(set_up.ssh_agent.iter().map(|bytes| path_of(bytes)))
            .collect(),
    }
}

fn path_of(bytes: &[u8]) -> PathBuf {
    OsStr::from_bytes(bytes).into()
}

fn run(ready: Ready, control: OwnedFd) -> i32 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            let failed = FromEgress::Failed {
                what: "runtime".to_owned(),
                reason: error.to_string(),
            };
            let _untold = control::send(control.as_fd(), &failed, Wait::Yes).is_err();
            return EXIT_FAILED;
        }
    };
    runtime.block_on(attend(ready, control))
}

/// Serves until the engine says otherwise.
async fn attend(ready: Ready, control: OwnedFd) -> i32 {
    let context = Rc::new(ready.context);
    context.inspection.fetcher.attach(&context);
    let Ok(control) = control::watched(control) else {
        return EXIT_FAILED;
    };
    let serving = LocalSet::new();
    let ports = ready
        .published
        .iter()
        .map(|one| (one.offer.port, one.host_port))
        .collect();
    let opened = {
        let _entered = serving.enter();
        if let Some(Ok(listener)) = ready.metrics.map(UnixListener::from_std) {
            spawn_local(metrics::serve(context.clone(), listener));
        }
        open(&context, ready.listeners, ready.published)
    };
    let tested = async {
        let probes = opened.map_err(|error| ("listeners".to_owned(), error.to_string()))?;
        self_test::run(&context, probes).await
    };
    let tested = serving.run_until(tested).await;
    let (message, go_on) = match tested {
        Ok(mut evidence) => {
            evidence.splice(0..0, ready.evidence);
            let published = ports;
            (
                FromEgress::Tested {
                    evidence,
                    published,
                },
                true,
            )
        }
        Err((what, reason)) => (FromEgress::Failed { what, reason }, false),
    };
    context.audit.restart();
    context.audit.send(message);
    if !go_on {
        farewell(&context, &control).await;
        return EXIT_FAILED;
    }
    let obeyed = async {
        tokio::select! {
            order = obey(&context, &control) => order,
            () = report(&context, &control, TOGETHER_WITHIN) => Order::Gone,
        }
    };
    match serving.run_until(obeyed).await {
        Order::Gone => EXIT_DONE,
        Order::Finish => {
            // Every connection ends here, and says so in the queue.
            drop(serving);
            farewell(&context, &control).await;
            let totals = FromEgress::Finished(context.audit.totals());
            let said = async {
                control
                    .async_io(Interest::WRITABLE, || {
                        control::send(control.as_fd(), &totals, Wait::No)
                    })
                    .await
            };
            let _unheard = tokio::time::timeout(FAREWELL, said).await.is_err();
            EXIT_DONE
        }
    }
}

/// Starts to serve the sandbox's sockets; gives those of the self-test.
fn open(
    context: &Rc<Context>,
    listeners: Vec<(Listener, OwnedFd)>,
    published: Vec<Published>,
) -> io::Result<Probes> {
    let mut probes = Probes::default();
    let mut supply = None;
    for (listener, socket) in listeners {
        match listener {
            Listener::Proxy => {
                probes
                    .proxies
                    .push(stockade_sys::network::local_address(socket.as_fd())?);
                accept(context, socket, Entry::Connect, explicit::serve)?;
            }
            Listener::Transparent => {
                probes.transparent = true;
                accept(context, socket, Entry::Transparent, transparent::serve)?;
            }
            Listener::NamesTcp => accept(context, socket, Entry::Name, stub::serve_stream)?,
            Listener::NamesUdp => {
                probes
                    .names
                    .push(stockade_sys::network::local_address(socket.as_fd())?);
                let context = context.clone();
                spawn_local(async move {
                    // Without it names are gone, and with them connections by
                    // name: closed is the safe side.
                    let _ended = stub::serve_datagrams(context, socket).await.is_err();
                });
            }
            Listener::HostPort(port) => {
                accept(context, socket, Entry::HostPort, move |context, client| {
                    offers::serve_host_port(context, client, port)
                })?;
            }
            Listener::Unix(index) => accept_unix(context, socket, index)?,
            Listener::SocketPort(index) => {
                accept(context, socket, Entry::Unix, move |context, client| {
                    offers::serve_unix(context, client, index)
                })?;
            }
            Listener::Supply => supply = Some(Rc::new(Supply::new(socket)?)),
            Listener::ProbeTcp => probes.tcp.push(socket),
            Listener::ProbeUdp => probes.udp.push(socket),
        }
    }
    for one in published {
        let supply = supply.clone().ok_or_else(|| {
            io::Error::other("a port is published, and the sandbox hands out no sockets")
        })?;
        spawn_local(offers::serve_published(context.clone(), one, supply));
    }
    Ok(probes)
}

/// Serves each connection of a listener in a task of its own.
fn accept<F: Future<Output = ()> + 'static>(
    context: &Rc<Context>,
    socket: OwnedFd,
    entry: Entry,
    serve: impl Fn(Rc<Context>, tokio::net::TcpStream) -> F + 'static,
) -> io::Result<()> {
    let listener = std::net::TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let context = context.clone();
    spawn_local(async move {
        let gate = Gate::new(&context, entry);
        loop {
            let (client, place) = gate.accept(&listener).await;
            let served = serve(context.clone(), client);
            spawn_local(async move {
                served.await;
                drop(place);
            });
        }
    });
    Ok(())
}

fn accept_unix(context: &Rc<Context>, socket: OwnedFd, index: u32) -> io::Result<()> {
    let listener = std::os::unix::net::UnixListener::from(socket);
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let context = context.clone();
    spawn_local(async move {
        let gate = Gate::new(&context, Entry::Unix);
        loop {
            let (client, place) = gate.accept_unix(&listener).await;
            let served = offers::serve_unix(context.clone(), client, index);
            spawn_local(async move {
                served.await;
                drop(place);
            });
        }
    });
    Ok(())
}

enum Order {
    Finish,
    /// The engine, and with it the sandbox.
    Gone,
}

/// Does what the engine says until the end.
async fn obey(context: &Rc<Context>, control: &UnixDatagram) -> Order {
    loop {
        let received = control
            .async_io(Interest::READABLE, || {
                control::receive(control.as_fd(), Wait::No)
            })
            .await;
        match received {
            Ok(Some((ToEgress::Finish, _))) => return Order::Finish,
            Ok(Some((ToEgress::Answer { ask, answer }, _))) => context.asks.answer(ask, answer),
            Ok(Some((ToEgress::Replace, descriptors))) => {
                let message = match replace(context, descriptors) {
                    Ok(generation) => FromEgress::Replaced { generation },
                    Err(reason) => FromEgress::NotReplaced { reason },
                };
                context.audit.send(message);
            }
            Ok(Some((ToEgress::SetUp | ToEgress::Listen { .. }, _))) | Err(_) | Ok(None) => {
                return Order::Gone;
            }
        }
    }
}

/// New rules, understood as a whole before they hold.
fn replace(context: &Rc<Context>, descriptors: Vec<OwnedFd>) -> Result<u64, String> {
    let mut set_up = control::read_set_up(descriptors).map_err(|error| error.to_string())?;
    let secrets = context.inspection.prepare(&mut set_up)?;
    let generation = context.replace(set_up.network)?;
    context.inspection.replace(secrets);
    Ok(generation)
}

/// Sends what is queued, oldest first, and what may wait at most once in
/// `pause`; ends when the engine is gone.
async fn report(context: &Context, control: &UnixDatagram, pause: Duration) {
    let mut next = Instant::now();
    loop {
        context.audit.filled().await;
        context.audit.gather(next).await;
        let packet = context.audit.oldest().await;
        let sent = control
            .async_io(Interest::WRITABLE, || {
                message::send(control.as_fd(), &packet.bytes, &[], Wait::No)
            })
            .await;
        match sent {
            Ok(()) => context.audit.sent(packet),
            Err(_) => return,
        }
        next = Instant::now() + pause;
    }
}

/// Sends what is still queued, for a moment; what is left is counted as lost.
async fn farewell(context: &Context, control: &UnixDatagram) {
    let last = async {
        tokio::select! {
            () = report(context, control, Duration::ZERO) => {}
            () = context.audit.emptied() => {}
        }
    };
    let _late = tokio::time::timeout(FAREWELL, last).await.is_err();
    context.audit.clear();
}
