//! Promises about secrets and neighbours on the way out: a secret is nowhere
//! inside, it reaches its own host and place only, sandboxes share nothing,
//! and hostile peers cost a bounded amount of memory.

use std::fs;

use serde_json::Value;
use stockade_testkit::net::{Internet, ORIGIN};
use stockade_testkit::planted::{
    Remote, SECRET, assert_absent, found, found_in_file, outside, plant, records, start, watched,
};
use stockade_testkit::tools::await_file;
use stockade_testkit::{Finished, World};

const CURL: &str = "curl -sS --max-time 30";

/// Writes into `dump.bin` all that a process inside can read and that is not
/// older than the run: files, what /proc says of all processes, its own
/// memory after it has read every answer of the echoing origins.
const SCAN: &str = r#"
import os, ssl, stat, subprocess, sys, time, urllib.request
start = os.stat('start').st_ctime
pages = ['echo', 'leak/raw', 'leak/base64', 'leak/base64-offset', 'leak/hex', 'leak/percent', 'leak/basic', 'leak/json',
         'coded/gzip', 'coded/br', 'coded/zstd', 'coded/deflate', 'split/1', 'split/3', 'split/10', 'split/13']
token = os.environ['TOKEN']
answers = []
for host, headers in (('origin.test', {}), ('second.test', {'X-Key': token})):
    for page in pages:
        with urllib.request.urlopen(urllib.request.Request(f'https://{host}/{page}', headers=headers), timeout=60) as r:
            answers.append((str(r.headers), r.read()))
        more = [x for k, v in headers.items() for x in ('-H', f'{k}: {v}')]
        for version in ('--http1.1', '--http2'):
            answers.append(subprocess.run(['curl', '-sSi', '--max-time', '60', version, *more, f'https://{host}/{page}'], capture_output=True).stdout)
for path in ('header?x-one=1', 'redirect?to=https%3A%2F%2Fother.test%2F'):
    answers.append(subprocess.run(['curl', '-sSi', '--max-time', '60', f'https://third.test/{path}'], capture_output=True).stdout)
marker = 'MARK' + 'ER-in-memory'
held = [marker]
open('marked', 'w').write('MARK' + 'ER-in-file')
child = subprocess.Popen(['sleep', '300'], env=dict(os.environ, MARK='MARK' + 'ER-in-environment'))
sys.stdout.flush()
dump = open('dump.bin', 'wb', buffering=0)
def take(path):
    try:
        with open(path, 'rb', buffering=0) as f:
            dump.write(path.encode('utf-8', 'replace') + b'\n')
            size = 0
            while size < 1 << 26:
                piece = f.read(1 << 20)
                if not piece: break
                size += len(piece); dump.write(piece)
            dump.write(b'\n')
            return size
    except OSError: return 0
files = 0
for top, directories, names in os.walk('/'):
    directories[:] = [d for d in directories if os.path.join(top, d) not in ('/proc', '/sys')]
    for name in names:
        path = os.path.join(top, name)
        try: s = os.lstat(path)
        except OSError: continue
        if stat.S_ISREG(s.st_mode) and s.st_ctime >= start and name != 'dump.bin': files += take(path) > 0
for process in [p for p in os.listdir('/proc') if p.isdigit()]:
    for name in ('environ', 'cmdline', 'maps', 'status', 'stat', 'mountinfo', 'comm', 'auxv', 'limits', 'cgroup', 'net/tcp', 'net/unix'):
        take(f'/proc/{process}/{name}')
    try: descriptors = os.listdir(f'/proc/{process}/fd')
    except OSError: descriptors = []
    for d in descriptors:
        try: dump.write(os.readlink(f'/proc/{process}/fd/{d}').encode('utf-8', 'replace') + b'\n')
        except OSError: pass
regions = 0
for process in (os.getpid(), child.pid):
    try:
        maps, memory = open(f'/proc/{process}/maps').read().splitlines(), open(f'/proc/{process}/mem', 'rb', buffering=0)
    except OSError: continue
    for line in maps:
        low, high = (int(x, 16) for x in line.split()[0].split('-'))
        if 'r' not in line.split()[1] or '[v' in line: continue
        try:
            memory.seek(low)
            while low < high:
                piece = memory.read(min(1 << 20, high - low))
                if not piece: break
                low += len(piece); dump.write(piece); regions += 1
        except (OSError, ValueError, OverflowError): pass
