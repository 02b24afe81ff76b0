//! What crosses between the engine and the egress process, and nothing else.
//!
//! Both are the same build, so there is one version; it is checked all the
//! same. Messages go over a `SOCK_SEQPACKET` pair, one a packet, but events
//! several; what may be large comes in a sealed memory file whose descriptor is
//! attached to its message.

use serde::{Deserialize, Serialize};
use stockade_policy::network::NetworkPlan;
use stockade_policy::network::rules::NetworkRule;
use zeroize::Zeroizing;

use crate::secret::SecretText;

/// Version of everything in this module.
pub const VERSION: u32 = 1;

/// Variable by which git is told how to run ssh (git(1)): with the key by
/// which this sandbox's end of git over SSH is known.
pub const GIT_SSH_VARIABLE: &str = "GIT_SSH_COMMAND";

/// Largest message and largest packet, in bytes. Events are cut to fit.
pub const MESSAGE_BYTES_MAX: usize = 32 * 1024;

/// Largest set-up, in bytes.
pub const SETUP_BYTES_MAX: usize = 16 * 1024 * 1024;

/// All that an egress process is given; attached to [`ToEgress::SetUp`] and
/// [`ToEgress::Replace`] as a memory file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SetUp {
    pub version: u32,
    pub run: String,
    pub network: NetworkPlan,
    /// One for each binding of the plan, in its order.
    pub secrets: Vec<SecretSource>,
    /// known_hosts(5) lines that say which SSH servers are whom.
    pub known_hosts: Vec<u8>,
    /// The host's ssh agent, for git over SSH.
    pub ssh_agent: Option<Vec<u8>>,
    /// Private keys (OpenSSH format) for git over SSH, when there is no agent.
    pub ssh_keys: Vec<SecretText>,
    /// Variables of the caller that say where its certificate roots are.
    pub root_file: Option<Vec<u8>>,
    pub root_directory: Option<Vec<u8>>,
    /// Unix socket on which counters are served, when the plan says so.
    pub metrics_socket: Option<Vec<u8>>,
    /// What the explicit proxy wants to be shown, where others than the sandbox
    /// can reach it ([`crate::proxy_token`]).
    pub proxy_token: Option<SecretText>,
}

/// The secret of one binding, as far as the engine could read it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum SecretSource {
    /// The value itself.
    Value(SecretText),
    /// To be minted by the egress process; the values of the nested sources
    /// of the binding's `Source`, in the order in which they are declared.
    Mint(Vec<SecretText>),
}

/// From the engine to the egress process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ToEgress {
    /// First message; a memory file with the [`SetUp`] is attached.
    SetUp,
    /// The listeners of the sandbox, one descriptor each, in this order. The
    /// egress process tests itself through them and says [`FromEgress::Tested`].
    Listen { listeners: Vec<Listener> },
    /// New rules, as in `SetUp` (secrets included). Answered by `Replaced` or
    /// `NotReplaced`; the old rules hold until then.
    Replace,
    /// Answer to [`FromEgress::Ask`].
    Answer { ask: u64, answer: Answer },
    /// Close everything, send the last events and `Finished`, and end.
    Finish,
}

/// What a handed descriptor is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Listener {
    /// TCP, 127.0.0.1:3128 or [::1]:3128: HTTP proxy and SOCKS5.
    Proxy,
    /// TCP, 127.0.0.1 and ::1: redirected connections (SO_ORIGINAL_DST).
    Transparent,
    /// UDP port 53, every address, with the destination in its messages
    /// (IP_PKTINFO, IPV6_RECVPKTINFO).
    NamesUdp,
    NamesTcp,
    /// TCP on the loopback inside, for this port of the host.
    HostPort(u16),
    /// Unix stream socket; index into the plan's offers.
    Unix(u32),
    /// TCP on the loopback inside, for the same: a machine's end of it leads there.
    SocketPort(u32),
    /// `SOCK_SEQPACKET` to the sandbox's init, which answers each one-byte
    /// message (b'4' or b'6') with a fresh TCP socket of the sandbox.
    Supply,
    /// An unconnected TCP or UDP socket of the sandbox, for the self-test.
    ProbeTcp,
    ProbeUdp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Permit this one request.
    Once,
    /// Permit it, and everything that this rule permits, until the run ends.
    Rule(Box<NetworkRule>),
    Deny,
}

/// From the egress process to the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromEgress {
    /// The set-up is understood. `authority` is the certificate (PEM) that
    /// programs inside have to trust, when anything is inspected;
    /// `placeholders` are the variables and placeholder values to set inside,
    /// and [`GIT_SSH_VARIABLE`] where a rule lets git speak SSH.
    Ready {
        authority: Option<Vec<u8>>,
        placeholders: Vec<(String, String)>,
    },
    /// The self-test passed: entry and what was seen, for the evidence.
    /// `published` are ports
    /// inside, each with the port of the host's loopback that was bound for it.
    Tested {
        evidence: Vec<(String, String)>,
        published: Vec<(u16, u16)>,
    },
    /// Something that must be so is not; nothing may run.
    Failed {
        what: String,
        reason: String,
    },
    Replaced {
        generation: u64,
    },
    NotReplaced {
        reason: String,
    },
    Event(NetworkEvent),
    Ask(Ask),
    /// Nobody waits for this answer any more.
    AskGone {
        ask: u64,
    },
    Finished(Totals),
}

