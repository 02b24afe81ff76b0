//! Open cases of the kind "works outside and breaks inside", one test each,
//! named after the case.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use stockade_testkit::pty::Terminal;
use stockade_testkit::tools::{await_file, compile_c, soon};
use stockade_testkit::{
    Finished, World, has_program, is_root, processes_with, replace_program, skip,
};

/// A number that no other test of this machine sleeps for.
fn unique_seconds(digit: u32) -> String {
    format!("77{digit}.0{}", std::process::id())
}

fn stderr_and(finished: &Finished) -> String {
    format!("stdout: {}\nstderr: {}", finished.stdout, finished.stderr)
}

/// `--report` as a value.
fn report(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).expect("there is a report")).expect("it is JSON")
}

#[test]
fn a10_dotfiles_that_are_links() {
    let world = World::new();
    let elsewhere = world.write(world.outside().join("elsewhere/target"), "kept");
    let hooks = world.outside().join("hooks");
    fs::create_dir(&hooks).unwrap();
    fs::create_dir(world.project.join(".git")).unwrap();
    let missing = world.outside().join("nonexistent/x");
    let links = [
        (world.project.join(".bashrc"), missing.clone()),
        (world.home.join(".bashrc"), missing.clone()),
        (world.project.join(".git/hooks"), hooks.clone()),
        (world.project.join("AGENTS.md"), elsewhere.clone()),
        (
            world.project.join(".mcp.json"),
            "../../elsewhere/target".into(),
        ),
        (
            world.project.join(".vscode"),
            world.outside().join("elsewhere"),
        ),
        (world.project.join("loop"), "loop".into()),
        (world.home.join(".profile"), elsewhere.clone()),
    ];
    for (link, target) in &links {
        symlink(target, link).unwrap();
    }
    assert_eq!(world.run(&[], &["echo", "hi"]).ok(), "hi");
    let plant = "for place in .bashrc ~/.bashrc AGENTS.md .mcp.json ~/.profile loop \
                 .git/hooks/pre-commit .vscode/tasks.json; do echo evil >> $place; done; \
                 mkdir -p \"$1\" && echo evil > \"$1/x\"; true";
    let missing_parent = missing.parent().unwrap().to_str().unwrap().to_owned();
    world
        .run(&[], &["sh", "-c", plant, "sh", &missing_parent])
        .expect_code(0);
    for (link, target) in &links {
        assert_eq!(&fs::read_link(link).unwrap(), target, "{link:?} is intact");
    }
    assert!(!missing.exists() && !missing.parent().unwrap().exists());
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "kept");
    assert_eq!(fs::read_dir(&hooks).unwrap().count(), 0);
    assert!(!world.outside().join("elsewhere/tasks.json").exists());
    // The control: outside the same writes do go through the links.
    world
        .outside_sh("echo evil >> AGENTS.md && echo evil > .git/hooks/pre-commit")
        .expect_code(0);
    assert_ne!(fs::read_to_string(&elsewhere).unwrap(), "kept");
}

const MOVES: &str = "set -e; mkdir n; echo a > f; mv f n/; ln n/f g; mkdir -p n/o/p q; mv n/o/p q/; \
    mv q n/o/; ln n/f n/o/q/p/h; mv n/o/q/p/h .; rm -r n/o; mv g n/g; cmp h n/g; rm -r n h; echo done";

#[test]
fn a13_moves_and_links_between_directories() {
    let world = World::new();
    assert_eq!(world.sh(MOVES).ok(), "done");
    let across = "set -e; cd \"$TMPDIR\"; ".to_owned() + MOVES;
    assert_eq!(world.sh(&across).ok(), "done");
    // Stacked layers: a stockade in a stockade, and a second writable grant.
    fs::copy(stockade_testkit::binary(), world.project.join("inner")).unwrap();
    if stockade_testkit::is_root() {
        // A /proc whose /proc/sys is protected from root cannot be mounted anew.
        skip(
            "a13 (stacked)",
            "nested-root",
            "root's sandbox cannot hold another",
        );
    } else {
        let inner = ["./inner", "run", "--", "sh", "-c", MOVES];
        assert_eq!(world.run(&["--nested-sandbox"], &inner).ok(), "done");
    }
    let second = world.home.join("second");
    fs::create_dir(&second).unwrap();
    let script = format!("cd \"$HOME/second\" && {MOVES}");
    let options = ["--write", second.to_str().unwrap()];
    assert_eq!(world.run(&options, &["sh", "-c", &script]).ok(), "done");
}

#[test]
fn a13_cargo_build_with_a_vendored_dependency() {
    let world = World::new();
    world.write(
        "project/Cargo.toml",
        "[package]\nname = \"top\"\nversion = \"0.1.0\"\n\
        edition = \"2021\"\n[dependencies]\nleaf = \"0.1\"\n",
    );
    world.write(
        "project/src/main.rs",
        "fn main() { println!(\"{}\", leaf::answer()) }\n",
    );
    world.write(
        "project/.cargo/config.toml",
        "[source.crates-io]\nreplace-with = \"vendor\"\n\
        [source.vendor]\ndirectory = \"vendor\"\n",
    );
    world.write(
        "project/vendor/leaf/Cargo.toml",
        "[package]\nname = \"leaf\"\nversion = \"0.1.0\"\n\
        edition = \"2021\"\n",
    );
    world.write(
        "project/vendor/leaf/src/lib.rs",
        "pub fn answer() -> u8 { 42 }\n",
    );
    world.write(
        "project/vendor/leaf/.cargo-checksum.json",
        "{\"files\":{},\"package\":null}",
    );
    let with_toolchains = |mut command: Command| {
        for (name, below) in [("RUSTUP_HOME", ".rustup"), ("CARGO_HOME", ".cargo")] {
            let home = std::env::var_os("HOME").unwrap_or_default();
            let place = std::env::var_os(name)
                .unwrap_or_else(|| Path::new(&home).join(below).into_os_string());
            command.env(name, place);
        }
        command.stdin(Stdio::null());
        command
    };
    let mut version = Command::new("cargo");
    version.arg("--version").current_dir(&world.project);
    if !with_toolchains(version)
        .output()
        .is_ok_and(|output| output.status.success())
    {
        return skip("a13_cargo_build", "cargo", "cargo does not run here");
    }
    let mut build = world.stockade();
    build.args([
        "run",
        "--read",
        "toolchains",
        "--",
        "cargo",
        "run",
        "--offline",
        "--quiet",
    ]);
    let built = Finished::of(with_toolchains(build).output().unwrap());
    assert_eq!(built.ok(), "42");
}

