//! What requests carry out and responses carry back: credentials, WebSockets,
//! and plain HTTP.

use std::rc::Rc;

use http::Request;
use http_body_util::{BodyExt, Full};
use stockade_policy::network::Destination;
use stockade_policy::network::destination::RawHost;
use stockade_policy::network::judge::Denial;
use stockade_policy::network::rules::{Content, Mode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::support::{Double, HOST, SECRET, bound, exchange, git_plan, plain_origin, plan, run};
use crate::context::denial;
use crate::inspect::authority::Protocol::{Http1, Http2};
use crate::inspect::environment::Meter;
use crate::inspect::forward::{Closed, Door, serve_plain, serve_proxy};

fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n{headers}\r\n")
}

const STARS: &str = "authorization: Bearer ****************************************\n";

#[test]
fn a_credential_goes_out_and_never_comes_back() {
    run(
        bound(plan(Content::default()), Mode::Attach),
        &[Http1],
        |world| async move {
            for path in ["/", "/gzip"] {
                let answer = world
                    .send(get(path, "Accept-Encoding: zstd, gzip\r\n").as_bytes())
                    .await;
                assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
                assert!(answer.contains(STARS), "{path}: {answer}");
                assert!(!answer.contains(SECRET), "{path}: {answer}");
                assert!(!answer.contains("zstd"), "{path}: {answer}");
            }
            assert_eq!(world.double.scrubbed.get(), 2);
            assert_eq!(*world.double.credentials.borrow(), ["token", "token"]);
            let range = world
                .send(get("/", "Range: bytes=1-5\r\n").as_bytes())
                .await;
            assert!(!range.contains("range:"), "{range}");
            // Row 50: what cannot be read is not passed on.
            let unknown = world.send(get("/unknown-coding", "").as_bytes()).await;
            assert!(unknown.starts_with("HTTP/1.1 502 "), "{unknown}");
            assert!(unknown.contains("unscannable-encoding"), "{unknown}");
        },
    );
    run(
        bound(plan(Content::default()), Mode::Attach),
        &[Http2],
        |world| async move {
            let mut sender = world.http2().await;
            let request = Request::get("https://origin.test/trailers")
                .body(Full::default())
                .unwrap();
            let response = sender.send_request(request).await.unwrap();
            let body = response.into_body().collect().await.unwrap();
            assert_eq!(body.trailers().unwrap()["x-end"], "reached");
            let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
            assert!(text.contains(STARS), "{text}");
        },
    );
}

#[test]
fn row_41_a_foreign_credential_is_refused() {
    run(
        bound(plan(Content::default()), Mode::Attach),
        &[Http1],
        |world| async move {
            let foreign = world.send(get("/", "X-Api-Key: mine\r\n").as_bytes()).await;
            assert!(foreign.starts_with("HTTP/1.1 403 "), "{foreign}");
            assert_eq!(world.double.codes(), ["foreign-credential"]);
            assert_eq!(world.double.alerts.borrow().len(), 1);
        },
    );
}

