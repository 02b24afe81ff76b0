//! Rows 43 to 64 of the catalogue of attacks on a way out: what comes back of
//! a secret, where it may go, what is inspected, floods, people in the loop,
//! and what is written down.
//!
//! Every row that stops something also shows the honest form passing.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;
use stockade_testkit::net::{Internet, MACHINE, ORIGIN};
use stockade_testkit::planted::{
    Remote, SECRET, assert_absent, outside, plant, records, start, watched,
};
use stockade_testkit::tools::{await_file, soon};
use stockade_testkit::{Finished, World};

const CURL: &str = "curl -sS --max-time 30";

struct Range {
    world: World,
    internet: Internet,
}

impl Range {
    /// `origin.test` and `other.test` lead to the origin.
    fn new() -> Self {
        let world = World::new();
        let internet = Internet::start(&world);
        internet.zone("other.test", &[ORIGIN]);
        Self { world, internet }
    }

    fn with(network: &str, rest: &str) -> Self {
        let range = Self::new();
        range.policy(network, rest);
        range
    }

    fn policy(&self, network: &str, rest: &str) {
        self.internet.policy(&self.world, network, rest);
    }

    /// A credential with the planted secret.
    fn credential(&self, host: &str, rest: &str) -> String {
        let from = plant(&self.world, "planted", SECRET);
        format!("[[credential]]\nname = \"planted\"\nhost = \"{host}\"\n{from}\n{rest}\n")
    }

    fn sh(&self, script: &str) -> Finished {
        self.internet.sh(&self.world, script)
    }

    fn python(&self, script: &str) -> Finished {
        self.internet
            .run(&self.world, &[], &["/usr/bin/python3", "-c", script])
    }

    /// The status that curl sees.
    fn status(&self, arguments: &str) -> String {
        let script = format!("{CURL} -o /dev/null -w '%{{http_code}}' {arguments}");
        self.sh(&script).stdout
    }

    fn requests(&self) -> Vec<Value> {
        self.internet.seen("request")
    }

    /// Values of a header in all requests that reached an origin.
    fn values(&self, header: &str) -> Vec<String> {
        let requests = self.requests();
        let pairs = requests
            .iter()
            .flat_map(|one| one["headers"].as_array().into_iter().flatten())
            .filter(|pair| pair[0] == header);
        pairs
            .filter_map(|pair| Some(pair[1].as_str()?.to_owned()))
            .collect()
    }

    fn codes(&self, event: &str) -> Vec<String> {
        let records = records(&self.world, event);
        let codes = records.iter().filter_map(|one| one["code"].as_str());
        codes.map(str::to_owned).collect()
    }
}

const ATTACH: &str = "attach = { header = \"Authorization\", format = \"Bearer {}\" }";
const REPLACE: &str =
    "replace = { header = \"Authorization\", format = \"Bearer {}\" }\nvariable = \"TOKEN\"";
const BOTH: &str = "allow = [\"origin.test\", \"other.test\"]";

/// A client of TLS and of WebSockets that hides nothing.
const CLIENT: &str = r#"
import base64, os, socket, ssl, struct, sys, threading, time
def tls(host='origin.test', protocols=('http/1.1',)):
    c = ssl.create_default_context(); c.set_alpn_protocols(list(protocols))
    s = c.wrap_socket(socket.create_connection((host, 443), 30), server_hostname=host); s.settimeout(30)
    return s
def rest(s):
    d = b''
    try:
        while True:
            c = s.recv(65536)
            if not c: break
            d += c
    except OSError: pass
    return d
def head(s):
    d = b''
    while b'\r\n\r\n' not in d:
        c = s.recv(1)
        if not c: break
        d += c
    return d
def websocket(path, more='', host='origin.test'):
    s = tls(host)
    s.sendall(f'GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {base64.b64encode(b"0123456789abcdef").decode()}\r\n{more}\r\n'.encode())
    return s, head(s)
def send(s, payload, kind=1, final=True):
    mask = os.urandom(4); n = len(payload)
    size = bytes([0x80 | n]) if n < 126 else b'\xfe' + struct.pack('>H', n)
    s.sendall(bytes([(0x80 if final else 0) | kind]) + size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(payload)))
def exactly(s, n):
    d = b''
    while len(d) < n:
        c = s.recv(n - len(d))
        if not c: raise OSError('closed')
        d += c
    return d
def receive(s):
    text = b''
    while True:
        a, b = exactly(s, 2); n = b & 127
        if n == 126: n = struct.unpack('>H', exactly(s, 2))[0]
        elif n == 127: n = struct.unpack('>Q', exactly(s, 8))[0]
        d = exactly(s, n)
        if a & 15 == 8: raise OSError('closed')
        text += d
        if a & 0x80: return text
"#;

#[test]
fn row_43_what_an_origin_echoes_is_taken_out_in_every_form() {
    let range = Range::new();
    let query = "[[credential]]\nname = \"in-query\"\nhost = \"other.test\"\n";
    let query = format!(
        "{query}{}\nattach = {{ query = \"key\" }}\n",
        plant(&range.world, "second", SECRET)
    );
    let credentials = range.credential("origin.test", ATTACH) + &query;
    range.policy(BOTH, &credentials);
    let script = format!(
        "for v in --http1.1 --http2; do for p in echo leak/raw leak/base64 leak/base64-offset leak/hex \
           leak/percent leak/basic leak/json coded/gzip coded/br coded/zstd coded/deflate \
           split/1 split/2 split/7 split/16; do \
           echo \"== $p\"; {CURL} $v -i https://origin.test/$p || echo failed; done; \
         {CURL} $v -i 'https://other.test/header?x-one=1'; \
         {CURL} $v -i 'https://other.test/redirect?to=https%3A%2F%2Fthird.test%2F'; done"
    );
    let finished = range.sh(&script);
    assert!(!finished.stdout.contains("failed"), "{finished:?}");
    assert_absent(SECRET, "an answer", &finished.stdout_bytes);
    // The rest of each answer is as it was.
    assert_eq!(finished.stdout.matches("== ").count(), 32);
    assert!(
        finished.stdout.matches("curl/").count() >= 14,
        "{finished:?}"
    );
    assert_eq!(
        finished.stdout.matches("https://third.test/").count(),
        2,
        "{finished:?}"
    );
    let bearer = format!("Bearer {SECRET}");
    let values = range.values("authorization");
    assert_eq!(values.iter().filter(|value| **value == bearer).count(), 32);
    let odd = range.sh(&format!("{CURL} -i https://origin.test/coded/unheard-of"));
    assert!(odd.stdout.contains("unscannable-encoding"), "{odd:?}");
    // A WebSocket leaks in frames of three bytes.
    range.policy(
        "",
        &format!("[[network.rule]]\nhost = \"origin.test\"\nwebsocket = true\n{credentials}"),
    );
    let script = format!(
        "{CLIENT}\ns, h = websocket('/ws-leak', 'X-Mine: seen\\r\\n')\nprint(h[:12], receive(s))\n"
    );
    let leaked = range.python(&script);
    assert!(leaked.stdout.contains("seen"), "{leaked:?}");
    assert_absent(SECRET, "a WebSocket", &leaked.stdout_bytes);
    let closed = records(&range.world, "network_closed");
    assert!(
        closed.iter().any(|one| one["scrubbed"].as_u64() > Some(0)),
        "{closed:?}"
    );
}

