//! The small internet of the tests is what the tests take it for.

use std::process::Command;

use stockade_testkit::World;
use stockade_testkit::net::{Internet, ORIGIN};

fn curl(internet: &Internet, arguments: &[&str]) -> String {
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "20"]).args(arguments);
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let output = internet.on_machine(&command).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn origins_answer_on_both_families_and_are_written_down() {
    let world = World::new();
    let internet = Internet::start(&world);
    let authority = internet.authority();
    let authority = authority.to_str().unwrap();
    assert_eq!(
        curl(&internet, &[&format!("http://{ORIGIN}/a")]),
        "origin /a\n"
    );
    assert_eq!(curl(&internet, &["http://[2606:2800::1]/b"]), "origin /b\n");
    let resolve = format!("a.test:443:{ORIGIN}");
    let page = curl(
        &internet,
        &[
            "--cacert",
            authority,
            "--resolve",
            &resolve,
            "https://a.test/echo",
        ],
    );
    assert!(page.contains("\"sni\":\"a.test\""), "{page}");
    let seen = internet.seen("request");
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[2]["version"], "HTTP/2.0");
    assert_eq!(seen[0]["peer"], "192.0.2.2");
}

#[test]
fn names_lead_where_the_zone_says() {
    let world = World::new();
    let internet = Internet::start(&world);
    internet.zone("six.test", &["2606:2800::6"]);
    internet.zone_alias("alias.test", "origin.test");
    internet.zone_sequence("flip.test", &[&["93.184.216.1"], &["127.0.0.1"]]);
    let script = r#"
import socket, struct
def ask(name, kind):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20)
    q = struct.pack('>6H', 7, 256, 1, 0, 0, 0) + b''.join(bytes([len(l)]) + l.encode() for l in name.split('.')) + b'\0' + struct.pack('>2H', kind, 1)
    s.sendto(q, ('8.8.8.8', 53)); return s.recv(4096)
print(ask('origin.test', 1)[-4:].hex(), ask('six.test', 28)[-16:].hex(), ask('alias.test', 1)[-4:].hex(), ask('flip.test', 1)[-4:].hex(), ask('flip.test', 1)[-4:].hex(), ask('none.test', 1)[3] & 15)
"#;
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", script]);
    let output = internet.on_machine(&command).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let expected = "5db8d822 26062800000000000000000000000006 5db8d822 5db8d801 7f000001 3\n";
    assert_eq!(
        text,
        expected,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
