//! Where a conversation is handed to the parts that read its content.

use std::rc::Rc;

use tokio::net::TcpStream;

use crate::context::{Context, Conversation, Wish};
use crate::inspect::forward;
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
    let client_port = client.peer_addr().map_or(0, |peer| peer.port());
    let open = move |destination| {
        let context = Rc::clone(&context);
        async move {
            let wish = Wish {
                connection: context.next_connection(),
                entry: Entry::HttpProxy,
                destination,
                request: None,
                client_port,
            };
            // A client that goes away drops this whole future.
            context.admit(wish, std::future::pending()).await
        }
    };
    drop(forward::serve_proxy(Replay::new(early, client), open).await);
}
