//! Carries one admitted connection, in the way that its rule says.
//!
//! Raw bytes are passed as they are; TLS passes when its ClientHello names the
//! destination; what is inspected goes to `inspect`, git over SSH to `git`.
//! A protocol in which the server speaks first works under `raw` only: it is
//! dialled without waiting for the client.

use std::io;
use std::rc::Rc;

use stockade_policy::network::judge::Denial;
use stockade_policy::network::rules::TlsMode;
use stockade_policy::network::{Destination, Host};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::context::{Conversation, denial};
use crate::front::Progress;
use crate::front::hello::{BadHello, ClientHello, HelloReader};
use crate::front::sniff::{Protocol, sniff};
use crate::front::socks::{Reply, encode_reply};
use crate::git_ssh;
use crate::ingress::{self, Unread};
use crate::refusal;
use crate::services;
use crate::tunnel;

/// What the client hears before its own bytes are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It sent CONNECT.
    Http,
    Socks,
    /// It knows of no proxy.
    Silent,
}

/// `access_denied` of TLS, fatal, as a record (RFC 8446, section 6).
const TLS_ACCESS_DENIED: [u8; 7] = [0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x31];

/// Carries the connection to its end. `early` was read from the client behind
/// what the opening took.
pub async fn converse(
    conversation: Rc<Conversation>,
    mut client: TcpStream,
    early: Vec<u8>,
    opening: Opening,
) {
    let passage = &conversation.passage;
    let over_ssh = passage.git_over_ssh;
    if !over_ssh {
        match passage.tls {
            TlsMode::Raw => return raw(&conversation, client, early, opening).await,
            TlsMode::Passthrough if conversation.destination.port() != 80 => {
                return passthrough(&conversation, client, early, opening).await;
            }
            TlsMode::Passthrough | TlsMode::Inspect => {}
        }
    }
    // A client that is gone needs nothing more.
    if opening.accepted(&mut client).await.is_err() {
        return;
    }
    if over_ssh {
        git_ssh::serve(conversation, client, early).await;
    } else {
        by_first_bytes(conversation, client, early).await;
    }
}

impl Opening {
    /// The way is open.
    async fn accepted(self, client: &mut TcpStream) -> io::Result<()> {
        match self {
            Self::Http => {
                client
                    .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    .await
            }
            Self::Socks => client.write_all(&encode_reply(Reply::Succeeded)).await,
            Self::Silent => Ok(()),
        }
    }

    /// It is not, and this is why. The client's side is closed gently, so that
    /// the answer is read before the end.
    pub async fn refused(
        self,
        mut client: TcpStream,
        denial: &Denial,
        destination: &Destination,
        connection: u64,
    ) {
        let answer = match self {
            Self::Http => refusal::http1(denial, &destination.to_string(), &connection.to_string()),
            Self::Socks => encode_reply(socks_reply(denial)).to_vec(),
            Self::Silent if destination.port() == 80 => {
                refusal::http1(denial, &destination.to_string(), &connection.to_string())
            }
            Self::Silent => return,
        };
        if client.write_all(&answer).await.is_ok() {
            ingress::linger(client).await;
        }
    }
}

fn socks_reply(denial: &Denial) -> Reply {
    match denial.code {
        "unresolvable" => Reply::HostUnreachable,
        "bad-request" => Reply::GeneralFailure,
        _ => Reply::NotAllowed,
    }
}

async fn raw(conversation: &Conversation, mut client: TcpStream, early: Vec<u8>, opening: Opening) {
    if let Err(denial) = conversation.count_unseen() {
        return refuse(conversation, client, &denial, opening).await;
    }
    match conversation.dial().await {
        Ok(upstream) => {
            if opening.accepted(&mut client).await.is_ok() {
                tunnel::carry(conversation, client, &early, upstream).await;
            }
        }
        Err(denial) => refuse(conversation, client, &denial, opening).await,
    }
}

