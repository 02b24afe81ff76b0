//! What the way out offers beside its rules: counters, the proxy without a
//! redirect, the log, learning, and one answer for every question about a
//! destination.

mod range;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use range::{Range, python};
use serde_json::Value;
use stockade_testkit::net::ORIGIN;
use stockade_testkit::pty::Terminal;
use stockade_testkit::tools::{await_file, soon};
use stockade_testkit::{Finished, World};

#[test]
fn counters_are_on_a_socket_that_the_report_names() {
    let range = Range::new(&[], "allow = [\"origin.test\"]\nmetrics = true", "");
    let report = range.world.project.join("report.json");
    let script = "curl -sS http://origin.test/; curl -s http://denied.test/; echo > ready; \
                  while ! [ -e go ]; do sleep 0.05; done";
    let mut command = range.world.stockade();
    command.args(["run", "--report", report.to_str().unwrap(), "--"]);
    command.args(["sh", "-c", script]);
    let mut command = range.internet.on_machine(&command);
    let mut child = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    await_file(&range.world.project.join("ready"));
    let socket = metrics_socket(&range.world).expect("the socket is there");
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--noproxy", "*", "--unix-socket"]);
    let output = curl.arg(&socket).arg("http://run/metrics").output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    for part in [
        "# TYPE stockade_egress_denied_total counter\nstockade_egress_denied_total ",
        "stockade_egress_rules_generation 1\n",
        "# TYPE stockade_egress_connections_open gauge\n",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(counter(&text, "connections_total") >= 1, "{text}");
    assert!(counter(&text, "denied_total") >= 1, "{text}");
    assert!(counter(&text, "downloaded_bytes_total") >= 9, "{text}");
    assert!(!text.contains("test"), "names are in the log only: {text}");
    fs::write(range.world.project.join("go"), "").unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!socket.exists());
    let report = fs::read_to_string(report).unwrap();
    assert!(report.contains(socket.to_str().unwrap()), "{report}");
    let explained = range.stockade(&["explain", "--", "true"]);
    let explained = String::from_utf8(explained.stdout).unwrap();
    assert!(explained.contains("metrics-RUN.sock"), "{explained}");
}

fn metrics_socket(world: &World) -> Option<PathBuf> {
    let state = fs::read_dir(world.home.join(".local/state/stockade")).ok()?;
    state.flatten().map(|entry| entry.path()).find(|path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("metrics-") && name.ends_with(".sock")
    })
}

fn counter(text: &str, name: &str) -> u64 {
    let start = format!("stockade_egress_{name} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("{name}: {text}"))
        .parse()
        .unwrap()
}

/// Runs a program that gets no sockets for nftables, as in a container whose
/// kernel has none.
const WITHOUT_NFTABLES: &str = r#"
import ctypes, os, platform, struct, sys
number = {'x86_64': 41, 'aarch64': 198}[platform.machine()]
def op(code, yes, no, k): return struct.pack('HBBI', code, yes, no, k)
program = b''.join([
    op(0x20, 0, 0, 0), op(0x15, 0, 5, number),
    op(0x20, 0, 0, 16), op(0x15, 0, 3, 16),
    op(0x20, 0, 0, 32), op(0x15, 0, 1, 12),
    op(0x06, 0, 0, 0x00050000 | 93), op(0x06, 0, 0, 0x7fff0000)])
buffer = ctypes.create_string_buffer(program)
class Program(ctypes.Structure): _fields_ = [('length', ctypes.c_ushort), ('filter', ctypes.c_void_p)]
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(8, ctypes.addressof(buffer)))) == 0
os.execv(sys.argv[1], sys.argv[1:])
"#;