const SHARED_OBJECTS: &str = r#"
import multiprocessing as mp, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import shared_memory
def square(x): return x * x
def add(lock, value):
    with lock: value.value += 1
if __name__ == "__main__":
    for method in ("fork", "forkserver", "spawn"):
        context = mp.get_context(method)
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            assert list(pool.map(square, range(5))) == [0, 1, 4, 9, 16]
        lock, value = context.Lock(), context.Value("i", 0)
        workers = [context.Process(target=add, args=(lock, value)) for _ in range(3)]
        [w.start() for w in workers]; [w.join() for w in workers]
        assert value.value == 3, method
    memory = shared_memory.SharedMemory(create=True, size=16)
    memory.buf[0] = 7
    again = shared_memory.SharedMemory(memory.name)
    assert again.buf[0] == 7
    again.close(); memory.close(); memory.unlink()
    print("works")
"#;

#[test]
fn a14_semaphores_shared_memory_and_forkserver() {
    if !has_program("python3") {
        return skip("a14", "python", "there is no python3 on PATH");
    }
    let world = World::new();
    world.write("project/shared.py", SHARED_OBJECTS);
    std::thread::scope(|scope| {
        let runs = [(); 2].map(|()| scope.spawn(|| world.run(&[], &["python3", "shared.py"])));
        for run in runs {
            assert_eq!(run.join().unwrap().ok(), "works");
        }
    });
}

#[test]
fn a14_shared_memory_is_private() {
    if !has_program("python3") {
        return skip("a14", "python", "there is no python3 on PATH");
    }
    let world = World::new();
    let name = format!("stockade-{}", std::process::id());
    let open = format!(
        "from multiprocessing import shared_memory as m\n\
         try: m.SharedMemory('{name}'); print('visible')\nexcept FileNotFoundError: print('absent')"
    );
    let hold = format!(
        "from multiprocessing import shared_memory as m\n\
         s = m.SharedMemory('{name}', create=True, size=16)\n\
         m.SharedMemory('{name}'); print('made', flush=True); input(); s.unlink()"
    );
    let mut command = world.stockade();
    command.args(["run", "--", "python3", "-c", &hold]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0; 5];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut line)
        .unwrap();
    assert_eq!(&line, b"made\n");
    assert!(!Path::new("/dev/shm").join(&name).exists());
    assert_eq!(world.run(&[], &["python3", "-c", &open]).ok(), "absent");
    assert_eq!(
        world.outside_sh(&format!("python3 -c \"{open}\"")).ok(),
        "absent"
    );
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn a15_pseudo_terminals_inside() {
    let world = World::new();
    if has_program("script") {
        let name = world.sh("script -qec tty /dev/null").ok();
        assert!(name.starts_with("/dev/pts/"), "{name}");
    } else {
        skip("a15", "script", "there is no script on PATH");
    }
    if has_program("tmux") {
        let script =
            "tmux -L t -f /dev/null new -d 'sleep 60' && tmux -L t ls && tmux -L t kill-server";
        assert!(world.sh(script).ok().contains("1 windows"));
    } else {
        skip("a15", "tmux", "there is no tmux on PATH");
    }
    if has_program("python3") {
        let script = "import os; m, s = os.openpty(); os.write(m, b'x\\n'); \
                      print(os.read(s, 9), os.ttyname(s))";
        assert_eq!(
            world.run(&[], &["python3", "-c", script]).ok(),
            "b'x\\n' /dev/pts/0"
        );
    } else {
        skip("a15", "python", "there is no python3 on PATH");
    }
}

#[test]
fn a15_terminals_of_the_host_cannot_be_opened() {
    let world = World::new();
    let mut sleeper = Command::new("sleep");
    sleeper
        .arg("600")
        .env("PATH", std::env::var_os("PATH").unwrap());
    let terminal = Terminal::start(&sleeper);
    let name = terminal.name();
    assert!(Path::new(&name).exists());
    let script = format!("ls -A /dev/pts; echo evil > {name}");
    let inside = world.sh(&script);
    assert_ne!(inside.code, Some(0), "{}", stderr_and(&inside));
    assert_eq!(inside.stdout.trim(), "ptmx");
    for place in ["/dev/ptmx", "/dev/pts/ptmx"] {
        let made = "import os, sys; os.open(sys.argv[1], os.O_RDWR); print(os.listdir('/dev/pts'))";
        if has_program("python3") {
            let listed = world.run(&[], &["python3", "-c", made, place]).ok();
            assert!(
                listed.contains("'0'") && !listed.contains("'1'"),
                "{place}: {listed}"
            );
        }
    }
}

const SERVERS: &str = r#"
import asyncio, http.server, os, socket, subprocess, sys, threading
def serve(family, host, port):
    server = socket.create_server((host, port), family=family)
    def answer():
        while True:
            peer, _ = server.accept(); peer.recv(999)
            peer.sendall(b"HTTP/1.0 200 OK\r\n\r\ninside\n"); peer.close()
    threading.Thread(target=answer, daemon=True).start()
    return server.getsockname()[1]
def ask(host, port):
    with socket.create_connection((host, port)) as s:
        s.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return s.makefile().read().split()[-1]
