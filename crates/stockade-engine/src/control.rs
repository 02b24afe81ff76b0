//! How another terminal speaks to a run: a unix socket in the state
//! directory, for `stockade approvals` and `stockade reload`.
//!
//! No sandbox shows the state directory, and the socket answers only the user
//! whose run it is. One message is one request or one response (JSON over
//! `SOCK_SEQPACKET`), so there is never half of one to wait for, and the
//! supervisor is never kept from its work. What requests mean is left to
//! [`crate::way_out`].

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, connect, listen, recv, send, socket_with, sockopt,
};
use serde::{Deserialize, Serialize};
use stockade_sys::rustix;

use crate::events::RunId;
use crate::state::{LockKind, StateDirectory, StateError, system};

/// Longest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 128 * 1024;
/// Most clients at one time; others are turned away.
const CLIENTS_MAX: usize = 16;
/// How long a run may take to answer.
pub const PATIENCE: Duration = Duration::from_secs(30);

const PREFIX: &str = "run-";
const SUFFIX: &str = ".sock";
/// After the name of a socket that does not listen yet.
const FRESH: &str = ".new";
/// The lock of who gives a socket its name: without it, a fresh socket is of a run
/// that was killed meanwhile.
const NAMING: &str = "sockets.lock";

/// What a person decides about a held request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// This one request.
    Once,
    /// This destination until the run ends.
    Run,
    /// This destination in every run, by a rule in the user's policy file.
    Always,
    Deny,
}

impl Choice {
    /// The word for it, in events, messages and on the terminal.
    pub fn name(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Run => "run",
            Self::Always => "always",
            Self::Deny => "deny",
        }
    }
}

/// From another terminal to a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum ControlRequest {
    /// What is held now.
    List,
    Answer {
        ask: u64,
        choice: Choice,
        /// For [`Choice::Always`]: how long the rule lives, in seconds.
        lifetime_s: Option<u64>,
    },
    /// Read the policy files again and replace the rules of the way out.
    Reload,
}

/// From a run to another terminal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "snake_case")]
pub enum ControlResponse {
    Held { held: Vec<HeldRequest> },
    Done { message: String },
    Refused { reason: String },
}

/// A held request as it is shown. Texts are printable; all but the
/// destination come from inside and are not verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRequest {
    pub ask: u64,
    /// Registrable domain, by which requests are grouped.
    pub domain: String,
    /// `HOST:PORT`.
    pub destination: String,
    /// `connect`, `transparent`, …
    pub entry: String,
    /// Method and path, when they are known.
    pub request: Option<String>,
    /// Process id outside and command line of who asked, when it was found.
    pub process: Option<u32>,
    pub command: Option<String>,
    pub held_ms: u64,
}

/// Why a run could not be spoken to.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("the run {0} is over")]
    Over(RunId),
    #[error("the run {run} does not answer: {reason}")]
    Silent { run: RunId, reason: String },
}

/// The supervisor's side.
#[derive(Debug)]
pub struct ControlServer {
    listener: OwnedFd,
    clients: Vec<Client>,
    /// Number of the next client.
    next: u64,
    state: StateDirectory,
    name: String,
}

#[derive(Debug)]
struct Client {
    id: ClientId,
    socket: OwnedFd,
}

/// Names one client for as long as it is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId(u64);

impl ControlServer {
    /// Listens in the state directory, under the name of the run.
    pub fn open(state: &StateDirectory, run: &RunId) -> Result<Self, StateError> {
        let name = socket_name(run);
        let path = state.path_of(&name);
        let failed = |operation| move |errno: Errno| system(operation, &path.clone(), errno);
        let listener = seqpacket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
            .map_err(failed.clone()("make a socket for"))?;
        // Bound under another name first: a client that finds the socket
        // before it listens would take it for one that a dead run left.
        let _lock = state.lock(NAMING, LockKind::Exclusive)?;
        let fresh = format!("{name}{FRESH}");
        let address = address(state, &fresh).map_err(failed.clone()("name"))?;
        bind(&listener, &address).map_err(failed.clone()("bind"))?;
        listen(&listener, 16).map_err(failed.clone()("listen on"))?;
        rustix::fs::renameat(state, &fresh, state, &name).map_err(failed("name"))?;
        Ok(Self {
            listener,
            clients: Vec::new(),
            next: 0,
            state: state.clone(),
            name,
        })
    }