child.kill()
print('scanned', files > 0, regions > 0, len(answers))
"#;

/// One credential for each host, each in a place of its own.
fn three_places(world: &World, secrets: &[String]) -> String {
    let credential = |name: &str, host: &str, number: usize, place: &str| {
        let from = plant(world, name, &secrets[number]);
        format!("[[credential]]\nname = \"{name}\"\nhost = \"{host}\"\n{from}\n{place}\n")
    };
    [
        credential(
            "attached",
            "origin.test",
            0,
            "attach = { header = \"Authorization\", format = \"Bearer {}\" }",
        ),
        credential(
            "replaced",
            "second.test",
            1,
            "replace = { header = \"X-Key\" }\nvariable = \"TOKEN\"",
        ),
        credential("queried", "third.test", 2, "attach = { query = \"key\" }"),
    ]
    .concat()
}

#[test]
fn a_planted_secret_is_found_nowhere_inside() {
    let world = World::new();
    let internet = Internet::start(&world);
    for name in ["second.test", "third.test", "other.test"] {
        internet.zone(name, &[ORIGIN]);
    }
    let secrets: Vec<String> = (1..4).map(|n| format!("{SECRET}-number-{n}")).collect();
    let allow = "allow = [\"origin.test\", \"second.test\", \"third.test\"]";
    internet.policy(&world, allow, &three_places(&world, &secrets));
    world.write("project/scan.py", SCAN);
    world.write("project/start", "");
    let report = world.outside().join("report.json");
    let options = ["--report", report.to_str().unwrap()];
    let finished = internet.run(&world, &options, &["/usr/bin/python3", "scan.py"]);
    assert_eq!(finished.stdout, "scanned True True 98\n", "{finished:?}");
    // The scan sees what there is to see.
    let dump = world.project.join("dump.bin");
    for mark in [
        "MARKER-in-memory",
        "MARKER-in-file",
        "MARKER-in-environment",
    ] {
        assert!(
            found_in_file(mark, &dump).is_some(),
            "the scan is blind to {mark}"
        );
    }
    for secret in &secrets {
        assert_eq!(
            found_in_file(secret, &dump),
            None,
            "something inside has it"
        );
    }
    let mut explained = world.stockade();
    explained.args(["explain", "--json"]);
    let explained = internet.on_machine(&explained).output().unwrap().stdout;
    assert!(!explained.is_empty());
    let written = [
        ("the log", outside(&world, &["log", "--json"]).into_bytes()),
        (
            "the shown log",
            outside(&world, &["log", "--network"]).into_bytes(),
        ),
        ("the report", fs::read(&report).unwrap()),
        ("the explanation", explained),
        ("standard output", finished.stdout_bytes),
        ("standard error", finished.stderr.into_bytes()),
    ];
    for (what, bytes) in &written {
        for secret in &secrets {
            assert_absent(secret, what, bytes);
        }
    }
    // And the origins did get them.
    for secret in &secrets {
        let sent = format!("{:?}", internet.log());
        assert!(
            found(secret, sent.as_bytes()).is_some(),
            "{secret} was never sent"
        );
    }
}

/// A host for each place, all with the same secret.
const PLACES: [(&str, &str); 6] = [
    (
        "header.test",
        "header = \"Authorization\", format = \"Bearer {}\"",
    ),
    ("basic.test", "basic = \"user\""),
    ("query.test", "query = \"key\""),
    ("path.test", "path = true"),
    ("form.test", "form = \"key\""),
    ("json.test", "json = \"/key\""),
];

