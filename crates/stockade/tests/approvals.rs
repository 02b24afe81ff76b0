//! People in the loop: held requests are answered on the terminal or from
//! another one, rules are replaced while a command runs, and `learn` prints
//! what would have sufficed.

use std::fs;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use stockade_testkit::net::Internet;
use stockade_testkit::pty::Terminal;
use stockade_testkit::tools::{await_file, soon};
use stockade_testkit::{World, has_program, skip};

const ASK: &str = "[approval]\nnetwork = \"ask\"\n";
/// Prints the status of the origin, or of the refusal.
const FETCH: &str = "curl -s -o /dev/null -w '%{http_code}\\n' http://asked.test/path?secret=1";

/// A world with an internet in which `asked.test` and `other.test` exist.
fn internet(test: &str) -> Option<(World, Internet)> {
    for program in ["ip", "unshare", "nsenter", "curl"] {
        if !has_program(program) {
            skip(test, program, "it is not installed");
            return None;
        }
    }
    let world = World::new();
    let internet = Internet::start(&world);
    internet.zone("asked.test", &[stockade_testkit::net::ORIGIN]);
    internet.zone("other.test", &[stockade_testkit::net::ORIGIN]);
    Some((world, internet))
}

/// A shell script inside, in the background.
fn start(world: &World, internet: &Internet, script: &str) -> Child {
    let mut command = world.stockade();
    command.args(["run", "--", "sh", "-c", script]);
    let mut command = internet.on_machine(&command);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().expect("nsenter starts")
}

