//! Commands in sandboxes that stay: streams, terminals, signals and codes, and
//! that the second command is confined as the first.

mod staying;

use std::io::{Read, Write};
use std::process::Stdio;

use staying::{Staying, signal, soon};
use stockade_sys::rustix::process::Signal;
use stockade_testkit::pty::Terminal;
use stockade_testkit::{Finished, processes_with};

#[test]
fn a_command_ends_as_it_would_with_run() {
    let staying = Staying::new("ends", &[]);
    let done = staying.sh("echo out; echo err >&2; exit 3");
    assert_eq!((&*done.stdout, &*done.stderr), ("out\n", "err\n"));
    done.expect_code(3);
    staying.sh("kill -KILL $$").expect_code(137);
    for (argv, code, words) in [
        (["no-such-command"], 127, "was not found inside"),
        (["/etc/passwd"], 126, "cannot be executed"),
    ] {
        let done = staying.exec(&argv).expect_code(code);
        assert!(done.stderr.contains(words), "{}", done.stderr);
        staying.world.run(&[], &argv).expect_code(code);
    }
    let lost = staying.command(&["--cwd", "/no/such/place"], &["true"]);
    let lost = Finished::of({ lost }.output().unwrap()).expect_code(125);
    assert!(lost.stderr.contains("the directory cannot be entered"));
    staying
        .stockade(&["exec", "nobody", "--", "true"])
        .expect_code(125);
    staying
        .stockade(&["exec", "No.Name", "--", "true"])
        .expect_code(125);
    // What one leaves, the next one finds: files and processes.
    staying
        .sh("echo kept > /tmp/kept; sleep 1000 & echo $! > /tmp/pid")
        .ok();
    assert_eq!(
        staying.sh("cat /tmp/kept; kill -0 $(cat /tmp/pid)").ok(),
        "kept"
    );
    assert_eq!(staying.commands(), Some(0));
}

#[test]
fn variables_and_directory_are_as_asked() {
    let staying = Staying::new("asked", &["--env", "FIRST=1", "--env", "SECOND=1"]);
    staying.world.write("project/below/file", "");
    let options = ["--env", "SECOND=2", "--cwd", "below"];
    let script = "echo $FIRST $SECOND $PWD; ls";
    let mut command = staying.command(&options, &["sh", "-c", script]);
    let project = staying.world.project.display();
    assert_eq!(
        Finished::of(command.output().unwrap()).ok(),
        format!("1 2 {project}/below\nfile")
    );
    let script = "env | sort; pwd; umask";
    let run = staying.world.run(
        &["--env", "FIRST=1", "--env", "SECOND=1"],
        &["sh", "-c", script],
    );
    assert_eq!(staying.sh(script).ok(), run.ok());
    let mut wrong = staying.command(&["--env", "NOVALUE"], &["true"]);
    Finished::of(wrong.output().unwrap()).expect_code(125);
}

#[test]
fn much_output_waits_for_a_slow_reader_and_for_nobody_else() {
    let staying = Staying::new("much", &[]);
    let script = "head -c 20000000 /dev/zero; echo end >&2";
    let mut command = staying.command(&[], &["sh", "-c", script]);
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut slow = command.spawn().unwrap();
    soon("it runs", || staying.commands() == Some(1));
    // Others go on meanwhile, and the supervisor keeps none of it.
    for number in 0..5 {
        assert_eq!(
            staying.sh(&format!("echo {number}")).ok(),
            number.to_string()
        );
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", staying.supervisor())).unwrap();
    let resident = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    let kib: u64 = resident.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kib < 64 * 1024, "{resident}");
    let mut length = 0;
    let mut output = slow.stdout.take().unwrap();
    let mut buffer = vec![0; 100_000];
    loop {
        match output.read(&mut buffer).unwrap() {
            0 => break,
            read => length += read,
        }
    }
    assert_eq!(length, 20_000_000);
    let done = Finished::of(slow.wait_with_output().unwrap());
    assert_eq!(done.stderr, "end\n");
    // A reader that goes ends the command, as in any pipe.
    let shown = format!("{} exec {} -- yes | head -1", stockade(), staying.name);
    let mut shell = staying.world.stockade();
    let head = std::process::Command::new("sh")
        .args(["-c", &shown])
        .env(
            "HOME",
            shell
                .env("X", "")
                .get_envs()
                .find(|(key, _)| *key == "HOME")
                .unwrap()
                .1
                .unwrap(),
        )
        .output()
        .unwrap();
    assert_eq!(Finished::of(head).ok(), "y");
    soon("yes ends", || staying.commands() == Some(0));
}