/// A client that waits for an answer is given one by the dial; one that knows
/// of no proxy has spoken, so both go on at once.
async fn passthrough(
    conversation: &Conversation,
    mut client: TcpStream,
    mut early: Vec<u8>,
    opening: Opening,
) {
    if let Err(denial) = conversation.count_unseen() {
        return refuse(conversation, client, &denial, opening).await;
    }
    let (upstream, hello) = if opening == Opening::Silent {
        let (upstream, hello) =
            tokio::join!(conversation.dial(), read_hello(&mut client, &mut early));
        (upstream, Some(hello))
    } else {
        (conversation.dial().await, None)
    };
    let upstream = match upstream {
        Ok(upstream) => upstream,
        Err(denial) => return refuse(conversation, client, &denial, opening).await,
    };
    let hello = match hello {
        Some(hello) => hello,
        None => {
            if opening.accepted(&mut client).await.is_err() {
                return;
            }
            read_hello(&mut client, &mut early).await
        }
    };
    if let Some(refused) = check_hello(hello, &conversation.destination) {
        return close_tls(conversation, client, &refused).await;
    }
    tunnel::carry(conversation, client, &early, upstream).await;
}

/// Inspected, or port 80: what it is, is told by its first bytes.
async fn by_first_bytes(conversation: Rc<Conversation>, mut client: TcpStream, mut early: Vec<u8>) {
    let Ok(protocol) = ingress::peek_first(&mut client, &mut early, sniffed).await else {
        return;
    };
    match (protocol, conversation.passage.tls) {
        (Protocol::Tls, TlsMode::Inspect) => {
            services::inspect_tls(conversation, client, early).await
        }
        (Protocol::Tls, _) => {
            passthrough(&conversation, client, early, Opening::Silent).await;
        }
        (Protocol::Http, _) => services::inspect_plain(conversation, client, early).await,
        _ => {
            let reason = format!(
                "{} is reached by TLS or HTTP only; for another protocol its rule needs tls = \"raw\"",
                conversation.destination
            );
            conversation.denied(None, &denial("bad-request", reason));
        }
    }
}

fn sniffed(bytes: &[u8]) -> Result<Progress<Protocol>, std::convert::Infallible> {
    Ok(match sniff(bytes) {
        Some(value) => Progress::Done { value, consumed: 0 },
        None => Progress::NeedMore,
    })
}

async fn read_hello(
    client: &mut TcpStream,
    early: &mut Vec<u8>,
) -> Result<ClientHello, Unread<BadHello>> {
    let mut reader = HelloReader::default();
    ingress::peek_first(client, early, |bytes| {
        Ok(match reader.read(bytes)? {
            Some((value, consumed)) => Progress::Done { value, consumed },
            None => Progress::NeedMore,
        })
    })
    .await
}

/// Why a hello must not pass. What follows it is beyond anyone's sight, so the
/// name in it is all there is to hold it to.
fn check_hello(
    hello: Result<ClientHello, Unread<BadHello>>,
    destination: &Destination,
) -> Option<Denial> {
    let hello = match hello {
        Ok(hello) => hello,
        Err(Unread::Bad(bad)) => {
            return Some(denial(
                "bad-request",
                format!("no TLS that can be passed through: {bad}"),
            ));
        }
        Err(gone @ Unread::Gone) => return Some(denial("bad-request", gone.to_string())),
    };
    if hello.ech {
        let reason = "the ClientHello is encrypted (ECH), so its true server name is unknown";
        return Some(denial("ech", reason));
    }
    match (hello.server_name, destination.host()) {
        (Some(named), Host::Name(name)) if named == *name => None,
        (None, Host::Address(_)) => None,
        (None, Host::Name(name)) => Some(denial(
            "no-sni",
            format!("the ClientHello names no server where {name} is expected"),
        )),
        (Some(named), host) => Some(denial(
            "sni-mismatch",
            format!("the ClientHello names {named} on a connection to {host}"),
        )),
    }
}

async fn close_tls(conversation: &Conversation, mut client: TcpStream, refused: &Denial) {
    conversation.denied(None, refused);
    if client.write_all(&TLS_ACCESS_DENIED).await.is_ok() {
        ingress::linger(client).await;
    }
}

async fn refuse(conversation: &Conversation, client: TcpStream, denial: &Denial, opening: Opening) {
    opening
        .refused(client, denial, &conversation.destination, conversation.id)
        .await;
}