port = serve(socket.AF_INET, "127.0.0.1", int(sys.argv[1]))
six = serve(socket.AF_INET6, "::1", 0)
free = serve(socket.AF_INET, "0.0.0.0", 0)
for host, number in (("127.0.0.1", port), ("localhost", port), ("::1", six), ("127.9.9.9", free)):
    assert ask(host, number) == "inside", host
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = "http://localhost:%d/served" % server.server_port
assert subprocess.run(["curl", "-sS", address], capture_output=True).stdout == b"content\n"
async def pipe():
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, lambda: 5)
assert asyncio.run(pipe()) == 5
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(("127.0.0.1", 0))
udp.sendto(b"x", udp.getsockname()); assert udp.recv(9) == b"x"
print("ready", flush=True)
sys.stdin.read()
"#;

#[test]
fn a17_loopback_servers() {
    if !has_program("python3") || !has_program("curl") {
        return skip("a17", "python", "python3 and curl are not both on PATH");
    }
    let world = World::new();
    world.write("project/served", "content\n");
    world.write("project/servers.py", SERVERS);
    // The host holds the very port that is served inside: each side must meet
    // its own server.
    let host = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = host.local_addr().unwrap().port();
    let mut command = world.stockade();
    command.args(["run", "--", "python3", "servers.py", &port.to_string()]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0; 6];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut line)
        .unwrap();
    assert_eq!(&line, b"ready\n");
    let asker = std::thread::spawn(move || {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    host.accept().unwrap().0.write_all(b"host").unwrap();
    assert_eq!(asker.join().unwrap(), "host");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a17_services_of_the_host_stay_out_of_reach() {
    if !has_program("python3") {
        return skip("a17", "python", "there is no python3 on PATH");
    }
    let world = World::new();
    let listeners: Vec<TcpListener> = ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0"]
        .iter()
        .filter_map(|address| TcpListener::bind(address).ok())
        .collect();
    let script = "import socket, sys\nfor p in sys.argv[1:]:\n for h in ('127.0.0.1', '::1', 'localhost'):\n  \
        try: socket.create_connection((h, int(p)), 5); print('reached', h, p)\n  except OSError: pass";
    let mut argv = vec!["python3".to_owned(), "-c".into(), script.into()];
    argv.extend(
        listeners
            .iter()
            .map(|one| one.local_addr().unwrap().port().to_string()),
    );
    assert_eq!(world.run(&[], &argv).ok(), "");
    for listener in &listeners {
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "something connected");
    }
    let mut outside = Command::new("python3");
    outside.args(&argv[1..]);
    assert!(
        String::from_utf8(outside.output().unwrap().stdout)
            .unwrap()
            .contains("reached")
    );
}

#[test]
fn a17_worker_processes_over_loopback() {
    if !has_program("node") {
        return skip("a17", "node", "there is no node on PATH");
    }
    let world = World::new();
    let script = "const c=require('child_process'),n=require('net');
        if(process.argv[2]){n.connect(+process.argv[2],'::1',function(){this.end('x')});
          process.send('up');process.on('message',()=>process.exit(0))}
        else{const s=n.createServer(p=>p.on('data',d=>{console.log('got',String(d));s.close();w.send('end')}));
          let w;s.listen(0,'::1',()=>{w=c.fork(__filename,[s.address().port])})}";
    world.write("project/pair.js", script);
    assert_eq!(world.run(&[], &["node", "pair.js"]).ok(), "got x");
}

/// A run whose standard output is read to its end, as a caller's pipe would.
fn timed(world: &World, argv: &[&str]) -> (Finished, Duration) {
    let clock = Instant::now();
    (world.run(&[], argv), clock.elapsed())
}

#[test]
fn a18_leftovers_do_not_keep_the_caller() {
    let world = World::new();
    let seconds = unique_seconds(1);
    for script in [
        format!("sleep {seconds} & echo done; exit 7"),
        format!("setsid sleep {seconds} & echo done; exit 7"),
        format!("nohup sleep {seconds} >&2 & echo done; exit 7"),
        format!("(trap '' TERM HUP; sleep {seconds}) & echo done; exit 7"),
    ] {
        let (finished, time) = timed(&world, &["sh", "-c", &script]);
        assert_eq!(finished.clone().expect_code(7).stdout, "done\n", "{script}");
        assert!(time < Duration::from_secs(30), "{script}: {time:?}");
        assert!(soon(|| processes_with(&seconds).is_empty()), "{script}");
    }
    if has_program("python3") {
        let server = "python3 -m http.server --bind 127.0.0.1 0 & echo started";
        let (finished, time) = timed(&world, &["sh", "-c", server]);
        assert!(finished.ok().contains("started"));
        assert!(time < Duration::from_secs(30));
    }
    // Documented: background processes end with the command.
    let help = Finished::of(world.stockade().args(["run", "--help"]).output().unwrap()).ok();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        help.contains("half a second to finish and is then killed"),
        "{help}"
    );
}

#[test]
fn a18_output_through_a_process_substitution() {
    if !has_program("bash") {
        return skip("a18", "bash", "there is no bash on PATH");
    }
    let world = World::new();
    let script = "exec > >(tee log); seq 1000; exit 3";
    let (finished, time) = timed(&world, &["bash", "-c", script]);
    assert_eq!(finished.code, Some(3));
    assert!(time < Duration::from_secs(30));
    assert!(
        finished.stdout.ends_with("1000\n"),
        "the end is missing: {}",
        finished.stdout.len()
    );
    assert_eq!(
        fs::read_to_string(world.project.join("log")).unwrap(),
        finished.stdout
    );
}

fn leavers(seconds: &str) -> String {
    format!(
        "setsid sleep {seconds} & nohup sleep {seconds} >/dev/null 2>&1 & (sleep {seconds} &) ; \
         setsid setsid sh -c 'trap \"\" TERM HUP INT; sleep {seconds}; :' & sleep {seconds}"
    )
}

