//! The entries over real sockets: what a client that is refused hears, and
//! what passes unchanged through an offered port.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;

use stockade_egress::context::Context;
use stockade_egress::inspect::inspection::Inspection;
use stockade_egress::proxy_token::ProxyToken;
use stockade_egress::resolve::Resolver;
use stockade_egress::secret::SecretText;
use stockade_egress::wire::{SetUp, VERSION};
use stockade_egress::{explicit, offers, stub};
use stockade_policy::network::rules::{Approval, Budget, Capture, HostPort, NetworkPlan};
use stockade_policy::plan::Rule;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{LocalSet, spawn_local};

fn plan() -> NetworkPlan {
    NetworkPlan {
        sets: Vec::new(),
        deny: Vec::new(),
        credentials: Vec::new(),
        approval: Approval::Deny,
        approval_wait_ms: 0,
        publish: Vec::new(),
        host_ports: Vec::new(),
        sockets: Vec::new(),
        budget: Budget::default(),
        capture: Capture::ProxyOnly,
        resolvers: Vec::new(),
        roots: Vec::new(),
        upstream_proxy: None,
        nat64: Vec::new(),
        metrics: false,
    }
}

fn context(plan: NetworkPlan) -> Rc<Context> {
    let resolver = Resolver::new(&plan);
    let mut set_up = SetUp {
        version: VERSION,
        run: "test".to_owned(),
        network: plan,
        secrets: Vec::new(),
        known_hosts: Vec::new(),
        ssh_agent: None,
        ssh_keys: Vec::new(),
        root_file: None,
        root_directory: None,
        metrics_socket: None,
        proxy_token: None,
    };
    let (inspection, _) = Inspection::new(&mut set_up).unwrap();
    Rc::new(Context::new(set_up.network, resolver, inspection, None).unwrap())
}

/// Serves every connection to the returned address.
async fn listen<F: Future<Output = ()> + 'static>(
    serve: impl Fn(TcpStream) -> F + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn_local(async move {
        while let Ok((client, _)) = listener.accept().await {
            spawn_local(serve(client));
        }
    });
    address
}

#[expect(clippy::disallowed_methods, reason = "a client of the test")]
async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

async fn exchange(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut client = connect(address).await;
    client.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    answer
}

async fn local<T>(test: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(test).await
}

async fn proxy(context: &Rc<Context>) -> SocketAddr {
    let context = context.clone();
    listen(move |client| explicit::serve(context.clone(), client)).await
}

