//! Ways in which one connection could be made to look like another: addresses
//! without a name, tunnels with something else in them, mixed forms, loops.

mod range;

use range::{Range, python};

#[test]
fn a_name_that_no_address_stands_for_leads_nowhere() {
    let range = Range::new(
        &["origin.test"],
        "allow = [\"origin.test\"]\n[[network.rule]]\ncidr = \"93.184.216.34/32\"\nports = [8080]\n",
        "",
    );
    let script = "for url in http://198.18.77.77/ http://[fd53:7463:6b61::77]/ http://198.19.255.255:8080/; do \
        curl -gs --max-time 60 --noproxy '*' -o /dev/null -w '%{http_code} ' $url; \
        curl -gs --max-time 60 -o /dev/null -w '%{http_code} ' $url; done; \
        curl -s --noproxy '*' -o /dev/null -w '%{http_code}' http://93.184.216.34:8080/";
    let finished = range.sh(script);
    let codes: Vec<&str> = finished.stdout.split_whitespace().collect();
    assert_eq!(codes.last(), Some(&"200"), "{finished:?}");
    assert!(codes[..6].iter().all(|code| *code != "200"), "{finished:?}");
    assert_eq!(range.internet.seen("connect").len(), 1);
}

#[test]
fn a_tunnel_to_port_80_is_judged_request_by_request() {
    let range = Range::new(
        &["rules.test", "other.test"],
        "allow = [\"other.test\"]\n[[network.rule]]\nhost = \"rules.test\"\nports = [80]\npaths = [\"/ok/**\"]\nmethods = [\"GET\"]\n",
        "",
    );
    let script = r#"
def ask(path, method='GET', host='rules.test', early=False):
    request = f'{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n'.encode()
    s, status = connect('rules.test:80', early=request if early else b'')
    if not early: s.sendall(request)
    d = rest(s); return d[9:12].decode() if d else 'closed'
print(ask('/ok/1'), ask('/ok/2', early=True))
print(ask('/no'), ask('/no', early=True), ask('/ok/3', 'POST'), ask('/ok/4', host='other.test'),
      ask('/ok/5', host='rules.test:8080'), ask('http://other.test/x'), ask('/ok/../no'))
# HTTP/2 with prior knowledge is no HTTP/1.1 whose requests could be judged.
s, _ = connect('rules.test:80', early=b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0')
d = rest(s); print(b'\0\0' not in d[:2])
# Neither is anything else.
s, _ = connect('rules.test:80', early=b'SSH-2.0-x\r\n'); print(rest(s)[:3] != b'SSH')
"#;
    let finished = range.python(&python(script));
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{finished:?}");
    assert_eq!(lines[0], "200 200", "{finished:?}");
    assert!(!lines[1].contains("200"), "{finished:?}");
    assert_eq!(lines[2..], ["True", "True"], "{finished:?}");
    let seen = range.internet.seen("request");
    assert_eq!(seen.len(), 2, "{seen:?}");
    let direct = range.sh(
        "curl -s --noproxy '*' --http2-prior-knowledge --max-time 60 -X POST http://rules.test/no; \
         curl -s --noproxy '*' http://rules.test/ok/direct",
    );
    assert!(direct.stdout.contains("origin /ok/direct"), "{direct:?}");
    assert!(!range.internet.saw_text("\"/no\""));
}

#[test]
fn forms_that_mix_schemes_ports_and_hosts_reach_nothing_else() {
    let range = Range::new(
        &["rules.test", "other.test"],
        "[[network.rule]]\nhost = \"rules.test\"\npaths = [\"/ok/**\"]\n",
        "",
    );
    let script = r#"
def ask(uri, host):
    s = socket.create_connection(('127.0.0.1', 3128), 20); s.settimeout(60)
    s.sendall(f'GET {uri} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n'.encode())
    return rest(s)[9:12].decode()
print(ask('http://rules.test/ok/1', 'rules.test'))
print(ask('http://rules.test:443/ok/2', 'rules.test:443'), ask('http://rules.test:443/no', 'rules.test:443'),
      ask('http://rules.test/ok/3', 'rules.test:8080'), ask('http://rules.test/ok/4', 'other.test'),
      ask('https://rules.test/ok/5', 'rules.test'), ask('ftp://rules.test/ok/6', 'rules.test'),
      ask('http://rules.test:8080/ok/7', 'rules.test:8080'), ask('/ok/8', 'rules.test'),
      ask('http://user:word@rules.test/ok/9', 'rules.test'))
"#;
    let finished = range.python(&python(script));
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines[0], "200", "{finished:?}");
    assert_eq!(lines[1].split(' ').count(), 9, "{finished:?}");
    assert!(!lines[1].contains("200"), "{finished:?}");
    assert_eq!(range.internet.seen("request").len(), 1);
}

