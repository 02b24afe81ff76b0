//! The container wall with the container made by an installed OCI runtime, in
//! the same view and behind the same way out: ordinary work, limits, kills, and
//! what is refused.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod staying;

use std::fs;
use std::process::Stdio;
use std::time::Instant;

use serde_json::Value;
use staying::soon;
use stockade_testkit::net::Internet;
use stockade_testkit::{Finished, World, image, is_root, processes_with, runtime_version, skip};

/// What can make containers here, with the policy that has it do so. Runc of
/// older distributions is known to let containers out, and then accepted by its
/// version; what a live workspace has no guard against is given up by name, and
/// exact limits where this user has no control group.
fn policies(test: &str) -> Vec<(&'static str, String)> {
    let mut policies = Vec::new();
    for runtime in ["runc", "crun"] {
        let Some(version) = runtime_version(runtime) else {
            skip(test, runtime, "it is not installed");
            continue;
        };
        let weaken = match is_root() {
            true => "[\"FS4\"]",
            false => "[\"FS4\", \"PR7\"]",
        };
        let policy = format!(
            "wall = \"container\"\nweaken = {weaken}\n[container]\nruntime = \"{runtime}\"\n\
             accept_runtime = \"{version}\"\n"
        );
        policies.push((runtime, policy));
    }
    policies
}

/// A world for each runtime that is here.
fn behind_each(test: &str, check: impl Fn(&str, &World, &str)) {
    for (runtime, policy) in policies(test) {
        let world = World::new();
        world.policy(&policy);
        check(runtime, &world, &policy);
    }
}

fn stockade(world: &World, arguments: &[&str]) -> Finished {
    Finished::of(world.stockade().args(arguments).output().unwrap())
}

#[test]
fn what_the_runtime_made_is_seen_before_the_command_starts() {
    behind_each("what_the_runtime_made", |runtime, world, _| {
        let report = world.outside().join("report.json");
        let options = ["--report", report.to_str().unwrap()];
        let script = "grep -E '^(NoNewPrivs|Seccomp|Cap[A-Z][a-z]+):' /proc/self/status; id -u; \
                      cat /proc/1/comm; ls -d /container /bundle /runtime; ls /proc/self/fd | wc -l; \
                      unshare -Ur true; echo x > /proc/sys/kernel/hostname; touch /usr/x /x";
        let run = world.run(&options, &["sh", "-c", script]);
        let shown = "CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\n\
                     CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\n\
                     CapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n\
                     0\nstockade-agent\n4\n";
        assert_eq!(run.stdout, shown, "{runtime}: {}", run.stderr);
        let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
        assert!(
            report.to_string().contains("the agent is process 1"),
            "{report}"
        );
        for step in ["guest.root", "guest.kernel"] {
            let refused = world.run(&["--fail-step", step], &["sh", "-c", "echo ran"]);
            let refused = refused.expect_code(125);
            assert!(refused.stderr.contains(step), "{}", refused.stderr);
            assert!(!refused.stdout.contains("ran"));
        }
        let plan = stockade(world, &["explain", "--json", "--", "true"]).ok();
        let plan: Value = serde_json::from_str(&plan).unwrap();
        assert_eq!(plan["runtime"]["name"], runtime);
        assert_eq!(plan["kernel"], Value::Null);
    });
}

#[test]
fn ordinary_work_is_done_as_outside() {
    behind_each("ordinary_work", |runtime, world, _| {
        let script = "set -e; umask 027; echo one > file; git init -q .; \
            git -c user.name=a -c user.email=a@b add file; \
            git -c user.name=a -c user.email=a@b commit -qm first; git log --format=%s; \
            printf 'int main(void){return 42;}' > main.c; cc -o main main.c; \
            ./main || echo $?; /usr/bin/python3 -c 'print(6*7)'; stat -c %a file; \
            head -c 300000 /dev/zero | wc -c; hostname";
        let host_name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let said = world.sh(script).ok();
        let expected = format!("first\n42\n42\n640\n300000\n{}", host_name.trim());
        assert_eq!(said, expected, "{runtime}");
        let outside =
            world.outside_sh("git log --format=%s; ./main; echo $?; stat -c '%a %u' file");
        let own = stockade_sys::rustix::process::geteuid().as_raw();
        assert_eq!(outside.ok(), format!("first\n42\n640 {own}"));
        world.sh("exit 7").expect_code(7);
        world.sh("kill -TERM $$").expect_code(143);
        world.run(&[], &["no-such-command"]).expect_code(127);
        let input = world.run_with_input(&["-q"], &["wc", "-c"], &[b'x'; 70_000]);
        assert_eq!(input.ok(), "70000");
        // What waits in a layer is applied as from any other wall.
        let script = "echo new > file; mkdir d; echo more > d/f";
        world
            .run(&["--workspace", "review"], &["sh", "-c", script])
            .ok();
        assert_eq!(
            fs::read_to_string(world.project.join("file")).unwrap(),
            "one\n"
        );
        stockade(world, &["apply"]).expect_code(0);
        assert_eq!(
            fs::read_to_string(world.project.join("file")).unwrap(),
            "new\n"
        );
    });
}

