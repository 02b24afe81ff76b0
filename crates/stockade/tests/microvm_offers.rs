//! The microVM wall and what is offered one by one: ports both ways, unix sockets,
//! and an ssh agent. The same programs ask as behind the process wall, and the same
//! records are kept.

mod machines;
mod way_out;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use machines::{POLICY, give_image, nothing_is_left, stockade};
use serde_json::Value;
use stockade_testkit::machine::kernel_package;
use stockade_testkit::tools::soon;
use stockade_testkit::{Finished, has_program, skip};
use way_out::{Range, Server};

/// An internet with a machine image.
fn range(test: &str) -> Option<Range> {
    let package = kernel_package(test)?;
    let range = Range::new();
    give_image(&range.world, &package);
    Some(range)
}

/// The user's policy of a machine; tables come last.
fn policy(range: &Range, network: &str, rest: &str) {
    range.policy(network, rest);
    let file = range.world.home.join(".config/stockade/stockade.toml");
    let written = fs::read_to_string(&file).unwrap();
    let (version, network) = written.split_once('\n').unwrap();
    fs::write(&file, format!("{version}\n{POLICY}{network}")).unwrap();
}

/// A program on the machine beside the internet, until the guard is dropped.
fn on_machine(range: &Range, command: &Command) -> Server {
    let mut entered = range.internet.on_machine(command);
    entered.stdin(Stdio::null()).stdout(Stdio::null());
    Server(entered.spawn().expect("nsenter starts"))
}

fn inside(range: &Range, arguments: &[&str]) -> Finished {
    let mut command = range.world.stockade();
    command.args(arguments);
    range.outside(&command)
}

/// What was decided about these entries, as the log has it.
fn decided(range: &Range, entry: &str) -> Vec<Value> {
    let log = stockade(&range.world, &["log", "--network", "--json"]).stdout;
    let lines = log.lines().map(|line| serde_json::from_str(line).unwrap());
    lines
        .filter(|one: &Value| one["event"] == "network_decided" && one["entry"] == entry)
        .collect()
}

/// Answers on TCP ports and unix sockets: each client what it sent first, in
/// capitals, and at its end how much it was.
const SERVER: &str = r#"
import socket, sys, threading
def serve(listener):
    while True:
        client, _ = listener.accept()
        threading.Thread(target=answer, args=(client,), daemon=True).start()
def answer(client):
    with client:
        size = len(first := client.recv(5))
        client.sendall(first.upper())
        while more := client.recv(65536): size += len(more)
        client.sendall(str(size).encode())
for place in sys.argv[1:]:
    if place.startswith("/"):
        listener = socket.socket(socket.AF_UNIX); listener.bind(place)
    else:
        listener = socket.create_server(("127.0.0.1", int(place)))
    listener.listen()
    threading.Thread(target=serve, args=(listener,)).start()
"#;

/// Talks to each place, and then looks at what carries it: it belongs to nobody,
/// can do nothing, and cannot be ended, read or traced.
const CLIENT: &str = r#"
import os, socket, sys
def talk(place):
    family, host, to = place.split("=")
    to = to if family == "UNIX" else (host, int(to))
    s = socket.socket(getattr(socket, "AF_" + family))
    try:
        s.settimeout(100); s.connect(to); s.sendall(b"hello")
        said = s.recv(5, socket.MSG_WAITALL).decode()
        s.sendall(b"x" * 300000); s.shutdown(socket.SHUT_WR)
        print(place, said, s.recv(9).decode())
    except OSError: print(place, "nothing")
for place in sys.argv[1:]: talk(place)
def attempt(name, act):
    try: act(); print(name, "worked")
    except OSError as error: print(name, error.errno)
for process in filter(str.isdigit, os.listdir("/proc")):
    status = dict(line.split(":\t", 1) for line in open(f"/proc/{process}/status"))
    if status["Name"] != "stockade-relay\n": continue
    own = {int(one) for one in status["Uid"].split() + status["Gid"].split()}
    print("relay:", own <= {65534, 65533} and os.getuid() not in own, *[
        status[name].strip() for name in ("CapEff", "CapPrm", "NoNewPrivs", "Seccomp", "TracerPid")])
    attempt("kill", lambda: os.kill(int(process), 9))
    attempt("memory", lambda: open(f"/proc/{process}/mem", "rb"))
    attempt("descriptors", lambda: os.readlink(f"/proc/{process}/fd/0"))