#[test]
fn the_way_out_does_not_lead_back_to_itself_or_to_this_machine() {
    let range = Range::new(
        &[],
        "allow = [\"**.test\", \"loop.test:3128\", \"loop.test:15001\", \"loop.test:8600\"]\nhost_ports = [8600]",
        "",
    );
    range.internet.zone("loop.test", &["127.0.0.1"]);
    range.internet.zone("six.test", &["::1"]);
    let script = r#"
print([connect(where)[1] for where in (
    '127.0.0.1:3128', '[::1]:3128', 'localhost:3128', '0.0.0.0:3128', '127.0.0.1:15001',
    '127.0.0.1:8600', 'loop.test:3128', 'loop.test:15001', 'loop.test:8600', 'loop.test:443',
    'six.test:443', '198.18.0.1:3128', '[::ffff:127.0.0.1]:3128')])
# The redirect's own port serves nobody who comes by himself.
s = socket.create_connection(('127.0.0.1', 15001), 20); s.settimeout(60)
try: s.sendall(b'GET / HTTP/1.1\r\nHost: loop.test\r\n\r\n')
except OSError: pass
print(rest(s))
"#;
    let finished = range.python(&python(script));
    assert!(!finished.stdout.contains("200"), "{finished:?}");
    assert_eq!(finished.stdout.lines().nth(1), Some("b''"), "{finished:?}");
    assert!(range.internet.seen("connect").is_empty());
    for (key, value) in [
        ("host_ports", "[3128]"),
        ("host_ports", "[15001]"),
        ("publish", "[\"0:3128\"]"),
        ("publish", "[\"0:53\"]"),
    ] {
        let line = format!("allow = [\"a.test\"]\n{key} = {value}");
        range.internet.policy(&range.world, &line, "");
        let refused = range.sh("echo ran").expect_code(125);
        assert!(!refused.stdout.contains("ran"), "{refused:?}");
    }
}

#[test]
fn a_hello_after_connect_is_held_to_the_address_or_the_name() {
    let range = Range::new(
        &["good.test", "evil.test"],
        "allow = [\"good.test\"]\n[[network.rule]]\ncidr = \"93.184.216.34/32\"\nports = [443]\n",
        "",
    );
    let script = r#"
import ssl
def tls(where, name):
    s, status = connect(where)
    if status != '200': return status
    c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE
    try: c.wrap_socket(s, server_hostname=name).close(); return 'tls'
    except OSError as e: return 'refused'
print(tls('good.test:443', 'good.test'), tls('93.184.216.34:443', None))
print(tls('93.184.216.34:443', 'evil.test'), tls('93.184.216.34:443', 'good.test'),
      tls('good.test:443', 'evil.test'), tls('good.test:443', None))
# A hello that comes with CONNECT is held to the same.
def hello(name):
    c = ssl.create_default_context(); i, o = ssl.MemoryBIO(), ssl.MemoryBIO()
    try: c.wrap_bio(i, o, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError: pass
    return o.read()
for name in ('good.test', 'evil.test'):
    s, status = connect('good.test:443', early=hello(name)); print(s.recv(1))
"#;
    let finished = range.python(&python(script));
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines[0], "tls tls", "{finished:?}");
    assert_eq!(lines[1], "refused refused refused refused", "{finished:?}");
    assert_eq!(lines[2..], ["b'\\x16'", "b'\\x15'"], "{finished:?}");
}

#[test]
fn a_half_closed_tunnel_still_carries_the_answer_and_is_still_counted() {
    let range = Range::new(
        &["echo.test", "full.test"],
        "allow = [\"echo.test:9000\"]\n\
         [[network.rule]]\nhost = \"full.test\"\nports = [9000]\ndownload_bytes_max = \"512KiB\"\n",
        "",
    );
    let script = r#"
import threading
def half(where, size):
    s, status = connect(where)
    def send():
        try: s.sendall(b'x' * size); s.shutdown(socket.SHUT_WR)
        except OSError: pass
    t = threading.Thread(target=send); t.start(); d = rest(s); t.join(); return len(d)
print(half('echo.test:9000', 3000000))
print(half('full.test:9000', 3000000) <= 600 * 1024)
"#;
    let finished = range.python(&python(script));
    assert_eq!(finished.stdout, "3000000\nTrue\n", "{finished:?}");
    assert_eq!(range.denials(), ["budget"]);
}
