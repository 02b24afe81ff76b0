//! Connections of programs that know of no proxy, redirected here.
//!
//! The kernel knows where they were going; a synthetic address stands for the
//! name that the stub gave it for. Any other address is an IP literal, which
//! only a rule for addresses permits.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::rc::Rc;

use stockade_policy::network::Destination;
use stockade_policy::network::destination::RawHost;
use tokio::net::TcpStream;

use crate::context::{Context, Wish};
use crate::converse::{Opening, converse};
use crate::ingress;
use crate::wire::Entry;

/// Serves one redirected connection.
pub async fn serve(context: Rc<Context>, client: TcpStream) {
    let (Ok(original), Ok(here)) = (
        stockade_sys::network::original_destination(client.as_fd()),
        client.local_addr(),
    ) else {
        return;
    };
    // Somebody connected to this port itself, which leads nowhere.
    if original.port() == here.port() && original.ip().is_loopback() {
        return;
    }
    let Some(destination) = destination(&context, original) else {
        return;
    };
    let wish = Wish {
        connection: context.next_connection(),
        entry: Entry::Transparent,
        destination: destination.clone(),
        request: None,
        client_port: client.peer_addr().map_or(0, |peer| peer.port()),
    };
    let connection = wish.connection;
    match context.admit(wish, ingress::gone(&client)).await {
        Ok(conversation) => converse(conversation, client, Vec::new(), Opening::Silent).await,
        Err(denial) => {
            Opening::Silent
                .refused(client, &denial, &destination, connection)
                .await;
        }
    }
}

fn destination(context: &Context, original: SocketAddr) -> Option<Destination> {
    let named = context.names.borrow().name_of(original.ip()).cloned();
    match named {
        Some(name) => Destination::new(RawHost::Text(name.as_str().as_bytes()), original.port()),
        None => Destination::new(RawHost::Address(original.ip()), original.port()),
    }
    .ok()
}
