//! The microVM wall: ordinary work, sandboxes that stay, and that nothing is left
//! of a run, with a whole machine under the command. Each machine boots for
//! seconds, so each test does much with one.

mod machines;

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::process::Stdio;

use machines::{POLICY, machines_of, nothing_is_left, soon_after_boot, stockade, with_image};
use serde_json::Value;
use stockade_testkit::net::{Internet, ORIGIN};
use stockade_testkit::tools::soon;
use stockade_testkit::{Finished, is_root, skip};

#[test]
fn ordinary_work_is_done_in_a_machine_with_its_own_kernel() {
    let Some(world) = with_image("ordinary_work_is_done_in_a_machine") else {
        return;
    };
    let listed: Value =
        serde_json::from_str(&stockade(&world, &["vm", "list", "--json"]).ok()).unwrap();
    let release = listed["images"][0]["release"].as_str().unwrap().to_owned();
    let report = world.outside().join("report.json");
    let options = ["--report", report.to_str().unwrap()];
    let script = "set -e; umask 027; uname -r; echo one > file; git init -q .; \
        git -c user.name=a -c user.email=a@b add file; \
        git -c user.name=a -c user.email=a@b commit -qm first; git log --format=%s; \
        mkdir -p deep/er; ln -s ../file deep/link; cat deep/link; stat -c %a file; \
        pwd; id -u; echo $HOME; grep -c . /proc/self/mounts >/dev/null; \
        grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status | cut -f 2; \
        cat /etc/shadow >/dev/null 2>&1 || echo closed; \
        echo no > /etc/new 2>/dev/null || echo closed; exit 7";
    let run = world.run(&options, &["sh", "-c", script]).expect_code(7);
    let own = stockade_sys::rustix::process::geteuid().as_raw();
    let (project, home) = (world.project.display(), world.home.display());
    let none = "0000000000000000";
    let expected = format!(
        "{release}\nfirst\none\n640\n{project}\n{own}\n{home}\n{none}\n{none}\n1\nclosed\nclosed\n"
    );
    assert_eq!(run.stdout, expected, "{}", run.stderr);
    // What was written is there outside, as it was written.
    let outside = world.outside_sh("git log --format=%s; stat -c '%a %u' file");
    assert_eq!(outside.ok(), format!("first\n640 {own}"));
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    assert!(
        report
            .to_string()
            .contains("/proc/cmdline of the agent's kernel says"),
        "{report}"
    );
    nothing_is_left(&world);
}

#[test]
fn a_guarded_name_is_held_in_a_live_workspace() {
    let Some(world) = with_image("a_guarded_name_is_held_in_a_live_workspace") else {
        return;
    };
    world.outside_sh("git init -q .").ok();
    let run = world.run(
        &[],
        &[
            "sh",
            "-c",
            "echo evil > .git/hooks/post-checkout; echo fine > plain",
        ],
    );
    assert!(
        !world.project.join(".git/hooks/post-checkout").exists(),
        "{}",
        run.stderr
    );
    assert_eq!(
        fs::read_to_string(world.project.join("plain")).unwrap(),
        "fine\n"
    );
}

