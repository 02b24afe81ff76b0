//! Hellos of real clients, whole and in pieces, and what is refused.

use std::sync::Arc;

use rustls::pki_types::ServerName;

use super::*;

/// What clients sent to a listener on the loopback, with the server name
/// `client.example.test` where they could be told one.
const CLIENTS: &[(&str, &str, &[&str])] = &[
    (
        "client.example.test",
        include_str!("clients/openssl.hex"),
        &[],
    ),
    (
        "client.example.test",
        include_str!("clients/curl.hex"),
        &["h2", "http/1.1"],
    ),
    (
        "client.example.test",
        include_str!("clients/node.hex"),
        &["h2", "http/1.1"],
    ),
    (
        "client.example.test",
        include_str!("clients/node-fetch.hex"),
        &["http/1.1"],
    ),
    (
        "client.example.test",
        include_str!("clients/python.hex"),
        &[],
    ),
    (
        "client.example.test",
        include_str!("clients/java.hex"),
        &["h2", "http/1.1"],
    ),
    ("localhost", include_str!("clients/wget.hex"), &[]),
];

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
    let pairs = digits.chunks(2);
    pairs
        .map(|pair| u8::try_from(pair[0] << 4 | pair[1]).expect("two digits are a byte"))
        .collect()
}

fn read(bytes: &[u8]) -> Result<Option<(ClientHello, usize)>, BadHello> {
    HelloReader::default().read(bytes)
}

fn hello(bytes: &[u8]) -> Result<ClientHello, BadHello> {
    let (hello, consumed) = read(bytes)?.expect("it is complete");
    assert_eq!(consumed, bytes.len());
    Ok(hello)
}

/// The message of a single record, cut into records of `size` bytes.
fn in_records(whole: &[u8], size: usize) -> Vec<u8> {
    let mut cut = Vec::new();
    for piece in whole[RECORD_HEADER_BYTES..].chunks(size) {
        cut.extend_from_slice(&record(piece));
    }
    cut
}

fn record(payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).expect("records are short");
    [&[22, 3, 1][..], &length.to_be_bytes(), payload].concat()
}

/// A hello with these extensions and nothing else worth a look.
fn with_extensions(extensions: &[(u16, &[u8])]) -> Vec<u8> {
    let mut encoded = Vec::new();
    for (kind, data) in extensions {
        encoded.extend_from_slice(&kind.to_be_bytes());
        encoded.extend_from_slice(&with_length(data));
    }
    let mut body = vec![3, 3];
    body.extend_from_slice(&[7; RANDOM_BYTES]);
    body.extend_from_slice(&[0, 0, 2, 0x13, 0x01, 1, 0]);
    body.extend_from_slice(&with_length(&encoded));
    message(&body)
}

fn message(body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).expect("messages are short");
    record(&[&[1, 0][..], &length.to_be_bytes(), body].concat())
}

fn with_length(data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).expect("lists are short");
    [&length.to_be_bytes()[..], data].concat()
}

fn names(entries: &[(u8, &[u8])]) -> Vec<u8> {
    let mut list = Vec::new();
    for (kind, name) in entries {
        list.push(*kind);
        list.extend_from_slice(&with_length(name));
    }
    with_length(&list)
}

fn server_name(entries: &[(u8, &[u8])]) -> Result<ClientHello, BadHello> {
    hello(&with_extensions(&[(0, &names(entries))]))
}

#[test]
fn row_27_the_server_name_of_real_clients_is_read() {
    for (name, hex, protocols) in CLIENTS {
        let whole = bytes(hex);
        let hello = hello(&whole).expect("a real client's hello is good");
        assert_eq!(hello.server_name.as_ref().map(Name::as_str), Some(*name));
        let alpn: Vec<&[u8]> = protocols
            .iter()
            .map(|protocol| protocol.as_bytes())
            .collect();
        assert_eq!(hello.alpn, alpn);
        assert!(!hello.ech);
        assert!(hello.versions.contains(&0x0304), "{hello:?}");
    }
}

#[test]
fn row_27_a_hello_is_the_same_however_it_is_cut() {
    for (_, hex, _) in CLIENTS {
        let whole = bytes(hex);
        let expected = hello(&whole).expect("it is good");
        for size in [1, 2, 3, 4, 5, 50, 200, 1000] {
            let cut = in_records(&whole, size);
            assert_eq!(hello(&cut), Ok(expected.clone()));
            let mut reader = HelloReader::default();
            for end in 0..cut.len() {
                assert_eq!(reader.read(&cut[..end]), Ok(None));
            }
            assert_eq!(reader.read(&cut), Ok(Some((expected.clone(), cut.len()))));
        }
    }
}

#[test]
fn what_follows_the_record_is_left_alone() {
    let mut stream = bytes(CLIENTS[0].1);
    let length = stream.len();
    stream.extend_from_slice(&[20, 3, 3, 0, 1, 1]);
    let (_, consumed) = read(&stream).expect("it is good").expect("it is complete");
    assert_eq!(consumed, length);
}