#[test]
fn without_a_redirect_the_proxy_is_the_only_way_and_the_plan_says_so() {
    let range = Range::new(&[], "allow = [\"origin.test\"]", "");
    let plain = range.world.stockade();
    let held = |arguments: &[&str]| {
        let mut command = Command::new("/usr/bin/python3");
        command
            .args(["-c", WITHOUT_NFTABLES])
            .arg(plain.get_program());
        command.args(arguments).env_clear();
        for (name, value) in plain.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command.current_dir(&range.world.project);
        let mut command = range.internet.on_machine(&command);
        Finished::of(command.stdin(Stdio::null()).output().unwrap())
    };
    let explained = held(&["explain", "--", "true"]);
    assert!(
        explained
            .stdout
            .contains("only for programs that use the proxy variables")
            && explained
                .stdout
                .contains("connections cannot be redirected"),
        "{explained:?}"
    );
    let script = "curl -sS http://origin.test/a; curl -sSk https://origin.test/b; \
                  curl -sS --max-time 30 --noproxy '*' http://origin.test/c; echo $?; \
                  curl -sS --max-time 30 --noproxy '*' http://93.184.216.34/d; echo $?; \
                  curl -s -o /dev/null -w '%{http_code}\\n' http://denied.test/";
    let finished = held(&["run", "--", "sh", "-c", script]);
    // 6: without a redirect no name is resolved inside; 7: refused at once,
    // rather than lost.
    assert_eq!(
        finished.stdout, "origin /a\norigin /b\n6\n7\n403\n",
        "{finished:?}"
    );
    let targets = range.internet.seen("request");
    assert_eq!(targets.len(), 2, "{targets:?}");
    // The same policy with a redirect reaches the third.
    let redirected = range.sh("curl -sS --noproxy '*' http://origin.test/c");
    assert_eq!(redirected.ok(), "origin /c");
}

/// Destinations and whether they may be reached, under [`DECIDED`].
const DESTINATIONS: &[(&str, bool)] = &[
    ("good.test:443", true),
    ("good.test:80", true),
    ("good.test:22", false),
    ("GOOD.test:443", true),
    ("a.wild.test:443", true),
    ("a.b.wild.test:443", false),
    ("wild.test:443", false),
    ("bad.wild.test:443", false),
    ("db.test:5432", false),
    ("db.test:9000", true),
    ("ports.test:8443", true),
    ("ports.test:8444", false),
    ("gone.test:443", false),
    ("never.test:443", false),
    ("93.184.216.34:443", true),
    ("93.184.216.34:80", false),
    ("93.184.216.35:443", false),
    ("169.254.169.254:80", false),
    ("10.0.0.1:443", false),
    ("0.0.0.0:443", false),
    ("[::ffff:169.254.169.254]:80", false),
    ("198.18.0.1:443", false),
    ("metadata.google.internal:80", false),
    ("good.test.evil.test:443", false),
];

const DECIDED: &str = "allow = [\"good.test\", \"*.wild.test\", \"db.test:9000\", \"never.test\"]\n\
    deny = [\"bad.wild.test\", \"never.test\", \"203.0.113.0/24\"]\n\
    [[network.rule]]\nhost = \"ports.test\"\nports = [\"8440-8443\"]\n\
    [[network.rule]]\nhost = \"gone.test\"\nexpires = \"2020-01-01T00:00:00Z\"\n\
    [[network.rule]]\ncidr = \"93.184.216.34/32\"\nports = [443]\n";

#[test]
fn what_test_connect_says_is_what_happens() {
    let range = Range::new(&[], DECIDED, "");
    for (destination, _) in DESTINATIONS {
        let (host, _) = destination.rsplit_once(':').unwrap();
        range.internet.zone(&host.to_ascii_lowercase(), &[ORIGIN]);
    }
    let list: Vec<&str> = DESTINATIONS.iter().map(|(name, _)| *name).collect();
    let happened = range.python(&python(&format!(
        "for where in {list:?}: print(where, connect(where)[1])\n"
    )));
    let mut wrong = Vec::new();
    for (line, (destination, allowed)) in happened.stdout.lines().zip(DESTINATIONS) {
        let opened = line.ends_with(" 200");
        let said = range.stockade(&["test", "connect", destination]);
        let said = said.status.code() == Some(0);
        if (opened, said) != (*allowed, *allowed) {
            wrong.push(format!("{destination}: opened {opened}, said {said}"));
        }
    }
    assert_eq!(happened.stdout.lines().count(), DESTINATIONS.len());
    assert!(wrong.is_empty(), "{wrong:?}");
    // The run has a loopback of its own, to which no proxy is needed.
    let own = range.stockade(&["test", "connect", "127.0.0.1:4000"]);
    assert_eq!(own.status.code(), Some(0));
    let served = range.python(
        "import socket\nl = socket.create_server(('127.0.0.1', 4000))\n\
         print(socket.create_connection(('127.0.0.1', 4000), 20).getpeername()[1])",
    );
    assert_eq!(served.ok(), "4000");
}

