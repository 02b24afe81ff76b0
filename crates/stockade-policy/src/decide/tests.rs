//! Questions to a fixed plan.

use expect_test::{Expect, expect};

use super::*;
use crate::compile::fixtures::{compiled, facts, grant, path, policy};
use crate::guarantee::Guarantee;

fn plan() -> Plan {
    let mut policy = policy();
    policy
        .read
        .push(grant("filesystem.read[1]", "/home/u/data"));
    let mut facts = facts();
    facts.sockets.push(path("/home/u/data/daemon.sock"));
    compiled(&policy, &facts).unwrap()
}

fn check(questions: &[Question], expected: Expect) {
    let plan = plan();
    let lines: String = questions
        .iter()
        .map(|question| answer(&plan, question))
        .collect();
    expected.assert_eq(&lines);
}

fn answer(plan: &Plan, question: &Question) -> String {
    let asked = format!("{} {}", question.action(), question.object());
    match decide(plan, question) {
        Decision::Permit { rule, note } => {
            format!(
                "{asked}: permit by {} {}\n",
                rule.id,
                note.unwrap_or_default()
            )
        }
        Decision::Denied(denial) => format!(
            "{asked}: denied by {}: {}; grant {:?}, person may: {}\n",
            denial.rule.id, denial.reason, denial.smallest_grant, denial.person_may_grant
        ),
    }
}