#[test]
fn b29_a_secret_reaches_its_host_and_place_only() {
    let world = World::new();
    let internet = Internet::start(&world);
    internet.zone("other.test", &[ORIGIN]);
    let mut rest = "[[network.rule]]\nhost = \"other.test\"\ntls = \"inspect\"\n".to_owned();
    let mut allow = String::new();
    for (number, (host, place)) in PLACES.iter().enumerate() {
        internet.zone(host, &[ORIGIN]);
        let from = plant(&world, host, &format!("{SECRET}{number}"));
        rest += &format!(
            "[[credential]]\nname = \"{host}\"\nhost = \"{host}\"\n{from}\nreplace = {{ {place} }}\nvariable = \"T{number}\"\n"
        );
        allow += &format!("\"{host}\", ");
    }
    internet.policy(&world, &format!("allow = [{allow}]"), &rest);
    // The right place; then every place at another host, and a wrong place at
    // the host itself.
    let script = format!(
        "t() {{ {CURL} -o body -w '%{{http_code}} ' \"$@\"; }}\n\
         t -H \"Authorization: Bearer $T0\" https://header.test/echo\n\
         t -u \"user:$T1\" https://basic.test/echo\n\
         t -G --data-urlencode \"key=$T2\" https://query.test/echo\n\
         p=$(python3 -c 'import os,urllib.parse; print(urllib.parse.quote(os.environ[\"T3\"], safe=\"\"))')\n\
         t \"https://path.test/x/$p/echo\"\n\
         t --data-urlencode \"key=$T4\" https://form.test/echo\n\
         j=$(python3 -c 'import os,json; print(json.dumps({{\"key\": os.environ[\"T5\"]}}))')\n\
         t -H 'content-type: application/json' -d \"$j\" https://json.test/echo\n\
         echo; for h in other.test header.test; do\n\
         t -H \"X-Any: $T0\" https://$h/\n\
         t -u \"user:$T1\" https://$h/\n\
         t -G --data-urlencode \"key=$T2\" https://$h/\n\
         t \"https://$h/x/$p/\"\n\
         t --data-urlencode \"key=$T4\" https://$h/\n\
         t -H 'content-type: application/json' -d \"$j\" https://$h/\n\
         done; echo"
    );
    let finished = internet.sh(&world, &script);
    let lines: Vec<&str> = finished.stdout.lines().map(str::trim).collect();
    assert_eq!(lines[0], "200 200 200 200 200 200", "{finished:?}");
    assert_eq!(lines[1], ["403"; 12].join(" "), "{finished:?}");
    // A head may have left before its body was seen; nothing of the body has.
    let (cut, requests): (Vec<Value>, Vec<Value>) = internet
        .seen("request")
        .into_iter()
        .partition(|one| one["broken"].is_string());
    assert!(cut.iter().all(|one| one["body_bytes"] == 0), "{cut:?}");
    assert_eq!(requests.len(), 6, "{requests:?}");
    for (number, request) in requests.iter().enumerate() {
        let text = request.to_string();
        let secret = format!("{SECRET}{number}");
        assert!(found(&secret, text.as_bytes()).is_some(), "{text}");
    }
    let alerts = records(&world, "network_alert");
    assert!(alerts.len() >= 6, "{alerts:?}");
    let log = outside(&world, &["log", "--json"]);
    assert_absent(SECRET, "the log", log.as_bytes());
}

