//! Git over SSH: the client's connection ends here and another one begins, so
//! that what is done to which repository is seen, and the host's keys log in.
//!
//! A client gets one command out of git's three for one repository; no shell,
//! no terminal, no forwarding. Who serves which address is left to others, as
//! is the connection to the server.

mod command;
mod front;
mod relay;
mod upstream;

use std::future::Future;
use std::io;
use std::time::Duration;

use russh::keys::{Algorithm, PrivateKey};
use russh::server::run_stream;
use stockade_policy::network::judge::{Denial, GitAction, GitOperation, GitPermit};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

pub use self::upstream::{LoginError, Upstream};

use self::command::Command;
use self::front::{Front, Request};
use self::relay::{ClientEnd, Counters, End, Outcome, STANDARD_ERROR};
use super::known_hosts::address;
use super::needles::Needles;
use super::packet;
use super::push::{Coding, PushFilter, Settings, Transport};
use super::report;
use super::smart_http::{Access, Service};
use super::spool::Room;

/// How long a client may take until it has asked for a command.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a client may take to close what is over.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
const PIPE_BYTES: usize = 128 * 1024;

/// The key by which a sandbox knows this server; made anew for each sandbox,
/// never written anywhere.
pub struct HostKey(PrivateKey);

/// What one connection is served with.
pub struct Session<'a> {
    pub host_key: &'a HostKey,
    pub upstream: &'a Upstream,
    /// Secrets that no push may carry.
    pub needles: Needles,
    pub room: Room,
    pub judge: &'a dyn Fn(&GitOperation<'_>) -> Result<GitPermit, Denial>,
}

/// What was asked for, and what became of it.
#[derive(Debug, Default)]
pub struct Summary {
    pub repository: Option<String>,
    pub service: Option<Service>,
    pub denial: Option<Denial>,
    pub uploaded_bytes: u64,
    pub downloaded_bytes: u64,
}

impl HostKey {
    pub fn generate() -> io::Result<Self> {
        let mut random = russh::keys::key::safe_rng();
        PrivateKey::random(&mut random, Algorithm::Ed25519)
            .map(Self)
            .map_err(io::Error::other)
    }

    /// A line for known_hosts(5) by which clients trust this key for these
    /// hosts and ports; `*` in a host stands for anything.
    pub fn known_hosts_line(&self, hosts: &[(&str, u16)]) -> io::Result<String> {
        let key = self.0.public_key().to_openssh().map_err(io::Error::other)?;
        let hosts: Vec<String> = hosts
            .iter()
            .map(|(host, port)| address(host, *port))
            .collect();
        Ok(format!("{} {key}\n", hosts.join(",")))
    }
}

