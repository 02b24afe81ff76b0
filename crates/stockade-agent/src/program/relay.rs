//! Carries what a machine is offered beside hosts: its own ports and unix sockets
//! lead to the loopback of the sandbox that QEMU is in, and a port of its card to
//! a server on its loopback. Who may use them is judged out there, not here.
//!
//! A process of its own does it, which belongs to nobody's user, so that commands
//! can neither signal nor trace it. It has the listeners and nothing else of the
//! agent's; when it ends, connections are refused.

use alloc::vec;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, chmodat, chownat, lstat, mkdirat, mknodat};
use rustix::io::{self, Errno, read};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use rustix::net::sockopt::socket_error;
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, send, shutdown, socket_with, socketpair,
};
use rustix::process::{chdir, fchdir};
use rustix::thread::{
    Gid, Uid, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use stockade_agent::machine::{OFFERS_MAX, Offer, offers};
use stockade_agent::system;
use stockade_agent::wire::PATH_BYTES_MAX;

use crate::confine::Confinement;
use crate::guest::{ADDRESS, GATEWAY, Step, while_};
use crate::raw;

/// Connections at one time; more wait.
const PAIRS_MAX: usize = 256;
/// Bytes that one direction holds at most.
const BUFFER_BYTES: usize = 8 * 1024;
/// How many connections wait to be accepted, of each listener.
const BACKLOG: i32 = 128;
/// A port may have a listener of each family.
const LISTENERS_MAX: usize = 2 * OFFERS_MAX;
const POLLED_MAX: usize = 1 + LISTENERS_MAX + 2 * PAIRS_MAX;
/// Nobody's user, and who is it where commands are that one.
const NOBODY: [u32; 2] = [65534, 65533];
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Where a connection is to lead.
#[derive(Clone, Copy)]
enum Target {
    /// A port of the sandbox's loopback.
    Out(u16),
    /// A port of the machine's.
    In(u16),
}

/// The listeners, opened and not served yet.
pub struct Relay(Vec<(OwnedFd, Target)>);

impl Relay {
    /// Opens them, the unix sockets in the view, which was entered. `owner` alone
    /// may connect to these.
    pub fn open(block: &[u8], storage: &OwnedFd, owner: (Uid, Gid)) -> Step<Self> {
        let mut listeners = Vec::new();
        for (number, offer) in (0..=OFFERS_MAX).zip(offers(block)) {
            let offer = offer.map_err(|_| ("understand an offer", Errno::PROTO))?;
            if number == OFFERS_MAX {
                return Err(("take so many offers", Errno::NOSPC));
            }
            match offer {
                Offer::Port(port) => {
                    let four = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port).into();
                    let six = SocketAddrV6::new(Ipv6Addr::LOCALHOST, port, 0, 0).into();
                    let opened = listen_on(four);
                    listeners.push((while_("offer a port", opened)?, Target::Out(port)));
                    // A kernel may have no such addresses.
                    if let Ok(socket) = listen_on(six) {
                        listeners.push((socket, Target::Out(port)));
                    }
                }
                Offer::Published { card_port, port } => {
                    let address = SocketAddrV4::new(ADDRESS.into(), card_port).into();
                    let socket = while_("publish a port", listen_on(address))?;
                    listeners.push((socket, Target::In(port)));
                }
                Offer::Socket { path, port } => {
                    let socket = listen_at(path, number, storage, owner)?;
                    listeners.push((socket, Target::Out(port)));
                }
            }
        }
        Ok(Self(listeners))
    }

    /// Serves them in a process of its own, until the descriptor is closed. To be
    /// called by user 0; `owner` is whom commands will run as.
    pub fn start(self, owner: (Uid, Gid), confinement: &Confinement) -> Step<Option<OwnedFd>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let doing = "carry what is offered";
        let flags = SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (ours, theirs) = while_(doing, pair)?;
        let plain = |system::Errno(number)| Errno::from_raw_os_error(number);
        let child = raw::fork(|| {
            if self.confine(&theirs, owner, confinement).is_ok()
                && send(&theirs, b"1", SendFlags::NOSIGNAL) == Ok(1)
            {
                serve(&self.0, &theirs);
            }
        });
        while_(doing, child.map_err(plain))?;
        drop(theirs);
        // Whether it holds to what it must is seen before a command is started.
        let mut said = [0];
        match read(&ours, &mut said) {
            Ok(1) => Ok(Some(ours)),
            Ok(_) => Err((doing, Errno::PERM)),
            Err(error) => Err((doing, error)),
        }
    }

    /// Gives up all that it does not need.
    fn confine(
        &self,
        alive: &OwnedFd,
        (owner, _): (Uid, Gid),
        confinement: &Confinement,
    ) -> Result<(), system::Errno> {
        let plain = |error: Errno| system::Errno(error.raw_os_error());
        let other = |id: &u32| *id != owner.as_raw();
        let nobody = NOBODY.into_iter().find(other).unwrap_or(NOBODY[0]);
        let (uid, gid) = (Uid::from_raw(nobody), Gid::from_raw(nobody));
        set_thread_groups(&[gid]).map_err(plain)?;
        set_thread_res_gid(gid, gid, gid).map_err(plain)?;
        // User 0 who becomes another one has no capability any more.
        set_thread_res_uid(uid, uid, uid).map_err(plain)?;
        set_no_new_privs(true).map_err(plain)?;
        raw::hide_memory()?;
        raw::take_name(c"stockade-relay")?;
        let listeners = self.0.iter().map(|(socket, _)| socket.as_raw_fd());
        let mut kept: Vec<i32> = listeners.chain([alive.as_raw_fd()]).collect();
        raw::close_all_but(&mut kept)?;
        confinement.take_rules()
    }
}

