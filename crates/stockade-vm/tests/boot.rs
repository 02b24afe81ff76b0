//! A real machine: a kernel package becomes an image, QEMU boots it, and the
//! agent in it is spoken to. There is no sandbox around QEMU here.

use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use stockade_agent::host::Kind;
use stockade_agent::machine::{Birth, ENTROPY_BYTES, Limits};
use stockade_agent::wire::{self, ExecSpec, Reply, Request, Size, Status};
use stockade_agent_image::IMAGE;
use stockade_testkit::World;
use stockade_testkit::agent::{Outcome, Session, spec};
use stockade_testkit::machine::{QEMU, kernel_package};
use stockade_vm::qemu::{self, Accelerator, Start};
use stockade_vm::source::Source;
use stockade_vm::store::{Image, InUse, Store};

/// A store with one image, for all tests of this file.
struct Built {
    _directory: tempfile::TempDir,
    store: Store,
    image: Image,
}

fn built(test: &str) -> Option<&'static Built> {
    static BUILT: OnceLock<Built> = OnceLock::new();
    let package = kernel_package(test)?;
    Some(BUILT.get_or_init(|| {
        let directory = tempfile::Builder::new()
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir_in("/var/tmp")
            .unwrap();
        let opened = fs::File::open(directory.path()).unwrap();
        let store = Store::open(opened.as_fd()).unwrap();
        let image = store.build(&Source::Package(package), "default", IMAGE);
        Built {
            _directory: directory,
            store,
            image: image.unwrap(),
        }
    }))
}

/// The least rules of system calls that the agent believes: of x86-64, keyctl(2)
/// is refused (ENOSYS), and everything else permitted.
const RULES: [[u8; 8]; 4] = [
    [0x20, 0, 0, 0, 0, 0, 0, 0],
    [0x15, 0, 0, 1, 250, 0, 0, 0],
    [0x06, 0, 0, 0, 38, 0, 5, 0],
    PERMIT,
];
const PERMIT: [u8; 8] = [0x06, 0, 0, 0, 0, 0, 0xff, 0x7f];

/// A machine, and the host's end of its channel.
struct Machine {
    qemu: Child,
    session: Session,
    _image: InUse,
}

impl Machine {
    fn start(built: &Built, root: &Path) -> Self {
        Self::with_rules(built, root, &RULES)
    }