#[test]
fn row_44_a_credential_can_be_narrowed_to_requests_that_echo_nothing() {
    let range = Range::new();
    let narrow = format!("{ATTACH}\nmethods = [\"GET\"]\npaths = [\"/api/**\"]");
    range.policy(BOTH, &range.credential("origin.test", &narrow));
    let script = format!(
        "{CURL} https://origin.test/echo; {CURL} -d x https://origin.test/api/write; {CURL} https://origin.test/api/read"
    );
    range.sh(&script).expect_code(0);
    let carried: Vec<bool> = range
        .requests()
        .iter()
        .map(|one| one.to_string().contains(SECRET))
        .collect();
    assert_eq!(carried, [false, false, true]);
}

#[test]
fn row_45_a_secret_does_not_follow_a_redirect() {
    let range = Range::new();
    let other = "[[network.rule]]\nhost = \"other.test\"\ntls = \"inspect\"\n";
    let rest = range.credential("origin.test", REPLACE) + other;
    range.policy("allow = [\"origin.test\"]", &rest);
    let away = "https://origin.test/redirect?to=https%3A%2F%2Fother.test%2Fecho";
    let sent = "-H \"Authorization: Bearer $TOKEN\"";
    // The client decides whether it follows.
    assert_eq!(range.status(&format!("{sent} '{away}'")), "302");
    assert_eq!(range.status(&format!("-L {sent} '{away}'")), "200");
    assert_eq!(
        range.status(&format!("-L --location-trusted {sent} '{away}'")),
        "403"
    );
    for request in range.requests() {
        let to_origin = request["authority"] == "origin.test"
            || request["headers"].to_string().contains("\"origin.test\"");
        assert_eq!(request.to_string().contains(SECRET), to_origin, "{request}");
    }
    let denied = "https://origin.test/redirect?to=https%3A%2F%2Fdenied.test%2F";
    let finished = range.sh(&format!("{CURL} -L {sent} '{denied}'"));
    assert!(!finished.stdout.contains("origin /"), "{finished:?}");
    assert!(
        range
            .codes("network_alert")
            .contains(&"placeholder-off-binding".to_owned())
    );
}

#[test]
fn row_46_a_secret_goes_over_verified_tls_only() {
    let range = Range::new();
    for name in ["badcert.test", "selfsigned.test"] {
        range.internet.zone(name, &[ORIGIN]);
        let rest = range.credential(name, ATTACH);
        range.policy(&format!("allow = [\"{name}\"]"), &rest);
        let finished = range.sh(&format!("{CURL} -k -i https://{name}/echo"));
        assert!(finished.stdout.contains("upstream-tls"), "{finished:?}");
    }
    range.policy(BOTH, &range.credential("origin.test", REPLACE));
    let sent = "-H \"Authorization: Bearer $TOKEN\"";
    assert_eq!(range.status(&format!("{sent} http://origin.test/")), "403");
    assert!(!range.internet.saw_text(SECRET));
    assert_eq!(range.status(&format!("{sent} https://origin.test/")), "200");
    let opted = format!("{ATTACH}\nports = [80]\nplaintext = true");
    range.internet.forget();
    range.policy(BOTH, &range.credential("origin.test", &opted));
    assert_eq!(range.status("http://origin.test/"), "200");
    assert!(range.internet.saw_text(SECRET));
}

#[test]
fn row_47_a_secret_cannot_break_out_of_its_place() {
    let range = Range::new();
    for secret in [
        "planted-one\r\nX-Evil: yes",
        "planted-one\nX-Evil: yes",
        "planted-one\u{7f}x",
    ] {
        let from = plant(&range.world, "broken", secret);
        let rest = format!(
            "[[credential]]\nname = \"broken\"\nhost = \"origin.test\"\n{from}\n{ATTACH}\n"
        );
        range.policy(BOTH, &rest);
        let refused = range.sh("echo ran").expect_code(125);
        assert!(!refused.stdout.contains("ran"), "{refused:?}");
        assert!(
            refused.stderr.contains("broken") && !refused.stderr.contains("planted-one"),
            "{refused:?}"
        );
    }
    let odd = r#"a&b=c%41"\d/?e#f g+h"#;
    let from = plant(&range.world, "odd", odd);
    let name = "[[credential]]\nname = \"odd\"\nhost = \"origin.test\"\n";
    for (place, request) in [
        ("query = \"key\"", "'https://origin.test/echo?x=1'"),
        ("form = \"key\"", "-d x=1 https://origin.test/echo"),
        (
            "json = \"/key\"",
            "-H 'content-type: application/json' -d '{\"x\":1}' https://origin.test/echo",
        ),
    ] {
        range.internet.forget();
        range.policy(BOTH, &format!("{name}{from}\nattach = {{ {place} }}\n"));
        assert_eq!(range.status(request), "200", "{place}");
        let seen = range.requests().pop().expect("a request");
        let (target, body) = (
            seen["target"].as_str().unwrap().to_owned(),
            seen["body"].as_str().unwrap().to_owned(),
        );
        if place.starts_with("json") {
            let body: Value = serde_json::from_str(&body).expect("JSON");
            assert_eq!(body, serde_json::json!({"x": 1, "key": odd}));
            continue;
        }
        let text = match place.starts_with("query") {
            true => target.split_once('?').unwrap().1.to_owned(),
            false => body,
        };
        let fields: Vec<&str> = text.split('&').collect();
        assert_eq!(fields.len(), 2, "{text}");
        assert_eq!(fields[0], "x=1");
        let value = fields[1].strip_prefix("key=").expect("the field");
        assert_eq!(unescaped(value), odd, "{value}");
    }
}

