//! The program as it is delivered, without a sandbox around it.

use std::io::Read;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use stockade_agent::files;
use stockade_agent::host::Kind;
use stockade_agent::wire::{ExecSpec, FileRequest, Reply, Request, Size, Status, VERSION, Write};
use stockade_testkit::agent::{Outcome, Session, spec};

/// The program and the host's end of its channel.
struct Agent {
    child: Child,
    session: Session,
    _directory: tempfile::TempDir,
}

impl Agent {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent");
        std::fs::write(&path, stockade_agent_image::IMAGE).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        let (channel, theirs) = UnixStream::pair().unwrap();
        // A copy, written by a process that is over by then: children of other
        // threads may still hold the descriptor that wrote this file (ETXTBSY).
        let child = Command::new("/bin/sh")
            .args([
                "-c",
                r#"exec 3<&0 </dev/null; cp -p "$0" "$0.run" && exec "$0.run""#,
            ])
            .arg(&path)
            .env("GREETING", "hello")
            .env("SECOND", "two")
            // One directory that cannot be searched would be another error.
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .unwrap();
        let mut agent = Self {
            child,
            session: Session::begin(channel),
            _directory: directory,
        };
        agent.wait_for_hello();
        agent
    }
}

impl Deref for Agent {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl DerefMut for Agent {
    fn deref_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.send(0, &Request::Shutdown);
        let status = self.child.wait().unwrap();
        if !std::thread::panicking() {
            assert!(status.success(), "{status:?}");
        }
    }
}

#[test]
fn commands_run_and_say_how_they_ended() {
    let mut agent = Agent::start();
    let outcome = agent.shell("echo out; echo err >&2; exit 7");
    assert_eq!(outcome.output, b"out\n");
    assert_eq!(outcome.error, b"err\n");
    assert_eq!(outcome.status, Some(Status::Exited(7)));
    let killed = agent.shell("kill -TERM $$");
    assert!(
        matches!(killed.status, Some(Status::Killed { signal: 15, .. })),
        "{killed:?}"
    );
    for (name, errno) in [
        (&b"no-such-command\0"[..], 2),
        (b"/etc/passwd\0", 13),
        (b"/\0", 13),
    ] {
        let task = agent.exec(&spec(name));
        let outcome = agent.finish(task);
        assert_eq!(
            outcome.failed.map(|(errno, _)| errno),
            Some(errno),
            "{name:?}"
        );
    }
}

