//! What is offered by name beside the hosts: ports of this machine inside,
//! ports of the inside on this machine, and unix sockets.
//!
//! Each offer is one line of the policy and gives exactly that: the rest of
//! this machine's loopback stays beyond the floor.

use std::ffi::OsStr;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use stockade_policy::network::Destination;
use stockade_policy::network::destination::RawHost;
use stockade_policy::network::rules::{HostPort, Publish, SocketKind, SocketOffer};
use stockade_policy::plan::Rule;
use stockade_sys::message::{self, Wait};
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixDatagram, UnixStream};
use tokio::sync::Mutex;

use crate::audit::Subject;
use crate::context::{Context, Wish};
use crate::control;
use crate::dial;
use crate::git::agent;
use crate::tunnel;
use crate::wire::{Entry, NetworkEvent};

/// Proof that the policy offers this port of this machine's loopback; the only
/// way past the floor. Made from the plan only.
pub struct HostPermit(u16);

impl HostPermit {
    fn of(offer: &HostPort) -> Self {
        Self(offer.port)
    }

    pub fn port(&self) -> u16 {
        self.0
    }
}

/// A published port, bound.
pub struct Published {
    pub offer: Publish,
    /// What the kernel chose, or was told.
    pub host_port: u16,
    pub listener: std::net::TcpListener,
}

/// Binds the published ports on 127.0.0.1. All or none.
pub fn bind(offers: &[Publish]) -> Result<Vec<Published>, String> {
    offers
        .iter()
        .map(|offer| {
            let bound = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, offer.host_port));
            let listener = bound
                .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
                .map_err(|error| {
                    format!(
                        "{}: port {} of this machine cannot be opened: {error}",
                        offer.rule.id, offer.host_port
                    )
                })?;
            let host_port = listener
                .local_addr()
                .map_err(|error| error.to_string())?
                .port();
            Ok(Published {
                offer: offer.clone(),
                host_port,
                listener,
            })
        })
        .collect()
}

/// The channel to the sandbox's init, from which come sockets that reach the
/// inside only.
pub struct Supply {
    channel: UnixDatagram,
    /// One question at a time, so that answers cannot be mixed up.
    turn: Mutex<()>,
}

impl Supply {
    /// Needs a runtime.
    pub fn new(channel: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            channel: control::watched(channel)?,
            turn: Mutex::new(()),
        })
    }

    /// A TCP connection to a server inside: on 127.0.0.1, else on ::1.
    pub async fn connect(&self, port: u16) -> io::Result<TcpStream> {
        let four = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let first = dial::connect_inside(self.socket(b'4').await?, four).await;
        if first.is_ok() {
            return first;
        }
        let six = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
        match self.socket(b'6').await {
            Ok(socket) => dial::connect_inside(socket, six).await,
            Err(_) => first,
        }
    }

    async fn socket(&self, family: u8) -> io::Result<TcpSocket> {
        let _turn = self.turn.lock().await;
        self.channel
            .async_io(Interest::WRITABLE, || {
                message::send(self.channel.as_fd(), &[family], &[], Wait::No)
            })
            .await?;
        let answer = self
            .channel
            .async_io(Interest::READABLE, || {
                message::receive(self.channel.as_fd(), 16, Wait::No)
            })
            .await?;
        // Init, which answers, is ours; an answer without a socket says that it
        // could not make one.
        let socket = answer
            .and_then(|answer| answer.descriptors.into_iter().next())
            .ok_or_else(|| io::Error::other("the sandbox gave no socket"))?;
        stockade_sys::rustix::io::ioctl_fionbio(&socket, true)?;
        let stream = std::net::TcpStream::from(socket);
        Ok(TcpSocket::from_std_stream(stream))
    }
}

/// Serves one connection from inside to a port of this machine.
pub async fn serve_host_port(context: Rc<Context>, client: TcpStream, port: u16) {
    let judge = context.judge();
    let Some(offer) = judge.plan().host_ports.iter().find(|one| one.port == port) else {
        return;
    };
    let Some(wish) = loopback_wish(&context, Entry::HostPort, port, &client) else {
        return;
    };
    let Ok(conversation) = context.offer(wish, &offer.rule).await else {
        return;
    };
    if let Ok(upstream) = dial::connect_host(&HostPermit::of(offer)).await {
        tunnel::carry(&conversation, client, &[], upstream).await;
    }
}