fn listen_on(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::STREAM, FLAGS, None)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// A unix socket of the storage, mounted at a path of the view: the exported view
/// takes none that can be connected to.
fn listen_at(
    path: &[u8],
    number: usize,
    storage: &OwnedFd,
    (uid, gid): (Uid, Gid),
) -> Step<OwnedFd> {
    let doing = "offer a socket";
    let mut target = [0; PATH_BYTES_MAX + 1];
    let place = target[..PATH_BYTES_MAX].get_mut(..path.len());
    place
        .ok_or((doing, Errno::NAMETOOLONG))?
        .copy_from_slice(path);
    let own = [
        b'o',
        b'a' + (number / 26) as u8,
        b'a' + (number % 26) as u8,
        0,
    ];
    let own = CStr::from_bytes_with_nul(&own).map_err(|_| (doing, Errno::INVAL))?;
    let opened = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None);
    let socket = while_(doing, opened)?;
    let address = while_(doing, SocketAddrUnix::new(own))?;
    while_(doing, fchdir(storage))?;
    let bound = bind(&socket, &address);
    while_(doing, chdir(c"/"))?;
    while_(doing, bound)?;
    while_(doing, listen(&socket, BACKLOG))?;
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    while_(doing, chownat(storage, own, Some(uid), Some(gid), flags))?;
    let mode = Mode::from_raw_mode(0o600);
    while_(doing, chmodat(storage, own, mode, AtFlags::empty()))?;
    let target = make_place(&mut target).map_err(|error| (doing, error))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = while_(doing, open_tree(storage, own, flags))?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    while_(doing, move_mount(&tree, c"", CWD, target, flags))?;
    Ok(socket)
}

/// What a socket is mounted on. The view has one, but where a private directory of
/// the machine covers it.
fn make_place(path: &mut [u8]) -> io::Result<&CStr> {
    let everybody = Mode::from_raw_mode(0o755);
    for end in 1..path.len() {
        match path[end] {
            0 => break,
            b'/' => {
                path[end] = 0;
                let above = CStr::from_bytes_until_nul(path).map_err(|_| Errno::INVAL)?;
                let made = match lstat(above) {
                    Err(Errno::NOENT) => mkdirat(CWD, above, everybody),
                    other => other.map(drop),
                };
                path[end] = b'/';
                made?;
            }
            _ => {}
        }
    }
    let path = CStr::from_bytes_until_nul(path).map_err(|_| Errno::INVAL)?;
    let mode = Mode::from_raw_mode(0o600);
    match lstat(path) {
        Err(Errno::NOENT) => mknodat(CWD, path, FileType::RegularFile, mode, 0)?,
        other => drop(other?),
    }
    Ok(path)
}

