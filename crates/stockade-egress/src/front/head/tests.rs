//! Heads that are taken, and every kind that is refused.

use super::*;

fn parse(head: &str) -> Result<Head, BadHead> {
    parse_request(head.as_bytes())
}

/// A GET in origin form with one more line.
fn with_line(line: &str) -> Result<Head, BadHead> {
    parse(&format!("GET / HTTP/1.1\r\nHost: a.test\r\n{line}\r\n\r\n"))
}

fn for_target(request: &str, host: &str) -> Result<Head, BadHead> {
    parse(&format!("{request} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
}

#[test]
fn an_ordinary_request_is_understood() {
    let head = "POST /a?b=c HTTP/1.1\r\nHost: A.test:8080\r\nX-Empty:\r\nX-Text: \ta  b \r\n\
        Content-Length: 5\r\nExpect: 100-continue\r\nConnection: keep-alive\r\n\r\n";
    let head = parse(head).expect("it is good");
    assert_eq!((&head.method[..], head.version), ("POST", Version::Http11));
    assert_eq!(head.target, Target::Origin("/a?b=c".to_owned()));
    assert_eq!(head.framing, Framing::Length(5));
    assert!(head.expects_continue);
    assert_eq!(head.headers.values("x-text").collect::<Vec<_>>(), ["a  b"]);
    assert_eq!(head.headers.values("x-empty").collect::<Vec<_>>(), [""]);
    let host = head.host.expect("there is one").destination(80);
    assert_eq!(
        host.map(|host| host.to_string()).as_deref(),
        Ok("a.test:8080")
    );
    let old = parse("GET / HTTP/1.0\r\n\r\n").expect("HTTP/1.0 needs no Host");
    assert_eq!((old.version, old.host), (Version::Http10, None));
}

#[test]
fn every_form_of_target_is_understood() {
    let absolute = for_target("GET http://A.test/x?y", "a.test:80").expect("it is good");
    let Target::Absolute { authority, path } = absolute.target else {
        panic!("it is absolute");
    };
    assert_eq!((authority.port(), &path[..]), (None, "/x?y"));
    assert!(for_target("GET HTTP://a.test:8080", "a.test:8080").is_ok());
    let connect = for_target("CONNECT a.test:443", "a.test").expect("it is good");
    let Target::Authority(destination) = connect.target else {
        panic!("it is an authority");
    };
    assert_eq!(destination.to_string(), "a.test:443");
    let all = for_target("OPTIONS *", "a.test").expect("it is good");
    assert_eq!(all.target, Target::Asterisk);
    for (request, refusal) in [
        ("GET *", BadHead::TargetForm),
        ("GET a.test:443", BadHead::TargetForm),
        ("GET a", BadHead::TargetForm),
        ("GET https://a.test/", BadHead::Scheme),
        ("GET ftp://a.test/", BadHead::Scheme),
        ("GET ://a.test/", BadHead::Scheme),
        ("CONNECT a.test", BadAuthority::MissingPort.into()),
        ("CONNECT /", BadAuthority::MissingPort.into()),
    ] {
        assert_eq!(for_target(request, "a.test"), Err(refusal), "{request}");
    }
}

#[test]
fn row_11_tricks_in_an_absolute_target_are_refused() {
    for target in [
        "http://user@a.test/",
        "http://a.test@evil.test/",
        "http://a.test\\@evil.test/",
        "http://a.test%2f@evil.test/",
        "http://a.test%2fevil.test/",
        "http://a.test/#x",
        "http://a.test#@evil.test/",
        "http:///a.test/",
        "http://",
        "http:/a.test/",
        "/a#b",
        "/a\\b",
        "http://a.test/\\evil",
        "http://[::1/",
        "/a<b",
        "/a?b\"c",
    ] {
        let head = for_target(&format!("GET {target}"), "a.test");
        assert!(head.is_err(), "{target} became {head:?}");
    }
}

#[test]
fn row_29_host_and_target_must_agree() {
    for (request, host) in [
        ("GET http://a.test/", "evil.test"),
        ("GET http://a.test/", "a.test:8080"),
        ("GET http://a.test:8080/", "a.test"),
        ("CONNECT a.test:443", "evil.test"),
        ("CONNECT a.test:443", "a.test:80"),
    ] {
        assert_eq!(
            for_target(request, host),
            Err(BadHead::HostMismatch),
            "{request} {host}"
        );
    }
    assert!(for_target("CONNECT a.test:443", "A.test.:443").is_ok());
    assert_eq!(with_line("Host: a.test"), Err(BadHead::HostCount));
    assert_eq!(
        parse("GET / HTTP/1.1\r\nA: b\r\n\r\n"),
        Err(BadHead::HostCount)
    );
    assert_eq!(
        parse("GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n"),
        Err(BadHead::HostCount)
    );
    for host in [
        "",
        "a.test,b.test",
        "a b",
        "a.test/",
        "u@a.test",
        "a.test:",
        "a.test:0",
    ] {
        let head = for_target("GET /", host);
        assert!(
            matches!(head, Err(BadHead::Authority(_))),
            "{host:?}: {head:?}"
        );
    }
}

#[test]
fn row_32_a_body_has_one_length() {
    for (lines, refusal) in [
        (
            "Content-Length: 5\r\nTransfer-Encoding: chunked",
            BadHead::TwoFramings,
        ),
        (
            "Content-Length: 5\r\nContent-Length: 5",
            BadHead::ContentLength,
        ),
        (
            "Content-Length: 5\r\nContent-Length: 6",
            BadHead::ContentLength,
        ),
        ("Content-Length: 5, 5", BadHead::ContentLength),
        ("Content-Length: +5", BadHead::ContentLength),
        ("Content-Length: -5", BadHead::ContentLength),
        ("Content-Length: 0x5", BadHead::ContentLength),
        ("Content-Length: 5 5", BadHead::ContentLength),
        ("Content-Length:", BadHead::ContentLength),
        ("Content-Length: 9007199254740993", BadHead::ContentLength),
        (
            "Content-Length: 99999999999999999999",
            BadHead::ContentLength,
        ),
        ("Transfer-Encoding: xchunked", BadHead::TransferEncoding),
        (
            "Transfer-Encoding: chunked, identity",
            BadHead::TransferEncoding,
        ),
        (
            "Transfer-Encoding: gzip, chunked",
            BadHead::TransferEncoding,
        ),
        ("Transfer-Encoding: identity", BadHead::TransferEncoding),
        ("Transfer-Encoding: \"chunked\"", BadHead::TransferEncoding),
        ("Transfer-Encoding:", BadHead::TransferEncoding),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            BadHead::TransferEncoding,
        ),
    ] {
        assert_eq!(with_line(lines), Err(refusal), "{lines:?}");
    }
    let old = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(parse(old), Err(BadHead::TransferEncoding));
    let chunked = with_line("Transfer-Encoding: chunked").map(|head| head.framing);
    assert_eq!(chunked, Ok(Framing::Chunked));
    let largest = with_line("Content-Length: 9007199254740992").map(|head| head.framing);
    assert_eq!(largest, Ok(Framing::Length(BODY_BYTES_MAX)));
}

#[test]
fn row_32_lines_have_one_form() {
    for (line, refusal) in [
        ("A : b", BadHead::HeaderName),
        (": b", BadHead::HeaderName),
        ("A", BadHead::HeaderName),
        ("A B: c", BadHead::HeaderName),
        ("A(: b", BadHead::HeaderName),
        ("A: b\r\n c", BadHead::FoldedLine),
        ("A: b\r\n\tc: d", BadHead::FoldedLine),
        ("A: b\nc: d", BadHead::LineEnd),
        ("A: b\rc: d", BadHead::LineEnd),
        ("A: b\r\r", BadHead::LineEnd),
        ("A: b\0", BadHead::ForbiddenByte),
        ("A: b\x7f", BadHead::ForbiddenByte),
        ("A: b\x1b[2J", BadHead::ForbiddenByte),
        ("A: ä", BadHead::ForbiddenByte),
        ("Ä: b", BadHead::ForbiddenByte),
    ] {
        assert_eq!(with_line(line), Err(refusal), "{line:?}");
    }
    for (head, refusal) in [
        (
            "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            BadHead::EmptyFirstLine,
        ),
        ("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", BadHead::LineEnd),
        (" GET / HTTP/1.1\r\nHost: a\r\n\r\n", BadHead::RequestLine),
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", BadHead::RequestLine),
        ("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", BadHead::RequestLine),
        ("GET /\r\nHost: a\r\n\r\n", BadHead::RequestLine),
        ("GET /\tHTTP/1.1\r\nHost: a\r\n\r\n", BadHead::RequestLine),
        ("G@T / HTTP/1.1\r\nHost: a\r\n\r\n", BadHead::Method),
        ("GET / HTTP/1.2\r\nHost: a\r\n\r\n", BadHead::Version),
        ("GET / http/1.1\r\nHost: a\r\n\r\n", BadHead::Version),
        ("PRI * HTTP/2.0\r\n\r\n", BadHead::Version),
        ("GET / HTTP/1.1\r\nHost: a\r\n", BadHead::LineEnd),
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\nx", BadHead::LineEnd),
    ] {
        assert_eq!(parse(head), Err(refusal), "{head:?}");
    }
    let long = "A".repeat(METHOD_BYTES_MAX);
    assert!(for_target(&format!("{long} /"), "a.test").is_ok());
    assert_eq!(
        for_target(&format!("{long}A /"), "a.test"),
        Err(BadHead::Method)
    );
}

#[test]
fn row_33_what_comes_next_is_asked_for_plainly() {
    let upgrade = |lines: &str| with_line(lines).map(|head| head.upgrade);
    let websocket = "Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket";
    assert_eq!(upgrade(websocket), Ok(Some(Upgrade::WebSocket)));
    let other = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk";
    assert_eq!(upgrade(other), Ok(Some(Upgrade::Other("h2c".to_owned()))));
    assert_eq!(upgrade("Upgrade: websocket"), Ok(None));
    for lines in [
        "Connection: upgrade\r\nUpgrade: h2c, websocket",
        "Connection: upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c",
        "Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 3",
    ] {
        assert_eq!(upgrade(lines), Err(BadHead::Upgrade), "{lines:?}");
    }
    assert_eq!(with_line("Expect: 200-ok"), Err(BadHead::Expect));
}

#[test]
fn row_34_a_get_may_have_a_body_that_is_framed() {
    let get = with_line("Content-Length: 3").map(|head| head.framing);
    assert_eq!(get, Ok(Framing::Length(3)));
    let connect = "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\nContent-Length: ";
    assert!(parse(&format!("{connect}0\r\n\r\n")).is_ok());
    assert_eq!(
        parse(&format!("{connect}1\r\n\r\n")),
        Err(BadHead::UnexpectedBody)
    );
}

#[test]
fn row_35_connection_that_names_host_is_refused() {
    assert_eq!(
        with_line("Connection: close, Host"),
        Err(BadHead::Connection)
    );
    let head = with_line("Connection: X-A\r\nX-A: b").expect("it is good");
    assert!(head.hop_by_hop.ends_here("x-a"));
}

#[test]
fn row_55_a_head_is_bounded() {
    let lines = |count: usize| vec!["a: b"; count].join("\r\n");
    assert!(with_line(&lines(HEADERS_MAX - 1)).is_ok());
    assert_eq!(with_line(&lines(HEADERS_MAX)), Err(BadHead::TooManyHeaders));
    let base = with_line("A: ").expect("it is good");
    assert_eq!(base.headers.as_slice().len(), 2);
    let overhead = "GET / HTTP/1.1\r\nHost: a.test\r\nA: \r\n\r\n".len();
    let long = |bytes: usize| format!("A: {}", "x".repeat(bytes));
    assert!(with_line(&long(HEAD_BYTES_MAX - overhead)).is_ok());
    assert_eq!(
        with_line(&long(HEAD_BYTES_MAX - overhead + 1)),
        Err(BadHead::TooLong)
    );
    // Also when the end never comes.
    let endless = vec![b'a'; HEAD_BYTES_MAX + 1];
    assert_eq!(HeadReader::default().read(&endless), Err(BadHead::TooLong));
    assert_eq!(BadHead::TooLong.status(), 431);
}

#[test]
fn a_head_may_arrive_in_pieces() {
    let stream = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\nrest";
    let head_bytes = stream.len() - 4;
    let mut reader = HeadReader::default();
    for end in 0..head_bytes {
        assert_eq!(reader.read(&stream[..end]), Ok(None));
    }
    assert_eq!(reader.read(stream), Ok(Some(head_bytes)));
}
