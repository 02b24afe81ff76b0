//! Whole connections through the gate, and the same against the HTTP library.

use std::cell::RefCell;
use std::rc::Rc;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

const GET: &str = "GET /a HTTP/1.1\r\nHost: a.test\r\n\r\n";

fn post(lines: &str, body: &str) -> String {
    format!("POST /b HTTP/1.1\r\nHost: a.test\r\n{lines}\r\n\r\n{body}")
}

/// What passes, in pieces of every size; they must all agree.
fn through(stream: &str) -> (String, Result<(), BadHead>) {
    let all = pieces(stream, stream.len().max(1));
    for size in [1, 2, 3, 7, 64] {
        let (passed, outcome) = pieces(stream, size);
        assert_eq!(outcome, all.1, "{stream:?} in pieces of {size}");
        assert_eq!(passed, all.0, "{stream:?} in pieces of {size}");
    }
    all
}

fn pieces(stream: &str, size: usize) -> (String, Result<(), BadHead>) {
    let mut gate = Gate::new(Forms::Origin);
    let mut passed = Vec::new();
    let mut outcome = Ok(());
    for piece in stream.as_bytes().chunks(size) {
        outcome = gate.push(piece, &mut passed);
        if outcome.is_err() {
            assert_eq!(gate.push(b"GET", &mut passed), outcome, "it stays closed");
            break;
        }
    }
    let passed = String::from_utf8(passed).expect("it was text");
    (passed, outcome)
}

#[test]
fn good_messages_pass_as_they_are() {
    let stream = [
        GET.to_owned(),
        post("Content-Length: 5", "hello"),
        post("Content-Length: 0", ""),
        post(
            "Transfer-Encoding: chunked",
            "5\r\nhello\r\n00A\r\n0123456789\r\n0\r\n\r\n",
        ),
        post(
            "Transfer-Encoding: chunked",
            "1\r\nx\r\n0\r\nChecksum: 1\r\n\r\n",
        ),
        post("Connection: upgrade\r\nUpgrade: h2c", ""),
        GET.to_owned(),
    ]
    .concat();
    assert_eq!(through(&stream), (stream.clone(), Ok(())));
}

#[test]
fn row_32_a_second_head_is_checked_like_the_first() {
    for (second, refusal) in [
        ("GET / HTTP/1.1\nHost: a.test\n\n", BadHead::LineEnd),
        (
            "GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n",
            BadHead::HostCount,
        ),
        (
            "GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\nHost: a\r\n\r\n",
            BadHead::TwoFramings,
        ),
        (
            "\r\nGET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
            BadHead::EmptyFirstLine,
        ),
        (
            "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
            BadHead::TargetForm,
        ),
        (
            "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n",
            BadHead::TargetForm,
        ),
    ] {
        for first in [GET.to_owned(), post("Content-Length: 5", "hello")] {
            let (passed, outcome) = through(&format!("{first}{second}"));
            assert_eq!((passed, outcome), (first, Err(refusal)), "{second:?}");
        }
    }
}

#[test]
fn row_32_a_chunked_body_has_one_reading() {
    let head = post("Transfer-Encoding: chunked", "");
    for (body, refusal) in [
        ("5;x=y\r\nhello\r\n0\r\n\r\n", BadHead::Chunk),
        ("5 \r\nhello\r\n0\r\n\r\n", BadHead::Chunk),
        (" 5\r\nhello\r\n0\r\n\r\n", BadHead::Chunk),
        ("+5\r\nhello\r\n0\r\n\r\n", BadHead::Chunk),
        ("0x5\r\nhello\r\n0\r\n\r\n", BadHead::Chunk),
        ("-1\r\n", BadHead::Chunk),
        ("\r\n", BadHead::Chunk),
        ("5\nhello\r\n0\r\n\r\n", BadHead::Chunk),
        ("5\r\nhello!\r\n0\r\n\r\n", BadHead::Chunk),
        ("5\r\nhello\n0\r\n\r\n", BadHead::Chunk),
        ("20000000000001\r\n", BadHead::Chunk),
        ("FFFFFFFFFFFFFFFF\r\n", BadHead::Chunk),
        ("00000000000000000\r\n", BadHead::Chunk),
        ("0\r\nHost: b.test\r\n\r\n", BadHead::Trailer),
        ("0\r\nAuthorization: x\r\n\r\n", BadHead::Trailer),
        ("0\r\nContent-Length: 5\r\n\r\n", BadHead::Trailer),
        ("0\r\nA: b\n\r\n", BadHead::LineEnd),
        ("0\r\nA : b\r\n\r\n", BadHead::HeaderName),
        ("0\r\nGET / HTTP/1.1\r\n\r\n", BadHead::HeaderName),
    ] {
        let (passed, outcome) = through(&format!("{head}{body}"));
        assert_eq!(outcome, Err(refusal), "{body:?}");
        assert!(passed.starts_with(&head));
    }
}

