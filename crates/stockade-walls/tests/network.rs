//! The network of a sandbox on the real kernel, without root and as root:
//! where connections of the command arrive, and what it cannot change.
//!
//! The test program is also the command inside and the egress process. It has
//! no test harness, because a sandbox is forked by a process with one thread.

#[path = "network/inside.rs"]
mod inside;
#[path = "network/outside.rs"]
mod outside;
#[path = "network/plan.rs"]
mod plan;

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use stockade_policy::plan::Action;
use stockade_sys::message::{self, Wait};
use stockade_sys::rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use stockade_walls::{WallError, egress};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("inside") => return inside::run(),
        Some("inside-alone") => return inside::run_alone(),
        Some("as-egress") => return as_egress(),
        _ => {}
    }
    // `cargo test NAME` passes a filter, and options of the harness.
    let filter = arguments.iter().skip(1).find(|one| !one.starts_with('-'));
    type Test = (&'static str, fn());
    let tests: [Test; 6] = [
        ("connections_arrive", outside::connections_arrive),
        ("without_a_holder", outside::without_a_holder),
        ("no_socket_on_the_host", outside::no_socket_on_the_host),
        ("a_failed_step_refuses", a_failed_step_refuses),
        ("roots_are_written", outside::roots_are_written),
        ("egress_has_nothing", egress_has_nothing),
    ];
    for (name, test) in tests {
        if filter.is_none_or(|filter| name.contains(filter.as_str())) {
            test();
            println!("test {name} ... ok");
        }
    }
}

/// Whichever of the network's steps fails, there is no sandbox.
fn a_failed_step_refuses() {
    let scratch = plan::Scratch::new();
    let plan = plan::plan(&scratch, "inside");
    let of_network = |action: &Action| {
        matches!(
            action,
            Action::LocalRoutes
                | Action::Redirect
                | Action::Listen { .. }
                | Action::TrustStore { .. }
        )
    };
    let mut seen = 0;
    for (index, step) in plan.steps.iter().enumerate() {
        if !of_network(&step.action) {
            continue;
        }
        seen += 1;
        let error = plan::start(&plan, Some(index)).expect_err("a step failed");
        assert!(
            matches!(&error, WallError::Step { index: failed, .. } if *failed == index),
            "{error}"
        );
    }
    assert_eq!(seen, 6);
}

/// The egress process has its control socket, and nothing of its starter's.
fn egress_has_nothing() {
    let flags = SocketFlags::CLOEXEC;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (ours, theirs) = pair.expect("a pair of sockets");
    let kept_open: OwnedFd = ours.try_clone().expect("a copy");
    let program = std::env::current_exe().expect("a program has a path");
    let program = CString::new(program.into_os_string().into_encoded_bytes()).expect("no NUL");
    let arguments = [c"egress".to_owned(), c"as-egress".to_owned()];
    let mut started = egress::spawn(&program, &arguments, theirs).expect("it starts");
    let report = message::receive(ours.as_fd(), 4096, Wait::Yes).expect("a report");
    let report = String::from_utf8(report.expect("one that is not the end").bytes);
    let report = report.expect("text");
    assert_eq!(report, "0 variables, descriptors 0 1 2 3, /, leader");
    started.kill();
    // Its end of the socket was the only one.
    let end = message::receive(ours.as_fd(), 4096, Wait::Yes).expect("an end");
    assert!(end.is_none());
    drop(kept_open);
}

fn as_egress() {
    use stockade_sys::rustix::process::{getpgrp, getpid, getsid};
    let descriptors = inside::open_descriptors().join(" ");
    let directory = std::env::current_dir().expect("a directory");
    let leads = getsid(None).is_ok_and(|session| session == getpid()) && getpgrp() == getpid();
    let report = format!(
        "{} variables, descriptors {descriptors}, {}, {}",
        std::env::vars_os().count(),
        directory.display(),
        if leads { "leader" } else { "member" },
    );
    let control = stockade_sys::process::inherited(egress::CONTROL).expect("the control socket");
    message::send(control.as_fd(), report.as_bytes(), &[], Wait::Yes).expect("it is read");
    loop {
        std::thread::park();
    }
}
