//! WebSockets (RFC 6455): the handshake that passes, and the bytes after it.
//!
//! Nothing from the client goes out before the origin has agreed (row 33): the
//! gate keeps what came early. Which requests may be upgraded is the judge's
//! decision.

use std::rc::Rc;
use std::time::Duration;

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HeaderName, HeaderValue, SEC_WEBSOCKET_EXTENSIONS,
    SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::request::Parts;
use http::{HeaderMap, Method};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use stockade_policy::network::judge::Denial;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::activity::Serving;
use super::environment::Meter;
use super::frames::{BadFrame, FrameReader, Reframer, Sender};
use crate::context::denial;
use crate::credential::{Applied, Scrubber};

/// How long the two ends have to change their protocol.
const UPGRADE_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a WebSocket may be silent in one direction.
const IDLE_TIME_MAX: Duration = Duration::from_secs(600);
const BUFFER_BYTES: usize = 32 * 1024;

/// What is looked at in the two directions.
pub struct Watch {
    pub meter: Rc<dyn Meter>,
    pub serving: Rc<Serving>,
    /// Knows placeholders.
    pub applied: Applied,
    pub scrubber: Option<Scrubber>,
}

/// Writes the request's handshake anew. Extensions are not offered where
/// frames are read: compressed ones could not be.
pub fn prepare(parts: &mut Parts, reads_frames: bool) -> Result<(), Denial> {
    let one = |name: &HeaderName| parts.headers.get_all(name).iter().count() == 1;
    if parts.method != Method::GET || !one(&SEC_WEBSOCKET_KEY) || !one(&SEC_WEBSOCKET_VERSION) {
        return Err(denial(
            "bad-request",
            "the request to open a WebSocket is incomplete",
        ));
    }
    if reads_frames {
        parts.headers.remove(SEC_WEBSOCKET_EXTENSIONS);
    }
    // What follows the head is the WebSocket's, or nobody's.
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.remove(EXPECT);
    write(&mut parts.headers);
    Ok(())
}

/// Checks that the origin changes to a WebSocket and to nothing else.
pub fn accept(headers: &mut HeaderMap, reads_frames: bool) -> Result<(), Denial> {
    let mut protocols = headers.get_all(UPGRADE).iter();
    let agreed = protocols
        .next()
        .is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket"));
    if !agreed || protocols.next().is_some() {
        return Err(denial(
            "websocket",
            "the origin changes to another protocol",
        ));
    }
    if reads_frames && headers.contains_key(SEC_WEBSOCKET_EXTENSIONS) {
        return Err(denial(
            "websocket",
            "the origin uses an extension that was not offered",
        ));
    }
    super::message::clean_response(headers)?;
    write(headers);
    Ok(())
}

fn write(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

/// Carries bytes both ways until one end closes, a budget is used up, a frame
/// is refused, or both are silent for too long.
pub async fn relay(client: OnUpgrade, origin: OnUpgrade, watch: Watch) {
    let both = timeout(UPGRADE_TIME_MAX, async { tokio::try_join!(client, origin) }).await;
    let Ok(Ok((client, origin))) = both else {
        return;
    };
    let (from_client, to_client) = tokio::io::split(TokioIo::new(client));
    let (from_origin, to_origin) = tokio::io::split(TokioIo::new(origin));
    let Watch {
        meter,
        serving,
        applied,
        scrubber,
    } = watch;
    let up = upwards(from_client, to_origin, &*meter, &serving, applied);
    let down = downwards(from_origin, to_client, &*meter, &serving, scrubber);
    tokio::pin!(up, down);
    // Each end says goodbye in its own direction, so one that has ended leaves
    // the other a moment.
    tokio::select! {
        () = &mut up => drop(timeout(UPGRADE_TIME_MAX, down).await),
        () = &mut down => drop(timeout(UPGRADE_TIME_MAX, up).await),
    }
}

async fn upwards(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    meter: &dyn Meter,
    serving: &Serving,
    mut applied: Applied,
) {
    let mut reader = applied
        .checks_body()
        .then(|| FrameReader::new(Sender::Client));
    copy(&mut from, &mut to, meter, serving, |bytes| {
        meter.uploaded(bytes.len() as u64)?;
        if let Some(reader) = &mut reader {
            let checked = reader.read(bytes, |_, payload| {
                applied.check_body(&payload).map_err(Stop)
            });
            if let Err(Stop(denial)) = checked {
                meter.alert(denial.code, &denial.reason);
                return Err(denial);
            }
        }
        Ok(None)
    })
    .await;
}

async fn downwards(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    meter: &dyn Meter,
    serving: &Serving,
    scrubber: Option<Scrubber>,
) {
    let mut reframer = scrubber.map(Reframer::new);
    copy(&mut from, &mut to, meter, serving, |bytes| {
        meter.downloaded(bytes.len() as u64)?;
        let Some(reframer) = &mut reframer else {
            return Ok(None);
        };
        let before = reframer.count();
        let frames = reframer.push(bytes).map_err(|why| Stop::from(why).0)?;
        let found = reframer.count() - before;
        if found > 0 {
            meter.scrubbed(found);
        }
        Ok(Some(frames))
    })
    .await;
}

struct Stop(Denial);

impl From<BadFrame> for Stop {
    fn from(why: BadFrame) -> Self {
        Self(denial("websocket", why.to_string()))
    }
}

/// `look` sees each piece first; what it gives is sent instead.
async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    meter: &dyn Meter,
    serving: &Serving,
    mut look: impl FnMut(&[u8]) -> Result<Option<Vec<u8>>, Denial>,
) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let Ok(Ok(length)) = timeout(IDLE_TIME_MAX, from.read(&mut buffer)).await else {
            return;
        };
        serving.touch();
        if length == 0 {
            // The other end may be gone as well.
            drop(to.shutdown().await);
            return;
        }
        let instead = match look(&buffer[..length]) {
            Ok(instead) => instead,
            Err(denial) => {
                meter.denied(None, &denial);
                drop(to.shutdown().await);
                return;
            }
        };
        let bytes = instead.as_deref().unwrap_or(&buffer[..length]);
        if to.write_all(bytes).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
}