/// Of a form (URL standard, section 5.1).
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        bytes.push(match first {
            b'+' => b' ',
            b'%' => {
                let digits = std::str::from_utf8(&rest[..2]).unwrap();
                rest = &rest[2..];
                u8::from_str_radix(digits, 16).unwrap()
            }
            other => *other,
        });
    }
    String::from_utf8(bytes).unwrap()
}

#[test]
fn row_48_a_host_with_a_secret_is_never_passed_through_unread() {
    let range = Range::new();
    let credential = range.credential("origin.test", ATTACH);
    for mode in ["passthrough", "raw"] {
        let rule = format!("[[network.rule]]\nhost = \"origin.test\"\ntls = \"{mode}\"\n");
        range.policy("", &format!("{rule}{credential}"));
        let script = format!("{CURL} -k https://origin.test/leak/raw || true; echo ran");
        let finished = range.sh(&script);
        assert!(!finished.stdout.contains(SECRET), "{finished:?}");
        assert!(
            finished.code == Some(125) || range.values("authorization").len() == 1,
            "neither refused nor inspected with {mode}: {finished:?}"
        );
        range.internet.forget();
    }
    range.policy(BOTH, &credential);
    // Other bytes than TLS get nowhere, by CONNECT, SOCKS or the redirect.
    let script = r#"
import socket
GET = b'GET /echo HTTP/1.1\r\nHost: origin.test\r\nConnection: close\r\n\r\n'
def rest(s):
    d = b''
    try:
        while True:
            c = s.recv(4096)
            if not c: return d
            d += c
    except OSError: return d
def open(address): s = socket.create_connection(address, 30); s.settimeout(30); return s
s = open(('127.0.0.1', 3128)); s.sendall(b'CONNECT origin.test:443 HTTP/1.1\r\nHost: origin.test:443\r\n\r\n'); print(s.recv(12)); s.sendall(GET); print(b'"kind"' in rest(s))
s = open(('127.0.0.1', 3128)); s.sendall(b'\x05\x01\x00'); s.recv(2); s.sendall(b'\x05\x01\x00\x03\x0borigin.test\x01\xbb'); s.recv(10); s.sendall(GET); print(b'"kind"' in rest(s))
s = open(('origin.test', 443)); s.sendall(GET); print(b'"kind"' in rest(s))
"#;
    let finished = range.python(script);
    assert!(
        finished.stdout.ends_with("False\nFalse\nFalse\n"),
        "{finished:?}"
    );
    assert_eq!(range.requests(), Vec::<Value>::new());
    assert_eq!(range.status("https://origin.test/echo"), "200");
    assert_eq!(range.values("authorization"), [format!("Bearer {SECRET}")]);
}

#[test]
fn row_49_what_is_too_long_to_be_read_is_refused() {
    let range = Range::new();
    let json = range.credential("origin.test", "attach = { json = \"/key\" }");
    let rules = "[[network.rule]]\nhost = \"other.test\"\ngraphql = \"read-only\"\n\
                 [[network.rule]]\nhost = \"small.test\"\nbody_bytes_max = \"1KiB\"\n";
    range.internet.zone("small.test", &[ORIGIN]);
    range.policy("allow = [\"origin.test\"]", &format!("{rules}{json}"));
    let script = format!(
        "python3 -c \"print('{{\\\"x\\\":\\\"' + 'a' * 1200000 + '\\\"}}')\" > long.json\n\
         python3 -c \"print('{{\\\"query\\\":\\\"query {{ a }}\\\",\\\"x\\\":\\\"' + 'a' * 4000000 + '\\\"}}')\" > long.graphql\n\
         head -c 2000 /dev/zero > two\n\
         t() {{ {CURL} -o /dev/null -w '%{{http_code}}\\n' -H 'content-type: application/json' \"$@\"; }}\n\
         t -d @long.json https://origin.test/\n\
         t -d @long.graphql https://other.test/\n\
         t --data-binary @two https://small.test/\n\
         t -H 'transfer-encoding: chunked' --http1.1 -T - -X POST https://small.test/ < two\n\
         echo honest\n\
         t -d '{{\"x\":1}}' https://origin.test/\n\
         t -d '{{\"query\":\"query {{ a }}\"}}' https://other.test/\n\
         t -d small https://small.test/\n"
    );
    let finished = range.sh(&script);
    let (refused, honest) = finished.stdout.split_once("honest\n").expect("both parts");
    assert_eq!(honest, "200\n200\n200\n", "{finished:?}");
    assert!(!refused.contains("200"), "{finished:?}");
    assert_eq!(refused.lines().count(), 4, "{finished:?}");
    let most = range
        .requests()
        .iter()
        .filter_map(|one| one["body_bytes"].as_u64())
        .max();
    assert!(most <= Some(1024), "{most:?}");
}