talk(sys.argv[1])
"#;

#[test]
fn what_the_host_offers_is_reached_from_a_machine_and_nothing_else() {
    let Some(range) = range("what_the_host_offers_is_reached_from_a_machine") else {
        return;
    };
    let names = ["one.sock", "two.sock", "other.sock"];
    let [one, two, other] =
        names.map(|name| range.world.outside().join(name).display().to_string());
    let mut server = Command::new("/usr/bin/python3");
    server.args(["-c", SERVER, "7001", "7002", &one, &two, &other]);
    let _server = on_machine(&range, &server);
    assert!(soon(|| PathBuf::from(&other).exists()));
    let offers = format!(
        "[[socket]]\npath = \"{one}\"\ninside = \"/run/one.sock\"\n\
         [[socket]]\npath = \"{two}\"\ninside = \"/tmp/deep/er/two.sock\"\n"
    );
    policy(&range, "host_ports = [7001]", &offers);
    range.world.write("project/client.py", CLIENT);
    let outside = format!("UNIX=={other}");
    let places = [
        "INET=127.0.0.1=7001",
        "INET6=::1=7001",
        "UNIX==/run/one.sock",
        "UNIX==/tmp/deep/er/two.sock",
        "INET=127.0.0.1=7002",
        "INET=192.0.2.2=7001",
        &outside,
    ];
    let python = ["/usr/bin/python3", "-S", "client.py"];
    let run = inside(&range, &[&["run", "--"], &python[..], &places].concat()).expect_code(0);
    let mut expected = String::new();
    for (place, said) in places.iter().zip([
        "HELLO 300005",
        "HELLO 300005",
        "HELLO 300005",
        "HELLO 300005",
        "nothing",
        "nothing",
        "nothing",
    ]) {
        expected += &format!("{place} {said}\n");
    }
    let nothing = "0000000000000000";
    expected += &format!("relay: True {nothing} {nothing} 1 2 0\n");
    // EPERM; EACCES.
    expected += "kill 1\nmemory 13\ndescriptors 13\n";
    expected += "INET=127.0.0.1=7001 HELLO 300005\n";
    assert_eq!(run.stdout, expected, "{}", run.stderr);
    let ports = decided(&range, "host_port");
    assert_eq!(ports.len(), 3, "{ports:?}");
    for port in ports {
        assert_eq!(port["rule"], "network.host_ports[0]");
        assert_eq!(port["destination"], "127.0.0.1:7001");
    }
    let sockets = decided(&range, "unix");
    let reached: Vec<_> = sockets.iter().map(|one| &one["destination"]).collect();
    assert_eq!(reached, [&one, &two]);
    nothing_is_left(&range.world);
}

/// A server on each of the loopback's addresses, and one that is not published.
const PUBLISHED: &str = r#"
import http.server, os, socket, sys, threading
sys.stderr = open(os.devnull, "w")
class Six(http.server.ThreadingHTTPServer): address_family = socket.AF_INET6
def serve(kind, host, port):
    server = kind((host, port), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever).start()
serve(http.server.ThreadingHTTPServer, "127.0.0.1", 3000)
serve(http.server.ThreadingHTTPServer, "127.0.0.1", 3001)
serve(Six, "::1", 3002)
"#;