/// One direction of a connection.
struct Half {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Nothing more comes.
    ended: bool,
    /// And that was said to the other side.
    closed: bool,
}

impl Half {
    fn has_room(&self) -> bool {
        !self.ended && self.start == self.end
    }

    fn holds(&self) -> bool {
        self.start < self.end
    }

    /// Takes what came and passes on what it can. An error ends the connection.
    fn carry(&mut self, from: &OwnedFd, to: &OwnedFd) -> io::Result<()> {
        if self.has_room() {
            match read(from, &mut self.buffer[..]) {
                Ok(0) => self.ended = true,
                Ok(length) => (self.start, self.end) = (0, length),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        while self.holds() {
            // Nobody is killed because somebody went away.
            match send(to, &self.buffer[self.start..self.end], SendFlags::NOSIGNAL) {
                Ok(length) => self.start += length,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        if self.ended && !self.closed {
            shutdown(to, Shutdown::Write)?;
            self.closed = true;
        }
        Ok(())
    }
}

/// Two connections that are one.
struct Pair {
    client: OwnedFd,
    server: OwnedFd,
    /// Until the server answers: the port of the second address to try, if any.
    connecting: Option<Option<u16>>,
    up: Half,
    down: Half,
}

/// What is waited for.
#[derive(Clone, Copy)]
enum Token {
    Alive,
    Listener(usize),
    Pair(usize),
}

impl Pair {
    fn new(client: OwnedFd, server: Server, buffers: [Vec<u8>; 2]) -> Self {
        let [up, down] = buffers.map(|buffer| Half {
            buffer,
            start: 0,
            end: 0,
            ended: false,
            closed: false,
        });
        let (server, second) = server;
        Self {
            client,
            server,
            connecting: Some(second),
            up,
            down,
        }
    }

    fn is_over(&self) -> bool {
        self.up.closed && self.down.closed
    }

    /// What to wait for at the client's and the server's side.
    fn waits(&self) -> [PollFlags; 2] {
        let flag = |wanted: bool, flag| match wanted {
            true => flag,
            false => PollFlags::empty(),
        };
        match self.connecting {
            Some(_) => [PollFlags::empty(), PollFlags::OUT],
            None => [
                flag(self.up.has_room(), PollFlags::IN) | flag(self.down.holds(), PollFlags::OUT),
                flag(self.down.has_room(), PollFlags::IN) | flag(self.up.holds(), PollFlags::OUT),
            ],
        }
    }

    fn advance(&mut self) -> io::Result<()> {
        if let Some(second) = self.connecting {
            match (socket_error(&self.server)?, second) {
                (Ok(()), _) => self.connecting = None,
                (Err(_), Some(port)) => {
                    self.server = begin(on_ipv6(port))?;
                    self.connecting = Some(None);
                    return Ok(());
                }
                (Err(error), None) => return Err(error),
            }
        }
        self.up.carry(&self.client, &self.server)?;
        self.down.carry(&self.server, &self.client)
    }
}

/// A connection that was begun, and the port of the second address to try.
type Server = (OwnedFd, Option<u16>);

/// Begins to connect to a target: of the machine's own loopback, first by its
/// address of version 4.
fn reach(target: Target) -> io::Result<Server> {
    match target {
        Target::Out(port) => Ok((begin(SocketAddrV4::new(GATEWAY.into(), port).into())?, None)),
        Target::In(port) => match begin(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port).into()) {
            Ok(server) => Ok((server, Some(port))),
            Err(_) => Ok((begin(on_ipv6(port))?, None)),
        },
    }
}

fn on_ipv6(port: u16) -> SocketAddr {
    SocketAddrV6::new(Ipv6Addr::LOCALHOST, port, 0, 0).into()
}

/// Begins to connect.
fn begin(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::STREAM, FLAGS, None)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Serves until the other end of `alive` is closed.
fn serve(listeners: &[(OwnedFd, Target)], alive: &OwnedFd) {
    let mut pairs: Vec<Option<Pair>> = Vec::with_capacity(PAIRS_MAX);
    pairs.resize_with(PAIRS_MAX, || None);
    // Memory is never given back, so buffers are used again.
    let mut buffers: Vec<[Vec<u8>; 2]> = Vec::with_capacity(PAIRS_MAX);
    loop {
        let mut tokens = [Token::Alive; POLLED_MAX];
        let happened = wait(listeners, &pairs, alive, &mut tokens);
        let ready = tokens
            .iter()
            .zip(happened)
            .filter(|(_, is_ready)| *is_ready);
        for (token, _) in ready {
            match *token {
                Token::Alive => return,
                Token::Listener(index) => {
                    if let Some((socket, target)) = listeners.get(index) {
                        accept(socket, *target, &mut pairs, &mut buffers);
                    }
                }
                Token::Pair(index) => {
                    let Some(slot) = pairs.get_mut(index) else {
                        continue;
                    };
                    let over = slot
                        .as_mut()
                        .is_some_and(|pair| pair.advance().is_err() || pair.is_over());
                    if over && let Some(pair) = slot.take() {
                        buffers.push([pair.up.buffer, pair.down.buffer]);
                    }
                }
            }
        }
    }
}

/// Takes one connection, if there is a place for it.
fn accept(
    listener: &OwnedFd,
    target: Target,
    pairs: &mut [Option<Pair>],
    buffers: &mut Vec<[Vec<u8>; 2]>,
) {
    let Some(slot) = pairs.iter_mut().find(|slot| slot.is_none()) else {
        return;
    };
    let Ok(client) = accept_with(listener, FLAGS) else {
        return;
    };
    let Ok(server) = reach(target) else { return };
    let fresh = buffers
        .pop()
        .unwrap_or_else(|| [vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]]);
    *slot = Some(Pair::new(client, server, fresh));
}

/// Which of the tokens, which it sets, something happened to.
fn wait<'a>(
    listeners: &'a [(OwnedFd, Target)],
    pairs: &'a [Option<Pair>],
    alive: &'a OwnedFd,
    tokens: &mut [Token; POLLED_MAX],
) -> [bool; POLLED_MAX] {
    let nothing: BorrowedFd<'a> = alive.as_fd();
    let mut polled: [PollFd<'a>; POLLED_MAX] =
        core::array::from_fn(|_| PollFd::from_borrowed_fd(nothing, PollFlags::empty()));
    polled[0] = PollFd::from_borrowed_fd(nothing, PollFlags::IN);
    let mut used = 1;
    let mut add = |socket: BorrowedFd<'a>, flags: PollFlags, token: Token| {
        if let (Some(slot), Some(name)) = (polled.get_mut(used), tokens.get_mut(used)) {
            *slot = PollFd::from_borrowed_fd(socket, flags);
            *name = token;
            used += 1;
        }
    };
    if pairs.iter().any(Option::is_none) {
        for (index, (socket, _)) in listeners.iter().enumerate() {
            add(socket.as_fd(), PollFlags::IN, Token::Listener(index));
        }
    }
    for (index, pair) in pairs.iter().enumerate() {
        let Some(pair) = pair else { continue };
        // Whoever hung up is told of again and again, so only who is waited for is
        // looked at.
        for (socket, flags) in [&pair.client, &pair.server].into_iter().zip(pair.waits()) {
            if !flags.is_empty() {
                add(socket.as_fd(), flags, Token::Pair(index));
            }
        }
    }
    let mut happened = [false; POLLED_MAX];
    // An error is that of a signal; the next turn polls again.
    if poll(&mut polled[..used], None).is_ok() {
        for (happened, descriptor) in happened.iter_mut().zip(&polled[..used]) {
            *happened = !descriptor.revents().is_empty();
        }
    }
    happened
}
