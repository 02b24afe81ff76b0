//! The explicit proxy: SOCKS5, CONNECT and absolute-form HTTP on one port,
//! told apart by the first byte.

use std::rc::Rc;

use stockade_policy::network::Destination;
use stockade_policy::network::judge::Denial;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::audit::Subject;
use crate::context::{Context, Wish, denial};
use crate::converse::{Opening, converse};
use crate::front::Progress;
use crate::front::head::{BadHead, HeadReader, Target, parse_request};
use crate::front::socks::{self, Reply, encode_reply};
use crate::ingress::{self, Unread};
use crate::refusal;
use crate::services;
use crate::wire::Entry;

/// Serves one connection to the proxy's port.
pub async fn serve(context: Rc<Context>, mut client: TcpStream) {
    let mut early = Vec::new();
    let first = |bytes: &[u8]| -> Result<Progress<u8>, std::convert::Infallible> {
        Ok(match bytes.first() {
            Some(&value) => Progress::Done { value, consumed: 0 },
            None => Progress::NeedMore,
        })
    };
    match ingress::peek_first(&mut client, &mut early, first).await {
        Ok(5) => serve_socks(context, client, early).await,
        Ok(_) => serve_http(context, client, early).await,
        Err(_) => {}
    }
}

async fn serve_socks(context: Rc<Context>, mut client: TcpStream, mut early: Vec<u8>) {
    let connection = context.next_connection();
    let greeting = ingress::read_first(&mut client, &mut early, socks::parse_greeting).await;
    let answer: &[u8] = match &greeting {
        // There is no place for a token.
        Ok(_) if context.proxy_token.is_some() => {
            unauthorised(&context, connection, Entry::Socks);
            &socks::NO_METHOD
        }
        Ok(greeting) if greeting.no_authentication => &socks::NO_AUTHENTICATION,
        Ok(_) => &socks::NO_METHOD,
        Err(unread) => return unreadable(&context, connection, Entry::Socks, unread),
    };
    if client.write_all(answer).await.is_err() || answer != socks::NO_AUTHENTICATION {
        return;
    }
    match ingress::read_first(&mut client, &mut early, socks::parse_request).await {
        Ok(destination) => {
            let wish = wish(connection, Entry::Socks, destination, &client);
            open(context, wish, client, early, Opening::Socks).await;
        }
        Err(unread) => {
            unreadable(&context, connection, Entry::Socks, &unread);
            let reply = match unread {
                Unread::Bad(bad) => bad.reply(),
                Unread::Gone => Reply::GeneralFailure,
            };
            if client.write_all(&encode_reply(reply)).await.is_ok() {
                ingress::linger(client).await;
            }
        }
    }
}

/// Judges, answers and carries.
async fn open(
    context: Rc<Context>,
    wish: Wish,
    client: TcpStream,
    early: Vec<u8>,
    opening: Opening,
) {
    let (destination, connection) = (wish.destination.clone(), wish.connection);
    match context.admit(wish, ingress::gone(&client)).await {
        Ok(conversation) => converse(conversation, client, early, opening).await,
        Err(denial) => {
            opening
                .refused(client, &denial, &destination, connection)
                .await;
        }
    }
}

fn wish(connection: u64, entry: Entry, destination: Destination, client: &TcpStream) -> Wish {
    Wish {
        connection,
        entry,
        destination,
        request: None,
        client_port: client.peer_addr().map_or(0, |peer| peer.port()),
    }
}

/// Who is refused before it said where it wants to go.
fn without_destination(context: &Context, connection: u64, entry: Entry) -> Subject {
    Subject {
        connection,
        entry,
        destination: String::new(),
        request: None,
        generation: context.generation(),
    }
}

/// Records bytes that were no request.
fn unreadable<E: std::fmt::Display>(
    context: &Context,
    connection: u64,
    entry: Entry,
    unread: &Unread<E>,
) {
    let Unread::Bad(bad) = unread else {
        return;
    };
    let subject = without_destination(context, connection, entry);
    let refused = denial("bad-request", bad.to_string());
    context.audit.denied(&subject, &refused);
}

/// Records a client that does not come from the sandbox, or a program inside
/// that does not use the address it was given.
fn unauthorised(context: &Context, connection: u64, entry: Entry) -> Denial {
    let subject = without_destination(context, connection, entry);
    let refused = denial(
        "proxy-token",
        "this proxy serves one sandbox, whose HTTPS_PROXY says how",
    );
    context.audit.denied(&subject, &refused);
    refused
}

async fn serve_http(context: Rc<Context>, mut client: TcpStream, mut early: Vec<u8>) {
    let mut reader = HeadReader::default();
    let head = ingress::peek_first(&mut client, &mut early, |bytes| {
        Ok::<_, BadHead>(match reader.read(bytes)? {
            Some(length) => Progress::Done {
                value: (parse_request(&bytes[..length])?, length),
                consumed: length,
            },
            None => Progress::NeedMore,
        })
    })
    .await;
    let (head, length) = match head {
        Ok(read) => read,
        Err(unread) => {
            let connection = context.next_connection();
            unreadable(&context, connection, Entry::HttpProxy, &unread);
            let Unread::Bad(bad) = unread else {
                return;
            };
            let answer = refusal::http1_bad_head(bad, "", &connection.to_string());
            if client.write_all(&answer).await.is_ok() {
                ingress::linger(client).await;
            }
            return;
        }
    };
    let token = context.proxy_token.as_ref();
    if token.is_some_and(|token| !token.admits(&head.headers)) {
        let connection = context.next_connection();
        let denial = unauthorised(&context, connection, Entry::HttpProxy);
        let answer = refusal::http1_unauthorised(&denial, &connection.to_string());
        if client.write_all(&answer).await.is_ok() {
            ingress::linger(client).await;
        }
        return;
    }
    match head.target {
        Target::Authority(destination) => {
            early.drain(..length);
            let connection = context.next_connection();
            let wish = wish(connection, Entry::Connect, destination, &client);
            open(context, wish, client, early, Opening::Http).await;
        }
        _ => services::proxy_requests(context, client, early).await,
    }
}
