//! Whoever holds the sandbox's sockets outside, and what is to be seen inside.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;

use stockade_policy::plan::{Action, Listener};
use stockade_sys::message::{self, Wait};
use stockade_sys::network::{self, original_destination, receive_with_destination, send_from};
use stockade_sys::rustix::event::{PollFd, PollFlags, poll};
use stockade_sys::rustix::net::connect;
use stockade_walls::process::Sandbox;
use stockade_walls::{End, Report, WallError};

use crate::inside::SERVER_PORT;
use crate::plan::{self, Scratch};

pub fn connections_arrive() {
    let scratch = Scratch::new();
    let plan = plan::plan(&scratch, "inside");
    let (mut gate, output) = plan::start(&plan, None).expect("the gate is reached");
    let listeners = std::mem::take(&mut gate.listeners);
    check_what_came(&listeners);
    let said = serve(gate.go().expect("it starts"), listeners, output);
    let expected = [
        ("token", "placeholder"),
        ("descriptors", "0 1 2"),
        ("203.0.113.9:443", "transparent 203.0.113.9:443"),
        ("[2001:db8::7]:8443", "transparent [2001:db8::7]:8443"),
        ("10.0.0.1:22", "transparent 10.0.0.1:22"),
        ("127.0.0.1:3128", "proxy 127.0.0.1:3128"),
        ("[::1]:3128", "proxy [::1]:3128"),
        ("127.0.0.1:8123", "host port 127.0.0.1:8123"),
        ("9.9.9.9:53", "names 9.9.9.9:53"),
        ("[2001:db8::9]:53", "names [2001:db8::9]:53"),
        ("udp 203.0.113.9:443", "ConnectionRefused"),
        ("udp [2001:db8::7]:443", "ConnectionRefused"),
        ("udp 9.9.9.9:53", "asked 9.9.9.9"),
        ("udp [2001:db8::9]:53", "asked 2001:db8::9"),
        ("udp 127.0.0.1:53", "asked 127.0.0.1"),
        ("unix", "unix"),
        ("unix on the root", "unix"),
        ("own server on 127.0.0.1", "x"),
        ("own server on 127.0.0.2", "x"),
        ("own server on ::1", "x"),
        ("published", "from outside"),
        ("bind 127.0.0.1:3128", "AddrInUse"),
        ("bind 0.0.0.0:3128", "AddrInUse"),
        ("bind 127.0.0.1:15001", "AddrInUse"),
        ("bind 0.0.0.0:15001", "AddrInUse"),
        ("bind 127.0.0.1:8123", "AddrInUse"),
        ("bind 0.0.0.0:8123", "AddrInUse"),
        ("bind udp 127.0.0.1:53", "PermissionDenied"),
        ("bind udp 0.0.0.0:53", "PermissionDenied"),
        ("after", "transparent 203.0.113.9:443"),
    ];
    for (what, outcome) in expected {
        assert_eq!(said.get(what).map(String::as_str), Some(outcome), "{what}");
    }
    for what in ["lo", "routes", "redirect", "users", "network"] {
        assert_ne!(said.get(what).map(String::as_str), Some("done"), "{what}");
    }
}

/// A socket is no file to leave behind on the host.
pub fn no_socket_on_the_host() {
    let scratch = Scratch::new();
    let mut plan = plan::plan(&scratch, "inside");
    let step = plan
        .steps
        .iter_mut()
        .find_map(|step| match &mut step.action {
            Action::Listen { listeners } => Some(listeners),
            _ => None,
        });
    *step.expect("a plan that listens") = vec![Listener::Unix {
        path: plan::path("/scratch/agent"),
    }];
    let error = plan::start(&plan, None).expect_err("it is refused");
    assert!(matches!(error, WallError::Step { .. }), "{error}");
    assert!(!scratch.0.join("agent").exists());
}

/// When whoever holds the sockets is gone, nothing answers.
pub fn without_a_holder() {
    let scratch = Scratch::new();
    let plan = plan::plan(&scratch, "inside-alone");
    let (mut gate, output) = plan::start(&plan, None).expect("the gate is reached");
    drop(std::mem::take(&mut gate.listeners));
    let said = serve(gate.go().expect("it starts"), Vec::new(), output);
    assert_eq!(said.len(), 5, "{said:?}");
    for (what, outcome) in &said {
        assert_eq!(outcome, "ConnectionRefused", "{what}");
    }
}

/// Trust stores hold the host's roots and the authority, for whoever is inside.
pub fn roots_are_written() {
    let scratch = Scratch::new();
    let mut plan = plan::plan(&scratch, "inside");
    let script = "cat /scratch/roots.pem; echo; cat /etc/own.pem; echo; wc -c < /etc/own.jks; \
                  (: > /scratch/roots.pem); (: > /etc/own.pem); ls -l /run/offers; echo kept";
    plan.command.argv = [&b"/usr/bin/env"[..], b"sh", b"-c", script.as_bytes()]
        .map(<[u8]>::to_vec)
        .to_vec();
    plan.command.environment = vec![(b"PATH".to_vec(), b"/usr/bin:/bin".to_vec())];
    let (gate, mut output) = plan::start(&plan, None).expect("the gate is reached");
    let mut sandbox = gate.go().expect("it starts");
    let mut text = String::new();
    output.read_to_string(&mut text).expect("text");
    let root = std::fs::read_to_string(scratch.0.join("roots.pem")).expect("it is as before");
    let both = format!("{root}{}", plan::AUTHORITY);
    assert!(
        text.starts_with(&format!("{both}\n{both}\n")),
        "what was read: {text}"
    );
    // Header, two entries of three bytes each, digest.
    let entry = 4 + 2 + "root-0".len() + 8 + 2 + "X.509".len() + 4 + 3;
    assert!(
        text.contains(&format!("\n{}\n", 12 + 2 * entry + 20)),
        "{text}"
    );
    assert!(text.contains("srw-------"), "{text}");
    assert!(text.ends_with("kept\n"), "{text}");
    sandbox.kill();
}

