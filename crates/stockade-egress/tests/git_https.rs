//! A real git client against a real `git http-backend`, with the filter of
//! pushes between them, as the HTTP service uses it.

mod git_support;

use std::convert::Infallible;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bytes::Bytes;
use git_support::Fixture;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use stockade_egress::git::push::{Coding, PushFilter, Settings, Transport};
use stockade_egress::git::report;
use stockade_egress::git::smart_http::{Access, HttpOperation, Kind, Service, recognise};
use stockade_egress::git::spool::Room;
use stockade_policy::network::judge::{Denial, GitAction, GitOperation};

type Answer = Response<Full<Bytes>>;

/// Serves the fixture's repositories until the process ends.
fn serve(fixture: &mut Fixture) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    fixture.base = format!("http://{}/", listener.local_addr().unwrap());
    let root = fixture.path().join("srv");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let root = root.clone();
                let service =
                    hyper::service::service_fn(move |request| answer(request, root.clone()));
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tokio::task::spawn_local(async move { drop(connection.await) });
            }
        });
    });
}

async fn answer(request: Request<Incoming>, root: PathBuf) -> Result<Answer, Infallible> {
    let (head, body) = request.into_parts();
    let text = |name: header::HeaderName| {
        let value = head.headers.get(name)?;
        Some(value.to_str().unwrap().to_owned())
    };
    let path = head.uri.path().to_owned();
    let query = head.uri.query().unwrap_or_default().to_owned();
    let pairs: Vec<(String, String)> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let content_type = text(header::CONTENT_TYPE);
    let operation = recognise(head.method.as_str(), &path, &pairs, content_type.as_deref());
    let Some(HttpOperation::Git { repository, kind }) = operation else {
        return Ok(status(StatusCode::BAD_REQUEST, "no git"));
    };
    let action = match kind.access().unwrap() {
        Access::Read => GitAction::Read,
        Access::Push => GitAction::PushAny,
    };
    let asked = GitOperation {
        repository,
        action,
        over_ssh: false,
    };
    if let Err(denial) = git_support::judge(&asked) {
        return Ok(refused(&denial));
    }
    let coding = text(header::CONTENT_ENCODING);
    let mut input = body.collect().await.unwrap().to_bytes().to_vec();
    let mut forwarded_coding = coding.clone();
    if kind == Kind::Call(Service::ReceivePack) {
        input = match vetted(repository, coding.as_deref(), &input) {
            Ok(vetted) => vetted,
            Err(answer) => return Ok(*answer),
        };
        forwarded_coding = None;
    }
    let protocol = head
        .headers
        .get("git-protocol")
        .map(|value| value.to_str().unwrap().to_owned());
    let variables = [
        ("REQUEST_METHOD", Some(head.method.to_string())),
        ("PATH_INFO", Some(path)),
        ("QUERY_STRING", Some(query)),
        ("CONTENT_TYPE", content_type),
        ("CONTENT_LENGTH", Some(input.len().to_string())),
        ("HTTP_CONTENT_ENCODING", forwarded_coding),
        ("GIT_PROTOCOL", protocol),
    ];
    let done = tokio::task::spawn_blocking(move || backend(&root, &variables, &input));
    Ok(done.await.unwrap())
}

/// A push as it is sent on, or the answer that refuses it.
fn vetted(repository: &str, coding: Option<&str>, input: &[u8]) -> Result<Vec<u8>, Box<Answer>> {
    let settings = Settings {
        repository: repository.to_owned(),
        transport: Transport::Https,
        coding: match coding {
            Some("gzip") => Coding::Gzip,
            _ => Coding::Identity,
        },
        needles: git_support::needles(),
        room: Room::new(64 << 20),
    };
    let mut filter = PushFilter::new(settings, Box::new(git_support::judge));
    for piece in input.chunks(10_000) {
        filter.feed(piece);
    }
    let mut vetted = filter.finish().map_err(|refusal| {
        let Some(answer) = refusal.answer else {
            return Box::new(refused(&refusal.denial));
        };
        let kind = "application/x-git-receive-pack-result";
        let answer = Response::builder()
            .header(header::CONTENT_TYPE, kind)
            .body(Full::new(answer.into()));
        Box::new(answer.unwrap())
    })?;
    let mut all = Vec::new();
    while let Some(chunk) = vetted.body.next_chunk().unwrap() {
        all.extend_from_slice(&chunk);
    }
    Ok(all)
}

/// Runs `git http-backend` as a CGI program (RFC 3875).
fn backend(root: &Path, variables: &[(&str, Option<String>)], input: &[u8]) -> Answer {
    let mut command = Command::new("git");
    command
        .arg("http-backend")
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .env("REMOTE_USER", "tester")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    for (name, value) in variables {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        // The backend may end without having read everything.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().unwrap()
    });
    let end = output
        .stdout
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .unwrap();
    let (head, body) = output.stdout.split_at(end);
    let mut answer = Response::builder();
    for line in String::from_utf8_lossy(head).lines() {
        let (name, value) = line.split_once(": ").unwrap();
        answer = match name {
            "Status" => answer.status(&value[..3]),
            _ => answer.header(name, value),
        };
    }
    answer.body(Full::new(body[4..].to_vec().into())).unwrap()
}

/// As git shows it: plain text of a failed request.
fn refused(denial: &Denial) -> Answer {
    let mut answer = status(StatusCode::FORBIDDEN, &report::message(denial));
    let kind = header::HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

fn status(status: StatusCode, text: &str) -> Answer {
    let mut answer = Response::new(Full::new(text.to_owned().into()));
    *answer.status_mut() = status;
    answer
}

fn with_server(test: impl FnOnce(&Fixture)) {
    let mut fixture = Fixture::new();
    serve(&mut fixture);
    test(&fixture);
}

#[test]
fn permitted_repositories_are_read_and_others_are_not() {
    with_server(git_support::reads);
}

#[test]
fn permitted_references_are_pushed_and_others_are_not() {
    with_server(git_support::pushes_by_reference);
}

#[test]
fn references_move_forward_only_unless_the_rule_says_so() {
    with_server(git_support::moves_forward_only);
}

#[test]
fn a_push_with_a_secret_anywhere_in_it_is_refused() {
    with_server(git_support::keeps_secrets);
}

#[test]
fn a_push_that_is_too_large_is_refused() {
    with_server(git_support::counts_bytes);
}

#[test]
fn a_shallow_clone_can_push() {
    with_server(git_support::pushes_from_a_shallow_clone);
}