#[test]
fn row_42_a_placeholder_is_replaced_in_its_place_only() {
    run(
        bound(plan(Content::default()), Mode::Replace),
        &[Http1],
        |world| async move {
            let (variable, placeholder) = world.double.vault.placeholders().remove(0);
            assert_eq!(variable, "TOKEN");
            let replaced = get("/", &format!("Authorization: Bearer {placeholder}\r\n"));
            let answer = world.send(replaced.as_bytes()).await;
            assert!(answer.contains(STARS), "{answer}");
            let elsewhere = get("/", &format!("X-Other: {placeholder}\r\n"));
            let answer = world.send(elsewhere.as_bytes()).await;
            assert!(answer.contains("placeholder-off-binding"), "{answer}");
            let body = format!(
                "POST / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{placeholder}",
                placeholder.len()
            );
            let answer = world.send(body.as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
            assert_eq!(world.double.codes(), ["placeholder-off-binding"; 2]);
        },
    );
}

fn handshake(extra: &str) -> String {
    format!(
        "GET /socket HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Extensions: permessage-deflate\r\n{extra}\r\n"
    )
}

/// Reads until `end` was read.
async fn until(stream: &mut (impl AsyncReadExt + Unpin), end: &[u8]) -> Vec<u8> {
    let mut read = Vec::new();
    while !read.ends_with(end) {
        let length = stream.read_buf(&mut read).await.unwrap();
        assert_ne!(length, 0, "{}", String::from_utf8_lossy(&read));
    }
    read
}

#[test]
fn row_33_early_bytes_wait_for_the_origin() {
    let content = Content {
        websocket: true,
        ..Content::default()
    };
    run(plan(content), &[Http1], |world| async move {
        let mut stream = world.greet(HOST, &[b"http/1.1"]).await.unwrap();
        let early = [handshake("").as_bytes(), b"early bytes"].concat();
        stream.write_all(&early).await.unwrap();
        let read = until(&mut stream, b"early bytes").await;
        let text = String::from_utf8_lossy(&read);
        assert!(text.starts_with("HTTP/1.1 101 "), "{text}");
        assert!(text.contains("x-offered: permessage-deflate"), "{text}");
        stream.write_all(b"later").await.unwrap();
        assert_eq!(until(&mut stream, b"later").await, b"later");
        assert!(world.double.uploaded.get() >= 16);
        // Row 51: it ends when the rule does.
        world.double.revoked.notify_waiters();
        let mut rest = Vec::new();
        drop(stream.read_to_end(&mut rest).await);
        assert!(rest.is_empty());
    });
    run(plan(Content::default()), &[Http1], |world| async move {
        let early = [handshake("").as_bytes(), get("/smuggled", "").as_bytes()].concat();
        let answer = world.send(&early).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert!(answer.contains("\"code\":\"websocket\""), "{answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    });
}

/// The origin sends back what it gets, so that the "client" here sends what an
/// origin may: frames without a mask, which nobody looks at where no
/// placeholder exists.
#[test]
fn row_50_a_secret_in_two_frames_is_found() {
    let content = Content {
        websocket: true,
        ..Content::default()
    };
    run(
        bound(plan(content), Mode::Attach),
        &[Http1],
        |world| async move {
            let mut stream = world.greet(HOST, &[b"http/1.1"]).await.unwrap();
            stream.write_all(handshake("").as_bytes()).await.unwrap();
            let head = until(&mut stream, b"\r\n\r\n").await;
            let head = String::from_utf8_lossy(&head);
            assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
            assert!(!head.contains("permessage-deflate"), "{head}");
            let (one, two) = SECRET.as_bytes().split_at(17);
            let frames = [
                &[0x01, 19][..],
                b"a:",
                one,
                &[0x80, 25],
                two,
                b"-z",
                &[0x8a, 0],
            ]
            .concat();
            stream.write_all(&frames).await.unwrap();
            let read = until(&mut stream, &[0x8a, 0]).await;
            let stars = vec![b'*'; SECRET.len()];
            let expected = [
                &[0x01, 2][..],
                b"a:",
                &[0x80, 42],
                &stars,
                b"-z",
                &[0x8a, 0],
            ]
            .concat();
            assert_eq!(read, expected);
            assert_eq!(world.double.scrubbed.get(), 1);
        },
    );
}

#[test]
fn plain_http_is_judged_by_request_and_carries_no_secret() {
    let content = Content {
        paths: vec!["/open".to_owned()],
        ..Content::default()
    };
    run(plan(content), &[Http1], |world| async move {
        let origin = plain_origin(&world.tasks).await;
        let double = plain_double(&world.double, origin);
        let client = world.pipe(|server| serve_plain(Rc::clone(&double), server));
        let answer = exchange(client, get("/open", "").as_bytes()).await;
        assert!(answer.contains("GET /open HTTP/1.1\n"), "{answer}");
        let client = world.pipe(|server| serve_plain(Rc::clone(&double), server));
        let answer = exchange(client, get("/closed", "").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert_eq!(answer.matches("x-sandbox-denied: path").count(), 1);
    });
}

#[test]
fn a_proxy_judges_each_destination() {
    run(plan(Content::default()), &[Http1], |world| async move {
        let origin = plain_origin(&world.tasks).await;
        let double = plain_double(&world.double, origin);
        let door = OneDoor(Rc::clone(&double));
        let client = world.pipe(|server| serve_proxy(server, door));
        let first = format!("GET http://{HOST}/1?q HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
        let second = "GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n";
        let third = format!(
            "GET http://{HOST}/3 HTTP/1.1\r\nHost: {HOST}\r\nProxy-Connection: close\r\nConnection: close\r\n\r\n"
        );
        let answer = exchange(
            client,
            [first.as_bytes(), second.as_bytes(), third.as_bytes()]
                .concat()
                .as_slice(),
        )
        .await;
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2, "{answer}");
        assert_eq!(answer.matches("HTTP/1.1 403 ").count(), 1, "{answer}");
        assert!(answer.contains("GET /1?q HTTP/1.1\n"), "{answer}");
        assert!(answer.contains("\"request_id\":\"12\""), "{answer}");
        assert!(!answer.contains("proxy-connection"), "{answer}");
        let door = OneDoor(Rc::clone(&double));
        let client = world.pipe(|server| serve_proxy(server, door));
        let bad = format!("{first}GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
        let answer = exchange(client, bad.as_bytes()).await;
        assert!(answer.contains("HTTP/1.1 400 Bad Request"), "{answer}");
        assert!(answer.contains("\"request_id\":\"11\""), "{answer}");
        assert_eq!(double.codes(), ["bad-request"]);
    });
}

/// Opens to one destination.
struct OneDoor(Rc<Double>);

impl Door for OneDoor {
    type Environment = Double;

    fn number(&self) -> u64 {
        11
    }

    async fn open(&self, destination: Destination) -> Result<Rc<Double>, Closed> {
        match destination == self.0.destination {
            true => Ok(Rc::clone(&self.0)),
            false => Err(Closed {
                denial: denial("not-allowed", "no rule names it"),
                number: 12,
            }),
        }
    }

    fn denied(&self, denial: &Denial) {
        Meter::denied(&*self.0, None, denial);
    }
}

/// The same conversation, to port 80.
fn plain_double(double: &Double, origin: std::net::SocketAddr) -> Rc<Double> {
    let destination = Destination::new(RawHost::Text(HOST.as_bytes()), 80).unwrap();
    Rc::new(double.again(destination, origin))
}

#[test]
fn an_origin_that_closed_is_dialled_again() {
    run(plan(Content::default()), &[Http1], |world| async move {
        let mut stream = world.greet(HOST, &[b"http/1.1"]).await.unwrap();
        let request = format!("GET /goodbye HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
        for _ in 0..3 {
            stream.write_all(request.as_bytes()).await.unwrap();
            let read = until(&mut stream, b"\n\n").await;
            assert!(read.starts_with(b"HTTP/1.1 200 OK\r\n"));
        }
        assert_eq!(world.double.dials.get(), 3);
    });
}

/// The commands of a push (gitprotocol-pack(5)) that creates a branch out of
/// nothing new, or deletes one.
fn push(repository: &str, old: char, new: char) -> String {
    let hash = |digit: char| digit.to_string().repeat(40);
    let command = format!(
        "{} {} refs/heads/topic\0 report-status delete-refs\n",
        hash(old),
        hash(new)
    );
    let body = format!("{:04x}{command}0000", command.len() + 4);
    format!(
        "POST /{repository}.git/git-receive-pack HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\
         Content-Type: application/x-git-receive-pack-request\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn row_39_git_is_judged_by_its_protocol() {
    run(git_plan(), &[Http1], |world| async move {
        let refs = |repository: &str, service: &str| {
            get(
                &format!("/{repository}.git/info/refs?service={service}"),
                "",
            )
        };
        for (repository, service) in [
            ("a/read", "git-upload-pack"),
            ("a/push", "git-receive-pack"),
        ] {
            let answer = world.send(refs(repository, service).as_bytes()).await;
            assert!(answer.contains("GET /a/"), "{answer}");
        }
        for (repository, service) in [
            ("b/other", "git-upload-pack"),
            ("a/read", "git-receive-pack"),
        ] {
            let answer = world.send(refs(repository, service).as_bytes()).await;
            assert!(answer.contains("ERR "), "{answer}");
            assert!(!answer.contains("GET /"), "{answer}");
        }
        let other = world.send(get("/a/read/settings", "").as_bytes()).await;
        assert!(other.starts_with("HTTP/1.1 403 "), "{other}");
        // Deleting is not permitted, and git can read why.
        let deleted = world.send(push("a/push", '1', '0').as_bytes()).await;
        assert!(deleted.starts_with("HTTP/1.1 200 "), "{deleted}");
        assert!(deleted.contains("x-git-receive-pack-result"), "{deleted}");
        assert!(deleted.contains("ng refs/heads/topic"), "{deleted}");
        assert!(!deleted.contains("POST /"), "{deleted}");
    });
    let mut plan = git_plan();
    if let Some(git) = &mut plan.sets[0].rules[0].git {
        git.delete = true;
    }
    run(plan, &[Http1], |world| async move {
        let deleted = world.send(push("a/push", '1', '0').as_bytes()).await;
        assert!(
            deleted.contains("POST /a/push.git/git-receive-pack HTTP/1.1\n"),
            "{deleted}"
        );
        assert!(deleted.contains("refs/heads/topic"), "{deleted}");
        let elsewhere = world.send(push("a/read", '1', '0').as_bytes()).await;
        assert!(elsewhere.contains("ng refs/heads/topic"), "{elsewhere}");
        assert!(world.double.uploaded.get() > 100);
    });
}

#[test]
fn a_refused_upload_is_told_before_the_end() {
    let content = Content {
        methods: vec!["GET".to_owned()],
        ..Content::default()
    };
    run(plan(content), &[Http1], |world| async move {
        let body = "x".repeat(3_000_000);
        let request = format!(
            "POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let stream = world.greet(HOST, &[b"http/1.1"]).await.unwrap();
        let (mut read, mut write) = tokio::io::split(stream);
        let sent = async {
            write.write_all(request.as_bytes()).await.unwrap();
            // The rest may find the connection closed.
            drop(write.write_all(body.as_bytes()).await);
        };
        let mut answer = Vec::new();
        let told = async { drop(read.read_to_end(&mut answer).await) };
        tokio::join!(sent, told);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    });
}
