//! The egress process from its start to the gate: it is given the set-up and
//! the sandbox's listeners, and must show that it refuses what it has to.
//!
//! Whatever is missing or late is a refusal; nothing was executed by then.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stockade_egress::secret::SecretText;
use stockade_egress::wire::{
    self, FromEgress, Listener, MESSAGE_BYTES_MAX, SecretSource, SetUp, ToEgress,
};
use stockade_policy::network::rules::NetworkPlan;
use stockade_policy::path::AbsolutePath;
use stockade_policy::plan;
use stockade_walls::egress::{self, Egress};

use super::channel::{Channel, ChannelError};
use crate::events::RunId;
use crate::events::network::text;
use crate::state::StateDirectory;

/// How long each step of the start may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest file of known hosts that is read, in bytes.
const KNOWN_HOSTS_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Largest private key that is read, in bytes.
const KEY_BYTES_MAX: u64 = 64 * 1024;
/// Keys that ssh(1) offers when it is told of no other.
const KEY_NAMES: [&str; 3] = ["id_ed25519", "id_ecdsa", "id_rsa"];

/// Why the way out could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum WayOutError {
    #[error("the egress process cannot be started: {0}")]
    Spawn(io::Error),
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("{what}: {reason}")]
    Failed { what: String, reason: String },
}

/// An egress process that has been started. Dropping it ends it.
#[derive(Debug)]
pub struct Starting {
    pub(super) channel: Channel,
    pub(super) process: Egress,
}

/// What has to be inside before the command starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Certificate of the sandbox's own authority (PEM).
    pub authority: Option<Vec<u8>>,
    /// Variables and the placeholders that they get.
    pub placeholders: Vec<(String, String)>,
}

impl Extras {
    /// The placeholders as variables of the command.
    pub fn environment(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.placeholders
            .iter()
            .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
            .collect()
    }
}

/// What the self-test saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tested {
    /// One line for the evidence.
    pub evidence: String,
    /// Port inside and port on the host's loopback.
    pub published: Vec<(u16, u16)>,
}

impl Starting {
    /// Starts `program`, or this one when it is `None`, as an egress process.
    /// It does nothing before it has a set-up.
    pub fn spawn(program: Option<&Path>) -> Result<Self, WayOutError> {
        let (channel, theirs) = Channel::pair().map_err(WayOutError::Spawn)?;
        let program = match program {
            Some(path) => CString::new(path.as_os_str().as_encoded_bytes())
                .map_err(|error| WayOutError::Spawn(error.into()))?,
            None => c"/proc/self/exe".to_owned(),
        };
        let arguments = [c"stockade".to_owned(), c"egress".to_owned()];
        let process = egress::spawn(&program, &arguments, theirs).map_err(WayOutError::Spawn)?;
        Ok(Self { channel, process })
    }

    /// Its process id.
    pub fn process(&self) -> u32 {
        self.process.pid()
    }

    /// Hands the set-up over, without waiting for what comes of it.
    pub fn set_up(&self, set_up: &SetUp) -> Result<(), WayOutError> {
        Ok(self.channel.send_set_up(&ToEgress::SetUp, set_up)?)
    }

