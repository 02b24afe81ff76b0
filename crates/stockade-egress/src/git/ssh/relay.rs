//! Passes the bytes of one command between the client and the server.

use std::cell::Cell;

use bytes::Bytes;
use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf, client, server};

use crate::git::push::{Progress, PushFilter, Refused};

/// One end of the conversation.
pub struct End<Message: From<(russh::ChannelId, ChannelMsg)>> {
    pub read: ChannelReadHalf,
    pub write: ChannelWriteHalf<Message>,
}

pub type ClientEnd = End<server::Msg>;
pub type ServerEnd = End<client::Msg>;

/// Bytes that passed.
#[derive(Debug, Default)]
pub struct Counters {
    pub uploaded: Cell<u64>,
    pub downloaded: Cell<u64>,
}

/// How a conversation ended.
#[derive(Debug)]
pub enum Outcome {
    /// The server's exit status, if it gave one.
    Ended(Option<u32>),
    /// The client went away.
    Gone,
    /// The push is not permitted; the server was sent nothing of it.
    Refused(Box<Refused>),
}

/// Standard error (RFC 4254, section 5.2).
pub const STANDARD_ERROR: u32 = 1;

/// Passes a conversation on until the server ends it.
pub async fn read(
    client: &mut ClientEnd,
    server: &mut ServerEnd,
    counters: &Counters,
) -> Result<Outcome, russh::Error> {
    let End { read, write } = client;
    let up = pass_up(read, &server.write, counters);
    let down = pass_down(&mut server.read, write, counters);
    tokio::pin!(up, down);
    tokio::select! {
        ended = &mut down => return Ok(Outcome::Ended(ended?)),
        up = &mut up => match up? {
            Up::EndOfInput => {}
            Up::Gone => return Ok(Outcome::Gone),
        },
    }
    Ok(Outcome::Ended(down.await?))
}

/// The same for a push, of which the server gets nothing before all of it is
/// permitted.
pub async fn push(
    client: &mut ClientEnd,
    server: &mut ServerEnd,
    mut filter: PushFilter<'_>,
    counters: &Counters,
) -> Result<Outcome, russh::Error> {
    let End { read, write } = client;
    let down = pass_down(&mut server.read, write, counters);
    tokio::pin!(down);
    let fed = tokio::select! {
        // The server had no interest in a push.
        ended = &mut down => return Ok(Outcome::Ended(ended?)),
        fed = feed(read, &mut filter) => fed,
    };
    if fed == Fed::Gone {
        return Ok(Outcome::Gone);
    }
    let up = async {
        match fed {
            // The client had nothing to push.
            Fed::Nothing => {}
            _ => {
                let mut vetted = match filter.finish() {
                    Ok(vetted) => vetted,
                    Err(refused) => return Ok(Some(refused)),
                };
                while let Some(chunk) = vetted.body.next_chunk()? {
                    add(&counters.uploaded, chunk.len());
                    server.write.data_bytes(chunk).await?;
                }
            }
        }
        server.write.eof().await?;
        Ok::<_, russh::Error>(None)
    };
    tokio::pin!(up);
    tokio::select! {
        ended = &mut down => return Ok(Outcome::Ended(ended?)),
        up = &mut up => if let Some(refused) = up? {
            return Ok(Outcome::Refused(refused));
        },
    }
    Ok(Outcome::Ended(down.await?))
}

/// What became of the client's input.
enum Up {
    EndOfInput,
    Gone,
}

async fn pass_up(
    client: &mut ChannelReadHalf,
    server: &ChannelWriteHalf<client::Msg>,
    counters: &Counters,
) -> Result<Up, russh::Error> {
    loop {
        match client.wait().await {
            Some(ChannelMsg::Data { data }) => {
                add(&counters.uploaded, data.len());
                server.data_bytes(data).await?;
            }
            Some(ChannelMsg::Eof) => {
                server.eof().await?;
                return Ok(Up::EndOfInput);
            }
            None | Some(ChannelMsg::Close) => return Ok(Up::Gone),
            Some(_) => {}
        }
    }
}

#[derive(PartialEq, Eq)]
enum Fed {
    Complete,
    Nothing,
    Gone,
}

async fn feed(client: &mut ChannelReadHalf, filter: &mut PushFilter<'_>) -> Fed {
    loop {
        match client.wait().await {
            Some(ChannelMsg::Data { data }) => {
                if filter.feed(&data) == Progress::Complete {
                    return Fed::Complete;
                }
            }
            Some(ChannelMsg::Eof) if filter.is_untouched() => return Fed::Nothing,
            Some(ChannelMsg::Eof) => return Fed::Complete,
            None | Some(ChannelMsg::Close) => return Fed::Gone,
            Some(_) => {}
        }
    }
}

/// Returns the exit status.
async fn pass_down(
    server: &mut ChannelReadHalf,
    client: &ChannelWriteHalf<server::Msg>,
    counters: &Counters,
) -> Result<Option<u32>, russh::Error> {
    let mut status = None;
    loop {
        match server.wait().await {
            Some(ChannelMsg::Data { data }) => {
                add(&counters.downloaded, data.len());
                client.data_bytes(data).await?;
            }
            Some(ChannelMsg::ExtendedData {
                data,
                ext: STANDARD_ERROR,
            }) => {
                add(&counters.downloaded, data.len());
                client.extended_data_bytes(STANDARD_ERROR, data).await?;
            }
            Some(ChannelMsg::ExitStatus { exit_status }) => status = Some(exit_status),
            // The server refuses the command.
            Some(ChannelMsg::Failure) => {
                let text = Bytes::from_static(b"the server does not run git\n");
                client.extended_data_bytes(STANDARD_ERROR, text).await?;
                return Ok(None);
            }
            None | Some(ChannelMsg::Close) => return Ok(status),
            Some(_) => {}
        }
    }
}

fn add(counter: &Cell<u64>, bytes: usize) {
    counter.set(counter.get() + bytes as u64);
}