#[test]
fn b29_smuggling_and_a_second_host_carry_no_secret_away() {
    let world = World::new();
    let internet = Internet::start(&world);
    internet.zone("other.test", &[ORIGIN]);
    let from = plant(&world, "planted", SECRET);
    let rest = format!(
        "[[credential]]\nname = \"planted\"\nhost = \"origin.test\"\n{from}\nattach = {{ header = \"X-Key\" }}\n"
    );
    internet.policy(&world, "allow = [\"origin.test\", \"other.test\"]", &rest);
    let script = r#"
import re, socket, ssl
def talk(data):
    c = ssl.create_default_context()
    s = c.wrap_socket(socket.create_connection(('origin.test', 443), 30), server_hostname='origin.test'); s.settimeout(30)
    s.sendall(data); d = b''
    try:
        while True:
            p = s.recv(65536)
            if not p: break
            d += p
    except OSError: pass
    return b" ".join(re.findall(rb"HTTP/1\.1 (\d+)", d)).decode()
end = b'Connection: close\r\n\r\n'
one = b'GET /first HTTP/1.1\r\nHost: origin.test\r\n\r\n'
print(talk(one + b'GET /honest HTTP/1.1\r\nHost: origin.test\r\n' + end))
print(talk(one + b'GET /pipelined HTTP/1.1\r\nHost: other.test\r\n' + end))
print(talk(b'GET /two HTTP/1.1\r\nHost: origin.test\r\nHost: other.test\r\n' + end))
print(talk(b'GET https://other.test/absolute HTTP/1.1\r\nHost: origin.test\r\n' + end))
print(talk(b'POST /both HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: other.test\r\n' + end))
print(talk(b'POST /chunks HTTP/1.1\r\nHost: origin.test\r\nTransfer-Encoding: chunked\r\n\r\n5;x\r\nhello\r\n0\r\nX-Key: mine\r\nHost: other.test\r\n\r\n' + b'GET /after HTTP/1.1\r\nHost: origin.test\r\n' + end))
print(talk(b'GET /foreign HTTP/1.1\r\nHost: origin.test\r\nX-Key: mine\r\n' + end))
print(talk(b'GET /cut HTTP/1.1\r\nHost: origin.test\r\nConnection: close, x-key\r\n\r\n'))
"#;
    let finished = internet.run(&world, &[], &["/usr/bin/python3", "-c", script]);
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines.len(), 8, "{finished:?}");
    assert_eq!(lines[0], "200 200", "{finished:?}");
    assert_eq!(lines[1], "200 421", "{finished:?}");
    assert_eq!(lines[2], "400", "{finished:?}");
    assert!(["400", "421"].contains(&lines[3]), "{finished:?}");
    assert_eq!(lines[4], "400", "{finished:?}");
    assert_eq!(lines[6], "403", "{finished:?}");
    for request in internet.seen("request") {
        let text = request.to_string();
        let target = request["target"].as_str().unwrap();
        for never in ["pipelined", "two", "absolute", "smuggled", "foreign"] {
            assert!(!target.contains(never), "{text}");
        }
        // Naming the header as one of the connection does not strip it.
        let keys: Vec<&Value> = request["headers"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|pair| pair[0] == "x-key")
            .map(|pair| &pair[1])
            .collect();
        assert_eq!(keys, [SECRET], "{text}");
    }
}

/// What each of two neighbours tries with its own and with what is the other's.
fn neighbour(other: &str) -> String {
    format!(
        "page() {{ {CURL} -o body -w '%{{http_code}} ' \"$@\"; }}\n\
             page http://one.test/; page http://two.test/; page http://moving.test/\n\
             page -H \"X-Key: $TOKEN\" https://origin.test/own\n\
             cat \"$SSL_CERT_FILE\" > bundle.pem; printf %s \"$TOKEN\" > token\n\
             getent ahostsv4 {other}.test | head -1 | cut -d' ' -f1 > address\n\
             echo ready > ready; while ! [ -e go ]; do sleep 0.1; done\n\
             page --noproxy '*' \"http://$(cat theirs.address)/\"\n\
             page -H \"X-Key: $(cat theirs.token)\" https://origin.test/theirs\n\
             page --noproxy '*' --cacert theirs.pem https://origin.test/ 2>/dev/null\n\
             page -H \"X-Key: $TOKEN\" https://origin.test/own\n"
    )
}