#[test]
fn a19_a_time_out_ends_everything() {
    let world = World::new();
    let seconds = unique_seconds(2);
    let file = world.outside().join("report.json");
    let options = ["--wall-time", "2s", "--report", file.to_str().unwrap()];
    let finished = world
        .run(&options, &["sh", "-c", &leavers(&seconds)])
        .expect_code(124);
    assert!(
        finished.stderr.contains("wall_time"),
        "{}",
        stderr_and(&finished)
    );
    assert!(soon(|| processes_with(&seconds).is_empty()));
    let report = report(&file);
    assert_eq!(report["outcome"], "limit", "{report}");
    assert_eq!(report["limit"], "wall_time", "{report}");
}

#[test]
fn a19_killing_the_front_process_ends_everything() {
    let world = World::new();
    for (digit, signal) in [(3, "KILL"), (4, "TERM"), (5, "HUP")] {
        let seconds = unique_seconds(digit);
        // What the caller ignores (nohup) is ignored inside as well.
        let mut command = replace_program(&world.stockade(), "env");
        command
            .arg("--default-signal=HUP,TERM")
            .arg(world.stockade().get_program())
            .args(["run", "--", "sh", "-c", &leavers(&seconds)])
            .stdin(Stdio::null());
        let mut front = command.spawn().unwrap();
        assert!(soon(
            || processes_with(&format!("sleep {seconds}")).len() >= 5
        ));
        let pid = front.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", signal, &pid])
                .status()
                .unwrap()
                .success()
        );
        assert!(
            soon(|| processes_with(&format!("sleep {seconds}")).is_empty()),
            "{signal}"
        );
        front.wait().unwrap();
    }
}

#[test]
fn a20_exit_status_fidelity() {
    let world = World::new();
    world.write("project/plain", "not executable");
    let file = world.outside().join("report.json");
    let table: &[(&[&str], i32, &str, Option<i32>)] = &[
        (&["sh", "-c", "exit 42"], 42, "exited", None),
        (&["sh", "-c", "exit 0"], 0, "exited", None),
        (&["sh", "-c", "exit 152"], 152, "exited", None),
        (&["sh", "-c", "exit 255"], 255, "exited", None),
        (&["sh", "-c", "kill -KILL $$"], 137, "killed", Some(9)),
        (&["sh", "-c", "kill -TERM $$"], 143, "killed", Some(15)),
        (&["sh", "-c", "kill -XCPU $$"], 152, "killed", Some(24)),
        (&["sh", "-c", "kill -INT $$"], 130, "killed", Some(2)),
        (&["sh", "-c", "kill -PIPE $$"], 141, "killed", Some(13)),
        (&["sh", "-c", "kill -SEGV $$"], 139, "killed", Some(11)),
        (
            &["sh", "-c", "trap 'exit 0' TERM; kill -TERM $$; sleep 9"],
            0,
            "exited",
            None,
        ),
        (&["no-such-command"], 127, "not_executed", None),
        (&["./no/such/command"], 127, "not_executed", None),
        (&["./plain"], 126, "not_executed", None),
        (&["/etc"], 126, "not_executed", None),
        // Stockade's own codes, from the command: the report tells them apart.
        (&["sh", "-c", "exit 124"], 124, "exited", None),
        (&["sh", "-c", "exit 125"], 125, "exited", None),
        (&["sh", "-c", "exit 126"], 126, "exited", None),
        (&["sh", "-c", "exit 127"], 127, "exited", None),
    ];
    for (argv, code, outcome, signal) in table {
        let finished = world.run(&["--report", file.to_str().unwrap()], argv);
        assert_eq!(
            finished.code,
            Some(*code),
            "{argv:?} {}",
            stderr_and(&finished)
        );
        let report = report(&file);
        assert_eq!(report["outcome"], *outcome, "{argv:?} {report}");
        assert_eq!(
            report["signal"],
            serde_json::json!(signal),
            "{argv:?} {report}"
        );
        assert_eq!(report["exit_code"], *code, "{argv:?} {report}");
        // The control: what a shell outside says of the same command.
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "\"$@\"; exit $?", "sh"])
            .args(*argv)
            .current_dir(&world.project);
        let outside = Finished::of(shell.output().unwrap());
        assert_eq!(
            outside.code,
            Some(*code),
            "{argv:?} {}",
            stderr_and(&outside)
        );
    }
}