/// A held request. Texts come from inside and are not to be trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    pub ask: u64,
    /// `host:port`.
    pub host: String,
    pub port: u16,
    /// Registrable domain, by which asks are grouped.
    pub domain: String,
    pub entry: Entry,
    /// Method and path, when they are known already.
    pub request: Option<String>,
    /// Port from which the sandbox connected, to find the process.
    pub client_port: u16,
}

/// The way by which a connection came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Entry {
    Connect,
    HttpProxy,
    Socks,
    Transparent,
    Name,
    HostPort,
    Unix,
    Publish,
}

/// One decision or one end; the engine writes it to the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkEvent {
    /// A connection, a name or a request was judged.
    Decided {
        /// Counts connections of this sandbox; requests share their
        /// connection's.
        connection: u64,
        entry: Entry,
        /// `host:port`, canonical; printable.
        destination: String,
        /// Method and path without its query, for requests.
        request: Option<String>,
        verdict: Verdict,
        rule: String,
        origin: String,
        generation: u64,
        /// Why, for denials: a stable code and a sentence.
        code: String,
        reason: String,
        smallest_grant: Option<String>,
    },
    /// A credential was attached.
    CredentialUsed {
        connection: u64,
        credential: String,
        destination: String,
    },
    /// Something that no honest program does: a placeholder off its binding,
    /// a secret in a response, a foreign credential.
    Alert {
        connection: u64,
        code: String,
        destination: String,
        detail: String,
    },
    /// A connection is over.
    Closed {
        connection: u64,
        destination: String,
        rule: String,
        generation: u64,
        uploaded_bytes: u64,
        downloaded_bytes: u64,
        duration_ms: u64,
        requests: u64,
        credentials: Vec<String>,
        scrubbed: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    Allowed,
    Denied,
    Held,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    pub connections: u64,
    pub denied: u64,
    pub uploaded_bytes: u64,
    pub downloaded_bytes: u64,
    /// Events that could not be sent because the engine did not read.
    pub events_lost: u64,
}

/// Why bytes are no message or set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("the encoded form is too long")]
    TooLong,
    #[error("the encoded form is malformed")]
    Malformed,
    #[error("version {0} is not {VERSION}")]
    Version(u32),
}

/// Encodes a [`ToEgress`] or a [`FromEgress`]; at most [`MESSAGE_BYTES_MAX`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, WireError> {
    bounded(message, MESSAGE_BYTES_MAX)
}

/// Decodes exactly one message; trailing bytes are an error.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, WireError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(WireError::Malformed),
    }
}

/// Decodes a packet of the egress process: one message or more.
pub fn decode_packet(mut bytes: &[u8]) -> Result<Vec<FromEgress>, WireError> {
    let mut messages = Vec::new();
    loop {
        let (message, rest) = postcard::take_from_bytes(bytes).map_err(|_| WireError::Malformed)?;
        messages.push(message);
        if rest.is_empty() {
            return Ok(messages);
        }
        bytes = rest;
    }
}

impl SetUp {
    /// What the memory file holds, secrets included.
    pub fn encode(&self) -> Result<Zeroizing<Vec<u8>>, WireError> {
        bounded(self, SETUP_BYTES_MAX).map(Zeroizing::new)
    }

    /// Takes exactly one set-up of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() > SETUP_BYTES_MAX {
            return Err(WireError::TooLong);
        }
        let set_up: Self = decode(bytes)?;
        match set_up.version {
            VERSION => Ok(set_up),
            other => Err(WireError::Version(other)),
        }
    }
}

fn bounded<T: Serialize>(value: &T, bytes_max: usize) -> Result<Vec<u8>, WireError> {
    let bytes = postcard::to_allocvec(value).map_err(|_| WireError::Malformed)?;
    match bytes.len() <= bytes_max {
        true => Ok(bytes),
        false => Err(WireError::TooLong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn joined(messages: &[FromEgress]) -> Vec<u8> {
        let encoded = messages.iter().map(|message| encode(message).unwrap());
        encoded.collect::<Vec<_>>().concat()
    }

    fn message() -> impl Strategy<Value = FromEgress> {
        let event = (any::<u64>(), "\\PC{0,40}", "\\PC{0,40}").prop_map(
            |(connection, credential, destination)| {
                FromEgress::Event(NetworkEvent::CredentialUsed {
                    connection,
                    credential,
                    destination,
                })
            },
        );
        let other = any::<u64>().prop_map(|ask| FromEgress::AskGone { ask });
        prop_oneof![event, other]
    }

    proptest! {
        #[test]
        fn a_packet_has_the_messages_that_were_put_into_it(
            messages in proptest::collection::vec(message(), 1..20),
        ) {
            prop_assert_eq!(decode_packet(&joined(&messages)), Ok(messages));
        }

        /// The engine reads what a process says that may have been taken over.
        #[test]
        fn any_bytes_are_messages_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            messages in proptest::collection::vec(message(), 0..3),
            cut in 0_usize..40,
        ) {
            let mut packet = joined(&messages);
            packet.truncate(packet.len().saturating_sub(cut));
            packet.extend_from_slice(&bytes);
            if let Ok(read) = decode_packet(&packet) {
                prop_assert!(!read.is_empty());
                prop_assert_eq!(decode_packet(&joined(&read)), Ok(read));
            }
        }
    }
}