    /// What to poll for reading, and which client each is; the listener is
    /// none.
    pub fn waits_for(&self) -> impl Iterator<Item = (Option<ClientId>, BorrowedFd<'_>)> {
        let clients = self
            .clients
            .iter()
            .map(|client| (Some(client.id), client.socket.as_fd()));
        std::iter::once((None, self.listener.as_fd())).chain(clients)
    }

    /// Takes one client in, if it is the same user's and there is room.
    pub fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = accept_with(&self.listener, flags) else {
            return;
        };
        if is_own(socket.as_fd()) && self.clients.len() < CLIENTS_MAX {
            let id = ClientId(self.next);
            self.next += 1;
            self.clients.push(Client { id, socket });
        }
    }

    /// The request of a client; one that says anything else is let go.
    pub fn take(&mut self, id: ClientId) -> Option<ControlRequest> {
        let client = self.clients.iter().find(|client| client.id == id)?;
        let mut buffer = vec![0; 4096];
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let request = match recv(&client.socket, &mut buffer[..], flags) {
            Err(Errno::AGAIN | Errno::INTR) => return None,
            Ok((_, length)) if length > 0 => buffer
                .get(..length)
                .and_then(|bytes| serde_json::from_slice(bytes).ok()),
            _ => None,
        };
        if request.is_none() {
            self.clients.retain(|client| client.id != id);
        }
        request
    }

    /// Answers and lets the client go. One that left needs no answer.
    pub fn reply(&mut self, id: ClientId, response: &ControlResponse) {
        let Some(index) = self.clients.iter().position(|client| client.id == id) else {
            return;
        };
        let client = self.clients.swap_remove(index);
        if let Ok(bytes) = serde_json::to_vec(response) {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let _left = send(&client.socket, &bytes, flags).is_err();
        }
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        let _gone = rustix::fs::unlinkat(&self.state, &self.name, AtFlags::empty()).is_err();
    }
}

/// The runs of this user that can be spoken to, oldest name first. Sockets
/// that dead runs left are removed when they are met by [`ask`].
pub fn runs(state: &StateDirectory) -> Result<Vec<RunId>, StateError> {
    named(state, "")
}

/// The runs whose socket has a name that ends with `ending` besides.
fn named(state: &StateDirectory, ending: &str) -> Result<Vec<RunId>, StateError> {
    let failed = |errno: Errno| system("list", state.path(), errno);
    // A descriptor of its own: reading a directory moves its offset.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(state, ".", flags, Mode::empty()).map_err(failed)?;
    let mut runs = Vec::new();
    for entry in rustix::fs::Dir::read_from(&directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let id = entry
            .file_name()
            .to_str()
            .ok()
            .and_then(|name| {
                let name = name.strip_prefix(PREFIX)?.strip_suffix(ending)?;
                name.strip_suffix(SUFFIX)
            })
            .and_then(RunId::parse);
        runs.extend(id);
    }
    runs.sort_by(|one, other| one.as_str().cmp(other.as_str()));
    Ok(runs)
}

/// Runs of which only the socket is left, because their supervisor was killed.
pub fn dead(state: &StateDirectory) -> Result<Vec<RunId>, StateError> {
    let is_dead = |run: &RunId| {
        let address = address(state, &socket_name(run));
        let socket = seqpacket(SocketFlags::CLOEXEC);
        let answer = address.and_then(|address| connect(&socket?, &address));
        answer == Err(Errno::CONNREFUSED)
    };
    let mut dead = runs(state)?;
    dead.retain(is_dead);
    if !named(state, FRESH)?.is_empty() {
        // Those whose supervisor lives have their names as soon as this is locked.
        let _lock = state.lock(NAMING, LockKind::Exclusive)?;
        dead.extend(named(state, FRESH)?);
    }
    Ok(dead)
}

/// Removes what is left of a run that [`dead`] found.
pub fn bury(state: &StateDirectory, run: &RunId) {
    let name = socket_name(run);
    for name in [format!("{name}{FRESH}"), name] {
        // What is gone already needs no removing.
        let _gone = rustix::fs::unlinkat(state, name, AtFlags::empty()).is_err();
    }
}