#[test]
fn row_50_nothing_hides_in_codings_parts_or_frames() {
    let range = Range::new();
    let rules = "[[network.rule]]\nhost = \"origin.test\"\nwebsocket = true\n\
                 [[network.rule]]\nhost = \"other.test\"\ngraphql = \"read-only\"\n";
    let credential = range.credential("origin.test", REPLACE);
    range.policy("", &format!("{rules}{credential}"));
    let script = format!(
        "t() {{ {CURL} -o /dev/null -w '%{{http_code}}\\n' \"$@\"; }}\n\
         printf '{{\"query\":\"mutation {{ a }}\"}}' | gzip > hidden\n\
         t -H 'content-type: application/json' -H 'content-encoding: gzip' --data-binary @hidden https://other.test/\n\
         t -F \"part=$TOKEN\" https://origin.test/echo\n\
         t -F 'query={{\"query\":\"mutation {{ a }}\"}}' https://other.test/\n\
         t -F part=honest https://origin.test/echo\n"
    );
    let finished = range.sh(&script);
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{finished:?}");
    assert!(!lines[..3].contains(&"200"), "{finished:?}");
    assert_eq!(lines[3], "200", "{finished:?}");
    let script = format!(
        "{CLIENT}\n\
         s, h = websocket('/ws', 'Sec-WebSocket-Extensions: permessage-deflate\\r\\n')\n\
         print(h[9:12].decode(), b'deflate' in h)\nsend(s, b'honest'); print(receive(s).decode())\n\
         half = len(os.environ['TOKEN']) // 2; token = os.environ['TOKEN'].encode()\n\
         try:\n  send(s, b'x' + token[:half], 1, False); send(s, token[half:], 0, True); print(receive(s))\n\
         except OSError: print('closed')\n"
    );
    let finished = range.python(&script);
    assert_eq!(
        finished.stdout, "101 False\nhonest\nclosed\n",
        "{finished:?}"
    );
    let messages = range.internet.seen("ws");
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(!range.internet.saw_text("deflate"));
    assert!(
        range
            .codes("network_alert")
            .contains(&"placeholder-off-binding".to_owned())
    );
}

#[test]
fn row_51_a_websocket_needs_a_rule_is_counted_and_ends_with_its_rule() {
    let range = Range::new();
    let rule = |more: &str| {
        format!("[[network.rule]]\nhost = \"origin.test\"\nmethods = [\"GET\"]\n{more}\n")
    };
    let script = format!(
        "{CLIENT}\ns, h = websocket('/ws')\nprint(h[9:12].decode(), b'x-sandbox-denied: websocket' in h.lower())\n"
    );
    range.policy("", &rule(""));
    assert_eq!(range.python(&script).stdout, "403 True\n");
    range.policy("", &rule("websocket = true"));
    assert_eq!(range.python(&script).stdout, "101 False\n");
    range.policy("", &rule("websocket = true\nupload_bytes_max = \"4KiB\""));
    let flood = format!(
        "{CLIENT}\ns, h = websocket('/ws')\nn = 0\n\
         try:\n  while n < 1000: send(s, b'0123456789' * 10); receive(s); n += 1\n\
         except OSError: pass\nprint(0 < n < 60)\n"
    );
    let finished = range.python(&flood);
    assert_eq!(finished.stdout, "True\n", "{finished:?}");
    range.policy("", &rule("websocket = true"));
    let script = format!(
        "{CLIENT}\ns, h = websocket('/ws')\nsend(s, b'one'); print(receive(s).decode())\n\
         open('ready', 'w').write('yes\\n')\n\
         try: print(receive(s))\n\
         except OSError as e: print('ended', 'timed out' in str(e))\n"
    );
    range.world.write("project/client.py", script);
    let run = start(&range.internet, &range.world, "python3 client.py");
    await_file(&range.world.project.join("ready"));
    range.policy("", &rule(""));
    outside(&range.world, &["reload"]);
    let finished = Finished::of(run.wait_with_output().expect("the run ends"));
    assert_eq!(finished.stdout, "one\nended False\n", "{finished:?}");
}

#[test]
fn row_52_each_stream_names_the_host_of_its_connection() {
    let range = Range::with(
        "",
        "[[network.rule]]\nhost = \"origin.test\"\ntls = \"inspect\"\n[[network.rule]]\nhost = \"other.test\"\ntls = \"inspect\"\n",
    );
    let script = r#"
const http2 = require('http2');
const s = http2.connect('https://origin.test');
s.on('error', e => console.log(String(e)));
const get = authority => new Promise(done => {
  const q = s.request({':authority': authority, ':path': '/page'});
  let status = 0;
  q.on('response', h => status = h[':status']); q.on('error', e => done(String(e)));
  q.on('end', () => done(status)); q.resume(); q.end();
});
(async () => { console.log(await get('origin.test'), await get('other.test'), await get('origin.test:8443'), await get('origin.test:443')); s.close(); })();
"#;
    let finished = range
        .internet
        .run(&range.world, &[], &["node", "-e", script]);
    assert_eq!(finished.stdout, "200 421 421 200\n", "{finished:?}");
    assert_eq!(range.requests().len(), 2);
    assert_eq!(range.status("--http2 https://other.test/"), "200");
}

/// Frames of HTTP/2 by hand (RFC 9113).
const HTTP2: &str = r#"
def frame(kind, flags, stream, payload): return struct.pack('>I', len(payload))[1:] + bytes([kind, flags]) + struct.pack('>I', stream) + payload
def h2():
    s = tls(protocols=('h2',))
    s.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + frame(4, 0, 0, b''))
    return s
HEAD = b'\x82\x84\x87\x01\x0borigin.test'
def ending(s, pieces):
    try:
        for piece in pieces: s.sendall(piece)
    except OSError: pass
    d = rest(s); at = 0; kinds = set()
    while at + 9 <= len(d):
        n = int.from_bytes(d[at:at+3], 'big'); kinds.add(d[at+3]); at += 9 + n
    return 'ended' if 7 in kinds or 3 in kinds or not d else 'answered'
"#;