fn end(child: Child) -> (Option<i32>, String, String) {
    let output = child.wait_with_output().expect("the run ends");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

fn stockade(world: &World, arguments: &[&str]) -> Output {
    let mut command = world.stockade();
    command.args(arguments).stdin(Stdio::null());
    command.output().expect("stockade starts")
}

/// What waits for an answer, once something does.
#[track_caller]
fn waiting(world: &World) -> Vec<Value> {
    let mut found = Vec::new();
    let some = soon(|| {
        let output = stockade(world, &["approvals", "--json"]);
        let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        found = value["waiting"].as_array().expect("a list").clone();
        !found.is_empty()
    });
    assert!(some, "nothing waits");
    found
}

fn id(waiting: &Value) -> String {
    waiting["id"].as_str().expect("an id").to_owned()
}

/// Records of one event, from the log.
fn records(world: &World, event: &str) -> Vec<Value> {
    let output = stockade(world, &["log", "--network", "--json"]);
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a line is a record"))
        .filter(|record| record["event"] == event)
        .collect()
}

#[test]
fn another_terminal_shows_who_asks_and_allows_for_the_run() {
    let Some((world, internet)) = internet("allow_for_the_run") else {
        return;
    };
    internet.policy(&world, "", ASK);
    let child = start(&world, &internet, &format!("{FETCH}; {FETCH}"));
    let waiting = waiting(&world);
    assert_eq!(waiting.len(), 1, "{waiting:?}");
    let held = &waiting[0]["held"];
    assert_eq!(held["destination"], "asked.test:80");
    assert_eq!(held["domain"], "asked.test");
    let command = held["command"].as_str().expect("the process was found");
    assert!(command.contains("curl"), "{held}");
    let answered = stockade(&world, &["approvals", "allow", &id(&waiting[0]), "--run"]);
    assert!(answered.status.success(), "{answered:?}");
    // The second request is not asked about: the run would wait for a minute.
    let (code, stdout, stderr) = end(child);
    assert_eq!((code, stdout.as_str()), (Some(0), "200\n200\n"), "{stderr}");
    let approvals = records(&world, "approval");
    assert_eq!(approvals.len(), 1, "{approvals:?}");
    assert_eq!(approvals[0]["answer"], "run");
    assert_eq!(approvals[0]["by"], "control");
    let late = stockade(&world, &["approvals", "allow", &id(&waiting[0])]);
    assert!(!late.status.success(), "{late:?}");
    let log = String::from_utf8(stockade(&world, &["log", "--network"]).stdout).expect("text");
    assert!(
        log.contains("asked.test:80") && !log.contains("secret=1"),
        "{log}"
    );
}

#[test]
fn what_was_denied_is_not_asked_again_and_is_named_at_the_end() {
    let Some((world, internet)) = internet("denied_once") else {
        return;
    };
    internet.policy(&world, "", ASK);
    let child = start(&world, &internet, &format!("{FETCH}; {FETCH}"));
    let waiting = waiting(&world);
    let denied = stockade(&world, &["approvals", "deny", &id(&waiting[0])]);
    assert!(denied.status.success(), "{denied:?}");
    let (_, stdout, stderr) = end(child);
    assert_eq!(stdout, "403\n403\n", "{stderr}");
    assert!(stderr.contains("asked.test:80"), "{stderr}");
    assert!(internet.seen("request").is_empty());
}

#[test]
fn a_rule_that_is_kept_expires_and_leaves_comments_alone() {
    let Some((world, internet)) = internet("kept_rule") else {
        return;
    };
    internet.policy(&world, "", &format!("# mine\n{ASK}"));
    let child = start(&world, &internet, FETCH);
    let waiting = waiting(&world);
    let id = id(&waiting[0]);
    let kept = stockade(
        &world,
        &["approvals", "allow", &id, "--always", "--for", "7d"],
    );
    assert!(kept.status.success(), "{kept:?}");
    assert_eq!(end(child).1, "200\n");
    let path = world.home.join(".config/stockade/stockade.toml");
    let text = fs::read_to_string(path).expect("the policy is there");
    for part in [
        "# mine\n",
        "[[network.rule]]\nhost = \"asked.test\"\n",
        "expires = \"",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let again = internet.sh(&world, FETCH);
    assert_eq!(again.stdout, "200\n", "{}", again.stderr);
}

#[test]
fn nobody_answers_and_the_request_is_denied() {
    let Some((world, internet)) = internet("nobody_answers") else {
        return;
    };
    internet.policy(&world, "", &format!("{ASK}wait = \"1s\"\n"));
    let finished = internet.sh(&world, FETCH);
    assert_eq!(finished.stdout, "403\n", "{}", finished.stderr);
    assert!(
        finished.stderr.contains("stockade approvals allow"),
        "{}",
        finished.stderr
    );
    let decided = records(&world, "network_decided");
    assert!(
        decided
            .iter()
            .any(|record| record["code"] == "approval-timeout"),
        "{decided:?}"
    );
}

#[test]
fn the_terminal_asks_and_gets_its_modes_back() {
    let Some((world, internet)) = internet("terminal_question") else {
        return;
    };
    internet.policy(&world, "", ASK);
    let mut command = world.stockade();
    let script = format!("{FETCH}; read line; echo got $line");
    command.args(["run", "--", "sh", "-c", &script]);
    let mut terminal = Terminal::start(&internet.on_machine(&command));
    terminal.expect("no rule allows asked.test");
    terminal.expect("asked.test:80");
    terminal.expect("[d]eny?");
    terminal.send(b"x\n");
    terminal.expect("please type");
    terminal.send(b"o\n");
    terminal.expect("200");
    terminal.send(b"word\n");
    terminal.expect("got word");
    assert!(terminal.wait().success());
    assert_eq!(records(&world, "approval")[0]["by"], "terminal");
}

#[test]
fn what_is_learned_suffices_and_nothing_less_does() {
    let Some((world, internet)) = internet("learn") else {
        return;
    };
    internet.policy(&world, "", "");
    let script =
        "curl -s -o /dev/null http://asked.test/; curl -s -o /dev/null http://169.254.169.254/";
    let mut command = world.stockade();
    command.args(["learn", "--", "sh", "-c", script]);
    let output = internet
        .on_machine(&command)
        .output()
        .expect("nsenter starts");
    let learned = String::from_utf8(output.stdout).expect("text");
    assert_eq!(learned, "[network]\nallow = [\n    \"asked.test:80\",\n]\n");
    assert_eq!(internet.sh(&world, FETCH).stdout, "000\n");
    let line = "allow = [\"asked.test:80\"]";
    internet.policy(&world, line, "");
    assert_eq!(internet.sh(&world, FETCH).stdout, "200\n");
}

#[test]
fn new_rules_hold_from_a_reload_on_and_bad_ones_never() {
    let Some((world, internet)) = internet("reload") else {
        return;
    };
    internet.policy(&world, "allow = [\"other.test\"]", "");
    let script =
        format!("{FETCH}; echo ready > ready; while ! [ -e go ]; do sleep 0.1; done; {FETCH}");
    let child = start(&world, &internet, &script);
    await_file(&world.project.join("ready"));
    internet.policy(&world, "allow = [\"asked.test\", \"no/host\"]", "");
    let refused = stockade(&world, &["reload", "--json"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    internet.policy(
        &world,
        "allow = [\"asked.test\"]",
        "[limits]\nprocesses = 77\n",
    );
    let refused = stockade(&world, &["reload"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    internet.policy(&world, "allow = [\"asked.test\"]", "");
    let reloaded = stockade(&world, &["reload"]);
    assert!(reloaded.status.success(), "{reloaded:?}");
    fs::write(world.project.join("go"), "").expect("the project can be written");
    let (_, stdout, stderr) = end(child);
    assert_eq!(stdout, "403\n200\n", "{stderr}");
    let reloads = records(&world, "policy_reloaded");
    assert_eq!(reloads.len(), 3, "{reloads:?}");
}

#[test]
fn without_its_egress_process_a_run_goes_on_without_a_network() {
    let Some((world, internet)) = internet("egress_death") else {
        return;
    };
    internet.policy(&world, "allow = [\"asked.test\"]", "");
    let script = format!(
        "{FETCH}; echo ready > ready; while ! [ -e go ]; do sleep 0.1; done; {FETCH}; exit 3"
    );
    let child = start(&world, &internet, &script);
    await_file(&world.project.join("ready"));
    let egress = egress_of(&world);
    let killed = Command::new("kill").args(["-KILL", &egress]).status();
    assert!(killed.expect("kill starts").success());
    assert!(soon(|| !records(&world, "network_lost").is_empty()));
    fs::write(world.project.join("go"), "").expect("the project can be written");
    let (code, stdout, stderr) = end(child);
    assert_eq!((code, stdout.as_str()), (Some(3), "200\n000\n"), "{stderr}");
    assert_eq!(
        stderr.matches("goes on without a network").count(),
        1,
        "{stderr}"
    );
}

/// Process id of the egress process of the only run of this world: it is the
/// child of the supervisor that is no sandbox.
fn egress_of(world: &World) -> String {
    let marker = world.project.display().to_string();
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let supervisors: Vec<String> = processes
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|process| process.bytes().all(|byte| byte.is_ascii_digit()))
        .filter(|process| {
            let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            let current = fs::read_link(format!("/proc/{process}/cwd"));
            line.contains("\0run\0")
                && current.is_ok_and(|path| path.display().to_string() == marker)
        })
        .collect();
    for supervisor in supervisors {
        let children = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children"));
        for child in children.unwrap_or_default().split_ascii_whitespace() {
            let line = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            if line == b"stockade\0egress\0" {
                return child.to_owned();
            }
        }
    }
    panic!("no egress process was found");
}

#[test]
fn a_way_out_that_cannot_be_proved_refuses_the_run() {
    let world = World::new();
    world.policy("[network]\nallow = [\"a.test\"]\n");
    for step in [
        "network.routes",
        "network.listen",
        "egress.process",
        "egress.self-test",
    ] {
        let finished = world.run(&["--fail-step", step], &["touch", "marker"]);
        assert_eq!(finished.code, Some(125), "{step}: {}", finished.stderr);
        assert!(
            finished.stderr.contains(step),
            "{step}: {}",
            finished.stderr
        );
        assert!(!world.project.join("marker").exists(), "{step}");
    }
    world.run(&[], &["true"]).ok();
    let state = world.home.join(".local/state/stockade");
    let left: Vec<_> = fs::read_dir(state)
        .expect("the state directory is there")
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(".sock"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