#[test]
fn a_machine_stays_and_is_gone_when_it_is_stopped_or_killed() {
    let Some(world) = with_image("a_machine_stays") else {
        return;
    };
    stockade(&world, &["start", "--name", "box"]).ok();
    let exec = |script: &str| stockade(&world, &["exec", "box", "--", "sh", "-c", script]);
    assert_eq!(
        exec("echo one > /tmp/kept; pwd").ok(),
        world.project.display().to_string()
    );
    assert_eq!(exec("cat /tmp/kept").ok(), "one");
    exec("exit 3").expect_code(3);
    stockade(&world, &["stop", "box"]).ok();
    nothing_is_left(&world);
    let mut run = world.stockade();
    let mut run = run
        .args(["run", "--", "sh", "-c", "touch here; sleep 1000"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    assert!(soon_after_boot(|| world.project.join("here").exists()));
    assert_eq!(machines_of(&world).len(), 1);
    run.kill().unwrap();
    run.wait().unwrap();
    nothing_is_left(&world);
}

#[test]
fn only_named_hosts_are_reached_from_a_machine() {
    let Some(world) = with_image("only_named_hosts_are_reached_from_a_machine") else {
        return;
    };
    let internet = Internet::start(&world);
    let credential = "[[credential]]\nname = \"key\"\nhost = \"origin.test\"\n\
        from = { env = \"MY_TOKEN\" }\nvariable = \"MY_TOKEN\"\n\
        replace = { header = \"Authorization\", format = \"Bearer {}\" }\n";
    internet.zone("evil.test", &[ORIGIN]);
    internet.policy(&world, "allow = [\"origin.test\"]", credential);
    let file = world.home.join(".config/stockade/stockade.toml");
    let network = fs::read_to_string(&file).unwrap();
    let (version, network) = network.split_once('\n').unwrap();
    fs::write(&file, format!("{version}\n{POLICY}{network}")).unwrap();
    // Listens on the machine's loopback, to which nothing leads.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    world.write("project/reach.py", REACH);
    let script = format!(
        "curl -sS -H \"Authorization: Bearer $MY_TOKEN\" https://origin.test/a; \
         /usr/bin/python3 -S reach.py {port}; \
         touch /etc/resolv.conf 2>/dev/null || cat /etc/resolv.conf; env"
    );
    let mut command = world.stockade();
    command.args(["run", "--", "sh", "-c", &script]);
    let command = command.env("MY_TOKEN", "secret-of-env");
    let run = Finished::of(internet.on_machine(command).output().unwrap());
    let said = "origin /a\norigin.test: 200\n93.184.216.66: 403\nevil.test: nothing\n\
        127.0.0.1: nothing\n192.88.99.2: nothing\n192.88.99.77: nothing\n\
        proxy: 200\nproxy: 403\ndatagram: nothing\n\
        nameserver 192.88.99.3\noptions timeout:2 attempts:1\n";
    assert!(run.stdout.starts_with(said), "{run:?}");
    assert!(!run.stdout.contains("secret-of-env"), "{run:?}");
    assert!(run.stdout.contains("HTTPS_PROXY=http://192.88.99.2:3128"));
    let requests = internet.seen("request");
    let headers = requests[0]["headers"].to_string();
    assert!(headers.contains("Bearer secret-of-env"), "{requests:?}");
    assert!(!internet.saw_text("evil") && internet.seen("udp").is_empty());
    for (to, code) in [("origin.test:443", 0), ("evil.test:443", 1)] {
        stockade(&world, &["test", "connect", to]).expect_code(code);
    }
    nothing_is_left(&world);
}

/// Tries names and addresses with and without the proxy, and a datagram. One
/// program does it all: to start one takes seconds.
const REACH: &str = r#"
import os, socket, sys
def reach(say, to, path, host):
    try:
        s = socket.create_connection(to, 60)
        s.send(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        said = s.makefile("rb").readline().split()
        print(say, said[1].decode() if said else "nothing", sep=": ")
    except OSError: print(say, "nothing", sep=": ")
port = int(sys.argv[1])
def direct(host, port): reach(host, (host, port), "/", host)
for host in "origin.test", "93.184.216.66", "evil.test": direct(host, 80)
for host in "127.0.0.1", "192.88.99.2", "192.88.99.77": direct(host, port)
proxy = os.environ["HTTP_PROXY"].split("/")[2].split(":")
for host in "origin.test", "evil.test": reach("proxy", tuple(proxy), "http://" + host, host)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(2)
try:
    s.connect(("8.8.8.8", 53))
    s.send(b"evil")
    print("datagram:", s.recv(100))
except OSError: print("datagram: nothing")
"#;

/// What two machines that go on from one state must not have in common: random
/// numbers, what programs are laid out by, the id of the boot.
#[test]
fn a_restored_machine_is_nobody_elses() {
    let Some(world) = with_image("a_restored_machine_is_nobody_elses") else {
        return;
    };
    let saved = world
        .home
        .join(".local/state/stockade/machines/images/default/saved/300-0");
    let explained = || {
        let text = stockade(&world, &["explain", "--json", "--", "true"]).ok();
        let plan: Value = serde_json::from_str(&text).unwrap();
        plan["kernel"]["saved"].as_str().map(str::to_owned)
    };
    let script = "head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/boot_id; \
        cat /proc/sys/kernel/random/uuid; grep -c stack /proc/self/maps; date +%s; \
        hostname; ls -A /tmp; echo mine > /tmp/mine";
    let report = world.outside().join("report.json");
    let options = ["--report", report.to_str().unwrap()];
    let mut machines = Vec::new();
    for _ in 0..2 {
        let run = world.run(&options, &["sh", "-c", script]).expect_code(0);
        let since = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
        let lines: Vec<String> = run.stdout.lines().map(str::to_owned).collect();
        let clock: u64 = lines[4].parse().unwrap();
        assert!(clock.abs_diff(since) < 600, "{clock} {since}");
        // Nothing of the one before is in its memory.
        assert_eq!(lines.len(), 6, "{run:?}");
        let report = fs::read_to_string(&report).unwrap();
        assert!(report.contains("restored from a saved state"), "{report}");
        machines.push(lines);
    }
    let [one, other] = &machines[..] else {
        panic!("two machines ran");
    };
    for (own, others) in one.iter().zip(other).take(3) {
        assert_ne!(own, others);
    }
    assert_eq!(one[5], other[5]);
    assert!(explained().is_some());
    // What is not what was saved is refused, and what another QEMU made is made again.
    let state = fs::read(saved.join("state")).unwrap();
    let mut other = state.clone();
    other[state.len() / 2] ^= 1;
    fs::write(saved.join("state"), other).unwrap();
    let refused = world.run(&[], &["true"]).expect_code(125);
    assert!(
        refused.stderr.contains("state is not what was built"),
        "{}",
        refused.stderr
    );
    let meta = fs::read_to_string(saved.join("saved.json")).unwrap();
    let meta = meta.replace("\"qemu\": \"", "\"qemu\": \"another ");
    fs::write(saved.join("saved.json"), meta).unwrap();
    let run = world.run(&[], &["true"]).expect_code(0);
    assert!(
        run.stderr.contains("booted for the first time"),
        "{}",
        run.stderr
    );
    nothing_is_left(&world);
}

/// A machine that waits went on from the state of all others, and serves one command.
#[test]
fn each_command_of_a_pool_has_a_machine_of_its_own() {
    let Some(world) = with_image("each_command_of_a_pool_has_a_machine_of_its_own") else {
        return;
    };
    stockade(&world, &["start", "--name", "pool", "--pool", "2"]).ok();
    let script = "mkdir /tmp/own && head -c 16 /dev/urandom | od -An -tx1; \
        cat /proc/sys/kernel/random/boot_id; cat /proc/sys/kernel/random/uuid";
    let mut seen = BTreeSet::new();
    for _ in 0..4 {
        let said = stockade(&world, &["exec", "pool", "--", "sh", "-c", script]).ok();
        seen.extend(said.lines().map(str::to_owned));
    }
    assert_eq!(seen.len(), 4 * 3, "{seen:#?}");
    assert!(soon(|| machines_of(&world).len() == 2));
    stockade(&world, &["stop", "pool"]).ok();
    nothing_is_left(&world);
}

#[test]
fn saved_machines_are_listed_and_removed() {
    let Some(world) = with_image("saved_machines_are_listed_and_removed") else {
        return;
    };
    let place = world
        .home
        .join(".local/state/stockade/machines/images/default/saved/300-0");
    let saved = || {
        let text = stockade(&world, &["vm", "list", "--json"]).ok();
        let list: Value = serde_json::from_str(&text).unwrap();
        list["images"][0]["saved"].as_array().unwrap().clone()
    };
    let [one] = &saved()[..] else {
        panic!("one machine was saved");
    };
    let bytes = fs::metadata(place.join("state")).unwrap().len();
    assert_eq!(one["bytes"], bytes);
    assert_eq!(
        (&one["memory_mib"], &one["network"]),
        (&300.into(), &false.into())
    );
    let said = stockade(&world, &["vm", "list"]).ok();
    assert!(
        said.contains("  saved: 300 MiB without a network, "),
        "{said}"
    );
    let litter = |arguments: &[&str]| {
        let text = stockade(&world, &[&["gc", "--json"], arguments].concat()).ok();
        let list: Value = serde_json::from_str(&text).unwrap();
        let found = list["found"].as_array().unwrap().clone();
        let saved = found
            .into_iter()
            .filter(|one| one["kind"] == "saved-machine");
        saved.map(|one| one["place"].clone()).collect::<Vec<_>>()
    };
    // What this QEMU goes on from stays, and what no QEMU does goes.
    assert_eq!(litter(&[]), Vec::<Value>::new());
    let meta = fs::read_to_string(place.join("saved.json")).unwrap();
    for other in [
        meta.replace("\"qemu\": \"", "\"qemu\": \"another "),
        "{".to_owned(),
    ] {
        fs::write(place.join("saved.json"), other).unwrap();
        let at = [Value::from(place.to_str().unwrap())];
        assert_eq!(litter(&["--dry-run"]), at);
        assert!(place.exists());
    }
    let said = stockade(&world, &["vm", "list"]).ok();
    assert!(said.contains("  saved: unreadable, "), "{said}");
    assert_eq!(litter(&[]).len(), 1);
    assert!(!place.exists() && saved().is_empty());
    // The image stays, and so it does when the saved ones are removed by name.
    world.run(&[], &["true"]).expect_code(0);
    assert_eq!(saved().len(), 1);
    stockade(&world, &["vm", "remove", "--saved", "default"]).ok();
    assert!(saved().is_empty());
    stockade(&world, &["vm", "remove", "--saved", "other"]).expect_code(125);
    nothing_is_left(&world);
}

#[test]
fn without_an_image_or_with_another_one_nothing_runs() {
    let Some(world) = with_image("without_an_image_or_with_another_one") else {
        return;
    };
    let state = world
        .home
        .join(".local/state/stockade/machines/images/default");
    let mut kernel = fs::read(state.join("kernel")).unwrap();
    *kernel.last_mut().unwrap() ^= 1;
    fs::write(state.join("kernel"), kernel).unwrap();
    let refused = world.run(&[], &["true"]).expect_code(125);
    assert!(
        refused.stderr.contains("kernel is not what was built"),
        "{}",
        refused.stderr
    );
    stockade(&world, &["vm", "remove", "default"]).ok();
    let refused = world.run(&[], &["true"]).expect_code(125);
    for part in ["there is no machine image default", "stockade vm build"] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
}

#[test]
fn no_attack_escapes_a_machine() {
    let test = "no_attack_escapes_a_machine";
    if !is_root() {
        return skip(test, "cgroup", "limits would only be sampled");
    }
    let Some(world) = with_image(test) else {
        return;
    };
    let found = stockade(
        &world,
        &["doctor", "--attack", "--wall", "microvm", "--json"],
    );
    let table: Value = serde_json::from_str(&found.stdout).unwrap_or_else(|_| panic!("{found:?}"));
    let rows = table["rows"].as_array().unwrap();
    let of = |verdict: &str| -> Vec<&Value> {
        let rows = rows.iter();
        rows.filter(|row| row["verdict"] == verdict).collect()
    };
    assert_eq!(of("escaped"), Vec::<&Value>::new());
    assert!(of("stopped").len() > 150, "{table:#}");
    // The rules of system calls and the limits hold in the machine as they do
    // behind the process wall: nothing is excused for reaching its kernel alone.
    for row in rows {
        assert!(
            !row["detail"].as_str().unwrap().contains("own kernel"),
            "{row}"
        );
    }
    found.expect_code(0);
}