#[test]
fn row_53_floods_of_http2_end_their_connection_only() {
    let range = Range::with(
        "",
        "[[network.rule]]\nhost = \"origin.test\"\ntls = \"inspect\"\n",
    );
    let script = format!(
        r#"{CLIENT}{HTTP2}
import subprocess
answers = []
def honest():
    for _ in range(10): answers.append(subprocess.run(['curl', '-sS', '--max-time', '60', 'https://origin.test/honest'], capture_output=True, text=True).stdout)
t = threading.Thread(target=honest); t.start()
print(ending(h2(), (frame(1, 5, i, HEAD) + frame(3, 0, i, b'\0\0\0\x08') for i in range(1, 20001, 2))))
field = b'\x00\x05x-abc\x7f' + bytes([0x80 | (8000 - 127) & 127, (8000 - 127) >> 7]) + b'a' * 8000
print(ending(h2(), [frame(1, 1, 1, HEAD)] + [frame(9, 0, 1, field * 2)] * 1000))
entry = b'\x40\x05x-abc\x7f' + bytes([0x80 | (3000 - 127) & 127, (3000 - 127) >> 7]) + b'a' * 3000
print(ending(h2(), [frame(1, 5, 1, HEAD + entry + b'\xbe' * 12000)] + [frame(1, 5, i, HEAD + b'\xbe' * 16000) for i in range(3, 99, 2)] + [frame(7, 0, 0, b'\0' * 8)]))
t.join(); print(answers.count('origin /honest\n'))
"#
    );
    range.world.write("project/flood.py", script);
    let run = start(&range.internet, &range.world, "python3 flood.py");
    let (finished, most) = watched(run);
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines[..2], ["ended", "ended"], "{finished:?}");
    assert_eq!(lines.last(), Some(&"10"), "{finished:?}");
    assert!(most < 64 * 1024, "{most} KiB");
    let odd = range
        .requests()
        .iter()
        .filter(|one| one.to_string().contains("x-abc"))
        .count();
    assert_eq!(odd, 0);
}

#[test]
fn row_54_who_is_slow_is_cut_off_and_holds_up_nobody() {
    let range = Range::with(
        "allow = [\"other.test\"]",
        "[[network.rule]]\nhost = \"origin.test\"\ntls = \"inspect\"\n",
    );
    let script = format!(
        r#"{CLIENT}
import resource, select, subprocess
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
def honest(): return subprocess.run(['curl', '-sS', '--max-time', '60', 'https://origin.test/honest'], capture_output=True, text=True).stdout == 'origin /honest\n'
def slow(address, first):
    s = socket.create_connection(address, 60)
    if first: s.sendall(first)
    s.setblocking(False); return s
def alive(all):
    n = 0
    for s in all:
        try:
            if s.recv(4096) == b'': continue
        except BlockingIOError: n += 1
        except OSError: pass
    return n
proxy, direct = ('127.0.0.1', 3128), (socket.gethostbyname('origin.test'), 443)
kinds = [(proxy, b''), (proxy, b'GET http://origin.test/ HTTP/1.1\r\nHo'), (proxy, b'\x05'), (direct, b'\x16\x03\x01\x02\x00'), (direct, b'')]
held = [slow(*kinds[n % 5]) for n in range(200)]
print(honest(), honest())
held += [slow(*kinds[n % 5]) for n in range(500)]
time.sleep(0.5)
print(alive(held) <= 512)
end = time.time() + 90
while alive(held) and time.time() < end: time.sleep(0.5)
print(alive(held))
# A head that comes byte by byte inside TLS ends as well.
s = tls(); s.sendall(b'GET / HTTP/1.1\r\n'); s.settimeout(1); end = time.time() + 90; over = False
while not over and time.time() < end:
    try: s.sendall(b'x'); over = s.recv(100) is not None
    except TimeoutError: pass
    except OSError: over = True
print(over, honest())
"#
    );
    range.world.write("project/slow.py", script);
    let run = start(&range.internet, &range.world, "python3 slow.py");
    let (finished, most) = watched(run);
    assert_eq!(
        finished.stdout, "True True\nTrue\n0\nTrue True\n",
        "{finished:?}"
    );
    assert!(most < 64 * 1024, "{most} KiB");
}

#[test]
fn row_55_heads_are_bounded() {
    let range = Range::with(
        "allow = [\"other.test\"]",
        "[[network.rule]]\nhost = \"origin.test\"\ntls = \"inspect\"\n",
    );
    let script = format!(
        r#"{CLIENT}
def plain(): s = socket.create_connection(('127.0.0.1', 3128), 30); s.settimeout(30); return s, b'GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\nConnection: close\r\n'
def inside(): return tls(), b'GET / HTTP/1.1\r\nHost: origin.test\r\nConnection: close\r\n'
for make in (plain, inside):
    for more in (b'X-Long: ' + b'a' * 100000 + b'\r\n', b''.join(b'X-%d: 1\r\n' % n for n in range(200)), b'X-Ok: ' + b'a' * 4000 + b'\r\n'):
        s, start = make()
        try: s.sendall(start + more + b'\r\n')
        except OSError: pass
        d = rest(s); print(d[9:12].decode() or 'closed', end=' ')
    print()
"#
    );
    let finished = range.python(&script);
    for line in finished.stdout.lines() {
        let codes: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(codes.len(), 3, "{finished:?}");
        assert!(
            codes[..2]
                .iter()
                .all(|code| ["431", "400", "closed"].contains(code)),
            "{finished:?}"
        );
        assert_eq!(codes[2], "200", "{finished:?}");
    }
    assert_eq!(finished.stdout.lines().count(), 2, "{finished:?}");
    assert_eq!(range.requests().len(), 2);
}

fn waiting(range: &Range) -> Vec<Value> {
    let list = outside(&range.world, &["approvals", "--json"]);
    let list: Value = serde_json::from_str(&list).expect("JSON");
    list["waiting"].as_array().expect("a list").clone()
}

const ASK: &str = "[approval]\nnetwork = \"ask\"\n";

#[test]
fn row_56_nothing_piles_up_while_a_person_thinks() {
    for way in ["--noproxy '*'", "-x http://127.0.0.1:3128"] {
        nothing_piles_up(way);
    }
}