#[test]
fn the_hello_of_rustls_is_read() {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from("a.test").expect("it is a name");
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).expect("it begins");
    let mut sent = Vec::new();
    client
        .write_tls(&mut sent)
        .expect("memory takes everything");
    let hello = hello(&sent).expect("it is good");
    assert_eq!(hello.server_name.as_ref().map(Name::as_str), Some("a.test"));
    assert_eq!(hello.alpn, [b"h2"]);
}

#[test]
fn row_27_a_server_name_that_is_not_one_name_is_refused() {
    let good = server_name(&[(0, b"A.test")]).expect("it is one name");
    assert_eq!(good.server_name.as_ref().map(Name::as_str), Some("a.test"));
    let entries: &[&[(u8, &[u8])]] = &[
        &[(0, b"a.test"), (0, b"b.test")],
        &[(0, b"a.test"), (0, b"a.test")],
        &[(1, b"a.test")],
        &[(0, b"a.test"), (1, b"x")],
        &[(0, b"")],
        &[(0, b"a.test.")],
        &[(0, b"192.0.2.1")],
        &[(0, b"127.1")],
        &[(0, b"::1")],
        &[(0, b"a.test\0.b.test")],
        &[(0, b"a.test:443")],
        &[(0, b"*.test")],
        &[(0, "ä.test".as_bytes())],
    ];
    for entries in entries {
        assert_eq!(
            server_name(entries),
            Err(BadHello::ServerName),
            "{entries:?}"
        );
    }
    assert_eq!(server_name(&[]), Err(BadHello::Malformed));
    let mut longer = names(&[(0, b"a.test")]);
    longer.push(0);
    assert_eq!(
        hello(&with_extensions(&[(0, &longer)])),
        Err(BadHello::Malformed)
    );
    let one = names(&[(0, b"a.test")]);
    let twice = with_extensions(&[(0, &one), (0, &one)]);
    assert_eq!(hello(&twice), Err(BadHello::RepeatedExtension));
}

#[test]
fn row_25_encrypted_hellos_are_seen() {
    for kind in [0xFE0D, 0xFE0A, 0xFFCE] {
        let hello = hello(&with_extensions(&[(kind, b"\0")])).expect("it is good");
        assert!(hello.ech, "{kind:x}");
    }
    let plain = hello(&with_extensions(&[(0x0A0A, b""), (16, b"\0\x03\x02h2")]));
    let plain = plain.expect("it is good");
    assert!(!plain.ech);
    assert_eq!((plain.server_name, plain.versions), (None, vec![0x0303]));
}

#[test]
fn other_protocols_and_bad_records_are_refused_at_once() {
    for (start, refusal) in [
        (&b"GET / HTTP/1.1"[..], BadHello::NotTls),
        // The hello of SSL 2.
        (b"\x80\x2e\x01\x00\x02", BadHello::NotTls),
        (b"\x16\x02", BadHello::NotTls),
        (b"\x15\x03\x01\x00\x02\x02\x28", BadHello::NotTls),
        (b"\x16\x03\x01\x00\x00", BadHello::RecordLength),
        (b"\x16\x03\x01\x40\x01", BadHello::RecordLength),
        (b"\x16\x03\x01\x40\x00", BadHello::TooLong),
        (b"\x16\x03\x01\x00\x01\x02", BadHello::NotClientHello),
        (b"\x16\x03\x01\x00\x04\x01\x00\xff\xff", BadHello::TooLong),
        (b"\x16\x03\x01\x00\x01\x01\x17\x03", BadHello::NotTls),
    ] {
        assert_eq!(read(start), Err(refusal), "{start:x?}");
    }
    let whole = bytes(CLIENTS[0].1);
    let mut longer = whole[RECORD_HEADER_BYTES..].to_vec();
    longer.push(1);
    assert_eq!(read(&record(&longer)), Err(BadHello::TrailingBytes));
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    let whole = with_extensions(&[(16, b"\0\x03\x02h2")]);
    let body = &whole[RECORD_HEADER_BYTES + MESSAGE_HEADER_BYTES..];
    let without_extensions = RANDOM_BYTES + 9;
    for end in 0..body.len() {
        let refused = hello(&message(&body[..end])).is_err();
        assert_eq!(refused, end != without_extensions, "{end}");
    }
    let longer = [body, b"\0"].concat();
    assert_eq!(hello(&message(&longer)), Err(BadHello::TrailingBytes));
    for alpn in [
        &b"\0\0"[..],
        b"\0\x01\0",
        b"\0\x03\x03h2",
        b"\0\x03\x02h2\0",
    ] {
        assert_eq!(
            hello(&with_extensions(&[(16, alpn)])),
            Err(BadHello::Malformed)
        );
    }
}

#[test]
fn a_hello_without_end_is_refused() {
    let mut stream = Vec::new();
    while stream.len() < HELLO_BYTES_MAX {
        let piece: &[u8] = if stream.is_empty() {
            &[1, 0, 0x3F, 0xFF]
        } else {
            &[0]
        };
        stream.extend_from_slice(&record(piece));
    }
    assert_eq!(read(&stream), Err(BadHello::TooLong));
}