#[tokio::test(flavor = "current_thread")]
async fn row_01_an_empty_list_denies_every_entry() {
    local(async {
        let context = context(plan());
        let proxy = proxy(&context).await;
        let request = b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n";
        let answer = exchange(proxy, request).await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert!(answer.contains("X-Sandbox-Denied: not-allowed"), "{answer}");
        assert!(answer.contains("how_to_allow"), "{answer}");
        let socks = b"\x05\x01\0\x05\x01\0\x03\x06a.test\x01\xbb";
        let answer = exchange(proxy, socks).await;
        assert_eq!(answer, b"\x05\0\x05\x02\0\x01\0\0\0\0\0\0");
        assert_eq!(context.audit.totals().denied, 2);
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn row_07_and_12_malformed_destinations_are_refused_before_they_are_matched() {
    local(async {
        let context = context(plan());
        let proxy = proxy(&context).await;
        let nul = b"\x05\x01\0\x05\x01\0\x03\x07a\0.test\x01\xbb";
        assert_eq!(exchange(proxy, nul).await[3], 1);
        for target in [
            "a.test",
            "a.test:0",
            "a.test:65536",
            "a.test:+443",
            "u@a.test:443",
        ] {
            let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
            let answer = exchange(proxy, request.as_bytes()).await;
            assert!(answer.starts_with(b"HTTP/1.1 400 "), "{target}");
        }
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn an_offered_port_carries_bytes_both_ways_and_both_ends() {
    local(async {
        // Answers with what came once the client has said all.
        let server = listen(|mut client| async move {
            let mut bytes = Vec::new();
            client.read_to_end(&mut bytes).await.unwrap();
            client.write_all(&bytes).await.unwrap();
        })
        .await;
        let mut plan = plan();
        plan.host_ports.push(HostPort {
            rule: rule("network.host_ports[0]"),
            port: server.port(),
        });
        let context = context(plan);
        let inside = {
            let context = context.clone();
            listen(move |client| offers::serve_host_port(context.clone(), client, server.port()))
                .await
        };
        // Enough for both ways of moving bytes.
        let sent: Vec<u8> = (0..3_000_000u32).map(|number| number as u8).collect();
        let (mut from, mut to) = connect(inside).await.into_split();
        let writing = async {
            to.write_all(&sent).await.unwrap();
            to.shutdown().await.unwrap();
        };
        let mut received = Vec::new();
        let reading = from.read_to_end(&mut received);
        let ((), read) = tokio::join!(writing, reading);
        read.unwrap();
        assert!(received == sent, "{} bytes came back", received.len());
        while context.audit.totals().downloaded_bytes == 0 {
            tokio::task::yield_now().await;
        }
        let totals = context.audit.totals();
        assert_eq!(totals.uploaded_bytes, sent.len() as u64);
        assert_eq!(totals.downloaded_bytes, sent.len() as u64);
    })
    .await;
}

/// Bytes that are let gather in a fast tunnel must not stay there when no more
/// come: the client waits for the last of them before it asks for others.
#[tokio::test(flavor = "current_thread")]
async fn the_end_of_a_burst_arrives_without_another_byte() {
    const BURSTS: [usize; 4] = [16_000_001, 100, 9_000_000, 1];
    local(async {
        // A thread of its own, so that it is as fast as can be.
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let serving = std::thread::spawn(move || -> io::Result<()> {
            let (mut client, _) = server.accept()?;
            for burst in BURSTS {
                client.read_exact(&mut [0])?;
                client.write_all(&vec![b'x'; burst])?;
            }
            Ok(())
        });
        let mut plan = plan();
        plan.host_ports.push(HostPort {
            rule: rule("network.host_ports[0]"),
            port,
        });
        let context = context(plan);
        let inside = {
            let context = context.clone();
            listen(move |client| offers::serve_host_port(context.clone(), client, port)).await
        };
        let client = std::thread::spawn(move || -> io::Result<()> {
            let mut stream = std::net::TcpStream::connect(inside)?;
            for burst in BURSTS {
                stream.write_all(b"?")?;
                stream.read_exact(&mut vec![0; burst])?;
            }
            Ok(())
        });
        let arrived = tokio::task::spawn_blocking(|| client.join().unwrap());
        arrived.await.unwrap().unwrap();
        serving.join().unwrap().unwrap();
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_port_that_is_not_offered_is_not_dialled() {
    local(async {
        let server = listen(|_| async { panic!("it was dialled") }).await;
        let context = context(plan());
        let inside = {
            let context = context.clone();
            listen(move |client| offers::serve_host_port(context.clone(), client, server.port()))
                .await
        };
        assert_eq!(exchange(inside, b"").await, b"");
        // Nor by the proxy: the loopback is on the floor.
        let proxy = proxy(&context).await;
        let request = format!("CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n\r\n");
        let answer = exchange(proxy, request.as_bytes()).await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.contains("X-Sandbox-Denied: floor"), "{answer}");
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn the_stub_answers_over_tcp_and_knows_no_denied_name() {
    local(async {
        let context = context(plan());
        let names = {
            let context = context.clone();
            listen(move |client| stub::serve_stream(context.clone(), client)).await
        };
        let query = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01a\x04test\0\0\x01\0\x01";
        let mut client = connect(names).await;
        client.write_u16(query.len() as u16).await.unwrap();
        client.write_all(query).await.unwrap();
        let length = client.read_u16().await.unwrap();
        let mut answer = vec![0; usize::from(length)];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer[3] & 0x0f, 3, "NXDOMAIN");
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn row_54_a_client_that_says_nothing_keeps_nobody_waiting() -> io::Result<()> {
    local(async {
        let context = context(plan());
        let proxy = proxy(&context).await;
        let mut slow = connect(proxy).await;
        slow.write_all(b"CONNECT a.te").await?;
        let request = b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n";
        let answer = exchange(proxy, request).await;
        assert!(answer.starts_with(b"HTTP/1.1 403 "));
        Ok(())
    })
    .await
}

fn rule(id: &str) -> Rule {
    Rule {
        id: id.to_owned(),
        origin: "test".to_owned(),
        reason: String::new(),
    }
}

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn guarded(plan: NetworkPlan) -> Rc<Context> {
    let token = SecretText::new(TOKEN.to_owned());
    let mut context = Rc::into_inner(context(plan)).unwrap();
    context.proxy_token = ProxyToken::new(token);
    assert!(context.proxy_token.is_some());
    Rc::new(context)
}

#[tokio::test(flavor = "current_thread")]
async fn a_proxy_that_others_can_reach_serves_only_who_shows_the_token() {
    local(async {
        let context = guarded(plan());
        let proxy = proxy(&context).await;
        let shown = ProxyToken::new(SecretText::new(TOKEN.to_owned()))
            .unwrap()
            .field();
        let wrong = ProxyToken::new(SecretText::new(TOKEN.replace('0', "1")))
            .unwrap()
            .field();
        for request in [
            "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n",
            "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n",
        ] {
            for fields in ["", &wrong, &format!("{shown}{wrong}")] {
                let answer = exchange(proxy, format!("{request}{fields}\r\n").as_bytes()).await;
                let answer = String::from_utf8(answer).unwrap();
                assert!(answer.starts_with("HTTP/1.1 407 "), "{answer}");
                assert!(
                    answer.contains("\r\nProxy-Authenticate: Basic realm="),
                    "{answer}"
                );
                assert!(
                    !answer.contains(TOKEN) && !answer.contains("not-allowed"),
                    "{answer}"
                );
            }
            let answer = exchange(proxy, format!("{request}{shown}\r\n").as_bytes()).await;
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
            assert!(answer.contains("not-allowed"), "{answer}");
        }
        assert_eq!(exchange(proxy, b"\x05\x01\0").await, b"\x05\xff");
        assert_eq!(exchange(proxy, b"\x05\x02\0\x02").await, b"\x05\xff");
        assert_eq!(context.audit.totals().denied, 10);
    })
    .await;
}