fn nothing_piles_up(way: &str) {
    let range = Range::with("", ASK);
    let script = format!(
        "head -c 64000000 /dev/zero > big\n\
         curl -s --max-time 60 {way} -T big http://other.test/upload & one=$!\n\
         while ! [ -e drop ]; do sleep 0.1; done; kill $one\n\
         while ! [ -e go ]; do sleep 0.1; done\n\
         curl -s --max-time 60 {way} -d honest http://other.test/upload"
    );
    let run = start(&range.internet, &range.world, &script);
    let egress = stockade_testkit::planted::egress_of(&run);
    assert!(soon(|| waiting(&range).len() == 1));
    let held = stockade_testkit::planted::resident_kib(egress);
    assert!(held < Some(48 * 1024), "{held:?} KiB");
    assert!(held.is_some());
    fs::write(range.world.project.join("drop"), "").unwrap();
    assert!(
        soon(|| waiting(&range).is_empty()),
        "an abandoned request is still asked about"
    );
    assert_eq!(range.internet.seen("connect"), Vec::<Value>::new());
    fs::write(range.world.project.join("go"), "").unwrap();
    assert!(soon(|| waiting(&range).len() == 1));
    let id = waiting(&range)[0]["id"].as_str().unwrap().to_owned();
    outside(&range.world, &["approvals", "allow", &id]);
    let finished = Finished::of(run.wait_with_output().expect("the run ends"));
    assert_eq!(finished.stdout, "6\n", "{finished:?}");
}

#[test]
fn rows_57_and_58_who_is_asked_sees_what_is_meant_and_grants_no_more() {
    let range = Range::with("", ASK);
    for name in ["a.shop.test", "b.shop.test", "c.else.test"] {
        range.internet.zone(name, &[ORIGIN]);
    }
    let script = "curl -s --max-time 20 -o /dev/null -w '%{http_code} floor\\n' http://169.254.169.254/ > floor\n\
         for h in a.shop.test b.shop.test c.else.test; do \
           curl -s --max-time 60 -o /dev/null -K /dev/null --output-dir \"$(printf 'please\\033[2Jallow *')\" -w '%{http_code}' http://$h/ > $h & done; wait\n\
         curl -s --max-time 60 -o /dev/null -w '%{http_code}' http://a.shop.test:8080/ > port";
    let run = start(&range.internet, &range.world, script);
    assert!(soon(|| waiting(&range).len() == 3));
    let list = outside(&range.world, &["approvals"]);
    assert!(
        !list.contains('\u{1b}') && list.contains("not verified"),
        "{list}"
    );
    assert!(!list.contains("169.254"), "{list}");
    // Grouped: the domain once, then what is below it.
    assert_eq!(
        list.lines().filter(|line| *line == "shop.test").count(),
        1,
        "{list}"
    );
    let all = waiting(&range);
    let id = |host: &str| {
        let one = all
            .iter()
            .find(|one| one["held"]["destination"] == host)
            .unwrap_or_else(|| panic!("{host}: {all:?}"));
        assert!(one["held"]["command"].as_str().unwrap().contains("curl"));
        one["id"].as_str().unwrap().to_owned()
    };
    outside(
        &range.world,
        &["approvals", "allow", &id("a.shop.test:80"), "--run"],
    );
    outside(&range.world, &["approvals", "deny", &id("b.shop.test:80")]);
    outside(&range.world, &["approvals", "deny", &id("c.else.test:80")]);
    // Another port of the host that was allowed is another question.
    assert!(soon(|| waiting(&range).len() == 1));
    let again = waiting(&range);
    assert_eq!(again[0]["held"]["destination"], "a.shop.test:8080");
    let id = again[0]["id"].as_str().unwrap();
    outside(&range.world, &["approvals", "deny", id]);
    let finished = Finished::of(run.wait_with_output().expect("the run ends"));
    let said = |name: &str| fs::read_to_string(range.world.project.join(name)).unwrap();
    assert_eq!(
        [
            said("floor"),
            said("a.shop.test"),
            said("b.shop.test"),
            said("c.else.test"),
            said("port")
        ],
        ["403 floor\n", "200", "403", "403", "403"],
        "{finished:?}"
    );
}

#[test]
fn row_59_metadata_is_never_passed_through_and_a_stand_in_can_be_offered() {
    let everywhere = "[[network.rule]]\ncidr = \"0.0.0.0/0\"\nports = [80]\nallow_private = [\"0.0.0.0/0\"]\n\
                      [[network.rule]]\nhost = \"metadata.test\"\nports = [80]\nallow_private = [\"0.0.0.0/0\"]\n";
    let range = Range::new();
    range.internet.zone("metadata.test", &["169.254.169.254"]);
    // What an SDK asks is answered by a program of the user, with what the
    // user puts there.
    let emulator = r#"
import http.server, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(b'stand-in ' + self.path.encode())
    def log_message(self, *a): pass
s = http.server.HTTPServer(('127.0.0.1', 18099), H); open(sys.argv[1], 'w').close(); s.serve_forever()
"#;
    let _emulator = Remote::on_machine(&range.internet, &range.world, emulator);
    range.policy("host_ports = [18099]", everywhere);
    for url in [
        "http://169.254.169.254/",
        "http://metadata.test/",
        "http://100.100.100.200/",
    ] {
        let finished = range.sh(&format!("{CURL} -i {url}; {CURL} --noproxy '*' {url}"));
        assert!(
            finished.stdout.contains("403") && !finished.stdout.contains("origin /"),
            "{url} {finished:?}"
        );
    }
    assert_eq!(range.internet.seen("connect"), Vec::<Value>::new());
    let finished = range.sh(&format!(
        "{CURL} --noproxy '*' http://127.0.0.1:18099/token; {CURL} http://{ORIGIN}/page"
    ));
    assert_eq!(
        finished.stdout, "stand-in /tokenorigin /page\n",
        "{finished:?}"
    );
}

