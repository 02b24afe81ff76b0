//! The gVisor wall: ordinary work, limits, the way out, sandboxes that stay,
//! and that nothing is left of a run, with gVisor's own kernel under the
//! command.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod staying;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use staying::{Staying, signal, soon};
use stockade_sys::rustix::process::Signal;
use stockade_testkit::net::Internet;
use stockade_testkit::pty::Terminal;
use stockade_testkit::{Finished, World, image, processes_with, skip};

/// What is given up by name: exact limits, where this user has no control
/// group, and guarded names, which a live workspace has not behind this wall.
const POLICY: &str = "wall = \"gvisor\"\nweaken = [\"FS4\", \"PR7\"]\n";

fn has_gvisor(test: &str) -> bool {
    let places = ["/usr/local/bin", "/usr/bin", "/usr/sbin"];
    let found = places
        .iter()
        .any(|place| Path::new(place).join("runsc").exists());
    if !found {
        skip(test, "gvisor", "there is no runsc");
    }
    found
}

/// A world whose policy runs everything behind gVisor.
fn behind_gvisor(test: &str) -> Option<World> {
    has_gvisor(test).then(|| {
        let world = World::new();
        world.policy(POLICY);
        world
    })
}

fn stockade(world: &World, arguments: &[&str]) -> Finished {
    Finished::of(world.stockade().args(arguments).output().unwrap())
}

#[test]
fn the_command_has_another_kernel_which_is_seen_before_it_starts() {
    let Some(world) = behind_gvisor("the_command_has_another_kernel") else {
        return;
    };
    let report = world.outside().join("report.json");
    let options = ["--report", report.to_str().unwrap()];
    let inside = world.run(&options, &["cat", "/proc/version"]).ok();
    let outside = fs::read_to_string("/proc/version").unwrap();
    assert!(inside.starts_with("Linux version "), "{inside}");
    assert_ne!(inside, outside.trim());
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    assert!(
        report.to_string().contains("the agent's kernel says"),
        "{report}"
    );

    // What starts the kernel is not there for whom it runs.
    let hidden = world.sh("ls -A /run/stockade-guest; cat /run/stockade-guest/config.json");
    assert_eq!(hidden.stdout, "");
    // Each step that is only there for the kernel counts.
    for step in ["guest.bundle", "guest.program", "guest.kernel"] {
        let refused = world
            .run(&["--fail-step", step], &["sh", "-c", "echo ran"])
            .expect_code(125);
        assert!(refused.stderr.contains(step), "{}", refused.stderr);
        assert!(!refused.stdout.contains("ran"));
    }
}

#[test]
fn guarded_names_in_a_live_workspace_are_refused_unless_that_is_accepted() {
    if !has_gvisor("guarded_names_in_a_live_workspace") {
        return;
    }
    let world = World::new();
    world.policy("wall = \"gvisor\"\nweaken = [\"PR7\"]\n");
    let refused = world.run(&[], &["true"]).expect_code(125);
    for part in ["FS4 cannot be kept by the gvisor wall", "\"review\""] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
    world.run(&["--workspace", "discard"], &["true"]).ok();
}