#[test]
fn environment_directory_and_descriptors_are_as_asked() {
    let mut agent = Agent::start();
    let task = agent.exec(&ExecSpec {
        environment: b"SECOND=2\0THIRD=3\0",
        directory: b"/usr",
        ..spec(b"sh\0-c\0echo $GREETING $SECOND $THIRD $PWD; ls /proc/self/fd | wc -l; cat\0")
    });
    let outcome = agent.finish(task);
    let said = String::from_utf8_lossy(&outcome.output).into_owned();
    let descriptors = said.strip_prefix("hello 2 3 /usr\n").unwrap_or_default();
    // No more descriptors than a program has that this test starts itself: that
    // one also has what the test was started with.
    let outside = Command::new("sh")
        .args(["-c", "ls /proc/self/fd | wc -l"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let outside = String::from_utf8_lossy(&outside.stdout).into_owned();
    let number = |text: &str| {
        text.trim()
            .parse::<u32>()
            .unwrap_or_else(|_| panic!("{said}"))
    };
    assert!(number(descriptors) <= number(&outside), "{said}{outside}");
    let task = agent.exec(&ExecSpec {
        merged: true,
        ..spec(b"sh\0-c\0echo a; echo b >&2; echo c\0")
    });
    assert_eq!(agent.finish(task).output, b"a\nb\nc\n");
    let task = agent.exec(&ExecSpec {
        directory: b"/no/such/place",
        ..spec(b"true\0")
    });
    let (errno, reason) = agent.finish(task).failed.unwrap();
    assert_eq!((errno, &*reason), (2, "the directory cannot be entered"));
}

#[test]
fn long_arguments_and_much_input_and_output_pass() {
    let mut agent = Agent::start();
    let long = "x".repeat(100_000);
    let outcome = agent.shell(&format!(": {long}; head -c 3000000 /dev/zero"));
    assert_eq!(outcome.output.len(), 3_000_000);
    let bytes: Vec<u8> = (0..500_000u32).map(|number| number as u8).collect();
    let task = agent.exec(&ExecSpec {
        input: true,
        ..spec(b"sh\0-c\0cat >/dev/null; echo done\0")
    });
    agent.give(task, &bytes);
    assert_eq!(agent.finish(task).output, b"done\n");
    // Who reads nothing keeps nobody waiting.
    let task = agent.exec(&ExecSpec {
        input: true,
        ..spec(b"sh\0-c\0exec <&-; sleep 0.1; echo deaf\0")
    });
    agent.give(task, &bytes);
    assert_eq!(agent.finish(task).output, b"deaf\n");
}

#[test]
fn a_terminal_has_a_size_and_passes_keys() {
    let mut agent = Agent::start();
    let size = |rows, columns| Size { rows, columns };
    let task = agent.exec(&ExecSpec {
        terminal: Some(size(24, 80)),
        input: true,
        ..spec(b"sh\0-c\0stty size; tty; read line; stty size; echo got $line\0")
    });
    agent.send(task, &Request::Resize { size: size(30, 99) });
    assert!(agent.ledger.send(task, 4));
    agent.send(task, &Request::Data(b"key\r"));
    let outcome = agent.finish(task);
    let text = String::from_utf8_lossy(&outcome.output).into_owned();
    assert!(
        text.contains("/dev/pts/") && text.contains("30 99"),
        "{text}"
    );
    assert!(text.contains("got key"), "{text}");
    assert_eq!(outcome.status, Some(Status::Exited(0)));
}

#[test]
fn a_signal_reaches_the_group_and_a_cancelled_command_ends() {
    let mut agent = Agent::start();
    let sleep = spec(b"sh\0-c\0sleep 1000 & sleep 1000\0");
    let task = agent.exec(&sleep);
    agent.next(|_, reply| assert!(matches!(reply, Reply::Started { .. })));
    agent.send(
        task,
        &Request::Signal {
            number: 9,
            group: true,
        },
    );
    let killed = Some(Status::Killed {
        signal: 9,
        core: false,
    });
    assert_eq!(agent.finish(task).status, killed);
    let task = agent.exec(&sleep);
    agent.next(|_, reply| assert!(matches!(reply, Reply::Started { .. })));
    agent.send(task, &Request::Cancel);
    let outcome = agent.finish(task);
    assert!(
        matches!(outcome.status, Some(Status::Killed { signal: 1, .. })),
        "{outcome:?}"
    );
}

#[test]
fn what_is_left_in_the_background_keeps_no_task_open() {
    let mut agent = Agent::start();
    let outcome = agent.shell("sleep 2 & echo front");
    assert_eq!(outcome.output, b"front\n");
    assert_eq!(outcome.status, Some(Status::Exited(0)));
}

#[test]
fn files_are_written_read_listed_and_watched() {
    let directory = tempfile::tempdir().unwrap();
    let mut agent = Agent::start();
    let path = directory.path().join("file");
    let name = path.to_str().unwrap().as_bytes();
    let content: Vec<u8> = (0..200_000u32).map(|number| (number / 7) as u8).collect();
    let write = |how| FileRequest::Write {
        path: name,
        mode: 0o640,
        how,
    };
    let task = agent.file(Kind::Write, write(Write::New));
    agent.give(task, &content);
    assert_eq!(agent.finish(task), Outcome::default());
    assert_eq!(std::fs::read(&path).unwrap(), content);
    let task = agent.file(Kind::Write, write(Write::New));
    assert_eq!(agent.finish(task).failed.unwrap().0, 17);
    let read = FileRequest::Read {
        path: name,
        offset: 10,
        length: 150_000,
    };
    let task = agent.file(Kind::Read, read);
    assert_eq!(agent.finish(task).output, content[10..150_010]);
    let parent = directory.path().to_str().unwrap().as_bytes();
    let read = FileRequest::Read {
        path: parent,
        offset: 0,
        length: 1,
    };
    let task = agent.file(Kind::Read, read);
    assert_eq!(agent.finish(task).failed.unwrap().0, 22);
    let watch = agent.file(Kind::Read, FileRequest::Watch { path: parent });
    agent.next(|_, reply| assert!(matches!(reply, Reply::Started { .. })));
    for number in 0..600 {
        let long = "n".repeat(200);
        std::fs::write(directory.path().join(format!("{number:03}{long}")), "x").unwrap();
    }
    let (_, seen) = agent.next(|_, reply| match reply {
        Reply::Data { bytes, .. } => bytes.to_vec(),
        other => panic!("{other:?}"),
    });
    let (change, _) = files::take::<files::Change<'_>>(&seen).unwrap().unwrap();
    assert!(change.name.starts_with(b"000nnn"));
    agent.send(watch, &Request::Cancel);
    agent.finish(watch);
    let task = agent.file(Kind::Read, FileRequest::List { path: parent });
    let listed = agent.finish(task).output;
    let (mut rest, mut names) = (&listed[..], std::collections::BTreeSet::new());
    while let Some((entry, length)) = files::take::<files::Entry<'_>>(rest).unwrap() {
        names.insert(entry.name.to_vec());
        rest = &rest[length..];
    }
    assert_eq!((names.len(), rest.len()), (601, 0));
}

#[test]
fn nonsense_ends_the_agent_with_a_reason() {
    let mut agent = Agent::start();
    agent.send(5, &Request::Hello { version: VERSION });
    let mut bytes = Vec::new();
    agent.channel.read_to_end(&mut bytes).unwrap();
    assert!(String::from_utf8_lossy(&bytes).contains("this is not the protocol"));
    let status = agent.child.wait().unwrap();
    assert_eq!(status.code(), Some(0));
    std::mem::forget(agent);
}
