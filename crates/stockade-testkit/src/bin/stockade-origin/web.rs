//! Web origins: HTTP/1.1 and HTTP/2, with and without TLS. What a request gets
//! is decided by its path alone, so that every name serves the same pages.

use std::convert::Infallible;
use std::io::Write;
use std::process::Stdio;
use std::rc::Rc;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use rustls::ServerConfig;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::{World, mint};

/// Whose certificate a client gets that names no server.
pub const NAMELESS: &str = "nameless.test";

type Reply = Response<BoxBody<Bytes, Infallible>>;

/// hyper's tasks on this one thread.
#[derive(Clone, Copy)]
struct Here;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Here {
    fn execute(&self, task: F) {
        tokio::task::spawn_local(task);
    }
}

pub async fn serve(world: Rc<World>, listener: TcpListener, tls: Option<Arc<ServerConfig>>) {
    while let Ok((stream, peer)) = listener.accept().await {
        let address = stream
            .local_addr()
            .expect("a connected socket has an address");
        let mut about = json!({
            "address": address.ip().to_canonical(), "port": address.port(),
            "peer": peer.ip().to_canonical(),
        });
        let mut connect = about.clone();
        connect["kind"] = "connect".into();
        world.note(connect);
        let (world, tls) = (world.clone(), tls.clone());
        tokio::task::spawn_local(async move {
            let Some(tls) = tls else {
                return speak(world, about, stream).await;
            };
            match TlsAcceptor::from(tls).accept(stream).await {
                Ok(stream) => {
                    let session = stream.get_ref().1;
                    about["sni"] = session.server_name().into();
                    about["alpn"] = session
                        .alpn_protocol()
                        .map(|name| String::from_utf8_lossy(name))
                        .into();
                    speak(world, about, stream).await;
                }
                Err(error) => {
                    world.note(json!({ "kind": "tls-failed", "error": error.to_string() }))
                }
            }
        });
    }
}

async fn speak<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    world: Rc<World>,
    about: Value,
    stream: S,
) {
    let service = service_fn(move |request| {
        let (world, about) = (world.clone(), about.clone());
        async move { Ok::<_, Infallible>(reply(world, about, request).await) }
    });
    let server = auto::Builder::new(Here);
    let connection = server.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let _closed = connection.await.is_err();
}

async fn reply(world: Rc<World>, mut about: Value, mut request: Request<Incoming>) -> Reply {
    let target = request
        .uri()
        .path_and_query()
        .map_or("/", |target| target.as_str())
        .to_owned();
    let path = request.uri().path().to_owned();
    about["kind"] = "request".into();
    about["version"] = format!("{:?}", request.version()).into();
    about["method"] = request.method().as_str().into();
    about["target"] = target.clone().into();
    about["authority"] = request
        .uri()
        .authority()
        .map(|authority| authority.as_str())
        .into();
    about["headers"] = headers_of(request.headers());
    if path.starts_with("/ws") {
        let leak = (path == "/ws-leak").then(|| encoded("raw", &about));
        world.note(about);
        return websocket(world, request, leak);
    }
    let headers = request.headers().clone();
    let method = request.method().as_str().to_owned();
    let body = match request.body_mut().collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            about["broken"] = error.to_string().into();
            Bytes::new()
        }
    };
    about["body_bytes"] = body.len().into();
    about["body"] = String::from_utf8_lossy(&body[..body.len().min(4096)]).into();
    world.note(about.clone());
    if let Some(rest) = path.strip_prefix("/git/") {
        return git(&world, rest, &target, &method, &headers, &body).await;
    }
    page(&path, &target, &about, body)
}

fn headers_of(headers: &HeaderMap) -> Value {
    let list = headers
        .iter()
        .map(|(name, value)| json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())]));
    list.collect()
}

fn page(path: &str, target: &str, about: &Value, body: Bytes) -> Reply {
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let echo = about.to_string();
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match segments[..] {
        ["echo", ..] => plain("application/json", echo),
        ["leak", encoding, ..] => plain("text/plain", encoded(encoding, about)),
        ["coded", coding, ..] => coded(coding, echo.as_bytes()),
        ["split", size, ..] => split(size, &encoded("raw", about)),
        ["bytes", count, ..] => plain("application/octet-stream", zeros(count)),
        ["upload", ..] => plain("text/plain", format!("{}\n", body.len())),
        ["mirror", ..] => plain("application/octet-stream", body),
        ["status", code, ..] => {
            let code = code
                .parse()
                .ok()
                .and_then(|code| StatusCode::from_u16(code).ok());
            with_status(code.unwrap_or(StatusCode::BAD_REQUEST))
        }
        ["redirect", ..] => redirect(query.strip_prefix("to=").unwrap_or(query)),
        ["header", ..] => header(query),
        ["trailers", ..] => trailers(),
        ["drip", ..] => drip(),
        [service, _] if service.starts_with("grpc.") => grpc(body),
        ["oauth", "token", life, ..] => plain("application/json", mint::oauth2(life)),
        ["app", "installations", _, "access_tokens"] => {
            plain("application/json", mint::installation())
        }
        ["sts", ..] => plain("text/xml", mint::role()),
        _ => plain("text/plain", format!("origin {path}\n")),
    }
}