#[test]
fn ordinary_work_is_done_as_outside() {
    let Some(world) = behind_gvisor("ordinary_work_is_done_as_outside") else {
        return;
    };
    let script = "set -e; umask 027; echo one > file; git init -q .; \
        git -c user.name=a -c user.email=a@b add file; \
        git -c user.name=a -c user.email=a@b commit -qm first; git log --format=%s; \
        printf 'int main(void){return 42;}' > main.c; cc -o main main.c; \
        ./main || echo $?; /usr/bin/python3 -c 'print(6*7)'; \
        mkdir -p deep/er; ln -s ../file deep/link; cat deep/link; stat -c %a file";
    let said = world.sh(script).ok();
    assert_eq!(said, "first\n42\n42\none\n640");
    // What was written is there outside, as it was written.
    let outside = world.outside_sh("git log --format=%s; ./main; echo $?; stat -c '%a %u' file");
    let own = stockade_sys::rustix::process::geteuid().as_raw();
    assert_eq!(outside.ok(), format!("first\n42\n640 {own}"));
    // And what is changed outside during a run is seen within.
    let script = "echo ready > ready; while ! test -e go; do sleep 0.05; done; cat file";
    let mut command = world.stockade();
    command.args(["run", "--", "sh", "-c", script]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    soon("it runs", || world.project.join("ready").exists());
    fs::write(world.project.join("file"), "two, and longer\n").unwrap();
    fs::write(world.project.join("go"), "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"two, and longer\n");
}

#[test]
fn exit_codes_and_signals_are_those_of_any_run() {
    let Some(world) = behind_gvisor("exit_codes_and_signals") else {
        return;
    };
    world.sh("exit 7").expect_code(7);
    world.sh("kill -TERM $$").expect_code(143);
    let absent = world.run(&[], &["no-such-command"]).expect_code(127);
    assert!(
        absent.stderr.contains("not found inside"),
        "{}",
        absent.stderr
    );
    world.write("project/plain", "no program\n");
    world.run(&[], &["./plain"]).expect_code(126);
    // What is left in the background may finish, for a moment.
    world.sh("(sleep 0.1; echo late > late) & exit 0").ok();
    assert!(world.project.join("late").exists());
    // A signal to the run is one to its command.
    let mut command = world.stockade();
    let script = "trap 'echo caught; exit 9' TERM; echo ready > ready; \
                  while :; do sleep 0.05; done";
    command.args(["run", "--", "sh", "-c", script]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    soon("it runs", || world.project.join("ready").exists());
    signal(child.id(), Signal::TERM);
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.stdout, output.status.code()),
        (b"caught\n".to_vec(), Some(9))
    );
}

#[test]
fn streams_are_pipes_and_files_as_outside() {
    let Some(world) = behind_gvisor("streams_are_pipes_and_files") else {
        return;
    };
    let input = vec![b'x'; 300_000];
    let counted = world.run_with_input(&["-q"], &["sh", "-c", "wc -c; echo done >&2"], &input);
    assert_eq!(counted.stderr.trim(), "done");
    assert_eq!(counted.ok(), "300000");
    let much = world.run(&[], &["sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' y"]);
    assert_eq!(much.stdout.len(), 1_000_000);

    // A file is written where its offset is, and read from there.
    let path = world.write("out", "before\n");
    let mut file = File::options().read(true).write(true).open(path).unwrap();
    file.seek(SeekFrom::End(0)).unwrap();
    for word in ["one", "two"] {
        let mut command = world.stockade();
        command.args(["run", "-q", "--", "echo", word]);
        let status = command.stdout(file.try_clone().unwrap()).status().unwrap();
        assert!(status.success());
    }
    file.write_all(b"after\n").unwrap();
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before\none\ntwo\nafter\n");
    file.seek(SeekFrom::Start(7)).unwrap();
    let mut command = world.stockade();
    command.args(["run", "-q", "--", "cat"]).stdin(file);
    assert_eq!(command.output().unwrap().stdout, b"one\ntwo\nafter\n");
}

#[test]
fn a_terminal_works_and_is_given_back() {
    let Some(world) = behind_gvisor("a_terminal_works_and_is_given_back") else {
        return;
    };
    let mut command = world.stockade();
    let script = "stty size; tty; read line; echo got $line; kill -INT $$";
    command.args(["run", "-q", "--", "sh", "-c", script]);
    let mut terminal = Terminal::start(&command);
    terminal.expect("/dev/pts/");
    terminal.send(b"words\r");
    terminal.expect("got words");
    assert_eq!(terminal.wait().code(), Some(130));
}

#[test]
fn what_a_review_holds_is_applied() {
    let Some(world) = behind_gvisor("what_a_review_holds_is_applied") else {
        return;
    };
    world.write("project/file", "old\n");
    let script = "echo new > file; mkdir d; echo more > d/f; cat file d/f";
    let run = world.run(&["--workspace", "review"], &["sh", "-c", script]);
    assert_eq!(run.ok(), "new\nmore");
    let file = world.project.join("file");
    assert_eq!(fs::read_to_string(&file).unwrap(), "old\n");
    stockade(&world, &["apply"]).expect_code(0);
    assert_eq!(fs::read_to_string(&file).unwrap(), "new\n");
    assert!(world.project.join("d/f").exists());
}

#[test]
fn what_is_not_granted_is_not_there() {
    let Some(world) = behind_gvisor("what_is_not_granted_is_not_there") else {
        return;
    };
    world.write(".ssh/id_ed25519", "a key\n");
    world.write(".aws/credentials", "a secret\n");
    world.write("project/.env", "TOKEN=hidden\n");
    let outside = world.outside().join("other");
    fs::write(&outside, "another's\n").unwrap();
    let script = format!(
        "cat ~/.ssh/id_ed25519 ~/.aws/credentials {0} .env; ls /proc/1/root/root; \
         touch /usr/bin/x /etc/x; echo over > {0}; \
         unshare -Urm sh -c 'umount -l /run/stockade-guest; cat /run/stockade-guest/config.json'",
        outside.display()
    );
    let run = world.run(&["--hide", ".env"], &["sh", "-c", &script]);
    assert_eq!(run.stdout, "", "{}", run.stderr);
    assert_eq!(fs::read_to_string(&outside).unwrap(), "another's\n");
    assert!(!Path::new("/usr/bin/x").exists() && !Path::new("/etc/x").exists());
}

#[test]
fn only_named_hosts_are_reached() {
    if !has_gvisor("only_named_hosts_are_reached") {
        return;
    }
    let world = World::new();
    let internet = Internet::start(&world);
    internet.policy(&world, "allow = [\"origin.test\"]", "");
    let file = world.home.join(".config/stockade/stockade.toml");
    let network = fs::read_to_string(&file).unwrap();
    fs::write(file, network.replacen("\n", &format!("\n{POLICY}"), 1)).unwrap();
    fs::copy(internet.authority(), world.project.join("ca.pem")).unwrap();
    let script = "curl -sS --max-time 60 http://origin.test/a; \
        curl -sS --max-time 60 --noproxy '*' http://origin.test/b; \
        curl -sS --max-time 60 --noproxy '*' --cacert ca.pem https://origin.test/c; \
        curl -sSf --max-time 60 --noproxy '*' http://93.184.216.66/ || echo refused; \
        curl -sSf --max-time 60 http://evil.test/ || echo refused";
    let run = internet.sh(&world, script);
    let said = "origin /a\norigin /b\norigin /c\nrefused\nrefused\n";
    assert_eq!(run.stdout, said, "{}", run.stderr);
    assert!(!internet.saw_text("evil"));
    // Without a rule there is nothing to reach at all.
    world.policy(POLICY);
    let run = world.sh("curl -sS --max-time 20 http://93.184.216.66/ || echo refused");
    assert_eq!(run.stdout, "refused\n");
}

#[test]
fn limits_hold_and_the_machine_does_not_notice() {
    let Some(world) = behind_gvisor("limits_hold") else {
        return;
    };
    let late = world.run(&["--wall-time", "3s"], &["sleep", "600"]);
    assert!(late.expect_code(124).stderr.contains("limits.wall_time"));
    let eats = "x = bytearray(1 << 30)\nfor i in range(0, len(x), 4096): x[i] = 1";
    let run = world.run(&["--memory", "256MiB"], &["/usr/bin/python3", "-c", eats]);
    assert_ne!(run.code, Some(0));
    assert!(run.stderr.contains("limits.memory"), "{}", run.stderr);
    let forks = "import os, time\nn = 0\n\
                 while n < 500:\n    \
                     try:\n        \
                         if os.fork() == 0: time.sleep(600)\n    \
                     except OSError: break\n    \
                     n += 1\n\
                 print(n)";
    let run = world.run(&["--processes", "40"], &["/usr/bin/python3", "-c", forks]);
    let made: u32 = run.ok().parse().unwrap();
    assert!(made < 40, "{made}");
    let run = world.run(&["--open-files", "50"], &["sh", "-c", "ulimit -n"]);
    assert_eq!(run.ok(), "50");
    let disk = "head -c 200000000 /dev/zero > /tmp/much; stat -c %s /tmp/much";
    let run = world.run(&["--disk", "64MiB"], &["sh", "-c", disk]);
    let size: u64 = run.stdout.trim().parse().unwrap();
    assert!(size <= 64 << 20, "{size}");
}

/// Whatever is killed, nothing goes on: what is inside has this process id
/// namespace and no other.
#[test]
fn nothing_is_left_of_a_run_that_was_killed() {
    let Some(world) = behind_gvisor("nothing_is_left_of_a_run_that_was_killed") else {
        return;
    };
    let mark = world.outside().display().to_string();
    let mut command = world.stockade();
    let script = format!(
        "(sleep 60{0} & sleep 6000) & echo ready > ready; sleep 60000",
        "0"
    );
    command.args(["run", "--", "sh", "-c", &script, &mark]);
    let mut child = command.spawn().unwrap();
    soon("it runs", || world.project.join("ready").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    soon("the supervisor is gone", || {
        processes_with(&mark).is_empty()
    });
    // Every part of gVisor has this in its arguments, and no other run now.
    soon("gVisor is gone", || {
        processes_with("stockade-guest").is_empty() || !has_own(&mark)
    });
    world.sh("echo again").ok();
}

/// Whether a process that stands in the world's project is left.
fn has_own(mark: &str) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else {
        return true;
    };
    processes.flatten().any(|process| {
        let directory = fs::read_link(process.path().join("cwd"));
        directory.is_ok_and(|directory| directory.starts_with(mark))
    })
}

#[test]
fn a_sandbox_stays_and_takes_commands() {
    if !has_gvisor("a_sandbox_stays_and_takes_commands") {
        return;
    }
    let world = World::new();
    world.policy(POLICY);
    let staying = Staying {
        world,
        name: format!("gvisor-{}", std::process::id()),
    };
    assert_eq!(staying.start(&[]).ok(), staying.name);
    assert!(!staying.sh("cat /proc/version").ok().is_empty());
    staying.sh("echo kept > /tmp/file; sleep 1000 &").ok();
    assert_eq!(
        staying.sh("cat /tmp/file; exit 3").expect_code(3).stdout,
        "kept\n"
    );
    let inside = staying.sh("cat /proc/version").ok();
    assert_ne!(inside, fs::read_to_string("/proc/version").unwrap().trim());
    // The first and the second command are in one process table.
    assert!(
        staying
            .sh("cat /proc/*/cmdline | tr '\\0' ' '")
            .ok()
            .contains("sleep 1000")
    );
    staying.stockade(&["stop", &staying.name]).ok();
    assert!(staying.listed().is_none());
    assert_eq!(processes_with(&staying.name), [0; 0]);
}

#[test]
fn an_image_is_the_system_there_too() {
    let Some(world) = behind_gvisor("an_image_is_the_system_there_too") else {
        return;
    };
    if !image::can_be_made() {
        return skip(
            "an_image_is_the_system_there_too",
            "busybox",
            "there is none",
        );
    }
    image::import(&world, &[]);
    world.policy(&format!("{POLICY}\n[container]\nimage = \"tiny\"\n"));
    world.write("project/file", "mine\n");
    let run = world.sh("cat /etc/os-release file; cat /proc/version; ls /run/stockade-guest");
    let said = run.ok();
    assert!(
        said.starts_with("NAME=tiny\nmine\nLinux version "),
        "{said}"
    );
}

#[test]
fn the_plan_says_what_holds_and_by_what() {
    let Some(world) = behind_gvisor("the_plan_says_what_holds") else {
        return;
    };
    let plan = stockade(&world, &["explain", "--json", "--", "true"]).ok();
    let plan: Value = serde_json::from_str(&plan).unwrap();
    assert_eq!(plan["kernel"]["name"], "gvisor");
    let text = stockade(&world, &["explain", "--verbose", "--", "true"]).ok();
    for part in [
        "Kernel gVisor",
        "guest.kernel",
        "a kernel of the command's own",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