    /// Waits until the set-up is understood.
    pub fn ready(&mut self, network: &NetworkPlan) -> Result<Extras, WayOutError> {
        match self.heard()? {
            FromEgress::Ready {
                authority,
                placeholders,
            } => {
                check(network, &authority, &placeholders)?;
                Ok(Extras {
                    authority,
                    placeholders,
                })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Passes the sandbox's listeners on and waits for the self-test.
    pub fn listen(
        &mut self,
        network: &NetworkPlan,
        listeners: Vec<(plan::Listener, OwnedFd)>,
    ) -> Result<Tested, WayOutError> {
        let mut names = Vec::new();
        let mut descriptors = Vec::new();
        for (listener, descriptor) in listeners {
            names.push(on_wire(network, listener)?);
            descriptors.push(descriptor);
        }
        let attached: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let message = ToEgress::Listen { listeners: names };
        self.channel.send(&message, &attached)?;
        match self.heard()? {
            FromEgress::Tested {
                evidence,
                published,
            } => Ok(Tested {
                evidence: evidence
                    .iter()
                    .map(|(entry, seen)| format!("{}: {}", text(entry), text(seen)))
                    .collect::<Vec<_>>()
                    .join("; "),
                published,
            }),
            other => Err(unexpected(&other)),
        }
    }

    /// The next message but events: those of the self-test are no decisions
    /// about the command.
    fn heard(&mut self) -> Result<FromEgress, WayOutError> {
        loop {
            match self.channel.receive(PATIENCE)? {
                FromEgress::Event(_) => {}
                FromEgress::Failed { what, reason } => {
                    return Err(WayOutError::Failed {
                        what: text(&what),
                        reason: text(&reason),
                    });
                }
                other => return Ok(other),
            }
        }
    }
}

/// How a listener of the plan is called on the wire.
fn on_wire(network: &NetworkPlan, listener: plan::Listener) -> Result<Listener, WayOutError> {
    Ok(match listener {
        plan::Listener::Proxy => Listener::Proxy,
        plan::Listener::Transparent => Listener::Transparent,
        plan::Listener::NamesUdp => Listener::NamesUdp,
        plan::Listener::NamesTcp => Listener::NamesTcp,
        plan::Listener::HostPort(port) => Listener::HostPort(port),
        plan::Listener::Supply => Listener::Supply,
        plan::Listener::ProbeTcp => Listener::ProbeTcp,
        plan::Listener::ProbeUdp => Listener::ProbeUdp,
        plan::Listener::Unix { path } => Listener::Unix(offered(network, &path)?),
        plan::Listener::SocketPort { path, .. } => Listener::SocketPort(offered(network, &path)?),
    })
}

/// Which of the plan's sockets is offered at this path.
fn offered(network: &NetworkPlan, path: &AbsolutePath) -> Result<u32, WayOutError> {
    let mut offers = network.sockets.iter();
    let index = offers.position(|offer| offer.inside == *path);
    let index = index.and_then(|index| u32::try_from(index).ok());
    index.ok_or_else(|| WayOutError::Failed {
        what: format!("the socket {path}"),
        reason: "the plan does not offer it".to_owned(),
    })
}

fn unexpected(message: &FromEgress) -> WayOutError {
    let name = match message {
        FromEgress::Ready { .. } => "Ready",
        FromEgress::Tested { .. } => "Tested",
        FromEgress::Finished(_) => "Finished",
        _ => "something else",
    };
    ChannelError::Protocol(format!("it said {name} out of turn")).into()
}

/// Nothing goes inside but what the plan names.
fn check(
    network: &NetworkPlan,
    authority: &Option<Vec<u8>>,
    placeholders: &[(String, String)],
) -> Result<(), WayOutError> {
    let is_named = |name: &String| {
        network
            .credentials
            .iter()
            .any(|binding| binding.variable.as_ref() == Some(name))
    };
    let speaks_ssh = network
        .sets
        .iter()
        .flat_map(|set| &set.rules)
        .any(|rule| rule.git.as_ref().is_some_and(|git| git.ssh_port.is_some()));
    let is_ours = |name: &String| speaks_ssh && name == wire::GIT_SSH_VARIABLE;
    let is_plain = |value: &String| !value.is_empty() && !value.contains('\0');
    let are_expected = placeholders
        .iter()
        .all(|(name, value)| (is_named(name) || is_ours(name)) && is_plain(value));
    let has_room = |pem: &Vec<u8>| pem.len() <= MESSAGE_BYTES_MAX && pem.is_ascii();
    if are_expected && authority.as_ref().is_none_or(has_room) {
        Ok(())
    } else {
        let what = "it named variables or an authority that the plan does not";
        Err(ChannelError::Protocol(what.into()).into())
    }
}

/// What the caller's side contributes to a set-up.
pub struct Caller<'a> {
    pub run: &'a RunId,
    pub home: &'a AbsolutePath,
    pub state: &'a StateDirectory,
    pub secrets: Vec<SecretSource>,
}

/// Everything that the egress process of this plan is given.
pub fn set_up(network: &NetworkPlan, caller: Caller<'_>) -> Result<SetUp, WayOutError> {
    let over_ssh = network
        .sets
        .iter()
        .flat_map(|set| &set.rules)
        .any(|rule| rule.git.as_ref().is_some_and(|git| git.ssh_port.is_some()));
    let variable = |name: &str| {
        std::env::var_os(name)
            .map(OsStringExt::into_vec)
            .filter(|value| !value.is_empty())
    };
    let ssh = caller.home.as_path().join(".ssh");
    let ssh_agent = variable("SSH_AUTH_SOCK").filter(|_| over_ssh);
    let ssh_keys = match (over_ssh, &ssh_agent) {
        (true, None) => keys(&ssh)?,
        _ => Vec::new(),
    };
    let known_hosts = match over_ssh {
        true => known_hosts(&ssh)?,
        false => Vec::new(),
    };
    let metrics_socket = network
        .metrics
        .then(|| caller.state.path_of(&metrics_name(caller.run)));
    Ok(SetUp {
        version: wire::VERSION,
        run: caller.run.as_str().to_owned(),
        network: network.clone(),
        secrets: caller.secrets,
        known_hosts,
        ssh_agent,
        ssh_keys,
        root_file: variable("SSL_CERT_FILE"),
        root_directory: variable("SSL_CERT_DIR"),
        metrics_socket: metrics_socket.map(|path| path.as_bytes().to_vec()),
        proxy_token: None,
    })
}

/// Name of the metrics socket in the state directory.
pub(super) fn metrics_name(run: &RunId) -> String {
    format!("metrics-{}.sock", run.as_str())
}

/// What ssh(1) would know: the user's file, then the machine's.
fn known_hosts(ssh: &Path) -> Result<Vec<u8>, WayOutError> {
    let mut lines = Vec::new();
    for path in [
        ssh.join("known_hosts"),
        PathBuf::from("/etc/ssh/ssh_known_hosts"),
    ] {
        if let Some(mut file) = read(&path, KNOWN_HOSTS_BYTES_MAX)? {
            lines.append(&mut file);
            lines.push(b'\n');
        }
    }
    Ok(lines)
}

/// The user's own keys, as far as nobody else can read them.
fn keys(ssh: &Path) -> Result<Vec<SecretText>, WayOutError> {
    let mut keys = Vec::new();
    for name in KEY_NAMES {
        let path = ssh.join(name);
        // As ssh(1) does, a key that others can read is not used.
        let is_private = std::fs::metadata(&path).is_ok_and(|status| status.mode() & 0o077 == 0);
        if is_private
            && let Some(bytes) = read(&path, KEY_BYTES_MAX)?
            && let Ok(key) = String::from_utf8(bytes)
        {
            keys.push(SecretText::new(key));
        }
    }
    Ok(keys)
}

/// The content of a file; `None` when there is none.
fn read(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, WayOutError> {
    let failed = |error: io::Error| WayOutError::Failed {
        what: format!("cannot read {}", text(&path.to_string_lossy())),
        reason: error.to_string(),
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if !file.metadata().map_err(failed)?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    match bytes.len() as u64 <= bytes_max {
        true => Ok(Some(bytes)),
        false => Err(failed(io::Error::other("it is too large"))),
    }
}