fn plain(kind: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()).boxed());
    reply
        .headers_mut()
        .insert("content-type", HeaderValue::from_static(kind));
    reply
}

fn with_status(status: StatusCode) -> Reply {
    let mut reply = plain("text/plain", format!("{status}\n"));
    *reply.status_mut() = status;
    reply
}

/// Every header value of the request in one encoding, a line each.
fn encoded(encoding: &str, about: &Value) -> String {
    let mut text = String::new();
    for pair in about["headers"].as_array().into_iter().flatten() {
        let value = pair[1].as_str().unwrap_or_default();
        let hex = || value.bytes().map(|byte| format!("{byte:02x}")).collect();
        text += &match encoding {
            "base64" => STANDARD.encode(value),
            "base64-offset" => STANDARD.encode(format!("x{value}")),
            "hex" => hex(),
            "percent" => utf8_percent_encode(value, NON_ALPHANUMERIC).to_string(),
            "basic" => format!("Basic {}", STANDARD.encode(format!("user:{value}"))),
            "json" => json!(value).to_string(),
            _ => value.to_owned(),
        };
        text.push('\n');
    }
    text
}

fn coded(coding: &str, body: &[u8]) -> Reply {
    let bytes = match coding {
        "gzip" => {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder
                .write_all(body)
                .and_then(|()| encoder.finish())
                .expect("memory takes it")
        }
        "deflate" => {
            let mut encoder =
                flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
            encoder
                .write_all(body)
                .and_then(|()| encoder.finish())
                .expect("memory takes it")
        }
        "br" => {
            let mut bytes = Vec::new();
            let mut encoder = brotli::CompressorWriter::new(&mut bytes, 4096, 5, 20);
            encoder.write_all(body).expect("memory takes it");
            drop(encoder);
            bytes
        }
        "zstd" => {
            ruzstd::encoding::compress_to_vec(body, ruzstd::encoding::CompressionLevel::Fastest)
        }
        // A coding that nobody knows.
        _ => body.to_vec(),
    };
    let mut reply = plain("application/json", bytes);
    let coding = HeaderValue::from_str(coding).expect("a path segment fits a header");
    reply.headers_mut().insert("content-encoding", coding);
    reply
}

fn zeros(count: &str) -> Bytes {
    Bytes::from(vec![b'0'; count.parse().unwrap_or(0).min(1 << 30)])
}

fn redirect(target: &str) -> Reply {
    let target = percent_decode_str(target).decode_utf8_lossy().into_owned();
    let mut reply = with_status(StatusCode::FOUND);
    if let Ok(target) = HeaderValue::from_str(&target) {
        reply.headers_mut().insert("location", target);
    }
    reply
}

/// `?name=value` becomes a header of the answer.
fn header(query: &str) -> Reply {
    let mut reply = plain("text/plain", "header\n");
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
        let (name, value) = (
            HeaderName::from_bytes(name.as_bytes()),
            HeaderValue::from_str(&value),
        );
        if let (Ok(name), Ok(value)) = (name, value) {
            reply.headers_mut().append(name, value);
        }
    }
    reply
}

fn trailers() -> Reply {
    let mut map = HeaderMap::new();
    map.insert("x-checksum", HeaderValue::from_static("42"));
    map.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(Bytes::from_static(b"body\n")).with_trailers(async move { Some(Ok(map)) });
    let mut reply = Response::new(body.boxed());
    reply.headers_mut().insert(
        "trailer",
        HeaderValue::from_static("x-checksum, grpc-status"),
    );
    reply
}

/// The answer of a gRPC method that returns its message (PROTOCOL-HTTP2.md of
/// gRPC): the same frame, and the status among the trailers.
fn grpc(body: Bytes) -> Reply {
    let mut map = HeaderMap::new();
    map.insert("grpc-status", HeaderValue::from_static("0"));
    map.insert("x-said", HeaderValue::from_static("after"));
    let body = Full::new(body).with_trailers(async move { Some(Ok(map)) });
    let mut reply = Response::new(body.boxed());
    let kind = HeaderValue::from_static("application/grpc");
    reply.headers_mut().insert("content-type", kind);
    reply
}