#[test]
fn what_is_not_granted_is_not_there() {
    behind_each("what_is_not_granted", |runtime, world, _| {
        world.write(".ssh/id_ed25519", "a key\n");
        world.write("project/.env", "TOKEN=hidden\n");
        let outside = world.outside().join("other");
        fs::write(&outside, "another's\n").unwrap();
        let script = format!(
            "cat ~/.ssh/id_ed25519 {0} .env; ls /proc/1/root/root; readlink /proc/1/fd/*; cat /proc/1/environ; \
             touch /etc/x; echo over > {0}; ls /sys/fs/cgroup",
            outside.display()
        );
        let run = world.run(&["--hide", ".env"], &["sh", "-c", &script]);
        assert_eq!(run.stdout, "", "{runtime}: {}", run.stderr);
        assert_eq!(fs::read_to_string(&outside).unwrap(), "another's\n");
    });
}

#[test]
fn limits_hold_and_are_named() {
    behind_each("limits_hold", |runtime, world, _| {
        let late = world.run(&["--wall-time", "3s"], &["sleep", "600"]);
        assert!(late.expect_code(124).stderr.contains("limits.wall_time"));
        let cases: [(&[&str], &str, &str); 3] = [
            (
                &["--memory", "256MiB"],
                "/usr/bin/python3 -c 'x = bytearray(1 << 30); print(len(x))'",
                "limits.memory",
            ),
            (
                &["--processes", "64"],
                "for i in $(seq 200); do sleep 5 & done; wait",
                "limits.processes",
            ),
            (
                &["--disk", "100MiB"],
                "dd if=/dev/zero of=/tmp/large bs=1M count=1000",
                "limits.disk",
            ),
        ];
        for (options, script, limit) in cases {
            let run = world.run(options, &["sh", "-c", script]);
            assert_ne!(run.code, Some(0), "{runtime} {limit}: {run:?}");
            // Without a control group their number is sampled, and a shell that was
            // refused one may be gone by then.
            let sampled = limit == "limits.processes" && !is_root();
            let said = &run.stderr;
            assert!(sampled || said.contains(limit), "{runtime} {limit}: {said}");
        }
        let run = world.run(&["--open-files", "50"], &["sh", "-c", "ulimit -n"]);
        assert_eq!(run.ok(), "50");
    });
}

#[test]
fn only_named_hosts_are_reached() {
    behind_each("only_named_hosts", |runtime, world, policy| {
        let internet = Internet::start(world);
        internet.policy(world, "allow = [\"origin.test\"]", "");
        let file = world.home.join(".config/stockade/stockade.toml");
        let network = fs::read_to_string(&file).unwrap();
        let (keys, tables) = policy.split_once("[container]").unwrap();
        let policy = network.replacen('\n', &format!("\n{keys}"), 1);
        fs::write(file, format!("{policy}\n[container]{tables}")).unwrap();
        let script = "curl -sS --max-time 60 http://origin.test/a; \
            curl -sS --max-time 60 --noproxy '*' http://origin.test/b; \
            curl -sSf --max-time 60 --noproxy '*' http://93.184.216.66/ || echo refused; \
            curl -sSf --max-time 60 http://evil.test/ || echo refused";
        let run = internet.sh(world, script);
        let said = "origin /a\norigin /b\nrefused\nrefused\n";
        assert_eq!(run.stdout, said, "{runtime}: {}", run.stderr);
        assert!(!internet.saw_text("evil"));
    });
}