#[test]
fn row_33_bytes_behind_an_upgrade_wait_for_its_answer() {
    let upgrade =
        "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    for size in [1, 7, 1000] {
        let early = format!("{upgrade}{GET}");
        let mut gate = Gate::new(Forms::Origin);
        let mut passed = Vec::new();
        for piece in early.as_bytes().chunks(size) {
            gate.push(piece, &mut passed).expect("it is good");
        }
        assert_eq!(passed, upgrade.as_bytes());
        assert!(gate.is_waiting());
        gate.declined(&mut passed).expect("a good request follows");
        assert_eq!(passed, early.as_bytes());
        assert!(gate.is_idle());
    }
    let mut gate = Gate::new(Forms::Origin);
    let mut passed = Vec::new();
    gate.push(upgrade.as_bytes(), &mut passed)
        .expect("it is good");
    gate.push(b"\x81\x00", &mut passed).expect("it is held");
    passed.clear();
    gate.switched(&mut passed);
    gate.push(b"\x88", &mut passed).expect("everything passes");
    assert_eq!(passed, b"\x81\x00\x88");

    let mut gate = Gate::new(Forms::Origin);
    gate.push(upgrade.as_bytes(), &mut passed)
        .expect("it is good");
    gate.push(b"\x81\x00", &mut passed).expect("it is held");
    assert_eq!(gate.declined(&mut passed), Err(BadHead::ForbiddenByte));
    let mut gate = Gate::new(Forms::Origin);
    gate.push(upgrade.as_bytes(), &mut passed)
        .expect("it is good");
    let flood = vec![0; EARLY_BYTES_MAX + 1];
    assert_eq!(gate.push(&flood, &mut passed), Err(BadHead::EarlyBytes));
}

/// Each byte is looked at a fixed number of times, also when a push holds
/// very many heads; a quadratic gate would take minutes here.
#[test]
fn many_small_requests_at_once_are_cheap() {
    let stream = GET.repeat(200_000);
    let mut passed = Vec::new();
    let outcome = Gate::new(Forms::Origin).push(stream.as_bytes(), &mut passed);
    assert_eq!((outcome, passed.len()), (Ok(()), stream.len()));
}

#[test]
fn a_proxy_takes_uris_and_nothing_else() {
    let mut gate = Gate::new(Forms::Proxy);
    let mut passed = Vec::new();
    let good = b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n";
    assert_eq!(gate.push(good, &mut passed), Ok(()));
    assert_eq!(
        gate.push(GET.as_bytes(), &mut passed),
        Err(BadHead::TargetForm)
    );
    assert_eq!(passed, good);
}

/// A request as hyper's server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

async fn seen_by_hyper(stream: Vec<u8>) -> Vec<Seen> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let (mut client, server) = tokio::io::duplex(stream.len().max(1024));
    let all = Rc::clone(&seen);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let all = Rc::clone(&all);
        async move {
            let (parts, body) = request.into_parts();
            let text = |value: &hyper::header::HeaderValue| value.to_str().map(str::to_owned);
            let headers = parts.headers.iter();
            let headers =
                headers.map(|(name, value)| (name.to_string(), text(value).expect("ASCII")));
            let mut one = Seen {
                method: parts.method.to_string(),
                target: parts.uri.to_string(),
                headers: headers.collect(),
                body: Vec::new(),
            };
            one.headers.sort();
            one.body = body.collect().await?.to_bytes().to_vec();
            all.borrow_mut().push(one);
            Ok::<_, hyper::Error>(hyper::Response::new(Empty::<Bytes>::new()))
        }
    });
    client.write_all(&stream).await.expect("the pipe is open");
    client.shutdown().await.expect("the pipe is open");
    let mut builder = hyper::server::conn::http1::Builder::new();
    let connection = builder
        .half_close(true)
        .serve_connection(TokioIo::new(server), service);
    let mut replies = Vec::new();
    let (outcome, read) = tokio::join!(connection, client.read_to_end(&mut replies));
    assert!(read.is_ok());
    let text = String::from_utf8_lossy(&replies);
    assert!(outcome.is_ok(), "{outcome:?}: {text}");
    seen.take()
}

/// The same request, as the gate's own parser sees it.
fn seen_by_gate(head: &str, body: &str) -> Seen {
    let head = parse_request(head.as_bytes()).expect("the gate took it");
    let mut headers = head.headers.as_slice().to_vec();
    headers.sort();
    let Target::Origin(target) = head.target else {
        panic!("it was made in origin form");
    };
    Seen {
        method: head.method,
        target,
        headers,
        body: body.as_bytes().to_vec(),
    }
}

