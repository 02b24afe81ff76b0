//! Where a conversation is handed to the parts that read its content.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use stockade_policy::network::Destination;
use stockade_policy::network::judge::Denial;
use tokio::net::TcpStream;

use crate::audit::Subject;
use crate::context::{Context, Conversation, Wish};
use crate::ingress;
use crate::inspect::forward::{self, Closed, Door};
use crate::replay::Replay;
use crate::wire::Entry;

/// TLS that is ended here; the ClientHello is among `early`.
pub async fn inspect_tls(conversation: Rc<Conversation>, client: TcpStream, early: Vec<u8>) {
    // Why it ended is in the log where a rule was the reason.
    drop(forward::serve_tls(conversation, Replay::new(early, client)).await);
}

/// HTTP without TLS, origin-form.
pub async fn inspect_plain(conversation: Rc<Conversation>, client: TcpStream, early: Vec<u8>) {
    drop(forward::serve_plain(conversation, Replay::new(early, client)).await);
}

/// HTTP requests in absolute form; the first head is among `early`.
pub async fn proxy_requests(context: Rc<Context>, client: TcpStream, early: Vec<u8>) {
    let door = ProxyDoor {
        number: context.next_connection(),
        client_port: client.peer_addr().map_or(0, |peer| peer.port()),
        client: client.as_fd().try_clone_to_owned().ok(),
        context,
    };
    drop(forward::serve_proxy(Replay::new(early, client), door).await);
}

/// One client of the explicit proxy.
struct ProxyDoor {
    context: Rc<Context>,
    number: u64,
    client_port: u16,
    /// To see it go while nothing of it is read; `None` when the process has no
    /// descriptors left.
    client: Option<OwnedFd>,
}

impl Door for ProxyDoor {
    type Environment = Conversation;

    fn number(&self) -> u64 {
        self.number
    }

    async fn open(&self, destination: Destination) -> Result<Rc<Conversation>, Closed> {
        let number = self.context.next_connection();
        let wish = Wish {
            connection: number,
            entry: Entry::HttpProxy,
            destination,
            request: None,
            client_port: self.client_port,
        };
        let gone = async {
            match &self.client {
                Some(client) => ingress::left(client).await,
                // A client that goes drops this whole future, once its body
                // is read.
                None => std::future::pending().await,
            }
        };
        let admitted = self.context.admit(wish, gone).await;
        admitted.map_err(|denial| Closed { denial, number })
    }

    fn denied(&self, denial: &Denial) {
        let subject = Subject {
            connection: self.number,
            entry: Entry::HttpProxy,
            destination: String::new(),
            request: None,
            generation: self.context.generation(),
        };
        self.context.audit.denied(&subject, denial);
    }
}
