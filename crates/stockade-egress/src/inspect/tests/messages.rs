//! Requests of HTTP/1.1 and HTTP/2, good ones and others.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use stockade_policy::network::rules::{Content, GraphQl};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::support::{HOST, plan, run};
use crate::inspect::authority::Protocol::{Http1, Http2};

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n")
}

fn request(uri: &str) -> Request<Full<Bytes>> {
    Request::get(uri).body(Full::default()).unwrap()
}

#[test]
fn a_request_passes_and_comes_back() {
    run(
        plan(Content::default()),
        &[Http2, Http1],
        |world| async move {
            let answer = world.send(get("/a/./b/../c?x=1").as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            assert!(answer.contains("GET /a/c?x=1 HTTP/1.1\n"), "{answer}");
            assert!(answer.contains(&format!("host: {HOST}\n")), "{answer}");
            assert!(!answer.contains("connection: close\n"), "{answer}");
            assert_eq!(world.double.codes(), Vec::<&str>::new());

            let mut sender = world.http2().await;
            let response = sender
                .send_request(request("https://origin.test/h2"))
                .await
                .unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let body = String::from_utf8_lossy(&body);
            assert!(body.contains("https://origin.test/h2 HTTP/2.0\n"), "{body}");
        },
    );
}

#[test]
fn one_connection_to_the_origin_serves_many_requests() {
    run(plan(Content::default()), &[Http1], |world| async move {
        let mut stream = world.greet(HOST, &[b"h2", b"http/1.1"]).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        let two = format!("GET /1 HTTP/1.1\r\nHost: {HOST}\r\n\r\n{}", get("/2"));
        stream.write_all(two.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2, "{answer}");
        assert_eq!(world.double.dials.get(), 1);
    });
}

#[test]
fn row_27_another_server_name_is_refused() {
    run(plan(Content::default()), &[Http1], |world| async move {
        let refused = world.greet("other.test", &[b"http/1.1"]).await;
        assert!(refused.is_err());
        assert_eq!(world.double.codes(), ["sni-mismatch"]);
        assert!(world.greet("127.0.0.1", &[b"http/1.1"]).await.is_err());
        assert_eq!(world.double.codes(), ["sni-mismatch", "no-sni"]);
        assert!(world.greet(HOST, &[b"smtp"]).await.is_err());
        assert_eq!(world.double.dials.get(), 0);
        assert!(world.greet("ORIGIN.test", &[b"http/1.1"]).await.is_ok());
    });
}

#[test]
fn row_28_another_host_inside_is_misdirected() {
    run(plan(Content::default()), &[Http1], |world| async move {
        let bytes = get("/").replace(HOST, "other.test");
        let answer = world.send(bytes.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
        assert!(answer.contains("x-sandbox-denied: misdirected"), "{answer}");
        let port = get("/").replace(HOST, "origin.test:444");
        assert!(
            world
                .send(port.as_bytes())
                .await
                .starts_with("HTTP/1.1 421 ")
        );
        let same = get("/").replace(HOST, "Origin.TEST:443");
        assert!(
            world
                .send(same.as_bytes())
                .await
                .starts_with("HTTP/1.1 200 ")
        );
    });
}

#[test]
fn row_52_coalesced_authority_is_misdirected() {
    run(plan(Content::default()), &[Http2], |world| async move {
        let mut sender = world.http2().await;
        let other = sender
            .send_request(request("https://other.test/"))
            .await
            .unwrap();
        assert_eq!(other.status(), StatusCode::MISDIRECTED_REQUEST);
        let both = Request::get("https://origin.test/").header("host", "other.test");
        let both = both.body(Full::default()).unwrap();
        let both = sender.send_request(both).await.unwrap();
        assert_eq!(both.status(), StatusCode::MISDIRECTED_REQUEST);
        let own = sender
            .send_request(request("https://origin.test/"))
            .await
            .unwrap();
        assert_eq!(own.status(), StatusCode::OK);
    });
}

#[test]
fn row_32_smuggling_is_answered_with_400_and_the_end() {
    run(plan(Content::default()), &[Http1], |world| async move {
        for head in [
            "Content-Length: 3\r\nTransfer-Encoding: chunked",
            "Content-Length: 3\r\nContent-Length: 4",
            "Content-Length: +3",
            "Transfer-Encoding: xchunked",
            "Transfer-Encoding: chunked, identity",
            "X-A : b",
            "X-A: b\r\n folded",
            "X-A: b\nX-B: c",
            "Host: other.test",
        ] {
            let bytes = format!(
                "POST / HTTP/1.1\r\nHost: {HOST}\r\n{head}\r\n\r\n0\r\n\r\n{}",
                get("/smuggled")
            );
            let answer = world.send(bytes.as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 400 "), "{head:?}: {answer}");
            assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{head:?}: {answer}");
        }
        let absolute = get("http://other.test/");
        assert!(
            world
                .send(absolute.as_bytes())
                .await
                .starts_with("HTTP/1.1 400 ")
        );
        // A bad head behind a good request ends the connection.
        let good = format!("GET /1 HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
        let mut stream = world.greet(HOST, &[b"http/1.1"]).await.unwrap();
        stream.write_all(good.as_bytes()).await.unwrap();
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).await.unwrap();
        assert!(piece[..length].starts_with(b"HTTP/1.1 200"));
        stream
            .write_all(b"GET / HTTP/1.1\nHost: origin.test\n\n")
            .await
            .unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert!(rest.contains("HTTP/1.1 400"), "{rest}");
        assert!(
            world
                .double
                .codes()
                .iter()
                .all(|code| *code == "bad-request")
        );
    });
}

#[test]
fn row_55_huge_heads_are_refused() {
    run(plan(Content::default()), &[Http1], |world| async move {
        let large = get("/").replace(
            "Connection",
            &format!("X-A: {}\r\nConnection", "a".repeat(40_000)),
        );
        assert!(
            world
                .send(large.as_bytes())
                .await
                .starts_with("HTTP/1.1 431 ")
        );
        let many = get("/").replace(
            "Connection",
            &format!("{}Connection", "X-A: b\r\n".repeat(200)),
        );
        assert!(
            world
                .send(many.as_bytes())
                .await
                .starts_with("HTTP/1.1 431 ")
        );
        let fits = get("/").replace(
            "Connection",
            &format!("X-A: {}\r\nConnection", "a".repeat(20_000)),
        );
        assert!(
            world
                .send(fits.as_bytes())
                .await
                .starts_with("HTTP/1.1 200 ")
        );
    });
}

#[test]
fn rows_36_37_paths_and_methods_are_what_was_judged() {
    let content = Content {
        methods: vec!["GET".to_owned(), "POST".to_owned()],
        paths: vec!["/public/**".to_owned()],
        ..Content::default()
    };
    run(plan(content), &[Http1], |world| async move {
        for path in [
            "/private",
            "/public/../private",
            "/public/%2e%2e/private",
            "/public/a%2Fb",
        ] {
            let answer = world.send(get(path).as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{path}: {answer}");
            assert!(answer.contains("\"how_to_allow\""), "{answer}");
        }
        let allowed = world.send(get("/private/../public//x").as_bytes()).await;
        assert!(allowed.contains("GET /public/x HTTP/1.1\n"), "{allowed}");
        let put = get("/public/x").replace("GET", "PUT");
        assert!(
            world
                .send(put.as_bytes())
                .await
                .contains("\"code\":\"method\"")
        );
        let renamed =
            get("/public/x").replace("Connection", "X-HTTP-Method-Override: DELETE\r\nConnection");
        let answer = world.send(renamed.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(!answer.contains("override"), "{answer}");
    });
}

#[test]
fn row_35_hop_by_hop_fields_end_here() {
    run(plan(Content::default()), &[Http1], |world| async move {
        let bytes = get("/").replace(
            "Connection: close",
            "Connection: close, X-Hop\r\nX-Hop: 1\r\nProxy-Authorization: Basic eA==\r\nKeep-Alive: 5\r\nX-End: 2",
        );
        let answer = world.send(bytes.as_bytes()).await;
        assert!(answer.contains("x-end: 2\n"), "{answer}");
        for gone in ["x-hop", "proxy-", "keep-alive", "connection: close, "] {
            assert!(!answer.contains(gone), "{gone}: {answer}");
        }
        let named = get("/").replace("Connection: close", "Connection: close, Authorization");
        assert!(
            world
                .send(named.as_bytes())
                .await
                .starts_with("HTTP/1.1 400 ")
        );
    });
}

#[test]
fn bodies_are_counted_and_limited() {
    let content = Content {
        body_bytes_max: Some(10),
        ..Content::default()
    };
    run(plan(content), &[Http1], |world| async move {
        let post = |framing: &str, body: &str| {
            format!(
                "POST / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n{framing}\r\n\r\n{body}"
            )
        };
        let fits = world
            .send(post("Content-Length: 10", "0123456789").as_bytes())
            .await;
        assert!(fits.ends_with("\n0123456789"), "{fits}");
        let declared = world
            .send(post("Content-Length: 11", "0123456789a").as_bytes())
            .await;
        assert!(declared.starts_with("HTTP/1.1 413 "), "{declared}");
        let chunked = post(
            "Transfer-Encoding: chunked",
            "6\r\n012345\r\n6\r\n012345\r\n0\r\n\r\n",
        );
        let counted = world.send(chunked.as_bytes()).await;
        assert!(counted.starts_with("HTTP/1.1 413 "), "{counted}");
        let chunked = post(
            "Transfer-Encoding: chunked",
            "5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n",
        );
        let fits = world.send(chunked.as_bytes()).await;
        assert!(
            fits.ends_with("\n0123456789\r\n0\r\n\r\n") || fits.ends_with("\n0123456789"),
            "{fits}"
        );
        assert!(fits.contains("transfer-encoding: chunked\n"), "{fits}");
        let waits = world
            .send(post("Content-Length: 4\r\nExpect: 100-continue", "body").as_bytes())
            .await;
        assert!(
            waits.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK"),
            "{waits}"
        );
        assert_eq!(world.double.codes(), ["body-too-large", "body-too-large"]);
    });
}

#[test]
fn an_upload_budget_ends_the_request() {
    run(plan(Content::default()), &[Http2], |world| async move {
        world.double.upload_max.set(100);
        let mut sender = world.http2().await;
        let post =
            Request::post("https://origin.test/").body(Full::new(Bytes::from(vec![b'a'; 200])));
        let response = sender.send_request(post.unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::FORBIDDEN);
        assert_eq!(response.headers()["x-sandbox-denied"], "budget");
    });
}

#[test]
fn row_38_graphql_that_writes_is_refused() {
    let content = Content {
        graphql: GraphQl::ReadOnly,
        ..Content::default()
    };
    run(plan(content), &[Http1], |world| async move {
        let post = |body: &str| {
            format!(
                "POST /graphql HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\
                 Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        let read = world
            .send(post(r#"{"query":"{ viewer { login } }"}"#).as_bytes())
            .await;
        assert!(read.contains("viewer { login }"), "{read}");
        let write = world
            .send(post(r#"{"query":"mutation { evil }"}"#).as_bytes())
            .await;
        assert!(write.starts_with("HTTP/1.1 403 "), "{write}");
        assert!(write.contains("\"code\":\"graphql\""), "{write}");
        // Row 49: what is too long to be seen is not sent.
        let long = format!("{{\"query\":\"{{ a }} #{}\"}}", "x".repeat(300_000));
        let answer = world.send(post(&long).as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    });
}

#[test]
fn trailers_come_through_both_ways() {
    run(plan(Content::default()), &[Http2], |world| async move {
        let mut sender = world.http2().await;
        let response = sender
            .send_request(request("https://origin.test/trailers"))
            .await
            .unwrap();
        let body = response.into_body().collect().await.unwrap();
        assert_eq!(body.trailers().unwrap()["x-end"], "reached");
    });
    run(plan(Content::default()), &[Http1], |world| async move {
        let bytes =
            get("/trailers").replace("Connection: close", "TE: trailers\r\nConnection: close, te");
        let answer = world.send(bytes.as_bytes()).await;
        assert!(answer.ends_with("0\r\nx-end: reached\r\n\r\n"), "{answer}");
    });
}

#[test]
fn a_denied_grpc_call_gets_the_status_of_its_protocol() {
    let content = Content {
        paths: vec!["/allowed/**".to_owned()],
        ..Content::default()
    };
    run(plan(content), &[Http2], |world| async move {
        let mut sender = world.http2().await;
        let call = Request::post("https://origin.test/package.Service/Method")
            .header("content-type", "application/grpc+proto")
            .body(Full::default());
        let response = sender.send_request(call.unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["grpc-status"], "7");
        assert_eq!(response.headers()["x-sandbox-denied"], "path");
    });
}

#[test]
fn redirects_are_not_followed_and_quic_is_not_advised() {
    run(plan(Content::default()), &[Http1], |world| async move {
        let answer = world.send(get("/redirect").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 302 "), "{answer}");
        assert!(
            answer.contains("location: https://elsewhere.test/"),
            "{answer}"
        );
        let answer = world.send(get("/quic").as_bytes()).await;
        assert!(!answer.contains("alt-svc"), "{answer}");
        let head = get("/large").replacen("GET", "HEAD", 1);
        let answer = world.send(head.as_bytes()).await;
        assert!(answer.ends_with("\r\n\r\n"), "{answer}");
        let large = world.send(get("/large").as_bytes()).await;
        assert!(large.len() > 3_000_000);
        assert_eq!(world.double.dials.get(), 4);
    });
}

/// Frames of HTTP/2 (RFC 9113), by hand.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_OF_BOTH: u8 = 5;

/// `:method GET`, `:scheme https`, `:path /` and the authority (RFC 7541).
fn head() -> Vec<u8> {
    [&[0x82, 0x87, 0x84, 0x41, 11][..], HOST.as_bytes()].concat()
}

#[test]
fn row_53_a_flood_of_resets_ends_the_connection() {
    run(plan(Content::default()), &[Http2], |world| async move {
        let mut flood = PREFACE.to_vec();
        flood.extend(frame(SETTINGS, 0, 0, &[]));
        for number in 0..4000 {
            let stream = 2 * number + 1;
            flood.extend(frame(HEADERS, END_OF_BOTH, stream, &head()));
            flood.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        }
        let mut stream = world.greet(HOST, &[b"h2"]).await.unwrap();
        drop(stream.write_all(&flood).await);
        // The end comes, by an error or not.
        drop(stream.read_to_end(&mut Vec::new()).await);
        assert!(
            world.double.requests.get() < 1000,
            "{}",
            world.double.requests.get()
        );
        // Others are served on.
        let mut other = world.http2().await;
        let response = other
            .send_request(request("https://origin.test/"))
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    });
}

#[test]
fn row_53_a_head_without_end_ends_the_connection() {
    run(plan(Content::default()), &[Http2], |world| async move {
        let mut flood = PREFACE.to_vec();
        flood.extend(frame(SETTINGS, 0, 0, &[]));
        flood.extend(frame(HEADERS, 0, 1, &head()));
        for _ in 0..4000 {
            let field = [&[0x00, 1, b'a', 0x7f, 0xe1, 0x06][..], &[b'b'; 960]].concat();
            flood.extend(frame(CONTINUATION, 0, 1, &field));
        }
        let mut stream = world.greet(HOST, &[b"h2"]).await.unwrap();
        drop(stream.write_all(&flood).await);
        drop(stream.read_to_end(&mut Vec::new()).await);
        assert_eq!(world.double.requests.get(), 0);
    });
}