#[test]
fn what_is_denied_stays_denied_whatever_is_allowed() {
    let range = Range::new(
        &["good.test", "bad.good.test"],
        "allow = [\"**.test\"]\ndeny = [\"bad.good.test\", \"203.0.113.0/24\", \"good.test:8080\"]\n\
         [[network.rule]]\ncidr = \"203.0.113.7/32\"\nports = [80]\n",
        "[approval]\nnetwork = \"deny\"\n",
    );
    range.internet.zone("inside.test", &["203.0.113.9"]);
    let script = "for url in http://good.test/ http://bad.good.test/ http://inside.test/ \
        http://203.0.113.7/ ; do for way in '' '--noproxy *'; do \
        curl -s --max-time 60 -o /dev/null -w '%{http_code} ' $way $url; done; done";
    let finished = range.sh(&format!("set -f; {script}"));
    let codes: Vec<&str> = finished.stdout.split_whitespace().collect();
    assert_eq!(codes[..2], ["200", "200"], "{finished:?}");
    assert!(codes[2..].iter().all(|code| *code != "200"), "{finished:?}");
    assert_eq!(range.internet.seen("connect").len(), 2);
}

#[test]
fn each_decision_and_each_end_is_one_record_without_queries() {
    let range = Range::new(
        &["sealed.test"],
        "allow = [\"origin.test:80\", \"sealed.test\"]",
        "",
    );
    let script = "curl -sS 'http://origin.test/one?token=hush' 'http://origin.test/two?token=hush'; \
        curl -s 'http://denied.test/three?token=hush'; curl -sSk https://sealed.test/four";
    range.sh(script).expect_code(0);
    let decided = range.records("network_decided");
    let to = |name: &str, verdict: &str, request: Option<&str>| {
        let same = |record: &&Value| {
            record["destination"] == name
                && record["verdict"] == verdict
                && request.is_none_or(|request| record["request"] == request)
        };
        decided.iter().filter(same).count()
    };
    assert_eq!(
        to("origin.test:80", "allowed", Some("GET /one")),
        1,
        "{decided:?}"
    );
    assert_eq!(
        to("origin.test:80", "allowed", Some("GET /two")),
        1,
        "{decided:?}"
    );
    assert_eq!(to("denied.test:80", "denied", None), 1, "{decided:?}");
    assert_eq!(to("sealed.test:443", "allowed", None), 1, "{decided:?}");
    let closed = range.records("network_closed");
    let ends = |name: &str| {
        let same = |record: &&Value| record["destination"] == name;
        closed.iter().filter(same).collect::<Vec<_>>()
    };
    let plain = ends("origin.test:80");
    let requests: u64 = plain
        .iter()
        .filter_map(|end| end["requests"].as_u64())
        .sum();
    assert_eq!(requests, 2, "{closed:?}");
    assert_eq!(ends("sealed.test:443").len(), 1, "{closed:?}");
    assert!(ends("denied.test:80").is_empty(), "{closed:?}");
    let table = range.stockade(&["log", "--network"]);
    let table = String::from_utf8(table.stdout).unwrap();
    for part in ["VERDICT", "GET /one", "sealed.test:443", "not-allowed"] {
        assert!(table.contains(part), "{table}");
    }
    let json = range.stockade(&["log", "--json"]);
    let json = String::from_utf8(json.stdout).unwrap();
    assert!(
        !table.contains("hush") && !json.contains("hush\""),
        "{table}"
    );
    let denials = range.denials();
    assert!(
        denials.iter().all(|code| code == "not-allowed"),
        "{denials:?}"
    );
    let verified = range.stockade(&["log", "--verify"]);
    assert!(verified.status.success());
}