/// Asks one run and waits for its answer.
pub fn ask(
    state: &StateDirectory,
    run: &RunId,
    request: &ControlRequest,
) -> Result<ControlResponse, ControlError> {
    let mut answer = ask_once(state, run, request);
    if matches!(answer, Err(Unanswered::Left)) {
        // Its listener closed while the request waited: what a second attempt
        // meets tells a run that is over from one that turned the client away.
        answer = ask_once(state, run, request);
    }
    answer.map_err(|unanswered| match unanswered {
        Unanswered::Over => ControlError::Over(run.clone()),
        Unanswered::Left => silent(run, "it closed the connection"),
        Unanswered::Silent(reason) => silent(run, reason),
    })
}

fn silent(run: &RunId, reason: impl Into<String>) -> ControlError {
    ControlError::Silent {
        run: run.clone(),
        reason: reason.into(),
    }
}

/// Why one request had no answer.
enum Unanswered {
    /// Nobody listens.
    Over,
    /// The other end closed the connection, whether or not it had read.
    Left,
    Silent(String),
}

impl From<Errno> for Unanswered {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::CONNREFUSED => Self::Over,
            Errno::CONNRESET | Errno::PIPE => Self::Left,
            other => Self::Silent(other.to_string()),
        }
    }
}

fn ask_once(
    state: &StateDirectory,
    run: &RunId,
    request: &ControlRequest,
) -> Result<ControlResponse, Unanswered> {
    let bytes =
        serde_json::to_vec(request).map_err(|error| Unanswered::Silent(error.to_string()))?;
    let socket = seqpacket(SocketFlags::CLOEXEC)?;
    let connected = connect(&socket, &address(state, &socket_name(run))?);
    if connected == Err(Errno::CONNREFUSED) {
        // Its supervisor was killed and could not tidy up.
        bury(state, run);
    }
    connected?;
    send(&socket, &bytes, SendFlags::NOSIGNAL)?;
    let patience = Timespec {
        tv_sec: PATIENCE.as_secs() as i64,
        tv_nsec: 0,
    };
    if poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&patience))? == 0 {
        let reason = format!("no answer within {} s", PATIENCE.as_secs());
        return Err(Unanswered::Silent(reason));
    }
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    match recv(&socket, &mut buffer[..], RecvFlags::empty())? {
        (0, _) => Err(Unanswered::Left),
        (length, _) => serde_json::from_slice(&buffer[..length])
            .map_err(|error| Unanswered::Silent(format!("it is of another version: {error}"))),
    }
}

fn socket_name(run: &RunId) -> String {
    format!("{PREFIX}{}{SUFFIX}", run.as_str())
}

fn seqpacket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    unix_socket(SocketType::SEQPACKET, flags)
}

pub(crate) fn unix_socket(kind: SocketType, flags: SocketFlags) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, kind, flags, None)
}

/// Whether the process behind a connection is this user's (SO_PEERCRED).
pub(crate) fn is_own(socket: BorrowedFd<'_>) -> bool {
    let caller = rustix::process::geteuid();
    sockopt::socket_peercred(socket).is_ok_and(|credentials| credentials.uid == caller)
}