#[test]
fn an_image_is_the_system_there_too() {
    behind_each("an_image", |runtime, world, policy| {
        if !image::can_be_made() {
            return skip("an_image", "busybox", "there is none");
        }
        image::import(world, &[]);
        world.policy(&format!("{policy}image = \"tiny\"\n"));
        world.write("project/file", "mine\n");
        let run = world.sh("cat /etc/os-release file; ls -d /usr/sbin/runc /runtime");
        assert_eq!(run.stdout, "NAME=tiny\nmine\n", "{runtime}: {}", run.stderr);
    });
}

#[test]
fn a_run_may_be_killed_at_any_moment() {
    behind_each("a_run_may_be_killed", |runtime, world, _| {
        let mark = format!("killed-{runtime}-{}", std::process::id());
        let script = format!("(sleep 6000; : {mark}) & sleep 0.02; : {mark}");
        let command = || {
            let mut command = world.stockade();
            command.args(["run", "--", "sh", "-c", &script]);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command
        };
        let begun = Instant::now();
        assert!(command().status().unwrap().success(), "{runtime}");
        let life = begun.elapsed();
        for number in 0..15 {
            let mut run = command().spawn().unwrap();
            std::thread::sleep(life * number / 15);
            run.kill().unwrap();
            run.wait().unwrap();
        }
        soon("no process is left", || processes_with(&mark).is_empty());
        let home = world.home.to_str().unwrap();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.lines().any(|line| line.contains(home)), "{mounts}");
        stockade(world, &["log", "--verify"]).ok();
    });
}

/// The whole corpus, also behind a version that has to be accepted by name.
#[test]
fn no_attack_escapes() {
    if !is_root() {
        return skip(
            "no_attack_escapes",
            "cgroup",
            "limits would only be sampled",
        );
    }
    behind_each("no_attack_escapes", |runtime, world, _| {
        let version = runtime_version(runtime).unwrap();
        let arguments = [
            "doctor",
            "--attack",
            "--wall",
            "container",
            "--runtime",
            runtime,
            "--accept-runtime",
            &version,
            "--json",
        ];
        let found = stockade(world, &arguments);
        assert_eq!(
            found.code,
            Some(0),
            "{runtime}: {}{}",
            found.stdout,
            found.stderr
        );
        let found: Value = serde_json::from_str(&found.stdout).unwrap();
        let text = found.to_string();
        let stopped = text.matches("\"stopped\"").count();
        assert!(stopped > 150, "{runtime}: {stopped}");
    });
}

#[test]
fn a_version_that_is_known_to_let_containers_out_is_refused_with_its_number() {
    for (runtime, policy) in policies("a_version_that_is_known") {
        let world = World::new();
        let version = runtime_version(runtime).unwrap();
        // Another version is accepted, which is none.
        world.policy(&policy.replace(&version, "0.1"));
        let run = world.run(&[], &["true"]);
        let doctor = stockade(&world, &["doctor"]).stdout;
        let line = doctor
            .lines()
            .find(|line| line.contains(&version))
            .unwrap_or_default();
        if !line.contains("CVE-") {
            run.ok();
            continue;
        }
        let refused = run.expect_code(125);
        for part in [
            "lets a container out (CVE-",
            &version,
            "container.accept_runtime",
        ] {
            assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
        }
    }
}

#[test]
fn a_live_workspace_has_no_guard_there_and_a_project_does_not_choose_the_runtime() {
    for (runtime, policy) in policies("a_live_workspace_has_no_guard") {
        let world = World::new();
        world.policy(&policy.replace("\"FS4\"", "\"EP2\""));
        let refused = world.run(&[], &["true"]).expect_code(125);
        assert!(refused.stderr.contains("FS4"), "{}", refused.stderr);
        world.run(&["--workspace", "review"], &["true"]).ok();
        let nested = world.run(&["--workspace", "review", "--nested-sandbox"], &["true"]);
        assert!(nested.expect_code(125).stderr.contains("container.runtime"));
        world.policy("");
        world.write(
            "project/stockade.toml",
            format!("version = 1\n[container]\nruntime = \"{runtime}\"\n"),
        );
        let refused = world.run(&[], &["true"]).expect_code(125);
        assert!(
            refused.stderr.contains("choose the OCI runtime"),
            "{}",
            refused.stderr
        );
    }
}