fn stockade() -> String {
    stockade_testkit::binary().to_str().unwrap().to_owned()
}

#[test]
fn input_is_passed_on_and_ends() {
    let staying = Staying::new("input", &[]);
    let bytes: Vec<u8> = (0..3_000_000u32).map(|number| (number / 3) as u8).collect();
    for (argv, expected) in [
        (&["sh", "-c", "cat | wc -c"][..], "3000000"),
        // Who reads nothing keeps nobody waiting.
        (&["echo", "deaf"], "deaf"),
        (&["sh", "-c", "head -c 5 | wc -c"], "5"),
    ] {
        let mut command = staying.command(&[], argv);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let bytes = bytes.clone();
        let writer = std::thread::spawn(move || {
            // The command may end without reading it all.
            let _closed = input.write_all(&bytes).is_err();
        });
        let done = Finished::of(child.wait_with_output().unwrap());
        writer.join().unwrap();
        assert_eq!(done.ok(), expected, "{argv:?}");
    }
    assert_eq!(
        staying.sh("cat; readlink /proc/self/fd/0").ok(),
        "/dev/null"
    );
}

#[test]
fn signals_reach_the_command() {
    let staying = Staying::new("signals", &[]);
    for (sent, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut child = staying.spawn("exec sleep 1000");
        signal(child.id(), sent);
        assert_eq!(child.wait().unwrap().code(), Some(code));
    }
    let mut child = staying.spawn("trap 'exit 7' USR1; while :; do sleep 0.01; done");
    signal(child.id(), Signal::USR1);
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

#[test]
fn a_terminal_of_its_own_is_resized_and_given_back() {
    let staying = Staying::new("terminal", &[]);
    let command = staying.command(
        &["-t"],
        &["sh", "-c", "tty; stty size; PS1=prompt: exec sh -i"],
    );
    let mut terminal = Terminal::start(&command);
    let before = terminal.initial_modes().to_owned();
    terminal.expect("/dev/pts/");
    terminal.resize(33, 101);
    soon("the new size", || {
        terminal.send(b"stty size\r");
        terminal
            .watch(std::time::Duration::from_millis(300))
            .contains("33 101")
    });
    // What it says differs from what is typed, which the terminal echoes.
    terminal.send(b"sh -c 'trap \"expr 40 + 3; exit\" INT; while :; do sleep 0.1; done'\r");
    terminal.interrupt("43");
    terminal.send(b"echo $((6*7))$TERM; exit 5\r");
    terminal.expect("42");
    assert_eq!(terminal.wait().code(), Some(5));
    // The first line is its size.
    let modes = |all: &str| all.split_once('\n').unwrap().1.to_owned();
    assert_eq!(modes(&terminal.modes()), modes(&before));
    // Killed without warning, it leaves the terminal as it was.
    let mark = "while :; do sleep 0.1; done; : killed-on-terminal";
    let command = staying.command(&["-t"], &["sh", "-c", &format!("echo on; {mark}")]);
    let mut terminal = Terminal::start(&command);
    let before = terminal.initial_modes().to_owned();
    terminal.expect("on");
    soon("raw mode", || terminal.modes() != before);
    let needle = format!("exec -t {} -- sh -c echo on", staying.name);
    // setsid(1) has the same words in its own; the guard comes last.
    let is_product = |pid: &u32| {
        let program = std::fs::read_link(format!("/proc/{pid}/exe"));
        program.is_ok_and(|program| program.ends_with("stockade"))
    };
    let caller = processes_with(&needle).into_iter().filter(is_product).min();
    signal(caller.unwrap(), Signal::KILL);
    soon("the modes are back", || terminal.modes() == before);
    soon("the command is gone", || staying.commands() == Some(0));
    // Without a terminal of its own a key is a signal.
    let command = staying.command(&[], &["sh", "-c", "echo on; exec sleep 1000"]);
    let mut terminal = Terminal::start(&command);
    terminal.expect("on");
    terminal.send(b"\x03");
    assert_eq!(terminal.wait().code(), Some(130));
    let none = staying
        .command(&["-t"], &["true"])
        .stdin(Stdio::null())
        .output();
    Finished::of(none.unwrap()).expect_code(125);
}

#[test]
fn twenty_commands_at_once_keep_their_own_streams() {
    let staying = Staying::new("twenty", &[]);
    std::thread::scope(|scope| {
        for number in 0..20 {
            let staying = &staying;
            scope.spawn(move || {
                let script = format!("for i in $(seq 2000); do echo {number}; done; exit {number}");
                let done = staying.sh(&script).expect_code(number);
                assert_eq!(done.stdout, format!("{number}\n").repeat(2000));
            });
        }
    });
    assert_eq!(staying.commands(), Some(0));
    let (started, ended) = (
        staying.records("exec_started"),
        staying.records("exec_ended"),
    );
    assert_eq!((started.len(), ended.len()), (20, 20));
    assert_eq!(started[0]["command"][0], "sh");
    let mut codes: Vec<_> = ended
        .iter()
        .filter_map(|one| one["code"].as_i64())
        .collect();
    codes.sort_unstable();
    assert_eq!(codes, (0..20).collect::<Vec<_>>());
    staying.stockade(&["log", "--verify"]).expect_code(0);
}

#[test]
fn sixty_four_commands_and_no_more() {
    let staying = Staying::new("full", &["--processes", "500"]);
    let mut children: Vec<_> = (0..64).map(|_| staying.spawn("exec sleep 1000")).collect();
    let one_more = staying.exec(&["true"]).expect_code(125);
    assert!(
        one_more.stderr.contains("64 commands"),
        "{}",
        one_more.stderr
    );
    let mut first = children.remove(0);
    signal(first.id(), Signal::TERM);
    assert_eq!(first.wait().unwrap().code(), Some(143));
    staying.exec(&["true"]).expect_code(0);
    staying.stockade(&["stop", &staying.name]).expect_code(0);
    for mut child in children {
        assert_eq!(child.wait().unwrap().code(), Some(143));
    }
}

#[test]
fn a_second_command_is_confined_as_the_first_of_a_run() {
    let staying = Staying::new("confined", &[]);
    let secret = staying.world.write(".ssh/id_ed25519", "secret");
    let outside = staying.world.outside().join("planted");
    let shown = "grep -E '^(NoNewPrivs|Seccomp|Seccomp_filters|Cap[A-Z][a-z]+|Groups|Uid|Gid):' \
                 /proc/self/status; cat /proc/self/limits; cat /proc/self/mountinfo | cut -d' ' -f4- \
                 | sort; ls /proc/self/fd | wc -l";
    let first = staying.world.sh(shown).ok();
    for _ in 0..2 {
        assert_eq!(staying.sh(shown).ok(), first);
    }
    assert!(first.contains("NoNewPrivs:\t1") && first.contains("Seccomp:\t2"));
    assert!(first.contains("CapBnd:\t0000000000000000"));
    let namespaces = "cd /proc/self/ns; readlink user mnt pid ipc uts cgroup net";
    let inside = staying.sh(namespaces).ok();
    assert_eq!(staying.sh(namespaces).ok(), inside);
    let host = staying.world.outside_sh(namespaces).ok();
    for (inside, host) in inside.lines().zip(host.lines()) {
        assert_ne!(inside, host);
    }
    let (secret, planted) = (secret.to_str().unwrap(), outside.to_str().unwrap());
    staying.exec(&["cat", secret]).expect_code(1);
    // There may be a private directory of that name.
    staying.sh(&format!("echo x > {planted}; echo x > /usr/planted"));
    assert!(!outside.exists() && !std::path::Path::new("/usr/planted").exists());
    staying.sh("unshare -r true").expect_code(1);
    // The agent is nobody's to read or to trace; what is in it is nothing.
    let agent = staying.sh("grep -l stockade-agent /proc/[0-9]*/comm").ok();
    let agent = agent.split('/').nth(2).unwrap();
    staying
        .sh(&format!("cat /proc/{agent}/environ"))
        .expect_code(1);
    staying
        .sh(&format!("head -c 1 /proc/{agent}/mem"))
        .expect_code(1);
    staying
        .sh(&format!("readlink /proc/{agent}/fd/3"))
        .expect_code(1);
}

#[test]
fn plans_that_begin_in_another_way_stay_too() {
    let staying = Staying::new("nested", &["--nested-sandbox"]);
    assert_eq!(staying.sh("ls /proc/self/fd | wc -l").ok(), "4");
    assert_eq!(staying.sh("unshare -U true && echo made").ok(), "made");
}

#[test]
fn who_kills_the_agent_ends_the_sandbox_and_nothing_else() {
    let staying = Staying::new("killer", &[]);
    let done = staying.sh(
        "for comm in /proc/[0-9]*/comm; do grep -q stockade-agent $comm && \
         kill -KILL $(echo $comm | cut -d/ -f3); done; sleep 1000",
    );
    assert_eq!(done.code, Some(137));
    assert!(done.stderr.contains("the agent"), "{}", done.stderr);
    soon("it is over", || staying.listed().is_none());
    let ended = staying.records("sandbox_ended");
    assert!(ended[0]["reason"].as_str().unwrap().contains("the agent"));
    assert_eq!(staying.start(&[]).ok(), staying.name);
}