fn check_what_came(listeners: &[(Listener, OwnedFd)]) {
    let count = |wanted: &Listener| listeners.iter().filter(|(one, _)| one == wanted).count();
    for listener in plan::listeners() {
        let wanted = match listener {
            Listener::Unix { .. } | Listener::Supply => 1,
            Listener::ProbeTcp => 12,
            Listener::ProbeUdp => 6,
            _ => 2,
        };
        assert_eq!(count(&listener), wanted, "{listener:?}");
    }
}

/// Answers connections until the command has ended; what it printed.
fn serve(
    sandbox: Sandbox,
    listeners: Vec<(Listener, OwnedFd)>,
    mut output: std::io::PipeReader,
) -> BTreeMap<String, String> {
    loop {
        let control = sandbox.control();
        let mut descriptors = vec![PollFd::new(&control, PollFlags::IN)];
        descriptors.extend(
            listeners
                .iter()
                .filter(|(listener, _)| !is_passive(listener))
                .map(|(_, socket)| PollFd::new(socket, PollFlags::IN)),
        );
        poll(&mut descriptors, None).expect("poll");
        let ready: Vec<bool> = descriptors[1..]
            .iter()
            .map(|one| one.revents().contains(PollFlags::IN))
            .collect();
        let reported = !descriptors[0].revents().is_empty();
        let serving = listeners.iter().filter(|(one, _)| !is_passive(one));
        for ((listener, socket), _) in serving.zip(ready).filter(|(_, ready)| *ready) {
            answer(listener, socket, &listeners);
        }
        if reported {
            match sandbox.receive().expect("a report") {
                Some(Report::Started) => {}
                Some(Report::Ended { end, .. }) => {
                    assert_eq!(end, End::Exited(0));
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    drop(sandbox);
    let mut text = String::new();
    output.read_to_string(&mut text).expect("text");
    let lines = text.lines().map(|line| {
        line.split_once(": ")
            .unwrap_or_else(|| panic!("what is {line}?\n{text}"))
    });
    lines
        .map(|(what, outcome)| (what.to_owned(), outcome.to_owned()))
        .collect()
}

/// Nothing comes from these by itself.
fn is_passive(listener: &Listener) -> bool {
    matches!(
        listener,
        Listener::Supply | Listener::ProbeTcp | Listener::ProbeUdp
    )
}

fn answer(listener: &Listener, socket: &OwnedFd, all: &[(Listener, OwnedFd)]) {
    let name = match listener {
        Listener::NamesUdp => return answer_datagram(socket),
        Listener::Unix { .. } => {
            let listener = UnixListener::from(socket.try_clone().expect("a copy"));
            let (mut stream, _) = listener.accept().expect("a connection");
            return stream.write_all(b"unix").expect("it is read");
        }
        Listener::Proxy => "proxy",
        Listener::Transparent => "transparent",
        Listener::NamesTcp => "names",
        Listener::HostPort(_) => "host port",
        _ => panic!("{listener:?} does not listen"),
    };
    let listener = TcpListener::from(socket.try_clone().expect("a copy"));
    let (mut stream, _) = listener.accept().expect("a connection");
    let destination = original_destination(stream.as_fd()).expect("a destination");
    if destination == SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 1)) {
        call_server(all);
    }
    write!(stream, "{name} {destination}").expect("it is read");
}

fn answer_datagram(socket: &OwnedFd) {
    let mut buffer = [0; 100];
    let asked = receive_with_destination(socket.as_fd(), &mut buffer).expect("a datagram");
    assert_eq!(&buffer[..asked.length], b"question");
    let text = format!("asked {}", asked.destination);
    send_from(
        socket.as_fd(),
        text.as_bytes(),
        asked.destination,
        asked.from,
    )
    .expect("it is sent");
}

/// Asks init for a socket and connects it to a server inside.
fn call_server(all: &[(Listener, OwnedFd)]) {
    let supply = all.iter().find(|(one, _)| *one == Listener::Supply);
    let (_, supply) = supply.expect("a supply");
    // What is no request is not answered.
    for request in [&b"?"[..], b"444", b"4"] {
        message::send(supply.as_fd(), request, &[], Wait::Yes).expect("it is read");
    }
    let mut waiting = [PollFd::new(supply, PollFlags::IN)];
    poll(&mut waiting, None).expect("poll");
    let answer = message::receive(supply.as_fd(), 8, Wait::No).expect("an answer");
    let mut answer = answer.expect("one that is not the end");
    assert_eq!(answer.bytes, b"4");
    let socket = answer.descriptors.pop().expect("a socket");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, SERVER_PORT));
    // The server listens already, so the loopback connects at once or soon.
    let _soon = connect(&socket, &address).is_err();
    let mut writable = [PollFd::new(&socket, PollFlags::OUT)];
    poll(&mut writable, None).expect("poll");
    network::peer_address(socket.as_fd()).expect("it is connected");
    let mut stream = std::net::TcpStream::from(socket);
    stream.write_all(b"from outside").expect("it is read");
}
