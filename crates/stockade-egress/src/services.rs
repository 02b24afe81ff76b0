//! Where a conversation is handed to the parts that read its content.

use std::rc::Rc;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::context::{Context, Conversation, denial};

/// TLS that is ended here; the ClientHello is among `early`.
pub async fn inspect_tls(conversation: Rc<Conversation>, client: TcpStream, early: Vec<u8>) {
    not_served(&conversation, (client, early), "inspected TLS");
}

/// HTTP without TLS, origin-form.
pub async fn inspect_plain(conversation: Rc<Conversation>, client: TcpStream, early: Vec<u8>) {
    not_served(&conversation, (client, early), "plain HTTP");
}

/// HTTP requests in absolute form; the first head is among `early`.
pub async fn proxy_requests(context: Rc<Context>, mut client: TcpStream, early: Vec<u8>) {
    drop((context, early));
    let refused = denial("not-allowed", "plain HTTP is not served");
    let answer = crate::refusal::http1(&refused, "", "0");
    if client.write_all(&answer).await.is_ok() {
        crate::ingress::linger(client).await;
    }
}

/// SSH that carries git.
pub async fn git_over_ssh(conversation: Rc<Conversation>, client: TcpStream, early: Vec<u8>) {
    not_served(&conversation, (client, early), "git over SSH");
}

fn not_served(conversation: &Conversation, client: (TcpStream, Vec<u8>), what: &str) {
    drop(client);
    conversation.denied(
        None,
        &denial("not-allowed", format!("{what} is not served")),
    );
}
