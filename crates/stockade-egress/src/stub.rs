//! Serves the names of the sandbox: its UDP and TCP sockets on port 53.
//!
//! Which bytes mean what is in `names`, which names exist is the judge's. Not
//! one query leaves: an allowed name gets an address that stands for it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use stockade_policy::network::Name;
use stockade_policy::network::judge::{Denial, Ruling};
use stockade_policy::network::rules::Approval;
use stockade_sys::network::{receive_with_destination, send_from};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpStream, UdpSocket};

use crate::audit::Subject;
use crate::context::{Context, denial, now_unix};
use crate::ingress::FIRST_BYTES_TIMEOUT;
use crate::names::{Lookup, QUERY_BYTES_MAX, answer};
use crate::wire::Entry;

/// Denied names that are recorded; a program that asks for ever more of them
/// is counted, not written down.
const DENIED_RECORDED_MAX: usize = 1024;

/// Answers datagrams for as long as the socket lives.
pub async fn serve_datagrams(context: Rc<Context>, socket: OwnedFd) -> io::Result<()> {
    let socket = std::net::UdpSocket::from(socket);
    socket.set_nonblocking(true)?;
    let socket = UdpSocket::from_std(socket)?;
    let mut buffer = vec![0u8; QUERY_BYTES_MAX + 1];
    loop {
        let received = socket
            .async_io(Interest::READABLE, || {
                receive_with_destination(socket.as_fd(), &mut buffer)
            })
            .await;
        let received = match received {
            Ok(received) if !received.cut => received,
            // A datagram that says too little or too much gets no answer.
            Ok(_) => continue,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => continue,
            // An answer that could not be delivered shows up here (ICMP).
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => return Err(error),
        };
        let reply = answer(&buffer[..received.length], |name| look_up(&context, name));
        if let Some(reply) = reply {
            // Nobody is owed a second attempt: clients of DNS ask again.
            let _lost =
                send_from(socket.as_fd(), &reply, received.destination, received.from).is_err();
        }
    }
}

/// Answers the queries of one TCP connection (RFC 7766).
pub async fn serve_stream(context: Rc<Context>, mut client: TcpStream) {
    loop {
        let query = tokio::time::timeout(FIRST_BYTES_TIMEOUT, read_query(&mut client)).await;
        let Ok(Ok(query)) = query else {
            return;
        };
        let Some(reply) = answer(&query, |name| look_up(&context, name)) else {
            return;
        };
        let Ok(length) = u16::try_from(reply.len()) else {
            return;
        };
        let mut framed = length.to_be_bytes().to_vec();
        framed.extend_from_slice(&reply);
        if client.write_all(&framed).await.is_err() {
            return;
        }
    }
}

async fn read_query(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = usize::from(client.read_u16().await?);
    if length > QUERY_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut query = vec![0; length];
    client.read_exact(&mut query).await?;
    Ok(query)
}

/// What the rules let the sandbox know of a name.
fn look_up(context: &Context, name: &Name) -> Lookup {
    match context.judge().resolvable(name, now_unix()) {
        Ruling::Permit(()) => assign(context, name),
        // It is judged when it is connected to; until then nothing leaves.
        Ruling::Unknown(_) if context.approval() != Approval::Deny => assign(context, name),
        Ruling::Denied(denial) | Ruling::Unknown(denial) => {
            record_denied(context, name, &denial);
            Lookup::NotFound
        }
    }
}

fn assign(context: &Context, name: &Name) -> Lookup {
    let group = psl::domain_str(name.as_str()).unwrap_or(name.as_str());
    let second = context.started.elapsed().as_secs();
    let assigned = context.names.borrow_mut().assign(name, group, second);
    match assigned {
        Ok(pair) => Lookup::Found {
            ipv4: Some(pair.ipv4),
            ipv6: Some(pair.ipv6),
        },
        Err(why) => {
            record_denied(context, name, &denial("rate", why.to_string()));
            match why {
                crate::names::synthetic::NotAssigned::Full => Lookup::Unavailable,
                _ => Lookup::NotFound,
            }
        }
    }
}

/// Once for each name: resolvers of programs ask again and again.
fn record_denied(context: &Context, name: &Name, denial: &Denial) {
    let mut recorded = context.denied_names.borrow_mut();
    if recorded.len() >= DENIED_RECORDED_MAX || !recorded.insert(name.clone()) {
        return;
    }
    context.audit.denied(
        &Subject {
            connection: context.next_connection(),
            entry: Entry::Name,
            destination: name.to_string(),
            request: None,
            generation: context.generation(),
        },
        denial,
    );
}