#[test]
fn learning_can_ask_and_says_where_private_hosts_are() {
    let range = Range::new(&["asked.test", "other.test"], "", "");
    range.internet.zone("private.test", &["10.0.0.9"]);
    let output = range.world.outside().join("learned.toml");
    let script = "curl -s -o /dev/null -w '%{http_code}\\n' http://asked.test/; \
                  curl -s -o /dev/null -w '%{http_code}\\n' http://other.test/";
    let mut command = range.world.stockade();
    command.args(["learn", "--ask", "--output", output.to_str().unwrap()]);
    command.args(["--", "sh", "-c", script]);
    let mut terminal = Terminal::start(&range.internet.on_machine(&command));
    terminal.expect("no rule allows asked.test");
    terminal.expect("[d]eny?");
    terminal.send(b"r\n");
    terminal.expect("200");
    terminal.expect("no rule allows other.test");
    terminal.expect("[d]eny?");
    terminal.send(b"d\n");
    terminal.expect("403");
    assert!(terminal.wait().success());
    let learned = fs::read_to_string(&output).unwrap();
    assert!(learned.contains("\"asked.test:80\""), "{learned}");
    assert!(!learned.contains("other.test"), "{learned}");
    let script = "curl -s -o /dev/null -w '%{http_code}' http://private.test/";
    let learned = range.stockade(&["learn", "--", "sh", "-c", script]);
    let learned = String::from_utf8(learned.stdout).unwrap();
    let policy = learned
        .strip_prefix("200")
        .unwrap_or_else(|| panic!("{learned}"));
    assert!(
        policy.contains("allow_private = [\"10.0.0.9/32\"]"),
        "{policy}"
    );
    let fetched = range.sh(script);
    assert_ne!(fetched.stdout, "200", "{fetched:?}");
    // What was learned suffices.
    let rules = policy.trim_start_matches("[network]\n");
    range.internet.policy(&range.world, rules, "");
    assert_eq!(range.sh(script).stdout, "200", "{policy}");
}

#[test]
fn learning_can_name_requests_and_repositories() {
    let range = Range::new(&["api.test"], "", "");
    let path = range.internet.git_root().join("owner/site.git");
    let made = format!(
        "set -e; git init -q --bare -b main {0}; d=$(mktemp -d); git clone -q {0} $d 2>/dev/null; cd $d; \
         git checkout -q -b main; echo one > file; git add file; git -c user.name=a -c user.email=a@test \
         commit -q -m one; git push -q {0} main; rm -rf $d",
        path.display()
    );
    range.world.outside_sh(&made).expect_code(0);
    let ask = "curl -s -o /dev/null -w '%{http_code} '";
    let script = format!(
        "{ask} https://api.test/v1/a?q=1; {ask} -d x https://api.test/v1/b; {ask} http://api.test/plain; \
         rm -rf /tmp/site; git clone -q https://origin.test/git/owner/site.git /tmp/site && echo cloned"
    );
    let learned = range.stockade(&["learn", "--requests", "--", "sh", "-c", &script]);
    let learned = String::from_utf8(learned.stdout).unwrap();
    let done = "200 200 200 cloned\n";
    let policy = learned
        .strip_prefix(done)
        .unwrap_or_else(|| panic!("{learned}"));
    for part in [
        "methods = [\"GET\"]\npaths = [\"/v1/a\"]",
        "methods = [\"POST\"]\npaths = [\"/v1/b\"]",
        "paths = [\"/plain\"]",
        "[[network.git]]\nhost = \"origin.test\"\nread = [\"git/owner/site\"]\n",
    ] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("allow = ["), "{policy}");
    // What was learned suffices, and other requests to the same hosts do not pass.
    range.internet.policy(&range.world, "", policy);
    assert_eq!(range.sh(&script).stdout, done, "{policy}");
    let others = format!(
        "{ask} https://api.test/v1/c; {ask} -X DELETE https://api.test/v1/a; \
         git clone -q https://origin.test/git/owner/other.git /tmp/other || echo refused"
    );
    assert_eq!(range.sh(&others).stdout, "403 403 refused\n", "{policy}");
}