    fn with_rules(built: &Built, root: &Path, rules: &[[u8; 8]]) -> Self {
        let image = built.store.use_image("default", IMAGE).unwrap();
        let (channel, theirs) = UnixStream::pair().unwrap();
        let (uid, gid) = ids();
        let machine = qemu::Machine {
            accelerator: Accelerator::Tcg,
            memory: 256,
            processors: 1,
            counter_khz: stockade_sys::counter::ticks_per_millisecond(),
            start: Start::Boot {
                image: qemu::Image {
                    kernel: &image.kernel,
                    initramfs: &image.initramfs,
                    mark: "test",
                },
                channel: 3,
            },
            root,
            network: false,
            forwards: &[],
        };
        let birth = Birth {
            entropy: [7; ENTROPY_BYTES],
            seconds: 3_000_000_000,
            nanoseconds: 0,
            uid,
            gid,
            umask: 0o027,
            name: b"stockade-test",
            private: b"/tmp\0",
            filter: rules.as_flattened(),
            offers: &[],
            limits: Limits {
                processes: Some(64),
                open_files: Some(100),
                file_bytes: None,
                cpu_seconds: None,
            },
            disk_bytes: 64 << 20,
            disk_inodes: 10_000,
        };
        let mut frame = [0; 256];
        let length = wire::encode(0, &birth, &mut frame).unwrap();
        (&channel).write_all(&frame[..length]).unwrap();
        let qemu = Command::new("/bin/sh")
            .args(["-c", r#"exec 3<&0 </dev/null; exec "$0" "$@""#, QEMU])
            .args(qemu::arguments(&machine))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .unwrap();
        Self {
            qemu,
            session: Session::begin(channel),
            _image: image,
        }
    }

    fn sh(&mut self, script: &str) -> String {
        let outcome = self.session.shell(script);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (output, error) = (text(&outcome.output), text(&outcome.error));
        assert_eq!(
            outcome.status,
            Some(Status::Exited(0)),
            "{script}: {output}{error}"
        );
        output.trim_end().to_owned()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // It would go on for ever; the test has failed already.
            let _gone = self.qemu.kill().is_err();
        }
        let _ended = self.qemu.wait().is_err();
    }
}

fn ids() -> (u32, u32) {
    let own = fs::metadata("/proc/self").unwrap();
    (own.uid(), own.gid())
}

#[test]
fn a_machine_is_a_sandbox_with_a_kernel_of_its_own() {
    let Some(built) = built("a_machine_is_a_sandbox_with_a_kernel_of_its_own") else {
        return;
    };
    let world = World::new();
    let mut machine = Machine::start(built, Path::new("/"));
    machine.session.wait_for_hello();
    assert_eq!(machine.sh("date -u +%Y"), "2065");
    let task = machine.session.ledger.begin(Kind::Clock).unwrap();
    let (seconds, nanoseconds) = (4_000_000_000, 0);
    let clock = Request::SetClock {
        seconds,
        nanoseconds,
    };
    machine.session.send(task, &clock);
    assert_eq!(machine.session.finish(task), Outcome::default());
    let (uid, gid) = ids();
    assert_eq!(machine.sh("uname -r"), built.image.release);
    assert_eq!(
        machine.sh("id -u; id -g; id -G; umask; hostname; pwd"),
        format!("{uid}\n{gid}\n{gid}\n0027\nstockade-test\n/")
    );
    commands(&mut machine);
    confinement(&mut machine);
    files(&mut machine, &world);
    machine.session.send(0, &Request::Shutdown);
    assert!(machine.qemu.wait().unwrap().success());
}

/// What the agent does everywhere, here through a virtio port.
fn commands(machine: &mut Machine) {
    let outcome = machine.session.shell("echo out; echo err >&2; exit 7");
    assert_eq!(
        (&*outcome.output, &*outcome.error),
        (&b"out\n"[..], &b"err\n"[..])
    );
    assert_eq!(outcome.status, Some(Status::Exited(7)));
    let bytes: Vec<u8> = (0..500_000u32).map(|number| (number / 3) as u8).collect();
    let task = machine.session.exec(&ExecSpec {
        input: true,
        ..spec(b"cksum\0")
    });
    machine.session.give(task, &bytes);
    let there = machine.session.finish(task).output;
    let zeros = machine.session.shell("head -c 3000000 /dev/zero");
    assert_eq!(zeros.output.len(), 3_000_000);
    assert!(String::from_utf8_lossy(&there).contains(" 500000"));
    let size = |rows, columns| Size { rows, columns };
    let task = machine.session.exec(&ExecSpec {
        terminal: Some(size(24, 80)),
        input: true,
        ..spec(b"sh\0-c\0tty; read line; stty size; echo got $line\0")
    });
    machine
        .session
        .send(task, &Request::Resize { size: size(30, 99) });
    assert!(machine.session.ledger.send(task, 4));
    machine.session.send(task, &Request::Data(b"key\r"));
    let text = machine.session.finish(task).output;
    let text = String::from_utf8_lossy(&text).into_owned();
    for part in ["/dev/pts/0", "30 99", "got key"] {
        assert!(text.contains(part), "{text}");
    }
    let task = machine
        .session
        .exec(&spec(b"sh\0-c\0sleep 1000 & sleep 1000\0"));
    machine
        .session
        .next(|_, reply| assert!(matches!(reply, Reply::Started { .. })));
    let (number, group) = (9, true);
    machine
        .session
        .send(task, &Request::Signal { number, group });
    let killed = machine.session.finish(task).status;
    assert!(
        matches!(killed, Some(Status::Killed { signal: 9, .. })),
        "{killed:?}"
    );
}

/// Nobody inside is the machine's root, and nobody becomes it.
fn confinement(machine: &mut Machine) {
    let status =
        machine.sh("grep -E '^(Cap|NoNewPrivs|Groups)' /proc/self/status | tr -s '\\t ' ' '");
    let (_, gid) = ids();
    let none = "0000000000000000";
    let expected = format!(
        "Groups: {gid} \nCapInh: {none}\nCapPrm: {none}\nCapEff: {none}\nCapBnd: {none}\nCapAmb: {none}\nNoNewPrivs: 1"
    );
    assert_eq!(status, expected);
    assert_eq!(
        machine.sh("grep -c '^Seccomp:.2$' /proc/self/status; ulimit -Hn; cat /proc/self/cgroup"),
        "1\n100\n0::/commands"
    );
    // The clock is the host's to set, through the agent.
    assert_eq!(machine.sh("date +%Y"), "2096");
    assert_eq!(
        machine.sh("date -s 2001-01-01 >/dev/null 2>&1; date +%Y"),
        "2096"
    );
    assert_eq!(
        machine.sh("ls /dev | tr '\\n' ' '"),
        "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
    );
    assert_eq!(machine.sh("cat /proc/1/comm"), "stockade-agent");
    for forbidden in [
        "echo x >/dev/new",
        "mount -t tmpfs none /mnt",
        "unshare -U true",
        "unshare -m true",
        "chroot / true",
        "mknod /tmp/stockade-node c 1 3",
        "echo /bin/sh >/proc/sys/kernel/core_pattern",
        "echo 1 >/proc/self/oom_score_adj",
        "cat /proc/1/environ",
        "dmesg",
        "hostname other",
        "reboot -f",
    ] {
        let outcome = machine.session.shell(forbidden);
        assert_ne!(
            outcome.status,
            Some(Status::Exited(0)),
            "{forbidden}: {outcome:?}"
        );
    }
    assert_eq!(machine.sh("stat -c '%a %U' /tmp; ls -A /tmp"), "1777 root");
    // The first program takes no signal from inside.
    machine.session.shell("kill -9 1; kill -TERM 1; kill -9 -1");
    assert_eq!(
        machine.sh("wc -w </proc/sys/kernel/modprobe; env"),
        "0\nPWD=/"
    );
}

/// Work in a tree of the host's: both sides see the same at once.
fn files(machine: &mut Machine, world: &World) {
    let place = world.project.join("tree,with=comma");
    fs::create_dir(&place).unwrap();
    let (uid, gid) = ids();
    let at = |name: &str| place.join(name);
    let inside = |machine: &mut Machine, script: &str| {
        machine.sh(&format!("cd '{}' && {script}", place.display()))
    };
    inside(
        machine,
        "echo one >file && chmod 741 file && touch -d @1234567890.123456789 file",
    );
    let status = fs::metadata(at("file")).unwrap();
    assert_eq!(
        (status.uid(), status.gid(), status.mode() & 0o7777),
        (uid, gid, 0o741)
    );
    // Linux's 9p client sets times in whole seconds (vfs_super.c leaves
    // s_time_gran alone).
    assert_eq!((status.mtime(), status.mtime_nsec()), (1_234_567_890, 0));
    assert_eq!(
        inside(machine, "stat -c '%u %g %a %Y' file"),
        format!("{uid} {gid} 741 1234567890")
    );
    for round in 0..20 {
        fs::write(at("file"), format!("{round:03}\n")).unwrap();
        assert_eq!(
            inside(machine, "cat file"),
            format!("{round:03}"),
            "host to machine"
        );
        inside(machine, &format!("echo {:03} >file", 500 + round));
        let back = fs::read_to_string(at("file")).unwrap();
        assert_eq!(back, format!("{:03}\n", 500 + round), "machine to host");
    }
    fs::rename(at("file"), at("moved")).unwrap();
    assert_eq!(inside(machine, "ls; test ! -e file"), "moved");
    inside(
        machine,
        "mv moved there; ln there hard; ln -s there soft; mkdir -p a/b; echo x >a/b/c",
    );
    assert_eq!(fs::read_link(at("soft")).unwrap(), Path::new("there"));
    assert_eq!(fs::metadata(at("hard")).unwrap().nlink(), 2);
    assert_eq!(
        inside(machine, "cat soft; stat -c %h hard; rm -r a; ls"),
        "519\n2\nhard\nsoft\nthere"
    );
    inside(
        machine,
        "for i in $(seq 300); do echo $i >many$i; done; ls | wc -l; rm many*",
    );
    assert_eq!(fs::read_dir(&place).unwrap().count(), 3);
    inside(
        machine,
        "head -c 5000000 /dev/urandom >big; truncate -s 6000000 big; cp big copy; cmp big copy; rm copy",
    );
    assert_eq!(fs::metadata(at("big")).unwrap().len(), 6_000_000);
    unusual_files(machine, &place);
}

/// What programs do with files that is not reading and writing.
const UNUSUAL: [(&str, &str); 9] = [
    (
        "a file without a name",
        r#"
import tempfile
f = tempfile.TemporaryFile(dir=".")
f.write(b"x" * 9000)
f.seek(0)
assert len(f.read()) == 9000"#,
    ),
    (
        "a file that was removed while open",
        r#"
import os
f = open("gone", "w+")
os.unlink("gone")
f.write("text")
f.flush()
f.seek(0)
assert f.read() == "text"
assert os.fstat(f.fileno()).st_size == 4"#,
    ),
    (
        "shared memory of a file",
        r#"
import mmap
f = open("mapped", "w+b")
f.truncate(8192)
m = mmap.mmap(f.fileno(), 8192)
m[0:4] = b"mmap"
m.flush()
m.close()
f.close()
assert open("mapped", "rb").read(4) == b"mmap""#,
    ),
    (
        "locks",
        r#"
import fcntl
f = open("flock", "w")
fcntl.flock(f, fcntl.LOCK_EX)
f = open("lockf", "w")
fcntl.lockf(f, fcntl.LOCK_EX)"#,
    ),
    (
        "a socket",
        r#"
import os, socket
os.chdir("/tmp")
s = socket.socket(socket.AF_UNIX)
s.bind("socket")
s.listen()
c = socket.socket(socket.AF_UNIX)
c.connect("socket")
os.unlink("socket")"#,
    ),
    (
        "a pipe with a name",
        r#"
import os
os.chdir("/tmp")
os.mkfifo("pipe")
f = os.open("pipe", os.O_RDWR)
os.write(f, b"x")
assert os.read(f, 1) == b"x"
os.unlink("pipe")"#,
    ),
    (
        "appending",
        r#"
a = open("log", "ab", 0)
b = open("log", "ab", 0)
a.write(b"1")
b.write(b"2")
a.write(b"3")
assert open("log", "rb").read() == b"123""#,
    ),
    (
        "a database",
        r#"
import sqlite3
d = sqlite3.connect("db")
d.execute("pragma journal_mode=wal")
d.execute("create table t(x)")
d.execute("insert into t values(1)")
d.commit()
assert d.execute("select count(*) from t").fetchone() == (1,)"#,
    ),
    (
        "randomness",
        r#"
import os
assert len(os.getrandom(32, os.GRND_NONBLOCK)) == 32"#,
    ),
];

fn unusual_files(machine: &mut Machine, place: &Path) {
    let mut failed = Vec::new();
    for (what, script) in UNUSUAL {
        let command = format!("cd '{}' && python3 -c '{script}'", place.display());
        let outcome = machine.session.shell(&command);
        if outcome.status != Some(Status::Exited(0)) {
            let error = String::from_utf8_lossy(&outcome.error).into_owned();
            failed.push(format!("{what}: {error}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!(&fs::read(place.join("mapped")).unwrap()[..4], b"mmap");
}

#[test]
fn a_machine_that_cannot_become_a_sandbox_says_why_and_ends() {
    let Some(built) = built("a_machine_that_cannot_become_a_sandbox_says_why_and_ends") else {
        return;
    };
    let world = World::new();
    let nothing: &[[u8; 8]] = &[];
    for (root, rules, says) in [
        (
            world.project.as_path(),
            &RULES[..],
            "the machine cannot mount /proc in the view: errno 2",
        ),
        (
            Path::new("/"),
            &[PERMIT][..],
            "the machine cannot see the rules of system calls in force: errno 1",
        ),
        (
            Path::new("/"),
            nothing,
            "the machine cannot take the rules of system calls: errno 22",
        ),
    ] {
        let mut machine = Machine::with_rules(built, root, rules);
        let mut text = Vec::new();
        std::io::Read::read_to_end(&mut machine.session.channel, &mut text).unwrap();
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(text.contains(says), "{text}");
        assert!(machine.qemu.wait().unwrap().success());
    }
}
