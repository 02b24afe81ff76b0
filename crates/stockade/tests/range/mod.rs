//! What the tests of the way out share: a machine beside a small internet, and
//! scripts inside that speak to the proxy.

use std::process::{Output, Stdio};

use serde_json::Value;
use stockade_testkit::net::{Internet, ORIGIN};
use stockade_testkit::{Finished, World};

/// A machine, its policy, and the internet beside it.
pub struct Range {
    pub world: World,
    pub internet: Internet,
}

impl Range {
    /// With these names in the internet, and this policy.
    pub fn new(names: &[&str], network: &str, rest: &str) -> Self {
        let world = World::new();
        let internet = Internet::start(&world);
        for name in names {
            internet.zone(name, &[ORIGIN]);
        }
        internet.policy(&world, network, rest);
        Self { world, internet }
    }

    /// A shell script inside.
    pub fn sh(&self, script: &str) -> Finished {
        self.internet.sh(&self.world, script)
    }

    /// A Python script inside.
    pub fn python(&self, script: &str) -> Finished {
        self.internet
            .run(&self.world, &[], &["/usr/bin/python3", "-c", script])
    }

    /// `stockade ARGUMENTS` on the machine.
    pub fn stockade(&self, arguments: &[&str]) -> Output {
        let mut command = self.world.stockade();
        command.args(arguments);
        let mut command = self.internet.on_machine(&command);
        command.stdin(Stdio::null()).output().expect("it starts")
    }

    /// The log of the network, a record each.
    pub fn records(&self, event: &str) -> Vec<Value> {
        let output = self.stockade(&["log", "--network", "--json"]);
        let text = String::from_utf8(output.stdout).expect("text");
        let records = text.lines().map(|line| serde_json::from_str(line).unwrap());
        records
            .filter(|record: &Value| record["event"] == event)
            .collect()
    }

    /// Codes of the denials so far.
    pub fn denials(&self) -> Vec<String> {
        let decided = self.records("network_decided").into_iter();
        decided
            .filter(|record| record["verdict"] == "denied")
            .map(|record| record["code"].as_str().unwrap().to_owned())
            .collect()
    }
}

/// Functions for scripts inside: `connect` asks the proxy for a tunnel and
/// gives the socket and the status.
const CONNECT: &str = r#"
import socket, time
def connect(where, host=None, early=b''):
    s = socket.create_connection(('127.0.0.1', 3128), 20); s.settimeout(60)
    s.sendall(f'CONNECT {where} HTTP/1.1\r\nHost: {host or where}\r\n\r\n'.encode() + early)
    head = b''
    while b'\r\n\r\n' not in head:
        c = s.recv(1)
        if not c: break
        head += c
    return s, head[9:12].decode()
def rest(s):
    d = b''
    try:
        while True:
            c = s.recv(65536)
            if not c: return d
            d += c
    except OSError: return d
"#;

/// A script that may call them.
pub fn python(script: &str) -> String {
    format!("{CONNECT}{script}")
}