/// Serves one client until it is done; everything of it ends when the future
/// is dropped. `dial` reaches the server, and is called once the operation is
/// permitted.
pub async fn serve<C, D, F>(mut client: C, dial: D, session: &Session<'_>) -> io::Result<Summary>
where
    C: AsyncRead + AsyncWrite + Unpin,
    D: FnOnce() -> F,
    F: Future<Output = Result<TcpStream, Denial>>,
{
    // The SSH library runs in a task of its own. With a pipe before it, that
    // task ends when this future does.
    let (mut near, far) = tokio::io::duplex(PIPE_BYTES);
    let (requests, mut asked) = mpsc::channel(1);
    let config = front::config(&session.host_key.0);
    let talk = async {
        let running = timeout(
            REQUEST_TIMEOUT,
            run_stream(config, far, Front::new(requests)),
        )
        .await?
        .map_err(io::Error::other)?;
        let Some(request) = timeout(REQUEST_TIMEOUT, asked.recv()).await? else {
            return Ok(Summary::default());
        };
        let summary = answer(request, dial, session).await;
        // The client closes the connection when it has read everything; how
        // that ends changes nothing any more.
        drop(timeout(CLOSE_TIMEOUT, running).await);
        summary
    };
    tokio::pin!(talk);
    tokio::select! {
        summary = &mut talk => summary,
        moved = copy_bidirectional(&mut client, &mut near) => {
            drop(near);
            // What the pipe still holds is enough to come to an end.
            moved.and(timeout(CLOSE_TIMEOUT, talk).await?)
        }
    }
}

async fn answer<D, F>(request: Request, dial: D, session: &Session<'_>) -> io::Result<Summary>
where
    D: FnOnce() -> F,
    F: Future<Output = Result<TcpStream, Denial>>,
{
    let (read, write) = request.channel.split();
    let mut client = End { read, write };
    let Some(command) = Command::parse(&request.line) else {
        let denial = denial(
            "git-push",
            "only git may be used over SSH here, and only with a plain name of a repository",
        );
        let summary = Summary::default();
        return refuse(&client, summary, denial)
            .await
            .map_err(io::Error::other);
    };
    let mut summary = Summary {
        repository: Some(command.repository.clone()),
        service: Some(command.service),
        ..Summary::default()
    };
    let counters = Counters::default();
    let done = async {
        if let Err(denial) = (session.judge)(&operation(&command)) {
            return refuse(&client, summary, denial).await;
        }
        let stream = match dial().await {
            Ok(stream) => stream,
            Err(denial) => return refuse(&client, summary, denial).await,
        };
        let handle = match session.upstream.log_in(stream, &request.user).await {
            Ok(handle) => handle,
            Err(problem) => {
                let reason = format!("{}: {problem}", session.upstream.host);
                return refuse(&client, summary, denial("upstream-ssh", &reason)).await;
            }
        };
        let channel = handle.channel_open_session().await?;
        if let Some(protocol) = &request.protocol {
            channel
                .set_env(false, "GIT_PROTOCOL", protocol.as_str())
                .await?;
        }
        channel.exec(true, command.line()).await?;
        let (read, write) = channel.split();
        let mut server = End { read, write };
        let outcome = match command.service.access() {
            Access::Read => relay::read(&mut client, &mut server, &counters).await?,
            Access::Push => {
                let filter = PushFilter::new(settings(&command, session), Box::new(session.judge));
                relay::push(&mut client, &mut server, filter, &counters).await?
            }
        };
        summary = close(&client, summary, outcome).await?;
        let bye = russh::Disconnect::ByApplication;
        handle.disconnect(bye, "", "").await?;
        Ok(summary)
    };
    let summary = done.await.map_err(io::Error::other)?;
    Ok(Summary {
        uploaded_bytes: counters.uploaded.get(),
        downloaded_bytes: counters.downloaded.get(),
        ..summary
    })
}

fn operation(command: &Command) -> GitOperation<'_> {
    GitOperation {
        repository: &command.repository,
        action: match command.service.access() {
            Access::Read => GitAction::Read,
            Access::Push => GitAction::PushAny,
        },
        over_ssh: true,
    }
}

fn settings(command: &Command, session: &Session<'_>) -> Settings {
    Settings {
        repository: command.repository.clone(),
        transport: Transport::Ssh,
        coding: Coding::Identity,
        needles: session.needles.clone(),
        room: session.room.clone(),
    }
}

/// Tells the client why, in the form in which git prints it.
async fn refuse(
    client: &ClientEnd,
    summary: Summary,
    denial: Denial,
) -> Result<Summary, russh::Error> {
    let mut error = Vec::new();
    packet::write_error(&mut error, &report::line(&denial));
    if summary.service.is_some() {
        client.write.data_bytes(error).await?;
    }
    let text = report::message(&denial);
    client
        .write
        .extended_data_bytes(STANDARD_ERROR, text.into_bytes())
        .await?;
    end(client, 1).await?;
    Ok(Summary {
        denial: Some(denial),
        ..summary
    })
}

async fn close(
    client: &ClientEnd,
    summary: Summary,
    outcome: Outcome,
) -> Result<Summary, russh::Error> {
    match outcome {
        Outcome::Gone => Ok(summary),
        Outcome::Ended(status) => {
            // As OpenSSH says that a command ended without a status.
            end(client, status.unwrap_or(255)).await?;
            Ok(summary)
        }
        Outcome::Refused(refused) => {
            match refused.answer {
                Some(answer) => client.write.data_bytes(answer).await?,
                None => {
                    let text = report::message(&refused.denial).into_bytes();
                    client
                        .write
                        .extended_data_bytes(STANDARD_ERROR, text)
                        .await?;
                }
            }
            end(client, 1).await?;
            Ok(Summary {
                denial: Some(refused.denial),
                ..summary
            })
        }
    }
}

async fn end(client: &ClientEnd, status: u32) -> Result<(), russh::Error> {
    client.write.exit_status(status).await?;
    client.write.eof().await?;
    client.write.close().await
}

fn denial(code: &'static str, reason: &str) -> Denial {
    Denial {
        code,
        rule: "git".to_owned(),
        origin: "built-in".to_owned(),
        reason: reason.to_owned(),
        smallest_grant: None,
    }
}