/// Sends requests that are refused, on one connection, until there is no proxy
/// any more; long paths make long records.
const FLOOD: &str = r#"
import socket
s = socket.create_connection(('127.0.0.1', 3128)); f = s.makefile('rb'); n = 0
try:
    while True:
        s.sendall(f'GET http://api.test/{n}/{"x" * 1900} HTTP/1.1\r\nHost: api.test\r\n\r\n'.encode())
        length = 0
        while (line := f.readline()) != b'\r\n':
            if not line: raise ConnectionError
            if line.lower().startswith(b'content-length:'): length = int(line[15:])
        f.read(length); n += 1
except ConnectionError:
    print('cut off' if n > 1000 else n)
"#;

#[test]
fn a_flood_of_requests_pushes_nothing_out_of_the_log() {
    let rule = "[[network.rule]]\nhost = \"api.test\"\nmethods = [\"GET\"]\npaths = [\"/ok\"]\n";
    let range = Range::new(&["api.test"], "", rule);
    range
        .sh("curl -s -o /dev/null http://api.test/ok")
        .expect_code(0);
    let first = range.records("network_decided").remove(0);
    let argv = ["/usr/bin/python3", "-c", FLOOD];
    let flooded = range.internet.run(&range.world, &[], &argv).expect_code(0);
    assert_eq!(flooded.stdout, "cut off\n", "{}", flooded.stderr);
    assert!(
        flooded.stderr.contains("fills its part of the event log"),
        "{}",
        flooded.stderr
    );
    let decided = range.records("network_decided");
    assert_eq!(decided[0], first);
    assert!(decided.iter().any(|record| {
        let request = record["request"].as_str();
        request.is_some_and(|request| request.starts_with("GET /0/"))
    }));
    // The next run has a part of its own.
    let next = range.sh("curl -s -o /dev/null -w '%{http_code}' http://api.test/ok");
    assert_eq!(next.stdout, "200", "{}", next.stderr);
}

#[test]
fn a_run_in_a_terminal_has_its_network_too() {
    let range = Range::new(&[], "allow = [\"origin.test\"]", "");
    let mut command = range.world.stockade();
    let script =
        "test -t 0 && test -t 1 && curl -sS http://origin.test/tty; read line; echo got $line";
    command.args(["run", "--", "sh", "-c", script]);
    let mut terminal = Terminal::start(&range.internet.on_machine(&command));
    terminal.expect("origin /tty");
    terminal.send(b"word\n");
    terminal.expect("got word");
    assert!(terminal.wait().success());
}

#[test]
fn events_reach_the_log_before_a_run_is_over() {
    let range = Range::new(&[], "allow = [\"origin.test\"]", "");
    let child = start(
        &range,
        "curl -sS http://origin.test/; echo > ready; while ! [ -e go ]; do sleep 0.05; done",
    );
    await_file(&range.world.project.join("ready"));
    assert!(soon(|| !range.records("network_decided").is_empty()));
    fs::write(range.world.project.join("go"), "").unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
}

/// A shell script inside, in the background.
fn start(range: &Range, script: &str) -> Child {
    let mut command = range.world.stockade();
    command.args(["run", "--", "sh", "-c", script]);
    let mut command = range.internet.on_machine(&command);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::piped()).spawn().expect("it starts")
}