/// One byte in 100 ms, fifty times.
fn drip() -> Reply {
    let (sender, receiver) =
        tokio::sync::mpsc::unbounded_channel::<Result<Frame<Bytes>, Infallible>>();
    tokio::task::spawn_local(async move {
        for _ in 0..50 {
            if sender
                .send(Ok(Frame::data(Bytes::from_static(b"."))))
                .is_err()
            {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    });
    Response::new(BoxBody::new(StreamBody::new(Receiver(receiver))))
}

struct Receiver(tokio::sync::mpsc::UnboundedReceiver<Result<Frame<Bytes>, Infallible>>);

impl futures_core::Stream for Receiver {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

/// The text in chunks of so many bytes, one frame or chunk each.
fn split(size: &str, text: &str) -> Reply {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    for piece in text.as_bytes().chunks(size.parse().unwrap_or(1).max(1)) {
        let frame = Frame::data(Bytes::copy_from_slice(piece));
        let _gone = sender.send(Ok(frame)).is_err();
    }
    Response::new(BoxBody::new(StreamBody::new(Receiver(receiver))))
}

/// Sends each message back, after `first` in frames of three bytes.
fn websocket(world: Rc<World>, mut request: Request<Incoming>, first: Option<String>) -> Reply {
    let key = request.headers().get("sec-websocket-key").cloned();
    let Some(key) = key else {
        return with_status(StatusCode::BAD_REQUEST);
    };
    let accept = tokio_tungstenite::tungstenite::handshake::derive_accept_key(key.as_bytes());
    tokio::task::spawn_local(async move {
        use tokio_tungstenite::WebSocketStream;
        use tokio_tungstenite::tungstenite::protocol::Role;
        let Ok(upgraded) = hyper::upgrade::on(&mut request).await else {
            return;
        };
        let io = TokioIo::new(upgraded);
        let mut socket = WebSocketStream::from_raw_socket(io, Role::Server, None).await;
        use futures_util::{SinkExt, StreamExt};
        for frame in first.iter().flat_map(|text| fragments(text)) {
            if socket.send(frame).await.is_err() {
                return;
            }
        }
        while let Some(Ok(message)) = socket.next().await {
            if message.is_text() || message.is_binary() {
                world.note(json!({ "kind": "ws", "text": message.to_string() }));
                if socket.send(message).await.is_err() {
                    return;
                }
            }
        }
    });
    let mut reply = with_status(StatusCode::SWITCHING_PROTOCOLS);
    let headers = reply.headers_mut();
    headers.remove("content-type");
    headers.insert("connection", HeaderValue::from_static("upgrade"));
    headers.insert("upgrade", HeaderValue::from_static("websocket"));
    let accept = HeaderValue::from_str(&accept).expect("base64 fits a header");
    headers.insert("sec-websocket-accept", accept);
    *reply.body_mut() = Full::new(Bytes::new()).boxed();
    reply
}

/// One message in many frames (RFC 6455, section 5.4).
fn fragments(text: &str) -> Vec<tokio_tungstenite::tungstenite::Message> {
    use tokio_tungstenite::tungstenite::Message;
    use tokio_tungstenite::tungstenite::protocol::frame::Frame;
    use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
    let pieces: Vec<&[u8]> = text.as_bytes().chunks(3).collect();
    let last = pieces.len().saturating_sub(1);
    let frame = |(number, piece): (usize, &&[u8])| {
        let kind = match number {
            0 => Data::Text,
            _ => Data::Continue,
        };
        let piece = Bytes::copy_from_slice(piece);
        Message::Frame(Frame::message(piece, OpCode::Data(kind), number == last))
    };
    pieces.iter().enumerate().map(frame).collect()
}

/// git-http-backend(1) as a CGI program (RFC 3875).
async fn git(
    world: &World,
    rest: &str,
    target: &str,
    method: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> Reply {
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let header = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("")
    };
    let mut command = tokio::process::Command::new("git");
    command
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", world.directory.join("git"))
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REMOTE_USER", "tester")
        .env("PATH_INFO", format!("/{rest}"))
        .env("QUERY_STRING", query)
        .env("REQUEST_METHOD", method)
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("GIT_PROTOCOL", header("git-protocol"))
        .env("GIT_CONFIG_COUNT", "2")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .env("GIT_CONFIG_KEY_1", "http.receivepack")
        .env("GIT_CONFIG_VALUE_1", "true")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().expect("git starts");
    let mut stdin = child.stdin.take().expect("standard input is a pipe");
    let body = body.to_vec();
    tokio::task::spawn_local(async move {
        let _closed = stdin.write_all(&body).await.is_err();
    });
    let output = child.wait_with_output().await.expect("git ends").stdout;
    let split = output.windows(4).position(|window| window == b"\r\n\r\n");
    let (head, body) = output.split_at(split.map_or(output.len(), |at| at + 4));
    let mut reply = plain("text/plain", body.to_vec());
    for line in String::from_utf8_lossy(head).lines() {
        let Some((name, value)) = line.split_once(": ") else {
            continue;
        };
        if name.eq_ignore_ascii_case("status") {
            let code = value.split(' ').next().and_then(|code| code.parse().ok());
            *reply.status_mut() = code
                .and_then(|code| StatusCode::from_u16(code).ok())
                .unwrap_or_default();
        } else if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), value.parse())
        {
            reply.headers_mut().insert(name, value);
        }
    }
    reply
}
