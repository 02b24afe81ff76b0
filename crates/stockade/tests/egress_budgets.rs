//! What bounds the way out beside its hosts: bytes, connections, requests a
//! minute, and the moment at which a rule ends.

mod range;

use std::fs;
use std::process::Command;

use range::{Range, python};

#[test]
fn budgets_of_bytes_hold_for_each_rule_and_only_for_it() {
    let names = ["up.test", "down.test", "raw.test", "sealed.test"];
    let range = Range::new(
        &names,
        "allow = [\"origin.test\"]\n\
         [[network.rule]]\nhost = \"up.test\"\nupload_bytes_max = \"64KiB\"\n\
         [[network.rule]]\nhost = \"down.test\"\ndownload_bytes_max = \"64KiB\"\n\
         [[network.rule]]\nhost = \"raw.test\"\nports = [9000]\nupload_bytes_max = \"64KiB\"\n\
         [[network.rule]]\nhost = \"sealed.test\"\nports = [443]\ndownload_bytes_max = \"64KiB\"\n",
        "",
    );
    fs::write(range.world.project.join("big"), vec![b'a'; 300_000]).unwrap();
    let script = "\
        curl -sS --max-time 60 -T small http://up.test/upload; \
        curl -sS --max-time 60 -T big http://up.test/upload; echo; \
        curl -s -o /dev/null -w '%{http_code}\\n' http://up.test/after; \
        curl -sS --max-time 60 http://down.test/bytes/1000 | wc -c; \
        curl -sS --max-time 60 http://down.test/bytes/300000 | wc -c; \
        curl -s -o /dev/null -w '%{http_code}\\n' http://down.test/after; \
        curl -sSk --max-time 60 https://sealed.test/bytes/300000 | wc -c; \
        curl -sSk -o /dev/null -w '%{http_connect}\\n' https://sealed.test/after; \
        curl -sS --max-time 60 -T big http://origin.test/upload";
    fs::write(range.world.project.join("small"), vec![b'a'; 1000]).unwrap();
    let finished = range.sh(script);
    let lines: Vec<&str> = finished
        .stdout
        .lines()
        .filter(|line| !line.is_empty())
        .collect();
    assert_eq!(lines.first(), Some(&"1000"), "{finished:?}");
    assert_eq!(lines.last(), Some(&"300000"), "{finished:?}");
    let text = &finished.stdout;
    assert_eq!(text.matches("300000").count(), 1, "{finished:?}");
    let refused = |line: &&&str| matches!(**line, "403" | "429" | "000");
    assert!(lines.iter().filter(refused).count() >= 3, "{finished:?}");
    assert!(!range.internet.saw_text("/after"), "{finished:?}");
    let denials = range.denials();
    assert!(
        denials.iter().filter(|code| *code == "budget").count() >= 5,
        "{denials:?}"
    );
    let raw = range.python(&python(
        "s, status = connect('raw.test:9000')\nprint(status)\n\
         s.sendall(b'x' * 1000); n = 0\n\
         while n < 1000: n += len(s.recv(65536))\n\
         try:\n  s.sendall(b'y' * 4000000)\nexcept OSError: pass\n\
         rest(s)\nprint(connect('raw.test:9000')[1])\n",
    ));
    assert_eq!(raw.stdout, "200\n403\n", "{raw:?}");
}

#[test]
fn a_budget_of_the_sandbox_counts_what_all_rules_carry() {
    let range = Range::new(
        &["a.test", "b.test"],
        "allow = [\"a.test\", \"b.test\"]\nupload_bytes_max = \"64KiB\"",
        "",
    );
    fs::write(range.world.project.join("part"), vec![b'a'; 50_000]).unwrap();
    let script = "for host in a b a; do \
        curl -s -o /dev/null --max-time 60 -w '%{http_code}\\n' -T part http://$host.test/upload; done";
    let finished = range.sh(script);
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines[0], "200", "{finished:?}");
    assert_ne!(lines[1], "200", "{finished:?}");
    assert_ne!(lines[2], "200", "{finished:?}");
    assert!(range.denials().iter().all(|code| code == "budget"));
}