#[test]
fn a_published_server_of_a_machine_is_reached_and_no_other_is() {
    let Some(range) = range("a_published_server_of_a_machine_is_reached") else {
        return;
    };
    policy(&range, "publish = [\"8123:3000\", \"8124:3002\"]", "");
    range.world.write("project/server.py", PUBLISHED);
    let page = "a page of the sandbox\n".repeat(30_000);
    range.world.write("project/page", &page);
    inside(&range, &["start", "--name", "box"]).expect_code(0);
    let mut server = range.world.stockade();
    server.args(["exec", "box", "--", "/usr/bin/python3", "-S", "server.py"]);
    let server = on_machine(&range, &server);
    let get = |url: &str| {
        let mut get = Command::new("curl");
        get.args(["-sS", "--max-time", "60", url]);
        range.outside(&get)
    };
    for port in [8123, 8124] {
        let url = format!("http://127.0.0.1:{port}/page");
        assert!((0..10).any(|_| soon(|| get(&url).stdout == page)), "{port}");
    }
    for url in [
        "http://127.0.0.1:3000/",
        "http://127.0.0.1:3001/",
        // Published on the loopback only.
        "http://192.0.2.2:8123/",
    ] {
        assert_eq!(get(url).code, Some(7), "{url}");
    }
    let allowed = decided(&range, "publish");
    assert!(
        allowed.iter().any(
            |one| one["rule"] == "network.publish[0]" && one["destination"] == "127.0.0.1:3000"
        )
    );
    // Where no server is any more, nothing answers.
    drop(server);
    inside(&range, &["stop", "box"]).expect_code(0);
    assert_ne!(get("http://127.0.0.1:8123/page").code, Some(0));
    nothing_is_left(&range.world);
}

/// An ssh agent outside, with two keys.
struct Agent {
    process: Child,
    directory: PathBuf,
}

impl Agent {
    fn start(range: &Range) -> Self {
        let directory = range.world.outside().join("agent");
        fs::create_dir(&directory).unwrap();
        let mut agent = Command::new("ssh-agent");
        agent.args(["-D", "-a"]).arg(directory.join("socket"));
        let process = agent.stdout(Stdio::null()).spawn().unwrap();
        let agent = Self { process, directory };
        assert!(soon(|| agent.socket().exists()));
        for name in ["signing", "other"] {
            let key = agent.directory.join(name);
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"]);
            assert!(keygen.arg(&key).status().unwrap().success());
            let mut add = Command::new("ssh-add");
            add.arg("-q").arg(&key).env("SSH_AUTH_SOCK", agent.socket());
            assert!(add.status().unwrap().success());
        }
        agent
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _gone = self.process.kill().is_err();
        let _reaped = self.process.wait().is_err();
    }
}

#[test]
fn an_agent_outside_signs_in_a_machine_with_the_named_key_only() {
    let test = "an_agent_outside_signs_in_a_machine";
    if !has_program("ssh-agent") {
        return skip(test, "ssh-agent", "there is none");
    }
    let Some(range) = range(test) else {
        return;
    };
    let agent = Agent::start(&range);
    policy(&range, "", "[[socket]]\nssh_agent = [\"signing\"]");
    for name in ["signing", "other"] {
        let public = fs::read(agent.directory.join(format!("{name}.pub"))).unwrap();
        fs::write(range.world.project.join(format!("{name}.pub")), public).unwrap();
    }
    let script = "ssh-add -l; echo text > text; for key in signing other; do \
        ssh-keygen -q -Y sign -n test -f $key.pub text </dev/null >/dev/null 2>&1; \
        test -s text.sig && echo $key signed; rm -f text.sig; done; ssh-add -D 2>&1; ssh-add -l | wc -l";
    let mut command = range.world.stockade();
    command.env("SSH_AUTH_SOCK", agent.socket());
    command.args(["run", "--", "sh", "-c", script]);
    let run = range.outside(&command);
    let said: Vec<&str> = run.stdout.lines().collect();
    assert!(said[0].contains(" signing ("), "{run:?}");
    assert_eq!(said[1], "signing signed", "{run:?}");
    assert!(!run.stdout.contains("other"), "{run:?}");
    assert_eq!(said.last(), Some(&"1"), "{run:?}");
    nothing_is_left(&range.world);
}

#[test]
fn what_cannot_be_led_into_a_machine_is_refused() {
    let Some(range) = range("what_cannot_be_led_into_a_machine_is_refused") else {
        return;
    };
    for (network, says) in [
        ("publish = [\"8080:80\"]", "nothing in a machine can listen"),
        (
            "host_ports = [5432]\npublish = [\"5432\"]",
            "is a port of the host inside",
        ),
    ] {
        policy(&range, network, "");
        let refused = inside(&range, &["run", "--", "true"]).expect_code(125);
        for part in ["NT1", says, "let the server inside listen"] {
            assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
        }
    }
}