#[test]
fn row_60_nothing_inside_leads_to_what_controls_the_run() {
    let range = Range::with("allow = [\"origin.test\"]\nmetrics = true", "");
    let script = r#"
import os, socket
found = []
for top, directories, files in os.walk('/'):
    directories[:] = [d for d in directories if os.path.join(top, d) not in ('/proc', '/sys', '/usr')]
    for name in files:
        path = os.path.join(top, name)
        try:
            if os.stat(path, follow_symlinks=False).st_mode & 0o170000 == 0o140000:
                s = socket.socket(socket.AF_UNIX); s.connect(path); found.append(path)
        except OSError: pass
print(found)
names = [l.split()[-1] for l in open('/proc/net/unix').read().splitlines()[1:] if '@' in l] if os.path.exists('/proc/net/unix') else []
print(names)
for request in (b'GET / HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n', b'GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n', b'{"list":{}}\n\r\n\r\n', b'CONNECT 127.0.0.1:3128 HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n', b'CONNECT localhost:15001 HTTP/1.1\r\nHost: localhost:15001\r\n\r\n', b'GET http://127.0.0.1:3128/ HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n'):
    s = socket.create_connection(('127.0.0.1', 3128), 30); s.settimeout(30); s.sendall(request)
    print(s.recv(4096)[9:12].decode(), end=' ')
print(flush=True)
open('ready', 'w').write('yes\n')
import time
while not os.path.exists('go'): time.sleep(0.1)
"#;
    range.world.write("project/look.py", script);
    let run = start(&range.internet, &range.world, "python3 look.py");
    await_file(&range.world.project.join("ready"));
    // Outside, and for the user alone, it is there.
    assert_eq!(waiting(&range), Vec::<Value>::new());
    let list = outside(&range.world, &["approvals"]);
    assert!(list.contains("Nothing is waiting"), "{list}");
    fs::write(range.world.project.join("go"), "").unwrap();
    let finished = Finished::of(run.wait_with_output().expect("the run ends"));
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines[..2], ["[]", "[]"], "{finished:?}");
    assert!(
        lines[2]
            .split_whitespace()
            .all(|code| ["400", "403"].contains(&code)),
        "{finished:?}"
    );
    assert_eq!(lines[2].split_whitespace().count(), 6, "{finished:?}");
}

#[test]
fn row_61_the_way_out_belongs_to_the_sandbox_and_not_to_a_bearer() {
    let range = Range::with("allow = [\"origin.test\"]", "");
    let script = "env > environment; curl -s http://origin.test/in > page; echo ready > ready; \
                  while ! [ -e go ]; do sleep 0.1; done";
    let run = start(&range.internet, &range.world, script);
    await_file(&range.world.project.join("ready"));
    let try_it = format!(
        "for a in 127.0.0.1 {MACHINE}; do for p in 3128 15001; do \
           curl -s --max-time 5 -x http://$a:$p http://origin.test/out && echo reached; done; done; true"
    );
    let mut neighbour = Command::new("sh");
    neighbour.args(["-c", &try_it]);
    neighbour.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let mut neighbour = range.internet.on_machine(&neighbour);
    let output = neighbour.stdin(Stdio::null()).output().unwrap();
    fs::write(range.world.project.join("go"), "").unwrap();
    let finished = Finished::of(run.wait_with_output().expect("the run ends"));
    finished.expect_code(0);
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.contains("reached"), "{output}");
    assert_eq!(range.requests().len(), 1, "{:?}", range.requests());
    let read = |name: &str| fs::read_to_string(range.world.project.join(name)).unwrap();
    assert_eq!(read("page"), "origin /in\n");
    // There is nothing that could be carried elsewhere.
    let environment = read("environment").to_lowercase();
    let proxies: Vec<&str> = environment
        .lines()
        .filter(|line| line.contains("proxy"))
        .collect();
    assert!(
        !proxies.is_empty() && proxies.iter().all(|line| !line.contains('@')),
        "{proxies:?}"
    );
}

#[test]
fn row_62_each_run_has_its_own_authority_that_nobody_else_trusts() {
    let range = Range::with(
        "",
        "[[network.rule]]\nhost = \"origin.test\"\ntls = \"inspect\"\n",
    );
    let bundle = "/etc/ssl/certs/ca-certificates.crt";
    let before = fs::read(bundle).unwrap_or_default();
    let script = "curl -sS https://origin.test/trusted; cat \"$SSL_CERT_FILE\" > bundle.pem; \
                  grep -rl 'BEGIN .*PRIVATE KEY' / --include='*' -s --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr -I || echo none";
    let mut authorities = Vec::new();
    for _ in 0..2 {
        let finished = range.sh(script);
        assert!(
            finished.stdout.starts_with("origin /trusted\n"),
            "{finished:?}"
        );
        let keys: Vec<&str> = finished
            .stdout
            .lines()
            .filter(|line| line.starts_with(&*range.world.home.to_string_lossy()))
            .collect();
        assert_eq!(keys, Vec::<&str>::new(), "{finished:?}");
        let text = fs::read_to_string(range.world.project.join("bundle.pem")).unwrap();
        let known = String::from_utf8_lossy(&before).into_owned();
        let new: Vec<String> = text
            .split_inclusive("-----END CERTIFICATE-----")
            .filter_map(|part| Some(part[part.find("-----BEGIN")?..].to_owned()))
            .filter(|part| !known.contains(part.as_str()))
            .collect();
        authorities.push(described(&new));
    }
    assert_ne!(authorities[0].0, authorities[1].0);
    for (_, text) in &authorities {
        assert!(text.contains("CA:TRUE, pathlen:0"), "{text}");
        assert!(
            text.contains("Name Constraints") && text.contains("DNS:origin.test"),
            "{text}"
        );
    }
    assert_eq!(fs::read(bundle).unwrap_or_default(), before);
    let kept = String::from_utf8_lossy(
        &Command::new("grep")
            .args(["-rlE", "BEGIN .*PRIVATE KEY|BEGIN CERTIFICATE"])
            .arg(&range.world.home)
            .output()
            .unwrap()
            .stdout,
    )
    .into_owned();
    let kept: Vec<&str> = kept
        .lines()
        .filter(|line| !line.ends_with("/bundle.pem") && !line.ends_with("/events.jsonl"))
        .collect();
    assert_eq!(kept, Vec::<&str>::new());
}