#[test]
fn connections_at_one_time_are_counted_and_places_given_back() {
    let range = Range::new(
        &["one.test", "two.test"],
        "allow = [\"two.test:9000\"]\nconnections = 2\n\
         [[network.rule]]\nhost = \"one.test\"\nports = [9000]\nconnections = 1\n",
        "",
    );
    let script = "a, x = connect('one.test:9000'); print(x)\n\
        print(connect('one.test:9000')[1])\n\
        b, x = connect('two.test:9000'); print(x)\n\
        print(connect('two.test:9000')[1])\n\
        a.close()\n\
        for i in range(200):\n\
        \x20 c, x = connect('one.test:9000')\n\
        \x20 if x == '200': break\n\
        \x20 time.sleep(0.05)\n\
        print(x)\n";
    let finished = range.python(&python(script));
    assert_eq!(finished.stdout, "200\n403\n200\n403\n200\n", "{finished:?}");
    assert!(range.denials().iter().all(|code| code == "budget"));
}

#[test]
fn requests_a_minute_count_what_is_seen_and_connections_where_nothing_is() {
    let range = Range::new(
        &["plain.test", "sealed.test", "raw.test", "free.test"],
        "allow = [\"free.test\"]\n\
         [[network.rule]]\nhost = \"plain.test\"\nrequests_per_minute = 2\n\
         [[network.rule]]\nhost = \"sealed.test\"\nrequests_per_minute = 2\n\
         [[network.rule]]\nhost = \"raw.test\"\nports = [9000]\nrequests_per_minute = 2\n",
        "",
    );
    let script = "for host in plain free; do for n in 1 2 3; do \
        curl -s -o /dev/null -w '%{http_code} ' http://$host.test/; done; done; \
        curl -s http://plain.test/1 http://plain.test/2 -D - | grep -ic x-sandbox-denied:; \
        for n in 1 2 3; do curl -sk -o /dev/null -w '%{http_connect} ' https://sealed.test/; done";
    let finished = range.sh(script);
    let words: Vec<&str> = finished.stdout.split_whitespace().collect();
    assert_eq!(words[..2], ["200", "200"], "{finished:?}");
    assert!(matches!(words[2], "403" | "429"), "{finished:?}");
    assert_eq!(words[3..7], ["200", "200", "200", "2"], "{finished:?}");
    assert_eq!(words[7..9], ["200", "200"], "{finished:?}");
    assert!(matches!(words[9], "403" | "429"), "{finished:?}");
    let raw = range.python(&python(
        "print(*[connect('raw.test:9000')[1] == '200' for n in range(3)])",
    ));
    assert_eq!(raw.stdout, "True True False\n", "{raw:?}");
    assert!(range.denials().iter().all(|code| code == "rate"));
}

#[test]
fn a_rule_is_gone_from_its_moment_on_and_takes_its_connections_along() {
    let soon = Command::new("date")
        .args(["-u", "-d", "+12 seconds", "+%Y-%m-%dT%H:%M:%SZ"])
        .output();
    let soon = String::from_utf8(soon.unwrap().stdout).unwrap();
    let range = Range::new(
        &["past.test", "later.test", "ends.test"],
        &format!(
            "[[network.rule]]\nhost = \"past.test\"\nexpires = \"2020-01-01T00:00:00Z\"\n\
             [[network.rule]]\nhost = \"later.test\"\nexpires = \"2099-01-01T00:00:00Z\"\n\
             [[network.rule]]\nhost = \"ends.test\"\nports = [9000]\nexpires = \"{}\"\n",
            soon.trim()
        ),
        "",
    );
    let script = "s, x = connect('ends.test:9000'); print(x)\n\
        s.sendall(b'alive'); print(s.recv(5).decode())\n\
        print(connect('past.test:443')[1], connect('later.test:443')[1])\n\
        rest(s); print(connect('ends.test:9000')[1])\n";
    let finished = range.python(&python(script));
    assert_eq!(
        finished.stdout, "200\nalive\n403 200\n403\n",
        "{finished:?}"
    );
    let codes = range.denials();
    assert!(codes.iter().any(|code| code == "expired"), "{codes:?}");
}