/// Serves a published port until the listener ends.
pub async fn serve_published(context: Rc<Context>, published: Published, supply: Rc<Supply>) {
    let Ok(listener) = TcpListener::from_std(published.listener) else {
        return;
    };
    let gate = crate::ingress::Gate::new(&context, Entry::Publish);
    let (port, rule) = (published.offer.port, published.offer.rule);
    loop {
        let (client, place) = gate.accept(&listener).await;
        let (context, supply, rule) = (context.clone(), supply.clone(), rule.clone());
        tokio::task::spawn_local(async move {
            let _place = place;
            serve_publish(context, client, &supply, port, &rule).await;
        });
    }
}

async fn serve_publish(
    context: Rc<Context>,
    client: TcpStream,
    supply: &Supply,
    port: u16,
    rule: &Rule,
) {
    let Some(wish) = loopback_wish(&context, Entry::Publish, port, &client) else {
        return;
    };
    let Ok(conversation) = context.offer(wish, rule).await else {
        return;
    };
    if let Ok(upstream) = supply.connect(port).await {
        tunnel::carry(&conversation, client, &[], upstream).await;
    }
}

fn loopback_wish(context: &Context, entry: Entry, port: u16, client: &TcpStream) -> Option<Wish> {
    let loopback = RawHost::Address(Ipv4Addr::LOCALHOST.into());
    Some(Wish {
        connection: context.next_connection(),
        entry,
        destination: Destination::new(loopback, port).ok()?,
        request: None,
        client_port: client.peer_addr().map_or(0, |peer| peer.port()),
    })
}

/// Serves one connection from inside, however it came, to a unix socket of this
/// machine.
pub async fn serve_unix(
    context: Rc<Context>,
    client: impl AsyncRead + AsyncWrite + Unpin,
    index: u32,
) {
    let judge = context.judge();
    let offer = usize::try_from(index)
        .ok()
        .and_then(|index| judge.plan().sockets.get(index));
    let Some(offer) = offer else {
        return;
    };
    let subject = Subject {
        connection: context.next_connection(),
        entry: Entry::Unix,
        destination: String::from_utf8_lossy(offer.path.as_bytes()).into_owned(),
        request: None,
        generation: context.generation(),
    };
    if context
        .audit
        .allowed(&subject, &offer.rule, "allowed")
        .await
        .is_err()
    {
        return;
    }
    let path = path_of(offer);
    context.audit.opened();
    let started = Instant::now();
    let (uploaded_bytes, downloaded_bytes, requests) = match &offer.kind {
        SocketKind::Stream => pass_bytes(client, &path).await,
        SocketKind::SshAgent { keys } => (0, 0, pass_signatures(client, &path, keys).await),
    };
    context.audit.closed(uploaded_bytes, downloaded_bytes);
    context.audit.event(NetworkEvent::Closed {
        connection: subject.connection,
        destination: subject.destination,
        rule: offer.rule.id.clone(),
        generation: subject.generation,
        uploaded_bytes,
        downloaded_bytes,
        duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        requests,
        credentials: Vec::new(),
        scrubbed: 0,
    });
}

fn path_of(offer: &SocketOffer) -> PathBuf {
    OsStr::from_bytes(offer.path.as_bytes()).into()
}

/// Bytes only: descriptors that a client sends are closed by the kernel when
/// its message is read without room for them (unix(7)). How many went out and
/// came in.
async fn pass_bytes(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    path: &Path,
) -> (u64, u64, u64) {
    let Ok(mut upstream) = UnixStream::connect(path).await else {
        return (0, 0, 0);
    };
    let moved = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
    let (uploaded, downloaded) = moved.unwrap_or_default();
    (uploaded, downloaded, 0)
}

/// How many signatures were made.
async fn pass_signatures(
    client: impl AsyncRead + AsyncWrite + Unpin,
    path: &Path,
    keys: &[String],
) -> u64 {
    let served = agent::serve(client, || UnixStream::connect(path), keys).await;
    served.map_or(0, |summary| summary.signatures)
}
