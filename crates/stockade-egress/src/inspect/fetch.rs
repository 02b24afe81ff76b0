//! Requests of this process itself, to mint a secret: over the same verified
//! TLS and the one dial.

use std::cell::OnceCell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{HOST, HeaderValue};
use http::uri::PathAndQuery;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use stockade_policy::network::Destination;
use tokio::net::TcpStream;

use super::message::{self, Scheme};
use super::tls::{Offer, Origins};
use super::upstream::error_text;
use crate::context::Context;
use crate::credential::{Fetch, Fetched};
use crate::front::authority::Authority;

/// Largest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
const TIME_MAX: Duration = Duration::from_secs(30);

/// Fetches for the vault of a sandbox. The vault is made before the context
/// that dials, which [`Fetcher::attach`] names.
#[derive(Default)]
pub struct Fetcher {
    context: OnceCell<Weak<Context>>,
}

impl Fetcher {
    /// To be called once; later calls change nothing.
    pub fn attach(&self, context: &Rc<Context>) {
        self.context.get_or_init(|| Rc::downgrade(context));
    }
}

impl Fetch for Fetcher {
    fn fetch(&self, request: Request<Bytes>) -> Fetched<'_> {
        Box::pin(async move {
            let context = self.context.get().and_then(Weak::upgrade);
            let context = context.ok_or("the sandbox is not served yet, or no more")?;
            let destination = destination(request.uri())?;
            let fetched = async {
                let dialled = context.dial_named(&destination).await;
                let stream = dialled.map_err(|denial| denial.reason)?;
                fetch(&context.inspection.origins, &destination, stream, request).await
            };
            tokio::time::timeout(TIME_MAX, fetched)
                .await
                .unwrap_or_else(|_| Err(format!("{destination} did not answer in time")))
        })
    }
}

fn destination(uri: &Uri) -> Result<Destination, String> {
    if uri.scheme_str() != Some("https") {
        return Err("secrets are minted over https only".to_owned());
    }
    let authority = uri.authority().ok_or("the URL names no host")?;
    let authority = Authority::parse(authority.as_str().as_bytes());
    let authority = authority.map_err(|why| why.to_string())?;
    authority
        .destination(Scheme::Https.default_port())
        .map_err(|why| why.to_string())
}

/// Sends one request over a connection that was dialled for `destination`.
async fn fetch(
    origins: &Origins,
    destination: &Destination,
    stream: TcpStream,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, String> {
    let (stream, _) = origins
        .connect(destination.host(), Offer::Http1, stream)
        .await
        .map_err(|why| format!("TLS to {destination} failed: {why}"))?;
    let broken = |error: hyper::Error| format!("{destination}: {}", error_text(&error));
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(ANSWER_BYTES_MAX)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(broken)?;
    let (mut parts, body) = request.into_parts();
    let host = HeaderValue::from_str(&message::authority_text(destination, Scheme::Https));
    parts
        .headers
        .insert(HOST, host.map_err(|why| why.to_string())?);
    let target = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    parts.uri = target
        .parse()
        .map_err(|_| "the URL has a path that cannot be sent")?;
    let answered = async {
        let request = Request::from_parts(parts, Full::new(body));
        let response = sender.send_request(request).await.map_err(broken)?;
        let (parts, mut incoming) = response.into_parts();
        let mut whole = BytesMut::new();
        while let Some(frame) = incoming.frame().await {
            let Ok(piece) = frame.map_err(broken)?.into_data() else {
                continue;
            };
            if whole.len() + piece.len() > ANSWER_BYTES_MAX {
                return Err(format!("{destination} answered with too much"));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(Response::from_parts(parts, whole.freeze()))
    };
    tokio::pin!(answered, connection);
    tokio::select! {
        answer = &mut answered => answer,
        // What was read before the end is still to be had.
        _ = &mut connection => answered.await,
    }
}