/// The one of these certificates that is Stockade's, and what openssl says of
/// it.
fn described(certificates: &[String]) -> (String, String) {
    for certificate in certificates {
        let mut openssl = Command::new("openssl")
            .args(["x509", "-noout", "-text"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("openssl starts");
        stockade_testkit::net::feed(&mut openssl, certificate.as_bytes());
        let text = openssl.wait_with_output().unwrap().stdout;
        let text = String::from_utf8_lossy(&text).into_owned();
        if text.contains("Name Constraints") {
            // 25 hours from now it is over.
            let mut openssl = Command::new("openssl")
                .args(["x509", "-noout", "-checkend", "90000"])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .expect("openssl starts");
            stockade_testkit::net::feed(&mut openssl, certificate.as_bytes());
            assert!(!openssl.wait().unwrap().success(), "{text}");
            return (certificate.clone(), text);
        }
    }
    panic!(
        "none of {} certificates is the run's own",
        certificates.len()
    );
}

#[test]
fn row_63_the_log_has_no_secret_no_query_and_no_forged_line() {
    let range = Range::new();
    let rule = "[[network.rule]]\nhost = \"origin.test\"\nmethods = [\"GET\"]\n";
    let credential = range.credential("origin.test", REPLACE);
    range.policy("allow = [\"other.test\"]", &format!("{rule}{credential}"));
    let forged = r#"%0a%7b%22event%22:%22forged%22%7d%1b%5b2J"#;
    let script = format!(
        "echo $TOKEN; A=\"Authorization: Bearer $TOKEN\"\n\
         {CURL} -o /dev/null -H \"$A\" 'https://origin.test/{forged}?token=QUERYVALUE'\n\
         {CURL} -o /dev/null -H \"$A\" 'https://origin.test/plain?page=QUERYVALUE'\n\
         {CURL} -o /dev/null -X DELETE 'https://origin.test/{forged}?token=QUERYVALUE'\n\
         {CURL} -o /dev/null -H \"$A\" 'http://other.test/{forged}?token=QUERYVALUE'\n\
         printf 'GET http://or\\033[2J\\nigin.test/ HTTP/1.1\\r\\n\\r\\n' | python3 -c \"import socket,sys; s=socket.create_connection(('127.0.0.1',3128)); s.sendall(sys.stdin.buffer.read()); s.recv(100)\"\n\
         printf '\\033[2J forged\\n{{\"event\":\"forged\"}}\\n' >&2"
    );
    // The log holds the command line as it is, so the script is a file.
    range.world.write("project/script.sh", script);
    let finished = range.sh("sh script.sh");
    let placeholder = finished.stdout.lines().next().unwrap().to_owned();
    assert!(placeholder.len() >= 20, "{finished:?}");
    let json = outside(&range.world, &["log", "--json"]);
    for line in json.lines() {
        let record: Value = serde_json::from_str(line).expect("each line is a record");
        assert_ne!(record["event"], "forged");
    }
    let shown = outside(&range.world, &["log", "--network"]);
    for text in [
        &json,
        &shown,
        &finished.stderr.replace("\u{1b}[2J forged", ""),
    ] {
        assert!(!text.contains('\u{1b}'), "{text}");
        for absent in ["QUERYVALUE", SECRET, &placeholder] {
            assert!(!text.contains(absent), "{absent}: {text}");
        }
    }
    assert!(
        shown.contains("origin.test:443") && shown.contains("planted"),
        "{shown}"
    );
    let used = records(&range.world, "credential_used");
    assert_eq!(used.len(), 1, "{used:?}");
    assert_eq!(used[0]["credential"], "planted");
    let intact = Command::new(stockade_testkit::binary())
        .args(["log", "--verify"])
        .env("HOME", &range.world.home)
        .output()
        .unwrap();
    assert!(intact.status.success(), "{intact:?}");
}

#[test]
fn row_64_each_decision_is_written_down_once_whatever_way_it_came() {
    let range = Range::with(
        "allow = [\"other.test\"]",
        "[[network.rule]]\nhost = \"origin.test\"\nmethods = [\"GET\"]\n",
    );
    let script = format!(
        "{CURL} http://proxy.test/\n{CURL} https://connect.test/\n\
         {CURL} --socks5-hostname 127.0.0.1:3128 http://socks.test/\n\
         {CURL} --noproxy '*' http://93.184.216.99/\n\
         getent hosts name.test\n\
         {CURL} -X POST https://origin.test/post\n\
         {CURL} --noproxy '*' https://origin.test/get\n{CURL} http://other.test/plain\n\
         {CURL} http://169.254.169.254/\ntrue"
    );
    range.sh(&script).expect_code(0);
    let decided = records(&range.world, "network_decided");
    let count = |verdict: &str, destination: &str, request: Option<&str>| {
        let is_it = |one: &&Value| {
            one["verdict"] == verdict
                && one["destination"] == destination
                && request.is_none_or(|request| one["request"] == request)
        };
        decided.iter().filter(is_it).count()
    };
    for destination in [
        "proxy.test:80",
        "connect.test:443",
        "socks.test:80",
        "93.184.216.99:80",
        "169.254.169.254:80",
    ] {
        assert_eq!(
            count("denied", destination, None),
            1,
            "{destination} {decided:#?}"
        );
    }
    let names = decided.iter().filter(|one| {
        one["verdict"] == "denied"
            && one["entry"] == "name"
            && one["destination"]
                .as_str()
                .is_some_and(|name| name.starts_with("name.test"))
    });
    assert!(names.count() >= 1, "{decided:#?}");
    assert_eq!(
        count("denied", "origin.test:443", Some("POST /post")),
        1,
        "{decided:#?}"
    );
    assert_eq!(
        count("allowed", "origin.test:443", Some("GET /get")),
        1,
        "{decided:#?}"
    );
    assert_eq!(
        count("allowed", "other.test:80", Some("GET /plain")),
        1,
        "{decided:#?}"
    );
    for one in &decided {
        assert!(
            one["rule"].is_string() && one["generation"].is_u64(),
            "{one}"
        );
        let has_code = one["code"].as_str().is_some_and(|code| !code.is_empty());
        assert!(has_code || one["verdict"] == "allowed", "{one}");
    }
    let closed = records(&range.world, "network_closed");
    assert!(closed.iter().any(|one| one["requests"] == 1), "{closed:#?}");
}