#[test]
fn two_sandboxes_at_once_share_nothing() {
    let (one, two) = (World::new(), World::new());
    let internet = Internet::start(&one);
    for name in ["one.test", "two.test", "moving.test"] {
        internet.zone(name, &[ORIGIN]);
    }
    for (world, own) in [(&one, "one"), (&two, "two")] {
        let from = plant(world, "planted", &format!("{SECRET}-of-{own}"));
        let rest = format!(
            "[[credential]]\nname = \"{own}\"\nhost = \"origin.test\"\n{from}\nreplace = {{ header = \"X-Key\" }}\nvariable = \"TOKEN\"\n"
        );
        let allow = format!("allow = [\"origin.test\", \"{own}.test\", \"moving.test\"]");
        internet.policy(world, &allow, &rest);
    }
    let first = start(&internet, &one, &neighbour("one"));
    await_file(&one.project.join("ready"));
    // What the first one's resolver remembers is not what the second one gets.
    internet.zone("moving.test", &["93.184.216.77"]);
    let second = start(&internet, &two, &neighbour("two"));
    await_file(&two.project.join("ready"));
    for (from, to) in [(&one, &two), (&two, &one)] {
        for (theirs, name) in [
            ("bundle.pem", "theirs.pem"),
            ("token", "theirs.token"),
            ("address", "theirs.address"),
        ] {
            fs::copy(from.project.join(theirs), to.project.join(name)).unwrap();
        }
    }
    let token = |world: &World| fs::read_to_string(world.project.join("token")).unwrap();
    assert_ne!(token(&one), token(&two));
    for world in [&one, &two] {
        fs::write(world.project.join("go"), "").unwrap();
    }
    let ended = |run: std::process::Child| Finished::of(run.wait_with_output().unwrap());
    let (first, second) = (ended(first), ended(second));
    assert_eq!(
        first.stdout.split_whitespace().take(4).collect::<Vec<_>>(),
        ["200", "403", "200", "200"],
        "{first:?}"
    );
    assert_eq!(
        second.stdout.split_whitespace().take(4).collect::<Vec<_>>(),
        ["403", "200", "200", "200"],
        "{second:?}"
    );
    for finished in [&first, &second] {
        let rest: Vec<&str> = finished.stdout.split_whitespace().skip(4).collect();
        // The other's token is a foreign one, its authority is not trusted.
        assert_eq!(rest[1..], ["403", "000", "200"], "{finished:?}");
    }
    // An address that stands for a name stands for the sandbox's own name.
    let hosts: Vec<String> = internet
        .seen("request")
        .iter()
        .map(|one| one["address"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(
        hosts.iter().filter(|one| **one == "93.184.216.77").count(),
        1,
        "{hosts:?}"
    );
    assert!(!internet.saw_text("/theirs"), "{hosts:?}");
    let sent = |own: &str| {
        let secret = format!("{SECRET}-of-{own}");
        internet
            .seen("request")
            .iter()
            .filter(|one| one.to_string().contains(&secret))
            .count()
    };
    assert_eq!((sent("one"), sent("two")), (2, 2));
    for (world, other) in [(&one, "two"), (&two, "one")] {
        let log = outside(world, &["log", "--json"]);
        assert!(
            !log.contains(&format!("\"credential\":\"{other}\"")),
            "{log}"
        );
    }
}

/// An origin that breaks every rule, chosen by the path.
const HOSTILE: &str = r#"
import gzip, socket, sys, threading, time
bomb = gzip.compress(b'0' * (1 << 26))
def serve(c):
    try:
        c.settimeout(60); d = b''
        while b'\r\n\r\n' not in d:
            p = c.recv(4096)
            if not p: return
            d += p
        kind = d.split(b' ')[1].rsplit(b'/', 1)[1].decode()
        ok = b'HTTP/1.1 200 OK\r\n'
        if kind == 'silent': time.sleep(30)
        elif kind == 'head':
            c.sendall(ok)
            for n in range(1 << 16): c.sendall(b'X-%d: ' % n + b'a' * 1000 + b'\r\n')
        elif kind == 'line':
            c.sendall(ok + b'X: ')
            for n in range(1 << 16): c.sendall(b'a' * 1000)
        elif kind == 'lengths': c.sendall(ok + b'Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello')
        elif kind == 'both': c.sendall(ok + b'Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n')
        elif kind == 'chunk': c.sendall(ok + b'Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\nhello')
        elif kind == 'garbage': c.sendall(b'\x00\xff' * 50000)
        elif kind == 'bomb':
            c.sendall(ok + b'Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n' % len(bomb) + bomb)
        elif kind == 'endless':
            c.sendall(ok + b'\r\n')
            for n in range(1 << 14): c.sendall(b'a' * 65536)
        elif kind == 'short': c.sendall(ok + b'Content-Length: 500\r\n\r\nhello')
        elif kind == 'continue':
            for n in range(20000): c.sendall(b'HTTP/1.1 100 Continue\r\n\r\n')
        elif kind == 'switch': c.sendall(b'HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello')
        else: c.sendall(ok + b'Content-Length: 7\r\n\r\nhonest\n')
    except OSError: pass
    finally: c.close()
l = socket.create_server(('::', 8099), family=socket.AF_INET6, dualstack_ipv6=True, backlog=200)
open(sys.argv[1], 'w').close()
while True:
    c, _ = l.accept(); threading.Thread(target=serve, args=(c,), daemon=True).start()
"#;

#[test]
fn hostile_peers_on_both_sides_cost_little_and_hold_up_nobody() {
    let world = World::new();
    let internet = Internet::start(&world);
    internet.zone("hostile.test", &[ORIGIN]);
    let _origin = Remote::start(&internet, &world, HOSTILE);
    let from = plant(&world, "planted", SECRET);
    let rest = format!(
        "[[network.rule]]\nhost = \"hostile.test\"\nports = [8099]\nmethods = [\"GET\"]\n\
         [[credential]]\nname = \"planted\"\nhost = \"hostile.test\"\nports = [8099]\nplaintext = true\n{from}\nattach = {{ header = \"X-Key\" }}\n"
    );
    internet.policy(&world, "allow = [\"origin.test\"]", &rest);
    let script = r#"
import os, socket, subprocess, threading
answers = {}
def fetch(kind):
    r = subprocess.run(['curl', '-s', '--max-time', '15', '-o', '/dev/null', '-w', '%{http_code} %{size_download}', f'http://hostile.test:8099/{kind}'], capture_output=True, text=True)
    answers[kind] = (r.returncode, r.stdout)
kinds = ['silent', 'head', 'line', 'lengths', 'both', 'chunk', 'garbage', 'bomb', 'endless', 'short', 'continue', 'switch']
threads = [threading.Thread(target=fetch, args=(kind,)) for kind in kinds]
def throw(data):
    try:
        s = socket.create_connection(('127.0.0.1', 3128), 30); s.settimeout(30)
        for piece in data: s.sendall(piece)
        while s.recv(65536): pass
    except OSError: pass
junk = [[os.urandom(1 << 16)] * 50, [b'GET http://origin.test/ HTTP/1.1\r\n'] + [b'X: ' + b'a' * 65000] * 200, [b'\x05\xff'] + [b'a' * 65536] * 50,
        [b'CONNECT origin.test:443 HTTP/1.1\r\nHost: origin.test:443\r\n\r\n', b'\x16\x03\x01\xff\xff'] + [b'a' * 65536] * 50,
        [b'POST http://origin.test/upload HTTP/1.1\r\nHost: origin.test\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffff\r\n'] + [b'a' * 65536] * 50]
threads += [threading.Thread(target=throw, args=(data,)) for data in junk for _ in range(8)]
for t in threads: t.start()
good = 0
for _ in range(15):
    r = subprocess.run(['curl', '-sS', '--max-time', '60', 'http://origin.test/honest'], capture_output=True, text=True)
    good += r.stdout == 'origin /honest\n'
print(good)
for t in threads: t.join()
for kind in kinds: print(kind, *answers[kind])
fetch('honest'); print('honest', *answers['honest'])
"#;
    world.write("project/storm.py", script);
    let (finished, most) = watched(start(&internet, &world, "python3 storm.py"));
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines.first(), Some(&"15"), "{finished:?}");
    assert_eq!(lines.last(), Some(&"honest 0 200 7"), "{finished:?}");
    assert_eq!(lines.len(), 14, "{finished:?}");
    for refused in ["head", "line", "lengths", "garbage", "switch"] {
        let line = lines.iter().find(|line| line.starts_with(refused));
        assert!(
            line.is_some_and(|line| !line.contains(" 200 ")),
            "{refused} {finished:?}"
        );
    }
    assert!(most > 0 && most < 96 * 1024, "{most} KiB");
}