#[test]
fn a20_a_signal_from_outside_reaches_the_command() {
    let world = World::new();
    let script = "trap 'echo caught; exit 5' TERM; echo up > up; while :; do sleep 0.05; done";
    let mut command = world.stockade();
    command
        .args(["run", "--", "sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let child = command.spawn().unwrap();
    await_file(&world.project.join("up"));
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-s", "TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(
        Finished::of(child.wait_with_output().unwrap())
            .expect_code(5)
            .stdout,
        "caught\n"
    );
}

/// An interactive shell as a person has it, with a known prompt.
fn calling_shell(world: &World) -> Option<Terminal> {
    if !has_program("bash") || !has_program("setsid") {
        skip("a22", "bash", "bash and setsid are not both on PATH");
        return None;
    }
    let template = world.stockade();
    let mut shell = Command::new("bash");
    shell
        .args(["--norc", "--noprofile", "-i"])
        .current_dir(&world.project);
    for (name, value) in template.get_envs() {
        shell.env(name, value.unwrap());
    }
    shell
        .env("SB", template.get_program())
        .env("TERM", "dumb")
        .env("PS1", "ready> ");
    let mut terminal = Terminal::start(&shell);
    terminal.expect("ready> ");
    Some(terminal)
}

/// The calling shell still reads, interrupts and owns its terminal.
#[track_caller]
fn assert_usable(terminal: &mut Terminal) {
    terminal.send(b"read -r line; echo \"<$line>\"\n");
    std::thread::sleep(Duration::from_millis(300));
    terminal.send(b"typed words\n");
    terminal.expect("<typed words>");
    terminal.expect("ready> ");
    terminal.send(b"echo sle''eps; sleep 600\n");
    terminal.expect("sleeps");
    terminal.interrupt("ready> ");
    terminal.send(b"echo al''ive\n");
    terminal.expect("alive");
    terminal.expect("ready> ");
}

#[test]
fn a22_the_calling_shell_works_afterwards() {
    let world = World::new();
    let Some(mut terminal) = calling_shell(&world) else {
        return;
    };
    for line in [
        "$SB run -- bash -ic true",
        "$SB run -- sh -c 'stty raw -echo; exit 3'",
        "$SB run -- bash -ic 'kill -KILL $$'",
        "$SB run -- no-such-command",
        "$SB run -- sh -c 'kill -KILL $PPID; kill -KILL $$'",
    ] {
        // Bash's line editor has its own modes while it waits; a foreign
        // program sees those of the commands.
        terminal.send(b"stty -a > before\n");
        terminal.expect("ready> ");
        terminal.send(format!("{line}; echo \"code $((1000 + $?))\"\n").as_bytes());
        terminal.expect("code 1");
        terminal.expect("ready> ");
        terminal.send(b"stty -a > after; cmp before after && echo sa''me\n");
        terminal.expect("same");
        terminal.expect("ready> ");
        assert_usable(&mut terminal);
    }
}

#[test]
fn a22_also_after_the_front_process_is_killed() {
    let world = World::new();
    let Some(mut terminal) = calling_shell(&world) else {
        return;
    };
    terminal.send(b"stty -a > before\n");
    terminal.expect("ready> ");
    terminal.send(b"$SB run -- sh -c 'echo up > up; echo in''side; cat'\n");
    terminal.expect("inside");
    await_file(&world.project.join("up"));
    assert!(
        soon(|| terminal.modes().contains("-icanon")),
        "{}",
        terminal.modes()
    );
    let needle = "run -- sh -c echo up > up";
    for pid in processes_with(needle) {
        let parent = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if parent.starts_with(world.stockade().get_program().to_str().unwrap()) {
            Command::new("kill")
                .args(["-KILL", &pid.to_string()])
                .status()
                .unwrap();
        }
    }
    terminal.expect("ready> ");
    // The guard needs a moment, and bash's editor sets its own modes.
    terminal.send(b"sleep 1; stty -a > after; cmp before after && echo sa''me\n");
    terminal.expect("same");
    terminal.expect("ready> ");
    assert_usable(&mut terminal);
}

#[test]
fn a22_job_control() {
    let world = World::new();
    let Some(mut terminal) = calling_shell(&world) else {
        return;
    };
    terminal.send(b"$SB run -- sh -c 'echo st''arted; exec cat'\n");
    terminal.expect("started");
    terminal.send(b"one\n");
    terminal.expect("one");
    terminal.expect("one");
    terminal.send(b"\x1a");
    terminal.expect("Stopped");
    terminal.expect("ready> ");
    assert_usable(&mut terminal);
    terminal.send(b"fg\n");
    terminal.expect("cat");
    std::thread::sleep(Duration::from_millis(300));
    terminal.send(b"two\n");
    terminal.expect("two");
    terminal.expect("two");
    terminal.send(b"\x04");
    terminal.expect("ready> ");
    terminal.send(b"$SB run -- sh -c 'echo st''arted; sleep 600'\n");
    terminal.expect("started");
    terminal.interrupt("ready> ");
    terminal.send(b"echo \"code $?\"\n");
    terminal.expect("code 130");
}

#[test]
fn a23_openssh_reads_the_system_configuration() {
    if !has_program("ssh") || !Path::new("/etc/ssh/ssh_config").exists() {
        return skip("a23", "ssh", "there is no OpenSSH client");
    }
    let world = World::new();
    let own = world.write(
        "project/config",
        "Include /etc/ssh/ssh_config\nHost x\n  User y\n",
    );
    fs::set_permissions(&own, fs::Permissions::from_mode(0o600)).unwrap();
    for script in [
        "ssh -G host",
        "ssh -G -F config x",
        "ssh -G -F /etc/ssh/ssh_config host",
    ] {
        let outside = world.outside_sh(script).expect_code(0);
        let inside = world.sh(script).expect_code(0);
        assert_eq!(inside.stdout, outside.stdout, "{script}");
        assert!(!inside.stderr.contains("Bad owner"), "{}", inside.stderr);
    }
}

/// The parameters of a server's key exchange (half a megabyte) lie beside the
/// configuration, which an ordinary user sees as a copy.
#[test]
fn a23_a_large_file_beside_the_configuration() {
    if !is_root() || !Path::new("/etc/ssh").is_dir() || !has_program("setpriv") {
        let reason = "only root can put a file into /etc/ssh";
        return skip("a23 (large)", "root", reason);
    }
    let world = World::new();
    let program = world.outside().join("stockade");
    fs::copy(world.stockade().get_program(), &program).unwrap();
    let nobody = "65534:65534";
    let given = Command::new("chown")
        .args(["-R", nobody])
        .arg(world.outside())
        .status();
    assert!(given.unwrap().success());
    let large = Path::new("/etc/ssh/stockade-test-large");
    fs::write(large, vec![b'x'; 600 << 10]).unwrap();
    let mut command = replace_program(&world.stockade(), "setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(&program).args(["run", "--", "sh", "-c"]);
    command.arg("wc -c < /etc/ssh/stockade-test-large; ssh -G host >/dev/null && echo read");
    let inside = Finished::of(command.stdin(Stdio::null()).output().unwrap());
    fs::remove_file(large).unwrap();
    assert_eq!(inside.ok(), "614400\nread");
}

const FALLBACKS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static void *nothing(void *x) { return x; }
static int failed;
static void must(const char *name, long result) {
  if (result < 0 && errno != ENOSYS) { printf("%s: %s\n", name, strerror(errno)); failed = 1; }
}
int main(void) {
  long how[3] = {O_RDONLY, 0, 0}; char buffer[4096]; pthread_t thread;
  must("openat2", syscall(437, AT_FDCWD, "/etc/passwd", how, sizeof how));
  must("faccessat2", syscall(439, AT_FDCWD, "/etc/passwd", R_OK, 0));
  must("statx", syscall(SYS_statx, AT_FDCWD, "/etc/passwd", 0, 0x7ff, buffer));
  must("close_range", syscall(436, 100, 200, 0));
  must("rseq", (errno = ENOSYS, -1));
  errno = 0;
  /* Too small on purpose: EINVAL when it is let through, ENOSYS when not. */
  long clone3 = syscall(435, buffer, 8);
  if (!(clone3 == -1 && (errno == ENOSYS || errno == EINVAL))) { perror("clone3"); failed = 1; }
  if (pthread_create(&thread, 0, nothing, 0) || pthread_join(thread, 0)) { puts("thread"); failed = 1; }
  if (access("/etc/passwd", R_OK)) { perror("access"); failed = 1; }
  return failed;
}
"#;

#[test]
fn a26_threads_and_calls_with_a_fallback() {
    let world = World::new();
    if let Some(program) = compile_c(&world, "a26", "fallbacks", FALLBACKS) {
        assert_eq!(world.run(&[], &[program]).ok(), "");
    }
    let commands = [
        (
            "python3",
            "python3 -c 'import threading as t; x = t.Thread(target=print, args=[5]); x.start(); x.join()'",
        ),
        (
            "node",
            "node -e \"new (require('worker_threads').Worker)('console.log(5)', {eval: true})\"",
        ),
        ("java", "java -version"),
        ("curl", "printf 5 > five; curl -sS \"file://$PWD/five\""),
    ];
    for (program, script) in commands {
        if !has_program(program) {
            skip("a26", program, &format!("there is no {program} on PATH"));
            continue;
        }
        let outside = world.outside_sh(script);
        let inside = world.sh(script);
        assert_eq!(
            inside.code,
            outside.code,
            "{script}: {}",
            stderr_and(&inside)
        );
        assert_eq!(
            inside.stdout,
            outside.stdout,
            "{script}: {}",
            stderr_and(&inside)
        );
    }
}

#[test]
fn a32_temporary_directories() {
    let world = World::new();
    let marker = format!("stockade-marker-{}", std::process::id());
    let read_only = world.outside().join("read-only");
    fs::create_dir(&read_only).unwrap();
    fs::set_permissions(&read_only, fs::Permissions::from_mode(0o555)).unwrap();
    let places = [
        "/tmp".into(),
        "/nonexistent/tmp".into(),
        read_only,
        world.home.join("tmp"),
    ];
    for preset in places {
        let script = format!(
            "set -e; d=$(mktemp -d); stat -c %a $d; echo ok > $TMPDIR/{marker}; cat $TMPDIR/{marker}; \
             echo ok > /tmp/{marker}-2; cat /tmp/{marker}-2; echo ok > /var/tmp/{marker}; \
             test ! -e $TMPDIR/left; touch $TMPDIR/left"
        );
        for _ in 0..2 {
            let mut command = world.stockade();
            command
                .env("TMPDIR", &preset)
                .args(["run", "--", "sh", "-c", &script]);
            let finished = Finished::of(command.output().unwrap());
            assert_eq!(finished.ok(), "700\nok\nok", "{preset:?}");
        }
        for place in [Path::new("/tmp"), Path::new("/var/tmp"), &preset] {
            assert!(
                !place.join(&marker).exists() && !place.join("left").exists(),
                "{place:?}"
            );
        }
        assert!(!Path::new("/tmp").join(format!("{marker}-2")).exists());
    }
}

#[test]
fn a32_here_documents() {
    let world = World::new();
    let script =
        "cat <<END\nheredoc\nEND\ncat <<< herestring; echo ${TMPPREFIX%/*}; : > ${TMPPREFIX}x";
    for shell in ["bash", "zsh"] {
        if !has_program(shell) {
            skip("a32", shell, &format!("there is no {shell} on PATH"));
            continue;
        }
        for preset in ["/tmp/zsh", "/nonexistent/zsh"] {
            let mut command = world.stockade();
            command
                .env("TMPPREFIX", preset)
                .env("TMPDIR", "/nonexistent");
            command.args(["run", "--", shell, "-c", script]);
            let finished = Finished::of(command.output().unwrap());
            assert_eq!(finished.ok(), "heredoc\nherestring\n/tmp", "{shell}");
        }
    }
}

#[test]
fn a32_temporary_files_of_two_runs_are_apart() {
    let world = World::new();
    let script = "echo mine > /tmp/same; echo up > up; while [ ! -e go ]; do sleep 0.05; done; cat /tmp/same";
    let mut first = world.stockade();
    first
        .args(["run", "--", "sh", "-c", script])
        .stdout(Stdio::piped());
    let first = first.spawn().unwrap();
    await_file(&world.project.join("up"));
    let second = world.sh("test ! -e /tmp/same && echo other > /tmp/same && touch go");
    let first = Finished::of(first.wait_with_output().unwrap());
    second.expect_code(0);
    assert_eq!(first.ok(), "mine");
}

#[test]
fn a39_no_working_directory() {
    let world = World::new();
    let marker = world.project.join("marker");
    let refused = |finished: Finished, what: &str| {
        let finished = finished.expect_code(125);
        assert!(
            finished.stderr.to_lowercase().contains("dir"),
            "{what}: {}",
            finished.stderr
        );
        assert!(!marker.exists(), "{what}: something ran");
    };
    world.write("project/file", "");
    symlink("nowhere", world.project.join("dangling")).unwrap();
    let touch = ["touch", marker.to_str().unwrap()];
    for place in [
        "missing",
        "missing/deeper",
        "file",
        "dangling",
        "",
        "/nonexistent",
    ] {
        refused(world.run(&["-C", place], &touch), place);
        refused(world.run(&["--project", place], &touch), place);
    }
    let script = "mkdir gone && cd gone && rmdir ../gone && exec \"$0\" run -- touch \"$1\"";
    let mut command = replace_program(&world.stockade(), "sh");
    command
        .args(["-c", script])
        .arg(world.stockade().get_program())
        .arg(&marker);
    refused(
        Finished::of(command.output().unwrap()),
        "a deleted current directory",
    );
    let mut command = world.stockade();
    command
        .env("HOME", "/nonexistent")
        .args(["run", "--", "touch"])
        .arg(&marker);
    refused(Finished::of(command.output().unwrap()), "a missing home");
    // The control.
    fs::create_dir(world.project.join("present")).unwrap();
    assert!(
        world
            .run(&["-C", "present"], &["pwd"])
            .ok()
            .ends_with("/project/present")
    );
}

#[test]
fn a39_a_directory_that_vanishes_during_the_run() {
    let world = World::new();
    let place = world.project.join("place");
    fs::create_dir(&place).unwrap();
    let script = "echo up > ../up; while [ -e ../up ]; do sleep 0.05; done; echo end; exit 6";
    let mut command = world.stockade();
    command
        .args(["run", "-C", "place", "--", "sh", "-c", script])
        .stdout(Stdio::piped());
    let child = command.spawn().unwrap();
    await_file(&world.project.join("up"));
    fs::remove_dir(&place).unwrap();
    fs::remove_file(world.project.join("up")).unwrap();
    assert_eq!(
        Finished::of(child.wait_with_output().unwrap())
            .expect_code(6)
            .stdout,
        "end\n"
    );
}

#[test]
fn a39_a_project_below_a_hidden_parent() {
    let world = World::new();
    // Search permission only: names above the project cannot be listed.
    let parent = world.home.join("parent");
    let project = parent.join("work");
    fs::create_dir_all(&project).unwrap();
    fs::set_permissions(&parent, fs::Permissions::from_mode(0o311)).unwrap();
    let command = ["run", "--", "sh", "-c", "pwd; echo a > made; ls .."];
    let mut run = world.stockade();
    run.current_dir(&project).args(command);
    let finished = Finished::of(run.output().unwrap());
    assert_eq!(finished.ok(), format!("{}\nwork", project.display()));
    assert!(project.join("made").exists());
    // Below what policy hides: refused before the start, nowhere else run.
    let hidden = world.home.join(".ssh/work");
    fs::create_dir_all(&hidden).unwrap();
    let mut run = world.stockade();
    run.current_dir(&hidden).args(command);
    let finished = Finished::of(run.output().unwrap());
    assert_eq!(finished.code, Some(125), "{}", stderr_and(&finished));
    assert!(finished.stderr.contains(".ssh"), "{}", finished.stderr);
    assert!(!hidden.join("made").exists());
}

#[test]
fn a41_odd_project_names() {
    let names: [&[u8]; 14] = [
        b"two words",
        b"it's",
        b"\"quoted\"",
        b"$(id)",
        b"`id`",
        b"new\nline",
        b"-dash",
        b"--",
        b"a:b",
        b"a,b",
        b"bytes\xff\xfe",
        b"back\\slash\\n",
        b"tab\t*?[x]",
        "émoji🦀".as_bytes(),
    ];
    for name in names {
        let world = World::new();
        let project = world.home.join(std::ffi::OsStr::from_bytes(name));
        fs::create_dir(&project).unwrap();
        world.write(".ssh/id", "secret");
        world.write("notes", "private");
        let script =
            "pwd; echo a > made; cat ~/.ssh/id ~/notes ../notes; echo b > ../escaped; exit 0";
        let mut command = world.stockade();
        command
            .current_dir(&project)
            .args(["run", "--", "sh", "-c", script]);
        let finished = Finished::of(command.output().unwrap()).expect_code(0);
        let expected = [project.as_os_str().as_bytes(), b"\n"].concat();
        assert_eq!(finished.stdout_bytes, expected, "{}", stderr_and(&finished));
        assert_eq!(fs::read(project.join("made")).unwrap(), b"a\n");
        assert!(!world.home.join("escaped").exists());
        // The same place, named by options.
        let mut command = world.stockade();
        command
            .arg("run")
            .arg("--project")
            .arg(&project)
            .arg("-C")
            .arg(&project);
        let finished = Finished::of(command.args(["--", "pwd"]).output().unwrap()).expect_code(0);
        assert_eq!(finished.stdout_bytes, expected);
    }
}

#[test]
fn a41_a_deep_project() {
    let world = World::new();
    let mut project = world.project.clone();
    for _ in 0..200 {
        project.push("deep");
    }
    fs::create_dir_all(&project).unwrap();
    let mut command = world.stockade();
    command.current_dir(&project).args([
        "run",
        "--",
        "sh",
        "-c",
        "pwd; echo a > made; echo b > ../up",
    ]);
    let finished = Finished::of(command.output().unwrap());
    assert_eq!(
        finished.stdout.trim_end(),
        project.to_str().unwrap(),
        "{}",
        stderr_and(&finished)
    );
    assert!(project.join("made").exists() && !project.join("../up").exists());
}

#[test]
fn a41_arguments_byte_for_byte() {
    let world = World::new();
    let shown = world
        .run(&[], &["sh", "-c", "echo \"$#:$0:$*\"", "a", "b"])
        .ok();
    assert_eq!(shown, "1:a:b");
    let long = vec![b'x'; 100_000];
    let arguments: Vec<&[u8]> = vec![
        b"",
        b" ",
        b"$(id)",
        b"`id`",
        b"a\nb\n",
        b"\xff\xfe",
        b"--",
        b"-v",
        b"--report",
        b"*",
        b"'",
        &long,
        b"",
    ];
    let mut command = world.stockade();
    command.args(["run", "--", "printf", "%s\\n.\\n"]);
    command.args(
        arguments
            .iter()
            .map(|bytes| std::ffi::OsStr::from_bytes(bytes)),
    );
    let finished = Finished::of(command.output().unwrap()).expect_code(0);
    let expected: Vec<u8> = arguments
        .iter()
        .flat_map(|bytes| [bytes, &b"\n.\n"[..]].concat())
        .collect();
    assert!(finished.stdout_bytes == expected, "{}", finished.stderr);
    // An empty command name is a command that is not found.
    world.run(&[], &[""]).expect_code(127);
}

#[test]
fn a42_no_input() {
    let world = World::new();
    for script in [
        "exec \"$0\" run -- cat < /dev/null",
        "exec \"$0\" run -- cat <&-",
        "exec \"$0\" run -- sh -c 'cat; echo x >&2' <&- 2>&-",
    ] {
        assert_eq!(caller(&world, script).ok(), "");
    }
    assert_eq!(
        caller(&world, "exec \"$0\" run -- echo x >&-").code,
        caller(&world, "exec true").code
    );
    let script = "\"$0\" run -- ls /proc/self/fd <&- >out 2>&-; cat out";
    assert_eq!(
        caller(&world, script)
            .ok()
            .split_whitespace()
            .collect::<Vec<_>>(),
        ["0", "1", "2", "3"]
    );
}

/// A shell that is the caller of stockade (`$0`).
fn caller(world: &World, script: &str) -> Finished {
    let mut command = replace_program(&world.stockade(), "bash");
    command
        .args(["-c", script])
        .arg(world.stockade().get_program())
        .stdin(Stdio::null());
    Finished::of(command.output().unwrap())
}

#[test]
fn a42_huge_binary_streams_with_flat_memory() {
    let world = World::new();
    // Random enough for a hash and quick to make: openssl may be missing.
    let script = "head -c 1000000 /dev/urandom > seed; for i in $(seq 300); do cat seed; done > big; \
        sha256sum < big; cat big | \"$0\" run -- cat | sha256sum; \"$0\" run -- cat < big | sha256sum; \
        \"$0\" run -- cat big > copy; sha256sum < copy; : > copy; \"$0\" run -- cat big >> copy; \
        sha256sum < copy; \"$0\" run -- sh -c 'cat >&2' < big 2>&1 >/dev/null | sha256sum";
    let hashes = caller(&world, script).ok();
    let hashes: Vec<&str> = hashes.lines().collect();
    assert_eq!(hashes.len(), 6, "{hashes:?}");
    assert!(hashes.iter().all(|hash| hash == &hashes[0]), "{hashes:?}");
}

#[test]
fn a42_memory_stays_flat() {
    let world = World::new();
    let mut command = world.stockade();
    // The report of the peak comes last on standard error of the command.
    command.args(["run", "--", "sh", "-c", "cat; echo end >&2"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (chunk, count) = (vec![7u8; 1 << 20], 300u64);
    let reader =
        std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()).unwrap());
    let mut peak_kib = 0;
    for _ in 0..count {
        input.write_all(&chunk).unwrap();
        peak_kib = peak_kib.max(peak_memory_kib(child.id()));
    }
    drop(input);
    assert_eq!(reader.join().unwrap(), count << 20);
    assert!(child.wait().unwrap().success());
    assert!(peak_kib > 0 && peak_kib < 32 * 1024, "{peak_kib} KiB");
}

/// Largest resident size of a process so far (VmHWM of proc(5)); the status
/// file of a process that is not dumpable is still for all to read.
fn peak_memory_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

#[test]
fn a42_endless_input_and_closed_output() {
    let world = World::new();
    let script = "yes | \"$0\" run -- head -n 1; echo \"${PIPESTATUS[0]}\"";
    let finished = caller(&world, script).ok();
    assert_eq!(finished, "y\n141", "the writer gets SIGPIPE");
    let script = "\"$0\" run -- yes | head -n 1; echo \"${PIPESTATUS[0]}\"";
    assert_eq!(
        caller(&world, script).ok(),
        "y\n141",
        "and so does the command inside"
    );
    assert_eq!(
        caller(&world, "\"$0\" run -- head -c 1 < /dev/zero | wc -c").ok(),
        "1"
    );
}

#[test]
fn a42_order_of_both_streams() {
    let world = World::new();
    let sandboxed = "for i in $(seq 200); do echo o$i; echo e$i >&2; done";
    let script = format!("\"$0\" run -- sh -c '{sandboxed}' 2>&1");
    let expected: String = (1..=200)
        .map(|number| format!("o{number}\ne{number}\n"))
        .collect();
    assert_eq!(caller(&world, &script).expect_code(0).stdout, expected);
    let script = format!("\"$0\" run -- sh -c '{sandboxed}' > both 2>&1; cat both");
    assert_eq!(caller(&world, &script).expect_code(0).stdout, expected);
}

#[test]
fn a42_what_is_not_read_stays_with_the_caller() {
    let world = World::new();
    for (script, expected) in [
        ("printf 'a\\nb\\n' | (\"$0\" run -- head -c 2; cat)", "a\nb"),
        (
            "printf 'a\\nb\\n' > f; (\"$0\" run -- head -c 2; cat) < f",
            "a\nb",
        ),
        (
            "printf '1\\n2\\n3\\n' | while read x; do \"$0\" run -- true; echo $x; done",
            "1\n2\n3",
        ),
        (
            "printf '1\\n2\\n3\\n' > f; while read x; do \"$0\" run -- true; echo $x; done < f",
            "1\n2\n3",
        ),
        (
            "printf 'a\\nb\\nc\\n' | (\"$0\" run -- sh -c 'read x; echo [$x]'; cat)",
            "[a]\nb\nc",
        ),
        (
            "seq 100000 | (\"$0\" run -- head -c 6; tail -n 1)",
            "1\n2\n3\n100000",
        ),
    ] {
        assert_eq!(caller(&world, script).ok(), expected, "{script}");
    }
}