/// Three requests, two of them with a body that looks like a request too.
fn one_request_in_another() -> String {
    let length = format!("A: b\r\nContent-Length: {}", GET.len());
    let chunked = format!("{:x}\r\n{GET}\r\n0\r\nT: x\r\n\r\n", GET.len());
    [
        post(&length, GET),
        post("Transfer-Encoding: chunked", &chunked),
        GET.to_owned(),
    ]
    .concat()
}

#[test]
fn a_request_in_a_body_is_a_body() {
    let stream = one_request_in_another();
    assert_eq!(through(&stream), (stream.clone(), Ok(())));
    assert_eq!(heads_by_gate(stream.as_bytes()).len(), 3);
}

/// Every message of a stream that the gate took: where it stands between two
/// of them is the gate's own idea of where they end.
fn heads_by_gate(stream: &[u8]) -> Vec<Head> {
    let mut gate = Gate::new(Forms::Origin);
    let mut heads = Vec::new();
    let mut begin = 0;
    for (index, byte) in stream.iter().enumerate() {
        gate.push(&[*byte], &mut Vec::new())
            .expect("the gate took it");
        if gate.is_idle() {
            let message = &stream[begin..=index];
            let length = HeadReader::default().read(message).expect("it is good");
            let length = length.expect("the head is complete");
            heads.push(parse_request(&message[..length]).expect("it is good"));
            begin = index + 1;
        }
    }
    heads
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Two requests on one connection: if the gate takes them, the library
    /// reads the same two.
    #[test]
    fn the_library_reads_what_the_gate_read(
        method in "[A-Z!#$%&'*+.^_`|~-]{1,12}",
        target in "/[!-~]{0,20}",
        fields in proptest::collection::vec(("[a-zA-Z!#$%&'*+.^_`|~0-9-]{1,8}", "[ -~\t]{0,12}"), 0..6),
        sizes in proptest::collection::vec(1usize..20, 0..4),
        chunked in any::<bool>(),
    ) {
        let names = ["connection", "upgrade", "expect", "host", "content-length", "te"];
        let known = |name: &str| names.contains(&name.to_ascii_lowercase().as_str());
        let lines: String = fields
            .iter()
            .filter(|(name, _)| !known(name))
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let body: String = sizes.iter().map(|size| "x".repeat(*size)).collect();
        let (framing, encoded) = if chunked {
            let chunks = sizes.iter().map(|size| format!("{size:x}\r\n{}\r\n", "x".repeat(*size)));
            ("Transfer-Encoding: chunked".to_owned(), chunks.collect::<String>() + "0\r\n\r\n")
        } else {
            (format!("Content-Length: {}", body.len()), body.clone())
        };
        let head = format!("{method} {target} HTTP/1.1\r\nHost: a.test\r\n{lines}{framing}\r\n\r\n");
        let mut passed = Vec::new();
        let stream = format!("{head}{encoded}{GET}");
        let mut gate = Gate::new(Forms::Origin);
        if gate.push(stream.as_bytes(), &mut passed).is_ok() {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("it starts");
            let seen = runtime.block_on(seen_by_hyper(passed));
            let expected = [seen_by_gate(&head, &body), seen_by_gate(GET, "")];
            prop_assert_eq!(seen, expected);
        }
    }

    /// A connection in which some bytes were replaced by the ones that
    /// smuggling is made of: where the gate takes it, the library reads the
    /// same requests, so it cannot find one that the gate did not see.
    #[test]
    fn row_32_the_library_finds_no_other_requests(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), "[\r\n :;,0-9a-fA-Z\t\0]"), 0..4),
    ) {
        let mut stream = one_request_in_another().into_bytes();
        for (place, byte) in changes {
            let place = place.index(stream.len());
            stream[place] = byte.as_bytes()[0];
        }
        let mut passed = Vec::new();
        let mut gate = Gate::new(Forms::Origin);
        if gate.push(&stream, &mut passed).is_ok() && gate.is_idle() {
            let heads = heads_by_gate(&passed);
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("it starts");
            let seen = runtime.block_on(seen_by_hyper(passed));
            // HTTP/1.0 and `close` end a connection early.
            prop_assert!(!seen.is_empty() && seen.len() <= heads.len());
            for (seen, head) in seen.iter().zip(&heads) {
                let mut headers = head.headers.as_slice().to_vec();
                headers.sort();
                prop_assert_eq!(&seen.method, &head.method);
                prop_assert_eq!(&seen.headers, &headers);
            }
        }
    }
}