/// Through the descriptor of the checked directory: no link is followed, and
/// a long path fits (unix(7) has room for 108 bytes).
pub(crate) fn address(state: &StateDirectory, name: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new(format!(
        "/proc/self/fd/{}/{name}",
        state.as_fd().as_raw_fd()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stockade_policy::path::AbsolutePath;

    fn state() -> (tempfile::TempDir, StateDirectory) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("state");
        let path = AbsolutePath::parse(path.to_str().unwrap()).unwrap();
        let state = StateDirectory::open_at(&path).unwrap();
        (directory, state)
    }

    /// Serves one request with one response.
    fn serve(mut server: ControlServer, response: ControlResponse) -> Option<ControlRequest> {
        loop {
            let ready = {
                let waits: Vec<_> = server.waits_for().collect();
                let mut descriptors: Vec<_> = waits
                    .iter()
                    .map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
                    .collect();
                poll(&mut descriptors, None).unwrap();
                let ready = waits
                    .iter()
                    .zip(&descriptors)
                    .find(|(_, descriptor)| !descriptor.revents().is_empty());
                ready.map(|((id, _), _)| *id).unwrap()
            };
            match ready {
                None => server.accept(),
                Some(id) => {
                    let request = server.take(id);
                    server.reply(id, &response);
                    return request;
                }
            }
        }
    }

    /// As SIGKILL does: the descriptors are closed, the name stays.
    fn kill(mut server: ControlServer) {
        server.name.clear();
    }

    #[test]
    fn a_run_answers_and_leaves_no_socket() {
        let (_directory, state) = state();
        let run = RunId::from_random(7);
        let server = ControlServer::open(&state, &run).unwrap();
        assert_eq!(runs(&state).unwrap().as_slice(), std::slice::from_ref(&run));
        let response = ControlResponse::Done {
            message: "as you wish".into(),
        };
        let expected = response.clone();
        let serving = std::thread::spawn(move || serve(server, response));
        let request = ControlRequest::Answer {
            ask: 3,
            choice: Choice::Always,
            lifetime_s: Some(60),
        };
        assert_eq!(ask(&state, &run, &request).unwrap(), expected);
        assert_eq!(serving.join().unwrap(), Some(request));
        assert!(runs(&state).unwrap().is_empty());
        let over = ask(&state, &run, &ControlRequest::List);
        assert!(matches!(over, Err(ControlError::Over(_))), "{over:?}");
    }

    #[test]
    fn what_a_killed_run_left_is_removed_when_it_is_met() {
        let (_directory, state) = state();
        let run = RunId::from_random(9);
        kill(ControlServer::open(&state, &run).unwrap());
        assert_eq!(runs(&state).unwrap().len(), 1);
        let over = ask(&state, &run, &ControlRequest::List);
        assert!(matches!(over, Err(ControlError::Over(_))), "{over:?}");
        assert!(runs(&state).unwrap().is_empty());
    }

    #[test]
    fn a_run_that_is_killed_while_a_request_waits_is_over() {
        let (_directory, state) = state();
        let run = RunId::from_random(10);
        let server = ControlServer::open(&state, &run).unwrap();
        let asking = std::thread::spawn({
            let (state, run) = (state.clone(), run.clone());
            move || ask(&state, &run, &ControlRequest::List)
        });
        // The request is in the queue of a listener that never takes it.
        let waiting = PollFd::new(&server.listener, PollFlags::IN);
        poll(&mut [waiting], None).unwrap();
        kill(server);
        let over = asking.join().unwrap();
        assert!(matches!(over, Err(ControlError::Over(_))), "{over:?}");
        assert!(runs(&state).unwrap().is_empty());
    }

    #[test]
    fn what_was_killed_before_it_had_a_name_is_found() {
        let (_directory, state) = state();
        let [early, late] = [RunId::from_random(1), RunId::from_random(2)];
        let fresh = |run| format!("{}{FRESH}", socket_name(run));
        let half = seqpacket(SocketFlags::CLOEXEC).unwrap();
        bind(&half, &address(&state, &fresh(&early)).unwrap()).unwrap();
        assert!(runs(&state).unwrap().is_empty());
        // Whoever holds the lock is about to give its socket the name.
        let naming = state.lock(NAMING, LockKind::Exclusive).unwrap();
        bind(
            seqpacket(SocketFlags::CLOEXEC).unwrap(),
            &address(&state, &fresh(&late)).unwrap(),
        )
        .unwrap();
        let finding = std::thread::spawn({
            let state = state.clone();
            move || dead(&state).unwrap()
        });
        std::thread::sleep(Duration::from_millis(20));
        rustix::fs::renameat(&state, fresh(&late), &state, "named").unwrap();
        drop(naming);
        let found = finding.join().unwrap();
        assert_eq!(found.as_slice(), std::slice::from_ref(&early));
        bury(&state, &early);
        assert!(dead(&state).unwrap().is_empty());
        assert!(rustix::fs::statat(&state, fresh(&early), AtFlags::empty()).is_err());
    }

    #[test]
    fn nonsense_is_let_go() {
        let (_directory, state) = state();
        let run = RunId::from_random(11);
        let mut server = ControlServer::open(&state, &run).unwrap();
        let client = seqpacket(SocketFlags::CLOEXEC).unwrap();
        connect(&client, &address(&state, &socket_name(&run)).unwrap()).unwrap();
        send(&client, b"{\"request\":\"root\"}", SendFlags::empty()).unwrap();
        server.accept();
        assert_eq!(server.take(ClientId(0)), None);
        assert_eq!(server.waits_for().count(), 1);
    }
}