#[test]
fn reading() {
    let read = |text: &str| Question::Read(path(text));
    check(
        &[
            read("/usr/lib/x"),
            read("/bin/sh"),
            read("/home/u/project/src"),
            read("/home/u/data/x"),
            read("/home/u/data/daemon.sock"),
            read("/etc/shadow"),
            read("/home/u/.ssh/id_ed25519"),
            read("/home/u/notes"),
            read("/home/u"),
            read("/tmp/x"),
            read("/home"),
            read("/srv/x"),
            read("/proc/meminfo"),
            read("/dev/fd/0"),
            read("/dev/kvm"),
        ],
        expect![[r#"
            read /usr/lib/x: permit by filesystem.read[0] 
            read /bin/sh: permit by filesystem.read[0] 
            read /home/u/project/src: permit by filesystem.write[0] 
            read /home/u/data/x: permit by filesystem.read[1] 
            read /home/u/data/daemon.sock: denied by built-in.socket: /home/u/data/daemon.sock is hidden: a process outside listens on this socket; grant None, person may: false
            read /etc/shadow: denied by credential.shadow: /etc/shadow is hidden: password hashes of this machine; grant None, person may: true
            read /home/u/.ssh/id_ed25519: denied by credential.ssh: it is a credential: private keys, and the hosts on which they work; grant None, person may: true
            read /home/u/notes: denied by built-in.private: /home/u is private; the host's content is absent; grant Some("[filesystem]\nread = [\"system\", \"/home/u/notes\"]\n"), person may: true
            read /home/u: permit by built-in.private a private directory, empty at the start
            read /tmp/x: denied by built-in.private: /tmp is private; the host's content is absent; grant Some("[filesystem]\nread = [\"system\", \"/tmp/x\"]\n"), person may: true
            read /home: permit by filesystem.default holds only what is granted below it
            read /srv/x: denied by filesystem.default: no rule grants it; grant Some("[filesystem]\nread = [\"system\", \"/srv/x\"]\n"), person may: true
            read /proc/meminfo: permit by built-in.machine shows this run, not the machine
            read /dev/fd/0: permit by built-in.proc shows this run, not the machine
            read /dev/kvm: denied by filesystem.default: no rule grants it; grant None, person may: false
        "#]],
    );
}

#[test]
fn writing() {
    let write = |text: &str| Question::Write(path(text));
    check(
        &[
            write("/home/u/project/x"),
            write("/home/u/data/x"),
            write("/tmp/x"),
            write("/dev/null"),
            write("/usr/x"),
            write("/home/u/.ssh/config"),
            write("/"),
            write("/proc/self/comm"),
            write("/srv/x"),
        ],
        expect![[r#"
            write /home/u/project/x: permit by filesystem.write[0] 
            write /home/u/data/x: denied by filesystem.read[1]: /home/u/data is granted for reading only; grant Some("[filesystem]\nwrite = [\"/home/u/data/x\"]\n"), person may: true
            write /tmp/x: permit by built-in.private private: it is gone after the run
            write /dev/null: permit by built-in.devices 
            write /usr/x: denied by filesystem.read[0]: /usr is granted for reading only; grant None, person may: false
            write /home/u/.ssh/config: permit by built-in.private private: it is gone after the run
            write /: denied by filesystem.default: no rule grants it; grant None, person may: false
            write /proc/self/comm: denied by built-in.proc: /proc only shows this run to its readers; grant None, person may: false
            write /srv/x: denied by filesystem.default: no rule grants it; grant Some("[filesystem]\nwrite = [\"/srv/x\"]\n"), person may: true
        "#]],
    );
}

#[test]
fn executing_and_connecting() {
    let connect = |host: &str| Question::Connect {
        host: host.to_owned(),
        port: 443,
    };
    check(
        &[
            Question::Execute(path("/usr/bin/env")),
            Question::Execute(path("/home/u/project/run")),
            Question::Execute(path("/dev/null")),
            Question::Execute(path("/proc/self/exe")),
            Question::Execute(path("/srv/tool")),
            connect("localhost"),
            connect("127.8.9.1"),
            connect("docs.example.com"),
            connect("127.0.0.1.example.com"),
        ],
        expect![[r#"
            execute /usr/bin/env: permit by filesystem.read[0] 
            execute /home/u/project/run: permit by filesystem.write[0] 
            execute /dev/null: denied by built-in.devices: a device is not a program; grant None, person may: false
            execute /proc/self/exe: denied by built-in.proc: /proc only shows this run to its readers; grant None, person may: false
            execute /srv/tool: denied by filesystem.default: no rule grants it; grant Some("[filesystem]\nread = [\"system\", \"/srv/tool\"]\n"), person may: true
            connect localhost:443: permit by built-in.loopback the run's own loopback; nothing of the host listens there
            connect 127.8.9.1:443: permit by built-in.loopback the run's own loopback; nothing of the host listens there
            connect docs.example.com:443: denied by network.allow: the network is denied as a whole; grant Some("[network]\nallow = [\"docs.example.com\"]\n"), person may: true
            connect 127.0.0.1.example.com:443: denied by network.allow: the network is denied as a whole; grant Some("[network]\nallow = [\"127.0.0.1.example.com\"]\n"), person may: true
        "#]],
    );
}

#[test]
fn a_denial_is_a_record() {
    let Decision::Denied(denial) = decide(&plan(), &Question::Read(path("/srv/a\"b"))) else {
        panic!("it must be denied")
    };
    let json = serde_json::to_string_pretty(&denial.record()).unwrap();
    expect![[r#"
        {
          "version": 1,
          "action": "read",
          "object": "/srv/a\"b",
          "rule": "filesystem.default",
          "origin": "built-in",
          "reason": "no rule grants it",
          "smallest_grant": "[filesystem]\nread = [\"system\", '/srv/a\"b']\n",
          "person_may_grant": true
        }"#]]
    .assert_eq(&json);
    let lines = denial.smallest_grant.unwrap();
    let table: toml::Table = lines.parse().unwrap();
    assert_eq!(table["filesystem"]["read"][1].as_str(), Some("/srv/a\"b"));
}

#[test]
fn a_name_that_no_policy_can_write_has_no_grant() {
    let odd = AbsolutePath::parse(b"/srv/\xff").unwrap();
    let Decision::Denied(denial) = decide(&plan(), &Question::Read(odd)) else {
        panic!("it must be denied")
    };
    assert_eq!(
        (denial.smallest_grant, denial.person_may_grant),
        (None, false)
    );
}

#[test]
fn links_of_the_view_that_go_round_come_to_an_end() {
    let mut plan = plan();
    for (from, target) in [("/x", "/y"), ("/y", "/x")] {
        plan.steps.push(crate::plan::Step {
            name: "link".to_owned(),
            action: Action::Symlink {
                path: path(from),
                target: target.into(),
            },
            holds: Vec::new(),
        });
    }
    assert!(matches!(
        decide(&plan, &Question::Read(path("/x/a"))),
        Decision::Denied(_)
    ));
}

#[test]
fn connections_are_decided_by_the_judge_of_the_egress_process() {
    use crate::compile::network::tests::{facts_with_names, policy_with};
    let source = "network.allow = ['a.example', 'db.example:5432']\n\
                  network.deny = ['bad.a.example']\nnetwork.host_ports = [9000]\n\
                  [[network.rule]]\nhost = 'old.example'\nexpires = 2020-01-01\n";
    let plan = compiled(&policy_with(source), &facts_with_names()).unwrap();
    let mut answers = String::new();
    for (host, port) in [
        ("a.example", 443),
        ("A.example.", 443),
        ("db.example", 5432),
        ("a.example", 22),
        ("bad.a.example", 443),
        ("old.example", 443),
        ("169.254.169.254", 80),
        ("127.1", 8000),
        ("localhost", 9000),
        ("a b", 443),
    ] {
        let question = Question::Connect {
            host: host.to_owned(),
            port,
        };
        let answer = match decide_at(&plan, &question, 1_900_000_000) {
            Decision::Permit { rule, note } => format!("permit {} ({note:?})", rule.id),
            Decision::Denied(denial) => format!("deny {}: {}", denial.rule.id, denial.reason),
        };
        answers.push_str(&format!("{host}:{port} {answer}\n"));
    }
    expect![[r#"
        a.example:443 permit network.allow[0] (Some("TLS is held to this name and passes unread"))
        A.example.:443 permit network.allow[0] (Some("TLS is held to this name and passes unread"))
        db.example:5432 permit network.allow[1] (Some("any bytes pass"))
        a.example:22 deny network.allow: no rule allows a.example:22: network.allow[0] (user.toml:2) names the host with other ports
        bad.a.example:443 deny network.deny[0]: bad.a.example:443 is denied by network.deny[0] (user.toml:3)
        old.example:443 deny network.allow: no rule allows old.example:443: network.rule[0] (user.toml:5) has expired
        169.254.169.254:80 deny built-in.floor: 169.254.169.254 is beyond any rule: link-local, where clouds serve metadata
        127.1:8000 permit built-in.loopback (Some("the run's own loopback; nothing of the host listens there"))
        localhost:9000 permit network.host_ports[0] (Some("leads to the same port of the host's 127.0.0.1"))
        a b:443 deny network.allow: the host has a byte that no host name has; names with other letters are written as A-labels (xn--…)
    "#]].assert_eq(&answers);
}

#[test]
fn guarded_paths_are_named_where_a_step_keeps_them() {
    let write = |plan: &Plan, text: &str| answer(plan, &Question::Write(path(text)));
    let mut plan = plan();
    plan.steps
        .retain(|step| !step.holds.contains(&Guarantee::FS4));
    let hook = "/home/u/project/.git/hooks/update";
    assert!(write(&plan, hook).contains("permit by filesystem.write[0]"));
    plan.steps[0].holds.push(Guarantee::FS4);
    for (file, expected) in [
        (
            hook,
            "permit by guard.git:.git/hooks/** held until you approve it",
        ),
        (
            "/home/u/project/.git/config",
            "held where its keys run something",
        ),
        ("/home/u/project/sub/.git", "held where it leads elsewhere"),
        (
            "/home/u/project/Makefile",
            "permit by filesystem.write[0] named in the report",
        ),
        (
            "/home/u/project/src/main.rs",
            "permit by filesystem.write[0] \n",
        ),
    ] {
        let answer = write(&plan, file);
        assert!(answer.contains(expected), "{answer}");
    }
    plan.guard = plan
        .guard
        .refusing(crate::compile::fixtures::rule("approval.guarded"));
    let answer = write(&plan, hook);
    assert!(
        answer.contains("denied by guard.git:.git/hooks/**"),
        "{answer}"
    );
    assert!(
        answer.contains("approval.guarded (stockade.toml:1) refuses"),
        "{answer}"
    );
}
